/* c_pools.c - lets Python say which pools the exported C functions act on.
 *
 * The Python layer calls these when it makes or drops a default pool; capi/capi.h has
 * the table.
 */
#include "python/python.h"

#include "capi/capi.h"

PyDoc_STRVAR(set_c_device_doc,
             "set_c_device($module, kind, /)\n"
             "--\n\n"
             "Which devices the exported C functions act on: 'cuda' or 'host'. A "
             "change forgets\n"
             "the pools of the other kind.");

static PyObject *
set_c_device(PyObject *Py_UNUSED(module), PyObject *kind)
{
    if (PyUnicode_Check(kind)) {
        if (PyUnicode_CompareWithASCIIString(kind, "cuda") == 0) {
            gm_capi_set_kind(GM_DEVICE_CUDA);
            Py_RETURN_NONE;
        }
        if (PyUnicode_CompareWithASCIIString(kind, "host") == 0) {
            gm_capi_set_kind(GM_DEVICE_HOST);
            Py_RETURN_NONE;
        }
    }
    PyErr_Format(PyExc_ValueError, "c_device must be 'cuda' or 'host', not %R", kind);
    return NULL;
}

PyDoc_STRVAR(set_c_pool_doc,
             "set_c_pool($module, index, pool, /)\n"
             "--\n\n"
             "Makes pool the one that the exported C functions use for device index; "
             "None: none.\n"
             "They keep it alive.");

static PyObject *
set_c_pool(PyObject *module, PyObject *args)
{
    core_state *state = state_of_module(module);
    int index;
    PyObject *pool;
    if (!PyArg_ParseTuple(args, "iO:set_c_pool", &index, &pool)) {
        return NULL;
    }
    if (pool != Py_None && !Py_IS_TYPE(pool, state->Pool_Type)) {
        PyErr_Format(PyExc_TypeError, "pool must be a Pool or None, not %.100s",
                     Py_TYPE(pool)->tp_name);
        return NULL;
    }
    gm_pool *raw = pool == Py_None ? NULL : ((PoolObject *)pool)->pool;
    if (gm_capi_set_pool(index, raw) != GM_OK) {
        PyErr_Format(
            PyExc_ValueError, "index must be from 0 to %d and the pool on a %s device",
            GM_CAPI_DEVICES - 1, gm_capi_kind() == GM_DEVICE_HOST ? "host" : "cuda");
        return NULL;
    }
    Py_RETURN_NONE;
}

PyMethodDef capi_functions[] = {
    {"set_c_device", set_c_device, METH_O, set_c_device_doc},
    {"set_c_pool", set_c_pool, METH_VARARGS, set_c_pool_doc},
    {NULL, NULL, 0, NULL},
};
