/* arena_pages.c - pages come under a free block and leave it. */
#include "base/bits.h"
#include "heap/arena_index.h"

void
gm_arena_extend_prefix(const gm_arena *arena, gm_block *block)
{
    uint64_t start = gm_block_start(block);
    if (block->unmapped == 0) {
        block->mapped_prefix = block->size;
        return;
    }
    size_t slot = gm_arena_slot(arena, block->chunk, start + block->mapped_prefix);
    while (gm_chunk_is_mapped(block->chunk, slot)) {
        slot++;
    }
    uint64_t end = gm_arena_slot_address(arena, block->chunk, slot);
    block->mapped_prefix = end > start ? (size_t)(end - start) : 0;
}

void
gm_arena_commit_pages(gm_arena *arena, gm_block *block, size_t first_slot, size_t count)
{
    gm_chunk *chunk = block->chunk;
    size_t end = first_slot + count;
    chunk->touched_slots = end > chunk->touched_slots ? end : chunk->touched_slots;
    gm_arena_unindex(arena, block);
    for (size_t slot = first_slot; slot < end; slot++) {
        if (chunk->slots[slot].state == GM_SLOT_FREE_VA) {
            chunk->slots[slot].state = GM_SLOT_MAPPED;
            chunk->mapped_slots++;
            arena->mapped_bytes += arena->page_size;
            gm_block_set_unmapped(block, block->unmapped - 1);
        }
    }
    gm_arena_extend_prefix(arena, block);
    gm_arena_index(arena, block);
}

size_t
gm_arena_inner_slots(const gm_arena *arena, const gm_block *block, size_t *first_slot)
{
    const gm_chunk *chunk = block->chunk;
    uint64_t low = gm_align_up_unchecked(gm_block_start(block), arena->page_size);
    uint64_t high = gm_align_down(gm_block_end(block), arena->page_size);
    if (high <= low) {
        return 0;
    }
    *first_slot = gm_arena_slot(arena, chunk, low);
    return (size_t)(high - low) / arena->page_size;
}

void
gm_arena_remove_pages(gm_arena *arena, gm_block *block, size_t first_slot, size_t count,
                      gm_slot_state left_as)
{
    gm_chunk *chunk = block->chunk;
    gm_arena_unindex(arena, block);
    for (size_t slot = first_slot; slot < first_slot + count; slot++) {
        if (gm_chunk_is_mapped(chunk, slot)) {
            chunk->slots[slot].state = left_as;
            if (left_as == GM_SLOT_FREE_VA) {
                chunk->slots[slot].frame = NULL;
            }
            chunk->zombie_slots += left_as == GM_SLOT_ZOMBIE;
            chunk->mapped_slots--;
            arena->mapped_bytes -= arena->page_size;
            gm_block_set_unmapped(block, block->unmapped + 1);
        }
    }
    size_t below = (size_t)(gm_arena_slot_address(arena, chunk, first_slot) -
                            gm_block_start(block));
    if (block->mapped_prefix > below) {
        block->mapped_prefix = below;
    }
    gm_arena_index(arena, block);
}

void
gm_arena_revive_pages(gm_arena *arena, gm_block *block, size_t first_slot, size_t count)
{
    gm_chunk *chunk = block->chunk;
    gm_arena_unindex(arena, block);
    for (size_t slot = first_slot; slot < first_slot + count; slot++) {
        GM_ASSERT(chunk->slots[slot].state == GM_SLOT_ZOMBIE);
        chunk->slots[slot].state = GM_SLOT_MAPPED;
        chunk->zombie_slots--;
        chunk->mapped_slots++;
        arena->mapped_bytes += arena->page_size;
        gm_block_set_unmapped(block, block->unmapped - 1);
    }
    gm_arena_extend_prefix(arena, block);
    gm_arena_index(arena, block);
}

void
gm_arena_bury_pages(gm_chunk *chunk, size_t first_slot, size_t count)
{
    for (size_t slot = first_slot; slot < first_slot + count; slot++) {
        GM_ASSERT(chunk->slots[slot].state == GM_SLOT_ZOMBIE);
        chunk->slots[slot].state = GM_SLOT_FREE_VA;
        chunk->slots[slot].frame = NULL;
    }
    chunk->zombie_slots -= count;
}

gm_block *
gm_arena_next_cached(gm_arena *arena, gm_block *block)
{
    size_t least = arena->page_size;
    if (block == NULL) {
        gm_arena_file_loose(arena);
    }
    if (block == NULL || block->mapped_prefix >= least) {
        block = gm_free_index_next(&arena->mapped, least, block);
        if (block != NULL) {
            return block;
        }
    }
    /* Those whose memory does not begin at their start. */
    do {
        block = gm_free_index_next(&arena->sparse, least, block);
    } while (block != NULL &&
             (block->mapped_prefix >= least || !gm_arena_has_memory(arena, block)));
    return block;
}

void
gm_arena_measure_chunks(const gm_arena *arena, size_t *zombie_bytes,
                        size_t *touched_bytes)
{
    size_t zombies = 0, touched = 0;
    for (const gm_list *link = arena->chunks.next; link != &arena->chunks;
         link = link->next) {
        const gm_chunk *chunk =
            (const gm_chunk *)(const void *)((const char *)link -
                                             offsetof(gm_chunk, link));
        zombies += chunk->zombie_slots;
        touched += chunk->touched_slots;
    }
    *zombie_bytes = zombies * arena->page_size;
    *touched_bytes = touched * arena->page_size;
}
