/* Costs of a worker of several devices (tensor parallelism), derived from those that were measured
 * of one by the rule of spec/rank_cost.h. Pure. Thread: any. */
#ifndef SL_PLAN_SHARD_H
#define SL_PLAN_SHARD_H

#include "spec/costs.h"
#include "spec/shape.h"

/* One rank of tp >= 1. value_bytes: of an activation on the link. reduce: with the all-reduce of
 * expert parts; false where the exchange makes their sums. The link of the result is `one`'s. */
sl_costs sl_shard_costs(const sl_costs *one, const sl_shape *s, uint32_t tp,
                        const sl_link_cost *intra, double value_bytes, bool reduce);

#endif
