/* free_index.c - see free_index.h. */
#include "heap/free_index.h"

#include <stdlib.h>

#include "base/assert.h"
#include "base/bits.h"

static inline gm_block *
next_in(gm_index_kind kind, const gm_block *block)
{
    return kind == GM_INDEX_MAPPED ? block->mapped.next : block->sparse.next;
}

static inline uint32_t
slot_in(gm_index_kind kind, const gm_block *block)
{
    return kind == GM_INDEX_MAPPED ? block->mapped_slot : block->sparse_slot;
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
         block = next_in(index->kind, block)) {
        size_t key = gm_index_key(index->kind, block);
        largest = key > largest ? key : largest;
    }
    return largest;
}

gm_block *
gm_free_index_next(const gm_free_index *index, size_t size, gm_block *block)
{
    uint32_t from = gm_free_index_class(size);
    if (block != NULL) {
        gm_block *next = next_in(index->kind, block);
        if (next != NULL) {
            return next;
        }
        from = slot_in(index->kind, block) + 1;
    }
    uint32_t slot = gm_free_index_next_class(index, from);
    return slot == GM_INDEX_NONE ? NULL : index->heads[slot];
}

size_t
gm_free_index_count(const gm_free_index *index)
{
    size_t count = 0;
    for (gm_block *block = gm_free_index_next(index, GM_HEAP_GRANULE, NULL);
         block != NULL; block = gm_free_index_next(index, GM_HEAP_GRANULE, block)) {
        count++;
    }
    return count;
}

/* ---- checks -------------------------------------------------------------------- */

static bool
check_list(const gm_free_index *index, uint32_t slot)
{
    const gm_block *prev = NULL;
    for (const gm_block *block = index->heads[slot]; block != NULL;
         block = next_in(index->kind, block)) {
        const gm_index_link *link =
            index->kind == GM_INDEX_MAPPED ? &block->mapped : &block->sparse;
        if (link->prev != prev || slot_in(index->kind, block) != slot ||
            !gm_block_is_free(block) ||
            gm_free_index_class(gm_index_key(index->kind, block)) != slot) {
            return false;
        }
        prev = block;
    }
    return true;
}

bool
gm_free_index_check(const gm_free_index *index)
{
    for (uint32_t level = 0; level < GM_INDEX_LEVELS; level++) {
        bool level_bit = (index->levels >> level) & 1;
        if (level_bit != (index->steps[level] != 0)) {
            return false;
        }
        for (uint32_t step = 0; step < GM_INDEX_STEPS; step++) {
            uint32_t slot = level * GM_INDEX_STEPS + step;
            bool step_bit = (index->steps[level] >> step) & 1;
            if (step_bit != (index->heads[slot] != NULL) || !check_list(index, slot)) {
                return false;
            }
        }
    }
    return true;
}
