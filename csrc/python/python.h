/* python.h - the one header that spells <Python.h>, and the seam between the types.
 *
 * Every file of csrc/python/ includes this first. It holds the module state, the
 * objects that more than one file looks into, and the functions that cross files,
 * each with its ownership ("New reference", "Borrowed", "Steals").
 *
 * Note [The GIL is outermost]
 * A thread may take a lock of the floors below while it holds the GIL, only by the
 * try functions or for a short critical section that never waits for another
 * thread's GIL. It never takes the GIL, nor touches any object, while it holds one.
 * Everything that may wait runs between Py_BEGIN_ALLOW_THREADS and
 * Py_END_ALLOW_THREADS.
 *
 * Note [State]
 * All types and all caches live in core_state, one for each interpreter. The
 * process-wide exceptions are documented where they are: the pool registry
 * (pool.h), the report hook, and the interpreter that callbacks belong to.
 */
#ifndef GM_PYTHON_PYTHON_H
#define GM_PYTHON_PYTHON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#if PY_VERSION_HEX < 0x030C0000
#include <structmember.h>
#define Py_T_PYSSIZET T_PYSSIZET
#define Py_READONLY READONLY
#endif

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "device/device.h"
#include "pool/pool.h"

/* ---- module state ------------------------------------------------------------- */

struct dtype_info;

typedef struct core_state {
    /* Types, strong references. */
    PyTypeObject *Device_Type;
    PyTypeObject *Stream_Type;
    PyTypeObject *Event_Type;
    PyTypeObject *Pool_Type;
    PyTypeObject *Buffer_Type;
    PyTypeObject *PinnedArray_Type;
    PyTypeObject *Pin_Type;
    PyTypeObject *Scope_Type;
    PyTypeObject *GradBuffer_Type;
    PyTypeObject *Iteration_Type;
    /* Exceptions, strong references. */
    PyObject *GpumemError;
    PyObject *OutOfMemoryError;
    PyObject *CudaError;
    PyObject *ReleasedError;
    PyObject *GpumemWarning;
    /* Hooks from set_hooks; strong references or NULL. */
    PyObject *hook_parse_size;
    PyObject *hook_default_device;
    PyObject *hook_default_pool;
    PyObject *hook_summary;
    PyObject *hook_snapshot;
    PyObject *hook_holders;
    PyObject *hook_oom;
    /* Callbacks from set_callbacks: tuples, or NULL. */
    PyObject *callbacks_alloc;
    PyObject *callbacks_free;
    PyObject *callbacks_oom;
    PyObject *callbacks_pressure;
    /* Scopes: the context variable, and how many scopes are entered anywhere in this
     * interpreter (0 lets an allocation skip the look-up). */
    PyObject *scope_variable;
    Py_ssize_t scopes_active;
    /* Stacks: bytes that identify one -> its number -> (code, line, ...) (history.c). */
    PyObject *stack_ids;
    PyObject *stack_frames;
    /* Live objects by type, for count_live(); guarded by the GIL. */
    Py_ssize_t live_devices;
    Py_ssize_t live_streams;
    Py_ssize_t live_events;
    Py_ssize_t live_pools;
    Py_ssize_t live_buffers;
    Py_ssize_t live_pinned;
    Py_ssize_t live_scopes;
    Py_ssize_t live_gradbuffers;
    /* All live PoolObjects, linked through PoolObject.link; guarded by the GIL. */
    gm_list pools;
    /* Host ranges registered by Pin (pinned.c); set up by pinned_init. */
    gm_list pins;
    /* NumPy was imported in this interpreter and its C API is loaded (numpy.c). */
    bool numpy_ready;
    /* All live StreamObjects, linked through StreamObject.link; guarded by the GIL. */
    gm_list streams;
    /* Counts the times that any pool climbed its ladder for a call from Python; a
     * scope compares it to know whether memory was short while it was open. */
    uint64_t climb_clock;
    /* Constant rows that hot paths need. */
    const struct dtype_info *dtype_uint8;
    /* Memory of dead Buffers for the next ones, linked through their root; at most
     * BUFFER_SPARES. Given back by buffer_forget_spares. */
    struct BufferObject *spare_buffers;
    int spare_buffer_count;
    /* Interned strings that hot paths compare with. */
    PyObject *str_uint8;
    PyObject *str_float32;
} core_state;

extern struct PyModuleDef core_module;

/* Borrowed. From a module, from a type defined in one, from any of our objects. */
core_state *
state_of_module(PyObject *module);
core_state *
state_of_type(PyTypeObject *type);
/* Works for subtypes-free heap types: every type of ours is final. */
static inline core_state *
state_of(PyObject *self)
{
    return (core_state *)PyType_GetModuleState(Py_TYPE(self));
}

/* The same for a dealloc, which may run when the type has lost its module already (the
 * interpreter is being taken down): NULL then, and no exception. */
static inline core_state *
state_of_dying(PyObject *self)
{
    core_state *state = (core_state *)PyType_GetModuleState(Py_TYPE(self));
    if (state == NULL) {
        PyErr_Clear();
    }
    return state;
}

/* ---- objects that several files look into -------------------------------------------- */

typedef struct DeviceObject {
    PyObject_HEAD
    gm_device *device; /* owned; the fault device when with_faults() made it */
    bool manual_clock; /* advance() moves its time */
    struct PoolObject
        *pinned; /* strong; its pool of pinned host memory, NULL before the
                                  first use. Dealloc drops it with pinned_forget() */
} DeviceObject;

typedef struct StreamObject {
    PyObject_HEAD
    DeviceObject *device; /* strong */
    gm_stream handle;
    bool owned; /* made here: destroyed by close() or with the object */
    bool closed;
    gm_list link; /* in core_state.streams */
    PyObject *weakrefs;
} StreamObject;

typedef struct PoolObject {
    PyObject_HEAD
    gm_pool *pool;        /* owned; never NULL after __init__ */
    DeviceObject *device; /* strong */
    PyObject *name;       /* str, strong */
    struct PoolObject
        *fallback;       /* strong; serves buffers that this one cannot; NULL: none.
                                    Made before it, so chains have an end */
    gm_list link;        /* in core_state.pools */
    gm_list buffers;     /* live BufferObjects that own a block, oldest first */
    Py_ssize_t exports;  /* how many of those are exported now */
    bool stacks;         /* record a stack with each allocation */
    bool traced;         /* an observer is set: callbacks exist */
    bool iterating;      /* inside iteration() */
    uint64_t iterations; /* how many were begun */
    uint64_t climbed_at; /* core_state.climb_clock of its last climb; 0: none */
    PyObject *weakrefs;
} PoolObject;

/* What shape.c knows of a dtype; static, one row each (dtype.c). */
typedef struct dtype_info {
    const char *name;    /* "float32", "bfloat16" */
    const char *format;  /* struct-module letter for the buffer protocol, "B" with
                              itemsize for types it has no letter for */
    const char *typestr; /* of the array interface: "<f4"; NULL if it has none */
    uint8_t itemsize;
    uint8_t dlpack_code; /* kDL*; 255: none */
    uint8_t dlpack_bits;
    int8_t kernel; /* index of kernels.h's gm_dtype, -1: no arithmetic */
} dtype_info;

#define BUFFER_MAX_DIM 32

typedef struct BufferObject {
    PyObject_HEAD
    gm_block *block; /* owned by a root buffer; NULL: zero bytes, released, or a view */
    gm_devptr ptr;   /* address of the first element; 0 when nbytes is 0 */
    PoolObject *pool;          /* strong */
    struct BufferObject *root; /* strong; NULL when this is the root */
    PyObject *name;            /* str or NULL */
    const dtype_info *dtype;
    int ndim;
    Py_ssize_t
        *shape; /* ndim sizes, then ndim strides in bytes; inline_dims or malloc */
    Py_ssize_t inline_dims[4];
    Py_ssize_t size;   /* elements */
    Py_ssize_t nbytes; /* size * itemsize */
    gm_stream stream;
    /* Of a root only: */
    Py_ssize_t exports; /* live consumers: buffer protocol, DLPack, views excluded */
    bool released;
    bool interface_read; /* __cuda_array_interface__ was read: dies with the object */
    bool release_when_idle;    /* its scope has ended; goes with the last export */
    PyObject *scope_name;      /* name of the scope that released it, or NULL */
    struct ScopeObject *scope; /* borrowed; NULL: none. The scope clears it */
    gm_list scope_link;        /* in ScopeObject.buffers */
    gm_list pool_link;         /* in PoolObject.buffers */
    PyObject *weakrefs;
} BufferObject;

typedef struct ScopeObject {
    PyObject_HEAD
    PyObject *name;             /* str */
    PoolObject *pool;           /* strong or NULL: every pool */
    struct ScopeObject *parent; /* strong while active */
    PyObject *token;            /* of the context variable, while active */
    gm_list buffers;            /* BufferObjects through scope_link, oldest first */
    Py_ssize_t used, peak, count, released;
    PyObject *deferred; /* tuple */
    PyObject *trim;     /* as given */
    PyObject *context;  /* the contextvars.Context that entered it, while active */
    uint64_t clock;     /* core_state.climb_clock at entry */
    int trim_mode;      /* a scope_trim of scope.c */
    size_t trim_target; /* bytes */
    bool active;
    PyObject *weakrefs;
} ScopeObject;

/* ---- errors.c -------------------------------------------------------------------------- */

/* Sets the exception for a failed status; `what` says what was tried ("map a page").
 * Always returns NULL. Never call with GM_OK. */
PyObject *
set_status_error(core_state *state, gm_status status, const char *what);

/* Sets OutOfMemoryError with the numbers of `oom`. Calls the holders and oom hooks.
 * `collected`: a collection was tried. Always returns NULL. */
PyObject *
set_oom_error(core_state *state, PoolObject *pool, const gm_oom *oom, bool collected);

/* Emits GpumemWarning; on failure (warnings are errors) writes it as unraisable. Keeps
 * a pending exception. */
void
warn_unraisable(core_state *state, const char *format, ...);

int
errors_init(PyObject *module, core_state *state);

/* ---- arguments (arguments.c) -------------------------------------------------------------- */

/* A byte count: int, or text through hook_parse_size. Rejects bool, float, negatives.
 * 0 on success, -1 with an exception that names the argument. */
int
parse_size(core_state *state, PyObject *value, const char *argument, size_t *out);

/* A stream: None (-> fallback), a Stream of that device, or a non-negative int. */
int
parse_stream(core_state *state, PyObject *value, gm_device *device, gm_stream fallback,
             gm_stream *out);

/* A count: an int from 0 to 2**63 - 1. 0, or -1 with an exception naming it. */
int
parse_count(PyObject *value, const char *argument, size_t *out);

/* Seconds as a non-negative finite number (or None -> UINT64_MAX) to nanoseconds. */
int
parse_seconds(PyObject *value, const char *argument, uint64_t *out);

/* One size or a sequence of sizes; *ndim and shape[0 .. *ndim) are filled. -1 with
 * TypeError or ValueError. */
int
parse_shape(PyObject *value, Py_ssize_t shape[], int *ndim);

/* True when both are the same device, a fault plan before it or not. */
bool
same_device(gm_device *left, gm_device *right);

/* New reference: a Device over `device` (takes its reference, also on failure). */
PyObject *
device_wrap(core_state *state, gm_device *device, bool manual_clock);

/* Waits without the GIL until the work on `stream` is done, in slices, so that a signal
 * handler can raise. 1: done, 0: the time was over, -1: exception. */
int
wait_for_stream(core_state *state, gm_device *device, gm_stream stream,
                uint64_t timeout_ns);

/* 0 when the device may be asked, else -1 with the exception that says why not. */
int
require_usable(core_state *state, gm_device *device, const char *what);

/* ---- allocation (alloc.c) ------------------------------------------------------------------ */

/* A block of `size` > 0 bytes: the fast path under the GIL, else without it, then the
 * rungs that need Python (pressure callbacks, one collection), then the error. Records
 * the stack when the pool does. NULL with an exception set. */
gm_block *
allocate_block(core_state *state, PoolObject *pool, size_t size, size_t alignment,
               gm_stream stream);

/* The same, but where the pool is out of memory its fallback is asked before the error, and
 * so on. *pool (borrowed) becomes the one that served. On another device the block is of
 * the default stream. */
gm_block *
allocate_block_anywhere(core_state *state, PoolObject **pool, size_t size,
                        size_t alignment, gm_stream stream);

/* The same for a block without an object (Pool.malloc): it may be freed by address. */
gm_block *
allocate_raw_block(core_state *state, PoolObject *pool, size_t size, gm_stream stream);

/* Returns a block to its pool; keeps a pending exception; never waits. */
void
free_block(core_state *state, PoolObject *pool, gm_block *block);

/* ---- buffer.c ------------------------------------------------------------------------------ */

/* New reference. A root buffer in `pool`, in the current scope. `shape` has ndim
 * non-negative sizes. pitch 0: rows are packed. Name may be NULL (borrowed). */
BufferObject *
buffer_create(core_state *state, PoolObject *pool, const dtype_info *dtype, int ndim,
              const Py_ssize_t *shape, gm_stream stream, size_t alignment, size_t pitch,
              PyObject *name);

/* The same, but a pool's fallback may serve it (allocate_block_anywhere). */
BufferObject *
buffer_create_anywhere(core_state *state, PoolObject *pool, const dtype_info *dtype,
                       int ndim, const Py_ssize_t *shape, gm_stream stream,
                       size_t alignment, size_t pitch, PyObject *name);

/* New reference. A view of `base` (its root is the owner) with its own shape. strides
 * NULL: C order. `offset` in bytes from base->ptr. */
BufferObject *
buffer_create_view(core_state *state, BufferObject *base, const dtype_info *dtype,
                   int ndim, const Py_ssize_t *shape, const Py_ssize_t *strides,
                   Py_ssize_t offset);

/* Borrowed: the owner of the memory. */
static inline BufferObject *
buffer_root(BufferObject *self)
{
    return self->root != NULL ? self->root : self;
}

/* For the end of the module, while its types are there: gives the spare objects'
 * memory back and keeps no more. */
void
buffer_forget_spares(core_state *state);

/* 0 when the memory is there, else -1 with ReleasedError that names the scope. */
int
buffer_require(core_state *state, BufferObject *self);

/* Gives the block of a root back now. Pre: no exports. Unlinks it from its scope. */
void
buffer_release_now(core_state *state, BufferObject *root, PyObject *scope_name);

/* One consumer more or less; the last one of a buffer whose scope has ended releases
 * it. For the buffer protocol, DLPack and numpy(). */
void
buffer_export_begin(BufferObject *self);
void
buffer_export_end(core_state *state, BufferObject *self);

bool
buffer_is_contiguous(const BufferObject *self);

/* ---- dtype.c ------------------------------------------------------------------------------- */

/* Borrowed static row for a name, a numpy dtype, a type (float, "float32"); NULL with
 * TypeError that lists what is accepted. */
const dtype_info *
dtype_parse(core_state *state, PyObject *value);
/* By name; NULL (no exception) if unknown. */
const dtype_info *
dtype_by_name(const char *name);

/* ---- scope.c ------------------------------------------------------------------------------- */

/* Borrowed: the innermost active scope of this context that counts `pool`, or NULL.
 * -1 in *error with an exception set on failure. */
ScopeObject *
scope_current(core_state *state, PoolObject *pool, int *error);
/* New reference: a Scope. name NULL or None: "scope". `trim` as Scope takes it. */
PyObject *
scope_create(core_state *state, PyObject *name, PoolObject *pool, PyObject *trim);
/* Links and unlinks a root; keeps used, peak and count. Both read root->block, so
 * remove before the block is freed. Removing a root without a scope does nothing. */
void
scope_add(ScopeObject *scope, BufferObject *root);
void
scope_remove(BufferObject *root);

/* ---- history.c ----------------------------------------------------------------------------- */

/* The id of the current Python stack; 0 when there is none or on failure (no exception
 * is left). Keeps no frame. */
uint64_t
stack_capture(core_state *state);

/* ---- callbacks.c --------------------------------------------------------------------------- */

/* Runs the pressure callbacks; true if any ran. Not re-entered by the same thread.
 * urgency: 1, then 2, the last one before the error. */
bool
callbacks_pressure(core_state *state, PoolObject *pool, const gm_oom *oom, int urgency);
/* Sets or clears the observer of a pool to fit the callbacks in force. */
void
callbacks_attach(core_state *state, PoolObject *pool);
/* The module of an interpreter begins and ends: keeps which state is the main
 * interpreter's, for calls from threads that Python has never seen. */
void
callbacks_begin(core_state *state);
void
callbacks_end(core_state *state);
/* True while a callback runs on this thread: its allocations call no callbacks and
 * climb no rungs of Python. */
bool
callbacks_running(void);

/* How the calling thread stands to the interpreter while it is inside the pool. An
 * observer runs on that thread and must know. */
typedef struct trace_frame {
    core_state *state;
    PoolObject *pool;
    const gm_oom *oom;       /* the numbers of the failure being counted, or NULL */
    PyThreadState *released; /* set while the GIL is released */
    struct trace_frame *outer;
} trace_frame;

/* Wrap each call of the pool that may notify: enter, call, leave. Only needed when
 * pool->traced. */
void
trace_enter(trace_frame *frame, core_state *state, PoolObject *pool);
void
trace_leave(trace_frame *frame);

/* ---- each file's part of module exec: adds its types. 0, or -1 with an exception. ------- */

int
device_init(PyObject *module, core_state *state);
int
stream_init(PyObject *module, core_state *state); /* Stream and Event */
int
pool_init(PyObject *module, core_state *state); /* Pool and its iteration */
int
buffer_init(PyObject *module, core_state *state);
int
pinned_init(PyObject *module, core_state *state); /* PinnedArray and Pin */
int
scope_init(PyObject *module, core_state *state);
int
gradbuffer_init(PyObject *module, core_state *state);
int
history_init(PyObject *module, core_state *state);

/* Module functions of each file, added by module.c with PyModule_AddFunctions. */
extern PyMethodDef device_functions[];
extern PyMethodDef cuda_functions[];
extern PyMethodDef pool_functions[];
extern PyMethodDef pinned_functions[];
extern PyMethodDef scope_functions[];
extern PyMethodDef history_functions[];
extern PyMethodDef callbacks_functions[];
extern PyMethodDef capi_functions[];
extern PyMethodDef replay_functions[];

/* ---- numpy.c (the only file that includes NumPy's headers) --------------------------------- */

/* New reference: a writable ndarray over the buffer's memory; it holds the buffer
 * through an export. */
PyObject *
numpy_from_buffer(core_state *state, BufferObject *buffer);

/* ---- pinned.c ------------------------------------------------------------------------------ */

/* For the dealloc of a Device: drops its pool of pinned memory, if it has one. No
 * PinnedArray of the device is alive any more: each holds the Device. */
void
pinned_forget(DeviceObject *device);

/* ---- dlpack.c ------------------------------------------------------------------------------ */

/* METH_FASTCALL | METH_KEYWORDS bodies for Buffer's method table. */
PyObject *
buffer_dlpack(PyObject *self, PyTypeObject *type, PyObject *const *args,
              Py_ssize_t nargs, PyObject *kwnames);
PyObject *
buffer_dlpack_device(PyObject *self, PyObject *unused);

#endif
