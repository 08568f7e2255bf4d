/* test_device_streams.c - the host device's streams: queues, delayed work, events that
 * order streams, and waiting for them.
 */
#include <malloc.h>
#include <pthread.h>
#include <unistd.h>

#include "base/futex.h"
#include "device_kinds.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OWN_MALLOC 0
#else
#define OWN_MALLOC 1
#endif

static gm_device *
open_plain(bool delayed)
{
    gm_host_options options = {
        .capacity = 64 * MIB, .paging = true, .delayed = delayed};
    return open_host(&options);
}

static gm_stream
make_stream(gm_device *device)
{
    gm_stream stream;
    CHECK_OK(device->ops->stream_create(device, &stream));
    return stream;
}

static gm_event
make_event(gm_device *device)
{
    gm_event event;
    CHECK_OK(device->ops->event_create(device, &event));
    return event;
}

/* Queues *cell = value. */
static void
put(gm_device *device, gm_stream stream, uint32_t *cell, uint32_t value)
{
    CHECK_OK(device->ops->fill_async(device, (uintptr_t)cell, &value, sizeof(value), 1,
                                     stream));
}

static size_t
waiting(gm_device *device, gm_stream stream)
{
    size_t count = SIZE_MAX;
    CHECK_OK(gm_host_waiting_work(device, stream, &count));
    return count;
}

static size_t
release(gm_device *device, gm_stream stream, size_t count)
{
    size_t ran = SIZE_MAX;
    CHECK_OK(gm_host_release_work(device, stream, count, &ran));
    return ran;
}

/* ---- one stream ------------------------------------------------------------------ */

static void
test_stalled_work_waits_until_released(void)
{
    gm_device *device = open_plain(false);
    gm_stream stream = make_stream(device);
    gm_event event = make_event(device);
    uint32_t cell = 0;
    put(device, stream, &cell, 1);
    CHECK_EQ(cell, 1);
    CHECK_OK(gm_host_stall(device, stream));
    put(device, stream, &cell, 2);
    CHECK_OK(device->ops->event_record(device, event, stream));
    put(device, stream, &cell, 3);
    CHECK_EQ(cell, 1);
    CHECK_EQ(waiting(device, stream), 3);
    CHECK_STATUS(device->ops->event_query(device, event), GM_NOT_READY);
    CHECK_EQ(release(device, stream, 1), 1);
    CHECK_EQ(cell, 2);
    CHECK_STATUS(device->ops->event_query(device, event), GM_NOT_READY);
    CHECK_EQ(release(device, stream, 1), 1);
    CHECK_OK(device->ops->event_query(device, event));
    CHECK_EQ(cell, 2);
    CHECK_EQ(release(device, stream, SIZE_MAX), 1);
    CHECK_EQ(cell, 3);
    put(device, stream, &cell, 4);
    CHECK_EQ(cell, 4);
    CHECK_EQ(release(device, stream, 5), 0);
    CHECK_STATUS(gm_host_stall(device, 99), GM_INVALID);
    CHECK_STATUS(gm_host_release_work(device, 99, 1, NULL), GM_INVALID);
    CHECK_STATUS(gm_host_waiting_work(device, 99, &(size_t){0}), GM_INVALID);
    gm_device_release(device);
}

static void
test_waits_end_when_the_time_is_over(void)
{
    gm_device *device = open_plain(true);
    gm_stream stream = make_stream(device);
    gm_event event = make_event(device);
    const uint64_t timeout_ns = 20000000;
    CHECK_OK(device->ops->stream_synchronize(device, stream, 0));
    CHECK_OK(device->ops->event_record(device, event, stream));
    CHECK_EQ(waiting(device, stream), 1);
    uint64_t start = gm_monotonic_ns();
    CHECK_STATUS(device->ops->stream_synchronize(device, stream, timeout_ns),
                 GM_NOT_READY);
    CHECK(gm_monotonic_ns() - start >= timeout_ns);
    start = gm_monotonic_ns();
    CHECK_STATUS(device->ops->event_synchronize(device, event, timeout_ns),
                 GM_NOT_READY);
    CHECK(gm_monotonic_ns() - start >= timeout_ns);
    CHECK_STATUS(device->ops->stream_synchronize(device, stream, 0), GM_NOT_READY);
    CHECK_STATUS(device->ops->event_synchronize(device, event, 0), GM_NOT_READY);
    CHECK_EQ(release(device, stream, 1), 1);
    CHECK_OK(device->ops->stream_synchronize(device, stream, 0));
    CHECK_OK(device->ops->event_synchronize(device, event, 0));
    gm_device_release(device);
}

typedef struct wait_job {
    gm_device *device;
    gm_stream stream;
    gm_event event;
    gm_status stream_status;
    gm_status event_status;
} wait_job;

static void *
wait_for_both(void *argument)
{
    wait_job *job = argument;
    gm_device *device = job->device;
    job->event_status = device->ops->event_synchronize(device, job->event, UINT64_MAX);
    job->stream_status =
        device->ops->stream_synchronize(device, job->stream, UINT64_MAX);
    return NULL;
}

static void
test_waits_end_when_work_is_done(void)
{
    gm_device *device = open_plain(false);
    wait_job job = {device, make_stream(device), make_event(device), GM_BUSY, GM_BUSY};
    pthread_t thread;
    uint32_t cell = 0;
    CHECK_OK(gm_host_stall(device, job.stream));
    CHECK_OK(device->ops->event_record(device, job.event, job.stream));
    put(device, job.stream, &cell, 1);
    CHECK_EQ(pthread_create(&thread, NULL, wait_for_both, &job), 0);
    usleep(10000);
    CHECK_EQ(release(device, job.stream, 1), 1);
    usleep(10000);
    CHECK_EQ(release(device, job.stream, SIZE_MAX), 1);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_OK(job.stream_status);
    CHECK_OK(job.event_status);
    CHECK_EQ(cell, 1);
    gm_device_release(device);
}

/* ---- several streams ------------------------------------------------------------- */

static void
test_released_work_cascades_over_streams(void)
{
    gm_device *device = open_plain(false);
    gm_stream a = make_stream(device), b = make_stream(device), c = make_stream(device);
    gm_event first = make_event(device), second = make_event(device);
    uint32_t cells[3] = {0};
    CHECK_OK(gm_host_stall(device, a));
    put(device, a, &cells[0], 1);
    CHECK_OK(device->ops->event_record(device, first, a));
    CHECK_OK(device->ops->stream_wait(device, b, first));
    put(device, b, &cells[1], 2);
    CHECK_OK(device->ops->event_record(device, second, b));
    CHECK_OK(device->ops->stream_wait(device, c, second));
    put(device, c, &cells[2], 3);
    CHECK_EQ(waiting(device, b), 3);
    CHECK_EQ(waiting(device, c), 2);
    CHECK_EQ(release(device, b, SIZE_MAX), 0);
    CHECK_EQ(release(device, a, 1), 1);
    CHECK_EQ(cells[0], 1);
    CHECK_EQ(cells[1] + cells[2], 0);
    CHECK_EQ(release(device, a, 1), 1 + 3 + 2);
    CHECK_EQ(cells[1], 2);
    CHECK_EQ(cells[2], 3);
    CHECK_OK(device->ops->event_query(device, second));
    gm_device_release(device);
}

/* Pieces that were let go run once their event is done, and no later ones with them. */
static void
test_released_work_still_waits_for_its_event(void)
{
    gm_device *device = open_plain(false);
    gm_stream a = make_stream(device), b = make_stream(device);
    gm_event event = make_event(device);
    uint32_t cells[3] = {0};
    CHECK_OK(gm_host_stall(device, a));
    CHECK_OK(gm_host_stall(device, b));
    CHECK_OK(device->ops->event_record(device, event, a));
    CHECK_OK(device->ops->stream_wait(device, b, event));
    put(device, b, &cells[0], 1);
    CHECK_EQ(release(device, b, 2), 0);
    put(device, b, &cells[1], 2);
    CHECK_EQ(release(device, a, SIZE_MAX), 3);
    CHECK_EQ(cells[0], 1);
    CHECK_EQ(cells[1], 0);
    CHECK_EQ(waiting(device, b), 1);
    /* Stalling again takes back what was let go and has not run. */
    CHECK_OK(gm_host_stall(device, a));
    CHECK_OK(device->ops->event_record(device, event, a));
    CHECK_EQ(release(device, b, SIZE_MAX), 1);
    CHECK_OK(device->ops->stream_wait(device, b, event));
    put(device, b, &cells[2], 3);
    CHECK_OK(gm_host_stall(device, b));
    CHECK_EQ(release(device, a, SIZE_MAX), 1);
    CHECK_EQ(cells[2], 0);
    CHECK_EQ(release(device, b, SIZE_MAX), 2);
    CHECK_EQ(cells[2], 3);
    gm_device_release(device);
}

static void
test_wait_keeps_the_mark_it_saw(void)
{
    gm_device *device = open_plain(false);
    gm_stream a = make_stream(device), b = make_stream(device), c = make_stream(device);
    gm_event event = make_event(device);
    uint32_t cell = 0;
    CHECK_OK(gm_host_stall(device, a));
    CHECK_OK(device->ops->event_record(device, event, a));
    CHECK_OK(device->ops->stream_wait(device, b, event));
    put(device, b, &cell, 1);
    /* Recording again moves the event, not what b waits for. */
    CHECK_OK(device->ops->event_record(device, event, c));
    CHECK_OK(device->ops->event_query(device, event));
    CHECK_EQ(cell, 0);
    CHECK_OK(device->ops->event_destroy(device, event));
    CHECK_EQ(release(device, a, SIZE_MAX), 3);
    CHECK_EQ(cell, 1);
    gm_device_release(device);
}

/* ---- life of a stream ------------------------------------------------------------ */

static void
test_destroyed_stream_finishes_its_work(void)
{
    gm_device *device = open_plain(false);
    gm_stream stream = make_stream(device);
    gm_event event = make_event(device);
    uint32_t cell = 0;
    CHECK_OK(gm_host_stall(device, stream));
    put(device, stream, &cell, 5);
    CHECK_OK(device->ops->event_record(device, event, stream));
    CHECK_OK(device->ops->stream_destroy(device, stream));
    CHECK_STATUS(device->ops->event_record(device, event, stream), GM_INVALID);
    CHECK_STATUS(device->ops->stream_destroy(device, stream), GM_INVALID);
    CHECK_STATUS(gm_host_stall(device, stream), GM_INVALID);
    CHECK_EQ(waiting(device, stream), 2);
    CHECK_STATUS(device->ops->event_query(device, event), GM_NOT_READY);
    CHECK_EQ(release(device, stream, 2), 2);
    CHECK_EQ(cell, 5);
    CHECK_OK(device->ops->event_query(device, event));
    CHECK_STATUS(gm_host_release_work(device, stream, 1, NULL), GM_INVALID);
    gm_device_release(device);
}

static void
use_and_destroy(gm_device *device, gm_stream *last)
{
    gm_stream stream = make_stream(device);
    gm_event event = make_event(device);
    uint32_t cell = 0;
    CHECK(stream > *last);
    *last = stream;
    CHECK_OK(gm_host_stall(device, stream));
    put(device, stream, &cell, 1);
    CHECK_OK(device->ops->event_record(device, event, stream));
    CHECK_OK(device->ops->stream_wait(device, 2, event));
    CHECK_OK(device->ops->stream_destroy(device, stream));
    CHECK_OK(device->ops->event_destroy(device, event));
    CHECK_EQ(waiting(device, 2), 1);
    CHECK_EQ(release(device, stream, SIZE_MAX), 3);
    CHECK_EQ(cell, 1);
}

static void
test_rounds_leave_nothing(void)
{
    gm_device *device = open_plain(false);
    gm_stream last = 0;
    for (int i = 0; i < 100; i++) {
        use_and_destroy(device, &last); /* fills the allocator's caches */
    }
#if OWN_MALLOC
    size_t before = mallinfo2().uordblks;
#endif
    for (int i = 0; i < 1000; i++) {
        use_and_destroy(device, &last);
    }
#if OWN_MALLOC
    CHECK_EQ(mallinfo2().uordblks, before);
#endif
    gm_device_release(device);
}

static void
test_thousand_streams(void)
{
    enum {
        COUNT = 1000
    };
    static gm_stream streams[COUNT];
    static uint32_t cells[COUNT];
    gm_device *device = open_plain(true);
    gm_device *other = open_plain(true);
    gm_stream stranger = make_stream(other);
    for (uint32_t i = 0; i < COUNT; i++) {
        streams[i] = make_stream(device);
        put(device, streams[i], &cells[i], i + 1);
    }
    CHECK_STATUS(device->ops->stream_synchronize(device, stranger, 0), GM_INVALID);
    for (uint32_t i = COUNT; i-- > 0;) {
        CHECK_EQ(cells[i], 0);
        CHECK_EQ(release(device, streams[i], 1), 1);
        CHECK_EQ(cells[i], i + 1);
        CHECK_OK(device->ops->stream_destroy(device, streams[i]));
    }
    gm_device_release(other);
    gm_device_release(device);
}

static void
test_close_drops_queued_work(void)
{
    gm_device *device = open_plain(true);
    gm_stream a = make_stream(device), b = make_stream(device);
    gm_event event = make_event(device);
    uint32_t cell = 0;
    put(device, a, &cell, 1);
    put(device, 0, &cell, 1);
    put(device, 2, &cell, 1);
    CHECK_OK(device->ops->event_record(device, event, a));
    CHECK_OK(device->ops->stream_wait(device, b, event));
    CHECK_EQ(release(device, b, SIZE_MAX), 0);
    CHECK_OK(device->ops->stream_destroy(device, b));
    gm_device_release(device);
    CHECK_EQ(cell, 0);
}

/* ---- default streams ------------------------------------------------------------- */

static void
test_handle_one_is_the_default_stream(void)
{
    gm_device *device = open_plain(false);
    uint32_t cell = 0;
    CHECK_OK(gm_host_stall(device, 1));
    put(device, GM_DEFAULT_STREAM, &cell, 1);
    CHECK_EQ(waiting(device, 1), 1);
    CHECK_EQ(waiting(device, 2), 0);
    CHECK_EQ(release(device, GM_DEFAULT_STREAM, SIZE_MAX), 1);
    CHECK_EQ(cell, 1);
    gm_device_release(device);
}

typedef struct thread_job {
    gm_device *device;
    uint64_t identity;
    uint32_t cell;
} thread_job;

static void *
use_thread_stream(void *argument)
{
    thread_job *job = argument;
    job->identity = job->device->ops->stream_identity(job->device, 2);
    put(job->device, 2, &job->cell, 9);
    CHECK_EQ(job->cell, 9);
    return NULL;
}

static void
test_each_thread_has_its_own_stream_two(void)
{
    gm_device *device = open_plain(false);
    thread_job job = {device, 0, 0};
    pthread_t thread;
    uint32_t cell = 0;
    CHECK_OK(gm_host_stall(device, 2));
    put(device, 2, &cell, 1);
    CHECK_EQ(pthread_create(&thread, NULL, use_thread_stream, &job), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(job.identity != device->ops->stream_identity(device, 2));
    CHECK(job.identity != 0);
    CHECK((job.identity & GM_IDENTITY_OF_THREAD) != 0);
    CHECK_EQ(cell, 0);
    CHECK_EQ(waiting(device, 2), 1);
    CHECK_EQ(release(device, 2, SIZE_MAX), 1);
    CHECK_EQ(cell, 1);
    gm_device_release(device);
}

static void *
wait_for_threads(void *argument)
{
    thread_job *job = argument;
    gm_device *device = job->device;
    gm_status status = device->ops->threads_synchronize(device, UINT64_MAX);
    CHECK_OK(status);
    CHECK_EQ(job->cell, 1);
    return NULL;
}

static void *
leave_work(void *argument)
{
    thread_job *job = argument;
    CHECK_OK(gm_host_stall(job->device, 2));
    put(job->device, 2, &job->cell, 9);
    return NULL;
}

static void
test_all_threads_streams_are_waited_for(void)
{
    gm_device *device = open_plain(false);
    const gm_device_ops *ops = device->ops;
    thread_job job = {device, 0, 0};
    pthread_t thread;
    CHECK_OK(ops->threads_synchronize(device, 0));
    CHECK_OK(gm_host_stall(device, 0));
    put(device, 0, &job.cell, 5);
    CHECK_OK(ops->threads_synchronize(device, 0)); /* no thread's own */
    CHECK_OK(gm_host_stall(device, 2));
    CHECK_OK(ops->threads_synchronize(device, 0));
    put(device, 2, &job.cell, 1);
    CHECK_STATUS(ops->threads_synchronize(device, 0), GM_NOT_READY);
    CHECK_STATUS(ops->threads_synchronize(device, 1000000), GM_NOT_READY);
    CHECK_EQ(pthread_create(&thread, NULL, wait_for_threads, &job), 0);
    CHECK_EQ(release(device, 2, SIZE_MAX), 1);
    CHECK_EQ(pthread_join(thread, NULL), 0);

    /* Work of a thread that has ended counts, too. */
    CHECK_EQ(pthread_create(&thread, NULL, leave_work, &job), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_STATUS(ops->threads_synchronize(device, 0), GM_NOT_READY);
    CHECK_OK(gm_host_set_capturing(device, 0, true));
    CHECK_STATUS(ops->threads_synchronize(device, 0), GM_CAPTURING);
    gm_device_release(device);
}

/* ---- captures -------------------------------------------------------------------- */

static void
test_capture_forbids_memory_and_waiting(void)
{
    gm_device *device = open_plain(false);
    const gm_device_ops *ops = device->ops;
    gm_stream stream = make_stream(device);
    gm_event event = make_event(device);
    gm_devptr address = 0;
    gm_page page = 0;
    bool capturing = false;
    CHECK_OK(gm_host_set_capturing(device, stream, true));
    CHECK_OK(gm_host_set_capturing(device, stream, true));
    CHECK_OK(ops->stream_capturing(device, stream, &capturing));
    CHECK(capturing);
    CHECK_OK(ops->stream_capturing(device, 0, &capturing));
    CHECK(!capturing);
    CHECK_STATUS(ops->segment_create(device, 512, &address), GM_CAPTURING);
    CHECK_STATUS(ops->segment_destroy(device, 512, 512), GM_CAPTURING);
    CHECK_STATUS(ops->page_create(device, &page), GM_CAPTURING);
    CHECK_STATUS(ops->page_destroy(device, 1), GM_CAPTURING);
    CHECK_STATUS(ops->unmap(device, 4096, 4096), GM_CAPTURING);
    CHECK_STATUS(ops->stream_synchronize(device, 0, 0), GM_CAPTURING);
    CHECK_STATUS(ops->event_synchronize(device, event, 0), GM_CAPTURING);
    CHECK_OK(ops->event_query(device, event));
    CHECK_OK(gm_host_set_capturing(device, stream, false));
    CHECK_OK(ops->segment_create(device, 512, &address));
    CHECK_OK(ops->segment_destroy(device, address, 512));
    CHECK_OK(gm_host_set_capturing(device, stream, true));
    CHECK_OK(ops->stream_destroy(device, stream));
    CHECK_OK(ops->stream_synchronize(device, 0, 0));
    CHECK_STATUS(gm_host_set_capturing(device, stream, true), GM_INVALID);
    gm_device_release(device);
}

/* ---- many threads ---------------------------------------------------------------- */

enum {
    WORKERS = 4,
    STREAMS = 3,
    STEPS = 1500
};

typedef struct crowd {
    gm_device *device;
    gm_stream streams[STREAMS];
    uint64_t sums[STREAMS]; /* changed by kernels alone, in stream order */
    _Atomic int working;
} crowd;

typedef struct sum_arguments {
    uint64_t *sum;
} sum_arguments;

static void
increase(const void *arguments)
{
    sum_arguments a;
    memcpy(&a, arguments, sizeof(a));
    *a.sum += 1; /* a race if two threads ran one stream at a time */
}

static const gm_kernel increase_kernel = {"test_increase", increase};

static void *
queue_much(void *argument)
{
    crowd *all = argument;
    gm_device *device = all->device;
    gm_event event = make_event(device);
    for (int step = 0; step < STEPS; step++) {
        int at = step % STREAMS;
        sum_arguments arguments = {&all->sums[at]};
        CHECK_OK(device->ops->launch(device, &increase_kernel, &arguments,
                                     sizeof(arguments), all->streams[at]));
        CHECK_OK(device->ops->event_record(device, event, all->streams[at]));
        CHECK_OK(
            device->ops->stream_wait(device, all->streams[(at + 1) % STREAMS], event));
        if (step % 64 == 0) {
            gm_status status = device->ops->event_synchronize(device, event, 1000);
            CHECK(status == GM_OK || status == GM_NOT_READY);
        }
    }
    CHECK_OK(device->ops->event_destroy(device, event));
    atomic_fetch_sub(&all->working, 1);
    return NULL;
}

static void
test_threads_share_streams(void)
{
    crowd all = {.device = open_plain(false), .working = WORKERS};
    pthread_t threads[WORKERS];
    for (int i = 0; i < STREAMS; i++) {
        all.streams[i] = make_stream(all.device);
    }
    for (int i = 0; i < WORKERS; i++) {
        CHECK_EQ(pthread_create(&threads[i], NULL, queue_much, &all), 0);
    }
    while (atomic_load(&all.working) > 0) {
        CHECK_OK(gm_host_stall(all.device, all.streams[0]));
        usleep(500);
        (void)release(all.device, all.streams[0], 3);
        (void)release(all.device, all.streams[0], SIZE_MAX);
    }
    for (int i = 0; i < WORKERS; i++) {
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    }
    for (int i = 0; i < STREAMS; i++) {
        CHECK_OK(all.device->ops->stream_synchronize(all.device, all.streams[i],
                                                     UINT64_MAX));
        CHECK_EQ(waiting(all.device, all.streams[i]), 0);
        CHECK_EQ(all.sums[i], (uint64_t)WORKERS * STEPS / STREAMS);
    }
    gm_device_release(all.device);
}

static const gm_test tests[] = {
    {"stalled_work_waits_until_released", test_stalled_work_waits_until_released},
    {"waits_end_when_the_time_is_over", test_waits_end_when_the_time_is_over},
    {"waits_end_when_work_is_done", test_waits_end_when_work_is_done},
    {"released_work_cascades_over_streams", test_released_work_cascades_over_streams},
    {"released_work_still_waits_for_its_event",
     test_released_work_still_waits_for_its_event},
    {"wait_keeps_the_mark_it_saw", test_wait_keeps_the_mark_it_saw},
    {"destroyed_stream_finishes_its_work", test_destroyed_stream_finishes_its_work},
    {"rounds_leave_nothing", test_rounds_leave_nothing},
    {"thousand_streams", test_thousand_streams},
    {"close_drops_queued_work", test_close_drops_queued_work},
    {"handle_one_is_the_default_stream", test_handle_one_is_the_default_stream},
    {"each_thread_has_its_own_stream_two", test_each_thread_has_its_own_stream_two},
    {"all_threads_streams_are_waited_for", test_all_threads_streams_are_waited_for},
    {"capture_forbids_memory_and_waiting", test_capture_forbids_memory_and_waiting},
    {"threads_share_streams", test_threads_share_streams},
};

GM_TEST_MAIN(tests)
