/* cuda_pages.c - pages of a CUDA device: the driver's virtual memory calls.
 *
 * A page is one handle of cuMemCreate. Which pages exist and where they are mapped is
 * kept by a page book, as for the host device: the driver checks little and says less,
 * and the book is what lets access be granted again when a peer comes. The lock is held
 * across the driver's calls, which take one of their own.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "device/cuda_internal.h"

CUmemAllocationProp
gm_cuda_page_kind(const cuda_device *self)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = self->options.index},
    };
}

CUmemAccessDesc
gm_cuda_access_of(int device)
{
    return (CUmemAccessDesc){
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
}

/* ---- whether there are pages ----------------------------------------------------- */

void
gm_cuda_pages_renounce(cuda_device *self)
{
    gm_page_book_clear_slots(&self->ops);
    self->head.info.page_size = 0;
    self->head.info.capabilities &= ~(uint32_t)(GM_CAP_PAGING | GM_CAP_ALIASING);
    self->granularity = 0;
}

/* Why there are no pages on this device, or NULL; sets the granularity. */
static const char *
find_obstacle(cuda_device *self)
{
    const gm_cuda_calls *cuda = self->cuda;
    int supported = 0;
    if (self->options.no_paging) {
        return "it was opened without paging";
    }
    if (!cuda->has_paging) {
        return "the driver has no calls for virtual memory";
    }
    CUresult result = cuda->cuDeviceGetAttribute(
        &supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        self->device);
    if (result != CUDA_SUCCESS || supported == 0) {
        return "the device does not support virtual memory management";
    }
    CUmemAllocationProp kind = gm_cuda_page_kind(self);
    if (cuda->cuMemGetAllocationGranularity(&self->granularity, &kind,
                                            CU_MEM_ALLOC_GRANULARITY_MINIMUM) !=
            CUDA_SUCCESS ||
        self->granularity < 4096 || !gm_is_pow2(self->granularity)) {
        return "the driver names no granularity that is a power of two";
    }
    return NULL;
}

gm_status
gm_cuda_pages_init(cuda_device *self) GM_NO_THREAD_ANALYSIS
{
    gm_device_info *info = &self->head.info;
    const char *obstacle = find_obstacle(self);
    self->access[0] = gm_cuda_access_of(self->options.index);
    self->access_count = 1;
    if (obstacle != NULL) {
        (void)snprintf(self->no_paging, sizeof(self->no_paging), "%s", obstacle);
        gm_cuda_pages_renounce(self);
        return GM_OK;
    }
    info->page_size =
        self->options.page_size == 0 ? self->granularity : self->options.page_size;
    if (info->page_size % self->granularity != 0) {
        return GM_INVALID;
    }
    info->capabilities |= GM_CAP_PAGING;
    if (self->options.aliasing) {
        info->capabilities |= GM_CAP_ALIASING;
    }
    else {
        (void)snprintf(self->no_aliasing, sizeof(self->no_aliasing),
                       "the option cuda_aliasing is off");
    }
    gm_page_book_init(&self->book, info->page_size, self->options.aliasing,
                      info->total);
    return GM_OK;
}

/* ---- addresses ------------------------------------------------------------------- */

gm_status
gm_cuda_address_reserve(gm_device *device, size_t size, gm_devptr *out)
{
    cuda_device *self = cuda_of(device);
    cuda_call call;
    CUdeviceptr address = 0;
    size_t alignment = device->info.page_size > GM_RANGE_ALIGNMENT
                           ? device->info.page_size
                           : GM_RANGE_ALIGNMENT;
    GM_TRY(gm_cuda_enter(self, GM_CALL_ADDRESS_RESERVE, &call));
    gm_mutex_lock(&self->memory_lock);
    gm_status status = gm_page_book_check_size(&self->book, size);
    cudaError_t error = cudaSuccess;
    if (status == GM_OK) {
        error = cuda_error(
            self->cuda->cuMemAddressReserve(&address, size, alignment, 0, 0));
        if (error == cudaSuccess) {
            status = gm_page_book_add_range(&self->book, address, size);
            if (status != GM_OK) {
                (void)self->cuda->cuMemAddressFree(address, size);
            }
            else {
                gm_tally_add(&self->tally.address_now, size);
            }
        }
    }
    gm_mutex_unlock(&self->memory_lock);
    gm_status answer = gm_cuda_leave(self, &call, error, "cuMemAddressReserve");
    /* A size that the driver's address space never has is refused as invalid. */
    if (answer == GM_OUT_OF_MEMORY || (status == GM_OK && answer == GM_INVALID)) {
        answer = GM_NO_ADDRESS;
    }
    if (answer == GM_OK && status == GM_OK) {
        *out = address;
    }
    return status != GM_OK ? status : answer;
}

gm_status
gm_cuda_address_release(gm_device *device, gm_devptr address, size_t size)
{
    cuda_device *self = cuda_of(device);
    cuda_call call;
    gm_status entered = gm_cuda_enter(self, GM_CALL_ADDRESS_RELEASE, &call);
    if (entered != GM_OK && entered != GM_DEVICE_LOST) {
        return entered;
    }
    gm_mutex_lock(&self->memory_lock);
    gm_status status = gm_page_book_check_range(&self->book, address, size);
    cudaError_t error = cudaSuccess;
    if (status == GM_OK && entered == GM_OK) {
        error = cuda_error(self->cuda->cuMemAddressFree(address, size));
    }
    if (status == GM_OK &&
        (error == cudaSuccess || gm_cuda_status(error) == GM_DEVICE_LOST)) {
        gm_page_book_remove_range(&self->book, address, size);
        gm_tally_subtract(&self->tally.address_now, size);
    }
    gm_mutex_unlock(&self->memory_lock);
    if (entered == GM_OK) {
        gm_status answer = gm_cuda_leave(self, &call, error, "cuMemAddressFree");
        status = status == GM_OK && answer != GM_DEVICE_LOST ? answer : status;
    }
    return status;
}

/* ---- pages ----------------------------------------------------------------------- */

/* Room for the handle of a page. */
static gm_status
secure_page_locked(cuda_device *self, gm_page page) GM_REQUIRES(self->memory_lock)
{
    if (page <= self->pages_capacity) {
        return GM_OK;
    }
    size_t capacity = self->pages_capacity == 0 ? 64 : self->pages_capacity * 2;
    capacity = capacity < page ? (size_t)page : capacity;
    CUmemGenericAllocationHandle *grown =
        realloc(self->pages, capacity * sizeof(*grown));
    if (grown == NULL) {
        return GM_NO_HOST_MEMORY;
    }
    self->pages = grown;
    self->pages_capacity = capacity;
    return GM_OK;
}

gm_status
gm_cuda_page_create(gm_device *device, gm_page *out)
{
    cuda_device *self = cuda_of(device);
    cuda_call call;
    gm_page page = 0;
    GM_TRY(gm_cuda_enter(self, GM_CALL_PAGE_CREATE, &call));
    gm_mutex_lock(&self->memory_lock);
    cudaError_t error = cudaSuccess;
    gm_status status = gm_page_book_create(&self->book, &page);
    if (status == GM_OK) {
        status = secure_page_locked(self, page);
        CUmemAllocationProp kind = gm_cuda_page_kind(self);
        if (status == GM_OK) {
            error = cuda_error(self->cuda->cuMemCreate(
                &self->pages[page - 1], self->head.info.page_size, &kind, 0));
        }
        if (status != GM_OK || error != cudaSuccess) {
            gm_page_book_destroy_page(&self->book, page);
        }
        else {
            gm_tally_add_memory(&self->tally, self->head.info.page_size);
        }
    }
    gm_mutex_unlock(&self->memory_lock);
    gm_status answer = gm_cuda_leave(self, &call, error, "cuMemCreate");
    if (answer == GM_OK && status == GM_OK) {
        *out = page;
    }
    return status != GM_OK ? status : answer;
}

gm_status
gm_cuda_page_destroy(gm_device *device, gm_page page)
{
    cuda_device *self = cuda_of(device);
    cuda_call call;
    gm_status entered = gm_cuda_enter(self, GM_CALL_PAGE_DESTROY, &call);
    if (entered != GM_OK && entered != GM_DEVICE_LOST) {
        return entered;
    }
    gm_mutex_lock(&self->memory_lock);
    gm_status status = gm_page_book_check_destroy(&self->book, page);
    cudaError_t error = cudaSuccess;
    if (status == GM_OK && entered == GM_OK) {
        error = cuda_error(self->cuda->cuMemRelease(self->pages[page - 1]));
    }
    if (status == GM_OK &&
        (error == cudaSuccess || gm_cuda_status(error) == GM_DEVICE_LOST)) {
        gm_page_book_destroy_page(&self->book, page);
        gm_tally_subtract(&self->tally.memory_now, self->head.info.page_size);
    }
    gm_mutex_unlock(&self->memory_lock);
    if (entered == GM_OK) {
        gm_status answer = gm_cuda_leave(self, &call, error, "cuMemRelease");
        status = status == GM_OK && answer != GM_DEVICE_LOST ? answer : status;
    }
    return status;
}

/* What the driver is short of when it refuses to map is room for one more mapping. */
static gm_status
leave_mapping(cuda_device *self, const cuda_call *call, cudaError_t error,
              const char *name)
{
    gm_status status = gm_cuda_leave(self, call, error, name);
    return status == GM_OUT_OF_MEMORY ? GM_NO_MAPPING : status;
}

gm_status
gm_cuda_map(gm_device *device, gm_devptr address, gm_page page)
{
    cuda_device *self = cuda_of(device);
    cuda_call call;
    gm_page_slots slots;
    GM_TRY(gm_cuda_enter(self, GM_CALL_MAP, &call));
    gm_mutex_lock(&self->memory_lock);
    cudaError_t error = cudaSuccess;
    gm_status status = gm_page_book_check_map(&self->book, address, page, &slots);
    if (status == GM_OK) {
        size_t size = self->head.info.page_size;
        error = cuda_error(
            self->cuda->cuMemMap(address, size, 0, self->pages[page - 1], 0));
        if (error == cudaSuccess) {
            gm_page_book_map(&self->book, &slots, page);
            gm_tally_add(&self->tally.mapped_now, size);
        }
    }
    gm_mutex_unlock(&self->memory_lock);
    gm_status answer = leave_mapping(self, &call, error, "cuMemMap");
    return status != GM_OK ? status : answer;
}

gm_status
gm_cuda_unmap(gm_device *device, gm_devptr address, size_t size)
{
    cuda_device *self = cuda_of(device);
    cuda_call call;
    gm_page_slots slots;
    gm_status entered = gm_cuda_enter(self, GM_CALL_UNMAP, &call);
    if (entered != GM_OK && entered != GM_DEVICE_LOST) {
        return entered;
    }
    gm_mutex_lock(&self->memory_lock);
    gm_status status = gm_page_book_check_mapped(&self->book, address, size, &slots);
    cudaError_t error = cudaSuccess;
    if (status == GM_OK && entered == GM_OK) {
        error = cuda_error(self->cuda->cuMemUnmap(address, size));
    }
    if (status == GM_OK &&
        (error == cudaSuccess || gm_cuda_status(error) == GM_DEVICE_LOST)) {
        gm_page_book_unmap(&self->book, &slots);
        gm_tally_subtract(&self->tally.mapped_now, size);
    }
    gm_mutex_unlock(&self->memory_lock);
    if (entered == GM_OK) {
        gm_status answer = gm_cuda_leave(self, &call, error, "cuMemUnmap");
        status = status == GM_OK && answer != GM_DEVICE_LOST ? answer : status;
    }
    return status;
}

gm_status
gm_cuda_grant(gm_device *device, gm_devptr address, size_t size)
{
    cuda_device *self = cuda_of(device);
    cuda_call call;
    gm_page_slots slots;
    GM_TRY(gm_cuda_enter(self, GM_CALL_GRANT, &call));
    gm_mutex_lock(&self->memory_lock);
    cudaError_t error = cudaSuccess;
    gm_status status = gm_page_book_check_mapped(&self->book, address, size, &slots);
    if (status == GM_OK) {
        error = cuda_error(self->cuda->cuMemSetAccess(address, size, self->access,
                                                      self->access_count));
    }
    gm_mutex_unlock(&self->memory_lock);
    gm_status answer = leave_mapping(self, &call, error, "cuMemSetAccess");
    return status != GM_OK ? status : answer;
}

/* ---- runs of mapped slots -------------------------------------------------------- */

typedef struct run_work {
    cuda_device *device;
    const CUmemAccessDesc *access;
    cudaError_t error;
} run_work;

static bool
grant_run(gm_devptr address, size_t size, void *argument)
{
    run_work *work = argument;
    work->error =
        cuda_error(work->device->cuda->cuMemSetAccess(address, size, work->access, 1));
    return work->error == cudaSuccess;
}

static bool
unmap_run(gm_devptr address, size_t size, void *argument)
{
    run_work *work = argument;
    (void)work->device->cuda->cuMemUnmap(address, size);
    return true;
}

void
gm_cuda_pages_destroy(cuda_device *self) GM_NO_THREAD_ANALYSIS
{
    run_work work = {.device = self};
    if (self->book.ranges.count == 0 && gm_page_book_next(&self->book, 0) == 0) {
        return;
    }
    (void)self->cuda->cudaDeviceSynchronize();
    gm_page_book_visit_mapped(&self->book, unmap_run, &work);
    gm_page page = 0;
    while ((page = gm_page_book_next(&self->book, page)) != 0) {
        (void)self->cuda->cuMemRelease(self->pages[page - 1]);
    }
    for (size_t i = 0; i < self->book.ranges.count; i++) {
        const gm_interval *range = &self->book.ranges.items[i];
        (void)self->cuda->cuMemAddressFree(range->address, range->size);
    }
}

/* ---- peers ----------------------------------------------------------------------- */

static bool
has_peer_locked(const cuda_device *self, int peer) GM_REQUIRES(self->memory_lock)
{
    for (size_t i = 0; i < self->access_count; i++) {
        if (self->access[i].location.id == peer) {
            return true;
        }
    }
    return false;
}

/* Opens what is mapped, and what will be. */
static cudaError_t
open_pages(cuda_device *self, int peer)
{
    CUmemAccessDesc access = gm_cuda_access_of(peer);
    run_work work = {.device = self, .access = &access};
    gm_mutex_lock(&self->memory_lock);
    if (!has_peer_locked(self, peer)) {
        gm_page_book_visit_mapped(&self->book, grant_run, &work);
        if (work.error == cudaSuccess) {
            self->access[self->access_count++] = access;
        }
    }
    gm_mutex_unlock(&self->memory_lock);
    return work.error;
}

/* Opens segments: the peer's context is told that it may reach ours. */
static cudaError_t
open_segments(cuda_device *self, int peer)
{
    const gm_cuda_calls *cuda = self->cuda;
    CUdevice device;
    CUcontext context;
    cuda_call call;
    cudaError_t error = cuda_error(cuda->cuDeviceGet(&device, peer));
    if (error != cudaSuccess) {
        return error;
    }
    error = cuda_error(cuda->cuDevicePrimaryCtxRetain(&context, device));
    if (error != cudaSuccess) {
        return error;
    }
    error = gm_cuda_switch(self, context, &call);
    if (error == cudaSuccess) {
        error = cuda->cudaDeviceEnablePeerAccess(self->options.index, 0);
        gm_cuda_switch_back(self, &call, error);
        error = error == cudaErrorPeerAccessAlreadyEnabled ? cudaSuccess : error;
    }
    (void)cuda->cuDevicePrimaryCtxRelease(device);
    return error;
}

gm_status
gm_cuda_enable_peer(gm_device *device, int peer)
{
    cuda_device *self = cuda_of(device);
    cuda_call call;
    int possible = 0;
    gm_cuda_report report;
    (void)gm_cuda_load(NULL, 0, &report);
    if (peer < 0 || peer >= report.devices || peer >= CUDA_PEERS_LIMIT ||
        peer == self->options.index) {
        return GM_INVALID;
    }
    GM_TRY(gm_cuda_enter(self, GM_CALL_GRANT, &call));
    const char *name = "cudaDeviceCanAccessPeer";
    cudaError_t error =
        self->cuda->cudaDeviceCanAccessPeer(&possible, peer, self->options.index);
    if (error == cudaSuccess && possible == 0) {
        error = cudaErrorNotSupported;
    }
    if (error == cudaSuccess) {
        name = "cudaDeviceEnablePeerAccess";
        error = open_segments(self, peer);
    }
    if (error == cudaSuccess) {
        name = "cuMemSetAccess";
        error = open_pages(self, peer);
    }
    return gm_cuda_leave(self, &call, error, name);
}
