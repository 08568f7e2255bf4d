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

typedef struct probe {
    cuda_device *device;
    const gm_cuda_calls *cuda;
    size_t size;       /* bytes of the page */
    CUdeviceptr range; /* two slots; 0: not reserved */
    CUmemGenericAllocationHandle page;
    bool has_page;
    unsigned mapped; /* bit n: slot n */
    cudaStream_t stream;
    const char *step;
} probe;

/* Sets the step, so that a failure can be named. */
#define STEP(probe, name, expression) \
    ((probe)->step = (name), cuda_error(expression) == cudaSuccess)

static bool
probe_map(probe *self, unsigned slot)
{
    const gm_cuda_calls *cuda = self->cuda;
    CUdeviceptr at = self->range + slot * self->size;
    CUmemAccessDesc access = gm_cuda_access_of(self->device->options.index);
    if (!STEP(self, "cuMemMap", cuda->cuMemMap(at, self->size, 0, self->page, 0))) {
        return false;
    }
    self->mapped |= 1u << slot;
    return STEP(self, "cuMemSetAccess",
                cuda->cuMemSetAccess(at, self->size, &access, 1));
}

/* The last word of the page through a slot. */
static bool
probe_read(probe *self, unsigned slot, uint32_t *word)
{
    const gm_cuda_calls *cuda = self->cuda;
    CUdeviceptr at = self->range + (slot + 1) * self->size - sizeof(*word);
    return STEP(self, "cudaMemcpyAsync",
                (CUresult)cuda->cudaMemcpyAsync(word, (const void *)(uintptr_t)at,
                                                sizeof(*word), cudaMemcpyDefault,
                                                self->stream)) &&
           STEP(self, "cudaStreamSynchronize",
                (CUresult)cuda->cudaStreamSynchronize(self->stream));
}

/* Fills the page through one slot and reads it through the other. */
static bool
probe_content(probe *self, unsigned written, unsigned read, uint32_t value)
{
    CUdeviceptr at = self->range + written * self->size;
    uint32_t word = 0;
    if (!STEP(self, "cuMemsetD32Async",
              self->cuda->cuMemsetD32Async(at, value, self->size / sizeof(value),
                                           self->stream)) ||
        !probe_read(self, read, &word)) {
        return false;
    }
    self->step = "reading what was filled";
    return word == value;
}

static bool
probe_begin(probe *self)
{
    const gm_cuda_calls *cuda = self->cuda;
    CUmemAllocationProp kind = gm_cuda_page_kind(self->device);
    size_t alignment =
        self->size > GM_RANGE_ALIGNMENT ? self->size : GM_RANGE_ALIGNMENT;
    size_t range = (size_t)gm_align_up_unchecked(2 * self->size, GM_RANGE_ALIGNMENT);
    if (!STEP(self, "cuMemAddressReserve",
              cuda->cuMemAddressReserve(&self->range, range, alignment, 0, 0))) {
        self->range = 0;
        return false;
    }
    self->has_page =
        STEP(self, "cuMemCreate", cuda->cuMemCreate(&self->page, self->size, &kind, 0));
    if (!self->has_page) {
        return false;
    }
    return STEP(self, "cudaStreamCreateWithFlags",
                (CUresult)cuda->cudaStreamCreateWithFlags(&self->stream,
                                                          cudaStreamNonBlocking));
}

static CUresult
unmap_slot(probe *self, unsigned slot)
{
    return self->cuda->cuMemUnmap(self->range + slot * self->size, self->size);
}

static CUresult
release_page(probe *self, unsigned unused)
{
    (void)unused;
    return self->cuda->cuMemRelease(self->page);
}

static CUresult
free_range(probe *self, unsigned unused)
{
    (void)unused;
    size_t range = (size_t)gm_align_up_unchecked(2 * self->size, GM_RANGE_ALIGNMENT);
    return self->cuda->cuMemAddressFree(self->range, range);
}

/* A step of the way back. What fails is tried once more, so that nothing is left of a
 * probe that will not be repeated; it has failed all the same. */
static bool
undo(probe *self, const char *name, CUresult (*step)(probe *self, unsigned slot),
     unsigned slot, bool *passed)
{
    if (step(self, slot) == CUDA_SUCCESS) {
        return true;
    }
    self->step = name;
    *passed = false;
    return step(self, slot) == CUDA_SUCCESS;
}

/* Takes everything apart; false when something of it failed. What the device may still
 * be working on stays where it is. */
static bool
probe_end(probe *self)
{
    const gm_cuda_calls *cuda = self->cuda;
    bool passed = true;
    bool idle = self->stream == NULL ||
                cuda->cudaStreamSynchronize(self->stream) == cudaSuccess ||
                cuda->cudaDeviceSynchronize() == cudaSuccess;
    for (unsigned slot = 0; slot < 2 && idle; slot++) {
        if ((self->mapped >> slot & 1) != 0 &&
            undo(self, "cuMemUnmap", unmap_slot, slot, &passed)) {
            self->mapped &= ~(1u << slot);
        }
    }
    if (self->stream != NULL && cuda->cudaStreamDestroy(self->stream) != cudaSuccess) {
        (void)cuda->cudaStreamDestroy(self->stream);
    }
    if (self->has_page) {
        (void)undo(self, "cuMemRelease", release_page, 0, &passed);
    }
    if (self->range != 0 && self->mapped == 0) {
        (void)undo(self, "cuMemAddressFree", free_range, 0, &passed);
    }
    return passed;
}

bool
gm_cuda_probe_locked(cuda_device *self)
{
    probe trial = {
        .device = self, .cuda = self->cuda, .size = self->head.info.page_size};
    bool passed = probe_begin(&trial) && probe_map(&trial, 0) &&
                  probe_content(&trial, 0, 0, PROBE_WORD);
    bool aliased = passed && self->options.aliasing && probe_map(&trial, 1) &&
                   probe_content(&trial, 0, 1, PROBE_OTHER_WORD) &&
                   probe_content(&trial, 1, 0, PROBE_WORD);
    const char *step = trial.step;
    if (passed && self->options.aliasing && !aliased) {
        (void)snprintf(self->no_aliasing, sizeof(self->no_aliasing),
                       "the probe failed: %s of a page that is mapped twice", step);
    }
    if (!probe_end(&trial) && passed) {
        passed = false;
        step = trial.step;
    }
    if (!passed) {
        (void)snprintf(self->no_paging, sizeof(self->no_paging), "the probe failed: %s",
                       step);
    }
    return passed;
}
