#include "base/process.h"

#include <pthread.h>
#include <stdatomic.h>

_Atomic uint32_t gm_process_generation_count;
_Atomic bool gm_process_exiting_flag;
static pthread_once_t handler_once = PTHREAD_ONCE_INIT;

/* Runs in the child, where only the thread that called fork lives. */
static void
count_fork(void)
{
    atomic_fetch_add_explicit(&gm_process_generation_count, 1, memory_order_relaxed);
}

static void
install_handler(void)
{
    (void)pthread_atfork(NULL, NULL, count_fork);
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
