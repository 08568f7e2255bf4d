/* copies.h - the bodies of copies and fills, for both interfaces. All functions need the
 * lock. */
#ifndef FAKECUDA_COPIES_H
#define FAKECUDA_COPIES_H

#include "work.h"

/* A rectangle: `height` rows of `width` bytes. The devices are those of a peer copy; -1:
 * the stream's. */
typedef struct fake_copy {
    uint64_t destination, source;
    size_t destination_pitch, source_pitch;
    size_t width, height;
    enum cudaMemcpyKind kind;
    int destination_device, source_device;
} fake_copy;

/* `waits`: it is one of the calls without a stream, which wait as far as the direction
 * makes them. */
int
fake_copy_locked(const fake_copy *copy, CUstream stream, bool waits);

/* `count` elements in each of `height` rows. */
int
fake_fill_locked(uint64_t destination, size_t pitch, const void *pattern, size_t size,
                 size_t count, size_t height, CUstream stream, bool waits);

static inline fake_copy
fake_plain_copy(const void *destination, const void *source, size_t size,
                enum cudaMemcpyKind kind)
{
    return (fake_copy){.destination = (uint64_t)(uintptr_t)destination,
                       .source = (uint64_t)(uintptr_t)source,
                       .destination_pitch = size,
                       .source_pitch = size,
                       .width = size,
                       .height = 1,
                       .kind = kind,
                       .destination_device = -1,
                       .source_device = -1};
}

#endif
