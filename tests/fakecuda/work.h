/* work.h - work on streams: what is queued, what must come before what, and who knows
 * that it is finished.
 *
 * Note [As late as allowed]
 * Queued work is a graph of operations with edges from each one to those that must run
 * before it. Nothing runs until somebody must see its effect: a wait of the host, a query
 * past the lag, a release, or a queue that has become too deep. Then just that operation
 * runs and what comes before it. A program that relied on luck finds none.
 *
 * Note [Clocks]
 * Each stream has a lane, and numbers its operations. The clock of an operation says of
 * every lane how many operations, counted from the first, come before it or are it. What
 * the host knows to be finished is a clock, too: it grows when the host waits, or when a
 * query answers yes, and not when work merely happens to have run. A use of memory comes
 * before an operation if the operation's clock or the host's has it.
 *
 * All functions need the lock.
 */
#ifndef FAKECUDA_WORK_H
#define FAKECUDA_WORK_H

#include "fake.h"

typedef struct fake_clock {
    uint64_t *counts; /* by lane; owned */
    size_t size;
} fake_clock;

typedef struct fake_capture fake_capture;
typedef struct fake_exec fake_exec;
typedef struct fake_event fake_event;
typedef struct fake_kernel_call fake_kernel_call;

typedef enum fake_work {
    FAKE_MARK, /* an event was recorded, or a block given back */
    FAKE_WAIT, /* an event is waited for */
    FAKE_COPY,
    FAKE_FILL,
    FAKE_HOST,
    FAKE_KERNEL,
    FAKE_LAUNCH_GRAPH,
} fake_work;

/* Bytes that work uses, and the mapping through which they were reached when it was
 * queued or captured. */
typedef struct fake_span {
    uint64_t address;
    size_t size; /* 0: some bytes of the mapping, nobody knows which */
    uint64_t mapping;
    uint64_t memory;
    int device; /* that must have access */
    bool writes;
} fake_span;

/* What is to be done; of an operation, or of a node of a graph. */
typedef struct fake_task {
    fake_work work;
    int device; /* that it runs on */
    uint64_t destination;
    uint64_t source;
    size_t width; /* bytes of a row */
    size_t height;
    size_t destination_pitch;
    size_t source_pitch;
    void *staged; /* owned: the bytes of a pageable source */
    unsigned char pattern[16];
    size_t pattern_size;
    void (*function)(void *);      /* FAKE_HOST, or */
    cudaStreamCallback_t callback; /* this one, with the stream's handle */
    cudaStream_t callback_stream;
    void *data;
    fake_kernel_call *kernel; /* owned */
    fake_exec *exec;          /* a reference */
    fake_event *event;        /* FAKE_MARK, FAKE_WAIT as nodes of a graph */
    fake_span *spans;         /* owned */
    size_t span_count, span_capacity;
} fake_task;

typedef enum fake_state {
    FAKE_QUEUED,
    FAKE_RUNNING,
    FAKE_DONE,
} fake_state;

typedef struct fake_op {
    fake_task task;
    unsigned references;
    fake_state state;
    fake_stream *stream; /* NULL when done */
    uint64_t stream_id;
    size_t lane;
    uint64_t number;
    fake_clock clock;
    struct fake_op **before; /* those that are not done; references */
    size_t before_count, before_capacity;
    struct fake_op *next; /* on the stream */
    long queries;         /* that were answered "not ready" */
    uint64_t done_ns;
} fake_op;

struct fake_stream {
    uint64_t id;
    void *handle; /* NULL: the legacy default stream */
    int device;
    unsigned flags;
    int priority;
    bool legacy;
    bool per_thread;
    bool destroyed;
    bool stalled;
    size_t allowed; /* operations that may run although it is stalled */
    size_t lane;
    fake_op *first, *tail; /* that are not done */
    size_t queued;
    fake_op *last; /* a reference; NULL: there never was one */
    fake_capture *capture;
    uint32_t *tips; /* nodes that the next captured one depends on; owned */
    size_t tip_count, tip_capacity;
    fake_stream *next; /* of the device */
};

/* ---- clocks.c ---------------------------------------------------------------------- */

void
fake_clock_free(fake_clock *clock);
void
fake_clock_join(fake_clock *into, const fake_clock *from);

/* A lane that nobody uses any more, or a new one. */
size_t
fake_lane_take_locked(void);
void
fake_lane_give_locked(size_t lane);

/* Gives the operation its number and enters it in its clock. */
void
fake_lane_number_locked(fake_op *op);

/* The host learned that the operation, and all before it, is finished. */
void
fake_learn_locked(const fake_op *op);
void
fake_learn_clock_locked(const fake_clock *clock);

bool
fake_is_known_locked(size_t lane, uint64_t number);

/* Does that operation of that lane come before `op`? */
bool
fake_is_before_locked(size_t lane, uint64_t number, const fake_op *op);

void
fake_clocks_reset_locked(void);

/* ---- work.c ------------------------------------------------------------------------ */

fake_op *
fake_op_retain(fake_op *op);
void
fake_op_release_locked(fake_op *op); /* accepts NULL */
void
fake_task_clear(fake_task *task);

fake_stream *
fake_stream_make_locked(int device, unsigned flags, int priority);

/* The stream of a handle: 0 and 1 the legacy default, 2 the calling thread's own. NULL: a
 * violation was recorded, and *error is set. */
fake_stream *
fake_stream_of_locked(cudaStream_t handle, int *error);

/* Queues the task, or captures it. Takes what the task owns in any case. `after`: another
 * operation that must come first, or NULL. `out`: the operation, borrowed; NULL when it
 * was captured; `out` may be NULL itself. */
int
fake_submit_locked(fake_stream *stream, fake_task *task, fake_op *after, fake_op **out);

/* Runs it and what comes before it. False: a stalled stream is in the way. */
bool
fake_run_locked(fake_op *op);

/* Waits until it has run; the host knows then. The error of a lost device, or 0. */
int
fake_finish_locked(fake_op *op);

/* The same without waiting: not ready, until the lag has passed. */
int
fake_query_locked(fake_op *op);

/* All work of the device. */
int
fake_finish_device_locked(int device);

/* The stream is gone for the program; what was queued still runs. */
void
fake_stream_drop_locked(fake_stream *stream);

/* ---- elsewhere --------------------------------------------------------------------- */

/* execute.c: does the work. May give up the lock meanwhile. */
void
fake_execute_locked(fake_op *op);

/* capture.c. */
int
fake_capture_task_locked(fake_stream *stream, fake_task *task);

/* An error if this thread may now make no call that could disturb a capture, which is
 * invalidated then. */
int
fake_check_unsafe_locked(void);

/* An error if work on the stream would join a capture without being captured. */
int
fake_check_implicit_locked(fake_stream *stream);

/* Invalidates the capture; returns the error. */
int
fake_spoil_locked(fake_capture *capture, int error);

#endif
