/* Products of weights in blocks and activations in 8 bits; after simd/gemm.h. Sixteen weight rows
 * at a time: their codes of one block are laid out by fours of k, [k / 4][16][4], for all rows of
 * the tile; sums of integers are exact in any order, and one chain of f32 over the blocks makes the
 * result. */
#include "kernel/ref/ref.h"
#include "quant/codes.h"

#define SIMD_LANES 16u

/* One block of sixteen weight rows. */
typedef struct simd_group {
    _Alignas(64) uint8_t code[SL_BLOCK_MAX / 4][SIMD_LANES][4];
    _Alignas(64) float d[SIMD_LANES], dmin[SIMD_LANES];
    int32_t scale[16][SIMD_LANES], min[8][SIMD_LANES]; /* of parts, for the types of 256 */
} simd_group;

/* Scales of row c's block. */
static void simd_scales(sl_dtype t, const uint8_t *b, uint32_t c, simd_group *g) {
    g->d[c] = t == SL_MXFP4 ? sl_block_scale_32(t, b) : sl_block_f16(b + (t == SL_Q6_K ? 208 : 0));
    if (t == SL_Q4_K || t == SL_Q5_K) {
        g->dmin[c] = sl_block_f16(b + 2);
        for (int s = 0; s < 8; s++) {
            uint8_t scale, min;
            sl_k_scale(b + 4, s, &scale, &min);
            g->scale[s][c] = scale;
            g->min[s][c] = min;
        }
    }
    for (uint32_t s = 0; t == SL_Q6_K && s < 16; s++) g->scale[s][c] = (int8_t)b[192 + s];
}

/* Rows beyond `cols` stay zero. */
static void simd_fill_group(const sl_act_tile *t, uint32_t c0, uint32_t cols, uint32_t block,
                            simd_group *g) {
    const size_t row_bytes = t->w_stride;
    const uint32_t values = sl_dtype_block(t->dtype);
    for (uint32_t c = 0; c < cols; c++) {
        const uint8_t *b = (const uint8_t *)t->w + (c0 + c) * row_bytes +
                           (size_t)block * sl_dtype_block_bytes(t->dtype);
        int8_t code[SL_BLOCK_MAX];
        sl_block_codes(t->dtype, b, code);
        for (uint32_t i = 0; i < values; i++)
            g->code[i / 4][c][i % 4] = (uint8_t)((int32_t)code[i] + SIMD_CODE_BIAS);
        simd_scales(t->dtype, b, c, g);
    }
}

/* Sums of n codes from code i on with those of x; xsum is the sum of the latter. */
SL_INLINE void simd_part(const simd_group *g, const int8_t *x, uint32_t i, const uint32_t n,
                         int32_t xsum, int32_t sum[SIMD_LANES]) {
    i16x acc = i_zero();
#pragma GCC unroll 8
    for (uint32_t j = i; j < i + n; j += 4) acc = i_dot4(acc, g->code[j / 4][0], x + j);
    i_store(sum, acc);
    for (uint32_t c = 0; SIMD_CODE_BIAS && c < SIMD_LANES; c++) sum[c] -= SIMD_CODE_BIAS * xsum;
}

static inline void simd_chain(float *acc, const float *d, float dx, const int32_t *sum,
                              float sign) {
    for (uint32_t c = 0; c < SIMD_LANES; c++)
        acc[c] = fmaf(sign * (d[c] * dx), (float)sum[c], acc[c]);
}

/* Blocks of 32: one scale. */
SL_INLINE void simd_block_32(const simd_group *g, const int8_t *x, float dx, const int16_t *xsum,
                             float *acc) {
    int32_t sum[SIMD_LANES];
    simd_part(g, x, 0, 32, xsum[0], sum);
    simd_chain(acc, g->d, dx, sum, 1);
}

/* Blocks of 256: a scale of each `part` values, and minima of 32. */
SL_INLINE void simd_block_256(const simd_group *g, const int8_t *x, float dx, const int16_t *xsum,
                              const uint32_t part, bool minima, float *acc) {
    int32_t all[SIMD_LANES] = {0}, low[SIMD_LANES] = {0}, sum[SIMD_LANES];
    for (uint32_t s = 0; s < 256 / part; s++) {
        int32_t of_x = part == 16 ? xsum[s] : xsum[2 * s] + xsum[2 * s + 1];
        simd_part(g, x, s * part, part, of_x, sum);
        for (uint32_t c = 0; c < SIMD_LANES; c++) all[c] += g->scale[s][c] * sum[c];
        for (uint32_t c = 0; minima && c < SIMD_LANES; c++) low[c] += g->min[s][c] * of_x;
    }
    simd_chain(acc, g->d, dx, all, 1);
    if (minima) simd_chain(acc, g->dmin, dx, low, -1);
}

static void simd_int8_group(const sl_act_tile *t, uint32_t c0, uint32_t cols) {
    const sl_act_kind kind = sl_act_kind_of(t->dtype);
    const uint32_t values = sl_dtype_block(t->dtype);
    _Alignas(64) float acc[SL_TILE_ROWS][SIMD_LANES] = {0};
    simd_group g = {0};
    for (uint32_t b = 0; b < t->k / values; b++) {
        simd_fill_group(t, c0, cols, b, &g);
        for (uint32_t r = 0; r < t->n_rows; r++) {
            const int8_t *x = (const int8_t *)t->x[r] + (size_t)b * values;
            const float dx = sl_act_scales(t->x[r], t->k)[b];
            const int16_t *xsum =
                sl_act_sums(kind, t->x[r], t->k) + b * values / sl_act_sum_of(kind);
            if (values == 32)
                simd_block_32(&g, x, dx, xsum, acc[r]);
            else if (t->dtype == SL_Q6_K)
                simd_block_256(&g, x, dx, xsum, 16, false, acc[r]);
            else
                simd_block_256(&g, x, dx, xsum, 32, true, acc[r]);
        }
    }
    for (uint32_t r = 0; r < t->n_rows; r++)
        memcpy(t->y + (size_t)r * t->y_stride + c0, acc[r], cols * sizeof(float));
}

static void simd_int8_tile(const sl_act_tile *t) {
    for (uint32_t c = 0; c < t->n_cols; c += SIMD_LANES)
        simd_int8_group(t, c, SL_MIN(SIMD_LANES, t->n_cols - c));
}
