#include <string.h>

#include "probe.h"

enum {
    MOST_PAGES = 64,
    CALLS = 2000
};

/* One size of a page: `count` of them in a pages. */
typedef struct row {
    size_t size;
    size_t count;
    CUdeviceptr base;
    CUmemGenericAllocationHandle handles[MOST_PAGES];
} row;

/* Nanoseconds per page, except where the name says run. */
typedef struct costs {
    uint64_t create[ROUNDS], map[ROUNDS], grant[ROUNDS], unmap[ROUNDS], release[ROUNDS];
    uint64_t grant_run[ROUNDS], unmap_run[ROUNDS];
    int runs_unmap; /* one call unmaps several pages */
} costs;

static uint64_t
per_page(uint64_t start, size_t count)
{
    return (now_ns() - start) / count;
}

/* Every call for each page by itself. */
static void
run_singly(const probe *self, row *pages, costs *out, int round)
{
    uint64_t start = now_ns();
    for (size_t i = 0; i < pages->count; i++) {
        pages->handles[i] = create_page(self, pages->size);
    }
    out->create[round] = per_page(start, pages->count);
    start = now_ns();
    for (size_t i = 0; i < pages->count; i++) {
        DO(cuMemMap, pages->base + i * pages->size, pages->size, 0, pages->handles[i],
           0);
    }
    out->map[round] = per_page(start, pages->count);
    start = now_ns();
    for (size_t i = 0; i < pages->count; i++) {
        DO(cuMemSetAccess, pages->base + i * pages->size, pages->size, &self->access,
           1);
    }
    out->grant[round] = per_page(start, pages->count);
    start = now_ns();
    for (size_t i = 0; i < pages->count; i++) {
        DO(cuMemUnmap, pages->base + i * pages->size, pages->size);
    }
    out->unmap[round] = per_page(start, pages->count);
}

/* One call for all pages where there is one; then the pages go. */
static void
run_at_once(const probe *self, row *pages, costs *out, int round)
{
    size_t total = pages->count * pages->size;
    for (size_t i = 0; i < pages->count; i++) {
        DO(cuMemMap, pages->base + i * pages->size, pages->size, 0, pages->handles[i],
           0);
    }
    uint64_t start = now_ns();
    DO(cuMemSetAccess, pages->base, total, &self->access, 1);
    out->grant_run[round] = now_ns() - start;
    start = now_ns();
    out->runs_unmap = TRY(cuMemUnmap, pages->base, total) == CUDA_SUCCESS;
    out->unmap_run[round] = now_ns() - start;
    for (size_t i = 0; !out->runs_unmap && i < pages->count; i++) {
        DO(cuMemUnmap, pages->base + i * pages->size, pages->size);
    }
    start = now_ns();
    for (size_t i = 0; i < pages->count; i++) {
        DO(cuMemRelease, pages->handles[i]);
    }
    out->release[round] = per_page(start, pages->count);
}

void
probe_page_costs(const probe *self)
{
    json_open("page_costs", '[');
    for (size_t size = self->granularity; size <= 64 * MIB; size *= 2) {
        row pages = {.size = size, .count = self->budget / size};
        costs found = {.runs_unmap = 0};
        pages.count = pages.count < MOST_PAGES ? pages.count : MOST_PAGES;
        if (pages.count == 0) {
            break;
        }
        pages.base = reserve_addresses(pages.count * size);
        for (int round = 0; round < ROUNDS; round++) {
            run_singly(self, &pages, &found, round);
            run_at_once(self, &pages, &found, round);
        }
        DO(cuMemAddressFree, pages.base, pages.count * size);
        json_open(NULL, '{');
        json_integer("page_bytes", size);
        json_integer("pages", pages.count);
        json_integer("create_ns", median(found.create, ROUNDS));
        json_integer("map_ns", median(found.map, ROUNDS));
        json_integer("grant_ns", median(found.grant, ROUNDS));
        json_integer("unmap_ns", median(found.unmap, ROUNDS));
        json_integer("release_ns", median(found.release, ROUNDS));
        json_integer("grant_run_ns", median(found.grant_run, ROUNDS));
        json_bool("runs_unmap", found.runs_unmap);
        json_integer("unmap_run_ns", median(found.unmap_run, ROUNDS));
        json_close();
    }
    json_close();
}

/* ---- small calls ------------------------------------------------------------------ */

/* Times `CALLS` calls, ROUNDS times. */
#define TIME_CALLS(key, ...)                              \
    do {                                                  \
        uint64_t rounds_[ROUNDS];                         \
        for (int round_ = 0; round_ < ROUNDS; round_++) { \
            uint64_t start_ = now_ns();                   \
            for (int call_ = 0; call_ < CALLS; call_++) { \
                __VA_ARGS__;                              \
            }                                             \
            rounds_[round_] = per_page(start_, CALLS);    \
            DO(cuCtxSynchronize);                         \
        }                                                 \
        json_integer(key, median(rounds_, ROUNDS));       \
    } while (0)

void
probe_small_calls(const probe *self)
{
    CUevent event;
    CUstreamCaptureStatus capturing;
    CUdeviceptr block;
    DO(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
    DO(cuEventRecord, event, self->stream);
    DO(cuCtxSynchronize);
    json_open("small_calls", '{');
    TIME_CALLS("capture_query_ns", DO(cuStreamIsCapturing, self->stream, &capturing));
    TIME_CALLS("event_query_ns", (void)TRY(cuEventQuery, event));
    TIME_CALLS("event_record_ns", DO(cuEventRecord, event, self->stream));
    TIME_CALLS("stream_wait_ns", DO(cuStreamWaitEvent, self->other, event, 0));
    TIME_CALLS("alloc_async_pair_ns",
               DO(cuMemAllocAsync, &block, 2 * MIB, self->stream);
               DO(cuMemFreeAsync, block, self->stream));
    json_close();
    DO(cuEventDestroy, event);
}
