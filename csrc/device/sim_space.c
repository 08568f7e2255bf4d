/* sim_space.c - see sim_space.h. */
#include "device/sim_space.h"

#include <string.h>

#include "base/bits.h"
#include "base/mutex.h"
#include "base/process.h"

static gm_mutex space_lock = {.rank = GM_RANK_SHARED};
static const void *owners[GM_SIM_REGIONS] GM_GUARDED_BY(space_lock); /* NULL: free */

static void
forget_parent(void) GM_NO_THREAD_ANALYSIS
{
    gm_mutex_init(&space_lock, GM_RANK_SHARED);
    memset(owners, 0, sizeof(owners));
}

GM_IN_FORKED_CHILD(forget_parent);

static uint64_t
start_of(unsigned region)
{
    return GM_SIM_SPACE_BASE + region * GM_SIM_REGION;
}

/* How many free regions follow from `first` on, counted until they have the room. */
static unsigned
run_locked(const gm_intervals *holes, unsigned first, uint64_t size, uint64_t alignment,
           bool *enough) GM_REQUIRES(space_lock)
{
    uint64_t start = start_of(first);
    const gm_interval *before = gm_intervals_holding(holes, start - 1);
    unsigned end = first;
    start = gm_align_up_unchecked(before == NULL ? start : before->address, alignment);
    *enough = false;
    while (!*enough && end < GM_SIM_REGIONS && owners[end] == NULL) {
        uint64_t stop = start_of(++end);
        const gm_interval *after = gm_intervals_holding(holes, stop);
        stop += after == NULL ? 0 : after->size;
        *enough = start <= stop && size <= stop - start;
    }
    return end - first;
}

gm_status
gm_sim_space_claim(const void *owner, const gm_intervals *holes, uint64_t size,
                   uint64_t alignment, gm_interval *out)
{
    bool enough = false;
    gm_mutex_lock(&space_lock);
    for (unsigned first = 0, count; first < GM_SIM_REGIONS && !enough;
         first += count + 1) {
        count = run_locked(holes, first, size, alignment, &enough);
        if (enough) {
            *out = (gm_interval){.address = start_of(first),
                                 .size = count * GM_SIM_REGION};
            for (unsigned i = 0; i < count; i++) {
                owners[first + i] = owner;
            }
        }
    }
    gm_mutex_unlock(&space_lock);
    return enough ? GM_OK : GM_NO_ADDRESS;
}

void
gm_sim_space_release(const void *owner)
{
    gm_mutex_lock(&space_lock);
    for (unsigned i = 0; i < GM_SIM_REGIONS; i++) {
        if (owners[i] == owner) {
            owners[i] = NULL;
        }
    }
    gm_mutex_unlock(&space_lock);
}
