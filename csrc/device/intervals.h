/* intervals.h - a sorted registry of disjoint ranges of addresses.
 *
 * Backends keep their segments, their reserved ranges and their pinned memory in one of
 * these each: to refuse what overlaps, and to give back only what was handed out.
 *
 * Thread-safety: none; the owner's lock guards it. Ownership: `data` is the owner's.
 * Cost: O(log n) to find, O(n) moves of 24 bytes to insert and remove.
 */
#ifndef GM_DEVICE_INTERVALS_H
#define GM_DEVICE_INTERVALS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct gm_interval {
    uint64_t address;
    uint64_t size; /* bytes, > 0; address + size does not wrap */
    void *data;    /* the owner's */
} gm_interval;

typedef struct gm_intervals {
    gm_interval *items; /* rising addresses */
    size_t count;
    size_t capacity;
} gm_intervals;

/* Frees the array, not what `data` points to. Zeroed memory is an empty registry. */
void
gm_intervals_destroy(gm_intervals *intervals);

/* Makes sure that the next insertion succeeds. GM_NO_HOST_MEMORY. */
GM_NODISCARD gm_status
gm_intervals_reserve(gm_intervals *intervals);

/* GM_INVALID when it is empty, wraps or overlaps; GM_NO_HOST_MEMORY. */
GM_NODISCARD gm_status
gm_intervals_insert(gm_intervals *intervals, uint64_t address, uint64_t size,
                    void *data);

/* The interval that holds `address`, or NULL. Borrowed until the next change. */
gm_interval *
gm_intervals_holding(const gm_intervals *intervals, uint64_t address);

/* The interval that is exactly this one, or NULL. Borrowed until the next change. */
gm_interval *
gm_intervals_exactly(const gm_intervals *intervals, uint64_t address, uint64_t size);

/* Pre: `interval` is one of the registry's. */
void
gm_intervals_remove(gm_intervals *intervals, gm_interval *interval);

#endif
