/* futex.h - sleeping on a 32-bit word, and waking whoever sleeps there.
 *
 * The one place that makes the futex system call. mutex.c builds the lock on it, the
 * host device its waits with a time limit.
 *
 * Thread-safety: from any thread of one process (private futexes).
 * Cost: one system call each.
 */
#ifndef GM_BASE_FUTEX_H
#define GM_BASE_FUTEX_H

#include <stdatomic.h>
#include <stdint.h>

/* Sleeps while *word == expected, at most timeout_ns of the monotonic clock
 * (UINT64_MAX: for ever). Returns after a wake, when the word differs, when the time is
 * over, and now and then for no reason: look again. Leaves errno alone. */
void
gm_futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t timeout_ns);

/* Wakes up to `count` sleepers. Leaves errno alone. */
void
gm_futex_wake(_Atomic uint32_t *word, int count);

/* The monotonic clock of this machine in nanoseconds. */
uint64_t
gm_monotonic_ns(void);

/* The same clock as it stood at the last tick of the kernel: a few milliseconds behind,
 * and a third of the cost. */
uint64_t
gm_monotonic_coarse_ns(void);

#endif
