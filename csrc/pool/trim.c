/* trim.c - giving memory back, taking it ahead, and the end of a stream. */
#include <string.h>

#include "pool/internal.h"

/* ---- trim ----------------------------------------------------------------------- */

/* One pass of a trim over the lanes. */
typedef struct trim_pass {
    const gm_trim_request *request;
    uint64_t identity; /* with request->one_stream */
    gm_reclaim reclaim;
    bool capturing;
    bool drop_addresses;
} trim_pass;

/* Addresses without any page go back as well. */
static void
drop_addresses(gm_lane *lane)
{
    for (unsigned i = 0; i < GM_ARENAS; i++) {
        gm_arena *arena = &lane->shelves[i].arena;
        GM_LIST_FOREACH_SAFE(link, following, &arena->chunks) {
            gm_chunk *chunk = GM_CONTAINER_OF(link, gm_chunk, link);
            if (chunk->paged && chunk->mapped_slots == 0 &&
                gm_arena_chunk_is_idle(chunk)) {
                gm_source_drop_chunk_locked(lane, arena, chunk);
            }
        }
    }
}

static bool
trim_lane(gm_lane *lane, void *argument)
{
    trim_pass *pass = argument;
    gm_lane_drain_locked(lane);
    gm_pending_poll_locked(lane);
    if (pass->request->one_stream &&
        atomic_load_explicit(&lane->identity, memory_order_relaxed) != pass->identity) {
        return true;
    }
    gm_reclaim_lane_locked(lane, &pass->reclaim);
    if (pass->drop_addresses) {
        drop_addresses(lane);
    }
    return true;
}

/* How much more than free pages must leave the arenas for reserved <= target. */
static size_t
surplus(gm_pool *pool, size_t target)
{
    size_t reserved = gm_page_pool_reserved(pool);
    size_t unplaced = gm_page_pool_unplaced(pool);
    size_t above = reserved > target ? reserved - target : 0;
    return above > unplaced ? above - unplaced : 0;
}

static gm_status
trim_once(gm_pool *pool, const gm_trim_request *request)
{
    gm_device *device = pool->device;
    trim_pass pass = {
        .request = request,
        .identity = device->ops->stream_identity(device, request->stream),
        .reclaim = {.target = request->target == 0 ? SIZE_MAX
                                                   : surplus(pool, request->target),
                    .older_than_ns = request->older_than_ns,
                    .now_ns = device->ops->clock_ns(device)},
        .drop_addresses = request->target == 0};
    if (pass.reclaim.target != 0) {
        gm_lanes_visit(pool, trim_lane, &pass);
    }
    gm_status status = pass.reclaim.status;
    if (pool->paged && request->older_than_ns == 0) {
        (void)gm_page_pool_shrink(pool, request->target, &status);
    }
    else if (pool->paged) {
        size_t reserved = gm_page_pool_reserved(pool);
        size_t freed = pass.reclaim.freed < reserved ? pass.reclaim.freed : reserved;
        (void)gm_page_pool_shrink(pool, reserved - freed, &status);
    }
    return status;
}

/* Waits for unfinished work that holds what is to be trimmed. */
static bool
wait_for_work(gm_pool *pool, const gm_trim_request *request, uint64_t *left_ns)
{
    gm_device *device = pool->device;
    if (!request->one_stream) {
        return gm_ladder_wait(pool, NULL, left_ns);
    }
    uint64_t identity = device->ops->stream_identity(device, request->stream);
    gm_lane *lane = gm_lanes_find(pool, identity, GM_ARENA_ELASTIC);
    return lane != NULL && gm_ladder_wait(pool, lane, left_ns);
}

static bool
is_reached(gm_pool *pool, const gm_trim_request *request)
{
    return request->target != 0 && gm_page_pool_reserved(pool) <= request->target;
}

/* Trims until the target is reached or nothing is left to wait for. */
static gm_status
trim_passes(gm_pool *pool, const gm_trim_request *request)
{
    uint64_t left_ns = request->timeout_ns;
    gm_status status;
    do {
        status = trim_once(pool, request);
        if (status != GM_OK || is_reached(pool, request)) {
            return status;
        }
    } while (wait_for_work(pool, request, &left_ns));
    bool may_settle = request->timeout_ns != 0 || gm_pool_is_closed(pool);
    if (may_settle && !request->one_stream && gm_lanes_settle(pool, left_ns)) {
        status = trim_once(pool, request);
    }
    return status;
}

static void
fill_report(gm_pool *pool, size_t released, gm_trim_report *out)
{
    gm_pool_stats stats;
    gm_pool_read_stats(pool, &stats);
    size_t reserved = stats.reserved_bytes.all.current;
    out->released = released;
    out->referenced = stats.allocated_bytes.all.current;
    out->pending = stats.pending_bytes;
    out->skipped = reserved > out->referenced ? reserved - out->referenced : 0;
}

gm_status
gm_pool_trim(gm_pool *pool, const gm_trim_request *request, gm_trim_report *out)
{
    memset(out, 0, sizeof(*out));
    GM_TRY(gm_device_usable(pool->device));
    out->capturing = gm_pool_is_capturing(pool);
    if (out->capturing) {
        fill_report(pool, 0, out);
        return GM_OK;
    }
    size_t before = gm_page_pool_reserved(pool);
    gm_status status = trim_passes(pool, request);
    gm_lanes_dissolve(pool);
    if (request->target == 0 && request->older_than_ns == 0 && pool->paged) {
        (void)gm_page_pool_shrink(pool, 0, &status);
    }
    size_t after = gm_page_pool_reserved(pool);
    size_t released = before > after ? before - after : 0;
    if (released != 0) {
        atomic_fetch_add(&pool->flushes, 1);
        atomic_fetch_add(&pool->flushed_bytes, released);
        gm_page_pool_note_flush(pool, released);
    }
    fill_report(pool, released, out);
    return status;
}

/* ---- reserve ---------------------------------------------------------------------- */

/* A whole segment for the default stream's large arena. */
static gm_status
reserve_segment(gm_pool *pool, size_t size, gm_shortage *shortage)
{
    gm_device *device = pool->device;
    gm_lane *lane;
    uint64_t identity = device->ops->stream_identity(device, GM_DEFAULT_STREAM);
    GM_TRY(gm_lanes_get(pool, GM_DEFAULT_STREAM, identity, GM_ARENA_ELASTIC, &lane));
    gm_mutex_lock(&lane->lock);
    gm_status status =
        gm_source_add_chunk_locked(lane, &lane->shelves[GM_LARGE].arena, size,
                                   GM_GRANULE, (gm_terms){0}, shortage);
    gm_mutex_unlock(&lane->lock);
    return status;
}

gm_status
gm_pool_reserve(gm_pool *pool, size_t size, gm_oom *oom)
{
    gm_shortage shortage = {0};
    GM_TRY(gm_pool_usable(pool));
    size_t reserved = gm_page_pool_reserved(pool);
    if (size <= reserved) {
        return GM_OK;
    }
    gm_status status = GM_OUT_OF_MEMORY;
    if (size > gm_pool_limit(pool)) {
        shortage.refusal = GM_REFUSED_LIMIT;
    }
    else if (size <= pool->device->info.total) {
        status = pool->paged ? gm_page_pool_grow(pool, size, &shortage.refusal)
                             : reserve_segment(pool, size - reserved, &shortage);
    }
    if (status == GM_OUT_OF_MEMORY) {
        gm_request request = {.size = size};
        gm_ladder ladder;
        gm_ladder_init(&ladder, pool);
        ladder.shortage = shortage;
        gm_ladder_fail(&ladder, pool, NULL, &request, oom);
    }
    return status;
}

/* ---- streams ------------------------------------------------------------------------- */

typedef struct retirement {
    uint64_t identity;
} retirement;

/* The lane's own stream goes: its mark becomes final. Other lanes keep one last event
 * for blocks that were recorded on it. */
static bool
retire_lane(gm_lane *lane, void *argument)
{
    const retirement *gone = argument;
    gm_pending_retire_stream_locked(lane, gone->identity);
    if (atomic_load_explicit(&lane->identity, memory_order_relaxed) == gone->identity &&
        gm_lane_mark_last_locked(lane)) {
        lane->retired = true;
        /* A new stream that gets this identity again has a lane of its own. */
        atomic_store_explicit(&lane->identity, GM_NO_IDENTITY, memory_order_relaxed);
    }
    return true;
}

void
gm_pool_stream_retired(gm_pool *pool, gm_stream stream)
{
    if (gm_pool_is_forked(pool) || gm_process_is_exiting()) {
        return;
    }
    gm_device *device = pool->device;
    retirement gone = {.identity = device->ops->stream_identity(device, stream)};
    if (gone.identity == device->ops->stream_identity(device, GM_DEFAULT_STREAM)) {
        return;
    }
    (void)gm_capture_forget(pool, gone.identity);
    gm_lanes_visit(pool, retire_lane, &gone);
    gm_lanes_dissolve(pool);
}

static bool
poll_lane(gm_lane *lane, void *argument)
{
    (void)argument;
    gm_lane_drain_locked(lane);
    gm_pending_poll_locked(lane);
    return true;
}

void
gm_pool_poll(gm_pool *pool)
{
    if (!gm_pool_is_forked(pool) && !gm_process_is_exiting()) {
        gm_lanes_visit(pool, poll_lane, NULL);
        gm_lanes_dissolve(pool);
    }
}
