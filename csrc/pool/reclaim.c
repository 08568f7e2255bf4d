/* reclaim.c - taking idle memory out of arenas.
 *
 * Idle is: free, and the work that used it is done (marker.c).
 */
#include "pool/internal.h"

static bool
too_young(const gm_block *block, const gm_reclaim *reclaim)
{
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
        if (count == 0) {
            continue;
        }
        size_t wanted = (reclaim->target - reclaim->freed - 1) / arena->page_size + 1;
        size_t from = last_pages(chunk, first, count, wanted);
        gm_status status = gm_source_unmap_locked(
            lane, arena, block, from, first + count - from, &reclaim->freed);
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
    if (gm_lane_is_capturing_locked(lane) || !gm_lane_is_done_locked(lane)) {
        reclaim->busy += idle;
        return;
    }
    reclaim_arena(lane, &lane->shelves[GM_LARGE].arena, reclaim);
    reclaim_arena(lane, &lane->shelves[GM_SMALL].arena, reclaim);
}
