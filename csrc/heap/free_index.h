/* free_index.h - free blocks by size: a good fit in constant time.
 *
 * Two levels of size classes, after TLSF (Masmano et al., "TLSF: a new dynamic memory
 * allocator for real-time systems", 2004): the power of two, and 64 equal steps inside
 * it, so that a class is at most 1.6 % wide. One bit for each non-empty class finds
 * the next one in two bit scans. Sizes are counted in granules of 512 bytes; the
 * first 64 classes hold exactly one size each.
 *
 *     first level   [0..63 granules][64..127][128..255] ...
 *     second level  one granule each  1 each   2 each    ...
 *
 * gm_free_index_find looks at a bounded number of blocks and takes the smallest that
 * fits, among equals the lowest address. With `exhaustive` it looks at all of the
 * request's own class before it leaves it, so that it fails only when nothing fits.
 *
 * Thread-safety: none; the lane's lock guards it. Memory: one pointer for each class,
 * allocated by gm_free_index_init. Empty classes cost nothing else.
 */
#ifndef GM_HEAP_FREE_INDEX_H
#define GM_HEAP_FREE_INDEX_H

#include "base/bits.h"
#include "base/status.h"
#include "heap/block.h"

#define GM_INDEX_STEP_BITS 6u
#define GM_INDEX_STEPS (1u << GM_INDEX_STEP_BITS)
#define GM_INDEX_LEVELS 46u /* sizes up to 2^60 bytes */
#define GM_INDEX_NONE UINT32_MAX

/* Which link of a block an index uses. */
typedef enum gm_index_kind {
    GM_INDEX_MAPPED = 0, /* keyed by mapped_prefix */
    GM_INDEX_SPARSE = 1, /* keyed by size */
} gm_index_kind;

typedef struct gm_free_index {
    gm_index_kind kind;
    uint64_t levels;                 /* bit l: steps[l] != 0 */
    uint64_t steps[GM_INDEX_LEVELS]; /* bit s: heads[l][s] != NULL */
    gm_block **heads;                /* [GM_INDEX_LEVELS * GM_INDEX_STEPS], owned */
    size_t count;                    /* blocks in the index */
} gm_free_index;

GM_NODISCARD gm_status
gm_free_index_init(gm_free_index *index, gm_index_kind kind);

void
gm_free_index_destroy(gm_free_index *index);

/* The class of a size in bytes, rounded down. Pre: size >= GM_HEAP_GRANULE. */
static inline uint32_t
gm_free_index_class(size_t size)
{
    size_t granules = size / GM_HEAP_GRANULE;
    if (granules < GM_INDEX_STEPS) {
        return (uint32_t)granules;
    }
    unsigned shift = gm_highest_bit(granules) - GM_INDEX_STEP_BITS;
    return (uint32_t)(((size_t)shift << GM_INDEX_STEP_BITS) + (granules >> shift));
}

/* The key of a block in an index: bytes. */
static inline size_t
gm_free_index_key(const gm_free_index *index, const gm_block *block)
{
    return index->kind == GM_INDEX_MAPPED ? block->mapped_prefix : block->size;
}

/* Pre: `slot` is gm_free_index_class of the block's key. */
void
gm_free_index_insert(gm_free_index *index, gm_block *block, uint32_t slot);

/* Pre: the block is in the index, under the key it was inserted with. */
void
gm_free_index_remove(gm_free_index *index, gm_block *block);

/* The best block with key >= size, or NULL. */
gm_block *
gm_free_index_find(const gm_free_index *index, size_t size, bool exhaustive);

/* The largest key in the index, at class precision for the class and exact inside it;
 * 0 when empty. Cost: the length of one list. */
size_t
gm_free_index_largest(const gm_free_index *index);

/* Calls of `next` walk all blocks of classes that may hold `size` or more, smallest
 * class first. Start with NULL; NULL ends. */
gm_block *
gm_free_index_next(const gm_free_index *index, size_t size, gm_block *block);

/* Recounts: bitmaps, links, classes. False when something is wrong. */
bool
gm_free_index_check(const gm_free_index *index);

#endif
