/* Integer products with blocks of 32: Q8_0 and Q4_0. */
#include "kernel/avx512/int8.h"

#define BLOCKS (256u / 32u) /* whose scales are made at once */

SL_INLINE uint32_t block_bytes(sl_dtype dtype) {
    return dtype == SL_Q8_0 ? 34 : 18;
}

/* How far codes are taken above their value. */
SL_INLINE int32_t bias_of(sl_dtype dtype) {
    return dtype == SL_Q8_0 ? 128 : 8;
}

/* The codes of two blocks of Q8_0, as they lie, or of the second of them nothing. */
SL_INLINE __m512i two_blocks(const uint8_t *p, bool both) {
    __m512i v = _mm512_zextsi256_si512(_mm256_loadu_si256((const void *)(p + 2)));
    if (both) v = _mm512_inserti64x4(v, _mm256_loadu_si256((const void *)(p + 36)), 1);
    return v;
}

/* The codes of two blocks of Q4_0, each as [values 0..15 | 16..31] of four bits. */
SL_INLINE __m512i two_halves(const uint8_t *p, bool both) {
    __m256i v = _mm256_zextsi128_si256(_mm_loadu_si128((const void *)(p + 2)));
    if (both) v = _mm256_inserti128_si256(v, _mm_loadu_si128((const void *)(p + 20)), 1);
    __m256i low = _mm256_set1_epi8(15);
    __m256i a = _mm256_and_si256(v, low), b = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
    __m512i w = _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
    return _mm512_shuffle_i32x4(w, w, 0xd8); /* block 0: low, high; block 1: low, high */
}

/* Codes without a sign of blocks b and b + 1 of 16 columns. */
SL_INLINE void load_codes(const sl_rows16 *s, uint32_t b, bool both, sl_dtype dtype, __m512i *v) {
    const size_t at = (size_t)b * block_bytes(dtype);
#pragma GCC unroll 16
    for (int c = 0; c < 16; c++)
        v[c] =
            dtype == SL_Q8_0 ? two_blocks(s->row[c] + at, both) : two_halves(s->row[c] + at, both);
}

SL_INLINE __m512i unsign(__m512i v, sl_dtype dtype) {
    return dtype == SL_Q8_0 ? _mm512_xor_si512(v, _mm512_set1_epi8((char)0x80)) : v;
}

SL_INLINE void load_scales(const sl_rows16 *s, uint32_t blocks, sl_dtype dtype, __m512 *d) {
    _Alignas(64) uint16_t h[BLOCKS][SL_STRIP];
    for (uint32_t b = 0; b < blocks; b++)
#pragma GCC unroll 16
        for (uint32_t c = 0; c < SL_STRIP; c++)
            memcpy(&h[b][c], s->row[c] + b * block_bytes(dtype), 2);
    for (uint32_t b = 0; b < blocks; b++)
        d[b] = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)h[b]));
}

/* Where the sums of two blocks begin: -bias * sum of a block's codes, once, in its first lane. */
SL_INLINE __m512i begin_of(const int16_t *xs, bool both, sl_dtype dtype) {
    int32_t s0 = -bias_of(dtype) * xs[0], s1 = both ? -bias_of(dtype) * xs[1] : 0;
    __m512i v = _mm512_maskz_set1_epi32(0x000f, s0);
    return _mm512_mask_set1_epi32(v, 0x0f00, s1);
}

/* sum[g]: lanes 0 and 1 are of block 0, 2 and 3 of block 1, of columns 4 g ..; out: both blocks. */
SL_INLINE void sort_sums(const __m512i *sum, __m512i *out) {
    __m512i a = _mm512_add_epi32(_mm512_shuffle_i32x4(sum[0], sum[1], 0x88),
                                 _mm512_shuffle_i32x4(sum[0], sum[1], 0xdd));
    __m512i b = _mm512_add_epi32(_mm512_shuffle_i32x4(sum[2], sum[3], 0x88),
                                 _mm512_shuffle_i32x4(sum[2], sum[3], 0xdd));
    out[0] = _mm512_shuffle_i32x4(a, b, 0x88);
    out[1] = _mm512_shuffle_i32x4(a, b, 0xdd);
}

/* Blocks b and b + 1 of a strip onto the chains of all rows, which pass by codes in registers. */
SL_INLINE void add_blocks(const sl_act_tile *t, const sl_rows16 *s, uint32_t b0, uint32_t b,
                          bool both, const __m512 *d, sl_dtype dtype, __m512 *acc) {
    __m512i v[16];
    load_codes(s, b, both, dtype, v);
    sl_turn_in_lanes(v);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) v[i] = unsign(v[i], dtype);
    for (uint32_t r = 0; r < t->n_rows; r++) {
        const uint32_t at = b0 + b;
        const uint8_t *row = t->x[r];
        const __mmask16 there = both ? 0xffff : 0x00ff;
        const __m512i x = _mm512_maskz_loadu_epi32(there, row + (size_t)at * 32);
        const __m512i xq[4] = {_mm512_shuffle_epi32(x, 0x00), _mm512_shuffle_epi32(x, 0x55),
                               _mm512_shuffle_epi32(x, 0xaa), _mm512_shuffle_epi32(x, 0xff)};
        __m512i sum[4], two[2];
        sum[0] = begin_of(sl_act_sums(SL_ACT_32, row, t->k) + at, both, dtype);
        sum[1] = sum[2] = sum[3] = sum[0];
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
#pragma GCC unroll 4
            for (int g = 0; g < 4; g++) sum[g] = _mm512_dpbusd_epi32(sum[g], v[4 * g + j], xq[j]);
        sort_sums(sum, two);
        const float *dx = sl_act_scales(row, t->k) + at;
        acc[r] = sl_add_block(d[b], _mm512_set1_ps(dx[0]), two[0], acc[r]);
        if (both) acc[r] = sl_add_block(d[b + 1], _mm512_set1_ps(dx[1]), two[1], acc[r]);
    }
}

SL_INLINE void tile_of(const sl_act_tile *t, sl_dtype dtype) {
    const uint32_t all = t->k / 32;
    __m512 acc[SL_TILE_ROWS], d[BLOCKS];
    sl_ask(t->w, SL_MIN(SL_STRIP, t->n_cols) * sl_dtype_row_bytes(dtype, t->k)); /* starts cold */
    for (uint32_t c0 = 0; c0 < t->n_cols; c0 += SL_STRIP) {
        const uint8_t *after = sl_tile_rows_after(t, c0, SL_STRIP);
        for (uint32_t r = 0; r < t->n_rows; r++) acc[r] = _mm512_setzero_ps();
        for (uint32_t b0 = 0; b0 < all; b0 += BLOCKS) {
            const uint32_t n = SL_MIN(BLOCKS, all - b0);
            const sl_rows16 s = sl_rows_at(t, c0, b0 * 32);
            load_scales(&s, n, dtype, d);
            for (uint32_t b = 0; b < n; b += 2) {
                const uint32_t pair = SL_STRIP * block_bytes(dtype) * 2;
                sl_ask(after, pair);
                after += pair;
                if (b + 1 < n)
                    add_blocks(t, &s, b0, b, true, d, dtype, acc);
                else
                    add_blocks(t, &s, b0, b, false, d, dtype, acc);
            }
        }
        for (uint32_t r = 0; r < t->n_rows; r++)
            sl_store_some(t->y + (size_t)r * t->y_stride + c0, acc[r],
                          SL_MIN(SL_STRIP, t->n_cols - c0));
    }
}

SL_TILE_FORM(tile_q8_0, tile_of, SL_Q8_0)
SL_TILE_FORM(tile_q4_0, tile_of, SL_Q4_0)

void sl_avx512_int8_tile_32(const sl_act_tile *t) {
    if (t->dtype == SL_Q8_0)
        tile_q8_0(t);
    else
        tile_q4_0(t);
}
