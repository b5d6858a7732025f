/* Rows of activations as products with weights of some types take them: in 8 bits, for integer
 * products with weights in blocks, or in BF16, for weights in BF16 (docs/numbers.md).
 *
 * In 8 bits a row of k values is cut into blocks of 32 or 256, as the weights are. With a = max |x|
 * of a block, scale = a / 127 and code[i] = x[i] * (127 / a), rounded to nearest even. A block
 * whose a is below SL_ACT_TINY is all zeros with scale 0; one that holds NaN or infinity has codes
 * 0 and the scale NaN, so whatever it touches becomes NaN. A row lies as code   int8 [k] scale  f32
 * [k / block] sum    int16 [k / 32] or [k / 16]   of so many codes
 *
 * A row in BF16 is k values, each the nearest even one; a subnormal is a zero with its sign.
 * Thread: any. */
#ifndef SL_QUANT_ACT_H
#define SL_QUANT_ACT_H

#include "quant/round.h"
#include "spec/activations.h"
#include "spec/gang.h"
#include "spec/model.h"

/* What a type of weights asks for: 8 bits in blocks of so many values, or BF16. */
typedef enum sl_act_kind {
    SL_ACT_32,
    SL_ACT_256,
    SL_ACT_BF16,
    SL_ACT_KINDS,
    SL_ACT_NONE = SL_ACT_KINDS
} sl_act_kind;

/* SL_ACT_NONE: products with this type take f32. */
static inline sl_act_kind sl_act_kind_of(sl_dtype t) {
    switch (t) {
    case SL_Q8_0:
    case SL_Q4_0:
    case SL_MXFP4:
        return SL_ACT_32;
    case SL_Q4_K:
    case SL_Q5_K:
    case SL_Q6_K:
        return SL_ACT_256;
    case SL_BF16:
        return SL_ACT_BF16;
    default:
        return SL_ACT_NONE;
    }
}

static inline bool sl_act_is_int8(sl_act_kind kind) {
    return kind == SL_ACT_32 || kind == SL_ACT_256;
}

/* The rows that a plan with these activations multiplies such weights with; SL_ACT_NONE: f32. */
static inline sl_act_kind sl_act_kind_for(sl_activations a, sl_dtype t) {
    const sl_act_kind kind = sl_act_kind_of(t);
    const bool taken = sl_act_is_int8(kind) ? a != SL_ACTIVATIONS_F32 : sl_activations_are_bf16(a);
    return taken ? kind : SL_ACT_NONE;
}

/* Values that are rounded together. */
static inline uint32_t sl_act_block(sl_act_kind kind) {
    return kind == SL_ACT_32 ? 32 : kind == SL_ACT_256 ? 256 : 1;
}

/* Of 8 bits: codes that one sum is of. */
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
    if (kind == SL_ACT_BF16) return ((size_t)k * sizeof(uint16_t) + 63) / 64 * 64;
    size_t n = (size_t)k + k / sl_act_block(kind) * sizeof(float) +
               k / sl_act_sum_of(kind) * sizeof(int16_t);
    return (n + 63) / 64 * 64;
}

/* Of a row whose segments are rounded as rows of their own, one behind the other: whole blocks
 * each, so they have the same codes and scales as the row. s NULL: of a row of k values. */
static inline size_t sl_act_bytes_in(const sl_segments *s, sl_act_kind kind, uint32_t k) {
    size_t n = 0;
    if (!s) return sl_act_row_bytes(kind, k);
    for (uint32_t i = 0; i < s->n; i++)
        n += sl_act_row_bytes(kind, s->end[i] - sl_segment_begin(s, i));
    return n;
}

#endif
