/* scope.c - Scope: everything allocated inside is given back at its end.
 *
 * A scope is the value of a context variable between its entry and its exit. Every root
 * buffer made meanwhile is linked into the innermost scope that counts its pool; the
 * exit gives all of them back, whoever still holds the objects. What is exported then
 * (a NumPy array looks into it) goes with its last export; what showed its address by
 * __cuda_array_interface__ goes with its object.
 *
 * Note [One context]
 * A scope holds for the context that entered it, and for no other: a new thread, and a
 * task that was started inside (its context is a copy), are outside. So no work that
 * outlives the block can lose memory to it. The context is compared by identity.
 *
 * Note [Interrupts]
 * Entry and exit are single C functions that run no Python code before they have done
 * their work, so a signal handler runs either before or after them, never within: a
 * with statement calls __exit__ exactly when __enter__ has happened.
 *
 * Thread-safety: the GIL. Cost: entry O(1), exit O(buffers of the scope), no object is
 * made for a buffer that goes at once.
 */
#include "python/scope.h"

#include <stddef.h>

/* ---- membership ------------------------------------------------------------------------ */

/* Borrowed: the context that runs now; NULL before this thread's first use of one. */
static PyObject *
running_context(void)
{
    return PyThreadState_Get()->context;
}

static bool
scope_is_of_this_context(const ScopeObject *self)
{
    return self->active && self->context == running_context();
}

/* Borrowed: the innermost scope of this context, or NULL. -1 in *error on failure. */
static ScopeObject *
scope_innermost(core_state *state, int *error)
{
    PyObject *value;
    *error = PyContextVar_Get(state->scope_variable, NULL, &value);
    if (*error < 0 || value == NULL) {
        return NULL;
    }
    Py_DECREF(value); /* the context holds it */
    if (value == Py_None || !scope_is_of_this_context((ScopeObject *)value)) {
        return NULL;
    }
    return (ScopeObject *)value;
}

ScopeObject *
scope_current(core_state *state, PoolObject *pool, int *error)
{
    *error = 0;
    if (state->scopes_active == 0) {
        return NULL;
    }
    ScopeObject *scope = scope_innermost(state, error);
    while (scope != NULL && !scope_counts(scope, pool)) {
        scope = scope->parent;
    }
    return scope;
}

static Py_ssize_t
root_bytes(const BufferObject *root)
{
    return root->block != NULL ? (Py_ssize_t)gm_block_size(root->block) : 0;
}

void
scope_add(ScopeObject *scope, BufferObject *root)
{
    root->scope = scope;
    gm_list_push_back(&scope->buffers, &root->scope_link);
    scope->count++;
    scope->used += root_bytes(root);
    if (scope->used > scope->peak) {
        scope->peak = scope->used;
    }
}

void
scope_remove(BufferObject *root)
{
    ScopeObject *scope = root->scope;
    if (scope == NULL) {
        return;
    }
    root->scope = NULL;
    gm_list_remove(&root->scope_link);
    scope->count--;
    scope->used -= root_bytes(root);
}

/* ---- life -------------------------------------------------------------------------------- */

PyObject *
scope_create(core_state *state, PyObject *name, PoolObject *pool, PyObject *trim)
{
    int mode;
    size_t target;
    if (name != NULL && name != Py_None && !PyUnicode_Check(name)) {
        PyErr_Format(PyExc_TypeError, "name must be a str or None, not %.100s",
                     Py_TYPE(name)->tp_name);
        return NULL;
    }
    if (scope_parse_trim(state, trim, &mode, &target) < 0) {
        return NULL;
    }
    ScopeObject *self =
        (ScopeObject *)state->Scope_Type->tp_alloc(state->Scope_Type, 0);
    if (self == NULL) {
        return NULL;
    }
    gm_list_init(&self->buffers);
    state->live_scopes++;
    self->trim = Py_NewRef(trim);
    self->trim_mode = mode;
    self->trim_target = target;
    self->pool = (PoolObject *)Py_XNewRef((PyObject *)pool);
    self->name = name == NULL || name == Py_None ? PyUnicode_FromString("scope")
                                                 : Py_NewRef(name);
    self->deferred = PyTuple_New(0);
    if (self->name == NULL || self->deferred == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static PyObject *
Scope_tp_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", "pool", "trim", NULL};
    core_state *state = PyType_GetModuleState(type);
    PyObject *name = Py_None, *pool = Py_None, *trim = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O$OO:Scope", names, &name, &pool,
                                     &trim)) {
        return NULL;
    }
    if (pool != Py_None && !Py_IS_TYPE(pool, state->Pool_Type)) {
        PyErr_Format(PyExc_TypeError, "pool must be a Pool or None, not %.100s",
                     Py_TYPE(pool)->tp_name);
        return NULL;
    }
    trim = trim != NULL ? Py_NewRef(trim) : PyUnicode_FromString("auto");
    if (trim == NULL) {
        return NULL;
    }
    PyObject *self =
        scope_create(state, name, pool == Py_None ? NULL : (PoolObject *)pool, trim);
    Py_DECREF(trim);
    return self;
}

static int
Scope_tp_traverse(PyObject *op, visitproc visit, void *arg)
{
    ScopeObject *self = (ScopeObject *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT((PyObject *)self->pool);
    Py_VISIT((PyObject *)self->parent);
    Py_VISIT(self->token);
    Py_VISIT(self->context);
    Py_VISIT(self->trim);
    Py_VISIT(self->deferred);
    return 0;
}

/* An active scope is part of a cycle through its context; these are the links of it. */
static int
Scope_tp_clear(PyObject *op)
{
    ScopeObject *self = (ScopeObject *)op;
    Py_CLEAR(self->parent);
    Py_CLEAR(self->token);
    Py_CLEAR(self->context);
    Py_CLEAR(self->trim);
    Py_CLEAR(self->deferred);
    return 0;
}

/* Lets go of every buffer without releasing it: the scope dies and was never left. */
static void
scope_abandon(ScopeObject *self)
{
    while (!gm_list_is_empty(&self->buffers)) {
        scope_remove(GM_CONTAINER_OF(self->buffers.next, BufferObject, scope_link));
    }
}

static void
Scope_tp_dealloc(PyObject *op)
{
    ScopeObject *self = (ScopeObject *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    PyObject *kind, *value, *traceback;
    PyErr_Fetch(&kind, &value, &traceback);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs(op);
    }
    core_state *state = state_of_dying(op);
    if (state != NULL) {
        state->live_scopes--;
        state->scopes_active -= self->active;
    }
    scope_abandon(self);
    (void)Scope_tp_clear(op);
    Py_CLEAR(self->pool);
    Py_CLEAR(self->name);
    PyErr_Restore(kind, value, traceback);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyObject *
Scope_tp_repr(PyObject *op)
{
    ScopeObject *self = (ScopeObject *)op;
    return PyUnicode_FromFormat(
        "<gpumem.Scope %R %s, %zd buffers, %zd bytes, peak %zd bytes>", self->name,
        self->active ? "active" : "not active", self->count, self->used, self->peak);
}

/* ---- entry ------------------------------------------------------------------------------- */

static PyObject *
Scope_enter(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    ScopeObject *self = (ScopeObject *)op;
    core_state *state = state_of(op);
    if (self->active) {
        PyErr_Format(PyExc_RuntimeError,
                     "scope %R is entered already; a scope object is not re-entrant, "
                     "make another one",
                     self->name);
        return NULL;
    }
    int error;
    PyObject *deferred = PyTuple_New(0);
    ScopeObject *parent = deferred != NULL ? scope_innermost(state, &error) : NULL;
    if (deferred == NULL || error < 0) {
        Py_XDECREF(deferred);
        return NULL;
    }
    PyObject *token = PyContextVar_Set(state->scope_variable, op);
    if (token == NULL) {
        Py_DECREF(deferred);
        return NULL;
    }
    self->token = token;
    self->parent = (ScopeObject *)Py_XNewRef((PyObject *)parent);
    self->context = Py_XNewRef(running_context());
    self->used = self->peak = self->count = self->released = 0;
    self->clock = state->climb_clock;
    self->active = true;
    state->scopes_active++;
    Py_XSETREF(self->deferred, deferred);
    return Py_NewRef(op);
}

/* ---- exit -------------------------------------------------------------------------------- */

/* 0 when the scope may be left now, else -1 with RuntimeError; changes nothing. */
static int
scope_check_exit(core_state *state, ScopeObject *self)
{
    if (!self->active) {
        PyErr_Format(PyExc_RuntimeError, "scope %R is not entered", self->name);
        return -1;
    }
    if (!scope_is_of_this_context(self) || self->token == NULL) {
        PyErr_Format(
            PyExc_RuntimeError,
            "scope %R was entered in another context (thread or task) and must "
            "be left there",
            self->name);
        return -1;
    }
    int error;
    ScopeObject *innermost = scope_innermost(state, &error);
    if (error < 0) {
        return -1;
    }
    if (innermost != self) {
        PyErr_Format(
            PyExc_RuntimeError,
            "scope %R cannot be left before scope %R, which was entered inside",
            self->name, innermost != NULL ? innermost->name : Py_None);
        return -1;
    }
    return PyContextVar_Reset(state->scope_variable, self->token);
}

/* Appends (name or address, bytes, reason) to the list; failures are reported. */
static void
note_deferred(PyObject *list, PyObject *name, gm_devptr address, Py_ssize_t bytes,
              const char *reason)
{
    PyObject *label = name != NULL
                          ? Py_NewRef(name)
                          : PyUnicode_FromFormat("%p", (void *)(uintptr_t)address);
    PyObject *entry = label != NULL ? Py_BuildValue("Ons", label, bytes, reason) : NULL;
    if (list == NULL || entry == NULL || PyList_Append(list, entry) < 0) {
        PyErr_WriteUnraisable(list);
    }
    Py_XDECREF(label);
    Py_XDECREF(entry);
}

/* Leaves a buffer behind that somebody looks into. Creates *list on first use. */
static void
scope_defer(ScopeObject *self, BufferObject *root, PyObject **list)
{
    bool exported = root->exports > 0;
    PyObject *name = Py_XNewRef(root->name);
    gm_devptr address = root->ptr;
    Py_ssize_t bytes = root_bytes(root);
    scope_remove(root);
    if (exported) {
        Py_XSETREF(root->scope_name, Py_NewRef(self->name));
        root->release_when_idle = true;
    }
    /* From here on the object may go: making entries may run a collection. */
    if (*list == NULL) {
        *list = PyList_New(0);
    }
    note_deferred(*list, name, address, bytes,
                  exported ? "exported" : "interface read");
    Py_XDECREF(name);
}

/* Gives back what can go; the list is read anew each time, since callbacks and
 * collections may change it. */
static void
scope_release_all(core_state *state, ScopeObject *self)
{
    PyObject *deferred = NULL;
    while (!gm_list_is_empty(&self->buffers)) {
        BufferObject *root =
            GM_CONTAINER_OF(self->buffers.next, BufferObject, scope_link);
        if (root->exports > 0 || root->interface_read) {
            scope_defer(self, root, &deferred);
            continue;
        }
        self->released += root_bytes(root);
        buffer_release_now(state, root, self->name);
    }
    if (deferred != NULL) {
        PyObject *tuple = PyList_AsTuple(deferred);
        Py_DECREF(deferred);
        if (tuple == NULL) {
            PyErr_WriteUnraisable(self->name);
            return;
        }
        Py_XSETREF(self->deferred, tuple);
    }
}

static PyObject *
Scope_exit(PyObject *op, PyObject *args)
{
    ScopeObject *self = (ScopeObject *)op;
    core_state *state = state_of(op);
    bool body_raised =
        PyTuple_GET_SIZE(args) > 0 && PyTuple_GET_ITEM(args, 0) != Py_None;
    if (scope_check_exit(state, self) < 0) {
        if (!body_raised) {
            return NULL;
        }
        PyErr_Clear();
        warn_unraisable(state,
                        "scope %R could not be left: it is not the innermost one "
                        "of this context",
                        self->name);
        Py_RETURN_FALSE;
    }
    self->active = false;
    state->scopes_active--;
    scope_release_all(state, self);
    Py_CLEAR(self->token);
    Py_CLEAR(self->context);
    Py_CLEAR(self->parent);
    scope_trim_pools(state, self);
    Py_RETURN_FALSE;
}

/* ---- keep -------------------------------------------------------------------------------- */

static PyObject *
Scope_keep(PyObject *op, PyObject *buffers)
{
    ScopeObject *self = (ScopeObject *)op;
    core_state *state = state_of(op);
    Py_ssize_t count = PyTuple_GET_SIZE(buffers);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *buffer = PyTuple_GET_ITEM(buffers, i);
        if (!Py_IS_TYPE(buffer, state->Buffer_Type)) {
            PyErr_Format(PyExc_TypeError, "keep() takes Buffers, not %.100s",
                         Py_TYPE(buffer)->tp_name);
            return NULL;
        }
        if (buffer_require(state, (BufferObject *)buffer) < 0) {
            return NULL;
        }
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        BufferObject *root = buffer_root((BufferObject *)PyTuple_GET_ITEM(buffers, i));
        if (root->scope != self) {
            continue;
        }
        scope_remove(root);
        ScopeObject *outer = self->parent;
        while (outer != NULL && !scope_counts(outer, root->pool)) {
            outer = outer->parent;
        }
        if (outer != NULL) {
            scope_add(outer, root);
        }
    }
    return Py_NewRef(count == 1 ? PyTuple_GET_ITEM(buffers, 0) : buffers);
}

/* ---- the type ----------------------------------------------------------------------------- */

static PyObject *
current_scope(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    int error;
    ScopeObject *scope = scope_innermost(state_of_module(module), &error);
    if (error < 0) {
        return NULL;
    }
    return Py_NewRef(scope != NULL ? (PyObject *)scope : Py_None);
}

PyMethodDef scope_functions[] = {
    {"current_scope", current_scope, METH_NOARGS,
     "current_scope($module, /)\n--\n\n"
     "The innermost active scope of this context, or None."},
    {NULL, NULL, 0, NULL},
};

static PyObject *
Scope_get_name(PyObject *op, void *Py_UNUSED(closure))
{
    return Py_NewRef(((ScopeObject *)op)->name);
}

static PyObject *
Scope_get_active(PyObject *op, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(((ScopeObject *)op)->active);
}

static PyObject *
Scope_get_deferred(PyObject *op, void *Py_UNUSED(closure))
{
    ScopeObject *self = (ScopeObject *)op;
    return self->deferred != NULL ? Py_NewRef(self->deferred) : PyTuple_New(0);
}

static PyGetSetDef Scope_getset[] = {
    {"name", Scope_get_name, NULL, "The name that errors and reports show.", NULL},
    {"active", Scope_get_active, NULL, "Whether it is entered now.", NULL},
    {"deferred", Scope_get_deferred, NULL,
     "What could not go at the last exit: (name or address, bytes, 'exported' or\n"
     "'interface read').",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef Scope_members[] = {
    {"used", Py_T_PYSSIZET, offsetof(ScopeObject, used), Py_READONLY,
     "Bytes of its own live buffers, as the pool counts them."},
    {"peak", Py_T_PYSSIZET, offsetof(ScopeObject, peak), Py_READONLY,
     "The highest `used` since entry."},
    {"count", Py_T_PYSSIZET, offsetof(ScopeObject, count), Py_READONLY,
     "Its own live buffers."},
    {"released", Py_T_PYSSIZET, offsetof(ScopeObject, released), Py_READONLY,
     "Bytes that the last exit gave back."},
    {"__weaklistoffset__", Py_T_PYSSIZET, offsetof(ScopeObject, weakrefs), Py_READONLY,
     NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef Scope_methods[] = {
    {"keep", Scope_keep, METH_VARARGS,
     "keep($self, /, *buffers)\n--\n\n"
     "Hands buffers to the enclosing scope, or to nobody, so that they survive this "
     "one.\n"
     "Buffers of other scopes stay where they are. Returns the one, or the tuple."},
    {"__enter__", Scope_enter, METH_NOARGS, NULL},
    {"__exit__", Scope_exit, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static char Scope_doc[] =
    "Scope(name=None, *, pool=None, trim='auto')\n--\n\n"
    "A with block whose buffers are given back at its end, whoever still holds "
    "them.\n\n"
    "pool=None counts allocations in every pool. trim says what happens to idle "
    "memory\n"
    "at the end: 'auto' gives it back if memory was short inside, True always, False\n"
    "never, a size down to that many reserved bytes. A scope holds for the thread or\n"
    "task that entered it; threads and tasks started inside are outside.";

static PyType_Slot Scope_slots[] = {
    {Py_tp_doc, Scope_doc},
    {Py_tp_new, Scope_tp_new},
    {Py_tp_traverse, Scope_tp_traverse},
    {Py_tp_clear, Scope_tp_clear},
    {Py_tp_dealloc, Scope_tp_dealloc},
    {Py_tp_repr, Scope_tp_repr},
    {Py_tp_getset, Scope_getset},
    {Py_tp_members, Scope_members},
    {Py_tp_methods, Scope_methods},
    {0, NULL},
};

static PyType_Spec Scope_spec = {
    .name = "gpumem.Scope",
    .basicsize = sizeof(ScopeObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = Scope_slots,
};

int
scope_init(PyObject *module, core_state *state)
{
    state->scope_variable = PyContextVar_New("gpumem.scope", Py_None);
    if (state->scope_variable == NULL) {
        return -1;
    }
    state->Scope_Type =
        (PyTypeObject *)PyType_FromModuleAndSpec(module, &Scope_spec, NULL);
    if (state->Scope_Type == NULL) {
        return -1;
    }
    return PyModule_AddType(module, state->Scope_Type);
}
