/* The formulas that define results, inline so that every instruction set and CUDA compile the same
 * operations with their own hardware: a fused multiply-add is always written fmaf or fma, anything
 * else rounds. Both C11 and CUDA read this text. Thread: any. */
#ifndef SL_KERNEL_FORMULA_H
#define SL_KERNEL_FORMULA_H

#include "base/fn.h"
#include "quant/half.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define SL_DOT_LANES    16
#define SL_SWIGLU_ALPHA 1.702f

/* s[0..15] to one value: s[i] += s[i+8], s[i] += s[i+4], s[i] += s[i+2], s[0] + s[1]. */
SL_FN float sl_tree16(const float *s) {
    float t[8];
    for (int i = 0; i < 8; i++) t[i] = s[i] + s[i + 8];
    for (int i = 0; i < 4; i++) t[i] = t[i] + t[i + 4];
    for (int i = 0; i < 2; i++) t[i] = t[i] + t[i + 2];
    return t[0] + t[1];
}

/* exp: x = n ln2 + r, |r| <= ln2/2, Taylor to r^7 (relative error below 6e-9), then 2^n in two
 * steps so that subnormal results round once. Rounding to the integer n is done by adding 1.5 *
 * 2^23. */
#define SL_EXP_MIN   (-105.0f)
#define SL_EXP_MAX   90.0f
#define SL_EXP_LOG2E 0x1.715476p+0f
#define SL_EXP_LN2HI 0x1.62e4p-1f /* 15 bits: n * LN2HI is exact */
#define SL_EXP_LN2LO 0x1.7f7d1cp-20f
#define SL_EXP_SHIFT 0x1.8p+23f
#define SL_EXP_C7    0x1.a01a02p-13f
#define SL_EXP_C6    0x1.6c16c2p-10f
#define SL_EXP_C5    0x1.111112p-7f
#define SL_EXP_C4    0x1.555556p-5f
#define SL_EXP_C3    0x1.555556p-3f

SL_FN float sl_exp_scalar(float x) {
    x = SL_EXP_MIN > x ? SL_EXP_MIN : x;
    x = SL_EXP_MAX < x ? SL_EXP_MAX : x;
    float t = fmaf(x, SL_EXP_LOG2E, SL_EXP_SHIFT);
    float n = t - SL_EXP_SHIFT;
    float r = fmaf(n, -SL_EXP_LN2HI, x);
    r = fmaf(n, -SL_EXP_LN2LO, r);
    float p = fmaf(SL_EXP_C7, r, SL_EXP_C6);
    p = fmaf(p, r, SL_EXP_C5);
    p = fmaf(p, r, SL_EXP_C4);
    p = fmaf(p, r, SL_EXP_C3);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    int32_t i = (int32_t)(sl_f32_bits(t) - sl_f32_bits(SL_EXP_SHIFT));
    int32_t half = i >> 1;
    float a = sl_f32_of_bits((uint32_t)(half + 127) << 23);
    float b = sl_f32_of_bits((uint32_t)(i - half + 127) << 23);
    return p * a * b;
}

SL_FN float sl_sigmoid_scalar(float x) {
    return 1.0f / (1.0f + sl_exp_scalar(-x));
}

/* y weighed by the sigmoid of its gate; of itself: silu. */
SL_FN float sl_gated_scalar(float y, float gate) {
    return y / (1.0f + sl_exp_scalar(-gate));
}

/* log(1 + e^x): x above 20, else by log of y = 1 + e^x in f64, y = 2^n m, m in [sqrt(1/2),
 * sqrt(2)), log m = 2 atanh(t), t = (m - 1) / (m + 1), to t^13. */
#define SL_LN2_F64     0x1.62e42fefa39efp-1
#define SL_SQRT2_BELOW 0x3fe6a09e667f3bcdull /* bits of sqrt(1/2) */

SL_FN float sl_softplus_scalar(float x) {
    if (!(x <= 20)) return x;
    double y = 1.0 + (double)sl_exp_scalar(x), m;
    uint64_t bits;
    memcpy(&bits, &y, sizeof bits);
    const int64_t n = (int64_t)(bits - SL_SQRT2_BELOW) >> 52;
    bits -= (uint64_t)n << 52;
    memcpy(&m, &bits, sizeof m);
    const double t = (m - 1.0) / (m + 1.0), z = t * t;
    double p = fma(z, 1.0 / 13.0, 1.0 / 11.0);
    p = fma(p, z, 1.0 / 9.0);
    p = fma(p, z, 1.0 / 7.0);
    p = fma(p, z, 1.0 / 5.0);
    p = fma(p, z, 1.0 / 3.0);
    p = fma(p * z, 2.0 * t, 2.0 * t);
    return (float)fma((double)n, SL_LN2_F64, p);
}

/* Of linear attention (docs/numbers.md): what a token leaves of a head's state. */
SL_FN float sl_decay_scalar(float a, float shift, float rate) {
    return sl_exp_scalar(-(rate * sl_softplus_scalar(a + shift)));
}

/* Within +-limit; NaN stays. */
SL_FN float sl_clip_scalar(float x, float limit) {
    const float v = x > limit ? limit : x;
    return v < -limit ? -limit : v;
}

SL_FN float sl_swiglu_scalar(float gate, float up) {
    return sl_gated_scalar(gate, gate) * up;
}

SL_FN float sl_swiglu_clamped_scalar(float gate, float up, float limit) {
    float g = limit < gate ? limit : gate;
    float u = limit < up ? limit : up;
    u = -limit > u ? -limit : u;
    return g / (1.0f + sl_exp_scalar(-(SL_SWIGLU_ALPHA * g))) * (u + 1.0f);
}

/* sin and cos of a, |a| < 2^30: a = n pi/2 + r, pi/2 in two parts, Taylor to r^13 and r^14. */
#define SL_PIO2_INV 0x1.45f306dc9c883p-1
#define SL_PIO2_HI  0x1.921fb54442d18p+0
#define SL_PIO2_LO  0x1.1a62633145c07p-54
#define SL_RND_F64  0x1.8p+52

SL_FN void sl_sincos_scalar(double a, float *c, float *s) {
    double t = fma(a, SL_PIO2_INV, SL_RND_F64);
    double n = t - SL_RND_F64;
    double r = fma(n, -SL_PIO2_HI, a);
    r = fma(n, -SL_PIO2_LO, r);
    double z = r * r;
    double ps = fma(z, 1.0 / 6227020800.0, -1.0 / 39916800.0);
    ps = fma(ps, z, 1.0 / 362880.0);
    ps = fma(ps, z, -1.0 / 5040.0);
    ps = fma(ps, z, 1.0 / 120.0);
    ps = fma(ps, z, -1.0 / 6.0);
    double sn = fma(ps * z, r, r);
    double pc = fma(z, -1.0 / 87178291200.0, 1.0 / 479001600.0);
    pc = fma(pc, z, -1.0 / 3628800.0);
    pc = fma(pc, z, 1.0 / 40320.0);
    pc = fma(pc, z, -1.0 / 720.0);
    pc = fma(pc, z, 1.0 / 24.0);
    pc = fma(pc, z, -0.5);
    double cs = fma(pc, z, 1.0);
    uint64_t q;
    memcpy(&q, &t, sizeof q); /* its low bits are n */
    double sv = q & 1 ? cs : sn, cv = q & 1 ? sn : cs;
    *s = (float)(q & 2 ? -sv : sv);
    *c = (float)((q + 1) & 2 ? -cv : cv);
}

/* ---- routers ---- */

/* The order in which experts are taken: NaN never wins over a number. */
SL_FN bool sl_outranks(float a, float b) {
    return a > b || (b != b && a == a);
}

#endif
