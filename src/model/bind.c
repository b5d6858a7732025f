/* Meets the architecture table with the tensors of a checkpoint. */
#include "base/mem.h"
#include "format/gguf_config.h"
#include "format/map.h"
#include "model/model_int.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* One tensor of the architecture, its block and expert filled in. */
typedef struct sl_site {
    const sl_arch_tensor *t;
    uint32_t layer, expert;
} sl_site;

typedef sl_status (*sl_site_fn)(void *ctx, const sl_site *site, const char *name, sl_err *err);

bool sl_model_has(const sl_model_spec *m, const sl_arch_tensor *t, uint32_t layer) {
    switch (t->scope) {
    case SL_SCOPE_MODEL:
        return layer == 0;
    case SL_SCOPE_BLOCK:
        return true;
    case SL_SCOPE_FULL_BLOCK:
        return !sl_model_is_linear(m, layer);
    case SL_SCOPE_LINEAR_BLOCK:
        return sl_model_is_linear(m, layer);
    case SL_SCOPE_DENSE_BLOCK:
        return m->ffn[layer] == SL_FFN_DENSE;
    case SL_SCOPE_MOE_BLOCK:
    case SL_SCOPE_EXPERT:
        return m->ffn[layer] == SL_FFN_MOE;
    case SL_SCOPE_MTP:
        return layer == sl_mtp_block(m);
    }
    return false;
}

static sl_status visit(const sl_model *m, const sl_site *site, sl_site_fn fn, void *ctx,
                       sl_err *err) {
    char name[SL_ARCH_NAME_MAX];
    if (m->ckpt && sl_ckpt_gguf(m->ckpt))
        sl_arch_gguf_name(m->arch, &m->stored, site->t, site->layer, name);
    else
        sl_arch_tensor_name(m->arch, &m->stored, site->t, site->layer, site->expert, name);
    return fn(ctx, site, name, err);
}

/* Calls fn for every tensor that a checkpoint of this model holds. */
static sl_status each_site(const sl_model *m, sl_site_fn fn, void *ctx, sl_err *err) {
    const sl_model_spec *spec = &m->stored;
    for (size_t i = 0; i < m->arch->n_tensors; i++) {
        sl_site site = {.t = &m->arch->tensor[i]};
        if (!sl_arch_tensor_used(spec, site.t)) continue;
        uint32_t copies = site.t->scope == SL_SCOPE_EXPERT ? spec->n_experts : 1;
        for (site.layer = 0; site.layer < sl_model_blocks(m); site.layer++) {
            if (!sl_model_has(spec, site.t, site.layer)) continue;
            for (site.expert = 0; site.expert < copies; site.expert++) {
                sl_status st = visit(m, &site, fn, ctx, err);
                if (st != SL_OK) return st;
            }
        }
    }
    return SL_OK;
}

/* The matrix is in two tensors, blocks and scales. */
static bool in_mxfp4(const sl_model *m, const sl_site *site) {
    return m->stored.mxfp4 && site->t->scope == SL_SCOPE_EXPERT && site->t->k != SL_DIM_NONE;
}

typedef struct sl_name_check {
    const sl_model *m;
    uint8_t *known; /* [tensors of the checkpoint] */
} sl_name_check;

static sl_status check_present(void *ctx, const sl_site *site, const char *name, sl_err *err) {
    sl_name_check *check = ctx;
    size_t at = 0, two[2];
    if (in_mxfp4(check->m, site)) {
        sl_status st = sl_mxfp4_find(check->m, name, two, err);
        for (int i = 0; st == SL_OK && i < 2; i++) check->known[two[i]] = 1;
        return st;
    }
    if (!sl_ckpt_find(check->m->ckpt, name, &at)) return sl_model_missing(check->m, name, err);
    check->known[at] = 1;
    return SL_OK;
}

/* Whether a tensor is of one of the blocks after the last, which predict further tokens. */
static bool of_mtp(const sl_model_spec *m, bool gguf, const char *name) {
    const char *block = gguf ? "blk." : "model.layers.", *p = name + strlen(block);
    uint32_t layer = 0;
    if (strncmp(name, block, strlen(block)) != 0 || *p < '1' || *p > '9') return false;
    for (; *p >= '0' && *p <= '9' && layer <= 2 * SL_MAX_LAYERS; p++)
        layer = layer * 10 + (uint32_t)(*p - '0');
    return *p == '.' && layer >= m->n_layers && layer < m->n_layers + m->n_mtp;
}

#define SCALES "_scale_inv"

/* Scales of a matrix of F8_E4M3 that the model reads. */
static bool of_known(const sl_name_check *check, const char *name) {
    char base[SL_ARCH_NAME_MAX];
    size_t n = strlen(name), tail = sizeof SCALES - 1, at = 0;
    if (n <= tail || n - tail >= sizeof base || strcmp(name + n - tail, SCALES) != 0) return false;
    memcpy(base, name, n - tail);
    base[n - tail] = '\0';
    const sl_checkpoint *c = check->m->ckpt;
    return sl_ckpt_find(c, base, &at) && check->known[at] && sl_ckpt_at(c, at).dtype == SL_F8_E4M3;
}

/* A tied model may store its head again; old exporters store RoPE frequencies, which follow from
 * rope_theta. */
static bool ignorable(const sl_model *model, const char *name) {
    const sl_model_spec *m = &model->spec;
    static const char inv_freq[] = ".rotary_emb.inv_freq";
    size_t n = strlen(name), tail = sizeof inv_freq - 1;
    if (of_mtp(m, sl_ckpt_gguf(model->ckpt) != NULL, name)) return true;
    if (sl_ckpt_gguf(model->ckpt) && m->gate_input && strcmp(name, SL_GGUF_ROPE_FACTORS) == 0)
        return true; /* read by sl_rope_apply_factors */
    for (const char *const *p = model->arch->ignored; p && *p; p++)
        if (strncmp(name, *p, strlen(*p)) == 0) return true;
    if (m->tied_head && strcmp(name, "lm_head.weight") == 0) return true;
    return n > tail && strcmp(name + n - tail, inv_freq) == 0;
}

sl_status sl_model_check_names(const sl_model *m, sl_err *err) {
    size_t n = sl_ckpt_tensors(m->ckpt);
    sl_name_check check = {.m = m, .known = sl_alloc(n, 1)};
    if (!check.known) return sl_fail(err, SL_ERR_NOMEM, "%zu tensor marks", n);
    sl_status st = each_site(m, check_present, &check, err);
    for (size_t i = 0; st == SL_OK && i < n; i++) {
        sl_ckpt_tensor c = sl_ckpt_at(m->ckpt, i);
        if (!check.known[i] && !ignorable(m, c.name) && !of_known(&check, c.name))
            st = sl_fail(err, SL_ERR_UNSUPPORTED,
                         "%s: tensor \"%s\" is unknown to %s; ignoring it could change results",
                         sl_ckpt_path(m->ckpt, c.file), c.name, m->stored.arch);
    }
    sl_free(check.known);
    return st;
}

static const sl_arch_store *store_of(const sl_model *m, sl_arch_role role) {
    return sl_ckpt_gguf(m->ckpt) ? sl_arch_gguf_store_of(m->arch, role)
                                 : sl_arch_store_of(m->arch, role);
}

/* What a tensor's shape has to be. Without experts: [n][k], [n]. In GGUF those of a block are
 * stacked, and a matrix of one row may be a vector. */
static uint32_t wanted_shape(const sl_model *m, const sl_site *site, uint64_t want[3]) {
    bool gguf = sl_ckpt_gguf(m->ckpt) != NULL;
    const sl_arch_store *store = store_of(m, site->t->role);
    uint32_t n = 0;
    if (store) return sl_store_shape(m, store, site->t, want);
    if (gguf && site->t->scope == SL_SCOPE_EXPERT) want[n++] = m->stored.n_experts;
    if (!gguf || site->t->n != SL_DIM_ONE) want[n++] = sl_arch_dim_value(&m->stored, site->t->n);
    if (site->t->k != SL_DIM_NONE) want[n++] = sl_arch_dim_value(&m->stored, site->t->k);
    return n;
}

static sl_status check_dtype(const sl_model *m, const sl_site *site, sl_ckpt_tensor t,
                             sl_err *err) {
    const char *path = sl_ckpt_path(m->ckpt, t.file);
    bool vector = site->t->k == SL_DIM_NONE; /* norms and biases are widened without blocks */
    bool f8 = t.usable && t.dtype == SL_F8_E4M3;
    if (f8 && m->stored.fp8 && !vector && site->t->role != SL_ROLE_EMBED &&
        !sl_arch_store_of(m->arch, site->t->role))
        return SL_OK;
    if (!t.usable || f8 || (vector && !sl_dtype_is_plain(t.dtype)))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "%s: tensor \"%s\": dtype %s, expected F32, F16%s BF16%s", path, t.name,
                       t.dtype_name, sl_ckpt_gguf(m->ckpt) && !vector ? "," : " or",
                       sl_ckpt_gguf(m->ckpt) && !vector
                           ? ", Q8_0, Q5_0, Q4_0, IQ4_NL, MXFP4, Q4_K, Q5_K or Q6_K"
                           : "");
    if (sl_dtype_is_plain(t.dtype) && t.begin % sl_dtype_bytes(t.dtype) != 0)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "%s: tensor \"%s\": begins at byte %llu, not a multiple of %u (%s)", path,
                       t.name, (unsigned long long)t.begin, sl_dtype_bytes(t.dtype), t.dtype_name);
    return SL_OK;
}

/* GGUF has a matrix of one row as either. */
static bool has_shape(const sl_model *m, const sl_site *site, const sl_ckpt_tensor *t,
                      const uint64_t want[3], uint32_t n_dims) {
    const bool row = sl_ckpt_gguf(m->ckpt) && site->t->n == SL_DIM_ONE && t->n_dims == n_dims + 1 &&
                     t->dim[0] == 1;
    return t->n_dims == n_dims + row && memcmp(t->dim + row, want, n_dims * sizeof want[0]) == 0;
}

/* Type, shape and alignment of a tensor against the table; *out without data. */
static sl_status check_tensor(const sl_model *m, const sl_site *site, sl_ckpt_tensor t, sl_mat *out,
                              sl_err *err) {
    uint64_t want[3], n = sl_arch_dim_value(&m->stored, site->t->n),
                      k = sl_arch_dim_value(&m->stored, site->t->k);
    uint32_t n_dims = wanted_shape(m, site, want);
    char has_text[128], want_text[96];
    sl_status st = check_dtype(m, site, t, err);
    if (st != SL_OK) return st;
    if (!has_shape(m, site, &t, want, n_dims))
        return sl_fail(err, SL_ERR_FORMAT, "%s: tensor \"%s\": shape %s, expected %s by %s",
                       sl_ckpt_path(m->ckpt, t.file), t.name,
                       sl_st_shape_text(t.dim, t.n_dims, has_text, sizeof has_text),
                       sl_st_shape_text(want, n_dims, want_text, sizeof want_text),
                       sl_ckpt_gguf(m->ckpt) ? "its metadata" : "config.json");
    bool vector = site->t->k == SL_DIM_NONE;
    *out = (sl_mat){.n = vector ? 1 : (uint32_t)n,
                    .k = vector ? (uint32_t)n : (uint32_t)k,
                    .dtype = t.dtype,
                    .strips = t.strips};
    return SL_OK;
}

/* Whether whoever uses a tensor takes its rows one by one, or as columns. */
static bool needs_rows(const sl_model *m, sl_arch_role role) {
    const sl_arch_store *s = store_of(m, role);
    return role == SL_ROLE_EMBED || role == SL_ROLE_K_B || role == SL_ROLE_V_B ||
           role == SL_ROLE_KV_B || (s && (s->transposed || s->step > 1));
}

/* Whether the rank's part of a matrix in strips, and its segments, are strips; else why not. */
static bool fits_strips(const sl_model *m, const sl_arch_tensor *t, const sl_mat *mat, char *why,
                        size_t room) {
    sl_strip_cut cut;
    char who[64] = "--segments";
    if (sl_rank_fits_strips(m, t, mat, &cut)) return true;
    if (!sl_rank_alone(m->rank))
        snprintf(who, sizeof who, "%u ranks%s", m->rank.of, m->segmented ? " with --segments" : "");
    snprintf(why, room, "which %s would cut at %s %u of %u, no multiple of %u", who, cut.what,
             cut.at, cut.all, cut.unit);
    return false;
}

/* Whether this worker can use a matrix in strips that begins at so many bytes of its tensor. */
static sl_status check_strips(const sl_model *m, const sl_site *site, const char *name,
                              const sl_mat *mat, size_t at, sl_err *err) {
    char why[192];
    if (!mat->strips) return SL_OK;
    const size_t row = at / sl_dtype_row_bytes(mat->dtype, mat->k);
    if (needs_rows(m, site->t->role))
        snprintf(why, sizeof why, "but is read row by row");
    else if (row % SL_STRIP_ROWS || mat->n % SL_STRIP_ROWS)
        snprintf(why, sizeof why,
                 "of which one of %u rows is of two matrices: %u rows from row %zu", SL_STRIP_ROWS,
                 mat->n, row);
    else if (fits_strips(m, site->t, mat, why, sizeof why))
        return SL_OK;
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "%s: tensor \"%s\" lies in strips, %s: use the file that `sluice convert "
                   "--repack` was given",
                   m->folder, name, why);
}

static uint64_t f8_blocks(uint64_t n) {
    return (n + SL_F8_BLOCK - 1) / SL_F8_BLOCK;
}

/* The scales of a matrix of F8_E4M3: the tensor beside it, named after it. */
static sl_status find_scales(const sl_model *m, const char *name, const sl_mat *mat,
                             sl_ckpt_tensor *out, sl_err *err) {
    char scales[SL_ARCH_NAME_MAX + sizeof SCALES], has_text[128], want_text[96];
    const uint64_t want[2] = {f8_blocks(mat->n), f8_blocks(mat->k)};
    size_t at = 0;
    snprintf(scales, sizeof scales, "%s" SCALES, name);
    if (!sl_ckpt_find(m->ckpt, scales, &at)) return sl_model_missing(m, scales, err);
    sl_ckpt_tensor t = *out = sl_ckpt_at(m->ckpt, at);
    const char *path = sl_ckpt_path(m->ckpt, t.file);
    if (!t.usable || t.dtype != SL_F32 || t.begin % sizeof(float) != 0)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "%s: tensor \"%s\": dtype %s from byte %llu, expected F32 from a multiple "
                       "of 4",
                       path, scales, t.dtype_name, (unsigned long long)t.begin);
    if (t.n_dims != 2 || memcmp(t.dim, want, sizeof want) != 0)
        return sl_fail(err, SL_ERR_FORMAT, "%s: tensor \"%s\": shape %s, expected %s for %u x %u",
                       path, scales, sl_st_shape_text(t.dim, t.n_dims, has_text, sizeof has_text),
                       sl_st_shape_text(want, 2, want_text, sizeof want_text), mat->n, mat->k);
    return SL_OK;
}

static sl_status bind_scales(const sl_model *m, const char *name, sl_mat *mat, sl_err *err) {
    sl_ckpt_tensor t;
    sl_span bytes = {0};
    sl_status st = find_scales(m, name, mat, &t, err);
    if (st == SL_OK) st = sl_ckpt_data(m->ckpt, t, &bytes, err);
    mat->scale = (const float *)(const void *)bytes.data;
    return st;
}

typedef struct sl_binding {
    sl_model *m;
    const sl_stages *stages;
    bool again; /* experts only, of those that are not bound */
    size_t n_again;
} sl_binding;

static size_t expert_of(const sl_model *m, const sl_site *site) {
    return (size_t)m->stored.moe_index[site->layer] * m->stored.n_experts + site->expert;
}

static bool is_held(const sl_model *m, const sl_stages *s, const sl_site *site) {
    const bool read = site->t->role == SL_ROLE_EMBED || site->t->role == SL_ROLE_FINAL_NORM;
    if (site->t->scope == SL_SCOPE_MODEL) return !s->inner || (m->mtp && read);
    if (site->layer == sl_mtp_block(&m->stored)) return m->mtp;
    return sl_extent_has(m->held, site->layer);
}

static bool hosts(const sl_model *m, const sl_stages *s, const sl_site *site) {
    if (!is_held(m, s, site)) return false;
    if (site->t->stage != SL_STAGE_EXPERT || site->layer == sl_mtp_block(&m->stored))
        return s->attention;
    return s->experts && (!s->hosted || s->hosted[expert_of(m, site)]);
}

const sl_mat *sl_model_mat(const sl_model *m, const sl_arch_tensor *t, uint32_t layer,
                           uint32_t expert) {
    if (t->scope == SL_SCOPE_MODEL) return &m->whole.mat[t->role];
    if (t->scope != SL_SCOPE_EXPERT) return &m->block[layer].mat[t->role];
    size_t at = (size_t)m->spec.moe_index[layer] * m->spec.n_experts + expert;
    const sl_expert_weights *e = &m->expert[at];
    switch (t->role) {
    case SL_ROLE_EXPERT_GATE:
        return &e->gate;
    case SL_ROLE_EXPERT_UP:
        return &e->up;
    case SL_ROLE_EXPERT_GATE_BIAS:
        return &e->gate_bias;
    case SL_ROLE_EXPERT_UP_BIAS:
        return &e->up_bias;
    case SL_ROLE_EXPERT_DOWN_BIAS:
        return &e->down_bias;
    default:
        return &e->down;
    }
}

static sl_mat *place(sl_model *m, const sl_site *site) {
    return (sl_mat *)sl_model_mat(m, site->t, site->layer, site->expert);
}

/* Turns a part of the matrix, whose first row is there, into Q8_0 in memory of the model; its
 * values are whole blocks. */
static sl_status repack(sl_model *m, sl_repack type, const sl_part *p, const sl_mat *mat,
                        const uint8_t *from, uint8_t **out, sl_err *err) {
    const size_t row = sl_repack_bytes(type, mat->k),
                 skip = sl_repack_bytes(type, p->columns.first),
                 line = sl_dtype_row_bytes(SL_Q8_0, p->columns.n);
    uint8_t *copy = *out = sl_model_own(m, p->rows.n * line);
    if (!copy) return sl_fail(err, SL_ERR_NOMEM, "%s: copies of weights", m->folder);
    from += p->rows.first * row;
    for (size_t i = 0; i < p->rows.n; i++)
        sl_repack_q8_0(type, from + i * row + skip, p->columns.n, copy + i * line);
    sl_map_drop((sl_span){from, p->rows.n * row});
    return SL_OK;
}

/* Best effort: where it fails rows are read where they are mapped, as those of a head are. */
static void open_embed(sl_model *m, sl_ckpt_tensor t, const sl_mat *mat, const uint8_t *mapped) {
    sl_err err;
    sl_embed_file f = {.open = true, .fd = -1, .begin = t.begin, .mapped = mapped};
    if (m->stored.tied_head || m->embed.open) return;
    if (sl_ckpt_reopen(m->ckpt, t, &f.fd, &err) != SL_OK) return;
    f.row_bytes = sl_dtype_row_bytes(mat->dtype, mat->k);
    f.bytes = sl_mat_bytes(mat);
    f.row = sl_model_own(m, f.row_bytes);
    if (f.row)
        m->embed = f;
    else
        close(f.fd);
}

/* A rank's embedding of a type that is repacked: every rank needs some rows of all, so each would
 * copy the whole. It unpacks rows as it reads them instead; a head that is the same tensor is the
 * rank's part of it. The matrix is the row that was read last, which nobody looks at. */
static sl_status open_packed_embed(sl_model *m, sl_ckpt_tensor t, const uint8_t *mapped,
                                   sl_mat *mat, sl_err *err) {
    const sl_part p = {sl_rank_vocab(m), {0, mat->k}};
    sl_mat head = *mat;
    uint8_t *copy = NULL;
    sl_embed_file f = {.open = true, .fd = -1, .begin = t.begin, .mapped = mapped};
    f.repack = t.repack;
    f.row_bytes = sl_repack_bytes(t.repack, mat->k);
    f.bytes = mat->n * f.row_bytes;
    f.row = sl_model_own(m, f.row_bytes);
    f.unpacked = sl_model_own(m, sl_dtype_row_bytes(SL_Q8_0, mat->k));
    if (!f.row || !f.unpacked) return sl_fail(err, SL_ERR_NOMEM, "%s: rows of weights", m->folder);
    mat->data = f.unpacked;
    mat->n = 1;
    if (m->stored.tied_head) {
        sl_status st = repack(m, t.repack, &p, &head, mapped, &copy, err);
        if (st != SL_OK) return st;
        head.data = copy;
        head.n = p.rows.n;
        m->whole.mat[SL_ROLE_LM_HEAD] = head;
    }
    sl_err why;
    if (sl_ckpt_reopen(m->ckpt, t, &f.fd, &why) != SL_OK) f.fd = -1;
    m->embed = f;
    return SL_OK;
}

static bool wants(const sl_binding *b, const sl_site *site) {
    if (b->again && (site->t->stage != SL_STAGE_EXPERT || place(b->m, site)->data)) return false;
    return hosts(b->m, b->stages, site);
}

static sl_status bind_repacked(sl_model *m, const sl_site *site, sl_ckpt_tensor c, sl_span bytes,
                               sl_mat *mat, sl_err *err) {
    if (site->t->role == SL_ROLE_EMBED && !sl_rank_alone(m->rank))
        return open_packed_embed(m, c, bytes.data, mat, err);
    const sl_part p = sl_rank_part(m, site->t, mat);
    const sl_lie at = sl_store_lie(m, store_of(m, site->t->role), site->t, site->expert, mat);
    const size_t from = sl_repack_bytes(c.repack, at.first);
    uint8_t *copy = NULL;
    SL_ASSERT(from + mat->n * sl_repack_bytes(c.repack, mat->k) <= bytes.len);
    sl_status st = repack(m, c.repack, &p, mat, bytes.data + from, &copy, err);
    if (st == SL_OK) sl_rank_keep(m, site->t, &p, copy, mat);
    return st;
}

/* Of a matrix that kernels read where it lies. */
static sl_status bind_mapped(sl_model *m, const sl_site *site, sl_ckpt_tensor c, const char *name,
                             sl_span bytes, sl_mat *mat, sl_err *err) {
    const sl_lie lie = sl_store_lie(m, store_of(m, site->t->role), site->t, site->expert, mat);
    const size_t at = sl_dtype_row_bytes(mat->dtype, lie.first);
    SL_ASSERT(at + sl_mat_bytes(mat) <= bytes.len);
    mat->data = bytes.data + at;
    if (site->t->role == SL_ROLE_EMBED) open_embed(m, c, mat, bytes.data);
    sl_status st = mat->dtype == SL_F8_E4M3 ? bind_scales(m, name, mat, err) : SL_OK;
    if (st == SL_OK) st = check_strips(m, site, name, mat, at, err);
    if (st != SL_OK) return st;
    sl_rank_cut(m, site->t, mat);
    m->strips = m->strips || mat->strips;
    return SL_OK;
}

static sl_status bind_tensor(void *ctx, const sl_site *site, const char *name, sl_err *err) {
    sl_binding *b = ctx;
    size_t at = 0;
    sl_span bytes = {0};
    sl_mat mat = {0};
    sl_status st = sl_model_goes_on(b->m, err);
    if (st != SL_OK || !wants(b, site)) return st;
    b->n_again++;
    b->m->copies.expert =
        site->t->stage == SL_STAGE_EXPERT ? expert_of(b->m, site) : (size_t)SIZE_MAX;
    if (in_mxfp4(b->m, site))
        return sl_mxfp4_place(b->m, site->t, name, site->expert, place(b->m, site), err);
    if (!sl_ckpt_find(b->m->ckpt, name, &at)) return sl_model_missing(b->m, name, err);
    sl_ckpt_tensor c = sl_ckpt_at(b->m->ckpt, at);
    st = check_tensor(b->m, site, c, &mat, err);
    if (st == SL_OK) st = sl_ckpt_data(b->m->ckpt, c, &bytes, err);
    if (st != SL_OK) return st;
    if (c.repack)
        st = bind_repacked(b->m, site, c, bytes, &mat, err);
    else if (sl_store_scatters(store_of(b->m, site->t->role)))
        st = sl_store_gather(b->m, store_of(b->m, site->t->role), site->t, site->expert, bytes,
                             &mat, err);
    else
        st = bind_mapped(b->m, site, c, name, bytes, &mat, err);
    *place(b->m, site) = mat;
    return st;
}

sl_status sl_model_bind(sl_model *m, const sl_stages *stages, sl_err *err) {
    sl_binding b = {.m = m, .stages = stages};
    sl_status st = each_site(m, bind_tensor, &b, err);
    m->copies.expert = SIZE_MAX;
    if (st != SL_OK || !m->stored.tied_head || !stages->attention || stages->inner) return st;
    if (m->embed.repack != SL_REPACK_NONE) return SL_OK; /* bound with the embedding */
    m->whole.mat[SL_ROLE_LM_HEAD] = m->whole.mat[SL_ROLE_EMBED];
    sl_rank_cut_head(m, &m->whole.mat[SL_ROLE_LM_HEAD]);
    return SL_OK;
}

/* Where the next tensor of random values begins. */
typedef struct sl_random_binding {
    sl_model *m;
    const sl_stages *stages; /* NULL: all */
    size_t at, largest;
    uint64_t all;
} sl_random_binding;

/* Bytes of a tensor of bf16; n x k is its shape. */
static size_t random_shape(const sl_model *m, const sl_site *site, uint64_t *n, uint64_t *k) {
    *n = sl_arch_dim_value(&m->stored, site->t->n);
    *k = sl_arch_dim_value(&m->stored, site->t->k);
    if (site->t->k == SL_DIM_NONE) {
        *k = *n;
        *n = 1;
    }
    return (size_t)(*n * *k * sl_dtype_bytes(SL_BF16));
}

static sl_status count_random(void *ctx, const sl_site *site, const char *name, sl_err *err) {
    sl_random_binding *b = ctx;
    uint64_t n, k;
    const size_t bytes = random_shape(b->m, site, &n, &k);
    (void)name;
    (void)err;
    b->largest = SL_MAX(b->largest, bytes);
    b->all += bytes;
    return SL_OK;
}

sl_status sl_model_random_sizes(sl_model *m, size_t *largest, uint64_t *all, sl_err *err) {
    sl_random_binding b = {.m = m};
    sl_status st = each_site(m, count_random, &b, err);
    *largest = b.largest;
    *all = b.all;
    return st;
}

static sl_status bind_random(void *ctx, const sl_site *site, const char *name, sl_err *err) {
    sl_random_binding *b = ctx;
    sl_model *m = b->m;
    uint64_t n, k;
    const size_t bytes = random_shape(m, site, &n, &k);
    if (b->stages && !hosts(m, b->stages, site)) return SL_OK;
    if (bytes > m->random_bytes)
        return sl_fail(err, SL_ERR_LIMIT, "tensor \"%s\" has %zu bytes, random weights %zu", name,
                       bytes, m->random_bytes);
    if (b->at + bytes > m->random_bytes) b->at = 0;
    *place(m, site) =
        (sl_mat){.data = m->random + b->at, .n = (uint32_t)n, .k = (uint32_t)k, .dtype = SL_BF16};
    b->at = (b->at + bytes + 63) / 64 * 64;
    return SL_OK;
}

sl_status sl_model_bind_random(sl_model *m, const sl_stages *stages, sl_err *err) {
    sl_random_binding b = {.m = m, .stages = stages};
    sl_status st = each_site(m, bind_random, &b, err);
    if (st == SL_OK && m->stored.tied_head)
        m->whole.mat[SL_ROLE_LM_HEAD] = m->whole.mat[SL_ROLE_EMBED];
    return st;
}

/* Of an expert that comes while the model computes: where a tensor of its number may begin, so that
 * none shares what a cache holds with its neighbours. */
static sl_status bind_random_again(sl_binding *b, const sl_site *site, size_t expert, sl_err *err) {
    sl_model *m = b->m;
    uint64_t n, k;
    const size_t bytes = random_shape(m, site, &n, &k);
    sl_random_binding r = {.m = m, .stages = b->stages};
    if (place(m, site)->data) return SL_OK;
    b->n_again++;
    const size_t number = expert * m->arch->n_tensors + (size_t)(site->t - m->arch->tensor);
    r.at = (size_t)((uint64_t)number * bytes % m->random_bytes) / 64 * 64;
    return visit(m, site, bind_random, &r, err);
}

sl_status sl_model_bind_expert(sl_model *m, size_t expert, bool *more, sl_err *err) {
    const sl_stages stages = {.experts = true};
    sl_binding b = {.m = m, .stages = &stages, .again = true};
    sl_status st = SL_OK;
    for (size_t i = 0; st == SL_OK && i < m->arch->n_tensors; i++) {
        const sl_site site = {.t = &m->arch->tensor[i],
                              .layer = m->stored.moe_layer[expert / m->stored.n_experts],
                              .expert = (uint32_t)(expert % m->stored.n_experts)};
        if (site.t->scope != SL_SCOPE_EXPERT || !sl_arch_tensor_used(&m->stored, site.t)) continue;
        st = m->random ? bind_random_again(&b, &site, expert, err)
                       : visit(m, &site, bind_tensor, &b, err);
    }
    m->copies.expert = SIZE_MAX;
    *more = b.n_again > 0;
    return st;
}

void sl_model_unbind_expert(sl_model *m, size_t expert) {
    sl_expert_weights *w = &m->expert[expert];
    sl_mat *const mats[] = {&w->gate, &w->up, &w->down, &w->gate_bias, &w->up_bias, &w->down_bias};
    for (size_t i = 0; i < SL_LEN(mats); i++) {
        if (mats[i]->data && !m->home.put && !m->random &&
            !sl_copies_have(&m->copies, mats[i]->data))
            sl_map_drop((sl_span){mats[i]->data, sl_mat_bytes(mats[i])});
        *mats[i] = (sl_mat){0};
    }
    w->touched = 0;
    sl_settle_drop(m, expert);
    sl_copies_drop(&m->copies, expert);
}

/* Values of a row that one rank has together, by what is stored. */
static sl_status find_block(void *ctx, const sl_site *site, const char *name, sl_err *err) {
    sl_model *m = ctx;
    uint32_t *most = NULL, block = 32;
    size_t at = 0;
    if (site->t->role == SL_ROLE_O) most = &m->blocks.o;
    if (site->t->role == SL_ROLE_DENSE_DOWN) most = &m->blocks.dense;
    if (site->t->role == SL_ROLE_SHARED_DOWN) most = &m->blocks.shared;
    if (site->t->role == SL_ROLE_EXPERT_DOWN) most = &m->blocks.expert;
    if (!most) return SL_OK;
    if (!in_mxfp4(m, site)) {
        if (!sl_ckpt_find(m->ckpt, name, &at)) return sl_model_missing(m, name, err);
        block = sl_dtype_block(sl_ckpt_at(m->ckpt, at).dtype);
    }
    *most = SL_MAX(*most, block);
    return SL_OK;
}

sl_status sl_model_find_blocks(sl_model *m, sl_err *err) {
    m->blocks = (sl_blocks){1, 1, 1, 1};
    return each_site(m, find_block, m, err);
}

/* Pieces of an expert: matrices, biases, and scales of some of them. */
#define MOST_PIECES 12u

typedef struct expert_sizes {
    uint64_t all, piece[MOST_PIECES];
    uint32_t n;
} expert_sizes;

typedef struct sl_measuring {
    const sl_model *m;
    sl_model_info *info;
    expert_sizes *of; /* [n_moe] of each block's first expert */
} sl_measuring;

static void note_piece(expert_sizes *x, uint64_t bytes) {
    SL_ASSERT(x->n < MOST_PIECES);
    x->all += bytes;
    x->piece[x->n++] = bytes;
}

/* Far smaller than the largest are biases and scales. */
static void sum_up_experts(const sl_measuring *a) {
    sl_model_info *info = a->info;
    for (uint32_t b = 0; b < a->m->stored.n_moe; b++) {
        info->bytes_expert_most = SL_MAX(info->bytes_expert_most, a->of[b].all);
        for (uint32_t i = 0; i < a->of[b].n; i++)
            info->expert_piece = SL_MAX(info->expert_piece, a->of[b].piece[i]);
    }
    for (uint32_t b = 0; b < a->m->stored.n_moe; b++) {
        uint64_t small = 0;
        uint32_t n = 0;
        for (uint32_t i = 0; i < a->of[b].n; i++) {
            const bool is_small = a->of[b].piece[i] <= info->expert_piece / 8;
            n += !is_small;
            small += is_small ? a->of[b].piece[i] : 0;
        }
        info->expert_pieces = SL_MAX(info->expert_pieces, n);
        info->expert_small = SL_MAX(info->expert_small, small);
    }
}

/* As check_tensor, of a tensor by its name. */
static sl_status check_named(const sl_model *m, const sl_site *site, const char *name, sl_mat *out,
                             sl_err *err) {
    size_t at = 0;
    if (in_mxfp4(m, site)) return sl_mxfp4_check(m, site->t, name, out, err);
    if (!sl_ckpt_find(m->ckpt, name, &at)) return sl_model_missing(m, name, err);
    return check_tensor(m, site, sl_ckpt_at(m->ckpt, at), out, err);
}

static sl_status measure_tensor(void *ctx, const sl_site *site, const char *name, sl_err *err) {
    const sl_measuring *a = ctx;
    sl_ckpt_tensor c = {0};
    sl_mat mat = {0};
    sl_status st = check_named(a->m, site, name, &mat, err);
    if (st != SL_OK) return st;
    uint64_t bytes = sl_mat_bytes(&mat);
    if (mat.dtype == SL_F8_E4M3) st = find_scales(a->m, name, &mat, &c, err);
    if (st != SL_OK) return st;
    if (site->t->stage == SL_STAGE_EXPERT && site->expert == 0 &&
        site->layer < a->m->stored.n_layers) {
        expert_sizes *x = &a->of[a->m->stored.moe_index[site->layer]];
        note_piece(x, bytes);
        if (c.end > c.begin) note_piece(x, c.end - c.begin);
    }
    bytes += c.end - c.begin;
    if (site->t->stage != SL_STAGE_EXPERT) {
        a->info->bytes_attention += bytes;
        const bool out = site->t->role == SL_ROLE_O || site->t->role == SL_ROLE_DELTA_OUT;
        if (out && site->layer == 0) a->info->attention_dtype = mat.dtype;
    } else if (site->expert == 0 && a->m->stored.moe_index[site->layer] == 0) {
        a->info->bytes_expert += bytes;
        if (site->t->role == SL_ROLE_EXPERT_GATE) a->info->expert_dtype = mat.dtype;
    }
    return SL_OK;
}

sl_status sl_model_measure(const sl_model *m, sl_model_info *out, sl_err *err) {
    sl_model_info info = {.n_tensors = sl_ckpt_tensors(m->ckpt), .n_files = sl_ckpt_files(m->ckpt)};
    for (size_t i = 0; i < info.n_tensors; i++) {
        sl_ckpt_tensor c = sl_ckpt_at(m->ckpt, i);
        info.bytes_total += c.end - c.begin;
        info.strips = info.strips || c.strips;
    }
    sl_measuring a = {.m = m, .info = &info};
    a.of = sl_alloc(m->stored.n_moe, sizeof *a.of);
    if (!a.of) return sl_fail(err, SL_ERR_NOMEM, "sizes of experts of %u blocks", m->stored.n_moe);
    sl_status st = each_site(m, measure_tensor, &a, err);
    if (st == SL_OK) sum_up_experts(&a);
    sl_free(a.of);
    if (st == SL_OK) *out = info;
    return st;
}
