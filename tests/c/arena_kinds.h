/* arena_kinds.h - an arena of pages without any device: pages are numbers here.
 */
#ifndef GM_TESTS_ARENA_KINDS_H
#define GM_TESTS_ARENA_KINDS_H

#include "base/bits.h"
#include "check.h"
#include "heap/arena.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define PAGE (64 * KIB)
#define HALF (PAGE / 2)
#define CHUNK (4 * MIB)
#define SLOTS (CHUNK / PAGE)
#define BASE ((uint64_t)64 << 30)

typedef struct fixture {
    gm_slab nodes;
    gm_arena arena;
    gm_chunk *chunk; /* the first */
    uint64_t next_base;
    uint64_t next_page;
    uint64_t now;
} fixture;

static inline void
check_sound(const fixture *f)
{
    const char *text = gm_arena_check(&f->arena);
    if (text != NULL) {
        check_fail(__FILE__, __LINE__, text);
    }
}

static inline gm_chunk *
add_chunk(fixture *f)
{
    gm_chunk *chunk;
    CHECK_OK(gm_chunk_create(f->next_base, CHUNK, PAGE, false, &chunk));
    CHECK_OK(gm_address_map_set(f->next_base, CHUNK, chunk));
    CHECK_OK(gm_slab_reserve(&f->nodes, 1));
    gm_arena_add_chunk(&f->arena, chunk);
    f->next_base += 2 * CHUNK;
    return chunk;
}

static inline void
open_arena(fixture *f)
{
    *f = (fixture){.next_base = BASE, .next_page = 1};
    gm_slab_init(&f->nodes, gm_align_up_unchecked(sizeof(gm_block), 64));
    CHECK_OK(gm_arena_init(&f->arena, false, PAGE, SIZE_MAX, &f->nodes, f));
    f->chunk = add_chunk(f);
    check_sound(f);
}

static inline void
close_arena(fixture *f)
{
    check_sound(f);
    gm_arena_destroy(&f->arena);
    gm_slab_destroy(&f->nodes);
}

/* Brings in the pages that a place misses and cuts the block out. */
static inline gm_block *
settle(fixture *f, const gm_placement *found)
{
    CHECK_OK(gm_slab_reserve(&f->nodes, 2));
    if (found->missing != 0) {
        gm_slot *slots = found->block->chunk->slots + found->first_slot;
        for (size_t i = 0; i < found->slot_count; i++) {
            if (slots[i].state == GM_SLOT_FREE_VA) {
                slots[i].frame = (gm_frame *)(uintptr_t)f->next_page++; /* opaque */
            }
        }
        gm_arena_commit_pages(&f->arena, found->block, found->first_slot,
                              found->slot_count);
        check_sound(f);
    }
    gm_block *block = gm_arena_place(&f->arena, found);
    CHECK_EQ(block->size, found->size);
    check_sound(f);
    return block;
}

/* By the usual rule: in a new chunk one block lies above the other. */
static inline gm_block *
place(fixture *f, size_t size)
{
    gm_placement found;
    CHECK(gm_arena_find(&f->arena, size, GM_HEAP_GRANULE, &found));
    return settle(f, &found);
}

static inline void
release(fixture *f, gm_block *block)
{
    f->now++;
    gm_arena_release(&f->arena, block, (gm_moment){.ns = f->now, .frees = f->now});
    check_sound(f);
}

/* The pages of slots under a free block leave. */
static inline void
lose(fixture *f, gm_block *block, size_t first, size_t count, gm_slot_state left_as)
{
    gm_arena_remove_pages(&f->arena, block, first, count, left_as);
    check_sound(f);
}

/* A chunk of blocks one above the other, sizes[0] first. Those with a mark are free. */
static inline void
lay(fixture *f, const size_t *sizes, const bool *free, size_t count)
{
    gm_block *blocks[16];
    CHECK(count <= 16);
    uint64_t address = BASE;
    for (size_t i = 0; i < count; i++) {
        blocks[i] = place(f, sizes[i]);
        CHECK_EQ(gm_block_start(blocks[i]), address);
        address += sizes[i];
    }
    for (size_t i = 0; i < count; i++) {
        if (free[i]) {
            release(f, blocks[i]);
        }
    }
}

#endif
