/* gradbuffer_work.c - the kernels that a GradBuffer runs.
 *
 * All work goes to the stream of the buffer. A result that the host needs is written
 * behind the elements and copied from there. The gradients of a micro-step are listed
 * once, in device memory, and each kernel over them is one launch.
 *
 * Note [Waiting that fails]
 * A wait over memory of the caller cannot be interrupted: the device still reads it. The
 * wait itself may fail, and says then nothing of the work. So each kernel that reads the
 * caller's memory sets a mark in device memory when it is through, which the host reads
 * where it can; devices whose memory it cannot read get copies and never see the
 * caller's. In add() the launch has been taken by then: once the mark is there, the
 * micro-step is added, and the failed wait is no failure of add(). Only a process that
 * ends meanwhile stops waiting.
 *
 * What the device copies from and to on the host belongs to the object, not to a call.
 * After a failed wait it may still be in use, and is left to leak with the object unless
 * a later wait succeeds.
 *
 * Thread-safety: the GIL, released around each device call; the caller holds the
 * memory (grad_begin).
 */
#include "python/python.h"

#include <float.h>
#include <math.h>
#include <time.h>

#include "python/gradbuffer.h"

static gm_dtype
kernel_type(const dtype_info *dtype)
{
    return (gm_dtype)dtype->kernel;
}

/* The room for one result, a double; the mark and the parts lie behind it. */
static gm_devptr
result_address(const GradBufferObject *self)
{
    return self->memory->ptr + (gm_devptr)self->buffer->nbytes;
}

static gm_devptr
mark_address(const GradBufferObject *self)
{
    return result_address(self) + sizeof(double);
}

static gm_devptr
parts_address(const GradBufferObject *self)
{
    return result_address(self) + (gm_devptr)GRAD_ALIGNMENT;
}

static int
set_work_error(GradBufferObject *self, gm_status status, const char *what)
{
    set_status_error(grad_state(self), status, what);
    return -1;
}

/* Queues zeros over the room for the result. */
static gm_status
clear_result(GradBufferObject *self)
{
    const double zero = 0.0;
    gm_device *device = grad_device(self);
    GM_TRY(gm_device_usable(device));
    if (device->ops->fill_async == NULL) {
        return GM_UNSUPPORTED;
    }
    return device->ops->fill_async(device, result_address(self), &zero, sizeof(zero), 1,
                                   self->memory->stream);
}

static gm_kernel_mark
next_mark(GradBufferObject *self)
{
    self->ticket++;
    return (gm_kernel_mark){mark_address(self), self->ticket};
}

/* Waits for the kernel that got the last mark; false where that cannot be seen. */
static bool
wait_for_mark(const GradBufferObject *self)
{
    gm_device *device = grad_device(self);
    if (!gm_device_has(device, GM_CAP_HOST_ACCESS)) {
        return false;
    }
    const uint64_t *mark = gm_device_host_pointer(mark_address(self));
    while (__atomic_load_n(mark, __ATOMIC_ACQUIRE) != self->ticket) {
        const struct timespec pause = {.tv_nsec = 1000000};
        if (gm_device_usable(device) != GM_OK) {
            return false;
        }
        (void)nanosleep(&pause, NULL);
    }
    return true;
}

static gm_status
wait_for_work(GradBufferObject *self)
{
    gm_status status = transfer_wait(grad_device(self), self->memory->stream);
    self->unsettled = status != GM_OK;
    return status;
}

/* Waits in any case: nothing queued before may outlive the call. `marked`: the last
 * mark's kernel was launched and reads memory of the caller. */
static gm_status
read_result(GradBufferObject *self, gm_status status, bool marked, double *out)
{
    gm_device *device = grad_device(self);
    double *room = &self->exchange->result;
    if (status == GM_OK) {
        status = device->ops->copy_async(device, (gm_devptr)(uintptr_t)room,
                                         result_address(self), sizeof(*room),
                                         self->memory->stream);
    }
    gm_status waited = wait_for_work(self);
    if (waited != GM_OK && marked) {
        (void)wait_for_mark(self);
    }
    if (status == GM_OK) {
        status = waited;
    }
    if (status == GM_OK) {
        *out = *room;
    }
    return status;
}

/* ---- the gradients of a micro-step ------------------------------------------------------ */

grad_batch
grad_list_parts(GradBufferObject *self, const grad_input *inputs)
{
    grad_batch batch = {0, false};
    for (Py_ssize_t i = 0; i < grad_length(self); i++) {
        if (!inputs[i].open || inputs[i].n == 0) {
            continue;
        }
        const BufferObject *view = (BufferObject *)PyTuple_GET_ITEM(self->views, i);
        self->exchange->parts[batch.count] = (gm_kernel_part){
            .accumulator = view->ptr,
            .source = inputs[i].address,
            .n = inputs[i].n,
            .source_type = (int32_t)kernel_type(inputs[i].end.dtype),
        };
        batch.count++;
        batch.foreign = batch.foreign || inputs[i].foreign;
    }
    return batch;
}

/* Queues the copy of the list. */
static gm_status
upload_parts(GradBufferObject *self, size_t count)
{
    gm_device *device = grad_device(self);
    GM_TRY(gm_device_usable(device));
    if (device->ops->copy_async == NULL) {
        return GM_UNSUPPORTED;
    }
    return device->ops->copy_async(
        device, parts_address(self), (gm_devptr)(uintptr_t)self->exchange->parts,
        count * sizeof(gm_kernel_part), self->memory->stream);
}

int
grad_measure_batch(GradBufferObject *self, grad_batch batch, double *out)
{
    *out = 0.0;
    if (batch.count == 0) {
        return 0;
    }
    gm_status status;
    bool launched = false;
    Py_BEGIN_ALLOW_THREADS
    status = upload_parts(self, batch.count);
    if (status == GM_OK) {
        status = clear_result(self);
    }
    if (status == GM_OK) {
        status = gm_kernel_max_abs_parts(grad_device(self), self->memory->stream,
                                         parts_address(self), batch.count,
                                         result_address(self), next_mark(self));
        launched = status == GM_OK;
    }
    status = read_result(self, status, launched && batch.foreign, out);
    Py_END_ALLOW_THREADS
    return status == GM_OK ? 0 : set_work_error(self, status, "check gradients");
}

int
grad_accumulate(GradBufferObject *self, grad_batch batch, double scale)
{
    gm_status status;
    Py_BEGIN_ALLOW_THREADS
    status = gm_kernel_accumulate(grad_device(self), self->memory->stream,
                                  kernel_type(self->dtype), parts_address(self),
                                  batch.count, scale, next_mark(self));
    if (status == GM_OK && batch.foreign) {
        gm_status waited = wait_for_work(self);
        if (waited != GM_OK && !wait_for_mark(self)) {
            status = waited;
        }
    }
    Py_END_ALLOW_THREADS
    return status == GM_OK ? 0 : set_work_error(self, status, "add gradients");
}

/* ---- the buffer -------------------------------------------------------------------------- */

int
grad_measure_buffer(GradBufferObject *self, double *out)
{
    gm_status status;
    Py_BEGIN_ALLOW_THREADS
    status = clear_result(self);
    if (status == GM_OK) {
        status = gm_kernel_max_abs(grad_device(self), self->memory->stream,
                                   kernel_type(self->dtype), self->buffer->ptr,
                                   (size_t)self->buffer->size, result_address(self));
    }
    status = read_result(self, status, false, out);
    Py_END_ALLOW_THREADS
    return status == GM_OK ? 0 : set_work_error(self, status, "measure gradients");
}

double
grad_limit(const GradBufferObject *self)
{
    switch (kernel_type(self->dtype)) {
        case GM_F16:
            return 65504.0;
        case GM_BF16:
            return 0x1.fep127;
        case GM_F64:
            return DBL_MAX;
        default:
            return (double)FLT_MAX;
    }
}

int
grad_scale(GradBufferObject *self, double factor)
{
    gm_status status;
    Py_BEGIN_ALLOW_THREADS
    status = gm_kernel_scale(grad_device(self), self->memory->stream,
                             kernel_type(self->dtype), self->buffer->ptr,
                             (size_t)self->buffer->size, factor);
    Py_END_ALLOW_THREADS
    return status == GM_OK ? 0 : set_work_error(self, status, "scale gradients");
}

int
grad_divide(GradBufferObject *self, double divisor)
{
    gm_status status;
    Py_BEGIN_ALLOW_THREADS
    status = gm_kernel_divide(grad_device(self), self->memory->stream,
                              kernel_type(self->dtype), self->buffer->ptr,
                              (size_t)self->buffer->size, divisor);
    Py_END_ALLOW_THREADS
    return status == GM_OK ? 0 : set_work_error(self, status, "divide gradients");
}

int
grad_fill_zero(GradBufferObject *self, const BufferObject *range)
{
    static const unsigned char zero[DTYPE_MAX_SIZE];
    array_layout layout = buffer_layout(range);
    gm_status status;
    Py_BEGIN_ALLOW_THREADS
    status = transfer_fill(grad_device(self), &layout, zero, self->memory->stream);
    Py_END_ALLOW_THREADS
    return status == GM_OK ? 0 : set_work_error(self, status, "zero gradients");
}

/* Divided by the maximum, no term is above 1 and their sum is at most the count, so
 * nothing overflows but a norm that is too large for any double. */
int
grad_norm(GradBufferObject *self, double ord, double *out)
{
    double maximum, sum = 0.0;
    if (grad_measure_buffer(self, &maximum) < 0) {
        return -1;
    }
    if (maximum == 0.0 || !isfinite(maximum) || isinf(ord)) {
        *out = maximum;
        return 0;
    }
    gm_status status;
    Py_BEGIN_ALLOW_THREADS
    status = clear_result(self);
    if (status == GM_OK) {
        status = gm_kernel_power_sum(grad_device(self), self->memory->stream,
                                     kernel_type(self->dtype), self->buffer->ptr,
                                     (size_t)self->buffer->size, maximum, ord,
                                     result_address(self));
    }
    status = read_result(self, status, false, &sum);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        return set_work_error(self, status, "sum gradients");
    }
    *out = maximum * (ord == 2.0 ? sqrt(sum) : ord == 1.0 ? sum : pow(sum, 1.0 / ord));
    return 0;
}
