/* bits.h - integer helpers: powers of two, alignment with overflow check, bit scans.
 *
 * Thread-safety: pure functions.
 */
#ifndef GM_BASE_BITS_H
#define GM_BASE_BITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

static inline bool
gm_is_pow2(uint64_t value)
{
    return value != 0 && (value & (value - 1)) == 0;
}

/* Index of the lowest set bit. Pre: value != 0. */
static inline unsigned
gm_lowest_bit(uint64_t value)
{
    return (unsigned)__builtin_ctzll(value);
}

/* Index of the highest set bit. Pre: value != 0. */
static inline unsigned
gm_highest_bit(uint64_t value)
{
    return 63u - (unsigned)__builtin_clzll(value);
}

/* Largest multiple of `alignment` that is <= value. Pre: alignment is a power of 2. */
static inline uint64_t
gm_align_down(uint64_t value, uint64_t alignment)
{
    return value & ~(alignment - 1);
}

/* Smallest multiple of `alignment` that is >= value, for values known not to
 * overflow. Pre: alignment is a power of 2 and value + alignment fits. */
static inline uint64_t
gm_align_up_unchecked(uint64_t value, uint64_t alignment)
{
    return (value + alignment - 1) & ~(alignment - 1);
}

/* As above where a size enters from outside: GM_INVALID instead of wrapping. */
GM_NODISCARD static inline gm_status
gm_align_up(uint64_t value, uint64_t alignment, uint64_t *out)
{
    if (!gm_is_pow2(alignment) || value > UINT64_MAX - (alignment - 1)) {
        return GM_INVALID;
    }
    *out = gm_align_up_unchecked(value, alignment);
    return GM_OK;
}

#endif
