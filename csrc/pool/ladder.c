/* ladder.c - what is tried before an out-of-memory error.
 *
 * Each rung changes something and the allocation is tried again; when no rung can
 * change anything the ladder ends. In order:
 *
 *   0. not because of a failure: pages that options.steal wants to be stolen and the
 *      stream's own blocks do not have are taken from idle memory of other streams, and
 *      then the pool may grow;
 *   1. frees whose work is done (deferred and pending ones) come back, and pages of the
 *      stream's own free blocks move whatever options.steal says (steal.c);
 *   2. idle memory of other streams moves: pages go to the page pool, whole segments
 *      (the stream's own first) to the device, as much as was missing;
 *   3. with cross_stream="wait" the stream waits for others: for those that pending frees
 *      wait for, and then for those whose free pages it takes before they are done
 *      (steal.c, Note [Borrowed pages]); the host does not wait;
 *   4. idle memory of other pools goes back to the device, if that is what has refused and
 *      they yield (options.yields) as much as was missing;
 *   5. a bounded wait on the oldest unfinished work (options.oom_wait_ns in all), last
 *      on the streams of threads that do not mark their own;
 *   then the callbacks and the garbage collection of the Python layer, then the error.
 *
 * A failed climb leaves no more reserved than there was before it.
 */
#include <string.h>

#include "pool/counting.h"
#include "pool/internal.h"

void
gm_ladder_init(gm_ladder *ladder, gm_pool *pool)
{
    *ladder = (gm_ladder){
        .wait_left_ns = atomic_load_explicit(&pool->oom_wait_ns, memory_order_relaxed),
        .reserved_before = gm_page_pool_reserved(pool)};
}

/* The first sleep before the ladder looks around, and what a look costs of the time to
 * wait when the event was gone already. */
#define FIRST_SLICE_NS UINT64_C(1000000)
#define LOST_WAIT_NS UINT64_C(10000000)

/* ---- rungs ------------------------------------------------------------------- */

/* Takes idle memory of lanes for one of them. */
typedef struct lane_search {
    const gm_lane
        *wanting; /* its own pages stay: they may be where it wants to place */
    gm_reclaim reclaim;
} lane_search;

static bool
reclaim_visit(gm_lane *lane, void *argument)
{
    lane_search *search = argument;
    gm_reclaim *reclaim = &search->reclaim;
    if (lane != search->wanting || !lane->pool->paged) {
        gm_lane_drain_locked(lane);
        gm_pending_poll_locked(lane);
        gm_reclaim_lane_locked(lane, reclaim);
    }
    return reclaim->freed < reclaim->target;
}

/* Moves as much idle memory of other lanes to the page pool as was missing; of a pool of
 * segments that of `lane` first, to the device. */
static bool
reclaim_idle(gm_ladder *ladder, gm_pool *pool, gm_lane *lane)
{
    lane_search search = {.wanting = lane, .reclaim.target = ladder->shortage.bytes};
    const gm_reclaim *reclaim = &search.reclaim;
    if (!pool->paged) {
        gm_mutex_lock(&lane->lock);
        reclaim_visit(lane, &search);
        gm_mutex_unlock(&lane->lock);
    }
    if (reclaim->freed < reclaim->target &&
        atomic_load_explicit(&pool->cross_stream, memory_order_relaxed) !=
            GM_CROSS_STREAM_NEVER) {
        gm_lanes_visit(pool, reclaim_visit, &search);
    }
    if (reclaim->status != GM_OK) {
        gm_pool_report(reclaim->status, "take idle memory back");
    }
    if (reclaim->freed == 0) {
        return false;
    }
    atomic_fetch_add(&pool->flushes, 1);
    atomic_fetch_add(&pool->flushed_bytes, reclaim->freed);
    return true;
}

/* ---- other pools ------------------------------------------------------------------ */

/* Idle memory of pools that yield to one of the same device. */
typedef struct pool_search {
    const gm_pool *wanting;
    size_t missing; /* bytes, still */
    size_t idle;    /* bytes, in all */
} pool_search;

static bool
yields_to(gm_pool *pool, const gm_pool *wanting)
{
    return pool != wanting && pool->device == wanting->device &&
           atomic_load_explicit(&pool->yields, memory_order_relaxed);
}

static void
count_idle(gm_pool *pool, void *argument)
{
    pool_search *search = argument;
    if (yields_to(pool, search->wanting)) {
        gm_pool_stats stats;
        gm_pool_read_stats(pool, &stats);
        search->idle += stats.cached_bytes + stats.unplaced_bytes;
    }
}

static void
trim_visit(gm_pool *pool, void *argument)
{
    pool_search *search = argument;
    if (search->missing == 0 || !yields_to(pool, search->wanting)) {
        return;
    }
    size_t reserved = gm_page_pool_reserved(pool);
    gm_trim_request request = {
        .target = reserved > search->missing ? reserved - search->missing : 0};
    gm_trim_report report;
    gm_status status = gm_pool_trim(pool, &request, &report);
    if (status != GM_OK) {
        gm_pool_report(status, "give idle memory back for another pool");
    }
    atomic_fetch_add(&pool->yielded_bytes, report.released);
    search->missing -=
        report.released < search->missing ? report.released : search->missing;
}

/* What would not suffice stays where it is. */
static bool
ask_other_pools(const gm_ladder *ladder, gm_pool *pool)
{
    gm_refusal refusal = ladder->shortage.refusal;
    pool_search search = {.wanting = pool, .missing = ladder->shortage.bytes};
    size_t missing = search.missing;
    if (refusal != GM_REFUSED_DEVICE && refusal != GM_REFUSED_HEADROOM) {
        return false;
    }
    gm_pools_visit(count_idle, &search);
    if (search.idle < missing) {
        return false;
    }
    gm_pools_visit(trim_visit, &search);
    return search.missing < missing;
}

/* ---- waits ------------------------------------------------------------------------ */

/* What lanes wait for: an event to sleep on, and how much had come by itself. */
typedef struct wait_search {
    gm_event event;
    size_t pending; /* blocks that wait for other streams */
    size_t done;    /* lanes with idle memory whose stream is done */
} wait_search;

static bool
has_idle_memory(const gm_lane *lane)
{
    return gm_arena_cached_bytes(&lane->shelves[GM_SMALL].arena) +
               gm_arena_cached_bytes(&lane->shelves[GM_LARGE].arena) !=
           0;
}

/* Counts what is finished, and finds the first unfinished work. */
static bool
search_visit(gm_lane *lane, void *argument)
{
    wait_search *search = argument;
    gm_lane_drain_locked(lane);
    gm_pending_poll_locked(lane);
    search->pending += lane->pending_blocks;
    if (search->event == 0) {
        search->event = gm_pending_oldest_locked(lane);
    }
    if (has_idle_memory(lane)) {
        bool done = gm_lane_is_done_locked(lane);
        search->done += done;
        if (!done && search->event == 0) {
            search->event = gm_lane_marker_locked(lane);
        }
    }
    return true;
}

static wait_search
search_lanes(gm_pool *pool, gm_lane *only)
{
    wait_search search = {0};
    if (only != NULL) {
        gm_mutex_lock(&only->lock);
        (void)search_visit(only, &search);
        gm_mutex_unlock(&only->lock);
    }
    else {
        gm_lanes_visit(pool, search_visit, &search);
    }
    return search;
}

/* Sleeps on one event in growing slices and looks between them whether other work has
 * ended: a slow stream must not hide what a fast one gives back. */
static gm_status
wait_in_slices(gm_pool *pool, gm_lane *only, const wait_search *before,
               uint64_t *left_ns)
{
    gm_device *device = pool->device;
    uint64_t slice = FIRST_SLICE_NS;
    for (;;) {
        uint64_t most = slice < *left_ns ? slice : *left_ns;
        uint64_t start = device->ops->clock_ns(device);
        gm_status status = device->ops->event_synchronize(device, before->event, most);
        uint64_t passed = device->ops->clock_ns(device) - start;
        if (status == GM_NOT_READY && passed < most) {
            passed = most; /* a clock that a test holds still */
        }
        *left_ns = passed < *left_ns ? *left_ns - passed : 0;
        if (status != GM_NOT_READY || *left_ns == 0) {
            return status;
        }
        wait_search now = search_lanes(pool, only);
        if (now.pending < before->pending || now.done > before->done) {
            return GM_OK;
        }
        slice *= 2;
    }
}

bool
gm_ladder_wait(gm_pool *pool, gm_lane *only, uint64_t *left_ns)
{
    if (*left_ns == 0) {
        return false;
    }
    wait_search before = search_lanes(pool, only);
    if (before.event == 0) {
        return false;
    }
    atomic_fetch_add(&pool->waits, 1);
    gm_status status = wait_in_slices(pool, only, &before, left_ns);
    if (status == GM_INVALID) { /* another thread has ended the event: look again */
        *left_ns = *left_ns > LOST_WAIT_NS ? *left_ns - LOST_WAIT_NS : 0;
        return true;
    }
    if (status != GM_OK && status != GM_NOT_READY) {
        *left_ns = 0;
        return false;
    }
    return true;
}

/* First for pending frees, then, once, for pages of other streams. */
static bool
make_streams_wait(gm_ladder *ladder, gm_pool *pool, gm_lane *lane)
{
    gm_mutex_lock(&lane->lock);
    size_t freed = gm_pending_insert_waits_locked(lane);
    gm_mutex_unlock(&lane->lock);
    if (freed != 0) {
        return true;
    }
    bool more =
        !ladder->borrow && pool->paged && gm_device_has(pool->device, GM_CAP_ALIASING);
    ladder->borrow |= more;
    return more;
}

/* Before the pool grows: what other lanes can give, as options.steal says. */
static void
steal_from_others(gm_ladder *ladder, gm_pool *pool, gm_lane *lane)
{
    gm_device *device = pool->device;
    uint64_t start = device->ops->clock_ns(device);
    ladder->may_grow = true;
    (void)reclaim_idle(ladder, pool, lane);
    atomic_fetch_add(&pool->steal_ns, device->ops->clock_ns(device) - start);
}

/* From now on what is missing is stolen, with what the attempt would have stolen besides.
 * An attempt that was allowed less than it turned out to need is made again. */
static bool
force_steal(gm_ladder *ladder, const gm_pool *pool)
{
    size_t missing = ladder->shortage.bytes + ladder->shortage.looted;
    if (ladder->force != 0 && missing <= ladder->force) {
        return false;
    }
    ladder->force = missing != 0 ? missing : 1;
    return pool->paged;
}

bool
gm_ladder_climb(gm_ladder *ladder, gm_pool *pool, gm_lane *lane)
{
    if (ladder->shortage.refusal == GM_REFUSED_POLICY) {
        steal_from_others(ladder, pool, lane);
        return true;
    }
    if (!ladder->climbed) {
        ladder->climbed = true;
        atomic_fetch_add(&pool->retries, 1);
    }
    if (force_steal(ladder, pool)) {
        return true;
    }
    if (reclaim_idle(ladder, pool, lane)) {
        return true;
    }
    uint32_t cross_stream =
        atomic_load_explicit(&pool->cross_stream, memory_order_relaxed);
    if (cross_stream == GM_CROSS_STREAM_WAIT && make_streams_wait(ladder, pool, lane)) {
        return true;
    }
    if (ask_other_pools(ladder, pool)) {
        return true;
    }
    if (cross_stream == GM_CROSS_STREAM_NEVER) {
        return gm_ladder_wait(pool, lane, &ladder->wait_left_ns);
    }
    if (gm_ladder_wait(pool, NULL, &ladder->wait_left_ns)) {
        return true;
    }
    if (ladder->settled) {
        return false;
    }
    ladder->settled = true;
    return gm_lanes_settle(pool, ladder->wait_left_ns);
}

/* ---- the end -------------------------------------------------------------------- */

/* Sums for the error: what is cached where. */
typedef struct oom_sums {
    const gm_lane *own;
    gm_oom *oom;
} oom_sums;

static bool
sum_visit(gm_lane *lane, void *argument)
{
    oom_sums *sums = argument;
    gm_oom *oom = sums->oom;
    size_t cached = gm_arena_cached_bytes(&lane->shelves[GM_SMALL].arena) +
                    gm_arena_cached_bytes(&lane->shelves[GM_LARGE].arena);
    oom->used += gm_lane_used_locked(lane);
    oom->pending += gm_lane_pending_locked(lane);
    oom->cached += cached;
    if (lane != sums->own) {
        oom->stranded += cached;
        return true;
    }
    oom->largest_free = gm_arena_largest(&gm_lane_shelf(lane, oom->requested)->arena);
    return true;
}

/* Which of the five reasons the numbers show. */
static gm_oom_reason
judge(const gm_oom *oom, gm_refusal refusal)
{
    size_t allowed = oom->limit > oom->reserved ? oom->limit - oom->reserved : 0;
    size_t room =
        oom->device_free > oom->headroom ? oom->device_free - oom->headroom : 0;
    size_t growth = allowed < room ? allowed : room;
    if (oom->cached != 0 && oom->cached + growth >= oom->requested) {
        return GM_OOM_FRAGMENTATION;
    }
    if (refusal == GM_REFUSED_LIMIT) {
        return GM_OOM_LIMIT;
    }
    if (refusal == GM_REFUSED_HEADROOM) {
        return GM_OOM_HEADROOM;
    }
    size_t ours = oom->used + oom->pending;
    size_t known = oom->device_free + oom->reserved;
    bool others = oom->device_total > known;
    if (others && ours <= oom->device_total &&
        oom->requested <= oom->device_total - ours) {
        return GM_OOM_OTHERS;
    }
    return GM_OOM_SHORTAGE;
}

void
gm_ladder_fail(gm_ladder *ladder, gm_pool *pool, gm_lane *lane,
               const gm_request *request, gm_oom *out)
{
    gm_device *device = pool->device;
    gm_status status = GM_OK;
    if (pool->paged) {
        (void)gm_page_pool_shrink(pool, ladder->reserved_before, &status);
    }
    if (status != GM_OK) {
        gm_pool_report(status, "destroy a page after a failed allocation");
    }
    if (out == NULL) {
        return;
    }
    memset(out, 0, sizeof(*out));
    out->requested = request->size;
    oom_sums sums = {.own = lane, .oom = out};
    gm_lanes_visit(pool, sum_visit, &sums);
    out->cached += gm_page_pool_unplaced(pool);
    out->reserved = gm_page_pool_reserved(pool);
    out->limit = gm_pool_limit(pool);
    gm_mutex_lock(&pool->page_pool.lock);
    out->headroom = pool->page_pool.headroom;
    gm_mutex_unlock(&pool->page_pool.lock);
    if (device->ops->memory_info(device, &out->device_free, &out->device_total) !=
        GM_OK) {
        out->device_free = 0;
        out->device_total = device->info.total;
    }
    out->reason = judge(out, ladder->shortage.refusal);
}

static const char *const reason_names[GM_OOM_REASON_COUNT] = {
    "shortage", "fragmentation", "limit", "headroom", "others"};

const char *
gm_oom_reason_name(gm_oom_reason reason)
{
    return (unsigned)reason < GM_OOM_REASON_COUNT ? reason_names[reason] : "unknown";
}
