/* errors.c - errors by name. The names come from CUDA's own headers when this is built;
 * error_names.h has FAKE_RUNTIME_ERRORS and FAKE_DRIVER_ERRORS. */
#include <stddef.h>
#include <string.h>

#include "error_names.h"
#include "fake.h"

typedef struct fake_error_name {
    int error;
    const char *name;
} fake_error_name;

#define NAME(constant) {(int)constant, #constant},
static const fake_error_name runtime_names[] = {FAKE_RUNTIME_ERRORS(NAME)};
static const fake_error_name driver_names[] = {FAKE_DRIVER_ERRORS(NAME)};
#undef NAME

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

/* Sentences that programs look for; elsewhere the name has to do. */
static const fake_error_name texts[] = {
    {cudaSuccess, "no error"},
    {cudaErrorInvalidValue, "invalid argument"},
    {cudaErrorMemoryAllocation, "out of memory"},
    {cudaErrorInitializationError, "initialization error"},
    {cudaErrorInsufficientDriver,
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "invalid resource handle"},
    {cudaErrorNotReady, "device not ready"},
    {cudaErrorIllegalAddress, "an illegal memory access was encountered"},
    {cudaErrorLaunchFailure, "unspecified launch failure"},
    {cudaErrorNotPermitted, "operation not permitted"},
    {cudaErrorNotSupported, "operation not supported"},
    {cudaErrorStreamCaptureUnsupported,
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated,
     "operation failed due to a previous error during capture"},
};

static const char *
find(const fake_error_name *table, size_t count, int error)
{
    for (size_t i = 0; i < count; i++) {
        if (table[i].error == error) {
            return table[i].name;
        }
    }
    return NULL;
}

const char *
cudaGetErrorName(cudaError_t error)
{
    const char *name = find(runtime_names, COUNT(runtime_names), (int)error);
    return name == NULL ? "unrecognized error code" : name;
}

const char *
cudaGetErrorString(cudaError_t error)
{
    const char *text = find(texts, COUNT(texts), (int)error);
    return text == NULL ? cudaGetErrorName(error) : text;
}

CUresult
cuGetErrorName(CUresult error, const char **out)
{
    *out = find(driver_names, COUNT(driver_names), (int)error);
    return *out == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult
cuGetErrorString(CUresult error, const char **out)
{
    *out = find(texts, COUNT(texts), (int)error);
    return *out != NULL ? CUDA_SUCCESS : cuGetErrorName(error, out);
}
