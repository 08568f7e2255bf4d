/* test_capture.c - streams that capture a graph: where their memory is, which calls are
 * not made meanwhile, and who may begin and end.
 */
#include "capture_kinds.h"

/* ---- whose memory ---------------------------------------------------------------- */

static void
a_capture_is_served_from_the_stable_arena(void)
{
    for (int paged = 0; paged < 2; paged++) {
        gm_pool *pool = either_pool(paged);
        gm_stream stream = new_stream(gm_pool_device(pool));
        gm_devptr elastic = warm_up(pool, 2 * MIB, stream, 0);
        gm_devptr small = warm_up(pool, 4 * KIB, stream, 0);
        CHECK_OK(
            gm_pool_reserve(pool, reserved(pool) + (paged != 0 ? 4 * MIB : 0), NULL));
        CHECK_OK(gm_pool_capture_begin(pool, stream));
        uint64_t asked = calls(pool, GM_CALL_STREAM_CAPTURING);
        gm_block *blocks[2] = {take(pool, 2 * MIB, stream),
                               take(pool, 4 * KIB, stream)};
        for (int i = 0; i < 2; i++) {
            CHECK_EQ(kind_of(blocks[i]), GM_ARENA_STABLE);
            CHECK_EQ(gm_block_stream(blocks[i]), stream);
        }
        /* What was declared is not asked for. */
        CHECK_EQ(calls(pool, GM_CALL_STREAM_CAPTURING), asked);
        CHECK_OK(gm_pool_capture_end(pool, stream));
        for (int i = 0; i < 2; i++) {
            gm_pool_free(blocks[i]);
        }
        blocks[0] = take(pool, 2 * MIB, stream);
        blocks[1] = take(pool, 4 * KIB, stream);
        CHECK_EQ(gm_block_address(blocks[0]), elastic);
        CHECK_EQ(gm_block_address(blocks[1]), small);
        gm_pool_free(blocks[0]);
        gm_pool_free(blocks[1]);
        close_pool(pool);
    }
}

static void
a_block_freed_in_a_capture_is_used_again_in_it(void)
{
    gm_pool *pool = either_pool(1);
    gm_stream stream = new_stream(gm_pool_device(pool));
    CHECK_OK(gm_pool_reserve(pool, 4 * MIB, NULL));
    begin(pool, stream);
    uint64_t before = forbidden(pool), maps = 0;
    gm_devptr address = 0;
    for (int i = 0; i < 10; i++) {
        gm_block *block = take(pool, 3 * MIB, stream);
        CHECK(i == 0 || gm_block_address(block) == address);
        CHECK(i == 0 || calls(pool, GM_CALL_MAP) == maps);
        address = gm_block_address(block);
        maps = calls(pool, GM_CALL_MAP);
        gm_pool_free(block);
    }
    CHECK_EQ(forbidden(pool), before);
    finish(pool, stream);
    CHECK_EQ(reserved(pool), 4 * MIB);
    CHECK_POOL(pool);

    /* The next capture has the same memory; what comes between has not. */
    gm_block *between = take(pool, MIB, stream);
    CHECK(gm_block_address(between) < address ||
          gm_block_address(between) >= address + 3 * MIB);
    begin(pool, stream);
    gm_block *block = take(pool, 3 * MIB, stream);
    CHECK_EQ(gm_block_address(block), address);
    finish(pool, stream);
    gm_pool_free(block);
    gm_pool_free(between);
    close_pool(pool);
}

/* The arena of `stream` and kind in a copy of the state: bytes of its segments. */
static size_t
bytes_of_kind(gm_pool *pool, gm_stream stream, gm_arena_kind kind)
{
    gm_pool_view view;
    size_t bytes = 0;
    CHECK_OK(gm_pool_view_create(pool, &view));
    for (size_t i = 0; i < view.segment_count; i++) {
        const gm_segment_view *segment = &view.segments[i];
        bytes += segment->stream == stream && segment->kind == kind ? segment->size : 0;
    }
    gm_pool_view_destroy(&view);
    return bytes;
}

static void
memory_of_a_capture_stays_until_its_stream_goes(void)
{
    for (int retires = 0; retires < 2; retires++) {
        gm_device *device = host_device(64 * MIB);
        gm_pool *pool = pool_on(device, true);
        gm_stream stream = new_stream(device);
        CHECK_OK(gm_pool_capture_begin(pool, stream));
        gm_block *block = take(pool, 3 * MIB, stream);
        gm_pool_free(take(pool, 2 * MIB, stream));
        CHECK_OK(gm_pool_capture_end(pool, stream));
        gm_pool_free(block);
        CHECK_EQ(bytes_of_kind(pool, stream, GM_ARENA_STABLE), 5 * MIB);
        CHECK_EQ(bytes_of_kind(pool, stream, GM_ARENA_ELASTIC), 0);
        gm_trim_report report = trim_all(pool);
        CHECK(!report.capturing);
        CHECK_EQ(report.skipped, 5 * MIB);
        CHECK_EQ(counters_of(device).memory_now, 5 * MIB);
        CHECK_EQ(calls(pool, GM_CALL_UNMAP), 0);
        if (retires != 0) {
            gm_pool_stream_retired(pool, stream);
            CHECK_EQ(trim_all(pool).released, 5 * MIB);
        }
        else {
            gm_pool_close(pool, 0);
        }
        CHECK_EQ(counters_of(device).memory_now, 0);
        close_pool(pool);
    }
}

static void
other_streams_go_on(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_stream stream = new_stream(device), other = stalled_stream(device);
    gm_devptr address = warm_up(pool, 2 * MIB, other, 0);
    gm_block *pending = take(pool, MIB, 0);
    CHECK_OK(gm_pool_record_stream(pending, other));
    CHECK_OK(gm_pool_capture_begin(pool, stream));
    gm_block *block = take(pool, 2 * MIB, other);
    CHECK_EQ(gm_block_address(block), address);
    CHECK_EQ(kind_of(block), GM_ARENA_ELASTIC);
    gm_pool_free(block);
    /* Frees that wait for other streams come back. */
    gm_pool_free(pending);
    CHECK_EQ(pending_blocks(pool), 1);
    let_run(device, other);
    CHECK_EQ(pending_blocks(pool), 0);
    CHECK_OK(gm_pool_capture_end(pool, stream));
    close_pool(pool);
}

static void
a_stream_that_joins_a_capture_is_seen(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_stream stream = new_stream(device), joined = new_stream(device);
    (void)warm_up(pool, 2 * MIB, joined, 4 * MIB);
    begin(pool, stream);
    CHECK_OK(gm_host_set_capturing(device, joined, true));
    gm_block *block = take(pool, 2 * MIB, joined);
    CHECK_EQ(kind_of(block), GM_ARENA_STABLE);
    CHECK_OK(gm_host_set_capturing(device, joined, false));
    finish(pool, stream);
    gm_pool_free(block);
    close_pool(pool);
}

static void
an_undeclared_capture_is_seen_off_the_fast_path(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_stream stream = new_stream(device);
    gm_devptr address = warm_up(pool, 2 * MIB, stream, 4 * MIB);
    gm_request request = {.size = 2 * MIB, .stream = stream};
    gm_block *block;
    CHECK_OK(gm_host_set_capturing(device, stream, true));
    uint64_t asked = calls(pool, GM_CALL_STREAM_CAPTURING);
    CHECK_OK(gm_pool_alloc(pool, &request, &block, NULL));
    CHECK_EQ(calls(pool, GM_CALL_STREAM_CAPTURING), asked + 1);
    CHECK_EQ(kind_of(block), GM_ARENA_STABLE);
    gm_pool_free(block);
    CHECK_OK(gm_host_set_capturing(device, stream, false));
    CHECK_OK(gm_pool_alloc(pool, &request, &block, NULL));
    CHECK_EQ(gm_block_address(block), address);
    gm_pool_free(block);
    close_pool(pool);
}

/* ---- what is not called ---------------------------------------------------------- */

static void
a_trim_during_a_capture_does_nothing_and_says_so(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_stream stream = new_stream(device);
    (void)warm_up(pool, 4 * MIB, 0, 0);
    /* The stream has no memory yet, and its device says nothing. */
    CHECK_OK(gm_pool_capture_begin(pool, stream));
    uint64_t before = forbidden(pool);
    gm_trim_request request = {.timeout_ns = SECOND};
    gm_trim_report report;
    CHECK_OK(gm_pool_trim(pool, &request, &report));
    CHECK(report.capturing);
    CHECK_EQ(report.released, 0);
    CHECK_EQ(report.skipped, 4 * MIB);
    CHECK_EQ(forbidden(pool), before);
    CHECK_EQ(reserved(pool), 4 * MIB);
    CHECK_OK(gm_pool_capture_end(pool, stream));
    CHECK_EQ(trim_all(pool).released, 4 * MIB);
    close_pool(pool);
}

/* Everything the ladder could do is there to be done: idle memory of the stream and of
 * another one, a free that waits, work that is unfinished. */
static void
fail_in_a_capture(bool declared, bool on_other_stream)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool_options options = usual_options();
    options.limit = 12 * MIB;
    options.oom_wait_ns = SECOND;
    gm_pool *pool = open_pool(device, &options);
    gm_stream stream = new_stream(device), other = stalled_stream(device);
    (void)warm_up(pool, 3 * MIB, stream, 0);
    (void)warm_up(pool, 3 * MIB, other, 0);
    gm_block *block = take(pool, MIB, other), *none = NULL;
    CHECK_OK(gm_pool_record_stream(block, stream));
    if (declared) {
        CHECK_OK(gm_pool_capture_begin(pool, stream));
    }
    CHECK_OK(gm_host_set_capturing(device, stream, true));
    gm_pool_free(block);
    uint64_t before = forbidden(pool);
    watch_reports();
    gm_oom oom = {0};
    CHECK_STATUS(allocate(pool, 9 * MIB, on_other_stream ? other : stream, &none, &oom),
                 GM_OUT_OF_MEMORY);
    CHECK_EQ(oom.requested, 9 * MIB);
    CHECK_EQ(oom.cached, 5 * MIB);
    CHECK_EQ(oom.pending, MIB);
    CHECK_EQ(oom.limit, 12 * MIB);
    CHECK_EQ(forbidden(pool), before);
    CHECK_EQ(reports, 0);
    gm_set_report_hook(NULL);
    CHECK_EQ(reserved(pool), 6 * MIB);
    CHECK_POOL(pool);
    CHECK_OK(gm_host_set_capturing(device, stream, false));
    if (declared) {
        CHECK_OK(gm_pool_capture_end(pool, stream));
    }
    let_run(device, other);
    block = take(pool, 9 * MIB, stream);
    gm_pool_free(block);
    close_pool(pool);
}

static void
out_of_memory_in_a_capture_calls_nothing_forbidden(void)
{
    fail_in_a_capture(true, false);
    fail_in_a_capture(true, true);
    fail_in_a_capture(false, false);
}

/* New pages that a failed attempt leaves are not destroyed. */
static void
pages_of_a_failed_request_stay_in_a_capture(void)
{
    gm_device *device = behind_faults(host_device(64 * MIB));
    gm_pool *pool = pool_on(device, true);
    gm_stream stream = new_stream(device);
    gm_block *block = NULL;
    CHECK_OK(gm_pool_capture_begin(pool, stream));
    uint64_t before = forbidden(pool);
    fail_nth(device, GM_CALL_PAGE_CREATE, 4, GM_OUT_OF_MEMORY);
    CHECK_STATUS(allocate(pool, MIB, stream, &block, NULL), GM_OUT_OF_MEMORY);
    CHECK_EQ(forbidden(pool), before);
    CHECK_EQ(stats_of(pool).unplaced_bytes, 3 * PAGE);
    CHECK_POOL(pool);
    block = take(pool, MIB, stream);
    CHECK_OK(gm_pool_capture_end(pool, stream));
    gm_pool_free(block);
    close_pool(pool);
}

static void
a_device_that_makes_no_pages_then_is_believed(void)
{
    for (int paged = 0; paged < 2; paged++) {
        gm_pool *pool = either_pool(paged);
        gm_stream stream = new_stream(gm_pool_device(pool));
        gm_block *block = NULL;
        begin(pool, stream);
        uint64_t before = forbidden(pool);
        CHECK_STATUS(allocate(pool, MIB, stream, &block, NULL), GM_CAPTURING);
        CHECK_EQ(forbidden(pool), before);
        CHECK_EQ(reserved(pool), 0);
        CHECK_POOL(pool);
        finish(pool, stream);
        close_pool(pool);
    }
}

/* Nobody marks the stream or asks how far it is, however they come to it. */
static void
a_capturing_stream_gets_no_mark(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_stream stream = stalled_stream(device);
    gm_block *block = take(pool, MIB, stream);
    gm_lane *lane = gm_block_lane(block);
    gm_pool_free(take(pool, MIB, stream));
    gm_mutex_lock(&lane->lock);
    CHECK(!gm_lane_is_done_locked(lane)); /* a mark from before the capture */
    gm_mutex_unlock(&lane->lock);
    gm_pool_free(block);
    let_run(device, stream);
    begin(pool, stream);
    uint64_t before = forbidden(pool);
    gm_mutex_lock(&lane->lock);
    CHECK(!gm_lane_is_done_locked(lane));
    CHECK_EQ(gm_lane_done_locked(lane), 0);
    lane->marks_wanted = 1;
    gm_lane_mark_locked(lane);
    gm_mutex_unlock(&lane->lock);
    CHECK_EQ(forbidden(pool), before);
    finish(pool, stream);
    gm_mutex_lock(&lane->lock);
    CHECK(gm_lane_is_done_locked(lane));
    gm_mutex_unlock(&lane->lock);
    close_pool(pool);
}

static void
a_retired_lane_is_dissolved_after_the_capture(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_stream stream = new_stream(device), gone = new_stream(device);
    gm_stream bare = new_stream(device); /* addresses without a page */
    (void)warm_up(pool, MIB, bare, 0);
    gm_trim_request request = {.target = 1};
    gm_trim_report report;
    CHECK_OK(gm_pool_trim(pool, &request, &report));
    (void)warm_up(pool, MIB, gone, 0);
    begin(pool, stream);
    watch_reports();
    gm_pool_stream_retired(pool, gone);
    gm_pool_stream_retired(pool, bare);
    uint64_t before = forbidden(pool);
    gm_pool_poll(pool);
    CHECK_EQ(forbidden(pool), before);
    CHECK_EQ(stats_of(pool).lanes, 2);
    CHECK_EQ(reports, 0);
    finish(pool, stream);
    gm_set_report_hook(NULL);
    CHECK_EQ(stats_of(pool).lanes, 0);
    CHECK_EQ(stats_of(pool).unplaced_bytes, MIB);
    close_pool(pool);
}

/* ---- begin and end --------------------------------------------------------------- */

static void
captures_are_declared_once_and_end_once(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_stream streams[9];
    CHECK_STATUS(gm_pool_capture_end(pool, 0), GM_INVALID);
    for (int i = 0; i < 9; i++) {
        streams[i] = new_stream(device);
        CHECK_OK(gm_pool_capture_begin(pool, streams[i]));
    }
    CHECK_STATUS(gm_pool_capture_end(pool, 0), GM_INVALID);
    for (int i = 0; i < 9; i++) {
        CHECK_STATUS(gm_pool_capture_begin(pool, streams[i]), GM_INVALID);
    }
    for (int i = 0; i < 9; i++) {
        gm_stream stream = streams[i * 2 % 9];
        CHECK(gm_pool_is_capturing(pool));
        CHECK_OK(gm_pool_capture_end(pool, stream));
        CHECK_STATUS(gm_pool_capture_end(pool, stream), GM_INVALID);
    }
    CHECK(!gm_pool_is_capturing(pool));
    CHECK_EQ(gm_pool_attention(pool, GM_POOL_CAPTURING), 0);
    close_pool(pool);
}

static void
bad_requests_are_told_in_a_capture(void)
{
    gm_pool *pool = either_pool(1);
    gm_block *block = NULL;
    CHECK_OK(gm_pool_capture_begin(pool, 0));
    CHECK_STATUS(allocate(pool, 0, 0, &block, NULL), GM_INVALID);
    CHECK_STATUS(allocate(pool, GM_SIZE_LIMIT + 1, 0, &block, NULL), GM_INVALID);
    CHECK_OK(gm_pool_capture_end(pool, 0));
    close_pool(pool);
}

static void
a_closed_pool_lets_captures_end(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_stream streams[2] = {new_stream(device), new_stream(device)};
    gm_block *block = NULL;
    (void)warm_up(pool, 2 * MIB, 0, 0);
    CHECK_OK(gm_pool_capture_begin(pool, streams[0]));
    CHECK_OK(gm_pool_capture_begin(pool, streams[1]));
    gm_pool_free(take(pool, MIB, streams[0]));
    gm_pool_close(pool, SECOND);
    CHECK_EQ(counters_of(device).memory_now, 3 * MIB);
    CHECK_STATUS(gm_pool_capture_begin(pool, 0), GM_CLOSED);
    CHECK_STATUS(allocate(pool, MIB, streams[0], &block, NULL), GM_CLOSED);
    CHECK_OK(gm_pool_capture_end(pool, streams[0]));
    CHECK_EQ(counters_of(device).memory_now, 3 * MIB);
    CHECK_OK(gm_pool_capture_end(pool, streams[1]));
    CHECK_EQ(counters_of(device).memory_now, 0);
    close_pool(pool);
}

static void
a_pool_may_go_with_a_capture_under_way(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    CHECK_OK(gm_pool_capture_begin(pool, 0));
    gm_pool_free(take(pool, MIB, 0));
    close_pool(pool);
}

static void
a_stream_that_retires_ends_its_capture(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_stream stream = stalled_stream(device);
    gm_block *block = take(pool, MIB, 0);
    CHECK_OK(gm_pool_record_stream(block, stream));
    CHECK_OK(gm_pool_capture_begin(pool, stream));
    gm_pool_free(take(pool, MIB, stream));
    gm_pool_free(block);
    gm_pool_stream_retired(pool, stream);
    CHECK_OK(device->ops->stream_destroy(device, stream));
    CHECK_STATUS(gm_pool_capture_end(pool, stream), GM_INVALID);
    CHECK(!gm_pool_is_capturing(pool));
    /* Its last event covers what was freed in the capture. */
    CHECK_EQ(pending_blocks(pool), 1);
    let_run(device, stream);
    CHECK_EQ(pending_blocks(pool), 0);
    CHECK_EQ(trim_all(pool).released, 2 * MIB);
    close_pool(pool);
}

static void
begin_and_end_in_child(void *argument)
{
    gm_pool *pool = argument;
    CHECK_STATUS(gm_pool_capture_begin(pool, 0), GM_FORKED);
    CHECK_STATUS(gm_pool_capture_end(pool, 0), GM_FORKED);
}

static void
a_forked_child_captures_nothing(void)
{
    gm_pool *pool = either_pool(1);
    CHECK_OK(gm_pool_capture_begin(pool, 0));
    gm_mutex_lock(&pool->captures.lock); /* as another thread may at the fork */
    check_in_child(begin_and_end_in_child, pool);
    gm_mutex_unlock(&pool->captures.lock);
    CHECK_OK(gm_pool_capture_end(pool, 0));
    close_pool(pool);
}

static void
at_exit_captures_are_refused(void)
{
    gm_pool *pool = either_pool(1);
    gm_process_set_exiting(true);
    CHECK_STATUS(gm_pool_capture_begin(pool, 0), GM_EXITING);
    CHECK_STATUS(gm_pool_capture_end(pool, 0), GM_EXITING);
    gm_process_set_exiting(false);
    close_pool(pool);
}

static const gm_test tests[] = {
    {"a capture is served from the stable arena",
     a_capture_is_served_from_the_stable_arena},
    {"a block freed in a capture is used again in it",
     a_block_freed_in_a_capture_is_used_again_in_it},
    {"memory of a capture stays until its stream goes",
     memory_of_a_capture_stays_until_its_stream_goes},
    {"other streams go on", other_streams_go_on},
    {"a stream that joins a capture is seen", a_stream_that_joins_a_capture_is_seen},
    {"an undeclared capture is seen off the fast path",
     an_undeclared_capture_is_seen_off_the_fast_path},
    {"a trim during a capture does nothing and says so",
     a_trim_during_a_capture_does_nothing_and_says_so},
    {"out of memory in a capture calls nothing forbidden",
     out_of_memory_in_a_capture_calls_nothing_forbidden},
    {"pages of a failed request stay in a capture",
     pages_of_a_failed_request_stay_in_a_capture},
    {"a device that makes no pages then is believed",
     a_device_that_makes_no_pages_then_is_believed},
    {"a capturing stream gets no mark", a_capturing_stream_gets_no_mark},
    {"a retired lane is dissolved after the capture",
     a_retired_lane_is_dissolved_after_the_capture},
    {"captures are declared once and end once",
     captures_are_declared_once_and_end_once},
    {"bad requests are told in a capture", bad_requests_are_told_in_a_capture},
    {"a closed pool lets captures end", a_closed_pool_lets_captures_end},
    {"a pool may go with a capture under way", a_pool_may_go_with_a_capture_under_way},
    {"a stream that retires ends its capture", a_stream_that_retires_ends_its_capture},
    {"a forked child captures nothing", a_forked_child_captures_nothing},
    {"at exit captures are refused", at_exit_captures_are_refused},
};

GM_TEST_MAIN(tests)
