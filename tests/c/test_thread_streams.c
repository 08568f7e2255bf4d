/* test_thread_streams.c - the handle that means another stream in each thread: what such
 * a stream frees moves only when that stream is done, whoever asks.
 */
#include <pthread.h>
#include <semaphore.h>

#include "device/handles.h"
#include "pool/internal.h"
#include "pool_kinds.h"

#define OWN GM_STREAM_PER_THREAD

/* ---- a thread that does what it is told ------------------------------------------ */

typedef struct actor {
    gm_pool *pool;
    gm_device *device; /* the host device itself */
    gm_block *block;
    size_t size;
    pthread_t thread;
    sem_t told, done;
    void (*act)(struct actor *actor);
} actor;

static void *
follow(void *argument)
{
    actor *self = argument;
    for (;;) {
        while (sem_wait(&self->told) != 0) {
        }
        if (self->act == NULL) {
            return NULL;
        }
        self->act(self);
        CHECK_EQ(sem_post(&self->done), 0);
    }
}

static void
start(actor *self, gm_pool *pool)
{
    *self = (actor){.pool = pool, .device = gm_fault_inner(gm_pool_device(pool))};
    CHECK_EQ(sem_init(&self->told, 0, 0), 0);
    CHECK_EQ(sem_init(&self->done, 0, 0), 0);
    CHECK_EQ(pthread_create(&self->thread, NULL, follow, self), 0);
}

static void
tell(actor *self, void (*act)(actor *actor))
{
    self->act = act;
    CHECK_EQ(sem_post(&self->told), 0);
    while (sem_wait(&self->done) != 0) {
    }
}

static void
end(actor *self)
{
    self->act = NULL;
    CHECK_EQ(sem_post(&self->told), 0);
    CHECK_EQ(pthread_join(self->thread, NULL), 0);
    CHECK_EQ(sem_destroy(&self->told), 0);
    CHECK_EQ(sem_destroy(&self->done), 0);
}

static void
stall(actor *self)
{
    CHECK_OK(gm_host_stall(self->device, OWN));
}

static void
release_work(actor *self)
{
    let_run(self->device, OWN);
}

/* Queues work on the actor's block on its own stream. */
static void
fill(actor *self)
{
    unsigned char pattern = 7;
    CHECK_OK(self->device->ops->fill_async(self->device, gm_block_address(self->block),
                                           &pattern, 1, 100, OWN));
}

static void
use_and_free(actor *self)
{
    self->block = take(self->pool, self->size, OWN);
    fill(self);
    gm_pool_free(self->block);
}

static void
pass_by(actor *self)
{
    gm_pool_free(take(self->pool, 1000, OWN));
}

static void
pass_by_often(actor *self)
{
    for (int i = 0; i < 100; i++) {
        pass_by(self);
    }
}

static void
record(actor *self)
{
    CHECK_OK(gm_pool_record_stream(self->block, OWN));
}

static void
free_it(actor *self)
{
    gm_pool_free(self->block);
}

static void
retire(actor *self)
{
    gm_pool_stream_retired(self->pool, OWN);
}

static uint64_t
calls(gm_pool *pool, gm_device_call call)
{
    return counters_of(gm_pool_device(pool)).calls[call];
}

static size_t
released_by_trim(gm_pool *pool, uint64_t timeout_ns)
{
    gm_trim_request request = {.timeout_ns = timeout_ns};
    gm_trim_report report;
    CHECK_OK(gm_pool_trim(pool, &request, &report));
    CHECK_POOL(pool);
    return report.released;
}

/* ---- memory that was freed on such a stream -------------------------------------- */

static void
unfinished_work_of_another_thread_keeps_its_memory(void)
{
    gm_device *device = host_device(16 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_block *other = NULL;
    actor thread;
    start(&thread, pool);
    thread.size = 12 * MIB;
    tell(&thread, stall);
    tell(&thread, use_and_free);
    CHECK_STATUS(allocate(pool, 12 * MIB, 0, &other, NULL), GM_OUT_OF_MEMORY);
    /* This thread's own stream is idle; it is another one. */
    CHECK_STATUS(allocate(pool, 12 * MIB, OWN, &other, NULL), GM_OUT_OF_MEMORY);
    CHECK_EQ(released_by_trim(pool, 1000), 0);
    CHECK_EQ(calls(pool, GM_CALL_EVENT_RECORD), 0);
    /* The thread itself may use it at once. */
    tell(&thread, use_and_free);
    CHECK_EQ(reserved(pool), 12 * MIB);

    tell(&thread, release_work);
    other = take(pool, 12 * MIB, 0);
    gm_pool_free(other);
    end(&thread);
    close_pool(pool);
}

static void
work_of_a_thread_that_has_ended_keeps_its_memory(void)
{
    gm_device *device = host_device(16 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_block *other = NULL;
    actor thread;
    start(&thread, pool);
    thread.size = 12 * MIB;
    tell(&thread, stall);
    tell(&thread, use_and_free);
    end(&thread);
    CHECK_STATUS(allocate(pool, 12 * MIB, 0, &other, NULL), GM_OUT_OF_MEMORY);
    CHECK_EQ(released_by_trim(pool, 1000), 0);
    gm_pool_release(pool);
    CHECK_EQ(counters_of(device).memory_now, 12 * MIB);
    gm_device_release(device);
}

static void
the_owner_marks_its_stream_when_it_passes_by(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    actor thread;
    start(&thread, pool);
    thread.size = 8 * MIB;
    tell(&thread, use_and_free);
    tell(&thread, pass_by_often);
    CHECK_EQ(calls(pool, GM_CALL_EVENT_RECORD), 0);
    /* Without a timeout nobody is asked, but a wish is left. */
    CHECK_EQ(released_by_trim(pool, 0), 0);
    tell(&thread, pass_by);
    CHECK(calls(pool, GM_CALL_EVENT_RECORD) >= 1);
    CHECK_EQ(released_by_trim(pool, 0), 8 * MIB + PAGE);

    /* A mark that stands behind unfinished work does not count yet. */
    tell(&thread, stall);
    tell(&thread, use_and_free);
    CHECK_EQ(released_by_trim(pool, 0), 0);
    tell(&thread, pass_by);
    CHECK_EQ(released_by_trim(pool, 0), 0);
    tell(&thread, release_work);
    CHECK_EQ(released_by_trim(pool, 0), 8 * MIB + PAGE);

    /* One wish costs a few marks, however often the owner comes. */
    tell(&thread, use_and_free);
    CHECK_EQ(released_by_trim(pool, 0), 0);
    uint64_t before = calls(pool, GM_CALL_EVENT_RECORD);
    tell(&thread, pass_by_often);
    CHECK(calls(pool, GM_CALL_EVENT_RECORD) - before <= 10);
    CHECK_EQ(calls(pool, GM_CALL_THREADS_SYNCHRONIZE), 0);
    end(&thread);
    close_pool(pool);
}

static void
a_trim_that_may_wait_asks_the_device(void)
{
    gm_device *device = behind_faults(host_device(64 * MIB));
    gm_pool *pool = pool_on(device, true);
    actor thread;
    start(&thread, pool);
    thread.size = 8 * MIB;
    tell(&thread, use_and_free);
    end(&thread);
    CHECK_EQ(released_by_trim(pool, 0), 0);
    CHECK_EQ(calls(pool, GM_CALL_THREADS_SYNCHRONIZE), 0);
    fail_nth(device, GM_CALL_THREADS_SYNCHRONIZE, 1, GM_DEVICE_ERROR);
    CHECK_EQ(released_by_trim(pool, SECOND), 0);
    CHECK_EQ(stats_of(pool).lanes, 1);
    CHECK_EQ(released_by_trim(pool, SECOND), 8 * MIB);
    /* With its addresses the ended thread's lane went, too. */
    CHECK_EQ(stats_of(pool).lanes, 0);
    CHECK_EQ(stats_of(pool).allocation.all.allocated, 1);
    close_pool(pool);
}

static void
threads_come_and_go(void)
{
    gm_device *device = host_device(8 * MIB);
    gm_pool *pool = pool_on(device, true);
    for (int i = 0; i < 50; i++) {
        actor thread;
        start(&thread, pool);
        thread.size = 6 * MIB;
        tell(&thread, use_and_free);
        if (i % 2 != 0) {
            tell(&thread, retire);
        }
        end(&thread);
    }
    /* Of each lane only what was missing moved. */
    CHECK_EQ(released_by_trim(pool, SECOND), 8 * MIB);
    CHECK_EQ(stats_of(pool).lanes, 0);
    CHECK_EQ(stats_of(pool).allocation.all.allocated, 50);

    /* What the last one left comes back when the pool closes. */
    actor thread;
    start(&thread, pool);
    thread.size = 6 * MIB;
    tell(&thread, use_and_free);
    end(&thread);
    close_pool(pool);
}

static void
a_lane_that_went_is_made_again(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    for (int i = 0; i < 3; i++) {
        gm_block *block = take(pool, MIB, OWN);
        gm_pool_free(block);
        CHECK_EQ(released_by_trim(pool, 0), MIB);
        CHECK_EQ(stats_of(pool).lanes, 0);
        gm_pool_poll(pool);
    }
    CHECK_EQ(stats_of(pool).allocation.all.allocated, 3);
    close_pool(pool);
}

static void
the_device_is_not_asked_during_a_capture(void)
{
    gm_device *device = host_device(16 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_stream stream = new_stream(device);
    gm_block *held = take(pool, MIB, stream), *other = NULL;
    actor thread;
    start(&thread, pool);
    thread.size = 12 * MIB;
    tell(&thread, use_and_free);
    end(&thread);
    CHECK_OK(gm_host_set_capturing(device, stream, true));
    CHECK_STATUS(allocate(pool, 12 * MIB, 0, &other, NULL), GM_OUT_OF_MEMORY);
    CHECK_EQ(calls(pool, GM_CALL_THREADS_SYNCHRONIZE), 0);
    CHECK_OK(gm_host_set_capturing(device, stream, false));
    other = take(pool, 12 * MIB, 0);
    gm_pool_free(other);
    gm_pool_free(held);
    close_pool(pool);
}

static void
an_answer_counts_for_what_was_asked(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_lane *lane;
    actor thread;
    start(&thread, pool);
    thread.size = MIB;
    tell(&thread, use_and_free);
    CHECK(gm_lanes_settle(pool, 0));
    CHECK(!gm_lanes_settle(pool, 0));
    lane = GM_CONTAINER_OF(pool->lanes.next, gm_lane, link);
    CHECK_EQ(lane->marker.done, 1);
    tell(&thread, use_and_free);
    gm_mutex_lock(&lane->lock);
    CHECK(!gm_lane_is_done_locked(lane));
    CHECK_EQ(gm_lane_marker_locked(lane), 0);
    gm_mutex_unlock(&lane->lock);
    CHECK(gm_lanes_settle(pool, 0));
    CHECK_EQ(lane->marker.done, 2);
    end(&thread);
    close_pool(pool);
}

/* ---- blocks that such a stream uses, too ----------------------------------------- */

static size_t
pending_blocks(gm_pool *pool)
{
    gm_pool_poll(pool);
    CHECK_POOL(pool);
    return stats_of(pool).pending_blocks;
}

static void
a_use_is_marked_by_the_thread_that_records_it(void)
{
    gm_device *device = host_device(16 * MIB);
    gm_pool *pool = pool_on(device, true);
    actor thread;
    start(&thread, pool);
    thread.block = take(pool, 12 * MIB, 0);
    tell(&thread, stall);
    tell(&thread, fill);
    tell(&thread, record);
    gm_pool_free(thread.block);
    CHECK_EQ(pending_blocks(pool), 1);
    tell(&thread, release_work);
    CHECK_EQ(pending_blocks(pool), 0);

    /* Recorded again the mark moves; one use it stays. */
    thread.block = take(pool, MIB, 0);
    tell(&thread, record);
    tell(&thread, stall);
    tell(&thread, fill);
    tell(&thread, record);
    CHECK_EQ(thread.block->uses, 1);
    gm_pool_free(thread.block);
    CHECK_EQ(pending_blocks(pool), 1);
    tell(&thread, release_work);
    CHECK_EQ(pending_blocks(pool), 0);
    end(&thread);
    close_pool(pool);
}

static void
a_free_by_the_owner_covers_what_came_later(void)
{
    gm_device *device = host_device(16 * MIB);
    gm_pool *pool = pool_on(device, true);
    actor thread;
    start(&thread, pool);
    thread.block = take(pool, MIB, 0);
    tell(&thread, record);
    tell(&thread, stall);
    tell(&thread, fill);
    tell(&thread, free_it);
    CHECK_EQ(pending_blocks(pool), 1);
    tell(&thread, release_work);
    CHECK_EQ(pending_blocks(pool), 0);
    end(&thread);
    close_pool(pool);
}

static void
a_use_that_cannot_be_marked_is_not_recorded(void)
{
    gm_device *device = behind_faults(host_device(16 * MIB));
    gm_pool *pool = pool_on(device, true);
    gm_block *block = take(pool, MIB, 0);
    fail_nth(device, GM_CALL_EVENT_RECORD, 1, GM_DEVICE_ERROR);
    CHECK_STATUS(gm_pool_record_stream(block, OWN), GM_DEVICE_ERROR);
    CHECK_EQ(block->uses, 0);
    CHECK_POOL(pool);
    CHECK_OK(gm_pool_record_stream(block, OWN));
    CHECK_EQ(calls(pool, GM_CALL_EVENT_CREATE), 1);
    fail_nth(device, GM_CALL_EVENT_RECORD, 1, GM_DEVICE_ERROR);
    CHECK_STATUS(gm_pool_record_stream(block, OWN), GM_DEVICE_ERROR);
    CHECK_EQ(block->uses, 1);
    gm_pool_free(block);
    CHECK_EQ(pending_blocks(pool), 0);
    close_pool(pool);
}

static const gm_test tests[] = {
    {"unfinished work of another thread keeps its memory",
     unfinished_work_of_another_thread_keeps_its_memory},
    {"work of a thread that has ended keeps its memory",
     work_of_a_thread_that_has_ended_keeps_its_memory},
    {"the owner marks its stream when it passes by",
     the_owner_marks_its_stream_when_it_passes_by},
    {"a trim that may wait asks the device", a_trim_that_may_wait_asks_the_device},
    {"threads come and go", threads_come_and_go},
    {"a lane that went is made again", a_lane_that_went_is_made_again},
    {"the device is not asked during a capture",
     the_device_is_not_asked_during_a_capture},
    {"an answer counts for what was asked", an_answer_counts_for_what_was_asked},
    {"a use is marked by the thread that records it",
     a_use_is_marked_by_the_thread_that_records_it},
    {"a free by the owner covers what came later",
     a_free_by_the_owner_covers_what_came_later},
    {"a use that cannot be marked is not recorded",
     a_use_that_cannot_be_marked_is_not_recorded},
};

GM_TEST_MAIN(tests)
