/* Weights that are used in a device's memory: what is bound is copied there, and every pointer to
 * it becomes one to the copy. What lies inside of something that was copied (a head's part of a
 * matrix, the scales that matrices share) is found there, so nothing is there twice. */
#include "base/mem.h"
#include "format/map.h"
#include "model/model_int.h"

#include <string.h>

typedef struct settling {
    sl_model *m;
    size_t expert; /* whose tensors these are; SIZE_MAX: nobody's */
    sl_progress_fn told;
    void *ctx;
    uint64_t there, all;
    sl_err *err;
} settling;

bool sl_weights_are_mapped(const void *at) {
    return sl_map_around(at).len > 0;
}

/* Experts share nothing with one another, so of them only the last items can have it. */
static const void *found(const sl_settled *s, size_t expert, const void *p, size_t bytes) {
    uintptr_t at = (uintptr_t)p;
    for (size_t i = s->n; i-- > 0;) {
        const sl_settlement *x = &s->item[i];
        if (expert != SIZE_MAX && x->expert != expert) return NULL;
        size_t skip = at - (uintptr_t)x->from;
        if (at >= (uintptr_t)x->from && skip < x->bytes && bytes <= x->bytes - skip)
            return (const uint8_t *)x->at + skip;
    }
    return NULL;
}

static sl_status note(settling *s, const void *from, const void *at, size_t bytes) {
    sl_settled *all = &s->m->settled;
    if (all->n == all->cap) {
        size_t cap = SL_MAX(2 * all->cap, (size_t)64);
        void *more = sl_grow(all->item, all->n, cap, sizeof *all->item);
        if (!more) return sl_fail(s->err, SL_ERR_NOMEM, "list of %zu weights", cap);
        all->item = more;
        all->cap = cap;
    }
    all->item[all->n++] = (sl_settlement){from, at, bytes, s->expert};
    return SL_OK;
}

/* *p, so many bytes of the host's memory, becomes the home's. */
static sl_status move(settling *s, const void **p, size_t bytes) {
    const sl_home *h = &s->m->home;
    if (!*p || bytes == 0) return SL_OK;
    const void *at = found(&s->m->settled, s->expert, *p, bytes);
    sl_status st = SL_OK;
    if (!at) {
        st = h->put(h->ctx, s->expert, *p, bytes, &at, s->err);
        if (st != SL_OK) return st;
        st = note(s, *p, at, bytes);
        if (st != SL_OK) h->drop(h->ctx, s->expert, at, bytes);
    }
    if (st != SL_OK) return st;
    *p = at;
    s->there += bytes;
    if (s->told) s->told(s->ctx, s->there, s->all);
    return SL_OK;
}

static size_t scale_bytes(const sl_mat *w) {
    size_t across = ((size_t)(w->scale_k ? w->scale_k : w->k) + SL_F8_BLOCK - 1) / SL_F8_BLOCK;
    return (w->scale_row + w->n + SL_F8_BLOCK - 1) / SL_F8_BLOCK * across * sizeof(float);
}

static sl_status move_mat(settling *s, sl_mat *w) {
    if (w->strips)
        return sl_fail(s->err, SL_ERR_UNSUPPORTED,
                       "%s: weights lie in strips, which a GPU does not read: use the file that "
                       "`sluice convert --repack` was given",
                       s->m->folder);
    sl_status st = move(s, &w->data, sl_mat_bytes(w));
    if (st == SL_OK && w->scale) st = move(s, (const void **)&w->scale, scale_bytes(w));
    return st;
}

static sl_status move_expert(settling *s, sl_expert_weights *e) {
    sl_mat *const mats[] = {&e->gate, &e->up, &e->down, &e->gate_bias, &e->up_bias, &e->down_bias};
    sl_status st = SL_OK;
    for (size_t i = 0; st == SL_OK && i < SL_LEN(mats); i++)
        if (mats[i]->data) st = move_mat(s, mats[i]);
    return st;
}

static sl_status move_latents(settling *s, uint32_t layer) {
    sl_model *m = s->m;
    sl_status st = SL_OK;
    for (uint32_t h = 0; m->mla && st == SL_OK && h < m->spec.n_heads; h++) {
        st = move_mat(s, &m->mla[layer].absorb[h]);
        if (st == SL_OK) st = move_mat(s, &m->mla[layer].value[h]);
    }
    return st;
}

static sl_status move_weights(settling *s, sl_weights *w) {
    sl_status st = SL_OK;
    for (size_t i = 0; st == SL_OK && i < SL_LEN(w->mat); i++)
        if (w->mat[i].data) st = move_mat(s, &w->mat[i]);
    return st;
}

static sl_status move_tables(settling *s) {
    const sl_model_spec *m = &s->m->spec;
    sl_tables *t = &s->m->tables;
    const size_t experts = (size_t)m->n_moe * m->n_experts,
                 sinks = (size_t)m->n_layers * m->n_heads;
    sl_status st = move(s, (const void **)&t->rope_freq, m->rope_dim / 2 * sizeof(double));
    if (st == SL_OK) st = move(s, (const void **)&t->ones, m->head_dim * sizeof(float));
    if (st == SL_OK) st = move(s, (const void **)&t->route_bias, experts * sizeof(float));
    return st == SL_OK ? move(s, (const void **)&t->sinks, sinks * sizeof(float)) : st;
}

sl_status sl_settle_expert(sl_model *m, size_t expert, sl_err *err) {
    settling s = {.m = m, .expert = expert, .err = err};
    return move_expert(&s, &m->expert[expert]);
}

static uint64_t bytes_of(const sl_mat *w) {
    return w->data ? sl_mat_bytes(w) : 0;
}

static uint64_t bytes_bound(const sl_model *m) {
    uint64_t n = 0;
    for (size_t i = 0; i < SL_LEN(m->whole.mat); i++) {
        n += bytes_of(&m->whole.mat[i]);
        for (uint32_t l = 0; l < m->spec.n_layers; l++) n += bytes_of(&m->block[l].mat[i]);
    }
    for (size_t i = 0; i < (size_t)m->spec.n_moe * m->spec.n_experts; i++)
        n += bytes_of(&m->expert[i].gate) + bytes_of(&m->expert[i].up) +
             bytes_of(&m->expert[i].down);
    return n;
}

sl_status sl_model_settle(sl_model *m, const sl_home *home, sl_progress_fn told, void *ctx,
                          sl_err *err) {
    settling s = {.m = m, .expert = SIZE_MAX, .told = told, .ctx = ctx, .err = err};
    SL_ASSERT(!m->home.put && !m->gang);
    m->home = *home;
    s.all = bytes_bound(m);
    sl_status st = move_tables(&s);
    if (st == SL_OK) st = move_weights(&s, &m->whole);
    for (uint32_t l = 0; st == SL_OK && l < m->spec.n_layers; l++) {
        st = move_weights(&s, &m->block[l]);
        if (st == SL_OK) st = move_latents(&s, l);
    }
    for (size_t i = 0; st == SL_OK && i < (size_t)m->spec.n_moe * m->spec.n_experts; i++) {
        s.expert = i;
        st = move_expert(&s, &m->expert[i]);
    }
    return st;
}

void sl_settle_drop(sl_model *m, size_t expert) {
    sl_settled *all = &m->settled;
    size_t n = 0;
    for (size_t i = 0; i < all->n; i++) {
        if (all->item[i].expert == expert)
            m->home.drop(m->home.ctx, expert, all->item[i].at, all->item[i].bytes);
        else
            all->item[n++] = all->item[i];
    }
    all->n = n;
}

void sl_settle_end(sl_model *m) {
    for (size_t i = 0; i < m->settled.n; i++)
        m->home.drop(m->home.ctx, m->settled.item[i].expert, m->settled.item[i].at,
                     m->settled.item[i].bytes);
    sl_free(m->settled.item);
    m->settled = (sl_settled){0};
}
