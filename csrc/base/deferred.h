/* deferred.h - a lock-free list of things to do later.
 *
 * A producer that must not wait (a destructor, a CUDA host function) pushes a node;
 * whoever holds the lock next takes the whole list and works it off. Multiple
 * producers, one consumer at a time (a Treiber stack whose pop takes all, so there
 * is no ABA problem).
 *
 * Thread-safety: push from any thread; take_all under the consumer's lock. The node
 * lives inside the element. Cost: O(1). Order: take_all returns oldest first.
 */
#ifndef GM_BASE_DEFERRED_H
#define GM_BASE_DEFERRED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct gm_deferred_node {
    struct gm_deferred_node *next;
} gm_deferred_node;

typedef struct gm_deferred {
    _Atomic(gm_deferred_node *) top;
} gm_deferred;

static inline void
gm_deferred_init(gm_deferred *list)
{
    atomic_init(&list->top, NULL);
}

static inline bool
gm_deferred_is_empty(gm_deferred *list)
{
    return atomic_load_explicit(&list->top, memory_order_relaxed) == NULL;
}

static inline void
gm_deferred_push(gm_deferred *list, gm_deferred_node *node)
{
    gm_deferred_node *top = atomic_load_explicit(&list->top, memory_order_relaxed);
    do {
        node->next = top;
    } while (!atomic_compare_exchange_weak_explicit(
        &list->top, &top, node, memory_order_release, memory_order_relaxed));
}

/* Takes everything pushed so far, oldest first; NULL when empty. */
static inline gm_deferred_node *
gm_deferred_take_all(gm_deferred *list)
{
    gm_deferred_node *node =
        atomic_exchange_explicit(&list->top, NULL, memory_order_acquire);
    gm_deferred_node *oldest = NULL;
    while (node != NULL) {
        gm_deferred_node *next = node->next;
        node->next = oldest;
        oldest = node;
        node = next;
    }
    return oldest;
}

#endif
