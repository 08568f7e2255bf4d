/* host_loops.h - the loops behind a gm_host_kernels, compiled once for each
 * instruction set by the file that includes this.
 *
 * The includer defines GM_LOOPS_TARGET, the attribute of every function here (it may
 * be empty). One that has instructions for fp16 defines GM_LOOPS_HALVES, a power of two,
 * and two functions that convert so many at once, to the bits that element.h gives:
 * widen_halves and narrow_halves. It gets GM_LOOPS_KERNELS(name), which initialises a
 * gm_host_kernels.
 *
 * Note [Blocks]
 * Work goes by blocks of LOOPS_BLOCK elements that are widened to fp64 in a small
 * array on the stack, which stays in the first-level cache. Every inner loop has that
 * constant count, which compilers vectorise at -O2 without a loop for the rest: a
 * short last block is padded with zeros instead. Arithmetic in fp64 rounds once, when
 * it is stored; the product of an fp32 and a weight does not round at all below 2**29.
 *
 * Note [Magnitudes as integers]
 * With the sign bit cleared, IEEE numbers are ordered as their bits are, and every NaN
 * is above infinity. So the largest pattern is the largest magnitude, or a NaN if
 * there is one.
 *
 * Thread-safety: pure functions, apart from the memory named.
 */
#ifndef GM_KERNELS_HOST_LOOPS_H
#define GM_KERNELS_HOST_LOOPS_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/element.h"
#include "kernels/kernels.h"

#define LOOPS_BLOCK 256

/* ---- one block from memory ------------------------------------------------------------ */

GM_LOOPS_TARGET static inline void
loops_f16_to_f32(const uint16_t *restrict source, float *restrict out)
{
#ifdef GM_LOOPS_HALVES
    for (size_t i = 0; i < LOOPS_BLOCK; i += GM_LOOPS_HALVES) {
        widen_halves(source + i, out + i);
    }
#else
    for (size_t i = 0; i < LOOPS_BLOCK; i++) {
        out[i] = gm_f16_to_f32(source[i]);
    }
#endif
}

GM_LOOPS_TARGET static inline void
loops_f32_to_f16(const float *restrict source, uint16_t *restrict out)
{
#ifdef GM_LOOPS_HALVES
    for (size_t i = 0; i < LOOPS_BLOCK; i += GM_LOOPS_HALVES) {
        narrow_halves(source + i, out + i);
    }
#else
    for (size_t i = 0; i < LOOPS_BLOCK; i++) {
        out[i] = gm_f32_to_f16(source[i]);
    }
#endif
}

/* A whole block of a type of at most 32 bits as fp32. */
GM_LOOPS_TARGET static inline void
loops_load_f32(gm_dtype type, const void *source, float *restrict out)
{
    if (type == GM_F16) {
        loops_f16_to_f32(source, out);
    }
    else if (type == GM_BF16) {
        const uint16_t *restrict halves = source;
        for (size_t i = 0; i < LOOPS_BLOCK; i++) {
            out[i] = gm_bf16_to_f32(halves[i]);
        }
    }
    else {
        memcpy(out, source, LOOPS_BLOCK * sizeof(float));
    }
}

/* A whole block as fp64. */
GM_LOOPS_TARGET static inline void
loops_load_f64(gm_dtype type, const void *source, double *restrict out)
{
    if (type == GM_F64) {
        memcpy(out, source, LOOPS_BLOCK * sizeof(double));
        return;
    }
    float narrow[LOOPS_BLOCK];
    loops_load_f32(type, source, narrow);
    for (size_t i = 0; i < LOOPS_BLOCK; i++) {
        out[i] = (double)narrow[i];
    }
}

GM_LOOPS_TARGET static inline void
loops_store_f64(gm_dtype type, const double *restrict source, void *target)
{
    if (type == GM_F64) {
        memcpy(target, source, LOOPS_BLOCK * sizeof(double));
        return;
    }
    float narrow[LOOPS_BLOCK];
    for (size_t i = 0; i < LOOPS_BLOCK; i++) {
        narrow[i] = (float)source[i];
    }
    if (type == GM_F16) {
        loops_f32_to_f16(narrow, target);
    }
    else if (type == GM_BF16) {
        uint16_t *restrict halves = target;
        for (size_t i = 0; i < LOOPS_BLOCK; i++) {
            halves[i] = gm_f32_to_bf16(narrow[i]);
        }
    }
    else {
        memcpy(target, narrow, sizeof(narrow));
    }
}

/* The block at `source`, or a copy in `room` that is padded with zeros when fewer than
 * LOOPS_BLOCK elements are left. */
GM_LOOPS_TARGET static inline const void *
loops_whole_block(const void *source, size_t left, size_t itemsize, void *room)
{
    if (left >= LOOPS_BLOCK) {
        return source;
    }
    memset(room, 0, LOOPS_BLOCK * itemsize);
    memcpy(room, source, left * itemsize);
    return room;
}

/* ---- accumulate and scale --------------------------------------------------------------- */

/* fp32 += fp32 rounds the same way in fp32: the sum of two is exact enough in fp64. */
GM_LOOPS_TARGET static inline void
loops_add_f32(float *restrict accumulator, const float *restrict source)
{
    for (size_t i = 0; i < LOOPS_BLOCK; i++) {
        accumulator[i] += source[i];
    }
}

GM_LOOPS_TARGET static inline void
loops_accumulate_block(gm_dtype accumulator_type, void *accumulator,
                       gm_dtype source_type, const void *source, double scale)
{
    double sum[LOOPS_BLOCK], term[LOOPS_BLOCK];
    loops_load_f64(accumulator_type, accumulator, sum);
    loops_load_f64(source_type, source, term);
    for (size_t i = 0; i < LOOPS_BLOCK; i++) {
        sum[i] += term[i] * scale;
    }
    loops_store_f64(accumulator_type, sum, accumulator);
}

GM_LOOPS_TARGET static void
loops_accumulate(gm_dtype accumulator_type, void *accumulator, gm_dtype source_type,
                 const void *source, size_t n, double scale)
{
    size_t wide = gm_dtype_size(accumulator_type), narrow = gm_dtype_size(source_type);
    bool plain = accumulator_type == GM_F32 && source_type == GM_F32 && scale == 1.0 &&
                 accumulator != source;
    char *target = accumulator;
    const char *from = source;
    double target_room[LOOPS_BLOCK], source_room[LOOPS_BLOCK];
    for (size_t left = n; left > 0;) {
        size_t count = left < LOOPS_BLOCK ? left : LOOPS_BLOCK;
        const void *block = loops_whole_block(from, left, narrow, source_room);
        if (plain && count == LOOPS_BLOCK) {
            loops_add_f32((float *)(void *)target, block);
        }
        else if (count == LOOPS_BLOCK) {
            loops_accumulate_block(accumulator_type, target, source_type, block, scale);
        }
        else {
            (void)loops_whole_block(target, left, wide, target_room);
            loops_accumulate_block(accumulator_type, target_room, source_type, block,
                                   scale);
            memcpy(target, target_room, count * wide);
        }
        target += count * wide;
        from += count * narrow;
        left -= count;
    }
}

GM_LOOPS_TARGET static void
loops_scale(gm_dtype type, void *values, size_t n, double scale)
{
    size_t itemsize = gm_dtype_size(type);
    char *target = values;
    double room[LOOPS_BLOCK], block[LOOPS_BLOCK];
    for (size_t left = n; left > 0;) {
        size_t count = left < LOOPS_BLOCK ? left : LOOPS_BLOCK;
        loops_load_f64(type, loops_whole_block(target, left, itemsize, room), block);
        for (size_t i = 0; i < LOOPS_BLOCK; i++) {
            block[i] *= scale;
        }
        loops_store_f64(type, block, room);
        memcpy(target, room, count * itemsize);
        target += count * itemsize;
        left -= count;
    }
}

/* See gm_divide_to_odd. */
GM_LOOPS_TARGET static inline void
loops_divide_to_odd(double *restrict block, double divisor)
{
    for (size_t i = 0; i < LOOPS_BLOCK; i++) {
        block[i] = gm_divide_to_odd(block[i], divisor);
    }
}

/* Rounded to fp64 and then to fp32, a quotient of two fp32 numbers is the exact one
 * rounded once: it is never so near to the middle of two others that fp64 takes it for
 * the middle. Other divisors need more care. */
GM_LOOPS_TARGET static void
loops_divide(gm_dtype type, void *values, size_t n, double divisor)
{
    size_t itemsize = gm_dtype_size(type);
    bool once = type == GM_F64 || (double)(float)divisor == divisor;
    char *target = values;
    double room[LOOPS_BLOCK], block[LOOPS_BLOCK];
    for (size_t left = n; left > 0;) {
        size_t count = left < LOOPS_BLOCK ? left : LOOPS_BLOCK;
        loops_load_f64(type, loops_whole_block(target, left, itemsize, room), block);
        if (once) {
            for (size_t i = 0; i < LOOPS_BLOCK; i++) {
                block[i] /= divisor;
            }
        }
        else {
            loops_divide_to_odd(block, divisor);
        }
        loops_store_f64(type, block, room);
        memcpy(target, room, count * itemsize);
        target += count * itemsize;
        left -= count;
    }
}

/* ---- magnitudes ----------------------------------------------------------------------------- */

/* See Note [Magnitudes as integers]. */
GM_LOOPS_TARGET static inline uint32_t
loops_highest_f32(const float *restrict block, uint32_t highest)
{
    int32_t lanes[8] = {0};
    for (size_t i = 0; i < LOOPS_BLOCK; i += 8) {
        for (size_t lane = 0; lane < 8; lane++) {
            int32_t bits = (int32_t)(gm_bits_of_f32(block[i + lane]) & 0x7fffffffu);
            lanes[lane] = bits > lanes[lane] ? bits : lanes[lane];
        }
    }
    for (size_t lane = 0; lane < 8; lane++) {
        highest = (uint32_t)lanes[lane] > highest ? (uint32_t)lanes[lane] : highest;
    }
    return highest;
}

GM_LOOPS_TARGET static inline uint64_t
loops_highest_f64(const double *restrict block, uint64_t highest)
{
    for (size_t i = 0; i < LOOPS_BLOCK; i++) {
        uint64_t bits;
        memcpy(&bits, &block[i], sizeof(bits));
        bits &= UINT64_MAX >> 1;
        highest = bits > highest ? bits : highest;
    }
    return highest;
}

GM_LOOPS_TARGET static double
loops_max_abs(gm_dtype type, const void *values, size_t n)
{
    size_t itemsize = gm_dtype_size(type);
    const char *from = values;
    double room[LOOPS_BLOCK], wide[LOOPS_BLOCK], result;
    float narrow[LOOPS_BLOCK];
    uint32_t highest_f32 = 0;
    uint64_t highest_f64 = 0;
    for (size_t left = n; left > 0;) {
        size_t count = left < LOOPS_BLOCK ? left : LOOPS_BLOCK;
        const void *block = loops_whole_block(from, left, itemsize, room);
        if (type == GM_F64) {
            loops_load_f64(type, block, wide);
            highest_f64 = loops_highest_f64(wide, highest_f64);
        }
        else {
            loops_load_f32(type, block, narrow);
            highest_f32 = loops_highest_f32(narrow, highest_f32);
        }
        from += count * itemsize;
        left -= count;
    }
    if (type != GM_F64) {
        return (double)gm_f32_of_bits(highest_f32);
    }
    memcpy(&result, &highest_f64, sizeof(result));
    return result;
}

/* ---- sums of powers -------------------------------------------------------------------------- */

/* block[i] = (|block[i]| / divisor) ** power. */
GM_LOOPS_TARGET static inline void
loops_powers(double *restrict block, double divisor, double power)
{
    for (size_t i = 0; i < LOOPS_BLOCK; i++) {
        block[i] = fabs(block[i]) / divisor;
    }
    if (power == 2.0) {
        for (size_t i = 0; i < LOOPS_BLOCK; i++) {
            block[i] *= block[i];
        }
    }
    else if (power != 1.0) {
        for (size_t i = 0; i < LOOPS_BLOCK; i++) {
            block[i] = pow(block[i], power);
        }
    }
}

/* The sum of a block as a balanced tree; destroys the block. */
GM_LOOPS_TARGET static inline double
loops_sum_block(double *block)
{
    for (size_t half = LOOPS_BLOCK / 2; half >= 8; half /= 2) {
        for (size_t i = 0; i < half; i += 8) {
            for (size_t lane = 0; lane < 8; lane++) {
                block[i + lane] += block[half + i + lane];
            }
        }
    }
    return ((block[0] + block[4]) + (block[2] + block[6])) +
           ((block[1] + block[5]) + (block[3] + block[7]));
}

/* Sums of equally many blocks are added first: level k of `partial` holds the sum of
 * 2**k blocks where bit k of the count of blocks is set. */
GM_LOOPS_TARGET static double
loops_power_sum(gm_dtype type, const void *values, size_t n, double divisor,
                double power)
{
    size_t itemsize = gm_dtype_size(type);
    const char *from = values;
    double room[LOOPS_BLOCK], block[LOOPS_BLOCK], partial[64], total = 0.0;
    size_t blocks = 0;
    for (size_t left = n; left > 0; blocks++) {
        size_t count = left < LOOPS_BLOCK ? left : LOOPS_BLOCK;
        loops_load_f64(type, loops_whole_block(from, left, itemsize, room), block);
        loops_powers(block, divisor, power);
        double sum = loops_sum_block(block);
        size_t level = 0;
        for (; (blocks >> level & 1) != 0; level++) {
            sum += partial[level];
        }
        partial[level] = sum;
        from += count * itemsize;
        left -= count;
    }
    for (size_t level = 0; blocks >> level != 0; level++) {
        if ((blocks >> level & 1) != 0) {
            total += partial[level];
        }
    }
    return total;
}

#define GM_LOOPS_KERNELS(name) \
    {name, loops_accumulate, loops_scale, loops_divide, loops_max_abs, loops_power_sum}

#endif
