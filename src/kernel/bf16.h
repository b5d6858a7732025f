/* The scalar steps of rows and weights in BF16 as their products take them (docs/numbers.md,
 * products of BF16), for C and CUDA. Thread: any. */
#ifndef SL_KERNEL_BF16_H
#define SL_KERNEL_BF16_H

#include "quant/half.h"

#define SL_BF16_LEAST 0x1p-126f /* normal number */
#define SL_BF16_PART  32u       /* values that are summed apart, where that is the numeric */

/* A subnormal is a zero with its sign. */
SL_FN uint16_t sl_bf16_normal(uint16_t h) {
    return h & 0x7f80u ? h : (uint16_t)(h & 0x8000u);
}

/* Nearest even of a normal number. */
SL_FN uint16_t sl_bf16_round(float f) {
    const uint32_t u = sl_f32_bits(f);
    return u & 0x7f800000u ? sl_f32_to_bf16(f) : (uint16_t)(u >> 16 & 0x8000u);
}

#endif
