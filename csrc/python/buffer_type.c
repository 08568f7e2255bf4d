/* buffer_type.c - the attributes, methods and type of Buffer.
 *
 * Attributes that describe (shape, dtype, nbytes) stay readable after the release;
 * whatever gives the memory away (ptr, copies, views, exports) raises ReleasedError
 * then.
 *
 * Thread-safety: the GIL.
 */
#include "python/python.h"

#include "python/buffer.h"

/* ---- slots ----------------------------------------------------------------------- */

static int
Buffer_tp_traverse(PyObject *op, visitproc visit, void *arg)
{
    BufferObject *self = (BufferObject *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT((PyObject *)self->root);
    Py_VISIT((PyObject *)self->pool);
    Py_VISIT(self->name);
    Py_VISIT(self->scope_name);
    return 0;
}

static int
Buffer_tp_clear(PyObject *op)
{
    BufferObject *self = (BufferObject *)op;
    Py_CLEAR(self->name);
    Py_CLEAR(self->scope_name);
    return 0;
}

static PyObject *
Buffer_tp_repr(PyObject *op)
{
    BufferObject *self = (BufferObject *)op;
    BufferObject *root = buffer_root(self);
    PyObject *shape = dims_to_tuple(self->ndim, self->shape);
    PyObject *bytes = format_bytes(self->nbytes);
    PyObject *name = root->name != NULL ? PyUnicode_FromFormat(" %R", root->name)
                                        : PyUnicode_FromString("");
    PyObject *text = NULL;
    if (shape != NULL && bytes != NULL && name != NULL) {
        text = PyUnicode_FromFormat(
            "<gpumem.Buffer%U shape=%R dtype=%s device=%s nbytes=%U%s%s>", name, shape,
            self->dtype->name, buffer_device(self)->info.name, bytes,
            self->root != NULL ? " view" : "",
            root->released || buffer_is_orphan(root) ? " released" : "");
    }
    Py_XDECREF(shape);
    Py_XDECREF(bytes);
    Py_XDECREF(name);
    return text;
}

static Py_ssize_t
Buffer_mp_length(PyObject *op)
{
    BufferObject *self = (BufferObject *)op;
    if (self->ndim == 0) {
        PyErr_SetString(PyExc_TypeError, "a buffer of zero dimensions has no length");
        return -1;
    }
    return self->shape[0];
}

static PyObject *
Buffer_tp_iter(PyObject *op)
{
    if (Buffer_mp_length(op) < 0) {
        return NULL;
    }
    return PySeqIter_New(op);
}

/* ---- attributes ------------------------------------------------------------------ */

static PyObject *
Buffer_get_ptr(PyObject *op, void *Py_UNUSED(closure))
{
    BufferObject *self = (BufferObject *)op;
    if (buffer_require(state_of(op), self) < 0) {
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(self->ptr);
}

static PyObject *
Buffer_get_nbytes(PyObject *op, void *Py_UNUSED(closure))
{
    return PyLong_FromSsize_t(((BufferObject *)op)->nbytes);
}

static PyObject *
Buffer_get_itemsize(PyObject *op, void *Py_UNUSED(closure))
{
    return PyLong_FromLong(((BufferObject *)op)->dtype->itemsize);
}

static PyObject *
Buffer_get_size(PyObject *op, void *Py_UNUSED(closure))
{
    return PyLong_FromSsize_t(((BufferObject *)op)->size);
}

static PyObject *
Buffer_get_ndim(PyObject *op, void *Py_UNUSED(closure))
{
    return PyLong_FromLong(((BufferObject *)op)->ndim);
}

static PyObject *
Buffer_get_shape(PyObject *op, void *Py_UNUSED(closure))
{
    BufferObject *self = (BufferObject *)op;
    return dims_to_tuple(self->ndim, self->shape);
}

static PyObject *
Buffer_get_strides(PyObject *op, void *Py_UNUSED(closure))
{
    BufferObject *self = (BufferObject *)op;
    return dims_to_tuple(self->ndim, self->shape + self->ndim);
}

static PyObject *
Buffer_get_dtype(PyObject *op, void *Py_UNUSED(closure))
{
    return PyUnicode_FromString(((BufferObject *)op)->dtype->name);
}

static PyObject *
Buffer_get_device(PyObject *op, void *Py_UNUSED(closure))
{
    return Py_NewRef((PyObject *)((BufferObject *)op)->pool->device);
}

static PyObject *
Buffer_get_stream(PyObject *op, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(((BufferObject *)op)->stream);
}

static PyObject *
Buffer_get_pool(PyObject *op, void *Py_UNUSED(closure))
{
    return Py_NewRef((PyObject *)((BufferObject *)op)->pool);
}

static PyObject *
Buffer_get_name(PyObject *op, void *Py_UNUSED(closure))
{
    PyObject *name = buffer_root((BufferObject *)op)->name;
    return Py_NewRef(name != NULL ? name : Py_None);
}

static PyObject *
Buffer_get_context(PyObject *op, void *Py_UNUSED(closure))
{
    BufferObject *root = buffer_root((BufferObject *)op);
    uint64_t context = root->block != NULL ? gm_block_context(root->block) : 0;
    return PyLong_FromUnsignedLongLong(context);
}

static PyObject *
Buffer_get_released(PyObject *op, void *Py_UNUSED(closure))
{
    BufferObject *root = buffer_root((BufferObject *)op);
    return PyBool_FromLong(root->released || buffer_is_orphan(root));
}

static PyObject *
Buffer_get_exports(PyObject *op, void *Py_UNUSED(closure))
{
    return PyLong_FromSsize_t(buffer_root((BufferObject *)op)->exports);
}

static PyObject *
Buffer_get_base(PyObject *op, void *Py_UNUSED(closure))
{
    BufferObject *root = ((BufferObject *)op)->root;
    return Py_NewRef(root != NULL ? (PyObject *)root : Py_None);
}

/* New reference: the strides for the array interface, None for C order. */
static PyObject *
interface_strides(BufferObject *self)
{
    if (buffer_is_contiguous(self)) {
        return Py_NewRef(Py_None);
    }
    return dims_to_tuple(self->ndim, self->shape + self->ndim);
}

/* CUDA devices alone: elsewhere consumers would take a host address for a device one,
 * so the attribute is absent there. The stream covers the buffer's own work; handle 0
 * is not allowed in the interface, 1 is the same stream. */
static PyObject *
Buffer_get_cuda_array_interface(PyObject *op, void *Py_UNUSED(closure))
{
    BufferObject *self = (BufferObject *)op;
    if (buffer_device(self)->info.kind != GM_DEVICE_CUDA) {
        PyErr_Format(PyExc_AttributeError,
                     "__cuda_array_interface__ is for CUDA devices, this buffer is on "
                     "%s",
                     buffer_device(self)->info.name);
        return NULL;
    }
    if (buffer_require(state_of(op), self) < 0) {
        return NULL;
    }
    PyObject *shape = dims_to_tuple(self->ndim, self->shape);
    PyObject *strides = interface_strides(self);
    PyObject *result = NULL;
    if (shape != NULL && strides != NULL) {
        const char *typestr = self->dtype->typestr;
        if (typestr == NULL) {
            typestr = self->dtype->itemsize == 2 ? "<V2" : "|V1";
        }
        unsigned long long stream = self->stream == 0 ? 1 : self->stream;
        result =
            Py_BuildValue("{s:O,s:s,s:(KO),s:i,s:O,s:K}", "shape", shape, "typestr",
                          typestr, "data", (unsigned long long)self->ptr, Py_False,
                          "version", 3, "strides", strides, "stream", stream);
    }
    Py_XDECREF(shape);
    Py_XDECREF(strides);
    if (result != NULL) {
        buffer_root(self)->interface_read = true;
    }
    return result;
}

static PyGetSetDef Buffer_getset[] = {
    {"ptr", Buffer_get_ptr, NULL,
     PyDoc_STR("Address of the first element; 0 for no bytes. Not tracked: it must not "
               "be used once the buffer is released."),
     NULL},
    {"nbytes", Buffer_get_nbytes, NULL, PyDoc_STR("Bytes of the elements."), NULL},
    {"itemsize", Buffer_get_itemsize, NULL, PyDoc_STR("Bytes of one element."), NULL},
    {"size", Buffer_get_size, NULL, PyDoc_STR("Number of elements."), NULL},
    {"ndim", Buffer_get_ndim, NULL, PyDoc_STR("Number of dimensions."), NULL},
    {"shape", Buffer_get_shape, NULL, PyDoc_STR("Sizes of the dimensions."), NULL},
    {"strides", Buffer_get_strides, NULL,
     PyDoc_STR("Bytes from one element to the next, for each dimension."), NULL},
    {"dtype", Buffer_get_dtype, NULL, PyDoc_STR("NumPy's name of the element type."),
     NULL},
    {"device", Buffer_get_device, NULL, PyDoc_STR("The Device that has the memory."),
     NULL},
    {"stream", Buffer_get_stream, NULL,
     PyDoc_STR("Handle of the stream that the buffer was made for."), NULL},
    {"pool", Buffer_get_pool, NULL, PyDoc_STR("The Pool that it is from."), NULL},
    {"name", Buffer_get_name, NULL, PyDoc_STR("The name given at creation, or None."),
     NULL},
    {"context", Buffer_get_context, NULL,
     PyDoc_STR("Id of the stack it was made at (see stack_frames); 0: none."), NULL},
    {"released", Buffer_get_released, NULL,
     PyDoc_STR("True once the memory went back to the pool."), NULL},
    {"exports", Buffer_get_exports, NULL,
     PyDoc_STR("Live memoryviews, NumPy arrays and DLPack tensors over the memory."),
     NULL},
    {"base", Buffer_get_base, NULL,
     PyDoc_STR("The buffer that owns the memory of this view; None for an owner."),
     NULL},
    {"__cuda_array_interface__", Buffer_get_cuda_array_interface, NULL,
     PyDoc_STR("Version 3 of the interface; on CUDA devices only."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

/* ---- methods --------------------------------------------------------------------- */

static PyObject *
Buffer_free(PyObject *op, PyObject *Py_UNUSED(unused))
{
    BufferObject *root = buffer_root((BufferObject *)op);
    if (root->exports > 0) {
        PyErr_Format(PyExc_BufferError,
                     "cannot free a buffer with %zd live export%s (memoryviews, NumPy "
                     "arrays or DLPack tensors); drop them first",
                     root->exports, root->exports == 1 ? "" : "s");
        return NULL;
    }
    buffer_release_now(state_of(op), root, NULL);
    Py_RETURN_NONE;
}

static PyObject *
Buffer_numpy(PyObject *op, PyObject *Py_UNUSED(unused))
{
    return numpy_from_buffer(state_of(op), (BufferObject *)op);
}

static PyObject *
Buffer_record_stream(PyObject *op, PyObject *argument)
{
    BufferObject *self = (BufferObject *)op;
    core_state *state = state_of(op);
    gm_stream stream;
    if (buffer_require(state, self) < 0) {
        return NULL;
    }
    if (argument == Py_None) {
        PyErr_SetString(PyExc_TypeError,
                        "record_stream needs a Stream or a handle, not None");
        return NULL;
    }
    if (parse_stream(state, argument, buffer_device(self), self->stream, &stream) < 0 ||
        buffer_note_stream(state, self, stream) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
Buffer_reduce(PyObject *Py_UNUSED(op), PyObject *Py_UNUSED(unused))
{
    PyErr_SetString(PyExc_TypeError,
                    "a Buffer cannot be pickled or copied, it is device memory; use "
                    "buf.numpy().copy(), or np.empty with buf.copy_to()");
    return NULL;
}

#define FASTCALL_KEYWORDS(function) ((PyCFunction)(void (*)(void))(function))

PyDoc_STRVAR(free_doc,
             "free($self, /)\n--\n\n"
             "Give the memory back to the pool now, for every view of it, too.\n\n"
             "Doing it again does nothing.\n\n"
             "Raises\n------\nBufferError\n    A NumPy array, memoryview or DLPack "
             "tensor is alive.\n\n"
             "Notes\n-----\nThe pool hands the memory out again on the buffer's stream "
             "at once, and on\n"
             "recorded streams once their work is done.");

PyDoc_STRVAR(
    copy_from_doc,
    "copy_from($self, source, /, *, stream=None)\n--\n\n"
    "Copy all elements from `source` and return this buffer.\n\n"
    "Parameters\n----------\n"
    "source : Buffer, PinnedArray, array, DLPack tensor, nested sequence or number\n"
    "    Of the same shape, or a single value. Another dtype is converted within its\n"
    "    kind, as by NumPy.\n"
    "stream : Stream or int, optional\n    Where the copy is queued; the buffer's "
    "stream by default.\n\n"
    "Raises\n------\nValueError\n    The shapes differ.\nTypeError\n"
    "    The dtype cannot be converted within its kind.\nReleasedError\n    The memory "
    "is gone.\n\n"
    "Notes\n-----\nCopies from a Buffer of the same device or from its PinnedArrays "
    "are queued; the\n"
    "stream is recorded on both ends. All other copies, and those that convert, are\n"
    "done on return.");

PyDoc_STRVAR(
    copy_to_doc,
    "copy_to($self, target, /, *, stream=None)\n--\n\n"
    "Copy all elements to `target` and return it.\n\n"
    "Parameters\n----------\n"
    "target : Buffer, PinnedArray, writable array or DLPack tensor\n    Of the same "
    "shape.\n"
    "stream : Stream or int, optional\n    Where the copy is queued; the buffer's "
    "stream by default.\n\n"
    "Raises\n------\nValueError\n    The shapes differ, or the target is "
    "read-only.\nTypeError\n"
    "    The dtype cannot be converted within its kind.\nReleasedError\n    The memory "
    "is gone.\n\n"
    "Notes\n-----\nCopies to a Buffer of the same device or to its PinnedArrays are "
    "queued:\n"
    "synchronise the stream before reading the target. All others are done on return.");

PyDoc_STRVAR(
    fill_doc,
    "fill($self, value, /, *, stream=None)\n--\n\n"
    "Set every element to `value`, in stream order, and return this buffer.\n\n"
    "Raises\n------\nTypeError\n    The value is of another kind than the "
    "dtype.\nValueError\n"
    "    It is outside the dtype's range.");

PyDoc_STRVAR(
    numpy_doc,
    "numpy($self, /)\n--\n\n"
    "Return a writable ndarray over the same memory.\n\n"
    "The memory stays until the last array over it has died, even past its scope. "
    "Work\n"
    "that is queued on streams is not waited for.\n\n"
    "Raises\n------\nValueError\n    The host cannot read the memory of this device.\n"
    "ImportError\n    NumPy is missing, or ml_dtypes for its types.");

PyDoc_STRVAR(tobytes_doc,
             "tobytes($self, /)\n--\n\n"
             "Return a copy of the elements as bytes, in C order, after the work on "
             "the buffer's\n"
             "stream.");

PyDoc_STRVAR(view_doc,
             "view($self, dtype, /)\n--\n\n"
             "Return the same memory under another dtype.\n\n"
             "Another item size changes the last dimension, whose bytes must be "
             "contiguous and a\n"
             "multiple of it.");

PyDoc_STRVAR(
    reshape_doc,
    "reshape($self, /, *shape)\n--\n\n"
    "Return the same memory under another shape; one size may be -1.\n\n"
    "Raises\n------\nValueError\n    The sizes do not fit, or the elements have gaps.");

PyDoc_STRVAR(
    record_stream_doc,
    "record_stream($self, stream, /)\n--\n\n"
    "Say that `stream` uses the memory, too.\n\n"
    "Once freed, it is not handed out again before the work that stands on the stream\n"
    "then is done.");

PyDoc_STRVAR(
    dlpack_doc,
    "__dlpack__($self, /, *, stream=None, max_version=None, dl_device=None, "
    "copy=None)\n"
    "--\n\n"
    "Return a DLPack capsule over the memory (versioned if max_version allows).\n\n"
    "Raises\n------\nBufferError\n    The device or the memory cannot be exported as "
    "asked.");

static PyMethodDef Buffer_methods[] = {
    {"free", Buffer_free, METH_NOARGS, free_doc},
    {"copy_from", FASTCALL_KEYWORDS(buffer_copy_from), METH_FASTCALL | METH_KEYWORDS,
     copy_from_doc},
    {"copy_to", FASTCALL_KEYWORDS(buffer_copy_to), METH_FASTCALL | METH_KEYWORDS,
     copy_to_doc},
    {"fill", FASTCALL_KEYWORDS(buffer_fill), METH_FASTCALL | METH_KEYWORDS, fill_doc},
    {"numpy", Buffer_numpy, METH_NOARGS, numpy_doc},
    {"tobytes", buffer_tobytes, METH_NOARGS, tobytes_doc},
    {"view", buffer_view_as, METH_O, view_doc},
    {"reshape", FASTCALL_KEYWORDS(buffer_reshape), METH_FASTCALL, reshape_doc},
    {"record_stream", Buffer_record_stream, METH_O, record_stream_doc},
    {"__dlpack__", FASTCALL_KEYWORDS(buffer_dlpack),
     METH_METHOD | METH_FASTCALL | METH_KEYWORDS, dlpack_doc},
    {"__dlpack_device__", buffer_dlpack_device, METH_NOARGS,
     PyDoc_STR("__dlpack_device__($self, /)\n--\n\n"
               "Return the DLPack kind and index of the device.")},
    {"__reduce__", Buffer_reduce, METH_NOARGS,
     PyDoc_STR("__reduce__($self, /)\n--\n\nRaise TypeError: device memory cannot be "
               "pickled.")},
    {NULL, NULL, 0, NULL},
};

/* ---- the type -------------------------------------------------------------------- */

static char Buffer_doc[] =
    "Device memory with a shape. Made by Pool.empty and the functions over it.\n\n"
    "The memory goes back to its pool when the object dies, by free(), or at the end "
    "of\n"
    "the scope it was made in. Views (view, reshape, indexing) share its release. On\n"
    "devices that the host can read it has the buffer protocol; types that the struct\n"
    "module has no letter for appear there as unsigned integers of the same width.\n\n"
    "Examples\n--------\n"
    ">>> import gpumem\n"
    ">>> buf = gpumem.Pool(gpumem.device('host')).empty((2, 3), 'float32')\n"
    ">>> buf.fill(1.5).tobytes() == bytes(memoryview(buf))\n"
    "True\n";

static PyMemberDef Buffer_members[] = {
    {"__weaklistoffset__", Py_T_PYSSIZET, offsetof(BufferObject, weakrefs), Py_READONLY,
     NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot Buffer_slots[] = {
    {Py_tp_dealloc, Buffer_tp_dealloc},
    {Py_tp_traverse, Buffer_tp_traverse},
    {Py_tp_clear, Buffer_tp_clear},
    {Py_tp_repr, Buffer_tp_repr},
    {Py_tp_iter, Buffer_tp_iter},
    {Py_tp_methods, Buffer_methods},
    {Py_tp_getset, Buffer_getset},
    {Py_tp_members, Buffer_members},
    {Py_tp_doc, Buffer_doc},
    {Py_mp_length, Buffer_mp_length},
    {Py_mp_subscript, buffer_subscript},
    {Py_sq_length, Buffer_mp_length},
    {Py_sq_item, buffer_item},
    {Py_bf_getbuffer, Buffer_bf_getbuffer},
    {Py_bf_releasebuffer, Buffer_bf_releasebuffer},
    {0, NULL},
};

static PyType_Spec Buffer_spec = {
    .name = "gpumem.Buffer",
    .basicsize = sizeof(BufferObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = Buffer_slots,
};

int
buffer_init(PyObject *module, core_state *state)
{
    state->Buffer_Type =
        (PyTypeObject *)PyType_FromModuleAndSpec(module, &Buffer_spec, NULL);
    if (state->Buffer_Type == NULL) {
        return -1;
    }
    return PyModule_AddType(module, state->Buffer_Type);
}
