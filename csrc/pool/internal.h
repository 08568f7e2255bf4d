/* internal.h - the functions that the files of the pool share. No other folder
 * includes it.
 *
 *   objects.h    the structures
 *   pool.c       life, allocate, free: the order of pool.h
 *   fast.c       the path of nearly every allocation and free
 *   lane.c       the two arenas of a stream: cache, pages, release
 *   lanes.c      a pool's table of lanes
 *   source.c     memory of the device for a lane: pages, chunks
 *   steal.c      pages that move from free blocks to where they are missing
 *   marker.c     how far is a lane's stream with what was freed on it?
 *   page_pool.c  pages without an address, and the count of reserved bytes
 *   pending.c    frees that wait for other streams
 *   capture.c    streams that capture a graph
 *   reclaim.c    taking idle memory out of arenas
 *   ladder.c     what is tried before an out-of-memory error
 *   trim.c       giving back, reserving, closing
 *   counters.c   statistics      counting.h   what every call counts
 *   peaks.c      the peaks of several lanes
 *   view.c       a copy of the state
 *   trace.c      history         check.c  invariants
 *   registry.c   the process's pools
 *
 * Note [Two halves of a device call]
 * A device call that may be slow runs under the lock of the lane it is for, never
 * under the page pool's lock, so that other streams go on. Waits hold no lock at all.
 */
#ifndef GM_POOL_INTERNAL_H
#define GM_POOL_INTERNAL_H
#include "base/bits.h"
#include "pool/objects.h"

/* ---- pool.c ---------------------------------------------------------------------- */

/* Some of the attention bits. */
static inline uint32_t
gm_pool_attention(const gm_pool *pool, uint32_t bits)
{
    return atomic_load_explicit(&pool->attention, memory_order_relaxed) & bits;
}

/* The pool of a process that forked this one: its locks may be held by threads that are
 * not here, and nothing of it is touched. */
static inline bool
gm_pool_is_forked(const gm_pool *pool)
{
    return pool->generation != gm_process_generation();
}

/* GM_OK, or why no block may be made: closed, forked, exiting. */
GM_NODISCARD static inline gm_status
gm_pool_usable(const gm_pool *pool)
{
    if (gm_pool_is_forked(pool)) {
        return GM_FORKED;
    }
    if (gm_process_is_exiting()) {
        return GM_EXITING;
    }
    return gm_pool_attention(pool, GM_POOL_CLOSED) != 0 ? GM_CLOSED : GM_OK;
}

/* Validates, and rounds the size up. GM_MISS: one of the attention bits `slow` is set. */
GM_NODISCARD static inline gm_status
gm_pool_open_request(const gm_pool *pool, const gm_request *request, uint32_t slow,
                     size_t *size)
{
    if (gm_pool_is_forked(pool) || gm_process_is_exiting() ||
        gm_pool_attention(pool, GM_POOL_CLOSED | slow) != 0) {
        GM_TRY(gm_pool_usable(pool));
        return GM_MISS;
    }
    if (request->size - 1 >= GM_SIZE_LIMIT || request->alignment > GM_ALIGNMENT_LIMIT ||
        (request->alignment & (request->alignment - 1)) != 0) {
        return GM_INVALID;
    }
    *size = gm_align_up_unchecked(request->size, GM_GRANULE);
    return GM_OK;
}

/* Tells a checked device, history and observer of an allocation. No lock held. */
void
gm_pool_tell_alloc(gm_pool *pool, const gm_request *request, const gm_block *block);

/* Frees a block whose state the caller set to FREEING: nobody else has it. */
void
gm_pool_free_claimed(gm_block *block);

/* Passes a failure that nobody can be told to the report hook. No lock held, except
 * that the hook is documented to touch nothing of ours. */
void
gm_pool_report(gm_status status, const char *what);

/* ---- lanes.c --------------------------------------------------------------------- */

/* The open lane of (stream, kind), made if there is none. Whoever takes its lock asks
 * gm_lane_is again. */
GM_NODISCARD gm_status
gm_lanes_get(gm_pool *pool, gm_stream stream, uint64_t identity, gm_arena_kind kind,
             gm_lane **out);

/* Where the lane of (stream, kind) is remembered, if it is. */
static inline size_t
gm_lane_cache_slot(uint64_t identity, gm_arena_kind kind)
{
    uint64_t mixed = (identity + (uint64_t)kind) * UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(mixed >> 58) & (GM_LANE_CACHE - 1);
}

/* A lane that was the one of (stream, kind), or NULL: ask gm_lane_is under its lock, and
 * gm_lanes_get if it is not. Takes no lock. */
static inline gm_lane *
gm_lanes_peek(gm_pool *pool, uint64_t identity, gm_arena_kind kind)
{
    return atomic_load_explicit(&pool->lane_cache[gm_lane_cache_slot(identity, kind)],
                                memory_order_acquire);
}

static inline bool
gm_lane_is(gm_lane *lane, uint64_t identity, gm_arena_kind kind)
{
    return atomic_load_explicit(&lane->open, memory_order_relaxed) &&
           atomic_load_explicit(&lane->identity, memory_order_relaxed) == identity &&
           atomic_load_explicit(&lane->kind, memory_order_relaxed) == (uint32_t)kind;
}

/* The open lane of (stream, kind), or NULL. Whoever takes its lock asks gm_lane_is. */
gm_lane *
gm_lanes_find(gm_pool *pool, uint64_t identity, gm_arena_kind kind);

/* Calls `visit` for every open lane, its lock held; stops when it returns false. */
void
gm_lanes_visit(gm_pool *pool, bool (*visit)(gm_lane *lane, void *argument),
               void *argument);

/* The same for dissolved lanes as well, whose counts go on. */
void
gm_lanes_visit_all(gm_pool *pool, bool (*visit)(gm_lane *lane, void *argument),
                   void *argument);

/* Dissolves retired lanes whose memory is all idle, and lanes of threads' own streams
 * that have no memory and no addresses: the thread may have ended. */
void
gm_lanes_dissolve(gm_pool *pool);

void
gm_lanes_destroy(gm_pool *pool);

/* ---- lane.c, and fast.c for frees ------------------------------------------------ */

GM_NODISCARD gm_status
gm_lane_create(gm_pool *pool, gm_lane **out);

void
gm_lane_destroy(gm_lane *lane);

/* What an attempt may do for pages that its place misses. */
typedef struct gm_terms {
    bool grow;    /* ask the device also for pages that should be stolen */
    size_t force; /* bytes to steal whatever options.steal says: nothing else is left */
    bool
        borrow; /* of other lanes, too, behind inserted waits: the lanes lock is held */
    uint64_t demand; /* bytes used at the pool's peak, or with this request if more */
} gm_terms;

/* A block from the cache, or with pages or a segment of the device. On
 * GM_OUT_OF_MEMORY *shortage says what was missing. */
GM_NODISCARD gm_status
gm_lane_allocate_locked(gm_lane *lane, const gm_request *request, size_t size,
                        gm_terms terms, gm_shortage *shortage, gm_block **out)
    GM_REQUIRES(lane->lock);

/* A pending block's last event is done: it becomes free. */
void
gm_lane_complete_free_locked(gm_lane *lane, gm_block *block) GM_REQUIRES(lane->lock);

/* Frees what is on the deferred list. */
void
gm_lane_drain_slow_locked(gm_lane *lane) GM_REQUIRES(lane->lock);
static inline void
gm_lane_drain_locked(gm_lane *lane) GM_REQUIRES(lane->lock)
{
    if (!gm_deferred_is_empty(&lane->deferred)) {
        gm_lane_drain_slow_locked(lane);
    }
}

static inline gm_shelf *
gm_shelf_of(gm_arena *arena)
{
    return GM_CONTAINER_OF(arena, gm_shelf, arena);
}

static inline gm_shelf *
gm_block_shelf(const gm_block *block)
{
    return gm_shelf_of(block->chunk->arena);
}

static inline gm_lane *
gm_block_lane(const gm_block *block)
{
    return (gm_lane *)block->chunk->owner;
}

/* ---- source.c: memory of the device for a lane ----------------------------------- */

/* Writes into the history that a piece of addresses has memory, or has none any more. */
void
gm_source_trace_locked(const gm_lane *lane, gm_trace_action action, gm_devptr address,
                       size_t size) GM_REQUIRES(lane->lock);

/* Brings in the pages that a placement misses. All or nothing. */
GM_NODISCARD gm_status
gm_source_fill_locked(gm_lane *lane, gm_arena *arena, const gm_placement *placement,
                      gm_terms terms, gm_shortage *shortage) GM_REQUIRES(lane->lock);

/* A new chunk with room for `size` bytes at `alignment`: addresses without pages, or a
 * whole segment. */
GM_NODISCARD gm_status
gm_source_add_chunk_locked(gm_lane *lane, gm_arena *arena, size_t size,
                           size_t alignment, gm_terms terms, gm_shortage *shortage)
    GM_REQUIRES(lane->lock);

/* Gives an idle chunk's addresses or segment back. */
void
gm_source_drop_chunk_locked(gm_lane *lane, gm_arena *arena, gm_chunk *chunk)
    GM_REQUIRES(lane->lock);

/* Unmaps the mapped slots of a run under a free block; their pages go to the page
 * pool. *bytes grows by what came free. */
GM_NODISCARD gm_status
gm_source_unmap_locked(gm_lane *lane, gm_arena *arena, gm_block *block,
                       size_t first_slot, size_t count, size_t *bytes)
    GM_REQUIRES(lane->lock);

/* ---- page_pool.c ----------------------------------------------------------------- */

void
gm_page_pool_init(gm_pool *pool);

/* Forgets the frames; the pages must be gone, or are leaked. */
void
gm_page_pool_destroy(gm_pool *pool);

/* One page: a free one, or a new one. GM_OUT_OF_MEMORY sets *refusal. */
GM_NODISCARD gm_status
gm_page_pool_take(gm_pool *pool, gm_frame **out, gm_refusal *refusal);

/* Could `pages` pages be had, free ones first? Nothing is asked of the device but how
 * much is free, and nothing changes: a request that cannot be served fails before it
 * has moved memory. GM_OK promises nothing: another process may be faster. */
GM_NODISCARD gm_status
gm_page_pool_foresee(gm_pool *pool, size_t pages, gm_shortage *shortage);

/* Returns a page that nobody owns and whose uses are all done. Zombies that map it need
 * only to be unmapped. */
void
gm_page_pool_give(gm_pool *pool, gm_frame *frame);

/* A page that can be neither used nor destroyed: counted, never used again. */
void
gm_page_pool_quarantine(gm_pool *pool, size_t bytes);

/* Counts a segment of `bytes` before the device is asked for it. GM_OUT_OF_MEMORY when
 * the limit or the head-room forbids it. gm_page_pool_settle follows. */
GM_NODISCARD gm_status
gm_page_pool_charge(gm_pool *pool, size_t bytes, gm_refusal *refusal);

/* The device answered: the segment was had, or not. */
void
gm_page_pool_settle(gm_pool *pool, size_t bytes, bool had);

/* A segment was given back. */
void
gm_page_pool_discharge(gm_pool *pool, size_t bytes);

/* Creates free pages until reserved >= size. All or nothing. */
GM_NODISCARD gm_status
gm_page_pool_grow(gm_pool *pool, size_t size, gm_refusal *refusal);

/* Destroys free pages until reserved <= target or none is left; returns bytes. */
size_t
gm_page_pool_shrink(gm_pool *pool, size_t target, gm_status *status);

/* Free pages in bytes. */
size_t
gm_page_pool_unplaced(gm_pool *pool);

size_t
gm_page_pool_reserved(gm_pool *pool);

/* Memory was given back on purpose; taking it again soon is counted as retaken. */
void
gm_page_pool_note_flush(gm_pool *pool, size_t bytes);

/* ---- pending.c ------------------------------------------------------------------- */

/* Records an event on every stream in the block's use list, except on those of other
 * threads, and files the block with the watches. Pre: block->uses > 0. */
void
gm_pending_file_locked(gm_lane *lane, gm_block *block) GM_REQUIRES(lane->lock);

/* Frees the blocks whose events are done, and marks the lane's stream if that was
 * wanted. */
void
gm_pending_poll_slow_locked(gm_lane *lane) GM_REQUIRES(lane->lock);
static inline void
gm_pending_poll_locked(gm_lane *lane) GM_REQUIRES(lane->lock)
{
    if ((lane->pending_blocks | lane->marks_wanted) != 0) {
        gm_pending_poll_slow_locked(lane);
    }
}

/* The oldest event that a freed block of the lane waits for, or 0. */
gm_event
gm_pending_oldest_locked(gm_lane *lane) GM_REQUIRES(lane->lock);

/* The lane's stream waits for what the pending blocks wait for, on the device: they
 * become free, since whatever uses them next is queued behind. The host does not wait.
 * Returns how many blocks came free. */
size_t
gm_pending_insert_waits_locked(gm_lane *lane) GM_REQUIRES(lane->lock);

/* Adds a stream to a live block, and records the event of a thread's own one. */
GM_NODISCARD gm_status
gm_pending_record_locked(gm_lane *lane, gm_block *block, gm_stream stream,
                         uint64_t identity) GM_REQUIRES(lane->lock);

/* The stream is about to go: one last event covers every later free. */
void
gm_pending_retire_stream_locked(gm_lane *lane, uint64_t identity)
    GM_REQUIRES(lane->lock);

/* Tells a checked device of the uses that end with the block's free. */
void
gm_pending_note_uses_locked(gm_lane *lane, const gm_block *block)
    GM_REQUIRES(lane->lock);

/* Records the marks that are due, where no capture forbids it any more. */
void
gm_pending_mark_due_locked(gm_lane *lane) GM_REQUIRES(lane->lock);

/* ---- capture.c ------------------------------------------------------------------- */

void
gm_captures_init(gm_pool *pool);

void
gm_captures_destroy(gm_pool *pool);

/* Is a capture declared on the stream of this identity? The next function asks it. */
bool
gm_capture_find(gm_pool *pool, uint64_t identity);

/* The same, at no cost while there is none. A stream of another thread is known, too. */
static inline bool
gm_capture_is_declared(gm_pool *pool, uint64_t identity)
{
    return gm_pool_attention(pool, GM_POOL_CAPTURING) != 0 &&
           gm_capture_find(pool, identity);
}

/* Is a capture declared on the lane's own stream? Then the device is asked nothing about
 * it. */
static inline bool
gm_lane_is_declared_locked(const gm_lane *lane) GM_REQUIRES(lane->lock)
{
    return gm_capture_is_declared(
        lane->pool, atomic_load_explicit(&lane->identity, memory_order_relaxed));
}

/* Does the stream capture? Asks the device if that was not declared, except about
 * another thread's own stream: false. */
bool
gm_capture_is_on(gm_pool *pool, gm_stream stream, uint64_t identity);

/* Does a capture forbid giving memory of the lane back, or marking its stream? Any that
 * was declared does; else the device is asked about the lane's stream. Another thread's
 * own one cannot be asked: false. */
bool
gm_lane_is_capturing_locked(gm_lane *lane) GM_REQUIRES(lane->lock);

/* Does any stream of the pool capture? No lock held. */
bool
gm_pool_is_capturing(gm_pool *pool);

/* The declared capture is over, or its stream. False: there was none. */
bool
gm_capture_forget(gm_pool *pool, uint64_t identity);

/* The pool ends: nobody is left to say that its captures are over. */
void
gm_capture_forget_all(gm_pool *pool);

/* ---- reclaim.c ------------------------------------------------------------------- */

typedef struct gm_reclaim {
    size_t target; /* stop after so many bytes; SIZE_MAX: all */
    uint64_t older_than_ns;
    uint64_t now_ns;
    size_t freed;     /* out: bytes of pages moved to the page pool or segments
                               given back */
    gm_status status; /* out: first failure of the device */
} gm_reclaim;

/* Takes idle memory out of one lane's arenas. */
void
gm_reclaim_lane_locked(gm_lane *lane, gm_reclaim *reclaim) GM_REQUIRES(lane->lock);

/* ---- steal.c --------------------------------------------------------------------- */

/* Pages that a steal took while their last use is not done. */
typedef struct gm_loot {
    gm_frame *frames; /* linked, lowest place first */
    size_t count;
    gm_list zombies;  /* gm_zombie: where they were */
    size_t unmet;     /* pages that should have been stolen, but were not to be had */
    gm_lane *victims; /* other lanes, locked until the settlement */
} gm_loot;

/* How many blocks from now on shall be placed tightly, because some of `missing` pages are
 * to be stolen, or soon others. 0: pages are not short. */
size_t
gm_steal_spell_locked(gm_lane *lane, size_t missing, gm_terms terms)
    GM_REQUIRES(lane->lock);

/* Moves pages from free blocks of the lane to a placement that misses some, as far as
 * options.steal and `terms` say so: those that are done to the page pool, others to
 * *out. gm_steal_settle_locked follows. */
void
gm_steal_locked(gm_lane *lane, gm_arena *arena, const gm_placement *placement,
                gm_terms terms, gm_loot *out) GM_REQUIRES(lane->lock);

/* The loot has found its place, or goes back to where it was. Unlocks the victims. */
void
gm_steal_settle_locked(gm_lane *lane, gm_loot *loot, bool committed)
    GM_REQUIRES(lane->lock);

/* No more pages than these could be stolen for a new chunk. */
size_t
gm_steal_most_locked(gm_lane *lane, gm_terms terms) GM_REQUIRES(lane->lock);

/* Unmaps zombies whose work is done. */
void
gm_steal_bury_locked(gm_lane *lane) GM_REQUIRES(lane->lock);

/* ---- marker.c -------------------------------------------------------------------- */

/* The work before so many frees of this lane is done. Records no mark. */
uint64_t
gm_lane_done_locked(gm_lane *lane) GM_REQUIRES(lane->lock);

/* Is the work before every free of this lane done? Records a mark if it may. */
bool
gm_lane_is_done_locked(gm_lane *lane) GM_REQUIRES(lane->lock);

/* The event of the oldest mark that is not done, or 0: all is done, or nothing can be
 * marked here. */
gm_event
gm_lane_marker_locked(gm_lane *lane) GM_REQUIRES(lane->lock);

/* The event of a mark that covers all frees, or 0: the work is done, or no such mark can be
 * had here. */
gm_event
gm_lane_cover_locked(gm_lane *lane) GM_REQUIRES(lane->lock);

/* What is queued on the lane's stream from now on waits for the event. Pre: the stream is
 * one that the calling thread can name. */
GM_NODISCARD gm_status
gm_lane_wait_for_locked(gm_lane *lane, gm_event event) GM_REQUIRES(lane->lock);

/* Another thread wanted a mark: records one if the stream is the calling thread's. */
void
gm_lane_mark_slow_locked(gm_lane *lane) GM_REQUIRES(lane->lock);
static inline void
gm_lane_mark_locked(gm_lane *lane) GM_REQUIRES(lane->lock)
{
    if (lane->marks_wanted != 0) {
        gm_lane_mark_slow_locked(lane);
    }
}

/* The lane serves another stream: nothing was freed on that one. */
void
gm_lane_reset_marker_locked(gm_lane *lane) GM_REQUIRES(lane->lock);

/* The lane's stream retires: its last mark covers all later frees. False: no mark can be
 * had. */
GM_NODISCARD bool
gm_lane_mark_last_locked(gm_lane *lane) GM_REQUIRES(lane->lock);

/* Lanes of other threads' own streams that nobody has marked: waits for the work of all
 * such streams, at most timeout_ns, and counts it as a mark. True: memory of a lane may
 * be idle now that was not before. No lock held. */
bool
gm_lanes_settle(gm_pool *pool, uint64_t timeout_ns);

/* ---- ladder.c -------------------------------------------------------------------- */

typedef struct gm_ladder {
    uint64_t wait_left_ns;
    size_t reserved_before;
    gm_shortage shortage;
    bool may_grow; /* false: other lanes' memory is to be had first */
    size_t force;  /* bytes to steal: the most that was missing; 0: not yet */
    bool borrow;   /* also what other streams have not finished with */
    bool climbed;
    bool settled;
} gm_ladder;

void
gm_ladder_init(gm_ladder *ladder, gm_pool *pool);

/* Tries the next thing that may help `lane`. False: nothing is left. No lock held. */
bool
gm_ladder_climb(gm_ladder *ladder, gm_pool *pool, gm_lane *lane);

/* Waits for one unfinished piece of work of any lane (or of `only`), at most *left_ns,
 * which shrinks. False: nothing to wait for, or the time is over. No lock held. */
bool
gm_ladder_wait(gm_pool *pool, gm_lane *only, uint64_t *left_ns);

/* The end: undoes what the climb took and writes down why. */
void
gm_ladder_fail(gm_ladder *ladder, gm_pool *pool, gm_lane *lane,
               const gm_request *request, gm_oom *out);

/* ---- counters.c ------------------------------------------------------------------ */

/* counting.h counts allocations and frees. */

/* Raises the peaks to what is used now. */
void
gm_count_settle_locked(gm_lane *lane) GM_REQUIRES(lane->lock);
/* A freed block begins to wait for other streams, or has waited. */
void
gm_count_pending_locked(gm_lane *lane, const gm_block *block, bool begins)
    GM_REQUIRES(lane->lock);
uint64_t
gm_lane_used_locked(const gm_lane *lane) GM_REQUIRES(lane->lock);
uint64_t
gm_lane_pending_locked(const gm_lane *lane) GM_REQUIRES(lane->lock);
/* Pages or segments came to an arena, or left it (negative). */
void
gm_count_segments_locked(gm_arena *arena, int64_t number, size_t bytes);
/* ---- peaks.c ---------------------------------------------------------------------- */

/* A second lane is about to exist. Pre: the lanes lock is held. */
void
gm_peaks_start_locked(gm_lane *first) GM_REQUIRES(first->lock);

/* The lane is about to be one of the pool's: it has no budget yet. Pre: the lanes lock
 * is held. */
void
gm_peaks_join(gm_lane *lane);

/* Re-derives the sum of budgets. False when it is above a peak. */
bool
gm_peaks_check(gm_pool *pool);

/* After an allocation that took its lane above its budget. No lock held; never waits. */
void
gm_peaks_survey(gm_pool *pool);

/* The peaks of a pool with many lanes; false: the one lane's are the pool's. */
bool
gm_peaks_read(gm_pool *pool, gm_tally *out);

/* Peaks become what is used now. */
void
gm_peaks_reset(gm_pool *pool);

/* ---- trace.c --------------------------------------------------------------------- */

GM_NODISCARD gm_status
gm_trace_create(gm_trace **out);
void
gm_trace_destroy(gm_trace *trace);
/* An event of now. */
gm_trace_entry
gm_trace_make(const gm_pool *pool, gm_trace_action action, gm_devptr address,
              size_t size, gm_stream stream, uint64_t context);
/* Writes it down. Any lock of lower rank may be held. */
void
gm_trace_write(gm_pool *pool, const gm_trace_entry *entry);
/* Tells the observer. No lock may be held. */
void
gm_trace_tell(gm_pool *pool, const gm_trace_entry *entry);

/* ---- registry.c ------------------------------------------------------------------ */

/* Gives the pool its id and makes it visible to the process. */
void
gm_registry_add(gm_pool *pool);
void
gm_registry_remove(gm_pool *pool);

#endif
