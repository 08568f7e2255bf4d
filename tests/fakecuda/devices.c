/* devices.c - how many devices there are, what they are, and which one is current. */
#include "devices.h"

#include <stdio.h>
#include <string.h>

#include "context.h"
#include "work.h"

fake_device fake_devices[FAKE_MAX_DEVICES];
int fake_loaded_runtime;

fake_device *
fake_use_device_locked(int device)
{
    fake_device *owner = &fake_devices[device];
    if (!owner->in_use) {
        owner->in_use = true;
        owner->context = fake_handle_make_locked(FAKE_CONTEXT, owner);
    }
    return owner;
}

int
fake_current_device_locked(void)
{
    if (fake_thread_device < 0) {
        fake_context_choose_locked(0);
    }
    (void)fake_use_device_locked(fake_thread_device);
    return fake_thread_device;
}

/* ---- what a device is --------------------------------------------------------------------- */

typedef struct fake_attribute {
    int attribute;
    int value;
} fake_attribute;

/* Those of one generation of data-centre GPU; all others are 0. */
static const fake_attribute attributes[] = {
    {cudaDevAttrMaxThreadsPerBlock, 1024},
    {cudaDevAttrMaxBlockDimX, 1024},
    {cudaDevAttrMaxBlockDimY, 1024},
    {cudaDevAttrMaxBlockDimZ, 64},
    {cudaDevAttrMaxGridDimX, 2147483647},
    {cudaDevAttrMaxGridDimY, 65535},
    {cudaDevAttrMaxGridDimZ, 65535},
    {cudaDevAttrMaxSharedMemoryPerBlock, 49152},
    {cudaDevAttrTotalConstantMemory, 65536},
    {cudaDevAttrWarpSize, 32},
    {cudaDevAttrMaxRegistersPerBlock, 65536},
    {cudaDevAttrClockRate, 1980000},
    {cudaDevAttrTextureAlignment, 512},
    {cudaDevAttrMultiProcessorCount, 132},
    {cudaDevAttrCanMapHostMemory, 1},
    {cudaDevAttrConcurrentKernels, 1},
    {cudaDevAttrMemoryClockRate, 2619000},
    {cudaDevAttrGlobalMemoryBusWidth, 5120},
    {cudaDevAttrL2CacheSize, 50 << 20},
    {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
    {cudaDevAttrAsyncEngineCount, 3},
    {cudaDevAttrUnifiedAddressing, 1},
    {cudaDevAttrComputeCapabilityMajor, 9},
    {cudaDevAttrComputeCapabilityMinor, 0},
    {cudaDevAttrStreamPrioritiesSupported, 1},
    {cudaDevAttrMaxSharedMemoryPerMultiprocessor, 233472},
    {cudaDevAttrMaxRegistersPerMultiprocessor, 65536},
    {cudaDevAttrManagedMemory, 1},
    {cudaDevAttrMaxSharedMemoryPerBlockOptin, 232448},
    {cudaDevAttrHostRegisterSupported, 1},
    {cudaDevAttrMaxBlocksPerMultiprocessor, 32},
    {cudaDevAttrMemoryPoolsSupported, 1},
};

int
fake_device_attribute_locked(int *out, int attribute, int device)
{
    if (device < 0 || device >= fake_setting.devices) {
        return (int)cudaErrorInvalidDevice;
    }
    if (out == NULL) {
        return (int)cudaErrorInvalidValue;
    }
    *out = 0;
    if (attribute == (int)CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ||
        attribute ==
            (int)CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) {
        *out = fake_setting.vmm ? 1 : 0;
    }
    else if (attribute == (int)cudaDevAttrPciBusId) {
        *out = device + 1;
    }
    for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]); i++) {
        if (attributes[i].attribute == attribute) {
            *out = attributes[i].value;
        }
    }
    return 0;
}

void
fake_device_name(char *out, size_t size, int device)
{
    (void)snprintf(out, size, "Fake GPU %d", device);
}

void
fake_device_uuid(unsigned char out[16], int device)
{
    memset(out, 0xfa, 16);
    out[15] = (unsigned char)device;
}

int
fake_device_bus_id_locked(char *out, int size, int device)
{
    if (device < 0 || device >= fake_setting.devices) {
        return (int)cudaErrorInvalidDevice;
    }
    int length = snprintf(out, (size_t)size, "0000:%02x:00.0", device + 1);
    return length < size ? 0 : (int)cudaErrorInvalidValue;
}

/* ---- peers ------------------------------------------------------------------------------------ */

int
fake_peer_possible_locked(int *out, int device, int peer)
{
    int last = fake_setting.devices - 1;
    if (device < 0 || device > last || peer < 0 || peer > last) {
        return (int)cudaErrorInvalidDevice;
    }
    *out = fake_setting.peers && device != peer;
    return 0;
}

int
fake_peer_enable_locked(int device, int peer, bool enable)
{
    int possible = 0;
    int error = fake_peer_possible_locked(&possible, device, peer);
    if (error != 0) {
        return error;
    }
    if (!possible) {
        return device == peer ? (int)cudaErrorInvalidDevice
                              : (int)cudaErrorPeerAccessUnsupported;
    }
    bool enabled = (fake_devices[device].peers >> peer & 1) != 0;
    if (enabled == enable) {
        return enable ? (int)cudaErrorPeerAccessAlreadyEnabled
                      : (int)cudaErrorPeerAccessNotEnabled;
    }
    fake_devices[device].peers ^= 1u << peer;
    return 0;
}

/* ---- the runtime's calls ------------------------------------------------------------------------ */

static int
count_devices_locked(int *out)
{
    *out = fake_setting.devices;
    return 0;
}

cudaError_t
cudaGetDeviceCount(int *count)
{
    if (count != NULL) {
        *count = 0;
    }
    RUNTIME_CALL(count == NULL ? (int)cudaErrorInvalidValue
                               : count_devices_locked(count));
}

static int
get_device_locked(int *out)
{
    *out = fake_thread_device < 0 ? 0 : fake_thread_device;
    return 0;
}

cudaError_t
cudaGetDevice(int *device)
{
    RUNTIME_CALL(get_device_locked(device));
}

static int
set_device_locked(int device)
{
    if (device < 0 || device >= fake_setting.devices) {
        return (int)cudaErrorInvalidDevice;
    }
    fake_context_choose_locked(device);
    return fake_use_device_locked(device)->lost;
}

/* It must work, too, when the device that was current before is lost. */
cudaError_t
cudaSetDevice(int device)
{
    static fake_call here = {.name = __func__};
    int error = fake_enter(&here);
    int current = fake_thread_device < 0 ? 0 : fake_thread_device;
    if (error == 0 || error == fake_devices[current].lost) {
        error = set_device_locked(device);
    }
    return (cudaError_t)fake_leave(&here, error);
}

cudaError_t
cudaInitDevice(int device, unsigned device_flags, unsigned flags)
{
    (void)device_flags;
    (void)flags;
    RUNTIME_CALL(device < 0 || device >= fake_setting.devices
                     ? (int)cudaErrorInvalidDevice
                     : fake_use_device_locked(device)->lost);
}

cudaError_t
cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    RUNTIME_CALL(fake_device_attribute_locked(value, (int)attribute, device));
}

cudaError_t
cudaDeviceGetPCIBusId(char *out, int size, int device)
{
    RUNTIME_CALL(fake_device_bus_id_locked(out, size, device));
}

static int
find_bus_id_locked(int *out, const char *bus_id)
{
    for (int device = 0; device < fake_setting.devices; device++) {
        char name[16];
        (void)fake_device_bus_id_locked(name, sizeof(name), device);
        if (strcmp(name, bus_id) == 0) {
            *out = device;
            return 0;
        }
    }
    return (int)cudaErrorInvalidDevice;
}

cudaError_t
cudaDeviceGetByPCIBusId(int *device, const char *bus_id)
{
    RUNTIME_CALL(find_bus_id_locked(device, bus_id));
}

cudaError_t
cudaDeviceCanAccessPeer(int *out, int device, int peer)
{
    RUNTIME_CALL(fake_peer_possible_locked(out, device, peer));
}

cudaError_t
cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    RUNTIME_CALL(
        flags != 0 ? (int)cudaErrorInvalidValue
                   : fake_peer_enable_locked(fake_current_device_locked(), peer, true));
}

cudaError_t
cudaDeviceDisablePeerAccess(int peer)
{
    RUNTIME_CALL(fake_peer_enable_locked(fake_current_device_locked(), peer, false));
}

static cudaError_t
driver_version(int *out)
{
    if (out == NULL) {
        return cudaErrorInvalidValue;
    }
    *out = fake_setting.driver_version;
    return cudaSuccess;
}

/* Answers without a driver, too: 0. */
cudaError_t
cudaDriverGetVersion(int *version)
{
    return driver_version(version);
}
