/* marker.c - is a lane's stream done with what was freed on it?
 *
 * A free block was used on its lane's stream up to its free, so one mark on that stream,
 * recorded after the last free, covers them all. A mark is recorded when somebody wants
 * to know, and only then.
 *
 * Note [Streams of one thread]
 * The handle of the per-thread default stream means another stream in each thread: a
 * mark that any other thread records stands on the wrong one. So such a lane is marked
 * by its own thread alone. Another thread that wants to know leaves a wish
 * (gm_lane.marks_wanted), and the owner's next allocations and frees record the mark.
 * Until then the lane counts as busy. If the owner does not come, because it waits or
 * has ended, gm_lanes_settle asks the device about the streams of all threads at once
 * (threads_synchronize): the ladder does before it gives up, a trim that may wait, and
 * the end of a pool.
 */
#include "pool/internal.h"

/* How many marks of its own a wish makes the owner record: more than one, because each
 * free after a mark makes it stale. */
#define MARKS_OF_A_WISH 8u

/* Does the lane's handle mean the lane's stream on this thread? */
static bool
is_of_this_thread(const gm_lane *lane)
{
    gm_device *device = lane->pool->device;
    return device->ops->stream_identity(device, lane->stream) ==
           atomic_load_explicit(&lane->identity, memory_order_relaxed);
}

/* All frees are covered. */
static bool
is_fresh(const gm_lane *lane)
{
    const gm_marker *marker = &lane->marker;
    return marker->final || (marker->recorded && marker->frees == lane->frees);
}

/* Marks all work that is now on the lane's stream. Pre: of this thread. */
static bool
record_marker(gm_lane *lane)
{
    gm_marker *marker = &lane->marker;
    gm_device *device = lane->pool->device;
    if (marker->event == 0 &&
        device->ops->event_create(device, &marker->event) != GM_OK) {
        marker->event = 0;
        return false;
    }
    if (device->ops->event_record(device, marker->event, lane->stream) != GM_OK) {
        marker->recorded = false;
        return false;
    }
    marker->recorded = true;
    marker->done = false;
    marker->frees = lane->frees;
    return true;
}

/* Covers all frees. False: no mark can be had here and now. */
static bool
refresh_marker(gm_lane *lane)
{
    if (is_fresh(lane)) {
        return true;
    }
    if (!is_of_this_thread(lane)) {
        lane->marks_wanted = MARKS_OF_A_WISH;
        return false;
    }
    return record_marker(lane);
}

bool
gm_lane_is_done_locked(gm_lane *lane)
{
    gm_device *device = lane->pool->device;
    if (lane->frees == 0) {
        return true;
    }
    if (!refresh_marker(lane)) {
        return false;
    }
    if (!lane->marker.done) {
        lane->marker.done =
            device->ops->event_query(device, lane->marker.event) == GM_OK;
    }
    return lane->marker.done;
}

gm_event
gm_lane_marker_locked(gm_lane *lane)
{
    if (gm_lane_is_done_locked(lane) || !is_fresh(lane)) {
        return 0;
    }
    return lane->marker.event;
}

void
gm_lane_mark_slow_locked(gm_lane *lane)
{
    if (lane->frees != 0 && !is_fresh(lane) && is_of_this_thread(lane) &&
        !gm_lane_is_capturing_locked(lane)) {
        lane->marks_wanted--;
        (void)record_marker(lane);
    }
}

bool
gm_lane_mark_last_locked(gm_lane *lane)
{
    if (!record_marker(lane)) {
        return false;
    }
    lane->marker.final = true;
    lane->marks_wanted = 0;
    return true;
}

bool
gm_lane_is_capturing_locked(gm_lane *lane)
{
    gm_device *device = lane->pool->device;
    bool capturing = false;
    return !lane->retired && is_of_this_thread(lane) &&
           device->ops->stream_capturing(device, lane->stream, &capturing) == GM_OK &&
           capturing;
}

/* ---- streams of other threads ---------------------------------------------------- */

typedef struct settlement {
    uint64_t number;
    size_t lanes;
    bool capturing;
} settlement;

/* Notes what the device will be asked about; nothing during a capture. */
static bool
ask_visit(gm_lane *lane, void *argument)
{
    settlement *self = argument;
    gm_marker *marker = &lane->marker;
    gm_lane_drain_locked(lane);
    size_t idle = gm_arena_cached_bytes(&lane->shelves[GM_SMALL].arena) +
                  gm_arena_cached_bytes(&lane->shelves[GM_LARGE].arena);
    if (idle != 0 && lane->frees != 0 && !is_fresh(lane) && !is_of_this_thread(lane)) {
        marker->asked_by = self->number;
        marker->asked_frees = lane->frees;
        self->lanes++;
    }
    self->capturing = gm_lane_is_capturing_locked(lane);
    return !self->capturing;
}

/* The work before the frees that were noted is done. A lane that a later call has
 * looked at is left to that one: its note is of a later moment. */
static bool
answer_visit(gm_lane *lane, void *argument)
{
    settlement *self = argument;
    gm_marker *marker = &lane->marker;
    if (marker->asked_by == self->number &&
        (!marker->recorded || marker->frees < marker->asked_frees)) {
        marker->recorded = true;
        marker->done = true;
        marker->frees = marker->asked_frees;
        self->lanes++;
    }
    return true;
}

bool
gm_lanes_settle(gm_pool *pool, uint64_t timeout_ns)
{
    gm_device *device = pool->device;
    settlement self = {.number = atomic_fetch_add(&pool->settlements, 1) + 1};
    if (device->ops->threads_synchronize == NULL) {
        return false;
    }
    gm_lanes_visit(pool, ask_visit, &self);
    if (self.lanes == 0 || self.capturing) {
        return false;
    }
    if (timeout_ns != 0) {
        atomic_fetch_add(&pool->waits, 1);
    }
    if (device->ops->threads_synchronize(device, timeout_ns) != GM_OK) {
        return false;
    }
    self.lanes = 0;
    gm_lanes_visit(pool, answer_visit, &self);
    return self.lanes != 0;
}
