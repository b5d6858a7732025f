/* A step of a plan on devices that it might be on. */
#include "engine/measure/devices.h"

static void add_copies(const sl_link_cost *copies, sl_link_cost *link) {
    link->alpha_us += copies->alpha_us;
    link->byte_us += copies->byte_us;
}

sl_costs sl_devices_costs(const sl_plan *p, const sl_kind_costs *attention,
                          const sl_kind_costs *expert, const sl_link_cost *link) {
    sl_costs c = attention->costs;
    c.stage[SL_COST_EXPERT] = expert->costs.stage[SL_COST_EXPERT];
    c.beside[SL_COST_EXPERT] = expert->costs.beside[SL_COST_EXPERT];
    c.grouped = expert->costs.grouped;
    c.link = *link;
    if (p->n_workers == 1) return c; /* nothing travels */
    add_copies(&attention->copies, &c.link);
    add_copies(&expert->copies, &c.link);
    return c;
}

sl_kind_costs sl_devices_offloaded(const sl_kind_costs *gpu, double expert_bytes) {
    sl_kind_costs k = *gpu;
    sl_stage_cost *e = &k.costs.stage[SL_COST_EXPERT];
    e->floor_us = SL_MAX(e->floor_us, expert_bytes * gpu->copies.byte_us);
    return k;
}

/* What an attention worker does of a step outside blocks with experts, lane by lane, so many rows
 * in all, of which some are drawn from. */
static double rest_us(const sl_costs *c, const sl_choose_load *l, const sl_model_spec *m,
                      uint32_t lanes, uint32_t all, uint32_t drawn) {
    const double rows = (double)all / lanes, heads = (double)drawn / lanes;
    const double dense = sl_stage_cost_us(&c->stage[SL_COST_ATTENTION], rows, rows * l->keys) +
                         sl_stage_cost_us(&c->stage[SL_COST_DENSE], rows, 0);
    const double us =
        (m->n_layers - m->n_moe) * dense + sl_stage_cost_us(&c->stage[SL_COST_HEAD], heads, 0);
    const double sharing = l->cores > 0 ? l->core_attention * l->threads / l->cores : 0;
    return lanes * us * SL_MAX(sharing, 1);
}

sl_status sl_devices_predict(const sl_costs *c, const sl_model_spec *m, uint32_t requests,
                             bool open, sl_plan *p, sl_devices_step *out, sl_err *err) {
    sl_choose_load l;
    *out = (sl_devices_step){0};
    sl_status st = sl_plan_predict(c, m, requests, open, p, &out->schedule, &l, err);
    if (st != SL_OK) return st;
    const sl_choice *x = &out->schedule.choice;
    const uint32_t lanes = SL_MAX(x->lanes, 1u);
    out->us = m->n_moe * x->decode_us + rest_us(c, &l, m, lanes, l.decode_rows, l.decode_rows);
    const double prompt =
        m->n_moe * x->prefill_us + rest_us(c, &l, m, lanes, l.prefill_rows, lanes);
    if (!(out->us > 0))
        return sl_fail(err, SL_ERR_ARG, "costs of devices: a step would take no time at all");
    out->tokens_per_s = 1e6 * l.decode_rows * l.attention_workers / out->us;
    out->prompt_tokens_per_s = 1e6 * l.prefill_rows * l.attention_workers / prompt;
    return SL_OK;
}

uint32_t sl_devices_fastest(const sl_devices_step *step, uint32_t n, bool prompts) {
    uint32_t best = n;
    for (uint32_t i = 0; i < n; i++) {
        const double now = best < n ? step[best].tokens_per_s : 0;
        if (step[i].tokens_per_s > now) best = i;
    }
    const uint32_t decodes = best;
    for (uint32_t i = 0; prompts && decodes < n && i < n; i++)
        if (step[i].tokens_per_s >= SL_DEVICES_CLOSE * step[decodes].tokens_per_s &&
            step[i].prompt_tokens_per_s > step[best].prompt_tokens_per_s)
            best = i;
    return best;
}
