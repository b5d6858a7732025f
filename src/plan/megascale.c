/* MegaScale-Infer's model of a disaggregated deployment, under the search of apart.h. */
#include "plan/megascale.h"

#include "plan/apart.h"
#include "plan/fill.h"
#include "plan/pingpong.h"

#include <math.h>

#define VALUE_BYTES     2.0
#define PUBLISHED_LANES 3u

sl_megascale_options sl_megascale_defaults(void) {
    return (sl_megascale_options){
        .flops_efficiency = 0.7,
        .bandwidth_efficiency = 0.8,
        .half_bytes = 131072,
        .attn_us = 25,
        .expert_us = 20,
        .context = 650,
        .context_p95 = 650,
        .imbalance = 1,
        .slo_us = 150e3,
        .lanes_max = 4,
        .nodes_max = 64,
    };
}

/* Bytes, or, as published, parameters. */
static double weight_size(const sl_megascale_options *o) {
    return o->as_published ? 1 : VALUE_BYTES;
}

double sl_megascale_attn_bytes(const sl_megascale_model *m, const sl_megascale_options *o) {
    double h = m->d_model;
    double params = m->layers * (h * h * (2 + 2 / m->group) + h * m->experts) + 2.0 * m->vocab * h;
    return params * weight_size(o);
}

double sl_megascale_expert_bytes(const sl_megascale_model *m, const sl_megascale_options *o) {
    double matrices = o->as_published ? 2 : 3;
    return matrices * m->d_model * m->d_ff * m->layers * weight_size(o);
}

double sl_megascale_kv_bytes(const sl_megascale_model *m) {
    return 2 * VALUE_BYTES * m->d_model * m->layers / m->group;
}

/* A product of [rows, k] by [k, n], microseconds: computing or moving, whichever takes longer. */
static double gemm(const sl_megascale_device *d, const sl_megascale_options *o, double rows,
                   double k, double n) {
    double flops = 2 * rows * k * n, bytes = VALUE_BYTES * (rows * k + k * n + n * rows);
    return 1e6 * fmax(flops / (o->flops_efficiency * d->flops),
                      bytes / (o->bandwidth_efficiency * d->bandwidth));
}

/* Summing and spreading rows over a node's tensor-parallel devices. */
static double tensor_sync(const sl_megascale_device *d, double rows, double h, uint32_t tp) {
    return 1e6 * 2 * VALUE_BYTES * rows * h * (tp - 1) / tp / d->nvlink;
}

static double attention_time(const sl_megascale_model *m, const sl_megascale_device *d,
                             const sl_megascale_options *o, double rows, uint32_t tp) {
    double h = m->d_model;
    double kv = 2 * VALUE_BYTES * rows * o->context * h / (m->group * tp);
    return gemm(d, o, rows, h, h * (1 + 2 / m->group) / tp) + gemm(d, o, rows, h / tp, h) +
           1e6 * kv / (o->bandwidth_efficiency * d->bandwidth) + tensor_sync(d, rows, h, tp) +
           o->attn_us;
}

static double expert_time(const sl_megascale_model *m, const sl_megascale_device *d,
                          const sl_megascale_options *o, double rows, uint32_t tp) {
    double h = m->d_model, width = (double)m->d_ff / tp;
    double in = gemm(d, o, rows, h, width) * (o->as_published ? 1 : 2);
    return in + gemm(d, o, rows, width, h) + tensor_sync(d, rows, h, tp) + o->expert_us;
}

/* Microseconds for `bytes` to `peers` others; the link is used as well as one message allows. */
static double send_time(const sl_megascale_options *o, double bytes, double peers, double nic) {
    double message = bytes / (o->as_published ? 1 : peers);
    return 1e6 * bytes / (nic * (message / (message + o->half_bytes)));
}

static sl_pingpong pipeline(const sl_megascale_model *m, const sl_megascale_device *devices,
                            const sl_megascale_options *o, const sl_megascale_plan *p) {
    const sl_megascale_device *a = &devices[p->attn_device], *e = &devices[p->expert_device];
    double rows = (double)p->micro;
    double each = rows * p->nodes * m->top_k / m->experts * o->imbalance;
    double value = o->as_published ? 1 : VALUE_BYTES;
    double sent = value * rows * m->d_model * m->top_k / p->tp_a;
    double got = value * each * m->d_model / p->tp_e;
    return (sl_pingpong){
        .attn = attention_time(m, a, o, rows, p->tp_a),
        .expert = expert_time(m, e, o, each, p->tp_e),
        .link = fmax(send_time(o, sent, m->experts, a->nic), send_time(o, got, p->nodes, e->nic)),
        .lanes = p->lanes,
        .layers = m->layers,
    };
}

void sl_megascale_evaluate(const sl_megascale_model *m, const sl_megascale_device *devices,
                           const sl_megascale_options *o, sl_megascale_plan *p) {
    sl_pingpong pipe = pipeline(m, devices, o, p);
    p->attn_us = pipe.attn;
    p->expert_us = pipe.expert;
    p->link_us = pipe.link;
    p->tpot_us =
        o->as_published ? sl_pingpong_as_published(&pipe).total : sl_pingpong_law(&pipe).token;
    p->batch = p->micro * p->lanes * p->nodes;
    p->throughput = 1e6 * (double)p->batch / p->tpot_us;
    p->cost = (double)p->tp_a * p->nodes * devices[p->attn_device].price +
              (double)p->tp_e * m->experts * devices[p->expert_device].price;
    p->per_cost = p->throughput / p->cost;
}

uint64_t sl_megascale_memory_batch(const sl_megascale_model *m, const sl_megascale_device *devices,
                                   const sl_megascale_options *o, const sl_megascale_plan *p) {
    double room = p->tp_a * devices[p->attn_device].memory_bytes;
    double weights = sl_megascale_attn_bytes(m, o) * (o->as_published ? VALUE_BYTES : 1);
    double context = o->as_published ? o->context : o->context_p95;
    double kv = p->lanes * context * sl_megascale_kv_bytes(m);
    double rows = floor((room * (1 - o->reserve) - weights) / kv);
    return rows >= 1 ? (uint64_t)rows : 0;
}

typedef struct filling {
    const sl_megascale_model *m;
    const sl_megascale_device *devices;
    const sl_megascale_options *o;
    sl_megascale_plan *p;
} filling;

static bool keeps_slo(void *ctx, uint64_t batch) {
    const filling *f = ctx;
    f->p->micro = batch;
    sl_megascale_evaluate(f->m, f->devices, f->o, f->p);
    return f->p->tpot_us <= f->o->slo_us;
}

bool sl_megascale_fill_batch(const sl_megascale_model *m, const sl_megascale_device *devices,
                             const sl_megascale_options *o, sl_megascale_plan *p) {
    filling f = {m, devices, o, p};
    const uint64_t most = sl_megascale_memory_batch(m, devices, o, p);
    p->micro = 1;
    const uint64_t batch = sl_apart_batch(most, keeps_slo, &f);
    if (batch == 0) return false;
    p->micro = batch;
    sl_megascale_evaluate(m, devices, o, p);
    p->memory_bound = batch == most;
    return true;
}

static uint32_t devices_of(const sl_megascale_model *m, const sl_megascale_plan *p) {
    return p->tp_a * p->nodes + p->tp_e * m->experts;
}

static sl_apart_rank rank_of(const sl_megascale_model *m, const sl_megascale_plan *p) {
    return (sl_apart_rank){p->per_cost, devices_of(m, p), p->lanes, p->tp_a, p->tp_e};
}

/* Their balance of the slopes of T_a and T_e: right for large batches only. */
static uint32_t published_nodes(const sl_megascale_model *m, const sl_megascale_device *devices,
                                const sl_megascale_options *o, const sl_megascale_plan *p) {
    const sl_megascale_device *a = &devices[p->attn_device], *e = &devices[p->expert_device];
    double k1 = (attention_time(m, a, o, 512, p->tp_a) - attention_time(m, a, o, 64, p->tp_a));
    double k3 = (expert_time(m, e, o, 512, p->tp_e) - expert_time(m, e, o, 64, p->tp_e));
    double nodes = k3 > 0 ? round(k1 * m->experts / (k3 * m->top_k)) : 1;
    return (uint32_t)fmin(fmax(nodes, 1), o->nodes_max);
}

typedef struct search {
    const sl_megascale_model *m;
    const sl_megascale_device *devices;
    const sl_megascale_options *o;
    sl_megascale_plan best, fastest; /* fastest: one row, whatever the SLO */
    double short_bytes;              /* least that any device lacks for the weights */
} search;

static void note_short(search *s, double bytes) {
    if (s->short_bytes == 0 || bytes < s->short_bytes) s->short_bytes = bytes;
}

static sl_megascale_plan plan_of(const sl_apart *x) {
    return (sl_megascale_plan){.attn_device = x->attn,
                               .expert_device = x->expert,
                               .tp_a = x->tp_a,
                               .tp_e = x->tp_e,
                               .nodes = x->n_a,
                               .lanes = x->m};
}

/* A node an expert. */
static uint32_t next_experts(void *ctx, const sl_apart *x) {
    const search *s = ctx;
    return x->n_e == 0 ? s->m->experts : 0;
}

static uint32_t next_nodes(void *ctx, const sl_apart *x) {
    const search *s = ctx;
    if (!s->o->as_published) return x->n_a < s->o->nodes_max ? x->n_a + 1 : 0;
    sl_megascale_plan p = plan_of(x);
    p.nodes = 1;
    return x->n_a == 0 ? published_nodes(s->m, s->devices, s->o, &p) : 0;
}

static bool fits(void *ctx, const sl_apart *x) {
    search *s = ctx;
    const sl_megascale_device *a = &s->devices[x->attn], *e = &s->devices[x->expert];
    double need_a = sl_megascale_attn_bytes(s->m, s->o), room_a = x->tp_a * a->memory_bytes;
    double need_e = sl_megascale_expert_bytes(s->m, s->o), room_e = x->tp_e * e->memory_bytes;
    if (need_a < room_a && need_e < room_e) return true;
    note_short(s, fmax((need_a - room_a) / x->tp_a, (need_e - room_e) / x->tp_e));
    return false;
}

static void simulate(void *ctx, const sl_apart *x) {
    search *s = ctx;
    sl_megascale_plan p = plan_of(x);
    if (sl_megascale_fill_batch(s->m, s->devices, s->o, &p)) {
        const sl_apart_rank mine = rank_of(s->m, &p), best = rank_of(s->m, &s->best);
        if (s->best.batch == 0 || sl_apart_better(&mine, &best)) s->best = p;
    } else if (p.tpot_us > 0 && (s->fastest.tpot_us == 0 || p.tpot_us < s->fastest.tpot_us)) {
        s->fastest = p;
    }
}

sl_status sl_megascale_search(const sl_megascale_model *m, const sl_megascale_device *devices,
                              uint32_t n, const sl_megascale_options *o, sl_megascale_plan *out,
                              sl_err *err) {
    search s = {.m = m, .devices = devices, .o = o};
    if (n == 0 || m->experts == 0 || m->top_k == 0 || !(m->group > 0) || !(o->slo_us > 0))
        return sl_fail(err, SL_ERR_ARG,
                       "search over %u devices, %u experts, top %u, group %g, SLO %g us", n,
                       m->experts, m->top_k, m->group, o->slo_us);
    sl_apart_search(&(sl_apart_space){.ctx = &s,
                                      .n_kinds = n,
                                      .tp_max = 8,
                                      .m_min = o->as_published ? PUBLISHED_LANES : 1,
                                      .m_max = o->lanes_max,
                                      .next_experts = next_experts,
                                      .next_attention = next_nodes,
                                      .fits = fits,
                                      .simulate = simulate});
    if (s.best.batch == 0) {
        if (s.fastest.tpot_us > 0)
            return sl_fail(err, SL_ERR_INFEASIBLE,
                           "no deployment makes a token in %.1f ms; the fastest (%u attention "
                           "nodes of %u %s, experts on %u %s each) takes %.1f ms",
                           o->slo_us / 1e3, s.fastest.nodes, s.fastest.tp_a,
                           devices[s.fastest.attn_device].name, s.fastest.tp_e,
                           devices[s.fastest.expert_device].name, s.fastest.tpot_us / 1e3);
        return sl_fail(err, SL_ERR_INFEASIBLE, "weights need %.1f GB more on a device",
                       s.short_bytes / 1e9);
    }
    *out = s.best;
    return SL_OK;
}

sl_status sl_megascale_imbalance(const double *popularity, uint32_t experts, uint32_t nodes,
                                 uint32_t slots, double *out, sl_err *err) {
    sl_fill f;
    sl_status st = sl_fill_replicas(popularity, experts, nodes, slots, 0, &f, err);
    if (st != SL_OK) return st;
    double sum = 0;
    for (uint32_t e = 0; e < experts; e++) sum += popularity[e];
    *out = sum > 0 ? f.cost * nodes / sum : 1;
    sl_fill_free(&f);
    return SL_OK;
}
