/* lane.c - the two arenas of one stream: cache first, then the device. */
#include <stdlib.h>

#include "base/bits.h"
#include "pool/internal.h"

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
    size_t page_size = pool->paged ? pool->page_size : 0;
    size_t max_split = pool->paged ? SIZE_MAX : pool->options.max_split;
    gm_status status = gm_arena_init(&lane->arenas[GM_SMALL], true, page_size,
                                     max_split, &lane->nodes, lane);
    if (status == GM_OK) {
        status = gm_arena_init(&lane->arenas[GM_LARGE], false, page_size, max_split,
                               &lane->nodes, lane);
        if (status != GM_OK) {
            gm_arena_destroy(&lane->arenas[GM_SMALL]);
        }
    }
    if (status != GM_OK) {
        free(lane);
        return status;
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
    if (lane->marker.event != 0) {
        gm_status result = device->ops->event_destroy(device, lane->marker.event);
        status = result != GM_OK ? result : status;
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
    forget_chunks(&lane->arenas[GM_SMALL]);
    forget_chunks(&lane->arenas[GM_LARGE]);
    gm_arena_destroy(&lane->arenas[GM_SMALL]);
    gm_arena_destroy(&lane->arenas[GM_LARGE]);
    gm_slab_destroy(&lane->nodes);
    gm_slab_destroy(&lane->uses);
    gm_slab_destroy(&lane->watches_slab);
    free(lane);
}

/* ---- allocating ------------------------------------------------------------------ */

static inline size_t
alignment_of(const gm_request *request)
{
    return request->alignment < GM_GRANULE ? GM_GRANULE : request->alignment;
}

static inline gm_arena *
arena_for(gm_lane *lane, size_t size)
{
    return &lane->arenas[size <= GM_SMALL_LIMIT ? GM_SMALL : GM_LARGE];
}

/* The found place becomes a live block of the request. */
static gm_block *
place_block(gm_lane *lane, gm_arena *arena, const gm_request *request,
            const gm_placement *placement)
{
    gm_block *block = gm_arena_place(arena, placement);
    block->requested = request->size;
    block->context = request->context;
    block->by_address = request->by_address;
    gm_count_alloc_locked(lane, block);
    return block;
}

bool
gm_lane_take_cached_locked(gm_lane *lane, const gm_request *request, size_t size,
                           bool exhaustive, gm_status *status, gm_block **out)
{
    gm_arena *arena = arena_for(lane, size);
    gm_placement placement;
    *status = GM_OK;
    if (!gm_arena_find(arena, size, alignment_of(request), true, exhaustive,
                       &placement)) {
        return false;
    }
    if (lane->nodes.available < 2) {
        *status = gm_slab_reserve(&lane->nodes, 2);
        if (*status != GM_OK) {
            return false;
        }
    }
    *out = place_block(lane, arena, request, &placement);
    return true;
}

gm_status
gm_lane_allocate_locked(gm_lane *lane, const gm_request *request, size_t size,
                        gm_shortage *shortage, gm_block **out)
{
    gm_arena *arena = arena_for(lane, size);
    gm_placement placement;
    size_t alignment = alignment_of(request);
    *shortage = (gm_shortage){0};
    GM_TRY(gm_slab_reserve(&lane->nodes, 2));
    if (!gm_arena_find(arena, size, alignment, false, true, &placement)) {
        GM_TRY(gm_source_add_chunk_locked(lane, arena, size, alignment, shortage));
        GM_TRY(gm_slab_reserve(&lane->nodes, 2));
        if (!gm_arena_find(arena, size, alignment, false, true, &placement)) {
            return GM_NO_ADDRESS;
        }
    }
    GM_TRY(gm_source_fill_locked(lane, arena, &placement, shortage));
    *out = place_block(lane, arena, request, &placement);
    return GM_OK;
}

/* ---- freeing ------------------------------------------------------------------------ */

void
gm_lane_complete_free_locked(gm_lane *lane, gm_block *block)
{
    gm_pool *pool = lane->pool;
    gm_device *device = pool->device;
    gm_arena *arena = block->chunk->arena;
    if (gm_block_state_of(block) == GM_HEAP_PENDING) {
        gm_count_pending_locked(lane, block, false);
    }
    lane->frees++;
    if (gm_trace_is_on(pool->trace)) {
        gm_trace_entry entry =
            gm_trace_make(pool, GM_TRACE_FREE_COMPLETED, gm_block_start(block),
                          block->requested, lane->stream, block->context);
        gm_trace_write(pool, &entry);
    }
    gm_arena_release(arena, block, device->ops->clock_ns(device));
    gm_count_cached_locked(lane, arena);
}

void
gm_lane_free_locked(gm_lane *lane, gm_block *block)
{
    gm_count_free_locked(lane, block);
    if (block->uses != 0 && gm_pending_file_locked(lane, block)) {
        gm_block_set_state(block, GM_HEAP_PENDING);
        gm_chunk_set_start(block->chunk, gm_block_start(block), NULL);
        gm_count_pending_locked(lane, block, true);
        return;
    }
    gm_lane_complete_free_locked(lane, block);
}

void
gm_lane_drain_locked(gm_lane *lane)
{
    if (gm_deferred_is_empty(&lane->deferred)) {
        return;
    }
    gm_deferred_node *node = gm_deferred_take_all(&lane->deferred);
    while (node != NULL) {
        gm_deferred_node *next = node->next;
        gm_lane_free_locked(lane, GM_CONTAINER_OF(node, gm_block, deferred));
        lane->deferred_frees++;
        node = next;
    }
}
