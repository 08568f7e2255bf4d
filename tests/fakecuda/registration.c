/* registration.c - what nvcc puts into a program: it registers kernels when it starts, and
 * launches them by the address of a stub.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

typedef struct fake_symbol {
    const void *address; /* of the host's stub */
    fake_kernel *kernel;
    fake_function function; /* its handle, once somebody asked for it */
    struct fake_symbol *next;
} fake_symbol;

static fake_symbol *symbols;

const fake_kernel *
fake_kernel_of_locked(const void *function)
{
    const fake_function *loaded = fake_handle_find_locked(FAKE_FUNCTION, function);
    if (loaded != NULL) {
        return loaded->kernel;
    }
    for (const fake_symbol *symbol = symbols; symbol != NULL; symbol = symbol->next) {
        if (symbol->address == function) {
            return symbol->kernel;
        }
    }
    return NULL;
}

/* ---- when a program starts ----------------------------------------------------------------------- */

void **
__cudaRegisterFatBinary(void *binary);
void
__cudaRegisterFatBinaryEnd(void **handle);
void
__cudaUnregisterFatBinary(void **handle);
char
__cudaInitModule(void **handle);
void
__cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
                       int thread_limit, uint3 *thread_id, uint3 *block_id, dim3 *block,
                       dim3 *grid, int *warp_size);
void
__cudaRegisterVar(void **handle, char *host, char *device, const char *name,
                  int external, size_t size, int constant, int global);

void **
__cudaRegisterFatBinary(void *binary)
{
    void **handle = fake_allocate(sizeof(*handle));
    *handle = binary;
    return handle;
}

void
__cudaRegisterFatBinaryEnd(void **handle)
{
    (void)handle;
}

void
__cudaUnregisterFatBinary(void **handle)
{
    free(handle);
}

char
__cudaInitModule(void **handle)
{
    (void)handle;
    return 1;
}

void
__cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
                       int thread_limit, uint3 *thread_id, uint3 *block_id, dim3 *block,
                       dim3 *grid, int *warp_size)
{
    (void)handle, (void)device, (void)thread_limit, (void)thread_id, (void)block_id;
    (void)block, (void)grid, (void)warp_size;
    pthread_mutex_lock(&fake_lock);
    fake_symbol *symbol = fake_allocate(sizeof(*symbol));
    symbol->address = host;
    symbol->kernel = fake_kernel_need_locked(name);
    symbol->next = symbols;
    symbols = symbol;
    pthread_mutex_unlock(&fake_lock);
}

/* Variables of a device have no place here; whoever asks for one is refused. */
void
__cudaRegisterVar(void **handle, char *host, char *device, const char *name,
                  int external, size_t size, int constant, int global)
{
    (void)handle, (void)host, (void)device, (void)name, (void)external, (void)size;
    (void)constant, (void)global;
}

/* ---- <<<>>> ---------------------------------------------------------------------------------------- */

/* A launch's shape waits between the two calls that <<<>>> becomes. */
static _Thread_local struct {
    dim3 grid, block;
    size_t shared_bytes;
    void *stream;
} pushed;

unsigned
__cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                            struct CUstream_st *stream);
cudaError_t
__cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream);

unsigned
__cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                            struct CUstream_st *stream)
{
    pushed.grid = grid;
    pushed.block = block;
    pushed.shared_bytes = shared_bytes;
    pushed.stream = stream;
    return 0;
}

cudaError_t
__cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream)
{
    *grid = pushed.grid;
    *block = pushed.block;
    *shared_bytes = pushed.shared_bytes;
    memcpy(stream, &pushed.stream, sizeof(void *));
    return cudaSuccess;
}

/* From CUDA 13 on a launch goes by a handle. */
cudaError_t
__cudaGetKernel(cudaKernel_t *kernel, const void *function);
cudaError_t
__cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                   size_t shared_bytes, cudaStream_t stream);
cudaError_t
__cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                        size_t shared_bytes, cudaStream_t stream);

static int
get_kernel_locked(cudaKernel_t *out, const void *address)
{
    for (fake_symbol *symbol = symbols; symbol != NULL; symbol = symbol->next) {
        if (symbol->address == address) {
            if (fake_handle_find_locked(FAKE_FUNCTION, symbol->function.handle) !=
                &symbol->function) {
                symbol->function.kernel = symbol->kernel;
                symbol->function.handle =
                    fake_handle_make_locked(FAKE_FUNCTION, &symbol->function);
            }
            *out = symbol->function.handle;
            return 0;
        }
    }
    return (int)cudaErrorInvalidDeviceFunction;
}

cudaError_t
__cudaGetKernel(cudaKernel_t *kernel, const void *function)
{
    RUNTIME_CALL(get_kernel_locked(kernel, function));
}

cudaError_t
__cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                   size_t shared_bytes, cudaStream_t stream)
{
    return cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream);
}

cudaError_t
__cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                        size_t shared_bytes, cudaStream_t stream)
{
    return cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes,
                            stream == NULL ? cudaStreamPerThread : stream);
}
