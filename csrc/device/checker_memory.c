/* checker_memory.c - the checker's books of memory: where pages are mapped, and what
 * used them last.
 */
#include <stdlib.h>

#include "device/checker_internal.h"

/* ---- uses ------------------------------------------------------------------------ */

static void
free_page(gm_checker_page *page)
{
    if (page != NULL) {
        free(page->uses);
        free(page);
    }
}

static void
push_use_locked(gm_checker *checker, gm_checker_page *page, checker_use use)
    GM_REQUIRES(checker->lock)
{
    if (page->count == page->capacity) {
        size_t capacity = page->capacity == 0 ? 8 : page->capacity * 2;
        checker_use *uses = realloc(page->uses, capacity * sizeof(*uses));
        if (uses == NULL) {
            gm_checker_go_blind_locked(checker);
            return;
        }
        page->uses = uses;
        page->capacity = capacity;
    }
    page->uses[page->count++] = use;
}

static void
forget_use(gm_checker_page *page, size_t index)
{
    page->uses[index] = page->uses[--page->count];
}

static bool
overlap(const checker_use *one, const checker_use *other)
{
    return one->begin < other->end && other->begin < one->end;
}

/* Takes the bytes of `later` out of an earlier use, which goes when none are left. */
static void
cut_use_locked(gm_checker *checker, gm_checker_page *page, size_t index,
               const checker_use *later) GM_REQUIRES(checker->lock)
{
    checker_use below = page->uses[index], above = below;
    below.end = below.end < later->begin ? below.end : later->begin;
    above.begin = above.begin > later->end ? above.begin : later->end;
    bool has_below = below.begin < below.end, has_above = above.begin < above.end;
    if (has_below) {
        page->uses[index] = below;
        if (has_above) {
            push_use_locked(checker, page, above);
        }
    }
    else if (has_above) {
        page->uses[index] = above;
    }
    else {
        forget_use(page, index);
    }
}

/* Enters a use. Finished ones need no book any more; an earlier one through the same
 * address that comes before it is implied by it. `begins`: the bytes begin a new life,
 * and one that does not come before is reported, and is over with that. */
static void
enter_use_locked(gm_checker *checker, gm_checker_page *page, const checker_use *use,
                 const checker_stream *stream, bool begins) GM_REQUIRES(checker->lock)
{
    for (size_t i = page->count; i-- > 0;) {
        const checker_use *earlier = &page->uses[i];
        if (gm_checker_is_finished_locked(checker, earlier)) {
            forget_use(page, i);
            continue;
        }
        if (!overlap(earlier, use)) {
            continue;
        }
        bool before = gm_checker_is_before_locked(checker, earlier, stream);
        if (begins && !before) {
            gm_checker_report_locked(checker, "block", use->via + use->begin, page,
                                     earlier, stream);
        }
        if ((before || begins) && earlier->via == use->via) {
            cut_use_locked(checker, page, i, use);
        }
    }
    push_use_locked(checker, page, *use);
}

/* Reports the uses through `via` (all, if that is 0) that nobody knows to be finished. */
static void
check_finished_locked(gm_checker *checker, const char *check, gm_devptr address,
                      gm_devptr via, const gm_checker_page *page)
    GM_REQUIRES(checker->lock)
{
    for (size_t i = 0; i < page->count; i++) {
        const checker_use *use = &page->uses[i];
        if ((via == 0 || use->via == via) &&
            !gm_checker_is_finished_locked(checker, use)) {
            gm_checker_report_locked(checker, check, address, page, use, NULL);
        }
    }
}

/* ---- notes ----------------------------------------------------------------------- */

static void
note_locked(gm_checker *checker, gm_devptr address, size_t size, uint64_t identity,
            bool begins) GM_REQUIRES(checker->lock)
{
    gm_devptr end = address > UINT64_MAX - size ? UINT64_MAX : address + size;
    checker_stream *stream = gm_checker_stream_locked(checker, identity);
    bool noted = false;
    while (stream != NULL && address < end) {
        const gm_interval *range = gm_intervals_holding(&checker->places, address);
        if (range == NULL) {
            break;
        }
        gm_checker_place *place = range->data;
        size_t slot = (size_t)(address - place->address) / place->unit;
        gm_devptr start = place->address + slot * place->unit;
        gm_devptr stop = start + place->unit < end ? start + place->unit : end;
        if (place->slots[slot] != NULL) {
            checker_use use = {.begin = (size_t)(address - start),
                               .end = (size_t)(stop - start),
                               .via = start,
                               .stream = stream->number,
                               .count = stream->uses + 1};
            enter_use_locked(checker, place->slots[slot], &use, stream, begins);
            noted = true;
        }
        address = stop;
    }
    if (noted) {
        stream->uses++;
    }
}

void
gm_checker_note_use(gm_checker *checker, gm_devptr address, size_t size,
                    uint64_t identity)
{
    gm_mutex_lock(&checker->lock);
    if (!checker->blind) {
        note_locked(checker, address, size, identity, false);
    }
    gm_mutex_unlock(&checker->lock);
}

void
gm_checker_note_block(gm_checker *checker, gm_devptr address, size_t size,
                      uint64_t identity)
{
    gm_mutex_lock(&checker->lock);
    if (!checker->blind) {
        note_locked(checker, address, size, identity, true);
    }
    gm_mutex_unlock(&checker->lock);
}

/* ---- ranges and segments --------------------------------------------------------- */

static void
add_place(gm_checker *checker, gm_devptr address, size_t size, size_t unit)
{
    size_t count = size / unit;
    gm_checker_place *place =
        calloc(1, sizeof(*place) + count * sizeof(gm_checker_page *));
    gm_mutex_lock(&checker->lock);
    if (place != NULL) {
        place->address = address;
        place->size = size;
        place->unit = unit;
        if (gm_intervals_insert(&checker->places, address, size, place) != GM_OK) {
            free(place);
            place = NULL;
        }
    }
    if (place == NULL) {
        gm_checker_go_blind_locked(checker);
    }
    else if (unit == size) {
        place->slots[0] = &place->segment;
    }
    gm_mutex_unlock(&checker->lock);
}

void
gm_checker_add_range(gm_checker *checker, gm_devptr address, size_t size)
{
    add_place(checker, address, size, checker->page_size);
}

void
gm_checker_add_segment(gm_checker *checker, gm_devptr address, size_t size)
{
    add_place(checker, address, size, size);
}

gm_checker_place *
gm_checker_take_place(gm_checker *checker, gm_devptr address, size_t size)
{
    gm_checker_place *place = NULL;
    gm_mutex_lock(&checker->lock);
    gm_interval *range = gm_intervals_exactly(&checker->places, address, size);
    if (range != NULL) {
        place = range->data;
        gm_intervals_remove(&checker->places, range);
    }
    gm_mutex_unlock(&checker->lock);
    return place;
}

static void
free_place(gm_checker_place *place)
{
    free(place->segment.uses);
    free(place);
}

void
gm_checker_put_place(gm_checker *checker, gm_checker_place *place)
{
    if (place == NULL) {
        return;
    }
    gm_mutex_lock(&checker->lock);
    if (gm_intervals_insert(&checker->places, place->address, place->size, place) !=
        GM_OK) {
        free_place(place);
        gm_checker_go_blind_locked(checker);
    }
    gm_mutex_unlock(&checker->lock);
}

void
gm_checker_drop_place(gm_checker *checker, gm_checker_place *place)
{
    if (place == NULL) {
        return;
    }
    gm_mutex_lock(&checker->lock);
    if (!checker->blind) {
        check_finished_locked(checker, "segment_destroy", place->address, 0,
                              &place->segment);
    }
    gm_mutex_unlock(&checker->lock);
    free_place(place);
}

/* ---- pages ----------------------------------------------------------------------- */

void
gm_checker_put_page(gm_checker *checker, gm_checker_page *page)
{
    if (page == NULL) {
        return;
    }
    gm_mutex_lock(&checker->lock);
    if (gm_key_map_insert(&checker->pages, page->name, page) != GM_OK) {
        free_page(page);
        gm_checker_go_blind_locked(checker);
    }
    gm_mutex_unlock(&checker->lock);
}

void
gm_checker_add_page(gm_checker *checker, gm_page name)
{
    gm_checker_page *page = calloc(1, sizeof(*page));
    if (page != NULL) {
        page->name = name;
        gm_checker_put_page(checker, page);
        return;
    }
    gm_mutex_lock(&checker->lock);
    gm_checker_go_blind_locked(checker);
    gm_mutex_unlock(&checker->lock);
}

gm_checker_page *
gm_checker_take_page(gm_checker *checker, gm_page name)
{
    gm_mutex_lock(&checker->lock);
    gm_checker_page *page = gm_key_map_remove(&checker->pages, name);
    gm_mutex_unlock(&checker->lock);
    return page;
}

void
gm_checker_drop_page(gm_checker *checker, gm_checker_page *page)
{
    (void)checker;
    free_page(page);
}

/* The slots of the range that holds all of these addresses; NULL: there is none. */
static gm_checker_page **
find_slots_locked(gm_checker *checker, gm_devptr address, size_t size)
    GM_REQUIRES(checker->lock)
{
    const gm_interval *range = gm_intervals_holding(&checker->places, address);
    gm_checker_place *place = range == NULL ? NULL : range->data;
    if (place == NULL || size > place->size - (size_t)(address - place->address)) {
        return NULL;
    }
    return &place->slots[(size_t)(address - place->address) / place->unit];
}

void
gm_checker_map(gm_checker *checker, gm_devptr address, gm_page name)
{
    gm_mutex_lock(&checker->lock);
    gm_checker_page **slot = find_slots_locked(checker, address, checker->page_size);
    if (slot != NULL) {
        *slot = gm_key_map_find(&checker->pages, name);
    }
    gm_mutex_unlock(&checker->lock);
}

void
gm_checker_unmap(gm_checker *checker, gm_devptr address, size_t size, bool check)
{
    size_t unit = checker->page_size;
    gm_mutex_lock(&checker->lock);
    gm_checker_page **slots = find_slots_locked(checker, address, size);
    for (size_t i = 0; slots != NULL && i < size / unit; i++) {
        if (slots[i] != NULL && check && !checker->blind) {
            check_finished_locked(checker, "unmap", address + i * unit,
                                  address + i * unit, slots[i]);
        }
        slots[i] = NULL;
    }
    gm_mutex_unlock(&checker->lock);
}

/* ---- the end --------------------------------------------------------------------- */

void
gm_checker_memory_destroy(gm_checker *checker) GM_NO_THREAD_ANALYSIS
{
    for (size_t i = 0; i < checker->places.count; i++) {
        free_place(checker->places.items[i].data);
    }
    for (size_t i = 0; i < checker->pages.capacity; i++) {
        free_page(checker->pages.entries[i].value);
    }
    gm_intervals_destroy(&checker->places);
    gm_key_map_destroy(&checker->pages);
}
