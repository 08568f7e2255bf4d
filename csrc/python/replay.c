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
    bool by_address;   /* free by address, as the exported C functions do */
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
    uint64_t ns;     /* by the wall clock */
    uint64_t cpu_ns; /* of this thread */
    uint64_t pairs, memory_calls, host_waits, peak_reserved, peak_requested;
    uint64_t address_now, touched;
    int64_t failed_at;
} replay_pass;

static uint64_t
now_ns(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
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
                          .stream = run->streams[step->stream],
                          .by_address = run->by_address};
    gm_status status = gm_pool_try_alloc(run->pool, &request, out);
    if (status == GM_MISS || status == GM_BUSY) {
        status = gm_pool_alloc(run->pool, &request, out, NULL);
    }
    return status;
}

static void
replay_free(const replay_run *run, Py_ssize_t id)
{
    gm_block *block = run->blocks[id];
    run->blocks[id] = NULL;
    if (run->pool == NULL) {
        return;
    }
    if (run->by_address) {
        gm_status status = gm_pool_free_address(run->pool, gm_block_address(block));
        (void)status; /* the block is ours and live */
        return;
    }
    gm_pool_free(block);
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
    uint64_t start = now_ns(CLOCK_MONOTONIC);
    uint64_t cpu_start = now_ns(CLOCK_THREAD_CPUTIME_ID);
    pass->failed_at = walk(run, pass);
    for (Py_ssize_t id = 0; id < run->ids; id++) {
        if (run->blocks[id] != NULL) {
            replay_free(run, id);
            pass->pairs++;
        }
    }
    pass->cpu_ns = now_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_start;
    pass->ns = now_ns(CLOCK_MONOTONIC) - start;
    run->device->ops->counters(run->device, &after);
    pass->memory_calls = memory_calls(&after) - memory_calls(&before);
    pass->host_waits = run->is_sim ? gm_sim_host_waits(run->device) - waits : 0;
    pass->peak_reserved = after.memory_peak;
    pass->address_now = after.address_now;
    if (run->pool != NULL) {
        gm_pool_stats stats;
        gm_pool_read_stats(run->pool, &stats);
        pass->touched = stats.touched_bytes;
    }
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
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:L,s:K,s:K}", "ns", pass->ns,
                         "cpu_ns", pass->cpu_ns, "pairs", pass->pairs, "memory_calls",
                         pass->memory_calls, "host_waits", pass->host_waits,
                         "peak_reserved", pass->peak_reserved, "peak_requested",
                         pass->peak_requested, "failed_at", pass->failed_at,
                         "address_now", pass->address_now, "touched", pass->touched);
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

/* What the caller asked for besides device, pool and operations. */
typedef struct replay_settings {
    Py_ssize_t ids;
    Py_ssize_t check_every; /* operations between two gm_pool_check; 0: never */
    int passes;
    int by_address;
} replay_settings;

static PyObject *
run_replay(core_state *state, DeviceObject *device, PyObject *pool,
           const Py_buffer *view, const replay_settings *settings)
{
    PyObject *result = NULL;
    replay_run *run = PyMem_Calloc(1, sizeof(*run));
    if (run == NULL) {
        return PyErr_NoMemory();
    }
    Py_ssize_t ids = settings->ids;
    run->device = device->device;
    run->pool = pool == Py_None ? NULL : ((PoolObject *)pool)->pool;
    run->operations = view->buf;
    run->count = view->len / (Py_ssize_t)sizeof(operation);
    run->ids = ids;
    run->check_every = settings->check_every;
    run->by_address = settings->by_address != 0;
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
        result = run_passes(state, run, settings->passes);
    }
    drop_streams(run);

done:
    PyMem_Free(run->blocks);
    PyMem_Free(run->sizes);
    PyMem_Free(run);
    return result;
}

/* A view of C-contiguous rows of four aligned int64: 0, or -1 with an exception. */
static int
get_operations(PyObject *object, Py_buffer *view)
{
    if (PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0) {
        return -1;
    }
    const char *format = view->format == NULL ? "B" : view->format;
    bool rows = view->ndim == 2 ? view->shape[1] == 4
                                : view->len % (Py_ssize_t)sizeof(operation) == 0;
    if (view->itemsize == (Py_ssize_t)sizeof(int64_t) &&
        (strcmp(format, "q") == 0 || strcmp(format, "l") == 0) && view->ndim <= 2 &&
        rows && (uintptr_t)view->buf % _Alignof(operation) == 0) {
        return 0;
    }
    PyBuffer_Release(view);
    PyErr_SetString(PyExc_ValueError,
                    "operations must be a C-contiguous buffer of rows of four int64");
    return -1;
}

/* 0, or -1 with an exception. */
static int
check_settings(core_state *state, PyObject *device, PyObject *pool,
               const replay_settings *settings)
{
    if (pool != Py_None && !Py_IS_TYPE(pool, state->Pool_Type)) {
        PyErr_SetString(PyExc_TypeError, "pool must be a Pool or None");
        return -1;
    }
    if (pool != Py_None && gm_pool_device(((PoolObject *)pool)->pool) !=
                               ((DeviceObject *)device)->device) {
        PyErr_SetString(PyExc_ValueError, "the pool is of another device");
        return -1;
    }
    if (settings->ids < 0 || settings->passes < 1 || settings->check_every < 0) {
        PyErr_SetString(PyExc_ValueError,
                        "ids and check_every must not be negative, passes at least 1");
        return -1;
    }
    return 0;
}

PyDoc_STRVAR(replay_doc,
             "replay($module, /, device, pool, operations, ids, *, passes=4,\n"
             "       check_every=0, by_address=False)\n"
             "--\n\n"
             "Replay operations on a pool of device; return one dict for each pass.\n\n"
             "operations is a C-contiguous buffer of int64 of shape (n, 4): kind\n"
             "(0 free, 1 alloc, 2 iteration), id (below ids), bytes, stream (0 is the\n"
             "default one). What is live at the end of a pass is freed. pool None\n"
             "measures the loop alone. check_every: operations between two checks of\n"
             "the pool. by_address: free by address, as the exported C functions do.\n"
             "A pass that runs out of memory says where in failed_at (-1 otherwise)\n"
             "and is the last one.");

static PyObject *
core_replay(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"device", "pool",        "operations", "ids",
                            "passes", "check_every", "by_address", NULL};
    core_state *state = state_of_module(module);
    PyObject *device, *pool, *operations;
    Py_buffer view;
    replay_settings settings = {.passes = 4};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OOn|$inp:replay", names,
                                     state->Device_Type, &device, &pool, &operations,
                                     &settings.ids, &settings.passes,
                                     &settings.check_every, &settings.by_address) ||
        check_settings(state, device, pool, &settings) < 0 ||
        get_operations(operations, &view) < 0) {
        return NULL;
    }
    PyObject *result =
        run_replay(state, (DeviceObject *)device, pool, &view, &settings);
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
    uint64_t start = now_ns(CLOCK_MONOTONIC);
    for (Py_ssize_t i = 0; i < count; i++) {
        gm_mutex_lock(&mutex);
        gm_mutex_unlock(&mutex);
    }
    return PyFloat_FromDouble((double)(now_ns(CLOCK_MONOTONIC) - start) /
                              (double)count);
}

PyMethodDef replay_functions[] = {
    {"replay", (PyCFunction)(void (*)(void))core_replay, METH_VARARGS | METH_KEYWORDS,
     replay_doc},
    {"lock_pair_ns", lock_pair_ns, METH_O, lock_pair_ns_doc},
    {NULL, NULL, 0, NULL},
};
