/* fault.c - one wrapper for each call of the contract: first the plan, then the wrapped
 * device. Counting, sleeping, failing and writing down happen in `strike` alone.
 */
#include "device/fault.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mutex.h"

#define NS_PER_SECOND 1000000000u

typedef struct fault_device {
    gm_device head;
    gm_device_ops ops; /* NULL where the inner device has NULL */
    gm_device *inner;  /* owned */
    gm_mutex lock;
    bool armed GM_GUARDED_BY(lock);
    gm_fault_plan plan GM_GUARDED_BY(lock);
    uint64_t seen GM_GUARDED_BY(lock); /* calls that the plan is about, since armed */
    uint64_t injected GM_GUARDED_BY(lock);
    gm_device_call *ring GM_GUARDED_BY(lock); /* owned; recorded kinds */
    size_t ring_limit GM_GUARDED_BY(lock);
    size_t ring_next GM_GUARDED_BY(lock);
    size_t ring_count GM_GUARDED_BY(lock);
} fault_device;

static fault_device *
fault_of(gm_device *self)
{
    return (fault_device *)(void *)self;
}

static gm_device *
inner_of(gm_device *self)
{
    return fault_of(self)->inner;
}

static void
sleep_ns(uint64_t nanoseconds)
{
    struct timespec left = {.tv_sec = (time_t)(nanoseconds / NS_PER_SECOND),
                            .tv_nsec = (long)(nanoseconds % NS_PER_SECOND)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

static void
write_down_locked(fault_device *fault, gm_device_call call) GM_REQUIRES(fault->lock)
{
    if (fault->ring_limit == 0) {
        return;
    }
    fault->ring[fault->ring_next] = call;
    fault->ring_next = (fault->ring_next + 1) % fault->ring_limit;
    if (fault->ring_count < fault->ring_limit) {
        fault->ring_count++;
    }
}

/* What the call answers without being made, or GM_OK: make it. */
static gm_status
strike(gm_device *self, gm_device_call call)
{
    fault_device *fault = fault_of(self);
    gm_status status = GM_OK;
    uint64_t delay_ns = 0;
    GM_TRY(gm_device_usable(self));
    gm_mutex_lock(&fault->lock);
    write_down_locked(fault, call);
    const gm_fault_plan *plan = &fault->plan;
    if (fault->armed && (plan->call == -1 || plan->call == (int)call)) {
        fault->seen++;
        delay_ns = plan->delay_ns;
        if (plan->nth != 0 &&
            (fault->seen == plan->nth || (plan->for_ever && fault->seen > plan->nth))) {
            status = plan->status;
            fault->injected++;
        }
    }
    gm_mutex_unlock(&fault->lock);
    if (delay_ns > 0) {
        sleep_ns(delay_ns);
    }
    return status;
}

/* ---- memory ---------------------------------------------------------------------- */

static gm_status
fault_memory_info(gm_device *self, size_t *free_bytes, size_t *total_bytes)
{
    GM_TRY(strike(self, GM_CALL_MEMORY_INFO));
    return inner_of(self)->ops->memory_info(inner_of(self), free_bytes, total_bytes);
}

static gm_status
fault_segment_create(gm_device *self, size_t size, gm_devptr *out)
{
    GM_TRY(strike(self, GM_CALL_SEGMENT_CREATE));
    return inner_of(self)->ops->segment_create(inner_of(self), size, out);
}

static gm_status
fault_segment_destroy(gm_device *self, gm_devptr address, size_t size)
{
    GM_TRY(strike(self, GM_CALL_SEGMENT_DESTROY));
    return inner_of(self)->ops->segment_destroy(inner_of(self), address, size);
}

static gm_status
fault_address_reserve(gm_device *self, size_t size, gm_devptr *out)
{
    GM_TRY(strike(self, GM_CALL_ADDRESS_RESERVE));
    return inner_of(self)->ops->address_reserve(inner_of(self), size, out);
}

static gm_status
fault_address_release(gm_device *self, gm_devptr address, size_t size)
{
    GM_TRY(strike(self, GM_CALL_ADDRESS_RELEASE));
    return inner_of(self)->ops->address_release(inner_of(self), address, size);
}

static gm_status
fault_page_create(gm_device *self, gm_page *out)
{
    GM_TRY(strike(self, GM_CALL_PAGE_CREATE));
    return inner_of(self)->ops->page_create(inner_of(self), out);
}

static gm_status
fault_page_destroy(gm_device *self, gm_page page)
{
    GM_TRY(strike(self, GM_CALL_PAGE_DESTROY));
    return inner_of(self)->ops->page_destroy(inner_of(self), page);
}

static gm_status
fault_map(gm_device *self, gm_devptr address, gm_page page)
{
    GM_TRY(strike(self, GM_CALL_MAP));
    return inner_of(self)->ops->map(inner_of(self), address, page);
}

static gm_status
fault_unmap(gm_device *self, gm_devptr address, size_t size)
{
    GM_TRY(strike(self, GM_CALL_UNMAP));
    return inner_of(self)->ops->unmap(inner_of(self), address, size);
}

static gm_status
fault_grant(gm_device *self, gm_devptr address, size_t size)
{
    GM_TRY(strike(self, GM_CALL_GRANT));
    return inner_of(self)->ops->grant(inner_of(self), address, size);
}

/* ---- streams and events ---------------------------------------------------------- */

static gm_status
fault_stream_create(gm_device *self, gm_stream *out)
{
    GM_TRY(strike(self, GM_CALL_STREAM_CREATE));
    return inner_of(self)->ops->stream_create(inner_of(self), out);
}

static gm_status
fault_stream_destroy(gm_device *self, gm_stream stream)
{
    GM_TRY(strike(self, GM_CALL_STREAM_DESTROY));
    return inner_of(self)->ops->stream_destroy(inner_of(self), stream);
}

static gm_status
fault_stream_synchronize(gm_device *self, gm_stream stream, uint64_t timeout_ns)
{
    GM_TRY(strike(self, GM_CALL_STREAM_SYNCHRONIZE));
    return inner_of(self)->ops->stream_synchronize(inner_of(self), stream, timeout_ns);
}

static gm_status
fault_threads_synchronize(gm_device *self, uint64_t timeout_ns)
{
    GM_TRY(strike(self, GM_CALL_THREADS_SYNCHRONIZE));
    return inner_of(self)->ops->threads_synchronize(inner_of(self), timeout_ns);
}

static gm_status
fault_stream_capturing(gm_device *self, gm_stream stream, bool *out)
{
    GM_TRY(strike(self, GM_CALL_STREAM_CAPTURING));
    return inner_of(self)->ops->stream_capturing(inner_of(self), stream, out);
}

static gm_status
fault_event_create(gm_device *self, gm_event *out)
{
    GM_TRY(strike(self, GM_CALL_EVENT_CREATE));
    return inner_of(self)->ops->event_create(inner_of(self), out);
}

static gm_status
fault_event_destroy(gm_device *self, gm_event event)
{
    GM_TRY(strike(self, GM_CALL_EVENT_DESTROY));
    return inner_of(self)->ops->event_destroy(inner_of(self), event);
}

static gm_status
fault_event_record(gm_device *self, gm_event event, gm_stream stream)
{
    GM_TRY(strike(self, GM_CALL_EVENT_RECORD));
    return inner_of(self)->ops->event_record(inner_of(self), event, stream);
}

static gm_status
fault_event_query(gm_device *self, gm_event event)
{
    GM_TRY(strike(self, GM_CALL_EVENT_QUERY));
    return inner_of(self)->ops->event_query(inner_of(self), event);
}

static gm_status
fault_event_synchronize(gm_device *self, gm_event event, uint64_t timeout_ns)
{
    GM_TRY(strike(self, GM_CALL_EVENT_SYNCHRONIZE));
    return inner_of(self)->ops->event_synchronize(inner_of(self), event, timeout_ns);
}

static gm_status
fault_stream_wait(gm_device *self, gm_stream stream, gm_event event)
{
    GM_TRY(strike(self, GM_CALL_STREAM_WAIT));
    return inner_of(self)->ops->stream_wait(inner_of(self), stream, event);
}

/* ---- work ------------------------------------------------------------------------ */

static gm_status
fault_copy_async(gm_device *self, gm_devptr destination, gm_devptr source, size_t n,
                 gm_stream stream)
{
    GM_TRY(strike(self, GM_CALL_COPY));
    return inner_of(self)->ops->copy_async(inner_of(self), destination, source, n,
                                           stream);
}

static gm_status
fault_fill_async(gm_device *self, gm_devptr destination, const void *pattern,
                 size_t width, size_t count, gm_stream stream)
{
    GM_TRY(strike(self, GM_CALL_FILL));
    return inner_of(self)->ops->fill_async(inner_of(self), destination, pattern, width,
                                           count, stream);
}

static gm_status
fault_launch(gm_device *self, const gm_kernel *kernel, const void *arguments,
             size_t size, gm_stream stream)
{
    GM_TRY(strike(self, GM_CALL_LAUNCH));
    return inner_of(self)->ops->launch(inner_of(self), kernel, arguments, size, stream);
}

/* ---- pinned host memory ---------------------------------------------------------- */

static gm_status
fault_pinned_create(gm_device *self, size_t size, void **out)
{
    GM_TRY(strike(self, GM_CALL_PINNED_CREATE));
    return inner_of(self)->ops->pinned_create(inner_of(self), size, out);
}

static gm_status
fault_pinned_destroy(gm_device *self, void *memory, size_t size)
{
    GM_TRY(strike(self, GM_CALL_PINNED_DESTROY));
    return inner_of(self)->ops->pinned_destroy(inner_of(self), memory, size);
}

static gm_status
fault_pin(gm_device *self, void *memory, size_t size)
{
    GM_TRY(strike(self, GM_CALL_PIN));
    return inner_of(self)->ops->pin(inner_of(self), memory, size);
}

static gm_status
fault_unpin(gm_device *self, void *memory, size_t size)
{
    GM_TRY(strike(self, GM_CALL_UNPIN));
    return inner_of(self)->ops->unpin(inner_of(self), memory, size);
}

/* ---- calls that are never made to fail ------------------------------------------- */

static uint64_t
fault_stream_identity(gm_device *self, gm_stream stream)
{
    return inner_of(self)->ops->stream_identity(inner_of(self), stream);
}

static uint64_t
fault_clock_ns(gm_device *self)
{
    return inner_of(self)->ops->clock_ns(inner_of(self));
}

static uint64_t
fault_coarse_clock_ns(gm_device *self)
{
    return inner_of(self)->ops->coarse_clock_ns(inner_of(self));
}

static void
fault_counters(gm_device *self, gm_device_counters *out)
{
    inner_of(self)->ops->counters(inner_of(self), out);
}

static void
fault_note_block(gm_device *self, gm_devptr address, size_t size, uint64_t identity)
{
    inner_of(self)->ops->note_block(inner_of(self), address, size, identity);
}

static void
fault_note_use(gm_device *self, gm_devptr address, size_t size, uint64_t identity)
{
    inner_of(self)->ops->note_use(inner_of(self), address, size, identity);
}

static void
fault_close(gm_device *self) GM_NO_THREAD_ANALYSIS
{
    fault_device *fault = fault_of(self);
    gm_device_release(fault->inner);
    free(fault->ring);
    free(fault);
}

/* ---- making one ------------------------------------------------------------------ */

/* A wrapper where the inner device has a function, NULL where it has none. */
static void
fill_ops(gm_device_ops *ops, const gm_device_ops *inner)
{
    ops->memory_info = inner->memory_info == NULL ? NULL : fault_memory_info;
    ops->segment_create = inner->segment_create == NULL ? NULL : fault_segment_create;
    ops->segment_destroy =
        inner->segment_destroy == NULL ? NULL : fault_segment_destroy;
    ops->address_reserve =
        inner->address_reserve == NULL ? NULL : fault_address_reserve;
    ops->address_release =
        inner->address_release == NULL ? NULL : fault_address_release;
    ops->page_create = inner->page_create == NULL ? NULL : fault_page_create;
    ops->page_destroy = inner->page_destroy == NULL ? NULL : fault_page_destroy;
    ops->map = inner->map == NULL ? NULL : fault_map;
    ops->unmap = inner->unmap == NULL ? NULL : fault_unmap;
    ops->grant = inner->grant == NULL ? NULL : fault_grant;
    ops->stream_identity = fault_stream_identity;
    ops->stream_create = inner->stream_create == NULL ? NULL : fault_stream_create;
    ops->stream_destroy = inner->stream_destroy == NULL ? NULL : fault_stream_destroy;
    ops->stream_synchronize =
        inner->stream_synchronize == NULL ? NULL : fault_stream_synchronize;
    ops->threads_synchronize =
        inner->threads_synchronize == NULL ? NULL : fault_threads_synchronize;
    ops->stream_capturing =
        inner->stream_capturing == NULL ? NULL : fault_stream_capturing;
    ops->event_create = inner->event_create == NULL ? NULL : fault_event_create;
    ops->event_destroy = inner->event_destroy == NULL ? NULL : fault_event_destroy;
    ops->event_record = inner->event_record == NULL ? NULL : fault_event_record;
    ops->event_query = inner->event_query == NULL ? NULL : fault_event_query;
    ops->event_synchronize =
        inner->event_synchronize == NULL ? NULL : fault_event_synchronize;
    ops->stream_wait = inner->stream_wait == NULL ? NULL : fault_stream_wait;
    ops->copy_async = inner->copy_async == NULL ? NULL : fault_copy_async;
    ops->fill_async = inner->fill_async == NULL ? NULL : fault_fill_async;
    ops->launch = inner->launch == NULL ? NULL : fault_launch;
    ops->pinned_create = inner->pinned_create == NULL ? NULL : fault_pinned_create;
    ops->pinned_destroy = inner->pinned_destroy == NULL ? NULL : fault_pinned_destroy;
    ops->pin = inner->pin == NULL ? NULL : fault_pin;
    ops->unpin = inner->unpin == NULL ? NULL : fault_unpin;
    ops->clock_ns = fault_clock_ns;
    ops->coarse_clock_ns = fault_coarse_clock_ns;
    ops->counters = fault_counters;
    ops->note_block = inner->note_block == NULL ? NULL : fault_note_block;
    ops->note_use = inner->note_use == NULL ? NULL : fault_note_use;
    ops->close = fault_close;
}

gm_status
gm_fault_create(gm_device *inner, gm_device **out)
{
    GM_TRY(gm_device_usable(inner));
    GM_TRY(gm_device_prepare(inner)); /* its slots and info are copied */
    fault_device *fault = calloc(1, sizeof(*fault));
    if (fault == NULL) {
        return GM_NO_HOST_MEMORY;
    }
    fill_ops(&fault->ops, inner->ops);
    gm_device_init(&fault->head, &fault->ops);
    fault->head.info = inner->info;
    fault->inner = gm_device_retain(inner);
    gm_mutex_init(&fault->lock, GM_RANK_DEVICE);
    *out = &fault->head;
    return GM_OK;
}

gm_device *
gm_fault_inner(gm_device *device)
{
    while (device->ops->close == fault_close) {
        device = inner_of(device);
    }
    return device;
}

/* ---- plans and records ----------------------------------------------------------- */

void
gm_fault_arm(gm_device *device, const gm_fault_plan *plan)
{
    fault_device *fault = fault_of(device);
    if (gm_device_usable(device) != GM_OK) {
        return;
    }
    gm_mutex_lock(&fault->lock);
    fault->armed = plan != NULL;
    if (plan != NULL) {
        fault->plan = *plan;
    }
    fault->seen = 0;
    fault->injected = 0;
    gm_mutex_unlock(&fault->lock);
}

uint64_t
gm_fault_injected(gm_device *device)
{
    fault_device *fault = fault_of(device);
    if (gm_device_usable(device) != GM_OK) {
        return 0;
    }
    gm_mutex_lock(&fault->lock);
    uint64_t injected = fault->injected;
    gm_mutex_unlock(&fault->lock);
    return injected;
}

gm_status
gm_fault_record(gm_device *device, size_t limit)
{
    fault_device *fault = fault_of(device);
    gm_device_call *ring = NULL;
    GM_TRY(gm_device_usable(device));
    if (limit > 0) {
        ring = calloc(limit, sizeof(*ring));
        if (ring == NULL) {
            return GM_NO_HOST_MEMORY;
        }
    }
    gm_mutex_lock(&fault->lock);
    gm_device_call *before = fault->ring;
    fault->ring = ring;
    fault->ring_limit = limit;
    fault->ring_next = 0;
    fault->ring_count = 0;
    gm_mutex_unlock(&fault->lock);
    free(before);
    return GM_OK;
}

size_t
gm_fault_recorded(gm_device *device, gm_device_call *out, size_t capacity)
{
    fault_device *fault = fault_of(device);
    if (gm_device_usable(device) != GM_OK) {
        return 0;
    }
    gm_mutex_lock(&fault->lock);
    size_t count = fault->ring_count;
    size_t oldest = count < fault->ring_limit ? 0 : fault->ring_next;
    for (size_t i = 0; i < count && i < capacity; i++) {
        out[i] = fault->ring[(oldest + i) % fault->ring_limit];
    }
    gm_mutex_unlock(&fault->lock);
    return count;
}
