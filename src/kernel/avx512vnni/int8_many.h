/* Products of blocks of 256 of two strips of columns with many rows: the block is unpacked once and
 * stays in the first cache for all of them. For weights that are turned as they are read, and for
 * those that lie in strips. */
#ifndef SL_KERNEL_AVX512VNNI_INT8_MANY_H
#define SL_KERNEL_AVX512VNNI_INT8_MANY_H

#include "kernel/avx512vnni/int8_256.h"

#define SL_MAX_R 4u
#define SL_SUMS  16u /* that are made side by side: each product waits for the one before it */

/* Block b of sixteen columns: where it is turned as it is read, and where it lies in a strip. */
typedef struct sl_source256 {
    sl_rows16 rows;
    const uint8_t *lines; /* of words */
    __m512 d;             /* Q6_K in a strip: scales of the block, which are apart */
} sl_source256;

/* In a strip. Of a pair of Q6_K both scales are in a line before the first, so the second begins
 * half a line behind where it would. */
SL_INLINE void sl_find_256(const uint8_t *strip, uint32_t b, uint32_t all, sl_dtype dtype,
                           sl_source256 *s) {
    const size_t bytes = SL_STRIP * sl_dtype_block_bytes(dtype);
    s->lines = strip + b * bytes;
    if (dtype != SL_Q6_K) return;
    if (b % 2 == 0 && b + 1 == all) {
        s->d = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)s->lines));
        s->lines += 32;
        return;
    }
    const uint8_t *pair = s->lines - b % 2 * bytes;
    const __m512i d =
        _mm512_srl_epi32(_mm512_loadu_si512(pair), _mm_cvtsi32_si128((int)(b % 2 * 16)));
    s->d = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(d));
    s->lines += b % 2 ? 32 : 64;
}

/* Of columns c on; behind the last the last again. */
SL_INLINE sl_source256 sl_source_of(const sl_act_tile *t, uint32_t c, uint32_t b, const bool strips,
                                    sl_dtype dtype) {
    sl_source256 s;
    if (strips)
        sl_find_256((const uint8_t *)t->w + SL_MIN(c, t->n_cols - SL_STRIP) * t->w_stride, b,
                    t->k / 256, dtype, &s);
    else
        s.rows = sl_rows_at(t, c, b * 256);
    return s;
}

/* 16 bytes at `at` of a block of each column, as sl_load_words has them. */
SL_INLINE void sl_words_of(const sl_source256 *s, size_t at, const bool strips, __m512i *v) {
    if (!strips) {
        sl_load_words(&s->rows, at, v);
        return;
    }
#pragma GCC unroll 4
    for (uint32_t i = 0; i < 4; i++)
        v[i] = _mm512_loadu_si512(s->lines + (at / 4 + i) * sizeof(__m512i));
}

SL_INLINE void sl_head_of(const sl_source256 *s, const bool strips, sl_dtype dtype, sl_head256 *h) {
    __m512i v[4];
    sl_words_of(s, dtype == SL_Q6_K ? 192 : 0, strips, v);
    if (dtype == SL_Q6_K)
        sl_head_6(v, strips ? s->d : sl_load_d(&s->rows, 208), h);
    else
        sl_head_45(v, h);
}

typedef struct sl_unpacked {
    __m512i q[64]; /* quads of codes, in the order of values */
    sl_head256 h;
} sl_unpacked;

/* What is still to be asked for while a strip's block is worked on. Evenly, a line or two at a
 * time: lines that are asked for take the few places that a core has for misses. */
typedef struct sl_hints {
    const uint8_t *next, *end;
} sl_hints;

SL_INLINE void sl_ask_some(sl_hints *h, const uint32_t lines) {
    if (h->next >= h->end) return;
    sl_ask_far(h->next, lines * 64);
    h->next += lines * 64;
}

/* 64 bytes at `at` of 16 columns, turned. */
SL_INLINE void sl_load_turned(const sl_source256 *s, size_t at, const bool strips, sl_hints *later,
                              __m512i *v) {
#pragma GCC unroll 4
    for (uint32_t i = 0; i < 4; i++) {
        sl_ask_some(later, 2);
        sl_words_of(s, at + 16 * i, strips, v + 4 * i);
    }
}

SL_INLINE void sl_fill_q4_k(const sl_source256 *s, const bool strips, sl_hints *later,
                            sl_unpacked *out) {
    for (uint32_t j = 0; j < 2; j++) {
        __m512i v[16];
        sl_load_turned(s, 16 + 64 * j, strips, later, v);
#pragma GCC unroll 16
        for (uint32_t i = 0; i < 16; i++) {
            __m512i *q = out->q + 32 * j + i / 8 * 16 + i % 8;
            q[0] = sl_low_of(v[i]), q[8] = sl_high_of(v[i]);
        }
    }
}

SL_INLINE void sl_fill_q5_k(const sl_source256 *s, const bool strips, sl_hints *later,
                            sl_unpacked *out) {
    const __m512i fifth = _mm512_set1_epi8(16);
    __m512i high[16];
    sl_words_of(s, 16, strips, high);
    sl_words_of(s, 32, strips, high + 4);
    for (uint32_t j = 0; j < 2; j++) {
        __m512i v[16];
        sl_load_turned(s, 48 + 64 * j, strips, later, v);
#pragma GCC unroll 16
        for (uint32_t i = 0; i < 16; i++) {
            const __m128i down = _mm_cvtsi32_si128((int)(4 * j + i / 8 * 2));
            __m512i bits = _mm512_srl_epi16(high[i % 8], down), *q;
            q = out->q + 32 * j + i / 8 * 16 + i % 8;
            q[0] = _mm512_or_si512(sl_low_of(v[i]),
                                   _mm512_and_si512(_mm512_slli_epi16(bits, 4), fifth));
            q[8] = _mm512_or_si512(sl_high_of(v[i]),
                                   _mm512_and_si512(_mm512_slli_epi16(bits, 3), fifth));
        }
    }
}

SL_INLINE void sl_fill_q6_k(const sl_source256 *s, const bool strips, sl_hints *later,
                            sl_unpacked *out) {
    const __m512i top = _mm512_set1_epi8(48);
    __m512i high[16];
    sl_load_turned(s, 128, strips, later, high);
    for (uint32_t j = 0; j < 2; j++) {
        __m512i v[16];
        sl_load_turned(s, 64 * j, strips, later, v);
#pragma GCC unroll 8
        for (uint32_t i = 0; i < 8; i++) {
            __m512i t = high[8 * j + i], *q = out->q + 32 * j + i;
            q[0] = _mm512_or_si512(sl_low_of(v[i]), _mm512_and_si512(_mm512_slli_epi16(t, 4), top));
            q[8] = _mm512_or_si512(sl_low_of(v[8 + i]),
                                   _mm512_and_si512(_mm512_slli_epi16(t, 2), top));
            q[16] = _mm512_or_si512(sl_high_of(v[i]), _mm512_and_si512(t, top));
            q[24] = _mm512_or_si512(sl_high_of(v[8 + i]),
                                    _mm512_and_si512(_mm512_srli_epi16(t, 2), top));
        }
    }
}

SL_INLINE void sl_fill(const sl_source256 *s, const bool strips, sl_dtype dtype, sl_hints *later,
                       sl_unpacked *out) {
    sl_head_of(s, strips, dtype, &out->h);
    if (dtype == SL_Q4_K)
        sl_fill_q4_k(s, strips, later, out);
    else if (dtype == SL_Q5_K)
        sl_fill_q5_k(s, strips, later, out);
    else
        sl_fill_q6_k(s, strips, later, out);
}

typedef struct sl_run256 {
    const sl_act_tile *t;
    const sl_unpacked *w; /* [SL_STRIPS] */
    const sl_offsets *o;
    uint32_t b;
    float *acc; /* [rows][SL_STRIPS][16] */
    sl_hints *later;
} sl_run256;

/* Products of P parts from part p on with R rows x, times the parts' scales, onto all[row][strip].
 */
SL_INLINE void sl_run_parts(const sl_run256 *u, const uint8_t *const *x, uint32_t r0, uint32_t p,
                            const uint32_t R, const uint32_t P, sl_dtype dtype, __m512i *all) {
    const uint32_t quads = 64 / sl_parts_of(dtype);
    __m512i sum[SL_SUMS]; /* [P][R][SL_STRIPS] */
#pragma GCC unroll 16
    for (uint32_t i = 0; i < P * R; i++)
        sum[2 * i] = sum[2 * i + 1] = dtype == SL_Q6_K
                                          ? _mm512_set1_epi32(u->o[r0 + i % R].v[p + i / R])
                                          : _mm512_setzero_si512();
#pragma GCC unroll 8
    for (uint32_t q = 0; q < quads; q++) {
        /* so that all is asked for where there is one group of rows, too */
        sl_ask_some(u->later, R < 4 || u->t->n_rows == 4 ? 2 : 1);
#pragma GCC unroll 8
        for (uint32_t j = 0; j < P; j++) {
            const uint32_t at = (p + j) * quads + q;
            __m512i a = _mm512_load_si512(u->w[0].q + at), c = _mm512_load_si512(u->w[1].q + at);
            SL_KEEP(a);
            SL_KEEP(c);
#pragma GCC unroll 4
            for (uint32_t r = 0; r < R; r++) {
                __m512i xv = sl_quad(x[r] + at * 4), *to = &sum[(j * R + r) * 2];
                SL_KEEP(xv);
                to[0] = _mm512_dpbusd_epi32(to[0], a, xv);
                to[1] = _mm512_dpbusd_epi32(to[1], c, xv);
            }
        }
    }
#pragma GCC unroll 16
    for (uint32_t i = 0; i < 2 * P * R; i++) {
        __m512i *to = &all[i % (2 * R)], scale = u->w[i & 1].h.scale[p + i / (2 * R)];
        *to = _mm512_add_epi32(*to, _mm512_mullo_epi32(sum[i], scale));
    }
}

SL_INLINE void sl_run_rows(const sl_run256 *u, uint32_t r0, const uint32_t R, sl_dtype dtype) {
    const uint32_t P = R >= 3 ? 2 : SL_SUMS / SL_STRIPS / R;
    const uint8_t *x[SL_MAX_R];
    __m512i all[SL_MAX_R * SL_STRIPS];
#pragma GCC unroll 4
    for (uint32_t r = 0; r < R; r++) x[r] = u->t->x[r0 + r] + (size_t)u->b * 256;
#pragma GCC unroll 8
    for (uint32_t i = 0; i < 2 * R; i++) all[i] = _mm512_setzero_si512();
    for (uint32_t p = 0; p < sl_parts_of(dtype); p += P)
        sl_run_parts(u, x, r0, p, R, P, dtype, all);
#pragma GCC unroll 4
    for (uint32_t r = 0; r < R; r++) {
        const float dx = sl_act_scales(u->t->x[r0 + r], u->t->k)[u->b];
#pragma GCC unroll 2
        for (uint32_t c = 0; c < 2; c++) {
            float *to = u->acc + ((size_t)(r0 + r) * SL_STRIPS + c) * SL_STRIP;
            _mm512_store_ps(to, sl_add_sum(&u->w[c].h, all[2 * r + c], dx, &u->o[r0 + r], dtype,
                                           _mm512_load_ps(to)));
        }
    }
}

/* What both strips sum up to, acc [rows][SL_STRIPS][16]. */
SL_INLINE void sl_store_strips(const sl_act_tile *t, uint32_t c0, const float *acc) {
    for (uint32_t r = 0; r < t->n_rows; r++)
        for (uint32_t i = 0; i < SL_STRIPS && c0 + i * SL_STRIP < t->n_cols; i++)
            sl_store_some(t->y + (size_t)r * t->y_stride + c0 + i * SL_STRIP,
                          _mm512_load_ps(acc + (r * SL_STRIPS + i) * SL_STRIP),
                          SL_MIN(SL_STRIP, t->n_cols - c0 - i * SL_STRIP));
}

SL_INLINE void sl_run_all(const sl_run256 *u, sl_dtype dtype) {
    const uint32_t n = u->t->n_rows;
    uint32_t r = 0;
    for (; r + 4 <= n; r += 4) sl_run_rows(u, r, 4, dtype);
    if (n - r == 3) sl_run_rows(u, r, 3, dtype);
    if (n - r == 2) sl_run_rows(u, r, 2, dtype);
    if (n - r == 1) sl_run_rows(u, r, 1, dtype);
}

SL_INLINE void sl_many_256(const sl_act_tile *t, const bool strips, sl_dtype dtype) {
    _Alignas(64) float acc[SL_TILE_ROWS * SL_STRIPS * SL_STRIP];
    sl_unpacked w[SL_STRIPS];
    sl_offsets o[SL_TILE_ROWS];
    const uint32_t cols = SL_STRIPS * SL_STRIP;
    const size_t bytes = cols * sl_dtype_block_bytes(dtype);
    const uint32_t ahead = sl_strips_ahead(t, SL_STRIPS);
    for (uint32_t c0 = 0; c0 < t->n_cols; c0 += cols) {
        const uint8_t *after = sl_tile_strips_after(t, c0, cols, ahead);
        memset(acc, 0, t->n_rows * cols * sizeof *acc);
        for (uint32_t b = 0; b < t->k / 256; b++, after += bytes) {
            sl_hints later = {after, after + bytes};
            for (uint32_t r = 0; r < t->n_rows; r++) sl_offsets_of(t, r, b, dtype, &o[r]);
            for (uint32_t i = 0; i < SL_STRIPS; i++) {
                const sl_source256 s = sl_source_of(t, c0 + i * SL_STRIP, b, strips, dtype);
                sl_fill(&s, strips, dtype, &later, &w[i]);
            }
            const sl_run256 u = {t, w, o, b, acc, &later};
            sl_run_all(&u, dtype);
        }
        sl_store_strips(t, c0, acc);
    }
}

#endif
