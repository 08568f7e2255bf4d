/* test_moves.c - many moves of pages leave nothing behind.
 *
 * GM_TEST_MOVES: how many pages are mapped in each run, 20,000 if it is not set.
 */
#include <stdio.h>
#include <stdlib.h>

#include "device/sim.h"
#include "pool/internal.h"
#include "pool_kinds.h"

enum {
    HELD = 8,
    LARGEST = 30 /* MiB */
};

/* What must not grow. */
typedef struct footprint {
    uint64_t touched, addresses, mapped, zombies, metadata, resident;
} footprint;

/* Resident memory of this process in bytes. */
static uint64_t
resident_bytes(void)
{
    unsigned long long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL);
    CHECK_EQ(fscanf(file, "%llu %llu", &pages, &resident), 2);
    fclose(file);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static footprint
measure(gm_device *device, gm_pool *pool)
{
    gm_pool_stats stats = stats_of(pool);
    gm_device_counters counters = counters_of(device);
    size_t blocks, entries, lanes, metadata;
    gm_pool_read_sizes(pool, &blocks, &entries, &lanes, &metadata);
    return (footprint){.touched = stats.touched_bytes,
                       .addresses = counters.address_now,
                       .mapped = counters.mapped_now,
                       .zombies = stats.zombies,
                       .metadata = metadata,
                       .resident = resident_bytes()};
}

static uint32_t
draw(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static void
tick(gm_device *device, unsigned times)
{
    while (times-- > 0) {
        gm_sim_tick(device);
    }
}

/* Blocks of ever new sizes in place of others: most need pages that lie elsewhere. All are
 * freed at the end. */
static void
move_pages(gm_device *device, gm_pool *pool, uint64_t moves, uint64_t *state)
{
    gm_block *held[HELD] = {NULL};
    uint64_t end = stats_of(pool).maps + moves;
    for (uint64_t step = 0; stats_of(pool).maps < end; step++) {
        CHECK(step < 20 * moves); /* else nothing moves any more */
        gm_block **place = &held[draw(state) % HELD];
        gm_pool_free(*place);
        *place = take(pool, (draw(state) % LARGEST + 1) * MIB, 0);
        tick(device, 50);
    }
    for (int i = 0; i < HELD; i++) {
        gm_pool_free(held[i]);
    }
}

static uint64_t
wanted_moves(void)
{
    const char *text = getenv("GM_TEST_MOVES");
    return text != NULL ? strtoull(text, NULL, 10) : 20000;
}

static void
leave_nothing_behind(uint64_t lag)
{
    gm_sim_options options = {
        .capacity = SIZE_MAX, .paging = true, .aliasing = true, .lag = lag};
    gm_device *device = open_sim(&options);
    gm_pool_options pool_options = usual_options();
    pool_options.steal = GM_STEAL_ALWAYS;
    gm_pool *pool = open_pool(device, &pool_options);
    uint64_t state = 1;
    /* The first thousand, and as much as the device is behind. */
    move_pages(device, pool, 1000 + 20 * lag, &state);
    CHECK_POOL(pool);
    footprint before = measure(device, pool);
    move_pages(device, pool, wanted_moves(), &state);
    CHECK_POOL(pool);
    footprint after = measure(device, pool);
    printf(
        "# lag %llu: touched %llu then %llu MiB, mapped %llu then %llu, metadata %llu "
        "then %llu KiB, resident %llu then %llu KiB\n",
        (unsigned long long)lag, (unsigned long long)before.touched >> 20,
        (unsigned long long)after.touched >> 20,
        (unsigned long long)before.mapped >> 20, (unsigned long long)after.mapped >> 20,
        (unsigned long long)before.metadata >> 10,
        (unsigned long long)after.metadata >> 10,
        (unsigned long long)before.resident >> 10,
        (unsigned long long)after.resident >> 10);
    CHECK_EQ(after.addresses, before.addresses);
    CHECK(after.touched <= 2 * before.touched);
    CHECK(after.mapped <= 2 * before.mapped);
    CHECK(after.metadata <= before.metadata + 128 * KIB);
    CHECK(after.resident <= before.resident + 4 * MIB);
    CHECK_EQ(stats_of(pool).num_sync_all_streams, 0);
    /* All of it comes back once the device has caught up with the last free, which the
     * first trim marks. */
    for (int i = 0; i < 2; i++) {
        (void)trim_all(pool);
        tick(device, (unsigned)lag + 1);
    }
    (void)trim_all(pool);
    CHECK_EQ(stats_of(pool).zombies, 0);
    CHECK_EQ(counters_of(device).mapped_now, 0);
    CHECK_EQ(counters_of(device).memory_now, 0);
    CHECK_EQ(counters_of(device).address_now, 0);
    close_pool(pool);
}

static void
moves_leave_nothing_behind(void)
{
    leave_nothing_behind(0);
}

static void
moves_of_a_device_that_is_behind_leave_nothing(void)
{
    leave_nothing_behind(1000);
}

static const gm_test tests[] = {
    {"moves leave nothing behind", moves_leave_nothing_behind},
    {"moves of a device that is behind leave nothing",
     moves_of_a_device_that_is_behind_leave_nothing},
};

GM_TEST_MAIN(tests)
