/* cuda_kinds.h - CUDA devices for tests: the backend over the stand-in of
 * tests/fakecuda, which is opened by the path in GM_TEST_CUDART.
 *
 * The Makefile builds the stand-in and sets the variable; without NVIDIA's headers there
 * is neither, and the tests say that they are left out.
 */
#ifndef GM_TESTS_CUDA_KINDS_H
#define GM_TESTS_CUDA_KINDS_H

#include <dlfcn.h>

#include "../fakecuda/fakecuda.h"
#include "device/cuda.h"
#include "device_kinds.h"

/* A control function of the stand-in: FAKE(fakecuda_reset)(). */
#define FAKE(name) ((__typeof__(&name))fake_function(#name))

static inline const char *
fake_path(void)
{
    const char *path = getenv("GM_TEST_CUDART");
    return path == NULL || *path == '\0' ? NULL : path;
}

/* False: the tests are left out. Else the stand-in has `mebibytes` of memory, starts
 * anew, and is what the backend will open. */
static inline bool
cuda_is_here(const char *mebibytes)
{
    static bool said;
    if (fake_path() == NULL) {
        if (!said) {
            printf("   cuda: left out, there is no GM_TEST_CUDART\n");
        }
        said = true;
        return false;
    }
    CHECK(setenv("GPUMEM_CUDART", fake_path(), 1) == 0);
    CHECK(setenv("FAKECUDA_CAPACITY", mebibytes, 1) == 0);
    CHECK(setenv("FAKECUDA_HOST_ACCESS", "1", 1) == 0);
    CHECK(setenv("FAKECUDA_LAG", "0", 1) == 0);
    return true;
}

typedef void (*fake_any_function)(void);

static inline fake_any_function
fake_function(const char *name)
{
    fake_any_function function;
    void *library = dlopen(fake_path(), RTLD_NOW | RTLD_LOCAL);
    CHECK(library != NULL);
    *(void **)&function = dlsym(library, name);
    CHECK(function != NULL);
    return function;
}

static inline gm_device *
open_cuda(const gm_cuda_options *options)
{
    gm_cuda_report report;
    gm_device *device = NULL;
    if (gm_cuda_load(NULL, 0, &report) != GM_CUDA_READY) {
        check_fail(__FILE__, __LINE__, report.message);
    }
    CHECK_OK(gm_cuda_create(options, &device));
    return device;
}

/* Nothing was done that a GPU would punish, and nothing is left. */
static inline void
check_fake(void)
{
    char text[4096] = "";
    if (FAKE(fakecuda_violations)(text, sizeof(text)) != 0 ||
        FAKE(fakecuda_check_leaks)(text, sizeof(text)) != 0) {
        check_fail(__FILE__, __LINE__, text);
    }
}

#endif
