/* test_capture_uses.c - frees of blocks that other streams use, while one of the streams
 * captures a graph: no event then, and one when the capture has ended.
 */
#include <pthread.h>

#include "capture_kinds.h"
#include "device/handles.h"

#define OWN GM_STREAM_PER_THREAD

/* ---- recorded uses --------------------------------------------------------------- */

static void
uses_of_a_capturing_stream_wait_without_an_event(void)
{
    for (int declared = 0; declared < 2; declared++) {
        gm_device *device = host_device(64 * MIB);
        gm_pool *pool = pool_on(device, true);
        gm_stream stream = stalled_stream(device);
        gm_block *first = take(pool, MIB, 0), *second = take(pool, 2 * MIB, 0);
        CHECK_OK(gm_pool_record_stream(first, stream));
        CHECK_OK(gm_pool_record_stream(second, stream));
        if (declared != 0) {
            begin(pool, stream);
        }
        else {
            CHECK_OK(gm_host_set_capturing(device, stream, true));
        }
        uint64_t before = forbidden(pool);
        gm_pool_free(first);
        gm_pool_free(second);
        CHECK_EQ(pending_blocks(pool), 2);
        CHECK_EQ(stats_of(pool).pending_bytes, 3 * MIB);
        CHECK_EQ(forbidden(pool), before);
        CHECK_OK(gm_host_set_capturing(device, stream, false));
        if (declared != 0) {
            /* The pool believes what it was told. */
            CHECK_EQ(pending_blocks(pool), 2);
            CHECK_EQ(forbidden(pool), before);
            CHECK_OK(gm_pool_capture_end(pool, stream));
            CHECK_EQ(calls(pool, GM_CALL_EVENT_RECORD), 2);
        }
        CHECK_EQ(pending_blocks(pool), 2);
        CHECK_EQ(calls(pool, GM_CALL_EVENT_RECORD), 2);
        let_run(device, stream);
        CHECK_EQ(pending_blocks(pool), 0);
        close_pool(pool);
    }
}

static void
uses_of_blocks_of_a_capture_wait_without_an_event(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_stream stream = new_stream(device), other = stalled_stream(device);
    gm_block *early = take(pool, MIB, stream), *late = take(pool, MIB, stream);
    CHECK_OK(gm_pool_record_stream(early, other));
    gm_pool_free(early);
    CHECK_OK(gm_pool_reserve(pool, 4 * MIB, NULL));
    begin(pool, stream);
    gm_block *inside = take(pool, MIB, stream);
    CHECK_OK(gm_pool_record_stream(late, other));
    CHECK_OK(gm_pool_record_stream(inside, other));
    let_run(device, other);
    uint64_t before = forbidden(pool);
    gm_pool_free(late);
    gm_pool_free(inside);
    /* Not even what was freed earlier is asked for. */
    CHECK_EQ(pending_blocks(pool), 3);
    CHECK_EQ(forbidden(pool), before);
    CHECK_OK(gm_host_stall(device, other));
    CHECK_OK(gm_host_set_capturing(device, stream, false));
    uint64_t records = calls(pool, GM_CALL_EVENT_RECORD);
    CHECK_OK(gm_pool_capture_end(pool, stream));
    CHECK_EQ(calls(pool, GM_CALL_EVENT_RECORD), records + 2);
    CHECK_EQ(pending_blocks(pool), 2);
    let_run(device, other);
    CHECK_EQ(pending_blocks(pool), 0);
    close_pool(pool);
}

static void
a_use_waits_for_both_captures(void)
{
    for (int order = 0; order < 2; order++) {
        gm_device *device = host_device(64 * MIB);
        gm_pool *pool = pool_on(device, true);
        gm_stream streams[2] = {new_stream(device), new_stream(device)};
        gm_block *block = take(pool, MIB, streams[0]);
        CHECK_OK(gm_pool_record_stream(block, streams[1]));
        begin(pool, streams[0]);
        begin(pool, streams[1]);
        uint64_t before = forbidden(pool);
        gm_pool_free(block);
        finish(pool, streams[order]);
        CHECK_EQ(pending_blocks(pool), 1);
        CHECK_EQ(forbidden(pool), before);
        finish(pool, streams[1 - order]);
        CHECK_EQ(calls(pool, GM_CALL_EVENT_RECORD), 1);
        CHECK_EQ(pending_blocks(pool), 0);
        close_pool(pool);
    }
}

/* Nothing is asked about a stream that captures, not even what stood there before. */
static void
earlier_frees_come_back_after_the_capture(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_stream stream = stalled_stream(device);
    gm_block *block = take(pool, MIB, 0);
    CHECK_OK(gm_pool_record_stream(block, stream));
    gm_pool_free(block);
    begin(pool, stream);
    let_run(device, stream);
    uint64_t before = forbidden(pool);
    CHECK_EQ(pending_blocks(pool), 1);
    CHECK_EQ(forbidden(pool), before);
    finish(pool, stream);
    CHECK_EQ(pending_blocks(pool), 0);
    CHECK_EQ(calls(pool, GM_CALL_EVENT_RECORD), 1);
    close_pool(pool);
}

/* The device may say that the capture goes on when the pool is told that it has ended. */
static void
an_end_that_comes_too_early_marks_nothing(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_stream stream = new_stream(device);
    gm_block *block = take(pool, MIB, 0);
    CHECK_OK(gm_pool_record_stream(block, stream));
    begin(pool, stream);
    uint64_t before = forbidden(pool);
    gm_pool_free(block);
    CHECK_OK(gm_pool_capture_end(pool, stream));
    CHECK_EQ(pending_blocks(pool), 1);
    CHECK_EQ(forbidden(pool), before);
    CHECK_OK(gm_host_set_capturing(device, stream, false));
    CHECK_EQ(pending_blocks(pool), 0);
    CHECK_EQ(calls(pool, GM_CALL_EVENT_RECORD), 1);
    close_pool(pool);
}

static void
a_mark_that_fails_after_a_capture_loses_the_block(void)
{
    gm_device *device = behind_faults(host_device(64 * MIB));
    gm_pool *pool = pool_on(device, true);
    gm_stream stream = new_stream(device);
    gm_block *block = take(pool, MIB, 0);
    CHECK_OK(gm_pool_record_stream(block, stream));
    begin(pool, stream);
    gm_pool_free(block);
    watch_reports();
    fail_nth(device, GM_CALL_EVENT_RECORD, 1, GM_DEVICE_ERROR);
    finish(pool, stream);
    CHECK_REPORT(GM_DEVICE_ERROR,
                 "record an event for a freed block, whose memory is not used again");
    gm_set_report_hook(NULL);
    CHECK_EQ(pending_blocks(pool), 1);
    gm_pool_release(pool);
    gm_device_release(device);
}

/* The ladder neither waits for an event that is not recorded, nor lets the stream wait. */
static void
what_is_due_is_not_waited_for(void)
{
    gm_cross_stream modes[] = {GM_CROSS_STREAM_DONE, GM_CROSS_STREAM_WAIT};
    for (int i = 0; i < 2; i++) {
        gm_device *device = host_device_with_clock(8 * MIB);
        gm_pool_options options = usual_options();
        options.cross_stream = modes[i];
        options.oom_wait_ns = SECOND;
        gm_pool *pool = open_pool(device, &options);
        gm_stream stream = new_stream(device);
        gm_block *block = take(pool, 6 * MIB, 0), *other = NULL;
        CHECK_OK(gm_pool_record_stream(block, stream));
        CHECK_OK(gm_host_set_capturing(device, stream, true));
        uint64_t before = forbidden(pool);
        gm_pool_free(block);
        CHECK_STATUS(allocate(pool, 6 * MIB, 0, &other, NULL), GM_OUT_OF_MEMORY);
        CHECK_EQ(forbidden(pool), before);
        CHECK_EQ(stats_of(pool).pending_blocks, 1);
        CHECK_OK(gm_host_set_capturing(device, stream, false));
        other = take(pool, 6 * MIB, 0);
        gm_pool_free(other);
        close_pool(pool);
    }
}

static void
what_is_due_is_checked(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_stream streams[2] = {new_stream(device), new_stream(device)};
    gm_block *block = take(pool, MIB, 0);
    char text[160] = "";
    CHECK_OK(gm_pool_record_stream(block, streams[0]));
    CHECK_OK(gm_pool_record_stream(block, streams[1]));
    begin(pool, streams[0]);
    gm_pool_free(block);
    CHECK_POOL(pool);
    gm_use *use = GM_CONTAINER_OF(block->use_list.next, gm_use, block_link);
    gm_watch *watch = use->watch;
    CHECK(!gm_list_is_empty(&watch->due));
    use->watch = NULL;
    CHECK_STATUS(gm_pool_check(pool, text, sizeof(text)), GM_INVALID);
    CHECK(strcmp(text, "a mark is due at another stream's watch") == 0);
    use->watch = watch;
    finish(pool, streams[0]);
    CHECK_EQ(pending_blocks(pool), 0);
    close_pool(pool);
}

/* ---- a thread's own stream ------------------------------------------------------- */

static void *
free_elsewhere(void *argument)
{
    gm_pool_free(argument);
    return NULL;
}

/* Frees the block on this thread, or on one that cannot mark this one's stream. */
static void
free_on(gm_block *block, bool elsewhere)
{
    pthread_t thread;
    if (!elsewhere) {
        gm_pool_free(block);
        return;
    }
    CHECK_EQ(pthread_create(&thread, NULL, free_elsewhere, block), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
}

/* A thread's own stream is marked when it is recorded: here that has to wait. */
static void
a_captured_use_of_an_own_stream_is_marked_at_the_end(void)
{
    for (int i = 0; i < 4; i++) {
        bool elsewhere = i % 2 != 0, freed_inside = i / 2 != 0;
        gm_device *device = host_device(64 * MIB);
        gm_pool *pool = pool_on(device, true);
        CHECK_OK(gm_host_stall(device, OWN));
        gm_block *block = take(pool, MIB, 0);
        begin(pool, OWN);
        uint64_t before = forbidden(pool);
        CHECK_OK(gm_pool_record_stream(block, OWN));
        CHECK_OK(gm_pool_record_stream(block, OWN));
        CHECK_POOL(pool);
        CHECK_EQ(block->uses, 1);
        if (freed_inside) {
            free_on(block, elsewhere);
            CHECK_EQ(pending_blocks(pool), 1);
        }
        CHECK_EQ(forbidden(pool), before);
        finish(pool, OWN);
        CHECK_EQ(calls(pool, GM_CALL_EVENT_RECORD), 1);
        if (!freed_inside) {
            free_on(block, elsewhere);
            CHECK_EQ(calls(pool, GM_CALL_EVENT_RECORD), elsewhere ? 1 : 2);
        }
        CHECK_EQ(pending_blocks(pool), 1);
        let_run(device, OWN);
        CHECK_EQ(pending_blocks(pool), 0);
        close_pool(pool);
    }
}

/* A mark from before does not cover what is used inside. */
static void
an_own_stream_is_marked_again_after_its_capture(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_block *block = take(pool, MIB, 0);
    CHECK_OK(gm_pool_record_stream(block, OWN));
    begin(pool, OWN);
    uint64_t before = forbidden(pool);
    CHECK_OK(gm_pool_record_stream(block, OWN));
    free_on(block, true);
    CHECK_EQ(pending_blocks(pool), 1);
    CHECK_EQ(forbidden(pool), before);
    finish(pool, OWN);
    CHECK_EQ(calls(pool, GM_CALL_EVENT_RECORD), 2);
    CHECK_EQ(pending_blocks(pool), 0);
    close_pool(pool);
}

/* It keeps the mark that it was given before. */
static void
an_own_stream_keeps_its_mark_in_a_capture(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_stream stream = new_stream(device);
    CHECK_OK(gm_host_stall(device, OWN));
    gm_block *block = take(pool, MIB, stream);
    CHECK_OK(gm_pool_record_stream(block, OWN));
    begin(pool, stream);
    uint64_t before = forbidden(pool);
    gm_pool_free(block);
    CHECK_EQ(pending_blocks(pool), 1);
    CHECK_EQ(forbidden(pool), before);
    finish(pool, stream);
    CHECK_EQ(pending_blocks(pool), 1);
    CHECK_EQ(calls(pool, GM_CALL_EVENT_RECORD), 1);
    let_run(device, OWN);
    CHECK_EQ(pending_blocks(pool), 0);
    close_pool(pool);
}

static void *
poll_elsewhere(void *argument)
{
    gm_pool_poll(argument);
    return NULL;
}

/* No other thread marks it, however long the capture is over. */
static void
what_an_own_stream_has_due_waits_for_its_thread(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_block *block = take(pool, MIB, 0);
    pthread_t thread;
    CHECK_OK(gm_host_set_capturing(device, OWN, true));
    CHECK_OK(gm_pool_record_stream(block, OWN));
    free_on(block, true);
    CHECK_OK(gm_host_set_capturing(device, OWN, false));
    CHECK_EQ(pthread_create(&thread, NULL, poll_elsewhere, pool), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(calls(pool, GM_CALL_EVENT_RECORD), 0);
    CHECK_EQ(stats_of(pool).pending_blocks, 1);
    CHECK_EQ(pending_blocks(pool), 0);
    CHECK_EQ(calls(pool, GM_CALL_EVENT_RECORD), 1);
    close_pool(pool);
}

typedef struct own_capture {
    gm_pool *pool;
    gm_status first, second;
} own_capture;

static void *
capture_own(void *argument)
{
    own_capture *self = argument;
    self->first = gm_pool_capture_end(self->pool, OWN);
    self->second = gm_pool_capture_begin(self->pool, OWN);
    if (self->second == GM_OK) {
        self->second = gm_pool_capture_end(self->pool, OWN);
    }
    return NULL;
}

static void
an_own_stream_is_another_one_in_each_thread(void)
{
    gm_pool *pool = either_pool(1);
    own_capture other = {.pool = pool};
    pthread_t thread;
    CHECK_OK(gm_pool_capture_begin(pool, OWN));
    CHECK_EQ(pthread_create(&thread, NULL, capture_own, &other), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_STATUS(other.first, GM_INVALID);
    CHECK_OK(other.second);
    CHECK_OK(gm_pool_capture_end(pool, OWN));
    close_pool(pool);
}

/* ---- threads --------------------------------------------------------------------- */

enum {
    WORKERS = 3,
    ROUNDS = 400
};

typedef struct worker {
    gm_pool *pool;
    gm_stream own, other;
    pthread_t thread;
} worker;

/* Blocks of one stream that another one uses, which captures now and then. */
static void *
work(void *argument)
{
    worker *self = argument;
    for (size_t i = 0; i < ROUNDS; i++) {
        gm_block *blocks[2];
        for (size_t j = 0; j < 2; j++) {
            blocks[j] = take(self->pool, (1 + (i + j) % 7) * 100 * KIB, self->own);
            CHECK_OK(gm_pool_record_stream(blocks[j], self->other));
        }
        gm_pool_free(blocks[1]);
        gm_pool_free(blocks[0]);
    }
    return NULL;
}

static void
captures_come_and_go_beside_threads(void)
{
    gm_device *device = host_device(4096 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_stream stream = new_stream(device);
    worker workers[WORKERS];
    for (int i = 0; i < WORKERS; i++) {
        workers[i] = (worker){.pool = pool, .own = new_stream(device), .other = stream};
        CHECK_EQ(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (size_t i = 0; i < ROUNDS; i++) {
        CHECK_OK(gm_pool_capture_begin(pool, stream));
        gm_block *block = take(pool, (1 + i % 5) * 100 * KIB, stream);
        CHECK_EQ(kind_of(block), GM_ARENA_STABLE);
        CHECK_OK(gm_pool_record_stream(block, workers[i % WORKERS].own));
        gm_pool_free(block);
        CHECK(trim_all(pool).capturing);
        CHECK_OK(gm_pool_capture_end(pool, stream));
    }
    for (int i = 0; i < WORKERS; i++) {
        CHECK_EQ(pthread_join(workers[i].thread, NULL), 0);
    }
    CHECK_EQ(pending_blocks(pool), 0);
    CHECK_EQ(stats_of(pool).allocated_bytes.all.current, 0);
    close_pool(pool);
}

static const gm_test tests[] = {
    {"uses of a capturing stream wait without an event",
     uses_of_a_capturing_stream_wait_without_an_event},
    {"uses of blocks of a capture wait without an event",
     uses_of_blocks_of_a_capture_wait_without_an_event},
    {"a use waits for both captures", a_use_waits_for_both_captures},
    {"earlier frees come back after the capture",
     earlier_frees_come_back_after_the_capture},
    {"an end that comes too early marks nothing",
     an_end_that_comes_too_early_marks_nothing},
    {"a mark that fails after a capture loses the block",
     a_mark_that_fails_after_a_capture_loses_the_block},
    {"what is due is not waited for", what_is_due_is_not_waited_for},
    {"what is due is checked", what_is_due_is_checked},
    {"a captured use of an own stream is marked at the end",
     a_captured_use_of_an_own_stream_is_marked_at_the_end},
    {"an own stream is marked again after its capture",
     an_own_stream_is_marked_again_after_its_capture},
    {"what an own stream has due waits for its thread",
     what_an_own_stream_has_due_waits_for_its_thread},
    {"an own stream keeps its mark in a capture",
     an_own_stream_keeps_its_mark_in_a_capture},
    {"an own stream is another one in each thread",
     an_own_stream_is_another_one_in_each_thread},
    {"captures come and go beside threads", captures_come_and_go_beside_threads},
};

GM_TEST_MAIN(tests)
