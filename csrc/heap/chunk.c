/* chunk.c - see chunk.h. */
#include "heap/chunk.h"

#include <stdlib.h>
#include <string.h>

#include "base/mutex.h"
#include "base/process.h"

#define SMALL_START_SHIFT 9u
#define LARGE_START_SHIFT 18u

/* Retired chunks of the process; they keep their start tables. */
static gm_mutex retired_lock = {.rank = GM_RANK_ADDRESS_MAP};
static gm_chunk *retired_chunks;

/* The list may be half changed; what it holds is leaked. */
static void
forget_parent(void)
{
    gm_mutex_init(&retired_lock, GM_RANK_ADDRESS_MAP);
    retired_chunks = NULL;
}

GM_IN_FORKED_CHILD(forget_parent);

/* The smallest retired chunk whose start table is long enough but not eight times too
 * long, or any retired chunk without a table. */
static gm_chunk *
take_retired(size_t starts)
{
    gm_chunk **best = NULL;
    gm_mutex_lock(&retired_lock);
    for (gm_chunk **link = &retired_chunks; *link != NULL;
         link = &(*link)->next_retired) {
        size_t capacity = (*link)->start_capacity;
        if (capacity >= starts && capacity / 8 <= starts &&
            (best == NULL || capacity < (*best)->start_capacity)) {
            best = link;
        }
    }
    gm_chunk *chunk = NULL;
    if (best != NULL) {
        chunk = *best;
        *best = chunk->next_retired;
    }
    gm_mutex_unlock(&retired_lock);
    return chunk;
}

static gm_chunk *
make_chunk(size_t starts)
{
    gm_chunk *chunk = calloc(1, sizeof(*chunk));
    if (chunk == NULL) {
        return NULL;
    }
    _Atomic(gm_block *) *table = calloc(starts, sizeof(*table));
    if (table == NULL) {
        free(chunk);
        return NULL;
    }
    atomic_store_explicit(&chunk->starts, table, memory_order_release);
    chunk->start_capacity = starts;
    return chunk;
}

gm_status
gm_chunk_create(uint64_t base, size_t size, size_t page_size, bool small,
                gm_chunk **out)
{
    unsigned shift = small ? SMALL_START_SHIFT : LARGE_START_SHIFT;
    size_t starts = ((size - 1) >> shift) + 1;
    gm_slot *slots = NULL;
    size_t slot_count = page_size == 0 ? 0 : size / page_size;
    if (slot_count != 0) {
        slots = calloc(slot_count, sizeof(*slots));
        if (slots == NULL) {
            return GM_NO_HOST_MEMORY;
        }
    }
    gm_chunk *chunk = take_retired(starts);
    if (chunk == NULL) {
        chunk = make_chunk(starts);
    }
    if (chunk == NULL) {
        free(slots);
        return GM_NO_HOST_MEMORY;
    }
    gm_list_init(&chunk->link);
    chunk->base = base;
    chunk->size = size;
    chunk->paged = page_size != 0;
    chunk->slots = slots;
    chunk->slot_count = slot_count;
    chunk->start_shift = shift;
    atomic_store_explicit(&chunk->start_count, starts, memory_order_release);
    *out = chunk;
    return GM_OK;
}

/* Entries of blocks that are no more. Pages of the table that were never written stay
 * so. */
static void
clear_starts(gm_chunk *chunk)
{
    size_t count = atomic_load_explicit(&chunk->start_count, memory_order_relaxed);
    _Atomic(gm_block *) *table =
        atomic_load_explicit(&chunk->starts, memory_order_relaxed);
    for (size_t i = 0; i < count; i++) {
        if (atomic_load_explicit(&table[i], memory_order_relaxed) != NULL) {
            atomic_store_explicit(&table[i], NULL, memory_order_relaxed);
        }
    }
}

void
gm_chunk_retire(gm_chunk *chunk)
{
    clear_starts(chunk);
    atomic_store_explicit(&chunk->start_count, 0, memory_order_release);
    free(chunk->slots);
    chunk->slots = NULL;
    chunk->slot_count = 0;
    chunk->mapped_slots = 0;
    chunk->zombie_slots = 0;
    chunk->touched_slots = 0;
    chunk->first = NULL;
    gm_mutex_lock(&retired_lock);
    chunk->next_retired = retired_chunks;
    retired_chunks = chunk;
    gm_mutex_unlock(&retired_lock);
}

gm_block *
gm_chunk_block_at(gm_chunk *chunk, uint64_t address)
{
    size_t index = (size_t)(address - chunk->base) >> chunk->start_shift;
    if (address < chunk->base ||
        index >= atomic_load_explicit(&chunk->start_count, memory_order_acquire)) {
        return NULL;
    }
    _Atomic(gm_block *) *table =
        atomic_load_explicit(&chunk->starts, memory_order_acquire);
    gm_block *block = atomic_load_explicit(&table[index], memory_order_acquire);
    if (block == NULL || gm_block_start(block) != address ||
        gm_block_state_of(block) != GM_HEAP_USED) {
        return NULL;
    }
    return block;
}
