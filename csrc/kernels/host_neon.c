/* host_neon.c - the loops with NEON's conversions of halves, on aarch64, where every CPU
 * has them. Compilers use NEON for the other loops, in the baseline, too. */
#include "kernels/host_kernels.h"

#if defined(__aarch64__)

#include <arm_neon.h>
#include <stdint.h>

#define GM_LOOPS_TARGET
#define GM_LOOPS_HALVES 8

static inline void
widen_halves(const uint16_t *source, float *out)
{
    float16x8_t halves = vreinterpretq_f16_u16(vld1q_u16(source));
    vst1q_f32(out, vcvt_f32_f16(vget_low_f16(halves)));
    vst1q_f32(out + 4, vcvt_high_f32_f16(halves));
}

static inline void
narrow_halves(const float *source, uint16_t *out)
{
    float16x4_t low = vcvt_f16_f32(vld1q_f32(source));
    float16x8_t halves = vcvt_high_f16_f32(low, vld1q_f32(source + 4));
    vst1q_u16(out, vreinterpretq_u16_f16(halves));
}

#include "kernels/host_loops.h"

const gm_host_kernels *
gm_host_kernels_neon(void)
{
    static const gm_host_kernels kernels = GM_LOOPS_KERNELS("neon");
    return &kernels;
}

#else

const gm_host_kernels *
gm_host_kernels_neon(void)
{
    return NULL;
}

#endif
