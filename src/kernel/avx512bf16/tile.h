/* Products of weights and activations in BF16 by the instruction for them, for the tables that ask
 * for weights as SL_ASK and SL_ASK_AHEAD say (kernel/avx512/ask.h). What the instruction does,
 * docs/numbers.md defines. Weights and rows are used as they lie; six weight rows at a time (four
 * where rows are few) meet all rows of the tile, four by four, so that weights are read once. */
#ifndef SL_KERNEL_AVX512BF16_TILE_H
#define SL_KERNEL_AVX512BF16_TILE_H

#include "kernel/avx512/ask.h"
#include "kernel/simd/avx512.h"
#include "kernel/simd/vec.h"

#include "kernel/avx512/sums.h"

#define MAX_R 4u
#define MAX_C 6u
#define FEW_C 4u

SL_INLINE __m512bh load(const uint8_t *p) {
    return (__m512bh)_mm512_loadu_si512(p);
}

/* The first n values, zeros behind them. */
SL_INLINE __m512bh load_end(const uint8_t *p, uint32_t n) {
    return (__m512bh)_mm512_maskz_loadu_epi16((__mmask32)((1ull << n) - 1), p);
}

/* Up to four columns of acc [R][C] from c0 on: quarter r of the result is row r's sums. */
SL_INLINE __m512 sums(const __m512 *acc, const uint32_t R, const uint32_t C, const uint32_t c0) {
    __m512 a[16];
#pragma GCC unroll 16
    for (uint32_t i = 0; i < 16; i++)
        a[i] = acc[SL_MIN(i / 4, R - 1) * C + SL_MIN(c0 + i % 4, C - 1)];
    return trees(a, false);
}

/* The first values of a quarter. Lanes that a masked store leaves out may lie where no memory is;
 * those of an extraction to memory, which compilers make of both at once, may not: it faults. */
SL_INLINE void store_first(float *y, const uint32_t n, __m128 v) {
    if (n == 4) {
        _mm_storeu_ps(y, v);
        return;
    }
    __asm__("" : "+v"(v));
    _mm_mask_storeu_ps(y, (__mmask8)((1u << n) - 1), v);
}

SL_INLINE void store(const sl_act_tile *t, uint32_t r0, uint32_t c0, const __m512 *acc,
                     const uint32_t R, const uint32_t C) {
#pragma GCC unroll 2
    for (uint32_t c = 0; c < C; c += 4) {
        const uint32_t kept = SL_MIN(4, C - c);
        const __m512 v = sums(acc, R, C, c);
        float *y = t->y + (size_t)r0 * t->y_stride + c0 + c;
        store_first(y, kept, _mm512_castps512_ps128(v));
        if (R > 1) store_first(y + t->y_stride, kept, _mm512_extractf32x4_ps(v, 1));
        if (R > 2) store_first(y + 2 * t->y_stride, kept, _mm512_extractf32x4_ps(v, 2));
        if (R > 3) store_first(y + 3 * t->y_stride, kept, _mm512_extractf32x4_ps(v, 3));
    }
}

/* ---- tiles ---- */

/* What comes after a group of weight rows is asked for while arithmetic goes on, in the order of
 * memory: each four rows of activations ask for `lines` of the MAX_C lines that are as much as a
 * step of the group reads. Any address may be asked for. */
typedef struct hints {
    const uint8_t *at;
    uint32_t lines;
} hints;

/* What is asked for while the group of C weight rows from c on is multiplied; NULL: nothing. */
SL_INLINE const uint8_t *next_of(const sl_act_tile *t, uint32_t c, const uint32_t C) {
    const size_t group = SL_MAX((size_t)1, C * t->w_stride);
    const uint32_t ahead = 1 + (uint32_t)((SL_ASK_AHEAD + group - 1) / group);
    if (!sl_tile_is_dense(t) || (c + C * ahead >= t->n_cols && !t->next)) return NULL;
    return sl_tile_strips_after(t, c, C, ahead);
}

/* R rows from r0 on against C weight rows at w. */
SL_INLINE void run(const sl_act_tile *t, uint32_t r0, uint32_t c0, const uint8_t *w,
                   const uint8_t *ahead, const uint32_t lines, const uint32_t R, const uint32_t C) {
    const size_t stride = t->w_stride, bytes = (size_t)t->k * sizeof(uint16_t);
    const size_t whole = bytes / 64 * 64;
    const uint8_t *x[MAX_R];
    __m512 acc[MAX_R * MAX_C];
#pragma GCC unroll 4
    for (uint32_t r = 0; r < R; r++) x[r] = t->x[r0 + r];
#pragma GCC unroll 24
    for (uint32_t i = 0; i < R * C; i++) acc[i] = _mm512_setzero_ps();
    for (size_t i = 0; i < whole; i += 64) {
        __m512bh wv[MAX_C];
#pragma GCC unroll 6
        for (uint32_t c = 0; c < C; c++) wv[c] = load(w + c * stride + i);
#pragma GCC unroll 6
        for (uint32_t l = 0; l < lines; l++) sl_ask_line(ahead + l * 64);
        ahead += lines * 64;
#pragma GCC unroll 4
        for (uint32_t r = 0; r < R; r++) {
            const __m512bh xv = load(x[r] + i);
#pragma GCC unroll 6
            for (uint32_t c = 0; c < C; c++)
                acc[r * C + c] = _mm512_dpbf16_ps(acc[r * C + c], xv, wv[c]);
        }
    }
    if (whole < bytes) {
        const uint32_t n = t->k % 32;
        for (uint32_t r = 0; r < R; r++)
            for (uint32_t c = 0; c < C; c++)
                acc[r * C + c] = _mm512_dpbf16_ps(acc[r * C + c], load_end(x[r] + whole, n),
                                                  load_end(w + c * stride + whole, n));
    }
    store(t, r0, c0, acc, R, C);
}

SL_INLINE void run_hinted(const sl_act_tile *t, uint32_t r0, uint32_t c0, const uint8_t *w,
                          const hints *h, const uint32_t R) {
    if (h->lines == 3) run(t, r0, c0, w, h->at, 3, R, MAX_C);
    if (h->lines == 2) run(t, r0, c0, w, h->at, 2, R, MAX_C);
    if (h->lines == 1) run(t, r0, c0, w, h->at, 1, R, MAX_C);
    if (h->lines == 0) run(t, r0, c0, w, h->at, 0, R, MAX_C);
}

/* All rows against MAX_C weight rows. */
static void run_rows(const sl_act_tile *t, uint32_t c0, const uint8_t *w, const uint8_t *next) {
    const uint32_t groups = (t->n_rows + MAX_R - 1) / MAX_R;
    hints h = {.at = next};
    for (uint32_t g = 0; g < groups; g++) {
        const uint32_t r = g * MAX_R, n = SL_MIN(MAX_R, t->n_rows - r);
        h.lines = next ? MAX_C / groups + (g < MAX_C % groups) : 0;
        if (n == 4) run_hinted(t, r, c0, w, &h, 4);
        if (n == 3) run_hinted(t, r, c0, w, &h, 3);
        if (n == 2) run_hinted(t, r, c0, w, &h, 2);
        if (n == 1) run_hinted(t, r, c0, w, &h, 1);
        h.at += h.lines * t->w_stride;
    }
}

/* R rows, all there are, against FEW_C weight rows at a time: more of them, each 4 KB from the
 * next, would drive what was asked for out of L1 again. */
SL_INLINE uint32_t run_few(const sl_act_tile *t, const uint32_t R) {
    const size_t group = FEW_C * t->w_stride;
    const uint8_t *w = t->w;
    uint32_t c = 0;
    for (; c + FEW_C <= t->n_cols; c += FEW_C, w += group) {
        const uint8_t *next = next_of(t, c, FEW_C);
        run(t, 0, c, w, next ? next : w, FEW_C, R, FEW_C);
    }
    return c;
}

/* All rows against C weight rows from c0 on, where nothing is asked for. */
SL_INLINE void run_rest(const sl_act_tile *t, uint32_t c0, const uint32_t C) {
    const uint8_t *w = (const uint8_t *)t->w + c0 * t->w_stride;
    uint32_t r = 0;
    for (; r + 4 <= t->n_rows; r += 4) run(t, r, c0, w, w, 0, 4, C);
    for (; r < t->n_rows; r++) run(t, r, c0, w, w, 0, 1, C);
}

static uint32_t run_many(const sl_act_tile *t) {
    const size_t group = MAX_C * t->w_stride;
    const uint8_t *w = t->w;
    uint32_t c = 0;
    for (; c + MAX_C <= t->n_cols; c += MAX_C, w += group) run_rows(t, c, w, next_of(t, c, MAX_C));
    return c;
}

static void bf16_tile(const sl_act_tile *t) {
    uint32_t c = 0;
    if (t->n_rows == 0) return;
    if (t->n_rows == 1) c = run_few(t, 1);
    if (t->n_rows == 2) c = run_few(t, 2);
    if (t->n_rows == 3) c = run_few(t, 3);
    if (t->n_rows == 4) c = run_few(t, 4);
    if (t->n_rows > 4) c = run_many(t);
    for (; c + 3 <= t->n_cols; c += 3) run_rest(t, c, 3);
    for (; c < t->n_cols; c++) run_rest(t, c, 1);
}

#endif
