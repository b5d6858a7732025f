/* What a rank of a gang holds: its units of what the gang shares, and its part of each matrix,
 * where that is mapped or of what is copied. docs/tensor-parallel.md has the rules. */
#include "model/block_int.h"

#include <string.h>

#define OUT_UNIT 32u

static uint32_t gcd(uint32_t a, uint32_t b) {
    while (b) {
        uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* n of what there are `units` of, `values` each. */
static sl_holding cut_of(sl_rank r, uint32_t units, uint32_t values) {
    const sl_extent e = sl_rank_range(r, units);
    sl_holding h = {.first = e.first * values,
                    .n = e.n * values,
                    .even = true,
                    .segments = sl_rank_segments(r, units, values)};
    for (uint32_t i = 0; i < r.of; i++) {
        const sl_extent has = sl_rank_range((sl_rank){i, r.of}, units);
        if (has.first * values % 2 || has.n * values % 2) h.even = false;
    }
    return h;
}

/* Heads, as many a unit as fill blocks of O. The segments are those of O's columns. */
static void cut_heads(sl_model *m) {
    const sl_model_spec *all = &m->stored;
    uint32_t wide = all->kv_lora ? all->v_dim : all->head_dim;
    uint32_t heads = m->blocks.o / gcd(m->blocks.o, wide);
    SL_ASSERT(all->n_heads % heads == 0); /* rows are whole blocks */
    sl_holdings *c = &m->holds;
    c->heads = cut_of(m->rank, all->n_heads / heads, heads);
    c->heads.segments = sl_rank_segments(m->rank, all->n_heads / heads, heads * wide);
    m->spec.n_heads = c->heads.n;
    if (all->kv_lora) {
        c->kv_heads = (sl_holding){.n = all->n_kv_heads};
        return;
    }
    uint32_t group = all->n_heads / all->n_kv_heads, last = c->heads.first + c->heads.n;
    c->kv_heads.first = c->heads.first / group;
    c->kv_heads.n = c->heads.n ? (last - 1) / group + 1 - c->kv_heads.first : 0;
    m->spec.n_kv_heads = c->kv_heads.n;
}

static void cut_width(const sl_model *m, uint32_t block, sl_holding *cut, uint32_t *width) {
    SL_ASSERT(*width % block == 0);
    *cut = cut_of(m->rank, *width / block, block);
    *width = cut->n;
}

/* Sums in segments are of columns; else ranks have rows of O and DOWN, and no number is added
 * otherwise than by one device. */
static bool takes_rows(const sl_model *m) {
    return !sl_rank_alone(m->rank) && !m->segmented;
}

/* As many rows a unit as lie in two lines of the results, which no other rank writes. */
static void cut_out(sl_model *m) {
    const uint32_t d = m->stored.d_model;
    const uint32_t unit = d % OUT_UNIT || d < OUT_UNIT * SL_MAX_RANKS ? 1 : OUT_UNIT;
    m->holds.out = cut_of(m->rank, d / unit, unit);
}

void sl_rank_take(sl_model *m) {
    sl_model_spec *s = &m->spec;
    if (sl_rank_alone(m->rank) && !m->segmented) return;
    cut_heads(m);
    cut_width(m, m->blocks.dense, &m->holds.dense, &s->d_ff_dense);
    cut_width(m, m->blocks.expert, &m->holds.expert, &s->d_ff_expert);
    cut_width(m, m->blocks.shared, &m->holds.shared, &s->d_ff_shared);
    m->holds.vocab = cut_of(m->rank, s->vocab, 1);
    if (takes_rows(m)) cut_out(m);
}

/* What of a dimension the rank has, in its values; false: all of it. */
static bool part_of(const sl_model *m, sl_arch_dim dim, uint32_t *first, uint32_t *n) {
    const sl_model_spec *s = &m->stored;
    const sl_holdings *c = &m->holds;
    const sl_holding *cut = &c->heads;
    uint32_t values = 1;
    switch (dim) {
    case SL_DIM_Q:
        values = sl_query_dim(s);
        break;
    case SL_DIM_KV:
        cut = &c->kv_heads;
        values = s->head_dim;
        break;
    case SL_DIM_KV_B:
        values = s->nope_dim + s->v_dim;
        break;
    case SL_DIM_K_B:
        values = s->kv_lora;
        break;
    case SL_DIM_V:
        values = s->v_dim;
        break;
    case SL_DIM_HEADS:
        break;
    case SL_DIM_FF_DENSE:
        cut = &c->dense;
        break;
    case SL_DIM_FF_EXPERT:
        cut = &c->expert;
        break;
    case SL_DIM_FF_SHARED:
        cut = &c->shared;
        break;
    case SL_DIM_VOCAB:
        cut = &c->vocab;
        break;
    default:
        return false;
    }
    *first = cut->first * values;
    *n = cut->n * values;
    return true;
}

static void take_rows(sl_mat *mat, uint32_t first, uint32_t n) {
    mat->data = sl_mat_at(mat, first, 0);
    mat->scale_row += first;
    mat->n = n;
}

static void take_columns(sl_mat *mat, uint32_t first, uint32_t n) {
    SL_ASSERT(first % sl_dtype_block(mat->dtype) == 0 && n % sl_dtype_block(mat->dtype) == 0);
    if (!mat->scale_k) mat->scale_k = mat->k;
    mat->stride = sl_mat_stride(mat);
    mat->data = sl_mat_at(mat, 0, first);
    mat->scale_col += first;
    mat->k = n;
}

/* Whose norm is of all heads' values together, which ranks gather first; rows of the embedding are
 * read by whoever needs them. */
static bool stays_whole(sl_arch_role role) {
    return role == SL_ROLE_Q_NORM || role == SL_ROLE_K_NORM || role == SL_ROLE_EMBED;
}

/* How the inputs are cut of a matrix whose outputs ranks join; NULL: of any other matrix. */
static const sl_segments *joined_segments(const sl_model *m, sl_arch_role role) {
    switch (role) {
    case SL_ROLE_O:
        return &m->holds.heads.segments;
    case SL_ROLE_DENSE_DOWN:
        return &m->holds.dense.segments;
    case SL_ROLE_SHARED_DOWN:
        return &m->holds.shared.segments;
    case SL_ROLE_EXPERT_DOWN:
        return &m->holds.expert.segments;
    default:
        return NULL;
    }
}

sl_part sl_rank_part(const sl_model *m, const sl_arch_tensor *t, const sl_mat *whole) {
    sl_part p = {{0, whole->n}, {0, whole->k}};
    if (sl_rank_alone(m->rank) || stays_whole(t->role)) return p;
    if (takes_rows(m) && (joined_segments(m, t->role) || t->role == SL_ROLE_MTP_IN)) {
        p.rows = (sl_extent){m->holds.out.first, m->holds.out.n};
        return p;
    }
    if (t->k == SL_DIM_NONE) {
        (void)part_of(m, t->n, &p.columns.first, &p.columns.n);
        return p;
    }
    (void)part_of(m, t->n, &p.rows.first, &p.rows.n);
    (void)part_of(m, t->k, &p.columns.first, &p.columns.n);
    return p;
}

void sl_rank_cut(const sl_model *m, const sl_arch_tensor *t, sl_mat *mat) {
    const sl_part p = sl_rank_part(m, t, mat);
    mat->segments = m->segmented ? joined_segments(m, t->role) : NULL;
    if (p.rows.n != mat->n) take_rows(mat, p.rows.first, p.rows.n);
    if (p.columns.n != mat->k) take_columns(mat, p.columns.first, p.columns.n);
}

void sl_rank_keep(const sl_model *m, const sl_arch_tensor *t, const sl_part *p, const void *copy,
                  sl_mat *mat) {
    mat->segments = m->segmented ? joined_segments(m, t->role) : NULL;
    mat->data = copy;
    mat->n = p->rows.n;
    mat->k = p->columns.n;
}

/* Whether strips of that type may be cut behind value `at` of the `all` of a row. */
static bool may_be_cut(sl_dtype t, uint32_t at, uint32_t all) {
    return at % sl_strips_unit(t) == 0 || at == all;
}

bool sl_rank_fits_strips(const sl_model *m, const sl_arch_tensor *t, const sl_mat *mat,
                         sl_strip_cut *out) {
    const sl_part p = sl_rank_part(m, t, mat);
    const sl_segments *s = m->segmented ? joined_segments(m, t->role) : NULL;
    const uint32_t rows[] = {p.rows.first, p.rows.first + p.rows.n};
    const uint32_t values[] = {p.columns.first, p.columns.first + p.columns.n};
    for (size_t i = 0; i < SL_LEN(rows); i++) {
        *out = (sl_strip_cut){"row", rows[i], mat->n, SL_STRIP_ROWS};
        if (rows[i] % SL_STRIP_ROWS) return false;
    }
    *out = (sl_strip_cut){"value", 0, mat->k, sl_strips_unit(mat->dtype)};
    for (size_t i = 0; i < SL_LEN(values); i++) {
        out->at = values[i];
        if (!may_be_cut(mat->dtype, out->at, mat->k)) return false;
    }
    for (uint32_t i = 0; s && i < s->n; i++) {
        out->at = values[0] + s->end[i];
        if (!may_be_cut(mat->dtype, out->at, mat->k)) return false;
    }
    return true;
}

sl_extent sl_rank_vocab(const sl_model *m) {
    if (sl_rank_alone(m->rank)) return (sl_extent){0, m->stored.vocab};
    return (sl_extent){m->holds.vocab.first, m->holds.vocab.n};
}

void sl_rank_cut_head(const sl_model *m, sl_mat *mat) {
    const sl_extent rows = sl_rank_vocab(m);
    take_rows(mat, rows.first, rows.n);
}

bool sl_rank_gathers(const sl_model *m) {
    const sl_mat *norm = &m->block[m->held.first].mat[SL_ROLE_Q_NORM];
    return m->gang && m->spec.qk_norm && norm->data && norm->k > m->spec.head_dim;
}

sl_idle sl_model_idle(const sl_model *m) {
    const sl_holdings *c = &m->holds;
    const sl_model_spec *s = &m->stored;
    if (sl_rank_alone(m->rank)) return (sl_idle){0};
    return (sl_idle){.heads = c->heads.n == 0,
                     .dense = s->d_ff_dense && c->dense.n == 0,
                     .expert = s->d_ff_expert && c->expert.n == 0,
                     .shared = s->d_ff_shared && c->shared.n == 0};
}

bool sl_model_out(const sl_model *m, sl_extent *out) {
    if (!takes_rows(m)) return false;
    *out = (sl_extent){m->holds.out.first, m->holds.out.n};
    return true;
}

bool sl_rank_gives_columns(const sl_model *m) {
    return takes_rows(m);
}

sl_extent sl_model_columns(const sl_model *m) {
    return m->gang ? m->gang->out : (sl_extent){0, m->stored.d_model};
}

sl_extent sl_model_kv_heads(const sl_model *m) {
    if (sl_rank_alone(m->rank)) return (sl_extent){0, m->spec.n_kv_heads};
    return (sl_extent){m->holds.kv_heads.first, m->holds.kv_heads.n};
}

bool sl_model_in_strips(const sl_model *m) {
    return m->strips;
}

/* ---- what ranks do together ---- */

size_t sl_rank_scratch_bytes(const sl_model *m, uint32_t max_rows) {
    const sl_model_spec *s = &m->stored;
    if (!m->gang) return 0;
    size_t q = (size_t)s->n_heads * SL_MAX(s->head_dim, s->v_dim);
    size_t whole = SL_MAX(q, SL_MAX(s->d_ff_dense, s->d_ff_shared));
    size_t joined = takes_rows(m) ? sl_scratch_arrival(max_rows, whole) : 0;
    return 2 * sl_scratch_floats(max_rows, SL_MAX(q, s->d_model)) + joined;
}

size_t sl_rank_pairs_bytes(const sl_model *m, uint32_t max_pairs) {
    const uint32_t whole = m->stored.d_ff_expert;
    if (!m->gang || !takes_rows(m)) return 0;
    return sl_scratch_arrival(max_pairs, whole);
}

uint32_t sl_rank_group(const sl_model *m) {
    if (!m->gang || m->spec.kv_lora) return 0;
    return m->stored.n_heads / m->stored.n_kv_heads;
}

uint32_t sl_rank_skip(const sl_model *m) {
    return m->gang ? m->holds.heads.first - m->holds.kv_heads.first * sl_rank_group(m) : 0;
}

void sl_rank_needs(const sl_model *m, const float *x, uint32_t n_rows) {
    if (m->gang && m->gang->needs) m->gang->needs(m->gang->ctx, x, n_rows);
}

sl_mat sl_rank_gives(const sl_model *m, const sl_mat *w) {
    const sl_extent mine = sl_model_columns(m);
    sl_mat own = *w;
    if (own.n != mine.n) take_rows(&own, mine.first, mine.n); /* with segments it was not cut */
    return own;
}

void sl_model_wrote(const sl_model *m, float *x, uint32_t n_rows) {
    if (m->gang) m->gang->wrote(m->gang->ctx, x, n_rows);
}

void sl_model_hear(const sl_model *m) {
    if (m->gang && m->gang->hear) m->gang->hear(m->gang->ctx);
}

uint32_t sl_rank_first(const sl_model *m) {
    return m->gang && takes_rows(m) ? m->holds.out.first : 0;
}

void sl_rank_join(const sl_model *m, const sl_exec *ex, float *y, uint32_t n_rows, uint32_t *first,
                  uint32_t *n) {
    *first = m->holds.out.first;
    *n = m->holds.out.n;
    if (!takes_rows(m)) m->gang->sum(m->gang->ctx, ex, y, n_rows, m->spec.d_model, first, n);
}

void sl_stream_add(const sl_model *m, const sl_exec *ex, const sl_mat *bias, float *y,
                   uint32_t n_rows, float *x) {
    const sl_exec alone = {.k = ex->k};
    const uint32_t d = m->spec.d_model;
    const bool biased = bias && bias->data;
    uint32_t first, n;
    if (!m->gang) {
        if (biased) sl_bias_add(ex, y, bias, n_rows);
        sl_vec_add(ex, x, y, (size_t)n_rows * d);
        return;
    }
    sl_rank_join(m, ex, y, n_rows, &first, &n);
    for (uint32_t r = 0; r < n_rows; r++) {
        const size_t at = (size_t)r * d + first;
        if (biased) {
            const sl_mat part = sl_bias_part(bias, first, n);
            sl_bias_add(&alone, y + at, &part, 1);
        }
        sl_vec_add(&alone, x + at, y + at, n);
    }
    m->gang->wrote(m->gang->ctx, x, n_rows);
}

void sl_rank_put(const sl_model *m, const sl_exec *ex, float *y, uint32_t n_rows,
                 const float *scale, float *h) {
    const sl_exec alone = {.k = ex->k};
    uint32_t first, n;
    sl_rank_join(m, ex, y, n_rows, &first, &n);
    for (uint32_t r = 0; r < n_rows; r++) {
        const size_t at = (size_t)r * m->spec.d_model + first;
        if (scale) sl_gate_rows(&alone, y + at, scale + r, 1, n);
        memcpy(h + at, y + at, n * sizeof *h);
    }
    m->gang->meet(m->gang->ctx);
}

void sl_rank_norm(const sl_model *m, const sl_exec *ex, const sl_mat *w, uint32_t n_rows,
                  const sl_holding *mine, float *x, sl_arena *scratch) {
    const uint32_t dim = m->spec.head_dim, first = mine->first * dim, n = mine->n * dim;
    size_t level = scratch->used;
    float *whole = sl_take_rows(scratch, n_rows, w->k);
    m->gang->gather(m->gang->ctx, x, n_rows, first, n, w->k, whole);
    sl_norm(m, ex, w, whole, n_rows, whole);
    for (uint32_t r = 0; r < n_rows; r++)
        memcpy(x + (size_t)r * n, whole + (size_t)r * w->k + first, n * sizeof *x);
    scratch->used = level;
}
