/* pinned.h - page-locked host memory, as far as a backend without a driver has it.
 *
 * It keeps who pinned what: memory made here and memory of others that was registered,
 * in one registry, since the two must not overlap. Nothing is locked in RAM; what is
 * real is the alignment, the counting, and the refusal of misuse.
 *
 * Thread-safety: every function; its own lock. Ownership: as device.h says.
 * Cost: O(n) moves in a sorted array.
 */
#ifndef GM_DEVICE_PINNED_H
#define GM_DEVICE_PINNED_H

#include <stddef.h>

#include "base/mutex.h"
#include "device/intervals.h"
#include "device/tally.h"

#define GM_PINNED_ALIGNMENT ((size_t)4096)

typedef struct gm_pinned {
    gm_mutex lock;
    gm_tally *tally; /* borrowed; its pinned_now is guarded by `lock` */
    gm_intervals ranges GM_GUARDED_BY(lock); /* data: not NULL when made here */
} gm_pinned;

/* Pre: the struct is zeroed. */
void
gm_pinned_init(gm_pinned *pinned, gm_tally *tally);

/* Frees what pinned_create made and nobody gave back. */
void
gm_pinned_destroy(gm_pinned *pinned);

/* The four functions behind the slots of gm_device_ops; they count no calls. */
GM_NODISCARD gm_status
gm_pinned_create_memory(gm_pinned *pinned, size_t size, void **out);
GM_NODISCARD gm_status
gm_pinned_destroy_memory(gm_pinned *pinned, void *memory, size_t size);
GM_NODISCARD gm_status
gm_pinned_register(gm_pinned *pinned, void *memory, size_t size);
GM_NODISCARD gm_status
gm_pinned_unregister(gm_pinned *pinned, void *memory, size_t size);

#endif
