/* test_pool.c - the pool over the host and sim devices: one contract, several kinds. */
#include <pthread.h>

#include "pool_kinds.h"

static gm_pool *
limited_pool(gm_device *device, bool paging, size_t limit)
{
    gm_pool_options options = usual_options();
    options.paging = paging;
    options.limit = limit;
    return open_pool(device, &options);
}

/* ---- random use, checked all the way --------------------------------------------- */

typedef struct use {
    gm_block *block;
    unsigned char mark;
} use;

static void
use_at_random(bool paging, unsigned seed, int steps)
{
    enum {
        LIVE = 200,
        STREAMS = 4
    };
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, paging);
    gm_stream streams[STREAMS] = {0};
    use uses[LIVE] = {{0}};
    for (int i = 1; i < STREAMS; i++) {
        CHECK_OK(device->ops->stream_create(device, &streams[i]));
    }
    for (int i = 0; i < steps; i++) {
        use *slot = &uses[rand_r(&seed) % LIVE];
        if (slot->block != NULL) {
            unsigned char *memory =
                gm_device_host_pointer(gm_block_address(slot->block));
            CHECK_EQ(memory[0], slot->mark);
            CHECK_EQ(memory[gm_block_requested(slot->block) - 1], slot->mark);
            gm_pool_free(slot->block);
            slot->block = NULL;
        }
        else {
            size_t most = rand_r(&seed) % 8 == 0 ? 4 * MIB : 100000;
            size_t size = 1 + (size_t)rand_r(&seed) % most;
            gm_stream stream = streams[rand_r(&seed) % STREAMS];
            gm_status status = allocate(pool, size, stream, &slot->block, NULL);
            if (status == GM_OUT_OF_MEMORY) {
                slot->block = NULL;
                continue;
            }
            CHECK_OK(status);
            CHECK_EQ(gm_block_address(slot->block) % GM_GRANULE, 0);
            slot->mark = (unsigned char)(1 + i % 255);
            memset(gm_device_host_pointer(gm_block_address(slot->block)), slot->mark,
                   size);
            if (rand_r(&seed) % 4 == 0) {
                CHECK_OK(gm_pool_record_stream(slot->block,
                                               streams[rand_r(&seed) % STREAMS]));
            }
        }
        if (i % 16 == 0) {
            CHECK_POOL(pool);
        }
        if (i % 500 == 499) {
            (void)trim_all(pool);
            CHECK_POOL(pool);
        }
    }
    for (int i = 0; i < LIVE; i++) {
        gm_pool_free(uses[i].block);
    }
    gm_trim_report report = trim_all(pool);
    CHECK_EQ(report.referenced, 0);
    CHECK_EQ(reserved(pool), 0);
    CHECK_POOL(pool);
    gm_pool_release(pool);
    gm_device_release(device);
}

static void
random_use_with_pages(void)
{
    use_at_random(true, 1, 6000);
}

static void
random_use_with_segments(void)
{
    use_at_random(false, 2, 6000);
}

/* ---- single behaviours ----------------------------------------------------------- */

static void
a_limit_takes_the_same_way_as_a_full_device(void)
{
    for (int paging = 0; paging < 2; paging++) {
        gm_device *device = host_device(64 * MIB);
        gm_pool *pool = limited_pool(device, paging != 0, 16 * MIB);
        gm_block *block;
        CHECK_OK(allocate(pool, 10 * MIB, 0, &block, NULL));
        gm_pool_free(block);
        CHECK_OK(allocate(pool, 14 * MIB, 0, &block, NULL));
        gm_pool_stats stats;
        gm_pool_read_stats(pool, &stats);
        CHECK(stats.reserved_bytes.all.peak <= 16 * MIB);
        CHECK(paging != 0 || stats.flushes >= 1);
        CHECK_EQ(stats.num_ooms, 0);
        gm_pool_free(block);
        gm_pool_release(pool);
        gm_device_release(device);
    }
}

static void
a_failure_says_why_and_changes_nothing(void)
{
    gm_device *device = host_device(16 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_block *held, *block = NULL;
    gm_oom oom;
    CHECK_OK(allocate(pool, 12 * MIB, 0, &held, NULL));
    gm_pool_stats before, after;
    gm_pool_read_stats(pool, &before);
    CHECK_STATUS(allocate(pool, 8 * MIB, 0, &block, &oom), GM_OUT_OF_MEMORY);
    CHECK(block == NULL);
    CHECK_EQ(oom.reason, GM_OOM_SHORTAGE);
    CHECK_EQ(oom.requested, 8 * MIB);
    CHECK_EQ(oom.used, 12 * MIB);
    CHECK_EQ(oom.device_free, 4 * MIB);
    gm_pool_read_stats(pool, &after);
    CHECK_EQ(after.reserved_bytes.all.current, before.reserved_bytes.all.current);
    before.num_alloc_retries = after.num_alloc_retries;
    CHECK_EQ(memcmp(&before, &after, sizeof(before)), 0);
    CHECK_POOL(pool);

    CHECK_OK(gm_host_occupy(device, 4 * MIB));
    gm_pool_free(held);
    (void)trim_all(pool);
    CHECK_STATUS(allocate(pool, 14 * MIB, 0, &block, &oom), GM_OUT_OF_MEMORY);
    CHECK_EQ(oom.reason, GM_OOM_OTHERS);
    gm_pool_set_limit(pool, 2 * MIB);
    CHECK_STATUS(allocate(pool, 4 * MIB, 0, &block, &oom), GM_OUT_OF_MEMORY);
    CHECK_EQ(oom.reason, GM_OOM_LIMIT);
    gm_pool_release(pool);
    gm_device_release(device);
}

static void
memory_waits_for_recorded_streams(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_stream slow, fast;
    CHECK_OK(device->ops->stream_create(device, &slow));
    CHECK_OK(device->ops->stream_create(device, &fast));
    CHECK_OK(gm_host_stall(device, slow));
    CHECK_OK(gm_host_stall(device, fast));
    gm_block *first, *second, *again;
    CHECK_OK(allocate(pool, MIB, 0, &first, NULL));
    CHECK_OK(allocate(pool, MIB, 0, &second, NULL));
    gm_devptr first_address = gm_block_address(first);
    gm_devptr second_address = gm_block_address(second);
    CHECK_OK(gm_pool_record_stream(first, slow));
    CHECK_OK(gm_pool_record_stream(first, slow));
    CHECK_OK(gm_pool_record_stream(second, fast));
    gm_pool_free(first);
    gm_pool_free(second);
    CHECK_POOL(pool);
    CHECK_OK(allocate(pool, MIB, 0, &again, NULL));
    CHECK(gm_block_address(again) != first_address);
    CHECK(gm_block_address(again) != second_address);
    CHECK_OK(gm_host_release_work(device, fast, SIZE_MAX, NULL));
    gm_block *third;
    CHECK_OK(allocate(pool, MIB, 0, &third, NULL));
    CHECK_EQ(gm_block_address(third), second_address);
    gm_pool_stats stats;
    gm_pool_read_stats(pool, &stats);
    CHECK_EQ(stats.pending_blocks, 1);
    CHECK_OK(gm_host_release_work(device, slow, SIZE_MAX, NULL));
    gm_pool_free(again);
    gm_pool_free(third);
    gm_pool_poll(pool);
    gm_trim_report report = trim_all(pool);
    CHECK_EQ(report.skipped, 0);
    gm_pool_release(pool);
    gm_device_release(device);
}

static void
a_retired_stream_leaves_nothing(void)
{
    gm_device *device = host_device(8 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_block *block;
    for (int i = 0; i < 1000; i++) {
        gm_stream stream;
        CHECK_OK(device->ops->stream_create(device, &stream));
        CHECK_OK(allocate(pool, 6 * MIB, stream, &block, NULL));
        gm_pool_free(block);
        gm_pool_stream_retired(pool, stream);
        CHECK_OK(device->ops->stream_destroy(device, stream));
    }
    size_t free_blocks, entries, lanes, metadata;
    gm_pool_read_sizes(pool, &free_blocks, &entries, &lanes, &metadata);
    CHECK_EQ(lanes, 0);
    CHECK_OK(allocate(pool, 6 * MIB, 0, &block, NULL));
    CHECK(reserved(pool) <= 8 * MIB);
    gm_pool_free(block);
    CHECK_POOL(pool);
    gm_pool_release(pool);
    gm_device_release(device);
}

static void
only_addresses_of_live_blocks_are_freed(void)
{
    gm_device *device = host_device(8 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_request request = {.size = 5000, .by_address = true};
    gm_block *raw, *held, *found;
    CHECK_OK(gm_pool_alloc(pool, &request, &raw, NULL));
    CHECK_OK(allocate(pool, 5000, 0, &held, NULL));
    gm_devptr address = gm_block_address(raw);
    CHECK_OK(gm_block_find(address, &found));
    CHECK(found == raw);
    CHECK_STATUS(gm_pool_free_address(pool, address + 512), GM_UNKNOWN_ADDRESS);
    CHECK_STATUS(gm_pool_free_address(pool, gm_block_address(held)),
                 GM_UNKNOWN_ADDRESS);
    CHECK_STATUS(gm_pool_free_address(pool, 4096), GM_UNKNOWN_ADDRESS);
    CHECK_OK(gm_pool_free_address(pool, address));
    CHECK_STATUS(gm_pool_free_address(pool, address), GM_UNKNOWN_ADDRESS);
    gm_pool_stats stats;
    gm_pool_read_stats(pool, &stats);
    CHECK_EQ(stats.bad_frees, 4);
    CHECK_EQ(stats.allocation.all.current, 1);
    gm_pool_free(held);
    gm_pool_release(pool);
    gm_device_release(device);
}

static void
old_memory_goes_first(void)
{
    gm_device *device = host_device_with_clock(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_block *old_block, *guard, *young;
    CHECK_OK(allocate(pool, 4 * MIB, 0, &old_block, NULL));
    CHECK_OK(allocate(pool, MIB, 0, &guard, NULL));
    CHECK_OK(allocate(pool, 4 * MIB, 0, &young, NULL));
    gm_pool_free(old_block);
    gm_host_advance(device, UINT64_C(5000000000));
    gm_pool_free(young);
    gm_trim_request request = {.older_than_ns = UINT64_C(2000000000)};
    gm_trim_report report;
    CHECK_OK(gm_pool_trim(pool, &request, &report));
    CHECK_EQ(report.released, 4 * MIB);
    gm_pool_free(guard);
    CHECK_POOL(pool);
    gm_pool_release(pool);
    gm_device_release(device);
}

/* ---- the N-th failure ------------------------------------------------------------ */

/* A small program over every kind of call; every status is accepted, what is not had is
 * not used. */
static void
run_program(gm_device *device, gm_pool *pool)
{
    gm_stream stream = 0;
    bool has_stream = device->ops->stream_create(device, &stream) == GM_OK;
    gm_block *blocks[6] = {NULL};
    size_t sizes[6] = {1000, 3 * MIB, 300000, 5 * MIB, 200, 9 * MIB};
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 6; i++) {
            gm_oom oom;
            if (allocate(pool, sizes[i], i % 2 != 0 ? stream : 0, &blocks[i], &oom) !=
                GM_OK) {
                blocks[i] = NULL;
                continue;
            }
            gm_status status = gm_pool_record_stream(blocks[i], i % 3 ? stream : 0);
            (void)status;
        }
        CHECK_POOL(pool);
        for (int i = 0; i < 6; i++) {
            gm_pool_free(blocks[i]);
            blocks[i] = NULL;
        }
        CHECK_POOL(pool);
        gm_trim_report report;
        gm_trim_request request = {.timeout_ns = 1000};
        gm_status status = gm_pool_trim(pool, &request, &report);
        (void)status;
        CHECK_POOL(pool);
    }
    gm_pool_stream_retired(pool, stream);
    if (has_stream && stream != 0) {
        gm_status status = device->ops->stream_destroy(device, stream);
        (void)status;
    }
}

static void
sweep(bool paging, bool for_ever, gm_status failure)
{
    for (uint64_t nth = 1;; nth++) {
        gm_device *inner = host_device(20 * MIB);
        gm_device *device;
        CHECK_OK(gm_fault_create(inner, &device));
        gm_pool *pool = pool_on(device, paging);
        gm_fault_plan plan = {
            .call = -1, .nth = nth, .for_ever = for_ever, .status = failure};
        gm_fault_arm(device, &plan);
        run_program(device, pool);
        uint64_t injected = gm_fault_injected(device);
        gm_fault_arm(device, NULL);
        /* What is left works, and gives back what was not lost to a failed undo. */
        gm_block *block;
        if (allocate(pool, 2000, 0, &block, NULL) == GM_OK) {
            gm_pool_free(block);
        }
        CHECK_POOL(pool);
        gm_trim_request request = {.timeout_ns = 1000};
        gm_trim_report report;
        gm_status status = gm_pool_trim(pool, &request, &report);
        (void)status;
        gm_pool_stats stats;
        gm_pool_read_stats(pool, &stats);
        CHECK_EQ(stats.allocated_bytes.all.current, 0);
        gm_pool_release(pool);
        gm_device_release(device);
        gm_device_release(inner);
        if (injected == 0) {
            CHECK(nth > 20);
            return;
        }
    }
}

static void
each_call_fails_once(void)
{
    sweep(true, false, GM_OUT_OF_MEMORY);
    sweep(false, false, GM_OUT_OF_MEMORY);
    sweep(true, false, GM_DEVICE_ERROR);
}

static void
each_call_fails_for_ever(void)
{
    sweep(true, true, GM_OUT_OF_MEMORY);
    sweep(false, true, GM_DEVICE_ERROR);
    sweep(true, true, GM_DEVICE_LOST);
}

/* ---- threads --------------------------------------------------------------------- */

enum {
    THREADS = 4,
    ROUNDS = 3000
};

typedef struct exchange {
    gm_pool *pool;
    _Atomic(gm_block *) slots[64];
    gm_stream streams[THREADS];
} exchange;

typedef struct worker {
    exchange *shared;
    unsigned seed;
    int index;
} worker;

/* Allocates, and frees what some other thread left in a slot. */
static void *
work(void *argument)
{
    worker *self = argument;
    exchange *shared = self->shared;
    for (int i = 0; i < ROUNDS; i++) {
        gm_block *block = NULL;
        size_t size = 1 + (size_t)rand_r(&self->seed) % 300000;
        gm_stream stream = shared->streams[rand_r(&self->seed) % THREADS];
        gm_status status = allocate(shared->pool, size, stream, &block, NULL);
        if (status != GM_OK) {
            CHECK_STATUS(status, GM_OUT_OF_MEMORY);
            block = NULL;
        }
        gm_block *old =
            atomic_exchange(&shared->slots[rand_r(&self->seed) % 64], block);
        gm_pool_free(old);
        if (i % 500 == 0) {
            CHECK_POOL(shared->pool);
        }
    }
    return NULL;
}

static void
threads_free_what_others_allocated(void)
{
    gm_device *device = host_device(12 * MIB);
    gm_pool *pool = pool_on(device, true);
    exchange shared = {.pool = pool};
    pthread_t threads[THREADS];
    worker workers[THREADS];
    for (int i = 1; i < THREADS; i++) {
        CHECK_OK(device->ops->stream_create(device, &shared.streams[i]));
    }
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){.shared = &shared, .seed = (unsigned)i + 7, .index = i};
        CHECK_EQ(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    }
    for (int i = 0; i < 64; i++) {
        gm_pool_free(atomic_load(&shared.slots[i]));
    }
    CHECK_POOL(pool);
    gm_trim_report report = trim_all(pool);
    CHECK_EQ(report.referenced, 0);
    CHECK_EQ(reserved(pool), 0);
    gm_pool_release(pool);
    gm_device_release(device);
}

static void
the_newest_history_is_kept(void)
{
    gm_device *device = host_device(8 * MIB);
    gm_pool *pool = pool_on(device, true);
    CHECK_OK(gm_pool_record_history(pool, 10));
    for (int i = 0; i < 50; i++) {
        gm_block *block;
        CHECK_OK(allocate(pool, 1000 + (size_t)i, 0, &block, NULL));
        gm_pool_free(block);
    }
    gm_trace_entry entries[10];
    size_t count, limit;
    uint64_t dropped;
    gm_pool_read_history(pool, entries, 10, &count, &dropped, &limit);
    CHECK_EQ(count, 10);
    CHECK_EQ(limit, 10);
    CHECK_EQ(dropped, 3 * 50 + 1 - 10);
    CHECK_EQ(entries[9].action, GM_TRACE_FREE_COMPLETED);
    CHECK_EQ(entries[9].size, 1049);
    gm_pool_release(pool);
    gm_device_release(device);
}

static const gm_test tests[] = {
    {"random use with pages", random_use_with_pages},
    {"random use with segments", random_use_with_segments},
    {"a limit takes the same way as a full device",
     a_limit_takes_the_same_way_as_a_full_device},
    {"a failure says why and changes nothing", a_failure_says_why_and_changes_nothing},
    {"memory waits for recorded streams", memory_waits_for_recorded_streams},
    {"a retired stream leaves nothing", a_retired_stream_leaves_nothing},
    {"only addresses of live blocks are freed",
     only_addresses_of_live_blocks_are_freed},
    {"old memory goes first", old_memory_goes_first},
    {"each call fails once", each_call_fails_once},
    {"each call fails for ever", each_call_fails_for_ever},
    {"threads free what others allocated", threads_free_what_others_allocated},
    {"the newest history is kept", the_newest_history_is_kept},
};

GM_TEST_MAIN(tests)
