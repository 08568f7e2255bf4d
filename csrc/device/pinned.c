#include "device/pinned.h"

#include <stdint.h>
#include <stdlib.h>

#include "base/bits.h"

void
gm_pinned_init(gm_pinned *pinned, gm_tally *tally)
{
    gm_mutex_init(&pinned->lock, GM_RANK_DEVICE);
    pinned->tally = tally;
}

void
gm_pinned_destroy(gm_pinned *pinned) GM_NO_THREAD_ANALYSIS
{
    for (size_t i = 0; i < pinned->ranges.count; i++) {
        free(pinned->ranges.items[i].data);
    }
    gm_intervals_destroy(&pinned->ranges);
}

/* `made` is the memory itself when it was allocated here. */
static gm_status
add_range(gm_pinned *pinned, void *memory, size_t size, void *made)
{
    gm_mutex_lock(&pinned->lock);
    gm_status status =
        gm_intervals_insert(&pinned->ranges, (uintptr_t)memory, size, made);
    if (status == GM_OK) {
        gm_tally_add(&pinned->tally->pinned_now, size);
    }
    gm_mutex_unlock(&pinned->lock);
    return status;
}

static gm_status
remove_range(gm_pinned *pinned, const void *memory, size_t size, bool made)
{
    gm_status status = GM_INVALID;
    gm_mutex_lock(&pinned->lock);
    gm_interval *range = gm_intervals_exactly(&pinned->ranges, (uintptr_t)memory, size);
    if (range != NULL && (range->data != NULL) == made) {
        gm_intervals_remove(&pinned->ranges, range);
        gm_tally_subtract(&pinned->tally->pinned_now, size);
        status = GM_OK;
    }
    gm_mutex_unlock(&pinned->lock);
    return status;
}

gm_status
gm_pinned_create_memory(gm_pinned *pinned, size_t size, void **out)
{
    size_t rounded;
    void *memory = NULL;
    if (size == 0) {
        return GM_INVALID;
    }
    GM_TRY(gm_align_up(size, GM_PINNED_ALIGNMENT, &rounded));
    if (posix_memalign(&memory, GM_PINNED_ALIGNMENT, rounded) != 0) {
        return GM_NO_HOST_MEMORY;
    }
    gm_status status = add_range(pinned, memory, size, memory);
    if (status != GM_OK) {
        free(memory);
        return status;
    }
    *out = memory;
    return GM_OK;
}

gm_status
gm_pinned_destroy_memory(gm_pinned *pinned, void *memory, size_t size)
{
    GM_TRY(remove_range(pinned, memory, size, true));
    free(memory);
    return GM_OK;
}

gm_status
gm_pinned_register(gm_pinned *pinned, void *memory, size_t size)
{
    if (memory == NULL) {
        return GM_INVALID;
    }
    return add_range(pinned, memory, size, NULL);
}

gm_status
gm_pinned_unregister(gm_pinned *pinned, void *memory, size_t size)
{
    return remove_range(pinned, memory, size, false);
}
