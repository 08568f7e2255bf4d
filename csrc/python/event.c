/* event.c - Event: a mark in a stream's work, and the waits for marks and streams.
 *
 * Whatever waits does so without the GIL, in slices, so that Ctrl-C works.
 */
#include "python/stream.h"

#include <stddef.h>

/* A wait looks for signals this often. Nanoseconds. */
#define WAIT_SLICE_NS ((uint64_t)20000000)

/* One slice of a wait: for an event if it is not 0, else for a stream. */
static gm_status
wait_slice(gm_device *device, gm_stream stream, gm_event event, uint64_t timeout_ns)
{
    if (event != 0) {
        return device->ops->event_synchronize(device, event, timeout_ns);
    }
    return device->ops->stream_synchronize(device, stream, timeout_ns);
}

/* 1: done, 0: the time was over, -1: exception. */
static int
wait_sliced(core_state *state, gm_device *device, gm_stream stream, gm_event event,
            uint64_t timeout_ns)
{
    for (;;) {
        uint64_t slice = timeout_ns < WAIT_SLICE_NS ? timeout_ns : WAIT_SLICE_NS;
        gm_status status;
        Py_BEGIN_ALLOW_THREADS
        status = wait_slice(device, stream, event, slice);
        Py_END_ALLOW_THREADS
        if (status == GM_OK) {
            return 1;
        }
        if (status != GM_NOT_READY) {
            set_status_error(state, status, "wait for the device's work");
            return -1;
        }
        if (PyErr_CheckSignals() < 0) {
            return -1;
        }
        if (timeout_ns != UINT64_MAX) {
            timeout_ns -= slice;
            if (timeout_ns == 0) {
                return 0;
            }
        }
    }
}

int
wait_for_stream(core_state *state, gm_device *device, gm_stream stream,
                uint64_t timeout_ns)
{
    return wait_sliced(state, device, stream, 0, timeout_ns);
}

PyObject *
wait_method(core_state *state, DeviceObject *device, gm_stream stream, gm_event event,
            PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"timeout", NULL};
    PyObject *timeout = Py_None;
    uint64_t timeout_ns;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:synchronize", names, &timeout) ||
        parse_seconds(timeout, "timeout", &timeout_ns) < 0 ||
        require_usable(state, device->device, "wait for the device's work") < 0) {
        return NULL;
    }
    int done = wait_sliced(state, device->device, stream, event, timeout_ns);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

/* ---- Event ------------------------------------------------------------------------------- */

PyObject *
event_make(core_state *state, DeviceObject *device)
{
    if (require_usable(state, device->device, "make an event") < 0) {
        return NULL;
    }
    gm_event event;
    gm_status status = device->device->ops->event_create(device->device, &event);
    if (status != GM_OK) {
        return set_status_error(state, status, "make an event");
    }
    EventObject *self =
        (EventObject *)state->Event_Type->tp_alloc(state->Event_Type, 0);
    if (self == NULL) {
        (void)device->device->ops->event_destroy(device->device, event);
        return NULL;
    }
    self->device = (DeviceObject *)Py_NewRef((PyObject *)device);
    self->event = event;
    state->live_events++;
    return (PyObject *)self;
}

static PyObject *
Event_tp_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"device", NULL};
    core_state *state = PyType_GetModuleState(type);
    PyObject *device;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!:Event", names,
                                     state->Device_Type, &device)) {
        return NULL;
    }
    return event_make(state, (DeviceObject *)device);
}

static int
Event_tp_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(((EventObject *)op)->device);
    return 0;
}

static void
Event_tp_dealloc(PyObject *op)
{
    EventObject *self = (EventObject *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    PyObject *kind, *value, *traceback;
    PyErr_Fetch(&kind, &value, &traceback);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs(op);
    }
    core_state *state = state_of_dying(op);
    if (state != NULL) {
        state->live_events--;
    }
    gm_device *device = self->device->device;
    if (gm_device_usable(device) == GM_OK) {
        /* Nobody can act on a failure here; the device reports a lost one itself. */
        (void)device->ops->event_destroy(device, self->event);
    }
    Py_CLEAR(self->device);
    PyErr_Restore(kind, value, traceback);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyObject *
Event_tp_repr(PyObject *op)
{
    return PyUnicode_FromFormat("<gpumem.Event on %s>",
                                ((EventObject *)op)->device->device->info.name);
}

static PyObject *
Event_get_device(PyObject *op, void *Py_UNUSED(closure))
{
    return Py_NewRef((PyObject *)((EventObject *)op)->device);
}

int
event_record_on(core_state *state, EventObject *self, gm_stream stream)
{
    gm_device *device = self->device->device;
    if (require_usable(state, device, "record an event") < 0) {
        return -1;
    }
    gm_status status = device->ops->event_record(device, self->event, stream);
    if (status != GM_OK) {
        set_status_error(state, status, "record an event");
        return -1;
    }
    return 0;
}

static PyObject *
Event_record(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"stream", NULL};
    EventObject *self = (EventObject *)op;
    core_state *state = state_of(op);
    PyObject *stream_object = Py_None;
    gm_stream stream;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:record", names,
                                     &stream_object) ||
        parse_stream(state, stream_object, self->device->device, GM_DEFAULT_STREAM,
                     &stream) < 0 ||
        event_record_on(state, self, stream) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
Event_query(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    core_state *state = state_of(op);
    EventObject *self = (EventObject *)op;
    gm_device *device = self->device->device;
    if (require_usable(state, device, "query an event") < 0) {
        return NULL;
    }
    gm_status status = device->ops->event_query(device, self->event);
    if (status != GM_OK && status != GM_NOT_READY) {
        return set_status_error(state, status, "query an event");
    }
    return PyBool_FromLong(status == GM_OK);
}

static PyObject *
Event_synchronize(PyObject *op, PyObject *args, PyObject *kwargs)
{
    EventObject *self = (EventObject *)op;
    return wait_method(state_of(op), self->device, 0, self->event, args, kwargs);
}

static PyGetSetDef Event_getset[] = {
    {"device", Event_get_device, NULL, "The device whose work it marks.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef Event_methods[] = {
    {"record", (PyCFunction)(void (*)(void))Event_record, METH_VARARGS | METH_KEYWORDS,
     "record($self, /, stream=None)\n--\n\n"
     "Marks all work that stands on the stream now; recording again moves the mark."},
    {"query", Event_query, METH_NOARGS,
     "query($self, /)\n--\n\nTrue when the marked work is done, or nothing was "
     "marked."},
    {"synchronize", (PyCFunction)(void (*)(void))Event_synchronize,
     METH_VARARGS | METH_KEYWORDS,
     "synchronize($self, /, timeout=None)\n--\n\n"
     "Waits for the marked work, at most timeout seconds; False when the time was "
     "over\n"
     "first. Without the GIL."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef Event_members[] = {
    {"__weaklistoffset__", Py_T_PYSSIZET, offsetof(EventObject, weakrefs), Py_READONLY,
     NULL},
    {NULL, 0, 0, 0, NULL},
};

static char Event_doc[] =
    "Event(device)\n--\n\n"
    "A mark in a stream's work.";

static PyType_Slot Event_slots[] = {
    {Py_tp_doc, Event_doc},
    {Py_tp_new, Event_tp_new},
    {Py_tp_traverse, Event_tp_traverse},
    {Py_tp_dealloc, Event_tp_dealloc},
    {Py_tp_repr, Event_tp_repr},
    {Py_tp_getset, Event_getset},
    {Py_tp_methods, Event_methods},
    {Py_tp_members, Event_members},
    {0, NULL},
};

static PyType_Spec Event_spec = {
    .name = "gpumem.Event",
    .basicsize = sizeof(EventObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = Event_slots,
};

int
event_init(PyObject *module, core_state *state)
{
    state->Event_Type =
        (PyTypeObject *)PyType_FromModuleAndSpec(module, &Event_spec, NULL);
    if (state->Event_Type == NULL) {
        return -1;
    }
    return PyModule_AddType(module, state->Event_Type);
}
