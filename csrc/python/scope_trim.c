/* scope_trim.c - what becomes of idle memory when a scope ends.
 *
 * Note [Trim at exit]
 * trim=True gives all idle memory back, a number or text gives it back down to that
 * many reserved bytes, False never does. "auto" makes no device call unless memory was
 * short inside: a pool that climbed its ladder for a call from Python while the scope
 * was open gives its idle memory back. Only pools that the scope counts are meant.
 */
#include "python/scope.h"

int
scope_parse_trim(core_state *state, PyObject *value, int *mode, size_t *target)
{
    *target = 0;
    if (PyUnicode_Check(value) &&
        PyUnicode_CompareWithASCIIString(value, "auto") == 0) {
        *mode = SCOPE_TRIM_AUTO;
    }
    else if (PyBool_Check(value)) {
        *mode = value == Py_True ? SCOPE_TRIM_ALWAYS : SCOPE_TRIM_NEVER;
    }
    else {
        *mode = SCOPE_TRIM_TARGET;
        return parse_size(state, value, "trim ('auto', True, False or a size)", target);
    }
    return 0;
}

static bool
scope_trims(const ScopeObject *self, const PoolObject *pool)
{
    if (!scope_counts(self, pool) || gm_pool_is_closed(pool->pool)) {
        return false;
    }
    return self->trim_mode != SCOPE_TRIM_AUTO || pool->climbed_at > self->clock;
}

static void
trim_pool(core_state *state, gm_pool *pool, size_t target)
{
    gm_trim_request request = {.target = target};
    gm_trim_report report;
    gm_status status;
    Py_BEGIN_ALLOW_THREADS
    status = gm_pool_trim(pool, &request, &report);
    Py_END_ALLOW_THREADS
    if (status != GM_OK && status != GM_FORKED && status != GM_EXITING) {
        warn_unraisable(state, "a scope could not give idle memory back: %s",
                        gm_status_text(status));
    }
}

/* Borrowed: of the pools that the scope trims the one with the lowest id above `done`,
 * or NULL. */
static gm_pool *
next_pool(core_state *state, const ScopeObject *self, uint64_t done)
{
    gm_pool *next = NULL;
    GM_LIST_FOREACH(link, &state->pools) {
        const PoolObject *object = GM_CONTAINER_OF(link, PoolObject, link);
        if (gm_pool_id(object->pool) > done && scope_trims(self, object) &&
            (next == NULL || gm_pool_id(object->pool) < gm_pool_id(next))) {
            next = object->pool;
        }
    }
    return next;
}

void
scope_trim_pools(core_state *state, ScopeObject *self)
{
    if (self->trim_mode == SCOPE_TRIM_NEVER) {
        return;
    }
    /* The ring may change while a pool is trimmed, so the next one is looked up anew. */
    gm_pool *pool = next_pool(state, self, 0);
    while (pool != NULL) {
        uint64_t id = gm_pool_id(pool);
        gm_pool_retain(pool);
        trim_pool(state, pool, self->trim_target);
        gm_pool_release(pool);
        pool = next_pool(state, self, id);
    }
}
