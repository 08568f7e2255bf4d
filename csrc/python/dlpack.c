/* dlpack.c - buffers as DLPack tensors, and other people's tensors as sources.
 *
 * An export is a managed tensor that holds a reference and an export on its buffer
 * until the consumer calls the deleter.
 *
 * Note [Deleters come late]
 * A consumer may call the deleter on any thread, without the GIL, after the
 * interpreter is gone, or (a mistake that must not corrupt anything) twice. So the
 * record behind a tensor says whether it is live, the first call takes that mark, and
 * records are recycled rather than freed, oldest first and not before RECYCLE_AFTER
 * others: a second call finds a record that is still there. Once the interpreter is
 * going down the buffer is left as it is.
 *
 * Thread-safety: the deleter from everywhere; all else the GIL. The list of records is
 * one for the process, under its own lock, since a deleter has no interpreter at hand.
 */
#include "python/python.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/mutex.h"
#include "base/process.h"
#include "python/buffer.h"
#include "python/dlpack_abi.h"

#define RECYCLE_AFTER 256

typedef struct export_record {
    union {
        dl_managed_tensor legacy;
        dl_managed_tensor_versioned versioned;
    } managed;
    _Atomic bool live;
    BufferObject *buffer; /* strong and exported while live */
    PyInterpreterState *interpreter;
    gm_list link;                     /* in idle_records while not live */
    int64_t dims[2 * BUFFER_MAX_DIM]; /* shape, then strides */
} export_record;

static struct {
    gm_mutex lock;
    gm_list records; /* oldest first */
    size_t count;
} idle = {.lock = {.word = 0, .rank = GM_RANK_REGISTRY},
          .records = {&idle.records, &idle.records}};

/* The parent's records are leaked: one may have been half in the list. */
static void
forget_parent(void)
{
    gm_mutex_init(&idle.lock, GM_RANK_REGISTRY);
    gm_list_init(&idle.records);
    idle.count = 0;
}

GM_IN_FORKED_CHILD(forget_parent);

/* ---- records --------------------------------------------------------------------- */

static export_record *
record_take(void)
{
    export_record *record = NULL;
    gm_mutex_lock(&idle.lock);
    if (idle.count > RECYCLE_AFTER) {
        record = GM_CONTAINER_OF(idle.records.next, export_record, link);
        gm_list_remove(&record->link);
        idle.count--;
    }
    gm_mutex_unlock(&idle.lock);
    if (record == NULL) {
        record = malloc(sizeof(*record));
    }
    return record;
}

static void
record_give(export_record *record)
{
    gm_mutex_lock(&idle.lock);
    gm_list_push_back(&idle.records, &record->link);
    idle.count++;
    gm_mutex_unlock(&idle.lock);
}

static void
drop_buffer(BufferObject *buffer)
{
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    buffer_export_end(state_of((PyObject *)buffer), buffer);
    Py_DECREF(buffer);
    PyErr_Restore(kind, value, trace);
}

/* The calling thread's state if it holds a GIL, else NULL. */
static PyThreadState *
current_thread_state(void)
{
#if PY_VERSION_HEX >= 0x030D0000
    return PyThreadState_GetUnchecked();
#else
    return _PyThreadState_UncheckedGet();
#endif
}

static bool
interpreter_is_leaving(void)
{
#if PY_VERSION_HEX >= 0x030D0000
    return !Py_IsInitialized() || Py_IsFinalizing();
#else
    return !Py_IsInitialized() || _Py_IsFinalizing();
#endif
}

/* Is this interpreter still there? */
static bool
interpreter_is_alive(const PyInterpreterState *wanted)
{
    PyInterpreterState *each = PyInterpreterState_Head();
    while (each != NULL && each != wanted) {
        each = PyInterpreterState_Next(each);
    }
    return each != NULL;
}

/* Drops the buffer with a thread state of its own interpreter. */
static void
drop_buffer_in(PyInterpreterState *interpreter, BufferObject *buffer,
               PyThreadState *current)
{
    PyThreadState *own = PyThreadState_New(interpreter);
    if (own == NULL) {
        return;
    }
    if (current != NULL) {
        PyThreadState_Swap(own);
        drop_buffer(buffer);
        PyThreadState_Clear(own);
        PyThreadState_Swap(current);
        PyThreadState_Delete(own);
        return;
    }
    PyEval_RestoreThread(own);
    drop_buffer(buffer);
    PyThreadState_Clear(own);
    PyThreadState_DeleteCurrent();
}

/* Ends an export, from any thread; see Note [Deleters come late]. */
static void
record_release(export_record *record)
{
    if (!atomic_exchange(&record->live, false)) {
        return;
    }
    PyThreadState *current = Py_IsInitialized() ? current_thread_state() : NULL;
    if (current != NULL &&
        PyThreadState_GetInterpreter(current) == record->interpreter) {
        drop_buffer(record->buffer);
    }
    else if (interpreter_is_leaving() || gm_process_is_exiting() ||
             !interpreter_is_alive(record->interpreter)) {
        return; /* the record goes with the process, as its buffer does */
    }
    else if (current == NULL && record->interpreter == PyInterpreterState_Main()) {
        PyGILState_STATE gil = PyGILState_Ensure();
        drop_buffer(record->buffer);
        PyGILState_Release(gil);
    }
    else {
        drop_buffer_in(record->interpreter, record->buffer, current);
    }
    record_give(record);
}

static void
delete_legacy(dl_managed_tensor *managed)
{
    record_release(managed->context);
}

static void
delete_versioned(dl_managed_tensor_versioned *managed)
{
    record_release(managed->context);
}

/* ---- export ---------------------------------------------------------------------- */

/* The kind and index of a buffer's device; BufferError when DLPack has none. */
static int
device_of_buffer(BufferObject *self, dl_device *out)
{
    const gm_device_info *info = &buffer_device(self)->info;
    if (!gm_device_has(buffer_device(self), GM_CAP_MEMORY)) {
        PyErr_Format(
            PyExc_BufferError,
            "%s has no memory behind its addresses: there is nothing to export",
            info->name);
        return -1;
    }
    bool cuda = info->kind == GM_DEVICE_CUDA;
    out->kind = cuda ? DL_CUDA : DL_CPU;
    out->index = cuda ? info->index : 0;
    return 0;
}

PyObject *
buffer_dlpack_device(PyObject *op, PyObject *Py_UNUSED(unused))
{
    dl_device device;
    if (device_of_buffer((BufferObject *)op, &device) < 0) {
        return NULL;
    }
    return Py_BuildValue("(ii)", device.kind, device.index);
}

static void
fill_tensor(export_record *record, BufferObject *self, dl_device device,
            dl_tensor *tensor)
{
    for (int axis = 0; axis < self->ndim; axis++) {
        record->dims[axis] = self->shape[axis];
        record->dims[self->ndim + axis] =
            self->shape[self->ndim + axis] / self->dtype->itemsize;
    }
    tensor->data = gm_device_host_pointer(self->ptr);
    tensor->device = device;
    tensor->ndim = self->ndim;
    tensor->dtype.code = self->dtype->dlpack_code;
    tensor->dtype.bits = self->dtype->dlpack_bits;
    tensor->dtype.lanes = 1;
    tensor->shape = record->dims;
    tensor->strides = record->dims + self->ndim;
    tensor->byte_offset = 0;
}

static void
destroy_capsule(PyObject *capsule)
{
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    if (PyCapsule_IsValid(capsule, DL_CAPSULE)) {
        dl_managed_tensor *managed = PyCapsule_GetPointer(capsule, DL_CAPSULE);
        managed->deleter(managed);
    }
    else if (PyCapsule_IsValid(capsule, DL_CAPSULE_VERSIONED)) {
        dl_managed_tensor_versioned *managed =
            PyCapsule_GetPointer(capsule, DL_CAPSULE_VERSIONED);
        managed->deleter(managed);
    }
    PyErr_Restore(kind, value, trace);
}

/* New reference: a capsule that holds `self` until its tensor is deleted. */
static PyObject *
make_capsule(BufferObject *self, dl_device device, bool versioned, bool copied)
{
    export_record *record = record_take();
    if (record == NULL) {
        return PyErr_NoMemory();
    }
    gm_list_init(&record->link);
    PyObject *capsule;
    if (versioned) {
        dl_managed_tensor_versioned *managed = &record->managed.versioned;
        fill_tensor(record, self, device, &managed->tensor);
        managed->version = (dl_version){DL_MAJOR, DL_MINOR};
        managed->flags = copied ? DL_FLAG_IS_COPIED : 0;
        managed->context = record;
        managed->deleter = delete_versioned;
        capsule = PyCapsule_New(managed, DL_CAPSULE_VERSIONED, destroy_capsule);
    }
    else {
        dl_managed_tensor *managed = &record->managed.legacy;
        fill_tensor(record, self, device, &managed->tensor);
        managed->context = record;
        managed->deleter = delete_legacy;
        capsule = PyCapsule_New(managed, DL_CAPSULE, destroy_capsule);
    }
    atomic_init(&record->live, capsule != NULL);
    if (capsule == NULL) {
        record_give(record);
        return NULL;
    }
    record->interpreter = PyInterpreterState_Get();
    record->buffer = (BufferObject *)Py_NewRef((PyObject *)self);
    buffer_export_begin(self);
    return capsule;
}

/* ---- __dlpack__ ------------------------------------------------------------------ */

/* The keyword arguments; borrowed, NULL or None when not given. */
typedef struct dlpack_call {
    PyObject *stream;
    PyObject *max_version;
    PyObject *dl_device;
    PyObject *copy;
} dlpack_call;

static int
parse_keywords(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
               dlpack_call *out)
{
    Py_ssize_t keywords = kwnames != NULL ? PyTuple_GET_SIZE(kwnames) : 0;
    *out = (dlpack_call){Py_None, Py_None, Py_None, Py_None};
    if (nargs != 0) {
        PyErr_SetString(PyExc_TypeError, "__dlpack__() takes keyword arguments only");
        return -1;
    }
    for (Py_ssize_t i = 0; i < keywords; i++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, i);
        if (PyUnicode_CompareWithASCIIString(name, "stream") == 0) {
            out->stream = args[i];
        }
        else if (PyUnicode_CompareWithASCIIString(name, "max_version") == 0) {
            out->max_version = args[i];
        }
        else if (PyUnicode_CompareWithASCIIString(name, "dl_device") == 0) {
            out->dl_device = args[i];
        }
        else if (PyUnicode_CompareWithASCIIString(name, "copy") == 0) {
            out->copy = args[i];
        }
        else {
            PyErr_Format(PyExc_TypeError, "__dlpack__() has no keyword argument %R",
                         name);
            return -1;
        }
    }
    return 0;
}

/* Two ints. */
static int
parse_pair(PyObject *value, const char *argument, long *first, long *second)
{
    if (PyTuple_Check(value) && PyTuple_GET_SIZE(value) == 2) {
        *first = PyLong_AsLong(PyTuple_GET_ITEM(value, 0));
        if (*first != -1 || !PyErr_Occurred()) {
            *second = PyLong_AsLong(PyTuple_GET_ITEM(value, 1));
            if (*second != -1 || !PyErr_Occurred()) {
                return 0;
            }
        }
        PyErr_Clear();
    }
    PyErr_Format(PyExc_TypeError, "%s must be a tuple of two ints or None, not %R",
                 argument, value);
    return -1;
}

/* BufferError unless the consumer's device is ours. */
static int
check_device(PyObject *wanted, dl_device device)
{
    long kind, index;
    if (wanted == Py_None) {
        return 0;
    }
    if (parse_pair(wanted, "dl_device", &kind, &index) < 0) {
        return -1;
    }
    if (kind != device.kind || index != device.index) {
        PyErr_Format(PyExc_BufferError,
                     "the buffer is on DLPack device (%d, %d), not (%ld, %ld); copy it "
                     "first",
                     (int)device.kind, (int)device.index, kind, index);
        return -1;
    }
    return 0;
}

/* Makes sure that the consumer sees finished work: -1 asks for nothing; a host consumer
 * has no stream, so the host waits; a CUDA stream waits for an event. */
static int
order_consumer(core_state *state, BufferObject *self, PyObject *stream, bool cuda)
{
    gm_device *device = buffer_device(self);
    long long number = 0;
    if (stream != Py_None) {
        number = PyLong_Check(stream) ? PyLong_AsLongLong(stream) : -2;
        if (number < -1 || (number == -1 && PyErr_Occurred()) ||
            (!cuda && number != -1) || (cuda && number == 0)) {
            PyErr_Clear();
            PyErr_Format(PyExc_ValueError,
                         cuda ? "stream must be None, -1, 1, 2 or a stream's address, "
                                "not %R"
                              : "stream must be None or -1 for host memory, not %R",
                         stream);
            return -1;
        }
        if (number == -1) {
            return 0;
        }
    }
    gm_stream consumer = number <= 1 ? GM_DEFAULT_STREAM : (gm_stream)number;
    if (self->nbytes == 0 || (cuda && consumer == self->stream)) {
        return 0;
    }
    return wait_for_stream(state, device, self->stream, UINT64_MAX) < 0 ? -1 : 0;
}

/* New reference: the same elements in a buffer of their own. */
static BufferObject *
copy_buffer(core_state *state, BufferObject *self)
{
    BufferObject *copy = buffer_create(state, self->pool, self->dtype, self->ndim,
                                       self->shape, self->stream, 0, 0, NULL);
    if (copy == NULL) {
        return NULL;
    }
    PyObject *result = PyObject_CallMethod((PyObject *)copy, "copy_from", "O", self);
    if (result == NULL) {
        Py_DECREF(copy);
        return NULL;
    }
    Py_DECREF(result);
    return copy;
}

PyObject *
buffer_dlpack(PyObject *op, PyTypeObject *Py_UNUSED(type), PyObject *const *args,
              Py_ssize_t nargs, PyObject *kwnames)
{
    BufferObject *self = (BufferObject *)op;
    core_state *state = state_of(op);
    dlpack_call call;
    dl_device device;
    long major = 0, minor = 0;
    if (parse_keywords(args, nargs, kwnames, &call) < 0 ||
        buffer_require(state, self) < 0 || device_of_buffer(self, &device) < 0 ||
        check_device(call.dl_device, device) < 0) {
        return NULL;
    }
    if (call.max_version != Py_None &&
        parse_pair(call.max_version, "max_version", &major, &minor) < 0) {
        return NULL;
    }
    int copy = call.copy == Py_None ? 0 : PyObject_IsTrue(call.copy);
    if (copy < 0) {
        return NULL;
    }
    BufferObject *exported =
        copy ? copy_buffer(state, self) : (BufferObject *)Py_NewRef(op);
    if (exported == NULL) {
        return NULL;
    }
    PyObject *capsule = NULL;
    if (order_consumer(state, exported, call.stream, device.kind == DL_CUDA) == 0 &&
        buffer_require(state, exported) == 0) {
        capsule = make_capsule(exported, device, major >= 1, copy != 0);
    }
    Py_DECREF(exported);
    return capsule;
}
