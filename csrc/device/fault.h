/* fault.h - wraps a device and makes chosen calls fail, wait or be written down.
 *
 * For tests: "the 3rd map fails once", "from the 5th page_create on all fail". The
 * wrapped call is not made when a fault strikes; the out-parameters stay untouched.
 * Calls of every kind are counted from gm_fault_arm on. counters() are those of the
 * inner device, so a call that was made to fail is not among them.
 *
 * Ownership: gm_fault_create takes its own reference on the inner device. The helper
 * functions of host.h work on the inner device (gm_fault_inner).
 */
#ifndef GM_DEVICE_FAULT_H
#define GM_DEVICE_FAULT_H

#include "device/device.h"

typedef struct gm_fault_plan {
    int call;          /* a gm_device_call, or -1: calls of every kind count together */
    uint64_t nth;      /* 1 = the next such call; 0 = never */
    bool for_ever;     /* that call and every later one, else that one alone */
    gm_status status;  /* what the failed call answers */
    uint64_t delay_ns; /* every call of the kind first sleeps that long (real time) */
} gm_fault_plan;

GM_NODISCARD gm_status
gm_fault_create(gm_device *inner, gm_device **out);

/* The innermost wrapped device; borrowed. `device` itself when it is no fault
 * device. */
gm_device *
gm_fault_inner(gm_device *device);

/* Starts counting again under a new plan; NULL disarms. */
void
gm_fault_arm(gm_device *device, const gm_fault_plan *plan);

/* How many calls were made to fail since gm_fault_arm. */
uint64_t
gm_fault_injected(gm_device *device);

/* Writes down the kinds of the calls from now on, oldest dropped past `limit`.
 * 0 stops and forgets. */
GM_NODISCARD gm_status
gm_fault_record(gm_device *device, size_t limit);

/* Copies up to `capacity` recorded kinds, oldest first; returns how many there are. */
size_t
gm_fault_recorded(gm_device *device, gm_device_call *out, size_t capacity);

#endif
