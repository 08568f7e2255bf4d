/* events.h - what an event is; events.c has its calls. All functions need the lock. */
#ifndef FAKECUDA_EVENTS_H
#define FAKECUDA_EVENTS_H

#include "work.h"

struct fake_event {
    void *handle; /* NULL: destroyed */
    unsigned references;
    int device;
    unsigned flags;
    fake_op *mark;         /* a reference; NULL: never recorded */
    fake_capture *capture; /* it was last recorded in this one */
    uint64_t capture_id;
    uint32_t *tips; /* and stands behind these nodes; owned */
    size_t tip_count, tip_capacity;
};

void
fake_event_release_locked(fake_event *event); /* accepts NULL */

/* The event marks this operation from now on. */
void
fake_event_move_locked(fake_event *event, fake_op *mark);

/* The bodies of the calls, for both interfaces. */
int
fake_event_make_locked(CUevent *out, unsigned flags);
int
fake_event_destroy_locked(CUevent handle);
int
fake_event_record_locked(CUevent handle, CUstream stream, unsigned flags);
int
fake_event_query_locked(CUevent handle);
int
fake_event_synchronize_locked(CUevent handle);
int
fake_event_elapsed_locked(float *out, CUevent start, CUevent end);
int
fake_stream_wait_locked(CUstream stream, CUevent handle, unsigned flags);

#endif
