/* runtime.h - what libcudart.so.12 and libcudart.so.13 do not share: functions of one
 * name whose arguments or structs differ. runtime12.c and runtime13.c are compiled with
 * the headers of their version and lead here; nothing of CUDA is named on this page. */
#ifndef FAKECUDA_RUNTIME_H
#define FAKECUDA_RUNTIME_H

#include <stddef.h>

/* The library of that version was loaded: 12090, 13000. */
void
fake_runtime_loaded(int version);

/* Both answer in every state: they touch no device. */
int
fake_runtime_version_of(int *out, int version);

/* cudaStreamGetCaptureInfo; every result but the status may be NULL. */
int
fake_runtime_capture_info(void *stream, int *status, unsigned long long *id,
                          void *graph, void *nodes, size_t *count);

/* What cudaDeviceProp of every version has. */
typedef struct fake_runtime_properties {
    char name[64];
    unsigned char uuid[16];
    size_t total_bytes;
} fake_runtime_properties;

/* The answer for one attribute (0 when the device is not there). */
int
fake_runtime_attribute(int attribute, int device);

/* cudaGetDeviceProperties, as far as it does not lie in attributes. */
int
fake_runtime_describe(fake_runtime_properties *out, int device);

/* cudaMemAdvise and cudaMemPrefetchAsync: managed memory needs neither here; anything
 * else is refused. */
int
fake_runtime_hint(const void *address, size_t size);

#endif
