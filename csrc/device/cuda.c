/* cuda.c - a CUDA device: its making, its context, its life.
 *
 * Read cuda_call.c next, then cuda_memory.c.
 */
#include "device/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/futex.h"
#include "device/cuda_internal.h"
#include "device/failure.h"

/* ---- making the context ---------------------------------------------------------- */

/* Its stream is not ordered with any other: memory of the driver's pool is asked for and
 * waited for there without waiting for the program's work. */
static cudaError_t
make_pool_stream(cuda_device *self)
{
    const gm_cuda_calls *cuda = self->cuda;
    int pools = 0;
    cudaError_t error = cuda->cudaDeviceGetAttribute(
        &pools, cudaDevAttrMemoryPoolsSupported, self->options.index);
    if (error == cudaSuccess && pools == 0) {
        error = cudaErrorNotSupported;
    }
    if (error == cudaSuccess) {
        error =
            cuda->cudaStreamCreateWithFlags(&self->pool_stream, cudaStreamNonBlocking);
    }
    return error;
}

/* What is done once, with the context current. */
static cudaError_t
equip_locked(cuda_device *self) GM_REQUIRES(self->setup_lock)
{
    if (gm_device_has(&self->head, GM_CAP_PAGING) && !gm_cuda_probe_locked(self)) {
        gm_cuda_pages_renounce(self);
    }
    if (!gm_device_has(&self->head, GM_CAP_PAGING) || !self->options.aliasing ||
        self->no_aliasing[0] != '\0') {
        self->head.info.capabilities &= ~(uint32_t)GM_CAP_ALIASING;
        self->book.aliasing = false;
    }
    return self->options.async_segments ? make_pool_stream(self) : cudaSuccess;
}

static cudaError_t
prepare_locked(cuda_device *self, const char **name) GM_REQUIRES(self->setup_lock)
{
    const gm_cuda_calls *cuda = self->cuda;
    cuda_call call;
    CUcontext context;
    *name = "cuDevicePrimaryCtxRetain";
    cudaError_t error =
        cuda_error(cuda->cuDevicePrimaryCtxRetain(&context, self->device));
    if (error != cudaSuccess) {
        return error;
    }
    *name = "cuCtxSetCurrent";
    error = gm_cuda_switch(self, context, &call);
    if (error == cudaSuccess) {
        *name = "cudaStreamCreateWithFlags";
        error = equip_locked(self);
        gm_cuda_switch_back(self, &call, error);
    }
    if (error != cudaSuccess) {
        (void)cuda->cuDevicePrimaryCtxRelease(self->device);
        return error;
    }
    self->context = context;
    atomic_store_explicit(&self->phase, CUDA_PREPARED, memory_order_release);
    return cudaSuccess;
}

gm_status
gm_cuda_prepare(gm_device *device)
{
    cuda_device *self = cuda_of(device);
    const char *name = "";
    GM_TRY(gm_device_usable(device));
    cudaError_t error = cudaSuccess;
    gm_mutex_lock(&self->setup_lock);
    if (atomic_load(&self->phase) == CUDA_NAMED) {
        error = prepare_locked(self, &name);
    }
    gm_mutex_unlock(&self->setup_lock);
    return error == cudaSuccess ? GM_OK : gm_cuda_fail(self, error, name);
}

/* ---- the rest of the contract ---------------------------------------------------- */

static uint64_t
cuda_clock_ns(gm_device *self)
{
    (void)self;
    return gm_monotonic_ns();
}

static uint64_t
cuda_coarse_clock_ns(gm_device *self)
{
    (void)self;
    return gm_monotonic_coarse_ns();
}

static void
cuda_counters(gm_device *self, gm_device_counters *out)
{
    gm_tally_read(&cuda_of(self)->tally, out);
}

/* With the context current everything that is left is given back. Of a lost device the
 * driver keeps what it has. */
static void
cuda_close(gm_device *device) GM_NO_THREAD_ANALYSIS
{
    cuda_device *self = cuda_of(device);
    cuda_call call;
    uint32_t phase = atomic_load(&self->phase);
    if (phase == CUDA_PREPARED &&
        gm_cuda_switch(self, self->context, &call) == cudaSuccess) {
        (void)gm_cuda_probe_end(self);
        gm_cuda_pages_destroy(self);
        gm_cuda_memory_destroy(self);
        gm_cuda_streams_destroy(self);
        gm_cuda_switch_back(self, &call, cudaErrorUnknown);
    }
    if (phase != CUDA_NAMED) {
        (void)self->cuda->cuDevicePrimaryCtxRelease(self->device);
    }
    gm_page_book_destroy(&self->book);
    gm_intervals_destroy(&self->segments);
    gm_intervals_destroy(&self->pinned);
    gm_intervals_destroy(&self->streams);
    gm_handles_destroy(&self->events);
    free(self->pages);
    free(self->spares);
    free(self);
}

static const gm_device_ops cuda_ops = {
    .prepare = gm_cuda_prepare,
    .memory_info = gm_cuda_memory_info,
    .segment_create = gm_cuda_segment_create,
    .segment_destroy = gm_cuda_segment_destroy,
    .address_reserve = gm_cuda_address_reserve,
    .address_release = gm_cuda_address_release,
    .page_create = gm_cuda_page_create,
    .page_destroy = gm_cuda_page_destroy,
    .map = gm_cuda_map,
    .unmap = gm_cuda_unmap,
    .grant = gm_cuda_grant,
    .stream_identity = gm_cuda_stream_identity,
    .stream_create = gm_cuda_stream_create,
    .stream_destroy = gm_cuda_stream_destroy,
    .stream_synchronize = gm_cuda_stream_synchronize,
    .threads_synchronize = gm_cuda_threads_synchronize,
    .stream_capturing = gm_cuda_stream_capturing,
    .event_create = gm_cuda_event_create,
    .event_destroy = gm_cuda_event_destroy,
    .event_record = gm_cuda_event_record,
    .event_query = gm_cuda_event_query,
    .event_synchronize = gm_cuda_event_synchronize,
    .stream_wait = gm_cuda_stream_wait,
    .copy_async = gm_cuda_copy_async,
    .fill_async = gm_cuda_fill_async,
    .pinned_create = gm_cuda_pinned_create,
    .pinned_destroy = gm_cuda_pinned_destroy,
    .pin = gm_cuda_pin,
    .unpin = gm_cuda_unpin,
    .clock_ns = cuda_clock_ns,
    .coarse_clock_ns = cuda_coarse_clock_ns,
    .counters = cuda_counters,
    .close = cuda_close,
};

/* ---- making one ------------------------------------------------------------------ */

static int
attribute(const cuda_device *self, enum cudaDeviceAttr which)
{
    int value = 0;
    cudaError_t pending = self->cuda->cudaPeekAtLastError();
    cudaError_t error =
        self->cuda->cudaDeviceGetAttribute(&value, which, self->options.index);
    if (error != cudaSuccess && pending == cudaSuccess) {
        (void)self->cuda->cudaGetLastError();
    }
    return error == cudaSuccess ? value : 0;
}

static gm_status
fill_info(cuda_device *self)
{
    gm_device_info *info = &self->head.info;
    size_t total;
    cudaError_t error =
        cuda_error(self->cuda->cuDeviceGet(&self->device, self->options.index));
    if (error == cudaSuccess) {
        error = cuda_error(self->cuda->cuDeviceTotalMem(&total, self->device));
    }
    if (error != cudaSuccess) {
        return gm_cuda_fail(self, error, "cuDeviceTotalMem");
    }
    (void)snprintf(info->name, sizeof(info->name), "cuda:%d", self->options.index);
    info->kind = GM_DEVICE_CUDA;
    info->index = self->options.index;
    info->total = total;
    info->alignment = GM_RANGE_ALIGNMENT;
    info->capabilities = GM_CAP_MEMORY;
    if (attribute(self, cudaDevAttrIntegrated) == 0) {
        info->capabilities |= GM_CAP_EXACT_FREE;
    }
    return gm_cuda_pages_init(self);
}

gm_status
gm_cuda_create(const gm_cuda_options *options, gm_device **out)
{
    gm_cuda_report report;
    gm_cuda_state state = gm_cuda_load(NULL, 0, &report);
    if (state != GM_CUDA_READY) {
        return state == GM_CUDA_FORKED ? GM_FORKED : GM_UNSUPPORTED;
    }
    if (options->index < 0 || options->index >= report.devices ||
        (options->page_size != 0 && !gm_is_pow2(options->page_size))) {
        return GM_INVALID;
    }
    cuda_device *self = calloc(1, sizeof(*self));
    if (self == NULL) {
        return GM_NO_HOST_MEMORY;
    }
    self->ops = cuda_ops;
    gm_device_init(&self->head, &self->ops);
    self->cuda = gm_cuda_calls_ready();
    self->options = *options;
    gm_mutex_init(&self->setup_lock, GM_RANK_DEVICE);
    gm_mutex_init(&self->memory_lock, GM_RANK_DEVICE);
    gm_mutex_init(&self->pinned_lock, GM_RANK_DEVICE);
    gm_cuda_streams_init(self);
    gm_status status = fill_info(self);
    if (status != GM_OK) {
        cuda_close(&self->head);
        return status;
    }
    *out = &self->head;
    return GM_OK;
}

/* ---- describing one -------------------------------------------------------------- */

void
gm_cuda_describe(gm_device *device, gm_cuda_description *out)
{
    cuda_device *self = cuda_of(device);
    memset(out, 0, sizeof(*out));
    if (gm_device_usable(device) != GM_OK) {
        return;
    }
    const gm_cuda_calls *cuda = self->cuda;
    cudaError_t pending = cuda->cudaPeekAtLastError();
    (void)cuda->cuDeviceGetName(out->model, (int)sizeof(out->model), self->device);
    if (cuda->cudaDeviceGetPCIBusId(out->bus_id, (int)sizeof(out->bus_id),
                                    self->options.index) != cudaSuccess) {
        out->bus_id[0] = '\0';
        if (pending == cudaSuccess) {
            (void)cuda->cudaGetLastError();
        }
    }
    out->compute_major = attribute(self, cudaDevAttrComputeCapabilityMajor);
    out->compute_minor = attribute(self, cudaDevAttrComputeCapabilityMinor);
    out->integrated = attribute(self, cudaDevAttrIntegrated) != 0;
    out->granularity = self->granularity;
    gm_mutex_lock(&self->setup_lock);
    out->prepared = atomic_load(&self->phase) != CUDA_NAMED;
    memcpy(out->no_paging, self->no_paging, sizeof(out->no_paging));
    memcpy(out->no_aliasing, self->no_aliasing, sizeof(out->no_aliasing));
    memcpy(out->lost, self->lost, sizeof(out->lost));
    gm_mutex_unlock(&self->setup_lock);
    gm_mutex_lock(&self->memory_lock);
    for (size_t i = 1; i < self->access_count; i++) {
        out->peers |= (uint32_t)1 << self->access[i].location.id;
    }
    gm_mutex_unlock(&self->memory_lock);
}
