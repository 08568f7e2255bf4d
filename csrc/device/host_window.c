/* host_window.c - where whole allocations of the host device lie.
 *
 * Note [Window]
 * Where the system would put them depends on everything else that the program has
 * mapped, and an allocator that places by address would behave a little differently in
 * each run. So a device reserves a range of addresses, its window, and gives them out
 * lowest first: the same calls get the same places. It has twice the capacity, so that
 * scattered segments leave room for new ones. When that does not suffice, or the window
 * could not be had, a segment lies where the system puts it.
 *
 * What is free of the window is mapped without access.
 */
#include <errno.h>
#include <sys/mman.h>

#include "base/bits.h"
#include "device/host_internal.h"

#define BLANK (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED)

static void
make_window_locked(host_device *host) GM_REQUIRES(host->memory_lock)
{
    uint64_t size;
    host->window_tried = true;
    if (gm_align_up(host->head.info.total, GM_RANGE_ALIGNMENT, &size) != GM_OK ||
        size > SIZE_MAX / 4 || gm_intervals_reserve(&host->gaps) != GM_OK) {
        return;
    }
    size *= 2;
    void *start = gm_host_map_aligned(size, GM_RANGE_ALIGNMENT, PROT_NONE);
    if (start == NULL) {
        return;
    }
    host->window = (gm_interval){.address = (uintptr_t)start, .size = size};
    gm_status status = gm_intervals_insert(&host->gaps, (uintptr_t)start, size, NULL);
    GM_VERIFY(status == GM_OK);
}

void *
gm_host_window_take_locked(host_device *host, size_t size)
{
    size_t span = gm_align_up_unchecked(size, GM_RANGE_ALIGNMENT);
    if (!host->window_tried) {
        make_window_locked(host);
    }
    for (size_t i = 0; i < host->gaps.count; i++) {
        gm_interval *gap = &host->gaps.items[i];
        if (gap->size < span) {
            continue;
        }
        void *memory = mmap(gm_device_host_pointer(gap->address), size,
                            PROT_READ | PROT_WRITE, BLANK, -1, 0);
        if (memory == MAP_FAILED) {
            return NULL;
        }
        gap->address += span;
        gap->size -= span;
        if (gap->size == 0) {
            gm_intervals_remove(&host->gaps, gap);
        }
        return memory;
    }
    return gm_host_map_aligned(size, GM_RANGE_ALIGNMENT, PROT_READ | PROT_WRITE);
}

/* The range becomes a gap, joined with its neighbours. Pre: room for one is secured. */
static void
add_gap_locked(host_device *host, uint64_t address, uint64_t size)
    GM_REQUIRES(host->memory_lock)
{
    uint64_t end = address + size;
    gm_interval *before = gm_intervals_holding(&host->gaps, address - 1);
    if (before != NULL) {
        address = before->address;
        gm_intervals_remove(&host->gaps, before);
    }
    gm_interval *after = gm_intervals_holding(&host->gaps, end);
    if (after != NULL) {
        end = after->address + after->size;
        gm_intervals_remove(&host->gaps, after);
    }
    gm_status status = gm_intervals_insert(&host->gaps, address, end - address, NULL);
    GM_VERIFY(status == GM_OK);
}

gm_status
gm_host_window_give_locked(host_device *host, gm_devptr address, size_t size)
{
    void *memory = gm_device_host_pointer(address);
    if (!gm_host_in_window_locked(host, address)) {
        return munmap(memory, size) == 0 ? GM_OK : gm_host_mapping_status();
    }
    GM_TRY(gm_intervals_reserve(&host->gaps));
    /* At the limit of mappings the kernel takes no new one, even in place of another. */
    if (mmap(memory, size, PROT_NONE, BLANK, -1, 0) == MAP_FAILED &&
        (madvise(memory, size, MADV_DONTNEED) != 0 ||
         mprotect(memory, size, PROT_NONE) != 0)) {
        return gm_host_mapping_status();
    }
    add_gap_locked(host, address, gm_align_up_unchecked(size, GM_RANGE_ALIGNMENT));
    return GM_OK;
}

void
gm_host_window_destroy(host_device *host) GM_NO_THREAD_ANALYSIS
{
    if (host->window.size > 0) {
        (void)munmap(gm_device_host_pointer(host->window.address), host->window.size);
    }
    gm_intervals_destroy(&host->gaps);
}
