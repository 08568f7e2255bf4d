/* test_cuda_pool.c - pools over a CUDA device, on the stand-in, which judges every use of
 * memory by the edges that order it; and each call of CUDA failing, once and for ever.
 */
#include "cuda_kinds.h"

#include "pool_kinds.h"

enum {
    OUT_OF_MEMORY = 2, /* cudaErrorMemoryAllocation */
    UNKNOWN = 999,     /* cudaErrorUnknown */
};

typedef struct pool_kind {
    const char *name;
    bool paging;
    bool aliasing;
    bool async;
} pool_kind;

static const pool_kind kinds[] = {
    {"pages", true, false, false},
    {"pages, aliasing", true, true, false},
    {"segments", false, false, false},
    {"segments of the driver's pool", false, false, true},
};

#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

typedef int (*call_of_pointer)(void *);

/* The stand-in begins anew; queries are answered "not ready" `lag` times. */
static bool
begin(const char *lag)
{
    int devices = 0;
    if (!cuda_is_here("64M")) {
        return false;
    }
    CHECK(setenv("FAKECUDA_LAG", lag, 1) == 0);
    CHECK(setenv("FAKECUDA_POISON", "0", 1) == 0);
    FAKE(fakecuda_reset)();
    CHECK_EQ_SIGNED(((call_of_pointer)fake_function("cudaGetDeviceCount"))(&devices),
                    0);
    return true;
}

static gm_device *
open_kind(const pool_kind *kind)
{
    gm_cuda_options options = {.no_paging = !kind->paging,
                               .aliasing = kind->aliasing,
                               .async_segments = kind->async};
    return open_cuda(&options);
}

/* ---- random use ------------------------------------------------------------------ */

#define STREAMS 4
#define LIVE 60
#define ENDS 20000 /* bytes */

typedef struct use {
    gm_block *block;
    gm_stream stream;
    unsigned char mark;
} use;

typedef struct program {
    gm_device *device;
    gm_pool *pool;
    gm_stream streams[STREAMS]; /* 0, 2 and two of our own */
    gm_event event;
    use uses[LIVE];
    unsigned seed;
    unsigned refused;
} program;

/* Both ends of it, which may be the same. */
static void
write_block(program *self, const use *slot, gm_stream stream)
{
    gm_device *device = self->device;
    gm_devptr address = gm_block_address(slot->block);
    size_t size = gm_block_requested(slot->block);
    size_t part = size < ENDS ? size : ENDS;
    CHECK_OK(device->ops->fill_async(device, address, &slot->mark, 1, part, stream));
    CHECK_OK(device->ops->fill_async(device, address + size - part, &slot->mark, 1,
                                     part, stream));
}

/* Another stream writes the block, ordered by an event, and the pool is told. */
static void
use_elsewhere(program *self, const use *slot)
{
    gm_device *device = self->device;
    gm_stream other = self->streams[rand_r(&self->seed) % STREAMS];
    CHECK_OK(device->ops->event_record(device, self->event, slot->stream));
    CHECK_OK(device->ops->stream_wait(device, other, self->event));
    write_block(self, slot, other);
    CHECK_OK(gm_pool_record_stream(slot->block, other));
}

/* What was written is there. */
static void
check_block(program *self, const use *slot)
{
    unsigned char byte = 0;
    gm_devptr address = gm_block_address(slot->block);
    size_t last = gm_block_requested(slot->block) - 1;
    for (int i = 0; i < STREAMS; i++) {
        CHECK_OK(self->device->ops->stream_synchronize(self->device, self->streams[i],
                                                       UINT64_MAX));
    }
    CHECK_EQ_SIGNED(FAKE(fakecuda_peek)(address, &byte, 1), 0);
    CHECK_EQ(byte, slot->mark);
    CHECK_EQ_SIGNED(FAKE(fakecuda_peek)(address + last, &byte, 1), 0);
    CHECK_EQ(byte, slot->mark);
}

static void
step(program *self, int number)
{
    use *slot = &self->uses[rand_r(&self->seed) % LIVE];
    if (slot->block != NULL) {
        if (rand_r(&self->seed) % 4 == 0) {
            use_elsewhere(self, slot);
        }
        if (rand_r(&self->seed) % 16 == 0) {
            check_block(self, slot);
        }
        gm_pool_free(slot->block);
        slot->block = NULL;
        return;
    }
    size_t most = rand_r(&self->seed) % 4 == 0 ? 8 * MIB : 200000;
    size_t size = 1 + (size_t)rand_r(&self->seed) % most;
    slot->stream = self->streams[rand_r(&self->seed) % STREAMS];
    slot->mark = (unsigned char)(1 + number % 255);
    gm_status status =
        allocate(self->pool, size, slot->stream, &slot->block, &(gm_oom){0});
    if (status == GM_OK) {
        write_block(self, slot, slot->stream);
    }
    else {
        CHECK_STATUS(status, GM_OUT_OF_MEMORY);
        slot->block = NULL;
        self->refused++;
    }
}

static void
run_program(const pool_kind *kind, gm_steal_mode steal, unsigned seed)
{
    program self = {.device = open_kind(kind), .seed = seed};
    const gm_device_ops *ops = self.device->ops;
    gm_pool_options options = usual_options();
    options.paging = kind->paging;
    options.steal = steal;
    self.pool = open_pool(self.device, &options);
    self.streams[1] = 2;
    CHECK_OK(ops->stream_create(self.device, &self.streams[2]));
    CHECK_OK(ops->stream_create(self.device, &self.streams[3]));
    CHECK_OK(ops->event_create(self.device, &self.event));
    for (int i = 0; i < 1500; i++) {
        step(&self, i);
        if (i % 100 == 0) {
            CHECK_POOL(self.pool);
        }
        if (i % 400 == 399) {
            (void)trim_all(self.pool);
        }
    }
    CHECK(self.refused < 1000);
    for (int i = 0; i < LIVE; i++) {
        if (self.uses[i].block != NULL) {
            check_block(&self, &self.uses[i]);
            gm_pool_free(self.uses[i].block);
        }
    }
    CHECK_OK(ops->event_destroy(self.device, self.event));
    for (int i = 2; i < STREAMS; i++) {
        gm_pool_stream_retired(self.pool, self.streams[i]);
        CHECK_OK(ops->stream_destroy(self.device, self.streams[i]));
    }
    gm_pool_close(self.pool, SECOND);
    close_pool(self.pool);
    check_fake();
}

static void
test_random_use_is_ordered(void)
{
    for (size_t i = 0; i < KINDS; i++) {
        for (unsigned seed = 1; seed <= 4; seed++) {
            if (!begin(seed % 2 == 0 ? "0" : "3")) {
                return;
            }
            printf("   cuda, %s, seed %u\n", kinds[i].name, seed);
            run_program(&kinds[i], seed % 2 == 0 ? GM_STEAL_ALWAYS : GM_STEAL_RATIO,
                        seed);
        }
    }
}

/* ---- each call fails ------------------------------------------------------------- */

/* Not cudaStreamGetId: a stream has its number always or never. */
static const char *const fallible[] = {
    "cudaMemGetInfo",
    "cudaMalloc",
    "cudaFree",
    "cudaMallocAsync",
    "cudaFreeAsync",
    "cudaMemcpyAsync",
    "cudaStreamCreateWithFlags",
    "cudaStreamDestroy",
    "cudaStreamQuery",
    "cudaStreamSynchronize",
    "cudaStreamWaitEvent",
    "cudaStreamIsCapturing",
    "cudaThreadExchangeStreamCaptureMode",
    "cudaEventCreateWithFlags",
    "cudaEventDestroy",
    "cudaEventRecord",
    "cudaEventQuery",
    "cudaEventSynchronize",
    "cudaDeviceSynchronize",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuDevicePrimaryCtxRetain",
    "cuMemsetD8Async",
    "cuMemsetD32Async",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
};

/* Uses what can be had; whatever fails is left out. The stream is one of the program's:
 * it outlives the pool, which may still look at it when it could not mark its end. */
static void
use_what_can_be_had(gm_device *device, gm_pool *pool, gm_stream stream)
{
    static const size_t sizes[] = {1000, 3 * MIB, 300000, 9 * MIB, 70 * MIB, 5 * MIB};
    enum {
        COUNT = sizeof(sizes) / sizeof(sizes[0])
    };
    const gm_device_ops *ops = device->ops;
    gm_stream unused;
    if (ops->stream_create(device, &unused) == GM_OK) {
        (void)!ops->stream_destroy(device, unused);
    }
    for (int round = 0; round < 2; round++) {
        gm_block *blocks[COUNT] = {NULL};
        const char mark = 9;
        for (int i = 0; i < COUNT; i++) {
            gm_oom oom;
            gm_stream where = i % 2 == 0 ? stream : 0;
            if (allocate(pool, sizes[i], where, &blocks[i], &oom) != GM_OK) {
                blocks[i] = NULL;
                continue;
            }
            (void)!ops->fill_async(device, gm_block_address(blocks[i]), &mark, 1, 1000,
                                   where);
            if (i == 1) {
                (void)!ops->stream_synchronize(device, 0, UINT64_MAX);
                (void)!gm_pool_record_stream(blocks[i], stream);
            }
        }
        for (int i = 0; i < COUNT; i++) {
            if (blocks[i] != NULL) {
                gm_pool_free(blocks[i]);
            }
        }
        gm_trim_request request = {.timeout_ns = 1000000};
        gm_trim_report report;
        (void)!gm_pool_trim(pool, &request, &report);
        CHECK_POOL(pool);
    }
    gm_pool_stream_retired(pool, stream);
}

static gm_stream
program_stream(void)
{
    void *stream = NULL;
    CHECK_EQ_SIGNED(((call_of_pointer)fake_function("cudaStreamCreate"))(&stream), 0);
    return (uintptr_t)stream;
}

/* True: the fault struck. Once faults are over, everything goes back. */
static bool
survive(const pool_kind *kind, const char *call, uint64_t nth, bool for_ever, int error)
{
    CHECK(begin("0"));
    gm_device *device = open_kind(kind);
    gm_pool_options options = usual_options();
    options.paging = kind->paging;
    options.steal = GM_STEAL_ALWAYS;
    gm_pool *pool = NULL;
    gm_stream stream = program_stream();
    watch_reports();
    uint64_t before = FAKE(fakecuda_calls)(call);
    FAKE(fakecuda_fail)(call, nth, for_ever, error);
    gm_status status = gm_pool_create(device, &options, &pool);
    if (status == GM_OK) {
        use_what_can_be_had(device, pool, stream);
    }
    bool struck = FAKE(fakecuda_calls)(call) - before >= nth;
    FAKE(fakecuda_fail)(NULL, 0, 0, 0);
    if (status == GM_OK) {
        CHECK_POOL(pool);
        gm_pool_close(pool, SECOND);
        gm_pool_release(pool);
    }
    gm_device_release(device);
    ((call_of_pointer)fake_function("cudaStreamDestroy"))((void *)(uintptr_t)stream);
    char text[4096] = "";
    if (FAKE(fakecuda_violations)(text, sizeof(text)) != 0 ||
        FAKE(fakecuda_check_leaks)(text, sizeof(text)) != 0) {
        fprintf(stderr, "%s: call %d of %s failed%s with %d\n", kind->name, (int)nth,
                call, for_ever ? " for ever" : "", error);
        check_fail(__FILE__, __LINE__, text);
    }
    return struck;
}

static void
test_each_call_fails(void)
{
    static const int errors[] = {OUT_OF_MEMORY, UNKNOWN};
    if (!begin("0")) {
        return;
    }
    for (size_t k = 0; k < KINDS; k++) {
        unsigned struck = 0;
        for (size_t i = 0; i < sizeof(fallible) / sizeof(fallible[0]); i++) {
            for (unsigned variant = 0; variant < 4; variant++) {
                uint64_t nth = 1;
                while (nth <= 16 && survive(&kinds[k], fallible[i], nth,
                                            variant / 2 != 0, errors[variant % 2])) {
                    nth++;
                    struck++;
                }
            }
        }
        printf("   cuda, %s: %u failures\n", kinds[k].name, struck);
        CHECK(struck > 300);
    }
}

static const gm_test tests[] = {
    {"random use is ordered", test_random_use_is_ordered},
    {"each call fails", test_each_call_fails},
};

GM_TEST_MAIN(tests)
