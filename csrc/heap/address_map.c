/* address_map.c - see address_map.h. */
#include "heap/address_map.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/mutex.h"
#include "base/process.h"

#define ADDRESS_BITS 48u
#define LEAF_BITS 13u
#define ROOT_BITS (ADDRESS_BITS - GM_MAP_STEP_BITS - LEAF_BITS)
#define LEAF_SIZE ((size_t)1 << LEAF_BITS)
#define ROOT_SIZE ((size_t)1 << ROOT_BITS)

typedef _Atomic(gm_chunk *) map_entry;

static _Atomic(map_entry *) root[ROOT_SIZE];

/* Static initialisation: free, with its rank. */
static gm_mutex map_lock = {.rank = GM_RANK_ADDRESS_MAP};

/* The chunks belong to the parent. Only entries in use are written: writing copies a page
 * of the child. */
static void
forget_parent(void)
{
    gm_mutex_init(&map_lock, GM_RANK_ADDRESS_MAP);
    for (size_t i = 0; i < ROOT_SIZE; i++) {
        map_entry *leaf = atomic_load_explicit(&root[i], memory_order_relaxed);
        for (size_t step = 0; leaf != NULL && step < LEAF_SIZE; step++) {
            if (atomic_load_explicit(&leaf[step], memory_order_relaxed) != NULL) {
                atomic_store_explicit(&leaf[step], NULL, memory_order_relaxed);
            }
        }
    }
}

GM_IN_FORKED_CHILD(forget_parent);

static inline map_entry *
entry_of(uint64_t step)
{
    map_entry *leaf =
        atomic_load_explicit(&root[step >> LEAF_BITS], memory_order_acquire);
    return leaf == NULL ? NULL : &leaf[step & (LEAF_SIZE - 1)];
}

static gm_status
ensure_leaf(size_t index)
{
    if (atomic_load_explicit(&root[index], memory_order_relaxed) != NULL) {
        return GM_OK;
    }
    map_entry *leaf = calloc(LEAF_SIZE, sizeof(*leaf));
    if (leaf == NULL) {
        return GM_NO_HOST_MEMORY;
    }
    atomic_store_explicit(&root[index], leaf, memory_order_release);
    return GM_OK;
}

static gm_status
set_locked(uint64_t first, uint64_t last, gm_chunk *chunk)
{
    for (size_t i = first >> LEAF_BITS; i <= last >> LEAF_BITS; i++) {
        GM_TRY(ensure_leaf(i));
    }
    for (uint64_t step = first; step <= last; step++) {
        if (atomic_load_explicit(entry_of(step), memory_order_relaxed) != NULL) {
            return GM_INVALID;
        }
    }
    for (uint64_t step = first; step <= last; step++) {
        atomic_store_explicit(entry_of(step), chunk, memory_order_release);
    }
    return GM_OK;
}

gm_status
gm_address_map_set(uint64_t base, size_t size, gm_chunk *chunk)
{
    if (size == 0 || base % GM_MAP_STEP != 0 || size % GM_MAP_STEP != 0 ||
        base >= (UINT64_C(1) << ADDRESS_BITS) ||
        size > (UINT64_C(1) << ADDRESS_BITS) - base) {
        return GM_INVALID;
    }
    gm_mutex_lock(&map_lock);
    gm_status status = set_locked(base >> GM_MAP_STEP_BITS,
                                  (base + size - 1) >> GM_MAP_STEP_BITS, chunk);
    gm_mutex_unlock(&map_lock);
    return status;
}

void
gm_address_map_clear(uint64_t base, size_t size)
{
    uint64_t last = (base + size - 1) >> GM_MAP_STEP_BITS;
    gm_mutex_lock(&map_lock);
    for (uint64_t step = base >> GM_MAP_STEP_BITS; step <= last; step++) {
        atomic_store_explicit(entry_of(step), NULL, memory_order_release);
    }
    gm_mutex_unlock(&map_lock);
}

gm_chunk *
gm_address_map_find(uint64_t address)
{
    if (address >= (UINT64_C(1) << ADDRESS_BITS)) {
        return NULL;
    }
    map_entry *entry = entry_of(address >> GM_MAP_STEP_BITS);
    return entry == NULL ? NULL : atomic_load_explicit(entry, memory_order_acquire);
}
