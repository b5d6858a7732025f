/* Products with f32 activations, for the tables that ask for weights as SL_ASK and SL_ASK_AHEAD
 * say: a chain of the 16 virtual lanes is one register, a register tile up to 6 rows of activations
 * by 4 columns. Rows are packed once for the tile; then four weight rows at a time meet all of
 * them, so that weights are read once. While they do, the four that come next are asked for, in
 * memory's order. Weights in blocks are widened first, a piece of four rows at a time. Where k is
 * longer than what is packed, chains wait in memory, which changes no bit. */
#ifndef SL_KERNEL_AVX512_GEMM_H
#define SL_KERNEL_AVX512_GEMM_H

#include "kernel/avx512/avx512.h"
#include "kernel/avx512/ask.h"
#include "kernel/simd/avx512.h"

#include "kernel/simd/vec.h"

#include "kernel/avx512/sums.h"

#define COLS      4u
#define ROWS      6u
#define PACK      65536u /* floats of packed activations: a quarter of the second cache */
#define WIDE      1024u  /* values of k that are widened at a time; whole blocks of every type */
#define LONG_COLS 96u    /* columns at a time where k is longer */
#define PAGE      4096u  /* bytes of the smallest pages of memory */
#define GROUPS    ((SL_TILE_ROWS + ROWS - 1) / ROWS) /* of rows, at most */

_Static_assert(SL_TILE_COLS <= LONG_COLS, "so many columns' chains are kept");

/* What the loops run over now. Chains lie in acc [column][row][16]. */
typedef struct sweep {
    const sl_gemm_tile *t;
    uint32_t rows[GROUPS], groups; /* rows of each group, nearly alike */
    uint32_t steps;                /* of k that xp holds, the last one filled up with zeros */
    uint32_t rest;                 /* values of that last one, 0: all */
    bool fresh, last;              /* chains start at +0; sums are due */
    const uint8_t *w;
    size_t w_stride;
    const uint8_t *ahead; /* what comes next, of which each pair of steps ... */
    uint32_t lines;       /* ... asks for so many lines ... */
    size_t line, pair;    /* ... this far apart, the next pair for those so far on, ... */
    size_t turn;          /* ... the first pair of the next group of rows so far from this one's */
    float *xp, *acc, *wide;
} sweep;

/* Lanes 4 to 7 and 8 to 11 change places. */
SL_INLINE v16 cross(v16 v) {
    return _mm512_shuffle_f32x4(v, v, 0xd8);
}

/* Sixteen bf16 are the upper halves of sixteen words. One shuffle of bytes within quarters, where
 * widening and shifting are two and a permutation is as slow: a load that has them twice brings
 * each quarter's into it, crossed. Rows are packed in the same order. */
SL_INLINE v16 widen_bf16(const uint8_t *w) {
    const __m128i first = _mm_setr_epi8(-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7);
    const __m128i last =
        _mm_setr_epi8(-1, -1, 8, 9, -1, -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15);
    const __m512i which =
        _mm512_inserti64x4(_mm512_broadcast_i32x4(first), _mm256_broadcastsi128_si256(last), 1);
    const __m512i twice = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)w));
    return _mm512_castsi512_ps(_mm512_shuffle_epi8(twice, which));
}

/* Lanes of loads, of packed rows and of chains. */
SL_INLINE bool is_crossed(sl_dtype dtype) {
    return dtype == SL_BF16;
}

SL_INLINE v16 load(const uint8_t *w, sl_dtype dtype) {
    return dtype == SL_BF16 ? widen_bf16(w) : simd_load(w, dtype);
}

/* The first n of sixteen, then +0, in their order. */
SL_INLINE v16 load_some(const uint8_t *w, uint32_t n, sl_dtype dtype) {
    const __mmask16 some = (__mmask16)((1u << n) - 1);
    if (dtype == SL_F32) return _mm512_maskz_loadu_ps(some, w);
    const __m256i h = _mm256_maskz_loadu_epi16(some, w);
    if (dtype == SL_F16) return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

SL_INLINE void multiply(v16 *acc, const float *x, const v16 *w, const uint32_t R,
                        const uint32_t C) {
#pragma GCC unroll 8
    for (uint32_t r = 0; r < R; r++) {
        v16 xv = v_load(x + r * 16);
        __asm__("" : "+v"(xv)); /* else it is loaded again at each use */
#pragma GCC unroll 4
        for (uint32_t c = 0; c < C; c++) acc[r * C + c] = v_fma(xv, w[c], acc[r * C + c]);
    }
}

SL_INLINE void one_step(v16 *acc, const float *x, const uint8_t *w, size_t stride, const uint32_t R,
                        const uint32_t C, sl_dtype dtype) {
    v16 wv[COLS];
#pragma GCC unroll 4
    for (uint32_t c = 0; c < C; c++) wv[c] = load(w + c * stride, dtype);
    multiply(acc, x, wv, R, C);
}

SL_INLINE void store_sums(const v16 *acc, const uint32_t R, const uint32_t C, const bool crossed,
                          float *y, size_t stride) {
    if (C < 4) {
        for (uint32_t r = 0; r < R; r++)
            for (uint32_t c = 0; c < C; c++) {
                const v16 a = acc[r * C + c];
                y[r * stride + c] = v_tree(crossed ? cross(a) : a);
            }
        return;
    }
#pragma GCC unroll 2
    for (uint32_t r = 0; r < R; r += 4, y += 4 * stride) {
        v16 a[16];
#pragma GCC unroll 16
        for (uint32_t i = 0; i < 16; i++) a[i] = acc[SL_MIN(r + i / 4, R - 1) * 4 + i % 4];
        const v16 sum = trees(a, crossed);
        _mm_storeu_ps(y, _mm512_castps512_ps128(sum));
        if (r + 1 < R) _mm_storeu_ps(y + stride, _mm512_extractf32x4_ps(sum, 1));
        if (r + 2 < R) _mm_storeu_ps(y + 2 * stride, _mm512_extractf32x4_ps(sum, 2));
        if (r + 3 < R) _mm_storeu_ps(y + 3 * stride, _mm512_extractf32x4_ps(sum, 3));
    }
}

/* R rows with C columns over the packed steps. */
SL_INLINE void run(const sweep *q, const float *x, const uint8_t *ahead, float *chain, float *y,
                   const uint32_t R, const uint32_t C, sl_dtype dtype) {
    const uint32_t step = 16 * sl_dtype_bytes(dtype), lines = q->lines;
    const uint32_t whole = q->rest ? q->steps - 1 : q->steps;
    const size_t stride = q->w_stride;
    const uint8_t *w = q->w;
    v16 acc[ROWS * COLS];
#pragma GCC unroll 24
    for (uint32_t i = 0; i < R * C; i++) acc[i] = q->fresh ? v_set1(0) : v_load(chain + i * 16);
    for (uint32_t s = 0; s + 2 <= whole; s += 2) {
        one_step(acc, x, w, stride, R, C, dtype);
        one_step(acc, x + R * 16, w + step, stride, R, C, dtype);
        for (uint32_t i = 0; i < lines; i++) sl_ask_line(ahead + i * q->line);
        ahead += q->pair;
        x += R * 32;
        w += 2 * step;
    }
    if (whole % 2) {
        one_step(acc, x, w, stride, R, C, dtype);
        x += R * 16;
        w += step;
    }
    if (q->rest) {
        v16 wv[COLS];
#pragma GCC unroll 4
        for (uint32_t c = 0; c < C; c++) {
            wv[c] = load_some(w + c * stride, q->rest, dtype);
            if (is_crossed(dtype)) wv[c] = cross(wv[c]);
        }
        multiply(acc, x, wv, R, C);
    }
    if (q->last) {
        store_sums(acc, R, C, is_crossed(dtype), y, q->t->y_stride);
        return;
    }
#pragma GCC unroll 24
    for (uint32_t i = 0; i < R * C; i++) v_store(chain + i * 16, acc[i]);
}

/* C columns with all rows. */
SL_INLINE void run_columns(const sweep *q, float *y, const uint32_t C, sl_dtype dtype) {
    const float *x = q->xp;
    const uint8_t *ahead = q->ahead;
    float *chain = q->acc;
    for (uint32_t g = 0; g < q->groups; g++) {
        const uint32_t R = q->rows[g];
        if (R == 1) run(q, x, ahead, chain, y, 1, C, dtype);
        if (R == 2) run(q, x, ahead, chain, y, 2, C, dtype);
        if (R == 3) run(q, x, ahead, chain, y, 3, C, dtype);
        if (R == 4) run(q, x, ahead, chain, y, 4, C, dtype);
        if (R == 5) run(q, x, ahead, chain, y, 5, C, dtype);
        if (R == 6) run(q, x, ahead, chain, y, 6, C, dtype);
        x += (size_t)R * q->steps * 16;
        ahead += q->turn;
        chain += (size_t)R * C * 16;
        y += (size_t)R * q->t->y_stride;
    }
}

/* ---- activations ---- */

static void group_rows(sweep *q) {
    uint32_t n = q->t->n_rows;
    q->groups = (n + ROWS - 1) / ROWS;
    for (uint32_t g = 0; g < q->groups; g++) {
        q->rows[g] = (n + q->groups - g - 1) / (q->groups - g);
        n -= q->rows[g];
    }
}

/* Values k0 .. k0 + n - 1 of all rows, group by group, as [step][row][16]. */
SL_INLINE void pack(sweep *q, uint32_t k0, uint32_t n, const bool crossed) {
    const float *const *x = q->t->x;
    float *to = q->xp;
    q->rest = n % 16;
    q->steps = (n + 15) / 16;
    q->fresh = k0 == 0;
    q->last = k0 + n == q->t->k;
    for (uint32_t g = 0; g < q->groups; g++) {
        const uint32_t R = q->rows[g];
        for (uint32_t r = 0; r < R; r++, x++) {
            float *at = to + r * 16;
            for (uint32_t i = 0; i + 16 <= n; i += 16, at += R * 16) {
                const v16 v = v_load(*x + k0 + i);
                v_store(at, crossed ? cross(v) : v);
            }
            if (!q->rest) continue;
            const v16 v = load_some((const uint8_t *)(*x + k0 + n - q->rest), q->rest, SL_F32);
            v_store(at, crossed ? cross(v) : v);
        }
        to += (size_t)R * q->steps * 16;
    }
}

/* One hint a page finds where it lies before the others come: files are seldom mapped in large
 * pages, and a hint that waits for its page keeps the ones behind it waiting. So several pages are
 * looked for at once (SL_ASK_PAGES): side by side, these waits are one. */
SL_INLINE void find_pages(const uint8_t *at, size_t bytes) {
    for (size_t i = 0; i < bytes; i += PAGE) sl_ask_line(at + i);
}

/* Spreads hints for the next C columns over the steps of all groups of rows: for one stretch of
 * memory where all of k is packed, else for a line of each column in turn. The same for all columns
 * of a tile: a division takes some processors as long as half of a short row. */
SL_INLINE void spread_hints(sweep *q, const uint32_t C, uint32_t bytes) {
    const size_t pairs = SL_MAX(1, q->steps / 2);
    if (q->fresh && q->last && q->w_stride == (size_t)q->t->k * bytes) {
        q->pair = (C * q->w_stride + pairs * q->groups - 1) / (pairs * q->groups);
        q->turn = pairs * q->pair;
        q->line = 64;
        q->lines = (uint32_t)((q->pair + 63) / 64);
    } else {
        q->pair = (size_t)bytes * 32;
        q->turn = 0;
        q->line = q->w_stride;
        q->lines = C;
    }
}

/* ---- plain weights ---- */

/* How much of k is packed: four weight rows of it stay in the first cache where they are read more
 * than once, and all rows beside those that come next where there are few. */
static uint32_t part_of_k(const sweep *q, uint32_t bytes) {
    uint32_t most = PACK / q->t->n_rows;
    if (q->groups > 1) most = SL_MIN(most, 32768 / (COLS * bytes));
    if (q->groups == 1 && q->t->n_rows > 1) most = SL_MIN(most, SL_ASK_FEW_K * bytes);
    return most / 32 * 32;
}

/* Columns c to c1, C at a time, as far as they go; returns the one after. */
SL_INLINE uint32_t run_all(sweep *q, uint32_t c, uint32_t c1, const uint32_t C, sl_dtype dtype) {
    if (c + C > c1) return c;
    spread_hints(q, C, sl_dtype_bytes(dtype));
    const size_t bytes = C * q->w_stride, burst = bytes * (SL_ASK_PAGES / bytes + 1);
    for (size_t found = 0; c + C <= c1; c += C, found -= bytes) {
        q->ahead = q->w + bytes + SL_ASK_AHEAD;
        if (found == 0) {
            find_pages(q->ahead + burst, burst);
            found = burst;
        }
        run_columns(q, q->t->y + c, C, dtype);
        q->w += C * q->w_stride;
        if (!q->fresh || !q->last) q->acc += (size_t)C * q->t->n_rows * 16;
    }
    return c;
}

SL_INLINE void plain_columns(sweep *q, uint32_t c0, uint32_t c1, uint32_t part, float *acc,
                             sl_dtype dtype) {
    const sl_gemm_tile *t = q->t;
    uint32_t k0 = 0;
    q->w_stride = t->w_stride;
    do {
        const uint32_t n = SL_MIN(part, t->k - k0);
        uint32_t c = c0;
        pack(q, k0, n, is_crossed(dtype));
        q->w = (const uint8_t *)t->w + c0 * q->w_stride + (size_t)k0 * sl_dtype_bytes(dtype);
        q->acc = acc;
        c = run_all(q, c, c1, COLS, dtype);
        run_all(q, c, c1, 1, dtype);
        k0 += n;
    } while (k0 < t->k);
}

SL_INLINE void plain_tile(const sl_gemm_tile *t, sl_dtype dtype) {
    _Alignas(64) float xp[PACK], acc[LONG_COLS * SL_TILE_ROWS * 16];
    sweep q = {.t = t, .xp = xp};
    group_rows(&q);
    const uint32_t part = part_of_k(&q, sl_dtype_bytes(dtype));
    const uint32_t cols = t->k > part ? LONG_COLS : SL_MAX(1, t->n_cols);
    for (uint32_t c = 0; c < t->n_cols; c += cols)
        plain_columns(&q, c, SL_MIN(c + cols, t->n_cols), part, acc, dtype);
}

static __attribute__((noinline)) void tile_f32(const sl_gemm_tile *t) {
    plain_tile(t, SL_F32);
}
static __attribute__((noinline)) void tile_f16(const sl_gemm_tile *t) {
    plain_tile(t, SL_F16);
}
static __attribute__((noinline)) void tile_bf16(const sl_gemm_tile *t) {
    plain_tile(t, SL_BF16);
}

/* ---- weights in blocks ---- */

/* A piece of `cols` columns from c on, n values from k0 on, to q->w; what comes next is asked for.
 */
static void widen_columns(const sweep *q, uint32_t c, uint32_t cols, uint32_t k0, uint32_t n) {
    const sl_gemm_tile *t = q->t;
    const size_t row_bytes = t->w_stride;
    const size_t bytes = sl_dtype_row_bytes(t->dtype, n);
    for (uint32_t i = 0; i < cols; i++) {
        const uint8_t *w =
            (const uint8_t *)t->w + (c + i) * row_bytes + sl_dtype_row_bytes(t->dtype, k0);
        float *to = q->wide + (size_t)i * WIDE;
        for (size_t at = 0; at < bytes; at += 64)
            sl_ask_line(w + COLS * row_bytes + SL_ASK_AHEAD + at);
        find_pages(w + 2 * COLS * row_bytes, bytes);
        if (t->dtype == SL_F8_E4M3)
            sl_avx512_f8_decode(w, sl_mat_scale(t->mat, t->row + c + i), t->mat->scale_col + k0, n,
                                to);
        else
            sl_avx512_block_decode(t->dtype, w, n, to);
    }
}

static void tile_blocks(const sl_gemm_tile *t) {
    _Alignas(64) float xp[WIDE * SL_TILE_ROWS], wide[WIDE * COLS];
    _Alignas(64) float acc[LONG_COLS * SL_TILE_ROWS * 16];
    sweep q = {.t = t, .xp = xp, .wide = wide, .w_stride = WIDE * sizeof *wide};
    group_rows(&q);
    uint32_t k0 = 0;
    do {
        const uint32_t n = SL_MIN(WIDE, t->k - k0);
        pack(&q, k0, n, false);
        q.acc = acc;
        for (uint32_t c = 0, cols; c < t->n_cols; c += cols) {
            cols = t->n_cols - c >= COLS ? COLS : 1;
            widen_columns(&q, c, cols, k0, n);
            q.w = (const uint8_t *)wide;
            if (cols == COLS)
                run_columns(&q, t->y + c, COLS, SL_F32);
            else
                run_columns(&q, t->y + c, 1, SL_F32);
            q.acc += (size_t)cols * t->n_rows * 16;
        }
        k0 += n;
    } while (k0 < t->k);
}

static void gemm_tile(const sl_gemm_tile *t) {
    if (t->n_rows == 0) return;
    if (!sl_dtype_is_plain(t->dtype))
        tile_blocks(t);
    else if (t->dtype == SL_F32)
        tile_f32(t);
    else if (t->dtype == SL_F16)
        tile_f16(t);
    else
        tile_bf16(t);
}

#endif
