/* steal.c - pages move from free blocks to where they are needed.
 *
 * A free block keeps its pages, so that the next allocation there costs nothing. When
 * another place misses pages, those of free blocks are nearer than the device's:
 *
 *     done      the work on the block is finished: its pages are unmapped and go to the
 *               page pool, from where the placement takes them
 *     not done  with GM_CAP_ALIASING a page is mapped at its new place at once, because
 *               work there is on the same stream and comes later. The old place is a
 *               zombie: still mapped for the work that is on its way, used for nothing
 *               new, unmapped when that work is done
 *
 * Note [When to steal]
 * A steal costs two calls of the device, growing costs one and memory. options.steal
 * says how much memory a call may cost: with a ratio r the pool grows while
 *
 *     reserved <= (1 + r) * peak of used bytes, or the peak and 8 pages
 *
 * and steals above that, as long as steals took less than a hundredth of the pool's
 * life. From half of r on, places are chosen tightly for a while (arena_tight.c). With
 * GM_STEAL_ALWAYS it steals first, with GM_STEAL_NEVER only when it cannot
 * grow (gm_terms.force).
 *
 * Note [Borrowed pages]
 * With gm_terms.borrow, pages of other lanes' free blocks are taken as well. Work on such a
 * block that is not done is ordered by a wait: the own stream waits for a mark on the
 * other one, so that the page may be mapped at its new place at once, as with the own
 * stream's; its old place is a zombie of the other lane. Both lanes are locked until the
 * placement has committed or not (gm_loot.victims); one that is busy is passed over.
 *
 * Everything here is bookkeeping until the placement commits: a steal that comes to
 * nothing leaves done pages in the page pool and revives its zombies.
 */
#include "pool/internal.h"

/* A small pool may hold so many pages more than its peak at any ratio: moving the few that
 * it has to and fro would gain nothing. */
#define STEAL_SLACK 8.0

/* Steals may take one part in so many of a pool's life. */
#define STEAL_TIME_SHARE 100u

/* The room to grow is short when less than this part of what is used is left. */
#define SHORT_ROOM 0.05

/* So many blocks are placed tightly once pages are short, or the room to grow is. */
#define SHORT_SPELL 2048u
#define LONG_SPELL 131072u

/* Zombies may map so many times what is reserved: with a device that does not come on, a
 * program would use up addresses, page tables and the system's count of mappings. */
#define MOST_ZOMBIES 8u

/* So many other lanes may give pages to one placement; all are locked meanwhile. */
#define MOST_VICTIMS 16u

/* ---- how many -------------------------------------------------------------------- */

/* Of the pages that are missing those that shall not be new ones, if the pool may grow by
 * `part` of what options.steal_ratio allows. */
static size_t
count_wanted(gm_pool *pool, size_t missing, gm_terms terms, double part)
{
    gm_page_pool *pages = &pool->page_pool;
    const gm_pool_options *options = &pool->options;
    gm_mutex_lock(&pages->lock);
    size_t found = pages->count;
    uint64_t reserved = pages->reserved.current + pages->in_flight;
    gm_mutex_unlock(&pages->lock);
    if (missing <= found) {
        return 0;
    }
    size_t needed = missing - found, due = 0;
    if (options->steal == GM_STEAL_ALWAYS) {
        due = needed;
    }
    else if (options->steal == GM_STEAL_RATIO) {
        double demand = (double)terms.demand;
        double least = STEAL_SLACK * (double)pool->page_size;
        double allowed = options->steal_ratio * demand;
        allowed = part * (allowed > least ? allowed : least);
        double room = demand + allowed - (double)reserved;
        size_t growth = room > 0 ? (size_t)(room / (double)pool->page_size) : 0;
        due = needed > growth ? needed - growth : 0;
    }
    size_t forced = terms.force / pool->page_size;
    forced = forced < needed ? forced : needed;
    return due > forced ? due : forced;
}

/* Would the pool soon have taken all that it may? */
static bool
is_room_short(gm_pool *pool, size_t missing, gm_terms terms)
{
    size_t needed = missing * pool->page_size;
    size_t spare = (size_t)((double)terms.demand * SHORT_ROOM);
    gm_shortage ignored;
    return gm_page_pool_foresee(pool, (needed + spare) / pool->page_size, &ignored) !=
           GM_OK;
}

/* ---- which ------------------------------------------------------------------------ */

/* Whole slots under a free block that a placement does not use: [first, end). */
typedef struct slot_range {
    size_t first;
    size_t end;
} slot_range;

/* Those above the placement, or below it; all above if it lies in another block. */
static slot_range
slots_of(const gm_arena *arena, const gm_block *block, const gm_placement *placement,
         bool above)
{
    slot_range found = {0};
    size_t count = gm_arena_inner_slots(arena, block, &found.first);
    found.end = found.first + count;
    if (block != placement->block) {
        return above ? found : (slot_range){0};
    }
    size_t used = placement->first_slot, unused = used + placement->slot_count;
    if (above) {
        found.first = unused > found.first ? unused : found.first;
    }
    else {
        found.end = used < found.end ? used : found.end;
    }
    return found.first < found.end ? found : (slot_range){0};
}

/* The highest run of at most `most` mapped slots: *count of them from the first. */
static size_t
last_run(const gm_chunk *chunk, slot_range slots, size_t most, size_t *count)
{
    size_t end = slots.end;
    while (end > slots.first && chunk->slots[end - 1].state != GM_SLOT_MAPPED) {
        end--;
    }
    size_t first = end;
    while (first > slots.first && end - first < most &&
           chunk->slots[first - 1].state == GM_SLOT_MAPPED) {
        first--;
    }
    *count = end - first;
    return first;
}

/* What one steal is about. */
typedef struct steal {
    gm_lane *lane;    /* that is searched */
    gm_lane *wanting; /* the placement's */
    gm_event after;   /* of another lane: what `wanting` has to wait for; 0: it does */
    const gm_placement *placement;
    size_t wanted; /* pages, still */
    bool failed;   /* a page could not be moved: no more is tried */
    gm_loot *loot;
} steal;

static bool
goes_on(const steal *self)
{
    return self->wanted != 0 && !self->failed;
}

/* Unmaps pages of a block whose work is done. */
static void
take_done(steal *self, gm_arena *arena, gm_block *block, slot_range slots)
{
    size_t count;
    size_t first = last_run(block->chunk, slots, self->wanted, &count);
    while (count != 0 && goes_on(self)) {
        size_t bytes = 0;
        gm_status status =
            gm_source_unmap_locked(self->lane, arena, block, first, count, &bytes);
        self->wanted -= bytes / arena->page_size;
        if (status != GM_OK) {
            gm_pool_report(status, "move a page");
            self->failed = true;
        }
        slots.end = first;
        first = last_run(block->chunk, slots, self->wanted, &count);
    }
}

/* The pages of a run become loot, its slots zombies. */
static void
loot_run(steal *self, gm_arena *arena, gm_block *block, size_t first, size_t count)
{
    gm_lane *lane = self->lane;
    gm_loot *loot = self->loot;
    gm_chunk *chunk = block->chunk;
    for (size_t i = count; i-- > 0;) {
        gm_frame *frame = chunk->slots[first + i].frame;
        atomic_fetch_add(&frame->zombies, 1);
        frame->looted = true;
        frame->next = loot->frames;
        loot->frames = frame;
    }
    loot->count += count;
    self->wanted -= count;
    gm_zombie *zombie = gm_slab_take(&lane->zombie_slab);
    *zombie = (gm_zombie){.arena = arena,
                          .chunk = chunk,
                          .block = block,
                          .first_slot = first,
                          .count = count,
                          .frees = block->freed_at};
    gm_list_push_back(&loot->zombies, &zombie->link);
    gm_arena_remove_pages(arena, block, first, count, GM_SLOT_ZOMBIE);
}

/* Whatever may fail before pages of undone blocks are taken. */
static bool
is_prepared(steal *self)
{
    if (gm_slab_reserve(&self->lane->zombie_slab, 1) != GM_OK) {
        return false;
    }
    if (self->after != 0) {
        if (gm_lane_wait_for_locked(self->wanting, self->after) != GM_OK) {
            return false;
        }
        self->after = 0;
    }
    return true;
}

static void
take_undone(steal *self, gm_arena *arena, gm_block *block, slot_range slots)
{
    while (goes_on(self)) {
        size_t count;
        size_t first = last_run(block->chunk, slots, self->wanted, &count);
        if (count == 0) {
            return;
        }
        if (!is_prepared(self)) {
            self->failed = true;
            return;
        }
        loot_run(self, arena, block, first, count);
        slots.end = first;
    }
}

/* Takes pages of the arena's free blocks, done or not. */
static void
search_arena(steal *self, gm_arena *arena, bool done)
{
    uint64_t covered = self->lane->marker.done;
    gm_block *next = gm_arena_next_cached(arena, NULL);
    while (next != NULL && goes_on(self)) {
        gm_block *block = next;
        next = gm_arena_next_cached(arena, block);
        for (int above = 1; above >= 0 && (block->freed_at <= covered) == done;
             above--) {
            slot_range slots = slots_of(arena, block, self->placement, above != 0);
            (done ? take_done : take_undone)(self, arena, block, slots);
        }
    }
}

/* Takes pages whose work is not done, as far as zombies have room. */
static void
search_undone(steal *self, gm_arena *arena, gm_arena *other)
{
    gm_pool *pool = self->lane->pool;
    size_t most = MOST_ZOMBIES * gm_page_pool_reserved(pool) / pool->page_size;
    size_t bytes[2], ignored;
    gm_arena_measure_chunks(arena, &bytes[0], &ignored);
    gm_arena_measure_chunks(other, &bytes[1], &ignored);
    size_t zombies = (bytes[0] + bytes[1]) / pool->page_size;
    size_t room = most > zombies ? most - zombies : 0;
    size_t beyond = self->wanted > room ? self->wanted - room : 0;
    self->wanted -= beyond;
    search_arena(self, arena, false);
    search_arena(self, other, false);
    self->wanted += beyond;
}

/* Takes pages of the placement's own lane: those that are done first. */
static void
search_own(steal *self, gm_arena *arena)
{
    gm_lane *lane = self->wanting;
    gm_arena *other = &lane->shelves[arena->small ? GM_LARGE : GM_SMALL].arena;
    bool marked = gm_lane_is_done_locked(lane) || lane->marker.count != 0;
    search_arena(self, arena, true);
    search_arena(self, other, true);
    if (marked && gm_device_has(lane->pool->device, GM_CAP_ALIASING)) {
        search_undone(self, arena, other);
    }
}

/* Takes pages of another lane, done or not. */
static void
search_victim(steal *self, gm_lane *victim) GM_REQUIRES(victim->lock)
{
    gm_arena *large = &victim->shelves[GM_LARGE].arena;
    gm_arena *small = &victim->shelves[GM_SMALL].arena;
    if (atomic_load_explicit(&victim->kind, memory_order_relaxed) == GM_ARENA_STABLE ||
        gm_lane_is_capturing_locked(victim)) {
        return;
    }
    gm_lane_drain_locked(victim);
    gm_pending_poll_locked(victim);
    gm_steal_bury_locked(victim);
    self->lane = victim;
    self->after = gm_lane_cover_locked(victim);
    search_arena(self, large, true);
    search_arena(self, small, true);
    if (self->after != 0) {
        search_undone(self, large, small);
    }
}

/* Whoever gave something stays locked. Pre: the lanes lock is held. */
static void
search_victims(steal *self) GM_NO_THREAD_ANALYSIS
{
    gm_pool *pool = self->wanting->pool;
    gm_loot *loot = self->loot;
    unsigned left = MOST_VICTIMS;
    GM_LIST_FOREACH(link, &pool->lanes) {
        gm_lane *victim = GM_CONTAINER_OF(link, gm_lane, link);
        if (victim == self->wanting || left == 0 || !goes_on(self) ||
            !gm_mutex_try_lock(&victim->lock)) {
            continue;
        }
        size_t before = loot->count;
        search_victim(self, victim);
        if (loot->count == before) {
            gm_mutex_unlock(&victim->lock);
            continue;
        }
        victim->next_victim = loot->victims;
        loot->victims = victim;
        left--;
    }
}

static void
release_victims(gm_loot *loot) GM_NO_THREAD_ANALYSIS
{
    while (loot->victims != NULL) {
        gm_lane *victim = loot->victims;
        loot->victims = victim->next_victim;
        gm_mutex_unlock(&victim->lock);
    }
}

/* ---- the clock ------------------------------------------------------------------- */

static bool
has_time(gm_pool *pool, uint64_t now)
{
    uint64_t spent = atomic_load_explicit(&pool->steal_ns, memory_order_relaxed);
    return spent <= (now - pool->created_ns) / STEAL_TIME_SHARE;
}

/* ---- verbs ----------------------------------------------------------------------- */

size_t
gm_steal_spell_locked(gm_lane *lane, size_t missing, gm_terms terms)
{
    gm_pool *pool = lane->pool;
    if (missing == 0) {
        return 0;
    }
    if (pool->options.steal == GM_STEAL_RATIO && is_room_short(pool, missing, terms)) {
        return LONG_SPELL;
    }
    return count_wanted(pool, missing, terms, 0.5) != 0 ? SHORT_SPELL : 0;
}

static size_t
count_cached_locked(const gm_lane *lane) GM_REQUIRES(lane->lock)
{
    return (gm_arena_cached_bytes(&lane->shelves[GM_SMALL].arena) +
            gm_arena_cached_bytes(&lane->shelves[GM_LARGE].arena)) /
           lane->pool->page_size;
}

/* Of all other lanes that are not busy. Pre: the lanes lock is held. */
static size_t
count_cached_elsewhere(const gm_lane *lane) GM_NO_THREAD_ANALYSIS
{
    size_t count = 0;
    GM_LIST_FOREACH(link, &lane->pool->lanes) {
        gm_lane *other = GM_CONTAINER_OF(link, gm_lane, link);
        if (other != lane && gm_mutex_try_lock(&other->lock)) {
            count += count_cached_locked(other);
            gm_mutex_unlock(&other->lock);
        }
    }
    return count;
}

size_t
gm_steal_most_locked(gm_lane *lane, gm_terms terms)
{
    if (terms.force == 0 && lane->pool->options.steal == GM_STEAL_NEVER) {
        return 0;
    }
    return count_cached_locked(lane) +
           (terms.borrow ? count_cached_elsewhere(lane) : 0);
}

void
gm_steal_locked(gm_lane *lane, gm_arena *arena, const gm_placement *placement,
                gm_terms terms, gm_loot *out)
{
    gm_pool *pool = lane->pool;
    gm_device *device = pool->device;
    gm_steal_bury_locked(lane);
    size_t wanted = count_wanted(pool, placement->missing, terms, 1);
    *out = (gm_loot){.unmet = wanted};
    gm_list_init(&out->zombies);
    if (wanted != 0 && gm_lane_is_capturing_locked(lane)) {
        out->unmet = 0; /* nor may memory of other lanes move now */
        return;
    }
    if (wanted == 0) {
        return;
    }
    uint64_t start = device->ops->clock_ns(device);
    if (terms.force == 0 && !has_time(pool, start)) {
        out->unmet = 0;
        return;
    }
    steal self = {.lane = lane,
                  .wanting = lane,
                  .placement = placement,
                  .wanted = wanted,
                  .loot = out};
    if (atomic_load_explicit(&lane->kind, memory_order_relaxed) != GM_ARENA_STABLE) {
        search_own(&self, arena);
    }
    if (terms.borrow) {
        search_victims(&self);
    }
    out->unmet = self.failed ? 0 : self.wanted;
    lane->behind = out->count != 0;
    size_t done = wanted - self.wanted - out->count;
    atomic_fetch_add(&pool->stolen_bytes, done * pool->page_size);
    atomic_fetch_add(&pool->steal_ns, device->ops->clock_ns(device) - start);
}

static gm_devptr
address_of(const gm_zombie *zombie)
{
    return zombie->chunk->base +
           (uint64_t)zombie->first_slot * zombie->arena->page_size;
}

/* The slots of a zombie belong to their block again. */
static void
revive(gm_zombie *zombie)
{
    gm_lane *lane = zombie->arena->owner;
    for (size_t i = 0; i < zombie->count; i++) {
        gm_frame *frame = zombie->chunk->slots[zombie->first_slot + i].frame;
        atomic_fetch_sub(&frame->zombies, 1);
        frame->looted = false;
    }
    gm_arena_revive_pages(zombie->arena, zombie->block, zombie->first_slot,
                          zombie->count);
    gm_list_remove(&zombie->link);
    gm_slab_give(&lane->zombie_slab, zombie);
}

/* The slots have lost their pages for good. Filed behind zombies whose work is done
 * earlier. */
static void
confirm(gm_zombie *zombie)
{
    gm_lane *lane = zombie->arena->owner;
    size_t bytes = zombie->count * zombie->arena->page_size;
    for (size_t i = 0; i < zombie->count; i++) {
        zombie->chunk->slots[zombie->first_slot + i].frame->looted = false;
    }
    gm_list *before = lane->zombies.prev;
    while (before != &lane->zombies &&
           GM_CONTAINER_OF(before, gm_zombie, link)->frees > zombie->frees) {
        before = before->prev;
    }
    gm_list_remove(&zombie->link);
    gm_list_push_front(before, &zombie->link);
    gm_count_segments_locked(zombie->arena, -(int64_t)zombie->count, bytes);
    gm_source_trace_locked(lane, GM_TRACE_SEGMENT_UNMAP, address_of(zombie), bytes);
}

void
gm_steal_settle_locked(gm_lane *lane, gm_loot *loot, bool committed)
{
    gm_pool *pool = lane->pool;
    if (committed) {
        atomic_fetch_add(&pool->stolen_bytes, loot->count * pool->page_size);
        atomic_fetch_add(&pool->aliased_bytes, loot->count * pool->page_size);
    }
    GM_LIST_FOREACH_SAFE(link, following, &loot->zombies) {
        gm_zombie *zombie = GM_CONTAINER_OF(link, gm_zombie, link);
        if (committed) {
            confirm(zombie);
        }
        else {
            revive(zombie);
        }
    }
    release_victims(loot);
}

void
gm_steal_bury_locked(gm_lane *lane)
{
    if (gm_list_is_empty(&lane->zombies) || gm_lane_is_capturing_locked(lane)) {
        return;
    }
    gm_device *device = lane->pool->device;
    uint64_t done = gm_lane_done_locked(lane);
    GM_LIST_FOREACH_SAFE(link, following, &lane->zombies) {
        gm_zombie *zombie = GM_CONTAINER_OF(link, gm_zombie, link);
        gm_chunk *chunk = zombie->chunk;
        size_t page_size = zombie->arena->page_size;
        if (zombie->frees > done) {
            return;
        }
        gm_status status =
            device->ops->unmap(device, address_of(zombie), zombie->count * page_size);
        if (status == GM_CAPTURING) {
            return; /* another stream captures: later */
        }
        if (status == GM_OK) {
            atomic_fetch_add(&lane->pool->unmaps, zombie->count);
            for (size_t i = 0; i < zombie->count; i++) {
                gm_frame *frame = chunk->slots[zombie->first_slot + i].frame;
                atomic_fetch_sub(&frame->zombies, 1);
            }
            gm_arena_bury_pages(chunk, zombie->first_slot, zombie->count);
        }
        else {
            gm_pool_report(status, "unmap a page that was given elsewhere");
        }
        gm_list_remove(&zombie->link);
        gm_slab_give(&lane->zombie_slab, zombie);
    }
}
