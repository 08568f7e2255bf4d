/* test_heap_pages.c - pages that leave a free block, as zombies or for good, and come back.
 */
#include "arena_kinds.h"

/* ---- pages that leave and come back ---------------------------------------------- */

static void
zombies_come_back_or_go(void)
{
    fixture f;
    size_t zombies, touched;
    open_arena(&f);
    lay(&f, (size_t[]){HALF, 5 * PAGE, SLOTS * PAGE - 5 * PAGE - HALF},
        (bool[]){false, true, false}, 3);
    gm_block *hole = f.chunk->first->next;
    const gm_frame *frame = f.chunk->slots[2].frame;
    lose(&f, hole, 2, 2, GM_SLOT_ZOMBIE);
    CHECK_EQ(hole->unmapped, 2);
    CHECK_EQ(hole->mapped_prefix, PAGE + HALF);
    CHECK(f.chunk->slots[2].frame == frame);
    CHECK_EQ(f.arena.mapped_bytes, CHUNK - 2 * PAGE);
    gm_arena_measure_chunks(&f.arena, &zombies, &touched);
    CHECK_EQ(zombies, 2 * PAGE);
    CHECK_EQ(touched, CHUNK);
    /* What is a zombie is not there: its page cannot leave once more. */
    lose(&f, hole, 1, 4, GM_SLOT_ZOMBIE);
    CHECK_EQ(f.chunk->zombie_slots, 4);
    CHECK_EQ(hole->mapped_prefix, HALF);
    CHECK_EQ(hole->unmapped, 4);
    lose(&f, hole, 1, 4, GM_SLOT_FREE_VA);
    CHECK_EQ(f.chunk->zombie_slots, 4);

    gm_arena_revive_pages(&f.arena, hole, 1, 1);
    check_sound(&f);
    CHECK_EQ(hole->mapped_prefix, PAGE + HALF);
    gm_arena_revive_pages(&f.arena, hole, 3, 2);
    check_sound(&f);
    CHECK_EQ(hole->unmapped, 1);
    CHECK_EQ(hole->mapped_prefix, PAGE + HALF);
    gm_arena_revive_pages(&f.arena, hole, 2, 1);
    check_sound(&f);
    CHECK_EQ(hole->unmapped, 0);
    CHECK_EQ(hole->mapped_prefix, 5 * PAGE);
    CHECK(!hole->partial);
    CHECK_EQ(f.arena.mapped_bytes, CHUNK);

    lose(&f, hole, 1, 2, GM_SLOT_ZOMBIE);
    gm_arena_bury_pages(f.chunk, 1, 2);
    check_sound(&f);
    CHECK_EQ(f.chunk->zombie_slots, 0);
    CHECK_EQ(f.chunk->slots[1].state, GM_SLOT_FREE_VA);
    CHECK(f.chunk->slots[1].frame == NULL);
    CHECK_EQ(hole->unmapped, 2);
    gm_arena_measure_chunks(&f.arena, &zombies, &touched);
    CHECK_EQ(zombies, 0);
    CHECK_EQ(touched, CHUNK);
    close_arena(&f);
}

static void
touched_addresses_are_those_that_had_a_page(void)
{
    fixture f;
    size_t zombies, touched;
    open_arena(&f);
    gm_arena_measure_chunks(&f.arena, &zombies, &touched);
    CHECK_EQ(touched, 0);
    gm_block *low = place(&f, 3 * PAGE - HALF), *next = place(&f, PAGE);
    gm_arena_measure_chunks(&f.arena, &zombies, &touched);
    CHECK_EQ(touched, 4 * PAGE);
    release(&f, low);
    lose(&f, f.chunk->first, 0, 2, GM_SLOT_FREE_VA);
    (void)add_chunk(&f);
    gm_block *far = place(&f, CHUNK);
    CHECK(far->chunk != f.chunk);
    gm_arena_measure_chunks(&f.arena, &zombies, &touched);
    CHECK_EQ(touched, 4 * PAGE + CHUNK);
    CHECK_EQ(zombies, 0);
    release(&f, far);
    release(&f, next);
    close_arena(&f);
}

/* A zombie holds its chunk, whatever becomes of the block above it. */
static void
a_chunk_with_zombies_is_not_idle(void)
{
    fixture f;
    open_arena(&f);
    gm_block *block = place(&f, 2 * PAGE), *next = place(&f, PAGE);
    release(&f, block);
    lose(&f, f.chunk->first, 0, 1, GM_SLOT_ZOMBIE);
    release(&f, next);
    CHECK(f.chunk->first->next == NULL);
    CHECK(!gm_arena_chunk_is_idle(f.chunk));
    lose(&f, f.chunk->first, 0, 3, GM_SLOT_FREE_VA);
    CHECK_EQ(f.chunk->mapped_slots, 0);
    CHECK(!gm_arena_chunk_is_idle(f.chunk));
    gm_arena_bury_pages(f.chunk, 0, 1);
    CHECK(gm_arena_chunk_is_idle(f.chunk));
    close_arena(&f);
}

/* ---- the walk over what is cached ------------------------------------------------ */

static bool
has_whole_pages(const fixture *f, const gm_block *block)
{
    size_t first = 0, count = gm_arena_inner_slots(&f->arena, block, &first);
    for (size_t i = first; i < first + count; i++) {
        if (block->chunk->slots[i].state == GM_SLOT_MAPPED) {
            return true;
        }
    }
    return false;
}

/* Every free block with whole pages comes once. `lose_all`: and has none behind it. */
static void
check_walk(fixture *f, bool lose_all)
{
    size_t expected = 0, seen = 0;
    for (gm_block *block = f->chunk->first; block != NULL; block = block->next) {
        expected += gm_block_is_free(block) && has_whole_pages(f, block);
    }
    gm_block *next = gm_arena_next_cached(&f->arena, NULL);
    while (next != NULL) {
        gm_block *block = next;
        CHECK(gm_block_is_free(block));
        next = gm_arena_next_cached(&f->arena, block);
        seen += has_whole_pages(f, block);
        size_t first = 0, count = gm_arena_inner_slots(&f->arena, block, &first);
        if (lose_all && count != 0) {
            lose(f, block, first, count, GM_SLOT_FREE_VA);
        }
    }
    CHECK_EQ(seen, expected);
    check_sound(f);
}

static void
cached_blocks_come_once_each(void)
{
    fixture f;
    open_arena(&f);
    CHECK(gm_arena_next_cached(&f.arena, NULL) == NULL);
    lay(&f,
        (size_t[]){2 * PAGE, HALF, 3 * PAGE, HALF, PAGE, HALF, HALF, 4 * PAGE, PAGE,
                   6 * PAGE, HALF},
        (bool[]){true, false, true, false, true, false, true, false, true, false, true},
        11);
    gm_block *first = f.chunk->first, *third = first->next->next;
    check_walk(&f, false);
    /* Without a page at its start; with parts of pages alone. */
    lose(&f, first, 0, 1, GM_SLOT_FREE_VA);
    lose(&f, third, 3, 2, GM_SLOT_ZOMBIE);
    check_walk(&f, false);
    CHECK(!has_whole_pages(&f, third) && has_whole_pages(&f, third->next->next));
    CHECK(!has_whole_pages(&f, third->next->next->next->next));
    check_walk(&f, true);
    check_walk(&f, false);
    close_arena(&f);
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
damage_of_slots_is_named(void)
{
    fixture f;
    open_arena(&f);
    gm_block *block = place(&f, 3 * PAGE), *next = place(&f, PAGE);
    release(&f, block);
    gm_chunk *chunk = f.chunk;
    lose(&f, chunk->first, 0, 1, GM_SLOT_ZOMBIE);
    lose(&f, chunk->first, 1, 1, GM_SLOT_FREE_VA);
    CHECK_DAMAGE(&f, chunk->zombie_slots, 0, "a chunk's number of zombies is wrong");
    CHECK_DAMAGE(&f, chunk->zombie_slots, 2, "a chunk's number of zombies is wrong");
    CHECK_DAMAGE(&f, chunk->slots[1].state, GM_SLOT_ZOMBIE,
                 "a chunk's number of zombies is wrong");
    CHECK_DAMAGE(&f, chunk->slots[1].frame, chunk->slots[2].frame,
                 "a slot has a page and is not mapped, or the other way round");
    CHECK_DAMAGE(&f, chunk->slots[3].frame, NULL,
                 "a slot has a page and is not mapped, or the other way round");
    CHECK_DAMAGE(&f, chunk->touched_slots, 3, "a page lies where no slot ever had one");
    release(&f, next);
    close_arena(&f);
}

static const gm_test tests[] = {
    {"zombies come back or go", zombies_come_back_or_go},
    {"touched addresses are those that had a page",
     touched_addresses_are_those_that_had_a_page},
    {"a chunk with zombies is not idle", a_chunk_with_zombies_is_not_idle},
    {"cached blocks come once each", cached_blocks_come_once_each},
    {"damage of slots is named", damage_of_slots_is_named},
};

GM_TEST_MAIN(tests)
