/* options.h - what can be set on a pool, one row each.
 *
 * The table is the single source: defaults here, names in messages, keys of
 * GPUMEM_CONF and of gpumem.configure(), fields below.
 */
#ifndef GM_POOL_OPTIONS_H
#define GM_POOL_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* When pages of free blocks are moved to where pages are missing (pool/steal.c). */
typedef enum gm_steal_mode {
    GM_STEAL_NEVER = 0,  /* only when the pool cannot grow */
    GM_STEAL_ALWAYS = 1, /* before the pool grows */
    GM_STEAL_RATIO = 2,  /* once reserved > (1 + steal_ratio) * peak of used bytes */
} gm_steal_mode;

/* The highest steal_ratio. */
#define GM_STEAL_MOST 1000.0

typedef enum gm_cross_stream {
    GM_CROSS_STREAM_DONE =
        0, /* memory moves to another stream when its event is done */
    GM_CROSS_STREAM_WAIT = 1,  /* ... and, before the host waits, by an inserted wait */
    GM_CROSS_STREAM_NEVER = 2, /* ... never; each stream keeps what it has */
} gm_cross_stream;

typedef struct gm_pool_options {
    size_t limit;    /* bytes reserved at most; SIZE_MAX: none */
    size_t headroom; /* bytes left free on the device for others; 0: none */
    size_t reserve;  /* bytes taken at creation; 0: none */
    gm_steal_mode steal;
    double steal_ratio; /* 0 .. GM_STEAL_MOST, with GM_STEAL_RATIO */
    gm_cross_stream cross_stream;
    bool yields; /* idle memory goes back to the device before another pool of it
                             fails for want of that */
    bool gc_on_pressure;  /* the Python layer may collect garbage before failing */
    uint64_t oom_wait_ns; /* the ladder waits that long for pending work */
    uint64_t decay_ns;    /* idle memory older than this is given back by calls that
                                  pass by; 0: kept */
    size_t max_split;     /* bytes; whole-segment pools do not split cached blocks
                                  above this for smaller requests; SIZE_MAX: split all */
    bool paging;          /* use pages where the device has them */
} gm_pool_options;

/* The defaults: no limit, no head-room, nothing reserved, steal at 0.05, cross-stream
 * done, yields, collect on pressure, wait 10 s, no decay, split all, paging. */
void
gm_pool_options_init(gm_pool_options *options);

/* GM_OK, or GM_INVALID with the name of the bad field in *name (static text). */
GM_NODISCARD gm_status
gm_pool_options_validate(const gm_pool_options *options, const char **name);

#endif
