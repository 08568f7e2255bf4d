/* device_cuda.c - finding CUDA, opening its devices, and what is known of one.
 *
 * Where the library may be is found by the Python layer (gpumem/cuda_runtime.py), which
 * hands paths down; what was found comes back as a dict of plain numbers and text.
 */
#include "python/device_cuda.h"

#include "base/process.h"
#include "device/cuda.h"
#include "device/fault.h"

/* ---- finding it ------------------------------------------------------------------------ */

/* New reference. */
static PyObject *
report_to_dict(const gm_cuda_report *report)
{
    return Py_BuildValue("{s:s,s:s,s:i,s:i,s:i,s:i,s:s,s:s,s:s,s:s}", "state",
                         gm_cuda_state_name(report->state), "who",
                         gm_cuda_state_who(report->state), "runtime_version",
                         report->runtime_version, "driver_version",
                         report->driver_version, "devices", report->devices, "code",
                         report->code, "name", report->name, "path", report->path,
                         "how", report->how, "message", report->message);
}

/* 0, or -1 with an exception. The texts are borrowed from `pairs`. */
static int
places_from_tuple(PyObject *pairs, gm_cuda_place *places, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        PyObject *pair = PyTuple_GET_ITEM(pairs, (Py_ssize_t)i);
        if (!PyTuple_Check(pair) ||
            !PyArg_ParseTuple(pair, "ss;a place is (path, how)", &places[i].path,
                              &places[i].how)) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_TypeError, "a place is a tuple (path, how)");
            }
            return -1;
        }
    }
    return 0;
}

PyDoc_STRVAR(
    find_cuda_doc,
    "find_cuda($module, places, /)\n"
    "--\n\n"
    "Finds the CUDA runtime unless that was done; a dict of what came of it.\n\n"
    "places is a tuple of (path, how it is known); None: ends the search with\n"
    "GPUMEM_CUDART and what the process has loaded already.");

static PyObject *
find_cuda(PyObject *Py_UNUSED(module), PyObject *pairs)
{
    gm_cuda_report report;
    gm_cuda_place places[16];
    size_t count = 0;
    if (pairs != Py_None) {
        if (!PyTuple_Check(pairs) || PyTuple_GET_SIZE(pairs) > 16) {
            PyErr_SetString(
                PyExc_TypeError,
                "places must be a tuple of at most 16 (path, how), or None");
            return NULL;
        }
        count = (size_t)PyTuple_GET_SIZE(pairs);
        if (places_from_tuple(pairs, places, count) < 0) {
            return NULL;
        }
    }
    Py_BEGIN_ALLOW_THREADS
    if (pairs == Py_None) {
        (void)gm_cuda_load_present(&report);
    }
    else {
        (void)gm_cuda_load(places, count, &report);
    }
    Py_END_ALLOW_THREADS
    return report_to_dict(&report);
}

/* ---- opening --------------------------------------------------------------------------- */

PyDoc_STRVAR(
    open_cuda_doc,
    "open_cuda($module, /, index, *, page_size=0, paging=True, aliasing=False,\n"
    "          segments='malloc')\n"
    "--\n\n"
    "A device of the CUDA runtime. Its context is made when it is first used.\n\n"
    "page_size is in bytes, a power of two and a multiple of the driver's\n"
    "granularity; 0 means that. aliasing: one page may be mapped at two\n"
    "addresses at once, if a probe sees it work. segments: 'malloc' takes whole\n"
    "segments by cudaMalloc, 'async' from the driver's pool.");

static PyObject *
open_cuda(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"index",    "page_size", "paging",
                            "aliasing", "segments",  NULL};
    core_state *state = state_of_module(module);
    PyObject *page_size = NULL;
    const char *segments = "malloc";
    int paging = 1, aliasing = 0;
    gm_cuda_options options = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "i|$Opps:open_cuda", names,
                                     &options.index, &page_size, &paging, &aliasing,
                                     &segments) ||
        (page_size != NULL &&
         parse_size(state, page_size, "page_size", &options.page_size) < 0)) {
        return NULL;
    }
    options.async_segments = strcmp(segments, "async") == 0;
    if (!options.async_segments && strcmp(segments, "malloc") != 0) {
        PyErr_Format(PyExc_ValueError, "segments must be 'malloc' or 'async', not '%s'",
                     segments);
        return NULL;
    }
    options.no_paging = !paging;
    options.aliasing = aliasing && paging;
    gm_device *device = NULL;
    gm_status status;
    gm_process_init();
    Py_BEGIN_ALLOW_THREADS
    status = gm_cuda_create(&options, &device);
    Py_END_ALLOW_THREADS
    if (status == GM_INVALID) {
        PyErr_Format(
            PyExc_ValueError,
            "cuda:%d: there is no such device, or page_size %zu is no power of "
            "two and multiple of its granularity",
            options.index, options.page_size);
        return NULL;
    }
    if (status != GM_OK) {
        return set_status_error(state, status, "open a CUDA device");
    }
    return device_wrap(state, device, false);
}

PyMethodDef cuda_functions[] = {
    {"find_cuda", find_cuda, METH_O, find_cuda_doc},
    {"open_cuda", (PyCFunction)(void (*)(void))open_cuda, METH_VARARGS | METH_KEYWORDS,
     open_cuda_doc},
    {NULL, NULL, 0, NULL},
};

/* ---- methods of Device ----------------------------------------------------------------- */

int
device_prepare(PyObject *op)
{
    gm_device *device = ((DeviceObject *)op)->device;
    gm_status status;
    if (device->ops->prepare == NULL) {
        return 0;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gm_device_prepare(device);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        set_status_error(state_of(op), status, "make the device ready");
        return -1;
    }
    return 0;
}

/* The CUDA device, or NULL with ValueError. Borrowed. */
static gm_device *
require_cuda(PyObject *op, const char *method)
{
    gm_device *inner = gm_fault_inner(((DeviceObject *)op)->device);
    if (inner->info.kind != GM_DEVICE_CUDA) {
        PyErr_Format(PyExc_ValueError, "%s() is for CUDA devices, this is %s", method,
                     inner->info.name);
        return NULL;
    }
    return inner;
}

PyObject *
Device_enable_peer(PyObject *op, PyObject *peer)
{
    core_state *state = state_of(op);
    gm_device *device = require_cuda(op, "enable_peer");
    if (device == NULL) {
        return NULL;
    }
    if (!Py_IS_TYPE(peer, state->Device_Type)) {
        PyErr_Format(PyExc_TypeError, "peer must be a Device, not %.100s",
                     Py_TYPE(peer)->tp_name);
        return NULL;
    }
    const gm_device *other = require_cuda(peer, "enable_peer");
    if (other == NULL) {
        return NULL;
    }
    gm_status status;
    Py_BEGIN_ALLOW_THREADS
    status = gm_cuda_enable_peer(device, other->info.index);
    Py_END_ALLOW_THREADS
    if (status == GM_UNSUPPORTED) {
        return PyErr_Format(state->GpumemError,
                            "%s cannot reach the memory of %s: the hardware has no way",
                            other->info.name, device->info.name);
    }
    if (status != GM_OK) {
        return set_status_error(state, status, "open the memory to a peer");
    }
    Py_RETURN_NONE;
}

/* New reference: the indexes of the set bits. */
static PyObject *
bits_to_list(uint32_t bits)
{
    PyObject *list = PyList_New(0);
    for (int i = 0; i < 32 && list != NULL; i++) {
        if ((bits >> i & 1) == 0) {
            continue;
        }
        PyObject *number = PyLong_FromLong(i);
        if (number == NULL || PyList_Append(list, number) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(number);
    }
    return list;
}

const char Device_describe_doc[] =
    "describe($self, /)\n--\n\n"
    "What is known of a CUDA device, as a dict; makes no context. lost is what it was\n"
    "lost by, no_paging and no_aliasing why it has not got these; '' otherwise.";

PyObject *
Device_describe(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    gm_cuda_description found;
    gm_device *device = require_cuda(op, "describe");
    if (device == NULL ||
        require_usable(state_of(op), device, "describe a device") < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    gm_cuda_describe(device, &found);
    Py_END_ALLOW_THREADS
    PyObject *peers = bits_to_list(found.peers);
    if (peers == NULL) {
        return NULL;
    }
    return Py_BuildValue(
        "{s:s,s:s,s:(ii),s:O,s:O,s:K,s:N,s:s,s:s,s:s}", "model", found.model, "bus_id",
        found.bus_id, "compute_capability", found.compute_major, found.compute_minor,
        "integrated", found.integrated ? Py_True : Py_False, "prepared",
        found.prepared ? Py_True : Py_False, "granularity",
        (unsigned long long)found.granularity, "peers", peers, "no_paging",
        found.no_paging, "no_aliasing", found.no_aliasing, "lost", found.lost);
}
