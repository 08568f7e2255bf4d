/* test_random.c - random programs against an oracle.
 *
 * The oracle keeps for each stream the set of all operations that come before what is
 * queued there next, for each event the set that it stood for, and the set that the host
 * knows to be finished. From these it says of each call whether it must be punished, and
 * what the memory holds in the end. It shares no idea with the stand-in: no clocks, no
 * lanes, no queues.
 */
#include "scene.h"

#define BUFFERS 8
#define PAGED 6 /* buffers from here on are pages that are mapped at two addresses */
#define BUFFER_SIZE 700 /* several in one chunk */
#define STREAMS 6
#define BLOCKING 3 /* streams from here on are blocking ones */
#define LEGACY 5
#define EVENTS 5
#define STEPS 400 /* operations of one program at most */

typedef struct set {
    uint64_t words[(STEPS + 63) / 64];
} set;

typedef struct use {
    int step;
    int name;
    size_t begin, end; /* bytes of the buffer */
    bool writes;
} use;

typedef struct buffer {
    unsigned char *names[2]; /* addresses of the same memory; 1: NULL unless paged */
    CUmemGenericAllocationHandle page;
    unsigned char holds[BUFFER_SIZE]; /* 0: nobody knows */
    use uses[2 * STEPS];
    size_t use_count;
} buffer;

typedef struct program {
    uint64_t seed;
    int step;
    cudaStream_t streams[STREAMS];
    cudaEvent_t events[EVENTS];
    bool recorded[EVENTS];
    set before[STREAMS]; /* what comes before the next operation there */
    set legacy;          /* and before the last one on the legacy stream */
    set past;            /* what stood on blocking streams that are gone */
    set marks[EVENTS];
    set finished;
    buffer buffers[BUFFERS];
    unsigned punished, fine;
} program;

static uint64_t
random_number(program *p, uint64_t below)
{
    p->seed ^= p->seed << 13;
    p->seed ^= p->seed >> 7;
    p->seed ^= p->seed << 17;
    return p->seed % below;
}

static bool
holds(const set *s, int step)
{
    return (s->words[step / 64] >> (step % 64) & 1) != 0;
}

static void
join(set *into, const set *from)
{
    for (size_t i = 0; i < sizeof(into->words) / sizeof(into->words[0]); i++) {
        into->words[i] |= from->words[i];
    }
}

/* Anything is queued on the stream: the legacy one and the blocking ones wait for each
 * other. */
static void
touch_stream(program *p, size_t stream)
{
    if (stream == LEGACY) {
        for (size_t other = BLOCKING; other < LEGACY; other++) {
            join(&p->before[LEGACY], &p->before[other]);
        }
        join(&p->before[LEGACY], &p->past);
        p->legacy = p->before[LEGACY];
    }
    else if (stream >= BLOCKING) {
        join(&p->before[stream], &p->legacy);
    }
}

/* Is there a use that disturbs this one and that nothing orders before it? Through two
 * names of a page any two uses disturb each other. */
static bool
is_disturbed(const program *p, const buffer *b, size_t stream, const use *mine)
{
    for (size_t i = 0; i < b->use_count; i++) {
        const use *other = &b->uses[i];
        bool same_bytes = other->begin < mine->end && mine->begin < other->end;
        bool disturbs = other->name != mine->name ||
                        (same_bytes && (other->writes || mine->writes));
        if (disturbs && !holds(&p->before[stream], other->step) &&
            !holds(&p->finished, other->step)) {
            return true;
        }
    }
    return false;
}

/* Some bytes of the buffer, by one of its names. */
static use
choose_use(program *p, const buffer *b, bool writes)
{
    use mine = {.step = p->step, .writes = writes};
    mine.name = b->names[1] == NULL ? 0 : (int)random_number(p, 2);
    mine.begin = random_number(p, 3) == 0 ? random_number(p, BUFFER_SIZE) : 0;
    mine.end = random_number(p, 3) == 0
                   ? mine.begin + 1 + random_number(p, BUFFER_SIZE - mine.begin)
                   : BUFFER_SIZE;
    return mine;
}

static void
judge(program *p, int got, bool bad)
{
    if (got != (bad ? (int)cudaErrorIllegalState : 0)) {
        fprintf(stderr, "step %d: got %d, and it is %s\n", p->step, got,
                bad ? "wrong" : "right");
        check_fail(__FILE__, __LINE__, "the oracle agrees");
    }
    CHECK_EQ(fakecuda_violations(NULL, 0) > 0, bad);
    fakecuda_clear_violations();
    p->punished += bad;
    p->fine += !bad;
}

/* ---- steps -------------------------------------------------------------------------------------- */

static void
end_step(program *p, size_t stream)
{
    p->before[stream].words[p->step / 64] |= (uint64_t)1 << (p->step % 64);
    if (stream == LEGACY) {
        p->legacy = p->before[LEGACY];
    }
    p->step++;
}

static void
fill(program *p, size_t stream, buffer *b)
{
    unsigned char value = (unsigned char)(1 + random_number(p, 200));
    use mine = choose_use(p, b, true);
    size_t size = mine.end - mine.begin;
    touch_stream(p, stream);
    bool bad = is_disturbed(p, b, stream, &mine);
    judge(p,
          cudaMemsetAsync(b->names[mine.name] + mine.begin, value, size,
                          p->streams[stream]),
          bad);
    if (!bad) {
        b->uses[b->use_count++] = mine;
        memset(b->holds + mine.begin, value, size);
    }
    end_step(p, stream);
}

static void
copy(program *p, size_t stream, buffer *to, buffer *from)
{
    use mine = choose_use(p, to, true), source = choose_use(p, from, false);
    source.begin = mine.begin;
    source.end = mine.end;
    size_t size = mine.end - mine.begin;
    touch_stream(p, stream);
    bool bad =
        is_disturbed(p, to, stream, &mine) || is_disturbed(p, from, stream, &source);
    judge(p,
          cudaMemcpyAsync(to->names[mine.name] + mine.begin,
                          from->names[source.name] + mine.begin, size,
                          cudaMemcpyDeviceToDevice, p->streams[stream]),
          bad);
    if (!bad) {
        to->uses[to->use_count++] = mine;
        from->uses[from->use_count++] = source;
        memmove(to->holds + mine.begin, from->holds + mine.begin, size);
    }
    end_step(p, stream);
}

static void
record(program *p, size_t stream, size_t event)
{
    touch_stream(p, stream);
    OK(cudaEventRecord(p->events[event], p->streams[stream]));
    p->marks[event] = p->before[stream];
    p->recorded[event] = true;
}

static void
wait_for(program *p, size_t stream, size_t event)
{
    OK(cudaStreamWaitEvent(p->streams[stream], p->events[event], 0));
    if (p->recorded[event]) {
        touch_stream(p, stream);
        join(&p->before[stream], &p->marks[event]);
        if (stream == LEGACY) {
            p->legacy = p->before[LEGACY];
        }
    }
}

static void
learn(program *p, size_t stream, size_t event)
{
    if (random_number(p, 3) == 0) {
        touch_stream(p, stream == LEGACY ? LEGACY : 0);
        OK(cudaStreamSynchronize(p->streams[stream]));
        join(&p->finished, &p->before[stream]);
    }
    else if (random_number(p, 2) == 0) {
        OK(cudaEventSynchronize(p->events[event]));
        join(&p->finished, &p->marks[event]);
    }
    else {
        int error = cudaEventQuery(p->events[event]);
        CHECK(error == cudaSuccess || error == cudaErrorNotReady);
        if (error == cudaSuccess) {
            join(&p->finished, &p->marks[event]);
        }
    }
}

/* Does the host know that all uses by that name are finished? */
static bool
is_idle(const program *p, const buffer *b, int name)
{
    for (size_t i = 0; i < b->use_count; i++) {
        if (b->uses[i].name == name && !holds(&p->finished, b->uses[i].step)) {
            return false;
        }
    }
    return true;
}

static void
map_page(const buffer *b, int name)
{
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)b->names[name];
    CUmemAccessDesc desc = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK(cuMemMap(address, PAGE, 0, b->page, 0));
    OK(cuMemSetAccess(address, PAGE, &desc, 1));
}

/* A page goes from one of its addresses and comes back there: it is a new mapping. */
static void
map_again(program *p, buffer *b)
{
    int name = (int)random_number(p, 2);
    bool bad = !is_idle(p, b, name);
    judge(p, (int)cuMemUnmap((CUdeviceptr)(uintptr_t)b->names[name], PAGE), bad);
    if (!bad) {
        map_page(b, name);
    }
}

/* A buffer goes and another comes, most often at the same address. */
static void
replace(program *p, buffer *b)
{
    if (b->names[1] != NULL) {
        map_again(p, b);
        return;
    }
    bool bad = !is_idle(p, b, 0);
    judge(p, cudaFree(b->names[0]), bad);
    if (!bad) {
        *b = (buffer){.names = {make_memory(BUFFER_SIZE)}};
    }
}

/* The stream's handle goes to a new one at once. Half the time its work has run before
 * that, and the host has not learned of it. */
static void
make_anew(program *p, size_t stream)
{
    if (stream == LEGACY || random_number(p, 10) != 0) {
        return;
    }
    if (random_number(p, 2) == 0) {
        OK(fakecuda_stall(p->streams[stream]));
        OK(fakecuda_release(p->streams[stream], -1));
    }
    unsigned flags = stream < BLOCKING ? cudaStreamNonBlocking : cudaStreamDefault;
    OK(cudaStreamDestroy(p->streams[stream]));
    OK(cudaStreamCreateWithFlags(&p->streams[stream], flags));
    if (stream >= BLOCKING) {
        join(&p->past, &p->before[stream]);
    }
    p->before[stream] = (set){0};
}

/* ---- programs ------------------------------------------------------------------------------------- */

static void
make_paged(buffer *b)
{
    CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    OK(cuMemCreate(&b->page, PAGE, &prop, 0));
    for (int name = 0; name < 2; name++) {
        CUdeviceptr address;
        OK(cuMemAddressReserve(&address, PAGE, 0, 0, 0));
        b->names[name] = (unsigned char *)(uintptr_t)address;
        map_page(b, name);
    }
}

static void
start(program *p, uint64_t seed)
{
    begin("DEPTH=20");
    *p = (program){.seed = seed};
    for (size_t i = 0; i < STREAMS; i++) {
        if (i < BLOCKING) {
            p->streams[i] = make_stream();
        }
        else if (i < LEGACY) {
            OK(cudaStreamCreate(&p->streams[i]));
        }
    }
    for (size_t i = 0; i < EVENTS; i++) {
        p->events[i] = make_event();
    }
    for (size_t i = 0; i < PAGED; i++) {
        p->buffers[i].names[0] = make_memory(BUFFER_SIZE);
    }
    for (size_t i = PAGED; i < BUFFERS; i++) {
        make_paged(&p->buffers[i]);
    }
}

static void
take_a_step(program *p)
{
    size_t stream = random_number(p, STREAMS), event = random_number(p, EVENTS);
    buffer *one = &p->buffers[random_number(p, BUFFERS)];
    buffer *other = &p->buffers[random_number(p, BUFFERS)];
    switch (random_number(p, 17)) {
        case 0:
        case 1:
            fill(p, stream, one);
            break;
        case 2:
        case 3:
            copy(p, stream, one, one == other ? &p->buffers[0] : other);
            break;
        case 4:
        case 5:
        case 6:
            record(p, stream, event);
            break;
        case 7:
        case 8:
        case 9:
            wait_for(p, stream, event);
            break;
        case 10:
        case 11:
        case 12:
        case 13:
            learn(p, stream, event);
            break;
        case 14:
            make_anew(p, stream);
            break;
        default:
            replace(p, one);
    }
}

static void
finish(program *p)
{
    OK(cudaDeviceSynchronize());
    for (size_t i = 0; i < BUFFERS; i++) {
        const buffer *b = &p->buffers[i];
        for (size_t k = 0; k < BUFFER_SIZE; k++) {
            CHECK(b->holds[k] == 0 || byte_at(b->names[0] + k) == b->holds[k]);
        }
        if (i < PAGED) {
            OK(cudaFree(b->names[0]));
        }
        else {
            OK(cuMemUnmap((CUdeviceptr)(uintptr_t)b->names[1], PAGE));
        }
    }
    expect_clean();
}

static void
test_an_oracle_agrees(void)
{
    static program p;
    unsigned punished = 0, fine = 0;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        start(&p, seed * 0x9e3779b97f4a7c15u);
        while (p.step < STEPS) {
            take_a_step(&p);
        }
        finish(&p);
        punished += p.punished;
        fine += p.fine;
    }
    printf("   %u calls were right, %u wrong\n", fine, punished);
    CHECK(fine > 1000 && punished > 1000);
}

static const gm_test tests[] = {
    {"an_oracle_agrees", test_an_oracle_agrees},
};

GM_TEST_MAIN(tests)
