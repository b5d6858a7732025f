/* The sixteen virtual lanes as two AVX2 registers: what simd/vec.h and simd/scores.h are written
 * in. Products have tiles of their own (avx2/avx2_gemm.c). */
#ifndef SL_KERNEL_SIMD_AVX2_H
#define SL_KERNEL_SIMD_AVX2_H

#include "kernel/kernel_int.h"
#include "kernel/scalar.h"
#include "kernel/simd/flush_x86.h"

#include <immintrin.h>

#define SIMD_P 2u /* activation rows whose parts are multiplied together (simd/parts.h) */

typedef struct v16 {
    __m256 q[2];
} v16;

#define V_EACH _Pragma("GCC unroll 2") for (int i = 0; i < 2; i++)

static inline v16 v_set1(float f) {
    const __m256 one = _mm256_set1_ps(f);
    return (v16){{one, one}};
}
static inline v16 v_load(const float *p) {
    return (v16){{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}};
}
static inline void v_store(float *p, v16 a) {
    V_EACH _mm256_storeu_ps(p + 8 * i, a.q[i]);
}
static inline v16 v_add(v16 a, v16 b) {
    V_EACH a.q[i] = _mm256_add_ps(a.q[i], b.q[i]);
    return a;
}
static inline v16 v_sub(v16 a, v16 b) {
    V_EACH a.q[i] = _mm256_sub_ps(a.q[i], b.q[i]);
    return a;
}
static inline v16 v_mul(v16 a, v16 b) {
    V_EACH a.q[i] = _mm256_mul_ps(a.q[i], b.q[i]);
    return a;
}
static inline v16 v_div(v16 a, v16 b) {
    V_EACH a.q[i] = _mm256_div_ps(a.q[i], b.q[i]);
    return a;
}
static inline v16 v_neg(v16 a) {
    V_EACH a.q[i] = _mm256_xor_ps(a.q[i], _mm256_set1_ps(-0.0f));
    return a;
}
/* a * b + c, rounded once. */
static inline v16 v_fma(v16 a, v16 b, v16 c) {
    V_EACH c.q[i] = _mm256_fmadd_ps(a.q[i], b.q[i], c.q[i]);
    return c;
}
/* a > b ? a : b, and the same with <: the second wins against NaN. */
static inline v16 v_max(v16 a, v16 b) {
    V_EACH a.q[i] = _mm256_max_ps(a.q[i], b.q[i]);
    return a;
}
static inline v16 v_min(v16 a, v16 b) {
    V_EACH a.q[i] = _mm256_min_ps(a.q[i], b.q[i]);
    return a;
}

/* The greatest of sixteen, none NaN. */
static inline float v_top(v16 a) {
    __m256 eight = _mm256_max_ps(a.q[0], a.q[1]);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

/* p * 2^n in the two steps of sl_exp_scalar, t = n + SL_EXP_SHIFT. */
static inline v16 v_scale_exp(v16 p, v16 t) {
    const __m256i shift = _mm256_castps_si256(_mm256_set1_ps(SL_EXP_SHIFT));
    const __m256i bias = _mm256_set1_epi32(127);
    V_EACH {
        __m256i n = _mm256_sub_epi32(_mm256_castps_si256(t.q[i]), shift);
        __m256i half = _mm256_srai_epi32(n, 1);
        __m256i a = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
        __m256i b = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(n, half), bias), 23);
        p.q[i] =
            _mm256_mul_ps(_mm256_mul_ps(p.q[i], _mm256_castsi256_ps(a)), _mm256_castsi256_ps(b));
    }
    return p;
}

static inline v16 v_load_f16(const void *p) {
    const __m128i *h = p;
    return (v16){{_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1))}};
}
static inline v16 v_load_bf16(const void *p) {
    v16 r;
    V_EACH {
        __m256i h = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p + i));
        r.q[i] = _mm256_castsi256_ps(_mm256_slli_epi32(h, 16));
    }
    return r;
}

/* Nearest even, NaN kept quiet. */
static inline void v_store_bf16(uint16_t *dst, v16 a) {
    V_EACH {
        __m256i u = _mm256_castps_si256(a.q[i]), top = _mm256_srli_epi32(u, 16);
        __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
        __m256i near = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        __m256i nan = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
        __m256 is_nan = _mm256_cmp_ps(a.q[i], a.q[i], _CMP_UNORD_Q);
        near = _mm256_blendv_epi8(_mm256_srli_epi32(near, 16), nan, _mm256_castps_si256(is_nan));
        __m128i h =
            _mm_packus_epi32(_mm256_castsi256_si128(near), _mm256_extracti128_si256(near, 1));
        _mm_storeu_si128((__m128i *)(dst + 8 * i), h);
    }
}

/* Subnormals become zeros with their sign. */
static inline v16 v_normal(v16 a) {
    const __m256i exponent = _mm256_set1_epi32(0x7f800000), size = _mm256_set1_epi32(0x7fffffff);
    V_EACH {
        __m256i u = _mm256_castps_si256(a.q[i]);
        __m256i low = _mm256_cmpeq_epi32(_mm256_and_si256(u, exponent), _mm256_setzero_si256());
        a.q[i] = _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_and_si256(low, size), u));
    }
    return a;
}

static inline v16 v_fma_flush(v16 a, v16 b, v16 c, v_doubt *d) {
    (void)d;
    return v_fma(a, b, c);
}
static inline v16 v_add_flush(v16 a, v16 b) {
    return v_add(a, b);
}
/* Values 2i and 2i + 1 of 32 of BF16 in lane i. */
static inline void v_load_pairs(const void *p, v16 *even, v16 *odd) {
    V_EACH {
        const __m256i w = _mm256_loadu_si256((const __m256i *)p + i);
        even->q[i] = _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
        odd->q[i] = _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32((int)0xffff0000u)));
    }
}

/* The tree of every dot product. */
static inline float v_tree(v16 a) {
    __m256 eight = _mm256_add_ps(a.q[0], a.q[1]);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

/* Always inline, as in simd/avx512.h. */
SL_INLINE void v_prefetch(const void *p) {
    _mm_prefetch((const char *)p, _MM_HINT_T0);
}

#endif
