/* kernels.h - kernels by name: host twins that run in their place, with the addresses of
 * the device open to them. All functions need the lock. */
#ifndef FAKECUDA_KERNELS_H
#define FAKECUDA_KERNELS_H

#include "work.h"

typedef struct fake_kernel {
    char *name;         /* owned */
    fakecuda_twin twin; /* NULL: the kernel is known, but nobody can run it */
    size_t *sizes;      /* of its parameters; owned */
    size_t count;
    struct fake_kernel *next;
} fake_kernel;

/* A kernel's place in a library or module. */
typedef struct fake_function {
    void *handle;
    fake_kernel *kernel;
    void *module; /* its handle */
} fake_function;

struct fake_kernel_call {
    fakecuda_launch launch;
    fakecuda_twin twin;
    void *arguments; /* owned */
};

/* How a launch names its arguments: pointers to each one, or one block. */
typedef struct fake_arguments {
    void **pointers;
    const void *block;
    size_t block_size;
} fake_arguments;

typedef struct fake_shape {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
} fake_shape;

/* The kernel of that name; one without a twin is made if there is none. */
fake_kernel *
fake_kernel_need_locked(const char *name);

/* Where a parameter lies in the block of arguments. Pre: index <= count; the end of the
 * block for count. */
size_t
fake_parameter_offset(const fake_kernel *kernel, size_t index);

int
fake_kernel_launch_locked(const fake_kernel *kernel, const fake_shape *shape,
                          const fake_arguments *arguments, CUstream stream);

/* Accepts NULL. */
void
fake_kernel_call_free(fake_kernel_call *call);

/* execute.c calls it for FAKE_KERNEL. Gives the lock up meanwhile. */
void
fake_run_kernel_locked(const fake_op *op, const fake_task *task);

/* registration.c: what a program launches by that handle, or by that stub; NULL: it is no
 * kernel. */
const fake_kernel *
fake_kernel_of_locked(const void *function);

/* modules.c: the body of cuLaunchKernel and the launches of the runtime. */
int
fake_function_launch_locked(const void *function, const fake_shape *shape,
                            void **pointers, void **extra, CUstream stream);

void
fake_modules_reset_locked(void);

#endif
