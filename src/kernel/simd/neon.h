/* The sixteen virtual lanes as four NEON registers: what simd/ (table.h) is written in.
 * Comparisons choose as `a > b ? a : b` does, so NaN goes where the scalar code lets it go. */
#ifndef SL_KERNEL_SIMD_NEON_H
#define SL_KERNEL_SIMD_NEON_H

#include "kernel/scalar.h"

#include <arm_neon.h>

#define SIMD_R 2u /* activation rows and weight rows of a register tile: 6 of 8 lane groups */
#define SIMD_C 3u
#define SIMD_P 2u /* activation rows whose parts are multiplied together (simd/parts.h) */

typedef struct v16 {
    float32x4_t q[4];
} v16;

#define V_EACH _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++)

static inline v16 v_set1(float f) {
    v16 r;
    V_EACH r.q[i] = vdupq_n_f32(f);
    return r;
}
static inline v16 v_load(const float *p) {
    v16 r;
    V_EACH r.q[i] = vld1q_f32(p + 4 * i);
    return r;
}
static inline void v_store(float *p, v16 a) {
    V_EACH vst1q_f32(p + 4 * i, a.q[i]);
}
static inline v16 v_add(v16 a, v16 b) {
    V_EACH a.q[i] = vaddq_f32(a.q[i], b.q[i]);
    return a;
}
static inline v16 v_sub(v16 a, v16 b) {
    V_EACH a.q[i] = vsubq_f32(a.q[i], b.q[i]);
    return a;
}
static inline v16 v_mul(v16 a, v16 b) {
    V_EACH a.q[i] = vmulq_f32(a.q[i], b.q[i]);
    return a;
}
static inline v16 v_div(v16 a, v16 b) {
    V_EACH a.q[i] = vdivq_f32(a.q[i], b.q[i]);
    return a;
}
static inline v16 v_neg(v16 a) {
    V_EACH a.q[i] = vnegq_f32(a.q[i]);
    return a;
}
/* a * b + c, rounded once. */
static inline v16 v_fma(v16 a, v16 b, v16 c) {
    V_EACH c.q[i] = vfmaq_f32(c.q[i], a.q[i], b.q[i]);
    return c;
}
static inline v16 v_max(v16 a, v16 b) {
    V_EACH a.q[i] = vbslq_f32(vcgtq_f32(a.q[i], b.q[i]), a.q[i], b.q[i]);
    return a;
}
static inline v16 v_min(v16 a, v16 b) {
    V_EACH a.q[i] = vbslq_f32(vcltq_f32(a.q[i], b.q[i]), a.q[i], b.q[i]);
    return a;
}
/* The greatest of sixteen, none NaN. */
static inline float v_top(v16 a) {
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.q[0], a.q[1]), vmaxq_f32(a.q[2], a.q[3])));
}

/* p * 2^n in the two steps of sl_exp_scalar, t = n + SL_EXP_SHIFT. */
static inline v16 v_scale_exp(v16 p, v16 t) {
    const int32x4_t shift = vdupq_n_s32((int32_t)sl_f32_bits(SL_EXP_SHIFT));
    const int32x4_t bias = vdupq_n_s32(127);
    V_EACH {
        int32x4_t n = vsubq_s32(vreinterpretq_s32_f32(t.q[i]), shift), half = vshrq_n_s32(n, 1);
        int32x4_t a = vshlq_n_s32(vaddq_s32(half, bias), 23);
        int32x4_t b = vshlq_n_s32(vaddq_s32(vsubq_s32(n, half), bias), 23);
        p.q[i] = vmulq_f32(p.q[i], vreinterpretq_f32_s32(a));
        p.q[i] = vmulq_f32(p.q[i], vreinterpretq_f32_s32(b));
    }
    return p;
}

static inline v16 v_load_f16(const void *p) {
    v16 r;
    V_EACH {
        uint16x4_t h = vld1_u16((const uint16_t *)p + 4 * i);
        r.q[i] = vcvt_f32_f16(vreinterpret_f16_u16(h));
    }
    return r;
}
static inline v16 v_load_bf16(const void *p) {
    v16 r;
    V_EACH {
        uint16x4_t h = vld1_u16((const uint16_t *)p + 4 * i);
        r.q[i] = vreinterpretq_f32_u32(vshll_n_u16(h, 16));
    }
    return r;
}

/* Nearest even, NaN kept quiet. */
static inline void v_store_bf16(uint16_t *h, v16 a) {
    V_EACH {
        uint32x4_t u = vreinterpretq_u32_f32(a.q[i]), top = vshrq_n_u32(u, 16);
        uint32x4_t odd = vandq_u32(top, vdupq_n_u32(1));
        uint32x4_t near = vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
        uint32x4_t nan = vorrq_u32(top, vdupq_n_u32(0x40)), number = vceqq_f32(a.q[i], a.q[i]);
        vst1_u16(h + 4 * i, vmovn_u32(vbslq_u32(number, vshrq_n_u32(near, 16), nan)));
    }
}

/* Subnormals become zeros with their sign. */
static inline v16 v_normal(v16 a) {
    V_EACH {
        uint32x4_t u = vreinterpretq_u32_f32(a.q[i]);
        uint32x4_t low = vceqzq_u32(vandq_u32(u, vdupq_n_u32(0x7f800000)));
        u = vbicq_u32(u, vandq_u32(low, vdupq_n_u32(0x7fffffff)));
        a.q[i] = vreinterpretq_f32_u32(u);
    }
    return a;
}

/* Fused multiply-adds of BF16, as docs/numbers.md says of its products. FPCR.FZ would take numbers
 * below 2^-126 for zeros before they are rounded, not after: so v_fma_flush does it, and where a
 * result is 2^-126 it may have been either. */
static inline uint32_t v_flush_begin(void) {
    return 0;
}
static inline void v_flush_end(uint32_t was) {
    (void)was;
}
/* Lanes in which that has happened. */
typedef struct v_doubt {
    uint32x4_t any;
} v_doubt;
static inline v_doubt v_sure(void) {
    return (v_doubt){vdupq_n_u32(0)};
}
static inline bool v_doubtful(v_doubt d) {
    return vmaxvq_u32(d.any) != 0;
}
static inline v16 v_fma_flush(v16 a, v16 b, v16 c, v_doubt *d) {
    c = v_fma(a, b, c);
    V_EACH d->any = vorrq_u32(d->any, vceqq_f32(vabsq_f32(c.q[i]), vdupq_n_f32(0x1p-126f)));
    return v_normal(c);
}
/* Of numbers that are not subnormal; a sum that is, is exact. */
static inline v16 v_add_flush(v16 a, v16 b) {
    return v_normal(v_add(a, b));
}
/* Values 2i and 2i + 1 of 32 of BF16 in lane i; subnormals are zeros with their sign. */
static inline void v_load_pairs(const void *p, v16 *even, v16 *odd) {
    V_EACH {
        uint32x4_t w = vreinterpretq_u32_u8(vld1q_u8((const uint8_t *)p + 16 * i));
        even->q[i] = vreinterpretq_f32_u32(vshlq_n_u32(w, 16));
        odd->q[i] = vreinterpretq_f32_u32(vandq_u32(w, vdupq_n_u32(0xffff0000u)));
    }
    *even = v_normal(*even);
    *odd = v_normal(*odd);
}

/* The tree of every dot product. */
static inline float v_tree(v16 a) {
    float32x4_t lo = vaddq_f32(a.q[0], a.q[2]), hi = vaddq_f32(a.q[1], a.q[3]);
    float32x4_t four = vaddq_f32(lo, hi);
    float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

/* Sums of integers of sixteen weight rows and SIMD_ROWS rows of activations; how they are spread
 * until i_store is its matter. i_dot adds the products of SIMD_RUN codes of each weight row, which
 * lie row by row, with those of x from `at` on. */
#define SIMD_CODE_BIAS 0
#ifdef __ARM_FEATURE_MATMUL_INT8
#define SIMD_ROWS 2u
#define SIMD_RUN  8u
typedef struct i16x {
    int32x4_t q[8]; /* of two weight rows by two of activations */
} i16x;

static inline i16x i_zero(void) {
    i16x r;
    for (int i = 0; i < 8; i++) r.q[i] = vdupq_n_s32(0);
    return r;
}
static inline i16x i_dot(i16x a, const uint8_t *w, const int8_t *const *x, uint32_t at) {
    const int8x16_t xv = vcombine_s8(vld1_s8(x[0] + at), vld1_s8(x[1] + at));
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        a.q[i] = vmmlaq_s32(a.q[i], vld1q_s8((const int8_t *)w + 16 * i), xv);
    return a;
}
static inline void i_store(int32_t (*out)[16], i16x a) {
    V_EACH {
        vst1q_s32(out[0] + 4 * i, vuzp1q_s32(a.q[2 * i], a.q[2 * i + 1]));
        vst1q_s32(out[1] + 4 * i, vuzp2q_s32(a.q[2 * i], a.q[2 * i + 1]));
    }
}
#elif defined(__ARM_FEATURE_DOTPROD)
#define SIMD_ROWS 1u
#define SIMD_RUN  4u
typedef struct i16x {
    int32x4_t q[4];
} i16x;

static inline i16x i_zero(void) {
    i16x r;
    V_EACH r.q[i] = vdupq_n_s32(0);
    return r;
}
static inline i16x i_dot(i16x a, const uint8_t *w, const int8_t *const *x, uint32_t at) {
    const int8x16_t xv = vreinterpretq_s8_s32(vld1q_dup_s32((const void *)(x[0] + at)));
    V_EACH a.q[i] = vdotq_s32(a.q[i], vld1q_s8((const int8_t *)w + 16 * i), xv);
    return a;
}
static inline void i_store(int32_t (*out)[16], i16x a) {
    V_EACH vst1q_s32(out[0] + 4 * i, a.q[i]);
}
#else
#define SIMD_ROWS 1u
#define SIMD_RUN  4u
typedef struct i16x {
    int32x4_t lo[4], hi[4]; /* two partial sums of each of two rows */
} i16x;

static inline i16x i_zero(void) {
    i16x r;
    V_EACH r.lo[i] = r.hi[i] = vdupq_n_s32(0);
    return r;
}
static inline i16x i_dot(i16x a, const uint8_t *w, const int8_t *const *x, uint32_t at) {
    const int8x16_t xv = vreinterpretq_s8_s32(vld1q_dup_s32((const void *)(x[0] + at)));
    V_EACH {
        const int8x16_t wv = vld1q_s8((const int8_t *)w + 16 * i);
        a.lo[i] = vpadalq_s16(a.lo[i], vmull_s8(vget_low_s8(wv), vget_low_s8(xv)));
        a.hi[i] = vpadalq_s16(a.hi[i], vmull_s8(vget_high_s8(wv), vget_high_s8(xv)));
    }
    return a;
}
static inline void i_store(int32_t (*out)[16], i16x a) {
    V_EACH vst1q_s32(out[0] + 4 * i, vpaddq_s32(a.lo[i], a.hi[i]));
}
#endif

/* Always inline: gcc 12 takes a function that only asks for memory for one without effect, and
 * drops its calls. */
static inline __attribute__((always_inline)) void v_prefetch(const void *p) {
    __builtin_prefetch(p);
}

#endif
