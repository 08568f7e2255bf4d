/* capture.c - captures: what a stream that captures may do, and what others may not. */
#include "capture.h"

#include <stdlib.h>

static fake_capture *captures;
static uint64_t last_capture_id;
static uint64_t last_thread;
static _Thread_local uint64_t own_thread;
static _Thread_local int own_mode = (int)cudaStreamCaptureModeGlobal;

static uint64_t
this_thread_locked(void)
{
    if (own_thread == 0) {
        own_thread = ++last_thread;
    }
    return own_thread;
}

fake_capture *
fake_capture_alive_locked(const fake_capture *capture, uint64_t id)
{
    for (fake_capture *each = captures; each != NULL; each = each->next) {
        if (each == capture && each->id == id) {
            return each;
        }
    }
    return NULL;
}

int
fake_spoil_locked(fake_capture *capture, int error)
{
    capture->spoiled = true;
    return error;
}

/* ---- what others may not do ------------------------------------------------------------ */

int
fake_check_unsafe_locked(void)
{
    int error = 0;
    if (captures == NULL || own_mode == (int)cudaStreamCaptureModeRelaxed) {
        return 0;
    }
    uint64_t thread = this_thread_locked();
    for (fake_capture *capture = captures; capture != NULL; capture = capture->next) {
        bool own = capture->thread == thread;
        bool forbids = own ? capture->mode != cudaStreamCaptureModeRelaxed
                           : capture->mode == cudaStreamCaptureModeGlobal &&
                                 own_mode == (int)cudaStreamCaptureModeGlobal;
        if (forbids && !capture->spoiled) {
            error = fake_spoil_locked(capture, (int)cudaErrorStreamCaptureUnsupported);
        }
        else if (forbids) {
            error = (int)cudaErrorStreamCaptureUnsupported;
        }
    }
    if (error != 0) {
        (void)fake_violation_locked(
            "forbidden while a stream captures; the capture is "
            "spoiled");
    }
    return error;
}

int
fake_check_implicit_locked(fake_stream *stream)
{
    if (captures == NULL || !stream->legacy) {
        return 0;
    }
    int error = 0;
    for (fake_stream *other = fake_devices[stream->device].streams; other != NULL;
         other = other->next) {
        if (other->capture != NULL && (other->flags & cudaStreamNonBlocking) == 0) {
            error =
                fake_spoil_locked(other->capture, (int)cudaErrorStreamCaptureImplicit);
        }
    }
    if (error != 0) {
        (void)fake_violation_locked(
            "the legacy default stream is used while a blocking "
            "stream captures");
    }
    return error;
}

/* ---- what a stream records --------------------------------------------------------------- */

static void
set_tip(fake_stream *stream, uint32_t node)
{
    stream->tip_count = 0;
    uint32_t *place = fake_push(&stream->tips, &stream->tip_count,
                                &stream->tip_capacity, sizeof(*place));
    *place = node;
}

/* Joins node numbers; each is kept once. */
static void
join_tips(uint32_t **tips, size_t *count, size_t *capacity, const uint32_t *others,
          size_t other_count)
{
    for (size_t i = 0; i < other_count; i++) {
        bool known = false;
        for (size_t k = 0; k < *count; k++) {
            known = known || (*tips)[k] == others[i];
        }
        if (!known) {
            uint32_t *place = fake_push(tips, count, capacity, sizeof(*place));
            *place = others[i];
        }
    }
}

int
fake_capture_task_locked(fake_stream *stream, fake_task *task)
{
    if (stream->capture->spoiled) {
        fake_task_clear(task);
        return (int)cudaErrorStreamCaptureInvalidated;
    }
    fake_graph *graph = stream->capture->graph;
    fake_graph_add_locked(graph, task, stream->tips, stream->tip_count);
    set_tip(stream, (uint32_t)(graph->nodes->count - 1));
    return 0;
}

int
fake_capture_record_locked(fake_stream *stream, fake_event *event, bool external)
{
    fake_capture *capture = stream->capture;
    if (capture->spoiled) {
        return (int)cudaErrorStreamCaptureInvalidated;
    }
    if (external) {
        event->references++;
        fake_task task = {.work = FAKE_MARK, .device = stream->device, .event = event};
        return fake_capture_task_locked(stream, &task);
    }
    event->capture = capture;
    event->capture_id = capture->id;
    event->tip_count = 0;
    join_tips(&event->tips, &event->tip_count, &event->tip_capacity, stream->tips,
              stream->tip_count);
    return 0;
}

int
fake_capture_wait_locked(fake_stream *stream, fake_event *event, fake_capture *capture,
                         bool external)
{
    if (stream->capture != NULL && external) {
        event->references++;
        fake_task task = {.work = FAKE_WAIT, .device = stream->device, .event = event};
        return fake_capture_task_locked(stream, &task);
    }
    if (capture == NULL) {
        (void)fake_violation_locked(
            "the event was not recorded in a capture that goes "
            "on");
        return stream->capture == NULL
                   ? (int)cudaErrorCapturedEvent
                   : fake_spoil_locked(stream->capture,
                                       (int)cudaErrorStreamCaptureIsolation);
    }
    if (capture->spoiled) {
        return (int)cudaErrorStreamCaptureInvalidated;
    }
    if (stream->legacy) {
        (void)fake_violation_locked("the legacy default stream cannot join a capture");
        return fake_spoil_locked(capture, (int)cudaErrorStreamCaptureImplicit);
    }
    if (stream->capture != NULL && stream->capture != capture) {
        (void)fake_violation_locked("the event belongs to another capture");
        (void)fake_spoil_locked(stream->capture, 0);
        return fake_spoil_locked(capture, (int)cudaErrorStreamCaptureMerge);
    }
    stream->capture = capture;
    join_tips(&stream->tips, &stream->tip_count, &stream->tip_capacity, event->tips,
              event->tip_count);
    return 0;
}

/* ---- begin and end ----------------------------------------------------------------------- */

int
fake_capture_begin_locked(CUstream handle, int mode)
{
    int error = 0;
    fake_stream *stream = fake_stream_of_locked(handle, &error);
    if (stream == NULL) {
        return error;
    }
    if (mode < 0 || mode > (int)cudaStreamCaptureModeRelaxed) {
        return (int)cudaErrorInvalidValue;
    }
    if (stream->legacy) {
        (void)fake_violation_locked("the legacy default stream cannot capture");
        return (int)cudaErrorStreamCaptureUnsupported;
    }
    if (stream->capture != NULL) {
        (void)fake_violation_locked("the stream captures already");
        return (int)cudaErrorIllegalState;
    }
    fake_capture *capture = fake_allocate(sizeof(*capture));
    capture->id = ++last_capture_id;
    capture->graph = fake_graph_make_locked();
    capture->mode = (enum cudaStreamCaptureMode)mode;
    capture->thread = this_thread_locked();
    capture->origin = stream;
    capture->next = captures;
    captures = capture;
    stream->capture = capture;
    stream->tip_count = 0;
    return 0;
}

/* Does each node lie before the stream's tips? Nodes stand after what they depend on, so
 * one pass from the end marks all. */
static bool
is_joined(const fake_nodes *nodes, const fake_stream *stream)
{
    bool *reached = fake_allocate(nodes->count + 1);
    for (size_t i = 0; i < stream->tip_count; i++) {
        reached[stream->tips[i]] = true;
    }
    bool all = true;
    for (size_t i = nodes->count; i-- > 0 && all;) {
        all = reached[i];
        for (size_t k = 0; k < nodes->items[i].before_count; k++) {
            reached[nodes->items[i].before[k]] = true;
        }
    }
    free(reached);
    return all;
}

/* No stream captures for it any more. */
static void
disband_locked(fake_capture *capture)
{
    for (int i = 0; i < FAKE_MAX_DEVICES; i++) {
        for (fake_stream *stream = fake_devices[i].streams; stream != NULL;
             stream = stream->next) {
            if (stream->capture == capture) {
                stream->capture = NULL;
                stream->tip_count = 0;
            }
        }
    }
    fake_capture **link = &captures;
    while (*link != capture) {
        link = &(*link)->next;
    }
    *link = capture->next;
    free(capture);
}

/* The error with which the capture ends, or 0. */
static int
judge_end_locked(fake_stream *stream)
{
    const fake_capture *capture = stream->capture;
    if (capture->spoiled) {
        return (int)cudaErrorStreamCaptureInvalidated;
    }
    if (!is_joined(capture->graph->nodes, stream)) {
        (void)fake_violation_locked(
            "work of another stream was not joined to the one "
            "that began the capture");
        return (int)cudaErrorStreamCaptureUnjoined;
    }
    return 0;
}

int
fake_capture_end_locked(CUstream handle, CUgraph *out)
{
    int error = 0;
    fake_stream *stream = fake_stream_of_locked(handle, &error);
    if (stream == NULL) {
        return error;
    }
    fake_capture *capture = stream->capture;
    if (capture == NULL) {
        (void)fake_violation_locked("the stream does not capture");
        return (int)cudaErrorIllegalState;
    }
    if (capture->origin != stream) {
        (void)fake_violation_locked("the capture was begun on another stream");
        return fake_spoil_locked(capture, (int)cudaErrorStreamCaptureUnmatched);
    }
    if (capture->mode != cudaStreamCaptureModeRelaxed &&
        capture->thread != this_thread_locked()) {
        (void)fake_violation_locked("the capture was begun by another thread");
        return (int)cudaErrorStreamCaptureWrongThread;
    }
    error = judge_end_locked(stream);
    fake_graph *graph = capture->graph;
    disband_locked(capture);
    if (error != 0) {
        fake_graph_drop_locked(graph);
        graph = NULL;
    }
    if (out != NULL) {
        *out = graph == NULL ? NULL : graph->handle;
    }
    return error;
}

/* ---- questions ----------------------------------------------------------------------------- */

/* Asking about the legacy stream while a blocking one captures is an error, but spoils
 * nothing. */
static int
check_question_locked(const fake_stream *stream)
{
    if (!stream->legacy) {
        return 0;
    }
    for (const fake_stream *other = fake_devices[stream->device].streams; other != NULL;
         other = other->next) {
        if (other->capture != NULL && (other->flags & cudaStreamNonBlocking) == 0) {
            return (int)cudaErrorStreamCaptureImplicit;
        }
    }
    return 0;
}

int
fake_capture_status_locked(CUstream handle, int *out)
{
    return fake_capture_info_locked(handle, out, NULL, NULL, NULL, NULL);
}

int
fake_capture_info_locked(CUstream handle, int *status, unsigned long long *id,
                         CUgraph *graph, const CUgraphNode **nodes, size_t *count)
{
    static _Thread_local CUgraphNode *names;
    int error = 0;
    const fake_stream *stream = fake_stream_of_locked(handle, &error);
    if (stream == NULL || (error = check_question_locked(stream)) != 0) {
        return error;
    }
    const fake_capture *capture = stream->capture;
    *status = capture == NULL    ? (int)cudaStreamCaptureStatusNone
              : capture->spoiled ? (int)cudaStreamCaptureStatusInvalidated
                                 : (int)cudaStreamCaptureStatusActive;
    if (capture == NULL) {
        return 0;
    }
    if (id != NULL) {
        *id = capture->id;
    }
    if (graph != NULL) {
        *graph = capture->graph->handle;
    }
    if (nodes != NULL) {
        names = fake_grow(names, (stream->tip_count + 1) * sizeof(*names));
        for (size_t i = 0; i < stream->tip_count; i++) {
            names[i] = fake_node_handle(capture->graph, stream->tips[i]);
        }
        *nodes = names;
    }
    if (count != NULL) {
        *count = stream->tip_count;
    }
    return 0;
}

int
fake_capture_exchange_mode_locked(int *mode)
{
    if (mode == NULL || *mode < 0 || *mode > (int)cudaStreamCaptureModeRelaxed) {
        return (int)cudaErrorInvalidValue;
    }
    int before = own_mode;
    own_mode = *mode;
    *mode = before;
    return 0;
}

void
fake_capture_reset_locked(void)
{
    while (captures != NULL) {
        disband_locked(captures);
    }
}

/* ---- the runtime's calls -------------------------------------------------------------------- */

cudaError_t
cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    RUNTIME_CALL(fake_capture_begin_locked(stream, (int)mode));
}

cudaError_t
cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    RUNTIME_CALL(fake_capture_end_locked(stream, graph));
}

static int
status_locked(cudaStream_t stream, enum cudaStreamCaptureStatus *out)
{
    int status;
    int error = fake_capture_status_locked(stream, &status);
    if (error == 0) {
        *out = (enum cudaStreamCaptureStatus)status;
    }
    return error;
}

cudaError_t
cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    RUNTIME_CALL(status_locked(stream, status));
}

static int
exchange_locked(enum cudaStreamCaptureMode *mode)
{
    int number = (int)*mode;
    int error = fake_capture_exchange_mode_locked(&number);
    if (error == 0) {
        *mode = (enum cudaStreamCaptureMode)number;
    }
    return error;
}

cudaError_t
cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    RUNTIME_CALL(exchange_locked(mode));
}
