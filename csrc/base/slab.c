#include "base/slab.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"

#define SLAB_SIZE ((size_t)64 << 10)

/* The link to the next slab, padded so that nodes of 64 or 128 bytes begin at a cache
 * line. */
#define SLAB_HEADER ((size_t)64)

static void *
link_of(const void *node)
{
    void *next;
    memcpy(&next, node, sizeof(next));
    return next;
}

static void
set_link(void *node, void *next)
{
    memcpy(node, &next, sizeof(next));
}

void
gm_slab_init(gm_slab *slab, size_t node_size)
{
    memset(slab, 0, sizeof(*slab));
    GM_VERIFY(node_size > 0 && node_size <= SLAB_SIZE - SLAB_HEADER);
    slab->node_size = (node_size + 15) & ~(size_t)15;
}

void
gm_slab_destroy(gm_slab *slab)
{
    while (slab->slabs != NULL) {
        void *next = link_of(slab->slabs);
        free(slab->slabs);
        slab->slabs = next;
    }
    gm_slab_init(slab, slab->node_size);
}

/* Moves what is left of the current slab to the free list: one slab is carved at a
 * time. Runs only when a reservation crosses the end of a slab. */
static void
retire_carve(gm_slab *slab)
{
    while (slab->carve != slab->carve_end) {
        set_link(slab->carve, slab->free_nodes);
        slab->free_nodes = slab->carve;
        slab->carve += slab->node_size;
    }
}

static gm_status
add_slab(gm_slab *slab)
{
    size_t nodes = (SLAB_SIZE - SLAB_HEADER) / slab->node_size;
    char *fresh = aligned_alloc(SLAB_HEADER, SLAB_SIZE);
    if (fresh == NULL) {
        return GM_NO_HOST_MEMORY;
    }
    memset(fresh, 0, SLAB_SIZE);
    retire_carve(slab);
    set_link(fresh, slab->slabs);
    slab->slabs = fresh;
    slab->slab_count++;
    slab->carve = fresh + SLAB_HEADER;
    slab->carve_end = slab->carve + nodes * slab->node_size;
    slab->available += nodes;
    return GM_OK;
}

size_t
gm_slab_bytes(const gm_slab *slab)
{
    return slab->slab_count * SLAB_SIZE;
}

gm_status
gm_slab_reserve(gm_slab *slab, size_t count)
{
    while (slab->available < count) {
        GM_TRY(add_slab(slab));
    }
    return GM_OK;
}

void *
gm_slab_take(gm_slab *slab)
{
    void *node = slab->free_nodes;
    GM_VERIFY(slab->available > 0);
    if (node != NULL) {
        slab->free_nodes = link_of(node);
        set_link(node, NULL); /* a retired node is fresh: all of it reads as zero */
    }
    else {
        node = slab->carve;
        slab->carve += slab->node_size;
    }
    slab->available--;
    slab->live++;
    return node;
}

void
gm_slab_give(gm_slab *slab, void *node)
{
    GM_ASSERT(slab->live > 0);
    set_link(node, slab->free_nodes);
    slab->free_nodes = node;
    slab->available++;
    slab->live--;
}
