/* gradbuffer_work.c - the kernels that a GradBuffer runs.
 *
 * All work goes to the stream of the buffer. A result that the host needs is written
 * behind the elements and copied from there once the stream is idle. A wait over
 * memory of the caller cannot be interrupted: the device still reads it.
 *
 * Thread-safety: the GIL, released around each device call; the caller holds the
 * memory (grad_begin).
 */
#include "python/python.h"

#include <float.h>
#include <math.h>

#include "python/gradbuffer.h"

static gm_dtype
kernel_type(const dtype_info *dtype)
{
    return (gm_dtype)dtype->kernel;
}

/* The room for one result, a double. */
static gm_devptr
result_address(const GradBufferObject *self)
{
    return self->memory->ptr + (gm_devptr)self->buffer->nbytes;
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

/* Waits in any case: nothing queued before may outlive the call. */
static gm_status
read_result(GradBufferObject *self, gm_status status, double *out)
{
    gm_device *device = grad_device(self);
    double value = 0.0;
    if (status == GM_OK) {
        status = device->ops->copy_async(device, (gm_devptr)(uintptr_t)&value,
                                         result_address(self), sizeof(value),
                                         self->memory->stream);
    }
    gm_status waited = transfer_wait(device, self->memory->stream);
    if (status == GM_OK) {
        status = waited;
    }
    if (status == GM_OK) {
        *out = value;
    }
    return status;
}

int
grad_measure_inputs(GradBufferObject *self, const grad_input *inputs, double *out)
{
    gm_device *device = grad_device(self);
    Py_ssize_t length = grad_length(self);
    gm_status status;
    Py_BEGIN_ALLOW_THREADS
    status = clear_result(self);
    for (Py_ssize_t i = 0; i < length && status == GM_OK; i++) {
        if (inputs[i].open) {
            status = gm_kernel_max_abs(
                device, self->memory->stream, kernel_type(inputs[i].end.dtype),
                inputs[i].address, inputs[i].n, result_address(self));
        }
    }
    status = read_result(self, status, out);
    Py_END_ALLOW_THREADS
    return status == GM_OK ? 0 : set_work_error(self, status, "check gradients");
}

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
    status = read_result(self, status, out);
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
grad_accumulate(GradBufferObject *self, const grad_input *inputs, double scale)
{
    gm_device *device = grad_device(self);
    Py_ssize_t length = grad_length(self), added = 0;
    bool foreign = false;
    gm_status status = GM_OK;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < length && status == GM_OK; i++) {
        const BufferObject *view = (BufferObject *)PyTuple_GET_ITEM(self->views, i);
        if (!inputs[i].open || inputs[i].n == 0) {
            continue;
        }
        status = gm_kernel_accumulate(
            device, self->memory->stream, kernel_type(self->dtype), view->ptr,
            kernel_type(inputs[i].end.dtype), inputs[i].address, inputs[i].n, scale);
        added += status == GM_OK;
        foreign = foreign || inputs[i].foreign;
    }
    if (foreign) {
        gm_status waited = transfer_wait(device, self->memory->stream);
        status = status != GM_OK ? status : waited;
    }
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        self->broken = self->broken || added > 0;
        return set_work_error(self, status, "add gradients");
    }
    return 0;
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
grad_fill_zero(GradBufferObject *self)
{
    static const unsigned char zero[DTYPE_MAX_SIZE];
    array_layout layout = buffer_layout(self->memory);
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
    status = read_result(self, status, &sum);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        return set_work_error(self, status, "sum gradients");
    }
    *out = maximum * (ord == 2.0 ? sqrt(sum) : ord == 1.0 ? sum : pow(sum, 1.0 / ord));
    return 0;
}
