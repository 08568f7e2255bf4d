/* alloc.c - one allocation, from the fast path to the error.
 *
 *     gm_pool_try_alloc   under the GIL: a lock that is free, a cached block
 *     gm_pool_alloc       without it: pages, the device, the ladder of pool/ladder.c
 *     the rungs that need Python, each followed by a retry if it did something:
 *         pressure callbacks, urgency 1
 *         one gc.collect()
 *         pressure callbacks, urgency 2
 *     the pool's fallback, if it has one and the block is for a Buffer: the whole again
 *     OutOfMemoryError
 *
 * Note [Who climbs]
 * The rungs of Python run arbitrary code, which may allocate. A thread that is already
 * on them, or inside a callback, gets the error at once, so they never nest. A
 * collection that was asked for while another one runs (a finalizer allocates) is a
 * no-op of the interpreter; it is recognised by the interpreter's own count of
 * collections and not reported as tried.
 *
 * A failed call leaves nothing behind but counts.
 */
#include "python/python.h"

#include <stdio.h>

/* This thread is on the rungs of Python. */
static _Thread_local bool climbing;

/* ---- one attempt ------------------------------------------------------------------------ */

static gm_status
attempt_fast(core_state *state, PoolObject *pool, const gm_request *request,
             gm_block **out)
{
    if (!pool->traced) {
        return gm_pool_try_alloc(pool->pool, request, out);
    }
    trace_frame frame;
    trace_enter(&frame, state, pool);
    gm_status status = gm_pool_try_alloc(pool->pool, request, out);
    trace_leave(&frame);
    return status;
}

static uint64_t
read_retries(gm_pool *pool)
{
    gm_pool_stats stats;
    gm_pool_read_stats(pool, &stats);
    return stats.num_alloc_retries;
}

/* Without the GIL. Notes for open scopes that the pool had to climb. */
static gm_status
attempt_whole(core_state *state, PoolObject *pool, const gm_request *request,
              gm_block **out, gm_oom *oom)
{
    trace_frame frame;
    bool watched = state->scopes_active > 0;
    uint64_t before = 0, after = 0;
    trace_enter(&frame, state, pool);
    frame.released = PyEval_SaveThread();
    if (watched) {
        before = read_retries(pool->pool);
    }
    gm_status status = gm_pool_alloc(pool->pool, request, out, oom);
    if (watched) {
        after = read_retries(pool->pool);
    }
    PyEval_RestoreThread(frame.released);
    trace_leave(&frame);
    if (after != before) {
        pool->climbed_at = ++state->climb_clock;
    }
    return status;
}

/* ---- the rungs of Python ------------------------------------------------------------------ */

/* How many full collections this interpreter has finished; -1 with an exception. */
static Py_ssize_t
count_collections(PyObject *gc)
{
    PyObject *stats = PyObject_CallMethod(gc, "get_stats", NULL);
    if (stats == NULL) {
        return -1;
    }
    PyObject *oldest = PySequence_GetItem(stats, -1);
    Py_DECREF(stats);
    if (oldest == NULL) {
        return -1;
    }
    PyObject *number = PyMapping_GetItemString(oldest, "collections");
    Py_DECREF(oldest);
    if (number == NULL) {
        return -1;
    }
    Py_ssize_t count = PyLong_AsSsize_t(number);
    Py_DECREF(number);
    return count;
}

/* 1: a collection ran, 0: one was running already, -1: exception. gc.collect() works
 * although the user has switched automatic collection off, and leaves that switch. */
static int
collect_garbage(void)
{
    PyObject *gc = PyImport_ImportModule("gc");
    if (gc == NULL) {
        return -1;
    }
    int ran = -1;
    Py_ssize_t before = count_collections(gc);
    if (before >= 0) {
        PyObject *found = PyObject_CallMethod(gc, "collect", NULL);
        Py_ssize_t after = found != NULL ? count_collections(gc) : -1;
        Py_XDECREF(found);
        ran = after < 0 ? -1 : after > before;
    }
    Py_DECREF(gc);
    return ran;
}

/* True if a collection ran; counts it. */
static bool
climb_collection(PoolObject *pool)
{
    gm_pool_options options;
    gm_pool_read_options(pool->pool, &options);
    if (!options.gc_on_pressure) {
        return false;
    }
    int ran = collect_garbage();
    if (ran < 0) {
        PyErr_WriteUnraisable((PyObject *)pool);
        return false;
    }
    if (ran > 0) {
        gm_pool_count_collection(pool->pool);
    }
    return ran > 0;
}

/* Climbs until an attempt succeeds or fails otherwise; GM_OUT_OF_MEMORY, *oom from the
 * last attempt and *collected when nothing helped. */
static gm_status
climb(core_state *state, PoolObject *pool, const gm_request *request, gm_block **out,
      gm_oom *oom, bool *collected)
{
    gm_status status = GM_OUT_OF_MEMORY;
    if (climbing || callbacks_running()) {
        return status;
    }
    climbing = true;
    if (callbacks_pressure(state, pool, oom, 1)) {
        status = attempt_whole(state, pool, request, out, oom);
    }
    if (status == GM_OUT_OF_MEMORY) {
        *collected = climb_collection(pool);
        if (*collected) {
            status = attempt_whole(state, pool, request, out, oom);
        }
    }
    if (status == GM_OUT_OF_MEMORY && callbacks_pressure(state, pool, oom, 2)) {
        status = attempt_whole(state, pool, request, out, oom);
    }
    climbing = false;
    return status;
}

/* ---- the whole ------------------------------------------------------------------------------ */

static void
report_failure(core_state *state, PoolObject *pool, const gm_request *request,
               gm_status status)
{
    char what[96];
    snprintf(what, sizeof(what), "allocate %zu bytes on %s", request->size,
             pool->device->device->info.name);
    set_status_error(state, status, what);
}

/* Counts the failure where observers and the history see it, then raises it. */
static void
report_oom(core_state *state, PoolObject *pool, const gm_request *request,
           const gm_oom *oom, bool collected)
{
    trace_frame frame;
    trace_enter(&frame, state, pool);
    frame.oom = oom;
    gm_pool_count_oom(pool->pool, request, oom);
    trace_leave(&frame);
    set_oom_error(state, pool, oom, collected);
}

static gm_block *
allocate(core_state *state, PoolObject *pool, const gm_request *request,
         PoolObject **served);

/* The pool's own error, with the pending one as its cause. */
static void
report_oom_because(core_state *state, PoolObject *pool, const gm_request *request,
                   const gm_oom *oom, bool collected)
{
    PyObject *kind, *cause, *traceback, *value;
    PyErr_Fetch(&kind, &cause, &traceback);
    PyErr_NormalizeException(&kind, &cause, &traceback);
    Py_XDECREF(kind);
    Py_XDECREF(traceback);
    report_oom(state, pool, request, oom, collected);
    PyErr_Fetch(&kind, &value, &traceback);
    PyErr_NormalizeException(&kind, &value, &traceback);
    PyException_SetCause(value, cause);
    PyErr_Restore(kind, value, traceback);
}

/* A block of the pool's fallback; the error is the pool's own. */
static gm_block *
allocate_elsewhere(core_state *state, PoolObject *pool, const gm_request *request,
                   const gm_oom *oom, bool collected, PoolObject **served)
{
    PoolObject *fallback = pool->fallback;
    gm_request there = *request;
    if (fallback->device->device != pool->device->device) {
        there.stream = GM_DEFAULT_STREAM;
    }
    *served = fallback;
    gm_block *block = allocate(state, fallback, &there, served);
    if (block != NULL) {
        gm_pool_count_fallback(pool->pool);
    }
    else if (PyErr_ExceptionMatches((PyObject *)state->GpumemError)) {
        report_oom_because(state, pool, request, oom, collected);
    }
    return block;
}

/* The part of an allocation that the fast path could not do. `served` NULL: no other
 * pool may serve it. */
static gm_block *
allocate_slowly(core_state *state, PoolObject *pool, const gm_request *request,
                PoolObject **served)
{
    gm_block *block = NULL;
    gm_oom oom;
    bool collected = false;
    gm_status status = attempt_whole(state, pool, request, &block, &oom);
    if (status == GM_OUT_OF_MEMORY) {
        status = climb(state, pool, request, &block, &oom, &collected);
    }
    if (status == GM_OK) {
        return block;
    }
    if (status != GM_OUT_OF_MEMORY) {
        report_failure(state, pool, request, status);
        return NULL;
    }
    if (served != NULL && pool->fallback != NULL) {
        return allocate_elsewhere(state, pool, request, &oom, collected, served);
    }
    report_oom(state, pool, request, &oom, collected);
    return NULL;
}

static gm_block *
allocate(core_state *state, PoolObject *pool, const gm_request *request,
         PoolObject **served)
{
    gm_block *block;
    if (request->size > GM_SIZE_LIMIT) {
        PyErr_Format(PyExc_ValueError,
                     "%zu bytes are more than any request may have (%zu)",
                     request->size, GM_SIZE_LIMIT);
        return NULL;
    }
    gm_status status = attempt_fast(state, pool, request, &block);
    if (status == GM_OK) {
        return block;
    }
    if (status == GM_MISS || status == GM_BUSY) {
        return allocate_slowly(state, pool, request, served);
    }
    report_failure(state, pool, request, status);
    return NULL;
}

static gm_request
make_request(core_state *state, const PoolObject *pool, size_t size, size_t alignment,
             gm_stream stream)
{
    return (gm_request){
        .size = size,
        .alignment = alignment,
        .stream = stream,
        .kind = GM_ARENA_ELASTIC,
        .context = pool->stacks ? stack_capture(state) : 0,
    };
}

gm_block *
allocate_block(core_state *state, PoolObject *pool, size_t size, size_t alignment,
               gm_stream stream)
{
    gm_request request = make_request(state, pool, size, alignment, stream);
    return allocate(state, pool, &request, NULL);
}

gm_block *
allocate_block_anywhere(core_state *state, PoolObject **pool, size_t size,
                        size_t alignment, gm_stream stream)
{
    gm_request request = make_request(state, *pool, size, alignment, stream);
    return allocate(state, *pool, &request, pool);
}

gm_block *
allocate_raw_block(core_state *state, PoolObject *pool, size_t size, gm_stream stream)
{
    gm_request request = make_request(state, pool, size, 0, stream);
    request.by_address = true;
    return allocate(state, pool, &request, NULL);
}

void
free_block(core_state *state, PoolObject *pool, gm_block *block)
{
    if (!pool->traced) {
        gm_pool_free(block);
        return;
    }
    trace_frame frame;
    trace_enter(&frame, state, pool);
    gm_pool_free(block);
    trace_leave(&frame);
}
