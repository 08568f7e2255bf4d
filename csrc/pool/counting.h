/* counting.h - what every allocation and every free counts, in the lock of its lane.
 *
 * These run with each call, so they are inline and few; counters.c derives the rest.
 */
#ifndef GM_POOL_COUNTING_H
#define GM_POOL_COUNTING_H

#include "pool/internal.h"

static inline void
gm_raise_peak(uint64_t *peak, uint64_t value)
{
    if (value > *peak) {
        *peak = value;
    }
}

/* The numbers of a tally's three measures in use. */
static inline gm_tally
gm_lane_used_of(const gm_lane_stats *stats)
{
    return (gm_tally){.blocks = stats->allocated.blocks - stats->freed.blocks,
                      .bytes = stats->allocated.bytes - stats->freed.bytes,
                      .requested = stats->allocated.requested - stats->freed.requested};
}

static inline void
gm_tally_add(gm_tally *tally, const gm_block *block)
{
    tally->blocks += 1;
    tally->bytes += block->size;
    tally->requested += block->requested;
}

static inline gm_tally
gm_tally_sum(gm_tally a, gm_tally b)
{
    return (gm_tally){.blocks = a.blocks + b.blocks,
                      .bytes = a.bytes + b.bytes,
                      .requested = a.requested + b.requested};
}

static inline void
gm_raise_peaks(gm_tally *peak, gm_tally value)
{
    gm_raise_peak(&peak->blocks, value.blocks);
    gm_raise_peak(&peak->bytes, value.bytes);
    gm_raise_peak(&peak->requested, value.requested);
}

/* What both arenas use. */
static inline gm_tally
gm_lane_used_both(const gm_lane *lane)
{
    return gm_tally_sum(gm_lane_used_of(&lane->shelves[GM_SMALL].stats),
                        gm_lane_used_of(&lane->shelves[GM_LARGE].stats));
}

/* Has the lane gone above its budget? Note [Budgets]; never with one lane. */
static inline bool
gm_lane_is_over_budget(const gm_lane *lane)
{
    if (!atomic_load_explicit(&lane->pool->many_lanes, memory_order_relaxed)) {
        return false;
    }
    gm_tally used = gm_lane_used_both(lane);
    const gm_budget *budget = &lane->budget;
    return used.blocks > atomic_load_explicit(&budget->blocks, memory_order_relaxed) ||
           used.bytes > atomic_load_explicit(&budget->bytes, memory_order_relaxed) ||
           used.requested >
               atomic_load_explicit(&budget->requested, memory_order_relaxed);
}

/* The block was allocated. */
static inline void
gm_count_alloc_locked(gm_lane *lane, gm_shelf *shelf, const gm_block *block)
    GM_REQUIRES(lane->lock)
{
    lane->rising = true;
    gm_tally_add(&shelf->stats.allocated, block);
}

/* The block was freed by its owner. */
static inline void
gm_count_free_locked(gm_lane *lane, gm_shelf *shelf, const gm_block *block)
    GM_REQUIRES(lane->lock)
{
    if (lane->rising) {
        gm_count_settle_locked(lane);
    }
    gm_tally_add(&shelf->stats.freed, block);
}

/* An arena has more free memory than before. */
static inline void
gm_count_cached(gm_shelf *shelf)
{
    gm_tally *peak = &shelf->stats.inactive_peak;
    gm_raise_peak(&peak->blocks, shelf->arena.free_blocks);
    gm_raise_peak(&peak->bytes, gm_arena_cached_bytes(&shelf->arena));
}

/* ---- what both ways to a block share ------------------------------------------- */

static inline gm_shelf *
gm_lane_shelf(gm_lane *lane, size_t size)
{
    return &lane->shelves[size <= lane->small_limit ? GM_SMALL : GM_LARGE];
}

static inline size_t
gm_request_alignment(const gm_request *request)
{
    return request->alignment < GM_GRANULE ? GM_GRANULE : request->alignment;
}

/* The block that was cut out for a request is the caller's. */
static inline void
gm_lane_hand_out_locked(gm_lane *lane, gm_shelf *shelf, const gm_request *request,
                        gm_block *block) GM_REQUIRES(lane->lock)
{
    block->requested = request->size;
    block->context = request->context;
    block->by_address = request->by_address;
    gm_count_alloc_locked(lane, shelf, block);
}

#endif
