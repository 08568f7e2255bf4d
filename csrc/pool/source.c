/* source.c - memory of the device for a lane: pages under a placement, new chunks.
 *
 * Plan, then commit: pages are had and mapped first, the slots' states and the blocks
 * change last. A failure on the way unmaps what was mapped and leaves the pages in the
 * page pool, where the next attempt or the end of the ladder finds them.
 */
#include "base/bits.h"
#include "pool/internal.h"

#define SMALL_CHUNK ((size_t)256 << 20)
#define LARGE_CHUNK_CAP ((size_t)64 << 30)
#define SMALL_SEGMENT ((size_t)2 << 20)
#define LARGE_SEGMENT ((size_t)20 << 20)
#define EXACT_SEGMENT ((size_t)10 << 20)

void
gm_source_trace_locked(const gm_lane *lane, gm_trace_action action, gm_devptr address,
                       size_t size)
{
    if (gm_pool_attention(lane->pool, GM_POOL_HISTORY) != 0) {
        gm_trace_entry entry =
            gm_trace_make(lane->pool, action, address, size, lane->stream, 0);
        gm_trace_write(lane->pool, &entry);
    }
}

/* ---- pages ------------------------------------------------------------------ */

static inline gm_devptr
address_of_slot(const gm_arena *arena, const gm_chunk *chunk, size_t slot)
{
    return chunk->base + (uint64_t)slot * arena->page_size;
}

/* Gives the pages staged in [first, end) back to the page pool, except those that were
 * looted. */
static void
unstage(gm_pool *pool, gm_chunk *chunk, size_t first, size_t end)
{
    for (size_t slot = first; slot < end; slot++) {
        gm_slot *place = &chunk->slots[slot];
        if (place->state == GM_SLOT_FREE_VA && place->frame != NULL) {
            if (!place->frame->looted) {
                gm_page_pool_give(pool, place->frame);
            }
            place->frame = NULL;
        }
    }
}

/* Secures a page for every slot that has none: first what was looted. */
static gm_status
stage(gm_pool *pool, const gm_arena *arena, const gm_placement *placement,
      gm_frame *loot, gm_shortage *shortage)
{
    gm_chunk *chunk = placement->block->chunk;
    size_t end = placement->first_slot + placement->slot_count;
    size_t missing = placement->missing;
    for (size_t slot = placement->first_slot; slot < end; slot++) {
        gm_slot *place = &chunk->slots[slot];
        if (place->state != GM_SLOT_FREE_VA) {
            continue;
        }
        missing--;
        if (loot != NULL) {
            place->frame = loot;
            loot = loot->next;
            continue;
        }
        gm_status status = gm_page_pool_take(pool, &place->frame, &shortage->refusal);
        if (status != GM_OK) {
            place->frame = NULL;
            shortage->bytes = (missing + 1) * arena->page_size;
            unstage(pool, chunk, placement->first_slot, slot);
            return status;
        }
    }
    return GM_OK;
}

/* Takes the mappings of staged slots in [first, end) away again. */
static void
unmap_staged(gm_pool *pool, const gm_arena *arena, gm_chunk *chunk, size_t first,
             size_t end)
{
    gm_device *device = pool->device;
    for (size_t slot = first; slot < end; slot++) {
        gm_slot *place = &chunk->slots[slot];
        if (place->state != GM_SLOT_FREE_VA || place->frame == NULL) {
            continue;
        }
        gm_status status = device->ops->unmap(
            device, address_of_slot(arena, chunk, slot), arena->page_size);
        if (status == GM_OK) {
            atomic_fetch_add(&pool->unmaps, 1);
            continue;
        }
        /* The page and its place cannot be trusted any more: neither is used again. A
         * looted page is its last owner's, mapped here as well. */
        place->state = GM_SLOT_ZOMBIE;
        chunk->zombie_slots++;
        atomic_fetch_add(&place->frame->zombies, 1);
        if (!place->frame->looted) {
            gm_page_pool_quarantine(pool, arena->page_size);
        }
        gm_pool_report(status, "unmap a page after a failed allocation");
    }
}

/* Maps and grants the staged slots. */
static gm_status
map_staged(gm_pool *pool, const gm_arena *arena, const gm_placement *placement)
{
    gm_device *device = pool->device;
    gm_chunk *chunk = placement->block->chunk;
    size_t end = placement->first_slot + placement->slot_count;
    size_t slot = placement->first_slot;
    gm_status status = GM_OK;
    while (slot < end && status == GM_OK) {
        if (chunk->slots[slot].state != GM_SLOT_FREE_VA) {
            slot++;
            continue;
        }
        size_t run = slot;
        while (slot < end && chunk->slots[slot].state == GM_SLOT_FREE_VA) {
            status = device->ops->map(device, address_of_slot(arena, chunk, slot),
                                      chunk->slots[slot].frame->page);
            if (status != GM_OK) {
                break;
            }
            atomic_fetch_add(&pool->maps, 1);
            slot++;
        }
        if (status == GM_OK) {
            status = device->ops->grant(device, address_of_slot(arena, chunk, run),
                                        (slot - run) * arena->page_size);
        }
    }
    if (status != GM_OK) {
        unmap_staged(pool, arena, chunk, placement->first_slot, slot);
        unstage(pool, chunk, placement->first_slot, end);
    }
    return status;
}

gm_status
gm_source_fill_locked(gm_lane *lane, gm_arena *arena, const gm_placement *placement,
                      gm_terms terms, gm_shortage *shortage)
{
    gm_pool *pool = lane->pool;
    gm_block *block = placement->block;
    if (placement->missing == 0) {
        return GM_OK;
    }
    gm_loot loot;
    gm_status status = GM_OUT_OF_MEMORY;
    gm_steal_locked(lane, arena, placement, terms, &loot);
    if (loot.unmet != 0 && !terms.grow) {
        *shortage = (gm_shortage){.refusal = GM_REFUSED_POLICY,
                                  .bytes = loot.unmet * arena->page_size};
    }
    else {
        status = gm_page_pool_foresee(pool, placement->missing - loot.count, shortage);
    }
    if (status == GM_OK) {
        status = stage(pool, arena, placement, loot.frames, shortage);
    }
    if (status == GM_OK) {
        status = map_staged(pool, arena, placement);
    }
    gm_steal_settle_locked(lane, &loot, status == GM_OK);
    if (status != GM_OK) {
        shortage->looted = loot.count * arena->page_size;
        return status;
    }
    gm_arena_commit_pages(arena, block, placement->first_slot, placement->slot_count);
    size_t bytes = placement->missing * arena->page_size;
    gm_count_segments_locked(arena, (int64_t)placement->missing, bytes);
    gm_source_trace_locked(lane, GM_TRACE_SEGMENT_MAP,
                           address_of_slot(arena, block->chunk, placement->first_slot),
                           bytes);
    return GM_OK;
}

/* One run of mapped slots leaves. */
static gm_status
unmap_run(gm_lane *lane, gm_arena *arena, gm_block *block, size_t first, size_t count)
{
    gm_pool *pool = lane->pool;
    gm_device *device = pool->device;
    gm_chunk *chunk = block->chunk;
    size_t bytes = count * arena->page_size;
    gm_devptr address = address_of_slot(arena, chunk, first);
    GM_TRY(device->ops->unmap(device, address, bytes));
    atomic_fetch_add(&pool->unmaps, count);
    /* From the highest down, so that pages come back off the stack in rising order. */
    for (size_t i = count; i-- > 0;) {
        gm_page_pool_give(pool, chunk->slots[first + i].frame);
    }
    gm_arena_remove_pages(arena, block, first, count, GM_SLOT_FREE_VA);
    gm_count_segments_locked(arena, -(int64_t)count, bytes);
    gm_source_trace_locked(lane, GM_TRACE_SEGMENT_UNMAP, address, bytes);
    return GM_OK;
}

gm_status
gm_source_unmap_locked(gm_lane *lane, gm_arena *arena, gm_block *block,
                       size_t first_slot, size_t count, size_t *bytes)
{
    const gm_chunk *chunk = block->chunk;
    size_t end = first_slot + count;
    size_t slot = first_slot;
    while (slot < end) {
        if (chunk->slots[slot].state != GM_SLOT_MAPPED) {
            slot++;
            continue;
        }
        size_t run = slot;
        while (slot < end && chunk->slots[slot].state == GM_SLOT_MAPPED) {
            slot++;
        }
        GM_TRY(unmap_run(lane, arena, block, run, slot - run));
        *bytes += (slot - run) * arena->page_size;
    }
    return GM_OK;
}

/* ---- chunks --------------------------------------------------------------------- */

/* Reserves at least `least` bytes of addresses, more if there is room: twice what memory
 * may be had, because addresses that wait for a move's end are in use without any; a
 * limited pool places like one on a smaller device. */
static gm_status
reserve_addresses(gm_pool *pool, const gm_arena *arena, size_t least, size_t *size,
                  gm_devptr *base)
{
    gm_device *device = pool->device;
    size_t limit = gm_pool_limit(pool);
    size_t most = limit < device->info.total ? limit : device->info.total;
    size_t wanted = arena->small ? SMALL_CHUNK : LARGE_CHUNK_CAP;
    wanted = wanted / 2 < most ? wanted : 2 * most;
    size_t unit =
        arena->page_size > GM_RANGE_ALIGNMENT ? arena->page_size : GM_RANGE_ALIGNMENT;
    least = gm_align_up_unchecked(least, unit);
    wanted = gm_align_up_unchecked(wanted > least ? wanted : least, unit);
    for (;;) {
        gm_status status = device->ops->address_reserve(device, wanted, base);
        if (status == GM_OK) {
            *size = wanted;
            return GM_OK;
        }
        if (status != GM_NO_ADDRESS || wanted == least) {
            return status;
        }
        wanted = gm_align_up_unchecked(wanted / 2, unit);
        wanted = wanted > least ? wanted : least;
    }
}

/* The size of the segment that serves `size` bytes: 2 MiB for small blocks; below
 * 10 MiB as many such blocks as 20 MiB hold, so that blocks of one size leave nothing
 * over; else the size itself. In steps of 2 MiB. */
static size_t
segment_size(const gm_arena *arena, size_t size)
{
    size_t exact = gm_align_up_unchecked(size, GM_RANGE_ALIGNMENT);
    if (arena->small && exact <= SMALL_SEGMENT) {
        return SMALL_SEGMENT;
    }
    if (arena->small || size >= EXACT_SEGMENT) {
        return exact;
    }
    return gm_align_up_unchecked(LARGE_SEGMENT / size * size, GM_RANGE_ALIGNMENT);
}

static gm_status
try_segment(gm_pool *pool, size_t size, gm_shortage *shortage, gm_devptr *base)
{
    gm_device *device = pool->device;
    gm_status status = gm_page_pool_charge(pool, size, &shortage->refusal);
    if (status == GM_OK) {
        status = device->ops->segment_create(device, size, base);
        gm_page_pool_settle(pool, size, status == GM_OK);
        if (status == GM_OUT_OF_MEMORY) {
            shortage->refusal = GM_REFUSED_DEVICE;
        }
    }
    if (status != GM_OK) {
        shortage->bytes = size;
    }
    return status;
}

/* A segment of the preferred size, or one that just fits when that is too much. */
static gm_status
create_segment(gm_pool *pool, const gm_arena *arena, size_t least, size_t *size,
               gm_shortage *shortage, gm_devptr *base)
{
    *size = segment_size(arena, least);
    gm_status status = try_segment(pool, *size, shortage, base);
    size_t exact = gm_align_up_unchecked(least, GM_RANGE_ALIGNMENT);
    if (status == GM_OUT_OF_MEMORY && exact < *size) {
        *size = exact;
        status = try_segment(pool, *size, shortage, base);
    }
    return status;
}

static void
return_memory(gm_pool *pool, bool paged, gm_devptr base, size_t size)
{
    gm_device *device = pool->device;
    gm_status status = paged ? device->ops->address_release(device, base, size)
                             : device->ops->segment_destroy(device, base, size);
    if (!paged && status == GM_OK) {
        gm_page_pool_discharge(pool, size);
    }
    if (status != GM_OK) {
        if (!paged) {
            gm_page_pool_quarantine(pool, size);
        }
        gm_pool_report(status,
                       paged ? "release a range of addresses" : "give a segment back");
    }
}

gm_status
gm_source_add_chunk_locked(gm_lane *lane, gm_arena *arena, size_t size,
                           size_t alignment, gm_terms terms, gm_shortage *shortage)
{
    gm_pool *pool = lane->pool;
    size_t least = alignment > GM_RANGE_ALIGNMENT ? size + alignment : size;
    size_t actual;
    gm_devptr base;
    gm_chunk *chunk;
    bool paged = arena->page_size != 0;
    GM_TRY(gm_slab_reserve(&lane->nodes, 1));
    if (paged) {
        size_t pages = (size - 1) / arena->page_size + 1;
        size_t own = gm_steal_most_locked(lane, terms);
        own = own < pages ? own : pages;
        shortage->looted = own * arena->page_size;
        GM_TRY(gm_page_pool_foresee(pool, pages - own, shortage));
    }
    gm_status status =
        paged ? reserve_addresses(pool, arena, least, &actual, &base)
              : create_segment(pool, arena, least, &actual, shortage, &base);
    if (status != GM_OK) {
        return status;
    }
    status = gm_chunk_create(base, actual, arena->page_size, arena->small, &chunk);
    if (status != GM_OK) {
        goto fail_memory;
    }
    status = gm_address_map_set(base, actual, chunk);
    if (status != GM_OK) {
        goto fail_chunk;
    }
    gm_arena_add_chunk(arena, chunk);
    if (!paged) {
        gm_count_segments_locked(arena, 1, actual);
        gm_source_trace_locked(lane, GM_TRACE_SEGMENT_MAP, base, actual);
    }
    return GM_OK;

fail_chunk:
    gm_chunk_retire(chunk);
fail_memory:
    return_memory(pool, paged, base, actual);
    return status;
}

void
gm_source_drop_chunk_locked(gm_lane *lane, gm_arena *arena, gm_chunk *chunk)
{
    gm_devptr base = chunk->base;
    size_t size = chunk->size;
    bool paged = chunk->paged;
    gm_arena_remove_chunk(arena, chunk);
    gm_address_map_clear(base, size);
    gm_chunk_retire(chunk);
    if (!paged) {
        gm_count_segments_locked(arena, -1, size);
        gm_source_trace_locked(lane, GM_TRACE_SEGMENT_UNMAP, base, size);
    }
    return_memory(lane->pool, paged, base, size);
}
