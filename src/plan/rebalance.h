/* Experts of a deployment that runs, moved to where their measured load is even: each block by
 * sl_fill (MegaScale-Infer 4.3), named so that as much as possible stays where it is.
 *
 * An expert that got `rows` in `calls` calls of a window costs its worker
 *
 *   us(x) = c(x) fixed + max(c(x) floor, row x rows),   c(x) = calls (1 - (1 - x)^(rows / calls))
 *
 * where it takes the share x of the rows: a call with rows for it is one of its own with that
 * chance. With a barrier every block waits for its dearest worker, without one only the sums over
 * blocks count. Nothing is cheaper than what all copies would cost as one, evenly divided: the
 * bound.
 *
 * Workers may be of two kinds, as on GPUs and on processors: an expert then costs us(x) at one and
 * us'(x) at the other. And some may have room for so many experts only. Then the block's experts
 * are moved one by one (plan/shift.h), copies stay what they are, and for any w in 0 .. 1 no
 * placement on n workers of the one kind and n' of the other is cheaper than
 *
 *   sum over experts of min((1 - w) us(1) / n, w us'(1) / n')
 *
 * of which the greatest is the bound. It knows nothing of room.
 *
 * Pure; only create allocates. Thread: any. */
#ifndef SL_PLAN_REBALANCE_H
#define SL_PLAN_REBALANCE_H

#include "base/status.h"
#include "plan/shift.h"
#include "spec/device.h"
#include "spec/plan.h"

#define SL_REBALANCE_MAX_WORKERS 1024u

typedef struct sl_rebalance_shape {
    uint32_t n_blocks, n_experts, n_workers; /* of the plan */
    uint32_t spare;       /* experts of a block that a worker may have above an even share */
    bool copies;          /* dear experts may live on several workers */
    bool barrier;         /* else only sums over blocks count */
    sl_stage_cost cost;   /* of SL_COST_EXPERT; all zero: rows count alone, as 1 us each */
    const uint8_t *other; /* [n_workers] experts cost `other_cost` there. NULL: nowhere. Borrowed,
                           * and of hosts alone */
    sl_stage_cost other_cost;
} sl_rebalance_shape;

/* What experts got in a window, both [n_blocks][n_experts]. Calls of an expert with several hosts
 * are those of all of them. */
typedef struct sl_rebalance_load {
    double *rows, *calls;
} sl_rebalance_load;

/* Who hosts what: pieces of block l are piece[first[l]] .. piece[first[l + 1] - 1], by expert, then
 * worker (an id of the plan). */
typedef struct sl_spread {
    uint32_t *first; /* [n_blocks + 1] */
    sl_fill_piece *piece;
    uint32_t cap;
} sl_spread;

typedef struct sl_rebalance {
    sl_rebalance_shape shape;
    double *load;       /* [n_workers] scratch: of a block, */
    double *sums;       /* [n_workers] of all */
    double *us;         /* [n_experts] of a whole expert */
    uint32_t *kept;     /* [n_workers][n_workers] pieces that stay where i of the fill is host j */
    uint32_t *name;     /* [n_workers] host of i of the fill */
    uint32_t *number;   /* [n_workers] which of the hosts a worker is; UINT32_MAX: none */
    uint8_t *taken;     /* [n_workers] hosts that are named */
    sl_shift shift;     /* of a block, */
    double *shift_us;   /* [SL_SHIFT_KINDS][shift_cap], */
    uint32_t shift_cap; /* of so many pieces */
    void *arrays;       /* what they are in */
} sl_rebalance;

/* How many experts workers have room for, [n_workers] each, UINT32_MAX: any number. Counted over
 * all blocks; what a block takes is taken off, so that those behind it share what is left. */
typedef struct sl_rebalance_limits {
    uint32_t *most; /* in the end */
    uint32_t *gets; /* that are not there yet, as they stand beside those that go */
    uint8_t *full;  /* it may get none in the first place */
    uint32_t lacks; /* a worker that may get none, and would have been given some. Begins as
                     * UINT32_MAX: there is none */
} sl_rebalance_limits;

/* What is to be made even. All borrowed. */
typedef struct sl_rebalance_task {
    const sl_rebalance_load *load;
    const sl_spread *now;
    const uint32_t *host;        /* [n_hosts] ids of the workers that may host experts, ascending */
    uint32_t n_hosts;            /* >= 1 */
    sl_rebalance_limits *limits; /* NULL: there are none */
} sl_rebalance_task;

/* What a window costs: microseconds that steps wait for experts, and the least that any placement
 * could make of it. */
typedef struct sl_rebalance_cost {
    double us, bound_us;
} sl_rebalance_cost;

/* SL_ERR_UNSUPPORTED: more than SL_REBALANCE_MAX_WORKERS. SL_ERR_NOMEM. */
sl_status sl_rebalance_create(const sl_rebalance_shape *s, sl_rebalance *out,
                              sl_err *err) SL_MUST_CHECK;
void sl_rebalance_free(sl_rebalance *r); /* zeroed is fine */

/* Room for any placement of this shape. SL_ERR_NOMEM. */
sl_status sl_spread_create(const sl_rebalance_shape *s, sl_spread *out, sl_err *err) SL_MUST_CHECK;
void sl_spread_free(sl_spread *s); /* zeroed is fine */
/* The placement of a plan. False: it has more hosts than there is room for. */
bool sl_spread_of(const sl_rebalance_shape *s, const sl_placement *p, sl_spread *out);
void sl_spread_copy(const sl_rebalance_shape *s, const sl_spread *from, sl_spread *to);

/* Calls that were counted at each host of `by` become those that one host of everything would have
 * had. */
void sl_rebalance_join_calls(const sl_rebalance *r, const sl_spread *by, sl_rebalance_load *l);

/* What the window would have cost by `by`, whose hosts are the task's. */
sl_rebalance_cost sl_rebalance_cost_of(sl_rebalance *r, const sl_rebalance_load *l,
                                       const sl_spread *by, uint32_t n_hosts);

/* Block `block` of `to`, whose earlier blocks are there: the cheapest of what is now, whole experts
 * and copies, or where workers differ or have limits what moves make of what is now; of what costs
 * nearly the same, what is now. Some milliseconds for hundreds of
 * experts. SL_ERR_NOMEM; SL_ERR_INFEASIBLE: the hosts have no room. */
sl_status sl_rebalance_block(sl_rebalance *r, const sl_rebalance_task *t, uint32_t block,
                             sl_spread *to, sl_err *err) SL_MUST_CHECK;

/* Experts of all blocks that `to` gives each worker and `now` does not: added[n_workers]. */
void sl_rebalance_added(const sl_rebalance *r, const sl_spread *now, const sl_spread *to,
                        uint32_t *added);

#endif
