/* block.h - one piece of an arena's addresses, free or not.
 *
 * Blocks of a chunk form a doubly linked list in the order of their addresses, without
 * gaps: block->address + block->size == block->next->address. A block's node lies
 * outside the managed memory, in the lane's slab; nodes are type-stable (base/slab.h).
 *
 *     |  USED  | FREE (mapped | unmapped ...) |  USED  | FREE |
 *                <- mapped_prefix ->
 *
 * Invariants (walked by gm_arena_check):
 *   no two neighbours are both FREE
 *   USED, PENDING: every page under the block is MAPPED
 *   FREE: unmapped      = number of slots under the block that are not MAPPED
 *         mapped_prefix = bytes from address to the first such slot, or size
 *         partial       = unmapped > 0
 *         in the index `mapped`  exactly when mapped_prefix > 0 and it is not loose
 *         in the index `sparse`  exactly when partial
 *
 * Thread-safety: the lane's lock guards all fields, except that `state` and `address`
 * may be read without it to validate an address.
 */
#ifndef GM_HEAP_BLOCK_H
#define GM_HEAP_BLOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/deferred.h"
#include "base/list.h"

/* Bytes; every address and size is a multiple. */
#define GM_HEAP_GRANULE ((size_t)512)

typedef struct gm_chunk gm_chunk;

/* Values of gm_block.state. */
enum {
    GM_HEAP_DEAD = 0, /* the node is on the slab's free list */
    GM_HEAP_FREE = 1,
    GM_HEAP_USED = 2,
    GM_HEAP_FREEING = 3, /* on the lane's deferred list */
    GM_HEAP_PENDING = 4, /* freed; events of recorded streams are not done */
};

typedef struct gm_block gm_block;

/* Links of a free block in one free index. */
typedef struct gm_index_link {
    gm_block *next;
    gm_block *prev;
} gm_index_link;

/* The first 64 bytes, one cache line, are all that a search and a merge read. */
struct gm_block {
    gm_block *prev; /* neighbour below, NULL at the chunk's start. First word: the
                       slab overwrites it in dead nodes */
    gm_block *next; /* neighbour above, NULL at the chunk's end */
    _Atomic uint64_t address;
    size_t size;
    union {
        struct { /* FREE */
            size_t mapped_prefix;
            gm_index_link mapped;
        };
        struct { /* USED, FREEING, PENDING */
            size_t requested;
            gm_list use_list; /* of pool/pending.c's gm_use; a list if uses > 0 */
        };
    };
    uint32_t mapped_slot; /* FREE: which list of the index; GM_INDEX_NONE: none */
    _Atomic uint8_t state;
    bool by_address; /* freed by address, not by handle */
    bool partial;    /* FREE: some page under it is missing */
    gm_chunk *chunk;
    uint32_t uses;     /* recorded streams (USED) or events awaited (PENDING) */
    uint32_t unmapped; /* FREE */
    union {
        struct {               /* FREE */
            uint64_t freed_ns; /* the device's clock; of merged blocks the latest */
            uint64_t freed_at; /* the lane's count of frees; of merged ones as well */
            gm_index_link sparse; /* if partial */
            uint32_t sparse_slot; /* if partial */
        };
        struct { /* USED, FREEING, PENDING */
            uint64_t context;
            gm_deferred_node deferred;
        };
    };
};

_Static_assert(offsetof(gm_block, chunk) == 64, "the searched part is one cache line");

static inline uint64_t
gm_block_start(const gm_block *block)
{
    return atomic_load_explicit(&block->address, memory_order_relaxed);
}

static inline uint64_t
gm_block_end(const gm_block *block)
{
    return gm_block_start(block) + block->size;
}

static inline uint8_t
gm_block_state_of(const gm_block *block)
{
    return atomic_load_explicit(&block->state, memory_order_relaxed);
}

static inline void
gm_block_set_state(gm_block *block, uint8_t state)
{
    atomic_store_explicit(&block->state, state, memory_order_relaxed);
}

static inline bool
gm_block_is_free(const gm_block *block)
{
    return block != NULL && gm_block_state_of(block) == GM_HEAP_FREE;
}

#endif
