/* history.c - where an allocation was asked for: Python stacks as small numbers.
 *
 * A stack is up to STACK_DEPTH innermost frames, each as its code object and its line;
 * no frame object is kept, and names are looked up only when somebody asks. Equal
 * stacks have one number, so the table has one entry for each distinct stack that
 * allocates, STACK_LIMIT at most; later ones get 0, "unknown".
 *
 * Note [Two keys]
 * The line of a frame is slow to find, its position in the byte code is not. So a
 * capture looks its stack up by positions first; only an unknown one is turned into
 * lines, which tell whether it is new. Several positions may stand for one line: the
 * key by positions then refers to the number of the key by lines. Both sorts are in one
 * dict; a line is stored as -2 - line, a position is -1 or more.
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
/* Keys of both sorts, at most. */
#define KEY_LIMIT (4 * STACK_LIMIT)

/* One frame as it stands in the key. Compared as bytes, so it has no padding. */
typedef struct stack_entry {
    uintptr_t code;    /* a PyCodeObject, kept alive by stack_frames */
    intptr_t position; /* offset of the instruction in bytes, -1: before the first;
                          or -2 - line */
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

/* Turns positions into lines; see Note [Two keys]. */
static void
positions_to_lines(stack_entry entries[], size_t depth)
{
    for (size_t i = 0; i < depth; i++) {
        PyCodeObject *code = (PyCodeObject *)entries[i].code;
        int position = (int)entries[i].position;
        int line =
            position < 0 ? code->co_firstlineno : PyCode_Addr2Line(code, position);
        entries[i].position = -2 - (intptr_t)line;
    }
}

/* New reference: (code, line, code, line, ...) of entries that hold lines. */
static PyObject *
stack_to_tuple(const stack_entry entries[], size_t depth)
{
    PyObject *tuple = PyTuple_New((Py_ssize_t)(2 * depth));
    for (size_t i = 0; i < depth && tuple != NULL; i++) {
        PyObject *line = PyLong_FromSsize_t(-2 - entries[i].position);
        if (line == NULL) {
            Py_CLEAR(tuple);
            break;
        }
        PyTuple_SET_ITEM(tuple, (Py_ssize_t)(2 * i),
                         Py_NewRef((PyObject *)entries[i].code));
        PyTuple_SET_ITEM(tuple, (Py_ssize_t)(2 * i + 1), line);
    }
    return tuple;
}

/* New reference: the bytes of the entries. */
static PyObject *
stack_key(const stack_entry entries[], size_t depth)
{
    return PyBytes_FromStringAndSize((const char *)entries,
                                     (Py_ssize_t)(depth * sizeof(entries[0])));
}

/* New reference: the number of a new stack under its key by lines, or NULL: the table is
 * full, or an exception. */
static PyObject *
number_stack(core_state *state, PyObject *key, const stack_entry entries[],
             size_t depth)
{
    PyObject *frames = stack_to_tuple(entries, depth);
    if (frames == NULL) {
        return NULL;
    }
    /* Making the tuple may have run a collection and, in it, another capture: the
     * number is chosen only now, and nothing below runs Python code. */
    Py_ssize_t number = PyDict_GET_SIZE(state->stack_frames) + 1;
    PyObject *id = number <= STACK_LIMIT ? PyLong_FromSsize_t(number) : NULL;
    if (id != NULL && (PyDict_SetItem(state->stack_frames, id, frames) < 0 ||
                       PyDict_SetItem(state->stack_ids, key, id) < 0)) {
        Py_CLEAR(id);
    }
    Py_DECREF(frames);
    return id;
}

/* The number of a stack whose positions are not known yet; 0 when it has none. `key` is
 * the key by positions, borrowed; `entries` end as lines. */
static uint64_t
intern_stack(core_state *state, PyObject *key, stack_entry entries[], size_t depth)
{
    uint64_t result = 0;
    positions_to_lines(entries, depth);
    PyObject *by_lines = stack_key(entries, depth);
    if (by_lines == NULL) {
        return 0;
    }
    PyObject *id = Py_XNewRef(PyDict_GetItemWithError(state->stack_ids, by_lines));
    if (id == NULL && !PyErr_Occurred()) {
        id = number_stack(state, by_lines, entries, depth);
    }
    if (id != NULL) {
        result = PyLong_AsUnsignedLongLong(id);
        if (PyDict_GET_SIZE(state->stack_ids) < KEY_LIMIT) {
            /* Without the key by positions the next capture is slower, no more. */
            (void)PyDict_SetItem(state->stack_ids, key, id);
        }
    }
    Py_XDECREF(id);
    Py_DECREF(by_lines);
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
        PyObject *key = stack_key(entries, depth);
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
resolve_frame(PyObject *code_object, PyObject *line)
{
    PyCodeObject *code = (PyCodeObject *)code_object;
    return Py_BuildValue("OOO", code->co_filename, line, code->co_qualname);
}

PyDoc_STRVAR(stack_frames_doc,
             "stack_frames($module, context, /)\n"
             "--\n\n"
             "The frames of a recorded stack, innermost first, as (file, line, "
             "function); [] for 0\n"
             "and for unknown numbers. At most 64 frames of a stack and 65536 distinct "
             "stacks are\n"
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
