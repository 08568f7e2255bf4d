/* cuda_call.c - how a call of the driver goes in and comes out, and what errors mean.
 *
 * See Note [A call of the driver] in cuda_internal.h.
 */
#include <stdio.h>

#include "device/cuda_internal.h"
#include "device/failure.h"

/* ---- what errors mean ------------------------------------------------------------ */

/* The context is broken for good: no call on it succeeds any more. */
static bool
is_lost_by(cudaError_t error)
{
    switch (error) {
        case cudaErrorDeviceUninitialized: /* somebody reset the device */
        case cudaErrorECCUncorrectable:
        case cudaErrorNvlinkUncorrectable:
        case cudaErrorIllegalAddress:
        case cudaErrorLaunchTimeout:
        case cudaErrorContextIsDestroyed:
        case cudaErrorAssert:
        case cudaErrorHardwareStackError:
        case cudaErrorIllegalInstruction:
        case cudaErrorMisalignedAddress:
        case cudaErrorInvalidAddressSpace:
        case cudaErrorInvalidPc:
        case cudaErrorLaunchFailure:
        case cudaErrorTensorMemoryLeak:
        case cudaErrorMpsClientTerminated:
            return true;
        default:
            return false;
    }
}

static bool
is_of_capture(cudaError_t error)
{
    return error >= cudaErrorStreamCaptureUnsupported &&
           error <= cudaErrorStreamCaptureWrongThread;
}

gm_status
gm_cuda_status(cudaError_t error)
{
    switch (error) {
        case cudaSuccess:
            return GM_OK;
        case cudaErrorMemoryAllocation:
            return GM_OUT_OF_MEMORY;
        case cudaErrorNotReady:
            return GM_NOT_READY;
        case cudaErrorInvalidValue:
        case cudaErrorInvalidDevice:
        case cudaErrorInvalidResourceHandle:
        case cudaErrorHostMemoryAlreadyRegistered:
        case cudaErrorHostMemoryNotRegistered:
            return GM_INVALID;
        case cudaErrorNotSupported:
            return GM_UNSUPPORTED;
        case cudaErrorCudartUnloading:
            return GM_EXITING;
        default:
            if (is_of_capture(error)) {
                return GM_CAPTURING;
            }
            return is_lost_by(error) ? GM_DEVICE_LOST : GM_DEVICE_ERROR;
    }
}

/* ---- words ----------------------------------------------------------------------- */

static void
note(const cuda_device *self, gm_status status, cudaError_t error, const char *call,
     const char *text)
{
    gm_failure failure = {.status = status, .code = (int)error};
    (void)snprintf(failure.name, sizeof(failure.name), "%s",
                   self->cuda->cudaGetErrorName(error));
    (void)snprintf(failure.call, sizeof(failure.call), "%s", call);
    (void)snprintf(failure.text, sizeof(failure.text), "%s", text);
    gm_failure_note(&failure);
}

/* The first error is the one that tells what happened; those after it only repeat that
 * the context is gone. */
static void
remember_loss(cuda_device *self, cudaError_t error, const char *name)
{
    gm_mutex_lock(&self->setup_lock);
    if (atomic_load(&self->phase) != CUDA_LOST) {
        self->lost_code = error;
        (void)snprintf(self->lost, sizeof(self->lost), "%s: %s (%s)", name,
                       self->cuda->cudaGetErrorString(error),
                       self->cuda->cudaGetErrorName(error));
        atomic_store(&self->phase, CUDA_LOST);
    }
    gm_mutex_unlock(&self->setup_lock);
}

/* Notes what the device was lost by. */
static gm_status
answer_lost(cuda_device *self)
{
    char text[256];
    gm_mutex_lock(&self->setup_lock);
    cudaError_t error = self->lost_code;
    (void)snprintf(text, sizeof(text),
                   "%s was lost by %.150s. Its memory is gone; end the process",
                   self->head.info.name, self->lost);
    gm_mutex_unlock(&self->setup_lock);
    note(self, GM_DEVICE_LOST, error, "", text);
    return GM_DEVICE_LOST;
}

gm_status
gm_cuda_fail(cuda_device *self, cudaError_t error, const char *name)
{
    gm_status status = gm_cuda_status(error);
    if (status == GM_DEVICE_LOST) {
        remember_loss(self, error, name);
        return answer_lost(self);
    }
    if (status == GM_DEVICE_ERROR) {
        note(self, status, error, name, self->cuda->cudaGetErrorString(error));
    }
    return status;
}

/* ---- in and out ------------------------------------------------------------------ */

cudaError_t
gm_cuda_switch(const cuda_device *self, CUcontext context, cuda_call *call)
{
    const gm_cuda_calls *cuda = self->cuda;
    call->pending = cuda->cudaPeekAtLastError();
    call->switched = false;
    cudaError_t error = cuda_error(cuda->cuCtxGetCurrent(&call->before));
    if (error == cudaSuccess && call->before != context) {
        error = cuda_error(cuda->cuCtxSetCurrent(context));
        call->switched = error == cudaSuccess;
    }
    call->mode = cudaStreamCaptureModeRelaxed;
    if (error == cudaSuccess) {
        error = cuda->cudaThreadExchangeStreamCaptureMode(&call->mode);
        if (error != cudaSuccess) {
            call->mode = cudaStreamCaptureModeRelaxed; /* nothing to put back */
        }
    }
    if (error != cudaSuccess) {
        gm_cuda_switch_back(self, call, error);
    }
    return error;
}

/* Tries twice: what fails once (a signal, a test) must not leave the caller on another
 * device. */
void
gm_cuda_switch_back(const cuda_device *self, const cuda_call *call, cudaError_t result)
{
    const gm_cuda_calls *cuda = self->cuda;
    bool failed = result != cudaSuccess;
    if (call->mode != cudaStreamCaptureModeRelaxed) {
        enum cudaStreamCaptureMode mode = call->mode;
        if (cuda->cudaThreadExchangeStreamCaptureMode(&mode) != cudaSuccess) {
            mode = call->mode;
            failed = true;
            (void)cuda->cudaThreadExchangeStreamCaptureMode(&mode);
        }
    }
    if (call->switched && cuda->cuCtxSetCurrent(call->before) != CUDA_SUCCESS) {
        failed = true;
        (void)cuda->cuCtxSetCurrent(call->before);
    }
    if (failed && call->pending == cudaSuccess) {
        (void)cuda->cudaGetLastError();
    }
}

gm_status
gm_cuda_enter(cuda_device *self, gm_device_call kind, cuda_call *call)
{
    GM_TRY(gm_device_usable(&self->head));
    gm_tally_call(&self->tally, kind);
    uint32_t phase = atomic_load_explicit(&self->phase, memory_order_acquire);
    if (phase == CUDA_NAMED) {
        GM_TRY(gm_cuda_prepare(&self->head));
        phase = atomic_load_explicit(&self->phase, memory_order_acquire);
    }
    if (phase == CUDA_LOST) {
        return answer_lost(self);
    }
    cudaError_t error = gm_cuda_switch(self, self->context, call);
    return error == cudaSuccess ? GM_OK : gm_cuda_fail(self, error, "cuCtxSetCurrent");
}

gm_status
gm_cuda_leave(cuda_device *self, const cuda_call *call, cudaError_t result,
              const char *name)
{
    gm_cuda_switch_back(self, call, result);
    return result == cudaSuccess ? GM_OK : gm_cuda_fail(self, result, name);
}
