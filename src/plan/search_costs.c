/* What a search knows before its first candidate: costs, links, skews. */
#include "plan/search_int.h"

#include "base/mem.h"
#include "plan/fill.h"
#include "plan/lengths.h"
#include "plan/shard.h"
#include "spec/model.h"

#include <math.h>
#include <string.h>

/* Tensor parallelism whose sums cost nothing: the exchange makes them. */
static const sl_link_tier free_link = {.bandwidth = 1e30};

static sl_worker_costs estimate(const sl_search_problem *p, const sl_node_group *g, uint32_t tp) {
    sl_roofline r = {.device = &p->cluster->type[g->type],
                     .intra = g->intra,
                     .compute = p->compute,
                     .work = {.tp = tp, .activation_bytes = p->value_bytes}};
    sl_worker_costs w;
    w.decode = sl_roofline_costs(p->shape, &r, &g->inter);
    r.work.prefill = true;
    w.prefill = sl_roofline_costs(p->shape, &r, &g->inter);
    r.intra = free_link;
    w.apart = sl_roofline_costs(p->shape, &r, &g->inter).stage[SL_COST_EXPERT];
    return w;
}

static sl_worker_costs derive(const sl_search_problem *p, const sl_node_group *g,
                              const sl_costs *measured, uint32_t tp) {
    const sl_link_cost data_sheet = sl_roofline_link(&g->intra);
    const sl_link_cost *link = p->measured_intra ? p->measured_intra : &data_sheet;
    sl_worker_costs w;
    w.decode = w.prefill = sl_shard_costs(measured, p->shape, tp, link, p->value_bytes, true);
    w.apart =
        sl_shard_costs(measured, p->shape, tp, link, p->value_bytes, false).stage[SL_COST_EXPERT];
    return w;
}

static sl_fabric fabric(const sl_link_tier *t, const sl_link_cost *measured) {
    double bandwidth = t->bandwidth > 0 ? t->bandwidth : 1e30; /* a node of one device */
    if (measured) return (sl_fabric){SL_FABRIC_PORT, measured->alpha_us, measured->byte_us};
    return (sl_fabric){SL_FABRIC_PORT, t->latency_us, 1e6 / bandwidth};
}

static void fill_costs(sl_search_state *s) {
    const sl_search_problem *p = s->p;
    for (uint32_t g = 0; g < p->cluster->n_groups; g++) {
        const sl_node_group *group = &p->cluster->group[g];
        const sl_costs *measured = sl_search_measured(p, g);
        for (uint32_t i = 0; i < SL_SEARCH_TPS; i++) {
            sl_worker_costs *w = &s->costs[g][i];
            if (measured)
                *w = derive(p, group, measured, 1u << i);
            else
                *w = estimate(p, group, 1u << i);
        }
        s->intra[g] = fabric(&group->intra, p->measured_intra);
        s->inter[g] = fabric(&group->inter, p->measured_inter);
    }
}

/* Busiest worker / mean for n workers, each with room for one expert more than its share. */
static sl_status fill_skew(sl_search_state *s, double *popularity, uint32_t n, sl_err *err) {
    uint32_t experts = s->p->shape->n_experts, slots = (experts + n - 1) / n + 1;
    sl_fill f;
    sl_status st = sl_fill_replicas(popularity, experts, n, slots, 0, &f, err);
    if (st != SL_OK) return st;
    double sum = 0;
    for (uint32_t e = 0; e < experts; e++) sum += popularity[e];
    s->skew[n] = f.cost * n / sum;
    sl_fill_free(&f);
    return SL_OK;
}

static sl_status fill_skews(sl_search_state *s, sl_err *err) {
    const sl_route_skew *skew = &s->p->workload->skew;
    uint32_t experts = s->p->shape->n_experts;
    double popularity[SL_MAX_EXPERTS];
    for (uint32_t e = 0; e < experts; e++) popularity[e] = skew->on ? exp(-skew->theta * e) : 1;
    sl_status st = SL_OK;
    for (uint32_t n = 1; st == SL_OK && n <= experts; n++) {
        s->skew[n] = 1;
        bool even = experts % n == 0;
        if (skew->on && skew->theta > 0 && even) st = fill_skew(s, popularity, n, err);
        if (!even) s->skew[n] = ceil((double)experts / n) * n / experts;
    }
    return st;
}

static sl_status check(const sl_search_problem *p, sl_err *err) {
    const sl_shape *m = p->shape;
    if (m->n_experts == 0 || m->top_k == 0 || m->n_experts > SL_MAX_EXPERTS)
        return sl_fail(err, SL_ERR_ARG, "%s: %u experts, top %u: 1 to %u experts can be planned",
                       m->name, m->n_experts, m->top_k, SL_MAX_EXPERTS);
    for (uint32_t g = 0; g < p->cluster->n_groups; g++) {
        const sl_device_type *t = &p->cluster->type[p->cluster->group[g].type];
        if (p->objective == SL_OBJECTIVE_COST && t->price_per_hour <= 0)
            return sl_fail(err, SL_ERR_ARG,
                           "cluster %s: device %s has no price, which tok/s/$ needs",
                           p->cluster->name, t->name);
        if (!sl_search_measured(p, g) && sl_roofline_flops(t, p->compute) <= 0)
            return sl_fail(err, SL_ERR_ARG, "cluster %s: device %s has no rate for this format",
                           p->cluster->name, t->name);
    }
    return SL_OK;
}

sl_status sl_search_prepare(const sl_search_problem *p, sl_search_state *s, sl_err *err) {
    *s = (sl_search_state){.p = p};
    sl_status st = check(p, err);
    if (st != SL_OK) return st;
    s->skew = sl_alloc((size_t)p->shape->n_experts + 1, sizeof *s->skew);
    if (!s->skew) return sl_fail(err, SL_ERR_NOMEM, "search over %u experts", p->shape->n_experts);
    const sl_workload *w = p->workload;
    sl_footprint f = sl_account_footprint(p->shape);
    s->input = sl_length_mean(&w->input);
    s->output = sl_length_mean(&w->output);
    s->output_p95 = sl_length_p95(&w->output);
    s->context = sl_workload_mean_context(w);
    s->context_p95 = sl_length_p95(&w->input) + s->output_p95;
    s->n_moe = sl_shape_n_moe(p->shape);
    s->n_dense = sl_shape_n_dense(p->shape);
    s->kv_shards = p->shape->attention == SL_ATTENTION_MLA ? 1 : p->shape->n_kv_heads;
    s->attn_bytes = f.attention_side;
    s->column_bytes = f.expert_column;
    s->kv_token = f.kv_token;
    s->state = p->speculate == SL_SPECULATE_OFF ? f.state : f.guessed_state;
    if (sl_speculates_by_mtp(p->speculate)) {
        s->block_bytes = f.block;
        s->block_kv_token = f.block_kv_token;
    }
    fill_costs(s);
    st = fill_skews(s, err);
    if (st != SL_OK) sl_search_release(s);
    return st;
}

void sl_search_release(sl_search_state *s) {
    sl_free(s->skew);
    s->skew = NULL;
}
