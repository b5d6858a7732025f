/* Pieces of the products with blocks of 256, for avx2_int8_256.c and avx2_int8_few.c. */
#ifndef SL_KERNEL_AVX2_INT8_256_H
#define SL_KERNEL_AVX2_INT8_256_H

#include "kernel/avx2/int8.h"

/* Up to so many rows, weights are used as they lie. */
#define SL_FEW_ROWS(dtype) ((dtype) == SL_Q4_K ? 4u : 6u)

/* Lane c of each vector is of column c. */
typedef struct sl_head_45 {
    __m256i scale[2]; /* bytes: of parts 0..3, of parts 4..7 */
    __m256i min[4];   /* pairs of 16 bits: of parts 0 and 2, 1 and 3, 4 and 6, 5 and 7 */
    __m256 d, dmin;
} sl_head_45;

/* The first 16 bytes of the blocks at byte `at`: f16 d and dmin, then 8 scales and 8 minima of 6
 * bits each. */
SL_INLINE sl_head_45 sl_load_head_45(const sl_strip_src *s, size_t at) {
    const __m256i six = _mm256_set1_epi8(63), four = _mm256_set1_epi8(15);
    const __m256i upper = _mm256_set1_epi8(48), even = _mm256_set1_epi16(255);
    __m256i v[4];
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++)
        v[c] = _mm256_loadu2_m128i((const __m128i *)(s->row[c + 4] + at),
                                   (const __m128i *)(s->row[c] + at));
    __m256i t0 = _mm256_unpacklo_epi32(v[0], v[1]), t1 = _mm256_unpacklo_epi32(v[2], v[3]);
    __m256i t2 = _mm256_unpackhi_epi32(v[0], v[1]), t3 = _mm256_unpackhi_epi32(v[2], v[3]);
    __m256i f16 = _mm256_unpacklo_epi64(t0, t1), a = _mm256_unpackhi_epi64(t0, t1);
    __m256i b = _mm256_unpacklo_epi64(t2, t3), c = _mm256_unpackhi_epi64(t2, t3);
    __m256i m0 = _mm256_and_si256(b, six);
    __m256i m1 = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(c, 4), four),
                                 _mm256_and_si256(_mm256_srli_epi16(b, 2), upper));
    f16 = _mm256_packus_epi32(_mm256_blend_epi16(f16, _mm256_setzero_si256(), 0xaa),
                              _mm256_srli_epi32(f16, 16));
    f16 = _mm256_permute4x64_epi64(f16, 0xd8);
    return (sl_head_45){
        .scale = {_mm256_and_si256(a, six),
                  _mm256_or_si256(_mm256_and_si256(c, four),
                                  _mm256_and_si256(_mm256_srli_epi16(a, 2), upper))},
        .min = {_mm256_and_si256(m0, even), _mm256_srli_epi16(m0, 8), _mm256_and_si256(m1, even),
                _mm256_srli_epi16(m1, 8)},
        .d = _mm256_cvtph_ps(_mm256_castsi256_si128(f16)),
        .dmin = _mm256_cvtph_ps(_mm256_extracti128_si256(f16, 1)),
    };
}

/* Byte b of each 32-bit lane, twice, as 16 bits. */
SL_INLINE __m256i sl_twice(__m256i v, int b) {
    const __m256i lanes = _mm256_set_epi32(12, 8, 4, 0, 12, 8, 4, 0);
    __m256i i = _mm256_or_si256(lanes, _mm256_slli_epi32(lanes, 16));
    i = _mm256_add_epi8(i, _mm256_set1_epi32(b | b << 16));
    return _mm256_shuffle_epi8(v, _mm256_or_si256(i, _mm256_set1_epi32((int)0x80008000u)));
}

/* From the sums of 16 codes of a row's block: of 32, as 16 bits in the order of sl_head_45.min. */
SL_INLINE __m128i sl_sums_32(const int16_t *sum16) {
    const __m128i order = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    __m256i s = _mm256_madd_epi16(sl_load(sum16), _mm256_set1_epi16(1));
    return _mm_shuffle_epi8(
        _mm_packs_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1)), order);
}

/* sum min * sums, of all columns; xs: 8 values of sl_sums_32. */
SL_INLINE __m256i sl_low_sums(const __m256i *min, const int16_t *xs) {
    __m256i a = _mm256_madd_epi16(min[0], sl_quad(xs));
    a = _mm256_add_epi32(a, _mm256_madd_epi16(min[1], sl_quad(xs + 2)));
    __m256i b = _mm256_madd_epi16(min[2], sl_quad(xs + 4));
    b = _mm256_add_epi32(b, _mm256_madd_epi16(min[3], sl_quad(xs + 6)));
    return _mm256_add_epi32(a, b);
}

/* Asks for `bytes` of weights from `p` on, in the order of memory: one stream, not one a row. */
SL_INLINE void sl_prefetch_bytes(const void *p, size_t bytes) {
#pragma GCC unroll 27
    for (size_t i = 0; i < bytes; i += 64) _mm_prefetch((const char *)p + i, _MM_HINT_T0);
}

#endif
