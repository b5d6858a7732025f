#include "kernel/ref/ref.h"
#include "kernel/scalar.h"

static float dot_f32(const float *x, const float *w, uint32_t k) {
    float s[SL_DOT_LANES] = {0};
    for (uint32_t i = 0; i < k; i += SL_DOT_LANES)
        for (uint32_t j = 0; j < SL_DOT_LANES; j++) {
            bool in = i + j < k;
            s[j] = fmaf(in ? x[i + j] : 0.0f, in ? w[i + j] : 0.0f, s[j]);
        }
    return sl_tree16(s);
}

static void page_of_head(const sl_attn_page *a, uint32_t h) {
    const float *q = a->q + (size_t)h * a->head_dim;
    float *o = a->o + (size_t)h * a->head_dim;
    float p[SL_KV_PAGE_TOKENS], lane[SL_DOT_LANES] = {0};
    float top = a->max[h];
    for (uint32_t j = a->first; j <= a->last; j++) {
        p[j] = dot_f32(q, a->k + (size_t)j * a->head_dim, a->head_dim) * a->scale;
        top = p[j] > top ? p[j] : top;
    }
    float shrink = sl_exp_scalar(a->max[h] - top);
    for (uint32_t j = a->first; j <= a->last; j++) {
        p[j] = sl_exp_scalar(p[j] - top);
        lane[j % SL_DOT_LANES] += p[j];
    }
    a->sum[h] = fmaf(a->sum[h], shrink, sl_tree16(lane));
    a->max[h] = top;
    for (uint32_t d = 0; d < a->head_dim; d++) {
        float v = o[d] * shrink;
        for (uint32_t j = a->first; j <= a->last; j++)
            v = fmaf(p[j], a->v[(size_t)j * a->head_dim + d], v);
        o[d] = v;
    }
}

void sl_ref_attn_page(const sl_attn_page *a) {
    for (uint32_t h = 0; h < a->n_heads; h++) page_of_head(a, h);
}

void sl_ref_softmax(const float *x, uint32_t n, float *p) {
    float lane[SL_DOT_LANES] = {0};
    float top = -INFINITY;
    for (uint32_t i = 0; i < n; i++) top = x[i] > top ? x[i] : top;
    for (uint32_t i = 0; i < n; i++) {
        p[i] = sl_exp_scalar(x[i] - top);
        lane[i % SL_DOT_LANES] += p[i];
    }
    float sum = sl_tree16(lane);
    for (uint32_t i = 0; i < n; i++) p[i] = p[i] / sum;
}
