/* modules.c - where kernels come from: modules and libraries of the driver and the
 * runtime. registration.c has what nvcc adds.
 *
 * Nothing in an image is run. It must look like one, and hold the kernel's name as far as
 * that can be read; the kernel's host twin is found by the name.
 */
#include <ctype.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

/* ---- images ------------------------------------------------------------------------------------- */

typedef struct fake_module {
    void *handle;
    char *text; /* owned: PTX, or a whole ELF image; NULL: it cannot be read */
    size_t size;
    bool elf;
} fake_module;

#define ELF_MAGIC 0x464c457fu
#define FATBIN_MAGIC 0xba55ed50u
#define WRAPPER_MAGIC 0x466243b1u

static uint32_t
magic_of(const void *image)
{
    uint32_t magic;
    memcpy(&magic, image, sizeof(magic));
    return magic;
}

/* The section headers stand last, or the program headers behind them. */
static size_t
elf_size(const void *image)
{
    Elf64_Ehdr header;
    memcpy(&header, image, sizeof(header));
    size_t sections = header.e_shoff + (size_t)header.e_shnum * header.e_shentsize;
    size_t programs = header.e_phoff + (size_t)header.e_phnum * header.e_phentsize;
    return sections > programs ? sections : programs;
}

static int
load_locked(void **out, const void *image)
{
    if (out == NULL || image == NULL) {
        return (int)cudaErrorInvalidValue;
    }
    uint32_t magic = magic_of(image);
    bool opaque = magic == FATBIN_MAGIC || magic == WRAPPER_MAGIC;
    bool elf = magic == ELF_MAGIC;
    if (!opaque && !elf && strstr(image, ".version") == NULL) {
        return (int)cudaErrorInvalidKernelImage;
    }
    fake_module *module = fake_allocate(sizeof(*module));
    if (!opaque) {
        module->elf = elf;
        module->size = elf ? elf_size(image) : strlen(image) + 1;
        module->text = memcpy(fake_allocate(module->size), image, module->size);
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

/* A kernel of an ELF image has a section of its own, ".text.NAME". */
static bool
has_section(const fake_module *module, const char *name)
{
    size_t size = strlen(name) + sizeof(".text.");
    char *section = fake_allocate(size);
    (void)snprintf(section, size, ".text.%s", name);
    bool found = memmem(module->text, module->size, section, size) != NULL;
    free(section);
    return found;
}

/* What cannot be read, a fat binary, has whatever it is asked for. */
static bool
has_kernel(const fake_module *module, const char *name)
{
    return module->text == NULL ||
           (module->elf ? has_section(module, name) : has_entry(module->text, name));
}

static int
find_function_locked(void **out, void *handle, const char *name)
{
    int error = 0;
    const fake_module *module = fake_handle_need_locked(FAKE_MODULE, handle, &error);
    if (module == NULL || out == NULL || name == NULL) {
        return module == NULL ? error : (int)cudaErrorInvalidValue;
    }
    if (!has_kernel(module, name)) {
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

/* Any value is as good as any other here; the kernel must be one. */
cudaError_t
cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value)
{
    (void)attribute, (void)value;
    RUNTIME_CALL(fake_kernel_of_locked(function) == NULL
                     ? (int)cudaErrorInvalidDeviceFunction
                     : 0);
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

/* ---- what is asked of a kernel --------------------------------------------------------------------- */

CUresult
cuKernelGetAttribute(int *out, CUfunction_attribute attribute, CUkernel kernel,
                     CUdevice device)
{
    (void)device;
    DRIVER_CALL(function_attribute_locked(out, attribute, (CUfunction)kernel));
}

/* Any value is as good as any other here; the kernel must be one. */
CUresult
cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    (void)value;
    CONTEXT_CALL(function_attribute_locked(&(int){0}, attribute, function));
}

CUresult
cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config)
{
    (void)config;
    CONTEXT_CALL(function_attribute_locked(&(int){0}, 0, function));
}

/* Parameters are known for kernels with a twin. */
static int
parameter_locked(const void *handle, size_t index, size_t *offset, size_t *size)
{
    int error = 0;
    const fake_function *function =
        fake_handle_need_locked(FAKE_FUNCTION, handle, &error);
    if (function == NULL || index >= function->kernel->count) {
        return function == NULL ? error : (int)cudaErrorInvalidValue;
    }
    *offset = fake_parameter_offset(function->kernel, index);
    if (size != NULL) {
        *size = function->kernel->sizes[index];
    }
    return 0;
}

CUresult
cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *size)
{
    DRIVER_CALL(parameter_locked(kernel, index, offset, size));
}

CUresult
cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *size)
{
    CONTEXT_CALL(parameter_locked(function, index, offset, size));
}
