/* reclaim.c - taking idle memory out of arenas.
 *
 * Idle is: free, and the work that used it is done (marker.c).
 */
#include "pool/internal.h"

/* Is the work on a free block unfinished, or was it freed too lately? */
static bool
must_stay(const gm_lane *lane, const gm_block *block, const gm_reclaim *reclaim)
{
    if (block->freed_at > lane->marker.done) {
        return true;
    }
    uint64_t age =
        reclaim->now_ns > block->freed_ns ? reclaim->now_ns - block->freed_ns : 0;
    return age < reclaim->older_than_ns;
}

/* Of the slots [first, first + count) the highest that hold `wanted` pages: returns the
 * first of them. */
static size_t
last_pages(const gm_chunk *chunk, size_t first, size_t count, size_t wanted)
{
    size_t slot = first + count;
    while (slot > first && wanted != 0) {
        slot--;
        wanted -= chunk->slots[slot].state == GM_SLOT_MAPPED;
    }
    return slot;
}

/* Unmaps whole pages under free blocks. */
static void
reclaim_pages(gm_lane *lane, gm_arena *arena, gm_reclaim *reclaim)
{
    gm_block *next = gm_arena_next_cached(arena, NULL);
    while (next != NULL && reclaim->freed < reclaim->target) {
        gm_block *block = next;
        size_t first;
        next = gm_arena_next_cached(arena, block);
        size_t count = gm_arena_inner_slots(arena, block, &first);
        if (count == 0 || must_stay(lane, block, reclaim)) {
            continue;
        }
        size_t wanted = (reclaim->target - reclaim->freed - 1) / arena->page_size + 1;
        size_t from = last_pages(block->chunk, first, count, wanted);
        gm_status status = gm_source_unmap_locked(
            lane, arena, block, from, first + count - from, &reclaim->freed);
        if (status != GM_OK) {
            reclaim->status = status;
            return;
        }
    }
}

/* Gives idle segments back. */
static void
reclaim_segments(gm_lane *lane, gm_arena *arena, gm_reclaim *reclaim)
{
    GM_LIST_FOREACH_SAFE(link, following, &arena->chunks) {
        gm_chunk *chunk = GM_CONTAINER_OF(link, gm_chunk, link);
        if (reclaim->freed >= reclaim->target) {
            return;
        }
        if (gm_arena_chunk_is_idle(chunk) && !must_stay(lane, chunk->first, reclaim)) {
            reclaim->freed += chunk->size;
            gm_source_drop_chunk_locked(lane, arena, chunk);
        }
    }
}

static void
reclaim_arena(gm_lane *lane, gm_arena *arena, gm_reclaim *reclaim)
{
    if (arena->page_size != 0) {
        reclaim_pages(lane, arena, reclaim);
    }
    else {
        reclaim_segments(lane, arena, reclaim);
    }
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
    bool zombies = !gm_list_is_empty(&lane->zombies);
    if ((idle == 0 && !zombies) || !may_lose_pages(lane) ||
        gm_lane_is_capturing_locked(lane)) {
        return;
    }
    (void)gm_lane_is_done_locked(lane); /* moves marker.done on as far as it goes */
    gm_steal_bury_locked(lane);
    reclaim_arena(lane, &lane->shelves[GM_LARGE].arena, reclaim);
    reclaim_arena(lane, &lane->shelves[GM_SMALL].arena, reclaim);
}
