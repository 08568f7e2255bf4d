/* cuda_stream.c - streams and events of a CUDA device.
 *
 * A handle of a stream is the cudaStream_t as an integer, so that everybody's streams can
 * be named; those made here are kept in a registry. A handle of an event is a number of
 * ours: an event that is given back is kept for the next one who asks, and a stale handle
 * is told from a living one.
 *
 * Waits with a time limit ask again and again, with sleeps that grow: the driver has no
 * wait that ends.
 */
#include <stdlib.h>
#include <time.h>

#include "base/futex.h"
#include "device/cuda_internal.h"

#define FIRST_SLEEP_NS UINT64_C(10000)
#define LONGEST_SLEEP_NS UINT64_C(1000000)

static cudaStream_t
stream_of(gm_stream stream)
{
    return (cudaStream_t)(uintptr_t)stream;
}

void
gm_cuda_streams_init(cuda_device *self)
{
    gm_mutex_init(&self->stream_lock, GM_RANK_DEVICE);
    gm_handles_init(&self->events, sizeof(cuda_event));
}

/* ---- waiting --------------------------------------------------------------------- */

/* Asks until the answer is another one than "not ready", or the time is over. */
static cudaError_t
poll(cudaError_t (*query)(cuda_device *self, void *what), cuda_device *self, void *what,
     uint64_t timeout_ns)
{
    uint64_t start = gm_monotonic_ns();
    uint64_t sleep_ns = FIRST_SLEEP_NS;
    for (;;) {
        cudaError_t error = query(self, what);
        uint64_t passed = gm_monotonic_ns() - start;
        if (error != cudaErrorNotReady || passed >= timeout_ns) {
            return error;
        }
        uint64_t left_ns = timeout_ns - passed;
        struct timespec time = {.tv_nsec =
                                    (long)(sleep_ns < left_ns ? sleep_ns : left_ns)};
        (void)nanosleep(&time, NULL);
        sleep_ns = sleep_ns < LONGEST_SLEEP_NS ? 2 * sleep_ns : sleep_ns;
    }
}

static cudaError_t
query_stream(cuda_device *self, void *stream)
{
    return self->cuda->cudaStreamQuery(stream);
}

static cudaError_t
query_event(cuda_device *self, void *event)
{
    return self->cuda->cudaEventQuery(event);
}

/* ---- streams --------------------------------------------------------------------- */

uint64_t
gm_cuda_stream_identity(gm_device *device, gm_stream stream)
{
    const cuda_device *self = cuda_of(device);
    unsigned long long number = 0;
    if (stream == GM_DEFAULT_STREAM || stream == GM_STREAM_LEGACY ||
        stream == GM_STREAM_PER_THREAD) {
        return gm_handle_stream_identity(stream);
    }
    if (self->cuda->cudaStreamGetId == NULL || gm_device_usable(device) != GM_OK) {
        return stream & ~GM_IDENTITY_OF_THREAD;
    }
    cudaError_t pending = self->cuda->cudaPeekAtLastError();
    cudaError_t error = self->cuda->cudaStreamGetId(stream_of(stream), &number);
    if (error != cudaSuccess) {
        if (pending == cudaSuccess) {
            (void)self->cuda->cudaGetLastError();
        }
        return stream & ~GM_IDENTITY_OF_THREAD;
    }
    /* Numbers of the driver and handles do not meet, nor either and the default's. */
    return (uint64_t)1 << 62 | number;
}

gm_status
gm_cuda_stream_create(gm_device *device, gm_stream *out)
{
    cuda_device *self = cuda_of(device);
    cuda_call call;
    cudaStream_t stream = NULL;
    gm_status noted = GM_OK;
    GM_TRY(gm_cuda_enter(self, GM_CALL_STREAM_CREATE, &call));
    cudaError_t error =
        self->cuda->cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (error == cudaSuccess) {
        gm_mutex_lock(&self->stream_lock);
        noted = gm_intervals_insert(&self->streams, (uintptr_t)stream, 1, NULL);
        gm_mutex_unlock(&self->stream_lock);
        if (noted != GM_OK) {
            (void)self->cuda->cudaStreamDestroy(stream);
        }
    }
    gm_status status = gm_cuda_leave(self, &call, error, "cudaStreamCreateWithFlags");
    status = status == GM_OK ? noted : status;
    if (status == GM_OK) {
        *out = (uintptr_t)stream;
    }
    return status;
}

/* Takes the stream out of the registry. False: it was not made here. */
static bool
forget_stream(cuda_device *self, gm_stream stream)
{
    gm_mutex_lock(&self->stream_lock);
    gm_interval *found = gm_intervals_exactly(&self->streams, stream, 1);
    if (found != NULL) {
        gm_intervals_remove(&self->streams, found);
    }
    gm_mutex_unlock(&self->stream_lock);
    return found != NULL;
}

gm_status
gm_cuda_stream_destroy(gm_device *device, gm_stream stream)
{
    cuda_device *self = cuda_of(device);
    cuda_call call;
    gm_status status = gm_cuda_enter(self, GM_CALL_STREAM_DESTROY, &call);
    if (status != GM_OK && status != GM_DEVICE_LOST) {
        return status;
    }
    bool found = forget_stream(self, stream);
    if (status == GM_DEVICE_LOST) {
        return found ? GM_OK : GM_INVALID;
    }
    cudaError_t error = found ? self->cuda->cudaStreamDestroy(stream_of(stream))
                              : cudaErrorInvalidResourceHandle;
    status = gm_cuda_leave(self, &call, error, "cudaStreamDestroy");
    if (status != GM_OK && status != GM_DEVICE_LOST && found) {
        /* Tried again when the device goes; without memory for the note it is leaked. */
        gm_mutex_lock(&self->stream_lock);
        (void)!gm_intervals_insert(&self->streams, stream, 1, NULL);
        gm_mutex_unlock(&self->stream_lock);
    }
    return status == GM_DEVICE_LOST ? GM_OK : status;
}

gm_status
gm_cuda_stream_synchronize(gm_device *device, gm_stream stream, uint64_t timeout_ns)
{
    cuda_device *self = cuda_of(device);
    cuda_call call;
    GM_TRY(gm_cuda_enter(self, GM_CALL_STREAM_SYNCHRONIZE, &call));
    cudaError_t error = timeout_ns == UINT64_MAX
                            ? self->cuda->cudaStreamSynchronize(stream_of(stream))
                            : poll(query_stream, self, stream_of(stream), timeout_ns);
    return gm_cuda_leave(self, &call, error, "cudaStreamSynchronize");
}

gm_status
gm_cuda_stream_capturing(gm_device *device, gm_stream stream, bool *out)
{
    cuda_device *self = cuda_of(device);
    cuda_call call;
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    GM_TRY(gm_cuda_enter(self, GM_CALL_STREAM_CAPTURING, &call));
    cudaError_t error = self->cuda->cudaStreamIsCapturing(stream_of(stream), &capture);
    gm_status status = gm_cuda_leave(self, &call, error, "cudaStreamIsCapturing");
    if (status == GM_CAPTURING) {
        /* The default stream while another one captures: nothing may be done on it. */
        capture = cudaStreamCaptureStatusActive;
        status = GM_OK;
    }
    if (status == GM_OK) {
        *out = capture != cudaStreamCaptureStatusNone;
    }
    return status;
}

/* ---- making and keeping events --------------------------------------------------- */

/* Room for one event more to come back. */
static gm_status
secure_spare_locked(cuda_device *self) GM_REQUIRES(self->stream_lock)
{
    size_t needed = self->events.live + self->spare_count + 1;
    if (needed <= self->spare_capacity) {
        return GM_OK;
    }
    size_t capacity = needed < 32 ? 32 : 2 * needed;
    cudaEvent_t *grown = realloc(self->spares, capacity * sizeof(*grown));
    if (grown == NULL) {
        return GM_NO_HOST_MEMORY;
    }
    self->spares = grown;
    self->spare_capacity = capacity;
    return GM_OK;
}

/* A node with an event of the spares, if there is one; else its event is NULL. */
static gm_status
take_event_locked(cuda_device *self, cuda_event **out) GM_REQUIRES(self->stream_lock)
{
    gm_handle_node *node;
    GM_TRY(secure_spare_locked(self));
    GM_TRY(gm_handles_take(&self->events, &node));
    *out = (cuda_event *)(void *)node;
    if (self->spare_count != 0) {
        (*out)->event = self->spares[--self->spare_count];
    }
    return GM_OK;
}

gm_status
gm_cuda_event_create(gm_device *device, gm_event *out)
{
    cuda_device *self = cuda_of(device);
    cuda_call call;
    cuda_event *event = NULL;
    GM_TRY(gm_cuda_enter(self, GM_CALL_EVENT_CREATE, &call));
    gm_mutex_lock(&self->stream_lock);
    gm_status taken = take_event_locked(self, &event);
    gm_mutex_unlock(&self->stream_lock);
    cudaError_t error = cudaSuccess;
    if (taken == GM_OK && event->event == NULL) {
        error =
            self->cuda->cudaEventCreateWithFlags(&event->event, cudaEventDisableTiming);
        if (error != cudaSuccess) {
            gm_mutex_lock(&self->stream_lock);
            gm_handles_give(&self->events, &event->node);
            gm_mutex_unlock(&self->stream_lock);
        }
    }
    gm_status status = gm_cuda_leave(self, &call, error, "cudaEventCreateWithFlags");
    status = taken == GM_OK ? status : taken;
    if (status == GM_OK) {
        *out = atomic_load_explicit(&event->node.handle, memory_order_relaxed);
    }
    return status;
}

/* The event goes to the spares: no call of the driver, and it cannot fail. */
gm_status
gm_cuda_event_destroy(gm_device *device, gm_event handle)
{
    cuda_device *self = cuda_of(device);
    GM_TRY(gm_device_usable(device));
    gm_tally_call(&self->tally, GM_CALL_EVENT_DESTROY);
    gm_mutex_lock(&self->stream_lock);
    gm_handle_node *node = gm_handles_find(&self->events, handle);
    if (node != NULL) {
        self->spares[self->spare_count++] = ((cuda_event *)(void *)node)->event;
        gm_handles_give(&self->events, node);
    }
    gm_mutex_unlock(&self->stream_lock);
    return node == NULL ? GM_INVALID : GM_OK;
}

static void
destroy_event(gm_handle_node *node, void *argument)
{
    const cuda_device *self = argument;
    (void)self->cuda->cudaEventDestroy(((cuda_event *)(void *)node)->event);
}

void
gm_cuda_streams_destroy(cuda_device *self) GM_NO_THREAD_ANALYSIS
{
    gm_handles_visit(&self->events, destroy_event, self);
    for (size_t i = 0; i < self->spare_count; i++) {
        (void)self->cuda->cudaEventDestroy(self->spares[i]);
    }
    for (size_t i = 0; i < self->streams.count; i++) {
        (void)self->cuda->cudaStreamDestroy(stream_of(self->streams.items[i].address));
    }
}

/* ---- using events ---------------------------------------------------------------- */

static cuda_event *
find_event(cuda_device *self, gm_event handle)
{
    return (cuda_event *)(void *)gm_handles_find(&self->events, handle);
}

/* Is there nothing to wait for? An event that came from the spares may carry the mark of
 * its last owner. */
static bool
is_blank(const cuda_event *event)
{
    return !atomic_load_explicit(&event->recorded, memory_order_acquire);
}

gm_status
gm_cuda_event_record(gm_device *device, gm_event handle, gm_stream stream)
{
    cuda_device *self = cuda_of(device);
    cuda_call call;
    GM_TRY(gm_cuda_enter(self, GM_CALL_EVENT_RECORD, &call));
    cuda_event *event = find_event(self, handle);
    cudaError_t error = cudaErrorInvalidResourceHandle;
    if (event != NULL) {
        error = self->cuda->cudaEventRecord(event->event, stream_of(stream));
        if (error == cudaSuccess) {
            atomic_store_explicit(&event->recorded, true, memory_order_release);
        }
    }
    return gm_cuda_leave(self, &call, error, "cudaEventRecord");
}

gm_status
gm_cuda_event_query(gm_device *device, gm_event handle)
{
    cuda_device *self = cuda_of(device);
    cuda_call call;
    GM_TRY(gm_cuda_enter(self, GM_CALL_EVENT_QUERY, &call));
    const cuda_event *event = find_event(self, handle);
    cudaError_t error = cudaErrorInvalidResourceHandle;
    if (event != NULL) {
        error =
            is_blank(event) ? cudaSuccess : self->cuda->cudaEventQuery(event->event);
    }
    return gm_cuda_leave(self, &call, error, "cudaEventQuery");
}

static cudaError_t
wait_for_event(cuda_device *self, cudaEvent_t event, uint64_t timeout_ns)
{
    return timeout_ns == UINT64_MAX ? self->cuda->cudaEventSynchronize(event)
                                    : poll(query_event, self, event, timeout_ns);
}

gm_status
gm_cuda_event_synchronize(gm_device *device, gm_event handle, uint64_t timeout_ns)
{
    cuda_device *self = cuda_of(device);
    cuda_call call;
    GM_TRY(gm_cuda_enter(self, GM_CALL_EVENT_SYNCHRONIZE, &call));
    const cuda_event *event = find_event(self, handle);
    cudaError_t error = cudaErrorInvalidResourceHandle;
    if (event != NULL) {
        error = is_blank(event) ? cudaSuccess
                                : wait_for_event(self, event->event, timeout_ns);
    }
    return gm_cuda_leave(self, &call, error, "cudaEventSynchronize");
}

gm_status
gm_cuda_stream_wait(gm_device *device, gm_stream stream, gm_event handle)
{
    cuda_device *self = cuda_of(device);
    cuda_call call;
    GM_TRY(gm_cuda_enter(self, GM_CALL_STREAM_WAIT, &call));
    const cuda_event *event = find_event(self, handle);
    cudaError_t error = cudaErrorInvalidResourceHandle;
    if (event != NULL) {
        error = is_blank(event) ? cudaSuccess
                                : self->cuda->cudaStreamWaitEvent(stream_of(stream),
                                                                  event->event, 0);
    }
    return gm_cuda_leave(self, &call, error, "cudaStreamWaitEvent");
}

/* A spare event, or a new one, for the length of one call. */
static cudaError_t
borrow_event(cuda_device *self, cudaEvent_t *out)
{
    *out = NULL;
    gm_mutex_lock(&self->stream_lock);
    if (self->spare_count != 0) {
        *out = self->spares[--self->spare_count];
    }
    gm_mutex_unlock(&self->stream_lock);
    return *out != NULL
               ? cudaSuccess
               : self->cuda->cudaEventCreateWithFlags(out, cudaEventDisableTiming);
}

/* Without memory for one more spare the event is destroyed. */
static void
bring_back_event(cuda_device *self, cudaEvent_t event)
{
    gm_mutex_lock(&self->stream_lock);
    bool kept = secure_spare_locked(self) == GM_OK;
    if (kept) {
        self->spares[self->spare_count++] = event;
    }
    gm_mutex_unlock(&self->stream_lock);
    if (!kept) {
        (void)self->cuda->cudaEventDestroy(event);
    }
}

/* The default stream waits for every thread's own stream, of threads that have ended,
 * too: an event on it marks all their work. */
gm_status
gm_cuda_threads_synchronize(gm_device *device, uint64_t timeout_ns)
{
    cuda_device *self = cuda_of(device);
    cuda_call call;
    cudaEvent_t event;
    GM_TRY(gm_cuda_enter(self, GM_CALL_THREADS_SYNCHRONIZE, &call));
    const char *name = "cudaEventCreateWithFlags";
    cudaError_t error = borrow_event(self, &event);
    if (error == cudaSuccess) {
        name = "cudaEventRecord";
        error = self->cuda->cudaEventRecord(event, cudaStreamLegacy);
        if (error == cudaSuccess) {
            name = "cudaEventQuery";
            error = wait_for_event(self, event, timeout_ns);
        }
        bring_back_event(self, event);
    }
    return gm_cuda_leave(self, &call, error, name);
}
