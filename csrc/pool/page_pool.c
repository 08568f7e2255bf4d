/* page_pool.c - pages without an address, and the one count of reserved bytes.
 *
 * Everything is counted before the device is asked, so that the limit is never
 * exceeded, not even for a moment. The stack of free pages is linked through their
 * frames: giving a page back cannot fail.
 */
#include "pool/internal.h"

void
gm_page_pool_init(gm_pool *pool)
{
    gm_page_pool *pages = &pool->page_pool;
    gm_mutex_init(&pages->lock, GM_RANK_PAGE_POOL);
    pages->limit = pool->options.limit;
    pages->headroom = pool->options.headroom;
    gm_slab_init(&pages->frames, sizeof(gm_frame));
}

void
gm_page_pool_destroy(gm_pool *pool)
{
    gm_slab_destroy(&pool->page_pool.frames);
}

static void
push_locked(gm_page_pool *pages, gm_frame *frame)
{
    frame->next = pages->free;
    pages->free = frame;
    pages->count++;
}

/* May `bytes` more be reserved, as far as we decide it? */
static gm_refusal
refuse_locked(gm_pool *pool, size_t bytes)
{
    gm_page_pool *pages = &pool->page_pool;
    uint64_t reserved = pages->reserved.current + pages->in_flight;
    if (reserved > pages->limit || bytes > pages->limit - reserved) {
        return GM_REFUSED_LIMIT;
    }
    if (pages->headroom != 0) {
        size_t free_bytes, total;
        gm_device *device = pool->device;
        if (device->ops->memory_info(device, &free_bytes, &total) == GM_OK &&
            (free_bytes < pages->headroom || bytes > free_bytes - pages->headroom)) {
            return GM_REFUSED_HEADROOM;
        }
    }
    return GM_REFUSED_NOT;
}

/* How many pages may be created, as far as the device and the head-room go. */
static size_t
pages_of_device(gm_pool *pool, size_t headroom, gm_refusal *refusal)
{
    gm_device *device = pool->device;
    size_t free_bytes, total;
    if (!gm_device_has(device, GM_CAP_EXACT_FREE) ||
        device->ops->memory_info(device, &free_bytes, &total) != GM_OK) {
        return SIZE_MAX;
    }
    size_t room = free_bytes > headroom ? (free_bytes - headroom) / pool->page_size : 0;
    *refusal =
        free_bytes / pool->page_size > room ? GM_REFUSED_HEADROOM : GM_REFUSED_DEVICE;
    return room;
}

gm_status
gm_page_pool_foresee(gm_pool *pool, size_t pages, gm_shortage *shortage)
{
    gm_page_pool *own = &pool->page_pool;
    gm_mutex_lock(&own->lock);
    size_t found = own->count, limit = own->limit, headroom = own->headroom;
    size_t reserved = own->reserved.current + own->in_flight;
    gm_mutex_unlock(&own->lock);
    if (pages <= found) {
        return GM_OK;
    }
    size_t needed = pages - found;
    size_t possible = limit > reserved ? (limit - reserved) / pool->page_size : 0;
    gm_refusal refusal = GM_REFUSED_LIMIT;
    if (needed > 1) { /* one page is had or not: nothing to foresee */
        gm_refusal other = GM_REFUSED_DEVICE;
        size_t room = pages_of_device(pool, headroom, &other);
        if (room < possible) {
            possible = room;
            refusal = other;
        }
    }
    if (needed <= possible) {
        return GM_OK;
    }
    shortage->refusal = refusal;
    shortage->bytes = (needed - possible) * pool->page_size;
    return GM_OUT_OF_MEMORY;
}

static void
note_taken_locked(gm_page_pool *pages, size_t bytes)
{
    size_t again = bytes < pages->given_back ? bytes : pages->given_back;
    pages->given_back -= again;
    pages->retaken += again;
}

static gm_status
create_page(gm_pool *pool, gm_frame **out, gm_refusal *refusal)
{
    gm_page_pool *pages = &pool->page_pool;
    size_t size = pool->page_size;
    gm_frame *frame = NULL;
    gm_mutex_lock(&pages->lock);
    gm_status status = GM_OUT_OF_MEMORY;
    *refusal = refuse_locked(pool, size);
    if (*refusal == GM_REFUSED_NOT) {
        status = gm_slab_reserve(&pages->frames, 1);
    }
    if (status == GM_OK) {
        frame = gm_slab_take(&pages->frames);
        pages->created++;
        pages->changes++;
        pages->in_flight += size;
    }
    gm_mutex_unlock(&pages->lock);
    if (status != GM_OK) {
        return status;
    }
    status = pool->device->ops->page_create(pool->device, &frame->page);
    gm_mutex_lock(&pages->lock);
    pages->in_flight -= size;
    if (status == GM_OK) {
        pages->device_allocs++;
        gm_stat_add(&pages->reserved, size);
        note_taken_locked(pages, size);
    }
    else {
        pages->created--;
        gm_slab_give(&pages->frames, frame);
    }
    gm_mutex_unlock(&pages->lock);
    if (status == GM_OUT_OF_MEMORY) {
        *refusal = GM_REFUSED_DEVICE;
    }
    *out = status == GM_OK ? frame : NULL;
    return status;
}

gm_status
gm_page_pool_take(gm_pool *pool, gm_frame **out, gm_refusal *refusal)
{
    gm_page_pool *pages = &pool->page_pool;
    *refusal = GM_REFUSED_NOT;
    gm_mutex_lock(&pages->lock);
    gm_frame *frame = pages->free;
    if (frame != NULL) {
        pages->free = frame->next;
        pages->count--;
        pages->changes++;
    }
    gm_mutex_unlock(&pages->lock);
    *out = frame;
    return frame != NULL ? GM_OK : create_page(pool, out, refusal);
}

void
gm_page_pool_give(gm_pool *pool, gm_frame *frame)
{
    gm_page_pool *pages = &pool->page_pool;
    gm_mutex_lock(&pages->lock);
    push_locked(pages, frame);
    pages->changes++;
    gm_mutex_unlock(&pages->lock);
}

void
gm_page_pool_quarantine(gm_pool *pool, size_t bytes)
{
    gm_mutex_lock(&pool->page_pool.lock);
    pool->page_pool.quarantined += bytes;
    gm_mutex_unlock(&pool->page_pool.lock);
}

gm_status
gm_page_pool_charge(gm_pool *pool, size_t bytes, gm_refusal *refusal)
{
    gm_page_pool *pages = &pool->page_pool;
    gm_mutex_lock(&pages->lock);
    *refusal = refuse_locked(pool, bytes);
    if (*refusal == GM_REFUSED_NOT) {
        pages->in_flight += bytes;
        pages->changes++;
    }
    gm_mutex_unlock(&pages->lock);
    return *refusal == GM_REFUSED_NOT ? GM_OK : GM_OUT_OF_MEMORY;
}

void
gm_page_pool_settle(gm_pool *pool, size_t bytes, bool had)
{
    gm_page_pool *pages = &pool->page_pool;
    gm_mutex_lock(&pages->lock);
    pages->in_flight -= bytes;
    if (had) {
        gm_stat_add(&pages->reserved, bytes);
        pages->whole_bytes += bytes;
        pages->device_allocs++;
        note_taken_locked(pages, bytes);
    }
    gm_mutex_unlock(&pages->lock);
}

void
gm_page_pool_discharge(gm_pool *pool, size_t bytes)
{
    gm_page_pool *pages = &pool->page_pool;
    gm_mutex_lock(&pages->lock);
    pages->whole_bytes -= bytes;
    pages->changes++;
    gm_stat_sub(&pages->reserved, bytes);
    pages->device_frees++;
    gm_mutex_unlock(&pages->lock);
}

/* Takes a free page off the stack if reserved is above target, the topmost that no
 * zombie maps; NULL: none. */
static gm_frame *
take_surplus(gm_pool *pool, size_t target)
{
    gm_page_pool *pages = &pool->page_pool;
    gm_frame *frame = NULL;
    gm_mutex_lock(&pages->lock);
    if (pages->reserved.current > target) {
        gm_frame **link = &pages->free;
        while (*link != NULL && atomic_load(&(*link)->zombies) != 0) {
            link = &(*link)->next;
        }
        frame = *link;
        if (frame != NULL) {
            *link = frame->next;
            pages->count--;
            pages->leaving++;
            pages->changes++;
        }
    }
    gm_mutex_unlock(&pages->lock);
    return frame;
}

size_t
gm_page_pool_shrink(gm_pool *pool, size_t target, gm_status *status)
{
    gm_page_pool *pages = &pool->page_pool;
    size_t freed = 0;
    gm_frame *frame;
    while ((frame = take_surplus(pool, target)) != NULL) {
        gm_status result = pool->device->ops->page_destroy(pool->device, frame->page);
        gm_mutex_lock(&pages->lock);
        pages->leaving--;
        if (result == GM_OK) {
            pages->created--;
            pages->device_frees++;
            gm_stat_sub(&pages->reserved, pool->page_size);
            gm_slab_give(&pages->frames, frame);
            freed += pool->page_size;
        }
        else {
            pages->quarantined += pool->page_size;
        }
        gm_mutex_unlock(&pages->lock);
        if (result != GM_OK) {
            *status = result;
        }
    }
    return freed;
}

gm_status
gm_page_pool_grow(gm_pool *pool, size_t size, gm_refusal *refusal)
{
    size_t before = gm_page_pool_reserved(pool);
    gm_status status = GM_OK;
    if (size > before) {
        size_t pages = (size - before - 1) / pool->page_size + 1;
        size_t found = gm_page_pool_unplaced(pool) / pool->page_size;
        gm_shortage shortage = {0};
        status = gm_page_pool_foresee(pool, found + pages, &shortage);
        *refusal = shortage.refusal;
    }
    while (status == GM_OK && gm_page_pool_reserved(pool) < size) {
        gm_frame *frame;
        status = create_page(pool, &frame, refusal);
        if (status == GM_OK) {
            gm_page_pool_give(pool, frame);
        }
    }
    if (status != GM_OK) {
        gm_status ignored = GM_OK;
        (void)gm_page_pool_shrink(pool, before, &ignored);
    }
    return status;
}

size_t
gm_page_pool_unplaced(gm_pool *pool)
{
    gm_mutex_lock(&pool->page_pool.lock);
    size_t bytes = pool->page_pool.count * pool->page_size;
    gm_mutex_unlock(&pool->page_pool.lock);
    return bytes;
}

size_t
gm_page_pool_reserved(gm_pool *pool)
{
    gm_mutex_lock(&pool->page_pool.lock);
    size_t bytes = pool->page_pool.reserved.current;
    gm_mutex_unlock(&pool->page_pool.lock);
    return bytes;
}

void
gm_page_pool_note_flush(gm_pool *pool, size_t bytes)
{
    gm_mutex_lock(&pool->page_pool.lock);
    pool->page_pool.given_back += bytes;
    gm_mutex_unlock(&pool->page_pool.lock);
}
