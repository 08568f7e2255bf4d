/* capi.c - the exported C functions over the default pools; see include/gpumem.h.
 *
 * Nothing here knows of Python. A function takes a reference on the pool under the
 * table's lock and works without it, so that a pool may be replaced meanwhile.
 */
#include "capi/capi.h"

#include <stdatomic.h>
#include <string.h>

#include "base/mutex.h"
#include "base/process.h"
#include "include/gpumem.h"

static struct {
    gm_mutex lock;
    gm_device_kind kind;
    gm_pool *pools[GM_CAPI_DEVICES];
} table = {
    .lock = {.rank = GM_RANK_REGISTRY},
    .kind = GM_DEVICE_CUDA,
};

/* Requests that found no pool, by device; they show as ooms once there is one. */
static _Atomic uint64_t refused[GM_CAPI_DEVICES];

/* In the child the parent's pools are dead and the lock may be held by a thread that
 * is not there any more. The references are leaked on purpose. */
static void
reset_in_child(void)
{
    gm_mutex_init(&table.lock, GM_RANK_REGISTRY);
    memset(table.pools, 0, sizeof(table.pools));
}

GM_IN_FORKED_CHILD(reset_in_child);

static bool
is_index(int device)
{
    return device >= 0 && device < GM_CAPI_DEVICES;
}

/* A reference on the default pool, or NULL: no such pool, or the process is exiting. */
static gm_pool *
acquire_pool(int device)
{
    if (!is_index(device) || gm_process_is_exiting()) {
        return NULL;
    }
    gm_mutex_lock(&table.lock);
    gm_pool *pool = table.pools[device];
    if (pool != NULL) {
        gm_pool_retain(pool);
    }
    gm_mutex_unlock(&table.lock);
    return pool;
}

/* ---- the table --------------------------------------------------------------------------- */

gm_device_kind
gm_capi_kind(void)
{
    gm_mutex_lock(&table.lock);
    gm_device_kind kind = table.kind;
    gm_mutex_unlock(&table.lock);
    return kind;
}

void
gm_capi_set_kind(gm_device_kind kind)
{
    gm_pool *old[GM_CAPI_DEVICES] = {NULL};
    gm_mutex_lock(&table.lock);
    if (table.kind != kind) {
        memcpy(old, table.pools, sizeof(old));
        memset(table.pools, 0, sizeof(table.pools));
        table.kind = kind;
    }
    gm_mutex_unlock(&table.lock);
    for (int i = 0; i < GM_CAPI_DEVICES; i++) {
        gm_pool_release(old[i]);
    }
}

gm_status
gm_capi_set_pool(int index, gm_pool *pool)
{
    if (!is_index(index)) {
        return GM_INVALID;
    }
    gm_mutex_lock(&table.lock);
    if (pool != NULL && gm_pool_device(pool)->info.kind != table.kind) {
        gm_mutex_unlock(&table.lock);
        return GM_INVALID;
    }
    gm_pool *old = table.pools[index];
    table.pools[index] = pool != NULL ? gm_pool_retain(pool) : NULL;
    gm_mutex_unlock(&table.lock);
    gm_pool_release(old);
    return GM_OK;
}

/* ---- exported ---------------------------------------------------------------------------- */

/* A block from `pool`, or NULL; a shortage is counted there. */
static gm_block *
take_block(gm_pool *pool, size_t size, gm_stream stream)
{
    gm_request request = {
        .size = size,
        .stream = stream,
        .kind = GM_ARENA_ELASTIC,
        .by_address = true,
    };
    gm_block *block = NULL;
    gm_oom oom;
    gm_status status = gm_pool_try_alloc(pool, &request, &block);
    if (status == GM_MISS || status == GM_BUSY) {
        status = gm_pool_alloc(pool, &request, &block, &oom);
        if (status == GM_OUT_OF_MEMORY) {
            gm_pool_count_oom(pool, &request, &oom);
        }
    }
    return status == GM_OK ? block : NULL;
}

void *
gpumem_malloc(size_t size, int device, void *stream)
{
    if (size == 0) {
        return NULL;
    }
    gm_pool *pool = acquire_pool(device);
    if (pool == NULL) {
        if (is_index(device)) {
            atomic_fetch_add_explicit(&refused[device], 1, memory_order_relaxed);
        }
        return NULL;
    }
    gm_block *block = take_block(pool, size, (gm_stream)(uintptr_t)stream);
    void *address =
        block != NULL ? gm_device_host_pointer(gm_block_address(block)) : NULL;
    gm_pool_release(pool);
    return address;
}

void
gpumem_free(void *ptr, size_t size, int device, void *stream)
{
    (void)size;
    (void)stream;
    if (ptr == NULL || gm_process_is_exiting()) {
        return;
    }
    /* The block says which pool it is from; `device` only says where an address that
     * is no live block is counted. */
    gm_devptr address = (gm_devptr)(uintptr_t)ptr;
    if (gm_pool_free_address(NULL, address) == GM_UNKNOWN_ADDRESS) {
        gm_pool *pool = acquire_pool(device);
        if (pool != NULL) {
            (void)!gm_pool_free_address(pool, address);
            gm_pool_release(pool);
        }
    }
}

void
gpumem_record_stream(void *ptr, void *stream)
{
    gm_block *block;
    if (ptr == NULL || gm_process_is_exiting() ||
        gm_block_find((gm_devptr)(uintptr_t)ptr, &block) != GM_OK) {
        return;
    }
    /* Without host memory for the note the block would be reused too early; there is
     * no way to say so here, and the next allocation of the program fails as well. */
    (void)!gm_pool_record_stream(block, (gm_stream)(uintptr_t)stream);
}

void
gpumem_empty_cache(void)
{
    for (int i = 0; i < GM_CAPI_DEVICES; i++) {
        gm_pool *pool = acquire_pool(i);
        if (pool != NULL) {
            gm_trim_request request = {0};
            gm_trim_report report;
            (void)!gm_pool_trim(pool, &request, &report);
            gm_pool_release(pool);
        }
    }
}

void
gpumem_set_memory_fraction(double fraction, int device)
{
    if (!(fraction > 0.0 && fraction <= 1.0)) {
        return;
    }
    gm_pool *pool = acquire_pool(device);
    if (pool != NULL) {
        double total = (double)gm_pool_device(pool)->info.total;
        gm_pool_set_limit(pool, (size_t)(fraction * total));
        gm_pool_release(pool);
    }
}

/* Calls gm_pool_capture_begin or _end on the device's pool. */
static int
tell_of_capture(int device, void *stream,
                gm_status (*tell)(gm_pool *pool, gm_stream stream))
{
    gm_pool *pool = acquire_pool(device);
    if (pool == NULL) {
        return -1;
    }
    gm_status status = tell(pool, (gm_stream)(uintptr_t)stream);
    gm_pool_release(pool);
    return status == GM_OK ? 0 : -1;
}

int
gpumem_capture_begin(int device, void *stream)
{
    return tell_of_capture(device, stream, gm_pool_capture_begin);
}

int
gpumem_capture_end(int device, void *stream)
{
    return tell_of_capture(device, stream, gm_pool_capture_end);
}

int
gpumem_get_stats(int device, struct gpumem_stats *out)
{
    if (out == NULL) {
        return -1;
    }
    memset(out, 0, sizeof(*out));
    gm_pool *pool = acquire_pool(device);
    if (pool == NULL) {
        return -1;
    }
    gm_pool_stats stats;
    gm_pool_read_stats(pool, &stats);
    gm_pool_release(pool);
    out->used = stats.allocated_bytes.all.current;
    out->used_peak = stats.allocated_bytes.all.peak;
    out->reserved = stats.reserved_bytes.all.current;
    out->reserved_peak = stats.reserved_bytes.all.peak;
    out->requested = stats.requested_bytes.all.current;
    out->requested_peak = stats.requested_bytes.all.peak;
    out->device_allocs = stats.num_device_alloc;
    out->device_frees = stats.num_device_free;
    out->maps = stats.maps;
    out->unmaps = stats.unmaps;
    out->ooms =
        stats.num_ooms + atomic_load_explicit(&refused[device], memory_order_relaxed);
    return 0;
}
