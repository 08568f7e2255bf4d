/* test_steal.c - which pages move to where pages are missing, and when: those of free
 * blocks whose work is done. What is not done is in test_zombies.c, failures in
 * test_steal_faults.c.
 */
#include "steal_kinds.h"

/* ---- whose pages ----------------------------------------------------------------- */

static void
pages_of_the_same_arena_move(void)
{
    for (int aliasing = 0; aliasing < 2; aliasing++) {
        gm_pool *pool = stealing_pool(host_with(64 * MIB, aliasing != 0),
                                      GM_STEAL_ALWAYS, SIZE_MAX);
        gm_block *guard;
        gm_devptr hole = leave_hole(pool, 4 * MIB, 0, &guard);
        gm_block *block = take(pool, 6 * MIB, 0);
        gm_pool_stats stats = stats_of(pool);
        CHECK_EQ(reserved(pool), 7 * MIB);
        CHECK_EQ(stats.stolen_bytes, 4 * MIB);
        CHECK_EQ(stats.aliased_bytes, 0);
        CHECK_EQ(stats.zombies, 0);
        CHECK_EQ(stats.cached_bytes, 0);
        CHECK_EQ(stats.unmaps, 64);
        CHECK_EQ(stats.num_alloc_retries, 0);
        CHECK_EQ(calls_of(pool, GM_CALL_UNMAP), 1); /* the run at once */
        CHECK_EQ(count_slots(guard, hole, 4 * MIB, GM_SLOT_FREE_VA), 64);
        CHECK_POOL(pool);

        /* The addresses are free for what fits there. */
        gm_block *again = take(pool, 4 * MIB, 0);
        CHECK_EQ(gm_block_address(again), hole);
        gm_pool_free(again);
        gm_pool_free(block);
        gm_pool_free(guard);
        close_pool(pool);
    }
}

static void
pages_of_the_other_arena_move(void)
{
    gm_pool *pool = stealing_pool(host_with(64 * MIB, true), GM_STEAL_ALWAYS, SIZE_MAX);
    gm_block *small[8];
    for (int i = 0; i < 8; i++) {
        small[i] = take(pool, 256 * KIB, 0);
    }
    for (int i = 0; i < 7; i++) {
        gm_pool_free(small[i]);
    }
    /* 28 pages of small blocks, and 20 new ones. */
    gm_block *large = take(pool, 3 * MIB, 0);
    CHECK_EQ(stats_of(pool).stolen_bytes, 28 * PAGE);
    CHECK_EQ(reserved(pool), 2 * MIB + 20 * PAGE);
    CHECK_EQ(stats_of(pool).segment.small_pool.current, 4);
    CHECK_EQ(stats_of(pool).segment.large_pool.current, 48);
    CHECK_POOL(pool);

    /* And the other way round. */
    gm_pool_free(large);
    gm_block *back = take(pool, 256 * KIB, 0);
    CHECK_EQ(stats_of(pool).stolen_bytes, 32 * PAGE);
    CHECK_EQ(reserved(pool), 2 * MIB + 20 * PAGE);
    CHECK_EQ(stats_of(pool).segment.small_pool.current, 8);
    CHECK_POOL(pool);
    gm_pool_free(back);
    gm_pool_free(small[7]);
    close_pool(pool);
}

static void
the_own_arena_gives_first(void)
{
    gm_pool *pool = stealing_pool(host_with(64 * MIB, true), GM_STEAL_ALWAYS, SIZE_MAX);
    gm_block *guard;
    (void)leave_hole(pool, 4 * MIB, 0, &guard);
    gm_pool_free(take(pool, 256 * KIB, 0)); /* four pages of the hole */
    CHECK_EQ(stats_of(pool).segment.small_pool.current, 4);
    CHECK_OK(gm_pool_reserve(pool, reserved(pool) + 5 * PAGE, NULL));
    /* 65 pages: five are free, the hole has 60. */
    gm_block *block = take(pool, 4 * MIB + PAGE, 0);
    CHECK_EQ(stats_of(pool).stolen_bytes, 4 * PAGE + 60 * PAGE);
    CHECK_EQ(stats_of(pool).segment.small_pool.current, 4);
    CHECK_POOL(pool);
    gm_pool_free(block);
    gm_pool_free(guard);
    close_pool(pool);
}

/* Gives `size` bytes back: the highest pages of free blocks. */
static void
give_back(gm_pool *pool, size_t size)
{
    gm_trim_request request = {.target = reserved(pool) - size};
    gm_trim_report report;
    CHECK_OK(gm_pool_trim(pool, &request, &report));
    CHECK_EQ(report.released, size);
}

static void
pages_under_the_new_block_stay(void)
{
    gm_pool *pool = stealing_pool(host_with(64 * MIB, true), GM_STEAL_ALWAYS, SIZE_MAX);
    gm_block *guards[2];
    gm_devptr hole = leave_hole(pool, 10 * PAGE, 0, &guards[0]);
    gm_frame *first = slot_at(guards[0], hole)->frame;
    give_back(pool, 4 * PAGE);
    gm_devptr other = leave_hole(pool, 20 * PAGE, 0, &guards[1]);
    CHECK_EQ(count_slots(guards[0], hole, 10 * PAGE, GM_SLOT_MAPPED), 6);
    size_t before = reserved(pool);

    /* Two of eight are missing: the highest of the other hole come. */
    gm_block *block = take(pool, 8 * PAGE, 0);
    CHECK_EQ(gm_block_address(block), hole);
    CHECK(slot_at(block, hole)->frame == first);
    CHECK_EQ(stats_of(pool).stolen_bytes, 2 * PAGE);
    CHECK_EQ(stats_of(pool).unmaps, 4 + 2);
    CHECK_EQ(reserved(pool), before);
    CHECK_EQ(count_slots(block, other, 18 * PAGE, GM_SLOT_MAPPED), 18);
    CHECK_EQ(count_slots(block, other + 18 * PAGE, 2 * PAGE, GM_SLOT_FREE_VA), 2);
    CHECK_POOL(pool);
    gm_pool_free(block);
    gm_pool_free(guards[0]);
    gm_pool_free(guards[1]);
    close_pool(pool);
}

/* |#lower: no pages| upper: pages |guard|: the hole's own upper part gives. */
static void
pages_above_the_new_block_move_below(void)
{
    gm_pool *pool = stealing_pool(host_with(64 * MIB, true), GM_STEAL_ALWAYS, SIZE_MAX);
    gm_block *lower = take(pool, 12 * PAGE, 0), *upper = take(pool, 12 * PAGE, 0);
    gm_block *guard = take(pool, MIB, 0);
    gm_devptr address = gm_block_address(lower);
    gm_pool_free(lower);
    give_back(pool, 12 * PAGE);
    gm_pool_free(upper);
    size_t before = reserved(pool);
    gm_block *block = take(pool, 8 * PAGE, 0);
    CHECK_EQ(gm_block_address(block), address);
    CHECK_EQ(reserved(pool), before);
    CHECK_EQ(stats_of(pool).stolen_bytes, 8 * PAGE);
    CHECK_EQ(count_slots(guard, address + 12 * PAGE, 4 * PAGE, GM_SLOT_MAPPED), 4);
    CHECK_EQ(count_slots(guard, address + 16 * PAGE, 8 * PAGE, GM_SLOT_FREE_VA), 8);
    CHECK_POOL(pool);
    gm_pool_free(block);
    gm_pool_free(guard);
    close_pool(pool);
}

/* The block lies at the upper end, above a page that its neighbour has begun. */
static void
pages_below_the_new_block_move_up(void)
{
    gm_pool *pool = stealing_pool(host_with(64 * MIB, true), GM_STEAL_ALWAYS, SIZE_MAX);
    gm_block *hole = take(pool, 8 * PAGE + PAGE / 2, 0);
    gm_block *guard = take(pool, MIB, 0);
    gm_devptr address = gm_block_address(hole);
    CHECK_EQ(gm_block_address(guard), address + 8 * PAGE + PAGE / 2);
    gm_pool_free(hole);
    give_back(pool, 6 * PAGE);
    size_t before = reserved(pool);
    /* Slots 2 to 7 are empty. Five and a half pages take 3 to 7, and half of 8. */
    gm_block *block = take(pool, 5 * PAGE + PAGE / 2, 0);
    CHECK_EQ(gm_block_address(block), address + 3 * PAGE);
    CHECK_EQ(stats_of(pool).stolen_bytes, 2 * PAGE);
    CHECK_EQ(count_slots(guard, address, 3 * PAGE, GM_SLOT_FREE_VA), 3);
    CHECK_EQ(reserved(pool), before + 3 * PAGE);
    CHECK_POOL(pool);
    gm_pool_free(block);
    gm_pool_free(guard);
    close_pool(pool);
}

/* ---- pages that do not move ------------------------------------------------------ */

static void
keep_stable_pages(gm_pool *pool, gm_stream stream)
{
    gm_block *stable = take_kind(pool, 4 * MIB, stream, GM_ARENA_STABLE);
    gm_block *guard = take_kind(pool, MIB, stream, GM_ARENA_STABLE);
    gm_devptr address = gm_block_address(stable);
    gm_pool_free(stable);
    /* Neither the same stream's elastic arena gets them, nor its stable one. */
    gm_block *elastic = take(pool, 5 * MIB, stream);
    gm_block *second = take_kind(pool, 5 * MIB, stream, GM_ARENA_STABLE);
    CHECK_EQ(count_slots(guard, address, 4 * MIB, GM_SLOT_MAPPED), 64);
    CHECK_EQ(stats_of(pool).stolen_bytes, 0);
    CHECK_EQ(stats_of(pool).unmaps, 0);
    CHECK_EQ(reserved(pool), 15 * MIB);
    CHECK_POOL(pool);

    /* What the elastic one has may move to it. */
    gm_pool_free(elastic);
    let_run(gm_pool_device(pool), stream);
    gm_block *third = take_kind(pool, 5 * MIB, stream, GM_ARENA_STABLE);
    CHECK_EQ(reserved(pool), 15 * MIB);
    CHECK_EQ(count_slots(guard, address, 4 * MIB, GM_SLOT_MAPPED), 64);
    CHECK_POOL(pool);
    gm_pool_free(guard);
    gm_pool_free(second);
    gm_pool_free(third);
}

static void
pages_of_a_stable_arena_stay(void)
{
    for (int busy = 0; busy < 2; busy++) {
        gm_device *device = host_with(64 * MIB, true);
        gm_pool *pool = stealing_pool(device, GM_STEAL_ALWAYS, SIZE_MAX);
        keep_stable_pages(pool,
                          busy != 0 ? stalled_stream(device) : new_stream(device));
        close_pool(pool);
    }
}

static void
nothing_moves_while_a_graph_is_captured(void)
{
    gm_arena_kind kinds[] = {GM_ARENA_ELASTIC, GM_ARENA_STABLE};
    for (int i = 0; i < 2; i++) {
        gm_device *device = host_with(64 * MIB, true);
        gm_pool *pool = stealing_pool(device, GM_STEAL_ALWAYS, SIZE_MAX);
        gm_stream other = new_stream(device);
        gm_block *guards[2], *block = NULL;
        (void)leave_hole(pool, 3 * MIB, 0, &guards[0]);
        (void)leave_hole(pool, 3 * MIB, other, &guards[1]);
        CHECK_OK(gm_pool_reserve(pool, 10 * MIB + PAGE, NULL));
        uint64_t unmaps = calls_of(pool, GM_CALL_UNMAP);
        watch_reports();
        CHECK_OK(gm_host_set_capturing(device, 0, true));
        /* Free pages are to be had, those of the own stream and of others are not. */
        gm_request request = {.size = 4 * MIB, .kind = kinds[i]};
        CHECK_STATUS(gm_pool_alloc(pool, &request, &block, NULL), GM_CAPTURING);
        CHECK_EQ(stats_of(pool).unplaced_bytes, 2 * MIB + PAGE);
        request.size = PAGE;
        request.kind = GM_ARENA_STABLE;
        CHECK_OK(gm_pool_alloc(pool, &request, &block, NULL));
        CHECK_EQ(stats_of(pool).unplaced_bytes, 2 * MIB);
        CHECK_EQ(calls_of(pool, GM_CALL_UNMAP), unmaps);
        CHECK_EQ(stats_of(pool).stolen_bytes, 0);
        CHECK_EQ(reports, 0);
        CHECK_POOL(pool);
        CHECK_OK(gm_host_set_capturing(device, 0, false));
        gm_set_report_hook(NULL);
        gm_pool_free(block);
        gm_pool_free(guards[0]);
        gm_pool_free(guards[1]);
        close_pool(pool);
    }
}

/* ---- how many -------------------------------------------------------------------- */

typedef struct policy {
    gm_steal_mode steal;
    double ratio;
    size_t stolen; /* of the 96 pages of a block of 6 MiB, with 64 pages idle */
} policy;

static void
the_policy_says_how_many_pages_move(void)
{
    /* 5 MiB are reserved, 7 will be used at the peak. With a ratio r the pool may grow
     * to 7 * (1 + r) MiB, and at any to 7 MiB and 8 pages: by 40 pages at least. */
    static const policy policies[] = {
        {GM_STEAL_ALWAYS, 0, 64},   {GM_STEAL_NEVER, 0, 0},
        {GM_STEAL_RATIO, 0, 56},    {GM_STEAL_RATIO, 0.05, 56},
        {GM_STEAL_RATIO, 0.5, 8},   {GM_STEAL_RATIO, 0.0725, 56},
        {GM_STEAL_RATIO, 0.09, 54}, {GM_STEAL_RATIO, GM_STEAL_MOST, 0},
    };
    for (size_t i = 0; i < sizeof(policies) / sizeof(policies[0]); i++) {
        gm_pool_options options = usual_options();
        options.steal = policies[i].steal;
        options.steal_ratio = policies[i].ratio;
        gm_pool *pool = open_pool(host_with(64 * MIB, true), &options);
        gm_block *guard;
        (void)leave_hole(pool, 4 * MIB, 0, &guard);
        gm_block *block = take(pool, 6 * MIB, 0);
        CHECK_EQ(stats_of(pool).stolen_bytes, policies[i].stolen * PAGE);
        CHECK_EQ(reserved(pool), 11 * MIB - policies[i].stolen * PAGE);
        CHECK_EQ(stats_of(pool).num_alloc_retries, 0);
        CHECK_POOL(pool);
        gm_pool_free(block);
        gm_pool_free(guard);
        close_pool(pool);
    }
}

static void
a_ratio_that_is_never_reached_places_as_ever(void)
{
    gm_device *device = host_with(64 * MIB, true);
    gm_pool_options options = usual_options();
    options.steal_ratio = GM_STEAL_MOST;
    gm_pool *pool = open_pool(device, &options);
    gm_block *block = take(pool, 4 * MIB, 0);
    CHECK(!gm_arena_is_tight(block->chunk->arena));
    /* What is left of the device is another matter. */
    gm_block *rest = take(pool, 58 * MIB, 0);
    CHECK(gm_arena_is_tight(rest->chunk->arena));
    gm_pool_free(block);
    gm_pool_free(rest);
    close_pool(pool);
}

/* The peak counts, not what is used now: memory that was needed once may stay. */
static void
the_peak_is_what_a_ratio_is_of(void)
{
    gm_pool_options options = usual_options();
    options.steal_ratio = 0;
    gm_pool *pool = open_pool(host_with(64 * MIB, true), &options);
    gm_block *guard;
    gm_pool_free(take(pool, 16 * MIB, 0));
    (void)trim_all(pool);
    (void)leave_hole(pool, 4 * MIB, 0, &guard);
    gm_block *block = take(pool, 6 * MIB, 0);
    CHECK_EQ(stats_of(pool).stolen_bytes, 0);
    CHECK_EQ(reserved(pool), 11 * MIB);
    gm_pool_reset_peaks(pool);
    gm_block *second = take(pool, 5 * MIB, 0); /* 12 MiB and 8 pages */
    CHECK_EQ(reserved(pool), 12 * MIB + 8 * PAGE);
    CHECK_EQ(stats_of(pool).stolen_bytes, 56 * PAGE);
    gm_pool_free(second);
    gm_pool_free(block);
    gm_pool_free(guard);
    close_pool(pool);
}

static void
what_cannot_grow_steals_what_is_missing(void)
{
    for (int by_device = 0; by_device < 2; by_device++) {
        gm_device *device = host_with(by_device != 0 ? 8 * MIB : 64 * MIB, false);
        gm_pool *pool =
            stealing_pool(device, GM_STEAL_NEVER, by_device != 0 ? SIZE_MAX : 8 * MIB);
        gm_block *guard, *block = NULL;
        gm_devptr hole = leave_hole(pool, 4 * MIB, 0, &guard);
        block = take(pool, 6 * MIB, 0);
        CHECK_EQ(reserved(pool), 8 * MIB);
        CHECK_EQ(stats_of(pool).stolen_bytes, 3 * MIB);
        CHECK_EQ(stats_of(pool).cached_bytes, MIB);
        CHECK_EQ(count_slots(guard, hole, MIB, GM_SLOT_MAPPED), 16);
        CHECK_EQ(stats_of(pool).num_alloc_retries, 1);
        CHECK_POOL(pool);
        /* More than all that is idle: refused, and the memory is still there. */
        gm_block *more = NULL;
        CHECK_STATUS(allocate(pool, 2 * MIB, 0, &more, NULL), GM_OUT_OF_MEMORY);
        CHECK_POOL(pool);
        CHECK_EQ(reserved(pool), 8 * MIB);
        more = take(pool, MIB, 0);
        gm_pool_free(more);
        gm_pool_free(block);
        gm_pool_free(guard);
        close_pool(pool);
    }
}

/* ---- the time budget ------------------------------------------------------------- */

static gm_device_ops slow_ops;
static gm_status (*quick_unmap)(gm_device *self, gm_devptr address, size_t size);

/* A device whose unmap takes a second. */
static gm_status
slow_unmap(gm_device *self, gm_devptr address, size_t size)
{
    gm_host_advance(self, SECOND);
    return quick_unmap(self, address, size);
}

/* A hole of `pages` and a block of one page more: how many pages it steals. */
static size_t
stolen_by_next(gm_pool *pool, size_t pages)
{
    gm_block *guard;
    uint64_t before = stats_of(pool).stolen_bytes;
    (void)leave_hole(pool, pages * PAGE, 0, &guard);
    (void)take(pool, (pages + 1) * PAGE, 0);
    CHECK_POOL(pool);
    return (stats_of(pool).stolen_bytes - before) / PAGE;
}

static void
steals_take_a_hundredth_of_the_time(void)
{
    gm_device *device = host_with(64 * MIB, true);
    slow_ops = *device->ops;
    quick_unmap = slow_ops.unmap;
    slow_ops.unmap = slow_unmap;
    device->ops = &slow_ops;
    gm_pool *pool = stealing_pool(device, GM_STEAL_ALWAYS, SIZE_MAX);
    uint64_t start = device->ops->clock_ns(device);
    CHECK_EQ(stolen_by_next(pool, 5), 5); /* a second */
    CHECK_EQ(stolen_by_next(pool, 6), 0);
    CHECK_EQ(device->ops->clock_ns(device) - start, SECOND);
    gm_host_advance(device, 99 * SECOND - 1);
    CHECK_EQ(stolen_by_next(pool, 7), 0);
    gm_host_advance(device, 1);
    CHECK_EQ(stolen_by_next(pool, 8), 9); /* of two holes: two more */
    CHECK_EQ(device->ops->clock_ns(device) - start, 102 * SECOND);
    CHECK_EQ(stolen_by_next(pool, 9), 0);

    /* Where the pool cannot grow there is time. */
    gm_pool_set_limit(pool, reserved(pool));
    uint64_t before = stats_of(pool).stolen_bytes;
    (void)take(pool, 12 * PAGE, 0);
    CHECK_EQ(stats_of(pool).stolen_bytes - before, 12 * PAGE);
    gm_pool_set_limit(pool, SIZE_MAX);
    CHECK_POOL(pool);
    gm_pool_release(pool);
    gm_device_release(device);
}

/* ---- other streams --------------------------------------------------------------- */

static void
idle_streams_give_pages_before_the_pool_grows(void)
{
    for (int busy = 0; busy < 2; busy++) {
        gm_device *device = host_with(64 * MIB, true);
        gm_pool *pool = stealing_pool(device, GM_STEAL_ALWAYS, SIZE_MAX);
        gm_stream other = busy != 0 ? stalled_stream(device) : new_stream(device);
        gm_block *guards[2];
        (void)leave_hole(pool, MIB, 0, &guards[0]);
        (void)leave_hole(pool, 4 * MIB, other, &guards[1]);
        CHECK_EQ(reserved(pool), 7 * MIB);
        gm_block *block = take(pool, 6 * MIB, 0);
        gm_pool_stats stats = stats_of(pool);
        CHECK_EQ(stats.stolen_bytes, MIB);
        /* Pages whose work is not done stay where they are. */
        CHECK_EQ(stats.flushed_bytes, busy != 0 ? 0 : 4 * MIB);
        CHECK_EQ(reserved(pool), busy != 0 ? 12 * MIB : 8 * MIB);
        CHECK_EQ(stats.num_alloc_retries, 0);
        CHECK_EQ(stats.num_sync_all_streams, 0);
        CHECK_POOL(pool);
        gm_pool_free(block);
        gm_pool_free(guards[0]);
        gm_pool_free(guards[1]);
        let_run(device, other);
        close_pool(pool);
    }
}

static void
another_stream_gives_no_more_than_is_missing(void)
{
    gm_device *device = host_with(64 * MIB, true);
    gm_pool_options options = usual_options();
    options.steal_ratio = 0;
    gm_pool *pool = open_pool(device, &options);
    gm_stream other = new_stream(device);
    gm_block *own = take(pool, MIB, 0), *guard;
    (void)leave_hole(pool, 4 * MIB, other, &guard);
    gm_pool_reset_peaks(pool);
    /* 5.75 MiB will be the peak, 6 are reserved: 4 of the 8 pages above may be new. */
    gm_block *block = take(pool, 60 * PAGE, 0);
    CHECK_EQ(stats_of(pool).flushed_bytes, 56 * PAGE);
    CHECK_EQ(reserved(pool), 6 * MIB + 4 * PAGE);
    CHECK_POOL(pool);
    gm_pool_free(block);
    gm_pool_free(own);
    gm_pool_free(guard);
    close_pool(pool);
}

/* The pages under the place that was found are the own lane's: they stay. */
static void
own_pages_stay_when_other_streams_give(void)
{
    gm_device *device = host_with(64 * MIB, true);
    gm_pool *pool = stealing_pool(device, GM_STEAL_ALWAYS, SIZE_MAX);
    gm_stream other = new_stream(device);
    gm_block *guards[2];
    gm_devptr hole = leave_hole(pool, 10 * PAGE, 0, &guards[0]);
    give_back(pool, 4 * PAGE);
    gm_devptr idle = leave_hole(pool, 20 * PAGE, other, &guards[1]);
    size_t before = reserved(pool);
    uint64_t unmaps = stats_of(pool).unmaps;
    gm_block *block = take(pool, 9 * PAGE, 0);
    CHECK_EQ(gm_block_address(block), hole);
    CHECK_EQ(stats_of(pool).stolen_bytes, 0);
    CHECK_EQ(stats_of(pool).flushed_bytes, 4 * PAGE + 3 * PAGE);
    CHECK_EQ(stats_of(pool).unmaps, unmaps + 3);
    CHECK_EQ(count_slots(guards[1], idle, 20 * PAGE, GM_SLOT_MAPPED), 17);
    CHECK_EQ(reserved(pool), before);
    CHECK_POOL(pool);
    gm_pool_free(block);
    gm_pool_free(guards[0]);
    gm_pool_free(guards[1]);
    close_pool(pool);
}

static void
streams_that_keep_what_they_have_are_not_asked(void)
{
    gm_device *device = host_with(64 * MIB, true);
    gm_pool_options options = usual_options();
    options.steal = GM_STEAL_ALWAYS;
    options.cross_stream = GM_CROSS_STREAM_NEVER;
    gm_pool *pool = open_pool(device, &options);
    gm_stream other = new_stream(device);
    gm_block *guards[2];
    (void)leave_hole(pool, MIB, 0, &guards[0]);
    (void)leave_hole(pool, 4 * MIB, other, &guards[1]);
    gm_block *block = take(pool, 6 * MIB, 0);
    CHECK_EQ(stats_of(pool).stolen_bytes, MIB);
    CHECK_EQ(stats_of(pool).flushed_bytes, 0);
    CHECK_EQ(reserved(pool), 12 * MIB);
    CHECK_POOL(pool);
    gm_pool_free(block);
    gm_pool_free(guards[0]);
    gm_pool_free(guards[1]);
    close_pool(pool);
}

static const gm_test tests[] = {
    {"pages of the same arena move", pages_of_the_same_arena_move},
    {"pages of the other arena move", pages_of_the_other_arena_move},
    {"the own arena gives first", the_own_arena_gives_first},
    {"pages under the new block stay", pages_under_the_new_block_stay},
    {"pages above the new block move below", pages_above_the_new_block_move_below},
    {"pages below the new block move up", pages_below_the_new_block_move_up},
    {"pages of a stable arena stay", pages_of_a_stable_arena_stay},
    {"nothing moves while a graph is captured",
     nothing_moves_while_a_graph_is_captured},
    {"the policy says how many pages move", the_policy_says_how_many_pages_move},
    {"a ratio that is never reached places as ever",
     a_ratio_that_is_never_reached_places_as_ever},
    {"the peak is what a ratio is of", the_peak_is_what_a_ratio_is_of},
    {"what cannot grow steals what is missing",
     what_cannot_grow_steals_what_is_missing},
    {"steals take a hundredth of the time", steals_take_a_hundredth_of_the_time},
    {"idle streams give pages before the pool grows",
     idle_streams_give_pages_before_the_pool_grows},
    {"another stream gives no more than is missing",
     another_stream_gives_no_more_than_is_missing},
    {"own pages stay when other streams give", own_pages_stay_when_other_streams_give},
    {"streams that keep what they have are not asked",
     streams_that_keep_what_they_have_are_not_asked},
};

GM_TEST_MAIN(tests)
