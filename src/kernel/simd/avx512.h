/* The sixteen virtual lanes as one AVX-512 register: what simd/ (table.h) is written in. */
#ifndef SL_KERNEL_SIMD_AVX512_H
#define SL_KERNEL_SIMD_AVX512_H

#include "kernel/kernel_int.h"
#include "kernel/scalar.h"
#include "kernel/simd/flush_x86.h"

#include <immintrin.h>

#define SIMD_R 4u /* activation rows and weight rows of a register tile: 24 of 32 registers */
#define SIMD_C 6u
#define SIMD_P 4u /* activation rows whose parts are multiplied together (simd/parts.h) */

typedef __m512 v16;

static inline v16 v_set1(float f) {
    return _mm512_set1_ps(f);
}
static inline v16 v_load(const float *p) {
    return _mm512_loadu_ps(p);
}
static inline void v_store(float *p, v16 a) {
    _mm512_storeu_ps(p, a);
}
static inline v16 v_add(v16 a, v16 b) {
    return _mm512_add_ps(a, b);
}
static inline v16 v_sub(v16 a, v16 b) {
    return _mm512_sub_ps(a, b);
}
static inline v16 v_mul(v16 a, v16 b) {
    return _mm512_mul_ps(a, b);
}
static inline v16 v_div(v16 a, v16 b) {
    return _mm512_div_ps(a, b);
}
static inline v16 v_neg(v16 a) {
    return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f));
}
/* a * b + c, rounded once. */
static inline v16 v_fma(v16 a, v16 b, v16 c) {
    return _mm512_fmadd_ps(a, b, c);
}
/* a > b ? a : b, and the same with <: the second wins against NaN. */
static inline v16 v_max(v16 a, v16 b) {
    return _mm512_max_ps(a, b);
}
static inline v16 v_min(v16 a, v16 b) {
    return _mm512_min_ps(a, b);
}

/* The greatest of sixteen, none NaN. */
static inline float v_top(v16 a) {
    return _mm512_reduce_max_ps(a);
}

/* p * 2^n in the two steps of sl_exp_scalar, t = n + SL_EXP_SHIFT. */
static inline v16 v_scale_exp(v16 p, v16 t) {
    const __m512i shift = _mm512_castps_si512(_mm512_set1_ps(SL_EXP_SHIFT));
    const __m512i bias = _mm512_set1_epi32(127);
    __m512i n = _mm512_sub_epi32(_mm512_castps_si512(t), shift), half = _mm512_srai_epi32(n, 1);
    __m512i a = _mm512_slli_epi32(_mm512_add_epi32(half, bias), 23);
    __m512i b = _mm512_slli_epi32(_mm512_add_epi32(_mm512_sub_epi32(n, half), bias), 23);
    return _mm512_mul_ps(_mm512_mul_ps(p, _mm512_castsi512_ps(a)), _mm512_castsi512_ps(b));
}

static inline v16 v_load_f16(const void *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
static inline v16 v_load_bf16(const void *p) {
    __m512i h = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(h, 16));
}

/* Nearest even, NaN kept quiet. */
static inline void v_store_bf16(uint16_t *h, v16 a) {
    __m512i u = _mm512_castps_si512(a), top = _mm512_srli_epi32(u, 16);
    __m512i odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
    __m512i near = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __m512i nan = _mm512_or_si512(top, _mm512_set1_epi32(0x40));
    __mmask16 is_nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    __m512i out = _mm512_mask_mov_epi32(_mm512_srli_epi32(near, 16), is_nan, nan);
    _mm256_storeu_si256((__m256i *)h, _mm512_cvtepi32_epi16(out));
}

/* Subnormals become zeros with their sign. */
static inline v16 v_normal(v16 a) {
    __m512i u = _mm512_castps_si512(a);
    __mmask16 low = _mm512_testn_epi32_mask(u, _mm512_set1_epi32(0x7f800000));
    return _mm512_castsi512_ps(
        _mm512_mask_and_epi32(u, low, u, _mm512_set1_epi32((int)0x80000000u)));
}

static inline v16 v_fma_flush(v16 a, v16 b, v16 c, v_doubt *d) {
    (void)d;
    return _mm512_fmadd_ps(a, b, c);
}
static inline v16 v_add_flush(v16 a, v16 b) {
    return _mm512_add_ps(a, b);
}
/* Values 2i and 2i + 1 of 32 of BF16 in lane i. */
static inline void v_load_pairs(const void *p, v16 *even, v16 *odd) {
    __m512i w = _mm512_loadu_si512(p);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32((int)0xffff0000u)));
}

/* The tree of every dot product. */
static inline float v_tree(v16 a) {
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

/* Always inline: gcc 12 takes a function that only asks for memory for one without effect, and
 * drops its calls. */
SL_INLINE void v_prefetch(const void *p) {
    _mm_prefetch((const char *)p, _MM_HINT_T0);
}

#endif
