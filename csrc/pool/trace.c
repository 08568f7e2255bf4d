/* trace.c - a bounded history of events, newest kept, and the observer. */
#include <stdlib.h>

#include "pool/internal.h"

struct gm_trace {
    gm_mutex lock;
    gm_trace_entry *entries GM_GUARDED_BY(lock); /* a ring of `limit`; owned */
    size_t limit GM_GUARDED_BY(lock);
    size_t count GM_GUARDED_BY(lock);
    size_t next GM_GUARDED_BY(lock); /* where the next entry goes */
    uint64_t dropped GM_GUARDED_BY(lock);
};

gm_status
gm_trace_create(gm_trace **out)
{
    gm_trace *trace = calloc(1, sizeof(*trace));
    if (trace == NULL) {
        return GM_NO_HOST_MEMORY;
    }
    gm_mutex_init(&trace->lock, GM_RANK_TRACE);
    *out = trace;
    return GM_OK;
}

void
gm_trace_destroy(gm_trace *trace)
{
    if (trace != NULL) {
        free(trace->entries);
        free(trace);
    }
}

static void
set_attention(gm_pool *pool, uint32_t bit, bool on)
{
    if (on) {
        atomic_fetch_or(&pool->attention, bit);
    }
    else {
        atomic_fetch_and(&pool->attention, ~bit);
    }
}

static void
append_locked(gm_trace *trace, const gm_trace_entry *entry)
{
    if (trace->limit == 0) {
        return;
    }
    trace->entries[trace->next] = *entry;
    trace->next = trace->next + 1 == trace->limit ? 0 : trace->next + 1;
    if (trace->count < trace->limit) {
        trace->count++;
    }
    else {
        trace->dropped++;
    }
}

gm_trace_entry
gm_trace_make(const gm_pool *pool, gm_trace_action action, gm_devptr address,
              size_t size, gm_stream stream, uint64_t context)
{
    return (gm_trace_entry){.time_ns = pool->device->ops->clock_ns(pool->device),
                            .address = address,
                            .size = size,
                            .stream = stream,
                            .context = context,
                            .action = action};
}

void
gm_trace_write(gm_pool *pool, const gm_trace_entry *entry)
{
    gm_trace *trace = pool->trace;
    if (gm_pool_attention(pool, GM_POOL_HISTORY) != 0) {
        gm_mutex_lock(&trace->lock);
        append_locked(trace, entry);
        gm_mutex_unlock(&trace->lock);
    }
}

void
gm_trace_tell(gm_pool *pool, const gm_trace_entry *entry)
{
    gm_pool_observer observer = atomic_load(&pool->observer);
    if (observer != NULL) {
        observer(atomic_load(&pool->observer_argument), pool, entry);
    }
}

gm_status
gm_pool_record_history(gm_pool *pool, size_t max_entries)
{
    gm_trace *trace = pool->trace;
    gm_trace_entry *entries = NULL;
    if (gm_pool_is_forked(pool)) {
        return GM_FORKED;
    }
    if (max_entries > GM_SIZE_LIMIT / sizeof(*entries)) {
        return GM_INVALID;
    }
    if (max_entries != 0) {
        entries = calloc(max_entries, sizeof(*entries));
        if (entries == NULL) {
            return GM_NO_HOST_MEMORY;
        }
    }
    gm_mutex_lock(&trace->lock);
    gm_trace_entry *old = trace->entries;
    trace->entries = entries;
    trace->limit = max_entries;
    trace->count = 0;
    trace->next = 0;
    trace->dropped = 0;
    set_attention(pool, GM_POOL_HISTORY, max_entries != 0);
    gm_mutex_unlock(&trace->lock);
    free(old);
    return GM_OK;
}

void
gm_pool_read_history(gm_pool *pool, gm_trace_entry *out, size_t capacity, size_t *count,
                     uint64_t *dropped, size_t *limit)
{
    gm_trace *trace = pool->trace;
    if (gm_pool_is_forked(pool)) {
        *count = *limit = 0;
        *dropped = 0;
        return;
    }
    gm_mutex_lock(&trace->lock);
    size_t copied = capacity < trace->count ? capacity : trace->count;
    size_t start = trace->count < trace->limit ? 0 : trace->next;
    for (size_t i = 0; i < copied; i++) {
        out[i] = trace->entries[(start + i) % trace->limit];
    }
    *count = trace->count;
    *dropped = trace->dropped;
    *limit = trace->limit;
    gm_mutex_unlock(&trace->lock);
}

void
gm_pool_clear_history(gm_pool *pool)
{
    gm_trace *trace = pool->trace;
    if (gm_pool_is_forked(pool)) {
        return;
    }
    gm_mutex_lock(&trace->lock);
    trace->count = 0;
    trace->next = 0;
    trace->dropped = 0;
    gm_mutex_unlock(&trace->lock);
}

void
gm_pool_set_observer(gm_pool *pool, gm_pool_observer observer, void *argument)
{
    atomic_store(&pool->observer, NULL);
    atomic_store(&pool->observer_argument, argument);
    atomic_store(&pool->observer, observer);
    set_attention(pool, GM_POOL_OBSERVED, observer != NULL);
}
