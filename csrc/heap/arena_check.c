/* arena_check.c - derives an arena's measures and invariants again from its slots and
 * blocks.
 */
#include "heap/arena_slots.h"

void
gm_arena_measure(const gm_arena *arena, const gm_block *block, uint32_t *unmapped,
                 size_t *mapped_prefix)
{
    *unmapped = 0;
    *mapped_prefix = block->size;
    if (!block->chunk->paged) {
        return;
    }
    uint64_t start = gm_block_start(block);
    size_t first = gm_arena_slot(arena, block->chunk, start);
    size_t last = gm_arena_slot(arena, block->chunk, gm_block_end(block) - 1);
    for (size_t slot = first; slot <= last; slot++) {
        if (gm_chunk_is_mapped(block->chunk, slot)) {
            continue;
        }
        if (*unmapped == 0) {
            *mapped_prefix =
                (size_t)(gm_arena_slot_address(arena, block->chunk, slot) - start);
        }
        (*unmapped)++;
    }
}

/* ---- checks ----------------------------------------------------------------------------------- */

static const char *
check_block(const gm_arena *arena, const gm_block *block)
{
    uint32_t unmapped;
    size_t prefix;
    gm_arena_measure(arena, block, &unmapped, &prefix);
    if (!gm_block_is_free(block)) {
        if (unmapped != 0) {
            return "a live block lies on a page that is not mapped";
        }
        return gm_block_state_of(block) == GM_HEAP_DEAD ? "a dead block is linked"
                                                        : NULL;
    }
    if (unmapped != block->unmapped || prefix != block->mapped_prefix) {
        return "a free block's count of unmapped pages is wrong";
    }
    bool filed = block->mapped_prefix != 0 && block != arena->loose;
    if ((block->mapped_slot != GM_INDEX_NONE) != filed ||
        block->partial != (block->unmapped != 0)) {
        return "a free block is in the wrong index";
    }
    return NULL;
}

/* Sums that a walk derives again. */
typedef struct walk_sums {
    size_t live, mapped, free_blocks, in_mapped, in_sparse, loose;
} walk_sums;

/* What a chunk says of its slots; counts those that are mapped. */
static const char *
check_slots(const gm_chunk *chunk, size_t *mapped)
{
    size_t zombies = 0;
    for (size_t i = 0; i < chunk->slot_count; i++) {
        const gm_slot *slot = &chunk->slots[i];
        *mapped += slot->state == GM_SLOT_MAPPED;
        zombies += slot->state == GM_SLOT_ZOMBIE;
        if (slot->state != GM_SLOT_ZOMBIE &&
            (slot->state == GM_SLOT_MAPPED) != (slot->frame != NULL)) {
            return "a slot has a page and is not mapped, or the other way round";
        }
        if (slot->state == GM_SLOT_MAPPED && i >= chunk->touched_slots) {
            return "a page lies where no slot ever had one";
        }
    }
    return zombies == chunk->zombie_slots ? NULL
                                          : "a chunk's number of zombies is wrong";
}

static const char *
check_chunk(const gm_arena *arena, const gm_chunk *chunk, walk_sums *sums)
{
    uint64_t address = chunk->base;
    const gm_block *prev = NULL;
    for (const gm_block *block = chunk->first; block != NULL; block = block->next) {
        if (gm_block_start(block) != address || block->prev != prev ||
            block->chunk != chunk || block->size == 0 ||
            block->size % GM_HEAP_GRANULE != 0) {
            return "blocks of a chunk are not contiguous";
        }
        if (gm_block_is_free(block) && gm_block_is_free(prev)) {
            return "two neighbours are both free";
        }
        const char *text = check_block(arena, block);
        if (text != NULL) {
            return text;
        }
        if (gm_block_is_free(block)) {
            sums->free_blocks += gm_arena_mapped_part(arena, block) != 0;
            sums->in_mapped += block->mapped_slot != GM_INDEX_NONE;
            sums->in_sparse += block->partial;
            sums->loose += block == arena->loose && block->mapped_prefix != 0;
        }
        else {
            sums->live += block->size;
        }
        address += block->size;
        prev = block;
    }
    size_t mapped = 0;
    const char *text = check_slots(chunk, &mapped);
    if (text != NULL) {
        return text;
    }
    sums->mapped += chunk->paged ? mapped * arena->page_size : chunk->size;
    if (address != chunk->base + chunk->size || mapped != chunk->mapped_slots) {
        return "a chunk's blocks or slots do not sum to its size";
    }
    return NULL;
}

const char *
gm_arena_check(const gm_arena *arena)
{
    walk_sums sums = {0};
    size_t chunks = 0;
    for (const gm_list *link = arena->chunks.next; link != &arena->chunks;
         link = link->next) {
        const gm_chunk *chunk =
            (const gm_chunk *)(const void *)((const char *)link -
                                             offsetof(gm_chunk, link));
        const char *text = check_chunk(arena, chunk, &sums);
        if (text != NULL) {
            return text;
        }
        chunks++;
    }
    if (sums.live != arena->live_bytes || sums.mapped != arena->mapped_bytes ||
        sums.free_blocks != arena->free_blocks || chunks != arena->chunk_count) {
        return "an arena's counters differ from its blocks";
    }
    if (!gm_free_index_check(&arena->mapped) || !gm_free_index_check(&arena->sparse) ||
        sums.in_mapped != gm_free_index_count(&arena->mapped) ||
        sums.loose != (arena->loose != NULL) ||
        sums.in_sparse != gm_free_index_count(&arena->sparse)) {
        return "a free index differs from the free blocks";
    }
    return NULL;
}
