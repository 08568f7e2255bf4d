/* scope.h - what scope.c and scope_trim.c share. */
#ifndef GM_PYTHON_SCOPE_H
#define GM_PYTHON_SCOPE_H

#include "python/python.h"

typedef enum scope_trim {
    SCOPE_TRIM_AUTO = 0,
    SCOPE_TRIM_ALWAYS,
    SCOPE_TRIM_NEVER,
    SCOPE_TRIM_TARGET,
} scope_trim;

/* Does the scope count what is allocated in this pool? */
static inline bool
scope_counts(const ScopeObject *self, const PoolObject *pool)
{
    return self->pool == NULL || self->pool == pool;
}

/* Reads the trim argument of Scope. 0, or -1 with an exception. */
int
scope_parse_trim(core_state *state, PyObject *value, int *mode, size_t *target);

/* Gives idle memory back as the scope's trim argument says. Failures are warnings.
 * Releases the GIL. Pre: the scope was left. */
void
scope_trim_pools(core_state *state, ScopeObject *self);

#endif
