/* Scalar fp8 e4m3 (1 sign, 4 exponent, 3 fraction bits, bias 7; no infinity, NaN is 0x7F and 0xFF,
 * largest 448, smallest 2^-9) to f32 and back, and the scale of a row. Widening is exact. Narrowing
 * rounds to nearest even; finite values beyond 448 become 448, infinity becomes NaN: an overflow of
 * the computation is not hidden by the format. No branches, so that loops over them become vector
 * code. Thread: any. */
#ifndef SL_QUANT_FP8_H
#define SL_QUANT_FP8_H

#include "base/status.h"
#include "quant/half.h"
#include "spec/model.h"

#define SL_E4M3_MAX 448.0f

/* a where the condition holds, else b; as masks, which a compiler does not turn into branches. */
SL_FN uint32_t sl_fp8_pick(int condition, uint32_t a, uint32_t b) {
    uint32_t mask = 0u - (uint32_t)condition;
    return (a & mask) | (b & ~mask);
}

SL_FN float sl_e4m3_to_f32(uint8_t code) {
    int32_t u = code & 0x7f;
    uint32_t normal = (uint32_t)(u << 20) + (120u << 23); /* the bias of f32 is 120 larger */
    uint32_t subnormal = sl_f32_bits((float)u * 0x1p-9f);
    uint32_t v = sl_fp8_pick(u < 8, subnormal, normal);
    v = sl_fp8_pick(u == 0x7f, 0x7fc00000u, v);
    return sl_f32_of_bits(v | (uint32_t)(code & 0x80) << 24);
}

SL_FN uint8_t sl_f32_to_e4m3(float f) {
    uint32_t bits = sl_f32_bits(f), u = bits & 0x7fffffffu;
    uint32_t normal = ((u + 0x7ffffu + (u >> 20 & 1u)) >> 20) - (120u << 3);
    /* Below 2^-6 the unit is 2^-9: that of f32 at 2^14, whose adder rounds. */
    uint32_t subnormal = sl_f32_bits(sl_f32_of_bits(u) + 0x1p14f) - 0x46800000u;
    uint32_t code = sl_fp8_pick((int32_t)u < 0x3c800000, subnormal, normal);
    code = sl_fp8_pick((int32_t)u >= 0x43e80000, 0x7eu, code); /* 464 and above would carry */
    code = sl_fp8_pick((int32_t)u > 0x7f7fffff, 0x7fu, code);
    return (uint8_t)(code | (bits >> 24 & 0x80u));
}

/* The n values at w, those of a row from value `first` on, times the scales of its blocks of
 * SL_F8_BLOCK: one rounding each. */
static inline void sl_f8_decode(const uint8_t *w, const float *scale, size_t first, size_t n,
                                float *dst) {
    for (size_t i = 0; i < n;) {
        size_t at = first + i, end = SL_MIN(n, i + SL_F8_BLOCK - at % SL_F8_BLOCK);
        float s = scale[at / SL_F8_BLOCK];
        for (; i < end; i++) dst[i] = sl_e4m3_to_f32(w[i]) * s;
    }
}

/* The smallest power of two, at least 2^-126, that brings a finite value of these bits (sign
 * cleared) to 448 or less; 1 for zero. */
SL_FN float sl_e4m3_scale_of(uint32_t largest_bits) {
    if (largest_bits == 0) return 1;
    uint32_t e = largest_bits >> 23, over = (largest_bits & 0x7fffffu) > 0x600000u;
    e = e + over < 9 ? 1 : e + over - 8;
    return sl_f32_of_bits(e << 23);
}

/* 1 / scale of such a power of two, exact. */
SL_FN float sl_e4m3_inverse_of(float scale) {
    return sl_f32_of_bits((254u << 23) - sl_f32_bits(scale));
}

#endif
