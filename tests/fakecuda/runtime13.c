/* runtime13.c - what libcudart.so.13 has of its own; see runtime.h. */
#include <cuda_runtime_api.h>
#include <string.h>

#include "properties.h"
#include "runtime.h"

#define VERSION 13000

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
cudaGetDeviceProperties(struct cudaDeviceProp *out, int device)
{
    fake_runtime_properties known;
    int error = fake_runtime_describe(&known, device);
    if (error == 0) {
        fill_properties(out, &known, device);
    }
    return (cudaError_t)error;
}

cudaError_t
cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                         unsigned long long *id, cudaGraph_t *graph,
                         const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                         size_t *count)
{
    int number = 0;
    int error = fake_runtime_capture_info(stream, &number, id, graph, nodes, count);
    *status = (enum cudaStreamCaptureStatus)number;
    if (edges != NULL) {
        *edges = NULL;
    }
    return (cudaError_t)error;
}

cudaError_t
cudaStreamGetCaptureInfo_ptsz(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                              unsigned long long *id, cudaGraph_t *graph,
                              const cudaGraphNode_t **nodes,
                              const cudaGraphEdgeData **edges, size_t *count);

cudaError_t
cudaStreamGetCaptureInfo_ptsz(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                              unsigned long long *id, cudaGraph_t *graph,
                              const cudaGraphNode_t **nodes,
                              const cudaGraphEdgeData **edges, size_t *count)
{
    return cudaStreamGetCaptureInfo(stream == NULL ? cudaStreamPerThread : stream,
                                    status, id, graph, nodes, edges, count);
}

cudaError_t
cudaMemAdvise(const void *address, size_t size, enum cudaMemoryAdvise advice,
              struct cudaMemLocation location)
{
    (void)advice;
    (void)location;
    return (cudaError_t)fake_runtime_hint(address, size);
}

cudaError_t
cudaMemPrefetchAsync(const void *address, size_t size, struct cudaMemLocation location,
                     unsigned flags, cudaStream_t stream)
{
    (void)location;
    (void)flags;
    (void)stream;
    return (cudaError_t)fake_runtime_hint(address, size);
}
