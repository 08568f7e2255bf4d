/* test_checker.c - pools over checked devices: whatever a pool does on its own, it hands
 * memory on along edges; a user who leaves one out is reported.
 */
#include <pthread.h>

#include "device/checker_device.h"
#include "device/handles.h"
#include "pool_kinds.h"

/* ---- devices --------------------------------------------------------------------- */

typedef struct kind {
    const char *name;
    bool sim;
    bool paging;
    uint64_t lag;
    gm_cross_stream cross_stream;
    gm_steal_mode steal;
} kind;

static const kind kinds[] = {
    {"host", false, true, 0, GM_CROSS_STREAM_DONE, GM_STEAL_NEVER},
    {"host, segments", false, false, 0, GM_CROSS_STREAM_DONE, GM_STEAL_NEVER},
    {"host, waits", false, true, 0, GM_CROSS_STREAM_WAIT, GM_STEAL_RATIO},
    {"host, steals", false, true, 0, GM_CROSS_STREAM_DONE, GM_STEAL_ALWAYS},
    {"sim", true, true, 0, GM_CROSS_STREAM_DONE, GM_STEAL_NEVER},
    {"sim, lag", true, true, 50, GM_CROSS_STREAM_DONE, GM_STEAL_NEVER},
    {"sim, lag, segments", true, false, 50, GM_CROSS_STREAM_DONE, GM_STEAL_NEVER},
    {"sim, lag, waits", true, true, 50, GM_CROSS_STREAM_WAIT, GM_STEAL_ALWAYS},
    {"sim, lag, never", true, true, 50, GM_CROSS_STREAM_NEVER, GM_STEAL_RATIO},
    {"sim, lag, steals", true, true, 50, GM_CROSS_STREAM_DONE, GM_STEAL_ALWAYS},
};

#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static gm_pool *
checked_pool(const kind *self, size_t capacity)
{
    gm_host_options host = {.capacity = capacity,
                            .page_size = PAGE,
                            .paging = true,
                            .aliasing = true,
                            .checked = true};
    gm_sim_options sim = {.capacity = capacity,
                          .page_size = PAGE,
                          .paging = true,
                          .aliasing = true,
                          .lag = self->lag,
                          .checked = true};
    gm_pool_options options = usual_options();
    options.paging = self->paging;
    options.cross_stream = self->cross_stream;
    options.steal = self->steal;
    return open_pool(self->sim ? open_sim(&sim) : open_host(&host), &options);
}

static void
check_clean(gm_pool *pool)
{
    char text[2048];
    if (gm_device_violations(gm_pool_device(pool), text, sizeof(text)) != 0) {
        check_fail(__FILE__, __LINE__, text);
    }
}

static void
tick(gm_pool *pool)
{
    gm_device *device = gm_pool_device(pool);
    if (device->info.kind == GM_DEVICE_SIM) {
        gm_sim_tick(device);
    }
}

/* Work on the stream uses the block; the pool does not know. */
static void
work(const gm_block *block, gm_stream stream)
{
    gm_device *device = gm_pool_device(gm_block_pool(block));
    device->ops->note_use(device, gm_block_address(block), gm_block_size(block),
                          device->ops->stream_identity(device, stream));
}

/* ---- one edge at a time ---------------------------------------------------------- */

/* Runs a program with and without what it is about; only the second one is reported, by
 * this check: NULL means the one of memory that goes. */
static void
with_and_without(void (*program)(gm_pool *pool, gm_stream other, bool ordered),
                 const char *check)
{
    for (size_t i = 0; i < KINDS; i++) {
        for (int ordered = 0; ordered < 2; ordered++) {
            gm_pool *pool = checked_pool(&kinds[i], 8 * MIB);
            gm_device *device = gm_device_retain(gm_pool_device(pool));
            gm_stream other = new_stream(device);
            char text[2048];
            program(pool, other, ordered != 0);
            CHECK_EQ(gm_device_violations(device, text, sizeof(text)) == 0,
                     ordered != 0);
            const char *going = kinds[i].paging ? "unmap" : "segment_destroy";
            const char *wanted = check != NULL ? check : going;
            CHECK(ordered || strncmp(text, wanted, strlen(wanted)) == 0);
            if (device->info.kind == GM_DEVICE_SIM) {
                gm_sim_set_lag(device, 0);
                for (int t = 0; t < 200; t++) {
                    gm_sim_tick(device);
                }
            }
            close_pool(pool);
            gm_device_release(device);
        }
    }
}

/* The block is used on a second stream, which is recorded or not. */
static void
record_program(gm_pool *pool, gm_stream other, bool ordered)
{
    gm_block *block = take(pool, 3 * PAGE, 0);
    work(block, other);
    if (ordered) {
        CHECK_OK(gm_pool_record_stream(block, other));
    }
    gm_pool_free(block);
    gm_pool_free(take(pool, 3 * PAGE, 0));
}

static void
a_recorded_stream_is_waited_for(void)
{
    with_and_without(record_program, "block");
}

/* As above, and the user orders the streams itself. */
static void
event_program(gm_pool *pool, gm_stream other, bool ordered)
{
    gm_device *device = gm_pool_device(pool);
    gm_event event;
    gm_block *block = take(pool, 3 * PAGE, 0);
    CHECK_OK(device->ops->event_create(device, &event));
    work(block, other);
    CHECK_OK(device->ops->event_record(device, event, other));
    if (ordered) {
        CHECK_OK(device->ops->stream_wait(device, 0, event));
    }
    gm_pool_free(block);
    gm_pool_free(take(pool, 3 * PAGE, 0));
    CHECK_OK(device->ops->event_destroy(device, event));
}

static void
a_wait_of_the_user_is_an_edge(void)
{
    with_and_without(event_program, "block");
}

/* Work that is queued after the free, on memory that goes back to the device. */
static void
stale_program(gm_pool *pool, gm_stream other, bool ordered)
{
    gm_device *device = gm_pool_device(pool);
    gm_block *block = take(pool, 3 * MIB, 0);
    gm_devptr address = gm_block_address(block);
    gm_pool_free(block);
    device->ops->note_use(device, address, PAGE,
                          device->ops->stream_identity(device, other));
    if (ordered) {
        CHECK_OK(device->ops->stream_synchronize(device, other, UINT64_MAX));
    }
    CHECK_OK(device->ops->stream_synchronize(device, 0, UINT64_MAX));
    (void)trim_all(pool);
    for (int i = 0; i < 60; i++) {
        tick(pool);
    }
    (void)trim_all(pool);
    CHECK_EQ(reserved(pool), 0);
}

static void
work_after_a_free_keeps_its_memory_from_going(void)
{
    with_and_without(stale_program, NULL);
}

/* A stream that retires leaves uses on its own memory and on that of others. */
static void
a_stream_that_retires_is_marked_last(void)
{
    for (size_t i = 0; i < KINDS; i++) {
        gm_pool *pool = checked_pool(&kinds[i], 8 * MIB);
        gm_device *device = gm_pool_device(pool);
        for (int round = 0; round < 30; round++) {
            gm_stream gone = new_stream(device);
            gm_block *own = take(pool, MIB, gone), *lent = take(pool, MIB, 0);
            CHECK_OK(gm_pool_record_stream(lent, gone));
            CHECK_OK(gm_pool_record_stream(own, 0));
            work(own, gone);
            work(lent, gone);
            gm_pool_stream_retired(pool, gone);
            CHECK_OK(device->ops->stream_destroy(device, gone));
            gm_pool_free(own);
            gm_pool_free(lent);
            for (int t = 0; t < 60; t++) {
                tick(pool);
            }
            gm_pool_poll(pool);
        }
        gm_pool_close(pool, UINT64_MAX);
        check_clean(pool);
        close_pool(pool);
    }
}

/* ---- random programs ------------------------------------------------------------- */

enum {
    LIVE = 40,
    STREAMS = 4
};

typedef struct program {
    gm_pool *pool;
    uint32_t random;
    gm_stream streams[STREAMS];
    gm_block *live[LIVE];
} program;

static size_t
below(program *self, size_t limit)
{
    self->random = self->random * 1664525u + 1013904223u;
    return (size_t)(self->random >> 8) % limit;
}

static gm_stream
any_stream(program *self)
{
    return self->streams[below(self, STREAMS)];
}

static void
replace_stream(program *self)
{
    gm_device *device = gm_pool_device(self->pool);
    gm_stream *stream = &self->streams[2 + below(self, STREAMS - 2)];
    gm_pool_stream_retired(self->pool, *stream);
    CHECK_OK(device->ops->stream_destroy(device, *stream));
    *stream = new_stream(device);
}

/* A stream that records the block and uses it, in this order or the other. */
static void
lend(program *self, gm_block *block)
{
    gm_stream stream = any_stream(self);
    bool first = below(self, 2) == 0 && stream != GM_STREAM_PER_THREAD;
    if (first) {
        CHECK_OK(gm_pool_record_stream(block, stream));
    }
    work(block, stream);
    if (!first) {
        CHECK_OK(gm_pool_record_stream(block, stream));
    }
}

static void
make_step(program *self)
{
    gm_block **place = &self->live[below(self, LIVE)];
    size_t what = below(self, 100);
    gm_trim_request request = {.target = what == 0 ? 0 : MIB,
                               .timeout_ns = below(self, 2) * SECOND};
    gm_trim_report report;
    tick(self->pool);
    if (*place == NULL) {
        size_t size =
            below(self, 3) == 0 ? 1 + below(self, 20 * PAGE) : 1 + below(self, 4000);
        gm_status status = allocate(self->pool, size, any_stream(self), place, NULL);
        CHECK(status == GM_OK || status == GM_OUT_OF_MEMORY);
    }
    else if (what < 30) {
        lend(self, *place);
    }
    else if (what < 96) {
        gm_pool_free(*place);
        *place = NULL;
    }
    else if (what < 98) {
        CHECK_OK(gm_pool_trim(self->pool, &request, &report));
    }
    else if (what < 99) {
        replace_stream(self);
    }
    else {
        gm_pool_poll(self->pool);
    }
}

static void
free_all(program *self)
{
    for (size_t i = 0; i < LIVE; i++) {
        gm_pool_free(self->live[i]);
        self->live[i] = NULL;
    }
}

static void
random_programs_are_ordered(void)
{
    for (size_t i = 0; i < KINDS; i++) {
        for (uint32_t seed = 1; seed <= 6; seed++) {
            gm_pool *pool = checked_pool(&kinds[i], 16 * MIB);
            gm_device *device = gm_pool_device(pool);
            program self = {.pool = pool,
                            .random = seed,
                            .streams = {0, GM_STREAM_PER_THREAD, new_stream(device),
                                        new_stream(device)}};
            for (int step = 0; step < 3000; step++) {
                make_step(&self);
            }
            free_all(&self);
            check_clean(pool);
            gm_pool_close(pool, UINT64_MAX);
            check_clean(pool);
            close_pool(pool);
        }
    }
}

/* ---- threads --------------------------------------------------------------------- */

enum {
    THREADS = 4
};

static _Atomic(gm_block *) mailbox[THREADS];

/* Each thread runs a program on streams of its own, and frees blocks of its neighbour. */
static void *
run_thread(void *argument)
{
    program *self = argument;
    for (int step = 0; step < 2000; step++) {
        size_t at = below(self, LIVE);
        if (step % 5 == 0 && self->live[at] != NULL) {
            _Atomic(gm_block *) *box = &mailbox[below(self, THREADS)];
            self->live[at] = atomic_exchange(box, self->live[at]);
        }
        else {
            make_step(self);
        }
    }
    free_all(self);
    return NULL;
}

static void
threads_that_free_for_each_other_are_ordered(void)
{
    for (size_t i = 0; i < KINDS; i++) {
        gm_pool *pool = checked_pool(&kinds[i], 32 * MIB);
        gm_device *device = gm_pool_device(pool);
        pthread_t threads[THREADS];
        static program programs[THREADS];
        for (uint32_t n = 0; n < THREADS; n++) {
            programs[n] =
                (program){.pool = pool,
                          .random = n + 1,
                          .streams = {GM_STREAM_PER_THREAD, GM_STREAM_PER_THREAD,
                                      new_stream(device), new_stream(device)}};
            CHECK_EQ(pthread_create(&threads[n], NULL, run_thread, &programs[n]), 0);
        }
        for (size_t n = 0; n < THREADS; n++) {
            CHECK_EQ(pthread_join(threads[n], NULL), 0);
        }
        for (size_t n = 0; n < THREADS; n++) {
            gm_pool_free(atomic_exchange(&mailbox[n], NULL));
        }
        check_clean(pool);
        gm_pool_close(pool, UINT64_MAX);
        check_clean(pool);
        close_pool(pool);
    }
}

/* ---- what is told ---------------------------------------------------------------- */

/* Only a pool over a checked device tells it anything, also behind faults. */
static void
a_pool_behind_faults_is_checked(void)
{
    gm_host_options options = {
        .capacity = MIB, .page_size = PAGE, .paging = true, .checked = true};
    gm_pool *pool = pool_on(behind_faults(open_host(&options)), true);
    gm_device *device = gm_pool_device(pool);
    gm_block *block = take(pool, 512, 0);
    work(block, new_stream(device));
    gm_pool_free(block);
    gm_pool_free(take(pool, 512, 0));
    CHECK_EQ(gm_device_violations(device, NULL, 0), 1);
    close_pool(pool);
}

static const gm_test tests[] = {
    {"a recorded stream is waited for", a_recorded_stream_is_waited_for},
    {"a wait of the user is an edge", a_wait_of_the_user_is_an_edge},
    {"work after a free keeps its memory from going",
     work_after_a_free_keeps_its_memory_from_going},
    {"a stream that retires is marked last", a_stream_that_retires_is_marked_last},
    {"random programs are ordered", random_programs_are_ordered},
    {"threads that free for each other are ordered",
     threads_that_free_for_each_other_are_ordered},
    {"a pool behind faults is checked", a_pool_behind_faults_is_checked},
};

GM_TEST_MAIN(tests)
