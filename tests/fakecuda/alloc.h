/* alloc.h - the bodies of whole allocations and of page-locked memory, for both
 * interfaces. All functions need the lock. */
#ifndef FAKECUDA_ALLOC_H
#define FAKECUDA_ALLOC_H

#include "memory.h"

int
fake_malloc_locked(void **out, size_t size);
int
fake_free_locked(void *address);
int
fake_memory_info_locked(size_t *free_bytes, size_t *total_bytes);

/* A place of its own for device memory of that size, with access for the device. NULL:
 * no memory. Whole allocations of granularity and more, and blocks of pools. */
fake_mapping *
fake_place_locked(int device, size_t size, fake_origin origin);

int
fake_host_alloc_locked(void **out, size_t size, unsigned flags);
int
fake_host_free_locked(void *address);
int
fake_host_register_locked(void *address, size_t size, unsigned flags);
int
fake_host_unregister_locked(void *address);
int
fake_managed_alloc_locked(void **out, size_t size);
uint64_t
fake_pinned_bytes_locked(void);

#endif
