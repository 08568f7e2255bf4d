/* pool_view.c - the methods of Pool that look inside: counters, blocks, history.
 *
 * Each takes its copy without the GIL and builds Python objects from it afterwards, so
 * that nothing is read from a pool while an object is made.
 */
#include "python/pool_object.h"

#include <stdlib.h>

/* ---- statistics ------------------------------------------------------------------------ */

void
pool_read_stats(PoolObject *self, gm_pool_stats *out)
{
    gm_pool *pool = self->pool;
    Py_BEGIN_ALLOW_THREADS
    gm_pool_read_stats(pool, out);
    Py_END_ALLOW_THREADS
}

static int
set_number(PyObject *dict, PyObject *key, uint64_t value)
{
    PyObject *number = key != NULL ? PyLong_FromUnsignedLongLong(value) : NULL;
    int result = number != NULL ? PyDict_SetItem(dict, key, number) : -1;
    Py_XDECREF(number);
    Py_XDECREF(key);
    return result;
}

static int
set_stat(PyObject *dict, const char *name, const char *part, const gm_stat *stat)
{
    const struct {
        const char *name;
        uint64_t value;
    } rows[] = {
        {"current", stat->current},
        {"peak", stat->peak},
        {"allocated", stat->allocated},
        {"freed", stat->freed},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        PyObject *key = PyUnicode_FromFormat("%s.%s.%s", name, part, rows[i].name);
        if (set_number(dict, key, rows[i].value) < 0) {
            return -1;
        }
    }
    return 0;
}

static int
set_stat_row(PyObject *dict, const char *name, const gm_stat_row *row)
{
    if (set_stat(dict, name, "all", &row->all) < 0 ||
        set_stat(dict, name, "small_pool", &row->small_pool) < 0) {
        return -1;
    }
    return set_stat(dict, name, "large_pool", &row->large_pool);
}

/* 0, or -1 with an exception. */
static int
fill_stats(PyObject *dict, const gm_pool_stats *stats)
{
#define SET_ROW(field, name)                           \
    if (set_stat_row(dict, name, &stats->field) < 0) { \
        return -1;                                     \
    }
    GM_POOL_STAT_MAP(SET_ROW)
#undef SET_ROW
#define SET_COUNTER(field, name)                                          \
    if (set_number(dict, PyUnicode_FromString(name), stats->field) < 0) { \
        return -1;                                                        \
    }
    GM_POOL_COUNTER_MAP(SET_COUNTER)
#undef SET_COUNTER
    uint64_t limit = stats->limit == UINT64_MAX ? 0 : stats->limit;
    if (set_number(dict, PyUnicode_FromString("limit"), limit) < 0) {
        return -1;
    }
    return set_number(dict, PyUnicode_FromString("headroom"), stats->headroom);
}

PyObject *
Pool_stats(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    gm_pool_stats stats;
    pool_read_stats((PoolObject *)op, &stats);
    PyObject *dict = PyDict_New();
    if (dict != NULL && fill_stats(dict, &stats) < 0) {
        Py_CLEAR(dict);
    }
    return dict;
}

PyObject *
Pool_reset_peaks(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    gm_pool *pool = ((PoolObject *)op)->pool;
    Py_BEGIN_ALLOW_THREADS
    gm_pool_reset_peaks(pool);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

PyObject *
Pool_reset_accumulated(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    gm_pool *pool = ((PoolObject *)op)->pool;
    Py_BEGIN_ALLOW_THREADS
    gm_pool_reset_accumulated(pool);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

PyObject *
Pool_sizes(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    gm_pool *pool = ((PoolObject *)op)->pool;
    size_t free_blocks, index_entries, lanes, metadata_bytes;
    Py_BEGIN_ALLOW_THREADS
    gm_pool_read_sizes(pool, &free_blocks, &index_entries, &lanes, &metadata_bytes);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("{s:n,s:n,s:n,s:n}", "free_blocks", (Py_ssize_t)free_blocks,
                         "index_entries", (Py_ssize_t)index_entries, "lanes",
                         (Py_ssize_t)lanes, "metadata_bytes",
                         (Py_ssize_t)metadata_bytes);
}

PyObject *
Pool_check(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    core_state *state = state_of(op);
    gm_pool *pool = ((PoolObject *)op)->pool;
    char text[256] = "";
    gm_status status;
    Py_BEGIN_ALLOW_THREADS
    status = gm_pool_check(pool, text, sizeof(text));
    Py_END_ALLOW_THREADS
    if (status == GM_INVALID) {
        PyErr_Format(state->GpumemError, "broken invariant: %s", text);
        return NULL;
    }
    if (status != GM_OK) {
        return set_status_error(state, status, "check the pool");
    }
    Py_RETURN_NONE;
}

/* ---- the copy of the state ----------------------------------------------------------------- */

static const char *const block_state_names[] = {
    [GM_BLOCK_FREE] = "free", [GM_BLOCK_USED] = "used", [GM_BLOCK_PENDING] = "pending"};

/* New reference: the blocks of one segment as a list of tuples. */
static PyObject *
build_blocks(const gm_block_view *blocks, size_t count)
{
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; i < count && list != NULL; i++) {
        const gm_block_view *block = &blocks[i];
        PyObject *entry = Py_BuildValue(
            "KnnsK", (unsigned long long)block->address, (Py_ssize_t)block->size,
            (Py_ssize_t)block->requested, block_state_names[block->state],
            (unsigned long long)block->context);
        if (entry == NULL) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, (Py_ssize_t)i, entry);
    }
    return list;
}

/* New reference: one segment as a tuple. */
static PyObject *
build_segment(const gm_pool_view *view, const gm_segment_view *segment)
{
    PyObject *blocks =
        build_blocks(view->blocks + segment->first_block, segment->block_count);
    if (blocks == NULL) {
        return NULL;
    }
    return Py_BuildValue("KnKNNNnnnN", (unsigned long long)segment->address,
                         (Py_ssize_t)segment->size, (unsigned long long)segment->stream,
                         PyBool_FromLong(segment->kind == GM_ARENA_STABLE),
                         PyBool_FromLong(segment->small),
                         PyBool_FromLong(segment->paged), (Py_ssize_t)segment->used,
                         (Py_ssize_t)segment->requested, (Py_ssize_t)segment->active,
                         blocks);
}

PyObject *
Pool_view(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    core_state *state = state_of(op);
    gm_pool *pool = ((PoolObject *)op)->pool;
    gm_pool_view view;
    gm_status status;
    Py_BEGIN_ALLOW_THREADS
    status = gm_pool_view_create(pool, &view);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        return set_status_error(state, status, "copy the pool's state");
    }
    PyObject *list = PyList_New((Py_ssize_t)view.segment_count);
    for (size_t i = 0; i < view.segment_count && list != NULL; i++) {
        PyObject *segment = build_segment(&view, &view.segments[i]);
        if (segment == NULL) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, (Py_ssize_t)i, segment);
    }
    Py_ssize_t unplaced = (Py_ssize_t)view.unplaced;
    gm_pool_view_destroy(&view);
    return list == NULL ? NULL : Py_BuildValue("Nn", list, unplaced);
}

/* ---- history ------------------------------------------------------------------------------ */

PyObject *
Pool_record_history(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"max_entries", "stacks", NULL};
    PoolObject *self = (PoolObject *)op;
    PyObject *max_entries;
    int stacks = 0;
    size_t limit;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|p:record_history", names,
                                     &max_entries, &stacks) ||
        parse_count(max_entries, "max_entries", &limit) < 0) {
        return NULL;
    }
    gm_status status;
    gm_pool *pool = self->pool;
    Py_BEGIN_ALLOW_THREADS
    status = gm_pool_record_history(pool, limit);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        return set_status_error(state_of(op), status, "record a history");
    }
    self->stacks = stacks && limit > 0;
    Py_RETURN_NONE;
}

/* Names as in PyTorch's traces. */
static const char *const action_names[] = {
    [GM_TRACE_ALLOC] = "alloc",
    [GM_TRACE_FREE_REQUESTED] = "free_requested",
    [GM_TRACE_FREE_COMPLETED] = "free_completed",
    [GM_TRACE_SEGMENT_MAP] = "segment_map",
    [GM_TRACE_SEGMENT_UNMAP] = "segment_unmap",
    [GM_TRACE_OOM] = "oom",
    [GM_TRACE_SNAPSHOT] = "snapshot",
};

_Static_assert(sizeof(action_names) / sizeof(action_names[0]) == GM_TRACE_ACTION_COUNT,
               "one name for each action");

/* New reference: the entries as a list of tuples. */
static PyObject *
build_history(const gm_trace_entry *entries, size_t count)
{
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; i < count && list != NULL; i++) {
        const gm_trace_entry *entry = &entries[i];
        PyObject *tuple = Py_BuildValue(
            "sKKnKK", action_names[entry->action], (unsigned long long)entry->time_ns,
            (unsigned long long)entry->address, (Py_ssize_t)entry->size,
            (unsigned long long)entry->stream, (unsigned long long)entry->context);
        if (tuple == NULL) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, (Py_ssize_t)i, tuple);
    }
    return list;
}

PyObject *
Pool_history(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    gm_pool *pool = ((PoolObject *)op)->pool;
    gm_trace_entry *entries = NULL;
    size_t count = 0, limit = 0;
    uint64_t dropped = 0;
    Py_BEGIN_ALLOW_THREADS
    gm_pool_read_history(pool, NULL, 0, &count, &dropped, &limit);
    /* The ring may fill up meanwhile, but never past its limit. */
    size_t capacity = limit;
    entries = capacity > 0 ? malloc(capacity * sizeof(*entries)) : NULL;
    if (entries != NULL) {
        gm_pool_read_history(pool, entries, capacity, &count, &dropped, &limit);
        count = count < capacity ? count : capacity;
    }
    Py_END_ALLOW_THREADS
    if (limit == 0) {
        count = 0;
    }
    else if (entries == NULL) {
        return PyErr_NoMemory();
    }
    PyObject *list = build_history(entries, count);
    free(entries);
    if (list == NULL) {
        return NULL;
    }
    return Py_BuildValue("NKn", list, (unsigned long long)dropped, (Py_ssize_t)limit);
}

PyObject *
Pool_clear_history(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    gm_pool *pool = ((PoolObject *)op)->pool;
    Py_BEGIN_ALLOW_THREADS
    gm_pool_clear_history(pool);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* ---- live objects ---------------------------------------------------------------------- */

typedef PyObject *(*list_owner)(gm_list *link);

static PyObject *
buffer_of_link(gm_list *link)
{
    return (PyObject *)GM_CONTAINER_OF(link, BufferObject, pool_link);
}

static PyObject *
pool_of_link(gm_list *link)
{
    return (PyObject *)GM_CONTAINER_OF(link, PoolObject, link);
}

/* An object that is being deallocated may still be linked while its weak references
 * are told. */
static bool
is_listed(PyObject *object, bool open_pools)
{
    return Py_REFCNT(object) > 0 && !(open_pools && pool_is_over((PoolObject *)object));
}

/* New reference: the objects of a ring as a list. Making the list may run a collection,
 * which changes the ring, so the count is taken again afterwards. */
static PyObject *
list_objects(gm_list *head, list_owner owner, bool open_pools)
{
    for (;;) {
        Py_ssize_t expected = 0, count = 0;
        GM_LIST_FOREACH(link, head) {
            expected += is_listed(owner(link), open_pools);
        }
        PyObject *list = PyList_New(expected);
        if (list == NULL) {
            return NULL;
        }
        GM_LIST_FOREACH(link, head) {
            PyObject *object = owner(link);
            if (is_listed(object, open_pools)) {
                if (count < expected) {
                    PyList_SET_ITEM(list, count, Py_NewRef(object));
                }
                count++;
            }
        }
        if (count == expected) {
            return list;
        }
        Py_DECREF(list);
    }
}

PyObject *
Pool_live_buffers(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    return list_objects(&((PoolObject *)op)->buffers, buffer_of_link, false);
}

static PyObject *
pools(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    return list_objects(&state_of_module(module)->pools, pool_of_link, true);
}

PyMethodDef pool_functions[] = {
    {"pools", pools, METH_NOARGS,
     "pools($module, /)\n--\n\nThe open pools of this interpreter, oldest first."},
    {NULL, NULL, 0, NULL},
};
