/* Attention over one page: products of up to four queries with four keys, and sums over values for
 * as many, stay in registers. The next page is asked for no faster than this one is worked on. */
#include "kernel/avx512/avx512.h"
#include "kernel/simd/avx512.h"

#include "kernel/simd/vec.h"

#include "kernel/avx512/sums.h"

#include "kernel/simd/attn_hints.h"

#define STRIDE TOKENS
_Static_assert(TOKENS == 32, "a page's scores are two values of 16 lanes");

/* Sixteen codes of E4M3: times 2^-8 they are f16 but for NaN, exactly. */
SL_INLINE v16 load_e4m3(const uint8_t *code, float scale) {
    const __m256i c = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)code));
    const __m256i size = _mm256_and_si256(c, _mm256_set1_epi16(0x7f));
    const __m256i sign = _mm256_slli_epi16(_mm256_srli_epi16(c, 7), 15);
    const __mmask16 is_nan = _mm256_cmpeq_epi16_mask(size, _mm256_set1_epi16(0x7f));
    v16 v = _mm512_cvtph_ps(_mm256_or_si256(sign, _mm256_slli_epi16(size, 7)));
    const v16 nan = _mm512_or_ps(_mm512_and_ps(v, v_set1(-0.0f)), v_set1(NAN));
    v = v_mul(_mm512_mask_mov_ps(v, is_nan, nan), v_set1(256));
    return v_mul(v, v_set1(scale));
}

/* Values d to d + 15 of a row, widened in a register. */
SL_INLINE v16 row_load(const uint8_t *row, size_t d, const sl_kv_type K) {
    if (K == SL_KV_F16) return v_load_f16(row + 2 * d);
    if (K == SL_KV_BF16) return v_load_bf16(row + 2 * d);
    if (K == SL_KV_Q8_0) {
        const uint8_t *b = row + d / SL_KV_Q8_BLOCK * SL_KV_Q8_BYTES;
        const __m128i code = _mm_loadu_si128((const __m128i *)(b + 2 + d % SL_KV_Q8_BLOCK));
        uint16_t h;
        memcpy(&h, b, sizeof h);
        return v_mul(v_set1(_cvtsh_ss(h)), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(code)));
    }
    if (K == SL_KV_FP8) {
        float scale;
        memcpy(&scale, row, sizeof scale);
        return load_e4m3(row + SL_KV_FP8_HEAD + d, scale);
    }
    return v_load((const float *)(const void *)row + d);
}

SL_INLINE __mmask16 some(uint32_t n) {
    return (__mmask16)((1u << n) - 1);
}

/* Products of Q queries with T keys, 4 or 1, to score[i * TOKENS + t]. A step reads a line of each
 * key, which is half of what a page's keys and values are together. */
SL_INLINE void products(const sl_attn_query *u, const uint8_t *k, size_t step, uint32_t dim,
                        hints *h, float *score, const sl_kv_type K, const uint32_t Q,
                        const uint32_t T) {
    const uint32_t whole = dim / 16 * 16;
    v16 acc[GROUP * GROUP], row[GROUP];
#pragma GCC unroll 16
    for (uint32_t i = 0; i < Q * T; i++) acc[i] = v_set1(0);
    for (uint32_t d = 0; d < whole; d += 16) {
#pragma GCC unroll 4
        for (uint32_t t = 0; t < T; t++) row[t] = row_load(k + t * step, d, K);
        if (h && T == GROUP) ask_times(h, K, 2);
#pragma GCC unroll 4
        for (uint32_t i = 0; i < Q; i++) {
            const v16 x = v_load(u[i].q + d);
#pragma GCC unroll 4
            for (uint32_t t = 0; t < T; t++) acc[i * T + t] = v_fma(x, row[t], acc[i * T + t]);
        }
    }
    if (whole < dim) {
        const __mmask16 rest = some(dim - whole);
#pragma GCC unroll 4
        for (uint32_t i = 0; i < Q; i++)
#pragma GCC unroll 4
            for (uint32_t t = 0; t < T; t++)
                acc[i * T + t] =
                    v_fma(_mm512_maskz_loadu_ps(rest, u[i].q + whole),
                          _mm512_maskz_loadu_ps(rest, (const float *)(const void *)(k + t * step) +
                                                          whole),
                          acc[i * T + t]);
    }
    if (T == GROUP) {
        v16 a[GROUP * GROUP];
#pragma GCC unroll 16
        for (uint32_t i = 0; i < GROUP * GROUP; i++) a[i] = acc[SL_MIN(i / 4, Q - 1) * 4 + i % 4];
        const v16 sum = trees(a, false);
        _mm_storeu_ps(score, _mm512_castps512_ps128(sum));
        if (Q > 1) _mm_storeu_ps(score + TOKENS, _mm512_extractf32x4_ps(sum, 1));
        if (Q > 2) _mm_storeu_ps(score + 2 * TOKENS, _mm512_extractf32x4_ps(sum, 2));
        if (Q > 3) _mm_storeu_ps(score + 3 * TOKENS, _mm512_extractf32x4_ps(sum, 3));
    } else {
        for (uint32_t i = 0; i < Q; i++) score[i * TOKENS] = v_tree(acc[i]);
    }
}

/* Products of Q queries with tokens first .. end - 1. */
SL_INLINE void scores_of(const sl_attn_page *a, const sl_attn_query *u, uint32_t first,
                         uint32_t end, float *score, hints *h, const sl_kv_type K,
                         const uint32_t Q) {
    const uint32_t dim = a->head_dim;
    const size_t step = sl_kv_row_of(K, a->part, dim);
    const uint8_t *k = (const uint8_t *)a->k;
    uint32_t j = first;
    for (; j + GROUP <= end; j += GROUP)
        products(u, k + j * step, step, dim, h, score + j, K, Q, GROUP);
    for (; j < end; j++) products(u, k + j * step, step, dim, h, score + j, K, Q, 1);
}

/* Sixteen scaled scores, from token j on; -inf for those that the query does not see. */
SL_INLINE v16 scaled(const sl_attn_query *u, const float *s, uint32_t j, float scale) {
    const uint32_t seen = (uint32_t)((2ull << u->last) - (1ull << u->first));
    return _mm512_mask_mul_ps(v_set1(-INFINITY), (__mmask16)(seen >> j), v_load(s + j),
                              v_set1(scale));
}

/* Scaled scores of the tokens that a query sees, -inf for others; returns their greatest, or its
 * maximum so far. */
SL_INLINE float scale_scores(float *s, const sl_attn_query *u, float scale) {
    const v16 x = scaled(u, s, 0, scale), y = scaled(u, s, 16, scale);
    v_store(s, x);
    v_store(s + 16, y);
    return v_top(v_max(y, v_max(x, v_set1(u->max))));
}

/* Elements d .. d + 16 V - 1 of Q queries, of the last sixteen those in `mask`: o * shrink, then
 * o += p[t] * v[t] for n tokens in their order. */
SL_INLINE void add_strip(const sl_attn_query *u, size_t d, const uint8_t *v, size_t step,
                         const float *p, const float *shrink, uint32_t n, hints *h,
                         const sl_kv_type K, const __mmask16 mask, const uint32_t Q,
                         const uint32_t V) {
    v16 acc[16];
#pragma GCC unroll 4
    for (uint32_t i = 0; i < Q; i++)
#pragma GCC unroll 8
        for (uint32_t c = 0; c < V; c++)
            acc[i * V + c] =
                v_mul(_mm512_maskz_loadu_ps(mask, u[i].o + d + 16 * c), v_set1(shrink[i]));
    for (uint32_t t = 0; t < n; t++) {
        v16 row[8];
#pragma GCC unroll 8
        for (uint32_t c = 0; c < V; c++)
            row[c] = K != SL_KV_F32
                         ? row_load(v + t * step, d + 16 * c, K)
                         : _mm512_maskz_loadu_ps(mask, (const float *)(const void *)(v + t * step) +
                                                           d + 16 * c);
        if (h) ask_times(h, K, V / 2);
#pragma GCC unroll 4
        for (uint32_t i = 0; i < Q; i++) {
            const v16 w = v_set1(p[i * TOKENS + t]);
#pragma GCC unroll 8
            for (uint32_t c = 0; c < V; c++) acc[i * V + c] = v_fma(w, row[c], acc[i * V + c]);
        }
    }
#pragma GCC unroll 4
    for (uint32_t i = 0; i < Q; i++)
#pragma GCC unroll 8
        for (uint32_t c = 0; c < V; c++)
            _mm512_mask_storeu_ps(u[i].o + d + 16 * c, mask, acc[i * V + c]);
}

/* All elements of Q queries for tokens first .. end - 1 of the page. */
SL_INLINE void add_rows(const sl_attn_page *a, const sl_attn_query *u, const float *score,
                        const float *shrink, uint32_t first, uint32_t end, hints *h,
                        const sl_kv_type K, const uint32_t Q) {
    const size_t step = sl_kv_row_of(K, a->part, a->head_dim), dim = a->v_dim;
    const uint8_t *v = (const uint8_t *)a->v + first * step;
    const float *p = score + first;
    const uint32_t n = end - first;
    const __mmask16 all = 0xffff;
    size_t d = 0;
    for (; Q <= 2 && d + 128 <= dim; d += 128)
        add_strip(u, d, v, step, p, shrink, n, h, K, all, Q, 8);
    for (; d + 64 <= dim; d += 64) add_strip(u, d, v, step, p, shrink, n, h, K, all, Q, 4);
    for (; d + 32 <= dim; d += 32) add_strip(u, d, v, step, p, shrink, n, h, K, all, Q, 2);
    for (; d + 16 <= dim; d += 16) add_strip(u, d, v, step, p, shrink, n, h, K, all, Q, 1);
    if (d < dim) add_strip(u, d, v, step, p, shrink, n, h, K, some((uint32_t)(dim - d)), Q, 1);
}

#include "kernel/simd/attn_groups.h"

#include "kernel/simd/attn_types.h"

void sl_avx512_attn_page(const sl_attn_page *a) {
    page_by_type(&sl_kernels_avx512, a);
}
