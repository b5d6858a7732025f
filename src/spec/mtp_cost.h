/* What a call of the block that predicts a further token costs (src/stage/mtp.c): what enters it
 * (W_in), and a routed block of the model's own kind with all its experts in one place. Nobody
 * measures it. Its stages cost what the model's do; W_in takes so much of the head's time as it has
 * of its weights, as both are one product a row; rows go to experts evenly, as nobody knows which
 * ones it likes. With a gang's stages it is a gang's. Emulated device and simulator share this
 * rule. Pure. Thread: any. */
#ifndef SL_SPEC_MTP_COST_H
#define SL_SPEC_MTP_COST_H

#include <math.h>

#include "spec/costs.h"
#include "spec/model.h"

/* Rows of a call that read the weights together: few enough that what the experts need of memory
 * stays small. */
#define SL_MTP_SLICE_ROWS 64u

/* Experts that so many rows meet, each at top_k different ones, on average. */
static inline uint32_t sl_mtp_experts_met(const sl_model_spec *m, uint32_t rows) {
    const double missed = pow(1 - (double)m->top_k / m->n_experts, rows);
    const uint32_t met = (uint32_t)(m->n_experts * (1 - missed) + 0.5);
    return met < m->top_k ? m->top_k : met;
}

/* Routed experts of a slice. */
static inline double sl_mtp_experts_us(const sl_stage_cost *expert, bool grouped,
                                       const sl_model_spec *m, uint32_t rows) {
    const uint32_t met = sl_mtp_experts_met(m, rows), pairs = rows * m->top_k;
    const uint32_t more = pairs % met, each = pairs / met;
    double us = 0;
    for (uint32_t e = 0; e < met; e++)
        us += sl_expert_cost_us(expert, grouped, each + (e < more), e == 0);
    return us;
}

/* A call of `rows` rows whose contexts sum to `keys`, without the head of those that guess. */
static inline double sl_mtp_cost_us(const sl_stage_cost stage[SL_COST_COUNT], bool grouped,
                                    const sl_model_spec *m, uint32_t rows, double keys) {
    const sl_stage_cost in =
        sl_stage_cost_scaled(&stage[SL_COST_HEAD], 2.0 * m->d_model / m->vocab);
    double us = 0;
    for (uint32_t at = 0; at < rows; at += SL_MTP_SLICE_ROWS) {
        const uint32_t n = rows - at < SL_MTP_SLICE_ROWS ? rows - at : SL_MTP_SLICE_ROWS;
        us += sl_stage_cost_us(&in, n, 0) +
              sl_stage_cost_us(&stage[SL_COST_ATTENTION], n, keys * n / rows) +
              sl_stage_cost_us(&stage[SL_COST_ROUTER], n, 0) +
              sl_mtp_experts_us(&stage[SL_COST_EXPERT], grouped, m, n);
        if (m->d_ff_shared) us += sl_stage_cost_us(&stage[SL_COST_SHARED], n, 0);
    }
    return us;
}

#endif
