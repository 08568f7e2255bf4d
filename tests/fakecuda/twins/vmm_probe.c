/* vmm_probe.c - what the kernels of benchmarks/vmm_probe do, on the host. Loaded before the
 * program (LD_PRELOAD), beside the stand-in for CUDA.
 */
#include <string.h>

#include "../fakecuda.h"

/* The parameters of probe_store and the first of probe_check. */
typedef struct words {
    uint32_t *words;
    uint32_t count;
    uint32_t first;
    uint32_t *bad;
} words;

static void
spin(const fakecuda_launch *launch)
{
    (void)launch;
}

static void
store(const fakecuda_launch *launch)
{
    words self = {0};
    memcpy(&self, launch->arguments, launch->argument_bytes);
    for (uint32_t i = 0; i < self.count; i++) {
        self.words[i] = self.first + i;
    }
}

static void
check(const fakecuda_launch *launch)
{
    words self = {0};
    memcpy(&self, launch->arguments, launch->argument_bytes);
    for (uint32_t i = 0; i < self.count; i++) {
        *self.bad += self.words[i] != self.first + i;
    }
}

__attribute__((constructor)) static void
register_twins(void)
{
    static const size_t sizes[] = {8, 4, 4, 8};
    fakecuda_register_kernel("probe_spin", spin, sizes, 1);
    fakecuda_register_kernel("probe_store", store, sizes, 3);
    fakecuda_register_kernel("probe_check", check, sizes, 4);
}
