/* page_book.h - which pages exist and where they are mapped, for backends that have no
 * driver to keep that (host, sim).
 *
 * It checks every precondition of the page functions of device.h and refuses what
 * breaks one, so that a mistake of the pool shows at the call that makes it. A check
 * and its commit are two steps: between them the backend does the real work, which may
 * fail.
 *
 * Pages are numbered from 0; a gm_page is the number plus 1. The lowest free number is
 * handed out first, so that pages created in a row are neighbours. Nothing here grows
 * with the capacity of the device, only with the pages and slots in use.
 *
 * Note [Breaks]
 * Where pages are mapped from one file, the kernel makes one mapping of two
 * neighbouring slots that hold page n and page n + 1, or both none. Any other two
 * neighbours are a break. A range takes as many kernel mappings as it has breaks, plus
 * one.
 *
 * Thread-safety: none; the owner's lock guards it. Cost: O(log) of pages and ranges.
 */
#ifndef GM_DEVICE_PAGE_BOOK_H
#define GM_DEVICE_PAGE_BOOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/device.h"
#include "device/intervals.h"

/* A tree of bitmaps with 64 children a word: level 0 has a bit for each page (1 = in
 * use), each level above one for each word below (1 = full). 64 ** 5 pages at most. */
#define GM_PAGE_LEVELS 5

typedef struct gm_page_tree {
    uint64_t *levels[GM_PAGE_LEVELS]; /* owned */
    unsigned height;                  /* levels in use; 64 ** height pages */
} gm_page_tree;

typedef struct gm_page_book {
    size_t page_size;
    bool aliasing;       /* one page may be mapped more than once */
    uint64_t page_limit; /* pages that the device has */
    gm_page_tree tree;
    uint32_t *mappings; /* owned; how often each page is mapped */
    size_t mappings_capacity;
    gm_intervals ranges; /* data: a slot table, owned */
    size_t breaks;       /* see Note [Breaks] */
} gm_page_book;

/* Pre: the struct is zeroed. Without paging page_size is 0. */
void
gm_page_book_init(gm_page_book *book, size_t page_size, bool aliasing, size_t capacity);

void
gm_page_book_destroy(gm_page_book *book);

/* For a backend without paging: its page slots become NULL. */
void
gm_page_book_clear_slots(gm_device_ops *ops);

/* ---- pages ---- */

/* The lowest free page, now taken. GM_OUT_OF_MEMORY when none is left. */
GM_NODISCARD gm_status
gm_page_book_create(gm_page_book *book, gm_page *out);

/* GM_OK when the page exists and is mapped nowhere, else GM_INVALID. */
GM_NODISCARD gm_status
gm_page_book_check_destroy(const gm_page_book *book, gm_page page);

/* Pre: gm_page_book_check_destroy said GM_OK, or the page was just created. */
void
gm_page_book_destroy_page(gm_page_book *book, gm_page page);

/* The lowest page that exists and is above `page`; 0: none. Cost: O(pages between). */
gm_page
gm_page_book_next(const gm_page_book *book, gm_page page);

/* ---- ranges ---- */

/* GM_INVALID when `size` is no multiple of GM_RANGE_ALIGNMENT and page_size. */
GM_NODISCARD gm_status
gm_page_book_check_size(const gm_page_book *book, size_t size);

/* Pre: gm_page_book_check_size. Nothing is mapped. GM_NO_HOST_MEMORY. */
GM_NODISCARD gm_status
gm_page_book_add_range(gm_page_book *book, gm_devptr address, size_t size);

/* GM_OK when it is exactly one range with nothing mapped, else GM_INVALID. */
GM_NODISCARD gm_status
gm_page_book_check_range(const gm_page_book *book, gm_devptr address, size_t size);

/* Pre: gm_page_book_check_range said GM_OK, or the range was just added. */
void
gm_page_book_remove_range(gm_page_book *book, gm_devptr address, size_t size);

/* ---- slots ---- */

/* Slots of a range, found by a check and used by its commit. Borrowed until the next
 * change of a range. */
typedef struct gm_page_slots {
    uint32_t *first; /* 0: free; else page number + 1 */
    size_t count;
    size_t *mapped;  /* the range's count of mapped slots */
    bool has_before; /* the range has a slot before them */
    bool has_after;
} gm_page_slots;

/* GM_OK when the slot at `address` is free and `page` may be mapped there. */
GM_NODISCARD gm_status
gm_page_book_check_map(const gm_page_book *book, gm_devptr address, gm_page page,
                       gm_page_slots *out);

/* How many breaks mapping `page` there makes: from -2 to 2. */
int
gm_page_book_breaks_of_map(const gm_page_slots *slots, gm_page page);

void
gm_page_book_map(gm_page_book *book, const gm_page_slots *slots, gm_page page);

/* GM_OK when [address, address + size) lies in one range and all of it is mapped. */
GM_NODISCARD gm_status
gm_page_book_check_mapped(const gm_page_book *book, gm_devptr address, size_t size,
                          gm_page_slots *out);

void
gm_page_book_unmap(gm_page_book *book, const gm_page_slots *slots);

/* Calls `visit` for each longest run of mapped slots, until it returns false. The book
 * must not change meanwhile. Cost: O(slots of all ranges). */
void
gm_page_book_visit_mapped(const gm_page_book *book,
                          bool (*visit)(gm_devptr address, size_t size, void *argument),
                          void *argument);

#endif
