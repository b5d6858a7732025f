/* sl_exp_scalar on eight values, operation for operation. */
#ifndef SL_KERNEL_AVX2_EXP_H
#define SL_KERNEL_AVX2_EXP_H

#include "kernel/scalar.h"

#include <immintrin.h>

static inline __m256 sl_avx2_exp(__m256 x) {
    x = _mm256_max_ps(_mm256_set1_ps(SL_EXP_MIN), x);
    x = _mm256_min_ps(_mm256_set1_ps(SL_EXP_MAX), x);
    const __m256 shift = _mm256_set1_ps(SL_EXP_SHIFT), one = _mm256_set1_ps(1.0f);
    __m256 t = _mm256_fmadd_ps(x, _mm256_set1_ps(SL_EXP_LOG2E), shift);
    __m256 n = _mm256_sub_ps(t, shift);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-SL_EXP_LN2HI), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-SL_EXP_LN2LO), r);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(SL_EXP_C7), r, _mm256_set1_ps(SL_EXP_C6));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(SL_EXP_C5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(SL_EXP_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(SL_EXP_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, r, one);
    p = _mm256_fmadd_ps(p, r, one);
    __m256i i = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_castps_si256(shift));
    __m256i half = _mm256_srai_epi32(i, 1), bias = _mm256_set1_epi32(127);
    __m256i a = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    __m256i b = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(i, half), bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(a)), _mm256_castsi256_ps(b));
}

/* Virtual lanes 0..7 in a, 8..15 in b. */
static inline float sl_avx2_tree16(__m256 a, __m256 b) {
    _Alignas(32) float s[16];
    _mm256_store_ps(s, a);
    _mm256_store_ps(s + 8, b);
    return sl_tree16(s);
}

#endif
