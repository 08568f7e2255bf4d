/* check.c - walks a pool and re-derives every invariant. */
#include <stdio.h>

#include "pool/counting.h"

typedef struct check_walk {
    const char *broken; /* static text, or NULL */
    size_t mapped_bytes;
    size_t whole_bytes;
    uint64_t zombie_slots;
    uint64_t frame_zombies; /* what mapped pages say of them */
    size_t free_blocks;
    size_t index_entries;
    size_t lanes;
    size_t metadata;
} check_walk;

static const char *
check_counters(const gm_lane *lane)
{
    size_t pending = 0;
    for (unsigned i = 0; i < GM_ARENAS; i++) {
        const gm_arena *arena = &lane->shelves[i].arena;
        const gm_lane_stats *stats = &lane->shelves[i].stats;
        pending += stats->pending.blocks;
        gm_tally used = gm_lane_used_of(stats);
        if (used.bytes + stats->pending.bytes != arena->live_bytes) {
            return "used + pending differ from an arena's live blocks";
        }
        if (stats->inactive_peak.bytes < gm_arena_cached_bytes(arena) ||
            (!lane->rising && stats->peak.bytes < used.bytes)) {
            return "a peak is lower than its current value";
        }
        if (lane->shelves[i].segment_bytes.current != arena->mapped_bytes) {
            return "segment bytes differ from an arena's mapped bytes";
        }
    }
    return pending == lane->pending_blocks ? NULL
                                           : "the number of pending blocks is wrong";
}

/* Every watch has as many users as uses, freed ones are queued in it. */
static const char *
check_pending(const gm_lane *lane)
{
    for (const gm_list *link = lane->watches.next; link != &lane->watches;
         link = link->next) {
        const gm_watch *watch =
            (const gm_watch *)(const void *)((const char *)link -
                                             offsetof(gm_watch, link));
        size_t queued = 0;
        for (const gm_list *use_link = watch->uses.next; use_link != &watch->uses;
             use_link = use_link->next) {
            const gm_use *use =
                (const gm_use *)(const void *)((const char *)use_link -
                                               offsetof(gm_use, watch_link));
            if (gm_block_state_of(use->block) != GM_HEAP_PENDING) {
                return "a use waits for a block that is not pending";
            }
            queued++;
        }
        if (watch->users == 0 || queued > watch->users) {
            return "a stream's watch has the wrong number of users";
        }
        for (const gm_list *due_link = watch->due.next; due_link != &watch->due;
             due_link = due_link->next) {
            const gm_use *use =
                (const gm_use *)(const void *)((const char *)due_link -
                                               offsetof(gm_use, due_link));
            if (use->watch != watch) {
                return "a mark is due at another stream's watch";
            }
        }
    }
    return NULL;
}

/* A zombie's slots still map pages that know of it, which are others' by now. */
static const char *
check_zombie(const gm_zombie *zombie)
{
    for (size_t i = 0; i < zombie->count; i++) {
        const gm_slot *slot = &zombie->chunk->slots[zombie->first_slot + i];
        if (slot->state != GM_SLOT_ZOMBIE) {
            return "a slot of a zombie is in use";
        }
        if (slot->frame == NULL || atomic_load(&slot->frame->zombies) == 0 ||
            slot->frame->looted) {
            return "a page does not know of a zombie that maps it";
        }
    }
    return NULL;
}

/* Listed zombies stand in the order in which their work is done. */
static const char *
check_zombies(const gm_lane *lane)
{
    uint64_t frees = 0;
    for (const gm_list *link = lane->zombies.next; link != &lane->zombies;
         link = link->next) {
        const gm_zombie *zombie =
            (const gm_zombie *)(const void *)((const char *)link -
                                              offsetof(gm_zombie, link));
        if (zombie->count == 0 || zombie->frees < frees ||
            zombie->frees > lane->frees) {
            return "zombies are not in the order of their last uses";
        }
        frees = zombie->frees;
        const char *text = check_zombie(zombie);
        if (text != NULL) {
            return text;
        }
    }
    return NULL;
}

static void
sum_zombies(const gm_arena *arena, check_walk *walk)
{
    GM_LIST_FOREACH(link, &arena->chunks) {
        const gm_chunk *chunk = GM_CONTAINER_OF(link, gm_chunk, link);
        walk->zombie_slots += chunk->zombie_slots;
        for (size_t i = 0; i < chunk->slot_count; i++) {
            const gm_slot *slot = &chunk->slots[i];
            if (slot->state == GM_SLOT_MAPPED) {
                walk->frame_zombies += atomic_load(&slot->frame->zombies);
            }
        }
    }
}

static bool
check_lane(gm_lane *lane, void *argument)
{
    check_walk *walk = argument;
    gm_lane_drain_locked(lane);
    for (unsigned i = 0; i < GM_ARENAS && walk->broken == NULL; i++) {
        const gm_arena *arena = &lane->shelves[i].arena;
        walk->broken = gm_arena_check(arena);
        if (walk->broken == NULL) {
            sum_zombies(arena, walk);
        }
        if (arena->page_size != 0) {
            walk->mapped_bytes += arena->mapped_bytes;
        }
        else {
            walk->whole_bytes += arena->mapped_bytes;
        }
    }
    if (walk->broken == NULL) {
        walk->broken = check_counters(lane);
    }
    if (walk->broken == NULL) {
        walk->broken = check_pending(lane);
    }
    if (walk->broken == NULL) {
        walk->broken = check_zombies(lane);
    }
    return walk->broken == NULL;
}

/* How often pages came or went; UINT64_MAX while one is on its way. */
static uint64_t
change_count_locked(const gm_page_pool *pages)
{
    return pages->in_flight == 0 && pages->leaving == 0 ? pages->changes : UINT64_MAX;
}

static size_t
free_pages_locked(const gm_page_pool *pages, uint64_t *zombies)
{
    size_t count = 0;
    for (const gm_frame *frame = pages->free; frame != NULL; frame = frame->next) {
        *zombies += atomic_load(&frame->zombies);
        count++;
    }
    return count;
}

/* What may change while the lanes are walked one by one. */
typedef struct check_moment {
    uint64_t changes; /* of pages */
    uint64_t unmaps;  /* counted before pages forget a zombie */
} check_moment;

/* The page pool's own sums, and those of the walk unless pages came or went since
 * `before`. */
static const char *
check_page_pool(gm_pool *pool, const check_walk *walk, check_moment before)
{
    gm_page_pool *pages = &pool->page_pool;
    const char *broken = NULL;
    gm_mutex_lock(&pages->lock);
    bool quiet = before.changes != UINT64_MAX &&
                 change_count_locked(pages) == before.changes &&
                 pages->quarantined == 0;
    uint64_t zombies = walk->frame_zombies;
    size_t free_pages = free_pages_locked(pages, &zombies);
    size_t in_flight_pages =
        pool->page_size == 0 ? 0 : pages->in_flight / pool->page_size;
    size_t created =
        (pages->created - (pool->paged ? in_flight_pages : 0)) * pool->page_size;
    if (pages->reserved.current != created + pages->whole_bytes) {
        broken = "reserved bytes differ from the pages and segments that exist";
    }
    else if (pages->count > pages->created || pages->count != free_pages ||
             pages->created > gm_slab_live(&pages->frames)) {
        broken = "the stack of free pages is larger than the pages that exist";
    }
    else if (quiet && created != walk->mapped_bytes + pages->count * pool->page_size) {
        broken = "pages are neither mapped nor free";
    }
    else if (quiet && pages->whole_bytes != walk->whole_bytes) {
        broken = "segments are reserved that no arena holds";
    }
    else if (quiet && atomic_load(&pool->unmaps) == before.unmaps &&
             zombies != walk->zombie_slots) {
        broken = "pages know of more or fewer zombies than there are";
    }
    gm_mutex_unlock(&pages->lock);
    return broken;
}

gm_status
gm_pool_check(gm_pool *pool, char *text, size_t text_size)
{
    check_walk walk = {0};
    if (gm_pool_is_forked(pool)) {
        return GM_FORKED;
    }
    check_moment before = {.unmaps = atomic_load(&pool->unmaps)};
    gm_mutex_lock(&pool->page_pool.lock);
    before.changes = change_count_locked(&pool->page_pool);
    gm_mutex_unlock(&pool->page_pool.lock);
    gm_lanes_visit(pool, check_lane, &walk);
    if (walk.broken == NULL) {
        walk.broken = check_page_pool(pool, &walk, before);
    }
    if (walk.broken == NULL && !gm_peaks_check(pool)) {
        walk.broken = "the budgets of the lanes are more than the pool's peaks";
    }
    if (walk.broken == NULL) {
        return GM_OK;
    }
    if (text != NULL && text_size != 0) {
        (void)snprintf(text, text_size, "%s", walk.broken);
    }
    return GM_INVALID;
}

static bool
size_lane(gm_lane *lane, void *argument)
{
    check_walk *walk = argument;
    gm_lane_drain_locked(lane);
    for (unsigned i = 0; i < GM_ARENAS; i++) {
        const gm_arena *arena = &lane->shelves[i].arena;
        walk->free_blocks += arena->free_blocks;
        walk->index_entries +=
            gm_free_index_count(&arena->mapped) + (arena->loose != NULL);
        GM_LIST_FOREACH(link, &arena->chunks) {
            const gm_chunk *chunk = GM_CONTAINER_OF(link, gm_chunk, link);
            walk->metadata += sizeof(*chunk) + chunk->slot_count * sizeof(gm_slot);
        }
    }
    walk->metadata += gm_slab_bytes(&lane->nodes) + gm_slab_bytes(&lane->uses) +
                      gm_slab_bytes(&lane->watches_slab);
    walk->lanes++;
    return true;
}

void
gm_pool_read_sizes(gm_pool *pool, size_t *free_blocks, size_t *index_entries,
                   size_t *lanes, size_t *metadata_bytes)
{
    check_walk walk = {0};
    if (!gm_pool_is_forked(pool)) {
        gm_lanes_visit(pool, size_lane, &walk);
    }
    *free_blocks = walk.free_blocks;
    *index_entries = walk.index_entries;
    *lanes = walk.lanes;
    *metadata_bytes = walk.metadata;
}
