/* checker.h - is memory reused, and are mappings removed, only when an edge orders it?
 *
 * A device that is opened `checked` tells its checker of every use of memory and of
 * every edge (checker_device.c). The checker judges by edges alone: that the work
 * happened to be done, because a lag had passed or a stream was fast, excuses nothing.
 * It reports
 *
 *   block             bytes of physical memory begin a new life on a stream, and an
 *                     earlier use of them is not ordered before that
 *   unmap             a mapping goes, and a use through it is not known to be finished
 *   segment_destroy   the same of a whole segment
 *
 * Memory is physical: a page that is mapped at two addresses is one page.
 *
 * Note [Clocks]
 * Each stream counts the uses that were noted on it. A clock says of every stream how
 * many of its uses, counted from the first, come before some point: the point where a
 * stream stands now, or the mark of an event. Edges join clocks:
 *
 *   event_record              the event gets the clock of its stream
 *   stream_wait               the stream's clock is joined with the event's
 *   event_query (GM_OK), event_synchronize, stream_synchronize, threads_synchronize
 *                             the host's clock is joined with the event's or stream's
 *
 * A use comes before the point where a stream stands if the stream's clock or the
 * host's has it.
 *
 * Note [One host clock]
 * All threads of the process share the host's clock, though one thread may know what
 * another does not. It holds uses that are finished, which is a fact and not a view:
 * whatever any thread queues later runs later. For the same reason a clock without the
 * host's part is whole: what the host knew at some moment it knows ever after.
 *
 * Note [Calls and the model]
 * The model changes beside the device's call, not in one step with it, so two threads
 * may come between. Every order that this allows makes the checker know less than the
 * truth, never more: what an event will cover is read before the device records it,
 * what a wait has taught counts only if the event was not recorded meanwhile, and a use
 * is noted once it is queued. Whoever relies on a race of two threads for an edge is
 * reported, and should be.
 *
 * What it cannot see: the arguments of kernels, memory that the host reads and writes by
 * itself, and work that others queue without a word. A block's user is believed: its
 * uses are on its own stream and on those that were recorded, up to its free.
 *
 * Without host memory for its books the checker reports that once and sees nothing more.
 *
 * Thread-safety: every function; one lock (GM_RANK_DEVICE), and nothing is called with it
 * held. Ownership: a gm_clock is the caller's until a function says that it ends.
 * Cost: a note is O(unfinished uses of the pages that it touches), an edge O(streams).
 */
#ifndef GM_DEVICE_CHECKER_H
#define GM_DEVICE_CHECKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/device.h"

typedef struct gm_checker gm_checker;
typedef struct gm_checker_page gm_checker_page;
typedef struct gm_checker_place gm_checker_place;

/* See Note [Clocks]. Streams have numbers of the checker's own here. */
typedef struct gm_clock {
    uint64_t *counts; /* owned */
    size_t size;
} gm_clock;

void
gm_clock_free(gm_clock *clock);

/* page_size: 0 without paging. GM_NO_HOST_MEMORY. */
GM_NODISCARD gm_status
gm_checker_create(size_t page_size, gm_checker **out);

/* Accepts NULL. */
void
gm_checker_destroy(gm_checker *checker);

/* The text of all violations that are kept fits in as many bytes. */
#define GM_CHECKER_TEXT_SIZE ((size_t)2048)

/* How many violations there were; `text` receives the first few, one in a line, as far
 * as `size` bytes hold them, NUL-terminated. size 0: no text. */
uint64_t
gm_checker_violations(gm_checker *checker, char *text, size_t size);

/* ---- streams and events: by identity, see gm_device_ops.stream_identity ------------ */

/* What stands on the stream now. */
gm_clock
gm_checker_stream_clock(gm_checker *checker, uint64_t identity);

/* What stands now on the streams that belong to one thread each. */
gm_clock
gm_checker_threads_clock(gm_checker *checker);

/* The host learned that this is finished. Ends the clock. */
void
gm_checker_learn(gm_checker *checker, gm_clock *clock);

/* The event is about to be recorded: what it will cover. Nothing can be learned from it
 * until the end. */
gm_clock
gm_checker_begin_record(gm_checker *checker, gm_event event, uint64_t identity);

/* `recorded` false: the call failed, the event is what it was. Ends the clock. */
void
gm_checker_end_record(gm_checker *checker, gm_event event, gm_clock *clock,
                      bool recorded);

/* Which recording of the event stands; to be read before the device is asked about it.
 * 0: none, nothing can be learned. */
uint64_t
gm_checker_event_version(gm_checker *checker, gm_event event);

/* The host learned that this recording is done. */
void
gm_checker_event_done(gm_checker *checker, gm_event event, uint64_t version);

/* Later work of the stream starts after this recording. */
void
gm_checker_stream_waits(gm_checker *checker, uint64_t identity, gm_event event,
                        uint64_t version);

/* The event is about to be destroyed. */
void
gm_checker_event_gone(gm_checker *checker, gm_event event);

/* ---- memory ------------------------------------------------------------------------ */

/* A range of addresses that pages can be mapped in. Pre: a multiple of page_size. */
void
gm_checker_add_range(gm_checker *checker, gm_devptr address, size_t size);

void
gm_checker_add_segment(gm_checker *checker, gm_devptr address, size_t size);

/* A range or segment is about to go: others may get its addresses before the call has
 * returned. It is taken out and put back when the call fails. NULL when there is none;
 * accepted by those two. */
gm_checker_place *
gm_checker_take_place(gm_checker *checker, gm_devptr address, size_t size);
void
gm_checker_put_place(gm_checker *checker, gm_checker_place *place);

/* It is gone. Of a segment: every use of it must be known to be finished. */
void
gm_checker_drop_place(gm_checker *checker, gm_checker_place *place);

void
gm_checker_add_page(gm_checker *checker, gm_page page);

/* The same for a page that is about to be destroyed. Pre: mapped nowhere. */
gm_checker_page *
gm_checker_take_page(gm_checker *checker, gm_page page);
void
gm_checker_put_page(gm_checker *checker, gm_checker_page *page);
void
gm_checker_drop_page(gm_checker *checker, gm_checker_page *page);

void
gm_checker_map(gm_checker *checker, gm_devptr address, gm_page page);

/* With `check` every use through these addresses must be known to be finished. */
void
gm_checker_unmap(gm_checker *checker, gm_devptr address, size_t size, bool check);

/* Work on the stream that uses these bytes has been queued up to now. Bytes that are no
 * memory of the device, such as the host's side of a copy, do not count. */
void
gm_checker_note_use(gm_checker *checker, gm_devptr address, size_t size,
                    uint64_t identity);

/* The bytes begin a new life, used first on the stream: every earlier use of them must
 * come before what is queued there next. Counts as a use itself. */
void
gm_checker_note_block(gm_checker *checker, gm_devptr address, size_t size,
                      uint64_t identity);

#endif
