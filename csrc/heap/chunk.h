/* chunk.h - one contiguous range of addresses of an arena, with its page slots.
 *
 * A paged chunk is a reserved range; each slot is the place of one page. A whole chunk
 * is one segment of device memory and has no slots. `starts` finds the block that
 * starts at an address: one entry for each 512 bytes in a small arena, for each 256
 * KiB in a large one, whose live blocks are longer than that and so start at most once
 * in each.
 *
 * Thread-safety: the lane's lock guards everything; gm_chunk_block_at may be called
 * without it (see address_map.h: chunks and their start tables are type-stable).
 * Ownership: a chunk belongs to its arena until gm_chunk_retire.
 */
#ifndef GM_HEAP_CHUNK_H
#define GM_HEAP_CHUNK_H

#include "base/slab.h"
#include "heap/address_map.h"
#include "heap/block.h"

typedef struct gm_arena gm_arena;

/* See Note [Page slots] in pool/pool.h. */
typedef enum gm_slot_state {
    GM_SLOT_FREE_VA = 0, /* no page */
    GM_SLOT_MAPPED = 1,
    GM_SLOT_ZOMBIE = 2, /* mapped, the page already given elsewhere */
} gm_slot_state;

/* A page of the device and what its pool knows of it; opaque here. */
typedef struct gm_frame gm_frame;

typedef struct gm_slot {
    gm_frame
        *frame;     /* NULL: none. Set before the state while a page is brought in; of a
                        zombie the page that is still mapped here */
    uint32_t state; /* gm_slot_state */
    uint32_t reserved;
} gm_slot;

struct gm_chunk {
    gm_list link;    /* in gm_arena.chunks */
    gm_arena *arena; /* borrowed */
    void *owner;     /* the lane, for whoever found the chunk by address; opaque here */
    uint64_t base;
    size_t size;     /* bytes */
    gm_block *first; /* the block at base */
    bool paged;
    size_t slot_count;
    size_t mapped_slots;
    size_t zombie_slots;  /* their addresses can be neither used nor given back */
    size_t touched_slots; /* no slot from here on ever had a page */
    gm_slot *slots;       /* owned; NULL in a whole chunk */
    unsigned start_shift;
    _Atomic size_t start_count;
    _Atomic(_Atomic(gm_block *) *) starts;
    size_t start_capacity; /* entries of the table behind `starts` */
    gm_chunk *next_retired;
};

/* A chunk object with tables for `size` bytes, entered nowhere. page_size 0: whole. */
GM_NODISCARD gm_status
gm_chunk_create(uint64_t base, size_t size, size_t page_size, bool small,
                gm_chunk **out);

/* Empties the chunk and keeps it for the next gm_chunk_create. Pre: not in the address
 * map, in no arena, no live block. */
void
gm_chunk_retire(gm_chunk *chunk);

/* The block that starts at `address` and is USED, or NULL. Lock-free. */
gm_block *
gm_chunk_block_at(gm_chunk *chunk, uint64_t address);

/* Enters a live block. Nobody takes it out: an entry counts only while the block is
 * USED and starts there, and blocks of the chunk's arena are type-stable. */
static inline void
gm_chunk_set_start(gm_chunk *chunk, uint64_t address, gm_block *block)
{
    size_t index = (size_t)(address - chunk->base) >> chunk->start_shift;
    _Atomic(gm_block *) *table =
        atomic_load_explicit(&chunk->starts, memory_order_relaxed);
    atomic_store_explicit(&table[index], block, memory_order_release);
}

#endif
