/* Scores of one page to probabilities, values added by them, and softmax, in the type v16; after
 * simd/vec.h. */
#include "kernel/kernel_int.h"

#define SIMD_TOKENS SL_KV_PAGE_TOKENS
_Static_assert(SIMD_TOKENS == 32, "a page's scores are two values of 16 lanes");

/* o[d] = o[d] * shrink, then one chain over tokens per element; V values of 16 elements. */
SL_INLINE void simd_accumulate(float *o, const float *v, size_t stride, const float *p,
                               uint32_t n_tok, float shrink, const uint32_t V) {
    v16 acc[4];
#pragma GCC unroll 4
    for (uint32_t i = 0; i < V; i++) acc[i] = v_mul(v_load(o + i * 16), v_set1(shrink));
    for (uint32_t j = 0; j < n_tok; j++) {
        const v16 pj = v_set1(p[j]);
#pragma GCC unroll 4
        for (uint32_t i = 0; i < V; i++)
            acc[i] = v_fma(pj, v_load(v + j * stride + i * 16), acc[i]);
    }
#pragma GCC unroll 4
    for (uint32_t i = 0; i < V; i++) v_store(o + i * 16, acc[i]);
}

static inline void simd_add_values(const sl_attn_page *a, const sl_attn_query *u, const float *p,
                                   float shrink) {
    const float *v = a->v + (size_t)u->first * a->head_dim;
    uint32_t n_tok = u->last - u->first + 1, d = 0, dim = a->v_dim, step = a->head_dim;
    for (; d + 64 <= dim; d += 64) simd_accumulate(u->o + d, v + d, step, p, n_tok, shrink, 4);
    for (; d + 16 <= dim; d += 16) simd_accumulate(u->o + d, v + d, step, p, n_tok, shrink, 1);
    for (; d < dim; d++) {
        float acc = u->o[d] * shrink;
        for (uint32_t j = 0; j < n_tok; j++) acc = fmaf(p[j], v[(size_t)j * step + d], acc);
        u->o[d] = acc;
    }
}

/* Scores of one query, in place to probabilities; tokens it does not see hold -inf and yield +0. */
static inline float simd_probabilities(sl_attn_query *u, float *score) {
    v16 a = v_load(score), b = v_load(score + 16);
    float top = v_top(v_max(b, v_max(a, v_set1(u->max))));
    float shrink = sl_exp_scalar(u->max - top);
    a = simd_exp(v_sub(a, v_set1(top)));
    b = simd_exp(v_sub(b, v_set1(top)));
    v_store(score, a);
    v_store(score + 16, b);
    u->sum = fmaf(u->sum, shrink, v_tree(v_add(a, b)));
    u->max = top;
    return shrink;
}

static inline void simd_softmax(const float *x, uint32_t n, float *p) {
    _Alignas(64) float lane[SL_DOT_LANES];
    uint32_t i = 0, whole = n / 16 * 16;
    v16 most = v_set1(-INFINITY), sum = v_set1(0);
    for (; i < whole; i += 16) most = v_max(v_load(x + i), most);
    float top = v_top(most);
    for (; i < n; i++) top = x[i] > top ? x[i] : top;
    for (i = 0; i < whole; i += 16) {
        v16 e = simd_exp(v_sub(v_load(x + i), v_set1(top)));
        v_store(p + i, e);
        sum = v_add(sum, e);
    }
    v_store(lane, sum);
    for (; i < n; i++) {
        p[i] = sl_exp_scalar(x[i] - top);
        lane[i % SL_DOT_LANES] += p[i];
    }
    float all = sl_tree16(lane);
    for (i = 0; i < n; i++) p[i] = p[i] / all;
}
