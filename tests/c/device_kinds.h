/* device_kinds.h - opening devices and reading them, for all device tests. */
#ifndef GM_TESTS_DEVICE_KINDS_H
#define GM_TESTS_DEVICE_KINDS_H

#include "check.h"
#include "device/device.h"
#include "device/fault.h"
#include "device/host.h"
#include "device/sim.h"

#define MIB ((size_t)1 << 20)

static inline gm_device *
open_host(const gm_host_options *options)
{
    gm_device *device = NULL;
    CHECK_OK(gm_host_create(options, &device));
    return device;
}

static inline gm_device *
open_sim(const gm_sim_options *options)
{
    gm_device *device = NULL;
    CHECK_OK(gm_sim_create(options, &device));
    return device;
}

/* The device behind an unarmed fault device; takes over the reference. */
static inline gm_device *
behind_faults(gm_device *inner)
{
    gm_device *device = NULL;
    CHECK_OK(gm_fault_create(inner, &device));
    gm_device_release(inner);
    return device;
}

static inline gm_device_counters
counters_of(gm_device *device)
{
    gm_device_counters counters;
    device->ops->counters(device, &counters);
    return counters;
}

static inline size_t
free_of(gm_device *device)
{
    size_t free_bytes = 0, total = 0;
    CHECK_OK(device->ops->memory_info(device, &free_bytes, &total));
    CHECK_EQ(total, device->info.total);
    return free_bytes;
}

#endif
