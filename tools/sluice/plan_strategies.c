/* sluice plan --strategies: MixServe's analyzer over every strategy of each node group. */
#include "plan_report.h"

#include "cmd.h"
#include "plan/lengths.h"
#include "plan/mixserve.h"

#include <math.h>
#include <string.h>

typedef struct row {
    sl_strategy s;
    sl_mixserve_result r;
} row;

typedef struct listing {
    const sl_search_problem *p;
    sl_mixserve_model model;
    sl_mixserve_system system;
    sl_mixserve_load load;
    uint32_t top, n, seen, fit;
    row best[SL_SEARCH_MAX_TOP];
    double short_bytes;
} listing;

static bool within(const sl_workload *w, const sl_mixserve_result *r) {
    return (w->slo_tpot_us <= 0 || r->itl_us <= w->slo_tpot_us) &&
           (w->slo_ttft_us <= 0 || r->ttft_us <= w->slo_ttft_us);
}

/* Balanced routing: how uneven popularity is over so many groups is not known here, so chance alone
 * counts, as in the search. */
static double imbalance(const listing *l, const sl_strategy *s) {
    double rows = fmax(l->load.slots, 1) * l->model.top_k / s->ep;
    return s->ep > 1 ? fmin(1 + sqrt(2 * log(s->ep) / fmax(rows, 1)), s->ep) : 1;
}

static bool each(void *ctx, const sl_strategy *s) {
    listing *l = ctx;
    row now = {.s = *s};
    sl_err err;
    l->load.fused = s->tp_e > 1;
    l->load.imbalance = imbalance(l, s);
    l->seen++;
    if (sl_mixserve_evaluate(&l->model, &l->system, &l->load, s, &now.r, &err) != SL_OK)
        return true;
    if (!within(l->p->workload, &now.r)) return true;
    l->fit++;
    uint32_t at = l->n;
    while (at > 0 && l->best[at - 1].r.output_throughput < now.r.output_throughput) at--;
    if (at >= l->top) return true;
    l->n = SL_MIN(l->n + 1, l->top);
    memmove(&l->best[at + 1], &l->best[at], (l->n - 1 - at) * sizeof *l->best);
    l->best[at] = now;
    return true;
}

static void print_text(const listing *l, const char *device, FILE *out) {
    fprintf(out, "%u %s x %u nodes: %u strategies, %u keep memory and objectives\n",
            l->system.per_node, device, l->system.nodes, l->seen, l->fit);
    fprintf(out, "%-34s %8s %9s %9s %9s %9s %7s\n", "strategy", "requests", "TTFT ms", "ITL ms",
            "tok/s", "GB", "replicas");
    for (uint32_t i = 0; i < l->n; i++) {
        const row *x = &l->best[i];
        char text[SL_STRATEGY_TEXT];
        sl_strategy_print(&x->s, text);
        fprintf(out, "%-34s %8u %9.1f %9.2f %9.0f %9.1f %7u\n", text, x->r.slots,
                x->r.ttft_us / 1e3, x->r.itl_us / 1e3, x->r.output_throughput,
                x->r.memory_bytes / 1e9, sl_strategy_replicas(&x->s));
    }
    fprintf(out, "\n");
}

static void print_json(const listing *l, const char *device, FILE *out) {
    fprintf(out,
            "{\"device\": \"%s\", \"nodes\": %u, \"per_node\": %u, \"strategies\": %u, \"fit\": "
            "%u, \"best\": [",
            device, l->system.nodes, l->system.per_node, l->seen, l->fit);
    for (uint32_t i = 0; i < l->n; i++) {
        const row *x = &l->best[i];
        char text[SL_STRATEGY_TEXT];
        sl_strategy_print(&x->s, text);
        fprintf(out,
                "%s{\"strategy\": \"%s\", \"requests\": %u, \"ttft_ms\": %.6g, \"itl_ms\": %.6g, "
                "\"wait_ms\": %.6g, \"tokens_per_s\": %.6g, \"requests_per_s\": %.6g, "
                "\"memory_bytes\": %.0f, \"replicas\": %u}",
                i ? ", " : "", text, x->r.slots, x->r.ttft_us / 1e3, x->r.itl_us / 1e3,
                x->r.wait_us / 1e3, x->r.output_throughput, x->r.capacity, x->r.memory_bytes,
                sl_strategy_replicas(&x->s));
    }
    fprintf(out, "]}");
}

sl_status sl_plan_report_strategies(const sl_search_problem *p, uint32_t top, bool json, FILE *out,
                                    sl_err *err) {
    const sl_workload *w = p->workload;
    uint32_t fit = 0;
    if (json)
        fprintf(out,
                "{\"model\": \"%s\", \"cluster\": \"%s\", \"estimated\": true, "
                "\"as_published\": %s, \"groups\": [",
                p->shape->name, p->cluster->name, p->as_published ? "true" : "false");
    for (uint32_t g = 0; g < p->cluster->n_groups; g++) {
        listing l = {.p = p, .model = sl_mixserve_model_of(p->shape), .top = top};
        l.system = sl_mixserve_system_of(p->cluster, g, p->compute, p->reserve);
        l.load = (sl_mixserve_load){
            .input = sl_length_mean(&w->input),
            .output = sl_length_mean(&w->output),
            .rate = w->arrival.kind == SL_ARRIVAL_POISSON ? w->arrival.rate : 0,
            .cv2 = 1,
            .slots = w->arrival.kind == SL_ARRIVAL_CLOSED ? w->arrival.concurrency : 0,
            .as_published = p->as_published};
        sl_strategy_limits limits = sl_mixserve_limits(&l.model, &l.system);
        sl_strategy_enumerate(&limits, each, &l);
        const char *device = p->cluster->type[p->cluster->group[g].type].name;
        fit += l.fit;
        if (json && g) fprintf(out, ", ");
        if (json)
            print_json(&l, device, out);
        else
            print_text(&l, device, out);
    }
    fprintf(out, json ? "]}\n" : "Estimates from data sheets, not measured.\n");
    if (fit > 0) return SL_OK;
    return sl_fail(err, SL_ERR_INFEASIBLE,
                   "no strategy of any node group keeps memory and "
                   "objectives");
}
