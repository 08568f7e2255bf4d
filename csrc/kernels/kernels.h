/* kernels.h - elementwise work on device memory: accumulate, scale, divide, norm.
 *
 * Each function queues one kernel on a stream through gm_device.ops->launch, so that
 * the same call runs on the host device (loops of this folder) and, later, on CUDA.
 * The per-element arithmetic stands once, in element.h.
 *
 * Conversions round to nearest even; fp16 and bf16 are computed in fp32. Sizes are
 * element counts. All pointers are device addresses, aligned to their element.
 * Results that the host reads (flags, sums) are written to device memory in stream
 * order: synchronise the stream before reading.
 *
 * Thread-safety: pure, apart from the memory named. Cost: one pass over the operands.
 */
#ifndef GM_KERNELS_KERNELS_H
#define GM_KERNELS_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "device/device.h"

typedef enum gm_dtype {
    GM_F16 = 0,
    GM_BF16 = 1,
    GM_F32 = 2,
    GM_F64 = 3,
    GM_DTYPE_COUNT
} gm_dtype;

size_t
gm_dtype_size(gm_dtype type);

/* One of the ranges that a kernel over many of them works on. The kernel reads an array
 * of these from device memory, when it runs. */
typedef struct gm_kernel_part {
    gm_devptr accumulator; /* what is added to; not read by gm_kernel_max_abs_parts */
    gm_devptr source;
    uint64_t n;          /* elements; may be 0 */
    int32_t source_type; /* gm_dtype */
    uint32_t reserved;   /* 0 */
} gm_kernel_part;

/* What a kernel writes to say that it has run: `ticket` to the 8 bytes at `at` in device
 * memory, after its last read and write. at == 0: nowhere. */
typedef struct gm_kernel_mark {
    gm_devptr at;
    uint64_t ticket;
} gm_kernel_mark;

/* In each part, accumulator[i] += source[i] * scale, i < n. Accumulators are fp32 or
 * fp64 (16-bit ones too, on request of the caller: computed in fp32, rounded back).
 * One launch, so that all parts are added or, when it fails, none. */
GM_NODISCARD gm_status
gm_kernel_accumulate(gm_device *device, gm_stream stream, gm_dtype accumulator_type,
                     gm_devptr parts, size_t count, double scale, gm_kernel_mark mark);

/* values[i] *= scale. */
GM_NODISCARD gm_status
gm_kernel_scale(gm_device *device, gm_stream stream, gm_dtype type, gm_devptr values,
                size_t n, double scale);

/* values[i] /= divisor: each quotient in fp32 and fp64 is the exact one rounded once;
 * in a 16-bit type it is rounded to fp32 first. Pre: divisor > 0, finite. */
GM_NODISCARD gm_status
gm_kernel_divide(gm_device *device, gm_stream stream, gm_dtype type, gm_devptr values,
                 size_t n, double divisor);

/* *flag |= 1 if any value is infinite or not a number. flag: uint32 in device memory. */
GM_NODISCARD gm_status
gm_kernel_check_finite(gm_device *device, gm_stream stream, gm_dtype type,
                       gm_devptr values, size_t n, gm_devptr flag);

/* *maximum = max(*maximum, max |values|); a NaN makes it NaN. maximum: fp64. */
GM_NODISCARD gm_status
gm_kernel_max_abs(gm_device *device, gm_stream stream, gm_dtype type, gm_devptr values,
                  size_t n, gm_devptr maximum);

/* The same over the sources of all parts. */
GM_NODISCARD gm_status
gm_kernel_max_abs_parts(gm_device *device, gm_stream stream, gm_devptr parts,
                        size_t count, gm_devptr maximum, gm_kernel_mark mark);

/* *sum += sum of (|values[i]| / divisor) ** power; sum: fp64. Pre: divisor > 0. With
 * the maximum as divisor no value overflows. Pairwise summation. */
GM_NODISCARD gm_status
gm_kernel_power_sum(gm_device *device, gm_stream stream, gm_dtype type,
                    gm_devptr values, size_t n, double divisor, double power,
                    gm_devptr sum);

#endif
