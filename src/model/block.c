/* Attention, dense and shared feed-forward, router and head of one block. */
#include "model/block_int.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

/* Rows a thread that pass attention together: enough for products that read weights once, few
 * enough that what lies between them stays in caches. */
#define ATTENTION_ROWS 128u

size_t sl_model_scratch_bytes(const sl_model_spec *spec, uint32_t max_rows) {
    size_t d = spec->d_model, q = (size_t)spec->n_heads * spec->head_dim;
    size_t kv = (size_t)spec->n_kv_heads * spec->head_dim;
    size_t attention = 2 * sl_scratch_floats(max_rows, SL_MAX(d, q)) +
                       2 * sl_scratch_floats(max_rows, kv) + sl_scratch_act(max_rows, q);
    if (spec->gated) attention += 2 * sl_scratch_floats(max_rows, 2 * q);
    if (spec->kv_lora) attention = sl_mla_scratch_bytes(spec, max_rows);
    if (spec->n_linear) attention = SL_MAX(attention, sl_delta_scratch_bytes(spec, max_rows));
    size_t dense = 2 * sl_scratch_floats(max_rows, d) +
                   sl_scratch_floats(max_rows, spec->d_ff_dense) +
                   sl_scratch_act(max_rows, spec->d_ff_dense);
    size_t route = 2 * sl_scratch_floats(max_rows, spec->n_experts);
    size_t shared = sl_scratch_floats(max_rows, spec->d_ff_shared) +
                    sl_scratch_floats(max_rows, 1) + sl_scratch_act(max_rows, spec->d_ff_shared);
    return SL_MAX(SL_MAX(attention, dense), SL_MAX(route, shared)) + sl_scratch_act(max_rows, d) +
           SL_SCRATCH_SLACK;
}

/* Row `id` of the table's file. One that was cut short since is found at its mapping. */
static const uint8_t *stored_row(const sl_embed_file *f, uint32_t id) {
    const size_t at = id * f->row_bytes;
    if (f->fd >= 0 &&
        pread(f->fd, f->row, f->row_bytes, (off_t)(f->begin + at)) == (ssize_t)f->row_bytes)
        return f->row;
    return f->mapped + at;
}

static const uint8_t *embed_row(const sl_embed_file *f, uint32_t id, uint32_t k) {
    const uint8_t *row = stored_row(f, id);
    if (f->repack == SL_REPACK_NONE) return row;
    sl_repack_q8_0(f->repack, row, k, f->unpacked);
    return f->unpacked;
}

void sl_model_embed(const sl_model *m, const sl_exec *ex, const uint32_t *ids, uint32_t n_rows,
                    float *x) {
    const sl_mat *w = &m->whole.mat[SL_ROLE_EMBED];
    SL_ASSERT(w->data != NULL);
    for (uint32_t i = 0; i < n_rows; i++) SL_ASSERT(ids[i] < m->spec.vocab);
    if (m->home.put || !m->embed.open) {
        sl_embed(ex, w, ids, n_rows, x);
        return;
    }
    for (uint32_t i = 0; i < n_rows; i++)
        sl_widen(ex, embed_row(&m->embed, ids[i], w->k), w->dtype, w->k, x + (size_t)i * w->k);
}

/* The rows' keys or values [n][n_kv_heads][head_dim] into their pages. */
static void store_kv(const sl_model_spec *m, const sl_exec *ex, uint32_t layer, uint32_t is_v,
                     const sl_rows *rows, const float *kv) {
    sl_put_kv(ex, &(sl_kv_put){.m = m,
                               .layer = layer,
                               .is_v = is_v,
                               .n_rows = rows->n,
                               .n_tiles = m->n_kv_heads,
                               .width = m->head_dim,
                               .x = kv,
                               .x_stride = m->n_kv_heads * m->head_dim,
                               .pos = rows->pos,
                               .pages = rows->pages,
                               .kv = rows->kv});
}

/* Each row of q or k is one vector to its norm, or one a head: as wide as its weight. */
static void norm_heads(const sl_model *m, const sl_exec *ex, const sl_mat *w, uint32_t n_rows,
                       uint32_t width, float *x) {
    sl_norm(m, ex, w, x, n_rows * (width / w->k), x);
}

/* By what queries of a block that does not rotate grow; NULL: they do not. */
static const float *growth_of(const sl_model_spec *s, const sl_exec *ex, const sl_rows *rows,
                              sl_arena *scratch) {
    if (s->query_floor <= 0) return NULL;
    float *factor = sl_take_list(ex, scratch, rows->n, sizeof *factor);
    for (uint32_t r = 0; r < rows->n; r++) factor[r] = sl_query_scale(s, rows->pos[r]);
    return factor;
}

/* YaRN's factor of sin and cos is one of the scores where all of a head is rotated; else it is one
 * of the values that are. */
static bool stretches_part(const sl_model_spec *s) {
    return s->yarn.factor > 0 && s->rope_dim < s->head_dim;
}

/* Positions enter queries and keys: rotations, and what follows them. */
static void place_heads(const sl_model *m, const sl_exec *ex, uint32_t layer, const sl_rows *rows,
                        float *q, float *k, sl_arena *scratch) {
    const sl_model_spec *s = &m->spec;
    uint32_t q_width = s->n_heads * s->head_dim, kv_width = s->n_kv_heads * s->head_dim;
    if (s->unrotated[layer]) {
        const size_t level = scratch->used;
        const float *factor = growth_of(s, ex, rows, scratch);
        if (factor) sl_pick_rows(ex, q, NULL, factor, rows->n, q_width, q);
        scratch->used = level;
        return;
    }
    sl_rope_shape shape = {s->n_heads, s->head_dim, s->rope_dim, q_width};
    sl_rope(ex, q, rows->pos, m->tables.rope_freq, rows->n, &shape);
    shape.n_heads = s->n_kv_heads;
    shape.x_stride = kv_width;
    sl_rope(ex, k, rows->pos, m->tables.rope_freq, rows->n, &shape);
    if (stretches_part(s)) {
        sl_scale_part(ex, q, s->head_dim, rows->n * s->n_heads, s->rope_dim, s->yarn.attention);
        sl_scale_part(ex, k, s->head_dim, rows->n * s->n_kv_heads, s->rope_dim, s->yarn.attention);
    }
    if (!s->qk_unit) return;
    const sl_mat one = {.data = m->tables.ones, .n = 1, .k = s->head_dim, .dtype = SL_F32};
    norm_heads(m, ex, &one, rows->n, q_width, q);
    norm_heads(m, ex, &one, rows->n, kv_width, k);
}

/* Queries, keys and values of the rows x, normalised first (in h, where they stay in f32). gate:
 * what comes beside a head's queries, where they have that, else NULL. */
static void project_heads(const sl_model *m, const sl_exec *ex, uint32_t layer, const sl_rows *rows,
                          const float *x, float *h, float *q, float *k, float *v, float *gate,
                          sl_arena *scratch) {
    const sl_weights *w = &m->block[layer];
    const uint32_t heads = rows->n * m->spec.n_heads, dim = m->spec.head_dim;
    const size_t level = scratch->used;
    float *both = gate ? sl_take_rows(scratch, heads, 2 * (size_t)dim) : q;
    sl_gemm_job jobs[] = {
        sl_dense_job(&w->mat[SL_ROLE_Q], h, rows->n, both),
        sl_dense_job(&w->mat[SL_ROLE_K], h, rows->n, k),
        sl_dense_job(&w->mat[SL_ROLE_V], h, rows->n, v),
    };
    const sl_mat *const into[] = {jobs[0].w, jobs[1].w, jobs[2].w};
    sl_act act =
        sl_norm_for(m, ex, &w->mat[SL_ROLE_ATTN_NORM], x, rows->n, into, SL_LEN(into), h, scratch);
    for (size_t i = 0; i < SL_LEN(jobs); i++) jobs[i].act = act;
    sl_gemm(ex, jobs, SL_LEN(jobs));
    if (gate) {
        sl_copy_rows(ex, both, 2 * (size_t)dim, heads, dim, q, dim);
        sl_copy_rows(ex, both + dim, 2 * (size_t)dim, heads, dim, gate, dim);
    }
    scratch->used = level;
}

/* Biased, normalised, clipped and rotated; keys and values into their pages. */
static void settle_heads(const sl_model *m, const sl_exec *ex, uint32_t layer, const sl_rows *rows,
                         float *q, float *k, float *v, sl_arena *scratch) {
    const sl_model_spec *s = &m->spec;
    const sl_weights *w = &m->block[layer];
    uint32_t q_width = s->n_heads * s->head_dim, kv_width = s->n_kv_heads * s->head_dim;
    if (s->qkv_bias) {
        sl_bias_add(ex, q, &w->mat[SL_ROLE_Q_BIAS], rows->n);
        sl_bias_add(ex, k, &w->mat[SL_ROLE_K_BIAS], rows->n);
        sl_bias_add(ex, v, &w->mat[SL_ROLE_V_BIAS], rows->n);
    }
    if (s->rope_pairs && !s->unrotated[layer]) {
        sl_split_pairs(ex, q, rows->n * s->n_heads, s->head_dim, s->head_dim);
        sl_split_pairs(ex, k, rows->n * s->n_kv_heads, s->head_dim, s->head_dim);
    }
    if (s->qk_norm && sl_rank_gathers(m)) {
        sl_rank_norm(m, ex, &w->mat[SL_ROLE_Q_NORM], rows->n, &m->holds.heads, q, scratch);
        sl_rank_norm(m, ex, &w->mat[SL_ROLE_K_NORM], rows->n, &m->holds.kv_heads, k, scratch);
    } else if (s->qk_norm) {
        norm_heads(m, ex, &w->mat[SL_ROLE_Q_NORM], rows->n, q_width, q);
        norm_heads(m, ex, &w->mat[SL_ROLE_K_NORM], rows->n, kv_width, k);
    }
    if (s->clip_qkv > 0) {
        sl_vec_clip(ex, q, s->clip_qkv, (size_t)rows->n * q_width);
        sl_vec_clip(ex, k, s->clip_qkv, (size_t)rows->n * kv_width);
        sl_vec_clip(ex, v, s->clip_qkv, (size_t)rows->n * kv_width);
    }
    place_heads(m, ex, layer, rows, q, k, scratch);
    store_kv(s, ex, layer, 0, rows, k);
    store_kv(s, ex, layer, 1, rows, v);
}

/* The same in one operation, where whoever computes has it. */
static bool settle_at_once(const sl_model *m, const sl_exec *ex, uint32_t layer,
                           const sl_rows *rows, float *q, const float *k, const float *v,
                           sl_arena *scratch) {
    const sl_model_spec *s = &m->spec;
    const sl_mat *w = m->block[layer].mat;
    const size_t level = scratch->used;
    if (!sl_ops(ex)->place_qkv) return false;
    sl_qkv_place p = {.m = s,
                      .layer = layer,
                      .n_rows = rows->n,
                      .q = q,
                      .k = k,
                      .v = v,
                      .centred = m->arch->layer_norm,
                      .freq = m->tables.rope_freq,
                      .grow = s->unrotated[layer] ? growth_of(s, ex, rows, scratch) : NULL,
                      .pos = rows->pos,
                      .pages = rows->pages,
                      .kv = rows->kv};
    if (s->qkv_bias)
        for (size_t i = 0; i < 3; i++) p.bias[i] = &w[SL_ROLE_Q_BIAS + i];
    if (s->qk_norm) p.norm[0] = &w[SL_ROLE_Q_NORM], p.norm[1] = &w[SL_ROLE_K_NORM];
    const bool done = sl_ops(ex)->place_qkv(ex, &p);
    scratch->used = level;
    return done;
}

/* YaRN's factor of sin and cos, of both sides, is one of their products. */
static float score_scale(const sl_model_spec *s) {
    const bool whole = s->yarn.factor > 0 && !stretches_part(s);
    double yarn = whole ? (double)s->yarn.attention : 1;
    return (float)(yarn * yarn / sqrt((double)s->head_dim));
}

/* Rows that pass attention together, between their heads and O. */
typedef struct attending {
    sl_rows rows;
    float *x, *y;
    sl_arrival heads;
    size_t level; /* of its scratch, before */
} attending;

/* Rows h become the heads' results and queries the projected ones:
 * what is read no more makes room. */
static void begin_attention(const sl_model *m, const sl_exec *ex, uint32_t layer, attending *a,
                            sl_arena *scratch) {
    const sl_model_spec *s = &m->spec;
    const sl_rows *rows = &a->rows;
    a->level = scratch->used;
    uint32_t q_width = s->n_heads * s->head_dim, kv_width = s->n_kv_heads * s->head_dim;
    float *h = sl_take_rows(scratch, rows->n, SL_MAX(s->d_model, q_width)), *o = h;
    float *q = sl_take_rows(scratch, rows->n, SL_MAX(s->d_model, q_width));
    float *k = sl_take_rows(scratch, rows->n, kv_width);
    float *v = sl_take_rows(scratch, rows->n, kv_width);
    float *gate = s->gated ? sl_take_rows(scratch, rows->n, q_width) : NULL;
    a->y = q;
    project_heads(m, ex, layer, rows, a->x, h, q, k, v, gate, scratch);
    if (!settle_at_once(m, ex, layer, rows, q, k, v, scratch))
        settle_heads(m, ex, layer, rows, q, k, v, scratch);
    const sl_attn_args args = {
        .m = s,
        .layer = layer,
        .n_rows = rows->n,
        .q = q,
        .q_stride = q_width,
        .pos = rows->pos,
        .kv = rows->kv,
        .pages = rows->pages,
        .low = rows->low,
        .scale = score_scale(s),
        .sink = m->tables.sinks ? m->tables.sinks + (size_t)layer * s->n_heads : NULL,
        .group = sl_rank_group(m),
        .skip = sl_rank_skip(m),
        .o = o,
        .o_stride = q_width};
    if (s->n_heads) sl_attention(ex, &args);
    if (gate) sl_gate_values(ex, o, gate, (size_t)rows->n * q_width);
    const uint32_t all = m->stored.n_heads * s->head_dim;
    a->heads =
        sl_rank_send(m, ex, &m->holds.heads, s->head_dim,
                     sl_act_kinds(ex, &m->block[layer].mat[SL_ROLE_O]), o, rows->n, all, scratch);
}

static void end_attention(const sl_model *m, const sl_exec *ex, uint32_t layer, const attending *a,
                          sl_arena *scratch) {
    const sl_weights *w = &m->block[layer];
    sl_rank_project(m, ex, &w->mat[SL_ROLE_O], &a->heads, a->y, scratch);
    sl_stream_add(m, ex, &w->mat[SL_ROLE_O_BIAS], a->y, a->rows.n, a->x);
    scratch->used = a->level;
}

static size_t part_bytes(const sl_model *m, uint32_t n_rows) {
    return sl_model_scratch_bytes(&m->spec, n_rows) + sl_rank_scratch_bytes(m, n_rows);
}

void sl_block_attention(const sl_model *m, const sl_exec *ex, uint32_t layer, const sl_rows *rows,
                        float *x, sl_arena *scratch) {
    if (m->spec.kv_lora) {
        sl_mla_attention(m, ex, layer, rows, x, scratch);
        return;
    }
    if (sl_model_is_linear(&m->spec, layer)) {
        sl_delta_attention(m, ex, layer, rows, x, scratch);
        return;
    }
    const uint32_t most = sl_rank_slice(m, ex, ATTENTION_ROWS), d = m->spec.d_model;
    const size_t level = scratch->used;
    attending part[2];
    sl_turns_scratch turns;
    uint32_t begun = 0, ended = 0;
    SL_ASSERT(m->block[layer].mat[SL_ROLE_Q].data != NULL);
    const bool overlap = rows->n > most && sl_rank_overlaps(m);
    sl_rank_turns(overlap, overlap ? part_bytes(m, most) : 0,
                  overlap ? part_bytes(m, SL_MIN(rows->n - most, most)) : 0, scratch, &turns);
    for (uint32_t at = 0; at < rows->n || ended < begun;) {
        if (at < rows->n) {
            attending *a = &part[begun % 2];
            a->rows = sl_some_rows(rows, at, SL_MIN(rows->n - at, most));
            a->x = x + (size_t)at * d;
            sl_rank_needs(m, a->x, a->rows.n);
            begin_attention(m, ex, layer, a, turns.at[begun++ % 2]);
            at += a->rows.n;
        }
        if (begun - ended > turns.ahead || at == rows->n) {
            end_attention(m, ex, layer, &part[ended % 2], turns.at[ended % 2]);
            ended++;
        }
    }
    scratch->used = level;
}

/* The rounded rows from the first-th on, as a product with w takes them. */
static sl_act act_from(const sl_act *act, uint32_t first, const sl_mat *w) {
    sl_act from = *act;
    for (sl_act_kind i = 0; i < SL_ACT_KINDS; i++)
        if (from.row[i]) from.row[i] += first * sl_act_bytes_in(w->segments, i, w->k);
    return from;
}

/* The three matrices of a SwiGLU feed-forward, in the order of their roles; rows h, or act. mine: a
 * rank's of `width` values between them. While some rows travel the next are computed. */
static void feed_forward(const sl_model *m, const sl_exec *ex, const sl_mat *w, const float *h,
                         const sl_act *act, const sl_holding *mine, uint32_t width, uint32_t n_rows,
                         float *y, sl_arena *scratch) {
    size_t level = scratch->used;
    float *mid = sl_take_rows(scratch, n_rows, w[0].n);
    const sl_mat *up = &w[1];
    const bool overlap = sl_rank_overlaps(m);
    const uint32_t most = overlap ? sl_rank_slice(m, ex, ATTENTION_ROWS) : n_rows;
    struct {
        uint32_t first;
        sl_arrival mid;
    } part[2];
    uint32_t begun = 0, ended = 0;
    for (uint32_t at = 0; at < n_rows || ended < begun;) {
        if (at < n_rows) {
            const uint32_t n = SL_MIN(n_rows - at, most);
            float *own = mid + (size_t)at * w[0].n;
            sl_gemm_job job = sl_dense_job(&w[0], h + (size_t)at * w[0].k, n, own);
            job.act = act_from(act, at, &w[0]);
            sl_gemm_swiglu(ex, &job, &up, 1);
            part[begun % 2].first = at;
            part[begun++ % 2].mid =
                sl_rank_send(m, ex, mine, 1, sl_act_kinds(ex, &w[2]), own, n, width, scratch);
            at += n;
        }
        if (begun - ended > overlap || at == n_rows) {
            const uint32_t i = ended++ % 2;
            sl_rank_project(m, ex, &w[2], &part[i].mid, y + (size_t)part[i].first * m->spec.d_model,
                            scratch);
        }
    }
    scratch->used = level;
}

void sl_block_dense(const sl_model *m, const sl_exec *ex, uint32_t layer, uint32_t n_rows, float *x,
                    sl_arena *scratch) {
    if (n_rows == 0) return;
    const sl_weights *w = &m->block[layer];
    size_t level = scratch->used;
    SL_ASSERT(w->mat[SL_ROLE_DENSE_GATE].data != NULL);
    float *h = sl_take_rows(scratch, n_rows, m->spec.d_model);
    float *y = sl_take_rows(scratch, n_rows, m->spec.d_model);
    const sl_mat *const into[] = {&w->mat[SL_ROLE_DENSE_GATE], &w->mat[SL_ROLE_DENSE_UP]};
    sl_rank_needs(m, x, n_rows);
    sl_act act =
        sl_norm_for(m, ex, &w->mat[SL_ROLE_FFN_NORM], x, n_rows, into, SL_LEN(into), h, scratch);
    feed_forward(m, ex, into[0], h, &act, &m->holds.dense, m->stored.d_ff_dense, n_rows, y,
                 scratch);
    sl_stream_add(m, ex, NULL, y, n_rows, x);
    scratch->used = level;
}

void sl_block_shared(const sl_model *m, const sl_exec *ex, uint32_t layer, uint32_t n_rows,
                     const float *x, float *h, sl_arena *scratch) {
    if (n_rows == 0) return;
    const sl_weights *w = &m->block[layer];
    size_t level = scratch->used;
    SL_ASSERT(w->mat[SL_ROLE_SHARED_GATE].data != NULL);
    const sl_mat *gate = &w->mat[SL_ROLE_SHARED_SCALE];
    float *scale = sl_take_rows(scratch, n_rows, 1);
    /* Ranks share h: what they make of it is apart until all have read it. */
    float *in =
        m->gang && m->spec.dense_branch ? sl_take_rows(scratch, n_rows, m->spec.d_model) : h;
    float *y = m->gang ? sl_take_rows(scratch, n_rows, m->spec.d_model) : h;
    if (m->spec.dense_branch) sl_norm(m, ex, &w->mat[SL_ROLE_SHARED_NORM], x, n_rows, in);
    if (gate->data) sl_project(ex, gate, in, n_rows, scale, scratch);
    const sl_mat *ffn = &w->mat[SL_ROLE_SHARED_GATE];
    uint32_t kinds = sl_act_kinds(ex, &ffn[0]) | sl_act_kinds(ex, &ffn[1]);
    sl_act act = sl_take_act(ex, kinds, in, NULL, n_rows, m->spec.d_model, NULL, scratch);
    feed_forward(m, ex, ffn, in, &act, &m->holds.shared, m->stored.d_ff_shared, n_rows, y,
                 scratch); /* in is read, then y */
    if (m->gang)
        sl_rank_put(m, ex, y, n_rows, gate->data ? scale : NULL, h);
    else if (gate->data)
        sl_gate_rows(ex, h, scale, n_rows, m->spec.d_model);
    scratch->used = level;
}

static void draw_rows(const sl_model *m, uint32_t layer, const sl_rows *rows, uint32_t *expert,
                      float *gate) {
    size_t k = m->spec.top_k;
    for (uint32_t r = 0; r < rows->n; r++)
        sl_skew_draw(m->skew, rows->id[r], rows->pos[r], m->spec.moe_index[layer], expert + r * k,
                     gate + r * k);
}

void sl_block_route(const sl_model *m, const sl_exec *ex, uint32_t layer, const sl_rows *rows,
                    const float *x, float *h, uint32_t *expert, float *gate, sl_arena *scratch) {
    uint32_t n_rows = rows->n;
    if (n_rows == 0) return;
    const bool drawn = m->skew && layer < m->stored.n_layers;
    if (drawn) draw_rows(m, layer, rows, expert, gate);
    const sl_weights *w = &m->block[layer];
    size_t level = scratch->used;
    SL_ASSERT(w->mat[SL_ROLE_ROUTER].data != NULL);
    bool grouped = m->arch->router == SL_ROUTER_SIGMOID_GROUPS;
    size_t bias_at = (size_t)m->spec.moe_index[layer] * m->spec.n_experts;
    float *logit = sl_take_rows(scratch, n_rows, m->spec.n_experts);
    float *rank = grouped ? sl_take_rows(scratch, n_rows, m->spec.n_experts) : NULL;
    sl_norm(m, ex, &w->mat[SL_ROLE_FFN_NORM], x, n_rows, h);
    sl_gemm_job job = sl_dense_job(&w->mat[SL_ROLE_ROUTER], h, n_rows, logit);
    job.decides = true;
    job.act = sl_take_act(ex, sl_act_kinds(ex, job.w), h, NULL, n_rows, job.w->k, NULL, scratch);
    sl_gemm(ex, &job, 1); /* also when drawn: its time counts */
    if (w->mat[SL_ROLE_LOGIT_BIAS].data)
        sl_bias_add(ex, logit, &w->mat[SL_ROLE_LOGIT_BIAS], n_rows);
    scratch->used = level;
    if (drawn) return;
    sl_route(ex, &(sl_route_args){.m = &m->spec,
                                  .router = m->arch->router,
                                  .n_rows = n_rows,
                                  .logit = logit,
                                  .rank = rank,
                                  .bias = grouped ? m->tables.route_bias + bias_at : NULL,
                                  .expert = expert,
                                  .gate = gate,
                                  .h = h});
}

void sl_model_head_rows(const sl_model *m, const sl_exec *ex, const float *x, const uint32_t *row,
                        uint32_t n, float *h) {
    if (n == 0) return;
    sl_pick_rows(ex, x, row, NULL, n, m->spec.d_model, h);
    sl_norm(m, ex, &m->whole.mat[SL_ROLE_FINAL_NORM], h, n, h);
}

void sl_model_head_part(const sl_model *m, const sl_exec *ex, const float *h, uint32_t n,
                        uint32_t first, uint32_t count, float *logits, sl_arena *scratch) {
    const sl_mat *head = &m->whole.mat[SL_ROLE_LM_HEAD];
    const uint32_t vocab = m->stored.vocab;
    if (n == 0) return;
    SL_ASSERT(head->data != NULL && first <= vocab && count <= vocab - first);
    if (m->gang) {
        const sl_extent mine = sl_rank_piece(m->rank, vocab, first, count);
        logits += m->holds.vocab.first;
        first = mine.first - m->holds.vocab.first;
        count = mine.n;
    }
    sl_mat part = *head;
    part.data = (const uint8_t *)head->data + first * sl_mat_stride(head);
    part.n = count;
    part.scale_row += first;
    sl_project_to(ex, &part, h, n, logits + first, vocab, scratch);
}

void sl_model_head(const sl_model *m, const sl_exec *ex, const float *x, const uint32_t *row,
                   uint32_t n, float *logits, sl_arena *scratch) {
    size_t level = scratch->used;
    float *h = sl_take_rows(scratch, n, m->spec.d_model);
    sl_model_head_rows(m, ex, x, row, n, h);
    sl_model_head_part(m, ex, h, n, 0, m->spec.vocab, logits, scratch);
    scratch->used = level;
}
