/* Rows of activations in 8 bits, for integer products with weights in blocks (docs/numbers.md).
 *
 * A row of k values is cut into blocks of 32 or 256, as the weights are. With a = max |x| of a
 * block, scale = a / 127 and code[i] = x[i] * (127 / a), rounded to nearest even. A block whose a
 * is below SL_ACT_TINY is all zeros with scale 0; one that holds NaN or infinity has codes 0 and
 * the scale NaN, so whatever it touches becomes NaN. A row lies as
 *   code   int8 [k]
 *   scale  f32  [k / block]
 *   sum    int16 [k / 32] or [k / 16]   of so many codes
 * Thread: any. */
#ifndef SL_QUANT_ACT_H
#define SL_QUANT_ACT_H

#include "spec/activations.h"
#include "spec/model.h"

#define SL_ACT_TINY 0x1p-100f

/* Values of a block of activations; what a type of weights asks for. */
typedef enum sl_act_kind {
    SL_ACT_32,
    SL_ACT_256,
    SL_ACT_KINDS,
    SL_ACT_NONE = SL_ACT_KINDS
} sl_act_kind;

/* SL_ACT_NONE: there is no integer product with this type. */
static inline sl_act_kind sl_act_kind_of(sl_dtype t) {
    switch (t) {
    case SL_Q8_0:
    case SL_Q4_0:
        return SL_ACT_32;
    case SL_Q4_K:
    case SL_Q5_K:
    case SL_Q6_K:
        return SL_ACT_256;
    default:
        return SL_ACT_NONE;
    }
}

/* The rows that a plan with these activations multiplies such weights with; SL_ACT_NONE: f32. */
static inline sl_act_kind sl_act_kind_for(sl_activations a, sl_dtype t) {
    return a == SL_ACTIVATIONS_F32 ? SL_ACT_NONE : sl_act_kind_of(t);
}

static inline uint32_t sl_act_block(sl_act_kind kind) {
    return kind == SL_ACT_32 ? 32 : 256;
}

/* Codes that one sum is of. */
static inline uint32_t sl_act_sum_of(sl_act_kind kind) {
    return kind == SL_ACT_32 ? 32 : 16;
}

static inline const float *sl_act_scales(const uint8_t *row, uint32_t k) {
    return (const float *)(row + k);
}

static inline const int16_t *sl_act_sums(sl_act_kind kind, const uint8_t *row, uint32_t k) {
    return (const int16_t *)(row + k + k / sl_act_block(kind) * sizeof(float));
}

/* Bytes between rows: a multiple of 64. k is a whole number of blocks. */
static inline size_t sl_act_row_bytes(sl_act_kind kind, uint32_t k) {
    size_t n = (size_t)k + k / sl_act_block(kind) * sizeof(float) +
               k / sl_act_sum_of(kind) * sizeof(int16_t);
    return (n + 63) / 64 * 64;
}

#endif
