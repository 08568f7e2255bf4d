/* host_avx2.c - the loops with AVX2 and F16C, on x86-64 CPUs that have both. */
#include "kernels/host_kernels.h"

#if defined(__x86_64__)

#include <cpuid.h>

#define GM_LOOPS_TARGET __attribute__((target("avx2,f16c")))
#define GM_LOOPS_F16C 1
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
    static const gm_host_kernels kernels = {
        "avx2",       loops_accumulate, loops_scale,
        loops_divide, loops_max_abs,    loops_power_sum,
    };
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
