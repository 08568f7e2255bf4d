/* key_map.h - a hash table from 64-bit numbers to pointers.
 *
 * For books whose keys come in no order: pages, events, streams by their identity.
 *
 * Thread-safety: none; the owner's lock guards it. Ownership: the values are the
 * owner's. Cost: O(1).
 */
#ifndef GM_DEVICE_KEY_MAP_H
#define GM_DEVICE_KEY_MAP_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct gm_key_entry {
    uint64_t key;
    void *value; /* NULL: the place is free */
} gm_key_entry;

typedef struct gm_key_map {
    gm_key_entry *entries; /* owned */
    size_t count;
    size_t capacity; /* a power of two, or 0 */
} gm_key_map;

/* Frees the table, not the values. Zeroed memory is an empty map. */
void
gm_key_map_destroy(gm_key_map *map);

/* Pre: the key is not in the map, the value is not NULL. GM_NO_HOST_MEMORY. */
GM_NODISCARD gm_status
gm_key_map_insert(gm_key_map *map, uint64_t key, void *value);

/* NULL when the key is not there. */
void *
gm_key_map_find(const gm_key_map *map, uint64_t key);

/* Takes the key out; returns its value, or NULL. */
void *
gm_key_map_remove(gm_key_map *map, uint64_t key);

#endif
