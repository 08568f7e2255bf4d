/* objects.h - what a pool is made of: lanes with their two arenas, pages without an
 * address, counts. internal.h has the functions.
 */
#ifndef GM_POOL_OBJECTS_H
#define GM_POOL_OBJECTS_H

#include <stdatomic.h>

#include "base/bits.h"
#include "base/deferred.h"
#include "base/mutex.h"
#include "base/process.h"
#include "base/slab.h"
#include "heap/arena.h"
#include "pool/pool.h"

#define GM_LANE_CACHE 64u /* power of two */
#define GM_FENCES 32u     /* power of two */
#define GM_ALIGNMENT_LIMIT ((size_t)1 << 30)

enum {
    GM_SMALL = 0,
    GM_LARGE = 1,
    GM_ARENAS = 2
};

/* Blocks in three measures. */
typedef struct gm_tally {
    uint64_t blocks;
    uint64_t bytes; /* rounded to GM_GRANULE */
    uint64_t requested;
} gm_tally;

/* What a lane counts for each of its arenas. Only what must be kept is kept: the rest of
 * a row (current, active, inactive) follows from it when somebody reads (counters.c).
 *
 *     used   = allocated - freed
 *     active = used + pending
 *
 * Note [Settled peaks]
 * A peak can only be passed by an allocation, and is only lost by a free. So an
 * allocation marks its lane as `rising`, and the peaks are compared when the first
 * free after it comes, or a reader (gm_count_settle_locked).
 */
typedef struct gm_lane_stats {
    gm_tally allocated;      /* ever */
    gm_tally freed;          /* ever */
    gm_tally allocated_base; /* `allocated` when the cumulative counts were reset */
    gm_tally freed_base;     /* the same of `freed` */
    gm_tally peak;           /* of used */
    gm_tally pending;        /* `requested` is not kept */
    gm_tally active_base;    /* used + pending when the counts were reset */
    gm_tally active_peak;
    gm_tally inactive_peak; /* free mapped blocks */
    uint64_t inactive_base; /* their number when the counts were reset */
} gm_lane_stats;

/* One arena of a lane, with its counts. */
typedef struct gm_shelf {
    gm_arena arena;
    gm_lane_stats stats;
    gm_stat segments; /* pages or whole segments */
    gm_stat segment_bytes;
} gm_shelf;

/* The peaks of both arenas together. */
typedef struct gm_lane_peaks {
    gm_tally used;
    gm_tally active;
} gm_lane_peaks;

/* What a lane may use before the pool's peaks must be looked at. Written under the lanes
 * lock, read under the lane's. */
typedef struct gm_budget {
    _Atomic uint64_t blocks;
    _Atomic uint64_t bytes;
    _Atomic uint64_t requested;
} gm_budget;

/* One recorded stream of a live block, or one event that a freed block waits for. */
typedef struct gm_use {
    gm_list block_link; /* in gm_block.use_list */
    gm_list watch_link; /* in gm_watch.uses, once the block was freed */
    gm_block *block;
    struct gm_watch *watch;
    gm_event event; /* made with the use, so that a free cannot fail for want of one;
                       stays with the node when it is idle */
    bool lost; /* no event could be recorded: the block is never handed out again */
    gm_list due_link; /* in gm_watch.due while the event waits to be recorded */
} gm_use;

/* The pending frees of one lane that wait for one stream, oldest first. Events of one
 * stream are done in order, so only the first is asked. */
typedef struct gm_watch {
    gm_list link; /* in gm_lane.watches */
    gm_stream stream;
    uint64_t identity;
    gm_list uses;   /* of freed blocks */
    gm_list due;    /* uses that a capture has kept from being marked */
    size_t users;   /* uses of live and freed blocks */
    gm_event final; /* recorded when the stream retired; 0 before */
} gm_watch;

/* A mark on the lane's own stream: all frees up to `frees` are covered by `event`. */
typedef struct gm_fence {
    gm_event event; /* 0: not made yet; stays with its place in the ring */
    uint64_t frees; /* gm_lane.frees when it was recorded; UINT64_MAX: the last one, it
                       covers all later frees, too */
} gm_fence;

/* How far the lane's stream has come with what was freed on it. Marks are done in the
 * order in which they were recorded. */
typedef struct gm_marker {
    gm_fence fences[GM_FENCES]; /* a ring: recorded, not seen done; oldest first */
    unsigned first;
    unsigned count;
    uint64_t done;        /* the work before this many frees is done */
    uint64_t asked_by;    /* the newest gm_lanes_settle that looked at this lane ... */
    uint64_t asked_frees; /* ... and what gm_lane.frees was then */
} gm_marker;

/* Slots whose page was given elsewhere, in the order of their last uses. */
typedef struct gm_zombie {
    gm_list link; /* in gm_lane.zombies */
    gm_arena *arena;
    gm_chunk *chunk;
    gm_block *block; /* valid until the steal that made it commits */
    size_t first_slot;
    size_t count;
    uint64_t frees; /* they may be unmapped when the work before that many is done */
} gm_zombie;

typedef struct gm_lane {
    gm_mutex lock;
    gm_pool *pool;             /* constant */
    size_t small_limit;        /* constant; bytes */
    _Atomic uint64_t identity; /* of the stream; GM_NO_IDENTITY once that has retired,
                                  another one when a dissolved lane is reused */
    _Atomic uint32_t kind;     /* gm_arena_kind */
    _Atomic bool open;         /* false: dissolved, in gm_pool.free_lanes */
    bool rising GM_GUARDED_BY(lock);           /* Note [Settled peaks] */
    uint32_t marks_wanted GM_GUARDED_BY(lock); /* Note [Streams of one thread] */
    gm_list link;         /* in gm_pool.lanes or free_lanes; lanes lock */
    gm_deferred deferred; /* blocks whose free found the lock busy */
    gm_stream stream GM_GUARDED_BY(lock);
    bool retired GM_GUARDED_BY(lock);
    gm_shelf shelves[GM_ARENAS] GM_GUARDED_BY(lock);
    gm_slab nodes GM_GUARDED_BY(lock); /* gm_block */
    gm_slab uses GM_GUARDED_BY(lock);  /* gm_use */
    gm_slab watches_slab GM_GUARDED_BY(lock);
    gm_list watches GM_GUARDED_BY(lock);   /* every gm_watch */
    gm_list idle_uses GM_GUARDED_BY(lock); /* gm_use with an event, for reuse */
    gm_lane_peaks peaks GM_GUARDED_BY(lock);
    gm_budget budget;  /* Note [Budgets] */
    gm_tally surveyed; /* used, when the lanes were last summed; lanes lock */
    uint64_t frees GM_GUARDED_BY(lock); /* blocks that became free, ever */
    gm_marker marker GM_GUARDED_BY(lock);
    gm_list zombies GM_GUARDED_BY(lock); /* gm_zombie */
    bool behind GM_GUARDED_BY(lock); /* the last steal took pages that were not done */
    gm_slab zombie_slab GM_GUARDED_BY(lock);
    size_t pending_blocks GM_GUARDED_BY(lock);       /* of both arenas */
    struct gm_lane *next_victim GM_GUARDED_BY(lock); /* in gm_loot.victims */
    uint64_t deferred_frees GM_GUARDED_BY(lock);
} gm_lane;

/* Why memory could not be had. */
typedef enum gm_refusal {
    GM_REFUSED_NOT = 0,
    GM_REFUSED_LIMIT,
    GM_REFUSED_HEADROOM,
    GM_REFUSED_DEVICE,
    GM_REFUSED_POLICY, /* not asked for: other memory is to be had first */
} gm_refusal;

/* What an attempt was short of; the ladder reclaims that much. */
typedef struct gm_shortage {
    gm_refusal refusal;
    size_t bytes;
    size_t looted; /* bytes that it would have stolen besides */
} gm_shortage;

/* A page of the device. It belongs to one MAPPED slot, or to a placement on its way, or is
 * free in the page pool. ZOMBIE slots may still map it besides. */
struct gm_frame {
    gm_frame *next; /* first word: below it on the stack of free pages, or in a loot */
    gm_page page;
    _Atomic uint32_t zombies; /* slots that map it and do not own it */
    bool looted;              /* not committed yet: its last owner may get it back */
};

/* Pages without an address, and what is reserved. */
typedef struct gm_page_pool {
    gm_mutex lock;
    gm_frame *free GM_GUARDED_BY(lock); /* a stack */
    size_t count GM_GUARDED_BY(lock);
    gm_slab frames GM_GUARDED_BY(lock);   /* of every page that exists */
    size_t created GM_GUARDED_BY(lock);   /* pages that exist, placed ones included */
    gm_stat reserved GM_GUARDED_BY(lock); /* bytes */
    size_t in_flight GM_GUARDED_BY(lock); /* bytes being asked of the device now; counts
                                             for the limit, not yet as reserved */
    size_t leaving GM_GUARDED_BY(lock);   /* pages being destroyed now: off the stack,
                                             still reserved */
    size_t whole_bytes GM_GUARDED_BY(lock); /* reserved for segments */
    uint64_t changes GM_GUARDED_BY(lock);   /* pages that came or went, ever */
    size_t quarantined GM_GUARDED_BY(lock);
    size_t limit GM_GUARDED_BY(lock);
    size_t headroom GM_GUARDED_BY(lock);
    uint64_t device_allocs GM_GUARDED_BY(lock);
    uint64_t device_frees GM_GUARDED_BY(lock);
    size_t given_back GM_GUARDED_BY(lock); /* by flushes, not yet taken again */
    uint64_t retaken GM_GUARDED_BY(lock);
} gm_page_pool;

/* Streams on which a capture was declared. */
typedef struct gm_captures {
    gm_mutex lock;
    uint64_t *identities GM_GUARDED_BY(lock); /* owned */
    size_t count GM_GUARDED_BY(lock);
    size_t capacity GM_GUARDED_BY(lock);
} gm_captures;

typedef struct gm_trace gm_trace;

/* Bits of gm_pool.attention. */
enum {
    GM_POOL_CLOSED = 1,
    GM_POOL_HISTORY = 2,  /* the trace is on */
    GM_POOL_OBSERVED = 4, /* there is an observer */
    GM_POOL_TRACED = GM_POOL_HISTORY | GM_POOL_OBSERVED,
    GM_POOL_CHECKED = 8,    /* the device wants to know of blocks; constant */
    GM_POOL_CAPTURING = 16, /* a capture was declared */
};

struct gm_pool {
    gm_device *device; /* owned */
    uint64_t id;
    uint32_t generation; /* of the process it was made in */
    bool paged;
    size_t page_size;
    _Atomic uint32_t references;
    _Atomic uint32_t attention; /* GM_POOL_* bits: why a call must look closer */
    gm_list link;               /* in the registry */

    gm_mutex lanes_lock;
    gm_list lanes GM_GUARDED_BY(lanes_lock);
    gm_list free_lanes GM_GUARDED_BY(lanes_lock);
    size_t lane_count GM_GUARDED_BY(lanes_lock);
    _Atomic(gm_lane *) lane_cache[GM_LANE_CACHE];
    _Atomic bool many_lanes;      /* set once, under the first lane's lock */
    _Atomic uint64_t settlements; /* calls of gm_lanes_settle, ever */
    gm_tally peaks GM_GUARDED_BY(lanes_lock); /* with many lanes; Note [Budgets] */

    gm_captures captures;
    gm_page_pool page_pool;
    gm_pool_options options; /* constant fields; the others are atomics below */
    _Atomic uint32_t cross_stream;
    _Atomic bool yields;
    _Atomic bool gc_on_pressure;
    _Atomic uint64_t oom_wait_ns;

    _Atomic uint64_t retries, ooms, waits, flushes, flushed_bytes, collections,
        bad_frees, maps, unmaps, stolen_bytes, aliased_bytes, inserted_waits,
        yielded_bytes, fallbacks;
    uint64_t created_ns;        /* by the device's clock */
    _Atomic uint64_t steal_ns;  /* how long steals took, in all */
    _Atomic uint64_t peak_used; /* bytes; with many lanes as of the last survey */

    gm_trace *trace; /* owned */
    _Atomic(gm_pool_observer) observer;
    _Atomic(void *) observer_argument;
};

#endif
