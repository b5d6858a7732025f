/* The same forward pass as model_run.h in plain loops over doubles: no pages, no kernels, no
 * batching. Shares with the engine only the bound weights. */
#ifndef SL_TESTS_MODEL_NAIVE_H
#define SL_TESTS_MODEL_NAIVE_H

#include "model/model_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static inline double *naive_new(size_t n) {
    return calloc(n, sizeof(double));
}

/* Row r of w as doubles. */
static inline void naive_row(const sl_mat *w, uint32_t r, double *out) {
    const sl_exec ex = {sl_kernels_select("ref"), NULL};
    float *wide = malloc(w->k * sizeof *wide);
    sl_widen_row(&ex, w, r, wide);
    for (uint32_t i = 0; i < w->k; i++) out[i] = wide[i];
    free(wide);
}

static inline void naive_mul(const sl_mat *w, const double *x, double *y) {
    double *row = naive_new(w->k);
    for (uint32_t j = 0; j < w->n; j++) {
        naive_row(w, j, row);
        y[j] = 0;
        for (uint32_t i = 0; i < w->k; i++) y[j] += row[i] * x[i];
    }
    free(row);
}

/* y += b */
static inline void naive_bias(const sl_mat *b, double *y) {
    double *row = naive_new(b->k);
    naive_row(b, 0, row);
    for (uint32_t i = 0; i < b->k; i++) y[i] += row[i];
    free(row);
}

static inline void naive_norm(const sl_mat *w, double eps, const double *x, double *y) {
    double *gain = naive_new(w->k), sum = 0;
    naive_row(w, 0, gain);
    for (uint32_t i = 0; i < w->k; i++) sum += x[i] * x[i];
    double inv = 1 / sqrt(sum / w->k + eps);
    for (uint32_t i = 0; i < w->k; i++) y[i] = x[i] * inv * gain[i];
    free(gain);
}

/* A norm of the residual stream. */
static inline void naive_stream_norm(const sl_model *m, const sl_mat *w, const double *x,
                                     double *y) {
    double mean = 0, *mid = naive_new(w->k);
    for (uint32_t i = 0; m->arch->layer_norm && i < w->k; i++) mean += x[i] / w->k;
    for (uint32_t i = 0; i < w->k; i++) mid[i] = x[i] - mean;
    naive_norm(w, m->spec.rms_eps, mid, y);
    free(mid);
}

static inline void naive_softmax(double *p, uint32_t n) {
    double top = p[0], sum = 0;
    for (uint32_t i = 0; i < n; i++) top = fmax(top, p[i]);
    for (uint32_t i = 0; i < n; i++) sum += p[i] = exp(p[i] - top);
    for (uint32_t i = 0; i < n; i++) p[i] /= sum;
}

/* Frequency of pair i, long waves of rope_type "llama3" stretched. */
static inline double naive_frequency(const sl_model_spec *s, uint32_t i) {
    const sl_long_waves *w = &s->long_waves;
    double freq = pow(s->rope_theta, -2.0 * i / s->rope_dim), wave = 2 * acos(-1.0) / freq;
    if (w->factor == 0 || wave < w->original / (double)w->high) return freq;
    if (wave > w->original / (double)w->low) return freq / (double)w->factor;
    double smooth = (w->original / wave - (double)w->low) / (double)(w->high - w->low);
    return (1 - smooth) * freq / (double)w->factor + smooth * freq;
}

/* How much of frequency i YaRN divides (arXiv:2309.00071 sec. 3.2). */
static inline double naive_yarn(const sl_model_spec *s, uint32_t i) {
    const double turns[2] = {s->yarn.beta_fast, s->yarn.beta_slow};
    double edge[2];
    for (int j = 0; j < 2; j++)
        edge[j] = s->rope_dim * log(s->yarn.original / (turns[j] * 2 * M_PI)) /
                  (2 * log((double)s->rope_theta));
    if (!s->yarn.between) edge[0] = floor(edge[0]), edge[1] = ceil(edge[1]);
    double low = fmax(0, edge[0]), high = fmin(s->rope_dim - 1, edge[1]);
    return fmin(1, fmax(0, (i - low) / fmax(high - low, 0.001)));
}

/* Pairs are (i, i + half), or (2i, 2i + 1), which are put in halves. */
static inline void naive_rope(const sl_model_spec *s, double *head, uint32_t pos) {
    uint32_t half = s->rope_dim / 2;
    double pairs[SL_HEAD_DIM_MAX];
    memcpy(pairs, head, s->rope_dim * sizeof *pairs);
    for (uint32_t i = 0; s->rope_pairs && i < half; i++) {
        head[i] = pairs[2 * i];
        head[i + half] = pairs[2 * i + 1];
    }
    for (uint32_t i = 0; i < half; i++) {
        double slow = s->yarn.factor > 0 ? naive_yarn(s, i) : 0;
        double angle = pos * naive_frequency(s, i), a = head[i], b = head[i + half];
        if (slow > 0) angle *= 1 - slow + slow / s->yarn.factor;
        double gain = s->yarn.factor > 0 ? s->yarn.attention : 1;
        head[i] = gain * (a * cos(angle) - b * sin(angle));
        head[i + half] = gain * (b * cos(angle) + a * sin(angle));
    }
}

/* What Llama 4 does to a head instead of a learned norm, and to queries of blocks that see all. */
static inline void naive_unit(const sl_model_spec *s, double *head) {
    double sum = 0;
    for (uint32_t i = 0; i < s->head_dim; i++) sum += head[i] * head[i];
    for (uint32_t i = 0; i < s->head_dim; i++) head[i] /= sqrt(sum / s->head_dim + s->rms_eps);
}

static inline void naive_place(const sl_model_spec *s, uint32_t layer, bool is_q, double *head,
                               uint32_t pos) {
    if (!s->unrotated[layer]) {
        naive_rope(s, head, pos);
        if (s->qk_unit) naive_unit(s, head);
        return;
    }
    double grown = s->query_floor > 0 && is_q
                       ? 1 + s->query_growth * log1p(floor((pos + 1) / s->query_floor))
                       : 1;
    for (uint32_t i = 0; i < s->head_dim; i++) head[i] *= grown;
}

/* sum += scale * W2 (silu(W1 h) * W3 h) */
static inline void naive_ffn(const sl_mat *w1, const sl_mat *w3, const sl_mat *w2, const double *h,
                             double scale, double *sum) {
    double *a = naive_new(w1->n), *b = naive_new(w1->n), *y = naive_new(w2->n);
    naive_mul(w1, h, a);
    naive_mul(w3, h, b);
    for (uint32_t i = 0; i < w1->n; i++) a[i] = a[i] / (1 + exp(-a[i])) * b[i];
    naive_mul(w2, a, y);
    for (uint32_t i = 0; i < w2->n; i++) sum[i] += scale * y[i];
    free(a), free(b), free(y);
}

/* The best of p that is not chosen yet. */
static inline uint32_t naive_best(const double *p, uint32_t n, const uint8_t *chosen) {
    uint32_t best = n;
    for (uint32_t e = 0; e < n; e++)
        if (!chosen[e] && (best == n || p[e] > p[best])) best = e;
    return best;
}

/* p: logits, then scores; rank: what the choice goes by. */
static inline void naive_scores(const sl_model *m, uint32_t layer, double *p, double *rank) {
    const sl_model_spec *s = &m->spec;
    uint32_t n = s->n_experts, size = s->n_groups ? n / s->n_groups : n;
    double best[SL_MAX_GROUPS] = {0};
    uint8_t kept[SL_MAX_GROUPS] = {0};
    if (m->arch->router == SL_ROUTER_SIGMOID_TOPK) {
        memcpy(rank, p, n * sizeof *p);
        for (uint32_t e = 0; e < n; e++) p[e] = 1 / (1 + exp(-p[e]));
        return;
    }
    bool sigmoid = m->arch->router == SL_ROUTER_SIGMOID_GROUPS;
    if (sigmoid) {
        naive_row(&m->block[layer].mat[SL_ROLE_ROUTER_BIAS], 0, rank);
        for (uint32_t e = 0; e < n; e++) rank[e] += p[e] = 1 / (1 + exp(-p[e]));
    } else {
        naive_softmax(p, n);
        memcpy(rank, p, n * sizeof *p);
    }
    if (!s->n_groups) return;
    for (uint32_t g = 0; g < s->n_groups; g++) {
        double first = -1e9, second = sigmoid ? -1e9 : 0;
        for (uint32_t e = g * size; e < (g + 1) * size; e++) {
            if (sigmoid) second = fmax(second, fmin(first, rank[e]));
            first = fmax(first, rank[e]);
        }
        best[g] = first + second;
    }
    for (uint32_t i = 0; i < s->top_groups; i++) kept[naive_best(best, s->n_groups, kept)] = 1;
    for (uint32_t e = 0; e < n; e++)
        if (!kept[e / size]) rank[e] = -INFINITY;
}

/* sum += scale * (W2 m + b2), m_i = (u + 1) g / (1 + exp(-1.702 g)) of clamped, biased g and u. */
static inline void naive_clamped_ffn(const sl_expert_weights *e, double limit, const double *h,
                                     double scale, double *sum) {
    double *a = naive_new(e->up.n), *b = naive_new(e->up.n), *y = naive_new(e->down.n);
    naive_mul(&e->gate, h, a);
    naive_mul(&e->up, h, b);
    naive_bias(&e->gate_bias, a);
    naive_bias(&e->up_bias, b);
    for (uint32_t i = 0; i < e->up.n; i++) {
        double g = fmin(a[i], limit), u = fmax(-limit, fmin(b[i], limit));
        a[i] = (u + 1) * g / (1 + exp(-(double)1.702f * g));
    }
    naive_mul(&e->down, a, y);
    naive_bias(&e->down_bias, y);
    for (uint32_t i = 0; i < e->down.n; i++) sum[i] += scale * y[i];
    free(a), free(b), free(y);
}

/* h: what router and experts read, beside: what the shared expert reads. */
static inline void naive_moe(const sl_model *m, uint32_t layer, const double *h,
                             const double *beside, double *x) {
    const sl_model_spec *s = &m->spec;
    double *p = naive_new(s->n_experts), *rank = naive_new(s->n_experts), share = 0;
    double *in = naive_new(s->d_model);
    double scale = s->route_scale > 0 ? s->route_scale : 1;
    uint8_t *chosen = calloc(s->n_experts, 1);
    naive_mul(&m->block[layer].mat[SL_ROLE_ROUTER], h, p);
    if (m->block[layer].mat[SL_ROLE_LOGIT_BIAS].data)
        naive_bias(&m->block[layer].mat[SL_ROLE_LOGIT_BIAS], p);
    naive_scores(m, layer, p, rank);
    for (uint32_t j = 0; j < s->top_k; j++) {
        uint32_t best = naive_best(rank, s->n_experts, chosen);
        chosen[best] = 1;
        share += p[best];
    }
    for (uint32_t e = 0; e < s->n_experts; e++) {
        const sl_expert_weights *w = &m->expert[(size_t)s->moe_index[layer] * s->n_experts + e];
        double gate = scale * (s->norm_topk ? p[e] / share : p[e]);
        for (uint32_t i = 0; i < s->d_model; i++) in[i] = s->gate_input ? gate * h[i] : h[i];
        if (chosen[e] && s->glu_limit > 0)
            naive_clamped_ffn(w, (double)s->glu_limit, in, gate, x);
        else if (chosen[e])
            naive_ffn(&w->gate, &w->up, &w->down, in, s->gate_input ? 1 : gate, x);
    }
    const sl_mat *mat = m->block[layer].mat;
    if (s->d_ff_shared) {
        double g = INFINITY;
        if (mat[SL_ROLE_SHARED_SCALE].data) naive_mul(&mat[SL_ROLE_SHARED_SCALE], h, &g);
        naive_ffn(&mat[SL_ROLE_SHARED_GATE], &mat[SL_ROLE_SHARED_UP], &mat[SL_ROLE_SHARED_DOWN],
                  beside, 1 / (1 + exp(-g)), x);
    }
    free(p), free(rank), free(chosen), free(in);
}

static inline void naive_clip(double *x, uint32_t n, double limit) {
    for (uint32_t i = 0; i < n; i++) x[i] = fmin(limit, fmax(-limit, x[i]));
}

/* Latent attention as it was trained: keys and values of every head, expanded from the latent.
 * k [position][n_heads][nope_dim + rope_dim], v [position][n_heads][v_dim] receive row t. */
static inline void naive_latents(const sl_model *m, uint32_t layer, uint32_t t, const double *h,
                                 double *k, double *v, double *o) {
    const sl_model_spec *s = &m->spec;
    const sl_mat *w = m->block[layer].mat;
    uint32_t nope = s->nope_dim, dim = nope + s->rope_dim, both = nope + s->v_dim, H = s->n_heads;
    double *q = naive_new(H * dim), *low = naive_new(s->q_lora + 1), *p = naive_new(t + 1);
    double *c = naive_new(s->kv_lora + s->rope_dim), *kv = naive_new(H * both);
    if (s->q_lora) {
        naive_mul(&w[SL_ROLE_Q_A], h, low);
        naive_norm(&w[SL_ROLE_Q_A_NORM], 1e-6, low, low);
        naive_mul(&w[SL_ROLE_Q_B], low, q);
    } else {
        naive_mul(&w[SL_ROLE_Q], h, q);
    }
    naive_mul(&w[SL_ROLE_KV_A], h, c);
    naive_norm(&w[SL_ROLE_KV_A_NORM], 1e-6, c, c);
    naive_rope(s, c + s->kv_lora, t);
    naive_mul(&w[SL_ROLE_KV_B], c, kv);
    for (uint32_t i = 0; i < H; i++) {
        double *key = k + ((size_t)t * H + i) * dim;
        memcpy(key, kv + i * both, nope * sizeof *key);
        memcpy(key + nope, c + s->kv_lora, s->rope_dim * sizeof *key);
        memcpy(v + ((size_t)t * H + i) * s->v_dim, kv + i * both + nope, s->v_dim * sizeof *v);
        naive_rope(s, q + i * dim + nope, t);
        for (uint32_t j = 0; j <= t; j++) {
            p[j] = 0;
            for (uint32_t d = 0; d < dim; d++)
                p[j] += q[i * dim + d] * k[((size_t)j * H + i) * dim + d];
            p[j] *= (s->yarn.scores > 0 ? s->yarn.scores : 1) / sqrt(dim);
        }
        naive_softmax(p, t + 1);
        for (uint32_t j = 0; j <= t; j++)
            for (uint32_t d = 0; d < s->v_dim; d++)
                o[i * s->v_dim + d] += p[j] * v[((size_t)j * H + i) * s->v_dim + d];
    }
    free(q), free(low), free(p), free(c), free(kv);
}

static inline double naive_softplus(double x) {
    return x > 30 ? x : log1p(exp(x));
}

/* Linear attention of row t, as the architecture's paper has it: no versions, and the products of
 * all rows so far in `in` [positions][in, small]; state [v_heads][k_dim][v_dim]. */
static inline void naive_delta(const sl_model *m, uint32_t layer, uint32_t t, double *x, double *in,
                               double *state) {
    const sl_model_spec *s = &m->spec;
    const sl_mat *w = m->block[layer].mat;
    const uint32_t K = s->delta_k_heads, V = s->delta_v_heads, dk = s->delta_k_dim, r = V / K;
    const uint32_t dv = s->delta_v_dim, wide = 2 * dk + 2 * r * dv, out = V * dv;
    const size_t row = (size_t)K * wide + 2 * V;
    double *h = naive_new(s->d_model), *o = naive_new(out), *taps = naive_new(s->delta_taps);
    double *c = naive_new(2 * dk + r * dv), *own = naive_new(dv + V), *y = naive_new(s->d_model);
    naive_stream_norm(m, &w[SL_ROLE_ATTN_NORM], x, h);
    naive_mul(&w[SL_ROLE_DELTA_IN], h, in + t * row);
    naive_mul(&w[SL_ROLE_DELTA_SMALL], h, in + t * row + (size_t)K * wide);
    for (uint32_t g = 0; g < K; g++) {
        const uint32_t n[] = {dk, dk, r * dv},
                       at[] = {g * dk, (K + g) * dk, 2 * K * dk + g * r * dv};
        uint32_t i = 0;
        for (uint32_t part = 0; part < 3; part++)
            for (uint32_t j = 0; j < n[part]; j++, i++) {
                double a = 0;
                naive_row(&w[SL_ROLE_DELTA_CONV], at[part] + j, taps);
                for (uint32_t p = 0; p < s->delta_taps; p++) {
                    const int64_t from = (int64_t)t - (s->delta_taps - 1) + p;
                    if (from >= 0) a += taps[p] * in[(size_t)from * row + (size_t)g * wide + i];
                }
                c[i] = a / (1 + exp(-a));
            }
        for (uint32_t part = 0; part < 2; part++) {
            double sum = 1e-6;
            for (uint32_t j = 0; j < dk; j++) sum += c[part * dk + j] * c[part * dk + j];
            for (uint32_t j = 0; j < dk; j++) c[part * dk + j] /= sqrt(sum * (part ? 1 : dk));
        }
        const double *small = in + t * row + (size_t)K * wide + (size_t)2 * g * r;
        for (uint32_t v = 0; v < r; v++) {
            const uint32_t head = g * r + v;
            double *S = state + (size_t)head * dk * dv, *to = o + (size_t)head * dv, rate, sum = 0;
            const double *z = in + t * row + (size_t)g * wide + 2 * dk + (size_t)(r + v) * dv;
            naive_row(&w[SL_ROLE_DELTA_RATE], 0, own);
            rate = exp(own[head]);
            naive_row(&w[SL_ROLE_DELTA_SHIFT], 0, own);
            const double decay = exp(-rate * naive_softplus(small[r + v] + own[head]));
            for (uint32_t j = 0; j < dv; j++) {
                double held = 0;
                for (uint32_t i2 = 0; i2 < dk; i2++) {
                    S[i2 * dv + j] *= decay;
                    held += S[i2 * dv + j] * c[dk + i2];
                }
                const double d = (c[2 * dk + v * dv + j] - held) / (1 + exp(-small[v]));
                for (uint32_t i2 = 0; i2 < dk; i2++) {
                    S[i2 * dv + j] += c[dk + i2] * d;
                    to[j] += S[i2 * dv + j] * c[i2];
                }
                sum += to[j] * to[j];
            }
            naive_row(&w[SL_ROLE_DELTA_NORM], 0, own);
            for (uint32_t j = 0; j < dv; j++)
                to[j] *= own[j] / sqrt(sum / dv + s->rms_eps) * z[j] / (1 + exp(-z[j]));
        }
    }
    naive_mul(&w[SL_ROLE_DELTA_OUT], o, y);
    for (uint32_t i = 0; i < s->d_model; i++) x[i] += y[i];
    free(h), free(o), free(taps), free(c), free(own), free(y);
}

/* x += attention; k and v [layer's positions so far][n_kv_heads][head_dim] receive row t. */
static inline void naive_attention(const sl_model *m, uint32_t layer, uint32_t t, double *x,
                                   double *k, double *v) {
    const sl_model_spec *s = &m->spec;
    const sl_mat *w = m->block[layer].mat;
    uint32_t dim = s->head_dim, kv = s->n_kv_heads * dim, group = s->n_heads / s->n_kv_heads;
    double *h = naive_new(s->d_model), *q = naive_new(s->n_heads * dim);
    double *o = naive_new(s->n_heads * SL_MAX(dim, s->v_dim)), *y = naive_new(s->d_model),
           *p = naive_new(t + 2), *sink = naive_new(s->n_heads),
           *gate = naive_new(s->n_heads * dim);
    naive_stream_norm(m, &w[SL_ROLE_ATTN_NORM], x, h);
    if (s->kv_lora) {
        naive_latents(m, layer, t, h, k, v, o);
        goto out;
    }
    if (s->gated) { /* each head's gate is behind its queries */
        double *both = naive_new(2 * s->n_heads * dim);
        naive_mul(&w[SL_ROLE_Q], h, both);
        for (uint32_t i = 0; i < s->n_heads * dim; i++) {
            q[i] = both[i / dim * 2 * dim + i % dim];
            gate[i] = both[i / dim * 2 * dim + dim + i % dim];
        }
        free(both);
    } else {
        naive_mul(&w[SL_ROLE_Q], h, q);
    }
    naive_mul(&w[SL_ROLE_K], h, k + (size_t)t * kv);
    naive_mul(&w[SL_ROLE_V], h, v + (size_t)t * kv);
    if (s->qkv_bias) {
        naive_bias(&w[SL_ROLE_Q_BIAS], q);
        naive_bias(&w[SL_ROLE_K_BIAS], k + (size_t)t * kv);
        naive_bias(&w[SL_ROLE_V_BIAS], v + (size_t)t * kv);
    }
    bool wide = s->qk_norm && w[SL_ROLE_Q_NORM].k != dim;
    if (wide) {
        naive_norm(&w[SL_ROLE_Q_NORM], s->rms_eps, q, q);
        naive_norm(&w[SL_ROLE_K_NORM], s->rms_eps, k + (size_t)t * kv, k + (size_t)t * kv);
    }
    if (s->clip_qkv > 0) {
        naive_clip(q, s->n_heads * dim, s->clip_qkv);
        naive_clip(k + (size_t)t * kv, kv, s->clip_qkv);
        naive_clip(v + (size_t)t * kv, kv, s->clip_qkv);
    }
    for (uint32_t i = 0; i < s->n_heads + s->n_kv_heads; i++) {
        bool is_q = i < s->n_heads;
        double *head = is_q ? q + i * dim : k + (size_t)t * kv + (i - s->n_heads) * dim;
        if (s->qk_norm && !wide)
            naive_norm(&w[is_q ? SL_ROLE_Q_NORM : SL_ROLE_K_NORM], s->rms_eps, head, head);
        naive_place(s, layer, is_q, head, t);
    }
    uint32_t first = sl_sight_first(s, layer, t), sinks = w[SL_ROLE_SINKS].data ? 1 : 0;
    if (sinks) naive_row(&w[SL_ROLE_SINKS], 0, sink);
    for (uint32_t i = 0; i < s->n_heads; i++) {
        size_t at = (size_t)(i / group) * dim;
        for (uint32_t j = first; j <= t; j++) {
            p[j - first] = 0;
            for (uint32_t c = 0; c < dim; c++)
                p[j - first] += q[i * dim + c] * k[j * kv + at + c] / sqrt(dim);
        }
        p[t - first + 1] = sink[i];
        naive_softmax(p, t - first + 1 + sinks);
        for (uint32_t j = first; j <= t; j++)
            for (uint32_t c = 0; c < dim; c++) o[i * dim + c] += p[j - first] * v[j * kv + at + c];
    }
    for (uint32_t i = 0; s->gated && i < s->n_heads * dim; i++) o[i] /= 1 + exp(-gate[i]);
out:
    naive_mul(&w[SL_ROLE_O], o, y);
    if (w[SL_ROLE_O_BIAS].data) naive_bias(&w[SL_ROLE_O_BIAS], y);
    for (uint32_t i = 0; i < s->d_model; i++) x[i] += y[i];
    free(h), free(q), free(o), free(y), free(p), free(sink);
    free(gate);
}

/* logits [n][vocab] */
static inline void naive_forward(const sl_model *m, const uint32_t *ids, uint32_t n,
                                 double *logits) {
    const sl_model_spec *s = &m->spec;
    size_t kv = (size_t)n * (s->kv_lora ? s->n_heads : s->n_kv_heads) *
                SL_MAX(sl_query_dim(s), SL_MAX(s->head_dim, s->v_dim));
    double *k = naive_new(kv * s->n_layers), *v = naive_new(kv * s->n_layers);
    double *x = naive_new(s->d_model), *h = naive_new(s->d_model), *b = naive_new(s->d_model);
    const size_t wide = sl_delta_channels(s) + sl_delta_out(s) + 2 * (size_t)s->delta_v_heads;
    const size_t held = (size_t)sl_delta_out(s) * s->delta_k_dim;
    double *in = naive_new((n * wide + 1) * s->n_layers),
           *states = naive_new((held + 1) * s->n_layers);
    for (uint32_t t = 0; t < n; t++) {
        naive_row(&m->whole.mat[SL_ROLE_EMBED], ids[t], x);
        for (uint32_t l = 0; l < s->n_layers; l++) {
            const sl_mat *w = m->block[l].mat;
            bool branch = s->ffn[l] == SL_FFN_MOE && s->dense_branch;
            if (branch) naive_stream_norm(m, &w[SL_ROLE_FFN_NORM], x, h);
            if (s->linear[l])
                naive_delta(m, l, t, x, in + l * n * wide, states + l * held);
            else
                naive_attention(m, l, t, x, k + l * kv, v + l * kv);
            naive_stream_norm(m, &w[branch ? SL_ROLE_SHARED_NORM : SL_ROLE_FFN_NORM], x,
                              branch ? b : h);
            if (s->ffn[l] == SL_FFN_MOE)
                naive_moe(m, l, h, branch ? b : h, x);
            else
                naive_ffn(&w[SL_ROLE_DENSE_GATE], &w[SL_ROLE_DENSE_UP], &w[SL_ROLE_DENSE_DOWN], h,
                          1, x);
        }
        naive_stream_norm(m, &m->whole.mat[SL_ROLE_FINAL_NORM], x, h);
        naive_mul(&m->whole.mat[SL_ROLE_LM_HEAD], h, logits + (size_t)t * s->vocab);
    }
    free(k), free(v), free(x), free(h), free(b), free(in), free(states);
}

/* max |got - naive| / max |naive| over the logits of all n positions. */
static inline double naive_deviation(const sl_model *m, const uint32_t *ids, uint32_t n,
                                     const float *got) {
    size_t all = (size_t)n * sl_model_spec_of(m)->vocab;
    double *want = naive_new(all), d = 0, top = 0;
    naive_forward(m, ids, n, want);
    for (size_t i = 0; i < all; i++) {
        d = fmax(d, fabs(got[i] - want[i]));
        top = fmax(top, fabs(want[i]));
    }
    free(want);
    return d / top;
}

#endif
