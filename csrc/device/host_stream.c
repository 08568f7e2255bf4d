/* host_stream.c - streams, events and work as the contract names them, and the
 * functions by which a test holds a stream back. The queues are in host_queue.c.
 */
#include <stdlib.h>
#include <string.h>

#include "base/futex.h"
#include "device/host_internal.h"

/* ---- finding --------------------------------------------------------------------- */

/* The calling thread's own default stream; made on first use and dropped again when it
 * has nothing to keep. NULL: no host memory. */
static host_stream *
thread_stream_locked(host_device *host) GM_REQUIRES(host->stream_lock)
{
    uint64_t thread = gm_thread_number();
    GM_LIST_FOREACH(link, &host->thread_streams) {
        host_stream *stream = GM_CONTAINER_OF(link, host_stream, thread_link);
        if (stream->thread == thread) {
            return stream;
        }
    }
    host_stream *stream = calloc(1, sizeof(*stream));
    if (stream != NULL) {
        gm_host_stream_init(stream, host->delayed);
        stream->thread = thread;
        gm_list_push_back(&host->thread_streams, &stream->thread_link);
    }
    return stream;
}

/* Also finds a destroyed stream that still has work. GM_INVALID: unknown handle. */
static gm_status
find_any_stream_locked(host_device *host, gm_stream handle, host_stream **out)
    GM_REQUIRES(host->stream_lock)
{
    GM_ASSERT(gm_mutex_is_held(&host->stream_lock));
    if (handle == GM_DEFAULT_STREAM || handle == GM_STREAM_LEGACY) {
        *out = &host->default_stream;
        return GM_OK;
    }
    if (handle == GM_STREAM_PER_THREAD) {
        *out = thread_stream_locked(host);
        return *out == NULL ? GM_NO_HOST_MEMORY : GM_OK;
    }
    gm_handle_node *node = gm_handles_find(&host->streams, handle);
    *out = (host_stream *)(void *)node;
    return node == NULL ? GM_INVALID : GM_OK;
}

/* As above for calls that a destroyed stream does not take. After use, the caller
 * settles the stream or queues something on it. */
static gm_status
find_stream_locked(host_device *host, gm_stream handle, host_stream **out)
    GM_REQUIRES(host->stream_lock)
{
    host_stream *stream;
    GM_TRY(find_any_stream_locked(host, handle, &stream));
    if (stream->destroyed) {
        return GM_INVALID;
    }
    *out = stream;
    return GM_OK;
}

static host_event *
find_event_locked(host_device *host, gm_event handle) GM_REQUIRES(host->stream_lock)
{
    return (host_event *)(void *)gm_handles_find(&host->events, handle);
}

/* ---- waiting --------------------------------------------------------------------- */

/* Sleeps until some work is done somewhere, or the time is over. False: it was over
 * before. Drops and retakes the lock. */
static bool
sleep_locked(host_device *host, uint64_t start_ns, uint64_t timeout_ns)
    GM_REQUIRES(host->stream_lock)
{
    uint64_t left = UINT64_MAX;
    if (timeout_ns != UINT64_MAX) {
        uint64_t passed = gm_monotonic_ns() - start_ns;
        if (passed >= timeout_ns) {
            return false;
        }
        left = timeout_ns - passed;
    }
    uint32_t seen = atomic_load_explicit(&host->progress, memory_order_relaxed);
    host->sleepers++;
    gm_mutex_unlock(&host->stream_lock);
    gm_futex_wait(&host->progress, seen, left);
    gm_mutex_lock(&host->stream_lock);
    host->sleepers--;
    return true;
}

/* ---- streams --------------------------------------------------------------------- */

void
gm_host_streams_init(host_device *host)
{
    gm_mutex_init(&host->stream_lock, GM_RANK_DEVICE);
    gm_handles_init(&host->streams, sizeof(host_stream));
    gm_handles_init(&host->events, sizeof(host_event));
    gm_host_stream_init(&host->default_stream, host->delayed);
    gm_list_init(&host->thread_streams);
}

static void
discard_stream(gm_handle_node *node, void *argument)
{
    (void)argument;
    gm_host_stream_discard((host_stream *)(void *)node);
}

static void
discard_event(gm_handle_node *node, void *argument)
{
    (void)argument;
    gm_host_mark_release(((host_event *)(void *)node)->mark);
}

void
gm_host_streams_destroy(host_device *host) GM_NO_THREAD_ANALYSIS
{
    gm_host_stream_discard(&host->default_stream);
    GM_LIST_FOREACH_SAFE(link, following, &host->thread_streams) {
        host_stream *stream = GM_CONTAINER_OF(link, host_stream, thread_link);
        gm_host_stream_discard(stream);
        free(stream);
    }
    gm_handles_visit(&host->streams, discard_stream, NULL);
    gm_handles_visit(&host->events, discard_event, NULL);
    gm_handles_destroy(&host->streams);
    gm_handles_destroy(&host->events);
}

gm_status
gm_host_stream_create(gm_device *self, gm_stream *out)
{
    host_device *host = host_of(self);
    gm_handle_node *node;
    GM_TRY(host_enter(host, GM_CALL_STREAM_CREATE));
    gm_mutex_lock(&host->stream_lock);
    gm_status status = gm_handles_take(&host->streams, &node);
    if (status == GM_OK) {
        gm_host_stream_init((host_stream *)(void *)node, host->delayed);
        *out = atomic_load_explicit(&node->handle, memory_order_relaxed);
    }
    gm_mutex_unlock(&host->stream_lock);
    return status;
}

static void
set_capturing_locked(host_device *host, host_stream *stream, bool capturing)
    GM_REQUIRES(host->stream_lock)
{
    if (capturing && !stream->capturing) {
        atomic_fetch_add_explicit(&host->capturing_streams, 1, memory_order_relaxed);
    }
    else if (!capturing && stream->capturing) {
        atomic_fetch_sub_explicit(&host->capturing_streams, 1, memory_order_relaxed);
    }
    stream->capturing = capturing;
}

gm_status
gm_host_stream_destroy(gm_device *self, gm_stream handle)
{
    host_device *host = host_of(self);
    gm_status status = GM_INVALID;
    GM_TRY(host_enter(host, GM_CALL_STREAM_DESTROY));
    gm_mutex_lock(&host->stream_lock);
    gm_handle_node *node = gm_handles_find(&host->streams, handle);
    host_stream *stream = (host_stream *)(void *)node;
    if (stream != NULL && !stream->destroyed) {
        stream->destroyed = true;
        set_capturing_locked(host, stream, false);
        gm_host_stream_settle_locked(host, stream);
        status = GM_OK;
    }
    gm_mutex_unlock(&host->stream_lock);
    return status;
}

/* Waits for the work that is on the stream now. */
static gm_status
finish_locked(host_device *host, host_stream *stream, uint64_t start_ns,
              uint64_t timeout_ns) GM_REQUIRES(host->stream_lock)
{
    gm_status status = GM_OK;
    uint64_t target = stream->issued;
    stream->sleepers++;
    while (stream->finished < target && status == GM_OK) {
        status = sleep_locked(host, start_ns, timeout_ns) ? GM_OK : GM_NOT_READY;
    }
    stream->sleepers--;
    gm_host_stream_settle_locked(host, stream);
    return status;
}

gm_status
gm_host_stream_synchronize(gm_device *self, gm_stream handle, uint64_t timeout_ns)
{
    host_device *host = host_of(self);
    host_stream *stream;
    GM_TRY(host_enter_outside_capture(host, GM_CALL_STREAM_SYNCHRONIZE));
    uint64_t start = gm_monotonic_ns();
    gm_mutex_lock(&host->stream_lock);
    gm_status status = find_stream_locked(host, handle, &stream);
    if (status == GM_OK) {
        status = finish_locked(host, stream, start, timeout_ns);
    }
    gm_mutex_unlock(&host->stream_lock);
    return status;
}

/* The thread's own stream with the lowest number above `thread`, or NULL. */
static host_stream *
next_thread_stream_locked(host_device *host, uint64_t thread)
    GM_REQUIRES(host->stream_lock)
{
    host_stream *next = NULL;
    GM_LIST_FOREACH(link, &host->thread_streams) {
        host_stream *stream = GM_CONTAINER_OF(link, host_stream, thread_link);
        if (stream->thread > thread &&
            (next == NULL || stream->thread < next->thread)) {
            next = stream;
        }
    }
    return next;
}

/* One stream after the other: the list may change during each wait. */
gm_status
gm_host_threads_synchronize(gm_device *self, uint64_t timeout_ns)
{
    host_device *host = host_of(self);
    GM_TRY(host_enter_outside_capture(host, GM_CALL_THREADS_SYNCHRONIZE));
    uint64_t start = gm_monotonic_ns();
    uint64_t thread = 0;
    gm_status status = GM_OK;
    gm_mutex_lock(&host->stream_lock);
    while (status == GM_OK) {
        host_stream *stream = next_thread_stream_locked(host, thread);
        if (stream == NULL) {
            break;
        }
        thread = stream->thread;
        status = finish_locked(host, stream, start, timeout_ns);
    }
    gm_mutex_unlock(&host->stream_lock);
    return status;
}

gm_status
gm_host_stream_capturing(gm_device *self, gm_stream handle, bool *out)
{
    host_device *host = host_of(self);
    host_stream *stream;
    GM_TRY(host_enter(host, GM_CALL_STREAM_CAPTURING));
    gm_mutex_lock(&host->stream_lock);
    gm_status status = find_stream_locked(host, handle, &stream);
    if (status == GM_OK) {
        *out = stream->capturing;
        gm_host_stream_settle_locked(host, stream);
    }
    gm_mutex_unlock(&host->stream_lock);
    return status;
}

/* ---- events ---------------------------------------------------------------------- */

gm_status
gm_host_event_create(gm_device *self, gm_event *out)
{
    host_device *host = host_of(self);
    gm_handle_node *node;
    GM_TRY(host_enter(host, GM_CALL_EVENT_CREATE));
    gm_mutex_lock(&host->stream_lock);
    gm_status status = gm_handles_take(&host->events, &node);
    if (status == GM_OK) {
        *out = atomic_load_explicit(&node->handle, memory_order_relaxed);
    }
    gm_mutex_unlock(&host->stream_lock);
    return status;
}

gm_status
gm_host_event_destroy(gm_device *self, gm_event handle)
{
    host_device *host = host_of(self);
    GM_TRY(host_enter(host, GM_CALL_EVENT_DESTROY));
    gm_mutex_lock(&host->stream_lock);
    host_event *event = find_event_locked(host, handle);
    if (event != NULL) {
        gm_host_mark_release(event->mark);
        gm_handles_give(&host->events, &event->node);
    }
    gm_mutex_unlock(&host->stream_lock);
    return event == NULL ? GM_INVALID : GM_OK;
}

static gm_status
record_locked(host_device *host, host_event *event, host_stream *stream)
    GM_REQUIRES(host->stream_lock)
{
    host_mark *mark = calloc(1, sizeof(*mark));
    host_work work = {.kind = HOST_WORK_RECORD, .of.mark = mark};
    if (mark == NULL) {
        gm_host_stream_settle_locked(host, stream);
        return GM_NO_HOST_MEMORY;
    }
    gm_list_init(&mark->waiters);
    mark->references = 2; /* the event's and the queue's */
    host_mark *before = event->mark;
    event->mark = mark; /* first: queueing may drop the lock */
    gm_status status = gm_host_queue_locked(host, stream, &work);
    if (status != GM_OK) {
        event->mark = before;
        free(mark);
        return status;
    }
    gm_host_mark_release(before);
    return GM_OK;
}

gm_status
gm_host_event_record(gm_device *self, gm_event handle, gm_stream stream_handle)
{
    host_device *host = host_of(self);
    host_stream *stream;
    GM_TRY(host_enter(host, GM_CALL_EVENT_RECORD));
    gm_mutex_lock(&host->stream_lock);
    host_event *event = find_event_locked(host, handle);
    gm_status status =
        event == NULL ? GM_INVALID : find_stream_locked(host, stream_handle, &stream);
    if (status == GM_OK && gm_host_stream_is_idle(stream)) {
        gm_host_mark_release(event->mark);
        event->mark = NULL;
        stream->issued++;
        stream->finished++;
        gm_host_stream_settle_locked(host, stream);
    }
    else if (status == GM_OK) {
        status = record_locked(host, event, stream);
    }
    gm_mutex_unlock(&host->stream_lock);
    return status;
}

gm_status
gm_host_event_query(gm_device *self, gm_event handle)
{
    host_device *host = host_of(self);
    gm_status status = GM_INVALID;
    GM_TRY(host_enter(host, GM_CALL_EVENT_QUERY));
    gm_mutex_lock(&host->stream_lock);
    const host_event *event = find_event_locked(host, handle);
    if (event != NULL) {
        status = event->mark == NULL || event->mark->done ? GM_OK : GM_NOT_READY;
    }
    gm_mutex_unlock(&host->stream_lock);
    return status;
}

gm_status
gm_host_event_synchronize(gm_device *self, gm_event handle, uint64_t timeout_ns)
{
    host_device *host = host_of(self);
    gm_status status = GM_INVALID;
    GM_TRY(host_enter_outside_capture(host, GM_CALL_EVENT_SYNCHRONIZE));
    uint64_t start = gm_monotonic_ns();
    gm_mutex_lock(&host->stream_lock);
    host_event *event = find_event_locked(host, handle);
    if (event != NULL) {
        host_mark *mark = event->mark;
        status = GM_OK;
        if (mark != NULL) {
            mark->references++;
            while (!mark->done && status == GM_OK) {
                status = sleep_locked(host, start, timeout_ns) ? GM_OK : GM_NOT_READY;
            }
            gm_host_mark_release(mark);
        }
    }
    gm_mutex_unlock(&host->stream_lock);
    return status;
}

gm_status
gm_host_stream_wait(gm_device *self, gm_stream stream_handle, gm_event handle)
{
    host_device *host = host_of(self);
    host_stream *stream;
    host_work work = {.kind = HOST_WORK_WAIT};
    GM_TRY(host_enter(host, GM_CALL_STREAM_WAIT));
    gm_mutex_lock(&host->stream_lock);
    host_event *event = find_event_locked(host, handle);
    gm_status status =
        event == NULL ? GM_INVALID : find_stream_locked(host, stream_handle, &stream);
    if (status == GM_OK) {
        host_mark *mark = event->mark;
        if (mark != NULL) {
            mark->references++;
        }
        work.of.mark = mark;
        status = gm_host_queue_locked(host, stream, &work);
        if (status != GM_OK) {
            gm_host_mark_release(mark);
        }
    }
    gm_mutex_unlock(&host->stream_lock);
    return status;
}

/* ---- work ------------------------------------------------------------------------ */

static gm_status
queue_work(host_device *host, gm_stream handle, const host_work *work)
{
    host_stream *stream;
    gm_mutex_lock(&host->stream_lock);
    gm_status status = find_stream_locked(host, handle, &stream);
    if (status == GM_OK) {
        status = gm_host_queue_locked(host, stream, work);
    }
    gm_mutex_unlock(&host->stream_lock);
    return status;
}

gm_status
gm_host_copy_async(gm_device *self, gm_devptr destination, gm_devptr source, size_t n,
                   gm_stream stream)
{
    host_device *host = host_of(self);
    host_work work = {.kind = HOST_WORK_COPY};
    GM_TRY(host_enter(host, GM_CALL_COPY));
    if (n > 0 && (destination == 0 || source == 0 || destination > UINT64_MAX - n ||
                  source > UINT64_MAX - n)) {
        return GM_INVALID;
    }
    work.of.copy.destination = destination;
    work.of.copy.source = source;
    work.of.copy.size = n;
    return queue_work(host, stream, &work);
}

gm_status
gm_host_fill_async(gm_device *self, gm_devptr destination, const void *pattern,
                   size_t width, size_t count, gm_stream stream)
{
    host_device *host = host_of(self);
    host_work work = {.kind = HOST_WORK_FILL};
    GM_TRY(host_enter(host, GM_CALL_FILL));
    if (width == 0 || width > HOST_PATTERN_LIMIT || (width & (width - 1)) != 0 ||
        count > SIZE_MAX / width ||
        (count > 0 && (destination == 0 || destination > UINT64_MAX - count * width))) {
        return GM_INVALID;
    }
    work.of.fill.destination = destination;
    work.of.fill.width = width;
    work.of.fill.count = count;
    memcpy(work.of.fill.pattern, pattern, width);
    return queue_work(host, stream, &work);
}

gm_status
gm_host_launch(gm_device *self, const gm_kernel *kernel, const void *arguments,
               size_t size, gm_stream stream)
{
    host_device *host = host_of(self);
    host_work work = {.kind = HOST_WORK_LAUNCH};
    GM_TRY(host_enter(host, GM_CALL_LAUNCH));
    if (kernel == NULL || kernel->run_on_host == NULL || size > HOST_ARGUMENTS_LIMIT) {
        return GM_INVALID;
    }
    work.of.launch.run = kernel->run_on_host;
    if (size > 0) {
        memcpy(work.of.launch.arguments, arguments, size);
    }
    return queue_work(host, stream, &work);
}

/* ---- for tests ------------------------------------------------------------------- */

gm_status
gm_host_stall(gm_device *device, gm_stream handle)
{
    host_device *host = host_of(device);
    host_stream *stream;
    GM_TRY(gm_device_usable(device));
    gm_mutex_lock(&host->stream_lock);
    gm_status status = find_stream_locked(host, handle, &stream);
    if (status == GM_OK) {
        stream->stalled = true;
        stream->credit = 0;
        gm_host_stream_settle_locked(host, stream);
    }
    gm_mutex_unlock(&host->stream_lock);
    return status;
}

gm_status
gm_host_release_work(gm_device *device, gm_stream handle, size_t count, size_t *ran)
{
    host_device *host = host_of(device);
    host_stream *stream;
    size_t pieces = 0;
    GM_TRY(gm_device_usable(device));
    gm_mutex_lock(&host->stream_lock);
    gm_status status = find_any_stream_locked(host, handle, &stream);
    if (status == GM_OK) {
        if (count == SIZE_MAX) {
            stream->stalled = false;
            stream->credit = 0;
        }
        else if (stream->stalled) {
            size_t room = stream->waiting - stream->credit;
            stream->credit += count < room ? count : room;
        }
        pieces = gm_host_drain_locked(host, stream);
    }
    gm_mutex_unlock(&host->stream_lock);
    if (status == GM_OK && ran != NULL) {
        *ran = pieces;
    }
    return status;
}

gm_status
gm_host_waiting_work(gm_device *device, gm_stream handle, size_t *out)
{
    host_device *host = host_of(device);
    host_stream *stream;
    GM_TRY(gm_device_usable(device));
    gm_mutex_lock(&host->stream_lock);
    gm_status status = find_any_stream_locked(host, handle, &stream);
    if (status == GM_OK) {
        *out = stream->waiting;
        gm_host_stream_settle_locked(host, stream);
    }
    gm_mutex_unlock(&host->stream_lock);
    return status;
}

gm_status
gm_host_set_capturing(gm_device *device, gm_stream handle, bool capturing)
{
    host_device *host = host_of(device);
    host_stream *stream;
    GM_TRY(gm_device_usable(device));
    gm_mutex_lock(&host->stream_lock);
    gm_status status = find_stream_locked(host, handle, &stream);
    if (status == GM_OK) {
        set_capturing_locked(host, stream, capturing);
        gm_host_stream_settle_locked(host, stream);
    }
    gm_mutex_unlock(&host->stream_lock);
    return status;
}
