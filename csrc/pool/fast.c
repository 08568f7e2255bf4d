/* fast.c - the path of nearly every allocation and free: memory that is cached, and a
 * lock that is free.
 *
 * Note [The two paths]
 * gm_pool_try_alloc runs with the GIL held: it takes the lane's lock only if it is
 * free, and hands out cached memory only. gm_pool_alloc (pool.c) may ask the device and
 * may wait. gm_pool_free runs anywhere, destructors and host callbacks included: if the
 * lock is busy it pushes the block onto the lane's deferred list, which every holder
 * of the lock drains. While a capture is declared every allocation goes to pool.c.
 */
#include "pool/counting.h"

/* ---- allocating -------------------------------------------------------------------- */

static inline gm_status
take_cached_locked(gm_lane *lane, const gm_request *request, size_t size,
                   gm_block **out) GM_REQUIRES(lane->lock)
{
    gm_shelf *shelf = gm_lane_shelf(lane, size);
    if (lane->nodes.available < 2) {
        GM_TRY(gm_slab_reserve(&lane->nodes, 2));
    }
    gm_block *block = gm_arena_take(&shelf->arena, size, gm_request_alignment(request));
    if (block == NULL) {
        return GM_MISS;
    }
    gm_lane_hand_out_locked(lane, shelf, request, block);
    *out = block;
    return GM_OK;
}

gm_status
gm_pool_try_alloc(gm_pool *pool, const gm_request *request, gm_block **out)
{
    size_t size;
    GM_TRY(gm_pool_open_request(pool, request, GM_POOL_CAPTURING, &size));
    gm_device *device = pool->device;
    uint64_t identity = device->ops->stream_identity(device, request->stream);
    gm_lane *lane = gm_lanes_peek(pool, identity, request->kind);
    if (lane == NULL) {
        return GM_MISS;
    }
    if (!gm_mutex_try_lock(&lane->lock)) {
        return GM_BUSY;
    }
    gm_status status = GM_MISS;
    bool over_budget = false;
    if (gm_lane_is(lane, identity, request->kind)) {
        gm_lane_drain_locked(lane);
        gm_pending_poll_locked(lane);
        status = take_cached_locked(lane, request, size, out);
        over_budget = gm_lane_is_over_budget(lane);
    }
    gm_mutex_unlock(&lane->lock);
    if (over_budget) {
        gm_peaks_survey(pool);
    }
    if (status == GM_OK &&
        gm_pool_attention(pool, GM_POOL_TRACED | GM_POOL_CHECKED) != 0) {
        gm_pool_tell_alloc(pool, request, *out);
    }
    return status;
}

/* ---- freeing ------------------------------------------------------------------------ */

/* Somebody wants to know. A block that was pending has told its uses before. */
static void
tell_completed(gm_lane *lane, const gm_block *block) GM_REQUIRES(lane->lock)
{
    gm_pool *pool = lane->pool;
    if (gm_block_state_of(block) != GM_HEAP_PENDING) {
        gm_pending_note_uses_locked(lane, block);
    }
    if (gm_pool_attention(pool, GM_POOL_HISTORY) == 0) {
        return;
    }
    gm_trace_entry entry =
        gm_trace_make(pool, GM_TRACE_FREE_COMPLETED, gm_block_start(block),
                      block->requested, lane->stream, block->context);
    gm_trace_write(pool, &entry);
}

/* Nothing waits for the block any more. */
static inline void
release_locked(gm_lane *lane, gm_shelf *shelf, gm_block *block) GM_REQUIRES(lane->lock)
{
    const gm_pool *pool = lane->pool;
    gm_device *device = pool->device;
    lane->frees++;
    if (gm_pool_attention(pool, GM_POOL_HISTORY | GM_POOL_CHECKED) != 0) {
        tell_completed(lane, block);
    }
    gm_moment now = {.ns = device->ops->coarse_clock_ns(device), .frees = lane->frees};
    gm_arena_release(&shelf->arena, block, now);
    gm_count_cached(shelf);
}

void
gm_lane_complete_free_locked(gm_lane *lane, gm_block *block)
{
    gm_count_pending_locked(lane, block, false);
    release_locked(lane, gm_block_shelf(block), block);
}

static inline void
free_locked(gm_lane *lane, gm_block *block) GM_REQUIRES(lane->lock)
{
    gm_shelf *shelf = gm_block_shelf(block);
    gm_count_free_locked(lane, shelf, block);
    if (block->uses == 0) {
        release_locked(lane, shelf, block);
        return;
    }
    gm_pending_file_locked(lane, block);
    gm_block_set_state(block, GM_HEAP_PENDING);
    gm_count_pending_locked(lane, block, true);
}

void
gm_lane_drain_slow_locked(gm_lane *lane)
{
    gm_deferred_node *node = gm_deferred_take_all(&lane->deferred);
    while (node != NULL) {
        gm_deferred_node *next = node->next;
        free_locked(lane, GM_CONTAINER_OF(node, gm_block, deferred));
        lane->deferred_frees++;
        node = next;
    }
}

/* Frees now or defers. Pre: the state is USED or, when the caller claimed the block
 * before, FREEING. */
static inline void
free_or_defer(gm_lane *lane, gm_block *block)
{
    if (gm_mutex_try_lock(&lane->lock)) {
        gm_lane_drain_locked(lane);
        free_locked(lane, block);
        gm_lane_mark_locked(lane);
        gm_mutex_unlock(&lane->lock);
    }
    else {
        gm_block_set_state(block, GM_HEAP_FREEING);
        gm_deferred_push(&lane->deferred, &block->deferred);
    }
}

/* The same where somebody looks on, or the pool is closed and gives memory back. */
static void
free_watched(gm_lane *lane, gm_block *block)
{
    gm_pool *pool = gm_pool_retain(lane->pool);
    gm_trace_entry entry =
        gm_trace_make(pool, GM_TRACE_FREE_REQUESTED, gm_block_start(block),
                      block->requested, lane->stream, block->context);
    gm_trace_write(pool, &entry);
    free_or_defer(lane, block);
    gm_trace_tell(pool, &entry);
    if (gm_pool_is_closed(pool)) {
        gm_pool_close(pool, 0);
    }
    gm_pool_release(pool);
}

static inline void
free_block(gm_lane *lane, gm_block *block)
{
    if (gm_pool_attention(lane->pool, GM_POOL_TRACED | GM_POOL_CLOSED) != 0) {
        free_watched(lane, block);
    }
    else {
        free_or_defer(lane, block);
    }
}

void
gm_pool_free_claimed(gm_block *block)
{
    free_block(gm_block_lane(block), block);
}

void
gm_pool_free(gm_block *block)
{
    if (block == NULL || gm_process_is_exiting()) {
        return;
    }
    gm_lane *lane = gm_block_lane(block);
    if (gm_pool_is_forked(lane->pool)) {
        return;
    }
    GM_VERIFY(gm_block_state_of(block) == GM_HEAP_USED);
    free_block(lane, block);
}
