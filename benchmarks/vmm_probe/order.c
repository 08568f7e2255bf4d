#include <stdlib.h>

#include "probe.h"

enum {
    MOST_PAGES = 512,
    ALIAS_ROUNDS = 200,
    COPIES = 10
};

/* ---- aliases ---------------------------------------------------------------------- */

/* One page at two places, and a counter of words that were not as expected. */
typedef struct alias {
    CUdeviceptr places[2];
    CUdeviceptr bad;
    uint32_t count;
} alias;

/* Each place is read before, so that a cache could hold what was there. */
static void
use_in_order(const probe *self, const alias *twin, CUstream reader, CUevent event)
{
    uint32_t value = 1;
    launch_store(self, self->stream, twin->places[0], twin->count, value);
    for (int round = 0; round < ALIAS_ROUNDS; round++) {
        CUdeviceptr written = twin->places[round % 2],
                    read = twin->places[1 - round % 2];
        DO(cuEventRecord, event, self->stream);
        DO(cuStreamWaitEvent, reader, event, 0);
        launch_check(self, reader, read, twin->count, value, twin->bad);
        DO(cuEventRecord, event, reader);
        DO(cuStreamWaitEvent, self->stream, event, 0);
        value += twin->count;
        launch_store(self, self->stream, written, twin->count, value);
        DO(cuEventRecord, event, self->stream);
        DO(cuStreamWaitEvent, reader, event, 0);
        launch_check(self, reader, read, twin->count, value, twin->bad);
        DO(cuEventRecord, event, reader);
        DO(cuStreamWaitEvent, self->stream, event, 0);
    }
    DO(cuCtxSynchronize);
}

static uint32_t
read_word(CUdeviceptr at)
{
    uint32_t value = 0;
    DO(cuMemcpyDtoH, &value, at, sizeof(value));
    return value;
}

void
probe_aliases(const probe *self)
{
    size_t size = self->granularity;
    CUdeviceptr base = reserve_addresses(2 * size);
    CUmemGenericAllocationHandle page = create_page(self, size);
    alias twin = {.places = {base, base + size},
                  .count = (uint32_t)(size / sizeof(uint32_t))};
    CUevent event;
    json_open("aliases", '{');
    DO(cuMemMap, base, size, 0, page, 0);
    int mapped = TRY(cuMemMap, base + size, size, 0, page, 0) == CUDA_SUCCESS;
    json_bool("page_maps_twice", mapped);
    if (mapped) {
        DO(cuMemSetAccess, base, 2 * size, &self->access, 1);
        DO(cuMemAlloc, &twin.bad, sizeof(uint32_t));
        DO(cuMemsetD32Async, twin.bad, 0, 1, self->stream);
        DO(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
        use_in_order(self, &twin, self->stream, event);
        uint32_t same = read_word(twin.bad);
        use_in_order(self, &twin, self->other, event);
        uint32_t both = read_word(twin.bad) - same;
        json_integer("words_checked", (uint64_t)2 * ALIAS_ROUNDS * twin.count);
        json_integer("wrong_same_stream", same);
        json_integer("wrong_after_event", both);
        DO(cuEventDestroy, event);
        DO(cuMemFree, twin.bad);
        DO(cuMemUnmap, base + size, size);
    }
    json_close();
    DO(cuMemUnmap, base, size);
    DO(cuMemRelease, page);
    DO(cuMemAddressFree, base, 2 * size);
}

/* ---- bandwidth -------------------------------------------------------------------- */

/* Bytes per second, read and written bytes counted. */
static double
copy_rate(const probe *self, CUdeviceptr base, size_t size)
{
    CUevent start, end;
    uint64_t rounds[ROUNDS];
    DO(cuEventCreate, &start, CU_EVENT_DEFAULT);
    DO(cuEventCreate, &end, CU_EVENT_DEFAULT);
    DO(cuMemsetD32Async, base, 0, size / sizeof(uint32_t), self->stream);
    for (int round = 0; round < ROUNDS; round++) {
        float milliseconds = 0;
        DO(cuEventRecord, start, self->stream);
        for (int i = 0; i < COPIES; i++) {
            DO(cuMemcpyDtoDAsync, base + size / 2, base, size / 2, self->stream);
        }
        DO(cuEventRecord, end, self->stream);
        DO(cuEventSynchronize, end);
        DO(cuEventElapsedTime, &milliseconds, start, end);
        rounds[round] = (uint64_t)((double)milliseconds * 1e6);
    }
    DO(cuEventDestroy, start);
    DO(cuEventDestroy, end);
    uint64_t ns = median(rounds, ROUNDS);
    return ns == 0 ? 0 : (double)size * COPIES / ((double)ns * 1e-9);
}

static void
shuffle(CUmemGenericAllocationHandle *pages, size_t count)
{
    unsigned seed = 1;
    for (size_t i = count; i > 1; i--) {
        size_t other = (size_t)rand_r(&seed) % i;
        CUmemGenericAllocationHandle page = pages[i - 1];
        pages[i - 1] = pages[other];
        pages[other] = page;
    }
}

static double
paged_rate(const probe *self, CUdeviceptr base, size_t count,
           const CUmemGenericAllocationHandle *pages)
{
    size_t size = self->granularity;
    for (size_t i = 0; i < count; i++) {
        DO(cuMemMap, base + i * size, size, 0, pages[i], 0);
    }
    DO(cuMemSetAccess, base, count * size, &self->access, 1);
    double rate = copy_rate(self, base, count * size);
    for (size_t i = 0; i < count; i++) {
        DO(cuMemUnmap, base + i * size, size);
    }
    return rate;
}

void
probe_bandwidth(const probe *self)
{
    CUmemGenericAllocationHandle pages[MOST_PAGES];
    size_t count = self->budget / self->granularity;
    count = (count < MOST_PAGES ? count : MOST_PAGES) & ~(size_t)1;
    if (count == 0) {
        return;
    }
    size_t size = count * self->granularity;
    CUdeviceptr block, base = reserve_addresses(size);
    json_open("bandwidth", '{');
    json_integer("bytes", size);
    DO(cuMemAlloc, &block, size);
    json_real("one_allocation_bytes_per_s", copy_rate(self, block, size));
    DO(cuMemFree, block);
    for (size_t i = 0; i < count; i++) {
        pages[i] = create_page(self, self->granularity);
    }
    json_real("pages_in_order_bytes_per_s", paged_rate(self, base, count, pages));
    shuffle(pages, count);
    json_real("pages_shuffled_bytes_per_s", paged_rate(self, base, count, pages));
    json_close();
    for (size_t i = 0; i < count; i++) {
        DO(cuMemRelease, pages[i]);
    }
    DO(cuMemAddressFree, base, size);
}
