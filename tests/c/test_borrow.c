/* test_borrow.c - pages of streams that are not done, behind waits that the pool inserts
 * (cross_stream="wait").
 */
#include <pthread.h>

#include "device/checker_device.h"
#include "device/handles.h"
#include "steal_kinds.h"

enum {
    LIVE = 0x77,
    OLD = 0x11,
    NEW = 0x22
};

/* Two streams that are held back on a device of 8 MiB. One has a live block of 1 MiB and
 * a freed one of 4 MiB, in use by work on its way; the other wants 6 MiB. */
typedef struct scene {
    gm_device *device;
    gm_pool *pool;
    gm_stream giving, wanting;
    gm_block *live;
    gm_devptr hole;
} scene;

static gm_device *
small_device(bool aliasing)
{
    gm_host_options options = {.capacity = 8 * MIB,
                               .page_size = PAGE,
                               .paging = true,
                               .aliasing = aliasing,
                               .checked = true,
                               .manual_clock = true};
    return open_host(&options);
}

static void
open_scene_on(scene *self, gm_device *device, gm_cross_stream cross_stream)
{
    gm_pool_options options = usual_options();
    options.cross_stream = cross_stream;
    options.oom_wait_ns = 0;
    self->device = device;
    self->pool = open_pool(device, &options);
    self->giving = stalled_stream(device);
    self->wanting = stalled_stream(device);
    gm_block *old = take(self->pool, 4 * MIB, self->giving);
    self->live = take(self->pool, MIB, self->giving);
    self->hole = gm_block_address(old);
    write_later(self->live, LIVE, self->giving);
    spoilt = 0;
    use_and_free(old, OLD, self->giving);
}

static void
open_scene(scene *self, gm_cross_stream cross_stream, bool aliasing)
{
    open_scene_on(self, small_device(aliasing), cross_stream);
}

static void
close_scene(scene *self)
{
    let_run(self->device, self->giving);
    let_run(self->device, self->wanting);
    CHECK_EQ(spoilt, 0);
    CHECK(holds(gm_block_address(self->live), MIB, LIVE));
    gm_pool_free(self->live);
    close_pool(self->pool);
}

/* What the checker has to say. */
static size_t
violations(gm_device *device)
{
    return gm_device_violations(device, NULL, 0);
}

static gm_status
want(scene *self, gm_block **out)
{
    return allocate(self->pool, 6 * MIB, self->wanting, out, NULL);
}

/* The pool is as it was before somebody wanted something. */
static void
check_untouched(const scene *self)
{
    CHECK_POOL(self->pool);
    CHECK_EQ(reserved(self->pool), 5 * MIB);
    CHECK_EQ(stats_of(self->pool).zombies, 0);
    CHECK_EQ(stats_of(self->pool).aliased_bytes, 0);
    CHECK_EQ(stats_of(self->pool).cached_bytes, 4 * MIB);
    CHECK_EQ(counters_of(self->device).mapped_now, 5 * MIB);
}

/* ---- the wait --------------------------------------------------------------------- */

static void
undone_pages_come_behind_a_wait(void)
{
    scene self;
    gm_block *block = NULL;
    open_scene(&self, GM_CROSS_STREAM_WAIT, true);
    CHECK_OK(want(&self, &block));
    gm_pool_stats stats = stats_of(self.pool);
    CHECK_EQ(stats.inserted_waits, 1);
    CHECK_EQ(stats.num_sync_all_streams, 0);
    CHECK_EQ(stats.flushes, 0);
    CHECK_EQ(stats.aliased_bytes, 3 * MIB); /* 3 MiB are new: the device has 8 */
    CHECK_EQ(stats.zombies, 3 * MIB);
    CHECK_EQ(reserved(self.pool), 8 * MIB);
    CHECK_EQ(count_slots(self.live, self.hole, 4 * MIB, GM_SLOT_ZOMBIE), 48);
    CHECK_POOL(self.pool);

    /* The second stream may run: what it does comes after the first one's work. */
    write_later(block, NEW, self.wanting);
    let_run(self.device, self.wanting);
    let_run(self.device, self.giving);
    CHECK_EQ(spoilt, 0);
    CHECK(holds(gm_block_address(block), 6 * MIB, NEW));
    CHECK_EQ(violations(self.device), 0);

    /* The zombies are the first stream's: its next request buries them. */
    gm_pool_free(block);
    gm_pool_free(take(self.pool, MIB + PAGE, self.giving));
    CHECK_EQ(stats_of(self.pool).zombies, 0);
    CHECK_EQ(violations(self.device), 0);
    close_scene(&self);
}

static void
only_whoever_asked_for_waits_gets_them(void)
{
    static const gm_cross_stream others[] = {GM_CROSS_STREAM_DONE,
                                             GM_CROSS_STREAM_NEVER};
    for (size_t i = 0; i < 2; i++) {
        scene self;
        gm_block *block = NULL;
        open_scene(&self, others[i], true);
        CHECK_STATUS(want(&self, &block), GM_OUT_OF_MEMORY);
        CHECK_EQ(stats_of(self.pool).inserted_waits, 0);
        check_untouched(&self);
        /* Once the work is done no wait is needed, but for streams that share. */
        let_run(self.device, self.giving);
        CHECK_STATUS(want(&self, &block), i == 0 ? GM_OK : GM_OUT_OF_MEMORY);
        CHECK_EQ(stats_of(self.pool).inserted_waits, 0);
        CHECK_EQ(stats_of(self.pool).aliased_bytes, 0);
        gm_pool_free(block);
        close_scene(&self);
    }
}

static void
without_aliasing_the_work_must_end(void)
{
    scene self;
    gm_block *block = NULL;
    open_scene(&self, GM_CROSS_STREAM_WAIT, false);
    CHECK_STATUS(want(&self, &block), GM_OUT_OF_MEMORY);
    CHECK_EQ(stats_of(self.pool).inserted_waits, 0);
    check_untouched(&self);
    let_run(self.device, self.giving);
    CHECK_OK(want(&self, &block));
    CHECK_EQ(stats_of(self.pool).inserted_waits, 0);
    gm_pool_free(block);
    close_scene(&self);
}

/* A pool may have the room: nobody waits then. */
static void
what_can_grow_waits_for_nobody(void)
{
    scene self;
    gm_block *block = NULL;
    open_scene(&self, GM_CROSS_STREAM_WAIT, true);
    CHECK_OK(allocate(self.pool, 3 * MIB, self.wanting, &block, NULL));
    CHECK_EQ(stats_of(self.pool).inserted_waits, 0);
    CHECK_EQ(reserved(self.pool), 8 * MIB);
    gm_pool_free(block);
    /* Nor does it if its own pages suffice. */
    CHECK_OK(allocate(self.pool, 2 * MIB, self.wanting, &block, NULL));
    CHECK_EQ(stats_of(self.pool).inserted_waits, 0);
    gm_pool_free(block);
    close_scene(&self);
}

/* One wait for each stream that gives. */
static void
several_streams_give(void)
{
    scene self;
    gm_block *block = NULL, *guard = NULL;
    open_scene(&self, GM_CROSS_STREAM_WAIT, true);
    gm_stream third = stalled_stream(self.device);
    gm_block *more = take(self.pool, 2 * MIB, third);
    guard = take(self.pool, PAGE, third);
    use_and_free(more, OLD, third);
    /* 15 pages are new, the others have 4 and 2 MiB. */
    CHECK_OK(allocate(self.pool, 6 * MIB, self.wanting, &block, NULL));
    CHECK_EQ(stats_of(self.pool).inserted_waits, 2);
    CHECK_EQ(stats_of(self.pool).num_sync_all_streams, 0);
    CHECK_EQ(stats_of(self.pool).aliased_bytes, 6 * MIB - 15 * PAGE);
    write_later(block, NEW, self.wanting);
    let_run(self.device, self.wanting);
    let_run(self.device, third);
    let_run(self.device, self.giving);
    CHECK(holds(gm_block_address(block), 6 * MIB, NEW));
    CHECK_EQ(violations(self.device), 0);
    gm_pool_free(block);
    gm_pool_free(guard);
    close_scene(&self);
}

/* Pages that were borrowed can be borrowed again, also by whoever gave them, as long as
 * zombies have room. */
static void
pages_go_round(void)
{
    scene self;
    open_scene(&self, GM_CROSS_STREAM_WAIT, true);
    for (int round = 0; round < 8; round++) {
        gm_block *block = NULL;
        CHECK_OK(want(&self, &block));
        use_and_free(block, (unsigned char)round, self.wanting);
        gm_stream stream = self.wanting;
        self.wanting = self.giving;
        self.giving = stream;
        CHECK_POOL(self.pool);
    }
    CHECK_EQ(stats_of(self.pool).num_sync_all_streams, 0);
    CHECK_EQ(stats_of(self.pool).inserted_waits, 8);
    CHECK_EQ(reserved(self.pool), 8 * MIB);
    let_run(self.device, self.giving);
    let_run(self.device, self.wanting);
    CHECK_EQ(spoilt, 0);
    CHECK_EQ(violations(self.device), 0);
    close_scene(&self);
}

/* ---- who gives nothing ------------------------------------------------------------ */

static void
a_stable_arena_gives_nothing(void)
{
    scene self;
    gm_block *block = NULL;
    gm_pool_options options = usual_options();
    options.cross_stream = GM_CROSS_STREAM_WAIT;
    self.device = small_device(true);
    self.pool = open_pool(self.device, &options);
    self.giving = stalled_stream(self.device);
    self.wanting = stalled_stream(self.device);
    spoilt = 0;
    gm_block *old = take_kind(self.pool, 4 * MIB, self.giving, GM_ARENA_STABLE);
    self.live = take_kind(self.pool, MIB, self.giving, GM_ARENA_STABLE);
    write_later(self.live, LIVE, self.giving);
    use_and_free(old, OLD, self.giving);
    CHECK_STATUS(want(&self, &block), GM_OUT_OF_MEMORY);
    CHECK_EQ(stats_of(self.pool).inserted_waits, 0);
    check_untouched(&self);
    close_scene(&self);
}

/* But it takes: what moves in stays. */
static void
a_stable_arena_may_borrow(void)
{
    scene self;
    gm_block *block = NULL;
    open_scene(&self, GM_CROSS_STREAM_WAIT, true);
    gm_request request = {
        .size = 6 * MIB, .stream = self.wanting, .kind = GM_ARENA_STABLE};
    CHECK_OK(gm_pool_alloc(self.pool, &request, &block, NULL));
    CHECK_EQ(stats_of(self.pool).inserted_waits, 1);
    CHECK_EQ(violations(self.device), 0);
    CHECK_POOL(self.pool);
    gm_pool_free(block);
    close_scene(&self);
}

static void
nobody_gives_during_a_capture(void)
{
    for (int which = 0; which < 2; which++) {
        scene self;
        gm_block *block = NULL;
        open_scene(&self, GM_CROSS_STREAM_WAIT, true);
        gm_stream stream = which == 0 ? self.giving : self.wanting;
        CHECK_OK(gm_pool_capture_begin(self.pool, stream));
        CHECK_STATUS(want(&self, &block), GM_OUT_OF_MEMORY);
        CHECK_EQ(stats_of(self.pool).inserted_waits, 0);
        CHECK_OK(gm_pool_capture_end(self.pool, stream));
        CHECK_OK(want(&self, &block));
        gm_pool_free(block);
        CHECK_EQ(violations(self.device), 0);
        close_scene(&self);
    }
}

/* Nobody else can mark a thread's own stream. */
static void *
leave_a_hole(void *argument)
{
    scene *self = argument;
    gm_block *old = take(self->pool, 4 * MIB, GM_STREAM_PER_THREAD);
    self->live = take(self->pool, MIB, GM_STREAM_PER_THREAD);
    write_later(self->live, LIVE, GM_STREAM_PER_THREAD);
    write_later(old, OLD, GM_STREAM_PER_THREAD);
    gm_pool_free(old);
    return NULL;
}

static void
another_threads_own_stream_gives_nothing(void)
{
    scene self;
    gm_block *block = NULL;
    pthread_t thread;
    gm_pool_options options = usual_options();
    options.cross_stream = GM_CROSS_STREAM_WAIT;
    self.device = small_device(true);
    self.pool = open_pool(self.device, &options);
    self.giving = new_stream(self.device);
    self.wanting = stalled_stream(self.device);
    spoilt = 0;
    CHECK_EQ(pthread_create(&thread, NULL, leave_a_hole, &self), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    gm_status status = want(&self, &block);
    CHECK_EQ(stats_of(self.pool).inserted_waits, 0);
    CHECK_EQ(stats_of(self.pool).aliased_bytes, 0);
    CHECK_EQ(violations(self.device), 0);
    if (status == GM_OK) { /* the device could say that all threads are done */
        gm_pool_free(block);
    }
    close_scene(&self);
}

/* ---- failures ---------------------------------------------------------------------- */

/* Fails the nth call of a kind, once or for ever; was there one? */
static bool
fail_in_borrow(gm_device_call call, uint64_t nth, bool for_ever)
{
    scene self;
    gm_block *block = NULL;
    gm_fault_plan plan = {
        .call = (int)call, .nth = nth, .for_ever = for_ever, .status = GM_DEVICE_ERROR};
    open_scene_on(&self, behind_faults(small_device(true)), GM_CROSS_STREAM_WAIT);
    watch_reports();
    gm_fault_arm(self.device, &plan);
    gm_status status = want(&self, &block);
    bool failed = gm_fault_injected(self.device) != 0;
    gm_fault_arm(self.device, NULL);
    CHECK_POOL(self.pool);
    CHECK_EQ(stats_of(self.pool).quarantined, 0);
    if (status != GM_OK) {
        CHECK(failed && block == NULL);
        CHECK_EQ(stats_of(self.pool).aliased_bytes, 0);
        CHECK_EQ(stats_of(self.pool).zombies, 0);
        CHECK_EQ(stats_of(self.pool).cached_bytes, 4 * MIB);
        CHECK_OK(want(&self, &block)); /* another try succeeds */
    }
    write_later(block, NEW, self.wanting);
    let_run(self.device, self.wanting);
    let_run(self.device, self.giving);
    CHECK(holds(gm_block_address(block), 6 * MIB, NEW));
    CHECK_EQ(violations(self.device), 0);
    gm_pool_free(block);
    gm_set_report_hook(NULL);
    close_scene(&self);
    return failed;
}

static void
a_call_that_fails_leaves_everything_as_it_was(void)
{
    static const gm_device_call calls[] = {GM_CALL_STREAM_WAIT,    GM_CALL_MAP,
                                           GM_CALL_GRANT,          GM_CALL_PAGE_CREATE,
                                           GM_CALL_EVENT_RECORD,   GM_CALL_EVENT_CREATE,
                                           GM_CALL_ADDRESS_RESERVE};
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        for (int for_ever = 0; for_ever < 2; for_ever++) {
            uint64_t nth = 1;
            while (nth < 200 && fail_in_borrow(calls[i], nth, for_ever != 0)) {
                nth++;
            }
            CHECK(nth > 1 && nth < 200);
        }
    }
}

/* The checker would have known. */
static gm_status
forget_to_wait(gm_device *self, gm_stream stream, gm_event event)
{
    (void)self;
    (void)stream;
    (void)event;
    return GM_OK;
}

static void
a_wait_that_is_left_out_is_reported(void)
{
    scene self;
    gm_block *block = NULL;
    open_scene(&self, GM_CROSS_STREAM_WAIT, true);
    const gm_device_ops *ops = self.device->ops;
    gm_device_ops forgetful = *ops;
    forgetful.stream_wait = forget_to_wait;
    self.device->ops = &forgetful;
    CHECK_OK(want(&self, &block));
    self.device->ops = ops;
    CHECK(violations(self.device) != 0);
    gm_pool_free(block);
    close_scene(&self);
}

/* ---- threads ----------------------------------------------------------------------- */

enum {
    THREADS = 4,
    ROUNDS = 400
};

typedef struct worker {
    gm_pool *pool;
    gm_stream stream;
    unsigned seed;
    size_t failures;
} worker;

/* Blocks of up to half of the device, one at a time, on a stream of its own. */
static void *
work(void *argument)
{
    worker *self = argument;
    for (int round = 0; round < ROUNDS; round++) {
        size_t size = (1 + (size_t)rand_r(&self->seed) % 64) * PAGE;
        gm_block *block = NULL;
        gm_status status = allocate(self->pool, size, self->stream, &block, NULL);
        if (status != GM_OK) {
            CHECK_STATUS(status, GM_OUT_OF_MEMORY);
            self->failures++;
            continue;
        }
        use_and_free(block, (unsigned char)(1 + rand_r(&self->seed) % 250),
                     self->stream);
    }
    return NULL;
}

static void
threads_borrow_from_each_other(void)
{
    gm_pool_options options = usual_options();
    options.cross_stream = GM_CROSS_STREAM_WAIT;
    gm_device *device = small_device(true);
    gm_pool *pool = open_pool(device, &options);
    pthread_t ids[THREADS];
    worker workers[THREADS];
    spoilt = 0;
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] =
            (worker){.pool = pool, .stream = new_stream(device), .seed = 7 + i};
        CHECK_EQ(pthread_create(&ids[i], NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        CHECK_EQ(pthread_join(ids[i], NULL), 0);
        CHECK(workers[i].failures < ROUNDS);
    }
    CHECK_EQ(spoilt, 0);
    CHECK_EQ(violations(device), 0);
    close_pool(pool);
}

static const gm_test tests[] = {
    {"undone pages come behind a wait", undone_pages_come_behind_a_wait},
    {"only whoever asked for waits gets them", only_whoever_asked_for_waits_gets_them},
    {"without aliasing the work must end", without_aliasing_the_work_must_end},
    {"what can grow waits for nobody", what_can_grow_waits_for_nobody},
    {"several streams give", several_streams_give},
    {"pages go round", pages_go_round},
    {"a stable arena gives nothing", a_stable_arena_gives_nothing},
    {"a stable arena may borrow", a_stable_arena_may_borrow},
    {"nobody gives during a capture", nobody_gives_during_a_capture},
    {"another thread's own stream gives nothing",
     another_threads_own_stream_gives_nothing},
    {"a call that fails leaves everything as it was",
     a_call_that_fails_leaves_everything_as_it_was},
    {"a wait that is left out is reported", a_wait_that_is_left_out_is_reported},
    {"threads borrow from each other", threads_borrow_from_each_other},
};

GM_TEST_MAIN(tests)
