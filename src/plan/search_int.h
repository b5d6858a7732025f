/* Parts of the search: costs of every worker that may be, and one layout at one batch. */
#ifndef SL_PLAN_SEARCH_INT_H
#define SL_PLAN_SEARCH_INT_H

#include "plan/collective.h"
#include "plan/roofline.h"
#include "plan/search.h"

#define SL_SEARCH_TPS 4u /* tensor parallelism 1, 2, 4, 8 */

/* A worker of 2^i devices of one node group. */
typedef struct sl_worker_costs {
    sl_costs decode, prefill;
    sl_stage_cost apart; /* an expert whose parts are summed by the exchange, not here */
} sl_worker_costs;

typedef struct sl_search_state {
    const sl_search_problem *p;
    sl_worker_costs costs[SL_CLUSTER_MAX_GROUPS][SL_SEARCH_TPS];
    sl_fabric intra[SL_CLUSTER_MAX_GROUPS], inter[SL_CLUSTER_MAX_GROUPS];
    double
        *skew; /* [n_experts + 1] busiest worker / mean by number of expert workers; 0: not yet */
    double input, output, context, context_p95, output_p95;
    uint32_t n_moe, n_dense, kv_shards;
    double attn_bytes, column_bytes, kv_token, state; /* sl_footprint */
    double block_bytes, block_kv_token; /* the same, where the block guesses; else 0 */
    uint64_t layouts, evaluations;
    sl_search_lack lack;
} sl_search_state;

sl_status sl_search_prepare(const sl_search_problem *p, sl_search_state *s,
                            sl_err *err) SL_MUST_CHECK;
void sl_search_release(sl_search_state *s);

/* Most rows of a lane at one attention worker that memory holds; 0: weights do not fit, and
 * s->lack notes what a device lacks. */
uint32_t sl_search_memory_rows(sl_search_state *s, sl_candidate *c);
/* Whether gangs on nodes send each other rows by a port a rank, as the engine does; else what is
 * counted is MixServe's fused exchange, which it does not run. */
bool sl_search_has_rails(const sl_search_problem *p, const sl_layout *l);
/* A trial of c, an aep or a hybrid with rails; max_work is the caller's. */
sl_search_trial sl_search_trial_of(const sl_search_state *s, const sl_candidate *c);
/* Times, rates and shares of c for its layout, rows and copies. A step takes tried_us, if it was
 * tried. */
void sl_search_evaluate(sl_search_state *s, sl_candidate *c);

/* What is known of the group's devices; NULL: their data sheet. */
static inline const sl_type_costs *sl_search_type(const sl_search_problem *p, uint32_t group) {
    return p->of_type ? &p->of_type[p->cluster->group[group].type] : NULL;
}

/* Costs that were measured of the group's devices; NULL: they are estimated. */
static inline const sl_costs *sl_search_measured(const sl_search_problem *p, uint32_t group) {
    const sl_type_costs *t = sl_search_type(p, group);
    return t ? t->costs : NULL;
}

/* Devices of a worker of tp that send its rows, a share each; of a gang of CPUs its first rank. */
uint32_t sl_search_senders(const sl_search_problem *p, uint32_t group, uint32_t tp);

#endif
