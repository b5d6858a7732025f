/* Balancing experts over workers by measured popularity (MegaScale-Infer 4.3, corrected: the load
 * of a copy has a floor, and a worker has room for so many experts). Expert i costs a[i] (rows of
 * the last period, say), but at least k0 wherever a copy of it lives: its weights are read.
 *
 *   cost_j = sum over i on j of max(x_ij a_i, k0),   minimise max_j cost_j,   sum_j x_ij = 1
 *
 * Pure. Thread: any. */
#ifndef SL_PLAN_FILL_H
#define SL_PLAN_FILL_H

#include "base/status.h"

#include <stdint.h>

typedef struct sl_fill_piece {
    uint32_t expert, worker;
    double share; /* x_ij, > 0 */
} sl_fill_piece;

typedef struct sl_fill {
    sl_fill_piece *piece; /* by expert, then worker; at most one per (expert, worker) */
    uint32_t n;
    double cost;  /* of the dearest worker */
    double bound; /* max(sum max(a_i, k0) / N, k0 ceil(M / N)): no placement is cheaper */
} sl_fill;

/* One host each, dearest expert first, to the cheapest worker with room (longest processing time
 * first). a [n_experts] finite, >= 0. SL_ERR_INFEASIBLE: more experts than slots. */
sl_status sl_fill_whole(const double *a, uint32_t n_experts, uint32_t n_workers, uint32_t slots,
                        double k0, sl_fill *out, sl_err *err) SL_MUST_CHECK;
/* Dear experts may live on several workers; never dearer than sl_fill_whole. */
sl_status sl_fill_replicas(const double *a, uint32_t n_experts, uint32_t n_workers, uint32_t slots,
                           double k0, sl_fill *out, sl_err *err) SL_MUST_CHECK;
void sl_fill_free(sl_fill *f);

#endif
