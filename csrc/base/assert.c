#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void
gm_assert_fail(const char *file, int line, const char *text)
{
    fprintf(stderr, "gpumem: %s:%d: broken invariant: %s\n", file, line, text);
    abort();
}
