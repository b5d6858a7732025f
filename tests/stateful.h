/* A device for tests: the CPU's stages, and in every block a state for each request that has no
 * position, as recurrent blocks and convolutions have it. A row adds to its residual stream what
 * the rows before it left, so that a row that is left out, done twice or taken from another's state
 * changes the bits of all that follow. Thread: as of any device. */
#ifndef SL_TESTS_STATEFUL_H
#define SL_TESTS_STATEFUL_H

#include "base/mem.h"
#include "stage/stage.h"

typedef struct stateful {
    sl_device base;
    sl_device *cpu;
    float *state; /* [n_places][n_layers] */
    uint32_t n_places;
} stateful;

static inline float *stateful_at(stateful *d, uint32_t layer, uint32_t place) {
    return &d->state[(size_t)place * d->base.spec->n_layers + layer];
}

static inline void stateful_reserve(stateful *d, uint32_t place) {
    size_t layers = d->base.spec->n_layers;
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
    uint32_t width = d->base.spec->d_model;
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
    sl_device_submit(d->cpu, c);
    if (c->op == SL_OP_ATTEND) stateful_pass(d, c->layer, &c->rows);
    base->done[c->queue]++;
    base->in_flight--;
}

static inline sl_status stateful_take(sl_device *base, size_t bytes, sl_mem *out, sl_err *err) {
    sl_device *cpu = ((stateful *)base)->cpu;
    return cpu->ops->take(cpu, bytes, out, err);
}

static inline void stateful_give(sl_device *base, sl_mem m) {
    sl_device *cpu = ((stateful *)base)->cpu;
    cpu->ops->give(cpu, m);
}

static inline sl_status stateful_host(sl_device *base, const uint8_t *hosted, uint32_t max_pairs,
                                      sl_err *err) {
    return sl_device_host(((stateful *)base)->cpu, hosted, max_pairs, err);
}

static inline void stateful_close(sl_device *base) {
    stateful *d = (stateful *)base;
    sl_device_close(d->cpu);
    sl_free(d->state);
    sl_free(d);
}

static inline sl_status stateful_open(const sl_device_opts *o, sl_device **out, sl_err *err) {
    static const sl_device_ops ops = {.close = stateful_close,
                                      .submit = stateful_submit,
                                      .take = stateful_take,
                                      .give = stateful_give,
                                      .host = stateful_host};
    stateful *d = sl_alloc(1, sizeof *d);
    if (!d) return sl_fail(err, SL_ERR_NOMEM, "device");
    sl_status st = sl_device_open(o, &d->cpu, err);
    if (st != SL_OK) {
        sl_free(d);
        return st;
    }
    d->base.ops = &ops;
    d->base.spec = d->cpu->spec;
    d->base.in_place = d->cpu->in_place;
    *out = &d->base;
    return SL_OK;
}

#endif
