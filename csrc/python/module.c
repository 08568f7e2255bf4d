/* module.c - the extension module gpumem._core: its state, its set-up and its end.
 *
 * Multi-phase initialisation; everything lives in core_state, one for each interpreter.
 * Free-threaded builds switch the GIL back on for this module: it does not declare that
 * it can do without.
 *
 * At exit of the main interpreter set_exiting runs as an atexit function, after which
 * nothing calls a device: frees do nothing and the exported C functions are no-ops.
 */
#include "python/python.h"

#include "base/process.h"
#include "kernels/host_kernels.h"

#ifndef GPUMEM_VERSION
#error "GPUMEM_VERSION is the version of the distribution; setup.py defines it"
#endif

core_state *
state_of_module(PyObject *module)
{
    return (core_state *)PyModule_GetState(module);
}

core_state *
state_of_type(PyTypeObject *type)
{
    return (core_state *)PyType_GetModuleState(type);
}

/* ---- module functions ------------------------------------------------------------------ */

PyDoc_STRVAR(set_hooks_doc,
             "set_hooks($module, /, *, parse_size, default_device, default_pool, "
             "summary, snapshot,\n"
             "          holders, oom)\n"
             "--\n\n"
             "Gives the module the functions of the Python layer that it calls.");

static PyObject *
set_hooks(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"parse_size", "default_device", "default_pool", "summary",
                            "snapshot",   "holders",        "oom",          NULL};
    core_state *state = state_of_module(module);
    PyObject *given[7];
    PyObject **slots[7] = {&state->hook_parse_size,   &state->hook_default_device,
                           &state->hook_default_pool, &state->hook_summary,
                           &state->hook_snapshot,     &state->hook_holders,
                           &state->hook_oom};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$OOOOOOO:set_hooks", names,
                                     &given[0], &given[1], &given[2], &given[3],
                                     &given[4], &given[5], &given[6])) {
        return NULL;
    }
    for (int i = 0; i < 7; i++) {
        if (!PyCallable_Check(given[i])) {
            PyErr_Format(PyExc_TypeError, "%s must be callable, not %R", names[i],
                         given[i]);
            return NULL;
        }
    }
    for (int i = 0; i < 7; i++) {
        Py_XSETREF(*slots[i], Py_NewRef(given[i]));
    }
    Py_RETURN_NONE;
}

static PyObject *
set_exiting(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    if (PyInterpreterState_Get() == PyInterpreterState_Main()) {
        gm_process_set_exiting(true);
    }
    Py_RETURN_NONE;
}

static PyObject *
count_live(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    const core_state *state = state_of_module(module);
    return Py_BuildValue(
        "{s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n}", "Device", state->live_devices, "Stream",
        state->live_streams, "Event", state->live_events, "Pool", state->live_pools,
        "Buffer", state->live_buffers, "PinnedArray", state->live_pinned, "Scope",
        state->live_scopes, "GradBuffer", state->live_gradbuffers);
}

static PyObject *
noop(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    Py_RETURN_NONE;
}

/* ---- the sets of loops ------------------------------------------------------------------- */

static PyObject *
host_kernels(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    const gm_host_kernels *sets[GM_HOST_KERNELS_LIMIT];
    size_t count = gm_host_kernels_list(sets);
    PyObject *names = PyTuple_New((Py_ssize_t)count);
    for (size_t i = 0; names != NULL && i < count; i++) {
        PyObject *name = PyUnicode_FromString(sets[i]->name);
        if (name == NULL) {
            Py_CLEAR(names);
            break;
        }
        PyTuple_SET_ITEM(names, (Py_ssize_t)i, name);
    }
    return names;
}

static PyObject *
force_host_kernels(PyObject *Py_UNUSED(module), PyObject *name)
{
    const gm_host_kernels *sets[GM_HOST_KERNELS_LIMIT], *found = NULL;
    size_t count = gm_host_kernels_list(sets);
    if (name != Py_None && !PyUnicode_Check(name)) {
        PyErr_Format(PyExc_TypeError, "name must be a str or None, not %.100s",
                     Py_TYPE(name)->tp_name);
        return NULL;
    }
    for (size_t i = 0; name != Py_None && i < count; i++) {
        if (PyUnicode_CompareWithASCIIString(name, sets[i]->name) == 0) {
            found = sets[i];
        }
    }
    if (name != Py_None && found == NULL) {
        PyErr_Format(PyExc_ValueError,
                     "this CPU has no loops %R; host_kernels() lists those it has",
                     name);
        return NULL;
    }
    const char *before = gm_host_kernels_chosen()->name;
    gm_host_kernels_force(found);
    return PyUnicode_FromString(before);
}

static PyMethodDef core_functions[] = {
    {"set_hooks", (PyCFunction)(void (*)(void))set_hooks, METH_VARARGS | METH_KEYWORDS,
     set_hooks_doc},
    {"set_exiting", set_exiting, METH_NOARGS,
     "set_exiting($module, /)\n--\n\n"
     "The process is ending: from now on nothing calls a device. Registered with\n"
     "atexit; does nothing outside the main interpreter."},
    {"count_live", count_live, METH_NOARGS,
     "count_live($module, /)\n--\n\nLive objects of this interpreter by type."},
    {"host_kernels", host_kernels, METH_NOARGS,
     "host_kernels($module, /)\n--\n\n"
     "Names of the sets of loops that this CPU can run, the preferred one first."},
    {"force_host_kernels", force_host_kernels, METH_O,
     "force_host_kernels($module, name, /)\n--\n\n"
     "Kernels of host devices use the set from now on (None: the preferred one).\n"
     "Returns the name of the one before. For tests; all sets give the same bits."},
    {"noop", noop, METH_NOARGS,
     "noop($module, /)\n--\n\nDoes nothing; the yardstick of measurements."},
    {NULL, NULL, 0, NULL},
};

/* ---- life of the state ------------------------------------------------------------------- */

/* X(field): every strong reference of the state. */
#define CORE_STATE_MAP(X)  \
    X(Device_Type)         \
    X(Stream_Type)         \
    X(Event_Type)          \
    X(Pool_Type)           \
    X(Buffer_Type)         \
    X(PinnedArray_Type)    \
    X(Pin_Type)            \
    X(Scope_Type)          \
    X(GradBuffer_Type)     \
    X(Iteration_Type)      \
    X(GpumemError)         \
    X(OutOfMemoryError)    \
    X(CudaError)           \
    X(ReleasedError)       \
    X(GpumemWarning)       \
    X(hook_parse_size)     \
    X(hook_default_device) \
    X(hook_default_pool)   \
    X(hook_summary)        \
    X(hook_snapshot)       \
    X(hook_holders)        \
    X(hook_oom)            \
    X(callbacks_alloc)     \
    X(callbacks_free)      \
    X(callbacks_oom)       \
    X(callbacks_pressure)  \
    X(scope_variable)      \
    X(stack_ids)           \
    X(stack_frames)        \
    X(str_uint8)           \
    X(str_float32)

static int
core_traverse(PyObject *module, visitproc visit, void *arg)
{
    core_state *state = state_of_module(module);
#define CORE_VISIT(field) Py_VISIT((PyObject *)state->field);
    CORE_STATE_MAP(CORE_VISIT)
#undef CORE_VISIT
    return 0;
}

static int
core_clear(PyObject *module)
{
    core_state *state = state_of_module(module);
    buffer_forget_spares(state);
#define CORE_CLEAR(field) Py_CLEAR(state->field);
    CORE_STATE_MAP(CORE_CLEAR)
#undef CORE_CLEAR
    return 0;
}

/* Objects may outlive the module while the interpreter is taken down: they must not
 * find the head of their ring gone. A ring that was never set up is all zero. */
static void
dissolve_ring(gm_list *head)
{
    while (head->next != NULL && !gm_list_is_empty(head)) {
        gm_list_remove(head->next);
    }
}

static void
core_free(void *module)
{
    core_state *state = state_of_module((PyObject *)module);
    callbacks_end(state);
    (void)core_clear((PyObject *)module);
    dissolve_ring(&state->pools);
    dissolve_ring(&state->streams);
    dissolve_ring(&state->pins);
}

/* 0, or -1 with an exception: the parts in the order in which they need each other. */
static int
add_types(PyObject *module, core_state *state)
{
    int (*const parts[])(PyObject *, core_state *) = {
        errors_init, device_init, stream_init,     pool_init,   buffer_init,
        pinned_init, scope_init,  gradbuffer_init, history_init};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (parts[i](module, state) < 0) {
            return -1;
        }
    }
    return 0;
}

static int
add_functions(PyObject *module)
{
    PyMethodDef *const tables[] = {
        core_functions,   device_functions, cuda_functions,    pool_functions,
        pinned_functions, scope_functions,  history_functions, callbacks_functions,
        capi_functions,   replay_functions};
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        if (PyModule_AddFunctions(module, tables[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

/* 0, or -1 with an exception: set_exiting runs when the interpreter ends. */
static int
register_exit(PyObject *module)
{
    int result = -1;
    PyObject *atexit = PyImport_ImportModule("atexit");
    PyObject *function = PyObject_GetAttrString(module, "set_exiting");
    if (atexit != NULL && function != NULL) {
        PyObject *done = PyObject_CallMethod(atexit, "register", "O", function);
        result = done != NULL ? 0 : -1;
        Py_XDECREF(done);
    }
    Py_XDECREF(atexit);
    Py_XDECREF(function);
    return result;
}

static int
core_exec(PyObject *module)
{
    core_state *state = state_of_module(module);
    gm_list_init(&state->pools);
    gm_list_init(&state->streams);
    state->str_uint8 = PyUnicode_InternFromString("uint8");
    state->str_float32 = PyUnicode_InternFromString("float32");
    if (state->str_uint8 == NULL || state->str_float32 == NULL ||
        add_types(module, state) < 0 || add_functions(module) < 0 ||
        PyModule_AddStringConstant(module, "__version__", GPUMEM_VERSION) < 0 ||
        register_exit(module) < 0) {
        return -1;
    }
    callbacks_begin(state);
    /* An interpreter that starts after another one has ended takes the end back. */
    gm_process_set_exiting(false);
    return 0;
}

static PyModuleDef_Slot core_slots[] = {
    {Py_mod_exec, core_exec},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
    {0, NULL},
};

struct PyModuleDef core_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "gpumem._core",
    .m_doc = "The types of gpumem and the functions that its Python layer builds on.",
    .m_size = sizeof(core_state),
    .m_slots = core_slots,
    .m_traverse = core_traverse,
    .m_clear = core_clear,
    .m_free = core_free,
};

PyMODINIT_FUNC
PyInit__core(void);

PyMODINIT_FUNC
PyInit__core(void)
{
    return PyModuleDef_Init(&core_module);
}
