/* test_vmm.c - the driver: its start, functions by name, virtual memory, memory in two
 * processes; each mistake that is punished, and its correct twin.
 */
#include <sys/wait.h>
#include <unistd.h>

#include "scene.h"

static CUmemAllocationProp
prop_of(int device)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
}

static CUmemGenericAllocationHandle
make_page(int device)
{
    CUmemGenericAllocationHandle page;
    CUmemAllocationProp prop = prop_of(device);
    OK(cuMemCreate(&page, PAGE, &prop, 0));
    return page;
}

static CUdeviceptr
make_range(size_t pages)
{
    CUdeviceptr range;
    OK(cuMemAddressReserve(&range, pages * PAGE, 0, 0, 0));
    return range;
}

static CUresult
grant(CUdeviceptr address, size_t size, int device)
{
    CUmemAccessDesc desc = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return cuMemSetAccess(address, size, &desc, 1);
}

static void
map(CUdeviceptr address, CUmemGenericAllocationHandle page)
{
    OK(cuMemMap(address, PAGE, 0, page, 0));
    OK(grant(address, PAGE, 0));
}

static cudaError_t
fill(CUdeviceptr address, size_t size, cudaStream_t stream)
{
    return cudaMemsetAsync((void *)(uintptr_t)address, 1, size, stream);
}

/* ---- the start ---------------------------------------------------------------------------------- */

static void
test_the_driver_must_be_started(void)
{
    begin("");
    int count;
    CUdeviceptr memory;
    FAILS(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    FAILS(cuMemAlloc(&memory, 1), CUDA_ERROR_INVALID_CONTEXT);
    CUcontext context;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc(&memory, 1));
    OK(cuMemFree(memory));
    OK(cuDevicePrimaryCtxRelease(0));
    expect_clean();
    FAILS(cuDevicePrimaryCtxRelease(0), CUDA_ERROR_INVALID_CONTEXT);
    expect_punished("not retained");
}

static void
test_current_contexts_are_the_current_device(void)
{
    begin("DEVICES=2");
    CUcontext first, second, found;
    OK(cudaSetDevice(0));
    OK(cuCtxGetCurrent(&first));
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    OK(cuCtxPushCurrent(second));
    int device;
    OK(cudaGetDevice(&device));
    CHECK_EQ_SIGNED(device, 1);
    OK(cuCtxPopCurrent(&found));
    CHECK(found == second);
    OK(cudaGetDevice(&device));
    CHECK_EQ_SIGNED(device, 0);
    expect_clean();
}

static bool
is(const void *found, uintptr_t function)
{
    return (uintptr_t)found == function;
}

static void
test_functions_are_found_by_name_and_version(void)
{
    begin("DRIVER_VERSION=13000");
    void *function;
    enum cudaDriverEntryPointQueryResult found;
    OK(cudaGetDriverEntryPointByVersion("cuMemMap", &function, 12000, 0, &found));
    CHECK(found == cudaDriverEntryPointSuccess && is(function, (uintptr_t)cuMemMap));
    OK(cudaGetDriverEntryPointByVersion("cuMemGetInfo", &function, 12000, 0, &found));
    CHECK(is(function, (uintptr_t)cuMemGetInfo)); /* the name with its suffix */
    OK(cudaGetDriverEntryPointByVersion("cuMemMap", &function, 10000, 0, &found));
    CHECK(found == cudaDriverEntryPointVersionNotSufficent && function == NULL);
    OK(cudaGetDriverEntryPointByVersion("cuNothing", &function, 13000, 0, &found));
    CHECK(found == cudaDriverEntryPointSymbolNotFound && function == NULL);
    FAILS(cudaGetDriverEntryPointByVersion("cuNothing", &function, 13000, 0, NULL),
          cudaErrorSymbolNotFound);
    void *plain, *own;
    OK(cudaGetDriverEntryPointByVersion("cuStreamGetCaptureInfo", &plain, 11030, 0,
                                        &found));
    OK(cudaGetDriverEntryPointByVersion("cuStreamGetCaptureInfo", &own, 13000, 0,
                                        &found));
    CHECK(plain != NULL && own != plain && is(own, (uintptr_t)cuStreamGetCaptureInfo));
    const char *name = "cuStreamSynchronize";
    OK(cudaGetDriverEntryPointByVersion(name, &plain, 12000, 0, &found));
    OK(cudaGetDriverEntryPointByVersion(name, &own, 12000,
                                        cudaEnablePerThreadDefaultStream, &found));
    CHECK(is(plain, (uintptr_t)cuStreamSynchronize) && own != NULL && own != plain);
    begin("DRIVER_VERSION=13000 VMM=0");
    OK(cudaGetDriverEntryPointByVersion("cuMemMap", &function, 12000, 0, &found));
    size_t size;
    CUmemAllocationProp prop = prop_of(0);
    FAILS(cuMemGetAllocationGranularity(&size, &prop, 0), CUDA_ERROR_NOT_SUPPORTED);
}

/* ---- mappings -------------------------------------------------------------------------------------- */

static void
test_pages_are_mapped_granted_used_and_unmapped(void)
{
    begin("");
    OK(cudaFree(0));
    CUdeviceptr range = make_range(4);
    CUmemGenericAllocationHandle first = make_page(0), second = make_page(0);
    map(range, first);
    map(range + PAGE, second);
    OK(fill(range + PAGE - 8, 16, 0)); /* across two pages */
    OK(cudaDeviceSynchronize());
    CHECK_EQ(byte_at((void *)(uintptr_t)(range + PAGE + 7)), 1);
    OK(cuMemUnmap(range, 2 * PAGE));
    OK(cuMemMap(range + 2 * PAGE, PAGE, 0, second, 0));
    OK(grant(range + 2 * PAGE, PAGE, 0));
    CHECK_EQ(byte_at((void *)(uintptr_t)(range + 2 * PAGE + 7)), 1); /* it moved */
    OK(cuMemUnmap(range + 2 * PAGE, PAGE));
    OK(cuMemRelease(first));
    OK(cuMemRelease(second));
    OK(cuMemAddressFree(range, 4 * PAGE));
    CHECK_EQ(fakecuda_check_leaks(NULL, 0), 0);
    expect_clean();
}

static void
test_memory_without_a_mapping_or_access_is_punished(void)
{
    begin("DEVICES=2");
    OK(cudaFree(0));
    CUdeviceptr range = make_range(2);
    FAILS(fill(range, 1, 0), cudaErrorInvalidValue);
    expect_punished("reserved, but not mapped");
    OK(cuMemMap(range, PAGE, 0, make_page(0), 0));
    FAILS(fill(range, 1, 0), cudaErrorInvalidValue);
    expect_punished("device 0 has no access");
    OK(grant(range, PAGE, 1));
    FAILS(fill(range, 1, 0), cudaErrorInvalidValue);
    expect_punished("device 0 has no access");
    OK(grant(range, PAGE, 0));
    OK(fill(range, PAGE, 0));
    FAILS(fill(range, PAGE + 1, 0), cudaErrorInvalidValue);
    expect_punished("reserved, but not mapped");
    unsigned long long flags;
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1};
    OK(cuMemGetAccess(&flags, &here, range));
    CHECK_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    expect_clean();
}

static void
test_reading_is_not_writing(void)
{
    begin("");
    OK(cudaFree(0));
    CUdeviceptr range = make_range(1);
    OK(cuMemMap(range, PAGE, 0, make_page(0), 0));
    CUmemAccessDesc desc = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READ};
    OK(cuMemSetAccess(range, PAGE, &desc, 1));
    unsigned char byte;
    OK(cudaMemcpy(&byte, (void *)(uintptr_t)range, 1, cudaMemcpyDeviceToHost));
    FAILS(fill(range, 1, 0), cudaErrorInvalidValue);
    expect_punished("for writing");
}

static void
test_access_must_last_until_the_work_has_run(void)
{
    begin("");
    OK(cudaFree(0));
    CUdeviceptr range = make_range(1);
    OK(cuMemMap(range, PAGE, 0, make_page(0), 0));
    OK(grant(range, PAGE, 0));
    OK(fill(range, 8, 0));
    CUmemAccessDesc desc = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                            .flags = CU_MEM_ACCESS_FLAGS_PROT_NONE};
    OK(cuMemSetAccess(range, PAGE, &desc, 1));
    FAILS(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    expect_punished("lost its access");
}

static void
test_a_peer_needs_to_be_able_to(void)
{
    begin("DEVICES=2 PEERS=0");
    OK(cudaFree(0));
    CUdeviceptr range = make_range(1);
    OK(cuMemMap(range, PAGE, 0, make_page(0), 0));
    FAILS(grant(range, PAGE, 1), CUDA_ERROR_INVALID_DEVICE);
    FAILS(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessUnsupported);
    begin("DEVICES=2");
    unsigned char *memory = make_memory(PAGE);
    OK(cudaSetDevice(1));
    FAILS(cudaMemset(memory, 0, 1), cudaErrorInvalidValue);
    expect_punished("device 1 has no access");
    OK(cudaDeviceEnablePeerAccess(0, 0));
    FAILS(cudaDeviceEnablePeerAccess(0, 0), cudaErrorPeerAccessAlreadyEnabled);
    OK(cudaMemset(memory, 0, 1));
    OK(cudaDeviceDisablePeerAccess(0));
    unsigned char *other = make_memory(PAGE);
    OK(cudaMemcpyPeer(other, 1, memory, 0, PAGE)); /* that goes without */
    expect_clean();
}

static void
test_wrong_maps_are_punished(void)
{
    begin("");
    OK(cudaFree(0));
    CUdeviceptr range = make_range(2);
    CUmemGenericAllocationHandle page = make_page(0);
    FAILS(cuMemMap(range, PAGE, PAGE, page, 0), CUDA_ERROR_INVALID_VALUE);
    expect_punished("offset");
    FAILS(cuMemMap(range, 2 * PAGE, 0, page, 0), CUDA_ERROR_INVALID_VALUE);
    expect_punished("do not fit");
    FAILS(cuMemMap(range + 4096, PAGE, 0, page, 0), CUDA_ERROR_INVALID_VALUE);
    expect_punished("do not fit");
    FAILS(cuMemMap(range + 2 * PAGE, PAGE, 0, page, 0), CUDA_ERROR_INVALID_VALUE);
    expect_punished("do not fit");
    OK(cuMemMap(range, PAGE, 0, page, 0));
    FAILS(cuMemMap(range, PAGE, 0, make_page(0), 0), CUDA_ERROR_INVALID_VALUE);
    expect_punished("mapped already");
    OK(cuMemRelease(page));
    FAILS(cuMemMap(range + PAGE, PAGE, 0, page, 0), CUDA_ERROR_INVALID_VALUE);
    expect_punished("destroyed memory handle");
    FAILS(cuMemRelease(page), CUDA_ERROR_INVALID_VALUE);
    expect_punished("destroyed memory handle");
    FAILS(grant(range, 2 * PAGE, 0), CUDA_ERROR_INVALID_VALUE);
    expect_punished("not mapped throughout");
}

static void
test_unmapping_a_part_is_punished(void)
{
    begin("");
    OK(cudaFree(0));
    CUdeviceptr range = make_range(4);
    CUmemGenericAllocationHandle large;
    CUmemAllocationProp prop = prop_of(0);
    OK(cuMemCreate(&large, 2 * PAGE, &prop, 0));
    OK(cuMemMap(range, 2 * PAGE, 0, large, 0));
    FAILS(cuMemUnmap(range, PAGE), CUDA_ERROR_INVALID_VALUE);
    expect_punished("no whole mappings");
    FAILS(cuMemUnmap(range + PAGE, PAGE), CUDA_ERROR_INVALID_VALUE);
    expect_punished("no whole mappings");
    FAILS(cuMemUnmap(range, 3 * PAGE), CUDA_ERROR_INVALID_VALUE);
    expect_punished("not mapped throughout");
    FAILS(cuMemAddressFree(range, 4 * PAGE), CUDA_ERROR_INVALID_VALUE);
    expect_punished("mappings are left");
    OK(cuMemUnmap(range, 2 * PAGE));
    FAILS(cuMemAddressFree(range, 2 * PAGE), CUDA_ERROR_INVALID_VALUE);
    expect_punished("no reservation");
    OK(cuMemAddressFree(range, 4 * PAGE));
}

static void
test_memory_lives_until_the_last_unmap_and_release(void)
{
    begin("CAPACITY=2M");
    OK(cudaFree(0));
    CUdeviceptr range = make_range(2);
    CUmemGenericAllocationHandle page = make_page(0), again, other;
    CUmemAllocationProp prop = prop_of(0);
    map(range, page);
    OK(cuMemRelease(page));
    FAILS(cuMemCreate(&other, PAGE, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)range));
    OK(cuMemUnmap(range, PAGE));
    FAILS(cuMemCreate(&other, PAGE, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemRelease(again));
    OK(cuMemCreate(&other, PAGE, &prop, 0));
    expect_clean();
}

static void
test_unmapping_under_unfinished_work_is_punished(void)
{
    begin("");
    cudaStream_t stream = make_stream();
    CUdeviceptr range = make_range(2);
    map(range, make_page(0));
    map(range + PAGE, make_page(0));
    OK(fill(range + PAGE, 1, stream));
    FAILS(cuMemUnmap(range, 2 * PAGE), CUDA_ERROR_ILLEGAL_STATE);
    expect_punished("is unmapped, and work on stream");
    OK(cuMemUnmap(range, PAGE)); /* nobody uses that one */
    OK(cudaStreamSynchronize(stream));
    OK(cuMemUnmap(range + PAGE, PAGE));
    expect_clean();
    begin("UNMAP_SYNCS=1"); /* and a driver that waits by itself */
    stream = make_stream();
    range = make_range(1);
    map(range, make_page(0));
    OK(fill(range, 1, stream));
    OK(cuMemUnmap(range, PAGE));
    CHECK_EQ(fakecuda_pending(stream), 0);
    expect_clean();
}

static void
test_a_page_that_moves_needs_an_edge(void)
{
    for (int ordered = 0; ordered < 2; ordered++) {
        begin("");
        cudaStream_t first = make_stream(), second = make_stream();
        cudaEvent_t event = make_event();
        CUdeviceptr range = make_range(2);
        CUmemGenericAllocationHandle page = make_page(0);
        map(range, page);
        map(range + PAGE,
            page); /* two names: the old one stays until its work is over */
        OK(fill(range, 100, first));
        OK(cudaEventRecord(event, first));
        if (ordered) {
            OK(cudaStreamWaitEvent(second, event, 0));
            OK(fill(range + PAGE + 512, 100, second));
            expect_clean();
        }
        else {
            FAILS(fill(range + PAGE + 512, 100, second), cudaErrorIllegalState);
            expect_punished("through another mapping");
        }
    }
}

/* A child touches the address; does it live? */
static bool
can_touch(CUdeviceptr address)
{
    int status;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        *(volatile unsigned char *)(uintptr_t)address = 1;
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void
test_the_host_touches_what_it_may(void)
{
    begin("HOST_ACCESS=1");
    OK(cudaFree(0));
    CUdeviceptr range = make_range(2);
    OK(cuMemMap(range, PAGE, 0, make_page(0), 0));
    CHECK(!can_touch(range)); /* nobody was granted it yet */
    OK(grant(range, PAGE, 0));
    CHECK(can_touch(range));
    CHECK_EQ(byte_at((void *)(uintptr_t)range), 1); /* one memory for both */
    CHECK(!can_touch(range + PAGE));
    OK(cuMemUnmap(range, PAGE));
    CHECK(!can_touch(range));
    expect_clean();
}

static void
test_address_space_can_run_out(void)
{
    begin("");
    (void)setenv("FAKECUDA_ADDRESS_SPACE", "8M", 1);
    fakecuda_reset();
    (void)unsetenv("FAKECUDA_ADDRESS_SPACE");
    OK(cuInit(0));
    CUdeviceptr range;
    FAILS(cuMemAddressReserve(&range, 5 * PAGE, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAddressReserve(&range, 4 * PAGE, 4 * PAGE, 0, 0));
    CHECK_EQ(range % (4 * PAGE), 0);
    FAILS(cuMemAddressReserve(&range, PAGE, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    FAILS(cuMemAddressReserve(&range, 4096, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    expect_clean();
}

/* ---- the driver's own copies and streams ----------------------------------------------------------- */

static void
test_the_driver_copies_and_fills(void)
{
    begin("");
    OK(cudaFree(0));
    CUdeviceptr memory, other;
    CUstream stream;
    CUevent event;
    unsigned words[4] = {0};
    OK(cuMemAlloc(&memory, 64));
    OK(cuMemAlloc(&other, 64));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuMemsetD32Async(memory, 0x01020304, 4, stream));
    OK(cuMemsetD2D8Async(memory + 1, 8, 9, 2, 2, stream)); /* two bytes in two rows */
    OK(cuMemcpyDtoDAsync(other, memory, 16, stream));
    OK(cuEventRecord(event, stream));
    OK(cuEventSynchronize(event));
    OK(cuMemcpyDtoH(words, other, 16));
    CHECK_EQ(words[0], 0x01090904);
    CHECK_EQ(words[1], 0x01020304);
    CHECK_EQ(words[2], 0x01090904);
    FAILS(cuMemsetD32Async(memory + 1, 0, 1, stream), CUDA_ERROR_INVALID_VALUE);
    OK(cuEventDestroy(event));
    OK(cuStreamDestroy(stream));
    OK(cuMemFree(memory));
    OK(cuMemFree(other));
    CHECK_EQ(fakecuda_check_leaks(NULL, 0), 0);
    expect_clean();
}

/* As a program that is compiled with the per-thread default stream calls it. */
extern __typeof__(cudaMemsetAsync) cudaMemsetAsync_ptsz;

static void
test_suffixes_mean_the_own_stream(void)
{
    begin("");
    unsigned char *memory = make_memory(8);
    OK(cudaMemsetAsync_ptsz(memory, 3, 8, 0));
    CHECK_EQ(fakecuda_pending(cudaStreamPerThread), 1);
    CHECK_EQ(fakecuda_pending(0), 0);
    CHECK_EQ(fakecuda_calls("cudaMemsetAsync"), 1);
    OK(cudaStreamSynchronize(cudaStreamPerThread));
    CHECK_EQ(byte_at(memory), 3);
    expect_clean();
}

/* ---- two processes ------------------------------------------------------------------------------- */

/* Runs in another process that has not used CUDA; `handle` came through a pipe. */
static int
open_and_write(int pipe_end)
{
    cudaIpcMemHandle_t handle;
    unsigned char *memory;
    if (read(pipe_end, &handle, sizeof(handle)) != sizeof(handle) ||
        cudaIpcOpenMemHandle((void **)&memory, handle,
                             cudaIpcMemLazyEnablePeerAccess) != cudaSuccess ||
        cudaMemset(memory, 77, 100) != cudaSuccess ||
        cudaDeviceSynchronize() != cudaSuccess ||
        cudaIpcCloseMemHandle(memory) != cudaSuccess) {
        return 1;
    }
    return fakecuda_violations(NULL, 0) == 0 ? 0 : 2;
}

static void
test_memory_is_shared_by_handles(void)
{
    begin("");
    int ends[2], status;
    CHECK(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        _exit(open_and_write(ends[0]));
    }
    (void)make_memory(1000); /* the next one does not begin its chunk */
    unsigned char *memory = make_memory(1000);
    cudaIpcMemHandle_t handle;
    OK(cudaIpcGetMemHandle(&handle, memory));
    void *own;
    FAILS(cudaIpcOpenMemHandle(&own, handle, cudaIpcMemLazyEnablePeerAccess),
          cudaErrorDeviceUninitialized);
    expect_punished("of this process");
    CHECK(write(ends[1], &handle, sizeof(handle)) == sizeof(handle));
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    CHECK_EQ_SIGNED(WEXITSTATUS(status), 0);
    CHECK_EQ(byte_at(memory), 77);
    CHECK_EQ(byte_at(memory + 99), 77);
    CHECK(byte_at(memory + 100) != 77);
    expect_clean();
}

static void
test_exported_pages_are_imported(void)
{
    begin("");
    OK(cudaFree(0));
    CUmemAllocationProp prop = prop_of(0);
    CUmemGenericAllocationHandle plain, page, imported;
    int descriptor;
    OK(cuMemCreate(&plain, PAGE, &prop, 0));
    FAILS(cuMemExportToShareableHandle(&descriptor, plain,
                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
          CUDA_ERROR_INVALID_VALUE);
    expect_punished("not created to be exported");
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    OK(cuMemCreate(&page, PAGE, &prop, 0));
    OK(cuMemExportToShareableHandle(&descriptor, page,
                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)descriptor,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(descriptor);
    CUdeviceptr range = make_range(2);
    map(range, page);
    map(range + PAGE, imported);
    OK(fill(range, 8, 0));
    OK(cudaDeviceSynchronize());
    CHECK_EQ(byte_at((void *)(uintptr_t)(range + PAGE)), 1);
    expect_clean();
}

static const gm_test tests[] = {
    {"the_driver_must_be_started", test_the_driver_must_be_started},
    {"current_contexts_are_the_current_device",
     test_current_contexts_are_the_current_device},
    {"functions_are_found_by_name_and_version",
     test_functions_are_found_by_name_and_version},
    {"pages_are_mapped_granted_used_and_unmapped",
     test_pages_are_mapped_granted_used_and_unmapped},
    {"memory_without_a_mapping_or_access_is_punished",
     test_memory_without_a_mapping_or_access_is_punished},
    {"reading_is_not_writing", test_reading_is_not_writing},
    {"access_must_last_until_the_work_has_run",
     test_access_must_last_until_the_work_has_run},
    {"a_peer_needs_to_be_able_to", test_a_peer_needs_to_be_able_to},
    {"wrong_maps_are_punished", test_wrong_maps_are_punished},
    {"unmapping_a_part_is_punished", test_unmapping_a_part_is_punished},
    {"memory_lives_until_the_last_unmap_and_release",
     test_memory_lives_until_the_last_unmap_and_release},
    {"unmapping_under_unfinished_work_is_punished",
     test_unmapping_under_unfinished_work_is_punished},
    {"a_page_that_moves_needs_an_edge", test_a_page_that_moves_needs_an_edge},
    {"the_host_touches_what_it_may", test_the_host_touches_what_it_may},
    {"address_space_can_run_out", test_address_space_can_run_out},
    {"the_driver_copies_and_fills", test_the_driver_copies_and_fills},
    {"suffixes_mean_the_own_stream", test_suffixes_mean_the_own_stream},
    {"memory_is_shared_by_handles", test_memory_is_shared_by_handles},
    {"exported_pages_are_imported", test_exported_pages_are_imported},
};

GM_TEST_MAIN(tests)
