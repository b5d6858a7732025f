/* Latent attention (mla.c) in the form it was trained in: keys W_UK c | r and values W_UV c of
 * every head are made from the cached latents, and attention runs over them. A row, head and key
 * take
 *
 *   nope_dim + rope_dim + v_dim + kv_lora * (nope_dim + v_dim) / n
 *
 * products when n rows share what was made, and 2 * kv_lora + rope_dim in the absorbed form.
 * What is made is a span of positions and a slice of heads at a time: scratch does not grow with
 * the context. A row's bits do not depend on n: spans are aligned to absolute positions. */
#include "model/block_int.h"

#include <string.h>

#define SPAN  (4 * SL_KV_PAGE_TOKENS) /* positions: with 16 rows their keys of a head stay in L2 */
#define HEADS 16u                     /* of a slice: work for many threads in a few megabytes */
/* Whatever the widths: shorter prompts gain too little for the choice to depend on their chunks. */
#define FEWEST 64u

uint32_t sl_model_expand_rows(const sl_model_spec *s) {
    uint32_t dim = sl_query_dim(s), absorbed = 2 * s->kv_lora + s->rope_dim;
    if (!s->kv_lora || s->v_dim > dim || absorbed <= dim + s->v_dim) return 0;
    uint64_t made = (uint64_t)s->kv_lora * (s->nope_dim + s->v_dim);
    return (uint32_t)SL_MAX(made / (absorbed - dim - s->v_dim) + 1, FEWEST);
}

/* A slice of heads: where its weights and what is made of them lie. */
typedef struct slice {
    const sl_model *m;
    const sl_exec *ex;
    uint32_t layer, head, n; /* heads head .. head + n - 1 */
    sl_mat *up;              /* [n] of [nope_dim][kv_lora]: W_UK */
    float *turned;           /* [n][nope_dim][kv_lora] and a row of each; NULL: W_UK lies so */
    float *latent;           /* [SPAN][head_dim] */
    float *k, *v;            /* [n][SPAN][nope_dim + rope_dim] */
    uint32_t n_keys;         /* of this span */
} slice;

size_t sl_mla_expanded_bytes(const sl_model_spec *s, uint32_t max_rows) {
    size_t heads = SL_MIN(s->n_heads, HEADS), dim = sl_query_dim(s);
    size_t made = 2 * sl_scratch_floats(heads * SPAN, dim) + sl_scratch_floats(SPAN, s->head_dim);
    size_t turned = s->kv_parts ? sl_scratch_floats(heads * s->nope_dim, s->kv_lora + 1) : 0;
    size_t state = 2 * sl_scratch_floats(max_rows, heads);
    return made + turned + state + heads * (sizeof(sl_mat) + 2 * sizeof(sl_gemm_job)) +
           2 * SL_SCRATCH_SLACK;
}

static void each(const sl_exec *ex, uint32_t n, sl_pool_fn fn, void *ctx) {
    if (ex->pool)
        sl_pool_run(ex->pool, n, 1, fn, ctx);
    else
        fn(ctx, 0, n);
}

/* W_UK of heads whose tensor is W_UK^T, for this slice alone. */
static void turn_heads(void *ctx, size_t begin, size_t end) {
    const slice *c = ctx;
    const sl_model_spec *s = &c->m->spec;
    const sl_exec alone = {.k = c->ex->k};
    size_t lora = s->kv_lora, nope = s->nope_dim;
    for (size_t h = begin; h < end; h++) {
        float *to = c->turned + h * nope * lora, *row = c->turned + (c->n * lora + h) * nope;
        for (uint32_t j = 0; j < lora; j++) {
            sl_widen_row(&alone, &c->m->mla[c->layer].absorb[c->head + h], j, row);
            for (uint32_t i = 0; i < nope; i++) to[i * lora + j] = row[i];
        }
    }
}

static void find_weights(slice *c) {
    const sl_model_spec *s = &c->m->spec;
    uint32_t lora = s->kv_lora, nope = s->nope_dim;
    if (c->turned) each(c->ex, c->n, turn_heads, c);
    for (uint32_t h = 0; h < c->n; h++) {
        const sl_mat *w = &c->m->block[c->layer].mat[SL_ROLE_KV_B];
        uint32_t first = (c->head + h) * (nope + s->v_dim);
        if (c->turned) {
            c->up[h] = (sl_mat){.data = c->turned + (size_t)h * nope * lora, .dtype = SL_F32};
        } else {
            c->up[h] = *w;
            c->up[h].data = (const uint8_t *)w->data + first * sl_dtype_row_bytes(w->dtype, lora);
            c->up[h].scale_row = w->scale_row + first;
        }
        c->up[h].n = nope;
        c->up[h].k = lora;
    }
}

/* The rotated keys beside what each head makes of its own. */
static void share_keys(void *ctx, size_t begin, size_t end) {
    const slice *c = ctx;
    const sl_model_spec *s = &c->m->spec;
    size_t dim = sl_query_dim(s);
    for (size_t h = begin; h < end; h++)
        for (uint32_t j = 0; j < c->n_keys; j++)
            memcpy(c->k + (h * SPAN + j) * dim + s->nope_dim,
                   c->latent + (size_t)j * s->head_dim + s->kv_lora, s->rope_dim * sizeof *c->k);
}

/* Keys and values of the n_keys positions from `first` on. */
static void expand(slice *c, const sl_kv_pool *kv, const uint32_t *pages, uint32_t first,
                   sl_arena *scratch) {
    const sl_model_spec *s = &c->m->spec;
    size_t level = scratch->used, at = sl_kv_tile_offset(s, c->layer, 0, 0);
    uint32_t dim = sl_query_dim(s);
    for (uint32_t j = 0; j < c->n_keys; j += SL_KV_PAGE_TOKENS) {
        uint32_t rows = SL_MIN(SL_KV_PAGE_TOKENS, c->n_keys - j);
        const uint8_t *page = sl_kv_page(kv, pages[(first + j) / SL_KV_PAGE_TOKENS]);
        sl_kv_rows_widen(c->ex->k, s, page + at, 0, rows, c->latent + (size_t)j * s->head_dim);
    }
    sl_gemm_job *job = sl_take(scratch, 2 * (size_t)c->n, sizeof *job);
    for (uint32_t h = 0; h < c->n; h++) {
        sl_gemm_job *key = &job[2 * h], *value = key + 1;
        *key = (sl_gemm_job){.w = &c->up[h],
                             .x = c->latent,
                             .n_rows = c->n_keys,
                             .x_stride = s->head_dim,
                             .y_stride = dim,
                             .y = c->k + (size_t)h * SPAN * dim};
        *value = *key;
        value->w = &c->m->mla[c->layer].value[c->head + h];
        value->y = c->v + (size_t)h * SPAN * dim;
    }
    sl_gemm(c->ex, job, 2 * c->n);
    each(c->ex, c->n, share_keys, c);
    scratch->used = level;
}

void sl_mla_expanded(const sl_model *m, const sl_exec *ex, uint32_t layer, const sl_rows *rows,
                     uint32_t first, uint32_t n, float scale, const float *q, float *o,
                     sl_arena *scratch) {
    const sl_model_spec *s = &m->spec;
    size_t level = scratch->used;
    uint32_t dim = sl_query_dim(s), heads = SL_MIN(s->n_heads, HEADS);
    uint32_t n_keys = rows->pos[first + n - 1] + 1;
    SL_ASSERT(s->v_dim <= dim && s->sight[layer] == SL_SIGHT_ALL);
    slice c = {.m = m, .ex = ex, .layer = layer};
    c.up = sl_take(scratch, heads, sizeof *c.up);
    if (s->kv_parts) c.turned = sl_take_rows(scratch, heads * s->nope_dim, s->kv_lora + 1);
    c.latent = sl_take_rows(scratch, SPAN, s->head_dim);
    c.k = sl_take_rows(scratch, heads * SPAN, dim);
    c.v = sl_take_rows(scratch, heads * SPAN, dim);
    sl_attn_span a = {.dim = dim,
                      .v_dim = s->v_dim,
                      .span = SPAN,
                      .k = c.k,
                      .v = c.v,
                      .n_rows = n,
                      .q_stride = s->n_heads * dim,
                      .o_stride = s->n_heads * s->v_dim,
                      .pos = rows->pos + first,
                      .scale = scale,
                      .max = sl_take_rows(scratch, n, heads),
                      .sum = sl_take_rows(scratch, n, heads)};
    for (; c.head < s->n_heads; c.head += c.n) {
        c.n = SL_MIN(heads, s->n_heads - c.head);
        find_weights(&c);
        a.n_heads = c.n;
        a.q = q + (size_t)c.head * dim;
        a.o = o + (size_t)c.head * s->v_dim;
        for (uint32_t at = 0; at < n_keys; at += SPAN) {
            c.n_keys = SL_MIN(SPAN, n_keys - at);
            expand(&c, &rows->kv, rows->pages[first], at, scratch);
            a.first = at;
            a.last = at + c.n_keys == n_keys;
            sl_attention_span(ex, &a);
        }
    }
    scratch->used = level;
}
