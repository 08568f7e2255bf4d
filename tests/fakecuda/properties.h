/* properties.h - cudaDeviceProp from attributes; compiled once for each version of the
 * struct. */
#ifndef FAKECUDA_PROPERTIES_H
#define FAKECUDA_PROPERTIES_H

#include <cuda_runtime_api.h>
#include <string.h>

#include "runtime.h"

static inline void
fill_properties(struct cudaDeviceProp *out, const fake_runtime_properties *known,
                int device)
{
#define ATTRIBUTE(name) fake_runtime_attribute((int)cudaDevAttr##name, device)
    memset(out, 0, sizeof(*out));
    memcpy(out->name, known->name, sizeof(known->name));
    memcpy(&out->uuid, known->uuid, sizeof(known->uuid));
    out->totalGlobalMem = known->total_bytes;
    out->major = ATTRIBUTE(ComputeCapabilityMajor);
    out->minor = ATTRIBUTE(ComputeCapabilityMinor);
    out->multiProcessorCount = ATTRIBUTE(MultiProcessorCount);
    out->warpSize = ATTRIBUTE(WarpSize);
    out->maxThreadsPerBlock = ATTRIBUTE(MaxThreadsPerBlock);
    out->maxThreadsPerMultiProcessor = ATTRIBUTE(MaxThreadsPerMultiProcessor);
    out->maxBlocksPerMultiProcessor = ATTRIBUTE(MaxBlocksPerMultiprocessor);
    out->maxThreadsDim[0] = ATTRIBUTE(MaxBlockDimX);
    out->maxThreadsDim[1] = ATTRIBUTE(MaxBlockDimY);
    out->maxThreadsDim[2] = ATTRIBUTE(MaxBlockDimZ);
    out->maxGridSize[0] = ATTRIBUTE(MaxGridDimX);
    out->maxGridSize[1] = ATTRIBUTE(MaxGridDimY);
    out->maxGridSize[2] = ATTRIBUTE(MaxGridDimZ);
    out->sharedMemPerBlock = (size_t)ATTRIBUTE(MaxSharedMemoryPerBlock);
    out->sharedMemPerBlockOptin = (size_t)ATTRIBUTE(MaxSharedMemoryPerBlockOptin);
    out->sharedMemPerMultiprocessor =
        (size_t)ATTRIBUTE(MaxSharedMemoryPerMultiprocessor);
    out->regsPerBlock = ATTRIBUTE(MaxRegistersPerBlock);
    out->regsPerMultiprocessor = ATTRIBUTE(MaxRegistersPerMultiprocessor);
    out->totalConstMem = (size_t)ATTRIBUTE(TotalConstantMemory);
    out->textureAlignment = (size_t)ATTRIBUTE(TextureAlignment);
    out->l2CacheSize = ATTRIBUTE(L2CacheSize);
    out->memoryBusWidth = ATTRIBUTE(GlobalMemoryBusWidth);
    out->asyncEngineCount = ATTRIBUTE(AsyncEngineCount);
    out->unifiedAddressing = ATTRIBUTE(UnifiedAddressing);
    out->managedMemory = ATTRIBUTE(ManagedMemory);
    out->canMapHostMemory = ATTRIBUTE(CanMapHostMemory);
    out->concurrentKernels = ATTRIBUTE(ConcurrentKernels);
    out->streamPrioritiesSupported = ATTRIBUTE(StreamPrioritiesSupported);
    out->memoryPoolsSupported = ATTRIBUTE(MemoryPoolsSupported);
    out->hostRegisterSupported = ATTRIBUTE(HostRegisterSupported);
    out->pciBusID = ATTRIBUTE(PciBusId);
#undef ATTRIBUTE
}

#endif
