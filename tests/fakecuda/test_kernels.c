/* test_kernels.c - kernels by name, their twins, what these may touch; memory pools. */
#include <sys/wait.h>
#include <unistd.h>

#include "scene.h"

static const char ptx[] =
    ".version 8.0\n.target sm_90\n.address_size 64\n"
    ".visible .entry add_one(.param .u64 p, .param .u32 n)\n{ ret; }\n"
    ".visible .entry add_one_block(.param .align 8 .b8 p[16])\n{ ret; }\n"
    ".visible .entry nobody()\n{ ret; }\n";

typedef struct add_arguments {
    unsigned char *bytes;
    unsigned count;
} add_arguments;

/* Adds 1 to each byte. */
static void
add_one(const fakecuda_launch *launch)
{
    const add_arguments *arguments = launch->arguments;
    for (unsigned i = 0; i < arguments->count; i++) {
        arguments->bytes[i]++;
    }
}

static CUfunction
load(const char *name)
{
    static const size_t sizes[] = {sizeof(void *), sizeof(unsigned)};
    fakecuda_register_kernel("add_one", add_one, sizes, 2);
    fakecuda_register_kernel("add_one_block", add_one, (size_t[]){16}, 1);
    CUmodule module;
    CUfunction function;
    OK(cudaFree(0));
    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleGetFunction(&function, module, name));
    return function;
}

static CUresult
launch(CUfunction function, void *bytes, unsigned count, cudaStream_t stream)
{
    return cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream,
                          (void *[]){&bytes, &count}, NULL);
}

static void
test_a_kernel_runs_by_its_name(void)
{
    begin("");
    cudaStream_t stream = make_stream();
    unsigned char *memory = make_memory(8);
    OK(cudaMemset(memory, 6, 8));
    OK(cudaDeviceSynchronize());
    CUfunction function = load("add_one");
    OK(launch(function, memory, 8, stream));
    CHECK_EQ(byte_at(memory + 7), 6);
    OK(cudaStreamSynchronize(stream));
    CHECK_EQ(byte_at(memory + 7), 7);
    add_arguments arguments = {memory, 4};
    size_t size = sizeof(arguments);
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &arguments,
                     CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
    OK(cuLaunchKernel(load("add_one_block"), 1, 1, 1, 1, 1, 1, 0, stream, NULL, extra));
    OK(cudaStreamSynchronize(stream));
    CHECK_EQ(byte_at(memory + 3), 8);
    CHECK_EQ(byte_at(memory + 4), 7);
    expect_clean();
}

static void
test_the_runtime_launches_kernels_too(void)
{
    begin("");
    (void)load("add_one");
    unsigned char *memory = make_memory(8);
    OK(cudaMemset(memory, 6, 8));
    cudaLibrary_t library;
    cudaKernel_t kernel;
    OK(cudaLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
    OK(cudaLibraryGetKernel(&kernel, library, "add_one"));
    unsigned count = 2;
    OK(cudaLaunchKernel(kernel, (dim3){1, 1, 1}, (dim3){1, 1, 1},
                        (void *[]){&memory, &count}, 0, 0));
    OK(cudaDeviceSynchronize());
    CHECK_EQ(byte_at(memory + 1), 7);
    CHECK_EQ(byte_at(memory + 2), 6);
    OK(cudaLibraryUnload(library));
    expect_clean();
    FAILS(cudaLaunchKernel(kernel, (dim3){1, 1, 1}, (dim3){1, 1, 1},
                           (void *[]){&memory, &count}, 0, 0),
          cudaErrorInvalidDeviceFunction);
    expect_punished("is no kernel");
}

static void
test_a_captured_kernel_keeps_its_arguments(void)
{
    begin("");
    cudaStream_t stream = make_stream();
    unsigned char *memory = make_memory(8);
    OK(cudaMemset(memory, 6, 8));
    OK(cudaDeviceSynchronize());
    CUfunction function = load("add_one");
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    OK(launch(function, memory, 8, stream));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK_EQ(byte_at(memory), 8);
    expect_clean();
    OK(cudaFree(memory));
    FAILS(cudaGraphLaunch(exec, stream), cudaErrorIllegalState);
    expect_punished("mapped no longer");
}

static void
test_unknown_kernels_and_images_are_refused(void)
{
    begin("");
    CUmodule module;
    CUfunction function;
    OK(cudaFree(0));
    FAILS(cuModuleLoadData(&module, "no image"), CUDA_ERROR_INVALID_IMAGE);
    OK(cuModuleLoadData(&module, ptx));
    FAILS(cuModuleGetFunction(&function, module, "add"), CUDA_ERROR_NOT_FOUND);
    OK(cuModuleGetFunction(&function, module, "nobody"));
    expect_clean();
    FAILS(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, NULL, NULL),
          cudaErrorInvalidDeviceFunction);
    expect_punished("no host twin");
    FAILS(cuLaunchKernel(load("add_one"), 1, 1, 1, 2000, 1, 1, 0, 0, NULL, NULL),
          cudaErrorInvalidConfiguration);
}

static void
test_a_kernel_needs_a_stream_of_the_current_device(void)
{
    begin("DEVICES=2");
    CUfunction function = load("add_one");
    unsigned char *memory = make_memory(8);
    cudaStream_t stream = make_stream();
    OK(cudaSetDevice(1));
    FAILS(launch(function, memory, 1, stream), CUDA_ERROR_INVALID_HANDLE);
    expect_punished("device 1 is current");
    OK(cudaSetDevice(0));
    OK(launch(function, memory, 1, stream));
    expect_clean();
}

/* ---- what a kernel touches ---------------------------------------------------------------------- */

static void
test_a_kernel_that_leaves_its_memory_loses_the_device(void)
{
    begin("");
    CUfunction function = load("add_one");
    unsigned char *memory = make_memory(PAGE);
    OK(launch(function, memory, PAGE, 0));
    OK(cudaDeviceSynchronize());
    expect_clean();
    OK(launch(function, memory, PAGE + 1, 0));
    FAILS(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    expect_punished("kernel add_one touches");
    FAILS(cudaFree(memory), cudaErrorIllegalAddress);
}

/* Pages side by side, with access for device 0. */
static CUdeviceptr
make_pages(size_t count)
{
    CUdeviceptr range;
    CUmemGenericAllocationHandle page;
    CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemAccessDesc desc = {.location = prop.location,
                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK(cuMemAddressReserve(&range, count * PAGE, 0, 0, 0));
    for (size_t i = 0; i < count; i++) {
        OK(cuMemCreate(&page, PAGE, &prop, 0));
        OK(cuMemMap(range + i * PAGE, PAGE, 0, page, 0));
    }
    OK(cuMemSetAccess(range, count * PAGE, &desc, 1));
    return range;
}

static void
test_a_kernel_needs_access_like_any_work(void)
{
    begin("");
    CUfunction function = load("add_one");
    CUdeviceptr range = make_pages(2);
    CUmemAccessDesc desc = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READ};
    OK(launch(function, (void *)(uintptr_t)range, 2 * PAGE, 0)); /* over the seam */
    OK(cudaDeviceSynchronize());
    OK(cuMemSetAccess(range + PAGE, PAGE, &desc, 1));
    expect_clean();
    OK(launch(function, (void *)(uintptr_t)range, PAGE + 1, 0));
    FAILS(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    expect_punished("not writable");
}

static void
test_what_a_kernel_was_given_must_stay(void)
{
    begin("");
    CUfunction function = load("add_one");
    cudaStream_t stream = make_stream();
    unsigned char *memory = make_memory(PAGE);
    OK(launch(function, memory + 100, 1, stream));
    FAILS(cudaFree(memory), cudaErrorIllegalState);
    expect_punished("not known to be finished");
    OK(cudaStreamSynchronize(stream));
    OK(cudaFree(memory));
    expect_clean();
}

/* A mapping that no argument points to: what the twin touches is seen when it runs. */
static void
test_what_a_kernel_touched_must_stay(void)
{
    begin("");
    CUfunction function = load("add_one");
    cudaStream_t stream = make_stream();
    CUdeviceptr range = make_pages(2);
    OK(launch(function, (void *)(uintptr_t)range, PAGE + 1, stream));
    OK(fakecuda_stall(stream));
    OK(fakecuda_release(stream, -1)); /* it has run, and nobody knows */
    FAILS(cuMemUnmap(range + PAGE, PAGE), CUDA_ERROR_ILLEGAL_STATE);
    expect_punished("not known to be finished");
    OK(cudaStreamSynchronize(stream));
    OK(cuMemUnmap(range + PAGE, PAGE));
    expect_clean();
}

/* On a GPU the host cannot touch device memory; a child process shows how that ends. */
static void
test_the_host_cannot_touch_device_memory(void)
{
    for (int open = 0; open < 2; open++) {
        begin(open ? "HOST_ACCESS=1" : "");
        volatile unsigned char *memory = make_memory(8);
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            memory[0] = 1;
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK_EQ_SIGNED(WIFEXITED(status) && WEXITSTATUS(status) == 0, open);
    }
}

/* ---- pools ------------------------------------------------------------------------------------------ */

static uint64_t
pool_bytes(cudaMemPool_t pool, enum cudaMemPoolAttr attribute)
{
    uint64_t bytes;
    OK(cudaMemPoolGetAttribute(pool, attribute, &bytes));
    return bytes;
}

static void
test_a_pool_serves_its_blocks_again_in_stream_order(void)
{
    begin("");
    cudaStream_t first = make_stream(), second = make_stream();
    cudaMemPool_t pool;
    OK(cudaDeviceGetDefaultMemPool(&pool, 0));
    void *one, *two, *three;
    OK(cudaMallocAsync(&one, 100, first));
    OK(cudaMemsetAsync(one, 1, 100, first));
    OK(cudaFreeAsync(one, first));
    OK(cudaMallocAsync(&two, 50, first));
    CHECK(two == one);
    OK(cudaMemsetAsync(two, 1, 50, first));
    OK(cudaFreeAsync(two, first));
    OK(cudaMallocAsync(&three, 50, second)); /* nothing orders that after the free */
    CHECK(three != two);
    CHECK_EQ(pool_bytes(pool, cudaMemPoolAttrUsedMemCurrent), 50);
    CHECK_EQ(pool_bytes(pool, cudaMemPoolAttrReservedMemCurrent), 2 * PAGE);
    OK(cudaFreeAsync(three, second));
    OK(cudaDeviceSynchronize()); /* and the pool keeps nothing, as its threshold is 0 */
    CHECK_EQ(pool_bytes(pool, cudaMemPoolAttrReservedMemCurrent), 0);
    expect_clean();
}

static void
test_plain_free_takes_a_pools_block_back(void)
{
    begin("");
    cudaStream_t stream = make_stream();
    void *block;
    OK(cudaMallocAsync(&block, 100, stream));
    OK(cudaMemsetAsync(block, 1, 100, stream));
    OK(cudaFree(block)); /* it waits by itself */
    FAILS(cudaFree(block), cudaErrorInvalidValue);
    expect_punished("no live allocation");
}

static void
test_wrong_uses_of_a_pool_are_punished(void)
{
    begin("");
    cudaStream_t first = make_stream(), second = make_stream();
    cudaEvent_t event = make_event();
    void *block;
    OK(cudaMallocAsync(&block, 100, first));
    FAILS(cudaMemsetAsync(block, 1, 100, second), cudaErrorIllegalState);
    expect_punished("nothing orders after its allocation");
    OK(cudaEventRecord(event, first));
    OK(cudaStreamWaitEvent(second, event, 0));
    OK(cudaMemsetAsync(block, 1, 100, second));
    FAILS(cudaFreeAsync(block, first), cudaErrorIllegalState);
    expect_punished("nothing orders that after its use");
    OK(cudaEventRecord(event, second));
    OK(cudaStreamWaitEvent(first, event, 0));
    OK(cudaFreeAsync(block, first));
    FAILS(cudaMemsetAsync(block, 1, 100, first), cudaErrorInvalidValue);
    expect_punished("given to cudaFreeAsync");
    FAILS(cudaFreeAsync(block, first), cudaErrorInvalidValue);
    expect_punished("no live allocation of a pool");
}

static void
test_a_pool_of_its_own_keeps_up_to_its_threshold(void)
{
    begin("DEVICES=2 CAPACITY=8M");
    struct cudaMemPoolProps props = {
        .allocType = cudaMemAllocationTypePinned,
        .location = {.type = cudaMemLocationTypeDevice, .id = 1}};
    cudaMemPool_t pool;
    OK(cudaMemPoolCreate(&pool, &props));
    uint64_t threshold = UINT64_MAX;
    OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
    OK(cudaSetDevice(1));
    void *block, *other;
    OK(cudaMallocFromPoolAsync(&block, 3 * PAGE, pool, 0));
    FAILS(cudaMallocFromPoolAsync(&other, 2 * PAGE, pool, 0),
          cudaErrorMemoryAllocation);
    OK(cudaSetDevice(0));
    FAILS(cudaMemset(block, 1, 1), cudaErrorInvalidValue);
    expect_punished("device 0 has no access");
    struct cudaMemAccessDesc desc = {
        .location = {.type = cudaMemLocationTypeDevice, .id = 0},
        .flags = cudaMemAccessFlagsProtReadWrite};
    OK(cudaMemPoolSetAccess(pool, &desc, 1));
    OK(cudaSetDevice(1));
    OK(cudaDeviceSynchronize());
    OK(cudaSetDevice(0));
    OK(cudaMemset(block, 1, 1));
    OK(cudaDeviceSynchronize());
    OK(cudaSetDevice(1));
    FAILS(cudaMemPoolDestroy(pool), cudaErrorIllegalState);
    expect_punished("are in use");
    OK(cudaFreeAsync(block, 0));
    OK(cudaDeviceSynchronize());
    CHECK_EQ(pool_bytes(pool, cudaMemPoolAttrReservedMemCurrent), 3 * PAGE);
    OK(cudaMemPoolTrimTo(pool, 0));
    CHECK_EQ(pool_bytes(pool, cudaMemPoolAttrReservedMemCurrent), 0);
    CHECK_EQ(pool_bytes(pool, cudaMemPoolAttrReservedMemHigh), 3 * PAGE);
    OK(cudaMemPoolDestroy(pool));
    expect_clean();
}

static const gm_test tests[] = {
    {"a_kernel_runs_by_its_name", test_a_kernel_runs_by_its_name},
    {"the_runtime_launches_kernels_too", test_the_runtime_launches_kernels_too},
    {"a_captured_kernel_keeps_its_arguments",
     test_a_captured_kernel_keeps_its_arguments},
    {"unknown_kernels_and_images_are_refused",
     test_unknown_kernels_and_images_are_refused},
    {"a_kernel_needs_a_stream_of_the_current_device",
     test_a_kernel_needs_a_stream_of_the_current_device},
    {"a_kernel_that_leaves_its_memory_loses_the_device",
     test_a_kernel_that_leaves_its_memory_loses_the_device},
    {"a_kernel_needs_access_like_any_work", test_a_kernel_needs_access_like_any_work},
    {"what_a_kernel_was_given_must_stay", test_what_a_kernel_was_given_must_stay},
    {"what_a_kernel_touched_must_stay", test_what_a_kernel_touched_must_stay},
    {"the_host_cannot_touch_device_memory", test_the_host_cannot_touch_device_memory},
    {"a_pool_serves_its_blocks_again_in_stream_order",
     test_a_pool_serves_its_blocks_again_in_stream_order},
    {"plain_free_takes_a_pools_block_back", test_plain_free_takes_a_pools_block_back},
    {"wrong_uses_of_a_pool_are_punished", test_wrong_uses_of_a_pool_are_punished},
    {"a_pool_of_its_own_keeps_up_to_its_threshold",
     test_a_pool_of_its_own_keeps_up_to_its_threshold},
};

GM_TEST_MAIN(tests)
