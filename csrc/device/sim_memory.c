/* sim_memory.c - addresses, segments and pages of the sim device.
 *
 * Addresses come from the regions that the device has claimed of the space of all sim
 * devices. What is free of them is in `holes`; the lowest hole that is large enough is
 * used first, so that what is taken does not grow with time.
 */
#include "base/bits.h"
#include "device/sim_internal.h"
#include "device/sim_space.h"

/* ---- capacity and addresses ------------------------------------------------------ */

static bool
fits_locked(const sim_device *sim, size_t size) GM_REQUIRES(sim->lock)
{
    return size <= sim->head.info.total - sim->used;
}

static void
take_locked(sim_device *sim, size_t size) GM_REQUIRES(sim->lock)
{
    sim->used += size;
    gm_tally_add_memory(&sim->tally, size);
}

static void
give_locked(sim_device *sim, size_t size) GM_REQUIRES(sim->lock)
{
    sim->used -= size;
    gm_tally_subtract(&sim->tally.memory_now, size);
}

/* Pre: there is room in `holes`. */
static void
insert_hole_locked(sim_device *sim, uint64_t address, uint64_t size)
    GM_REQUIRES(sim->lock)
{
    if (size > 0) {
        gm_status status = gm_intervals_insert(&sim->holes, address, size, NULL);
        GM_VERIFY(status == GM_OK);
    }
}

/* The range becomes a hole, joined with its neighbours. Pre: room for one more hole is
 * secured. */
static void
give_addresses_locked(sim_device *sim, uint64_t address, uint64_t size)
    GM_REQUIRES(sim->lock)
{
    uint64_t end = address + size;
    gm_interval *before = gm_intervals_holding(&sim->holes, address - 1);
    if (before != NULL) {
        address = before->address;
        gm_intervals_remove(&sim->holes, before);
    }
    gm_interval *after = gm_intervals_holding(&sim->holes, end);
    if (after != NULL) {
        end = after->address + after->size;
        gm_intervals_remove(&sim->holes, after);
    }
    insert_hole_locked(sim, address, end - address);
}

/* When nothing is handed out any more, other devices may have the regions. */
static void
give_idle_regions_locked(sim_device *sim) GM_REQUIRES(sim->lock)
{
    if (sim->segments.count == 0 && sim->book.ranges.count == 0) {
        sim->holes.count = 0;
        gm_sim_space_release(sim);
    }
}

/* Takes the addresses out of the lowest hole that has them, if one has. */
static gm_status
take_from_holes_locked(sim_device *sim, uint64_t size, uint64_t alignment,
                       uint64_t *out) GM_REQUIRES(sim->lock)
{
    for (size_t i = 0; i < sim->holes.count; i++) {
        gm_interval hole = sim->holes.items[i];
        uint64_t start = gm_align_up_unchecked(hole.address, alignment);
        uint64_t before = start - hole.address;
        if (before > hole.size || hole.size - before < size) {
            continue;
        }
        GM_TRY(gm_intervals_reserve(&sim->holes));
        gm_intervals_remove(&sim->holes, &sim->holes.items[i]);
        insert_hole_locked(sim, hole.address, before);
        insert_hole_locked(sim, start + size, hole.size - before - size);
        *out = start;
        return GM_OK;
    }
    return GM_NO_ADDRESS;
}

/* Addresses for `size` bytes. Pre: both are multiples of GM_RANGE_ALIGNMENT and
 * `alignment` is a power of two. */
static gm_status
take_addresses_locked(sim_device *sim, uint64_t size, uint64_t alignment, uint64_t *out)
    GM_REQUIRES(sim->lock)
{
    gm_status status = take_from_holes_locked(sim, size, alignment, out);
    if (status == GM_NO_ADDRESS) {
        gm_interval claimed;
        GM_TRY(gm_intervals_reserve(&sim->holes));
        GM_TRY(gm_sim_space_claim(sim, &sim->holes, size, alignment, &claimed));
        give_addresses_locked(sim, claimed.address, claimed.size);
        status = take_from_holes_locked(sim, size, alignment, out);
    }
    return status;
}

/* ---- whole allocations ----------------------------------------------------------- */

static gm_status
segment_create_locked(sim_device *sim, size_t size, gm_devptr *out)
    GM_REQUIRES(sim->lock)
{
    uint64_t span, address;
    if (!fits_locked(sim, size) ||
        gm_align_up(size, GM_RANGE_ALIGNMENT, &span) != GM_OK) {
        return GM_OUT_OF_MEMORY;
    }
    GM_TRY(gm_intervals_reserve(&sim->segments));
    gm_status status = take_addresses_locked(sim, span, GM_RANGE_ALIGNMENT, &address);
    if (status != GM_OK) {
        return status == GM_NO_ADDRESS ? GM_OUT_OF_MEMORY : status;
    }
    status = gm_intervals_insert(&sim->segments, address, size, NULL);
    GM_VERIFY(status == GM_OK);
    take_locked(sim, size);
    *out = address;
    return GM_OK;
}

gm_status
gm_sim_segment_create(gm_device *self, size_t size, gm_devptr *out)
{
    sim_device *sim = sim_of(self);
    GM_TRY(sim_enter(sim, GM_CALL_SEGMENT_CREATE));
    if (size == 0 || size % 512 != 0) {
        return GM_INVALID;
    }
    gm_mutex_lock(&sim->lock);
    gm_status status = segment_create_locked(sim, size, out);
    gm_mutex_unlock(&sim->lock);
    return status;
}

gm_status
gm_sim_segment_destroy(gm_device *self, gm_devptr address, size_t size)
{
    sim_device *sim = sim_of(self);
    GM_TRY(sim_enter(sim, GM_CALL_SEGMENT_DESTROY));
    gm_mutex_lock(&sim->lock);
    gm_interval *segment = gm_intervals_exactly(&sim->segments, address, size);
    gm_status status = segment == NULL ? GM_INVALID : gm_intervals_reserve(&sim->holes);
    if (status == GM_OK) {
        gm_intervals_remove(&sim->segments, segment);
        give_addresses_locked(sim, address,
                              gm_align_up_unchecked(size, GM_RANGE_ALIGNMENT));
        give_idle_regions_locked(sim);
        give_locked(sim, size);
    }
    gm_mutex_unlock(&sim->lock);
    return status;
}

/* ---- pages ----------------------------------------------------------------------- */

static gm_status
address_reserve_locked(sim_device *sim, size_t size, gm_devptr *out)
    GM_REQUIRES(sim->lock)
{
    uint64_t alignment = sim->head.info.page_size > GM_RANGE_ALIGNMENT
                             ? sim->head.info.page_size
                             : GM_RANGE_ALIGNMENT;
    uint64_t address;
    GM_TRY(gm_page_book_check_size(&sim->book, size));
    GM_TRY(gm_intervals_reserve(&sim->holes));
    GM_TRY(take_addresses_locked(sim, size, alignment, &address));
    gm_status status = gm_page_book_add_range(&sim->book, address, size);
    if (status != GM_OK) {
        give_addresses_locked(sim, address, size);
        return status;
    }
    gm_tally_add(&sim->tally.address_now, size);
    *out = address;
    return GM_OK;
}

gm_status
gm_sim_address_reserve(gm_device *self, size_t size, gm_devptr *out)
{
    sim_device *sim = sim_of(self);
    GM_TRY(sim_enter(sim, GM_CALL_ADDRESS_RESERVE));
    gm_mutex_lock(&sim->lock);
    gm_status status = address_reserve_locked(sim, size, out);
    gm_mutex_unlock(&sim->lock);
    return status;
}

gm_status
gm_sim_address_release(gm_device *self, gm_devptr address, size_t size)
{
    sim_device *sim = sim_of(self);
    GM_TRY(sim_enter(sim, GM_CALL_ADDRESS_RELEASE));
    gm_mutex_lock(&sim->lock);
    gm_status status = gm_page_book_check_range(&sim->book, address, size);
    if (status == GM_OK) {
        status = gm_intervals_reserve(&sim->holes);
    }
    if (status == GM_OK) {
        gm_page_book_remove_range(&sim->book, address, size);
        give_addresses_locked(sim, address, size);
        give_idle_regions_locked(sim);
        gm_tally_subtract(&sim->tally.address_now, size);
    }
    gm_mutex_unlock(&sim->lock);
    return status;
}

gm_status
gm_sim_page_create(gm_device *self, gm_page *out)
{
    sim_device *sim = sim_of(self);
    GM_TRY(sim_enter(sim, GM_CALL_PAGE_CREATE));
    gm_mutex_lock(&sim->lock);
    gm_status status = fits_locked(sim, sim->head.info.page_size)
                           ? gm_page_book_create(&sim->book, out)
                           : GM_OUT_OF_MEMORY;
    if (status == GM_OK) {
        take_locked(sim, sim->head.info.page_size);
    }
    gm_mutex_unlock(&sim->lock);
    return status;
}

gm_status
gm_sim_page_destroy(gm_device *self, gm_page page)
{
    sim_device *sim = sim_of(self);
    GM_TRY(sim_enter(sim, GM_CALL_PAGE_DESTROY));
    gm_mutex_lock(&sim->lock);
    gm_status status = gm_page_book_check_destroy(&sim->book, page);
    if (status == GM_OK) {
        gm_page_book_destroy_page(&sim->book, page);
        give_locked(sim, sim->head.info.page_size);
    }
    gm_mutex_unlock(&sim->lock);
    return status;
}

gm_status
gm_sim_map(gm_device *self, gm_devptr address, gm_page page)
{
    sim_device *sim = sim_of(self);
    gm_page_slots slots;
    GM_TRY(sim_enter(sim, GM_CALL_MAP));
    gm_mutex_lock(&sim->lock);
    gm_status status = gm_page_book_check_map(&sim->book, address, page, &slots);
    if (status == GM_OK) {
        gm_page_book_map(&sim->book, &slots, page);
        gm_tally_add(&sim->tally.mapped_now, sim->head.info.page_size);
    }
    gm_mutex_unlock(&sim->lock);
    return status;
}

gm_status
gm_sim_unmap(gm_device *self, gm_devptr address, size_t size)
{
    sim_device *sim = sim_of(self);
    gm_page_slots slots;
    GM_TRY(sim_enter(sim, GM_CALL_UNMAP));
    gm_mutex_lock(&sim->lock);
    gm_status status = gm_page_book_check_mapped(&sim->book, address, size, &slots);
    if (status == GM_OK) {
        gm_page_book_unmap(&sim->book, &slots);
        gm_tally_subtract(&sim->tally.mapped_now, size);
    }
    gm_mutex_unlock(&sim->lock);
    return status;
}

gm_status
gm_sim_grant(gm_device *self, gm_devptr address, size_t size)
{
    sim_device *sim = sim_of(self);
    gm_page_slots slots;
    GM_TRY(sim_enter(sim, GM_CALL_GRANT));
    gm_mutex_lock(&sim->lock);
    gm_status status = gm_page_book_check_mapped(&sim->book, address, size, &slots);
    gm_mutex_unlock(&sim->lock);
    return status;
}
