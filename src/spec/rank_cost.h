/* What a gang's stages cost (spec/gang.h), from what they cost on one of its devices: heads, widths
 * and vocabulary are cut evenly, so what a row costs and what reading the weights costs fall with
 * the number of ranks, and the fixed part of a call stays; the router is not cut. A stage whose
 * outputs are partial sums ends with an all-reduce: reduce-scatter, then all-gather. That is of
 * ranks that add up, as on GPUs; those of CPUs gather what the next product multiplies
 * (src/model/rank.c). Planner, simulator and emulated device share this rule. Pure. Thread: any. */
#ifndef SL_SPEC_RANK_COST_H
#define SL_SPEC_RANK_COST_H

#include "spec/costs.h"
#include "spec/gang.h"

#define SL_SUM_ROUNDS 2 /* of an all-reduce */

/* Whether ranks have partial sums at its end. */
static inline bool sl_cost_is_summed(sl_cost_kind kind) {
    return kind == SL_COST_ATTENTION || kind == SL_COST_DENSE || kind == SL_COST_SHARED ||
           kind == SL_COST_EXPERT;
}

/* A stage at one of `ranks` ranks, without the sum. kv_heads: what keys are cut by; 1 where all
 * ranks have the same latents. */
static inline sl_stage_cost sl_rank_stage_cost(const sl_stage_cost *one, sl_cost_kind kind,
                                               uint32_t ranks, uint32_t kv_heads) {
    sl_stage_cost c = *one;
    if (ranks <= 1 || kind == SL_COST_ROUTER) return c;
    c.read_us /= ranks;
    c.again_us /= ranks;
    c.fixed_us -= one->read_us - c.read_us;
    c.floor_us /= ranks;
    c.slope_us /= ranks;
    c.row_us /= ranks;
    c.pad_us /= ranks;
    c.key_us /= ranks < kv_heads ? ranks : kv_heads;
    return c;
}

/* What an all-reduce of `bytes` over ranks takes of the link besides its messages' latency: each
 * sends and gets (ranks - 1) / ranks of them in either round. */
static inline double sl_sum_bytes_us(const sl_link_cost *l, uint32_t ranks, double bytes) {
    double both = l->half_duplex ? 2 : 1;
    return SL_SUM_ROUNDS * both * l->byte_us * bytes * (ranks - 1) / ranks;
}

/* What it takes however small. */
static inline double sl_sum_latency_us(const sl_link_cost *l) {
    double both = l->half_duplex ? 2 : 1;
    return SL_SUM_ROUNDS * (l->alpha_us + both * l->byte_us * l->half_bytes);
}

/* The whole stage, with the sum of rows of row_bytes; no bytes: without one. */
static inline sl_stage_cost sl_gang_stage_cost(const sl_stage_cost *one, sl_cost_kind kind,
                                               uint32_t ranks, uint32_t kv_heads,
                                               const sl_link_cost *link, double row_bytes) {
    sl_stage_cost c = sl_rank_stage_cost(one, kind, ranks, kv_heads);
    if (ranks <= 1 || row_bytes <= 0 || !sl_cost_is_summed(kind)) return c;
    if (c.fixed_us + c.floor_us + c.row_us <= 0) return c; /* the model has no such stage */
    c.sum_us += sl_sum_latency_us(link);
    c.sum_row_us += sl_sum_bytes_us(link, ranks, row_bytes);
    return c;
}

/* What the first rank's link takes with `rows` rows of so many bytes to or from `beside` others on
 * machines: rows that a call reads, or the others' columns of its results. */
static inline double sl_carried_us(const sl_link_cost *l, uint32_t beside, double rows,
                                   double bytes) {
    return beside && rows > 0 ? sl_link_cost_us(l, beside * rows * bytes) : 0;
}

/* What cuts all stages of a model. */
typedef struct sl_gang_cut {
    uint32_t ranks, n_kv_heads;
    bool latents;             /* of attention: all ranks have the same */
    const sl_link_cost *link; /* between ranks */
    double row_bytes;         /* of a row that ranks add up */
    bool summed_elsewhere;    /* routed experts end without their sum */
} sl_gang_cut;

/* All stages of a gang, from those of one of its devices; `out` may be `one`. */
static inline void sl_gang_stages(const sl_stage_cost one[SL_COST_COUNT], const sl_gang_cut *cut,
                                  sl_stage_cost out[SL_COST_COUNT]) {
    for (int k = 0; k < SL_COST_COUNT; k++) {
        const bool sums = k != SL_COST_EXPERT || !cut->summed_elsewhere;
        out[k] = sl_gang_stage_cost(&one[k], (sl_cost_kind)k, cut->ranks,
                                    cut->latents ? 1 : cut->n_kv_heads, cut->link,
                                    sums ? cut->row_bytes : 0);
    }
}

#endif
