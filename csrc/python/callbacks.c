/* callbacks.c - Python functions that hear of allocations, frees and failures.
 *
 * The pool calls one C observer, with no lock held, on the thread that caused the
 * event. Callbacks get a dict of numbers and strings, never a buffer; an exception in
 * one is reported as unraisable and changes nothing. While one runs on a thread, that
 * thread's further events are not delivered, so a callback may allocate.
 *
 * Note [Which thread, which interpreter]
 * Callbacks belong to the interpreter that registered them. A thread that came from
 * Python into the pool has left a trace_frame: it says which state it came from and
 * whether the GIL is released, so that it can be taken again. A thread without one is
 * foreign (a framework that calls the exported C functions): the event is delivered if
 * the pool belongs to the main interpreter, whose GIL such a thread can take by
 * PyGILState_Ensure; events of other interpreters' pools are not delivered there.
 *
 * Process-wide state: which state is the main interpreter's. It is an atomic pointer,
 * read again under the GIL before use.
 */
#include "python/python.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/process.h"

/* Urgency that the oom callbacks report: past both pressure calls. */
#define URGENCY_FAILED 3

static _Atomic(core_state *) main_state;
static _Thread_local trace_frame *current_frame;
static _Thread_local bool delivering;

bool
callbacks_running(void)
{
    return delivering;
}

void
trace_enter(trace_frame *frame, core_state *state, PoolObject *pool)
{
    *frame = (trace_frame){.state = state, .pool = pool, .outer = current_frame};
    current_frame = frame;
}

void
trace_leave(trace_frame *frame)
{
    current_frame = frame->outer;
}

/* ---- delivery ---------------------------------------------------------------------------- */

/* An exception of a callback cannot reach its cause. An interrupt is handed on to the
 * next point where Python looks for signals, if Python handles that signal at all. */
static void
swallow_exception(PyObject *callback)
{
    PyOS_sighandler_t handler = PyOS_getsig(SIGINT);
    if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) && handler != SIG_IGN &&
        handler != SIG_DFL) {
        PyErr_Clear();
        PyErr_SetInterrupt();
    }
    else {
        PyErr_WriteUnraisable(callback);
    }
}

/* Calls every function of `callbacks` with `event`; steals `event`, which may be NULL
 * with an exception. Keeps a pending exception of the caller in *saved form there. */
static void
call_each(PyObject *callbacks, PyObject *event)
{
    if (event == NULL) {
        PyErr_WriteUnraisable(callbacks);
        return;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(callbacks);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *callback = PyTuple_GET_ITEM(callbacks, i);
        PyObject *result = PyObject_CallOneArg(callback, event);
        if (result == NULL) {
            swallow_exception(callback);
        }
        Py_XDECREF(result);
    }
    Py_DECREF(event);
}

static const char *
reason_text(const gm_oom *oom)
{
    return oom != NULL ? gm_oom_reason_name(oom->reason) : "";
}

/* New reference: the event as a dict. */
static PyObject *
event_dict(PoolObject *pool, const gm_trace_entry *entry, const gm_oom *oom)
{
    const char *device = pool->device->device->info.name;
    if (entry->action == GM_TRACE_OOM) {
        return Py_BuildValue("{s:s,s:O,s:i,s:K,s:K,s:K,s:i,s:s}", "device", device,
                             "pool", pool->name, "ptr", 0, "size",
                             (unsigned long long)entry->size, "stream",
                             (unsigned long long)entry->stream, "requested",
                             (unsigned long long)entry->size, "urgency", URGENCY_FAILED,
                             "reason", reason_text(oom));
    }
    return Py_BuildValue("{s:s,s:O,s:K,s:K,s:K}", "device", device, "pool", pool->name,
                         "ptr", (unsigned long long)entry->address, "size",
                         (unsigned long long)entry->size, "stream",
                         (unsigned long long)entry->stream);
}

/* Borrowed: the callbacks for an action, or NULL. */
static PyObject *
callbacks_for(core_state *state, gm_trace_action action)
{
    switch (action) {
        case GM_TRACE_ALLOC:
            return state->callbacks_alloc;
        case GM_TRACE_FREE_REQUESTED:
            return state->callbacks_free;
        case GM_TRACE_OOM:
            return state->callbacks_oom;
        default:
            return NULL;
    }
}

/* With the GIL. The pool object is alive: its caller holds it. */
static void
deliver(core_state *state, PoolObject *pool, const gm_trace_entry *entry,
        const gm_oom *oom)
{
    PyObject *callbacks = callbacks_for(state, entry->action);
    if (callbacks == NULL || PyTuple_GET_SIZE(callbacks) == 0) {
        return;
    }
    PyObject *kind, *value, *traceback;
    PyErr_Fetch(&kind, &value, &traceback);
    Py_INCREF(callbacks);
    Py_INCREF((PyObject *)pool);
    delivering = true;
    call_each(callbacks, event_dict(pool, entry, oom));
    delivering = false;
    Py_DECREF((PyObject *)pool);
    Py_DECREF(callbacks);
    PyErr_Restore(kind, value, traceback);
}

static bool
interpreter_is_going(void)
{
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing() != 0;
#else
    return _Py_IsFinalizing() != 0;
#endif
}

/* See Note [Which thread, which interpreter]. */
static void
deliver_from_foreign_thread(gm_pool *pool, const gm_trace_entry *entry)
{
    if (atomic_load(&main_state) == NULL || !Py_IsInitialized() ||
        interpreter_is_going()) {
        return;
    }
    PyGILState_STATE gil = PyGILState_Ensure();
    core_state *state = atomic_load(&main_state);
    if (state != NULL) {
        GM_LIST_FOREACH(link, &state->pools) {
            PoolObject *object = GM_CONTAINER_OF(link, PoolObject, link);
            if (object->pool == pool && Py_REFCNT((PyObject *)object) > 0) {
                deliver(state, object, entry, NULL);
                break;
            }
        }
    }
    PyGILState_Release(gil);
}

/* The gm_pool_observer of every traced pool. */
static void
observe(void *Py_UNUSED(argument), gm_pool *pool, const gm_trace_entry *entry)
{
    trace_frame *frame = current_frame;
    if (delivering || gm_process_is_exiting()) {
        return;
    }
    if (frame == NULL || frame->pool->pool != pool) {
        deliver_from_foreign_thread(pool, entry);
        return;
    }
    if (frame->released != NULL) {
        PyEval_RestoreThread(frame->released);
    }
    deliver(frame->state, frame->pool, entry, frame->oom);
    if (frame->released != NULL) {
        frame->released = PyEval_SaveThread();
    }
}

bool
callbacks_pressure(core_state *state, PoolObject *pool, const gm_oom *oom, int urgency)
{
    PyObject *callbacks = state->callbacks_pressure;
    if (callbacks == NULL || PyTuple_GET_SIZE(callbacks) == 0 || delivering) {
        return false;
    }
    PyObject *event = Py_BuildValue(
        "{s:s,s:O,s:i,s:K,s:i,s:K,s:i,s:s}", "device", pool->device->device->info.name,
        "pool", pool->name, "ptr", 0, "size", (unsigned long long)oom->requested,
        "stream", 0, "requested", (unsigned long long)oom->requested, "urgency",
        urgency, "reason", reason_text(oom));
    Py_INCREF(callbacks);
    delivering = true;
    call_each(callbacks, event);
    delivering = false;
    Py_DECREF(callbacks);
    return true;
}

/* ---- failures that nobody could return ------------------------------------------------------ */

typedef struct failure_report {
    gm_status status;
    const char *what; /* static text, as gm_report_hook promises */
} failure_report;

/* A pending call: runs in the main interpreter's main thread. */
static int
warn_of_failure(void *argument)
{
    failure_report report = *(failure_report *)argument;
    free(argument);
    core_state *state = atomic_load(&main_state);
    if (state != NULL) {
        warn_unraisable(state, "%s failed: %s", report.what,
                        gm_status_text(report.status));
    }
    return 0;
}

/* The gm_report_hook. Comes from any thread, with or without the GIL, so it only leaves
 * a note; a note that finds no room is dropped. */
static void
note_failure(gm_status status, const char *what)
{
    if (atomic_load(&main_state) == NULL || gm_process_is_exiting()) {
        return;
    }
    failure_report *report = malloc(sizeof(*report));
    if (report == NULL) {
        return;
    }
    *report = (failure_report){.status = status, .what = what};
    if (Py_AddPendingCall(warn_of_failure, report) < 0) {
        free(report);
    }
}

void
callbacks_begin(core_state *state)
{
    if (PyInterpreterState_Get() == PyInterpreterState_Main()) {
        atomic_store(&main_state, state);
        gm_set_report_hook(note_failure);
    }
}

void
callbacks_end(core_state *state)
{
    core_state *expected = state;
    atomic_compare_exchange_strong(&main_state, &expected, NULL);
}

/* ---- registration ------------------------------------------------------------------------- */

static bool
has_any(PyObject *callbacks)
{
    return callbacks != NULL && PyTuple_GET_SIZE(callbacks) > 0;
}

void
callbacks_attach(core_state *state, PoolObject *pool)
{
    pool->traced = has_any(state->callbacks_alloc) || has_any(state->callbacks_free) ||
                   has_any(state->callbacks_oom);
    gm_pool_set_observer(pool->pool, pool->traced ? observe : NULL, NULL);
}

/* New reference: a tuple of callables, or NULL with TypeError. */
static PyObject *
parse_callbacks(PyObject *value, const char *name)
{
    PyObject *callbacks = PySequence_Tuple(value);
    if (callbacks == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(callbacks); i++) {
        if (!PyCallable_Check(PyTuple_GET_ITEM(callbacks, i))) {
            PyErr_Format(PyExc_TypeError,
                         "%s must be a sequence of functions, not of %R", name,
                         PyTuple_GET_ITEM(callbacks, i));
            Py_DECREF(callbacks);
            return NULL;
        }
    }
    return callbacks;
}

PyDoc_STRVAR(set_callbacks_doc,
             "set_callbacks($module, /, *, alloc=(), free=(), oom=(), pressure=())\n"
             "--\n\n"
             "Replaces all callbacks of this interpreter. Each function is called with "
             "one dict:\n"
             "device, pool, ptr, size, stream; for oom and pressure also requested, "
             "urgency, reason.");

static PyObject *
set_callbacks(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"alloc", "free", "oom", "pressure", NULL};
    core_state *state = state_of_module(module);
    PyObject *given[4] = {NULL}, *parsed[4] = {NULL};
    PyObject **slots[4] = {&state->callbacks_alloc, &state->callbacks_free,
                           &state->callbacks_oom, &state->callbacks_pressure};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOOO:set_callbacks", names,
                                     &given[0], &given[1], &given[2], &given[3])) {
        return NULL;
    }
    for (int i = 0; i < 4; i++) {
        parsed[i] =
            given[i] != NULL ? parse_callbacks(given[i], names[i]) : PyTuple_New(0);
        if (parsed[i] == NULL) {
            while (i-- > 0) {
                Py_DECREF(parsed[i]);
            }
            return NULL;
        }
    }
    PyObject *old[4];
    for (int i = 0; i < 4; i++) {
        old[i] = *slots[i];
        *slots[i] = parsed[i];
    }
    GM_LIST_FOREACH(link, &state->pools) {
        callbacks_attach(state, GM_CONTAINER_OF(link, PoolObject, link));
    }
    for (int i = 0; i < 4; i++) {
        Py_XDECREF(old[i]);
    }
    Py_RETURN_NONE;
}

PyMethodDef callbacks_functions[] = {
    {"set_callbacks", (PyCFunction)(void (*)(void))set_callbacks,
     METH_VARARGS | METH_KEYWORDS, set_callbacks_doc},
    {NULL, NULL, 0, NULL},
};
