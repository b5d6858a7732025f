/* Scalar f16 and bf16 to f32 and back; exact when widening, nearest even when narrowing, NaN kept
 * quiet. bf16 is the upper half of an f32; f16 is IEEE 754 binary16. Thread: any. */
#ifndef SL_QUANT_HALF_H
#define SL_QUANT_HALF_H

#include "base/fn.h"

#include <stdint.h>
#include <string.h>

SL_FN uint32_t sl_f32_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

SL_FN float sl_f32_of_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

SL_FN float sl_bf16_to_f32(uint16_t h) {
    return sl_f32_of_bits((uint32_t)h << 16);
}

SL_FN uint16_t sl_f32_to_bf16(float f) {
    uint32_t u = sl_f32_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

SL_FN float sl_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exp = h >> 10 & 0x1fu, frac = h & 0x3ffu;
    if (exp == 0) { /* zero and subnormals: frac * 2^-24 is exact */
        float v = (float)frac * 0x1.0p-24f;
        return sl_f32_of_bits(sl_f32_bits(v) | sign);
    }
    if (exp == 31) return sl_f32_of_bits(sign | 0x7f800000u | frac << 13 | (frac ? 0x400000u : 0));
    return sl_f32_of_bits(sign | (exp + 112) << 23 | frac << 13);
}

SL_FN uint16_t sl_f32_to_f16(float f) {
    uint32_t u = sl_f32_bits(f), sign = u >> 16 & 0x8000u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (u >> 13 & 0x1ffu));
    if (u >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and above round to infinity */
    if (u < 0x38800000u) { /* below 2^-14: units of 2^-24, rounded by the adder */
        float v = sl_f32_of_bits(u) + 0.5f;
        return (uint16_t)(sign | (sl_f32_bits(v) - 0x3f000000u));
    }
    u += 0xfffu + (u >> 13 & 1u);
    return (uint16_t)(sign | (u - 0x38000000u) >> 13);
}

#endif
