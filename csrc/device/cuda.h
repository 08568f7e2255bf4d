/* cuda.h - devices of the CUDA runtime, and what was found of CUDA in this process.
 *
 * `libcudart` 12 or 13 is opened when somebody first asks, never before: at the path in
 * GPUMEM_CUDART; else the one that the process has loaded already; else at the places
 * that the caller names; else where the loader finds it. Whatever is missing (library,
 * driver, device) is a state with a sentence that says who can change it, and asking
 * again looks again.
 *
 * A device is opened without touching it: its context is made when memory, a stream or
 * an event is first asked for (or by gm_device_prepare), since a context takes hundreds
 * of megabytes. The caller's current device, its pending error and the capture mode of
 * its thread are the same after every call. A device that was lost (an illegal address,
 * an ECC error) answers GM_DEVICE_LOST to everything but the calls that give something
 * back, which do nothing and succeed.
 *
 * Pages are used only after a probe of the whole sequence (reserve, create, map, grant,
 * fill, read, unmap, release) has passed on the device; else memory comes in whole
 * segments, and gm_cuda_describe says why.
 *
 * Thread-safety: every function. Ownership: gm_cuda_create returns a new reference.
 * Fork: a child of a process that used CUDA cannot use it (GM_FORKED).
 */
#ifndef GM_DEVICE_CUDA_H
#define GM_DEVICE_CUDA_H

#include "device/device.h"

/* X(constant, name, who can change it). The sentence is made when it is found. */
#define GM_CUDA_STATE_MAP(X)                                         \
    X(GM_CUDA_READY, "ready", "nobody")                              \
    X(GM_CUDA_ABSENT, "no backend", "whoever builds gpumem")         \
    X(GM_CUDA_NO_LIBRARY, "no library", "you")                       \
    X(GM_CUDA_BAD_LIBRARY, "bad library", "you")                     \
    X(GM_CUDA_WRONG_VERSION, "wrong version", "you")                 \
    X(GM_CUDA_NO_DRIVER, "no driver", "the administrator")           \
    X(GM_CUDA_OLD_DRIVER, "old driver", "the administrator, or you") \
    X(GM_CUDA_NO_DEVICE, "no device", "you, or the administrator")   \
    X(GM_CUDA_BROKEN_DRIVER, "broken driver", "the administrator")   \
    X(GM_CUDA_FORKED, "forked", "you")

typedef enum gm_cuda_state {
#define GM_CUDA_STATE_ENUM(constant, name, who) constant,
    GM_CUDA_STATE_MAP(GM_CUDA_STATE_ENUM)
#undef GM_CUDA_STATE_ENUM
    GM_CUDA_STATE_COUNT
} gm_cuda_state;

const char *
gm_cuda_state_name(gm_cuda_state state);

const char *
gm_cuda_state_who(gm_cuda_state state);

/* What was found. */
typedef struct gm_cuda_report {
    gm_cuda_state state;
    int runtime_version; /* as 13000; 0: unknown */
    int driver_version;  /* what the driver can do at most; 0: none, or unknown */
    int devices;
    int code;           /* of the runtime, when it failed */
    char name[48];      /* of that code */
    char path[512];     /* of the library; "": none */
    char how[64];       /* it was found */
    char message[1024]; /* one or two sentences; "" when ready */
} gm_cuda_report;

/* A place where the library may be. */
typedef struct gm_cuda_place {
    const char *path;
    const char *how; /* it is known, in words */
} gm_cuda_place;

/* Finds and opens the library unless that was done, and counts the devices. *out (may be
 * NULL) says what came of it. Starts the driver, makes no context. May wait. */
gm_cuda_state
gm_cuda_load(const gm_cuda_place *places, size_t count, gm_cuda_report *out);

/* The same, and the search ends with GPUMEM_CUDART and what is loaded already: whoever
 * would have to look for places learns first whether any are needed. */
gm_cuda_state
gm_cuda_load_present(gm_cuda_report *out);

typedef struct gm_cuda_options {
    int index;           /* cuda:<index>; from 0 to gm_cuda_report.devices - 1 */
    size_t page_size;    /* a power of two, a multiple of the granularity; 0: that */
    bool no_paging;      /* whole segments only */
    bool aliasing;       /* offer GM_CAP_ALIASING, if the probe sees it work */
    bool async_segments; /* segments come from the driver's pool (cudaMallocAsync) */
} gm_cuda_options;

/* GM_UNSUPPORTED when CUDA is not ready (gm_cuda_load says why), GM_FORKED, GM_INVALID
 * for options outside their range, GM_NO_HOST_MEMORY. */
GM_NODISCARD gm_status
gm_cuda_create(const gm_cuda_options *options, gm_device **out);

/* ---- more than the contract asks of a device: all take the CUDA device itself ------ */

typedef struct gm_cuda_description {
    char model[128];
    char bus_id[32];
    int compute_major, compute_minor;
    bool integrated;       /* it shares the machine's memory */
    bool prepared;         /* its context was made */
    size_t granularity;    /* bytes of the driver's smallest page; 0: it has none */
    uint32_t peers;        /* bit n: cuda:n may use this device's memory */
    char no_paging[192];   /* why there are no pages; "" where there are */
    char no_aliasing[192]; /* why a page is not mapped twice at once; "" where it is */
    char lost[192];        /* what the device was lost by; "": it answers */
} gm_cuda_description;

void
gm_cuda_describe(gm_device *device, gm_cuda_description *out);

/* cuda:<peer> may read and write all memory of this device, now and later. Idempotent.
 * GM_UNSUPPORTED when the hardware cannot, GM_INVALID for no other device. A failure may
 * leave some of the memory open to the peer. May wait. */
GM_NODISCARD gm_status
gm_cuda_enable_peer(gm_device *device, int peer);

#endif
