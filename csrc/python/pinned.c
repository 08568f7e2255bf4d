/* pinned.c - pinned host memory: PinnedArray from a caching pool.
 *
 * Each Device has a pool of pinned memory over its pinned device, made on first use
 * (device/pinned_device.h). Blocks belong to the host's own stream, so a dropped
 * array's memory is reused at once, unless a copy recorded the stream it was queued on: then
 * when that is done.
 *
 * Thread-safety: the GIL.
 */
#include "python/python.h"

#include "device/pinned_device.h"
#include "python/buffer.h"

/* ---- the pool -------------------------------------------------------------------- */

/* New reference: a pool of pinned memory for `device`, which the list of pools that
 * programs see leaves out. */
static PoolObject *
make_pinned_pool(core_state *state, DeviceObject *device)
{
    gm_device *pinned;
    gm_status status = gm_pinned_device_create(device->device, &pinned);
    if (status != GM_OK) {
        set_status_error(state, status, "make pinned host memory");
        return NULL;
    }
    PyObject *wrapped = device_wrap(state, pinned, false);
    if (wrapped == NULL) {
        return NULL;
    }
    PyObject *arguments = PyTuple_Pack(1, wrapped);
    PyObject *keywords =
        Py_BuildValue("{s:s,s:O}", "name", pinned->info.name, "paging", Py_False);
    PyObject *pool = NULL;
    if (arguments != NULL && keywords != NULL) {
        pool = PyObject_Call((PyObject *)state->Pool_Type, arguments, keywords);
    }
    Py_XDECREF(arguments);
    Py_XDECREF(keywords);
    Py_DECREF(wrapped);
    if (pool != NULL) {
        gm_list_remove(&((PoolObject *)pool)->link);
    }
    return (PoolObject *)pool;
}

/* Borrowed. */
static PoolObject *
pinned_pool(core_state *state, DeviceObject *device)
{
    if (device->pinned == NULL) {
        if (require_usable(state, device->device, "make pinned host memory") < 0) {
            return NULL;
        }
        PoolObject *pool = make_pinned_pool(state, device);
        if (pool == NULL) {
            return NULL;
        }
        if (device->pinned == NULL) {
            device->pinned = pool;
        }
        else {
            Py_DECREF(pool); /* another thread was faster */
        }
    }
    return device->pinned;
}

void
pinned_forget(DeviceObject *device)
{
    PoolObject *pool = device->pinned;
    device->pinned = NULL;
    Py_XDECREF((PyObject *)pool);
}

/* ---- life ------------------------------------------------------------------------ */

int
pinned_require(core_state *state, PinnedArrayObject *self)
{
    if (self->released) {
        PyErr_SetString(state->ReleasedError, "this pinned array was freed");
        return -1;
    }
    return 0;
}

array_layout
pinned_layout(const PinnedArrayObject *self)
{
    array_layout layout = {self->ptr, self->ndim, self->shape, self->shape + self->ndim,
                           self->dtype->itemsize};
    return layout;
}

int
pinned_note_stream(core_state *state, PinnedArrayObject *self, gm_stream stream)
{
    if (self->block == NULL) {
        return 0;
    }
    gm_status status = gm_pool_record_stream(self->block, stream);
    if (status != GM_OK) {
        set_status_error(state, status, "record a stream on a pinned array");
        return -1;
    }
    return 0;
}

static PinnedArrayObject *
pinned_new_object(core_state *state, DeviceObject *device, const dtype_info *dtype,
                  int ndim, const Py_ssize_t *shape)
{
    PyTypeObject *type = state->PinnedArray_Type;
    Py_ssize_t *dims = NULL;
    if (ndim > 2) {
        dims = PyMem_New(Py_ssize_t, 2 * (size_t)ndim);
        if (dims == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
    }
    PinnedArrayObject *self = (PinnedArrayObject *)type->tp_alloc(type, 0);
    if (self == NULL) {
        PyMem_Free(dims);
        return NULL;
    }
    self->shape = dims != NULL ? dims : self->inline_dims;
    for (int axis = 0; axis < ndim; axis++) {
        self->shape[axis] = shape[axis];
    }
    layout_set_c_order(ndim, shape, dtype->itemsize, self->shape + ndim);
    self->ndim = ndim;
    self->dtype = dtype;
    self->device = (DeviceObject *)Py_NewRef((PyObject *)device);
    state->live_pinned++;
    return self;
}

static PinnedArrayObject *
pinned_create(core_state *state, DeviceObject *device, const dtype_info *dtype,
              int ndim, const Py_ssize_t *shape)
{
    Py_ssize_t size, nbytes;
    if (layout_count(dtype, ndim, shape, &size, &nbytes) < 0) {
        return NULL;
    }
    PinnedArrayObject *self = pinned_new_object(state, device, dtype, ndim, shape);
    if (self == NULL || nbytes == 0) {
        return self;
    }
    PoolObject *pool = pinned_pool(state, device);
    if (pool != NULL) {
        self->block = allocate_block(state, pool, (size_t)nbytes, 0, GM_HOST_STREAM);
    }
    if (self->block == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    self->nbytes = nbytes;
    self->ptr = gm_block_address(self->block);
    return self;
}

/* Keeps a pending exception. */
static void
pinned_drop_memory(core_state *state, PinnedArrayObject *self)
{
    gm_block *block = self->block;
    self->block = NULL;
    if (block != NULL && state != NULL) {
        free_block(state, self->device->pinned, block);
    }
    else if (block != NULL) {
        gm_pool_free(block);
    }
}

static void
PinnedArray_tp_dealloc(PyObject *op)
{
    PinnedArrayObject *self = (PinnedArrayObject *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs(op);
    }
    core_state *state = PyType_GetModuleState(type);
    if (state == NULL) {
        PyErr_Clear();
    }
    else {
        state->live_pinned--;
    }
    pinned_drop_memory(state, self);
    Py_XDECREF((PyObject *)self->device);
    if (self->shape != self->inline_dims) {
        PyMem_Free(self->shape);
    }
    PyErr_Restore(kind, value, trace);
    type->tp_free(op);
    Py_DECREF(type);
}

static int
PinnedArray_tp_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT((PyObject *)((PinnedArrayObject *)op)->device);
    return 0;
}

/* ---- slots, attributes, methods -------------------------------------------------- */

static PyObject *
PinnedArray_tp_repr(PyObject *op)
{
    PinnedArrayObject *self = (PinnedArrayObject *)op;
    PyObject *shape = dims_to_tuple(self->ndim, self->shape);
    PyObject *bytes = format_bytes(self->nbytes);
    PyObject *text = NULL;
    if (shape != NULL && bytes != NULL) {
        text = PyUnicode_FromFormat(
            "<gpumem.PinnedArray shape=%R dtype=%s device=%s "
            "nbytes=%U%s>",
            shape, self->dtype->name, self->device->device->info.name, bytes,
            self->released ? " released" : "");
    }
    Py_XDECREF(shape);
    Py_XDECREF(bytes);
    return text;
}

static int
PinnedArray_bf_getbuffer(PyObject *op, Py_buffer *view, int flags)
{
    PinnedArrayObject *self = (PinnedArrayObject *)op;
    view->obj = NULL;
    if (pinned_require(state_of(op), self) < 0 ||
        export_fill(op, view, flags, gm_device_host_pointer(self->ptr), self->dtype,
                    self->ndim, self->shape, self->shape + self->ndim,
                    self->nbytes) < 0) {
        return -1;
    }
    self->exports++;
    return 0;
}

static void
PinnedArray_bf_releasebuffer(PyObject *op, Py_buffer *Py_UNUSED(view))
{
    ((PinnedArrayObject *)op)->exports--;
}

static PyObject *
PinnedArray_get_ptr(PyObject *op, void *Py_UNUSED(closure))
{
    PinnedArrayObject *self = (PinnedArrayObject *)op;
    if (pinned_require(state_of(op), self) < 0) {
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(self->ptr);
}

static PyObject *
PinnedArray_get_nbytes(PyObject *op, void *Py_UNUSED(closure))
{
    return PyLong_FromSsize_t(((PinnedArrayObject *)op)->nbytes);
}

static PyObject *
PinnedArray_get_shape(PyObject *op, void *Py_UNUSED(closure))
{
    PinnedArrayObject *self = (PinnedArrayObject *)op;
    return dims_to_tuple(self->ndim, self->shape);
}

static PyObject *
PinnedArray_get_dtype(PyObject *op, void *Py_UNUSED(closure))
{
    return PyUnicode_FromString(((PinnedArrayObject *)op)->dtype->name);
}

static PyObject *
PinnedArray_get_released(PyObject *op, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(((PinnedArrayObject *)op)->released);
}

static PyGetSetDef PinnedArray_getset[] = {
    {"ptr", PinnedArray_get_ptr, NULL,
     PyDoc_STR("Address of the first element; 0 for no bytes."), NULL},
    {"nbytes", PinnedArray_get_nbytes, NULL, PyDoc_STR("Bytes of the elements."), NULL},
    {"shape", PinnedArray_get_shape, NULL, PyDoc_STR("Sizes of the dimensions."), NULL},
    {"dtype", PinnedArray_get_dtype, NULL,
     PyDoc_STR("NumPy's name of the element type."), NULL},
    {"released", PinnedArray_get_released, NULL,
     PyDoc_STR("True once the memory went back to the pool."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyObject *
PinnedArray_numpy(PyObject *op, PyObject *Py_UNUSED(unused))
{
    return numpy_from_exporter(state_of(op), op, ((PinnedArrayObject *)op)->dtype);
}

static PyObject *
PinnedArray_free(PyObject *op, PyObject *Py_UNUSED(unused))
{
    PinnedArrayObject *self = (PinnedArrayObject *)op;
    if (self->exports > 0) {
        PyErr_Format(
            PyExc_BufferError,
            "cannot free a pinned array with %zd live export%s (memoryviews or "
            "NumPy arrays); drop them first",
            self->exports, self->exports == 1 ? "" : "s");
        return NULL;
    }
    self->released = true;
    pinned_drop_memory(state_of(op), self);
    Py_RETURN_NONE;
}

static PyObject *
PinnedArray_record_stream(PyObject *op, PyObject *argument)
{
    PinnedArrayObject *self = (PinnedArrayObject *)op;
    core_state *state = state_of(op);
    gm_stream stream;
    if (pinned_require(state, self) < 0) {
        return NULL;
    }
    if (argument == Py_None) {
        PyErr_SetString(PyExc_TypeError,
                        "record_stream needs a Stream or a handle, not None");
        return NULL;
    }
    if (parse_stream(state, argument, self->device->device, 0, &stream) < 0 ||
        pinned_note_stream(state, self, stream) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
PinnedArray_reduce(PyObject *Py_UNUSED(op), PyObject *Py_UNUSED(unused))
{
    PyErr_SetString(PyExc_TypeError,
                    "a PinnedArray cannot be pickled or copied; use "
                    "array.numpy().copy()");
    return NULL;
}

static PyMethodDef PinnedArray_methods[] = {
    {"numpy", PinnedArray_numpy, METH_NOARGS,
     PyDoc_STR("numpy($self, /)\n--\n\nReturn a writable ndarray over the same memory, "
               "which stays until the last\narray over it has died.")},
    {"free", PinnedArray_free, METH_NOARGS,
     PyDoc_STR(
         "free($self, /)\n--\n\nGive the memory back to its pool now. Doing it "
         "again does nothing.\n\nRaises\n------\nBufferError\n    A NumPy array or "
         "memoryview is alive.")},
    {"record_stream", PinnedArray_record_stream, METH_O,
     PyDoc_STR(
         "record_stream($self, stream, /)\n--\n\nSay that `stream` uses the memory: "
         "once freed, it is reused when the work\nthat stands on the stream then is "
         "done. Buffer.copy_from and copy_to do so\nthemselves.")},
    {"__reduce__", PinnedArray_reduce, METH_NOARGS,
     PyDoc_STR("__reduce__($self, /)\n--\n\nRaise TypeError: pinned memory cannot be "
               "pickled.")},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef PinnedArray_members[] = {
    {"__weaklistoffset__", Py_T_PYSSIZET, offsetof(PinnedArrayObject, weakrefs),
     Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static char PinnedArray_doc[] =
    "Page-locked host memory from a caching pool, for fast copies to and from a "
    "device.\n\n"
    "It has the buffer protocol and numpy(). A dropped array's memory is reused once "
    "the\n"
    "copies that were queued with it are done.";

static PyType_Slot PinnedArray_slots[] = {
    {Py_tp_doc, PinnedArray_doc},
    {Py_tp_dealloc, PinnedArray_tp_dealloc},
    {Py_tp_traverse, PinnedArray_tp_traverse},
    {Py_tp_repr, PinnedArray_tp_repr},
    {Py_tp_getset, PinnedArray_getset},
    {Py_tp_methods, PinnedArray_methods},
    {Py_tp_members, PinnedArray_members},
    {Py_bf_getbuffer, PinnedArray_bf_getbuffer},
    {Py_bf_releasebuffer, PinnedArray_bf_releasebuffer},
    {0, NULL},
};

static PyType_Spec PinnedArray_spec = {
    .name = "gpumem.PinnedArray",
    .basicsize = sizeof(PinnedArrayObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = PinnedArray_slots,
};

/* ---- module functions ------------------------------------------------------------ */

static PyObject *
pinned_empty(PyObject *module, PyObject *args)
{
    core_state *state = state_of_module(module);
    PyObject *device, *shape, *dtype_argument;
    Py_ssize_t dims[BUFFER_MAX_DIM];
    int ndim;
    if (!PyArg_ParseTuple(args, "O!OO:pinned_empty", state->Device_Type, &device,
                          &shape, &dtype_argument)) {
        return NULL;
    }
    const dtype_info *dtype = dtype_parse(state, dtype_argument);
    if (dtype == NULL || parse_shape(shape, dims, &ndim) < 0) {
        return NULL;
    }
    return (PyObject *)pinned_create(state, (DeviceObject *)device, dtype, ndim, dims);
}

/* Borrowed, or NULL with TypeError. */
static DeviceObject *
device_argument(core_state *state, PyObject *argument)
{
    if (!Py_IS_TYPE(argument, state->Device_Type)) {
        PyErr_Format(PyExc_TypeError, "a Device is needed, not %.100s",
                     Py_TYPE(argument)->tp_name);
        return NULL;
    }
    return (DeviceObject *)argument;
}

static PyObject *
pinned_stats(PyObject *module, PyObject *argument)
{
    DeviceObject *device = device_argument(state_of_module(module), argument);
    if (device == NULL) {
        return NULL;
    }
    gm_pool_stats stats = {0};
    gm_device_counters counters = {0};
    if (device->pinned != NULL) {
        gm_pool_read_stats(device->pinned->pool, &stats);
    }
    device->device->ops->counters(device->device, &counters);
    return Py_BuildValue(
        "{s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K}", "used",
        (unsigned long long)stats.allocated_bytes.all.current, "used_peak",
        (unsigned long long)stats.allocated_bytes.all.peak, "requested",
        (unsigned long long)stats.requested_bytes.all.current, "requested_peak",
        (unsigned long long)stats.requested_bytes.all.peak, "reserved",
        (unsigned long long)stats.reserved_bytes.all.current, "reserved_peak",
        (unsigned long long)stats.reserved_bytes.all.peak, "cached",
        (unsigned long long)stats.cached_bytes, "pending",
        (unsigned long long)stats.pending_bytes, "blocks",
        (unsigned long long)stats.allocation.all.current, "device_allocs",
        (unsigned long long)stats.num_device_alloc, "device_frees",
        (unsigned long long)stats.num_device_free, "pinned",
        (unsigned long long)counters.pinned_now);
}

static PyObject *
pinned_trim(PyObject *module, PyObject *argument)
{
    core_state *state = state_of_module(module);
    DeviceObject *device = device_argument(state, argument);
    if (device == NULL) {
        return NULL;
    }
    gm_trim_report report = {0};
    if (device->pinned != NULL) {
        gm_trim_request request = {0};
        PoolObject *pool = (PoolObject *)Py_NewRef((PyObject *)device->pinned);
        gm_status status;
        Py_BEGIN_ALLOW_THREADS
        status = gm_pool_trim(pool->pool, &request, &report);
        Py_END_ALLOW_THREADS
        Py_DECREF(pool);
        if (status != GM_OK) {
            set_status_error(state, status, "give pinned memory back");
            return NULL;
        }
    }
    return PyLong_FromSize_t(report.released);
}

PyMethodDef pinned_functions[] = {
    {"pinned_empty", pinned_empty, METH_VARARGS,
     PyDoc_STR("pinned_empty(device, shape, dtype, /)\n--\n\nReturn a PinnedArray of "
               "undefined content.")},
    {"pinned_stats", pinned_stats, METH_O,
     PyDoc_STR(
         "pinned_stats(device, /)\n--\n\nReturn the counters of the device's pool "
         "of pinned memory, in bytes; `pinned`\nis what the device itself holds "
         "pinned, alignment and Pin included.")},
    {"pinned_trim", pinned_trim, METH_O,
     PyDoc_STR(
         "pinned_trim(device, /)\n--\n\nGive idle pinned memory back to the system; "
         "return the bytes.")},
    {NULL, NULL, 0, NULL},
};

int
pinned_init(PyObject *module, core_state *state)
{
    gm_list_init(&state->pins);
    state->PinnedArray_Type =
        (PyTypeObject *)PyType_FromModuleAndSpec(module, &PinnedArray_spec, NULL);
    if (state->PinnedArray_Type == NULL ||
        PyModule_AddType(module, state->PinnedArray_Type) < 0) {
        return -1;
    }
    return pin_init(module, state);
}
