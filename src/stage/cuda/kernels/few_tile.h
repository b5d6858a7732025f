/* A tile of products of f32 with few rows (products_few.cu, group_few.cu): weights stream through
 * shared memory once for up to eight rows.
 *
 * A block has 128 threads and `cols` rows of weights, 8, 16 or 32. Four threads, a piece each
 * (piece.h), share two weight rows and every 32 / (cols / 2)th row of x. At the end they divide
 * what they have between them: of two weight rows and two rows of x each thread owns one product.
 * That one has it from all four, and it alone keeps on with it. */
#ifndef SL_STAGE_CUDA_FEW_TILE_H
#define SL_STAGE_CUDA_FEW_TILE_H

#include "stage/cuda/kernels/product.h"

#define FEW_MINE 4u /* rows of x with one thread, at most */

/* A thread's part of a tile. */
typedef struct few_part {
    uint32_t q;     /* its piece; owns column q / 2 of its two, row q % 2 of two of its rows */
    uint32_t pair;  /* its weight rows are this one, and this one + cols / 2 */
    uint32_t group; /* its rows of x are this one, and every `groups`th */
    uint32_t groups;
    uint32_t mine; /* so many, as many as any thread of its warp has */
} few_part;

SL_DEV few_part few_part_of(uint32_t cols, uint32_t rows) {
    const uint32_t pairs = cols / 2, slot = threadIdx.x / 4, groups = SL_FEW_THREADS / 4 / pairs;
    const uint32_t least = sl_warp() * (SL_WARP / 4) / pairs; /* group of the warp's first thread */
    const few_part p = {threadIdx.x % 4, slot & (pairs - 1), slot / pairs, groups,
                        rows > least ? (rows - least + groups - 1) / groups : 0};
    return p;
}

/* The thread's row i of x; past the last one that again, whose result nobody stores. */
SL_DEV uint32_t few_row(const few_part *p, uint32_t i, uint32_t rows) {
    const uint32_t r = p->group + i * p->groups;
    return r < rows ? r : rows - 1;
}

/* ---- sums over four threads ---- */

/* a[row][column]; of the sums over the four threads, each has the one it owns. Lanes i and i + 8
 * meet first, then i and i + 4, as docs/numbers.md asks. */
SL_DEV float few_own(const float a[2][2], uint32_t q) {
    const bool right = q & 2, low = q & 1;
    const float r0 =
        (right ? a[0][1] : a[0][0]) + __shfl_xor_sync(SL_ALL, right ? a[0][0] : a[0][1], 2);
    const float r1 =
        (right ? a[1][1] : a[1][0]) + __shfl_xor_sync(SL_ALL, right ? a[1][0] : a[1][1], 2);
    return (low ? r1 : r0) + __shfl_xor_sync(SL_ALL, low ? r0 : r1, 1);
}

/* Stores what the thread owns of rows 2h and 2h + 1 of its own. */
SL_DEV void few_store(const sl_product_shape *a, const sl_product_job *j, const sl_product_tile *at,
                      const few_part *p, const sl_product_last *last, uint32_t h, float y) {
    const float other = __shfl_xor_sync(SL_ALL, y, 2);
    const uint32_t r = p->group + (2 * h + p->q % 2) * p->groups;
    const uint32_t col = at->col0 + p->pair + (at->pairs || p->q < 2 ? 0 : a->cols / 2);
    if (r >= at->rows || col >= j->n || (at->pairs && p->q >= 2)) return;
    sl_product_finish(j, at, last, r, col, y, other);
}

/* What a thread reads of a stage. */
typedef struct few_view {
    const uint8_t *w[2];
    const float *scale[2]; /* F8_E4M3 */
    uint32_t past[2];
    const uint8_t *x[FEW_MINE];
} few_view;

SL_DEV few_view few_view_of(const sl_product_shape *a, const sl_product_job *j,
                            const sl_product_tile *at, const few_part *p, sl_dtype t,
                            uint32_t chunk, const uint8_t *stage) {
    few_view v;
    SL_UNROLL
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t c = p->pair + i * (a->cols / 2);
        v.w[i] = stage + c * a->room.pitch;
        if (!j->w_aligned) v.w[i] += (uintptr_t)sl_product_weights(a, j, at, t, c, chunk) & 15;
        v.scale[i] = (const float *)(stage + a->room.scale_at) + c * a->room.scale_pitch;
        v.past[i] = 0;
        if (t == SL_F8_E4M3)
            v.past[i] = sl_product_past(a, &j->side[sl_product_side_of(a, at, c)], chunk);
    }
    SL_UNROLL
    for (uint32_t i = 0; i < FEW_MINE; i++)
        v.x[i] = stage + a->room.x_at + few_row(p, i, at->rows) * a->room.x_pitch;
    return v;
}

/* The values of both weight rows in unit u, of which n < 32 are there at the end of a row. */
SL_DEV void few_weights(sl_dtype t, const few_view *v, uint32_t u, uint32_t q, uint32_t n,
                        bool aligned, float w[2][8]) {
    SL_UNROLL
    for (uint32_t i = 0; i < 2; i++) {
        sl_piece p = {{0}};
        if (n < SL_UNIT)
            sl_piece_tail(t, v->w[i], u, q, n, &p);
        else
            sl_piece_load(t, v->w[i], u, q, aligned, &p);
        if (t == SL_F8_E4M3) sl_piece_scales(v->scale[i], v->past[i], u, q, n, &p);
        sl_piece_values(t, &p, u, w[i]);
    }
}

/* One step of four lanes: acc[column][lane]. */
SL_DEV void few_step(const float x[4], const float w[2][8], uint32_t half, float acc[2][4]) {
    SL_UNROLL
    for (uint32_t c = 0; c < 2; c++) SL_UNROLL
    for (uint32_t i = 0; i < 4; i++) acc[c][i] = fmaf(x[i], w[c][4 * half + i], acc[c][i]);
}

SL_DEV void few_unit(sl_dtype t, const few_view *v, uint32_t q, uint32_t u, bool aligned,
                     uint32_t mine, float acc[FEW_MINE][2][4]) {
    float w[2][8];
    few_weights(t, v, u, q, SL_UNIT, aligned, w);
    SL_UNROLL
    for (uint32_t i = 0; i < mine; i++) SL_UNROLL
    for (uint32_t half = 0; half < 2; half++) {
        const float *x = (const float *)v->x[i] + SL_UNIT * u + 16 * half + 4 * q;
        const float4 f = *(const float4 *)x;
        const float b[4] = {f.x, f.y, f.z, f.w};
        few_step(b, w, half, acc[i]);
    }
}

/* Units for so many rows, a constant; two at a time, so that loads of one hide behind the other. */
SL_DEV void few_units(sl_dtype t, const few_view *v, uint32_t q, uint32_t units, bool aligned,
                      uint32_t mine, float acc[FEW_MINE][2][4]) {
    uint32_t u = 0;
    for (; u + 2 <= units; u += 2) {
        few_unit(t, v, q, u, aligned, mine, acc);
        few_unit(t, v, q, u + 1, aligned, mine, acc);
    }
    if (u < units) few_unit(t, v, q, u, aligned, mine, acc);
}

/* The last n < 32 values of a row, zeros behind them up to a whole 16. */
SL_DEV void few_tail(sl_dtype t, const few_view *v, uint32_t q, uint32_t u, uint32_t n,
                     uint32_t mine, float acc[FEW_MINE][2][4]) {
    float w[2][8], b[4];
    few_weights(t, v, u, q, n, false, w);
    SL_UNROLL
    for (uint32_t i = 0; i < FEW_MINE; i++) {
        const float *x = (const float *)v->x[i] + SL_UNIT * u;
        if (i >= mine) continue;
        SL_UNROLL
        for (uint32_t half = 0; half < 2; half++) {
            const uint32_t first = 16 * half + 4 * q;
            if (16 * half >= n) continue;
            SL_UNROLL
            for (uint32_t l = 0; l < 4; l++) b[l] = first + l < n ? x[first + l] : 0.0f;
            few_step(b, w, half, acc[i]);
        }
    }
}

SL_DEV void few_chunk(const sl_product_shape *a, const sl_product_job *j, const sl_product_tile *at,
                      const few_part *p, sl_dtype t, uint32_t chunk, const uint8_t *stage,
                      float acc[FEW_MINE][2][4]) {
    const uint32_t n = sl_product_values(a, j, chunk), units = n / SL_UNIT, q = p->q;
    const few_view v = few_view_of(a, j, at, p, t, chunk, stage);
    if (sl_minds_alignment(t) && !j->w_aligned)
        few_units(t, &v, q, units, false, FEW_MINE, acc);
    else if (p->mine == 1)
        few_units(t, &v, q, units, true, 1, acc);
    else if (p->mine == 2)
        few_units(t, &v, q, units, true, 2, acc);
    else if (p->mine)
        few_units(t, &v, q, units, true, FEW_MINE, acc);
    if (n % SL_UNIT) few_tail(t, &v, q, units, n % SL_UNIT, p->mine, acc);
}

SL_DEV void few_end(const sl_product_shape *a, const sl_product_job *j, const sl_product_tile *at,
                    const few_part *p, const sl_product_last *last,
                    const float acc[FEW_MINE][2][4]) {
    SL_UNROLL
    for (uint32_t h = 0; h < FEW_MINE / 2; h++) {
        float s[4];
        if (2 * h >= p->mine) continue;
        SL_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            const float four[2][2] = {{acc[2 * h][0][i], acc[2 * h][1][i]},
                                      {acc[2 * h + 1][0][i], acc[2 * h + 1][1][i]}};
            s[i] = few_own(four, p->q);
        }
        s[0] = s[0] + s[2], s[1] = s[1] + s[3];
        few_store(a, j, at, p, last, h, s[0] + s[1]);
    }
}

/* A tile of a job, by all of a block. */
SL_DEV void sl_few_tile(const sl_product_shape *s, const sl_product_job *j,
                        const sl_product_tile *at, const sl_product_last *last, sl_dtype t) {
    SL_DYNAMIC(uint8_t, room);
    SL_SHARED(const uint8_t *, from, SL_FEW_ROWS);
    const few_part p = few_part_of(s->cols, at->rows);
    const uint32_t chunks = (j->k + s->room.chunk - 1) / s->room.chunk;
    float acc[FEW_MINE][2][4] = {{{0}}};
    const sl_product_stream stream = {s, j, at, t, 0, chunks, from, room};
    sl_product_stream_begin(&stream);
    for (uint32_t i = 0; i < chunks; i++)
        few_chunk(s, j, at, &p, t, i, sl_product_stream_next(&stream, i), acc);
    few_end(s, j, at, &p, last, acc);
}

#endif
