/* A single-process forward pass out of the blocks of model/model.h, for tests: embed, attention,
 * route, experts grouped by id, combine in ascending order, head. */
#ifndef SL_TESTS_MODEL_RUN_H
#define SL_TESTS_MODEL_RUN_H

#include "base/rng.h"
#include "kernel/delta.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct model_run {
    const sl_model *m;
    const sl_model_spec *s;
    sl_exec ex;
    sl_arena scratch;
    uint32_t max_rows;
} model_run;

/* One request's cache. */
typedef struct model_seq {
    uint32_t *page;
    uint32_t n_pages;
    uint32_t number; /* of its states, where the model has linear attention */
} model_seq;

/* Pages of all requests that there are: of one model at a time. */
#define MODEL_RUN_PAGES 4096u
static struct {
    sl_kv_pool kv;
    uint32_t used, seqs;
} model_pages;

/* States of all requests, of one model at a time: as of sl_life, what is done and which version
 * that left. */
#define MODEL_RUN_SEQS 64u
static struct {
    sl_states of;
    uint32_t runs, used, done[MODEL_RUN_SEQS], version[MODEL_RUN_SEQS];
} model_states;

/* The whole model of a folder or file; ends the test program where it cannot be opened. */
static inline sl_model *model_run_open(const char *path) {
    const sl_stages all = {.attention = true, .experts = true};
    sl_model *m = NULL;
    sl_err err = {0};
    if (sl_model_open(path, &all, &m, &err) == SL_OK) return m;
    fprintf(stderr, "%s\n", err.msg);
    abort();
}

static inline void model_run_ids(uint32_t *ids, uint32_t n, uint32_t vocab, uint64_t seed) {
    for (uint32_t i = 0; i < n; i++) ids[i] = (uint32_t)sl_rng_below(&seed, vocab);
}

static inline model_run model_run_make(const sl_model *m, const sl_kernels *k, sl_pool *pool,
                                       uint32_t max_rows) {
    model_run r = {.m = m, .s = sl_model_spec_of(m), .ex = {k, pool}, .max_rows = max_rows};
    size_t a = sl_model_scratch_bytes(r.s, max_rows);
    size_t b = sl_experts_scratch_bytes(r.s, max_rows * r.s->top_k);
    sl_err err = {0};
    if (sl_arena_create(SL_MAX(a, b), &r.scratch, &err) != SL_OK) abort();
    if (model_states.runs++ == 0 && r.s->n_linear &&
        sl_states_open(r.s, MODEL_RUN_SEQS, true, &model_states.of, &err) != SL_OK)
        abort();
    return r;
}

static inline void model_run_free(model_run *r) {
    sl_arena_free(&r->scratch);
    if (--model_states.runs == 0) sl_states_close(&model_states.of);
}

static inline model_seq model_seq_make(const sl_model_spec *s, uint32_t positions) {
    model_seq q = {.n_pages = sl_kv_pages_for(positions)};
    q.page = calloc(q.n_pages, sizeof *q.page);
    if (model_pages.seqs++ == 0)
        model_pages.kv = sl_kv_pool_of(s, sl_reserve(MODEL_RUN_PAGES, sl_kv_page_bytes(s)));
    size_t n = model_pages.kv.page;
    SL_ASSERT(n == sl_kv_page_bytes(s));
    SL_ASSERT(model_pages.used + q.n_pages <= MODEL_RUN_PAGES);
    q.number = s->n_linear ? model_states.used++ : 0;
    SL_ASSERT(q.number < MODEL_RUN_SEQS);
    model_states.done[q.number] = model_states.version[q.number] = 0;
    for (uint32_t i = 0; i < q.n_pages; i++) {
        q.page[i] = model_pages.used++;
        /* what was never written must never be read: NaN in every type */
        memset(sl_kv_page(&model_pages.kv, q.page[i]), 0xFF, n);
    }
    return q;
}

static inline void model_seq_free(model_seq *q) {
    free(q->page);
    if (--model_pages.seqs > 0) return;
    sl_release(model_pages.kv.base, MODEL_RUN_PAGES, model_pages.kv.page);
    model_pages.used = 0;
    model_states.used = 0;
}

static inline void model_run_moe(model_run *r, uint32_t layer, const sl_rows *rows, float *x) {
    const sl_model_spec *s = r->s;
    uint32_t n = rows->n;
    size_t d = s->d_model, pairs = (size_t)n * s->top_k;
    float *h = malloc(n * d * sizeof *h), *gate = malloc(pairs * sizeof *gate);
    float *y = malloc(pairs * d * sizeof *y), *sum = malloc(d * sizeof *sum);
    uint32_t *expert = malloc(pairs * sizeof *expert), *row = malloc(pairs * sizeof *row);
    float *weight = malloc(pairs * sizeof *weight);
    uint32_t *place = malloc(pairs * sizeof *place);
    uint32_t *group = malloc(s->n_experts * sizeof *group);
    uint32_t *first = malloc((s->n_experts + 1) * sizeof *first), n_groups = 0, at = 0;
    if (s->dense_branch) {
        sl_block_route(r->m, &r->ex, layer, rows, x, h, expert, gate, &r->scratch);
        sl_block_attention(r->m, &r->ex, layer, rows, x, &r->scratch);
    } else {
        sl_block_attention(r->m, &r->ex, layer, rows, x, &r->scratch);
        sl_block_route(r->m, &r->ex, layer, rows, x, h, expert, gate, &r->scratch);
    }
    for (uint32_t e = 0; e < s->n_experts; e++) {
        uint32_t begin = at;
        for (size_t p = 0; p < pairs; p++)
            if (expert[p] == e) {
                row[at] = (uint32_t)(p / s->top_k);
                weight[at] = gate[p];
                place[p] = at++;
            }
        if (at == begin) continue;
        group[n_groups] = e;
        first[n_groups++] = begin;
    }
    first[n_groups] = at;
    sl_expert_batch b = {.n_groups = n_groups,
                         .expert = group,
                         .first = first,
                         .row = row,
                         .gate = weight,
                         .x = h,
                         .y = y};
    sl_block_experts(r->m, &r->ex, layer, &b, &r->scratch);
    if (s->d_ff_shared) sl_block_shared(r->m, &r->ex, layer, n, x, h, &r->scratch);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j < s->top_k; j++) {
            size_t p = (size_t)i * s->top_k + j;
            if (j == 0)
                memcpy(sum, y + place[p] * d, d * sizeof *sum);
            else
                sl_vec_add(&r->ex, sum, y + place[p] * d, d);
        }
        if (s->d_ff_shared) sl_vec_add(&r->ex, sum, h + i * d, d);
        sl_vec_add(&r->ex, x + i * d, sum, d);
    }
    free(h), free(gate), free(y), free(sum), free(expert), free(row), free(place);
    free(weight);
    free(group), free(first);
}

/* Where rows' states are, before they run... */
static inline void model_run_states(const model_seq *const *seq, const uint32_t *pos, uint32_t n,
                                    uint32_t *state, uint32_t *done) {
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t s = seq[i]->number;
        if (pos[i] == 0) model_states.done[s] = 0; /* from its beginning, again perhaps */
        state[i] = 2 * s + model_states.version[s];
        done[i] = model_states.done[s];
    }
}

/* ...and when they have run. */
static inline void model_run_commit(const model_seq *const *seq, const uint32_t *pos, uint32_t n,
                                    const uint32_t *state) {
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t s = seq[i]->number;
        model_states.done[s] = pos[i] + 1;
        model_states.version[s] = (state[i] & 1) ^ 1;
    }
}

/* Runs n rows (row r: id ids[r] at pos[r] of request *seq[r]) and writes all their logits. */
static inline void model_run_rows(model_run *r, uint32_t n, const uint32_t *ids,
                                  const uint32_t *pos, const model_seq *const *seq, float *logits) {
    float *x = malloc((size_t)n * r->s->d_model * sizeof *x);
    const uint32_t **pages = malloc(n * sizeof *pages);
    uint32_t *all = malloc(n * sizeof *all), *state = malloc(2 * (size_t)n * sizeof *state);
    model_run_states(seq, pos, n, state, state + n);
    for (uint32_t i = 0; i < n; i++) {
        pages[i] = seq[i]->page;
        all[i] = i;
    }
    sl_rows rows = {.n = n,
                    .id = ids,
                    .pos = pos,
                    .kv = model_pages.kv,
                    .pages = pages,
                    .state = state,
                    .done = state + n,
                    .states = &model_states.of};
    sl_model_embed(r->m, &r->ex, ids, n, x);
    for (uint32_t l = 0; l < r->s->n_layers; l++) {
        if (r->s->ffn[l] == SL_FFN_MOE) {
            model_run_moe(r, l, &rows, x);
            continue;
        }
        sl_block_attention(r->m, &r->ex, l, &rows, x, &r->scratch);
        sl_block_dense(r->m, &r->ex, l, n, x, &r->scratch);
    }
    sl_model_head(r->m, &r->ex, x, all, n, logits, &r->scratch);
    if (r->s->n_linear) model_run_commit(seq, pos, n, state);
    free(x), free((void *)pages), free(all), free(state);
}

/* Rows first .. first+n-1 of one request in steps of `chunk`. */
static inline void model_run_prefill(model_run *r, const model_seq *seq, const uint32_t *ids,
                                     uint32_t first, uint32_t n, uint32_t chunk, float *logits) {
    for (uint32_t at = 0; at < n; at += chunk) {
        uint32_t take = SL_MIN(chunk, n - at), pos[4096];
        const model_seq *seqs[4096];
        for (uint32_t i = 0; i < take; i++) {
            pos[i] = first + at + i;
            seqs[i] = seq;
        }
        model_run_rows(r, take, ids + at, pos, seqs, logits + (size_t)at * r->s->vocab);
    }
}

#endif
