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
    gm_arena_unindex(arena, block);
    for (size_t slot = first_slot; slot < first_slot + count; slot++) {
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
gm_arena_remove_pages(gm_arena *arena, gm_block *block, size_t first_slot, size_t count)
{
    gm_chunk *chunk = block->chunk;
    gm_arena_unindex(arena, block);
    for (size_t slot = first_slot; slot < first_slot + count; slot++) {
        if (gm_chunk_is_mapped(chunk, slot)) {
            chunk->slots[slot].state = GM_SLOT_FREE_VA;
            chunk->slots[slot].page = 0;
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

size_t
gm_arena_zombie_bytes(const gm_arena *arena)
{
    size_t slots = 0;
    for (const gm_list *link = arena->chunks.next; link != &arena->chunks;
         link = link->next) {
        const char *chunk = (const char *)link - offsetof(gm_chunk, link);
        slots += ((const gm_chunk *)(const void *)chunk)->zombie_slots;
    }
    return slots * arena->page_size;
}
