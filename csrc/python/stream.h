/* stream.h - what Stream and Event share.
 *
 * Private to stream.c and event.c.
 */
#ifndef GM_PYTHON_STREAM_H
#define GM_PYTHON_STREAM_H

#include "python/python.h"

typedef struct EventObject {
    PyObject_HEAD
    DeviceObject *device; /* strong */
    gm_event event;       /* owned */
    PyObject *weakrefs;
} EventObject;

/* New reference: an Event of the device. */
PyObject *
event_make(core_state *state, DeviceObject *device);

/* 0, or -1 with an exception. */
int
event_record_on(core_state *state, EventObject *self, gm_stream stream);

/* The body of synchronize(timeout=None): waits for an event if it is not 0, else for a
 * stream. True, False when the time was over, or NULL. */
PyObject *
wait_method(core_state *state, DeviceObject *device, gm_stream stream, gm_event event,
            PyObject *args, PyObject *kwargs);

/* Adds the Event type; stream_init calls it. */
int
event_init(PyObject *module, core_state *state);

#endif
