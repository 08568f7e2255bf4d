/* gradbuffer.c - GradBuffer: gradients of micro-batches summed in one buffer.
 *
 * One contiguous buffer holds a view for each parameter. A window of micro-steps runs
 * from zero() to finish():
 *
 *     open --add()--> open --finish(): one division--> finished --zero()--> open
 *
 * Note [All or nothing]
 * A call that raises has changed nothing. Everything that can be wrong is found before
 * an element changes: arguments, shapes, dtypes, memory for copies, and one pass over
 * all values that finds those that are not finite or would make a sum overflow; such a
 * micro-step is rejected whole. The change itself is one device call, whatever the
 * number of parameters: one launch in add(), finish() and clip(), one fill in zero().
 * The device takes that call or refuses it (a failed call has changed nothing), and
 * after it no step can fail; the counts follow then.
 *
 * A device that runs its work later may take a launch and fail while it runs. No host
 * can see that in time, and CUDA ends its context then: the device is lost, each later
 * call raises, and what the buffer held is lost with it. The host device's loops cannot
 * fail.
 *
 * Note [The bound]
 * `bound` is the sum of weight * max |gradient| over the window, so no element is
 * larger. While it is below the largest number of the dtype no sum can overflow; when
 * it is not, the buffer is measured and the bound becomes the true maximum.
 *
 * Thread-safety: the GIL; a second call while one is under way is a RuntimeError.
 * Cost: add reads the gradients twice, finish and zero pass over the buffer once.
 */
#include "python/python.h"

#include <float.h>
#include <math.h>

#include "python/gradbuffer.h"

static const char *const MODE_NAMES[] = {"weighted", "mean", "sum"};

const char *
grad_mode_name(grad_mode mode)
{
    return MODE_NAMES[mode];
}

/* ---- life --------------------------------------------------------------------------------- */

/* The elements of each parameter with padding, and their sum. */
static int
plan_layout(const dtype_info *dtype, const grad_shape *shapes, Py_ssize_t length,
            Py_ssize_t *total)
{
    Py_ssize_t bytes = 0;
    for (Py_ssize_t i = 0; i < length; i++) {
        Py_ssize_t size, nbytes;
        if (layout_count(dtype, shapes[i].ndim, shapes[i].sizes, &size, &nbytes) < 0) {
            return -1;
        }
        bytes += (nbytes + GRAD_ALIGNMENT - 1) / GRAD_ALIGNMENT * GRAD_ALIGNMENT;
        if ((size_t)bytes > GM_SIZE_LIMIT) {
            PyErr_Format(PyExc_ValueError,
                         "the parameters make more than the %zu bytes that any request "
                         "may have",
                         GM_SIZE_LIMIT);
            return -1;
        }
    }
    *total = bytes / dtype->itemsize;
    return 0;
}

/* New reference: the tuple of views. */
static PyObject *
make_views(core_state *state, BufferObject *buffer, const grad_shape *shapes,
           Py_ssize_t length)
{
    PyObject *views = PyTuple_New(length);
    Py_ssize_t offset = 0;
    for (Py_ssize_t i = 0; views != NULL && i < length; i++) {
        BufferObject *view =
            buffer_create_view(state, buffer, buffer->dtype, shapes[i].ndim,
                               shapes[i].sizes, NULL, offset);
        if (view == NULL) {
            Py_CLEAR(views);
            break;
        }
        PyTuple_SET_ITEM(views, i, (PyObject *)view);
        offset += (view->nbytes + GRAD_ALIGNMENT - 1) / GRAD_ALIGNMENT * GRAD_ALIGNMENT;
    }
    return views;
}

/* Gives a new object its memory, zeroed. */
static int
take_memory(core_state *state, GradBufferObject *self, const grad_shape *shapes,
            PoolObject *pool, gm_stream stream)
{
    Py_ssize_t length = PyTuple_GET_SIZE(self->names), total;
    if (plan_layout(self->dtype, shapes, length, &total) < 0) {
        return -1;
    }
    Py_ssize_t parts = length * (Py_ssize_t)sizeof(gm_kernel_part);
    self->exchange = PyMem_Calloc(1, sizeof(grad_exchange) + (size_t)parts);
    if (self->exchange == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    PyObject *name = PyUnicode_FromString("GradBuffer");
    if (name == NULL) {
        return -1;
    }
    Py_ssize_t whole = total + (GRAD_ALIGNMENT + parts) / self->dtype->itemsize;
    self->memory = buffer_create(state, pool, self->dtype, 1, &whole, stream,
                                 (size_t)GRAD_ALIGNMENT, 0, name);
    Py_DECREF(name);
    if (self->memory == NULL) {
        return -1;
    }
    self->buffer =
        buffer_create_view(state, self->memory, self->dtype, 1, &total, NULL, 0);
    self->views =
        self->buffer != NULL ? make_views(state, self->buffer, shapes, length) : NULL;
    return self->views != NULL ? grad_fill_zero(self, self->memory) : -1;
}

GradBufferObject *
grad_create(core_state *state, PyObject *names, const grad_shape *shapes,
            const dtype_info *dtype, PoolObject *pool, gm_stream stream)
{
    gm_device *device = pool->device->device;
    if (!gm_device_has(device, GM_CAP_MEMORY) || device->ops->launch == NULL) {
        PyErr_Format(PyExc_ValueError,
                     "%s has no memory to compute on: gradients cannot be added there",
                     device->info.name);
        return NULL;
    }
    PyTypeObject *type = state->GradBuffer_Type;
    GradBufferObject *self = (GradBufferObject *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    state->live_gradbuffers++;
    self->names = Py_NewRef(names);
    self->dtype = dtype;
    if (take_memory(state, self, shapes, pool, stream) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return self;
}

PyObject *
grad_default_pool(core_state *state)
{
    if (state->hook_default_pool == NULL) {
        PyErr_SetString(PyExc_RuntimeError,
                        "a GradBuffer without pool= needs the gpumem package (import "
                        "gpumem)");
        return NULL;
    }
    PyObject *pool = PyObject_CallOneArg(state->hook_default_pool, Py_None);
    if (pool != NULL && !Py_IS_TYPE(pool, state->Pool_Type)) {
        PyErr_Format(PyExc_TypeError, "the default pool must be a Pool, not %.100s",
                     Py_TYPE(pool)->tp_name);
        Py_CLEAR(pool);
    }
    return pool;
}

int
grad_parse_mode(PyObject *value, grad_mode *out)
{
    if (!PyUnicode_Check(value)) {
        PyErr_Format(PyExc_TypeError, "mode must be a str, not %.100s",
                     Py_TYPE(value)->tp_name);
        return -1;
    }
    for (int i = 0; i < 3; i++) {
        if (PyUnicode_CompareWithASCIIString(value, MODE_NAMES[i]) == 0) {
            *out = (grad_mode)i;
            return 0;
        }
    }
    PyErr_Format(PyExc_ValueError, "mode must be 'weighted', 'mean' or 'sum', not %R",
                 value);
    return -1;
}

/* None -> 0, else an int of 1 or more. */
static int
parse_window(PyObject *value, Py_ssize_t *out)
{
    size_t window = 0;
    if (value != Py_None) {
        if (parse_count(value, "window", &window) < 0) {
            return -1;
        }
        if (window == 0) {
            PyErr_SetString(PyExc_ValueError,
                            "window must be 1 or more micro-steps, or None, not 0");
            return -1;
        }
    }
    *out = (Py_ssize_t)window;
    return 0;
}

/* New reference: the pool argument, or the default pool. */
static PyObject *
choose_pool(core_state *state, PyObject *value)
{
    if (value == Py_None) {
        return grad_default_pool(state);
    }
    if (!Py_IS_TYPE(value, state->Pool_Type)) {
        PyErr_Format(PyExc_TypeError, "pool must be a Pool or None, not %.100s",
                     Py_TYPE(value)->tp_name);
        return NULL;
    }
    return Py_NewRef(value);
}

PyObject *
GradBuffer_tp_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"params", "window", "mode", "dtype",
                               "pool",   "stream", NULL};
    core_state *state = PyType_GetModuleState(type);
    PyObject *params, *window_object = Py_None, *mode_object = NULL,
                      *dtype_object = NULL;
    PyObject *pool_object = Py_None, *stream_object = Py_None;
    Py_ssize_t window;
    grad_mode mode = GRAD_WEIGHTED;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$OOOOO:GradBuffer", keywords,
                                     &params, &window_object, &mode_object,
                                     &dtype_object, &pool_object, &stream_object) ||
        parse_window(window_object, &window) < 0 ||
        (mode_object != NULL && grad_parse_mode(mode_object, &mode) < 0)) {
        return NULL;
    }
    const dtype_info *dtype = grad_parse_dtype(state, dtype_object);
    PyObject *names;
    grad_shape *shapes;
    if (dtype == NULL || grad_parse_params(params, &names, &shapes) < 0) {
        return NULL;
    }
    GradBufferObject *self = NULL;
    gm_stream stream;
    PyObject *pool = choose_pool(state, pool_object);
    if (pool != NULL &&
        parse_stream(state, stream_object, ((PoolObject *)pool)->device->device,
                     GM_DEFAULT_STREAM, &stream) == 0) {
        self = grad_create(state, names, shapes, dtype, (PoolObject *)pool, stream);
    }
    if (self != NULL) {
        self->window = window;
        self->mode = mode;
    }
    Py_XDECREF(pool);
    Py_DECREF(names);
    PyMem_Free(shapes);
    return (PyObject *)self;
}

int
GradBuffer_tp_traverse(PyObject *op, visitproc visit, void *arg)
{
    GradBufferObject *self = (GradBufferObject *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT((PyObject *)self->memory);
    Py_VISIT((PyObject *)self->buffer);
    Py_VISIT(self->views);
    return 0;
}

void
GradBuffer_tp_dealloc(PyObject *op)
{
    GradBufferObject *self = (GradBufferObject *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs(op);
    }
    core_state *state = PyType_GetModuleState(type);
    if (state == NULL) {
        PyErr_Clear();
    }
    else {
        state->live_gradbuffers--;
    }
    Py_XDECREF(self->views);
    Py_XDECREF((PyObject *)self->buffer);
    Py_XDECREF((PyObject *)self->memory);
    Py_XDECREF(self->names);
    if (!self->unsettled) {
        PyMem_Free(self->exchange);
    }
    PyErr_Restore(kind, value, trace);
    type->tp_free(op);
    Py_DECREF(type);
}

int
grad_begin(GradBufferObject *self)
{
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError,
                        "another call of this GradBuffer is under way: it is for one "
                        "thread at a time");
        return -1;
    }
    if (buffer_require(grad_state(self), self->memory) < 0) {
        return -1;
    }
    self->busy = true;
    buffer_export_begin(self->memory);
    return 0;
}

void
grad_end(GradBufferObject *self)
{
    self->busy = false;
    buffer_export_end(grad_state(self), self->memory);
}

/* ---- add ------------------------------------------------------------------------------------ */

/* RuntimeError unless this window takes another micro-step. */
static int
check_open(const GradBufferObject *self)
{
    if (self->finished) {
        PyErr_SetString(PyExc_RuntimeError,
                        "this window is finished; zero() starts a new one");
        return -1;
    }
    if (self->window > 0 && self->count >= self->window) {
        PyErr_Format(PyExc_RuntimeError,
                     "the window of %zd micro-steps is full; finish() it, and zero() "
                     "starts a new one",
                     self->window);
        return -1;
    }
    return 0;
}

/* A finite number >= 0; None -> 1. */
static int
parse_weight(const GradBufferObject *self, PyObject *value, double *out)
{
    if (value == Py_None) {
        *out = 1.0;
        return 0;
    }
    if (self->mode != GRAD_WEIGHTED) {
        PyErr_Format(PyExc_ValueError,
                     "mode '%s' takes no weight; mode 'weighted' does",
                     MODE_NAMES[self->mode]);
        return -1;
    }
    if (PyBool_Check(value) || !PyNumber_Check(value) || PyComplex_Check(value)) {
        PyErr_Format(PyExc_TypeError, "weight must be a number, not %.100s",
                     Py_TYPE(value)->tp_name);
        return -1;
    }
    *out = PyFloat_AsDouble(value);
    if (*out == -1.0 && PyErr_Occurred()) {
        return -1;
    }
    if (!isfinite(*out) || *out < 0.0 || (*out != 0.0 && *out < DBL_MIN)) {
        PyErr_Format(PyExc_ValueError,
                     "weight must be 0 or a finite number from 2.3e-308 on, not %R",
                     value);
        return -1;
    }
    if (!isfinite(self->weight + *out)) {
        PyErr_SetString(PyExc_ValueError,
                        "the weights of a window must have a finite sum");
        return -1;
    }
    return 0;
}

static int
check_style(const GradBufferObject *self, grad_style style)
{
    if (self->style != GRAD_STYLE_OPEN && self->style != style) {
        PyErr_Format(PyExc_ValueError,
                     "the window has micro-steps %s weight; give all of a window a "
                     "weight, or none",
                     self->style == GRAD_STYLE_WEIGHTED ? "with a" : "without");
        return -1;
    }
    return 0;
}

/* 1: the sum stays finite, and *bound is what it then is bound by; 0: reject the
 * micro-step; -1: exception. See Note [The bound]. */
static int
check_range(GradBufferObject *self, double largest, double weight, double *bound)
{
    double step = largest * weight;
    double limit = grad_limit(self);
    if (!isfinite(largest) || !(step <= limit)) {
        return 0;
    }
    *bound = self->bound + step;
    if (*bound <= limit) {
        return 1;
    }
    double present;
    if (grad_measure_buffer(self, &present) < 0) {
        return -1;
    }
    *bound = present + step;
    return *bound <= limit;
}

/* 1: added, 0: rejected, -1: exception. Pre: begun. */
static int
add_inputs(GradBufferObject *self, const grad_input *inputs, double weight,
           grad_style style)
{
    double largest, bound;
    grad_batch batch = grad_list_parts(self, inputs);
    if (grad_measure_batch(self, batch, &largest) < 0) {
        return -1;
    }
    int fits = check_range(self, largest, weight, &bound);
    if (fits < 0) {
        return -1;
    }
    if (fits == 0) {
        self->rejected++;
        return 0;
    }
    if (grad_accumulate(self, batch, weight) < 0) {
        return -1;
    }
    self->bound = bound;
    self->style = style;
    self->weight += weight;
    self->count++;
    return 1;
}

static int
add_ordered(GradBufferObject *self, PyObject *ordered, double weight, grad_style style)
{
    grad_input *inputs = PyMem_Calloc((size_t)grad_length(self), sizeof(grad_input));
    if (inputs == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    int result = grad_inputs_open(self, ordered, inputs);
    if (result == 0) {
        result = add_inputs(self, inputs, weight, style);
    }
    grad_inputs_close(self, inputs);
    PyMem_Free(inputs);
    return result;
}

PyObject *
GradBuffer_add(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"grads", "weight", NULL};
    GradBufferObject *self = (GradBufferObject *)op;
    PyObject *grads, *weight_object = Py_None;
    double weight;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$O:add", keywords, &grads,
                                     &weight_object) ||
        parse_weight(self, weight_object, &weight) < 0 || grad_begin(self) < 0) {
        return NULL;
    }
    grad_style style =
        weight_object == Py_None ? GRAD_STYLE_PLAIN : GRAD_STYLE_WEIGHTED;
    int result = -1;
    if (check_open(self) == 0 && check_style(self, style) == 0) {
        PyObject *ordered = grad_order(self, grads);
        if (ordered != NULL) {
            result = add_ordered(self, ordered, weight, style);
            Py_DECREF(ordered);
        }
    }
    grad_end(self);
    return result < 0 ? NULL : PyBool_FromLong(result);
}

/* ---- finish, zero, norm, clip, close ------------------------------------------------------------ */

PyObject *
GradBuffer_finish(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    GradBufferObject *self = (GradBufferObject *)op;
    if (grad_begin(self) < 0) {
        return NULL;
    }
    int result = 0;
    bool divides = !self->finished && self->mode != GRAD_SUM && self->weight > 0.0 &&
                   self->weight != 1.0;
    if (divides) {
        result = grad_divide(self, self->weight);
    }
    if (result == 0) {
        self->finished = true;
    }
    grad_end(self);
    return result < 0 ? NULL : Py_NewRef(self->views);
}

PyObject *
GradBuffer_zero(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    GradBufferObject *self = (GradBufferObject *)op;
    if (grad_begin(self) < 0) {
        return NULL;
    }
    int result = grad_fill_zero(self, self->buffer);
    if (result == 0) {
        self->count = 0;
        self->weight = 0.0;
        self->bound = 0.0;
        self->style = GRAD_STYLE_OPEN;
        self->finished = false;
    }
    grad_end(self);
    if (result < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *
GradBuffer_norm(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"ord", NULL};
    GradBufferObject *self = (GradBufferObject *)op;
    double ord = 2.0, norm;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|d:norm", keywords, &ord)) {
        return NULL;
    }
    if (!(ord > 0.0)) {
        PyErr_SetString(PyExc_ValueError, "ord must be above 0; it may be infinite");
        return NULL;
    }
    if (grad_begin(self) < 0) {
        return NULL;
    }
    int result = grad_norm(self, ord, &norm);
    grad_end(self);
    return result < 0 ? NULL : PyFloat_FromDouble(norm);
}

PyObject *
GradBuffer_clip(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"max_norm", NULL};
    GradBufferObject *self = (GradBufferObject *)op;
    double max_norm, norm;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "d:clip", keywords, &max_norm)) {
        return NULL;
    }
    if (!(max_norm >= 0.0)) {
        PyErr_SetString(PyExc_ValueError, "max_norm must not be negative or NaN");
        return NULL;
    }
    if (grad_begin(self) < 0) {
        return NULL;
    }
    PyObject *result =
        grad_norm(self, 2.0, &norm) == 0 ? PyFloat_FromDouble(norm) : NULL;
    if (result != NULL && isfinite(norm) && norm > max_norm &&
        grad_scale(self, max_norm / norm) < 0) {
        Py_CLEAR(result);
    }
    grad_end(self);
    return result;
}

PyObject *
GradBuffer_close(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    return PyObject_CallMethod((PyObject *)((GradBufferObject *)op)->memory, "free",
                               NULL);
}
