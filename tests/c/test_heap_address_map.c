/* test_heap_address_map.c - from an address to its chunk, and chunks that are used
 * again.
 */
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "heap/chunk.h"

#define STEP GM_MAP_STEP
#define END (UINT64_C(1) << 48)
#define LEAF ((uint64_t)8192 * STEP)

static gm_chunk chunks[4]; /* stand for chunks; nothing is read in them */

static void
ranges_are_found_from_start_to_end(void)
{
    uint64_t base = 5 * LEAF - 3 * STEP; /* over the border of two leaves */
    CHECK(gm_address_map_find(base) == NULL);
    CHECK_OK(gm_address_map_set(base, 6 * STEP, &chunks[0]));
    CHECK_OK(gm_address_map_set(base + 6 * STEP, STEP, &chunks[1]));
    CHECK(gm_address_map_find(base - 1) == NULL);
    CHECK(gm_address_map_find(base) == &chunks[0]);
    CHECK(gm_address_map_find(base + 3 * STEP) == &chunks[0]);
    CHECK(gm_address_map_find(base + 6 * STEP - 1) == &chunks[0]);
    CHECK(gm_address_map_find(base + 6 * STEP) == &chunks[1]);
    CHECK(gm_address_map_find(base + 7 * STEP) == NULL);
    gm_address_map_clear(base, 6 * STEP);
    CHECK(gm_address_map_find(base + 5 * STEP) == NULL);
    CHECK(gm_address_map_find(base + 6 * STEP) == &chunks[1]);
    gm_address_map_clear(base + 6 * STEP, STEP);
    CHECK(gm_address_map_find(base + 6 * STEP) == NULL);
}

static void
wrong_ranges_are_refused(void)
{
    CHECK_STATUS(gm_address_map_set(STEP, 0, &chunks[0]), GM_INVALID);
    CHECK_STATUS(gm_address_map_set(STEP / 2, STEP, &chunks[0]), GM_INVALID);
    CHECK_STATUS(gm_address_map_set(STEP, STEP + 512, &chunks[0]), GM_INVALID);
    CHECK_STATUS(gm_address_map_set(END, STEP, &chunks[0]), GM_INVALID);
    CHECK_STATUS(gm_address_map_set(END - STEP, 2 * STEP, &chunks[0]), GM_INVALID);
    CHECK(gm_address_map_find(STEP) == NULL);
    CHECK(gm_address_map_find(END) == NULL);
    CHECK(gm_address_map_find(UINT64_MAX) == NULL);
    CHECK_OK(gm_address_map_set(END - STEP, STEP, &chunks[0]));
    CHECK(gm_address_map_find(END - 1) == &chunks[0]);
    gm_address_map_clear(END - STEP, STEP);
}

static void
an_overlap_changes_nothing(void)
{
    uint64_t base = 9 * LEAF;
    CHECK_OK(gm_address_map_set(base + 4 * STEP, 2 * STEP, &chunks[0]));
    CHECK_STATUS(gm_address_map_set(base, 5 * STEP, &chunks[1]), GM_INVALID);
    CHECK_STATUS(gm_address_map_set(base + 5 * STEP, STEP, &chunks[1]), GM_INVALID);
    for (uint64_t i = 0; i < 8; i++) {
        CHECK(gm_address_map_find(base + i * STEP) ==
              (i == 4 || i == 5 ? &chunks[0] : NULL));
    }
    gm_address_map_clear(base + 4 * STEP, 2 * STEP);
}

static void
a_child_of_fork_forgets_all(void)
{
    uint64_t base = 12 * LEAF;
    CHECK_OK(gm_address_map_set(base, STEP, &chunks[0]));
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(gm_address_map_find(base) == NULL);
        CHECK_OK(gm_address_map_set(base, STEP, &chunks[2]));
        CHECK(gm_address_map_find(base) == &chunks[2]);
        exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_EQ(status, 0);
    CHECK(gm_address_map_find(base) == &chunks[0]);
    gm_address_map_clear(base, STEP);
}

/* ---- chunks ---------------------------------------------------------------------- */

static gm_chunk *
new_chunk(uint64_t base, size_t size, size_t page_size, bool small)
{
    gm_chunk *chunk = NULL;
    CHECK_OK(gm_chunk_create(base, size, page_size, small, &chunk));
    return chunk;
}

static void
a_live_block_is_found_by_its_start_alone(void)
{
    for (int small = 0; small < 2; small++) {
        uint64_t base = 3 * LEAF;
        gm_chunk *chunk = new_chunk(base, 2 * STEP, 0, small != 0);
        gm_block block = {.size = STEP};
        uint64_t start = base + STEP / 2;
        atomic_store(&block.address, start);
        gm_block_set_state(&block, GM_HEAP_USED);
        CHECK(gm_chunk_block_at(chunk, start) == NULL);
        gm_chunk_set_start(chunk, start, &block);
        CHECK(gm_chunk_block_at(chunk, start) == &block);
        CHECK(gm_chunk_block_at(chunk, start + 1) == NULL);
        CHECK(gm_chunk_block_at(chunk, start + 512) == NULL);
        CHECK(gm_chunk_block_at(chunk, base) == NULL);
        CHECK(gm_chunk_block_at(chunk, base - 512) == NULL);
        CHECK(gm_chunk_block_at(chunk, base + 2 * STEP) == NULL);
        uint8_t states[] = {GM_HEAP_DEAD, GM_HEAP_FREE, GM_HEAP_FREEING,
                            GM_HEAP_PENDING};
        for (size_t i = 0; i < sizeof(states); i++) {
            gm_block_set_state(&block, states[i]);
            CHECK(gm_chunk_block_at(chunk, start) == NULL);
        }
        gm_block_set_state(&block, GM_HEAP_USED);
        gm_chunk_set_start(chunk, start, NULL);
        CHECK(gm_chunk_block_at(chunk, start) == NULL);
        gm_chunk_retire(chunk);
        CHECK(gm_chunk_block_at(chunk, base) == NULL);
    }
}

static void
chunks_are_used_again_if_they_fit(void)
{
    /* Tables of 64, 512 and 16384 starts; no other test retires one that fits. */
    gm_chunk *small = new_chunk(LEAF, 8 * STEP, 0, false);
    gm_chunk *middle = new_chunk(2 * LEAF, 64 * STEP, 4096, false);
    gm_chunk *large = new_chunk(3 * LEAF, 4 * STEP, 0, true);
    CHECK_EQ(small->start_capacity, 64);
    CHECK_EQ(middle->start_capacity, 512);
    CHECK_EQ(large->start_capacity, 16384);
    CHECK_EQ(middle->slot_count, 64 * STEP / 4096);
    CHECK(middle->paged && !small->paged && small->slots == NULL);
    gm_chunk_retire(large);
    gm_chunk_retire(middle);
    gm_chunk_retire(small);
    CHECK(middle->slots == NULL);

    /* The smallest that is long enough, and not eight times too long. */
    gm_chunk *again = new_chunk(LEAF, 7 * STEP, 0, false);
    CHECK(again == small);
    gm_chunk *next = new_chunk(5 * LEAF, 8 * STEP, 8192, false);
    CHECK(next == middle);
    CHECK_EQ(next->slot_count, 8 * STEP / 8192);
    CHECK_EQ(next->slots[0].state, GM_SLOT_FREE_VA);
    gm_chunk *fresh = new_chunk(6 * LEAF, 8 * STEP, 0, false);
    CHECK(fresh != large);
    gm_chunk *longest = new_chunk(7 * LEAF, 1250 * STEP, 0, false);
    CHECK(longest == large);
    CHECK_EQ(longest->base, 7 * LEAF);
    gm_chunk_retire(again);
    gm_chunk_retire(next);
    gm_chunk_retire(fresh);
    gm_chunk_retire(longest);
}

static const gm_test tests[] = {
    {"ranges are found from start to end", ranges_are_found_from_start_to_end},
    {"wrong ranges are refused", wrong_ranges_are_refused},
    {"an overlap changes nothing", an_overlap_changes_nothing},
    {"a child of fork forgets all", a_child_of_fork_forgets_all},
    {"a live block is found by its start alone",
     a_live_block_is_found_by_its_start_alone},
    {"chunks are used again if they fit", chunks_are_used_again_if_they_fit},
};

GM_TEST_MAIN(tests)
