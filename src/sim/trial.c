/* One candidate of the planner, run in the simulator. */
#include "sim/trial.h"

#include "base/mem.h"
#include "base/rng.h"
#include "plan/fill.h"
#include "sim/deployment.h"
#include "spec/kv.h"

#include <math.h>

#define MOST_STEPS  4u
#define FEW_PAIRS   3e5   /* so many may be followed for the sake of more than one step */
#define MOST_TOKENS 4096u /* of a request: far more than a trial generates */

typedef struct trial {
    const sl_search_trial *t;
    sl_model_spec m;
    sl_plan p;
    sl_costs attention;
    sl_workload load;
    uint8_t *roles;
    double *popularity; /* [blocks][n_experts]; NULL: uniform */
    uint16_t *rank;     /* the same */
} trial;

static void fill_model(trial *x, uint32_t blocks) {
    const sl_shape *s = x->t->shape;
    x->m = (sl_model_spec){.n_layers = blocks,
                           .n_moe = blocks,
                           .d_ff_shared = s->d_ff_shared + s->d_ff_residual,
                           .n_experts = s->n_experts,
                           .top_k = s->top_k};
    for (uint32_t l = 0; l < blocks; l++) {
        x->m.ffn[l] = SL_FFN_MOE;
        x->m.moe_index[l] = x->m.moe_layer[l] = (uint16_t)l;
    }
}

static void add(sl_stage_cost *sum, const sl_stage_cost *c, double times) {
    sum->fixed_us += times * c->fixed_us;
    sum->floor_us += times * c->floor_us;
    sum->slope_us += times * c->slope_us;
    sum->row_us += times * c->row_us;
    sum->read_us += times * c->read_us;
    sum->sum_us += times * c->sum_us;
    sum->sum_row_us += times * c->sum_row_us;
    sum->task_us += times * c->task_us;
}

/* Keys belong to rows here, as all contexts are alike. Dense blocks run with the head. */
static void fill_costs(trial *x) {
    sl_stage_cost *c = x->attention.stage, once = {0};
    uint32_t n_dense = sl_shape_n_dense(x->t->shape);
    x->attention = x->t->attention;
    c[SL_COST_ATTENTION].row_us += c[SL_COST_ATTENTION].key_us * x->t->context;
    c[SL_COST_ATTENTION].key_us = 0;
    add(&once, &c[SL_COST_ATTENTION], n_dense);
    add(&once, &c[SL_COST_DENSE], n_dense);
    add(&once, &c[SL_COST_HEAD], 1);
    once.pad_us = c[SL_COST_HEAD].pad_us;
    once.step = c[SL_COST_HEAD].step;
    c[SL_COST_HEAD] = once;
}

/* ---- experts ---- */

/* Which rank of popularity an expert has in a block. */
static void fill_ranks(trial *x) {
    uint32_t E = x->m.n_experts;
    uint64_t rng = x->t->skew->seed;
    for (uint32_t l = 0; l < x->m.n_moe; l++) {
        uint16_t *rank = x->rank + (size_t)l * E;
        for (uint32_t e = 0; e < E; e++) rank[e] = (uint16_t)e;
        for (uint32_t e = E - 1; x->t->skew->permuted && e > 0; e--) {
            uint32_t other = (uint32_t)sl_rng_below(&rng, e + 1);
            uint16_t was = rank[e];
            rank[e] = rank[other];
            rank[other] = was;
        }
        for (uint32_t e = 0; e < E; e++)
            x->popularity[(size_t)l * E + e] = exp(-x->t->skew->theta * rank[e]);
    }
}

/* Expert workers follow those of attention, or are the same ones. */
static uint32_t first_host(const trial *x) {
    return x->t->ranks ? 0 : x->t->n_a;
}

static uint32_t n_workers(const trial *x) {
    return first_host(x) + x->t->n_e;
}

static void place_even(trial *x) {
    uint32_t E = x->m.n_experts;
    for (uint32_t e = 0; e < E; e++) {
        x->p.place.first[e] = e;
        x->p.place.host[e].worker = first_host(x) + (uint32_t)((uint64_t)e * x->t->n_e / E);
    }
    x->p.place.first[E] = E;
}

/* The same for every rank in all blocks, as balancing has it: who is popular differs, not by how
 * much. f: pieces of ranks. */
static void place_ranks(trial *x, const sl_fill *f) {
    uint32_t E = x->m.n_experts, at = 0, from[SL_MAX_EXPERTS + 1] = {0};
    for (uint32_t i = 0; i < f->n; i++) from[f->piece[i].expert + 1] = i + 1;
    for (size_t i = 0; i < (size_t)x->m.n_moe * E; i++) {
        uint32_t rank = x->rank[i];
        double until = 0;
        x->p.place.first[i] = at;
        for (uint32_t j = from[rank]; j < from[rank + 1]; j++) {
            until += f->piece[j].share;
            x->p.place.host[at++] = (sl_host){first_host(x) + f->piece[j].worker,
                                              (uint32_t)fmin(until * 0x1p32, UINT32_MAX)};
        }
    }
    x->p.place.first[(size_t)x->m.n_moe * E] = at;
}

static sl_status place(trial *x, sl_err *err) {
    uint32_t E = x->m.n_experts, n = x->t->n_e, slots = (E + n - 1) / n + x->t->spare;
    double popular[SL_MAX_EXPERTS];
    sl_placement *p = &x->p.place;
    sl_fill f = {.n = E};
    p->n_layers = x->rank ? x->m.n_moe : 1;
    for (uint32_t e = 0; e < E; e++) popular[e] = exp(-x->t->skew->theta * e);
    sl_status st = x->rank ? sl_fill_replicas(popular, E, n, slots, 0, &f, err) : SL_OK;
    p->first = sl_alloc((size_t)p->n_layers * E + 1, sizeof *p->first);
    p->host = sl_alloc((size_t)p->n_layers * f.n, sizeof *p->host);
    if (st == SL_OK && (!p->first || !p->host))
        st = sl_fail(err, SL_ERR_NOMEM, "placement of %u experts in a trial", E);
    if (st == SL_OK && x->rank) place_ranks(x, &f);
    if (st == SL_OK && !x->rank) place_even(x);
    sl_fill_free(&f);
    return st;
}

/* ---- the run ---- */

static sl_status prepare(trial *x, sl_err *err) {
    const sl_search_trial *t = x->t;
    uint32_t n = n_workers(x), blocks = sl_shape_n_moe(t->shape);
    fill_model(x, blocks);
    fill_costs(x);
    x->p = (sl_plan){.schedule = t->ranks ? SL_SCHED_HYBRID : SL_SCHED_AEP,
                     .attention_tp = t->ranks,
                     .rail_bytes = SL_PLAN_RAIL_BYTES,
                     .lanes = 1,
                     .chunks = 1,
                     .policy = SL_POLICY_DEFRAG,
                     .lookahead = SL_PLAN_LOOKAHEAD,
                     .delta = SL_PLAN_DELTA,
                     .n_experts = x->m.n_experts,
                     .max_num_seqs = t->slots,
                     .max_num_batched_tokens = t->slots,
                     .prefill_stretch = 1,
                     .context = MOST_TOKENS,
                     .n_pages = t->slots * sl_kv_pages_for(MOST_TOKENS)};
    x->load =
        (sl_workload){.input = {.low = 1, .high = 1},
                      .output = {.low = MOST_TOKENS - 1, .high = MOST_TOKENS - 1},
                      .arrival = {.kind = SL_ARRIVAL_CLOSED, .concurrency = t->n_a * t->slots}};
    x->roles = sl_alloc(n, sizeof *x->roles);
    if (!x->roles) return sl_fail(err, SL_ERR_NOMEM, "trial of %u workers", n);
    for (uint32_t i = 0; i < n; i++)
        x->roles[i] = (uint8_t)((i < t->n_a ? SL_ROLE_ATTENTION : 0) |
                                (i >= first_host(x) ? SL_ROLE_EXPERT : 0));
    if (t->skew->on && t->skew->theta > 0) {
        x->popularity = sl_alloc((size_t)blocks * x->m.n_experts, sizeof *x->popularity);
        x->rank = sl_alloc((size_t)blocks * x->m.n_experts, sizeof *x->rank);
        if (!x->popularity || !x->rank)
            return sl_fail(err, SL_ERR_NOMEM, "popularity of %u experts in a trial",
                           x->m.n_experts);
        fill_ranks(x);
    }
    return place(x, err);
}

static void read_result(const trial *x, const sl_sim_result *r, sl_search_tried *out) {
    const sl_search_trial *t = x->t;
    double slots = (double)t->n_a * t->slots;
    *out = (sl_search_tried){.step_us = slots * 1e6 / r->tokens_per_s, .work = r->events};
    for (uint32_t i = 0; i < r->n_workers; i++) {
        const sl_sim_worker_stats *w = &r->worker[i];
        double n = i < t->n_a ? t->n_a : t->n_e;
        *(i < t->n_a ? &out->attn_busy : &out->expert_busy) += w->busy / n;
        out->link_busy = fmax(out->link_busy, fmax(w->out, w->in));
    }
}

/* (row, expert) pairs of a step. */
static double pairs_of(const sl_search_trial *t) {
    return (double)t->n_a * t->slots * t->shape->top_k * sl_shape_n_moe(t->shape);
}

static sl_status simulate(trial *x, uint32_t warm, uint32_t steps, sl_search_tried *out,
                          sl_err *err) {
    const sl_search_trial *t = x->t;
    sl_sim_result r = {0};
    double rows = (double)t->n_a * t->slots, pairs = pairs_of(t) * (warm + steps);
    const sl_sim_setup setup = {.model = &x->m,
                                .plan = &x->p,
                                .n_workers = n_workers(x),
                                .roles = x->roles,
                                .attention = &x->attention,
                                .expert = &t->expert,
                                .row_bytes = t->row_bytes,
                                .shared_ports = t->ranks > 0,
                                .popularity = x->popularity,
                                .n_layers = x->m.n_moe,
                                .load = &x->load,
                                .warmup_tokens = (uint64_t)(warm * rows),
                                .measure_tokens = (uint64_t)(steps * rows),
                                .max_events = t->max_work - (uint64_t)pairs,
                                .seed = 1};
    sl_status st = sl_sim_run(&setup, &r, err);
    if (st == SL_OK) read_result(x, &r, out);
    if (st == SL_OK && (double)r.tokens < rows * steps / 2)
        st = sl_fail(err, SL_ERR_LIMIT, "trial of %.0f rows: %llu events were not enough", rows,
                     (unsigned long long)r.events);
    out->work += (uint64_t)pairs;
    sl_sim_result_free(&r);
    return st;
}

sl_status sl_sim_try_steps(const sl_search_trial *t, uint32_t warm, uint32_t steps,
                           sl_search_tried *out, sl_err *err) {
    *out = (sl_search_tried){0};
    if (pairs_of(t) * (warm + steps) >= (double)t->max_work)
        return sl_fail(err, SL_ERR_LIMIT, "trial of %.0f (row, expert) pairs: at most %llu",
                       pairs_of(t) * (warm + steps), (unsigned long long)t->max_work);
    trial *x = sl_alloc(1, sizeof *x);
    if (!x) return sl_fail(err, SL_ERR_NOMEM, "trial");
    x->t = t;
    sl_status st = prepare(x, err);
    if (st == SL_OK) st = simulate(x, warm, steps, out, err);
    sl_free(x->p.place.first);
    sl_free(x->p.place.host);
    sl_free(x->popularity);
    sl_free(x->rank);
    sl_free(x->roles);
    sl_free(x);
    return st;
}

sl_status sl_sim_try(const sl_search_trial *t, sl_search_tried *out, sl_err *err) {
    double steps = FEW_PAIRS / pairs_of(t);
    return sl_sim_try_steps(t, 1,
                            steps >= MOST_STEPS ? MOST_STEPS
                            : steps > 1         ? (uint32_t)steps
                                                : 1,
                            out, err);
}
