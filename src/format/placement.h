/* Placements: which worker hosts which expert, and how rows are split among replicas.
 *
 * In plan.json either every worker lists its `experts` (one host each, alike in all blocks), or the
 * plan has "placement": a list by expert, or a list by MoE block of such lists. An entry is a
 * worker id, or [[worker, share], ...] with shares that add up to 1. */
#ifndef SL_FORMAT_PLACEMENT_H
#define SL_FORMAT_PLACEMENT_H

#include "base/status.h"
#include "format/json.h"
#include "spec/model.h"
#include "spec/plan.h"

#include <jansson.h>

/* One host of an expert while a placement is made. */
typedef struct sl_share {
    uint32_t worker;
    double share;
} sl_share;

/* owner[n_experts]: one host each, alike in all blocks. */
sl_status sl_placement_of_owners(const uint32_t *owner, uint32_t n_experts, sl_placement *out,
                                 sl_err *err) SL_MUST_CHECK;
/* shares: n[i] of them for expert i = layer * n_experts + e, one after the other. */
sl_status sl_placement_of_shares(const sl_share *shares, const uint32_t *n, uint32_t n_layers,
                                 uint32_t n_experts, sl_placement *out, sl_err *err) SL_MUST_CHECK;
/* The same in place of p->place; n_layers is 1 (all blocks alike) or the model's. */
sl_status sl_placement_set_shares(const sl_share *shares, const uint32_t *n, uint32_t n_layers,
                                  sl_plan *p, sl_err *err) SL_MUST_CHECK;
sl_status sl_placement_copy(const sl_placement *p, uint32_t n_experts, sl_placement *out,
                            sl_err *err) SL_MUST_CHECK;
void sl_placement_free(sl_placement *p);
/* Ids of the plan's *n expert workers, without spare places and those for prompts, ascending; free
 * with sl_free. NULL: out of memory. */
uint32_t *sl_placement_expert_workers(const sl_plan *p, uint32_t *n) SL_MUST_CHECK;
/* Replaces p->place: as many experts on each expert worker, consecutive ones or by turns. */
sl_status sl_placement_spread(bool round_robin, sl_plan *p, sl_err *err) SL_MUST_CHECK;
/* Home's placement for those who are there, there[n_workers] (1: this worker is). Experts with a
 * living host stay with it: replicas that are gone drop out, the shares of the others grow in
 * proportion. The others go, one by one and whole, to the expert worker whose share of that block
 * is the least, of equal ones to that with the least in all blocks, then the lowest id: nothing
 * else moves, and no other choice of hosts for them is more even. A function of home and there
 * alone; home's own, bit by bit, if nobody is missing. Free with sl_placement_free.
 * SL_ERR_INFEASIBLE: no expert worker is there. */
sl_status sl_placement_rehost(const sl_plan *home, const uint8_t *there, sl_placement *out,
                              sl_err *err) SL_MUST_CHECK;
/* Expert worker `to` of the plan, which hosts few or none, takes experts over from the others: in
 * each block one after the other from whoever takes most of its rows, as one host in another's
 * place, as long as it takes no more of them than an even share. Nothing else moves. SL_ERR_NOMEM:
 * nothing has. */
sl_status sl_placement_level(uint32_t to, sl_plan *p, sl_err *err) SL_MUST_CHECK;
/* Experts, of all n_moe blocks and both sides, that `to` gives each of its workers and `from`, of
 * as many workers, does not: added[n_workers]. */
void sl_placement_added(const sl_plan *from, const sl_plan *to, uint32_t n_moe, uint32_t *added);
/* Sets those of hosted[n_moe][n_experts] that the plan gives to this worker. */
void sl_placement_mark(const sl_plan *p, uint32_t n_moe, uint32_t worker, uint8_t *hosted);

/* The "placement" of a plan whose workers and n_experts are known; n_moe of the model. */
sl_status sl_placement_from_json(sl_json v, uint32_t n_moe, const sl_plan *p, sl_placement *out,
                                 sl_err *err) SL_MUST_CHECK;
/* NULL: the workers' lists say it all. */
json_t *sl_placement_json(const sl_plan *p);

/* A file {"rows": [[..n_experts] ..n_moe]} of rows that experts got: rows[n_moe][n_experts], each
 * >= 0. */
sl_status sl_placement_read_popularity(const char *path, const sl_model_spec *m, double *rows,
                                       sl_err *err) SL_MUST_CHECK;

#endif
