/* slab.h - a source of equal nodes whose free never calls malloc.
 *
 * Nodes come from slabs of 64 KiB, and of 2 MiB once there are many: those ask for huge
 * pages, because a walk over a million nodes misses the TLB more than the cache. A freed
 * node goes onto a free list and is handed out again first; slabs are given back only by
 * gm_slab_destroy, so a pointer to a node stays readable for the slab's life (type-stable
 * memory), which lock-free readers rely on. gm_slab_reserve secures nodes before a
 * structure changes, so that the commit that follows cannot fail.
 *
 * Thread-safety: none; the owner's lock guards it. Ownership: the slab owns every
 * node. Cost: O(1), amortised for growth. Fresh nodes are zeroed, reused ones keep
 * all but their first sizeof(void *) bytes.
 */
#ifndef GM_BASE_SLAB_H
#define GM_BASE_SLAB_H

#include <stddef.h>
#include <string.h>

#include "base/assert.h"
#include "base/status.h"

typedef struct gm_slab {
    size_t node_size; /* bytes, a multiple of 16 */
    size_t available; /* nodes on the free list plus those not carved yet */
    size_t total;     /* nodes of all slabs */
    size_t bytes;     /* taken from malloc */
    void *free_nodes; /* linked through the first word of each node */
    char *carve;      /* next node that was never handed out */
    char *carve_end;
    void *slabs; /* all slabs, linked through their first word */
} gm_slab;

void
gm_slab_init(gm_slab *slab, size_t node_size);

/* Gives every slab back. Every node dies with it. */
void
gm_slab_destroy(gm_slab *slab);

/* Makes sure that the next `count` allocations succeed. GM_NO_HOST_MEMORY changes
 * nothing. */
GM_NODISCARD gm_status
gm_slab_reserve(gm_slab *slab, size_t count);

/* Nodes handed out. */
size_t
gm_slab_live(const gm_slab *slab);

/* Bytes taken from malloc. */
size_t
gm_slab_bytes(const gm_slab *slab);

/* The first word of a free node is the link to the next one. */
static inline void *
gm_slab_link(const void *node)
{
    void *next;
    memcpy(&next, node, sizeof(next));
    return next;
}

static inline void
gm_slab_set_link(void *node, void *next)
{
    memcpy(node, &next, sizeof(next));
}

/* A node. Pre: gm_slab_reserve secured it. Never NULL. */
static inline void *
gm_slab_take(gm_slab *slab)
{
    void *node = slab->free_nodes;
    GM_VERIFY(slab->available > 0);
    if (node != NULL) {
        slab->free_nodes = gm_slab_link(node);
        gm_slab_set_link(node, NULL); /* a retired node is fresh: all of it is zero */
    }
    else {
        node = slab->carve;
        slab->carve += slab->node_size;
    }
    slab->available--;
    return node;
}

/* Returns a node to its slab. */
static inline void
gm_slab_give(gm_slab *slab, void *node)
{
    gm_slab_set_link(node, slab->free_nodes);
    slab->free_nodes = node;
    slab->available++;
}

#endif
