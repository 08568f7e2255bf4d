/* test_core.c - devices, errors, memory, streams, events and copies: each mistake that is
 * punished, and its correct twin.
 */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "scene.h"

/* ---- devices and errors ------------------------------------------------------------------- */

static void
test_devices_are_counted_and_current_by_thread(void)
{
    begin("DEVICES=3");
    int count, device;
    OK(cudaGetDeviceCount(&count));
    CHECK_EQ_SIGNED(count, 3);
    OK(cudaSetDevice(2));
    OK(cudaGetDevice(&device));
    CHECK_EQ_SIGNED(device, 2);
    FAILS(cudaSetDevice(3), cudaErrorInvalidDevice);
    fakecuda_numbers numbers;
    fakecuda_counters(-1, &numbers);
    CHECK_EQ(numbers.contexts, 1); /* devices 0 and 1 were not touched */
    expect_clean();
}

static void
test_no_device_and_no_driver_are_errors(void)
{
    int number = 7;
    begin("DEVICES=0");
    FAILS(cudaGetDeviceCount(&number), cudaErrorNoDevice);
    CHECK_EQ_SIGNED(number, 0);
    begin("DRIVER_VERSION=12080");
    FAILS(cudaGetDeviceCount(&number), cudaErrorInsufficientDriver);
    begin("DRIVER_VERSION=0");
    FAILS(cudaGetDeviceCount(&number), cudaErrorInsufficientDriver);
    OK(cudaDriverGetVersion(&number));
    CHECK_EQ_SIGNED(number, 0);
    OK(cudaRuntimeGetVersion(&number));
    CHECK_EQ_SIGNED(number, 13000);
}

static void
test_the_last_error_is_kept_until_it_is_asked_for(void)
{
    begin("");
    FAILS(cudaSetDevice(9), cudaErrorInvalidDevice);
    FAILS(cudaPeekAtLastError(), cudaErrorInvalidDevice);
    FAILS(cudaGetLastError(), cudaErrorInvalidDevice);
    OK(cudaGetLastError());
    CHECK(strcmp(cudaGetErrorName(cudaErrorMemoryAllocation),
                 "cudaErrorMemoryAllocation") == 0);
    CHECK(strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory") == 0);
}

static void
test_a_lost_device_never_comes_back(void)
{
    begin("DEVICES=2");
    void *memory;
    OK(cudaMalloc(&memory, 1));
    fakecuda_lose_device(0, cudaErrorIllegalAddress);
    FAILS(cudaMalloc(&memory, 1), cudaErrorIllegalAddress);
    FAILS(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    FAILS(cudaGetLastError(), cudaErrorIllegalAddress);
    FAILS(cudaGetLastError(), cudaErrorIllegalAddress);
    OK(cudaSetDevice(1)); /* the other one works */
    OK(cudaMalloc(&memory, 1));
    expect_clean();
}

static void
test_ordered_faults_come_when_they_should(void)
{
    begin("");
    void *memory;
    fakecuda_fail("cudaMalloc", 2, 0, cudaErrorMemoryAllocation);
    fakecuda_fail("cudaMemGetInfo", 1, 1, cudaErrorUnknown);
    size_t free_bytes, total;
    OK(cudaMalloc(&memory, 1));
    FAILS(cudaMalloc(&memory, 1), cudaErrorMemoryAllocation);
    OK(cudaMalloc(&memory, 1));
    FAILS(cudaMemGetInfo(&free_bytes, &total), cudaErrorUnknown);
    FAILS(cudaMemGetInfo(&free_bytes, &total), cudaErrorUnknown);
    fakecuda_fail(NULL, 0, 0, 0);
    OK(cudaMemGetInfo(&free_bytes, &total));
    CHECK_EQ(fakecuda_calls("cudaMalloc"), 3);
    expect_clean();
}

static void *
count_devices(void *out)
{
    *(cudaError_t *)out = cudaGetDeviceCount(&(int){0});
    return NULL;
}

static void
test_a_forked_child_may_not_use_what_its_parent_used(void)
{
    for (int used = 0; used < 2; used++) {
        begin("");
        if (used) {
            (void)make_memory(1);
        }
        pid_t child = fork();
        if (child == 0) {
            cudaError_t error;
            (void)count_devices(&error);
            _exit(error == cudaSuccess ? 0 : fakecuda_violations(NULL, 0) > 0 ? 1 : 2);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
        CHECK_EQ_SIGNED(WEXITSTATUS(status), used);
    }
}

/* ---- memory --------------------------------------------------------------------------------- */

static void
test_capacity_counts_everybody(void)
{
    begin("CAPACITY=16M");
    size_t free_bytes, total;
    unsigned char *first = make_memory(3 * MIB);
    OK(cudaMemGetInfo(&free_bytes, &total));
    CHECK_EQ(free_bytes, 12 * MIB); /* in whole units of the granularity */
    CHECK_EQ(total, 16 * MIB);
    fakecuda_occupy(0, 8 * MIB);
    void *memory;
    FAILS(cudaMalloc(&memory, 5 * MIB), cudaErrorMemoryAllocation);
    OK(cudaMalloc(&memory, 4 * MIB));
    OK(cudaFree(memory));
    fakecuda_occupy(0, 0);
    OK(cudaFree(first));
    OK(cudaMemGetInfo(&free_bytes, &total));
    CHECK_EQ(free_bytes, 16 * MIB);
    fakecuda_numbers numbers;
    fakecuda_counters(0, &numbers);
    CHECK_EQ(numbers.memory_now, 0);
    CHECK_EQ(numbers.memory_peak, 8 * MIB);
    expect_clean();
}

static void
test_small_allocations_share_a_chunk(void)
{
    begin("");
    unsigned char *blocks[8];
    for (int i = 0; i < 8; i++) {
        blocks[i] = make_memory(100);
        CHECK_EQ((uintptr_t)blocks[i] % 512, 0);
        CHECK(i == 0 || blocks[i] == blocks[0] + 512 * i);
    }
    fakecuda_numbers numbers;
    fakecuda_counters(0, &numbers);
    CHECK_EQ(numbers.memory_now, PAGE);
    OK(cudaFree(blocks[3]));
    CHECK(make_memory(512) == blocks[3]); /* its place is used again at once */
    for (int i = 0; i < 8; i++) {
        OK(cudaFree(blocks[i]));
    }
    fakecuda_counters(0, &numbers);
    CHECK_EQ(numbers.memory_now, 0);
    expect_clean();
}

static void
test_freeing_what_is_not_allocated_is_punished(void)
{
    begin("");
    unsigned char *memory = make_memory(PAGE);
    FAILS(cudaFree(memory + 512), cudaErrorInvalidValue);
    expect_punished("no live allocation");
    OK(cudaFree(memory));
    FAILS(cudaFree(memory), cudaErrorInvalidValue);
    expect_punished("no live allocation");
    OK(cudaFree(NULL));
    expect_clean();
}

static void
test_freeing_under_unfinished_work_is_punished(void)
{
    begin("");
    cudaStream_t stream = make_stream();
    unsigned char *memory = make_memory(PAGE);
    OK(cudaMemsetAsync(memory, 1, PAGE, stream));
    FAILS(cudaFree(memory), cudaErrorIllegalState);
    expect_punished("not known to be finished");
    OK(cudaStreamSynchronize(stream));
    OK(cudaFree(memory));
    memory = make_memory(PAGE);
    OK(cudaMemsetAsync(memory, 1, PAGE, stream));
    fakecuda_set_unmap_syncs(1); /* then cudaFree waits by itself */
    OK(cudaFree(memory));
    expect_clean();
}

static void
test_work_that_has_run_is_not_known_to_be_finished(void)
{
    begin("");
    cudaStream_t stream = make_stream();
    unsigned char *memory = make_memory(PAGE);
    OK(cudaMemsetAsync(memory, 1, PAGE, stream));
    OK(fakecuda_stall(stream));
    OK(fakecuda_release(stream, -1));
    CHECK_EQ(byte_at(memory), 1);
    FAILS(cudaFree(memory), cudaErrorIllegalState); /* luck, and nothing else */
    expect_punished("not known to be finished");
    OK(cudaStreamQuery(stream));
    OK(cudaFree(memory));
    expect_clean();
}

static void
test_use_of_freed_memory_is_punished(void)
{
    begin("");
    unsigned char *memory = make_memory(PAGE);
    OK(cudaFree(memory));
    FAILS(cudaMemset(memory, 0, 1), cudaErrorInvalidValue);
    expect_punished("freed or never allocated");
    FAILS(cudaMemcpy(memory, &(int){0}, 4, cudaMemcpyHostToDevice),
          cudaErrorInvalidValue);
    expect_punished("freed or never allocated");
}

static void
test_running_past_the_end_is_punished(void)
{
    begin("");
    unsigned char *first = make_memory(512), *second = make_memory(512);
    CHECK(second == first + 512);
    OK(cudaMemset(first, 0, 512));
    FAILS(cudaMemset(first, 0, 513), cudaErrorInvalidValue);
    expect_punished("past the end");
}

static void
test_fresh_memory_holds_junk(void)
{
    begin("");
    unsigned char byte, *memory = make_memory(PAGE);
    OK(cudaMemcpy(&byte, memory + 77, 1, cudaMemcpyDeviceToHost));
    CHECK(byte != 0);
}

static void
test_a_device_that_is_not_touched_costs_nothing(void)
{
    begin("CAPACITY=80GiB");
    unsigned char *memory = make_memory((size_t)79 << 30);
    OK(cudaMemset(memory + ((size_t)78 << 30), 3, 1));
    OK(cudaDeviceSynchronize());
    CHECK_EQ(byte_at(memory + ((size_t)78 << 30)), 3);
    OK(cudaFree(memory));
}

/* ---- work ------------------------------------------------------------------------------------ */

static void
test_work_runs_when_somebody_must_see_it(void)
{
    begin("LAG=2");
    cudaStream_t stream = make_stream();
    cudaEvent_t event = make_event();
    unsigned char *memory = make_memory(PAGE);
    OK(cudaEventQuery(event)); /* never recorded */
    OK(cudaMemsetAsync(memory, 9, PAGE, stream));
    OK(cudaEventRecord(event, stream));
    OK(cudaMemsetAsync(memory, 10, PAGE, stream));
    FAILS(cudaEventQuery(event), cudaErrorNotReady);
    FAILS(cudaEventQuery(event), cudaErrorNotReady);
    CHECK(byte_at(memory) != 9);
    OK(cudaEventQuery(event)); /* the lag is over */
    CHECK_EQ(byte_at(memory), 9);
    CHECK_EQ(fakecuda_pending(stream), 1);
    FAILS(cudaStreamQuery(stream), cudaErrorNotReady);
    OK(cudaStreamSynchronize(stream));
    CHECK_EQ(byte_at(memory), 10);
    OK(cudaStreamQuery(stream));
    expect_clean();
}

static void
test_a_queue_that_is_full_runs_its_oldest_work(void)
{
    begin("DEPTH=4");
    cudaStream_t stream = make_stream();
    unsigned char *memory = make_memory(8);
    for (int i = 0; i < 6; i++) {
        OK(cudaMemsetAsync(memory + i, 40 + i, 1, stream));
    }
    CHECK_EQ(fakecuda_pending(stream), 4);
    CHECK_EQ(byte_at(memory + 1), 41);
    CHECK(byte_at(memory + 2) != 42);
}

static void
test_page_locked_memory_is_read_late_and_pageable_at_once(void)
{
    begin("");
    cudaStream_t stream = make_stream();
    unsigned char *memory = make_memory(2), pageable = 5, *locked;
    OK(cudaMallocHost((void **)&locked, 1));
    *locked = 5;
    OK(cudaMemcpyAsync(memory, &pageable, 1, cudaMemcpyHostToDevice, stream));
    OK(cudaMemcpyAsync(memory + 1, locked, 1, cudaMemcpyHostToDevice, stream));
    pageable = *locked = 6;
    OK(cudaStreamSynchronize(stream));
    CHECK_EQ(byte_at(memory), 5);
    CHECK_EQ(byte_at(memory + 1), 6);
    OK(cudaMemcpyAsync(&pageable, memory, 1, cudaMemcpyDeviceToHost, stream));
    CHECK_EQ(pageable, 5); /* to pageable memory the call waits */
    OK(cudaFreeHost(locked));
    expect_clean();
}

static void
test_page_locked_memory_must_outlive_its_work(void)
{
    begin("");
    cudaStream_t stream = make_stream();
    unsigned char *memory = make_memory(PAGE), *locked;
    static unsigned char own[4096];
    OK(cudaMallocHost((void **)&locked, 4096));
    OK(cudaHostRegister(own, sizeof(own), 0));
    FAILS(cudaHostRegister(own + 1, 1, 0), cudaErrorHostMemoryAlreadyRegistered);
    OK(cudaMemcpyAsync(memory, locked, 4096, cudaMemcpyHostToDevice, stream));
    OK(cudaMemcpyAsync(own, memory, 4096, cudaMemcpyDeviceToHost, stream));
    FAILS(cudaFreeHost(locked), cudaErrorIllegalState);
    expect_punished("not known to be finished");
    FAILS(cudaHostUnregister(own), cudaErrorIllegalState);
    expect_punished("not known to be finished");
    OK(cudaDeviceSynchronize());
    OK(cudaFreeHost(locked));
    OK(cudaHostUnregister(own));
    FAILS(cudaHostUnregister(own), cudaErrorHostMemoryNotRegistered);
    expect_punished("no such memory");
}

static void
test_unordered_work_on_the_same_bytes_is_punished(void)
{
    begin("");
    cudaStream_t first = make_stream(), second = make_stream();
    cudaEvent_t event = make_event();
    unsigned char *memory = make_memory(PAGE);
    OK(cudaMemsetAsync(memory, 1, 100, first));
    OK(cudaMemsetAsync(memory + 100, 1, 100, second)); /* other bytes */
    FAILS(cudaMemsetAsync(memory + 99, 1, 1, second), cudaErrorIllegalState);
    expect_punished("race");
    OK(cudaEventRecord(event, first));
    OK(cudaStreamWaitEvent(second, event, 0));
    OK(cudaMemsetAsync(memory + 99, 1, 1, second));
    expect_clean();
}

static void
test_the_legacy_stream_orders_blocking_streams_alone(void)
{
    begin("");
    cudaStream_t blocking, other = make_stream();
    OK(cudaStreamCreate(&blocking));
    unsigned char *memory = make_memory(PAGE);
    OK(cudaMemsetAsync(memory, 1, 100, blocking));
    OK(cudaMemsetAsync(memory, 2, 100, 0));
    OK(cudaMemsetAsync(memory, 3, 100, blocking));
    FAILS(cudaMemsetAsync(memory, 4, 100, cudaStreamPerThread), cudaErrorIllegalState);
    expect_punished("race"); /* handle 2 waits for the legacy stream, not for others */
    OK(cudaMemsetAsync(memory, 5, 100, cudaStreamLegacy));
    expect_clean();
    FAILS(cudaMemsetAsync(memory, 6, 100, other), cudaErrorIllegalState);
    expect_punished("race");
    OK(cudaStreamSynchronize(0));
    CHECK_EQ(byte_at(memory), 5);
    OK(cudaMemsetAsync(memory, 6, 100, other));
    expect_clean();
}

static void
test_destroyed_handles_are_punished_and_used_again(void)
{
    begin("");
    cudaStream_t stream = make_stream();
    cudaEvent_t event = make_event();
    unsigned char *memory = make_memory(1);
    OK(cudaMemsetAsync(memory, 7, 1, stream));
    OK(cudaStreamDestroy(stream));
    OK(cudaEventDestroy(event));
    FAILS(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
    expect_punished("destroyed stream");
    FAILS(cudaEventQuery(event), cudaErrorInvalidResourceHandle);
    expect_punished("destroyed event");
    FAILS(cudaStreamDestroy(0), cudaErrorInvalidResourceHandle);
    expect_punished("default stream");
    CHECK(make_stream() == stream);
    cudaStream_t other = make_stream();
    OK(cudaStreamDestroy(stream));
    OK(cudaStreamDestroy(other));
    CHECK(make_stream() == other); /* the last one that was given back */
    OK(cudaDeviceSynchronize());   /* what was queued before the end still runs */
    CHECK_EQ(byte_at(memory), 7);
    expect_clean();
}

static void
test_events_and_streams_belong_to_devices(void)
{
    begin("DEVICES=2");
    cudaStream_t stream = make_stream();
    cudaEvent_t event = make_event();
    OK(cudaSetDevice(1));
    cudaStream_t other = make_stream();
    FAILS(cudaEventRecord(event, other), cudaErrorInvalidResourceHandle);
    expect_punished("an event of device 0 on a stream of device 1");
    OK(cudaEventRecord(event, stream));
    OK(cudaStreamWaitEvent(other, event, 0)); /* waiting is open to all */
    OK(cudaStreamSynchronize(other));
    expect_clean();
}

static void
call_cuda(void *out)
{
    *(cudaError_t *)out = cudaStreamCreate(&(cudaStream_t){0});
}

static void
test_host_functions_may_not_call_cuda(void)
{
    begin("");
    cudaError_t error = cudaSuccess;
    OK(cudaLaunchHostFunc(0, call_cuda, &error));
    CHECK_EQ_SIGNED(error, cudaSuccess); /* not yet */
    OK(cudaDeviceSynchronize());
    CHECK_EQ_SIGNED(error, cudaErrorNotPermitted);
    expect_punished("called from a host function");
}

static void *
release_stream(void *stream)
{
    OK(fakecuda_release(stream, -1));
    return NULL;
}

static void
test_a_stalled_stream_holds_its_waiters(void)
{
    begin("");
    cudaStream_t stream = make_stream();
    unsigned char *memory = make_memory(4);
    OK(fakecuda_stall(stream));
    OK(cudaMemsetAsync(memory, 1, 1, stream));
    OK(cudaMemsetAsync(memory + 1, 1, 1, stream));
    for (int i = 0; i < 20; i++) {
        FAILS(cudaStreamQuery(stream), cudaErrorNotReady);
    }
    OK(fakecuda_release(stream, 1));
    CHECK_EQ(fakecuda_pending(stream), 1);
    CHECK_EQ(byte_at(memory), 1);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, release_stream, stream) == 0);
    OK(cudaStreamSynchronize(stream));
    CHECK_EQ(byte_at(memory + 1), 1);
    CHECK(pthread_join(thread, NULL) == 0);
    expect_clean();
}

/* ---- the end ----------------------------------------------------------------------------------- */

static void
test_leaks_are_named(void)
{
    begin("");
    char text[512];
    CHECK_EQ(fakecuda_check_leaks(text, sizeof(text)), 0);
    cudaStream_t stream = make_stream();
    unsigned char *memory = make_memory(1);
    CHECK_EQ(fakecuda_check_leaks(text, sizeof(text)), 2);
    CHECK(strcmp(text, "1 streams\n1 allocations\n") == 0);
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(memory));
    CHECK_EQ(fakecuda_check_leaks(text, sizeof(text)), 0);
}

static void
test_settings_are_checked(void)
{
    static const char *const wrong[] = {"DEVICES=17",     "LAG=-2",
                                        "CAPACITY=much",  "STRICT=very",
                                        "GRANULARITY=3M", "PEERS=yes"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            (void)!freopen("/dev/null", "w", stderr);
            begin(wrong[i]);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
        CHECK_EQ_SIGNED(WEXITSTATUS(status), 2);
    }
}

/* A child that is strict ends with a status of its own. */
static void
test_strict_processes_end_with_a_status(void)
{
    enum {
        GOOD,
        BAD,
        LEAKING,
        CASES
    };
    for (int how = GOOD; how < CASES; how++) {
        begin("STRICT=abort LEAKS=1");
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            (void)!freopen("/dev/null", "w", stderr);
            cudaStream_t stream = make_stream();
            if (how == BAD) {
                (void)cudaFree((void *)(uintptr_t)4096);
            }
            if (how != LEAKING) {
                OK(cudaStreamDestroy(stream));
            }
            exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
        CHECK_EQ_SIGNED(WEXITSTATUS(status), how == GOOD ? 0 : 86);
    }
    begin("");
}

static const gm_test tests[] = {
    {"devices_are_counted_and_current_by_thread",
     test_devices_are_counted_and_current_by_thread},
    {"no_device_and_no_driver_are_errors", test_no_device_and_no_driver_are_errors},
    {"the_last_error_is_kept_until_it_is_asked_for",
     test_the_last_error_is_kept_until_it_is_asked_for},
    {"a_lost_device_never_comes_back", test_a_lost_device_never_comes_back},
    {"ordered_faults_come_when_they_should", test_ordered_faults_come_when_they_should},
    {"a_forked_child_may_not_use_what_its_parent_used",
     test_a_forked_child_may_not_use_what_its_parent_used},
    {"capacity_counts_everybody", test_capacity_counts_everybody},
    {"small_allocations_share_a_chunk", test_small_allocations_share_a_chunk},
    {"freeing_what_is_not_allocated_is_punished",
     test_freeing_what_is_not_allocated_is_punished},
    {"freeing_under_unfinished_work_is_punished",
     test_freeing_under_unfinished_work_is_punished},
    {"work_that_has_run_is_not_known_to_be_finished",
     test_work_that_has_run_is_not_known_to_be_finished},
    {"use_of_freed_memory_is_punished", test_use_of_freed_memory_is_punished},
    {"running_past_the_end_is_punished", test_running_past_the_end_is_punished},
    {"fresh_memory_holds_junk", test_fresh_memory_holds_junk},
    {"a_device_that_is_not_touched_costs_nothing",
     test_a_device_that_is_not_touched_costs_nothing},
    {"work_runs_when_somebody_must_see_it", test_work_runs_when_somebody_must_see_it},
    {"a_queue_that_is_full_runs_its_oldest_work",
     test_a_queue_that_is_full_runs_its_oldest_work},
    {"page_locked_memory_is_read_late_and_pageable_at_once",
     test_page_locked_memory_is_read_late_and_pageable_at_once},
    {"page_locked_memory_must_outlive_its_work",
     test_page_locked_memory_must_outlive_its_work},
    {"unordered_work_on_the_same_bytes_is_punished",
     test_unordered_work_on_the_same_bytes_is_punished},
    {"the_legacy_stream_orders_blocking_streams_alone",
     test_the_legacy_stream_orders_blocking_streams_alone},
    {"destroyed_handles_are_punished_and_used_again",
     test_destroyed_handles_are_punished_and_used_again},
    {"events_and_streams_belong_to_devices", test_events_and_streams_belong_to_devices},
    {"host_functions_may_not_call_cuda", test_host_functions_may_not_call_cuda},
    {"a_stalled_stream_holds_its_waiters", test_a_stalled_stream_holds_its_waiters},
    {"leaks_are_named", test_leaks_are_named},
    {"settings_are_checked", test_settings_are_checked},
    {"strict_processes_end_with_a_status", test_strict_processes_end_with_a_status},
};

GM_TEST_MAIN(tests)
