/* replay.c - replays a recorded list of operations on a pool, timed, without the GIL.
 *
 * The loop is C so that its own cost is small and can be measured (pool None). One
 * pass walks all operations; what is live at its end is freed before the next one
 * begins, so that later passes see a warm allocator.
 */
#include "python/python.h"

#include <time.h>

#include "base/mutex.h"
#include "device/sim.h"

#define MAX_STREAMS 1024

/* One row of the operations. */
typedef struct operation {
    int64_t kind; /* 0 free, 1 alloc, 2 iteration */
    int64_t id;
    int64_t bytes;
    int64_t stream; /* 0 .. MAX_STREAMS - 1, as the trace numbers them */
} operation;

typedef struct replay_run {
    gm_device *device;
    gm_pool *pool; /* NULL: measure the loop alone */
    const operation *operations;
    Py_ssize_t count;
    gm_block **blocks; /* by id; the null allocator stores the address of itself */
    size_t *sizes;
    Py_ssize_t ids;
    gm_stream streams[MAX_STREAMS];
    int stream_count; /* those above 0 were made for the run */
    Py_ssize_t check_every;
    bool is_sim;
    gm_status status;
    char broken[160];
} replay_run;

typedef struct replay_pass {
    uint64_t ns, pairs, memory_calls, host_waits, peak_reserved, peak_requested;
    uint64_t address_now;
    int64_t failed_at;
} replay_pass;

static uint64_t
now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * UINT64_C(1000000000) + (uint64_t)time.tv_nsec;
}

/* Calls that move memory or wait for it, as the device itself counts them. */
static uint64_t
memory_calls(const gm_device_counters *counters)
{
    static const gm_device_call kinds[] = {GM_CALL_SEGMENT_CREATE,
                                           GM_CALL_SEGMENT_DESTROY,
                                           GM_CALL_ADDRESS_RESERVE,
                                           GM_CALL_ADDRESS_RELEASE,
                                           GM_CALL_PAGE_CREATE,
                                           GM_CALL_PAGE_DESTROY,
                                           GM_CALL_MAP,
                                           GM_CALL_UNMAP,
                                           GM_CALL_GRANT,
                                           GM_CALL_STREAM_SYNCHRONIZE,
                                           GM_CALL_EVENT_SYNCHRONIZE};
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        sum += counters->calls[kinds[i]];
    }
    return sum;
}

/* ---- the loop --------------------------------------------------------------------- */

static gm_status
replay_alloc(const replay_run *run, const operation *step, gm_block **out)
{
    if (run->pool == NULL) {
        *out = (gm_block *)(void *)out;
        return GM_OK;
    }
    gm_request request = {.size = (size_t)step->bytes,
                          .stream = run->streams[step->stream]};
    gm_status status = gm_pool_try_alloc(run->pool, &request, out);
    if (status == GM_MISS || status == GM_BUSY) {
        status = gm_pool_alloc(run->pool, &request, out, NULL);
    }
    return status;
}

static void
replay_free(const replay_run *run, Py_ssize_t id)
{
    if (run->pool != NULL) {
        gm_pool_free(run->blocks[id]);
    }
    run->blocks[id] = NULL;
}

static bool
check_now(replay_run *run, Py_ssize_t step)
{
    if (run->check_every == 0 || run->pool == NULL || step % run->check_every != 0) {
        return true;
    }
    run->status = gm_pool_check(run->pool, run->broken, sizeof(run->broken));
    return run->status == GM_OK;
}

/* Walks all operations; returns the index of the first that failed, or -1. */
static int64_t
walk(replay_run *run, replay_pass *pass)
{
    uint64_t live = 0;
    for (Py_ssize_t i = 0; i < run->count; i++) {
        const operation *step = &run->operations[i];
        if (step->kind == 1) {
            run->status = replay_alloc(run, step, &run->blocks[step->id]);
            if (run->status != GM_OK) {
                run->blocks[step->id] = NULL;
                return i;
            }
            live += (uint64_t)step->bytes;
            run->sizes[step->id] = (size_t)step->bytes;
            pass->peak_requested =
                live > pass->peak_requested ? live : pass->peak_requested;
        }
        else if (step->kind == 0 && run->blocks[step->id] != NULL) {
            live -= run->sizes[step->id];
            replay_free(run, step->id);
            pass->pairs++;
        }
        if (run->is_sim) {
            gm_sim_tick(run->device);
        }
        if (!check_now(run, i)) {
            return i;
        }
    }
    return -1;
}

static void
one_pass(replay_run *run, replay_pass *pass)
{
    gm_device_counters before, after;
    run->device->ops->counters(run->device, &before);
    uint64_t waits = run->is_sim ? gm_sim_host_waits(run->device) : 0;
    uint64_t start = now_ns();
    pass->failed_at = walk(run, pass);
    for (Py_ssize_t id = 0; id < run->ids; id++) {
        if (run->blocks[id] != NULL) {
            replay_free(run, id);
            pass->pairs++;
        }
    }
    pass->ns = now_ns() - start;
    run->device->ops->counters(run->device, &after);
    pass->memory_calls = memory_calls(&after) - memory_calls(&before);
    pass->host_waits = run->is_sim ? gm_sim_host_waits(run->device) - waits : 0;
    pass->peak_reserved = after.memory_peak;
    pass->address_now = after.address_now;
}

/* ---- arguments -------------------------------------------------------------------- */

/* The highest stream number, or -1 with an exception when a row is out of range. */
static int
validate(const operation *operations, Py_ssize_t count, Py_ssize_t ids)
{
    int64_t highest = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        const operation *step = &operations[i];
        if (step->kind < 0 || step->kind > 2 ||
            (step->kind != 2 && (step->id < 0 || step->id >= ids)) ||
            (step->kind == 1 &&
             (step->bytes <= 0 || step->stream < 0 || step->stream >= MAX_STREAMS))) {
            PyErr_Format(PyExc_ValueError,
                         "operation %zd is out of range: kinds are 0, 1, 2, ids below "
                         "%zd, sizes positive, streams below %d",
                         i, ids, MAX_STREAMS);
            return -1;
        }
        if (step->kind == 1 && step->stream > highest) {
            highest = step->stream;
        }
    }
    return (int)highest;
}

static gm_status
make_streams(replay_run *run, int highest)
{
    run->stream_count = 1;
    for (int i = 1; i <= highest; i++) {
        GM_TRY(run->device->ops->stream_create(run->device, &run->streams[i]));
        run->stream_count = i + 1;
    }
    return GM_OK;
}

static void
drop_streams(replay_run *run)
{
    for (int i = 1; i < run->stream_count; i++) {
        if (run->pool != NULL) {
            gm_pool_stream_retired(run->pool, run->streams[i]);
        }
        gm_status status =
            run->device->ops->stream_destroy(run->device, run->streams[i]);
        (void)status; /* a stream that will not go costs the test device nothing */
    }
}

static PyObject *
pass_to_dict(const replay_pass *pass)
{
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K,s:L,s:K}", "ns", pass->ns, "pairs",
                         pass->pairs, "memory_calls", pass->memory_calls, "host_waits",
                         pass->host_waits, "peak_reserved", pass->peak_reserved,
                         "peak_requested", pass->peak_requested, "failed_at",
                         pass->failed_at, "address_now", pass->address_now);
}

/* Runs the passes; a new list, or NULL with an exception. */
static PyObject *
run_passes(core_state *state, replay_run *run, int passes)
{
    PyObject *result = PyList_New(0);
    if (result == NULL) {
        return NULL;
    }
    for (int i = 0; i < passes; i++) {
        replay_pass pass = {0};
        run->status = GM_OK;
        Py_BEGIN_ALLOW_THREADS
        one_pass(run, &pass);
        Py_END_ALLOW_THREADS
        if (run->broken[0] != '\0') {
            PyErr_SetString(state->GpumemError, run->broken);
            goto fail;
        }
        if (run->status != GM_OK && run->status != GM_OUT_OF_MEMORY) {
            set_status_error(state, run->status, "replay a trace");
            goto fail;
        }
        PyObject *row = pass_to_dict(&pass);
        if (row == NULL || PyList_Append(result, row) < 0) {
            Py_XDECREF(row);
            goto fail;
        }
        Py_DECREF(row);
        if (pass.failed_at >= 0 || PyErr_CheckSignals() < 0) {
            break;
        }
    }
    if (!PyErr_Occurred()) {
        return result;
    }

fail:
    Py_DECREF(result);
    return NULL;
}

static PyObject *
run_replay(core_state *state, DeviceObject *device, PyObject *pool,
           const Py_buffer *view, Py_ssize_t ids, int passes, Py_ssize_t check_every)
{
    PyObject *result = NULL;
    replay_run *run = PyMem_Calloc(1, sizeof(*run));
    if (run == NULL) {
        return PyErr_NoMemory();
    }
    run->device = device->device;
    run->pool = pool == Py_None ? NULL : ((PoolObject *)pool)->pool;
    run->operations = view->buf;
    run->count = view->len / (Py_ssize_t)sizeof(operation);
    run->ids = ids;
    run->check_every = check_every;
    run->is_sim = device->device->info.kind == GM_DEVICE_SIM;
    run->blocks = PyMem_Calloc((size_t)ids + 1, sizeof(*run->blocks));
    run->sizes = PyMem_Calloc((size_t)ids + 1, sizeof(*run->sizes));
    if (run->blocks == NULL || run->sizes == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    int highest = validate(run->operations, run->count, ids);
    if (highest < 0) {
        goto done;
    }
    gm_status status = make_streams(run, highest);
    if (status != GM_OK) {
        set_status_error(state, status, "create a stream");
    }
    else {
        result = run_passes(state, run, passes);
    }
    drop_streams(run);

done:
    PyMem_Free(run->blocks);
    PyMem_Free(run->sizes);
    PyMem_Free(run);
    return result;
}

PyDoc_STRVAR(
    replay_doc,
    "replay($module, device, pool, operations, ids, *, passes=4, check_every=0)\n"
    "--\n\n"
    "Replays operations on a pool of device and returns one dict for each pass.\n\n"
    "operations is a C-contiguous buffer of int64 of shape (n, 4): kind (0 free, 1 "
    "alloc,\n"
    "2 iteration), id (below ids), bytes, stream (0 is the default one). What is live "
    "at\n"
    "the end of a pass is freed. pool None measures the loop alone. A pass that runs "
    "out\n"
    "of memory says where in failed_at and is the last one.");

static PyObject *
core_replay(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"device", "pool",        "operations", "ids",
                            "passes", "check_every", NULL};
    core_state *state = state_of_module(module);
    PyObject *device, *pool;
    Py_buffer view;
    Py_ssize_t ids, check_every = 0;
    int passes = 4;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!Oy*n|$in:replay", names,
                                     state->Device_Type, &device, &pool, &view, &ids,
                                     &passes, &check_every)) {
        return NULL;
    }
    PyObject *result = NULL;
    if (pool != Py_None && !Py_IS_TYPE(pool, state->Pool_Type)) {
        PyErr_SetString(PyExc_TypeError, "pool must be a Pool or None");
    }
    else if (ids < 0 || passes < 1 || check_every < 0 ||
             view.len % (Py_ssize_t)sizeof(operation) != 0) {
        PyErr_SetString(PyExc_ValueError,
                        "operations must be rows of four int64, ids and check_every "
                        "not negative, passes at least 1");
    }
    else {
        result = run_replay(state, (DeviceObject *)device, pool, &view, ids, passes,
                            check_every);
    }
    PyBuffer_Release(&view);
    return result;
}

PyDoc_STRVAR(
    lock_pair_ns_doc,
    "lock_pair_ns($module, count, /)\n"
    "--\n\n"
    "Nanoseconds of one uncontended lock and unlock, the mean of count pairs.");

static PyObject *
lock_pair_ns(PyObject *Py_UNUSED(module), PyObject *argument)
{
    Py_ssize_t count = PyLong_AsSsize_t(argument);
    if (count == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (count < 1) {
        PyErr_SetString(PyExc_ValueError, "count must be at least 1");
        return NULL;
    }
    gm_mutex mutex;
    gm_mutex_init(&mutex, GM_RANK_ARENA);
    uint64_t start = now_ns();
    for (Py_ssize_t i = 0; i < count; i++) {
        gm_mutex_lock(&mutex);
        gm_mutex_unlock(&mutex);
    }
    return PyFloat_FromDouble((double)(now_ns() - start) / (double)count);
}

PyMethodDef replay_functions[] = {
    {"replay", (PyCFunction)(void (*)(void))core_replay, METH_VARARGS | METH_KEYWORDS,
     replay_doc},
    {"lock_pair_ns", lock_pair_ns, METH_O, lock_pair_ns_doc},
    {NULL, NULL, 0, NULL},
};
