#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

driver_calls driver;

/* One level more, so that the macros of cuda.h are replaced first. */
#define TEXT_OF(name) #name
#define SYMBOL(name) TEXT_OF(name)

void
driver_load(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "vmm_probe: no CUDA driver: %s\n", dlerror());
        exit(2);
    }
#define FIND(name)                                                          \
    *(void **)&driver.call_##name = dlsym(library, SYMBOL(name));           \
    if (driver.call_##name == NULL) {                                       \
        fprintf(stderr, "vmm_probe: the driver has no %s\n", SYMBOL(name)); \
        exit(2);                                                            \
    }
    DRIVER_CALLS(FIND)
#undef FIND
}

void
driver_check(CUresult result, const char *call)
{
    if (result == CUDA_SUCCESS) {
        return;
    }
    const char *name = NULL;
    (void)driver.call_cuGetErrorName(result, &name);
    fprintf(stderr, "vmm_probe: %s failed: %s (%d)\n", call, name ? name : "unknown",
            (int)result);
    exit(1);
}
