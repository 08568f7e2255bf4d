/* test_trim.c - giving memory back, taking it ahead, and the ends of streams and pools.
 */
#include "pool/internal.h"
#include "pool_kinds.h"

static gm_trim_report
trim(gm_pool *pool, const gm_trim_request *request)
{
    gm_trim_report report;
    CHECK_OK(gm_pool_trim(pool, request, &report));
    CHECK_POOL(pool);
    return report;
}

static gm_device *
faulty_host(size_t capacity)
{
    return behind_faults(host_device(capacity));
}

/* ---- trim ------------------------------------------------------------------------ */

static void
a_trim_stops_at_its_target(void)
{
    for (int paging = 0; paging < 2; paging++) {
        gm_device *device = host_device(64 * MIB);
        gm_pool *pool = pool_on(device, paging != 0);
        gm_block *blocks[3];
        for (int i = 0; i < 3; i++) {
            blocks[i] = take(pool, 10 * MIB, 0);
        }
        gm_pool_free(blocks[0]);
        gm_pool_free(blocks[1]);
        gm_trim_request request = {.target = 50 * MIB};
        CHECK_EQ(trim(pool, &request).released, 0);
        CHECK_EQ(reserved(pool), 30 * MIB);
        request.target = 21 * MIB;
        gm_trim_report report = trim(pool, &request);
        /* Pages in steps of one page, segments whole. */
        CHECK_EQ(report.released, paging != 0 ? 9 * MIB : 10 * MIB);
        CHECK_EQ(report.referenced, 10 * MIB);
        CHECK_EQ(report.skipped, 30 * MIB - report.released - 10 * MIB);
        CHECK_EQ(report.pending, 0);
        request.target = 1;
        report = trim(pool, &request);
        CHECK_EQ(reserved(pool), 10 * MIB);
        CHECK_EQ(report.skipped, 0);
        gm_pool_free(blocks[2]);
        close_pool(pool);
    }
}

static void
free_pages_go_before_cached_ones(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_pool_free(take(pool, 4 * MIB, 0));
    CHECK_OK(gm_pool_reserve(pool, 10 * MIB, NULL));
    CHECK_EQ(stats_of(pool).unplaced_bytes, 6 * MIB);
    gm_trim_request request = {.target = 5 * MIB};
    CHECK_EQ(trim(pool, &request).released, 5 * MIB);
    CHECK_EQ(stats_of(pool).unplaced_bytes, MIB);
    CHECK_EQ(stats_of(pool).cached_bytes, 4 * MIB);
    CHECK_EQ(stats_of(pool).unmaps, 0);
    close_pool(pool);
}

static void
partly_used_pages_stay(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_block *held = take(pool, 1000, 0);
    gm_pool_free(take(pool, 200 * KIB, 0));
    gm_trim_report report = trim_all(pool);
    CHECK_EQ(report.released, 3 * PAGE);
    CHECK_EQ(report.referenced, 1024);
    CHECK_EQ(report.skipped, PAGE - 1024);
    gm_pool_free(held);
    close_pool(pool);
}

static void
one_stream_can_be_trimmed_alone(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_stream other = new_stream(device);
    gm_pool_free(take(pool, 2 * MIB, 0));
    gm_pool_free(take(pool, 3 * MIB, other));
    gm_trim_request request = {.one_stream = true, .stream = other};
    CHECK_EQ(trim(pool, &request).released, 3 * MIB);
    CHECK_EQ(stats_of(pool).cached_bytes, 2 * MIB);
    request.stream = 0;
    CHECK_EQ(trim(pool, &request).released, 2 * MIB);
    close_pool(pool);
}

static void
one_streams_trim_waits_for_that_stream(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_stream slow = stalled_stream(device), other = stalled_stream(device);
    gm_block *block = take(pool, 2 * MIB, other);
    CHECK_OK(gm_pool_record_stream(block, slow));
    gm_pool_free(block);
    gm_pool_free(take(pool, MIB, slow));
    gm_pool_free(take(pool, 3 * MIB, 0));
    gm_trim_request request = {
        .one_stream = true, .stream = 0, .timeout_ns = UINT64_MAX};
    CHECK_EQ(trim(pool, &request).released, 3 * MIB);
    CHECK_EQ(stats_of(pool).num_sync_all_streams, 0);
    request.stream = new_stream(device);
    CHECK_EQ(trim(pool, &request).released, 0);
    request.stream = other;
    request.timeout_ns = 1000;
    CHECK_EQ(trim(pool, &request).released, 0);
    CHECK_EQ(stats_of(pool).num_sync_all_streams, 1);
    let_run(device, slow);
    let_run(device, other);
    request.timeout_ns = UINT64_MAX;
    CHECK_EQ(trim(pool, &request).released, 2 * MIB);
    close_pool(pool);
}

static void
young_memory_stays(void)
{
    for (int paging = 0; paging < 2; paging++) {
        gm_device *device = host_device_with_clock(64 * MIB);
        gm_pool *pool = pool_on(device, paging != 0);
        gm_block *old = take(pool, 10 * MIB, 0), *young = take(pool, 12 * MIB, 0);
        gm_block *guard = take(pool, 10 * MIB, 0);
        gm_pool_free(old);
        gm_host_advance(device, 3 * SECOND);
        gm_trim_request request = {.older_than_ns = 4 * SECOND};
        CHECK_EQ(trim(pool, &request).released, 0);
        gm_host_advance(device, 2 * SECOND);
        /* Pages of `young` and `old` are neighbours; joined, they count as young. */
        gm_pool_free(young);
        CHECK_EQ(trim(pool, &request).released, paging != 0 ? 0 : 10 * MIB);
        gm_host_advance(device, 5 * SECOND);
        CHECK_EQ(trim(pool, &request).released, paging != 0 ? 22 * MIB : 12 * MIB);
        gm_pool_free(guard);
        close_pool(pool);
    }
}

static void
idle_memory_decays_when_a_call_passes_by(void)
{
    gm_device *device = behind_faults(host_device_with_clock(64 * MIB));
    gm_pool_options options = usual_options();
    options.decay_ns = 2 * SECOND;
    gm_pool *pool = open_pool(device, &options);
    gm_pool_free(take(pool, 8 * MIB, 0));
    gm_host_advance(gm_fault_inner(device), SECOND);
    gm_block *small = take(pool, 1000, 0);
    CHECK_EQ(reserved(pool), 8 * MIB + PAGE);
    gm_host_advance(gm_fault_inner(device), 2 * SECOND);
    gm_pool_free(take(pool, 9 * MIB, 0));
    CHECK_EQ(stats_of(pool).flushed_bytes, 8 * MIB);

    /* A failure of the device is reported; the allocation itself goes on. */
    gm_host_advance(gm_fault_inner(device), 3 * SECOND);
    watch_reports();
    fail_nth(device, GM_CALL_UNMAP, 1, GM_DEVICE_ERROR);
    gm_pool_free(take(pool, 10 * MIB, 0));
    CHECK_REPORT(GM_DEVICE_ERROR, "give idle memory back");
    gm_set_report_hook(NULL);
    gm_pool_free(small);
    close_pool(pool);
}

static void
nothing_is_given_back_during_a_capture(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_stream stream = new_stream(device);
    gm_pool_free(take(pool, 4 * MIB, stream));
    gm_pool_free(take(pool, MIB, 0));
    CHECK_OK(gm_host_set_capturing(device, stream, true));
    gm_trim_report report = trim_all(pool);
    CHECK(report.capturing);
    CHECK_EQ(report.released, 0);
    CHECK_EQ(report.skipped, 5 * MIB);
    CHECK_EQ(stats_of(pool).flushes, 0);
    CHECK_OK(gm_host_set_capturing(device, stream, false));
    report = trim_all(pool);
    CHECK(!report.capturing);
    CHECK_EQ(report.released, 5 * MIB);
    close_pool(pool);
}

/* ---- unfinished work ------------------------------------------------------------- */

static void
unfinished_work_is_skipped_or_waited_for(void)
{
    gm_sim_options options = {
        .capacity = 64 * MIB, .page_size = PAGE, .paging = true, .lag = 1000};
    gm_device *device = open_sim(&options);
    gm_pool *pool = pool_on(device, true);
    gm_stream other = new_stream(device);
    gm_block *block = take(pool, MIB, 0);
    CHECK_OK(gm_pool_record_stream(block, other));
    gm_pool_free(block);
    gm_pool_free(take(pool, 2 * MIB, 0));

    gm_trim_report report = trim_all(pool);
    CHECK_EQ(report.released, 0);
    CHECK_EQ(report.skipped, 3 * MIB);
    CHECK_EQ(report.pending, MIB);
    gm_trim_request request = {.timeout_ns = 10 * 1000};
    CHECK_EQ(trim(pool, &request).released, 0);
    request.timeout_ns = SECOND;
    uint64_t waits = gm_sim_host_waits(device);
    report = trim(pool, &request);
    CHECK_EQ(report.released, 3 * MIB);
    CHECK_EQ(report.skipped, 0);
    CHECK(gm_sim_host_waits(device) > waits);
    CHECK(stats_of(pool).num_sync_all_streams >= 2);
    close_pool(pool);
}

static void
a_failure_of_the_device_comes_after_the_report(void)
{
    gm_device *device = faulty_host(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_block *guard = take(pool, MIB, 0);
    gm_trim_request request = {0};
    gm_trim_report report;
    gm_pool_free(take(pool, 4 * MIB, 0));
    fail_nth(device, GM_CALL_UNMAP, 1, GM_DEVICE_ERROR);
    CHECK_STATUS(gm_pool_trim(pool, &request, &report), GM_DEVICE_ERROR);
    CHECK_EQ(report.released, 0);
    CHECK_EQ(report.referenced, MIB);
    CHECK_EQ(report.skipped, 4 * MIB);
    CHECK_POOL(pool);

    /* A page that cannot be destroyed is lost: reserved for ever, never used. */
    fail_nth(device, GM_CALL_PAGE_DESTROY, 2, GM_DEVICE_LOST);
    CHECK_STATUS(gm_pool_trim(pool, &request, &report), GM_DEVICE_LOST);
    CHECK_EQ(report.released, 4 * MIB - PAGE);
    CHECK_EQ(stats_of(pool).quarantined, PAGE);
    CHECK_EQ(reserved(pool), MIB + PAGE);
    CHECK_POOL(pool);
    gm_pool_free(guard);
    (void)trim_all(pool);
    CHECK_EQ(reserved(pool), PAGE);
    gm_pool_release(pool);
    gm_device_release(device);
}

/* ---- reserve --------------------------------------------------------------------- */

static void
a_reserve_is_all_or_nothing(void)
{
    gm_device *device = faulty_host(32 * MIB);
    gm_pool_options options = usual_options();
    options.limit = 24 * MIB;
    gm_pool *pool = open_pool(device, &options);
    gm_oom oom;
    CHECK_OK(gm_pool_reserve(pool, 8 * MIB, &oom));
    CHECK_OK(gm_pool_reserve(pool, 4 * MIB, &oom));
    CHECK_EQ(reserved(pool), 8 * MIB);
    CHECK_STATUS(gm_pool_reserve(pool, 25 * MIB, &oom), GM_OUT_OF_MEMORY);
    CHECK_EQ(oom.reason, GM_OOM_LIMIT);
    CHECK_EQ(oom.requested, 25 * MIB);
    CHECK_EQ(reserved(pool), 8 * MIB);
    gm_pool_set_limit(pool, SIZE_MAX);
    CHECK_STATUS(gm_pool_reserve(pool, 33 * MIB, &oom), GM_OUT_OF_MEMORY);
    CHECK_EQ(oom.limit, SIZE_MAX);
    CHECK_EQ(reserved(pool), 8 * MIB);
    fail_nth(device, GM_CALL_PAGE_CREATE, 5, GM_DEVICE_ERROR);
    CHECK_STATUS(gm_pool_reserve(pool, 16 * MIB, &oom), GM_DEVICE_ERROR);
    CHECK_EQ(reserved(pool), 8 * MIB);
    CHECK_OK(gm_host_occupy(gm_fault_inner(device), 20 * MIB));
    CHECK_STATUS(gm_pool_reserve(pool, 16 * MIB, NULL), GM_OUT_OF_MEMORY);
    CHECK_EQ(reserved(pool), 8 * MIB);

    /* Blocks take what is reserved before they ask the device. */
    uint64_t created = counters_of(device).calls[GM_CALL_PAGE_CREATE];
    gm_block *block = take(pool, 8 * MIB, 0);
    CHECK_EQ(counters_of(device).calls[GM_CALL_PAGE_CREATE], created);
    gm_pool_free(block);
    gm_pool_close(pool, 0);
    CHECK_STATUS(gm_pool_reserve(pool, MIB, NULL), GM_CLOSED);
    close_pool(pool);
}

static void
a_reserved_segment_serves_the_default_stream(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, false);
    CHECK_OK(gm_pool_reserve(pool, 30 * MIB, NULL));
    CHECK_EQ(stats_of(pool).segment.large_pool.current, 1);
    gm_block *block = take(pool, 25 * MIB, 0);
    CHECK_EQ(stats_of(pool).num_device_alloc, 1);
    CHECK_STATUS(gm_pool_reserve(pool, 64 * MIB + 1, NULL), GM_OUT_OF_MEMORY);
    gm_oom oom;
    CHECK_OK(gm_host_occupy(device, 20 * MIB));
    CHECK_STATUS(gm_pool_reserve(pool, 60 * MIB, &oom), GM_OUT_OF_MEMORY);
    CHECK_EQ(oom.used, 25 * MIB);
    CHECK_EQ(oom.device_free, 14 * MIB);
    CHECK_EQ(reserved(pool), 30 * MIB);
    gm_pool_free(block);
    close_pool(pool);
}

/* ---- closing --------------------------------------------------------------------- */

static void
a_closed_pool_gives_back_what_is_freed_later(void)
{
    for (int paging = 0; paging < 2; paging++) {
        gm_device *device = host_device(64 * MIB);
        gm_pool *pool = pool_on(device, paging != 0);
        gm_block *first = take(pool, 10 * MIB, 0), *second = take(pool, 12 * MIB, 0);
        gm_block *block = NULL;
        gm_request request = {.size = 1000};
        CHECK(!gm_pool_is_closed(pool));
        gm_pool_close(pool, 0);
        gm_pool_close(pool, 0);
        CHECK(gm_pool_is_closed(pool));
        CHECK_STATUS(gm_pool_try_alloc(pool, &request, &block), GM_CLOSED);
        CHECK_STATUS(gm_pool_alloc(pool, &request, &block, NULL), GM_CLOSED);
        CHECK_EQ(counters_of(device).memory_now, 22 * MIB);
        gm_pool_free(first);
        CHECK_EQ(counters_of(device).memory_now, 12 * MIB);
        gm_pool_free(second);
        CHECK_EQ(counters_of(device).memory_now, 0);
        close_pool(pool);
    }
}

static void
closing_waits_and_reports(void)
{
    gm_sim_options options = {.capacity = 64 * MIB, .paging = true, .lag = 100};
    gm_device *device = behind_faults(open_sim(&options));
    gm_pool *pool = pool_on(device, true);
    gm_pool_free(take(pool, 4 * MIB, 0));
    gm_pool_close(pool, 0);
    CHECK_EQ(counters_of(device).memory_now, 4 * MIB);
    gm_pool_close(pool, SECOND);
    CHECK_EQ(counters_of(device).memory_now, 0);
    gm_pool_release(pool);

    pool = pool_on(device, true);
    gm_pool_free(take(pool, 4 * MIB, 0));
    watch_reports();
    fail_nth(device, GM_CALL_UNMAP, 1, GM_DEVICE_LOST);
    gm_pool_close(pool, SECOND);
    CHECK_REPORT(GM_DEVICE_LOST, "give memory back while closing a pool");
    gm_set_report_hook(NULL);
    gm_pool_close(pool, SECOND);
    close_pool(pool);
}

static void
nothing_happens_while_the_process_exits(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_stream stream = new_stream(device);
    gm_request request = {.size = 1000, .by_address = true};
    gm_block *block = NULL, *other = NULL;
    gm_trim_request trim_request = {0};
    gm_trim_report report;
    CHECK_OK(gm_pool_alloc(pool, &request, &block, NULL));
    gm_process_set_exiting(true);
    CHECK_STATUS(gm_pool_try_alloc(pool, &request, &other), GM_EXITING);
    CHECK_STATUS(gm_pool_alloc(pool, &request, &other, NULL), GM_EXITING);
    CHECK_STATUS(gm_pool_trim(pool, &trim_request, &report), GM_EXITING);
    CHECK_STATUS(gm_pool_record_stream(block, stream), GM_EXITING);
    CHECK_STATUS(gm_pool_free_address(pool, gm_block_address(block)), GM_EXITING);
    gm_pool_free(block);
    gm_pool_stream_retired(pool, stream);
    gm_pool_poll(pool);
    gm_device_counters before = counters_of(device);
    gm_pool_close(pool, 0);
    for (int call = 0; call < GM_CALL_COUNT; call++) {
        CHECK_EQ(counters_of(device).calls[call], before.calls[call]);
    }
    gm_process_set_exiting(false);
    CHECK_EQ(stats_of(pool).allocation.all.current, 1);
    CHECK_OK(gm_pool_free_address(pool, gm_block_address(block)));
    close_pool(pool);
}

static void
a_stable_arena_gives_back_when_its_pool_closes(void)
{
    for (int paging = 0; paging < 2; paging++) {
        gm_device *device = host_device(64 * MIB);
        gm_pool *pool = pool_on(device, paging != 0);
        gm_request request = {.size = MIB, .kind = GM_ARENA_STABLE};
        gm_block *block;
        CHECK_OK(gm_pool_alloc(pool, &request, &block, NULL));
        gm_pool_free(block);
        close_pool(pool);
    }
}

static void
a_stable_arena_goes_with_its_stream(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_stream stream = new_stream(device);
    gm_request request = {.size = MIB, .kind = GM_ARENA_STABLE, .stream = stream};
    gm_block *block;
    CHECK_OK(gm_pool_alloc(pool, &request, &block, NULL));
    gm_pool_stream_retired(pool, stream);
    gm_pool_free(block);
    gm_pool_poll(pool);
    CHECK_EQ(stats_of(pool).lanes, 0);
    close_pool(pool);
}

static const gm_test tests[] = {
    {"a trim stops at its target", a_trim_stops_at_its_target},
    {"free pages go before cached ones", free_pages_go_before_cached_ones},
    {"partly used pages stay", partly_used_pages_stay},
    {"one stream can be trimmed alone", one_stream_can_be_trimmed_alone},
    {"one stream's trim waits for that stream", one_streams_trim_waits_for_that_stream},
    {"young memory stays", young_memory_stays},
    {"idle memory decays when a call passes by",
     idle_memory_decays_when_a_call_passes_by},
    {"nothing is given back during a capture", nothing_is_given_back_during_a_capture},
    {"unfinished work is skipped or waited for",
     unfinished_work_is_skipped_or_waited_for},
    {"a failure of the device comes after the report",
     a_failure_of_the_device_comes_after_the_report},
    {"a reserve is all or nothing", a_reserve_is_all_or_nothing},
    {"a reserved segment serves the default stream",
     a_reserved_segment_serves_the_default_stream},
    {"a closed pool gives back what is freed later",
     a_closed_pool_gives_back_what_is_freed_later},
    {"closing waits and reports", closing_waits_and_reports},
    {"nothing happens while the process exits",
     nothing_happens_while_the_process_exits},
    {"a stable arena gives back when its pool closes",
     a_stable_arena_gives_back_when_its_pool_closes},
    {"a stable arena goes with its stream", a_stable_arena_goes_with_its_stream},
};

GM_TEST_MAIN(tests)
