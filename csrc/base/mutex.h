/* mutex.h - the project's lock, and the one place where lock ranks are defined.
 *
 * A gm_mutex is one 32-bit futex word: an uncontended pair costs two atomic
 * operations, it needs no destruction, and a child of fork can make it anew by
 * gm_mutex_init. Linux only, like the project.
 *
 * Note [Lock order]
 * Locks are taken in rising rank. Debug builds keep the ranks a thread holds and
 * abort when the order is broken. The Python GIL lies outside all of them: a thread
 * may hold the GIL when it takes one, and never takes (or touches) the GIL while it
 * holds one. Two locks of equal rank are never held together, with one exception: who
 * holds a pool's lanes lock may take further lanes by gm_mutex_try_lock.
 *
 * Thread-safety: that is what it is for. Cost: O(1); lock may sleep in the kernel.
 */
#ifndef GM_BASE_MUTEX_H
#define GM_BASE_MUTEX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/assert.h"

/* Outermost first. */
typedef enum gm_lock_rank {
    GM_RANK_REGISTRY = 1, /* lists of pools and devices of the process */
    GM_RANK_LANES,        /* a pool's table of lanes; creating and retiring one */
    GM_RANK_ARENA,        /* one lane: the arenas of one stream */
    GM_RANK_CAPTURES,     /* which streams of a pool capture graphs */
    GM_RANK_PAGE_POOL,    /* a pool's free pages and its count of reserved bytes */
    GM_RANK_ADDRESS_MAP,  /* growing the process-wide address map */
    GM_RANK_TRACE,        /* a pool's history ring */
    GM_RANK_DEVICE,       /* inside a backend */
    GM_RANK_SHARED,       /* what backends share: capacity, the sims' address space */
} gm_lock_rank;

#if defined(__clang__)
#define GM_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define GM_THREAD_ANNOTATION(x)
#endif
#define GM_CAPABILITY(x) GM_THREAD_ANNOTATION(capability(x))
#define GM_REQUIRES(...) GM_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define GM_ACQUIRE(...) GM_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define GM_TRY_ACQUIRE(...) GM_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define GM_RELEASE(...) GM_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
/* For functions that make or end an object, while no other thread has it. */
#define GM_NO_THREAD_ANALYSIS GM_THREAD_ANNOTATION(no_thread_safety_analysis)

/* In C, a field can name its lock only where the compiler reads attributes late: clang
 * from 20 on with -fexperimental-late-parse-attributes. Whoever passes that defines
 * GM_LATE_ATTRIBUTES=1, too. */
#ifndef GM_LATE_ATTRIBUTES
#define GM_LATE_ATTRIBUTES 0
#endif
#if GM_LATE_ATTRIBUTES
#define GM_GUARDED_BY(x) GM_THREAD_ANNOTATION(guarded_by(x))
#else
#define GM_GUARDED_BY(x)
#endif

typedef struct GM_CAPABILITY("mutex") gm_mutex {
    _Atomic uint32_t word; /* 0 free, 1 held, 2 held and somebody may sleep on it */
    uint32_t rank;         /* a gm_lock_rank */
#if GM_DEBUG
    _Atomic uint64_t owner; /* id of the holding thread, 0 when free */
#endif
} gm_mutex;

/* Makes `mutex` free. Also used in the child after fork. */
void
gm_mutex_init(gm_mutex *mutex, gm_lock_rank rank);

/* The slow halves; use the inline functions below. */
void
gm_mutex_lock_slow(gm_mutex *mutex);
void
gm_mutex_wake(gm_mutex *mutex);

#if GM_DEBUG
void
gm_mutex_debug_before(const gm_mutex *mutex, bool trying);
void
gm_mutex_debug_acquired(gm_mutex *mutex);
void
gm_mutex_debug_release(gm_mutex *mutex);
#else
#define gm_mutex_debug_before(mutex, trying) ((void)0)
#define gm_mutex_debug_acquired(mutex) ((void)0)
#define gm_mutex_debug_release(mutex) ((void)0)
#endif

static inline void
gm_mutex_lock(gm_mutex *mutex) GM_ACQUIRE(*mutex) GM_NO_THREAD_ANALYSIS;
static inline void
gm_mutex_lock(gm_mutex *mutex)
{
    uint32_t expected = 0;
    gm_mutex_debug_before(mutex, false);
    if (!atomic_compare_exchange_strong_explicit(
            &mutex->word, &expected, 1, memory_order_acquire, memory_order_relaxed)) {
        gm_mutex_lock_slow(mutex);
    }
    gm_mutex_debug_acquired(mutex);
}

/* True when the lock was taken; never waits. */
static inline bool
gm_mutex_try_lock(gm_mutex *mutex) GM_TRY_ACQUIRE(true, *mutex) GM_NO_THREAD_ANALYSIS;
static inline bool
gm_mutex_try_lock(gm_mutex *mutex)
{
    uint32_t expected = 0;
    gm_mutex_debug_before(mutex, true);
    if (!atomic_compare_exchange_strong_explicit(
            &mutex->word, &expected, 1, memory_order_acquire, memory_order_relaxed)) {
        return false;
    }
    gm_mutex_debug_acquired(mutex);
    return true;
}

static inline void
gm_mutex_unlock(gm_mutex *mutex) GM_RELEASE(*mutex) GM_NO_THREAD_ANALYSIS;
static inline void
gm_mutex_unlock(gm_mutex *mutex)
{
    gm_mutex_debug_release(mutex);
    if (atomic_exchange_explicit(&mutex->word, 0, memory_order_release) == 2) {
        gm_mutex_wake(mutex);
    }
}

/* Debug builds: does this thread hold it? Release builds: true. For GM_ASSERT. */
bool
gm_mutex_is_held(const gm_mutex *mutex);

/* How many locks this thread holds; always 0 in release builds. The Python layer
 * asserts 0 before it touches the interpreter. */
unsigned
gm_mutex_held_count(void);

#endif
