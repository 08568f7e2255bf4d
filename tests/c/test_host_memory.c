/* test_host_memory.c - the process runs out of host memory: the N-th allocation fails,
 * for each N, around every call of a pool. The linker sends the allocations of the
 * library through the four functions below (--wrap, see the Makefile).
 */
#include "pool_kinds.h"

/* ---- failing allocations --------------------------------------------------------- */

void *
__real_malloc(size_t size);
void *
__real_calloc(size_t count, size_t size);
void *
__real_realloc(void *memory, size_t size);
void *
__real_aligned_alloc(size_t alignment, size_t size);
void *
__wrap_malloc(size_t size);
void *
__wrap_calloc(size_t count, size_t size);
void *
__wrap_realloc(void *memory, size_t size);
void *
__wrap_aligned_alloc(size_t alignment, size_t size);

static uint64_t fail_at; /* 1: the next allocation; 0: none fails */
static bool fail_later;  /* ... and all after it */
static uint64_t failed;

static bool
strikes(void)
{
    if (fail_at == 0 || --fail_at != 0) {
        return false;
    }
    failed++;
    fail_at = fail_later ? 1 : 0;
    return true;
}

void *
__wrap_malloc(size_t size)
{
    return strikes() ? NULL : __real_malloc(size);
}

void *
__wrap_calloc(size_t count, size_t size)
{
    return strikes() ? NULL : __real_calloc(count, size);
}

void *
__wrap_realloc(void *memory, size_t size)
{
    return strikes() ? NULL : __real_realloc(memory, size);
}

void *
__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return strikes() ? NULL : __real_aligned_alloc(alignment, size);
}

static void
fail_from(uint64_t nth, bool for_ever)
{
    failed = 0;
    fail_later = for_ever;
    fail_at = nth;
}

/* How many allocations failed; from now on none does. */
static uint64_t
stop_failing(void)
{
    fail_at = 0;
    return failed;
}

/* ---- a program ------------------------------------------------------------------- */

/* Success, or what a want of host memory may be called. */
static bool
had(gm_status status)
{
    CHECK(status == GM_OK || status == GM_NO_HOST_MEMORY);
    return status == GM_OK;
}

static gm_device *
sim_device(bool paging)
{
    gm_sim_options options = {
        .capacity = 256 * MIB, .page_size = PAGE, .paging = paging};
    return open_sim(&options);
}

enum {
    BLOCKS = 12
};

static void
use_blocks(gm_pool *pool, gm_stream stream)
{
    gm_block *blocks[BLOCKS] = {NULL};
    for (int i = 0; i < BLOCKS; i++) {
        gm_stream own = i % 3 == 0 ? stream : 0, other = i % 3 == 0 ? 0 : stream;
        size_t size = i % 2 == 0 ? 3 * MIB : 1000 * (size_t)(i + 1);
        if (!had(allocate(pool, size, own, &blocks[i], NULL))) {
            blocks[i] = NULL;
            continue;
        }
        (void)had(gm_pool_record_stream(blocks[i], other));
    }
    for (int i = 0; i < BLOCKS; i++) {
        gm_pool_free(blocks[i]);
    }
}

static void
look_at(gm_pool *pool)
{
    gm_pool_view view;
    char text[160] = "";
    if (had(gm_pool_view_create(pool, &view))) {
        gm_pool_view_destroy(&view);
    }
    if (gm_pool_check(pool, text, sizeof(text)) != GM_OK) {
        check_fail(__FILE__, __LINE__, text);
    }
}

static void
run_program(gm_device *device, gm_stream stream, bool paging)
{
    gm_pool_options options = usual_options();
    gm_trim_request request = {0};
    gm_trim_report report;
    gm_pool *pool = NULL;
    options.paging = paging;
    options.reserve = MIB;
    if (!had(gm_pool_create(device, &options, &pool))) {
        CHECK(pool == NULL);
        return;
    }
    (void)had(gm_pool_record_history(pool, 10));
    use_blocks(pool, stream);
    look_at(pool);
    CHECK_OK(gm_pool_trim(pool, &request, &report));
    if (had(gm_pool_capture_begin(pool, stream))) {
        use_blocks(pool, stream);
        CHECK_OK(gm_pool_capture_end(pool, stream));
    }
    use_blocks(pool, stream);
    (void)had(gm_pool_reserve(pool, 20 * MIB, NULL));
    gm_pool_stream_retired(pool, stream);
    look_at(pool);

    /* What is left is as good as new. */
    uint64_t failures = stop_failing();
    gm_pool_free(take(pool, 5 * MIB, 0));
    CHECK_EQ(stats_of(pool).quarantined, 0);
    CHECK_EQ(stats_of(pool).allocation.all.current, 0);
    look_at(pool);
    gm_pool_release(pool);
    failed = failures;
}

static void
sweep(bool paging, bool for_ever)
{
    uint64_t nth = 0, failures;
    do {
        nth++;
        gm_device *device = sim_device(paging);
        gm_stream stream = new_stream(device);
        watch_reports();
        fail_from(nth, for_ever);
        run_program(device, stream, paging);
        failures = stop_failing();
        CHECK_EQ(reports, 0);
        CHECK_EQ(counters_of(device).memory_now, 0);
        CHECK_EQ(counters_of(device).address_now, 0);
        gm_set_report_hook(NULL);
        gm_device_release(device);
    } while (failures != 0);
    CHECK(nth > 20);
}

static void
each_allocation_fails_once(void)
{
    sweep(true, false);
    sweep(false, false);
}

static void
all_allocations_fail_from_one_on(void)
{
    sweep(true, true);
    sweep(false, true);
}

/* ---- single calls ---------------------------------------------------------------- */

static void
a_history_that_does_not_fit_keeps_the_old_one(void)
{
    gm_device *device = sim_device(true);
    gm_pool *pool = pool_on(device, true);
    size_t count, limit;
    uint64_t dropped;
    CHECK_OK(gm_pool_record_history(pool, 5));
    gm_pool_free(take(pool, 1000, 0));
    fail_from(1, false);
    CHECK_STATUS(gm_pool_record_history(pool, 500), GM_NO_HOST_MEMORY);
    CHECK_EQ(stop_failing(), 1);
    gm_pool_read_history(pool, NULL, 0, &count, &dropped, &limit);
    CHECK_EQ(limit, 5);
    CHECK_EQ(count, 4);
    close_pool(pool);
}

static void
a_view_is_whole_or_not_at_all(void)
{
    enum {
        COUNT = 200
    };
    gm_device *device = sim_device(true);
    gm_pool *pool = pool_on(device, true);
    gm_block *blocks[COUNT];
    for (int i = 0; i < COUNT; i++) {
        blocks[i] = take(pool, 5 * PAGE, 0);
    }
    for (int i = 0; i < COUNT; i += 2) {
        gm_pool_free(blocks[i]);
    }
    (void)trim_all(pool);
    uint64_t nth = 0;
    gm_status status;
    do {
        gm_pool_view view = {.unplaced = 77};
        fail_from(++nth, false);
        status = gm_pool_view_create(pool, &view);
        CHECK_EQ(stop_failing(), status != GM_OK);
        CHECK(status == GM_OK || (view.unplaced == 77 && view.blocks == NULL));
        if (status == GM_OK) {
            CHECK_EQ(view.segment_count, COUNT / 2);
            gm_pool_view_destroy(&view);
        }
    } while (!had(status));
    /* Two arrays, which grew to 64, 128 (of 100 segments and blocks). */
    CHECK_EQ(nth, 5);
    for (int i = 1; i < COUNT; i += 2) {
        gm_pool_free(blocks[i]);
    }
    close_pool(pool);
}

static void
the_fast_path_says_so_when_it_needs_nodes(void)
{
    gm_device *device = sim_device(true);
    gm_pool *pool = pool_on(device, true);
    gm_request request = {.size = 512};
    gm_block *first = take(pool, 512, 0), *block = NULL;
    gm_status status;
    static gm_block *blocks[2000];
    size_t count = 0;
    CHECK_OK(gm_pool_reserve(pool, 2 * MIB, NULL));
    gm_pool_free(take(pool, 256 * KIB, 0));
    gm_pool_free(take(pool, 200 * KIB, 0));
    do {
        fail_from(1, true);
        status = gm_pool_try_alloc(pool, &request, &block);
        uint64_t failures = stop_failing();
        CHECK_EQ(failures, status == GM_NO_HOST_MEMORY);
        if (status == GM_OK) {
            blocks[count++] = block;
        }
    } while (status == GM_OK && count < 2000);
    /* A slab of nodes was used up before the cached memory was. */
    CHECK_STATUS(status, GM_NO_HOST_MEMORY);
    CHECK(count > 100);
    CHECK_POOL(pool);
    while (count > 0) {
        gm_pool_free(blocks[--count]);
    }
    gm_pool_free(first);
    close_pool(pool);
}

static const gm_test tests[] = {
    {"each allocation fails once", each_allocation_fails_once},
    {"all allocations fail from one on", all_allocations_fail_from_one_on},
    {"a history that does not fit keeps the old one",
     a_history_that_does_not_fit_keeps_the_old_one},
    {"a view is whole or not at all", a_view_is_whole_or_not_at_all},
    {"the fast path says so when it needs nodes",
     the_fast_path_says_so_when_it_needs_nodes},
};

GM_TEST_MAIN(tests)
