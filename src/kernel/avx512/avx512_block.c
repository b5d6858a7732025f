/* Weights in blocks to f32, sixteen at a time. A scale has so few codes that their values fit into
 * one or two registers: they are computed once, and a permutation takes from them. Products are
 * exact and a minimum is subtracted with the one rounding of quant/block.h, so bits are the same.
 */
#include "kernel/avx512/avx512.h"

#include <immintrin.h>
#include <math.h>

SL_INLINE __m512i from_bytes(__m128i b) {
    return _mm512_cvtepu8_epi32(b);
}

SL_INLINE __m128i load16(const uint8_t *p) {
    return _mm_loadu_si128((const __m128i *)p);
}

/* 0, 1, .. 15 and what is added to each. */
SL_INLINE __m512 counted(float from) {
    const __m512 n = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_add_ps(n, _mm512_set1_ps(from));
}

/* Two values of sixteen bytes each, low halves first; the permutation reads four bits of an index.
 */
SL_INLINE void from_nibbles(const uint8_t *p, __m512 values, float *dst) {
    const __m512i code = from_bytes(load16(p));
    _mm512_storeu_ps(dst, _mm512_permutexvar_ps(code, values));
    _mm512_storeu_ps(dst + 16, _mm512_permutexvar_ps(_mm512_srli_epi32(code, 4), values));
}

SL_INLINE void q8_0(const uint8_t *b, float *dst) {
    const __m512 d = _mm512_set1_ps(sl_block_f16(b));
#pragma GCC unroll 2
    for (int i = 0; i < 32; i += 16) {
        const __m512 code = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load16(b + 2 + i)));
        _mm512_storeu_ps(dst + i, _mm512_mul_ps(d, code));
    }
}

SL_INLINE void q4_0(const uint8_t *b, float *dst) {
    from_nibbles(b + 2, _mm512_mul_ps(_mm512_set1_ps(sl_block_f16(b)), counted(-8)), dst);
}

SL_INLINE void mxfp4(const uint8_t *b, float *dst) {
    static const int8_t code[16] = SL_MXFP4_CODES;
    const __m512 codes = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load16((const uint8_t *)code)));
    from_nibbles(b + 1, _mm512_mul_ps(_mm512_set1_ps(sl_mxfp4_half_scale(b[0])), codes), dst);
}

/* scale * code - min for sixteen codes from `from` on. */
SL_INLINE __m512 values_of(float scale, float min, float from) {
    return _mm512_sub_ps(_mm512_mul_ps(_mm512_set1_ps(scale), counted(from)), _mm512_set1_ps(min));
}

SL_INLINE void q4_k(const uint8_t *b, float *dst) {
    const float d = sl_block_f16(b), dmin = sl_block_f16(b + 2);
#pragma GCC unroll 4
    for (int s = 0; s < 8; s += 2, dst += 64) {
        const uint8_t *code = b + 16 + s / 2 * 32;
        uint8_t scale, min;
        sl_k_scale(b + 4, s, &scale, &min);
        const __m512 even = values_of(d * (float)scale, dmin * (float)min, 0);
        sl_k_scale(b + 4, s + 1, &scale, &min);
        const __m512 odd = values_of(d * (float)scale, dmin * (float)min, 0);
#pragma GCC unroll 2
        for (int i = 0; i < 32; i += 16) {
            const __m512i c = from_bytes(load16(code + i));
            _mm512_storeu_ps(dst + i, _mm512_permutexvar_ps(c, even));
            _mm512_storeu_ps(dst + 32 + i, _mm512_permutexvar_ps(_mm512_srli_epi32(c, 4), odd));
        }
    }
}

SL_INLINE void q5_k(const uint8_t *b, float *dst) {
    const float d = sl_block_f16(b), dmin = sl_block_f16(b + 2);
#pragma GCC unroll 8
    for (int s = 0; s < 8; s++, dst += 32) {
        const uint8_t *code = b + 48 + s / 2 * 32, *high = b + 16;
        uint8_t scale, min;
        sl_k_scale(b + 4, s, &scale, &min);
        const float a = d * (float)scale, m = dmin * (float)min;
        const __m512 low = values_of(a, m, 0), top = values_of(a, m, 16);
#pragma GCC unroll 2
        for (int i = 0; i < 32; i += 16) {
            const __m512i c = _mm512_srli_epi32(from_bytes(load16(code + i)), s & 1 ? 4 : 0);
            const __mmask16 fifth =
                _mm512_test_epi32_mask(from_bytes(load16(high + i)), _mm512_set1_epi32(1 << s));
            const __m512 v = _mm512_permutexvar_ps(c, low);
            _mm512_storeu_ps(dst + i, _mm512_mask_permutexvar_ps(v, fifth, c, top));
        }
    }
}

SL_INLINE void q6_k(const uint8_t *b, float *dst) {
    const float d = sl_block_f16(b + 208);
#pragma GCC unroll 16
    for (int s = 0; s < 16; s++, dst += 16) { /* as sl_q6_k_decode */
        const uint8_t *low = b + s / 8 * 64 + s % 4 * 16, *high = b + 128 + s / 8 * 32 + s % 2 * 16;
        const int shift = s % 8 < 4 ? 0 : 4, pair = s / 2 % 4 * 2;
        const __m128i four = _mm_and_si128(_mm_srli_epi16(load16(low), shift), _mm_set1_epi8(15));
        const __m128i two = _mm_and_si128(_mm_srli_epi16(load16(high), pair), _mm_set1_epi8(3));
        const __m128i code =
            _mm_sub_epi8(_mm_or_si128(four, _mm_slli_epi16(two, 4)), _mm_set1_epi8(32));
        const __m512 a = _mm512_set1_ps(d * (float)(int8_t)b[192 + s]);
        _mm512_storeu_ps(dst, _mm512_mul_ps(a, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(code))));
    }
}

#define EACH_BLOCK(decode, values, bytes)                                                          \
    for (size_t i = 0; i < n; i += (values), b += (bytes)) decode(b, dst + i)

void sl_avx512_block_decode(sl_dtype dtype, const void *src, size_t n, float *dst) {
    const uint8_t *b = src;
    switch (dtype) {
    case SL_Q8_0:
        EACH_BLOCK(q8_0, 32, 34);
        break;
    case SL_Q4_0:
        EACH_BLOCK(q4_0, 32, 18);
        break;
    case SL_MXFP4:
        EACH_BLOCK(mxfp4, 32, 17);
        break;
    case SL_Q4_K:
        EACH_BLOCK(q4_k, 256, 144);
        break;
    case SL_Q5_K:
        EACH_BLOCK(q5_k, 256, 176);
        break;
    default:
        SL_ASSERT(dtype == SL_Q6_K);
        EACH_BLOCK(q6_k, 256, 210);
    }
}

/* Sixteen codes: times 2^-8 they are f16 but for NaN, exactly, and what is a subnormal there costs
 * nothing. As f32 of another bias it would: some processors take 150 cycles to multiply those. */
SL_INLINE __m512 from_e4m3(__m128i codes) {
    const __m256i places = _mm256_set1_epi16((short)0xbf80);
    const __m128i size = _mm_set1_epi8(0x7f);
    const __m256i half =
        _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7), places);
    const __mmask16 nan = _mm_cmpeq_epi8_mask(_mm_and_si128(codes, size), size);
    const __m512 v = _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256));
    return _mm512_mask_mov_ps(v, nan, _mm512_set1_ps(NAN));
}

void sl_avx512_f8_decode(const uint8_t *w, const float *scale, size_t first, size_t n, float *dst) {
    for (size_t i = 0; i < n;) {
        const size_t at = first + i, end = SL_MIN(n, i + SL_F8_BLOCK - at % SL_F8_BLOCK);
        const __m512 s = _mm512_set1_ps(scale[at / SL_F8_BLOCK]);
        for (; i + 16 <= end; i += 16)
            _mm512_storeu_ps(dst + i, _mm512_mul_ps(from_e4m3(load16(w + i)), s));
        if (i == end) continue;
        const __mmask16 some = (__mmask16)((1u << (end - i)) - 1);
        const __m512 v = from_e4m3(_mm_maskz_loadu_epi8(some, w + i));
        _mm512_mask_storeu_ps(dst + i, some, _mm512_mul_ps(v, s));
        i = end;
    }
}
