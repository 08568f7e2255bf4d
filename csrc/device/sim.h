/* sim.h - the sim device: addresses, pages and streams without memory behind them.
 *
 * For measuring: it counts what an allocator asks of a device and costs almost
 * nothing itself. With lag L an event is done once L operations (gm_sim_tick, called
 * by the replay for each event of the trace) have passed since it was recorded, so
 * that a GPU running behind the program is part of a measurement.
 *
 * Handles are those of the host device (host.h). Its addresses lie below 2^47, and no
 * other open sim device of the process has them (sim_space.h); those given back are
 * used again, lowest first.
 *
 * Reading or writing its memory is impossible: copies, fills and launches answer
 * GM_UNSUPPORTED.
 */
#ifndef GM_DEVICE_SIM_H
#define GM_DEVICE_SIM_H

#include "device/device.h"

typedef struct gm_sim_options {
    int index;
    size_t capacity;  /* bytes; SIZE_MAX: unlimited (info.total is SIZE_MAX / 4) */
    size_t page_size; /* a power of two >= 4096, or 0: 2 MiB */
    bool paging;
    bool aliasing;
    uint64_t lag; /* operations */
    bool checked; /* uses and edges are checked (checker.h) */
} gm_sim_options;

GM_NODISCARD gm_status
gm_sim_create(const gm_sim_options *options, gm_device **out);

/* One more operation of the program has passed. Also moves the clock by 1 us. */
void
gm_sim_tick(gm_device *device);

/* Changes the lag of events recorded from now on. */
void
gm_sim_set_lag(gm_device *device, uint64_t lag);

/* How often somebody waited on the host for an event or a stream that was not done.
 * The wait itself ends at once: the sim's time jumps to the event, or by the time limit
 * (1 tick = 1 us) if that is less; GM_NOT_READY then. A limit of 0 is no wait. */
uint64_t
gm_sim_host_waits(gm_device *device);

#endif
