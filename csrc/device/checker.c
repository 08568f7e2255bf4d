#include "device/checker.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/checker_internal.h"

/* ---- clocks ---------------------------------------------------------------------- */

void
gm_clock_free(gm_clock *clock)
{
    free(clock->counts);
    *clock = (gm_clock){0};
}

/* Makes room for that many streams. False: no host memory. */
static bool
clock_reserve(gm_clock *clock, size_t size)
{
    if (size <= clock->size) {
        return true;
    }
    uint64_t *counts = realloc(clock->counts, size * sizeof(*counts));
    if (counts == NULL) {
        return false;
    }
    memset(counts + clock->size, 0, (size - clock->size) * sizeof(*counts));
    clock->counts = counts;
    clock->size = size;
    return true;
}

static bool
clock_join(gm_clock *into, const gm_clock *from)
{
    if (!clock_reserve(into, from->size)) {
        return false;
    }
    for (size_t i = 0; i < from->size; i++) {
        if (into->counts[i] < from->counts[i]) {
            into->counts[i] = from->counts[i];
        }
    }
    return true;
}

static bool
clock_raise(gm_clock *clock, size_t stream, uint64_t count)
{
    if (!clock_reserve(clock, stream + 1)) {
        return false;
    }
    if (clock->counts[stream] < count) {
        clock->counts[stream] = count;
    }
    return true;
}

/* ---- reports --------------------------------------------------------------------- */

/* The next line to write, or NULL: enough are kept. */
static char *
next_line_locked(gm_checker *checker) GM_REQUIRES(checker->lock)
{
    checker->violations++;
    return checker->line_count < CHECKER_LINES ? checker->lines[checker->line_count++]
                                               : NULL;
}

void
gm_checker_go_blind_locked(gm_checker *checker)
{
    if (!checker->blind) {
        checker->blind = true;
        char *line = next_line_locked(checker);
        if (line != NULL) {
            (void)snprintf(line, CHECKER_LINE_SIZE,
                           "no host memory: nothing more is checked");
        }
    }
}

static void
name_stream(char *out, size_t size, uint64_t identity)
{
    if ((identity & GM_IDENTITY_OF_THREAD) != 0) {
        (void)snprintf(out, size, "thread %" PRIu64 "'s own stream",
                       identity & ~GM_IDENTITY_OF_THREAD);
    }
    else {
        (void)snprintf(out, size, "stream %" PRIu64, identity);
    }
}

void
gm_checker_report_locked(gm_checker *checker, const char *check, gm_devptr address,
                         const gm_checker_page *page, const checker_use *use,
                         const checker_stream *stream)
{
    char *line = next_line_locked(checker);
    char what[40] = "segment", user[48], knower[48], knows[80] = "";
    if (line == NULL) {
        return;
    }
    if (page->name != 0) {
        (void)snprintf(what, sizeof(what), "page %" PRIu64, page->name);
    }
    name_stream(user, sizeof(user), checker->streams[use->stream]->identity);
    if (stream != NULL) {
        name_stream(knower, sizeof(knower), stream->identity);
        (void)snprintf(knows, sizeof(knows), "%s knows %" PRIu64 ", ", knower,
                       gm_clock_at(&stream->knows, use->stream));
    }
    (void)snprintf(line, CHECKER_LINE_SIZE,
                   "%s at 0x%" PRIx64 ": %s, bytes %zu to %zu: use %" PRIu64
                   " of %s; %sthe host "
                   "knows %" PRIu64,
                   check, address, what, use->begin, use->end, use->count, user, knows,
                   gm_clock_at(&checker->finished, use->stream));
}

uint64_t
gm_checker_violations(gm_checker *checker, char *text, size_t size)
{
    size_t length = 0;
    gm_mutex_lock(&checker->lock);
    uint64_t violations = checker->violations;
    if (size > 0) {
        text[0] = '\0';
    }
    for (size_t i = 0; i < checker->line_count && length + 1 < size; i++) {
        int written = snprintf(text + length, size - length, "%s%s", i == 0 ? "" : "\n",
                               checker->lines[i]);
        length += (size_t)written;
    }
    gm_mutex_unlock(&checker->lock);
    return violations;
}

/* ---- streams --------------------------------------------------------------------- */

/* Does the host know all that the stream knows and did? */
static bool
is_forgotten_locked(const gm_checker *checker, const checker_stream *stream)
    GM_REQUIRES(checker->lock)
{
    if (stream->uses > gm_clock_at(&checker->finished, stream->number)) {
        return false;
    }
    for (size_t i = 0; i < stream->knows.size; i++) {
        if (stream->knows.counts[i] > gm_clock_at(&checker->finished, i)) {
            return false;
        }
    }
    return true;
}

/* A record for a stream that has none: a forgotten one's, or a new one. NULL: no host
 * memory. */
static checker_stream *
take_stream_locked(gm_checker *checker) GM_REQUIRES(checker->lock)
{
    for (size_t i = 0; i < checker->stream_count; i++) {
        checker_stream *stream = checker->streams[i];
        if (is_forgotten_locked(checker, stream)) {
            (void)gm_key_map_remove(&checker->identities, stream->identity);
            gm_clock_free(&stream->knows);
            return stream;
        }
    }
    size_t count = checker->stream_count;
    checker_stream **streams =
        realloc(checker->streams, (count + 1) * sizeof(checker_stream *));
    if (streams == NULL) {
        return NULL;
    }
    checker->streams = streams;
    streams[count] = calloc(1, sizeof(checker_stream));
    if (streams[count] != NULL) {
        streams[count]->number = count;
        checker->stream_count++;
    }
    return streams[count];
}

checker_stream *
gm_checker_stream_locked(gm_checker *checker, uint64_t identity)
{
    checker_stream *stream = gm_key_map_find(&checker->identities, identity);
    if (stream != NULL) {
        return stream;
    }
    stream = take_stream_locked(checker);
    if (stream != NULL) {
        stream->identity = identity;
    }
    if (stream == NULL ||
        gm_key_map_insert(&checker->identities, identity, stream) != GM_OK) {
        gm_checker_go_blind_locked(checker);
        return NULL;
    }
    return stream;
}

/* Joins what stands on the stream now. */
static bool
join_stream(gm_clock *clock, const checker_stream *stream)
{
    return clock_join(clock, &stream->knows) &&
           clock_raise(clock, stream->number, stream->uses);
}

static gm_clock
stream_clock_locked(gm_checker *checker, uint64_t identity) GM_REQUIRES(checker->lock)
{
    gm_clock clock = {0};
    const checker_stream *stream =
        checker->blind ? NULL : gm_checker_stream_locked(checker, identity);
    if (stream != NULL && !join_stream(&clock, stream)) {
        gm_checker_go_blind_locked(checker);
    }
    return clock;
}

gm_clock
gm_checker_stream_clock(gm_checker *checker, uint64_t identity)
{
    gm_mutex_lock(&checker->lock);
    gm_clock clock = stream_clock_locked(checker, identity);
    gm_mutex_unlock(&checker->lock);
    return clock;
}

gm_clock
gm_checker_threads_clock(gm_checker *checker)
{
    gm_clock clock = {0};
    gm_mutex_lock(&checker->lock);
    for (size_t i = 0; i < checker->stream_count; i++) {
        const checker_stream *stream = checker->streams[i];
        if ((stream->identity & GM_IDENTITY_OF_THREAD) != 0 &&
            !join_stream(&clock, stream)) {
            gm_checker_go_blind_locked(checker);
        }
    }
    gm_mutex_unlock(&checker->lock);
    return clock;
}

static void
learn_locked(gm_checker *checker, const gm_clock *clock) GM_REQUIRES(checker->lock)
{
    if (!clock_join(&checker->finished, clock)) {
        gm_checker_go_blind_locked(checker);
    }
}

void
gm_checker_learn(gm_checker *checker, gm_clock *clock)
{
    gm_mutex_lock(&checker->lock);
    learn_locked(checker, clock);
    gm_mutex_unlock(&checker->lock);
    gm_clock_free(clock);
}

/* ---- events ---------------------------------------------------------------------- */

static checker_event *
make_event_locked(gm_checker *checker, gm_event handle) GM_REQUIRES(checker->lock)
{
    checker_event *event = calloc(1, sizeof(*event));
    if (event == NULL || gm_key_map_insert(&checker->events, handle, event) != GM_OK) {
        free(event);
        gm_checker_go_blind_locked(checker);
        return NULL;
    }
    return event;
}

gm_clock
gm_checker_begin_record(gm_checker *checker, gm_event handle, uint64_t identity)
{
    gm_mutex_lock(&checker->lock);
    gm_clock clock = stream_clock_locked(checker, identity);
    checker_event *event = gm_key_map_find(&checker->events, handle);
    if (event == NULL && !checker->blind) {
        event = make_event_locked(checker, handle);
    }
    if (event != NULL) {
        event->recording++;
    }
    gm_mutex_unlock(&checker->lock);
    return clock;
}

void
gm_checker_end_record(gm_checker *checker, gm_event handle, gm_clock *clock,
                      bool recorded)
{
    gm_mutex_lock(&checker->lock);
    checker_event *event = gm_key_map_find(&checker->events, handle);
    if (event != NULL) {
        event->recording--;
        if (recorded) {
            gm_clock before = event->clock;
            event->clock = *clock;
            *clock = before;
            event->version = ++checker->last_version;
        }
    }
    gm_mutex_unlock(&checker->lock);
    gm_clock_free(clock);
}

/* The event, if nothing but this recording stands or comes. */
static const checker_event *
find_version_locked(const gm_checker *checker, gm_event handle, uint64_t version)
    GM_REQUIRES(checker->lock)
{
    const checker_event *event = gm_key_map_find(&checker->events, handle);
    bool stands = event != NULL && version != 0 && event->version == version &&
                  event->recording == 0;
    return stands ? event : NULL;
}

uint64_t
gm_checker_event_version(gm_checker *checker, gm_event handle)
{
    gm_mutex_lock(&checker->lock);
    const checker_event *event = gm_key_map_find(&checker->events, handle);
    uint64_t version = event != NULL && event->recording == 0 ? event->version : 0;
    gm_mutex_unlock(&checker->lock);
    return version;
}

void
gm_checker_event_done(gm_checker *checker, gm_event handle, uint64_t version)
{
    gm_mutex_lock(&checker->lock);
    const checker_event *event = find_version_locked(checker, handle, version);
    if (event != NULL) {
        learn_locked(checker, &event->clock);
    }
    gm_mutex_unlock(&checker->lock);
}

void
gm_checker_stream_waits(gm_checker *checker, uint64_t identity, gm_event handle,
                        uint64_t version)
{
    gm_mutex_lock(&checker->lock);
    const checker_event *event = find_version_locked(checker, handle, version);
    if (event != NULL && !checker->blind) {
        checker_stream *stream = gm_checker_stream_locked(checker, identity);
        if (stream != NULL && !clock_join(&stream->knows, &event->clock)) {
            gm_checker_go_blind_locked(checker);
        }
    }
    gm_mutex_unlock(&checker->lock);
}

void
gm_checker_event_gone(gm_checker *checker, gm_event handle)
{
    gm_mutex_lock(&checker->lock);
    checker_event *event = gm_key_map_remove(&checker->events, handle);
    gm_mutex_unlock(&checker->lock);
    if (event != NULL) {
        gm_clock_free(&event->clock);
        free(event);
    }
}

/* ---- life ------------------------------------------------------------------------ */

gm_status
gm_checker_create(size_t page_size, gm_checker **out)
{
    gm_checker *checker = calloc(1, sizeof(*checker));
    if (checker == NULL) {
        return GM_NO_HOST_MEMORY;
    }
    gm_mutex_init(&checker->lock, GM_RANK_DEVICE);
    checker->page_size = page_size;
    *out = checker;
    return GM_OK;
}

void
gm_checker_destroy(gm_checker *checker) GM_NO_THREAD_ANALYSIS
{
    if (checker == NULL) {
        return;
    }
    gm_checker_memory_destroy(checker);
    for (size_t i = 0; i < checker->events.capacity; i++) {
        checker_event *event = checker->events.entries[i].value;
        if (event != NULL) {
            gm_clock_free(&event->clock);
            free(event);
        }
    }
    for (size_t i = 0; i < checker->stream_count; i++) {
        gm_clock_free(&checker->streams[i]->knows);
        free(checker->streams[i]);
    }
    gm_key_map_destroy(&checker->identities);
    gm_key_map_destroy(&checker->events);
    free(checker->streams);
    gm_clock_free(&checker->finished);
    free(checker);
}
