/* arena_slots.h - page slots under blocks, for the files of the arena. */
#ifndef GM_HEAP_ARENA_SLOTS_H
#define GM_HEAP_ARENA_SLOTS_H

#include "heap/arena.h"

static inline size_t
gm_arena_slot(const gm_arena *arena, const gm_chunk *chunk, uint64_t address)
{
    return (size_t)(address - chunk->base) / arena->page_size;
}

static inline uint64_t
gm_arena_slot_address(const gm_arena *arena, const gm_chunk *chunk, size_t slot)
{
    return chunk->base + (uint64_t)slot * arena->page_size;
}

static inline bool
gm_chunk_is_mapped(const gm_chunk *chunk, size_t slot)
{
    return chunk->slots[slot].state == GM_SLOT_MAPPED;
}

/* Bytes of a free block that have memory. */
static inline size_t
gm_arena_mapped_part(const gm_arena *arena, const gm_block *block)
{
    return block->size - (size_t)block->unmapped * arena->page_size;
}

/* Derives a block's unmapped and mapped_prefix from the slots. Reads nothing of the
 * block but its place. Cost: O(slots under it). */
void
gm_arena_measure(const gm_arena *arena, const gm_block *block, uint32_t *unmapped,
                 size_t *mapped_prefix);

/* Fills *out for `size` bytes at the first aligned place in `block` without a zombie,
 * counting the missing pages. False when there is none. */
bool
gm_arena_measure_place(const gm_arena *arena, gm_block *block, size_t size,
                       size_t alignment, gm_placement *out);

/* The same for the place `front` bytes above the block's start, and no other. */
bool
gm_arena_measure_place_at(const gm_arena *arena, gm_block *block, size_t size,
                          size_t front, gm_placement *out);

/* Moves mapped_prefix over slots that are mapped now. Cost: O(slots passed). */
void
gm_arena_extend_prefix(const gm_arena *arena, gm_block *block);

#endif
