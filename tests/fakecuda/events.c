/* events.c - events: made, recorded, asked, waited for. */
#include "events.h"

#include <stdlib.h>

#include "capture.h"
#include "pools.h"

void
fake_event_release_locked(fake_event *event)
{
    if (event != NULL && --event->references == 0) {
        fake_op_release_locked(event->mark);
        free(event->tips);
        free(event);
    }
}

void
fake_event_move_locked(fake_event *event, fake_op *mark)
{
    fake_op_retain(mark);
    fake_op_release_locked(event->mark);
    event->mark = mark;
    event->capture = NULL;
    event->tip_count = 0;
}

int
fake_event_make_locked(CUevent *out, unsigned flags)
{
    unsigned known =
        cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess;
    if (out == NULL || (flags & ~known) != 0) {
        return (int)cudaErrorInvalidValue;
    }
    if ((flags & cudaEventInterprocess) != 0 && (flags & cudaEventDisableTiming) == 0) {
        return (int)cudaErrorInvalidValue;
    }
    fake_event *event = fake_allocate(sizeof(*event));
    event->references = 1;
    event->device = fake_current_device_locked();
    event->flags = flags;
    event->handle = fake_handle_make_locked(FAKE_EVENT, event);
    *out = event->handle;
    return 0;
}

int
fake_event_destroy_locked(CUevent handle)
{
    int error = 0;
    fake_event *event = fake_handle_need_locked(FAKE_EVENT, handle, &error);
    if (event != NULL) {
        fake_handle_drop_locked(FAKE_EVENT, handle);
        event->handle = NULL;
        fake_event_release_locked(event);
    }
    return error;
}

/* The event's capture, if that still goes on. */
static fake_capture *
capture_of_locked(const fake_event *event)
{
    return event->capture == NULL
               ? NULL
               : fake_capture_alive_locked(event->capture, event->capture_id);
}

int
fake_event_record_locked(CUevent handle, CUstream stream_handle, unsigned flags)
{
    int error = 0;
    fake_event *event = fake_handle_need_locked(FAKE_EVENT, handle, &error);
    fake_stream *stream =
        event == NULL ? NULL : fake_stream_of_locked(stream_handle, &error);
    if (stream == NULL) {
        return error;
    }
    if (event->device != stream->device) {
        (void)fake_violation_locked("an event of device %d on a stream of device %d",
                                    event->device, stream->device);
        return (int)cudaErrorInvalidResourceHandle;
    }
    if (stream->capture != NULL) {
        return fake_capture_record_locked(stream, event,
                                          (flags & cudaEventRecordExternal) != 0);
    }
    fake_op *mark;
    fake_task task = {.work = FAKE_MARK, .device = stream->device};
    error = fake_submit_locked(stream, &task, NULL, &mark);
    if (error == 0) {
        fake_event_move_locked(event, mark);
    }
    return error;
}

/* An event that stands in a capture has no place in time. */
static int
check_not_captured_locked(const fake_event *event)
{
    if (event->capture == NULL) {
        return 0;
    }
    (void)fake_violation_locked("the event was last recorded in a capture");
    fake_capture *capture = capture_of_locked(event);
    return capture == NULL ? (int)cudaErrorCapturedEvent
                           : fake_spoil_locked(capture, (int)cudaErrorCapturedEvent);
}

int
fake_event_query_locked(CUevent handle)
{
    int error = 0;
    const fake_event *event = fake_handle_need_locked(FAKE_EVENT, handle, &error);
    if (event != NULL && (error = check_not_captured_locked(event)) == 0 &&
        (error = fake_check_unsafe_locked()) == 0) {
        error = fake_query_locked(event->mark);
    }
    return error;
}

int
fake_event_synchronize_locked(CUevent handle)
{
    int error = 0;
    const fake_event *event = fake_handle_need_locked(FAKE_EVENT, handle, &error);
    if (event != NULL && (error = check_not_captured_locked(event)) == 0 &&
        (error = fake_check_unsafe_locked()) == 0) {
        error = fake_finish_locked(event->mark);
        fake_pools_settle_locked();
    }
    return error;
}

int
fake_event_elapsed_locked(float *out, CUevent start, CUevent end)
{
    int error = 0;
    const fake_event *first = fake_handle_need_locked(FAKE_EVENT, start, &error);
    const fake_event *second =
        first == NULL ? NULL : fake_handle_need_locked(FAKE_EVENT, end, &error);
    if (second == NULL) {
        return error;
    }
    bool timed = ((first->flags | second->flags) & cudaEventDisableTiming) == 0;
    if (!timed || first->mark == NULL || second->mark == NULL) {
        return (int)cudaErrorInvalidResourceHandle;
    }
    if (first->mark->state != FAKE_DONE || second->mark->state != FAKE_DONE) {
        return (int)cudaErrorNotReady;
    }
    *out = (float)((double)second->mark->done_ns - (double)first->mark->done_ns) / 1e6f;
    return 0;
}

int
fake_stream_wait_locked(CUstream stream_handle, CUevent handle, unsigned flags)
{
    int error = 0;
    fake_stream *stream = fake_stream_of_locked(stream_handle, &error);
    fake_event *event =
        stream == NULL ? NULL : fake_handle_need_locked(FAKE_EVENT, handle, &error);
    if (event == NULL) {
        return error;
    }
    if (event->capture != NULL || stream->capture != NULL) {
        return fake_capture_wait_locked(stream, event, capture_of_locked(event),
                                        (flags & cudaEventWaitExternal) != 0);
    }
    if (event->mark == NULL) {
        return 0; /* never recorded: nothing to wait for */
    }
    fake_task task = {.work = FAKE_WAIT, .device = stream->device};
    return fake_submit_locked(stream, &task, event->mark, NULL);
}

/* ---- the runtime's calls ------------------------------------------------------------- */

cudaError_t
cudaEventCreate(cudaEvent_t *event)
{
    RUNTIME_CALL(fake_event_make_locked(event, 0));
}

cudaError_t
cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    RUNTIME_CALL(fake_event_make_locked(event, flags));
}

cudaError_t
cudaEventDestroy(cudaEvent_t event)
{
    RUNTIME_CALL(fake_event_destroy_locked(event));
}

cudaError_t
cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    RUNTIME_CALL(fake_event_record_locked(event, stream, 0));
}

cudaError_t
cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags)
{
    RUNTIME_CALL(fake_event_record_locked(event, stream, flags));
}

cudaError_t
cudaEventQuery(cudaEvent_t event)
{
    RUNTIME_CALL(fake_event_query_locked(event));
}

cudaError_t
cudaEventSynchronize(cudaEvent_t event)
{
    RUNTIME_CALL(fake_event_synchronize_locked(event));
}

cudaError_t
cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    RUNTIME_CALL(fake_event_elapsed_locked(ms, start, end));
}

cudaError_t
cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    RUNTIME_CALL(fake_stream_wait_locked(stream, event, flags));
}
