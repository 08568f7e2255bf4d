/* arena.c - see arena.h. */
#include "heap/arena.h"

#include "base/assert.h"
#include "base/bits.h"
#include "heap/arena_index.h"

/* ---- chunks ------------------------------------------------------------------------ */

gm_status
gm_arena_init(gm_arena *arena, bool small, size_t page_size, size_t max_split,
              gm_slab *nodes, void *owner)
{
    *arena = (gm_arena){.small = small,
                        .page_size = page_size,
                        .max_split = max_split,
                        .easy_alignment = GM_HEAP_GRANULE,
                        .nodes = nodes,
                        .owner = owner};
    gm_list_init(&arena->chunks);
    GM_TRY(gm_free_index_init(&arena->mapped, GM_INDEX_MAPPED));
    gm_status status = gm_free_index_init(&arena->sparse, GM_INDEX_SPARSE);
    if (status != GM_OK) {
        gm_free_index_destroy(&arena->mapped);
    }
    return status;
}

void
gm_arena_destroy(gm_arena *arena)
{
    GM_LIST_FOREACH_SAFE(link, following, &arena->chunks) {
        gm_chunk *chunk = GM_CONTAINER_OF(link, gm_chunk, link);
        gm_list_remove(link);
        gm_address_map_clear(chunk->base, chunk->size);
        gm_chunk_retire(chunk);
    }
    gm_free_index_destroy(&arena->mapped);
    gm_free_index_destroy(&arena->sparse);
}

void
gm_arena_add_chunk(gm_arena *arena, gm_chunk *chunk)
{
    gm_block *block = gm_slab_take(arena->nodes);
    block->prev = NULL;
    block->next = NULL;
    block->chunk = chunk;
    block->size = chunk->size;
    block->uses = 0;
    block->freed_ns = 0;
    block->freed_at = 0;
    atomic_store_explicit(&block->address, chunk->base, memory_order_relaxed);
    gm_block_set_state(block, GM_HEAP_FREE);
    chunk->arena = arena;
    chunk->owner = arena->owner;
    chunk->first = block;
    gm_list_push_back(&arena->chunks, &chunk->link);
    arena->chunk_count++;
    arena->address_bytes += chunk->size;
    if (!chunk->paged) {
        arena->mapped_bytes += chunk->size;
    }
    gm_block_set_unmapped(block, (uint32_t)chunk->slot_count);
    block->mapped_prefix = chunk->paged ? 0 : chunk->size;
    gm_arena_index(arena, block);
}

bool
gm_arena_chunk_is_idle(const gm_chunk *chunk)
{
    return gm_block_is_free(chunk->first) && chunk->first->next == NULL &&
           chunk->zombie_slots == 0;
}

void
gm_arena_remove_chunk(gm_arena *arena, gm_chunk *chunk)
{
    gm_block *block = chunk->first;
    GM_ASSERT(gm_arena_chunk_is_idle(chunk) && chunk->mapped_slots == 0);
    gm_arena_unindex(arena, block);
    gm_block_set_state(block, GM_HEAP_DEAD);
    gm_slab_give(arena->nodes, block);
    gm_list_remove(&chunk->link);
    chunk->first = NULL;
    arena->chunk_count--;
    arena->address_bytes -= chunk->size;
    if (!chunk->paged) {
        arena->mapped_bytes -= chunk->size;
    }
}

/* ---- finding a place ------------------------------------------------------------------ */

static inline size_t
front_of(const gm_block *block, size_t alignment)
{
    uint64_t start = gm_block_start(block);
    return (size_t)(gm_align_up_unchecked(start, alignment) - start);
}

/* Counts the slots under `size` bytes at out->front and those without a page. Returns
 * true, or false with *end behind the last zombie among them. */
static bool
measure_slots(const gm_arena *arena, gm_placement *out, uint64_t *end)
{
    const gm_chunk *chunk = out->block->chunk;
    uint64_t start = gm_block_start(out->block) + out->front;
    size_t last = gm_arena_slot(arena, chunk, start + out->size - 1);
    out->first_slot = gm_arena_slot(arena, chunk, start);
    out->slot_count = last - out->first_slot + 1;
    out->missing = 0;
    for (size_t slot = last + 1; slot-- > out->first_slot;) {
        if (chunk->slots[slot].state == GM_SLOT_ZOMBIE) {
            *end = gm_arena_slot_address(arena, chunk, slot + 1);
            return false;
        }
        out->missing += chunk->slots[slot].state != GM_SLOT_MAPPED;
    }
    return true;
}

bool
gm_arena_measure_place(const gm_arena *arena, gm_block *block, size_t size,
                       size_t alignment, gm_placement *out)
{
    uint64_t start = gm_block_start(block);
    uint64_t place = start;
    *out = (gm_placement){.block = block, .size = size};
    do {
        out->front = (size_t)(gm_align_up_unchecked(place, alignment) - start);
        if (out->front > block->size || block->size - out->front < size) {
            return false;
        }
    } while (block->unmapped != 0 && !measure_slots(arena, out, &place));
    return true;
}

bool
gm_arena_measure_place_at(const gm_arena *arena, gm_block *block, size_t size,
                          size_t front, gm_placement *out)
{
    uint64_t zombie_end;
    *out = (gm_placement){.block = block, .front = front, .size = size};
    return block->unmapped == 0 || measure_slots(arena, out, &zombie_end);
}

/* With a split limit: may this free block serve this size? (As PyTorch's
 * max_split_size: larger blocks are kept whole for larger requests.) */
static inline bool
split_allows(const gm_arena *arena, const gm_block *block, size_t size)
{
    if (block->size <= arena->max_split) {
        return true;
    }
    return size > arena->max_split && block->size - size <= GM_UNSPLIT_SLACK;
}

/* The best block whose usable start holds `size` bytes at `alignment`, or one that has
 * room for any alignment, or, exhaustively, any that fits. */
static gm_block *
find_mapped(const gm_arena *arena, size_t size, size_t alignment, bool exhaustive)
{
    const gm_free_index *index = &arena->mapped;
    gm_block *block = gm_free_index_find(index, size, exhaustive);
    if (block == NULL || alignment <= GM_HEAP_GRANULE ||
        front_of(block, alignment) + size <= block->mapped_prefix) {
        return block;
    }
    block = gm_free_index_find(index, size + alignment - GM_HEAP_GRANULE, exhaustive);
    if (block != NULL || !exhaustive) {
        return block;
    }
    do {
        block = gm_free_index_next(index, size, block);
    } while (block != NULL && front_of(block, alignment) + size > block->mapped_prefix);
    return block;
}

/* Among blocks with unmapped pages, the place that newly touches the fewest. */
static bool
find_sparse(const gm_arena *arena, size_t size, size_t alignment, gm_placement *out)
{
    bool found = false;
    gm_block *block = gm_free_index_next(&arena->sparse, size, NULL);
    while (block != NULL) {
        gm_placement placement;
        if (gm_arena_measure_place(arena, block, size, alignment, &placement) &&
            (!found || placement.missing < out->missing ||
             (placement.missing == out->missing && block->size < out->block->size))) {
            *out = placement;
            found = true;
        }
        block = gm_free_index_next(&arena->sparse, size, block);
    }
    return found;
}

bool
gm_arena_find(gm_arena *arena, size_t size, size_t alignment, gm_placement *out)
{
    gm_arena_file_loose(arena);
    gm_block *block = find_mapped(arena, size, alignment, true);
    if (block != NULL && split_allows(arena, block, size)) {
        *out = (gm_placement){
            .block = block, .front = front_of(block, alignment), .size = size};
        return true;
    }
    return arena->page_size != 0 && find_sparse(arena, size, alignment, out);
}

/* ---- placing and releasing -------------------------------------------------------------- */

static inline void
move_start(gm_block *block, uint64_t address)
{
    atomic_store_explicit(&block->address, address, memory_order_relaxed);
}

/* A new block [address, address + size) in the list below `above`. */
static inline gm_block *
insert_below(gm_arena *arena, gm_block *above, uint64_t address, size_t size)
{
    gm_block *block = gm_slab_take(arena->nodes);
    block->chunk = above->chunk;
    block->size = size;
    move_start(block, address);
    block->next = above;
    block->prev = above->prev;
    if (block->prev != NULL) {
        block->prev->next = block;
    }
    else {
        above->chunk->first = block;
    }
    above->prev = block;
    return block;
}

/* The lowest `size` bytes of a free block, all mapped, become a block of their own;
 * the free block keeps its node and, mostly, its place in the index. */
static inline gm_block *
cut_lower(gm_arena *arena, gm_block *block, size_t size)
{
    uint64_t start = gm_block_start(block);
    gm_block *lower = insert_below(arena, block, start, size);
    move_start(block, start + size);
    block->size -= size;
    block->mapped_prefix -= size;
    gm_arena_loosen(arena, block);
    arena->free_blocks -= !gm_arena_has_memory(arena, block);
    return lower;
}

/* The first `front` bytes of a free block stay free as a block of their own. */
static void
cut_front(gm_arena *arena, gm_block *block, size_t front)
{
    uint64_t start = gm_block_start(block);
    gm_arena_unindex(arena, block);
    gm_block *lower = insert_below(arena, block, start, front);
    lower->uses = 0;
    lower->freed_ns = block->freed_ns;
    lower->freed_at = block->freed_at;
    gm_block_set_state(lower, GM_HEAP_FREE);
    gm_arena_measure(arena, lower, &lower->unmapped, &lower->mapped_prefix);
    gm_block_set_unmapped(lower, lower->unmapped);
    move_start(block, start + front);
    block->size -= front;
    gm_block_set_unmapped(block, block->unmapped - lower->unmapped);
    block->mapped_prefix =
        block->mapped_prefix > front ? block->mapped_prefix - front : 0;
    if (block->mapped_prefix == 0) {
        gm_arena_extend_prefix(arena, block);
    }
    gm_arena_index(arena, lower);
    gm_arena_index(arena, block);
}

/* The first `size` bytes of a free block, all mapped, become a live block; all of it
 * if it is longer than the split limit. */
static inline gm_block *
cut_out(gm_arena *arena, gm_block *block, size_t size)
{
    GM_ASSERT(block->mapped_prefix >= size);
    if (block->size > size && block->size <= arena->max_split) {
        block = cut_lower(arena, block, size);
    }
    else {
        gm_arena_unindex(arena, block);
    }
    block->uses = 0;
    gm_block_set_state(block, GM_HEAP_USED);
    gm_chunk_set_start(block->chunk, gm_block_start(block), block);
    arena->live_bytes += block->size;
    return block;
}

gm_block *
gm_arena_place(gm_arena *arena, const gm_placement *placement)
{
    if (placement->front != 0) {
        cut_front(arena, placement->block, placement->front);
    }
    return cut_out(arena, placement->block, placement->size);
}

static gm_block *
take_aligned(gm_arena *arena, size_t size, size_t alignment)
{
    if (gm_arena_is_tight(arena)) {
        return NULL;
    }
    gm_arena_file_loose(arena);
    gm_block *block = find_mapped(arena, size, alignment, false);
    if (block == NULL || !split_allows(arena, block, size)) {
        return NULL;
    }
    gm_placement placement = {
        .block = block, .front = front_of(block, alignment), .size = size};
    return gm_arena_place(arena, &placement);
}

/* Is `a` the better place of two that fit: shorter, among equals lower? */
static inline bool
fits_better(const gm_block *a, const gm_block *b)
{
    return a->mapped_prefix != b->mapped_prefix ? a->mapped_prefix < b->mapped_prefix
                                                : gm_block_start(a) < gm_block_start(b);
}

/* The best block of the index and the loose one. */
static inline gm_block *
find_best(const gm_arena *arena, size_t size)
{
    gm_block *block = gm_free_index_find(&arena->mapped, size, false);
    gm_block *loose = arena->loose;
    if (loose == NULL || loose->mapped_prefix < size ||
        (block != NULL && fits_better(block, loose))) {
        return block;
    }
    return loose;
}

gm_block *
gm_arena_take(gm_arena *arena, size_t size, size_t alignment)
{
    if (alignment > arena->easy_alignment) {
        return take_aligned(arena, size, alignment);
    }
    gm_block *block = find_best(arena, size);
    if (block == NULL || !split_allows(arena, block, size)) {
        return NULL;
    }
    return cut_out(arena, block, size);
}

/* `block`, which is in no index, leaves the list for good. */
static inline void
drop_node(gm_arena *arena, gm_block *block)
{
    if (block->next != NULL) {
        block->next->prev = block->prev;
    }
    if (block->prev != NULL) {
        block->prev->next = block->next;
    }
    else {
        block->chunk->first = block->next;
    }
    gm_block_set_state(block, GM_HEAP_DEAD);
    gm_slab_give(arena->nodes, block);
}

/* The free block below takes in `size` mapped bytes above it. */
static void
grow_up(gm_arena *arena, gm_block *lower, size_t size, gm_moment now)
{
    arena->free_blocks += !gm_arena_has_memory(arena, lower);
    if (lower->mapped_prefix == lower->size) {
        lower->mapped_prefix += size;
    }
    lower->size += size;
    lower->freed_ns = now.ns;
    lower->freed_at = now.frees;
    gm_arena_reindex(arena, lower);
}

/* The free block above takes in `size` mapped bytes below it. */
static void
grow_down(gm_arena *arena, gm_block *upper, size_t size, gm_moment now)
{
    arena->free_blocks += !gm_arena_has_memory(arena, upper);
    move_start(upper, gm_block_start(upper) - size);
    upper->mapped_prefix += size;
    upper->size += size;
    upper->freed_ns = now.ns;
    upper->freed_at = now.frees;
    gm_arena_reindex(arena, upper);
}

/* Two free neighbours, once parted by a live block, become the lower one. */
static inline void
join(gm_arena *arena, gm_block *lower, gm_block *upper)
{
    gm_arena_unindex(arena, upper);
    arena->free_blocks +=
        !gm_arena_has_memory(arena, lower) && gm_arena_has_memory(arena, upper);
    if (lower->mapped_prefix == lower->size) {
        lower->mapped_prefix += upper->mapped_prefix;
    }
    if (upper->partial) {
        if (!lower->partial) {
            lower->sparse_slot = GM_INDEX_NONE;
        }
        gm_block_set_unmapped(lower, lower->unmapped + upper->unmapped);
    }
    lower->size += upper->size;
    drop_node(arena, upper);
    gm_arena_reindex(arena, lower);
}

void
gm_arena_release(gm_arena *arena, gm_block *block, gm_moment now)
{
    GM_ASSERT(gm_block_state_of(block) > GM_HEAP_FREE);
    gm_block *lower = block->prev;
    gm_block *upper = block->next;
    size_t size = block->size;
    arena->live_bytes -= size;
    if (gm_block_is_free(lower)) {
        drop_node(arena, block);
        grow_up(arena, lower, size, now);
        if (gm_block_is_free(upper)) {
            join(arena, lower, upper);
        }
    }
    else if (gm_block_is_free(upper)) {
        drop_node(arena, block);
        grow_down(arena, upper, size, now);
    }
    else {
        gm_block_set_unmapped(block, 0);
        block->mapped_prefix = size;
        block->freed_ns = now.ns;
        block->freed_at = now.frees;
        gm_block_set_state(block, GM_HEAP_FREE);
        gm_arena_index(arena, block);
    }
}

size_t
gm_arena_largest(const gm_arena *arena)
{
    size_t largest = gm_free_index_largest(&arena->mapped);
    size_t loose = arena->loose != NULL ? arena->loose->mapped_prefix : 0;
    return loose > largest ? loose : largest;
}
