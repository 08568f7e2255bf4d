/* numpy.c - the only file that knows NumPy's headers.
 *
 * NumPy's C API is loaded by the first call that needs it, never at import. Questions
 * about foreign objects ("is this an ndarray?") look whether the program has loaded
 * NumPy and do not load it themselves.
 *
 * Note [NumPy in other interpreters]
 * The API table is one for the process, but NumPy itself refuses to be imported in a
 * second interpreter. The import is therefore repeated in each interpreter, and its
 * ImportError comes through as it is.
 *
 * Thread-safety: the GIL.
 */
#include "python/python.h"

#define NPY_NO_DEPRECATED_API NPY_1_23_API_VERSION
#define NPY_TARGET_VERSION NPY_1_23_API_VERSION
#include <numpy/arrayobject.h>

#include "python/buffer.h"

static int
load_numpy(core_state *state)
{
    if (state->numpy_ready) {
        return 0;
    }
    PyObject *module = PyImport_ImportModule("numpy");
    if (module == NULL) {
        return -1;
    }
    Py_DECREF(module);
    if (PyArray_ImportNumPyAPI() < 0) {
        return -1;
    }
    state->numpy_ready = true;
    return 0;
}

/* True when the program has NumPy loaded, and then so have we. No exception. */
static bool
numpy_is_loaded(core_state *state)
{
    if (state->numpy_ready) {
        return true;
    }
    PyObject *modules = PyImport_GetModuleDict();
    PyObject *module = PyDict_GetItemString(modules, "numpy");
    if (module == NULL || module == Py_None) {
        return false;
    }
    if (load_numpy(state) < 0) {
        PyErr_Clear();
        return false;
    }
    return true;
}

bool
numpy_is_array(core_state *state, PyObject *value)
{
    return numpy_is_loaded(state) && PyArray_Check(value);
}

/* ---- dtypes ---------------------------------------------------------------------- */

/* NumPy's number for one of its own types; NPY_NOTYPE for those of ml_dtypes. */
static int
type_number(const dtype_info *dtype)
{
    static const int integers[] = {NPY_INT8, NPY_INT16, NPY_INT32, NPY_INT64};
    static const int naturals[] = {NPY_UINT8, NPY_UINT16, NPY_UINT32, NPY_UINT64};
    int log2 = 0;
    while ((1 << log2) < dtype->itemsize) {
        log2++;
    }
    switch (dtype->dlpack_code) {
        case CODE_BOOL:
            return NPY_BOOL;
        case CODE_INT:
            return integers[log2];
        case CODE_UINT:
            return naturals[log2];
        case CODE_FLOAT:
            return log2 == 1 ? NPY_FLOAT16 : log2 == 2 ? NPY_FLOAT32 : NPY_FLOAT64;
        case CODE_COMPLEX:
            return log2 == 3 ? NPY_COMPLEX64 : NPY_COMPLEX128;
        default:
            return NPY_NOTYPE;
    }
}

/* New reference: the dtype that ml_dtypes has under this name. */
static PyArray_Descr *
extension_descr(const dtype_info *dtype)
{
    PyObject *module = PyImport_ImportModule("ml_dtypes");
    if (module == NULL) {
        if (PyErr_ExceptionMatches(PyExc_ModuleNotFoundError)) {
            PyErr_Format(
                PyExc_ImportError,
                "NumPy has no %s of its own: install ml_dtypes, or look at the "
                "bits with buf.view('%s')",
                dtype->name, dtype->itemsize == 2 ? "uint16" : "uint8");
        }
        return NULL;
    }
    PyObject *type = PyObject_GetAttrString(module, dtype->name);
    Py_DECREF(module);
    PyArray_Descr *descr = NULL;
    if (type != NULL) {
        if (PyArray_DescrConverter(type, &descr) != NPY_SUCCEED) {
            descr = NULL;
        }
        Py_DECREF(type);
    }
    return descr;
}

static PyArray_Descr *
descr_of(const dtype_info *dtype)
{
    int number = type_number(dtype);
    return number == NPY_NOTYPE ? extension_descr(dtype)
                                : PyArray_DescrFromType(number);
}

/* The row for a dtype of NumPy, whatever its byte order; NULL with TypeError. */
static const dtype_info *
row_of_descr(PyArray_Descr *descr)
{
    const dtype_info *row = NULL;
    if (PyDataType_ISUSERDEF(descr)) {
        PyObject *name = PyObject_GetAttrString((PyObject *)descr, "name");
        const char *text = name != NULL ? PyUnicode_AsUTF8(name) : NULL;
        row = text != NULL ? dtype_by_name(text) : NULL;
        Py_XDECREF(name);
        if (text == NULL) {
            return NULL;
        }
    }
    else {
        static const char kinds[] = "biufc";
        static const uint8_t codes[] = {CODE_BOOL, CODE_INT, CODE_UINT, CODE_FLOAT,
                                        CODE_COMPLEX};
        for (size_t i = 0; i < sizeof(codes); i++) {
            if (kinds[i] == descr->kind && PyDataType_ELSIZE(descr) <= DTYPE_MAX_SIZE) {
                row =
                    dtype_by_dlpack(codes[i], (uint8_t)(PyDataType_ELSIZE(descr) * 8));
            }
        }
    }
    if (row == NULL) {
        PyErr_Format(PyExc_TypeError,
                     "an array of %R has no dtype that buffers have (numbers, booleans "
                     "and the float types of ml_dtypes)",
                     (PyObject *)descr);
    }
    return row;
}

PyObject *
numpy_dtype_name(core_state *state, PyObject *value)
{
    if (!numpy_is_loaded(state)) {
        return NULL;
    }
    PyArray_Descr *descr = NULL;
    if (PyArray_DescrCheck(value)) {
        descr = (PyArray_Descr *)Py_NewRef(value);
    }
    else if (PyType_Check(value) &&
             PyType_IsSubtype((PyTypeObject *)value, &PyGenericArrType_Type)) {
        if (PyArray_DescrConverter(value, &descr) != NPY_SUCCEED) {
            return NULL;
        }
    }
    PyObject *name = NULL;
    if (descr != NULL && PyArray_ISNBO(descr->byteorder)) {
        name = PyObject_GetAttrString((PyObject *)descr, "name");
    }
    Py_XDECREF((PyObject *)descr);
    return name;
}

/* ---- arrays ---------------------------------------------------------------------- */

int
numpy_describe(core_state *Py_UNUSED(state), PyObject *ndarray, host_array *out)
{
    PyArrayObject *array = (PyArrayObject *)ndarray;
    *out = (host_array){0};
    const dtype_info *row = row_of_descr(PyArray_DESCR(array));
    if (row == NULL) {
        return -1;
    }
    if (PyArray_NDIM(array) > BUFFER_MAX_DIM) {
        PyErr_Format(PyExc_ValueError,
                     "the array has %d dimensions, at most %d are "
                     "allowed",
                     PyArray_NDIM(array), BUFFER_MAX_DIM);
        return -1;
    }
    out->data = PyArray_BYTES(array);
    out->dtype = row;
    out->writable = PyArray_ISWRITEABLE(array);
    out->swapped = !PyArray_ISNBO(PyArray_DESCR(array)->byteorder);
    out->ndim = PyArray_NDIM(array);
    for (int axis = 0; axis < out->ndim; axis++) {
        out->shape[axis] = PyArray_DIM(array, axis);
        out->strides[axis] = PyArray_STRIDE(array, axis);
    }
    out->owner = Py_NewRef(ndarray);
    out->is_ndarray = true;
    return 0;
}

PyObject *
numpy_wrap(core_state *state, const array_layout *layout, const dtype_info *dtype,
           PyObject *owner, bool writable)
{
    static char no_bytes[DTYPE_MAX_SIZE];
    if (load_numpy(state) < 0) {
        return NULL;
    }
    PyArray_Descr *descr = descr_of(dtype);
    if (descr == NULL) {
        return NULL;
    }
    void *data =
        layout->address != 0 ? gm_device_host_pointer(layout->address) : no_bytes;
    PyObject *array = PyArray_NewFromDescr(&PyArray_Type, descr, layout->ndim,
                                           layout->shape, layout->strides, data,
                                           writable ? NPY_ARRAY_WRITEABLE : 0, NULL);
    if (array == NULL || owner == NULL) {
        return array;
    }
    if (PyArray_SetBaseObject((PyArrayObject *)array, Py_NewRef(owner)) < 0) {
        Py_DECREF(array);
        return NULL;
    }
    return array;
}

PyObject *
numpy_from_exporter(core_state *state, PyObject *exporter, const dtype_info *dtype)
{
    PyObject *view = PyMemoryView_FromObject(exporter);
    if (view == NULL) {
        return NULL;
    }
    const Py_buffer *buffer = PyMemoryView_GET_BUFFER(view);
    array_layout layout = {(gm_devptr)(uintptr_t)buffer->buf, buffer->ndim,
                           buffer->shape, buffer->strides, buffer->itemsize};
    PyObject *array = numpy_wrap(state, &layout, dtype, view, true);
    Py_DECREF(view);
    return array;
}

PyObject *
numpy_from_buffer(core_state *state, BufferObject *buffer)
{
    if (buffer_require(state, buffer) < 0 ||
        buffer_require_host(buffer, PyExc_ValueError) < 0) {
        return NULL;
    }
    return numpy_from_exporter(state, (PyObject *)buffer, buffer->dtype);
}

PyObject *
numpy_asarray(core_state *state, PyObject *value)
{
    if (load_numpy(state) < 0) {
        return NULL;
    }
    return PyArray_FromAny(value, NULL, 0, 0, 0, NULL);
}

PyObject *
numpy_asarray_as(core_state *state, PyObject *value, const dtype_info *dtype)
{
    if (load_numpy(state) < 0) {
        return NULL;
    }
    PyArray_Descr *descr = descr_of(dtype);
    if (descr == NULL) {
        return NULL;
    }
    return PyArray_FromAny(value, descr, 0, 0, 0, NULL);
}

PyObject *
numpy_empty(core_state *state, const dtype_info *dtype, int ndim,
            const Py_ssize_t *shape)
{
    if (load_numpy(state) < 0) {
        return NULL;
    }
    PyArray_Descr *descr = descr_of(dtype);
    if (descr == NULL) {
        return NULL;
    }
    return PyArray_NewFromDescr(&PyArray_Type, descr, ndim, shape, NULL, NULL, 0, NULL);
}

int
numpy_copy(core_state *state, PyObject *target, PyObject *source)
{
    if (load_numpy(state) < 0) {
        return -1;
    }
    return PyArray_CopyInto((PyArrayObject *)target, (PyArrayObject *)source);
}
