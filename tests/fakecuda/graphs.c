/* graphs.c - graphs: made by a capture, made executable, launched. */
#include "graphs.h"

#include <stdlib.h>

#include "events.h"
#include "memory.h"

/* ---- nodes --------------------------------------------------------------------------------- */

static void
release_nodes_locked(fake_nodes *nodes)
{
    if (--nodes->references > 0) {
        return;
    }
    for (size_t i = 0; i < nodes->count; i++) {
        fake_task_clear(&nodes->items[i].task);
        free(nodes->items[i].before);
    }
    free(nodes->items);
    free(nodes);
}

fake_graph *
fake_graph_make_locked(void)
{
    fake_graph *graph = fake_allocate(sizeof(*graph));
    graph->nodes = fake_allocate(sizeof(*graph->nodes));
    graph->nodes->references = 1;
    graph->handle = fake_handle_make_locked(FAKE_GRAPH, graph);
    return graph;
}

void
fake_graph_drop_locked(fake_graph *graph)
{
    fake_handle_drop_locked(FAKE_GRAPH, graph->handle);
    release_nodes_locked(graph->nodes);
    free(graph);
}

void
fake_graph_add_locked(fake_graph *graph, fake_task *task, const uint32_t *before,
                      size_t count)
{
    fake_nodes *nodes = graph->nodes;
    fake_node *node =
        fake_push(&nodes->items, &nodes->count, &nodes->capacity, sizeof(*node));
    node->task = *task;
    node->before = fake_allocate((count + 1) * sizeof(*node->before));
    node->before_count = count;
    for (size_t i = 0; i < count; i++) {
        node->before[i] = before[i];
    }
}

CUgraphNode
fake_node_handle(const fake_graph *graph, size_t n)
{
    return (CUgraphNode)((uintptr_t)graph->handle << 16 | (uintptr_t)(n + 1));
}

/* ---- running --------------------------------------------------------------------------------- */

void
fake_exec_release_locked(fake_exec *exec)
{
    if (exec != NULL && --exec->references == 0) {
        fake_op_release_locked(exec->last);
        release_nodes_locked(exec->nodes);
        free(exec);
    }
}

void
fake_run_graph_locked(fake_op *op, const fake_task *task)
{
    const fake_nodes *nodes = task->exec->nodes;
    for (size_t i = 0; i < nodes->count && fake_devices[task->device].lost == 0; i++) {
        fake_execute_task_locked(op, &nodes->items[i].task);
    }
}

/* Everything that the graph's nodes use is used by the launch. Its addresses must lead
 * where they led when they were captured: the graph knows nothing but addresses. */
static int
add_spans_locked(fake_task *task, const fake_nodes *nodes)
{
    for (size_t i = 0; i < nodes->count; i++) {
        const fake_task *node = &nodes->items[i].task;
        if (!fake_check_spans_locked(node)) {
            return FAKE_BROKEN_RULE;
        }
        for (size_t k = 0; k < node->span_count; k++) {
            fake_span *span = fake_push(&task->spans, &task->span_count,
                                        &task->span_capacity, sizeof(*span));
            *span = node->spans[k];
            span->mapping = fake_mapping_around_locked(span->address)->id;
        }
    }
    return 0;
}

/* Events that the graph itself waits for. */
static void
wait_for_events_locked(fake_stream *stream, const fake_nodes *nodes)
{
    for (size_t i = 0; i < nodes->count; i++) {
        const fake_event *event = nodes->items[i].task.event;
        if (nodes->items[i].task.work == FAKE_WAIT && event != NULL &&
            event->mark != NULL) {
            fake_task task = {.work = FAKE_WAIT, .device = stream->device};
            (void)fake_submit_locked(stream, &task, event->mark, NULL);
        }
    }
}

/* Events that the graph itself records. */
static void
record_events_locked(const fake_nodes *nodes, fake_op *op)
{
    for (size_t i = 0; i < nodes->count; i++) {
        const fake_task *node = &nodes->items[i].task;
        if (node->work == FAKE_MARK && node->event != NULL) {
            fake_event_move_locked(node->event, op);
        }
    }
}

int
fake_graph_launch_locked(CUgraphExec handle, CUstream stream_handle)
{
    int error = 0;
    fake_exec *exec = fake_handle_need_locked(FAKE_EXEC, handle, &error);
    fake_stream *stream =
        exec == NULL ? NULL : fake_stream_of_locked(stream_handle, &error);
    if (stream == NULL) {
        return error;
    }
    if (stream->capture != NULL) {
        return fake_spoil_locked(stream->capture,
                                 (int)cudaErrorStreamCaptureUnsupported);
    }
    fake_task task = {
        .work = FAKE_LAUNCH_GRAPH, .device = stream->device, .exec = exec};
    exec->references++;
    error = add_spans_locked(&task, exec->nodes);
    if (error != 0) {
        fake_task_clear(&task);
        return error;
    }
    wait_for_events_locked(stream, exec->nodes);
    /* Two launches of one executable graph never run at the same time. */
    fake_op *op;
    error = fake_submit_locked(stream, &task, exec->last, &op);
    if (error == 0) {
        fake_op_retain(op);
        fake_op_release_locked(exec->last);
        exec->last = op;
        record_events_locked(exec->nodes, op);
    }
    return error;
}

/* ---- the other calls --------------------------------------------------------------------------- */

int
fake_graph_instantiate_locked(CUgraphExec *out, CUgraph handle)
{
    int error = 0;
    const fake_graph *graph = fake_handle_need_locked(FAKE_GRAPH, handle, &error);
    if (graph == NULL || out == NULL) {
        return graph == NULL ? error : (int)cudaErrorInvalidValue;
    }
    fake_exec *exec = fake_allocate(sizeof(*exec));
    exec->references = 1;
    exec->nodes = graph->nodes;
    exec->nodes->references++;
    exec->handle = fake_handle_make_locked(FAKE_EXEC, exec);
    *out = exec->handle;
    return 0;
}

int
fake_graph_upload_locked(CUgraphExec handle, CUstream stream_handle)
{
    int error = 0;
    if (fake_handle_need_locked(FAKE_EXEC, handle, &error) != NULL) {
        (void)fake_stream_of_locked(stream_handle, &error);
    }
    return error;
}

int
fake_graph_destroy_locked(CUgraph handle)
{
    int error = 0;
    fake_graph *graph = fake_handle_need_locked(FAKE_GRAPH, handle, &error);
    if (graph != NULL) {
        fake_graph_drop_locked(graph);
    }
    return error;
}

int
fake_graph_exec_destroy_locked(CUgraphExec handle)
{
    int error = 0;
    fake_exec *exec = fake_handle_need_locked(FAKE_EXEC, handle, &error);
    if (exec != NULL) {
        fake_handle_drop_locked(FAKE_EXEC, handle);
        exec->handle = NULL;
        fake_exec_release_locked(exec);
    }
    return error;
}

int
fake_graph_nodes_locked(CUgraph handle, CUgraphNode *out, size_t *count)
{
    int error = 0;
    const fake_graph *graph = fake_handle_need_locked(FAKE_GRAPH, handle, &error);
    if (graph == NULL) {
        return error;
    }
    for (size_t i = 0; out != NULL && i < *count && i < graph->nodes->count; i++) {
        out[i] = fake_node_handle(graph, i);
    }
    *count = graph->nodes->count;
    return 0;
}

/* ---- the runtime's calls ------------------------------------------------------------------------- */

cudaError_t
cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    RUNTIME_CALL(fake_graph_instantiate_locked(exec, graph));
}

cudaError_t
cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph,
                              unsigned long long flags)
{
    (void)flags;
    RUNTIME_CALL(fake_graph_instantiate_locked(exec, graph));
}

cudaError_t
cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    RUNTIME_CALL(fake_graph_launch_locked(exec, stream));
}

cudaError_t
cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
    RUNTIME_CALL(fake_graph_upload_locked(exec, stream));
}

cudaError_t
cudaGraphDestroy(cudaGraph_t graph)
{
    RUNTIME_CALL(fake_graph_destroy_locked(graph));
}

cudaError_t
cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    RUNTIME_CALL(fake_graph_exec_destroy_locked(exec));
}

cudaError_t
cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    RUNTIME_CALL(fake_graph_nodes_locked(graph, nodes, count));
}
