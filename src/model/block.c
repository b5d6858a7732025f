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
    if (spec->kv_lora) attention = sl_mla_scratch_bytes(spec, max_rows);
    size_t dense = 2 * sl_scratch_floats(max_rows, d) +
                   sl_scratch_floats(max_rows, spec->d_ff_dense) +
                   sl_scratch_act(max_rows, spec->d_ff_dense);
    size_t route = 2 * sl_scratch_floats(max_rows, spec->n_experts);
    size_t shared = sl_scratch_floats(max_rows, spec->d_ff_shared) +
                    sl_scratch_floats(max_rows, 1) + sl_scratch_act(max_rows, spec->d_ff_shared);
    return SL_MAX(SL_MAX(attention, dense), SL_MAX(route, shared)) + sl_scratch_act(max_rows, d) +
           SL_SCRATCH_SLACK;
}

/* Row `id` of the table, from the file where it is open. A file that was cut short since is found
 * at its mapping. */
static const uint8_t *embed_row(const sl_model *m, uint32_t id, size_t row_bytes) {
    const sl_embed_file *f = &m->embed;
    size_t at = id * row_bytes;
    if (f->open && pread(f->fd, f->row, row_bytes, (off_t)(f->begin + at)) == (ssize_t)row_bytes)
        return f->row;
    return (const uint8_t *)m->whole.mat[SL_ROLE_EMBED].data + at;
}

void sl_model_embed(const sl_model *m, const sl_exec *ex, const uint32_t *ids, uint32_t n_rows,
                    float *x) {
    const sl_mat *w = &m->whole.mat[SL_ROLE_EMBED];
    size_t row_bytes = sl_dtype_row_bytes(w->dtype, w->k);
    SL_ASSERT(w->data != NULL);
    for (uint32_t i = 0; i < n_rows; i++) {
        SL_ASSERT(ids[i] < m->spec.vocab);
        sl_widen(ex, embed_row(m, ids[i], row_bytes), w->dtype, w->k, x + (size_t)i * w->k);
    }
}

/* Copies the rows' keys or values [n][n_kv_heads][head_dim] into their pages. */
static void store_kv(const sl_model_spec *m, uint32_t layer, uint32_t is_v, const sl_rows *rows,
                     const float *kv) {
    size_t dim = m->head_dim;
    for (uint32_t r = 0; r < rows->n; r++) {
        float *page = sl_kv_page(&rows->kv, rows->pages[r][rows->pos[r] / SL_KV_PAGE_TOKENS]);
        size_t token = rows->pos[r] % SL_KV_PAGE_TOKENS;
        for (uint32_t h = 0; h < m->n_kv_heads; h++, kv += dim)
            memcpy(page + sl_kv_tile_offset(m, layer, is_v, h) + token * dim, kv,
                   dim * sizeof(float));
    }
}

/* Each row of q or k is one vector to its norm, or one a head: as wide as its weight. */
static void norm_heads(const sl_model *m, const sl_exec *ex, const sl_mat *w, uint32_t n_rows,
                       uint32_t width, float *x) {
    sl_norm(m, ex, w, x, n_rows * (width / w->k), x);
}

/* Positions enter queries and keys: rotations, and what follows them. */
static void place_heads(const sl_model *m, const sl_exec *ex, uint32_t layer, const sl_rows *rows,
                        float *q, float *k) {
    const sl_model_spec *s = &m->spec;
    uint32_t q_width = s->n_heads * s->head_dim, kv_width = s->n_kv_heads * s->head_dim;
    if (s->unrotated[layer]) {
        for (uint32_t r = 0; s->query_floor > 0 && r < rows->n; r++, q += q_width)
            sl_vec_scale(ex, q, q, sl_query_scale(s, rows->pos[r]), q_width);
        return;
    }
    sl_rope_shape shape = {s->n_heads, s->head_dim, s->rope_dim, q_width};
    sl_rope(ex, q, rows->pos, m->rope_freq, rows->n, &shape);
    shape.n_heads = s->n_kv_heads;
    shape.x_stride = kv_width;
    sl_rope(ex, k, rows->pos, m->rope_freq, rows->n, &shape);
    if (!s->qk_unit) return;
    const sl_mat one = {.data = m->ones, .n = 1, .k = s->head_dim, .dtype = SL_F32};
    norm_heads(m, ex, &one, rows->n, q_width, q);
    norm_heads(m, ex, &one, rows->n, kv_width, k);
}

/* Queries, keys and values of the rows x, normalised (in h, where they stay in f32), biased,
 * normalised, clipped and rotated. */
static void attention_inputs(const sl_model *m, const sl_exec *ex, uint32_t layer,
                             const sl_rows *rows, const float *x, float *h, float *q, float *k,
                             float *v, sl_arena *scratch) {
    const sl_model_spec *s = &m->spec;
    const sl_weights *w = &m->block[layer];
    uint32_t q_width = s->n_heads * s->head_dim, kv_width = s->n_kv_heads * s->head_dim;
    sl_gemm_job jobs[] = {
        sl_dense_job(&w->mat[SL_ROLE_Q], h, rows->n, q),
        sl_dense_job(&w->mat[SL_ROLE_K], h, rows->n, k),
        sl_dense_job(&w->mat[SL_ROLE_V], h, rows->n, v),
    };
    const sl_mat *const into[] = {jobs[0].w, jobs[1].w, jobs[2].w};
    size_t level = scratch->used;
    sl_act act =
        sl_norm_for(m, ex, &w->mat[SL_ROLE_ATTN_NORM], x, rows->n, into, SL_LEN(into), h, scratch);
    for (size_t i = 0; i < SL_LEN(jobs); i++) jobs[i].act = act;
    sl_gemm(ex, jobs, SL_LEN(jobs));
    scratch->used = level;
    if (s->qkv_bias) {
        sl_bias_add(ex, q, &w->mat[SL_ROLE_Q_BIAS], rows->n);
        sl_bias_add(ex, k, &w->mat[SL_ROLE_K_BIAS], rows->n);
        sl_bias_add(ex, v, &w->mat[SL_ROLE_V_BIAS], rows->n);
    }
    if (s->rope_pairs && !s->unrotated[layer]) {
        sl_split_pairs(q, rows->n * s->n_heads, s->head_dim, s->head_dim);
        sl_split_pairs(k, rows->n * s->n_kv_heads, s->head_dim, s->head_dim);
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
    place_heads(m, ex, layer, rows, q, k);
}

/* YaRN's factor of sin and cos, of both sides, is one of their products. */
static float score_scale(const sl_model_spec *s) {
    double yarn = s->yarn.factor > 0 ? (double)s->yarn.attention : 1;
    return (float)(yarn * yarn / sqrt((double)s->head_dim));
}

/* Rows h become the heads' results and queries the projected ones:
 * what is read no more makes room. */
static void attend(const sl_model *m, const sl_exec *ex, uint32_t layer, const sl_rows *rows,
                   float *x, sl_arena *scratch) {
    const sl_model_spec *s = &m->spec;
    const sl_weights *w = &m->block[layer];
    size_t level = scratch->used;
    uint32_t q_width = s->n_heads * s->head_dim, kv_width = s->n_kv_heads * s->head_dim;
    float *h = sl_take_rows(scratch, rows->n, SL_MAX(s->d_model, q_width)), *o = h;
    float *q = sl_take_rows(scratch, rows->n, SL_MAX(s->d_model, q_width)), *y = q;
    float *k = sl_take_rows(scratch, rows->n, kv_width);
    float *v = sl_take_rows(scratch, rows->n, kv_width);
    attention_inputs(m, ex, layer, rows, x, h, q, k, v, scratch);
    store_kv(s, layer, 0, rows, k);
    store_kv(s, layer, 1, rows, v);
    const sl_attn_args args = {.m = s,
                               .layer = layer,
                               .n_rows = rows->n,
                               .q = q,
                               .q_stride = q_width,
                               .pos = rows->pos,
                               .kv = rows->kv,
                               .pages = rows->pages,
                               .scale = score_scale(s),
                               .sink = m->sinks ? m->sinks + (size_t)layer * s->n_heads : NULL,
                               .group = sl_rank_group(m),
                               .skip = sl_rank_skip(m),
                               .o = o,
                               .o_stride = q_width};
    if (s->n_heads) sl_attention(ex, &args);
    sl_project(ex, &w->mat[SL_ROLE_O], o, rows->n, y, scratch);
    sl_stream_add(m, ex, &w->mat[SL_ROLE_O_BIAS], y, rows->n, x);
    scratch->used = level;
}

void sl_block_attention(const sl_model *m, const sl_exec *ex, uint32_t layer, const sl_rows *rows,
                        float *x, sl_arena *scratch) {
    if (m->spec.kv_lora) {
        sl_mla_attention(m, ex, layer, rows, x, scratch);
        return;
    }
    uint32_t most = ATTENTION_ROWS * (ex->pool ? sl_pool_threads(ex->pool) : 1);
    SL_ASSERT(m->block[layer].mat[SL_ROLE_Q].data != NULL);
    for (uint32_t at = 0; at < rows->n; at += most) {
        const sl_rows part = {.n = SL_MIN(rows->n - at, most),
                              .id = rows->id ? rows->id + at : NULL,
                              .pos = rows->pos + at,
                              .kv = rows->kv,
                              .pages = rows->pages + at};
        attend(m, ex, layer, &part, x + (size_t)at * m->spec.d_model, scratch);
    }
}

/* The three matrices of a SwiGLU feed-forward, in the order of their roles; rows h, or act. */
static void feed_forward(const sl_exec *ex, const sl_mat *w, const float *h, const sl_act *act,
                         uint32_t n_rows, float *y, sl_arena *scratch) {
    size_t level = scratch->used;
    float *mid = sl_take_rows(scratch, n_rows, w[0].n);
    sl_gemm_job job = sl_dense_job(&w[0], h, n_rows, mid);
    const sl_mat *up = &w[1];
    job.act = *act;
    sl_gemm_swiglu(ex, &job, &up, 1);
    sl_project(ex, &w[2], mid, n_rows, y, scratch);
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
    sl_act act =
        sl_norm_for(m, ex, &w->mat[SL_ROLE_FFN_NORM], x, n_rows, into, SL_LEN(into), h, scratch);
    feed_forward(ex, into[0], h, &act, n_rows, y, scratch);
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
    feed_forward(ex, ffn, in, &act, n_rows, y, scratch); /* in is read, then y */
    if (m->gang)
        sl_rank_put(m, ex, y, n_rows, gate->data ? scale : NULL, h);
    else if (gate->data)
        sl_gate_rows(ex, h, scale, n_rows, m->spec.d_model);
    scratch->used = level;
}

typedef struct sl_routing {
    const sl_kernels *k;
    const sl_model_spec *m;
    float *logit;      /* becomes the probabilities or scores */
    float *rank;       /* SIGMOID_GROUPS: biased scores, which decide */
    const float *bias; /* of the same, [n_experts] */
    uint32_t *expert;
    float *gate;
} sl_routing;

static bool outranks(float a, float b) {
    return a > b || (isnan(b) && !isnan(a));
}

/* The k largest of p by value, ties to the lower id, then in the order of ids. NaN never wins over
 * a number, but k distinct experts always come out. */
static void pick_experts(const float *p, uint32_t n, uint32_t k, uint32_t *expert) {
    uint32_t got = 0;
    for (uint32_t e = 0; e < n; e++) {
        uint32_t at = got;
        while (at > 0 && outranks(p[e], p[expert[at - 1]])) at--;
        if (at == k) continue;
        if (got < k) got++;
        for (uint32_t j = got - 1; j > at; j--) expert[j] = expert[j - 1];
        expert[at] = e;
    }
    for (uint32_t i = 1; i < k; i++) {
        uint32_t id = expert[i], j = i;
        for (; j > 0 && expert[j - 1] > id; j--) expert[j] = expert[j - 1];
        expert[j] = id;
    }
}

/* Experts outside the top_groups best groups, by the sum of a group's `of` (1, 2) best, are out. */
static void keep_groups(const sl_model_spec *m, uint32_t of, float *rank) {
    uint32_t size = m->n_experts / m->n_groups, kept[SL_MAX_GROUPS], at = 0;
    float best[SL_MAX_GROUPS] = {0};
    for (uint32_t g = 0; g < m->n_groups; g++) {
        uint32_t two[2] = {0};
        const float *p = rank + (size_t)g * size;
        pick_experts(p, size, of, two);
        best[g] = of == 1 ? p[two[0]] : p[two[0]] + p[two[1]];
    }
    pick_experts(best, m->n_groups, m->top_groups, kept);
    for (uint32_t g = 0; g < m->n_groups; g++) {
        if (at < m->top_groups && kept[at] == g) {
            at++;
            continue;
        }
        for (uint32_t e = 0; e < size; e++) rank[(size_t)g * size + e] = -INFINITY;
    }
}

static void route_rows(void *ctx, size_t begin, size_t end) {
    const sl_routing *a = ctx;
    uint32_t n = a->m->n_experts, k = a->m->top_k;
    for (size_t r = begin; r < end; r++) {
        float *p = a->logit + r * n, *gate = a->gate + r * k, sum = 0;
        uint32_t *expert = a->expert + r * k;
        sl_softmax(a->k, p, n, p);
        if (a->m->n_groups > 1) keep_groups(a->m, 1, p);
        pick_experts(p, n, k, expert);
        for (uint32_t j = 0; j < k; j++) sum += gate[j] = p[expert[j]];
        for (uint32_t j = 0; a->m->norm_topk && j < k; j++) gate[j] /= sum;
        for (uint32_t j = 0; a->m->route_scale > 0 && j < k; j++) gate[j] *= a->m->route_scale;
    }
}

static void route_logits(void *ctx, size_t begin, size_t end) {
    const sl_routing *a = ctx;
    uint32_t n = a->m->n_experts, k = a->m->top_k;
    for (size_t r = begin; r < end; r++) {
        const float *p = a->logit + r * n;
        uint32_t *expert = a->expert + r * k;
        pick_experts(p, n, k, expert);
        for (uint32_t j = 0; j < k; j++)
            a->gate[r * k + j] = 1.0f / (1.0f + sl_expf(-p[expert[j]]));
    }
}

static void route_sigmoid(void *ctx, size_t begin, size_t end) {
    const sl_routing *a = ctx;
    uint32_t n = a->m->n_experts, k = a->m->top_k;
    for (size_t r = begin; r < end; r++) {
        float *p = a->logit + r * n, *rank = a->rank + r * n, *gate = a->gate + r * k, sum = 0;
        uint32_t *expert = a->expert + r * k;
        for (uint32_t e = 0; e < n; e++) {
            p[e] = 1.0f / (1.0f + sl_expf(-p[e]));
            rank[e] = p[e] + a->bias[e];
        }
        keep_groups(a->m, 2, rank);
        pick_experts(rank, n, k, expert);
        for (uint32_t j = 0; j < k; j++) sum += gate[j] = p[expert[j]];
        for (uint32_t j = 0; a->m->norm_topk && j < k; j++) gate[j] /= sum + 1e-20f;
        for (uint32_t j = 0; j < k; j++) gate[j] *= a->m->route_scale;
    }
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
    if (m->skew) draw_rows(m, layer, rows, expert, gate);
    const sl_weights *w = &m->block[layer];
    size_t level = scratch->used;
    SL_ASSERT(w->mat[SL_ROLE_ROUTER].data != NULL);
    bool grouped = m->arch->router == SL_ROUTER_SIGMOID_GROUPS;
    float *logit = sl_take_rows(scratch, n_rows, m->spec.n_experts);
    float *rank = grouped ? sl_take_rows(scratch, n_rows, m->spec.n_experts) : NULL;
    sl_norm(m, ex, &w->mat[SL_ROLE_FFN_NORM], x, n_rows, h);
    sl_project(ex, &w->mat[SL_ROLE_ROUTER], h, n_rows, logit,
               scratch); /* also when drawn: its time counts */
    if (w->mat[SL_ROLE_LOGIT_BIAS].data)
        sl_bias_add(ex, logit, &w->mat[SL_ROLE_LOGIT_BIAS], n_rows);
    scratch->used = level;
    if (m->skew) return;
    sl_routing a = {
        .k = ex->k, .m = &m->spec, .logit = logit, .rank = rank, .expert = expert, .gate = gate};
    if (grouped) a.bias = m->route_bias + (size_t)m->spec.moe_index[layer] * m->spec.n_experts;
    sl_pool_fn route = grouped                                     ? route_sigmoid
                       : m->arch->router == SL_ROUTER_SIGMOID_TOPK ? route_logits
                                                                   : route_rows;
    if (ex->pool && n_rows > 16)
        sl_pool_run(ex->pool, n_rows, 16, route, &a);
    else
        route(&a, 0, n_rows);
}

void sl_model_head_rows(const sl_model *m, const sl_exec *ex, const float *x, const uint32_t *row,
                        uint32_t n, float *h) {
    size_t d = m->spec.d_model;
    for (uint32_t i = 0; i < n; i++) memcpy(h + i * d, x + row[i] * d, d * sizeof *h);
    if (n) sl_norm(m, ex, &m->whole.mat[SL_ROLE_FINAL_NORM], h, n, h);
}

void sl_model_head_part(const sl_model *m, const sl_exec *ex, const float *h, uint32_t n,
                        uint32_t first, uint32_t count, float *logits, sl_arena *scratch) {
    const sl_mat *head = &m->whole.mat[SL_ROLE_LM_HEAD];
    const uint32_t vocab = m->stored.vocab;
    if (n == 0) return;
    SL_ASSERT(head->data != NULL && first <= vocab && count <= vocab - first);
    if (m->gang) { /* as large a part of what each rank has */
        const uint64_t mine = head->n, end = first + count;
        first = (uint32_t)(mine * first / vocab);
        count = (uint32_t)(mine * end / vocab) - first;
        logits += m->holds.vocab.first;
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
