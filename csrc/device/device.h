/* device.h - the contract between gpumem and whatever owns the memory.
 *
 * A backend is one struct of functions (gm_device_ops) over one object (gm_device).
 * The pool knows nothing else of a device: not CUDA, not the host. Four backends
 * implement it: host.c (real memory of this machine), sim.c (addresses without
 * memory, and a GPU that lags behind), cuda.c (the CUDA runtime) and fault.c (wraps
 * any of them and makes chosen calls fail).
 *
 * Memory comes in two kinds:
 *
 *   whole allocations   segment_create -> address, size
 *   pages               address_reserve -> a range of addresses without memory
 *                       page_create     -> a page of memory without an address
 *                       map(address, page), grant, ..., unmap
 *
 *        address range   |-----------------------------------------|
 *        slots           | page 7 |        | page 3 | page 4 |     |
 *                         MAPPED   FREE_VA  MAPPED   MAPPED
 *
 * The page size and the alignment are read from gm_device.info, never a constant.
 * What a backend can do is data (capabilities); a slot it cannot fill is NULL, the
 * inline caller then answers GM_UNSUPPORTED and the pool copes: without paging it
 * works on whole segments.
 *
 * Streams are ordered queues of device work. Work on one stream runs in order, work
 * on two runs in any order unless an event orders it. An event marks the work that
 * stood on its stream when it was recorded. Everything named `_async` here returns
 * before the work is done and reads its operands later, in stream order.
 *
 * Thread-safety: every function may be called from any thread, concurrently, unless
 * it says otherwise. No function calls Python or back into the pool; none is called
 * with a lock of higher rank than GM_RANK_TRACE held. Functions that may wait say so;
 * the caller has released the GIL then.
 * Errors: a gm_status; out-parameters are untouched on failure; a failed call has
 * changed nothing unless it says otherwise. GM_DEVICE_LOST is sticky.
 * Ownership: stated per function. gm_device itself is reference counted.
 * Cost: O(1) driver calls unless stated.
 */
#ifndef GM_DEVICE_DEVICE_H
#define GM_DEVICE_DEVICE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* An address in a device's memory. An integer: the host must not dereference it
 * unless the device has GM_CAP_HOST_ACCESS (use gm_device_host_pointer). 0 is null. */
typedef uint64_t gm_devptr;

/* A page of memory without an address; meaningful to its device alone. 0 is none. */
typedef uint64_t gm_page;

/* A stream as its framework names it (on CUDA the cudaStream_t as an integer): 0 is
 * the device's default stream. The same handle may mean several streams (the
 * per-thread default stream), and two handles one stream (0 and 1 on CUDA); see
 * stream_identity. */
typedef uint64_t gm_stream;

#define GM_DEFAULT_STREAM ((gm_stream)0)

/* In a stream_identity: the handle means another stream in each thread. An identity is
 * never GM_NO_IDENTITY. */
#define GM_IDENTITY_OF_THREAD ((uint64_t)1 << 63)
#define GM_NO_IDENTITY UINT64_MAX

/* A mark in a stream's work; made by event_create. 0 is none. */
typedef uint64_t gm_event;

/* A range of reserved addresses and a segment start at a multiple of this, whatever
 * the page size: the address map (heap/address_map.h) has this granularity. */
#define GM_RANGE_ALIGNMENT ((size_t)2 << 20)

typedef enum gm_device_kind {
    GM_DEVICE_HOST = 0,
    GM_DEVICE_SIM = 1,
    GM_DEVICE_CUDA = 2,
} gm_device_kind;

/* Capabilities: bits of gm_device_info.capabilities. */
enum {
    GM_CAP_PAGING = 1u << 0,      /* the page functions are there */
    GM_CAP_ALIASING = 1u << 1,    /* one page may be mapped at two addresses at once */
    GM_CAP_UNMAP_SYNCS = 1u << 2, /* unmap waits for the device, so it is never cheap */
    GM_CAP_HOST_ACCESS = 1u << 3, /* addresses are pointers of this process */
    GM_CAP_OWN_STREAMS = 1u << 4, /* every stream is ours: an event may be recorded on
                                      any of them at any time */
    GM_CAP_MEMORY = 1u << 5,      /* there is memory behind addresses (not sim) */
    GM_CAP_EXACT_FREE = 1u << 6,  /* memory_info's free bytes are all that can be had
                                     (not on integrated GPUs, where the system gives up
                                     caches of its own on demand) */
};

typedef struct gm_device_info {
    char name[32]; /* "host:0", "sim:0", "cuda:1"; NUL-terminated */
    gm_device_kind kind;
    int index;             /* among the devices of its kind */
    uint32_t capabilities; /* GM_CAP_* */
    size_t total;          /* bytes of memory; the sim device may say SIZE_MAX / 4 */
    size_t page_size;      /* bytes; a power of two; 0 without paging */
    size_t alignment;      /* bytes; addresses of segments are multiples; >= 512 */
} gm_device_info;

/* Calls by kind: the rows of the counters, and what fault.c can fail.
 * X(CONSTANT, name); the name is also the key in testing.device().counters(). */
#define GM_DEVICE_CALL_MAP(X)                             \
    X(GM_CALL_MEMORY_INFO, "memory_info")                 \
    X(GM_CALL_SEGMENT_CREATE, "segment_create")           \
    X(GM_CALL_SEGMENT_DESTROY, "segment_destroy")         \
    X(GM_CALL_ADDRESS_RESERVE, "address_reserve")         \
    X(GM_CALL_ADDRESS_RELEASE, "address_release")         \
    X(GM_CALL_PAGE_CREATE, "page_create")                 \
    X(GM_CALL_PAGE_DESTROY, "page_destroy")               \
    X(GM_CALL_MAP, "map")                                 \
    X(GM_CALL_UNMAP, "unmap")                             \
    X(GM_CALL_GRANT, "grant")                             \
    X(GM_CALL_STREAM_CREATE, "stream_create")             \
    X(GM_CALL_STREAM_DESTROY, "stream_destroy")           \
    X(GM_CALL_STREAM_SYNCHRONIZE, "stream_synchronize")   \
    X(GM_CALL_THREADS_SYNCHRONIZE, "threads_synchronize") \
    X(GM_CALL_STREAM_CAPTURING, "stream_capturing")       \
    X(GM_CALL_EVENT_CREATE, "event_create")               \
    X(GM_CALL_EVENT_DESTROY, "event_destroy")             \
    X(GM_CALL_EVENT_RECORD, "event_record")               \
    X(GM_CALL_EVENT_QUERY, "event_query")                 \
    X(GM_CALL_EVENT_SYNCHRONIZE, "event_synchronize")     \
    X(GM_CALL_STREAM_WAIT, "stream_wait")                 \
    X(GM_CALL_COPY, "copy")                               \
    X(GM_CALL_FILL, "fill")                               \
    X(GM_CALL_PINNED_CREATE, "pinned_create")             \
    X(GM_CALL_PINNED_DESTROY, "pinned_destroy")           \
    X(GM_CALL_PIN, "pin")                                 \
    X(GM_CALL_UNPIN, "unpin")                             \
    X(GM_CALL_LAUNCH, "launch")

typedef enum gm_device_call {
#define GM_DEVICE_CALL_ENUM(constant, name) constant,
    GM_DEVICE_CALL_MAP(GM_DEVICE_CALL_ENUM)
#undef GM_DEVICE_CALL_ENUM
    GM_CALL_COUNT
} gm_device_call;

/* Kept by the backend itself, independent of any allocator above it. */
typedef struct gm_device_counters {
    uint64_t calls[GM_CALL_COUNT]; /* successful and failed */
    uint64_t memory_now;           /* bytes of segments and pages created now */
    uint64_t memory_peak;          /* their high-water mark */
    uint64_t pinned_now;  /* bytes of pinned host memory, created or registered */
    uint64_t mapped_now;  /* bytes that `map` mapped and are mapped now */
    uint64_t address_now; /* bytes that `address_reserve` reserved; segments
                                      are in neither */
} gm_device_counters;

/* Elementwise work for `launch`. The host function does the whole job on one
 * contiguous argument block; a CUDA backend finds its kernel by `name`. */
typedef struct gm_kernel {
    const char *name;
    void (*run_on_host)(const void *arguments);
} gm_kernel;

typedef struct gm_device gm_device;

typedef struct gm_device_ops {
    /* ---- before use ------------------------------------------------------ */

    /* For devices that can be named without being touched: makes it ready, and info and
     * the slots what they stay. Idempotent. NULL: they are so from the start; call it by
     * gm_device_prepare. Every other function that needs it prepares the device itself.
     * May wait. */
    gm_status (*prepare)(gm_device *self);

    /* ---- memory in numbers ---------------------------------------------- */

    /* Bytes free on the device for anybody, and its total. Other processes and other
     * pools count as used. */
    gm_status (*memory_info)(gm_device *self, size_t *free_bytes, size_t *total_bytes);

    /* ---- whole allocations ------------------------------------------------ */

    /* `size` bytes, mapped and ready, at a multiple of GM_RANGE_ALIGNMENT.
     * Pre: size > 0, a multiple of 512. GM_OUT_OF_MEMORY when it does not fit.
     * The caller owns the segment. May wait. */
    gm_status (*segment_create)(gm_device *self, size_t size, gm_devptr *out);

    /* Gives a segment back. Pre: no unfinished work uses it. May wait. A failure
     * means that the memory is lost to us; nobody may use it. */
    gm_status (*segment_destroy)(gm_device *self, gm_devptr address, size_t size);

    /* ---- pages --------------------------------------------------------------- */

    /* A range of addresses without memory, at a multiple of GM_RANGE_ALIGNMENT.
     * Pre: size is a multiple of GM_RANGE_ALIGNMENT and of page_size.
     * GM_NO_ADDRESS when no such range is left (ask for less). Caller owns it. */
    gm_status (*address_reserve)(gm_device *self, size_t size, gm_devptr *out);

    /* Pre: exactly a range from address_reserve, nothing mapped in it. */
    gm_status (*address_release)(gm_device *self, gm_devptr address, size_t size);

    /* A page of page_size bytes; content undefined. GM_OUT_OF_MEMORY when the device
     * is full. The caller owns it. May wait. */
    gm_status (*page_create)(gm_device *self, gm_page *out);

    /* Pre: the page is mapped nowhere. */
    gm_status (*page_destroy)(gm_device *self, gm_page page);

    /* Maps a page at `address`. Pre: the address is a multiple of page_size inside a
     * reserved range, the slot is free; the page is mapped nowhere else unless
     * GM_CAP_ALIASING. Access follows with `grant`. GM_NO_MAPPING when the system's
     * limit of mappings is reached. */
    gm_status (*map)(gm_device *self, gm_devptr address, gm_page page);

    /* Unmaps [address, address + size). Pre: every slot in it is mapped; no
     * unfinished work uses it unless GM_CAP_UNMAP_SYNCS. All or nothing. May wait. */
    gm_status (*unmap)(gm_device *self, gm_devptr address, size_t size);

    /* Makes mapped slots readable and writable. Pre: all mapped. */
    gm_status (*grant)(gm_device *self, gm_devptr address, size_t size);

    /* ---- streams and events ---------------------------------------------------- */

    /* A number that is equal for two (handle, calling thread) exactly when work goes
     * to the same stream. GM_IDENTITY_OF_THREAD is set in it exactly when that is a
     * stream of the calling thread alone, which no other thread can name: an event
     * that another one records by the same handle marks other work. Never fails, never
     * waits; a driver is asked for the number of a stream at most. */
    uint64_t (*stream_identity)(gm_device *self, gm_stream stream);

    gm_status (*stream_create)(gm_device *self, gm_stream *out);

    /* Pre: made by stream_create. Work already queued still runs. */
    gm_status (*stream_destroy)(gm_device *self, gm_stream stream);

    /* Waits until all work on the stream is done, at most timeout_ns (UINT64_MAX: for
     * ever): GM_NOT_READY when the time is over first. */
    gm_status (*stream_synchronize)(gm_device *self, gm_stream stream,
                                    uint64_t timeout_ns);

    /* Waits until the work that stands on every thread's own stream (those with
     * GM_IDENTITY_OF_THREAD) is done, of threads that have ended, too; at most
     * timeout_ns: GM_NOT_READY when the time is over first. May wait for work that
     * comes meanwhile. */
    gm_status (*threads_synchronize)(gm_device *self, uint64_t timeout_ns);

    /* Is a graph being captured on this stream? */
    gm_status (*stream_capturing)(gm_device *self, gm_stream stream, bool *out);

    gm_status (*event_create)(gm_device *self, gm_event *out);
    gm_status (*event_destroy)(gm_device *self, gm_event event);

    /* Marks all work now on `stream`. Recording again moves the mark. Never waits. */
    gm_status (*event_record)(gm_device *self, gm_event event, gm_stream stream);

    /* GM_OK: the work is done (also when never recorded). GM_NOT_READY: not yet. */
    gm_status (*event_query)(gm_device *self, gm_event event);

    /* Waits for the event, at most timeout_ns: GM_NOT_READY when the time is over. */
    gm_status (*event_synchronize)(gm_device *self, gm_event event,
                                   uint64_t timeout_ns);

    /* Later work on `stream` starts after the event. Never waits on the host. */
    gm_status (*stream_wait)(gm_device *self, gm_stream stream, gm_event event);

    /* ---- work -------------------------------------------------------------------- */

    /* Copies n bytes in stream order; either side may be device or pinned/pageable
     * host memory (as an address). Both sides stay valid until the work is done. */
    gm_status (*copy_async)(gm_device *self, gm_devptr destination, gm_devptr source,
                            size_t n, gm_stream stream);

    /* Writes `count` times the `width`-byte element at `pattern` (copied before the
     * call returns). Pre: width is 1, 2, 4, 8 or 16. */
    gm_status (*fill_async)(gm_device *self, gm_devptr destination, const void *pattern,
                            size_t width, size_t count, gm_stream stream);

    /* Runs a kernel in stream order; `arguments` are copied before the call returns.
     * Pre: size <= 256. */
    gm_status (*launch)(gm_device *self, const gm_kernel *kernel, const void *arguments,
                        size_t size, gm_stream stream);

    /* ---- pinned host memory --------------------------------------------------------- */

    /* Page-locked host memory, aligned to 4096. The caller owns it. May wait. */
    gm_status (*pinned_create)(gm_device *self, size_t size, void **out);
    gm_status (*pinned_destroy)(gm_device *self, void *memory, size_t size);

    /* Page-locks memory that somebody else owns. GM_INVALID when it overlaps a
     * registered range. May wait. */
    gm_status (*pin)(gm_device *self, void *memory, size_t size);
    gm_status (*unpin)(gm_device *self, void *memory, size_t size);

    /* ---- the rest ---------------------------------------------------------------------- */

    /* Nanoseconds of the device's own clock; never goes back. The pool reads time
     * from here alone, so that a test's clock is the only clock. */
    uint64_t (*clock_ns)(gm_device *self);

    /* The same clock for a call on every free: cheaper, and up to 10 ms behind. */
    uint64_t (*coarse_clock_ns)(gm_device *self);

    /* Copies the backend's own counters. */
    void (*counters)(gm_device *self, gm_device_counters *out);

    /* ---- what a checked device is told (checker.h); NULL on any other ------------------- */

    /* The bytes begin a new life: a block, used first on the stream of this identity. It
     * is an identity and not a handle, since the thread that tells may not be the one
     * whose own stream it is. Never fails, never waits. */
    void (*note_block)(gm_device *self, gm_devptr address, size_t size,
                       uint64_t identity);

    /* Work on that stream that uses these bytes has been queued up to now. */
    void (*note_use)(gm_device *self, gm_devptr address, size_t size,
                     uint64_t identity);

    /* Frees the object; called once, when the last reference goes. Must not be called
     * by anybody but gm_device_release. */
    void (*close)(gm_device *self);
} gm_device_ops;

/* The head of every backend's object. */
struct gm_device {
    const gm_device_ops *ops;
    gm_device_info info; /* constant after creation, or after `prepare` */
    _Atomic uint32_t references;
    uint32_t generation;             /* gm_process_generation() at creation */
    struct gm_checked_calls *checks; /* checker_device.h; NULL: unchecked */
};

/* Fills the head; references = 1. For backends. */
void
gm_device_init(gm_device *device, const gm_device_ops *ops);

/* Another owner. Returns `device`. */
gm_device *
gm_device_retain(gm_device *device);

/* One owner less; the last one closes the device, unless the process is exiting or
 * was forked: then it is leaked on purpose. Accepts NULL. */
void
gm_device_release(gm_device *device);

/* Before info's capabilities and page size, or a slot of pages, are read. */
GM_NODISCARD static inline gm_status
gm_device_prepare(gm_device *device)
{
    return device->ops->prepare == NULL ? GM_OK : device->ops->prepare(device);
}

/* GM_OK, or why nothing may be asked of this device: GM_FORKED, GM_EXITING. */
GM_NODISCARD gm_status
gm_device_usable(const gm_device *device);

/* The name of a call kind, e.g. "page_create". */
const char *
gm_device_call_name(gm_device_call call);

static inline bool
gm_device_has(const gm_device *device, uint32_t capability)
{
    return (device->info.capabilities & capability) == capability;
}

/* The host's pointer for an address. Pre: GM_CAP_HOST_ACCESS. */
static inline void *
gm_device_host_pointer(gm_devptr address)
{
    return (void *)(uintptr_t)address;
}

#endif
