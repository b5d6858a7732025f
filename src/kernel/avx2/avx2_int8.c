/* Activations to 8 bits, and what the integer products share. */
#include "kernel/avx2/int8.h"

SL_INLINE __m256i magnitude(__m256 v) {
    return _mm256_and_si256(_mm256_set1_epi32(0x7fffffff), _mm256_castps_si256(v));
}

/* Largest of the lanes. */
SL_INLINE uint32_t most_of_lanes(__m256i a) {
    a = _mm256_max_epi32(a, _mm256_permute2x128_si256(a, a, 1));
    a = _mm256_max_epi32(a, _mm256_shuffle_epi32(a, 0x4e));
    a = _mm256_max_epi32(a, _mm256_shuffle_epi32(a, 0xb1));
    return (uint32_t)_mm256_extract_epi32(a, 0);
}

/* Largest magnitude as bits. */
static uint32_t most_of(const float *x, uint32_t n) {
    __m256i a = _mm256_setzero_si256(), b = a;
    for (uint32_t i = 0; i < n; i += 16) {
        a = _mm256_max_epi32(a, magnitude(_mm256_loadu_ps(x + i)));
        b = _mm256_max_epi32(b, magnitude(_mm256_loadu_ps(x + i + 8)));
    }
    return most_of_lanes(_mm256_max_epi32(a, b));
}

/* The same of y[i] = x[i] * inv * w[i]. */
static uint32_t apply_most(const float *x, const float *w, float inv, uint32_t n, float *y) {
    __m256i a = _mm256_setzero_si256(), b = a;
    const __m256 by = _mm256_set1_ps(inv);
    for (uint32_t i = 0; i < n; i += 16) {
        __m256 u = _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), by), _mm256_loadu_ps(w + i));
        __m256 v = _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i + 8), by),
                                 _mm256_loadu_ps(w + i + 8));
        _mm256_store_ps(y + i, u);
        _mm256_store_ps(y + i + 8, v);
        a = _mm256_max_epi32(a, magnitude(u));
        b = _mm256_max_epi32(b, magnitude(v));
    }
    return most_of_lanes(_mm256_max_epi32(a, b));
}

/* 32 values to codes, in their order. */
SL_INLINE __m256i codes_32(const float *x, __m256 to_code) {
    __m256i v[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        v[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), to_code));
    __m256i p = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
    return _mm256_permutevar8x32_epi32(p, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* Sum of 16 codes in lanes 0 and 4. */
SL_INLINE __m256i sums_16(__m256i code) {
    const __m256i ones8 = _mm256_set1_epi8(1), ones16 = _mm256_set1_epi16(1);
    __m256i s = _mm256_madd_epi16(_mm256_maddubs_epi16(ones8, code), ones16);
    s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0x4e));
    return _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0xb1));
}

/* The block that begins at value b of a row of k; x: its values, `most` their largest magnitude. */
SL_INLINE void quantise_block(const float *x, uint32_t most, uint32_t b, uint32_t k,
                              sl_act_kind kind, uint8_t *row) {
    uint32_t block = sl_act_block(kind);
    float *scale = (float *)(row + k);
    int16_t *sum = (int16_t *)(scale + k / block);
    float a = sl_f32_of_bits(most);
    bool zero = a < SL_ACT_TINY, finite = most < 0x7f800000u;
    scale[b / block] = !finite ? NAN : zero ? 0 : a / 127.0f;
    __m256 to_code = _mm256_set1_ps(!finite || zero ? 0 : 127.0f / a);
    for (uint32_t i = 0; i < block; i += 32) {
        __m256i code = finite ? codes_32(x + i, to_code) : _mm256_setzero_si256();
        __m256i s = sums_16(code);
        int32_t s0 = _mm256_extract_epi32(s, 0), s1 = _mm256_extract_epi32(s, 4);
        _mm256_store_si256((__m256i *)(row + b + i), code);
        if (kind == SL_ACT_32) {
            sum[(b + i) / 32] = (int16_t)(s0 + s1);
        } else {
            sum[(b + i) / 16] = (int16_t)s0;
            sum[(b + i) / 16 + 1] = (int16_t)s1;
        }
    }
}

void sl_avx2_quantise(const float *x, uint32_t k, sl_act_kind kind, uint8_t *row) {
    uint32_t block = sl_act_block(kind);
    for (uint32_t b = 0; b < k; b += block)
        quantise_block(x + b, most_of(x + b, block), b, k, kind, row);
}

void sl_avx2_rms_quantise(const float *x, const float *w, float inv, const sl_act_part *to) {
    uint32_t block = sl_act_block(to->kind);
    _Alignas(32) float y[SL_BLOCK_MAX];
    for (uint32_t b = 0; b < to->n; b += block) {
        uint32_t most = apply_most(x + b, w + b, inv, block, y);
        quantise_block(y, most, to->at + b, to->k, to->kind, to->row);
    }
}

void sl_avx2_int8_tile(const sl_act_tile *t) {
    if (t->n_rows == 0 || t->n_cols == 0) return;
    if (sl_act_kind_of(t->dtype) == SL_ACT_32)
        sl_avx2_int8_tile_32(t);
    else
        sl_avx2_int8_tile_256(t);
}
