/* test_capture.c - captures and graphs: each mistake that is punished, and its correct
 * twin.
 */
#include <pthread.h>

#include "scene.h"

static cudaGraphExec_t
make_executable(cudaGraph_t graph)
{
    cudaGraphExec_t exec;
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphDestroy(graph));
    return exec;
}

/* A graph that fills `size` bytes with that value. */
static cudaGraphExec_t
capture_fill(cudaStream_t stream, void *memory, int value, size_t size)
{
    cudaGraph_t graph;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    OK(cudaMemsetAsync(memory, value, size, stream));
    OK(cudaStreamEndCapture(stream, &graph));
    return make_executable(graph);
}

/* The capture ends as one that was spoiled. */
static void
expect_spoiled(cudaStream_t stream)
{
    cudaGraph_t graph = (cudaGraph_t)(uintptr_t)1;
    enum cudaStreamCaptureStatus status;
    OK(cudaStreamIsCapturing(stream, &status));
    CHECK_EQ(status, cudaStreamCaptureStatusInvalidated);
    FAILS(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    CHECK(graph == NULL);
    OK(cudaStreamIsCapturing(stream, &status));
    CHECK_EQ(status, cudaStreamCaptureStatusNone);
}

static void
test_captured_work_runs_at_each_launch(void)
{
    begin("");
    cudaStream_t stream = make_stream();
    unsigned char *memory = make_memory(PAGE);
    cudaGraphExec_t exec = capture_fill(stream, memory, 3, 8);
    OK(cudaStreamSynchronize(stream));
    CHECK(byte_at(memory) != 3); /* a capture does nothing */
    OK(cudaGraphLaunch(exec, stream));
    CHECK(byte_at(memory) != 3); /* nor does a launch, yet */
    OK(cudaStreamSynchronize(stream));
    CHECK_EQ(byte_at(memory), 3);
    OK(cudaMemset(memory, 4, 8));
    OK(cudaDeviceSynchronize());
    OK(cudaGraphUpload(exec, stream));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK_EQ(byte_at(memory), 3);
    OK(cudaGraphExecDestroy(exec));
    FAILS(cudaGraphLaunch(exec, stream), cudaErrorInvalidResourceHandle);
    expect_punished("destroyed executable graph");
}

static void
test_a_capture_forks_and_joins(void)
{
    begin("");
    cudaStream_t first = make_stream(), second = make_stream();
    cudaEvent_t fork = make_event(), join = make_event();
    unsigned char *memory = make_memory(PAGE);
    cudaGraph_t graph;
    size_t count = 0;
    OK(cudaStreamBeginCapture(first, cudaStreamCaptureModeGlobal));
    OK(cudaMemsetAsync(memory, 1, 8, first));
    OK(cudaEventRecord(fork, first));
    OK(cudaStreamWaitEvent(second, fork, 0));
    OK(cudaMemsetAsync(memory + 4, 2, 4, second));
    OK(cudaEventRecord(join, second));
    OK(cudaStreamWaitEvent(first, join, 0));
    OK(cudaMemcpyAsync(memory + 8, memory, 8, cudaMemcpyDeviceToDevice, first));
    OK(cudaStreamEndCapture(first, &graph));
    OK(cudaGraphGetNodes(graph, NULL, &count));
    CHECK_EQ(count, 3);
    OK(cudaGraphLaunch(make_executable(graph), first));
    OK(cudaStreamSynchronize(first));
    CHECK_EQ(byte_at(memory + 8), 1);
    CHECK_EQ(byte_at(memory + 12), 2);
    expect_clean();
}

static void
test_work_that_is_not_joined_is_punished(void)
{
    begin("");
    cudaStream_t first = make_stream(), second = make_stream();
    cudaEvent_t fork = make_event();
    unsigned char *memory = make_memory(PAGE);
    cudaGraph_t graph;
    OK(cudaStreamBeginCapture(first, cudaStreamCaptureModeGlobal));
    OK(cudaEventRecord(fork, first));
    OK(cudaStreamWaitEvent(second, fork, 0));
    OK(cudaMemsetAsync(memory, 2, 4, second));
    FAILS(cudaStreamEndCapture(second, &graph), cudaErrorStreamCaptureUnmatched);
    expect_punished("begun on another stream");
    expect_spoiled(first);
    OK(cudaStreamBeginCapture(first, cudaStreamCaptureModeGlobal));
    OK(cudaEventRecord(fork, first));
    OK(cudaStreamWaitEvent(second, fork, 0));
    OK(cudaMemsetAsync(memory, 2, 4, second));
    FAILS(cudaStreamEndCapture(first, &graph), cudaErrorStreamCaptureUnjoined);
    expect_punished("not joined");
    OK(cudaMemsetAsync(memory, 2, 4, second)); /* that stream works again */
    expect_clean();
}

/* ---- what is forbidden meanwhile ---------------------------------------------------------------- */

static int
call_malloc(void)
{
    void *memory;
    return cudaMalloc(&memory, 1);
}

static int
call_free(void)
{
    return cudaFree((void *)(uintptr_t)4096);
}

static int
call_device_synchronize(void)
{
    return cudaDeviceSynchronize();
}

static int
call_pinned(void)
{
    void *memory;
    return cudaMallocHost(&memory, 1);
}

static cudaEvent_t some_event;
static cudaStream_t some_stream;

static int
call_event_query(void)
{
    return cudaEventQuery(some_event);
}

static int
call_event_synchronize(void)
{
    return cudaEventSynchronize(some_event);
}

static int
call_stream_query(void)
{
    return cudaStreamQuery(some_stream);
}

static int
call_copy(void)
{
    int from = 0, to;
    return cudaMemcpy(&to, &from, sizeof(to), cudaMemcpyHostToHost);
}

static int (*const forbidden[])(void) = {
    call_malloc,       call_free,
    call_pinned,       call_device_synchronize,
    call_event_query,  call_event_synchronize,
    call_stream_query, call_copy,
};

static void
test_forbidden_calls_spoil_a_capture(void)
{
    for (size_t i = 0; i < sizeof(forbidden) / sizeof(forbidden[0]); i++) {
        begin("");
        cudaStream_t stream = make_stream();
        some_event = make_event();
        some_stream = make_stream();
        OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        FAILS(forbidden[i](), cudaErrorStreamCaptureUnsupported);
        expect_punished("forbidden while a stream captures");
        FAILS(cudaMemsetAsync((void *)(uintptr_t)4096, 0, 0, stream), cudaSuccess);
        expect_spoiled(stream);
    }
}

static void
test_a_relaxed_thread_may_call_what_it_likes(void)
{
    begin("");
    cudaStream_t stream = make_stream();
    cudaGraph_t graph;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    CHECK_EQ(mode, cudaStreamCaptureModeGlobal);
    OK(cudaFree(make_memory(1)));
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    OK(cudaFree(make_memory(1)));
    OK(cudaStreamEndCapture(stream, &graph));
    expect_clean();
}

static void *
call_from_thread(void *out)
{
    *(int *)out = call_malloc();
    return NULL;
}

static void
test_other_threads_are_bound_by_global_captures_alone(void)
{
    static const struct {
        enum cudaStreamCaptureMode mode;
        int error;
    } cases[] = {
        {cudaStreamCaptureModeGlobal, cudaErrorStreamCaptureUnsupported},
        {cudaStreamCaptureModeThreadLocal, cudaSuccess},
        {cudaStreamCaptureModeRelaxed, cudaSuccess},
    };
    for (size_t i = 0; i < 3; i++) {
        begin("");
        cudaStream_t stream = make_stream();
        pthread_t thread;
        int error;
        OK(cudaStreamBeginCapture(stream, cases[i].mode));
        CHECK(pthread_create(&thread, NULL, call_from_thread, &error) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
        CHECK_EQ_SIGNED(error, cases[i].error);
    }
}

static void *
end_from_thread(void *stream)
{
    cudaGraph_t graph;
    FAILS(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureWrongThread);
    return NULL;
}

static void
test_a_capture_ends_in_its_own_thread(void)
{
    begin("");
    cudaStream_t stream = make_stream();
    pthread_t thread;
    cudaGraph_t graph;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK(pthread_create(&thread, NULL, end_from_thread, stream) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    expect_punished("by another thread");
    OK(cudaStreamEndCapture(stream, &graph));
    expect_clean();
}

static void
test_waiting_for_a_stream_that_captures_is_punished(void)
{
    begin("");
    cudaStream_t stream = make_stream();
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    FAILS(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
    expect_spoiled(stream);
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    FAILS(cudaStreamQuery(stream), cudaErrorStreamCaptureUnsupported);
    expect_spoiled(stream);
}

static void
test_events_stay_inside_or_outside(void)
{
    begin("");
    cudaStream_t stream = make_stream(), other = make_stream();
    cudaEvent_t outside = make_event(), inside = make_event();
    cudaGraph_t graph;
    OK(cudaEventRecord(outside, other));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    OK(cudaEventRecord(inside, stream));
    FAILS(cudaEventQuery(inside), cudaErrorCapturedEvent);
    expect_punished("last recorded in a capture");
    expect_spoiled(stream);
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    FAILS(cudaStreamWaitEvent(stream, outside, 0), cudaErrorStreamCaptureIsolation);
    expect_punished("not recorded in a capture");
    expect_spoiled(stream);
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    OK(cudaEventRecord(inside, stream));
    OK(cudaStreamEndCapture(stream, &graph));
    FAILS(cudaStreamWaitEvent(other, inside, 0), cudaErrorCapturedEvent);
    expect_punished("not recorded in a capture");
    OK(cudaEventRecord(inside, other)); /* recorded anew it is an event again */
    OK(cudaEventSynchronize(inside));
    expect_clean();
}

static void
test_external_events_leave_a_graph(void)
{
    begin("LAG=0");
    cudaStream_t stream = make_stream();
    cudaEvent_t event = make_event();
    unsigned char *memory = make_memory(8);
    cudaGraph_t graph;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    OK(cudaMemsetAsync(memory, 5, 8, stream));
    OK(cudaEventRecordWithFlags(event, stream, cudaEventRecordExternal));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaEventQuery(event)); /* not recorded before a launch */
    CHECK(byte_at(memory) != 5);
    OK(cudaGraphLaunch(make_executable(graph), stream));
    OK(cudaEventSynchronize(event));
    CHECK_EQ(byte_at(memory), 5);
    expect_clean();
}

static void
test_a_graph_waits_for_external_events(void)
{
    begin("");
    cudaStream_t stream = make_stream(), other = make_stream();
    cudaEvent_t event = make_event();
    unsigned char *memory = make_memory(8);
    cudaGraph_t graph;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    OK(cudaStreamWaitEvent(stream, event, cudaEventWaitExternal));
    OK(cudaMemsetAsync(memory, 5, 8, stream));
    OK(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t exec = make_executable(graph);
    OK(cudaMemsetAsync(memory, 4, 8, other));
    OK(cudaEventRecord(event, other));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK_EQ(byte_at(memory), 5);
    expect_clean();
}

static void
test_the_legacy_stream_stays_away(void)
{
    begin("");
    cudaStream_t blocking, other = make_stream();
    OK(cudaStreamCreate(&blocking));
    unsigned char *memory = make_memory(8);
    enum cudaStreamCaptureStatus status;
    cudaGraph_t graph;
    FAILS(cudaStreamBeginCapture(0, cudaStreamCaptureModeGlobal),
          cudaErrorStreamCaptureUnsupported);
    expect_punished("cannot capture");
    OK(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed));
    FAILS(cudaStreamIsCapturing(0, &status), cudaErrorStreamCaptureImplicit);
    FAILS(cudaMemsetAsync(memory, 1, 1, 0), cudaErrorStreamCaptureImplicit);
    expect_punished("legacy default stream");
    expect_spoiled(blocking);
    OK(cudaStreamBeginCapture(other, cudaStreamCaptureModeRelaxed));
    OK(cudaMemsetAsync(memory, 1, 1, 0)); /* a non-blocking stream does not mind */
    OK(cudaStreamEndCapture(other, &graph));
    expect_clean();
}

static void
test_the_state_of_a_capture_can_be_asked(void)
{
    begin("");
    cudaStream_t stream = make_stream();
    enum cudaStreamCaptureStatus status;
    unsigned long long first = 0, second = 0;
    cudaGraph_t graph, inner;
    const cudaGraphNode_t *nodes;
    size_t count;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    OK(cudaStreamGetCaptureInfo(stream, &status, &first, &inner, &nodes, NULL, &count));
    CHECK_EQ(status, cudaStreamCaptureStatusActive);
    CHECK_EQ(count, 0);
    FAILS(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal),
          cudaErrorIllegalState);
    expect_punished("captures already");
    OK(cudaStreamEndCapture(stream, &graph));
    CHECK(graph == inner);
    FAILS(cudaStreamEndCapture(stream, &graph), cudaErrorIllegalState);
    expect_punished("does not capture");
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    OK(cudaStreamGetCaptureInfo(stream, &status, &second, NULL, NULL, NULL, NULL));
    CHECK(second != first);
}

/* ---- launches -------------------------------------------------------------------------------------- */

static void
test_a_graph_whose_memory_went_away_is_punished(void)
{
    begin("");
    cudaStream_t stream = make_stream();
    unsigned char *memory = make_memory(PAGE);
    cudaGraphExec_t exec = capture_fill(stream, memory, 3, 8);
    OK(cudaFree(memory));
    FAILS(cudaGraphLaunch(exec, stream), cudaErrorIllegalState);
    expect_punished("mapped no longer");
    CHECK(make_memory(PAGE) == memory); /* the same address, other memory */
    FAILS(cudaGraphLaunch(exec, stream), cudaErrorIllegalState);
    expect_punished("mapped to other memory");
}

static void
test_a_graph_whose_page_came_back_is_fine(void)
{
    begin("");
    cudaStream_t stream = make_stream();
    CUdeviceptr range;
    CUmemGenericAllocationHandle page;
    CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemAccessDesc desc = {.location = prop.location,
                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK(cuMemAddressReserve(&range, PAGE, 0, 0, 0));
    OK(cuMemCreate(&page, PAGE, &prop, 0));
    OK(cuMemMap(range, PAGE, 0, page, 0));
    OK(cuMemSetAccess(range, PAGE, &desc, 1));
    cudaGraphExec_t exec = capture_fill(stream, (void *)(uintptr_t)range, 3, 8);
    OK(cuMemUnmap(range, PAGE));
    FAILS(cudaGraphLaunch(exec, stream), cudaErrorIllegalState);
    expect_punished("mapped no longer");
    OK(cuMemMap(range, PAGE, 0, page, 0));
    OK(cuMemSetAccess(range, PAGE, &desc, 1));
    OK(cudaGraphLaunch(exec, stream));
    FAILS(cuMemUnmap(range, PAGE), CUDA_ERROR_ILLEGAL_STATE); /* the launch uses it */
    expect_punished("is unmapped, and work");
    OK(cudaStreamSynchronize(stream));
    OK(cuMemUnmap(range, PAGE));
    expect_clean();
}

static void
test_launches_are_work_like_any_other(void)
{
    begin("");
    cudaStream_t first = make_stream(), second = make_stream();
    unsigned char *memory = make_memory(PAGE);
    cudaGraphExec_t exec = capture_fill(first, memory, 3, 8);
    OK(cudaGraphLaunch(exec, first));
    OK(cudaGraphLaunch(exec, second)); /* one graph: the second launch waits */
    FAILS(cudaMemsetAsync(memory, 1, 1, first), cudaErrorIllegalState);
    expect_punished("race");
    OK(cudaStreamBeginCapture(first, cudaStreamCaptureModeRelaxed));
    FAILS(cudaStreamDestroy(first), cudaErrorStreamCaptureUnmatched);
    expect_punished("part of a capture");
}

static const gm_test tests[] = {
    {"captured_work_runs_at_each_launch", test_captured_work_runs_at_each_launch},
    {"a_capture_forks_and_joins", test_a_capture_forks_and_joins},
    {"work_that_is_not_joined_is_punished", test_work_that_is_not_joined_is_punished},
    {"forbidden_calls_spoil_a_capture", test_forbidden_calls_spoil_a_capture},
    {"a_relaxed_thread_may_call_what_it_likes",
     test_a_relaxed_thread_may_call_what_it_likes},
    {"other_threads_are_bound_by_global_captures_alone",
     test_other_threads_are_bound_by_global_captures_alone},
    {"a_capture_ends_in_its_own_thread", test_a_capture_ends_in_its_own_thread},
    {"waiting_for_a_stream_that_captures_is_punished",
     test_waiting_for_a_stream_that_captures_is_punished},
    {"events_stay_inside_or_outside", test_events_stay_inside_or_outside},
    {"external_events_leave_a_graph", test_external_events_leave_a_graph},
    {"a_graph_waits_for_external_events", test_a_graph_waits_for_external_events},
    {"the_legacy_stream_stays_away", test_the_legacy_stream_stays_away},
    {"the_state_of_a_capture_can_be_asked", test_the_state_of_a_capture_can_be_asked},
    {"a_graph_whose_memory_went_away_is_punished",
     test_a_graph_whose_memory_went_away_is_punished},
    {"a_graph_whose_page_came_back_is_fine", test_a_graph_whose_page_came_back_is_fine},
    {"launches_are_work_like_any_other", test_launches_are_work_like_any_other},
};

GM_TEST_MAIN(tests)
