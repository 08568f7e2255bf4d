/* capture.c - streams that capture a graph.
 *
 * A graph is replayed at the addresses that it was captured with, so memory that a
 * capture allocates has to stay where it is; and a capture forbids calls that a pool
 * makes at other times. Captures that were declared stand in a table of the pool, and
 * while there is one the bit GM_POOL_CAPTURING sends every allocation off the fast path.
 * About any other stream the device is asked.
 *
 * Note [What a capture forbids]
 *   anywhere       giving memory back (unmapping, destroying) and waiting on the host: of
 *                  a declared capture every lane says that it captures, so nothing is
 *                  trimmed, stolen, buried, dissolved, and no rung of the ladder is tried
 *   on its stream  recording and asking for events: the lane gets no mark, its pending
 *                  blocks and those that wait for the stream stay pending (pending.c,
 *                  Note [Marks that are due])
 * Making and mapping pages is left to the device, which may refuse with GM_CAPTURING.
 *
 * Thread-safety: the table has a lock of its own, taken under that of a lane.
 * Cost: a look-up goes through the captures that are under way; without any it is one
 * load.
 */
#include <stdlib.h>

#include "pool/internal.h"

/* ---- the table ------------------------------------------------------------------- */

void
gm_captures_init(gm_pool *pool)
{
    gm_mutex_init(&pool->captures.lock, GM_RANK_CAPTURES);
}

void
gm_captures_destroy(gm_pool *pool)
{
    free(pool->captures.identities);
}

/* Where the stream's capture stands, or `count`. */
static size_t
find_locked(const gm_captures *captures, uint64_t identity) GM_REQUIRES(captures->lock)
{
    size_t place = 0;
    while (place < captures->count && captures->identities[place] != identity) {
        place++;
    }
    return place;
}

static gm_status
make_room_locked(gm_captures *captures) GM_REQUIRES(captures->lock)
{
    if (captures->count < captures->capacity) {
        return GM_OK;
    }
    size_t capacity = captures->capacity == 0 ? 4 : captures->capacity * 2;
    uint64_t *grown = realloc(captures->identities, capacity * sizeof(*grown));
    if (grown == NULL) {
        return GM_NO_HOST_MEMORY;
    }
    captures->identities = grown;
    captures->capacity = capacity;
    return GM_OK;
}

static gm_status
declare(gm_pool *pool, uint64_t identity)
{
    gm_captures *captures = &pool->captures;
    gm_mutex_lock(&captures->lock);
    gm_status status = find_locked(captures, identity) < captures->count
                           ? GM_INVALID
                           : make_room_locked(captures);
    if (status == GM_OK) {
        captures->identities[captures->count++] = identity;
        atomic_fetch_or(&pool->attention, GM_POOL_CAPTURING);
    }
    gm_mutex_unlock(&captures->lock);
    return status;
}

bool
gm_capture_forget(gm_pool *pool, uint64_t identity)
{
    gm_captures *captures = &pool->captures;
    gm_mutex_lock(&captures->lock);
    size_t place = find_locked(captures, identity);
    bool found = place < captures->count;
    if (found) {
        captures->identities[place] = captures->identities[--captures->count];
        if (captures->count == 0) {
            atomic_fetch_and(&pool->attention, ~(uint32_t)GM_POOL_CAPTURING);
        }
    }
    gm_mutex_unlock(&captures->lock);
    return found;
}

void
gm_capture_forget_all(gm_pool *pool)
{
    gm_captures *captures = &pool->captures;
    gm_mutex_lock(&captures->lock);
    captures->count = 0;
    atomic_fetch_and(&pool->attention, ~(uint32_t)GM_POOL_CAPTURING);
    gm_mutex_unlock(&captures->lock);
}

bool
gm_capture_find(gm_pool *pool, uint64_t identity)
{
    gm_captures *captures = &pool->captures;
    gm_mutex_lock(&captures->lock);
    bool found = find_locked(captures, identity) < captures->count;
    gm_mutex_unlock(&captures->lock);
    return found;
}

/* ---- asking ---------------------------------------------------------------------- */

/* What the device says of a stream that the calling thread can name. */
static bool
ask_device(const gm_pool *pool, gm_stream stream, uint64_t identity)
{
    gm_device *device = pool->device;
    bool capturing = false;
    return device->ops->stream_identity(device, stream) == identity &&
           device->ops->stream_capturing(device, stream, &capturing) == GM_OK &&
           capturing;
}

bool
gm_capture_is_on(gm_pool *pool, gm_stream stream, uint64_t identity)
{
    return gm_capture_is_declared(pool, identity) || ask_device(pool, stream, identity);
}

bool
gm_lane_is_capturing_locked(gm_lane *lane)
{
    uint64_t identity = atomic_load_explicit(&lane->identity, memory_order_relaxed);
    return gm_pool_attention(lane->pool, GM_POOL_CAPTURING) != 0 ||
           (!lane->retired && ask_device(lane->pool, lane->stream, identity));
}

static bool
find_capture(gm_lane *lane, void *argument)
{
    bool *capturing = argument;
    *capturing = gm_lane_is_capturing_locked(lane);
    return !*capturing;
}

bool
gm_pool_is_capturing(gm_pool *pool)
{
    bool capturing = gm_pool_attention(pool, GM_POOL_CAPTURING) != 0;
    if (!capturing) {
        gm_lanes_visit(pool, find_capture, &capturing);
    }
    return capturing;
}

/* ---- begin and end --------------------------------------------------------------- */

/* Takes the lane's lock, no more: whoever held it may not have seen the declaration. */
static bool
pass_by(gm_lane *lane, void *argument)
{
    (void)lane;
    (void)argument;
    return true;
}

gm_status
gm_pool_capture_begin(gm_pool *pool, gm_stream stream)
{
    GM_TRY(gm_pool_usable(pool));
    gm_device *device = pool->device;
    GM_TRY(declare(pool, device->ops->stream_identity(device, stream)));
    gm_lanes_visit(pool, pass_by, NULL);
    return GM_OK;
}

/* Does what was put off for a capture. */
static bool
catch_up(gm_lane *lane, void *argument)
{
    (void)argument;
    gm_lane_drain_locked(lane);
    gm_pending_mark_due_locked(lane);
    gm_pending_poll_locked(lane);
    return true;
}

gm_status
gm_pool_capture_end(gm_pool *pool, gm_stream stream)
{
    if (gm_pool_is_forked(pool)) {
        return GM_FORKED;
    }
    if (gm_process_is_exiting()) {
        return GM_EXITING;
    }
    gm_device *device = pool->device;
    if (!gm_capture_forget(pool, device->ops->stream_identity(device, stream))) {
        return GM_INVALID;
    }
    gm_lanes_visit(pool, catch_up, NULL);
    gm_lanes_dissolve(pool);
    if (gm_pool_is_closed(pool)) {
        gm_pool_close(pool, 0);
    }
    return GM_OK;
}
