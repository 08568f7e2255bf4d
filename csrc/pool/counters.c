/* counters.c - statistics: counted per lane, summed on read.
 *
 * With one lane its own peaks are the pool's. From the second lane on three totals
 * (used bytes, requested bytes, blocks) are kept in atomics as well, so that the
 * pool's peaks stay exact; the other peaks of several lanes are sums of the lanes'
 * peaks, an upper bound.
 */
#include <string.h>

#include "pool/internal.h"

static void
total_add(gm_total *total, uint64_t amount)
{
    uint64_t now =
        atomic_fetch_add_explicit(&total->current, amount, memory_order_relaxed) +
        amount;
    uint64_t peak = atomic_load_explicit(&total->peak, memory_order_relaxed);
    while (now > peak && !atomic_compare_exchange_weak_explicit(
                             &total->peak, &peak, now, memory_order_relaxed,
                             memory_order_relaxed)) {
    }
}

static void
total_sub(gm_total *total, uint64_t amount)
{
    atomic_fetch_sub_explicit(&total->current, amount, memory_order_relaxed);
}

static inline bool
has_totals(const gm_lane *lane)
{
    return atomic_load_explicit(&lane->pool->many_lanes, memory_order_relaxed);
}

static inline void
add_alloc(gm_lane_stats *stats, const gm_block *block)
{
    gm_stat_add(&stats->allocation, 1);
    gm_stat_add(&stats->allocated_bytes, block->size);
    gm_stat_add(&stats->requested_bytes, block->requested);
    gm_stat_add(&stats->active, 1);
    gm_stat_add(&stats->active_bytes, block->size);
}

static inline void
sub_alloc(gm_lane_stats *stats, const gm_block *block)
{
    gm_stat_sub(&stats->allocation, 1);
    gm_stat_sub(&stats->allocated_bytes, block->size);
    gm_stat_sub(&stats->requested_bytes, block->requested);
}

void
gm_count_alloc_locked(gm_lane *lane, const gm_block *block)
{
    add_alloc(&lane->stats[gm_block_arena_index(block)], block);
    add_alloc(&lane->all, block);
    if (has_totals(lane)) {
        total_add(&lane->pool->used, block->size);
        total_add(&lane->pool->requested, block->requested);
        total_add(&lane->pool->allocations, 1);
    }
}

void
gm_count_free_locked(gm_lane *lane, const gm_block *block)
{
    sub_alloc(&lane->stats[gm_block_arena_index(block)], block);
    sub_alloc(&lane->all, block);
    if (has_totals(lane)) {
        total_sub(&lane->pool->used, block->size);
        total_sub(&lane->pool->requested, block->requested);
        total_sub(&lane->pool->allocations, 1);
    }
}

void
gm_count_inactive_locked(gm_lane *lane, const gm_block *block)
{
    gm_lane_stats *stats = &lane->stats[gm_block_arena_index(block)];
    gm_stat_sub(&stats->active, 1);
    gm_stat_sub(&stats->active_bytes, block->size);
    gm_stat_sub(&lane->all.active, 1);
    gm_stat_sub(&lane->all.active_bytes, block->size);
}

static void
move_stat(gm_stat *stat, uint64_t value)
{
    if (value > stat->current) {
        gm_stat_add(stat, value - stat->current);
    }
    else {
        gm_stat_sub(stat, stat->current - value);
    }
}

void
gm_lane_count_cached_locked(gm_lane *lane, unsigned arena)
{
    move_stat(&lane->inactive[arena], lane->arenas[arena].free_blocks);
    move_stat(&lane->inactive_bytes[arena],
              gm_arena_cached_bytes(&lane->arenas[arena]));
}

void
gm_count_segments_locked(gm_lane *lane, const gm_arena *arena, int64_t number,
                         size_t bytes)
{
    unsigned index = arena->small ? GM_SMALL : GM_LARGE;
    if (number >= 0) {
        gm_stat_add(&lane->segments[index], (uint64_t)number);
        gm_stat_add(&lane->segment_bytes[index], bytes);
    }
    else {
        gm_stat_sub(&lane->segments[index], (uint64_t)-number);
        gm_stat_sub(&lane->segment_bytes[index], bytes);
    }
    gm_lane_count_cached_locked(lane, index);
}

static void
start_total(gm_total *total, const gm_stat *stat)
{
    atomic_store_explicit(&total->current, stat->current, memory_order_relaxed);
    atomic_store_explicit(&total->peak, stat->peak, memory_order_relaxed);
}

void
gm_count_start_totals_locked(gm_lane *lane)
{
    gm_pool *pool = lane->pool;
    start_total(&pool->used, &lane->all.allocated_bytes);
    start_total(&pool->requested, &lane->all.requested_bytes);
    start_total(&pool->allocations, &lane->all.allocation);
    atomic_store_explicit(&pool->many_lanes, true, memory_order_relaxed);
}

/* ---- reading ------------------------------------------------------------------ */

static void
sum_stat(gm_stat *sum, const gm_stat *stat)
{
    sum->current += stat->current;
    sum->peak += stat->peak;
    sum->allocated += stat->allocated;
    sum->freed += stat->freed;
}

static void
sum_row(gm_stat_row *row, const gm_stat *small, const gm_stat *large, const gm_stat *all)
{
    sum_stat(&row->small_pool, small);
    sum_stat(&row->large_pool, large);
    if (all != NULL) {
        sum_stat(&row->all, all);
    }
    else {
        sum_stat(&row->all, small);
        sum_stat(&row->all, large);
    }
}

static bool
sum_lane(gm_lane *lane, void *argument)
{
    gm_pool_stats *out = argument;
    gm_lane_drain_locked(lane);
    const gm_lane_stats *s = &lane->stats[GM_SMALL];
    const gm_lane_stats *l = &lane->stats[GM_LARGE];
    const gm_lane_stats *a = &lane->all;
    sum_row(&out->allocation, &s->allocation, &l->allocation, &a->allocation);
    sum_row(&out->allocated_bytes, &s->allocated_bytes, &l->allocated_bytes,
            &a->allocated_bytes);
    sum_row(&out->requested_bytes, &s->requested_bytes, &l->requested_bytes,
            &a->requested_bytes);
    sum_row(&out->active, &s->active, &l->active, &a->active);
    sum_row(&out->active_bytes, &s->active_bytes, &l->active_bytes, &a->active_bytes);
    sum_row(&out->segment, &lane->segments[GM_SMALL], &lane->segments[GM_LARGE], NULL);
    sum_row(&out->reserved_bytes, &lane->segment_bytes[GM_SMALL],
            &lane->segment_bytes[GM_LARGE], NULL);
    sum_row(&out->inactive_split, &lane->inactive[GM_SMALL], &lane->inactive[GM_LARGE],
            NULL);
    sum_row(&out->inactive_split_bytes, &lane->inactive_bytes[GM_SMALL],
            &lane->inactive_bytes[GM_LARGE], NULL);
    for (unsigned i = 0; i < GM_ARENAS; i++) {
        out->cached_bytes += gm_arena_cached_bytes(&lane->arenas[i]);
        out->address_bytes += lane->arenas[i].address_bytes;
    }
    out->pending_bytes += lane->pending_bytes;
    out->pending_blocks += lane->pending_blocks;
    out->deferred_frees += lane->deferred_frees;
    out->lanes++;
    return true;
}

/* The exact peak of a total that several lanes share. */
static void
read_total(gm_stat *stat, const gm_total *total)
{
    stat->peak = atomic_load_explicit(&total->peak, memory_order_relaxed);
    if (stat->peak < stat->current) {
        stat->peak = stat->current;
    }
}

static void
read_page_pool(gm_pool *pool, gm_pool_stats *out)
{
    gm_page_pool *pages = &pool->page_pool;
    gm_mutex_lock(&pages->lock);
    out->reserved_bytes.all = pages->reserved;
    out->unplaced_bytes = pages->count * pool->page_size;
    out->quarantined = pages->quarantined;
    out->num_device_alloc = pages->device_allocs;
    out->num_device_free = pages->device_frees;
    out->retaken_bytes = pages->retaken;
    out->limit = pages->limit;
    out->headroom = pages->headroom;
    gm_mutex_unlock(&pages->lock);
}

void
gm_pool_read_stats(gm_pool *pool, gm_pool_stats *out)
{
    memset(out, 0, sizeof(*out));
    if (pool->generation != gm_process_generation()) {
        out->limit = UINT64_MAX;
        return;
    }
    gm_lanes_visit(pool, sum_lane, out);
    if (atomic_load_explicit(&pool->many_lanes, memory_order_relaxed)) {
        read_total(&out->allocated_bytes.all, &pool->used);
        read_total(&out->requested_bytes.all, &pool->requested);
        read_total(&out->allocation.all, &pool->allocations);
    }
    read_page_pool(pool, out);
    out->num_alloc_retries = atomic_load(&pool->retries);
    out->num_ooms = atomic_load(&pool->ooms);
    out->num_sync_all_streams = atomic_load(&pool->waits);
    out->maps = atomic_load(&pool->maps);
    out->unmaps = atomic_load(&pool->unmaps);
    out->flushes = atomic_load(&pool->flushes);
    out->flushed_bytes = atomic_load(&pool->flushed_bytes);
    out->collections = atomic_load(&pool->collections);
    out->bad_frees = atomic_load(&pool->bad_frees);
}

/* ---- resetting ------------------------------------------------------------------ */

static inline void
peak_to_current(gm_stat *stat)
{
    stat->peak = stat->current;
}

static void
reset_lane_peaks(gm_lane_stats *stats)
{
    peak_to_current(&stats->allocation);
    peak_to_current(&stats->allocated_bytes);
    peak_to_current(&stats->requested_bytes);
    peak_to_current(&stats->active);
    peak_to_current(&stats->active_bytes);
}

static bool
reset_peaks(gm_lane *lane, void *argument)
{
    (void)argument;
    gm_lane_drain_locked(lane);
    reset_lane_peaks(&lane->all);
    for (unsigned i = 0; i < GM_ARENAS; i++) {
        reset_lane_peaks(&lane->stats[i]);
        peak_to_current(&lane->inactive[i]);
        peak_to_current(&lane->inactive_bytes[i]);
        peak_to_current(&lane->segments[i]);
        peak_to_current(&lane->segment_bytes[i]);
    }
    return true;
}

static void
reset_total(gm_total *total)
{
    atomic_store_explicit(&total->peak,
                          atomic_load_explicit(&total->current, memory_order_relaxed),
                          memory_order_relaxed);
}

void
gm_pool_reset_peaks(gm_pool *pool)
{
    gm_lanes_visit(pool, reset_peaks, NULL);
    reset_total(&pool->used);
    reset_total(&pool->requested);
    reset_total(&pool->allocations);
    gm_mutex_lock(&pool->page_pool.lock);
    peak_to_current(&pool->page_pool.reserved);
    gm_mutex_unlock(&pool->page_pool.lock);
}

static inline void
forget(gm_stat *stat)
{
    stat->allocated = 0;
    stat->freed = 0;
}

static void
forget_lane(gm_lane_stats *stats)
{
    forget(&stats->allocation);
    forget(&stats->allocated_bytes);
    forget(&stats->requested_bytes);
    forget(&stats->active);
    forget(&stats->active_bytes);
}

static bool
reset_accumulated(gm_lane *lane, void *argument)
{
    (void)argument;
    gm_lane_drain_locked(lane);
    forget_lane(&lane->all);
    for (unsigned i = 0; i < GM_ARENAS; i++) {
        forget_lane(&lane->stats[i]);
        forget(&lane->inactive[i]);
        forget(&lane->inactive_bytes[i]);
        forget(&lane->segments[i]);
        forget(&lane->segment_bytes[i]);
    }
    lane->deferred_frees = 0;
    return true;
}

void
gm_pool_reset_accumulated(gm_pool *pool)
{
    gm_lanes_visit(pool, reset_accumulated, NULL);
    gm_page_pool *pages = &pool->page_pool;
    gm_mutex_lock(&pages->lock);
    forget(&pages->reserved);
    pages->device_allocs = 0;
    pages->device_frees = 0;
    pages->retaken = 0;
    gm_mutex_unlock(&pages->lock);
    _Atomic uint64_t *counters[] = {
        &pool->retries,       &pool->ooms,        &pool->waits,
        &pool->flushes,       &pool->collections, &pool->bad_frees,
        &pool->flushed_bytes, &pool->maps,        &pool->unmaps};
    for (size_t i = 0; i < sizeof(counters) / sizeof(counters[0]); i++) {
        atomic_store(counters[i], 0);
    }
}
