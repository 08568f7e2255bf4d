/* cuda_internal.h - the CUDA device's object, shared by its files alone.
 *
 * cuda_load.c finds the runtime and the driver's calls; cuda.c makes the device and
 * holds the table of functions; cuda_call.c is how a call goes in and comes out, with
 * what errors mean; cuda_memory.c has segments, pinned memory and work, cuda_pages.c
 * pages and peers, cuda_probe.c what is tried before there are any, cuda_stream.c streams
 * and events.
 *
 * Note [A call of the driver]
 * Between gm_cuda_enter and gm_cuda_leave the device's primary context is current and
 * the thread's capture mode is relaxed; both are put back. The context is set by the
 * driver and not by cudaSetDevice, which makes a context on the device that it sets:
 * going back to a device that the program has only named would take its memory. An error
 * that the program has pending stays pending; one of ours is cleared, unless the program
 * had one (a runtime keeps the newest alone).
 *
 * Note [CUDA locks]
 * `setup_lock` guards the way from "named" to "ready"; `memory_lock` segments and pages,
 * and is held across the driver's calls for pages; `pinned_lock` and `stream_lock` guard
 * registries. All have GM_RANK_DEVICE and are never held together.
 *
 * Thread-safety: as device.h says; each lock guards what is marked.
 */
#ifndef GM_DEVICE_CUDA_INTERNAL_H
#define GM_DEVICE_CUDA_INTERNAL_H

#include <stdbool.h>

#include "base/mutex.h"
#include "device/cuda.h"
#include "device/cudart.h"
#include "device/handles.h"
#include "device/intervals.h"
#include "device/page_book.h"
#include "device/tally.h"

/* Devices that may share their memory with each other. */
#define CUDA_PEERS_LIMIT 32

typedef enum cuda_phase {
    CUDA_NAMED, /* no context yet */
    CUDA_PREPARED,
    CUDA_LOST,
} cuda_phase;

typedef struct cuda_event {
    gm_handle_node node;
    cudaEvent_t event;
    _Atomic bool recorded; /* since it was handed out; before, it is done */
} cuda_event;

/* What the probe has made and not yet taken apart. */
typedef struct cuda_probe {
    size_t size;       /* bytes of the page */
    CUdeviceptr range; /* two slots; 0: not reserved */
    CUmemGenericAllocationHandle page;
    bool has_page;
    unsigned mapped; /* bit n: slot n */
    cudaStream_t stream;
    const char *step; /* the last one that was tried */
} cuda_probe;

typedef struct cuda_device {
    gm_device head;
    gm_device_ops ops; /* page slots are NULL without paging */
    gm_tally tally;
    const gm_cuda_calls *cuda; /* borrowed for ever */
    gm_cuda_options options;
    CUdevice device;
    size_t granularity; /* bytes; 0 without paging */

    gm_mutex setup_lock;
    _Atomic uint32_t phase;   /* a cuda_phase; moves forward only */
    CUcontext context;        /* constant from CUDA_PREPARED on */
    cudaStream_t pool_stream; /* of cudaMallocAsync; constant as above; 0: unused */
    cuda_probe probe GM_GUARDED_BY(setup_lock); /* what is left of it; mostly nothing */
    char no_paging[192] GM_GUARDED_BY(setup_lock);
    char no_aliasing[192] GM_GUARDED_BY(setup_lock);
    char lost[192] GM_GUARDED_BY(setup_lock);
    cudaError_t lost_code GM_GUARDED_BY(setup_lock);

    gm_mutex memory_lock;
    gm_intervals segments GM_GUARDED_BY(memory_lock); /* data: what cudaFree gets */
    gm_page_book book GM_GUARDED_BY(memory_lock);
    CUmemGenericAllocationHandle *pages GM_GUARDED_BY(memory_lock); /* by number */
    size_t pages_capacity GM_GUARDED_BY(memory_lock);
    CUmemAccessDesc access[CUDA_PEERS_LIMIT] GM_GUARDED_BY(memory_lock);
    size_t access_count GM_GUARDED_BY(memory_lock); /* our own device is the first */

    gm_mutex pinned_lock;
    gm_intervals pinned GM_GUARDED_BY(pinned_lock); /* data: not NULL when made here */

    gm_mutex stream_lock;
    gm_intervals streams GM_GUARDED_BY(stream_lock); /* made here; data: nothing */
    gm_handles events GM_GUARDED_BY(stream_lock);
    cudaEvent_t *spares GM_GUARDED_BY(stream_lock); /* events that nobody has */
    size_t spare_count GM_GUARDED_BY(stream_lock);
    size_t spare_capacity GM_GUARDED_BY(stream_lock); /* room for every live event */
} cuda_device;

static inline cuda_device *
cuda_of(gm_device *self)
{
    return (cuda_device *)(void *)self;
}

/* The runtime's and the driver's errors are the same numbers. */
static inline cudaError_t
cuda_error(CUresult result)
{
    return (cudaError_t)result;
}

/* ---- cuda_load.c ----------------------------------------------------------------- */

/* The calls, once CUDA is ready; else NULL. */
const gm_cuda_calls *
gm_cuda_calls_ready(void);

/* ---- cuda_call.c ----------------------------------------------------------------- */

typedef struct cuda_call {
    CUcontext before; /* was current */
    bool switched;
    cudaError_t pending;
    enum cudaStreamCaptureMode mode; /* was the thread's */
} cuda_call;

/* The context of the device is current from now on. A failure leaves all as it was. */
GM_NODISCARD cudaError_t
gm_cuda_switch(const cuda_device *self, CUcontext context, cuda_call *call);
void
gm_cuda_switch_back(const cuda_device *self, const cuda_call *call, cudaError_t result);

/* Counts the call, makes the device ready and switches to it. A failure has the words
 * noted and leaves nothing to undo. GM_DEVICE_LOST: also for calls that give back, which
 * forget what they were given and answer GM_OK. */
GM_NODISCARD gm_status
gm_cuda_enter(cuda_device *self, gm_device_call kind, cuda_call *call);

/* Switches back and says what `result` means; the words of a failure are noted, a lost
 * device is remembered. `name`: of the call, such as "cudaMalloc". */
GM_NODISCARD gm_status
gm_cuda_leave(cuda_device *self, const cuda_call *call, cudaError_t result,
              const char *name);

/* What the error means to the program, and nothing else. */
gm_status
gm_cuda_status(cudaError_t error);

/* Notes the words of a failure and remembers a lost device. Returns the status. */
gm_status
gm_cuda_fail(cuda_device *self, cudaError_t error, const char *name);

/* ---- cuda.c ---------------------------------------------------------------------- */

/* Makes the context and probes, once. */
GM_NODISCARD gm_status
gm_cuda_prepare(gm_device *self);

/* ---- cuda_probe.c ---------------------------------------------------------------- */

/* Runs the whole sequence on the device. Pre: its context is current. False: why not is
 * in no_paging. Why no page can be mapped twice is in no_aliasing. */
bool
gm_cuda_probe_locked(cuda_device *self) GM_REQUIRES(self->setup_lock);

/* Takes apart what a probe had to leave. Pre: the context is current. False: something
 * failed. */
bool
gm_cuda_probe_end(cuda_device *self);

/* ---- cuda_pages.c ---------------------------------------------------------------- */

/* Page size and granularity, or why there are none. Pre: head.info.total is set. No
 * context is needed. */
GM_NODISCARD gm_status
gm_cuda_pages_init(cuda_device *self);

/* What pages are made of, and that device's right to use one. */
CUmemAllocationProp
gm_cuda_page_kind(const cuda_device *self);
CUmemAccessDesc
gm_cuda_access_of(int device);

/* No pages: the slots become NULL. */
void
gm_cuda_pages_renounce(cuda_device *self);

/* Unmaps and releases whatever is left. Pre: the context is current, nobody uses it. */
void
gm_cuda_pages_destroy(cuda_device *self);

gm_status
gm_cuda_address_reserve(gm_device *self, size_t size, gm_devptr *out);
gm_status
gm_cuda_address_release(gm_device *self, gm_devptr address, size_t size);
gm_status
gm_cuda_page_create(gm_device *self, gm_page *out);
gm_status
gm_cuda_page_destroy(gm_device *self, gm_page page);
gm_status
gm_cuda_map(gm_device *self, gm_devptr address, gm_page page);
gm_status
gm_cuda_unmap(gm_device *self, gm_devptr address, size_t size);
gm_status
gm_cuda_grant(gm_device *self, gm_devptr address, size_t size);

/* ---- cuda_memory.c --------------------------------------------------------------- */

/* Frees whatever is left. Pre: as above. */
void
gm_cuda_memory_destroy(cuda_device *self);

gm_status
gm_cuda_memory_info(gm_device *self, size_t *free_bytes, size_t *total_bytes);
gm_status
gm_cuda_segment_create(gm_device *self, size_t size, gm_devptr *out);
gm_status
gm_cuda_segment_destroy(gm_device *self, gm_devptr address, size_t size);
gm_status
gm_cuda_pinned_create(gm_device *self, size_t size, void **out);
gm_status
gm_cuda_pinned_destroy(gm_device *self, void *memory, size_t size);
gm_status
gm_cuda_pin(gm_device *self, void *memory, size_t size);
gm_status
gm_cuda_unpin(gm_device *self, void *memory, size_t size);
gm_status
gm_cuda_copy_async(gm_device *self, gm_devptr destination, gm_devptr source, size_t n,
                   gm_stream stream);
gm_status
gm_cuda_fill_async(gm_device *self, gm_devptr destination, const void *pattern,
                   size_t width, size_t count, gm_stream stream);

/* ---- cuda_stream.c --------------------------------------------------------------- */

void
gm_cuda_streams_init(cuda_device *self);

/* Destroys streams and events. Pre: as above, or there is no context. */
void
gm_cuda_streams_destroy(cuda_device *self);

uint64_t
gm_cuda_stream_identity(gm_device *self, gm_stream stream);
gm_status
gm_cuda_stream_create(gm_device *self, gm_stream *out);
gm_status
gm_cuda_stream_destroy(gm_device *self, gm_stream stream);
gm_status
gm_cuda_stream_synchronize(gm_device *self, gm_stream stream, uint64_t timeout_ns);
gm_status
gm_cuda_threads_synchronize(gm_device *self, uint64_t timeout_ns);
gm_status
gm_cuda_stream_capturing(gm_device *self, gm_stream stream, bool *out);
gm_status
gm_cuda_event_create(gm_device *self, gm_event *out);
gm_status
gm_cuda_event_destroy(gm_device *self, gm_event event);
gm_status
gm_cuda_event_record(gm_device *self, gm_event event, gm_stream stream);
gm_status
gm_cuda_event_query(gm_device *self, gm_event event);
gm_status
gm_cuda_event_synchronize(gm_device *self, gm_event event, uint64_t timeout_ns);
gm_status
gm_cuda_stream_wait(gm_device *self, gm_stream stream, gm_event event);

#endif
