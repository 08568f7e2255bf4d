/* checker_device.h - a device that tells its checker (checker.h) of every use and edge.
 *
 * The host and the sim device install this over their own functions when they are
 * opened `checked`: each call that makes an edge, uses memory or moves it goes to the
 * device and to the checker. An unchecked device has no trace of it.
 *
 * Thread-safety: the checked functions as device.h says. Ownership: the device owns its
 * checker, which goes when it is closed.
 */
#ifndef GM_DEVICE_CHECKER_DEVICE_H
#define GM_DEVICE_CHECKER_DEVICE_H

#include "device/checker.h"

/* Puts the checked calls over those in `ops`, the device's own table. Pre: the device is
 * complete and nobody else knows it. GM_NO_HOST_MEMORY changes nothing. */
GM_NODISCARD gm_status
gm_checker_install(gm_device *device, gm_device_ops *ops);

/* Was the device opened `checked`? A device before a checked one is, too. */
static inline bool
gm_device_is_checked(const gm_device *device)
{
    return device->ops->note_block != NULL;
}

/* As gm_checker_violations, of the innermost device. 0 without a checker and in a child
 * of fork. */
uint64_t
gm_device_violations(gm_device *device, char *text, size_t size);

#endif
