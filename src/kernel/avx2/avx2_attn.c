/* Attention over one page. Products of four queries with three keys, and sums over values for four
 * queries, stay in registers. */
#include "kernel/avx2/avx2.h"
#include "kernel/simd/avx2.h"

#include "kernel/simd/vec.h"

#include "kernel/simd/scores.h"

#include "kernel/simd/attn_hints.h"

#define STRIDE 40u /* floats between two queries' scores: a tile writes up to three too many */

/* [a0 + a4, a1 + a5, .. | b0 + b4, ..] */
SL_INLINE __m256 fold(__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_blend_ps(a, b, 0xf0), _mm256_permute2f128_ps(a, b, 0x21));
}

/* The pairs of v_tree, for four outputs of two queries: [a0 a1 a2 a3 | b0 b1 b2 b3]. */
SL_INLINE __m256 trees(const __m256 *a, const __m256 *b) {
    __m256 f[4], g[2];
#pragma GCC unroll 4
    for (int t = 0; t < 4; t++) f[t] = fold(a[t], b[t]);
#pragma GCC unroll 2
    for (int t = 0; t < 2; t++)
        g[t] = _mm256_add_ps(_mm256_blend_ps(f[2 * t], f[2 * t + 1], 0xcc),
                             _mm256_shuffle_ps(f[2 * t], f[2 * t + 1], 0x4e));
    return _mm256_add_ps(_mm256_shuffle_ps(g[0], g[1], 0x88), _mm256_shuffle_ps(g[0], g[1], 0xdd));
}

/* Eight codes of E4M3: times 2^-8 they are f16 but for NaN, exactly. */
SL_INLINE __m256 load_e4m3(const uint8_t *code, float scale) {
    const __m128i c = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)code));
    const __m128i size = _mm_and_si128(c, _mm_set1_epi16(0x7f));
    const __m128i sign = _mm_slli_epi16(_mm_srli_epi16(c, 7), 15);
    const __m128i none = _mm_cmpeq_epi16(size, _mm_set1_epi16(0x7f));
    /* 0x7e00: f16's NaN takes the place of 0x7f, and stays one through the products. */
    const __m128i bits = _mm_blendv_epi8(_mm_slli_epi16(size, 7), _mm_set1_epi16(0x7e00), none);
    const __m256 v = _mm256_cvtph_ps(_mm_or_si128(sign, bits));
    return _mm256_mul_ps(_mm256_mul_ps(v, _mm256_set1_ps(256)), _mm256_set1_ps(scale));
}

/* Values d to d + 7 of a row, widened in a register. */
SL_INLINE __m256 row_load(const uint8_t *row, size_t d, const sl_kv_type K) {
    if (K == SL_KV_F16)
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(row + 2 * d)));
    if (K == SL_KV_BF16) {
        const __m128i h = _mm_loadu_si128((const __m128i *)(const void *)(row + 2 * d));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
    }
    if (K == SL_KV_Q8_0) {
        const uint8_t *b = row + d / SL_KV_Q8_BLOCK * SL_KV_Q8_BYTES;
        const uint8_t *code = b + 2 + d % SL_KV_Q8_BLOCK;
        const __m128i c = _mm_loadl_epi64((const __m128i *)(const void *)code);
        uint16_t h;
        memcpy(&h, b, sizeof h);
        return _mm256_mul_ps(_mm256_set1_ps(_cvtsh_ss(h)),
                             _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(c)));
    }
    if (K == SL_KV_FP8) {
        float scale;
        memcpy(&scale, row, sizeof scale);
        return load_e4m3(row + SL_KV_FP8_HEAD + d, scale);
    }
    return _mm256_loadu_ps((const float *)(const void *)row + d);
}

SL_INLINE __m256 some_of(const float *p, uint32_t n) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_maskload_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane));
}

/* Eight of the sixteen lanes of Q queries with T keys, from element `at` (0 or 8) on: query i and
 * key t in acc[i * T + t]. How often it asks makes up a page with how often add_strip does. */
SL_INLINE void half_products(const float *const *q, const uint8_t *k, size_t step, uint32_t dim,
                             uint32_t at, hints *h, __m256 *acc, const sl_kv_type K,
                             const uint32_t Q, const uint32_t T) {
    const uint32_t whole = dim / 16 * 16, rest = dim - whole;
#pragma GCC unroll 12
    for (uint32_t i = 0; i < Q * T; i++) acc[i] = _mm256_setzero_ps();
    for (uint32_t d = at; d < whole; d += 16) {
        __m256 row[4];
#pragma GCC unroll 4
        for (uint32_t t = 0; t < T; t++) row[t] = row_load(k + t * step, d, K);
        if (h && (at == 0 || T == 4 || d & 16)) ask_times(h, K, 1);
#pragma GCC unroll 4
        for (uint32_t i = 0; i < Q; i++) {
            const __m256 x = _mm256_loadu_ps(q[i] + d);
#pragma GCC unroll 4
            for (uint32_t t = 0; t < T; t++)
                acc[i * T + t] = _mm256_fmadd_ps(x, row[t], acc[i * T + t]);
        }
    }
    if (rest) {
        const uint32_t d = whole + at, n = rest > at ? SL_MIN(rest - at, 8) : 0;
#pragma GCC unroll 4
        for (uint32_t i = 0; i < Q; i++)
#pragma GCC unroll 4
            for (uint32_t t = 0; t < T; t++)
                acc[i * T + t] = _mm256_fmadd_ps(
                    some_of(q[i] + d, n),
                    some_of((const float *)(const void *)(k + t * step) + d, n), acc[i * T + t]);
    }
}

/* Products of Q queries with T keys to score[i * STRIDE + t]; of a query four floats are written.
 */
SL_INLINE void products(const float *const *q, const uint8_t *k, size_t step, uint32_t dim,
                        hints *h, float *score, const sl_kv_type K, const uint32_t Q,
                        const uint32_t T) {
    __m256 low[12], e[12];
    half_products(q, k, step, dim, 0, h, e, K, Q, T);
#pragma GCC unroll 12
    for (uint32_t i = 0; i < Q * T; i++) low[i] = e[i];
    __asm__("" : "+m"(low)); /* out of registers: the other half needs them all */
    half_products(q, k, step, dim, 8, h, e, K, Q, T);
#pragma GCC unroll 12
    for (uint32_t i = 0; i < Q * T; i++) e[i] = _mm256_add_ps(low[i], e[i]);
    for (uint32_t i = 0; i < (Q + 1) / 2; i++) {
        __m256 a[4], b[4];
        const uint32_t far = Q > 1 ? i + Q / 2 : i;
#pragma GCC unroll 4
        for (uint32_t t = 0; t < 4; t++) {
            a[t] = e[i * T + (t < T ? t : T - 1)];
            b[t] = e[far * T + (t < T ? t : T - 1)];
        }
        const __m256 two = trees(a, b);
        _mm_storeu_ps(score + i * STRIDE, _mm256_castps256_ps128(two));
        if (Q > 1) _mm_storeu_ps(score + far * STRIDE, _mm256_extractf128_ps(two, 1));
    }
}

/* Products of Q queries with tokens first .. end - 1, mostly T keys at once. */
SL_INLINE void scores_of(const sl_attn_page *a, const sl_attn_query *u, uint32_t first,
                         uint32_t end, float *score, hints *h, const sl_kv_type K,
                         const uint32_t Q) {
    const uint32_t T = Q == GROUP ? 3 : 4;
    const uint32_t dim = a->head_dim;
    const size_t step = sl_kv_row_of(K, a->part, dim);
    const uint8_t *k = (const uint8_t *)a->k;
    const float *q[GROUP];
    uint32_t j = first;
    for (uint32_t i = 0; i < Q; i++) q[i] = u[i].q;
    k += j * step;
    for (; j + T <= end; j += T, k += T * step) products(q, k, step, dim, h, score + j, K, Q, T);
    for (; j + 2 <= end; j += 2, k += 2 * step) products(q, k, step, dim, h, score + j, K, Q, 2);
    for (; j < end; j++, k += step) products(q, k, step, dim, h, score + j, K, Q, 1);
}

/* Scaled scores of the tokens that a query sees, -inf for others; returns their greatest, or `top`.
 */
static float scale_scores(float *s, const sl_attn_query *u, float scale) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i first = _mm256_set1_epi32((int)u->first), last = _mm256_set1_epi32((int)u->last);
    __m256 most = _mm256_set1_ps(u->max);
#pragma GCC unroll 4
    for (int j = 0; j < (int)TOKENS; j += 8) {
        const __m256i at = _mm256_add_epi32(lane, _mm256_set1_epi32(j));
        const __m256i hidden =
            _mm256_or_si256(_mm256_cmpgt_epi32(first, at), _mm256_cmpgt_epi32(at, last));
        __m256 x = _mm256_mul_ps(_mm256_load_ps(s + j), _mm256_set1_ps(scale));
        x = _mm256_blendv_ps(x, _mm256_set1_ps(-INFINITY), _mm256_castsi256_ps(hidden));
        most = _mm256_max_ps(x, most);
        _mm256_store_ps(s + j, x);
    }
    return v_top((v16){{most, most}});
}

/* Elements d .. d + 8 V - 1 of Q queries: o * shrink, then o += p[t] * v[t] for n tokens in their
 * order. */
SL_INLINE void add_strip(const sl_attn_query *u, size_t d, const uint8_t *v, size_t step,
                         const float *p, const float *shrink, uint32_t n, hints *h,
                         const sl_kv_type K, const uint32_t Q, const uint32_t V) {
    __m256 acc[12];
#pragma GCC unroll 4
    for (uint32_t i = 0; i < Q; i++)
#pragma GCC unroll 4
        for (uint32_t c = 0; c < V; c++)
            acc[i * V + c] =
                _mm256_mul_ps(_mm256_loadu_ps(u[i].o + d + 8 * c), _mm256_broadcast_ss(shrink + i));
    for (uint32_t t = 0; t < n; t++, v += step) {
        __m256 row[4];
#pragma GCC unroll 4
        for (uint32_t c = 0; c < V; c++) row[c] = row_load(v, d + 8 * c, K);
        if (h && (V == 4 || t % 2 || t % 8 == 0)) ask_times(h, K, 1);
#pragma GCC unroll 4
        for (uint32_t i = 0; i < Q; i++) {
            const __m256 w = _mm256_broadcast_ss(p + i * STRIDE + t);
#pragma GCC unroll 4
            for (uint32_t c = 0; c < V; c++)
                acc[i * V + c] = _mm256_fmadd_ps(w, row[c], acc[i * V + c]);
        }
    }
#pragma GCC unroll 4
    for (uint32_t i = 0; i < Q; i++)
#pragma GCC unroll 4
        for (uint32_t c = 0; c < V; c++) _mm256_storeu_ps(u[i].o + d + 8 * c, acc[i * V + c]);
}

/* All elements of Q queries for tokens first .. end - 1 of the page. */
SL_INLINE void add_rows(const sl_attn_page *a, const sl_attn_query *u, const float *score,
                        const float *shrink, uint32_t first, uint32_t end, hints *h,
                        const sl_kv_type K, const uint32_t Q) {
    const size_t step = sl_kv_row_of(K, a->part, a->head_dim), dim = a->v_dim;
    const uint8_t *v = (const uint8_t *)a->v + first * step;
    const float *p = score + first;
    const uint32_t n = end - first;
    size_t d = 0;
    for (; Q < GROUP && d + 32 <= dim; d += 32) add_strip(u, d, v, step, p, shrink, n, h, K, Q, 4);
    for (; d + 40 <= dim || d + 24 == dim; d += 24)
        add_strip(u, d, v, step, p, shrink, n, h, K, Q, 3);
    for (; d + 16 <= dim; d += 16) add_strip(u, d, v, step, p, shrink, n, h, K, Q, 2);
    for (; d + 8 <= dim; d += 8) add_strip(u, d, v, step, p, shrink, n, h, K, Q, 1);
    for (; K == SL_KV_F32 && d < dim; d++)
        for (uint32_t i = 0; i < Q; i++) {
            float acc = u[i].o[d] * shrink[i];
            for (uint32_t t = 0; t < n; t++)
                acc =
                    fmaf(p[i * STRIDE + t], ((const float *)(const void *)(v + t * step))[d], acc);
            u[i].o[d] = acc;
        }
}

#include "kernel/simd/attn_groups.h"

#include "kernel/simd/attn_types.h"

void sl_avx2_attn_page(const sl_attn_page *a) {
    page_by_type(&sl_kernels_avx2, a);
}

void sl_avx2_softmax(const float *x, uint32_t n, float *p) {
    simd_softmax(x, n, p);
}
