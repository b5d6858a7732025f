/* What a search misses: why a layout is not run, what the nearest change would be. */
#include "plan/search_int.h"

#include <math.h>

/* Of what was measured the profile says so. */
static bool is_cpu(const sl_search_problem *p, uint32_t group) {
    const sl_type_costs *t = sl_search_type(p, group);
    if (t && t->costs) return t->cpu;
    return p->cluster->type[p->cluster->group[group].type].cpu;
}

uint32_t sl_search_senders(const sl_search_problem *p, uint32_t group, uint32_t tp) {
    return is_cpu(p, group) ? 1 : tp;
}

static const char *tp_not_run(const sl_search_problem *p, const sl_layout *l) {
    bool cpus =
        (l->tp_a == 1 || is_cpu(p, l->attn_group)) && (l->tp_e == 1 || is_cpu(p, l->expert_group));
    return cpus ? NULL : "tensor parallelism over GPUs";
}

const char *sl_layout_not_run(const sl_search_problem *p, const sl_layout *l) {
    if (l->kind == SL_LAYOUT_PIPELINE && !is_cpu(p, l->attn_group)) return "pipelines over GPUs";
    const char *tp = l->tp_a > 1 || l->tp_e > 1 ? tp_not_run(p, l) : NULL;
    if (tp) return tp;
    if (sl_speculates_by_mtp(p->speculate) && !is_cpu(p, l->attn_group))
        return "the block that guesses on GPUs";
    const bool apart = sl_layout_is_apart(l->kind) || sl_layout_takes_turns(l);
    uint64_t workers = (uint64_t)l->n_a + (apart ? l->n_e : 0);
    return workers > SL_MAX_WORKERS ? "more workers than a plan may have" : NULL;
}

bool sl_search_has_rails(const sl_search_problem *p, const sl_layout *l) {
    return l->kind == SL_LAYOUT_HYBRID && l->n_a > 1 && !p->as_published &&
           !sl_layout_not_run(p, l);
}

static void lower(double *least, double x) {
    if (*least == 0 || x < *least) *least = x;
}

void sl_search_note_slow(sl_search_lack *l, const sl_workload *w, double tpot_us, double ttft_us) {
    if (w->slo_tpot_us > 0 && tpot_us > w->slo_tpot_us)
        lower(&l->tpot_us, tpot_us);
    else
        lower(&l->ttft_us, ttft_us);
}

void sl_search_note_short(sl_search_lack *l, double bytes) {
    lower(&l->bytes, bytes);
}

sl_status sl_search_infeasible(const sl_search_problem *p, const sl_search_lack *l, sl_err *err) {
    const sl_workload *w = p->workload;
    if (l->rate > 0)
        return sl_fail(err, SL_ERR_INFEASIBLE,
                       "%.3g requests/s are too many: this cluster serves %.3g with these "
                       "objectives; nearest change: %.1f times the devices",
                       w->arrival.rate, l->rate, w->arrival.rate / l->rate);
    if (l->ttft_us > 0)
        return sl_fail(err, SL_ERR_INFEASIBLE,
                       "no deployment gives the first token in %.0f ms; nearest change: "
                       "--slo-ttft %.0fms",
                       w->slo_ttft_us / 1e3, ceil(l->ttft_us / 1e3));
    if (l->tpot_us > 0)
        return sl_fail(err, SL_ERR_INFEASIBLE,
                       "no deployment gives a token every %.3g ms; nearest change: --slo-tpot "
                       "%.1fms",
                       w->slo_tpot_us / 1e3, ceil(l->tpot_us / 100) / 10);
    if (l->bytes > 0)
        return sl_fail(err, SL_ERR_INFEASIBLE,
                       "%s does not fit: nearest change: %.1f GB more memory a device, or more "
                       "devices",
                       p->shape->name, l->bytes / 1e9 / (1 - p->reserve));
    return sl_fail(err, SL_ERR_INFEASIBLE, "%s: the cluster has too few devices%s", p->shape->name,
                   p->kinds ? " for these schedules" : "");
}
