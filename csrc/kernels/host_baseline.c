/* host_baseline.c - the loops for every CPU of the architecture. */
#include "kernels/host_kernels.h"

#define GM_LOOPS_TARGET
#define GM_LOOPS_F16C 0
#include "kernels/host_loops.h"

const gm_host_kernels *
gm_host_kernels_baseline(void)
{
    static const gm_host_kernels kernels = {
        "baseline",   loops_accumulate, loops_scale,
        loops_divide, loops_max_abs,    loops_power_sum,
    };
    return &kernels;
}
