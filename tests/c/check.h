/* check.h - the C tests' harness: checks that say what they saw, and a runner.
 *
 * A test file lists its tests in one table and ends with GM_TEST_MAIN. Each test prints
 * "ok name"; the first check that fails prints file, line and both values and ends the
 * program with status 1. A name on the command line runs the tests whose name holds it.
 */
#ifndef GM_TESTS_CHECK_H
#define GM_TESTS_CHECK_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

typedef struct gm_test {
    const char *name;
    void (*run)(void);
} gm_test;

_Noreturn static inline void
check_fail(const char *file, int line, const char *text)
{
    fflush(stdout);
    fprintf(stderr, "%s:%d: FAILED: %s\n", file, line, text);
    exit(1);
}

static inline void
check_equal_signed(const char *file, int line, const char *text, intmax_t left,
                   intmax_t right)
{
    if (left != right) {
        fprintf(stderr, "%s:%d: left %jd, right %jd\n", file, line, left, right);
        check_fail(file, line, text);
    }
}

static inline void
check_equal_unsigned(const char *file, int line, const char *text, uintmax_t left,
                     uintmax_t right)
{
    if (left != right) {
        fprintf(stderr, "%s:%d: left %ju (0x%jx), right %ju (0x%jx)\n", file, line,
                left, left, right, right);
        check_fail(file, line, text);
    }
}

static inline void
check_status(const char *file, int line, const char *text, gm_status got,
             gm_status want)
{
    if (got != want) {
        fprintf(stderr, "%s:%d: got '%s', want '%s'\n", file, line, gm_status_name(got),
                gm_status_name(want));
        check_fail(file, line, text);
    }
}

#define CHECK(condition)                                \
    do {                                                \
        if (!(condition)) {                             \
            check_fail(__FILE__, __LINE__, #condition); \
        }                                               \
    } while (0)

/* Two integers, compared and printed without sign. */
#define CHECK_EQ(left, right)                                                        \
    check_equal_unsigned(__FILE__, __LINE__, #left " == " #right, (uintmax_t)(left), \
                         (uintmax_t)(right))

#define CHECK_EQ_SIGNED(left, right)                                              \
    check_equal_signed(__FILE__, __LINE__, #left " == " #right, (intmax_t)(left), \
                       (intmax_t)(right))

#define CHECK_STATUS(expression, status) \
    check_status(__FILE__, __LINE__, #expression, (expression), (status))

#define CHECK_OK(expression) CHECK_STATUS(expression, GM_OK)

static inline int
check_run(const gm_test *tests, size_t count, int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; i < count; i++) {
        if (argc > 1 && strstr(tests[i].name, argv[1]) == NULL) {
            continue;
        }
        tests[i].run();
        printf("ok %s\n", tests[i].name);
    }
    return 0;
}

#define GM_TEST_MAIN(tests)                                                      \
    int main(int argc, char **argv)                                              \
    {                                                                            \
        return check_run(tests, sizeof(tests) / sizeof((tests)[0]), argc, argv); \
    }

#endif
