/* addresses.c - the one range of addresses that all devices share; see memory.h. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "memory.h"

#define LARGEST_RANGE ((size_t)16 << 40)
#define SMALLEST_RANGE ((size_t)16 << 30)
#define RANGE_ALIGNMENT ((uint64_t)2 << 20)
#define HOST_PAGE ((uint64_t)4096)

gm_intervals fake_blocks;

static uint64_t range_begin, range_end;

/* As large as the process may have: sanitizers and limits leave less. */
static void
take_range_locked(void)
{
    for (size_t size = LARGEST_RANGE; size >= SMALLEST_RANGE; size /= 2) {
        void *range = mmap(NULL, size, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (range != MAP_FAILED) {
            uint64_t address = (uint64_t)(uintptr_t)range;
            range_begin = (address + RANGE_ALIGNMENT - 1) & ~(RANGE_ALIGNMENT - 1);
            range_end = address + size;
            return;
        }
    }
    (void)fputs("fakecuda: no address space\n", stderr);
    abort();
}

uint64_t
fake_reserved_bytes_locked(void)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < fake_blocks.count; i++) {
        const fake_block *block = fake_blocks.items[i].data;
        bytes += block->reserved ? block->size : 0;
    }
    return bytes;
}

/* The lowest gap that fits: what was given back last is soon used again. */
fake_block *
fake_block_make_locked(size_t size, size_t alignment)
{
    if (range_end == 0) {
        take_range_locked();
    }
    if (alignment < RANGE_ALIGNMENT) {
        alignment = RANGE_ALIGNMENT;
    }
    uint64_t address = (range_begin + alignment - 1) & ~(uint64_t)(alignment - 1);
    for (size_t i = 0; i < fake_blocks.count; i++) {
        const gm_interval *other = &fake_blocks.items[i];
        if (address < other->address && other->address - address >= size) {
            break;
        }
        if (address < other->address + other->size) {
            address = (other->address + other->size + alignment - 1) &
                      ~(uint64_t)(alignment - 1);
        }
    }
    if (address >= range_end || range_end - address < size) {
        return NULL;
    }
    fake_block *block = fake_allocate(sizeof(*block));
    block->address = address;
    block->size = size;
    if (gm_intervals_insert(&fake_blocks, address, size, block) != GM_OK) {
        abort();
    }
    return block;
}

void
fake_block_drop_locked(fake_block *block)
{
    gm_intervals_remove(
        &fake_blocks, gm_intervals_exactly(&fake_blocks, block->address, block->size));
    free(block);
}

fake_block *
fake_block_at_locked(uint64_t address)
{
    const gm_interval *found = gm_intervals_holding(&fake_blocks, address);
    return found == NULL ? NULL : found->data;
}

bool
fake_is_device_address_locked(uint64_t address)
{
    return address >= range_begin && address < range_end;
}

/* Small allocations share pages of the host: the whole page is opened. */
bool
fake_open_locked(const fake_mapping *mapping, bool writable)
{
    fake_memory *memory = mapping->memory;
    (void)fake_memory_bytes_locked(memory, 0);
    uint64_t begin = mapping->address & ~(HOST_PAGE - 1);
    uint64_t end =
        (mapping->address + mapping->size + HOST_PAGE - 1) & ~(HOST_PAGE - 1);
    uint64_t offset = memory->offset + mapping->offset - (mapping->address - begin);
    void *place = mmap((void *)(uintptr_t)begin, end - begin,
                       writable ? PROT_READ | PROT_WRITE : PROT_READ,
                       MAP_SHARED | MAP_FIXED, memory->file, (off_t)offset);
    return place != MAP_FAILED;
}

void
fake_shut_locked(uint64_t address, size_t size)
{
    uint64_t begin = address & ~(HOST_PAGE - 1);
    uint64_t end = (address + size + HOST_PAGE - 1) & ~(HOST_PAGE - 1);
    (void)mmap((void *)(uintptr_t)begin, end - begin, PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}
