/* pool_options.c - the options of a pool by name: Pool(...), configure(), options().
 *
 * One table says which options there are and how each is read, so that the messages,
 * the constructor and configure() cannot disagree. Values outside their range are
 * errors that say what is accepted; nothing is ignored or clamped.
 */
#include "python/pool_object.h"

#include <math.h>
#include <string.h>

/* ---- readers, one for each option --------------------------------------------------- */

typedef int (*option_reader)(core_state *state, gm_device *device, PyObject *value,
                             gm_pool_options *out);

/* A size above 0, or None for `none`. */
static int
read_size_or_none(core_state *state, PyObject *value, const char *name, size_t none,
                  size_t *out)
{
    if (value == Py_None) {
        *out = none;
        return 0;
    }
    size_t size;
    if (parse_size(state, value, name, &size) < 0) {
        return -1;
    }
    if (size == 0) {
        PyErr_Format(PyExc_ValueError, "%s must be above 0 bytes, or None", name);
        return -1;
    }
    *out = size;
    return 0;
}

static int
read_limit(core_state *state, gm_device *Py_UNUSED(device), PyObject *value,
           gm_pool_options *out)
{
    return read_size_or_none(state, value, "limit", SIZE_MAX, &out->limit);
}

static int
read_headroom(core_state *state, gm_device *device, PyObject *value,
              gm_pool_options *out)
{
    if (value == Py_None) {
        out->headroom = 0;
        return 0;
    }
    if (!PyFloat_Check(value)) {
        return parse_size(state, value, "headroom", &out->headroom);
    }
    double fraction = PyFloat_AS_DOUBLE(value);
    if (!(fraction > 0.0 && fraction < 1.0)) {
        PyErr_Format(PyExc_ValueError,
                     "headroom as a float is a fraction of the device, above 0 and "
                     "below 1, not %R",
                     value);
        return -1;
    }
    out->headroom = (size_t)ceil(fraction * (double)device->info.total);
    return 0;
}

static int
read_reserve(core_state *state, gm_device *Py_UNUSED(device), PyObject *value,
             gm_pool_options *out)
{
    if (value == Py_None) {
        out->reserve = 0;
        return 0;
    }
    return parse_size(state, value, "reserve", &out->reserve);
}

static int
read_steal(core_state *Py_UNUSED(state), gm_device *Py_UNUSED(device), PyObject *value,
           gm_pool_options *out)
{
    static const char *const names[] = {[GM_STEAL_NEVER] = "never",
                                        [GM_STEAL_ALWAYS] = "always"};
    for (int i = 0; i <= GM_STEAL_ALWAYS && PyUnicode_Check(value); i++) {
        if (PyUnicode_CompareWithASCIIString(value, names[i]) == 0) {
            out->steal = (gm_steal_mode)i;
            out->steal_ratio = 0;
            return 0;
        }
    }
    if (!PyBool_Check(value) && (PyFloat_Check(value) || PyLong_Check(value))) {
        double ratio = PyFloat_AsDouble(value);
        if (ratio >= 0 && ratio <= GM_STEAL_MOST) {
            out->steal = GM_STEAL_RATIO;
            out->steal_ratio = ratio;
            return 0;
        }
        PyErr_Clear();
    }
    PyErr_Format(PyExc_ValueError,
                 "steal must be 'never', 'always' or a number from 0 to %d, not %R",
                 (int)GM_STEAL_MOST, value);
    return -1;
}

static int
read_cross_stream(core_state *Py_UNUSED(state), gm_device *Py_UNUSED(device),
                  PyObject *value, gm_pool_options *out)
{
    static const char *const names[] = {[GM_CROSS_STREAM_DONE] = "done",
                                        [GM_CROSS_STREAM_WAIT] = "wait",
                                        [GM_CROSS_STREAM_NEVER] = "never"};
    for (int i = 0; i <= GM_CROSS_STREAM_NEVER && PyUnicode_Check(value); i++) {
        if (PyUnicode_CompareWithASCIIString(value, names[i]) == 0) {
            out->cross_stream = (gm_cross_stream)i;
            return 0;
        }
    }
    PyErr_Format(PyExc_ValueError,
                 "cross_stream must be 'done', 'wait' or 'never', not %R", value);
    return -1;
}

static int
read_bool(PyObject *value, const char *name, bool *out)
{
    if (!PyBool_Check(value)) {
        PyErr_Format(PyExc_TypeError, "%s must be True or False, not %R", name, value);
        return -1;
    }
    *out = value == Py_True;
    return 0;
}

static int
read_yields(core_state *Py_UNUSED(state), gm_device *Py_UNUSED(device), PyObject *value,
            gm_pool_options *out)
{
    return read_bool(value, "yields", &out->yields);
}

static int
read_gc_on_pressure(core_state *Py_UNUSED(state), gm_device *Py_UNUSED(device),
                    PyObject *value, gm_pool_options *out)
{
    return read_bool(value, "gc_on_pressure", &out->gc_on_pressure);
}

static int
read_paging(core_state *Py_UNUSED(state), gm_device *Py_UNUSED(device), PyObject *value,
            gm_pool_options *out)
{
    return read_bool(value, "paging", &out->paging);
}

static int
read_oom_wait(core_state *Py_UNUSED(state), gm_device *Py_UNUSED(device),
              PyObject *value, gm_pool_options *out)
{
    return parse_seconds(value, "oom_wait", &out->oom_wait_ns);
}

static int
read_decay(core_state *Py_UNUSED(state), gm_device *Py_UNUSED(device), PyObject *value,
           gm_pool_options *out)
{
    if (value == Py_None) {
        out->decay_ns = 0;
        return 0;
    }
    if (parse_seconds(value, "decay", &out->decay_ns) < 0) {
        return -1;
    }
    if (out->decay_ns == 0) {
        PyErr_SetString(PyExc_ValueError,
                        "decay must be above 0 seconds, or None to keep idle memory");
        return -1;
    }
    return 0;
}

static int
read_max_split(core_state *state, gm_device *Py_UNUSED(device), PyObject *value,
               gm_pool_options *out)
{
    return read_size_or_none(state, value, "max_split", SIZE_MAX, &out->max_split);
}

/* X(name) in the order of the constructor. */
#define POOL_OPTION_MAP(X) \
    X(limit)               \
    X(headroom)            \
    X(reserve)             \
    X(steal)               \
    X(cross_stream)        \
    X(yields)              \
    X(gc_on_pressure)      \
    X(oom_wait)            \
    X(decay)               \
    X(max_split)           \
    X(paging)

static const struct {
    const char *name;
    option_reader read;
} option_rows[] = {
#define POOL_OPTION_ROW(name) {#name, read_##name},
    POOL_OPTION_MAP(POOL_OPTION_ROW)
#undef POOL_OPTION_ROW
};

int
pool_option_parse(core_state *state, gm_device *device, const char *name,
                  PyObject *value, gm_pool_options *out)
{
    for (size_t i = 0; i < sizeof(option_rows) / sizeof(option_rows[0]); i++) {
        if (strcmp(name, option_rows[i].name) == 0) {
            return option_rows[i].read(state, device, value, out) < 0 ? -1 : 1;
        }
    }
    return 0;
}

void
pool_option_unknown(PyObject *name)
{
    PyErr_Format(
        PyExc_TypeError,
        "unknown option %R; the options are limit, headroom, reserve, steal, "
        "cross_stream, yields, gc_on_pressure, oom_wait, decay, max_split, paging",
        name);
}

/* ---- the constructor ---------------------------------------------------------------- */

static int
read_name(PyObject *value, pool_extras *out)
{
    if (value != Py_None && !PyUnicode_Check(value)) {
        PyErr_Format(PyExc_TypeError, "name must be a str or None, not %.100s",
                     Py_TYPE(value)->tp_name);
        return -1;
    }
    out->name = value == Py_None ? NULL : value;
    return 0;
}

static int
read_fallback(core_state *state, PyObject *value, pool_extras *out)
{
    if (value == Py_None) {
        return 0;
    }
    if (!Py_IS_TYPE(value, state->Pool_Type)) {
        PyErr_Format(PyExc_TypeError, "fallback must be a Pool or None, not %.100s",
                     Py_TYPE(value)->tp_name);
        return -1;
    }
    out->fallback = (PoolObject *)value;
    if (pool_is_over(out->fallback)) {
        PyErr_Format(PyExc_ValueError, "fallback must be an open pool; %R is closed",
                     out->fallback->name);
        return -1;
    }
    return 0;
}

int
pool_keywords_parse(core_state *state, gm_device *device, PyObject *kwargs,
                    gm_pool_options *options, pool_extras *extras)
{
    Py_ssize_t position = 0;
    PyObject *name, *value;
    while (kwargs != NULL && PyDict_Next(kwargs, &position, &name, &value)) {
        const char *text = PyUnicode_AsUTF8(name);
        if (text == NULL) {
            return -1;
        }
        if (PyUnicode_CompareWithASCIIString(name, "device") == 0) {
            continue;
        }
        int found = 1;
        if (PyUnicode_CompareWithASCIIString(name, "name") == 0) {
            found = read_name(value, extras) < 0 ? -1 : 1;
        }
        else if (PyUnicode_CompareWithASCIIString(name, "fallback") == 0) {
            found = read_fallback(state, value, extras) < 0 ? -1 : 1;
        }
        else {
            found = pool_option_parse(state, device, text, value, options);
        }
        if (found == 0) {
            pool_option_unknown(name);
        }
        if (found <= 0) {
            return -1;
        }
    }
    return 0;
}

/* ---- reading and changing ---------------------------------------------------------------- */

/* New reference: None for `none`, else the size. */
static PyObject *
size_or_none(size_t size, size_t none)
{
    return size == none ? Py_NewRef(Py_None) : PyLong_FromSize_t(size);
}

/* New reference: None for `none`, else seconds. */
static PyObject *
seconds_or_none(uint64_t nanoseconds, uint64_t none)
{
    return nanoseconds == none ? Py_NewRef(Py_None)
                               : PyFloat_FromDouble((double)nanoseconds * 1e-9);
}

/* New reference: the option as it is given. */
static PyObject *
steal_value(const gm_pool_options *options)
{
    if (options->steal == GM_STEAL_RATIO) {
        return PyFloat_FromDouble(options->steal_ratio);
    }
    return PyUnicode_FromString(options->steal == GM_STEAL_ALWAYS ? "always" : "never");
}

PyObject *
Pool_options(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    static const char *const cross_stream[] = {[GM_CROSS_STREAM_DONE] = "done",
                                               [GM_CROSS_STREAM_WAIT] = "wait",
                                               [GM_CROSS_STREAM_NEVER] = "never"};
    gm_pool_options options;
    gm_pool_read_options(((PoolObject *)op)->pool, &options);
    return Py_BuildValue("{s:N,s:n,s:n,s:N,s:s,s:N,s:N,s:N,s:N,s:N,s:N}", "limit",
                         size_or_none(options.limit, SIZE_MAX), "headroom",
                         (Py_ssize_t)options.headroom, "reserve",
                         (Py_ssize_t)options.reserve, "steal", steal_value(&options),
                         "cross_stream", cross_stream[options.cross_stream], "yields",
                         PyBool_FromLong(options.yields), "gc_on_pressure",
                         PyBool_FromLong(options.gc_on_pressure), "oom_wait",
                         seconds_or_none(options.oom_wait_ns, UINT64_MAX), "decay",
                         seconds_or_none(options.decay_ns, 0), "max_split",
                         size_or_none(options.max_split, SIZE_MAX), "paging",
                         PyBool_FromLong(options.paging));
}

/* The name of an option that differs and cannot change any more, or NULL. */
static const char *
fixed_option_changed(const gm_pool_options *old, const gm_pool_options *new)
{
    if (old->reserve != new->reserve) {
        return "reserve";
    }
    if (old->steal != new->steal || old->steal_ratio != new->steal_ratio) {
        return "steal";
    }
    if (old->decay_ns != new->decay_ns) {
        return "decay";
    }
    if (old->max_split != new->max_split) {
        return "max_split";
    }
    return old->paging != new->paging ? "paging" : NULL;
}

PyObject *
Pool_configure(PyObject *op, PyObject *args, PyObject *kwargs)
{
    PoolObject *self = (PoolObject *)op;
    core_state *state = state_of(op);
    gm_pool_options old, options;
    if (PyTuple_GET_SIZE(args) > 0) {
        PyErr_SetString(PyExc_TypeError, "configure() takes options by name only");
        return NULL;
    }
    gm_pool_read_options(self->pool, &old);
    options = old;
    Py_ssize_t position = 0;
    PyObject *name, *value;
    while (kwargs != NULL && PyDict_Next(kwargs, &position, &name, &value)) {
        const char *text = PyUnicode_AsUTF8(name);
        int found = text == NULL ? -1
                                 : pool_option_parse(state, self->device->device, text,
                                                     value, &options);
        if (found == 0) {
            pool_option_unknown(name);
        }
        if (found <= 0) {
            return NULL;
        }
    }
    const char *fixed = fixed_option_changed(&old, &options);
    if (fixed != NULL) {
        PyErr_Format(PyExc_ValueError,
                     "%s is fixed when the pool is made; make another pool", fixed);
        return NULL;
    }
    gm_status status = gm_pool_change_options(self->pool, &options);
    if (status != GM_OK) {
        return set_status_error(state, status, "change the pool's options");
    }
    Py_RETURN_NONE;
}

PyObject *
Pool_get_limit(PyObject *op, void *Py_UNUSED(closure))
{
    return size_or_none(gm_pool_limit(((PoolObject *)op)->pool), SIZE_MAX);
}

int
Pool_set_limit(PyObject *op, PyObject *value, void *Py_UNUSED(closure))
{
    size_t limit;
    if (value == NULL) {
        PyErr_SetString(PyExc_TypeError, "limit cannot be deleted; set it to None");
        return -1;
    }
    if (read_size_or_none(state_of(op), value, "limit", SIZE_MAX, &limit) < 0) {
        return -1;
    }
    gm_pool *pool = ((PoolObject *)op)->pool;
    gm_status status = gm_device_usable(gm_pool_device(pool));
    if (status == GM_FORKED) {
        set_status_error(state_of(op), status, "change the pool's limit");
        return -1;
    }
    gm_pool_set_limit(pool, limit);
    return 0;
}
