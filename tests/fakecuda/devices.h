/* devices.h - the bodies of what both interfaces ask of devices. All functions need the
 * lock. */
#ifndef FAKECUDA_DEVICES_H
#define FAKECUDA_DEVICES_H

#include "fake.h"

int
fake_device_attribute_locked(int *out, int attribute, int device);
int
fake_device_bus_id_locked(char *out, int size, int device);
int
fake_peer_possible_locked(int *out, int device, int peer);
int
fake_peer_enable_locked(int device, int peer, bool enable);

/* "Fake GPU 0". */
void
fake_device_name(char *out, size_t size, int device);
void
fake_device_uuid(unsigned char out[16], int device);

#endif
