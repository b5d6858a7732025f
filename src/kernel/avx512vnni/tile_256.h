/* Integer products with blocks of 256: Q4_K, Q5_K and Q6_K, for the tables that ask for weights as
 * SL_ASK_STRIPS says (ask.h). The sum of each part (32 values, of Q6_K 16) is multiplied by the
 * part's scale in 32 bits. */
#ifndef SL_KERNEL_AVX512VNNI_TILE_256_H
#define SL_KERNEL_AVX512VNNI_TILE_256_H

#include "kernel/avx512vnni/int8_many.h"

#define FEW 2u /* rows whose weights are not turned for good */

/* ---- few rows ---- */

/* 32 bytes twice. */
SL_INLINE void load_32_twice(const sl_rows16 *s, size_t at, __m512i *v) {
#pragma GCC unroll 16
    for (int c = 0; c < 16; c++)
        v[c] = _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)(s->row[c] + at)));
}

/* 64 bytes at `at` of 16 columns. */
SL_INLINE void load_64(const sl_rows16 *s, size_t at, sl_hints *later, __m512i *v) {
#pragma GCC unroll 16
    for (int c = 0; c < 16; c++) {
        if (c % 2) sl_ask_some(later, 1);
        v[c] = _mm512_loadu_si512(s->row[c] + at);
    }
}

/* 64 values of a strip, half turned, and of a row the quads that they meet. */
typedef struct piece {
    __m512i v[16];
    __m512i scale[4]; /* of columns 4 g ..: lane L is of the part that lane L of v is of */
} piece;

/* Products of a piece with the row's codes x, sums beginning at `from`, times the scales. */
SL_INLINE void add_piece(const piece *p, __m512i x, __m512i from, sl_hints *later,
                         const uint32_t lines, __m512i *sum) {
    const __m512i xq[4] = {_mm512_shuffle_epi32(x, 0x00), _mm512_shuffle_epi32(x, 0x55),
                           _mm512_shuffle_epi32(x, 0xaa), _mm512_shuffle_epi32(x, 0xff)};
#pragma GCC unroll 4
    for (int g = 0; g < 4; g++) {
        sl_ask_some(later, lines);
        __m512i one = _mm512_dpbusd_epi32(from, p->v[4 * g], xq[0]);
#pragma GCC unroll 3
        for (int j = 1; j < 4; j++) one = _mm512_dpbusd_epi32(one, p->v[4 * g + j], xq[j]);
        sum[g] = _mm512_add_epi32(sum[g], _mm512_mullo_epi32(one, p->scale[g]));
    }
}

/* The codes of values at .. at + 31 and of those from `then` on. */
SL_INLINE __m512i codes_of(const uint8_t *x, uint32_t at, uint32_t then) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const void *)(x + at))),
                              _mm256_loadu_si256((const void *)(x + then)), 1);
}

/* Scales of two parts of 32 for the pieces of both. */
SL_INLINE void two_scales(__m512i a, __m512i b, __m512i *out) {
    out[0] = _mm512_shuffle_i32x4(a, b, 0x00);
    out[1] = _mm512_shuffle_i32x4(a, b, 0x55);
    out[2] = _mm512_shuffle_i32x4(a, b, 0xaa);
    out[3] = _mm512_shuffle_i32x4(a, b, 0xff);
}

/* To be asked for at each quarter of a piece: so many that one row's products are enough for all.
 */
SL_INLINE uint32_t lines_of(const uint32_t R) {
    return R == 1 ? 2 : 1;
}

/* 128 values of Q4_K or Q5_K: parts 4 h .. 4 h + 3; the low codes are of the first and the third.
 */
SL_INLINE void few_45(const uint8_t *const *x, const sl_rows16 *s, size_t at, const uint32_t h,
                      const __m512i *high, const sl_head256 *hd, const uint32_t R, sl_dtype dtype,
                      sl_hints *later, __m512i (*sum)[4]) {
    const __m512i fifth = _mm512_set1_epi8(16);
    const uint32_t lines = lines_of(R);
    __m512i v[16];
    piece low, up;
    load_64(s, at + (dtype == SL_Q5_K ? 48 : 16) + 64 * h, later, v);
    sl_turn_in_lanes(v);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        low.v[i] = sl_low_of(v[i]), up.v[i] = sl_high_of(v[i]);
        if (dtype != SL_Q5_K) continue;
        /* bits 4 h and 4 h + 1 of the first two lanes, the next two of the others */
        __m512i bits = _mm512_srlv_epi16(high[i], sl_by_halves((short)(4 * h), (short)(4 * h + 2)));
        low.v[i] = _mm512_or_si512(low.v[i], _mm512_and_si512(_mm512_slli_epi16(bits, 4), fifth));
        up.v[i] = _mm512_or_si512(up.v[i], _mm512_and_si512(_mm512_slli_epi16(bits, 3), fifth));
    }
    two_scales(hd->scale[4 * h], hd->scale[4 * h + 2], low.scale);
    two_scales(hd->scale[4 * h + 1], hd->scale[4 * h + 3], up.scale);
#pragma GCC unroll 2
    for (uint32_t r = 0; r < R; r++) {
        const __m512i none = _mm512_setzero_si512();
        add_piece(&low, codes_of(x[r], 128 * h, 128 * h + 64), none, later, lines, sum[r]);
        add_piece(&up, codes_of(x[r], 128 * h + 32, 128 * h + 96), none, later, lines, sum[r]);
    }
}

/* Word first + L of v in all of lane L. */
SL_INLINE __m512i spread(const sl_offsets *o, int first) {
    const __m512i i = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return _mm512_permutexvar_epi32(_mm512_add_epi32(i, _mm512_set1_epi32(first)),
                                    _mm512_loadu_si512(o->v));
}

/* 128 values of Q6_K: parts 8 h .. 8 h + 7; the low codes are of the first four. */
SL_INLINE void few_6(const uint8_t *const *x, const sl_offsets *o, const sl_rows16 *s, size_t at,
                     const uint32_t h, const sl_head256 *hd, const uint32_t R, sl_hints *later,
                     __m512i (*sum)[4]) {
    const __m512i top = _mm512_set1_epi8(48);
    const uint32_t lines = lines_of(R);
    __m512i v[16], t[16];
    piece low, up;
    load_64(s, at + 64 * h, later, v);
    sl_turn_in_lanes(v);
    load_32_twice(s, at + 128 + 32 * h, t);
    sl_turn_in_lanes(t);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        __m512i a = _mm512_and_si512(_mm512_sllv_epi16(t[i], sl_by_halves(4, 2)), top);
        __m512i b = _mm512_and_si512(_mm512_srlv_epi16(t[i], sl_by_halves(0, 2)), top);
        low.v[i] = _mm512_or_si512(sl_low_of(v[i]), a);
        up.v[i] = _mm512_or_si512(sl_high_of(v[i]), b);
    }
    const __m512i *c = hd->scale + 8 * h;
    sl_turn_lanes(c[0], c[1], c[2], c[3], low.scale, 1);
    sl_turn_lanes(c[4], c[5], c[6], c[7], up.scale, 1);
#pragma GCC unroll 2
    for (uint32_t r = 0; r < R; r++) {
        add_piece(&low, _mm512_loadu_si512(x[r] + 128 * h), spread(&o[r], (int)(8 * h)), later,
                  lines, sum[r]);
        add_piece(&up, _mm512_loadu_si512(x[r] + 128 * h + 64), spread(&o[r], (int)(8 * h + 4)),
                  later, lines, sum[r]);
    }
}

/* The sums of all lanes of sum[g], columns 4 g .., as one vector. */
SL_INLINE __m512i sort_sums(const __m512i *sum) {
    __m512i a = _mm512_add_epi32(_mm512_shuffle_i32x4(sum[0], sum[1], 0x88),
                                 _mm512_shuffle_i32x4(sum[0], sum[1], 0xdd));
    __m512i b = _mm512_add_epi32(_mm512_shuffle_i32x4(sum[2], sum[3], 0x88),
                                 _mm512_shuffle_i32x4(sum[2], sum[3], 0xdd));
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}

SL_INLINE void few_block(const sl_act_tile *t, const sl_rows16 *s, uint32_t b, const uint32_t R,
                         sl_dtype dtype, sl_hints *later, __m512 *acc) {
    const size_t at = (size_t)b * sl_dtype_block_bytes(dtype);
    __m512i sum[FEW][4], high[16];
    const uint8_t *x[FEW];
    sl_offsets o[FEW];
    sl_head256 head;
    sl_ask_some(later, 5);
    sl_load_head(s, at, dtype, &head);
    if (dtype == SL_Q5_K) {
        load_32_twice(s, at + 16, high);
        sl_turn_in_lanes(high);
    }
#pragma GCC unroll 2
    for (uint32_t r = 0; r < R; r++) {
        x[r] = t->x[r] + (size_t)b * 256;
        sl_offsets_of(t, r, b, dtype, &o[r]);
        sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = _mm512_setzero_si512();
    }
#pragma GCC unroll 2
    for (uint32_t i = 0; i < 2; i++) {
        if (dtype == SL_Q6_K)
            few_6(x, o, s, at, i, &head, R, later, sum);
        else
            few_45(x, s, at, i, high, &head, R, dtype, later, sum);
    }
#pragma GCC unroll 2
    for (uint32_t r = 0; r < R; r++)
        acc[r] = sl_add_sum(&head, sort_sums(sum[r]), sl_act_scales(t->x[r], t->k)[b], &o[r], dtype,
                            acc[r]);
}

SL_INLINE void few_rows(const sl_act_tile *t, const uint32_t R, sl_dtype dtype) {
    const size_t bytes = SL_STRIP * sl_dtype_block_bytes(dtype);
    sl_ask(t->w, SL_MIN(SL_STRIP, t->n_cols) * sl_dtype_row_bytes(dtype, t->k)); /* starts cold */
    const uint32_t ahead = sl_strips_ahead(t, 1);
    for (uint32_t c0 = 0; c0 < t->n_cols; c0 += SL_STRIP) {
        const sl_rows16 s = sl_rows_at(t, c0, 0);
        const uint8_t *after = sl_tile_strips_after(t, c0, SL_STRIP, ahead);
        __m512 acc[FEW];
#pragma GCC unroll 2
        for (uint32_t r = 0; r < R; r++) acc[r] = _mm512_setzero_ps();
        for (uint32_t b = 0; b < t->k / 256; b++) {
            sl_hints later = {after + b * bytes, after + (b + 1) * bytes};
            few_block(t, &s, b, R, dtype, &later, acc);
        }
#pragma GCC unroll 2
        for (uint32_t r = 0; r < R; r++)
            sl_store_some(t->y + (size_t)r * t->y_stride + c0, acc[r],
                          SL_MIN(SL_STRIP, t->n_cols - c0));
    }
}

SL_INLINE void tile_of(const sl_act_tile *t, sl_dtype dtype) {
    if (t->n_rows == 1)
        few_rows(t, 1, dtype);
    else if (t->n_rows == 2)
        few_rows(t, 2, dtype);
    else
        sl_many_256(t, false, dtype);
}

SL_TILE_FORM(tile_q4_k, tile_of, SL_Q4_K)
SL_TILE_FORM(tile_q5_k, tile_of, SL_Q5_K)
SL_TILE_FORM(tile_q6_k, tile_of, SL_Q6_K)

static void int8_tile_256(const sl_act_tile *t) {
    if (t->dtype == SL_Q4_K)
        tile_q4_k(t);
    else if (t->dtype == SL_Q5_K)
        tile_q5_k(t);
    else
        tile_q6_k(t);
}

#endif
