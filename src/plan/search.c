/* The search over deployments: candidates, their figures, the best and the front. */
#include "plan/search.h"

#include "plan/apart.h"
#include "plan/mixserve.h"
#include "plan/search_int.h"

#include <math.h>
#include <string.h>

#define BUSY_AT_MOST 0.9      /* of capacity, where requests arrive at a given rate */
#define TRIAL_WORK   3000000u /* of all trials of aep together: well below a second */
#define HYBRID_WORK  1800000u /* the same of hybrid, whose law is nearly right */
#define ONE_TRIAL    2300000u
#define MOST_LANES   4u /* of ping-pong (N_m) */
#define SHRINKS      3u /* trials with smaller batches, where one does not keep the objectives */

typedef struct search {
    sl_search_state state;
    const sl_search_problem *p;
    sl_search_result *out;
    uint32_t top;
} search;

static double value_of(const sl_search_problem *p, const sl_candidate *c) {
    switch (p->objective) {
    case SL_OBJECTIVE_COST:
        return c->tokens_per_s / c->cost;
    case SL_OBJECTIVE_DEVICE:
        return c->tokens_per_s / c->devices;
    default:
        return c->tokens_per_s;
    }
}

static uint32_t sum_lanes(const sl_layout *l) {
    return l->lanes * l->stages;
}

static sl_apart_rank rank_of(const sl_candidate *c) {
    return (sl_apart_rank){.value = c->per_cost,
                           .devices = c->devices,
                           .batches = sum_lanes(&c->layout) * c->layout.chunks,
                           .tp_a = c->layout.tp_a,
                           .tp_e = c->layout.tp_e};
}

static bool better(const sl_candidate *a, const sl_candidate *b) {
    const sl_apart_rank x = rank_of(a), y = rank_of(b);
    return sl_apart_better(&x, &y);
}

static void keep_top(search *f, const sl_candidate *c) {
    sl_candidate *list = f->out->top[c->layout.kind];
    uint32_t *n = &f->out->n_top[c->layout.kind], at = *n;
    while (at > 0 && better(c, &list[at - 1])) at--;
    if (at >= f->top) return;
    uint32_t last = SL_MIN(*n, f->top - 1);
    memmove(&list[at + 1], &list[at], (last - at) * sizeof *list);
    list[at] = *c;
    *n = last + 1;
}

/* While searching, a curve holds bins: the best of those about as fast for one user. A bin is a
 * factor of 1.15 in tokens a second of one user, from 1 up; without devices it is empty. */
static void keep_front(search *f, const sl_candidate *c) {
    double at = log(1e6 / c->tpot_us) / log(1.15);
    uint32_t bin = at < 0 ? 0 : SL_MIN((uint32_t)at, SL_SEARCH_MAX_FRONT - 1);
    sl_candidate *b = &f->out->curve[c->layout.kind][bin];
    if (b->devices == 0 || better(c, b)) *b = *c;
}

/* How many devices a copy takes of each of its groups, and how many copies the cluster holds. */
static uint32_t copies_of(const search *f, const sl_layout *l) {
    const sl_cluster *k = f->p->cluster;
    const sl_node_group *a = &k->group[l->attn_group], *e = &k->group[l->expert_group];
    uint64_t slots_a = (uint64_t)a->count * (a->devices_per_node / l->tp_a);
    uint64_t slots_e = (uint64_t)e->count * (e->devices_per_node / l->tp_e);
    if (!sl_layout_is_apart(l->kind)) return (uint32_t)(slots_a / l->n_a / l->stages);
    if (l->attn_group != l->expert_group)
        return (uint32_t)SL_MIN(slots_a / l->n_a, slots_e / l->n_e);
    uint64_t all = (uint64_t)a->count * a->devices_per_node;
    return (uint32_t)(all / ((uint64_t)l->n_a * l->tp_a + (uint64_t)l->n_e * l->tp_e));
}

static void price(const search *f, sl_candidate *c) {
    const sl_layout *l = &c->layout;
    const sl_cluster *k = f->p->cluster;
    double a = k->type[k->group[l->attn_group].type].price_per_hour;
    double e = k->type[k->group[l->expert_group].type].price_per_hour;
    uint32_t n_a = l->n_a * l->tp_a * l->stages;
    uint32_t n_e = sl_layout_is_apart(l->kind) ? l->n_e * l->tp_e : 0;
    c->devices = (n_a + n_e) * c->copies;
    c->cost = (n_a * a + n_e * e) * c->copies;
}

/* Within the objectives for latency. */
static bool within(const search *f, const sl_candidate *c, sl_binding *why) {
    const sl_workload *w = f->p->workload;
    *why = SL_BINDING_TPOT;
    if (w->slo_tpot_us > 0 && c->tpot_us > w->slo_tpot_us) return false;
    *why = SL_BINDING_TTFT;
    return w->slo_ttft_us <= 0 || c->ttft_us <= w->slo_ttft_us;
}

static bool keeps(search *f, sl_candidate *c, sl_binding *why) {
    sl_search_evaluate(&f->state, c);
    return within(f, c, why);
}

static void note_slow(search *f, const sl_candidate *c) {
    sl_search_note_slow(&f->state.lack, f->p->workload, c->tpot_us, c->ttft_us);
}

/* Copies that a given rate of requests needs, and how long one waits for a place. */
static bool serve_rate(search *f, sl_candidate *c) {
    const sl_arrival *a = &f->p->workload->arrival;
    if (a->kind != SL_ARRIVAL_POISSON || !(a->rate > 0)) return true;
    double output = f->state.output, one = c->tokens_per_s / c->copies / output;
    double need = ceil(a->rate / (BUSY_AT_MOST * one)), slots = (double)c->seqs / c->copies;
    if (need > c->copies) {
        f->state.lack.rate = fmax(f->state.lack.rate, BUSY_AT_MOST * one * c->copies);
        return false;
    }
    c->copies = (uint32_t)need;
    c->seqs = (uint64_t)(slots * need);
    c->ttft_us += sl_queue_wait(slots, output * c->tpot_us, a->rate / need / 1e6, 1);
    c->tokens_per_s = a->rate * output;
    price(f, c);
    return true;
}

/* Most rows a lane, by memory and by how many requests there are at once. */
static uint32_t most_rows(search *f, sl_candidate *c, sl_binding *binding) {
    const sl_arrival *a = &f->p->workload->arrival;
    uint32_t rows = sl_search_memory_rows(&f->state, c);
    *binding = SL_BINDING_MEMORY;
    if (rows == 0 || a->kind != SL_ARRIVAL_CLOSED || a->concurrency == 0) return rows;
    uint64_t lanes = (uint64_t)c->layout.n_a * sum_lanes(&c->layout);
    uint64_t copies = SL_MIN(c->copies, a->concurrency / lanes);
    if (copies == 0) return 0;
    c->copies = (uint32_t)copies;
    uint64_t fit = a->concurrency / (lanes * copies);
    if (fit < rows) {
        *binding = SL_BINDING_CLIENTS;
        rows = (uint32_t)fit;
    }
    return rows;
}

/* (row, expert) pairs of a trial: two steps. Messages come on top. */
static double least_work(const search *f, const sl_candidate *c) {
    return 2.0 * c->rows * c->layout.lanes * c->layout.n_a * f->p->shape->top_k * f->state.n_moe;
}

static void note(search *f, sl_candidate *c, bool final) {
    bool to_try = c->layout.kind == SL_LAYOUT_AEP && f->p->trial && c->tried_us <= 0;
    c->per_cost = value_of(f->p, c);
    if (!to_try) keep_front(f, c);
    if (final && (!to_try || least_work(f, c) <= 0.9 * ONE_TRIAL)) keep_top(f, c);
}

/* Without an objective for TPOT: the smallest batch that has 99 % of the tokens of the largest. */
static void fewest_rows(search *f, sl_candidate *c) {
    uint32_t low = 1, high = c->rows, most = c->rows;
    double enough = 0.99 * c->tokens_per_s;
    while (low < high) {
        c->rows = low + (high - low) / 2;
        sl_search_evaluate(&f->state, c);
        if (c->tokens_per_s >= enough)
            high = c->rows;
        else
            low = c->rows + 1;
    }
    c->rows = low;
    sl_search_evaluate(&f->state, c);
    if (low < most) c->binding = SL_BINDING_GAIN;
}

/* A deployment whose batch is looked for, and what kept the last one from being larger. */
typedef struct batches {
    search *f;
    sl_candidate *c;
    sl_binding binding;
} batches;

static bool keeps_batch(void *ctx, uint64_t rows) {
    batches *b = ctx;
    sl_binding why;
    b->c->rows = (uint32_t)rows;
    if (keeps(b->f, b->c, &why)) {
        note(b->f, b->c, false);
        return true;
    }
    b->binding = why;
    return false;
}

/* The largest batch of a layout that keeps everything. */
static void try_batches(search *f, const sl_layout *l) {
    sl_candidate c = {.layout = *l, .copies = copies_of(f, l)};
    sl_binding binding;
    if (c.copies == 0) return;
    const uint32_t most = most_rows(f, &c, &binding);
    if (most == 0) return;
    f->state.layouts++;
    price(f, &c);
    batches b = {.f = f, .c = &c, .binding = binding};
    const uint64_t rows = sl_apart_batch(most, keeps_batch, &b);
    if (rows == 0) {
        note_slow(f, &c);
        return;
    }
    binding = b.binding;
    c.rows = (uint32_t)rows;
    sl_search_evaluate(&f->state, &c);
    c.binding = binding;
    if (f->p->workload->slo_tpot_us <= 0 && binding != SL_BINDING_CLIENTS) fewest_rows(f, &c);
    if (serve_rate(f, &c)) note(f, &c, true);
}

static bool is_wanted(const search *f, sl_layout_kind k) {
    return f->p->kinds == 0 || (f->p->kinds >> k & 1u);
}

/* Ping-pong leads to FinDEP, also where nobody asks for it: then what it lacks says nothing. */
static void try_layout(search *f, const sl_layout *l) {
    sl_search_lack lack = f->state.lack;
    bool wanted = is_wanted(f, l->kind);
    if (f->p->runnable && sl_layout_not_run(f->p, l)) return;
    if (!wanted && !(l->kind == SL_LAYOUT_PINGPONG && is_wanted(f, SL_LAYOUT_FINDEP))) return;
    try_batches(f, l);
    if (!wanted) f->state.lack = lack;
}

/* 1, 2, 3, 4, 6, 8, 12, 16, ...: the next size to try. */
static uint32_t next_size(uint32_t n) {
    if (n < 2) return n + 1;
    return (n & (n - 1)) == 0 ? n / 2 * 3 : n / 3 * 4;
}

static uint32_t most_tp(const search *f, uint32_t group) {
    uint32_t devices = f->p->cluster->group[group].devices_per_node, tp = 1;
    while (tp * 2 <= devices && tp < 1u << (SL_SEARCH_TPS - 1)) tp *= 2;
    return tp;
}

static uint64_t devices_of(const search *f, uint32_t group) {
    const sl_node_group *g = &f->p->cluster->group[group];
    return (uint64_t)g->count * g->devices_per_node;
}

static bool tp_divides(const search *f, uint32_t tp_a, uint32_t tp_e) {
    const sl_shape *m = f->p->shape;
    return m->n_heads % tp_a == 0 && m->d_ff_expert % tp_e == 0;
}

static void try_groups(search *f, sl_layout l) {
    uint32_t each = (f->p->shape->n_experts + l.n_e - 1) / l.n_e;
    l.kind = SL_LAYOUT_EPS;
    for (l.chunks = 2; l.chunks <= SL_MIN(each, SL_PLAN_MAX_CHUNKS); l.chunks++) {
        if (each % l.chunks == 0 && l.n_e > 1) try_layout(f, &l);
    }
}

/* All of `devices` in one colocated instance. */
static void try_colocated(search *f, uint32_t group, uint32_t devices) {
    const sl_shape *m = f->p->shape;
    sl_layout l = {.attn_group = group,
                   .expert_group = group,
                   .stages = 1,
                   .lanes = 1,
                   .chunks = 1,
                   .spare = f->p->workload->skew.on};
    for (l.tp_a = 1; l.tp_a <= most_tp(f, group); l.tp_a *= 2) {
        if (devices % l.tp_a != 0 || !tp_divides(f, l.tp_a, 1)) continue;
        l.n_a = devices / l.tp_a;
        l.tp_e = 1;
        l.n_e = devices;
        l.kind = SL_LAYOUT_EP;
        if (l.n_e <= m->n_experts) {
            try_layout(f, &l);
            try_groups(f, l);
        }
        if (!tp_divides(f, l.tp_a, l.tp_a) || l.n_a > m->n_experts) continue;
        l.tp_e = l.tp_a;
        l.n_e = l.n_a;
        l.kind = SL_LAYOUT_HYBRID;
        if (l.tp_e > 1) try_layout(f, &l);
        l.kind = SL_LAYOUT_PIPELINE;
        for (l.stages = 2; l.stages <= 8 && l.stages <= m->n_layers; l.stages *= 2)
            try_layout(f, &l);
        l.stages = 1;
    }
}

/* ---- attention and experts apart: what Algorithm 1 asks (apart.h) ---- */

static sl_layout layout_of(const search *f, const sl_apart *p) {
    return (sl_layout){.attn_group = p->attn,
                       .expert_group = p->expert,
                       .n_a = p->n_a,
                       .n_e = p->n_e,
                       .tp_a = p->tp_a,
                       .tp_e = p->tp_e,
                       .stages = 1,
                       .lanes = p->m,
                       .chunks = 1,
                       .spare = f->p->workload->skew.on};
}

/* Divisors of the experts, and all devices but one. */
static uint32_t next_experts(void *ctx, const sl_apart *p) {
    const search *f = ctx;
    const uint32_t E = f->p->shape->n_experts;
    const uint64_t all = devices_of(f, p->expert);
    for (uint32_t n = p->n_e + 1; n <= E; n++)
        if (E % n == 0 || n == all - 1) return n <= all ? n : 0;
    return 0;
}

static uint32_t next_attention(void *ctx, const sl_apart *p) {
    const search *f = ctx;
    const uint64_t taken = p->attn == p->expert ? (uint64_t)p->n_e * p->tp_e : 0;
    const uint64_t most = SL_MIN((devices_of(f, p->attn) - taken) / p->tp_a, 4096u);
    const uint32_t n = next_size(p->n_a);
    return n <= most ? n : 0;
}

static bool fits(void *ctx, const sl_apart *p) {
    search *f = ctx;
    if (p->tp_e > most_tp(f, p->expert) || p->tp_a > most_tp(f, p->attn)) return false;
    if ((uint64_t)p->n_e * p->tp_e > devices_of(f, p->expert)) return false;
    if (!tp_divides(f, p->tp_a, p->tp_e)) return false;
    sl_candidate c = {.layout = layout_of(f, p)};
    c.layout.kind = SL_LAYOUT_DEP;
    c.layout.lanes = 1;
    if (f->p->runnable && sl_layout_not_run(f->p, &c.layout)) return false;
    return sl_search_memory_rows(&f->state, &c) > 0;
}

/* One micro-batch is `dep`, more are ping-pong. What has no barrier has the same proportions: its
 * batches fall into fragments, about as many as most lanes would be. */
static void simulate(void *ctx, const sl_apart *p) {
    search *f = ctx;
    sl_layout l = layout_of(f, p);
    l.kind = p->m == 1 ? SL_LAYOUT_DEP : SL_LAYOUT_PINGPONG;
    try_layout(f, &l);
    l.kind = SL_LAYOUT_AEP;
    if (p->m == MOST_LANES) try_layout(f, &l);
}

/* FinDEP on the proportions that suit ping-pong best: chunks change little else. */
static void try_chunks(search *f) {
    sl_candidate base[SL_SEARCH_MAX_TOP];
    uint32_t n = f->out->n_top[SL_LAYOUT_PINGPONG];
    bool shared = f->p->shape->d_ff_shared + f->p->shape->d_ff_residual > 0;
    memcpy(base, f->out->top[SL_LAYOUT_PINGPONG], n * sizeof *base);
    for (uint32_t i = 0; i < n; i++) {
        sl_layout l = base[i].layout;
        l.kind = SL_LAYOUT_FINDEP;
        for (uint32_t v = 0; v < 4; v++) {
            l.order = v & 1 ? SL_ORDER_AASS : SL_ORDER_ASAS;
            l.chunking = v & 2 ? SL_CHUNK_EXPERTS : SL_CHUNK_TOKENS;
            if (l.order == SL_ORDER_AASS && !shared) continue;
            for (l.lanes = 1; l.lanes <= 4; l.lanes++)
                for (l.chunks = 2; l.chunks <= 8; l.chunks *= 2) try_layout(f, &l);
        }
    }
}

static uint64_t pairs_of(const search *f) {
    return (uint64_t)f->p->cluster->n_groups * f->p->cluster->n_groups;
}

/* Pairs of groups, then trials: as many as there may be. */
static void report(const search *f, uint64_t done) {
    uint64_t trials = f->p->trial ? 2 * SL_SEARCH_MAX_TOP : 0;
    if (f->p->progress) f->p->progress(f->p->progress_ctx, done, pairs_of(f) + trials);
}

static void pair_done(void *ctx, uint32_t attn, uint32_t expert) {
    const search *f = ctx;
    report(f, attn * f->p->cluster->n_groups + expert + 1);
}

static void try_all(search *f) {
    const sl_cluster *k = f->p->cluster;
    for (uint32_t a = 0; a < k->n_groups; a++) {
        uint64_t all = devices_of(f, a);
        for (uint32_t n = 1; n <= all && n <= 1u << 14; n = next_size(n)) try_colocated(f, a, n);
        bool size = false;
        for (uint32_t n = 1; n <= all; n = next_size(n)) size = size || n == all;
        if (!size && all <= 1u << 14) try_colocated(f, a, (uint32_t)all);
    }
    const sl_apart_space apart = {.ctx = f,
                                  .n_kinds = k->n_groups,
                                  .tp_max = 1u << (SL_SEARCH_TPS - 1),
                                  .m_min = 1,
                                  .m_max = MOST_LANES,
                                  .next_experts = next_experts,
                                  .next_attention = next_attention,
                                  .fits = fits,
                                  .simulate = simulate,
                                  .pair_done = pair_done};
    bool wanted = false;
    for (int kind = SL_LAYOUT_DEP; kind < SL_LAYOUT_COUNT; kind++)
        wanted = wanted || is_wanted(f, (sl_layout_kind)kind);
    if (wanted) sl_apart_search(&apart);
    try_chunks(f);
}

/* ---- trials ---- */

/* c with its step measured; false: it is too large to be tried. */
static bool measure(search *f, sl_candidate *c, uint64_t *work) {
    sl_search_trial t = sl_search_trial_of(&f->state, c);
    sl_search_tried r = {0};
    sl_err err;
    t.max_work = SL_MIN(*work, ONE_TRIAL);
    sl_status st = f->p->trial(&t, &r, &err);
    *work -= SL_MIN(*work, r.work);
    if (st != SL_OK) return false;
    c->tried_us = r.step_us;
    sl_search_evaluate(&f->state, c);
    c->layer_us = r.step_us / f->state.n_moe;
    if (t.ranks) return true; /* the law says what is busy */
    c->attn_busy = r.attn_busy;
    c->expert_busy = r.expert_busy;
    c->link_busy = r.link_busy;
    double busiest = fmax(r.attn_busy, fmax(r.expert_busy, r.link_busy));
    c->bottleneck = busiest < 0.9              ? SL_STATION_ROUND
                    : r.link_busy >= busiest   ? SL_STATION_LINK
                    : r.expert_busy >= busiest ? SL_STATION_EXPERTS
                                               : SL_STATION_ATTENTION;
    return true;
}

/* The batch that the law allows, or a smaller one that keeps the objectives. False: it is too large
 * to be tried. */
static bool try_out(search *f, const sl_candidate *bound, uint64_t *work) {
    sl_candidate c = {.layout = bound->layout, .copies = copies_of(f, &bound->layout)};
    sl_binding binding, why;
    if (most_rows(f, &c, &binding) == 0) return false;
    price(f, &c);
    c.rows = bound->rows;
    if (!measure(f, &c, work)) return false;
    c.binding = bound->binding;
    for (uint32_t i = 0; !within(f, &c, &why); i++) {
        double over = why == SL_BINDING_TPOT ? c.tpot_us / f->p->workload->slo_tpot_us : 2;
        uint32_t rows = (uint32_t)(c.rows / over * 0.97);
        note_slow(f, &c);
        if (i == SHRINKS || rows == 0) return true;
        c.rows = rows;
        if (!measure(f, &c, work)) return true;
        c.binding = why;
    }
    if (serve_rate(f, &c)) note(f, &c, true);
    return true;
}

/* Best bound first, while one may still be among the best. What cannot be tried is worth what the
 * law says; of aep there is none. */
static void try_kind(search *f, sl_layout_kind kind, uint32_t top, uint64_t work, uint64_t done) {
    sl_candidate bound[SL_SEARCH_MAX_TOP];
    uint32_t *n = &f->out->n_top[kind], n_bounds = *n;
    const sl_candidate *list = f->out->top[kind];
    memcpy(bound, list, n_bounds * sizeof *bound);
    *n = 0;
    for (uint32_t i = 0; i < n_bounds; i++) {
        if (*n >= top && list[top - 1].per_cost >= bound[i].per_cost) return;
        const bool tries = kind == SL_LAYOUT_AEP || sl_search_has_rails(f->p, &bound[i].layout);
        const bool tried = tries && try_out(f, &bound[i], &work);
        if (!tried && kind != SL_LAYOUT_AEP) keep_top(f, &bound[i]);
        report(f, done + i + 1);
    }
}

/* From bins, fastest first, those that gain a fiftieth or more over every faster one. Returns how
 * many; `out` is not `bin`. */
static uint32_t make_front(const sl_candidate *bin, sl_candidate *out) {
    double best = -1;
    uint32_t n = 0;
    for (uint32_t i = SL_SEARCH_MAX_FRONT; i-- > 0;) {
        if (bin[i].devices == 0 || bin[i].per_cost <= 1.02 * best) continue;
        best = bin[i].per_cost;
        out[n++] = bin[i];
    }
    return n;
}

/* Bins of every kind become curves, the best of them the front. */
static void make_fronts(sl_search_result *r) {
    sl_candidate bin[SL_SEARCH_MAX_FRONT], best[SL_SEARCH_MAX_FRONT] = {0};
    for (int k = 0; k < SL_LAYOUT_COUNT; k++) {
        memcpy(bin, r->curve[k], sizeof bin);
        for (uint32_t i = 0; i < SL_SEARCH_MAX_FRONT; i++)
            if (bin[i].devices && (!best[i].devices || better(&bin[i], &best[i]))) best[i] = bin[i];
        r->n_curve[k] = make_front(bin, r->curve[k]);
    }
    r->n_front = make_front(best, r->front);
}

/* What only led to another kind. */
static void drop_unwanted(search *f) {
    for (int k = 0; k < SL_LAYOUT_COUNT; k++) {
        if (is_wanted(f, (sl_layout_kind)k)) continue;
        f->out->n_top[k] = 0;
        memset(f->out->curve[k], 0, sizeof f->out->curve[k]);
    }
}

sl_status sl_search_run(const sl_search_problem *p, uint32_t top, sl_search_result *out,
                        sl_err *err) {
    static const sl_search_result none;
    search f = {.p = p, .out = out, .top = SL_SEARCH_MAX_TOP};
    *out = none;
    if (top == 0 || top > SL_SEARCH_MAX_TOP)
        return sl_fail(err, SL_ERR_ARG, "%u deployments of a kind: 1 to %u", top,
                       SL_SEARCH_MAX_TOP);
    sl_status st = sl_search_prepare(p, &f.state, err);
    if (st != SL_OK) return st;
    try_all(&f);
    if (p->trial) {
        try_kind(&f, SL_LAYOUT_AEP, top, TRIAL_WORK, pairs_of(&f));
        try_kind(&f, SL_LAYOUT_HYBRID, top, HYBRID_WORK, pairs_of(&f) + SL_SEARCH_MAX_TOP);
    }
    out->layouts = f.state.layouts;
    out->evaluations = f.state.evaluations;
    for (int k = 0; k < SL_LAYOUT_COUNT; k++) out->n_top[k] = SL_MIN(out->n_top[k], top);
    drop_unwanted(&f);
    make_fronts(out);
    if (!sl_search_winner(out)) st = sl_search_infeasible(p, &f.state.lack, err);
    sl_search_release(&f.state);
    return st;
}

/* Best but for one kind; of aep what was tried, not what is only bounded. */
static const sl_candidate *best_but(const sl_search_result *r, int not ) {
    const sl_candidate *best = NULL;
    for (int k = 0; k < SL_LAYOUT_COUNT; k++) {
        if (k == not || r->n_top[k] == 0) continue;
        if (k == SL_LAYOUT_AEP && r->top[k][0].bound) continue;
        if (!best || better(&r->top[k][0], best)) best = &r->top[k][0];
    }
    return best;
}

const sl_candidate *sl_search_winner(const sl_search_result *r) {
    return best_but(r, -1);
}

const sl_candidate *sl_search_runner_up(const sl_search_result *r) {
    const sl_candidate *w = sl_search_winner(r);
    return w ? best_but(r, (int)w->layout.kind) : NULL;
}
