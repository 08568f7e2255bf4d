/* errors.c - the exceptions, and the only place that turns a gm_status into one.
 *
 * OutOfMemoryError carries plain numbers and strings, so that it can be pickled, be
 * kept for long and holds no memory itself. Its text is one paragraph: what was asked
 * for, where the memory is, and a hint that fits the reason.
 */
#include "python/python.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "device/failure.h"

/* ---- texts -------------------------------------------------------------------------- */

typedef struct size_text {
    char text[32];
} size_text;

/* "1.50 GiB", "512 B". */
static size_text
size_to_text(size_t size)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    size_text result;
    double value = (double)size;
    size_t unit = 0;
    while (value >= 1024.0 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        value /= 1024.0;
        unit++;
    }
    if (unit == 0) {
        snprintf(result.text, sizeof(result.text), "%zu B", size);
    }
    else {
        snprintf(result.text, sizeof(result.text), "%.2f %s", value, units[unit]);
    }
    return result;
}

/* A hint for a person who reads the message. Indexed by gm_oom_reason. */
static const char *const reason_hints[] = {
    [GM_OOM_SHORTAGE] =
        "Live buffers leave too little: release some, or ask for less "
        "at a time.",
    [GM_OOM_FRAGMENTATION] =
        "Enough is free, but not in one piece that this request "
        "can use (fragmentation): empty_cache() before it, or a "
        "pool with max_split=, helps.",
    [GM_OOM_LIMIT] =
        "The pool's own limit is what stops it: raise the limit, or "
        "release buffers.",
    [GM_OOM_HEADROOM] =
        "The head-room that the pool leaves to others is what stops "
        "it: lower headroom, or release buffers.",
    [GM_OOM_OTHERS] =
        "The rest of the device is in other hands: other pools or "
        "programs hold it.",
};

_Static_assert(sizeof(reason_hints) / sizeof(reason_hints[0]) == GM_OOM_REASON_COUNT,
               "one hint for each reason");

/* New reference: "Held by: a (1.00 GiB), b (2.00 MiB). ", or an empty str. */
static PyObject *
holders_text(PyObject *holders)
{
    PyObject *text = PyUnicode_FromString("");
    Py_ssize_t count = PyTuple_GET_SIZE(holders);
    for (Py_ssize_t i = 0; i < count && text != NULL; i++) {
        PyObject *name, *size;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(holders, i), "UO!;holders", &name,
                              &PyLong_Type, &size)) {
            Py_DECREF(text);
            return NULL;
        }
        size_t bytes = PyLong_AsSize_t(size);
        if (bytes == (size_t)-1 && PyErr_Occurred()) {
            Py_DECREF(text);
            return NULL;
        }
        PyObject *longer = PyUnicode_FromFormat(
            "%U%s%U (%s)%s", text, i == 0 ? "Held by: " : ", ", name,
            size_to_text(bytes).text, i + 1 == count ? ". " : "");
        Py_DECREF(text);
        text = longer;
    }
    return text;
}

/* New reference: what the holders hook answers as a tuple; an empty tuple when there
 * is no hook or it failed (reported as unraisable). */
static PyObject *
ask_holders(core_state *state, PoolObject *pool)
{
    if (state->hook_holders != NULL) {
        PyObject *answer = PyObject_CallOneArg(state->hook_holders, (PyObject *)pool);
        if (answer != NULL && PyTuple_Check(answer)) {
            return answer;
        }
        if (answer != NULL) {
            Py_DECREF(answer);
            PyErr_SetString(PyExc_TypeError, "the holders hook must return a tuple");
        }
        PyErr_WriteUnraisable(state->hook_holders);
    }
    return PyTuple_New(0);
}

/* New reference. One paragraph; see the top of the file. */
static PyObject *
oom_text(const gm_device_info *device, const gm_oom *oom, bool collected,
         PyObject *holders)
{
    PyObject *held = holders_text(holders);
    if (held == NULL) {
        return NULL;
    }
    char limits[96] = "";
    if (oom->limit != SIZE_MAX) {
        snprintf(limits, sizeof(limits), ", limit %s", size_to_text(oom->limit).text);
    }
    if (oom->headroom != 0) {
        size_t length = strlen(limits);
        snprintf(limits + length, sizeof(limits) - length, ", head-room %s",
                 size_to_text(oom->headroom).text);
    }
    PyObject *text = PyUnicode_FromFormat(
        "%s out of memory. Tried to allocate %s (%zu bytes) on %s: %s are in use, %s "
        "cached (largest free block %s), %s pending, %s reserved%s; the device has %s "
        "free of %s. %U%s%s",
        device->kind == GM_DEVICE_CUDA ? "CUDA" : device->name,
        size_to_text(oom->requested).text, oom->requested, device->name,
        size_to_text(oom->used).text, size_to_text(oom->cached).text,
        size_to_text(oom->largest_free).text, size_to_text(oom->pending).text,
        size_to_text(oom->reserved).text, limits, size_to_text(oom->device_free).text,
        size_to_text(oom->device_total).text, held, reason_hints[oom->reason],
        collected ? "" : " A garbage collection was not tried.");
    Py_DECREF(held);
    return text;
}

/* ---- OutOfMemoryError ----------------------------------------------------------------- */

/* X(attribute, field of gm_oom): the ones that are plain byte counts. */
#define OOM_SIZE_MAP(X)             \
    X("requested", requested)       \
    X("used", used)                 \
    X("cached", cached)             \
    X("pending", pending)           \
    X("reserved", reserved)         \
    X("headroom", headroom)         \
    X("device_free", device_free)   \
    X("device_total", device_total) \
    X("largest_free", largest_free) \
    X("stranded", stranded)

/* Sets dict[name] = value; steals `value`, which may be NULL with an exception. */
static int
dict_set_stolen(PyObject *dict, const char *name, PyObject *value)
{
    if (value == NULL) {
        return -1;
    }
    int result = PyDict_SetItemString(dict, name, value);
    Py_DECREF(value);
    return result;
}

/* Fills `dict` with the attributes of an OutOfMemoryError. */
static int
oom_attributes(PyObject *dict, const char *device, const gm_oom *oom, bool collected,
               PyObject *holders)
{
#define OOM_SET_SIZE(name, field)                                         \
    if (dict_set_stolen(dict, name, PyLong_FromSize_t(oom->field)) < 0) { \
        return -1;                                                        \
    }
    OOM_SIZE_MAP(OOM_SET_SIZE)
#undef OOM_SET_SIZE
    PyObject *limit =
        oom->limit == SIZE_MAX ? Py_NewRef(Py_None) : PyLong_FromSize_t(oom->limit);
    if (dict_set_stolen(dict, "limit", limit) < 0 ||
        dict_set_stolen(dict, "device", PyUnicode_FromString(device)) < 0 ||
        dict_set_stolen(dict, "reason",
                        PyUnicode_FromString(gm_oom_reason_name(oom->reason))) < 0 ||
        dict_set_stolen(dict, "collected", PyBool_FromLong(collected)) < 0) {
        return -1;
    }
    return PyDict_SetItemString(dict, "holders", holders);
}

/* New reference: an instance with its attributes; NULL with another exception. */
static PyObject *
oom_create(core_state *state, PoolObject *pool, const gm_oom *oom, bool collected,
           PyObject *holders)
{
    const gm_device_info *device = &pool->device->device->info;
    PyObject *text = oom_text(device, oom, collected, holders);
    if (text == NULL) {
        return NULL;
    }
    PyObject *error = PyObject_CallOneArg(state->OutOfMemoryError, text);
    Py_DECREF(text);
    if (error == NULL) {
        return NULL;
    }
    PyObject *dict = PyObject_GenericGetDict(error, NULL);
    if (dict == NULL ||
        oom_attributes(dict, device->name, oom, collected, holders) < 0) {
        Py_XDECREF(dict);
        Py_DECREF(error);
        return NULL;
    }
    Py_DECREF(dict);
    return error;
}

PyObject *
set_oom_error(core_state *state, PoolObject *pool, const gm_oom *oom, bool collected)
{
    PyObject *holders = ask_holders(state, pool);
    if (holders == NULL) {
        return NULL;
    }
    PyObject *error = oom_create(state, pool, oom, collected, holders);
    Py_DECREF(holders);
    if (error == NULL) {
        return NULL;
    }
    if (state->hook_oom != NULL) {
        PyObject *done = PyObject_CallFunctionObjArgs(state->hook_oom, (PyObject *)pool,
                                                      error, NULL);
        if (done == NULL) {
            PyErr_WriteUnraisable(state->hook_oom);
        }
        Py_XDECREF(done);
    }
    PyErr_SetObject(state->OutOfMemoryError, error);
    Py_DECREF(error);
    return NULL;
}

/* ---- the other statuses ------------------------------------------------------------------ */

/* Borrowed: the class that reports `status`. */
static PyObject *
status_class(core_state *state, gm_status status)
{
    switch (status) {
        case GM_INVALID:
        case GM_UNKNOWN_ADDRESS:
            return PyExc_ValueError;
        case GM_OUT_OF_MEMORY:
            return state->OutOfMemoryError;
        case GM_NO_HOST_MEMORY:
            return PyExc_MemoryError;
        default:
            return state->GpumemError;
    }
}

/* Sets CudaError with the words of a driver. */
static void
set_cuda_error(core_state *state, const gm_failure *failure, const char *what)
{
    PyObject *text =
        failure->call[0] != '\0'
            ? PyUnicode_FromFormat("could not %s: %s: %s (%s, %d)", what, failure->call,
                                   failure->text, failure->name, failure->code)
            : PyUnicode_FromFormat("could not %s: %s", what, failure->text);
    PyObject *error = text == NULL ? NULL : PyObject_CallOneArg(state->CudaError, text);
    Py_XDECREF(text);
    if (error == NULL) {
        return;
    }
    PyObject *dict = PyObject_GenericGetDict(error, NULL);
    if (dict != NULL &&
        dict_set_stolen(dict, "code", PyLong_FromLong(failure->code)) == 0 &&
        dict_set_stolen(dict, "name", PyUnicode_FromString(failure->name)) == 0 &&
        dict_set_stolen(dict, "call", PyUnicode_FromString(failure->call)) == 0) {
        PyErr_SetObject(state->CudaError, error);
    }
    Py_XDECREF(dict);
    Py_DECREF(error);
}

PyObject *
set_status_error(core_state *state, gm_status status, const char *what)
{
    PyObject *kind = status_class(state, status);
    gm_failure failure;
    bool of_driver = status == GM_DEVICE_ERROR || status == GM_DEVICE_LOST;
    if (of_driver && gm_failure_take(status, &failure)) {
        set_cuda_error(state, &failure, what);
    }
    else if (status == GM_FORKED) {
        PyErr_Format(kind,
                     "could not %s: the object belongs to the parent process and "
                     "cannot be used after fork. Start workers with the 'spawn' method "
                     "of multiprocessing in place of 'fork', or make a new device and "
                     "pool in the child (host devices allow that).",
                     what);
    }
    else {
        PyErr_Format(kind, "could not %s: %s", what, gm_status_text(status));
    }
    return NULL;
}

void
warn_unraisable(core_state *state, const char *format, ...)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    va_list arguments;
    va_start(arguments, format);
    PyObject *text = PyUnicode_FromFormatV(format, arguments);
    va_end(arguments);
    if (text == NULL ||
        PyErr_WarnEx(state->GpumemWarning, PyUnicode_AsUTF8(text), 1) < 0) {
        PyErr_WriteUnraisable(text);
    }
    Py_XDECREF(text);
    PyErr_Restore(type, value, traceback);
}

/* ---- set-up ------------------------------------------------------------------------------ */

/* New reference: the class attributes of OutOfMemoryError, so that an instance which
 * somebody made by hand has them, too. */
static PyObject *
oom_defaults(void)
{
    gm_oom nothing = {.reason = GM_OOM_SHORTAGE, .limit = SIZE_MAX};
    PyObject *holders = PyTuple_New(0);
    PyObject *dict = PyDict_New();
    if (holders == NULL || dict == NULL ||
        oom_attributes(dict, "", &nothing, false, holders) < 0) {
        Py_CLEAR(dict);
    }
    Py_XDECREF(holders);
    return dict;
}

/* New reference: the class attributes of CudaError. */
static PyObject *
cuda_defaults(void)
{
    return Py_BuildValue("{s:i,s:s,s:s}", "code", 0, "name", "", "call", "");
}

/* Makes one class and adds it to the module under the last part of its name. Steals
 * `dict`. Returns a new reference. */
static PyObject *
add_exception(PyObject *module, const char *name, const char *doc, PyObject *bases,
              PyObject *dict)
{
    PyObject *kind = PyErr_NewExceptionWithDoc(name, doc, bases, dict);
    Py_XDECREF(dict);
    if (kind != NULL &&
        PyModule_AddObjectRef(module, strrchr(name, '.') + 1, kind) < 0) {
        Py_CLEAR(kind);
    }
    return kind;
}

static int
add_oom_error(PyObject *module, core_state *state)
{
    PyObject *bases = PyTuple_Pack(2, state->GpumemError, PyExc_MemoryError);
    PyObject *defaults = oom_defaults();
    if (bases == NULL || defaults == NULL) {
        Py_XDECREF(bases);
        Py_XDECREF(defaults);
        return -1;
    }
    state->OutOfMemoryError = add_exception(
        module, "gpumem.OutOfMemoryError",
        "A request that did not fit. Sizes are bytes: requested, used, cached, "
        "pending,\n"
        "reserved, limit (None: none), headroom, device_free, device_total,\n"
        "largest_free, stranded. device is the device's name, reason one of shortage,\n"
        "fragmentation, limit, headroom, others; collected says whether a garbage\n"
        "collection was tried; holders are (name, bytes) of the largest buffers.",
        bases, defaults);
    Py_DECREF(bases);
    return state->OutOfMemoryError == NULL ? -1 : 0;
}

int
errors_init(PyObject *module, core_state *state)
{
    state->GpumemError =
        add_exception(module, "gpumem.GpumemError", "Base class of gpumem's errors.",
                      PyExc_RuntimeError, NULL);
    if (state->GpumemError == NULL || add_oom_error(module, state) < 0) {
        return -1;
    }
    PyObject *defaults = cuda_defaults();
    if (defaults == NULL) {
        return -1;
    }
    state->CudaError = add_exception(
        module, "gpumem.CudaError",
        "A call of the CUDA runtime failed: its number (code), the number's name and\n"
        "the call.",
        state->GpumemError, defaults);
    if (state->CudaError == NULL) {
        return -1;
    }
    state->ReleasedError =
        add_exception(module, "gpumem.ReleasedError",
                      "A buffer was used after its memory had been given back.",
                      state->GpumemError, NULL);
    if (state->ReleasedError == NULL) {
        return -1;
    }
    state->GpumemWarning =
        add_exception(module, "gpumem.GpumemWarning",
                      "Something went wrong where no exception could be raised.",
                      PyExc_UserWarning, NULL);
    return state->GpumemWarning == NULL ? -1 : 0;
}
