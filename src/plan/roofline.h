/* Costs from data sheets, for devices nobody has measured: every stage takes the longer of its
 * operations and its bytes, at the stated efficiency of each. Estimates, and marked so.
 *
 *   t = launch + max(flops / (F ef), (weights + activations) / (BW eb))
 *              + max(key flops / (F ef), key bytes / (BW eb)) + all-reduce over tp devices
 *
 * (MegaScale-Infer 4.1 with three expert matrices and bytes where the paper omits them.)
 * Pure. Thread: any. */
#ifndef SL_PLAN_ROOFLINE_H
#define SL_PLAN_ROOFLINE_H

#include "plan/account.h"
#include "spec/cluster.h"
#include "spec/costs.h"

typedef struct sl_roofline {
    const sl_device_type *device;
    sl_link_tier intra;   /* among the tp devices of a stage */
    sl_compute compute;   /* format of the multiplications; one the device lacks: the next wider */
    sl_account_opts work; /* tp, bytes per activation, prefill or decode */
} sl_roofline;

/* Operations a second of the device in that format, or in the next wider one that it has; x ef. */
double sl_roofline_flops(const sl_device_type *d, sl_compute compute);

/* The formula above, microseconds. */
double sl_roofline_stage_us(const sl_shape *s, const sl_roofline *r, sl_cost_kind kind, double rows,
                            double keys);

/* All-reduce of `bytes` over n devices (reduce-scatter, then all-gather), microseconds. */
double sl_roofline_all_reduce_us(const sl_link_tier *link, uint32_t n, double bytes);

sl_link_cost sl_roofline_link(const sl_link_tier *tier);

/* The same as the numbers that sl_costs has of a stage; all experts of a task are one launch.
 * Attention's weights are read beside its keys, so they are part of its fixed cost: never below the
 * formula, and above it by at most the smaller of reading the weights and multiplying the rows. The
 * other stages are exact but for activations' bytes below the knee. */
sl_costs sl_roofline_costs(const sl_shape *s, const sl_roofline *r, const sl_link_tier *link);

#endif
