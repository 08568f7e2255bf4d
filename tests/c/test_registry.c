/* test_registry.c - the list of the process's pools, and what a child of fork finds. */
#include "pool/internal.h"
#include <pthread.h>

#include "pool_kinds.h"

/* ---- visiting -------------------------------------------------------------------- */

enum {
    MOST = 8,
    FORKS = 100
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

static family
open_family(void)
{
    gm_device *device = host_device(8 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_request request = {.size = 2000, .by_address = true};
    family parent = {
        .pool = pool, .block = take(pool, 1000, 0), .stream = new_stream(device)};
    CHECK_OK(gm_pool_alloc(pool, &request, &parent.raw, NULL));
    return parent;
}

static void
close_family(const family *parent)
{
    gm_pool_free(parent->block);
    CHECK_OK(gm_pool_free_address(parent->pool, gm_block_address(parent->raw)));
    close_pool(parent->pool);
}

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
    gm_pool_options options;
    gm_pool_read_options(parent->pool, &options);
    CHECK_EQ(gm_pool_limit(parent->pool), SIZE_MAX);
    gm_pool_set_limit(parent->pool, MIB);
    CHECK_EQ(gm_pool_limit(parent->pool), SIZE_MAX);
    CHECK_STATUS(gm_pool_change_options(parent->pool, &options), GM_FORKED);
    CHECK_STATUS(gm_pool_record_history(parent->pool, 10), GM_FORKED);
    gm_trace_entry entry;
    size_t count = 9, limit = 9, lanes = 9;
    uint64_t dropped = 9;
    gm_pool_read_history(parent->pool, &entry, 1, &count, &dropped, &limit);
    CHECK(count == 0 && dropped == 0 && limit == 0);
    gm_pool_clear_history(parent->pool);
    gm_pool_count_oom(parent->pool, &request, NULL);
    gm_pool_reset_peaks(parent->pool);
    gm_pool_reset_accumulated(parent->pool);
    gm_pool_read_sizes(parent->pool, &count, &limit, &lanes, &count);
    CHECK_EQ(lanes, 0);
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
    family parent = open_family();
    gm_pool *pool = parent.pool;
    check_in_child(refuse_the_parents_pool, &parent);
    check_in_child(begin_anew, &parent);

    /* Nothing of it reached the parent. */
    CHECK_EQ(visit_all().count, 1);
    CHECK_EQ(stats_of(pool).allocation.all.current, 2);
    CHECK_EQ(stats_of(pool).bad_frees, 0);
    CHECK(!gm_pool_is_closed(pool));
    close_family(&parent);
}

/* ---- fork under load ------------------------------------------------------------- */

/* A thread that holds locks of a pool while another one forks. */
typedef struct holder {
    gm_mutex *locks[4]; /* in order of rank; NULL: no more */
    _Atomic bool held, done;
} holder;

static void *
hold(void *argument) GM_NO_THREAD_ANALYSIS
{
    holder *self = argument;
    int count = 0;
    for (; count < 4 && self->locks[count] != NULL; count++) {
        gm_mutex_lock(self->locks[count]);
    }
    atomic_store(&self->held, true);
    while (!atomic_load(&self->done)) {
        usleep(100);
    }
    while (count-- > 0) {
        gm_mutex_unlock(self->locks[count]);
    }
    return NULL;
}

static void
refuse_without_waiting(void *argument)
{
    alarm(20);
    refuse_the_parents_pool(argument);
}

/* Whatever other threads held of the pool at that moment, the child waits for none. */
static void
a_child_takes_no_lock_of_its_parents_pool(void)
{
    family parent = open_family();
    gm_pool *pool = parent.pool;
    CHECK_OK(gm_pool_record_history(pool, 4));
    gm_lane *lane = gm_block_lane(parent.block);
    holder threads[] = {
        {.locks = {&pool->lanes_lock, &lane->lock, &pool->page_pool.lock}},
        {.locks = {(gm_mutex *)(void *)pool->trace}}, /* its first member */
    };
    enum {
        COUNT = sizeof(threads) / sizeof(threads[0])
    };
    pthread_t ids[COUNT];
    for (int i = 0; i < COUNT; i++) {
        CHECK_EQ(pthread_create(&ids[i], NULL, hold, &threads[i]), 0);
        while (!atomic_load(&threads[i].held)) {
            usleep(100);
        }
    }
    check_in_child(refuse_without_waiting, &parent);
    for (int i = 0; i < COUNT; i++) {
        atomic_store(&threads[i].done, true);
        CHECK_EQ(pthread_join(ids[i], NULL), 0);
    }
    close_family(&parent);
}

/* A sanitizer's allocator does not make its locks anew in a child. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define FORKS_AMONG_THREADS 1
#endif

#ifdef FORKS_AMONG_THREADS

static _Atomic bool stop_churning;

static gm_device *
sim_with_pages(void)
{
    gm_sim_options options = {
        .capacity = 8 * MIB, .page_size = PAGE, .paging = true, .aliasing = true};
    return open_sim(&options);
}

static void
count_visit(gm_pool *pool, void *argument)
{
    (void)pool;
    ++*(size_t *)argument;
}

/* Makes and ends devices and pools without a pause: their chunks, address ranges and
 * entries in the registry are all behind locks of the process. */
static void *
churn(void *argument)
{
    bool simulated = argument != NULL;
    while (!atomic_load(&stop_churning)) {
        gm_device *device = simulated ? sim_with_pages() : host_device(8 * MIB);
        gm_pool *pool = pool_on(device, true);
        gm_pool_free(take(pool, MIB, 0));
        size_t seen = 0;
        gm_pools_visit(count_visit, &seen);
        CHECK(seen >= 1);
        gm_pool_release(pool);
        gm_device_release(device);
    }
    return NULL;
}

static void
begin_anew_without_waiting(void *argument)
{
    (void)argument;
    alarm(20);
    CHECK_EQ(visit_all().count, 0);
    gm_device *devices[] = {host_device(8 * MIB), sim_with_pages()};
    for (int i = 0; i < 2; i++) {
        gm_pool *pool = pool_on(devices[i], true);
        gm_block *found, *block = take(pool, MIB, 0);
        CHECK_OK(gm_block_find(gm_block_address(block), &found));
        CHECK(found == block);
        CHECK_EQ(visit_all().count, 1);
        gm_pool_free(block);
        close_pool(pool);
    }
    CHECK_EQ(visit_all().count, 0);
}

static void
a_child_of_a_busy_process_begins_anew(void)
{
    pthread_t ids[3];
    atomic_store(&stop_churning, false);
    for (size_t i = 0; i < 3; i++) {
        CHECK_EQ(pthread_create(&ids[i], NULL, churn, i == 2 ? &ids : NULL), 0);
    }
    for (int i = 0; i < FORKS; i++) {
        check_in_child(begin_anew_without_waiting, NULL);
    }
    atomic_store(&stop_churning, true);
    for (size_t i = 0; i < 3; i++) {
        CHECK_EQ(pthread_join(ids[i], NULL), 0);
    }
}

#endif

static const gm_test tests[] = {
    {"open pools are visited in order of creation",
     open_pools_are_visited_in_order_of_creation},
    {"a pool lives as long as its visit", a_pool_lives_as_long_as_its_visit},
    {"a pool has as many owners as were counted",
     a_pool_has_as_many_owners_as_were_counted},
    {"a child of fork has no pool of its parent",
     a_child_of_fork_has_no_pool_of_its_parent},
    {"a child takes no lock of its parent's pool",
     a_child_takes_no_lock_of_its_parents_pool},
#ifdef FORKS_AMONG_THREADS
    {"a child of a busy process begins anew", a_child_of_a_busy_process_begins_anew},
#endif
};

GM_TEST_MAIN(tests)
