/* pinned_device.h - the pinned host memory of a device, as a device of its own.
 *
 * A pool over it caches page-locked memory just as a pool over the device caches the
 * device's: segments are made by the inner device's pinned_create, streams and events
 * are the inner device's. There is one stream more:
 *
 *     GM_HOST_STREAM   the host itself. Its work is done when the call that did it
 *                      returns, so an event recorded on it is done at once.
 *
 * A pinned block is allocated on GM_HOST_STREAM. Whoever queues a copy out of it
 * records the copy's stream on the block; freed, it is pending until the copy is done.
 *
 * Thread-safety: every function, as device.h says. Ownership: gm_pinned_device_create
 * takes its own reference on the inner device and returns a new one.
 * Cost: one lock and O(segments) for creating and destroying a segment; a small
 * allocation for an event.
 */
#ifndef GM_DEVICE_PINNED_DEVICE_H
#define GM_DEVICE_PINNED_DEVICE_H

#include "device/device.h"

/* Never a stream of a backend: CUDA's are pointers, the host's are small numbers. */
#define GM_HOST_STREAM ((gm_stream)INT64_MAX)

/* GM_UNSUPPORTED when the inner device makes no pinned memory; GM_NO_HOST_MEMORY. */
GM_NODISCARD gm_status
gm_pinned_device_create(gm_device *inner, gm_device **out);

/* The device whose pinned memory this is; borrowed. `device` itself when it is none. */
gm_device *
gm_pinned_device_inner(gm_device *device);

#endif
