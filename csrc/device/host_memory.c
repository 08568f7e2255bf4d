/* host_memory.c - segments, addresses and pages of the host device.
 *
 * All pages are parts of one memfd, page i at offset i * page_size. The file has the
 * size of the device and takes memory only where it was written; destroying a page
 * punches a hole. Reserved addresses are mappings without access. Mapping puts a part
 * of the file there, still without access, and grant gives it: a program that forgets
 * the grant faults, as on a GPU.
 *
 * The kernel joins neighbouring mappings when addresses, offsets and access continue
 * each other. The book hands out the lowest page first so that this is the usual case;
 * the limit of mappings is then reached by scattered pages alone. Our devices take no
 * more than seven eighths of it: past the limit the whole program could not map any
 * more, and malloc would fail with it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/bits.h"
#include "device/host_internal.h"

#define KERNEL_PAGE ((size_t)4096)

/* The kernel's limit of mappings where it does not say. */
#define USUAL_MAPPINGS 65530

/* Breaks (Note [Breaks]) of all host devices of this process, and how many there may
 * be. A child of fork has its parent's mappings, so it goes on from the same number. */
static _Atomic size_t all_breaks;
static _Atomic size_t most_breaks;

/* ---- capacity -------------------------------------------------------------------- */

static gm_status
take_capacity_locked(host_device *host, size_t size) GM_REQUIRES(host->memory_lock)
{
    GM_ASSERT(gm_mutex_is_held(&host->memory_lock));
    size_t taken = host->used + host->occupied;
    if (size > host->head.info.total - taken) {
        return GM_OUT_OF_MEMORY;
    }
    if (host->share != NULL) {
        GM_TRY(gm_host_share_set(host->share, taken + size));
    }
    host->used += size;
    gm_tally_add_memory(&host->tally, size);
    return GM_OK;
}

static void
give_capacity_locked(host_device *host, size_t size) GM_REQUIRES(host->memory_lock)
{
    GM_ASSERT(gm_mutex_is_held(&host->memory_lock) && host->used >= size);
    host->used -= size;
    gm_tally_subtract(&host->tally.memory_now, size);
    if (host->share != NULL) {
        gm_status status = gm_host_share_set(host->share, host->used + host->occupied);
        GM_VERIFY(status == GM_OK);
    }
}

gm_status
gm_host_memory_info(gm_device *self, size_t *free_bytes, size_t *total_bytes)
{
    host_device *host = host_of(self);
    GM_TRY(host_enter(host, GM_CALL_MEMORY_INFO));
    size_t reported = atomic_load_explicit(&host->reported_free, memory_order_relaxed);
    if (reported == SIZE_MAX) {
        gm_mutex_lock(&host->memory_lock);
        reported = host->share != NULL
                       ? gm_host_share_free(host->share)
                       : host->head.info.total - host->used - host->occupied;
        gm_mutex_unlock(&host->memory_lock);
    }
    *free_bytes = reported;
    *total_bytes = host->head.info.total;
    return GM_OK;
}

gm_status
gm_host_occupy(gm_device *device, size_t bytes)
{
    host_device *host = host_of(device);
    GM_TRY(gm_device_usable(device));
    gm_mutex_lock(&host->memory_lock);
    gm_status status = GM_OK;
    if (bytes > host->head.info.total - host->used) {
        status = GM_OUT_OF_MEMORY;
    }
    else if (host->share != NULL) {
        status = gm_host_share_set(host->share, host->used + bytes);
    }
    if (status == GM_OK) {
        host->occupied = bytes;
    }
    gm_mutex_unlock(&host->memory_lock);
    return status;
}

/* ---- addresses ------------------------------------------------------------------- */

/* ENOMEM is the kernel's limit of mappings, since nothing here is charged against its
 * memory before it is touched. */
gm_status
gm_host_mapping_status(void)
{
    return errno == ENOMEM ? GM_NO_MAPPING : GM_DEVICE_ERROR;
}

void *
gm_host_map_aligned(size_t size, size_t alignment, int protection)
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    if (size > SIZE_MAX - alignment) {
        errno = ENOMEM;
        return NULL;
    }
    char *start = mmap(NULL, size + alignment, protection, flags, -1, 0);
    if (start == MAP_FAILED) {
        return NULL;
    }
    size_t before = (size_t)(-(uintptr_t)start & (alignment - 1));
    if (before > 0) {
        (void)munmap(start, before);
    }
    (void)munmap(start + before + size, alignment - before);
    return start + before;
}

/* ---- whole allocations ----------------------------------------------------------- */

static gm_status
segment_create_locked(host_device *host, size_t size, gm_devptr *out)
    GM_REQUIRES(host->memory_lock)
{
    size_t span = gm_align_up_unchecked(size, KERNEL_PAGE);
    GM_TRY(gm_intervals_reserve(&host->segments));
    GM_TRY(take_capacity_locked(host, size));
    void *memory = gm_host_window_take_locked(host, span, GM_RANGE_ALIGNMENT,
                                              PROT_READ | PROT_WRITE);
    if (memory == NULL) {
        give_capacity_locked(host, size);
        return gm_host_mapping_status();
    }
    gm_status status =
        gm_intervals_insert(&host->segments, (uintptr_t)memory, size, NULL);
    GM_VERIFY(status == GM_OK);
    *out = (uintptr_t)memory;
    return GM_OK;
}

gm_status
gm_host_segment_create(gm_device *self, size_t size, gm_devptr *out)
{
    host_device *host = host_of(self);
    GM_TRY(host_enter_outside_capture(host, GM_CALL_SEGMENT_CREATE));
    if (size == 0 || size % 512 != 0) {
        return GM_INVALID;
    }
    if (size > host->head.info.total) {
        return GM_OUT_OF_MEMORY;
    }
    gm_mutex_lock(&host->memory_lock);
    gm_status status = segment_create_locked(host, size, out);
    gm_mutex_unlock(&host->memory_lock);
    return status;
}

static gm_status
segment_destroy_locked(host_device *host, gm_devptr address, size_t size)
    GM_REQUIRES(host->memory_lock)
{
    gm_interval *segment = gm_intervals_exactly(&host->segments, address, size);
    if (segment == NULL) {
        return GM_INVALID;
    }
    size_t span = gm_align_up_unchecked(size, KERNEL_PAGE);
    GM_TRY(gm_host_window_give_locked(host, address, span));
    gm_intervals_remove(&host->segments, segment);
    give_capacity_locked(host, size);
    return GM_OK;
}

gm_status
gm_host_segment_destroy(gm_device *self, gm_devptr address, size_t size)
{
    host_device *host = host_of(self);
    GM_TRY(host_enter_outside_capture(host, GM_CALL_SEGMENT_DESTROY));
    gm_mutex_lock(&host->memory_lock);
    gm_status status = segment_destroy_locked(host, address, size);
    gm_mutex_unlock(&host->memory_lock);
    return status;
}

/* ---- address ranges -------------------------------------------------------------- */

static gm_status
address_reserve_locked(host_device *host, size_t size, gm_devptr *out)
    GM_REQUIRES(host->memory_lock)
{
    size_t page_size = host->book.page_size;
    size_t alignment = page_size > GM_RANGE_ALIGNMENT ? page_size : GM_RANGE_ALIGNMENT;
    GM_TRY(gm_page_book_check_size(&host->book, size));
    void *start = gm_host_window_take_locked(host, size, alignment, PROT_NONE);
    if (start == NULL) {
        return GM_NO_ADDRESS;
    }
    gm_status status = gm_page_book_add_range(&host->book, (uintptr_t)start, size);
    if (status != GM_OK) {
        gm_status given = gm_host_window_give_locked(host, (uintptr_t)start, size);
        (void)given; /* the first failure says more */
        return status;
    }
    gm_tally_add(&host->tally.address_now, size);
    *out = (uintptr_t)start;
    return GM_OK;
}

gm_status
gm_host_address_reserve(gm_device *self, size_t size, gm_devptr *out)
{
    host_device *host = host_of(self);
    GM_TRY(host_enter(host, GM_CALL_ADDRESS_RESERVE));
    gm_mutex_lock(&host->memory_lock);
    gm_status status = address_reserve_locked(host, size, out);
    gm_mutex_unlock(&host->memory_lock);
    return status;
}

gm_status
gm_host_address_release(gm_device *self, gm_devptr address, size_t size)
{
    host_device *host = host_of(self);
    GM_TRY(host_enter(host, GM_CALL_ADDRESS_RELEASE));
    gm_mutex_lock(&host->memory_lock);
    gm_status status = gm_page_book_check_range(&host->book, address, size);
    if (status == GM_OK) {
        status = gm_host_window_give_locked(host, address, size);
    }
    if (status == GM_OK) {
        gm_page_book_remove_range(&host->book, address, size);
        gm_tally_subtract(&host->tally.address_now, size);
    }
    gm_mutex_unlock(&host->memory_lock);
    return status;
}

/* ---- pages ----------------------------------------------------------------------- */

static off_t
page_offset(const host_device *host, gm_page page) GM_REQUIRES(host->memory_lock)
{
    return (off_t)((page - 1) * host->book.page_size);
}

gm_status
gm_host_page_create(gm_device *self, gm_page *out)
{
    host_device *host = host_of(self);
    gm_page page;
    GM_TRY(host_enter_outside_capture(host, GM_CALL_PAGE_CREATE));
    gm_mutex_lock(&host->memory_lock);
    gm_status status = take_capacity_locked(host, host->book.page_size);
    if (status == GM_OK) {
        status = gm_page_book_create(&host->book, &page);
        if (status == GM_OK) {
            *out = page;
        }
        else {
            give_capacity_locked(host, host->book.page_size);
        }
    }
    gm_mutex_unlock(&host->memory_lock);
    return status;
}

gm_status
gm_host_page_destroy(gm_device *self, gm_page page)
{
    host_device *host = host_of(self);
    GM_TRY(host_enter_outside_capture(host, GM_CALL_PAGE_DESTROY));
    gm_mutex_lock(&host->memory_lock);
    gm_status status = gm_page_book_check_destroy(&host->book, page);
    if (status == GM_OK &&
        fallocate(host->memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  page_offset(host, page), (off_t)host->book.page_size) != 0) {
        status = GM_DEVICE_ERROR;
    }
    if (status == GM_OK) {
        gm_page_book_destroy_page(&host->book, page);
        give_capacity_locked(host, host->book.page_size);
    }
    gm_mutex_unlock(&host->memory_lock);
    return status;
}

/* ---- mapping --------------------------------------------------------------------- */

/* Keeps the sum over all devices; `before` is what this one had. */
static void
note_breaks_locked(const host_device *host, size_t before)
    GM_REQUIRES(host->memory_lock)
{
    /* The difference may be negative: it wraps, and so does the sum. */
    atomic_fetch_add_explicit(&all_breaks, host->book.breaks - before,
                              memory_order_relaxed);
}

static gm_status
map_locked(host_device *host, gm_devptr address, gm_page page)
    GM_REQUIRES(host->memory_lock)
{
    size_t page_size = host->book.page_size;
    size_t breaks = host->book.breaks;
    gm_page_slots slots;
    GM_TRY(gm_page_book_check_map(&host->book, address, page, &slots));
    if (gm_page_book_breaks_of_map(&slots, page) > 0 &&
        atomic_load_explicit(&all_breaks, memory_order_relaxed) >=
            atomic_load_explicit(&most_breaks, memory_order_relaxed)) {
        return GM_NO_MAPPING;
    }
    void *mapped = mmap(gm_device_host_pointer(address), page_size, PROT_NONE,
                        MAP_SHARED | MAP_FIXED, host->memfd, page_offset(host, page));
    if (mapped == MAP_FAILED) {
        return gm_host_mapping_status();
    }
    gm_page_book_map(&host->book, &slots, page);
    note_breaks_locked(host, breaks);
    gm_tally_add(&host->tally.mapped_now, page_size);
    return GM_OK;
}

gm_status
gm_host_map(gm_device *self, gm_devptr address, gm_page page)
{
    host_device *host = host_of(self);
    GM_TRY(host_enter(host, GM_CALL_MAP));
    gm_mutex_lock(&host->memory_lock);
    gm_status status = map_locked(host, address, page);
    gm_mutex_unlock(&host->memory_lock);
    return status;
}

static gm_status
unmap_locked(host_device *host, gm_devptr address, size_t size)
    GM_REQUIRES(host->memory_lock)
{
    size_t breaks = host->book.breaks;
    gm_page_slots slots;
    GM_TRY(gm_page_book_check_mapped(&host->book, address, size, &slots));
    void *blank = mmap(gm_device_host_pointer(address), size, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    /* At the limit of mappings the kernel takes no new one, even for less in the end.
     * Without access the old one is as good: the next map replaces it. */
    if (blank == MAP_FAILED &&
        mprotect(gm_device_host_pointer(address), size, PROT_NONE) != 0) {
        return gm_host_mapping_status();
    }
    gm_page_book_unmap(&host->book, &slots);
    note_breaks_locked(host, breaks);
    gm_tally_subtract(&host->tally.mapped_now, size);
    return GM_OK;
}

gm_status
gm_host_unmap(gm_device *self, gm_devptr address, size_t size)
{
    host_device *host = host_of(self);
    GM_TRY(host_enter_outside_capture(host, GM_CALL_UNMAP));
    gm_mutex_lock(&host->memory_lock);
    gm_status status = unmap_locked(host, address, size);
    gm_mutex_unlock(&host->memory_lock);
    return status;
}

gm_status
gm_host_grant(gm_device *self, gm_devptr address, size_t size)
{
    host_device *host = host_of(self);
    gm_page_slots slots;
    GM_TRY(host_enter(host, GM_CALL_GRANT));
    gm_mutex_lock(&host->memory_lock);
    gm_status status = gm_page_book_check_mapped(&host->book, address, size, &slots);
    if (status == GM_OK &&
        mprotect(gm_device_host_pointer(address), size, PROT_READ | PROT_WRITE) != 0) {
        status = gm_host_mapping_status();
    }
    gm_mutex_unlock(&host->memory_lock);
    return status;
}

/* ---- life ------------------------------------------------------------------------ */

static void
read_mapping_limit(void)
{
    size_t limit = USUAL_MAPPINGS;
    FILE *file = fopen("/proc/sys/vm/max_map_count", "re");
    if (file != NULL) {
        if (fscanf(file, "%zu", &limit) != 1) {
            limit = USUAL_MAPPINGS;
        }
        (void)fclose(file);
    }
    atomic_store_explicit(&most_breaks, limit - limit / 8, memory_order_relaxed);
}

gm_status
gm_host_memory_init(host_device *host, bool aliasing)
{
    const gm_device_info *info = &host->head.info;
    gm_mutex_init(&host->memory_lock, GM_RANK_DEVICE);
    gm_page_book_init(&host->book, info->page_size, aliasing, info->total);
    if (info->page_size == 0) {
        return GM_OK;
    }
    read_mapping_limit();
    host->memfd = memfd_create(info->name, MFD_CLOEXEC);
    if (host->memfd < 0) {
        return GM_NO_HOST_MEMORY;
    }
    off_t size = (off_t)gm_align_down(info->total, info->page_size);
    if (ftruncate(host->memfd, size) != 0) {
        (void)close(host->memfd);
        host->memfd = -1;
        return GM_NO_HOST_MEMORY;
    }
    return GM_OK;
}

/* The window goes as a whole. */
static void
unmap_outside_window(const host_device *host,
                     const gm_intervals *intervals) GM_NO_THREAD_ANALYSIS
{
    for (size_t i = 0; i < intervals->count; i++) {
        const gm_interval *interval = &intervals->items[i];
        if (!gm_host_in_window_locked(host, interval->address)) {
            (void)munmap(gm_device_host_pointer(interval->address),
                         gm_align_up_unchecked(interval->size, KERNEL_PAGE));
        }
    }
}

void
gm_host_memory_destroy(host_device *host) GM_NO_THREAD_ANALYSIS
{
    unmap_outside_window(host, &host->segments);
    unmap_outside_window(host, &host->book.ranges);
    gm_host_window_destroy(host);
    atomic_fetch_sub_explicit(&all_breaks, host->book.breaks, memory_order_relaxed);
    gm_intervals_destroy(&host->segments);
    gm_page_book_destroy(&host->book);
    if (host->memfd >= 0) {
        (void)close(host->memfd);
        host->memfd = -1;
    }
}
