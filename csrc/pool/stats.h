/* stats.h - what a pool counts.
 *
 * Three sorts of numbers, never mixed: current (falls again), peak (highest current
 * since creation or gm_pool_reset_peaks), cumulative (only grows, until
 * gm_pool_reset_accumulated). Bytes unless the name says otherwise.
 *
 *     freed = allocated - current + (current at the last reset of accumulated counters)
 */
#ifndef GM_POOL_STATS_H
#define GM_POOL_STATS_H

#include <stddef.h>
#include <stdint.h>

typedef struct gm_stat {
    uint64_t current;
    uint64_t peak;
    uint64_t allocated; /* cumulative increase */
    uint64_t freed;     /* cumulative decrease */
} gm_stat;

/* X(field, name as in PyTorch's memory_stats) */
#define GM_POOL_STAT_MAP(X)               \
    X(allocation, "allocation")           \
    X(allocated_bytes, "allocated_bytes") \
    X(requested_bytes, "requested_bytes") \
    X(active, "active")                   \
    X(active_bytes, "active_bytes")       \
    X(segment, "segment")                 \
    X(reserved_bytes, "reserved_bytes")   \
    X(inactive_split, "inactive_split")   \
    X(inactive_split_bytes, "inactive_split_bytes")

/* A row: counted for all blocks, and by arena size class. `active` counts used and
 * pending blocks; `segment` counts mapped pages or whole segments; `inactive_split`
 * counts free blocks in pages or segments that cannot be given back because they are
 * partly in use. */
typedef struct gm_stat_row {
    gm_stat all;
    gm_stat small_pool;
    gm_stat large_pool;
} gm_stat_row;

/* Single counters. X(field, name) */
#define GM_POOL_COUNTER_MAP(X)                                                         \
    X(num_alloc_retries,                                                               \
      "num_alloc_retries")  /* cumulative: times the ladder climbed */                 \
    X(num_ooms, "num_ooms") /* cumulative: errors given to a user */                   \
    X(num_device_alloc,                                                                \
      "num_device_alloc")                 /* cumulative: pages or segments created */  \
    X(num_device_free, "num_device_free") /* cumulative */                             \
    X(num_sync_all_streams, "num_sync_all_streams") /* cumulative: host waits */       \
    X(maps, "maps")                                 /* cumulative: pages mapped */     \
    X(unmaps, "unmaps")                             /* cumulative: pages unmapped */   \
    X(flushes, "flushes")               /* cumulative: idle memory given back */       \
    X(flushed_bytes, "flushed_bytes")   /* cumulative */                               \
    X(retaken_bytes, "retaken_bytes")   /* cumulative: given back and taken again */   \
    X(collections, "collections")       /* cumulative: gc.collect() runs */            \
    X(bad_frees, "bad_frees")           /* cumulative: unknown addresses */            \
    X(deferred_frees, "deferred_frees") /* cumulative: frees that found a busy lock */ \
    X(zombies, "zombies")               /* current bytes */                            \
    X(quarantined, "quarantined")       /* current bytes: pages lost to failures */    \
    X(pending_bytes, "pending_bytes")   /* current */                                  \
    X(pending_blocks, "pending_blocks") /* current */                                  \
    X(cached_bytes, "cached_bytes")     /* current: free and mapped */                 \
    X(unplaced_bytes, "unplaced_bytes") /* current: free pages without address */      \
    X(lanes, "lanes")                   /* current */                                  \
    X(address_bytes, "address_bytes")   /* current: addresses reserved */              \
    X(touched_bytes, "touched_bytes")   /* current: of those that ever had a page */   \
    X(stolen_bytes, "stolen_bytes")     /* cumulative: moved within their stream */    \
    X(aliased_bytes, "aliased_bytes")   /* cumulative: of those before it was done */  \
    X(yielded_bytes, "yielded_bytes")   /* cumulative: flushed for other pools */      \
    X(fallbacks, "fallbacks")           /* cumulative: served by another pool */       \
    X(inserted_waits, "inserted_waits") /* cumulative: one stream for another */       \
    X(plan_served, "plan_served")       /* cumulative: blocks placed by a plan */

typedef struct gm_pool_stats {
#define GM_STAT_FIELD(field, name) gm_stat_row field;
    GM_POOL_STAT_MAP(GM_STAT_FIELD)
#undef GM_STAT_FIELD
#define GM_COUNTER_FIELD(field, name) uint64_t field;
    GM_POOL_COUNTER_MAP(GM_COUNTER_FIELD)
#undef GM_COUNTER_FIELD
    uint64_t limit; /* UINT64_MAX: none */
    uint64_t headroom;
} gm_pool_stats;

static inline void
gm_stat_add(gm_stat *stat, uint64_t amount)
{
    stat->current += amount;
    stat->allocated += amount;
    if (stat->current > stat->peak) {
        stat->peak = stat->current;
    }
}

static inline void
gm_stat_sub(gm_stat *stat, uint64_t amount)
{
    stat->current -= amount;
    stat->freed += amount;
}

#endif
