/* peaks.c - the peaks of a pool with several lanes: exact, and no shared counter.
 *
 * Note [Budgets]
 * A peak of the pool is the highest sum of what its lanes use. Adding that up at each
 * allocation would make all threads write the same words. Instead every lane has a
 * budget in each measure, dealt out so that
 *
 *     sum of budgets <= peak
 *
 * and while no lane is above its own, no peak can have been passed. An allocation that
 * goes above asks for a survey afterwards: the lanes are summed, the peaks raised, and
 * what lies between sum and peak is dealt out in equal parts. Surveys are frequent only
 * while a peak is being made or is near.
 *
 * A survey on the way of an allocation waits for nobody. If a thread is inside its lane
 * the survey is left to the next allocation above its budget; what that thread adds is
 * at one time with it, so that either order is as true.
 */
#include "pool/counting.h"

static inline void
set_budget(gm_lane *lane, gm_tally budget)
{
    atomic_store_explicit(&lane->budget.blocks, budget.blocks, memory_order_relaxed);
    atomic_store_explicit(&lane->budget.bytes, budget.bytes, memory_order_relaxed);
    atomic_store_explicit(&lane->budget.requested, budget.requested,
                          memory_order_relaxed);
}

/* Equal parts of what lies between the sum and the peaks, on top of what was seen. */
static void
deal_out(gm_pool *pool, gm_tally sum, uint64_t lanes) GM_REQUIRES(pool->lanes_lock)
{
    const gm_tally *peaks = &pool->peaks;
    gm_tally share = {.blocks = (peaks->blocks - sum.blocks) / lanes,
                      .bytes = (peaks->bytes - sum.bytes) / lanes,
                      .requested = (peaks->requested - sum.requested) / lanes};
    GM_LIST_FOREACH(link, &pool->lanes) {
        gm_lane *lane = GM_CONTAINER_OF(link, gm_lane, link);
        set_budget(lane, gm_tally_sum(lane->surveyed, share));
    }
}

/* False: a lane was busy, and nothing has changed. */
static bool
survey_locked(gm_pool *pool, bool wait) GM_REQUIRES(pool->lanes_lock)
{
    gm_tally sum = {0};
    uint64_t lanes = 0;
    GM_LIST_FOREACH(link, &pool->lanes) {
        gm_lane *lane = GM_CONTAINER_OF(link, gm_lane, link);
        if (wait) {
            gm_mutex_lock(&lane->lock);
        }
        else if (!gm_mutex_try_lock(&lane->lock)) {
            return false;
        }
        lane->surveyed = gm_lane_used_both(lane);
        gm_mutex_unlock(&lane->lock);
        sum = gm_tally_sum(sum, lane->surveyed);
        lanes++;
    }
    gm_raise_peaks(&pool->peaks, sum);
    atomic_store_explicit(&pool->peak_used, pool->peaks.bytes, memory_order_relaxed);
    if (lanes != 0) {
        deal_out(pool, sum, lanes);
    }
    return true;
}

void
gm_peaks_start_locked(gm_lane *first)
{
    gm_pool *pool = first->pool;
    gm_count_settle_locked(first);
    pool->peaks = first->peaks.used;
    atomic_store_explicit(&pool->peak_used, pool->peaks.bytes, memory_order_relaxed);
    atomic_store_explicit(&pool->many_lanes, true, memory_order_relaxed);
}

void
gm_peaks_join(gm_lane *lane)
{
    set_budget(lane, (gm_tally){0});
}

void
gm_peaks_survey(gm_pool *pool)
{
    if (gm_mutex_try_lock(&pool->lanes_lock)) {
        (void)survey_locked(pool, false);
        gm_mutex_unlock(&pool->lanes_lock);
    }
}

bool
gm_peaks_read(gm_pool *pool, gm_tally *out)
{
    if (!atomic_load_explicit(&pool->many_lanes, memory_order_relaxed)) {
        return false;
    }
    gm_mutex_lock(&pool->lanes_lock);
    (void)survey_locked(pool, true);
    *out = pool->peaks;
    gm_mutex_unlock(&pool->lanes_lock);
    return true;
}

void
gm_peaks_reset(gm_pool *pool)
{
    gm_mutex_lock(&pool->lanes_lock);
    pool->peaks = (gm_tally){0};
    (void)survey_locked(pool, true);
    gm_mutex_unlock(&pool->lanes_lock);
}

bool
gm_peaks_check(gm_pool *pool)
{
    gm_tally sum = {0};
    gm_mutex_lock(&pool->lanes_lock);
    GM_LIST_FOREACH(link, &pool->lanes) {
        const gm_budget *budget = &GM_CONTAINER_OF(link, gm_lane, link)->budget;
        sum.blocks += atomic_load_explicit(&budget->blocks, memory_order_relaxed);
        sum.bytes += atomic_load_explicit(&budget->bytes, memory_order_relaxed);
        sum.requested += atomic_load_explicit(&budget->requested, memory_order_relaxed);
    }
    const gm_tally *peaks = &pool->peaks;
    bool right = sum.blocks <= peaks->blocks && sum.bytes <= peaks->bytes &&
                 sum.requested <= peaks->requested;
    gm_mutex_unlock(&pool->lanes_lock);
    return right;
}
