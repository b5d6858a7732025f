/* A tile of integers with more than a few rows (products_int8.cu, group_int8.cu): tensor cores of
 * 8 bits, whose sums are exact.
 *
 * A warp has eight rows of weights, which it decodes once for up to 64 rows of x, four tiles of 16.
 * Piece q of a unit (piece.h) is what a thread of the warp brings to such a product, so codes need
 * no other layout. With g = lane / 4 and t = lane % 4 a thread has the results of rows g and g + 8
 * of each tile, columns 2t and 2t + 1. Where a tile has two sides their weight rows
 * take turns, so that one thread has what SwiGLU needs. */
#ifndef SL_STAGE_CUDA_INT8_TILE_H
#define SL_STAGE_CUDA_INT8_TILE_H

#include "stage/cuda/kernels/product.h"

#define SL_INT8_TILES 4u /* of 16 rows of x */
#define SL_INT8_HAS   4u /* results of a thread in each */

/* What a warp reads of a stage. */
typedef struct int8_view {
    const uint8_t *w;       /* row g of the warp's eight */
    const uint8_t *x;       /* the block's first */
    uint32_t pitch, scales; /* bytes between rows of x; from codes to scales */
} int8_view;

/* The 16 x 32 codes of tile m and unit u. */
SL_DEV void int8_rows(const int8_view *v, uint32_t m, uint32_t u, uint32_t a[4]) {
    const uint32_t lane = sl_lane(), row = 16 * m + lane % 8 + lane / 8 % 2 * 8;
    sl_ldmatrix_x4(a, v->x + row * v->pitch + SL_UNIT * u + lane / 16 * 16);
}

/* The scale of block b of the thread's row h (of g and g + 8) in tile m. */
SL_DEV float int8_scale(const int8_view *v, uint32_t m, uint32_t h, uint32_t b) {
    const uint32_t row = 16 * m + 8 * h + sl_lane() / 4;
    return ((const float *)(v->x + row * v->pitch + v->scales))[b];
}

/* A word of the piece that the thread of column 2t + c, in the warp's eight, has loaded. */
SL_DEV uint32_t int8_of_column(uint32_t word, uint32_t c) {
    return __shfl_sync(SL_ALL, word, sl_lane() % 4 * 8 + 4 * c);
}

/* A block of 32: acc = fma(d * scale, sum, acc). Sums begin at the bits of 1.5 * 2^23 instead of
 * zero, and so end as the bits of that plus them, which is exact: below 2^22 each. */
SL_DEV void int8_unit_32(const int8_view *v, sl_dtype t, uint32_t u, uint32_t tiles,
                         float acc[SL_INT8_TILES][SL_INT8_HAS]) {
    sl_piece p = {{0}};
    uint32_t code[2];
    float d[2];
    sl_piece_load(t, v->w, u, sl_lane() % 4, false, &p);
    sl_piece_signed(t, &p, u, code);
    SL_UNROLL
    for (uint32_t c = 0; c < 2; c++) d[c] = sl_piece_scale_32(t, int8_of_column(p.w[2], c));
    SL_UNROLL
    for (uint32_t m = 0; m < SL_INT8_TILES; m++) {
        uint32_t a[4];
        int32_t sum[SL_INT8_HAS] = {0x4b400000, 0x4b400000, 0x4b400000, 0x4b400000};
        if (m >= tiles) continue;
        int8_rows(v, m, u, a);
        sl_mma_m16n8k32_s8(sum, a, code);
        SL_UNROLL
        for (uint32_t i = 0; i < SL_INT8_HAS; i++) {
            const float s = sl_f32_of_bits((uint32_t)sum[i]) - 0x1.8p23f;
            acc[m][i] = fmaf(d[i % 2] * int8_scale(v, m, i / 2, u), s, acc[m][i]);
        }
    }
}

/* Sums of a block of 256: of codes times codes times scales of parts, and of minima times codes,
 * which is minima times sums of codes. */
typedef struct int8_sums {
    int32_t sum[SL_INT8_TILES][SL_INT8_HAS], low[SL_INT8_TILES][SL_INT8_HAS];
} int8_sums;

/* Codes of parts of 16 alone, the other half zero. */
SL_DEV void int8_part_16(const uint32_t a[4], const uint32_t code[2], uint32_t half,
                         const int32_t scale[2], int32_t sum[SL_INT8_HAS]) {
    const uint32_t one[2] = {half ? 0 : code[0], half ? code[1] : 0};
    int32_t part[SL_INT8_HAS] = {0, 0, 0, 0};
    sl_mma_m16n8k32_s8(part, a, one);
    SL_UNROLL
    for (uint32_t i = 0; i < SL_INT8_HAS; i++) sum[i] += scale[i % 2] * part[i];
}

SL_DEV void int8_unit_k(const int8_view *v, sl_dtype t, uint32_t u, bool aligned, uint32_t tiles,
                        sl_piece *p, int8_sums *s) {
    uint32_t code[2], scale[2];
    sl_piece_load(t, v->w, u, sl_lane() % 4, aligned, p);
    sl_piece_signed(t, p, u, code);
    SL_UNROLL
    for (uint32_t c = 0; c < 2; c++) scale[c] = int8_of_column(p->w[3], c);
    const uint32_t min = (p->w[3] >> 8 & 255) * 0x01010101u, mins[2] = {min, min};
    const int32_t first[2] = {(int8_t)scale[0], (int8_t)scale[1]};
    const int32_t second[2] = {(int8_t)(scale[0] >> 8), (int8_t)(scale[1] >> 8)};
    SL_UNROLL
    for (uint32_t m = 0; m < SL_INT8_TILES; m++) {
        uint32_t a[4];
        int32_t part[SL_INT8_HAS] = {0, 0, 0, 0};
        if (m >= tiles) continue;
        int8_rows(v, m, u, a);
        if (t == SL_Q6_K) {
            int8_part_16(a, code, 0, first, s->sum[m]);
            int8_part_16(a, code, 1, second, s->sum[m]);
            continue;
        }
        sl_mma_m16n8k32_s8(part, a, code);
        SL_UNROLL
        for (uint32_t i = 0; i < SL_INT8_HAS; i++) s->sum[m][i] += first[i % 2] * part[i];
        sl_mma_m16n8k32_s8(s->low[m], a, mins);
    }
}

SL_DEV void int8_block_k(const int8_view *v, sl_dtype t, uint32_t b, bool aligned, uint32_t tiles,
                         float acc[SL_INT8_TILES][SL_INT8_HAS]) {
    int8_sums s = {{{0}}, {{0}}};
    sl_piece p = {{0}};
    float d[2], dmin[2];
    SL_UNROLL
    for (uint32_t u = 0; u < 8; u++) int8_unit_k(v, t, 8 * b + u, aligned, tiles, &p, &s);
    SL_UNROLL
    for (uint32_t c = 0; c < 2; c++) {
        const uint32_t both = int8_of_column(p.w[2], c);
        d[c] = sl_half_value(both), dmin[c] = sl_half_value(both >> 16);
    }
    SL_UNROLL
    for (uint32_t m = 0; m < SL_INT8_TILES; m++) SL_UNROLL
    for (uint32_t i = 0; i < SL_INT8_HAS; i++) {
        if (m >= tiles) continue;
        const float scale = int8_scale(v, m, i / 2, b);
        acc[m][i] = fmaf(d[i % 2] * scale, (float)s.sum[m][i], acc[m][i]);
        if (t == SL_Q6_K) continue;
        acc[m][i] = fmaf(-(dmin[i % 2] * scale), (float)s.low[m][i], acc[m][i]);
    }
}

SL_DEV void int8_chunk(const sl_product_shape *a, const sl_product_job *j,
                       const sl_product_tile *at, sl_dtype t, uint32_t chunk, const uint8_t *stage,
                       float acc[SL_INT8_TILES][SL_INT8_HAS]) {
    const uint32_t units = sl_product_values(a, j, chunk) / SL_UNIT,
                   c = 8 * sl_warp() + sl_lane() / 4;
    const uint32_t tiles = (at->rows + 15) / 16;
    int8_view v = {stage + c * a->room.pitch, stage + a->room.x_at, a->room.x_pitch, a->room.chunk};
    if (!j->w_aligned) v.w += (uintptr_t)sl_product_weights(a, j, at, t, c, chunk) & 15;
    if (!sl_is_k(t)) {
        for (uint32_t u = 0; u < units; u++) int8_unit_32(&v, t, u, tiles, acc);
    } else if (j->w_aligned || !sl_minds_alignment(t)) {
        for (uint32_t b = 0; b < units / 8; b++) int8_block_k(&v, t, b, true, tiles, acc);
    } else {
        for (uint32_t b = 0; b < units / 8; b++) int8_block_k(&v, t, b, false, tiles, acc);
    }
}

/* With two sides a thread's two columns of a tile are of one each. */
SL_DEV void int8_end(const sl_product_job *j, const sl_product_tile *at,
                     const sl_product_last *last, const float acc[SL_INT8_TILES][SL_INT8_HAS]) {
    const uint32_t t = sl_lane() % 4;
    SL_UNROLL
    for (uint32_t m = 0; m < SL_INT8_TILES; m++) SL_UNROLL
    for (uint32_t i = 0; i < SL_INT8_HAS; i++) {
        const uint32_t r = 16 * m + i / 2 * 8 + sl_lane() / 4;
        const uint32_t c = at->pairs ? 4 * sl_warp() + t : 8 * sl_warp() + 2 * t + i % 2;
        if (r >= at->rows || at->col0 + c >= j->n || (at->pairs && i % 2)) continue;
        sl_product_finish(j, at, last, r, at->col0 + c, acc[m][i], acc[m][i | 1]);
    }
}

/* A tile of a job, by all of a block. */
SL_DEV void sl_int8_tile(const sl_product_shape *a, const sl_product_job *j,
                         const sl_product_tile *at, const sl_product_last *last, sl_dtype t) {
    SL_DYNAMIC(uint8_t, room);
    SL_SHARED(const uint8_t *, from, SL_INT8_ROWS);
    const uint32_t chunks = (j->k + a->room.chunk - 1) / a->room.chunk;
    const uint32_t block = sl_is_k(t) ? 256 : 32;
    float acc[SL_INT8_TILES][SL_INT8_HAS] = {{0}};
    for (uint32_t r = threadIdx.x; r < at->rows; r += blockDim.x) from[r] = sl_product_x(j, at, r);
    __syncthreads();
    for (uint32_t i = 0; i < chunks + SL_INT8_STAGES - 1;
         i++) { /* i arrives, an earlier one is computed */
        uint8_t *to = room + i % SL_INT8_STAGES * a->room.stage;
        if (i < chunks) {
            sl_product_copy_weights(a, j, at, t, i, to);
            sl_product_copy_int8(a, j, at, from, block, i, to);
        }
        sl_cp_async_commit();
        if (i < SL_INT8_STAGES - 1) continue;
        const uint32_t now = i - (SL_INT8_STAGES - 1);
        sl_cp_async_wait(SL_INT8_STAGES - 1);
        __syncthreads();
        int8_chunk(a, j, at, t, now, room + now % SL_INT8_STAGES * a->room.stage, acc);
        __syncthreads();
    }
    int8_end(j, at, last, acc);
}

#endif
