/* stream.c - Stream: an ordered queue of a device's work.
 *
 * A Stream made by Stream(device) is ours and is destroyed with the object or by
 * close(); one made by Stream(device, handle) belongs to somebody else. Closing tells
 * every pool of the device that the stream's memory may go to others.
 */
#include "python/stream.h"

#include <stddef.h>

#include "device/fault.h"
#include "device/host.h"
#include "device/pinned_device.h"

/* ---- Stream: life ------------------------------------------------------------------------ */

typedef struct retired_stream {
    gm_device *device;
    gm_stream handle;
} retired_stream;

/* A gm_pools_visit visitor; pools of the device's pinned memory are among them. */
static void
retire_in_pool(gm_pool *pool, void *argument)
{
    const retired_stream *retired = argument;
    gm_device *device = gm_pinned_device_inner(gm_pool_device(pool));
    if (same_device(device, retired->device)) {
        gm_pool_stream_retired(pool, retired->handle);
    }
}

/* Tells the pools, then destroys the stream if it is ours. Idempotent, never waits. */
static gm_status
stream_close(StreamObject *self)
{
    gm_device *device = self->device->device;
    if (self->closed) {
        return GM_OK;
    }
    self->closed = true;
    if (gm_device_usable(device) != GM_OK) {
        return GM_OK;
    }
    retired_stream retired = {.device = device, .handle = self->handle};
    gm_pools_visit(retire_in_pool, &retired);
    return device->ops->stream_destroy(device, self->handle);
}

/* 0, or -1 with an exception: makes a stream, or takes the handle as given. */
static int
stream_choose(core_state *state, DeviceObject *device, PyObject *handle_object,
              gm_stream *handle)
{
    if (handle_object != Py_None) {
        if (Py_IS_TYPE(handle_object, state->Stream_Type)) {
            PyErr_SetString(PyExc_TypeError, "handle must be an int or None");
            return -1;
        }
        return parse_stream(state, handle_object, device->device, 0, handle);
    }
    if (require_usable(state, device->device, "make a stream") < 0) {
        return -1;
    }
    gm_status status = device->device->ops->stream_create(device->device, handle);
    if (status != GM_OK) {
        set_status_error(state, status, "make a stream");
        return -1;
    }
    return 0;
}

static PyObject *
Stream_tp_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"device", "handle", NULL};
    core_state *state = PyType_GetModuleState(type);
    PyObject *device_object, *handle_object = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|O:Stream", names,
                                     state->Device_Type, &device_object,
                                     &handle_object)) {
        return NULL;
    }
    DeviceObject *device = (DeviceObject *)device_object;
    StreamObject *self = (StreamObject *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->closed = true;
    self->device = (DeviceObject *)Py_NewRef(device_object);
    gm_list_init(&self->link);
    state->live_streams++;
    if (stream_choose(state, device, handle_object, &self->handle) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    self->owned = handle_object == Py_None;
    self->closed = false;
    gm_list_push_back(&state->streams, &self->link);
    return (PyObject *)self;
}

static int
Stream_tp_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(((StreamObject *)op)->device);
    return 0;
}

static void
Stream_tp_dealloc(PyObject *op)
{
    StreamObject *self = (StreamObject *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    PyObject *kind, *value, *traceback;
    PyErr_Fetch(&kind, &value, &traceback);
    gm_list_remove(&self->link);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs(op);
    }
    core_state *state = state_of_dying(op);
    if (state != NULL) {
        state->live_streams--;
    }
    if (self->owned) {
        gm_status status = stream_close(self);
        if (status != GM_OK && state != NULL) {
            warn_unraisable(state, "could not destroy a stream of %s: %s",
                            self->device->device->info.name, gm_status_text(status));
        }
    }
    Py_CLEAR(self->device);
    PyErr_Restore(kind, value, traceback);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyObject *
Stream_tp_repr(PyObject *op)
{
    StreamObject *self = (StreamObject *)op;
    return PyUnicode_FromFormat(
        "<gpumem.Stream %llu on %s%s>", (unsigned long long)self->handle,
        self->device->device->info.name, self->closed ? ", closed" : "");
}

static PyObject *
Stream_tp_richcompare(PyObject *left, PyObject *right, int operation)
{
    if ((operation != Py_EQ && operation != Py_NE) ||
        !Py_IS_TYPE(right, Py_TYPE(left))) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    StreamObject *a = (StreamObject *)left, *b = (StreamObject *)right;
    bool equal =
        a->handle == b->handle && same_device(a->device->device, b->device->device);
    return PyBool_FromLong(equal == (operation == Py_EQ));
}

static Py_hash_t
Stream_tp_hash(PyObject *op)
{
    Py_hash_t hash = (Py_hash_t)((StreamObject *)op)->handle;
    return hash == -1 ? -2 : hash;
}

/* ---- Stream: use ------------------------------------------------------------------------- */

/* 0 when work may be put on the stream, else -1 with an exception. */
static int
stream_require(core_state *state, StreamObject *self, const char *what)
{
    if (self->closed) {
        PyErr_SetString(PyExc_ValueError, "the stream is closed");
        return -1;
    }
    return require_usable(state, self->device->device, what);
}

static PyObject *
Stream_get_device(PyObject *op, void *Py_UNUSED(closure))
{
    return Py_NewRef((PyObject *)((StreamObject *)op)->device);
}

static PyObject *
Stream_get_handle(PyObject *op, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(((StreamObject *)op)->handle);
}

static PyObject *
Stream_synchronize(PyObject *op, PyObject *args, PyObject *kwargs)
{
    StreamObject *self = (StreamObject *)op;
    core_state *state = state_of(op);
    if (stream_require(state, self, "wait for a stream") < 0) {
        return NULL;
    }
    return wait_method(state, self->device, self->handle, 0, args, kwargs);
}

static PyObject *
Stream_wait(PyObject *op, PyObject *event_object)
{
    StreamObject *self = (StreamObject *)op;
    core_state *state = state_of(op);
    if (!Py_IS_TYPE(event_object, state->Event_Type)) {
        PyErr_Format(PyExc_TypeError, "event must be an Event, not %.100s",
                     Py_TYPE(event_object)->tp_name);
        return NULL;
    }
    EventObject *event = (EventObject *)event_object;
    gm_device *device = self->device->device;
    if (!same_device(event->device->device, device)) {
        PyErr_SetString(PyExc_ValueError, "the event belongs to another device");
        return NULL;
    }
    if (stream_require(state, self, "let a stream wait") < 0) {
        return NULL;
    }
    gm_status status = device->ops->stream_wait(device, self->handle, event->event);
    if (status != GM_OK) {
        return set_status_error(state, status, "let a stream wait");
    }
    Py_RETURN_NONE;
}

static PyObject *
Stream_record(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"event", NULL};
    StreamObject *self = (StreamObject *)op;
    core_state *state = state_of(op);
    PyObject *event = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:record", names, &event) ||
        stream_require(state, self, "record an event") < 0) {
        return NULL;
    }
    if (event == Py_None) {
        event = event_make(state, self->device);
    }
    else if (!Py_IS_TYPE(event, state->Event_Type)) {
        PyErr_Format(PyExc_TypeError, "event must be an Event or None, not %.100s",
                     Py_TYPE(event)->tp_name);
        return NULL;
    }
    else if (!same_device(((EventObject *)event)->device->device,
                          self->device->device)) {
        PyErr_SetString(PyExc_ValueError, "the event belongs to another device");
        return NULL;
    }
    else {
        Py_INCREF(event);
    }
    if (event != NULL &&
        event_record_on(state, (EventObject *)event, self->handle) < 0) {
        Py_CLEAR(event);
    }
    return event;
}

/* The host device behind the stream, or NULL with an exception. Borrowed. */
static gm_device *
stream_host(core_state *state, StreamObject *self, const char *method)
{
    gm_device *inner = gm_fault_inner(self->device->device);
    if (inner->info.kind != GM_DEVICE_HOST) {
        PyErr_Format(PyExc_ValueError, "%s is for streams of host devices, not of %s",
                     method, inner->info.name);
        return NULL;
    }
    return stream_require(state, self, "hold back work") < 0 ? NULL : inner;
}

static PyObject *
Stream_stall(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    StreamObject *self = (StreamObject *)op;
    core_state *state = state_of(op);
    gm_device *host = stream_host(state, self, "stall()");
    if (host == NULL) {
        return NULL;
    }
    gm_status status = gm_host_stall(host, self->handle);
    if (status != GM_OK) {
        return set_status_error(state, status, "stall a stream");
    }
    Py_RETURN_NONE;
}

static PyObject *
Stream_release(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"count", NULL};
    StreamObject *self = (StreamObject *)op;
    core_state *state = state_of(op);
    PyObject *count_object = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:release", names,
                                     &count_object)) {
        return NULL;
    }
    size_t count = SIZE_MAX, ran = 0;
    gm_device *host = stream_host(state, self, "release()");
    if (host == NULL ||
        (count_object != Py_None && parse_count(count_object, "count", &count) < 0)) {
        return NULL;
    }
    gm_status status;
    Py_BEGIN_ALLOW_THREADS
    status = gm_host_release_work(host, self->handle, count, &ran);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        return set_status_error(state, status, "release a stream's work");
    }
    return PyLong_FromSize_t(ran);
}

static PyObject *
Stream_get_waiting(PyObject *op, void *Py_UNUSED(closure))
{
    StreamObject *self = (StreamObject *)op;
    core_state *state = state_of(op);
    gm_device *host = stream_host(state, self, "waiting");
    size_t waiting = 0;
    if (host == NULL) {
        return NULL;
    }
    gm_status status = gm_host_waiting_work(host, self->handle, &waiting);
    if (status != GM_OK) {
        return set_status_error(state, status, "count a stream's work");
    }
    return PyLong_FromSize_t(waiting);
}

static PyObject *
Stream_close(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    StreamObject *self = (StreamObject *)op;
    if (!self->owned) {
        PyErr_SetString(PyExc_ValueError,
                        "the stream was not made here, so it is not closed here; tell "
                        "pools of its end by Pool.stream_retired()");
        return NULL;
    }
    gm_status status = stream_close(self);
    if (status != GM_OK) {
        return set_status_error(state_of(op), status, "destroy a stream");
    }
    Py_RETURN_NONE;
}

/* For other libraries; see parse_stream. */
static PyObject *
Stream_cuda_stream(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    const StreamObject *self = (StreamObject *)op;
    const gm_device_info *info = &self->device->device->info;
    if (info->kind != GM_DEVICE_CUDA) {
        return PyErr_Format(PyExc_TypeError, "a stream of %s is no CUDA stream",
                            info->name);
    }
    return Py_BuildValue("(iK)", 0, (unsigned long long)self->handle);
}

static PyObject *
Stream_enter(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    if (stream_require(state_of(op), (StreamObject *)op, "use a stream") < 0) {
        return NULL;
    }
    return Py_NewRef(op);
}

static PyObject *
Stream_exit(PyObject *op, PyObject *Py_UNUSED(args))
{
    if (!((StreamObject *)op)->owned) {
        Py_RETURN_NONE;
    }
    return Stream_close(op, NULL);
}

static PyGetSetDef Stream_getset[] = {
    {"device", Stream_get_device, NULL, "The device that runs its work.", NULL},
    {"handle", Stream_get_handle, NULL, "Its number; 0 is the default stream.", NULL},
    {"waiting", Stream_get_waiting, NULL,
     "Pieces of work that wait in its queue (host devices).", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef Stream_methods[] = {
    {"synchronize", (PyCFunction)(void (*)(void))Stream_synchronize,
     METH_VARARGS | METH_KEYWORDS,
     "synchronize($self, /, timeout=None)\n--\n\n"
     "Waits for all work on the stream, at most timeout seconds; False when the time\n"
     "was over first. Without the GIL."},
    {"wait", Stream_wait, METH_O,
     "wait($self, event, /)\n--\n\nLater work on this stream starts after the event."},
    {"record", (PyCFunction)(void (*)(void))Stream_record, METH_VARARGS | METH_KEYWORDS,
     "record($self, /, event=None)\n--\n\n"
     "Marks the stream's work with the event, or with a new one, and returns it."},
    {"stall", Stream_stall, METH_NOARGS,
     "stall($self, /)\n--\n\nFrom now on work waits in the queue (host devices)."},
    {"release", (PyCFunction)(void (*)(void))Stream_release,
     METH_VARARGS | METH_KEYWORDS,
     "release($self, /, count=None)\n--\n\n"
     "Lets count pieces of waiting work run, None: all, and ends the stall. Returns "
     "how\n"
     "many ran."},
    {"close", Stream_close, METH_NOARGS,
     "close($self, /)\n--\n\n"
     "Destroys the stream; its pools hand its memory on once its work is done."},
    {"__cuda_stream__", Stream_cuda_stream, METH_NOARGS,
     "__cuda_stream__($self, /)\n--\n\n(0, handle), for other libraries (CUDA)."},
    {"__enter__", Stream_enter, METH_NOARGS, NULL},
    {"__exit__", Stream_exit, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef Stream_members[] = {
    {"__weaklistoffset__", Py_T_PYSSIZET, offsetof(StreamObject, weakrefs), Py_READONLY,
     NULL},
    {NULL, 0, 0, 0, NULL},
};

static char Stream_doc[] =
    "Stream(device, handle=None)\n--\n\n"
    "An ordered queue of a device's work. Without a handle a new stream is made, "
    "which\n"
    "close() or the object's end destroys; a handle names one that somebody else owns\n"
    "(0 is the default stream).";

static PyType_Slot Stream_slots[] = {
    {Py_tp_doc, Stream_doc},
    {Py_tp_new, Stream_tp_new},
    {Py_tp_traverse, Stream_tp_traverse},
    {Py_tp_dealloc, Stream_tp_dealloc},
    {Py_tp_repr, Stream_tp_repr},
    {Py_tp_richcompare, Stream_tp_richcompare},
    {Py_tp_hash, Stream_tp_hash},
    {Py_tp_getset, Stream_getset},
    {Py_tp_methods, Stream_methods},
    {Py_tp_members, Stream_members},
    {0, NULL},
};

static PyType_Spec Stream_spec = {
    .name = "gpumem.Stream",
    .basicsize = sizeof(StreamObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = Stream_slots,
};

int
stream_init(PyObject *module, core_state *state)
{
    if (event_init(module, state) < 0) {
        return -1;
    }
    state->Stream_Type =
        (PyTypeObject *)PyType_FromModuleAndSpec(module, &Stream_spec, NULL);
    if (state->Stream_Type == NULL) {
        return -1;
    }
    return PyModule_AddType(module, state->Stream_Type);
}
