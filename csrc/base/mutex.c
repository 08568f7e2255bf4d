/* mutex.c - the sleeping half of the lock, and the rank checks of debug builds.
 *
 * The word is 0 (free), 1 (held) or 2 (held, and somebody may sleep). Whoever had to
 * wait takes the lock by writing 2, because others may still sleep behind it; at worst
 * that costs one needless wake. This is the third mutex of Ulrich Drepper's "Futexes
 * Are Tricky".
 */
#include "base/mutex.h"

#include <stddef.h>

#include "base/futex.h"

/* Critical sections are short: looking this often before sleeping mostly saves both
 * system calls. */
#define SPINS 64

static inline void
cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

void
gm_mutex_init(gm_mutex *mutex, gm_lock_rank rank)
{
    atomic_store_explicit(&mutex->word, 0, memory_order_relaxed);
    mutex->rank = (uint32_t)rank;
#if GM_DEBUG
    atomic_store_explicit(&mutex->owner, 0, memory_order_relaxed);
#endif
}

void
gm_mutex_lock_slow(gm_mutex *mutex)
{
    for (int i = 0; i < SPINS; i++) {
        uint32_t expected = 0;
        if (atomic_load_explicit(&mutex->word, memory_order_relaxed) == 0 &&
            atomic_compare_exchange_weak_explicit(&mutex->word, &expected, 1,
                                                  memory_order_acquire,
                                                  memory_order_relaxed)) {
            return;
        }
        cpu_relax();
    }
    while (atomic_exchange_explicit(&mutex->word, 2, memory_order_acquire) != 0) {
        gm_futex_wait(&mutex->word, 2, UINT64_MAX);
    }
}

void
gm_mutex_wake(gm_mutex *mutex)
{
    gm_futex_wake(&mutex->word, 1);
}

#if GM_DEBUG

/* All ranks, and the lanes of the exception in Note [Lock order]. */
#define MOST_HELD 32

static _Thread_local const gm_mutex *held[MOST_HELD];
static _Thread_local unsigned held_count;

/* Not 0, and no two living threads share it. */
static uint64_t
thread_id(void)
{
    return (uint64_t)(uintptr_t)&held_count;
}

static bool
holds_rank(uint32_t rank)
{
    for (unsigned i = 0; i < held_count; i++) {
        if (held[i]->rank == rank) {
            return true;
        }
    }
    return false;
}

void
gm_mutex_debug_before(const gm_mutex *mutex, bool trying)
{
    bool second_arena =
        trying && mutex->rank == GM_RANK_ARENA && holds_rank(GM_RANK_LANES);
    for (unsigned i = 0; i < held_count; i++) {
        bool in_order = held[i]->rank < mutex->rank ||
                        (second_arena && held[i]->rank == mutex->rank);
        GM_VERIFY(in_order && "locks are taken in rising rank");
    }
}

void
gm_mutex_debug_acquired(gm_mutex *mutex)
{
    GM_VERIFY(held_count < MOST_HELD);
    held[held_count++] = mutex;
    atomic_store_explicit(&mutex->owner, thread_id(), memory_order_relaxed);
}

void
gm_mutex_debug_release(gm_mutex *mutex)
{
    GM_VERIFY(gm_mutex_is_held(mutex) && "only the holder unlocks");
    atomic_store_explicit(&mutex->owner, 0, memory_order_relaxed);
    for (unsigned i = held_count; i-- > 0;) {
        if (held[i] == mutex) {
            held[i] = held[--held_count];
            return;
        }
    }
    GM_VERIFY(false && "a held lock is on the list of its thread");
}

bool
gm_mutex_is_held(const gm_mutex *mutex)
{
    return atomic_load_explicit(&mutex->owner, memory_order_relaxed) == thread_id();
}

unsigned
gm_mutex_held_count(void)
{
    return held_count;
}

#else

bool
gm_mutex_is_held(const gm_mutex *mutex)
{
    (void)mutex;
    return true;
}

unsigned
gm_mutex_held_count(void)
{
    return 0;
}

#endif
