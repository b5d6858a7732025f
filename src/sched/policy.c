/* Which queue of aep is served next. */
#include "sched/policy.h"

#include "base/status.h"

static double power(double x, uint32_t n) {
    double y = 1;
    for (; n; n >>= 1, x *= x)
        if (n & 1) y *= x;
    return y;
}

void sl_policy_lookahead(const sl_policy_view *v) {
    uint32_t ring = v->ring, depth = SL_MIN(v->lookahead, ring - 1);
    double leaves = power(v->delta, depth + 1), sum = 0, weight = 1;
    for (uint32_t k = 1; k <= depth; k++) {
        weight *= v->delta;
        sum += weight * (double)v->total[(ring - 1 + k) % ring];
    }
    v->ahead[ring - 1] = sum / v->n;
    for (uint32_t b = ring - 1; b-- > 0;) {
        sum = v->delta * ((double)v->total[b + 1] + sum) -
              leaves * (double)v->total[(b + depth + 1) % ring];
        v->ahead[b] = sum / v->n;
    }
}

/* Whether queue a of layer la is to be preferred to b of lb. Candidates are offered in ascending
 * order, so what ties in all respects stays with the lower layer and index. */
static bool better(const sl_policy_view *v, uint32_t la, const sl_queue_state *a, uint32_t lb,
                   const sl_queue_state *b) {
    switch (v->policy) {
    case SL_POLICY_DEFRAG: {
        double sa = a->rows + v->ahead[la], sb = b->rows + v->ahead[lb];
        if (sa != sb) return sa > sb;
        break;
    }
    case SL_POLICY_RMF:
        if (a->wave != b->wave) return a->wave < b->wave;
        if (la != lb) return la < lb;
        break;
    case SL_POLICY_FLFS:
        if (la != lb) return la < lb;
        break;
    default:
        break;
    }
    if (a->rows != b->rows) return a->rows > b->rows;
    return a->head < b->head;
}

bool sl_policy_pick(const sl_policy_view *v, uint32_t *out) {
    const sl_queue_state *best = NULL;
    uint32_t best_layer = 0;
    if (v->policy == SL_POLICY_DEFRAG) sl_policy_lookahead(v);
    for (uint32_t b = 0; b < v->ring; b++) {
        if (v->total[b] == 0) continue;
        for (uint32_t e = 0; e < v->n; e++) {
            const sl_queue_state *q = &v->queue[(size_t)b * v->n + e];
            if (q->rows == 0 || (best && !better(v, b, q, best_layer, best))) continue;
            best = q;
            best_layer = b;
        }
        if (best && v->policy == SL_POLICY_FLFS) break;
    }
    if (best) *out = (uint32_t)(best - v->queue);
    return best != NULL;
}
