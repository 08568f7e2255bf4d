/* sim_stream.c - time, streams and events of the sim device.
 *
 * Time is a count of operations (ticks). The device is `lag` ticks behind the program:
 * an event recorded now is done at tick now + lag, or when the stream's earlier events
 * and waits are done, whichever is later. A host wait does not wait: it moves time to
 * the moment that was waited for.
 */
#include <stdlib.h>

#include "device/sim_internal.h"

uint64_t
gm_sim_stream_identity(gm_device *self, gm_stream stream)
{
    (void)self;
    return gm_handle_stream_identity(stream);
}

/* The calling thread's record; those whose time has passed are dropped on the way. NULL
 * when there is none and, with `make`, no memory for one. */
static sim_stream *
thread_stream_locked(sim_device *sim, bool make) GM_REQUIRES(sim->lock)
{
    uint64_t thread = gm_thread_number();
    sim_stream *found = NULL;
    GM_LIST_FOREACH_SAFE(link, following, &sim->thread_streams) {
        sim_stream *stream = GM_CONTAINER_OF(link, sim_stream, link);
        if (stream->thread == thread) {
            found = stream;
        }
        else if (stream->busy_until <= sim_now(sim)) {
            gm_list_remove(link);
            free(stream);
        }
    }
    if (found == NULL && make) {
        found = calloc(1, sizeof(*found));
        if (found != NULL) {
            found->thread = thread;
            gm_list_push_back(&sim->thread_streams, &found->link);
        }
    }
    return found;
}

/* *out: the stream's record. GM_INVALID for an unknown handle. */
static gm_status
find_stream_locked(sim_device *sim, gm_stream handle, sim_stream **out)
    GM_REQUIRES(sim->lock)
{
    if (handle == GM_DEFAULT_STREAM || handle == GM_STREAM_LEGACY) {
        *out = &sim->default_stream;
        return GM_OK;
    }
    if (handle == GM_STREAM_PER_THREAD) {
        *out = thread_stream_locked(sim, true);
        return *out == NULL ? GM_NO_HOST_MEMORY : GM_OK;
    }
    gm_handle_node *node = gm_handles_find(&sim->streams, handle);
    *out = (sim_stream *)(void *)node;
    return node == NULL ? GM_INVALID : GM_OK;
}

static sim_event *
find_event(sim_device *sim, gm_event handle)
{
    return (sim_event *)(void *)gm_handles_find(&sim->events, handle);
}

/* Moves time to `due`, or by timeout_ns when that is less. GM_OK, GM_NOT_READY. */
static gm_status
wait_until(sim_device *sim, uint64_t due, uint64_t timeout_ns)
{
    uint64_t now = sim_now(sim);
    uint64_t limit = sim_add_ticks(now, timeout_ns / SIM_NS_PER_TICK);
    uint64_t target = due < limit || timeout_ns == UINT64_MAX ? due : limit;
    if (due <= now) {
        return GM_OK;
    }
    if (timeout_ns > 0) {
        atomic_fetch_add_explicit(&sim->host_waits, 1, memory_order_relaxed);
    }
    while (now < target &&
           !atomic_compare_exchange_weak_explicit(
               &sim->now, &now, target, memory_order_relaxed, memory_order_relaxed)) {
    }
    return due <= target ? GM_OK : GM_NOT_READY;
}

gm_status
gm_sim_stream_create(gm_device *self, gm_stream *out)
{
    sim_device *sim = sim_of(self);
    gm_handle_node *node;
    GM_TRY(sim_enter(sim, GM_CALL_STREAM_CREATE));
    gm_mutex_lock(&sim->lock);
    gm_status status = gm_handles_take(&sim->streams, &node);
    if (status == GM_OK) {
        *out = atomic_load_explicit(&node->handle, memory_order_relaxed);
    }
    gm_mutex_unlock(&sim->lock);
    return status;
}

gm_status
gm_sim_stream_destroy(gm_device *self, gm_stream stream)
{
    sim_device *sim = sim_of(self);
    GM_TRY(sim_enter(sim, GM_CALL_STREAM_DESTROY));
    gm_mutex_lock(&sim->lock);
    gm_handle_node *node = gm_handles_find(&sim->streams, stream);
    if (node != NULL) {
        gm_handles_give(&sim->streams, node);
    }
    gm_mutex_unlock(&sim->lock);
    return node == NULL ? GM_INVALID : GM_OK;
}

gm_status
gm_sim_stream_synchronize(gm_device *self, gm_stream handle, uint64_t timeout_ns)
{
    sim_device *sim = sim_of(self);
    sim_stream *stream;
    uint64_t due = 0;
    GM_TRY(sim_enter(sim, GM_CALL_STREAM_SYNCHRONIZE));
    gm_mutex_lock(&sim->lock);
    gm_status status = find_stream_locked(sim, handle, &stream);
    if (status == GM_OK) {
        due = stream->busy_until;
    }
    gm_mutex_unlock(&sim->lock);
    return status == GM_OK ? wait_until(sim, due, timeout_ns) : status;
}

gm_status
gm_sim_threads_synchronize(gm_device *self, uint64_t timeout_ns)
{
    sim_device *sim = sim_of(self);
    uint64_t due = 0;
    GM_TRY(sim_enter(sim, GM_CALL_THREADS_SYNCHRONIZE));
    gm_mutex_lock(&sim->lock);
    GM_LIST_FOREACH(link, &sim->thread_streams) {
        const sim_stream *stream = GM_CONTAINER_OF(link, sim_stream, link);
        due = stream->busy_until > due ? stream->busy_until : due;
    }
    gm_mutex_unlock(&sim->lock);
    return wait_until(sim, due, timeout_ns);
}

gm_status
gm_sim_stream_capturing(gm_device *self, gm_stream handle, bool *out)
{
    sim_device *sim = sim_of(self);
    sim_stream *stream;
    GM_TRY(sim_enter(sim, GM_CALL_STREAM_CAPTURING));
    gm_mutex_lock(&sim->lock);
    gm_status status = find_stream_locked(sim, handle, &stream);
    gm_mutex_unlock(&sim->lock);
    if (status == GM_OK) {
        *out = false;
    }
    return status;
}

gm_status
gm_sim_event_create(gm_device *self, gm_event *out)
{
    sim_device *sim = sim_of(self);
    gm_handle_node *node;
    GM_TRY(sim_enter(sim, GM_CALL_EVENT_CREATE));
    gm_mutex_lock(&sim->lock);
    gm_status status = gm_handles_take(&sim->events, &node);
    if (status == GM_OK) {
        *out = atomic_load_explicit(&node->handle, memory_order_relaxed);
    }
    gm_mutex_unlock(&sim->lock);
    return status;
}

gm_status
gm_sim_event_destroy(gm_device *self, gm_event event)
{
    sim_device *sim = sim_of(self);
    GM_TRY(sim_enter(sim, GM_CALL_EVENT_DESTROY));
    gm_mutex_lock(&sim->lock);
    gm_handle_node *node = gm_handles_find(&sim->events, event);
    if (node != NULL) {
        gm_handles_give(&sim->events, node);
    }
    gm_mutex_unlock(&sim->lock);
    return node == NULL ? GM_INVALID : GM_OK;
}

gm_status
gm_sim_event_record(gm_device *self, gm_event handle, gm_stream stream_handle)
{
    sim_device *sim = sim_of(self);
    sim_stream *stream;
    GM_TRY(sim_enter(sim, GM_CALL_EVENT_RECORD));
    gm_mutex_lock(&sim->lock);
    sim_event *event = find_event(sim, handle);
    gm_status status =
        event == NULL ? GM_INVALID : find_stream_locked(sim, stream_handle, &stream);
    if (status == GM_OK) {
        uint64_t lag = atomic_load_explicit(&sim->lag, memory_order_relaxed);
        uint64_t due = sim_add_ticks(sim_now(sim), lag);
        if (due < stream->busy_until) {
            due = stream->busy_until;
        }
        stream->busy_until = due;
        atomic_store_explicit(&event->due, due, memory_order_relaxed);
    }
    gm_mutex_unlock(&sim->lock);
    return status;
}

gm_status
gm_sim_event_query(gm_device *self, gm_event handle)
{
    sim_device *sim = sim_of(self);
    GM_TRY(sim_enter(sim, GM_CALL_EVENT_QUERY));
    sim_event *event = find_event(sim, handle);
    if (event == NULL) {
        return GM_INVALID;
    }
    uint64_t due = atomic_load_explicit(&event->due, memory_order_relaxed);
    return due <= sim_now(sim) ? GM_OK : GM_NOT_READY;
}

gm_status
gm_sim_event_synchronize(gm_device *self, gm_event handle, uint64_t timeout_ns)
{
    sim_device *sim = sim_of(self);
    GM_TRY(sim_enter(sim, GM_CALL_EVENT_SYNCHRONIZE));
    sim_event *event = find_event(sim, handle);
    if (event == NULL) {
        return GM_INVALID;
    }
    return wait_until(sim, atomic_load_explicit(&event->due, memory_order_relaxed),
                      timeout_ns);
}

gm_status
gm_sim_stream_wait(gm_device *self, gm_stream stream_handle, gm_event handle)
{
    sim_device *sim = sim_of(self);
    sim_stream *stream;
    GM_TRY(sim_enter(sim, GM_CALL_STREAM_WAIT));
    gm_mutex_lock(&sim->lock);
    sim_event *event = find_event(sim, handle);
    gm_status status =
        event == NULL ? GM_INVALID : find_stream_locked(sim, stream_handle, &stream);
    if (status == GM_OK) {
        uint64_t due = atomic_load_explicit(&event->due, memory_order_relaxed);
        if (stream->busy_until < due) {
            stream->busy_until = due;
        }
    }
    gm_mutex_unlock(&sim->lock);
    return status;
}
