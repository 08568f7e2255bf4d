/* host_queue.c - the queues of the host device and the work in them.
 *
 * One thread at a time works a stream off (`running`): it takes the first piece that
 * may run, drops the lock for a copy, a fill or a kernel, and goes on until nothing
 * more may run. Whoever queues work while another thread is at it leaves it to that
 * one.
 *
 * A piece that waits for a mark puts its stream on the mark's list of waiters; when the
 * mark is done those streams are looked at next, by the same thread. So work cascades
 * over streams without recursion.
 */
#include <stdlib.h>
#include <string.h>

#include "base/futex.h"
#include "device/host_internal.h"

/* A fill writes a block of about this many bytes and copies it over the rest. */
#define FILL_BLOCK ((size_t)4096)

/* ---- marks ----------------------------------------------------------------------- */

void
gm_host_mark_release(host_mark *mark)
{
    if (mark != NULL && --mark->references == 0) {
        GM_ASSERT(gm_list_is_empty(&mark->waiters));
        free(mark);
    }
}

/* Puts a stream on the list of those to look at; at most once. */
static void
make_ready(gm_list *ready, host_stream *stream)
{
    if (!stream->ready) {
        stream->ready = true;
        gm_list_push_back(ready, &stream->ready_link);
    }
}

static void
finish_mark(host_mark *mark, gm_list *ready)
{
    mark->done = true;
    GM_LIST_FOREACH_SAFE(link, following, &mark->waiters) {
        host_stream *stream = GM_CONTAINER_OF(link, host_stream, waiter_link);
        gm_list_remove(link);
        stream->awaiting = false;
        make_ready(ready, stream);
    }
}

/* ---- pieces of work -------------------------------------------------------------- */

static void
run_fill(const host_work *work)
{
    char *destination = gm_device_host_pointer(work->of.fill.destination);
    size_t width = work->of.fill.width;
    size_t total = width * work->of.fill.count;
    size_t block = FILL_BLOCK < total ? FILL_BLOCK : total;
    for (size_t done = 0; done < block; done += width) {
        memcpy(destination + done, work->of.fill.pattern, width);
    }
    for (size_t done = block; done < total;) {
        size_t step = block < total - done ? block : total - done;
        memcpy(destination + done, destination, step);
        done += step;
    }
}

/* The part of a piece that touches memory; called without the lock. */
static void
run_work(const host_work *work)
{
    if (work->kind == HOST_WORK_COPY) {
        if (work->of.copy.size > 0) {
            memmove(gm_device_host_pointer(work->of.copy.destination),
                    gm_device_host_pointer(work->of.copy.source), work->of.copy.size);
        }
    }
    else if (work->kind == HOST_WORK_FILL) {
        run_fill(work);
    }
    else if (work->kind == HOST_WORK_LAUNCH) {
        work->of.launch.run(work->of.launch.arguments);
    }
}

static bool
touches_memory(const host_work *work)
{
    return work->kind != HOST_WORK_RECORD && work->kind != HOST_WORK_WAIT;
}

/* Does the piece wait for a mark that is not done? */
static bool
must_wait(const host_work *work)
{
    return work->kind == HOST_WORK_WAIT && work->of.mark != NULL &&
           !work->of.mark->done;
}

/* May the stream's first piece run as far as marks go? If not, the stream is put on the
 * waiters of the mark. */
static bool
may_run(host_stream *stream, const host_work *work)
{
    if (!must_wait(work)) {
        return true;
    }
    if (!stream->awaiting) {
        stream->awaiting = true;
        gm_list_push_back(&work->of.mark->waiters, &stream->waiter_link);
    }
    return false;
}

/* Runs one piece to its end and counts it. `ready` receives the streams that it frees.
 * Pre: the stream is marked running by this thread. */
static void
perform_locked(host_device *host, host_stream *stream, const host_work *work,
               gm_list *ready) GM_REQUIRES(host->stream_lock)
{
    GM_ASSERT(gm_mutex_is_held(&host->stream_lock));
    if (touches_memory(work)) {
        gm_mutex_unlock(&host->stream_lock);
        run_work(work);
        gm_mutex_lock(&host->stream_lock);
    }
    else {
        if (work->kind == HOST_WORK_RECORD) {
            finish_mark(work->of.mark, ready);
        }
        gm_host_mark_release(work->of.mark);
    }
    stream->finished++;
    if (host->sleepers > 0) {
        atomic_fetch_add_explicit(&host->progress, 1, memory_order_relaxed);
        gm_futex_wake(&host->progress, INT32_MAX);
    }
}

/* ---- streams --------------------------------------------------------------------- */

void
gm_host_stream_init(host_stream *stream, bool stalled)
{
    gm_list_init(&stream->queue);
    gm_list_init(&stream->ready_link);
    gm_list_init(&stream->waiter_link);
    gm_list_init(&stream->thread_link);
    stream->stalled = stalled;
}

bool
gm_host_stream_is_idle(const host_stream *stream)
{
    return !stream->running && !stream->stalled && stream->waiting == 0;
}

void
gm_host_stream_discard(host_stream *stream)
{
    gm_list_remove(&stream->waiter_link);
    GM_LIST_FOREACH_SAFE(link, following, &stream->queue) {
        host_work *work = GM_CONTAINER_OF(link, host_work, link);
        gm_list_remove(link);
        if (!touches_memory(work)) {
            gm_host_mark_release(work->of.mark);
        }
        free(work);
    }
    stream->waiting = 0;
}

void
gm_host_stream_settle_locked(host_device *host, host_stream *stream)
{
    GM_ASSERT(gm_mutex_is_held(&host->stream_lock));
    if (stream->waiting > 0 || stream->running || stream->ready ||
        stream->sleepers > 0) {
        return;
    }
    if (stream->destroyed) {
        gm_handles_give(&host->streams, &stream->node);
    }
    else if (stream->thread != 0 && !stream->capturing &&
             stream->stalled == host->delayed) {
        gm_list_remove(&stream->thread_link);
        free(stream);
    }
}

/* Works one stream off as far as possible; returns how many pieces ran. */
static size_t
work_off_locked(host_device *host, host_stream *stream, gm_list *ready)
    GM_REQUIRES(host->stream_lock)
{
    size_t ran = 0;
    if (stream->running) {
        return 0;
    }
    stream->running = true;
    while (!gm_list_is_empty(&stream->queue)) {
        host_work *work = GM_CONTAINER_OF(stream->queue.next, host_work, link);
        if ((stream->stalled && stream->credit == 0) || !may_run(stream, work)) {
            break;
        }
        gm_list_remove(&work->link);
        stream->waiting--;
        if (stream->stalled) {
            stream->credit--;
        }
        perform_locked(host, stream, work, ready);
        free(work);
        ran++;
    }
    stream->running = false;
    return ran;
}

/* Looks at every stream on the list, and at those that come onto it meanwhile. */
static size_t
work_off_list_locked(host_device *host, gm_list *ready) GM_REQUIRES(host->stream_lock)
{
    size_t ran = 0;
    while (!gm_list_is_empty(ready)) {
        host_stream *stream = GM_CONTAINER_OF(ready->next, host_stream, ready_link);
        gm_list_remove(&stream->ready_link);
        stream->ready = false;
        ran += work_off_locked(host, stream, ready);
        gm_host_stream_settle_locked(host, stream);
    }
    return ran;
}

size_t
gm_host_drain_locked(host_device *host, host_stream *stream)
{
    gm_list ready;
    gm_list_init(&ready);
    make_ready(&ready, stream);
    return work_off_list_locked(host, &ready);
}

gm_status
gm_host_queue_locked(host_device *host, host_stream *stream, const host_work *work)
{
    GM_ASSERT(gm_mutex_is_held(&host->stream_lock));
    if (gm_host_stream_is_idle(stream) && !must_wait(work)) {
        gm_list ready;
        gm_list_init(&ready);
        stream->running = true;
        stream->issued++;
        perform_locked(host, stream, work, &ready);
        stream->running = false;
        make_ready(&ready, stream); /* what others queued meanwhile */
        (void)work_off_list_locked(host, &ready);
        return GM_OK;
    }
    host_work *queued = malloc(sizeof(*queued));
    if (queued == NULL) {
        gm_host_stream_settle_locked(host, stream);
        return GM_NO_HOST_MEMORY;
    }
    *queued = *work;
    gm_list_push_back(&stream->queue, &queued->link);
    stream->waiting++;
    stream->issued++;
    (void)gm_host_drain_locked(host, stream);
    return GM_OK;
}
