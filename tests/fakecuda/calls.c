/* calls.c - how a call comes in and goes out: its count, the faults that were ordered
 * for it, devices that are lost, processes that were forked; and violations.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake.h"

#define KEPT_VIOLATIONS 200
#define LINE_SIZE 320

typedef struct fake_fault {
    char name[64];
    uint64_t nth; /* counts down; 0: it is over */
    bool for_ever;
    int error;
} fake_fault;

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t fake_changed = PTHREAD_COND_INITIALIZER;
_Thread_local bool fake_inside_work;
bool fake_initialised;

static fake_call *calls;
static fake_fault *faults;
static size_t fault_count, fault_capacity;
static char (*lines)[LINE_SIZE];
static size_t line_count, line_capacity;
static uint64_t violations;
static bool is_forked;
static _Thread_local const fake_call *current_call;
static _Thread_local int last_error;

/* ---- names ------------------------------------------------------------------------- */

/* The length of a name without what headers add to it. */
static size_t
bare_length(const char *name)
{
    size_t length = strlen(name);
    static const char *const suffixes[] = {"_ptsz", "_ptds", "_v2", "_v3", "_v4"};
    for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
        size_t size = strlen(suffixes[i]);
        if (length > size && strcmp(name + length - size, suffixes[i]) == 0) {
            length -= size;
            i = (size_t)-1; /* several may follow each other: look again */
        }
    }
    return length;
}

static bool
same_name(const char *one, const char *other)
{
    size_t length = bare_length(one);
    return length == bare_length(other) && memcmp(one, other, length) == 0;
}

/* ---- violations --------------------------------------------------------------------- */

int
fake_violation_locked(const char *format, ...)
{
    char text[LINE_SIZE];
    int used = 0;
    if (current_call != NULL) {
        used =
            snprintf(text, sizeof(text), "%.*s: ", (int)bare_length(current_call->name),
                     current_call->name);
    }
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text + used, sizeof(text) - (size_t)used, format, arguments);
    va_end(arguments);
    violations++;
    if (line_count < KEPT_VIOLATIONS) {
        char *line = fake_push(&lines, &line_count, &line_capacity, LINE_SIZE);
        memcpy(line, text, LINE_SIZE);
    }
    if (fake_setting.strict != FAKE_RECORD) {
        (void)fprintf(stderr, "fakecuda: %s\n", text);
    }
    if (fake_setting.strict == FAKE_NOW) {
        abort();
    }
    return FAKE_BROKEN_RULE;
}

uint64_t
fakecuda_violations(char *text, size_t size)
{
    pthread_mutex_lock(&fake_lock);
    uint64_t count = violations;
    size_t used = 0;
    for (size_t i = 0; text != NULL && i < line_count && used < size; i++) {
        used += (size_t)snprintf(text + used, size - used, "%s\n", lines[i]);
    }
    if (text != NULL && size > 0 && used == 0) {
        *text = '\0';
    }
    pthread_mutex_unlock(&fake_lock);
    return count;
}

void
fakecuda_clear_violations(void)
{
    pthread_mutex_lock(&fake_lock);
    violations = 0;
    line_count = 0;
    pthread_mutex_unlock(&fake_lock);
}

/* ---- faults ------------------------------------------------------------------------- */

void
fakecuda_fail(const char *call, uint64_t nth, int for_ever, int error)
{
    pthread_mutex_lock(&fake_lock);
    if (nth == 0) {
        for (size_t i = fault_count; i-- > 0;) {
            if (call == NULL || same_name(faults[i].name, call)) {
                faults[i] = faults[--fault_count];
            }
        }
    }
    else {
        fake_fault *fault =
            fake_push(&faults, &fault_count, &fault_capacity, sizeof(*fault));
        *fault = (fake_fault){.nth = nth, .for_ever = for_ever != 0, .error = error};
        (void)snprintf(fault->name, sizeof(fault->name), "%s", call);
    }
    pthread_mutex_unlock(&fake_lock);
}

/* The error that was ordered for this call, or 0. */
static int
take_fault_locked(const char *name)
{
    for (size_t i = 0; i < fault_count; i++) {
        fake_fault *fault = &faults[i];
        if (fault->nth == 0 || !same_name(fault->name, name)) {
            continue;
        }
        if (fault->nth > 1) {
            fault->nth--;
            continue;
        }
        if (!fault->for_ever) {
            fault->nth = 0;
        }
        return fault->error;
    }
    return 0;
}

/* ---- calls -------------------------------------------------------------------------- */

uint64_t
fakecuda_calls(const char *name)
{
    uint64_t count = 0;
    pthread_mutex_lock(&fake_lock);
    for (const fake_call *call = calls; call != NULL; call = call->next) {
        if (name == NULL || same_name(call->name, name)) {
            count += call->count;
        }
    }
    pthread_mutex_unlock(&fake_lock);
    return count;
}

void
fakecuda_reset_counters(void)
{
    pthread_mutex_lock(&fake_lock);
    for (fake_call *call = calls; call != NULL; call = call->next) {
        call->count = 0;
    }
    for (int i = 0; i < FAKE_MAX_DEVICES; i++) {
        fake_devices[i].used_peak = fake_devices[i].used;
    }
    pthread_mutex_unlock(&fake_lock);
}

/* Is there what every call needs: a driver, new enough, and a device? */
static int
check_driver(const fake_call *call)
{
    if (call->driver) {
        return fake_initialised ? 0 : (int)cudaErrorInitializationError;
    }
    int version = fake_setting.driver_version;
    if (version == 0 || version / 1000 < fake_loaded_runtime / 1000) {
        return (int)cudaErrorInsufficientDriver;
    }
    fake_initialised = true;
    return fake_setting.devices == 0 ? (int)cudaErrorNoDevice : 0;
}

int
fake_enter(fake_call *call)
{
    pthread_mutex_lock(&fake_lock);
    current_call = call;
    if (!call->listed) {
        call->listed = true;
        call->next = calls;
        calls = call;
    }
    call->count++;
    if (fake_inside_work) {
        (void)fake_violation_locked("called from a host function");
        return (int)cudaErrorNotPermitted;
    }
    if (is_forked) {
        (void)fake_violation_locked(
            "called in a forked child of a process that had "
            "already used CUDA");
        return (int)cudaErrorInitializationError;
    }
    int error = check_driver(call);
    if (error == 0) {
        error = take_fault_locked(call->name);
    }
    if (error == 0) {
        int device = fake_thread_device < 0 ? 0 : fake_thread_device;
        error = fake_devices[device].lost;
    }
    return error;
}

/* Declared here for the generated file that alone calls it. */
int
fake_not_supported(const char *name);

/* A function of the runtime that is not modelled. */
int
fake_not_supported(const char *name)
{
    pthread_mutex_lock(&fake_lock);
    if (fake_setting.strict != FAKE_RECORD) {
        (void)fprintf(stderr, "fakecuda: %s is not modelled\n", name);
    }
    pthread_mutex_unlock(&fake_lock);
    last_error = (int)cudaErrorNotSupported;
    return last_error;
}

int
fake_leave(fake_call *call, int error)
{
    if (error != 0 && !call->driver) {
        last_error = error;
    }
    current_call = NULL;
    pthread_mutex_unlock(&fake_lock);
    return error;
}

/* The error of a lost device comes back for ever; any other one is forgotten by asking
 * with `forget`. */
static int
ask_last_error(bool forget)
{
    int device = fake_thread_device < 0 ? 0 : fake_thread_device;
    pthread_mutex_lock(&fake_lock);
    int error = fake_devices[device].lost;
    pthread_mutex_unlock(&fake_lock);
    if (error == 0) {
        error = last_error;
    }
    if (forget) {
        last_error = 0;
    }
    return error;
}

cudaError_t
cudaGetLastError(void)
{
    return (cudaError_t)ask_last_error(true);
}

cudaError_t
cudaPeekAtLastError(void)
{
    return (cudaError_t)ask_last_error(false);
}

/* ---- life --------------------------------------------------------------------------- */

static bool
was_used(void)
{
    for (int i = 0; i < FAKE_MAX_DEVICES; i++) {
        if (fake_devices[i].in_use) {
            return true;
        }
    }
    return false;
}

static void
before_fork(void)
{
    pthread_mutex_lock(&fake_lock);
}

static void
after_fork_in_parent(void)
{
    pthread_mutex_unlock(&fake_lock);
}

static void
after_fork_in_child(void)
{
    is_forked = is_forked || was_used();
    pthread_mutex_unlock(&fake_lock);
}

/* Work that never ran is dropped; that is the program's choice, and no mistake. */
static void
at_exit(void)
{
    if (fake_setting.leaks && !is_forked) {
        char text[1024];
        if (fakecuda_check_leaks(text, sizeof(text)) > 0) {
            pthread_mutex_lock(&fake_lock);
            (void)fake_violation_locked("left at exit:\n%s", text);
            pthread_mutex_unlock(&fake_lock);
        }
    }
    if (violations > 0 && fake_setting.strict == FAKE_ABORT) {
        (void)fprintf(stderr, "fakecuda: %llu violations\n",
                      (unsigned long long)violations);
        (void)fflush(NULL);
        _exit(FAKE_EXIT_STATUS);
    }
}

__attribute__((constructor)) static void
begin(void)
{
    fake_read_settings();
    for (int i = 0; i < FAKE_MAX_DEVICES; i++) {
        fake_devices[i] = (fake_device){.capacity = fake_setting.capacity, .file = -1};
    }
    (void)pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    (void)atexit(at_exit);
}

void
fake_errors_reset(void)
{
    fault_count = 0;
    violations = 0;
    line_count = 0;
    last_error = 0;
    for (fake_call *call = calls; call != NULL; call = call->next) {
        call->count = 0;
    }
}
