/* host_kernels.h - the host's loops, one set for each instruction set.
 *
 *     host_baseline.c   what every CPU of the architecture has
 *     host_avx2.c       x86-64 with AVX2 and F16C
 *     host_avx512.c     x86-64 with AVX-512 F, BW, DQ and VL
 *     host_neon.c       aarch64
 *
 * All compile host_loops.h; host_choice.c chooses when the first kernel runs. All sets
 * give the same bits: each result is rounded at the same places, sums have one order.
 * (Which of two NaNs an operation passes on is left to the compiler.)
 *
 * Thread-safety: pure functions, apart from the memory named.
 */
#ifndef GM_KERNELS_HOST_KERNELS_H
#define GM_KERNELS_HOST_KERNELS_H

#include <stddef.h>

#include "kernels/kernels.h"

typedef struct gm_host_kernels {
    const char *name; /* "baseline", "avx2", "avx512", "neon" */
    /* As gm_kernel_accumulate. The two arrays are the same or do not overlap. */
    void (*accumulate)(gm_dtype accumulator_type, void *accumulator,
                       gm_dtype source_type, const void *source, size_t n,
                       double scale);
    void (*scale)(gm_dtype type, void *values, size_t n, double scale);
    void (*divide)(gm_dtype type, void *values, size_t n, double divisor);
    /* The largest magnitude; infinite or NaN if any value is. 0 for n == 0. */
    double (*max_abs)(gm_dtype type, const void *values, size_t n);
    /* The sum of (|value| / divisor) ** power, pairwise. */
    double (*power_sum)(gm_dtype type, const void *values, size_t n, double divisor,
                        double power);
} gm_host_kernels;

/* Never NULL. */
const gm_host_kernels *
gm_host_kernels_baseline(void);

/* NULL when this CPU does not have the instructions. */
const gm_host_kernels *
gm_host_kernels_avx2(void);
const gm_host_kernels *
gm_host_kernels_avx512(void);
const gm_host_kernels *
gm_host_kernels_neon(void);

#define GM_HOST_KERNELS_LIMIT 4

/* The sets that this CPU can run, the preferred one first and the baseline last.
 * Returns how many. */
size_t
gm_host_kernels_list(const gm_host_kernels *out[GM_HOST_KERNELS_LIMIT]);

/* The set that kernels use in this process. */
const gm_host_kernels *
gm_host_kernels_chosen(void);

/* For tests: kernels use this set from now on. NULL: the preferred one again. */
void
gm_host_kernels_force(const gm_host_kernels *kernels);

#endif
