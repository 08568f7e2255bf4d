/* test_device_contract.c - what device.h promises, once, for every backend: host, sim,
 * and CUDA over its stand-in, with and without paging and aliasing, plain and behind an
 * unarmed fault device.
 */
#include <sys/wait.h>
#include <unistd.h>

#include "base/process.h"
#include "contract_backends.h"

/* ---- info and life --------------------------------------------------------------- */

static void
check_info(gm_device *device, const backend *kind)
{
    const gm_device_info *info = &device->info;
    CHECK(strcmp(info->name, kind->cuda  ? "cuda:0"
                             : kind->sim ? "sim:3"
                                         : "host:3") == 0);
    CHECK_EQ(info->kind, kind->cuda  ? GM_DEVICE_CUDA
                         : kind->sim ? GM_DEVICE_SIM
                                     : GM_DEVICE_HOST);
    CHECK_EQ(info->index, kind->cuda ? 0 : 3);
    CHECK_EQ(info->total, CAPACITY);
    CHECK_EQ(info->page_size, kind->paging ? PAGE : 0);
    CHECK(info->alignment >= 512);
    CHECK_EQ(gm_device_has(device, GM_CAP_PAGING), kind->paging);
    CHECK_EQ(gm_device_has(device, GM_CAP_ALIASING), kind->aliasing);
    CHECK_EQ(gm_device_has(device, GM_CAP_MEMORY), !kind->sim);
    CHECK_EQ(gm_device_has(device, GM_CAP_HOST_ACCESS), !kind->sim && !kind->cuda);
    CHECK_EQ(gm_device_has(device, GM_CAP_OWN_STREAMS), !kind->cuda);
    CHECK_OK(gm_device_usable(device));
    CHECK(gm_device_retain(device) == device);
    gm_device_release(device);
    gm_device_release(NULL);
}

static void
check_slots(gm_device *device, const backend *kind)
{
    const gm_device_ops *ops = device->ops;
    CHECK_EQ(ops->address_reserve != NULL, kind->paging);
    CHECK_EQ(ops->address_release != NULL, kind->paging);
    CHECK_EQ(ops->page_create != NULL, kind->paging);
    CHECK_EQ(ops->page_destroy != NULL, kind->paging);
    CHECK_EQ(ops->map != NULL, kind->paging);
    CHECK_EQ(ops->unmap != NULL, kind->paging);
    CHECK_EQ(ops->grant != NULL, kind->paging);
    CHECK(ops->segment_create != NULL && ops->event_query != NULL);
    CHECK(ops->copy_async != NULL && ops->clock_ns != NULL && ops->close != NULL);
}

/* ---- segments -------------------------------------------------------------------- */

static void
check_segments(gm_device *device, const backend *kind)
{
    const gm_device_ops *ops = device->ops;
    gm_devptr first = 0, second = 0, untouched = 77;
    const size_t least = kind->cuda ? GM_RANGE_ALIGNMENT : 512; /* what one takes */
    CHECK_STATUS(ops->segment_create(device, 0, &untouched), GM_INVALID);
    CHECK_STATUS(ops->segment_create(device, 100, &untouched), GM_INVALID);
    CHECK_STATUS(ops->segment_create(device, CAPACITY + 512, &untouched),
                 GM_OUT_OF_MEMORY);
    CHECK_STATUS(ops->segment_create(device, SIZE_MAX / 512 * 512, &untouched),
                 GM_OUT_OF_MEMORY);
    CHECK_EQ(untouched, 77);
    CHECK_OK(ops->segment_create(device, 512, &first));
    CHECK_OK(ops->segment_create(device, CAPACITY - least, &second));
    CHECK(first != 0 && first % GM_RANGE_ALIGNMENT == 0);
    CHECK(second != 0 && second % GM_RANGE_ALIGNMENT == 0);
    CHECK(first + least <= second || second + CAPACITY - least <= first);
    CHECK_EQ(free_of(device), 0);
    CHECK_STATUS(ops->segment_create(device, 512, &untouched), GM_OUT_OF_MEMORY);
    gm_device_counters counters = counters_of(device);
    CHECK_EQ(counters.memory_now, CAPACITY - least + 512);
    CHECK_EQ(counters.memory_peak, CAPACITY - least + 512);
    CHECK_EQ(counters.mapped_now, 0);
    CHECK_EQ(counters.address_now, 0);
    if (!kind->sim) {
        char *memory = gm_device_host_pointer(second);
        memory[0] = 1;
        memory[CAPACITY - least - 1] = 2;
        CHECK_EQ(memory[0] + memory[CAPACITY - least - 1], 3);
    }
    CHECK_STATUS(ops->segment_destroy(device, first, 1024), GM_INVALID);
    CHECK_STATUS(ops->segment_destroy(device, first + 512, 512), GM_INVALID);
    CHECK_OK(ops->segment_destroy(device, first, 512));
    CHECK_STATUS(ops->segment_destroy(device, first, 512), GM_INVALID);
    CHECK_OK(ops->segment_destroy(device, second, CAPACITY - least));
    CHECK_EQ(free_of(device), CAPACITY);
    CHECK_EQ(counters_of(device).memory_now, 0);
    CHECK_EQ(counters_of(device).memory_peak, CAPACITY - least + 512);
}

/* ---- pages ----------------------------------------------------------------------- */

static void
check_ranges(gm_device *device, const backend *kind)
{
    const gm_device_ops *ops = device->ops;
    gm_devptr first = 0, second = 0;
    if (!kind->paging) {
        return;
    }
    CHECK_STATUS(ops->address_reserve(device, 0, &first), GM_INVALID);
    CHECK_STATUS(ops->address_reserve(device, PAGE + 4096, &first), GM_INVALID);
    CHECK_STATUS(ops->address_reserve(device, (size_t)1 << 60, &first), GM_NO_ADDRESS);
    CHECK_EQ(first, 0);
    CHECK_OK(ops->address_reserve(device, 4 * PAGE, &first));
    CHECK_OK(ops->address_reserve(device, (size_t)1 << 36, &second));
    CHECK(first % GM_RANGE_ALIGNMENT == 0 && second % GM_RANGE_ALIGNMENT == 0);
    CHECK_EQ(counters_of(device).address_now, 4 * PAGE + ((size_t)1 << 36));
    CHECK_EQ(free_of(device), CAPACITY);
    CHECK_STATUS(ops->address_release(device, first, PAGE), GM_INVALID);
    CHECK_STATUS(ops->address_release(device, first + PAGE, 3 * PAGE), GM_INVALID);
    CHECK_OK(ops->address_release(device, first, 4 * PAGE));
    CHECK_STATUS(ops->address_release(device, first, 4 * PAGE), GM_INVALID);
    CHECK_OK(ops->address_release(device, second, (size_t)1 << 36));
    CHECK_EQ(counters_of(device).address_now, 0);
}

static void
check_page_count(gm_device *device, const backend *kind)
{
    enum {
        PAGES = CAPACITY / PAGE
    };
    const gm_device_ops *ops = device->ops;
    gm_page pages[PAGES], more = 0;
    if (!kind->paging) {
        return;
    }
    for (int i = 0; i < PAGES; i++) {
        CHECK_OK(ops->page_create(device, &pages[i]));
        CHECK(pages[i] != 0);
    }
    CHECK_EQ(free_of(device), 0);
    CHECK_STATUS(ops->page_create(device, &more), GM_OUT_OF_MEMORY);
    CHECK_EQ(more, 0);
    CHECK_STATUS(ops->page_destroy(device, 0), GM_INVALID);
    CHECK_STATUS(ops->page_destroy(device, 1 << 20), GM_INVALID);
    CHECK_STATUS(ops->page_destroy(device, UINT64_MAX), GM_INVALID);
    CHECK_OK(ops->page_destroy(device, pages[3]));
    CHECK_STATUS(ops->page_destroy(device, pages[3]), GM_INVALID);
    CHECK_OK(ops->page_create(device, &pages[3]));
    for (int i = 0; i < PAGES; i++) {
        CHECK_OK(ops->page_destroy(device, pages[i]));
    }
    CHECK_EQ(counters_of(device).memory_now, 0);
}

/* Misuse of map, unmap and grant around two pages in a range of four slots. */
static void
check_mapping_misuse(gm_device *device, gm_devptr range, gm_page page, gm_page other)
{
    const gm_device_ops *ops = device->ops;
    CHECK_STATUS(ops->map(device, range + 4096, other), GM_INVALID);
    CHECK_STATUS(ops->map(device, range - PAGE, other), GM_INVALID);
    CHECK_STATUS(ops->map(device, range + 4 * PAGE, other), GM_INVALID);
    CHECK_STATUS(ops->map(device, range + PAGE, 0), GM_INVALID);
    CHECK_STATUS(ops->map(device, range + PAGE, 1 << 20), GM_INVALID);
    CHECK_STATUS(ops->map(device, range, other), GM_INVALID);
    CHECK_STATUS(ops->unmap(device, range + PAGE, PAGE), GM_INVALID);
    CHECK_STATUS(ops->unmap(device, range, 2 * PAGE), GM_INVALID);
    CHECK_STATUS(ops->unmap(device, range, 0), GM_INVALID);
    CHECK_STATUS(ops->unmap(device, range, 4096), GM_INVALID);
    CHECK_STATUS(ops->unmap(device, range, SIZE_MAX - PAGE + 1), GM_INVALID);
    CHECK_STATUS(ops->grant(device, range, 2 * PAGE), GM_INVALID);
    CHECK_STATUS(ops->page_destroy(device, page), GM_INVALID);
    CHECK_STATUS(ops->address_release(device, range, 4 * PAGE), GM_INVALID);
}

static void
check_aliasing(gm_device *device, gm_devptr range, gm_page page, const backend *kind)
{
    const gm_device_ops *ops = device->ops;
    if (!kind->aliasing) {
        CHECK_STATUS(ops->map(device, range + 3 * PAGE, page), GM_INVALID);
        return;
    }
    CHECK_OK(ops->map(device, range + 3 * PAGE, page));
    CHECK_OK(ops->grant(device, range + 3 * PAGE, PAGE));
    if (!kind->sim) {
        /* Volatile: the compiler takes two addresses for two places. */
        volatile char *memory = gm_device_host_pointer(range);
        memory[5] = 42;
        CHECK_EQ(memory[3 * PAGE + 5], 42);
    }
    CHECK_OK(ops->unmap(device, range + 3 * PAGE, PAGE));
    CHECK_STATUS(ops->page_destroy(device, page), GM_INVALID);
}

static void
check_mapping(gm_device *device, const backend *kind)
{
    const gm_device_ops *ops = device->ops;
    gm_devptr range;
    gm_page page, other;
    if (!kind->paging) {
        return;
    }
    CHECK_OK(ops->address_reserve(device, 4 * PAGE, &range));
    CHECK_OK(ops->page_create(device, &page));
    CHECK_OK(ops->page_create(device, &other));
    CHECK_OK(ops->map(device, range, page));
    CHECK_OK(ops->grant(device, range, PAGE));
    check_mapping_misuse(device, range, page, other);
    check_aliasing(device, range, page, kind);
    CHECK_OK(ops->map(device, range + PAGE, other));
    CHECK_OK(ops->grant(device, range, 2 * PAGE));
    CHECK_EQ(counters_of(device).mapped_now, 2 * PAGE);
    if (!kind->sim) {
        /* A page keeps its content while it moves. */
        char *memory = gm_device_host_pointer(range);
        memory[2 * PAGE - 1] = 7;
        CHECK_OK(ops->unmap(device, range + PAGE, PAGE));
        CHECK_OK(ops->map(device, range + 2 * PAGE, other));
        CHECK_OK(ops->grant(device, range + 2 * PAGE, PAGE));
        CHECK_EQ(memory[3 * PAGE - 1], 7);
        CHECK_OK(ops->unmap(device, range + 2 * PAGE, PAGE));
        CHECK_OK(ops->map(device, range + PAGE, other));
    }
    CHECK_OK(ops->unmap(device, range, 2 * PAGE));
    CHECK_EQ(counters_of(device).mapped_now, 0);
    CHECK_OK(ops->page_destroy(device, page));
    CHECK_OK(ops->page_destroy(device, other));
    CHECK_OK(ops->address_release(device, range, 4 * PAGE));
}

/* ---- streams and events ---------------------------------------------------------- */

/* What names no stream is refused; on CUDA, where everybody's streams can be named, it
 * is undefined, and only those who destroy one are asked whether it is theirs. */
static void
check_unknown_handles(gm_device *device, const backend *kind)
{
    static const uint64_t strangers[] = {3, 12345, UINT64_C(1) << 40, UINT64_MAX};
    const gm_device_ops *ops = device->ops;
    gm_event event;
    bool capturing;
    CHECK_OK(ops->event_create(device, &event));
    for (size_t i = 0; i < sizeof(strangers) / sizeof(strangers[0]); i++) {
        gm_stream stranger = strangers[i];
        CHECK_STATUS(ops->stream_destroy(device, stranger), GM_INVALID);
        if (!kind->cuda) {
            CHECK_STATUS(ops->stream_synchronize(device, stranger, 0), GM_INVALID);
            CHECK_STATUS(ops->stream_capturing(device, stranger, &capturing),
                         GM_INVALID);
            CHECK_STATUS(ops->stream_wait(device, stranger, event), GM_INVALID);
            CHECK_STATUS(ops->event_record(device, event, stranger), GM_INVALID);
        }
        CHECK_STATUS(ops->event_record(device, stranger, 0), GM_INVALID);
        CHECK_STATUS(ops->event_query(device, stranger), GM_INVALID);
        CHECK_STATUS(ops->event_synchronize(device, stranger, 0), GM_INVALID);
        CHECK_STATUS(ops->event_destroy(device, stranger), GM_INVALID);
        CHECK_STATUS(ops->stream_wait(device, 0, stranger), GM_INVALID);
    }
    CHECK_STATUS(ops->stream_destroy(device, GM_DEFAULT_STREAM), GM_INVALID);
    CHECK_OK(ops->event_destroy(device, event));
}

static void
check_streams(gm_device *device, const backend *kind)
{
    const gm_device_ops *ops = device->ops;
    gm_stream first, second;
    gm_event event;
    bool capturing = true;
    CHECK_OK(ops->stream_create(device, &first));
    CHECK_OK(ops->stream_create(device, &second));
    CHECK(first != second && first > 2 && second > 2);
    CHECK(ops->stream_identity(device, first) != ops->stream_identity(device, second));
    CHECK_EQ(ops->stream_identity(device, 0), ops->stream_identity(device, 1));
    CHECK(ops->stream_identity(device, 2) != ops->stream_identity(device, 0));
    CHECK_EQ(ops->stream_identity(device, 2), ops->stream_identity(device, 2));
    CHECK_OK(ops->stream_capturing(device, first, &capturing));
    CHECK(!capturing);
    CHECK_OK(ops->event_create(device, &event));
    CHECK_OK(ops->event_query(device, event));
    CHECK_OK(ops->event_synchronize(device, event, 0));
    for (gm_stream stream = 0; stream < 3; stream++) {
        CHECK_OK(ops->event_record(device, event, stream));
        CHECK_OK(ops->stream_wait(device, first, event));
    }
    CHECK_OK(ops->event_record(device, event, first));
    CHECK_OK(ops->stream_wait(device, second, event));
    CHECK_OK(ops->event_query(device, event));
    CHECK_OK(ops->event_synchronize(device, event, UINT64_MAX));
    CHECK_OK(ops->stream_synchronize(device, second, UINT64_MAX));
    CHECK_OK(ops->event_destroy(device, event));
    CHECK_STATUS(ops->event_query(device, event), GM_INVALID);
    CHECK_OK(ops->stream_destroy(device, first));
    CHECK_STATUS(ops->stream_destroy(device, first), GM_INVALID);
    if (!kind->cuda) {
        CHECK_STATUS(ops->stream_synchronize(device, first, 0), GM_INVALID);
    }
    CHECK_OK(ops->stream_destroy(device, second));
    check_unknown_handles(device, kind);
}

/* ---- the rest -------------------------------------------------------------------- */

static void
check_counters(gm_device *device, const backend *kind)
{
    gm_event event;
    gm_devptr segment;
    (void)kind;
    gm_device_counters before = counters_of(device);
    CHECK_OK(device->ops->event_create(device, &event));
    CHECK_OK(device->ops->event_query(device, event));
    CHECK_OK(device->ops->event_query(device, event));
    CHECK_STATUS(device->ops->segment_create(device, 7, &segment), GM_INVALID);
    CHECK_OK(device->ops->event_destroy(device, event));
    gm_device_counters after = counters_of(device);
    for (int call = 0; call < GM_CALL_COUNT; call++) {
        bool once = call == GM_CALL_EVENT_CREATE || call == GM_CALL_EVENT_DESTROY ||
                    call == GM_CALL_SEGMENT_CREATE;
        uint64_t more = call == GM_CALL_EVENT_QUERY ? 2 : once ? 1 : 0;
        CHECK_EQ(after.calls[call] - before.calls[call], more);
    }
}

static void
check_clock(gm_device *device, const backend *kind)
{
    (void)kind;
    uint64_t last = device->ops->clock_ns(device);
    for (int i = 0; i < 100; i++) {
        uint64_t now = device->ops->clock_ns(device);
        CHECK(now >= last);
        last = now;
    }
}

/* What every call of a parent's device answers. Runs in the child. */
static int
count_wrong_answers(gm_device *device)
{
    static const gm_kernel no_kernel = {"none", NULL};
    const gm_device_ops *ops = device->ops;
    char memory[64];
    size_t n;
    uint64_t out;
    void *pinned;
    bool yes;
    int wrong = 0;
    wrong += gm_device_usable(device) != GM_FORKED;
    wrong += ops->memory_info(device, &n, &n) != GM_FORKED;
    wrong += ops->segment_create(device, 512, &out) != GM_FORKED;
    wrong += ops->segment_destroy(device, 512, 512) != GM_FORKED;
    if (ops->page_create != NULL) {
        wrong += ops->address_reserve(device, PAGE, &out) != GM_FORKED;
        wrong += ops->address_release(device, PAGE, PAGE) != GM_FORKED;
        wrong += ops->page_create(device, &out) != GM_FORKED;
        wrong += ops->page_destroy(device, 1) != GM_FORKED;
        wrong += ops->map(device, PAGE, 1) != GM_FORKED;
        wrong += ops->unmap(device, PAGE, PAGE) != GM_FORKED;
        wrong += ops->grant(device, PAGE, PAGE) != GM_FORKED;
    }
    wrong += ops->stream_create(device, &out) != GM_FORKED;
    wrong += ops->stream_destroy(device, 3) != GM_FORKED;
    wrong += ops->stream_synchronize(device, 0, 0) != GM_FORKED;
    wrong += ops->threads_synchronize(device, 0) != GM_FORKED;
    wrong += ops->stream_capturing(device, 0, &yes) != GM_FORKED;
    wrong += ops->event_create(device, &out) != GM_FORKED;
    wrong += ops->event_destroy(device, 3) != GM_FORKED;
    wrong += ops->event_record(device, 3, 0) != GM_FORKED;
    wrong += ops->event_query(device, 3) != GM_FORKED;
    wrong += ops->event_synchronize(device, 3, 0) != GM_FORKED;
    wrong += ops->stream_wait(device, 0, 3) != GM_FORKED;
    wrong += ops->copy_async(device, 8, 8, 0, 0) != GM_FORKED;
    wrong += ops->fill_async(device, 8, memory, 1, 0, 0) != GM_FORKED;
    wrong += ops->launch != NULL &&
             ops->launch(device, &no_kernel, memory, 8, 0) != GM_FORKED;
    wrong += ops->pinned_create(device, 64, &pinned) != GM_FORKED;
    wrong += ops->pinned_destroy(device, memory, 64) != GM_FORKED;
    wrong += ops->pin(device, memory, 64) != GM_FORKED;
    wrong += ops->unpin(device, memory, 64) != GM_FORKED;
    wrong += ops->stream_identity(device, 0) != 0;
    (void)ops->clock_ns(device);
    (void)counters_of(device);
    return wrong;
}

static void
check_fork(gm_device *device, const backend *kind)
{
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int wrong = count_wrong_answers(device);
        gm_device_release(device);
        if (kind->cuda) {
            gm_cuda_options options = {.index = 0};
            wrong += gm_cuda_create(&options, &device) != GM_FORKED;
            _exit(wrong);
        }
        gm_device *fresh = open_backend(kind);
        check_segments(fresh, kind);
        check_mapping(fresh, kind);
        gm_device_release(fresh);
        _exit(wrong);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK_EQ_SIGNED(WEXITSTATUS(status), 0);
    check_segments(device, kind);
}

static void
check_exit(gm_device *device, const backend *kind)
{
    size_t free_bytes, total;
    (void)kind;
    gm_process_set_exiting(true);
    CHECK_STATUS(device->ops->memory_info(device, &free_bytes, &total), GM_EXITING);
    gm_device_retain(device);
    gm_device_release(device);
    gm_process_set_exiting(false);
    CHECK_OK(device->ops->memory_info(device, &free_bytes, &total));
}

/* ---- one test for each promise, over every backend ------------------------------- */

CONTRACT_TEST(info)
CONTRACT_TEST(slots)
CONTRACT_TEST(segments)
CONTRACT_TEST(ranges)
CONTRACT_TEST(page_count)
CONTRACT_TEST(mapping)
CONTRACT_TEST(streams)
CONTRACT_TEST(counters)
CONTRACT_TEST(clock)
CONTRACT_TEST(fork)
CONTRACT_TEST(exit)

static void
test_call_names(void)
{
    CHECK(strcmp(gm_device_call_name(GM_CALL_MEMORY_INFO), "memory_info") == 0);
    CHECK(strcmp(gm_device_call_name(GM_CALL_LAUNCH), "launch") == 0);
    CHECK(strcmp(gm_device_call_name(GM_CALL_COUNT), "unknown call") == 0);
}

static const gm_test tests[] = {
    {"info", test_info},
    {"slots", test_slots},
    {"segments", test_segments},
    {"ranges", test_ranges},
    {"page_count", test_page_count},
    {"mapping", test_mapping},
    {"streams", test_streams},
    {"counters", test_counters},
    {"clock", test_clock},
    {"fork", test_fork},
    {"exit", test_exit},
    {"call_names", test_call_names},
};

GM_TEST_MAIN(tests)
