/* gradbuffer_state.c - a GradBuffer as plain values, for pickle and checkpoints.
 *
 * The state is a dict of strings, numbers, tuples and the bytes of the elements with
 * their padding. A restored GradBuffer lies in the default pool of the process that
 * restores it, whatever device it came from.
 *
 * Thread-safety: the GIL.
 */
#include "python/python.h"

#include <math.h>

#include "python/gradbuffer.h"

/* New reference: a tuple of the shapes. */
static PyObject *
shapes_of(const GradBufferObject *self)
{
    PyObject *shapes = PyTuple_New(grad_length(self));
    for (Py_ssize_t i = 0; shapes != NULL && i < grad_length(self); i++) {
        const BufferObject *view = (BufferObject *)PyTuple_GET_ITEM(self->views, i);
        PyObject *shape = dims_to_tuple(view->ndim, view->shape);
        if (shape == NULL) {
            Py_CLEAR(shapes);
            break;
        }
        PyTuple_SET_ITEM(shapes, i, shape);
    }
    return shapes;
}

/* New reference: the dict, from the values and whatever else is asked. */
static PyObject *
build_state(const GradBufferObject *self, PyObject *values)
{
    PyObject *shapes = shapes_of(self);
    PyObject *window =
        self->window > 0 ? PyLong_FromSsize_t(self->window) : Py_NewRef(Py_None);
    PyObject *state = NULL;
    if (shapes != NULL && window != NULL) {
        state = Py_BuildValue(
            "{s:i,s:O,s:O,s:O,s:s,s:s,s:n,s:d,s:n,s:N,s:N,s:O}", "version", 1, "names",
            self->names, "shapes", shapes, "window", window, "mode",
            grad_mode_name(self->mode), "dtype", self->dtype->name, "count",
            self->count, "weight", self->weight, "rejected", self->rejected, "finished",
            PyBool_FromLong(self->finished), "weighted",
            PyBool_FromLong(self->style == GRAD_STYLE_WEIGHTED), "values", values);
    }
    Py_XDECREF(shapes);
    Py_XDECREF(window);
    return state;
}

PyObject *
GradBuffer_state(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    GradBufferObject *self = (GradBufferObject *)op;
    if (grad_begin(self) < 0) {
        return NULL;
    }
    PyObject *values = buffer_tobytes((PyObject *)self->buffer, NULL);
    PyObject *state = values != NULL ? build_state(self, values) : NULL;
    Py_XDECREF(values);
    grad_end(self);
    return state;
}

PyObject *
GradBuffer_reduce(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    PyObject *state = GradBuffer_state(op, NULL);
    if (state == NULL) {
        return NULL;
    }
    PyObject *restore = PyObject_GetAttrString((PyObject *)Py_TYPE(op), "_restore");
    if (restore == NULL) {
        Py_DECREF(state);
        return NULL;
    }
    return Py_BuildValue("N(N)", restore, state);
}

/* ---- restoring -------------------------------------------------------------------------- */

/* What a state says, checked as far as it can be without the object. */
typedef struct grad_record {
    PyObject *names, *shapes, *values; /* borrowed */
    const dtype_info *dtype;
    grad_mode mode;
    Py_ssize_t window, count, rejected;
    double weight;
    int finished, weighted;
} grad_record;

/* Borrowed: an entry of the state; ValueError when it is missing. */
static PyObject *
entry_of(PyObject *state, const char *name)
{
    PyObject *key = PyUnicode_FromString(name);
    PyObject *value = key != NULL ? PyDict_GetItemWithError(state, key) : NULL;
    Py_XDECREF(key);
    if (value == NULL && !PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "the state of a GradBuffer has no entry %s",
                     name);
    }
    return value;
}

static int
read_count(PyObject *state, const char *name, Py_ssize_t *out)
{
    PyObject *value = entry_of(state, name);
    size_t count = 0;
    if (value == NULL || (value != Py_None && parse_count(value, name, &count) < 0)) {
        return -1;
    }
    *out = (Py_ssize_t)count;
    return 0;
}

static int
read_truth(PyObject *state, const char *name, int *out)
{
    PyObject *value = entry_of(state, name);
    *out = value != NULL ? PyObject_IsTrue(value) : -1;
    return *out < 0 ? -1 : 0;
}

static int
read_record(PyObject *state, grad_record *out)
{
    PyObject *mode = entry_of(state, "mode");
    PyObject *dtype = mode != NULL ? entry_of(state, "dtype") : NULL;
    PyObject *weight = dtype != NULL ? entry_of(state, "weight") : NULL;
    out->names = weight != NULL ? entry_of(state, "names") : NULL;
    out->shapes = out->names != NULL ? entry_of(state, "shapes") : NULL;
    out->values = out->shapes != NULL ? entry_of(state, "values") : NULL;
    if (out->values == NULL || grad_parse_mode(mode, &out->mode) < 0 ||
        read_count(state, "window", &out->window) < 0 ||
        read_count(state, "count", &out->count) < 0 ||
        read_count(state, "rejected", &out->rejected) < 0 ||
        read_truth(state, "finished", &out->finished) < 0 ||
        read_truth(state, "weighted", &out->weighted) < 0) {
        return -1;
    }
    out->weight = PyFloat_AsDouble(weight);
    if (out->weight == -1.0 && PyErr_Occurred()) {
        return -1;
    }
    const char *name = PyUnicode_Check(dtype) ? PyUnicode_AsUTF8(dtype) : NULL;
    out->dtype = name != NULL ? dtype_by_name(name) : NULL;
    if (out->dtype == NULL || out->dtype->kernel < 0 || !PyTuple_Check(out->names) ||
        !PyTuple_Check(out->shapes) || !PyBytes_Check(out->values) ||
        PyTuple_GET_SIZE(out->names) != PyTuple_GET_SIZE(out->shapes) ||
        !(out->weight >= 0.0) || isinf(out->weight)) {
        PyErr_SetString(PyExc_ValueError, "this is not the state of a GradBuffer");
        return -1;
    }
    return 0;
}

/* New reference: an empty buffer of the recorded form. */
static GradBufferObject *
create_from_record(core_state *state, const grad_record *record)
{
    Py_ssize_t length = PyTuple_GET_SIZE(record->shapes);
    grad_shape *shapes = PyMem_New(grad_shape, (size_t)length + 1);
    if (shapes == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    GradBufferObject *self = NULL;
    int result = 0;
    for (Py_ssize_t i = 0; i < length && result == 0; i++) {
        result = parse_shape(PyTuple_GET_ITEM(record->shapes, i), shapes[i].sizes,
                             &shapes[i].ndim);
    }
    PyObject *pool = result == 0 ? grad_default_pool(state) : NULL;
    if (pool != NULL) {
        self = grad_create(state, record->names, shapes, record->dtype,
                           (PoolObject *)pool, GM_DEFAULT_STREAM);
        Py_DECREF(pool);
    }
    PyMem_Free(shapes);
    return self;
}

static int
fill_from_record(GradBufferObject *self, const grad_record *record)
{
    if (PyBytes_GET_SIZE(record->values) != self->buffer->nbytes) {
        PyErr_Format(
            PyExc_ValueError,
            "the state of a GradBuffer has %zd bytes of values, its shapes make "
            "%zd",
            PyBytes_GET_SIZE(record->values), self->buffer->nbytes);
        return -1;
    }
    PyObject *bytes =
        PyObject_CallMethod((PyObject *)self->buffer, "view", "s", "uint8");
    if (bytes == NULL) {
        return -1;
    }
    PyObject *result = PyObject_CallMethod(bytes, "copy_from", "O", record->values);
    Py_DECREF(bytes);
    Py_XDECREF(result);
    return result != NULL ? grad_measure_buffer(self, &self->bound) : -1;
}

PyObject *
GradBuffer_restore(PyObject *type, PyObject *values)
{
    core_state *state = state_of_type((PyTypeObject *)type);
    grad_record record;
    if (!PyDict_Check(values)) {
        PyErr_Format(PyExc_TypeError, "the state of a GradBuffer is a dict, not %.100s",
                     Py_TYPE(values)->tp_name);
        return NULL;
    }
    if (read_record(values, &record) < 0) {
        return NULL;
    }
    GradBufferObject *self = create_from_record(state, &record);
    if (self == NULL) {
        return NULL;
    }
    if (fill_from_record(self, &record) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    self->mode = record.mode;
    self->window = record.window;
    self->count = record.count;
    self->rejected = record.rejected;
    self->weight = record.weight;
    self->finished = record.finished != 0;
    self->style = record.count == 0 ? GRAD_STYLE_OPEN
                  : record.weighted ? GRAD_STYLE_WEIGHTED
                                    : GRAD_STYLE_PLAIN;
    return (PyObject *)self;
}
