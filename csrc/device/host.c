#include "device/host.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/bits.h"
#include "base/futex.h"
#include "device/checker_device.h"
#include "device/host_internal.h"

#define DEFAULT_PAGE_SIZE ((size_t)2 << 20)

/* Above this a file's size would not fit its signed type. */
#define MOST_CAPACITY ((size_t)1 << 62)

/* ---- pinned host memory ---------------------------------------------------------- */

static gm_status
host_pinned_create(gm_device *self, size_t size, void **out)
{
    host_device *host = host_of(self);
    GM_TRY(host_enter(host, GM_CALL_PINNED_CREATE));
    return gm_pinned_create_memory(&host->pinned, size, out);
}

static gm_status
host_pinned_destroy(gm_device *self, void *memory, size_t size)
{
    host_device *host = host_of(self);
    GM_TRY(host_enter(host, GM_CALL_PINNED_DESTROY));
    return gm_pinned_destroy_memory(&host->pinned, memory, size);
}

static gm_status
host_pin(gm_device *self, void *memory, size_t size)
{
    host_device *host = host_of(self);
    GM_TRY(host_enter(host, GM_CALL_PIN));
    return gm_pinned_register(&host->pinned, memory, size);
}

static gm_status
host_unpin(gm_device *self, void *memory, size_t size)
{
    host_device *host = host_of(self);
    GM_TRY(host_enter(host, GM_CALL_UNPIN));
    return gm_pinned_unregister(&host->pinned, memory, size);
}

/* ---- the rest -------------------------------------------------------------------- */

static uint64_t
host_stream_identity(gm_device *self, gm_stream stream)
{
    (void)self;
    return gm_handle_stream_identity(stream);
}

static uint64_t
host_clock_ns(gm_device *self)
{
    host_device *host = host_of(self);
    if (host->manual_clock) {
        return atomic_load_explicit(&host->manual_ns, memory_order_relaxed);
    }
    return gm_monotonic_ns();
}

static uint64_t
host_coarse_clock_ns(gm_device *self)
{
    host_device *host = host_of(self);
    if (host->manual_clock) {
        return atomic_load_explicit(&host->manual_ns, memory_order_relaxed);
    }
    return gm_monotonic_coarse_ns();
}

static void
host_counters(gm_device *self, gm_device_counters *out)
{
    gm_tally_read(&host_of(self)->tally, out);
}

static void
host_close(gm_device *self)
{
    host_device *host = host_of(self);
    gm_host_streams_destroy(host);
    gm_host_memory_destroy(host);
    gm_host_share_leave(host->share);
    gm_pinned_destroy(&host->pinned);
    free(host);
}

static const gm_device_ops host_ops = {
    .memory_info = gm_host_memory_info,
    .segment_create = gm_host_segment_create,
    .segment_destroy = gm_host_segment_destroy,
    .address_reserve = gm_host_address_reserve,
    .address_release = gm_host_address_release,
    .page_create = gm_host_page_create,
    .page_destroy = gm_host_page_destroy,
    .map = gm_host_map,
    .unmap = gm_host_unmap,
    .grant = gm_host_grant,
    .stream_identity = host_stream_identity,
    .stream_create = gm_host_stream_create,
    .stream_destroy = gm_host_stream_destroy,
    .stream_synchronize = gm_host_stream_synchronize,
    .threads_synchronize = gm_host_threads_synchronize,
    .stream_capturing = gm_host_stream_capturing,
    .event_create = gm_host_event_create,
    .event_destroy = gm_host_event_destroy,
    .event_record = gm_host_event_record,
    .event_query = gm_host_event_query,
    .event_synchronize = gm_host_event_synchronize,
    .stream_wait = gm_host_stream_wait,
    .copy_async = gm_host_copy_async,
    .fill_async = gm_host_fill_async,
    .launch = gm_host_launch,
    .pinned_create = host_pinned_create,
    .pinned_destroy = host_pinned_destroy,
    .pin = host_pin,
    .unpin = host_unpin,
    .clock_ns = host_clock_ns,
    .coarse_clock_ns = host_coarse_clock_ns,
    .counters = host_counters,
    .close = host_close,
};

/* ---- making one ------------------------------------------------------------------ */

static bool
options_are_valid(const gm_host_options *options)
{
    size_t page_size = options->page_size;
    return options->index >= 0 && options->capacity > 0 &&
           options->capacity <= MOST_CAPACITY &&
           (page_size == 0 ||
            (page_size >= 4096 && page_size <= MOST_CAPACITY && gm_is_pow2(page_size)));
}

static void
fill_info(gm_device_info *info, const gm_host_options *options)
{
    size_t page_size = options->page_size == 0 ? DEFAULT_PAGE_SIZE : options->page_size;
    (void)snprintf(info->name, sizeof(info->name), "host:%d", options->index);
    info->kind = GM_DEVICE_HOST;
    info->index = options->index;
    info->total = options->capacity;
    info->page_size = options->paging ? page_size : 0;
    info->alignment = GM_RANGE_ALIGNMENT;
    info->capabilities =
        GM_CAP_HOST_ACCESS | GM_CAP_OWN_STREAMS | GM_CAP_MEMORY | GM_CAP_EXACT_FREE;
    if (options->paging) {
        info->capabilities |= GM_CAP_PAGING;
        info->capabilities |= options->aliasing ? GM_CAP_ALIASING : 0u;
    }
}

gm_status
gm_host_create(const gm_host_options *options, gm_device **out)
{
    if (!options_are_valid(options)) {
        return GM_INVALID;
    }
    host_device *host = calloc(1, sizeof(*host));
    if (host == NULL) {
        return GM_NO_HOST_MEMORY;
    }
    host->ops = host_ops;
    if (!options->paging) {
        gm_page_book_clear_slots(&host->ops);
    }
    gm_device_init(&host->head, &host->ops);
    fill_info(&host->head.info, options);
    host->memfd = -1;
    host->delayed = options->delayed;
    host->manual_clock = options->manual_clock;
    atomic_init(&host->reported_free, SIZE_MAX);
    gm_pinned_init(&host->pinned, &host->tally);
    gm_status status = gm_host_memory_init(host, options->aliasing);
    if (status == GM_OK && options->shared_name != NULL) {
        status =
            gm_host_share_join(options->shared_name, options->capacity, &host->share);
    }
    if (status != GM_OK) {
        goto fail;
    }
    gm_host_streams_init(host);
    if (options->checked) {
        status = gm_checker_install(&host->head, &host->ops);
        if (status != GM_OK) {
            host_close(&host->head);
            return status;
        }
    }
    *out = &host->head;
    return GM_OK;
fail:
    gm_host_memory_destroy(host);
    free(host);
    return status;
}

/* ---- for tests ------------------------------------------------------------------- */

void
gm_host_set_reported_free(gm_device *device, size_t bytes)
{
    atomic_store_explicit(&host_of(device)->reported_free, bytes, memory_order_relaxed);
}

void
gm_host_advance(gm_device *device, uint64_t nanoseconds)
{
    atomic_fetch_add_explicit(&host_of(device)->manual_ns, nanoseconds,
                              memory_order_relaxed);
}
