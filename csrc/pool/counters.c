/* counters.c - statistics: counted per lane, summed on read.
 *
 * With one lane its own peaks are the pool's. Of several lanes the peaks of what is used
 * (blocks, bytes, requested bytes) are exact, too (peaks.c); the others are sums of the
 * lanes' peaks, an upper bound.
 */
#include <string.h>

#include "pool/counting.h"

static inline gm_tally
active_of(const gm_lane_stats *stats)
{
    return gm_tally_sum(gm_lane_used_of(stats), stats->pending);
}

static inline gm_tally
pending_of(const gm_lane *lane)
{
    return gm_tally_sum(lane->shelves[GM_SMALL].stats.pending,
                        lane->shelves[GM_LARGE].stats.pending);
}

void
gm_count_settle_locked(gm_lane *lane)
{
    gm_lane_stats *small = &lane->shelves[GM_SMALL].stats,
                  *large = &lane->shelves[GM_LARGE].stats;
    lane->rising = false;
    gm_tally used_small = gm_lane_used_of(small), used_large = gm_lane_used_of(large);
    gm_raise_peaks(&small->peak, used_small);
    gm_raise_peaks(&large->peak, used_large);
    gm_raise_peaks(&lane->peaks.used, gm_tally_sum(used_small, used_large));
    if (lane->pending_blocks != 0) {
        gm_raise_peaks(&small->active_peak, active_of(small));
        gm_raise_peaks(&large->active_peak, active_of(large));
        gm_raise_peaks(&lane->peaks.active,
                       gm_tally_sum(active_of(small), active_of(large)));
    }
}

void
gm_count_pending_locked(gm_lane *lane, const gm_block *block, bool begins)
{
    gm_lane_stats *stats = &gm_block_shelf(block)->stats;
    if (begins) {
        lane->pending_blocks++;
        stats->pending.blocks += 1;
        stats->pending.bytes += block->size;
    }
    else {
        if (lane->rising) {
            gm_count_settle_locked(lane);
        }
        lane->pending_blocks--;
        stats->pending.blocks -= 1;
        stats->pending.bytes -= block->size;
    }
}

uint64_t
gm_lane_used_locked(const gm_lane *lane)
{
    return gm_lane_used_both(lane).bytes;
}

uint64_t
gm_lane_pending_locked(const gm_lane *lane)
{
    return pending_of(lane).bytes;
}

void
gm_count_segments_locked(gm_arena *arena, int64_t number, size_t bytes)
{
    gm_shelf *shelf = gm_shelf_of(arena);
    if (number >= 0) {
        gm_stat_add(&shelf->segments, (uint64_t)number);
        gm_stat_add(&shelf->segment_bytes, bytes);
    }
    else {
        gm_stat_sub(&shelf->segments, (uint64_t)-number);
        gm_stat_sub(&shelf->segment_bytes, bytes);
    }
    gm_count_cached(shelf);
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

/* A stat of what is used: the cumulative counts begin at their bases. */
static inline gm_stat
used_stat(uint64_t allocated, uint64_t freed, uint64_t allocated_base,
          uint64_t freed_base, uint64_t peak)
{
    return (gm_stat){.current = allocated - freed,
                     .peak = peak,
                     .allocated = allocated - allocated_base,
                     .freed = freed - freed_base};
}

#define USED_STAT(stats, measure)                                           \
    used_stat((stats)->allocated.measure, (stats)->freed.measure,           \
              (stats)->allocated_base.measure, (stats)->freed_base.measure, \
              (stats)->peak.measure)

static void
sum_used(gm_pool_stats *out, unsigned arena, const gm_lane_stats *s)
{
    gm_stat blocks = USED_STAT(s, blocks);
    gm_stat bytes = USED_STAT(s, bytes);
    gm_stat requested = USED_STAT(s, requested);
    sum_row(&out->allocation, arena, &blocks, false);
    sum_row(&out->allocated_bytes, arena, &bytes, false);
    sum_row(&out->requested_bytes, arena, &requested, false);
}

static inline uint64_t
larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* active: without pending blocks its peak is the peak of used ones. */
static inline gm_stat
active_stat(const gm_stat *used, uint64_t pending, uint64_t active_peak, uint64_t base)
{
    uint64_t current = used->current + pending;
    return (gm_stat){.current = current,
                     .peak = larger(larger(used->peak, active_peak), current),
                     .allocated = used->allocated,
                     .freed = used->allocated + base - current};
}

static void
sum_active(gm_pool_stats *out, unsigned arena, const gm_lane *lane)
{
    const gm_lane_stats *s = &lane->shelves[arena].stats;
    gm_stat used_blocks = USED_STAT(s, blocks);
    gm_stat used_bytes = USED_STAT(s, bytes);
    gm_stat blocks = active_stat(&used_blocks, s->pending.blocks, s->active_peak.blocks,
                                 s->active_base.blocks);
    gm_stat bytes = active_stat(&used_bytes, s->pending.bytes, s->active_peak.bytes,
                                s->active_base.bytes);
    sum_row(&out->active, arena, &blocks, false);
    sum_row(&out->active_bytes, arena, &bytes, false);

    /* What becomes inactive was active before, or has just been mapped. */
    const gm_arena *arena_of = &lane->shelves[arena].arena;
    const gm_stat *segment_bytes = &lane->shelves[arena].segment_bytes;
    gm_stat free_bytes = {.current = gm_arena_cached_bytes(arena_of),
                          .peak = s->inactive_peak.bytes,
                          .allocated = bytes.freed + segment_bytes->allocated,
                          .freed = bytes.allocated + segment_bytes->freed};
    gm_stat free_blocks = {
        .current = arena_of->free_blocks,
        .peak = s->inactive_peak.blocks,
        .allocated = blocks.freed + lane->shelves[arena].segments.allocated};
    if (free_blocks.allocated + s->inactive_base < free_blocks.current) {
        free_blocks.allocated = free_blocks.current - s->inactive_base;
    }
    free_blocks.freed = free_blocks.allocated + s->inactive_base - free_blocks.current;
    sum_row(&out->inactive_split, arena, &free_blocks, true);
    sum_row(&out->inactive_split_bytes, arena, &free_bytes, true);
}

static bool
sum_lane(gm_lane *lane, void *argument)
{
    gm_pool_stats *out = argument;
    gm_lane_drain_locked(lane);
    gm_count_settle_locked(lane);
    for (unsigned i = 0; i < GM_ARENAS; i++) {
        sum_used(out, i, &lane->shelves[i].stats);
        sum_active(out, i, lane);
        sum_row(&out->segment, i, &lane->shelves[i].segments, true);
        sum_row(&out->reserved_bytes, i, &lane->shelves[i].segment_bytes, true);
        out->cached_bytes += gm_arena_cached_bytes(&lane->shelves[i].arena);
        out->address_bytes += lane->shelves[i].arena.address_bytes;
        size_t zombies, touched;
        gm_arena_measure_chunks(&lane->shelves[i].arena, &zombies, &touched);
        out->zombies += zombies;
        out->touched_bytes += touched;
    }
    const gm_tally *used = &lane->peaks.used, *active = &lane->peaks.active;
    out->allocation.all.peak += used->blocks;
    out->allocated_bytes.all.peak += used->bytes;
    out->requested_bytes.all.peak += used->requested;
    out->active.all.peak += larger(used->blocks, active->blocks);
    out->active_bytes.all.peak += larger(used->bytes, active->bytes);
    out->pending_bytes += pending_of(lane).bytes;
    out->pending_blocks += lane->pending_blocks;
    out->deferred_frees += lane->deferred_frees;
    out->lanes += atomic_load_explicit(&lane->open, memory_order_relaxed);
    return true;
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
    if (gm_pool_is_forked(pool)) {
        out->limit = UINT64_MAX;
        return;
    }
    gm_tally peaks;
    bool exact = gm_peaks_read(pool, &peaks);
    gm_lanes_visit_all(pool, sum_lane, out);
    if (exact) {
        out->allocation.all.peak = larger(peaks.blocks, out->allocation.all.current);
        out->allocated_bytes.all.peak =
            larger(peaks.bytes, out->allocated_bytes.all.current);
        out->requested_bytes.all.peak =
            larger(peaks.requested, out->requested_bytes.all.current);
    }
    read_page_pool(pool, out);
    out->num_alloc_retries = atomic_load(&pool->retries);
    out->num_ooms = atomic_load(&pool->ooms);
    out->num_sync_all_streams = atomic_load(&pool->waits);
    out->maps = atomic_load(&pool->maps);
    out->unmaps = atomic_load(&pool->unmaps);
    out->stolen_bytes = atomic_load(&pool->stolen_bytes);
    out->aliased_bytes = atomic_load(&pool->aliased_bytes);
    out->inserted_waits = atomic_load(&pool->inserted_waits);
    out->yielded_bytes = atomic_load(&pool->yielded_bytes);
    out->fallbacks = atomic_load(&pool->fallbacks);
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
        gm_lane_stats *stats = &lane->shelves[i].stats;
        stats->peak = gm_lane_used_of(stats);
        stats->active_peak = active_of(stats);
        stats->inactive_peak =
            (gm_tally){.blocks = lane->shelves[i].arena.free_blocks,
                       .bytes = gm_arena_cached_bytes(&lane->shelves[i].arena)};
        peak_to_current(&lane->shelves[i].segments);
        peak_to_current(&lane->shelves[i].segment_bytes);
    }
    lane->peaks.used = gm_lane_used_both(lane);
    lane->peaks.active = gm_tally_sum(gm_lane_used_both(lane), pending_of(lane));
    lane->rising = false;
    return true;
}

void
gm_pool_reset_peaks(gm_pool *pool)
{
    if (gm_pool_is_forked(pool)) {
        return;
    }
    gm_lanes_visit_all(pool, reset_peaks, NULL);
    gm_peaks_reset(pool);
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
        gm_lane_stats *stats = &lane->shelves[i].stats;
        stats->allocated_base = stats->allocated;
        stats->freed_base = stats->freed;
        stats->inactive_base = lane->shelves[i].arena.free_blocks;
        stats->active_base = active_of(stats);
        forget(&lane->shelves[i].segments);
        forget(&lane->shelves[i].segment_bytes);
    }
    lane->deferred_frees = 0;
    return true;
}

void
gm_pool_reset_accumulated(gm_pool *pool)
{
    if (gm_pool_is_forked(pool)) {
        return;
    }
    gm_lanes_visit_all(pool, reset_accumulated, NULL);
    gm_page_pool *pages = &pool->page_pool;
    gm_mutex_lock(&pages->lock);
    forget(&pages->reserved);
    pages->device_allocs = 0;
    pages->device_frees = 0;
    pages->retaken = 0;
    gm_mutex_unlock(&pages->lock);
    _Atomic uint64_t *counters[] = {
        &pool->retries,       &pool->ooms,          &pool->waits,
        &pool->flushes,       &pool->collections,   &pool->bad_frees,
        &pool->flushed_bytes, &pool->maps,          &pool->unmaps,
        &pool->stolen_bytes,  &pool->aliased_bytes, &pool->inserted_waits,
        &pool->yielded_bytes, &pool->fallbacks};
    for (size_t i = 0; i < sizeof(counters) / sizeof(counters[0]); i++) {
        atomic_store(counters[i], 0);
    }
}
