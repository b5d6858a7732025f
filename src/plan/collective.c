/* Laws of collectives, as published and with latencies, and of fused dispatch. */
#include "plan/collective.h"

#include <math.h>

double sl_collective_gather_us(const sl_fabric *f, double bytes, uint32_t d) {
    if (d <= 1) return 0;
    double part = bytes / d * f->byte_us, peers = d - 1.0;
    switch (f->kind) {
    case SL_FABRIC_MESH:
        return f->alpha_us + part;
    case SL_FABRIC_RING:
        return peers * (f->alpha_us + part);
    default:
        return f->alpha_us + peers * part;
    }
}

double sl_collective_reduce_us(const sl_fabric *f, double bytes, uint32_t d) {
    return 2 * sl_collective_gather_us(f, bytes, d);
}

double sl_collective_exchange_us(const sl_fabric *f, double bytes, uint32_t d) {
    if (d <= 1) return 0;
    double part = bytes / d * f->byte_us;
    if (f->kind == SL_FABRIC_MESH) return f->alpha_us + part;
    return (d - 1.0) * (f->alpha_us + part);
}

double sl_collective_exchange_two_us(const sl_fabric *intra, const sl_fabric *inter, double bytes,
                                     uint32_t nodes, uint32_t per_node) {
    double ranks = (double)nodes * per_node, part = bytes / ranks;
    double far = (nodes - 1.0) * per_node * (inter->alpha_us + part * inter->byte_us);
    return far + sl_collective_exchange_us(intra, part * per_node, per_node);
}

static double gather(double size, uint32_t d) {
    return size / d;
}

double sl_published_reduce(double size, uint32_t d) {
    return 2 * gather(size / d, d);
}

double sl_published_exchange(double size, uint32_t d) {
    return size / d * (d - 1.0);
}

double sl_expected_groups(double experts, uint32_t top_k, double groups) {
    if (groups <= 1) return groups > 0 ? 1 : 0;
    double rest = experts - experts / groups, none = 1;
    for (uint32_t i = 0; i < top_k; i++) none *= fmax(rest - i, 0) / (experts - i);
    return groups * (1 - none);
}

double sl_expected_experts(double experts, uint32_t top_k, double rows) {
    return experts * (1 - pow(1 - fmin(top_k / experts, 1), rows));
}

sl_hybrid_times sl_hybrid_law(const sl_hybrid_comm *h) {
    double n = h->n, share = sl_expected_groups(h->experts, h->top_k, n) / n;
    double chunk = h->tokens * share * h->row_bytes;
    double a = h->m > 1 ? h->intra->alpha_us : 0;
    double v = h->m > 1 ? sl_collective_gather_us(h->intra, chunk, h->m) - a : 0;
    double x = h->inter->alpha_us + chunk / h->m * h->inter->byte_us, t = a + v;
    sl_hybrid_times out = {.chunk_us = x, .inside_us = v};
    out.last_gather_us = sl_collective_gather_us(h->intra, h->tokens * h->row_bytes, h->m);
    if (h->n <= 1) { /* rows stay: only the sum of the parts */
        out.combine_us = out.combine_apart_us = t + out.last_gather_us;
        return out;
    }
    out.dispatch_us = x + (n - 2) * fmax(x, t) + t;
    out.dispatch_apart_us = (n - 1) * x + a + (n - 1) * v;
    double combine = fmax(fmax(t + (n - 1) * x, n * t), (n - 1) * t + x);
    out.combine_us = combine + out.last_gather_us;
    out.combine_apart_us = a + n * v + (n - 1) * x + out.last_gather_us;
    return out;
}
