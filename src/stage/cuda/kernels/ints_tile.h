/* A tile of integers with up to eight rows (products_few_int8.cu, group_few_int8.cu): weights
 * stream through shared memory once, and meet rows of x in tensor cores of 8 bits, whose sums are
 * exact.
 *
 * A warp has 16 rows of weights, the rows of a core's tile; rows of x are its eight columns. Piece
 * q of a unit (piece.h) is what a thread of the warp brings to such a product. With g = lane / 4
 * and t = lane % 4 a thread has the results of weight rows g and g + 8, rows 2t and 2t + 1 of x,
 * and takes their chains through all blocks. */
#ifndef SL_STAGE_CUDA_INTS_TILE_H
#define SL_STAGE_CUDA_INTS_TILE_H

#include "stage/cuda/kernels/product.h"

#define SL_INTS_HAS                                                                                \
    4u /* results of a thread: weight row i / 2 of its two, row i % 2 of x of its two */

/* What a thread reads of a stage. */
typedef struct ints_view {
    const uint8_t *w[2];   /* its weight rows */
    const uint8_t *x;      /* the row of x whose codes it brings, number g */
    const float *scale[2]; /* of the rows of x that it has results of */
} ints_view;

/* Weight row h of a thread's two in its tile: with two sides, one of each. */
SL_DEV uint32_t ints_row(const sl_product_shape *a, const sl_product_tile *at, uint32_t h) {
    const uint32_t g = sl_lane() / 4;
    return at->pairs ? h * (a->cols / 2) + 8 * sl_warp() + g : 16 * sl_warp() + 8 * h + g;
}

SL_DEV const uint8_t *ints_x(const sl_product_shape *a, const sl_product_tile *at, uint32_t r,
                             const uint8_t *stage) {
    return stage + a->room.x_at + (r < at->rows ? r : at->rows - 1) * a->room.x_pitch;
}

SL_DEV ints_view ints_view_of(const sl_product_shape *a, const sl_product_job *j,
                              const sl_product_tile *at, sl_dtype t, uint32_t chunk,
                              const uint8_t *stage) {
    ints_view v;
    v.x = ints_x(a, at, sl_lane() / 4, stage) + 4 * (sl_lane() % 4);
    SL_UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        const uint32_t c = ints_row(a, at, h), r = sl_lane() % 4 * 2 + h;
        v.w[h] = stage + c * a->room.pitch;
        if (!j->w_aligned) v.w[h] += (uintptr_t)sl_product_weights(a, j, at, t, c, chunk) & 15;
        v.scale[h] = (const float *)(ints_x(a, at, r, stage) + a->room.chunk);
    }
    return v;
}

/* Unit u of both weight rows and of x, as a tensor core takes them. */
SL_DEV void ints_load(sl_dtype t, const ints_view *v, uint32_t u, bool aligned, sl_piece p[2],
                      uint32_t a[4], uint32_t b[2]) {
    SL_UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        uint32_t code[2];
        sl_piece_load(t, v->w[h], u, sl_lane() % 4, aligned, &p[h]);
        sl_piece_signed(t, &p[h], u, code);
        a[h] = code[0], a[2 + h] = code[1];
        b[h] = *(const uint32_t *)(v->x + SL_UNIT * u + 16 * h);
    }
}

/* A block of 32: acc = fma(d * scale, sum, acc). Sums begin at the bits of 1.5 * 2^23 instead of
 * zero, and so end as the bits of that plus them, which is exact: below 2^22 each. */
SL_DEV void ints_block_32(sl_dtype t, const ints_view *v, uint32_t u, float acc[SL_INTS_HAS]) {
    sl_piece p[2] = {{{0}}, {{0}}};
    uint32_t a[4], b[2];
    int32_t sum[SL_INTS_HAS] = {0x4b400000, 0x4b400000, 0x4b400000, 0x4b400000};
    ints_load(t, v, u, false, p, a, b);
    sl_mma_m16n8k32_s8(sum, a, b);
    SL_UNROLL
    for (uint32_t i = 0; i < SL_INTS_HAS; i++) {
        const float s = sl_f32_of_bits((uint32_t)sum[i]) - 0x1.8p23f;
        acc[i] = fmaf(sl_piece_scale_32(t, p[i / 2].w[2]) * v->scale[i % 2][u], s, acc[i]);
    }
}

/* Codes of part `half` of 16 alone, the other half zero, times that part's scales. */
SL_DEV void ints_part_16(const uint32_t a[4], const uint32_t b[2], uint32_t half,
                         const sl_piece p[2], int32_t sum[SL_INTS_HAS]) {
    const uint32_t one[4] = {half ? 0 : a[0], half ? 0 : a[1], half ? a[2] : 0, half ? a[3] : 0};
    int32_t part[SL_INTS_HAS] = {0, 0, 0, 0};
    sl_mma_m16n8k32_s8(part, one, b);
    SL_UNROLL
    for (uint32_t i = 0; i < SL_INTS_HAS; i++)
        sum[i] += (int8_t)(p[i / 2].w[3] >> 8 * half) * part[i];
}

/* Unit u of a block of 256: sums of codes times codes times scales of parts, and of minima times
 * codes, which is minima times sums of codes. */
SL_DEV void ints_unit_k(sl_dtype t, const ints_view *v, uint32_t u, bool aligned, sl_piece p[2],
                        int32_t sum[SL_INTS_HAS], int32_t low[SL_INTS_HAS]) {
    uint32_t a[4], b[2];
    int32_t part[SL_INTS_HAS] = {0, 0, 0, 0};
    ints_load(t, v, u, aligned, p, a, b);
    if (t == SL_Q6_K) {
        ints_part_16(a, b, 0, p, sum);
        ints_part_16(a, b, 1, p, sum);
        return;
    }
    const uint32_t m0 = (p[0].w[3] >> 8) * 0x01010101u, m1 = (p[1].w[3] >> 8) * 0x01010101u;
    const uint32_t mins[4] = {m0, m1, m0, m1};
    sl_mma_m16n8k32_s8(part, a, b);
    sl_mma_m16n8k32_s8(low, mins, b);
    SL_UNROLL
    for (uint32_t i = 0; i < SL_INTS_HAS; i++) sum[i] += (int32_t)(p[i / 2].w[3] & 255) * part[i];
}

SL_DEV void ints_block_k(sl_dtype t, const ints_view *v, uint32_t b, bool aligned,
                         float acc[SL_INTS_HAS]) {
    sl_piece p[2] = {{{0}}, {{0}}};
    int32_t sum[SL_INTS_HAS] = {0, 0, 0, 0}, low[SL_INTS_HAS] = {0, 0, 0, 0};
    SL_UNROLL
    for (uint32_t i = 0; i < 8; i++) ints_unit_k(t, v, 8 * b + i, aligned, p, sum, low);
    SL_UNROLL
    for (uint32_t i = 0; i < SL_INTS_HAS; i++) {
        const float scale = v->scale[i % 2][b];
        acc[i] = fmaf(sl_half_value(p[i / 2].w[2]) * scale, (float)sum[i], acc[i]);
        if (t == SL_Q6_K) continue;
        acc[i] = fmaf(-(sl_half_value(p[i / 2].w[2] >> 16) * scale), (float)low[i], acc[i]);
    }
}

SL_DEV void ints_chunk(const sl_product_shape *a, const sl_product_job *j,
                       const sl_product_tile *at, sl_dtype t, uint32_t chunk, const uint8_t *stage,
                       float acc[SL_INTS_HAS]) {
    const uint32_t units = sl_product_values(a, j, chunk) / SL_UNIT;
    const ints_view v = ints_view_of(a, j, at, t, chunk, stage);
    if (!sl_is_k(t)) {
        uint32_t u = 0;
        for (; u + 4 <= units; u += 4) {
            SL_UNROLL
            for (uint32_t i = 0; i < 4; i++) ints_block_32(t, &v, u + i, acc);
        }
        for (; u < units; u++) ints_block_32(t, &v, u, acc);
    } else if (j->w_aligned || !sl_minds_alignment(t)) {
        for (uint32_t b = 0; b < units / 8; b++) ints_block_k(t, &v, b, true, acc);
    } else {
        for (uint32_t b = 0; b < units / 8; b++) ints_block_k(t, &v, b, false, acc);
    }
}

SL_DEV void ints_end(const sl_product_shape *a, const sl_product_job *j, const sl_product_tile *at,
                     const sl_product_last *last, const float acc[SL_INTS_HAS]) {
    SL_UNROLL
    for (uint32_t i = 0; i < SL_INTS_HAS; i++) {
        const uint32_t r = sl_lane() % 4 * 2 + i % 2, col = at->col0 + ints_row(a, at, i / 2);
        if (r >= at->rows || col >= j->n || (at->pairs && i >= 2)) continue;
        sl_product_finish(j, at, last, r, col, acc[i], acc[i % 2 + 2]);
    }
}

/* A tile of a job, by all of a block. */
SL_DEV void sl_ints_tile(const sl_product_shape *a, const sl_product_job *j,
                         const sl_product_tile *at, const sl_product_last *last, sl_dtype t) {
    SL_DYNAMIC(uint8_t, room);
    SL_SHARED(const uint8_t *, from, SL_FEW_ROWS);
    const uint32_t chunks = (j->k + a->room.chunk - 1) / a->room.chunk;
    const uint32_t block = sl_is_k(t) ? 256 : 32;
    float acc[SL_INTS_HAS] = {0, 0, 0, 0};
    const sl_product_stream stream = {a, j, at, t, block, chunks, from, room};
    sl_product_stream_begin(&stream);
    for (uint32_t i = 0; i < chunks; i++)
        ints_chunk(a, j, at, t, i, sl_product_stream_next(&stream, i), acc);
    ints_end(a, j, at, last, acc);
}

#endif
