/* A tile of products of f32 with many rows (products_many.cu, group_many.cu): both sides in shared
 * memory.
 *
 * A block of 256 threads computes 32 rows of x times 64 rows of weights, 64 values of each at a
 * time. A thread is one of the 16 lanes (docs/numbers.md) of 16 x 8 products, and so has 128
 * chains; half a warp has all lanes of the same products. In shared memory the two values that a
 * lane takes of a unit (piece.h) lie side by side, weights of 16 bits in one word as they are.
 * Where a tile has two sides their weight rows take turns, so that lanes 16 apart have what SwiGLU
 * needs.
 */
#ifndef SL_STAGE_CUDA_MANY_TILE_H
#define SL_STAGE_CUDA_MANY_TILE_H

#include "stage/cuda/kernels/product.h"

#define LANE_ROWS 16u
#define LANE_COLS 8u

SL_DEV bool many_is_16(sl_dtype t) {
    return t == SL_F16 || t == SL_BF16;
}

/* What a thread brings to shared memory: piece q of unit u of one row of x and of two of weights.
 */
typedef struct many_share {
    uint32_t row, u, q; /* weight rows: row, row + 32 */
    const uint8_t *x, *w[2];
    const float *scale[2]; /* F8_E4M3 */
    uint32_t past[2];
} many_share;

SL_DEV many_share many_share_of(const sl_product_shape *a, const sl_product_job *j,
                                const sl_product_tile *at) {
    many_share s = {threadIdx.x / 8, threadIdx.x / 4 % 2, threadIdx.x % 4, NULL,
                    {NULL, NULL},    {NULL, NULL},        {0, 0}};
    s.x = sl_product_x(j, at, s.row < at->rows ? s.row : at->rows - 1);
    SL_UNROLL
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t c = s.row + 32 * i, row = sl_product_row_of(a, j, at, c);
        const sl_product_side *side = &j->side[sl_product_side_of(a, at, c)];
        s.w[i] = side->w + row * side->stride;
        s.scale[i] = side->scale + (side->scale_row + row) / SL_F8_BLOCK * side->across +
                     side->scale_col / SL_F8_BLOCK;
        s.past[i] = side->scale_col % SL_F8_BLOCK;
    }
    return s;
}

/* Values of a row from unit u on, at most a unit's. */
SL_DEV uint32_t many_left(uint32_t k, uint32_t u) {
    return SL_UNIT * u >= k ? 0 : k - SL_UNIT * u < SL_UNIT ? k - SL_UNIT * u : SL_UNIT;
}

/* Loads a piece; of a unit that is not whole, with zeros behind what there is. */
SL_DEV void many_load(sl_dtype t, const uint8_t *row, uint32_t u, uint32_t q, uint32_t n,
                      bool aligned, sl_piece *p) {
    if (n == SL_UNIT && (aligned || !sl_minds_alignment(t)))
        sl_piece_load(t, row, u, q, true, p);
    else if (n == SL_UNIT)
        sl_piece_load(t, row, u, q, false, p);
    else
        sl_piece_tail(t, row, u, q, n, p);
}

typedef struct many_pieces {
    sl_piece x, w[2];
} many_pieces;

SL_DEV void many_fetch(const sl_product_job *j, const many_share *s, sl_dtype t, uint32_t chunk,
                       many_pieces *p) {
    const uint32_t u = SL_MANY_UNITS * chunk + s->u, n = many_left(j->k, u);
    many_load(SL_F32, s->x, u, s->q, n, j->x_aligned, &p->x);
    SL_UNROLL
    for (uint32_t i = 0; i < 2; i++) {
        many_load(t, s->w[i], u, s->q, n, j->w_aligned, &p->w[i]);
        if (t == SL_F8_E4M3) sl_piece_scales(s->scale[i], s->past[i], u, s->q, n, &p->w[i]);
    }
}

/* v[i] and v[4 + i], lane 4q + i's, side by side. */
SL_DEV void many_put(const float v[8], float *to) {
    *(float4 *)to = make_float4(v[0], v[4], v[1], v[5]);
    *(float4 *)(to + 4) = make_float4(v[2], v[6], v[3], v[7]);
}

SL_DEV uint32_t many_low_halves(uint32_t a, uint32_t b) {
    return (a & 0xffffu) | b << 16;
}

SL_DEV uint32_t many_high_halves(uint32_t a, uint32_t b) {
    return a >> 16 | (b & 0xffff0000u);
}

SL_DEV void many_put_16(const sl_piece *p, uint32_t *to) {
    *(uint4 *)to =
        make_uint4(many_low_halves(p->w[0], p->w[2]), many_high_halves(p->w[0], p->w[2]),
                   many_low_halves(p->w[1], p->w[3]), many_high_halves(p->w[1], p->w[3]));
}

SL_DEV void many_deliver(const many_share *s, sl_dtype t, uint32_t chunk, const many_pieces *p,
                         float *x, float *w) {
    const uint32_t u = SL_MANY_UNITS * chunk + s->u;
    float v[8];
    sl_piece_values(SL_F32, &p->x, u, v);
    many_put(v, x + (s->u * SL_MANY_ROWS + s->row) * SL_MANY_PITCH + 8 * s->q);
    SL_UNROLL
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t at = s->u * SL_MANY_COLS + s->row + 32 * i;
        if (many_is_16(t)) {
            many_put_16(&p->w[i], (uint32_t *)w + at * SL_MANY_PITCH_16 + 4 * s->q);
            continue;
        }
        sl_piece_values(t, &p->w[i], u, v);
        many_put(v, w + at * SL_MANY_PITCH + 8 * s->q);
    }
}

/* The two values of a lane in row c of the chunk's weights, of its unit u. */
SL_DEV float2 many_weight(sl_dtype t, const float *w, uint32_t u, uint32_t c, uint32_t lane) {
    if (!many_is_16(t))
        return *(const float2 *)(w + (u * SL_MANY_COLS + c) * SL_MANY_PITCH + 2 * lane);
    const uint32_t both = ((const uint32_t *)w)[(u * SL_MANY_COLS + c) * SL_MANY_PITCH_16 + lane];
    if (t == SL_F16) return make_float2(sl_half_value(both), sl_half_value(both >> 16));
    return make_float2(sl_f32_of_bits(both << 16), sl_f32_of_bits(both & 0xffff0000u));
}

/* Where a thread's products are: rows row .. row + 15, columns col, col + 2 and so on. */
typedef struct many_place {
    uint32_t row, col, lane;
} many_place;

/* One unit; `both`: all of its 32 values count, else the first 16. */
SL_DEV void many_step(sl_dtype t, const float *x, const float *w, const many_place *at, uint32_t u,
                      bool both, float acc[LANE_ROWS][LANE_COLS]) {
    float2 v[LANE_COLS];
    SL_UNROLL
    for (uint32_t c = 0; c < LANE_COLS; c++) v[c] = many_weight(t, w, u, at->col + 2 * c, at->lane);
    SL_UNROLL
    for (uint32_t r = 0; r < LANE_ROWS; r++) {
        const float2 b =
            *(const float2 *)(x + (u * SL_MANY_ROWS + at->row + r) * SL_MANY_PITCH + 2 * at->lane);
        SL_UNROLL
        for (uint32_t c = 0; c < LANE_COLS; c++) acc[r][c] = fmaf(b.x, v[c].x, acc[r][c]);
        if (!both) continue;
        SL_UNROLL
        for (uint32_t c = 0; c < LANE_COLS; c++) acc[r][c] = fmaf(b.y, v[c].y, acc[r][c]);
    }
}

SL_DEV void many_compute(sl_dtype t, const float *x, const float *w, const many_place *at,
                         uint32_t k, uint32_t chunk, float acc[LANE_ROWS][LANE_COLS]) {
    if (SL_UNIT * SL_MANY_UNITS * (chunk + 1) <= k) {
        SL_UNROLL
        for (uint32_t u = 0; u < SL_MANY_UNITS; u++) many_step(t, x, w, at, u, true, acc);
        return;
    }
    for (uint32_t u = 0; u < SL_MANY_UNITS; u++) {
        const uint32_t n = many_left(k, SL_MANY_UNITS * chunk + u);
        if (n > 16)
            many_step(t, x, w, at, u, true, acc);
        else if (n)
            many_step(t, x, w, at, u, false, acc);
    }
}

/* One level of the tree: of 2n rows each lane keeps n, those of its own bit `apart`, and adds what
 * lane ^ apart has there. */
SL_DEV void many_meet(float acc[LANE_ROWS][LANE_COLS], uint32_t n, uint32_t lane) {
    const bool high = lane & n;
    SL_UNROLL
    for (uint32_t r = 0; r < n; r++) SL_UNROLL
    for (uint32_t c = 0; c < LANE_COLS; c++) {
        const float send = high ? acc[r][c] : acc[r + n][c];
        const float keep = high ? acc[r + n][c] : acc[r][c];
        acc[r][c] = keep + __shfl_xor_sync(SL_ALL, send, n);
    }
}

/* In the end each lane has the row of its own number. */
SL_DEV void many_end(const sl_product_job *j, const sl_product_tile *tile, const many_place *at,
                     const sl_product_last *last, float acc[LANE_ROWS][LANE_COLS]) {
    const uint32_t r = at->row + at->lane;
    many_meet(acc, 8, at->lane);
    many_meet(acc, 4, at->lane);
    many_meet(acc, 2, at->lane);
    many_meet(acc, 1, at->lane);
    SL_UNROLL
    for (uint32_t c = 0; c < LANE_COLS; c++) {
        const uint32_t w = at->col + 2 * c, col = tile->col0 + (tile->pairs ? w / 2 : w);
        const float other = tile->pairs ? __shfl_xor_sync(SL_ALL, acc[0][c], 16) : 0.0f;
        if (r >= tile->rows || col >= j->n || (tile->pairs && w % 2)) continue;
        sl_product_finish(j, tile, last, r, col, acc[0][c], other);
    }
}

/* A tile of a job, by all of a block. Loads run one chunk ahead, in registers. */
SL_DEV void sl_many_tile(const sl_product_shape *a, const sl_product_job *j,
                         const sl_product_tile *tile, const sl_product_last *last, sl_dtype t) {
    SL_DYNAMIC(float, room);
    const many_share share = many_share_of(a, j, tile);
    const uint32_t chunks = (j->k + SL_UNIT * SL_MANY_UNITS - 1) / (SL_UNIT * SL_MANY_UNITS);
    const many_place at = {sl_warp() % 2 * LANE_ROWS,
                           sl_warp() / 2 * 2 * LANE_COLS + sl_lane() / 16, sl_lane() % 16};
    float acc[LANE_ROWS][LANE_COLS] = {{0}};
    const bool idle = at.row >= tile->rows; /* the whole warp is */
    many_pieces p;
    for (uint32_t i = 0; i <= chunks; i++) { /* chunk i arrives, chunk i - 1 is computed */
        float *to = room + i % 2 * (SL_MANY_X_WORDS + SL_MANY_W_WORDS),
              *from = room + (i + 1) % 2 * (SL_MANY_X_WORDS + SL_MANY_W_WORDS);
        if (i < chunks) many_fetch(j, &share, t, i, &p);
        if (i && !idle) many_compute(t, from, from + SL_MANY_X_WORDS, &at, j->k, i - 1, acc);
        if (i < chunks) many_deliver(&share, t, i, &p, to, to + SL_MANY_X_WORDS);
        __syncthreads();
    }
    if (!idle) many_end(j, tile, &at, last, acc);
}

#endif
