/* Routed experts in numerics fast and exact, weights in bf16, any GPU since sm_80: tiles of 128
 * weight rows by 32, 64 or 128 rows of activations, copied to shared memory some stages ahead.
 *
 * Weight rows are the rows of tensor core tiles, rows of activations their columns. A block of the
 * up kernel has 64 gate rows and the 64 up rows of the same values of d_ff, which come together in
 * a thread; one of the down kernel has 128 rows of down. d_model and d_ff are multiples of 64, or
 * the tail of k is zeros. */
#include "stage/cuda/kernels/args_fast.h"
#include "stage/cuda/kernels/fast.h"

#define SL_TILE_THREADS 256
#define SL_TILE_ROWS    128 /* of weights */
#define SL_TILE_K       64  /* a row of a stage is 128 bytes, 8 pieces */
#define SL_TILE_A       (SL_TILE_ROWS * SL_TILE_K * 2)
#define SL_TILE_F32     (SL_TILE_ROWS + 4) /* values between columns of results in f32 */

/* Where piece `piece` of row `row` of a tile lies: rows that are read together lie in other
 * banks. */
SL_DEV uint32_t sl_tile_at(uint32_t row, uint32_t piece) {
    return row * 128 + (piece ^ (row & 7)) * 16;
}

/* What a thread copies: its piece of rows threadIdx.x / 8 + 32 i. */
typedef struct sl_tile_source {
    const uint16_t *a[4], *columns;
    uint32_t b[4]; /* values behind `columns` */
    uint32_t k, n; /* n: columns that there are; in the place of others lies anything */
} sl_tile_source;

SL_DEV void sl_tile_copy(const sl_tile_source *s, uint8_t *stage, uint32_t kt,
                         const uint32_t cols) {
    const uint32_t at = sl_tile_at(threadIdx.x / 8, threadIdx.x % 8);
    const uint32_t k = kt * SL_TILE_K, mine = k + threadIdx.x % 8 * 8;
    const uint32_t n = mine < s->k ? 16 : 0;
    SL_UNROLL for (uint32_t i = 0; i < 4; i++)
        sl_cp_async16_zero(stage + at + i * 4096, n ? s->a[i] + k : s->a[i], n);
    SL_UNROLL for (uint32_t i = 0; i < cols / 32; i++) {
        const uint16_t *column = s->columns + s->b[i] + (n ? k : 0);
        if (threadIdx.x / 8 + i * 32 < s->n)
            sl_cp_async16_zero(stage + SL_TILE_A + at + i * 4096, column, n);
    }
}

/* One stage: a warp has weight rows 16 (warp % 4) and 64 + 16 (warp % 4), half the columns. */
SL_DEV void sl_tile_multiply(const uint8_t *stage, const uint32_t cols, float d[2][8][4]) {
    const uint32_t lane = sl_lane(), i = lane / 8, j = lane % 8;
    const uint32_t wm = sl_warp() % 4, wn = sl_warp() / 4;
    const uint32_t a_row = 16 * wm + i % 2 * 8 + j, b_row = wn * (cols / 2) + i / 2 * 8 + j;
    SL_UNROLL for (uint32_t k = 0; k < SL_TILE_K / 16; k++) {
        uint32_t a[2][4];
        sl_ldmatrix_x4(a[0], stage + sl_tile_at(a_row, 2 * k + i / 2));
        sl_ldmatrix_x4(a[1], stage + sl_tile_at(64 + a_row, 2 * k + i / 2));
        SL_UNROLL for (uint32_t t = 0; t < cols / 32; t++) {
            uint32_t b[4];
            sl_ldmatrix_x4(b, stage + SL_TILE_A + sl_tile_at(b_row + 16 * t, 2 * k + i % 2));
            SL_UNROLL for (uint32_t m = 0; m < 2; m++) {
                sl_mma_m16n8k16_bf16(d[m][2 * t], a[m], b);
                sl_mma_m16n8k16_bf16(d[m][2 * t + 1], a[m], b + 2);
            }
        }
    }
}

SL_DEV void sl_tile_run(const sl_tile_source *s, uint8_t *room, const uint32_t cols,
                        const uint32_t stages, float d[2][8][4]) {
    const uint32_t bytes = SL_TILE_A + cols * SL_TILE_K * 2, n = (s->k + SL_TILE_K - 1) / SL_TILE_K;
    SL_UNROLL for (uint32_t i = 0; i < stages - 1; i++) {
        if (i < n) sl_tile_copy(s, room + i * bytes, i, cols);
        sl_cp_async_commit();
    }
    uint32_t read = 0, write = stages - 1;
    for (uint32_t i = 0; i < n; i++) {
        if (stages == 3)
            sl_cp_async_wait(1);
        else
            sl_cp_async_wait(2);
        __syncthreads();
        if (i + stages - 1 < n) sl_tile_copy(s, room + write * bytes, i + stages - 1, cols);
        sl_cp_async_commit();
        sl_tile_multiply(room + read * bytes, cols, d);
        read = read + 1 == stages ? 0 : read + 1;
        write = write + 1 == stages ? 0 : write + 1;
    }
    sl_cp_async_wait(0);
    __syncthreads();
}

/* The tile [column][values of `width`] in bf16 of shared memory to rows first + column of `to`. */
SL_DEV void sl_tile_store(const uint16_t *tile, const uint32_t width, uint32_t n, uint16_t *to,
                          uint32_t first, uint32_t stride, uint32_t from) {
    const uint32_t pieces = width / 8;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n * pieces; i += SL_TILE_THREADS) {
        const uint32_t c = i / pieces, at = i % pieces * 8;
        if (from + at < stride)
            *(uint4 *)(to + (size_t)(first + c) * stride + from + at) =
                *(const uint4 *)(tile + c * (width + 8) + at);
    }
}

SL_DEV void sl_tile_up(const sl_fast_up_args *a, const uint32_t cols, const uint32_t stages) {
    SL_DYNAMIC(uint8_t, room);
    sl_fast_wait();
    sl_fast_let_next();
    if (blockIdx.y >= a->counts->n_groups) return;
    const sl_fast_group g = a->group[blockIdx.y];
    const uint32_t f0 = blockIdx.x * 64, piece = threadIdx.x % 8 * 8;
    sl_tile_source s;
    s.k = a->d_model;
    s.n = g.n;
    s.columns = a->x16;
    SL_UNROLL for (uint32_t i = 0; i < 4; i++) {
        const uint32_t f = f0 + threadIdx.x / 8 + i % 2 * 32;
        const uint8_t *w = i < 2 ? g.gate : g.up;
        s.a[i] = (const uint16_t *)w + (size_t)(f < a->d_ff ? f : a->d_ff - 1) * s.k + piece;
        const uint32_t c = threadIdx.x / 8 + i * 32;
        s.b[i] = __ldg(a->x_row + g.first + (c < g.n ? c : 0)) * s.k + piece;
    }
    float d[2][8][4] = {{{0}}};
    sl_tile_run(&s, room, cols, stages, d);
    uint16_t *tile = (uint16_t *)room;
    const uint32_t lane = sl_lane(), f = 16 * (sl_warp() % 4) + lane / 4;
    const uint32_t c = sl_warp() / 4 * (cols / 2) + lane % 4 * 2;
    SL_UNROLL for (uint32_t t = 0; t < cols / 16; t++) {
        SL_UNROLL for (uint32_t i = 0; i < 4; i++) {
            const float m = sl_fast_swiglu(d[0][t][i], d[1][t][i], a->limit);
            tile[(c + 8 * t + i % 2) * 72 + f + i / 2 * 8] = (uint16_t)sl_pack_bf16(m, 0);
        }
    }
    sl_tile_store(tile, 64, g.n, a->mid, g.first, a->d_ff, f0);
}

/* The same of f32. */
SL_DEV void sl_tile_store_f32(const float *tile, uint32_t n, float *to, uint32_t first,
                              uint32_t stride, uint32_t from) {
    const uint32_t pieces = SL_TILE_ROWS / 4;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n * pieces; i += SL_TILE_THREADS) {
        const uint32_t c = i / pieces, at = i % pieces * 4;
        if (from + at < stride)
            *(float4 *)(to + (size_t)(first + c) * stride + from + at) =
                *(const float4 *)(tile + c * SL_TILE_F32 + at);
    }
}

/* wide: results in f32, of numerics exact. */
SL_DEV void sl_tile_down(const sl_fast_down_args *a, const uint32_t cols, const uint32_t stages,
                         const bool wide) {
    SL_DYNAMIC(uint8_t, room);
    sl_fast_wait();
    sl_fast_let_next();
    if (blockIdx.y >= a->counts->n_groups) return;
    const sl_fast_group g = a->group[blockIdx.y];
    const uint32_t d0 = blockIdx.x * SL_TILE_ROWS, piece = threadIdx.x % 8 * 8;
    sl_tile_source s;
    s.k = a->d_ff;
    s.n = g.n;
    s.columns = a->mid + (size_t)g.first * s.k;
    SL_UNROLL for (uint32_t i = 0; i < 4; i++) {
        const uint32_t r = d0 + threadIdx.x / 8 + i * 32, c = threadIdx.x / 8 + i * 32;
        s.a[i] =
            (const uint16_t *)g.down + (size_t)(r < a->d_model ? r : a->d_model - 1) * s.k + piece;
        s.b[i] = (c < g.n ? c : 0) * s.k + piece;
    }
    float d[2][8][4] = {{{0}}};
    sl_tile_run(&s, room, cols, stages, d);
    uint16_t *tile = (uint16_t *)room;
    const uint32_t lane = sl_lane(), r = 16 * (sl_warp() % 4) + lane / 4;
    const uint32_t c = sl_warp() / 4 * (cols / 2) + lane % 4 * 2;
    SL_UNROLL for (uint32_t t = 0; t < cols / 16; t++) {
        SL_UNROLL for (uint32_t i = 0; i < 2; i++) {
            const uint32_t x = c + 8 * t + i;
            const float w = x < g.n ? __ldg(a->weight + g.first + x) : 0.0f;
            SL_UNROLL for (uint32_t m = 0; m < 2; m++) {
                if (wide) {
                    float *to = (float *)room + x * SL_TILE_F32 + m * 64 + r;
                    to[0] = w * d[m][t][i];
                    to[8] = w * d[m][t][2 + i];
                    continue;
                }
                uint16_t *to = tile + x * 136 + m * 64 + r;
                to[0] = (uint16_t)sl_pack_bf16(w * d[m][t][i], 0);
                to[8] = (uint16_t)sl_pack_bf16(w * d[m][t][2 + i], 0);
            }
        }
    }
    if (wide)
        sl_tile_store_f32((const float *)room, g.n, a->part, g.first, a->d_model, d0);
    else
        sl_tile_store(tile, SL_TILE_ROWS, g.n, a->part16, g.first, a->d_model, d0);
}

SL_KERNEL_BOUNDS(sl_k_fast_tile_up_32, sl_fast_up_args, SL_TILE_THREADS, 2) {
    sl_tile_up(&a, 32, 4);
}

SL_KERNEL_BOUNDS(sl_k_fast_tile_up_64, sl_fast_up_args, SL_TILE_THREADS, 2) {
    sl_tile_up(&a, 64, 4);
}

SL_KERNEL_BOUNDS(sl_k_fast_tile_up_128, sl_fast_up_args, SL_TILE_THREADS, 2) {
    sl_tile_up(&a, 128, 3);
}

SL_KERNEL_BOUNDS(sl_k_fast_tile_down_32, sl_fast_down_args, SL_TILE_THREADS, 2) {
    sl_tile_down(&a, 32, 4, false);
}

SL_KERNEL_BOUNDS(sl_k_fast_tile_down_64, sl_fast_down_args, SL_TILE_THREADS, 2) {
    sl_tile_down(&a, 64, 4, false);
}

SL_KERNEL_BOUNDS(sl_k_fast_tile_down_128, sl_fast_down_args, SL_TILE_THREADS, 2) {
    sl_tile_down(&a, 128, 3, false);
}

SL_KERNEL_BOUNDS(sl_k_exact_down_32, sl_fast_down_args, SL_TILE_THREADS, 2) {
    sl_tile_down(&a, 32, 4, true);
}

SL_KERNEL_BOUNDS(sl_k_exact_down_64, sl_fast_down_args, SL_TILE_THREADS, 2) {
    sl_tile_down(&a, 64, 4, true);
}

SL_KERNEL_BOUNDS(sl_k_exact_down_128, sl_fast_down_args, SL_TILE_THREADS, 2) {
    sl_tile_down(&a, 128, 3, true);
}
