/* memory.c - memory of devices, and where it is mapped; see memory.h. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory.h"

#define JUNK 0xdb /* what fresh memory holds */

gm_intervals fake_mappings;

static uint64_t last_id; /* of memory and mappings; never starts anew */

/* ---- capacity ------------------------------------------------------------------------ */

bool
fake_charge_locked(int device, size_t bytes)
{
    fake_device *owner = &fake_devices[device];
    size_t taken = owner->used + owner->occupied;
    if (taken > owner->capacity || bytes > owner->capacity - taken) {
        return false;
    }
    owner->used += bytes;
    if (owner->used_peak < owner->used) {
        owner->used_peak = owner->used;
    }
    return true;
}

void
fake_refund_locked(int device, size_t bytes)
{
    fake_devices[device].used -= bytes;
}

/* ---- memory -------------------------------------------------------------------------- */

static int
device_file_locked(fake_device *device)
{
    if (device->file < 0) {
        device->file = memfd_create("fakecuda", MFD_CLOEXEC);
        if (device->file < 0) {
            perror("fakecuda: memfd_create");
            abort();
        }
    }
    return device->file;
}

/* Places in the file are never used twice: it is sparse, and has room for ever. */
fake_memory *
fake_memory_make_locked(int device, size_t size)
{
    if (!fake_charge_locked(device, size)) {
        return NULL;
    }
    fake_device *owner = &fake_devices[device];
    fake_memory *memory = fake_allocate(sizeof(*memory));
    memory->id = ++last_id;
    memory->device = device;
    memory->file = device_file_locked(owner);
    memory->offset = owner->file_end;
    memory->size = size;
    memory->charged = size;
    owner->file_end += size;
    if (ftruncate(memory->file, (off_t)owner->file_end) != 0) {
        perror("fakecuda: ftruncate");
        abort();
    }
    return memory;
}

fake_memory *
fake_memory_of_file_locked(int device, int file, uint64_t offset, size_t size)
{
    fake_memory *memory = fake_allocate(sizeof(*memory));
    memory->id = ++last_id;
    memory->device = device;
    memory->file = file;
    memory->owns_file = true;
    memory->offset = offset;
    memory->size = size;
    return memory;
}

fake_memory *
fake_memory_of_host(void *address, size_t size)
{
    fake_memory *memory = fake_allocate(sizeof(*memory));
    memory->id = ++last_id;
    memory->device = -1;
    memory->file = -1;
    memory->view = address;
    memory->size = size;
    return memory;
}

void
fake_memory_try_free_locked(fake_memory *memory)
{
    if (memory->handles > 0 || memory->mappings > 0) {
        return;
    }
    if (memory->file >= 0 && memory->view != NULL) {
        (void)munmap(memory->view, memory->size);
    }
    if (memory->owns_file) {
        (void)close(memory->file);
    }
    else if (memory->file >= 0) {
        (void)fallocate(memory->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                        (off_t)memory->offset, (off_t)memory->size);
    }
    if (memory->charged > 0) {
        fake_refund_locked(memory->device, memory->charged);
    }
    free(memory->uses);
    free(memory);
}

char *
fake_memory_bytes_locked(fake_memory *memory, size_t offset)
{
    if (memory->view == NULL) {
        memory->view = mmap(NULL, memory->size, PROT_READ | PROT_WRITE, MAP_SHARED,
                            memory->file, (off_t)memory->offset);
        if (memory->view == MAP_FAILED) {
            perror("fakecuda: mmap");
            abort();
        }
        if (!memory->owns_file && memory->size <= fake_setting.poison) {
            memset(memory->view, JUNK, memory->size);
        }
    }
    return memory->view + offset;
}

/* ---- mappings ------------------------------------------------------------------------- */

fake_mapping *
fake_map_locked(uint64_t address, size_t size, fake_memory *memory, size_t offset,
                fake_origin origin)
{
    fake_mapping *mapping = fake_allocate(sizeof(*mapping));
    mapping->id = ++last_id;
    mapping->address = address;
    mapping->size = size;
    mapping->room = size;
    mapping->memory = memory;
    mapping->offset = offset;
    mapping->origin = origin;
    if (memory->device < 0) {
        mapping->readable = mapping->writable = UINT32_MAX;
    }
    memory->mappings++;
    fake_block *block = fake_block_at_locked(address);
    if (block != NULL) {
        block->mapped_count++;
    }
    if (gm_intervals_insert(&fake_mappings, address, size, mapping) != GM_OK) {
        abort();
    }
    return mapping;
}

void
fake_unmap_locked(fake_mapping *mapping)
{
    gm_intervals_remove(
        &fake_mappings,
        gm_intervals_exactly(&fake_mappings, mapping->address, mapping->room));
    fake_block *block = fake_block_at_locked(mapping->address);
    if (block != NULL) {
        block->mapped_count--;
    }
    if (fake_setting.host_access && mapping->origin == FAKE_OF_VMM) {
        fake_shut_locked(mapping->address, mapping->size);
    }
    mapping->memory->mappings--;
    fake_memory_try_free_locked(mapping->memory);
    fake_op_release_locked(mapping->allocated);
    fake_op_release_locked(mapping->freed_by);
    free(mapping);
}

fake_mapping *
fake_mapping_around_locked(uint64_t address)
{
    const gm_interval *found = gm_intervals_holding(&fake_mappings, address);
    return found == NULL ? NULL : found->data;
}

fake_mapping *
fake_mapping_at_locked(uint64_t address)
{
    fake_mapping *mapping = fake_mapping_around_locked(address);
    bool inside = mapping != NULL && address - mapping->address < mapping->size;
    return inside ? mapping : NULL;
}

fake_mapping *
fake_mapping_begins_locked(uint64_t address)
{
    fake_mapping *mapping = fake_mapping_at_locked(address);
    return mapping != NULL && mapping->address == address ? mapping : NULL;
}

fake_mapping *
fake_mapping_from_locked(uint64_t address)
{
    size_t low = 0, high = fake_mappings.count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const gm_interval *item = &fake_mappings.items[middle];
        if (item->address + item->size <= address) {
            low = middle + 1;
        }
        else {
            high = middle;
        }
    }
    return low < fake_mappings.count ? fake_mappings.items[low].data : NULL;
}

bool
fake_may_use(const fake_mapping *mapping, int device, bool writes)
{
    uint32_t allowed = writes ? mapping->writable : mapping->readable;
    if ((allowed >> device & 1) != 0) {
        return true;
    }
    /* Memory of cudaMalloc is open to peers as a whole. */
    int owner = mapping->memory->device;
    bool by_peers = mapping->origin == FAKE_OF_MALLOC || mapping->origin == FAKE_OF_IPC;
    return by_peers && (fake_devices[device].peers >> owner & 1) != 0;
}

/* ---- from outside --------------------------------------------------------------------- */

static int
move_bytes(uint64_t address, char *out, const char *in, size_t size)
{
    int result = 0;
    pthread_mutex_lock(&fake_lock);
    while (size > 0 && result == 0) {
        const fake_mapping *mapping = fake_mapping_at_locked(address);
        if (mapping == NULL) {
            result = -1;
            break;
        }
        size_t skip = (size_t)(address - mapping->address);
        size_t part = mapping->size - skip < size ? mapping->size - skip : size;
        char *bytes = fake_memory_bytes_locked(mapping->memory, mapping->offset + skip);
        if (out != NULL) {
            memcpy(out, bytes, part);
            out += part;
        }
        else {
            memcpy(bytes, in, part);
            in += part;
        }
        address += part;
        size -= part;
    }
    pthread_mutex_unlock(&fake_lock);
    return result;
}

int
fakecuda_peek(uint64_t address, void *out, size_t size)
{
    return move_bytes(address, out, NULL, size);
}

int
fakecuda_poke(uint64_t address, const void *bytes, size_t size)
{
    return move_bytes(address, NULL, bytes, size);
}

/* ---- life ------------------------------------------------------------------------------- */

void
fake_memory_reset_locked(void)
{
    while (fake_mappings.count > 0) {
        fake_mapping *mapping = fake_mappings.items[fake_mappings.count - 1].data;
        if (mapping->memory->device >= 0) {
            fake_shut_locked(mapping->address, mapping->size);
        }
        fake_unmap_locked(mapping);
    }
    fake_memory *memory;
    while ((memory = fake_handle_at_locked(FAKE_PAGE, 0)) != NULL) {
        fake_handle_drop_locked(FAKE_PAGE, memory->handle);
        memory->handles = 0;
        fake_memory_try_free_locked(memory);
    }
    while (fake_blocks.count > 0) {
        fake_block_drop_locked(fake_blocks.items[fake_blocks.count - 1].data);
    }
}
