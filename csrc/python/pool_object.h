/* pool_object.h - what the files behind Pool share among themselves.
 *
 *     pool.c          the type: life, properties, context manager
 *     pool_memory.c   empty, malloc, free, trim, reserve
 *     pool_options.c  options by name: parsing, reading, changing
 *     pool_view.c     statistics, the copy of the state, the history
 *     iteration.c     what Pool.iteration() returns
 */
#ifndef GM_PYTHON_POOL_OBJECT_H
#define GM_PYTHON_POOL_OBJECT_H

#include "python/python.h"

/* ---- pool.c -------------------------------------------------------------------------- */

/* Closed, or of the parent process: nothing can be allocated here any more. */
bool
pool_is_over(const PoolObject *self);

/* ---- pool_options.c ----------------------------------------------------------------- */

/* What the keywords of Pool() say besides the options; borrowed, NULL: none. */
typedef struct pool_extras {
    PyObject *name;
    PoolObject *fallback;
} pool_extras;

/* Reads the keywords of Pool(): 0, or -1 with an exception. */
int
pool_keywords_parse(core_state *state, gm_device *device, PyObject *kwargs,
                    gm_pool_options *options, pool_extras *extras);

/* Reads one option by name. 1: done, 0: there is no such option, -1: exception. */
int
pool_option_parse(core_state *state, gm_device *device, const char *name,
                  PyObject *value, gm_pool_options *out);

/* Sets TypeError that names the accepted options. */
void
pool_option_unknown(PyObject *name);

PyObject *
Pool_options(PyObject *op, PyObject *ignored);
PyObject *
Pool_configure(PyObject *op, PyObject *args, PyObject *kwargs);
PyObject *
Pool_get_limit(PyObject *op, void *closure);
int
Pool_set_limit(PyObject *op, PyObject *value, void *closure);

/* ---- pool_memory.c ------------------------------------------------------------------- */

PyObject *
Pool_empty(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *
Pool_malloc(PyObject *op, PyObject *args, PyObject *kwargs);
PyObject *
Pool_free(PyObject *op, PyObject *args, PyObject *kwargs);
PyObject *
Pool_owns(PyObject *op, PyObject *ptr);
PyObject *
Pool_trim(PyObject *op, PyObject *args, PyObject *kwargs);
PyObject *
Pool_reserve(PyObject *op, PyObject *nbytes);
PyObject *
Pool_poll(PyObject *op, PyObject *ignored);
PyObject *
Pool_stream_retired(PyObject *op, PyObject *stream);
PyObject *
Pool_capture_begin(PyObject *op, PyObject *stream);
PyObject *
Pool_capture_end(PyObject *op, PyObject *stream);

/* Raises OutOfMemoryError for a reservation, counted. Always returns NULL. */
PyObject *
pool_reserve_failed(core_state *state, PoolObject *self, size_t size,
                    const gm_oom *oom);

/* ---- pool_view.c --------------------------------------------------------------------- */

/* All counters, read without the GIL. */
void
pool_read_stats(PoolObject *self, gm_pool_stats *out);

PyObject *
Pool_stats(PyObject *op, PyObject *ignored);
PyObject *
Pool_reset_peaks(PyObject *op, PyObject *ignored);
PyObject *
Pool_reset_accumulated(PyObject *op, PyObject *ignored);
PyObject *
Pool_view(PyObject *op, PyObject *ignored);
PyObject *
Pool_check(PyObject *op, PyObject *ignored);
PyObject *
Pool_sizes(PyObject *op, PyObject *ignored);
PyObject *
Pool_record_history(PyObject *op, PyObject *args, PyObject *kwargs);
PyObject *
Pool_history(PyObject *op, PyObject *ignored);
PyObject *
Pool_clear_history(PyObject *op, PyObject *ignored);
PyObject *
Pool_live_buffers(PyObject *op, PyObject *ignored);

/* ---- iteration.c --------------------------------------------------------------------- */

PyObject *
Pool_iteration(PyObject *op, PyObject *ignored);

/* Adds the type; pool_init calls it. */
int
iteration_init(PyObject *module, core_state *state);

#endif
