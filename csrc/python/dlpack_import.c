/* dlpack_import.c - tensors of other libraries as host arrays.
 *
 * The capsule is read and kept, not consumed: while we hold it the tensor lives, and
 * when we drop it the producer's own destructor deletes it.
 *
 * Thread-safety: the GIL.
 */
#include "python/python.h"

#include "python/buffer.h"
#include "python/dlpack_abi.h"

/* The largest version that we read. Layouts of one major version are compatible. */
#define READ_VERSION "(II)", DL_MAJOR, DL_MINOR

/* 0 when the host can read the tensor's memory; TypeError elsewhere. */
static int
check_host_tensor(PyObject *source)
{
    PyObject *pair = PyObject_CallMethod(source, "__dlpack_device__", NULL);
    if (pair == NULL) {
        return -1;
    }
    int kind, index;
    int parsed = PyArg_ParseTuple(pair, "ii;__dlpack_device__() must be two ints",
                                  &kind, &index);
    Py_DECREF(pair);
    if (!parsed) {
        return -1;
    }
    if (kind != DL_CPU && kind != DL_CUDA_HOST && kind != DL_CUDA_MANAGED) {
        PyErr_Format(PyExc_TypeError,
                     "the %.100s is on DLPack device (%d, %d), which the host cannot "
                     "read; copy it to the host first",
                     Py_TYPE(source)->tp_name, kind, index);
        return -1;
    }
    return 0;
}

/* New reference: the tensor's capsule, versioned where the producer knows of it. */
static PyObject *
request_capsule(PyObject *source)
{
    PyObject *method = PyObject_GetAttrString(source, "__dlpack__");
    if (method == NULL) {
        return NULL;
    }
    PyObject *arguments = PyTuple_New(0);
    PyObject *version = Py_BuildValue(READ_VERSION);
    PyObject *keywords =
        version != NULL ? Py_BuildValue("{s:O}", "max_version", version) : NULL;
    PyObject *capsule = NULL;
    if (arguments != NULL && keywords != NULL) {
        capsule = PyObject_Call(method, arguments, keywords);
        if (capsule == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Clear();
            capsule = PyObject_Call(method, arguments, NULL);
        }
    }
    Py_XDECREF(keywords);
    Py_XDECREF(version);
    Py_XDECREF(arguments);
    Py_DECREF(method);
    return capsule;
}

/* Borrowed from the capsule: its tensor; NULL with an exception. */
static const dl_tensor *
open_capsule(PyObject *capsule, bool *writable)
{
    *writable = true;
    if (PyCapsule_IsValid(capsule, DL_CAPSULE)) {
        dl_managed_tensor *managed = PyCapsule_GetPointer(capsule, DL_CAPSULE);
        return &managed->tensor;
    }
    if (!PyCapsule_IsValid(capsule, DL_CAPSULE_VERSIONED)) {
        PyErr_SetString(PyExc_TypeError, "__dlpack__() returned no DLPack capsule");
        return NULL;
    }
    dl_managed_tensor_versioned *managed =
        PyCapsule_GetPointer(capsule, DL_CAPSULE_VERSIONED);
    if (managed->version.major > DL_MAJOR) {
        PyErr_Format(PyExc_BufferError, "DLPack version %u is newer than %u",
                     managed->version.major, DL_MAJOR);
        return NULL;
    }
    *writable = (managed->flags & DL_FLAG_READ_ONLY) == 0;
    return &managed->tensor;
}

static int
read_tensor(const dl_tensor *tensor, host_array *out)
{
    out->dtype = tensor->dtype.lanes == 1
                     ? dtype_by_dlpack(tensor->dtype.code, tensor->dtype.bits)
                     : NULL;
    if (out->dtype == NULL) {
        PyErr_Format(
            PyExc_TypeError,
            "a tensor of DLPack type (%d, %d bits, %d lanes) has no dtype that "
            "buffers have",
            tensor->dtype.code, tensor->dtype.bits, tensor->dtype.lanes);
        return -1;
    }
    if (tensor->ndim < 0 || tensor->ndim > BUFFER_MAX_DIM) {
        PyErr_Format(PyExc_ValueError,
                     "the tensor has %d dimensions, at most %d are "
                     "allowed",
                     (int)tensor->ndim, BUFFER_MAX_DIM);
        return -1;
    }
    out->ndim = tensor->ndim;
    out->data = (char *)tensor->data + tensor->byte_offset;
    for (int axis = 0; axis < out->ndim; axis++) {
        out->shape[axis] = tensor->shape[axis];
    }
    if (tensor->strides == NULL) {
        layout_set_c_order(out->ndim, out->shape, out->dtype->itemsize, out->strides);
        return 0;
    }
    for (int axis = 0; axis < out->ndim; axis++) {
        out->strides[axis] = tensor->strides[axis] * out->dtype->itemsize;
    }
    return 0;
}

int
dlpack_acquire(core_state *Py_UNUSED(state), PyObject *source, host_array *out)
{
    if (!PyObject_HasAttrString((PyObject *)Py_TYPE(source), "__dlpack__") ||
        !PyObject_HasAttrString((PyObject *)Py_TYPE(source), "__dlpack_device__")) {
        return 0;
    }
    if (check_host_tensor(source) < 0) {
        return -1;
    }
    PyObject *capsule = request_capsule(source);
    if (capsule == NULL) {
        return -1;
    }
    const dl_tensor *tensor = open_capsule(capsule, &out->writable);
    if (tensor == NULL || read_tensor(tensor, out) < 0) {
        Py_DECREF(capsule);
        return -1;
    }
    out->owner = capsule;
    return 1;
}
