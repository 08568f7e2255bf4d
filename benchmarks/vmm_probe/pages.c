#include <stdlib.h>
#include <time.h>

#include "probe.h"

enum {
    THREADS = 256
};

uint64_t
now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int
compare(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

uint64_t
median(uint64_t *values, size_t count)
{
    qsort(values, count, sizeof(*values), compare);
    return values[count / 2];
}

CUmemGenericAllocationHandle
create_page(const probe *self, size_t size)
{
    CUmemGenericAllocationHandle page;
    DO(cuMemCreate, &page, size, &self->kind, 0);
    return page;
}

CUdeviceptr
reserve_addresses(size_t size)
{
    CUdeviceptr base;
    DO(cuMemAddressReserve, &base, size, 0, 0, 0);
    return base;
}

void
place_page(const probe *self, CUdeviceptr at, size_t size,
           CUmemGenericAllocationHandle page)
{
    DO(cuMemMap, at, size, 0, page, 0);
    DO(cuMemSetAccess, at, size, &self->access, 1);
}

void
launch_spin(const probe *self, uint64_t ns)
{
    void *arguments[] = {&ns};
    DO(cuLaunchKernel, self->spin, 1, 1, 1, 1, 1, 1, 0, self->stream, arguments, NULL);
}

void
launch_store(const probe *self, CUstream stream, CUdeviceptr words, uint32_t count,
             uint32_t first)
{
    void *arguments[] = {&words, &count, &first};
    unsigned blocks = (count + THREADS - 1) / THREADS;
    DO(cuLaunchKernel, self->store, blocks, 1, 1, THREADS, 1, 1, 0, stream, arguments,
       NULL);
}

void
launch_check(const probe *self, CUstream stream, CUdeviceptr words, uint32_t count,
             uint32_t first, CUdeviceptr bad)
{
    void *arguments[] = {&words, &count, &first, &bad};
    unsigned blocks = (count + THREADS - 1) / THREADS;
    DO(cuLaunchKernel, self->check, blocks, 1, 1, THREADS, 1, 1, 0, stream, arguments,
       NULL);
}
