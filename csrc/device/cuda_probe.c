/* cuda_probe.c - does the driver's virtual memory work on this device?
 *
 * Note [The probe]
 * Not every driver that has the calls can do all of them (virtual machines, WSL, MPS),
 * and some fail at the last one. So the whole sequence runs once on the device, with a
 * fill that is read back, before a pool may build on it. With the option `aliasing` it
 * also maps the page twice and reads through one address what was written through the
 * other.
 */
#include <stdio.h>

#include "base/bits.h"
#include "device/cuda_internal.h"

#define PROBE_WORD 0x5AC3E1F0u
#define PROBE_OTHER_WORD 0x1E2D3C4Bu

/* Sets the step, so that a failure can be named. */
#define STEP(self, name, expression) \
    ((self)->probe.step = (name), cuda_error(expression) == cudaSuccess)

static bool
probe_map(cuda_device *self, unsigned slot)
{
    const gm_cuda_calls *cuda = self->cuda;
    cuda_probe *probe = &self->probe;
    CUdeviceptr at = probe->range + slot * probe->size;
    CUmemAccessDesc access = gm_cuda_access_of(self->options.index);
    if (!STEP(self, "cuMemMap", cuda->cuMemMap(at, probe->size, 0, probe->page, 0))) {
        return false;
    }
    probe->mapped |= 1u << slot;
    return STEP(self, "cuMemSetAccess",
                cuda->cuMemSetAccess(at, probe->size, &access, 1));
}

/* The last word of the page through a slot. */
static bool
probe_read(cuda_device *self, unsigned slot, uint32_t *word)
{
    const gm_cuda_calls *cuda = self->cuda;
    const cuda_probe *probe = &self->probe;
    CUdeviceptr at = probe->range + (slot + 1) * probe->size - sizeof(*word);
    return STEP(self, "cudaMemcpyAsync",
                (CUresult)cuda->cudaMemcpyAsync(word, (const void *)(uintptr_t)at,
                                                sizeof(*word), cudaMemcpyDefault,
                                                probe->stream)) &&
           STEP(self, "cudaStreamSynchronize",
                (CUresult)cuda->cudaStreamSynchronize(probe->stream));
}

/* Fills the page through one slot and reads it through the other. */
static bool
probe_content(cuda_device *self, unsigned written, unsigned read, uint32_t value)
{
    const cuda_probe *probe = &self->probe;
    CUdeviceptr at = probe->range + written * probe->size;
    uint32_t word = 0;
    if (!STEP(self, "cuMemsetD32Async",
              self->cuda->cuMemsetD32Async(at, value, probe->size / sizeof(value),
                                           probe->stream)) ||
        !probe_read(self, read, &word)) {
        return false;
    }
    self->probe.step = "reading what was filled";
    return word == value;
}

static size_t
range_size(const cuda_probe *probe)
{
    return (size_t)gm_align_up_unchecked(2 * probe->size, GM_RANGE_ALIGNMENT);
}

static bool
probe_begin(cuda_device *self)
{
    const gm_cuda_calls *cuda = self->cuda;
    cuda_probe *probe = &self->probe;
    CUmemAllocationProp kind = gm_cuda_page_kind(self);
    probe->size = self->head.info.page_size;
    size_t alignment =
        probe->size > GM_RANGE_ALIGNMENT ? probe->size : GM_RANGE_ALIGNMENT;
    if (!STEP(self, "cuMemAddressReserve",
              cuda->cuMemAddressReserve(&probe->range, range_size(probe), alignment, 0,
                                        0))) {
        probe->range = 0;
        return false;
    }
    probe->has_page = STEP(self, "cuMemCreate",
                           cuda->cuMemCreate(&probe->page, probe->size, &kind, 0));
    if (!probe->has_page) {
        return false;
    }
    return STEP(self, "cudaStreamCreateWithFlags",
                (CUresult)cuda->cudaStreamCreateWithFlags(&probe->stream,
                                                          cudaStreamNonBlocking));
}

/* What the device may still be working on stays where it is. */
bool
gm_cuda_probe_end(cuda_device *self) GM_NO_THREAD_ANALYSIS
{
    const gm_cuda_calls *cuda = self->cuda;
    cuda_probe *probe = &self->probe;
    bool passed = true;
    if (probe->stream != NULL &&
        cuda->cudaStreamSynchronize(probe->stream) != cudaSuccess &&
        cuda->cudaDeviceSynchronize() != cudaSuccess) {
        return false;
    }
    for (unsigned slot = 0; slot < 2; slot++) {
        CUdeviceptr at = probe->range + slot * probe->size;
        if ((probe->mapped >> slot & 1) == 0) {
            continue;
        }
        if (STEP(self, "cuMemUnmap", cuda->cuMemUnmap(at, probe->size))) {
            probe->mapped &= ~(1u << slot);
        }
        passed = passed && (probe->mapped >> slot & 1) == 0;
    }
    if (probe->stream != NULL &&
        cuda->cudaStreamDestroy(probe->stream) == cudaSuccess) {
        probe->stream = NULL;
    }
    if (passed && probe->has_page) {
        passed = STEP(self, "cuMemRelease", cuda->cuMemRelease(probe->page));
        probe->has_page = !passed;
    }
    if (passed && probe->range != 0) {
        passed = STEP(self, "cuMemAddressFree",
                      cuda->cuMemAddressFree(probe->range, range_size(probe)));
        probe->range = passed ? 0 : probe->range;
    }
    return passed;
}

bool
gm_cuda_probe_locked(cuda_device *self)
{
    bool passed = probe_begin(self) && probe_map(self, 0) &&
                  probe_content(self, 0, 0, PROBE_WORD);
    bool aliased = passed && self->options.aliasing && probe_map(self, 1) &&
                   probe_content(self, 0, 1, PROBE_OTHER_WORD) &&
                   probe_content(self, 1, 0, PROBE_WORD);
    const char *step = self->probe.step;
    if (passed && self->options.aliasing && !aliased) {
        (void)snprintf(self->no_aliasing, sizeof(self->no_aliasing),
                       "the probe failed: %s of a page that is mapped twice", step);
    }
    if (!gm_cuda_probe_end(self) && passed) {
        passed = false;
        step = self->probe.step;
    }
    if (!passed) {
        (void)snprintf(self->no_paging, sizeof(self->no_paging), "the probe failed: %s",
                       step);
    }
    return passed;
}
