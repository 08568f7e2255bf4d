#include "device/intervals.h"

#include <stdlib.h>
#include <string.h>

void
gm_intervals_destroy(gm_intervals *intervals)
{
    free(intervals->items);
    memset(intervals, 0, sizeof(*intervals));
}

gm_status
gm_intervals_reserve(gm_intervals *intervals)
{
    if (intervals->count < intervals->capacity) {
        return GM_OK;
    }
    size_t capacity = intervals->capacity == 0 ? 16 : intervals->capacity * 2;
    gm_interval *items = realloc(intervals->items, capacity * sizeof(*items));
    if (items == NULL) {
        return GM_NO_HOST_MEMORY;
    }
    intervals->items = items;
    intervals->capacity = capacity;
    return GM_OK;
}

/* Index of the first interval that starts above `address`. */
static size_t
first_above(const gm_intervals *intervals, uint64_t address)
{
    size_t low = 0;
    size_t high = intervals->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (intervals->items[middle].address <= address) {
            low = middle + 1;
        }
        else {
            high = middle;
        }
    }
    return low;
}

gm_status
gm_intervals_insert(gm_intervals *intervals, uint64_t address, uint64_t size,
                    void *data)
{
    if (size == 0 || address > UINT64_MAX - size) {
        return GM_INVALID;
    }
    size_t at = first_above(intervals, address);
    const gm_interval *before = at == 0 ? NULL : &intervals->items[at - 1];
    if ((before != NULL && before->address + before->size > address) ||
        (at < intervals->count && intervals->items[at].address < address + size)) {
        return GM_INVALID;
    }
    GM_TRY(gm_intervals_reserve(intervals));
    memmove(&intervals->items[at + 1], &intervals->items[at],
            (intervals->count - at) * sizeof(gm_interval));
    intervals->items[at] = (gm_interval){address, size, data};
    intervals->count++;
    return GM_OK;
}

gm_interval *
gm_intervals_holding(const gm_intervals *intervals, uint64_t address)
{
    size_t above = first_above(intervals, address);
    if (above == 0) {
        return NULL;
    }
    gm_interval *interval = &intervals->items[above - 1];
    return address - interval->address < interval->size ? interval : NULL;
}

gm_interval *
gm_intervals_exactly(const gm_intervals *intervals, uint64_t address, uint64_t size)
{
    gm_interval *interval = gm_intervals_holding(intervals, address);
    if (interval == NULL || interval->address != address || interval->size != size) {
        return NULL;
    }
    return interval;
}

void
gm_intervals_remove(gm_intervals *intervals, gm_interval *interval)
{
    size_t at = (size_t)(interval - intervals->items);
    memmove(interval, interval + 1, (intervals->count - at - 1) * sizeof(*interval));
    intervals->count--;
}
