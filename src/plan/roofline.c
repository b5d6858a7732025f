/* Times of stages by data sheet: operations, bytes, launches. */
#include "plan/roofline.h"

#include "spec/rank_cost.h"

static double longer(double a, double b) {
    return a > b ? a : b;
}

double sl_roofline_flops(const sl_device_type *d, sl_compute compute) {
    static const sl_compute wider[SL_COMPUTE_COUNT] = {
        [SL_COMPUTE_F32] = SL_COMPUTE_F32,
        [SL_COMPUTE_BF16] = SL_COMPUTE_F32,
        [SL_COMPUTE_FP8] = SL_COMPUTE_BF16,
        [SL_COMPUTE_INT8] = SL_COMPUTE_BF16,
    };
    while (d->flops[compute] <= 0 && wider[compute] != compute) compute = wider[compute];
    return d->flops[compute] * d->flops_efficiency;
}

double sl_roofline_all_reduce_us(const sl_link_tier *link, uint32_t n, double bytes) {
    if (n < 2 || bytes <= 0) return 0;
    const sl_link_cost cost = sl_roofline_link(link);
    return sl_sum_latency_us(&cost) + sl_sum_bytes_us(&cost, n, bytes);
}

sl_link_cost sl_roofline_link(const sl_link_tier *tier) {
    return (sl_link_cost){.alpha_us = tier->latency_us,
                          .byte_us = 1e6 / tier->bandwidth,
                          .half_bytes = tier->half_bytes,
                          .half_duplex = tier->half_duplex};
}

double sl_roofline_stage_us(const sl_shape *s, const sl_roofline *r, sl_cost_kind kind, double rows,
                            double keys) {
    const sl_device_type *d = r->device;
    sl_stage_work w = sl_account_stage(s, kind, rows, keys, &r->work);
    double flops = sl_roofline_flops(d, r->compute);
    double bytes = d->bandwidth * d->bandwidth_efficiency;
    double us = longer(w.flops / flops, (w.weight_bytes + w.activation_bytes) / bytes) * 1e6;
    if (w.weight_bytes <= 0) return 0; /* the model has no such stage */
    us += longer(w.key_flops / flops, w.key_bytes / bytes) * 1e6;
    return d->launch_us + us + sl_roofline_all_reduce_us(&r->intra, r->work.tp, w.reduce_bytes);
}

sl_costs sl_roofline_costs(const sl_shape *s, const sl_roofline *r, const sl_link_tier *link) {
    const sl_device_type *d = r->device;
    double flops = sl_roofline_flops(d, r->compute);
    double bytes = d->bandwidth * d->bandwidth_efficiency;
    sl_costs out = {.link = sl_roofline_link(link), .estimated = true, .grouped = true};
    for (int k = 0; k < SL_COST_COUNT; k++) {
        sl_stage_work w = sl_account_stage(s, (sl_cost_kind)k, 1, 1, &r->work);
        sl_stage_cost *c = &out.stage[k];
        if (w.weight_bytes <= 0) continue;
        double reduce = sl_roofline_all_reduce_us(&r->intra, r->work.tp, w.reduce_bytes);
        const sl_link_cost intra = sl_roofline_link(&r->intra);
        double fixed_reduce = reduce > 0 ? sl_sum_latency_us(&intra) : 0;
        double read_us = w.weight_bytes / bytes * 1e6;
        c->fixed_us = d->launch_us;
        c->row_us = longer(w.flops / flops, w.activation_bytes / bytes) * 1e6;
        c->sum_us = fixed_reduce;
        c->sum_row_us = reduce - fixed_reduce;
        c->key_us = longer(w.key_flops / flops, w.key_bytes / bytes) * 1e6;
        if (k == SL_COST_ATTENTION) {
            c->fixed_us += read_us;
            c->read_us = read_us;
        } else {
            c->floor_us = read_us;
        }
    }
    return out;
}
