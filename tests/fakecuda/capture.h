/* capture.h - streams that record graphs instead of working. All functions need the
 * lock. */
#ifndef FAKECUDA_CAPTURE_H
#define FAKECUDA_CAPTURE_H

#include "events.h"
#include "graphs.h"
#include "work.h"

struct fake_capture {
    uint64_t id;
    fake_graph *graph;
    enum cudaStreamCaptureMode mode;
    uint64_t thread; /* that began it */
    fake_stream *origin;
    bool spoiled;
    fake_capture *next; /* of all that go on */
};

/* The capture, if it is that one and goes on. */
fake_capture *
fake_capture_alive_locked(const fake_capture *capture, uint64_t id);

int
fake_capture_record_locked(fake_stream *stream, fake_event *event, bool external);

/* `capture`: where the event stands, if that goes on. */
int
fake_capture_wait_locked(fake_stream *stream, fake_event *event, fake_capture *capture,
                         bool external);

/* The bodies of the calls, for both interfaces. */
int
fake_capture_begin_locked(CUstream handle, int mode);
int
fake_capture_end_locked(CUstream handle, CUgraph *out);
int
fake_capture_status_locked(CUstream handle, int *out);
int
fake_capture_info_locked(CUstream handle, int *status, unsigned long long *id,
                         CUgraph *graph, const CUgraphNode **nodes, size_t *count);
int
fake_capture_exchange_mode_locked(int *mode);

void
fake_capture_reset_locked(void);

#endif
