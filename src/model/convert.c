#include "model/convert.h"

#include "format/gguf_config.h"
#include "model/convert_int.h"
#include "quant/block.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define CHUNK_ROWS 256u /* of one matrix, encoded at once */

/* A tensor of the file: one matrix, or those of all experts of a block. */
typedef struct piece {
    char name[SL_ARCH_NAME_MAX];
    const sl_mat *first;
    size_t stride;          /* bytes from the matrix of one expert to that of the next */
    uint32_t n_mats, heads; /* heads: rows of each are to be paired; 0: they stay */
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
    sl_mat rope;
    sl_convert_report report;
    uint64_t done;
    sl_err *err;
} converting;

/* ---- metadata ---- */

static void put_u32(converting *c, const char *name, uint32_t v) {
    char key[128];
    snprintf(key, sizeof key, "%s.%s", c->arch->name, name);
    sl_gguf_out_u32(c->w, key, v);
}

static void put_f32(converting *c, const char *name, float v) {
    char key[128];
    snprintf(key, sizeof key, "%s.%s", c->arch->name, name);
    sl_gguf_out_f32(c->w, key, v);
}

/* general.file_type of llama.cpp. */
static uint32_t file_type(sl_dtype t) {
    switch (t) {
    case SL_F32:
        return 0;
    case SL_F16:
        return 1;
    case SL_BF16:
        return 32;
    case SL_Q8_0:
        return 7;
    case SL_Q4_0:
        return 2;
    case SL_MXFP4:
        return 38;
    default:
        return 15;
    }
}

static sl_span text_of(const char *s) {
    return (sl_span){(const uint8_t *)s, strlen(s)};
}

static void put_general(converting *c) {
    const char *folder = c->m->folder;
    size_t end = strlen(folder);
    while (end > 1 && folder[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && folder[begin - 1] != '/') begin--;
    sl_gguf_out_string(c->w, "general.architecture", text_of(c->arch->name));
    sl_gguf_out_string(c->w, "general.name",
                       (sl_span){(const uint8_t *)folder + begin, end - begin});
    sl_gguf_out_u32(c->w, "general.alignment", SL_GGUF_ALIGN);
    sl_gguf_out_u32(c->w, "general.file_type", file_type(c->o->type));
    sl_gguf_out_u32(c->w, "general.quantization_version", 2);
    const sl_generation_spec *gen = &c->m->gen;
    if (gen->temperature >= 0) sl_gguf_out_f32(c->w, "general.sampling.temp", gen->temperature);
    if (gen->top_p >= 0) sl_gguf_out_f32(c->w, "general.sampling.top_p", gen->top_p);
    if (gen->top_k >= 0) sl_gguf_out_u32(c->w, "general.sampling.top_k", (uint32_t)gen->top_k);
}

static void put_sizes(converting *c) {
    const sl_model_spec *s = &c->m->spec;
    bool llama = strcmp(c->arch->width, "feed_forward_length") == 0;
    put_u32(c, "block_count", s->n_layers);
    put_u32(c, "context_length", s->max_position);
    put_u32(c, "embedding_length", s->d_model);
    put_u32(c, "feed_forward_length", llama || s->d_ff_dense == 0 ? s->d_ff_expert : s->d_ff_dense);
    if (!llama) put_u32(c, c->arch->width, s->d_ff_expert);
    if (c->arch->llama4)
        put_u32(c, "interleave_moe_layer_step", s->moe_layer[0] + 1u);
    else if (s->d_ff_shared)
        put_u32(c, "expert_shared_feed_forward_length", s->d_ff_shared);
    put_u32(c, "expert_count", s->n_experts);
    put_u32(c, "expert_used_count", s->top_k);
    put_u32(c, "attention.head_count", s->n_heads);
    put_u32(c, "attention.head_count_kv", s->n_kv_heads);
    put_u32(c, "attention.key_length", s->head_dim);
    put_u32(c, "attention.value_length", s->head_dim);
    put_u32(c, "rope.dimension_count", s->head_dim);
    put_u32(c, "vocab_size", s->vocab);
    put_f32(c, "attention.layer_norm_rms_epsilon", s->rms_eps);
    put_f32(c, "rope.freq_base", s->rope_theta);
    if (s->sliding_window) put_u32(c, "attention.sliding_window", s->sliding_window);
    if (s->norm_topk != c->arch->norm_topk) {
        char key[128];
        snprintf(key, sizeof key, "%s.expert_weights_norm", c->arch->name);
        sl_gguf_out_bool(c->w, key, s->norm_topk);
    }
}

/* ---- tensors ---- */

static sl_dtype type_of(const converting *c, const sl_arch_tensor *t, uint32_t k) {
    sl_dtype type = c->o->type;
    if (t->k == SL_DIM_NONE || t->role == SL_ROLE_ROUTER || t->role == SL_ROLE_SHARED_SCALE)
        return SL_F32;
    if (t->role == SL_ROLE_LM_HEAD && !sl_dtype_is_plain(type)) type = SL_Q8_0;
    if (k % sl_dtype_block(type) == 0) return type;
    return k % sl_dtype_block(SL_Q8_0) == 0 ? SL_Q8_0 : SL_F16;
}

static const sl_mat *mat_of(const sl_model *m, const sl_arch_tensor *t, uint32_t layer) {
    if (t->scope == SL_SCOPE_MODEL) return &m->whole.mat[t->role];
    if (t->scope != SL_SCOPE_EXPERT) return &m->block[layer].mat[t->role];
    const sl_expert_weights *e = &m->expert[(size_t)m->spec.moe_index[layer] * m->spec.n_experts];
    if (t->role == SL_ROLE_EXPERT_GATE) return &e->gate;
    return t->role == SL_ROLE_EXPERT_UP ? &e->up : &e->down;
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

static sl_status add_piece(converting *c, const sl_arch_tensor *t, uint32_t layer) {
    const sl_model_spec *s = &c->m->spec;
    bool expert = t->scope == SL_SCOPE_EXPERT;
    sl_status st = grow_pieces(c);
    if (st != SL_OK) return st;
    piece *p = &c->pieces[c->n++];
    *p = (piece){.first = mat_of(c->m, t, layer), .n_mats = expert ? s->n_experts : 1};
    if (expert) p->stride = sizeof(sl_expert_weights);
    sl_arch_gguf_name(t, layer, p->name);
    bool to_pairs = c->arch->rope_pairs && !s->rope_pairs;
    if (to_pairs && t->role == SL_ROLE_Q) p->heads = s->n_heads;
    if (to_pairs && t->role == SL_ROLE_K) p->heads = s->n_kv_heads;
    p->type = type_of(c, t, p->first->k);
    if (expert) p->dim[p->n_dims++] = p->n_mats;
    if (t->k != SL_DIM_NONE && t->n != SL_DIM_ONE) p->dim[p->n_dims++] = p->first->n;
    p->dim[p->n_dims++] = p->first->k;
    uint64_t rows = (uint64_t)p->n_mats * p->first->n;
    c->report.weights += rows * p->first->k;
    c->report.bytes += rows * sl_dtype_row_bytes(p->type, p->first->k);
    c->report.other += sl_dtype_block(c->o->type) > 1 && p->first->k % sl_dtype_block(c->o->type) &&
                       p->type != SL_F32;
    sl_gguf_out_tensor(c->w, p->name, p->type, p->dim, p->n_dims);
    return SL_OK;
}

/* How much slower each pair turns, for readers that know no rope_type. */
static sl_status add_rope_factors(converting *c) {
    const sl_model_spec *s = &c->m->spec;
    uint32_t half = s->rope_dim / 2;
    uint64_t dim[3] = {half};
    c->rope_factor = sl_alloc(half, sizeof *c->rope_factor);
    if (!c->rope_factor) return sl_fail(c->err, SL_ERR_NOMEM, "%u rope factors", half);
    for (uint32_t i = 0; i < half; i++) {
        double freq = pow((double)s->rope_theta, -(double)i / (double)half);
        c->rope_factor[i] = (float)(freq / sl_rope_stretch(&s->long_waves, freq));
    }
    c->rope = (sl_mat){.data = c->rope_factor, .n = 1, .k = half, .dtype = SL_F32};
    sl_status st = grow_pieces(c);
    if (st != SL_OK) return st;
    piece *p = &c->pieces[c->n++];
    *p = (piece){.first = &c->rope, .n_mats = 1, .type = SL_F32, .dim = {half}, .n_dims = 1};
    snprintf(p->name, sizeof p->name, "%s", SL_GGUF_ROPE_FACTORS);
    c->report.bytes += half * sizeof(float);
    sl_gguf_out_tensor(c->w, p->name, p->type, dim, 1);
    return SL_OK;
}

/* What a file of llama4 has no keys for has to be as its readers take it. */
static sl_status check_llama4(const sl_model_spec *s, const char *folder, sl_err *err) {
    const char *what = NULL;
    uint32_t step = s->moe_layer[0] + 1u;
    if (s->attn_chunk != SL_GGUF_LLAMA4_CHUNK) what = "attention_chunk_size other than 8192";
    if (s->query_floor != (float)SL_GGUF_LLAMA4_CHUNK || s->query_growth != SL_GGUF_LLAMA4_GROWTH)
        what = "floor_scale other than 8192 or attn_scale other than 0.1";
    if (s->qk_unit != (s->n_experts != 128)) what = "use_qk_norm other than 128 experts go without";
    for (uint32_t i = 0; i < s->n_layers; i++) {
        bool last = (i + 1) % SL_GGUF_LLAMA4_EVERY == 0;
        if (s->unrotated[i] != last || (s->sight[i] == SL_SIGHT_CHUNK) == last)
            what = "blocks without rotation other than each fourth";
        if ((s->ffn[i] == SL_FFN_MOE) != ((i + 1) % step == 0))
            what = "blocks with experts other than each so many";
    }
    if (!what) return SL_OK;
    return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: GGUF of llama4 cannot say: %s", folder, what);
}

static bool in_block(const sl_model_spec *s, sl_arch_scope scope, uint32_t layer) {
    if (scope == SL_SCOPE_MODEL) return layer == 0;
    if (scope == SL_SCOPE_BLOCK) return true;
    return (s->ffn[layer] == SL_FFN_DENSE) == (scope == SL_SCOPE_DENSE_BLOCK);
}

static sl_status list_tensors(converting *c) {
    const sl_model *m = c->m;
    sl_status st = SL_OK;
    for (uint32_t layer = 0; layer < m->spec.n_layers; layer++)
        for (size_t i = 0; st == SL_OK && i < m->arch->n_tensors; i++) {
            const sl_arch_tensor *t = &m->arch->tensor[i];
            if (sl_arch_tensor_used(&m->spec, t) && in_block(&m->spec, t->scope, layer))
                st = add_piece(c, t, layer);
        }
    if (st == SL_OK && m->spec.long_waves.factor > 0) st = add_rope_factors(c);
    c->report.tensors = (uint32_t)c->n;
    return st;
}

/* Rows [from, from + n) of one matrix into `out`, any number of them at once. */
typedef struct chunk {
    const sl_kernels *k;
    const sl_mat *mat;
    const piece *p;
    uint32_t from;
    float *wide; /* [rows][k] */
    uint8_t *out;
} chunk;

/* The row that becomes row `r` where those of a head are paired. */
static uint32_t source_row(const piece *p, uint32_t r) {
    if (!p->heads) return r;
    uint32_t dim = p->first->n / p->heads, at = r % dim;
    return r - at + at / 2 + (at % 2) * (dim / 2);
}

static void encode_rows(void *ctx, uint32_t lane, size_t begin, size_t end) {
    (void)lane;
    const chunk *k = ctx;
    const sl_exec alone = {.k = k->k};
    for (size_t i = begin; i < end; i++) {
        float *wide = k->wide + i * k->mat->k;
        uint32_t from = source_row(k->p, k->from + (uint32_t)i);
        sl_widen_row(&alone, k->mat, from, wide);
        sl_block_encode(k->p->type, wide, k->mat->k,
                        k->out + i * sl_dtype_row_bytes(k->p->type, k->mat->k));
    }
}

static sl_status write_mat(converting *c, const piece *p, const sl_mat *mat, float *wide,
                           uint8_t *out) {
    sl_status st = SL_OK;
    for (uint32_t r = 0; st == SL_OK && r < mat->n; r += CHUNK_ROWS) {
        uint32_t n = SL_MIN(CHUNK_ROWS, mat->n - r);
        chunk k = {sl_kernels_select(NULL), mat, p, r, wide, out};
        if (c->o->pool)
            sl_pool_run(c->o->pool, n, 4, encode_rows, &k);
        else
            encode_rows(&k, 0, 0, n);
        st = sl_gguf_out_data(c->w, out, n * sl_dtype_row_bytes(p->type, mat->k), c->err);
        c->done += (uint64_t)n * mat->k;
        if (c->o->progress) c->o->progress(c->o->ctx, c->done, c->report.weights);
    }
    return st;
}

static sl_status write_tensors(converting *c) {
    size_t widest = 0;
    for (size_t i = 0; i < c->n; i++) widest = SL_MAX(widest, c->pieces[i].first->k);
    float *wide = sl_alloc(CHUNK_ROWS * widest, sizeof *wide);
    uint8_t *out = sl_alloc(CHUNK_ROWS * widest, sizeof *wide);
    sl_status st = SL_OK;
    if (!wide || !out) st = sl_fail(c->err, SL_ERR_NOMEM, "%zu values a row", widest);
    for (size_t i = 0; st == SL_OK && i < c->n; i++) {
        const piece *p = &c->pieces[i];
        for (uint32_t e = 0; st == SL_OK && e < p->n_mats; e++) {
            const uint8_t *at = (const uint8_t *)p->first + e * p->stride;
            st = write_mat(c, p, (const sl_mat *)(const void *)at, wide, out);
        }
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
    if (st == SL_OK && c.arch->llama4) st = check_llama4(&m->spec, folder, err);
    if (st == SL_OK && m->spec.yarn.factor > 0)
        st = sl_fail(err, SL_ERR_UNSUPPORTED, "%s: rope_scaling is not written to GGUF", folder);
    if (st == SL_OK) st = sl_gguf_out_open(out, o->replace, &c.w, err);
    if (st != SL_OK) goto out;
    put_general(&c);
    put_sizes(&c);
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
