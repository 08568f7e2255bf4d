/* test_ladder_rungs.c - each rung of the ladder alone: a situation that nothing but this
 * rung resolves. With it the request is served, and the counters show that this rung and
 * no other did it; without it the same request fails.
 */
#include <pthread.h>

#include "device/handles.h"
#include "steal_kinds.h"

/* What the rungs leave behind. */
typedef struct trail {
    uint64_t deferred;
    uint64_t stolen; /* bytes */
    uint64_t aliased;
    uint64_t flushed; /* bytes */
    uint64_t inserted_waits;
    uint64_t host_waits;
} trail;

/* A pool, what it is asked for, and what else the situation needs. */
typedef struct scene {
    gm_device *device;
    gm_pool *pool;
    gm_pool *second;  /* another pool of the device, or NULL */
    gm_stream stream; /* that asks */
    gm_stream other;
    gm_block *held[3];
    size_t wanted;
} scene;

static void
open_scene(scene *self, const gm_pool_options *options)
{
    *self = (scene){.device = host_with(8 * MIB, true), .wanted = 6 * MIB};
    self->pool = open_pool(self->device, options);
    self->stream = new_stream(self->device);
    self->other = new_stream(self->device);
}

static trail
trail_of(gm_pool *pool)
{
    gm_pool_stats stats = stats_of(pool);
    return (trail){.deferred = stats.deferred_frees,
                   .stolen = stats.stolen_bytes,
                   .aliased = stats.aliased_bytes,
                   .flushed = stats.flushed_bytes,
                   .inserted_waits = stats.inserted_waits,
                   .host_waits = stats.num_sync_all_streams};
}

static void
check_trail(gm_pool *pool, const trail *before, trail expected)
{
    trail now = trail_of(pool);
    CHECK_EQ(now.deferred - before->deferred, expected.deferred);
    CHECK_EQ(now.stolen - before->stolen, expected.stolen);
    CHECK_EQ(now.aliased - before->aliased, expected.aliased);
    CHECK_EQ(now.flushed - before->flushed, expected.flushed);
    CHECK_EQ(now.inserted_waits - before->inserted_waits, expected.inserted_waits);
    CHECK_EQ(now.host_waits - before->host_waits, expected.host_waits);
}

static void
close_scene(scene *self)
{
    CHECK_POOL(self->pool);
    let_run(self->device, self->other);
    let_run(self->device, self->stream);
    for (size_t i = 0; i < 3; i++) {
        gm_pool_free(self->held[i]);
    }
    if (self->second != NULL) {
        gm_pool_release(self->second);
    }
    close_pool(self->pool);
}

/* Asks, checks what came of it and closes the scene. */
static void
finish(scene *self, bool served, trail expected)
{
    trail before = trail_of(self->pool);
    gm_status status =
        allocate(self->pool, self->wanted, self->stream, &self->held[2], NULL);
    CHECK_STATUS(status, served ? GM_OK : GM_OUT_OF_MEMORY);
    check_trail(self->pool, &before, served ? expected : (trail){0});
    close_scene(self);
}

/* ---- what is finished -------------------------------------------------------------- */

static void
work_that_is_done(void)
{
    for (int on = 0; on < 2; on++) {
        scene self;
        gm_pool_options options = usual_options();
        options.paging = false;
        open_scene(&self, &options);
        CHECK_OK(gm_host_stall(self.device, self.other));
        gm_block *block = take(self.pool, 6 * MIB, self.stream);
        CHECK_OK(gm_pool_record_stream(block, self.other));
        write_later(block, 1, self.other);
        gm_pool_free(block);
        if (on) {
            let_run(self.device, self.other);
        }
        finish(&self, on != 0, (trail){0});
    }
}

/* Holds a lane's lock until it is told to stop. */
typedef struct holder {
    gm_lane *lane;
    _Atomic int stage; /* 1: held, 2: shall stop */
} holder;

static void *
hold_lock(void *argument)
{
    holder *self = argument;
    gm_mutex_lock(&self->lane->lock);
    atomic_store(&self->stage, 1);
    while (atomic_load(&self->stage) != 2) {
    }
    gm_mutex_unlock(&self->lane->lock);
    return NULL;
}

static void
free_while_held(scene *self, gm_block *block)
{
    uint64_t identity = self->device->ops->stream_identity(self->device, self->stream);
    holder held = {.lane = gm_lanes_find(self->pool, identity, GM_ARENA_ELASTIC)};
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, hold_lock, &held), 0);
    while (atomic_load(&held.stage) != 1) {
    }
    gm_pool_free(block);
    atomic_store(&held.stage, 2);
    CHECK_EQ(pthread_join(thread, NULL), 0);
}

static void
deferred_frees(void)
{
    for (int on = 0; on < 2; on++) {
        scene self;
        gm_pool_options options = usual_options();
        open_scene(&self, &options);
        gm_block *again = NULL, *block = take(self.pool, 6 * MIB, self.stream);
        if (on) {
            free_while_held(&self, block);
        }
        else {
            self.held[0] = block;
        }
        /* Reading the counters drains the list as well: this asks before. */
        CHECK_STATUS(allocate(self.pool, 6 * MIB, self.stream, &again, NULL),
                     on ? GM_OK : GM_OUT_OF_MEMORY);
        CHECK_EQ(stats_of(self.pool).deferred_frees, (uint64_t)on);
        CHECK_EQ(stats_of(self.pool).num_alloc_retries, (uint64_t)!on);
        gm_pool_free(again);
        close_scene(&self);
    }
}

/* ---- what moves -------------------------------------------------------------------- */

/* The pages lie apart; without moves the place for the block cannot be filled. */
static void
a_forced_steal(void)
{
    for (int on = 0; on < 2; on++) {
        scene self;
        gm_pool_options options = usual_options();
        options.steal = GM_STEAL_NEVER;
        open_scene(&self, &options);
        gm_arena_kind kind = on ? GM_ARENA_ELASTIC : GM_ARENA_STABLE;
        gm_block *hole = take_kind(self.pool, 4 * MIB, self.stream, kind);
        self.held[0] = take_kind(self.pool, MIB, self.stream, kind);
        gm_pool_free(hole);
        gm_request request = {.size = 6 * MIB, .stream = self.stream, .kind = kind};
        trail before = trail_of(self.pool);
        CHECK_STATUS(gm_pool_alloc(self.pool, &request, &self.held[1], NULL),
                     on ? GM_OK : GM_OUT_OF_MEMORY);
        check_trail(self.pool, &before, (trail){.stolen = on ? 3 * MIB : 0});
        close_scene(&self);
    }
}

/* Idle memory of another stream. */
static void
idle_memory_of_other_streams(void)
{
    for (int paging = 0; paging < 2; paging++) {
        for (int on = 0; on < 2; on++) {
            scene self;
            gm_pool_options options = usual_options();
            options.paging = paging != 0;
            options.steal = GM_STEAL_NEVER;
            options.cross_stream = on ? GM_CROSS_STREAM_DONE : GM_CROSS_STREAM_NEVER;
            open_scene(&self, &options);
            gm_pool_free(take(self.pool, 4 * MIB, self.other));
            size_t moved = paging ? 2 * MIB : 0;
            if (!paging) {
                moved = stats_of(self.pool).cached_bytes; /* the whole segment */
            }
            finish(&self, on != 0, (trail){.flushed = moved});
        }
    }
}

/* A segment that is too short goes for one that is long enough. */
static void
own_idle_segments(void)
{
    for (int on = 0; on < 2; on++) {
        scene self;
        gm_pool_options options = usual_options();
        options.paging = false;
        options.cross_stream = GM_CROSS_STREAM_NEVER;
        open_scene(&self, &options);
        gm_block *block = take(self.pool, 4 * MIB, self.stream);
        size_t segment = reserved(self.pool);
        if (on) {
            gm_pool_free(block);
        }
        else {
            self.held[0] = block;
        }
        finish(&self, on != 0, (trail){.flushed = segment});
    }
}

/* ---- what waits -------------------------------------------------------------------- */

static void
an_inserted_wait_for_a_pending_free(void)
{
    for (int on = 0; on < 2; on++) {
        scene self;
        gm_pool_options options = usual_options();
        options.cross_stream = on ? GM_CROSS_STREAM_WAIT : GM_CROSS_STREAM_DONE;
        open_scene(&self, &options);
        CHECK_OK(gm_host_stall(self.device, self.other));
        gm_block *block = take(self.pool, 6 * MIB, self.stream);
        CHECK_OK(gm_pool_record_stream(block, self.other));
        write_later(block, 1, self.other);
        gm_pool_free(block);
        finish(&self, on != 0, (trail){.inserted_waits = 1});
    }
}

static void
an_inserted_wait_for_pages(void)
{
    for (int on = 0; on < 2; on++) {
        scene self;
        gm_pool_options options = usual_options();
        options.cross_stream = on ? GM_CROSS_STREAM_WAIT : GM_CROSS_STREAM_DONE;
        open_scene(&self, &options);
        CHECK_OK(gm_host_stall(self.device, self.other));
        gm_block *block = take(self.pool, 4 * MIB, self.other);
        write_later(block, 1, self.other);
        gm_pool_free(block);
        finish(&self, on != 0,
               (trail){.inserted_waits = 1, .stolen = 2 * MIB, .aliased = 2 * MIB});
    }
}

/* A device that is behind comes on while the host waits. */
static void
a_wait_of_the_host(void)
{
    for (int on = 0; on < 2; on++) {
        gm_sim_options sim = {
            .capacity = 8 * MIB, .page_size = PAGE, .paging = true, .lag = 1000};
        gm_pool_options options = usual_options();
        options.oom_wait_ns = on ? SECOND : 0;
        gm_device *device = open_sim(&sim);
        gm_pool *pool = open_pool(device, &options);
        gm_stream stream = new_stream(device), other = new_stream(device);
        gm_pool_free(take(pool, 4 * MIB, other));
        trail before = trail_of(pool);
        gm_block *block = NULL;
        CHECK_STATUS(allocate(pool, 6 * MIB, stream, &block, NULL),
                     on ? GM_OK : GM_OUT_OF_MEMORY);
        check_trail(pool, &before,
                    on ? (trail){.host_waits = 1, .flushed = 2 * MIB} : (trail){0});
        gm_pool_free(block);
        gm_pool_close(pool, SECOND);
        close_pool(pool);
    }
}

static void *
use_own_stream(void *argument)
{
    scene *self = argument;
    gm_block *block = take(self->pool, 4 * MIB, GM_STREAM_PER_THREAD);
    write_later(block, 1, GM_STREAM_PER_THREAD);
    gm_pool_free(block);
    return NULL;
}

/* Nobody has marked the stream of a thread that has ended: the device is asked. */
static void
an_answer_for_all_threads(void)
{
    for (int on = 0; on < 2; on++) {
        scene self;
        gm_pool_options options = usual_options();
        pthread_t thread;
        open_scene(&self, &options);
        gm_device_ops mute = *self.device->ops;
        const gm_device_ops *ops = self.device->ops;
        mute.threads_synchronize = NULL;
        CHECK_EQ(pthread_create(&thread, NULL, use_own_stream, &self), 0);
        CHECK_EQ(pthread_join(thread, NULL), 0);
        gm_block *block = NULL;
        trail before = trail_of(self.pool);
        self.device->ops = on ? ops : &mute;
        CHECK_STATUS(allocate(self.pool, 6 * MIB, self.stream, &block, NULL),
                     on ? GM_OK : GM_OUT_OF_MEMORY);
        self.device->ops = ops;
        check_trail(self.pool, &before, (trail){.flushed = on ? 2 * MIB : 0});
        gm_pool_free(block);
        close_scene(&self);
    }
}

/* ---- other pools -------------------------------------------------------------------- */

static void
idle_memory_of_other_pools(void)
{
    for (int paging = 0; paging < 2; paging++) {
        for (int on = 0; on < 2; on++) {
            scene self;
            gm_pool_options options = usual_options();
            open_scene(&self, &options);
            options.yields = on != 0;
            options.paging = paging != 0;
            self.second = open_pool(self.device, &options);
            gm_pool_free(take(self.second, 4 * MIB, 0));
            finish(&self, on != 0, (trail){0});
        }
    }
}

/* No more than is missing, and nothing if that would not do. */
static void
other_pools_give_what_is_missing(void)
{
    gm_device *device = host_with(8 * MIB, true);
    gm_pool_options options = usual_options();
    gm_pool *pool = open_pool(device, &options);
    gm_pool *giving = open_pool(device, &options);
    gm_block *held = take(giving, MIB, 0), *block = NULL;
    gm_pool_free(take(giving, 4 * MIB, 0));
    CHECK_STATUS(allocate(pool, 7 * MIB + PAGE, 0, &block, NULL), GM_OUT_OF_MEMORY);
    CHECK_EQ(reserved(giving), 5 * MIB);
    CHECK_EQ(stats_of(giving).yielded_bytes, 0);
    CHECK_OK(allocate(pool, 6 * MIB, 0, &block, NULL));
    CHECK_EQ(reserved(giving), 2 * MIB);
    CHECK_EQ(stats_of(giving).yielded_bytes, 3 * MIB);
    CHECK_EQ(stats_of(giving).flushes, 1);
    CHECK_EQ(stats_of(pool).flushes, 0);
    CHECK_EQ(stats_of(pool).yielded_bytes, 0);
    CHECK_POOL(pool);
    CHECK_POOL(giving);
    gm_pool_free(block);
    gm_pool_free(held);
    gm_pool_release(giving);
    close_pool(pool);
}

/* Another pool's memory lifts no limit; a pool of another device has none to give. */
static void
other_pools_are_asked_for_want_of_the_device_alone(void)
{
    gm_device *device = host_with(16 * MIB, true), *far = host_with(8 * MIB, true);
    gm_pool_options options = usual_options();
    gm_pool *beside = open_pool(device, &options), *away = open_pool(far, &options);
    options.limit = 5 * MIB;
    gm_pool *pool = open_pool(device, &options);
    gm_block *block = NULL;
    gm_pool_free(take(beside, 4 * MIB, 0));
    gm_pool_free(take(away, 4 * MIB, 0));
    CHECK_STATUS(allocate(pool, 6 * MIB, 0, &block, NULL), GM_OUT_OF_MEMORY);
    CHECK_EQ(reserved(beside), 4 * MIB);
    gm_pool_set_limit(pool, SIZE_MAX);
    CHECK_OK(allocate(pool, 14 * MIB, 0, &block, NULL));
    CHECK_EQ(reserved(beside), 2 * MIB);
    CHECK_EQ(reserved(away), 4 * MIB);
    gm_pool_free(block);
    gm_pool_release(beside);
    close_pool(pool);
    close_pool(away);
}

/* A capture forbids it to give anything back. */
static void
a_pool_that_captures_yields_nothing(void)
{
    gm_device *device = host_with(8 * MIB, true);
    gm_pool_options options = usual_options();
    gm_pool *pool = open_pool(device, &options);
    gm_pool *giving = open_pool(device, &options);
    gm_stream stream = new_stream(device);
    gm_block *block = NULL;
    gm_pool_free(take(giving, 4 * MIB, 0));
    CHECK_OK(gm_pool_capture_begin(giving, stream));
    CHECK_STATUS(allocate(pool, 6 * MIB, 0, &block, NULL), GM_OUT_OF_MEMORY);
    CHECK_EQ(reserved(giving), 4 * MIB);
    CHECK_OK(gm_pool_capture_end(giving, stream));
    CHECK_OK(allocate(pool, 6 * MIB, 0, &block, NULL));
    gm_pool_free(block);
    gm_pool_release(giving);
    close_pool(pool);
}

/* ---- the end ------------------------------------------------------------------------- */

enum {
    LIVE = 24,
    STEPS = 3000
};

static unsigned
draw(unsigned *seed, unsigned below)
{
    return (unsigned)rand_r(seed) % below;
}

/* With nothing changed in between, what failed fails again. */
static void
try_twice(gm_pool *pool, size_t size, gm_stream stream, gm_block **out)
{
    gm_block *block = NULL;
    gm_oom first, second;
    if (allocate(pool, size, stream, out, &first) == GM_OK) {
        return;
    }
    gm_pool_stats before = stats_of(pool);
    CHECK_STATUS(allocate(pool, size, stream, &block, &second), GM_OUT_OF_MEMORY);
    gm_pool_stats after = stats_of(pool);
    CHECK_EQ(first.reason, second.reason);
    CHECK_EQ(first.reserved, second.reserved);
    CHECK_EQ(first.largest_free, second.largest_free);
    CHECK_EQ(before.reserved_bytes.all.current, after.reserved_bytes.all.current);
    CHECK_EQ(before.maps, after.maps);
    CHECK_EQ(before.unmaps, after.unmaps);
}

static void
run_random(gm_pool_options options, unsigned seed)
{
    gm_device *device = host_with(8 * MIB, seed % 2 == 0);
    gm_pool *pool = open_pool(device, &options);
    gm_stream streams[3];
    gm_block *blocks[LIVE] = {NULL};
    size_t failures = 0;
    for (size_t i = 0; i < 3; i++) {
        streams[i] = i == 2 ? stalled_stream(device) : new_stream(device);
    }
    for (int step = 0; step < STEPS; step++) {
        unsigned at = draw(&seed, LIVE);
        gm_stream stream = streams[draw(&seed, 3)];
        if (blocks[at] != NULL) {
            if (draw(&seed, 3) == 0) {
                CHECK_OK(gm_pool_record_stream(blocks[at], stream));
            }
            gm_pool_free(blocks[at]);
            blocks[at] = NULL;
            continue;
        }
        size_t size = (1 + draw(&seed, 48)) * (draw(&seed, 2) == 0 ? PAGE : 512);
        try_twice(pool, size, stream, &blocks[at]);
        failures += blocks[at] == NULL;
        if (draw(&seed, 100) == 0) {
            let_run(device, streams[2]);
            CHECK_OK(gm_host_stall(device, streams[2]));
        }
    }
    CHECK(failures > STEPS / 100);
    for (size_t i = 0; i < LIVE; i++) {
        gm_pool_free(blocks[i]);
    }
    let_run(device, streams[2]);
    close_pool(pool);
}

static void
a_retry_with_nothing_changed_fails_again(void)
{
    for (unsigned seed = 1; seed <= 24; seed++) {
        gm_pool_options options = usual_options();
        options.paging = seed % 4 != 3;
        options.steal = (gm_steal_mode)(seed % 3);
        options.cross_stream = (gm_cross_stream)(seed / 3 % 3);
        printf("   seed %u\n", seed);
        run_random(options, seed);
    }
}

static const gm_test tests[] = {
    {"work that is done", work_that_is_done},
    {"deferred frees", deferred_frees},
    {"a forced steal", a_forced_steal},
    {"idle memory of other streams", idle_memory_of_other_streams},
    {"own idle segments", own_idle_segments},
    {"an inserted wait for a pending free", an_inserted_wait_for_a_pending_free},
    {"an inserted wait for pages", an_inserted_wait_for_pages},
    {"idle memory of other pools", idle_memory_of_other_pools},
    {"other pools give what is missing", other_pools_give_what_is_missing},
    {"other pools are asked for want of the device alone",
     other_pools_are_asked_for_want_of_the_device_alone},
    {"a pool that captures yields nothing", a_pool_that_captures_yields_nothing},
    {"a wait of the host", a_wait_of_the_host},
    {"an answer for all threads", an_answer_for_all_threads},
    {"a retry with nothing changed fails again",
     a_retry_with_nothing_changed_fails_again},
};

GM_TEST_MAIN(tests)
