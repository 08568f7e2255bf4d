/* transfer.c - strided copies and fills as queued device work.
 *
 * A device copies and fills contiguous bytes. A strided array is cut into runs that
 * are contiguous on every side, from the last axis upwards; each run is one piece of
 * work, queued in order:
 *
 *     rows of a pitched matrix   |=======...|=======...|   one piece per row
 *     a contiguous array         |=====================|   one piece
 *
 * Thread-safety: no Python here; called without the GIL, since a device may run the
 * work inside the call. Cost: O(pieces) device calls.
 */
#include "python/python.h"

#include "python/buffer.h"

/* How the elements split: `outer` leading axes are walked, below them lie runs. */
typedef struct run_split {
    int outer;    /* axes to walk */
    size_t count; /* runs */
    size_t run;   /* elements of one run */
} run_split;

static run_split
split_runs(const array_layout *layout, const array_layout *other)
{
    run_split split = {layout->ndim, 1, 1};
    Py_ssize_t expected = layout->itemsize;
    while (split.outer > 0) {
        int axis = split.outer - 1;
        Py_ssize_t length = layout->shape[axis];
        bool joined =
            length == 1 || (layout->strides[axis] == expected &&
                            (other == NULL || other->strides[axis] == expected));
        if (!joined) {
            break;
        }
        expected *= length;
        split.run *= (size_t)length;
        split.outer = axis;
    }
    for (int axis = 0; axis < layout->ndim; axis++) {
        if (axis < split.outer) {
            split.count *= (size_t)layout->shape[axis];
        }
        if (layout->shape[axis] == 0) {
            split.count = 0;
            break;
        }
    }
    return split;
}

size_t
transfer_pieces(const array_layout *layout, const array_layout *other)
{
    return split_runs(layout, other).count;
}

/* Moves `index` to the next run in C order. */
static void
next_index(Py_ssize_t *index, const Py_ssize_t *shape, int outer)
{
    for (int axis = outer - 1; axis >= 0; axis--) {
        if (++index[axis] < shape[axis]) {
            return;
        }
        index[axis] = 0;
    }
}

static gm_devptr
address_at(const array_layout *layout, const Py_ssize_t *index, int outer)
{
    gm_devptr address = layout->address;
    for (int axis = 0; axis < outer; axis++) {
        address += (gm_devptr)(index[axis] * layout->strides[axis]);
    }
    return address;
}

gm_status
transfer_copy(gm_device *device, const array_layout *destination,
              const array_layout *source, gm_stream stream)
{
    if (device->ops->copy_async == NULL) {
        return GM_UNSUPPORTED;
    }
    GM_TRY(gm_device_usable(device));
    run_split split = split_runs(destination, source);
    size_t bytes = split.run * (size_t)destination->itemsize;
    Py_ssize_t index[BUFFER_MAX_DIM] = {0};
    for (size_t piece = 0; piece < split.count; piece++) {
        GM_TRY(device->ops->copy_async(
            device, address_at(destination, index, split.outer),
            address_at(source, index, split.outer), bytes, stream));
        next_index(index, destination->shape, split.outer);
    }
    return GM_OK;
}

gm_status
transfer_fill(gm_device *device, const array_layout *destination,
              const unsigned char *pattern, gm_stream stream)
{
    if (device->ops->fill_async == NULL) {
        return GM_UNSUPPORTED;
    }
    GM_TRY(gm_device_usable(device));
    run_split split = split_runs(destination, NULL);
    Py_ssize_t index[BUFFER_MAX_DIM] = {0};
    for (size_t piece = 0; piece < split.count; piece++) {
        GM_TRY(device->ops->fill_async(
            device, address_at(destination, index, split.outer), pattern,
            (size_t)destination->itemsize, split.run, stream));
        next_index(index, destination->shape, split.outer);
    }
    return GM_OK;
}

gm_status
transfer_wait(gm_device *device, gm_stream stream)
{
    if (device->ops->stream_synchronize == NULL) {
        return GM_OK;
    }
    GM_TRY(gm_device_usable(device));
    return device->ops->stream_synchronize(device, stream, UINT64_MAX);
}
