/* Algorithm 1 of MegaScale-Infer: which deployments there are, and the largest batch of one. */
#include "plan/apart.h"

#include <math.h>

#define EQUAL 1e-9 /* of a value */

static void try_nodes(const sl_apart_space *s, sl_apart p) {
    while ((p.n_a = s->next_attention(s->ctx, &p)) != 0)
        for (p.m = s->m_min; p.m <= s->m_max; p.m++) s->simulate(s->ctx, &p);
}

static void try_degrees(const sl_apart_space *s, sl_apart p) {
    for (p.tp_e = 1; p.tp_e <= s->tp_max; p.tp_e *= 2)
        for (p.tp_a = 1; p.tp_a <= s->tp_max; p.tp_a *= 2)
            if (s->fits(s->ctx, &p)) try_nodes(s, p);
}

void sl_apart_search(const sl_apart_space *s) {
    for (uint32_t a = 0; a < s->n_kinds; a++) {
        for (uint32_t e = 0; e < s->n_kinds; e++) {
            sl_apart p = {.attn = a, .expert = e};
            while ((p.n_e = s->next_experts(s->ctx, &p)) != 0) try_degrees(s, p);
            if (s->pair_done) s->pair_done(s->ctx, a, e);
        }
    }
}

uint64_t sl_apart_batch(uint64_t most, bool (*keeps)(void *ctx, uint64_t batch), void *ctx) {
    uint64_t low = 1, high = most;
    if (most == 0 || !keeps(ctx, 1)) return 0;
    while (low < high) {
        const uint64_t mid = low + (high - low + 1) / 2;
        if (keeps(ctx, mid))
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

bool sl_apart_better(const sl_apart_rank *a, const sl_apart_rank *b) {
    const double gap = a->value - b->value;
    if (fabs(gap) > EQUAL * fabs(b->value)) return gap > 0;
    if (a->devices != b->devices) return a->devices < b->devices;
    if (a->batches != b->batches) return a->batches < b->batches;
    return a->tp_a != b->tp_a ? a->tp_a < b->tp_a : a->tp_e < b->tp_e;
}
