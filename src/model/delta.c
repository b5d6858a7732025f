/* Blocks of linear attention (gated DeltaNet, arXiv:2412.06464, as Qwen3-Next has it): what is
 * around the rule itself (kernel/delta.h), and its small weights, widened when the model is opened.
 */
#include "model/block_int.h"

#define DELTA_ROWS 128u /* a thread that pass together */

size_t sl_delta_scratch_bytes(const sl_model_spec *s, uint32_t max_rows) {
    const size_t in = sl_delta_channels(s) + sl_delta_out(s);
    return sl_scratch_floats(max_rows, s->d_model) + sl_scratch_floats(max_rows, in) +
           sl_scratch_floats(max_rows, 2 * (size_t)s->delta_v_heads) +
           sl_scratch_floats(max_rows, sl_delta_out(s)) + sl_scratch_act(max_rows, sl_delta_out(s));
}

/* The rows' products with the matrices before the rule. */
static void project(const sl_model *m, const sl_exec *ex, const sl_mat *w, const sl_rows *rows,
                    const float *x, float *h, float *in, float *small, sl_arena *scratch) {
    const bool parts = m->spec.delta_parts;
    const sl_mat *first = &w[parts ? SL_ROLE_DELTA_QKV : SL_ROLE_DELTA_IN];
    sl_gemm_job jobs[] = {sl_dense_job(first, h, rows->n, in),
                          sl_dense_job(&w[SL_ROLE_DELTA_SMALL], h, rows->n, small),
                          sl_dense_job(&w[SL_ROLE_DELTA_GATE], h, rows->n, in + first->n)};
    const sl_mat *const into[] = {jobs[0].w, jobs[1].w, jobs[2].w};
    const uint32_t n = parts ? 3 : 2;
    const size_t level = scratch->used;
    const sl_act act = sl_norm_for(m, ex, &w[SL_ROLE_ATTN_NORM], x, rows->n, into, n, h, scratch);
    for (uint32_t i = 0; i < n; i++) jobs[i].act = act;
    if (parts) jobs[0].y_stride = jobs[2].y_stride = first->n + jobs[2].w->n;
    sl_gemm(ex, jobs, n);
    scratch->used = level;
}

static void pass(const sl_model *m, const sl_exec *ex, uint32_t layer, const sl_rows *rows,
                 float *x, sl_arena *scratch) {
    const sl_model_spec *s = &m->spec;
    const sl_mat *w = m->block[layer].mat;
    const sl_delta_weights *own = &m->delta[layer];
    const size_t level = scratch->used;
    float *h = sl_take_rows(scratch, rows->n, s->d_model), *y = h;
    float *in = sl_take_rows(scratch, rows->n, sl_delta_channels(s) + sl_delta_out(s));
    float *small = sl_take_rows(scratch, rows->n, w[SL_ROLE_DELTA_SMALL].n);
    float *o = sl_take_rows(scratch, rows->n, sl_delta_out(s));
    project(m, ex, w, rows, x, h, in, small, scratch);
    sl_delta_args a = {.m = s,
                       .layer = layer,
                       .n_rows = rows->n,
                       .in = in,
                       .small = small,
                       .conv = own->conv,
                       .rate = own->rate,
                       .shift = own->shift,
                       .norm = own->norm,
                       .pos = rows->pos,
                       .state = rows->state,
                       .done = rows->done,
                       .states = rows->states,
                       .o = o};
    for (sl_delta_part i = 0; i < SL_DELTA_PARTS; i++)
        a.lie[i] = sl_delta_lie_of(s, s->delta_parts, i);
    sl_delta(ex, &a);
    sl_project(ex, &w[SL_ROLE_DELTA_OUT], o, rows->n, y, scratch);
    sl_vec_add(ex, x, y, (size_t)rows->n * s->d_model);
    scratch->used = level;
}

void sl_delta_attention(const sl_model *m, const sl_exec *ex, uint32_t layer, const sl_rows *rows,
                        float *x, sl_arena *scratch) {
    const uint32_t most = sl_exec_rows(ex, DELTA_ROWS);
    SL_ASSERT(m->block[layer].mat[SL_ROLE_DELTA_OUT].data && rows->states && !m->gang);
    for (uint32_t at = 0; at < rows->n; at += most) {
        const sl_rows some = sl_some_rows(rows, at, SL_MIN(rows->n - at, most));
        pass(m, ex, layer, &some, x + (size_t)at * m->spec.d_model, scratch);
    }
}

/* ---- when a model is opened ---- */

static float *widened(sl_model *m, const sl_mat *w) {
    const sl_exec ex = {.k = sl_kernels_base()};
    const size_t n = (size_t)w->n * w->k;
    float *out = sl_model_own(m, n * sizeof *out);
    if (out) sl_widen(&ex, w->data, w->dtype, n, out);
    return out;
}

static bool bind_block(sl_model *m, uint32_t layer) {
    const sl_mat *w = m->block[layer].mat, *conv = &w[SL_ROLE_DELTA_CONV];
    sl_delta_weights *own = &m->delta[layer];
    if (!conv->data) return true;
    float *rows = widened(m, conv); /* [channels][taps] */
    own->conv = sl_model_own(m, (size_t)conv->n * conv->k * sizeof *own->conv);
    own->rate = widened(m, &w[SL_ROLE_DELTA_RATE]);
    own->shift = widened(m, &w[SL_ROLE_DELTA_SHIFT]);
    own->norm = widened(m, &w[SL_ROLE_DELTA_NORM]);
    if (!rows || !own->conv || !own->rate || !own->shift || !own->norm) return false;
    for (size_t c = 0; c < conv->n; c++)
        for (size_t j = 0; j < conv->k; j++) own->conv[j * conv->n + c] = rows[c * conv->k + j];
    const bool rates = m->spec.delta_rates && !m->random; /* random ones have any sign */
    for (uint32_t h = 0; h < m->spec.delta_v_heads; h++)
        own->rate[h] = rates ? -own->rate[h] : sl_expf(own->rate[h]);
    return true;
}

/* Weights that are stored less 1. */
static bool raise(sl_model *m, sl_mat *w) {
    if (!w->data) return true;
    float *own = widened(m, w);
    for (uint32_t i = 0; own && i < w->k; i++) own[i] += 1;
    *w = (sl_mat){.data = own, .n = 1, .k = w->k, .dtype = SL_F32};
    return own != NULL;
}

static bool raise_all(sl_model *m) {
    static const sl_arch_role roles[] = {
        SL_ROLE_ATTN_NORM,      SL_ROLE_FFN_NORM,       SL_ROLE_Q_NORM,  SL_ROLE_K_NORM,
        SL_ROLE_MTP_TOKEN_NORM, SL_ROLE_MTP_STATE_NORM, SL_ROLE_MTP_NORM};
    bool done = raise(m, &m->whole.mat[SL_ROLE_FINAL_NORM]);
    for (uint32_t l = 0; l < sl_model_blocks(m); l++)
        for (size_t i = 0; done && i < SL_LEN(roles); i++)
            done = raise(m, &m->block[l].mat[roles[i]]);
    return done;
}

static bool has_some(const sl_model *m) {
    for (uint32_t l = 0; m->stored.n_linear && l < m->stored.n_layers; l++)
        if (m->block[l].mat[SL_ROLE_DELTA_OUT].data) return true;
    return false;
}

sl_status sl_delta_bind(sl_model *m, sl_err *err) {
    const sl_model_spec *s = &m->stored;
    bool done = !s->norm_past_one || raise_all(m);
    if (!has_some(m))
        return done ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "%s: weights of norms", m->folder);
    if (!sl_rank_alone(m->rank) || m->segmented)
        return sl_fail(
            err, SL_ERR_UNSUPPORTED,
            "%s: %s has linear attention, which ranks do not share: it runs without --tp "
            "and --segments",
            m->folder, s->arch);
    if (!(m->delta = sl_alloc(s->n_layers, sizeof *m->delta))) done = false;
    for (uint32_t l = 0; done && l < s->n_layers; l++) done = bind_block(m, l);
    return done ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "%s: weights of linear attention", m->folder);
}
