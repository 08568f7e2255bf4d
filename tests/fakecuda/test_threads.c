/* test_threads.c - several threads, several streams, both runtimes. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "scene.h"

#define THREADS 4
#define ROUNDS 200

static atomic_int host_calls;

static void
count_call(void *data)
{
    (void)data;
    atomic_fetch_add(&host_calls, 1);
}

/* Each thread has memory and a stream of its own; the copies end in host memory that it
 * checks. */
static void *
work_alone(void *number)
{
    int value = (int)(intptr_t)number + 1;
    cudaStream_t stream = make_stream();
    cudaEvent_t event = make_event();
    unsigned char *memory = make_memory(4096), *host;
    OK(cudaMallocHost((void **)&host, 4096));
    for (int round = 0; round < ROUNDS; round++) {
        OK(cudaMemsetAsync(memory, value + round % 7, 4096, stream));
        OK(cudaLaunchHostFunc(stream, count_call, NULL));
        OK(cudaMemcpyAsync(host, memory, 4096, cudaMemcpyDeviceToHost, stream));
        OK(cudaEventRecord(event, stream));
        while (round % 2 == 0 && cudaEventQuery(event) == cudaErrorNotReady) {
        }
        OK(cudaEventSynchronize(event));
        CHECK_EQ(host[4095], (unsigned)(value + round % 7));
    }
    OK(cudaFree(memory));
    OK(cudaFreeHost(host));
    OK(cudaEventDestroy(event));
    OK(cudaStreamDestroy(stream));
    return NULL;
}

static void
test_threads_do_not_disturb_each_other(void)
{
    begin("");
    pthread_t threads[THREADS];
    atomic_store(&host_calls, 0);
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, work_alone, (void *)(intptr_t)i) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    CHECK_EQ_SIGNED(atomic_load(&host_calls), THREADS * ROUNDS);
    CHECK_EQ(fakecuda_check_leaks(NULL, 0), 0);
    expect_clean();
}

/* ---- threads' own streams ------------------------------------------------------------------------- */

static void *
fill_on_own_stream(void *memory)
{
    OK(cudaMemsetAsync(memory, 5, 1, cudaStreamPerThread));
    unsigned long long *id = malloc(sizeof(*id));
    OK(cudaStreamGetId(cudaStreamPerThread, id));
    return id;
}

static void
test_handle_two_is_a_stream_of_each_thread(void)
{
    begin("");
    unsigned char *memory = make_memory(1);
    pthread_t thread;
    void *other;
    unsigned long long own;
    CHECK(pthread_create(&thread, NULL, fill_on_own_stream, memory) == 0);
    CHECK(pthread_join(thread, &other) == 0);
    OK(cudaStreamGetId(cudaStreamPerThread, &own));
    CHECK(own != *(unsigned long long *)other);
    free(other);
    OK(cudaStreamSynchronize(cudaStreamPerThread));
    CHECK(byte_at(memory) != 5); /* that was another one */
    FAILS(cudaMemsetAsync(memory, 6, 1, cudaStreamPerThread), cudaErrorIllegalState);
    expect_punished("race");
    OK(cudaDeviceSynchronize()); /* the thread is gone, its work is not */
    CHECK_EQ(byte_at(memory), 5);
    OK(cudaMemsetAsync(memory, 6, 1, cudaStreamPerThread));
    expect_clean();
}

/* ---- a host function that others wait for ---------------------------------------------------------- */

static atomic_bool may_end;

static void
wait_for_permission(void *data)
{
    (void)data;
    while (!atomic_load(&may_end)) {
        (void)usleep(100);
    }
}

static void *
synchronize(void *stream)
{
    OK(cudaStreamSynchronize(stream));
    return NULL;
}

static void
test_calls_go_on_while_a_host_function_runs(void)
{
    begin("");
    cudaStream_t stream = make_stream(), other = make_stream();
    unsigned char *memory = make_memory(1);
    pthread_t threads[2];
    atomic_store(&may_end, false);
    OK(cudaLaunchHostFunc(stream, wait_for_permission, NULL));
    for (int i = 0; i < 2; i++) { /* one runs it, the other waits for that */
        CHECK(pthread_create(&threads[i], NULL, synchronize, stream) == 0);
    }
    OK(cudaMemsetAsync(memory, 1, 1, other));
    OK(cudaStreamSynchronize(other));
    atomic_store(&may_end, true);
    for (int i = 0; i < 2; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    CHECK_EQ(byte_at(memory), 1);
    expect_clean();
}

/* ---- libraries --------------------------------------------------------------------------------------- */

static int
version_by(const char *library)
{
    int version = 0;
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle != NULL) {
        void *symbol = dlsym(handle, "cudaRuntimeGetVersion");
        cudaError_t (*get_version)(int *);
        memcpy(&get_version, &symbol, sizeof(symbol));
        OK(get_version(&version));
    }
    return version;
}

/* The headers of CUDA 12 may be missing, and with them the library. */
static void
test_each_runtime_says_its_version(void)
{
    CHECK_EQ_SIGNED(version_by("libcudart.so.13"), 13000);
    int older = version_by("libcudart.so.12");
    CHECK(older == 12090 || older == 0);
}

static void
test_what_is_not_modelled_is_not_supported(void)
{
    begin("");
    FAILS(cudaDeviceReset(), cudaErrorNotSupported);
    FAILS(cudaGetLastError(), cudaErrorNotSupported);
}

static const gm_test tests[] = {
    {"threads_do_not_disturb_each_other", test_threads_do_not_disturb_each_other},
    {"handle_two_is_a_stream_of_each_thread",
     test_handle_two_is_a_stream_of_each_thread},
    {"calls_go_on_while_a_host_function_runs",
     test_calls_go_on_while_a_host_function_runs},
    {"each_runtime_says_its_version", test_each_runtime_says_its_version},
    {"what_is_not_modelled_is_not_supported",
     test_what_is_not_modelled_is_not_supported},
};

GM_TEST_MAIN(tests)
