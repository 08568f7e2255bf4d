/* driver.c - the driver's calls on streams, events, captures and graphs. They share their
 * bodies with the runtime's. */
#include "capture.h"
#include "events.h"
#include "graphs.h"
#include "streams.h"

/* ---- streams ---------------------------------------------------------------------------------- */

CUresult
cuStreamCreate(CUstream *stream, unsigned flags)
{
    CONTEXT_CALL(fake_stream_create_locked(stream, flags, 0));
}

CUresult
cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    CONTEXT_CALL(fake_stream_create_locked(stream, flags, priority));
}

CUresult
cuStreamDestroy(CUstream stream)
{
    CONTEXT_CALL(fake_stream_destroy_locked(stream));
}

CUresult
cuStreamSynchronize(CUstream stream)
{
    CONTEXT_CALL(fake_stream_synchronize_locked(stream));
}

CUresult
cuStreamQuery(CUstream stream)
{
    CONTEXT_CALL(fake_stream_query_locked(stream));
}

CUresult
cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    CONTEXT_CALL(fake_stream_wait_locked(stream, event, flags));
}

CUresult
cuStreamGetId(CUstream stream, unsigned long long *id)
{
    CONTEXT_CALL(fake_stream_number_locked(stream, id));
}

CUresult
cuStreamGetFlags(CUstream stream, unsigned *flags)
{
    CONTEXT_CALL(fake_stream_flags_locked(stream, flags));
}

CUresult
cuStreamGetPriority(CUstream stream, int *priority)
{
    CONTEXT_CALL(fake_stream_priority_locked(stream, priority));
}

CUresult
cuStreamGetDevice(CUstream stream, CUdevice *device)
{
    CONTEXT_CALL(fake_stream_device_locked(stream, device));
}

static int
context_of_locked(CUstream stream, CUcontext *out)
{
    int device;
    int error = fake_stream_device_locked(stream, &device);
    if (error == 0) {
        *out = fake_devices[device].context;
    }
    return error;
}

CUresult
cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    CONTEXT_CALL(context_of_locked(stream, context));
}

CUresult
cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data)
{
    CONTEXT_CALL(fake_stream_call_locked(stream, function, NULL, data));
}

/* The two interfaces' callbacks differ in the name of the error's type alone. */
CUresult
cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *data,
                    unsigned flags)
{
    CONTEXT_CALL(
        flags != 0
            ? (int)cudaErrorInvalidValue
            : fake_stream_call_locked(
                  stream, NULL, (cudaStreamCallback_t)(void (*)(void))callback, data));
}

/* ---- events ------------------------------------------------------------------------------------- */

CUresult
cuEventCreate(CUevent *event, unsigned flags)
{
    CONTEXT_CALL(fake_event_make_locked(event, flags));
}

CUresult
cuEventDestroy(CUevent event)
{
    CONTEXT_CALL(fake_event_destroy_locked(event));
}

CUresult
cuEventRecord(CUevent event, CUstream stream)
{
    CONTEXT_CALL(fake_event_record_locked(event, stream, 0));
}

CUresult
cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags)
{
    CONTEXT_CALL(fake_event_record_locked(event, stream, flags));
}

CUresult
cuEventQuery(CUevent event)
{
    CONTEXT_CALL(fake_event_query_locked(event));
}

CUresult
cuEventSynchronize(CUevent event)
{
    CONTEXT_CALL(fake_event_synchronize_locked(event));
}

CUresult
cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
    CONTEXT_CALL(fake_event_elapsed_locked(ms, start, end));
}

/* ---- captures ------------------------------------------------------------------------------------- */

CUresult
cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode)
{
    CONTEXT_CALL(fake_capture_begin_locked(stream, (int)mode));
}

CUresult
cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    CONTEXT_CALL(fake_capture_end_locked(stream, graph));
}

static int
info_locked(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
            CUgraph *graph, const CUgraphNode **nodes, size_t *count)
{
    int number = 0;
    unsigned long long name = 0;
    int error = fake_capture_info_locked(stream, &number, &name, graph, nodes, count);
    *status = (CUstreamCaptureStatus)number;
    if (error == 0 && id != NULL) {
        *id = name;
    }
    return error;
}

CUresult
cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    CONTEXT_CALL(info_locked(stream, status, NULL, NULL, NULL, NULL));
}

CUresult
cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                       CUgraph *graph, const CUgraphNode **nodes,
                       const CUgraphEdgeData **edges, size_t *count)
{
    if (edges != NULL) {
        *edges = NULL;
    }
    CONTEXT_CALL(info_locked(stream, status, id, graph, nodes, count));
}

static int
exchange_locked(CUstreamCaptureMode *mode)
{
    int number = (int)*mode;
    int error = fake_capture_exchange_mode_locked(&number);
    if (error == 0) {
        *mode = (CUstreamCaptureMode)number;
    }
    return error;
}

CUresult
cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    CONTEXT_CALL(exchange_locked(mode));
}

/* ---- graphs ---------------------------------------------------------------------------------------- */

CUresult
cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    (void)flags;
    CONTEXT_CALL(fake_graph_instantiate_locked(exec, graph));
}

CUresult
cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    CONTEXT_CALL(fake_graph_launch_locked(exec, stream));
}

CUresult
cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    CONTEXT_CALL(fake_graph_upload_locked(exec, stream));
}

CUresult
cuGraphDestroy(CUgraph graph)
{
    CONTEXT_CALL(fake_graph_destroy_locked(graph));
}

CUresult
cuGraphExecDestroy(CUgraphExec exec)
{
    CONTEXT_CALL(fake_graph_exec_destroy_locked(exec));
}

CUresult
cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    CONTEXT_CALL(fake_graph_nodes_locked(graph, nodes, count));
}
