/* test_view.c - a copy of a pool's segments and blocks: every state, and parts. */
#include "pool_kinds.h"

static gm_pool_view
view_of(gm_pool *pool)
{
    gm_pool_view view;
    CHECK_OK(gm_pool_view_create(pool, &view));
    return view;
}

/* The blocks of a segment fill it without a gap, and its sums are theirs. */
static void
check_segment(const gm_pool_view *view, const gm_segment_view *segment)
{
    gm_devptr address = segment->address;
    size_t used = 0, active = 0, asked = 0;
    CHECK(segment->block_count > 0);
    CHECK(segment->first_block + segment->block_count <= view->block_count);
    for (size_t i = 0; i < segment->block_count; i++) {
        const gm_block_view *block = &view->blocks[segment->first_block + i];
        CHECK_EQ(block->address, address);
        CHECK(block->size > 0);
        address += block->size;
        switch (block->state) {
            case GM_BLOCK_USED:
                used += block->size;
                asked += block->requested;
                active += block->size;
                break;
            case GM_BLOCK_PENDING:
                active += block->size;
                break;
            case GM_BLOCK_FREE:
                CHECK_EQ(block->requested, 0);
                CHECK_EQ(block->context, 0);
                break;
        }
    }
    CHECK_EQ(address, segment->address + segment->size);
    CHECK_EQ(segment->used, used);
    CHECK_EQ(segment->requested, asked);
    CHECK_EQ(segment->active, active);
}

/* The view agrees with itself and with the counters of the pool. */
static void
check_view(gm_pool *pool, const gm_pool_view *view)
{
    gm_pool_stats stats = stats_of(pool);
    size_t next = 0, bytes = 0, used = 0, asked = 0, active = 0;
    for (size_t i = 0; i < view->segment_count; i++) {
        const gm_segment_view *segment = &view->segments[i];
        CHECK_EQ(segment->first_block, next);
        check_segment(view, segment);
        next += segment->block_count;
        bytes += segment->size;
        used += segment->used;
        asked += segment->requested;
        active += segment->active;
    }
    CHECK_EQ(next, view->block_count);
    CHECK_EQ(view->unplaced, stats.unplaced_bytes);
    CHECK_EQ(bytes + view->unplaced, stats.reserved_bytes.all.current);
    CHECK_EQ(used, stats.allocated_bytes.all.current);
    CHECK_EQ(asked, stats.requested_bytes.all.current);
    CHECK_EQ(active, stats.active_bytes.all.current);
}

static const gm_block_view *
find_block(const gm_pool_view *view, gm_devptr address)
{
    for (size_t i = 0; i < view->block_count; i++) {
        if (view->blocks[i].address == address) {
            return &view->blocks[i];
        }
    }
    CHECK(!"a block of that address is in the view");
    return NULL;
}

static void
an_empty_pool_has_an_empty_view(void)
{
    gm_device *device = host_device(8 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_pool_view view = view_of(pool);
    CHECK_EQ(view.segment_count, 0);
    CHECK_EQ(view.block_count, 0);
    CHECK_EQ(view.unplaced, 0);
    gm_pool_view_destroy(&view);
    CHECK_OK(gm_pool_reserve(pool, 2 * MIB, NULL));
    view = view_of(pool);
    check_view(pool, &view);
    CHECK_EQ(view.segment_count, 0);
    CHECK_EQ(view.unplaced, 2 * MIB);
    gm_pool_view_destroy(&view);
    CHECK(view.blocks == NULL && view.segments == NULL && view.unplaced == 0);
    close_pool(pool);
}

static void
every_state_of_a_block_is_shown(void)
{
    for (int paging = 0; paging < 2; paging++) {
        gm_device *device = host_device(64 * MIB);
        gm_pool *pool = pool_on(device, paging != 0);
        gm_stream slow = stalled_stream(device);
        gm_request request = {.size = MIB - 100, .context = 41};
        gm_block *used, *waits, *freed, *guard;
        CHECK_OK(gm_pool_alloc(pool, &request, &used, NULL));
        request.context = 42;
        CHECK_OK(gm_pool_alloc(pool, &request, &waits, NULL));
        CHECK_OK(gm_pool_alloc(pool, &request, &freed, NULL));
        CHECK_OK(gm_pool_alloc(pool, &request, &guard, NULL));
        gm_devptr pending_at = gm_block_address(waits);
        gm_devptr free_at = gm_block_address(freed);
        CHECK_OK(gm_pool_record_stream(waits, slow));
        gm_pool_free(waits);
        gm_pool_free(freed);

        gm_pool_view view = view_of(pool);
        check_view(pool, &view);
        const gm_block_view *shown = find_block(&view, gm_block_address(used));
        CHECK_EQ(shown->state, GM_BLOCK_USED);
        CHECK_EQ(shown->requested, MIB - 100);
        CHECK_EQ(shown->size, gm_block_size(used));
        CHECK_EQ(shown->context, 41);
        shown = find_block(&view, pending_at);
        CHECK_EQ(shown->state, GM_BLOCK_PENDING);
        CHECK_EQ(shown->requested, MIB - 100);
        CHECK_EQ(shown->context, 42);
        CHECK_EQ(find_block(&view, free_at)->state, GM_BLOCK_FREE);
        gm_pool_view_destroy(&view);

        let_run(device, slow);
        gm_pool_free(used);
        gm_pool_free(guard);
        gm_pool_poll(pool);
        view = view_of(pool);
        check_view(pool, &view);
        CHECK_EQ(view.block_count, 1);
        CHECK_EQ(view.segment_count, 1);
        CHECK_EQ(view.segments[0].paged, paging);
        gm_pool_view_destroy(&view);
        close_pool(pool);
    }
}

static void
a_hole_without_pages_parts_two_segments(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_block *low = take(pool, 4 * MIB, 0);
    gm_block *middle = take(pool, 4 * MIB - PAGE / 2, 0);
    gm_block *high = take(pool, 4 * MIB, 0);
    gm_devptr hole = gm_block_address(middle);
    CHECK_EQ(gm_block_address(high), hole + 4 * MIB - PAGE / 2);
    gm_pool_free(middle);
    (void)trim_all(pool);

    /* The last page under `middle` is half used by `high`: it stays. */
    gm_pool_view view = view_of(pool);
    check_view(pool, &view);
    CHECK_EQ(view.segment_count, 2);
    CHECK_EQ(view.segments[0].address, gm_block_address(low));
    CHECK_EQ(view.segments[0].size, 4 * MIB);
    CHECK_EQ(view.segments[0].block_count, 1);
    CHECK_EQ(view.segments[1].address, gm_block_address(high) - PAGE / 2);
    CHECK_EQ(view.segments[1].size, 4 * MIB + PAGE);
    CHECK_EQ(view.segments[1].block_count, 3);
    const gm_block_view *blocks = &view.blocks[view.segments[1].first_block];
    CHECK_EQ(blocks[0].state, GM_BLOCK_FREE);
    CHECK_EQ(blocks[0].size, PAGE / 2);
    CHECK_EQ(blocks[1].state, GM_BLOCK_USED);
    CHECK_EQ(blocks[2].state, GM_BLOCK_FREE);
    CHECK_EQ(blocks[2].size, PAGE / 2);
    gm_pool_view_destroy(&view);

    /* Freed, it is one block of addresses, but still two segments. */
    gm_pool_free(low);
    gm_pool_free(high);
    view = view_of(pool);
    check_view(pool, &view);
    CHECK_EQ(view.segment_count, 2);
    CHECK_EQ(view.block_count, 2);
    gm_pool_view_destroy(&view);
    close_pool(pool);
}

static void
segments_say_whose_they_are(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, false);
    gm_stream other = new_stream(device);
    gm_request stable = {.size = MIB, .kind = GM_ARENA_STABLE};
    gm_block *blocks[3] = {take(pool, 1000, 0), take(pool, 3 * MIB, other)};
    CHECK_OK(gm_pool_alloc(pool, &stable, &blocks[2], NULL));
    gm_pool_view view = view_of(pool);
    check_view(pool, &view);
    CHECK_EQ(view.segment_count, 3);
    CHECK_EQ(view.segments[0].stream, 0);
    CHECK(view.segments[0].small && view.segments[0].kind == GM_ARENA_ELASTIC);
    CHECK_EQ(view.segments[1].stream, other);
    CHECK(!view.segments[1].small && !view.segments[1].paged);
    CHECK_EQ(view.segments[2].kind, GM_ARENA_STABLE);
    CHECK_EQ(view.segments[2].stream, 0);
    gm_pool_view_destroy(&view);
    for (int i = 0; i < 3; i++) {
        gm_pool_free(blocks[i]);
    }
    close_pool(pool);
}

static void
a_view_is_as_long_as_it_must_be(void)
{
    enum {
        COUNT = 300
    };
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_block *blocks[COUNT];
    for (int i = 0; i < COUNT; i++) {
        blocks[i] = take(pool, 2 * PAGE, 0);
    }
    for (int i = 0; i < COUNT; i += 2) {
        gm_pool_free(blocks[i]);
    }
    gm_pool_view view = view_of(pool);
    check_view(pool, &view);
    CHECK_EQ(view.block_count, COUNT);
    gm_pool_view_destroy(&view);
    (void)trim_all(pool);
    view = view_of(pool);
    check_view(pool, &view);
    CHECK_EQ(view.segment_count, COUNT / 2);
    CHECK_EQ(view.block_count, COUNT / 2);
    gm_pool_view_destroy(&view);
    for (int i = 1; i < COUNT; i += 2) {
        gm_pool_free(blocks[i]);
    }
    close_pool(pool);
}

static const gm_test tests[] = {
    {"an empty pool has an empty view", an_empty_pool_has_an_empty_view},
    {"every state of a block is shown", every_state_of_a_block_is_shown},
    {"a hole without pages parts two segments",
     a_hole_without_pages_parts_two_segments},
    {"segments say whose they are", segments_say_whose_they_are},
    {"a view is as long as it must be", a_view_is_as_long_as_it_must_be},
};

GM_TEST_MAIN(tests)
