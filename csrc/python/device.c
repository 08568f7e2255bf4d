/* device.c - the Device type: what a device is, what it has left, what it counted.
 *
 * The switches that tests use (somebody else's memory, failing calls, the clock) are
 * in device_testing.c. Two Device objects are equal when they stand for the same
 * device, with or without a fault plan before it.
 */
#include "python/device_testing.h"

#include "python/device_cuda.h"

#include <stdlib.h>

#include "base/process.h"
#include "device/fault.h"
#include "device/host.h"
#include "device/sim.h"

int
require_usable(core_state *state, gm_device *device, const char *what)
{
    gm_status status = gm_device_usable(device);
    if (status != GM_OK) {
        set_status_error(state, status, what);
        return -1;
    }
    return 0;
}

PyObject *
device_wrap(core_state *state, gm_device *device, bool manual_clock)
{
    PyTypeObject *type = state->Device_Type;
    DeviceObject *self = (DeviceObject *)type->tp_alloc(type, 0);
    if (self == NULL) {
        gm_device_release(device);
        return NULL;
    }
    self->device = device;
    self->manual_clock = manual_clock;
    state->live_devices++;
    return (PyObject *)self;
}

static int
Device_tp_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static void
Device_tp_dealloc(PyObject *op)
{
    DeviceObject *self = (DeviceObject *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    PyObject *kind, *value, *traceback;
    PyErr_Fetch(&kind, &value, &traceback);
    core_state *state = state_of_dying(op);
    if (state != NULL) {
        state->live_devices--;
    }
    pinned_forget(self);
    gm_device_release(self->device);
    PyErr_Restore(kind, value, traceback);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyObject *
Device_tp_repr(PyObject *op)
{
    const gm_device_info *info = &((DeviceObject *)op)->device->info;
    return PyUnicode_FromFormat("<gpumem.Device %s, %zu bytes, pages of %zu>",
                                info->name, info->total, info->page_size);
}

static PyObject *
Device_tp_richcompare(PyObject *left, PyObject *right, int operation)
{
    if ((operation != Py_EQ && operation != Py_NE) ||
        !Py_IS_TYPE(right, Py_TYPE(left))) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    bool equal =
        same_device(((DeviceObject *)left)->device, ((DeviceObject *)right)->device);
    return PyBool_FromLong(equal == (operation == Py_EQ));
}

static Py_hash_t
Device_tp_hash(PyObject *op)
{
    uintptr_t address = (uintptr_t)gm_fault_inner(((DeviceObject *)op)->device);
    return (Py_hash_t)(address >> 4);
}

/* ---- properties ------------------------------------------------------------------------ */

static PyObject *
Device_get_name(PyObject *op, void *Py_UNUSED(closure))
{
    return PyUnicode_FromString(((DeviceObject *)op)->device->info.name);
}

static PyObject *
Device_get_kind(PyObject *op, void *Py_UNUSED(closure))
{
    static const char *const names[] = {
        [GM_DEVICE_HOST] = "host", [GM_DEVICE_SIM] = "sim", [GM_DEVICE_CUDA] = "cuda"};
    return PyUnicode_FromString(names[((DeviceObject *)op)->device->info.kind]);
}

static PyObject *
Device_get_index(PyObject *op, void *Py_UNUSED(closure))
{
    return PyLong_FromLong(((DeviceObject *)op)->device->info.index);
}

static PyObject *
Device_get_total(PyObject *op, void *Py_UNUSED(closure))
{
    return PyLong_FromSize_t(((DeviceObject *)op)->device->info.total);
}

static PyObject *
Device_get_page_size(PyObject *op, void *Py_UNUSED(closure))
{
    if (device_prepare(op) < 0) {
        return NULL;
    }
    return PyLong_FromSize_t(((DeviceObject *)op)->device->info.page_size);
}

static PyObject *
Device_get_paging(PyObject *op, void *Py_UNUSED(closure))
{
    if (device_prepare(op) < 0) {
        return NULL;
    }
    return PyBool_FromLong(gm_device_has(((DeviceObject *)op)->device, GM_CAP_PAGING));
}

static PyObject *
Device_get_aliasing(PyObject *op, void *Py_UNUSED(closure))
{
    if (device_prepare(op) < 0) {
        return NULL;
    }
    return PyBool_FromLong(
        gm_device_has(((DeviceObject *)op)->device, GM_CAP_ALIASING));
}

static PyObject *
Device_get_host_accessible(PyObject *op, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(
        gm_device_has(((DeviceObject *)op)->device, GM_CAP_HOST_ACCESS));
}

/* ---- questions --------------------------------------------------------------------------- */

static PyObject *
Device_memory_info(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    core_state *state = state_of(op);
    gm_device *device = ((DeviceObject *)op)->device;
    if (require_usable(state, device, "ask the device for its memory") < 0) {
        return NULL;
    }
    size_t free_bytes = 0, total = 0;
    gm_status status;
    Py_BEGIN_ALLOW_THREADS
    status = device->ops->memory_info(device, &free_bytes, &total);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        return set_status_error(state, status, "ask the device for its memory");
    }
    return Py_BuildValue("nn", (Py_ssize_t)free_bytes, (Py_ssize_t)total);
}

static int
set_count(PyObject *dict, const char *name, uint64_t value)
{
    PyObject *number = PyLong_FromUnsignedLongLong(value);
    if (number == NULL) {
        return -1;
    }
    int result = PyDict_SetItemString(dict, name, number);
    Py_DECREF(number);
    return result;
}

static PyObject *
Device_counters(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    gm_device *device = ((DeviceObject *)op)->device;
    gm_device_counters counters;
    device->ops->counters(device, &counters);
    PyObject *dict = PyDict_New();
    if (dict == NULL) {
        return NULL;
    }
    for (int call = 0; call < GM_CALL_COUNT; call++) {
        if (set_count(dict, gm_device_call_name((gm_device_call)call),
                      counters.calls[call]) < 0) {
            goto fail;
        }
    }
    if (set_count(dict, "memory_now", counters.memory_now) < 0 ||
        set_count(dict, "memory_peak", counters.memory_peak) < 0 ||
        set_count(dict, "pinned_now", counters.pinned_now) < 0 ||
        set_count(dict, "mapped_now", counters.mapped_now) < 0 ||
        set_count(dict, "address_now", counters.address_now) < 0) {
        goto fail;
    }
    return dict;
fail:
    Py_DECREF(dict);
    return NULL;
}

/* ---- synchronize ------------------------------------------------------------------------- */

typedef struct stream_set {
    gm_device *device;
    gm_stream *items;
    size_t count;
    size_t capacity;
    bool failed;
} stream_set;

static void
stream_set_add(stream_set *set, gm_stream stream)
{
    for (size_t i = 0; i < set->count; i++) {
        if (set->items[i] == stream) {
            return;
        }
    }
    if (set->count == set->capacity) {
        size_t capacity = set->capacity == 0 ? 8 : set->capacity * 2;
        gm_stream *items = realloc(set->items, capacity * sizeof(*items));
        if (items == NULL) {
            set->failed = true;
            return;
        }
        set->items = items;
        set->capacity = capacity;
    }
    set->items[set->count++] = stream;
}

/* A gm_pools_visit visitor: the streams on which a pool of the device has memory. */
static void
stream_set_add_pool(gm_pool *pool, void *argument)
{
    stream_set *set = argument;
    gm_pool_view view;
    if (!same_device(gm_pool_device(pool), set->device)) {
        return;
    }
    if (gm_pool_view_create(pool, &view) != GM_OK) {
        set->failed = true;
        return;
    }
    for (size_t i = 0; i < view.segment_count; i++) {
        stream_set_add(set, view.segments[i].stream);
    }
    gm_pool_view_destroy(&view);
}

static PyObject *
Device_synchronize(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    core_state *state = state_of(op);
    gm_device *device = ((DeviceObject *)op)->device;
    if (require_usable(state, device, "synchronize the device") < 0) {
        return NULL;
    }
    stream_set set = {.device = device};
    stream_set_add(&set, GM_DEFAULT_STREAM);
    GM_LIST_FOREACH(link, &state->streams) {
        StreamObject *stream = GM_CONTAINER_OF(link, StreamObject, link);
        if (!stream->closed && same_device(stream->device->device, device)) {
            stream_set_add(&set, stream->handle);
        }
    }
    Py_BEGIN_ALLOW_THREADS
    gm_pools_visit(stream_set_add_pool, &set);
    Py_END_ALLOW_THREADS
    int result = set.failed ? -1 : 1;
    if (set.failed) {
        PyErr_NoMemory();
    }
    for (size_t i = 0; i < set.count && result >= 0; i++) {
        result = wait_for_stream(state, device, set.items[i], UINT64_MAX);
        if (result < 0 && PyErr_ExceptionMatches(PyExc_ValueError)) {
            PyErr_Clear(); /* a stream that was destroyed since */
            result = 1;
        }
    }
    free(set.items);
    if (result < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* ---- opening ----------------------------------------------------------------------------- */

static int
check_index(int index)
{
    if (index < 0 || index > 9999) {
        PyErr_Format(PyExc_ValueError, "index must be from 0 to 9999, not %d", index);
        return -1;
    }
    return 0;
}

static int
check_page_size(size_t page_size)
{
    if (page_size != 0 && (page_size < 4096 || (page_size & (page_size - 1)) != 0)) {
        PyErr_Format(PyExc_ValueError,
                     "page_size must be 0 (2 MiB) or a power of two from 4096 on, "
                     "not %zu",
                     page_size);
        return -1;
    }
    return 0;
}

/* New reference, or NULL with the exception for `status`. */
static PyObject *
finish_open(core_state *state, gm_status status, gm_device *device, bool manual_clock,
            const char *what)
{
    if (status != GM_OK) {
        return set_status_error(state, status, what);
    }
    return device_wrap(state, device, manual_clock);
}

PyDoc_STRVAR(
    open_host_doc,
    "open_host($module, /, index, capacity, *, page_size=0, paging=True,\n"
    "          aliasing=True, delayed=False, manual_clock=False, shared=None,\n"
    "          checked=False)\n"
    "--\n\n"
    "A device in this machine's memory with the manners of a GPU.\n\n"
    "capacity and page_size are bytes; page_size 0 means 2 MiB. delayed: streams "
    "start\n"
    "stalled. manual_clock: time moves by advance() alone. shared: processes that "
    "name\n"
    "the same text share the capacity. checked: violations() says where memory was\n"
    "reused without an edge.");

static PyObject *
open_host(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"index",    "capacity", "page_size",    "paging",
                            "aliasing", "delayed",  "manual_clock", "shared",
                            "checked",  NULL};
    core_state *state = state_of_module(module);
    PyObject *capacity, *page_size = NULL;
    int paging = 1, aliasing = 1, delayed = 0, manual_clock = 0, checked = 0;
    gm_host_options options = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iO|$Oppppzp:open_host", names,
                                     &options.index, &capacity, &page_size, &paging,
                                     &aliasing, &delayed, &manual_clock,
                                     &options.shared_name, &checked) ||
        check_index(options.index) < 0 ||
        parse_size(state, capacity, "capacity", &options.capacity) < 0 ||
        (page_size != NULL &&
         parse_size(state, page_size, "page_size", &options.page_size) < 0) ||
        check_page_size(options.page_size) < 0) {
        return NULL;
    }
    if (options.capacity == 0) {
        PyErr_SetString(PyExc_ValueError, "capacity must be above 0 bytes");
        return NULL;
    }
    options.paging = paging;
    options.aliasing = aliasing && paging;
    options.delayed = delayed;
    options.manual_clock = manual_clock;
    options.checked = checked;
    gm_device *device = NULL;
    gm_status status;
    gm_process_init();
    Py_BEGIN_ALLOW_THREADS
    status = gm_host_create(&options, &device);
    Py_END_ALLOW_THREADS
    return finish_open(state, status, device, manual_clock, "open a host device");
}

PyDoc_STRVAR(
    open_sim_doc,
    "open_sim($module, /, index, capacity, *, page_size=0, paging=True,\n"
    "         aliasing=True, lag=0, checked=False)\n"
    "--\n\n"
    "A device with addresses and no memory, for measurements.\n\n"
    "capacity is in bytes, None means unlimited. lag: an event is done that many\n"
    "operations after it was recorded. checked: violations() says where memory was\n"
    "reused without an edge.");

static PyObject *
open_sim(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"index",    "capacity", "page_size", "paging",
                            "aliasing", "lag",      "checked",   NULL};
    core_state *state = state_of_module(module);
    PyObject *capacity, *page_size = NULL, *lag_object = NULL;
    int paging = 1, aliasing = 1, checked = 0;
    size_t lag = 0;
    gm_sim_options options = {.capacity = SIZE_MAX};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iO|$OppOp:open_sim", names,
                                     &options.index, &capacity, &page_size, &paging,
                                     &aliasing, &lag_object, &checked) ||
        check_index(options.index) < 0 ||
        (capacity != Py_None &&
         parse_size(state, capacity, "capacity", &options.capacity) < 0) ||
        (page_size != NULL &&
         parse_size(state, page_size, "page_size", &options.page_size) < 0) ||
        (lag_object != NULL && parse_count(lag_object, "lag", &lag) < 0) ||
        check_page_size(options.page_size) < 0) {
        return NULL;
    }
    if (options.capacity == 0) {
        PyErr_SetString(PyExc_ValueError, "capacity must be above 0 bytes, or None");
        return NULL;
    }
    options.paging = paging;
    options.aliasing = aliasing && paging;
    options.lag = lag;
    options.checked = checked;
    gm_device *device = NULL;
    gm_process_init();
    gm_status status = gm_sim_create(&options, &device);
    return finish_open(state, status, device, false, "open a sim device");
}

PyMethodDef device_functions[] = {
    {"open_host", (PyCFunction)(void (*)(void))open_host, METH_VARARGS | METH_KEYWORDS,
     open_host_doc},
    {"open_sim", (PyCFunction)(void (*)(void))open_sim, METH_VARARGS | METH_KEYWORDS,
     open_sim_doc},
    {NULL, NULL, 0, NULL},
};

/* ---- the type ---------------------------------------------------------------------------- */

static PyGetSetDef Device_getset[] = {
    {"name", Device_get_name, NULL, "The device's name, such as 'host:0'.", NULL},
    {"kind", Device_get_kind, NULL, "'host', 'sim' or 'cuda'.", NULL},
    {"index", Device_get_index, NULL, "Its number among the devices of its kind.",
     NULL},
    {"total", Device_get_total, NULL, "Bytes of memory.", NULL},
    {"page_size", Device_get_page_size, NULL, "Bytes of one page; 0 without paging.",
     NULL},
    {"paging", Device_get_paging, NULL, "Whether it maps pages on demand.", NULL},
    {"aliasing", Device_get_aliasing, NULL,
     "Whether one page may be mapped at two addresses at once.", NULL},
    {"host_accessible", Device_get_host_accessible, NULL,
     "Whether the host reads and writes its memory directly.", NULL},
    {"faults_injected", Device_get_faults_injected, NULL,
     "How many calls were made to fail since arm_fault().", NULL},
    {"host_waits", Device_get_host_waits, NULL,
     "How often somebody waited for unfinished work (sim devices).", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef Device_methods[] = {
    {"memory_info", Device_memory_info, METH_NOARGS,
     "memory_info($self, /)\n--\n\n(free, total) bytes, as the device says."},
    {"counters", Device_counters, METH_NOARGS,
     "counters($self, /)\n--\n\n"
     "The device's own counters: calls by kind, and bytes in use now."},
    {"synchronize", Device_synchronize, METH_NOARGS,
     "synchronize($self, /)\n--\n\n"
     "Waits, without the GIL, for the work on every stream that gpumem knows of."},
    {"enable_peer", Device_enable_peer, METH_O,
     "enable_peer($self, peer, /)\n--\n\n"
     "The other CUDA device may read and write this one's memory, now and later."},
    {"describe", Device_describe, METH_NOARGS, Device_describe_doc},
    {"occupy", Device_occupy, METH_O,
     "occupy($self, nbytes, /)\n--\n\n"
     "Somebody else holds this many bytes of the device, in all (host devices)."},
    {"set_reported_free", Device_set_reported_free, METH_O,
     "set_reported_free($self, nbytes, /)\n--\n\n"
     "memory_info() answers this many free bytes; None: the truth (host devices)."},
    {"advance", Device_advance, METH_O,
     "advance($self, seconds, /)\n--\n\nMoves a manual clock (host devices)."},
    {"set_capturing", Device_set_capturing, METH_VARARGS,
     "set_capturing($self, stream, capturing, /)\n--\n\n"
     "The stream says that it captures a graph (host devices)."},
    {"with_faults", Device_with_faults, METH_NOARGS,
     "with_faults($self, /)\n--\n\nThe same device behind a fault plan."},
    {"arm_fault", (PyCFunction)(void (*)(void))Device_arm_fault,
     METH_VARARGS | METH_KEYWORDS, Device_arm_fault_doc},
    {"disarm_fault", Device_disarm_fault, METH_NOARGS,
     "disarm_fault($self, /)\n--\n\nNo call is made to fail any more."},
    {"record_calls", Device_record_calls, METH_O,
     "record_calls($self, limit, /)\n--\n\n"
     "Writes down the kinds of the newest `limit` calls from now on; 0 stops."},
    {"recorded_calls", Device_recorded_calls, METH_NOARGS,
     "recorded_calls($self, /)\n--\n\nThe kinds written down, oldest first."},
    {"set_lag", Device_set_lag, METH_O,
     "set_lag($self, operations, /)\n--\n\n"
     "Events recorded from now on are done that many operations later (sim)."},
    {"tick", Device_tick, METH_NOARGS,
     "tick($self, /)\n--\n\nOne more operation of the program has passed (sim)."},
    {"violations", Device_violations, METH_NOARGS,
     "violations($self, /)\n--\n\n"
     "(count, text): how often memory was reused, or a mapping removed, without an\n"
     "edge that orders it, and the first few, one in a line (checked devices)."},
    {NULL, NULL, 0, NULL},
};

static char Device_doc[] =
    "A device that memory comes from. Made by open_host(), open_sim() and "
    "open_cuda();\n"
    "two objects are equal when they stand for the same device.";

static PyType_Slot Device_slots[] = {
    {Py_tp_doc, Device_doc},
    {Py_tp_traverse, Device_tp_traverse},
    {Py_tp_dealloc, Device_tp_dealloc},
    {Py_tp_repr, Device_tp_repr},
    {Py_tp_richcompare, Device_tp_richcompare},
    {Py_tp_hash, Device_tp_hash},
    {Py_tp_getset, Device_getset},
    {Py_tp_methods, Device_methods},
    {0, NULL},
};

static PyType_Spec Device_spec = {
    .name = "gpumem.Device",
    .basicsize = sizeof(DeviceObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = Device_slots,
};

int
device_init(PyObject *module, core_state *state)
{
    state->Device_Type =
        (PyTypeObject *)PyType_FromModuleAndSpec(module, &Device_spec, NULL);
    if (state->Device_Type == NULL) {
        return -1;
    }
    return PyModule_AddType(module, state->Device_Type);
}
