#include "base/slab.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SMALL_SLAB ((size_t)64 << 10)
#define LARGE_SLAB ((size_t)2 << 20) /* one huge page */

/* The link to the next slab, padded so that nodes of 64 or 128 bytes begin at a cache
 * line. */
#define SLAB_HEADER ((size_t)64)

void
gm_slab_init(gm_slab *slab, size_t node_size)
{
    memset(slab, 0, sizeof(*slab));
    GM_VERIFY(node_size > 0 && node_size <= SMALL_SLAB - SLAB_HEADER);
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

/* A fresh slab of zeros, *size bytes; a large one once as much is in small ones. */
static char *
make_slab(const gm_slab *slab, size_t *size)
{
    *size = slab->bytes < LARGE_SLAB ? SMALL_SLAB : LARGE_SLAB;
    char *fresh = aligned_alloc(*size == LARGE_SLAB ? LARGE_SLAB : SLAB_HEADER, *size);
    if (fresh != NULL) {
        if (*size == LARGE_SLAB) {
            (void)madvise(fresh, *size, MADV_HUGEPAGE); /* without: slower, no more */
        }
        memset(fresh, 0, *size);
    }
    return fresh;
}

static gm_status
add_slab(gm_slab *slab)
{
    size_t size;
    char *fresh = make_slab(slab, &size);
    if (fresh == NULL) {
        return GM_NO_HOST_MEMORY;
    }
    size_t nodes = (size - SLAB_HEADER) / slab->node_size;
    retire_carve(slab);
    gm_slab_set_link(fresh, slab->slabs);
    slab->slabs = fresh;
    slab->carve = fresh + SLAB_HEADER;
    slab->carve_end = slab->carve + nodes * slab->node_size;
    slab->available += nodes;
    slab->total += nodes;
    slab->bytes += size;
    return GM_OK;
}

size_t
gm_slab_live(const gm_slab *slab)
{
    return slab->total - slab->available;
}

size_t
gm_slab_bytes(const gm_slab *slab)
{
    return slab->bytes;
}

gm_status
gm_slab_reserve(gm_slab *slab, size_t count)
{
    while (slab->available < count) {
        GM_TRY(add_slab(slab));
    }
    return GM_OK;
}
