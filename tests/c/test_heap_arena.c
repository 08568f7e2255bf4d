/* test_heap_arena.c - where blocks go, without any device: pages are numbers here.
 */
#include "base/bits.h"
#include "check.h"
#include "heap/arena.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define PAGE (64 * KIB)
#define CHUNK (4 * MIB)
#define BASE ((uint64_t)64 << 30)

typedef struct fixture {
    gm_slab nodes;
    gm_arena arena;
    uint64_t next_base;
    uint64_t next_page;
} fixture;

static void
check_sound(const fixture *f)
{
    const char *text = gm_arena_check(&f->arena);
    if (text != NULL) {
        check_fail(__FILE__, __LINE__, text);
    }
}

static void
open_arena(fixture *f, size_t page_size, size_t max_split)
{
    memset(f, 0, sizeof(*f));
    f->next_base = BASE;
    f->next_page = 1;
    gm_slab_init(&f->nodes, gm_align_up_unchecked(sizeof(gm_block), 64));
    CHECK_OK(gm_arena_init(&f->arena, false, page_size, max_split, &f->nodes, f));
}

static gm_chunk *
add_chunk(fixture *f, size_t size)
{
    gm_chunk *chunk;
    CHECK_OK(gm_chunk_create(f->next_base, size, f->arena.page_size, false, &chunk));
    CHECK_OK(gm_address_map_set(f->next_base, size, chunk));
    CHECK_OK(gm_slab_reserve(&f->nodes, 1));
    gm_arena_add_chunk(&f->arena, chunk);
    f->next_base += size + CHUNK;
    CHECK(chunk->owner == f);
    check_sound(f);
    return chunk;
}

static void
close_arena(fixture *f)
{
    check_sound(f);
    gm_arena_destroy(&f->arena);
    gm_slab_destroy(&f->nodes);
}

static gm_block *
check_placed(const fixture *f, gm_block *block, size_t size, size_t alignment)
{
    check_sound(f);
    CHECK(block->size >= size);
    CHECK_EQ(gm_block_start(block) % alignment, 0);
    CHECK(gm_chunk_block_at(block->chunk, gm_block_start(block)) == block);
    return block;
}

/* Finds a place, brings the pages in and cuts the block out; NULL: no place.
 * `cached_only`: by the quick search, which wants no pages. */
static gm_block *
place_aligned(fixture *f, size_t size, size_t alignment, bool cached_only,
              size_t *new_pages)
{
    gm_placement found;
    gm_block *block;
    *new_pages = 0;
    CHECK_OK(gm_slab_reserve(&f->nodes, 2));
    if (cached_only) {
        block = gm_arena_take(&f->arena, size, alignment);
        return block == NULL ? NULL : check_placed(f, block, size, alignment);
    }
    if (!gm_arena_find(&f->arena, size, alignment, &found)) {
        return NULL;
    }
    *new_pages = found.missing;
    if (found.missing != 0) {
        gm_slot *slots = found.block->chunk->slots + found.first_slot;
        for (size_t i = 0; i < found.slot_count; i++) {
            if (slots[i].state == GM_SLOT_FREE_VA) {
                slots[i].frame = (gm_frame *)(uintptr_t)f->next_page++; /* opaque */
            }
        }
        gm_arena_commit_pages(&f->arena, found.block, found.first_slot,
                              found.slot_count);
        check_sound(f);
    }
    block = gm_arena_place(&f->arena, &found);
    return check_placed(f, block, size, alignment);
}

static gm_block *
place(fixture *f, size_t size)
{
    size_t new_pages;
    gm_block *block = place_aligned(f, size, 512, false, &new_pages);
    CHECK(block != NULL);
    return block;
}

static void
release(fixture *f, gm_block *block, uint64_t now)
{
    gm_chunk *chunk = block->chunk;
    uint64_t start = gm_block_start(block);
    gm_arena_release(&f->arena, block, (gm_moment){.ns = now, .frees = now});
    CHECK(gm_chunk_block_at(chunk, start) == NULL);
    check_sound(f);
}

/* Takes the whole pages under a free block out; returns their number. */
static size_t
remove_inner_pages(fixture *f, gm_block *block)
{
    size_t first, before = block->chunk->mapped_slots;
    size_t count = gm_arena_inner_slots(&f->arena, block, &first);
    if (count != 0) {
        gm_arena_remove_pages(&f->arena, block, first, count, GM_SLOT_FREE_VA);
    }
    check_sound(f);
    return before - block->chunk->mapped_slots;
}

/* Blocks, free ones included. */
static size_t
node_count(const fixture *f)
{
    size_t count = 0;
    GM_LIST_FOREACH(link, &f->arena.chunks) {
        const gm_chunk *chunk = GM_CONTAINER_OF(link, gm_chunk, link);
        for (const gm_block *block = chunk->first; block != NULL; block = block->next) {
            count++;
        }
    }
    return count;
}

/* ---- chunks ---------------------------------------------------------------------- */

static void
chunks_come_and_go(void)
{
    fixture f;
    open_arena(&f, PAGE, SIZE_MAX);
    gm_chunk *first = add_chunk(&f, CHUNK), *second = add_chunk(&f, 2 * CHUNK);
    CHECK_EQ(f.arena.chunk_count, 2);
    CHECK_EQ(f.arena.address_bytes, 3 * CHUNK);
    CHECK_EQ(f.arena.mapped_bytes, 0);
    gm_block *block = place(&f, MIB);
    CHECK(block->chunk == first);
    CHECK(!gm_arena_chunk_is_idle(first) && gm_arena_chunk_is_idle(second));
    release(&f, block, 1);
    CHECK(gm_arena_chunk_is_idle(first));
    CHECK_EQ(gm_arena_cached_bytes(&f.arena), MIB);
    CHECK_EQ(remove_inner_pages(&f, first->first), 16);
    CHECK_EQ(gm_arena_cached_bytes(&f.arena), 0);
    first->zombie_slots = 1;
    CHECK(!gm_arena_chunk_is_idle(first));
    first->zombie_slots = 0;
    gm_arena_remove_chunk(&f.arena, first);
    gm_address_map_clear(first->base, CHUNK);
    gm_chunk_retire(first);
    CHECK_EQ(f.arena.chunk_count, 1);
    CHECK_EQ(f.arena.address_bytes, 2 * CHUNK);
    CHECK_EQ(node_count(&f), 1);
    close_arena(&f);
}

static void
an_arena_that_goes_leaves_no_address_behind(void)
{
    fixture f;
    open_arena(&f, 0, SIZE_MAX);
    gm_chunk *chunk = add_chunk(&f, CHUNK);
    gm_block *block = place(&f, MIB);
    uint64_t start = gm_block_start(block);
    CHECK(gm_address_map_find(start) == chunk);
    close_arena(&f);
    CHECK(gm_address_map_find(start) == NULL);
    /* The same table of starts, used again, is empty. */
    gm_chunk *again;
    CHECK_OK(gm_chunk_create(start, CHUNK, 0, false, &again));
    CHECK(again == chunk);
    CHECK(gm_chunk_block_at(again, start) == NULL);
    gm_chunk_retire(again);
}

/* ---- merging --------------------------------------------------------------------- */

/* Frees three neighbours in a given order; `lose_pages`: without whole pages each. */
static void
free_in_order(const int *order, bool lose_pages)
{
    fixture f;
    open_arena(&f, PAGE, SIZE_MAX);
    (void)add_chunk(&f, CHUNK);
    gm_block *guard = place(&f, PAGE), *blocks[3];
    for (int i = 0; i < 3; i++) {
        blocks[i] = place(&f, MIB - PAGE);
    }
    gm_block *last = place(&f, PAGE);
    uint64_t start = gm_block_start(blocks[0]);
    for (int i = 0; i < 3; i++) {
        gm_block *next = blocks[order[i]];
        uint64_t address = gm_block_start(next);
        release(&f, next, (uint64_t)i + 1);
        for (gm_block *b = guard->chunk->first; lose_pages && b != NULL; b = b->next) {
            bool inside = gm_block_start(b) <= address && gm_block_end(b) > address;
            if (i < 2 && gm_block_is_free(b) && inside) {
                (void)remove_inner_pages(&f, b);
            }
        }
    }
    gm_block *merged = guard->next;
    CHECK(gm_block_is_free(merged) && merged->next == last);
    CHECK_EQ(gm_block_start(merged), start);
    CHECK_EQ(merged->size, 3 * (MIB - PAGE));
    CHECK_EQ(merged->freed_ns, 3);
    CHECK_EQ(f.arena.live_bytes, 2 * PAGE);
    release(&f, guard, 9);
    release(&f, last, 9);
    CHECK_EQ(node_count(&f), 1);
    close_arena(&f);
}

static void
neighbours_are_joined_in_any_order(void)
{
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (int i = 0; i < 6; i++) {
        free_in_order(orders[i], false);
        free_in_order(orders[i], true);
    }
}

/* ---- places ---------------------------------------------------------------------- */

static void
mapped_memory_is_taken_before_new_pages(void)
{
    fixture f;
    size_t new_pages;
    open_arena(&f, PAGE, SIZE_MAX);
    CHECK(place_aligned(&f, 512, 512, false, &new_pages) == NULL);
    (void)add_chunk(&f, CHUNK);
    CHECK(place_aligned(&f, 512, 512, true, &new_pages) == NULL);
    gm_block *first = place(&f, PAGE + 512), *second = place(&f, 3 * PAGE);
    CHECK_EQ(f.arena.mapped_bytes, 5 * PAGE);
    /* What is left of the fifth page serves what fits there. */
    gm_block *third = place_aligned(&f, PAGE - 512, 512, true, &new_pages);
    CHECK(third != NULL);
    CHECK_EQ(gm_arena_cached_bytes(&f.arena), 0);
    release(&f, first, 1);
    CHECK(place_aligned(&f, 2 * PAGE, 512, true, &new_pages) == NULL);
    gm_block *again = place_aligned(&f, PAGE, 512, true, &new_pages);
    CHECK(again == first || gm_block_start(again) == BASE);
    release(&f, second, 1);
    release(&f, third, 1);
    release(&f, again, 1);
    close_arena(&f);
}

static void
the_fewest_new_pages_win(void)
{
    fixture f;
    size_t new_pages;
    open_arena(&f, PAGE, SIZE_MAX);
    (void)add_chunk(&f, CHUNK);
    gm_block *wide = place(&f, 6 * PAGE), *first = place(&f, PAGE);
    gm_block *half = place(&f, 4 * PAGE + PAGE / 2), *second = place(&f, PAGE / 2);
    uint64_t at = gm_block_start(half);
    release(&f, wide, 1);
    release(&f, half, 1);
    CHECK_EQ(remove_inner_pages(&f, first->prev), 6);
    CHECK_EQ(remove_inner_pages(&f, second->prev), 4);
    /* Below `first` all pages are missing, below `second` all but the last. */
    gm_block *block = place_aligned(&f, 4 * PAGE + PAGE / 2, 512, false, &new_pages);
    CHECK_EQ(gm_block_start(block), at);
    CHECK_EQ(new_pages, 4);
    block = place_aligned(&f, 5 * PAGE, 512, false, &new_pages);
    CHECK_EQ(gm_block_start(block), BASE);
    CHECK_EQ(new_pages, 5);
    CHECK(first->prev->unmapped == 1);
    close_arena(&f);
}

static void
alignment_leaves_a_free_front(void)
{
    fixture f;
    size_t new_pages;
    open_arena(&f, PAGE, SIZE_MAX);
    (void)add_chunk(&f, CHUNK);
    gm_block *guard = place(&f, 512);
    gm_block *block = place_aligned(&f, MIB, MIB, false, &new_pages);
    CHECK_EQ(gm_block_start(block), BASE + MIB);
    CHECK_EQ(new_pages, 16);
    gm_block *front = block->prev;
    CHECK(gm_block_is_free(front));
    CHECK_EQ(front->size, MIB - 512);
    CHECK_EQ(front->mapped_prefix, PAGE - 512);
    CHECK_EQ(front->unmapped, 15);
    release(&f, block, 4);

    /* Now the pages are there: a place in the middle of a mapped part. */
    gm_block *filler = place_aligned(&f, MIB - 512, 512, false, &new_pages);
    CHECK_EQ(gm_block_start(filler), BASE + 512);
    release(&f, filler, 5);
    block = place_aligned(&f, PAGE, MIB, true, &new_pages);
    CHECK_EQ(gm_block_start(block), BASE + MIB);
    CHECK_EQ(block->prev->freed_ns, 5);
    CHECK_EQ(block->prev->mapped_prefix, MIB - 512);
    release(&f, block, 6);
    CHECK(place_aligned(&f, CHUNK, MIB, false, &new_pages) == NULL);
    release(&f, guard, 7);
    close_arena(&f);
}

static void
an_aligned_place_is_found_where_room_is_short(void)
{
    fixture f;
    size_t new_pages;
    open_arena(&f, 0, SIZE_MAX);
    (void)add_chunk(&f, CHUNK);
    gm_block *guard = place(&f, MIB - 1024), *room = place(&f, MIB + 1024);
    gm_block *wall = place(&f, 512), *decoy = place(&f, MIB);
    gm_block *rest = place(&f, CHUNK - 3 * MIB - 512);
    release(&f, room, 1);
    release(&f, decoy, 1);
    /* The best fit is not aligned; the other one begins 1024 below an aligned address,
     * which is just enough. A quick search gives up. */
    CHECK(place_aligned(&f, MIB, MIB, true, &new_pages) == NULL);
    gm_block *block = place_aligned(&f, MIB, MIB, false, &new_pages);
    CHECK_EQ(gm_block_start(block), BASE + MIB);
    CHECK_EQ(block->prev->size, 1024);
    release(&f, block, 1);
    CHECK(place_aligned(&f, MIB + 512, MIB, false, &new_pages) == NULL);
    release(&f, guard, 1);
    release(&f, wall, 1);
    release(&f, rest, 1);
    CHECK_EQ(node_count(&f), 1);
    close_arena(&f);
}

static void
a_page_that_was_put_aside_is_passed_over(void)
{
    fixture f;
    size_t new_pages;
    open_arena(&f, PAGE, SIZE_MAX);
    gm_chunk *chunk = add_chunk(&f, CHUNK);
    chunk->slots[0].state = GM_SLOT_ZOMBIE;
    chunk->zombie_slots = 1;
    check_sound(&f);
    gm_block *block = place(&f, PAGE);
    CHECK_EQ(gm_block_start(block), BASE + PAGE);
    gm_block *aligned = place_aligned(&f, PAGE, MIB, false, &new_pages);
    CHECK_EQ(gm_block_start(aligned), BASE + MIB);
    CHECK_EQ(new_pages, 1);
    CHECK(place_aligned(&f, CHUNK - PAGE, 512, false, &new_pages) == NULL);
    release(&f, block, 1);
    check_sound(&f);

    /* The free block begins with the zombie again; its page behind that is used first. */
    block = place_aligned(&f, PAGE / 2, 512, false, &new_pages);
    CHECK_EQ(gm_block_start(block), BASE + PAGE);
    CHECK_EQ(new_pages, 0);
    release(&f, block, 1);
    release(&f, aligned, 1);

    /* Of several the last one counts, and only where all of them are the chunk is full. */
    chunk->slots[3].state = GM_SLOT_ZOMBIE;
    chunk->zombie_slots = 2;
    block = place(&f, 3 * PAGE);
    CHECK_EQ(gm_block_start(block), BASE + 4 * PAGE);
    check_sound(&f);
    release(&f, block, 1);
    chunk->slots[CHUNK / PAGE - 1].state = GM_SLOT_ZOMBIE;
    chunk->zombie_slots = 3;
    CHECK(place_aligned(&f, CHUNK - 4 * PAGE, 512, false, &new_pages) == NULL);
    gm_chunk *second = add_chunk(&f, CHUNK);
    block = place(&f, CHUNK - 4 * PAGE);
    CHECK(block->chunk == second);
    release(&f, block, 1);
    close_arena(&f);
}

static void
long_blocks_are_not_split_for_short_ones(void)
{
    fixture f;
    size_t new_pages;
    open_arena(&f, 0, 32 * MIB);
    gm_chunk *chunk = add_chunk(&f, 64 * MIB);
    CHECK(place_aligned(&f, MIB, 512, true, &new_pages) == NULL);
    CHECK(place_aligned(&f, 43 * MIB, 512, true, &new_pages) == NULL);
    gm_block *block = place(&f, 44 * MIB);
    CHECK_EQ(block->size, 64 * MIB);
    release(&f, block, 1);
    gm_arena_remove_chunk(&f.arena, chunk);
    gm_address_map_clear(chunk->base, chunk->size);
    gm_chunk_retire(chunk);
    (void)add_chunk(&f, 32 * MIB);
    block = place(&f, MIB);
    CHECK_EQ(block->size, MIB);
    close_arena(&f);
}

/* ---- pages ----------------------------------------------------------------------- */

static void
only_whole_pages_leave(void)
{
    fixture f;
    size_t first = 99;
    open_arena(&f, PAGE, SIZE_MAX);
    gm_chunk *chunk = add_chunk(&f, CHUNK);
    gm_block *low = place(&f, 512), *middle = place(&f, 4 * PAGE);
    gm_block *high = place(&f, PAGE - 512), *end = place(&f, 512);
    release(&f, high, 1);
    CHECK_EQ(gm_arena_inner_slots(&f.arena, end->prev, &first), 0);
    CHECK_EQ(first, 99);
    release(&f, middle, 1);
    gm_block *idle = low->next;
    CHECK_EQ(gm_arena_inner_slots(&f.arena, idle, &first), 4);
    CHECK_EQ(first, 1);
    gm_arena_remove_pages(&f.arena, idle, 2, 2, GM_SLOT_FREE_VA);
    check_sound(&f);
    CHECK_EQ(idle->mapped_prefix, 2 * PAGE - 512);
    CHECK_EQ(idle->unmapped, 2);
    CHECK(chunk->slots[2].frame == NULL);
    CHECK_EQ(chunk->mapped_slots, 4);
    CHECK_EQ(remove_inner_pages(&f, idle), 2);
    CHECK_EQ(idle->mapped_prefix, PAGE - 512);
    CHECK_EQ(f.arena.free_blocks, 2);
    close_arena(&f);
}

static void
random_use_keeps_every_invariant(void)
{
    enum {
        LIVE = 48
    };
    for (int paged = 0; paged < 2; paged++) {
        fixture f;
        gm_block *blocks[LIVE] = {NULL};
        unsigned seed = 11;
        open_arena(&f, paged != 0 ? PAGE : 0, SIZE_MAX);
        (void)add_chunk(&f, CHUNK);
        for (int step = 0; step < 4000; step++) {
            int i = (int)((unsigned)rand_r(&seed) % LIVE);
            size_t new_pages;
            if (blocks[i] != NULL) {
                release(&f, blocks[i], (uint64_t)step);
                blocks[i] = NULL;
            }
            else {
                size_t size = (1 + (size_t)rand_r(&seed) % 900) * 512;
                size_t alignment = (size_t)512 << ((unsigned)rand_r(&seed) % 12);
                blocks[i] = place_aligned(&f, size, alignment, rand_r(&seed) % 3 == 0,
                                          &new_pages);
            }
            gm_chunk *chunk = GM_CONTAINER_OF(f.arena.chunks.next, gm_chunk, link);
            for (gm_block *b = chunk->first; paged != 0 && step % 40 == 0 && b != NULL;
                 b = b->next) {
                if (gm_block_is_free(b)) {
                    (void)remove_inner_pages(&f, b);
                }
            }
        }
        close_arena(&f);
    }
}

/* ---- damage ---------------------------------------------------------------------- */

#define CHECK_DAMAGE(f, field, value, text)                           \
    do {                                                              \
        __typeof__(field) check_kept = (field);                       \
        check_sound(f);                                               \
        (field) = (value);                                            \
        const char *check_said = gm_arena_check(&(f)->arena);         \
        CHECK(check_said != NULL && strcmp(check_said, (text)) == 0); \
        (field) = check_kept;                                         \
        check_sound(f);                                               \
    } while (0)

static void
damage_is_named(void)
{
    fixture f;
    open_arena(&f, PAGE, SIZE_MAX);
    gm_chunk *chunk = add_chunk(&f, CHUNK);
    gm_block *first = place(&f, 2 * PAGE), *second = place(&f, 2 * PAGE);
    gm_block *last = place(&f, PAGE);
    release(&f, second, 1);
    gm_block *idle = first->next, *tail = last->next;
    CHECK_DAMAGE(&f, chunk->slots[0].state, GM_SLOT_FREE_VA,
                 "a live block lies on a page that is not mapped");
    CHECK_DAMAGE(&f, chunk->slots[2].state, GM_SLOT_FREE_VA,
                 "a free block's count of unmapped pages is wrong");
    CHECK_DAMAGE(&f, idle->mapped_prefix, PAGE,
                 "a free block's count of unmapped pages is wrong");
    CHECK_DAMAGE(&f, idle->mapped_slot, GM_INDEX_NONE,
                 "a free block is in the wrong index");
    CHECK_DAMAGE(&f, tail->partial, false, "a free block is in the wrong index");
    CHECK_DAMAGE(&f, first->size, 2 * PAGE - 512,
                 "blocks of a chunk are not contiguous");
    CHECK_DAMAGE(&f, idle->prev, NULL, "blocks of a chunk are not contiguous");
    CHECK_DAMAGE(&f, last->next, NULL,
                 "a chunk's blocks or slots do not sum to its size");
    CHECK_DAMAGE(&f, chunk->mapped_slots, 4,
                 "a chunk's blocks or slots do not sum to its size");
    CHECK_DAMAGE(&f, f.arena.live_bytes, 0,
                 "an arena's counters differ from its blocks");
    CHECK_DAMAGE(&f, f.arena.free_blocks, 0,
                 "an arena's counters differ from its blocks");
    CHECK_DAMAGE(&f, f.arena.chunk_count, 2,
                 "an arena's counters differ from its blocks");
    CHECK_DAMAGE(&f, f.arena.loose, last, "a free index differs from the free blocks");
    CHECK_DAMAGE(&f, f.arena.sparse.levels, 0,
                 "a free index differs from the free blocks");
    gm_block_set_state(last, GM_HEAP_FREE);
    CHECK(strcmp(gm_arena_check(&f.arena), "two neighbours are both free") == 0);
    gm_block_set_state(last, GM_HEAP_DEAD);
    CHECK(strcmp(gm_arena_check(&f.arena), "a dead block is linked") == 0);
    gm_block_set_state(last, GM_HEAP_USED);
    close_arena(&f);
}

static const gm_test tests[] = {
    {"chunks come and go", chunks_come_and_go},
    {"an arena that goes leaves no address behind",
     an_arena_that_goes_leaves_no_address_behind},
    {"neighbours are joined in any order", neighbours_are_joined_in_any_order},
    {"mapped memory is taken before new pages",
     mapped_memory_is_taken_before_new_pages},
    {"the fewest new pages win", the_fewest_new_pages_win},
    {"alignment leaves a free front", alignment_leaves_a_free_front},
    {"an aligned place is found where room is short",
     an_aligned_place_is_found_where_room_is_short},
    {"a page that was put aside is passed over",
     a_page_that_was_put_aside_is_passed_over},
    {"long blocks are not split for short ones",
     long_blocks_are_not_split_for_short_ones},
    {"only whole pages leave", only_whole_pages_leave},
    {"random use keeps every invariant", random_use_keeps_every_invariant},
    {"damage is named", damage_is_named},
};

GM_TEST_MAIN(tests)
