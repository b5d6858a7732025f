/* What kernels of products share: which job a block works for, and how rows of weights and of x
 * come to shared memory, a chunk of their values at a time. */
#ifndef SL_STAGE_CUDA_PRODUCT_H
#define SL_STAGE_CUDA_PRODUCT_H

#include "kernel/formula.h"
#include "stage/cuda/kernels/args_products.h"
#include "stage/cuda/kernels/piece.h"

/* The job that a tile belongs to: the last that begins at it or before. */
SL_DEV uint32_t sl_product_find(const sl_product_args *a, uint32_t tile) {
    uint32_t low = 0, high = a->n_jobs;
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (a->job[middle].first <= tile)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* A block's part of a job: rows r0 .. r0 + rows - 1 of y, columns from col0 on, as many weight rows
 * in shared memory as the kernel's tiles have. With two sides (`pairs`) the second half of them are
 * side 1's rows for the same columns; where they take `turns` every second one. */
typedef struct sl_product_tile {
    uint32_t r0, rows, col0;
    bool pairs, turns;
} sl_product_tile;

SL_DEV sl_product_tile sl_product_tile_of(const sl_product_shape *a, const sl_product_job *j,
                                          uint32_t tile, uint32_t most_rows) {
    const bool pairs = j->end == SL_PRODUCT_SWIGLU;
    const uint32_t down = (j->n_rows + most_rows - 1) / most_rows, t = tile - j->first;
    const uint32_t r0 = t % down * most_rows, left = j->n_rows - r0;
    const sl_product_tile at = {r0, left < most_rows ? left : most_rows,
                                t / down * (pairs ? a->cols / 2 : a->cols), pairs, false};
    return at;
}

/* Which side weight row c of a tile is of, and which row of it; past the last one that again. */
SL_DEV uint32_t sl_product_side_of(const sl_product_shape *a, const sl_product_tile *at,
                                   uint32_t c) {
    return at->pairs && (at->turns ? c & 1 : c >= a->cols / 2);
}

SL_DEV uint32_t sl_product_row_of(const sl_product_shape *a, const sl_product_job *j,
                                  const sl_product_tile *at, uint32_t c) {
    const uint32_t i = at->col0 + (!at->pairs ? c : at->turns ? c / 2 : c & (a->cols / 2 - 1));
    return i < j->n ? i : j->n - 1;
}

/* Where weight row c has its values from `chunk` on. */
SL_DEV const uint8_t *sl_product_weights(const sl_product_shape *a, const sl_product_job *j,
                                         const sl_product_tile *at, sl_dtype t, uint32_t c,
                                         uint32_t chunk) {
    const sl_product_side *s = &j->side[sl_product_side_of(a, at, c)];
    const uint64_t skip = (uint64_t)chunk * (a->room.chunk / 256) * sl_bytes_of_256(t);
    return s->w + sl_product_row_of(a, j, at, c) * s->stride + skip;
}

/* Values of chunk `chunk`. */
SL_DEV uint32_t sl_product_values(const sl_product_shape *a, const sl_product_job *j,
                                  uint32_t chunk) {
    const uint32_t left = j->k - chunk * a->room.chunk;
    return left < a->room.chunk ? left : a->room.chunk;
}

/* Bytes of n values, of a kernel's type a whole number of blocks. */
SL_DEV uint32_t sl_product_bytes(sl_dtype t, uint32_t n) {
    const uint32_t block = sl_is_k(t)                                      ? 256
                           : t == SL_Q8_0 || t == SL_Q4_0 || t == SL_MXFP4 ? 32
                                                                           : 1;
    return n / block * (sl_bytes_of_256(t) / (256 / block));
}

/* Begins to copy the weights of a chunk to a stage. A row keeps its place within 16 bytes: whole
 * sixteens are read that hold some of it. */
SL_DEV void sl_product_copy_weights(const sl_product_shape *a, const sl_product_job *j,
                                    const sl_product_tile *at, sl_dtype t, uint32_t chunk,
                                    uint8_t *stage) {
    const uint32_t lanes = sl_bytes_of_256(t) >= 512 ? 32 : 16; /* of a row */
    const uint32_t bytes = sl_product_bytes(t, sl_product_values(a, j, chunk));
    const uint32_t lane = threadIdx.x % lanes, step = blockDim.x / lanes;
    for (uint32_t c = threadIdx.x / lanes; c < a->cols; c += step) {
        const uint8_t *from = sl_product_weights(a, j, at, t, c, chunk);
        const uint32_t past = (uint32_t)((uintptr_t)from & 15);
        for (uint32_t i = 16 * lane; i < past + bytes; i += 16 * lanes)
            sl_cp_async16(stage + c * a->room.pitch + i, from - past + i);
    }
}

/* F8_E4M3: where in its block of scales a chunk of side s begins. */
SL_DEV uint32_t sl_product_past(const sl_product_shape *a, const sl_product_side *s,
                                uint32_t chunk) {
    return (s->scale_col + chunk * a->room.chunk) % SL_F8_BLOCK;
}

SL_DEV void sl_product_copy_scales(const sl_product_shape *a, const sl_product_job *j,
                                   const sl_product_tile *at, uint32_t chunk, uint8_t *stage) {
    const uint32_t n = sl_product_values(a, j, chunk), pitch = a->room.scale_pitch;
    float *to = (float *)(stage + a->room.scale_at);
    for (uint32_t e = threadIdx.x; e < a->cols * pitch; e += blockDim.x) {
        const uint32_t c = e / pitch, i = e % pitch;
        const sl_product_side *s = &j->side[sl_product_side_of(a, at, c)];
        const uint32_t row = (s->scale_row + sl_product_row_of(a, j, at, c)) / SL_F8_BLOCK;
        const uint32_t first = (s->scale_col + chunk * a->room.chunk) / SL_F8_BLOCK;
        if (SL_F8_BLOCK * i < sl_product_past(a, s, chunk) + n)
            sl_cp_async4(to + e, s->scale + (uint64_t)row * s->across + first + i);
    }
}

/* Row r of a tile in x. */
SL_DEV const uint8_t *sl_product_x(const sl_product_job *j, const sl_product_tile *at, uint32_t r) {
    const uint32_t i = at->r0 + r;
    return j->x + (j->listed ? j->few[i] : j->row ? j->row[i] : i) * j->x_stride;
}

/* Begins to copy a chunk of rows of f32. What is behind their end in the last sixteen is zero. */
SL_DEV void sl_product_copy_f32(const sl_product_shape *a, const sl_product_job *j,
                                const sl_product_tile *at, const uint8_t *const *from,
                                uint32_t chunk, uint8_t *stage) {
    const uint32_t n = sl_product_values(a, j, chunk), words = j->x_aligned ? 4 : 1;
    for (uint32_t r = sl_warp(); r < at->rows; r += blockDim.x / SL_WARP) {
        const float *x = (const float *)from[r] + chunk * a->room.chunk;
        float *to = (float *)(stage + a->room.x_at + r * a->room.x_pitch);
        for (uint32_t i = words * sl_lane(); i < n; i += words * SL_WARP) {
            if (!j->x_aligned)
                sl_cp_async4(to + i, x + i);
            else
                sl_cp_async16_zero(to + i, x + i, n - i < 4 ? 4 * (n - i) : 16);
        }
    }
}

/* Begins to copy a chunk of rounded rows: codes, then scales of a value a `block`. */
SL_DEV void sl_product_copy_int8(const sl_product_shape *a, const sl_product_job *j,
                                 const sl_product_tile *at, const uint8_t *const *from,
                                 uint32_t block, uint32_t chunk, uint8_t *stage) {
    const uint32_t c = a->room.chunk, n = sl_product_values(a, j, chunk);
    for (uint32_t r = sl_warp(); r < at->rows; r += blockDim.x / SL_WARP) {
        const uint8_t *x = from[r] + chunk * c, *scale = from[r] + j->k + chunk * (c / block) * 4;
        uint8_t *to = stage + a->room.x_at + r * a->room.x_pitch;
        for (uint32_t i = 16 * sl_lane(); i < n; i += 16 * SL_WARP) sl_cp_async16(to + i, x + i);
        for (uint32_t i = sl_lane(); i < n / block; i += SL_WARP)
            sl_cp_async4(to + c + 4 * i, scale + 4 * i);
    }
}

/* ---- tiles of few rows: copies run SL_FEW_STAGES - 1 chunks ahead ---- */

typedef struct sl_product_stream {
    const sl_product_shape *a;
    const sl_product_job *j;
    const sl_product_tile *at;
    sl_dtype t;
    uint32_t block; /* values that share a scale of rounded rows; 0: they are f32 */
    uint32_t chunks;
    const uint8_t **from; /* [at->rows] */
    uint8_t *room;        /* SL_FEW_STAGES stages */
} sl_product_stream;

SL_DEV uint8_t *sl_product_stage(const sl_product_stream *s, uint32_t chunk) {
    return s->room + chunk % SL_FEW_STAGES * s->a->room.stage;
}

SL_DEV void sl_product_stream_weights(const sl_product_stream *s, uint32_t chunk, uint8_t *to) {
    sl_product_copy_weights(s->a, s->j, s->at, s->t, chunk, to);
    if (s->t == SL_F8_E4M3) sl_product_copy_scales(s->a, s->j, s->at, chunk, to);
}

SL_DEV void sl_product_stream_rows(const sl_product_stream *s, uint32_t chunk, uint8_t *to) {
    if (s->block)
        sl_product_copy_int8(s->a, s->j, s->at, s->from, s->block, chunk, to);
    else
        sl_product_copy_f32(s->a, s->j, s->at, s->from, chunk, to);
}

/* The first chunks; fills `from`, for which weights do not wait. */
SL_DEV void sl_product_stream_begin(const sl_product_stream *s) {
    if (threadIdx.x < s->at->rows) s->from[threadIdx.x] = sl_product_x(s->j, s->at, threadIdx.x);
    for (uint32_t i = 0; i < SL_FEW_STAGES - 1 && i < s->chunks; i++)
        sl_product_stream_weights(s, i, s->room + i * s->a->room.stage);
    __syncthreads();
    for (uint32_t i = 0; i < SL_FEW_STAGES - 1; i++) {
        if (i < s->chunks) sl_product_stream_rows(s, i, s->room + i * s->a->room.stage);
        sl_cp_async_commit();
    }
}

/* Where chunk i lies, all of it. The block has done with the one before it: another one begins to
 * come to its place. */
SL_DEV const uint8_t *sl_product_stream_next(const sl_product_stream *s, uint32_t i) {
    const uint32_t next = i + SL_FEW_STAGES - 1;
    uint8_t *to = sl_product_stage(s, next);
    sl_cp_async_wait(SL_FEW_STAGES - 2);
    __syncthreads();
    if (next < s->chunks) {
        sl_product_stream_weights(s, next, to);
        sl_product_stream_rows(s, next, to);
    }
    sl_cp_async_commit();
    return sl_product_stage(s, i);
}

/* ---- what becomes of a product ---- */

/* y of one output, from its product p, and where the job has two sides from that with the other. */
SL_DEV void sl_product_store(const sl_product_job *j, uint32_t r, uint32_t col, float p, float up) {
    float *y = j->y + (uint64_t)r * j->y_stride + col;
    if (j->end == SL_PRODUCT_SWIGLU)
        *y = sl_swiglu_scalar(p, up);
    else if (j->end == SL_PRODUCT_GATE)
        *y = sl_swiglu_scalar(*y, p);
    else
        *y = p;
}

/* What products of routed experts go through before they are stored: biases of both sides, the
 * limit of a clamped SwiGLU (0: the plain one), a weight of each row of the tile. NULL: none. */
typedef struct sl_product_last {
    const void *bias[2];
    uint32_t bias_type[2];
    float limit;
    const float *weight;
} sl_product_last;

SL_DEV sl_product_last sl_product_nothing(void) {
    const sl_product_last none = {{NULL, NULL}, {0, 0}, 0, NULL};
    return none;
}

SL_DEV float sl_product_biased(const sl_product_last *last, uint32_t side, uint32_t col, float p) {
    const void *b = last->bias[side];
    if (!b) return p;
    if (last->bias_type[side] == SL_F32) return p + ((const float *)b)[col];
    const uint32_t h = ((const uint16_t *)b)[col];
    return p + (last->bias_type[side] == SL_F16 ? sl_half_value(h) : sl_f32_of_bits(h << 16));
}

/* The same as sl_product_store of row r of a tile, when all that is through. */
SL_DEV void sl_product_finish(const sl_product_job *j, const sl_product_tile *at,
                              const sl_product_last *last, uint32_t r, uint32_t col, float p,
                              float up) {
    p = sl_product_biased(last, 0, col, p);
    if (at->pairs) up = sl_product_biased(last, 1, col, up);
    if (last->weight) p = last->weight[r] * p;
    if (last->limit > 0)
        j->y[(uint64_t)(at->r0 + r) * j->y_stride + col] =
            sl_swiglu_clamped_scalar(p, up, last->limit);
    else
        sl_product_store(j, at->r0 + r, col, p, up);
}

#endif
