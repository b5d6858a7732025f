/* Products of weights in blocks and activations in 8 bits: sums of integers are exact, and one
 * chain of f32 over the blocks of a row makes the result. */
#include "kernel/loops.h"
#include "kernel/ref/ref.h"
#include "kernel/scalar.h"
#include "quant/act.h"
#include "quant/codes.h"

/* x: the block that begins at value b of a row of k. */
static void quantise_block(const float *x, uint32_t b, uint32_t k, sl_act_kind kind, uint8_t *row) {
    uint32_t block = sl_act_block(kind), part = sl_act_sum_of(kind);
    int8_t *code = (int8_t *)row + b;
    float *scale = (float *)(row + k);
    int16_t *sum = (int16_t *)(scale + k / block) + b / part;
    uint32_t most = 0;
    for (uint32_t i = 0; i < block; i++) most = SL_MAX(most, sl_f32_bits(x[i]) & 0x7fffffffu);
    float to_code = sl_act_to_code(most);
    scale[b / block] = sl_act_scale_of(most);
    for (uint32_t i = 0; i < block; i++) code[i] = sl_act_code(x[i], most, to_code);
    for (uint32_t s = 0; s < block / part; s++) {
        int32_t v = 0;
        for (uint32_t i = 0; i < part; i++) v += code[s * part + i];
        sum[s] = (int16_t)v;
    }
}

void sl_ref_quantise(const float *x, uint32_t k, sl_act_kind kind, uint8_t *row) {
    for (uint32_t b = 0; b < k; b += sl_act_block(kind)) quantise_block(x + b, b, k, kind, row);
}

void sl_ref_rms_quantise(const float *x, const float *w, float inv, const sl_act_part *to) {
    uint32_t block = sl_act_block(to->kind);
    float y[SL_BLOCK_MAX];
    for (uint32_t b = 0; b < to->n; b += block) {
        loop_rms_apply(x + b, w + b, inv, block, y);
        quantise_block(y, to->at + b, to->k, to->kind, to->row);
    }
}

static int32_t dot_int8(const int8_t *x, const int8_t *w, uint32_t n) {
    int32_t sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (int32_t)x[i] * w[i];
    return sum;
}

/* The chain's next step for one block. */
static float add_block(sl_dtype t, const uint8_t *b, const int8_t *x, const int16_t *xsum, float dx,
                       float acc) {
    int8_t code[SL_BLOCK_MAX];
    int32_t sum = 0, low = 0;
    sl_block_codes(t, b, code);
    if (sl_act_kind_of(t) == SL_ACT_32)
        return fmaf(sl_block_scale_32(t, b) * dx, (float)dot_int8(x, code, 32), acc);
    if (t == SL_Q6_K) {
        for (uint32_t s = 0; s < 16; s++)
            sum += (int8_t)b[192 + s] * dot_int8(x + 16 * s, code + 16 * s, 16);
        return fmaf(sl_block_f16(b + 208) * dx, (float)sum, acc);
    }
    for (int s = 0; s < 8; s++) {
        uint8_t scale, min;
        sl_k_scale(b + 4, s, &scale, &min);
        sum += scale * dot_int8(x + 32 * s, code + 32 * s, 32);
        low += min * (xsum[2 * s] + xsum[2 * s + 1]);
    }
    acc = fmaf(sl_block_f16(b) * dx, (float)sum, acc);
    return fmaf(-(sl_block_f16(b + 2) * dx), (float)low, acc);
}

/* Block b of weight row c, onto the chain of row r. */
static float add_to_row(const sl_act_tile *t, const uint8_t *block, uint32_t r, uint32_t b,
                        float acc) {
    const sl_act_kind kind = sl_act_kind_of(t->dtype);
    const uint32_t at = b * sl_dtype_block(t->dtype);
    return add_block(t->dtype, block, (const int8_t *)t->x[r] + at,
                     sl_act_sums(kind, t->x[r], t->k) + at / sl_act_sum_of(kind),
                     sl_act_scales(t->x[r], t->k)[b], acc);
}

void sl_ref_int8_tile(const sl_act_tile *t) {
    const uint32_t blocks = t->k / sl_dtype_block(t->dtype);
    for (uint32_t c = 0; c < t->n_cols; c++)
        for (uint32_t r = 0; r < t->n_rows; r++) {
            const uint8_t *w = (const uint8_t *)t->w + c * t->w_stride;
            float acc = 0;
            for (uint32_t b = 0; b < blocks; b++)
                acc = add_to_row(t, w + b * sl_dtype_block_bytes(t->dtype), r, b, acc);
            t->y[(size_t)r * t->y_stride + c] = acc;
        }
}

void sl_ref_strip_tile(const sl_act_tile *t) {
    const uint32_t blocks = t->k / sl_dtype_block(t->dtype);
    uint8_t block[SL_BLOCK_BYTES_MAX];
    float acc[SL_TILE_ROWS];
    for (uint32_t c = 0; c < t->n_cols; c++) {
        const uint8_t *strip = (const uint8_t *)t->w + (c & ~(SL_STRIP_ROWS - 1)) * t->w_stride;
        for (uint32_t r = 0; r < t->n_rows; r++) acc[r] = 0;
        for (uint32_t b = 0; b < blocks; b++) {
            sl_strips_block(t->dtype, strip, t->k, c % SL_STRIP_ROWS, b, block);
            for (uint32_t r = 0; r < t->n_rows; r++) acc[r] = add_to_row(t, block, r, b, acc[r]);
        }
        for (uint32_t r = 0; r < t->n_rows; r++) t->y[(size_t)r * t->y_stride + c] = acc[r];
    }
}
