/* test_steal_faults.c - calls of the device that fail while pages move: nothing is lost,
 * nothing is spoilt, and the next try succeeds.
 */
#include "steal_kinds.h"

/* A live block and, below a guard, a freed one, whose work is done or not. A block of
 * `wanted` bytes then takes the freed one's pages. */
typedef struct scene {
    gm_device *device;
    gm_device *second; /* another fault device behind it */
    gm_pool *pool;
    gm_stream stream;
    gm_block *live, *guard;
    size_t wanted;
    size_t reserved;
} scene;

enum {
    LIVE = 0x77,
    OLD = 0x11,
    NEW = 0x22
};

static void
open_scene(scene *self, bool done)
{
    *self = (scene){.second = behind_faults(host_with(64 * MIB, true)),
                    .wanted = 12 * PAGE};
    self->device = behind_faults(self->second);
    self->pool = stealing_pool(self->device, GM_STEAL_ALWAYS, SIZE_MAX);
    self->stream = stalled_stream(self->device);
    self->live = take(self->pool, 6 * PAGE, self->stream);
    gm_block *old = take(self->pool, 10 * PAGE, self->stream);
    self->guard = take(self->pool, MIB, self->stream);
    write_later(self->live, LIVE, self->stream);
    spoilt = 0;
    use_and_free(old, OLD, self->stream);
    self->reserved = reserved(self->pool);
    if (done) {
        let_run(self->device, self->stream);
    }
    watch_reports();
}

/* The pool is sound and holds what it held; another try succeeds, and all work, also that
 * of before, finds what it left. Everything goes back to the device. */
static void
check_recovery(scene *self)
{
    CHECK_POOL(self->pool);
    CHECK_EQ(stats_of(self->pool).allocated_bytes.all.current, 6 * PAGE + MIB);
    CHECK_EQ(stats_of(self->pool).quarantined, 0);
    CHECK_EQ(stats_of(self->pool).zombies, 0);
    CHECK_EQ(stats_of(self->pool).aliased_bytes, 0);
    CHECK_EQ(reserved(self->pool), self->reserved);
    CHECK_EQ(counters_of(self->device).mapped_now,
             reserved(self->pool) - stats_of(self->pool).unplaced_bytes);
    gm_block *block = take(self->pool, self->wanted, self->stream);
    CHECK_POOL(self->pool);
    write_later(block, NEW, self->stream);
    expect_later(self->live, LIVE, self->stream);
    expect_later(block, NEW, self->stream);
    let_run(self->device, self->stream);
    CHECK_EQ(spoilt, 0);
    gm_pool_free(block);
}

static void
close_scene(scene *self)
{
    let_run(self->device, self->stream);
    CHECK_EQ(spoilt, 0);
    CHECK(holds(gm_block_address(self->live), 6 * PAGE, LIVE));
    gm_pool_free(self->live);
    gm_pool_free(self->guard);
    gm_set_report_hook(NULL);
    close_pool(self->pool);
}

/* Fails the nth call of a kind, or from that on all; returns whether that came to pass. */
static bool
fail_in_steal(gm_device_call call, uint64_t nth, bool for_ever, bool done)
{
    scene self;
    gm_block *block = NULL;
    open_scene(&self, done);
    gm_fault_plan plan = {
        .call = (int)call, .nth = nth, .for_ever = for_ever, .status = GM_NO_MAPPING};
    gm_fault_arm(self.device, &plan);
    gm_status status = allocate(self.pool, self.wanted, self.stream, &block, NULL);
    bool failed = gm_fault_injected(self.device) != 0;
    gm_fault_arm(self.device, NULL);
    if (failed) {
        CHECK_STATUS(status, GM_NO_MAPPING);
        CHECK(block == NULL);
        CHECK_EQ(reports, 0);
        self.reserved += 2 * PAGE; /* two new ones: their turn was before */
        check_recovery(&self);
    }
    else {
        CHECK_OK(status);
        gm_pool_free(block);
    }
    close_scene(&self);
    return failed;
}

static void
a_page_that_cannot_be_mapped_goes_back(void)
{
    for (int done = 0; done < 2; done++) {
        for (int for_ever = 0; for_ever < 2; for_ever++) {
            uint64_t failures = 0;
            while (fail_in_steal(GM_CALL_MAP, failures + 1, for_ever != 0, done != 0)) {
                failures++;
            }
            CHECK_EQ(failures, 12);
        }
    }
}

static void
pages_without_access_go_back(void)
{
    for (int done = 0; done < 2; done++) {
        CHECK(fail_in_steal(GM_CALL_GRANT, 1, false, done != 0));
        CHECK(!fail_in_steal(GM_CALL_GRANT, 2, false, done != 0));
    }
}

/* The device has no page left after all: the loot is where it was, and stays in use. */
static void
a_page_that_is_refused_undoes_the_steal(void)
{
    for (int done = 0; done < 2; done++) {
        for (uint64_t nth = 1; nth <= 2; nth++) {
            scene self;
            gm_block *block = NULL;
            open_scene(&self, done != 0);
            gm_fault_plan plan = {.call = GM_CALL_PAGE_CREATE,
                                  .nth = nth,
                                  .for_ever = true,
                                  .status = GM_OUT_OF_MEMORY};
            gm_fault_arm(self.device, &plan);
            CHECK_STATUS(allocate(self.pool, self.wanted, self.stream, &block, NULL),
                         GM_OUT_OF_MEMORY);
            gm_fault_arm(self.device, NULL);
            check_recovery(&self);
            close_scene(&self);
        }
    }
}

/* A done page that cannot be unmapped stays where it is; new ones come instead. */
static void
a_page_that_cannot_be_unmapped_stays(void)
{
    scene self;
    open_scene(&self, true);
    fail_nth(self.device, GM_CALL_UNMAP, 1, GM_DEVICE_ERROR);
    gm_block *block = take(self.pool, self.wanted, self.stream);
    CHECK_REPORT(GM_DEVICE_ERROR, "move a page");
    CHECK_EQ(stats_of(self.pool).stolen_bytes, 0);
    CHECK_EQ(stats_of(self.pool).cached_bytes, 10 * PAGE);
    CHECK_EQ(reserved(self.pool), self.reserved + 12 * PAGE);
    CHECK_POOL(self.pool);
    gm_pool_free(block);
    /* The same again moves them. */
    block = take(self.pool, 23 * PAGE, self.stream);
    CHECK_EQ(stats_of(self.pool).stolen_bytes, 10 * PAGE);
    CHECK_EQ(reports, 0);
    gm_pool_free(block);
    close_scene(&self);
}

/* Without a mark nobody would know when the old work is done. */
static void
without_a_mark_undone_pages_stay(void)
{
    gm_device_call calls[] = {GM_CALL_EVENT_CREATE, GM_CALL_EVENT_RECORD};
    for (int i = 0; i < 2; i++) {
        scene self;
        open_scene(&self, false);
        fail_nth(self.device, calls[i], 1, GM_DEVICE_ERROR);
        gm_block *block = take(self.pool, self.wanted, self.stream);
        CHECK_EQ(gm_fault_injected(self.device), 1);
        CHECK_EQ(stats_of(self.pool).stolen_bytes, 0);
        CHECK_EQ(reserved(self.pool), self.reserved + 12 * PAGE);
        CHECK_POOL(self.pool);
        gm_pool_free(block);
        block = take(self.pool, 23 * PAGE, self.stream);
        CHECK_EQ(stats_of(self.pool).aliased_bytes, 10 * PAGE);
        CHECK_POOL(self.pool);
        gm_pool_free(block);
        close_scene(&self);
    }
}

/* ---- what cannot be undone ------------------------------------------------------- */

/* Neither mapped to its end nor unmapped: the pages of the lost places are their last
 * owner's, and are never destroyed. */
static void
a_looted_page_that_stays_mapped_is_its_last_owners(void)
{
    scene self;
    gm_block *block = NULL;
    open_scene(&self, false);
    fail_nth(self.device, GM_CALL_MAP, 4, GM_NO_MAPPING);
    gm_fault_plan plan = {
        .call = GM_CALL_UNMAP, .nth = 2, .for_ever = true, .status = GM_DEVICE_ERROR};
    gm_fault_arm(self.second, &plan);
    CHECK_STATUS(allocate(self.pool, self.wanted, self.stream, &block, NULL),
                 GM_NO_MAPPING);
    CHECK_EQ(reports, 2);
    CHECK_STATUS(last_report, GM_DEVICE_ERROR);
    CHECK(strcmp(last_report_text, "unmap a page after a failed allocation") == 0);
    CHECK_POOL(self.pool);
    CHECK_EQ(stats_of(self.pool).quarantined, 0);
    CHECK_EQ(stats_of(self.pool).zombies, 2 * PAGE);
    CHECK_EQ(stats_of(self.pool).cached_bytes, 10 * PAGE);
    gm_fault_arm(self.second, NULL);
    gm_fault_arm(self.device, NULL);

    /* They go on serving; the places of the failure do not. */
    block = take(self.pool, self.wanted, self.stream);
    CHECK_EQ(stats_of(self.pool).aliased_bytes, 10 * PAGE);
    write_later(block, NEW, self.stream);
    expect_later(block, NEW, self.stream);
    CHECK_POOL(self.pool);
    let_run(self.device, self.stream);
    CHECK_EQ(spoilt, 0);
    CHECK(holds(gm_block_address(self.live), 6 * PAGE, LIVE));
    gm_pool_free(block);
    gm_pool_free(self.live);
    gm_pool_free(self.guard);
    (void)trim_all(self.pool);
    CHECK_POOL(self.pool);
    CHECK_EQ(stats_of(self.pool).zombies, 2 * PAGE);
    CHECK_EQ(reserved(self.pool), 2 * PAGE);
    CHECK_EQ(counters_of(self.device).memory_now, 2 * PAGE);
    CHECK_EQ(stats_of(self.pool).unplaced_bytes, 2 * PAGE);
    gm_set_report_hook(NULL);
    gm_pool_release(self.pool);
    CHECK_EQ(counters_of(self.device).calls[GM_CALL_PAGE_DESTROY], 6 + 10 + 16 + 2 - 2);
    gm_device_release(self.device);
}

static void
a_zombie_that_cannot_be_unmapped_keeps_its_page(void)
{
    scene self;
    open_scene(&self, false);
    gm_devptr hole = gm_block_address(self.live) + 6 * PAGE;
    gm_block *block = take(self.pool, self.wanted, self.stream);
    CHECK_EQ(stats_of(self.pool).zombies, 10 * PAGE);
    let_run(self.device, self.stream);
    fail_nth(self.device, GM_CALL_UNMAP, 1, GM_DEVICE_ERROR);
    gm_block *next = take(self.pool, 30 * PAGE, self.stream);
    CHECK_REPORT(GM_DEVICE_ERROR, "unmap a page that was given elsewhere");
    CHECK_EQ(stats_of(self.pool).zombies, 10 * PAGE);
    CHECK_POOL(self.pool);
    gm_fault_arm(self.device, NULL);

    /* It is said once; the addresses are lost, the pages serve. */
    gm_pool_free(block);
    gm_pool_free(next);
    next = take(self.pool, 40 * PAGE, self.stream);
    CHECK(!overlaps(next, hole, 10 * PAGE));
    CHECK_EQ(reports, 0);
    CHECK_POOL(self.pool);
    gm_pool_free(next);
    gm_pool_free(self.live);
    gm_pool_free(self.guard);
    (void)trim_all(self.pool);
    CHECK_POOL(self.pool);
    CHECK_EQ(reserved(self.pool), 10 * PAGE);
    CHECK_EQ(stats_of(self.pool).unplaced_bytes, 10 * PAGE);
    CHECK_EQ(counters_of(self.device).memory_now, 10 * PAGE);
    CHECK_EQ(counters_of(self.device).mapped_now, 10 * PAGE);
    gm_block *again = take(self.pool, 10 * PAGE, self.stream);
    CHECK_EQ(reserved(self.pool), 10 * PAGE);
    CHECK(!overlaps(again, hole, 10 * PAGE));
    gm_pool_free(again);
    (void)trim_all(self.pool);
    CHECK_EQ(reports, 0); /* no page_destroy was tried in vain */
    gm_set_report_hook(NULL);
    gm_pool_release(self.pool);
    CHECK_EQ(counters_of(self.device).memory_now, 10 * PAGE);
    gm_device_release(self.device);
}

static const gm_test tests[] = {
    {"a page that cannot be mapped goes back", a_page_that_cannot_be_mapped_goes_back},
    {"pages without access go back", pages_without_access_go_back},
    {"a page that is refused undoes the steal",
     a_page_that_is_refused_undoes_the_steal},
    {"a page that cannot be unmapped stays", a_page_that_cannot_be_unmapped_stays},
    {"without a mark undone pages stay", without_a_mark_undone_pages_stay},
    {"a looted page that stays mapped is its last owner's",
     a_looted_page_that_stays_mapped_is_its_last_owners},
    {"a zombie that cannot be unmapped keeps its page",
     a_zombie_that_cannot_be_unmapped_keeps_its_page},
};

GM_TEST_MAIN(tests)
