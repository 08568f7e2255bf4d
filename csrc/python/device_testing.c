/* device_testing.c - the switches of a device that tests use: somebody else's memory,
 * failing calls, the clock, a capture, the lag of the sim device, the checker's report.
 *
 * A switch that the device does not have is a ValueError that says which device has
 * it; nothing is ignored.
 */
#include "python/device_testing.h"

#include <stdlib.h>
#include <string.h>

#include "device/checker_device.h"
#include "device/fault.h"
#include "device/host.h"
#include "device/sim.h"

/* The plain device of this kind, or NULL with ValueError. Borrowed. */
static gm_device *
require_kind(PyObject *op, gm_device_kind kind, const char *method)
{
    gm_device *inner = gm_fault_inner(((DeviceObject *)op)->device);
    if (inner->info.kind != kind) {
        PyErr_Format(PyExc_ValueError, "%s() is for %s devices, this is %s", method,
                     kind == GM_DEVICE_HOST ? "host" : "sim", inner->info.name);
        return NULL;
    }
    return inner;
}

/* The fault device, or NULL with ValueError. Borrowed. */
static gm_device *
require_faults(PyObject *op, const char *method)
{
    gm_device *device = ((DeviceObject *)op)->device;
    if (gm_fault_inner(device) == device) {
        PyErr_Format(PyExc_ValueError,
                     "%s() needs a device made by with_faults(), this is plain %s",
                     method, device->info.name);
        return NULL;
    }
    return device;
}

/* ---- host devices ----------------------------------------------------------------------- */

PyObject *
Device_occupy(PyObject *op, PyObject *nbytes)
{
    core_state *state = state_of(op);
    gm_device *host = require_kind(op, GM_DEVICE_HOST, "occupy");
    size_t bytes;
    if (host == NULL || parse_size(state, nbytes, "nbytes", &bytes) < 0) {
        return NULL;
    }
    gm_status status = gm_host_occupy(host, bytes);
    if (status != GM_OK) {
        return set_status_error(state, status, "occupy the device's memory");
    }
    Py_RETURN_NONE;
}

PyObject *
Device_set_reported_free(PyObject *op, PyObject *nbytes)
{
    gm_device *host = require_kind(op, GM_DEVICE_HOST, "set_reported_free");
    size_t bytes = SIZE_MAX;
    if (host == NULL ||
        (nbytes != Py_None && parse_size(state_of(op), nbytes, "nbytes", &bytes) < 0)) {
        return NULL;
    }
    gm_host_set_reported_free(host, bytes);
    Py_RETURN_NONE;
}

PyObject *
Device_advance(PyObject *op, PyObject *seconds)
{
    gm_device *host = require_kind(op, GM_DEVICE_HOST, "advance");
    uint64_t nanoseconds;
    if (host == NULL) {
        return NULL;
    }
    if (!((DeviceObject *)op)->manual_clock) {
        PyErr_SetString(PyExc_ValueError,
                        "advance() needs a device opened with manual_clock=True");
        return NULL;
    }
    if (seconds == Py_None) {
        PyErr_SetString(PyExc_TypeError, "seconds must be a number, not None");
        return NULL;
    }
    if (parse_seconds(seconds, "seconds", &nanoseconds) < 0) {
        return NULL;
    }
    gm_host_advance(host, nanoseconds);
    Py_RETURN_NONE;
}

PyObject *
Device_set_capturing(PyObject *op, PyObject *args)
{
    core_state *state = state_of(op);
    PyObject *stream_object;
    int capturing;
    gm_device *host = require_kind(op, GM_DEVICE_HOST, "set_capturing");
    gm_stream stream;
    if (host == NULL ||
        !PyArg_ParseTuple(args, "Op:set_capturing", &stream_object, &capturing) ||
        parse_stream(state, stream_object, host, GM_DEFAULT_STREAM, &stream) < 0) {
        return NULL;
    }
    gm_status status = gm_host_set_capturing(host, stream, capturing);
    if (status != GM_OK) {
        return set_status_error(state, status, "mark the stream as capturing");
    }
    Py_RETURN_NONE;
}

/* ---- faults ------------------------------------------------------------------------------ */

PyObject *
Device_with_faults(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    core_state *state = state_of(op);
    DeviceObject *self = (DeviceObject *)op;
    gm_device *faulty = NULL;
    gm_status status = gm_fault_create(self->device, &faulty);
    if (status != GM_OK) {
        return set_status_error(state, status, "wrap the device");
    }
    return device_wrap(state, faulty, self->manual_clock);
}

/* The number of a call kind; -1 for None; -2 with ValueError that names all kinds. */
static int
parse_call(PyObject *call)
{
    if (call == Py_None) {
        return -1;
    }
    const char *name = PyUnicode_Check(call) ? PyUnicode_AsUTF8(call) : NULL;
    if (name == NULL) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "call must be a str or None");
        }
        return -2;
    }
    for (int i = 0; i < GM_CALL_COUNT; i++) {
        if (strcmp(name, gm_device_call_name((gm_device_call)i)) == 0) {
            return i;
        }
    }
    PyErr_Format(PyExc_ValueError,
                 "unknown call %R: use None or a name of counters(), such as "
                 "'page_create'",
                 call);
    return -2;
}

/* GM_STATUS_COUNT with ValueError when no failure has this name. */
static gm_status
parse_status(const char *name)
{
    for (int i = 0; i < GM_STATUS_COUNT; i++) {
        if (i != GM_OK && strcmp(name, gm_status_name((gm_status)i)) == 0) {
            return (gm_status)i;
        }
    }
    PyErr_Format(PyExc_ValueError,
                 "unknown status '%s': use 'out of memory', 'device error', "
                 "'device lost', 'no address space', 'no mapping', ...",
                 name);
    return GM_STATUS_COUNT;
}

const char Device_arm_fault_doc[] =
    "arm_fault($self, /, call, nth, *, for_ever=False, status='out of memory',\n"
    "          delay=0.0)\n"
    "--\n\n"
    "Makes the nth call of a kind from now on fail with `status`.\n\n"
    "call is a name of counters(), None counts calls of every kind together. nth 1 is\n"
    "the next such call, 0 none. for_ever: all later ones fail, too. delay: every "
    "such\n"
    "call first sleeps that many seconds.";

PyObject *
Device_arm_fault(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"call", "nth", "for_ever", "status", "delay", NULL};
    PyObject *call, *nth_object, *delay = NULL;
    int for_ever = 0;
    const char *status = "out of memory";
    size_t nth;
    gm_fault_plan plan = {0};
    gm_device *faulty = require_faults(op, "arm_fault");
    if (faulty == NULL ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$psO:arm_fault", names, &call,
                                     &nth_object, &for_ever, &status, &delay) ||
        (plan.call = parse_call(call)) == -2 ||
        parse_count(nth_object, "nth", &nth) < 0 ||
        (plan.status = parse_status(status)) == GM_STATUS_COUNT ||
        (delay != NULL && parse_seconds(delay, "delay", &plan.delay_ns) < 0)) {
        return NULL;
    }
    plan.nth = nth;
    plan.for_ever = for_ever;
    gm_fault_arm(faulty, &plan);
    Py_RETURN_NONE;
}

PyObject *
Device_disarm_fault(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    gm_device *faulty = require_faults(op, "disarm_fault");
    if (faulty == NULL) {
        return NULL;
    }
    gm_fault_arm(faulty, NULL);
    Py_RETURN_NONE;
}

PyObject *
Device_get_faults_injected(PyObject *op, void *Py_UNUSED(closure))
{
    gm_device *device = ((DeviceObject *)op)->device;
    if (gm_fault_inner(device) == device) {
        return PyLong_FromLong(0);
    }
    return PyLong_FromUnsignedLongLong(gm_fault_injected(device));
}

PyObject *
Device_record_calls(PyObject *op, PyObject *limit_object)
{
    gm_device *faulty = require_faults(op, "record_calls");
    size_t limit;
    if (faulty == NULL || parse_count(limit_object, "limit", &limit) < 0) {
        return NULL;
    }
    gm_status status = gm_fault_record(faulty, limit);
    if (status != GM_OK) {
        return set_status_error(state_of(op), status, "record the device's calls");
    }
    Py_RETURN_NONE;
}

PyObject *
Device_recorded_calls(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    gm_device *faulty = require_faults(op, "recorded_calls");
    if (faulty == NULL) {
        return NULL;
    }
    size_t capacity = gm_fault_recorded(faulty, NULL, 0);
    gm_device_call *calls = PyMem_Calloc(capacity + 1, sizeof(*calls));
    if (calls == NULL) {
        return PyErr_NoMemory();
    }
    size_t count = gm_fault_recorded(faulty, calls, capacity);
    count = count < capacity ? count : capacity;
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; i < count && list != NULL; i++) {
        PyObject *name = PyUnicode_FromString(gm_device_call_name(calls[i]));
        if (name == NULL) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, (Py_ssize_t)i, name);
    }
    PyMem_Free(calls);
    return list;
}

/* ---- the sim device ---------------------------------------------------------------------- */

PyObject *
Device_set_lag(PyObject *op, PyObject *operations)
{
    gm_device *sim = require_kind(op, GM_DEVICE_SIM, "set_lag");
    size_t lag;
    if (sim == NULL || parse_count(operations, "operations", &lag) < 0) {
        return NULL;
    }
    gm_sim_set_lag(sim, lag);
    Py_RETURN_NONE;
}

PyObject *
Device_tick(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    gm_device *sim = require_kind(op, GM_DEVICE_SIM, "tick");
    if (sim == NULL) {
        return NULL;
    }
    gm_sim_tick(sim);
    Py_RETURN_NONE;
}

PyObject *
Device_get_host_waits(PyObject *op, void *Py_UNUSED(closure))
{
    gm_device *sim = require_kind(op, GM_DEVICE_SIM, "host_waits");
    if (sim == NULL) {
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(gm_sim_host_waits(sim));
}

/* ---- checked devices -------------------------------------------------------------------- */

PyObject *
Device_violations(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    gm_device *device = ((DeviceObject *)op)->device;
    char text[GM_CHECKER_TEXT_SIZE];
    if (!gm_device_is_checked(device)) {
        return PyErr_Format(PyExc_ValueError,
                            "violations() is for devices opened with checked=True, "
                            "this is plain %s",
                            device->info.name);
    }
    uint64_t count = gm_device_violations(device, text, sizeof(text));
    return Py_BuildValue("Ks", (unsigned long long)count, text);
}
