#include "device/device.h"

#include "base/assert.h"
#include "base/process.h"

static const char *const call_names[] = {
#define GM_DEVICE_CALL_NAME(constant, name) name,
    GM_DEVICE_CALL_MAP(GM_DEVICE_CALL_NAME)
#undef GM_DEVICE_CALL_NAME
};

_Static_assert(sizeof(call_names) / sizeof(call_names[0]) == GM_CALL_COUNT,
               "one name for each call kind");

void
gm_device_init(gm_device *device, const gm_device_ops *ops)
{
    gm_process_init();
    device->ops = ops;
    device->generation = gm_process_generation();
    atomic_init(&device->references, 1);
}

gm_device *
gm_device_retain(gm_device *device)
{
    atomic_fetch_add_explicit(&device->references, 1, memory_order_relaxed);
    return device;
}

void
gm_device_release(gm_device *device)
{
    if (device == NULL) {
        return;
    }
    uint32_t before =
        atomic_fetch_sub_explicit(&device->references, 1, memory_order_acq_rel);
    GM_VERIFY(before > 0);
    if (before == 1 && gm_device_usable(device) == GM_OK) {
        device->ops->close(device);
    }
}

gm_status
gm_device_usable(const gm_device *device)
{
    if (device->generation != gm_process_generation()) {
        return GM_FORKED;
    }
    if (gm_process_is_exiting()) {
        return GM_EXITING;
    }
    return GM_OK;
}

const char *
gm_device_call_name(gm_device_call call)
{
    if ((unsigned)call >= GM_CALL_COUNT) {
        return "unknown call";
    }
    return call_names[call];
}
