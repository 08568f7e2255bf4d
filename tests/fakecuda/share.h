/* share.h - memory that other processes map, too. All functions need the lock. */
#ifndef FAKECUDA_SHARE_H
#define FAKECUDA_SHARE_H

#include "memory.h"

/* vmm.c: another reference to the memory, by its handle. */
CUmemGenericAllocationHandle
fake_memory_handle_locked(fake_memory *memory);
fake_memory *
fake_memory_of_handle_locked(CUmemGenericAllocationHandle handle, int *error);

/* A file descriptor at `out`, the caller's, that another process can import. */
int
fake_export_locked(void *out, CUmemGenericAllocationHandle handle);
int
fake_import_locked(CUmemGenericAllocationHandle *out, int descriptor);

#endif
