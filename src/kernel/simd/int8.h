/* Products of weights in blocks and activations in 8 bits; after simd/gemm.h. Sixteen weight rows
 * at a time: their codes of one block are laid out by fours or eights of k, [k / 4][16][4], for all
 * rows of the tile, of which SIMD_ROWS are computed side by side; sums of integers are exact in any
 * order, and one chain of f32 over the blocks makes the result. */
#include "kernel/ref/ref.h"
#include "quant/codes.h"

#define SIMD_LANES 16u

/* One block of sixteen weight rows. */
typedef struct simd_group {
    _Alignas(64) uint8_t code[SL_BLOCK_MAX / SIMD_RUN][SIMD_LANES][SIMD_RUN];
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
            g->code[i / SIMD_RUN][c][i % SIMD_RUN] = (uint8_t)((int32_t)code[i] + SIMD_CODE_BIAS);
        simd_scales(t->dtype, b, c, g);
    }
}

/* A block of the rows that are computed side by side. */
typedef struct simd_rows {
    const int8_t *x[SIMD_ROWS];
    float dx[SIMD_ROWS];
    const int16_t *xsum[SIMD_ROWS];
    float *acc[SIMD_ROWS];
} simd_rows;

#define SIMD_EACH_ROW _Pragma("GCC unroll 2") for (uint32_t r = 0; r < SIMD_ROWS; r++)

/* Sums of n codes from code i on with those of x; xsum is the sum of the latter. */
SL_INLINE void simd_part(const simd_group *g, const simd_rows *x, uint32_t i, const uint32_t n,
                         const int32_t *xsum, int32_t (*sum)[SIMD_LANES]) {
    i16x acc = i_zero();
#pragma GCC unroll 8
    for (uint32_t j = i; j < i + n; j += SIMD_RUN)
        acc = i_dot(acc, g->code[j / SIMD_RUN][0], x->x, j);
    i_store(sum, acc);
    SIMD_EACH_ROW
    for (uint32_t c = 0; SIMD_CODE_BIAS && c < SIMD_LANES; c++)
        sum[r][c] -= SIMD_CODE_BIAS * xsum[r];
}

static inline void simd_chain(float *acc, const float *d, float dx, const int32_t *sum,
                              float sign) {
    for (uint32_t c = 0; c < SIMD_LANES; c++)
        acc[c] = fmaf(sign * (d[c] * dx), (float)sum[c], acc[c]);
}

/* Blocks of 32: one scale. */
SL_INLINE void simd_block_32(const simd_group *g, const simd_rows *x) {
    int32_t sum[SIMD_ROWS][SIMD_LANES], of_x[SIMD_ROWS];
    SIMD_EACH_ROW of_x[r] = x->xsum[r][0];
    simd_part(g, x, 0, 32, of_x, sum);
    SIMD_EACH_ROW simd_chain(x->acc[r], g->d, x->dx[r], sum[r], 1);
}

/* Blocks of 256: a scale of each `part` values, and minima of 32. */
SL_INLINE void simd_block_256(const simd_group *g, const simd_rows *x, const uint32_t part,
                              bool minima) {
    int32_t all[SIMD_ROWS][SIMD_LANES] = {0}, low[SIMD_ROWS][SIMD_LANES] = {0};
    int32_t sum[SIMD_ROWS][SIMD_LANES], of_x[SIMD_ROWS];
    for (uint32_t s = 0; s < 256 / part; s++) {
        SIMD_EACH_ROW of_x[r] =
            part == 16 ? x->xsum[r][s] : x->xsum[r][2 * s] + x->xsum[r][2 * s + 1];
        simd_part(g, x, s * part, part, of_x, sum);
        SIMD_EACH_ROW
        for (uint32_t c = 0; c < SIMD_LANES; c++) {
            all[r][c] += g->scale[s][c] * sum[r][c];
            if (minima) low[r][c] += g->min[s][c] * of_x[r];
        }
    }
    SIMD_EACH_ROW {
        simd_chain(x->acc[r], g->d, x->dx[r], all[r], 1);
        if (minima) simd_chain(x->acc[r], g->dmin, x->dx[r], low[r], -1);
    }
}

/* Block b of the rows from `first` on; beyond the last one it again, for nobody. */
SL_INLINE simd_rows simd_rows_at(const sl_act_tile *t, uint32_t first, uint32_t b,
                                 float (*acc)[SIMD_LANES]) {
    const sl_act_kind kind = sl_act_kind_of(t->dtype);
    const uint32_t values = sl_dtype_block(t->dtype);
    simd_rows out;
    SIMD_EACH_ROW {
        const uint8_t *x = t->x[SL_MIN(first + r, t->n_rows - 1)];
        out.x[r] = (const int8_t *)x + (size_t)b * values;
        out.dx[r] = sl_act_scales(x, t->k)[b];
        out.xsum[r] = sl_act_sums(kind, x, t->k) + b * values / sl_act_sum_of(kind);
        out.acc[r] = acc[first + r];
    }
    return out;
}

static void simd_int8_group(const sl_act_tile *t, uint32_t c0, uint32_t cols) {
    const uint32_t values = sl_dtype_block(t->dtype);
    _Alignas(64) float acc[SL_TILE_ROWS + SIMD_ROWS - 1][SIMD_LANES] = {0};
    simd_group g = {0};
    for (uint32_t b = 0; b < t->k / values; b++) {
        simd_fill_group(t, c0, cols, b, &g);
        for (uint32_t r = 0; r < t->n_rows; r += SIMD_ROWS) {
            const simd_rows x = simd_rows_at(t, r, b, acc);
            if (values == 32)
                simd_block_32(&g, &x);
            else if (t->dtype == SL_Q6_K)
                simd_block_256(&g, &x, 16, false);
            else
                simd_block_256(&g, &x, 32, true);
        }
    }
    for (uint32_t r = 0; r < t->n_rows; r++)
        memcpy(t->y + (size_t)r * t->y_stride + c0, acc[r], cols * sizeof(float));
}

static void simd_int8_tile(const sl_act_tile *t) {
    for (uint32_t c = 0; c < t->n_cols; c += SIMD_LANES)
        simd_int8_group(t, c, SL_MIN(SIMD_LANES, t->n_cols - c));
}
