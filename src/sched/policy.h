/* Which queue of a worker is drained next when no barrier fixes an order (schedule aep): AMoE 3.4,
 * Algorithm 1, and three other policies behind one function of local state. No I/O, clock or
 * threads. Thread: any.
 *
 * Queues stand in `ring` layers of `n` each: on the expert side one per (MoE layer, hosted expert),
 * on the attention side one per block, with the head as the last layer and n = 1. With
 *   T[b] = sum over e of Q[b][e]
 *   L[b] = sum over k = 1..K of delta^k * T[(b + k) % ring] / n
 * the policies take, among the queues that are not empty, the one with
 *   defrag  the largest Q + L[b]: rows, and what can join them soon
 *   mtfs    the largest Q: most tokens first
 *   flfs    the lowest layer, then the largest Q: first layer first
 *   rmf     the lowest (wave, layer), then the largest Q: rearmost first; newcomers enter with a
 *           later wave and overtake nobody
 * Ties: the larger Q, then the oldest head, then the lower layer, then the lower index. */
#ifndef SL_SCHED_POLICY_H
#define SL_SCHED_POLICY_H

#include "spec/plan.h"

#include <stdbool.h>
#include <stdint.h>

/* What a policy may know of a queue. */
typedef struct sl_queue_state {
    uint32_t rows; /* Q */
    uint64_t head; /* number of its oldest entry, in order of arrival at this worker */
    uint64_t wave; /* the lowest of its entries */
} sl_queue_state;

typedef struct sl_policy_view {
    sl_policy policy;
    uint32_t lookahead;          /* K of defrag, used as min(K, ring - 1) */
    double delta;                /* of defrag, in (0, 1] */
    uint32_t ring, n;            /* both > 0 */
    const sl_queue_state *queue; /* [ring][n] */
    const uint64_t *total;       /* [ring]: T */
    double *ahead;               /* [ring]: L of defrag is written here; others: may be NULL */
} sl_policy_view;

/* The queue to drain, as layer * n + index; false: all are empty. O(ring) for L and O(n) for each
 * layer that is not empty. */
bool sl_policy_pick(const sl_policy_view *v, uint32_t *out);

/* L of all layers into v->ahead, in O(ring) steps:
 *   n L[b] = delta * (T[b+1] + n L[b+1]) - delta^(K+1) * T[b+K+1]. */
void sl_policy_lookahead(const sl_policy_view *v);

#endif
