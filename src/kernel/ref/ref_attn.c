/* The definition of attention over a page, and of softmax. */
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

static void page_of_query(const sl_attn_page *a, sl_attn_query *u) {
    float p[SL_KV_PAGE_TOKENS], lane[SL_DOT_LANES] = {0};
    float top = u->max;
    for (uint32_t j = u->first; j <= u->last; j++) {
        p[j] = dot_f32(u->q, a->k + (size_t)j * a->head_dim, a->head_dim) * a->scale;
        top = p[j] > top ? p[j] : top;
    }
    float shrink = sl_exp_scalar(u->max - top);
    for (uint32_t j = u->first; j <= u->last; j++) {
        p[j] = sl_exp_scalar(p[j] - top);
        lane[j % SL_DOT_LANES] += p[j];
    }
    u->sum = fmaf(u->sum, shrink, sl_tree16(lane));
    u->max = top;
    for (uint32_t d = 0; d < a->v_dim; d++) {
        float v = u->o[d] * shrink;
        for (uint32_t j = u->first; j <= u->last; j++)
            v = fmaf(p[j], a->v[(size_t)j * a->head_dim + d], v);
        u->o[d] = v;
    }
}

void sl_ref_attn_page(const sl_attn_page *a) {
    if (a->type != SL_KV_F32) {
        sl_attn_page_widened(&sl_kernels_ref, a);
        return;
    }
    for (uint32_t i = 0; i < a->n; i++)
        if (a->query[i].first <= a->query[i].last) page_of_query(a, &a->query[i]);
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
