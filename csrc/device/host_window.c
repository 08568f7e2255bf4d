/* host_window.c - where segments and address ranges of the host device lie.
 *
 * Note [Window]
 * Where the system would put them depends on everything else that the program has
 * mapped, and an allocator that places by address would behave a little differently in
 * each run. So a device reserves a range of addresses, its window, and gives them out
 * lowest first: the same calls get the same places, at the same distance from a GiB. It
 * has 16 times the capacity: pools reserve more addresses than memory. When that does
 * not suffice, or the window could not be had, the system chooses the place.
 *
 * What is free of the window is mapped without access.
 */
#include <errno.h>
#include <sys/mman.h>

#include "base/bits.h"
#include "device/host_internal.h"

#define WINDOW_FACTOR 16
#define WINDOW_ALIGNMENT ((size_t)1 << 30)
#define BLANK (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED)

static void
make_window_locked(host_device *host) GM_REQUIRES(host->memory_lock)
{
    uint64_t size;
    host->window_tried = true;
    if (gm_align_up(host->head.info.total, GM_RANGE_ALIGNMENT, &size) != GM_OK ||
        size > (SIZE_MAX >> 17) / WINDOW_FACTOR ||
        gm_intervals_reserve(&host->gaps) != GM_OK) {
        return;
    }
    size *= WINDOW_FACTOR;
    void *start = gm_host_map_aligned(size, WINDOW_ALIGNMENT, PROT_NONE);
    if (start == NULL) {
        return;
    }
    host->window = (gm_interval){.address = (uintptr_t)start, .size = size};
    gm_status status = gm_intervals_insert(&host->gaps, (uintptr_t)start, size, NULL);
    GM_VERIFY(status == GM_OK);
}

/* Takes [address, address + span) out of a gap. Pre: room for one more is secured. */
static void
take_gap_locked(host_device *host, gm_interval *gap, uint64_t address, uint64_t span)
    GM_REQUIRES(host->memory_lock)
{
    uint64_t above = gap->address + gap->size - (address + span);
    gap->size = address - gap->address;
    if (gap->size == 0) {
        gm_intervals_remove(&host->gaps, gap);
    }
    if (above != 0) {
        gm_status status =
            gm_intervals_insert(&host->gaps, address + span, above, NULL);
        GM_VERIFY(status == GM_OK);
    }
}

void *
gm_host_window_take_locked(host_device *host, size_t size, size_t alignment,
                           int protection)
{
    size_t span = gm_align_up_unchecked(size, GM_RANGE_ALIGNMENT);
    if (!host->window_tried) {
        make_window_locked(host);
    }
    if (gm_intervals_reserve(&host->gaps) != GM_OK) {
        errno = ENOMEM;
        return NULL;
    }
    for (size_t i = 0; i < host->gaps.count; i++) {
        gm_interval *gap = &host->gaps.items[i];
        uint64_t address = gm_align_up_unchecked(gap->address, alignment);
        uint64_t front = address - gap->address;
        if (front > gap->size || gap->size - front < span) {
            continue;
        }
        void *memory =
            mmap(gm_device_host_pointer(address), size, protection, BLANK, -1, 0);
        if (memory == MAP_FAILED) {
            return NULL;
        }
        take_gap_locked(host, gap, address, span);
        return memory;
    }
    return gm_host_map_aligned(size, alignment, protection);
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
