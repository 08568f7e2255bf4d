#include "probe.h"

/* Long enough to tell a call that waits from a slow one. */
#define BUSY_NS UINT64_C(100000000)

/* What the calls need, and make. */
typedef struct scene {
    const probe *gpu;
    size_t size;
    CUdeviceptr base;  /* room for two pages */
    CUdeviceptr extra; /* what a call reserved or allocated */
    CUmemGenericAllocationHandle page;
    CUevent event;
} scene;

static void
act_create(scene *self)
{
    self->page = create_page(self->gpu, self->size);
}

static void
act_release(scene *self)
{
    DO(cuMemRelease, self->page);
}

static void
act_reserve(scene *self)
{
    self->extra = reserve_addresses(self->size);
}

static void
act_free_addresses(scene *self)
{
    DO(cuMemAddressFree, self->extra, self->size);
}

static void
act_map(scene *self)
{
    DO(cuMemMap, self->base, self->size, 0, self->page, 0);
}

static void
act_grant(scene *self)
{
    DO(cuMemSetAccess, self->base, self->size, &self->gpu->access, 1);
}

static void
act_unmap(scene *self)
{
    DO(cuMemUnmap, self->base, self->size);
}

static void
act_alloc(scene *self)
{
    DO(cuMemAlloc, &self->extra, self->size);
}

static void
act_free(scene *self)
{
    DO(cuMemFree, self->extra);
}

static void
act_alloc_async(scene *self)
{
    DO(cuMemAllocAsync, &self->extra, self->size, self->gpu->other);
}

static void
act_free_async(scene *self)
{
    DO(cuMemFreeAsync, self->extra, self->gpu->other);
}

static void
act_record(scene *self)
{
    DO(cuEventRecord, self->event, self->gpu->other);
}

/* In the order in which each finds what it needs. */
static const struct step {
    const char *name;
    void (*act)(scene *self);
} steps[] = {
    {"create", act_create},
    {"map", act_map},
    {"grant", act_grant},
    {"unmap", act_unmap},
    {"release", act_release},
    {"reserve_addresses", act_reserve},
    {"free_addresses", act_free_addresses},
    {"alloc", act_alloc},
    {"free", act_free},
    {"alloc_async", act_alloc_async},
    {"free_async", act_free_async},
    {"event_record", act_record},
};

/* Runs a step behind a busy stream: does it return before that has ended? */
static void
run_step(scene *self, const char *name, void (*act)(scene *self))
{
    CUevent busy;
    DO(cuEventCreate, &busy, CU_EVENT_DISABLE_TIMING);
    launch_spin(self->gpu, BUSY_NS);
    DO(cuEventRecord, busy, self->gpu->stream);
    uint64_t start = now_ns();
    act(self);
    uint64_t passed = now_ns() - start;
    int blocked = TRY(cuEventQuery, busy) == CUDA_SUCCESS;
    DO(cuCtxSynchronize);
    json_open(name, '{');
    json_integer("ns", passed);
    json_bool("blocks", blocked);
    json_close();
    DO(cuEventDestroy, busy);
}

/* The same for the second place of a page whose first is in use by work on its way. */
static void
run_alias_step(scene *self)
{
    const probe *gpu = self->gpu;
    CUdeviceptr second = self->base + self->size, bad;
    uint32_t count = (uint32_t)(self->size / sizeof(uint32_t)), wrong = 0;
    DO(cuMemAlloc, &bad, sizeof(uint32_t));
    DO(cuMemsetD32Async, bad, 0, 1, gpu->stream);
    self->page = create_page(gpu, self->size);
    place_page(gpu, self->base, self->size, self->page);
    place_page(gpu, second, self->size, self->page);
    DO(cuCtxSynchronize);
    launch_spin(gpu, BUSY_NS);
    launch_store(gpu, gpu->stream, second, count, 7);
    run_step(self, "unmap_other_alias_in_use", act_unmap);
    launch_check(gpu, gpu->stream, second, count, 7, bad);
    DO(cuCtxSynchronize);
    DO(cuMemcpyDtoH, &wrong, bad, sizeof(wrong));
    json_integer("alias_words_lost", wrong);
    DO(cuMemUnmap, second, self->size);
    DO(cuMemRelease, self->page);
    DO(cuMemFree, bad);
}

void
probe_blocking(const probe *self)
{
    scene here = {.gpu = self, .size = self->granularity};
    here.base = reserve_addresses(2 * here.size);
    DO(cuEventCreate, &here.event, CU_EVENT_DISABLE_TIMING);
    /* What is loaded on first use shall not count. */
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        steps[i].act(&here);
    }
    DO(cuCtxSynchronize);
    json_open("behind_busy_stream", '{');
    json_integer("busy_ns", BUSY_NS);
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        run_step(&here, steps[i].name, steps[i].act);
    }
    run_alias_step(&here);
    json_close();
    DO(cuEventDestroy, here.event);
    DO(cuMemAddressFree, here.base, 2 * here.size);
}
