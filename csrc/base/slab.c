#include "base/slab.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SLAB_SIZE ((size_t)64 << 10)

/* The link to the next slab, padded so that nodes of 64 or 128 bytes begin at a cache
 * line. */
#define SLAB_HEADER ((size_t)64)

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
        void *next = gm_slab_link(slab->slabs);
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
        gm_slab_set_link(slab->carve, slab->free_nodes);
        slab->free_nodes = slab->carve;
        slab->carve += slab->node_size;
    }
}

static inline size_t
nodes_per_slab(const gm_slab *slab)
{
    return (SLAB_SIZE - SLAB_HEADER) / slab->node_size;
}

static gm_status
add_slab(gm_slab *slab)
{
    size_t nodes = nodes_per_slab(slab);
    char *fresh = aligned_alloc(SLAB_HEADER, SLAB_SIZE);
    if (fresh == NULL) {
        return GM_NO_HOST_MEMORY;
    }
    memset(fresh, 0, SLAB_SIZE);
    retire_carve(slab);
    gm_slab_set_link(fresh, slab->slabs);
    slab->slabs = fresh;
    slab->slab_count++;
    slab->carve = fresh + SLAB_HEADER;
    slab->carve_end = slab->carve + nodes * slab->node_size;
    slab->available += nodes;
    return GM_OK;
}

size_t
gm_slab_live(const gm_slab *slab)
{
    return slab->slab_count * nodes_per_slab(slab) - slab->available;
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
