/* copies.c - copies and fills.
 *
 * Note [Pageable memory]
 * The device cannot read memory of the host that is not page-locked. From there the
 * driver takes a copy before the call returns; to there the call returns when all is
 * done. Page-locked memory is read and written when the work runs, and not before.
 */
#include "copies.h"

#include <string.h>

#include "memory.h"

/* A side of a copy. */
typedef enum fake_side {
    FAKE_PAGEABLE,
    FAKE_LOCKED,
    FAKE_ON_DEVICE,
} fake_side;

static fake_side
side_of_locked(uint64_t address)
{
    const fake_mapping *mapping = fake_mapping_at_locked(address);
    if (mapping != NULL && mapping->memory->device < 0) {
        return FAKE_LOCKED;
    }
    return mapping != NULL || fake_is_device_address_locked(address) ? FAKE_ON_DEVICE
                                                                     : FAKE_PAGEABLE;
}

/* Does the direction that the program names fit the addresses? */
static bool
kind_fits_locked(const fake_copy *copy)
{
    bool to_device = side_of_locked(copy->destination) == FAKE_ON_DEVICE;
    bool from_device = side_of_locked(copy->source) == FAKE_ON_DEVICE;
    switch (copy->kind) {
        case cudaMemcpyHostToHost:
            return !to_device && !from_device;
        case cudaMemcpyHostToDevice:
            return side_of_locked(copy->destination) != FAKE_PAGEABLE && !from_device;
        case cudaMemcpyDeviceToHost:
            return !to_device && side_of_locked(copy->source) != FAKE_PAGEABLE;
        case cudaMemcpyDeviceToDevice:
            return side_of_locked(copy->destination) != FAKE_PAGEABLE &&
                   side_of_locked(copy->source) != FAKE_PAGEABLE;
        default:
            return copy->kind == cudaMemcpyDefault;
    }
}

/* The device that must have access. Memory of cudaMalloc can be copied by any device,
 * through the host if need be; mapped memory only by those that were granted access. */
static int
copying_device_locked(uint64_t address, int named, int stream_device)
{
    const fake_mapping *mapping = fake_mapping_at_locked(address);
    if (named >= 0 || mapping == NULL || mapping->memory->device < 0) {
        return named >= 0 ? named : stream_device;
    }
    return mapping->origin == FAKE_OF_VMM ? stream_device : mapping->memory->device;
}

static size_t
extent(size_t pitch, size_t width, size_t height)
{
    return (height - 1) * pitch + width;
}

static void
stage(fake_task *task)
{
    char *bytes = fake_allocate(task->width * task->height);
    for (size_t row = 0; row < task->height; row++) {
        const char *from =
            (const char *)(uintptr_t)(task->source + row * task->source_pitch);
        memcpy(bytes + row * task->width, from, task->width);
    }
    task->staged = bytes;
    task->source = (uint64_t)(uintptr_t)bytes;
    task->source_pitch = task->width;
}

static int
add_copy_spans_locked(fake_task *task, const fake_copy *copy, int device)
{
    int error = fake_add_span_locked(
        task, copy->destination,
        extent(copy->destination_pitch, copy->width, copy->height),
        copying_device_locked(copy->destination, copy->destination_device, device),
        true);
    if (error == 0) {
        error = fake_add_span_locked(
            task, copy->source, extent(copy->source_pitch, copy->width, copy->height),
            copying_device_locked(copy->source, copy->source_device, device), false);
    }
    return error;
}

/* Does a call without a stream wait for the copy? Device to device, none does; from
 * pageable memory it is enough that the bytes were taken. */
static bool
must_wait_locked(const fake_copy *copy, bool waits)
{
    fake_side to = side_of_locked(copy->destination);
    fake_side from = side_of_locked(copy->source);
    if (waits) {
        return !(to == FAKE_ON_DEVICE && from != FAKE_LOCKED);
    }
    return to == FAKE_PAGEABLE;
}

int
fake_copy_locked(const fake_copy *copy, CUstream handle, bool waits)
{
    int error = waits ? fake_check_unsafe_locked() : 0;
    fake_stream *stream = error != 0 ? NULL : fake_stream_of_locked(handle, &error);
    if (stream == NULL || copy->width == 0 || copy->height == 0) {
        return error;
    }
    if (copy->destination == 0 || copy->source == 0 ||
        copy->destination_pitch < copy->width || copy->source_pitch < copy->width) {
        return (int)cudaErrorInvalidValue;
    }
    fake_task task = {.work = FAKE_COPY,
                      .device = stream->device,
                      .destination = copy->destination,
                      .source = copy->source,
                      .destination_pitch = copy->destination_pitch,
                      .source_pitch = copy->source_pitch,
                      .width = copy->width,
                      .height = copy->height};
    error = add_copy_spans_locked(&task, copy, stream->device);
    if (error == 0 && !kind_fits_locked(copy)) {
        error = (int)cudaErrorInvalidMemcpyDirection;
    }
    if (error != 0) {
        fake_task_clear(&task);
        return error;
    }
    bool captured = stream->capture != NULL;
    if (side_of_locked(copy->source) == FAKE_PAGEABLE && !captured) {
        if (waits) {
            (void)fake_finish_locked(stream->last);
        }
        stage(&task);
    }
    fake_op *op;
    bool wait = must_wait_locked(copy, waits) && !captured;
    error = fake_submit_locked(stream, &task, NULL, &op);
    return error == 0 && wait ? fake_finish_locked(op) : error;
}

int
fake_fill_locked(uint64_t destination, size_t pitch, const void *pattern, size_t size,
                 size_t count, size_t height, CUstream handle, bool waits)
{
    int error = waits ? fake_check_unsafe_locked() : 0;
    fake_stream *stream = error != 0 ? NULL : fake_stream_of_locked(handle, &error);
    if (stream == NULL || count == 0 || height == 0) {
        return error;
    }
    size_t width = count * size;
    if (destination % size != 0 || (height > 1 && pitch < width)) {
        return (int)cudaErrorInvalidValue;
    }
    fake_side side = side_of_locked(destination);
    if (side == FAKE_PAGEABLE) {
        return (int)cudaErrorInvalidValue;
    }
    fake_task task = {.work = FAKE_FILL,
                      .device = stream->device,
                      .destination = destination,
                      .destination_pitch = pitch,
                      .width = width,
                      .height = height,
                      .pattern_size = size};
    memcpy(task.pattern, pattern, size);
    error = fake_add_span_locked(&task, destination, extent(pitch, width, height),
                                 stream->device, true);
    if (error != 0) {
        fake_task_clear(&task);
        return error;
    }
    fake_op *op;
    error = fake_submit_locked(stream, &task, NULL, &op);
    return error == 0 && waits && side == FAKE_LOCKED ? fake_finish_locked(op) : error;
}

/* ---- the runtime's calls --------------------------------------------------------------- */

static int
copy_bytes_locked(void *destination, const void *source, size_t size,
                  enum cudaMemcpyKind kind, CUstream stream, bool waits)
{
    fake_copy copy = fake_plain_copy(destination, source, size, kind);
    return fake_copy_locked(&copy, stream, waits);
}

static int
copy_peer_locked(void *destination, int to, const void *source, int from, size_t size,
                 CUstream stream, bool waits)
{
    if (to < 0 || to >= fake_setting.devices || from < 0 ||
        from >= fake_setting.devices) {
        return (int)cudaErrorInvalidDevice;
    }
    fake_copy copy = fake_plain_copy(destination, source, size, cudaMemcpyDefault);
    copy.destination_device = to;
    copy.source_device = from;
    return fake_copy_locked(&copy, stream, waits);
}

static int
copy_rows_locked(void *destination, size_t destination_pitch, const void *source,
                 size_t source_pitch, size_t width, size_t height,
                 enum cudaMemcpyKind kind, CUstream stream, bool waits)
{
    fake_copy copy = fake_plain_copy(destination, source, width, kind);
    copy.destination_pitch = destination_pitch;
    copy.source_pitch = source_pitch;
    copy.height = height;
    return fake_copy_locked(&copy, stream, waits);
}

static int
fill_bytes_locked(void *destination, int value, size_t size, CUstream stream,
                  bool waits)
{
    unsigned char byte = (unsigned char)value;
    return fake_fill_locked((uint64_t)(uintptr_t)destination, size, &byte, 1, size, 1,
                            stream, waits);
}

cudaError_t
cudaMemcpy(void *destination, const void *source, size_t size, enum cudaMemcpyKind kind)
{
    RUNTIME_CALL(copy_bytes_locked(destination, source, size, kind, 0, true));
}

cudaError_t
cudaMemcpyAsync(void *destination, const void *source, size_t size,
                enum cudaMemcpyKind kind, cudaStream_t stream)
{
    RUNTIME_CALL(copy_bytes_locked(destination, source, size, kind, stream, false));
}

cudaError_t
cudaMemcpyPeer(void *destination, int to, const void *source, int from, size_t size)
{
    RUNTIME_CALL(copy_peer_locked(destination, to, source, from, size, 0, true));
}

cudaError_t
cudaMemcpyPeerAsync(void *destination, int to, const void *source, int from,
                    size_t size, cudaStream_t stream)
{
    RUNTIME_CALL(copy_peer_locked(destination, to, source, from, size, stream, false));
}

cudaError_t
cudaMemcpy2D(void *destination, size_t destination_pitch, const void *source,
             size_t source_pitch, size_t width, size_t height, enum cudaMemcpyKind kind)
{
    RUNTIME_CALL(copy_rows_locked(destination, destination_pitch, source, source_pitch,
                                  width, height, kind, 0, true));
}

cudaError_t
cudaMemcpy2DAsync(void *destination, size_t destination_pitch, const void *source,
                  size_t source_pitch, size_t width, size_t height,
                  enum cudaMemcpyKind kind, cudaStream_t stream)
{
    RUNTIME_CALL(copy_rows_locked(destination, destination_pitch, source, source_pitch,
                                  width, height, kind, stream, false));
}

cudaError_t
cudaMemset(void *destination, int value, size_t size)
{
    RUNTIME_CALL(fill_bytes_locked(destination, value, size, 0, true));
}

cudaError_t
cudaMemsetAsync(void *destination, int value, size_t size, cudaStream_t stream)
{
    RUNTIME_CALL(fill_bytes_locked(destination, value, size, stream, false));
}
