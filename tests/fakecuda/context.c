/* context.c - the driver's start, its devices, and current contexts. */
#include "context.h"

#include <string.h>

#include "devices.h"
#include "streams.h"
#include "work.h"

#define MOST_CONTEXTS 16

_Thread_local int fake_thread_device = -1;

/* The handles that are current, the last one on top. */
static _Thread_local void *stack[MOST_CONTEXTS];
static _Thread_local int stack_size;

static void
take_over_top_locked(void)
{
    const fake_device *device =
        stack_size == 0 ? NULL
                        : fake_handle_find_locked(FAKE_CONTEXT, stack[stack_size - 1]);
    fake_thread_device = device == NULL ? -1 : (int)(device - fake_devices);
}

void
fake_context_choose_locked(int device)
{
    stack_size = stack_size == 0 ? 1 : stack_size;
    stack[stack_size - 1] = fake_use_device_locked(device)->context;
    take_over_top_locked();
}

void
fake_context_reset_locked(void)
{
    stack_size = 0;
    fake_thread_device = -1;
}

/* ---- the start and devices ----------------------------------------------------------------- */

static int
start_locked(unsigned flags)
{
    if (flags != 0) {
        return (int)cudaErrorInvalidValue;
    }
    if (fake_setting.devices == 0) {
        return (int)cudaErrorNoDevice;
    }
    fake_initialised = true;
    return 0;
}

/* Everything else needs it first. */
CUresult
cuInit(unsigned flags)
{
    static fake_call here = {.name = __func__, .driver = true};
    int error = fake_enter(&here);
    if (error == 0 || error == (int)cudaErrorInitializationError) {
        error = start_locked(flags);
    }
    return (CUresult)fake_leave(&here, error);
}

CUresult
cuDriverGetVersion(int *version)
{
    *version = fake_setting.driver_version;
    return CUDA_SUCCESS;
}

static int
check_device(int device)
{
    return device >= 0 && device < fake_setting.devices ? 0
                                                        : (int)cudaErrorInvalidDevice;
}

static int
get_device_locked(CUdevice *out, int ordinal)
{
    int error = check_device(ordinal);
    if (error == 0) {
        *out = ordinal;
    }
    return error;
}

CUresult
cuDeviceGet(CUdevice *out, int ordinal)
{
    DRIVER_CALL(get_device_locked(out, ordinal));
}

static int
count_locked(int *out)
{
    *out = fake_setting.devices;
    return 0;
}

CUresult
cuDeviceGetCount(int *count)
{
    DRIVER_CALL(count_locked(count));
}

CUresult
cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    DRIVER_CALL(fake_device_attribute_locked(value, (int)attribute, device));
}

static int
name_locked(char *out, int size, CUdevice device)
{
    int error = check_device(device);
    if (error == 0 && size > 0) {
        fake_device_name(out, (size_t)size, device);
    }
    return error;
}

CUresult
cuDeviceGetName(char *name, int size, CUdevice device)
{
    DRIVER_CALL(name_locked(name, size, device));
}

static int
uuid_locked(CUuuid *out, CUdevice device)
{
    int error = check_device(device);
    if (error == 0) {
        unsigned char bytes[16];
        fake_device_uuid(bytes, device);
        memcpy(out, bytes, sizeof(bytes));
    }
    return error;
}

CUresult
cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    DRIVER_CALL(uuid_locked(uuid, device));
}

static int
total_locked(size_t *out, CUdevice device)
{
    int error = check_device(device);
    if (error == 0) {
        *out = fake_devices[device].capacity;
    }
    return error;
}

CUresult
cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
    DRIVER_CALL(total_locked(bytes, device));
}

CUresult
cuDeviceGetPCIBusId(char *out, int size, CUdevice device)
{
    DRIVER_CALL(fake_device_bus_id_locked(out, size, device));
}

CUresult
cuDeviceCanAccessPeer(int *out, CUdevice device, CUdevice peer)
{
    DRIVER_CALL(fake_peer_possible_locked(out, device, peer));
}

/* ---- contexts --------------------------------------------------------------------------------- */

static int
retain_locked(CUcontext *out, CUdevice device)
{
    int error = check_device(device);
    if (error == 0) {
        fake_device *owner = fake_use_device_locked(device);
        owner->retains++;
        *out = owner->context;
    }
    return error;
}

CUresult
cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
    DRIVER_CALL(retain_locked(out, device));
}

static int
release_locked(CUdevice device)
{
    int error = check_device(device);
    if (error == 0 && fake_devices[device].retains == 0) {
        (void)fake_violation_locked("the primary context is not retained");
        error = (int)cudaErrorDeviceUninitialized;
    }
    if (error == 0) {
        fake_devices[device].retains--;
    }
    return error;
}

CUresult
cuDevicePrimaryCtxRelease(CUdevice device)
{
    DRIVER_CALL(release_locked(device));
}

static int
state_locked(CUdevice device, unsigned *flags, int *active)
{
    int error = check_device(device);
    if (error == 0) {
        *flags = 0;
        *active = fake_devices[device].in_use;
    }
    return error;
}

CUresult
cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    DRIVER_CALL(state_locked(device, flags, active));
}

CUresult
cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags)
{
    (void)flags;
    DRIVER_CALL(check_device(device));
}

static int
set_current_locked(CUcontext context)
{
    int error = 0;
    if (context == NULL) {
        stack_size = stack_size == 0 ? 0 : stack_size - 1;
    }
    else if (fake_handle_need_locked(FAKE_CONTEXT, context, &error) != NULL) {
        stack_size = stack_size == 0 ? 1 : stack_size;
        stack[stack_size - 1] = context;
    }
    take_over_top_locked();
    return error == 0 ? 0 : (int)cudaErrorDeviceUninitialized;
}

CUresult
cuCtxSetCurrent(CUcontext context)
{
    DRIVER_CALL(set_current_locked(context));
}

static int
get_current_locked(CUcontext *out)
{
    *out = stack_size == 0 ? NULL : stack[stack_size - 1];
    return 0;
}

CUresult
cuCtxGetCurrent(CUcontext *out)
{
    DRIVER_CALL(get_current_locked(out));
}

static int
push_locked(CUcontext context)
{
    int error = 0;
    if (fake_handle_need_locked(FAKE_CONTEXT, context, &error) == NULL ||
        stack_size == MOST_CONTEXTS) {
        return (int)cudaErrorDeviceUninitialized;
    }
    stack[stack_size++] = context;
    take_over_top_locked();
    return 0;
}

CUresult
cuCtxPushCurrent(CUcontext context)
{
    DRIVER_CALL(push_locked(context));
}

static int
pop_locked(CUcontext *out)
{
    if (stack_size == 0) {
        return (int)cudaErrorDeviceUninitialized;
    }
    stack_size--;
    if (out != NULL) {
        *out = stack[stack_size];
    }
    take_over_top_locked();
    return 0;
}

CUresult
cuCtxPopCurrent(CUcontext *out)
{
    DRIVER_CALL(pop_locked(out));
}

/* A further context shares everything with the device's primary one here. */
static int
create_locked(CUcontext *out, CUdevice device)
{
    int error = check_device(device);
    if (error == 0) {
        *out = fake_handle_make_locked(FAKE_CONTEXT, fake_use_device_locked(device));
        error = push_locked(*out);
    }
    return error;
}

CUresult
cuCtxCreate(CUcontext *out, CUctxCreateParams *params, unsigned flags, CUdevice device)
{
    (void)params;
    (void)flags;
    DRIVER_CALL(create_locked(out, device));
}

static int
destroy_locked(CUcontext context)
{
    int error = 0;
    const fake_device *device = fake_handle_need_locked(FAKE_CONTEXT, context, &error);
    if (device == NULL || device->context == (void *)context) {
        return (int)cudaErrorDeviceUninitialized; /* nobody may destroy a primary one */
    }
    fake_handle_drop_locked(FAKE_CONTEXT, context);
    if (stack_size > 0 && stack[stack_size - 1] == (void *)context) {
        stack_size--;
        take_over_top_locked();
    }
    return 0;
}

CUresult
cuCtxDestroy(CUcontext context)
{
    DRIVER_CALL(destroy_locked(context));
}

static int
context_device_locked(CUdevice *out)
{
    *out = fake_thread_device;
    return 0;
}

CUresult
cuCtxGetDevice(CUdevice *out)
{
    CONTEXT_CALL(context_device_locked(out));
}

CUresult
cuCtxSynchronize(void)
{
    CONTEXT_CALL(fake_device_synchronize_locked());
}

static int
priority_range_locked(int *least, int *greatest)
{
    return (int)cudaDeviceGetStreamPriorityRange(least, greatest);
}

CUresult
cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    CONTEXT_CALL(priority_range_locked(least, greatest));
}

static int
peer_of_locked(CUcontext context, bool enable)
{
    int error = 0;
    const fake_device *device = fake_handle_need_locked(FAKE_CONTEXT, context, &error);
    return device == NULL
               ? (int)cudaErrorDeviceUninitialized
               : fake_peer_enable_locked(fake_thread_device,
                                         (int)(device - fake_devices), enable);
}

CUresult
cuCtxEnablePeerAccess(CUcontext context, unsigned flags)
{
    CONTEXT_CALL(flags != 0 ? (int)cudaErrorInvalidValue
                            : peer_of_locked(context, true));
}

CUresult
cuCtxDisablePeerAccess(CUcontext context)
{
    CONTEXT_CALL(peer_of_locked(context, false));
}
