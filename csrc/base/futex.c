#include "base/futex.h"

#include <errno.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_SECOND 1000000000u

/* The kernel's type for seconds is signed; a wait this long is one for ever. */
#define LONGEST_WAIT_NS ((uint64_t)1 << 62)

void
gm_futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t timeout_ns)
{
    struct timespec limit;
    struct timespec *timeout = NULL;
    int saved = errno;
    if (timeout_ns < LONGEST_WAIT_NS) {
        limit.tv_sec = (time_t)(timeout_ns / NS_PER_SECOND);
        limit.tv_nsec = (long)(timeout_ns % NS_PER_SECOND);
        timeout = &limit;
    }
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, timeout, NULL, 0);
    errno = saved;
}

void
gm_futex_wake(_Atomic uint32_t *word, int count)
{
    int saved = errno;
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
    errno = saved;
}

static inline uint64_t
read_clock(clockid_t clock)
{
    struct timespec now;
    (void)clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * NS_PER_SECOND + (uint64_t)now.tv_nsec;
}

uint64_t
gm_monotonic_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

uint64_t
gm_monotonic_coarse_ns(void)
{
    return read_clock(CLOCK_MONOTONIC_COARSE);
}
