/* test_trace.c - the history of a pool, newest kept, and its observer. */
#include "pool_kinds.h"

enum {
    MOST = 32
};

typedef struct history {
    gm_trace_entry entries[MOST];
    size_t count, limit;
    uint64_t dropped;
} history;

static history
history_of(gm_pool *pool)
{
    history h;
    memset(&h, 0, sizeof(h));
    gm_pool_read_history(pool, h.entries, MOST, &h.count, &h.dropped, &h.limit);
    return h;
}

static void
check_entry(const gm_trace_entry *entry, gm_trace_action action, gm_devptr address,
            size_t size, uint64_t context)
{
    CHECK_EQ(entry->action, action);
    CHECK_EQ(entry->address, address);
    CHECK_EQ(entry->size, size);
    CHECK_EQ(entry->context, context);
}

static gm_block *
take_in_context(gm_pool *pool, size_t size, gm_stream stream, uint64_t context)
{
    gm_request request = {.size = size, .stream = stream, .context = context};
    gm_block *block = NULL;
    gm_status status = gm_pool_try_alloc(pool, &request, &block);
    if (status == GM_MISS) {
        status = gm_pool_alloc(pool, &request, &block, NULL);
    }
    CHECK_OK(status);
    return block;
}

static void
what_happens_is_written_down(void)
{
    gm_device *device = host_device_with_clock(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_stream stream = new_stream(device);
    gm_pool_free(take(pool, MIB, stream));
    CHECK_EQ(history_of(pool).limit, 0);
    CHECK_EQ(history_of(pool).count, 0);
    CHECK_OK(gm_pool_record_history(pool, MOST));
    gm_host_advance(device, 5 * SECOND);
    gm_block *block = take_in_context(pool, 2 * MIB - 7, stream, 66);
    gm_devptr address = gm_block_address(block);
    CHECK_EQ(gm_block_context(block), 66);
    gm_host_advance(device, SECOND);
    gm_pool_free(block);
    (void)trim_all(pool);

    history h = history_of(pool);
    CHECK_EQ(h.limit, MOST);
    CHECK_EQ(h.dropped, 0);
    CHECK_EQ(h.count, 5);
    check_entry(&h.entries[0], GM_TRACE_SEGMENT_MAP, address, MIB, 0);
    check_entry(&h.entries[1], GM_TRACE_ALLOC, address, 2 * MIB - 7, 66);
    check_entry(&h.entries[2], GM_TRACE_FREE_REQUESTED, address, 2 * MIB - 7, 66);
    check_entry(&h.entries[3], GM_TRACE_FREE_COMPLETED, address, 2 * MIB - 7, 66);
    check_entry(&h.entries[4], GM_TRACE_SEGMENT_UNMAP, address, 2 * MIB, 0);
    for (size_t i = 0; i < h.count; i++) {
        CHECK_EQ(h.entries[i].stream, stream);
        CHECK(i == 0 || h.entries[i].time_ns >= h.entries[i - 1].time_ns);
    }
    CHECK_EQ(h.entries[2].time_ns - h.entries[1].time_ns, SECOND);
    close_pool(pool);
}

static void
a_free_is_completed_when_its_streams_are_done(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, false);
    gm_stream slow = stalled_stream(device);
    CHECK_OK(gm_pool_record_history(pool, MOST));
    gm_block *block = take(pool, 12 * MIB, 0);
    gm_devptr address = gm_block_address(block);
    CHECK_OK(gm_pool_record_stream(block, slow));
    gm_pool_free(block);
    gm_pool_poll(pool);
    history h = history_of(pool);
    CHECK_EQ(h.count, 3);
    check_entry(&h.entries[0], GM_TRACE_SEGMENT_MAP, address, 12 * MIB, 0);
    check_entry(&h.entries[2], GM_TRACE_FREE_REQUESTED, address, 12 * MIB, 0);
    let_run(device, slow);
    gm_pool_poll(pool);
    (void)trim_all(pool);
    h = history_of(pool);
    CHECK_EQ(h.count, 5);
    check_entry(&h.entries[3], GM_TRACE_FREE_COMPLETED, address, 12 * MIB, 0);
    check_entry(&h.entries[4], GM_TRACE_SEGMENT_UNMAP, address, 12 * MIB, 0);
    close_pool(pool);
}

static void
the_newest_entries_stay_in_order(void)
{
    gm_device *device = host_device(8 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_block *first = take(pool, 512, 0);
    CHECK_OK(gm_pool_record_history(pool, 7));
    for (size_t i = 1; i <= 20; i++) {
        gm_pool_free(take(pool, i, 0));
    }
    history h = history_of(pool);
    CHECK_EQ(h.count, 7);
    CHECK_EQ(h.limit, 7);
    CHECK_EQ(h.dropped, 60 - 7);
    CHECK_EQ(h.entries[0].action, GM_TRACE_FREE_COMPLETED);
    for (size_t i = 0; i < 7; i++) {
        CHECK_EQ(h.entries[i].size, 18 + (i + 2) / 3);
    }
    /* Into a shorter array go the oldest; without one the numbers are told. */
    gm_trace_entry two[3] = {{.size = 99}, {.size = 99}, {.size = 99}};
    size_t count, limit;
    uint64_t dropped;
    gm_pool_read_history(pool, two, 2, &count, &dropped, &limit);
    CHECK_EQ(count, 7);
    CHECK_EQ(two[0].size, 18);
    CHECK_EQ(two[1].size, 19);
    CHECK_EQ(two[2].size, 99);
    gm_pool_read_history(pool, NULL, 0, &count, &dropped, &limit);
    CHECK_EQ(count, 7);
    gm_pool_free(first);
    close_pool(pool);
}

static void
a_history_can_be_cleared_and_stopped(void)
{
    gm_device *device = host_device(8 * MIB);
    gm_pool *pool = pool_on(device, true);
    CHECK_OK(gm_pool_record_history(pool, 4));
    for (int i = 0; i < 5; i++) {
        gm_pool_free(take(pool, 1000, 0));
    }
    CHECK(history_of(pool).dropped > 0);
    gm_pool_clear_history(pool);
    history h = history_of(pool);
    CHECK_EQ(h.count, 0);
    CHECK_EQ(h.dropped, 0);
    CHECK_EQ(h.limit, 4);
    gm_pool_free(take(pool, 1000, 0));
    h = history_of(pool);
    CHECK_EQ(h.count, 3);
    CHECK_EQ(h.entries[0].action, GM_TRACE_ALLOC);

    /* A new length begins anew; none ends it. */
    CHECK_OK(gm_pool_record_history(pool, 9));
    CHECK_EQ(history_of(pool).count, 0);
    CHECK_EQ(history_of(pool).limit, 9);
    gm_pool_free(take(pool, 1000, 0));
    CHECK_STATUS(gm_pool_record_history(pool, SIZE_MAX / 64), GM_INVALID);
    CHECK_EQ(history_of(pool).count, 3);
    CHECK_OK(gm_pool_record_history(pool, 0));
    gm_pool_free(take(pool, 1000, 0));
    CHECK_EQ(history_of(pool).count, 0);
    CHECK_EQ(history_of(pool).limit, 0);
    close_pool(pool);
}

/* ---- observers ------------------------------------------------------------------- */

typedef struct observer {
    gm_pool *pool;
    gm_trace_entry entries[MOST];
    size_t count;
    gm_block *nested; /* allocated by the observer itself */
} observer;

static void
observe(void *argument, gm_pool *pool, const gm_trace_entry *entry)
{
    observer *seen = argument;
    CHECK(pool == seen->pool);
    CHECK(seen->count < MOST);
    seen->entries[seen->count++] = *entry;
    /* No lock is held: the pool may be used. */
    if (entry->context == 77) {
        gm_pool_set_observer(pool, NULL, NULL);
        seen->nested = take(pool, 1000, entry->stream);
        gm_pool_set_observer(pool, observe, seen);
    }
}

static void
an_observer_is_told_of_blocks_and_failures(void)
{
    gm_device *device = host_device(8 * MIB);
    gm_pool *pool = pool_on(device, true);
    observer seen = {.pool = pool};
    gm_pool_set_observer(pool, observe, &seen);
    gm_block *first = take_in_context(pool, 1000, 0, 5);
    gm_block *second = take_in_context(pool, 1001, 0, 77);
    gm_devptr address = gm_block_address(first);
    CHECK(seen.nested != NULL);
    gm_pool_free(first);
    CHECK_EQ(seen.count, 3);
    check_entry(&seen.entries[0], GM_TRACE_ALLOC, address, 1000, 5);
    check_entry(&seen.entries[1], GM_TRACE_ALLOC, gm_block_address(second), 1001, 77);
    check_entry(&seen.entries[2], GM_TRACE_FREE_REQUESTED, address, 1000, 5);

    gm_request request = {.size = 9 * MIB, .context = 6};
    gm_oom oom;
    gm_block *block = NULL;
    CHECK_STATUS(gm_pool_alloc(pool, &request, &block, &oom), GM_OUT_OF_MEMORY);
    CHECK_EQ(seen.count, 3);
    gm_pool_count_oom(pool, &request, &oom);
    CHECK_EQ(seen.count, 4);
    check_entry(&seen.entries[3], GM_TRACE_OOM, oom.device_free, 9 * MIB, 6);
    gm_pool_count_oom(pool, &request, NULL);
    check_entry(&seen.entries[4], GM_TRACE_OOM, 0, 9 * MIB, 6);

    gm_pool_set_observer(pool, NULL, NULL);
    gm_pool_free(second);
    gm_pool_free(seen.nested);
    CHECK_EQ(seen.count, 5);
    close_pool(pool);
}

static void
releasing_in_an_observer(void *argument, gm_pool *pool, const gm_trace_entry *entry)
{
    gm_pool **owner = argument;
    if (entry->action == GM_TRACE_FREE_REQUESTED) {
        CHECK(*owner == pool);
        gm_pool_release(*owner);
        *owner = NULL;
    }
}

static void
the_last_owner_may_be_an_observer(void)
{
    gm_device *device = host_device(8 * MIB);
    gm_pool *pool = pool_on(device, true), *owner = pool;
    gm_block *block = take(pool, MIB, 0);
    gm_pool_set_observer(pool, releasing_in_an_observer, &owner);
    gm_pool_free(block);
    CHECK(owner == NULL);
    CHECK_EQ(counters_of(device).memory_now, 0);
    gm_device_release(device);
}

static const gm_test tests[] = {
    {"what happens is written down", what_happens_is_written_down},
    {"a free is completed when its streams are done",
     a_free_is_completed_when_its_streams_are_done},
    {"the newest entries stay in order", the_newest_entries_stay_in_order},
    {"a history can be cleared and stopped", a_history_can_be_cleared_and_stopped},
    {"an observer is told of blocks and failures",
     an_observer_is_told_of_blocks_and_failures},
    {"the last owner may be an observer", the_last_owner_may_be_an_observer},
};

GM_TEST_MAIN(tests)
