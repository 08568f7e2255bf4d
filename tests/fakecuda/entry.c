/* entry.c - the driver's functions by name. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "fake.h"

/* Names that came late, or that mean several functions: the one that is meant is the
 * newest that the caller's version knows, and newer ones stand first. Every other name is
 * as old as can be. */
typedef struct fake_entry {
    const char *name;
    int version; /* from which the name means that */
    const char *symbol;
} fake_entry;

static const fake_entry entries[] = {
    {"cuCtxCreate", 12050, "cuCtxCreate_v4"},
    {"cuCtxCreate", 3020, "cuCtxCreate_v2"},
    {"cuEventElapsedTime", 2000, "cuEventElapsedTime_v2"},
    {"cuEventRecordWithFlags", 11010, NULL},
    {"cuGetProcAddress", 12000, "cuGetProcAddress_v2"},
    {"cuGetProcAddress", 11030, "cuGetProcAddress"},
    {"cuGraphInstantiate", 12000, "cuGraphInstantiateWithFlags"},
    {"cuKernelGetFunction", 12000, NULL},
    {"cuLaunchKernelEx", 11060, NULL},
    {"cuLibraryGetKernel", 12000, NULL},
    {"cuLibraryLoadData", 12000, NULL},
    {"cuLibraryUnload", 12000, NULL},
    {"cuMemAddressFree", 10020, NULL},
    {"cuMemAddressReserve", 10020, NULL},
    {"cuMemAllocAsync", 11020, NULL},
    {"cuMemCreate", 10020, NULL},
    {"cuMemExportToShareableHandle", 10020, NULL},
    {"cuMemFreeAsync", 11020, NULL},
    {"cuMemGetAccess", 10020, NULL},
    {"cuMemGetAllocationGranularity", 10020, NULL},
    {"cuMemGetAllocationPropertiesFromHandle", 10020, NULL},
    {"cuMemImportFromShareableHandle", 10020, NULL},
    {"cuMemMap", 10020, NULL},
    {"cuMemRelease", 10020, NULL},
    {"cuMemRetainAllocationHandle", 11000, NULL},
    {"cuMemSetAccess", 10020, NULL},
    {"cuMemUnmap", 10020, NULL},
    {"cuStreamGetCaptureInfo", 12030, "cuStreamGetCaptureInfo_v3"},
    {"cuStreamGetCaptureInfo", 11030, "cuStreamGetCaptureInfo_v2"},
    {"cuStreamGetDevice", 12080, NULL},
    {"cuStreamGetId", 12000, NULL},
};

static void *
library(void)
{
    static void *handle;
    Dl_info info;
    if (handle == NULL && dladdr((const void *)(uintptr_t)cuInit, &info) != 0) {
        handle = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    }
    return handle;
}

static void *
find_symbol(const char *name, const char *suffix)
{
    char symbol[128];
    (void)snprintf(symbol, sizeof(symbol), "%s%s", name, suffix);
    return dlsym(library(), symbol);
}

/* Which symbol the name means for that version; NULL: none yet. */
static const char *
choose_symbol(const char *name, int version)
{
    bool listed = false;
    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
        if (strcmp(entries[i].name, name) == 0) {
            listed = true;
            if (entries[i].version <= version) {
                return entries[i].symbol != NULL ? entries[i].symbol : name;
            }
        }
    }
    return listed ? NULL : name;
}

/* NULL: *status says why. */
static void *
find_entry(const char *name, int version, bool per_thread,
           CUdriverProcAddressQueryResult *status)
{
    int driver = fake_setting.driver_version;
    const char *symbol = choose_symbol(name, version < driver ? version : driver);
    if (symbol == NULL) {
        *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        return NULL;
    }
    static const char *const suffixes[] = {"_ptsz", "_ptds", "", "_v2"};
    void *found = NULL;
    bool exact = symbol != name;
    for (size_t i = per_thread ? 0 : exact ? 2 : 3; found == NULL && i < 4; i++) {
        found = find_symbol(symbol, suffixes[i]);
    }
    if (found == NULL) {
        found = find_symbol(symbol, "");
    }
    *status = found != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
                            : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return found;
}

CUresult
cuGetProcAddress(const char *name, void **out, int version, cuuint64_t flags,
                 CUdriverProcAddressQueryResult *status)
{
    CUdriverProcAddressQueryResult result;
    if (name == NULL || out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    *out = find_entry(name, version, per_thread, &result);
    if (status != NULL) {
        *status = result;
    }
    return *out == NULL ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

/* ---- the runtime's calls ---------------------------------------------------------------------- */

static int
entry_point_locked(const char *name, void **out, unsigned version,
                   unsigned long long flags,
                   enum cudaDriverEntryPointQueryResult *status)
{
    CUdriverProcAddressQueryResult result;
    if (name == NULL || out == NULL) {
        return (int)cudaErrorInvalidValue;
    }
    bool per_thread = (flags & cudaEnablePerThreadDefaultStream) != 0;
    *out = find_entry(name, (int)version, per_thread, &result);
    if (status != NULL) {
        *status = (enum cudaDriverEntryPointQueryResult)result;
        return 0;
    }
    return *out == NULL ? (int)cudaErrorSymbolNotFound : 0;
}

cudaError_t
cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version,
                                 unsigned long long flags,
                                 enum cudaDriverEntryPointQueryResult *status)
{
    RUNTIME_CALL(entry_point_locked(name, out, version, flags, status));
}

/* For programs that are compiled with the per-thread default stream. */
extern __typeof__(cudaGetDriverEntryPointByVersion)
    cudaGetDriverEntryPointByVersion_ptsz;

cudaError_t
cudaGetDriverEntryPointByVersion_ptsz(const char *name, void **out, unsigned version,
                                      unsigned long long flags,
                                      enum cudaDriverEntryPointQueryResult *status)
{
    bool legacy = (flags & cudaEnableLegacyStream) != 0;
    flags |= legacy ? 0 : (unsigned long long)cudaEnablePerThreadDefaultStream;
    return cudaGetDriverEntryPointByVersion(name, out, version, flags, status);
}

/* For the version of the runtime itself. */
cudaError_t
cudaGetDriverEntryPoint(const char *name, void **out, unsigned long long flags,
                        enum cudaDriverEntryPointQueryResult *status)
{
    RUNTIME_CALL(
        entry_point_locked(name, out, (unsigned)fake_loaded_runtime, flags, status));
}
