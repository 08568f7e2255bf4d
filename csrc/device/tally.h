/* tally.h - the counters of a backend that keeps them itself (host, sim).
 *
 * Every call is counted, failed or not, before it can fail. The byte counts change
 * only under the backend's lock for memory, so that the high-water mark is exact; they
 * are atomic so that reading needs no lock, also in a child of fork, where the lock
 * may never be released.
 *
 * Thread-safety: counting calls and reading from any thread; the rest under the
 * owner's lock. Cost: one atomic addition each.
 */
#ifndef GM_DEVICE_TALLY_H
#define GM_DEVICE_TALLY_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/assert.h"
#include "device/device.h"

typedef struct gm_tally {
    _Atomic uint64_t calls[GM_CALL_COUNT];
    _Atomic uint64_t memory_now; /* bytes, all of them */
    _Atomic uint64_t memory_peak;
    _Atomic uint64_t pinned_now;
    _Atomic uint64_t mapped_now;
    _Atomic uint64_t address_now;
} gm_tally;

static inline void
gm_tally_call(gm_tally *tally, gm_device_call call)
{
    atomic_fetch_add_explicit(&tally->calls[call], 1, memory_order_relaxed);
}

static inline void
gm_tally_add(_Atomic uint64_t *bytes, uint64_t more)
{
    uint64_t now = atomic_load_explicit(bytes, memory_order_relaxed);
    atomic_store_explicit(bytes, now + more, memory_order_relaxed);
}

static inline void
gm_tally_subtract(_Atomic uint64_t *bytes, uint64_t less)
{
    uint64_t now = atomic_load_explicit(bytes, memory_order_relaxed);
    GM_ASSERT(now >= less);
    atomic_store_explicit(bytes, now - less, memory_order_relaxed);
}

/* Memory of segments and pages came. */
static inline void
gm_tally_add_memory(gm_tally *tally, uint64_t more)
{
    gm_tally_add(&tally->memory_now, more);
    uint64_t now = atomic_load_explicit(&tally->memory_now, memory_order_relaxed);
    if (now > atomic_load_explicit(&tally->memory_peak, memory_order_relaxed)) {
        atomic_store_explicit(&tally->memory_peak, now, memory_order_relaxed);
    }
}

static inline void
gm_tally_read(gm_tally *tally, gm_device_counters *out)
{
    for (int call = 0; call < GM_CALL_COUNT; call++) {
        out->calls[call] =
            atomic_load_explicit(&tally->calls[call], memory_order_relaxed);
    }
    out->memory_now = atomic_load_explicit(&tally->memory_now, memory_order_relaxed);
    out->memory_peak = atomic_load_explicit(&tally->memory_peak, memory_order_relaxed);
    out->pinned_now = atomic_load_explicit(&tally->pinned_now, memory_order_relaxed);
    out->mapped_now = atomic_load_explicit(&tally->mapped_now, memory_order_relaxed);
    out->address_now = atomic_load_explicit(&tally->address_now, memory_order_relaxed);
}

#endif
