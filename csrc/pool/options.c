/* options.c - see options.h. */
#include "pool/options.h"

#define NANOSECONDS UINT64_C(1000000000)

void
gm_pool_options_init(gm_pool_options *options)
{
    *options = (gm_pool_options){
        .limit = SIZE_MAX,
        .steal = GM_STEAL_RATIO,
        .steal_ratio = 0.05,
        .cross_stream = GM_CROSS_STREAM_DONE,
        .yields = true,
        .gc_on_pressure = true,
        .oom_wait_ns = 10 * NANOSECONDS,
        .max_split = SIZE_MAX,
        .paging = true,
    };
}

gm_status
gm_pool_options_validate(const gm_pool_options *options, const char **name)
{
    const char *bad = NULL;
    if (options->limit == 0) {
        bad = "limit";
    }
    else if (options->reserve > options->limit) {
        bad = "reserve";
    }
    else if ((unsigned)options->steal > GM_STEAL_RATIO ||
             (options->steal == GM_STEAL_RATIO &&
              !(options->steal_ratio >= 0 && options->steal_ratio <= GM_STEAL_MOST))) {
        bad = "steal";
    }
    else if ((unsigned)options->cross_stream > GM_CROSS_STREAM_NEVER) {
        bad = "cross_stream";
    }
    else if (options->max_split < ((size_t)1 << 20)) {
        bad = "max_split";
    }
    if (bad == NULL) {
        return GM_OK;
    }
    if (name != NULL) {
        *name = bad;
    }
    return GM_INVALID;
}
