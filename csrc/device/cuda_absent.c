/* cuda_absent.c - in place of the CUDA backend where NVIDIA's headers were not to be had
 * when gpumem was built (docs/decisions/0010-cuda-runtime.md).
 *
 * Everything is there and says so.
 */
#include <stdio.h>
#include <string.h>

#include "device/cuda.h"

gm_cuda_state
gm_cuda_load(const gm_cuda_place *places, size_t count, gm_cuda_report *out)
{
    (void)places, (void)count;
    if (out != NULL) {
        memset(out, 0, sizeof(*out));
        out->state = GM_CUDA_ABSENT;
        (void)snprintf(out->message, sizeof(out->message),
                       "this build of gpumem has no CUDA backend: it was built without "
                       "NVIDIA's headers (GPUMEM_CUDA=0)");
    }
    return GM_CUDA_ABSENT;
}

gm_cuda_state
gm_cuda_load_present(gm_cuda_report *out)
{
    return gm_cuda_load(NULL, 0, out);
}

gm_status
gm_cuda_create(const gm_cuda_options *options, gm_device **out)
{
    (void)options, (void)out;
    return GM_UNSUPPORTED;
}

void
gm_cuda_describe(gm_device *device, gm_cuda_description *out)
{
    (void)device;
    memset(out, 0, sizeof(*out));
}

gm_status
gm_cuda_enable_peer(gm_device *device, int peer)
{
    (void)device, (void)peer;
    return GM_UNSUPPORTED;
}
