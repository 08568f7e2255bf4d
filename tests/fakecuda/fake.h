/* fake.h - what the files of the stand-in share: settings, devices, handles, and how a
 * call of the program comes in and goes out.
 *
 * One lock guards everything. A call takes it in fake_enter and drops it in fake_leave;
 * functions that end in _locked need it held. It is given up while a host function or a
 * kernel's twin runs, and while a caller waits.
 *
 * Errors are plain numbers: those of the runtime and of the driver are the same ones.
 * Host memory that runs out ends the process: this is a tool of tests.
 */
#ifndef FAKECUDA_FAKE_H
#define FAKECUDA_FAKE_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fakecuda.h"

#define FAKE_MAX_DEVICES 16

/* A call that breaks a rule for which CUDA has no error of its own; hardware would go on
 * with wrong results. */
#define FAKE_BROKEN_RULE ((int)cudaErrorIllegalState)

typedef struct fake_stream fake_stream;
typedef struct fake_pool fake_pool;

/* ---- settings: the environment, see README.md ------------------------------------- */

typedef enum fake_strictness {
    FAKE_RECORD, /* violations are recorded */
    FAKE_REPORT, /* and written to stderr as they come */
    FAKE_ABORT,  /* and the process ends with FAKE_EXIT_STATUS at its exit */
    FAKE_NOW,    /* the first one aborts */
} fake_strictness;

#define FAKE_EXIT_STATUS 86

typedef struct fake_settings {
    int devices;
    int driver_version; /* 0: there is no driver */
    bool peers;         /* devices can access each other's memory */
    bool vmm;           /* the calls of virtual memory exist */
    bool unmap_syncs;
    bool host_access; /* the program may dereference device pointers */
    bool races;       /* unordered uses of the same bytes are violations */
    bool leaks;       /* what is left at exit is a violation */
    fake_strictness strict;
    size_t capacity; /* bytes of each device */
    size_t granularity;
    size_t address_space; /* bytes that can be reserved in all; 0: no limit */
    size_t poison;        /* fresh memory up to this size is filled with junk */
    size_t depth;         /* a stream that holds more work runs its oldest */
    long lag;
} fake_settings;

extern fake_settings fake_setting;

void
fake_read_settings(void);

/* ---- devices ---------------------------------------------------------------------- */

typedef struct fake_device {
    size_t capacity;
    size_t used;
    size_t used_peak;
    size_t occupied; /* by other processes */
    int lost;        /* the error that every call returns; 0: it works */
    bool in_use;     /* its primary context was made */
    void *context;   /* the handle of that */
    unsigned retains;
    uint32_t peers; /* bit n: this device may access memory of device n */
    int file;       /* its memory, sparse; -1: not yet open */
    uint64_t file_end;
    fake_stream *legacy;  /* the default stream */
    fake_stream *streams; /* all, those with unfinished work after destroy included */
    struct fake_clock
        *past; /* what stood on streams that are gone; owned, may be NULL */
    struct fake_clock *past_blocking; /* on blocking ones */
    fake_pool *default_pool;
    fake_pool *current_pool;
} fake_device;

extern fake_device fake_devices[FAKE_MAX_DEVICES];

/* The calling thread's device; its primary context is made if there is none. */
int
fake_current_device_locked(void);
fake_device *
fake_use_device_locked(int device);

/* Takes that many bytes of the device. False: they are not there. */
bool
fake_charge_locked(int device, size_t bytes);
void
fake_refund_locked(int device, size_t bytes);

/* ---- calls ------------------------------------------------------------------------ */

/* One function of the API; static in it. */
typedef struct fake_call {
    const char *name;
    struct fake_call *next;
    bool listed;
    bool driver;
    uint64_t count;
} fake_call;

/* Counts the call and takes the lock. Non-zero: the call must return this error at once,
 * through fake_leave. */
int
fake_enter(fake_call *call);

/* Drops the lock, remembers the error for cudaGetLastError, returns it. */
int
fake_leave(fake_call *call, int error);

/* The bodies of the API's functions. `expression` runs with the lock held. */
#define FAKE_CALL(type, is_driver, expression)                              \
    do {                                                                    \
        static fake_call here_ = {.name = __func__, .driver = (is_driver)}; \
        int error_ = fake_enter(&here_);                                    \
        if (error_ == 0) {                                                  \
            error_ = (expression);                                          \
        }                                                                   \
        return (type)fake_leave(&here_, error_);                            \
    } while (0)
#define RUNTIME_CALL(expression) FAKE_CALL(cudaError_t, false, expression)
#define DRIVER_CALL(expression) FAKE_CALL(CUresult, true, expression)

/* Of the driver's functions that need a current context. */
#define CONTEXT_CALL(expression)                                           \
    DRIVER_CALL(fake_thread_device < 0 ? (int)cudaErrorDeviceUninitialized \
                                       : (expression))

/* The error of a bad argument unless it holds; for bodies of one expression. */
static inline int
fake_require(bool condition)
{
    return condition ? 0 : (int)cudaErrorInvalidValue;
}

extern pthread_mutex_t fake_lock;

/* Something has run, was released or was lost. */
extern pthread_cond_t fake_changed;

/* The thread runs a host function or a twin: it may make no call. */
extern _Thread_local bool fake_inside_work;

/* The thread's device for the runtime; -1: not chosen. */
extern _Thread_local int fake_thread_device;

/* cuInit was called, or a call of the runtime, which does that by itself. */
extern bool fake_initialised;

/* The version of the runtime that was loaded last; 0: only the driver was. */
extern int fake_loaded_runtime;

/* ---- violations ------------------------------------------------------------------- */

/* Records a violation; the name of the current call comes first. Returns
 * FAKE_BROKEN_RULE. */
int
fake_violation_locked(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The device is lost with that error; waiters learn of it. */
void
fake_lose_locked(int device, int error);

/* ---- handles ---------------------------------------------------------------------- */

/* The numbers that programs hold. The last one that was given back is the next one given
 * out, as the real library may do it. */
typedef enum fake_kind {
    FAKE_STREAM,
    FAKE_EVENT,
    FAKE_GRAPH,
    FAKE_EXEC,
    FAKE_POOL,
    FAKE_PAGE,
    FAKE_CONTEXT,
    FAKE_MODULE,
    FAKE_FUNCTION,
    FAKE_KINDS
} fake_kind;

void *
fake_handle_make_locked(fake_kind kind, void *object);

/* NULL: the handle is not one of this kind, or was destroyed. */
void *
fake_handle_find_locked(fake_kind kind, const void *handle);
void
fake_handle_drop_locked(fake_kind kind, const void *handle);
size_t
fake_handle_count_locked(fake_kind kind);

/* The n-th live object, or NULL when there are no more. */
void *
fake_handle_at_locked(fake_kind kind, size_t n);

/* As find, but a handle that is not live is a violation. *error is set on failure. */
void *
fake_handle_need_locked(fake_kind kind, const void *handle, int *error);

/* ---- host memory ------------------------------------------------------------------ */

/* Zeroed; never NULL. */
void *
fake_allocate(size_t size);
void *
fake_grow(void *memory, size_t size);

/* Appends an element to an array that has `count` of `capacity` elements of `size`
 * bytes. Returns where it is to be written. */
void *
fake_push(void *array_pointer, size_t *count, size_t *capacity, size_t size);

/* ---- life: each file that has state ------------------------------------------------ */

void
fake_handles_reset_locked(void);
void
fake_work_reset_locked(void);
void
fake_memory_reset_locked(void);
void
fake_errors_reset(void);

#endif
