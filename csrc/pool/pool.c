/* pool.c - the pool's life, the slow path of an allocation, and frees by address. What
 * nearly every call needs stands in fast.c.
 */
#include "pool/pool.h"

#include <stdlib.h>

#include "base/bits.h"
#include "pool/counting.h"

static _Atomic(gm_report_hook) report_hook;

void
gm_set_report_hook(gm_report_hook hook)
{
    atomic_store(&report_hook, hook);
}

void
gm_pool_report(gm_status status, const char *what)
{
    gm_report_hook hook = atomic_load(&report_hook);
    if (hook != NULL && !gm_process_is_exiting()) {
        hook(status, what);
    }
}

/* ---- life ------------------------------------------------------------------------- */

gm_status
gm_pool_create(gm_device *device, const gm_pool_options *options, gm_pool **out)
{
    GM_TRY(gm_device_usable(device));
    GM_TRY(gm_pool_options_validate(options, NULL));
    GM_TRY(gm_device_prepare(device));
    gm_pool *pool = calloc(1, sizeof(*pool));
    if (pool == NULL) {
        return GM_NO_HOST_MEMORY;
    }
    gm_status status = gm_trace_create(&pool->trace);
    if (status != GM_OK) {
        free(pool);
        return status;
    }
    pool->device = gm_device_retain(device);
    pool->generation = gm_process_generation();
    pool->options = *options;
    pool->paged = options->paging && gm_device_has(device, GM_CAP_PAGING);
    pool->page_size = pool->paged ? device->info.page_size : 0;
    gm_mutex_init(&pool->lanes_lock, GM_RANK_LANES);
    gm_list_init(&pool->lanes);
    gm_list_init(&pool->free_lanes);
    gm_list_init(&pool->link);
    gm_captures_init(pool);
    gm_page_pool_init(pool);
    pool->created_ns = device->ops->clock_ns(device);
    atomic_store(&pool->attention,
                 device->ops->note_block != NULL ? GM_POOL_CHECKED : 0);
    atomic_store(&pool->references, 1);
    atomic_store(&pool->cross_stream, (uint32_t)options->cross_stream);
    atomic_store(&pool->yields, options->yields);
    atomic_store(&pool->gc_on_pressure, options->gc_on_pressure);
    atomic_store(&pool->oom_wait_ns, options->oom_wait_ns);
    gm_registry_add(pool);
    if (options->reserve != 0) {
        status = gm_pool_reserve(pool, options->reserve, NULL);
        if (status != GM_OK) {
            gm_pool_release(pool);
            return status;
        }
    }
    *out = pool;
    return GM_OK;
}

gm_pool *
gm_pool_retain(gm_pool *pool)
{
    atomic_fetch_add(&pool->references, 1);
    return pool;
}

void
gm_pool_release(gm_pool *pool)
{
    if (pool == NULL || atomic_fetch_sub(&pool->references, 1) != 1) {
        return;
    }
    gm_registry_remove(pool);
    if (gm_process_is_exiting() || gm_pool_is_forked(pool)) {
        return; /* leaked on purpose: nothing may touch the device any more */
    }
    gm_capture_forget_all(pool);
    gm_pool_close(pool, 0);
    gm_lanes_destroy(pool);
    gm_device_release(pool->device);
    gm_trace_destroy(pool->trace);
    gm_page_pool_destroy(pool);
    gm_captures_destroy(pool);
    free(pool);
}

void
gm_pool_close(gm_pool *pool, uint64_t timeout_ns)
{
    atomic_fetch_or(&pool->attention, GM_POOL_CLOSED);
    gm_trim_request request = {.timeout_ns = timeout_ns};
    gm_trim_report report;
    gm_status status = gm_pool_trim(pool, &request, &report);
    if (status != GM_OK && status != GM_FORKED && status != GM_EXITING) {
        gm_pool_report(status, "give memory back while closing a pool");
    }
}

bool
gm_pool_is_closed(const gm_pool *pool)
{
    return gm_pool_attention(pool, GM_POOL_CLOSED) != 0;
}

gm_device *
gm_pool_device(const gm_pool *pool)
{
    return pool->device;
}

uint64_t
gm_pool_id(const gm_pool *pool)
{
    return pool->id;
}

/* ---- allocating ------------------------------------------------------------------- */

void
gm_pool_tell_alloc(gm_pool *pool, const gm_request *request, const gm_block *block)
{
    gm_device *device = pool->device;
    if (gm_pool_attention(pool, GM_POOL_CHECKED) != 0) {
        device->ops->note_block(device, gm_block_start(block), block->size,
                                device->ops->stream_identity(device, request->stream));
    }
    gm_trace_entry entry =
        gm_trace_make(pool, GM_TRACE_ALLOC, gm_block_start(block), request->size,
                      request->stream, request->context);
    gm_trace_write(pool, &entry);
    gm_trace_tell(pool, &entry);
}

/* The bytes used at the pool's peak, or with `size` more in this lane if that is more.
 * Other lanes count as of the last survey (Note [Budgets]). */
static uint64_t
demand_locked(gm_lane *lane, size_t size) GM_REQUIRES(lane->lock)
{
    gm_pool *pool = lane->pool;
    uint64_t used = gm_lane_used_locked(lane) + size;
    if (!atomic_load_explicit(&pool->many_lanes, memory_order_relaxed)) {
        uint64_t peak = lane->peaks.used.bytes;
        return used > peak ? used : peak;
    }
    uint64_t peak = atomic_load_explicit(&pool->peak_used, memory_order_relaxed);
    uint64_t budget = atomic_load_explicit(&lane->budget.bytes, memory_order_relaxed);
    return used > budget ? peak + (used - budget) : peak;
}

/* What an attempt may do, as far as the ladder has come. */
static gm_terms
terms_locked(gm_lane *lane, const gm_ladder *ladder, size_t size)
    GM_REQUIRES(lane->lock)
{
    const gm_pool *pool = lane->pool;
    bool alone =
        !pool->paged || !atomic_load_explicit(&pool->many_lanes, memory_order_relaxed);
    return (gm_terms){.grow = alone || ladder->may_grow || ladder->force != 0,
                      .force = ladder->force,
                      .borrow = ladder->borrow,
                      .demand = demand_locked(lane, size)};
}

/* One attempt under the lane's lock. GM_BUSY: the lane was dissolved meanwhile. */
static gm_status
attempt(gm_pool *pool, const gm_request *request, size_t size, uint64_t identity,
        gm_lane **lane, gm_ladder *ladder, gm_block **out) GM_NO_THREAD_ANALYSIS
{
    GM_TRY(gm_lanes_get(pool, request->stream, identity, request->kind, lane));
    if (ladder->borrow) {
        gm_mutex_lock(&pool->lanes_lock);
    }
    gm_mutex_lock(&(*lane)->lock);
    gm_status status = GM_BUSY;
    bool over_budget = false;
    if (gm_lane_is(*lane, identity, request->kind)) {
        gm_terms terms = terms_locked(*lane, ladder, size);
        gm_lane_drain_locked(*lane);
        gm_pending_poll_locked(*lane);
        status = gm_lane_allocate_locked(*lane, request, size, terms, &ladder->shortage,
                                         out);
        over_budget = gm_lane_is_over_budget(*lane);
    }
    gm_mutex_unlock(&(*lane)->lock);
    if (ladder->borrow) {
        gm_mutex_unlock(&pool->lanes_lock);
    }
    if (over_budget) {
        gm_peaks_survey(pool);
    }
    return status;
}

/* Idle memory older than options.decay_ns goes back when a slow path passes by. */
static void
decay(gm_pool *pool)
{
    if (pool->options.decay_ns != 0) {
        gm_trim_request request = {.older_than_ns = pool->options.decay_ns};
        gm_trim_report report;
        gm_status status = gm_pool_trim(pool, &request, &report);
        if (status != GM_OK) {
            gm_pool_report(status, "give idle memory back");
        }
    }
}

/* The request as it is served: a stream that captures has its stable arena alone. */
static gm_request
served_request(gm_pool *pool, const gm_request *request, uint64_t identity)
{
    gm_request served = *request;
    if (served.kind != GM_ARENA_STABLE &&
        gm_capture_is_on(pool, request->stream, identity)) {
        served.kind = GM_ARENA_STABLE;
    }
    return served;
}

/* The next thing that may help. What helps gives memory back or waits, and a capture
 * forbids both; pages that an attempt has taken stay in the page pool then. */
static bool
climb(gm_ladder *ladder, gm_pool *pool, gm_lane *lane)
{
    if (ladder->shortage.refusal != GM_REFUSED_POLICY && gm_pool_is_capturing(pool)) {
        ladder->reserved_before = SIZE_MAX;
        return false;
    }
    return gm_ladder_climb(ladder, pool, lane);
}

gm_status
gm_pool_alloc(gm_pool *pool, const gm_request *request, gm_block **out, gm_oom *oom)
{
    size_t size;
    GM_TRY(gm_pool_open_request(pool, request, 0, &size));
    gm_device *device = pool->device;
    uint64_t identity = device->ops->stream_identity(device, request->stream);
    const gm_request served = served_request(pool, request, identity);
    gm_ladder ladder;
    gm_ladder_init(&ladder, pool);
    decay(pool);
    for (;;) {
        gm_lane *lane;
        gm_block *block;
        gm_status status =
            attempt(pool, &served, size, identity, &lane, &ladder, &block);
        if (status == GM_OK) {
            *out = block;
            if (gm_pool_attention(pool, GM_POOL_TRACED | GM_POOL_CHECKED) != 0) {
                gm_pool_tell_alloc(pool, request, block);
            }
            return GM_OK;
        }
        if (status == GM_BUSY) {
            continue;
        }
        if (status != GM_OUT_OF_MEMORY) {
            return status;
        }
        if (!climb(&ladder, pool, lane)) {
            gm_ladder_fail(&ladder, pool, lane, request, oom);
            return GM_OUT_OF_MEMORY;
        }
    }
}

/* ---- freeing by address ----------------------------------------------------------- */

gm_status
gm_block_find(gm_devptr address, gm_block **out)
{
    gm_chunk *chunk = gm_address_map_find(address);
    gm_block *block = chunk == NULL ? NULL : gm_chunk_block_at(chunk, address);
    if (block == NULL) {
        return GM_UNKNOWN_ADDRESS;
    }
    *out = block;
    return GM_OK;
}

static gm_status
count_bad_free(gm_pool *pool)
{
    if (pool != NULL) {
        atomic_fetch_add(&pool->bad_frees, 1);
    }
    return GM_UNKNOWN_ADDRESS;
}

gm_status
gm_pool_free_address(gm_pool *pool, gm_devptr address)
{
    gm_block *block;
    if (gm_process_is_exiting()) {
        return GM_EXITING;
    }
    if (pool != NULL && gm_pool_is_forked(pool)) {
        return GM_FORKED;
    }
    if (gm_block_find(address, &block) != GM_OK || !block->by_address) {
        return count_bad_free(pool);
    }
    const gm_pool *owner = gm_block_lane(block)->pool;
    if ((pool != NULL && owner != pool) || gm_pool_is_forked(owner)) {
        return count_bad_free(pool);
    }
    /* Of two frees of one address only one claims the block. */
    uint8_t used = GM_HEAP_USED;
    if (!atomic_compare_exchange_strong(&block->state, &used, GM_HEAP_FREEING)) {
        return count_bad_free(pool);
    }
    gm_pool_free_claimed(block);
    return GM_OK;
}

gm_status
gm_pool_record_stream(gm_block *block, gm_stream stream)
{
    gm_lane *lane = gm_block_lane(block);
    gm_pool *pool = lane->pool;
    if (gm_pool_is_forked(pool)) {
        return GM_FORKED;
    }
    if (gm_process_is_exiting()) {
        return GM_EXITING;
    }
    gm_device *device = pool->device;
    uint64_t identity = device->ops->stream_identity(device, stream);
    if (identity == atomic_load_explicit(&lane->identity, memory_order_relaxed)) {
        return GM_OK;
    }
    gm_mutex_lock(&lane->lock);
    gm_status status = gm_pending_record_locked(lane, block, stream, identity);
    gm_mutex_unlock(&lane->lock);
    return status;
}

void
gm_pool_count_oom(gm_pool *pool, const gm_request *request, const gm_oom *oom)
{
    if (gm_pool_is_forked(pool)) {
        return;
    }
    atomic_fetch_add(&pool->ooms, 1);
    if (gm_pool_attention(pool, GM_POOL_TRACED) != 0) {
        gm_trace_entry entry =
            gm_trace_make(pool, GM_TRACE_OOM, oom == NULL ? 0 : oom->device_free,
                          request->size, request->stream, request->context);
        gm_trace_write(pool, &entry);
        gm_trace_tell(pool, &entry);
    }
}

void
gm_pool_count_collection(gm_pool *pool)
{
    atomic_fetch_add(&pool->collections, 1);
}

void
gm_pool_count_fallback(gm_pool *pool)
{
    atomic_fetch_add(&pool->fallbacks, 1);
}

/* ---- accessors ----------------------------------------------------------------------- */

gm_devptr
gm_block_address(const gm_block *block)
{
    return gm_block_start(block);
}

size_t
gm_block_requested(const gm_block *block)
{
    return block->requested;
}

size_t
gm_block_size(const gm_block *block)
{
    return block->size;
}

gm_stream
gm_block_stream(const gm_block *block)
{
    return gm_block_lane(block)->stream;
}

uint64_t
gm_block_context(const gm_block *block)
{
    return block->context;
}

gm_pool *
gm_block_pool(const gm_block *block)
{
    return gm_block_lane(block)->pool;
}

/* ---- limits ----------------------------------------------------------------------------- */

void
gm_pool_set_limit(gm_pool *pool, size_t limit)
{
    if (gm_pool_is_forked(pool)) {
        return;
    }
    gm_mutex_lock(&pool->page_pool.lock);
    pool->page_pool.limit = limit;
    gm_mutex_unlock(&pool->page_pool.lock);
}

size_t
gm_pool_limit(const gm_pool *pool)
{
    gm_page_pool *pages = (gm_page_pool *)(uintptr_t)&pool->page_pool;
    if (gm_pool_is_forked(pool)) {
        return SIZE_MAX;
    }
    gm_mutex_lock(&pages->lock);
    size_t limit = pages->limit;
    gm_mutex_unlock(&pages->lock);
    return limit;
}

void
gm_pool_read_options(const gm_pool *pool, gm_pool_options *out)
{
    gm_page_pool *pages = (gm_page_pool *)(uintptr_t)&pool->page_pool;
    *out = pool->options;
    if (gm_pool_is_forked(pool)) {
        return;
    }
    gm_mutex_lock(&pages->lock);
    out->limit = pages->limit;
    out->headroom = pages->headroom;
    gm_mutex_unlock(&pages->lock);
    out->cross_stream = (gm_cross_stream)atomic_load(&pool->cross_stream);
    out->yields = atomic_load(&pool->yields);
    out->gc_on_pressure = atomic_load(&pool->gc_on_pressure);
    out->oom_wait_ns = atomic_load(&pool->oom_wait_ns);
}

gm_status
gm_pool_change_options(gm_pool *pool, const gm_pool_options *options)
{
    const gm_pool_options *fixed = &pool->options;
    GM_TRY(gm_pool_options_validate(options, NULL));
    if (gm_pool_is_forked(pool)) {
        return GM_FORKED;
    }
    if (options->max_split != fixed->max_split || options->steal != fixed->steal ||
        options->steal_ratio != fixed->steal_ratio ||
        options->decay_ns != fixed->decay_ns || options->paging != fixed->paging) {
        return GM_INVALID;
    }
    gm_mutex_lock(&pool->page_pool.lock);
    pool->page_pool.limit = options->limit;
    pool->page_pool.headroom = options->headroom;
    gm_mutex_unlock(&pool->page_pool.lock);
    atomic_store(&pool->cross_stream, (uint32_t)options->cross_stream);
    atomic_store(&pool->yields, options->yields);
    atomic_store(&pool->gc_on_pressure, options->gc_on_pressure);
    atomic_store(&pool->oom_wait_ns, options->oom_wait_ns);
    return GM_OK;
}
