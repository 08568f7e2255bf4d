/* test_device_checker_model.c - the checker against a model that forgets nothing: random
 * programs, each step judged by whether one operation reaches another along edges. And
 * its table of keys, and what it does when host memory is short.
 */
#include "checker_scene.h"
#include "device/key_map.h"

/* ---- failing allocations: the linker sends them here (--wrap, see the Makefile) ---- */

void *
__real_calloc(size_t count, size_t size);
void *
__real_realloc(void *memory, size_t size);
void *
__wrap_calloc(size_t count, size_t size);
void *
__wrap_realloc(void *memory, size_t size);

static uint64_t fail_at; /* 1: the next allocation and all after it; 0: none fails */

static bool
strikes(void)
{
    fail_at -= fail_at > 1;
    return fail_at == 1;
}

void *
__wrap_calloc(size_t count, size_t size)
{
    return strikes() ? NULL : __real_calloc(count, size);
}

void *
__wrap_realloc(void *memory, size_t size)
{
    return strikes() ? NULL : __real_realloc(memory, size);
}

/* ---- the model ------------------------------------------------------------------- */

enum {
    STREAMS = 3,
    EVENTS = 3,
    NODES = 256, /* operations of one program */
    WORDS = NODES / 64,
    GRANULES = 8
};

/* The operations that come before one, itself among them. */
typedef struct past {
    uint64_t words[WORDS];
} past;

/* A use of granules [begin, end) of the page, through address `via`. */
typedef struct model_use {
    size_t node;
    size_t begin, end;
    gm_devptr via;
} model_use;

typedef struct model {
    past streams[STREAMS]; /* what comes before the next operation there */
    past events[EVENTS];
    past host;
    size_t nodes;
    model_use uses[NODES];
    size_t use_count;
} model;

static void
join(past *into, const past *from)
{
    for (size_t i = 0; i < WORDS; i++) {
        into->words[i] |= from->words[i];
    }
}

static bool
holds(const past *self, size_t node)
{
    return (self->words[node / 64] >> node % 64 & 1) != 0;
}

/* A use on the stream; all that the host knows to be finished comes before it. */
static void
model_add_use(model *self, size_t stream, model_use use)
{
    use.node = self->nodes++;
    join(&self->streams[stream], &self->host);
    self->streams[stream].words[use.node / 64] |= UINT64_C(1) << use.node % 64;
    self->uses[self->use_count++] = use;
}

/* Does a new block break an order? */
static bool
model_block_breaks(const model *self, size_t stream, const model_use *block)
{
    for (size_t i = 0; i < self->use_count; i++) {
        const model_use *use = &self->uses[i];
        if (use->begin < block->end && block->begin < use->end &&
            !holds(&self->streams[stream], use->node) &&
            !holds(&self->host, use->node)) {
            return true;
        }
    }
    return false;
}

static bool
model_unmap_breaks(const model *self, gm_devptr via)
{
    for (size_t i = 0; i < self->use_count; i++) {
        if (self->uses[i].via == via && !holds(&self->host, self->uses[i].node)) {
            return true;
        }
    }
    return false;
}

/* ---- random programs ------------------------------------------------------------- */

static uint32_t random_state;

static size_t
random_below(size_t limit)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (size_t)(random_state >> 8) % limit;
}

/* Of the steps that would break an order few are made: the programs are to be long. */
#define FEW 300

/* A use or a block; returns whether the model finds an order broken. */
static bool
step_use(scene *self, model *truth, const gm_stream *streams, bool begins)
{
    size_t stream = random_below(STREAMS);
    size_t begin = random_below(GRANULES);
    model_use use = {.begin = begin,
                     .end = begin + 1 + random_below(GRANULES - begin),
                     .via = random_below(3) == 0 ? self->b : self->a};
    bool broken = begins && model_block_breaks(truth, stream, &use);
    if (broken && random_below(FEW) != 0) {
        broken = begins = false;
    }
    gm_devptr address = use.via + 512 * begin;
    size_t size = 512 * (use.end - begin);
    if (begins) {
        block(self, address, size, streams[stream]);
    }
    else {
        use_bytes(self, address, size, streams[stream]);
    }
    model_add_use(truth, stream, use);
    return broken;
}

static bool
step_unmap(scene *self, const model *truth)
{
    gm_devptr via = random_below(2) == 0 ? self->b : self->a;
    bool broken = model_unmap_breaks(truth, via);
    if (broken && random_below(FEW) != 0) {
        return false;
    }
    CHECK_OK(self->ops->unmap(self->device, via, PAGE));
    CHECK_OK(self->ops->map(self->device, via, self->one));
    return broken;
}

static void
step_edge(scene *self, model *truth, const gm_stream *streams, const gm_event *events)
{
    size_t stream = random_below(STREAMS), event = random_below(EVENTS);
    size_t what = random_below(12);
    if (what < 5) {
        record(self, events[event], streams[stream]);
        truth->events[event] = truth->streams[stream];
    }
    else if (what < 10) {
        wait_for(self, streams[stream], events[event]);
        join(&truth->streams[stream], &truth->events[event]);
    }
    else if (what < 11) {
        CHECK_OK(self->ops->event_query(self->device, events[event]));
        join(&truth->host, &truth->events[event]);
    }
    else {
        CHECK_OK(self->ops->stream_synchronize(self->device, streams[stream], 0));
        join(&truth->host, &truth->streams[stream]);
    }
}

/* Returns the steps of a program up to the first broken order, or all of them. */
static size_t
run_program(uint32_t seed, bool *was_broken)
{
    static model truth;
    scene self;
    size_t steps = 0;
    bool broken = false;
    memset(&truth, 0, sizeof(truth));
    random_state = seed;
    make_scene(&self, checked_device(1));
    gm_event third;
    CHECK_OK(self.ops->event_create(self.device, &third));
    const gm_stream streams[STREAMS] = {self.s, self.t, self.u};
    const gm_event events[EVENTS] = {self.e, self.f, third};
    while (truth.nodes < NODES && !broken) {
        size_t what = random_below(16);
        if (what < 6) {
            broken = step_use(&self, &truth, streams, what < 3);
        }
        else if (what == 6) {
            broken = step_unmap(&self, &truth);
        }
        else {
            step_edge(&self, &truth, streams, events);
        }
        steps++;
        if ((violations_of(&self) != 0) != broken) {
            fprintf(stderr, "seed %" PRIu32 ", step %zu\n", seed, steps);
            CHECK_EQ(violations_of(&self) != 0, broken);
        }
    }
    CHECK_OK(self.ops->event_destroy(self.device, third));
    end_scene(&self);
    *was_broken = broken;
    return steps;
}

static void
test_random_programs(void)
{
    size_t broken = 0, steps = 0, programs = 3000;
    for (uint32_t seed = 1; seed <= programs; seed++) {
        bool was_broken;
        steps += run_program(seed, &was_broken);
        broken += was_broken;
    }
    CHECK(broken > programs / 10 && broken < programs - programs / 10);
    CHECK(steps > 100 * programs);
}

/* ---- the table of keys ----------------------------------------------------------- */

static void
test_key_map(void)
{
    static bool there[300];
    static char values[300];
    gm_key_map map = {0};
    size_t count = 0;
    random_state = 7;
    CHECK(gm_key_map_find(&map, 0) == NULL && gm_key_map_remove(&map, 0) == NULL);
    for (int i = 0; i < 20000; i++) {
        size_t number = random_below(300);
        uint64_t key = number << (number % 3 * 20); /* many share their low bits */
        void *expected = there[number] ? &values[number] : NULL;
        CHECK(gm_key_map_find(&map, key) == expected);
        if (there[number]) {
            CHECK(gm_key_map_remove(&map, key) == expected);
            CHECK(gm_key_map_remove(&map, key) == NULL);
            count--;
        }
        else if (random_below(3) != 0) {
            CHECK_OK(gm_key_map_insert(&map, key, &values[number]));
            count++;
        }
        else {
            continue;
        }
        there[number] = !there[number];
        CHECK_EQ(map.count, count);
    }
    gm_key_map_destroy(&map);
}

/* ---- no host memory -------------------------------------------------------------- */

/* Whatever allocation fails first, a device is refused, or says once that its checker
 * sees nothing more; the device itself works on. */
static void
test_no_host_memory(void)
{
    uint64_t refused = 0, blind = 0, whole = 0;
    for (uint64_t nth = 1; whole == 0; nth++) {
        gm_sim_options options = {
            .capacity = MIB, .page_size = PAGE, .paging = true, .checked = true};
        gm_device *device = NULL;
        gm_devptr range = 0;
        gm_page page = 0;
        gm_event event = 0;
        char text[1000];
        fail_at = nth + 1;
        if (gm_sim_create(&options, &device) != GM_OK) {
            fail_at = 0;
            refused++;
            continue;
        }
        const gm_device_ops *ops = device->ops;
        if (ops->event_create(device, &event) == GM_OK &&
            ops->address_reserve(device, 2 * MIB, &range) == GM_OK &&
            ops->page_create(device, &page) == GM_OK) {
            CHECK_OK(ops->map(device, range, page));
            for (size_t i = 0; i < 20; i++) {
                ops->note_use(device, range + 1024 * i, 512, i << 20);
            }
            CHECK_OK(ops->event_record(device, event, 0));
            CHECK_OK(ops->event_query(device, event));
            CHECK_OK(ops->stream_wait(device, 0, event));
            CHECK_OK(ops->stream_synchronize(device, 0, 0));
            CHECK_OK(ops->threads_synchronize(device, 0));
            bool failed = fail_at == 1;
            fail_at = 0;
            uint64_t violations = gm_device_violations(device, text, sizeof(text));
            CHECK_EQ(violations, failed);
            CHECK_EQ(strstr(text, "no host memory") != NULL, failed);
            ops->note_block(device, range, PAGE, 1);
            blind += failed;
            whole += !failed;
            CHECK_EQ(gm_device_violations(device, NULL, 0), failed ? 1 : 19);
        }
        fail_at = 0;
        gm_device_release(device);
    }
    CHECK(refused > 0 && blind > 5);
}

static const gm_test tests[] = {
    {"random_programs", test_random_programs},
    {"key_map", test_key_map},
    {"no_host_memory", test_no_host_memory},
};

GM_TEST_MAIN(tests)
