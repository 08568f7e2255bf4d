/* host_baseline.c - the loops in plain C, for every CPU of the architecture. What they
 * give is what every other set gives, bit by bit. */
#include "kernels/host_kernels.h"

#define GM_LOOPS_TARGET
#include "kernels/host_loops.h"

const gm_host_kernels *
gm_host_kernels_baseline(void)
{
    static const gm_host_kernels kernels = GM_LOOPS_KERNELS("baseline");
    return &kernels;
}
