/* key_map.c - linear probing; a removal moves later entries back, so that no place has
 * to be marked as used once.
 */
#include "device/key_map.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"

#define FIRST_CAPACITY 16u

void
gm_key_map_destroy(gm_key_map *map)
{
    free(map->entries);
    memset(map, 0, sizeof(*map));
}

/* Where the key is looked for first. */
static size_t
home_of(const gm_key_map *map, uint64_t key)
{
    return (size_t)(key * UINT64_C(0x9E3779B97F4A7C15) >> 32) & (map->capacity - 1);
}

/* The key's place, or the free one where it would go. Pre: a place is free. */
static size_t
place_of(const gm_key_map *map, uint64_t key)
{
    size_t at = home_of(map, key);
    while (map->entries[at].value != NULL && map->entries[at].key != key) {
        at = (at + 1) & (map->capacity - 1);
    }
    return at;
}

static gm_status
grow(gm_key_map *map)
{
    gm_key_map grown = {
        .capacity = map->capacity == 0 ? FIRST_CAPACITY : map->capacity * 2,
        .count = map->count};
    grown.entries = calloc(grown.capacity, sizeof(*grown.entries));
    if (grown.entries == NULL) {
        return GM_NO_HOST_MEMORY;
    }
    for (size_t i = 0; i < map->capacity; i++) {
        if (map->entries[i].value != NULL) {
            grown.entries[place_of(&grown, map->entries[i].key)] = map->entries[i];
        }
    }
    free(map->entries);
    *map = grown;
    return GM_OK;
}

gm_status
gm_key_map_insert(gm_key_map *map, uint64_t key, void *value)
{
    if (map->count >= map->capacity / 2) {
        GM_TRY(grow(map));
    }
    gm_key_entry *entry = &map->entries[place_of(map, key)];
    GM_ASSERT(entry->value == NULL && value != NULL);
    *entry = (gm_key_entry){.key = key, .value = value};
    map->count++;
    return GM_OK;
}

void *
gm_key_map_find(const gm_key_map *map, uint64_t key)
{
    return map->count == 0 ? NULL : map->entries[place_of(map, key)].value;
}

void *
gm_key_map_remove(gm_key_map *map, uint64_t key)
{
    if (map->count == 0) {
        return NULL;
    }
    size_t mask = map->capacity - 1;
    size_t hole = place_of(map, key);
    void *value = map->entries[hole].value;
    if (value == NULL) {
        return NULL;
    }
    map->count--;
    for (size_t at = (hole + 1) & mask; map->entries[at].value != NULL;
         at = (at + 1) & mask) {
        size_t home = home_of(map, map->entries[at].key);
        /* May it lie at the hole: is that on the way from its home? */
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            map->entries[hole] = map->entries[at];
            hole = at;
        }
    }
    map->entries[hole].value = NULL;
    return value;
}
