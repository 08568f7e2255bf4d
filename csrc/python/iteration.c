/* iteration.c - what Pool.iteration() returns: one period of a program.
 *
 * A training step, a request: work that comes again in the same shape. The object
 * counts periods and says what one cost: allocations, and the calls that went to the
 * device for memory. In a steady state the latter are 0.
 */
#include "python/pool_object.h"

#include <stddef.h>

typedef struct IterationObject {
    PyObject_HEAD
    PoolObject *pool;          /* strong */
    unsigned long long number; /* 1 for the first of the pool; 0: not entered yet */
    unsigned long long allocations;
    unsigned long long memory_calls;
    bool active;
} IterationObject;

PyObject *
Pool_iteration(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    PyTypeObject *type = state_of(op)->Iteration_Type;
    IterationObject *self = (IterationObject *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->pool = (PoolObject *)Py_NewRef(op);
    }
    return (PyObject *)self;
}

static int
Iteration_tp_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT((PyObject *)((IterationObject *)op)->pool);
    return 0;
}

static void
Iteration_tp_dealloc(PyObject *op)
{
    IterationObject *self = (IterationObject *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    PyObject *kind, *value, *traceback;
    PyErr_Fetch(&kind, &value, &traceback);
    if (self->active) {
        self->pool->iterating = false;
    }
    Py_CLEAR(self->pool);
    PyErr_Restore(kind, value, traceback);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyObject *
Iteration_tp_repr(PyObject *op)
{
    IterationObject *self = (IterationObject *)op;
    return PyUnicode_FromFormat(
        "<gpumem.Iteration %llu of %R, %llu allocations, %llu memory calls>",
        self->number, self->pool->name, self->allocations, self->memory_calls);
}

/* Calls that went to the device for memory so far. */
static unsigned long long
count_memory_calls(const gm_pool_stats *stats)
{
    return stats->num_device_alloc + stats->num_device_free + stats->maps +
           stats->unmaps;
}

static PyObject *
Iteration_enter(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    IterationObject *self = (IterationObject *)op;
    if (self->pool->iterating) {
        PyErr_Format(PyExc_RuntimeError,
                     "pool %R is inside an iteration already; iterations do not nest",
                     self->pool->name);
        return NULL;
    }
    self->pool->iterating = true;
    self->active = true;
    gm_pool_stats stats;
    pool_read_stats(self->pool, &stats);
    self->number = ++self->pool->iterations;
    self->allocations = stats.allocation.all.allocated;
    self->memory_calls = count_memory_calls(&stats);
    return Py_NewRef(op);
}

static PyObject *
Iteration_exit(PyObject *op, PyObject *Py_UNUSED(args))
{
    IterationObject *self = (IterationObject *)op;
    if (!self->active) {
        PyErr_SetString(PyExc_RuntimeError, "this iteration is not entered");
        return NULL;
    }
    self->active = false;
    self->pool->iterating = false;
    gm_pool_stats stats;
    pool_read_stats(self->pool, &stats);
    self->allocations = stats.allocation.all.allocated - self->allocations;
    self->memory_calls = count_memory_calls(&stats) - self->memory_calls;
    Py_RETURN_FALSE;
}

static PyObject *
Iteration_get_number(PyObject *op, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(((IterationObject *)op)->number);
}

/* A count of the finished period; None before its end. */
static PyObject *
finished_count(const IterationObject *self, unsigned long long count)
{
    if (self->active || self->number == 0) {
        Py_RETURN_NONE;
    }
    return PyLong_FromUnsignedLongLong(count);
}

static PyObject *
Iteration_get_allocations(PyObject *op, void *Py_UNUSED(closure))
{
    IterationObject *self = (IterationObject *)op;
    return finished_count(self, self->allocations);
}

static PyObject *
Iteration_get_memory_calls(PyObject *op, void *Py_UNUSED(closure))
{
    IterationObject *self = (IterationObject *)op;
    return finished_count(self, self->memory_calls);
}

static PyGetSetDef Iteration_getset[] = {
    {"number", Iteration_get_number, NULL, "1 for the pool's first; 0 before entry.",
     NULL},
    {"allocations", Iteration_get_allocations, NULL,
     "Blocks handed out in the period; None before its end.", NULL},
    {"memory_calls", Iteration_get_memory_calls, NULL,
     "Calls to the device for memory in the period; None before its end.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef Iteration_methods[] = {
    {"__enter__", Iteration_enter, METH_NOARGS, NULL},
    {"__exit__", Iteration_exit, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static char Iteration_doc[] =
    "One period of a program, marked by `with pool.iteration() as period:`.";

static PyType_Slot Iteration_slots[] = {
    {Py_tp_doc, Iteration_doc},
    {Py_tp_traverse, Iteration_tp_traverse},
    {Py_tp_dealloc, Iteration_tp_dealloc},
    {Py_tp_repr, Iteration_tp_repr},
    {Py_tp_getset, Iteration_getset},
    {Py_tp_methods, Iteration_methods},
    {0, NULL},
};

static PyType_Spec Iteration_spec = {
    .name = "gpumem.Iteration",
    .basicsize = sizeof(IterationObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = Iteration_slots,
};

int
iteration_init(PyObject *module, core_state *state)
{
    state->Iteration_Type =
        (PyTypeObject *)PyType_FromModuleAndSpec(module, &Iteration_spec, NULL);
    if (state->Iteration_Type == NULL) {
        return -1;
    }
    return PyModule_AddType(module, state->Iteration_Type);
}
