/* test_heap_tight.c - places where pages are short.
 */
#include "arena_kinds.h"

static gm_placement
tight_place(fixture *f, size_t size, size_t alignment, gm_tight_rule rule)
{
    gm_placement found;
    CHECK(gm_arena_find_tight(&f->arena, size, alignment, rule, &found));
    CHECK_EQ(found.size, size);
    check_sound(f);
    return found;
}

/* Where it begins, from the start of the first chunk. */
static size_t
start_of(const gm_placement *found)
{
    return (size_t)(gm_block_start(found->block) + found->front - BASE);
}

#define CHECK_TIGHT(f, size, at, pages_missing)                      \
    do {                                                             \
        gm_placement check_found =                                   \
            tight_place((f), (size), GM_HEAP_GRANULE, GM_TIGHT_LOW); \
        CHECK_EQ(start_of(&check_found), (at));                      \
        CHECK_EQ(check_found.missing, (pages_missing));              \
    } while (0)

/* ---- places ---------------------------------------------------------------------- */

/* |  page: whole | whole | half # half: live | ... | */
static void
the_upper_end_of_a_hole_counts(void)
{
    fixture f;
    open_arena(&f);
    lay(&f, (size_t[]){2 * PAGE + HALF, HALF, SLOTS * PAGE - 3 * PAGE},
        (bool[]){true, false, false}, 3);
    /* Above a block that has begun the last page a page and a half take one. */
    CHECK_TIGHT(&f, PAGE + HALF, PAGE, 0);
    CHECK_TIGHT(&f, HALF, 2 * PAGE, 0);
    /* Both ends alike: the lower one. */
    CHECK_TIGHT(&f, PAGE, 0, 0);
    CHECK_TIGHT(&f, 2 * PAGE + HALF, 0, 0);

    gm_placement found = tight_place(&f, HALF, GM_HEAP_GRANULE, GM_TIGHT_LOW);
    gm_block *block = settle(&f, &found);
    CHECK_EQ(gm_block_start(block), BASE + 2 * PAGE);
    CHECK_EQ(block->prev->size, 2 * PAGE);
    release(&f, block);
    close_arena(&f);
}

static void
the_fewest_free_pages_are_taken_mapped_or_not(void)
{
    fixture f;
    open_arena(&f);
    /* A long hole with pages, and one that ends and begins inside pages. */
    lay(&f, (size_t[]){4 * PAGE, PAGE + HALF, 2 * PAGE, HALF, SLOTS * PAGE - 8 * PAGE},
        (bool[]){true, false, true, false, false}, 5);
    gm_block *lower = f.chunk->first, *upper = lower->next->next;
    CHECK_EQ(gm_block_start(upper), BASE + 5 * PAGE + HALF);
    CHECK_TIGHT(&f, 2 * PAGE, 5 * PAGE + HALF, 0);
    /* Where pages are missing costs nothing: others are as good. */
    lose(&f, upper, 6, 1, GM_SLOT_FREE_VA);
    CHECK_TIGHT(&f, 2 * PAGE, 5 * PAGE + HALF, 1);
    CHECK_TIGHT(&f, HALF, 5 * PAGE + HALF, 0);
    /* What fits there no more goes into the other. */
    CHECK_TIGHT(&f, 2 * PAGE + 512, 0, 0);
    close_arena(&f);
}

static void
the_lowest_of_equal_places_wins(void)
{
    fixture f;
    open_arena(&f);
    lay(&f,
        (size_t[]){PAGE, 2 * PAGE, PAGE, PAGE, PAGE, 3 * PAGE, SLOTS * PAGE - 9 * PAGE},
        (bool[]){false, true, false, true, false, true, false}, 7);
    gm_block *first = f.chunk->first->next;
    CHECK_TIGHT(&f, PAGE, PAGE, 0);
    CHECK_TIGHT(&f, 2 * PAGE, PAGE, 0);
    /* Also where its pages are missing, unless those that are there shall stay. */
    lose(&f, first, 1, 2, GM_SLOT_FREE_VA);
    CHECK_TIGHT(&f, PAGE, PAGE, 1);
    CHECK_TIGHT(&f, 2 * PAGE, PAGE, 2);
    gm_placement found = tight_place(&f, PAGE, GM_HEAP_GRANULE, GM_TIGHT_STAY);
    CHECK_EQ(start_of(&found), 4 * PAGE);
    CHECK_EQ(found.missing, 0);
    found = tight_place(&f, 2 * PAGE, GM_HEAP_GRANULE, GM_TIGHT_STAY);
    CHECK_EQ(start_of(&found), 6 * PAGE);
    CHECK_EQ(found.missing, 0);
    /* Of equals that miss as much again the lowest. */
    lose(&f, first->next->next, 4, 1, GM_SLOT_FREE_VA);
    lose(&f, first->next->next->next->next, 6, 3, GM_SLOT_FREE_VA);
    found = tight_place(&f, PAGE, GM_HEAP_GRANULE, GM_TIGHT_STAY);
    CHECK_EQ(start_of(&found), PAGE);
    close_arena(&f);
}

/* Fewer pages come before pages that are there. */
static void
to_stay_decides_among_equals_alone(void)
{
    fixture f;
    open_arena(&f);
    lay(&f, (size_t[]){HALF, PAGE, HALF, 2 * PAGE, SLOTS * PAGE - 4 * PAGE},
        (bool[]){false, true, false, true, false}, 5);
    gm_block *narrow = f.chunk->first->next;
    CHECK_EQ(narrow->size, PAGE);
    /* The narrow hole has no whole page: what lies there takes none. */
    gm_placement found = tight_place(&f, PAGE, GM_HEAP_GRANULE, GM_TIGHT_STAY);
    CHECK_EQ(start_of(&found), HALF);
    close_arena(&f);

    /* One whole page there, missing: as many as in the other. */
    open_arena(&f);
    lay(&f, (size_t[]){HALF, 2 * PAGE, HALF, 3 * PAGE, SLOTS * PAGE - 6 * PAGE},
        (bool[]){false, true, false, true, false}, 5);
    lose(&f, f.chunk->first->next, 1, 1, GM_SLOT_FREE_VA);
    found = tight_place(&f, 2 * PAGE, GM_HEAP_GRANULE, GM_TIGHT_STAY);
    CHECK_EQ(start_of(&found), HALF); /* 1 page, and 2 in the other */
    CHECK_EQ(found.missing, 1);
    found = tight_place(&f, PAGE, GM_HEAP_GRANULE, GM_TIGHT_STAY);
    CHECK_EQ(start_of(&found), 3 * PAGE); /* 1 here, 1 there */
    CHECK_EQ(found.missing, 0);
    close_arena(&f);
}

static void
where_no_page_is_taken_the_smallest_hole_may_win(void)
{
    fixture f;
    open_arena(&f);
    lay(&f, (size_t[]){HALF, 2 * PAGE, PAGE, PAGE, SLOTS * PAGE - 4 * PAGE - HALF},
        (bool[]){false, true, false, true, false}, 5);
    /* The first hole begins and ends inside pages that are in use, so does the second. */
    gm_placement found = tight_place(&f, 512, GM_HEAP_GRANULE, GM_TIGHT_LOW);
    CHECK_EQ(start_of(&found), HALF);
    found = tight_place(&f, 512, GM_HEAP_GRANULE, GM_TIGHT_SNUG);
    CHECK_EQ(start_of(&found), 3 * PAGE + HALF);
    found = tight_place(&f, 512, GM_HEAP_GRANULE, GM_TIGHT_STAY);
    CHECK_EQ(start_of(&found), 3 * PAGE + HALF);
    /* A whole page is taken only in the first. */
    found = tight_place(&f, 2 * PAGE, GM_HEAP_GRANULE, GM_TIGHT_SNUG);
    CHECK_EQ(start_of(&found), HALF);
    close_arena(&f);
}

static void
the_end_of_the_addresses_counts_at_its_lower_end(void)
{
    fixture f;
    open_arena(&f);
    gm_block *block = place(&f, PAGE + HALF);
    /* The rest of the begun page, and one more; above nothing has begun a page. */
    CHECK_TIGHT(&f, PAGE, PAGE + HALF, 1);
    CHECK_TIGHT(&f, SLOTS * PAGE - PAGE - HALF, PAGE + HALF, SLOTS - 2);
    /* A hole with an end inside a page is better than a tail that begins a new one. */
    gm_block *second = place(&f, HALF + 512);
    release(&f, block);
    CHECK_TIGHT(&f, PAGE, 0, 0);
    gm_placement found = tight_place(&f, 512, GM_HEAP_GRANULE, GM_TIGHT_LOW);
    CHECK_EQ(start_of(&found), PAGE + HALF - 512);
    release(&f, second);
    /* An empty chunk is a tail. */
    CHECK_TIGHT(&f, HALF, 0, 0);
    CHECK_TIGHT(&f, CHUNK, 0, SLOTS - 3);
    close_arena(&f);
}

static void
zombies_are_passed_over(void)
{
    fixture f;
    open_arena(&f);
    lay(&f, (size_t[]){6 * PAGE, HALF, SLOTS * PAGE - 6 * PAGE - HALF},
        (bool[]){true, false, false}, 3);
    gm_block *hole = f.chunk->first;
    lose(&f, hole, 0, 2, GM_SLOT_ZOMBIE);
    CHECK_EQ(f.chunk->zombie_slots, 2);
    CHECK_TIGHT(&f, PAGE, 2 * PAGE, 0);
    CHECK_TIGHT(&f, 4 * PAGE, 2 * PAGE, 0);
    /* Both ends: what is left is in the middle. */
    lose(&f, hole, 5, 1, GM_SLOT_ZOMBIE);
    CHECK_TIGHT(&f, 3 * PAGE, 2 * PAGE, 0);
    gm_placement found = {.missing = 77};
    CHECK(!gm_arena_find_tight(&f.arena, 3 * PAGE + 512, GM_HEAP_GRANULE, GM_TIGHT_LOW,
                               &found));
    /* In the middle: the place begins behind it. */
    lose(&f, hole, 3, 1, GM_SLOT_ZOMBIE);
    CHECK_TIGHT(&f, PAGE, 2 * PAGE, 0);
    CHECK(!gm_arena_find_tight(&f.arena, PAGE + 512, GM_HEAP_GRANULE, GM_TIGHT_LOW,
                               &found));
    found = tight_place(&f, PAGE, 4 * PAGE, GM_TIGHT_LOW);
    CHECK_EQ(start_of(&found), 4 * PAGE);
    gm_block *block = settle(&f, &found);
    CHECK_EQ(gm_block_start(block), BASE + 4 * PAGE);
    release(&f, block);

    /* Unmapped they are addresses like others. */
    gm_arena_bury_pages(f.chunk, 5, 1);
    gm_arena_bury_pages(f.chunk, 3, 1);
    check_sound(&f);
    CHECK_EQ(f.chunk->zombie_slots, 2);
    CHECK_TIGHT(&f, 4 * PAGE, 2 * PAGE, 2);
    close_arena(&f);
}

static void
tight_places_are_aligned(void)
{
    fixture f;
    open_arena(&f);
    lay(&f, (size_t[]){512, 4 * PAGE, HALF - 512, SLOTS * PAGE - 4 * PAGE - HALF},
        (bool[]){false, true, false, false}, 4);
    gm_placement found = tight_place(&f, PAGE, PAGE, GM_TIGHT_LOW);
    CHECK_EQ(start_of(&found), PAGE);
    /* The last page is begun: half of it is to be had for nothing. */
    found = tight_place(&f, HALF / 2, HALF / 2, GM_TIGHT_LOW);
    CHECK_EQ(start_of(&found), HALF / 2);
    found = tight_place(&f, 512, 4 * PAGE, GM_TIGHT_LOW);
    CHECK_EQ(start_of(&found), 4 * PAGE);
    found = tight_place(&f, 3 * PAGE, PAGE, GM_TIGHT_LOW);
    CHECK_EQ(start_of(&found), PAGE);
    CHECK(!gm_arena_find_tight(&f.arena, 3 * PAGE + HALF, PAGE, GM_TIGHT_LOW, &found));
    CHECK(!gm_arena_find_tight(&f.arena, PAGE, 8 * PAGE, GM_TIGHT_LOW, &found));
    found = tight_place(&f, 3 * PAGE + HALF, HALF, GM_TIGHT_LOW);
    CHECK_EQ(start_of(&found), HALF);
    close_arena(&f);
}

/* ---- while places are tight ------------------------------------------------------ */

static void
the_quick_search_serves_none_while_places_are_tight(void)
{
    fixture f;
    open_arena(&f);
    release(&f, place(&f, 4 * PAGE));
    CHECK(!gm_arena_is_tight(&f.arena));
    CHECK_OK(gm_slab_reserve(&f.nodes, 2));
    gm_arena_set_tight(&f.arena, 3);
    for (int i = 0; i < 3; i++) {
        CHECK(gm_arena_is_tight(&f.arena));
        CHECK(gm_arena_take(&f.arena, 512, GM_HEAP_GRANULE) == NULL);
        CHECK(gm_arena_take(&f.arena, 512, 4096) == NULL);
        gm_arena_count_tight(&f.arena);
    }
    CHECK(!gm_arena_is_tight(&f.arena));
    gm_block *block = gm_arena_take(&f.arena, 512, GM_HEAP_GRANULE);
    CHECK(block != NULL);
    check_sound(&f);
    release(&f, block);
    block = gm_arena_take(&f.arena, 512, 4096);
    CHECK(block != NULL);
    release(&f, block);

    /* A new spell begins with all of it; one without an end has none. */
    gm_arena_set_tight(&f.arena, 2);
    gm_arena_count_tight(&f.arena);
    gm_arena_set_tight(&f.arena, 2);
    gm_arena_count_tight(&f.arena);
    CHECK(gm_arena_is_tight(&f.arena));
    gm_arena_set_tight(&f.arena, SIZE_MAX);
    for (int i = 0; i < 10000; i++) {
        gm_arena_count_tight(&f.arena);
    }
    CHECK(gm_arena_is_tight(&f.arena));
    CHECK_EQ(f.arena.tight_left, SIZE_MAX);
    close_arena(&f);
}

/* ---- against a plain search ------------------------------------------------------ */

/* What the rule says, by looking at every slot and both ends of every hole. */
typedef struct oracle {
    bool found;
    gm_tight_rule rule;
    uint64_t at;
    size_t taken;
    size_t missing;
    uint64_t hole;
    size_t length;
} oracle;

static bool
is_touched(const gm_chunk *chunk, size_t slot)
{
    uint64_t low = chunk->base + slot * PAGE;
    for (const gm_block *block = chunk->first; block != NULL; block = block->next) {
        if (!gm_block_is_free(block) && gm_block_start(block) < low + PAGE &&
            gm_block_end(block) > low) {
            return true;
        }
    }
    return false;
}

/* False: there is a zombie under it. */
static bool
look_under(const gm_chunk *chunk, uint64_t at, size_t size, oracle *out)
{
    out->taken = out->missing = 0;
    for (size_t slot = 0; slot < chunk->slot_count; slot++) {
        uint64_t low = chunk->base + slot * PAGE;
        if (low >= at + size || low + PAGE <= at) {
            continue;
        }
        if (chunk->slots[slot].state == GM_SLOT_ZOMBIE) {
            return false;
        }
        out->missing += chunk->slots[slot].state == GM_SLOT_FREE_VA;
        out->taken += !is_touched(chunk, slot);
    }
    return true;
}

/* The rules one after the other; what is found first stays among equals. */
static bool
beats(const oracle *here, const oracle *best)
{
    if (here->taken != best->taken) {
        return here->taken < best->taken;
    }
    if (here->rule == GM_TIGHT_STAY && here->missing != best->missing) {
        return here->missing < best->missing;
    }
    if (here->rule != GM_TIGHT_LOW && here->taken == 0 &&
        here->length != best->length) {
        return here->length < best->length;
    }
    return here->hole < best->hole;
}

static void
consider(oracle *best, const gm_block *hole, uint64_t at, size_t size)
{
    oracle here = {.found = true,
                   .rule = best->rule,
                   .at = at,
                   .hole = gm_block_start(hole),
                   .length = hole->size};
    if (!look_under(hole->chunk, at, size, &here)) {
        return;
    }
    if (best->found && !beats(&here, best)) {
        return;
    }
    *best = here;
}

static oracle
search_plainly(const fixture *f, size_t size, size_t alignment, gm_tight_rule rule)
{
    oracle best = {.rule = rule}, ignored;
    GM_LIST_FOREACH(link, &f->arena.chunks) {
        const gm_chunk *chunk = GM_CONTAINER_OF(link, gm_chunk, link);
        for (const gm_block *b = chunk->first; b != NULL; b = b->next) {
            uint64_t low = gm_align_up_unchecked(gm_block_start(b), alignment);
            if (!gm_block_is_free(b) || b->size < size) {
                continue;
            }
            uint64_t high = gm_align_down(gm_block_end(b) - size, alignment);
            uint64_t at = low;
            while (at <= high && !look_under(chunk, at, size, &ignored)) {
                at += alignment;
            }
            if (at <= high) {
                consider(&best, b, at, size);
            }
            if (b->next != NULL && high >= low) {
                consider(&best, b, high, size);
            }
        }
    }
    return best;
}

static void
compare(fixture *f, size_t size, size_t alignment, gm_tight_rule rule)
{
    gm_placement found;
    oracle expected = search_plainly(f, size, alignment, rule);
    CHECK_EQ(gm_arena_find_tight(&f->arena, size, alignment, rule, &found),
             expected.found);
    if (expected.found) {
        CHECK_EQ(gm_block_start(found.block) + found.front, expected.at);
        CHECK_EQ(found.missing, expected.missing);
    }
}

/* Some pages of a free block leave, or zombies of the chunk are unmapped. */
static void
disturb(fixture *f, gm_block *block, unsigned *seed)
{
    gm_chunk *chunk = block->chunk;
    for (size_t i = 0; i < chunk->slot_count; i++) {
        if (chunk->slots[i].state == GM_SLOT_ZOMBIE && rand_r(seed) % 3 == 0) {
            gm_arena_bury_pages(chunk, i, 1);
        }
    }
    size_t first = 0, count = gm_arena_inner_slots(&f->arena, block, &first);
    if (gm_block_is_free(block) && count != 0) {
        size_t from = (size_t)rand_r(seed) % count;
        size_t some = 1 + (size_t)rand_r(seed) % (count - from);
        bool zombies = rand_r(seed) % 4 == 0;
        lose(f, block, first + from, some, zombies ? GM_SLOT_ZOMBIE : GM_SLOT_FREE_VA);
    }
    check_sound(f);
}

static void
a_plain_search_finds_the_same_places(void)
{
    enum {
        LIVE = 40,
        STEPS = 4000
    };
    unsigned seed = 20;
    fixture f;
    gm_block *blocks[LIVE] = {NULL};
    printf("   seed %u\n", seed);
    open_arena(&f);
    (void)add_chunk(&f);
    for (int step = 0; step < STEPS; step++) {
        int i = (int)((unsigned)rand_r(&seed) % LIVE);
        size_t size = (1 + (size_t)rand_r(&seed) % 600) * 512;
        size_t alignment = (size_t)512 << ((unsigned)rand_r(&seed) % 10);
        gm_tight_rule rule = (gm_tight_rule)(rand_r(&seed) % 3);
        gm_placement found;
        compare(&f, size, alignment, rule);
        if (blocks[i] != NULL) {
            release(&f, blocks[i]);
            blocks[i] = NULL;
        }
        else if (gm_arena_find_tight(&f.arena, size, alignment, rule, &found)) {
            blocks[i] = settle(&f, &found);
        }
        gm_chunk *chunk = rand_r(&seed) % 2 == 0
                              ? f.chunk
                              : GM_CONTAINER_OF(f.arena.chunks.prev, gm_chunk, link);
        for (gm_block *b = chunk->first; b != NULL; b = b->next) {
            if (rand_r(&seed) % 8 == 0) {
                disturb(&f, b, &seed);
            }
        }
    }
    close_arena(&f);
}

static const gm_test tests[] = {
    {"the upper end of a hole counts", the_upper_end_of_a_hole_counts},
    {"the fewest free pages are taken, mapped or not",
     the_fewest_free_pages_are_taken_mapped_or_not},
    {"the lowest of equal places wins", the_lowest_of_equal_places_wins},
    {"to stay decides among equals alone", to_stay_decides_among_equals_alone},
    {"where no page is taken the smallest hole may win",
     where_no_page_is_taken_the_smallest_hole_may_win},
    {"the end of the addresses counts at its lower end",
     the_end_of_the_addresses_counts_at_its_lower_end},
    {"zombies are passed over", zombies_are_passed_over},
    {"tight places are aligned", tight_places_are_aligned},
    {"the quick search serves none while places are tight",
     the_quick_search_serves_none_while_places_are_tight},
    {"a plain search finds the same places", a_plain_search_finds_the_same_places},
};

GM_TEST_MAIN(tests)
