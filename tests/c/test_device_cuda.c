/* test_device_cuda.c - what a CUDA device does beyond the contract, over the stand-in:
 * when its context is made, what the caller keeps, how waits end, peers, pages that the
 * driver cannot do, a device that is lost.
 */
#include "cuda_kinds.h"
#include "device/failure.h"

#define PAGE (2 * MIB)

enum {
    ILLEGAL_ADDRESS = 700, /* cudaErrorIllegalAddress */
    NOT_PERMITTED = 800,   /* cudaErrorNotPermitted */
};

/* ---- the runtime, as the program calls it ---------------------------------------- */

typedef int (*call_of_nothing)(void);
typedef int (*call_of_int)(int);
typedef int (*call_of_pointer)(void *);

static int
program_current_device(void)
{
    int device = -1;
    CHECK_EQ_SIGNED(((call_of_pointer)fake_function("cudaGetDevice"))(&device), 0);
    return device;
}

static void *
program_context(void)
{
    void *context = NULL;
    CHECK_EQ_SIGNED(((call_of_pointer)fake_function("cuCtxGetCurrent"))(&context), 0);
    return context;
}

static int
program_pending_error(void)
{
    return ((call_of_nothing)fake_function("cudaPeekAtLastError"))();
}

static void
program_makes_an_error(void)
{
    CHECK(((call_of_int)fake_function("cudaSetDevice"))(12345) != 0);
    CHECK(program_pending_error() != 0);
}

static fakecuda_numbers
fake_numbers(int device)
{
    fakecuda_numbers numbers;
    FAKE(fakecuda_counters)(device, &numbers);
    return numbers;
}

/* Takes back all that was set, and starts the driver, as finding the library did. */
static void
reset_fake(void)
{
    int devices = 0;
    FAKE(fakecuda_reset)();
    CHECK_EQ_SIGNED(((call_of_pointer)fake_function("cudaGetDeviceCount"))(&devices),
                    0);
    CHECK_EQ_SIGNED(devices, 2);
}

/* The stand-in begins anew, with two devices. */
static bool
begin(void)
{
    if (!cuda_is_here("64M")) {
        return false;
    }
    CHECK(setenv("FAKECUDA_DEVICES", "2", 1) == 0);
    reset_fake();
    return true;
}

static gm_device *
open_plain(void)
{
    gm_cuda_options options = {0};
    return open_cuda(&options);
}

/* ---- the context ----------------------------------------------------------------- */

static void
test_naming_makes_no_context(void)
{
    if (!begin()) {
        return;
    }
    gm_device *device = open_plain();
    gm_cuda_description found;
    gm_cuda_describe(device, &found);
    CHECK(!found.prepared && found.model[0] != '\0' && found.compute_major > 0);
    CHECK_EQ(found.granularity, PAGE);
    CHECK_EQ(fake_numbers(0).contexts, 0);
    CHECK_OK(gm_device_prepare(device));
    CHECK_OK(gm_device_prepare(device));
    gm_cuda_describe(device, &found);
    CHECK(found.prepared && found.no_paging[0] == '\0' && found.lost[0] == '\0');
    CHECK(found.no_aliasing[0] != '\0');
    CHECK_EQ(fake_numbers(0).contexts, 1);
    CHECK_EQ(fake_numbers(0).memory_now, 0);
    gm_device_release(device);
    check_fake();
}

/* Every call that goes wrong or right leaves these as they were. */
static void
use_everything(gm_device *device)
{
    const gm_device_ops *ops = device->ops;
    gm_devptr range, segment;
    gm_page page;
    gm_stream stream;
    gm_event event;
    void *pinned;
    size_t free_bytes, total;
    bool capturing;
    const uint32_t one = 1;
    CHECK_OK(ops->memory_info(device, &free_bytes, &total));
    CHECK_STATUS(ops->segment_create(device, 65 * MIB, &segment), GM_OUT_OF_MEMORY);
    CHECK_OK(ops->segment_create(device, PAGE, &segment));
    CHECK_OK(ops->address_reserve(device, 2 * PAGE, &range));
    CHECK_OK(ops->page_create(device, &page));
    CHECK_OK(ops->map(device, range, page));
    CHECK_OK(ops->grant(device, range, PAGE));
    CHECK_OK(ops->stream_create(device, &stream));
    (void)ops->stream_identity(device, stream);
    CHECK_OK(ops->stream_capturing(device, stream, &capturing));
    CHECK_OK(ops->event_create(device, &event));
    CHECK_OK(ops->fill_async(device, range, &one, 4, 100, stream));
    CHECK_OK(ops->event_record(device, event, stream));
    CHECK_STATUS(ops->event_query(device, event), GM_NOT_READY);
    CHECK_STATUS(ops->event_synchronize(device, event, 1), GM_NOT_READY);
    CHECK_OK(ops->stream_wait(device, 0, event));
    CHECK_OK(ops->copy_async(device, segment, range, 400, 0));
    CHECK_OK(ops->threads_synchronize(device, UINT64_MAX));
    CHECK_OK(ops->stream_synchronize(device, stream, UINT64_MAX));
    CHECK_OK(ops->event_destroy(device, event));
    CHECK_OK(ops->stream_destroy(device, stream));
    CHECK_OK(ops->unmap(device, range, PAGE));
    CHECK_OK(ops->page_destroy(device, page));
    CHECK_OK(ops->address_release(device, range, 2 * PAGE));
    CHECK_OK(ops->segment_destroy(device, segment, PAGE));
    CHECK_OK(ops->pinned_create(device, 5000, &pinned));
    CHECK_STATUS(ops->pin(device, pinned, 100), GM_INVALID);
    CHECK_OK(ops->pinned_destroy(device, pinned, 5000));
}

static void
test_the_caller_keeps_device_and_error(void)
{
    if (!begin()) {
        return;
    }
    CHECK(setenv("FAKECUDA_LAG", "3", 1) == 0);
    reset_fake();
    gm_cuda_options options = {.index = 1};
    gm_device *device = open_cuda(&options);
    CHECK_EQ_SIGNED(program_pending_error(), 0);
    use_everything(device);
    CHECK_EQ_SIGNED(program_current_device(), 0);
    CHECK(program_context() == NULL);
    CHECK_EQ_SIGNED(program_pending_error(), 0);
    CHECK_EQ(fake_numbers(0).contexts, 0); /* the caller's own device is untouched */
    program_makes_an_error();
    use_everything(device);
    CHECK(program_pending_error() != 0);
    ((call_of_nothing)fake_function("cudaGetLastError"))();
    gm_device_release(device);
    CHECK_EQ_SIGNED(program_current_device(), 0);
    CHECK(program_context() == NULL);
    check_fake();
}

/* ---- pages ----------------------------------------------------------------------- */

/* The device works without pages, and says why. */
static void
check_no_pages(const char *reason)
{
    gm_device *device = open_plain();
    gm_cuda_description found;
    gm_devptr segment;
    CHECK_OK(gm_device_prepare(device));
    gm_cuda_describe(device, &found);
    if (strstr(found.no_paging, reason) == NULL) {
        check_fail(__FILE__, __LINE__, found.no_paging);
    }
    CHECK(!gm_device_has(device, GM_CAP_PAGING) && device->ops->map == NULL);
    CHECK_EQ(device->info.page_size, 0);
    CHECK_OK(device->ops->segment_create(device, PAGE, &segment));
    CHECK_OK(device->ops->segment_destroy(device, segment, PAGE));
    FAKE(fakecuda_fail)(NULL, 0, 0, 0);
    gm_device_release(device);
    check_fake();
}

static void
test_a_step_of_the_probe_fails(void)
{
    static const char *const steps[] = {
        "cuMemAddressReserve",   "cuMemCreate",      "cuMemMap",
        "cuMemSetAccess",        "cuMemsetD32Async", "cudaMemcpyAsync",
        "cudaStreamSynchronize", "cuMemUnmap",       "cuMemRelease",
        "cuMemAddressFree",
    };
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        if (!begin()) {
            return;
        }
        FAKE(fakecuda_fail)(steps[i], 1, 0, NOT_PERMITTED);
        check_no_pages(steps[i]);
    }
}

static void
test_there_are_no_calls_for_pages(void)
{
    if (!begin()) {
        return;
    }
    CHECK(setenv("FAKECUDA_VMM", "0", 1) == 0);
    reset_fake();
    check_no_pages("virtual memory");
    CHECK(unsetenv("FAKECUDA_VMM") == 0);
    reset_fake();
}

static void
test_pages_larger_than_the_granularity(void)
{
    if (!begin()) {
        return;
    }
    gm_cuda_options options = {.page_size = 8 * MIB};
    gm_device *device = open_cuda(&options);
    gm_page page;
    CHECK_OK(gm_device_prepare(device));
    CHECK_EQ(device->info.page_size, 8 * MIB);
    CHECK_OK(device->ops->page_create(device, &page));
    CHECK_EQ(counters_of(device).memory_now, 8 * MIB);
    CHECK_EQ(fake_numbers(0).memory_now, 8 * MIB);
    CHECK_OK(device->ops->page_destroy(device, page));
    gm_device_release(device);
    options.page_size = MIB;
    CHECK_STATUS(gm_cuda_create(&options, &device), GM_INVALID);
    options.page_size = 3 * PAGE;
    CHECK_STATUS(gm_cuda_create(&options, &device), GM_INVALID);
    options = (gm_cuda_options){.index = 2};
    CHECK_STATUS(gm_cuda_create(&options, &device), GM_INVALID);
    check_fake();
}

/* ---- peers ----------------------------------------------------------------------- */

static void
test_access_is_granted_again_for_a_peer(void)
{
    if (!begin()) {
        return;
    }
    gm_device *device = open_plain();
    gm_cuda_options options = {.index = 1};
    gm_device *other = open_cuda(&options);
    const gm_device_ops *ops = device->ops;
    const uint32_t seven = 7;
    gm_cuda_description found;
    gm_devptr range;
    gm_page pages[2];
    CHECK_OK(ops->address_reserve(device, 4 * PAGE, &range));
    for (size_t i = 0; i < 2; i++) {
        CHECK_OK(ops->page_create(device, &pages[i]));
    }
    CHECK_OK(ops->map(device, range + PAGE, pages[0]));
    CHECK_OK(ops->grant(device, range + PAGE, PAGE));
    CHECK_STATUS(gm_cuda_enable_peer(device, 0), GM_INVALID);
    CHECK_STATUS(gm_cuda_enable_peer(device, 2), GM_INVALID);
    CHECK_OK(gm_cuda_enable_peer(device, 1));
    CHECK_OK(gm_cuda_enable_peer(device, 1));
    CHECK_OK(ops->map(device, range + 3 * PAGE, pages[1]));
    CHECK_OK(ops->grant(device, range + 3 * PAGE, PAGE));
    gm_cuda_describe(device, &found);
    CHECK_EQ(found.peers, 2);
    /* What was mapped before and what came after: the other device writes both. */
    for (size_t slot = 1; slot < 4; slot += 2) {
        gm_devptr at = range + slot * PAGE;
        CHECK_OK(other->ops->fill_async(other, at, &seven, 4, 8, 0));
        CHECK_OK(other->ops->stream_synchronize(other, 0, UINT64_MAX));
        CHECK_EQ(*(uint32_t *)gm_device_host_pointer(at), 7);
        CHECK_OK(ops->unmap(device, at, PAGE));
    }
    CHECK_EQ_SIGNED(program_current_device(), 0);
    CHECK_OK(ops->page_destroy(device, pages[0]));
    CHECK_OK(ops->page_destroy(device, pages[1]));
    CHECK_OK(ops->address_release(device, range, 4 * PAGE));
    gm_device_release(device);
    gm_device_release(other);
    check_fake();
}

static void
test_hardware_without_peers(void)
{
    if (!begin()) {
        return;
    }
    CHECK(setenv("FAKECUDA_PEERS", "0", 1) == 0);
    reset_fake();
    gm_device *device = open_plain();
    CHECK_STATUS(gm_cuda_enable_peer(device, 1), GM_UNSUPPORTED);
    CHECK_EQ_SIGNED(program_pending_error(), 0);
    gm_device_release(device);
    CHECK(unsetenv("FAKECUDA_PEERS") == 0);
    check_fake();
}

/* ---- streams and events ---------------------------------------------------------- */

static void
test_waits_end(void)
{
    if (!begin()) {
        return;
    }
    gm_device *device = open_plain();
    const gm_device_ops *ops = device->ops;
    gm_stream stream;
    gm_event event;
    gm_devptr segment;
    const char byte = 5;
    CHECK_OK(ops->segment_create(device, PAGE, &segment));
    CHECK_OK(ops->stream_create(device, &stream));
    CHECK_OK(ops->event_create(device, &event));
    CHECK_EQ_SIGNED(FAKE(fakecuda_stall)((void *)(uintptr_t)stream), 0);
    CHECK_OK(ops->fill_async(device, segment, &byte, 1, 10, stream));
    CHECK_OK(ops->event_record(device, event, stream));
    CHECK_STATUS(ops->event_query(device, event), GM_NOT_READY);
    CHECK_STATUS(ops->event_synchronize(device, event, 3000000), GM_NOT_READY);
    CHECK_STATUS(ops->stream_synchronize(device, stream, 3000000), GM_NOT_READY);
    /* It is no thread's own stream: nobody waits for it. */
    CHECK_OK(ops->threads_synchronize(device, 3000000));
    CHECK_EQ_SIGNED(FAKE(fakecuda_release)((void *)(uintptr_t)stream, -1), 0);
    CHECK_OK(ops->event_synchronize(device, event, UINT64_MAX));
    CHECK_OK(ops->stream_synchronize(device, stream, UINT64_MAX));
    CHECK_EQ_SIGNED(FAKE(fakecuda_stall)((void *)2), 0);
    CHECK_OK(ops->fill_async(device, segment, &byte, 1, 10, 2));
    CHECK_STATUS(ops->threads_synchronize(device, 3000000), GM_NOT_READY);
    CHECK_EQ_SIGNED(FAKE(fakecuda_release)((void *)2, -1), 0);
    CHECK_OK(ops->threads_synchronize(device, UINT64_MAX));
    CHECK_OK(ops->event_destroy(device, event));
    CHECK_OK(ops->stream_destroy(device, stream));
    CHECK_OK(ops->segment_destroy(device, segment, PAGE));
    gm_device_release(device);
    check_fake();
}

/* An event that comes from the spares has no mark of its last owner. */
static void
test_events_are_used_again(void)
{
    if (!begin()) {
        return;
    }
    gm_device *device = open_plain();
    const gm_device_ops *ops = device->ops;
    gm_stream stream;
    gm_event event, again;
    CHECK_OK(ops->stream_create(device, &stream));
    CHECK_OK(ops->event_create(device, &event));
    CHECK_EQ_SIGNED(FAKE(fakecuda_stall)((void *)(uintptr_t)stream), 0);
    CHECK_OK(ops->event_record(device, event, stream));
    CHECK_STATUS(ops->event_query(device, event), GM_NOT_READY);
    uint64_t made = FAKE(fakecuda_calls)("cudaEventCreateWithFlags");
    CHECK_OK(ops->event_destroy(device, event));
    CHECK_OK(ops->event_create(device, &again));
    CHECK(again != event);
    CHECK_EQ(FAKE(fakecuda_calls)("cudaEventCreateWithFlags"), made);
    CHECK_OK(ops->event_query(device, again));
    CHECK_OK(ops->event_synchronize(device, again, UINT64_MAX));
    CHECK_OK(ops->stream_wait(device, 0, again));
    CHECK_STATUS(ops->event_query(device, event), GM_INVALID);
    CHECK_EQ_SIGNED(FAKE(fakecuda_release)((void *)(uintptr_t)stream, -1), 0);
    CHECK_OK(ops->event_destroy(device, again));
    CHECK_OK(ops->stream_destroy(device, stream));
    gm_device_release(device);
    check_fake();
}

/* ---- a device that is lost -------------------------------------------------------- */

static void
test_a_lost_device(void)
{
    if (!begin()) {
        return;
    }
    gm_device *device = open_plain();
    const gm_device_ops *ops = device->ops;
    gm_devptr range, segment, out = 77;
    gm_page page;
    gm_event event;
    gm_stream stream;
    gm_failure failure;
    gm_cuda_description found;
    size_t free_bytes, total;
    void *pinned;
    CHECK_OK(ops->segment_create(device, PAGE, &segment));
    CHECK_OK(ops->address_reserve(device, PAGE, &range));
    CHECK_OK(ops->page_create(device, &page));
    CHECK_OK(ops->map(device, range, page));
    CHECK_OK(ops->grant(device, range, PAGE));
    CHECK_OK(ops->event_create(device, &event));
    CHECK_OK(ops->stream_create(device, &stream));
    CHECK_OK(ops->pinned_create(device, 100, &pinned));
    FAKE(fakecuda_lose_device)(0, ILLEGAL_ADDRESS);
    CHECK_STATUS(ops->memory_info(device, &free_bytes, &total), GM_DEVICE_LOST);
    CHECK(gm_failure_take(GM_DEVICE_LOST, &failure));
    CHECK_EQ_SIGNED(failure.code, ILLEGAL_ADDRESS);
    CHECK(strcmp(failure.name, "cudaErrorIllegalAddress") == 0);
    CHECK(!gm_failure_take(GM_DEVICE_LOST, &failure));
    gm_cuda_describe(device, &found);
    CHECK(strstr(found.lost, "cudaErrorIllegalAddress") != NULL);
    uint64_t calls = FAKE(fakecuda_calls)(NULL);
    CHECK_STATUS(ops->segment_create(device, PAGE, &out), GM_DEVICE_LOST);
    CHECK_STATUS(ops->page_create(device, &out), GM_DEVICE_LOST);
    CHECK_STATUS(ops->event_query(device, event), GM_DEVICE_LOST);
    CHECK_STATUS(ops->stream_synchronize(device, stream, UINT64_MAX), GM_DEVICE_LOST);
    CHECK_EQ(out, 77);
    CHECK_OK(ops->unmap(device, range, PAGE));
    CHECK_OK(ops->page_destroy(device, page));
    CHECK_OK(ops->address_release(device, range, PAGE));
    CHECK_OK(ops->segment_destroy(device, segment, PAGE));
    CHECK_OK(ops->event_destroy(device, event));
    CHECK_OK(ops->stream_destroy(device, stream));
    CHECK_OK(ops->pinned_destroy(device, pinned, 100));
    CHECK_STATUS(ops->segment_destroy(device, segment, PAGE), GM_INVALID);
    CHECK_EQ(counters_of(device).memory_now, 0);
    CHECK_EQ(counters_of(device).mapped_now, 0);
    CHECK_EQ(counters_of(device).address_now, 0);
    CHECK_EQ(counters_of(device).pinned_now, 0);
    gm_device_release(device);
    /* The names of errors are all that was asked for. */
    CHECK(FAKE(fakecuda_calls)(NULL) - calls <=
          FAKE(fakecuda_calls)("cudaGetErrorName") + 1);
    reset_fake();
}

/* ---- what is left ----------------------------------------------------------------- */

static void
test_what_is_left_goes_with_the_device(void)
{
    if (!begin()) {
        return;
    }
    static char mine[8192];
    gm_device *device = open_plain();
    const gm_device_ops *ops = device->ops;
    gm_devptr range, segment;
    gm_page pages[2];
    gm_event event;
    gm_stream stream;
    void *pinned;
    CHECK_OK(ops->segment_create(device, PAGE, &segment));
    CHECK_OK(ops->address_reserve(device, 4 * PAGE, &range));
    CHECK_OK(ops->page_create(device, &pages[0]));
    CHECK_OK(ops->page_create(device, &pages[1]));
    CHECK_OK(ops->map(device, range + PAGE, pages[1]));
    CHECK_OK(ops->event_create(device, &event));
    CHECK_OK(ops->stream_create(device, &stream));
    CHECK_OK(ops->pinned_create(device, 100, &pinned));
    CHECK_OK(ops->pin(device, mine, sizeof(mine)));
    gm_device_release(device);
    check_fake();
}

static const gm_test tests[] = {
    {"naming makes no context", test_naming_makes_no_context},
    {"the caller keeps device and error", test_the_caller_keeps_device_and_error},
    {"a step of the probe fails", test_a_step_of_the_probe_fails},
    {"there are no calls for pages", test_there_are_no_calls_for_pages},
    {"pages larger than the granularity", test_pages_larger_than_the_granularity},
    {"access is granted again for a peer", test_access_is_granted_again_for_a_peer},
    {"hardware without peers", test_hardware_without_peers},
    {"waits end", test_waits_end},
    {"events are used again", test_events_are_used_again},
    {"a lost device", test_a_lost_device},
    {"what is left goes with the device", test_what_is_left_goes_with_the_device},
};

GM_TEST_MAIN(tests)
