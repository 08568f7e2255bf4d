/* cuda_memory.c - whole allocations, page-locked memory, copies and fills of a CUDA
 * device.
 *
 * Note [Segments]
 * The contract wants segments at multiples of GM_RANGE_ALIGNMENT. The driver gives large
 * allocations such addresses, and small ones parts of a larger one; so it is asked for
 * whole multiples, and once more with room to align in, should it ever answer otherwise.
 * The registry keeps what the driver gave.
 */
#include <string.h>

#include "base/bits.h"
#include "device/cuda_internal.h"

gm_status
gm_cuda_memory_info(gm_device *device, size_t *free_bytes, size_t *total_bytes)
{
    cuda_device *self = cuda_of(device);
    cuda_call call;
    size_t free_now = 0, total = 0;
    GM_TRY(gm_cuda_enter(self, GM_CALL_MEMORY_INFO, &call));
    cudaError_t error = self->cuda->cudaMemGetInfo(&free_now, &total);
    GM_TRY(gm_cuda_leave(self, &call, error, "cudaMemGetInfo"));
    *free_bytes = free_now;
    *total_bytes = total;
    return GM_OK;
}

/* ---- whole allocations ----------------------------------------------------------- */

/* Memory of the driver's pool is there for one stream until that was waited for. */
static cudaError_t
allocate(cuda_device *self, size_t size, void **out)
{
    const gm_cuda_calls *cuda = self->cuda;
    if (self->pool_stream == NULL) {
        return cuda->cudaMalloc(out, size);
    }
    cudaError_t error = cuda->cudaMallocAsync(out, size, self->pool_stream);
    if (error == cudaSuccess) {
        error = cuda->cudaStreamSynchronize(self->pool_stream);
        if (error != cudaSuccess) {
            (void)cuda->cudaFreeAsync(*out, self->pool_stream);
        }
    }
    return error;
}

/* The driver's pool gives memory back when its stream is waited for. */
static cudaError_t
release(cuda_device *self, void *memory)
{
    const gm_cuda_calls *cuda = self->cuda;
    if (self->pool_stream == NULL) {
        return cuda->cudaFree(memory);
    }
    cudaError_t error = cuda->cudaFreeAsync(memory, self->pool_stream);
    if (error == cudaSuccess) {
        (void)cuda->cudaStreamSynchronize(self->pool_stream);
    }
    return error;
}

static bool
is_aligned(const void *memory)
{
    return (uintptr_t)memory % GM_RANGE_ALIGNMENT == 0;
}

/* *base is what the driver gave; an aligned place in it has room for `size` bytes. */
static cudaError_t
allocate_aligned(cuda_device *self, size_t size, void **base)
{
    size_t padded;
    cudaError_t error = allocate(self, size, base);
    if (error != cudaSuccess || is_aligned(*base)) {
        return error;
    }
    error = release(self, *base);
    if (error != cudaSuccess ||
        gm_align_up(size + 1, GM_RANGE_ALIGNMENT, &padded) != GM_OK) {
        return error != cudaSuccess ? error : cudaErrorMemoryAllocation;
    }
    return allocate(self, padded, base);
}

gm_status
gm_cuda_segment_create(gm_device *device, size_t size, gm_devptr *out)
{
    cuda_device *self = cuda_of(device);
    cuda_call call;
    size_t span;
    void *base = NULL;
    GM_TRY(gm_cuda_enter(self, GM_CALL_SEGMENT_CREATE, &call));
    cudaError_t error = cudaErrorInvalidValue;
    if (size != 0 && size % 512 == 0) {
        error = gm_align_up(size, GM_RANGE_ALIGNMENT, &span) != GM_OK
                    ? cudaErrorMemoryAllocation
                    : allocate_aligned(self, span, &base);
    }
    gm_status status = GM_OK;
    gm_devptr address = 0;
    if (error == cudaSuccess) {
        address = gm_align_up_unchecked((uintptr_t)base, GM_RANGE_ALIGNMENT);
        gm_mutex_lock(&self->memory_lock);
        status = gm_intervals_insert(&self->segments, address, size, base);
        if (status == GM_OK) {
            gm_tally_add_memory(&self->tally, size);
        }
        gm_mutex_unlock(&self->memory_lock);
        if (status != GM_OK) {
            (void)release(self, base);
        }
    }
    gm_status answer = gm_cuda_leave(self, &call, error, "cudaMalloc");
    if (answer == GM_OK && status == GM_OK) {
        *out = address;
    }
    return answer != GM_OK ? answer : status;
}

/* What the driver gave for the segment, or NULL: there is no such segment. */
static void *
find_segment(cuda_device *self, gm_devptr address, size_t size)
{
    gm_mutex_lock(&self->memory_lock);
    gm_interval *segment = gm_intervals_exactly(&self->segments, address, size);
    void *base = segment == NULL ? NULL : segment->data;
    gm_mutex_unlock(&self->memory_lock);
    return base;
}

static void
forget_segment(cuda_device *self, gm_devptr address, size_t size)
{
    gm_mutex_lock(&self->memory_lock);
    gm_interval *segment = gm_intervals_exactly(&self->segments, address, size);
    if (segment != NULL) {
        gm_intervals_remove(&self->segments, segment);
        gm_tally_subtract(&self->tally.memory_now, size);
    }
    gm_mutex_unlock(&self->memory_lock);
}

/* What the driver refuses to take back stays in the registry until the device goes. */
gm_status
gm_cuda_segment_destroy(gm_device *device, gm_devptr address, size_t size)
{
    cuda_device *self = cuda_of(device);
    cuda_call call;
    gm_status status = gm_cuda_enter(self, GM_CALL_SEGMENT_DESTROY, &call);
    if (status != GM_OK && status != GM_DEVICE_LOST) {
        return status;
    }
    void *base = find_segment(self, address, size);
    if (status == GM_OK) {
        cudaError_t error = base == NULL ? cudaErrorInvalidValue : release(self, base);
        status = gm_cuda_leave(self, &call, error, "cudaFree");
    }
    else if (base == NULL) {
        return GM_INVALID;
    }
    if (status == GM_OK || status == GM_DEVICE_LOST) {
        forget_segment(self, address, size);
        return GM_OK;
    }
    return status;
}

void
gm_cuda_memory_destroy(cuda_device *self) GM_NO_THREAD_ANALYSIS
{
    for (size_t i = 0; i < self->segments.count; i++) {
        (void)release(self, self->segments.items[i].data);
    }
    for (size_t i = 0; i < self->pinned.count; i++) {
        const gm_interval *range = &self->pinned.items[i];
        void *memory = (void *)(uintptr_t)range->address;
        (void)(range->data != NULL ? self->cuda->cudaFreeHost(memory)
                                   : self->cuda->cudaHostUnregister(memory));
    }
    if (self->pool_stream != NULL) {
        (void)self->cuda->cudaStreamSynchronize(self->pool_stream);
        (void)self->cuda->cudaStreamDestroy(self->pool_stream);
    }
}

/* ---- page-locked memory ---------------------------------------------------------- */

/* Puts the range into the registry. */
static gm_status
note_pinned(cuda_device *self, void *memory, size_t size, bool made_here)
{
    gm_mutex_lock(&self->pinned_lock);
    gm_status status = gm_intervals_insert(&self->pinned, (uintptr_t)memory, size,
                                           made_here ? memory : NULL);
    if (status == GM_OK) {
        gm_tally_add(&self->tally.pinned_now, size);
    }
    gm_mutex_unlock(&self->pinned_lock);
    return status;
}

static bool
is_pinned(cuda_device *self, void *memory, size_t size, bool made_here)
{
    gm_mutex_lock(&self->pinned_lock);
    gm_interval *range = gm_intervals_exactly(&self->pinned, (uintptr_t)memory, size);
    bool found = range != NULL && (range->data != NULL) == made_here;
    gm_mutex_unlock(&self->pinned_lock);
    return found;
}

static void
forget_pinned(cuda_device *self, void *memory, size_t size)
{
    gm_mutex_lock(&self->pinned_lock);
    gm_interval *range = gm_intervals_exactly(&self->pinned, (uintptr_t)memory, size);
    if (range != NULL) {
        gm_intervals_remove(&self->pinned, range);
        gm_tally_subtract(&self->tally.pinned_now, size);
    }
    gm_mutex_unlock(&self->pinned_lock);
}

/* What is short is memory of the host. */
static gm_status
leave_pinned(cuda_device *self, const cuda_call *call, cudaError_t error,
             const char *name)
{
    gm_status status = gm_cuda_leave(self, call, error, name);
    return status == GM_OUT_OF_MEMORY ? GM_NO_HOST_MEMORY : status;
}

gm_status
gm_cuda_pinned_create(gm_device *device, size_t size, void **out)
{
    cuda_device *self = cuda_of(device);
    cuda_call call;
    void *memory = NULL;
    GM_TRY(gm_cuda_enter(self, GM_CALL_PINNED_CREATE, &call));
    cudaError_t error = cudaErrorInvalidValue;
    gm_status noted = GM_OK;
    if (size != 0 && size <= SIZE_MAX / 2) {
        error = self->cuda->cudaHostAlloc(&memory, size, cudaHostAllocPortable);
    }
    if (error == cudaSuccess) {
        noted = note_pinned(self, memory, size, true);
        if (noted != GM_OK) {
            (void)self->cuda->cudaFreeHost(memory);
        }
    }
    gm_status status = leave_pinned(self, &call, error, "cudaHostAlloc");
    status = status == GM_OK ? noted : status;
    if (status == GM_OK) {
        *out = memory;
    }
    return status;
}

/* The registry decides first, so that a range which overlaps is never handed to the
 * driver. */
gm_status
gm_cuda_pin(gm_device *device, void *memory, size_t size)
{
    cuda_device *self = cuda_of(device);
    cuda_call call;
    GM_TRY(gm_cuda_enter(self, GM_CALL_PIN, &call));
    gm_status noted = memory == NULL || size == 0
                          ? GM_INVALID
                          : note_pinned(self, memory, size, false);
    cudaError_t error = cudaSuccess;
    if (noted == GM_OK) {
        error = self->cuda->cudaHostRegister(memory, size, cudaHostRegisterPortable);
        if (error != cudaSuccess) {
            forget_pinned(self, memory, size);
        }
    }
    gm_status status = leave_pinned(self, &call, error, "cudaHostRegister");
    return status == GM_OK ? noted : status;
}

/* Gives a range of the registry back to the driver or to its owner. */
static gm_status
give_back(cuda_device *self, gm_device_call kind, void *memory, size_t size,
          bool made_here)
{
    const gm_cuda_calls *cuda = self->cuda;
    cuda_call call;
    gm_status status = gm_cuda_enter(self, kind, &call);
    if (status != GM_OK && status != GM_DEVICE_LOST) {
        return status;
    }
    bool found = is_pinned(self, memory, size, made_here);
    if (status == GM_OK) {
        cudaError_t error = cudaErrorInvalidValue;
        if (found) {
            error = made_here ? cuda->cudaFreeHost(memory)
                              : cuda->cudaHostUnregister(memory);
        }
        status = gm_cuda_leave(self, &call, error,
                               made_here ? "cudaFreeHost" : "cudaHostUnregister");
    }
    else if (!found) {
        return GM_INVALID;
    }
    if (status == GM_OK || status == GM_DEVICE_LOST) {
        forget_pinned(self, memory, size);
        return GM_OK;
    }
    return status;
}

gm_status
gm_cuda_pinned_destroy(gm_device *device, void *memory, size_t size)
{
    return give_back(cuda_of(device), GM_CALL_PINNED_DESTROY, memory, size, true);
}

gm_status
gm_cuda_unpin(gm_device *device, void *memory, size_t size)
{
    return give_back(cuda_of(device), GM_CALL_UNPIN, memory, size, false);
}

/* ---- work ------------------------------------------------------------------------ */

static cudaStream_t
stream_of(gm_stream stream)
{
    return (cudaStream_t)(uintptr_t)stream;
}

static bool
is_range(gm_devptr address, size_t size)
{
    return address != 0 && size - 1 <= UINT64_MAX - address;
}

gm_status
gm_cuda_copy_async(gm_device *device, gm_devptr destination, gm_devptr source, size_t n,
                   gm_stream stream)
{
    cuda_device *self = cuda_of(device);
    cuda_call call;
    GM_TRY(gm_cuda_enter(self, GM_CALL_COPY, &call));
    cudaError_t error = cudaSuccess;
    if (n != 0) {
        error = is_range(destination, n) && is_range(source, n)
                    ? self->cuda->cudaMemcpyAsync((void *)(uintptr_t)destination,
                                                  (const void *)(uintptr_t)source, n,
                                                  cudaMemcpyDefault, stream_of(stream))
                    : cudaErrorInvalidValue;
    }
    return gm_cuda_leave(self, &call, error, "cudaMemcpyAsync");
}

/* The largest of 4, 2 and 1 that the place and the element are made of. */
static size_t
unit_of(gm_devptr destination, size_t width)
{
    size_t unit = 4;
    while (destination % unit != 0 || width % unit != 0) {
        unit /= 2;
    }
    return unit;
}

static unsigned
unit_at(const unsigned char *pattern, size_t offset, size_t unit)
{
    uint32_t word = 0;
    memcpy(&word, pattern + offset, unit); /* little-endian on all that we build for */
    return word;
}

static cudaError_t
fill_row(const gm_cuda_calls *cuda, gm_devptr destination, unsigned value, size_t unit,
         size_t count, cudaStream_t stream)
{
    switch (unit) {
        case 4:
            return cuda_error(
                cuda->cuMemsetD32Async(destination, value, count, stream));
        case 2:
            return cuda_error(cuda->cuMemsetD16Async(destination, (unsigned short)value,
                                                     count, stream));
        default:
            return cuda_error(cuda->cuMemsetD8Async(destination, (unsigned char)value,
                                                    count, stream));
    }
}

/* One unit of each element, for elements that are not one unit over and over: a column
 * of a matrix whose rows are the elements. */
static cudaError_t
fill_column(const gm_cuda_calls *cuda, gm_devptr destination, size_t width,
            unsigned value, size_t unit, size_t count, cudaStream_t stream)
{
    switch (unit) {
        case 4:
            return cuda_error(
                cuda->cuMemsetD2D32Async(destination, width, value, 1, count, stream));
        case 2:
            return cuda_error(cuda->cuMemsetD2D16Async(
                destination, width, (unsigned short)value, 1, count, stream));
        default:
            return cuda_error(cuda->cuMemsetD2D8Async(
                destination, width, (unsigned char)value, 1, count, stream));
    }
}

static cudaError_t
fill(const gm_cuda_calls *cuda, gm_devptr destination, const unsigned char *pattern,
     size_t width, size_t count, cudaStream_t stream)
{
    size_t unit = unit_of(destination, width);
    unsigned first = unit_at(pattern, 0, unit);
    bool uniform = true;
    for (size_t offset = unit; offset < width; offset += unit) {
        uniform = uniform && unit_at(pattern, offset, unit) == first;
    }
    if (uniform) {
        return fill_row(cuda, destination, first, unit, count * (width / unit), stream);
    }
    cudaError_t error = cudaSuccess;
    for (size_t offset = 0; offset < width && error == cudaSuccess; offset += unit) {
        error = fill_column(cuda, destination + offset, width,
                            unit_at(pattern, offset, unit), unit, count, stream);
    }
    return error;
}

gm_status
gm_cuda_fill_async(gm_device *device, gm_devptr destination, const void *pattern,
                   size_t width, size_t count, gm_stream stream)
{
    cuda_device *self = cuda_of(device);
    cuda_call call;
    GM_TRY(gm_cuda_enter(self, GM_CALL_FILL, &call));
    bool valid = width != 0 && width <= 16 && gm_is_pow2(width) &&
                 count <= SIZE_MAX / 16 &&
                 (count == 0 || is_range(destination, width * count));
    cudaError_t error = cudaErrorInvalidValue;
    if (valid) {
        error = count == 0 ? cudaSuccess
                           : fill(self->cuda, destination, pattern, width, count,
                                  stream_of(stream));
    }
    return gm_cuda_leave(self, &call, error, "cuMemsetD32Async");
}
