/* vmm.c - the driver's virtual memory: addresses, memory and mappings one by one. */
#include <inttypes.h>
#include <stdlib.h>

#include "alloc.h"
#include "memory.h"
#include "share.h"
#include "work.h"

/* Devices without it have the functions, and each one refuses. */
#define VMM_CALL(expression) \
    DRIVER_CALL(!fake_setting.vmm ? (int)cudaErrorNotSupported : (expression))

static bool
is_whole(size_t size)
{
    return size > 0 && size % fake_setting.granularity == 0;
}

static int
check_prop(const CUmemAllocationProp *prop)
{
    return fake_require(prop != NULL && prop->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
                        prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
                        prop->location.id >= 0 &&
                        prop->location.id < fake_setting.devices);
}

/* ---- addresses -------------------------------------------------------------------------------- */

static int
reserve_locked(CUdeviceptr *out, size_t size, size_t alignment)
{
    if (out == NULL || !is_whole(size) || (alignment & (alignment - 1)) != 0) {
        return (int)cudaErrorInvalidValue;
    }
    uint64_t limit = fake_setting.address_space;
    if (limit > 0 && size > limit - fake_reserved_bytes_locked()) {
        return (int)cudaErrorMemoryAllocation;
    }
    size_t least = fake_setting.granularity;
    fake_block *block =
        fake_block_make_locked(size, alignment < least ? least : alignment);
    if (block == NULL) {
        return (int)cudaErrorMemoryAllocation;
    }
    block->reserved = true;
    *out = block->address;
    return 0;
}

static int
give_addresses_locked(CUdeviceptr address, size_t size)
{
    fake_block *block = fake_block_at_locked(address);
    if (block == NULL || !block->reserved || block->address != address ||
        block->size != size) {
        (void)fake_violation_locked("0x%" PRIx64 " and %zu bytes are no reservation",
                                    (uint64_t)address, size);
        return (int)cudaErrorInvalidValue;
    }
    if (block->mapped_count > 0) {
        (void)fake_violation_locked("%zu mappings are left at 0x%" PRIx64,
                                    block->mapped_count, (uint64_t)address);
        return (int)cudaErrorInvalidValue;
    }
    fake_block_drop_locked(block);
    return 0;
}

/* ---- memory ------------------------------------------------------------------------------------ */

static int
create_locked(CUmemGenericAllocationHandle *out, size_t size,
              const CUmemAllocationProp *prop, unsigned long long flags)
{
    int error = check_prop(prop);
    if (error != 0 || out == NULL || flags != 0 || !is_whole(size)) {
        return (int)cudaErrorInvalidValue;
    }
    fake_memory *memory = fake_memory_make_locked(prop->location.id, size);
    if (memory == NULL) {
        return (int)cudaErrorMemoryAllocation;
    }
    memory->exportable =
        (prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
    *out = fake_memory_handle_locked(memory);
    return 0;
}

CUmemGenericAllocationHandle
fake_memory_handle_locked(fake_memory *memory)
{
    if (memory->handles++ == 0) {
        memory->handle = fake_handle_make_locked(FAKE_PAGE, memory);
    }
    return (CUmemGenericAllocationHandle)(uintptr_t)memory->handle;
}

fake_memory *
fake_memory_of_handle_locked(CUmemGenericAllocationHandle handle, int *error)
{
    fake_memory *memory =
        fake_handle_need_locked(FAKE_PAGE, (void *)(uintptr_t)handle, error);
    *error = memory == NULL ? (int)cudaErrorInvalidValue : 0;
    return memory;
}

static int
release_locked(CUmemGenericAllocationHandle handle)
{
    int error;
    fake_memory *memory = fake_memory_of_handle_locked(handle, &error);
    if (memory != NULL && --memory->handles == 0) {
        fake_handle_drop_locked(FAKE_PAGE, memory->handle);
        memory->handle = NULL;
        fake_memory_try_free_locked(memory);
    }
    return error;
}

static int
retain_locked(CUmemGenericAllocationHandle *out, const void *address)
{
    const fake_mapping *mapping = fake_mapping_at_locked((uint64_t)(uintptr_t)address);
    if (out == NULL || mapping == NULL || mapping->origin != FAKE_OF_VMM) {
        return (int)cudaErrorInvalidValue;
    }
    *out = fake_memory_handle_locked(mapping->memory);
    return 0;
}

static int
describe_locked(CUmemAllocationProp *out, CUmemGenericAllocationHandle handle)
{
    int error;
    const fake_memory *memory = fake_memory_of_handle_locked(handle, &error);
    if (memory != NULL) {
        *out = (CUmemAllocationProp){
            .type = CU_MEM_ALLOCATION_TYPE_PINNED,
            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = memory->device},
            .requestedHandleTypes = memory->exportable
                                        ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                        : CU_MEM_HANDLE_TYPE_NONE};
    }
    return error;
}

/* ---- mappings ------------------------------------------------------------------------------------ */

static int
map_locked(CUdeviceptr address, size_t size, size_t offset,
           CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    int error;
    fake_memory *memory = fake_memory_of_handle_locked(handle, &error);
    if (memory == NULL) {
        return error;
    }
    if (offset != 0) {
        (void)fake_violation_locked("an offset of %zu: only 0 is supported", offset);
        return (int)cudaErrorInvalidValue;
    }
    const fake_block *block = fake_block_at_locked(address);
    bool inside = block != NULL && block->reserved &&
                  size <= block->size - (address - block->address);
    if (!inside || !is_whole(size) || address % fake_setting.granularity != 0 ||
        size > memory->size || flags != 0) {
        (void)fake_violation_locked("%zu bytes of memory at 0x%" PRIx64
                                    " do not fit the reservation and the memory",
                                    size, (uint64_t)address);
        return (int)cudaErrorInvalidValue;
    }
    const fake_mapping *next = fake_mapping_from_locked(address);
    if (next != NULL && next->address < address + size) {
        (void)fake_violation_locked("0x%" PRIx64 " is mapped already",
                                    (uint64_t)next->address);
        return (int)cudaErrorInvalidValue;
    }
    (void)fake_map_locked(address, size, memory, 0, FAKE_OF_VMM);
    return 0;
}

/* The range is made of whole mappings without a gap. */
static int
check_whole_locked(CUdeviceptr address, size_t size, const char *what)
{
    for (uint64_t at = address, end = address + size; at < end;) {
        const fake_mapping *mapping = fake_mapping_begins_locked(at);
        if (mapping == NULL || mapping->origin != FAKE_OF_VMM ||
            mapping->size > end - at) {
            (void)fake_violation_locked(
                "0x%" PRIx64 " and %zu bytes are %s, and are %s", (uint64_t)address,
                size, what,
                fake_mapping_at_locked(at) == NULL ? "not mapped throughout"
                                                   : "no whole mappings");
            return (int)cudaErrorInvalidValue;
        }
        at += mapping->size;
    }
    return fake_require(size > 0);
}

/* Nothing may be using what is unmapped; a driver that waits sees to it by itself. */
static int
check_idle_locked(CUdeviceptr address, size_t size)
{
    if (fake_setting.unmap_syncs) {
        int error = 0;
        for (int i = 0; i < fake_setting.devices && error == 0; i++) {
            error = fake_finish_device_locked(i);
        }
        return error;
    }
    int error = 0;
    for (uint64_t at = address; at < address + size && error == 0;) {
        const fake_mapping *mapping = fake_mapping_begins_locked(at);
        error = fake_check_finished_locked(mapping, "unmapped");
        at += mapping->size;
    }
    return error;
}

static int
unmap_locked(CUdeviceptr address, size_t size)
{
    int error = check_whole_locked(address, size, "unmapped");
    if (error == 0) {
        error = check_idle_locked(address, size);
    }
    if (error == 0) {
        for (uint64_t at = address; at < address + size;) {
            fake_mapping *mapping = fake_mapping_begins_locked(at);
            at += mapping->size;
            fake_unmap_locked(mapping);
        }
    }
    return error;
}

static bool
can_have_access(const CUmemAccessDesc *desc, int owner)
{
    int device = desc->location.id;
    return desc->location.type == CU_MEM_LOCATION_TYPE_DEVICE && device >= 0 &&
           device < fake_setting.devices && (device == owner || fake_setting.peers);
}

static void
set_access_of_locked(fake_mapping *mapping, const CUmemAccessDesc *desc)
{
    uint32_t bit = 1u << desc->location.id;
    bool reads = desc->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
    bool writes = desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    mapping->readable = reads ? mapping->readable | bit : mapping->readable & ~bit;
    mapping->writable = writes ? mapping->writable | bit : mapping->writable & ~bit;
    if (fake_setting.host_access && mapping->readable != 0) {
        (void)fake_open_locked(mapping, mapping->writable != 0);
    }
}

static int
set_access_locked(CUdeviceptr address, size_t size, const CUmemAccessDesc *list,
                  size_t count)
{
    int error = check_whole_locked(address, size, "granted");
    if (error != 0 || list == NULL) {
        return error != 0 ? error : (int)cudaErrorInvalidValue;
    }
    for (int commit = 0; commit < 2; commit++) {
        for (uint64_t at = address; at < address + size;) {
            fake_mapping *mapping = fake_mapping_begins_locked(at);
            at += mapping->size;
            for (size_t i = 0; i < count; i++) {
                if (!can_have_access(&list[i], mapping->memory->device)) {
                    return (int)cudaErrorInvalidDevice;
                }
                if (commit) {
                    set_access_of_locked(mapping, &list[i]);
                }
            }
        }
    }
    return 0;
}

static int
get_access_locked(unsigned long long *out, const CUmemLocation *location,
                  CUdeviceptr address)
{
    const fake_mapping *mapping = fake_mapping_at_locked(address);
    if (out == NULL || location == NULL || mapping == NULL ||
        location->type != CU_MEM_LOCATION_TYPE_DEVICE || location->id < 0 ||
        location->id >= fake_setting.devices) {
        return (int)cudaErrorInvalidValue;
    }
    bool writes = (mapping->writable >> location->id & 1) != 0;
    bool reads = (mapping->readable >> location->id & 1) != 0;
    CUmemAccess_flags flags = writes  ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                              : reads ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                      : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    *out = (unsigned long long)flags;
    return 0;
}

static int
granularity_locked(size_t *out, const CUmemAllocationProp *prop)
{
    int error = check_prop(prop);
    if (error == 0) {
        *out = fake_setting.granularity;
    }
    return error;
}

/* ---- the calls --------------------------------------------------------------------------------------- */

CUresult
cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *prop,
                              CUmemAllocationGranularity_flags option)
{
    (void)option;
    VMM_CALL(granularity_locked(out, prop));
}

CUresult
cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr wish,
                    unsigned long long flags)
{
    (void)wish;
    VMM_CALL(flags != 0 ? (int)cudaErrorInvalidValue
                        : reserve_locked(out, size, alignment));
}

CUresult
cuMemAddressFree(CUdeviceptr address, size_t size)
{
    VMM_CALL(give_addresses_locked(address, size));
}

CUresult
cuMemCreate(CUmemGenericAllocationHandle *out, size_t size,
            const CUmemAllocationProp *prop, unsigned long long flags)
{
    VMM_CALL(create_locked(out, size, prop, flags));
}

CUresult
cuMemRelease(CUmemGenericAllocationHandle handle)
{
    VMM_CALL(release_locked(handle));
}

CUresult
cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address)
{
    VMM_CALL(retain_locked(out, address));
}

CUresult
cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *out,
                                       CUmemGenericAllocationHandle handle)
{
    VMM_CALL(describe_locked(out, handle));
}

CUresult
cuMemMap(CUdeviceptr address, size_t size, size_t offset,
         CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    VMM_CALL(map_locked(address, size, offset, handle, flags));
}

CUresult
cuMemUnmap(CUdeviceptr address, size_t size)
{
    VMM_CALL(unmap_locked(address, size));
}

CUresult
cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *list,
               size_t count)
{
    VMM_CALL(set_access_locked(address, size, list, count));
}

CUresult
cuMemGetAccess(unsigned long long *out, const CUmemLocation *location,
               CUdeviceptr address)
{
    VMM_CALL(get_access_locked(out, location, address));
}

CUresult
cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle,
                             CUmemAllocationHandleType type, unsigned long long flags)
{
    VMM_CALL(flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                 ? (int)cudaErrorInvalidValue
                 : fake_export_locked(out, handle));
}

CUresult
cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *shared,
                               CUmemAllocationHandleType type)
{
    VMM_CALL(type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                 ? (int)cudaErrorInvalidValue
                 : fake_import_locked(out, (int)(intptr_t)shared));
}
