/* free_index.c - see free_index.h. */
#include "heap/free_index.h"

#include <stdlib.h>

#include "base/assert.h"
#include "base/bits.h"

/* How many blocks of one class are compared before the best so far is taken. A class
 * is 1.6 % wide, so a longer look gains little; a shorter one costs exact fits. */
#define SCAN_LIMIT 6

/* ---- accessors ------------------------------------------------------------- */

static inline gm_index_link *
link_of(gm_index_kind kind, gm_block *block)
{
    return kind == GM_INDEX_MAPPED ? &block->mapped : &block->sparse;
}

static inline const gm_index_link *
const_link_of(gm_index_kind kind, const gm_block *block)
{
    return kind == GM_INDEX_MAPPED ? &block->mapped : &block->sparse;
}

static inline uint32_t *
slot_of(gm_index_kind kind, gm_block *block)
{
    return kind == GM_INDEX_MAPPED ? &block->mapped_slot : &block->sparse_slot;
}

static inline uint32_t
slot_in(gm_index_kind kind, const gm_block *block)
{
    return kind == GM_INDEX_MAPPED ? block->mapped_slot : block->sparse_slot;
}

/* The first non-empty class >= `from`, or GM_INDEX_NONE. */
static uint32_t
next_class(const gm_free_index *index, uint32_t from)
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

/* ---- verbs ------------------------------------------------------------------- */

gm_status
gm_free_index_init(gm_free_index *index, gm_index_kind kind)
{
    gm_block **heads = calloc((size_t)GM_INDEX_LEVELS * GM_INDEX_STEPS, sizeof(*heads));
    if (heads == NULL) {
        return GM_NO_HOST_MEMORY;
    }
    *index = (gm_free_index){.kind = kind, .heads = heads};
    return GM_OK;
}

void
gm_free_index_destroy(gm_free_index *index)
{
    free(index->heads);
    index->heads = NULL;
}

void
gm_free_index_insert(gm_free_index *index, gm_block *block, uint32_t slot)
{
    gm_index_link *link = link_of(index->kind, block);
    GM_ASSERT(slot < GM_INDEX_LEVELS * GM_INDEX_STEPS);
    GM_ASSERT(slot == gm_free_index_class(gm_free_index_key(index, block)));
    gm_block *head = index->heads[slot];
    *slot_of(index->kind, block) = slot;
    link->prev = NULL;
    link->next = head;
    if (head != NULL) {
        link_of(index->kind, head)->prev = block;
    }
    index->heads[slot] = block;
    uint32_t level = slot / GM_INDEX_STEPS;
    index->steps[level] |= UINT64_C(1) << (slot % GM_INDEX_STEPS);
    index->levels |= UINT64_C(1) << level;
    index->count++;
}

void
gm_free_index_remove(gm_free_index *index, gm_block *block)
{
    gm_index_link *link = link_of(index->kind, block);
    uint32_t slot = *slot_of(index->kind, block);
    GM_ASSERT(slot != GM_INDEX_NONE);
    if (link->next != NULL) {
        link_of(index->kind, link->next)->prev = link->prev;
    }
    if (link->prev != NULL) {
        link_of(index->kind, link->prev)->next = link->next;
    }
    else {
        index->heads[slot] = link->next;
        if (link->next == NULL) {
            uint32_t level = slot / GM_INDEX_STEPS;
            index->steps[level] &= ~(UINT64_C(1) << (slot % GM_INDEX_STEPS));
            if (index->steps[level] == 0) {
                index->levels &= ~(UINT64_C(1) << level);
            }
        }
    }
    *slot_of(index->kind, block) = GM_INDEX_NONE;
    index->count--;
}

/* The smallest block of one list with key >= size among the first `limit`. */
static gm_block *
best_of_list(const gm_free_index *index, uint32_t slot, size_t size, size_t limit)
{
    gm_block *best = NULL;
    size_t best_key = SIZE_MAX;
    gm_block *block = index->heads[slot];
    for (size_t seen = 0; block != NULL && seen < limit; seen++) {
        size_t key = gm_free_index_key(index, block);
        if (key >= size &&
            (key < best_key ||
             (key == best_key && gm_block_start(block) < gm_block_start(best)))) {
            best = block;
            best_key = key;
        }
        block = const_link_of(index->kind, block)->next;
    }
    return best;
}

gm_block *
gm_free_index_find(const gm_free_index *index, size_t size, bool exhaustive)
{
    uint32_t own = gm_free_index_class(size);
    uint32_t slot = next_class(index, own);
    if (slot == own) {
        gm_block *block =
            best_of_list(index, own, size, exhaustive ? SIZE_MAX : SCAN_LIMIT);
        if (block != NULL) {
            return block;
        }
        slot = next_class(index, own + 1);
    }
    if (slot == GM_INDEX_NONE) {
        return NULL;
    }
    return best_of_list(index, slot, size, SCAN_LIMIT);
}

size_t
gm_free_index_largest(const gm_free_index *index)
{
    if (index->levels == 0) {
        return 0;
    }
    uint32_t level = gm_highest_bit(index->levels);
    uint32_t slot = level * GM_INDEX_STEPS + gm_highest_bit(index->steps[level]);
    size_t largest = 0;
    for (const gm_block *block = index->heads[slot]; block != NULL;
         block = const_link_of(index->kind, block)->next) {
        size_t key = gm_free_index_key(index, block);
        largest = key > largest ? key : largest;
    }
    return largest;
}

gm_block *
gm_free_index_next(const gm_free_index *index, size_t size, gm_block *block)
{
    uint32_t from = gm_free_index_class(size);
    if (block != NULL) {
        const gm_index_link *link = const_link_of(index->kind, block);
        if (link->next != NULL) {
            return link->next;
        }
        from = slot_in(index->kind, block) + 1;
    }
    uint32_t slot = next_class(index, from);
    return slot == GM_INDEX_NONE ? NULL : index->heads[slot];
}

/* ---- checks -------------------------------------------------------------------- */

static bool
check_list(const gm_free_index *index, uint32_t slot, size_t *count)
{
    const gm_block *prev = NULL;
    for (const gm_block *block = index->heads[slot]; block != NULL;
         block = const_link_of(index->kind, block)->next) {
        const gm_index_link *link = const_link_of(index->kind, block);
        if (link->prev != prev || slot_in(index->kind, block) != slot ||
            !gm_block_is_free(block) ||
            gm_free_index_class(gm_free_index_key(index, block)) != slot) {
            return false;
        }
        prev = block;
        (*count)++;
    }
    return true;
}

bool
gm_free_index_check(const gm_free_index *index)
{
    size_t count = 0;
    for (uint32_t level = 0; level < GM_INDEX_LEVELS; level++) {
        bool level_bit = (index->levels >> level) & 1;
        if (level_bit != (index->steps[level] != 0)) {
            return false;
        }
        for (uint32_t step = 0; step < GM_INDEX_STEPS; step++) {
            uint32_t slot = level * GM_INDEX_STEPS + step;
            bool step_bit = (index->steps[level] >> step) & 1;
            if (step_bit != (index->heads[slot] != NULL) ||
                !check_list(index, slot, &count)) {
                return false;
            }
        }
    }
    return count == index->count;
}
