#include "base/process.h"

#include <pthread.h>
#include <stdatomic.h>

_Atomic uint32_t gm_process_generation_count;
_Atomic bool gm_process_exiting_flag;
static pthread_once_t handler_once = PTHREAD_ONCE_INIT;

static _Atomic(gm_fork_hook *) hooks;

/* Runs in the child, where only the thread that called fork lives. */
static void
begin_child(void)
{
    atomic_fetch_add_explicit(&gm_process_generation_count, 1, memory_order_relaxed);
    for (gm_fork_hook *hook = atomic_load(&hooks); hook != NULL; hook = hook->next) {
        hook->in_child();
    }
}

static void
install_handler(void)
{
    (void)pthread_atfork(NULL, NULL, begin_child);
}

void
gm_process_at_fork(gm_fork_hook *hook)
{
    gm_process_init();
    hook->next = atomic_load(&hooks);
    while (!atomic_compare_exchange_weak(&hooks, &hook->next, hook)) {
    }
}

void
gm_process_init(void)
{
    (void)pthread_once(&handler_once, install_handler);
}

void
gm_process_set_exiting(bool exiting)
{
    atomic_store_explicit(&gm_process_exiting_flag, exiting, memory_order_relaxed);
}
