/* device_cuda.h - the methods of Device that are about CUDA; defined in device_cuda.c.
 *
 * Private to the Device type: device.c lists them in its tables.
 */
#ifndef GM_PYTHON_DEVICE_CUDA_H
#define GM_PYTHON_DEVICE_CUDA_H

#include "python/python.h"

/* 0 when info says what it will always say, else -1 with an exception. Without the GIL
 * while the device is made ready. */
int
device_prepare(PyObject *op);

PyObject *
Device_enable_peer(PyObject *op, PyObject *peer);
PyObject *
Device_describe(PyObject *op, PyObject *ignored);

extern const char Device_describe_doc[];

#endif
