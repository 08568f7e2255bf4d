/* gradbuffer_inputs.c - parameters and gradients, from Python objects to addresses.
 *
 * A parameter is a shape, or anything with a `shape`. A gradient is a Buffer, a
 * PinnedArray, a NumPy array, an object with the buffer protocol or a tensor with
 * DLPack, or None for zeros. Kernels read contiguous, aligned gradients where they
 * are; others are copied to the pool first (strided, byte-swapped, on another device,
 * or part of the accumulation buffer itself, whose values change while it is added).
 *
 * Nothing of a gradient is kept after the call, nor changed.
 *
 * Thread-safety: the GIL.
 */
#include "python/python.h"

#include "python/gradbuffer.h"

/* ---- parameters ------------------------------------------------------------------------- */

/* True for an object that describes an array, not a shape or a container of them. */
static bool
has_shape(PyObject *value)
{
    return !PyLong_Check(value) && !PyTuple_Check(value) && !PyList_Check(value) &&
           PyObject_HasAttrString(value, "shape");
}

static int
parse_param(PyObject *value, grad_shape *out)
{
    if (!has_shape(value)) {
        return parse_shape(value, out->sizes, &out->ndim);
    }
    PyObject *shape = PyObject_GetAttrString(value, "shape");
    if (shape == NULL) {
        return -1;
    }
    int result = parse_shape(shape, out->sizes, &out->ndim);
    Py_DECREF(shape);
    return result;
}

/* True for a dict and its like. */
static bool
is_mapping(PyObject *value)
{
    return PyDict_Check(value) ||
           (PyMapping_Check(value) && PyObject_HasAttrString(value, "keys"));
}

/* TypeError unless the value may be taken for a sequence of arrays or shapes. */
static int
check_sequence(PyObject *value, const char *argument)
{
    if (PyUnicode_Check(value) || PyBytes_Check(value) || PyLong_Check(value) ||
        has_shape(value)) {
        PyErr_Format(PyExc_TypeError,
                     "%s must be a sequence or a dict with one entry for each "
                     "parameter, not %.100s",
                     argument, Py_TYPE(value)->tp_name);
        return -1;
    }
    return 0;
}

/* New references: names and values of a dict, or numbers as names and the items. */
static int
split_params(PyObject *params, PyObject **names, PyObject **values)
{
    *names = *values = NULL;
    if (is_mapping(params)) {
        PyObject *keys = PyMapping_Keys(params);
        PyObject *items = keys != NULL ? PyMapping_Values(params) : NULL;
        *names = items != NULL ? PySequence_Tuple(keys) : NULL;
        *values = *names != NULL ? PySequence_Tuple(items) : NULL;
        Py_XDECREF(items);
        Py_XDECREF(keys);
    }
    else if (check_sequence(params, "params") == 0) {
        *values = PySequence_Tuple(params);
        *names = *values != NULL ? PyTuple_New(PyTuple_GET_SIZE(*values)) : NULL;
        for (Py_ssize_t i = 0; *names != NULL && i < PyTuple_GET_SIZE(*names); i++) {
            PyObject *name = PyUnicode_FromFormat("%zd", i);
            if (name == NULL) {
                Py_CLEAR(*names);
                break;
            }
            PyTuple_SET_ITEM(*names, i, name);
        }
    }
    if (*names == NULL || *values == NULL) {
        Py_CLEAR(*names);
        Py_CLEAR(*values);
        return -1;
    }
    return 0;
}

static int
check_names(PyObject *names, PyObject *values)
{
    Py_ssize_t length = PyTuple_GET_SIZE(names);
    if (length == 0 || length != PyTuple_GET_SIZE(values)) {
        PyErr_SetString(PyExc_ValueError,
                        "params is empty, or changed while it was read");
        return -1;
    }
    for (Py_ssize_t i = 0; i < length; i++) {
        if (!PyUnicode_Check(PyTuple_GET_ITEM(names, i))) {
            PyErr_Format(PyExc_TypeError, "names of params must be str, not %.100s",
                         Py_TYPE(PyTuple_GET_ITEM(names, i))->tp_name);
            return -1;
        }
    }
    return 0;
}

int
grad_parse_params(PyObject *params, PyObject **names, grad_shape **shapes)
{
    PyObject *values;
    if (split_params(params, names, &values) < 0) {
        return -1;
    }
    *shapes = NULL;
    int result = check_names(*names, values);
    Py_ssize_t length = PyTuple_GET_SIZE(values);
    if (result == 0) {
        *shapes = PyMem_New(grad_shape, (size_t)length);
        if (*shapes == NULL) {
            PyErr_NoMemory();
            result = -1;
        }
    }
    for (Py_ssize_t i = 0; result == 0 && i < length; i++) {
        result = parse_param(PyTuple_GET_ITEM(values, i), &(*shapes)[i]);
    }
    Py_DECREF(values);
    if (result < 0) {
        Py_CLEAR(*names);
        PyMem_Free(*shapes);
        *shapes = NULL;
    }
    return result;
}

const dtype_info *
grad_parse_dtype(core_state *state, PyObject *value)
{
    const dtype_info *dtype =
        value != NULL ? dtype_parse(state, value) : dtype_by_name("float32");
    if (dtype == NULL) {
        return NULL;
    }
    if (dtype->kernel < 0) {
        PyErr_Format(PyExc_ValueError,
                     "dtype must be 'float32', 'float64', 'float16' or 'bfloat16', not "
                     "'%s'",
                     dtype->name);
        return NULL;
    }
    if (dtype->itemsize == 2 &&
        PyErr_WarnFormat(
            state->GpumemWarning, 1,
            "a GradBuffer of %s loses small gradients: a sum stops growing "
            "once its terms are small beside it; use float32",
            dtype->name) < 0) {
        return NULL;
    }
    return dtype;
}

/* ---- gradients in order -------------------------------------------------------------------- */

static int
check_length(const GradBufferObject *self, Py_ssize_t length)
{
    if (length != grad_length(self)) {
        PyErr_Format(PyExc_ValueError,
                     "grads has %zd entries, but there are %zd parameters (None stands "
                     "for a gradient of zeros)",
                     length, grad_length(self));
        return -1;
    }
    return 0;
}

/* New reference. */
static PyObject *
order_mapping(GradBufferObject *self, PyObject *grads)
{
    Py_ssize_t length = grad_length(self);
    Py_ssize_t given = PyMapping_Size(grads);
    if (given < 0 || check_length(self, given) < 0) {
        return NULL;
    }
    PyObject *ordered = PyTuple_New(length);
    for (Py_ssize_t i = 0; ordered != NULL && i < length; i++) {
        PyObject *name = PyTuple_GET_ITEM(self->names, i);
        PyObject *grad = PyObject_GetItem(grads, name);
        if (grad == NULL) {
            if (PyErr_ExceptionMatches(PyExc_KeyError)) {
                PyErr_Format(PyExc_ValueError, "grads has no entry for parameter %R",
                             name);
            }
            Py_CLEAR(ordered);
            break;
        }
        PyTuple_SET_ITEM(ordered, i, grad);
    }
    return ordered;
}

PyObject *
grad_order(GradBufferObject *self, PyObject *grads)
{
    if (is_mapping(grads)) {
        return order_mapping(self, grads);
    }
    if (check_sequence(grads, "grads") < 0) {
        return NULL;
    }
    PyObject *ordered = PySequence_Tuple(grads);
    if (ordered != NULL && check_length(self, PyTuple_GET_SIZE(ordered)) < 0) {
        Py_CLEAR(ordered);
    }
    return ordered;
}

/* ---- one gradient ------------------------------------------------------------------------------ */

/* New reference: the values of a tensor that takes part in differentiation, without its
 * graph; any other object itself. */
static PyObject *
without_graph(PyObject *grad)
{
    if (PyObject_HasAttrString(grad, "detach") &&
        PyObject_HasAttrString(grad, "requires_grad")) {
        return PyObject_CallMethod(grad, "detach", NULL);
    }
    return Py_NewRef(grad);
}

static int
check_grad(GradBufferObject *self, Py_ssize_t index, const grad_input *input)
{
    const BufferObject *view = (BufferObject *)PyTuple_GET_ITEM(self->views, index);
    PyObject *name = PyTuple_GET_ITEM(self->names, index);
    if (input->end.dtype->kernel < 0) {
        PyErr_Format(PyExc_TypeError,
                     "the gradient of parameter %R has dtype %s; it must be float16, "
                     "bfloat16, float32 or float64",
                     name, input->end.dtype->name);
        return -1;
    }
    const array_layout *layout = &input->end.layout;
    bool same = layout->ndim == view->ndim;
    for (int axis = 0; axis < view->ndim && same; axis++) {
        same = layout->shape[axis] == view->shape[axis];
    }
    if (!same) {
        PyObject *given = dims_to_tuple(layout->ndim, layout->shape);
        PyObject *wanted = dims_to_tuple(view->ndim, view->shape);
        if (given != NULL && wanted != NULL) {
            PyErr_Format(PyExc_ValueError,
                         "the gradient of parameter %R has shape %R, the parameter %R",
                         name, given, wanted);
        }
        Py_XDECREF(given);
        Py_XDECREF(wanted);
        return -1;
    }
    return 0;
}

static int
open_grad(GradBufferObject *self, Py_ssize_t index, PyObject *grad, grad_input *input)
{
    if (grad == Py_None) {
        return 0;
    }
    input->object = without_graph(grad);
    if (input->object == NULL) {
        return -1;
    }
    int opened = copy_end_open(grad_state(self), input->object, &input->end);
    if (opened < 0) {
        return -1;
    }
    if (opened == 0) {
        PyErr_Format(
            PyExc_TypeError,
            "the gradient of parameter %R must be a Buffer, an array, a tensor "
            "or None, not %.100s",
            PyTuple_GET_ITEM(self->names, index), Py_TYPE(grad)->tp_name);
        return -1;
    }
    input->open = true;
    copy_end_hold(&input->end);
    if (check_grad(self, index, input) < 0) {
        return -1;
    }
    input->address = input->end.layout.address;
    input->n = (size_t)((BufferObject *)PyTuple_GET_ITEM(self->views, index))->size;
    input->foreign = input->end.buffer == NULL;
    return 0;
}

/* ---- copies where a kernel cannot read ---------------------------------------------------------- */

static bool
overlaps_memory(const GradBufferObject *self, const grad_input *input)
{
    gm_devptr low, high;
    layout_bounds(&input->end.layout, &low, &high);
    return low < self->memory->ptr + (gm_devptr)self->memory->nbytes &&
           self->memory->ptr < high;
}

static bool
needs_copy(const GradBufferObject *self, const grad_input *input)
{
    gm_device *device = grad_device(self);
    const array_layout *layout = &input->end.layout;
    bool elsewhere = input->end.buffer != NULL
                         ? !same_device(buffer_device(input->end.buffer), device)
                         : !gm_device_has(device, GM_CAP_HOST_ACCESS);
    return elsewhere || input->end.host.swapped ||
           layout->address % (gm_devptr)layout->itemsize != 0 ||
           !layout_is_contiguous(layout->ndim, layout->shape, layout->strides,
                                 layout->itemsize) ||
           overlaps_memory(self, input);
}

static int
stage_grad(GradBufferObject *self, grad_input *input)
{
    const array_layout *layout = &input->end.layout;
    input->staged =
        buffer_create(grad_state(self), self->memory->pool, input->end.dtype,
                      layout->ndim, layout->shape, self->memory->stream, 0, 0, NULL);
    if (input->staged == NULL) {
        return -1;
    }
    PyObject *result =
        PyObject_CallMethod((PyObject *)input->staged, "copy_from", "O", input->object);
    if (result == NULL) {
        return -1;
    }
    Py_DECREF(result);
    input->address = input->staged->ptr;
    input->foreign = false;
    return 0;
}

/* Makes a gradient of this device readable on our stream. */
static int
settle_grad(GradBufferObject *self, grad_input *input)
{
    BufferObject *buffer = input->end.buffer;
    if (buffer == NULL || buffer->stream == self->memory->stream) {
        return 0;
    }
    if (wait_for_stream(grad_state(self), buffer_device(buffer), buffer->stream,
                        UINT64_MAX) < 0) {
        return -1;
    }
    return same_device(buffer_device(buffer), grad_device(self))
               ? buffer_note_stream(grad_state(self), buffer, self->memory->stream)
               : 0;
}

int
grad_inputs_open(GradBufferObject *self, PyObject *ordered, grad_input *inputs)
{
    Py_ssize_t length = grad_length(self);
    for (Py_ssize_t i = 0; i < length; i++) {
        if (open_grad(self, i, PyTuple_GET_ITEM(ordered, i), &inputs[i]) < 0) {
            return -1;
        }
    }
    for (Py_ssize_t i = 0; i < length; i++) {
        if (!inputs[i].open || inputs[i].n == 0) {
            continue;
        }
        if (settle_grad(self, &inputs[i]) < 0 ||
            (needs_copy(self, &inputs[i]) && stage_grad(self, &inputs[i]) < 0)) {
            return -1;
        }
    }
    return 0;
}

void
grad_inputs_close(GradBufferObject *self, grad_input *inputs)
{
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    for (Py_ssize_t i = 0; i < grad_length(self); i++) {
        Py_CLEAR(inputs[i].staged);
        if (inputs[i].open) {
            copy_end_unhold(grad_state(self), &inputs[i].end);
            copy_end_close(&inputs[i].end);
        }
        Py_CLEAR(inputs[i].object);
    }
    PyErr_Restore(kind, value, trace);
}
