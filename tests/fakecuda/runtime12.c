/* runtime12.c - what libcudart.so.12 has of its own; see runtime.h. The struct of
 * cudaGetDeviceProperties_v2 is the one that programs of version 12 are compiled with; the
 * one without a suffix is of version 11, and refused. */
#include <cuda_runtime_api.h>

#include "properties.h"
#include "runtime.h"

#define VERSION 12090

/* The headers lead these names to others; both are exported. */
#undef cudaGetDeviceProperties
#undef cudaStreamGetCaptureInfo
#undef cudaMemPrefetchAsync

cudaError_t
cudaGetDeviceProperties(struct cudaDeviceProp *out, int device);
cudaError_t
cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                         unsigned long long *id);
cudaError_t
cudaStreamGetCaptureInfo_v2(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                            unsigned long long *id, cudaGraph_t *graph,
                            const cudaGraphNode_t **nodes, size_t *count);

__attribute__((constructor)) static void
begin(void)
{
    fake_runtime_loaded(VERSION);
}

cudaError_t
cudaRuntimeGetVersion(int *version)
{
    return (cudaError_t)fake_runtime_version_of(version, VERSION);
}

cudaError_t
cudaGetDeviceProperties_v2(struct cudaDeviceProp *out, int device)
{
    fake_runtime_properties known;
    int error = fake_runtime_describe(&known, device);
    if (error == 0) {
        fill_properties(out, &known, device);
    }
    return (cudaError_t)error;
}

cudaError_t
cudaGetDeviceProperties(struct cudaDeviceProp *out, int device)
{
    (void)out;
    (void)device;
    return cudaErrorNotSupported;
}

cudaError_t
cudaStreamGetCaptureInfo_v2(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                            unsigned long long *id, cudaGraph_t *graph,
                            const cudaGraphNode_t **nodes, size_t *count)
{
    int number = 0;
    int error = fake_runtime_capture_info(stream, &number, id, graph, nodes, count);
    *status = (enum cudaStreamCaptureStatus)number;
    return (cudaError_t)error;
}

cudaError_t
cudaStreamGetCaptureInfo_v3(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                            unsigned long long *id, cudaGraph_t *graph,
                            const cudaGraphNode_t **nodes,
                            const cudaGraphEdgeData **edges, size_t *count)
{
    if (edges != NULL) {
        *edges = NULL;
    }
    return cudaStreamGetCaptureInfo_v2(stream, status, id, graph, nodes, count);
}

cudaError_t
cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                         unsigned long long *id)
{
    return cudaStreamGetCaptureInfo_v2(stream, status, id, NULL, NULL, NULL);
}

cudaError_t
cudaMemAdvise(const void *address, size_t size, enum cudaMemoryAdvise advice,
              int device)
{
    (void)advice;
    (void)device;
    return (cudaError_t)fake_runtime_hint(address, size);
}

cudaError_t
cudaMemAdvise_v2(const void *address, size_t size, enum cudaMemoryAdvise advice,
                 struct cudaMemLocation location)
{
    (void)advice;
    (void)location;
    return (cudaError_t)fake_runtime_hint(address, size);
}

cudaError_t
cudaMemPrefetchAsync(const void *address, size_t size, int device, cudaStream_t stream)
{
    (void)device;
    (void)stream;
    return (cudaError_t)fake_runtime_hint(address, size);
}

cudaError_t
cudaMemPrefetchAsync_v2(const void *address, size_t size,
                        struct cudaMemLocation location, unsigned flags,
                        cudaStream_t stream)
{
    (void)location;
    (void)flags;
    (void)stream;
    return (cudaError_t)fake_runtime_hint(address, size);
}
