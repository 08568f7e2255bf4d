/* copy_engine.c - how elements move between Buffers, PinnedArrays and foreign arrays.
 *
 * Each side of a copy is a copy_end. Elements of one dtype are moved by the device as
 * bytes, in stream order; elements that must be converted, and layouts cut into very
 * many pieces on memory that the host can read, are moved by NumPy once the streams
 * are idle.
 *
 *     the other end is                      the call returns
 *     Buffer or PinnedArray of the device   at once; the stream is recorded on both
 *     Buffer of another device              when the copy is done
 *     somebody else's host memory           when the copy is done
 *     anything, with conversion             when the copy is done
 *
 * Note [Memory in a waiting copy]
 * The GIL is released while a copy runs or is waited for, so another thread could free
 * a buffer meanwhile. Both ends are exported for that time: free() raises, and the end
 * of a scope leaves the release to us. The wait itself cannot be interrupted: the
 * device still reads the host's memory.
 *
 * Thread-safety: the GIL.
 */
#include "python/python.h"

#include "python/buffer.h"
#include "python/copy_engine.h"

/* ---- ends ------------------------------------------------------------------------ */

int
copy_end_open_buffer(core_state *state, BufferObject *buffer, copy_end *out)
{
    if (buffer_require(state, buffer) < 0) {
        return -1;
    }
    if (!gm_device_has(buffer_device(buffer), GM_CAP_MEMORY)) {
        PyErr_Format(PyExc_ValueError,
                     "%s has no memory behind its addresses: nothing can be copied",
                     buffer_device(buffer)->info.name);
        return -1;
    }
    *out = (copy_end){0};
    out->buffer = buffer;
    out->layout = buffer_layout(buffer);
    out->dtype = buffer->dtype;
    return 0;
}

int
copy_end_open(core_state *state, PyObject *object, copy_end *out)
{
    if (Py_IS_TYPE(object, state->Buffer_Type)) {
        return copy_end_open_buffer(state, (BufferObject *)object, out) < 0 ? -1 : 1;
    }
    *out = (copy_end){0};
    if (Py_IS_TYPE(object, state->PinnedArray_Type)) {
        PinnedArrayObject *pinned = (PinnedArrayObject *)object;
        if (pinned_require(state, pinned) < 0) {
            return -1;
        }
        out->pinned = pinned;
        out->layout = pinned_layout(pinned);
        out->dtype = pinned->dtype;
        return 1;
    }
    int result = host_array_acquire(state, object, &out->host);
    if (result == 1) {
        out->layout = host_array_layout(&out->host);
        out->dtype = out->host.dtype;
    }
    return result;
}

void
copy_end_close(copy_end *end)
{
    if (end->buffer == NULL && end->pinned == NULL) {
        host_array_release(&end->host);
    }
}

void
copy_end_hold(copy_end *end)
{
    if (end->buffer != NULL) {
        buffer_export_begin(end->buffer);
    }
    else if (end->pinned != NULL) {
        end->pinned->exports++;
    }
}

void
copy_end_unhold(core_state *state, copy_end *end)
{
    if (end->buffer != NULL) {
        buffer_export_end(state, end->buffer);
    }
    else if (end->pinned != NULL) {
        end->pinned->exports--;
    }
}

static bool
end_is_empty(const copy_end *end)
{
    for (int axis = 0; axis < end->layout.ndim; axis++) {
        if (end->layout.shape[axis] == 0) {
            return true;
        }
    }
    return false;
}

bool
copy_end_is_on_host(const copy_end *end)
{
    return end->buffer == NULL ||
           gm_device_has(buffer_device(end->buffer), GM_CAP_HOST_ACCESS);
}

static bool
end_is_on(const copy_end *end, gm_device *device)
{
    if (end->buffer != NULL) {
        return same_device(buffer_device(end->buffer), device);
    }
    return end->pinned != NULL && same_device(end->pinned->device->device, device);
}

/* ---- by the device --------------------------------------------------------------- */

static bool
ends_overlap(const copy_end *left, const copy_end *right)
{
    if (copy_end_is_on_host(left) != copy_end_is_on_host(right)) {
        return false;
    }
    gm_devptr left_low, left_high, right_low, right_high;
    layout_bounds(&left->layout, &left_low, &left_high);
    layout_bounds(&right->layout, &right_low, &right_high);
    return left_low < right_high && right_low < left_high;
}

/* Is it a copy of memory onto itself? */
static bool
same_elements(const copy_end *left, const copy_end *right)
{
    bool same = copy_end_is_on_host(left) == copy_end_is_on_host(right) &&
                left->layout.address == right->layout.address;
    for (int axis = 0; axis < left->layout.ndim && same; axis++) {
        same = left->layout.strides[axis] == right->layout.strides[axis];
    }
    return same;
}

static int
note_end(core_state *state, copy_end *end, gm_stream stream)
{
    if (end->buffer != NULL) {
        return buffer_note_stream(state, end->buffer, stream);
    }
    return end->pinned != NULL ? pinned_note_stream(state, end->pinned, stream) : 0;
}

static int
note_end_queued(core_state *state, copy_end *end, gm_stream stream)
{
    return end->buffer != NULL ? buffer_note_queued(state, end->buffer, stream)
                               : note_end(state, end, stream);
}

/* Copies by way of a block in between, which stream order protects after its free. */
static int
copy_through_block(copy_job *job, gm_device *device, bool queued)
{
    core_state *state = job->state;
    Py_ssize_t strides[BUFFER_MAX_DIM];
    array_layout middle = job->target->layout;
    layout_set_c_order(middle.ndim, middle.shape, middle.itemsize, strides);
    middle.strides = strides;
    size_t nbytes = (size_t)middle.itemsize;
    for (int axis = 0; axis < middle.ndim; axis++) {
        nbytes *= (size_t)middle.shape[axis];
    }
    gm_block *block = allocate_block(state, job->self->pool, nbytes, 0, job->stream);
    if (block == NULL) {
        return -1;
    }
    middle.address = gm_block_address(block);
    gm_status status;
    Py_BEGIN_ALLOW_THREADS
    status = transfer_copy(device, &middle, &job->source->layout, job->stream);
    if (status == GM_OK) {
        status = transfer_copy(device, &job->target->layout, &middle, job->stream);
    }
    if (!queued) {
        gm_status waited = transfer_wait(device, job->stream);
        status = status != GM_OK ? status : waited;
    }
    Py_END_ALLOW_THREADS
    free_block(state, job->self->pool, block);
    if (status != GM_OK) {
        set_status_error(state, status, "copy between overlapping views");
        return -1;
    }
    return 0;
}

int
copy_run_direct(copy_job *job, gm_device *device, gm_stream stream, bool queued)
{
    gm_status status;
    Py_BEGIN_ALLOW_THREADS
    status = transfer_copy(device, &job->target->layout, &job->source->layout, stream);
    if (!queued) {
        gm_status waited = transfer_wait(device, stream);
        status = status != GM_OK ? status : waited;
    }
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        set_status_error(job->state, status, "copy");
        return -1;
    }
    return 0;
}

/* The end that is not `self`. */
static copy_end *
other_end(copy_job *job)
{
    return job->target->buffer == job->self ? job->source : job->target;
}

/* Between two devices there is no common stream: both are idle first. The device whose
 * memory the host cannot read does the work. */
static int
copy_across(copy_job *job)
{
    core_state *state = job->state;
    BufferObject *other = other_end(job)->buffer;
    gm_device *own = buffer_device(job->self);
    gm_device *foreign = buffer_device(other);
    if (wait_for_stream(state, own, job->stream, UINT64_MAX) < 0 ||
        wait_for_stream(state, foreign, other->stream, UINT64_MAX) < 0) {
        return -1;
    }
    bool by_foreign = !gm_device_has(foreign, GM_CAP_HOST_ACCESS);
    return copy_run_direct(job, by_foreign ? foreign : own,
                           by_foreign ? other->stream : job->stream, false);
}

static int
copy_by_device(copy_job *job)
{
    gm_device *device = buffer_device(job->self);
    copy_end *other = other_end(job);
    if (same_elements(job->target, job->source)) {
        return 0;
    }
    if (other->buffer != NULL && !end_is_on(other, device)) {
        return copy_across(job);
    }
    bool queued = end_is_on(other, device);
    if (queued && (note_end(job->state, job->target, job->stream) < 0 ||
                   note_end(job->state, job->source, job->stream) < 0)) {
        return -1;
    }
    int result = ends_overlap(job->target, job->source)
                     ? copy_through_block(job, device, queued)
                     : copy_run_direct(job, device, job->stream, queued);
    if (result == 0 && queued) {
        result = note_end_queued(job->state, job->target, job->stream) < 0 ||
                         note_end_queued(job->state, job->source, job->stream) < 0
                     ? -1
                     : 0;
    }
    return result;
}

/* ---- by NumPy -------------------------------------------------------------------- */

/* Waits until the host may touch the memory of this end. */
static int
settle_end(copy_job *job, const copy_end *end)
{
    if (end->buffer == NULL) {
        return 0;
    }
    gm_device *device = buffer_device(end->buffer);
    if (wait_for_stream(job->state, device, end->buffer->stream, UINT64_MAX) < 0) {
        return -1;
    }
    if (end_is_on(end, buffer_device(job->self)) &&
        job->stream != end->buffer->stream &&
        wait_for_stream(job->state, device, job->stream, UINT64_MAX) < 0) {
        return -1;
    }
    return 0;
}

/* Moves a device's elements to an ndarray, or back. */
static int
move_by_ndarray(copy_job *job, copy_end *end, PyObject *ndarray, bool to_device)
{
    copy_end host = {0};
    if (numpy_describe(job->state, ndarray, &host.host) < 0) {
        return -1;
    }
    host.layout = host_array_layout(&host.host);
    host.dtype = host.host.dtype;
    copy_job part = *job;
    part.target = to_device ? end : &host;
    part.source = to_device ? &host : end;
    gm_device *device = buffer_device(end->buffer);
    gm_stream stream =
        end_is_on(end, buffer_device(job->self)) ? job->stream : end->buffer->stream;
    int result = copy_run_direct(&part, device, stream, false);
    copy_end_close(&host);
    return result;
}

/* New reference: an ndarray over the memory, or of the same shape where the host cannot
 * reach it (filled when it is to be read). */
static PyObject *
ndarray_for_end(copy_job *job, copy_end *end, bool reading)
{
    if (end->buffer == NULL && end->pinned == NULL && end->host.is_ndarray) {
        return Py_NewRef(end->host.owner);
    }
    if (copy_end_is_on_host(end)) {
        return numpy_wrap(job->state, &end->layout, end->dtype, NULL, true);
    }
    PyObject *ndarray =
        numpy_empty(job->state, end->dtype, end->layout.ndim, end->layout.shape);
    if (ndarray != NULL && reading && move_by_ndarray(job, end, ndarray, false) < 0) {
        Py_CLEAR(ndarray);
    }
    return ndarray;
}

int
copy_run_numpy(copy_job *job)
{
    if (settle_end(job, job->source) < 0 || settle_end(job, job->target) < 0) {
        return -1;
    }
    int result = -1;
    PyObject *source = ndarray_for_end(job, job->source, true);
    PyObject *target = source != NULL ? ndarray_for_end(job, job->target, false) : NULL;
    if (target != NULL) {
        result = numpy_copy(job->state, target, source);
    }
    if (result == 0 && !copy_end_is_on_host(job->target)) {
        result = move_by_ndarray(job, job->target, target, true);
    }
    Py_XDECREF(target);
    Py_XDECREF(source);
    return result;
}

/* ---- the whole copy -------------------------------------------------------------- */

static bool
same_shape(const array_layout *left, const array_layout *right)
{
    bool same = left->ndim == right->ndim;
    for (int axis = 0; axis < left->ndim && same; axis++) {
        same = left->shape[axis] == right->shape[axis];
    }
    return same;
}

static int
check_shapes(copy_job *job)
{
    const array_layout *target = &job->target->layout, *source = &job->source->layout;
    if (source->ndim == 0 || same_shape(target, source)) {
        return 0;
    }
    PyObject *from = dims_to_tuple(source->ndim, source->shape);
    PyObject *to = dims_to_tuple(target->ndim, target->shape);
    if (from != NULL && to != NULL) {
        PyErr_Format(
            PyExc_ValueError,
            "cannot copy shape %R to shape %R: they must be equal, or the source "
            "a single value",
            from, to);
    }
    Py_XDECREF(from);
    Py_XDECREF(to);
    return -1;
}

int
copy_run(copy_job *job)
{
    copy_end *target = job->target, *source = job->source;
    if (check_shapes(job) < 0) {
        return -1;
    }
    if (!dtype_can_convert(source->dtype, target->dtype)) {
        PyErr_Format(PyExc_TypeError,
                     "cannot convert %s to %s: that would change the kind of number",
                     source->dtype->name, target->dtype->name);
        return -1;
    }
    if (end_is_empty(target)) {
        return 0;
    }
    bool plain = source->dtype == target->dtype && !source->host.swapped &&
                 !target->host.swapped && same_shape(&target->layout, &source->layout);
    if (plain && transfer_pieces(&target->layout, &source->layout) > MANY_PIECES) {
        plain = !(copy_end_is_on_host(target) && copy_end_is_on_host(source));
    }
    copy_end_hold(target);
    copy_end_hold(source);
    int result = plain ? copy_by_device(job) : copy_run_numpy(job);
    copy_end_unhold(job->state, source);
    copy_end_unhold(job->state, target);
    return result;
}
