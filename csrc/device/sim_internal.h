/* sim_internal.h - the sim device's object, shared by its files alone.
 *
 * sim.c makes it and holds the table of functions, sim_memory.c has addresses and
 * pages (out of the space of sim_space.c), sim_stream.c time, streams and events. The
 * functions below fill the slots of gm_device_ops that carry their names.
 *
 * Thread-safety: as device.h says; `lock` guards what is marked.
 */
#ifndef GM_DEVICE_SIM_INTERNAL_H
#define GM_DEVICE_SIM_INTERNAL_H

#include "base/list.h"
#include "base/mutex.h"
#include "device/handles.h"
#include "device/page_book.h"
#include "device/pinned.h"
#include "device/sim.h"
#include "device/tally.h"

#define SIM_NS_PER_TICK 1000u

/* Time saturates here, so that the clock in nanoseconds does not wrap. */
#define SIM_LAST_TICK (UINT64_MAX / SIM_NS_PER_TICK - 1)

typedef struct sim_event {
    gm_handle_node node;
    _Atomic uint64_t due; /* tick at which it is done; 0: never recorded */
} sim_event;

typedef struct sim_stream {
    gm_handle_node node; /* unused in the default and per-thread streams */
    uint64_t busy_until; /* tick at which all its marked work is done */
    uint64_t thread;     /* of a per-thread stream */
    gm_list link;        /* of a per-thread stream */
} sim_stream;

typedef struct sim_device {
    gm_device head;
    gm_device_ops ops; /* page slots are NULL without paging */
    gm_tally tally;
    gm_pinned pinned;
    _Atomic uint64_t now; /* ticks */
    _Atomic uint64_t lag; /* ticks */
    _Atomic uint64_t host_waits;

    gm_mutex lock;
    size_t used GM_GUARDED_BY(lock); /* bytes of segments and pages */
    gm_page_book book GM_GUARDED_BY(lock);
    gm_intervals segments GM_GUARDED_BY(lock);
    gm_intervals holes GM_GUARDED_BY(lock); /* free and its own; never adjacent */
    gm_handles events GM_GUARDED_BY(lock);
    gm_handles streams GM_GUARDED_BY(lock);
    sim_stream default_stream GM_GUARDED_BY(lock);
    gm_list thread_streams GM_GUARDED_BY(lock); /* with busy_until in the future */
} sim_device;

static inline sim_device *
sim_of(gm_device *self)
{
    return (sim_device *)(void *)self;
}

static inline uint64_t
sim_add_ticks(uint64_t tick, uint64_t more)
{
    return more > SIM_LAST_TICK - tick ? SIM_LAST_TICK : tick + more;
}

static inline uint64_t
sim_now(sim_device *sim)
{
    return atomic_load_explicit(&sim->now, memory_order_relaxed);
}

/* Every call starts here: counted, and refused in a child of fork and at exit. */
GM_NODISCARD static inline gm_status
sim_enter(sim_device *sim, gm_device_call call)
{
    GM_TRY(gm_device_usable(&sim->head));
    gm_tally_call(&sim->tally, call);
    return GM_OK;
}

/* ---- sim_memory.c ---------------------------------------------------------------- */

gm_status
gm_sim_segment_create(gm_device *self, size_t size, gm_devptr *out);
gm_status
gm_sim_segment_destroy(gm_device *self, gm_devptr address, size_t size);
gm_status
gm_sim_address_reserve(gm_device *self, size_t size, gm_devptr *out);
gm_status
gm_sim_address_release(gm_device *self, gm_devptr address, size_t size);
gm_status
gm_sim_page_create(gm_device *self, gm_page *out);
gm_status
gm_sim_page_destroy(gm_device *self, gm_page page);
gm_status
gm_sim_map(gm_device *self, gm_devptr address, gm_page page);
gm_status
gm_sim_unmap(gm_device *self, gm_devptr address, size_t size);
gm_status
gm_sim_grant(gm_device *self, gm_devptr address, size_t size);

/* ---- sim_stream.c ---------------------------------------------------------------- */

uint64_t
gm_sim_stream_identity(gm_device *self, gm_stream stream);
gm_status
gm_sim_stream_create(gm_device *self, gm_stream *out);
gm_status
gm_sim_stream_destroy(gm_device *self, gm_stream stream);
gm_status
gm_sim_stream_synchronize(gm_device *self, gm_stream handle, uint64_t timeout_ns);
gm_status
gm_sim_threads_synchronize(gm_device *self, uint64_t timeout_ns);
gm_status
gm_sim_stream_capturing(gm_device *self, gm_stream handle, bool *out);
gm_status
gm_sim_event_create(gm_device *self, gm_event *out);
gm_status
gm_sim_event_destroy(gm_device *self, gm_event event);
gm_status
gm_sim_event_record(gm_device *self, gm_event handle, gm_stream stream_handle);
gm_status
gm_sim_event_query(gm_device *self, gm_event handle);
gm_status
gm_sim_event_synchronize(gm_device *self, gm_event handle, uint64_t timeout_ns);
gm_status
gm_sim_stream_wait(gm_device *self, gm_stream stream_handle, gm_event handle);

#endif
