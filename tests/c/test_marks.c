/* test_marks.c - what is known of the work on freed memory: many marks on one stream, each
 * done in its turn.
 */
#include <pthread.h>

#include "device/handles.h"
#include "steal_kinds.h"

enum {
    MARKS = 40 /* more than a ring holds */
};

/* Frees a MiB and marks it, MARKS times; the blocks between them stay. */
static void
mark_often(gm_pool *pool, gm_stream stream, gm_block *guards[MARKS])
{
    gm_block *blocks[MARKS];
    for (int i = 0; i < MARKS; i++) {
        blocks[i] = take(pool, MIB, stream);
        guards[i] = take(pool, MIB, stream);
    }
    for (int i = 0; i < MARKS; i++) {
        gm_pool_free(blocks[i]);
        CHECK_EQ(trim_all(pool).released, 0);
    }
}

static void
more_marks_than_a_ring_holds_are_all_done_later(void)
{
    gm_device *device = behind_faults(host_with(256 * MIB, true));
    gm_pool *pool = stealing_pool(device, GM_STEAL_NEVER, SIZE_MAX);
    gm_stream stream = stalled_stream(device);
    gm_block *guards[MARKS];
    for (int round = 0; round < 2; round++) { /* the second begins inside the ring */
        mark_often(pool, stream, guards);
        CHECK_EQ(counters_of(device).calls[GM_CALL_EVENT_CREATE], GM_FENCES);
        size_t waiting = 0;
        CHECK_OK(gm_host_waiting_work(gm_fault_inner(device), stream, &waiting));
        CHECK_EQ(waiting, MARKS);
        for (unsigned i = 1; i <= MARKS; i++) {
            CHECK_OK(gm_host_release_work(gm_fault_inner(device), stream, 1, NULL));
            size_t released = trim_all(pool).released;
            if (i < GM_FENCES) {
                CHECK_EQ(released, MIB);
            }
            else { /* the newest mark was moved with each free */
                CHECK_EQ(released, i < MARKS ? 0 : (MARKS - GM_FENCES + 1) * MIB);
            }
            CHECK_POOL(pool);
        }
        CHECK_EQ(reserved(pool), MARKS * MIB);
        for (int i = 0; i < MARKS; i++) {
            gm_pool_free(guards[i]);
        }
        let_run(device, stream);
        (void)trim_all(pool);
        CHECK_EQ(reserved(pool), 0);
        CHECK_OK(gm_host_stall(gm_fault_inner(device), stream));
    }
    let_run(device, stream);
    close_pool(pool);
}

static void
a_full_ring_has_room_for_the_last_mark(void)
{
    gm_device *device = host_with(256 * MIB, true);
    gm_pool *pool = stealing_pool(device, GM_STEAL_NEVER, SIZE_MAX);
    gm_stream stream = stalled_stream(device);
    gm_block *guards[MARKS];
    mark_often(pool, stream, guards);
    gm_pool_stream_retired(pool, stream);
    CHECK_OK(device->ops->stream_destroy(device, stream));
    for (int i = 0; i < MARKS; i++) { /* covered, though later */
        gm_pool_free(guards[i]);
    }
    for (unsigned i = 1; i < GM_FENCES; i++) {
        CHECK_OK(gm_host_release_work(device, stream, 1, NULL));
        gm_pool_poll(pool);
        CHECK_EQ(stats_of(pool).lanes, 1);
        CHECK_POOL(pool);
    }
    let_run(device, stream);
    gm_pool_poll(pool);
    CHECK_EQ(stats_of(pool).lanes, 0);
    CHECK_EQ(stats_of(pool).unplaced_bytes, 2 * MARKS * MIB);
    close_pool(pool);
}

static void
a_mark_that_cannot_be_moved_is_made_anew(void)
{
    gm_device *device = behind_faults(host_with(256 * MIB, true));
    gm_pool *pool = stealing_pool(device, GM_STEAL_NEVER, SIZE_MAX);
    gm_stream stream = stalled_stream(device);
    gm_block *guards[MARKS];
    mark_often(pool, stream, guards);
    const gm_marker *marker = &gm_block_lane(guards[0])->marker;
    CHECK_EQ(marker->count, GM_FENCES);
    gm_pool_free(guards[MARKS - 1]);
    fail_nth(device, GM_CALL_EVENT_RECORD, 1, GM_DEVICE_ERROR);
    CHECK_EQ(trim_all(pool).released, 0);
    CHECK_EQ(gm_fault_injected(device), 1);
    CHECK_EQ(marker->count, GM_FENCES - 1);
    gm_fault_arm(device, NULL);
    /* Until then the marks that are left are good. */
    CHECK_OK(gm_host_release_work(gm_fault_inner(device), stream, 1, NULL));
    CHECK_EQ(trim_all(pool).released, MIB);
    let_run(device, stream);
    CHECK_EQ(trim_all(pool).released, MARKS * MIB);
    CHECK_POOL(pool);
    for (int i = 0; i < MARKS - 1; i++) {
        gm_pool_free(guards[i]);
    }
    close_pool(pool);
}

/* On the own stream of a thread that ends: one block is freed before a mark, one after. */
static void *
mark_between(void *argument)
{
    gm_pool *pool = argument;
    gm_device *device = gm_pool_device(pool);
    CHECK_OK(gm_host_stall(device, GM_STREAM_PER_THREAD));
    gm_block *first = take(pool, 2 * MIB, GM_STREAM_PER_THREAD);
    gm_block *guard = take(pool, MIB, GM_STREAM_PER_THREAD);
    gm_block *second = take(pool, 4 * MIB, GM_STREAM_PER_THREAD);
    gm_pool_free(first);
    CHECK_EQ(trim_all(pool).released, 0);
    gm_pool_free(second);
    let_run(device, GM_STREAM_PER_THREAD);
    return guard;
}

static void
old_marks_of_another_thread_count(void)
{
    gm_device *device = host_with(64 * MIB, true);
    gm_pool *pool = stealing_pool(device, GM_STEAL_NEVER, SIZE_MAX);
    pthread_t thread;
    void *guard = NULL;
    CHECK_EQ(pthread_create(&thread, NULL, mark_between, pool), 0);
    CHECK_EQ(pthread_join(thread, &guard), 0);
    /* Nobody can mark that stream any more; what was marked is known. */
    CHECK_EQ(trim_all(pool).released, 2 * MIB);
    CHECK_POOL(pool);
    gm_pool_free(guard);
    gm_pool_close(pool, SECOND);
    close_pool(pool);
}

static const gm_test tests[] = {
    {"more marks than a ring holds are all done later",
     more_marks_than_a_ring_holds_are_all_done_later},
    {"a full ring has room for the last mark", a_full_ring_has_room_for_the_last_mark},
    {"a mark that cannot be moved is made anew",
     a_mark_that_cannot_be_moved_is_made_anew},
    {"old marks of another thread count", old_marks_of_another_thread_count},
};

GM_TEST_MAIN(tests)
