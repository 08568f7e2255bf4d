/* test_heap_free_index.c - free blocks by size: classes, the best fit, and damage that
 * the check must see.
 */
#include "check.h"
#include "heap/free_index.h"

#define G GM_HEAP_GRANULE
#define MIB ((size_t)1 << 20)

enum {
    COUNT = 600
};

static gm_block blocks[COUNT];

static void
take_out(gm_free_index *index, gm_block *block)
{
    gm_free_index_remove(index, index->kind, block);
}

/* A free block of `size` bytes, all of them mapped, in the index. */
static gm_block *
insert(gm_free_index *index, int i, size_t size)
{
    gm_block *block = &blocks[i];
    memset(block, 0, sizeof(*block));
    block->size = size;
    block->mapped_prefix = size;
    block->mapped_slot = block->sparse_slot = GM_INDEX_NONE;
    atomic_store(&block->address, (uint64_t)i * 64 * MIB);
    gm_block_set_state(block, GM_HEAP_FREE);
    gm_free_index_insert(index, index->kind, block, gm_free_index_class(size));
    return block;
}

static gm_free_index
open_index(gm_index_kind kind)
{
    gm_free_index index;
    CHECK_OK(gm_free_index_init(&index, kind));
    return index;
}

static void
classes_rise_with_sizes(void)
{
    for (size_t granules = 1; granules < 64; granules++) {
        CHECK_EQ(gm_free_index_class(granules * G), granules);
        CHECK_EQ(gm_free_index_class(granules * G + G - 1), granules);
    }
    uint32_t last = 0;
    for (size_t size = G; size < 64 * MIB; size += size / 100 + G) {
        uint32_t slot = gm_free_index_class(size);
        CHECK(slot >= last);
        CHECK(slot < GM_INDEX_LEVELS * GM_INDEX_STEPS);
        last = slot;
    }
    CHECK(gm_free_index_class(((size_t)1 << 60) - 1) <
          GM_INDEX_LEVELS * GM_INDEX_STEPS);
    CHECK_EQ(gm_free_index_class(64 * G), gm_free_index_class(64 * G + G / 2));
    CHECK(gm_free_index_class(127 * G) < gm_free_index_class(128 * G));
    CHECK_EQ(gm_free_index_class(128 * G), gm_free_index_class(129 * G));
}

static void
the_smallest_that_fits_is_found(void)
{
    gm_free_index index = open_index(GM_INDEX_MAPPED);
    CHECK(gm_free_index_find(&index, G, true) == NULL);
    CHECK_EQ(gm_free_index_largest(&index), 0);
    CHECK(gm_free_index_next(&index, G, NULL) == NULL);
    gm_block *large = insert(&index, 0, 40 * MIB);
    gm_block *small = insert(&index, 1, 3 * G);
    gm_block *middle = insert(&index, 2, 1000 * G);
    CHECK(gm_free_index_find(&index, G, false) == small);
    CHECK(gm_free_index_find(&index, 3 * G, false) == small);
    CHECK(gm_free_index_find(&index, 4 * G, false) == middle);
    CHECK(gm_free_index_find(&index, 1000 * G, false) == middle);
    CHECK(gm_free_index_find(&index, 1001 * G, false) == large);
    CHECK(gm_free_index_find(&index, 40 * MIB + G, false) == NULL);
    CHECK(gm_free_index_find(&index, ((size_t)1 << 60) - G, true) == NULL);
    CHECK_EQ(gm_free_index_largest(&index), 40 * MIB);
    CHECK(gm_free_index_check(&index));
    take_out(&index, large);
    CHECK_EQ(gm_free_index_largest(&index), 1000 * G);
    take_out(&index, middle);
    take_out(&index, small);
    CHECK_EQ(gm_free_index_count(&index), 0);
    CHECK_EQ(index.levels, 0);
    CHECK(gm_free_index_check(&index));
    gm_free_index_destroy(&index);
}

static void
among_equals_the_lowest_address_wins(void)
{
    gm_free_index index = open_index(GM_INDEX_MAPPED);
    for (int i = 0; i < 5; i++) {
        (void)insert(&index, (i * 3 + 1) % 5, 500 * G);
    }
    for (int i = 0; i < 5; i++) {
        gm_block *best = gm_free_index_find(&index, 500 * G, false);
        CHECK(best == &blocks[i]);
        take_out(&index, best);
        CHECK(gm_free_index_check(&index));
    }
    /* Where a class has one size alone, the newest. */
    for (int i = 0; i < 5; i++) {
        gm_block *newest = insert(&index, (i * 3 + 1) % 5, 127 * G);
        CHECK(gm_free_index_find(&index, 127 * G, false) == newest);
        CHECK(gm_free_index_find(&index, 60 * G, true) == newest);
    }
    gm_free_index_destroy(&index);
}

static void
an_exhaustive_search_looks_at_all_of_a_class(void)
{
    /* A class of 2 granules: 200 and 201 of them share it. */
    gm_free_index index = open_index(GM_INDEX_MAPPED);
    gm_block *longer = insert(&index, 0, 201 * G);
    for (int i = 1; i < 40; i++) {
        (void)insert(&index, i, 200 * G);
    }
    CHECK(gm_free_index_find(&index, 201 * G, false) == NULL);
    CHECK(gm_free_index_find(&index, 201 * G, true) == longer);
    CHECK_EQ(gm_free_index_largest(&index), 201 * G);
    gm_block *next = insert(&index, 41, 210 * G);
    CHECK(gm_free_index_find(&index, 201 * G, false) == next);
    CHECK(gm_free_index_find(&index, 201 * G, true) == longer);
    gm_free_index_destroy(&index);
}

static void
a_walk_visits_all_that_may_fit_in_rising_classes(void)
{
    gm_free_index index = open_index(GM_INDEX_SPARSE);
    for (int i = 0; i < COUNT; i++) {
        (void)insert(&index, i, (size_t)(1 + i * 37 % COUNT) * 7 * G);
    }
    size_t least = 400 * 7 * G, seen = 0;
    uint32_t last = 0;
    gm_block *block = NULL;
    while ((block = gm_free_index_next(&index, least, block)) != NULL) {
        CHECK(block->sparse_slot >= last);
        CHECK(block->sparse_slot >= gm_free_index_class(least));
        last = block->sparse_slot;
        seen += block->size >= least;
    }
    CHECK_EQ(seen, COUNT - 399);
    CHECK(gm_free_index_check(&index));
    gm_free_index_destroy(&index);
}

static void
random_use_finds_what_fits(void)
{
    gm_free_index index = open_index(GM_INDEX_MAPPED);
    bool in[COUNT] = {false};
    unsigned seed = 5;
    for (int step = 0; step < 20000; step++) {
        int i = (int)((unsigned)rand_r(&seed) % COUNT);
        size_t size = (1 + (size_t)rand_r(&seed) % 3000) * G;
        if (in[i]) {
            take_out(&index, &blocks[i]);
        }
        else {
            (void)insert(&index, i, size);
        }
        in[i] = !in[i];
        if (step % 50 == 0) {
            size_t best = SIZE_MAX;
            for (int k = 0; k < COUNT; k++) {
                if (in[k] && blocks[k].size >= size && blocks[k].size < best) {
                    best = blocks[k].size;
                }
            }
            gm_block *found = gm_free_index_find(&index, size, true);
            CHECK((found == NULL) == (best == SIZE_MAX));
            /* Not exact, but no more than a class away: 1/64. */
            CHECK(found == NULL || found->size <= best + best / 64 + G);
            CHECK(gm_free_index_check(&index));
        }
    }
    gm_free_index_destroy(&index);
}

/* The check sees the damage, and that it is gone. */
#define CHECK_DAMAGE(index, field, value)       \
    do {                                        \
        __typeof__(field) check_kept = (field); \
        CHECK(gm_free_index_check(index));      \
        (field) = (value);                      \
        CHECK(!gm_free_index_check(index));     \
        (field) = check_kept;                   \
        CHECK(gm_free_index_check(index));      \
    } while (0)

static void
damage_is_seen(void)
{
    gm_free_index index = open_index(GM_INDEX_MAPPED);
    gm_block *first = insert(&index, 0, 8 * G);
    gm_block *second = insert(&index, 1, 8 * G);
    gm_block *other = insert(&index, 2, 500 * G);
    uint32_t slot = gm_free_index_class(8 * G);
    CHECK_EQ(gm_free_index_count(&index), 3);
    CHECK_DAMAGE(&index, index.levels, index.levels | 2);
    CHECK_DAMAGE(&index, index.levels, index.levels & ~UINT64_C(1));
    CHECK_DAMAGE(&index, index.steps[0], index.steps[0] | 2);
    CHECK_DAMAGE(&index, index.heads[slot], NULL);
    CHECK_DAMAGE(&index, index.heads[slot + 1], other);
    CHECK_DAMAGE(&index, first->mapped.prev, NULL);
    /* A block that dropped out of its list is missing in the count alone. */
    second->mapped.next = NULL;
    CHECK_EQ(gm_free_index_count(&index), 2);
    second->mapped.next = first;
    CHECK_DAMAGE(&index, first->mapped_slot, slot + 1);
    CHECK_DAMAGE(&index, first->mapped_prefix, 9 * G);
    gm_block_set_state(other, GM_HEAP_USED);
    CHECK(!gm_free_index_check(&index));
    gm_block_set_state(other, GM_HEAP_FREE);
    CHECK(gm_free_index_check(&index));
    gm_free_index_destroy(&index);
}

static const gm_test tests[] = {
    {"classes rise with sizes", classes_rise_with_sizes},
    {"the smallest that fits is found", the_smallest_that_fits_is_found},
    {"among equals the lowest address wins", among_equals_the_lowest_address_wins},
    {"an exhaustive search looks at all of a class",
     an_exhaustive_search_looks_at_all_of_a_class},
    {"a walk visits all that may fit in rising classes",
     a_walk_visits_all_that_may_fit_in_rising_classes},
    {"random use finds what fits", random_use_finds_what_fits},
    {"damage is seen", damage_is_seen},
};

GM_TEST_MAIN(tests)
