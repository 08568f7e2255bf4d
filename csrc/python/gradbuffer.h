/* gradbuffer.h - what the files behind GradBuffer share among themselves.
 *
 *     gradbuffer.c          the object, its life and methods
 *     gradbuffer_type.c     its properties and type
 *     gradbuffer_inputs.c   parameters and gradients: from Python objects to addresses
 *     gradbuffer_work.c     the kernels: check, accumulate, scale, norm
 *     gradbuffer_state.c    pickling
 *
 * Thread-safety: the GIL, and one call at a time (`busy`), since it is released while a
 * device works.
 */
#ifndef GM_PYTHON_GRADBUFFER_H
#define GM_PYTHON_GRADBUFFER_H

#include "python/python.h"

#include "kernels/kernels.h"
#include "python/buffer.h"
#include "python/copy_engine.h"

/* Every parameter starts at a multiple of this many bytes. */
#define GRAD_ALIGNMENT ((Py_ssize_t)256)

typedef enum grad_mode {
    GRAD_WEIGHTED = 0,
    GRAD_MEAN = 1,
    GRAD_SUM = 2,
} grad_mode;

/* Do the micro-steps of this window carry weights? The first one decides. */
typedef enum grad_style {
    GRAD_STYLE_OPEN = 0,
    GRAD_STYLE_PLAIN = 1,
    GRAD_STYLE_WEIGHTED = 2,
} grad_style;

/* Host memory that the device copies parts from and its results to. */
typedef struct grad_exchange {
    double result;
    gm_kernel_part parts[]; /* one for each parameter */
} grad_exchange;

/* The gradients of one micro-step as kernels see them: the first parts of `exchange`. */
typedef struct grad_batch {
    size_t count;
    bool foreign; /* some lie in host memory of the caller */
} grad_batch;

typedef struct GradBufferObject {
    PyObject_HEAD
    BufferObject *memory; /* strong; a root: the elements, GRAD_ALIGNMENT bytes for a
                              result and a mark, a gm_kernel_part for each parameter */
    BufferObject *buffer; /* strong; a view of the elements, padding included */
    PyObject *views;      /* tuple of Buffer, one for each parameter */
    PyObject *names;      /* tuple of str */
    const dtype_info *dtype;
    Py_ssize_t window; /* 0: none */
    grad_mode mode;
    /* Of this window: */
    Py_ssize_t count;
    double weight; /* by which finish() divides; the count without weights */
    double bound;  /* no element is larger than this */
    grad_style style;
    bool finished;
    Py_ssize_t rejected; /* since creation */
    bool busy;           /* a call is under way */
    /* See Note [Waiting that fails]. */
    grad_exchange *exchange; /* owned */
    uint64_t ticket;         /* of the last kernel that was to set the mark */
    bool unsettled;          /* the last wait failed: the device may use `exchange` */
    PyObject *weakrefs;
} GradBufferObject;

/* The shape of one parameter. */
typedef struct grad_shape {
    int ndim;
    Py_ssize_t sizes[BUFFER_MAX_DIM];
} grad_shape;

/* One gradient, from the caller's object to an address that a kernel can read. */
typedef struct grad_input {
    copy_end end;         /* of the caller's memory; valid while `open` */
    bool open;            /* false: None, a gradient of zeros */
    bool foreign;         /* the kernel reads the caller's host memory */
    PyObject *object;     /* strong; the array behind `end` */
    BufferObject *staged; /* strong or NULL; a copy that the kernel reads instead */
    gm_devptr address;
    size_t n; /* elements */
} grad_input;

static inline core_state *
grad_state(const GradBufferObject *self)
{
    return (core_state *)PyType_GetModuleState(Py_TYPE((const PyObject *)self));
}

static inline gm_device *
grad_device(const GradBufferObject *self)
{
    return buffer_device(self->memory);
}

static inline Py_ssize_t
grad_length(const GradBufferObject *self)
{
    return PyTuple_GET_SIZE(self->views);
}

/* ---- gradbuffer.c ------------------------------------------------------------------------ */

/* New reference: everything zero. `names` is a tuple of str (borrowed), `shapes` has as
 * many entries. */
GradBufferObject *
grad_create(core_state *state, PyObject *names, const grad_shape *shapes,
            const dtype_info *dtype, PoolObject *pool, gm_stream stream);

/* New reference: the default pool, from the hook. */
PyObject *
grad_default_pool(core_state *state);

/* 0 and the mode, or -1 with an exception. */
int
grad_parse_mode(PyObject *value, grad_mode *out);
const char *
grad_mode_name(grad_mode mode);

/* Around each call that uses the memory: keeps it there while the GIL is released.
 * begin: 0, or -1 with ReleasedError or RuntimeError (another call is under way). */
int
grad_begin(GradBufferObject *self);
void
grad_end(GradBufferObject *self);

/* Slots and methods of the type. */
PyObject *
GradBuffer_tp_new(PyTypeObject *type, PyObject *args, PyObject *kwargs);
int
GradBuffer_tp_traverse(PyObject *op, visitproc visit, void *arg);
void
GradBuffer_tp_dealloc(PyObject *op);
PyObject *
GradBuffer_add(PyObject *op, PyObject *args, PyObject *kwargs);
PyObject *
GradBuffer_finish(PyObject *op, PyObject *ignored);
PyObject *
GradBuffer_zero(PyObject *op, PyObject *ignored);
PyObject *
GradBuffer_norm(PyObject *op, PyObject *args, PyObject *kwargs);
PyObject *
GradBuffer_clip(PyObject *op, PyObject *args, PyObject *kwargs);
PyObject *
GradBuffer_close(PyObject *op, PyObject *ignored);

/* ---- gradbuffer_inputs.c ------------------------------------------------------------------ */

/* Reads `params`. New reference in *names; *shapes is the caller's to PyMem_Free. */
int
grad_parse_params(PyObject *params, PyObject **names, grad_shape **shapes);

/* The dtype of an accumulation buffer: NULL with an exception; a 16-bit one warns. */
const dtype_info *
grad_parse_dtype(core_state *state, PyObject *value);

/* New reference: a tuple of grad_length() gradients in order. */
PyObject *
grad_order(GradBufferObject *self, PyObject *grads);

/* Opens and checks all gradients, and copies those that a kernel cannot read in place.
 * Changes nothing of self. On failure some are open: close them in any case. */
int
grad_inputs_open(GradBufferObject *self, PyObject *ordered, grad_input *inputs);
void
grad_inputs_close(GradBufferObject *self, grad_input *inputs);

/* ---- gradbuffer_work.c ---------------------------------------------------------------------- */

/* Lists the open inputs that have elements. */
grad_batch
grad_list_parts(GradBufferObject *self, const grad_input *inputs);

/* The largest magnitude of all gradients; infinite or NaN if any value is. Copies the
 * list to the device, where grad_accumulate finds it. */
int
grad_measure_batch(GradBufferObject *self, grad_batch batch, double *out);
int
grad_measure_buffer(GradBufferObject *self, double *out);

/* The largest number that the buffer's dtype holds. */
double
grad_limit(const GradBufferObject *self);

/* buffer += scale * gradients, all or nothing. Pre: grad_measure_batch. */
int
grad_accumulate(GradBufferObject *self, grad_batch batch, double scale);

int
grad_scale(GradBufferObject *self, double factor);

/* Pre: divisor > 0. */
int
grad_divide(GradBufferObject *self, double divisor);

/* One fill of `range`: the buffer, or all of the memory. */
int
grad_fill_zero(GradBufferObject *self, const BufferObject *range);

/* (sum |x| ** ord) ** (1 / ord), the maximum for an infinite ord. Pre: ord > 0. */
int
grad_norm(GradBufferObject *self, double ord, double *out);

/* ---- gradbuffer_state.c ----------------------------------------------------------------------- */

PyObject *
GradBuffer_state(PyObject *op, PyObject *ignored);
PyObject *
GradBuffer_reduce(PyObject *op, PyObject *ignored);
PyObject *
GradBuffer_restore(PyObject *type, PyObject *state);

#endif
