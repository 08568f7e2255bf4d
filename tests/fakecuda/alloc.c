/* alloc.c - whole allocations: cudaMalloc and its like.
 *
 * As on hardware, small allocations are cut from chunks of the granularity at multiples
 * of 512 bytes, and the device is charged for whole chunks.
 */
#include "alloc.h"

#include <stdlib.h>

#include "pools.h"

#define SMALL_ALIGNMENT ((size_t)512)
#define SMALL_LIMIT ((size_t)1 << 20)

static size_t
round_up(size_t size, size_t multiple)
{
    return (size + multiple - 1) / multiple * multiple;
}

static fake_mapping *
map_for_device_locked(uint64_t address, size_t size, fake_memory *memory, size_t offset,
                      fake_origin origin)
{
    fake_mapping *mapping = fake_map_locked(address, size, memory, offset, origin);
    mapping->readable = mapping->writable = 1u << memory->device;
    if (fake_setting.host_access) {
        (void)fake_open_locked(mapping, true);
    }
    return mapping;
}

fake_mapping *
fake_place_locked(int device, size_t size, fake_origin origin)
{
    size_t whole = round_up(size, fake_setting.granularity);
    fake_memory *memory = fake_memory_make_locked(device, whole);
    if (memory == NULL) {
        return NULL;
    }
    fake_block *block = fake_block_make_locked(whole, fake_setting.granularity);
    if (block == NULL) {
        fake_memory_try_free_locked(memory);
        return NULL;
    }
    return map_for_device_locked(block->address, size, memory, 0, origin);
}

/* The lowest gap of a chunk that is large enough; 0: there is none. */
static uint64_t
find_gap_locked(const fake_block *chunk, size_t size)
{
    uint64_t address = chunk->address;
    uint64_t end = chunk->address + chunk->size;
    while (address < end) {
        const fake_mapping *next = fake_mapping_from_locked(address);
        uint64_t stop = next == NULL || next->address > end ? end : next->address;
        if (stop > address && stop - address >= size) {
            return address;
        }
        if (stop == end) {
            break;
        }
        address = next->address + round_up(next->size, SMALL_ALIGNMENT);
    }
    return 0;
}

static fake_mapping *
place_small_locked(int device, size_t size)
{
    size_t rounded = round_up(size, SMALL_ALIGNMENT);
    for (size_t i = 0; i < fake_blocks.count; i++) {
        const fake_block *block = fake_blocks.items[i].data;
        uint64_t address = block->chunk == NULL || block->chunk->device != device
                               ? 0
                               : find_gap_locked(block, rounded);
        if (address != 0) {
            return map_for_device_locked(address, size, block->chunk,
                                         (size_t)(address - block->address),
                                         FAKE_OF_MALLOC);
        }
    }
    size_t whole = round_up(SMALL_LIMIT, fake_setting.granularity);
    fake_memory *memory = fake_memory_make_locked(device, whole);
    if (memory == NULL) {
        return NULL;
    }
    fake_block *block = fake_block_make_locked(whole, fake_setting.granularity);
    if (block == NULL) {
        fake_memory_try_free_locked(memory);
        return NULL;
    }
    block->chunk = memory;
    return map_for_device_locked(block->address, size, memory, 0, FAKE_OF_MALLOC);
}

int
fake_malloc_locked(void **out, size_t size)
{
    int error = fake_check_unsafe_locked();
    if (error != 0 || out == NULL) {
        return error != 0 ? error : (int)cudaErrorInvalidValue;
    }
    if (size == 0) {
        *out = NULL;
        return 0;
    }
    int device = fake_current_device_locked();
    if (size > fake_devices[device].capacity) {
        return (int)cudaErrorMemoryAllocation;
    }
    const fake_mapping *mapping = size < SMALL_LIMIT
                                      ? place_small_locked(device, size)
                                      : fake_place_locked(device, size, FAKE_OF_MALLOC);
    if (mapping == NULL) {
        return (int)cudaErrorMemoryAllocation;
    }
    *out = (void *)(uintptr_t)mapping->address;
    return 0;
}

int
fake_free_locked(void *address)
{
    int error = fake_check_unsafe_locked();
    (void)fake_current_device_locked(); /* cudaFree(0) is how programs begin */
    if (error != 0 || address == NULL) {
        return error;
    }
    fake_mapping *mapping = fake_mapping_begins_locked((uint64_t)(uintptr_t)address);
    if (mapping != NULL && mapping->origin == FAKE_OF_POOL && !mapping->freed) {
        error =
            fake_finish_device_locked(mapping->memory->device); /* it always waits */
        return error != 0 ? error : fake_pool_free_locked(address, 0);
    }
    if (mapping == NULL ||
        (mapping->origin != FAKE_OF_MALLOC && mapping->origin != FAKE_OF_MANAGED)) {
        (void)fake_violation_locked("%p is no live allocation", address);
        return (int)cudaErrorInvalidValue;
    }
    if (mapping->origin == FAKE_OF_MANAGED) {
        return fake_host_free_locked(address);
    }
    if (fake_setting.unmap_syncs) {
        error = fake_finish_device_locked(mapping->memory->device);
    }
    else {
        error = fake_check_finished_locked(mapping, "freed");
    }
    if (error != 0) {
        return error;
    }
    fake_block *block = fake_block_at_locked(mapping->address);
    fake_unmap_locked(mapping);
    if (block->mapped_count == 0) {
        fake_shut_locked(block->address, block->size);
        fake_block_drop_locked(block);
    }
    return 0;
}

int
fake_memory_info_locked(size_t *free_bytes, size_t *total_bytes)
{
    const fake_device *device = &fake_devices[fake_current_device_locked()];
    size_t taken = device->used + device->occupied;
    *free_bytes = taken > device->capacity ? 0 : device->capacity - taken;
    *total_bytes = device->capacity;
    return 0;
}

/* ---- the runtime's calls --------------------------------------------------------------- */

cudaError_t
cudaMalloc(void **out, size_t size)
{
    RUNTIME_CALL(fake_malloc_locked(out, size));
}

cudaError_t
cudaFree(void *address)
{
    RUNTIME_CALL(fake_free_locked(address));
}

cudaError_t
cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    RUNTIME_CALL(fake_memory_info_locked(free_bytes, total_bytes));
}
