/* A device for tests: the CPU's stages, and in every block a state for each request that has no
 * position, as recurrent blocks and convolutions have it. A row adds to its residual stream what
 * the rows before it left, so that a row that is left out, done twice or taken from another's state
 * changes the bits of all that follow. Thread: as of any device. */
#ifndef SL_TESTS_STATEFUL_H
#define SL_TESTS_STATEFUL_H

#include "around.h"

typedef struct stateful {
    around in;
    float *state; /* [n_places][n_layers] */
    uint32_t n_places;
} stateful;

static inline float *stateful_at(stateful *d, uint32_t layer, uint32_t place) {
    return &d->state[(size_t)place * d->in.base.spec->n_layers + layer];
}

static inline void stateful_reserve(stateful *d, uint32_t place) {
    size_t layers = d->in.base.spec->n_layers;
    if (place < d->n_places) return;
    uint32_t n = SL_MAX(d->n_places * 2, place + 1);
    float *wider = sl_alloc(n, layers * sizeof *wider);
    SL_ASSERT(wider);
    for (size_t i = 0; i < n * layers; i++)
        wider[i] = i < d->n_places * layers ? d->state[i] : 1e6f; /* nobody's: it would be seen */
    sl_free(d->state);
    d->state = wider;
    d->n_places = n;
}

/* Rows of a request come in order, in this call and from call to call. */
static inline void stateful_pass(stateful *d, uint32_t layer, const sl_rowset *r) {
    uint32_t width = d->in.base.spec->d_model;
    for (uint32_t i = 0; i < r->n; i++) {
        float *x = (float *)(uintptr_t)r->x.at + (size_t)i * width, mean = 0;
        SL_ASSERT(r->pos[i] >= r->done[i]);
        stateful_reserve(d, r->state[i] | 1);
        uint32_t from = r->pos[i] == r->done[i] ? r->state[i] : r->state[i] ^ 1;
        float before = r->pos[i] == 0 ? 0 : *stateful_at(d, layer, from);
        for (uint32_t j = 0; j < width; j++) mean += x[j] / (float)width;
        *stateful_at(d, layer, r->state[i] ^ 1) = 0.75f * before + 0.25f * mean;
        for (uint32_t j = 0; j < width; j++) x[j] += 0.125f * before;
    }
}

static inline void stateful_submit(sl_device *base, const sl_stage_call *c) {
    stateful *d = (stateful *)base;
    sl_device_submit(d->in.inner, c);
    if (c->op == SL_OP_ATTEND) stateful_pass(d, c->layer, &c->rows);
    around_done(base, c->queue);
}

static inline void stateful_close(sl_device *base) {
    sl_free(((stateful *)base)->state);
    around_close(base);
}

static inline sl_status stateful_open(const sl_device_opts *o, sl_device **out, sl_err *err) {
    static const sl_device_ops ops = {.close = stateful_close,
                                      .submit = stateful_submit,
                                      .take = around_take,
                                      .give = around_give,
                                      .host = around_host};
    around *a;
    sl_status st = around_open(sizeof(stateful), &ops, sl_device_open, o, &a, err);
    if (st != SL_OK) return st;
    a->base.resumes = false; /* its state is elsewhere, ... */
    a->base.placed = true;   /* ...by place */
    *out = &a->base;
    return SL_OK;
}

#endif
