/* Products with 16 virtual lanes as two vectors of 8, the halves of gemm.h.
 * Weights in blocks are first widened to f32. Chains are carried in memory between blocks of k and
 * into the padded tail, which changes no bit. */
#include "kernel/avx2/gemm.h"

#define KB_STEPS 64u /* 16-element steps of k per block: 1024 values */
#define MAX_R    4u
#define MAX_C    4u

/* One block of a register tile: x [2 halves][steps][R][8], w C rows, acc [2][R*C][8]. */
typedef struct block {
    const float *x;
    const uint8_t *w;
    size_t w_stride;  /* bytes between weight rows */
    uint32_t steps;   /* steps to run now */
    uint32_t x_steps; /* steps between the two halves of x */
    bool fresh;       /* chains start at +0 rather than at acc */
    float *acc;
    ptrdiff_t next; /* from a weight to one that is read later */
} block;

/* The rows after these come next; reading past the matrix is harmless here. */
SL_INLINE void prefetch_next(const block *b, const uint8_t *w, uint32_t from, uint32_t to) {
#pragma GCC unroll 4
    for (uint32_t c = from; c < to; c++)
        _mm_prefetch((const char *)w + b->next + c * b->w_stride, _MM_HINT_T0);
}

/* One half: R*C chains. */
SL_INLINE void run_half(const block *b, const uint32_t R, const uint32_t C, sl_dtype dtype,
                        uint32_t half) {
    const uint32_t step_bytes = 16 * sl_dtype_bytes(dtype);
    float *out = b->acc + (size_t)half * R * C * 8;
    const float *x = b->x + (size_t)half * b->x_steps * R * 8;
    const uint8_t *w = b->w;
    __m256 acc[MAX_R * MAX_C];
#pragma GCC unroll 16
    for (uint32_t i = 0; i < R * C; i++)
        acc[i] = b->fresh ? _mm256_setzero_ps() : _mm256_load_ps(out + i * 8);
    for (uint32_t s = 0; s < b->steps; s++) {
        __m256 wv[MAX_C];
        const __m256i mask = sl_w_mask();
#pragma GCC unroll 4
        for (uint32_t c = 0; c < C; c++) wv[c] = sl_w_load(w + c * b->w_stride, dtype, half, mask);
#pragma GCC unroll 4
        for (uint32_t r = 0; r < R; r++) {
            __m256 xv = _mm256_load_ps(x + r * 8);
            SL_KEEP(xv);
#pragma GCC unroll 4
            for (uint32_t c = 0; c < C; c++)
                acc[r * C + c] = _mm256_fmadd_ps(xv, wv[c], acc[r * C + c]);
        }
        prefetch_next(b, w, half ? C / 2 : 0, half ? C : C / 2);
        x += R * 8;
        w += step_bytes;
    }
#pragma GCC unroll 16
    for (uint32_t i = 0; i < R * C; i++) _mm256_store_ps(out + i * 8, acc[i]);
}

/* Both halves in one sweep over the weights, for few rows: 2*R*C chains. */
SL_INLINE void run_both(const block *b, const uint32_t R, const uint32_t C, sl_dtype dtype) {
    const uint32_t step_bytes = 16 * sl_dtype_bytes(dtype);
    const float *x0 = b->x, *x1 = b->x + (size_t)b->x_steps * R * 8;
    const uint8_t *w = b->w;
    const __m256i mask = sl_w_mask();
    __m256 acc[2 * MAX_R * MAX_C];
#pragma GCC unroll 16
    for (uint32_t i = 0; i < 2 * R * C; i++)
        acc[i] = b->fresh ? _mm256_setzero_ps() : _mm256_load_ps(b->acc + i * 8);
    for (uint32_t s = 0; s < b->steps; s++) {
#pragma GCC unroll 4
        for (uint32_t c = 0; c < C; c++) {
            __m256 w0 = sl_w_load(w + c * b->w_stride, dtype, 0, mask);
            __m256 w1 = sl_w_load(w + c * b->w_stride, dtype, 1, mask);
#pragma GCC unroll 4
            for (uint32_t r = 0; r < R; r++) {
                uint32_t i = r * C + c;
                acc[i] = _mm256_fmadd_ps(_mm256_load_ps(x0 + r * 8), w0, acc[i]);
                i += R * C;
                acc[i] = _mm256_fmadd_ps(_mm256_load_ps(x1 + r * 8), w1, acc[i]);
            }
        }
        prefetch_next(b, w, 0, C);
        x0 += R * 8;
        x1 += R * 8;
        w += step_bytes;
    }
#pragma GCC unroll 16
    for (uint32_t i = 0; i < 2 * R * C; i++) _mm256_store_ps(b->acc + i * 8, acc[i]);
}

SL_INLINE void run_block(const block *b, const uint32_t R, const uint32_t C, sl_dtype dtype) {
    if (2 * R * C <= 8) {
        run_both(b, R, C, dtype);
    } else {
        run_half(b, R, C, dtype, 0);
        run_half(b, R, C, dtype, 1);
    }
}

/* First two levels of the tree: s[i] += s[i+8], s[i] += s[i+4]; lanes 0..3 remain, in order. */
SL_INLINE __m128 tree_to_4(const float *h0, const float *h1, sl_dtype dtype) {
    __m256 a = _mm256_load_ps(h0), b = _mm256_load_ps(h1);
    if (dtype == SL_BF16) {
        __m128 even = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
        __m128 odd = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
        return _mm_add_ps(_mm_unpacklo_ps(even, odd), _mm_unpackhi_ps(even, odd));
    }
    a = _mm256_add_ps(a, b);
    return _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
}

/* Last two levels for four sums at once. */
SL_INLINE __m128 tree_finish(__m128 a, __m128 b, __m128 c, __m128 d) {
    __m128 u = _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
    __m128 v = _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
    return _mm_add_ps(_mm_movelh_ps(u, v), _mm_movehl_ps(v, u));
}

SL_INLINE void store_sums(const float *acc, const uint32_t R, const uint32_t C, sl_dtype dtype,
                          float *y, size_t y_stride) {
    const float *h1 = acc + (size_t)R * C * 8;
#pragma GCC unroll 4
    for (uint32_t r = 0; r < R; r++) {
        __m128 v[MAX_C];
#pragma GCC unroll 4
        for (uint32_t c = 0; c < MAX_C; c++) {
            uint32_t i = r * C + SL_MIN(c, C - 1);
            v[c] = c < C ? tree_to_4(acc + i * 8, h1 + i * 8, dtype) : v[C - 1];
        }
        __m128 sum = tree_finish(v[0], v[1], v[2], v[3]);
        float *out = y + r * y_stride;
        if (C == 4) _mm_storeu_ps(out, sum);
        if (C == 2 || C == 3) _mm_storel_pi((__m64 *)out, sum);
        if (C == 3) _mm_store_ss(out + 2, _mm_movehl_ps(sum, sum));
        if (C == 1) _mm_store_ss(out, sum);
    }
}

/* C weight rows against the packed block of R activation rows; acc carries the chains. */
SL_INLINE void tile_block(const sl_gemm_tile *t, const float *xp, uint32_t s0, uint32_t steps,
                          uint32_t c0, uint32_t apart, const uint32_t R, const uint32_t C,
                          sl_dtype dtype, float *acc) {
    const uint32_t bytes = sl_dtype_bytes(dtype), whole = SL_MIN(steps, t->k / 16 - s0);
    const size_t row_bytes = t->w_stride * apart;
    const uint8_t *w = (const uint8_t *)t->w + c0 * (row_bytes / apart) + (size_t)s0 * 16 * bytes;
    _Alignas(32) uint8_t pad[MAX_C * 64];
    block part = {xp, w, row_bytes, whole, steps, s0 == 0, acc, (ptrdiff_t)(C * row_bytes)};
    for (;;) { /* a loop, so that the partial step shares the code of the whole ones */
        run_block(&part, R, C, dtype);
        if (part.w == pad || whole == steps) return;
        memset(pad, 0, sizeof pad);
        for (uint32_t c = 0; c < C; c++)
            memcpy(pad + c * 64, w + c * row_bytes + (size_t)whole * 16 * bytes, t->k % 16 * bytes);
        part = (block){xp + (size_t)whole * R * 8, pad, 64, 1, steps, false, acc, 0};
    }
}

/* Weight rows that are read side by side lie `apart` rows from each other: where two of them shared
 * a page of memory, the processor's prefetchers would lose the thread (a quarter of the bandwidth).
 */
SL_INLINE uint32_t rows_apart(const sl_gemm_tile *t) {
    size_t bytes = t->w_stride;
    if (t->n_rows >= 8) return 1; /* arithmetic is the limit */
    return bytes <= 1024 ? 4 : bytes <= 2048 ? 2 : 1;
}

/* Column i of those that place c, a multiple of C, stands for, in groups of C * apart. */
SL_INLINE uint32_t column_at(uint32_t c, uint32_t apart, const uint32_t C, uint32_t i) {
    return c / (C * apart) * (C * apart) + c % (C * apart) / C + i * apart;
}

SL_INLINE void store_apart(const float *acc, uint32_t c, uint32_t apart, const uint32_t R,
                           const uint32_t C, sl_dtype dtype, float *y, size_t y_stride) {
    float sum[MAX_R * MAX_C];
    store_sums(acc, R, C, dtype, sum, C);
    for (uint32_t r = 0; r < R; r++)
        for (uint32_t i = 0; i < C; i++)
            y[r * y_stride + column_at(c, apart, C, i)] = sum[r * C + i];
}

/* R rows from r0 on against all columns of the tile, C at a time. */
SL_INLINE void tile_rows(const sl_gemm_tile *t, uint32_t r0, const uint32_t R, const uint32_t C,
                         sl_dtype dtype) {
    _Alignas(64) float xp[KB_STEPS * 16 * MAX_R];
    _Alignas(64) float acc[SL_TILE_COLS * MAX_R * 16];
    const uint32_t steps = SL_MAX(1, (t->k + 15) / 16), main_cols = t->n_cols / C * C;
    const uint32_t far = rows_apart(t), far_cols = far > 1 ? main_cols / (far * C) * (far * C) : 0;
    for (uint32_t s0 = 0; s0 < steps; s0 += KB_STEPS) {
        uint32_t n = SL_MIN(KB_STEPS, steps - s0);
        sl_x_pack(t->x + r0, t->k, s0, n, R, dtype, xp);
        for (uint32_t c = 0; c < main_cols; c += C) {
            uint32_t apart = c < far_cols ? far : 1;
            tile_block(t, xp, s0, n, column_at(c, apart, C, 0), apart, R, C, dtype,
                       acc + (size_t)c * R * 16);
        }
        for (uint32_t c = main_cols; c < t->n_cols; c++)
            tile_block(t, xp, s0, n, c, 1, R, 1, dtype, acc + (size_t)c * R * 16);
    }
    float *y = t->y + (size_t)r0 * t->y_stride;
    for (uint32_t c = 0; c < main_cols; c += C) {
        if (c < far_cols)
            store_apart(acc + (size_t)c * R * 16, c, far, R, C, dtype, y, t->y_stride);
        else
            store_sums(acc + (size_t)c * R * 16, R, C, dtype, y + c, t->y_stride);
    }
    for (uint32_t c = main_cols; c < t->n_cols; c++)
        store_sums(acc + (size_t)c * R * 16, R, 1, dtype, y + c, t->y_stride);
}

SL_INLINE void tile_of(const sl_gemm_tile *t, sl_dtype dtype) {
    uint32_t r = 0;
    for (; r + 4 <= t->n_rows; r += 4) tile_rows(t, r, 4, 3, dtype);
    if (t->n_rows - r == 3) tile_rows(t, r, 3, 4, dtype);
    if (t->n_rows - r == 2) tile_rows(t, r, 2, 2, dtype);
    if (t->n_rows - r == 1) tile_rows(t, r, 1, 4, dtype);
}

static void tile_f32(const sl_gemm_tile *t) {
    tile_of(t, SL_F32);
}
static void tile_f16(const sl_gemm_tile *t) {
    tile_of(t, SL_F16);
}
static void tile_bf16(const sl_gemm_tile *t) {
    tile_of(t, SL_BF16);
}

/* ---- weights in blocks ---- */

#define WIDE_FLOATS 6144u  /* of widened weights: they stay in L1 for all rows of the tile */
#define PACK_FLOATS 16384u /* of packed activations */

/* A block of k of a tile whose weights come in blocks: they are widened once for all rows. */
typedef struct wide_tile {
    const sl_gemm_tile *t;
    uint32_t s0, steps; /* of k, 16 values each */
    uint32_t c0, cols;  /* columns that `wide` holds, `stride` floats each */
    uint32_t stride;
    float *xp, *wide, *acc; /* acc: 16 floats a (column, row) */
} wide_tile;

SL_INLINE float *wide_acc(const wide_tile *q, uint32_t c, uint32_t r0, const uint32_t R) {
    return q->acc + ((size_t)r0 * q->t->n_cols + (size_t)c * R) * 16;
}

SL_INLINE void wide_run(const wide_tile *q, uint32_t r0, uint32_t c, const uint32_t R,
                        const uint32_t C) {
    const float *x = q->xp + (size_t)r0 * q->steps * 16;
    const block b = {x,
                     (const uint8_t *)(q->wide + (size_t)c * q->stride),
                     q->stride * sizeof(float),
                     q->steps,
                     q->steps,
                     q->s0 == 0,
                     wide_acc(q, q->c0 + c, r0, R),
                     (ptrdiff_t)(C * q->stride * sizeof(float))};
    run_block(&b, R, C, SL_F32);
}

SL_INLINE void wide_rows(const wide_tile *q, uint32_t r0, const uint32_t R, const uint32_t C) {
    uint32_t c = 0;
    for (; c + C <= q->cols; c += C) wide_run(q, r0, c, R, C);
    for (; c < q->cols; c++) wide_run(q, r0, c, R, 1);
}

SL_INLINE void wide_store(const wide_tile *q, uint32_t r0, const uint32_t R, const uint32_t C) {
    const sl_gemm_tile *t = q->t;
    float *y = t->y + (size_t)r0 * t->y_stride;
    uint32_t c = q->c0, end = q->c0 + q->cols;
    for (; c + C <= end; c += C)
        store_sums(wide_acc(q, c, r0, R), R, C, SL_F32, y + c, t->y_stride);
    for (; c < end; c++) store_sums(wide_acc(q, c, r0, R), R, 1, SL_F32, y + c, t->y_stride);
}

typedef enum wide_step { WIDE_PACK, WIDE_RUN, WIDE_STORE } wide_step;

SL_INLINE void wide_group(const wide_tile *q, wide_step step, uint32_t r0, const uint32_t R,
                          const uint32_t C) {
    const sl_gemm_tile *t = q->t;
    if (step == WIDE_PACK)
        sl_x_pack(t->x + r0, t->k, q->s0, q->steps, R, SL_F32, q->xp + (size_t)r0 * q->steps * 16);
    if (step == WIDE_RUN) wide_rows(q, r0, R, C);
    if (step == WIDE_STORE) wide_store(q, r0, R, C);
}

/* One step for all rows, in the groups of tile_of. */
static void wide_do(const wide_tile *q, wide_step step) {
    uint32_t r = 0, n = q->t->n_rows;
    for (; r + 4 <= n; r += 4) wide_group(q, step, r, 4, 3);
    if (n - r == 3) wide_group(q, step, r, 3, 4);
    if (n - r == 2) wide_group(q, step, r, 2, 2);
    if (n - r == 1) wide_group(q, step, r, 1, 4);
}

/* Rows of F8_E4M3 may end within a step: it is filled up with zeros. */
static void f8_fill(const sl_gemm_tile *t, uint32_t c, uint32_t k0, const uint8_t *w, uint32_t n,
                    float *to) {
    uint32_t in = SL_MIN(n, t->k - k0);
    sl_f8_decode(w, sl_mat_scale(t->mat, t->row + c), t->mat->scale_col + k0, in, to);
    memset(to + in, 0, (n - in) * sizeof *to);
}

/* Widens the columns of a group and asks for those of the next. */
static void wide_fill(const wide_tile *q) {
    const sl_gemm_tile *t = q->t;
    size_t row_bytes = t->w_stride, n = (size_t)q->steps * 16;
    size_t part = sl_dtype_row_bytes(t->dtype, n);
    for (uint32_t c = 0; c < q->cols; c++) {
        const uint8_t *w = (const uint8_t *)t->w + (q->c0 + c) * row_bytes +
                           sl_dtype_row_bytes(t->dtype, (size_t)q->s0 * 16);
        for (size_t i = 0; i < part; i += 64)
            _mm_prefetch((const char *)w + q->cols * row_bytes + i, _MM_HINT_T0);
        float *to = q->wide + (size_t)c * q->stride;
        if (t->dtype == SL_F8_E4M3)
            f8_fill(t, q->c0 + c, q->s0 * 16, w, (uint32_t)n, to);
        else
            sl_avx2_block_decode(t->dtype, w, n, to);
    }
}

static void tile_blocks(const sl_gemm_tile *t) {
    _Alignas(64) float xp[PACK_FLOATS], wide[WIDE_FLOATS];
    _Alignas(64) float acc[SL_TILE_COLS * SL_TILE_ROWS * 16];
    /* Few rows: long stretches of few weight rows, as memory likes it. */
    const uint32_t most = t->n_rows < 4 ? 64 : 32, group = t->n_rows < 4 ? 4 : 12;
    const uint32_t steps = (t->k + 15) / 16;
    wide_tile q = {.t = t, .stride = most * 16, .xp = xp, .wide = wide, .acc = acc};
    _Static_assert(WIDE_FLOATS >= 12 * 32 * 16 && PACK_FLOATS >= SL_TILE_ROWS * 32 * 16 &&
                       WIDE_FLOATS >= 4 * 64 * 16 && PACK_FLOATS >= 3 * 64 * 16,
                   "room for both cuts");
    if (t->n_rows == 0) return;
    for (q.s0 = 0; q.s0 < steps; q.s0 += most) {
        q.steps = SL_MIN(most, steps - q.s0);
        wide_do(&q, WIDE_PACK);
        for (q.c0 = 0; q.c0 < t->n_cols; q.c0 += group) {
            q.cols = SL_MIN(group, t->n_cols - q.c0);
            wide_fill(&q);
            wide_do(&q, WIDE_RUN);
            if (q.s0 + q.steps == steps) wide_do(&q, WIDE_STORE);
        }
    }
}

void sl_avx2_gemm_tile(const sl_gemm_tile *t) {
    if (!sl_dtype_is_plain(t->dtype))
        tile_blocks(t);
    else if (sl_gemm_is_many(t))
        sl_avx2_gemm_many(t);
    else if (t->dtype == SL_F32)
        tile_f32(t);
    else if (t->dtype == SL_F16)
        tile_f16(t);
    else
        tile_bf16(t);
}
