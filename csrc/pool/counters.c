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
    while (now > peak &&
           !atomic_compare_exchange_weak_explicit(
               &total->peak, &peak, now, memory_order_relaxed, memory_order_relaxed)) {
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
raise_peak(uint64_t *peak, uint64_t value)
{
    if (value > *peak) {
        *peak = value;
    }
}

/* The sum of one measure over both arenas. */
#define BOTH(lane, tally, measure) \
    ((lane)->stats[GM_SMALL].tally.measure + (lane)->stats[GM_LARGE].tally.measure)

static void
raise_active_peaks(gm_lane *lane, gm_lane_stats *stats)
{
    gm_tally *all = &lane->peaks.active;
    raise_peak(&stats->active_peak.blocks, stats->used.blocks + stats->pending.blocks);
    raise_peak(&stats->active_peak.bytes, stats->used.bytes + stats->pending.bytes);
    raise_peak(&all->blocks, BOTH(lane, used, blocks) + BOTH(lane, pending, blocks));
    raise_peak(&all->bytes, BOTH(lane, used, bytes) + BOTH(lane, pending, bytes));
}

void
gm_count_alloc_locked(gm_lane *lane, const gm_block *block)
{
    gm_lane_stats *stats = &lane->stats[gm_block_arena_index(block)];
    gm_tally *all = &lane->peaks.used;
    stats->used.blocks += 1;
    stats->used.bytes += block->size;
    stats->used.requested += block->requested;
    stats->total.blocks += 1;
    stats->total.bytes += block->size;
    stats->total.requested += block->requested;
    raise_peak(&stats->peak.blocks, stats->used.blocks);
    raise_peak(&stats->peak.bytes, stats->used.bytes);
    raise_peak(&stats->peak.requested, stats->used.requested);
    raise_peak(&all->blocks, BOTH(lane, used, blocks));
    raise_peak(&all->bytes, BOTH(lane, used, bytes));
    raise_peak(&all->requested, BOTH(lane, used, requested));
    if (lane->pending_blocks != 0) {
        raise_active_peaks(lane, stats);
    }
    if (has_totals(lane)) {
        total_add(&lane->pool->used, block->size);
        total_add(&lane->pool->requested, block->requested);
        total_add(&lane->pool->allocations, 1);
    }
}

void
gm_count_free_locked(gm_lane *lane, const gm_block *block)
{
    gm_lane_stats *stats = &lane->stats[gm_block_arena_index(block)];
    stats->used.blocks -= 1;
    stats->used.bytes -= block->size;
    stats->used.requested -= block->requested;
    if (has_totals(lane)) {
        total_sub(&lane->pool->used, block->size);
        total_sub(&lane->pool->requested, block->requested);
        total_sub(&lane->pool->allocations, 1);
    }
}

void
gm_count_pending_locked(gm_lane *lane, const gm_block *block, bool begins)
{
    gm_lane_stats *stats = &lane->stats[gm_block_arena_index(block)];
    if (begins) {
        lane->pending_blocks++;
        stats->pending.blocks += 1;
        stats->pending.bytes += block->size;
    }
    else {
        lane->pending_blocks--;
        stats->pending.blocks -= 1;
        stats->pending.bytes -= block->size;
    }
}

void
gm_count_cached_locked(gm_lane *lane, const gm_arena *arena)
{
    gm_tally *peak = &lane->stats[arena->small ? GM_SMALL : GM_LARGE].inactive_peak;
    raise_peak(&peak->blocks, arena->free_blocks);
    raise_peak(&peak->bytes, gm_arena_cached_bytes(arena));
}

uint64_t
gm_lane_used_locked(const gm_lane *lane)
{
    return BOTH(lane, used, bytes);
}

uint64_t
gm_lane_pending_locked(const gm_lane *lane)
{
    return BOTH(lane, pending, bytes);
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
    gm_count_cached_locked(lane, arena);
}

static void
start_total(gm_total *total, uint64_t current, uint64_t peak)
{
    atomic_store_explicit(&total->current, current, memory_order_relaxed);
    atomic_store_explicit(&total->peak, peak, memory_order_relaxed);
}

void
gm_count_start_totals_locked(gm_lane *lane)
{
    gm_pool *pool = lane->pool;
    const gm_tally *peak = &lane->peaks.used;
    start_total(&pool->used, BOTH(lane, used, bytes), peak->bytes);
    start_total(&pool->requested, BOTH(lane, used, requested), peak->requested);
    start_total(&pool->allocations, BOTH(lane, used, blocks), peak->blocks);
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

/* Adds one arena's stat to its column and to `all`, whose peak comes from elsewhere
 * when it is kept exactly. */
static void
sum_row(gm_stat_row *row, unsigned arena, const gm_stat *stat, bool with_peak)
{
    sum_stat(arena == GM_SMALL ? &row->small_pool : &row->large_pool, stat);
    row->all.current += stat->current;
    row->all.allocated += stat->allocated;
    row->all.freed += stat->freed;
    if (with_peak) {
        row->all.peak += stat->peak;
    }
}

static inline gm_stat
stat_of(uint64_t current, uint64_t peak, uint64_t total, uint64_t base)
{
    return (gm_stat){.current = current,
                     .peak = peak > current ? peak : current,
                     .allocated = total,
                     .freed = total + base - current};
}

static void
sum_used(gm_pool_stats *out, unsigned arena, const gm_lane_stats *s)
{
    const gm_tally *used = &s->used, *peak = &s->peak, *total = &s->total;
    const gm_tally *base = &s->base;
    gm_stat blocks = stat_of(used->blocks, peak->blocks, total->blocks, base->blocks);
    gm_stat bytes = stat_of(used->bytes, peak->bytes, total->bytes, base->bytes);
    gm_stat requested =
        stat_of(used->requested, peak->requested, total->requested, base->requested);
    sum_row(&out->allocation, arena, &blocks, false);
    sum_row(&out->allocated_bytes, arena, &bytes, false);
    sum_row(&out->requested_bytes, arena, &requested, false);
}

/* active: without pending blocks its peak is the peak of used ones. */
static gm_stat
active_stat(uint64_t used, uint64_t pending, uint64_t peak, uint64_t active_peak,
            uint64_t total, uint64_t base)
{
    return stat_of(used + pending, peak > active_peak ? peak : active_peak, total,
                   base);
}

static void
sum_active(gm_pool_stats *out, unsigned arena, const gm_lane *lane)
{
    const gm_lane_stats *s = &lane->stats[arena];
    gm_stat blocks =
        active_stat(s->used.blocks, s->pending.blocks, s->peak.blocks,
                    s->active_peak.blocks, s->total.blocks, s->active_base.blocks);
    gm_stat bytes =
        active_stat(s->used.bytes, s->pending.bytes, s->peak.bytes,
                    s->active_peak.bytes, s->total.bytes, s->active_base.bytes);
    sum_row(&out->active, arena, &blocks, false);
    sum_row(&out->active_bytes, arena, &bytes, false);

    /* What becomes inactive was active before, or has just been mapped. */
    const gm_arena *arena_of = &lane->arenas[arena];
    const gm_stat *segment_bytes = &lane->segment_bytes[arena];
    gm_stat free_bytes = {.current = gm_arena_cached_bytes(arena_of),
                          .peak = s->inactive_peak.bytes,
                          .allocated = bytes.freed + segment_bytes->allocated,
                          .freed = bytes.allocated + segment_bytes->freed};
    gm_stat free_blocks = {.current = arena_of->free_blocks,
                           .peak = s->inactive_peak.blocks,
                           .allocated = blocks.freed + lane->segments[arena].allocated};
    if (free_blocks.allocated + s->inactive_base < free_blocks.current) {
        free_blocks.allocated = free_blocks.current - s->inactive_base;
    }
    free_blocks.freed = free_blocks.allocated + s->inactive_base - free_blocks.current;
    sum_row(&out->inactive_split, arena, &free_blocks, true);
    sum_row(&out->inactive_split_bytes, arena, &free_bytes, true);
}

static inline uint64_t
larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static bool
sum_lane(gm_lane *lane, void *argument)
{
    gm_pool_stats *out = argument;
    gm_lane_drain_locked(lane);
    for (unsigned i = 0; i < GM_ARENAS; i++) {
        sum_used(out, i, &lane->stats[i]);
        sum_active(out, i, lane);
        sum_row(&out->segment, i, &lane->segments[i], true);
        sum_row(&out->reserved_bytes, i, &lane->segment_bytes[i], true);
        out->cached_bytes += gm_arena_cached_bytes(&lane->arenas[i]);
        out->address_bytes += lane->arenas[i].address_bytes;
    }
    const gm_tally *used = &lane->peaks.used, *active = &lane->peaks.active;
    out->allocation.all.peak += used->blocks;
    out->allocated_bytes.all.peak += used->bytes;
    out->requested_bytes.all.peak += used->requested;
    out->active.all.peak += larger(used->blocks, active->blocks);
    out->active_bytes.all.peak += larger(used->bytes, active->bytes);
    out->pending_bytes += BOTH(lane, pending, bytes);
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

static bool
reset_peaks(gm_lane *lane, void *argument)
{
    (void)argument;
    gm_lane_drain_locked(lane);
    for (unsigned i = 0; i < GM_ARENAS; i++) {
        gm_lane_stats *stats = &lane->stats[i];
        stats->peak = stats->used;
        stats->active_peak =
            (gm_tally){.blocks = stats->used.blocks + stats->pending.blocks,
                       .bytes = stats->used.bytes + stats->pending.bytes};
        stats->inactive_peak =
            (gm_tally){.blocks = lane->arenas[i].free_blocks,
                       .bytes = gm_arena_cached_bytes(&lane->arenas[i])};
        peak_to_current(&lane->segments[i]);
        peak_to_current(&lane->segment_bytes[i]);
    }
    lane->peaks.used = (gm_tally){.blocks = BOTH(lane, used, blocks),
                                  .bytes = BOTH(lane, used, bytes),
                                  .requested = BOTH(lane, used, requested)};
    lane->peaks.active =
        (gm_tally){.blocks = BOTH(lane, used, blocks) + BOTH(lane, pending, blocks),
                   .bytes = BOTH(lane, used, bytes) + BOTH(lane, pending, bytes)};
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

static bool
reset_accumulated(gm_lane *lane, void *argument)
{
    (void)argument;
    gm_lane_drain_locked(lane);
    for (unsigned i = 0; i < GM_ARENAS; i++) {
        gm_lane_stats *stats = &lane->stats[i];
        stats->total = (gm_tally){0};
        stats->base = stats->used;
        stats->inactive_base = lane->arenas[i].free_blocks;
        stats->active_base =
            (gm_tally){.blocks = stats->used.blocks + stats->pending.blocks,
                       .bytes = stats->used.bytes + stats->pending.bytes};
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
