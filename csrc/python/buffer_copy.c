/* buffer_copy.c - the methods of Buffer that move elements: copy_from, copy_to, fill,
 * tobytes.
 *
 * They understand the arguments; copy_engine.c moves the elements.
 *
 * Thread-safety: the GIL, which is released while a device works or is waited for.
 */
#include "python/python.h"

#include "python/buffer.h"
#include "python/copy_engine.h"

/* ---- arguments ------------------------------------------------------------------- */

/* One positional argument and stream=. */
static int
parse_call(core_state *state, BufferObject *self, const char *method,
           PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
           gm_stream *stream)
{
    Py_ssize_t keywords = kwnames != NULL ? PyTuple_GET_SIZE(kwnames) : 0;
    PyObject *stream_argument = NULL;
    if (nargs != 1) {
        PyErr_Format(PyExc_TypeError,
                     "%s() takes one positional argument, %zd were given", method,
                     nargs);
        return -1;
    }
    for (Py_ssize_t i = 0; i < keywords; i++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, i);
        if (PyUnicode_CompareWithASCIIString(name, "stream") != 0) {
            PyErr_Format(PyExc_TypeError, "%s() has no keyword argument %R", method,
                         name);
            return -1;
        }
        stream_argument = args[nargs + i];
    }
    if (buffer_require(state, self) < 0) {
        return -1;
    }
    return parse_stream(state, stream_argument, buffer_device(self), self->stream,
                        stream);
}

/* ---- fill ------------------------------------------------------------------------ */

static int
fill_by_numpy(copy_job *job, unsigned char *pattern)
{
    copy_end value = {0};
    value.layout.address = (gm_devptr)(uintptr_t)pattern;
    value.layout.itemsize = job->self->dtype->itemsize;
    value.dtype = job->self->dtype;
    value.host.dtype = value.dtype;
    job->source = &value;
    copy_end_hold(job->target);
    int result = copy_run_numpy(job);
    copy_end_unhold(job->state, job->target);
    return result;
}

static int
fill_with(core_state *state, BufferObject *self, PyObject *value, gm_stream stream)
{
    unsigned char pattern[DTYPE_MAX_SIZE] = {0};
    copy_end target;
    if (copy_end_open_buffer(state, self, &target) < 0 ||
        dtype_pack(state, self->dtype, value, pattern) < 0) {
        return -1;
    }
    if (self->nbytes == 0) {
        return 0;
    }
    if (transfer_pieces(&target.layout, NULL) > MANY_PIECES &&
        copy_end_is_on_host(&target)) {
        copy_job job = {state, &target, NULL, self, stream};
        return fill_by_numpy(&job, pattern);
    }
    if (buffer_note_stream(state, self, stream) < 0) {
        return -1;
    }
    gm_status status;
    copy_end_hold(&target);
    Py_BEGIN_ALLOW_THREADS
    status = transfer_fill(buffer_device(self), &target.layout, pattern, stream);
    Py_END_ALLOW_THREADS
    copy_end_unhold(state, &target);
    if (status != GM_OK) {
        set_status_error(state, status, "fill");
        return -1;
    }
    return buffer_note_queued(state, self, stream);
}

PyObject *
buffer_fill(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    BufferObject *self = (BufferObject *)op;
    core_state *state = state_of(op);
    gm_stream stream;
    if (parse_call(state, self, "fill", args, nargs, kwnames, &stream) < 0 ||
        fill_with(state, self, args[0], stream) < 0) {
        return NULL;
    }
    return Py_NewRef(op);
}

/* ---- copy_from, copy_to ---------------------------------------------------------- */

static int
is_number(PyObject *value)
{
    return PyLong_Check(value) || PyFloat_Check(value) || PyComplex_Check(value);
}

/* New reference: a nested sequence as an ndarray. Python's ints take any integer dtype
 * that they fit in. */
static PyObject *
ndarray_of_sequence(core_state *state, PyObject *source, const dtype_info *dtype)
{
    if (PyObject_HasAttrString(source, "__cuda_array_interface__")) {
        PyErr_Format(PyExc_TypeError,
                     "%.100s objects are CUDA memory; copy them to the host first",
                     Py_TYPE(source)->tp_name);
        return NULL;
    }
    PyObject *array = numpy_asarray(state, source);
    host_array described;
    if (array == NULL) {
        return NULL;
    }
    if (numpy_describe(state, array, &described) < 0) {
        Py_DECREF(array);
        return NULL;
    }
    bool integers =
        described.dtype->dlpack_code == CODE_INT && dtype->dlpack_code == CODE_UINT;
    host_array_release(&described);
    if (!integers) {
        return array;
    }
    Py_DECREF(array);
    array = numpy_asarray_as(state, source, dtype);
    if (array == NULL && PyErr_ExceptionMatches(PyExc_OverflowError)) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "an element is outside the range of %s",
                     dtype->name);
    }
    return array;
}

static int
open_source(core_state *state, PyObject *source, const dtype_info *dtype, copy_end *out)
{
    int opened = copy_end_open(state, source, out);
    if (opened != 0) {
        return opened < 0 ? -1 : 0;
    }
    PyObject *array = ndarray_of_sequence(state, source, dtype);
    if (array == NULL) {
        return -1;
    }
    opened = copy_end_open(state, array, out);
    Py_DECREF(array);
    return opened < 0 ? -1 : 0;
}

PyObject *
buffer_copy_from(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                 PyObject *kwnames)
{
    BufferObject *self = (BufferObject *)op;
    core_state *state = state_of(op);
    gm_stream stream;
    if (parse_call(state, self, "copy_from", args, nargs, kwnames, &stream) < 0) {
        return NULL;
    }
    if (is_number(args[0])) {
        return fill_with(state, self, args[0], stream) < 0 ? NULL : Py_NewRef(op);
    }
    copy_end target, source;
    if (copy_end_open_buffer(state, self, &target) < 0 ||
        open_source(state, args[0], self->dtype, &source) < 0) {
        return NULL;
    }
    copy_job job = {state, &target, &source, self, stream};
    int result = copy_run(&job);
    copy_end_close(&source);
    return result < 0 ? NULL : Py_NewRef(op);
}

PyObject *
buffer_copy_to(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    BufferObject *self = (BufferObject *)op;
    core_state *state = state_of(op);
    gm_stream stream;
    if (parse_call(state, self, "copy_to", args, nargs, kwnames, &stream) < 0) {
        return NULL;
    }
    copy_end target, source;
    if (copy_end_open_buffer(state, self, &source) < 0) {
        return NULL;
    }
    int opened = copy_end_open(state, args[0], &target);
    if (opened < 0) {
        return NULL;
    }
    if (opened == 0) {
        PyErr_Format(
            PyExc_TypeError,
            "copy_to needs a Buffer, a PinnedArray, a writable array or a DLPack "
            "tensor in host memory, not %.100s",
            Py_TYPE(args[0])->tp_name);
        return NULL;
    }
    int result = -1;
    if (target.buffer == NULL && target.pinned == NULL && !target.host.writable) {
        PyErr_SetString(PyExc_ValueError, "the target of the copy is read-only");
    }
    else {
        copy_job job = {state, &target, &source, self, stream};
        result = copy_run(&job);
    }
    copy_end_close(&target);
    return result < 0 ? NULL : Py_NewRef(args[0]);
}

/* ---- tobytes --------------------------------------------------------------------- */

/* The host gathers the elements itself, without NumPy. */
static int
gather_on_host(core_state *state, BufferObject *self, char *out)
{
    Py_buffer view;
    if (wait_for_stream(state, buffer_device(self), self->stream, UINT64_MAX) < 0 ||
        PyObject_GetBuffer((PyObject *)self, &view, PyBUF_FULL_RO) < 0) {
        return -1;
    }
    int result = PyBuffer_ToContiguous(out, &view, view.len, 'C');
    PyBuffer_Release(&view);
    return result;
}

PyObject *
buffer_tobytes(PyObject *op, PyObject *Py_UNUSED(unused))
{
    BufferObject *self = (BufferObject *)op;
    core_state *state = state_of(op);
    copy_end source;
    if (copy_end_open_buffer(state, self, &source) < 0) {
        return NULL;
    }
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, self->nbytes);
    if (bytes == NULL || self->nbytes == 0) {
        return bytes;
    }
    int result;
    if (copy_end_is_on_host(&source) && !buffer_is_contiguous(self)) {
        result = gather_on_host(state, self, PyBytes_AS_STRING(bytes));
    }
    else {
        Py_ssize_t strides[BUFFER_MAX_DIM];
        copy_end target = {.layout = source.layout, .dtype = self->dtype};
        target.layout.address = (gm_devptr)(uintptr_t)PyBytes_AS_STRING(bytes);
        layout_set_c_order(self->ndim, self->shape, self->dtype->itemsize, strides);
        target.layout.strides = strides;
        copy_job job = {state, &target, &source, self, self->stream};
        copy_end_hold(&source);
        result = copy_run_direct(&job, buffer_device(self), self->stream, false);
        copy_end_unhold(state, &source);
    }
    if (result < 0) {
        Py_CLEAR(bytes);
    }
    return bytes;
}
