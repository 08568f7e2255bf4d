/* pending.c - frees that wait for other streams.
 *
 * A block that was recorded on other streams is handed out again when the work that
 * stood on those streams at its free is done. Each use of a block has its event, made
 * when the stream was recorded, so that a free cannot fail for want of one. Freed
 * uses queue at the watch of their stream; events of one stream are done in order, so
 * one query per stream and poll is enough, and a slow stream delays nobody else.
 *
 * A thread's own stream can be marked by that thread alone (marker.c, Note [Streams of
 * one thread]). Its event is recorded when the stream is, by the thread that names it,
 * and once more at the free if the same thread frees.
 *
 * Note [Marks that are due]
 * While a stream captures a graph, an event on it would become part of the graph, and so
 * would one on a stream that is forked from it. A use that should be marked then is due
 * (gm_watch.due) and has no event yet: a freed one if its own stream or that of the block
 * captures, a thread's own one when it is recorded. The end of a declared capture marks
 * what is due; else the next poll does that finds the streams not capturing. Until then
 * nothing of that watch is asked for or waited for.
 */
#include "pool/internal.h"

static gm_watch *
find_watch(gm_lane *lane, uint64_t identity)
{
    GM_LIST_FOREACH(link, &lane->watches) {
        gm_watch *watch = GM_CONTAINER_OF(link, gm_watch, link);
        if (watch->identity == identity && watch->final == 0) {
            return watch;
        }
    }
    return NULL;
}

static gm_watch *
make_watch(gm_lane *lane, gm_stream stream, uint64_t identity)
{
    gm_watch *watch = gm_slab_take(&lane->watches_slab);
    *watch = (gm_watch){.stream = stream, .identity = identity};
    gm_list_init(&watch->uses);
    gm_list_init(&watch->due);
    gm_list_push_back(&lane->watches, &watch->link);
    return watch;
}

/* A use with an event: an idle one, or a new one. */
static gm_status
take_use(gm_lane *lane, gm_use **out)
{
    if (!gm_list_is_empty(&lane->idle_uses)) {
        *out = GM_CONTAINER_OF(lane->idle_uses.next, gm_use, watch_link);
        gm_list_remove(&(*out)->watch_link);
        return GM_OK;
    }
    GM_TRY(gm_slab_reserve(&lane->uses, 1));
    gm_device *device = lane->pool->device;
    gm_event event;
    GM_TRY(device->ops->event_create(device, &event));
    *out = gm_slab_take(&lane->uses);
    (*out)->event = event;
    return GM_OK;
}

/* The use is over; its watch goes with its last one. */
static void
retire_use(gm_lane *lane, gm_use *use)
{
    gm_watch *watch = use->watch;
    gm_list_remove(&use->block_link);
    gm_list_remove(&use->watch_link);
    gm_list_push_back(&lane->idle_uses, &use->watch_link);
    if (--watch->users == 0) {
        gm_device *device = lane->pool->device;
        if (watch->final != 0) {
            gm_status status = device->ops->event_destroy(device, watch->final);
            if (status != GM_OK) {
                gm_pool_report(status, "destroy an event");
            }
        }
        gm_list_remove(&watch->link);
        gm_slab_give(&lane->watches_slab, watch);
    }
}

/* The block's use on the stream that has this identity now, or NULL. */
static gm_use *
find_use(const gm_block *block, uint64_t identity)
{
    GM_LIST_FOREACH(link, &block->use_list) {
        gm_use *use = GM_CONTAINER_OF(link, gm_use, block_link);
        if (use->watch->identity == identity && use->watch->final == 0) {
            return use;
        }
    }
    return NULL;
}

/* Tells a checked device. */
static void
note_use(const gm_lane *lane, const gm_block *block, uint64_t identity)
{
    gm_device *device = lane->pool->device;
    if (gm_pool_attention(lane->pool, GM_POOL_CHECKED) != 0) {
        device->ops->note_use(device, gm_block_start(block), block->size, identity);
    }
}

/* The stream uses the block from now on. A thread's own one is marked at once: *due if
 * that has to wait. */
static gm_status
begin_use(gm_lane *lane, const gm_block *block, const gm_use *use, gm_stream stream,
          uint64_t identity, bool *due)
{
    gm_device *device = lane->pool->device;
    *due = false;
    note_use(lane, block, identity);
    if ((identity & GM_IDENTITY_OF_THREAD) == 0) {
        return GM_OK;
    }
    *due = gm_capture_is_on(lane->pool, stream, identity);
    return *due ? GM_OK : device->ops->event_record(device, use->event, stream);
}

/* Files a use with what is due at its watch, or takes it out. */
static void
set_due(gm_use *use, bool due)
{
    gm_list_remove(&use->due_link);
    if (due) {
        gm_list_push_back(&use->watch->due, &use->due_link);
    }
}

gm_status
gm_pending_record_locked(gm_lane *lane, gm_block *block, gm_stream stream,
                         uint64_t identity)
{
    if (block->uses == 0) {
        gm_list_init(&block->use_list);
    }
    bool due;
    gm_use *use = find_use(block, identity);
    if (use != NULL) {
        GM_TRY(begin_use(lane, block, use, stream, identity, &due));
        set_due(use, due);
        return GM_OK;
    }
    GM_TRY(gm_slab_reserve(&lane->watches_slab, 1));
    GM_TRY(take_use(lane, &use));
    gm_status status = begin_use(lane, block, use, stream, identity, &due);
    if (status != GM_OK) {
        gm_list_push_back(&lane->idle_uses, &use->watch_link);
        return status;
    }
    gm_watch *watch = find_watch(lane, identity);
    use->watch = watch != NULL ? watch : make_watch(lane, stream, identity);
    use->watch->users++;
    use->block = block;
    use->lost = false;
    gm_list_init(&use->watch_link);
    gm_list_init(&use->due_link);
    set_due(use, due);
    gm_list_push_back(&block->use_list, &use->block_link);
    block->uses++;
    return GM_OK;
}

/* Does the watch's handle mean the watch's stream on this thread? */
static bool
is_of_this_thread(gm_device *device, const gm_watch *watch)
{
    return (watch->identity & GM_IDENTITY_OF_THREAD) == 0 ||
           device->ops->stream_identity(device, watch->stream) == watch->identity;
}

/* Nothing more is queued on a stream that has retired: its uses were noted before. */
void
gm_pending_note_uses_locked(gm_lane *lane, const gm_block *block)
{
    uint64_t own = atomic_load_explicit(&lane->identity, memory_order_relaxed);
    if (own != GM_NO_IDENTITY) {
        note_use(lane, block, own);
    }
    if (block->uses == 0) {
        return; /* then there is no list */
    }
    GM_LIST_FOREACH(link, &block->use_list) {
        const gm_use *use = GM_CONTAINER_OF(link, gm_use, block_link);
        if (use->watch->final == 0 &&
            is_of_this_thread(lane->pool->device, use->watch)) {
            note_use(lane, block, use->watch->identity);
        }
    }
}

/* Does a capture forbid a mark on the watch's stream? */
static bool
is_unmarkable(gm_lane *lane, const gm_watch *watch)
{
    return gm_lane_is_declared_locked(lane) ||
           gm_capture_is_on(lane->pool, watch->stream, watch->identity);
}

/* Marks what stands on the use's stream now. Pre: of this thread. */
static void
mark_use(gm_lane *lane, gm_use *use)
{
    gm_device *device = lane->pool->device;
    gm_status status =
        device->ops->event_record(device, use->event, use->watch->stream);
    set_due(use, false);
    use->lost = status != GM_OK;
    if (use->lost) {
        gm_pool_report(status,
                       "record an event for a freed block, whose memory is not used "
                       "again");
    }
}

void
gm_pending_file_locked(gm_lane *lane, gm_block *block)
{
    gm_device *device = lane->pool->device;
    gm_pending_note_uses_locked(lane, block);
    GM_LIST_FOREACH(link, &block->use_list) {
        gm_use *use = GM_CONTAINER_OF(link, gm_use, block_link);
        gm_watch *watch = use->watch;
        if (watch->final == 0 && is_of_this_thread(device, watch)) {
            if (!is_unmarkable(lane, watch)) {
                mark_use(lane, use);
            }
            else if ((watch->identity & GM_IDENTITY_OF_THREAD) == 0) {
                set_due(use, true); /* a thread's own one was marked, or is due */
            }
        }
        gm_list_push_back(&watch->uses, &use->watch_link);
    }
}

/* Marks what is due. False: something still is. */
static bool
mark_due(gm_lane *lane, gm_watch *watch)
{
    if (gm_list_is_empty(&watch->due)) {
        return true;
    }
    bool retired = watch->final != 0; /* its last event covers all uses */
    if (!retired &&
        (!is_of_this_thread(lane->pool->device, watch) || is_unmarkable(lane, watch))) {
        return false;
    }
    GM_LIST_FOREACH_SAFE(link, following, &watch->due) {
        gm_use *use = GM_CONTAINER_OF(link, gm_use, due_link);
        if (retired) {
            set_due(use, false);
        }
        else {
            mark_use(lane, use);
        }
    }
    return true;
}

void
gm_pending_mark_due_locked(gm_lane *lane)
{
    GM_LIST_FOREACH(link, &lane->watches) {
        (void)mark_due(lane, GM_CONTAINER_OF(link, gm_watch, link));
    }
}

/* Is the oldest freed use of this watch done? */
static bool
first_is_done(gm_lane *lane, gm_watch *watch, const gm_use *use)
{
    gm_device *device = lane->pool->device;
    if (use->lost) {
        return false;
    }
    gm_event event = watch->final != 0 ? watch->final : use->event;
    return device->ops->event_query(device, event) == GM_OK;
}

static void
poll_watch(gm_lane *lane, gm_watch *watch)
{
    bool declared =
        watch->final == 0 && gm_capture_is_declared(lane->pool, watch->identity);
    if (declared || !mark_due(lane, watch)) {
        return;
    }
    while (!gm_list_is_empty(&watch->uses)) {
        gm_use *use = GM_CONTAINER_OF(watch->uses.next, gm_use, watch_link);
        if (!first_is_done(lane, watch, use)) {
            return;
        }
        gm_block *block = use->block;
        bool last_of_watch = watch->users == 1;
        retire_use(lane, use);
        if (--block->uses == 0) {
            gm_lane_complete_free_locked(lane, block);
        }
        if (last_of_watch) {
            return;
        }
    }
}

void
gm_pending_poll_slow_locked(gm_lane *lane)
{
    if (gm_lane_is_declared_locked(lane)) {
        return;
    }
    GM_LIST_FOREACH_SAFE(link, following, &lane->watches) {
        poll_watch(lane, GM_CONTAINER_OF(link, gm_watch, link));
    }
    gm_lane_mark_locked(lane);
}

/* The lane's stream waits for each freed use of a watch, which is over with that. Returns
 * the blocks that came free. */
static size_t
insert_waits(gm_lane *lane, gm_watch *watch)
{
    size_t freed = 0;
    bool last_of_watch = false;
    if (!mark_due(lane, watch)) {
        return 0;
    }
    while (!last_of_watch && !gm_list_is_empty(&watch->uses)) {
        gm_use *use = GM_CONTAINER_OF(watch->uses.next, gm_use, watch_link);
        gm_event event = watch->final != 0 ? watch->final : use->event;
        if (use->lost || gm_lane_wait_for_locked(lane, event) != GM_OK) {
            break;
        }
        gm_block *block = use->block;
        last_of_watch = watch->users == 1;
        retire_use(lane, use);
        if (--block->uses == 0) {
            gm_lane_complete_free_locked(lane, block);
            freed++;
        }
    }
    return freed;
}

size_t
gm_pending_insert_waits_locked(gm_lane *lane)
{
    gm_device *device = lane->pool->device;
    bool capturing = false;
    size_t freed = 0;
    uint64_t identity = device->ops->stream_identity(device, lane->stream);
    /* The lane may have gone or changed hands: is its stream one that this thread can
     * make wait? */
    if (atomic_load_explicit(&lane->identity, memory_order_relaxed) != identity ||
        device->ops->stream_capturing(device, lane->stream, &capturing) != GM_OK ||
        capturing) {
        return 0;
    }
    GM_LIST_FOREACH_SAFE(link, following, &lane->watches) {
        freed += insert_waits(lane, GM_CONTAINER_OF(link, gm_watch, link));
    }
    return freed;
}

gm_event
gm_pending_oldest_locked(gm_lane *lane)
{
    GM_LIST_FOREACH(link, &lane->watches) {
        gm_watch *watch = GM_CONTAINER_OF(link, gm_watch, link);
        if (!gm_list_is_empty(&watch->uses) && gm_list_is_empty(&watch->due)) {
            gm_use *use = GM_CONTAINER_OF(watch->uses.next, gm_use, watch_link);
            if (!use->lost) {
                return watch->final != 0 ? watch->final : use->event;
            }
        }
    }
    return 0;
}

void
gm_pending_retire_stream_locked(gm_lane *lane, uint64_t identity)
{
    gm_device *device = lane->pool->device;
    gm_watch *watch = find_watch(lane, identity);
    gm_event event;
    if (watch == NULL || device->ops->event_create(device, &event) != GM_OK) {
        return;
    }
    if (device->ops->event_record(device, event, watch->stream) != GM_OK) {
        gm_status status = device->ops->event_destroy(device, event);
        (void)status;
        return;
    }
    watch->final = event;
}
