/* device_testing.h - the methods of Device that tests use; defined in device_testing.c.
 *
 * Private to the Device type: device.c lists them in its tables.
 */
#ifndef GM_PYTHON_DEVICE_TESTING_H
#define GM_PYTHON_DEVICE_TESTING_H

#include "python/python.h"

PyObject *
Device_occupy(PyObject *op, PyObject *nbytes);
PyObject *
Device_set_reported_free(PyObject *op, PyObject *nbytes);
PyObject *
Device_advance(PyObject *op, PyObject *seconds);
PyObject *
Device_set_capturing(PyObject *op, PyObject *args);
PyObject *
Device_with_faults(PyObject *op, PyObject *ignored);
PyObject *
Device_arm_fault(PyObject *op, PyObject *args, PyObject *kwargs);
PyObject *
Device_disarm_fault(PyObject *op, PyObject *ignored);
PyObject *
Device_record_calls(PyObject *op, PyObject *limit);
PyObject *
Device_recorded_calls(PyObject *op, PyObject *ignored);
PyObject *
Device_set_lag(PyObject *op, PyObject *operations);
PyObject *
Device_tick(PyObject *op, PyObject *ignored);
PyObject *
Device_violations(PyObject *op, PyObject *ignored);
PyObject *
Device_get_faults_injected(PyObject *op, void *closure);
PyObject *
Device_get_host_waits(PyObject *op, void *closure);

extern const char Device_arm_fault_doc[];

#endif
