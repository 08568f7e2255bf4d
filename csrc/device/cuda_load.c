/* cuda_load.c - finding libcudart, opening it, and saying what is missing.
 *
 * A library that was found ready stays open for the life of the process. One that has
 * all calls but no driver or device behind it stays open, too: the driver may have
 * started threads that live in it.
 */
#include <dlfcn.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/process.h"
#include "device/cuda_internal.h"

#define VARIABLE "GPUMEM_CUDART"

static struct {
    gm_mutex lock;
    gm_cuda_report report GM_GUARDED_BY(lock);
    gm_cuda_calls calls; /* constant once `ready` */
    _Atomic bool ready;
    bool started GM_GUARDED_BY(lock); /* the driver was, in this process */
} cuda = {
    .lock = {.rank = GM_RANK_DEVICE},
};

static const char *const sonames[] = {"libcudart.so.13", "libcudart.so.12"};

/* The driver does not survive a fork; without it the child may begin anew. */
static void
reset_in_child(void) GM_NO_THREAD_ANALYSIS
{
    gm_mutex_init(&cuda.lock, GM_RANK_DEVICE);
    atomic_store(&cuda.ready, false);
    if (cuda.started) {
        cuda.report.state = GM_CUDA_FORKED;
        (void)snprintf(cuda.report.message, sizeof(cuda.report.message),
                       "the parent process has used CUDA, and a forked child cannot: "
                       "start workers with the 'spawn' method of multiprocessing");
    }
}

GM_IN_FORKED_CHILD(reset_in_child);

const gm_cuda_calls *
gm_cuda_calls_ready(void)
{
    return atomic_load_explicit(&cuda.ready, memory_order_acquire) ? &cuda.calls : NULL;
}

/* ---- saying it ------------------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static void
conclude(gm_cuda_report *report, gm_cuda_state state, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(report->message, sizeof(report->message), format, arguments);
    va_end(arguments);
    report->state = state;
}

typedef struct version_text {
    char text[16];
} version_text;

/* 12040 -> "12.4". */
static version_text
version_to_text(int version)
{
    version_text result;
    (void)snprintf(result.text, sizeof(result.text), "%d.%d", version / 1000,
                   version % 1000 / 10);
    return result;
}

/* What to do about an error of the driver's start. */
static void
conclude_from_error(gm_cuda_report *report, cudaError_t error, const char *text)
{
    report->code = (int)error;
    bool no_driver =
        error == cudaErrorStubLibrary ||
        (error == cudaErrorInsufficientDriver && report->driver_version == 0);
    if (no_driver) {
        conclude(
            report, GM_CUDA_NO_DRIVER,
            "there is no NVIDIA driver (libcuda.so.1) that this process can use: "
            "the administrator installs it, or starts the container with access to "
            "the GPU (such as --gpus all)");
    }
    else if (error == cudaErrorInsufficientDriver) {
        conclude(report, GM_CUDA_OLD_DRIVER,
                 "the NVIDIA driver can do CUDA %s, and the runtime %s is newer: the "
                 "administrator updates the driver, or you install an older runtime "
                 "(pip install nvidia-cuda-runtime-cu12)",
                 version_to_text(report->driver_version).text,
                 version_to_text(report->runtime_version).text);
    }
    else if (error == cudaErrorNoDevice || error == cudaErrorInvalidDevice) {
        const char *visible = getenv("CUDA_VISIBLE_DEVICES");
        conclude(report, GM_CUDA_NO_DEVICE,
                 "the driver shows no GPU to this process (%s%s%s): you unset "
                 "CUDA_VISIBLE_DEVICES, or the administrator gives access to one",
                 visible != NULL ? "CUDA_VISIBLE_DEVICES=\"" : "CUDA_VISIBLE_DEVICES",
                 visible != NULL ? visible : " is not set",
                 visible != NULL ? "\"" : "");
    }
    else {
        conclude(
            report, GM_CUDA_BROKEN_DRIVER,
            "the NVIDIA driver does not start: %s (%s, %d). The administrator "
            "looks at it (nvidia-smi, dmesg); after a driver update a reboot helps",
            text, report->name, (int)error);
    }
}

/* ---- opening one ----------------------------------------------------------------- */

/* False with the name of a call that the library lacks. */
static bool
find_calls(void *library, gm_cuda_calls *calls, const char **missing)
{
    *missing = NULL;
    memset(calls, 0, sizeof(*calls));
#define FIND(name)                                  \
    *(void **)&calls->name = dlsym(library, #name); \
    if (calls->name == NULL && *missing == NULL) {  \
        *missing = #name;                           \
    }
    GM_CUDART_MAP(FIND)
#undef FIND
#define FIND_OPTIONAL(name) *(void **)&calls->name = dlsym(library, #name);
    GM_CUDART_OPTIONAL_MAP(FIND_OPTIONAL)
#undef FIND_OPTIONAL
    *(void **)&calls->cuda_get_entry_point = dlsym(library, "cudaGetDriverEntryPoint");
    if (calls->cudaGetDriverEntryPointByVersion == NULL &&
        calls->cuda_get_entry_point == NULL && *missing == NULL) {
        *missing = "cudaGetDriverEntryPoint";
    }
    return *missing == NULL;
}

static void *
find_in_driver(const gm_cuda_calls *calls, const char *symbol)
{
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    void *function = NULL;
    cudaError_t error =
        calls->cudaGetDriverEntryPointByVersion != NULL
            ? calls->cudaGetDriverEntryPointByVersion(
                  symbol, &function, GM_CUDART_OLDEST, cudaEnableLegacyStream, &found)
            : calls->cuda_get_entry_point(symbol, &function, cudaEnableLegacyStream,
                                          &found);
    if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) {
        return NULL;
    }
    return function;
}

/* NULL, or the name of a call that the driver lacks; without the paging calls it goes
 * on. Pre: the driver was started. */
static const char *
find_driver_calls(gm_cuda_calls *calls)
{
    const char *missing = NULL;
    calls->has_paging = true;
#define FIND(name)                                         \
    *(void **)&calls->name = find_in_driver(calls, #name); \
    if (calls->name == NULL && missing == NULL) {          \
        missing = #name;                                   \
    }
    GM_CUDRV_MAP(FIND)
#undef FIND
#define FIND_PAGING(name)                                  \
    *(void **)&calls->name = find_in_driver(calls, #name); \
    calls->has_paging = calls->has_paging && calls->name != NULL;
    GM_CUDRV_PAGING_MAP(FIND_PAGING)
#undef FIND_PAGING
    return missing;
}

/* Starts the driver through the calls and counts the devices. */
static void
start_driver(gm_cuda_calls *calls, gm_cuda_report *report)
{
    (void)calls->cudaDriverGetVersion(&report->driver_version);
    cuda.started = true;
    cudaError_t pending = calls->cudaPeekAtLastError();
    cudaError_t error = calls->cudaGetDeviceCount(&report->devices);
    if (error == cudaSuccess && report->devices == 0) {
        error = cudaErrorNoDevice;
    }
    if (error != cudaSuccess) {
        report->devices = 0;
        const char *name = calls->cudaGetErrorName(error);
        (void)snprintf(report->name, sizeof(report->name), "%s", name);
        conclude_from_error(report, error, calls->cudaGetErrorString(error));
        cuda.started = report->driver_version != 0;
    }
    else {
        const char *missing = find_driver_calls(calls);
        if (missing != NULL) {
            conclude(report, GM_CUDA_OLD_DRIVER,
                     "the NVIDIA driver (CUDA %s) has no %s: the administrator updates "
                     "it",
                     version_to_text(report->driver_version).text, missing);
        }
        else {
            report->state = GM_CUDA_READY;
            report->message[0] = '\0';
        }
    }
    if (pending == cudaSuccess) {
        (void)calls->cudaGetLastError();
    }
}

/* Looks at an open library; takes the handle over. True: the search is over. */
static bool
examine(void *library, const char *path, const char *how, gm_cuda_report *report)
{
    const char *missing;
    gm_cuda_calls calls;
    (void)snprintf(report->path, sizeof(report->path), "%s", path);
    (void)snprintf(report->how, sizeof(report->how), "%s", how);
    if (!find_calls(library, &calls, &missing)) {
        conclude(report, GM_CUDA_BAD_LIBRARY,
                 "%s (%s) is no CUDA runtime that gpumem can use: it has no %s. You "
                 "set " VARIABLE " to a libcudart of CUDA 12 or 13",
                 path, how, missing);
        dlclose(library);
        return false;
    }
    int version = 0;
    if (calls.cudaRuntimeGetVersion(&version) != cudaSuccess ||
        version < GM_CUDART_OLDEST || version >= GM_CUDART_TOO_NEW) {
        conclude(
            report, GM_CUDA_WRONG_VERSION,
            "%s (%s) is the CUDA runtime %s; gpumem works with 12 and 13: you "
            "install one of them (pip install nvidia-cuda-runtime) or set " VARIABLE,
            path, how, version_to_text(version).text);
        report->runtime_version = version;
        dlclose(library);
        return false;
    }
    report->runtime_version = version;
    start_driver(&calls, report);
    cuda.calls = calls;
    return true;
}

/* ---- the search ------------------------------------------------------------------ */

/* The file that the call was loaded from. */
static void
path_of(void *library, const char *fallback, char *out, size_t size)
{
    Dl_info info;
    void *call = dlsym(library, "cudaRuntimeGetVersion");
    bool known = call != NULL && dladdr(call, &info) != 0 && info.dli_fname != NULL;
    (void)snprintf(out, size, "%s", known ? info.dli_fname : fallback);
}

/* Opens and examines; true: the search is over. */
static bool
try_path(const char *path, const char *how, int mode, gm_cuda_report *report)
{
    char where[sizeof(report->path)];
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | mode);
    if (library == NULL) {
        return false;
    }
    path_of(library, path, where, sizeof(where));
    return examine(library, where, how, report);
}

typedef struct loaded_library {
    char path[512]; /* "": none */
} loaded_library;

/* A dl_iterate_phdr visitor: stops at a library that is called libcudart, whatever a
 * wheel has put behind that. */
static int
look_at_loaded(struct dl_phdr_info *info, size_t size, void *argument)
{
    (void)size;
    loaded_library *found = argument;
    const char *name = info->dlpi_name == NULL ? "" : info->dlpi_name;
    const char *base = strrchr(name, '/');
    base = base == NULL ? name : base + 1;
    if (strncmp(base, "libcudart", strlen("libcudart")) != 0) {
        return 0;
    }
    (void)snprintf(found->path, sizeof(found->path), "%s", name);
    return 1;
}

static bool
try_loaded(gm_cuda_report *report)
{
    static const char how[] = "loaded already";
    for (size_t i = 0; i < sizeof(sonames) / sizeof(sonames[0]); i++) {
        if (try_path(sonames[i], how, RTLD_NOLOAD, report)) {
            return true;
        }
    }
    loaded_library found = {""};
    (void)dl_iterate_phdr(look_at_loaded, &found);
    return found.path[0] != '\0' && try_path(found.path, how, RTLD_NOLOAD, report);
}

/* The path in the variable, and nothing else. */
static void
try_named(const char *path, gm_cuda_report *report)
{
    if (try_path(path, VARIABLE, 0, report) || report->state != GM_CUDA_NO_LIBRARY) {
        return;
    }
    const char *why = dlerror();
    (void)snprintf(report->path, sizeof(report->path), "%s", path);
    (void)snprintf(report->how, sizeof(report->how), "%s", VARIABLE);
    conclude(report, GM_CUDA_NO_LIBRARY,
             VARIABLE " is set and cannot be opened: %.400s. You correct or unset it",
             why == NULL ? path : why);
}

/* True: the search is over. */
static bool
search_present(gm_cuda_report *report)
{
    const char *named = getenv(VARIABLE);
    conclude(report, GM_CUDA_NO_LIBRARY,
             "there is no CUDA runtime (libcudart.so.13 or .12) that the loader finds: "
             "you install one (pip install nvidia-cuda-runtime) or set " VARIABLE
             " to its path");
    if (named != NULL && named[0] != '\0') {
        try_named(named, report);
        return true;
    }
    return try_loaded(report);
}

static void
search(const gm_cuda_place *places, size_t count, gm_cuda_report *report)
{
    if (search_present(report)) {
        return;
    }
    for (size_t i = 0; i < count; i++) {
        if (try_path(places[i].path, places[i].how, 0, report)) {
            return;
        }
    }
    for (size_t i = 0; i < sizeof(sonames) / sizeof(sonames[0]); i++) {
        if (try_path(sonames[i], "the loader's path", 0, report)) {
            return;
        }
    }
}

static gm_cuda_state
load(bool present_only, const gm_cuda_place *places, size_t count, gm_cuda_report *out)
{
    gm_process_init();
    gm_mutex_lock(&cuda.lock);
    gm_cuda_report *report = &cuda.report;
    bool settled = atomic_load(&cuda.ready) || report->state == GM_CUDA_FORKED;
    if (!settled) {
        memset(report, 0, sizeof(*report));
        if (present_only) {
            (void)search_present(report);
        }
        else {
            search(places, count, report);
        }
        if (report->state == GM_CUDA_READY) {
            atomic_store_explicit(&cuda.ready, true, memory_order_release);
        }
    }
    gm_cuda_state state = report->state;
    if (out != NULL) {
        *out = *report;
    }
    gm_mutex_unlock(&cuda.lock);
    return state;
}

gm_cuda_state
gm_cuda_load(const gm_cuda_place *places, size_t count, gm_cuda_report *out)
{
    return load(false, places, count, out);
}

gm_cuda_state
gm_cuda_load_present(gm_cuda_report *out)
{
    return load(true, NULL, 0, out);
}
