/* The search over deployments whose attention and experts are on workers of their own: Algorithm 1
 * of MegaScale-Infer (4.2; all pairs of kinds of devices, 4.3), whatever model of time and memory
 * is asked. `sluice plan` asks with costs of stages and links (search.c), the paper's own model
 * (megascale.c) with its Eq. 1 to 7.
 *
 *   for each pair of kinds of devices, numbers of expert nodes, tp_e, tp_a        (lines 2 to 4)
 *     if weights fit (constraint 7)                                               (line 5)
 *       for each n_a, m                                                           (lines 6, 7)
 *         SIMULATE: the largest batch within memory (constraint 8) and the SLO    (line 8)
 *         the best in throughput per cost stays                                   (lines 9, 10)
 *
 * Repaired: the paper tries the one n_a that balances the slopes of T_a and T_e, which is right for
 * large batches only, and m from 3 on; here the caller says which there are. Pure. Thread: any. */
#ifndef SL_PLAN_APART_H
#define SL_PLAN_APART_H

#include <stdbool.h>
#include <stdint.h>

/* One deployment: n_a attention nodes of tp_a devices, n_e expert nodes of tp_e, m micro-batches.
 */
typedef struct sl_apart {
    uint32_t attn, expert; /* kinds of devices */
    uint32_t n_e, tp_e, tp_a, n_a, m;
} sl_apart;

/* What is searched. Counts of nodes go up: `next` returns the one to try after p's, 0: there is
 * none; p's is 0 at first. What is right of n_e, tp_e, tp_a, n_a, m in this order is not set yet.
 */
typedef struct sl_apart_space {
    void *ctx;
    uint32_t n_kinds; /* of devices */
    uint32_t tp_max;  /* degrees are powers of two up to this */
    uint32_t m_min, m_max;
    uint32_t (*next_experts)(void *ctx, const sl_apart *p);
    uint32_t (*next_attention)(void *ctx, const sl_apart *p);
    /* Whether the model can be cut so, the devices are there, and the weights fit. */
    bool (*fits)(void *ctx, const sl_apart *p);
    /* SIMULATE with sl_apart_batch, and the choice of what stays. */
    void (*simulate)(void *ctx, const sl_apart *p);
    void (*pair_done)(void *ctx, uint32_t attn, uint32_t expert); /* NULL: nobody asks */
} sl_apart_space;

void sl_apart_search(const sl_apart_space *s);

/* SIMULATE's batch: the largest of 1..most that `keeps` the objectives, by bisection, as time does
 * not fall with the batch (it is asked about 1 first, then about those that the bisection meets).
 * 0: not even one row. */
uint64_t sl_apart_batch(uint64_t most, bool (*keeps)(void *ctx, uint64_t batch), void *ctx);

/* What deployments are ranked by: value (throughput, or per cost), and where that is equal to
 * `equal` of itself fewer devices, then fewer micro-batches, then smaller degrees. */
typedef struct sl_apart_rank {
    double value;
    uint32_t devices, batches, tp_a, tp_e;
} sl_apart_rank;

bool sl_apart_better(const sl_apart_rank *a, const sl_apart_rank *b);

#endif
