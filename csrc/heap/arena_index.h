/* arena_index.h - where a free block is filed, for the files of the arena.
 *
 * After any change of a free block's place, size or pages one of these makes the
 * invariants of block.h hold again. Inline: they run with every allocation and free.
 */
#ifndef GM_HEAP_ARENA_INDEX_H
#define GM_HEAP_ARENA_INDEX_H

#include "heap/arena_slots.h"

static inline void
gm_block_set_unmapped(gm_block *block, uint32_t unmapped)
{
    block->unmapped = unmapped;
    block->partial = unmapped != 0;
}

/* Does a free block have mapped bytes at all? */
static inline bool
gm_arena_has_memory(const gm_arena *arena, const gm_block *block)
{
    return !block->partial || gm_arena_mapped_part(arena, block) != 0;
}

static inline void
gm_arena_reindex_sparse(gm_arena *arena, gm_block *block)
{
    uint32_t slot = gm_free_index_class(block->size);
    if (slot != block->sparse_slot) {
        if (block->sparse_slot != GM_INDEX_NONE) {
            gm_free_index_remove(&arena->sparse, GM_INDEX_SPARSE, block);
        }
        gm_free_index_insert(&arena->sparse, GM_INDEX_SPARSE, block, slot);
    }
}

static inline uint32_t
gm_block_mapped_class(const gm_block *block)
{
    return block->mapped_prefix != 0 ? gm_free_index_class(block->mapped_prefix)
                                     : GM_INDEX_NONE;
}

/* Note [The loose block] */
static inline void
gm_arena_file_loose(gm_arena *arena)
{
    gm_block *loose = arena->loose;
    if (loose != NULL) {
        arena->loose = NULL;
        gm_free_index_insert(&arena->mapped, GM_INDEX_MAPPED, loose,
                             gm_block_mapped_class(loose));
    }
}

static inline void
gm_arena_reindex_mapped(gm_arena *arena, gm_block *block)
{
    uint32_t slot = gm_block_mapped_class(block);
    if (slot == block->mapped_slot) {
        return;
    }
    if (block->mapped_slot != GM_INDEX_NONE) {
        gm_free_index_remove(&arena->mapped, GM_INDEX_MAPPED, block);
    }
    if (slot != GM_INDEX_NONE) {
        gm_free_index_insert(&arena->mapped, GM_INDEX_MAPPED, block, slot);
    }
}

/* Files a free block anew after it grew. A block whose class stays the same keeps its
 * place: most changes touch no list. */
static inline void
gm_arena_reindex(gm_arena *arena, gm_block *block)
{
    if (block != arena->loose) {
        gm_arena_reindex_mapped(arena, block);
    }
    if (block->partial) {
        gm_arena_reindex_sparse(arena, block);
    }
}

/* The same after it was cut: if it must move it becomes the loose block. */
static inline void
gm_arena_loosen(gm_arena *arena, gm_block *block)
{
    if (block == arena->loose) {
        if (block->mapped_prefix == 0) {
            arena->loose = NULL;
        }
    }
    else if (block->mapped_slot != gm_block_mapped_class(block)) {
        gm_free_index_remove(&arena->mapped, GM_INDEX_MAPPED, block);
        gm_arena_file_loose(arena);
        arena->loose = block->mapped_prefix != 0 ? block : NULL;
    }
    if (block->partial) {
        gm_arena_reindex_sparse(arena, block);
    }
}

static inline void
gm_arena_index(gm_arena *arena, gm_block *block)
{
    block->mapped_slot = GM_INDEX_NONE;
    if (block->partial) {
        block->sparse_slot = GM_INDEX_NONE;
    }
    gm_arena_reindex(arena, block);
    arena->free_blocks += gm_arena_has_memory(arena, block);
}

static inline void
gm_arena_unindex(gm_arena *arena, gm_block *block)
{
    if (block->mapped_slot != GM_INDEX_NONE) {
        gm_free_index_remove(&arena->mapped, GM_INDEX_MAPPED, block);
    }
    else if (block == arena->loose) {
        arena->loose = NULL;
    }
    if (block->partial) {
        gm_free_index_remove(&arena->sparse, GM_INDEX_SPARSE, block);
    }
    arena->free_blocks -= gm_arena_has_memory(arena, block);
}

#endif
