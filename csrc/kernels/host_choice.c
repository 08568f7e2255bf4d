/* host_choice.c - which set of loops the kernels of this process use.
 *
 * Thread-safety: any thread; the choice is one atomic pointer.
 */
#include <stdatomic.h>

#include "kernels/host_kernels.h"

static _Atomic(const gm_host_kernels *) chosen;

size_t
gm_host_kernels_list(const gm_host_kernels *out[GM_HOST_KERNELS_LIMIT])
{
    const gm_host_kernels *sets[GM_HOST_KERNELS_LIMIT] = {
        gm_host_kernels_avx512(),
        gm_host_kernels_avx2(),
        gm_host_kernels_neon(),
        gm_host_kernels_baseline(),
    };
    size_t count = 0;
    for (size_t i = 0; i < GM_HOST_KERNELS_LIMIT; i++) {
        if (sets[i] != NULL) {
            out[count++] = sets[i];
        }
    }
    return count;
}

const gm_host_kernels *
gm_host_kernels_chosen(void)
{
    const gm_host_kernels *kernels =
        atomic_load_explicit(&chosen, memory_order_acquire);
    if (kernels == NULL) {
        const gm_host_kernels *sets[GM_HOST_KERNELS_LIMIT];
        (void)gm_host_kernels_list(sets);
        kernels = sets[0];
        atomic_store_explicit(&chosen, kernels, memory_order_release);
    }
    return kernels;
}

void
gm_host_kernels_force(const gm_host_kernels *kernels)
{
    atomic_store_explicit(&chosen, kernels, memory_order_release);
}
