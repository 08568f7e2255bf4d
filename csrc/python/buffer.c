/* buffer.c - Buffer: device memory with a shape, and its life.
 *
 * A root buffer owns a block; views refer to their root, however many views lie
 * between. The block goes back to its pool when the object dies, by free(), or when
 * its scope ends, whichever is first; the object then stays as a shell that says so.
 *
 *     live --free(), scope ends--> released
 *       |                             ^
 *       | scope ends while exported   | the last export ends
 *       +------> release_when_idle ---+
 *
 * An export (a memoryview, a NumPy array, a DLPack tensor) is counted on the root and
 * holds a reference on the object it came from, so dealloc never meets one.
 *
 * Note [No cycles through a buffer]
 * A buffer refers to its pool, its root and two strings, none of which can refer back.
 * It takes part in garbage collection because of its type (module -> anything -> buffer
 * -> type -> module); tp_clear drops the strings alone, so that a buffer that somebody
 * meets during a collection still has its pool.
 *
 * Thread-safety: the GIL. Cost: creation is one object and one block; no other Python
 * object is made.
 */
#include "python/python.h"

#include <string.h>

#include "base/assert.h"
#include "base/process.h"
#include "python/buffer.h"

/* ---- creation -------------------------------------------------------------------- */

array_layout
buffer_layout(const BufferObject *self)
{
    array_layout layout = {self->ptr, self->ndim, self->shape, self->shape + self->ndim,
                           self->dtype->itemsize};
    return layout;
}

bool
buffer_is_contiguous(const BufferObject *self)
{
    return layout_is_contiguous(self->ndim, self->shape, self->shape + self->ndim,
                                self->dtype->itemsize);
}

/* How many dead objects are kept for the next ones. None in debug builds, where a use
 * after the death shall be found. */
#define BUFFER_SPARES (GM_DEBUG ? 0 : 64)

/* New reference: an object whose fields are not set. */
static BufferObject *
take_object(core_state *state)
{
    BufferObject *self = state->spare_buffers;
    if (self == NULL) {
        return PyObject_GC_New(BufferObject, state->Buffer_Type);
    }
    state->spare_buffers = self->root;
    state->spare_buffer_count--;
    return (BufferObject *)PyObject_Init((PyObject *)self, state->Buffer_Type);
}

/* Takes the memory of an object whose fields are dropped. `state` may be NULL. */
static void
give_object(core_state *state, BufferObject *self)
{
    if (state == NULL || state->spare_buffer_count >= BUFFER_SPARES) {
        PyObject_GC_Del(self);
        return;
    }
    self->root = state->spare_buffers;
    state->spare_buffers = self;
    state->spare_buffer_count++;
}

void
buffer_forget_spares(core_state *state)
{
    while (state->spare_buffers != NULL) {
        BufferObject *spare = state->spare_buffers;
        state->spare_buffers = spare->root;
        PyObject_GC_Del(spare);
    }
    state->spare_buffer_count = BUFFER_SPARES;
}

/* New reference: an object without memory, its shape copied, its strides and counts
 * unset. Not tracked yet. Every field is written once: this is the hot path, so the
 * object is not cleared first. */
static BufferObject *
buffer_new_object(core_state *state, PoolObject *pool, const dtype_info *dtype,
                  int ndim, const Py_ssize_t *shape)
{
    Py_ssize_t *dims = NULL;
    if (ndim > 2) {
        dims = PyMem_New(Py_ssize_t, 2 * (size_t)ndim);
        if (dims == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
    }
    BufferObject *self = take_object(state);
    if (self == NULL) {
        PyMem_Free(dims);
        return NULL;
    }
    self->block = NULL;
    self->ptr = 0;
    self->pool = (PoolObject *)Py_NewRef((PyObject *)pool);
    self->root = NULL;
    self->name = NULL;
    self->dtype = dtype;
    self->ndim = ndim;
    self->shape = dims != NULL ? dims : self->inline_dims;
    for (int axis = 0; axis < ndim; axis++) {
        self->shape[axis] = shape[axis];
    }
    self->exports = 0;
    self->released = false;
    self->interface_read = false;
    self->release_when_idle = false;
    self->scope_name = NULL;
    self->scope = NULL;
    gm_list_init(&self->scope_link);
    gm_list_init(&self->pool_link);
    self->weakrefs = NULL;
    state->live_buffers++;
    return self;
}

/* Another pool served the buffer. */
static void
buffer_move_to(BufferObject *self, PoolObject *pool)
{
    if (pool->device->device != self->pool->device->device) {
        self->stream = GM_DEFAULT_STREAM;
    }
    Py_INCREF((PyObject *)pool);
    Py_DECREF((PyObject *)self->pool);
    self->pool = pool;
}

/* Gives a new root its block and enters it where it belongs: a scope that counts the pool
 * that was asked has it, whichever pool serves. */
static int
buffer_take_memory(core_state *state, BufferObject *self, size_t span, size_t alignment,
                   bool anywhere)
{
    PoolObject *asked = self->pool, *served = asked;
    if (span > 0) {
        self->block =
            anywhere
                ? allocate_block_anywhere(state, &served, span, alignment, self->stream)
                : allocate_block(state, asked, span, alignment, self->stream);
        if (self->block == NULL) {
            return -1;
        }
        if (served != asked) {
            buffer_move_to(self, served);
        }
        self->ptr = gm_block_address(self->block);
        gm_list_push_back(&self->pool->buffers, &self->pool_link);
    }
    if (state->scopes_active > 0) {
        int error = 0;
        ScopeObject *scope = scope_current(state, asked, &error);
        if (error != 0) {
            return -1;
        }
        if (scope != NULL) {
            scope_add(scope, self);
        }
    }
    return 0;
}

static BufferObject *
buffer_make(core_state *state, PoolObject *pool, const dtype_info *dtype, int ndim,
            const Py_ssize_t *shape, gm_stream stream, size_t alignment, size_t pitch,
            PyObject *name, bool anywhere)
{
    Py_ssize_t size, nbytes;
    if (ndim == 1 && shape[0] <= (Py_ssize_t)(GM_SIZE_LIMIT / DTYPE_MAX_SIZE)) {
        size = shape[0];
        nbytes = size * dtype->itemsize;
    }
    else if (layout_count(dtype, ndim, shape, &size, &nbytes) < 0) {
        return NULL;
    }
    BufferObject *self = buffer_new_object(state, pool, dtype, ndim, shape);
    if (self == NULL) {
        return NULL;
    }
    self->size = size;
    self->nbytes = nbytes;
    self->stream = stream;
    self->name = Py_XNewRef(name);
    size_t span = (size_t)nbytes;
    if (pitch == 0) {
        layout_set_c_order(ndim, shape, dtype->itemsize, self->shape + ndim);
    }
    else if (layout_set_pitched(dtype, ndim, shape, pitch, self->shape + ndim, &span) <
             0) {
        Py_DECREF(self);
        return NULL;
    }
    if (buffer_take_memory(state, self, nbytes > 0 ? span : 0, alignment, anywhere) <
        0) {
        Py_DECREF(self);
        return NULL;
    }
    PyObject_GC_Track((PyObject *)self);
    return self;
}

BufferObject *
buffer_create(core_state *state, PoolObject *pool, const dtype_info *dtype, int ndim,
              const Py_ssize_t *shape, gm_stream stream, size_t alignment, size_t pitch,
              PyObject *name)
{
    return buffer_make(state, pool, dtype, ndim, shape, stream, alignment, pitch, name,
                       false);
}

BufferObject *
buffer_create_anywhere(core_state *state, PoolObject *pool, const dtype_info *dtype,
                       int ndim, const Py_ssize_t *shape, gm_stream stream,
                       size_t alignment, size_t pitch, PyObject *name)
{
    return buffer_make(state, pool, dtype, ndim, shape, stream, alignment, pitch, name,
                       true);
}

BufferObject *
buffer_create_view(core_state *state, BufferObject *base, const dtype_info *dtype,
                   int ndim, const Py_ssize_t *shape, const Py_ssize_t *strides,
                   Py_ssize_t offset)
{
    BufferObject *self = buffer_new_object(state, base->pool, dtype, ndim, shape);
    if (self == NULL) {
        return NULL;
    }
    self->root = (BufferObject *)Py_NewRef((PyObject *)buffer_root(base));
    self->stream = base->stream;
    self->size = 1;
    for (int axis = 0; axis < ndim; axis++) {
        self->size *= shape[axis];
    }
    self->nbytes = self->size * dtype->itemsize;
    self->ptr = self->nbytes > 0 ? base->ptr + (gm_devptr)offset : 0;
    if (strides == NULL) {
        layout_set_c_order(ndim, shape, dtype->itemsize, self->shape + ndim);
    }
    else {
        memcpy(self->shape + ndim, strides, (size_t)ndim * sizeof(*strides));
    }
    PyObject_GC_Track((PyObject *)self);
    return self;
}

/* ---- release --------------------------------------------------------------------- */

bool
buffer_is_orphan(const BufferObject *self)
{
    return buffer_device(self)->generation != gm_process_generation();
}

int
buffer_require(core_state *state, BufferObject *self)
{
    const BufferObject *root = buffer_root(self);
    if (!root->released && !buffer_is_orphan(root)) {
        return 0;
    }
    if (!root->released) {
        PyErr_SetString(state->ReleasedError,
                        "this buffer belongs to the parent process; its memory is not "
                        "there after fork");
    }
    else if (root->scope_name != NULL) {
        PyErr_Format(state->ReleasedError,
                     "this buffer was released at the end of scope %R; keep() it there "
                     "to use it later",
                     root->scope_name);
    }
    else {
        PyErr_SetString(state->ReleasedError, "this buffer was freed");
    }
    return -1;
}

int
buffer_require_host(BufferObject *self, PyObject *exception)
{
    if (gm_device_has(buffer_device(self), GM_CAP_HOST_ACCESS | GM_CAP_MEMORY)) {
        return 0;
    }
    PyErr_Format(exception,
                 "the host cannot read the memory of %s; copy it with "
                 "buf.copy_to(array) or buf.tobytes()",
                 buffer_device(self)->info.name);
    return -1;
}

void
buffer_release_now(core_state *state, BufferObject *root, PyObject *scope_name)
{
    if (root->released) {
        return;
    }
    root->released = true;
    root->release_when_idle = false;
    if (scope_name != NULL) {
        Py_XSETREF(root->scope_name, Py_NewRef(scope_name));
    }
    if (root->scope != NULL) {
        scope_remove(root);
    }
    gm_list_remove(&root->pool_link);
    gm_block *block = root->block;
    root->block = NULL;
    if (block != NULL) {
        free_block(state, root->pool, block);
    }
}

void
buffer_export_begin(BufferObject *self)
{
    BufferObject *root = buffer_root(self);
    if (root->exports++ == 0) {
        root->pool->exports++;
    }
}

void
buffer_export_end(core_state *state, BufferObject *self)
{
    BufferObject *root = buffer_root(self);
    if (--root->exports > 0) {
        return;
    }
    root->pool->exports--;
    if (root->release_when_idle && !root->interface_read) {
        buffer_release_now(state, root, root->scope_name);
    }
}

int
buffer_note_stream(core_state *state, BufferObject *self, gm_stream stream)
{
    BufferObject *root = buffer_root(self);
    if (root->block == NULL) {
        return 0;
    }
    gm_status status = gm_pool_record_stream(root->block, stream);
    if (status != GM_OK) {
        set_status_error(state, status, "record a stream on a buffer");
        return -1;
    }
    return 0;
}

int
buffer_note_queued(core_state *state, BufferObject *self, gm_stream stream)
{
    gm_device *device = buffer_device(self);
    uint64_t identity = device->ops->stream_identity(device, stream);
    return (identity & GM_IDENTITY_OF_THREAD) != 0
               ? buffer_note_stream(state, self, stream)
               : 0;
}

/* ---- slots of the type ----------------------------------------------------------- */

/* Without its module (the interpreter is being taken down) the block still goes back,
 * unless the process is exiting, when gm_pool_free does nothing. */
static void
buffer_drop_memory(core_state *state, BufferObject *self)
{
    if (self->scope != NULL) {
        scope_remove(self);
    }
    gm_list_remove(&self->pool_link);
    if (self->block != NULL) {
        if (state != NULL) {
            free_block(state, self->pool, self->block);
        }
        else {
            gm_pool_free(self->block);
        }
        self->block = NULL;
    }
}

void
Buffer_tp_dealloc(PyObject *op)
{
    BufferObject *self = (BufferObject *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    PyObject *kind = NULL, *value = NULL, *trace = NULL;
    bool pending = PyErr_Occurred() != NULL;
    if (pending) {
        PyErr_Fetch(&kind, &value, &trace);
    }
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs(op);
    }
    core_state *state = PyType_GetModuleState(type);
    if (state == NULL) {
        PyErr_Clear();
    }
    else {
        state->live_buffers--;
    }
    if (self->root == NULL) {
        buffer_drop_memory(state, self);
    }
    Py_XDECREF((PyObject *)self->root);
    Py_XDECREF(self->name);
    Py_XDECREF(self->scope_name);
    Py_XDECREF((PyObject *)self->pool);
    if (self->shape != self->inline_dims) {
        PyMem_Free(self->shape);
    }
    if (pending) {
        PyErr_Restore(kind, value, trace);
    }
    give_object(state, self);
    Py_DECREF(type);
}

/* ---- the buffer protocol --------------------------------------------------------- */

int
Buffer_bf_getbuffer(PyObject *op, Py_buffer *view, int flags)
{
    BufferObject *self = (BufferObject *)op;
    view->obj = NULL;
    if (buffer_require(state_of(op), self) < 0 ||
        buffer_require_host(self, PyExc_BufferError) < 0) {
        return -1;
    }
    if (export_fill(op, view, flags, gm_device_host_pointer(self->ptr), self->dtype,
                    self->ndim, self->shape, self->shape + self->ndim,
                    self->nbytes) < 0) {
        return -1;
    }
    buffer_export_begin(self);
    return 0;
}

void
Buffer_bf_releasebuffer(PyObject *op, Py_buffer *Py_UNUSED(view))
{
    buffer_export_end(state_of(op), (BufferObject *)op);
}
