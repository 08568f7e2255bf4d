/* pools.h - memory pools: memory that is had and given back in stream order. All
 * functions need the lock. */
#ifndef FAKECUDA_POOLS_H
#define FAKECUDA_POOLS_H

#include "memory.h"

struct fake_pool {
    void *handle;
    int device;
    uint64_t threshold; /* bytes that it keeps when somebody waits for the device */
    uint64_t used, used_high;
    uint64_t reserved, reserved_high;
    int reuse[3]; /* follow event dependencies, opportunistic, internal ones */
    uint32_t readable, writable; /* by devices; bits */
};

/* The device's own pool. */
fake_pool *
fake_pool_default_locked(int device);

int
fake_pool_alloc_locked(void **out, size_t size, fake_pool *pool, CUstream stream);
int
fake_pool_free_locked(void *address, CUstream stream);

/* Somebody waited: pools give back what they need not keep. */
void
fake_pools_settle_locked(void);

void
fake_pools_reset_locked(void);

#endif
