/* test_pending.c - blocks that other streams use: what their frees wait for, and what
 * becomes of them when an event cannot be had or a stream goes.
 */
#include "pool/internal.h"
#include "pool_kinds.h"

static gm_device *
faulty_host(void)
{
    return behind_faults(host_device(64 * MIB));
}

static size_t
pending_blocks(gm_pool *pool)
{
    gm_pool_poll(pool);
    CHECK_POOL(pool);
    return stats_of(pool).pending_blocks;
}

static uint64_t
calls(gm_device *device, gm_device_call call)
{
    return counters_of(device).calls[call];
}

/* Frees a block of 1 MiB that these streams (0: not) use, too. */
static gm_devptr
free_after(gm_pool *pool, gm_stream first, gm_stream second)
{
    gm_block *block = take(pool, MIB, 0);
    gm_devptr address = gm_block_address(block);
    CHECK_OK(gm_pool_record_stream(block, first));
    if (second != 0) {
        CHECK_OK(gm_pool_record_stream(block, second));
    }
    gm_pool_free(block);
    return address;
}

/* ---- order ----------------------------------------------------------------------- */

static void
a_block_waits_for_all_its_streams(void)
{
    gm_device *device = faulty_host();
    gm_pool *pool = pool_on(device, true);
    gm_stream first = stalled_stream(device), second = stalled_stream(device);
    gm_devptr address = free_after(pool, first, second);
    CHECK_EQ(pending_blocks(pool), 1);
    gm_block *found;
    CHECK_STATUS(gm_block_find(address, &found), GM_UNKNOWN_ADDRESS);
    let_run(device, first);
    CHECK_EQ(pending_blocks(pool), 1);
    let_run(device, second);
    CHECK_EQ(pending_blocks(pool), 0);
    gm_block *again = take(pool, MIB, 0);
    CHECK_EQ(gm_block_address(again), address);
    gm_pool_free(again);
    close_pool(pool);
}

static void
a_slow_stream_delays_nobody_else(void)
{
    gm_device *device = faulty_host();
    gm_pool *pool = pool_on(device, true);
    gm_stream slow = stalled_stream(device), fast = stalled_stream(device);
    for (int i = 0; i < 3; i++) {
        (void)free_after(pool, slow, 0);
        (void)free_after(pool, fast, 0);
    }
    CHECK_EQ(pending_blocks(pool), 6);
    CHECK_OK(gm_host_release_work(gm_fault_inner(device), fast, 2, NULL));
    CHECK_EQ(pending_blocks(pool), 4);
    let_run(device, fast);
    CHECK_EQ(pending_blocks(pool), 3);

    /* Of one stream only the oldest event is asked for. */
    uint64_t before = calls(device, GM_CALL_EVENT_QUERY);
    gm_pool_poll(pool);
    CHECK_EQ(calls(device, GM_CALL_EVENT_QUERY), before + 1);
    let_run(device, slow);
    CHECK_EQ(pending_blocks(pool), 0);
    before = calls(device, GM_CALL_EVENT_QUERY);
    gm_pool_poll(pool);
    CHECK_EQ(calls(device, GM_CALL_EVENT_QUERY), before);
    close_pool(pool);
}

static void
recording_what_needs_no_wait_does_nothing(void)
{
    gm_device *device = faulty_host();
    gm_pool *pool = pool_on(device, true);
    gm_stream slow = stalled_stream(device);
    gm_block *block = take(pool, MIB, 0);
    CHECK_OK(gm_pool_record_stream(block, 0));
    CHECK_OK(gm_pool_record_stream(block, 1)); /* the default stream's other name */
    CHECK_EQ(calls(device, GM_CALL_EVENT_CREATE), 0);
    CHECK_OK(gm_pool_record_stream(block, slow));
    CHECK_OK(gm_pool_record_stream(block, slow));
    CHECK_EQ(calls(device, GM_CALL_EVENT_CREATE), 1);
    CHECK_EQ(calls(device, GM_CALL_EVENT_RECORD), 0);
    CHECK_EQ(block->uses, 1);
    gm_pool_free(block);
    CHECK_EQ(calls(device, GM_CALL_EVENT_RECORD), 1);
    let_run(device, slow);
    CHECK_EQ(pending_blocks(pool), 0);

    /* Events are used again. */
    for (int i = 0; i < 20; i++) {
        (void)free_after(pool, slow, 0);
        CHECK_EQ(pending_blocks(pool), 0);
    }
    CHECK_EQ(calls(device, GM_CALL_EVENT_CREATE), 1);
    close_pool(pool);
}

/* ---- events that cannot be had --------------------------------------------------- */

static void
without_an_event_a_stream_is_not_recorded(void)
{
    gm_device *device = faulty_host();
    gm_pool *pool = pool_on(device, true);
    gm_stream slow = stalled_stream(device);
    gm_block *block = take(pool, MIB, 0);
    fail_nth(device, GM_CALL_EVENT_CREATE, 1, GM_NO_HOST_MEMORY);
    CHECK_STATUS(gm_pool_record_stream(block, slow), GM_NO_HOST_MEMORY);
    CHECK_EQ(block->uses, 0);
    CHECK_OK(gm_pool_record_stream(block, slow));
    gm_pool_free(block);
    CHECK_EQ(pending_blocks(pool), 1);
    let_run(device, slow);
    CHECK_EQ(pending_blocks(pool), 0);
    close_pool(pool);
}

static void
a_block_whose_event_was_lost_is_not_used_again(void)
{
    gm_device *device = faulty_host();
    gm_pool *pool = pool_on(device, true);
    gm_stream other = new_stream(device), third = new_stream(device);
    watch_reports();
    fail_nth(device, GM_CALL_EVENT_RECORD, 1, GM_DEVICE_ERROR);
    gm_devptr lost = free_after(pool, other, 0);
    CHECK_REPORT(GM_DEVICE_ERROR,
                 "record an event for a freed block, whose memory is not used again");
    gm_set_report_hook(NULL);
    CHECK_EQ(pending_blocks(pool), 1);

    /* What was freed on that stream later stays behind it, other streams go on. */
    (void)free_after(pool, other, 0);
    CHECK_EQ(pending_blocks(pool), 2);
    (void)free_after(pool, third, 0);
    CHECK_EQ(pending_blocks(pool), 2);
    gm_block *block = take(pool, MIB, 0);
    CHECK(gm_block_address(block) != lost);
    gm_pool_free(block);

    /* There is nothing to wait for: a trim with time to spare ends at once. */
    gm_trim_request request = {.timeout_ns = UINT64_MAX};
    gm_trim_report report;
    CHECK_OK(gm_pool_trim(pool, &request, &report));
    CHECK_EQ(report.pending, 2 * MIB);
    CHECK_POOL(pool);
    gm_pool_release(pool);
    gm_device_release(device);
}

/* ---- streams that go ------------------------------------------------------------- */

static void
one_last_event_covers_a_retired_stream(void)
{
    gm_device *device = faulty_host();
    gm_pool *pool = pool_on(device, true);
    gm_stream gone = stalled_stream(device);
    gm_block *live = take(pool, MIB, 0);
    CHECK_OK(gm_pool_record_stream(live, gone));
    (void)free_after(pool, gone, 0);
    gm_pool_stream_retired(pool, gone);
    CHECK_OK(device->ops->stream_destroy(device, gone));

    /* The live block is freed after the stream went: no event is recorded any more. */
    uint64_t before = calls(device, GM_CALL_EVENT_RECORD);
    gm_pool_free(live);
    CHECK_EQ(calls(device, GM_CALL_EVENT_RECORD), before);
    CHECK_EQ(pending_blocks(pool), 2);
    gm_trim_request request = {.timeout_ns = 1000};
    gm_trim_report report;
    CHECK_OK(gm_pool_trim(pool, &request, &report));
    CHECK_EQ(report.pending, 2 * MIB);
    let_run(device, gone);
    CHECK_EQ(pending_blocks(pool), 0);
    CHECK_EQ(calls(device, GM_CALL_EVENT_CREATE), 3);
    CHECK_EQ(calls(device, GM_CALL_EVENT_DESTROY), 1);
    close_pool(pool);
}

static void
a_retirement_without_an_event_falls_back(void)
{
    gm_device_call call[] = {GM_CALL_EVENT_CREATE, GM_CALL_EVENT_RECORD};
    for (int i = 0; i < 2; i++) {
        gm_device *device = faulty_host();
        gm_pool *pool = pool_on(device, true);
        gm_stream gone = new_stream(device);
        gm_block *live = take(pool, MIB, 0);
        CHECK_OK(gm_pool_record_stream(live, gone));
        fail_nth(device, call[i], 1, GM_DEVICE_ERROR);
        gm_pool_stream_retired(pool, gone);
        CHECK_EQ(gm_fault_injected(device), 1);
        CHECK_EQ(calls(device, GM_CALL_EVENT_DESTROY), i);
        /* The block records its own event, as if nothing had been said. */
        gm_pool_free(live);
        CHECK_EQ(pending_blocks(pool), 0);
        close_pool(pool);
    }
}

static void
an_event_that_cannot_be_destroyed_is_reported(void)
{
    gm_device *device = faulty_host();
    gm_pool *pool = pool_on(device, true);
    gm_stream gone = new_stream(device);
    gm_block *live = take(pool, MIB, 0);
    CHECK_OK(gm_pool_record_stream(live, gone));
    gm_pool_stream_retired(pool, gone);
    gm_pool_free(live);
    watch_reports();
    fail_nth(device, GM_CALL_EVENT_DESTROY, 1, GM_DEVICE_ERROR);
    CHECK_EQ(pending_blocks(pool), 0);
    CHECK_REPORT(GM_DEVICE_ERROR, "destroy an event");

    /* So are those of a lane that goes with its pool: an idle use's, the mark's. */
    (void)trim_all(pool);
    fail_nth(device, GM_CALL_EVENT_DESTROY, 1, GM_DEVICE_ERROR);
    gm_pool_release(pool);
    CHECK_REPORT(GM_DEVICE_ERROR, "destroy an event");
    gm_set_report_hook(NULL);
    CHECK_EQ(counters_of(device).memory_now, 0);
    gm_device_release(device);
}

static void
a_lane_that_cannot_be_emptied_stays(void)
{
    gm_device *device = faulty_host();
    gm_pool *pool = pool_on(device, true);
    gm_stream gone = new_stream(device);
    gm_pool_free(take(pool, MIB, gone));
    watch_reports();
    fail_nth(device, GM_CALL_UNMAP, 1, GM_DEVICE_ERROR);
    gm_pool_stream_retired(pool, gone);
    CHECK_REPORT(GM_DEVICE_ERROR, "give back the memory of a stream that is gone");
    CHECK_EQ(stats_of(pool).lanes, 1);
    CHECK_EQ(reserved(pool), MIB);
    gm_pool_poll(pool);
    CHECK_EQ(reports, 0);
    CHECK_EQ(stats_of(pool).lanes, 0);
    CHECK_EQ(stats_of(pool).unplaced_bytes, MIB);
    gm_set_report_hook(NULL);
    close_pool(pool);
}

static void
a_retired_lane_serves_the_next_stream(void)
{
    gm_device *device = faulty_host();
    gm_pool *pool = pool_on(device, true);
    gm_stream gone = stalled_stream(device), next;
    gm_block *block = take(pool, MIB, gone);
    CHECK_EQ(gm_block_stream(block), gone);
    gm_pool_stream_retired(pool, gone);
    gm_pool_stream_retired(pool, gone);
    CHECK_EQ(stats_of(pool).lanes, 1);
    gm_pool_free(block);
    gm_pool_poll(pool);
    CHECK_EQ(stats_of(pool).lanes, 1);
    let_run(device, gone);
    gm_pool_poll(pool);
    CHECK_EQ(stats_of(pool).lanes, 0);
    CHECK_EQ(stats_of(pool).unplaced_bytes, MIB);

    next = new_stream(device);
    block = take(pool, MIB, next);
    CHECK_EQ(gm_block_stream(block), next);
    CHECK_EQ(stats_of(pool).lanes, 1);
    CHECK_EQ(stats_of(pool).unplaced_bytes, 0);
    gm_pool_free(block);

    /* The default stream is never retired, by neither of its names. */
    gm_pool_free(take(pool, MIB, 0));
    gm_pool_stream_retired(pool, 0);
    gm_pool_stream_retired(pool, 1);
    CHECK_EQ(stats_of(pool).lanes, 2);
    close_pool(pool);
}

static void
a_lane_that_cannot_be_marked_stays(void)
{
    gm_device_call call[] = {GM_CALL_EVENT_CREATE, GM_CALL_EVENT_RECORD};
    for (int i = 0; i < 2; i++) {
        gm_device *device = faulty_host();
        gm_pool *pool = pool_on(device, true);
        gm_stream stream = new_stream(device);
        gm_pool_free(take(pool, MIB, stream));
        fail_nth(device, call[i], 1, GM_DEVICE_ERROR);
        gm_pool_stream_retired(pool, stream);
        CHECK_EQ(gm_fault_injected(device), 1);
        CHECK_EQ(stats_of(pool).lanes, 1);
        CHECK_EQ(stats_of(pool).cached_bytes, MIB);
        /* The same in a trim: what cannot be marked is not touched. */
        fail_nth(device, call[i], 1, GM_DEVICE_ERROR);
        CHECK_EQ(trim_all(pool).released, 0);
        CHECK_EQ(gm_fault_injected(device), 1);
        gm_pool_stream_retired(pool, stream);
        CHECK_EQ(stats_of(pool).lanes, 0);
        close_pool(pool);
    }
}

/* ---- identities that come again -------------------------------------------------- */

static void
a_new_stream_under_an_old_identity_is_recorded(void)
{
    gm_device *device = faulty_host();
    gm_pool *pool = pool_on(device, true);
    gm_stream stream = new_stream(device);
    gm_block *block = take(pool, MIB, 0);
    CHECK_OK(gm_pool_record_stream(block, stream));
    gm_pool_stream_retired(pool, stream);
    CHECK_OK(gm_host_stall(gm_fault_inner(device), stream)); /* the new one, busy */
    CHECK_OK(gm_pool_record_stream(block, stream));
    CHECK_EQ(block->uses, 2);
    CHECK_OK(gm_pool_record_stream(block, stream));
    CHECK_EQ(block->uses, 2);
    gm_pool_free(block);
    CHECK_EQ(pending_blocks(pool), 1);
    let_run(device, stream);
    CHECK_EQ(pending_blocks(pool), 0);
    close_pool(pool);
}

static void
a_new_stream_under_an_old_identity_has_its_own_lane(void)
{
    gm_device *device = behind_faults(host_device(16 * MIB));
    gm_pool *pool = pool_on(device, true);
    gm_stream stream = new_stream(device);
    gm_block *kept = take(pool, MIB, stream), *other = NULL;
    gm_pool_stream_retired(pool, stream);
    CHECK_OK(gm_host_stall(gm_fault_inner(device), stream)); /* the new one */
    gm_block *block = take(pool, 12 * MIB, stream);
    CHECK_EQ(stats_of(pool).lanes, 2);
    unsigned char zero = 0;
    CHECK_OK(device->ops->fill_async(device, gm_block_address(block), &zero, 1, 100,
                                     stream));
    gm_pool_free(block);
    CHECK_STATUS(allocate(pool, 12 * MIB, 0, &other, NULL), GM_OUT_OF_MEMORY);

    /* To the old one's block the new stream is a stranger. */
    CHECK_OK(gm_pool_record_stream(kept, stream));
    gm_pool_free(kept);
    CHECK_EQ(pending_blocks(pool), 1);
    let_run(device, stream);
    CHECK_EQ(pending_blocks(pool), 0);
    CHECK_EQ(stats_of(pool).lanes, 2); /* the new one's, and the default stream's */
    close_pool(pool);
}

static const gm_test tests[] = {
    {"a block waits for all its streams", a_block_waits_for_all_its_streams},
    {"a slow stream delays nobody else", a_slow_stream_delays_nobody_else},
    {"recording what needs no wait does nothing",
     recording_what_needs_no_wait_does_nothing},
    {"without an event a stream is not recorded",
     without_an_event_a_stream_is_not_recorded},
    {"a block whose event was lost is not used again",
     a_block_whose_event_was_lost_is_not_used_again},
    {"one last event covers a retired stream", one_last_event_covers_a_retired_stream},
    {"a retirement without an event falls back",
     a_retirement_without_an_event_falls_back},
    {"an event that cannot be destroyed is reported",
     an_event_that_cannot_be_destroyed_is_reported},
    {"a lane that cannot be emptied stays", a_lane_that_cannot_be_emptied_stays},
    {"a retired lane serves the next stream", a_retired_lane_serves_the_next_stream},
    {"a lane that cannot be marked stays", a_lane_that_cannot_be_marked_stays},
    {"a new stream under an old identity is recorded",
     a_new_stream_under_an_old_identity_is_recorded},
    {"a new stream under an old identity has its own lane",
     a_new_stream_under_an_old_identity_has_its_own_lane},
};

GM_TEST_MAIN(tests)
