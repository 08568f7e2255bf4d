/* gpumem.h - the exported C functions of the extension module.
 *
 * C linkage, no Python: callable from any thread, with or without the GIL, so that the
 * module's own file plugs into frameworks as an allocator. They act on the default
 * pool of CUDA device `device`, or of host device `device` with c_device=host in
 * GPUMEM_CONF. Blocks made here never belong to a scope.
 *
 * Failure never raises, never aborts and leaves no device error pending: a pointer
 * result is NULL, an int result is non-zero. After the interpreter began to exit every
 * function does nothing.
 */
#ifndef GPUMEM_H
#define GPUMEM_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define GPUMEM_API __attribute__((visibility("default")))
#else
#define GPUMEM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes, except device_allocs .. ooms, which count calls and events. */
struct gpumem_stats {
    uint64_t used;
    uint64_t used_peak;
    uint64_t reserved;
    uint64_t reserved_peak;
    uint64_t requested;
    uint64_t requested_peak;
    uint64_t device_allocs;
    uint64_t device_frees;
    uint64_t maps;
    uint64_t unmaps;
    uint64_t ooms;
};

/* `size` bytes for first use on `stream` (a cudaStream_t); NULL for size 0 and on
 * failure. Aligned to 512 bytes. */
GPUMEM_API void *
gpumem_malloc(size_t size, int device, void *stream);

/* Gives a block back, in the order of its own stream. Addresses that are no live block
 * are counted and otherwise ignored. `size`, `device` and `stream` may be 0. */
GPUMEM_API void
gpumem_free(void *ptr, size_t size, int device, void *stream);

/* The block is used on `stream`, too; see gm_pool_record_stream. */
GPUMEM_API void
gpumem_record_stream(void *ptr, void *stream);

/* Gives idle memory of every default pool back to its device. */
GPUMEM_API void
gpumem_empty_cache(void);

/* Limits the default pool of `device` to this fraction of its memory, 0 < f <= 1;
 * anything else is ignored. */
GPUMEM_API void
gpumem_set_memory_fraction(double fraction, int device);

/* `stream` is about to capture a graph: from now on its blocks come from memory that stays
 * where it is, and nothing that a capture forbids is called. The memory serves the next
 * capture on the stream, too: replay graphs of one stream in the order of their captures.
 * 0, or -1: a capture was begun on this stream already, no such device, or nothing was
 * allocated there yet. */
GPUMEM_API int
gpumem_capture_begin(int device, void *stream);

/* The capture on `stream` has ended, or failed. 0, or -1: none was begun. */
GPUMEM_API int
gpumem_capture_end(int device, void *stream);

/* 0 and *out filled, or -1: no such device, or nothing was allocated there yet (then
 * *out is zeroed). */
GPUMEM_API int
gpumem_get_stats(int device, struct gpumem_stats *out);

#ifdef __cplusplus
}
#endif

#endif
