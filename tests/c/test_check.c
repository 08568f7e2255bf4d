/* test_check.c - one field of a pool is broken at a time: the check must name it. What
 * breaks inside an arena is in test_heap_arena.c.
 */
#include "pool/internal.h"
#include "pool_kinds.h"

static void
check_broken(gm_pool *pool, const char *expected)
{
    char text[160] = "";
    CHECK_STATUS(gm_pool_check(pool, text, sizeof(text)), GM_INVALID);
    if (strcmp(text, expected) != 0) {
        fprintf(stderr, "said: %s\n", text);
        check_fail(__FILE__, __LINE__, expected);
    }
}

/* With `field` set to `value` the check says `text`, and nothing once it is back. */
#define CHECK_BREAK(pool, field, value, text)     \
    do {                                          \
        __typeof__(field) check_kept = (field);   \
        CHECK_OK(gm_pool_check((pool), NULL, 0)); \
        (field) = (__typeof__(field))(value);     \
        check_broken((pool), (text));             \
        (field) = check_kept;                     \
        CHECK_OK(gm_pool_check((pool), NULL, 0)); \
    } while (0)

static void
counters_of_a_lane_are_checked(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_block *block = take(pool, 3 * MIB, 0);
    gm_pool_free(take(pool, 5 * MIB, 0));
    gm_lane *lane = gm_block_lane(block);
    gm_lane_stats *stats = &lane->shelves[GM_LARGE].stats;
    CHECK_BREAK(pool, stats->freed.bytes, 5 * MIB + 512,
                "used + pending differ from an arena's live blocks");
    CHECK_BREAK(pool, stats->pending.bytes, 512,
                "used + pending differ from an arena's live blocks");
    CHECK_BREAK(pool, stats->peak.bytes, 3 * MIB - 1,
                "a peak is lower than its current value");
    CHECK_BREAK(pool, stats->inactive_peak.bytes, 5 * MIB - 1,
                "a peak is lower than its current value");
    CHECK_BREAK(pool, lane->shelves[GM_LARGE].segment_bytes.current, 7 * MIB,
                "segment bytes differ from an arena's mapped bytes");
    CHECK_BREAK(pool, lane->shelves[GM_SMALL].segment_bytes.current, PAGE,
                "segment bytes differ from an arena's mapped bytes");
    CHECK_BREAK(pool, lane->pending_blocks, 1, "the number of pending blocks is wrong");
    CHECK_BREAK(pool, lane->shelves[GM_SMALL].stats.pending.blocks, 1,
                "the number of pending blocks is wrong");
    CHECK_BREAK(pool, lane->shelves[GM_LARGE].arena.live_bytes, 0,
                "an arena's counters differ from its blocks");
    gm_pool_free(block);
    close_pool(pool);
}

static void
pending_blocks_are_checked(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_stream slow = stalled_stream(device);
    gm_block *blocks[3];
    for (int i = 0; i < 3; i++) {
        blocks[i] = take(pool, MIB, 0);
        CHECK_OK(gm_pool_record_stream(blocks[i], slow));
    }
    gm_lane *lane = gm_block_lane(blocks[0]);
    gm_watch *watch = GM_CONTAINER_OF(lane->watches.next, gm_watch, link);
    gm_pool_free(blocks[0]);
    gm_pool_free(blocks[1]);
    CHECK_BREAK(pool, watch->users, 0,
                "a stream's watch has the wrong number of users");
    CHECK_BREAK(pool, watch->users, 1,
                "a stream's watch has the wrong number of users");
    gm_block_set_state(blocks[1], GM_HEAP_USED);
    check_broken(pool, "a use waits for a block that is not pending");
    gm_block_set_state(blocks[1], GM_HEAP_PENDING);
    gm_pool_free(blocks[2]);
    let_run(device, slow);
    gm_pool_poll(pool);
    close_pool(pool);
}

static void
pages_are_checked(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    gm_block *block = take(pool, MIB, 0);
    CHECK_OK(gm_pool_reserve(pool, 2 * MIB, NULL));
    gm_page_pool *pages = &pool->page_pool;
    CHECK_BREAK(pool, pages->reserved.current, 3 * MIB,
                "reserved bytes differ from the pages and segments that exist");
    CHECK_BREAK(pool, pages->whole_bytes, PAGE,
                "reserved bytes differ from the pages and segments that exist");
    CHECK_BREAK(pool, pages->count, 33,
                "the stack of free pages is larger than the pages that exist");
    CHECK_BREAK(pool, pages->count, 15,
                "the stack of free pages is larger than the pages that exist");

    /* While a page is on its way, or once one is lost, that sum is nobody's to know. */
    gm_frame *top = pages->free;
    pages->free = top->next;
    pages->count--;
    check_broken(pool, "pages are neither mapped nor free");
    pages->leaving++;
    CHECK_OK(gm_pool_check(pool, NULL, 0));
    pages->leaving--;
    pages->quarantined += PAGE;
    CHECK_OK(gm_pool_check(pool, NULL, 0));
    pages->quarantined -= PAGE;
    pages->free = top;
    pages->count++;
    gm_pool_free(block);
    close_pool(pool);
}

static void
segments_are_checked(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, false);
    gm_block *block = take(pool, 12 * MIB, 0);
    gm_page_pool *pages = &pool->page_pool;
    CHECK_BREAK(pool, pages->whole_bytes, 10 * MIB,
                "reserved bytes differ from the pages and segments that exist");
    pages->reserved.current += 2 * MIB;
    pages->whole_bytes += 2 * MIB;
    check_broken(pool, "segments are reserved that no arena holds");
    pages->whole_bytes -= 2 * MIB;
    pages->reserved.current -= 2 * MIB;
    gm_pool_free(block);
    close_pool(pool);
}

static void
the_text_fits_where_it_goes(void)
{
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    char text[9] = "unspoilt";
    CHECK_OK(gm_pool_check(pool, text, sizeof(text)));
    CHECK_EQ(memcmp(text, "unspoilt", 9), 0);
    pool->page_pool.reserved.current = PAGE;
    CHECK_STATUS(gm_pool_check(pool, text, sizeof(text)), GM_INVALID);
    CHECK(strcmp(text, "reserved") == 0);
    CHECK_STATUS(gm_pool_check(pool, text, 0), GM_INVALID);
    CHECK_STATUS(gm_pool_check(pool, NULL, 10), GM_INVALID);
    CHECK(strcmp(text, "reserved") == 0);
    pool->page_pool.reserved.current = 0;
    close_pool(pool);
}

static void
sizes_tell_of_growth(void)
{
    enum {
        COUNT = 2000
    };
    gm_device *device = host_device(64 * MIB);
    gm_pool *pool = pool_on(device, true);
    size_t free_blocks, entries, lanes, empty, full, after;
    gm_pool_read_sizes(pool, &free_blocks, &entries, &lanes, &empty);
    CHECK_EQ(free_blocks + entries + lanes + empty, 0);
    static gm_block *blocks[COUNT];
    for (int i = 0; i < COUNT; i++) {
        blocks[i] = take(pool, 1000, 0);
    }
    for (int i = 0; i < COUNT; i += 2) {
        gm_pool_free(blocks[i]);
    }
    gm_pool_read_sizes(pool, &free_blocks, &entries, &lanes, &full);
    CHECK_EQ(lanes, 1);
    CHECK_EQ(free_blocks, stats_of(pool).inactive_split.all.current);
    CHECK(free_blocks >= COUNT / 2 && entries == free_blocks);
    CHECK(full > COUNT * sizeof(gm_block));
    for (int i = 1; i < COUNT; i += 2) {
        gm_pool_free(blocks[i]);
    }
    gm_pool_read_sizes(pool, &free_blocks, &entries, &lanes, &after);
    CHECK_EQ(free_blocks, 1);
    CHECK_EQ(entries, 1);
    /* Nodes are kept for the next blocks. */
    CHECK_EQ(after, full);
    close_pool(pool);
}

static const gm_test tests[] = {
    {"counters of a lane are checked", counters_of_a_lane_are_checked},
    {"pending blocks are checked", pending_blocks_are_checked},
    {"pages are checked", pages_are_checked},
    {"segments are checked", segments_are_checked},
    {"the text fits where it goes", the_text_fits_where_it_goes},
    {"sizes tell of growth", sizes_tell_of_growth},
};

GM_TEST_MAIN(tests)
