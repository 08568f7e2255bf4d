/* view.c - a copy of a pool's segments and blocks, for snapshots and summaries. */
#include <stdlib.h>
#include <string.h>

#include "pool/internal.h"

typedef struct view_builder {
    gm_pool_view *view;
    size_t segment_capacity;
    size_t block_capacity;
    gm_status status;
} view_builder;

static void *
grow(void *array, size_t count, size_t *capacity, size_t item, gm_status *status)
{
    if (count < *capacity) {
        return array;
    }
    size_t wanted = *capacity == 0 ? 64 : *capacity * 2;
    void *grown = realloc(array, wanted * item);
    if (grown == NULL) {
        *status = GM_NO_HOST_MEMORY;
        return array;
    }
    *capacity = wanted;
    return grown;
}

static gm_segment_view *
add_segment(view_builder *builder)
{
    gm_pool_view *view = builder->view;
    view->segments =
        grow(view->segments, view->segment_count, &builder->segment_capacity,
             sizeof(*view->segments), &builder->status);
    if (builder->status != GM_OK) {
        return NULL;
    }
    gm_segment_view *segment = &view->segments[view->segment_count++];
    memset(segment, 0, sizeof(*segment));
    segment->first_block = view->block_count;
    return segment;
}

/* The part of `block` inside [low, high) joins the last segment. */
static void
add_block(view_builder *builder, const gm_block *block, uint64_t low, uint64_t high)
{
    gm_pool_view *view = builder->view;
    view->blocks = grow(view->blocks, view->block_count, &builder->block_capacity,
                        sizeof(*view->blocks), &builder->status);
    if (builder->status != GM_OK) {
        return;
    }
    uint64_t start = gm_block_start(block) > low ? gm_block_start(block) : low;
    uint64_t end = gm_block_end(block) < high ? gm_block_end(block) : high;
    gm_segment_view *segment = &view->segments[view->segment_count - 1];
    gm_block_view *copy = &view->blocks[view->block_count++];
    *copy = (gm_block_view){.address = start, .size = (size_t)(end - start)};
    segment->block_count++;
    switch (gm_block_state_of(block)) {
        case GM_HEAP_FREE:
            copy->state = GM_BLOCK_FREE;
            return;
        case GM_HEAP_PENDING:
            copy->state = GM_BLOCK_PENDING;
            break;
        default:
            copy->state = GM_BLOCK_USED;
            segment->used += copy->size;
            segment->requested += block->requested;
            break;
    }
    copy->requested = block->requested;
    copy->context = block->context;
    segment->active += copy->size;
}

/* One segment: [low, high) of a chunk. *block is the first block that reaches in. */
static void
view_range(view_builder *builder, const gm_lane *lane, const gm_chunk *chunk,
           uint64_t low, uint64_t high, const gm_block **block)
{
    gm_segment_view *segment = add_segment(builder);
    if (segment == NULL) {
        return;
    }
    segment->address = low;
    segment->size = (size_t)(high - low);
    segment->stream = lane->stream;
    segment->kind =
        (gm_arena_kind)atomic_load_explicit(&lane->kind, memory_order_relaxed);
    segment->small = chunk->arena->small;
    segment->paged = chunk->paged;
    while (*block != NULL && gm_block_end(*block) <= low) {
        *block = (*block)->next;
    }
    const gm_block *current = *block;
    while (current != NULL && gm_block_start(current) < high &&
           builder->status == GM_OK) {
        add_block(builder, current, low, high);
        *block = current;
        current = current->next;
    }
}

static void
view_chunk(view_builder *builder, const gm_lane *lane, const gm_chunk *chunk)
{
    const gm_block *block = chunk->first;
    if (!chunk->paged) {
        view_range(builder, lane, chunk, chunk->base, chunk->base + chunk->size,
                   &block);
        return;
    }
    size_t page = chunk->arena->page_size;
    size_t slot = 0;
    while (slot < chunk->slot_count && builder->status == GM_OK) {
        size_t run = slot;
        while (slot < chunk->slot_count && chunk->slots[slot].state == GM_SLOT_MAPPED) {
            slot++;
        }
        if (slot > run) {
            view_range(builder, lane, chunk, chunk->base + (uint64_t)run * page,
                       chunk->base + (uint64_t)slot * page, &block);
        }
        slot++;
    }
}

static bool
view_lane(gm_lane *lane, void *argument)
{
    view_builder *builder = argument;
    gm_lane_drain_locked(lane);
    for (unsigned i = 0; i < GM_ARENAS; i++) {
        GM_LIST_FOREACH(link, &lane->shelves[i].arena.chunks) {
            view_chunk(builder, lane, GM_CONTAINER_OF(link, gm_chunk, link));
        }
    }
    return builder->status == GM_OK;
}

gm_status
gm_pool_view_create(gm_pool *pool, gm_pool_view *out)
{
    gm_pool_view view = {0};
    view_builder builder = {.view = &view};
    if (gm_pool_is_forked(pool)) {
        return GM_FORKED;
    }
    gm_lanes_visit(pool, view_lane, &builder);
    if (builder.status != GM_OK) {
        gm_pool_view_destroy(&view);
        return builder.status;
    }
    view.unplaced = gm_page_pool_unplaced(pool);
    *out = view;
    return GM_OK;
}

void
gm_pool_view_destroy(gm_pool_view *view)
{
    free(view->segments);
    free(view->blocks);
    *view = (gm_pool_view){0};
}
