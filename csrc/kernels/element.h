/* element.h - one element at a time: fp16 and bf16 from and to fp32.
 *
 * The 16-bit types are storage: arithmetic is done in fp32 or wider. Conversions to
 * them round to nearest, ties to even; what is too large becomes infinite. A NaN keeps
 * its sign and what fits of its payload, and fp16 conversions make it quiet. No step has
 * a subnormal fp32 operand that matters, so a thread that flushes those to zero gets the
 * same results.
 *
 * Everything is written without branches on data, for loops that the compiler turns
 * into vector code.
 *
 * No product and sum may be fused into one operation that rounds once, or instruction
 * sets would give different bits: builds say -ffp-contract=off, and compilers that have
 * the pragma are told here, too.
 *
 * Thread-safety: pure functions.
 */
#ifndef GM_KERNELS_ELEMENT_H
#define GM_KERNELS_ELEMENT_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

static inline uint32_t
gm_bits_of_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float
gm_f32_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* ---- fp16: 1 sign, 5 exponent, 10 fraction bits ------------------------------------ */

static inline float
gm_f16_to_f32(uint16_t half)
{
    uint32_t sign = ((uint32_t)half & 0x8000u) << 16;
    uint32_t magnitude = (uint32_t)half & 0x7fffu;
    uint32_t normal = (magnitude << 13) + (112u << 23);
    uint32_t quiet = magnitude > 0x7c00u ? 0x00400000u : 0u;
    uint32_t special = (magnitude << 13) | 0x7f800000u | quiet;
    uint32_t subnormal = gm_bits_of_f32((float)(int32_t)magnitude * 0x1p-24f);
    uint32_t bits = magnitude < 0x0400u ? subnormal : normal;
    bits = magnitude >= 0x7c00u ? special : bits;
    return gm_f32_of_bits(bits | sign);
}

static inline uint16_t
gm_f32_to_f16(float value)
{
    uint32_t bits = gm_bits_of_f32(value);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t odd = (magnitude >> 13) & 1u;
    uint32_t normal = (magnitude + 0xfffu + odd - (112u << 23)) >> 13;
    /* The unit of 0.5f in the last place is 2**-24, that of fp16's subnormals. */
    uint32_t subnormal =
        gm_bits_of_f32(gm_f32_of_bits(magnitude) + 0.5f) - gm_bits_of_f32(0.5f);
    uint32_t not_a_number = 0x7e00u | ((magnitude >> 13) & 0x03ffu);
    uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
    half = magnitude >= 0x477ff000u ? 0x7c00u : half;
    half = magnitude > 0x7f800000u ? not_a_number : half;
    return (uint16_t)(half | sign);
}

/* ---- bf16: the upper half of an fp32 ------------------------------------------------- */

static inline float
gm_bf16_to_f32(uint16_t half)
{
    return gm_f32_of_bits((uint32_t)half << 16);
}

static inline uint16_t
gm_f32_to_bf16(float value)
{
    uint32_t bits = gm_bits_of_f32(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t not_a_number = (bits >> 16) | 0x0040u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? not_a_number : rounded);
}

/* ---- division ------------------------------------------------------------------------ */

/* value / divisor in fp64, rounded to odd: a quotient that is not exact gets its last
 * bit set, on the side of zero where the exact one lies. Rounded once more, to fp32 or
 * less, that is the exact quotient rounded once, where a quotient rounded to nearest may
 * have become a tie that it was not. Pre: divisor > 0. */
static inline double
gm_divide_to_odd(double value, double divisor)
{
    double quotient = value / divisor;
    double rest = fma(-quotient, divisor, value);
    uint64_t bits;
    memcpy(&bits, &quotient, sizeof(bits));
    uint64_t odd = bits & 1;
    uint64_t away =
        (uint64_t)((rest > 0.0 && value > 0.0) | (rest < 0.0 && value < 0.0));
    uint64_t back =
        (uint64_t)((rest < 0.0 && value > 0.0) | (rest > 0.0 && value < 0.0));
    bits = odd != 0 ? bits : bits + away - back;
    memcpy(&quotient, &bits, sizeof(quotient));
    return quotient;
}

#endif
