/* Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434 sec. 2.1), absorbed: keys and values
 * of a head are W_UK c and W_UV c of one latent c a position, so that
 *
 *   q . (W_UK c) = (W_UK^T q) . c        sum_j p_j W_UV c_j = W_UV sum_j p_j c_j
 *
 * and attention runs over the latents themselves, one row for all heads. Long chunks of a prompt
 * may take the expanded form instead (mla_expanded.c; docs/numbers.md says when). */
#include "model/block_int.h"

#include <math.h>

/* Rows whose absorbed queries are held at a time: with 128 heads of 512 + 64 values they are wide.
 */
#define MLA_ROWS 64u

/* Of the norms of latents, whatever the model's other norms have. */
#define LATENT_EPS 1e-6f

size_t sl_mla_scratch_bytes(const sl_model_spec *s, uint32_t max_rows) {
    size_t n = max_rows, piece = SL_MIN(max_rows, MLA_ROWS), heads = s->n_heads;
    size_t wide = 2 * sl_scratch_floats(n, s->d_model) + sl_scratch_floats(n, s->q_lora);
    wide += sl_scratch_floats(n, heads * sl_query_dim(s)) + sl_scratch_floats(n, heads * s->v_dim);
    wide += sl_scratch_floats(n, s->head_dim) + sl_scratch_floats(n, s->kv_lora);
    wide += sl_scratch_act(n, s->d_model) + sl_scratch_act(n, SL_MAX(s->q_lora, heads * s->v_dim));
    size_t absorbed = sl_scratch_floats(piece, heads * (s->head_dim + s->kv_lora)) +
                      heads * sizeof(sl_gemm_job) + 2 * SL_SCRATCH_SLACK;
    return wide + SL_MAX(absorbed, sl_mla_expanded_bytes(s, max_rows)) + 2 * SL_SCRATCH_SLACK;
}

/* The factor of sin and cos, of both sides, on the queries: what is cached has none of it. */
static float turn_gain(const sl_model_spec *s) {
    return s->yarn.factor > 0 ? s->yarn.attention * s->yarn.attention : 1;
}

static float score_scale(const sl_model_spec *s) {
    double more = s->yarn.scores > 0 ? (double)s->yarn.scores : 1;
    return (float)(more / sqrt((double)sl_query_dim(s)));
}

/* Rotates the rope_dim values at x of every head of rows that are `stride` floats apart. */
static void turn(const sl_model *m, const sl_exec *ex, const uint32_t *pos, uint32_t n_rows,
                 uint32_t n_heads, uint32_t head_dim, float *x) {
    const sl_model_spec *s = &m->spec;
    const sl_rope_shape shape = {n_heads, head_dim, s->rope_dim, n_heads * head_dim};
    if (s->rope_pairs) sl_split_pairs(ex, x, n_rows * n_heads, s->rope_dim, head_dim);
    sl_rope(ex, x, pos, m->tables.rope_freq, n_rows, &shape);
}

/* q [n][n_heads][nope_dim + rope_dim] of the normalised rows h, or act. */
static void queries(const sl_model *m, const sl_exec *ex, uint32_t layer, const sl_rows *rows,
                    const float *h, const sl_act *act, float *q, sl_arena *scratch) {
    const sl_model_spec *s = &m->spec;
    const sl_mat *w = m->block[layer].mat;
    size_t level = scratch->used;
    uint32_t dim = sl_query_dim(s);
    const float gain = turn_gain(s);
    if (s->q_lora) {
        float *low = sl_take_rows(scratch, rows->n, s->q_lora);
        sl_project_act(ex, &w[SL_ROLE_Q_A], h, act, rows->n, low);
        const sl_mat *q_b = &w[SL_ROLE_Q_B];
        sl_act low_act = sl_norm_to(ex, &w[SL_ROLE_Q_A_NORM], LATENT_EPS, false, low, rows->n, &q_b,
                                    1, low, scratch);
        sl_project_act(ex, q_b, low, &low_act, rows->n, q);
    } else {
        sl_project_act(ex, &w[SL_ROLE_Q], h, act, rows->n, q);
    }
    turn(m, ex, rows->pos, rows->n, s->n_heads, dim, q + s->nope_dim);
    if (gain != 1) sl_scale_part(ex, q + s->nope_dim, dim, rows->n * s->n_heads, s->rope_dim, gain);
    scratch->used = level;
}

/* Writes latents and rotated keys of the rows into their pages. */
static void cache_rows(const sl_model *m, const sl_exec *ex, uint32_t layer, const sl_rows *rows,
                       const float *h, const sl_act *act, sl_arena *scratch) {
    const sl_model_spec *s = &m->spec;
    const sl_mat *w = m->block[layer].mat;
    size_t level = scratch->used, dim = s->head_dim, lora = s->kv_lora;
    float *key = sl_take_rows(scratch, rows->n, dim), *low = sl_take_rows(scratch, rows->n, lora);
    sl_project_act(ex, &w[SL_ROLE_KV_A], h, act, rows->n, key);
    sl_copy_rows(ex, key, dim, rows->n, s->kv_lora, low, lora);
    sl_rmsnorm(ex, low, &w[SL_ROLE_KV_A_NORM], LATENT_EPS, rows->n, s->kv_lora, low);
    turn(m, ex, rows->pos, rows->n, 1, s->head_dim, key + lora);
    sl_kv_put put = {.m = s,
                     .layer = layer,
                     .n_rows = rows->n,
                     .n_tiles = 1,
                     .width = s->kv_lora,
                     .x = low,
                     .x_stride = s->kv_lora,
                     .pos = rows->pos,
                     .pages = rows->pages,
                     .kv = rows->kv};
    sl_put_kv(ex, &put);
    put.column = put.width;
    put.width = s->rope_dim;
    put.x = key + lora;
    put.x_stride = s->head_dim;
    sl_put_kv(ex, &put);
    scratch->used = level;
}

/* One product a head: row r of head h from x + r * x_row + h * x_head, likewise to y. */
static void each_head(const sl_exec *ex, const sl_mat *w, uint32_t n_heads, uint32_t n_rows,
                      const float *x, uint32_t x_head, float *y, uint32_t y_head,
                      sl_arena *scratch) {
    const size_t level = scratch->used, lists = ex->lists ? ex->lists->used : 0;
    sl_gemm_job *job = sl_take_list(ex, scratch, n_heads, sizeof *job);
    for (uint32_t h = 0; h < n_heads; h++)
        job[h] = (sl_gemm_job){.w = &w[h],
                               .x = x + (size_t)h * x_head,
                               .n_rows = n_rows,
                               .x_stride = n_heads * x_head,
                               .y_stride = n_heads * y_head,
                               .y = y + (size_t)h * y_head};
    sl_gemm(ex, job, n_heads);
    scratch->used = level;
    if (ex->lists) ex->lists->used = lists; /* once for 64 rows */
}

/* o [n][n_heads][v_dim] of n rows from `first` on; q and o begin at row 0. */
static void absorbed(const sl_model *m, const sl_exec *ex, uint32_t layer, const sl_rows *rows,
                     uint32_t first, uint32_t n, const float *q, float *o, sl_arena *scratch) {
    const sl_model_spec *s = &m->spec;
    const sl_mla_weights *w = &m->mla[layer];
    const size_t level = scratch->used;
    uint32_t dim = sl_query_dim(s), wide = s->head_dim, lora = s->kv_lora;
    float *low = sl_take_rows(scratch, n, (size_t)s->n_heads * wide);
    float *sum = sl_take_rows(scratch, n, (size_t)s->n_heads * lora);
    q += (size_t)first * s->n_heads * dim;
    each_head(ex, w->absorb, s->n_heads, n, q, dim, low, wide, scratch);
    sl_copy_rows(ex, q + s->nope_dim, dim, n * s->n_heads, s->rope_dim, low + lora, wide);
    const sl_attn_args args = {.m = s,
                               .layer = layer,
                               .n_rows = n,
                               .q = low,
                               .q_stride = s->n_heads * wide,
                               .pos = rows->pos + first,
                               .kv = rows->kv,
                               .pages = rows->pages + first,
                               .low = rows->low ? rows->low + first : NULL,
                               .scale = score_scale(s),
                               .o = sum,
                               .o_stride = s->n_heads * lora};
    sl_attention(ex, &args);
    each_head(ex, w->value, s->n_heads, n, sum, lora, o + (size_t)first * s->n_heads * s->v_dim,
              s->v_dim, scratch);
    scratch->used = level;
}

/* The row after those that follow row r in one request, and whether they are enough to expand. */
static uint32_t chunk_end(const sl_exec *ex, const sl_rows *rows, uint32_t r, bool *expand) {
    uint32_t end = r + 1;
    while (end < rows->n && rows->pages[end] == rows->pages[r]) end++;
    *expand = ex->expand_rows && end - r >= ex->expand_rows;
    return end;
}

/* Each chunk that is long enough in the expanded form, all that lies between them together. */
static void attend(const sl_model *m, const sl_exec *ex, uint32_t layer, const sl_rows *rows,
                   const float *q, float *o, sl_arena *scratch) {
    const sl_model_spec *s = &m->spec;
    size_t q_row = (size_t)s->n_heads * sl_query_dim(s), o_row = (size_t)s->n_heads * s->v_dim;
    for (uint32_t r = 0; r < rows->n;) {
        bool expand = false;
        uint32_t end = r, next = r;
        while (next < rows->n && !expand) {
            end = next;
            next = chunk_end(ex, rows, next, &expand);
        }
        if (!expand) end = rows->n;
        for (; r < end; r += SL_MIN(MLA_ROWS, end - r))
            absorbed(m, ex, layer, rows, r, SL_MIN(MLA_ROWS, end - r), q, o, scratch);
        if (!expand) return;
        sl_mla_expanded(m, ex, layer, rows, r, next - r, score_scale(s), q + r * q_row,
                        o + r * o_row, scratch);
        r = next;
    }
}

void sl_mla_attention(const sl_model *m, const sl_exec *ex, uint32_t layer, const sl_rows *rows,
                      float *x, sl_arena *scratch) {
    const sl_model_spec *s = &m->spec;
    const sl_mat *w = m->block[layer].mat;
    size_t level = scratch->used;
    SL_ASSERT(m->mla[layer].absorb != NULL);
    if (rows->n == 0) return;
    sl_rank_needs(m, x, rows->n);
    float *h = sl_take_rows(scratch, rows->n, s->d_model);
    float *y = sl_take_rows(scratch, rows->n, s->d_model);
    float *q = sl_take_rows(scratch, rows->n, (size_t)s->n_heads * sl_query_dim(s));
    float *o = sl_take_rows(scratch, rows->n, (size_t)s->n_heads * s->v_dim);
    const sl_mat *const into[] = {&w[s->q_lora ? SL_ROLE_Q_A : SL_ROLE_Q], &w[SL_ROLE_KV_A]};
    size_t before = scratch->used;
    sl_act act =
        sl_norm_for(m, ex, &w[SL_ROLE_ATTN_NORM], x, rows->n, into, SL_LEN(into), h, scratch);
    queries(m, ex, layer, rows, h, &act, q, scratch);
    cache_rows(m, ex, layer, rows, h, &act, scratch);
    scratch->used = before;
    if (s->n_heads) attend(m, ex, layer, rows, q, o, scratch);
    const uint32_t all = m->stored.n_heads * s->v_dim;
    const sl_arrival heads =
        sl_rank_send(m, ex, &m->holds.heads, s->v_dim, sl_act_kinds(ex, &w[SL_ROLE_O]), o, rows->n,
                     all, scratch);
    sl_rank_project(m, ex, &w[SL_ROLE_O], &heads, y, scratch);
    sl_stream_add(m, ex, NULL, y, rows->n, x);
    scratch->used = level;
}

/* ---- the two parts of W_UKV ---- */

/* Both lie as they are used. */
static void take_head(const sl_model *m, const sl_mat *w, uint32_t h, sl_mla_weights *out) {
    const sl_model_spec *s = &m->spec;
    const sl_mat *k_b = &w[SL_ROLE_K_B], *v_b = &w[SL_ROLE_V_B];
    out->absorb[h] = *k_b;
    out->absorb[h].n = s->kv_lora;
    out->absorb[h].data = (const uint8_t *)k_b->data +
                          (size_t)h * s->kv_lora * sl_dtype_row_bytes(k_b->dtype, s->nope_dim);
    out->value[h] = *v_b;
    out->value[h].n = s->v_dim;
    out->value[h].data = (const uint8_t *)v_b->data +
                         (size_t)h * s->v_dim * sl_dtype_row_bytes(v_b->dtype, s->kv_lora);
}

/* Of head h inside kv_b [n_heads][nope_dim + v_dim][kv_lora]: W_UK^T [kv_lora][nope_dim], a copy
 * (in f32 where the values of kv_b come in blocks), and W_UV [v_dim][kv_lora] where it lies. */
static sl_status split_head(sl_model *m, const sl_mat *kv_b, uint32_t h, sl_mla_weights *w,
                            sl_err *err) {
    const sl_exec ex = {.k = sl_kernels_base()};
    const sl_model_spec *s = &m->spec;
    uint32_t lora = s->kv_lora, nope = s->nope_dim, first = h * (nope + s->v_dim);
    size_t line = sl_dtype_row_bytes(kv_b->dtype, lora);
    const uint8_t *at = (const uint8_t *)kv_b->data + first * line;
    bool plain = sl_dtype_is_plain(kv_b->dtype);
    w->value[h] = *kv_b;
    w->value[h].data = at + nope * line;
    w->value[h].n = s->v_dim;
    w->value[h].scale_row = kv_b->scale_row + first + nope;
    w->absorb[h] = (sl_mat){.data = at, .n = lora, .k = nope, .dtype = kv_b->dtype};
    if (m->random) return SL_OK; /* as random as a transpose of it */
    size_t size = plain ? sl_dtype_bytes(kv_b->dtype) : sizeof(float);
    uint8_t *copy = sl_model_own(m, (size_t)lora * nope * size);
    float *wide = plain ? NULL : sl_model_own(m, lora * sizeof *wide);
    if (!copy || (!plain && !wide))
        return sl_fail(err, SL_ERR_NOMEM, "%s: transposed W_UK", m->folder);
    for (uint32_t i = 0; i < nope; i++) {
        const uint8_t *row = plain ? at + i * line : (const uint8_t *)wide;
        if (!plain) sl_widen_row(&ex, kv_b, first + i, wide);
        for (uint32_t j = 0; j < lora; j++)
            memcpy(copy + ((size_t)j * nope + i) * size, row + j * size, size);
    }
    w->absorb[h].data = copy;
    if (!plain) w->absorb[h].dtype = SL_F32;
    return SL_OK;
}

static sl_status bind_block(sl_model *m, uint32_t layer, sl_err *err) {
    const sl_model_spec *s = &m->spec;
    sl_mat *mats = sl_model_own(m, 2 * (size_t)s->n_heads * sizeof *mats);
    if (!mats) return sl_fail(err, SL_ERR_NOMEM, "%s: %u heads", m->folder, s->n_heads);
    m->mla[layer] = (sl_mla_weights){.absorb = mats, .value = mats + s->n_heads};
    sl_status st = sl_model_goes_on(m, err);
    for (uint32_t h = 0; st == SL_OK && h < s->n_heads; h++)
        if (s->kv_parts)
            take_head(m, m->block[layer].mat, h, &m->mla[layer]);
        else
            st = split_head(m, &m->block[layer].mat[SL_ROLE_KV_B], h, &m->mla[layer], err);
    return st;
}

sl_status sl_mla_bind(sl_model *m, sl_err *err) {
    const sl_model_spec *s = &m->spec;
    sl_status st = SL_OK;
    sl_arch_role any = s->kv_parts ? SL_ROLE_K_B : SL_ROLE_KV_B;
    const sl_extent held = m->held;
    if (!s->kv_lora || !m->block[held.first].mat[any].data) return SL_OK;
    m->mla = sl_alloc(sl_model_blocks(m), sizeof *m->mla);
    if (!m->mla) return sl_fail(err, SL_ERR_NOMEM, "%s: %u latents", m->folder, s->n_layers);
    for (uint32_t l = held.first; st == SL_OK && l < held.first + held.n; l++)
        st = bind_block(m, l, err);
    return st == SL_OK && m->mtp ? bind_block(m, sl_mtp_block(s), err) : st;
}
