/* memory.h - addresses and what is behind them.
 *
 *   block     a range of device addresses that belongs to somebody: a reservation of
 *             cuMemAddressReserve, or the place of cudaMalloc's memory
 *   memory    bytes of a device without an address, with the uses that were made of them
 *   mapping   addresses with memory behind them, and who may use them
 *
 * All device addresses come from one range of the process, so that an address which is
 * mapped no longer is still known as a device's. The bytes are those of one sparse file
 * for each device; untouched they cost nothing. The addresses themselves can be touched
 * only by kernels' twins, unless FAKECUDA_HOST_ACCESS is set: on hardware the host cannot
 * touch them either.
 *
 * All functions need the lock.
 */
#ifndef FAKECUDA_MEMORY_H
#define FAKECUDA_MEMORY_H

#include "device/intervals.h"
#include "fake.h"
#include "work.h"

typedef enum fake_origin {
    FAKE_OF_VMM,        /* cuMemMap */
    FAKE_OF_MALLOC,     /* cudaMalloc */
    FAKE_OF_POOL,       /* cudaMallocAsync */
    FAKE_OF_IPC,        /* cudaIpcOpenMemHandle */
    FAKE_OF_HOST,       /* cudaMallocHost */
    FAKE_OF_REGISTERED, /* cudaHostRegister */
    FAKE_OF_MANAGED,    /* cudaMallocManaged */
} fake_origin;

/* A use of memory that may be unfinished. */
typedef struct fake_use {
    size_t lane;
    uint64_t number;
    uint64_t stream_id;
    uint64_t mapping;
    size_t begin, end; /* bytes of the memory; equal: unknown ones of the mapping */
    bool writes;
} fake_use;

typedef struct fake_memory {
    uint64_t id;
    int device; /* -1: host memory */
    int file;
    bool owns_file; /* it came from another process */
    uint64_t offset;
    size_t size;
    size_t charged;
    unsigned handles; /* references through cuMemCreate, retain, import */
    unsigned mappings;
    bool exportable;
    void *handle; /* NULL: none */
    char *view;   /* its bytes for the stand-in itself; NULL: not yet needed */
    fake_use *uses;
    size_t use_count, use_capacity;
} fake_memory;

typedef struct fake_mapping {
    uint64_t id;
    uint64_t address;
    size_t size;
    fake_origin origin;
    fake_memory *memory;
    size_t offset;     /* in the memory */
    uint32_t readable; /* bit n: for device n */
    uint32_t writable;
    size_t room;        /* bytes of its place; a block of a pool may use less */
    bool freed;         /* cudaFreeAsync was called */
    fake_op *freed_by;  /* a reference: later users must come after it */
    fake_op *allocated; /* a reference: uses must come after it; NULL: always there */
    fake_pool *pool;
    unsigned host_flags; /* of cudaHostAlloc */
} fake_mapping;

typedef struct fake_block {
    uint64_t address;
    size_t size;
    bool reserved;       /* by cuMemAddressReserve */
    fake_memory *chunk;  /* small allocations are cut from it */
    size_t mapped_count; /* mappings in it */
} fake_block;

extern gm_intervals fake_mappings; /* data: fake_mapping */
extern gm_intervals fake_blocks;   /* data: fake_block */

/* ---- addresses: addresses.c --------------------------------------------------------- */

/* NULL: no such range is left. */
fake_block *
fake_block_make_locked(size_t size, size_t alignment);
void
fake_block_drop_locked(fake_block *block);
fake_block *
fake_block_at_locked(uint64_t address);

/* Is it one of the addresses that devices have, mapped or not? */
bool
fake_is_device_address_locked(uint64_t address);

/* Lets the process touch the mapping's addresses, or forbids it again. */
bool
fake_open_locked(const fake_mapping *mapping, bool writable);
void
fake_shut_locked(uint64_t address, size_t size);

uint64_t
fake_reserved_bytes_locked(void);

/* ---- memory and mappings: memory.c ---------------------------------------------------- */

/* NULL: the device is full. */
fake_memory *
fake_memory_make_locked(int device, size_t size);

/* Part of a file of another process, which takes the descriptor. */
fake_memory *
fake_memory_of_file_locked(int device, int file, uint64_t offset, size_t size);

/* Memory of the host, at that address. */
fake_memory *
fake_memory_of_host(void *address, size_t size);

/* Frees it if nothing refers to it any more. */
void
fake_memory_try_free_locked(fake_memory *memory);

/* Where the stand-in finds byte `offset` of it. */
char *
fake_memory_bytes_locked(fake_memory *memory, size_t offset);

/* A mapping without access; of host memory it has all. The caller fills in the rest. */
fake_mapping *
fake_map_locked(uint64_t address, size_t size, fake_memory *memory, size_t offset,
                fake_origin origin);

/* The memory goes with the last reference. */
void
fake_unmap_locked(fake_mapping *mapping);

fake_mapping *
fake_mapping_at_locked(uint64_t address);

/* The same, in the part of its place, too, that the mapping does not use now: work of a
 * pool's block may run when that has a new and smaller owner already. */
fake_mapping *
fake_mapping_around_locked(uint64_t address);
fake_mapping *
fake_mapping_begins_locked(uint64_t address);
/* The next mapping at or above the address, or NULL. */
fake_mapping *
fake_mapping_from_locked(uint64_t address);

/* Does work on that device reach it? For host memory always. */
bool
fake_may_use(const fake_mapping *mapping, int device, bool writes);

/* ---- uses: uses.c ----------------------------------------------------------------------- */

/* Adds what lies at [address, address + size) to the task's spans, after checking that
 * all of it is mapped and that work on `device` may use it. Pageable host memory has no
 * span. */
int
fake_add_span_locked(fake_task *task, uint64_t address, size_t size, int device,
                     bool writes);

/* Enters the operation's spans as uses of memory; FAKE_BROKEN_RULE when one is not
 * ordered as it must be. */
int
fake_note_uses_locked(const fake_op *op);

/* One use that was found out while it runs: some bytes of the mapping. */
int
fake_note_touch_locked(const fake_op *op, const fake_mapping *mapping);

/* Are the addresses still mapped to what they were? False: a violation was recorded. */
bool
fake_check_spans_locked(const fake_task *task);

/* A violation, if the host does not know that every use through the mapping is finished.
 * `what` is done to it. 0 or FAKE_BROKEN_RULE. */
int
fake_check_finished_locked(const fake_mapping *mapping, const char *what);

/* A violation, if a use of the mapping does not come before `op`. */
int
fake_check_before_locked(const fake_mapping *mapping, const fake_op *op,
                         const char *what);

uint64_t
fake_operations_locked(void);

#endif
