/* clocks.c - what comes before what; see Note [Clocks] in work.h. */
#include <stdlib.h>
#include <string.h>

#include "work.h"

typedef struct fake_lane {
    uint64_t issued; /* numbers that were given out, ever */
    bool vacant;
} fake_lane;

static fake_lane *lanes;
static size_t lane_count, lane_capacity;
static fake_clock known; /* what the host knows to be finished */

static uint64_t
clock_at(const fake_clock *clock, size_t lane)
{
    return lane < clock->size ? clock->counts[lane] : 0;
}

static void
clock_reserve(fake_clock *clock, size_t size)
{
    if (size > clock->size) {
        clock->counts = fake_grow(clock->counts, size * sizeof(*clock->counts));
        memset(clock->counts + clock->size, 0,
               (size - clock->size) * sizeof(*clock->counts));
        clock->size = size;
    }
}

void
fake_clock_free(fake_clock *clock)
{
    free(clock->counts);
    *clock = (fake_clock){0};
}

void
fake_clock_join(fake_clock *into, const fake_clock *from)
{
    clock_reserve(into, from->size);
    for (size_t i = 0; i < from->size; i++) {
        if (into->counts[i] < from->counts[i]) {
            into->counts[i] = from->counts[i];
        }
    }
}

/* A lane whose stream is gone serves another one once the host knows that all on it is
 * finished: nothing can be confused then, and clocks do not grow for ever. */
size_t
fake_lane_take_locked(void)
{
    for (size_t i = 0; i < lane_count; i++) {
        if (lanes[i].vacant && fake_is_known_locked(i, lanes[i].issued)) {
            lanes[i].vacant = false;
            return i;
        }
    }
    (void)fake_push(&lanes, &lane_count, &lane_capacity, sizeof(*lanes));
    return lane_count - 1;
}

void
fake_lane_give_locked(size_t lane)
{
    lanes[lane].vacant = true;
}

void
fake_lane_number_locked(fake_op *op)
{
    op->number = ++lanes[op->lane].issued;
    clock_reserve(&op->clock, op->lane + 1);
    op->clock.counts[op->lane] = op->number;
}

void
fake_learn_locked(const fake_op *op)
{
    fake_clock_join(&known, &op->clock);
}

void
fake_learn_clock_locked(const fake_clock *clock)
{
    fake_clock_join(&known, clock);
}

bool
fake_is_known_locked(size_t lane, uint64_t number)
{
    return number <= clock_at(&known, lane);
}

bool
fake_is_before_locked(size_t lane, uint64_t number, const fake_op *op)
{
    return number <= clock_at(&op->clock, lane) || fake_is_known_locked(lane, number);
}

void
fake_clocks_reset_locked(void)
{
    fake_clock_free(&known);
    lane_count = 0;
}
