/* reclaim.c - taking idle memory out of arenas.
 *
 * Idle is: free, and the work that used it is done. A free block was used on the
 * lane's stream up to its free, so one mark on that stream, recorded after the last
 * free, covers them all. Marks are recorded when they are needed, on streams where we
 * may: the device's own kind says so (GM_CAP_OWN_STREAMS).
 */
#include "pool/internal.h"

/* Records the mark again if frees have come since. False: no mark can be had. */
static bool
refresh_marker(gm_lane *lane)
{
    gm_marker *marker = &lane->marker;
    gm_device *device = lane->pool->device;
    if (marker->final || (marker->recorded && marker->frees == lane->frees)) {
        return true;
    }
    if (marker->event == 0 &&
        device->ops->event_create(device, &marker->event) != GM_OK) {
        marker->event = 0;
        return false;
    }
    if (device->ops->event_record(device, marker->event, lane->stream) != GM_OK) {
        marker->recorded = false;
        return false;
    }
    marker->recorded = true;
    marker->done = false;
    marker->frees = lane->frees;
    return true;
}

bool
gm_lane_is_done_locked(gm_lane *lane)
{
    gm_device *device = lane->pool->device;
    if (lane->frees == 0) {
        return true;
    }
    if (!refresh_marker(lane)) {
        return false;
    }
    if (!lane->marker.done) {
        lane->marker.done =
            device->ops->event_query(device, lane->marker.event) == GM_OK;
    }
    return lane->marker.done;
}

gm_event
gm_lane_marker_locked(gm_lane *lane)
{
    if (gm_lane_is_done_locked(lane) || !lane->marker.recorded) {
        return 0;
    }
    return lane->marker.event;
}

static bool
too_young(const gm_block *block, const gm_reclaim *reclaim)
{
    uint64_t age =
        reclaim->now_ns > block->freed_ns ? reclaim->now_ns - block->freed_ns : 0;
    return age < reclaim->older_than_ns;
}

/* Unmaps whole pages under the free blocks of one chunk. */
static void
reclaim_pages(gm_lane *lane, gm_arena *arena, gm_chunk *chunk, gm_reclaim *reclaim)
{
    for (gm_block *block = chunk->first;
         block != NULL && reclaim->freed < reclaim->target; block = block->next) {
        size_t first;
        if (!gm_block_is_free(block) || too_young(block, reclaim)) {
            continue;
        }
        size_t count = gm_arena_inner_slots(arena, block, &first);
        size_t wanted = (reclaim->target - reclaim->freed - 1) / arena->page_size + 1;
        if (count > wanted && block->unmapped == 0) {
            first += count - wanted;
            count = wanted;
        }
        if (count == 0) {
            continue;
        }
        gm_status status =
            gm_source_unmap_locked(lane, arena, block, first, count, &reclaim->freed);
        if (status != GM_OK) {
            reclaim->status = status;
            return;
        }
    }
}

static void
reclaim_arena(gm_lane *lane, gm_arena *arena, gm_reclaim *reclaim)
{
    GM_LIST_FOREACH_SAFE(link, following, &arena->chunks) {
        gm_chunk *chunk = GM_CONTAINER_OF(link, gm_chunk, link);
        if (reclaim->freed >= reclaim->target) {
            return;
        }
        if (chunk->paged) {
            if (chunk->mapped_slots != 0) {
                reclaim_pages(lane, arena, chunk, reclaim);
            }
        }
        else if (gm_arena_chunk_is_idle(chunk) && !too_young(chunk->first, reclaim)) {
            reclaim->freed += chunk->size;
            gm_source_drop_chunk_locked(lane, arena, chunk);
        }
    }
}

/* A capture on this lane's stream forbids giving memory back. */
static bool
is_capturing(gm_lane *lane)
{
    gm_device *device = lane->pool->device;
    bool capturing = false;
    return !lane->retired &&
           device->ops->stream_capturing(device, lane->stream, &capturing) == GM_OK &&
           capturing;
}

/* Pages leave a stable arena only after its life: nothing is in it, and nothing more
 * will be. */
static bool
may_lose_pages(const gm_lane *lane)
{
    return atomic_load_explicit(&lane->kind, memory_order_relaxed) != GM_ARENA_STABLE ||
           ((lane->retired || gm_pool_is_closed(lane->pool)) &&
            gm_lane_used_locked(lane) == 0 && lane->pending_blocks == 0);
}

void
gm_reclaim_lane_locked(gm_lane *lane, gm_reclaim *reclaim)
{
    size_t idle = gm_arena_cached_bytes(&lane->shelves[GM_SMALL].arena) +
                  gm_arena_cached_bytes(&lane->shelves[GM_LARGE].arena);
    if (idle == 0 || !may_lose_pages(lane)) {
        return;
    }
    if (is_capturing(lane) || !gm_lane_is_done_locked(lane)) {
        reclaim->busy += idle;
        return;
    }
    reclaim_arena(lane, &lane->shelves[GM_LARGE].arena, reclaim);
    reclaim_arena(lane, &lane->shelves[GM_SMALL].arena, reclaim);
}
