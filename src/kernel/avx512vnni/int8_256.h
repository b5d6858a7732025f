/* Heads of blocks of 256 and sums of activations, as sixteen columns take them: for the integer
 * products of Q4_K, Q5_K and Q6_K by AVX-512 and by tiles. */
#ifndef SL_KERNEL_AVX512VNNI_INT8_256_H
#define SL_KERNEL_AVX512VNNI_INT8_256_H

#include "kernel/avx512/int8.h"

SL_INLINE uint32_t sl_parts_of(sl_dtype dtype) {
    return dtype == SL_Q6_K ? 16 : 8;
}

SL_INLINE __m512i sl_low_of(__m512i v) {
    return _mm512_and_si512(v, _mm512_set1_epi8(15));
}

SL_INLINE __m512i sl_high_of(__m512i v) {
    return sl_low_of(_mm512_srli_epi16(v, 4));
}

/* Lane c of each vector is of column c. */
typedef struct sl_head256 {
    __m512i scale[16]; /* of parts */
    __m512i min[4];    /* pairs of 16 bits: of parts 0 and 2, 1 and 3, 4 and 6, 5 and 7 */
    __m512 d, dmin;
} sl_head256;

/* Byte i of each word, without a sign or with it. */
SL_INLINE __m512i sl_byte_of(__m512i v, const int i) {
    return _mm512_and_si512(_mm512_srli_epi32(v, 8 * i), _mm512_set1_epi32(255));
}

SL_INLINE __m512i sl_signed_byte_of(__m512i v, const int i) {
    return _mm512_srai_epi32(_mm512_slli_epi32(v, 24 - 8 * i), 24);
}

/* From the words of f16 d and dmin, then 8 scales and 8 minima of 6 bits each. */
SL_INLINE void sl_head_45(const __m512i *v, sl_head256 *h) {
    const __m512i six = _mm512_set1_epi8(63), four = _mm512_set1_epi8(15);
    const __m512i upper = _mm512_set1_epi8(48), even = _mm512_set1_epi16(255);
    h->d = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v[0]));
    h->dmin = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(v[0], 16)));
    __m512i s0 = _mm512_and_si512(v[1], six), m0 = _mm512_and_si512(v[2], six);
    __m512i s1 = _mm512_or_si512(_mm512_and_si512(v[3], four),
                                 _mm512_and_si512(_mm512_srli_epi16(v[1], 2), upper));
    __m512i m1 = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(v[3], 4), four),
                                 _mm512_and_si512(_mm512_srli_epi16(v[2], 2), upper));
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        h->scale[i] = sl_byte_of(s0, i);
        h->scale[4 + i] = sl_byte_of(s1, i);
    }
    h->min[0] = _mm512_and_si512(m0, even), h->min[1] = _mm512_srli_epi16(m0, 8);
    h->min[2] = _mm512_and_si512(m1, even), h->min[3] = _mm512_srli_epi16(m1, 8);
}

/* From the words of 16 scales. */
SL_INLINE void sl_head_6(const __m512i *v, __m512 d, sl_head256 *h) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) h->scale[i] = sl_signed_byte_of(v[i / 4], i % 4);
    h->d = d;
}

SL_INLINE void sl_load_head(const sl_rows16 *s, size_t at, sl_dtype dtype, sl_head256 *h) {
    __m512i v[4];
    sl_load_words(s, dtype == SL_Q6_K ? at + 192 : at, v);
    if (dtype == SL_Q6_K)
        sl_head_6(v, sl_load_d(s, at + 208), h);
    else
        sl_head_45(v, h);
}

/* Per lane of 128 bits, for 16-bit shifts: a in the first two, b in the others. */
SL_INLINE __m512i sl_by_halves(short a, short b) {
    return _mm512_inserti64x4(_mm512_set1_epi16(a), _mm256_set1_epi16(b), 1);
}

/* What the sums of a row's codes in a block give: Q6_K: -32 times those of 16 values; the others:
 * those of 32 in the order of sl_head256.min, as 16 bits. */
typedef struct sl_offsets {
    int32_t v[16];
} sl_offsets;

SL_INLINE void sl_offsets_of(const sl_act_tile *t, uint32_t r, uint32_t b, sl_dtype dtype,
                             sl_offsets *out) {
    const int16_t *s = sl_act_sums(SL_ACT_256, t->x[r], t->k) + b * 16;
    const __m256i v = _mm256_loadu_si256((const __m256i *)s);
    if (dtype == SL_Q6_K) {
        __m512i w = _mm512_cvtepi16_epi32(v);
        w = _mm512_slli_epi32(_mm512_sub_epi32(_mm512_setzero_si512(), w), 5);
        _mm512_storeu_si512(out->v, w);
        return;
    }
    const __m128i order = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    __m128i sums = _mm256_cvtepi32_epi16(_mm256_madd_epi16(v, _mm256_set1_epi16(1)));
    _mm_storeu_si128((__m128i *)out->v, _mm_shuffle_epi8(sums, order));
}

/* sum min * sums, of all columns. */
SL_INLINE __m512i sl_low_sums(const sl_head256 *h, const sl_offsets *o) {
    __m512i a = _mm512_dpwssd_epi32(_mm512_setzero_si512(), h->min[0], sl_quad(&o->v[0]));
    __m512i b = _mm512_dpwssd_epi32(_mm512_setzero_si512(), h->min[2], sl_quad(&o->v[2]));
    a = _mm512_dpwssd_epi32(a, h->min[1], sl_quad(&o->v[1]));
    b = _mm512_dpwssd_epi32(b, h->min[3], sl_quad(&o->v[3]));
    return _mm512_add_epi32(a, b);
}

/* A block's sum onto a row's chain. */
SL_INLINE __m512 sl_add_sum(const sl_head256 *h, __m512i sum, float dx, const sl_offsets *o,
                            sl_dtype dtype, __m512 acc) {
    const __m512 by = _mm512_set1_ps(dx);
    acc = sl_add_block(h->d, by, sum, acc);
    if (dtype == SL_Q6_K) return acc;
    return _mm512_fnmadd_ps(_mm512_mul_ps(h->dmin, by), _mm512_cvtepi32_ps(sl_low_sums(h, o)), acc);
}

#endif
