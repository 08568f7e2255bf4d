/* streams.c - streams: made, asked, waited for; and functions of the host on them. */
#include "streams.h"

#include <stdlib.h>

#include "pools.h"

#define LEAST_PRIORITY 0
#define GREATEST_PRIORITY (-5)

int
fake_stream_create_locked(CUstream *out, unsigned flags, int priority)
{
    if (out == NULL || (flags & ~(unsigned)cudaStreamNonBlocking) != 0) {
        return (int)cudaErrorInvalidValue;
    }
    /* Outside the range a priority becomes the nearest one. */
    priority = priority > LEAST_PRIORITY ? LEAST_PRIORITY : priority;
    priority = priority < GREATEST_PRIORITY ? GREATEST_PRIORITY : priority;
    fake_stream *stream =
        fake_stream_make_locked(fake_current_device_locked(), flags, priority);
    stream->handle = fake_handle_make_locked(FAKE_STREAM, stream);
    *out = stream->handle;
    return 0;
}

int
fake_stream_destroy_locked(CUstream handle)
{
    int error = 0;
    if (handle == 0 || handle == cudaStreamLegacy || handle == cudaStreamPerThread) {
        (void)fake_violation_locked("a default stream cannot be destroyed");
        return (int)cudaErrorInvalidResourceHandle;
    }
    fake_stream *stream = fake_handle_need_locked(FAKE_STREAM, handle, &error);
    if (stream == NULL) {
        return error;
    }
    if (stream->capture != NULL) {
        (void)fake_violation_locked("the stream is part of a capture");
        error =
            fake_spoil_locked(stream->capture, (int)cudaErrorStreamCaptureUnmatched);
    }
    fake_handle_drop_locked(FAKE_STREAM, handle);
    fake_stream_drop_locked(stream);
    return error;
}

/* A stream that may be waited for: one that captures may not. */
static fake_stream *
stream_to_wait_for_locked(CUstream handle, int *error)
{
    fake_stream *stream = fake_stream_of_locked(handle, error);
    if (stream == NULL) {
        return NULL;
    }
    if (stream->capture != NULL) {
        *error =
            fake_spoil_locked(stream->capture, (int)cudaErrorStreamCaptureUnsupported);
        return NULL;
    }
    *error = fake_check_implicit_locked(stream);
    if (*error == 0) {
        *error = fake_check_unsafe_locked();
    }
    return *error == 0 ? stream : NULL;
}

/* The legacy stream stands behind all blocking ones, so it is asked by an operation of
 * its own that waits for them. */
static fake_op *
last_work_locked(fake_stream *stream)
{
    fake_op *op = stream->last;
    if (stream->legacy) {
        fake_task task = {.work = FAKE_WAIT, .device = stream->device};
        (void)fake_submit_locked(stream, &task, NULL, &op);
    }
    return op;
}

int
fake_stream_synchronize_locked(CUstream handle)
{
    int error = 0;
    fake_stream *stream = stream_to_wait_for_locked(handle, &error);
    if (stream != NULL) {
        error = fake_finish_locked(last_work_locked(stream));
        fake_pools_settle_locked();
    }
    return error;
}

int
fake_stream_query_locked(CUstream handle)
{
    int error = 0;
    fake_stream *stream = stream_to_wait_for_locked(handle, &error);
    if (stream == NULL) {
        return error;
    }
    /* Asking again must ask about the same operation, or the lag would never end. */
    bool asked = stream->last != NULL && stream->last->state != FAKE_DONE &&
                 stream->last->queries > 0;
    return fake_query_locked(asked ? stream->last : last_work_locked(stream));
}

int
fake_device_synchronize_locked(void)
{
    int error = fake_check_unsafe_locked();
    if (error == 0) {
        error = fake_finish_device_locked(fake_current_device_locked());
        fake_pools_settle_locked();
    }
    return error;
}

/* ---- what a stream is ----------------------------------------------------------------- */

int
fake_stream_number_locked(CUstream handle, unsigned long long *out)
{
    int error = 0;
    const fake_stream *stream = fake_stream_of_locked(handle, &error);
    if (stream != NULL) {
        *out = stream->id;
    }
    return error;
}

int
fake_stream_flags_locked(CUstream handle, unsigned *out)
{
    int error = 0;
    const fake_stream *stream = fake_stream_of_locked(handle, &error);
    if (stream != NULL) {
        *out = stream->flags;
    }
    return error;
}

int
fake_stream_priority_locked(CUstream handle, int *out)
{
    int error = 0;
    const fake_stream *stream = fake_stream_of_locked(handle, &error);
    if (stream != NULL) {
        *out = stream->priority;
    }
    return error;
}

int
fake_stream_device_locked(CUstream handle, int *out)
{
    int error = 0;
    const fake_stream *stream = fake_stream_of_locked(handle, &error);
    if (stream != NULL) {
        *out = stream->device;
    }
    return error;
}

int
fake_stream_call_locked(CUstream handle, void (*function)(void *),
                        cudaStreamCallback_t callback, void *data)
{
    int error = 0;
    fake_stream *stream = fake_stream_of_locked(handle, &error);
    if (stream == NULL || (function == NULL && callback == NULL)) {
        return stream == NULL ? error : (int)cudaErrorInvalidValue;
    }
    if (callback != NULL && stream->capture != NULL) {
        return fake_spoil_locked(stream->capture,
                                 (int)cudaErrorStreamCaptureUnsupported);
    }
    fake_task task = {.work = FAKE_HOST,
                      .device = stream->device,
                      .function = function,
                      .callback = callback,
                      .callback_stream = handle,
                      .data = data};
    return fake_submit_locked(stream, &task, NULL, NULL);
}

/* ---- the runtime's calls --------------------------------------------------------------- */

cudaError_t
cudaStreamCreate(cudaStream_t *stream)
{
    RUNTIME_CALL(fake_stream_create_locked(stream, 0, 0));
}

cudaError_t
cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    RUNTIME_CALL(fake_stream_create_locked(stream, flags, 0));
}

cudaError_t
cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    RUNTIME_CALL(fake_stream_create_locked(stream, flags, priority));
}

cudaError_t
cudaStreamDestroy(cudaStream_t stream)
{
    RUNTIME_CALL(fake_stream_destroy_locked(stream));
}

cudaError_t
cudaStreamSynchronize(cudaStream_t stream)
{
    RUNTIME_CALL(fake_stream_synchronize_locked(stream));
}

cudaError_t
cudaStreamQuery(cudaStream_t stream)
{
    RUNTIME_CALL(fake_stream_query_locked(stream));
}

cudaError_t
cudaDeviceSynchronize(void)
{
    RUNTIME_CALL(fake_device_synchronize_locked());
}

cudaError_t
cudaStreamGetId(cudaStream_t stream, unsigned long long *id)
{
    RUNTIME_CALL(fake_stream_number_locked(stream, id));
}

cudaError_t
cudaStreamGetFlags(cudaStream_t stream, unsigned *flags)
{
    RUNTIME_CALL(fake_stream_flags_locked(stream, flags));
}

cudaError_t
cudaStreamGetPriority(cudaStream_t stream, int *priority)
{
    RUNTIME_CALL(fake_stream_priority_locked(stream, priority));
}

cudaError_t
cudaStreamGetDevice(cudaStream_t stream, int *device)
{
    RUNTIME_CALL(fake_stream_device_locked(stream, device));
}

cudaError_t
cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
    RUNTIME_CALL(fake_stream_call_locked(stream, function, NULL, data));
}

cudaError_t
cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *data,
                      unsigned flags)
{
    RUNTIME_CALL(flags != 0 ? (int)cudaErrorInvalidValue
                            : fake_stream_call_locked(stream, NULL, callback, data));
}

cudaError_t
cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    if (least != NULL) {
        *least = LEAST_PRIORITY;
    }
    if (greatest != NULL) {
        *greatest = GREATEST_PRIORITY;
    }
    return cudaSuccess;
}
