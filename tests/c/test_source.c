/* test_source.c - memory of the device for a lane: pages under a placement, chunks of
 * addresses or segments, and what is left after a call that failed in between.
 */
#include "pool/internal.h"
#include "pool_kinds.h"

static gm_device *
faulty_host(size_t capacity)
{
    return behind_faults(host_device(capacity));
}

/* One failed allocation of 1 MiB, and what it may have left behind. */
static void
check_failure(gm_pool *pool, gm_device_call call, uint64_t nth, gm_status status)
{
    gm_device *device = gm_pool_device(pool);
    gm_block *block = NULL;
    fail_nth(device, call, nth, status);
    CHECK_STATUS(allocate(pool, MIB, 0, &block, NULL), status);
    CHECK_EQ(gm_fault_injected(device), 1);
    gm_fault_arm(device, NULL);
    CHECK(block == NULL);
    CHECK_EQ(stats_of(pool).allocation.all.allocated, 0);
    CHECK_POOL(pool);
}

/* ---- pages ----------------------------------------------------------------------- */

static void
a_failure_between_pages_leaves_nothing_mapped(void)
{
    gm_device_call call[] = {GM_CALL_MAP, GM_CALL_MAP, GM_CALL_GRANT};
    uint64_t nth[] = {1, 9, 1};
    for (int i = 0; i < 3; i++) {
        gm_device *device = faulty_host(32 * MIB);
        gm_pool *pool = pool_on(device, true);
        check_failure(pool, call[i], nth[i], GM_NO_MAPPING);
        CHECK_EQ(counters_of(device).mapped_now, 0);
        CHECK_EQ(stats_of(pool).segment.all.current, 0);
        CHECK_EQ(stats_of(pool).maps, stats_of(pool).unmaps);
        /* The pages wait for the next attempt. */
        CHECK_EQ(stats_of(pool).unplaced_bytes, MIB);
        uint64_t created = counters_of(device).calls[GM_CALL_PAGE_CREATE];
        gm_pool_free(take(pool, MIB, 0));
        CHECK_EQ(counters_of(device).calls[GM_CALL_PAGE_CREATE], created);
        close_pool(pool);
    }
}

static void
a_failure_after_the_first_page_keeps_what_was_there(void)
{
    gm_device *device = faulty_host(32 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_pool_free(take(pool, MIB, 0));
    gm_block *block = NULL;
    fail_nth(device, GM_CALL_PAGE_CREATE, 7, GM_DEVICE_ERROR);
    CHECK_STATUS(allocate(pool, 2 * MIB, 0, &block, NULL), GM_DEVICE_ERROR);
    CHECK_POOL(pool);
    CHECK_EQ(stats_of(pool).cached_bytes, MIB);
    CHECK_EQ(stats_of(pool).unplaced_bytes, 6 * PAGE);
    fail_nth(device, GM_CALL_MAP, 7, GM_DEVICE_ERROR);
    CHECK_STATUS(allocate(pool, 2 * MIB, 0, &block, NULL), GM_DEVICE_ERROR);
    CHECK_POOL(pool);
    CHECK_EQ(counters_of(device).mapped_now, MIB);
    CHECK_EQ(stats_of(pool).cached_bytes, MIB);
    close_pool(pool);
}

static void
pages_fill_holes_around_those_that_are_there(void)
{
    gm_device *device = faulty_host(32 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_block *blocks[4];
    for (int i = 0; i < 4; i++) {
        blocks[i] = take(pool, MIB, 0);
    }
    gm_devptr low = gm_block_address(blocks[0]);
    gm_pool_free(blocks[0]);
    gm_pool_free(blocks[2]);
    (void)trim_all(pool);
    gm_pool_free(blocks[1]);
    CHECK_EQ(reserved(pool), 2 * MIB);

    /* Addresses of three blocks in a row, of which the middle one has its pages. */
    uint64_t granted = counters_of(device).calls[GM_CALL_GRANT];
    gm_block *block = take(pool, 3 * MIB, 0);
    CHECK_EQ(gm_block_address(block), low);
    CHECK_EQ(counters_of(device).calls[GM_CALL_GRANT], granted + 2);
    CHECK_EQ(reserved(pool), 4 * MIB);
    memset(gm_device_host_pointer(low), 1, 3 * MIB);
    gm_pool_free(block);
    gm_pool_free(blocks[3]);
    close_pool(pool);
}

static void
a_page_that_cannot_be_unmapped_is_put_aside(void)
{
    gm_device *inner = faulty_host(32 * MIB);
    gm_device *device = behind_faults(gm_device_retain(inner));
    gm_pool *pool = pool_on(device, true);
    gm_fault_plan plan = {
        .call = GM_CALL_UNMAP, .nth = 1, .for_ever = true, .status = GM_DEVICE_LOST};
    gm_block *block = NULL;
    watch_reports();
    /* The third map fails, and so does the unmap of the two before it. */
    gm_fault_arm(inner, &plan);
    fail_nth(device, GM_CALL_MAP, 3, GM_DEVICE_ERROR);
    CHECK_STATUS(allocate(pool, MIB, 0, &block, NULL), GM_DEVICE_ERROR);
    gm_fault_arm(inner, NULL);
    CHECK_EQ(last_report, GM_DEVICE_LOST);
    CHECK_EQ(reports, 2);
    CHECK(strcmp(last_report_text, "unmap a page after a failed allocation") == 0);
    gm_set_report_hook(NULL);
    CHECK_POOL(pool);
    gm_pool_stats stats = stats_of(pool);
    CHECK_EQ(stats.quarantined, 2 * PAGE);
    CHECK_EQ(stats.unplaced_bytes, 14 * PAGE);
    CHECK_EQ(stats.maps, 2);
    CHECK_EQ(stats.unmaps, 0);

    /* Neither those pages nor their addresses are used again; those behind them are. */
    block = take(pool, MIB, 0);
    CHECK_POOL(pool);
    CHECK_EQ(counters_of(device).calls[GM_CALL_ADDRESS_RESERVE], 1);
    memset(gm_device_host_pointer(gm_block_address(block)), 1, MIB);
    CHECK_EQ(reserved(pool), MIB + 2 * PAGE);
    gm_pool_free(block);
    gm_pool_view view;
    CHECK_OK(gm_pool_view_create(pool, &view));
    CHECK_EQ(view.segment_count, 1);
    CHECK_EQ(view.segments[0].size, MIB);
    gm_pool_view_destroy(&view);
    CHECK_EQ(trim_all(pool).released, MIB);
    CHECK_EQ(reserved(pool), 2 * PAGE);
    CHECK_POOL(pool);
    gm_pool_release(pool);
    gm_device_release(device);
    gm_device_release(inner);
}

/* ---- addresses ------------------------------------------------------------------- */

static void
fewer_addresses_do_as_well(void)
{
    gm_device *device = faulty_host(32 * MIB);
    gm_pool *pool = pool_on(device, true);
    fail_nth(device, GM_CALL_ADDRESS_RESERVE, 1, GM_NO_ADDRESS);
    gm_block *block = take(pool, MIB, 0);
    CHECK_EQ(stats_of(pool).address_bytes, 32 * MIB);
    gm_pool_free(block);

    /* Down to what the block itself needs, then it is over. */
    gm_fault_plan plan = {.call = GM_CALL_ADDRESS_RESERVE,
                          .nth = 1,
                          .for_ever = true,
                          .status = GM_NO_ADDRESS};
    gm_stream other = new_stream(device);
    gm_fault_arm(device, &plan);
    CHECK_STATUS(allocate(pool, 20 * MIB, other, &block, NULL), GM_NO_ADDRESS);
    CHECK_EQ(gm_fault_injected(device), 3);
    CHECK_STATUS(allocate(pool, 1000, other, &block, NULL), GM_NO_ADDRESS);
    CHECK_EQ(gm_fault_injected(device), 3 + 6);
    gm_fault_arm(device, NULL);
    fail_nth(device, GM_CALL_ADDRESS_RESERVE, 1, GM_DEVICE_ERROR);
    CHECK_STATUS(allocate(pool, 1000, other, &block, NULL), GM_DEVICE_ERROR);
    CHECK_POOL(pool);
    gm_pool_free(take(pool, 1000, other));
    close_pool(pool);
}

static void
a_limited_pool_reserves_like_a_small_device(void)
{
    gm_device *device = faulty_host(64 * MIB);
    gm_pool_options options = usual_options();
    options.limit = 7 * MIB;
    gm_pool *pool = open_pool(device, &options);
    gm_pool_free(take(pool, MIB, 0));
    CHECK_EQ(stats_of(pool).address_bytes, 14 * MIB);
    /* Addresses without pages go back with all the rest. */
    (void)trim_all(pool);
    CHECK_EQ(counters_of(device).address_now, 0);
    CHECK_EQ(stats_of(pool).address_bytes, 0);

    gm_pool_free(take(pool, MIB, 0));
    watch_reports();
    fail_nth(device, GM_CALL_ADDRESS_RELEASE, 1, GM_DEVICE_ERROR);
    (void)trim_all(pool);
    CHECK_REPORT(GM_DEVICE_ERROR, "release a range of addresses");
    gm_set_report_hook(NULL);
    CHECK_EQ(stats_of(pool).quarantined, 0);
    CHECK_EQ(counters_of(device).address_now, 14 * MIB);
    CHECK_POOL(pool);
    gm_pool_release(pool);
    gm_device_release(device);
}

static void
addresses_of_another_owner_are_refused(void)
{
    /* The sim hands out the lowest addresses first: the next ones are known. */
    for (int paging = 0; paging < 2; paging++) {
        gm_sim_options options = {
            .capacity = 64 * MIB, .page_size = PAGE, .paging = paging != 0};
        gm_device *device = open_sim(&options);
        gm_pool *pool = pool_on(device, paging != 0);
        gm_block *block = take(pool, MIB, 0);
        gm_devptr base = gm_block_address(block);
        gm_pool_free(block);
        (void)trim_all(pool);
        gm_chunk *chunk;
        CHECK_OK(gm_chunk_create(base, GM_MAP_STEP, 0, false, &chunk));
        CHECK_OK(gm_address_map_set(base, GM_MAP_STEP, chunk));
        CHECK_STATUS(allocate(pool, MIB, 0, &block, NULL), GM_INVALID);
        CHECK_EQ(counters_of(device).address_now, 0);
        CHECK_EQ(counters_of(device).memory_now, 0);
        CHECK_EQ(reserved(pool), 0);
        gm_address_map_clear(base, GM_MAP_STEP);
        gm_chunk_retire(chunk);
        block = take(pool, MIB, 0);
        CHECK_EQ(gm_block_address(block), base);
        gm_pool_free(block);
        close_pool(pool);
    }
}

static void
alignments_are_kept(void)
{
    for (int paging = 0; paging < 2; paging++) {
        gm_device *device = host_device(64 * MIB);
        gm_pool *pool = pool_on(device, paging != 0);
        gm_block *guard = take(pool, 700, 0);
        for (size_t alignment = 1; alignment <= 8 * MIB; alignment *= 2) {
            gm_request request = {.size = MIB / 2, .alignment = alignment};
            gm_block *block = NULL;
            CHECK_OK(gm_pool_alloc(pool, &request, &block, NULL));
            CHECK_EQ(gm_block_address(block) % alignment, 0);
            CHECK_EQ(gm_block_address(block) % GM_GRANULE, 0);
            CHECK_POOL(pool);
            request.size = 600;
            gm_block *small = NULL;
            CHECK_OK(gm_pool_alloc(pool, &request, &small, NULL));
            CHECK_EQ(gm_block_address(small) % alignment, 0);
            gm_pool_free(block);
            gm_pool_free(small);
        }
        gm_pool_free(guard);
        close_pool(pool);
    }
}

/* ---- segments -------------------------------------------------------------------- */

static void
segments_have_steps(void)
{
    struct {
        size_t size, segment;
    } cases[] = {
        {512, 2 * MIB},          {256 * KIB, 2 * MIB},       {256 * KIB + 1, 20 * MIB},
        {3 * MIB, 18 * MIB},     {10 * MIB - 512, 20 * MIB}, {10 * MIB, 10 * MIB},
        {11 * MIB + 1, 12 * MIB}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        gm_device *device = host_device(64 * MIB);
        gm_pool *pool = pool_on(device, false);
        gm_block *block = take(pool, cases[i].size, 0);
        CHECK_EQ(reserved(pool), cases[i].segment);
        gm_pool_free(block);
        close_pool(pool);
    }
}

static void
a_segment_that_just_fits_does_as_well(void)
{
    gm_device *device = faulty_host(9 * MIB);
    gm_pool *pool = pool_on(device, false);
    gm_block *block = take(pool, 3 * MIB, 0), *more = NULL;
    CHECK_EQ(reserved(pool), 4 * MIB);
    CHECK_EQ(counters_of(device).calls[GM_CALL_SEGMENT_CREATE], 2);
    gm_oom oom;
    CHECK_STATUS(allocate(pool, 6 * MIB, 0, &more, &oom), GM_OUT_OF_MEMORY);
    CHECK_EQ(oom.used, 3 * MIB);
    CHECK_EQ(reserved(pool), 4 * MIB);
    fail_nth(device, GM_CALL_SEGMENT_CREATE, 1, GM_DEVICE_LOST);
    CHECK_STATUS(allocate(pool, 2 * MIB, 0, &more, &oom), GM_DEVICE_LOST);
    CHECK_POOL(pool);
    gm_pool_free(block);
    close_pool(pool);
}

static void
a_segment_that_cannot_be_destroyed_is_lost(void)
{
    gm_device *device = faulty_host(32 * MIB);
    gm_pool *pool = pool_on(device, false);
    gm_pool_free(take(pool, 10 * MIB, 0));
    watch_reports();
    fail_nth(device, GM_CALL_SEGMENT_DESTROY, 1, GM_DEVICE_ERROR);
    (void)trim_all(pool);
    CHECK_REPORT(GM_DEVICE_ERROR, "give a segment back");
    gm_set_report_hook(NULL);
    gm_pool_stats stats = stats_of(pool);
    CHECK_EQ(stats.quarantined, 10 * MIB);
    CHECK_EQ(stats.reserved_bytes.all.current, 10 * MIB);
    CHECK_EQ(stats.cached_bytes, 0);
    CHECK_EQ(stats.segment.all.current, 0);
    CHECK_EQ(stats.num_device_free, 0);
    gm_pool_free(take(pool, 12 * MIB, 0));
    CHECK_EQ(reserved(pool), 22 * MIB);
    (void)trim_all(pool);
    CHECK_EQ(reserved(pool), 10 * MIB);
    CHECK_POOL(pool);
    gm_pool_release(pool);
    gm_device_release(device);
}

static void
long_cached_blocks_are_kept_for_long_requests(void)
{
    gm_device *device = host_device(200 * MIB);
    gm_pool_options options = usual_options();
    options.paging = false;
    options.max_split = 16 * MIB;
    gm_pool *pool = open_pool(device, &options);
    gm_pool_free(take(pool, 60 * MIB, 0));
    gm_block *shorter = take(pool, 12 * MIB, 0);
    CHECK_EQ(reserved(pool), 72 * MIB);
    gm_block *much_shorter = take(pool, 39 * MIB, 0);
    CHECK_EQ(reserved(pool), 112 * MIB);
    /* Up to 20 MiB shorter it is taken, and taken whole. */
    gm_block *near = take(pool, 41 * MIB, 0);
    CHECK_EQ(reserved(pool), 112 * MIB);
    CHECK_EQ(gm_block_size(near), 60 * MIB);
    CHECK_EQ(gm_block_requested(near), 41 * MIB);
    gm_pool_free(near);
    gm_pool_free(much_shorter);
    gm_pool_free(shorter);
    close_pool(pool);
}

/* The zombies of a first allocation whose nth call and all later ones fail. */
static size_t
zombies_after(uint64_t nth, bool *failed)
{
    gm_device *device = behind_faults(host_device(32 * MIB));
    gm_pool *pool = pool_on(device, true);
    gm_fault_plan plan = {
        .call = -1, .nth = nth, .for_ever = true, .status = GM_DEVICE_ERROR};
    gm_block *block = NULL;
    gm_fault_arm(device, &plan);
    *failed = allocate(pool, MIB, 0, &block, NULL) != GM_OK;
    gm_fault_arm(device, NULL);
    size_t zombies = stats_of(pool).zombies;
    CHECK_EQ(zombies, stats_of(pool).quarantined);
    gm_pool_free(block);
    gm_pool_release(pool);
    gm_device_release(device);
    return zombies;
}

static void
pages_that_cannot_be_unmapped_are_counted(void)
{
    size_t most = 0;
    bool failed = true;
    for (uint64_t nth = 1; failed; nth++) {
        size_t zombies = zombies_after(nth, &failed);
        CHECK(failed || zombies == 0);
        most = zombies > most ? zombies : most;
    }
    CHECK_EQ(most, MIB);
}

static const gm_test tests[] = {
    {"a failure between pages leaves nothing mapped",
     a_failure_between_pages_leaves_nothing_mapped},
    {"a failure after the first page keeps what was there",
     a_failure_after_the_first_page_keeps_what_was_there},
    {"pages fill holes around those that are there",
     pages_fill_holes_around_those_that_are_there},
    {"a page that cannot be unmapped is put aside",
     a_page_that_cannot_be_unmapped_is_put_aside},
    {"fewer addresses do as well", fewer_addresses_do_as_well},
    {"a limited pool reserves like a small device",
     a_limited_pool_reserves_like_a_small_device},
    {"addresses of another owner are refused", addresses_of_another_owner_are_refused},
    {"alignments are kept", alignments_are_kept},
    {"segments have steps", segments_have_steps},
    {"a segment that just fits does as well", a_segment_that_just_fits_does_as_well},
    {"a segment that cannot be destroyed is lost",
     a_segment_that_cannot_be_destroyed_is_lost},
    {"long cached blocks are kept for long requests",
     long_cached_blocks_are_kept_for_long_requests},
    {"pages that cannot be unmapped are counted",
     pages_that_cannot_be_unmapped_are_counted},
};

GM_TEST_MAIN(tests)
