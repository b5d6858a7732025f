/* A checkpoint to one GGUF file. */
#include "model/convert.h"

#include "format/gguf_config.h"
#include "kernel/delta.h"
#include "model/convert_int.h"
#include "quant/block.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define CHUNK_ROWS 256u /* of one matrix, encoded at once */

/* A tensor of the file: one matrix, some of its rows in another order, or the matrices of all
 * experts of a block or of all heads. */
typedef struct piece {
    char name[SL_ARCH_NAME_MAX];
    const sl_mat *first; /* NULL: `whole` */
    sl_mat whole;
    size_t stride;          /* bytes from the matrix of one expert to that of the next */
    uint32_t n_mats, heads; /* heads: rows of each are to be paired; 0: they stay */
    bool delta;             /* rows are those of linear attention by parts, */
    uint32_t first_row;     /* from this one on */
    bool minus;             /* values are written with the other sign */
    sl_dtype type;
    uint64_t dim[3];
    uint32_t n_dims;
} piece;

typedef struct converting {
    const sl_model *m;
    const sl_gguf_arch *arch;
    const sl_convert_options *o;
    sl_gguf_out *w;
    piece *pieces;
    size_t n, cap;
    float *rope_factor; /* NULL: none is written */
    sl_convert_report report;
    uint64_t done;
    sl_err *err;
} converting;

static sl_dtype type_of(const converting *c, const sl_arch_tensor *t, uint32_t k) {
    sl_dtype type = c->o->type;
    if (t->k == SL_DIM_NONE || t->role == SL_ROLE_ROUTER || t->role == SL_ROLE_SHARED_SCALE ||
        t->role == SL_ROLE_DELTA_CONV)
        return SL_F32;
    if (type == SL_MXFP4 && t->scope != SL_SCOPE_EXPERT) type = SL_Q8_0;
    if (t->role == SL_ROLE_LM_HEAD && !sl_dtype_is_plain(type)) type = SL_Q8_0;
    if (k % sl_dtype_block(type) == 0) return type;
    return k % sl_dtype_block(SL_Q8_0) == 0 ? SL_Q8_0 : SL_F16;
}

static const sl_mat *piece_mat(const piece *p, uint32_t i) {
    const uint8_t *at = (const uint8_t *)(p->first ? p->first : &p->whole);
    return (const sl_mat *)(const void *)(at + i * p->stride);
}

/* Room for one more. */
static sl_status grow_pieces(converting *c) {
    if (c->n < c->cap) return SL_OK;
    size_t cap = 2 * c->cap + 256;
    piece *grown = sl_grow(c->pieces, c->cap, cap, sizeof *grown);
    if (!grown) return sl_fail(c->err, SL_ERR_NOMEM, "%zu tensors", cap);
    c->pieces = grown;
    c->cap = cap;
    return SL_OK;
}

/* Counts the piece and tells the writer of it. */
static void announce(converting *c, const piece *p) {
    const sl_mat *one = piece_mat(p, 0);
    uint64_t rows = (uint64_t)p->n_mats * one->n;
    c->report.weights += rows * one->k;
    c->report.bytes += rows * sl_dtype_row_bytes(p->type, one->k);
    c->report.other +=
        sl_dtype_block(c->o->type) > 1 && one->k % sl_dtype_block(c->o->type) && p->type != SL_F32;
    sl_gguf_out_tensor(c->w, p->name, p->type, p->dim, p->n_dims);
}

/* Names it, chooses its type and keeps it; dimensions of one matrix are added where there are none
 * yet. */
static sl_status add_piece(converting *c, const sl_arch_tensor *t, uint32_t layer, piece made) {
    sl_status st = grow_pieces(c);
    if (st != SL_OK) return st;
    piece *p = &c->pieces[c->n++];
    *p = made;
    const sl_mat *one = piece_mat(p, 0);
    sl_arch_gguf_name(c->m->arch, &c->m->spec, t, layer, p->name);
    p->type = type_of(c, t, one->k);
    if (p->n_mats > 1 || t->scope == SL_SCOPE_EXPERT) p->dim[p->n_dims++] = p->n_mats;
    if (t->k != SL_DIM_NONE && t->n != SL_DIM_ONE) p->dim[p->n_dims++] = one->n;
    p->dim[p->n_dims++] = one->k;
    announce(c, p);
    return SL_OK;
}

/* W_UKV as its two parts, a matrix a head. */
static sl_status add_latents(converting *c, uint32_t layer) {
    const sl_mla_weights *w = &c->m->mla[layer];
    piece p = {.first = w->absorb, .stride = sizeof *w->absorb, .n_mats = c->m->spec.n_heads};
    sl_status st = add_piece(c, sl_arch_tensor_of(c->m->arch, SL_ROLE_K_B), layer, p);
    p.first = w->value;
    return st == SL_OK ? add_piece(c, sl_arch_tensor_of(c->m->arch, SL_ROLE_V_B), layer, p) : st;
}

/* The first product of linear attention as its two parts. */
static sl_status add_delta(converting *c, const sl_mat *in, uint32_t layer) {
    const sl_arch_role roles[] = {SL_ROLE_DELTA_QKV, SL_ROLE_DELTA_GATE};
    piece p = {.whole = *in, .n_mats = 1, .delta = true};
    sl_status st = SL_OK;
    for (size_t i = 0; st == SL_OK && i < SL_LEN(roles); i++, p.first_row += p.whole.n) {
        const sl_arch_tensor *t = sl_arch_tensor_of(c->m->arch, roles[i]);
        p.whole.n = (uint32_t)sl_arch_dim_value(&c->m->spec, t->n);
        st = add_piece(c, t, layer, p);
    }
    return st;
}

/* Rates of linear attention as they are computed with. */
static sl_status add_rates(converting *c, const sl_arch_tensor *t, uint32_t layer) {
    piece p = {.n_mats = 1, .minus = true};
    p.whole = (sl_mat){
        .data = c->m->delta[layer].rate, .n = 1, .k = c->m->spec.delta_v_heads, .dtype = SL_F32};
    return add_piece(c, t, layer, p);
}

static sl_status add_tensor(converting *c, const sl_arch_tensor *t, uint32_t layer) {
    const sl_model_spec *s = &c->m->spec;
    const sl_arch_store *store = sl_arch_gguf_store_of(c->m->arch, t->role);
    bool expert = t->scope == SL_SCOPE_EXPERT;
    piece p = {.first = sl_model_mat(c->m, t, layer, 0), .n_mats = expert ? s->n_experts : 1};
    if (t->role == SL_ROLE_KV_B) return add_latents(c, layer);
    if (t->role == SL_ROLE_DELTA_IN) return add_delta(c, p.first, layer);
    if (t->role == SL_ROLE_DELTA_RATE) return add_rates(c, t, layer);
    if (store && store->before[0] != SL_DIM_NONE) return SL_OK; /* rows of another's tensor */
    if (store) {
        uint64_t shape[3];
        p.whole = *p.first;
        p.first = NULL;
        (void)sl_store_shape(c->m, store, t, shape);
        p.whole.n = (uint32_t)shape[0];
    }
    if (expert) p.stride = sizeof(sl_expert_weights);
    bool to_pairs = c->arch->rope_pairs && !s->rope_pairs;
    if (to_pairs && t->role == SL_ROLE_Q) p.heads = s->n_heads;
    if (to_pairs && t->role == SL_ROLE_K) p.heads = s->n_kv_heads;
    return add_piece(c, t, layer, p);
}

/* How much slower each pair turns, for readers that know no rope_type. */
static sl_status add_rope_factors(converting *c) {
    const sl_model_spec *s = &c->m->spec;
    uint32_t half = s->rope_dim / 2;
    c->rope_factor = sl_alloc(half, sizeof *c->rope_factor);
    if (!c->rope_factor) return sl_fail(c->err, SL_ERR_NOMEM, "%u rope factors", half);
    for (uint32_t i = 0; i < half; i++) {
        double freq = pow((double)s->rope_theta, -(double)i / (double)half);
        c->rope_factor[i] = (float)(freq / sl_rope_stretch(&s->long_waves, freq));
    }
    sl_status st = grow_pieces(c);
    if (st != SL_OK) return st;
    piece *p = &c->pieces[c->n++];
    *p = (piece){.n_mats = 1, .type = SL_F32, .dim = {half}, .n_dims = 1};
    p->whole = (sl_mat){.data = c->rope_factor, .n = 1, .k = half, .dtype = SL_F32};
    snprintf(p->name, sizeof p->name, "%s", SL_GGUF_ROPE_FACTORS);
    c->report.bytes += half * sizeof(float);
    sl_gguf_out_tensor(c->w, p->name, p->type, p->dim, 1);
    return SL_OK;
}

static sl_status list_tensors(converting *c) {
    const sl_model *m = c->m;
    sl_status st = SL_OK;
    for (uint32_t layer = 0; layer < m->spec.n_layers; layer++)
        for (size_t i = 0; st == SL_OK && i < m->arch->n_tensors; i++) {
            const sl_arch_tensor *t = &m->arch->tensor[i];
            if (sl_arch_tensor_used(&m->spec, t) && sl_model_has(&m->spec, t, layer))
                st = add_tensor(c, t, layer);
        }
    if (st == SL_OK && m->spec.long_waves.factor > 0) st = add_rope_factors(c);
    c->report.tensors = (uint32_t)c->n;
    return st;
}

/* Rows [from, from + n) of one matrix into `out`, any number of them at once. */
typedef struct chunk {
    const sl_kernels *k;
    const sl_model_spec *s;
    const sl_mat *mat;
    const piece *p;
    uint32_t from;
    float *wide; /* [rows][k] */
    uint8_t *out;
} chunk;

/* The row that becomes row `r`. */
static uint32_t source_row(const sl_model_spec *s, const piece *p, uint32_t r) {
    if (p->delta) return sl_delta_by_heads(s, p->first_row + r);
    if (!p->heads) return r;
    uint32_t dim = piece_mat(p, 0)->n / p->heads, at = r % dim;
    return r - at + at / 2 + (at % 2) * (dim / 2);
}

static void encode_rows(void *ctx, size_t begin, size_t end) {
    const chunk *k = ctx;
    const sl_exec alone = {.k = k->k};
    for (size_t i = begin; i < end; i++) {
        float *wide = k->wide + i * k->mat->k;
        uint32_t from = source_row(k->s, k->p, k->from + (uint32_t)i);
        sl_widen_row(&alone, k->mat, from, wide);
        for (uint32_t j = 0; k->p->minus && j < k->mat->k; j++) wide[j] = -wide[j];
        sl_block_encode(k->p->type, wide, k->mat->k,
                        k->out + i * sl_dtype_row_bytes(k->p->type, k->mat->k));
    }
}

static sl_status write_mat(converting *c, const piece *p, const sl_mat *mat, float *wide,
                           uint8_t *out) {
    sl_status st = SL_OK;
    for (uint32_t r = 0; st == SL_OK && r < mat->n; r += CHUNK_ROWS) {
        uint32_t n = SL_MIN(CHUNK_ROWS, mat->n - r);
        chunk k = {sl_kernels_base(), &c->m->spec, mat, p, r, wide, out};
        if (c->o->pool)
            sl_pool_run(c->o->pool, n, 4, encode_rows, &k);
        else
            encode_rows(&k, 0, n);
        st = sl_gguf_out_data(c->w, out, n * sl_dtype_row_bytes(p->type, mat->k), c->err);
        c->done += (uint64_t)n * mat->k;
        if (c->o->progress) c->o->progress(c->o->ctx, c->done, c->report.weights);
    }
    return st;
}

static sl_status write_tensors(converting *c) {
    size_t widest = 0;
    for (size_t i = 0; i < c->n; i++) widest = SL_MAX(widest, piece_mat(&c->pieces[i], 0)->k);
    float *wide = sl_alloc(CHUNK_ROWS * widest, sizeof *wide);
    uint8_t *out = sl_alloc(CHUNK_ROWS * widest, sizeof *wide);
    sl_status st = SL_OK;
    if (!wide || !out) st = sl_fail(c->err, SL_ERR_NOMEM, "%zu values a row", widest);
    for (size_t i = 0; st == SL_OK && i < c->n; i++) {
        const piece *p = &c->pieces[i];
        for (uint32_t e = 0; st == SL_OK && e < p->n_mats; e++)
            st = write_mat(c, p, piece_mat(p, e), wide, out);
    }
    sl_free(wide);
    sl_free(out);
    return st;
}

sl_status sl_convert(const char *folder, const char *out, const sl_convert_options *o,
                     sl_convert_report *report, sl_err *err) {
    const sl_stages all = {.attention = true, .experts = true};
    sl_model *m = NULL;
    converting c = {.o = o, .err = err};
    if (!sl_block_encodes(o->type))
        return sl_fail(err, SL_ERR_ARG, "%s cannot be written", sl_dtype_name(o->type));
    if (sl_gguf_is(folder))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "%s: is GGUF already; folders of safetensors are converted", folder);
    sl_status st = sl_model_open(folder, &all, &m, err);
    if (st != SL_OK) return st;
    c.m = m;
    c.arch = sl_gguf_arch_of_class(m->spec.arch);
    if (!c.arch)
        st = sl_fail(err, SL_ERR_UNSUPPORTED, "%s: %s has no name in GGUF", folder, m->spec.arch);
    if (st == SL_OK) st = sl_convert_check(m, c.arch, err);
    if (st == SL_OK) st = sl_gguf_out_open(out, o->replace, &c.w, err);
    if (st != SL_OK) goto out;
    sl_convert_keys(m, c.arch, o->type, c.w);
    st = sl_convert_tokenizer(folder, &m->spec, c.w, err);
    if (st == SL_OK) st = list_tensors(&c);
    if (st == SL_OK) st = sl_gguf_out_begin(c.w, err);
    if (st == SL_OK) st = write_tensors(&c);
    if (st == SL_OK) st = sl_gguf_out_finish(c.w, err);
    if (st == SL_OK && report) *report = c.report;
out:
    sl_gguf_out_free(c.w);
    sl_free(c.pieces);
    sl_free(c.rope_factor);
    sl_model_free(m);
    return st;
}
