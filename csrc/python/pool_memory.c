/* pool_memory.c - the methods of Pool that hand memory out and give it back.
 *
 * empty() is the hot one: it reads its arguments by hand, makes one object and takes
 * one block. Everything that may wait runs without the GIL.
 */
#include "python/pool_object.h"

#include <stdio.h>

#include "base/bits.h"

/* The largest alignment that a request may ask for. Bytes. */
#define ALIGNMENT_LIMIT ((size_t)1 << 30)

/* ---- empty ------------------------------------------------------------------------------ */

typedef struct empty_arguments {
    PyObject *shape;
    PyObject *dtype;
    PyObject *stream;
    PyObject *name;
    PyObject *align;
    PyObject *pitch;
} empty_arguments;

/* Borrowed place for the value of a keyword, or NULL with TypeError. */
static PyObject **
empty_keyword(empty_arguments *arguments, PyObject *name)
{
    const struct {
        const char *name;
        PyObject **slot;
    } rows[] = {
        {"dtype", &arguments->dtype},   {"name", &arguments->name},
        {"stream", &arguments->stream}, {"align", &arguments->align},
        {"pitch", &arguments->pitch},   {"shape", &arguments->shape},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (PyUnicode_CompareWithASCIIString(name, rows[i].name) == 0) {
            if (*rows[i].slot == NULL) {
                return rows[i].slot;
            }
            PyErr_Format(PyExc_TypeError, "empty() got %s twice", rows[i].name);
            return NULL;
        }
    }
    PyErr_Format(PyExc_TypeError,
                 "empty() has no argument %R; it takes shape, dtype, stream, name, "
                 "align, pitch",
                 name);
    return NULL;
}

static int
empty_collect(empty_arguments *arguments, PyObject *const *args, Py_ssize_t nargs,
              PyObject *kwnames)
{
    if (nargs > 2) {
        PyErr_Format(PyExc_TypeError,
                     "empty() takes shape and dtype by position, not %zd arguments",
                     nargs);
        return -1;
    }
    arguments->shape = nargs > 0 ? args[0] : NULL;
    arguments->dtype = nargs > 1 ? args[1] : NULL;
    Py_ssize_t count = kwnames != NULL ? PyTuple_GET_SIZE(kwnames) : 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject **slot = empty_keyword(arguments, PyTuple_GET_ITEM(kwnames, i));
        if (slot == NULL) {
            return -1;
        }
        *slot = args[nargs + i];
    }
    if (arguments->shape == NULL) {
        PyErr_SetString(PyExc_TypeError, "empty() needs a shape");
        return -1;
    }
    return 0;
}

static int
parse_alignment(PyObject *value, size_t *out)
{
    size_t alignment;
    *out = 0;
    if (value == NULL || value == Py_None) {
        return 0;
    }
    if (PyLong_Check(value) && !PyBool_Check(value)) {
        alignment = PyLong_AsSize_t(value);
        PyErr_Clear();
        if (gm_is_pow2(alignment) && alignment <= ALIGNMENT_LIMIT) {
            *out = alignment;
            return 0;
        }
        PyErr_Format(PyExc_ValueError,
                     "align must be a power of two from 1 to %zu bytes, not %R",
                     ALIGNMENT_LIMIT, value);
        return -1;
    }
    PyErr_Format(PyExc_TypeError, "align must be an int or None, not %.100s",
                 Py_TYPE(value)->tp_name);
    return -1;
}

static int
parse_pitch(core_state *state, PyObject *value, size_t *out)
{
    *out = 0;
    if (value == NULL || value == Py_None) {
        return 0;
    }
    if (parse_size(state, value, "pitch", out) < 0) {
        return -1;
    }
    if (*out == 0) {
        PyErr_SetString(PyExc_ValueError, "pitch must be above 0 bytes, or None");
        return -1;
    }
    return 0;
}

/* The name as the buffer takes it (NULL: none), or -1 with TypeError. */
static int
parse_name(PyObject *value, PyObject **out)
{
    *out = value == Py_None ? NULL : value;
    if (*out != NULL && !PyUnicode_Check(*out)) {
        PyErr_Format(PyExc_TypeError, "name must be a str or None, not %.100s",
                     Py_TYPE(value)->tp_name);
        return -1;
    }
    return 0;
}

PyObject *
Pool_empty(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PoolObject *self = (PoolObject *)op;
    core_state *state = state_of(op);
    empty_arguments arguments = {NULL};
    Py_ssize_t shape[BUFFER_MAX_DIM];
    int ndim;
    if (empty_collect(&arguments, args, nargs, kwnames) < 0 ||
        parse_shape(arguments.shape, shape, &ndim) < 0) {
        return NULL;
    }
    const dtype_info *dtype = state->dtype_uint8;
    if (arguments.dtype != NULL) {
        dtype = dtype_parse(state, arguments.dtype);
        if (dtype == NULL) {
            return NULL;
        }
    }
    gm_stream stream = GM_DEFAULT_STREAM;
    size_t alignment, pitch;
    PyObject *name;
    if (parse_stream(state, arguments.stream, self->device->device, GM_DEFAULT_STREAM,
                     &stream) < 0 ||
        parse_alignment(arguments.align, &alignment) < 0 ||
        parse_pitch(state, arguments.pitch, &pitch) < 0 ||
        parse_name(arguments.name, &name) < 0) {
        return NULL;
    }
    return (PyObject *)buffer_create_anywhere(state, self, dtype, ndim, shape, stream,
                                              alignment, pitch, name);
}

/* ---- addresses ---------------------------------------------------------------------------- */

PyObject *
Pool_malloc(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"nbytes", "stream", NULL};
    PoolObject *self = (PoolObject *)op;
    core_state *state = state_of(op);
    PyObject *nbytes, *stream_object = Py_None;
    size_t size;
    gm_stream stream;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:malloc", names, &nbytes,
                                     &stream_object) ||
        parse_size(state, nbytes, "nbytes", &size) < 0 ||
        parse_stream(state, stream_object, self->device->device, GM_DEFAULT_STREAM,
                     &stream) < 0) {
        return NULL;
    }
    if (size == 0) {
        return PyLong_FromLong(0);
    }
    gm_block *block = allocate_raw_block(state, self, size, stream);
    return block == NULL ? NULL : PyLong_FromUnsignedLongLong(gm_block_address(block));
}

static int
parse_address(PyObject *value, gm_devptr *out)
{
    if (PyBool_Check(value) || !PyLong_Check(value)) {
        PyErr_Format(PyExc_TypeError, "ptr must be an int, not %.100s",
                     Py_TYPE(value)->tp_name);
        return -1;
    }
    *out = PyLong_AsUnsignedLongLong(value);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError,
                     "ptr must be an address from 0 to 2**64 - 1, not %R", value);
        return -1;
    }
    return 0;
}

/* Frees a block by its address; `recorded` names a stream that uses it, too. */
static gm_status
free_address(core_state *state, PoolObject *self, gm_devptr address,
             const gm_stream *recorded)
{
    gm_block *block;
    if (recorded != NULL && gm_block_find(address, &block) == GM_OK &&
        gm_block_pool(block) == self->pool) {
        GM_TRY(gm_pool_record_stream(block, *recorded));
    }
    trace_frame frame;
    trace_enter(&frame, state, self);
    gm_status status = gm_pool_free_address(self->pool, address);
    trace_leave(&frame);
    return status;
}

PyObject *
Pool_free(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"ptr", "stream", NULL};
    PoolObject *self = (PoolObject *)op;
    core_state *state = state_of(op);
    PyObject *ptr, *stream_object = Py_None;
    gm_devptr address;
    gm_stream stream;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:free", names, &ptr,
                                     &stream_object) ||
        parse_address(ptr, &address) < 0 ||
        parse_stream(state, stream_object, self->device->device, GM_DEFAULT_STREAM,
                     &stream) < 0) {
        return NULL;
    }
    if (address == 0) {
        Py_RETURN_NONE;
    }
    gm_status status =
        free_address(state, self, address, stream_object == Py_None ? NULL : &stream);
    if (status == GM_UNKNOWN_ADDRESS) {
        PyErr_Format(PyExc_ValueError,
                     "%R is not the address of a live block that malloc() of pool %R "
                     "handed out",
                     ptr, self->name);
        return NULL;
    }
    if (status != GM_OK && status != GM_FORKED && status != GM_EXITING) {
        return set_status_error(state, status, "free a block");
    }
    Py_RETURN_NONE;
}

PyObject *
Pool_owns(PyObject *op, PyObject *ptr)
{
    gm_devptr address;
    gm_block *block;
    if (parse_address(ptr, &address) < 0) {
        return NULL;
    }
    bool found = gm_block_find(address, &block) == GM_OK &&
                 gm_block_pool(block) == ((PoolObject *)op)->pool;
    return PyBool_FromLong(found);
}

/* ---- giving back, taking ahead -------------------------------------------------------------- */

PyObject *
Pool_trim(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"target", "older_than", "stream", "wait", NULL};
    PoolObject *self = (PoolObject *)op;
    core_state *state = state_of(op);
    PyObject *target = NULL, *older_than = NULL, *stream = Py_None, *wait = NULL;
    gm_trim_request request = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O$OOO:trim", names, &target,
                                     &older_than, &stream, &wait) ||
        (target != NULL && parse_size(state, target, "target", &request.target) < 0) ||
        (older_than != NULL &&
         parse_seconds(older_than, "older_than", &request.older_than_ns) < 0) ||
        (wait != NULL && parse_seconds(wait, "wait", &request.timeout_ns) < 0) ||
        parse_stream(state, stream, self->device->device, GM_DEFAULT_STREAM,
                     &request.stream) < 0) {
        return NULL;
    }
    request.one_stream = stream != Py_None;
    gm_trim_report report = {0};
    gm_status status;
    Py_BEGIN_ALLOW_THREADS
    status = gm_pool_trim(self->pool, &request, &report);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        return set_status_error(state, status, "give idle memory back");
    }
    return Py_BuildValue("nnnnN", (Py_ssize_t)report.released,
                         (Py_ssize_t)report.referenced, (Py_ssize_t)report.skipped,
                         (Py_ssize_t)report.pending, PyBool_FromLong(report.capturing));
}

PyObject *
pool_reserve_failed(core_state *state, PoolObject *self, size_t size, const gm_oom *oom)
{
    gm_request request = {.size = size};
    trace_frame frame;
    trace_enter(&frame, state, self);
    frame.oom = oom;
    gm_pool_count_oom(self->pool, &request, oom);
    trace_leave(&frame);
    return set_oom_error(state, self, oom, false);
}

PyObject *
Pool_reserve(PyObject *op, PyObject *nbytes)
{
    PoolObject *self = (PoolObject *)op;
    core_state *state = state_of(op);
    size_t size;
    gm_oom oom;
    gm_status status;
    if (parse_size(state, nbytes, "nbytes", &size) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gm_pool_reserve(self->pool, size, &oom);
    Py_END_ALLOW_THREADS
    if (status == GM_OUT_OF_MEMORY) {
        return pool_reserve_failed(state, self, size, &oom);
    }
    if (status != GM_OK) {
        return set_status_error(state, status, "reserve memory");
    }
    Py_RETURN_NONE;
}

PyObject *
Pool_poll(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    gm_pool *pool = ((PoolObject *)op)->pool;
    Py_BEGIN_ALLOW_THREADS
    gm_pool_poll(pool);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* A stream that must be named; -1 with an exception. */
static int
parse_named_stream(PyObject *op, PyObject *stream_object, gm_stream *out)
{
    if (stream_object == Py_None) {
        PyErr_SetString(PyExc_TypeError, "stream must be a Stream or a handle");
        return -1;
    }
    return parse_stream(state_of(op), stream_object, ((PoolObject *)op)->device->device,
                        GM_DEFAULT_STREAM, out);
}

PyObject *
Pool_stream_retired(PyObject *op, PyObject *stream_object)
{
    gm_stream stream;
    if (parse_named_stream(op, stream_object, &stream) < 0) {
        return NULL;
    }
    gm_pool_stream_retired(((PoolObject *)op)->pool, stream);
    Py_RETURN_NONE;
}

/* ---- captures --------------------------------------------------------------------------- */

/* Calls `tell` without the GIL. `wrong` is the text of its ValueError, with %R for the
 * stream. */
static PyObject *
tell_of_capture(PyObject *op, PyObject *stream_object,
                gm_status (*tell)(gm_pool *pool, gm_stream stream), const char *what,
                const char *wrong)
{
    gm_pool *pool = ((PoolObject *)op)->pool;
    gm_stream stream;
    gm_status status;
    if (parse_named_stream(op, stream_object, &stream) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    status = tell(pool, stream);
    Py_END_ALLOW_THREADS
    if (status == GM_INVALID) {
        PyErr_Format(PyExc_ValueError, wrong, stream_object);
        return NULL;
    }
    if (status != GM_OK) {
        return set_status_error(state_of(op), status, what);
    }
    Py_RETURN_NONE;
}

PyObject *
Pool_capture_begin(PyObject *op, PyObject *stream)
{
    return tell_of_capture(op, stream, gm_pool_capture_begin, "begin a capture",
                           "a capture was begun on %R already");
}

PyObject *
Pool_capture_end(PyObject *op, PyObject *stream)
{
    return tell_of_capture(op, stream, gm_pool_capture_end, "end a capture",
                           "no capture was begun on %R");
}
