/* older.c - forms of the driver's calls that the headers have replaced by newer ones.
 * Programs that ask for a function by an older version get these. */
#define __CUDA_API_VERSION_INTERNAL /* the header declares them with this alone */
#include <cuda.h>

CUresult
cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device)
{
    return cuCtxCreate_v4(out, NULL, flags, device);
}

CUresult
cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
    return cuEventElapsedTime_v2(ms, start, end);
}

CUresult
cuGetProcAddress(const char *name, void **out, int version, cuuint64_t flags)
{
    return cuGetProcAddress_v2(name, out, version, flags, NULL);
}

CUresult
cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status,
                          cuuint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
                          size_t *count)
{
    return cuStreamGetCaptureInfo_v3(stream, status, id, graph, nodes, NULL, count);
}

CUresult
cuDevicePrimaryCtxRelease(CUdevice device)
{
    return cuDevicePrimaryCtxRelease_v2(device);
}
