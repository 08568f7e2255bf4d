/* host_array.c - somebody else's host memory, whatever it calls itself.
 *
 * NumPy arrays are read through NumPy (the buffer protocol has no letter for the types
 * of ml_dtypes), other exporters through the buffer protocol, tensors through DLPack.
 * While a host_array is held the memory stays where it is.
 *
 * Thread-safety: the GIL.
 */
#include "python/python.h"

#include <string.h>

#include "python/buffer.h"

array_layout
host_array_layout(const host_array *array)
{
    array_layout layout = {(gm_devptr)(uintptr_t)array->data, array->ndim, array->shape,
                           array->strides, array->dtype->itemsize};
    return layout;
}

/* 1: taken; 0: the format is none of ours (no exception); -1: an exception. */
static int
acquire_buffer(PyObject *source, host_array *out)
{
    if (PyObject_GetBuffer(source, &out->buffer, PyBUF_FULL_RO) < 0) {
        return -1;
    }
    const Py_buffer *buffer = &out->buffer;
    out->dtype = dtype_by_format(buffer->format, buffer->itemsize);
    if (out->dtype == NULL || buffer->suboffsets != NULL ||
        buffer->ndim > BUFFER_MAX_DIM) {
        PyBuffer_Release(&out->buffer);
        return 0;
    }
    out->data = buffer->buf;
    out->writable = !buffer->readonly;
    out->ndim = buffer->ndim;
    for (int axis = 0; axis < buffer->ndim; axis++) {
        out->shape[axis] = buffer->shape[axis];
        out->strides[axis] = buffer->strides[axis];
    }
    return 1;
}

int
host_array_acquire(core_state *state, PyObject *source, host_array *out)
{
    memset(out, 0, sizeof(*out));
    if (numpy_is_array(state, source)) {
        return numpy_describe(state, source, out) < 0 ? -1 : 1;
    }
    if (PyObject_CheckBuffer(source)) {
        return acquire_buffer(source, out);
    }
    return dlpack_acquire(state, source, out);
}

void
host_array_release(host_array *array)
{
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    if (array->buffer.obj != NULL) {
        PyBuffer_Release(&array->buffer);
    }
    Py_CLEAR(array->owner);
    PyErr_Restore(kind, value, trace);
}
