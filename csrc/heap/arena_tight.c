/* arena_tight.c - the place that takes the fewest free pages.
 *
 * Note [Tight places]
 * Where pages move to where they are missing (pool/steal.c), a free page is worth the
 * same wherever it is, mapped or not; what is lost are the parts of pages that live
 * blocks touch and do not fill. So a place is judged by the number of pages under it
 * that no live block touches yet:
 *
 *     |####live####|........ hole ........|###live###|      # in use
 *     |       page |  page  |  page  |  page   |            2 whole pages are free
 *                  |<- a block here takes 1 ->|
 *
 * Both ends of each hole are looked at, the lower one first: a block at the upper end
 * may fill a page that the neighbour above has begun. Among equals the lowest address
 * wins. Where all large blocks are placed so, the smallest hole wins among places that
 * take no page: long ones stay long; and where moves leave zombies behind, the place with
 * most pages comes before both. Each packs best of what was measured where it is used
 * (docs/decisions/0009-stealing.md).
 */
#include "base/bits.h"
#include "heap/arena_index.h"

/* What was found so far. */
typedef struct search {
    const gm_arena *arena;
    size_t alignment;
    gm_placement *best;
    size_t taken; /* pages */
    bool found;
    gm_tight_rule rule;
} search;

/* The pages under a placement that no live block touches. */
static size_t
count_taken(const gm_arena *arena, const gm_placement *place)
{
    const gm_block *hole = place->block;
    size_t page = arena->page_size;
    uint64_t start = gm_block_start(hole) + place->front;
    uint64_t low = gm_align_up_unchecked(gm_block_start(hole), page);
    uint64_t high = gm_align_down(gm_block_end(hole), page);
    uint64_t first = gm_align_down(start, page);
    uint64_t end = gm_align_up_unchecked(start + place->size, page);
    first = first < low ? low : first;
    end = end > high ? high : end;
    return end > first ? (size_t)(end - first) / page : 0;
}

static bool
is_better(const search *self, const gm_placement *place, size_t taken)
{
    const gm_placement *best = self->best;
    if (!self->found || taken != self->taken) {
        return !self->found || taken < self->taken;
    }
    if (self->rule == GM_TIGHT_STAY && place->missing != best->missing) {
        return place->missing < best->missing;
    }
    size_t length = place->block->size, best_length = best->block->size;
    if (self->rule != GM_TIGHT_LOW && taken == 0 && length != best_length) {
        return length < best_length;
    }
    return gm_block_start(place->block) < gm_block_start(best->block);
}

static void
judge(search *self, const gm_placement *place)
{
    size_t taken = count_taken(self->arena, place);
    if (is_better(self, place, taken)) {
        *self->best = *place;
        self->taken = taken;
        self->found = true;
    }
}

/* The end of the addresses is no live block: there only the lower end counts. */
static void
look_at(search *self, gm_block *hole, size_t size)
{
    gm_placement place;
    if (gm_arena_measure_place(self->arena, hole, size, self->alignment, &place)) {
        judge(self, &place);
    }
    if (hole->next != NULL && hole->size > size) {
        uint64_t at = gm_align_down(gm_block_end(hole) - size, self->alignment);
        if (at > gm_block_start(hole) &&
            gm_arena_measure_place_at(self->arena, hole, size,
                                      (size_t)(at - gm_block_start(hole)), &place)) {
            judge(self, &place);
        }
    }
}

bool
gm_arena_find_tight(gm_arena *arena, size_t size, size_t alignment, gm_tight_rule rule,
                    gm_placement *out)
{
    search self = {.arena = arena, .alignment = alignment, .best = out, .rule = rule};
    gm_arena_file_loose(arena);
    gm_block *hole = gm_free_index_next(&arena->mapped, size, NULL);
    for (; hole != NULL; hole = gm_free_index_next(&arena->mapped, size, hole)) {
        if (!hole->partial) {
            look_at(&self, hole, size);
        }
    }
    hole = gm_free_index_next(&arena->sparse, size, NULL);
    for (; hole != NULL; hole = gm_free_index_next(&arena->sparse, size, hole)) {
        look_at(&self, hole, size);
    }
    return self.found;
}
