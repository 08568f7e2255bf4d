/* capture_kinds.h - streams of a host device that capture, and the calls that a capture
 * forbids.
 */
#ifndef GM_TESTS_CAPTURE_KINDS_H
#define GM_TESTS_CAPTURE_KINDS_H

#include "pool/internal.h"
#include "pool_kinds.h"

/* The stream captures, and the pool knows. */
static inline void
begin(gm_pool *pool, gm_stream stream)
{
    gm_device *host = gm_fault_inner(gm_pool_device(pool));
    CHECK_OK(gm_pool_capture_begin(pool, stream));
    CHECK_OK(gm_host_set_capturing(host, stream, true));
}

static inline void
finish(gm_pool *pool, gm_stream stream)
{
    gm_device *host = gm_fault_inner(gm_pool_device(pool));
    CHECK_OK(gm_host_set_capturing(host, stream, false));
    CHECK_OK(gm_pool_capture_end(pool, stream));
}

/* Calls that give memory back, wait, or belong to events. */
static const gm_device_call forbidden_calls[] = {
    GM_CALL_SEGMENT_DESTROY, GM_CALL_ADDRESS_RELEASE,    GM_CALL_PAGE_DESTROY,
    GM_CALL_UNMAP,           GM_CALL_STREAM_SYNCHRONIZE, GM_CALL_THREADS_SYNCHRONIZE,
    GM_CALL_EVENT_RECORD,    GM_CALL_EVENT_QUERY,        GM_CALL_EVENT_SYNCHRONIZE,
    GM_CALL_STREAM_WAIT,
};

/* How many of them the device has counted. */
static inline uint64_t
forbidden(gm_pool *pool)
{
    gm_device_counters counters = counters_of(gm_pool_device(pool));
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof(forbidden_calls) / sizeof(forbidden_calls[0]); i++) {
        sum += counters.calls[forbidden_calls[i]];
    }
    return sum;
}

static inline uint64_t
calls(gm_pool *pool, gm_device_call call)
{
    return counters_of(gm_pool_device(pool)).calls[call];
}

static inline gm_arena_kind
kind_of(const gm_block *block)
{
    return (gm_arena_kind)atomic_load(&gm_block_lane(block)->kind);
}

static inline size_t
pending_blocks(gm_pool *pool)
{
    gm_pool_poll(pool);
    CHECK_POOL(pool);
    return stats_of(pool).pending_blocks;
}

/* A free block of the stream, with pages that are left over besides. */
static inline gm_devptr
warm_up(gm_pool *pool, size_t size, gm_stream stream, size_t spare)
{
    gm_block *block = take(pool, size, stream);
    gm_devptr address = gm_block_address(block);
    gm_pool_free(block);
    if (spare != 0) {
        CHECK_OK(gm_pool_reserve(pool, reserved(pool) + spare, NULL));
    }
    return address;
}

/* Two kinds of pool: of pages, and of whole segments. */
static inline gm_pool *
either_pool(int paged)
{
    return pool_on(host_device(64 * MIB), paged != 0);
}

#endif
