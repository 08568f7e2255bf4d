/* cudart.h - the calls of CUDA that gpumem makes, as pointers, typed by NVIDIA's headers.
 *
 * Nothing is linked: the runtime is found when it is first needed, the driver's calls
 * come through the runtime (cudaGetDriverEntryPoint...). The headers are those of CUDA
 * 13, and the calls below are the same in 12; struct cudaDeviceProp is not, so that
 * attributes are asked for one by one and the struct appears nowhere.
 *
 * Fields are called as the functions; where a header renames one by a macro
 * (cuDeviceTotalMem_v2), declaration and use are renamed alike.
 */
#ifndef GM_DEVICE_CUDART_H
#define GM_DEVICE_CUDART_H

#include <cuda.h>
#include <cuda_runtime_api.h>

#if CUDART_VERSION < 13000 || CUDART_VERSION >= 14000
#error "the headers of CUDA 13 are needed (wheels nvidia-cuda-runtime, nvidia-cuda-crt)"
#endif

/* Runtime versions that were looked at: 12.0 and later, all of 13. */
#define GM_CUDART_OLDEST 12000
#define GM_CUDART_TOO_NEW 14000

#define GM_CUDART_MAP(X)                   \
    X(cudaRuntimeGetVersion)               \
    X(cudaDriverGetVersion)                \
    X(cudaGetErrorName)                    \
    X(cudaGetErrorString)                  \
    X(cudaGetLastError)                    \
    X(cudaPeekAtLastError)                 \
    X(cudaGetDeviceCount)                  \
    X(cudaDeviceGetAttribute)              \
    X(cudaDeviceGetPCIBusId)               \
    X(cudaDeviceCanAccessPeer)             \
    X(cudaDeviceEnablePeerAccess)          \
    X(cudaDeviceSynchronize)               \
    X(cudaMemGetInfo)                      \
    X(cudaMalloc)                          \
    X(cudaFree)                            \
    X(cudaMallocAsync)                     \
    X(cudaFreeAsync)                       \
    X(cudaHostAlloc)                       \
    X(cudaFreeHost)                        \
    X(cudaHostRegister)                    \
    X(cudaHostUnregister)                  \
    X(cudaMemcpyAsync)                     \
    X(cudaStreamCreateWithFlags)           \
    X(cudaStreamDestroy)                   \
    X(cudaStreamQuery)                     \
    X(cudaStreamSynchronize)               \
    X(cudaStreamWaitEvent)                 \
    X(cudaStreamIsCapturing)               \
    X(cudaThreadExchangeStreamCaptureMode) \
    X(cudaEventCreateWithFlags)            \
    X(cudaEventDestroy)                    \
    X(cudaEventRecord)                     \
    X(cudaEventQuery)                      \
    X(cudaEventSynchronize)

/* Absent from some runtimes of version 12; NULL there. */
#define GM_CUDART_OPTIONAL_MAP(X) \
    X(cudaStreamGetId)            \
    X(cudaGetDriverEntryPointByVersion)

#define GM_CUDRV_MAP(X)          \
    X(cuDeviceGet)               \
    X(cuDeviceGetName)           \
    X(cuDeviceTotalMem)          \
    X(cuDeviceGetAttribute)      \
    X(cuDevicePrimaryCtxRetain)  \
    X(cuDevicePrimaryCtxRelease) \
    X(cuCtxGetCurrent)           \
    X(cuCtxSetCurrent)           \
    X(cuMemsetD8Async)           \
    X(cuMemsetD16Async)          \
    X(cuMemsetD32Async)          \
    X(cuMemsetD2D8Async)         \
    X(cuMemsetD2D16Async)        \
    X(cuMemsetD2D32Async)

/* Paging; all of them or none. */
#define GM_CUDRV_PAGING_MAP(X)       \
    X(cuMemGetAllocationGranularity) \
    X(cuMemAddressReserve)           \
    X(cuMemAddressFree)              \
    X(cuMemCreate)                   \
    X(cuMemRelease)                  \
    X(cuMemMap)                      \
    X(cuMemUnmap)                    \
    X(cuMemSetAccess)

#define GM_CUDA_FIELD(name) __typeof__(name) *name;

/* The way to the driver before 12.5; the headers call it deprecated. */
typedef cudaError_t
gm_cudart_entry_point(const char *symbol, void **function, unsigned long long flags,
                      enum cudaDriverEntryPointQueryResult *status);

typedef struct gm_cuda_calls {
    GM_CUDART_MAP(GM_CUDA_FIELD)
    GM_CUDART_OPTIONAL_MAP(GM_CUDA_FIELD)
    gm_cudart_entry_point *cuda_get_entry_point; /* NULL where it is gone */
    GM_CUDRV_MAP(GM_CUDA_FIELD)
    GM_CUDRV_PAGING_MAP(GM_CUDA_FIELD)
    bool has_paging;
} gm_cuda_calls;

#endif
