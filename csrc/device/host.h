/* host.h - the host device: this machine's memory, with the manners of a GPU.
 *
 * It has a capacity, pages, streams that are real queues, events and a clock, so that
 * everything above it runs and is tested without a GPU. Untouched memory costs
 * nothing: pages are parts of one memfd and are mapped on demand; neighbouring pages
 * at neighbouring addresses become one kernel mapping.
 *
 * Streams run their work at once, inside the call that queues it, until a test
 * stalls one (gm_host_stall): then its work waits in the queue, and whoever waits for
 * it waits really, until gm_host_release_work lets some of it run.
 *
 * Handles: 0 and 1 are the default stream, 2 is the calling thread's own default
 * stream. Handles of other streams and of events are never used twice in a process.
 *
 * Thread-safety: every function may be called from any thread. Those for tests take the
 * host device itself, not a fault device before it (gm_fault_inner).
 * Ownership: gm_host_create returns a new reference.
 */
#ifndef GM_DEVICE_HOST_H
#define GM_DEVICE_HOST_H

#include "device/device.h"

typedef struct gm_host_options {
    int index;               /* host:<index> */
    size_t capacity;         /* bytes; > 0 */
    size_t page_size;        /* a power of two >= 4096, or 0: 2 MiB */
    bool paging;             /* false: whole allocations only */
    bool aliasing;           /* offer GM_CAP_ALIASING */
    bool delayed;            /* streams start stalled */
    bool manual_clock;       /* time moves by gm_host_advance alone */
    bool checked;            /* uses and edges are checked (checker.h) */
    const char *shared_name; /* NULL, or: capacity shared with every process of this
                                user that names the same; 1 to 64 letters, digits, '-'
                                and '_' */
} gm_host_options;

/* GM_INVALID for options outside their range, and when those who share the name now
 * agreed on another capacity; GM_NO_HOST_MEMORY. Joining a share may wait shortly. */
GM_NODISCARD gm_status
gm_host_create(const gm_host_options *options, gm_device **out);

/* ---- for tests (gpumem.testing) ------------------------------------------------ */

/* Another program takes `bytes` of the device (total, not more): 0 gives all back.
 * GM_OUT_OF_MEMORY when that much is not free. */
GM_NODISCARD gm_status
gm_host_occupy(gm_device *device, size_t bytes);

/* memory_info answers this many free bytes until SIZE_MAX is set. Capacity is not
 * changed by it. */
void
gm_host_set_reported_free(gm_device *device, size_t bytes);

/* Moves the manual clock. */
void
gm_host_advance(gm_device *device, uint64_t nanoseconds);

/* From now on work on the stream waits. GM_INVALID for an unknown stream. */
GM_NODISCARD gm_status
gm_host_stall(gm_device *device, gm_stream stream);

/* Lets the next `count` pieces of waiting work run; SIZE_MAX: all, and the stream runs
 * freely again. A piece is a copy, a fill, a kernel, the recording of an event or the
 * wait for one. Work that waits for an event of another stream stays until that is
 * done, and runs then without a second release. Also for a destroyed stream that has
 * work left. *ran (may be NULL) receives how many pieces ran, on any stream, because of
 * it. */
GM_NODISCARD gm_status
gm_host_release_work(gm_device *device, gm_stream stream, size_t count, size_t *ran);

/* Pieces of work that wait on the stream, the one that runs now not among them. */
GM_NODISCARD gm_status
gm_host_waiting_work(gm_device *device, gm_stream stream, size_t *out);

/* While set, stream_capturing answers true for the stream, and calls that a capture
 * forbids answer GM_CAPTURING, on any stream: creating and destroying segments and
 * pages, unmap, stream_synchronize, threads_synchronize, event_synchronize. */
GM_NODISCARD gm_status
gm_host_set_capturing(gm_device *device, gm_stream stream, bool capturing);

#endif
