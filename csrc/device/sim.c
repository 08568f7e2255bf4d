/* sim.c - the sim device: the bookkeeping of a device without the memory.
 *
 * Read sim_memory.c for addresses and pages, sim_stream.c for time.
 */
#include "device/sim.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/bits.h"
#include "device/checker_device.h"
#include "device/sim_internal.h"
#include "device/sim_space.h"

#define DEFAULT_PAGE_SIZE ((size_t)2 << 20)
#define UNLIMITED (SIZE_MAX / 4)

static gm_status
sim_memory_info(gm_device *self, size_t *free_bytes, size_t *total_bytes)
{
    sim_device *sim = sim_of(self);
    GM_TRY(sim_enter(sim, GM_CALL_MEMORY_INFO));
    gm_mutex_lock(&sim->lock);
    *free_bytes = sim->head.info.total - sim->used;
    gm_mutex_unlock(&sim->lock);
    *total_bytes = sim->head.info.total;
    return GM_OK;
}

/* ---- work: there is no memory to work on ----------------------------------------- */

static gm_status
sim_copy_async(gm_device *self, gm_devptr destination, gm_devptr source, size_t n,
               gm_stream stream)
{
    (void)destination, (void)source, (void)n, (void)stream;
    GM_TRY(sim_enter(sim_of(self), GM_CALL_COPY));
    return GM_UNSUPPORTED;
}

static gm_status
sim_fill_async(gm_device *self, gm_devptr destination, const void *pattern,
               size_t width, size_t count, gm_stream stream)
{
    (void)destination, (void)pattern, (void)width, (void)count, (void)stream;
    GM_TRY(sim_enter(sim_of(self), GM_CALL_FILL));
    return GM_UNSUPPORTED;
}

static gm_status
sim_launch(gm_device *self, const gm_kernel *kernel, const void *arguments, size_t size,
           gm_stream stream)
{
    (void)kernel, (void)arguments, (void)size, (void)stream;
    GM_TRY(sim_enter(sim_of(self), GM_CALL_LAUNCH));
    return GM_UNSUPPORTED;
}

/* ---- pinned host memory: the host's is real -------------------------------------- */

static gm_status
sim_pinned_create(gm_device *self, size_t size, void **out)
{
    sim_device *sim = sim_of(self);
    GM_TRY(sim_enter(sim, GM_CALL_PINNED_CREATE));
    return gm_pinned_create_memory(&sim->pinned, size, out);
}

static gm_status
sim_pinned_destroy(gm_device *self, void *memory, size_t size)
{
    sim_device *sim = sim_of(self);
    GM_TRY(sim_enter(sim, GM_CALL_PINNED_DESTROY));
    return gm_pinned_destroy_memory(&sim->pinned, memory, size);
}

static gm_status
sim_pin(gm_device *self, void *memory, size_t size)
{
    sim_device *sim = sim_of(self);
    GM_TRY(sim_enter(sim, GM_CALL_PIN));
    return gm_pinned_register(&sim->pinned, memory, size);
}

static gm_status
sim_unpin(gm_device *self, void *memory, size_t size)
{
    sim_device *sim = sim_of(self);
    GM_TRY(sim_enter(sim, GM_CALL_UNPIN));
    return gm_pinned_unregister(&sim->pinned, memory, size);
}

/* ---- the rest -------------------------------------------------------------------- */

static uint64_t
sim_clock_ns(gm_device *self)
{
    return sim_now(sim_of(self)) * SIM_NS_PER_TICK;
}

static void
sim_counters(gm_device *self, gm_device_counters *out)
{
    gm_tally_read(&sim_of(self)->tally, out);
}

static void
sim_close(gm_device *self) GM_NO_THREAD_ANALYSIS
{
    sim_device *sim = sim_of(self);
    GM_LIST_FOREACH_SAFE(link, following, &sim->thread_streams) {
        free(GM_CONTAINER_OF(link, sim_stream, link));
    }
    gm_handles_destroy(&sim->streams);
    gm_handles_destroy(&sim->events);
    gm_page_book_destroy(&sim->book);
    gm_intervals_destroy(&sim->segments);
    gm_intervals_destroy(&sim->holes);
    gm_pinned_destroy(&sim->pinned);
    gm_sim_space_release(sim);
    free(sim);
}

static const gm_device_ops sim_ops = {
    .memory_info = sim_memory_info,
    .segment_create = gm_sim_segment_create,
    .segment_destroy = gm_sim_segment_destroy,
    .address_reserve = gm_sim_address_reserve,
    .address_release = gm_sim_address_release,
    .page_create = gm_sim_page_create,
    .page_destroy = gm_sim_page_destroy,
    .map = gm_sim_map,
    .unmap = gm_sim_unmap,
    .grant = gm_sim_grant,
    .stream_identity = gm_sim_stream_identity,
    .stream_create = gm_sim_stream_create,
    .stream_destroy = gm_sim_stream_destroy,
    .stream_synchronize = gm_sim_stream_synchronize,
    .threads_synchronize = gm_sim_threads_synchronize,
    .stream_capturing = gm_sim_stream_capturing,
    .event_create = gm_sim_event_create,
    .event_destroy = gm_sim_event_destroy,
    .event_record = gm_sim_event_record,
    .event_query = gm_sim_event_query,
    .event_synchronize = gm_sim_event_synchronize,
    .stream_wait = gm_sim_stream_wait,
    .copy_async = sim_copy_async,
    .fill_async = sim_fill_async,
    .launch = sim_launch,
    .pinned_create = sim_pinned_create,
    .pinned_destroy = sim_pinned_destroy,
    .pin = sim_pin,
    .unpin = sim_unpin,
    .clock_ns = sim_clock_ns,
    .coarse_clock_ns = sim_clock_ns,
    .counters = sim_counters,
    .close = sim_close,
};

gm_status
gm_sim_create(const gm_sim_options *options, gm_device **out)
{
    size_t page_size = options->page_size == 0 ? DEFAULT_PAGE_SIZE : options->page_size;
    if (options->index < 0 || options->capacity == 0 || page_size < 4096 ||
        !gm_is_pow2(page_size)) {
        return GM_INVALID;
    }
    sim_device *sim = calloc(1, sizeof(*sim));
    if (sim == NULL) {
        return GM_NO_HOST_MEMORY;
    }
    sim->ops = sim_ops;
    if (!options->paging) {
        gm_page_book_clear_slots(&sim->ops);
    }
    gm_device_init(&sim->head, &sim->ops);
    gm_device_info *info = &sim->head.info;
    (void)snprintf(info->name, sizeof(info->name), "sim:%d", options->index);
    info->kind = GM_DEVICE_SIM;
    info->index = options->index;
    info->total = options->capacity > UNLIMITED ? UNLIMITED : options->capacity;
    info->page_size = options->paging ? page_size : 0;
    info->alignment = GM_RANGE_ALIGNMENT;
    info->capabilities = GM_CAP_OWN_STREAMS | GM_CAP_EXACT_FREE;
    if (options->paging) {
        info->capabilities |= GM_CAP_PAGING;
        info->capabilities |= options->aliasing ? GM_CAP_ALIASING : 0u;
    }
    gm_mutex_init(&sim->lock, GM_RANK_DEVICE);
    gm_pinned_init(&sim->pinned, &sim->tally);
    gm_page_book_init(&sim->book, info->page_size, options->aliasing, info->total);
    gm_handles_init(&sim->events, sizeof(sim_event));
    gm_handles_init(&sim->streams, sizeof(sim_stream));
    gm_list_init(&sim->thread_streams);
    atomic_init(&sim->lag, options->lag);
    if (options->checked) {
        gm_status status = gm_checker_install(&sim->head, &sim->ops);
        if (status != GM_OK) {
            sim_close(&sim->head);
            return status;
        }
    }
    *out = &sim->head;
    return GM_OK;
}

/* ---- for the replay -------------------------------------------------------------- */

void
gm_sim_tick(gm_device *device)
{
    sim_device *sim = sim_of(device);
    if (sim_now(sim) < SIM_LAST_TICK) {
        atomic_fetch_add_explicit(&sim->now, 1, memory_order_relaxed);
    }
}

void
gm_sim_set_lag(gm_device *device, uint64_t lag)
{
    atomic_store_explicit(&sim_of(device)->lag, lag, memory_order_relaxed);
}

uint64_t
gm_sim_host_waits(gm_device *device)
{
    return atomic_load_explicit(&sim_of(device)->host_waits, memory_order_relaxed);
}
