/* modules.c - where kernels come from: modules and libraries of the driver and the
 * runtime. registration.c has what nvcc adds.
 *
 * Nothing in an image is run. It must look like one, and hold the kernel's name as far as
 * that can be read; the kernel's host twin is found by the name.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

/* ---- images ------------------------------------------------------------------------------------- */

typedef struct fake_module {
    void *handle;
    char *text; /* owned: PTX; NULL: an image that cannot be read */
} fake_module;

#define ELF_MAGIC 0x464c457fu
#define FATBIN_MAGIC 0xba55ed50u
#define WRAPPER_MAGIC 0x466243b1u

static bool
is_binary(const void *image)
{
    uint32_t magic;
    memcpy(&magic, image, sizeof(magic));
    return magic == ELF_MAGIC || magic == FATBIN_MAGIC || magic == WRAPPER_MAGIC;
}

static int
load_locked(void **out, const void *image)
{
    if (out == NULL || image == NULL) {
        return (int)cudaErrorInvalidValue;
    }
    bool binary = is_binary(image);
    if (!binary && strstr(image, ".version") == NULL) {
        return (int)cudaErrorInvalidKernelImage;
    }
    fake_module *module = fake_allocate(sizeof(*module));
    if (!binary) {
        size_t size = strlen(image) + 1;
        module->text = memcpy(fake_allocate(size), image, size);
    }
    module->handle = fake_handle_make_locked(FAKE_MODULE, module);
    *out = module->handle;
    return 0;
}

/* Its functions go with it. */
static int
unload_locked(void *handle)
{
    int error = 0;
    fake_module *module = fake_handle_need_locked(FAKE_MODULE, handle, &error);
    if (module == NULL) {
        return error;
    }
    fake_function *function;
    for (size_t n = 0; (function = fake_handle_at_locked(FAKE_FUNCTION, n)) != NULL;) {
        if (function->module == handle) {
            fake_handle_drop_locked(FAKE_FUNCTION, function->handle);
            free(function);
        }
        else {
            n++;
        }
    }
    fake_handle_drop_locked(FAKE_MODULE, handle);
    free(module->text);
    free(module);
    return 0;
}

void
fake_modules_reset_locked(void)
{
    const fake_module *module;
    while ((module = fake_handle_at_locked(FAKE_MODULE, 0)) != NULL) {
        (void)unload_locked(module->handle);
    }
}

/* Does the PTX have an entry of that name? */
static bool
has_entry(const char *text, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = text; (at = strstr(at, ".entry")) != NULL;) {
        at += strlen(".entry");
        while (isspace((unsigned char)*at)) {
            at++;
        }
        char next = strncmp(at, name, length) == 0 ? at[length] : 'x';
        if (!isalnum((unsigned char)next) && next != '_' && next != '$') {
            return true;
        }
    }
    return false;
}

static int
find_function_locked(void **out, void *handle, const char *name)
{
    int error = 0;
    const fake_module *module = fake_handle_need_locked(FAKE_MODULE, handle, &error);
    if (module == NULL || out == NULL || name == NULL) {
        return module == NULL ? error : (int)cudaErrorInvalidValue;
    }
    bool there = module->text != NULL ? has_entry(module->text, name)
                                      : fake_kernel_find_locked(name) != NULL;
    if (!there) {
        return (int)cudaErrorSymbolNotFound;
    }
    fake_function *function = fake_allocate(sizeof(*function));
    function->kernel = fake_kernel_need_locked(name);
    function->module = handle;
    function->handle = fake_handle_make_locked(FAKE_FUNCTION, function);
    *out = function->handle;
    return 0;
}

/* ---- launches ------------------------------------------------------------------------------------- */

/* The block of arguments that `extra` names, if it does. */
static fake_arguments
read_arguments(void **pointers, void **extra)
{
    fake_arguments arguments = {.pointers = pointers};
    for (; pointers == NULL && extra != NULL && *extra != CU_LAUNCH_PARAM_END;
         extra += 2) {
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) {
            arguments.block = extra[1];
        }
        else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) {
            memcpy(&arguments.block_size, extra[1], sizeof(size_t));
        }
    }
    return arguments;
}

int
fake_function_launch_locked(const void *function, const fake_shape *shape,
                            void **pointers, void **extra, CUstream stream)
{
    const fake_kernel *kernel = fake_kernel_of_locked(function);
    if (kernel == NULL) {
        (void)fake_violation_locked("%p is no kernel", function);
        return (int)cudaErrorInvalidDeviceFunction;
    }
    if (pointers != NULL && extra != NULL) {
        return (int)cudaErrorInvalidValue;
    }
    fake_arguments arguments = read_arguments(pointers, extra);
    return fake_kernel_launch_locked(kernel, shape, &arguments, stream);
}

static int
launch_locked(const void *function, dim3 grid, dim3 block, void **pointers,
              size_t shared_bytes, cudaStream_t stream)
{
    fake_shape shape = {.grid = {grid.x, grid.y, grid.z},
                        .block = {block.x, block.y, block.z},
                        .shared_bytes = (unsigned)shared_bytes};
    return fake_function_launch_locked(function, &shape, pointers, NULL, stream);
}

/* ---- the runtime's calls -------------------------------------------------------------------------- */

cudaError_t
cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments,
                 size_t shared_bytes, cudaStream_t stream)
{
    RUNTIME_CALL(launch_locked(function, grid, block, arguments, shared_bytes, stream));
}

cudaError_t
cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function,
                    void **arguments)
{
    RUNTIME_CALL(launch_locked(function, config->gridDim, config->blockDim, arguments,
                               config->dynamicSmemBytes, config->stream));
}

cudaError_t
cudaLibraryLoadData(cudaLibrary_t *library, const void *code,
                    enum cudaJitOption *jit_options, void **jit_values,
                    unsigned jit_count, enum cudaLibraryOption *options, void **values,
                    unsigned count)
{
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values;
    (void)count;
    RUNTIME_CALL(load_locked((void **)library, code));
}

cudaError_t
cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name)
{
    RUNTIME_CALL(find_function_locked((void **)kernel, library, name));
}

cudaError_t
cudaLibraryUnload(cudaLibrary_t library)
{
    RUNTIME_CALL(unload_locked(library));
}

static int
describe_locked(struct cudaFuncAttributes *out, const void *function)
{
    if (fake_kernel_of_locked(function) == NULL) {
        return (int)cudaErrorInvalidDeviceFunction;
    }
    memset(out, 0, sizeof(*out));
    out->maxThreadsPerBlock = 1024;
    out->binaryVersion = out->ptxVersion = 90;
    return 0;
}

cudaError_t
cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *function)
{
    RUNTIME_CALL(describe_locked(out, function));
}

/* ---- the driver's calls ----------------------------------------------------------------------------- */

CUresult
cuModuleLoadData(CUmodule *module, const void *image)
{
    CONTEXT_CALL(load_locked((void **)module, image));
}

CUresult
cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count,
                   CUjit_option *options, void **values)
{
    (void)count, (void)options, (void)values;
    CONTEXT_CALL(load_locked((void **)module, image));
}

CUresult
cuModuleUnload(CUmodule module)
{
    CONTEXT_CALL(unload_locked(module));
}

CUresult
cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    CONTEXT_CALL(find_function_locked((void **)function, module, name));
}

CUresult
cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit_options,
                  void **jit_values, unsigned jit_count, CUlibraryOption *options,
                  void **values, unsigned count)
{
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values;
    (void)count;
    DRIVER_CALL(load_locked((void **)library, code));
}

CUresult
cuLibraryUnload(CUlibrary library)
{
    DRIVER_CALL(unload_locked(library));
}

CUresult
cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    DRIVER_CALL(find_function_locked((void **)kernel, library, name));
}

/* One number serves as both. */
static int
same_function_locked(CUfunction *out, CUkernel kernel)
{
    int error = 0;
    const fake_function *function =
        fake_handle_need_locked(FAKE_FUNCTION, kernel, &error);
    if (function != NULL) {
        *out = function->handle;
    }
    return error;
}

CUresult
cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    CONTEXT_CALL(same_function_locked(function, kernel));
}

static int
function_attribute_locked(int *out, CUfunction_attribute attribute, CUfunction function)
{
    int error = 0;
    if (fake_handle_need_locked(FAKE_FUNCTION, function, &error) != NULL) {
        *out = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
    }
    return error;
}

CUresult
cuFuncGetAttribute(int *out, CUfunction_attribute attribute, CUfunction function)
{
    CONTEXT_CALL(function_attribute_locked(out, attribute, function));
}

CUresult
cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
               unsigned block_x, unsigned block_y, unsigned block_z,
               unsigned shared_bytes, CUstream stream, void **arguments, void **extra)
{
    fake_shape shape = {.grid = {grid_x, grid_y, grid_z},
                        .block = {block_x, block_y, block_z},
                        .shared_bytes = shared_bytes};
    CONTEXT_CALL(
        fake_function_launch_locked(function, &shape, arguments, extra, stream));
}

CUresult
cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments,
                 void **extra)
{
    fake_shape shape = {
        .grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
        .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
        .shared_bytes = config->sharedMemBytes};
    CONTEXT_CALL(fake_function_launch_locked(function, &shape, arguments, extra,
                                             config->hStream));
}
