#include "base/process.h"

#include <pthread.h>
#include <stdatomic.h>

static _Atomic uint32_t generation;
static _Atomic bool process_exiting;
static pthread_once_t handler_once = PTHREAD_ONCE_INIT;

/* Runs in the child, where only the thread that called fork lives. */
static void
count_fork(void)
{
    atomic_fetch_add_explicit(&generation, 1, memory_order_relaxed);
}

static void
install_handler(void)
{
    (void)pthread_atfork(NULL, NULL, count_fork);
}

uint32_t
gm_process_generation(void)
{
    return atomic_load_explicit(&generation, memory_order_relaxed);
}

void
gm_process_init(void)
{
    (void)pthread_once(&handler_once, install_handler);
}

void
gm_process_set_exiting(bool exiting)
{
    atomic_store_explicit(&process_exiting, exiting, memory_order_relaxed);
}

bool
gm_process_is_exiting(void)
{
    return atomic_load_explicit(&process_exiting, memory_order_relaxed);
}
