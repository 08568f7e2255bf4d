/* dlpack_abi.h - the binary layout of DLPack tensors, versions 0 (legacy) and 1.
 *
 * DLPack is an exchange format: a producer hands over a pointer to one of the managed
 * tensors below inside a capsule, and the consumer calls its deleter when it no longer
 * needs the memory, on any thread. The layouts are fixed; static assertions below pin
 * them.
 *
 *     capsule "dltensor"            -> dl_managed_tensor;   renamed "used_dltensor"
 *     capsule "dltensor_versioned"  -> dl_managed_tensor_versioned; "used_..." likewise
 *
 * A capsule that still has its first name when it dies was not consumed: its destructor
 * calls the deleter.
 */
#ifndef GM_PYTHON_DLPACK_ABI_H
#define GM_PYTHON_DLPACK_ABI_H

#include <stddef.h>
#include <stdint.h>

#define DL_MAJOR 1u
#define DL_MINOR 1u

#define DL_CAPSULE "dltensor"
#define DL_CAPSULE_USED "used_dltensor"
#define DL_CAPSULE_VERSIONED "dltensor_versioned"
#define DL_CAPSULE_VERSIONED_USED "used_dltensor_versioned"

/* Kinds of devices that gpumem meets. */
enum {
    DL_CPU = 1,
    DL_CUDA = 2,
    DL_CUDA_HOST = 3,
    DL_CUDA_MANAGED = 13,
};

/* Bits of flags. */
enum {
    DL_FLAG_READ_ONLY = 1,
    DL_FLAG_IS_COPIED = 2,
    DL_FLAG_SUBBYTE_PADDED = 4,
};

typedef struct dl_device {
    int32_t kind;
    int32_t index;
} dl_device;

typedef struct dl_dtype {
    uint8_t code;
    uint8_t bits;   /* of one lane */
    uint16_t lanes; /* 1 for scalars */
} dl_dtype;

typedef struct dl_tensor {
    void *data; /* NULL for no elements */
    dl_device device;
    int32_t ndim;
    dl_dtype dtype;
    int64_t *shape;
    int64_t *strides; /* elements; NULL: C order (before version 1.2) */
    uint64_t byte_offset;
} dl_tensor;

typedef struct dl_managed_tensor {
    dl_tensor tensor;
    void *context; /* the producer's */
    void (*deleter)(struct dl_managed_tensor *self);
} dl_managed_tensor;

typedef struct dl_version {
    uint32_t major;
    uint32_t minor;
} dl_version;

typedef struct dl_managed_tensor_versioned {
    dl_version version;
    void *context;
    void (*deleter)(struct dl_managed_tensor_versioned *self);
    uint64_t flags;
    dl_tensor tensor;
} dl_managed_tensor_versioned;

_Static_assert(sizeof(dl_tensor) == 48, "ABI");
_Static_assert(offsetof(dl_tensor, shape) == 24, "ABI");
_Static_assert(offsetof(dl_tensor, byte_offset) == 40, "ABI");
_Static_assert(sizeof(dl_managed_tensor) == 64, "ABI");
_Static_assert(offsetof(dl_managed_tensor, deleter) == 56, "ABI");
_Static_assert(sizeof(dl_managed_tensor_versioned) == 80, "ABI");
_Static_assert(offsetof(dl_managed_tensor_versioned, tensor) == 32, "ABI");

#endif
