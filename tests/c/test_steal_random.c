/* test_steal_random.c - random programs on two streams that run behind, while pages move:
 * every invariant holds after each step, all work finds what was written for it, and no
 * memory is used again or unmapped without an edge that orders it.
 */
#include "device/checker_device.h"
#include "steal_kinds.h"

enum {
    HELD = 24,
    STEPS = 1500
};

/* A program: blocks that it holds, each full of one value, each of one of two streams. */
typedef struct program {
    gm_device *device; /* as the pool sees it */
    gm_device *inner;
    gm_pool *pool;
    gm_stream streams[2];
    gm_block *blocks[HELD];
    unsigned char values[HELD];
    unsigned seed;
    bool memory; /* of the host: what lies there is looked at */
    bool faults;
} program;

static unsigned
draw(program *self, unsigned most)
{
    return (unsigned)rand_r(&self->seed) % (most + 1);
}

/* Blocks of both arenas, mostly not of whole pages. */
static size_t
draw_size(program *self)
{
    if (draw(self, 2) == 0) {
        return 512 * (1 + draw(self, 511));
    }
    return 256 * KIB + 512 * (1 + draw(self, 2047));
}

static void
allocate_one(program *self, unsigned slot)
{
    gm_stream stream = self->streams[slot % 2];
    gm_status status =
        allocate(self->pool, draw_size(self), stream, &self->blocks[slot], NULL);
    if (status != GM_OK) {
        CHECK(status == GM_OUT_OF_MEMORY ||
              (self->faults && status == GM_DEVICE_ERROR));
        CHECK(self->blocks[slot] == NULL);
        return;
    }
    self->values[slot] = (unsigned char)draw(self, 255);
    if (self->memory) {
        write_later(self->blocks[slot], self->values[slot], stream);
    }
}

/* Its last use is a look at it, queued before the free. */
static void
free_one(program *self, unsigned slot)
{
    gm_block *block = self->blocks[slot];
    if (self->memory) {
        expect_later(block, self->values[slot], self->streams[slot % 2]);
    }
    if (!self->faults && draw(self, 9) == 0) {
        CHECK_OK(gm_pool_record_stream(block, self->streams[1 - slot % 2]));
    }
    gm_pool_free(block);
    self->blocks[slot] = NULL;
}

/* The device comes nearer, by 0 to 50 pieces of work. */
static void
move_on(program *self)
{
    if (self->memory) {
        gm_stream stream = self->streams[draw(self, 1)];
        size_t waiting = 0, count = draw(self, 4);
        CHECK_OK(gm_host_waiting_work(self->inner, stream, &waiting));
        count = waiting > 50 ? waiting - 50 : count;
        CHECK_OK(gm_host_release_work(self->inner, stream, count, NULL));
    }
    else {
        gm_sim_set_lag(self->inner, draw(self, 50));
        gm_sim_tick(self->inner);
    }
}

static void
trim_some(program *self)
{
    gm_trim_request request = {
        .target = draw(self, 1) == 0 ? 0 : draw(self, 64) * (size_t)PAGE};
    gm_trim_report report;
    gm_status status = gm_pool_trim(self->pool, &request, &report);
    CHECK(status == GM_OK || self->faults);
}

/* Some call fails soon, once. */
static void
arm(program *self)
{
    if (self->faults) {
        gm_fault_plan plan = {
            .call = -1, .nth = 20 + draw(self, 400), .status = GM_DEVICE_ERROR};
        gm_fault_arm(self->device, &plan);
    }
}

static size_t
run(program *self)
{
    size_t faults = 0;
    arm(self);
    for (int step = 0; step < STEPS; step++) {
        unsigned slot = draw(self, HELD - 1);
        if (self->blocks[slot] == NULL) {
            allocate_one(self, slot);
        }
        else {
            free_one(self, slot);
        }
        move_on(self);
        if (draw(self, 99) == 0) {
            trim_some(self);
        }
        CHECK_POOL(self->pool);
        CHECK_EQ(spoilt, 0);
        if (self->faults && gm_fault_injected(self->device) != 0) {
            faults++;
            arm(self);
        }
    }
    for (unsigned slot = 0; slot < HELD; slot++) {
        if (self->blocks[slot] != NULL) {
            free_one(self, slot);
        }
    }
    return faults;
}

static gm_device *
device_of(program *self, bool aliasing, size_t capacity)
{
    gm_sim_options sim = {.capacity = capacity,
                          .page_size = PAGE,
                          .paging = true,
                          .aliasing = aliasing,
                          .checked = true};
    gm_host_options host = {.capacity = capacity,
                            .page_size = PAGE,
                            .paging = true,
                            .aliasing = aliasing,
                            .manual_clock = true,
                            .checked = true};
    gm_device *device = self->memory ? open_host(&host) : open_sim(&sim);
    return self->faults ? behind_faults(device) : device;
}

static void
start(program *self, unsigned seed, bool aliasing, gm_steal_mode steal, size_t capacity)
{
    printf("   seed %u, %s\n", seed, aliasing ? "aliasing" : "without aliasing");
    self->seed = seed;
    self->device = device_of(self, aliasing, capacity);
    self->inner = gm_fault_inner(self->device);
    self->pool = stealing_pool(self->device, steal, SIZE_MAX);
    for (int i = 0; i < 2; i++) {
        self->streams[i] =
            self->memory ? stalled_stream(self->device) : new_stream(self->device);
    }
    spoilt = 0;
}

/* The device catches up. */
static void
finish_work(program *self)
{
    for (int i = 0; self->memory && i < 2; i++) {
        let_run(self->inner, self->streams[i]);
    }
    CHECK_EQ(spoilt, 0);
    gm_pool_poll(self->pool);
}

static void
check_ordered(program *self)
{
    char text[200] = "";
    if (gm_device_violations(self->device, text, sizeof(text)) != 0) {
        check_fail(__FILE__, __LINE__, text);
    }
}

/* ---- programs -------------------------------------------------------------------- */

static void
run_to_the_end(bool memory, unsigned seed, bool aliasing, gm_steal_mode steal,
               size_t capacity)
{
    program self = {.memory = memory};
    start(&self, seed, aliasing, steal, capacity);
    (void)run(&self);
    gm_pool_stats stats = stats_of(self.pool);
    CHECK(stats.stolen_bytes != 0);
    CHECK_EQ(stats.aliased_bytes != 0, aliasing);
    CHECK_EQ(stats.num_sync_all_streams, 0);
    CHECK_EQ(stats.quarantined, 0);
    finish_work(&self);
    gm_pool_close(self.pool, memory ? 0 : SECOND);
    CHECK_EQ(stats_of(self.pool).zombies, 0);
    check_ordered(&self);
    close_pool(self.pool);
}

static void
a_device_with_lag(void)
{
    for (unsigned seed = 1; seed <= 6; seed++) {
        run_to_the_end(false, seed, seed % 2 == 0, GM_STEAL_ALWAYS, 256 * MIB);
    }
}

static void
memory_of_the_host(void)
{
    for (unsigned seed = 11; seed <= 14; seed++) {
        run_to_the_end(true, seed, seed % 2 == 0, GM_STEAL_ALWAYS, 64 * MIB);
    }
}

/* Where the pool can hardly grow all that is missing is stolen, whatever the policy. */
static void
a_device_that_is_nearly_full(void)
{
    static const gm_steal_mode modes[] = {GM_STEAL_NEVER, GM_STEAL_RATIO};
    for (unsigned i = 0; i < 4; i++) {
        run_to_the_end(true, 21 + i, i % 2 == 0, modes[i / 2], 10 * MIB);
    }
}

/* Any call may fail: memory may be lost, but is never mixed up. */
static void
calls_that_fail_now_and_then(void)
{
    watch_reports();
    for (unsigned seed = 31; seed <= 36; seed++) {
        program self = {.memory = true, .faults = true};
        start(&self, seed, seed % 3 != 0, GM_STEAL_ALWAYS, 64 * MIB);
        CHECK(run(&self) >= 10);
        CHECK(stats_of(self.pool).stolen_bytes != 0);
        gm_fault_arm(self.device, NULL);
        finish_work(&self);
        (void)trim_all(self.pool);
        CHECK_POOL(self.pool);
        CHECK_EQ(stats_of(self.pool).allocated_bytes.all.current, 0);
        CHECK_EQ(counters_of(self.device).memory_now, reserved(self.pool));
        CHECK(reserved(self.pool) <=
              stats_of(self.pool).quarantined + stats_of(self.pool).zombies);
        gm_pool_release(self.pool);
        check_ordered(&self);
        gm_device_release(self.device);
    }
    gm_set_report_hook(NULL);
}

static const gm_test tests[] = {
    {"a device with lag", a_device_with_lag},
    {"memory of the host", memory_of_the_host},
    {"a device that is nearly full", a_device_that_is_nearly_full},
    {"calls that fail now and then", calls_that_fail_now_and_then},
};

GM_TEST_MAIN(tests)
