/* driver.h - the calls of the CUDA driver that the probe makes, found at run time.
 *
 * Types come from NVIDIA's cuda.h; nothing is linked, so that the program starts
 * without a driver and can say so. A call that fails ends the program with its name and
 * the driver's words: a probe has nothing to save.
 */
#ifndef GM_VMM_PROBE_DRIVER_H
#define GM_VMM_PROBE_DRIVER_H

#include <cuda.h>

#define DRIVER_CALLS(X)              \
    X(cuGetErrorName)                \
    X(cuInit)                        \
    X(cuDriverGetVersion)            \
    X(cuDeviceGetCount)              \
    X(cuDeviceGet)                   \
    X(cuDeviceGetName)               \
    X(cuDeviceGetAttribute)          \
    X(cuDeviceTotalMem)              \
    X(cuDevicePrimaryCtxRetain)      \
    X(cuDevicePrimaryCtxRelease)     \
    X(cuCtxSetCurrent)               \
    X(cuCtxSynchronize)              \
    X(cuMemGetInfo)                  \
    X(cuMemAlloc)                    \
    X(cuMemFree)                     \
    X(cuMemAllocAsync)               \
    X(cuMemFreeAsync)                \
    X(cuMemcpyDtoH)                  \
    X(cuMemcpyDtoDAsync)             \
    X(cuMemsetD32Async)              \
    X(cuMemGetAllocationGranularity) \
    X(cuMemAddressReserve)           \
    X(cuMemAddressFree)              \
    X(cuMemCreate)                   \
    X(cuMemRelease)                  \
    X(cuMemMap)                      \
    X(cuMemUnmap)                    \
    X(cuMemSetAccess)                \
    X(cuStreamCreate)                \
    X(cuStreamDestroy)               \
    X(cuStreamSynchronize)           \
    X(cuStreamWaitEvent)             \
    X(cuStreamIsCapturing)           \
    X(cuEventCreate)                 \
    X(cuEventDestroy)                \
    X(cuEventRecord)                 \
    X(cuEventQuery)                  \
    X(cuEventSynchronize)            \
    X(cuEventElapsedTime)            \
    X(cuModuleLoadData)              \
    X(cuModuleUnload)                \
    X(cuModuleGetFunction)           \
    X(cuLaunchKernel)

/* `driver.cuMemMap(...)`. cuda.h renames some calls by macros (cuMemAlloc is
 * cuMemAlloc_v2); the fields keep the plain names. */
#define DRIVER_FIELD(name) __typeof__(name) *call_##name;
typedef struct driver_calls {
    DRIVER_CALLS(DRIVER_FIELD)
} driver_calls;
#undef DRIVER_FIELD

extern driver_calls driver;

/* Opens the driver's library (or the one that is named) and finds every call. Without
 * either it says so on stderr and ends the program with status 2. */
void
driver_load(const char *path);

/* Ends the program with status 1 unless `result` is CUDA_SUCCESS. */
void
driver_check(CUresult result, const char *call);

/* The call's result; for calls whose failure is an answer. */
#define TRY(name, ...) (driver.call_##name(__VA_ARGS__))

/* The same, and it has to succeed. */
#define DO(name, ...) driver_check(driver.call_##name(__VA_ARGS__), #name)

#endif
