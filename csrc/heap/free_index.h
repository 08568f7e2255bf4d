/* free_index.h - free blocks by size: a good fit in constant time.
 *
 * Two levels of size classes, after TLSF (Masmano et al., "TLSF: a new dynamic memory
 * allocator for real-time systems", 2004): the power of two, and 64 equal steps inside
 * it, so that a class is at most 1.6 % wide. One bit for each non-empty class finds
 * the next one in two bit scans. Sizes are counted in granules of 512 bytes; the
 * first 128 classes hold exactly one size each.
 *
 *     first level   [0..63 granules][64..127][128..255] ...
 *     second level  one granule each  1 each   2 each    ...
 *
 * gm_free_index_find looks at a bounded number of blocks and takes the smallest that
 * fits, among equals the lowest address (the newest in a class of one size). With
 * `exhaustive` it looks at all of the request's own class before it leaves it, so that
 * it fails only when nothing fits.
 *
 * Thread-safety: none; the lane's lock guards it. Memory: one pointer for each class,
 * allocated by gm_free_index_init. Empty classes cost nothing else.
 */
#ifndef GM_HEAP_FREE_INDEX_H
#define GM_HEAP_FREE_INDEX_H

#include "base/assert.h"
#include "base/bits.h"
#include "base/status.h"
#include "heap/block.h"

#define GM_INDEX_STEP_BITS 6u
#define GM_INDEX_STEPS (1u << GM_INDEX_STEP_BITS)
#define GM_INDEX_LEVELS 47u /* sizes up to 2^60 bytes, that one included */
#define GM_INDEX_EXACT (2 * GM_INDEX_STEPS) /* classes below hold one size each */
#define GM_INDEX_NONE UINT32_MAX

/* How many blocks of one class are compared before the best so far is taken. A class
 * is 1.6 % wide, so a longer look gains little; a shorter one costs exact fits. */
#define GM_INDEX_SCAN_LIMIT 6u

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
    unsigned shift = gm_highest_bit(granules | GM_INDEX_STEPS) - GM_INDEX_STEP_BITS;
    return (uint32_t)(((size_t)shift << GM_INDEX_STEP_BITS) + (granules >> shift));
}

/* ---- what an index reads of a block; `kind` is a constant where speed counts ------- */

/* The key of a block in an index: bytes. */
static inline size_t
gm_index_key(gm_index_kind kind, const gm_block *block)
{
    return kind == GM_INDEX_MAPPED ? block->mapped_prefix : block->size;
}

static inline gm_index_link *
gm_index_link_of(gm_index_kind kind, gm_block *block)
{
    return kind == GM_INDEX_MAPPED ? &block->mapped : &block->sparse;
}

static inline uint32_t *
gm_index_slot_of(gm_index_kind kind, gm_block *block)
{
    return kind == GM_INDEX_MAPPED ? &block->mapped_slot : &block->sparse_slot;
}

/* ---- verbs --------------------------------------------------------------------- */

/* Pre: `kind` is the index's; `slot` is gm_free_index_class of the block's key. */
static inline void
gm_free_index_insert(gm_free_index *index, gm_index_kind kind, gm_block *block,
                     uint32_t slot)
{
    gm_block *head = index->heads[slot];
    gm_index_link *link = gm_index_link_of(kind, block);
    GM_ASSERT(kind == index->kind);
    GM_ASSERT(slot == gm_free_index_class(gm_index_key(kind, block)));
    *gm_index_slot_of(kind, block) = slot;
    link->next = head;
    link->prev = NULL;
    index->heads[slot] = block;
    if (head != NULL) {
        gm_index_link_of(kind, head)->prev = block;
        return;
    }
    uint32_t level = slot / GM_INDEX_STEPS;
    index->steps[level] |= UINT64_C(1) << (slot % GM_INDEX_STEPS);
    index->levels |= UINT64_C(1) << level;
}

/* Pre: the block is in the index, under the key it was inserted with. */
static inline void
gm_free_index_remove(gm_free_index *index, gm_index_kind kind, gm_block *block)
{
    const gm_index_link *link = gm_index_link_of(kind, block);
    uint32_t slot = *gm_index_slot_of(kind, block);
    gm_block *next = link->next;
    gm_block *prev = link->prev;
    GM_ASSERT(kind == index->kind && slot != GM_INDEX_NONE);
    *gm_index_slot_of(kind, block) = GM_INDEX_NONE;
    if (next != NULL) {
        gm_index_link_of(kind, next)->prev = prev;
    }
    if (prev != NULL) {
        gm_index_link_of(kind, prev)->next = next;
        return;
    }
    index->heads[slot] = next;
    if (next == NULL) {
        uint32_t level = slot / GM_INDEX_STEPS;
        index->steps[level] &= ~(UINT64_C(1) << (slot % GM_INDEX_STEPS));
        if (index->steps[level] == 0) {
            index->levels &= ~(UINT64_C(1) << level);
        }
    }
}

/* The first non-empty class >= `from`, or GM_INDEX_NONE. */
static inline uint32_t
gm_free_index_next_class(const gm_free_index *index, uint32_t from)
{
    uint32_t level = from / GM_INDEX_STEPS;
    if (level >= GM_INDEX_LEVELS) {
        return GM_INDEX_NONE;
    }
    uint64_t steps = index->steps[level] & (UINT64_MAX << (from % GM_INDEX_STEPS));
    if (steps == 0) {
        uint64_t levels =
            level + 1 < 64 ? index->levels & (UINT64_MAX << (level + 1)) : 0;
        if (levels == 0) {
            return GM_INDEX_NONE;
        }
        level = gm_lowest_bit(levels);
        steps = index->steps[level];
    }
    return level * GM_INDEX_STEPS + gm_lowest_bit(steps);
}

/* The smallest of the first `limit` blocks of one class with mapped_prefix >= size, among
 * equals the lowest address. The blocks of an exact class are all alike: the newest. */
static inline gm_block *
gm_free_index_best_of(const gm_free_index *index, uint32_t slot, size_t size,
                      size_t limit)
{
    gm_block *block = index->heads[slot];
    if (slot < GM_INDEX_EXACT) {
        return block;
    }
    gm_block *best = NULL;
    size_t best_key = SIZE_MAX;
    for (size_t seen = 0; block != NULL && seen < limit; seen++) {
        size_t key = block->mapped_prefix;
        if (key >= size &&
            (key < best_key ||
             (key == best_key && gm_block_start(block) < gm_block_start(best)))) {
            best = block;
            best_key = key;
        }
        block = block->mapped.next;
    }
    return best;
}

/* The best block of an index of mapped prefixes with key >= size, or NULL. */
static inline gm_block *
gm_free_index_find(const gm_free_index *index, size_t size, bool exhaustive)
{
    GM_ASSERT(index->kind == GM_INDEX_MAPPED);
    uint32_t own = gm_free_index_class(size);
    gm_block *block = gm_free_index_best_of(
        index, own, size, exhaustive ? SIZE_MAX : GM_INDEX_SCAN_LIMIT);
    if (block != NULL) {
        return block;
    }
    uint32_t slot = gm_free_index_next_class(index, own + 1);
    return slot == GM_INDEX_NONE
               ? NULL
               : gm_free_index_best_of(index, slot, size, GM_INDEX_SCAN_LIMIT);
}

/* The largest key in the index, at class precision for the class and exact inside it;
 * 0 when empty. Cost: the length of one list. */
size_t
gm_free_index_largest(const gm_free_index *index);

/* Calls of `next` walk all blocks of classes that may hold `size` or more, smallest
 * class first. Start with NULL; NULL ends. */
gm_block *
gm_free_index_next(const gm_free_index *index, size_t size, gm_block *block);

/* The number of blocks in the index. Cost: O(that). */
size_t
gm_free_index_count(const gm_free_index *index);

/* Re-derives bitmaps, links and classes. False when something is wrong. */
bool
gm_free_index_check(const gm_free_index *index);

#endif
