/* assert.h - the three strengths of self-checks.
 *
 * GM_ASSERT  debug builds only (GM_DEBUG), O(1), no side effects.
 * GM_VERIFY  always on: corruption that we would rather report than spread. It
 *            prints one line and aborts.
 * gm_*_check functions walk a whole structure; debug tests call them after every
 * mutation.
 */
#ifndef GM_BASE_ASSERT_H
#define GM_BASE_ASSERT_H

#ifndef GM_DEBUG
#define GM_DEBUG 0
#endif

/* Prints "gpumem: <file>:<line>: <text>" on stderr and aborts. */
_Noreturn void
gm_assert_fail(const char *file, int line, const char *text);

#define GM_VERIFY(condition)                                \
    do {                                                    \
        if (!(condition)) {                                 \
            gm_assert_fail(__FILE__, __LINE__, #condition); \
        }                                                   \
    } while (0)

#if GM_DEBUG
#define GM_ASSERT(condition) GM_VERIFY(condition)
#else
#define GM_ASSERT(condition) ((void)sizeof(condition))
#endif

#endif
