/* arguments.c - what callers may write for sizes, streams, times and shapes.
 *
 * Every value from outside is checked here once: type, range, overflow. The messages
 * name the argument and what it accepts.
 */
#include "python/python.h"

#include <math.h>

#include "device/fault.h"

/* Takes the value of an exact int; the caller has excluded bool. */
static int
size_from_int(PyObject *value, const char *argument, size_t *out)
{
    size_t size = PyLong_AsSize_t(value);
    if (size == (size_t)-1 && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError)) {
            return -1;
        }
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError,
                     "%s must be a number of bytes from 0 to 2**64 - 1, not %R",
                     argument, value);
        return -1;
    }
    *out = size;
    return 0;
}

static int
size_from_text(core_state *state, PyObject *value, const char *argument, size_t *out)
{
    if (state->hook_parse_size == NULL) {
        PyErr_Format(PyExc_RuntimeError,
                     "%s: sizes as text need the gpumem package (import gpumem)",
                     argument);
        return -1;
    }
    PyObject *size =
        PyObject_CallFunction(state->hook_parse_size, "Os", value, argument);
    if (size == NULL) {
        return -1;
    }
    int result = -1;
    if (PyLong_Check(size)) {
        result = size_from_int(size, argument, out);
    }
    else {
        PyErr_SetString(PyExc_TypeError, "the parse_size hook must return an int");
    }
    Py_DECREF(size);
    return result;
}

int
parse_size(core_state *state, PyObject *value, const char *argument, size_t *out)
{
    if (PyLong_CheckExact(value)) {
        return size_from_int(value, argument, out);
    }
    if (PyUnicode_Check(value)) {
        return size_from_text(state, value, argument, out);
    }
    if (PyBool_Check(value) || !PyIndex_Check(value)) {
        PyErr_Format(PyExc_TypeError,
                     "%s must be a number of bytes (an int, or text such as "
                     "'1.5 GiB'), not %.100s",
                     argument, Py_TYPE(value)->tp_name);
        return -1;
    }
    PyObject *number = PyNumber_Index(value);
    if (number == NULL) {
        return -1;
    }
    int result = size_from_int(number, argument, out);
    Py_DECREF(number);
    return result;
}

bool
same_device(gm_device *left, gm_device *right)
{
    return left == right || gm_fault_inner(left) == gm_fault_inner(right);
}

static int
stream_from_object(StreamObject *stream, gm_device *device, gm_stream *out)
{
    if (!same_device(stream->device->device, device)) {
        PyErr_Format(PyExc_ValueError, "the stream belongs to %s, not to %s",
                     stream->device->device->info.name, device->info.name);
        return -1;
    }
    if (stream->closed) {
        PyErr_SetString(PyExc_ValueError, "the stream is closed");
        return -1;
    }
    *out = stream->handle;
    return 0;
}

/* A stream of another library that follows the protocol __cuda_stream__, which answers
 * (version, handle). 0, or -1 with an exception. */
static int
parse_foreign_stream(PyObject *value, const gm_device *device, gm_stream *out)
{
    PyObject *method = PyObject_GetAttrString(value, "__cuda_stream__");
    if (method == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
            return -1;
        }
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError,
                     "stream must be None, a Stream, a handle as an int or an object "
                     "with __cuda_stream__, not %.100s",
                     Py_TYPE(value)->tp_name);
        return -1;
    }
    PyObject *answer =
        PyCallable_Check(method) ? PyObject_CallNoArgs(method) : Py_NewRef(method);
    Py_DECREF(method);
    if (answer == NULL) {
        return -1;
    }
    int version;
    unsigned long long handle;
    bool valid = PyTuple_Check(answer) &&
                 PyArg_ParseTuple(answer, "iK;__cuda_stream__", &version, &handle);
    Py_DECREF(answer);
    if (!valid || version != 0) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError,
                     "__cuda_stream__ of %.100s must answer (0, handle)",
                     Py_TYPE(value)->tp_name);
        return -1;
    }
    if (device->info.kind != GM_DEVICE_CUDA) {
        PyErr_Format(PyExc_ValueError, "a CUDA stream has no meaning on %s",
                     device->info.name);
        return -1;
    }
    *out = handle;
    return 0;
}

int
parse_stream(core_state *state, PyObject *value, gm_device *device, gm_stream fallback,
             gm_stream *out)
{
    if (value == NULL || value == Py_None) {
        *out = fallback;
        return 0;
    }
    if (Py_IS_TYPE(value, state->Stream_Type)) {
        return stream_from_object((StreamObject *)value, device, out);
    }
    if (PyBool_Check(value) || !PyLong_Check(value)) {
        return parse_foreign_stream(value, device, out);
    }
    unsigned long long handle = PyLong_AsUnsignedLongLong(value);
    if (handle == (unsigned long long)-1 && PyErr_Occurred()) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError,
                     "stream must be a handle from 0 to 2**64 - 1, not %R", value);
        return -1;
    }
    *out = handle;
    return 0;
}

int
parse_count(PyObject *value, const char *argument, size_t *out)
{
    if (PyBool_Check(value) || !PyIndex_Check(value)) {
        PyErr_Format(PyExc_TypeError, "%s must be an int, not %.100s", argument,
                     Py_TYPE(value)->tp_name);
        return -1;
    }
    Py_ssize_t count = PyNumber_AsSsize_t(value, PyExc_ValueError);
    if (count == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (count < 0) {
        PyErr_Format(PyExc_ValueError, "%s must not be negative: %zd", argument, count);
        return -1;
    }
    *out = (size_t)count;
    return 0;
}

int
parse_seconds(PyObject *value, const char *argument, uint64_t *out)
{
    if (value == Py_None) {
        *out = UINT64_MAX;
        return 0;
    }
    if (PyBool_Check(value) || !(PyFloat_Check(value) || PyLong_Check(value))) {
        PyErr_Format(PyExc_TypeError, "%s must be a number of seconds, not %.100s",
                     argument, Py_TYPE(value)->tp_name);
        return -1;
    }
    double seconds = PyFloat_AsDouble(value);
    if (seconds == -1.0 && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError)) {
            return -1;
        }
        PyErr_Clear();
        seconds = HUGE_VAL;
    }
    if (!isfinite(seconds) || seconds < 0.0) {
        PyErr_Format(PyExc_ValueError,
                     "%s must be a finite number of seconds >= 0, not %R", argument,
                     value);
        return -1;
    }
    double nanoseconds = seconds * 1e9;
    *out = nanoseconds >= 1.8e19 ? UINT64_MAX : (uint64_t)(nanoseconds + 0.5);
    return 0;
}

/* ---- shapes ------------------------------------------------------------------------- */

/* One extent: an int >= 0. */
static int
parse_extent(PyObject *value, Py_ssize_t *out)
{
    if (PyBool_Check(value) || !PyIndex_Check(value)) {
        PyErr_Format(PyExc_TypeError,
                     "shape must be an int or a sequence of ints, not %.100s",
                     Py_TYPE(value)->tp_name);
        return -1;
    }
    Py_ssize_t extent = PyNumber_AsSsize_t(value, PyExc_OverflowError);
    if (extent == -1 && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError)) {
            return -1;
        }
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "shape is too large: %R", value);
        return -1;
    }
    if (extent < 0) {
        PyErr_Format(PyExc_ValueError, "shape must not be negative: %zd", extent);
        return -1;
    }
    *out = extent;
    return 0;
}

int
parse_shape(PyObject *value, Py_ssize_t shape[], int *ndim)
{
    if (PyLong_CheckExact(value)) { /* the hot path of Pool.empty(n) */
        Py_ssize_t extent = PyLong_AsSsize_t(value);
        if (extent >= 0) {
            shape[0] = extent;
            *ndim = 1;
            return 0;
        }
        PyErr_Clear();
    }
    bool sequence =
        PySequence_Check(value) && !PyUnicode_Check(value) && !PyBytes_Check(value);
    if (PyLong_Check(value) || !sequence) {
        *ndim = 1;
        return parse_extent(value, &shape[0]);
    }
    /* A tuple of our own: an item's __index__ may change a list. */
    PyObject *items = PySequence_Tuple(value);
    if (items == NULL) {
        return -1;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(items);
    if (count > BUFFER_MAX_DIM) {
        PyErr_Format(PyExc_ValueError,
                     "shape has %zd dimensions, at most %d are allowed", count,
                     BUFFER_MAX_DIM);
        Py_DECREF(items);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (parse_extent(PyTuple_GET_ITEM(items, i), &shape[i]) < 0) {
            Py_DECREF(items);
            return -1;
        }
    }
    Py_DECREF(items);
    *ndim = (int)count;
    return 0;
}
