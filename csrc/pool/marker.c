/* marker.c - how far is a lane's stream with what was freed on it?
 *
 * A free block was used on its lane's stream up to its free, so one mark on that stream,
 * recorded after the last free, covers them all. A mark is recorded when somebody wants
 * to know, and only then. Marks that are not done yet stay in a ring, so that asking
 * often does not put the answer off: the work before the first mark is done before that
 * before the second.
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

static inline gm_fence *
fence_at(gm_marker *marker, unsigned index)
{
    return &marker->fences[(marker->first + index) % GM_FENCES];
}

/* All frees are covered by a mark. */
static bool
is_fresh(gm_lane *lane)
{
    gm_marker *marker = &lane->marker;
    return marker->done >= lane->frees ||
           (marker->count != 0 &&
            fence_at(marker, marker->count - 1)->frees >= lane->frees);
}

/* Marks all work that is now on the lane's stream, as covering `frees`. A full ring gives
 * up its newest mark for it. Pre: of this thread. */
static bool
record_fence(gm_lane *lane, uint64_t frees)
{
    gm_marker *marker = &lane->marker;
    gm_device *device = lane->pool->device;
    bool full = marker->count == GM_FENCES;
    gm_fence *fence = fence_at(marker, full ? GM_FENCES - 1 : marker->count);
    if (fence->event == 0 &&
        device->ops->event_create(device, &fence->event) != GM_OK) {
        fence->event = 0;
        return false;
    }
    if (device->ops->event_record(device, fence->event, lane->stream) != GM_OK) {
        marker->count -= full; /* what it marks now is unknown */
        return false;
    }
    fence->frees = frees;
    marker->count += !full;
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
    if (gm_lane_is_declared_locked(lane)) {
        return false;
    }
    return record_fence(lane, lane->frees);
}

static void
poll_fences(gm_lane *lane)
{
    gm_marker *marker = &lane->marker;
    gm_device *device = lane->pool->device;
    if (gm_lane_is_declared_locked(lane)) {
        return;
    }
    while (marker->count != 0) {
        const gm_fence *fence = fence_at(marker, 0);
        if (device->ops->event_query(device, fence->event) != GM_OK) {
            return;
        }
        marker->done = fence->frees > marker->done ? fence->frees : marker->done;
        marker->first = (marker->first + 1) % GM_FENCES;
        marker->count--;
    }
}

uint64_t
gm_lane_done_locked(gm_lane *lane)
{
    poll_fences(lane);
    return lane->marker.done;
}

bool
gm_lane_is_done_locked(gm_lane *lane)
{
    if (lane->frees == 0) {
        return true;
    }
    (void)refresh_marker(lane); /* without a new mark older ones still count */
    return gm_lane_done_locked(lane) >= lane->frees;
}

gm_event
gm_lane_marker_locked(gm_lane *lane)
{
    if (gm_lane_is_done_locked(lane) || lane->marker.count == 0) {
        return 0;
    }
    return fence_at(&lane->marker, 0)->event;
}

gm_event
gm_lane_cover_locked(gm_lane *lane)
{
    gm_marker *marker = &lane->marker;
    if (gm_lane_is_done_locked(lane) || !is_fresh(lane)) {
        return 0;
    }
    return fence_at(marker, marker->count - 1)->event;
}

gm_status
gm_lane_wait_for_locked(gm_lane *lane, gm_event event)
{
    gm_device *device = lane->pool->device;
    GM_TRY(device->ops->stream_wait(device, lane->stream, event));
    atomic_fetch_add(&lane->pool->inserted_waits, 1);
    return GM_OK;
}

void
gm_lane_mark_slow_locked(gm_lane *lane)
{
    if (lane->frees != 0 && !is_fresh(lane) && is_of_this_thread(lane) &&
        !gm_lane_is_capturing_locked(lane)) {
        lane->marks_wanted--;
        (void)record_fence(lane, lane->frees);
    }
}

void
gm_lane_reset_marker_locked(gm_lane *lane)
{
    gm_marker *marker = &lane->marker;
    marker->count = 0;
    marker->done = 0;
    marker->asked_by = 0;
    lane->marks_wanted = 0;
    lane->frees = 0;
}

bool
gm_lane_mark_last_locked(gm_lane *lane)
{
    if (!record_fence(lane, UINT64_MAX)) {
        return false;
    }
    lane->marks_wanted = 0;
    return true;
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
    if (marker->asked_by == self->number && marker->done < marker->asked_frees) {
        marker->done = marker->asked_frees;
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
