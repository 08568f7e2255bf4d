/* work.c - the queues of streams; see work.h. */
#include <stdlib.h>
#include <time.h>

#include "memory.h"
#include "work.h"

/* It never starts anew: nothing may be taken for something older. */
static uint64_t last_stream_id;

/* A thread's own streams, one for each device that it used. */
typedef struct fake_own_streams {
    fake_stream *streams[FAKE_MAX_DEVICES];
    unsigned age; /* the reset that they belong to */
} fake_own_streams;

static pthread_key_t own_key;
static pthread_once_t own_once = PTHREAD_ONCE_INIT;
static unsigned age;
static uint64_t operations;

/* ---- operations --------------------------------------------------------------------- */

fake_op *
fake_op_retain(fake_op *op)
{
    op->references++;
    return op;
}

static void
forget_edges_locked(fake_op *op)
{
    while (op->before_count > 0) {
        fake_op_release_locked(op->before[--op->before_count]);
    }
}

void
fake_op_release_locked(fake_op *op)
{
    if (op != NULL && --op->references == 0) {
        forget_edges_locked(op);
        fake_clock_free(&op->clock);
        free(op->before);
        free(op);
    }
}

static void
depend_on_locked(fake_op *op, fake_op *earlier)
{
    if (earlier == NULL) {
        return;
    }
    fake_clock_join(&op->clock, &earlier->clock);
    if (earlier->state != FAKE_DONE) {
        fake_op **place = fake_push(&op->before, &op->before_count,
                                    &op->before_capacity, sizeof(*place));
        *place = fake_op_retain(earlier);
    }
}

/* ---- streams ------------------------------------------------------------------------ */

fake_stream *
fake_stream_make_locked(int device, unsigned flags, int priority)
{
    fake_stream *stream = fake_allocate(sizeof(*stream));
    stream->id = ++last_stream_id;
    stream->device = device;
    stream->flags = flags;
    stream->priority = priority;
    stream->lane = fake_lane_take_locked();
    stream->next = fake_devices[device].streams;
    fake_devices[device].streams = stream;
    return stream;
}

static fake_stream *
legacy_stream_locked(int device)
{
    fake_device *owner = &fake_devices[device];
    if (owner->legacy == NULL) {
        owner->legacy = fake_stream_make_locked(device, 0, 0);
        owner->legacy->legacy = true;
    }
    return owner->legacy;
}

/* The thread ends: nobody can name its streams any more. What they hold still runs. */
static void
drop_own_streams(void *value)
{
    fake_own_streams *own = value;
    pthread_mutex_lock(&fake_lock);
    for (int i = 0; i < FAKE_MAX_DEVICES; i++) {
        if (own->age == age && own->streams[i] != NULL &&
            own->streams[i]->capture == NULL) {
            fake_stream_drop_locked(own->streams[i]);
        }
    }
    pthread_mutex_unlock(&fake_lock);
    free(own);
}

static void
make_own_key(void)
{
    if (pthread_key_create(&own_key, drop_own_streams) != 0) {
        abort();
    }
}

static fake_stream *
own_stream_locked(int device)
{
    (void)pthread_once(&own_once, make_own_key);
    fake_own_streams *own = pthread_getspecific(own_key);
    if (own == NULL) {
        own = fake_allocate(sizeof(*own));
        (void)pthread_setspecific(own_key, own);
    }
    if (own->age != age) {
        *own = (fake_own_streams){.age = age};
    }
    if (own->streams[device] == NULL) {
        own->streams[device] = fake_stream_make_locked(device, 0, 0);
        own->streams[device]->per_thread = true;
    }
    return own->streams[device];
}

fake_stream *
fake_stream_of_locked(cudaStream_t handle, int *error)
{
    if (handle == 0 || handle == cudaStreamLegacy) {
        return legacy_stream_locked(fake_current_device_locked());
    }
    if (handle == cudaStreamPerThread) {
        return own_stream_locked(fake_current_device_locked());
    }
    fake_stream *stream = fake_handle_need_locked(FAKE_STREAM, handle, error);
    if (stream != NULL && fake_devices[stream->device].lost != 0) {
        *error = fake_devices[stream->device].lost;
        return NULL;
    }
    return stream;
}

static bool
is_blocking(const fake_stream *stream)
{
    return !stream->legacy && (stream->flags & cudaStreamNonBlocking) == 0;
}

static void
join_past(fake_clock **past, const fake_clock *clock)
{
    if (*past == NULL) {
        *past = fake_allocate(sizeof(**past));
    }
    fake_clock_join(*past, clock);
}

/* Who waits for the device waits for what was queued there, too, and the legacy stream
 * still comes after it. */
static void
keep_past_locked(const fake_stream *stream)
{
    fake_device *device = &fake_devices[stream->device];
    if (stream->last != NULL) {
        join_past(&device->past, &stream->last->clock);
        if (is_blocking(stream)) {
            join_past(&device->past_blocking, &stream->last->clock);
        }
    }
}

static void
drop_past(fake_clock **past)
{
    if (*past != NULL) {
        fake_clock_free(*past);
        free(*past);
        *past = NULL;
    }
}

static void
free_stream_locked(fake_stream *stream)
{
    keep_past_locked(stream);
    fake_stream **link = &fake_devices[stream->device].streams;
    while (*link != stream) {
        link = &(*link)->next;
    }
    *link = stream->next;
    fake_lane_give_locked(stream->lane);
    fake_op_release_locked(stream->last);
    free(stream->tips);
    free(stream);
}

void
fake_stream_drop_locked(fake_stream *stream)
{
    stream->destroyed = true;
    stream->stalled = false;
    if (stream->first == NULL) {
        free_stream_locked(stream);
    }
}

/* ---- queueing ----------------------------------------------------------------------- */

/* The legacy default stream and the blocking streams of its device wait for each
 * other. */
static void
depend_on_default_locked(fake_op *op, const fake_stream *stream)
{
    const fake_device *device = &fake_devices[stream->device];
    if (stream->legacy) {
        for (fake_stream *other = device->streams; other != NULL; other = other->next) {
            if (is_blocking(other)) {
                depend_on_locked(op, other->last);
            }
        }
        if (device->past_blocking != NULL) {
            fake_clock_join(&op->clock, device->past_blocking);
        }
    }
    else if (is_blocking(stream) && device->legacy != NULL) {
        depend_on_locked(op, device->legacy->last);
    }
}

static void
enqueue_locked(fake_stream *stream, fake_op *op)
{
    if (stream->tail == NULL) {
        stream->first = op;
    }
    else {
        stream->tail->next = op;
    }
    stream->tail = op;
    stream->queued++;
    fake_op_release_locked(stream->last);
    stream->last = fake_op_retain(op);
}

/* Before the operation is made: what runs here may give up the lock. */
static void
make_room_locked(fake_stream *stream)
{
    while (stream->queued >= fake_setting.depth && fake_run_locked(stream->first)) {
    }
}

int
fake_submit_locked(fake_stream *stream, fake_task *task, fake_op *after, fake_op **out)
{
    if (out != NULL) {
        *out = NULL;
    }
    if (stream->capture != NULL) {
        return fake_capture_task_locked(stream, task);
    }
    int error = fake_check_implicit_locked(stream);
    if (error != 0) {
        fake_task_clear(task);
        return error;
    }
    make_room_locked(stream);
    fake_op *op = fake_allocate(sizeof(*op));
    op->task = *task;
    op->references = 1;
    op->stream = stream;
    op->stream_id = stream->id;
    op->lane = stream->lane;
    depend_on_locked(op, stream->last);
    depend_on_default_locked(op, stream);
    depend_on_locked(op, after);
    fake_lane_number_locked(op);
    error = fake_note_uses_locked(op);
    if (error == 0 && out != NULL) {
        *out = op;
    }
    if (error != 0) {
        /* It keeps its place, so that numbers and edges stay whole, and does nothing. */
        fake_task_clear(&op->task);
        op->task.work = FAKE_WAIT;
    }
    enqueue_locked(stream, op);
    return error;
}

/* ---- running ------------------------------------------------------------------------ */

static uint64_t
now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Something that must run before it and has not, or NULL. */
static fake_op *
find_earlier(const fake_op *op)
{
    for (size_t i = 0; i < op->before_count; i++) {
        if (op->before[i]->state != FAKE_DONE) {
            return op->before[i];
        }
    }
    return NULL;
}

/* Pre: what comes before it is done, so it is the first of its stream. */
static void
run_one_locked(fake_op *op)
{
    fake_stream *stream = op->stream;
    if (stream->stalled) {
        stream->allowed--;
    }
    op->state = FAKE_RUNNING;
    if (fake_devices[stream->device].lost == 0) {
        fake_execute_locked(op);
    }
    op->state = FAKE_DONE;
    op->done_ns = now_ns();
    op->stream = NULL;
    operations++;
    fake_task_clear(&op->task);
    forget_edges_locked(op);
    stream->first = op->next;
    stream->queued--;
    if (stream->first == NULL) {
        stream->tail = NULL;
        if (stream->destroyed) {
            free_stream_locked(stream);
        }
    }
    pthread_cond_broadcast(&fake_changed);
    fake_op_release_locked(op);
}

bool
fake_run_locked(fake_op *goal)
{
    fake_op **stack = NULL;
    size_t depth = 0, capacity = 0;
    bool held = false;
    fake_op **place = fake_push(&stack, &depth, &capacity, sizeof(*place));
    *place = fake_op_retain(goal);
    while (depth > 0 && !held) {
        fake_op *op = stack[depth - 1];
        fake_op *earlier;
        if (op->state == FAKE_DONE) {
            fake_op_release_locked(op);
            depth--;
        }
        else if (op->state == FAKE_RUNNING) {
            pthread_cond_wait(&fake_changed, &fake_lock);
        }
        else if ((earlier = find_earlier(op)) != NULL) {
            place = fake_push(&stack, &depth, &capacity, sizeof(*place));
            *place = fake_op_retain(earlier);
        }
        else if (op->stream->stalled && op->stream->allowed == 0) {
            held = true;
        }
        else {
            run_one_locked(op);
        }
    }
    while (depth > 0) {
        fake_op_release_locked(stack[--depth]);
    }
    free(stack);
    return !held;
}

int
fake_finish_locked(fake_op *op)
{
    if (op == NULL) {
        return 0;
    }
    fake_op_retain(op);
    int device = op->stream == NULL ? -1 : op->stream->device;
    while (!fake_run_locked(op)) {
        pthread_cond_wait(&fake_changed, &fake_lock);
    }
    fake_learn_locked(op);
    fake_op_release_locked(op);
    return device < 0 ? 0 : fake_devices[device].lost;
}

int
fake_query_locked(fake_op *op)
{
    if (op == NULL) {
        return 0;
    }
    if (op->state != FAKE_DONE) {
        bool waits = fake_setting.lag < 0 || op->queries < fake_setting.lag;
        op->queries++;
        int device = op->stream->device;
        fake_op_retain(op);
        bool done = !waits && fake_run_locked(op);
        if (done) {
            fake_learn_locked(op);
        }
        fake_op_release_locked(op);
        if (!done) {
            return (int)cudaErrorNotReady;
        }
        return fake_devices[device].lost;
    }
    fake_learn_locked(op);
    return 0;
}

/* The first stream with unfinished work. */
static fake_op *
find_unfinished(int device)
{
    for (fake_stream *stream = fake_devices[device].streams; stream != NULL;
         stream = stream->next) {
        if (stream->tail != NULL) {
            return stream->tail;
        }
    }
    return NULL;
}

int
fake_finish_device_locked(int device)
{
    fake_op *op;
    while ((op = find_unfinished(device)) != NULL) {
        int error = fake_finish_locked(op);
        if (error != 0) {
            return error;
        }
    }
    for (fake_stream *stream = fake_devices[device].streams; stream != NULL;
         stream = stream->next) {
        if (stream->last != NULL) {
            fake_learn_locked(stream->last);
        }
    }
    if (fake_devices[device].past != NULL) {
        fake_learn_clock_locked(fake_devices[device].past);
    }
    return fake_devices[device].lost;
}

void
fake_lose_locked(int device, int error)
{
    if (fake_devices[device].lost == 0) {
        fake_devices[device].lost = error;
        pthread_cond_broadcast(&fake_changed);
    }
}

/* ---- control ------------------------------------------------------------------------ */

int
fakecuda_stall(void *handle)
{
    int error = 0;
    pthread_mutex_lock(&fake_lock);
    fake_stream *stream = fake_stream_of_locked(handle, &error);
    if (stream != NULL) {
        stream->stalled = true;
        stream->allowed = 0;
    }
    pthread_mutex_unlock(&fake_lock);
    return error;
}

int
fakecuda_release(void *handle, long count)
{
    int error = 0;
    pthread_mutex_lock(&fake_lock);
    fake_stream *stream = fake_stream_of_locked(handle, &error);
    if (stream != NULL) {
        stream->stalled = stream->stalled && count >= 0;
        stream->allowed = stream->stalled ? stream->allowed + (size_t)count : 0;
        pthread_cond_broadcast(&fake_changed);
        while (stream->first != NULL && (!stream->stalled || stream->allowed > 0) &&
               fake_run_locked(stream->first)) {
        }
    }
    pthread_mutex_unlock(&fake_lock);
    return error;
}

size_t
fakecuda_pending(void *handle)
{
    int error = 0;
    pthread_mutex_lock(&fake_lock);
    const fake_stream *stream = fake_stream_of_locked(handle, &error);
    size_t queued = stream == NULL ? 0 : stream->queued;
    pthread_mutex_unlock(&fake_lock);
    return queued;
}

uint64_t
fake_operations_locked(void)
{
    return operations;
}

void
fake_work_reset_locked(void)
{
    for (int i = 0; i < FAKE_MAX_DEVICES; i++) {
        while (fake_devices[i].streams != NULL) {
            fake_stream *stream = fake_devices[i].streams;
            for (fake_op *op = stream->first; op != NULL; op = stream->first) {
                stream->first = op->next;
                fake_task_clear(&op->task);
                op->state = FAKE_DONE;
                op->stream = NULL;
                fake_op_release_locked(op);
            }
            free_stream_locked(stream);
        }
        drop_past(&fake_devices[i].past);
        drop_past(&fake_devices[i].past_blocking);
    }
    fake_clocks_reset_locked();
    age++;
    operations = 0;
}
