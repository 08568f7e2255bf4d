/* lanes.c - a pool's table of lanes: one for each stream and arena kind.
 *
 * The common look-up takes no lock: a direct-mapped cache keyed by the stream's
 * identity. Lanes are type-stable: a dissolved one waits in free_lanes for the next
 * stream, so a stale pointer leads to a lane that says that it is not the one
 * (gm_lane_is, asked again under its lock).
 */
#include "pool/internal.h"

static gm_lane *
find_locked(gm_pool *pool, uint64_t identity, gm_arena_kind kind)
{
    GM_LIST_FOREACH(link, &pool->lanes) {
        gm_lane *lane = GM_CONTAINER_OF(link, gm_lane, link);
        if (gm_lane_is(lane, identity, kind)) {
            return lane;
        }
    }
    return NULL;
}

/* With the second lane the pool's totals begin to be kept. */
static void
start_totals_locked(gm_pool *pool)
{
    if (pool->lane_count != 1 ||
        atomic_load_explicit(&pool->many_lanes, memory_order_relaxed)) {
        return;
    }
    gm_lane *first = GM_CONTAINER_OF(pool->lanes.next, gm_lane, link);
    gm_mutex_lock(&first->lock);
    gm_peaks_start_locked(first);
    gm_mutex_unlock(&first->lock);
}

static gm_status
open_locked(gm_pool *pool, gm_stream stream, uint64_t identity, gm_arena_kind kind,
            gm_lane **out)
{
    gm_lane *lane;
    if (!gm_list_is_empty(&pool->free_lanes)) {
        lane = GM_CONTAINER_OF(pool->free_lanes.next, gm_lane, link);
        gm_list_remove(&lane->link);
    }
    else {
        GM_TRY(gm_lane_create(pool, &lane));
    }
    start_totals_locked(pool);
    gm_mutex_lock(&lane->lock);
    lane->stream = stream;
    lane->retired = false;
    gm_lane_reset_marker_locked(lane);
    gm_peaks_join(lane);
    gm_mutex_unlock(&lane->lock);
    atomic_store_explicit(&lane->identity, identity, memory_order_relaxed);
    atomic_store_explicit(&lane->kind, (uint32_t)kind, memory_order_relaxed);
    atomic_store_explicit(&lane->open, true, memory_order_release);
    gm_list_push_back(&pool->lanes, &lane->link);
    pool->lane_count++;
    *out = lane;
    return GM_OK;
}

gm_status
gm_lanes_get(gm_pool *pool, gm_stream stream, uint64_t identity, gm_arena_kind kind,
             gm_lane **out)
{
    gm_lane *lane = gm_lanes_peek(pool, identity, kind);
    if (lane != NULL && gm_lane_is(lane, identity, kind)) {
        *out = lane;
        return GM_OK;
    }
    gm_status status = GM_OK;
    gm_mutex_lock(&pool->lanes_lock);
    lane = find_locked(pool, identity, kind);
    if (lane == NULL) {
        status = open_locked(pool, stream, identity, kind, &lane);
    }
    if (status == GM_OK) {
        atomic_store_explicit(&pool->lane_cache[gm_lane_cache_slot(identity, kind)],
                              lane, memory_order_release);
        *out = lane;
    }
    gm_mutex_unlock(&pool->lanes_lock);
    return status;
}

gm_lane *
gm_lanes_find(gm_pool *pool, uint64_t identity, gm_arena_kind kind)
{
    gm_mutex_lock(&pool->lanes_lock);
    gm_lane *lane = find_locked(pool, identity, kind);
    gm_mutex_unlock(&pool->lanes_lock);
    return lane;
}

static bool
visit_list(gm_list *lanes, bool (*visit)(gm_lane *lane, void *argument), void *argument)
{
    GM_LIST_FOREACH(link, lanes) {
        gm_lane *lane = GM_CONTAINER_OF(link, gm_lane, link);
        gm_mutex_lock(&lane->lock);
        bool go_on = visit(lane, argument);
        gm_mutex_unlock(&lane->lock);
        if (!go_on) {
            return false;
        }
    }
    return true;
}

void
gm_lanes_visit(gm_pool *pool, bool (*visit)(gm_lane *lane, void *argument),
               void *argument)
{
    gm_mutex_lock(&pool->lanes_lock);
    (void)visit_list(&pool->lanes, visit, argument);
    gm_mutex_unlock(&pool->lanes_lock);
}

void
gm_lanes_visit_all(gm_pool *pool, bool (*visit)(gm_lane *lane, void *argument),
                   void *argument)
{
    gm_mutex_lock(&pool->lanes_lock);
    if (visit_list(&pool->lanes, visit, argument)) {
        (void)visit_list(&pool->free_lanes, visit, argument);
    }
    gm_mutex_unlock(&pool->lanes_lock);
}

/* ---- dissolving ------------------------------------------------------------------- */

/* Empties an idle lane: its pages go to the page pool, its addresses back. A failure of
 * the device is left in *status; the lane stays then. */
static bool
empty_lane_locked(gm_lane *lane, gm_status *status)
{
    gm_lane_drain_locked(lane);
    gm_pending_poll_locked(lane);
    if (lane->pending_blocks != 0 || gm_lane_used_locked(lane) != 0) {
        return false;
    }
    gm_reclaim reclaim = {.target = SIZE_MAX};
    gm_reclaim_lane_locked(lane, &reclaim);
    if (reclaim.status != GM_OK) {
        *status = reclaim.status;
        return false;
    }
    for (unsigned i = 0; i < GM_ARENAS; i++) {
        gm_arena *arena = &lane->shelves[i].arena;
        GM_LIST_FOREACH_SAFE(link, following, &arena->chunks) {
            gm_chunk *chunk = GM_CONTAINER_OF(link, gm_chunk, link);
            if (gm_arena_chunk_is_idle(chunk) && chunk->mapped_slots == 0 &&
                chunk->paged) {
                gm_source_drop_chunk_locked(lane, arena, chunk);
            }
        }
        if (arena->chunk_count != 0) {
            return false;
        }
    }
    return true;
}

/* A lane of a thread's own stream without memory or addresses: its thread may have
 * ended, and is served by a new one if it has not. */
static bool
is_bare(const gm_lane *lane)
{
    uint64_t identity = atomic_load_explicit(&lane->identity, memory_order_relaxed);
    return (identity & GM_IDENTITY_OF_THREAD) != 0 && lane->frees != 0 &&
           lane->shelves[GM_SMALL].arena.chunk_count == 0 &&
           lane->shelves[GM_LARGE].arena.chunk_count == 0;
}

/* Takes a lane out of service if it is retired and idle, or bare. */
static bool
close_lane(gm_lane *lane, gm_status *status)
{
    gm_mutex_lock(&lane->lock);
    bool closed = lane->retired ? empty_lane_locked(lane, status) : is_bare(lane);
    if (closed) {
        atomic_store_explicit(&lane->open, false, memory_order_relaxed);
    }
    gm_mutex_unlock(&lane->lock);
    return closed;
}

void
gm_lanes_dissolve(gm_pool *pool)
{
    gm_status status = GM_OK;
    if (gm_pool_attention(pool, GM_POOL_CAPTURING) != 0) {
        return; /* the end of the capture does it */
    }
    gm_mutex_lock(&pool->lanes_lock);
    GM_LIST_FOREACH_SAFE(link, following, &pool->lanes) {
        gm_lane *lane = GM_CONTAINER_OF(link, gm_lane, link);
        if (close_lane(lane, &status)) {
            gm_list_remove(&lane->link);
            gm_list_push_back(&pool->free_lanes, &lane->link);
            pool->lane_count--;
        }
    }
    gm_mutex_unlock(&pool->lanes_lock);
    if (status != GM_OK) {
        gm_pool_report(status, "give back the memory of a stream that is gone");
    }
}

void
gm_lanes_destroy(gm_pool *pool)
{
    gm_list *lists[] = {&pool->lanes, &pool->free_lanes};
    for (size_t i = 0; i < 2; i++) {
        GM_LIST_FOREACH_SAFE(link, following, lists[i]) {
            gm_list_remove(link);
            gm_lane_destroy(GM_CONTAINER_OF(link, gm_lane, link));
        }
    }
}
