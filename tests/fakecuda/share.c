/* share.c - memory in several processes: exported handles, and cudaIpcMemHandle_t.
 *
 * The memory of a device is a file of the process that made it. What goes to another
 * process is a note that says where: which process, which of its descriptors, which part.
 * The other one opens that file by the first one's entry in /proc, so it must be alive at
 * that moment; afterwards the memory lives as long as one of them uses it.
 */
#include "share.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "alloc.h"

/* Fits a cudaIpcMemHandle_t. */
typedef struct fake_note {
    uint64_t magic;
    uint64_t offset;
    uint64_t size;
    uint64_t begin; /* of the allocation, in the part */
    int process;
    int file;
    int device;
} fake_note;

#define NOTE_MAGIC UINT64_C(0x666b63756461)

_Static_assert(sizeof(fake_note) <= sizeof(cudaIpcMemHandle_t), "a note is a handle");

/* Fresh memory gets its junk before anybody else writes there. */
static fake_note
note_of(fake_memory *memory, size_t size)
{
    (void)fake_memory_bytes_locked(memory, 0);
    return (fake_note){.magic = NOTE_MAGIC,
                       .offset = memory->offset,
                       .size = size,
                       .process = (int)getpid(),
                       .file = memory->file,
                       .device = memory->device};
}

/* The memory that the note speaks of, or NULL. It charges nobody here: the process that
 * made it has paid. */
static fake_memory *
open_note_locked(const fake_note *note)
{
    char path[64];
    if (note->magic != NOTE_MAGIC || note->device < 0 ||
        note->device >= fake_setting.devices) {
        return NULL;
    }
    (void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", note->process, note->file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) {
        return NULL;
    }
    return fake_memory_of_file_locked(note->device, file, note->offset, note->size);
}

int
fake_export_locked(void *out, CUmemGenericAllocationHandle handle)
{
    int error;
    fake_memory *memory = fake_memory_of_handle_locked(handle, &error);
    if (memory == NULL) {
        return error;
    }
    if (!memory->exportable) {
        (void)fake_violation_locked("the memory was not created to be exported");
        return (int)cudaErrorInvalidValue;
    }
    fake_note note = note_of(memory, memory->size);
    int descriptor = memfd_create("fakecuda-shared", MFD_CLOEXEC);
    if (descriptor < 0 || write(descriptor, &note, sizeof(note)) != sizeof(note)) {
        return (int)cudaErrorOperatingSystem;
    }
    memcpy(out, &descriptor, sizeof(descriptor));
    return 0;
}

int
fake_import_locked(CUmemGenericAllocationHandle *out, int descriptor)
{
    fake_note note;
    if (pread(descriptor, &note, sizeof(note), 0) != sizeof(note)) {
        return (int)cudaErrorInvalidValue;
    }
    fake_memory *memory = open_note_locked(&note);
    if (memory == NULL) {
        return (int)cudaErrorInvalidValue;
    }
    memory->exportable = true;
    *out = fake_memory_handle_locked(memory);
    return 0;
}

/* ---- cudaIpcMemHandle_t ------------------------------------------------------------------------ */

/* The handle is of the whole allocation that holds the address. */
static int
get_handle_locked(cudaIpcMemHandle_t *out, const void *address)
{
    const fake_mapping *mapping = fake_mapping_at_locked((uint64_t)(uintptr_t)address);
    if (mapping == NULL || mapping->origin != FAKE_OF_MALLOC) {
        return (int)cudaErrorInvalidValue;
    }
    /* Small allocations share a chunk; another process maps all of it. */
    const fake_block *block = fake_block_at_locked(mapping->address);
    fake_note note = note_of(mapping->memory, block->size);
    note.begin = mapping->offset;
    memset(out, 0, sizeof(*out));
    memcpy(out, &note, sizeof(note));
    return 0;
}

static int
open_handle_locked(void **out, const cudaIpcMemHandle_t *handle, unsigned flags)
{
    fake_note note;
    memcpy(&note, handle, sizeof(note));
    if (flags != cudaIpcMemLazyEnablePeerAccess || out == NULL) {
        return (int)cudaErrorInvalidValue;
    }
    if (note.process == (int)getpid()) {
        (void)fake_violation_locked("the handle is of this process");
        return (int)cudaErrorDeviceUninitialized;
    }
    fake_memory *memory = open_note_locked(&note);
    fake_block *block =
        memory == NULL ? NULL
                       : fake_block_make_locked(memory->size, fake_setting.granularity);
    if (block == NULL) {
        return memory == NULL ? (int)cudaErrorInvalidValue
                              : (int)cudaErrorMemoryAllocation;
    }
    fake_mapping *mapping =
        fake_map_locked(block->address, memory->size, memory, 0, FAKE_OF_IPC);
    mapping->readable = mapping->writable =
        1u << memory->device | 1u << fake_current_device_locked();
    *out = (void *)(uintptr_t)(mapping->address + note.begin);
    return 0;
}

static int
close_handle_locked(void *address)
{
    fake_mapping *mapping = fake_mapping_at_locked((uint64_t)(uintptr_t)address);
    if (mapping == NULL || mapping->origin != FAKE_OF_IPC) {
        (void)fake_violation_locked("%p was not opened from a handle", address);
        return (int)cudaErrorInvalidValue;
    }
    int error = fake_check_finished_locked(mapping, "closed");
    if (error == 0) {
        fake_block *block = fake_block_at_locked(mapping->address);
        fake_unmap_locked(mapping);
        fake_shut_locked(block->address, block->size);
        fake_block_drop_locked(block);
    }
    return error;
}

cudaError_t
cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *address)
{
    RUNTIME_CALL(get_handle_locked(handle, address));
}

cudaError_t
cudaIpcOpenMemHandle(void **address, cudaIpcMemHandle_t handle, unsigned flags)
{
    RUNTIME_CALL(open_handle_locked(address, &handle, flags));
}

cudaError_t
cudaIpcCloseMemHandle(void *address)
{
    RUNTIME_CALL(close_handle_locked(address));
}
