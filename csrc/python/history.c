/* history.c - where an allocation was asked for: Python stacks as small numbers.
 *
 * A stack is up to STACK_DEPTH innermost frames, each as its code object and the offset
 * of the instruction; no frame object is kept, and lines and names are looked up only
 * when somebody asks. Equal stacks have one number, so the table has one entry for each
 * distinct stack that allocates, STACK_LIMIT at most; later ones get 0, "unknown".
 *
 * The table belongs to the interpreter and lives as long as the module, so that the
 * number in a block or in a history entry stays valid.
 *
 * Cost of a capture: one walk over the frames and one look-up in a dict.
 */
#include "python/python.h"

#include <string.h>

#define STACK_DEPTH 64
#define STACK_LIMIT 65536

/* One frame as it stands in the key. Compared as bytes, so it has no padding. */
typedef struct stack_entry {
    uintptr_t code;    /* a PyCodeObject, kept alive by stack_frames */
    intptr_t position; /* offset of the instruction in bytes; -1: before the first */
} stack_entry;

_Static_assert(sizeof(stack_entry) == sizeof(uintptr_t) + sizeof(intptr_t),
               "an entry is compared as bytes");

/* Fills entries[] innermost first; returns how many. Holds no reference afterwards: the
 * code objects are alive as long as their frames run. */
static size_t
walk_stack(stack_entry entries[])
{
    size_t depth = 0;
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    while (frame != NULL && depth < STACK_DEPTH) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        entries[depth].code = (uintptr_t)code;
        entries[depth].position = PyFrame_GetLasti(frame);
        depth++;
        Py_DECREF(code);
        PyFrameObject *outer = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = outer;
    }
    Py_XDECREF(frame);
    return depth;
}

/* New reference: (code, position, code, position, ...). */
static PyObject *
stack_to_tuple(const stack_entry entries[], size_t depth)
{
    PyObject *tuple = PyTuple_New((Py_ssize_t)(2 * depth));
    for (size_t i = 0; i < depth && tuple != NULL; i++) {
        PyObject *position = PyLong_FromSsize_t(entries[i].position);
        if (position == NULL) {
            Py_CLEAR(tuple);
            break;
        }
        PyTuple_SET_ITEM(tuple, (Py_ssize_t)(2 * i),
                         Py_NewRef((PyObject *)entries[i].code));
        PyTuple_SET_ITEM(tuple, (Py_ssize_t)(2 * i + 1), position);
    }
    return tuple;
}

/* Gives a new stack its number; 0 when the table is full or on failure, which leaves an
 * exception. `key` is borrowed. */
static uint64_t
intern_stack(core_state *state, PyObject *key, const stack_entry entries[], size_t depth)
{
    if (PyDict_GET_SIZE(state->stack_ids) >= STACK_LIMIT) {
        return 0;
    }
    PyObject *frames = stack_to_tuple(entries, depth);
    if (frames == NULL) {
        return 0;
    }
    /* Making the tuple may have run a collection and, in it, another capture: the
     * number is chosen only now, and nothing below runs Python code. */
    uint64_t result = 0;
    Py_ssize_t number = PyDict_GET_SIZE(state->stack_ids) + 1;
    PyObject *id = PyLong_FromSsize_t(number);
    if (id != NULL && PyDict_SetItem(state->stack_frames, id, frames) == 0 &&
        PyDict_SetItem(state->stack_ids, key, id) == 0) {
        result = (uint64_t)number;
    }
    Py_XDECREF(id);
    Py_DECREF(frames);
    return result;
}

uint64_t
stack_capture(core_state *state)
{
    stack_entry entries[STACK_DEPTH];
    PyObject *kind, *value, *traceback;
    uint64_t result = 0;
    PyErr_Fetch(&kind, &value, &traceback);
    size_t depth = walk_stack(entries);
    if (depth > 0) {
        PyObject *key = PyBytes_FromStringAndSize(
            (const char *)entries, (Py_ssize_t)(depth * sizeof(entries[0])));
        if (key != NULL) {
            PyObject *id = PyDict_GetItemWithError(state->stack_ids, key);
            if (id != NULL) {
                result = PyLong_AsUnsignedLongLong(id);
            }
            else if (!PyErr_Occurred()) {
                result = intern_stack(state, key, entries, depth);
            }
            Py_DECREF(key);
        }
    }
    PyErr_Clear();
    PyErr_Restore(kind, value, traceback);
    return result;
}

/* ---- resolving ----------------------------------------------------------------------------- */

/* New reference: (file, line, function) of one frame. */
static PyObject *
resolve_frame(PyObject *code_object, PyObject *position_object)
{
    PyCodeObject *code = (PyCodeObject *)code_object;
    long position = PyLong_AsLong(position_object);
    int line = position < 0 ? code->co_firstlineno : PyCode_Addr2Line(code, (int)position);
    return Py_BuildValue("OiO", code->co_filename, line, code->co_qualname);
}

PyDoc_STRVAR(stack_frames_doc,
"stack_frames($module, context, /)\n"
"--\n\n"
"The frames of a recorded stack, innermost first, as (file, line, function); [] for 0\n"
"and for unknown numbers. At most 64 frames of a stack and 65536 distinct stacks are\n"
"kept.");

static PyObject *
stack_frames(PyObject *module, PyObject *context)
{
    core_state *state = state_of_module(module);
    if (!PyLong_Check(context)) {
        PyErr_Format(PyExc_TypeError, "context must be an int, not %.100s",
                     Py_TYPE(context)->tp_name);
        return NULL;
    }
    PyObject *frames = PyDict_GetItemWithError(state->stack_frames, context);
    if (frames == NULL) {
        return PyErr_Occurred() ? NULL : PyList_New(0);
    }
    Py_INCREF(frames);
    Py_ssize_t depth = PyTuple_GET_SIZE(frames) / 2;
    PyObject *list = PyList_New(depth);
    for (Py_ssize_t i = 0; i < depth && list != NULL; i++) {
        PyObject *frame = resolve_frame(PyTuple_GET_ITEM(frames, 2 * i),
                                        PyTuple_GET_ITEM(frames, 2 * i + 1));
        if (frame == NULL) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, i, frame);
    }
    Py_DECREF(frames);
    return list;
}

PyMethodDef history_functions[] = {
    {"stack_frames", stack_frames, METH_O, stack_frames_doc},
    {NULL, NULL, 0, NULL},
};

int
history_init(PyObject *Py_UNUSED(module), core_state *state)
{
    state->stack_ids = PyDict_New();
    state->stack_frames = PyDict_New();
    return state->stack_ids == NULL || state->stack_frames == NULL ? -1 : 0;
}
