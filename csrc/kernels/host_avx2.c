/* host_avx2.c - the loops with AVX2 and F16C, on x86-64 CPUs that have both. */
#include "kernels/host_kernels.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>
#include <stdint.h>

#define GM_LOOPS_TARGET __attribute__((target("avx2,f16c")))
#define GM_LOOPS_HALVES 8

GM_LOOPS_TARGET static inline void
widen_halves(const uint16_t *source, float *out)
{
    __m128i halves = _mm_loadu_si128((const __m128i *)(const void *)source);
    _mm256_storeu_ps(out, _mm256_cvtph_ps(halves));
}

GM_LOOPS_TARGET static inline void
narrow_halves(const float *source, uint16_t *out)
{
    __m128i halves =
        _mm256_cvtps_ph(_mm256_loadu_ps(source), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128((__m128i *)(void *)out, halves);
}

#include "kernels/host_loops.h"

/* __builtin_cpu_supports knows that the system saves the wide registers, but not every
 * compiler lets it be asked for F16C. */
static bool
cpu_has_f16c(void)
{
    unsigned int a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & (1u << 29)) != 0;
}

const gm_host_kernels *
gm_host_kernels_avx2(void)
{
    static const gm_host_kernels kernels = GM_LOOPS_KERNELS("avx2");
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && cpu_has_f16c() ? &kernels : NULL;
}

#else

const gm_host_kernels *
gm_host_kernels_avx2(void)
{
    return NULL;
}

#endif
