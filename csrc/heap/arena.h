/* arena.h - where a block goes: pure bookkeeping over addresses and page slots.
 *
 * An arena is a set of chunks cut into blocks. It knows nothing of devices, streams or
 * time beyond the numbers it is given. Placing a block takes two steps, so that a
 * failure in between changes nothing:
 *
 *     gm_arena_find    chooses a free block and says which pages are missing
 *     (the pool brings the pages in: gm_arena_stage, gm_arena_commit_pages)
 *     gm_arena_place   cuts the block out; cannot fail
 *
 * gm_arena_take is both where no page is missing, which is nearly always.
 *
 * Note [Best fit over addresses]
 * A free block covers addresses, mapped or not. The index `mapped` holds free blocks
 * by the bytes that are usable at their start without a new page; the best fit there
 * costs nothing. Only when it has none, blocks with unmapped pages are looked at, and
 * the one that newly touches the fewest pages wins; the tail of a chunk is such a
 * block, so growth and the filling of holes are one rule.
 *
 * Note [The loose block]
 * A block that was cut is often cut again, or grows back, before another one is looked
 * for. So the free block that was cut last is taken out of `mapped` and kept by itself;
 * it is compared with what the index finds, and filed when another block is cut. (The
 * "designated victim" of Doug Lea's malloc, but best fit still decides.)
 *
 * Thread-safety: none; the lane's lock guards the whole arena.
 * Ownership: the arena owns its chunks and blocks; the slab of nodes is the lane's.
 * Cost: find and release O(1); the rest is stated.
 */
#ifndef GM_HEAP_ARENA_H
#define GM_HEAP_ARENA_H

#include "base/slab.h"
#include "heap/chunk.h"
#include "heap/free_index.h"

/* How much longer than a request an unsplit block may be, with a split limit. Bytes. */
#define GM_UNSPLIT_SLACK ((size_t)20 << 20)

struct gm_arena {
    bool small;            /* the one for small blocks */
    size_t page_size;      /* bytes; 0: whole chunks */
    size_t max_split;      /* bytes; whole chunks only; SIZE_MAX: split all */
    size_t easy_alignment; /* up to this gm_arena_take makes no detour: the granule; 0
                              while blocks are placed tightly */
    size_t tight_left;     /* so many blocks more; SIZE_MAX: all */
    gm_slab *nodes;        /* borrowed from the lane */
    void *owner;           /* the lane, stored in each chunk */
    gm_free_index mapped;
    gm_block *loose; /* Note [The loose block] */
    gm_free_index sparse;
    gm_list chunks;
    size_t chunk_count;
    size_t address_bytes; /* sum of chunk sizes */
    size_t mapped_bytes;  /* mapped slots * page_size, or whole chunks */
    size_t live_bytes;    /* of USED, FREEING and PENDING blocks */
    size_t free_blocks;   /* number of FREE blocks with mapped bytes */
};

/* What gm_arena_find found. */
typedef struct gm_placement {
    gm_block *block;   /* FREE */
    size_t front;      /* bytes that stay free before the new block */
    size_t size;       /* bytes of the new block */
    size_t first_slot; /* page slots under the new block ... */
    size_t slot_count;
    size_t missing; /* ... and how many of them have no page */
} gm_placement;

GM_NODISCARD gm_status
gm_arena_init(gm_arena *arena, bool small, size_t page_size, size_t max_split,
              gm_slab *nodes, void *owner);

/* Chunks that are left (their work never finished) vanish from the address map; their
 * device memory is the caller's to leak. */
void
gm_arena_destroy(gm_arena *arena);

/* Makes the chunk's addresses one free block. Pre: gm_slab_reserve(nodes, 1). A whole
 * chunk counts as mapped. */
void
gm_arena_add_chunk(gm_arena *arena, gm_chunk *chunk);

/* Pre: the chunk is one free block without mapped pages, or a whole free chunk. */
void
gm_arena_remove_chunk(gm_arena *arena, gm_chunk *chunk);

/* True when the chunk is one free block. */
bool
gm_arena_chunk_is_idle(const gm_chunk *chunk);

/* Chooses a place for `size` bytes (a multiple of 512) at `alignment` (a power of two
 * >= 512), if there is one at all. False: none; nothing changes in any case. */
bool
gm_arena_find(gm_arena *arena, size_t size, size_t alignment, gm_placement *out);

/* Which of the places that take equally many pages is best. */
typedef enum gm_tight_rule {
    GM_TIGHT_LOW = 0,  /* the lowest address */
    GM_TIGHT_SNUG = 1, /* the smallest hole if they take none; then the lowest */
    GM_TIGHT_STAY = 2, /* most pages that are there; then the same */
} gm_tight_rule;

/* The same by another rule: the place that takes the fewest pages which no live block
 * touches yet (arena_tight.c). Pre: paged. Cost: the number of free blocks that are long
 * enough. */
bool
gm_arena_find_tight(gm_arena *arena, size_t size, size_t alignment, gm_tight_rule rule,
                    gm_placement *out);

/* The next `blocks` blocks shall be placed by that rule: gm_arena_take serves none. */
static inline void
gm_arena_set_tight(gm_arena *arena, size_t blocks)
{
    arena->easy_alignment = 0;
    arena->tight_left = blocks;
}

static inline bool
gm_arena_is_tight(const gm_arena *arena)
{
    return arena->easy_alignment == 0;
}

/* One of them is about to be placed. */
static inline void
gm_arena_count_tight(gm_arena *arena)
{
    if (arena->tight_left != SIZE_MAX && --arena->tight_left == 0) {
        arena->easy_alignment = GM_HEAP_GRANULE;
    }
}

/* Cuts the block out and returns it USED. Pre: found by gm_arena_find, nothing changed
 * since, no page is missing any more, gm_slab_reserve(nodes, 2). */
gm_block *
gm_arena_place(gm_arena *arena, const gm_placement *placement);

/* The two steps in one where no page is missing: the block, USED, or NULL and nothing
 * changed. Looks at a bounded number of blocks. Pre: gm_slab_reserve(nodes, 2). */
gm_block *
gm_arena_take(gm_arena *arena, size_t size, size_t alignment);

/* When a block became free, by two clocks: the device's in nanoseconds, and the lane's
 * number of frees, which says what its last use stands before. */
typedef struct gm_moment {
    uint64_t ns;
    uint64_t frees;
} gm_moment;

/* Makes a block FREE and merges it with free neighbours. Pre: live. */
void
gm_arena_release(gm_arena *arena, gm_block *block, gm_moment now);

/* Pages have come to [first_slot, first_slot + count) of the chunk, named in
 * slots[].frame: those that were FREE_VA become MAPPED. All lie under one free block,
 * `block`. */
void
gm_arena_commit_pages(gm_arena *arena, gm_block *block, size_t first_slot,
                      size_t count);

/* The whole slots under a free block: their number, the first in *first_slot. */
size_t
gm_arena_inner_slots(const gm_arena *arena, const gm_block *block, size_t *first_slot);

/* The page of each MAPPED slot in [first_slot, first_slot + count) has left: the slots
 * become FREE_VA, or ZOMBIE if the page is still mapped there. All are whole slots under
 * `block`, FREE. */
void
gm_arena_remove_pages(gm_arena *arena, gm_block *block, size_t first_slot, size_t count,
                      gm_slot_state left_as);

/* ZOMBIE slots become MAPPED again: their pages were not given elsewhere after all. As
 * above. */
void
gm_arena_revive_pages(gm_arena *arena, gm_block *block, size_t first_slot,
                      size_t count);

/* ZOMBIE slots of a chunk were unmapped: they become FREE_VA. */
void
gm_arena_bury_pages(gm_chunk *chunk, size_t first_slot, size_t count);

/* The free blocks that may have whole slots with pages, smallest class first; NULL
 * begins, NULL ends. A block that was returned may lose pages only after the next one
 * was asked for. */
gm_block *
gm_arena_next_cached(gm_arena *arena, gm_block *block);

/* The largest block that could be taken, in bytes. Cost: the length of one list. */
size_t
gm_arena_largest(const gm_arena *arena);

/* Bytes of ZOMBIE slots, and of addresses up to the highest of each chunk that ever had a
 * page. Cost: the number of chunks. */
void
gm_arena_measure_chunks(const gm_arena *arena, size_t *zombie_bytes,
                        size_t *touched_bytes);

/* Free mapped bytes. */
static inline size_t
gm_arena_cached_bytes(const gm_arena *arena)
{
    return arena->mapped_bytes - arena->live_bytes;
}

/* Re-derives every invariant. NULL, or one line that names the broken one (static).
 * Cost: O(blocks + slots). */
const char *
gm_arena_check(const gm_arena *arena);

#endif
