/* checker_internal.h - the checker's books, shared by its two files alone: checker.c has
 * clocks, streams, events and reports, checker_memory.c has memory and its uses.
 *
 * Thread-safety: the checker's lock guards everything but `page_size`.
 */
#ifndef GM_DEVICE_CHECKER_INTERNAL_H
#define GM_DEVICE_CHECKER_INTERNAL_H

#include "base/mutex.h"
#include "device/checker.h"
#include "device/intervals.h"
#include "device/key_map.h"

#define CHECKER_LINES 8 /* reports that are kept */
#define CHECKER_LINE_SIZE 240

_Static_assert(CHECKER_LINES *CHECKER_LINE_SIZE < GM_CHECKER_TEXT_SIZE,
               "the first few violations are read as a whole");

/* Note [Numbers of streams]
 * A stream's number is its place in every clock. A stream that knows nothing that the
 * host does not know, and whose uses are all finished, is as good as forgotten: its
 * number goes to the next stream that is seen for the first time, which counts on from
 * there. So clocks do not grow with the streams that come and go. */
typedef struct checker_stream {
    uint64_t identity;
    size_t number;
    uint64_t uses;  /* noted under this number, ever */
    gm_clock knows; /* of other streams */
} checker_stream;

typedef struct checker_event {
    gm_clock clock;
    uint64_t version; /* 0: never recorded */
    unsigned recording;
} checker_event;

/* The last uses of some bytes. An earlier use that comes before a later one through the
 * same address is implied by that, and not kept. */
typedef struct checker_use {
    size_t begin; /* bytes of the page or segment */
    size_t end;
    gm_devptr via; /* where the page was mapped that it went through */
    size_t stream; /* number */
    uint64_t count;
} checker_use;

/* A page, or the memory of a segment. */
struct gm_checker_page {
    gm_page name;      /* 0: a segment */
    checker_use *uses; /* owned */
    size_t count;
    size_t capacity;
};

/* A range of addresses, cut into slots of one size; a segment has one slot. */
struct gm_checker_place {
    gm_devptr address;
    size_t size;
    size_t unit;              /* bytes of a slot */
    gm_checker_page segment;  /* its memory; unused in a range */
    gm_checker_page *slots[]; /* NULL: nothing is mapped there */
};

struct gm_checker {
    gm_mutex lock;
    size_t page_size;
    bool blind GM_GUARDED_BY(lock); /* there was no host memory: nothing is checked */
    gm_clock finished GM_GUARDED_BY(lock); /* the host's; Note [One host clock] */
    checker_stream **streams GM_GUARDED_BY(lock); /* by number; owned */
    size_t stream_count GM_GUARDED_BY(lock);
    uint64_t last_version GM_GUARDED_BY(lock);
    gm_key_map identities GM_GUARDED_BY(lock); /* to checker_stream */
    gm_key_map events GM_GUARDED_BY(lock);     /* to checker_event; owned */
    gm_key_map pages GM_GUARDED_BY(lock);      /* to gm_checker_page; owned */
    gm_intervals places GM_GUARDED_BY(lock);   /* data: gm_checker_place; owned */
    uint64_t violations GM_GUARDED_BY(lock);
    size_t line_count GM_GUARDED_BY(lock);
    char lines[CHECKER_LINES][CHECKER_LINE_SIZE] GM_GUARDED_BY(lock);
};

/* ---- checker.c ------------------------------------------------------------------- */

static inline uint64_t
gm_clock_at(const gm_clock *clock, size_t stream)
{
    return stream < clock->size ? clock->counts[stream] : 0;
}

/* The stream's record, made if there is none. NULL: the checker has become blind. */
checker_stream *
gm_checker_stream_locked(gm_checker *checker, uint64_t identity)
    GM_REQUIRES(checker->lock);

/* Is the use known to be finished? */
static inline bool
gm_checker_is_finished_locked(const gm_checker *checker, const checker_use *use)
    GM_REQUIRES(checker->lock)
{
    return use->count <= gm_clock_at(&checker->finished, use->stream);
}

/* Does the use come before what is queued next on the stream? */
static inline bool
gm_checker_is_before_locked(const gm_checker *checker, const checker_use *use,
                            const checker_stream *stream) GM_REQUIRES(checker->lock)
{
    return use->stream == stream->number ||
           use->count <= gm_clock_at(&stream->knows, use->stream) ||
           gm_checker_is_finished_locked(checker, use);
}

/* No host memory: reports it, once. */
void
gm_checker_go_blind_locked(gm_checker *checker) GM_REQUIRES(checker->lock);

/* One violation: `use` of `page` against what happens at `address`, on `stream` or, when
 * that is NULL, on the host. */
void
gm_checker_report_locked(gm_checker *checker, const char *check, gm_devptr address,
                         const gm_checker_page *page, const checker_use *use,
                         const checker_stream *stream) GM_REQUIRES(checker->lock);

/* ---- checker_memory.c ------------------------------------------------------------ */

/* Frees all books of memory. */
void
gm_checker_memory_destroy(gm_checker *checker);

#endif
