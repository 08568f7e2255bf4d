/* pools.c - memory pools.
 *
 * A block that was given back is served again, to whoever comes after that in the order
 * of streams; it keeps its memory until the pool is trimmed. Blocks have whole memory of
 * their own, in units of the granularity, where the real library cuts smaller ones.
 */
#include "pools.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"

static fake_pool *
make_pool_locked(int device)
{
    fake_pool *pool = fake_allocate(sizeof(*pool));
    pool->device = device;
    pool->readable = pool->writable = 1u << device;
    for (int i = 0; i < 3; i++) {
        pool->reuse[i] = 1;
    }
    pool->handle = fake_handle_make_locked(FAKE_POOL, pool);
    return pool;
}

fake_pool *
fake_pool_default_locked(int device)
{
    fake_device *owner = &fake_devices[device];
    if (owner->default_pool == NULL) {
        owner->default_pool = make_pool_locked(device);
    }
    return owner->default_pool;
}

/* ---- blocks -------------------------------------------------------------------------------------- */

static void
drop_block_locked(fake_mapping *mapping)
{
    mapping->pool->reserved -= mapping->memory->size;
    fake_block *block = fake_block_at_locked(mapping->address);
    fake_unmap_locked(mapping);
    fake_shut_locked(block->address, block->size);
    fake_block_drop_locked(block);
}

/* Gives idle blocks of the pool back to the device while it has more than `keep`. */
static void
trim_locked(const fake_pool *pool, uint64_t keep)
{
    for (size_t i = fake_mappings.count; i-- > 0 && pool->reserved > keep;) {
        fake_mapping *mapping = fake_mappings.items[i].data;
        const fake_op *by = mapping->freed_by;
        if (mapping->pool == pool && mapping->freed &&
            fake_is_known_locked(by->lane, by->number)) {
            drop_block_locked(mapping);
        }
    }
}

void
fake_pools_settle_locked(void)
{
    const fake_pool *pool;
    for (size_t n = 0; (pool = fake_handle_at_locked(FAKE_POOL, n)) != NULL; n++) {
        trim_locked(pool, pool->threshold);
    }
}

/* The smallest block that is large enough and was given back before `op` is queued. */
static fake_mapping *
find_block_locked(const fake_pool *pool, size_t size, const fake_stream *stream)
{
    fake_mapping *best = NULL;
    for (size_t i = 0; i < fake_mappings.count; i++) {
        fake_mapping *mapping = fake_mappings.items[i].data;
        if (mapping->pool != pool || !mapping->freed || mapping->memory->size < size ||
            (best != NULL && best->memory->size <= mapping->memory->size)) {
            continue;
        }
        const fake_op *by = mapping->freed_by;
        if (stream->last != NULL
                ? fake_is_before_locked(by->lane, by->number, stream->last)
                : fake_is_known_locked(by->lane, by->number)) {
            best = mapping;
        }
    }
    return best;
}

/* A new block takes its whole place, so that a later owner may use all of it. */
static fake_mapping *
grow_locked(fake_pool *pool, size_t size)
{
    fake_mapping *mapping = fake_place_locked(pool->device, size, FAKE_OF_POOL);
    if (mapping == NULL) {
        return NULL;
    }
    gm_interval *place =
        gm_intervals_exactly(&fake_mappings, mapping->address, mapping->size);
    place->size = mapping->memory->size;
    mapping->room = mapping->memory->size;
    mapping->pool = pool;
    pool->reserved += mapping->memory->size;
    if (pool->reserved_high < pool->reserved) {
        pool->reserved_high = pool->reserved;
    }
    return mapping;
}

static void
hand_out_locked(fake_pool *pool, fake_mapping *mapping, size_t size, fake_op *op)
{
    fake_op_release_locked(mapping->allocated);
    fake_op_release_locked(mapping->freed_by);
    mapping->allocated = fake_op_retain(op);
    mapping->freed_by = NULL;
    mapping->freed = false;
    mapping->size = size;
    mapping->readable = pool->readable;
    mapping->writable = pool->writable;
    pool->used += size;
    if (pool->used_high < pool->used) {
        pool->used_high = pool->used;
    }
}

int
fake_pool_alloc_locked(void **out, size_t size, fake_pool *pool, CUstream handle)
{
    int error = 0;
    fake_stream *stream = fake_stream_of_locked(handle, &error);
    if (stream == NULL || out == NULL) {
        return stream == NULL ? error : (int)cudaErrorInvalidValue;
    }
    if (stream->capture != NULL) {
        return fake_spoil_locked(stream->capture,
                                 (int)cudaErrorStreamCaptureUnsupported);
    }
    if (size == 0) {
        *out = NULL;
        return 0;
    }
    if (pool == NULL) {
        pool = fake_devices[stream->device].current_pool;
        pool = pool != NULL ? pool : fake_pool_default_locked(stream->device);
    }
    fake_mapping *mapping = find_block_locked(pool, size, stream);
    if (mapping == NULL) {
        mapping = grow_locked(pool, size);
    }
    if (mapping == NULL) {
        error = fake_finish_device_locked(pool->device);
        trim_locked(pool, 0);
        mapping = error != 0 ? NULL : grow_locked(pool, size);
    }
    if (mapping == NULL) {
        return error != 0 ? error : (int)cudaErrorMemoryAllocation;
    }
    fake_op *op;
    fake_task task = {.work = FAKE_MARK, .device = stream->device};
    (void)fake_submit_locked(stream, &task, NULL, &op);
    hand_out_locked(pool, mapping, size, op);
    *out = (void *)(uintptr_t)mapping->address;
    return 0;
}

int
fake_pool_free_locked(void *address, CUstream handle)
{
    int error = 0;
    fake_stream *stream = fake_stream_of_locked(handle, &error);
    if (stream == NULL || address == NULL) {
        return error;
    }
    fake_mapping *mapping = fake_mapping_begins_locked((uint64_t)(uintptr_t)address);
    if (mapping == NULL || mapping->origin != FAKE_OF_POOL || mapping->freed) {
        (void)fake_violation_locked("%p is no live allocation of a pool", address);
        return (int)cudaErrorInvalidValue;
    }
    if (stream->capture != NULL) {
        return fake_spoil_locked(stream->capture,
                                 (int)cudaErrorStreamCaptureUnsupported);
    }
    fake_op *op;
    fake_task task = {.work = FAKE_MARK, .device = stream->device};
    error = fake_submit_locked(stream, &task, NULL, &op);
    if (error == 0) {
        error = fake_check_before_locked(mapping, op, "given back");
    }
    if (error == 0) {
        mapping->freed = true;
        mapping->freed_by = fake_op_retain(op);
        mapping->pool->used -= mapping->size;
    }
    return error;
}

void
fake_pools_reset_locked(void)
{
    fake_pool *pool;
    while ((pool = fake_handle_at_locked(FAKE_POOL, 0)) != NULL) {
        fake_handle_drop_locked(FAKE_POOL, pool->handle);
        free(pool);
    }
}

/* ---- calls on pools ---------------------------------------------------------------------------------- */

static int
create_locked(cudaMemPool_t *out, const struct cudaMemPoolProps *props)
{
    if (out == NULL || props == NULL ||
        props->allocType != cudaMemAllocationTypePinned ||
        props->location.type != cudaMemLocationTypeDevice || props->location.id < 0 ||
        props->location.id >= fake_setting.devices) {
        return (int)cudaErrorInvalidValue;
    }
    *out = make_pool_locked(props->location.id)->handle;
    return 0;
}

static int
destroy_locked(cudaMemPool_t handle)
{
    int error = 0;
    fake_pool *pool = fake_handle_need_locked(FAKE_POOL, handle, &error);
    if (pool == NULL) {
        return error;
    }
    fake_device *device = &fake_devices[pool->device];
    if (pool == device->default_pool) {
        return (int)cudaErrorInvalidValue;
    }
    if (pool->used > 0) {
        return fake_violation_locked("%" PRIu64 " bytes of the pool are in use",
                                     pool->used);
    }
    error = fake_finish_device_locked(pool->device);
    trim_locked(pool, 0);
    device->current_pool = device->current_pool == pool ? NULL : device->current_pool;
    fake_handle_drop_locked(FAKE_POOL, handle);
    free(pool);
    return error;
}

/* The attribute's place in the pool; *wide: it is 64 bits wide. */
static void *
attribute_locked(fake_pool *pool, enum cudaMemPoolAttr attribute, bool *wide)
{
    *wide = true;
    switch (attribute) {
        case cudaMemPoolAttrReleaseThreshold:
            return &pool->threshold;
        case cudaMemPoolAttrReservedMemCurrent:
            return &pool->reserved;
        case cudaMemPoolAttrReservedMemHigh:
            return &pool->reserved_high;
        case cudaMemPoolAttrUsedMemCurrent:
            return &pool->used;
        case cudaMemPoolAttrUsedMemHigh:
            return &pool->used_high;
        case cudaMemPoolReuseFollowEventDependencies:
        case cudaMemPoolReuseAllowOpportunistic:
        case cudaMemPoolReuseAllowInternalDependencies:
            *wide = false;
            return &pool->reuse[(int)attribute - 1];
        default:
            return NULL;
    }
}

static int
get_attribute_locked(cudaMemPool_t handle, enum cudaMemPoolAttr attribute, void *value)
{
    int error = 0;
    bool wide;
    fake_pool *pool = fake_handle_need_locked(FAKE_POOL, handle, &error);
    const void *place = pool == NULL ? NULL : attribute_locked(pool, attribute, &wide);
    if (place == NULL || value == NULL) {
        return pool == NULL ? error : (int)cudaErrorInvalidValue;
    }
    memcpy(value, place, wide ? sizeof(uint64_t) : sizeof(int));
    return 0;
}

/* High-water marks can be set to 0 alone, and what is current cannot be set. */
static int
set_attribute_locked(cudaMemPool_t handle, enum cudaMemPoolAttr attribute,
                     const void *value)
{
    int error = 0;
    bool wide;
    fake_pool *pool = fake_handle_need_locked(FAKE_POOL, handle, &error);
    void *place = pool == NULL ? NULL : attribute_locked(pool, attribute, &wide);
    if (place == NULL || value == NULL ||
        attribute == cudaMemPoolAttrReservedMemCurrent ||
        attribute == cudaMemPoolAttrUsedMemCurrent) {
        return pool == NULL ? error : (int)cudaErrorInvalidValue;
    }
    uint64_t number = 0;
    memcpy(&number, value, wide ? sizeof(uint64_t) : sizeof(int));
    if (attribute == cudaMemPoolAttrReservedMemHigh && number == 0) {
        number = pool->reserved;
    }
    else if (attribute == cudaMemPoolAttrUsedMemHigh && number == 0) {
        number = pool->used;
    }
    else if (attribute == cudaMemPoolAttrReservedMemHigh ||
             attribute == cudaMemPoolAttrUsedMemHigh) {
        return (int)cudaErrorInvalidValue;
    }
    memcpy(place, &number, wide ? sizeof(uint64_t) : sizeof(int));
    return 0;
}

static int
set_access_locked(cudaMemPool_t handle, const struct cudaMemAccessDesc *list,
                  size_t count)
{
    int error = 0;
    fake_pool *pool = fake_handle_need_locked(FAKE_POOL, handle, &error);
    for (size_t i = 0; pool != NULL && i < count; i++) {
        int device = list[i].location.id;
        if (list[i].location.type != cudaMemLocationTypeDevice || device < 0 ||
            device >= fake_setting.devices ||
            (device != pool->device && !fake_setting.peers)) {
            return (int)cudaErrorInvalidDevice;
        }
        uint32_t bit = 1u << device;
        bool reads = list[i].flags != cudaMemAccessFlagsProtNone;
        bool writes = list[i].flags == cudaMemAccessFlagsProtReadWrite;
        pool->readable = reads ? pool->readable | bit : pool->readable & ~bit;
        pool->writable = writes ? pool->writable | bit : pool->writable & ~bit;
    }
    for (size_t i = 0; pool != NULL && i < fake_mappings.count; i++) {
        fake_mapping *mapping = fake_mappings.items[i].data;
        if (mapping->pool == pool) {
            mapping->readable = pool->readable;
            mapping->writable = pool->writable;
        }
    }
    return error;
}

static int
trim_to_locked(cudaMemPool_t handle, size_t keep)
{
    int error = 0;
    const fake_pool *pool = fake_handle_need_locked(FAKE_POOL, handle, &error);
    if (pool != NULL) {
        trim_locked(pool, keep);
    }
    return error;
}

static int
pool_of_device_locked(cudaMemPool_t *out, int device, bool current)
{
    if (device < 0 || device >= fake_setting.devices) {
        return (int)cudaErrorInvalidDevice;
    }
    fake_pool *pool = current ? fake_devices[device].current_pool : NULL;
    *out = (pool != NULL ? pool : fake_pool_default_locked(device))->handle;
    return 0;
}

static int
set_pool_locked(int device, cudaMemPool_t handle)
{
    int error = 0;
    fake_pool *pool = fake_handle_need_locked(FAKE_POOL, handle, &error);
    if (pool == NULL || device < 0 || device >= fake_setting.devices ||
        pool->device != device) {
        return pool == NULL ? error : (int)cudaErrorInvalidValue;
    }
    fake_devices[device].current_pool = pool;
    return 0;
}

static int
alloc_from_locked(void **out, size_t size, cudaMemPool_t handle, cudaStream_t stream)
{
    int error = 0;
    fake_pool *pool = fake_handle_need_locked(FAKE_POOL, handle, &error);
    return pool == NULL ? error : fake_pool_alloc_locked(out, size, pool, stream);
}

/* ---- the runtime's calls ------------------------------------------------------------------------------- */

cudaError_t
cudaMallocAsync(void **out, size_t size, cudaStream_t stream)
{
    RUNTIME_CALL(fake_pool_alloc_locked(out, size, NULL, stream));
}

cudaError_t
cudaMallocFromPoolAsync(void **out, size_t size, cudaMemPool_t pool,
                        cudaStream_t stream)
{
    RUNTIME_CALL(alloc_from_locked(out, size, pool, stream));
}

cudaError_t
cudaFreeAsync(void *address, cudaStream_t stream)
{
    RUNTIME_CALL(fake_pool_free_locked(address, stream));
}

cudaError_t
cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *props)
{
    RUNTIME_CALL(create_locked(pool, props));
}

cudaError_t
cudaMemPoolDestroy(cudaMemPool_t pool)
{
    RUNTIME_CALL(destroy_locked(pool));
}

cudaError_t
cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep)
{
    RUNTIME_CALL(trim_to_locked(pool, keep));
}

cudaError_t
cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
    RUNTIME_CALL(set_attribute_locked(pool, attribute, value));
}

cudaError_t
cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
    RUNTIME_CALL(get_attribute_locked(pool, attribute, value));
}

cudaError_t
cudaMemPoolSetAccess(cudaMemPool_t pool, const struct cudaMemAccessDesc *list,
                     size_t count)
{
    RUNTIME_CALL(set_access_locked(pool, list, count));
}

cudaError_t
cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device)
{
    RUNTIME_CALL(pool_of_device_locked(pool, device, false));
}

cudaError_t
cudaDeviceGetMemPool(cudaMemPool_t *pool, int device)
{
    RUNTIME_CALL(pool_of_device_locked(pool, device, true));
}

cudaError_t
cudaDeviceSetMemPool(int device, cudaMemPool_t pool)
{
    RUNTIME_CALL(set_pool_locked(device, pool));
}
