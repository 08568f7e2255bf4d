/* process.h - the two events of a process's life that every floor must notice.
 *
 * Fork: a child of fork has the parent's objects in its memory, but not its device.
 * Each object that talks to a device stores the generation it was made in; a child
 * sees a larger one and refuses (GM_FORKED) instead of touching it. What belongs to the
 * whole process (the registry, the address map) starts anew: GM_IN_FORKED_CHILD.
 * Exit: once gm_process_set_exiting was called nothing may call a driver any more.
 *
 * Thread-safety: atomics. Cost: one relaxed load each.
 */
#ifndef GM_BASE_PROCESS_H
#define GM_BASE_PROCESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Read them by the functions below; process.c writes them. */
extern _Atomic uint32_t gm_process_generation_count;
extern _Atomic bool gm_process_exiting_flag;

/* How many forks lie between the process that loaded the library and this one. */
static inline uint32_t
gm_process_generation(void)
{
    return atomic_load_explicit(&gm_process_generation_count, memory_order_relaxed);
}

/* Installs the fork handler; idempotent. Called by whoever creates a device. */
void
gm_process_init(void);

/* What a child of fork does before anything else of it runs: a lock of the whole
 * process may have been held by a thread that is not there any more. `in_child` makes
 * such locks anew and forgets what they guard, it runs in the only thread and calls
 * nothing that locks. The hook stays for the life of the process. */
typedef struct gm_fork_hook {
    void (*in_child)(void);
    struct gm_fork_hook *next;
} gm_fork_hook;

void
gm_process_at_fork(gm_fork_hook *hook);

/* At file scope, beside the lock: `function` is a hook from the moment on when the
 * library is loaded. */
#define GM_IN_FORKED_CHILD(function)                                   \
    static gm_fork_hook function##_hook = {function, NULL};            \
    __attribute__((constructor)) static void function##_register(void) \
    {                                                                  \
        gm_process_at_fork(&function##_hook);                          \
    }                                                                  \
    _Static_assert(true, "takes a semicolon")

/* From now on gm_process_is_exiting is true. With `exiting` false (a second
 * interpreter in the same process starts) it is taken back. */
void
gm_process_set_exiting(bool exiting);

static inline bool
gm_process_is_exiting(void)
{
    return atomic_load_explicit(&gm_process_exiting_flag, memory_order_relaxed);
}

#endif
