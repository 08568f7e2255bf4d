/* test_device_work.c - the part of the contract that is about work and page-locked
 * memory, over every backend: copies, fills of every width, kernels, pinning.
 */
#include "contract_backends.h"

/* ---- work ------------------------------------------------------------------------ */

typedef struct add_arguments {
    gm_devptr values;
    size_t count;
    int32_t term;
} add_arguments;

static void
add_on_host(const void *arguments)
{
    add_arguments a;
    memcpy(&a, arguments, sizeof(a));
    int32_t *values = gm_device_host_pointer(a.values);
    for (size_t i = 0; i < a.count; i++) {
        values[i] += a.term;
    }
}

static const gm_kernel add_kernel = {"test_add", add_on_host};

static void
check_work_is_unsupported(gm_device *device)
{
    const gm_device_ops *ops = device->ops;
    add_arguments arguments = {0};
    char byte = 0;
    CHECK_STATUS(ops->copy_async(device, 4096, 8192, 16, 0), GM_UNSUPPORTED);
    CHECK_STATUS(ops->fill_async(device, 4096, &byte, 1, 16, 0), GM_UNSUPPORTED);
    CHECK_STATUS(ops->launch(device, &add_kernel, &arguments, sizeof(arguments), 0),
                 GM_UNSUPPORTED);
}

static void
check_work(gm_device *device, const backend *kind)
{
    enum {
        COUNT = 5000
    };
    const gm_device_ops *ops = device->ops;
    static int32_t back[COUNT];
    const int32_t seven = 7;
    gm_devptr segment;
    if (kind->sim) {
        check_work_is_unsupported(device);
        return;
    }
    CHECK_OK(ops->segment_create(device, MIB, &segment));
    add_arguments arguments = {segment, COUNT, 5};
    CHECK_OK(ops->fill_async(device, segment, &seven, sizeof(seven), COUNT, 0));
    if (ops->launch != NULL) {
        CHECK_OK(ops->launch(device, &add_kernel, &arguments, sizeof(arguments), 0));
    }
    CHECK_OK(ops->copy_async(device, (uintptr_t)back, segment, sizeof(back), 0));
    CHECK_OK(ops->stream_synchronize(device, 0, UINT64_MAX));
    for (int i = 0; i < COUNT; i++) {
        CHECK_EQ_SIGNED(back[i], ops->launch != NULL ? 12 : 7);
    }
    CHECK_OK(ops->copy_async(device, 0, 0, 0, 0));
    CHECK_STATUS(ops->copy_async(device, 0, segment, 1, 0), GM_INVALID);
    CHECK_STATUS(ops->copy_async(device, segment, UINT64_MAX, 2, 0), GM_INVALID);
    if (!kind->cuda) {
        CHECK_STATUS(ops->copy_async(device, segment, segment, 1, 99), GM_INVALID);
    }
    CHECK_STATUS(ops->fill_async(device, segment, &seven, 3, 1, 0), GM_INVALID);
    CHECK_STATUS(ops->fill_async(device, segment, &seven, 0, 1, 0), GM_INVALID);
    CHECK_STATUS(ops->fill_async(device, segment, &seven, 4, SIZE_MAX / 2, 0),
                 GM_INVALID);
    if (ops->launch != NULL) {
        CHECK_STATUS(ops->launch(device, &add_kernel, &arguments, 257, 0), GM_INVALID);
        CHECK_STATUS(ops->launch(device, NULL, NULL, 0, 0), GM_INVALID);
    }
    CHECK_OK(ops->segment_destroy(device, segment, MIB));
}

/* Every width, and counts around the block that a fill works in. */
static void
check_fill_widths(gm_device *device, const backend *kind)
{
    static const size_t counts[] = {0, 1, 3, 255, 256, 257, 4096, 4097, 70000};
    const gm_device_ops *ops = device->ops;
    unsigned char pattern[16];
    gm_devptr segment;
    if (kind->sim) {
        return;
    }
    for (int i = 0; i < 16; i++) {
        pattern[i] = (unsigned char)(i + 1);
    }
    CHECK_OK(ops->segment_create(device, 2 * MIB, &segment));
    unsigned char *memory = gm_device_host_pointer(segment);
    for (size_t width = 1; width <= 16; width *= 2) {
        for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
            size_t bytes = width * counts[c];
            memset(memory, 0xEE, bytes + 32);
            /* Not aligned to its element. */
            CHECK_OK(
                ops->fill_async(device, segment + 1, pattern, width, counts[c], 1));
            CHECK_OK(ops->stream_synchronize(device, 1, UINT64_MAX));
            for (size_t i = 0; i < bytes; i++) {
                if (memory[1 + i] != pattern[i % width]) {
                    CHECK_EQ(memory[1 + i], pattern[i % width]);
                }
            }
            CHECK_EQ(memory[0], 0xEE);
            CHECK_EQ(memory[1 + bytes], 0xEE);
        }
    }
    CHECK_OK(ops->segment_destroy(device, segment, 2 * MIB));
}

/* ---- pinned host memory ---------------------------------------------------------- */

static void
check_pinned(gm_device *device, const backend *kind)
{
    static char mine[3 * 4096];
    const gm_device_ops *ops = device->ops;
    void *memory = NULL;
    (void)kind;
    CHECK_STATUS(ops->pinned_create(device, 0, &memory), GM_INVALID);
    CHECK_STATUS(ops->pinned_create(device, SIZE_MAX - 10, &memory), GM_INVALID);
    CHECK(memory == NULL);
    CHECK_OK(ops->pinned_create(device, 5000, &memory));
    CHECK_EQ((uintptr_t)memory % 4096, 0);
    memset(memory, 1, 5000);
    CHECK_OK(ops->pin(device, mine, 8192));
    CHECK_EQ(counters_of(device).pinned_now, 5000 + 8192);
    CHECK_STATUS(ops->pin(device, mine + 8191, 1), GM_INVALID);
    CHECK_STATUS(ops->pin(device, mine, 8192), GM_INVALID);
    CHECK_STATUS(ops->pin(device, memory, 100), GM_INVALID);
    CHECK_STATUS(ops->pin(device, NULL, 100), GM_INVALID);
    CHECK_STATUS(ops->pin(device, mine + 8192, 0), GM_INVALID);
    CHECK_OK(ops->pin(device, mine + 8192, 4096));
    CHECK_STATUS(ops->unpin(device, mine, 4096), GM_INVALID);
    CHECK_STATUS(ops->unpin(device, memory, 5000), GM_INVALID);
    CHECK_STATUS(ops->pinned_destroy(device, mine, 8192), GM_INVALID);
    CHECK_OK(ops->unpin(device, mine, 8192));
    CHECK_STATUS(ops->unpin(device, mine, 8192), GM_INVALID);
    CHECK_OK(ops->unpin(device, mine + 8192, 4096));
    CHECK_OK(ops->pinned_destroy(device, memory, 5000));
    CHECK_STATUS(ops->pinned_destroy(device, memory, 5000), GM_INVALID);
    CHECK_EQ(counters_of(device).pinned_now, 0);
}

CONTRACT_TEST(work)
CONTRACT_TEST(fill_widths)
CONTRACT_TEST(pinned)

static const gm_test tests[] = {
    {"work", test_work},
    {"fill_widths", test_fill_widths},
    {"pinned", test_pinned},
};

GM_TEST_MAIN(tests)
