/* list.h - an intrusive doubly linked ring.
 *
 * A gm_list is both the head and the link inside an element, so that insertion and
 * removal allocate nothing. An empty ring points to itself. GM_CONTAINER_OF finds
 * the element from its link.
 *
 * Thread-safety: none; the owner's lock guards it. Cost: O(1) each.
 */
#ifndef GM_BASE_LIST_H
#define GM_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

typedef struct gm_list {
    struct gm_list *next;
    struct gm_list *prev;
} gm_list;

#define GM_CONTAINER_OF(link, type, member) \
    ((type *)(void *)((char *)(link) - offsetof(type, member)))

static inline void
gm_list_init(gm_list *list)
{
    list->next = list;
    list->prev = list;
}

static inline bool
gm_list_is_empty(const gm_list *list)
{
    return list->next == list;
}

/* Links `link` before `position`; with a head as position, at the end. */
static inline void
gm_list_insert_before(gm_list *position, gm_list *link)
{
    link->next = position;
    link->prev = position->prev;
    position->prev->next = link;
    position->prev = link;
}

static inline void
gm_list_push_front(gm_list *head, gm_list *link)
{
    gm_list_insert_before(head->next, link);
}

static inline void
gm_list_push_back(gm_list *head, gm_list *link)
{
    gm_list_insert_before(head, link);
}

/* Unlinks and leaves `link` as an empty ring, so that removing twice is harmless. */
static inline void
gm_list_remove(gm_list *link)
{
    link->prev->next = link->next;
    link->next->prev = link->prev;
    gm_list_init(link);
}

/* Moves every element of `from` to the end of `to`; `from` ends empty. */
static inline void
gm_list_splice_back(gm_list *to, gm_list *from)
{
    if (gm_list_is_empty(from)) {
        return;
    }
    from->next->prev = to->prev;
    to->prev->next = from->next;
    from->prev->next = to;
    to->prev = from->prev;
    gm_list_init(from);
}

#define GM_LIST_FOREACH(iterator, head)                        \
    for (gm_list *iterator = (head)->next; iterator != (head); \
         iterator = iterator->next)

/* As above where the body may remove the current element. */
#define GM_LIST_FOREACH_SAFE(iterator, following, head)                 \
    for (gm_list *iterator = (head)->next, *following = iterator->next; \
         iterator != (head); iterator = following, following = iterator->next)

#endif
