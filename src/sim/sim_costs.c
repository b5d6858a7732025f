/* What stages cost a worker now, as kernels of its tasks. Weights may still lie in a cache: chunks
 * and lanes of a step read a block's weights one soon after the other, and a large third cache
 * keeps some of a small model from step to step.
 *
 * A cache is known by how many bytes have come into it from memory. What was read when it had taken
 * `then` is there with a likelihood of exp(-(now - then) / size) (spec/costs.h). Workers of one
 * machine, which is where a neighbour slows them down, have one cache, and the same weights; others
 * have one each. */
#include "sim/deployment_int.h"

#include <math.h>

struct sim_cache {
    uint32_t n_caches, n_sites; /* sites: experts of blocks, then stages of blocks; the head is the
                                 * first block's */
    double *taken;              /* [n_caches] bytes that have come from memory */
    double *at;                 /* [n_caches][n_sites] what `taken` was; below 0: never */
};

static bool in_one_machine(const sim *s) {
    return s->s->expert->beside[SL_COST_EXPERT] > 0 || s->s->attention->beside[SL_COST_EXPERT] > 0;
}

sl_status sim_cache_create(sim *s) {
    const sl_model_spec *m = s->m;
    if (s->s->expert->cache_bytes <= 0 && s->s->attention->cache_bytes <= 0) return SL_OK;
    const uint32_t caches = in_one_machine(s) ? 1 : s->n_workers;
    const uint32_t sites = m->n_moe * m->n_experts + m->n_layers * SL_COST_COUNT;
    double *taken, *at;
    s->caches = sl_alloc_arrays(SL_ARRAY(s->cache, 1), SL_ARRAY(taken, caches),
                                SL_TABLE(at, caches, sites));
    if (!s->caches) return sim_oom(s, "caches");
    *s->cache = (sim_cache){caches, sites, taken, at};
    for (size_t i = 0; i < (size_t)caches * sites; i++) at[i] = -1;
    return SL_OK;
}

/* The share of a site's weights that is there when they are read now; afterwards all are. */
static double share_of(sim_cache *c, const sim_worker *w, uint32_t site, double bytes,
                       double cache_bytes) {
    const uint32_t i = c->n_caches > 1 ? w->id : 0;
    double *at = &c->at[(size_t)i * c->n_sites + site];
    const double share = *at < 0 ? 0 : sl_cache_keeps(cache_bytes, c->taken[i] - *at);
    c->taken[i] += bytes * (1 - share);
    *at = c->taken[i];
    return share;
}

double sim_expert_us(sim *s, const sim_worker *w, uint32_t moe, uint32_t expert, uint32_t rows,
                     bool first) {
    const sl_costs *c = s->s->expert;
    sl_stage_cost cost = c->stage[SL_COST_EXPERT];
    if (s->cache && c->cache_bytes > 0 && c->bytes[SL_COST_EXPERT] > 0) {
        const uint32_t site = moe * s->m->n_experts + expert;
        const double share = share_of(s->cache, w, site, c->bytes[SL_COST_EXPERT], c->cache_bytes);
        cost = sl_stage_cost_near(&cost, share);
    }
    return sl_expert_cost_us(&cost, c->grouped, rows, first);
}

sl_stage_cost sim_stage_cost(sim *s, const sim_worker *w, sl_cost_kind kind, uint32_t layer) {
    const sl_costs *c = s->s->attention;
    if (!s->cache || c->cache_bytes <= 0 || c->bytes[kind] <= 0) return c->stage[kind];
    const uint32_t site = s->m->n_moe * s->m->n_experts + layer * SL_COST_COUNT + (uint32_t)kind;
    return sl_stage_cost_near(&c->stage[kind],
                              share_of(s->cache, w, site, c->bytes[kind], c->cache_bytes));
}

void sim_attention_add(sim *s, sim_worker *w, uint32_t layer, double rows, double keys) {
    sl_stage_cost cost = sim_stage_cost(s, w, SL_COST_ATTENTION, layer);
    cost.fixed_us += sim_carried_us(s, SL_ROLE_ATTENTION, rows, 0);
    sim_kernel_add(s, w, SL_TRACE_ATTENTION, &cost, rows, keys);
}

void sim_stage_add(sim *s, sim_worker *w, sl_trace_kind trace, sl_cost_kind kind, uint32_t layer,
                   double rows) {
    const sl_stage_cost cost = sim_stage_cost(s, w, kind, layer);
    sim_kernel_add(s, w, trace, &cost, rows, 0);
}
