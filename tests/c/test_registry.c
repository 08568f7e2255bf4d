/* test_registry.c - the list of the process's pools, and what a child of fork finds. */
#include "pool/internal.h"
#include "pool_kinds.h"

/* ---- visiting -------------------------------------------------------------------- */

enum {
    MOST = 8
};

typedef struct visited {
    gm_pool *pools[MOST]; /* may be gone by now */
    uint64_t last_id;
    size_t count;
    gm_pool **release; /* its pool is released in the visit of `at` */
    gm_pool *at;
} visited;

static void
note_visit(gm_pool *pool, void *argument)
{
    visited *seen = argument;
    CHECK(seen->count < MOST);
    CHECK(gm_pool_id(pool) > seen->last_id);
    seen->last_id = gm_pool_id(pool);
    seen->pools[seen->count++] = pool;
    if (seen->release != NULL && pool == seen->at) {
        gm_pool_release(*seen->release);
        seen->release = NULL;
    }
}

static visited
visit_all(void)
{
    visited seen = {.count = 0};
    gm_pools_visit(note_visit, &seen);
    return seen;
}

static void
open_pools_are_visited_in_order_of_creation(void)
{
    gm_device *device = host_device(8 * MIB);
    gm_pool *pools[3];
    CHECK_EQ(visit_all().count, 0);
    for (int i = 0; i < 3; i++) {
        pools[i] = pool_on(device, true);
        CHECK(i == 0 || gm_pool_id(pools[i]) == gm_pool_id(pools[i - 1]) + 1);
    }
    visited seen = visit_all();
    CHECK_EQ(seen.count, 3);
    for (int i = 0; i < 3; i++) {
        CHECK(seen.pools[i] == pools[i]);
    }
    gm_pool_release(pools[1]);
    seen = visit_all();
    CHECK_EQ(seen.count, 2);
    CHECK(seen.pools[0] == pools[0] && seen.pools[1] == pools[2]);

    /* Numbers are not used twice. */
    uint64_t last = gm_pool_id(pools[2]);
    gm_pool_release(pools[2]);
    pools[2] = pool_on(device, true);
    CHECK_EQ(gm_pool_id(pools[2]), last + 1);
    gm_pool_release(pools[2]);
    gm_pool_release(pools[0]);
    CHECK_EQ(visit_all().count, 0);
    gm_device_release(device);
}

static void
a_pool_lives_as_long_as_its_visit(void)
{
    gm_device *device = host_device(8 * MIB);
    gm_pool *first = pool_on(device, true), *second = pool_on(device, true);
    visited seen = {.release = &first, .at = first};
    uint64_t id = gm_pool_id(first);
    gm_pools_visit(note_visit, &seen);
    CHECK_EQ(seen.count, 2);
    CHECK(seen.pools[1] == second);
    CHECK(gm_pool_id(second) > id);

    /* Another's visit may take a pool that was not visited yet. */
    gm_pool *third = pool_on(device, true);
    seen = (visited){.release = &third, .at = second};
    gm_pools_visit(note_visit, &seen);
    CHECK_EQ(seen.count, 1);

    /* One that is being destroyed just now is passed over. */
    atomic_store(&second->references, 0);
    CHECK_EQ(visit_all().count, 0);
    atomic_store(&second->references, 1);
    CHECK_EQ(visit_all().count, 1);
    gm_pool_release(second);
    gm_device_release(device);
}

static void
a_pool_has_as_many_owners_as_were_counted(void)
{
    gm_device *device = host_device(8 * MIB);
    gm_pool *pool = pool_on(device, true);
    CHECK(gm_pool_retain(pool) == pool);
    gm_pool_release(pool);
    CHECK_EQ(visit_all().count, 1);
    gm_pool_free(take(pool, MIB, 0));
    CHECK_EQ(reserved(pool), MIB);
    gm_pool_release(NULL);
    close_pool(pool);
    CHECK_EQ(visit_all().count, 0);
}

/* ---- fork ------------------------------------------------------------------------ */

typedef struct family {
    gm_pool *pool; /* the parent's */
    gm_block *block, *raw;
    gm_stream stream;
} family;

/* Every call on the parent's pool says so, and its blocks are nobody's. */
static void
refuse_the_parents_pool(void *argument)
{
    family *parent = argument;
    gm_request request = {.size = 1000};
    gm_block *block = NULL;
    gm_trim_request trim = {0};
    gm_trim_report report;
    gm_pool_view view;
    char text[64] = "";
    CHECK_STATUS(gm_pool_try_alloc(parent->pool, &request, &block), GM_FORKED);
    CHECK_STATUS(gm_pool_alloc(parent->pool, &request, &block, NULL), GM_FORKED);
    CHECK_STATUS(gm_pool_reserve(parent->pool, 9 * MIB, NULL), GM_FORKED);
    CHECK_STATUS(gm_pool_trim(parent->pool, &trim, &report), GM_FORKED);
    CHECK_STATUS(gm_pool_check(parent->pool, text, sizeof(text)), GM_FORKED);
    CHECK_STATUS(gm_pool_view_create(parent->pool, &view), GM_FORKED);
    CHECK_STATUS(gm_pool_record_stream(parent->block, parent->stream), GM_FORKED);
    gm_devptr address = gm_block_address(parent->raw);
    CHECK_STATUS(gm_pool_free_address(parent->pool, address), GM_FORKED);
    CHECK_STATUS(gm_pool_free_address(NULL, address), GM_UNKNOWN_ADDRESS);
    CHECK(block == NULL);

    gm_pool_free(parent->block);
    CHECK_EQ(gm_block_requested(parent->block), 1000);
    gm_pool_poll(parent->pool);
    gm_pool_stream_retired(parent->pool, parent->stream);
    gm_pool_close(parent->pool, SECOND);
    gm_pool_stats stats = stats_of(parent->pool);
    CHECK_EQ(stats.reserved_bytes.all.current, 0);
    CHECK_EQ(stats.allocation.all.current, 0);
    CHECK_EQ(stats.limit, UINT64_MAX);
    gm_pool_release(parent->pool);
}

/* A pool of the child's own, on a device of its own. */
static void
begin_anew(void *argument)
{
    family *parent = argument;
    uint64_t parents_id = gm_pool_id(parent->pool);
    CHECK_EQ(visit_all().count, 0);
    gm_device *device = host_device(8 * MIB);
    gm_pool *pool = pool_on(device, true);
    CHECK(gm_pool_id(pool) > parents_id);
    CHECK_EQ(visit_all().count, 1);
    gm_block *found, *block = take(pool, MIB, 0);
    memset(gm_device_host_pointer(gm_block_address(block)), 7, MIB);
    CHECK_OK(gm_block_find(gm_block_address(block), &found));
    CHECK(found == block);
    gm_devptr address = gm_block_address(parent->raw);
    CHECK_STATUS(gm_block_find(address, &found), GM_UNKNOWN_ADDRESS);
    /* The parent's pool may go before and after the child's. */
    gm_pool_release(parent->pool);
    CHECK_EQ(visit_all().count, 1);
    gm_pool_free(block);
    close_pool(pool);
    CHECK_EQ(visit_all().count, 0);
}

static void
a_child_of_fork_has_no_pool_of_its_parent(void)
{
    gm_device *device = host_device(8 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_request request = {.size = 2000, .by_address = true};
    family parent = {
        .pool = pool, .block = take(pool, 1000, 0), .stream = new_stream(device)};
    CHECK_OK(gm_pool_alloc(pool, &request, &parent.raw, NULL));
    check_in_child(refuse_the_parents_pool, &parent);
    check_in_child(begin_anew, &parent);

    /* Nothing of it reached the parent. */
    CHECK_EQ(visit_all().count, 1);
    CHECK_EQ(stats_of(pool).allocation.all.current, 2);
    CHECK_EQ(stats_of(pool).bad_frees, 0);
    CHECK(!gm_pool_is_closed(pool));
    gm_pool_free(parent.block);
    CHECK_OK(gm_pool_free_address(pool, gm_block_address(parent.raw)));
    close_pool(pool);
}

static const gm_test tests[] = {
    {"open pools are visited in order of creation",
     open_pools_are_visited_in_order_of_creation},
    {"a pool lives as long as its visit", a_pool_lives_as_long_as_its_visit},
    {"a pool has as many owners as were counted",
     a_pool_has_as_many_owners_as_were_counted},
    {"a child of fork has no pool of its parent",
     a_child_of_fork_has_no_pool_of_its_parent},
};

GM_TEST_MAIN(tests)
