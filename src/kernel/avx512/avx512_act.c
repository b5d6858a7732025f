/* Activations to 8 bits. */
#include "kernel/avx512/int8.h"

SL_INLINE __m512i magnitude(__m512 v) {
    return _mm512_and_si512(_mm512_set1_epi32(0x7fffffff), _mm512_castps_si512(v));
}

/* Largest magnitude as bits; n: a multiple of 32. */
SL_INLINE uint32_t most_of(const float *x, uint32_t n) {
    __m512i a = _mm512_setzero_si512(), b = a;
    for (uint32_t i = 0; i < n; i += 32) {
        a = _mm512_max_epu32(a, magnitude(_mm512_loadu_ps(x + i)));
        b = _mm512_max_epu32(b, magnitude(_mm512_loadu_ps(x + i + 16)));
    }
    return _mm512_reduce_max_epu32(_mm512_max_epu32(a, b));
}

/* The same of y[i] = x[i] * inv * w[i]. */
SL_INLINE uint32_t apply_most(const float *x, const float *w, float inv, uint32_t n, float *y) {
    __m512i a = _mm512_setzero_si512();
    const __m512 by = _mm512_set1_ps(inv);
    for (uint32_t i = 0; i < n; i += 16) {
        __m512 u = _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(x + i), by), _mm512_loadu_ps(w + i));
        _mm512_storeu_ps(y + i, u);
        a = _mm512_max_epu32(a, magnitude(u));
    }
    return _mm512_reduce_max_epu32(a);
}

/* 32 codes and their sums: of all, or of each 16. */
SL_INLINE void codes_32(const float *x, __m512 to_code, sl_act_kind kind, uint8_t *code,
                        int16_t *sum) {
    __m128i a =
        _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), to_code)));
    __m128i b =
        _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16), to_code)));
    __m256i v = _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
    __m256i s =
        _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), v), _mm256_set1_epi16(1));
    s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0x4e));
    s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0xb1));
    int32_t s0 = _mm256_extract_epi32(s, 0), s1 = _mm256_extract_epi32(s, 4);
    _mm256_storeu_si256((__m256i *)code, v);
    sum[0] = (int16_t)(kind == SL_ACT_32 ? s0 + s1 : s0);
    if (kind != SL_ACT_32) sum[1] = (int16_t)s1;
}

/* The block that begins at value b of a row of k; x: its values, `most` their largest magnitude. */
SL_INLINE void quantise_block(const float *x, uint32_t most, uint32_t b, uint32_t k,
                              sl_act_kind kind, uint8_t *row) {
    const uint32_t block = sl_act_block(kind), per = sl_act_sum_of(kind);
    float *scale = (float *)(row + k), a = sl_f32_of_bits(most);
    int16_t *sum = (int16_t *)(scale + k / block) + b / per;
    const bool zero = a < SL_ACT_TINY, finite = most < 0x7f800000u;
    scale[b / block] = !finite ? NAN : zero ? 0 : a / 127.0f;
    if (!finite || zero) {
        memset(row + b, 0, block);
        memset(sum, 0, block / per * sizeof *sum);
        return;
    }
    const __m512 to_code = _mm512_set1_ps(127.0f / a);
    for (uint32_t i = 0; i < block; i += 32)
        codes_32(x + i, to_code, kind, row + b + i, sum + i / per);
}

void sl_avx512_quantise(const float *x, uint32_t k, sl_act_kind kind, uint8_t *row) {
    const uint32_t block = sl_act_block(kind);
    for (uint32_t b = 0; b < k; b += block)
        quantise_block(x + b, most_of(x + b, block), b, k, kind, row);
}

void sl_avx512_rms_quantise(const float *x, const float *w, float inv, const sl_act_part *to) {
    const uint32_t block = sl_act_block(to->kind);
    _Alignas(64) float y[SL_BLOCK_MAX];
    for (uint32_t b = 0; b < to->n; b += block) {
        uint32_t most = apply_most(x + b, w + b, inv, block, y);
        quantise_block(y, most, to->at + b, to->k, to->kind, to->row);
    }
}
