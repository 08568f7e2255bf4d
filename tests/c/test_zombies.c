/* test_zombies.c - pages that move while the work on their old place is on its way: what
 * the old place is good for.
 */
#include "steal_kinds.h"

static gm_pool *
always(gm_device *device)
{
    return stealing_pool(device, GM_STEAL_ALWAYS, SIZE_MAX);
}

/* ---- aliased pages --------------------------------------------------------------- */

static void
undone_pages_are_at_two_places(void)
{
    gm_device *device = host_with(64 * MIB, true);
    gm_pool *pool = always(device);
    gm_stream stream = stalled_stream(device);
    gm_block *old = take(pool, 4 * MIB, stream), *guard = take(pool, MIB, stream);
    gm_devptr hole = gm_block_address(old);
    use_and_free(old, 0x11, stream);
    gm_block *block = take(pool, 6 * MIB, stream);
    gm_pool_stats stats = stats_of(pool);
    CHECK_EQ(reserved(pool), 7 * MIB);
    CHECK_EQ(stats.stolen_bytes, 4 * MIB);
    CHECK_EQ(stats.aliased_bytes, 4 * MIB);
    CHECK_EQ(stats.zombies, 4 * MIB);
    CHECK_EQ(stats.unmaps, 0);
    CHECK_EQ(counters_of(device).mapped_now, 11 * MIB);
    CHECK_EQ(count_slots(guard, hole, 4 * MIB, GM_SLOT_ZOMBIE), 64);
    CHECK_POOL(pool);
    /* In the order in which they were there. */
    CHECK(slot_at(guard, hole)->frame ==
          slot_at(block, gm_block_address(block))->frame);
    CHECK(slot_at(guard, hole + 63 * PAGE)->frame ==
          slot_at(block, gm_block_address(block) + 63 * PAGE)->frame);

    /* Nothing new lies there, not even what is as long. */
    write_later(block, 0x22, stream);
    gm_block *second = take(pool, 4 * MIB, stream), *third = take(pool, PAGE, stream);
    CHECK(!overlaps(second, hole, 4 * MIB) && !overlaps(third, hole, 4 * MIB));
    CHECK_EQ(stats_of(pool).zombies, 4 * MIB);
    CHECK_EQ(reserved(pool), 11 * MIB + PAGE);

    /* The work on both places runs, one after the other. */
    spoilt = 0;
    expect_later(block, 0x22, stream);
    let_run(device, stream);
    CHECK_EQ(spoilt, 0);
    CHECK_EQ(stats_of(pool).num_sync_all_streams, 0);

    /* It is done: the next that misses pages finds the addresses free again. */
    gm_block *fourth = take(pool, MIB, stream);
    CHECK_EQ(stats_of(pool).zombies, 0);
    CHECK_EQ(stats_of(pool).unmaps, 64);
    CHECK_EQ(counters_of(device).mapped_now, reserved(pool));
    CHECK_EQ(count_slots(guard, hole, 4 * MIB, GM_SLOT_FREE_VA), 64);
    gm_block *fifth = take(pool, 4 * MIB, stream);
    CHECK_EQ(gm_block_address(fifth), hole);
    CHECK_POOL(pool);
    CHECK(holds(gm_block_address(block), 6 * MIB, 0x22));
    gm_block *all[] = {block, guard, second, third, fourth, fifth};
    for (int i = 0; i < 6; i++) {
        gm_pool_free(all[i]);
    }
    close_pool(pool);
}

static void
without_aliasing_undone_pages_stay(void)
{
    gm_device *device = host_with(64 * MIB, false);
    gm_pool *pool = always(device);
    gm_stream stream = stalled_stream(device);
    gm_block *old = take(pool, 4 * MIB, stream), *guard = take(pool, MIB, stream);
    gm_devptr hole = gm_block_address(old);
    use_and_free(old, 0x11, stream);
    gm_block *block = take(pool, 6 * MIB, stream);
    CHECK_EQ(reserved(pool), 11 * MIB);
    CHECK_EQ(stats_of(pool).stolen_bytes, 0);
    CHECK_EQ(stats_of(pool).zombies, 0);
    CHECK_EQ(count_slots(guard, hole, 4 * MIB, GM_SLOT_MAPPED), 64);
    let_run(device, stream);
    gm_block *second = take(pool, 5 * MIB, stream);
    CHECK_EQ(reserved(pool), 12 * MIB);
    CHECK_EQ(stats_of(pool).stolen_bytes, 4 * MIB);
    CHECK_EQ(stats_of(pool).aliased_bytes, 0);
    CHECK_EQ(stats_of(pool).num_sync_all_streams, 0);
    gm_pool_free(second);
    gm_pool_free(block);
    gm_pool_free(guard);
    close_pool(pool);
}

/* A pool that cannot grow takes undone pages rather than to wait for them. */
static void
a_full_pool_does_not_wait_where_pages_can_be_aliased(void)
{
    gm_device *device = host_with(8 * MIB, true);
    gm_pool_options options = usual_options();
    options.steal = GM_STEAL_NEVER;
    options.oom_wait_ns = UINT64_MAX;
    gm_pool *pool = open_pool(device, &options);
    gm_stream stream = stalled_stream(device);
    gm_block *old = take(pool, 4 * MIB, stream), *guard = take(pool, MIB, stream);
    use_and_free(old, 0x11, stream);
    gm_block *block = take(pool, 6 * MIB, stream);
    CHECK_EQ(reserved(pool), 8 * MIB);
    CHECK_EQ(stats_of(pool).aliased_bytes, 3 * MIB);
    CHECK_EQ(stats_of(pool).zombies, 3 * MIB);
    CHECK_EQ(stats_of(pool).num_sync_all_streams, 0);
    CHECK_POOL(pool);
    use_and_free(block, 0x22, stream);
    spoilt = 0;
    let_run(device, stream);
    CHECK_EQ(spoilt, 0);
    gm_pool_free(guard);
    close_pool(pool);
}

static void
without_aliasing_a_full_pool_needs_the_work_to_end(void)
{
    gm_device *device = host_with(8 * MIB, false);
    gm_pool *pool = stealing_pool(device, GM_STEAL_NEVER, SIZE_MAX);
    gm_stream stream = stalled_stream(device);
    gm_block *old = take(pool, 4 * MIB, stream), *guard = take(pool, MIB, stream);
    gm_block *block = NULL;
    use_and_free(old, 0x11, stream);
    CHECK_STATUS(allocate(pool, 6 * MIB, stream, &block, NULL), GM_OUT_OF_MEMORY);
    CHECK_EQ(stats_of(pool).stolen_bytes, 0);
    CHECK_POOL(pool);
    let_run(device, stream);
    block = take(pool, 6 * MIB, stream);
    CHECK_EQ(stats_of(pool).stolen_bytes, 3 * MIB);
    gm_pool_free(block);
    gm_pool_free(guard);
    close_pool(pool);
}

static void
done_pages_come_before_undone_ones(void)
{
    gm_device *device = host_with(64 * MIB, true);
    gm_pool *pool = always(device);
    gm_stream stream = stalled_stream(device);
    gm_block *first = take(pool, 4 * MIB, stream), *guard = take(pool, MIB, stream);
    gm_block *second = take(pool, 5 * MIB, stream), *end = take(pool, MIB, stream);
    gm_devptr done = gm_block_address(first), undone = gm_block_address(second);
    gm_pool_free(first);
    CHECK_EQ(trim_all(pool).released, 0); /* marks */
    CHECK_OK(gm_host_release_work(device, stream, 1, NULL));
    gm_pool_free(second);
    gm_block *block = take(pool, 8 * MIB, stream);
    CHECK_EQ(stats_of(pool).stolen_bytes, 8 * MIB);
    CHECK_EQ(stats_of(pool).aliased_bytes, 4 * MIB);
    CHECK_EQ(count_slots(block, done, 4 * MIB, GM_SLOT_FREE_VA), 64);
    CHECK_EQ(count_slots(block, undone, MIB, GM_SLOT_MAPPED), 16);
    CHECK_EQ(count_slots(block, undone + MIB, 4 * MIB, GM_SLOT_ZOMBIE), 64);
    CHECK_POOL(pool);
    let_run(device, stream);
    gm_pool_free(block);
    gm_pool_free(guard);
    gm_pool_free(end);
    close_pool(pool);
}

/* One page, at three places at once: the work on each is queued behind the last. */
static void
a_page_may_leave_several_zombies(void)
{
    gm_device *device = host_with(64 * MIB, true);
    gm_pool *pool = always(device);
    gm_stream stream = stalled_stream(device);
    gm_block *guards[3];
    spoilt = 0;
    for (unsigned i = 0; i < 3; i++) {
        gm_block *block = take(pool, (4 + i) * MIB, stream);
        guards[i] = take(pool, MIB, stream);
        use_and_free(block, (unsigned char)(i + 1), stream);
        CHECK_POOL(pool);
    }
    CHECK_EQ(stats_of(pool).zombies, (4 + 5) * MIB);
    CHECK_EQ(reserved(pool), 9 * MIB);
    /* Each step lets a write, a look and perhaps a mark run. */
    size_t before = stats_of(pool).zombies, ran = 1;
    for (int i = 0; ran != 0; i++) {
        CHECK_OK(gm_host_release_work(device, stream, 1, &ran));
        (void)trim_all(pool);
        CHECK_POOL(pool);
        CHECK(stats_of(pool).zombies <= before);
        before = stats_of(pool).zombies;
        CHECK(i < 100);
        if (before == 0) {
            break;
        }
    }
    CHECK_EQ(before, 0);
    let_run(device, stream);
    CHECK_EQ(spoilt, 0);
    CHECK_EQ(trim_all(pool).skipped, 0);
    CHECK_EQ(reserved(pool), 3 * MIB);
    for (int i = 0; i < 3; i++) {
        gm_pool_free(guards[i]);
    }
    close_pool(pool);
}

static gm_device *
lagging_device(uint64_t lag)
{
    gm_sim_options options = {.capacity = SIZE_MAX,
                              .page_size = PAGE,
                              .paging = true,
                              .aliasing = true,
                              .lag = lag};
    return open_sim(&options);
}

static void
zombies_go_in_the_order_of_their_uses(void)
{
    gm_device *device = lagging_device(10);
    gm_pool *pool = always(device);
    gm_block *guards[2];
    (void)leave_hole(pool, 4 * MIB, 0, &guards[0]);
    gm_block *first = take(pool, 4 * MIB + PAGE, 0); /* marked at tick 0 */
    for (int i = 0; i < 5; i++) {
        gm_sim_tick(device);
    }
    (void)leave_hole(pool, 5 * MIB, 0, &guards[1]);
    gm_block *second = take(pool, 5 * MIB + PAGE, 0); /* at 5 */
    CHECK_EQ(stats_of(pool).zombies, 9 * MIB);
    for (int tick = 6; tick <= 15; tick++) {
        gm_sim_tick(device);
        (void)trim_all(pool);
        CHECK_EQ(stats_of(pool).zombies, tick < 10 ? 9 * MIB : tick < 15 ? 5 * MIB : 0);
        CHECK_POOL(pool);
    }
    CHECK_EQ(gm_sim_host_waits(device), 0);
    gm_pool_free(first);
    gm_pool_free(second);
    gm_pool_free(guards[0]);
    gm_pool_free(guards[1]);
    gm_pool_close(pool, SECOND);
    close_pool(pool);
}

/* ---- giving back ----------------------------------------------------------------- */

static void
a_trim_waits_for_the_work_on_zombies(void)
{
    gm_device *device = host_with(64 * MIB, true);
    gm_pool *pool = always(device);
    gm_stream stream = stalled_stream(device);
    gm_block *guard;
    (void)leave_hole(pool, 4 * MIB, stream, &guard);
    gm_pool_free(take(pool, 6 * MIB, stream));
    CHECK_OK(gm_pool_reserve(pool, 9 * MIB, NULL));
    CHECK_EQ(trim_all(pool).released, 2 * MIB); /* nobody's */
    CHECK_EQ(stats_of(pool).zombies, 4 * MIB);
    CHECK_EQ(trim_all(pool).released, 0);
    CHECK_POOL(pool);
    let_run(device, stream);
    gm_trim_report report = trim_all(pool);
    CHECK_EQ(report.released, 6 * MIB);
    CHECK_EQ(report.skipped, 0);
    CHECK_EQ(stats_of(pool).zombies, 0);
    CHECK_EQ(counters_of(device).mapped_now, MIB);
    gm_pool_free(guard);
    close_pool(pool);
}

/* Addresses that are mapped for work on its way are not given back. */
static void
addresses_go_when_their_zombies_went(void)
{
    gm_device *device = lagging_device(10);
    gm_pool *pool = always(device);
    gm_pool_free(take(pool, 512, 0));     /* in the small arena */
    gm_block *block = take(pool, MIB, 0); /* with its page */
    CHECK_EQ(stats_of(pool).zombies, PAGE);
    size_t addresses = counters_of(device).address_now;
    (void)trim_all(pool);
    CHECK_EQ(counters_of(device).address_now, addresses);
    for (int i = 0; i < 10; i++) {
        gm_sim_tick(device);
    }
    (void)trim_all(pool);
    CHECK_EQ(stats_of(pool).zombies, 0);
    CHECK(counters_of(device).address_now < addresses);
    CHECK_EQ(reserved(pool), MIB);
    gm_pool_free(block);
    gm_pool_close(pool, SECOND);
    close_pool(pool);
}

static void
a_pool_with_zombies_is_closed(void)
{
    for (int wait = 0; wait < 2; wait++) {
        gm_device *device = lagging_device(50);
        gm_pool *pool = always(device);
        gm_block *guard;
        (void)leave_hole(pool, 4 * MIB, 0, &guard);
        gm_pool_free(take(pool, 6 * MIB, 0));
        gm_pool_free(guard);
        CHECK_EQ(stats_of(pool).zombies, 4 * MIB);
        gm_pool_close(pool, wait != 0 ? SECOND : 0);
        CHECK_EQ(stats_of(pool).zombies, wait != 0 ? 0 : 4 * MIB);
        CHECK_EQ(counters_of(device).memory_now, wait != 0 ? 0 : 7 * MIB);
        CHECK_POOL(pool);
        if (wait == 0) { /* its end is the device's as well */
            (void)gm_device_retain(device);
            gm_pool_release(pool);
            CHECK_EQ(counters_of(device).memory_now, 7 * MIB);
            gm_device_release(device);
        }
        else {
            close_pool(pool);
        }
    }
}

/* The end of a stream: its lane goes once its last work is done, zombies with it. */
static void
a_retired_stream_leaves_no_zombies(void)
{
    gm_device *device = host_with(64 * MIB, true);
    gm_pool *pool = always(device);
    gm_stream stream = stalled_stream(device);
    gm_block *guard;
    (void)leave_hole(pool, 4 * MIB, stream, &guard);
    gm_block *block = take(pool, 6 * MIB, stream);
    gm_pool_stream_retired(pool, stream);
    CHECK_OK(device->ops->stream_destroy(device, stream));
    gm_pool_free(block);
    gm_pool_free(guard);
    gm_pool_poll(pool);
    CHECK_EQ(stats_of(pool).lanes, 1);
    CHECK_EQ(stats_of(pool).zombies, 4 * MIB);
    CHECK_POOL(pool);
    let_run(device, stream);
    gm_pool_poll(pool);
    CHECK_EQ(stats_of(pool).lanes, 0);
    CHECK_EQ(stats_of(pool).zombies, 0);
    CHECK_EQ(stats_of(pool).unplaced_bytes, 7 * MIB);
    CHECK_EQ(counters_of(device).mapped_now, 0);
    close_pool(pool);
}

/* While any stream captures nothing may be unmapped: zombies wait. */
static void
zombies_outlast_a_capture(void)
{
    for (int own = 0; own < 2; own++) {
        gm_device *device = host_with(64 * MIB, true);
        gm_pool *pool = always(device);
        gm_stream stream = stalled_stream(device), other = new_stream(device);
        gm_stream capturing = own != 0 ? stream : other;
        gm_block *guard;
        (void)leave_hole(pool, 4 * MIB, stream, &guard);
        gm_block *block = take(pool, 6 * MIB, stream);
        CHECK_OK(gm_pool_reserve(pool, 8 * MIB, NULL));
        let_run(device, stream);
        watch_reports();
        uint64_t unmaps = calls_of(pool, GM_CALL_UNMAP);
        CHECK_OK(gm_host_set_capturing(device, capturing, true));
        gm_block *during = take(pool, PAGE + 512, stream);
        CHECK_EQ(stats_of(pool).zombies, 4 * MIB);
        CHECK_EQ(reports, 0);
        /* During its own capture it is not even tried. */
        CHECK_EQ(calls_of(pool, GM_CALL_UNMAP) - unmaps, own != 0 ? 0 : 1);
        CHECK_POOL(pool);
        CHECK_OK(gm_host_set_capturing(device, capturing, false));
        gm_block *after = take(pool, 8 * PAGE, stream);
        CHECK_EQ(stats_of(pool).zombies, 0);
        CHECK_EQ(reports, 0);
        gm_set_report_hook(NULL);
        gm_pool_free(during);
        gm_pool_free(after);
        gm_pool_free(block);
        gm_pool_free(guard);
        close_pool(pool);
    }
}

/* ---- the check ------------------------------------------------------------------- */

static void
check_says(gm_pool *pool, const char *expected)
{
    char text[160] = "";
    CHECK_STATUS(gm_pool_check(pool, text, sizeof(text)), GM_INVALID);
    if (strcmp(text, expected) != 0) {
        check_fail(__FILE__, __LINE__, text);
    }
}

#define CHECK_BREAK(pool, field, value, text)   \
    do {                                        \
        __typeof__(field) check_kept = (field); \
        CHECK_POOL(pool);                       \
        (field) = (value);                      \
        check_says((pool), (text));             \
        (field) = check_kept;                   \
        CHECK_POOL(pool);                       \
    } while (0)

static void
zombies_are_checked(void)
{
    gm_device *device = lagging_device(10);
    gm_pool *pool = always(device);
    gm_block *guard;
    gm_devptr hole = leave_hole(pool, 4 * MIB, 0, &guard);
    gm_block *block = take(pool, 6 * MIB, 0);
    gm_lane *lane = gm_block_lane(block);
    gm_zombie *zombie = GM_CONTAINER_OF(lane->zombies.next, gm_zombie, link);
    gm_frame *frame = slot_at(guard, hole)->frame;
    CHECK_BREAK(pool, zombie->frees, lane->frees + 1,
                "zombies are not in the order of their last uses");
    CHECK_BREAK(pool, zombie->count, 0,
                "zombies are not in the order of their last uses");
    CHECK_BREAK(pool, zombie->count, zombie->count + 1, "a slot of a zombie is in use");
    CHECK_BREAK(pool, frame->looted, true,
                "a page does not know of a zombie that maps it");
    CHECK_BREAK(pool, frame->zombies, 0,
                "a page does not know of a zombie that maps it");
    CHECK_BREAK(pool, frame->zombies, 2,
                "pages know of more or fewer zombies than there are");
    gm_pool_free(block);
    gm_pool_free(guard);
    gm_pool_close(pool, SECOND);
    close_pool(pool);
}

static void
zombies_have_a_limit(void)
{
    enum {
        ROUNDS = 20
    };
    gm_device *device = host_with(512 * MIB, true);
    gm_pool *pool = always(device);
    gm_stream stream = stalled_stream(device);
    gm_block *guards[ROUNDS];
    size_t most = 0;
    for (size_t i = 0; i < ROUNDS; i++) {
        gm_block *block = take(pool, 16 * MIB + i * PAGE, stream);
        guards[i] = take(pool, 5 * PAGE, stream);
        use_and_free(block, (unsigned char)i, stream);
        size_t zombies = stats_of(pool).zombies;
        CHECK(zombies <= 8 * reserved(pool));
        most = zombies > most ? zombies : most;
    }
    /* Then the pool grows; it waits for nobody. */
    CHECK(most > 7 * 16 * MIB);
    size_t needed = 16 * MIB + ROUNDS * PAGE + ROUNDS * 5 * PAGE;
    CHECK(reserved(pool) > needed + MIB);
    CHECK_EQ(stats_of(pool).num_sync_all_streams, 0);
    CHECK_POOL(pool);
    spoilt = 0;
    let_run(device, stream);
    CHECK_EQ(spoilt, 0);
    gm_pool_free(take(pool, 64 * MIB, stream));
    CHECK_EQ(stats_of(pool).zombies, 0);
    for (size_t i = 0; i < ROUNDS; i++) {
        gm_pool_free(guards[i]);
    }
    close_pool(pool);
}

static const gm_test tests[] = {
    {"undone pages are at two places", undone_pages_are_at_two_places},
    {"without aliasing undone pages stay", without_aliasing_undone_pages_stay},
    {"a full pool does not wait where pages can be aliased",
     a_full_pool_does_not_wait_where_pages_can_be_aliased},
    {"without aliasing a full pool needs the work to end",
     without_aliasing_a_full_pool_needs_the_work_to_end},
    {"done pages come before undone ones", done_pages_come_before_undone_ones},
    {"a page may leave several zombies", a_page_may_leave_several_zombies},
    {"zombies go in the order of their uses", zombies_go_in_the_order_of_their_uses},
    {"a trim waits for the work on zombies", a_trim_waits_for_the_work_on_zombies},
    {"addresses go when their zombies went", addresses_go_when_their_zombies_went},
    {"a pool with zombies is closed", a_pool_with_zombies_is_closed},
    {"a retired stream leaves no zombies", a_retired_stream_leaves_no_zombies},
    {"zombies outlast a capture", zombies_outlast_a_capture},
    {"zombies have a limit", zombies_have_a_limit},
    {"zombies are checked", zombies_are_checked},
};

GM_TEST_MAIN(tests)
