/* test_life.c - a pool's calls one by one: wrong arguments, bad frees, what a block
 * says of itself, and locks that are held.
 */
#include <pthread.h>
#include <signal.h>

#include "pool/internal.h"
#include "pool_kinds.h"

static void
wrong_requests_are_refused(void)
{
    gm_device *device = host_device(8 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_request wrong[] = {
        {.size = 0},
        {.size = GM_SIZE_LIMIT + 1},
        {.size = SIZE_MAX},
        {.size = 1, .alignment = 3},
        {.size = 1, .alignment = 768},
        {.size = 1, .alignment = (size_t)2 << 30},
    };
    gm_pool_free(take(pool, 1000, 0));
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        gm_block *block = NULL;
        CHECK_STATUS(gm_pool_try_alloc(pool, &wrong[i], &block), GM_INVALID);
        CHECK_STATUS(gm_pool_alloc(pool, &wrong[i], &block, NULL), GM_INVALID);
        CHECK(block == NULL);
    }
    gm_request huge = {.size = GM_SIZE_LIMIT - 512};
    gm_block *block = NULL;
    CHECK_STATUS(gm_pool_alloc(pool, &huge, &block, NULL), GM_OUT_OF_MEMORY);
    gm_pool_free(NULL);
    close_pool(pool);
}

static void
a_pool_needs_a_living_device(void)
{
    gm_device *device = host_device(8 * MIB);
    gm_pool_options options = usual_options();
    gm_pool *pool = NULL;
    gm_process_set_exiting(true);
    CHECK_STATUS(gm_pool_create(device, &options, &pool), GM_EXITING);
    gm_process_set_exiting(false);
    CHECK(pool == NULL);
    pool = open_pool(device, &options);
    CHECK(gm_pool_device(pool) == device);
    gm_process_set_exiting(true);
    gm_pool *second = gm_pool_retain(pool);
    gm_pool_release(second);
    gm_process_set_exiting(false);
    gm_pool_free(take(pool, MIB, 0));
    close_pool(pool);
}

static void
a_block_tells_what_was_asked(void)
{
    gm_device *device = host_device(8 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_stream stream = new_stream(device);
    gm_request request = {
        .size = 1025, .stream = stream, .context = 7, .alignment = 4096};
    gm_block *block, *found;
    CHECK_OK(gm_pool_alloc(pool, &request, &block, NULL));
    CHECK_EQ(gm_block_requested(block), 1025);
    CHECK_EQ(gm_block_size(block), 1536);
    CHECK_EQ(gm_block_stream(block), stream);
    CHECK_EQ(gm_block_context(block), 7);
    CHECK(gm_block_pool(block) == pool);
    CHECK_EQ(gm_block_address(block) % 4096, 0);
    CHECK_OK(gm_block_find(gm_block_address(block), &found));
    CHECK(found == block);
    CHECK_STATUS(gm_block_find(gm_block_address(block) + 512, &found),
                 GM_UNKNOWN_ADDRESS);
    gm_pool_free(block);
    close_pool(pool);
}

static void
the_fast_path_makes_no_memory_call(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_request request = {.size = MIB};
    gm_block *block = NULL;
    CHECK_STATUS(gm_pool_try_alloc(pool, &request, &block), GM_MISS);
    gm_pool_free(take(pool, MIB, 0));
    uint64_t created = counters_of(device).calls[GM_CALL_PAGE_CREATE];
    for (int i = 0; i < 10; i++) {
        CHECK_OK(gm_pool_try_alloc(pool, &request, &block));
        gm_pool_free(block);
    }
    request.size = 2 * MIB;
    CHECK_STATUS(gm_pool_try_alloc(pool, &request, &block), GM_MISS);
    request.stream = new_stream(device);
    CHECK_STATUS(gm_pool_try_alloc(pool, &request, &block), GM_MISS);
    CHECK_EQ(counters_of(device).calls[GM_CALL_PAGE_CREATE], created);
    CHECK_EQ(stats_of(pool).allocation.all.allocated, 11);
    close_pool(pool);
}

/* ---- frees by address ------------------------------------------------------------ */

static void
an_address_is_freed_by_its_own_pool_alone(void)
{
    gm_device *device = host_device(8 * MIB);
    gm_pool *pool = pool_on(device, true), *other = pool_on(device, true);
    gm_request request = {.size = 300 * KIB, .by_address = true};
    gm_block *first, *second;
    CHECK_OK(gm_pool_alloc(pool, &request, &first, NULL));
    CHECK_OK(gm_pool_alloc(pool, &request, &second, NULL));
    gm_devptr address = gm_block_address(first);
    CHECK_STATUS(gm_pool_free_address(other, address), GM_UNKNOWN_ADDRESS);
    CHECK_EQ(stats_of(other).bad_frees, 1);
    CHECK_EQ(stats_of(pool).bad_frees, 0);
    CHECK_OK(gm_pool_free_address(pool, address));
    CHECK_OK(gm_pool_free_address(NULL, gm_block_address(second)));
    CHECK_STATUS(gm_pool_free_address(NULL, address), GM_UNKNOWN_ADDRESS);
    CHECK_STATUS(gm_pool_free_address(pool, UINT64_MAX), GM_UNKNOWN_ADDRESS);
    CHECK_EQ(stats_of(pool).bad_frees, 1);
    CHECK_EQ(stats_of(pool).allocation.all.current, 0);
    gm_pool_release(other);
    close_pool(pool);
}

typedef struct race {
    gm_pool *pool;
    gm_devptr address;
    _Atomic int freed;
} race;

static void *
free_once(void *argument)
{
    race *shared = argument;
    if (gm_pool_free_address(shared->pool, shared->address) == GM_OK) {
        atomic_fetch_add(&shared->freed, 1);
    }
    return NULL;
}

static void
of_two_frees_of_an_address_one_wins(void)
{
    gm_device *device = host_device(8 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_request request = {.size = 1000, .by_address = true};
    for (int i = 0; i < 50; i++) {
        gm_block *block;
        CHECK_OK(gm_pool_alloc(pool, &request, &block, NULL));
        race shared = {.pool = pool, .address = gm_block_address(block)};
        pthread_t threads[2];
        for (int t = 0; t < 2; t++) {
            CHECK_EQ(pthread_create(&threads[t], NULL, free_once, &shared), 0);
        }
        for (int t = 0; t < 2; t++) {
            CHECK_EQ(pthread_join(threads[t], NULL), 0);
        }
        CHECK_EQ(atomic_load(&shared.freed), 1);
        CHECK_EQ(stats_of(pool).bad_frees, i + 1);
    }
    /* The other half of the claim: the block is being freed already. */
    gm_block *block;
    CHECK_OK(gm_pool_alloc(pool, &request, &block, NULL));
    gm_devptr address = gm_block_address(block);
    gm_block_set_state(block, GM_HEAP_FREEING);
    CHECK_STATUS(gm_pool_free_address(pool, address), GM_UNKNOWN_ADDRESS);
    gm_block_set_state(block, GM_HEAP_USED);
    CHECK_OK(gm_pool_free_address(pool, address));
    CHECK_EQ(stats_of(pool).allocation.all.current, 0);
    close_pool(pool);
}

/* In a child, with a pool of its own. */
static void
free_twice(void *argument)
{
    (void)argument;
    gm_pool *pool = pool_on(host_device(8 * MIB), true);
    gm_block *block = take(pool, 1000, 0);
    gm_pool_free(block);
    gm_pool_free(block);
}

static void
a_second_free_of_a_handle_ends_the_program(void)
{
    int status = run_in_child(free_twice, NULL, true);
    CHECK(WIFSIGNALED(status));
    CHECK_EQ(WTERMSIG(status), SIGABRT);
}

/* ---- locks that are held --------------------------------------------------------- */

typedef struct waiter {
    gm_pool *pool;
    _Atomic bool done;
} waiter;

static void *
allocate_whole(void *argument)
{
    waiter *self = argument;
    gm_request request = {.size = 1000};
    gm_block *block = NULL;
    CHECK_OK(gm_pool_alloc(self->pool, &request, &block, NULL));
    atomic_store(&self->done, true);
    gm_pool_free(block);
    return NULL;
}

static void
the_whole_path_waits_for_a_lane(void)
{
    gm_device *device = host_device(8 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_block *block = take(pool, 1000, 0);
    gm_lane *lane = gm_block_lane(block);
    waiter other = {.pool = pool};
    pthread_t thread;
    gm_mutex_lock(&lane->lock);
    CHECK_EQ(pthread_create(&thread, NULL, allocate_whole, &other), 0);
    for (int i = 0; i < 20; i++) {
        CHECK(!atomic_load(&other.done));
        usleep(500);
    }
    gm_mutex_unlock(&lane->lock);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(atomic_load(&other.done));
    gm_pool_free(block);
    close_pool(pool);
}

static void
the_largest_size_is_refused_by_memory(void)
{
    gm_pool *pool = pool_on(host_device(8 * MIB), true);
    gm_pool_free(take(pool, 1000, 0));
    gm_pool_free(take(pool, MIB, 0));
    gm_request request = {.size = GM_SIZE_LIMIT};
    gm_block *block = NULL;
    CHECK_STATUS(gm_pool_try_alloc(pool, &request, &block), GM_MISS);
    CHECK_STATUS(gm_pool_alloc(pool, &request, &block, NULL), GM_OUT_OF_MEMORY);
    close_pool(pool);
}

static const gm_test tests[] = {
    {"wrong requests are refused", wrong_requests_are_refused},
    {"a pool needs a living device", a_pool_needs_a_living_device},
    {"a block tells what was asked", a_block_tells_what_was_asked},
    {"the fast path makes no memory call", the_fast_path_makes_no_memory_call},
    {"an address is freed by its own pool alone",
     an_address_is_freed_by_its_own_pool_alone},
    {"of two frees of an address one wins", of_two_frees_of_an_address_one_wins},
    {"a second free of a handle ends the program",
     a_second_free_of_a_handle_ends_the_program},
    {"the whole path waits for a lane", the_whole_path_waits_for_a_lane},
    {"the largest size is refused by memory", the_largest_size_is_refused_by_memory},
};

GM_TEST_MAIN(tests)
