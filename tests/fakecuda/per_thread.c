/* per_thread.c - the twins of calls for programs that are compiled with the per-thread
 * default stream: the header renames a call to one with a suffix, and stream 0 means the
 * thread's own stream there. */
#include "copies.h"
#include "fake.h"

/* The type is the plain call's, so the compiler checks it. */
#define TWIN(name, suffix) extern __typeof__(name) name##suffix

static cudaStream_t
own(cudaStream_t stream)
{
    return stream == NULL ? cudaStreamPerThread : stream;
}

/* ---- the runtime's ---------------------------------------------------------------------------- */

TWIN(cudaEventRecord, _ptsz);
TWIN(cudaEventRecordWithFlags, _ptsz);
TWIN(cudaFreeAsync, _ptsz);
TWIN(cudaGraphLaunch, _ptsz);
TWIN(cudaGraphUpload, _ptsz);
TWIN(cudaLaunchHostFunc, _ptsz);
TWIN(cudaLaunchKernel, _ptsz);
TWIN(cudaLaunchKernelExC, _ptsz);
TWIN(cudaMallocAsync, _ptsz);
TWIN(cudaMallocFromPoolAsync, _ptsz);
TWIN(cudaMemcpy2DAsync, _ptsz);
TWIN(cudaMemcpyAsync, _ptsz);
TWIN(cudaMemsetAsync, _ptsz);
TWIN(cudaStreamAddCallback, _ptsz);
TWIN(cudaStreamBeginCapture, _ptsz);
TWIN(cudaStreamEndCapture, _ptsz);
TWIN(cudaStreamGetDevice, _ptsz);
TWIN(cudaStreamGetFlags, _ptsz);
TWIN(cudaStreamGetId, _ptsz);
TWIN(cudaStreamGetPriority, _ptsz);
TWIN(cudaStreamIsCapturing, _ptsz);
TWIN(cudaStreamQuery, _ptsz);
TWIN(cudaStreamSynchronize, _ptsz);
TWIN(cudaStreamWaitEvent, _ptsz);
TWIN(cudaMemcpy, _ptds);
TWIN(cudaMemset, _ptds);

cudaError_t
cudaEventRecord_ptsz(cudaEvent_t event, cudaStream_t stream)
{
    return cudaEventRecord(event, own(stream));
}

cudaError_t
cudaEventRecordWithFlags_ptsz(cudaEvent_t event, cudaStream_t stream, unsigned flags)
{
    return cudaEventRecordWithFlags(event, own(stream), flags);
}

cudaError_t
cudaFreeAsync_ptsz(void *address, cudaStream_t stream)
{
    return cudaFreeAsync(address, own(stream));
}

cudaError_t
cudaGraphLaunch_ptsz(cudaGraphExec_t exec, cudaStream_t stream)
{
    return cudaGraphLaunch(exec, own(stream));
}

cudaError_t
cudaGraphUpload_ptsz(cudaGraphExec_t exec, cudaStream_t stream)
{
    return cudaGraphUpload(exec, own(stream));
}

cudaError_t
cudaLaunchHostFunc_ptsz(cudaStream_t stream, cudaHostFn_t function, void *data)
{
    return cudaLaunchHostFunc(own(stream), function, data);
}

cudaError_t
cudaLaunchKernel_ptsz(const void *function, dim3 grid, dim3 block, void **arguments,
                      size_t shared_bytes, cudaStream_t stream)
{
    return cudaLaunchKernel(function, grid, block, arguments, shared_bytes,
                            own(stream));
}

cudaError_t
cudaLaunchKernelExC_ptsz(const cudaLaunchConfig_t *config, const void *function,
                         void **arguments)
{
    cudaLaunchConfig_t own_config = *config;
    own_config.stream = own(config->stream);
    return cudaLaunchKernelExC(&own_config, function, arguments);
}

cudaError_t
cudaMallocAsync_ptsz(void **out, size_t size, cudaStream_t stream)
{
    return cudaMallocAsync(out, size, own(stream));
}

cudaError_t
cudaMallocFromPoolAsync_ptsz(void **out, size_t size, cudaMemPool_t pool,
                             cudaStream_t stream)
{
    return cudaMallocFromPoolAsync(out, size, pool, own(stream));
}

cudaError_t
cudaMemcpy2DAsync_ptsz(void *destination, size_t destination_pitch, const void *source,
                       size_t source_pitch, size_t width, size_t height,
                       enum cudaMemcpyKind kind, cudaStream_t stream)
{
    return cudaMemcpy2DAsync(destination, destination_pitch, source, source_pitch,
                             width, height, kind, own(stream));
}

cudaError_t
cudaMemcpyAsync_ptsz(void *destination, const void *source, size_t size,
                     enum cudaMemcpyKind kind, cudaStream_t stream)
{
    return cudaMemcpyAsync(destination, source, size, kind, own(stream));
}

cudaError_t
cudaMemsetAsync_ptsz(void *destination, int value, size_t size, cudaStream_t stream)
{
    return cudaMemsetAsync(destination, value, size, own(stream));
}

cudaError_t
cudaStreamAddCallback_ptsz(cudaStream_t stream, cudaStreamCallback_t callback,
                           void *data, unsigned flags)
{
    return cudaStreamAddCallback(own(stream), callback, data, flags);
}

cudaError_t
cudaStreamBeginCapture_ptsz(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    return cudaStreamBeginCapture(own(stream), mode);
}

cudaError_t
cudaStreamEndCapture_ptsz(cudaStream_t stream, cudaGraph_t *graph)
{
    return cudaStreamEndCapture(own(stream), graph);
}

cudaError_t
cudaStreamGetDevice_ptsz(cudaStream_t stream, int *device)
{
    return cudaStreamGetDevice(own(stream), device);
}

cudaError_t
cudaStreamGetFlags_ptsz(cudaStream_t stream, unsigned *flags)
{
    return cudaStreamGetFlags(own(stream), flags);
}

cudaError_t
cudaStreamGetId_ptsz(cudaStream_t stream, unsigned long long *id)
{
    return cudaStreamGetId(own(stream), id);
}

cudaError_t
cudaStreamGetPriority_ptsz(cudaStream_t stream, int *priority)
{
    return cudaStreamGetPriority(own(stream), priority);
}

cudaError_t
cudaStreamIsCapturing_ptsz(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    return cudaStreamIsCapturing(own(stream), status);
}

cudaError_t
cudaStreamQuery_ptsz(cudaStream_t stream)
{
    return cudaStreamQuery(own(stream));
}

cudaError_t
cudaStreamSynchronize_ptsz(cudaStream_t stream)
{
    return cudaStreamSynchronize(own(stream));
}

cudaError_t
cudaStreamWaitEvent_ptsz(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    return cudaStreamWaitEvent(own(stream), event, flags);
}

static int
copy_locked(void *destination, const void *source, size_t size,
            enum cudaMemcpyKind kind)
{
    fake_copy copy = fake_plain_copy(destination, source, size, kind);
    return fake_copy_locked(&copy, cudaStreamPerThread, true);
}

cudaError_t
cudaMemcpy_ptds(void *destination, const void *source, size_t size,
                enum cudaMemcpyKind kind)
{
    RUNTIME_CALL(copy_locked(destination, source, size, kind));
}

cudaError_t
cudaMemset_ptds(void *destination, int value, size_t size)
{
    unsigned char byte = (unsigned char)value;
    RUNTIME_CALL(fake_fill_locked((uint64_t)(uintptr_t)destination, size, &byte, 1,
                                  size, 1, cudaStreamPerThread, true));
}

/* ---- the driver's -------------------------------------------------------------------------------- */

TWIN(cuEventRecord, _ptsz);
TWIN(cuLaunchHostFunc, _ptsz);
TWIN(cuLaunchKernel, _ptsz);
TWIN(cuMemsetD8Async, _ptsz);
TWIN(cuStreamIsCapturing, _ptsz);
TWIN(cuStreamQuery, _ptsz);
TWIN(cuStreamSynchronize, _ptsz);
TWIN(cuStreamWaitEvent, _ptsz);

CUresult
cuEventRecord_ptsz(CUevent event, CUstream stream)
{
    return cuEventRecord(event, own(stream));
}

CUresult
cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void *data)
{
    return cuLaunchHostFunc(own(stream), function, data);
}

CUresult
cuLaunchKernel_ptsz(CUfunction function, unsigned grid_x, unsigned grid_y,
                    unsigned grid_z, unsigned block_x, unsigned block_y,
                    unsigned block_z, unsigned shared_bytes, CUstream stream,
                    void **arguments, void **extra)
{
    return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                          shared_bytes, own(stream), arguments, extra);
}

CUresult
cuMemsetD8Async_ptsz(CUdeviceptr destination, unsigned char value, size_t count,
                     CUstream stream)
{
    return cuMemsetD8Async(destination, value, count, own(stream));
}

CUresult
cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus *status)
{
    return cuStreamIsCapturing(own(stream), status);
}

CUresult
cuStreamQuery_ptsz(CUstream stream)
{
    return cuStreamQuery(own(stream));
}

CUresult
cuStreamSynchronize_ptsz(CUstream stream)
{
    return cuStreamSynchronize(own(stream));
}

CUresult
cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned flags)
{
    return cuStreamWaitEvent(own(stream), event, flags);
}
