/* layout.c - shapes, strides and bytes: arithmetic on layouts, and their export.
 *
 * Nothing here knows a buffer's life; buffer.c and pinned.c count what they export.
 *
 * Thread-safety: pure functions, under the GIL where they make objects.
 */
#include "python/python.h"

#include "python/buffer.h"

bool
layout_is_contiguous(int ndim, const Py_ssize_t *shape, const Py_ssize_t *strides,
                     Py_ssize_t itemsize)
{
    Py_ssize_t expected = itemsize;
    bool contiguous = true;
    for (int axis = ndim - 1; axis >= 0; axis--) {
        if (shape[axis] == 0) {
            return true;
        }
        if (shape[axis] != 1) {
            contiguous = contiguous && strides[axis] == expected;
            expected *= shape[axis];
        }
    }
    return contiguous;
}

static bool
layout_is_fortran(int ndim, const Py_ssize_t *shape, const Py_ssize_t *strides,
                  Py_ssize_t itemsize)
{
    Py_ssize_t expected = itemsize;
    bool contiguous = true;
    for (int axis = 0; axis < ndim; axis++) {
        if (shape[axis] == 0) {
            return true;
        }
        if (shape[axis] != 1) {
            contiguous = contiguous && strides[axis] == expected;
            expected *= shape[axis];
        }
    }
    return contiguous;
}

void
layout_set_c_order(int ndim, const Py_ssize_t *shape, Py_ssize_t itemsize,
                   Py_ssize_t *strides)
{
    Py_ssize_t stride = itemsize;
    for (int axis = ndim - 1; axis >= 0; axis--) {
        strides[axis] = stride;
        stride *= shape[axis] > 0 ? shape[axis] : 1;
    }
}

void
layout_bounds(const array_layout *layout, gm_devptr *low, gm_devptr *high)
{
    Py_ssize_t below = 0;
    Py_ssize_t above = layout->itemsize;
    for (int axis = 0; axis < layout->ndim; axis++) {
        if (layout->shape[axis] == 0) {
            *low = *high = layout->address;
            return;
        }
        Py_ssize_t reach = (layout->shape[axis] - 1) * layout->strides[axis];
        if (reach < 0) {
            below += reach;
        }
        else {
            above += reach;
        }
    }
    *low = layout->address + (gm_devptr)below;
    *high = layout->address + (gm_devptr)above;
}

PyObject *
dims_to_tuple(int ndim, const Py_ssize_t *dims)
{
    PyObject *tuple = PyTuple_New(ndim);
    for (int axis = 0; axis < ndim && tuple != NULL; axis++) {
        PyObject *number = PyLong_FromSsize_t(dims[axis]);
        if (number == NULL) {
            Py_CLEAR(tuple);
            break;
        }
        PyTuple_SET_ITEM(tuple, axis, number);
    }
    return tuple;
}

PyObject *
format_bytes(Py_ssize_t nbytes)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (nbytes < 1024) {
        return PyUnicode_FromFormat("%zd B", nbytes);
    }
    double value = (double)nbytes / 1024.0;
    size_t unit = 0;
    while (value >= 1024.0 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        value /= 1024.0;
        unit++;
    }
    char text[32];
    PyOS_snprintf(text, sizeof(text), "%.2f %s", value, units[unit]);
    return PyUnicode_FromString(text);
}

int
layout_count(const dtype_info *dtype, int ndim, const Py_ssize_t *shape,
             Py_ssize_t *size, Py_ssize_t *nbytes)
{
    size_t product = dtype->itemsize;
    bool empty = false;
    for (int axis = 0; axis < ndim; axis++) {
        if (shape[axis] == 0) {
            empty = true;
        }
        else if (__builtin_mul_overflow(product, (size_t)shape[axis], &product) ||
                 product > GM_SIZE_LIMIT) {
            PyErr_Format(PyExc_ValueError,
                         "the shape makes more than the %zu bytes that any request may "
                         "have",
                         GM_SIZE_LIMIT);
            return -1;
        }
    }
    *nbytes = empty ? 0 : (Py_ssize_t)product;
    *size = *nbytes / dtype->itemsize;
    return 0;
}

int
layout_set_pitched(const dtype_info *dtype, int ndim, const Py_ssize_t *shape,
                   size_t pitch, Py_ssize_t *strides, size_t *span)
{
    if (ndim < 2) {
        PyErr_Format(PyExc_ValueError,
                     "pitch= needs a shape of two or more dimensions, not %d", ndim);
        return -1;
    }
    if (pitch % dtype->itemsize != 0) {
        PyErr_Format(PyExc_ValueError,
                     "pitch must be a multiple of the %d bytes of a %s, not %zu",
                     (int)dtype->itemsize, dtype->name, pitch);
        return -1;
    }
    size_t row = (size_t)shape[ndim - 1] * dtype->itemsize;
    size_t stride;
    bool fits =
        !__builtin_mul_overflow(row / pitch + (row % pitch != 0), pitch, &stride);
    strides[ndim - 1] = dtype->itemsize;
    for (int axis = ndim - 2; axis >= 0 && fits; axis--) {
        fits = stride <= GM_SIZE_LIMIT;
        strides[axis] = (Py_ssize_t)stride;
        size_t extent = shape[axis] > 0 ? (size_t)shape[axis] : 1;
        fits = fits && !__builtin_mul_overflow(stride, extent, &stride);
    }
    if (!fits || stride > GM_SIZE_LIMIT) {
        PyErr_Format(PyExc_ValueError,
                     "shape and pitch make more than the %zu bytes that any request "
                     "may have",
                     GM_SIZE_LIMIT);
        return -1;
    }
    *span = stride;
    return 0;
}

static int
export_check_flags(int flags, int ndim, const Py_ssize_t *shape,
                   const Py_ssize_t *strides, Py_ssize_t itemsize)
{
    bool c_order = layout_is_contiguous(ndim, shape, strides, itemsize);
    bool f_order = layout_is_fortran(ndim, shape, strides, itemsize);
    const char *wanted = NULL;
    if ((flags & PyBUF_C_CONTIGUOUS) == PyBUF_C_CONTIGUOUS && !c_order) {
        wanted = "C";
    }
    else if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && !f_order) {
        wanted = "Fortran";
    }
    else if ((flags & PyBUF_ANY_CONTIGUOUS) == PyBUF_ANY_CONTIGUOUS && !c_order &&
             !f_order) {
        wanted = "any contiguous";
    }
    else if ((flags & PyBUF_STRIDES) != PyBUF_STRIDES && !c_order) {
        wanted = "C";
    }
    if (wanted != NULL) {
        PyErr_Format(PyExc_BufferError,
                     "the consumer asked for %s order, but this view has strides",
                     wanted);
        return -1;
    }
    return 0;
}

int
export_fill(PyObject *self, Py_buffer *view, int flags, char *data,
            const dtype_info *dtype, int ndim, Py_ssize_t *shape, Py_ssize_t *strides,
            Py_ssize_t nbytes)
{
    static char no_bytes[DTYPE_MAX_SIZE];
    view->obj = NULL;
    if (export_check_flags(flags, ndim, shape, strides, dtype->itemsize) < 0) {
        return -1;
    }
    union {
        const char *text;
        char *field; /* Py_buffer declares it without const; nobody writes there */
    } format = {dtype->format};
    view->buf = nbytes > 0 ? data : no_bytes;
    view->obj = Py_NewRef(self);
    view->len = nbytes;
    view->readonly = 0;
    view->itemsize = dtype->itemsize;
    view->format = (flags & PyBUF_FORMAT) != 0 ? format.field : NULL;
    view->ndim = ndim;
    view->shape = (flags & PyBUF_ND) != 0 ? shape : NULL;
    view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? strides : NULL;
    view->suboffsets = NULL;
    view->internal = NULL;
    return 0;
}
