/* buffer_view.c - other shapes over the same memory: view, reshape, indexing.
 *
 * A view has its own address, shape and strides, and the same root; no memory moves
 * and no device is called. An index that picks one element gives a view of zero
 * dimensions, not a number: the element may be on a device.
 *
 * Thread-safety: the GIL. Cost: O(dimensions).
 */
#include "python/python.h"

#include <string.h>

#include "python/buffer.h"

/* ---- view(dtype) ----------------------------------------------------------------- */

/* The last dimension in elements of another size; -1 with ValueError. */
static int
resize_last_axis(const BufferObject *self, const dtype_info *dtype, Py_ssize_t *shape,
                 Py_ssize_t *strides)
{
    int last = self->ndim - 1;
    if (last < 0 || (shape[last] > 1 && strides[last] != self->dtype->itemsize)) {
        PyErr_Format(PyExc_ValueError,
                     "a view of %d-byte elements as %s (%d bytes) needs a contiguous "
                     "last dimension",
                     (int)self->dtype->itemsize, dtype->name, (int)dtype->itemsize);
        return -1;
    }
    Py_ssize_t bytes = shape[last] * self->dtype->itemsize;
    if (bytes % dtype->itemsize != 0) {
        PyErr_Format(
            PyExc_ValueError,
            "the last dimension has %zd bytes, which %s elements of %d bytes do "
            "not fill evenly",
            bytes, dtype->name, (int)dtype->itemsize);
        return -1;
    }
    shape[last] = bytes / dtype->itemsize;
    strides[last] = dtype->itemsize;
    return 0;
}

/* Elements must lie at multiples of their size: devices fault otherwise. */
static int
check_alignment(const BufferObject *self, const dtype_info *dtype,
                const Py_ssize_t *shape, const Py_ssize_t *strides)
{
    Py_ssize_t unit = dtype->itemsize;
    bool aligned = self->ptr % (gm_devptr)unit == 0;
    for (int axis = 0; axis < self->ndim; axis++) {
        aligned = aligned && (shape[axis] <= 1 || strides[axis] % unit == 0);
    }
    if (!aligned) {
        PyErr_Format(PyExc_ValueError,
                     "elements of this view would not lie at multiples of the %d bytes "
                     "of a %s",
                     (int)dtype->itemsize, dtype->name);
        return -1;
    }
    return 0;
}

PyObject *
buffer_view_as(PyObject *op, PyObject *argument)
{
    BufferObject *self = (BufferObject *)op;
    core_state *state = state_of(op);
    const dtype_info *dtype = dtype_parse(state, argument);
    if (dtype == NULL || buffer_require(state, self) < 0) {
        return NULL;
    }
    Py_ssize_t shape[BUFFER_MAX_DIM], strides[BUFFER_MAX_DIM];
    size_t length = (size_t)self->ndim * sizeof(Py_ssize_t);
    memcpy(shape, self->shape, length);
    memcpy(strides, self->shape + self->ndim, length);
    if (dtype->itemsize != self->dtype->itemsize &&
        resize_last_axis(self, dtype, shape, strides) < 0) {
        return NULL;
    }
    if (check_alignment(self, dtype, shape, strides) < 0) {
        return NULL;
    }
    return (PyObject *)buffer_create_view(state, self, dtype, self->ndim, shape,
                                          strides, 0);
}

/* ---- reshape --------------------------------------------------------------------- */

/* As parse_shape, but one size may be -1; *unknown: its axis, or -1. */
static int
parse_new_shape(PyObject *items, Py_ssize_t *shape, int *ndim, int *unknown)
{
    Py_ssize_t count = PyTuple_GET_SIZE(items);
    if (count > BUFFER_MAX_DIM) {
        PyErr_Format(PyExc_ValueError,
                     "shape has %zd dimensions, at most %d are allowed", count,
                     BUFFER_MAX_DIM);
        return -1;
    }
    *unknown = -1;
    *ndim = (int)count;
    for (int axis = 0; axis < *ndim; axis++) {
        PyObject *item = PyTuple_GET_ITEM(items, axis);
        if (PyBool_Check(item) || !PyIndex_Check(item)) {
            PyErr_Format(PyExc_TypeError,
                         "shape must be an int or a sequence of ints, not %.100s",
                         Py_TYPE(item)->tp_name);
            return -1;
        }
        shape[axis] = PyNumber_AsSsize_t(item, PyExc_ValueError);
        if (shape[axis] == -1 && PyErr_Occurred()) {
            return -1;
        }
        if (shape[axis] < -1 || (shape[axis] == -1 && *unknown >= 0)) {
            PyErr_Format(PyExc_ValueError,
                         "sizes must be >= 0, and one of them may be -1, not %R",
                         items);
            return -1;
        }
        if (shape[axis] == -1) {
            *unknown = axis;
        }
    }
    return 0;
}

/* Puts in the size that is -1 and checks that all elements are there. */
static int
fit_new_shape(const BufferObject *self, Py_ssize_t *shape, int ndim, int unknown,
              PyObject *items)
{
    Py_ssize_t known = 1;
    bool fits = true;
    for (int axis = 0; axis < ndim && fits; axis++) {
        if (axis != unknown) {
            fits = !__builtin_mul_overflow(known, shape[axis], &known);
        }
    }
    if (fits && unknown >= 0) {
        fits = known != 0 && self->size % known == 0;
        shape[unknown] = fits ? self->size / known : 0;
    }
    else {
        fits = fits && known == self->size;
    }
    if (!fits) {
        PyErr_Format(PyExc_ValueError, "%zd elements cannot have the shape %R",
                     self->size, items);
        return -1;
    }
    return 0;
}

static PyObject *
reshape_to(core_state *state, BufferObject *self, PyObject *items)
{
    Py_ssize_t shape[BUFFER_MAX_DIM];
    int ndim, unknown;
    if (parse_new_shape(items, shape, &ndim, &unknown) < 0 ||
        fit_new_shape(self, shape, ndim, unknown, items) < 0) {
        return NULL;
    }
    if (!buffer_is_contiguous(self)) {
        PyErr_SetString(PyExc_ValueError,
                        "reshape needs elements in C order without gaps; copy the view "
                        "to a new buffer first");
        return NULL;
    }
    return (PyObject *)buffer_create_view(state, self, self->dtype, ndim, shape, NULL,
                                          0);
}

PyObject *
buffer_reshape(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    BufferObject *self = (BufferObject *)op;
    core_state *state = state_of(op);
    if (buffer_require(state, self) < 0) {
        return NULL;
    }
    PyObject *items;
    if (nargs == 1 && !PyIndex_Check(args[0])) {
        if (PyUnicode_Check(args[0]) || !PySequence_Check(args[0])) {
            PyErr_Format(PyExc_TypeError,
                         "shape must be an int or a sequence of ints, not %.100s",
                         Py_TYPE(args[0])->tp_name);
            return NULL;
        }
        items = PySequence_Tuple(args[0]);
    }
    else {
        items = PyTuple_New(nargs);
        for (Py_ssize_t i = 0; i < nargs && items != NULL; i++) {
            PyTuple_SET_ITEM(items, i, Py_NewRef(args[i]));
        }
    }
    if (items == NULL) {
        return NULL;
    }
    PyObject *view = reshape_to(state, self, items);
    Py_DECREF(items);
    return view;
}

/* ---- indexing -------------------------------------------------------------------- */

/* A view in the making: axes of `base` are consumed from the front. */
typedef struct index_cursor {
    const BufferObject *base;
    int taken;         /* axes of base that are dealt with */
    int ndim;          /* axes of the result */
    Py_ssize_t offset; /* bytes */
    Py_ssize_t shape[BUFFER_MAX_DIM];
    Py_ssize_t strides[BUFFER_MAX_DIM];
} index_cursor;

static void
keep_axis(index_cursor *cursor)
{
    cursor->shape[cursor->ndim] = cursor->base->shape[cursor->taken];
    cursor->strides[cursor->ndim] =
        cursor->base->shape[cursor->base->ndim + cursor->taken];
    cursor->ndim++;
    cursor->taken++;
}

static int
apply_position(index_cursor *cursor, Py_ssize_t position)
{
    Py_ssize_t length = cursor->base->shape[cursor->taken];
    if (position < -length || position >= length) {
        PyErr_Format(PyExc_IndexError,
                     "index %zd is out of range for dimension %d of size %zd", position,
                     cursor->taken, length);
        return -1;
    }
    if (position < 0) {
        position += length;
    }
    cursor->offset +=
        position * cursor->base->shape[cursor->base->ndim + cursor->taken];
    cursor->taken++;
    return 0;
}

static int
apply_slice(index_cursor *cursor, PyObject *slice)
{
    Py_ssize_t start, stop, step;
    if (PySlice_Unpack(slice, &start, &stop, &step) < 0) {
        return -1;
    }
    Py_ssize_t length =
        PySlice_AdjustIndices(cursor->base->shape[cursor->taken], &start, &stop, step);
    Py_ssize_t stride = cursor->base->shape[cursor->base->ndim + cursor->taken];
    if (length > 0) {
        cursor->offset += start * stride;
    }
    cursor->shape[cursor->ndim] = length;
    cursor->strides[cursor->ndim] = length > 1 ? stride * step : stride;
    cursor->ndim++;
    cursor->taken++;
    return 0;
}

static int
apply_index(index_cursor *cursor, PyObject *item)
{
    if (PySlice_Check(item)) {
        return apply_slice(cursor, item);
    }
    if (PyBool_Check(item) || !PyIndex_Check(item)) {
        PyErr_Format(PyExc_TypeError,
                     "an index must be made of ints, slices and '...', not %.100s",
                     Py_TYPE(item)->tp_name);
        return -1;
    }
    Py_ssize_t position = PyNumber_AsSsize_t(item, PyExc_IndexError);
    if (position == -1 && PyErr_Occurred()) {
        return -1;
    }
    return apply_position(cursor, position);
}

/* Applies `count` index items; one of them may be an Ellipsis. */
static int
apply_items(index_cursor *cursor, PyObject *const *items, Py_ssize_t count)
{
    Py_ssize_t ellipses = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        ellipses += items[i] == Py_Ellipsis;
    }
    int ndim = cursor->base->ndim;
    if (ellipses > 1 || count - ellipses > ndim) {
        PyErr_Format(PyExc_IndexError,
                     ellipses > 1 ? "an index may have one '...', %zd were given"
                                  : "%zd indices for a buffer of %d dimensions",
                     ellipses > 1 ? ellipses : count - ellipses, ndim);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (items[i] != Py_Ellipsis) {
            if (apply_index(cursor, items[i]) < 0) {
                return -1;
            }
            continue;
        }
        int rest = (int)(count - i - 1);
        while (ndim - cursor->taken > rest) {
            keep_axis(cursor);
        }
    }
    while (cursor->taken < ndim) {
        keep_axis(cursor);
    }
    return 0;
}

static PyObject *
cursor_to_view(core_state *state, index_cursor *cursor, BufferObject *base)
{
    return (PyObject *)buffer_create_view(state, base, base->dtype, cursor->ndim,
                                          cursor->shape, cursor->strides,
                                          cursor->offset);
}

PyObject *
buffer_subscript(PyObject *op, PyObject *index)
{
    BufferObject *self = (BufferObject *)op;
    core_state *state = state_of(op);
    if (buffer_require(state, self) < 0) {
        return NULL;
    }
    index_cursor cursor;
    cursor.base = self;
    cursor.taken = cursor.ndim = 0;
    cursor.offset = 0;
    int result;
    if (PyTuple_Check(index)) {
        result = apply_items(&cursor, ((PyTupleObject *)index)->ob_item,
                             PyTuple_GET_SIZE(index));
    }
    else {
        result = apply_items(&cursor, &index, 1);
    }
    return result < 0 ? NULL : cursor_to_view(state, &cursor, self);
}

PyObject *
buffer_item(PyObject *op, Py_ssize_t index)
{
    BufferObject *self = (BufferObject *)op;
    core_state *state = state_of(op);
    if (buffer_require(state, self) < 0) {
        return NULL;
    }
    index_cursor cursor;
    cursor.base = self;
    cursor.taken = cursor.ndim = 0;
    cursor.offset = 0;
    if (self->ndim == 0) {
        PyErr_SetString(PyExc_IndexError, "a buffer of zero dimensions has no items");
        return NULL;
    }
    if (apply_position(&cursor, index) < 0) {
        return NULL;
    }
    while (cursor.taken < self->ndim) {
        keep_axis(&cursor);
    }
    return cursor_to_view(state, &cursor, self);
}
