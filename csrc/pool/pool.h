/* pool.h - the caching allocator: when memory moves, and whose it is.
 *
 * A pool hands out blocks of one device's memory and keeps what comes back, so that a
 * program in its steady state makes no device call at all. Start here; pool.c reads in
 * the order of this page, heap/arena.h says where a block goes, device/device.h what
 * is asked of the device.
 *
 *     pool ── lane (one per stream) ─┬─ small arena  (blocks up to 256 KiB)
 *        │                           └─ large arena  (all others)
 *        └── page pool: pages without an address, and the count of reserved bytes
 *
 * Where memory is (bytes; gm_pool_read_stats):
 *
 *     reserved  = used + pending + cached + unplaced
 *     used      in live blocks, rounded to 512
 *     pending   freed, but a recorded stream may still use them
 *     cached    free and mapped in some arena
 *     unplaced  free pages in the page pool
 *     reserved <= limit, always; counted before the device is asked
 *
 * A block belongs to the stream it was allocated on. Freed, it may be handed out
 * again on that stream at once (stream order protects it); memory moves to another
 * stream only when an event says that the old one is done with it. Whoever lets
 * another stream use a block says so by gm_pool_record_stream before freeing it.
 *
 * Note [One handle, many streams]
 * The per-thread default stream (handle 2) is another stream in each thread, and only
 * its own thread can mark it. Blocks of such a stream serve that thread alone, at once
 * as ever. Their memory moves elsewhere when the thread has marked its stream, which
 * its next allocations and frees do once another thread has asked, or when the device
 * says that the work on every thread's own stream is done: that is asked for before an
 * out-of-memory error, by a trim with a timeout and when the pool closes, and is how
 * memory of a thread that has ended comes back. Such a lane goes once its memory and
 * its addresses have (gm_pool_trim with target 0), or when the thread calls
 * gm_pool_stream_retired before it ends.
 *
 * Note [Arena kinds]
 * An arena is elastic or stable. In an elastic one pages come and go. In a stable one
 * a page never moves or leaves while the arena lives: for graph captures, memory that
 * another process or a network card knows by address. The two kinds of one stream are
 * two lanes.
 *
 * Note [Captures]
 * Work that is captured into a graph runs later, each time the graph is replayed, at the
 * addresses it was captured with. While a stream captures, every request on it is served
 * by its stable arena, and no call is made that a capture forbids: nothing is given back
 * or moved, nothing waits, and events that frees would record on the stream are recorded
 * when the capture has ended. Whoever captures says so (gm_pool_capture_begin and _end).
 * A capture that was not declared is noticed by calls that may ask the device anyway,
 * not by the fast path: memory that is cached in the elastic arena may still be handed
 * out then, and a graph must not use that.
 *
 * Note [Pages that move]
 * A free block keeps its pages for the next allocation there. options.steal says when they
 * move to another place of the same stream that misses some: as soon as the pool holds
 * so much more than its peak, always, or never but before a failure (pool/steal.c). Idle
 * pages of other streams are taken in the same moment. No host wait is made for that. What
 * other streams have not finished with is taken with GM_CROSS_STREAM_WAIT alone, before
 * the host would have to wait, behind a wait of the stream that takes it.
 *
 * Note [Page slots]
 * A slot is the place of one page in an arena's addresses. FREE_VA: no page. MAPPED: a
 * page, ours. ZOMBIE: still mapped, but its page was already given elsewhere (aliasing)
 * and an event on its last use is pending; nothing is placed there. A page counts as
 * reserved once, and stays so while a zombie maps it.
 *
 * Thread-safety: every function, from any thread, with or without the GIL. Locks in
 * order: lanes table > lane > captures > page pool > trace (base/mutex.h). No function
 * calls Python. An observer (gm_pool_set_observer) is called with no lock held.
 * Waiting: gm_pool_try_alloc and gm_pool_free never wait and make no memory call.
 * gm_pool_alloc, gm_pool_trim, gm_pool_reserve and gm_pool_close may; call them
 * without the GIL.
 * Ownership: a pool is reference counted and holds a reference on its device. A
 * gm_block is owned by whoever allocated it until gm_pool_free.
 * Fork, exit: in a forked child every call answers GM_FORKED, or does nothing where it
 * answers nothing, and takes no lock; counters read 0, limits read none;
 * once the process is exiting frees do nothing and nothing calls the device.
 */
#ifndef GM_POOL_POOL_H
#define GM_POOL_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "device/device.h"
#include "pool/options.h"
#include "pool/stats.h"

typedef struct gm_pool gm_pool;

/* A live block. Opaque: read it by the gm_block_* functions. */
typedef struct gm_block gm_block;

/* Every address is a multiple of this, every size is rounded up to it. Bytes. */
#define GM_GRANULE ((size_t)512)

/* Blocks of up to this many bytes live in small arenas; with GM_STEAL_ALWAYS also those
 * of up to half a page (docs/decisions/0009-stealing.md). */
#define GM_SMALL_LIMIT ((size_t)256 << 10)

/* No request above this is looked at. 1 EiB; guards every sum of sizes. */
#define GM_SIZE_LIMIT ((size_t)1 << 60)

/* ---- life ------------------------------------------------------------------------- */

/* A pool on `device` (retained). Makes no memory call; `reserve` in the options is
 * done here, may wait, and fails as gm_pool_reserve does. `options` is validated
 * (GM_INVALID) and copied. *out: one reference. */
GM_NODISCARD gm_status
gm_pool_create(gm_device *device, const gm_pool_options *options, gm_pool **out);

gm_pool *
gm_pool_retain(gm_pool *pool);

/* One owner less; the last one closes the pool and frees it. Live blocks hold no
 * reference: the caller keeps the pool while it has blocks. Accepts NULL. */
void
gm_pool_release(gm_pool *pool);

/* Refuses new blocks from now on (GM_CLOSED) and gives back everything that is idle,
 * waiting for pending work up to timeout_ns. Live blocks stay readable and may still
 * be freed; their memory goes back to the device then. Idempotent. */
void
gm_pool_close(gm_pool *pool, uint64_t timeout_ns);

bool
gm_pool_is_closed(const gm_pool *pool);

/* Borrowed while the pool lives. */
gm_device *
gm_pool_device(const gm_pool *pool);

/* A number that no other pool of the process has had. */
uint64_t
gm_pool_id(const gm_pool *pool);

/* ---- blocks ------------------------------------------------------------------------ */

typedef enum gm_arena_kind {
    GM_ARENA_ELASTIC = 0,
    GM_ARENA_STABLE = 1,
} gm_arena_kind;

typedef struct gm_request {
    size_t size;      /* bytes, 1 .. GM_SIZE_LIMIT */
    size_t alignment; /* a power of two up to 1 GiB; 0 or below 512 means 512 */
    gm_stream stream; /* the stream that will use it first */
    gm_arena_kind kind;
    bool by_address;  /* true: the caller keeps the address and frees by
                           gm_pool_free_address; false: it keeps the gm_block */
    uint64_t context; /* the caller's number for where this was asked for (a stack
                           id); kept with the block and in the history. 0: none */
} gm_request;

/* Why a request failed: the numbers that were true when the ladder ended. Bytes. */
typedef enum gm_oom_reason {
    GM_OOM_SHORTAGE = 0,      /* live blocks leave too little on the device */
    GM_OOM_FRAGMENTATION = 1, /* enough is free, but not in one piece we may use */
    GM_OOM_LIMIT = 2,         /* the pool's own limit */
    GM_OOM_HEADROOM = 3,      /* the room that the pool leaves to others */
    GM_OOM_OTHERS = 4,        /* the rest of the device is in other hands */
    GM_OOM_REASON_COUNT
} gm_oom_reason;

typedef struct gm_oom {
    gm_oom_reason reason;
    size_t requested; /* as asked for */
    size_t used;
    size_t cached; /* cached + unplaced */
    size_t pending;
    size_t reserved;
    size_t limit; /* SIZE_MAX: none */
    size_t headroom;
    size_t device_free; /* as the device says; 0 if it did not answer */
    size_t device_total;
    size_t largest_free; /* the largest cached block that this request could use */
    size_t stranded;     /* cached bytes that only other streams' arenas can use now */
} gm_oom;

const char *
gm_oom_reason_name(gm_oom_reason reason);

/* The fast path: takes the lane's lock if it is free, drains the deferred frees, and
 * hands out a cached block. GM_BUSY (lock held by another thread) and GM_MISS (needs
 * the device, or a capture is declared) have changed nothing: release the GIL and call gm_pool_alloc. Other
 * failures: GM_INVALID, GM_CLOSED, GM_FORKED, GM_EXITING. */
GM_NODISCARD gm_status
gm_pool_try_alloc(gm_pool *pool, const gm_request *request, gm_block **out);

/* The whole path: cache, pages, the device, and the out-of-memory ladder (see
 * pool/ladder.c) as far as it needs no Python. On GM_OUT_OF_MEMORY *oom (may be NULL)
 * says why and everything but the counters of failures and flushes is as before. The
 * ladder's waits end after options.oom_wait_ns. Failures of the device come through
 * as they are.
 * While a stream captures a graph there is no ladder: what free pages and new ones cannot
 * serve is GM_OUT_OF_MEMORY at once, and GM_CAPTURING where the device makes no pages
 * then. */
GM_NODISCARD gm_status
gm_pool_alloc(gm_pool *pool, const gm_request *request, gm_block **out, gm_oom *oom);

/* Returns a block. Never waits, never fails: if the lane is busy the block goes onto
 * its deferred list and the next holder of the lock frees it. Streams that were
 * recorded get an event now, or when the capture that forbids it has ended; the block is
 * pending until those are done. The pool is found from the block. Accepts NULL. */
void
gm_pool_free(gm_block *block);

/* Counts as in `oom` a failure that the caller reports to its user after its own
 * rungs (callbacks, collections) did not help either; gm_pool_alloc itself counts
 * nothing. Observers and the history see it. */
void
gm_pool_count_oom(gm_pool *pool, const gm_request *request, const gm_oom *oom);

/* Counts a request that another pool serves instead. */
void
gm_pool_count_fallback(gm_pool *pool);

/* Counts collections that the caller ran for this pool. */
void
gm_pool_count_collection(gm_pool *pool);

/* Finds the live block that starts at `address` in any pool of the process.
 * GM_UNKNOWN_ADDRESS for everything else, a block's middle and a freed block
 * included. The answer is only as good as the caller's ownership of the address.
 * Lock-free. */
GM_NODISCARD gm_status
gm_block_find(gm_devptr address, gm_block **out);

/* Validated free of an address that was allocated with request.by_address; a block
 * that somebody holds by handle cannot be pulled away. GM_UNKNOWN_ADDRESS changes
 * nothing (and is counted in the stats of `pool`, if the caller can name one; NULL
 * otherwise). With `pool` given, a block of another pool is unknown, too. */
GM_NODISCARD gm_status
gm_pool_free_address(gm_pool *pool, gm_devptr address);

/* The block will be used on `stream`, too: its memory is not handed out again before
 * the work that stands on that stream when the block is freed is done. Recording the
 * block's own stream, or the same one twice, does nothing.
 * The calling thread's own stream (handle 2): no other thread can mark it, so only the
 * work that stands there during this call is sure to be covered, unless the same thread
 * frees the block and finds its lane's lock free. Record it after the last use;
 * recording it again moves the mark.
 * GM_NO_HOST_MEMORY; failures of the device come through and change nothing. */
GM_NODISCARD gm_status
gm_pool_record_stream(gm_block *block, gm_stream stream);

gm_devptr
gm_block_address(const gm_block *block);

/* Bytes asked for. */
size_t
gm_block_requested(const gm_block *block);

/* Bytes it takes: requested, rounded up to GM_GRANULE. */
size_t
gm_block_size(const gm_block *block);

gm_stream
gm_block_stream(const gm_block *block);

uint64_t
gm_block_context(const gm_block *block);

/* The pool that it is from; borrowed. */
gm_pool *
gm_block_pool(const gm_block *block);

/* ---- giving back ---------------------------------------------------------------------- */

typedef struct gm_trim_request {
    size_t target; /* stop once reserved <= target; 0: give back all that is idle */
    uint64_t older_than_ns; /* only memory that has been free for that long; 0: any */
    bool one_stream;        /* only the lanes of `stream` */
    gm_stream stream;
    uint64_t timeout_ns; /* wait that long, in all, for unfinished work (of `stream`
                            alone with one_stream); 0: do not */
} gm_trim_request;

typedef struct gm_trim_report {
    size_t released;   /* bytes given back to the device */
    size_t referenced; /* bytes still in live blocks */
    size_t skipped;    /* idle bytes that stay: work unfinished, partly used pages,
                          stable arenas, a capture, or too young */
    size_t pending;    /* of skipped: for unfinished work */
    bool capturing;    /* nothing was done because a stream captures a graph */
} gm_trim_report;

/* Gives idle memory back to the device. Partial success is success; a device failure
 * is returned after the report was filled. */
GM_NODISCARD gm_status
gm_pool_trim(gm_pool *pool, const gm_trim_request *request, gm_trim_report *out);

/* Takes pages (or one segment) from the device until reserved >= `size`, so that later
 * blocks find them. All or nothing: GM_OUT_OF_MEMORY with *oom filled (may be NULL). */
GM_NODISCARD gm_status
gm_pool_reserve(gm_pool *pool, size_t size, gm_oom *oom);

/* The stream is about to be destroyed (or was): its lanes' memory becomes available
 * to all once its last work is done, and the lane is dissolved when its last block is
 * freed. A later stream of the same identity has nothing to do with them. A thread's
 * own stream is retired by that thread. Never waits. */
void
gm_pool_stream_retired(gm_pool *pool, gm_stream stream);

/* Looks at pending frees and deferred frees now; never waits. */
void
gm_pool_poll(gm_pool *pool);

/* ---- captures ---------------------------------------------------------------------------- */

/* The stream is about to capture a graph (Note [Captures]). Say so before its first
 * captured call, when no other thread is in a call on this stream. Captures on several
 * streams may be under way at once. A stream that joins this one's capture need not be
 * declared: while a capture is, the device is asked about every other stream that
 * allocates. A thread's own stream is declared by that thread.
 *
 * What a capture allocates comes from free pages or from the device, never from what the
 * stream has cached in its elastic arena: trim or reserve before. Its memory stays in the
 * stable arena of the stream, also once it is freed: the graph writes there at each
 * replay. The next capture on the stream is served from the same memory, so graphs
 * captured on one stream are replayed in the order of their captures, and never at once.
 * Blocks that were asked for as GM_ARENA_STABLE come from there, too: ask for none on a
 * stream whose graphs live. All of it goes back when the stream has retired, or the pool
 * is closed, and its last block is freed.
 *
 * GM_INVALID: a capture is declared on this stream already. GM_NO_HOST_MEMORY; as for an
 * allocation GM_CLOSED, GM_FORKED, GM_EXITING. Never waits. */
GM_NODISCARD gm_status
gm_pool_capture_begin(gm_pool *pool, gm_stream stream);

/* The capture on this stream has ended, or failed: frees that waited for that get their
 * events now, and what was put off is done. Also after the pool was closed: its memory
 * goes back then. gm_pool_stream_retired ends a capture as well.
 * GM_INVALID: none is declared. GM_FORKED, GM_EXITING. Never waits. */
GM_NODISCARD gm_status
gm_pool_capture_end(gm_pool *pool, gm_stream stream);

/* ---- limits ---------------------------------------------------------------------------- */

/* SIZE_MAX: none. A limit below what is reserved holds from the next growth on. */
void
gm_pool_set_limit(gm_pool *pool, size_t limit);

size_t
gm_pool_limit(const gm_pool *pool);

/* A copy of the options in force. */
void
gm_pool_read_options(const gm_pool *pool, gm_pool_options *out);

/* Changes the options that may change while the pool lives: limit, headroom,
 * cross_stream, yields, gc_on_pressure, oom_wait_ns. GM_INVALID for bad values, and when
 * max_split, steal or decay differ; nothing changed then. */
GM_NODISCARD gm_status
gm_pool_change_options(gm_pool *pool, const gm_pool_options *options);

/* ---- looking inside ----------------------------------------------------------------------- */

/* All counters, summed over lanes. Drains deferred frees first; takes each lane's
 * lock in turn (waits for short critical sections only). */
void
gm_pool_read_stats(gm_pool *pool, gm_pool_stats *out);

/* Peaks become current values; nothing else changes. */
void
gm_pool_reset_peaks(gm_pool *pool);

/* Cumulative counters become 0; currents and peaks stay. */
void
gm_pool_reset_accumulated(gm_pool *pool);

typedef enum gm_block_state {
    GM_BLOCK_FREE = 0,
    GM_BLOCK_USED = 1,
    GM_BLOCK_PENDING = 2,
} gm_block_state;

typedef struct gm_segment_view {
    gm_devptr address;
    size_t size; /* bytes of a run of mapped pages, or a whole segment */
    gm_stream stream;
    gm_arena_kind kind;
    bool small;
    bool paged;
    size_t first_block; /* index into blocks */
    size_t block_count;
    size_t used;
    size_t requested;
    size_t active; /* used + pending */
} gm_segment_view;

typedef struct gm_block_view {
    gm_devptr address;
    size_t size;      /* bytes inside its segment */
    size_t requested; /* 0 for free ones */
    gm_block_state state;
    uint64_t context;
} gm_block_view;

/* A copy of the whole state; each lane is consistent in itself. */
typedef struct gm_pool_view {
    gm_segment_view *segments;
    size_t segment_count;
    gm_block_view *blocks;
    size_t block_count;
    size_t unplaced; /* bytes in the page pool */
} gm_pool_view;

GM_NODISCARD gm_status
gm_pool_view_create(gm_pool *pool, gm_pool_view *out);

void
gm_pool_view_destroy(gm_pool_view *view);

/* Walks everything and re-derives every invariant: blocks are contiguous and
 * disjoint, no two free neighbours, every index entry and bitmap bit, page slots,
 * counters, reserved. GM_OK, or GM_INVALID with one line in `text`. Cost: O(blocks +
 * pages). */
GM_NODISCARD gm_status
gm_pool_check(gm_pool *pool, char *text, size_t text_size);

/* Number of entries in the free indexes and number of lanes: for tests of growth. */
void
gm_pool_read_sizes(gm_pool *pool, size_t *free_blocks, size_t *index_entries,
                   size_t *lanes, size_t *metadata_bytes);

/* ---- history and observers ------------------------------------------------------------------ */

typedef enum gm_trace_action {
    GM_TRACE_ALLOC = 0,
    GM_TRACE_FREE_REQUESTED = 1,
    GM_TRACE_FREE_COMPLETED = 2,
    GM_TRACE_SEGMENT_MAP = 3, /* pages or a segment came */
    GM_TRACE_SEGMENT_UNMAP = 4,
    GM_TRACE_OOM = 5,
    GM_TRACE_SNAPSHOT = 6,
    GM_TRACE_ACTION_COUNT
} gm_trace_action;

typedef struct gm_trace_entry {
    uint64_t time_ns;  /* the device's clock */
    gm_devptr address; /* OOM: device free bytes */
    size_t size;       /* bytes */
    gm_stream stream;
    uint64_t context;
    gm_trace_action action;
} gm_trace_entry;

/* Keeps the newest `max_entries` events from now on; 0 stops and forgets. */
GM_NODISCARD gm_status
gm_pool_record_history(gm_pool *pool, size_t max_entries);

/* Copies up to `capacity` entries, oldest first, to `out` (may be NULL when capacity is
 * 0). *count: entries held; *dropped: entries lost since recording began; *limit: 0
 * when not recording. */
void
gm_pool_read_history(gm_pool *pool, gm_trace_entry *out, size_t capacity, size_t *count,
                     uint64_t *dropped, size_t *limit);

void
gm_pool_clear_history(gm_pool *pool);

/* Called after each alloc, free request and OOM, with no lock held, on the thread that
 * caused it. One observer per pool; NULL removes it. An observer that is running on
 * another thread may still finish after this returns. */
typedef void (*gm_pool_observer)(void *argument, gm_pool *pool,
                                 const gm_trace_entry *entry);

void
gm_pool_set_observer(gm_pool *pool, gm_pool_observer observer, void *argument);

/* Called with no lock held when something went wrong that could not be returned (a
 * device call failed inside a free). One per process; NULL: silent. */
typedef void (*gm_report_hook)(gm_status status, const char *what);

void
gm_set_report_hook(gm_report_hook hook);

/* ---- the process's pools --------------------------------------------------------------------- */

/* Calls `visit` for each open pool of this process, each retained during its call, no
 * lock held. Order of creation. */
void
gm_pools_visit(void (*visit)(gm_pool *pool, void *argument), void *argument);

#endif
