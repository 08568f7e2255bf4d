/* test_counters.c - what a pool counts: rows, peaks, sums since the last reset, and the
 * single counters. A model that counts for itself goes along with random use.
 */
#include <pthread.h>

#include "pool/internal.h"
#include "pool_kinds.h"

static void
check_stat(const gm_stat *stat, uint64_t current, uint64_t peak, uint64_t allocated,
           uint64_t freed)
{
    CHECK_EQ(stat->current, current);
    CHECK_EQ(stat->peak, peak);
    CHECK_EQ(stat->allocated, allocated);
    CHECK_EQ(stat->freed, freed);
}

/* ---- one lane -------------------------------------------------------------------- */

static void
rows_count_blocks_bytes_and_requests(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_block *small = take(pool, 1000, 0), *large = take(pool, MIB + 1, 0);
    gm_pool_stats stats = stats_of(pool);
    size_t rounded = MIB + 512;
    check_stat(&stats.allocation.all, 2, 2, 2, 0);
    check_stat(&stats.allocation.small_pool, 1, 1, 1, 0);
    check_stat(&stats.allocation.large_pool, 1, 1, 1, 0);
    check_stat(&stats.allocated_bytes.small_pool, 1024, 1024, 1024, 0);
    check_stat(&stats.allocated_bytes.large_pool, rounded, rounded, rounded, 0);
    check_stat(&stats.requested_bytes.all, MIB + 1001, MIB + 1001, MIB + 1001, 0);
    check_stat(&stats.active.all, 2, 2, 2, 0);

    /* One page under the small block, 17 under the large one. */
    check_stat(&stats.segment.small_pool, 1, 1, 1, 0);
    check_stat(&stats.segment.large_pool, 17, 17, 17, 0);
    check_stat(&stats.reserved_bytes.large_pool, 17 * PAGE, 17 * PAGE, 17 * PAGE, 0);
    CHECK_EQ(stats.inactive_split_bytes.small_pool.current, PAGE - 1024);
    CHECK_EQ(stats.inactive_split_bytes.large_pool.current, 17 * PAGE - rounded);
    CHECK_EQ(stats.inactive_split.all.current, 2);
    CHECK_EQ(stats.cached_bytes, 18 * PAGE - rounded - 1024);
    CHECK_EQ(stats.lanes, 1);

    gm_pool_free(large);
    stats = stats_of(pool);
    check_stat(&stats.allocation.all, 1, 2, 2, 1);
    check_stat(&stats.allocated_bytes.large_pool, 0, rounded, rounded, rounded);
    check_stat(&stats.active_bytes.large_pool, 0, rounded, rounded, rounded);
    CHECK_EQ(stats.inactive_split.large_pool.current, 1);
    CHECK_EQ(stats.inactive_split_bytes.large_pool.current, 17 * PAGE);
    gm_pool_free(small);
    (void)trim_all(pool);
    stats = stats_of(pool);
    check_stat(&stats.reserved_bytes.all, 0, 18 * PAGE, 18 * PAGE, 18 * PAGE);
    check_stat(&stats.segment.all, 0, 18, 18, 18);
    CHECK_EQ(stats.inactive_split.all.current, 0);
    CHECK_EQ(stats.inactive_split.all.freed, stats.inactive_split.all.allocated);
    CHECK_EQ(stats.inactive_split_bytes.all.peak, 18 * PAGE);
    close_pool(pool);
}

static void
pending_blocks_are_active_but_not_used(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_stream slow = stalled_stream(device);
    gm_block *first = take(pool, MIB, 0);
    CHECK_OK(gm_pool_record_stream(first, slow));
    gm_pool_free(first);
    gm_pool_stats stats = stats_of(pool);
    check_stat(&stats.allocation.all, 0, 1, 1, 1);
    check_stat(&stats.active.all, 1, 1, 1, 0);
    CHECK_EQ(stats.pending_blocks, 1);
    CHECK_EQ(stats.pending_bytes, MIB);
    CHECK_EQ(stats.cached_bytes, 0);

    gm_block *second = take(pool, 2 * MIB, 0), *third = take(pool, 1000, 0);
    stats = stats_of(pool);
    check_stat(&stats.allocated_bytes.all, 2 * MIB + 1024, 2 * MIB + 1024,
               3 * MIB + 1024, MIB);
    check_stat(&stats.active_bytes.all, 3 * MIB + 1024, 3 * MIB + 1024, 3 * MIB + 1024,
               0);
    check_stat(&stats.active.large_pool, 2, 2, 2, 0);
    CHECK_EQ(stats.active_bytes.large_pool.peak, 3 * MIB);
    let_run(device, slow);
    gm_pool_poll(pool);
    stats = stats_of(pool);
    check_stat(&stats.active_bytes.all, 2 * MIB + 1024, 3 * MIB + 1024, 3 * MIB + 1024,
               MIB);
    CHECK_EQ(stats.pending_blocks, 0);
    gm_pool_reset_peaks(pool);
    stats = stats_of(pool);
    CHECK_EQ(stats.active_bytes.all.peak, 2 * MIB + 1024);
    CHECK_EQ(stats.active.all.peak, 2);
    gm_pool_free(second);
    gm_pool_free(third);
    close_pool(pool);
}

static void
a_reset_of_peaks_touches_nothing_else(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_block *held = take(pool, MIB, 0);
    gm_pool_free(take(pool, 4 * MIB, 0));
    (void)trim_all(pool);
    CHECK_EQ(stats_of(pool).reserved_bytes.all.peak, 5 * MIB);
    gm_pool_reset_peaks(pool);
    gm_pool_stats stats = stats_of(pool);
    check_stat(&stats.allocated_bytes.all, MIB, MIB, 5 * MIB, 4 * MIB);
    check_stat(&stats.allocation.large_pool, 1, 1, 2, 1);
    check_stat(&stats.reserved_bytes.all, MIB, MIB, 5 * MIB, 4 * MIB);
    check_stat(&stats.segment.all, 16, 16, 80, 64);
    CHECK_EQ(stats.inactive_split_bytes.all.peak, 0);
    CHECK_EQ(stats.inactive_split.all.peak, 0);
    gm_pool_free(take(pool, 2 * MIB, 0));
    CHECK_EQ(stats_of(pool).allocated_bytes.all.peak, 3 * MIB);
    CHECK_EQ(stats_of(pool).inactive_split_bytes.all.peak, 2 * MIB);
    gm_pool_free(held);
    close_pool(pool);
}

static void
a_reset_of_sums_keeps_current_and_peak(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_block *held = take(pool, MIB, 0);
    gm_pool_free(take(pool, 4 * MIB, 0));
    CHECK_STATUS(gm_pool_free_address(pool, 4096), GM_UNKNOWN_ADDRESS);
    gm_pool_count_collection(pool);
    gm_pool_reset_accumulated(pool);
    gm_pool_stats stats = stats_of(pool);
    check_stat(&stats.allocated_bytes.all, MIB, 5 * MIB, 0, 0);
    check_stat(&stats.active_bytes.all, MIB, 5 * MIB, 0, 0);
    check_stat(&stats.requested_bytes.large_pool, MIB, 5 * MIB, 0, 0);
    check_stat(&stats.reserved_bytes.all, 5 * MIB, 5 * MIB, 0, 0);
    check_stat(&stats.segment.all, 80, 80, 0, 0);
    CHECK_EQ(stats.inactive_split.all.allocated, 0);
    CHECK_EQ(stats.inactive_split.all.freed, 0);
    CHECK_EQ(stats.inactive_split_bytes.all.allocated, 0);
    CHECK_EQ(stats.bad_frees + stats.collections + stats.maps + stats.unmaps, 0);
    CHECK_EQ(stats.num_device_alloc + stats.num_device_free, 0);
    CHECK_EQ(stats.flushes + stats.flushed_bytes + stats.retaken_bytes, 0);

    gm_pool_free(held);
    gm_block *block = take(pool, 2 * MIB, 0);
    stats = stats_of(pool);
    check_stat(&stats.allocated_bytes.all, 2 * MIB, 5 * MIB, 2 * MIB, MIB);
    check_stat(&stats.allocation.all, 1, 2, 1, 1);
    CHECK_EQ(stats.active_bytes.all.freed, MIB);
    gm_pool_free(block);
    close_pool(pool);
}

/* ---- single counters ------------------------------------------------------------- */

static void
calls_of_the_device_are_counted(void)
{
    gm_device *device = host_device(16 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_pool_free(take(pool, 4 * MIB, 0));
    (void)trim_all(pool);
    gm_pool_free(take(pool, MIB, 0));
    gm_pool_stats stats = stats_of(pool);
    CHECK_EQ(stats.maps, 80);
    CHECK_EQ(stats.unmaps, 64);
    CHECK_EQ(stats.num_device_alloc, 80);
    CHECK_EQ(stats.num_device_free, 64);
    CHECK_EQ(stats.flushes, 1);
    CHECK_EQ(stats.flushed_bytes, 4 * MIB);
    CHECK_EQ(stats.retaken_bytes, MIB);
    CHECK_EQ(counters_of(device).calls[GM_CALL_MAP], stats.maps);
    gm_pool_free(take(pool, 8 * MIB, 0));
    CHECK_EQ(stats_of(pool).retaken_bytes, 4 * MIB);
    CHECK_EQ(stats_of(pool).address_bytes, counters_of(device).address_now);

    gm_block *block = NULL;
    gm_oom oom;
    gm_request request = {.size = 17 * MIB};
    CHECK_STATUS(gm_pool_alloc(pool, &request, &block, &oom), GM_OUT_OF_MEMORY);
    CHECK_EQ(stats_of(pool).num_alloc_retries, 1);
    CHECK_EQ(stats_of(pool).num_ooms, 0);
    gm_pool_count_oom(pool, &request, &oom);
    gm_pool_count_collection(pool);
    gm_pool_count_collection(pool);
    CHECK_EQ(stats_of(pool).num_ooms, 1);
    CHECK_EQ(stats_of(pool).collections, 2);
    close_pool(pool);
}

typedef struct holder {
    gm_lane *lane;
    gm_pool *pool;
    gm_block *block;
    gm_status tried;
} holder;

static void *
use_a_busy_lane(void *argument)
{
    holder *shared = argument;
    gm_request request = {.size = 1000};
    gm_block *block;
    shared->tried = gm_pool_try_alloc(shared->pool, &request, &block);
    gm_pool_free(shared->block);
    return NULL;
}

static void
a_free_that_finds_the_lock_taken_is_deferred(void)
{
    gm_device *device = host_device(16 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_block *block = take(pool, 1000, 0);
    gm_devptr address = gm_block_address(block);
    holder shared = {.lane = gm_block_lane(block), .pool = pool, .block = block};
    pthread_t thread;
    gm_mutex_lock(&shared.lane->lock);
    CHECK_EQ(pthread_create(&thread, NULL, use_a_busy_lane, &shared), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    gm_mutex_unlock(&shared.lane->lock);
    CHECK_STATUS(shared.tried, GM_BUSY);

    /* Nobody finds it any more, though it is not free yet; reading drains. */
    gm_block *found;
    CHECK_STATUS(gm_block_find(address, &found), GM_UNKNOWN_ADDRESS);
    CHECK(!gm_deferred_is_empty(&shared.lane->deferred));
    gm_pool_stats stats = stats_of(pool);
    CHECK_EQ(stats.deferred_frees, 1);
    CHECK_EQ(stats.allocation.all.current, 0);
    gm_pool_reset_accumulated(pool);
    CHECK_EQ(stats_of(pool).deferred_frees, 0);
    close_pool(pool);
}

/* ---- several lanes --------------------------------------------------------------- */

static void
peaks_of_several_lanes_are_those_of_one_moment(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_stream other = new_stream(device);
    gm_pool_free(take(pool, 6 * MIB, 0));
    gm_block *held = take(pool, MIB, 0);
    for (int i = 0; i < 3; i++) {
        gm_pool_free(take(pool, 4 * MIB, other));
        gm_pool_free(take(pool, 4 * MIB, 0));
    }
    gm_pool_stats stats = stats_of(pool);
    check_stat(&stats.allocated_bytes.all, MIB, 6 * MIB, 31 * MIB, 30 * MIB);
    check_stat(&stats.requested_bytes.all, MIB, 6 * MIB, 31 * MIB, 30 * MIB);
    check_stat(&stats.allocation.all, 1, 2, 8, 7);
    CHECK_EQ(stats.lanes, 2);
    gm_pool_reset_peaks(pool);
    check_stat(&stats.allocation.all, 1, 2, 8, 7);
    CHECK_EQ(stats_of(pool).allocated_bytes.all.peak, MIB);
    gm_block *more = take(pool, MIB, other);
    CHECK_EQ(stats_of(pool).allocated_bytes.all.peak, 2 * MIB);
    CHECK_EQ(stats_of(pool).allocation.all.peak, 2);
    gm_pool_free(held);
    gm_pool_free(more);
    gm_pool_free(take(pool, MIB, 0));
    CHECK_EQ(stats_of(pool).allocation.all.peak, 2);
    close_pool(pool);
}

/* ---- a model --------------------------------------------------------------------- */

enum {
    LIVE = 40,
    STREAMS = 3
};

typedef struct model {
    gm_block *blocks[LIVE];
    uint64_t blocks_now, blocks_peak, bytes_now, bytes_peak, asked_now, asked_peak;
    uint64_t made, dropped, base;
} model;

static void
model_allocates(model *m, int slot, gm_block *block)
{
    m->blocks[slot] = block;
    m->blocks_now++;
    m->made++;
    m->bytes_now += gm_block_size(block);
    m->asked_now += gm_block_requested(block);
    m->blocks_peak = m->blocks_now > m->blocks_peak ? m->blocks_now : m->blocks_peak;
    m->bytes_peak = m->bytes_now > m->bytes_peak ? m->bytes_now : m->bytes_peak;
    m->asked_peak = m->asked_now > m->asked_peak ? m->asked_now : m->asked_peak;
}

static void
model_frees(model *m, int slot)
{
    m->blocks_now--;
    m->dropped++;
    m->bytes_now -= gm_block_size(m->blocks[slot]);
    m->asked_now -= gm_block_requested(m->blocks[slot]);
    gm_pool_free(m->blocks[slot]);
    m->blocks[slot] = NULL;
}

static void
check_row(const gm_stat_row *row)
{
    CHECK_EQ(row->all.current, row->small_pool.current + row->large_pool.current);
    CHECK_EQ(row->all.allocated, row->small_pool.allocated + row->large_pool.allocated);
    CHECK_EQ(row->all.freed, row->small_pool.freed + row->large_pool.freed);
    CHECK(row->all.peak >= row->all.current);
    CHECK(row->small_pool.peak >= row->small_pool.current);
    CHECK(row->large_pool.peak >= row->large_pool.current);
}

static void
check_model(const model *m, gm_pool *pool)
{
    gm_pool_stats stats = stats_of(pool);
    check_stat(&stats.allocation.all, m->blocks_now, m->blocks_peak, m->made,
               m->dropped);
    CHECK_EQ(m->made + m->base - m->dropped, m->blocks_now);
    CHECK_EQ(stats.allocated_bytes.all.current, m->bytes_now);
    CHECK_EQ(stats.allocated_bytes.all.peak, m->bytes_peak);
    CHECK_EQ(stats.requested_bytes.all.current, m->asked_now);
    CHECK_EQ(stats.requested_bytes.all.peak, m->asked_peak);
    check_row(&stats.allocation);
    check_row(&stats.allocated_bytes);
    check_row(&stats.requested_bytes);
    check_row(&stats.active);
    check_row(&stats.active_bytes);
    check_row(&stats.inactive_split);
    check_row(&stats.inactive_split_bytes);
    check_row(&stats.segment);
    CHECK_EQ(stats.reserved_bytes.all.current,
             stats.allocated_bytes.all.current + stats.pending_bytes +
                 stats.cached_bytes + stats.unplaced_bytes);
}

static void
use_with_a_model(int stream_count, bool paging, unsigned seed)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, paging);
    gm_stream streams[STREAMS] = {0};
    model m = {{NULL}, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    for (int i = 1; i < stream_count; i++) {
        streams[i] = new_stream(device);
    }
    for (int i = 0; i < 1500; i++) {
        int slot = (int)((unsigned)rand_r(&seed) % LIVE);
        if (m.blocks[slot] != NULL) {
            model_frees(&m, slot);
        }
        else {
            size_t most = rand_r(&seed) % 4 == 0 ? MIB : 5000;
            size_t size = 1 + (size_t)rand_r(&seed) % most;
            gm_stream stream = streams[rand_r(&seed) % stream_count];
            model_allocates(&m, slot, take(pool, size, stream));
        }
        if (i % 100 == 57) {
            gm_pool_reset_peaks(pool);
            m.blocks_peak = m.blocks_now;
            m.bytes_peak = m.bytes_now;
            m.asked_peak = m.asked_now;
        }
        if (i % 190 == 101) {
            gm_pool_reset_accumulated(pool);
            m.made = m.dropped = 0;
            m.base = m.blocks_now;
        }
        if (i % 400 == 399) {
            (void)trim_all(pool);
        }
        check_model(&m, pool);
    }
    for (int slot = 0; slot < LIVE; slot++) {
        if (m.blocks[slot] != NULL) {
            model_frees(&m, slot);
        }
    }
    check_model(&m, pool);
    close_pool(pool);
}

static void
counters_agree_with_a_model(void)
{
    use_with_a_model(1, true, 1);
    use_with_a_model(STREAMS, true, 2);
    use_with_a_model(STREAMS, false, 3);
}

static void
counts_of_a_dissolved_lane_stay(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_stream stream = new_stream(device);
    gm_pool_free(take(pool, MIB, stream));
    gm_pool_free(take(pool, 2 * MIB, 0));
    CHECK_EQ(stats_of(pool).allocation.all.allocated, 2);
    gm_pool_stream_retired(pool, stream);
    CHECK_EQ(stats_of(pool).lanes, 1);
    CHECK_EQ(stats_of(pool).allocation.all.allocated, 2);
    close_pool(pool);
}

static void
peaks_of_a_dissolved_lane_stay(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_stream stream = new_stream(device);
    gm_pool_free(take(pool, 8 * MIB, stream));
    CHECK_EQ(stats_of(pool).allocated_bytes.all.peak, 8 * MIB);
    gm_pool_stream_retired(pool, stream);
    CHECK_EQ(stats_of(pool).lanes, 0);
    CHECK_EQ(stats_of(pool).allocated_bytes.all.peak, 8 * MIB);
    close_pool(pool);
}

static void
resets_reach_a_dissolved_lane(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_stream stream = new_stream(device);
    gm_pool_free(take(pool, 8 * MIB, stream));
    gm_pool_stream_retired(pool, stream);
    gm_pool_reset_accumulated(pool);
    gm_pool_reset_peaks(pool);
    gm_pool_free(take(pool, MIB, new_stream(device)));
    CHECK_EQ(stats_of(pool).allocation.all.allocated, 1);
    CHECK_EQ(stats_of(pool).allocated_bytes.all.peak, MIB);
    close_pool(pool);
}

/* A lane that comes back from retirement may not bring an old budget with it. */
static void
peaks_are_exact_after_a_lane_is_used_anew(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_block *first = take(pool, MIB, 0);
    for (int round = 0; round < 20; round++) {
        gm_stream stream = new_stream(device);
        gm_pool_free(take(pool, 8 * MIB, stream));
        gm_pool_stream_retired(pool, stream);
        CHECK_OK(device->ops->stream_destroy(device, stream));
        CHECK_EQ(stats_of(pool).allocated_bytes.all.peak, 9 * MIB);
        CHECK_EQ(stats_of(pool).lanes, 1);
        gm_pool_reset_peaks(pool);
        CHECK_EQ(stats_of(pool).allocated_bytes.all.peak, MIB);
        CHECK_POOL(pool);
    }
    gm_stream other = new_stream(device);
    gm_block *second = take(pool, 5 * MIB, other);
    gm_block *third = take(pool, 2 * MIB, 0);
    gm_pool_free(second);
    CHECK_EQ(stats_of(pool).allocated_bytes.all.peak, 8 * MIB);
    CHECK_EQ(stats_of(pool).allocation.all.peak, 3);
    gm_pool_free(first);
    gm_pool_free(third);
    close_pool(pool);
}

static const gm_test tests[] = {
    {"rows count blocks, bytes and requests", rows_count_blocks_bytes_and_requests},
    {"pending blocks are active but not used", pending_blocks_are_active_but_not_used},
    {"a reset of peaks touches nothing else", a_reset_of_peaks_touches_nothing_else},
    {"a reset of sums keeps current and peak", a_reset_of_sums_keeps_current_and_peak},
    {"calls of the device are counted", calls_of_the_device_are_counted},
    {"a free that finds the lock taken is deferred",
     a_free_that_finds_the_lock_taken_is_deferred},
    {"peaks of several lanes are those of one moment",
     peaks_of_several_lanes_are_those_of_one_moment},
    {"counters agree with a model", counters_agree_with_a_model},
    {"counts of a dissolved lane stay", counts_of_a_dissolved_lane_stay},
    {"peaks of a dissolved lane stay", peaks_of_a_dissolved_lane_stay},
    {"resets reach a dissolved lane", resets_reach_a_dissolved_lane},
    {"peaks are exact after a lane is used anew",
     peaks_are_exact_after_a_lane_is_used_anew},
};

GM_TEST_MAIN(tests)
