/* The definition of products of weights and activations in BF16: the pairs of a lane one after the
 * other, the odd element first, and nothing subnormal, as the processors' own instruction does it.
 */
#include "kernel/bf16.h"
#include "kernel/ref/ref.h"

#include <math.h>

/* fma(x, w, s), and zero with the result's sign where that is below the least normal number. It is
 * so if it would be with an exponent without limit: the sum that fmaf rounds up to 2^-126 counts as
 * less when it lies below the middle between that and its neighbour there. */
static float flushed_fma(float x, float w, float s) {
    float r = fmaf(x, w, s);
    if (!(fabsf(r) <= SL_BF16_LEAST)) return r;
    double v = (double)x * (double)w + (double)s; /* exact where it decides */
    return fabs(v) < SL_BF16_LEAST * (1 - 0x1p-25) ? copysignf(0, r) : r;
}

static float value(const uint8_t *p, uint32_t i, uint32_t k) {
    uint16_t h = 0;
    if (i < k) memcpy(&h, p + (size_t)i * sizeof h, sizeof h);
    return sl_bf16_to_f32(sl_bf16_normal(h));
}

/* x and w: k values of BF16 of any alignment. */
static float pair_dot(const uint8_t *x, const uint8_t *w, uint32_t k) {
    float s[SL_DOT_LANES] = {0};
    for (uint32_t i = 0; i < k; i += 2 * SL_DOT_LANES)
        for (uint32_t j = 0; j < SL_DOT_LANES; j++) {
            uint32_t even = i + 2 * j, odd = even + 1;
            s[j] = flushed_fma(value(x, odd, k), value(w, odd, k), s[j]);
            s[j] = flushed_fma(value(x, even, k), value(w, even, k), s[j]);
        }
    return sl_tree16(s);
}

/* Of numbers that are not subnormal; a sum that is, is exact. */
static float flushed_add(float a, float b) {
    float r = a + b;
    return fabsf(r) < SL_BF16_LEAST ? copysignf(0, r) : r;
}

/* The same in parts of 32 values, the even and the odd ones of each in a chain. */
static float parts_dot(const uint8_t *x, const uint8_t *w, uint32_t k) {
    float sum = 0;
    for (uint32_t i = 0; i < k; i += SL_BF16_PART) {
        float chain[2] = {0};
        for (uint32_t j = i; j < i + SL_BF16_PART; j++)
            chain[j % 2] = flushed_fma(value(x, j, k), value(w, j, k), chain[j % 2]);
        sum = flushed_add(sum, flushed_add(chain[0], chain[1]));
    }
    return sum;
}

SL_INLINE void tile_of(const sl_act_tile *t,
                       float (*dot)(const uint8_t *, const uint8_t *, uint32_t)) {
    for (uint32_t r = 0; r < t->n_rows; r++)
        for (uint32_t c = 0; c < t->n_cols; c++)
            t->y[(size_t)r * t->y_stride + c] =
                dot(t->x[r], (const uint8_t *)t->w + c * t->w_stride, t->k);
}

void sl_ref_bf16_tile(const sl_act_tile *t) {
    tile_of(t, pair_dot);
}

void sl_ref_parts_tile(const sl_act_tile *t) {
    tile_of(t, parts_dot);
}

void sl_ref_to_bf16_row(const float *x, uint32_t k, sl_act_kind kind, uint8_t *row) {
    (void)kind;
    for (uint32_t i = 0; i < k; i++) ((uint16_t *)row)[i] = sl_bf16_round(x[i]);
}

void sl_ref_rms_to_bf16_row(const float *x, const float *w, float inv, const sl_act_part *to) {
    uint16_t *h = (uint16_t *)to->row + to->at;
    for (uint32_t i = 0; i < to->n; i++) h[i] = sl_bf16_round(x[i] * inv * w[i]);
}
