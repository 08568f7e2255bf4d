/* hosts.c - memory of the host that devices can reach: page-locked and managed. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "alloc.h"

static int
make_host_locked(void **out, size_t size, unsigned flags, fake_origin origin)
{
    if (out == NULL) {
        return (int)cudaErrorInvalidValue;
    }
    *out = NULL;
    if (size == 0) {
        return 0;
    }
    void *address =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) {
        return (int)cudaErrorMemoryAllocation;
    }
    fake_memory *memory = fake_memory_of_host(address, size);
    fake_map_locked((uint64_t)(uintptr_t)address, size, memory, 0, origin)->host_flags =
        flags;
    *out = address;
    return 0;
}

int
fake_host_alloc_locked(void **out, size_t size, unsigned flags)
{
    int error = fake_check_unsafe_locked();
    (void)fake_current_device_locked();
    return error != 0 ? error : make_host_locked(out, size, flags, FAKE_OF_HOST);
}

int
fake_managed_alloc_locked(void **out, size_t size)
{
    int error = fake_check_unsafe_locked();
    (void)fake_current_device_locked();
    if (error == 0 && size == 0) {
        error = (int)cudaErrorInvalidValue;
    }
    return error != 0 ? error : make_host_locked(out, size, 0, FAKE_OF_MANAGED);
}

/* Takes host memory back if the host knows that no work uses it. */
static int
give_host_locked(void *address, fake_origin origin, fake_origin or_origin, int unknown)
{
    int error = fake_check_unsafe_locked();
    if (error != 0) {
        return error;
    }
    fake_mapping *mapping = fake_mapping_begins_locked((uint64_t)(uintptr_t)address);
    if (mapping == NULL ||
        (mapping->origin != origin && mapping->origin != or_origin)) {
        (void)fake_violation_locked("%p is no such memory", address);
        return unknown;
    }
    error = fake_check_finished_locked(mapping, "given back");
    if (error == 0) {
        size_t size = mapping->size;
        fake_origin was = mapping->origin;
        fake_unmap_locked(mapping);
        if (was != FAKE_OF_REGISTERED) {
            (void)munmap(address, size);
        }
    }
    return error;
}

int
fake_host_free_locked(void *address)
{
    return address == NULL ? 0
                           : give_host_locked(address, FAKE_OF_HOST, FAKE_OF_MANAGED,
                                              (int)cudaErrorInvalidValue);
}

int
fake_host_register_locked(void *address, size_t size, unsigned flags)
{
    int error = fake_check_unsafe_locked();
    uint64_t begin = (uint64_t)(uintptr_t)address;
    if (error != 0 || begin == 0 || size == 0) {
        return error != 0 ? error : (int)cudaErrorInvalidValue;
    }
    if (fake_is_device_address_locked(begin)) {
        return (int)cudaErrorInvalidValue;
    }
    (void)fake_current_device_locked();
    const fake_mapping *next = fake_mapping_from_locked(begin);
    if (next != NULL && next->address < begin + size) {
        return (int)cudaErrorHostMemoryAlreadyRegistered;
    }
    fake_memory *memory = fake_memory_of_host(address, size);
    fake_map_locked(begin, size, memory, 0, FAKE_OF_REGISTERED)->host_flags = flags;
    return 0;
}

int
fake_host_unregister_locked(void *address)
{
    return give_host_locked(address, FAKE_OF_REGISTERED, FAKE_OF_REGISTERED,
                            (int)cudaErrorHostMemoryNotRegistered);
}

uint64_t
fake_pinned_bytes_locked(void)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < fake_mappings.count; i++) {
        const fake_mapping *mapping = fake_mappings.items[i].data;
        bool pinned =
            mapping->origin == FAKE_OF_HOST || mapping->origin == FAKE_OF_REGISTERED;
        bytes += pinned ? mapping->size : 0;
    }
    return bytes;
}

/* ---- what an address is ---------------------------------------------------------------- */

static int
describe_locked(struct cudaPointerAttributes *out, const void *address)
{
    const fake_mapping *mapping = fake_mapping_at_locked((uint64_t)(uintptr_t)address);
    void *same;
    memcpy(&same, &address, sizeof(same));
    memset(out, 0, sizeof(*out));
    if (mapping == NULL) {
        out->type = cudaMemoryTypeUnregistered;
        out->device = cudaInvalidDeviceId;
        out->hostPointer = same;
        return 0;
    }
    bool on_host = mapping->memory->device >= 0 ? false : true;
    bool managed = mapping->origin == FAKE_OF_MANAGED;
    out->type = managed   ? cudaMemoryTypeManaged
                : on_host ? cudaMemoryTypeHost
                          : cudaMemoryTypeDevice;
    out->device = on_host ? fake_current_device_locked() : mapping->memory->device;
    out->devicePointer = same;
    out->hostPointer = on_host ? same : NULL;
    return 0;
}

static int
device_pointer_locked(void **out, void *address, unsigned flags)
{
    const fake_mapping *mapping = fake_mapping_at_locked((uint64_t)(uintptr_t)address);
    if (flags != 0 || mapping == NULL || mapping->memory->device >= 0) {
        return (int)cudaErrorInvalidValue;
    }
    *out = address;
    return 0;
}

static int
host_flags_locked(unsigned *out, const void *address)
{
    const fake_mapping *mapping = fake_mapping_at_locked((uint64_t)(uintptr_t)address);
    if (mapping == NULL || mapping->origin != FAKE_OF_HOST) {
        return (int)cudaErrorInvalidValue;
    }
    *out = mapping->host_flags | cudaHostAllocMapped;
    return 0;
}

/* ---- the runtime's calls --------------------------------------------------------------- */

cudaError_t
cudaMallocHost(void **out, size_t size)
{
    RUNTIME_CALL(fake_host_alloc_locked(out, size, 0));
}

cudaError_t
cudaHostAlloc(void **out, size_t size, unsigned flags)
{
    RUNTIME_CALL(fake_host_alloc_locked(out, size, flags));
}

cudaError_t
cudaFreeHost(void *address)
{
    RUNTIME_CALL(fake_host_free_locked(address));
}

cudaError_t
cudaHostRegister(void *address, size_t size, unsigned flags)
{
    RUNTIME_CALL(fake_host_register_locked(address, size, flags));
}

cudaError_t
cudaHostUnregister(void *address)
{
    RUNTIME_CALL(fake_host_unregister_locked(address));
}

cudaError_t
cudaHostGetDevicePointer(void **out, void *address, unsigned flags)
{
    RUNTIME_CALL(device_pointer_locked(out, address, flags));
}

cudaError_t
cudaHostGetFlags(unsigned *flags, void *address)
{
    RUNTIME_CALL(host_flags_locked(flags, address));
}

cudaError_t
cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *address)
{
    RUNTIME_CALL(out == NULL ? (int)cudaErrorInvalidValue
                             : describe_locked(out, address));
}

cudaError_t
cudaMallocManaged(void **out, size_t size, unsigned flags)
{
    RUNTIME_CALL(flags != cudaMemAttachGlobal && flags != cudaMemAttachHost
                     ? (int)cudaErrorInvalidValue
                     : fake_managed_alloc_locked(out, size));
}
