/* buffer.h - what the files behind Buffer and PinnedArray share among themselves.
 *
 *     buffer.c        the life of a Buffer, its buffer protocol
 *     buffer_type.c   its attributes, methods and type
 *     layout.c        shapes and strides
 *     buffer_view.c   reshape, view, indexing: other shapes over the same memory
 *     buffer_copy.c   copy_from, copy_to, fill, tobytes; copy_engine.c behind them
 *     transfer.c      the strided copy and fill below those, without Python
 *     host_array.c    somebody else's host memory as a host_array
 *     dtype.c         element types, and one element from a Python value
 *     dlpack.c        exchange of tensors; numpy.c the arrays of NumPy
 *     dlpack_import.c its other direction
 *     pinned.c        PinnedArray; pin.c Pin
 *
 * Thread-safety: the GIL, except transfer.c, which runs without it.
 */
#ifndef GM_PYTHON_BUFFER_H
#define GM_PYTHON_BUFFER_H

#include "python/python.h"

/* Room for one element of any dtype. Bytes. */
#define DTYPE_MAX_SIZE 16

/* dlpack_code of a dtype_info, as DLPack numbers its kinds. */
enum {
    CODE_INT = 0,
    CODE_UINT = 1,
    CODE_FLOAT = 2,
    CODE_BFLOAT = 4,
    CODE_COMPLEX = 5,
    CODE_BOOL = 6,
    CODE_FLOAT8_FIRST = 7,    /* float8 kinds from here on */
    CODE_FLOAT8_E8M0FNU = 14, /* has neither sign nor zero */
};

/* ---- arrays in host memory ------------------------------------------------------- */

/* Strided elements at an address: of a Buffer, or of host memory. */
typedef struct array_layout {
    gm_devptr address;
    int ndim;
    const Py_ssize_t *shape;
    const Py_ssize_t *strides; /* bytes */
    Py_ssize_t itemsize;       /* bytes */
} array_layout;

/* Host memory of somebody else, held while this is held. */
typedef struct host_array {
    char *data;
    const dtype_info *dtype;
    bool writable;
    bool swapped; /* bytes in the other order: only NumPy can read it */
    int ndim;
    Py_ssize_t shape[BUFFER_MAX_DIM];
    Py_ssize_t strides[BUFFER_MAX_DIM]; /* bytes */
    PyObject *owner;  /* strong: keeps the memory; NULL when only `buffer` does */
    Py_buffer buffer; /* an export; buffer.obj is NULL when there is none */
    bool is_ndarray;  /* `owner` is an ndarray over just this memory */
} host_array;

/* Fills `out` from a NumPy array, an object with the buffer protocol or DLPack.
 * 1: done, release it later. 0: `source` is none of those (no exception). -1: an
 * exception. */
int
host_array_acquire(core_state *state, PyObject *source, host_array *out);

/* Drops what acquire took; keeps a pending exception. */
void
host_array_release(host_array *array);

array_layout
host_array_layout(const host_array *array);

/* True when the elements lie in C order without gaps. */
bool
layout_is_contiguous(int ndim, const Py_ssize_t *shape, const Py_ssize_t *strides,
                     Py_ssize_t itemsize);

/* Writes the strides of C order; 0 sizes count as 1, as in NumPy. */
void
layout_set_c_order(int ndim, const Py_ssize_t *shape, Py_ssize_t itemsize,
                   Py_ssize_t *strides);

/* Elements and bytes of a shape. ValueError past GM_SIZE_LIMIT; sizes of 0 do not hide
 * an overflow of the others. */
int
layout_count(const dtype_info *dtype, int ndim, const Py_ssize_t *shape,
             Py_ssize_t *size, Py_ssize_t *nbytes);

/* Strides for rows that start at multiples of `pitch` bytes; *span: bytes in all.
 * ValueError where that makes no sense. */
int
layout_set_pitched(const dtype_info *dtype, int ndim, const Py_ssize_t *shape,
                   size_t pitch, Py_ssize_t *strides, size_t *span);

/* The lowest and the highest address (exclusive) that elements take; equal when there
 * are none. */
void
layout_bounds(const array_layout *layout, gm_devptr *low, gm_devptr *high);

/* ---- transfer.c: device work, without the GIL ------------------------------------ */

/* How many pieces a copy or fill splits into: runs that are contiguous on both sides.
 * `other` may be NULL. */
size_t
transfer_pieces(const array_layout *layout, const array_layout *other);

/* Queues the copy of all elements; both have the same shape and itemsize and do not
 * overlap. */
gm_status
transfer_copy(gm_device *device, const array_layout *destination,
              const array_layout *source, gm_stream stream);

/* Queues the write of one element everywhere. */
gm_status
transfer_fill(gm_device *device, const array_layout *destination,
              const unsigned char *pattern, gm_stream stream);

/* Waits until the stream is idle. */
gm_status
transfer_wait(gm_device *device, gm_stream stream);

/* ---- dtype.c --------------------------------------------------------------------- */

/* The row for a struct-module letter of `itemsize` bytes (with or without a mark of
 * native order); NULL, without an exception, for other formats. */
const dtype_info *
dtype_by_format(const char *format, Py_ssize_t itemsize);

/* May elements be converted without leaving their kind? bool, unsigned, signed, float,
 * complex: each to itself and to all that follow, whatever the widths (NumPy's
 * "same_kind", for the types of ml_dtypes, too). */
bool
dtype_can_convert(const dtype_info *from, const dtype_info *to);

/* By DLPack's code and bits, one lane; NULL without an exception. */
const dtype_info *
dtype_by_dlpack(uint8_t code, uint8_t bits);

/* Writes one element of `dtype` with a Python value. -1 with TypeError (another kind
 * of value) or ValueError (outside the range). */
int
dtype_pack(core_state *state, const dtype_info *dtype, PyObject *value,
           unsigned char out[DTYPE_MAX_SIZE]);

/* ---- buffer.c, buffer_type.c, buffer_view.c, buffer_copy.c ----------------------- */

/* -1 with `exception` unless the host may read the memory; it says how to copy. */
int
buffer_require_host(BufferObject *self, PyObject *exception);

array_layout
buffer_layout(const BufferObject *self);

static inline gm_device *
buffer_device(const BufferObject *self)
{
    return self->pool->device->device;
}

/* True in a child of fork: its parent's device is not there. */
bool
buffer_is_orphan(const BufferObject *self);

/* Notes that work on `stream` uses the memory. 0, or -1 with an exception. */
int
buffer_note_stream(core_state *state, BufferObject *self, gm_stream stream);

/* Work that was noted has been queued: the mark on a stream of this thread alone, which
 * nobody else can record later, moves behind it. 0, or -1 with an exception. */
int
buffer_note_queued(core_state *state, BufferObject *self, gm_stream stream);

/* Fills a Py_buffer for memory of ours. Takes no export; the caller counts. `self`
 * becomes view->obj (new reference). */
int
export_fill(PyObject *self, Py_buffer *view, int flags, char *data,
            const dtype_info *dtype, int ndim, Py_ssize_t *shape, Py_ssize_t *strides,
            Py_ssize_t nbytes);

/* New references. */
PyObject *
dims_to_tuple(int ndim, const Py_ssize_t *dims);
/* "512 bytes", "1.5 GiB". */
PyObject *
format_bytes(Py_ssize_t nbytes);

/* Slots of the type. */
void
Buffer_tp_dealloc(PyObject *op);
int
Buffer_bf_getbuffer(PyObject *op, Py_buffer *view, int flags);
void
Buffer_bf_releasebuffer(PyObject *op, Py_buffer *view);

PyObject *
buffer_view_as(PyObject *self, PyObject *dtype);
PyObject *
buffer_reshape(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *
buffer_subscript(PyObject *self, PyObject *index);
PyObject *
buffer_item(PyObject *self, Py_ssize_t index);

PyObject *
buffer_copy_from(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                 PyObject *kwnames);
PyObject *
buffer_copy_to(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
               PyObject *kwnames);
PyObject *
buffer_fill(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *
buffer_tobytes(PyObject *self, PyObject *unused);

/* ---- numpy.c --------------------------------------------------------------------- */

/* True when `value` is an ndarray. Never imports NumPy: without it nothing is one. */
bool
numpy_is_array(core_state *state, PyObject *value);

/* Fills data, dtype, shape, strides, writable and owner. -1 with TypeError for dtypes
 * that gpumem does not have. */
int
numpy_describe(core_state *state, PyObject *ndarray, host_array *out);

/* New reference: an ndarray over `array`, which stays held by `owner` (a new reference
 * is taken; NULL: the caller keeps the memory while the ndarray lives). */
PyObject *
numpy_wrap(core_state *state, const array_layout *layout, const dtype_info *dtype,
           PyObject *owner, bool writable);

/* New reference: an ndarray over a whole exporter of ours, held through an export. */
PyObject *
numpy_from_exporter(core_state *state, PyObject *exporter, const dtype_info *dtype);

/* New reference: np.asarray(value). */
PyObject *
numpy_asarray(core_state *state, PyObject *value);

/* New reference: an empty C-ordered ndarray. */
PyObject *
numpy_empty(core_state *state, const dtype_info *dtype, int ndim,
            const Py_ssize_t *shape);

/* New reference: np.asarray(value, dtype). OverflowError for ints that do not fit. */
PyObject *
numpy_asarray_as(core_state *state, PyObject *value, const dtype_info *dtype);

/* Assigns with conversion and broadcasting; the two may overlap. The caller has checked
 * that the kinds fit. */
int
numpy_copy(core_state *state, PyObject *target, PyObject *source);

/* The name of a dtype object or a scalar type of NumPy's, new reference; NULL without
 * an exception when NumPy is not loaded or `value` is neither; NULL with one on
 * failure or for a foreign byte order. */
PyObject *
numpy_dtype_name(core_state *state, PyObject *value);

/* ---- dlpack.c -------------------------------------------------------------------- */

/* As host_array_acquire, for objects with __dlpack__. 0: there is none. */
int
dlpack_acquire(core_state *state, PyObject *source, host_array *out);

/* ---- pinned.c -------------------------------------------------------------------- */

typedef struct PinnedArrayObject {
    PyObject_HEAD
    DeviceObject *device; /* strong */
    gm_block *block;      /* owned; NULL: zero bytes, or released */
    gm_devptr ptr;        /* a pointer of this process */
    const dtype_info *dtype;
    int ndim;
    Py_ssize_t *shape; /* ndim sizes, then ndim strides; malloc or inline_dims */
    Py_ssize_t inline_dims[4];
    Py_ssize_t nbytes;
    Py_ssize_t exports;
    bool released;
    PyObject *weakrefs;
} PinnedArrayObject;

/* 0 when the memory is there, else -1 with ReleasedError. */
int
pinned_require(core_state *state, PinnedArrayObject *self);
array_layout
pinned_layout(const PinnedArrayObject *self);
int
pinned_note_stream(core_state *state, PinnedArrayObject *self, gm_stream stream);

/* pin.c's part of pinned_init. */
int
pin_init(PyObject *module, core_state *state);

#endif
