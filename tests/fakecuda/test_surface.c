/* test_surface.c - the breadth of both interfaces: what is asked rather than done, the
 * driver's names for the runtime's calls, the twins with suffixes, what nvcc adds.
 */
#include "scene.h"

/* ---- devices ------------------------------------------------------------------------------------ */

static void
test_a_device_can_be_described(void)
{
    begin("DEVICES=2 CAPACITY=8GiB");
    struct cudaDeviceProp prop;
    int value;
    char text[32];
    OK(cudaGetDeviceProperties(&prop, 1));
    CHECK(strcmp(prop.name, "Fake GPU 1") == 0);
    CHECK_EQ(prop.totalGlobalMem, (size_t)8 << 30);
    OK(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 1));
    CHECK_EQ_SIGNED(value, prop.major);
    OK(cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 0));
    CHECK_EQ_SIGNED(value, 32);
    FAILS(cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 2),
          cudaErrorInvalidDevice);
    FAILS(cudaGetDeviceProperties(&prop, -1), cudaErrorInvalidDevice);
    OK(cudaDeviceGetPCIBusId(text, sizeof(text), 1));
    OK(cudaDeviceGetByPCIBusId(&value, text));
    CHECK_EQ_SIGNED(value, 1);
    FAILS(cudaDeviceGetPCIBusId(text, 3, 1), cudaErrorInvalidValue);
    FAILS(cudaDeviceGetByPCIBusId(&value, "0000:7f:00.0"), cudaErrorInvalidDevice);
    OK(cudaDeviceGetStreamPriorityRange(&value, NULL));
    CHECK_EQ_SIGNED(value, 0);
    fakecuda_numbers numbers;
    fakecuda_counters(-1, &numbers);
    CHECK_EQ(numbers.contexts, 0); /* questions touch no device */
    OK(cudaInitDevice(1, 0, 0));
    fakecuda_counters(1, &numbers);
    CHECK_EQ(numbers.contexts, 1);
    expect_clean();
}

static void
test_the_driver_describes_the_same_devices(void)
{
    begin("DEVICES=2 CAPACITY=8GiB");
    CUdevice device;
    CUuuid uuid;
    char text[32];
    int value;
    unsigned flags;
    size_t bytes;
    OK(cuInit(0));
    OK(cuDeviceGetCount(&value));
    CHECK_EQ_SIGNED(value, 2);
    OK(cuDeviceGet(&device, 1));
    FAILS(cuDeviceGet(&device, 2), CUDA_ERROR_INVALID_DEVICE);
    OK(cuDeviceGetName(text, sizeof(text), 1));
    CHECK(strcmp(text, "Fake GPU 1") == 0);
    OK(cuDeviceGetUuid(&uuid, 1));
    CHECK_EQ(uuid.bytes[15], 1);
    OK(cuDeviceTotalMem(&bytes, 1));
    CHECK_EQ(bytes, (size_t)8 << 30);
    OK(cuDeviceGetPCIBusId(text, sizeof(text), 1));
    CHECK(strcmp(text, "0000:02:00.0") == 0);
    OK(cuDeviceGetAttribute(
        &value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
    CHECK_EQ_SIGNED(value, 1);
    OK(cuDeviceCanAccessPeer(&value, 0, 1));
    CHECK_EQ_SIGNED(value, 1);
    OK(cuDevicePrimaryCtxGetState(1, &flags, &value));
    CHECK_EQ_SIGNED(value, 0);
    OK(cuDriverGetVersion(&value));
    CHECK_EQ_SIGNED(value, 13000);
    begin("DEVICES=0");
    FAILS(cuInit(0), CUDA_ERROR_NO_DEVICE);
}

static void
test_contexts_stand_for_devices(void)
{
    begin("DEVICES=2");
    CUcontext first, second, further, found;
    CUdevice device;
    OK(cuInit(0));
    FAILS(cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuDevicePrimaryCtxSetFlags(0, 0));
    OK(cuDevicePrimaryCtxRetain(&first, 0));
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    OK(cuCtxSetCurrent(first));
    OK(cuCtxEnablePeerAccess(second, 0));
    FAILS(cuCtxEnablePeerAccess(second, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    OK(cuCtxDisablePeerAccess(second));
    OK(cuCtxCreate(&further, NULL, 0, 1));
    OK(cuCtxGetDevice(&device));
    CHECK_EQ_SIGNED(device, 1);
    OK(cuCtxSynchronize());
    OK(cuCtxDestroy(further));
    OK(cuCtxGetCurrent(&found));
    CHECK(found == first);
    FAILS(cuCtxDestroy(first), CUDA_ERROR_INVALID_CONTEXT); /* nobody owns that one */
    OK(cuCtxSetCurrent(NULL));
    OK(cuCtxGetCurrent(&found));
    CHECK(found == NULL);
    FAILS(cuCtxPopCurrent(&found), CUDA_ERROR_INVALID_CONTEXT);
    expect_clean();
    FAILS(cuCtxPushCurrent(further), CUDA_ERROR_INVALID_CONTEXT);
    expect_punished("destroyed context");
}

static void
test_errors_have_names(void)
{
    const char *text;
    OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
    CHECK(strcmp(text, "CUDA_ERROR_OUT_OF_MEMORY") == 0);
    OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
    CHECK(strcmp(text, "out of memory") == 0);
    FAILS(cuGetErrorName((CUresult)12345, &text), CUDA_ERROR_INVALID_VALUE);
    CHECK(strcmp(cudaGetErrorName((cudaError_t)12345), "unrecognized error code") == 0);
    CHECK(strcmp(cudaGetErrorString(cudaErrorTimeout), "cudaErrorTimeout") == 0);
}

/* ---- memory ---------------------------------------------------------------------------------------- */

static void
test_an_address_says_what_it_is(void)
{
    begin("");
    static int own;
    struct cudaPointerAttributes what;
    unsigned char *memory = make_memory(8), *locked, *managed;
    unsigned flags;
    void *pointer;
    OK(cudaHostAlloc((void **)&locked, 8, cudaHostAllocPortable));
    OK(cudaMallocManaged((void **)&managed, 8, cudaMemAttachGlobal));
    OK(cudaPointerGetAttributes(&what, memory + 7));
    CHECK(what.type == cudaMemoryTypeDevice && what.device == 0);
    CHECK(what.devicePointer == memory + 7 && what.hostPointer == NULL);
    OK(cudaPointerGetAttributes(&what, memory + 8)); /* behind the end */
    CHECK(what.type == cudaMemoryTypeUnregistered);
    OK(cudaPointerGetAttributes(&what, locked));
    CHECK(what.type == cudaMemoryTypeHost && what.hostPointer == locked);
    OK(cudaPointerGetAttributes(&what, managed));
    CHECK(what.type == cudaMemoryTypeManaged);
    OK(cudaPointerGetAttributes(&what, &own));
    CHECK(what.type == cudaMemoryTypeUnregistered);
    OK(cudaHostGetFlags(&flags, locked));
    CHECK((flags & cudaHostAllocPortable) != 0);
    OK(cudaHostGetDevicePointer(&pointer, locked, 0));
    CHECK(pointer == locked);
    FAILS(cudaHostGetDevicePointer(&pointer, &own, 0), cudaErrorInvalidValue);
    managed[0] = 3; /* both sides can touch that */
    OK(cudaMemset(managed, 4, 1));
    OK(cudaDeviceSynchronize());
    CHECK_EQ(managed[0], 4);
    OK(cudaFree(managed));
    OK(cudaFreeHost(locked));
    expect_clean();
}

static void
test_the_driver_has_the_same_memory(void)
{
    begin("");
    OK(cudaFree(0));
    CUdeviceptr memory, base, managed, pool;
    size_t size, total;
    unsigned kind;
    int device;
    void *locked;
    static char own[64];
    OK(cuMemAlloc(&memory, 100));
    OK(cuMemGetAddressRange(&base, &size, memory + 50));
    CHECK(base == memory && size == 100);
    OK(cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory));
    CHECK_EQ(kind, CU_MEMORYTYPE_DEVICE);
    OK(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory));
    CHECK_EQ_SIGNED(device, 0);
    FAILS(cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory + 100),
          CUDA_ERROR_INVALID_VALUE);
    OK(cuMemGetInfo(&size, &total));
    CHECK_EQ(total - size, PAGE);
    OK(cuMemAllocHost(&locked, 64));
    OK(cuMemHostGetDevicePointer(&base, locked, 0));
    CHECK(base == (CUdeviceptr)(uintptr_t)locked);
    OK(cuMemcpyHtoDAsync(memory, locked, 64, 0));
    OK(cuMemcpyDtoHAsync(locked, memory, 64, 0));
    OK(cuMemcpyHtoD(memory, own, 64));
    OK(cuMemsetD8(memory, 7, 4));
    OK(cuMemsetD16(memory, 7, 2));
    OK(cuMemcpy((CUdeviceptr)(uintptr_t)own, memory, 4));
    CHECK(own[0] == 7 && own[1] == 0);
    OK(cuMemFreeHost(locked));
    OK(cuMemHostRegister(own, sizeof(own), 0));
    OK(cuMemHostUnregister(own));
    OK(cuMemAllocManaged(&managed, 8, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemFree(managed));
    OK(cuMemAllocAsync(&pool, 8, 0));
    OK(cuMemsetD8Async(pool, 1, 8, 0));
    OK(cuMemFreeAsync(pool, 0));
    OK(cuMemFree(memory));
    expect_clean();
}

static void
test_rectangles_are_copied(void)
{
    begin("");
    unsigned char *memory = make_memory(64);
    unsigned char small[6] = {1, 2, 3, 4, 5, 6}, back[6] = {0};
    OK(cudaMemset(memory, 0, 64));
    OK(cudaMemcpy2D(memory, 16, small, 3, 3, 2, cudaMemcpyHostToDevice));
    OK(cudaMemcpy2DAsync(back, 3, memory, 16, 3, 2, cudaMemcpyDeviceToHost, 0));
    CHECK(memcmp(small, back, 6) == 0);
    CHECK_EQ(byte_at(memory + 3), 0);
    CHECK_EQ(byte_at(memory + 18), 6);
    FAILS(cudaMemcpy2D(memory, 2, small, 3, 3, 2, cudaMemcpyHostToDevice),
          cudaErrorInvalidValue);
    FAILS(cudaMemcpy(memory, small, 3, cudaMemcpyDeviceToHost),
          cudaErrorInvalidMemcpyDirection);
    expect_clean();
}

/* ---- streams ------------------------------------------------------------------------------------------ */

static void
count_call(void *data)
{
    ++*(int *)data;
}

static void CUDART_CB
count_callback(cudaStream_t stream, cudaError_t error, void *data)
{
    (void)stream;
    *(int *)data += error == cudaSuccess ? 10 : 1000;
}

static void CUDA_CB
count_driver_callback(CUstream stream, CUresult error, void *data)
{
    (void)stream;
    *(int *)data += error == CUDA_SUCCESS ? 100 : 1000;
}

static void
test_a_stream_says_what_it_is(void)
{
    begin("DEVICES=2");
    OK(cudaSetDevice(1));
    cudaStream_t stream;
    unsigned flags;
    int value, calls = 0;
    float ms = -1;
    cudaEvent_t start, end;
    OK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -100));
    OK(cudaStreamGetPriority(stream, &value));
    CHECK_EQ_SIGNED(value, -5); /* the greatest there is */
    OK(cudaStreamGetFlags(stream, &flags));
    CHECK_EQ(flags, cudaStreamNonBlocking);
    OK(cudaStreamGetDevice(stream, &value));
    CHECK_EQ_SIGNED(value, 1);
    OK(cudaEventCreate(&start));
    OK(cudaEventCreate(&end));
    OK(cudaEventRecord(start, stream));
    OK(cudaLaunchHostFunc(stream, count_call, &calls));
    OK(cudaStreamAddCallback(stream, count_callback, &calls, 0));
    OK(cuStreamAddCallback(stream, count_driver_callback, &calls, 0));
    OK(cuLaunchHostFunc(stream, count_call, &calls));
    OK(cudaEventRecord(end, stream));
    FAILS(cudaEventElapsedTime(&ms, start, end), cudaErrorNotReady);
    OK(cudaEventSynchronize(end));
    OK(cudaEventElapsedTime(&ms, start, end));
    CHECK(ms >= 0);
    CHECK_EQ_SIGNED(calls, 112);
    FAILS(cudaEventElapsedTime(&ms, start, make_event()),
          cudaErrorInvalidResourceHandle); /* made without timing */
    expect_clean();
}

static void
test_the_driver_has_the_same_streams(void)
{
    begin("");
    CUstream stream;
    CUevent start, end;
    CUcontext context, current;
    CUgraph graph;
    CUgraphExec exec;
    CUstreamCaptureStatus status;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    unsigned long long id, same;
    unsigned flags;
    int value;
    size_t count = 0;
    float ms;
    unsigned char *memory = make_memory(8);
    OK(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
    OK(cuStreamGetId(stream, &id));
    OK(cudaStreamGetId(stream, &same));
    CHECK_EQ(id, same);
    OK(cuStreamGetFlags(stream, &flags));
    OK(cuStreamGetPriority(stream, &value));
    OK(cuStreamGetDevice(stream, &value));
    OK(cuStreamGetCtx(stream, &context));
    OK(cuCtxGetCurrent(&current));
    CHECK(context == current && flags == CU_STREAM_NON_BLOCKING && value == 0);
    OK(cuEventCreate(&start, CU_EVENT_DEFAULT));
    OK(cuEventCreate(&end, CU_EVENT_DEFAULT));
    OK(cuEventRecord(start, stream));
    OK(cuStreamWaitEvent(stream, start, 0));
    OK(cuEventRecordWithFlags(end, stream, 0));
    FAILS(cuEventQuery(end), CUDA_ERROR_NOT_READY);
    OK(cuEventQuery(end));
    OK(cuEventElapsedTime(&ms, start, end));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuMemsetD8Async((CUdeviceptr)(uintptr_t)memory, 8, 8, stream));
    OK(cuStreamIsCapturing(stream, &status));
    CHECK_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(cuStreamGetCaptureInfo(stream, &status, NULL, NULL, NULL, NULL, &count));
    CHECK_EQ(count, 1);
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphGetNodes(graph, NULL, &count));
    CHECK_EQ(count, 1);
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphUpload(exec, stream));
    OK(cuGraphLaunch(exec, stream));
    FAILS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    OK(cuStreamSynchronize(stream));
    CHECK_EQ(byte_at(memory), 8);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    expect_clean();
}

/* ---- the twins with suffixes ----------------------------------------------------------------------------- */

#define OWN(name) extern __typeof__(name) name##_ptsz
OWN(cudaEventRecord);
OWN(cudaFreeAsync);
OWN(cudaGraphLaunch);
OWN(cudaLaunchHostFunc);
OWN(cudaMallocAsync);
OWN(cudaMemcpyAsync);
OWN(cudaStreamBeginCapture);
OWN(cudaStreamEndCapture);
OWN(cudaStreamGetId);
OWN(cudaStreamIsCapturing);
OWN(cudaStreamQuery);
OWN(cudaStreamSynchronize);
OWN(cudaStreamWaitEvent);
OWN(cuStreamQuery);
OWN(cuStreamSynchronize);
OWN(cuEventRecord);
OWN(cuStreamWaitEvent);
extern __typeof__(cudaMemcpy) cudaMemcpy_ptds;
extern __typeof__(cudaMemset) cudaMemset_ptds;

static void
test_twins_work_on_the_own_stream(void)
{
    begin("LAG=0");
    unsigned long long id, own;
    enum cudaStreamCaptureStatus status;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t event = make_event();
    void *block;
    int calls = 0;
    unsigned char byte = 1;
    OK(cudaStreamGetId_ptsz(0, &id));
    OK(cudaStreamGetId(cudaStreamPerThread, &own));
    CHECK_EQ(id, own);
    OK(cudaMallocAsync_ptsz(&block, 8, 0));
    OK(cudaMemset_ptds(block, 9, 8));
    OK(cudaMemcpyAsync_ptsz(&byte, block, 1, cudaMemcpyDeviceToHost, 0));
    CHECK_EQ(byte, 9);
    OK(cudaMemcpy_ptds(&byte, block, 1, cudaMemcpyDeviceToHost));
    OK(cudaStreamBeginCapture_ptsz(0, cudaStreamCaptureModeGlobal));
    OK(cudaStreamIsCapturing_ptsz(0, &status));
    CHECK_EQ(status, cudaStreamCaptureStatusActive);
    OK(cudaLaunchHostFunc_ptsz(0, count_call, &calls));
    OK(cudaStreamEndCapture_ptsz(0, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphLaunch_ptsz(exec, 0));
    OK(cudaEventRecord_ptsz(event, 0));
    OK(cudaStreamWaitEvent_ptsz(0, event, 0));
    OK(cudaFreeAsync_ptsz(block, 0));
    CHECK(fakecuda_pending(cudaStreamPerThread) > 0);
    OK(cudaStreamQuery_ptsz(0)); /* with no lag it runs what it asks about */
    CHECK_EQ_SIGNED(calls, 1);
    OK(cudaStreamSynchronize_ptsz(0));
    OK(cuEventRecord_ptsz(event, 0));
    OK(cuStreamWaitEvent_ptsz(0, event, 0));
    OK(cuStreamQuery_ptsz(0));
    OK(cuStreamSynchronize_ptsz(0));
    CHECK_EQ(fakecuda_pending(cudaStreamPerThread), 0);
    expect_clean();
}

/* ---- what nvcc adds ---------------------------------------------------------------------------------------- */

void
__cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
                       int thread_limit, uint3 *thread_id, uint3 *block_id, dim3 *block,
                       dim3 *grid, int *warp_size);
unsigned
__cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                            struct CUstream_st *stream);
cudaError_t
__cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream);
cudaError_t
__cudaGetKernel(cudaKernel_t *kernel, const void *function);

static int runs, blocks;

static void
run(const fakecuda_launch *launch)
{
    runs += *(const int *)launch->arguments;
    blocks = (int)launch->grid[0];
}

static void
test_programs_register_and_launch_their_kernels(void)
{
    begin("");
    static char stub; /* its address is all that a program has of a kernel */
    dim3 grid = {0, 0, 0}, block = {0, 0, 0};
    size_t shared_bytes;
    cudaStream_t stream;
    cudaKernel_t kernel;
    int one = 1;
    runs = 0;
    __cudaRegisterFunction(NULL, &stub, NULL, "run", -1, NULL, NULL, NULL, NULL, NULL);
    FAILS(cudaLaunchKernel(&stub, (dim3){1, 1, 1}, (dim3){1, 1, 1}, NULL, 0, 0),
          cudaErrorInvalidDeviceFunction);
    expect_punished("kernel run has no host twin");
    fakecuda_register_kernel("run", run, (size_t[]){sizeof(int)}, 1);
    (void)__cudaPushCallConfiguration((dim3){3, 1, 1}, (dim3){32, 1, 1}, 0, NULL);
    OK(__cudaPopCallConfiguration(&grid, &block, &shared_bytes, &stream));
    OK(cudaLaunchKernel(&stub, grid, block, (void *[]){&one}, shared_bytes, stream));
    OK(__cudaGetKernel(&kernel, &stub));
    cudaLaunchConfig_t config = {.gridDim = {5, 1, 1}, .blockDim = {1, 1, 1}};
    OK(cudaLaunchKernelExC(&config, kernel, (void *[]){&one}));
    CHECK_EQ_SIGNED(runs, 0);
    OK(cudaDeviceSynchronize());
    CHECK_EQ_SIGNED(runs, 2);
    CHECK_EQ_SIGNED(blocks, 5);
    FAILS(cudaLaunchKernel(&one, grid, block, NULL, 0, 0),
          cudaErrorInvalidDeviceFunction);
    expect_punished("is no kernel");
}

static const gm_test tests[] = {
    {"a_device_can_be_described", test_a_device_can_be_described},
    {"the_driver_describes_the_same_devices",
     test_the_driver_describes_the_same_devices},
    {"contexts_stand_for_devices", test_contexts_stand_for_devices},
    {"errors_have_names", test_errors_have_names},
    {"an_address_says_what_it_is", test_an_address_says_what_it_is},
    {"the_driver_has_the_same_memory", test_the_driver_has_the_same_memory},
    {"rectangles_are_copied", test_rectangles_are_copied},
    {"a_stream_says_what_it_is", test_a_stream_says_what_it_is},
    {"the_driver_has_the_same_streams", test_the_driver_has_the_same_streams},
    {"twins_work_on_the_own_stream", test_twins_work_on_the_own_stream},
    {"programs_register_and_launch_their_kernels",
     test_programs_register_and_launch_their_kernels},
};

GM_TEST_MAIN(tests)
