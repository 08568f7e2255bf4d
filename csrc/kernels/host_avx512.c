/* host_avx512.c - the loops with AVX-512 (F, BW, DQ and VL), on x86-64 CPUs that have
 * all four. */
#include "kernels/host_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <stdint.h>

#define GM_LOOPS_TARGET \
    __attribute__((target("avx2,avx512f,avx512bw,avx512dq,avx512vl")))
#define GM_LOOPS_HALVES 16

GM_LOOPS_TARGET static inline void
widen_halves(const uint16_t *source, float *out)
{
    __m256i halves = _mm256_loadu_si256((const __m256i *)(const void *)source);
    _mm512_storeu_ps(out, _mm512_cvtph_ps(halves));
}

GM_LOOPS_TARGET static inline void
narrow_halves(const float *source, uint16_t *out)
{
    __m256i halves =
        _mm512_cvtps_ph(_mm512_loadu_ps(source), _MM_FROUND_TO_NEAREST_INT);
    _mm256_storeu_si256((__m256i *)(void *)out, halves);
}

#include "kernels/host_loops.h"

const gm_host_kernels *
gm_host_kernels_avx512(void)
{
    static const gm_host_kernels kernels = GM_LOOPS_KERNELS("avx512");
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512vl")
               ? &kernels
               : NULL;
}

#else

const gm_host_kernels *
gm_host_kernels_avx512(void)
{
    return NULL;
}

#endif
