/* lane.c - the two arenas of one stream: cache first, then the device. */
#include <stdlib.h>

#include "base/bits.h"
#include "pool/counting.h"

gm_status
gm_lane_create(gm_pool *pool, gm_lane **out)
{
    gm_lane *lane = calloc(1, sizeof(*lane));
    if (lane == NULL) {
        return GM_NO_HOST_MEMORY;
    }
    gm_mutex_init(&lane->lock, GM_RANK_ARENA);
    lane->pool = pool;
    gm_list_init(&lane->link);
    gm_deferred_init(&lane->deferred);
    gm_slab_init(&lane->nodes, gm_align_up_unchecked(sizeof(gm_block), 64));
    gm_slab_init(&lane->uses, sizeof(gm_use));
    gm_slab_init(&lane->watches_slab, sizeof(gm_watch));
    gm_list_init(&lane->watches);
    gm_list_init(&lane->idle_uses);
    gm_slab_init(&lane->zombie_slab, sizeof(gm_zombie));
    gm_list_init(&lane->zombies);
    size_t page_size = pool->paged ? pool->page_size : 0;
    size_t max_split = pool->paged ? SIZE_MAX : pool->options.max_split;
    gm_status status = gm_arena_init(&lane->shelves[GM_SMALL].arena, true, page_size,
                                     max_split, &lane->nodes, lane);
    if (status == GM_OK) {
        status = gm_arena_init(&lane->shelves[GM_LARGE].arena, false, page_size,
                               max_split, &lane->nodes, lane);
        if (status != GM_OK) {
            gm_arena_destroy(&lane->shelves[GM_SMALL].arena);
        }
    }
    if (status != GM_OK) {
        free(lane);
        return status;
    }
    lane->small_limit = GM_SMALL_LIMIT;
    if (pool->paged && pool->options.steal == GM_STEAL_ALWAYS) {
        size_t half = pool->page_size / 2;
        lane->small_limit = half > GM_SMALL_LIMIT ? half : GM_SMALL_LIMIT;
        gm_arena_set_tight(&lane->shelves[GM_LARGE].arena, SIZE_MAX);
    }
    *out = lane;
    return GM_OK;
}

/* Destroys the lane's events; failures are reported, never returned. */
static void
destroy_events(gm_lane *lane)
{
    gm_device *device = lane->pool->device;
    gm_status status = GM_OK;
    GM_LIST_FOREACH(link, &lane->idle_uses) {
        gm_use *use = GM_CONTAINER_OF(link, gm_use, watch_link);
        gm_status result = device->ops->event_destroy(device, use->event);
        status = result != GM_OK ? result : status;
    }
    for (unsigned i = 0; i < GM_FENCES; i++) {
        gm_event event = lane->marker.fences[i].event;
        if (event != 0) {
            gm_status result = device->ops->event_destroy(device, event);
            status = result != GM_OK ? result : status;
        }
    }
    if (status != GM_OK) {
        gm_pool_report(status, "destroy an event");
    }
}

/* Chunks whose memory could not be given back (work on it is unfinished, or its device
 * failed): their addresses are nobody's any more, so that a device may use them anew
 * once it has taken the memory itself. */
static void
forget_chunks(gm_arena *arena)
{
    GM_LIST_FOREACH_SAFE(link, following, &arena->chunks) {
        gm_chunk *chunk = GM_CONTAINER_OF(link, gm_chunk, link);
        gm_list_remove(link);
        gm_address_map_clear(chunk->base, chunk->size);
        gm_chunk_retire(chunk);
    }
}

void
gm_lane_destroy(gm_lane *lane)
{
    destroy_events(lane);
    forget_chunks(&lane->shelves[GM_SMALL].arena);
    forget_chunks(&lane->shelves[GM_LARGE].arena);
    gm_arena_destroy(&lane->shelves[GM_SMALL].arena);
    gm_arena_destroy(&lane->shelves[GM_LARGE].arena);
    gm_slab_destroy(&lane->nodes);
    gm_slab_destroy(&lane->uses);
    gm_slab_destroy(&lane->watches_slab);
    gm_slab_destroy(&lane->zombie_slab);
    free(lane);
}

/* ---- allocating ------------------------------------------------------------------ */

/* Where a block goes. While pages are short, places are chosen tightly: that search costs
 * more, and is only worth it where every page counts. Not in a small arena, where pages
 * are few and blocks are many. */
static bool
find_place(gm_lane *lane, gm_arena *arena, size_t size, size_t alignment,
           gm_terms terms, gm_placement *out) GM_REQUIRES(lane->lock)
{
    gm_tight_rule rule = lane->pool->options.steal != GM_STEAL_ALWAYS ? GM_TIGHT_LOW
                         : lane->behind                               ? GM_TIGHT_STAY
                                                                      : GM_TIGHT_SNUG;
    if (gm_arena_is_tight(arena)) {
        gm_arena_count_tight(arena);
        return gm_arena_find_tight(arena, size, alignment, rule, out);
    }
    if (!gm_arena_find(arena, size, alignment, out)) {
        return false;
    }
    size_t spell = arena->small ? 0 : gm_steal_spell_locked(lane, out->missing, terms);
    if (spell != 0) {
        gm_arena_set_tight(arena, spell);
        (void)gm_arena_find_tight(arena, size, alignment, rule, out);
    }
    return true;
}

gm_status
gm_lane_allocate_locked(gm_lane *lane, const gm_request *request, size_t size,
                        gm_terms terms, gm_shortage *shortage, gm_block **out)
{
    gm_shelf *shelf = gm_lane_shelf(lane, size);
    gm_arena *arena = &shelf->arena;
    gm_placement placement;
    size_t alignment = gm_request_alignment(request);
    *shortage = (gm_shortage){0};
    GM_TRY(gm_slab_reserve(&lane->nodes, 2));
    if (!find_place(lane, arena, size, alignment, terms, &placement)) {
        GM_TRY(
            gm_source_add_chunk_locked(lane, arena, size, alignment, terms, shortage));
        GM_TRY(gm_slab_reserve(&lane->nodes, 2));
        if (!find_place(lane, arena, size, alignment, terms, &placement)) {
            return GM_NO_ADDRESS;
        }
    }
    GM_TRY(gm_source_fill_locked(lane, arena, &placement, terms, shortage));
    *out = gm_arena_place(arena, &placement);
    gm_lane_hand_out_locked(lane, shelf, request, *out);
    return GM_OK;
}
