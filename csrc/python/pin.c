/* pin.c - Pin: somebody else's memory, page-locked while the handle lives.
 *
 * A range is registered with the device once, however many Pins name it; the last one
 * to go unregisters it. Ranges that overlap in part are refused before the driver is
 * asked, since it could only answer with an error of its own.
 *
 * Thread-safety: the GIL guards the list of ranges. It is released while the driver
 * registers; a range in that state accepts no second Pin. Unregistering happens at
 * once, under the GIL, in close(), __exit__ and dealloc.
 */
#include "python/python.h"

#include <string.h>

#include "python/buffer.h"

/* One registered range; in core_state.pins. */
typedef struct pinned_range {
    gm_list link;
    gm_device *device; /* owned */
    gm_devptr low;
    size_t size;      /* bytes */
    Py_ssize_t count; /* Pins that hold it */
    bool ready;       /* false: the driver is being asked */
} pinned_range;

typedef struct PinObject {
    PyObject_HEAD
    DeviceObject *device; /* strong */
    PyObject *array;      /* strong: what was given */
    host_array memory;    /* held while active */
    pinned_range *range;  /* NULL: inactive, or there are no bytes */
    bool active;
    bool busy; /* a thread is registering it */
} PinObject;

/* ---- ranges ---------------------------------------------------------------------- */

static PyObject *
range_error(const pinned_range *range, gm_devptr low, size_t size)
{
    PyErr_Format(PyExc_ValueError,
                 range->ready
                     ? "the %zu bytes at %p overlap the %zu bytes at %p, which "
                       "are pinned already, in part; pin the whole array once"
                     : "the %zu bytes at %p overlap the %zu bytes at %p, which "
                       "another thread is pinning",
                 size, gm_device_host_pointer(low), range->size,
                 gm_device_host_pointer(range->low));
    return NULL;
}

/* *out: the registered range that is exactly this one, or NULL. -1 with ValueError when
 * one overlaps it in part. */
static int
find_range(core_state *state, gm_device *device, gm_devptr low, size_t size,
           pinned_range **out)
{
    *out = NULL;
    GM_LIST_FOREACH(link, &state->pins) {
        pinned_range *range = GM_CONTAINER_OF(link, pinned_range, link);
        if (!same_device(range->device, device) || low >= range->low + range->size ||
            range->low >= low + size) {
            continue;
        }
        if (range->low != low || range->size != size || !range->ready) {
            range_error(range, low, size);
            return -1;
        }
        *out = range;
        return 0;
    }
    return 0;
}

static void
destroy_range(pinned_range *range)
{
    gm_list_remove(&range->link);
    gm_device_release(range->device);
    PyMem_Free(range);
}

/* A new range, registered with the device. NULL with an exception. */
static pinned_range *
register_range(core_state *state, gm_device *device, gm_devptr low, size_t size)
{
    if (device->ops->pin == NULL || device->ops->unpin == NULL) {
        set_status_error(state, GM_UNSUPPORTED, "pin memory");
        return NULL;
    }
    if (require_usable(state, device, "pin memory") < 0) {
        return NULL;
    }
    pinned_range *range = PyMem_New(pinned_range, 1);
    if (range == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    *range = (pinned_range){
        .device = gm_device_retain(device), .low = low, .size = size, .count = 1};
    gm_list_push_back(&state->pins, &range->link);
    gm_status status;
    Py_BEGIN_ALLOW_THREADS
    status = device->ops->pin(device, gm_device_host_pointer(low), size);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        destroy_range(range);
        set_status_error(state, status, "pin memory");
        return NULL;
    }
    range->ready = true;
    return range;
}

static void
drop_range(core_state *state, pinned_range *range)
{
    if (--range->count > 0) {
        return;
    }
    gm_status status = gm_device_usable(range->device);
    if (status == GM_OK) {
        status = range->device->ops->unpin(
            range->device, gm_device_host_pointer(range->low), range->size);
        if (status != GM_OK && state != NULL) {
            warn_unraisable(state, "unpinning %zu bytes failed: %s", range->size,
                            gm_status_text(status));
        }
    }
    destroy_range(range);
}

/* ---- Pin ------------------------------------------------------------------------- */

static int
pin_activate(core_state *state, PinObject *self)
{
    if (self->active) {
        return 0;
    }
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "another thread is pinning this array");
        return -1;
    }
    int taken = host_array_acquire(state, self->array, &self->memory);
    if (taken == 0) {
        PyErr_Format(
            PyExc_TypeError,
            "pin needs a NumPy array or an object with the buffer protocol, not "
            "%.100s",
            Py_TYPE(self->array)->tp_name);
    }
    if (taken <= 0) {
        return -1;
    }
    gm_device *device = self->device->device;
    array_layout layout = host_array_layout(&self->memory);
    gm_devptr low, high;
    layout_bounds(&layout, &low, &high);
    size_t size = (size_t)(high - low);
    if (size > 0) {
        if (find_range(state, device, low, size, &self->range) == 0) {
            if (self->range != NULL) {
                self->range->count++;
            }
            else {
                self->busy = true;
                self->range = register_range(state, device, low, size);
                self->busy = false;
            }
        }
        if (self->range == NULL) {
            host_array_release(&self->memory);
            return -1;
        }
    }
    self->active = true;
    return 0;
}

/* Keeps a pending exception. */
static void
pin_deactivate(core_state *state, PinObject *self)
{
    if (!self->active) {
        return;
    }
    self->active = false;
    if (self->range != NULL) {
        drop_range(state, self->range);
        self->range = NULL;
    }
    host_array_release(&self->memory);
}

static int
Pin_tp_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"device", "array", NULL};
    PinObject *self = (PinObject *)op;
    core_state *state = state_of(op);
    PyObject *device, *array;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O:Pin", keywords,
                                     state->Device_Type, &device, &array)) {
        return -1;
    }
    if (self->array != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a Pin is initialised once");
        return -1;
    }
    self->device = (DeviceObject *)Py_NewRef(device);
    self->array = Py_NewRef(array);
    return pin_activate(state, self);
}

static void
Pin_tp_dealloc(PyObject *op)
{
    PinObject *self = (PinObject *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    core_state *state = PyType_GetModuleState(type);
    if (state == NULL) {
        PyErr_Clear();
    }
    pin_deactivate(state, self);
    Py_XDECREF((PyObject *)self->device);
    Py_XDECREF(self->array);
    PyErr_Restore(kind, value, trace);
    type->tp_free(op);
    Py_DECREF(type);
}

static int
Pin_tp_traverse(PyObject *op, visitproc visit, void *arg)
{
    PinObject *self = (PinObject *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT((PyObject *)self->device);
    Py_VISIT(self->array);
    Py_VISIT(self->memory.owner);
    Py_VISIT(self->memory.buffer.obj);
    return 0;
}

/* A Pin in a cycle that is garbage lets its memory go first. */
static int
Pin_tp_clear(PyObject *op)
{
    PinObject *self = (PinObject *)op;
    pin_deactivate(state_of(op), self);
    Py_CLEAR(self->array);
    return 0;
}

static PyObject *
Pin_close(PyObject *op, PyObject *Py_UNUSED(unused))
{
    pin_deactivate(state_of(op), (PinObject *)op);
    Py_RETURN_NONE;
}

static PyObject *
Pin_enter(PyObject *op, PyObject *Py_UNUSED(unused))
{
    PinObject *self = (PinObject *)op;
    if (self->array == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this Pin was not initialised");
        return NULL;
    }
    if (pin_activate(state_of(op), self) < 0) {
        return NULL;
    }
    return Py_NewRef(self->array);
}

static PyObject *
Pin_exit(PyObject *op, PyObject *Py_UNUSED(args))
{
    pin_deactivate(state_of(op), (PinObject *)op);
    Py_RETURN_NONE;
}

static PyObject *
Pin_get_active(PyObject *op, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(((PinObject *)op)->active);
}

static PyObject *
Pin_tp_repr(PyObject *op)
{
    PinObject *self = (PinObject *)op;
    PyObject *bytes =
        format_bytes(self->range != NULL ? (Py_ssize_t)self->range->size : 0);
    if (bytes == NULL) {
        return NULL;
    }
    PyObject *text = PyUnicode_FromFormat("<gpumem.Pin %s nbytes=%U>",
                                          self->active ? "active" : "closed", bytes);
    Py_DECREF(bytes);
    return text;
}

static PyGetSetDef Pin_getset[] = {
    {"active", Pin_get_active, NULL,
     PyDoc_STR("True while this handle keeps the memory pinned."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef Pin_methods[] = {
    {"close", Pin_close, METH_NOARGS,
     PyDoc_STR("close($self, /)\n--\n\nUnpin the memory unless another Pin of the same "
               "range is active. Doing it\nagain does nothing.")},
    {"__enter__", Pin_enter, METH_NOARGS,
     PyDoc_STR(
         "__enter__($self, /)\n--\n\nReturn the array, pinned again if the handle "
         "was closed.")},
    {"__exit__", Pin_exit, METH_VARARGS,
     PyDoc_STR("__exit__($self, kind, value, traceback, /)\n--\n\nClose the handle.")},
    {NULL, NULL, 0, NULL},
};

static char Pin_doc[] =
    "Pin(device, array)\n--\n\n"
    "Page-lock the memory of a NumPy array or another exporter while the handle "
    "lives.\n\n"
    "The handle keeps the array. Nested pins of one range count; a range that overlaps "
    "a\n"
    "pinned one in part is a ValueError. A context manager that gives the array.";

static PyType_Slot Pin_slots[] = {
    {Py_tp_doc, Pin_doc},
    {Py_tp_init, Pin_tp_init},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, Pin_tp_dealloc},
    {Py_tp_traverse, Pin_tp_traverse},
    {Py_tp_clear, Pin_tp_clear},
    {Py_tp_repr, Pin_tp_repr},
    {Py_tp_getset, Pin_getset},
    {Py_tp_methods, Pin_methods},
    {0, NULL},
};

static PyType_Spec Pin_spec = {
    .name = "gpumem.Pin",
    .basicsize = sizeof(PinObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = Pin_slots,
};

int
pin_init(PyObject *module, core_state *state)
{
    state->Pin_Type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &Pin_spec, NULL);
    if (state->Pin_Type == NULL) {
        return -1;
    }
    return PyModule_AddType(module, state->Pin_Type);
}
