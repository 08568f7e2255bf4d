/* test_ladder.c - what is tried before an allocation fails, and what the failure says.
 */
#include <pthread.h>

#include "pool_kinds.h"

static gm_pool *
limited_pool(gm_device *device, size_t limit, size_t headroom)
{
    gm_pool_options options = usual_options();
    options.limit = limit;
    options.headroom = headroom;
    return open_pool(device, &options);
}

/* The request fails, for this reason, and leaves as much reserved as there was. */
static gm_oom
check_oom(gm_pool *pool, size_t size, gm_stream stream, gm_oom_reason reason)
{
    size_t before = reserved(pool);
    gm_block *block = NULL;
    gm_oom oom;
    memset(&oom, 0xA5, sizeof(oom));
    CHECK_STATUS(allocate(pool, size, stream, &block, &oom), GM_OUT_OF_MEMORY);
    CHECK(block == NULL);
    CHECK_EQ(oom.reason, reason);
    CHECK_EQ(oom.requested, size);
    CHECK_EQ(reserved(pool), before);
    CHECK_EQ(oom.reserved, before);
    CHECK_EQ(oom.used + oom.cached + oom.pending, before);
    CHECK_POOL(pool);
    return oom;
}

/* ---- what moves ------------------------------------------------------------------ */

static void
only_what_was_missing_moves(void)
{
    gm_device *device = host_device(32 * MIB);
    gm_pool_options options = usual_options();
    options.steal = GM_STEAL_NEVER;
    gm_pool *pool = open_pool(device, &options);
    gm_stream other = new_stream(device);
    /* A free block with pages at its start, and addresses without any behind them. */
    gm_pool_free(take(pool, 24 * MIB, other));
    gm_block *block = take(pool, 16 * MIB, 0);
    CHECK_EQ(stats_of(pool).flushed_bytes, 8 * MIB);
    CHECK_EQ(stats_of(pool).cached_bytes, 16 * MIB);
    CHECK_POOL(pool);

    /* With holes between its pages: the last of them. */
    gm_block *first = take(pool, 8 * MIB, other), *second = take(pool, 8 * MIB, other);
    gm_pool_free(first);
    gm_block *third = take(pool, 6 * MIB, 0);
    CHECK_EQ(stats_of(pool).flushed_bytes, 14 * MIB);
    gm_pool_free(second);
    CHECK_EQ(stats_of(pool).cached_bytes, 10 * MIB);
    gm_block *fourth = take(pool, 9 * MIB, 0);
    CHECK_EQ(stats_of(pool).flushed_bytes, 23 * MIB);
    CHECK_EQ(stats_of(pool).cached_bytes, MIB);
    CHECK_POOL(pool);
    gm_pool_free(block);
    gm_pool_free(third);
    gm_pool_free(fourth);
    close_pool(pool);
}

/* ---- reasons --------------------------------------------------------------------- */

static void
reasons_have_names(void)
{
    CHECK(strcmp(gm_oom_reason_name(GM_OOM_SHORTAGE), "shortage") == 0);
    CHECK(strcmp(gm_oom_reason_name(GM_OOM_FRAGMENTATION), "fragmentation") == 0);
    CHECK(strcmp(gm_oom_reason_name(GM_OOM_LIMIT), "limit") == 0);
    CHECK(strcmp(gm_oom_reason_name(GM_OOM_HEADROOM), "headroom") == 0);
    CHECK(strcmp(gm_oom_reason_name(GM_OOM_OTHERS), "others") == 0);
    CHECK(strcmp(gm_oom_reason_name(GM_OOM_REASON_COUNT), "unknown") == 0);
}

static void
live_blocks_are_a_shortage(void)
{
    gm_device *device = host_device(32 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_block *held = take(pool, 20 * MIB, 0);
    gm_oom oom = check_oom(pool, 13 * MIB, 0, GM_OOM_SHORTAGE);
    CHECK_EQ(oom.used, 20 * MIB);
    CHECK_EQ(oom.device_free, 12 * MIB);
    CHECK_EQ(oom.device_total, 32 * MIB);
    CHECK_EQ(oom.limit, SIZE_MAX);
    CHECK_EQ(oom.largest_free, 0);
    gm_pool_free(held);
    close_pool(pool);
}

static void
a_limit_and_a_headroom_are_named(void)
{
    for (int paging = 0; paging < 2; paging++) {
        gm_device *device = host_device(64 * MIB);
        gm_pool_options options = usual_options();
        options.limit = 24 * MIB;
        options.paging = paging != 0;
        gm_pool *pool = open_pool(device, &options);
        gm_block *held = take(pool, 16 * MIB, 0);
        gm_oom oom = check_oom(pool, 12 * MIB, 0, GM_OOM_LIMIT);
        CHECK_EQ(oom.limit, 24 * MIB);
        options.limit = SIZE_MAX;
        options.headroom = 40 * MIB;
        CHECK_OK(gm_pool_change_options(pool, &options));
        oom = check_oom(pool, 12 * MIB, 0, GM_OOM_HEADROOM);
        CHECK_EQ(oom.headroom, 40 * MIB);
        CHECK_EQ(oom.device_free, 48 * MIB);
        gm_pool_free(held);
        close_pool(pool);
    }
}

static void
memory_in_other_hands_is_named(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    CHECK_OK(gm_host_occupy(device, 50 * MIB));
    gm_oom oom = check_oom(pool, 20 * MIB, 0, GM_OOM_OTHERS);
    CHECK_EQ(oom.device_free, 14 * MIB);
    /* More than the whole device is a shortage, whoever holds it. */
    (void)check_oom(pool, 65 * MIB, 0, GM_OOM_SHORTAGE);
    CHECK_OK(gm_host_occupy(device, 0));
    close_pool(pool);
}

static void
cached_memory_that_cannot_move_is_fragmentation(void)
{
    gm_device *device = host_device(32 * MIB);
    gm_pool *pool = pool_on(device, false);
    gm_block *guard = take(pool, 2 * MIB, 0);
    CHECK_EQ(reserved(pool), 20 * MIB);
    gm_oom oom = check_oom(pool, 19 * MIB, 0, GM_OOM_FRAGMENTATION);
    CHECK_EQ(oom.largest_free, 18 * MIB);
    CHECK_EQ(oom.stranded, 0);
    CHECK_EQ(oom.cached, 18 * MIB);

    /* What lies in another stream's arena and cannot leave it is stranded. */
    gm_stream other = new_stream(device);
    oom = check_oom(pool, 18 * MIB, other, GM_OOM_FRAGMENTATION);
    CHECK_EQ(oom.largest_free, 0);
    CHECK_EQ(oom.stranded, 18 * MIB);
    gm_pool_free(guard);
    close_pool(pool);
}

static void
a_device_that_does_not_answer_is_full(void)
{
    gm_device *device = behind_faults(host_device(32 * MIB));
    gm_pool *pool = pool_on(device, true);
    gm_fault_plan silent = {.call = GM_CALL_MEMORY_INFO,
                            .nth = 1,
                            .for_ever = true,
                            .status = GM_DEVICE_ERROR};
    gm_fault_arm(device, &silent);
    gm_oom oom = check_oom(pool, 33 * MIB, 0, GM_OOM_SHORTAGE);
    CHECK_EQ(oom.device_free, 0);
    CHECK_EQ(oom.device_total, 32 * MIB);

    /* A pool that must leave room asks first; without an answer it goes on. */
    gm_pool *careful = limited_pool(device, SIZE_MAX, 16 * MIB);
    gm_pool_free(take(careful, MIB, 0));
    gm_fault_arm(device, NULL);
    (void)check_oom(careful, 17 * MIB, 0, GM_OOM_HEADROOM);
    gm_pool_release(careful);
    close_pool(pool);
}

static void
a_caller_need_not_ask_why(void)
{
    gm_device *device = host_device(8 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_block *block = NULL;
    gm_request request = {.size = 9 * MIB};
    CHECK_STATUS(gm_pool_alloc(pool, &request, &block, NULL), GM_OUT_OF_MEMORY);
    CHECK_EQ(stats_of(pool).num_alloc_retries, 1);
    close_pool(pool);
}

/* ---- rungs ----------------------------------------------------------------------- */

static void
idle_memory_moves_between_streams(void)
{
    for (int paging = 0; paging < 2; paging++) {
        gm_device *device = host_device(32 * MIB);
        gm_pool *pool = pool_on(device, paging != 0);
        gm_stream other = new_stream(device);
        gm_block *idle = take(pool, 24 * MIB, other);
        gm_block *guard = take(pool, 2 * MIB, other);
        gm_pool_free(idle);
        gm_block *block = take(pool, 16 * MIB, 0);
        gm_pool_stats stats = stats_of(pool);
        CHECK_EQ(stats.num_alloc_retries, 1);
        CHECK_EQ(stats.flushes, 1);
        /* Of pages as many as were missing, of segments the whole. */
        CHECK_EQ(stats.flushed_bytes, paging != 0 ? 10 * MIB : 24 * MIB);
        CHECK_EQ(stats.num_sync_all_streams, 0);
        gm_pool_free(block);
        gm_pool_free(guard);
        close_pool(pool);
    }
}

static void
the_own_stream_gives_first(void)
{
    gm_device *device = host_device(32 * MIB);
    gm_pool_options options = usual_options();
    options.steal = GM_STEAL_NEVER;
    gm_pool *pool = open_pool(device, &options);
    gm_stream other = new_stream(device);
    gm_pool_free(take(pool, 8 * MIB, other));
    gm_block *low = take(pool, 12 * MIB, 0), *guard = take(pool, 2 * MIB, 0);
    gm_pool_free(low);
    /* 14 MiB take the 10 that nobody has, and 4 of the 12 below the guard. */
    gm_block *block = take(pool, 14 * MIB, 0);
    CHECK_EQ(stats_of(pool).stolen_bytes, 4 * MIB);
    CHECK_EQ(stats_of(pool).flushed_bytes, 0);
    gm_block *again = take(pool, 8 * MIB, other);
    CHECK_EQ(stats_of(pool).num_alloc_retries, 1);
    gm_pool_free(again);
    gm_pool_free(block);
    gm_pool_free(guard);
    close_pool(pool);
}

static void
streams_can_keep_what_they_have(void)
{
    gm_device *device = host_device(32 * MIB);
    gm_pool_options options = usual_options();
    options.cross_stream = GM_CROSS_STREAM_NEVER;
    options.oom_wait_ns = SECOND;
    gm_pool *pool = open_pool(device, &options);
    gm_stream other = new_stream(device);
    gm_pool_free(take(pool, 24 * MIB, other));
    gm_oom oom = check_oom(pool, 16 * MIB, 0, GM_OOM_FRAGMENTATION);
    CHECK_EQ(oom.stranded, 24 * MIB);
    CHECK_EQ(stats_of(pool).flushes, 0);
    gm_block *block = take(pool, 28 * MIB, other);
    gm_pool_free(block);
    options.cross_stream = GM_CROSS_STREAM_DONE;
    CHECK_OK(gm_pool_change_options(pool, &options));
    gm_pool_free(take(pool, 16 * MIB, 0));
    close_pool(pool);
}

/* A pool on a sim device that lags behind, which waits up to `wait_ns`. */
static gm_pool *
lagging_pool(uint64_t lag, uint64_t wait_ns, gm_cross_stream cross_stream)
{
    gm_sim_options sim = {
        .capacity = 32 * MIB, .page_size = PAGE, .paging = true, .lag = lag};
    gm_pool_options options = usual_options();
    options.oom_wait_ns = wait_ns;
    options.cross_stream = cross_stream;
    return open_pool(open_sim(&sim), &options);
}

static void
unfinished_work_is_waited_for(void)
{
    gm_cross_stream modes[] = {GM_CROSS_STREAM_DONE, GM_CROSS_STREAM_NEVER};
    for (int i = 0; i < 2; i++) {
        /* A lag of 500 ticks is half a millisecond. */
        gm_pool *pool = lagging_pool(500, SECOND, modes[i]);
        gm_stream other = new_stream(gm_pool_device(pool));
        gm_block *block = take(pool, 24 * MIB, 0);
        CHECK_OK(gm_pool_record_stream(block, other));
        gm_pool_free(block);
        block = take(pool, 30 * MIB, 0);
        CHECK(stats_of(pool).num_sync_all_streams >= 1);
        CHECK_EQ(stats_of(pool).num_alloc_retries, 1);
        gm_pool_free(block);

        /* The last use on the own stream counts, too, before pages move elsewhere. */
        if (modes[i] == GM_CROSS_STREAM_DONE) {
            uint64_t waits = stats_of(pool).num_sync_all_streams;
            block = take(pool, 20 * MIB, other);
            CHECK_EQ(stats_of(pool).num_sync_all_streams, waits + 1);
            gm_pool_free(block);
        }
        else {
            gm_oom oom = check_oom(pool, 20 * MIB, other, GM_OOM_FRAGMENTATION);
            CHECK_EQ(oom.stranded, 30 * MIB);
        }
        gm_pool_close(pool, SECOND);
        close_pool(pool);
    }
}

static void
the_wait_is_bounded(void)
{
    gm_pool *pool = lagging_pool(5000, 2000 * 1000, GM_CROSS_STREAM_DONE);
    gm_device *device = gm_pool_device(pool);
    gm_stream other = new_stream(device);
    gm_block *block = take(pool, 24 * MIB, 0);
    CHECK_OK(gm_pool_record_stream(block, other));
    gm_pool_free(block);
    uint64_t start = device->ops->clock_ns(device);
    gm_oom oom = check_oom(pool, 16 * MIB, 0, GM_OOM_SHORTAGE);
    CHECK_EQ(oom.pending, 24 * MIB);
    CHECK_EQ(device->ops->clock_ns(device) - start, 2000 * 1000);
    CHECK_EQ(stats_of(pool).num_sync_all_streams, 1);
    gm_pool_close(pool, SECOND);
    close_pool(pool);
}

static void
a_full_pool_without_work_does_not_wait(void)
{
    gm_pool *pool = lagging_pool(0, UINT64_MAX, GM_CROSS_STREAM_DONE);
    gm_block *held = take(pool, 20 * MIB, 0);
    (void)check_oom(pool, 16 * MIB, 0, GM_OOM_SHORTAGE);
    CHECK_EQ(stats_of(pool).num_sync_all_streams, 0);
    gm_pool_free(held);
    close_pool(pool);
}

/* ---- failures on the way --------------------------------------------------------- */

static void
what_cannot_be_taken_back_is_reported(void)
{
    gm_device *device = behind_faults(host_device(32 * MIB));
    gm_pool *pool = pool_on(device, true);
    gm_stream other = new_stream(device);
    gm_pool_free(take(pool, 24 * MIB, other));
    watch_reports();
    fail_nth(device, GM_CALL_UNMAP, 1, GM_DEVICE_ERROR);
    gm_oom oom = check_oom(pool, 16 * MIB, 0, GM_OOM_FRAGMENTATION);
    CHECK_EQ(oom.stranded, 24 * MIB);
    CHECK_REPORT(GM_DEVICE_ERROR, "take idle memory back");

    /* Pages of an attempt that failed go back; one that cannot is lost. (What another
     * program took just now is still told to be free.) */
    gm_block *held = take(pool, 4 * MIB, other), *block = NULL;
    (void)trim_all(pool);
    gm_host_set_reported_free(gm_fault_inner(device), 32 * MIB);
    fail_nth(device, GM_CALL_PAGE_DESTROY, 1, GM_DEVICE_ERROR);
    CHECK_STATUS(allocate(pool, 30 * MIB, 0, &block, NULL), GM_OUT_OF_MEMORY);
    CHECK_REPORT(GM_DEVICE_ERROR, "destroy a page after a failed allocation");
    gm_set_report_hook(NULL);
    CHECK_EQ(stats_of(pool).quarantined, PAGE);
    CHECK_EQ(reserved(pool), 4 * MIB + PAGE);
    CHECK_POOL(pool);
    gm_pool_free(held);
    gm_pool_release(pool);
    CHECK_EQ(counters_of(device).memory_now, PAGE);
    gm_device_release(device);
}

typedef struct later {
    gm_device *device;
    gm_stream stream;
} later;

static void *
release_later(void *argument)
{
    later *self = argument;
    usleep(50 * 1000);
    let_run(self->device, self->stream);
    return NULL;
}

/* Memory that comes free while the ladder waits for something else. */
static void
a_wait_sees_what_comes_by_itself(void)
{
    gm_device *device = host_device(16 * MIB);
    gm_pool_options options = usual_options();
    options.oom_wait_ns = SECOND / 2;
    gm_pool *pool = open_pool(device, &options);
    gm_stream slow = stalled_stream(device), fast = stalled_stream(device);
    gm_block *first = take(pool, 6 * MIB, 0), *second = take(pool, 8 * MIB, 0);
    CHECK_OK(gm_pool_record_stream(first, slow));
    CHECK_OK(gm_pool_record_stream(second, fast));
    gm_pool_free(first);
    gm_pool_free(second);
    later self = {device, fast};
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, release_later, &self), 0);
    gm_block *block = NULL;
    gm_status status = allocate(pool, 8 * MIB, 0, &block, NULL);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_OK(status);
    gm_pool_free(block);
    let_run(device, slow);
    close_pool(pool);
}

/* With cross_stream "wait" the device waits, not the host. */
static void
an_inserted_wait_frees_without_the_host(void)
{
    gm_device *device = host_device(16 * MIB);
    gm_pool_options options = usual_options();
    for (unsigned mode = GM_CROSS_STREAM_DONE; mode <= GM_CROSS_STREAM_NEVER; mode++) {
        options.cross_stream = (gm_cross_stream)mode;
        gm_pool *pool = open_pool(gm_device_retain(device), &options);
        gm_stream slow = stalled_stream(device);
        gm_block *first = take(pool, 12 * MIB, 0), *second = NULL;
        CHECK_OK(gm_pool_record_stream(first, slow));
        unsigned char value = 7;
        gm_devptr address = gm_block_address(first);
        CHECK_OK(device->ops->fill_async(device, address, &value, 1, 100, slow));
        gm_pool_free(first);
        gm_status status = allocate(pool, 12 * MIB, 0, &second, NULL);
        CHECK_EQ(stats_of(pool).num_sync_all_streams, 0);
        if (mode == GM_CROSS_STREAM_WAIT) {
            CHECK_OK(status);
            CHECK_EQ(gm_block_address(second), address);
            value = 9; /* queued behind what the slow stream still does */
            CHECK_OK(device->ops->fill_async(device, address, &value, 1, 100, 0));
            let_run(device, slow);
            CHECK_OK(device->ops->stream_synchronize(device, 0, SECOND));
            CHECK_EQ(*(unsigned char *)gm_device_host_pointer(address), 9);
        }
        else {
            CHECK_STATUS(status, GM_OUT_OF_MEMORY);
            let_run(device, slow);
        }
        gm_pool_free(second);
        CHECK_OK(device->ops->stream_destroy(device, slow));
        gm_pool_release(pool);
    }
    gm_device_release(device);
}

static const gm_test tests[] = {
    {"only what was missing moves", only_what_was_missing_moves},
    {"reasons have names", reasons_have_names},
    {"live blocks are a shortage", live_blocks_are_a_shortage},
    {"a limit and a headroom are named", a_limit_and_a_headroom_are_named},
    {"memory in other hands is named", memory_in_other_hands_is_named},
    {"cached memory that cannot move is fragmentation",
     cached_memory_that_cannot_move_is_fragmentation},
    {"a device that does not answer is full", a_device_that_does_not_answer_is_full},
    {"a caller need not ask why", a_caller_need_not_ask_why},
    {"idle memory moves between streams", idle_memory_moves_between_streams},
    {"the own stream gives first", the_own_stream_gives_first},
    {"streams can keep what they have", streams_can_keep_what_they_have},
    {"unfinished work is waited for", unfinished_work_is_waited_for},
    {"the wait is bounded", the_wait_is_bounded},
    {"a full pool without work does not wait", a_full_pool_without_work_does_not_wait},
    {"what cannot be taken back is reported", what_cannot_be_taken_back_is_reported},
    {"a wait sees what comes by itself", a_wait_sees_what_comes_by_itself},
    {"an inserted wait frees without the host",
     an_inserted_wait_frees_without_the_host},
};

GM_TEST_MAIN(tests)
