/* driver_memory.c - the driver's calls on memory, copies and fills. They share their
 * bodies with the runtime's. */
#include <string.h>

#include "alloc.h"
#include "copies.h"
#include "memory.h"
#include "pools.h"

/* ---- allocations ------------------------------------------------------------------------------ */

/* The driver's addresses are integers. */
static int
alloc_locked(CUdeviceptr *out, size_t size)
{
    void *address;
    int error = size == 0 || out == NULL ? (int)cudaErrorInvalidValue
                                         : fake_malloc_locked(&address, size);
    if (error == 0) {
        *out = (CUdeviceptr)(uintptr_t)address;
    }
    return error;
}

CUresult
cuMemAlloc(CUdeviceptr *out, size_t size)
{
    CONTEXT_CALL(alloc_locked(out, size));
}

CUresult
cuMemFree(CUdeviceptr address)
{
    CONTEXT_CALL(fake_free_locked((void *)(uintptr_t)address));
}

CUresult
cuMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    CONTEXT_CALL(fake_memory_info_locked(free_bytes, total_bytes));
}

static int
alloc_async_locked(CUdeviceptr *out, size_t size, CUstream stream)
{
    void *address;
    int error = fake_pool_alloc_locked(&address, size, NULL, stream);
    if (error == 0) {
        *out = (CUdeviceptr)(uintptr_t)address;
    }
    return error;
}

CUresult
cuMemAllocAsync(CUdeviceptr *out, size_t size, CUstream stream)
{
    CONTEXT_CALL(alloc_async_locked(out, size, stream));
}

CUresult
cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    CONTEXT_CALL(fake_pool_free_locked((void *)(uintptr_t)address, stream));
}

static int
managed_locked(CUdeviceptr *out, size_t size)
{
    void *address;
    int error = fake_managed_alloc_locked(&address, size);
    if (error == 0) {
        *out = (CUdeviceptr)(uintptr_t)address;
    }
    return error;
}

CUresult
cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned flags)
{
    (void)flags;
    CONTEXT_CALL(managed_locked(out, size));
}

static int
range_locked(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
    const fake_mapping *mapping = fake_mapping_at_locked(address);
    if (mapping == NULL) {
        return (int)cudaErrorInvalidValue;
    }
    if (base != NULL) {
        *base = mapping->address;
    }
    if (size != NULL) {
        *size = mapping->size;
    }
    return 0;
}

CUresult
cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
    CONTEXT_CALL(range_locked(base, size, address));
}

/* ---- memory of the host -------------------------------------------------------------------------- */

CUresult
cuMemAllocHost(void **out, size_t size)
{
    CONTEXT_CALL(fake_host_alloc_locked(out, size, 0));
}

CUresult
cuMemHostAlloc(void **out, size_t size, unsigned flags)
{
    CONTEXT_CALL(fake_host_alloc_locked(out, size, flags));
}

CUresult
cuMemFreeHost(void *address)
{
    CONTEXT_CALL(fake_host_free_locked(address));
}

CUresult
cuMemHostRegister(void *address, size_t size, unsigned flags)
{
    CONTEXT_CALL(fake_host_register_locked(address, size, flags));
}

CUresult
cuMemHostUnregister(void *address)
{
    CONTEXT_CALL(fake_host_unregister_locked(address));
}

static int
device_pointer_locked(CUdeviceptr *out, void *address)
{
    const fake_mapping *mapping = fake_mapping_at_locked((uint64_t)(uintptr_t)address);
    if (mapping == NULL || mapping->memory->device >= 0) {
        return (int)cudaErrorInvalidValue;
    }
    *out = (CUdeviceptr)(uintptr_t)address;
    return 0;
}

CUresult
cuMemHostGetDevicePointer(CUdeviceptr *out, void *address, unsigned flags)
{
    (void)flags;
    CONTEXT_CALL(device_pointer_locked(out, address));
}

/* ---- what an address is ----------------------------------------------------------------------------- */

static int
attribute_locked(void *out, CUpointer_attribute attribute, CUdeviceptr address)
{
    const fake_mapping *mapping = fake_mapping_at_locked(address);
    if (mapping == NULL) {
        return (int)cudaErrorInvalidValue;
    }
    bool on_host = mapping->memory->device < 0;
    int device = on_host ? fake_current_device_locked() : mapping->memory->device;
    union {
        int number;
        unsigned kind;
        void *pointer;
        size_t size;
    } value = {0};
    size_t size = sizeof(int);
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            value.pointer = fake_devices[device].context;
            size = sizeof(void *);
            break;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            value.kind = on_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
            break;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            value.pointer = (void *)(uintptr_t)address;
            size = sizeof(void *);
            break;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
            value.number = mapping->origin == FAKE_OF_MANAGED;
            size = sizeof(char);
            break;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            value.number = device;
            break;
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            value.pointer = (void *)(uintptr_t)mapping->address;
            size = sizeof(void *);
            break;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
            value.size = mapping->size;
            size = sizeof(size_t);
            break;
        default:
            return (int)cudaErrorNotSupported;
    }
    memcpy(out, &value, size);
    return 0;
}

CUresult
cuPointerGetAttribute(void *out, CUpointer_attribute attribute, CUdeviceptr address)
{
    CONTEXT_CALL(attribute_locked(out, attribute, address));
}

/* ---- copies ------------------------------------------------------------------------------------------- */

static int
copy_locked(uint64_t destination, uint64_t source, size_t size,
            enum cudaMemcpyKind kind, CUstream stream, bool waits)
{
    fake_copy copy = fake_plain_copy((void *)(uintptr_t)destination,
                                     (void *)(uintptr_t)source, size, kind);
    return fake_copy_locked(&copy, stream, waits);
}

CUresult
cuMemcpyHtoD(CUdeviceptr destination, const void *source, size_t size)
{
    CONTEXT_CALL(copy_locked(destination, (uintptr_t)source, size,
                             cudaMemcpyHostToDevice, 0, true));
}

CUresult
cuMemcpyHtoDAsync(CUdeviceptr destination, const void *source, size_t size,
                  CUstream stream)
{
    CONTEXT_CALL(copy_locked(destination, (uintptr_t)source, size,
                             cudaMemcpyHostToDevice, stream, false));
}

CUresult
cuMemcpyDtoH(void *destination, CUdeviceptr source, size_t size)
{
    CONTEXT_CALL(copy_locked((uintptr_t)destination, source, size,
                             cudaMemcpyDeviceToHost, 0, true));
}

CUresult
cuMemcpyDtoHAsync(void *destination, CUdeviceptr source, size_t size, CUstream stream)
{
    CONTEXT_CALL(copy_locked((uintptr_t)destination, source, size,
                             cudaMemcpyDeviceToHost, stream, false));
}

CUresult
cuMemcpyDtoD(CUdeviceptr destination, CUdeviceptr source, size_t size)
{
    CONTEXT_CALL(
        copy_locked(destination, source, size, cudaMemcpyDeviceToDevice, 0, true));
}

CUresult
cuMemcpyDtoDAsync(CUdeviceptr destination, CUdeviceptr source, size_t size,
                  CUstream stream)
{
    CONTEXT_CALL(copy_locked(destination, source, size, cudaMemcpyDeviceToDevice,
                             stream, false));
}

CUresult
cuMemcpy(CUdeviceptr destination, CUdeviceptr source, size_t size)
{
    CONTEXT_CALL(copy_locked(destination, source, size, cudaMemcpyDefault, 0, true));
}

CUresult
cuMemcpyAsync(CUdeviceptr destination, CUdeviceptr source, size_t size, CUstream stream)
{
    CONTEXT_CALL(
        copy_locked(destination, source, size, cudaMemcpyDefault, stream, false));
}

/* ---- fills ---------------------------------------------------------------------------------------------- */

CUresult
cuMemsetD8(CUdeviceptr destination, unsigned char value, size_t count)
{
    CONTEXT_CALL(fake_fill_locked(destination, count, &value, 1, count, 1, 0, true));
}

CUresult
cuMemsetD8Async(CUdeviceptr destination, unsigned char value, size_t count,
                CUstream stream)
{
    CONTEXT_CALL(
        fake_fill_locked(destination, count, &value, 1, count, 1, stream, false));
}

CUresult
cuMemsetD16(CUdeviceptr destination, unsigned short value, size_t count)
{
    CONTEXT_CALL(fake_fill_locked(destination, count, &value, 2, count, 1, 0, true));
}

CUresult
cuMemsetD16Async(CUdeviceptr destination, unsigned short value, size_t count,
                 CUstream stream)
{
    CONTEXT_CALL(
        fake_fill_locked(destination, count, &value, 2, count, 1, stream, false));
}

CUresult
cuMemsetD32(CUdeviceptr destination, unsigned value, size_t count)
{
    CONTEXT_CALL(fake_fill_locked(destination, count, &value, 4, count, 1, 0, true));
}

CUresult
cuMemsetD32Async(CUdeviceptr destination, unsigned value, size_t count, CUstream stream)
{
    CONTEXT_CALL(
        fake_fill_locked(destination, count, &value, 4, count, 1, stream, false));
}

CUresult
cuMemsetD2D8Async(CUdeviceptr destination, size_t pitch, unsigned char value,
                  size_t width, size_t height, CUstream stream)
{
    CONTEXT_CALL(
        fake_fill_locked(destination, pitch, &value, 1, width, height, stream, false));
}

CUresult
cuMemsetD2D16Async(CUdeviceptr destination, size_t pitch, unsigned short value,
                   size_t width, size_t height, CUstream stream)
{
    CONTEXT_CALL(
        fake_fill_locked(destination, pitch, &value, 2, width, height, stream, false));
}

CUresult
cuMemsetD2D32Async(CUdeviceptr destination, size_t pitch, unsigned value, size_t width,
                   size_t height, CUstream stream)
{
    CONTEXT_CALL(
        fake_fill_locked(destination, pitch, &value, 4, width, height, stream, false));
}
