/* pinned_device.c - see pinned_device.h. */
#include "device/pinned_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/list.h"
#include "base/mutex.h"

/* A segment, and the allocation of the inner device that it lies in: pinned memory is
 * aligned to 4096, segments to GM_RANGE_ALIGNMENT, so the allocation may be larger. */
typedef struct pinned_segment {
    gm_list link;
    gm_devptr address;
    size_t size;
    void *memory;
    size_t memory_size;
} pinned_segment;

/* An event of the inner device that can also be recorded on the host. */
typedef struct pinned_event {
    gm_event inner;
    _Atomic bool on_host; /* last recorded there: done */
} pinned_event;

typedef struct pinned_device {
    gm_device head;
    gm_device *inner; /* owned */
    gm_mutex lock;
    gm_list segments GM_GUARDED_BY(lock);
} pinned_device;

static pinned_device *
self_of(gm_device *device)
{
    return (pinned_device *)(void *)device;
}

static gm_device *
inner_of(gm_device *device)
{
    return self_of(device)->inner;
}

static pinned_event *
event_of(gm_event event)
{
    return (pinned_event *)(uintptr_t)event;
}

/* ---- memory ---------------------------------------------------------------------- */

/* Physical memory of the machine: pinned memory takes it. */
static gm_status
pinned_memory_info(gm_device *device, size_t *free_bytes, size_t *total_bytes)
{
    long page = sysconf(_SC_PAGESIZE);
    long available = sysconf(_SC_AVPHYS_PAGES);
    if (page <= 0 || available < 0) {
        return GM_DEVICE_ERROR;
    }
    *free_bytes = (size_t)available * (size_t)page;
    *total_bytes = device->info.total;
    return GM_OK;
}

/* `size` bytes at a multiple of GM_RANGE_ALIGNMENT: as they come if they come so, else
 * in the middle of a larger piece. */
static gm_status
create_aligned(gm_device *inner, size_t size, pinned_segment *segment)
{
    const uintptr_t mask = GM_RANGE_ALIGNMENT - 1;
    segment->size = segment->memory_size = size;
    GM_TRY(inner->ops->pinned_create(inner, size, &segment->memory));
    segment->address = (uintptr_t)segment->memory;
    if ((segment->address & mask) == 0) {
        return GM_OK;
    }
    GM_TRY(inner->ops->pinned_destroy(inner, segment->memory, size));
    if (size > SIZE_MAX - mask) {
        return GM_OUT_OF_MEMORY;
    }
    segment->memory_size = size + mask;
    GM_TRY(inner->ops->pinned_create(inner, segment->memory_size, &segment->memory));
    segment->address = ((uintptr_t)segment->memory + mask) & ~mask;
    return GM_OK;
}

static gm_status
pinned_segment_create(gm_device *device, size_t size, gm_devptr *out)
{
    pinned_device *self = self_of(device);
    pinned_segment *segment = malloc(sizeof(*segment));
    if (segment == NULL) {
        return GM_NO_HOST_MEMORY;
    }
    gm_status status = create_aligned(self->inner, size, segment);
    if (status != GM_OK) {
        free(segment);
        return status == GM_NO_HOST_MEMORY ? GM_OUT_OF_MEMORY : status;
    }
    gm_mutex_lock(&self->lock);
    gm_list_push_back(&self->segments, &segment->link);
    gm_mutex_unlock(&self->lock);
    *out = segment->address;
    return GM_OK;
}

/* Unlinks and returns the segment at `address`; NULL when there is none. */
static pinned_segment *
take_segment(pinned_device *self, gm_devptr address)
{
    pinned_segment *found = NULL;
    gm_mutex_lock(&self->lock);
    GM_LIST_FOREACH(link, &self->segments) {
        pinned_segment *segment = GM_CONTAINER_OF(link, pinned_segment, link);
        if (segment->address == address) {
            found = segment;
            gm_list_remove(link);
            break;
        }
    }
    gm_mutex_unlock(&self->lock);
    return found;
}

static gm_status
pinned_segment_destroy(gm_device *device, gm_devptr address, size_t size)
{
    pinned_device *self = self_of(device);
    pinned_segment *segment = take_segment(self, address);
    if (segment == NULL) {
        return GM_INVALID;
    }
    gm_status status = segment->size != size
                           ? GM_INVALID
                           : self->inner->ops->pinned_destroy(
                                 self->inner, segment->memory, segment->memory_size);
    free(segment);
    return status;
}

/* ---- streams and events ---------------------------------------------------------- */

static uint64_t
pinned_stream_identity(gm_device *device, gm_stream stream)
{
    if (stream == GM_HOST_STREAM) {
        return GM_HOST_STREAM;
    }
    gm_device *inner = inner_of(device);
    return inner->ops->stream_identity(inner, stream);
}

static gm_status
pinned_stream_create(gm_device *device, gm_stream *out)
{
    gm_device *inner = inner_of(device);
    return inner->ops->stream_create(inner, out);
}

static gm_status
pinned_stream_destroy(gm_device *device, gm_stream stream)
{
    gm_device *inner = inner_of(device);
    return inner->ops->stream_destroy(inner, stream);
}

static gm_status
pinned_stream_synchronize(gm_device *device, gm_stream stream, uint64_t timeout_ns)
{
    gm_device *inner = inner_of(device);
    if (stream == GM_HOST_STREAM) {
        return GM_OK;
    }
    return inner->ops->stream_synchronize(inner, stream, timeout_ns);
}

static gm_status
pinned_threads_synchronize(gm_device *device, uint64_t timeout_ns)
{
    gm_device *inner = inner_of(device);
    if (inner->ops->threads_synchronize == NULL) {
        return GM_UNSUPPORTED;
    }
    return inner->ops->threads_synchronize(inner, timeout_ns);
}

static gm_status
pinned_stream_capturing(gm_device *device, gm_stream stream, bool *out)
{
    gm_device *inner = inner_of(device);
    if (stream == GM_HOST_STREAM || inner->ops->stream_capturing == NULL) {
        *out = false;
        return GM_OK;
    }
    return inner->ops->stream_capturing(inner, stream, out);
}

static gm_status
pinned_event_create(gm_device *device, gm_event *out)
{
    gm_device *inner = inner_of(device);
    pinned_event *event = malloc(sizeof(*event));
    if (event == NULL) {
        return GM_NO_HOST_MEMORY;
    }
    gm_status status = inner->ops->event_create(inner, &event->inner);
    if (status != GM_OK) {
        free(event);
        return status;
    }
    atomic_init(&event->on_host, false);
    *out = (uintptr_t)event;
    return GM_OK;
}

static gm_status
pinned_event_destroy(gm_device *device, gm_event event)
{
    gm_device *inner = inner_of(device);
    gm_status status = inner->ops->event_destroy(inner, event_of(event)->inner);
    free(event_of(event));
    return status;
}

static gm_status
pinned_event_record(gm_device *device, gm_event event, gm_stream stream)
{
    gm_device *inner = inner_of(device);
    if (stream == GM_HOST_STREAM) {
        atomic_store(&event_of(event)->on_host, true);
        return GM_OK;
    }
    GM_TRY(inner->ops->event_record(inner, event_of(event)->inner, stream));
    atomic_store(&event_of(event)->on_host, false);
    return GM_OK;
}

static gm_status
pinned_event_query(gm_device *device, gm_event event)
{
    gm_device *inner = inner_of(device);
    if (atomic_load(&event_of(event)->on_host)) {
        return GM_OK;
    }
    return inner->ops->event_query(inner, event_of(event)->inner);
}

static gm_status
pinned_event_synchronize(gm_device *device, gm_event event, uint64_t timeout_ns)
{
    gm_device *inner = inner_of(device);
    if (atomic_load(&event_of(event)->on_host)) {
        return GM_OK;
    }
    return inner->ops->event_synchronize(inner, event_of(event)->inner, timeout_ns);
}

/* The host cannot be told to start later: it waits itself, by event_synchronize. */
static gm_status
pinned_stream_wait(gm_device *device, gm_stream stream, gm_event event)
{
    gm_device *inner = inner_of(device);
    if (atomic_load(&event_of(event)->on_host)) {
        return GM_OK;
    }
    if (stream == GM_HOST_STREAM) {
        gm_status status = inner->ops->event_query(inner, event_of(event)->inner);
        return status == GM_NOT_READY ? GM_UNSUPPORTED : status;
    }
    return inner->ops->stream_wait(inner, stream, event_of(event)->inner);
}

/* ---- the rest -------------------------------------------------------------------- */

static uint64_t
pinned_clock_ns(gm_device *device)
{
    gm_device *inner = inner_of(device);
    return inner->ops->clock_ns(inner);
}

static uint64_t
pinned_coarse_clock_ns(gm_device *device)
{
    gm_device *inner = inner_of(device);
    return inner->ops->coarse_clock_ns(inner);
}

static void
pinned_counters(gm_device *device, gm_device_counters *out)
{
    gm_device *inner = inner_of(device);
    inner->ops->counters(inner, out);
}

static void
pinned_close(gm_device *device)
{
    gm_device_release(inner_of(device));
    free(self_of(device));
}

/* No pages; copies, fills and kernels are asked of the inner device. */
static const gm_device_ops PINNED_OPS = {
    .memory_info = pinned_memory_info,
    .segment_create = pinned_segment_create,
    .segment_destroy = pinned_segment_destroy,
    .stream_identity = pinned_stream_identity,
    .stream_create = pinned_stream_create,
    .stream_destroy = pinned_stream_destroy,
    .stream_synchronize = pinned_stream_synchronize,
    .threads_synchronize = pinned_threads_synchronize,
    .stream_capturing = pinned_stream_capturing,
    .event_create = pinned_event_create,
    .event_destroy = pinned_event_destroy,
    .event_record = pinned_event_record,
    .event_query = pinned_event_query,
    .event_synchronize = pinned_event_synchronize,
    .stream_wait = pinned_stream_wait,
    .clock_ns = pinned_clock_ns,
    .coarse_clock_ns = pinned_coarse_clock_ns,
    .counters = pinned_counters,
    .close = pinned_close,
};

gm_device *
gm_pinned_device_inner(gm_device *device)
{
    return device->ops == &PINNED_OPS ? inner_of(device) : device;
}

gm_status
gm_pinned_device_create(gm_device *inner, gm_device **out)
{
    if (inner->ops->pinned_create == NULL || inner->ops->pinned_destroy == NULL) {
        return GM_UNSUPPORTED;
    }
    pinned_device *self = calloc(1, sizeof(*self));
    if (self == NULL) {
        return GM_NO_HOST_MEMORY;
    }
    gm_device_init(&self->head, &PINNED_OPS);
    self->inner = gm_device_retain(inner);
    gm_mutex_init(&self->lock, GM_RANK_DEVICE);
    gm_list_init(&self->segments);
    gm_device_info *info = &self->head.info;
    snprintf(info->name, sizeof(info->name), "%.20s pinned", inner->info.name);
    info->kind = GM_DEVICE_HOST;
    info->index = inner->info.index;
    info->capabilities = GM_CAP_HOST_ACCESS | GM_CAP_MEMORY |
                         (inner->info.capabilities & GM_CAP_OWN_STREAMS);
    info->alignment = GM_RANGE_ALIGNMENT;
    long pages = sysconf(_SC_PHYS_PAGES);
    long page = sysconf(_SC_PAGESIZE);
    info->total = pages > 0 && page > 0 ? (size_t)pages * (size_t)page : SIZE_MAX / 4;
    *out = &self->head;
    return GM_OK;
}
