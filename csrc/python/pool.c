/* pool.c - the Pool type: the caching allocator of one device, as Python sees it.
 *
 * A Pool holds its device; a Buffer holds its Pool. The object is the one owner of its
 * gm_pool in Python; the exported C functions may own it, too (capi.c). What the pool
 * does is in pool/pool.h; the methods are in pool_memory.c, pool_options.c and
 * pool_view.c.
 */
#include "python/pool_object.h"

#include <stddef.h>

/* ---- making one ----------------------------------------------------------------------- */

/* New reference: the device given, or the default one. */
static PyObject *
choose_device(core_state *state, PyObject *device)
{
    if (device == NULL || device == Py_None) {
        if (state->hook_default_device == NULL) {
            PyErr_SetString(PyExc_RuntimeError,
                            "Pool() without a device needs the gpumem package "
                            "(import gpumem)");
            return NULL;
        }
        device = PyObject_CallNoArgs(state->hook_default_device);
    }
    else {
        Py_INCREF(device);
    }
    if (device != NULL && !Py_IS_TYPE(device, state->Device_Type)) {
        PyErr_Format(PyExc_TypeError, "device must be a Device or None, not %.100s",
                     Py_TYPE(device)->tp_name);
        Py_CLEAR(device);
    }
    return device;
}

/* New reference: an object over `pool` (takes its reference, also on failure). */
static PoolObject *
wrap_pool(core_state *state, gm_pool *pool, DeviceObject *device,
          const pool_extras *extras)
{
    PoolObject *self = (PoolObject *)state->Pool_Type->tp_alloc(state->Pool_Type, 0);
    if (self == NULL) {
        gm_pool_release(pool);
        return NULL;
    }
    self->pool = pool;
    self->device = (DeviceObject *)Py_NewRef((PyObject *)device);
    gm_list_init(&self->buffers);
    gm_list_init(&self->link);
    state->live_pools++;
    self->fallback = (PoolObject *)Py_XNewRef((PyObject *)extras->fallback);
    self->name =
        extras->name != NULL
            ? Py_NewRef(extras->name)
            : PyUnicode_FromFormat("pool-%llu", (unsigned long long)gm_pool_id(pool));
    if (self->name == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    gm_list_push_back(&state->pools, &self->link);
    callbacks_attach(state, self);
    return self;
}

static gm_status
create_without_gil(gm_device *device, const gm_pool_options *options, gm_pool **out)
{
    gm_status status;
    Py_BEGIN_ALLOW_THREADS
    status = gm_pool_create(device, options, out);
    Py_END_ALLOW_THREADS
    return status;
}

static void
invalid_options(const gm_pool_options *options)
{
    const char *field = "an option";
    if (gm_pool_options_validate(options, &field) == GM_OK) {
        field = "an option";
    }
    PyErr_Format(PyExc_ValueError, "%s is outside its range on this device", field);
}

/* New reference. The reservation failed, so the pool is made without it and reserves
 * once more: that says why it does not fit. */
static PoolObject *
create_and_reserve(core_state *state, DeviceObject *device,
                   const gm_pool_options *options, const pool_extras *extras)
{
    gm_pool_options smaller = *options;
    gm_pool *pool;
    gm_oom oom;
    smaller.reserve = 0;
    gm_status status = create_without_gil(device->device, &smaller, &pool);
    if (status != GM_OK) {
        set_status_error(state, status, "make a pool");
        return NULL;
    }
    PoolObject *self = wrap_pool(state, pool, device, extras);
    if (self == NULL) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gm_pool_reserve(pool, options->reserve, &oom);
    Py_END_ALLOW_THREADS
    if (status == GM_OUT_OF_MEMORY) {
        pool_reserve_failed(state, self, options->reserve, &oom);
    }
    else if (status != GM_OK) {
        set_status_error(state, status, "reserve memory");
    }
    if (status != GM_OK) {
        Py_CLEAR(self);
    }
    return self;
}

static PyObject *
Pool_tp_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    core_state *state = PyType_GetModuleState(type);
    Py_ssize_t nargs = PyTuple_GET_SIZE(args);
    PyObject *given = nargs > 0 ? PyTuple_GET_ITEM(args, 0) : NULL;
    PyObject *by_name = kwargs != NULL ? PyDict_GetItemString(kwargs, "device") : NULL;
    if (nargs > 1 || (given != NULL && by_name != NULL)) {
        PyErr_SetString(PyExc_TypeError,
                        "Pool() takes one device by position; options go by name");
        return NULL;
    }
    PyObject *device = choose_device(state, given != NULL ? given : by_name);
    if (device == NULL) {
        return NULL;
    }
    gm_pool_options options;
    pool_extras extras = {NULL, NULL};
    PoolObject *self = NULL;
    gm_device *raw = ((DeviceObject *)device)->device;
    gm_pool_options_init(&options);
    if (pool_keywords_parse(state, raw, kwargs, &options, &extras) == 0) {
        gm_pool *pool;
        gm_status status = create_without_gil(raw, &options, &pool);
        if (status == GM_OK) {
            self = wrap_pool(state, pool, (DeviceObject *)device, &extras);
        }
        else if (status == GM_OUT_OF_MEMORY && options.reserve > 0) {
            self = create_and_reserve(state, (DeviceObject *)device, &options, &extras);
        }
        else if (status == GM_INVALID) {
            invalid_options(&options);
        }
        else {
            set_status_error(state, status, "make a pool");
        }
    }
    Py_DECREF(device);
    return (PyObject *)self;
}

static int
Pool_tp_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT((PyObject *)((PoolObject *)op)->device);
    Py_VISIT((PyObject *)((PoolObject *)op)->fallback);
    return 0;
}

static void
Pool_tp_dealloc(PyObject *op)
{
    PoolObject *self = (PoolObject *)op;
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
        state->live_pools--;
    }
    gm_pool_set_observer(self->pool, NULL, NULL);
    gm_pool_release(self->pool);
    Py_CLEAR(self->name);
    Py_CLEAR(self->fallback);
    Py_CLEAR(self->device);
    PyErr_Restore(kind, value, traceback);
    type->tp_free(op);
    Py_DECREF(type);
}

/* ---- properties ------------------------------------------------------------------------ */

bool
pool_is_over(const PoolObject *self)
{
    return gm_pool_is_closed(self->pool) ||
           gm_device_usable(self->device->device) == GM_FORKED;
}

static PyObject *
Pool_tp_repr(PyObject *op)
{
    PoolObject *self = (PoolObject *)op;
    if (pool_is_over(self)) {
        return PyUnicode_FromFormat("<gpumem.Pool %R on %s, closed>", self->name,
                                    self->device->device->info.name);
    }
    gm_pool_stats stats;
    pool_read_stats(self, &stats);
    return PyUnicode_FromFormat(
        "<gpumem.Pool %R on %s, %llu bytes used of %llu reserved>", self->name,
        self->device->device->info.name,
        (unsigned long long)stats.allocated_bytes.all.current,
        (unsigned long long)stats.reserved_bytes.all.current);
}

static PyObject *
Pool_get_device(PyObject *op, void *Py_UNUSED(closure))
{
    return Py_NewRef((PyObject *)((PoolObject *)op)->device);
}

static PyObject *
Pool_get_id(PyObject *op, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(gm_pool_id(((PoolObject *)op)->pool));
}

static PyObject *
Pool_get_name(PyObject *op, void *Py_UNUSED(closure))
{
    return Py_NewRef(((PoolObject *)op)->name);
}

static PyObject *
Pool_get_fallback(PyObject *op, void *Py_UNUSED(closure))
{
    PyObject *fallback = (PyObject *)((PoolObject *)op)->fallback;
    return Py_NewRef(fallback != NULL ? fallback : Py_None);
}

static PyObject *
Pool_get_closed(PyObject *op, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(pool_is_over((PoolObject *)op));
}

/* ---- end, and being a context manager -------------------------------------------------- */

/* 0, or -1 with BufferError while somebody looks into a buffer of the pool. */
static int
require_no_exports(PoolObject *self)
{
    if (self->exports > 0) {
        PyErr_Format(PyExc_BufferError,
                     "%zd buffers of pool %R are exported (NumPy views, memoryviews, "
                     "DLPack consumers); drop those first",
                     self->exports, self->name);
        return -1;
    }
    return 0;
}

static void
close_pool(PoolObject *self, uint64_t timeout_ns)
{
    gm_pool *pool = self->pool;
    Py_BEGIN_ALLOW_THREADS
    gm_pool_close(pool, timeout_ns);
    Py_END_ALLOW_THREADS
}

/* How long close() waits for unfinished work unless told otherwise. */
#define CLOSE_TIMEOUT_NS ((uint64_t)10000000000)

static PyObject *
Pool_close(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"timeout", NULL};
    PyObject *timeout = NULL;
    uint64_t timeout_ns = CLOSE_TIMEOUT_NS;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:close", names, &timeout) ||
        (timeout != NULL && parse_seconds(timeout, "timeout", &timeout_ns) < 0) ||
        require_no_exports((PoolObject *)op) < 0) {
        return NULL;
    }
    close_pool((PoolObject *)op, timeout_ns);
    Py_RETURN_NONE;
}

static PyObject *
Pool_enter(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    if (pool_is_over((PoolObject *)op)) {
        core_state *state = state_of(op);
        PyErr_Format(state->GpumemError, "pool %R is closed", ((PoolObject *)op)->name);
        return NULL;
    }
    return Py_NewRef(op);
}

static PyObject *
Pool_exit(PyObject *op, PyObject *args)
{
    PoolObject *self = (PoolObject *)op;
    bool body_raised =
        PyTuple_GET_SIZE(args) > 0 && PyTuple_GET_ITEM(args, 0) != Py_None;
    if (require_no_exports(self) < 0) {
        if (!body_raised) {
            return NULL;
        }
        PyErr_Clear();
        warn_unraisable(state_of(op),
                        "pool %R was not closed: %zd of its buffers are exported",
                        self->name, self->exports);
        Py_RETURN_FALSE;
    }
    close_pool(self, CLOSE_TIMEOUT_NS);
    Py_RETURN_FALSE;
}

/* ---- the rest ----------------------------------------------------------------------------- */

static PyObject *
Pool_scope(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", "trim", NULL};
    PyObject *name = Py_None, *trim = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O$O:scope", names, &name, &trim)) {
        return NULL;
    }
    trim = trim != NULL ? Py_NewRef(trim) : PyUnicode_FromString("auto");
    if (trim == NULL) {
        return NULL;
    }
    PyObject *scope = scope_create(state_of(op), name, (PoolObject *)op, trim);
    Py_DECREF(trim);
    return scope;
}

static int
require_hook(PyObject *hook, const char *method)
{
    if (hook == NULL) {
        PyErr_Format(PyExc_RuntimeError,
                     "%s() needs the gpumem package (import gpumem)", method);
        return -1;
    }
    return 0;
}

static PyObject *
Pool_summary(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"abbreviated", NULL};
    core_state *state = state_of(op);
    int abbreviated = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$p:summary", names,
                                     &abbreviated) ||
        require_hook(state->hook_summary, "summary") < 0) {
        return NULL;
    }
    return PyObject_CallFunctionObjArgs(state->hook_summary, op,
                                        abbreviated ? Py_True : Py_False, NULL);
}

static PyObject *
Pool_snapshot(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    core_state *state = state_of(op);
    if (require_hook(state->hook_snapshot, "snapshot") < 0) {
        return NULL;
    }
    return PyObject_CallOneArg(state->hook_snapshot, op);
}

/* ---- the type ------------------------------------------------------------------------------ */

static PyGetSetDef Pool_getset[] = {
    {"device", Pool_get_device, NULL, "The device that its memory comes from.", NULL},
    {"id", Pool_get_id, NULL, "A number that no other pool of the process has had.",
     NULL},
    {"name", Pool_get_name, NULL, "The name that reports show.", NULL},
    {"closed", Pool_get_closed, NULL,
     "Whether it was closed, or belongs to the parent process.", NULL},
    {"fallback", Pool_get_fallback, NULL,
     "The pool that serves buffers which this one cannot, or None.", NULL},
    {"limit", Pool_get_limit, Pool_set_limit, "Bytes reserved at most; None: no limit.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

#define WITH_KEYWORDS(function) (PyCFunction)(void (*)(void)) function

static PyMethodDef Pool_methods[] = {
    {"empty", WITH_KEYWORDS(Pool_empty), METH_FASTCALL | METH_KEYWORDS,
     "empty($self, /, shape, dtype='uint8', *, stream=None, name=None, align=None,\n"
     "      pitch=None)\n--\n\n"
     "A new Buffer; its content is undefined. align: bytes, a power of two; pitch: "
     "rows\n"
     "start at multiples of this many bytes."},
    {"malloc", WITH_KEYWORDS(Pool_malloc), METH_VARARGS | METH_KEYWORDS,
     "malloc($self, /, nbytes, stream=None)\n--\n\n"
     "The address of a new block, 0 for 0 bytes. It belongs to no scope; free() it."},
    {"free", WITH_KEYWORDS(Pool_free), METH_VARARGS | METH_KEYWORDS,
     "free($self, /, ptr, stream=None)\n--\n\n"
     "Gives back a block of malloc(). A stream other than the block's own is recorded\n"
     "first. ValueError for any other address."},
    {"owns", Pool_owns, METH_O,
     "owns($self, ptr, /)\n--\n\nWhether a live block of this pool starts there."},
    {"iteration", Pool_iteration, METH_NOARGS,
     "iteration($self, /)\n--\n\nA with block that marks one period of the program."},
    {"scope", WITH_KEYWORDS(Pool_scope), METH_VARARGS | METH_KEYWORDS,
     "scope($self, /, name=None, *, trim='auto')\n--\n\n"
     "A Scope that counts allocations of this pool only."},
    {"trim", WITH_KEYWORDS(Pool_trim), METH_VARARGS | METH_KEYWORDS,
     "trim($self, /, target=0, *, older_than=0.0, stream=None, wait=0.0)\n--\n\n"
     "Gives idle memory back until reserved <= target. Returns bytes released,\n"
     "referenced, skipped, pending, and whether a capture forbade it."},
    {"reserve", Pool_reserve, METH_O,
     "reserve($self, nbytes, /)\n--\n\nTakes memory until reserved >= nbytes."},
    {"poll", Pool_poll, METH_NOARGS,
     "poll($self, /)\n--\n\nLooks at pending frees now; never waits."},
    {"stream_retired", Pool_stream_retired, METH_O,
     "stream_retired($self, stream, /)\n--\n\n"
     "The stream is about to end: its memory becomes available to others."},
    {"capture_begin", Pool_capture_begin, METH_O,
     "capture_begin($self, stream, /)\n--\n\n"
     "The stream is about to capture a graph: its blocks come from memory that stays\n"
     "where it is, and nothing that a capture forbids is called. That memory serves "
     "the\n"
     "next capture on the stream, too: replay its graphs in the order of their\n"
     "captures. trim() or reserve() before, since cached memory does not serve a\n"
     "capture. ValueError when one was begun on this stream already."},
    {"capture_end", Pool_capture_end, METH_O,
     "capture_end($self, stream, /)\n--\n\n"
     "The capture has ended, or failed. Its memory stays until the stream is closed "
     "or\n"
     "the pool is. ValueError when none was begun on this stream."},
    {"options", Pool_options, METH_NOARGS,
     "options($self, /)\n--\n\nThe options in force."},
    {"configure", WITH_KEYWORDS(Pool_configure), METH_VARARGS | METH_KEYWORDS,
     "configure($self, /, **options)\n--\n\n"
     "Changes options by name: limit, headroom, cross_stream, yields, gc_on_pressure, "
     "oom_wait."},
    {"stats", Pool_stats, METH_NOARGS,
     "stats($self, /)\n--\n\n"
     "All counters by PyTorch's names; limit 0 means none."},
    {"reset_peaks", Pool_reset_peaks, METH_NOARGS,
     "reset_peaks($self, /)\n--\n\nPeaks become current values."},
    {"reset_accumulated", Pool_reset_accumulated, METH_NOARGS,
     "reset_accumulated($self, /)\n--\n\nCumulative counters become 0."},
    {"view", Pool_view, METH_NOARGS,
     "view($self, /)\n--\n\nA copy of the whole state: (segments, unplaced bytes)."},
    {"summary", WITH_KEYWORDS(Pool_summary), METH_VARARGS | METH_KEYWORDS,
     "summary($self, /, *, abbreviated=False)\n--\n\nThe counters as a table to read."},
    {"snapshot", Pool_snapshot, METH_NOARGS,
     "snapshot($self, /)\n--\n\nThe state in PyTorch's layout."},
    {"check", Pool_check, METH_NOARGS,
     "check($self, /)\n--\n\n"
     "Derives every invariant again; GpumemError with the one that is broken."},
    {"sizes", Pool_sizes, METH_NOARGS,
     "sizes($self, /)\n--\n\nSizes of the pool's own tables."},
    {"record_history", WITH_KEYWORDS(Pool_record_history), METH_VARARGS | METH_KEYWORDS,
     "record_history($self, /, max_entries, stacks=False)\n--\n\n"
     "Keeps the newest events from now on, 0 stops; stacks: with Python stacks."},
    {"history", Pool_history, METH_NOARGS,
     "history($self, /)\n--\n\n(entries oldest first, dropped, limit)."},
    {"clear_history", Pool_clear_history, METH_NOARGS,
     "clear_history($self, /)\n--\n\nForgets the entries; recording goes on."},
    {"close", WITH_KEYWORDS(Pool_close), METH_VARARGS | METH_KEYWORDS,
     "close($self, /, timeout=10.0)\n--\n\n"
     "Refuses new blocks and gives idle memory back; idempotent. BufferError while a\n"
     "buffer is exported."},
    {"live_buffers", Pool_live_buffers, METH_NOARGS,
     "live_buffers($self, /)\n--\n\nThe buffers that own a block, newest last."},
    {"__enter__", Pool_enter, METH_NOARGS, NULL},
    {"__exit__", Pool_exit, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef Pool_members[] = {
    {"__weaklistoffset__", Py_T_PYSSIZET, offsetof(PoolObject, weakrefs), Py_READONLY,
     NULL},
    {NULL, 0, 0, 0, NULL},
};

static char Pool_doc[] =
    "Pool(device=None, *, limit=None, headroom=None, reserve=None, steal=0.05,\n"
    "     cross_stream='done', yields=True, gc_on_pressure=True, oom_wait=10.0, "
    "decay=None,\n"
    "     max_split=None, paging=True, fallback=None, name=None)\n--\n\n"
    "The caching allocator of one device.\n\n"
    "Sizes are ints or text such as '1.5 GiB'; headroom as a float is a fraction of\n"
    "the device. Buffers that the pool has no memory for come from the pool "
    "`fallback`,\n"
    "if there is one: their pool and device say so.\n"
    "Closed by close(), as a context manager, or with its last buffer.";

static PyType_Slot Pool_slots[] = {
    {Py_tp_doc, Pool_doc},
    {Py_tp_new, Pool_tp_new},
    {Py_tp_traverse, Pool_tp_traverse},
    {Py_tp_dealloc, Pool_tp_dealloc},
    {Py_tp_repr, Pool_tp_repr},
    {Py_tp_getset, Pool_getset},
    {Py_tp_methods, Pool_methods},
    {Py_tp_members, Pool_members},
    {0, NULL},
};

static PyType_Spec Pool_spec = {
    .name = "gpumem.Pool",
    .basicsize = sizeof(PoolObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = Pool_slots,
};

int
pool_init(PyObject *module, core_state *state)
{
    state->dtype_uint8 = dtype_by_name("uint8");
    state->Pool_Type =
        (PyTypeObject *)PyType_FromModuleAndSpec(module, &Pool_spec, NULL);
    if (state->Pool_Type == NULL || PyModule_AddType(module, state->Pool_Type) < 0) {
        return -1;
    }
    return iteration_init(module, state);
}
