/* test_options.c - what can be set on a pool: defaults, refusals, and what a change
 * does.
 */
#include <math.h>

#include "pool_kinds.h"

static void
the_defaults_are_those_of_the_header(void)
{
    gm_pool_options options;
    memset(&options, 0xA5, sizeof(options));
    gm_pool_options_init(&options);
    CHECK_EQ(options.limit, SIZE_MAX);
    CHECK_EQ(options.headroom, 0);
    CHECK_EQ(options.reserve, 0);
    CHECK_EQ(options.steal, GM_STEAL_RATIO);
    CHECK(options.steal_ratio == 0.05);
    CHECK_EQ(options.cross_stream, GM_CROSS_STREAM_DONE);
    CHECK(options.gc_on_pressure);
    CHECK_EQ(options.oom_wait_ns, 10 * SECOND);
    CHECK_EQ(options.decay_ns, 0);
    CHECK_EQ(options.max_split, SIZE_MAX);
    CHECK(options.paging);
    const char *name = NULL;
    CHECK_OK(gm_pool_options_validate(&options, &name));
    CHECK(name == NULL);
}

/* Validation names `field` (NULL: all is well), and a pool is refused just then. */
static void
check_options(const gm_pool_options *options, const char *field)
{
    gm_device *device = host_device(8 * MIB);
    gm_status expected = field == NULL ? GM_OK : GM_INVALID;
    const char *name = NULL;
    CHECK_STATUS(gm_pool_options_validate(options, &name), expected);
    CHECK_STATUS(gm_pool_options_validate(options, NULL), expected);
    CHECK((name == NULL) == (field == NULL));
    CHECK(field == NULL || strcmp(name, field) == 0);
    gm_pool *pool = NULL;
    CHECK_STATUS(gm_pool_create(device, options, &pool), expected);
    CHECK((pool == NULL) == (field != NULL));
    gm_pool_release(pool);
    gm_device_release(device);
}

static void
a_bad_field_is_named(void)
{
    gm_pool_options options = usual_options();
    options.limit = 0;
    check_options(&options, "limit");
    options.limit = 1;
    check_options(&options, NULL);

    options = usual_options();
    options.limit = 4 * MIB;
    options.reserve = 4 * MIB + 1;
    check_options(&options, "reserve");
    options.reserve = 4 * MIB;
    check_options(&options, NULL);

    options = usual_options();
    options.steal = GM_STEAL_ALWAYS;
    check_options(&options, NULL);
    options.steal = (gm_steal_mode)(GM_STEAL_RATIO + 1);
    check_options(&options, "steal");
    options.steal = GM_STEAL_RATIO;
    double good[] = {0, 0.5, GM_STEAL_MOST};
    double bad[] = {-0.001, GM_STEAL_MOST * 1.001, (double)INFINITY, (double)NAN};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        options.steal_ratio = good[i];
        check_options(&options, NULL);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        options.steal_ratio = bad[i];
        check_options(&options, "steal");
    }

    options = usual_options();
    options.cross_stream = GM_CROSS_STREAM_NEVER;
    check_options(&options, NULL);
    options.cross_stream = (gm_cross_stream)(GM_CROSS_STREAM_NEVER + 1);
    check_options(&options, "cross_stream");

    options = usual_options();
    options.max_split = MIB - 1;
    check_options(&options, "max_split");
    options.max_split = MIB;
    check_options(&options, NULL);
}

static void
check_same(const gm_pool_options *left, const gm_pool_options *right)
{
    CHECK_EQ(left->limit, right->limit);
    CHECK_EQ(left->headroom, right->headroom);
    CHECK_EQ(left->reserve, right->reserve);
    CHECK_EQ(left->steal, right->steal);
    CHECK(left->steal_ratio == right->steal_ratio);
    CHECK_EQ(left->cross_stream, right->cross_stream);
    CHECK_EQ(left->gc_on_pressure, right->gc_on_pressure);
    CHECK_EQ(left->oom_wait_ns, right->oom_wait_ns);
    CHECK_EQ(left->decay_ns, right->decay_ns);
    CHECK_EQ(left->max_split, right->max_split);
    CHECK_EQ(left->paging, right->paging);
}

static void
options_in_force_can_be_read(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool_options options = {.limit = 32 * MIB,
                               .headroom = MIB,
                               .reserve = 2 * MIB,
                               .cross_stream = GM_CROSS_STREAM_NEVER,
                               .oom_wait_ns = 77,
                               .decay_ns = 88 * SECOND,
                               .max_split = 5 * MIB};
    gm_pool *pool = open_pool(device, &options);
    gm_pool_options found;
    gm_pool_read_options(pool, &found);
    check_same(&found, &options);
    CHECK_EQ(gm_pool_limit(pool), 32 * MIB);

    options.limit = 16 * MIB;
    options.headroom = 3 * MIB;
    options.cross_stream = GM_CROSS_STREAM_DONE;
    options.gc_on_pressure = true;
    options.oom_wait_ns = 99;
    CHECK_OK(gm_pool_change_options(pool, &options));
    gm_pool_read_options(pool, &found);
    check_same(&found, &options);
    gm_pool_set_limit(pool, 9 * MIB);
    gm_pool_read_options(pool, &found);
    CHECK_EQ(found.limit, 9 * MIB);
    CHECK_EQ(stats_of(pool).limit, 9 * MIB);
    CHECK_EQ(stats_of(pool).headroom, 3 * MIB);
    close_pool(pool);
}

static void
what_is_fixed_is_refused_and_nothing_changes(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool_options options = usual_options();
    gm_pool *pool = open_pool(device, &options);
    gm_pool_options tried[6];
    for (int i = 0; i < 6; i++) {
        tried[i] = options;
        tried[i].limit = 7 * MIB;
        tried[i].headroom = MIB;
        tried[i].oom_wait_ns = 5;
    }
    tried[0].max_split = 8 * MIB;
    tried[1].decay_ns = 1;
    tried[2].paging = false;
    tried[3].steal = GM_STEAL_ALWAYS;
    tried[4].limit = 0;
    tried[5].steal_ratio = 0.06;
    for (int i = 0; i < 6; i++) {
        gm_pool_options found;
        CHECK_STATUS(gm_pool_change_options(pool, &tried[i]), GM_INVALID);
        gm_pool_read_options(pool, &found);
        check_same(&found, &options);
    }
    close_pool(pool);
}

static void
a_changed_limit_holds_from_the_next_growth_on(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool_options options = usual_options();
    gm_pool *pool = open_pool(device, &options);
    gm_block *held = take(pool, 10 * MIB, 0), *block = NULL;
    gm_oom oom;
    gm_pool_set_limit(pool, 8 * MIB);
    CHECK_EQ(reserved(pool), 10 * MIB);
    CHECK_STATUS(allocate(pool, MIB, 0, &block, &oom), GM_OUT_OF_MEMORY);
    CHECK_EQ(oom.reason, GM_OOM_LIMIT);
    CHECK_EQ(oom.limit, 8 * MIB);
    gm_pool_set_limit(pool, 11 * MIB);
    gm_pool_free(take(pool, MIB, 0));

    options.headroom = 52 * MIB;
    CHECK_OK(gm_pool_change_options(pool, &options));
    gm_pool_free(take(pool, 2 * MIB, 0));
    CHECK_STATUS(allocate(pool, 3 * MIB, 0, &block, &oom), GM_OUT_OF_MEMORY);
    CHECK_EQ(oom.reason, GM_OOM_HEADROOM);
    CHECK_EQ(oom.headroom, 52 * MIB);
    gm_pool_free(held);
    close_pool(pool);
}

static void
paging_is_a_wish_where_the_device_has_no_pages(void)
{
    gm_host_options host = {.capacity = 64 * MIB};
    gm_device *device = open_host(&host);
    gm_pool *pool = pool_on(device, true);
    gm_block *block = take(pool, 1000, 0);
    CHECK_EQ(stats_of(pool).maps, 0);
    CHECK_EQ(stats_of(pool).segment.all.current, 1);
    CHECK_EQ(reserved(pool), 2 * MIB);
    gm_pool_free(block);
    close_pool(pool);

    device = host_device(64 * MIB);
    pool = pool_on(device, false);
    block = take(pool, 1000, 0);
    CHECK_EQ(counters_of(device).mapped_now, 0);
    CHECK_EQ(reserved(pool), 2 * MIB);
    gm_pool_free(block);
    close_pool(pool);
}

static void
a_reserve_is_taken_at_once_or_there_is_no_pool(void)
{
    for (int paging = 0; paging < 2; paging++) {
        gm_device *device = host_device(16 * MIB);
        gm_pool_options options = usual_options();
        options.paging = paging != 0;
        options.reserve = 12 * MIB;
        gm_pool *pool = open_pool(device, &options), *other = NULL;
        CHECK_EQ(counters_of(device).memory_now, 12 * MIB);
        CHECK_STATUS(gm_pool_create(device, &options, &other), GM_OUT_OF_MEMORY);
        CHECK(other == NULL);
        CHECK_EQ(counters_of(device).memory_now, 12 * MIB);
        close_pool(pool);
    }
}

static const gm_test tests[] = {
    {"the defaults are those of the header", the_defaults_are_those_of_the_header},
    {"a bad field is named", a_bad_field_is_named},
    {"options in force can be read", options_in_force_can_be_read},
    {"what is fixed is refused and nothing changes",
     what_is_fixed_is_refused_and_nothing_changes},
    {"a changed limit holds from the next growth on",
     a_changed_limit_holds_from_the_next_growth_on},
    {"paging is a wish where the device has no pages",
     paging_is_a_wish_where_the_device_has_no_pages},
    {"a reserve is taken at once or there is no pool",
     a_reserve_is_taken_at_once_or_there_is_no_pool},
};

GM_TEST_MAIN(tests)
