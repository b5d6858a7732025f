/* Parameters, bytes and operations of a model's stages, counted. */
#include "plan/account.h"

#include "spec/delta.h"

#include <stddef.h>

/* One matrix of a stage: reads `in` values a row and writes `out`; `tp_in`, `tp_out`: that side is
 * split over the devices. */
typedef struct sl_product {
    double in, out;
    bool tp_in, tp_out;
    double of; /* blocks have it; 0: all do */
} sl_product;

static double share_of(const sl_product *p) {
    return p->of > 0 ? p->of : 1;
}

#define MAX_PRODUCTS 8

/* Of a block with keys and values. */
static size_t full_products(const sl_shape *s, sl_product p[MAX_PRODUCTS]) {
    double d = s->d_model, h = s->n_heads;
    size_t n = 0;
    if (s->attention == SL_ATTENTION_MLA) {
        if (s->q_lora) {
            p[n++] = (sl_product){d, s->q_lora, false, false};
            p[n++] = (sl_product){s->q_lora, h * s->qk_head_dim, false, true};
        } else {
            p[n++] = (sl_product){d, h * s->qk_head_dim, false, true};
        }
        p[n++] = (sl_product){d, s->kv_lora + s->qk_rope_dim, false, false};
        p[n++] = (sl_product){s->kv_lora, h * (s->qk_nope_dim + s->v_head_dim), false, true};
    } else {
        p[n++] = (sl_product){d, (s->gated ? 2 : 1) * h * s->qk_head_dim, false, true};
        p[n++] = (sl_product){d, (double)s->n_kv_heads * s->qk_head_dim, false, true};
        p[n++] = (sl_product){d, (double)s->n_kv_heads * s->v_head_dim, false, true};
    }
    p[n++] = (sl_product){h * s->v_head_dim, d, true, false};
    return n;
}

static double linear_share(const sl_shape *s) {
    return (double)s->n_linear_layers / s->n_layers;
}

static size_t linear_products(const sl_shape *s, sl_product *p) {
    const double d = s->d_model, small = 2.0 * s->delta_heads;
    p[0] = (sl_product){d, (double)s->delta_channels + s->delta_out, false, true};
    p[1] = (sl_product){d, small, false, true};
    p[2] = (sl_product){s->delta_out, d, true, false};
    return 3;
}

/* Of the mean block. */
static size_t attention_products(const sl_shape *s, sl_product p[MAX_PRODUCTS]) {
    if (s->n_linear_layers == s->n_layers) return linear_products(s, p);
    size_t n = full_products(s, p), all = n;
    if (s->n_linear_layers) all += linear_products(s, p + n);
    for (size_t i = 0; n < all && i < all; i++)
        p[i].of = i < n ? 1 - linear_share(s) : linear_share(s);
    return all;
}

/* Gate and up in one, then down. */
static size_t ffn_products(const sl_shape *s, uint32_t width, sl_product *p) {
    if (width == 0) return 0;
    p[0] = (sl_product){s->d_model, 2.0 * width, false, true};
    p[1] = (sl_product){width, s->d_model, true, false};
    return 2;
}

static size_t stage_products(const sl_shape *s, sl_cost_kind kind, sl_product p[MAX_PRODUCTS]) {
    size_t n = 0;
    switch (kind) {
    case SL_COST_ATTENTION:
        return attention_products(s, p);
    case SL_COST_ROUTER:
        p[0] = (sl_product){s->d_model, s->n_experts, false, false};
        return 1;
    case SL_COST_DENSE:
        return ffn_products(s, s->d_ff_dense, p);
    case SL_COST_SHARED:
        n = ffn_products(s, s->d_ff_shared, p);
        return n + ffn_products(s, s->d_ff_residual, p + n);
    case SL_COST_EXPERT:
        return ffn_products(s, s->d_ff_expert, p);
    case SL_COST_HEAD:
        p[0] = (sl_product){s->d_model, s->vocab, false, true};
        return 1;
    case SL_COST_COUNT:
        break;
    }
    return 0;
}

static double values_of(const sl_product *p, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += p[i].in * p[i].out;
    return sum;
}

static double matrix_values(const sl_shape *s, sl_cost_kind kind) {
    sl_product p[MAX_PRODUCTS];
    return values_of(p, stage_products(s, kind, p));
}

/* ---- parameters ---- */

static uint64_t attention_params(const sl_shape *s) {
    sl_product p[MAX_PRODUCTS];
    uint64_t d = s->d_model, h = s->n_heads, n = (uint64_t)values_of(p, full_products(s, p));
    n += s->norms_per_layer * d;
    if (s->attention == SL_ATTENTION_MLA) n += s->q_lora + s->kv_lora; /* norms of the latents */
    if (s->qk_norm) n += s->qk_head_dim * (s->qk_norm_wide ? h + s->n_kv_heads : 2);
    if (s->qkv_bias)
        n += h * s->qk_head_dim + (uint64_t)s->n_kv_heads * (s->qk_head_dim + s->v_head_dim);
    if (s->o_bias) n += d;
    if (s->sink) n += h;
    return n;
}

static uint64_t linear_params(const sl_shape *s) {
    sl_product p[MAX_PRODUCTS];
    if (s->n_linear_layers == 0) return 0;
    return (uint64_t)values_of(p, linear_products(s, p)) + s->norms_per_layer * s->d_model +
           (uint64_t)s->delta_channels * s->delta_taps + 2ull * s->delta_heads +
           s->delta_out / s->delta_heads; /* the norm of a head's results */
}

sl_params sl_account_params(const sl_shape *s) {
    uint64_t d = s->d_model, n_moe = sl_shape_n_moe(s), n_dense = sl_shape_n_dense(s);
    sl_params p = {
        .attention = attention_params(s),
        .linear = linear_params(s),
        .router = (uint64_t)matrix_values(s, SL_COST_ROUTER) + (s->router_bias ? s->n_experts : 0),
        .shared = (uint64_t)matrix_values(s, SL_COST_SHARED) + (s->shared_gate ? d : 0) +
                  (s->d_ff_residual ? d : 0), /* its norm */
        .dense = (uint64_t)matrix_values(s, SL_COST_DENSE),
        .expert = (uint64_t)matrix_values(s, SL_COST_EXPERT),
        .embedding = d * s->vocab,
        .head = d + (s->tied_head ? 0 : d * s->vocab),
    };
    if (s->expert_bias) p.expert += 2ull * s->d_ff_expert + d;
    uint64_t rest = (s->n_layers - s->n_linear_layers) * p.attention +
                    s->n_linear_layers * p.linear + n_moe * (p.router + p.shared) +
                    n_dense * p.dense + p.embedding + p.head;
    p.total = rest + n_moe * s->n_experts * p.expert;
    p.active = rest + n_moe * s->top_k * p.expert;
    return p;
}

sl_footprint sl_account_footprint(const sl_shape *s) {
    sl_params p = sl_account_params(s);
    double n_moe = sl_shape_n_moe(s);
    double experts = n_moe * s->n_experts * (double)p.expert;
    sl_footprint f = {
        .attention_side = ((double)p.total - experts) * s->attention_weight_bytes,
        .expert = (double)p.expert * s->expert_weight_bytes,
        .kv_token =
            (double)(s->n_layers - s->n_linear_layers) * sl_shape_kv_values(s) * s->kv_value_bytes,
        .state = (double)sl_delta_bytes(sl_shape_delta(s), s->n_linear_layers, false),
        .guessed_state = (double)sl_delta_bytes(sl_shape_delta(s), s->n_linear_layers, true),
    };
    f.expert_column = n_moe * f.expert;
    if (s->n_mtp) {
        const uint64_t d = s->d_model, in = 2 * d * d + 3 * d; /* what enters it, norms */
        f.block = (double)(p.attention + p.router + p.shared + in) * s->attention_weight_bytes +
                  s->n_experts * f.expert;
        f.block_kv_token = (double)sl_shape_kv_values(s) * s->kv_value_bytes;
    }
    f.total = f.attention_side + s->n_experts * f.expert_column;
    return f;
}

/* ---- stages ---- */

/* States of the mean block: a row of its own request reads one and writes the other; rows of a
 * prompt find it in caches. */
static void add_states(const sl_shape *s, double rows, const sl_account_opts *o, sl_stage_work *w) {
    const double each = rows * linear_share(s) * s->delta_state / o->tp;
    w->key_flops += 6.0 * each;
    w->key_bytes += 2.0 * sizeof(float) * each / (o->prefill ? SL_ACCOUNT_TILE : 1);
}

static void add_keys(const sl_shape *s, double keys, const sl_account_opts *o, sl_stage_work *w) {
    double heads = (double)s->n_heads / o->tp;
    bool mla = s->attention == SL_ATTENTION_MLA;
    uint32_t widths = s->qk_head_dim + s->v_head_dim;
    if (mla && !o->prefill) widths = 2 * s->kv_lora + s->qk_rope_dim;
    /* Latents serve all heads; key and value heads go to as many devices as there are heads. */
    double share = mla ? 1 : 1.0 / (o->tp < s->n_kv_heads ? o->tp : s->n_kv_heads);
    w->key_flops = 2.0 * heads * widths * keys;
    w->key_bytes = keys * sl_shape_kv_values(s) * s->kv_value_bytes * share;
    if (o->prefill) w->key_bytes /= SL_ACCOUNT_TILE;
    w->key_flops *= 1 - linear_share(s);
    w->key_bytes *= 1 - linear_share(s);
}

sl_stage_work sl_account_stage(const sl_shape *s, sl_cost_kind kind, double rows, double keys,
                               const sl_account_opts *o) {
    sl_product p[MAX_PRODUCTS];
    sl_stage_work w = {0};
    double bytes = kind == SL_COST_EXPERT ? s->expert_weight_bytes : s->attention_weight_bytes;
    size_t n = stage_products(s, kind, p);
    for (size_t i = 0; i < n; i++) {
        double in = p[i].in / (p[i].tp_in ? o->tp : 1), out = p[i].out / (p[i].tp_out ? o->tp : 1);
        const double share = share_of(&p[i]);
        w.flops += 2 * rows * in * out * share;
        w.weight_bytes += in * out * bytes * share;
        w.activation_bytes += rows * (in + out) * o->activation_bytes * share;
    }
    if (kind == SL_COST_ATTENTION) add_keys(s, keys, o, &w);
    if (kind == SL_COST_ATTENTION && s->n_linear_layers) add_states(s, rows, o, &w);
    if (n && o->tp > 1 && p[n - 1].tp_in)
        w.reduce_bytes = rows * sl_account_row_bytes(s, o->activation_bytes);
    return w;
}

double sl_account_token_flops(const sl_shape *s, double keys, bool prefill) {
    const sl_account_opts one = {.tp = 1, .activation_bytes = 2, .prefill = prefill};
    const double times[SL_COST_COUNT] = {
        [SL_COST_ATTENTION] = s->n_layers,
        [SL_COST_ROUTER] = sl_shape_n_moe(s),
        [SL_COST_DENSE] = sl_shape_n_dense(s),
        [SL_COST_SHARED] = sl_shape_n_moe(s),
        [SL_COST_EXPERT] = (double)sl_shape_n_moe(s) * s->top_k,
        [SL_COST_HEAD] = 1,
    };
    double full = s->n_layers - s->n_windowed_layers;
    double seen = s->window && keys > s->window ? s->window : keys;
    double mean_keys = (full * keys + s->n_windowed_layers * seen) / s->n_layers;
    double sum = 0;
    for (int k = 0; k < SL_COST_COUNT; k++) {
        sl_stage_work w = sl_account_stage(s, (sl_cost_kind)k, 1, mean_keys, &one);
        sum += times[k] * (w.flops + w.key_flops);
    }
    return sum;
}
