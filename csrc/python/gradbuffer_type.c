/* gradbuffer_type.c - GradBuffer's properties, items, documentation and type.
 *
 * Thread-safety: the GIL.
 */
#include "python/python.h"

#include <stddef.h>

#include "python/gradbuffer.h"

/* ---- items -------------------------------------------------------------------------- */

static Py_ssize_t
GradBuffer_mp_length(PyObject *op)
{
    return grad_length((GradBufferObject *)op);
}

static PyObject *
item_by_name(GradBufferObject *self, PyObject *name)
{
    for (Py_ssize_t i = 0; i < grad_length(self); i++) {
        int equal = PyUnicode_Compare(PyTuple_GET_ITEM(self->names, i), name);
        if (equal == 0) {
            return Py_NewRef(PyTuple_GET_ITEM(self->views, i));
        }
        if (equal == -1 && PyErr_Occurred()) {
            return NULL;
        }
    }
    PyErr_SetObject(PyExc_KeyError, name);
    return NULL;
}

static PyObject *
item_by_index(GradBufferObject *self, Py_ssize_t index)
{
    Py_ssize_t length = grad_length(self);
    if (index < -length || index >= length) {
        PyErr_Format(PyExc_IndexError, "index %zd is out of range for %zd parameters",
                     index, length);
        return NULL;
    }
    return Py_NewRef(PyTuple_GET_ITEM(self->views, index < 0 ? index + length : index));
}

static PyObject *
GradBuffer_mp_subscript(PyObject *op, PyObject *key)
{
    GradBufferObject *self = (GradBufferObject *)op;
    if (PyUnicode_Check(key)) {
        return item_by_name(self, key);
    }
    if (!PyIndex_Check(key)) {
        PyErr_Format(PyExc_TypeError,
                     "a parameter is picked by int or name, not %.100s",
                     Py_TYPE(key)->tp_name);
        return NULL;
    }
    Py_ssize_t index = PyNumber_AsSsize_t(key, PyExc_IndexError);
    if (index == -1 && PyErr_Occurred()) {
        return NULL;
    }
    return item_by_index(self, index);
}

static PyObject *
GradBuffer_tp_iter(PyObject *op)
{
    return PyObject_GetIter(((GradBufferObject *)op)->views);
}

static PyObject *
GradBuffer_tp_repr(PyObject *op)
{
    GradBufferObject *self = (GradBufferObject *)op;
    PyObject *bytes = format_bytes(self->buffer->nbytes);
    PyObject *window = self->window > 0 ? PyUnicode_FromFormat(" of %zd", self->window)
                                        : PyUnicode_FromString("");
    PyObject *text = NULL;
    if (bytes != NULL && window != NULL) {
        text = PyUnicode_FromFormat(
            "<gpumem.GradBuffer of %zd parameters, %U %s, %s, "
            "%zd%U added%s>",
            grad_length(self), bytes, self->dtype->name, grad_mode_name(self->mode),
            self->count, window, self->finished ? ", finished" : "");
    }
    Py_XDECREF(bytes);
    Py_XDECREF(window);
    return text;
}

/* ---- properties -------------------------------------------------------------------------- */

static PyObject *
GradBuffer_get_window(PyObject *op, void *Py_UNUSED(closure))
{
    Py_ssize_t window = ((GradBufferObject *)op)->window;
    return window > 0 ? PyLong_FromSsize_t(window) : Py_NewRef(Py_None);
}

static PyObject *
GradBuffer_get_mode(PyObject *op, void *Py_UNUSED(closure))
{
    return PyUnicode_FromString(grad_mode_name(((GradBufferObject *)op)->mode));
}

static PyObject *
GradBuffer_get_pending(PyObject *op, void *Py_UNUSED(closure))
{
    GradBufferObject *self = (GradBufferObject *)op;
    return PyLong_FromSsize_t(self->finished ? 0 : self->count);
}

static PyObject *
GradBuffer_get_weight(PyObject *op, void *Py_UNUSED(closure))
{
    return PyFloat_FromDouble(((GradBufferObject *)op)->weight);
}

static PyObject *
GradBuffer_get_finished(PyObject *op, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(((GradBufferObject *)op)->finished);
}

static PyObject *
GradBuffer_get_ready(PyObject *op, void *Py_UNUSED(closure))
{
    GradBufferObject *self = (GradBufferObject *)op;
    return PyBool_FromLong(self->window > 0 && self->count == self->window);
}

static PyObject *
GradBuffer_get_names(PyObject *op, void *Py_UNUSED(closure))
{
    return Py_NewRef(((GradBufferObject *)op)->names);
}

static PyObject *
GradBuffer_get_views(PyObject *op, void *Py_UNUSED(closure))
{
    return Py_NewRef(((GradBufferObject *)op)->views);
}

static PyObject *
GradBuffer_get_buffer(PyObject *op, void *Py_UNUSED(closure))
{
    return Py_NewRef((PyObject *)((GradBufferObject *)op)->buffer);
}

static PyGetSetDef GradBuffer_getset[] = {
    {"names", GradBuffer_get_names, NULL,
     "The names of the parameters: keys of the dict, or '0', '1', ...", NULL},
    {"views", GradBuffer_get_views, NULL, "One Buffer for each parameter, in order.",
     NULL},
    {"buffer", GradBuffer_get_buffer, NULL,
     "All elements as one Buffer of one dimension. Parameters start at multiples of "
     "256\n"
     "bytes; the elements between are zero.",
     NULL},
    {"window", GradBuffer_get_window, NULL, "Micro-steps of a window, or None.", NULL},
    {"mode", GradBuffer_get_mode, NULL, "'weighted', 'mean' or 'sum'.", NULL},
    {"pending", GradBuffer_get_pending, NULL,
     "Micro-steps that were added and not finished.", NULL},
    {"weight", GradBuffer_get_weight, NULL,
     "The sum of the weights since zero(); the count where none are given.", NULL},
    {"finished", GradBuffer_get_finished, NULL,
     "Whether finish() has divided; then zero() comes next.", NULL},
    {"ready", GradBuffer_get_ready, NULL, "Whether the window is full.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef GradBuffer_members[] = {
    {"count", Py_T_PYSSIZET, offsetof(GradBufferObject, count), Py_READONLY,
     "Micro-steps added since zero()."},
    {"rejected", Py_T_PYSSIZET, offsetof(GradBufferObject, rejected), Py_READONLY,
     "Micro-steps that were not added since they are not finite, since creation."},
    {"__weaklistoffset__", Py_T_PYSSIZET, offsetof(GradBufferObject, weakrefs),
     Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

/* ---- methods ------------------------------------------------------------------------------- */

#define KEYWORDS(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef GradBuffer_methods[] = {
    {"add", KEYWORDS(GradBuffer_add), METH_VARARGS | METH_KEYWORDS,
     "add($self, /, grads, *, weight=None)\n--\n\n"
     "Add the gradients of one micro-batch; return whether they were added.\n\n"
     "Parameters\n----------\n"
     "grads : sequence or dict\n"
     "    One for each parameter, of its shape: a Buffer, a NumPy array, a memoryview, "
     "a\n"
     "    tensor with DLPack (float16, bfloat16, float32 or float64), or None for "
     "zeros.\n"
     "    They are read during the call, not kept and not changed.\n"
     "weight : float, optional\n"
     "    In mode 'weighted' what the mean of this micro-batch counts, such as its "
     "number\n"
     "    of tokens; 1 when no micro-step of the window has a weight.\n\n"
     "Returns\n-------\n"
     "bool\n"
     "    False when a value is infinite or NaN, or would make a sum overflow: "
     "nothing\n"
     "    was added then, and `rejected` counts it.\n\n"
     "Raises\n------\n"
     "ValueError\n"
     "    For a wrong shape, number of gradients or weight, and for a window in which\n"
     "    some micro-steps have a weight and some have none.\n"
     "RuntimeError\n"
     "    When the window is full or finished.\n"
     "GpumemError\n"
     "    When the device fails, or has no memory for a copy.\n\n"
     "Notes\n-----\n"
     "After an exception nothing was added, and the call may be made again."},
    {"finish", GradBuffer_finish, METH_NOARGS,
     "finish($self, /)\n--\n\n"
     "Divide once by what was added, and return the views.\n\n"
     "The divisor is the sum of the weights ('weighted') or the count ('mean'); 'sum'\n"
     "divides by nothing. A window that is not full is divided by what it has; one "
     "that\n"
     "has nothing stays zero, with count 0. A second call changes nothing.\n\n"
     "In float32 and float64 each quotient is the exact one rounded once. The\n"
     "division is queued on the buffer's stream."},
    {"zero", GradBuffer_zero, METH_NOARGS,
     "zero($self, /)\n--\n\nStart a new window: one fill of the whole buffer."},
    {"norm", KEYWORDS(GradBuffer_norm), METH_VARARGS | METH_KEYWORDS,
     "norm($self, /, ord=2.0)\n--\n\n"
     "Return the norm over all parameters, (sum |x| ** ord) ** (1 / ord).\n\n"
     "ord is above 0; float('inf') gives the largest magnitude. Elements are divided "
     "by\n"
     "that first and summed in float64, so nothing overflows on the way."},
    {"clip", KEYWORDS(GradBuffer_clip), METH_VARARGS | METH_KEYWORDS,
     "clip($self, /, max_norm)\n--\n\n"
     "Scale all gradients so that their 2-norm is at most max_norm; return the norm\n"
     "from before. Call it after finish(). A norm that is not finite, which only a "
     "write\n"
     "through a view can cause, is returned and nothing is scaled."},
    {"state", GradBuffer_state, METH_NOARGS,
     "state($self, /)\n--\n\n"
     "Return a dict of plain values: names, shapes, settings, counts, and the "
     "elements\n"
     "as bytes."},
    {"close", GradBuffer_close, METH_NOARGS,
     "close($self, /)\n--\n\n"
     "Give the memory back now. BufferError while a view is exported; idempotent."},
    {"__reduce__", GradBuffer_reduce, METH_NOARGS,
     "__reduce__($self, /)\n--\n\n"
     "Pickle the values; unpickling puts them in the default pool."},
    {"_restore", GradBuffer_restore, METH_O | METH_CLASS,
     "_restore($type, state, /)\n--\n\n"
     "Return a GradBuffer with a state, in the default pool."},
    {NULL, NULL, 0, NULL},
};

/* ---- the type ---------------------------------------------------------------------------------- */

static char GradBuffer_doc[] =
    "GradBuffer(params, *, window=None, mode='weighted', dtype='float32', pool=None,\n"
    "           stream=None)\n--\n\n"
    "Gradients of micro-batches, summed in one buffer with a view for each "
    "parameter.\n\n"
    "Parameters\n----------\n"
    "params : sequence or dict\n"
    "    One shape for each parameter, or anything that has a `shape`.\n"
    "window : int, optional\n"
    "    Micro-steps of a window; more than that is an error.\n"
    "mode : {'weighted', 'mean', 'sum'}\n"
    "    What finish() gives: the mean by weight, the plain mean, or the sum.\n"
    "dtype : str\n"
    "    Of the sums: 'float32' or 'float64'. 'float16' and 'bfloat16' warn.\n"
    "pool : Pool, optional\n"
    "    Where the memory is; the default pool without it.\n"
    "stream : Stream or int, optional\n"
    "    Where the work is queued. add, norm and clip wait for it.\n\n"
    "Notes\n-----\n"
    "For one thread at a time. The memory belongs to the scope it was made in and "
    "goes\n"
    "back with the object or by close().\n\n"
    "Examples\n--------\n"
    ">>> import gpumem, numpy\n"
    ">>> pool = gpumem.Pool(gpumem.device('host'))\n"
    ">>> sums = gpumem.GradBuffer({'bias': (1,)}, pool=pool)\n"
    ">>> sums.add({'bias': numpy.array([4.0])}, weight=1)\n"
    "True\n"
    ">>> sums.add({'bias': numpy.array([0.0])}, weight=3)\n"
    "True\n"
    ">>> float(sums.finish()[0].numpy()[0])\n"
    "1.0\n";

static PyType_Slot GradBuffer_slots[] = {
    {Py_tp_new, GradBuffer_tp_new},
    {Py_tp_dealloc, GradBuffer_tp_dealloc},
    {Py_tp_traverse, GradBuffer_tp_traverse},
    {Py_tp_repr, GradBuffer_tp_repr},
    {Py_tp_iter, GradBuffer_tp_iter},
    {Py_tp_methods, GradBuffer_methods},
    {Py_tp_getset, GradBuffer_getset},
    {Py_tp_members, GradBuffer_members},
    {Py_tp_doc, GradBuffer_doc},
    {Py_mp_length, GradBuffer_mp_length},
    {Py_mp_subscript, GradBuffer_mp_subscript},
    {0, NULL},
};

static PyType_Spec GradBuffer_spec = {
    .name = "gpumem.GradBuffer",
    .basicsize = sizeof(GradBufferObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = GradBuffer_slots,
};

int
gradbuffer_init(PyObject *module, core_state *state)
{
    state->GradBuffer_Type =
        (PyTypeObject *)PyType_FromModuleAndSpec(module, &GradBuffer_spec, NULL);
    if (state->GradBuffer_Type == NULL) {
        return -1;
    }
    return PyModule_AddType(module, state->GradBuffer_Type);
}
