/* host_internal.h - the host device's object, shared by its files alone.
 *
 * host.c makes it and holds the table of functions, host_memory.c has segments and
 * pages, host_window.c where segments lie, host_share.c the capacity that processes
 * share, host_stream.c streams and events, host_queue.c the queues behind them and the
 * work.
 *
 * Note [Host locks]
 * `memory_lock` guards everything about memory and may be held across a system call
 * that maps; `stream_lock` guards streams, events and queues and is never held while a
 * copy, a fill or a kernel runs. Both have GM_RANK_DEVICE and are never held together.
 * The lock of a share (GM_RANK_SHARED) is taken under `memory_lock`.
 *
 * Thread-safety: as device.h says; each lock guards what is marked.
 */
#ifndef GM_DEVICE_HOST_INTERNAL_H
#define GM_DEVICE_HOST_INTERNAL_H

#include "base/list.h"
#include "base/mutex.h"
#include "device/handles.h"
#include "device/host.h"
#include "device/page_book.h"
#include "device/pinned.h"
#include "device/tally.h"

#define HOST_ARGUMENTS_LIMIT 256 /* bytes of a kernel's arguments */
#define HOST_PATTERN_LIMIT 16    /* bytes of a fill's element */

/* ---- capacity shared between processes (host_share.c) ---------------------------- */

typedef struct host_share host_share;

/* Joins the share of that name, or founds it. GM_INVALID for a bad name, and when the
 * others agreed on another capacity; GM_NO_HOST_MEMORY. May wait for another process
 * that joins or leaves. */
GM_NODISCARD gm_status
gm_host_share_join(const char *name, size_t capacity, host_share **out);

/* Gives this member's part back; the last member removes the share. Accepts NULL. */
void
gm_host_share_leave(host_share *share);

/* Sets what this member has. GM_OUT_OF_MEMORY changes nothing. A smaller amount than
 * before always succeeds. */
GM_NODISCARD gm_status
gm_host_share_set(host_share *share, size_t bytes);

/* Bytes that no member has. The parts of processes that died are given back first. */
size_t
gm_host_share_free(host_share *share);

/* ---- streams --------------------------------------------------------------------- */

/* One recording of an event. It outlives the event while a queue needs it. */
typedef struct host_mark {
    uint32_t references;
    bool done;
    gm_list waiters; /* streams whose first piece of work waits for it */
} host_mark;

typedef enum host_work_kind {
    HOST_WORK_COPY,
    HOST_WORK_FILL,
    HOST_WORK_LAUNCH,
    HOST_WORK_RECORD,
    HOST_WORK_WAIT,
} host_work_kind;

typedef struct host_work {
    gm_list link;
    host_work_kind kind;
    union {
        struct {
            gm_devptr destination;
            gm_devptr source;
            size_t size; /* bytes */
        } copy;
        struct {
            gm_devptr destination;
            size_t width; /* bytes */
            size_t count;
            unsigned char pattern[HOST_PATTERN_LIMIT];
        } fill;
        struct {
            void (*run)(const void *arguments);
            _Alignas(16) unsigned char arguments[HOST_ARGUMENTS_LIMIT];
        } launch;
        host_mark *mark; /* a reference; NULL in a wait: nothing to wait for */
    } of;
} host_work;

typedef struct host_stream {
    gm_handle_node node; /* its handle; 0 in the default and per-thread streams */
    gm_list queue;       /* host_work, oldest first */
    size_t waiting;      /* pieces in `queue` */
    uint64_t issued;     /* pieces ever queued */
    uint64_t finished;   /* pieces ever done: the first `finished` of them */
    size_t credit;       /* pieces that may run although it is stalled */
    uint32_t sleepers;   /* threads that synchronise with it */
    bool stalled;
    bool running; /* a thread works its queue off */
    bool capturing;
    bool destroyed;  /* no handle for new work; goes when its queue is empty */
    bool ready;      /* on a list of streams to look at */
    bool awaiting;   /* on the waiters of a mark */
    uint64_t thread; /* of a per-thread stream, else 0 */
    gm_list ready_link;
    gm_list waiter_link;
    gm_list thread_link;
} host_stream;

typedef struct host_event {
    gm_handle_node node;
    host_mark *mark; /* a reference; NULL: never recorded, or done at once */
} host_event;

/* ---- the device ------------------------------------------------------------------ */

typedef struct host_device {
    gm_device head;
    gm_device_ops ops; /* page slots are NULL without paging */
    gm_tally tally;
    gm_pinned pinned;
    bool delayed; /* streams start stalled */
    bool manual_clock;
    int memfd; /* all pages; -1 without paging */
    _Atomic uint64_t manual_ns;
    _Atomic size_t reported_free; /* SIZE_MAX: the truth */
    _Atomic uint32_t capturing_streams;

    gm_mutex memory_lock;
    size_t used GM_GUARDED_BY(memory_lock);     /* bytes of segments and pages */
    size_t occupied GM_GUARDED_BY(memory_lock); /* bytes of "somebody else" */
    host_share *share; /* owned; NULL: the capacity is ours alone */
    gm_page_book book GM_GUARDED_BY(memory_lock);
    gm_intervals segments GM_GUARDED_BY(memory_lock);
    gm_interval window GM_GUARDED_BY(memory_lock); /* size 0: none; Note [Window] */
    gm_intervals gaps GM_GUARDED_BY(memory_lock);  /* of the window; never adjacent */
    bool window_tried GM_GUARDED_BY(memory_lock);

    gm_mutex stream_lock;
    gm_handles streams GM_GUARDED_BY(stream_lock);
    gm_handles events GM_GUARDED_BY(stream_lock);
    host_stream default_stream GM_GUARDED_BY(stream_lock);
    gm_list thread_streams GM_GUARDED_BY(stream_lock); /* with something to keep */
    uint32_t sleepers GM_GUARDED_BY(stream_lock);      /* threads that wait for work */
    _Atomic uint32_t progress; /* futex: moves when work is done and somebody sleeps */
} host_device;

static inline host_device *
host_of(gm_device *self)
{
    return (host_device *)(void *)self;
}

/* Every call starts here: counted, and refused in a child of fork and at exit. */
GM_NODISCARD static inline gm_status
host_enter(host_device *host, gm_device_call call)
{
    GM_TRY(gm_device_usable(&host->head));
    gm_tally_call(&host->tally, call);
    return GM_OK;
}

/* As above for calls that a capture forbids. */
GM_NODISCARD static inline gm_status
host_enter_outside_capture(host_device *host, gm_device_call call)
{
    GM_TRY(host_enter(host, call));
    if (atomic_load_explicit(&host->capturing_streams, memory_order_relaxed) != 0) {
        return GM_CAPTURING;
    }
    return GM_OK;
}

/* ---- host_memory.c: the slots of gm_device_ops that carry these names ------------ */

/* The memfd and the registries. Pre: head.info is complete. */
GM_NODISCARD gm_status
gm_host_memory_init(host_device *host, bool aliasing);

/* Unmaps everything and closes the memfd. */
void
gm_host_memory_destroy(host_device *host);

/* A private mapping at a multiple of `alignment`; NULL with errno when there is none.
 * Pre: `size` is a multiple of the kernel's page. */
void *
gm_host_map_aligned(size_t size, size_t alignment, int protection);

/* Why the kernel refused a mapping, by errno. */
gm_status
gm_host_mapping_status(void);

gm_status
gm_host_memory_info(gm_device *self, size_t *free_bytes, size_t *total_bytes);
gm_status
gm_host_segment_create(gm_device *self, size_t size, gm_devptr *out);
gm_status
gm_host_segment_destroy(gm_device *self, gm_devptr address, size_t size);
gm_status
gm_host_address_reserve(gm_device *self, size_t size, gm_devptr *out);
gm_status
gm_host_address_release(gm_device *self, gm_devptr address, size_t size);
gm_status
gm_host_page_create(gm_device *self, gm_page *out);
gm_status
gm_host_page_destroy(gm_device *self, gm_page page);
gm_status
gm_host_map(gm_device *self, gm_devptr address, gm_page page);
gm_status
gm_host_unmap(gm_device *self, gm_devptr address, size_t size);
gm_status
gm_host_grant(gm_device *self, gm_devptr address, size_t size);

/* ---- host_window.c --------------------------------------------------------------- */

static inline bool
gm_host_in_window_locked(const host_device *host, gm_devptr address)
    GM_REQUIRES(host->memory_lock)
{
    return address - host->window.address < host->window.size;
}

/* Fresh memory for a segment, or a range of addresses (PROT_NONE), at a multiple of the
 * alignment, which is at least GM_RANGE_ALIGNMENT; NULL with errno when there is none.
 * Pre: `size` is a multiple of the kernel's page. */
void *
gm_host_window_take_locked(host_device *host, size_t size, size_t alignment,
                           int protection) GM_REQUIRES(host->memory_lock);

/* Gives such memory back. A failure changes nothing. */
GM_NODISCARD gm_status
gm_host_window_give_locked(host_device *host, gm_devptr address, size_t size)
    GM_REQUIRES(host->memory_lock);

/* Unmaps the window with all that lies in it. */
void
gm_host_window_destroy(host_device *host);

/* ---- host_queue.c ---------------------------------------------------------------- */

void
gm_host_stream_init(host_stream *stream, bool stalled);

/* Would work queued now run at once? */
bool
gm_host_stream_is_idle(const host_stream *stream);

/* Drops what is still queued; for closing the device. */
void
gm_host_stream_discard(host_stream *stream);

void
gm_host_mark_release(host_mark *mark);

/* Queues a copy of `work`, and runs it before returning when nothing stands before it.
 * Takes over the mark in it on GM_OK. GM_NO_HOST_MEMORY changes nothing. Drops and
 * retakes the lock. */
GM_NODISCARD gm_status
gm_host_queue_locked(host_device *host, host_stream *stream, const host_work *work)
    GM_REQUIRES(host->stream_lock);

/* Runs what may run on the stream, and on all streams that this makes ready. Returns
 * how many pieces this thread ran. Drops and retakes the lock. */
size_t
gm_host_drain_locked(host_device *host, host_stream *stream)
    GM_REQUIRES(host->stream_lock);

/* Frees the record if nobody can need it any more: a destroyed stream without work, a
 * per-thread stream in its first state. */
void
gm_host_stream_settle_locked(host_device *host, host_stream *stream)
    GM_REQUIRES(host->stream_lock);

/* ---- host_stream.c: slots, and the tests' hands on streams ----------------------- */

void
gm_host_streams_init(host_device *host);
void
gm_host_streams_destroy(host_device *host);

gm_status
gm_host_stream_create(gm_device *self, gm_stream *out);
gm_status
gm_host_stream_destroy(gm_device *self, gm_stream handle);
gm_status
gm_host_stream_synchronize(gm_device *self, gm_stream handle, uint64_t timeout_ns);
gm_status
gm_host_threads_synchronize(gm_device *self, uint64_t timeout_ns);
gm_status
gm_host_stream_capturing(gm_device *self, gm_stream handle, bool *out);
gm_status
gm_host_event_create(gm_device *self, gm_event *out);
gm_status
gm_host_event_destroy(gm_device *self, gm_event handle);
gm_status
gm_host_event_record(gm_device *self, gm_event handle, gm_stream stream);
gm_status
gm_host_event_query(gm_device *self, gm_event handle);
gm_status
gm_host_event_synchronize(gm_device *self, gm_event handle, uint64_t timeout_ns);
gm_status
gm_host_stream_wait(gm_device *self, gm_stream stream, gm_event handle);
gm_status
gm_host_copy_async(gm_device *self, gm_devptr destination, gm_devptr source, size_t n,
                   gm_stream stream);
gm_status
gm_host_fill_async(gm_device *self, gm_devptr destination, const void *pattern,
                   size_t width, size_t count, gm_stream stream);
gm_status
gm_host_launch(gm_device *self, const gm_kernel *kernel, const void *arguments,
               size_t size, gm_stream stream);

#endif
