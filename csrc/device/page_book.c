#include "device/page_book.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/bits.h"

#define FULL UINT64_MAX

/* A page number plus 1 has to fit the 32 bits of a slot. */
#define MOST_PAGES ((uint64_t)1 << (6 * GM_PAGE_LEVELS))
_Static_assert(6 * GM_PAGE_LEVELS < 32, "page numbers fit a slot");

typedef struct slot_table {
    size_t mapped;    /* slots that are not 0 */
    uint32_t slots[]; /* 0: free; else page number + 1 */
} slot_table;

/* ---- the tree of free pages ------------------------------------------------------ */

static uint64_t
tree_capacity(const gm_page_tree *tree)
{
    return tree->height == 0 ? 0 : (uint64_t)1 << (6 * tree->height);
}

static size_t
words_of_level(unsigned height, unsigned level)
{
    return (size_t)1 << (6 * (height - 1 - level));
}

/* One level more: 64 times the pages. */
static gm_status
tree_grow(gm_page_tree *tree)
{
    uint64_t *grown[GM_PAGE_LEVELS] = {NULL};
    unsigned height = tree->height + 1;
    if (height > GM_PAGE_LEVELS) {
        return GM_OUT_OF_MEMORY;
    }
    for (unsigned level = 0; level < height; level++) {
        grown[level] = calloc(words_of_level(height, level), sizeof(uint64_t));
        if (grown[level] == NULL) {
            goto fail;
        }
    }
    for (unsigned level = 0; level < tree->height; level++) {
        memcpy(grown[level], tree->levels[level],
               words_of_level(tree->height, level) * sizeof(uint64_t));
    }
    if (tree->height > 0 && tree->levels[tree->height - 1][0] == FULL) {
        grown[height - 1][0] = 1;
    }
    for (unsigned level = 0; level < height; level++) {
        free(tree->levels[level]);
        tree->levels[level] = grown[level];
    }
    tree->height = height;
    return GM_OK;
fail:
    for (unsigned level = 0; level < height; level++) {
        free(grown[level]);
    }
    return GM_NO_HOST_MEMORY;
}

/* The lowest page whose bit is 0; the tree's capacity when there is none. */
static uint64_t
tree_lowest(const gm_page_tree *tree)
{
    size_t index = 0;
    if (tree->height == 0 || tree->levels[tree->height - 1][0] == FULL) {
        return tree_capacity(tree);
    }
    for (unsigned level = tree->height; level-- > 0;) {
        index = index * 64 + gm_lowest_bit(~tree->levels[level][index]);
    }
    return index;
}

static void
tree_set(gm_page_tree *tree, uint64_t page)
{
    size_t index = (size_t)page;
    for (unsigned level = 0; level < tree->height; level++) {
        uint64_t *word = &tree->levels[level][index / 64];
        *word |= (uint64_t)1 << (index % 64);
        if (*word != FULL) {
            return;
        }
        index /= 64;
    }
}

static void
tree_clear(gm_page_tree *tree, uint64_t page)
{
    size_t index = (size_t)page;
    for (unsigned level = 0; level < tree->height; level++) {
        uint64_t *word = &tree->levels[level][index / 64];
        bool was_full = *word == FULL;
        *word &= ~((uint64_t)1 << (index % 64));
        if (!was_full) {
            return;
        }
        index /= 64;
    }
}

static bool
tree_has(const gm_page_tree *tree, uint64_t page)
{
    return page < tree_capacity(tree) &&
           (tree->levels[0][page / 64] >> (page % 64) & 1) != 0;
}

/* ---- the book -------------------------------------------------------------------- */

void
gm_page_book_init(gm_page_book *book, size_t page_size, bool aliasing, size_t capacity)
{
    book->page_size = page_size;
    book->aliasing = aliasing;
    book->page_limit = page_size == 0 ? 0 : capacity / page_size;
    if (book->page_limit > MOST_PAGES) {
        book->page_limit = MOST_PAGES;
    }
}

void
gm_page_book_destroy(gm_page_book *book)
{
    for (unsigned level = 0; level < GM_PAGE_LEVELS; level++) {
        free(book->tree.levels[level]);
    }
    for (size_t i = 0; i < book->ranges.count; i++) {
        free(book->ranges.items[i].data);
    }
    free(book->mappings);
    gm_intervals_destroy(&book->ranges);
    memset(book, 0, sizeof(*book));
}

void
gm_page_book_clear_slots(gm_device_ops *ops)
{
    ops->address_reserve = NULL;
    ops->address_release = NULL;
    ops->page_create = NULL;
    ops->page_destroy = NULL;
    ops->map = NULL;
    ops->unmap = NULL;
    ops->grant = NULL;
}

/* Room for the counter of page number `page`. */
static gm_status
secure_mappings(gm_page_book *book, uint64_t page)
{
    if (page < book->mappings_capacity) {
        return GM_OK;
    }
    size_t capacity = book->mappings_capacity == 0 ? 64 : book->mappings_capacity * 2;
    uint32_t *mappings = realloc(book->mappings, capacity * sizeof(*mappings));
    if (mappings == NULL) {
        return GM_NO_HOST_MEMORY;
    }
    memset(mappings + book->mappings_capacity, 0,
           (capacity - book->mappings_capacity) * sizeof(*mappings));
    book->mappings = mappings;
    book->mappings_capacity = capacity;
    return GM_OK;
}

gm_status
gm_page_book_create(gm_page_book *book, gm_page *out)
{
    uint64_t page = tree_lowest(&book->tree);
    if (page >= book->page_limit) {
        return GM_OUT_OF_MEMORY;
    }
    if (page == tree_capacity(&book->tree)) {
        GM_TRY(tree_grow(&book->tree));
    }
    GM_TRY(secure_mappings(book, page));
    tree_set(&book->tree, page);
    *out = page + 1;
    return GM_OK;
}

static bool
page_exists(const gm_page_book *book, gm_page page)
{
    return page != 0 && tree_has(&book->tree, page - 1);
}

gm_status
gm_page_book_check_destroy(const gm_page_book *book, gm_page page)
{
    if (!page_exists(book, page) || book->mappings[page - 1] != 0) {
        return GM_INVALID;
    }
    return GM_OK;
}

void
gm_page_book_destroy_page(gm_page_book *book, gm_page page)
{
    tree_clear(&book->tree, page - 1);
}

gm_page
gm_page_book_next(const gm_page_book *book, gm_page page)
{
    uint64_t end = tree_capacity(&book->tree);
    while (page < end && !tree_has(&book->tree, page)) {
        page++;
    }
    return page < end ? page + 1 : 0;
}

/* ---- ranges ---------------------------------------------------------------------- */

gm_status
gm_page_book_check_size(const gm_page_book *book, size_t size)
{
    if (size == 0 || size % GM_RANGE_ALIGNMENT != 0 || size % book->page_size != 0) {
        return GM_INVALID;
    }
    return GM_OK;
}

gm_status
gm_page_book_add_range(gm_page_book *book, gm_devptr address, size_t size)
{
    size_t slots = size / book->page_size;
    slot_table *table = calloc(1, sizeof(*table) + slots * sizeof(table->slots[0]));
    if (table == NULL) {
        return GM_NO_HOST_MEMORY;
    }
    gm_status status = gm_intervals_insert(&book->ranges, address, size, table);
    if (status != GM_OK) {
        free(table);
    }
    return status;
}

gm_status
gm_page_book_check_range(const gm_page_book *book, gm_devptr address, size_t size)
{
    const gm_interval *range = gm_intervals_exactly(&book->ranges, address, size);
    if (range == NULL || ((const slot_table *)range->data)->mapped != 0) {
        return GM_INVALID;
    }
    return GM_OK;
}

void
gm_page_book_remove_range(gm_page_book *book, gm_devptr address, size_t size)
{
    gm_interval *range = gm_intervals_exactly(&book->ranges, address, size);
    GM_VERIFY(range != NULL);
    free(range->data);
    gm_intervals_remove(&book->ranges, range);
}

/* ---- slots ----------------------------------------------------------------------- */

/* GM_INVALID unless it is a run of whole slots inside one range. */
static gm_status
find_slots(const gm_page_book *book, gm_devptr address, size_t size, gm_page_slots *out)
{
    const gm_interval *range = gm_intervals_holding(&book->ranges, address);
    if (range == NULL || size == 0 || size > range->size - (address - range->address) ||
        address % book->page_size != 0 || size % book->page_size != 0) {
        return GM_INVALID;
    }
    slot_table *table = range->data;
    out->first = &table->slots[(address - range->address) / book->page_size];
    out->count = size / book->page_size;
    out->mapped = &table->mapped;
    out->has_before = address > range->address;
    out->has_after = address + size < range->address + range->size;
    return GM_OK;
}

gm_status
gm_page_book_check_map(const gm_page_book *book, gm_devptr address, gm_page page,
                       gm_page_slots *out)
{
    gm_page_slots slots;
    GM_TRY(find_slots(book, address, book->page_size, &slots));
    if (!page_exists(book, page) || *slots.first != 0 ||
        (book->mappings[page - 1] != 0 && !book->aliasing)) {
        return GM_INVALID;
    }
    *out = slots;
    return GM_OK;
}

/* Are two neighbouring slots a break? */
static int
is_break(uint32_t left, uint32_t right)
{
    if (left == 0 || right == 0) {
        return left != right;
    }
    return right != left + 1;
}

/* The breaks of a run of slots, with both its edges. */
static size_t
count_breaks(const gm_page_slots *slots)
{
    const uint32_t *first = slots->has_before ? slots->first - 1 : slots->first;
    const uint32_t *last = slots->first + slots->count - (slots->has_after ? 0 : 1);
    size_t breaks = 0;
    for (const uint32_t *slot = first; slot < last; slot++) {
        breaks += (size_t)is_break(slot[0], slot[1]);
    }
    return breaks;
}

int
gm_page_book_breaks_of_map(const gm_page_slots *slots, gm_page page)
{
    int more = 0;
    if (slots->has_before) {
        uint32_t before = slots->first[-1];
        more += is_break(before, (uint32_t)page) - is_break(before, *slots->first);
    }
    if (slots->has_after) {
        uint32_t after = slots->first[1];
        more += is_break((uint32_t)page, after) - is_break(*slots->first, after);
    }
    return more;
}

void
gm_page_book_map(gm_page_book *book, const gm_page_slots *slots, gm_page page)
{
    book->breaks -= count_breaks(slots);
    *slots->first = (uint32_t)page;
    book->breaks += count_breaks(slots);
    book->mappings[page - 1]++;
    ++*slots->mapped;
}

gm_status
gm_page_book_check_mapped(const gm_page_book *book, gm_devptr address, size_t size,
                          gm_page_slots *out)
{
    gm_page_slots slots;
    GM_TRY(find_slots(book, address, size, &slots));
    for (size_t i = 0; i < slots.count; i++) {
        if (slots.first[i] == 0) {
            return GM_INVALID;
        }
    }
    *out = slots;
    return GM_OK;
}

void
gm_page_book_unmap(gm_page_book *book, const gm_page_slots *slots)
{
    book->breaks -= count_breaks(slots);
    for (size_t i = 0; i < slots->count; i++) {
        book->mappings[slots->first[i] - 1]--;
        slots->first[i] = 0;
    }
    book->breaks += count_breaks(slots);
    *slots->mapped -= slots->count;
}

/* The runs of one range; false when the visitor has enough. */
static bool
visit_runs(const gm_page_book *book, const gm_interval *range,
           bool (*visit)(gm_devptr address, size_t size, void *argument),
           void *argument)
{
    const slot_table *table = range->data;
    size_t count = (size_t)(range->size / book->page_size);
    size_t start = 0;
    for (size_t slot = 0; slot <= count; slot++) {
        if (slot < count && table->slots[slot] != 0) {
            continue;
        }
        if (slot > start && !visit(range->address + start * book->page_size,
                                   (slot - start) * book->page_size, argument)) {
            return false;
        }
        start = slot + 1;
    }
    return true;
}

void
gm_page_book_visit_mapped(const gm_page_book *book,
                          bool (*visit)(gm_devptr address, size_t size, void *argument),
                          void *argument)
{
    for (size_t i = 0; i < book->ranges.count; i++) {
        if (!visit_runs(book, &book->ranges.items[i], visit, argument)) {
            return;
        }
    }
}
