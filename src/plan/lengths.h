/* Means, quantiles and draws of the distributions in spec/workload.h. Pure. Thread: any. */
#ifndef SL_PLAN_LENGTHS_H
#define SL_PLAN_LENGTHS_H

#include "spec/workload.h"

/* Tokens. The mean of a lognormal distribution takes its cut into account. */
double sl_length_mean(const sl_length *l);

/* The least length that a share q in [0, 1] does not exceed. With q drawn uniformly from (0, 1) it
 * is a draw of the distribution. */
uint32_t sl_length_quantile(const sl_length *l, double q);

static inline uint32_t sl_length_p95(const sl_length *l) {
    return sl_length_quantile(l, 0.95);
}

/* Mean number of keys that a row of a request sees while it decodes: prompt + half the answer. */
double sl_workload_mean_context(const sl_workload *w);

#endif
