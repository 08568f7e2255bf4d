/* streams.h - the bodies of the calls on streams, for both interfaces. All functions
 * need the lock. */
#ifndef FAKECUDA_STREAMS_H
#define FAKECUDA_STREAMS_H

#include "work.h"

int
fake_stream_create_locked(CUstream *out, unsigned flags, int priority);
int
fake_stream_destroy_locked(CUstream handle);
int
fake_stream_synchronize_locked(CUstream handle);
int
fake_stream_query_locked(CUstream handle);
int
fake_stream_number_locked(CUstream handle, unsigned long long *out);
int
fake_stream_flags_locked(CUstream handle, unsigned *out);
int
fake_stream_priority_locked(CUstream handle, int *out);
int
fake_stream_device_locked(CUstream handle, int *out);
int
fake_stream_call_locked(CUstream handle, void (*function)(void *),
                        cudaStreamCallback_t callback, void *data);
int
fake_device_synchronize_locked(void);

#endif
