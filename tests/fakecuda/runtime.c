#include "runtime.h"

#include "capture.h"
#include "devices.h"
#include "fake.h"
#include "memory.h"

void
fake_runtime_loaded(int version)
{
    fake_loaded_runtime = version;
}

int
fake_runtime_version_of(int *out, int version)
{
    if (out == NULL) {
        return (int)cudaErrorInvalidValue;
    }
    *out = version;
    return 0;
}

int
fake_runtime_capture_info(void *stream, int *status, unsigned long long *id,
                          void *graph, void *nodes, size_t *count)
{
    static fake_call here = {.name = "cudaStreamGetCaptureInfo"};
    int error = fake_enter(&here);
    if (error == 0) {
        error = fake_capture_info_locked(stream, status, id, graph, nodes, count);
    }
    return fake_leave(&here, error);
}

int
fake_runtime_attribute(int attribute, int device)
{
    int value = 0;
    (void)fake_device_attribute_locked(&value, attribute, device);
    return value;
}

static int
describe_locked(fake_runtime_properties *out, int device)
{
    if (out == NULL) {
        return (int)cudaErrorInvalidValue;
    }
    if (device < 0 || device >= fake_setting.devices) {
        return (int)cudaErrorInvalidDevice;
    }
    fake_device_name(out->name, sizeof(out->name), device);
    fake_device_uuid(out->uuid, device);
    out->total_bytes = fake_devices[device].capacity;
    return 0;
}

int
fake_runtime_describe(fake_runtime_properties *out, int device)
{
    static fake_call here = {.name = "cudaGetDeviceProperties"};
    int error = fake_enter(&here);
    if (error == 0) {
        error = describe_locked(out, device);
    }
    return fake_leave(&here, error);
}

int
fake_runtime_hint(const void *address, size_t size)
{
    static fake_call here = {.name = "cudaMemAdvise"};
    int error = fake_enter(&here);
    if (error == 0) {
        const fake_mapping *mapping =
            fake_mapping_at_locked((uint64_t)(uintptr_t)address);
        error = fake_require(mapping != NULL && mapping->origin == FAKE_OF_MANAGED &&
                             size > 0);
    }
    return fake_leave(&here, error);
}
