/* vmm_probe - what moving pages costs on a real GPU, and what may be done with them.
 *
 *     vmm_probe [DEVICE [DRIVER]]     DEVICE 0; DRIVER libcuda.so.1
 *
 * Prints one JSON object. Takes at most a gigabyte and less than three minutes; a
 * watchdog ends it after that. Status 2: there is no driver or no such device.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels.h"
#include "probe.h"

enum {
    MOST_SECONDS = 180,
    NAME = 256
};

static int
attribute(CUdevice device, CUdevice_attribute which)
{
    int value = 0;
    DO(cuDeviceGetAttribute, &value, which, device);
    return value;
}

static void
fail_without(int condition, const char *words)
{
    if (!condition) {
        fprintf(stderr, "vmm_probe: %s\n", words);
        exit(2);
    }
}

static void
open_device(probe *self, int number)
{
    int count = 0;
    *self = (probe){.kind = {.type = CU_MEM_ALLOCATION_TYPE_PINNED}};
    fail_without(TRY(cuInit, 0) == CUDA_SUCCESS, "the driver does not start");
    DO(cuDeviceGetCount, &count);
    fail_without(number >= 0 && number < count, "no such device");
    DO(cuDeviceGet, &self->device, number);
    fail_without(attribute(self->device,
                           CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED),
                 "the device has no virtual memory management");
    DO(cuDevicePrimaryCtxRetain, &self->context, self->device);
    DO(cuCtxSetCurrent, self->context);
    self->kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    self->kind.location.id = number;
    self->access.location = self->kind.location;
    self->access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    DO(cuMemGetAllocationGranularity, &self->granularity, &self->kind,
       CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    size_t free_bytes = 0, total = 0;
    DO(cuMemGetInfo, &free_bytes, &total);
    self->budget = free_bytes / 4 < 1024 * MIB ? free_bytes / 4 : 1024 * MIB;
    DO(cuStreamCreate, &self->stream, CU_STREAM_NON_BLOCKING);
    DO(cuStreamCreate, &self->other, CU_STREAM_NON_BLOCKING);
    DO(cuModuleLoadData, &self->module, probe_kernels);
    DO(cuModuleGetFunction, &self->spin, self->module, "probe_spin");
    DO(cuModuleGetFunction, &self->store, self->module, "probe_store");
    DO(cuModuleGetFunction, &self->check, self->module, "probe_check");
}

static void
close_device(probe *self)
{
    DO(cuModuleUnload, self->module);
    DO(cuStreamDestroy, self->other);
    DO(cuStreamDestroy, self->stream);
    DO(cuDevicePrimaryCtxRelease, self->device);
}

static void
describe(const probe *self)
{
    char name[NAME] = "";
    int version = 0;
    size_t total = 0, recommended = 0;
    DO(cuDeviceGetName, name, NAME - 1, self->device);
    DO(cuDriverGetVersion, &version);
    DO(cuDeviceTotalMem, &total, self->device);
    DO(cuMemGetAllocationGranularity, &recommended, &self->kind,
       CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    json_integer("version", 1);
    json_text("device", name);
    json_integer(
        "compute_capability",
        (uint64_t)(10 * attribute(self->device,
                                  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
                   attribute(self->device,
                             CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)));
    json_integer("driver_version", (uint64_t)version);
    json_integer("total_bytes", total);
    json_integer("granularity_bytes", self->granularity);
    json_integer("recommended_granularity_bytes", recommended);
}

int
main(int argc, char **argv)
{
    probe self;
    int number = argc > 1 ? atoi(argv[1]) : 0;
    alarm(MOST_SECONDS);
    driver_load(argc > 2 ? argv[2] : "libcuda.so.1");
    uint64_t start = now_ns();
    open_device(&self, number);
    json_open(NULL, '{');
    describe(&self);
    probe_small_calls(&self);
    probe_page_costs(&self);
    probe_blocking(&self);
    probe_aliases(&self);
    probe_bandwidth(&self);
    json_real("seconds", (double)(now_ns() - start) * 1e-9);
    json_close();
    close_device(&self);
    return 0;
}
