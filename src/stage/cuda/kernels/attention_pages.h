/* A page of keys and values for a block of 128 queries, 16 a warp, as tensor cores multiply it in
 * 16 bits (fast_kv.h): on its way in registers, in shared memory, and the two products with it.
 * `type` and `dim` are constants everywhere. */
#ifndef SL_STAGE_CUDA_ATTENTION_PAGES_H
#define SL_STAGE_CUDA_ATTENTION_PAGES_H

#include "stage/cuda/kernels/attention_block.h"
#include "stage/cuda/kernels/fast_kv.h"

#define DIM     128u /* at most */
#define THREADS SL_CUDA_ATTN_PROMPT_THREADS
#define WARPS   (THREADS / SL_WARP)
#define APART   (DIM + 8u) /* values between rows in shared memory: 8 rows lie in different banks */

/* A page on its way: this thread's pieces of keys and of values. */
typedef struct page_part {
    uint4 k[PAGE * DIM / 4 / THREADS], v[PAGE * DIM / 4 / THREADS];
} page_part;

/* Rows that nobody sees are zeros: what lies there may be no number. */
SL_DEV void fetch(uint32_t type, const block_queries *b, const uint8_t *k, const uint8_t *v,
                  uint32_t base, uint32_t dim, page_part *p) {
    const uint32_t each = sl_fast_kv_piece(type);
    const size_t row = sl_kv_part_bytes((sl_kv_type)type, dim);
    SL_UNROLL
    for (uint32_t i = 0; i < PAGE * dim / each / THREADS; i++) {
        const uint32_t at = each * (i * THREADS + threadIdx.x), position = base + at / dim;
        const bool there = position >= b->walk.from && position <= b->walk.to;
        p->k[i] = p->v[i] = make_uint4(0, 0, 0, 0);
        if (!there) continue;
        p->k[i] = sl_fast_kv_load(type, k + at / dim * row, at % dim);
        p->v[i] = sl_fast_kv_load(type, v + at / dim * row, at % dim);
    }
}

SL_DEV void put(uint32_t type, const page_part *p, uint32_t dim, uint16_t *k, uint16_t *v) {
    const uint32_t each = sl_fast_kv_piece(type);
    SL_UNROLL
    for (uint32_t i = 0; i < PAGE * dim / each / THREADS; i++) {
        const uint32_t at = each * (i * THREADS + threadIdx.x), to = at / dim * APART + at % dim;
        sl_fast_kv_put(type, p->k[i], k + to);
        sl_fast_kv_put(type, p->v[i], v + to);
    }
}

/* Queries g and g + 8 of this warp: which they are, and how far they have come. */
typedef struct two_queries {
    uint32_t u[2], low[2], pos[2];
    float max[2], sum[2];
} two_queries;

SL_DEV void begin(uint32_t type, const sl_k_attention_args *a, const block_queries *b, uint32_t dim,
                  two_queries *w, uint32_t q[DIM / 16][4]) {
    const uint32_t t = sl_lane() % 4;
    SL_UNROLL
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t u = sl_warp() * 16 + sl_lane() / 4 + 8 * i;
        const bool there = u < b->n;
        const uint32_t row = there ? row_of_query(b, u) : 0;
        const float *from = a->q + (size_t)row * a->q_stride +
                            (size_t)(there ? head_of_query(b, u) : 0) * dim + 2 * t;
        w->u[i] = u;
        w->low[i] = there ? a->low[row] : 1;
        w->pos[i] = there ? a->pos[row] : 0;
        w->max[i] = -INFINITY;
        w->sum[i] = 0;
        SL_UNROLL
        for (uint32_t c = 0; c < dim / 16; c++) {
            const float2 x = there ? *(const float2 *)(from + 16 * c) : make_float2(0, 0);
            const float2 y = there ? *(const float2 *)(from + 16 * c + 8) : make_float2(0, 0);
            q[c][i] = sl_fast_kv_query(type, x.x, x.y);
            q[c][i + 2] = sl_fast_kv_query(type, y.x, y.y);
        }
    }
}

/* s[n]: of keys 8n + 2t and one more, queries g and g + 8. */
SL_DEV void page_scores(uint32_t type, const uint16_t *k, const uint32_t q[DIM / 16][4],
                        uint32_t dim, float s[4][4]) {
    const uint32_t matrix = sl_lane() / 8, row = sl_lane() % 8;
    SL_UNROLL
    for (uint32_t n = 0; n < 4; n++) {
        SL_UNROLL
        for (uint32_t j = 0; j < 4; j++) s[n][j] = 0;
    }
    SL_UNROLL
    for (uint32_t c = 0; c < dim / 16; c++) {
        SL_UNROLL
        for (uint32_t n = 0; n < 4; n += 2) {
            uint32_t b[4];
            sl_ldmatrix_x4(b, k + (8 * (n + matrix / 2) + row) * APART + 16 * c + 8 * (matrix % 2));
            sl_fast_kv_mma(type, s[n], q[c], b);
            sl_fast_kv_mma(type, s[n + 1], q[c], b + 2);
        }
    }
}

SL_DEV float max_of_four(float v) {
    v = fmaxf(v, __shfl_xor_sync(SL_ALL, v, 1));
    return fmaxf(v, __shfl_xor_sync(SL_ALL, v, 2));
}

/* o[n]: columns 8n + 2t and one more, queries g and g + 8. */
SL_DEV void page_values(uint32_t type, const uint16_t *v, const float s[4][4], uint32_t dim,
                        float o[DIM / 8][4]) {
    const uint32_t matrix = sl_lane() / 8, row = sl_lane() % 8;
    SL_UNROLL
    for (uint32_t j = 0; j < 2; j++) {
        const uint32_t p[4] = {sl_fast_kv_pack(type, s[2 * j][0], s[2 * j][1]),
                               sl_fast_kv_pack(type, s[2 * j][2], s[2 * j][3]),
                               sl_fast_kv_pack(type, s[2 * j + 1][0], s[2 * j + 1][1]),
                               sl_fast_kv_pack(type, s[2 * j + 1][2], s[2 * j + 1][3])};
        SL_UNROLL
        for (uint32_t n = 0; n < dim / 8; n += 2) {
            uint32_t b[4];
            sl_ldmatrix_x4_trans(b, v + (16 * j + 8 * (matrix % 2) + row) * APART +
                                        8 * (n + matrix / 2));
            sl_fast_kv_mma(type, o[n], p, b);
            sl_fast_kv_mma(type, o[n + 1], p, b + 2);
        }
    }
}

#endif
