/* copy_engine.h - one copy between two ends, whoever they are.
 *
 * buffer_copy.c parses the calls of Python, copy_engine.c decides how elements move.
 *
 * Thread-safety: the GIL.
 */
#ifndef GM_PYTHON_COPY_ENGINE_H
#define GM_PYTHON_COPY_ENGINE_H

#include "python/python.h"

#include "python/buffer.h"

/* A strided copy or fill of more pieces than this goes through NumPy where it can. */
#define MANY_PIECES 4096

typedef struct copy_end {
    array_layout layout;
    const dtype_info *dtype;
    BufferObject *buffer;      /* borrowed; NULL: not a Buffer */
    PinnedArrayObject *pinned; /* borrowed; NULL: not a PinnedArray */
    host_array host;           /* held when both are NULL */
} copy_end;

/* A copy under way. */
typedef struct copy_job {
    core_state *state;
    copy_end *target;
    copy_end *source;
    BufferObject *self; /* the end whose method was called */
    gm_stream stream;   /* of self's device */
} copy_job;

/* 0, or -1 with ReleasedError, or ValueError on a device without memory. */
int
copy_end_open_buffer(core_state *state, BufferObject *buffer, copy_end *out);

/* 1: opened, close it later. 0: not an array of any sort. -1: an exception. */
int
copy_end_open(core_state *state, PyObject *object, copy_end *out);

void
copy_end_close(copy_end *end);

/* Keeps the memory while the GIL is released; see Note [Memory in a waiting copy]. */
void
copy_end_hold(copy_end *end);
void
copy_end_unhold(core_state *state, copy_end *end);

/* May the host read and write it through its address? */
bool
copy_end_is_on_host(const copy_end *end);

/* The whole copy: checks shapes and kinds, then moves the elements. */
int
copy_run(copy_job *job);

/* As bytes by `device`, which both ends can be reached from; queued or done on return.
 * The caller holds the ends. */
int
copy_run_direct(copy_job *job, gm_device *device, gm_stream stream, bool queued);

/* By NumPy, once the streams are idle. The caller holds the ends. */
int
copy_run_numpy(copy_job *job);

#endif
