/* sluice plan --strategies: MixServe's analyzer over every strategy of each node group. */
#include "plan_report.h"

#include "cmd.h"

#include "base/mem.h"
#include "plan/lengths.h"
#include "plan/mixserve.h"

#include <math.h>
#include <string.h>

typedef struct row {
    sl_strategy s;
    sl_mixserve_result r;
    bool keeps_up;
} row;

typedef struct listing {
    const sl_search_problem *p;
    sl_mixserve_model model;
    sl_mixserve_system system;
    sl_mixserve_load load;
    uint32_t clients; /* requests at once at most; 0: as memory allows */
    uint32_t top, n, seen, fit;
    row best[SL_SEARCH_MAX_TOP];
    sl_search_lack *lack; /* of all groups */
} listing;

static bool within(const sl_workload *w, const sl_mixserve_result *r) {
    return (w->slo_tpot_us <= 0 || r->itl_us <= w->slo_tpot_us) &&
           (w->slo_ttft_us <= 0 || r->ttft_us <= w->slo_ttft_us);
}

/* Balanced routing: how uneven popularity is over so many groups is not known here, so chance alone
 * counts, as in the search. */
static double imbalance(const listing *l, const sl_strategy *s) {
    double rows = (double)l->load.slots * l->model.top_k / s->ep;
    return s->ep > 1 ? fmin(1 + sqrt(2 * log(s->ep) / rows), s->ep) : 1;
}

/* x->s with so many requests at once; whether it keeps up with the rate, and is fast enough. */
static bool keeps(listing *l, row *x, uint32_t slots) {
    sl_err err;
    l->load.slots = slots;
    l->load.imbalance = imbalance(l, &x->s);
    sl_status st = sl_mixserve_evaluate(&l->model, &l->system, &l->load, &x->s, &x->r, &err);
    x->keeps_up = st == SL_OK;
    return x->keeps_up && within(l->p->workload, &x->r);
}

/* Too many at once for the time between tokens, which fewer would shorten: they wait, instead. The
 * published waiting (Eq. 7) gets shorter, too. */
static bool too_many(const listing *l, const row *x) {
    const sl_workload *w = l->p->workload;
    return l->load.as_published ? !within(w, &x->r)
                                : w->slo_tpot_us > 0 && x->r.itl_us > w->slo_tpot_us;
}

/* The most requests at once that keep the objectives, in steps of one for each rank and stage. */
static bool most_slots(listing *l, row *x, uint32_t most) {
    uint32_t unit = SL_MIN(x->s.dp * x->s.pp, most), low = 1, high = most / unit + 1;
    if (keeps(l, x, most)) return true;
    if (!too_many(l, x)) return false;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        keeps(l, x, mid * unit);
        if (too_many(l, x))
            high = mid;
        else
            low = mid + 1;
    }
    return keeps(l, x, (low > 1 ? low - 1 : 1) * unit);
}

static void note_lack(listing *l, const row *x) {
    const sl_arrival *a = &l->p->workload->arrival;
    if (!x->keeps_up && a->kind == SL_ARRIVAL_POISSON)
        l->lack->rate = fmax(l->lack->rate, x->r.capacity);
    else
        sl_search_note_slow(l->lack, l->p->workload, x->r.itl_us, x->r.ttft_us);
}

static bool each(void *ctx, const sl_strategy *s) {
    listing *l = ctx;
    row now = {.s = *s};
    l->load.fused = s->tp_e > 1;
    l->seen++;
    uint32_t most = sl_mixserve_slots(&l->model, &l->system, &l->load, s);
    if (most == 0) {
        double need = sl_mixserve_memory(&l->model, &l->load, s, (double)s->dp * s->pp);
        sl_search_note_short(l->lack, need - l->system.memory_bytes);
        return true;
    }
    if (l->clients) most = SL_MIN(most, l->clients);
    if (!most_slots(l, &now, most)) {
        note_lack(l, &now);
        return true;
    }
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

static void evaluate_group(const sl_search_problem *p, uint32_t group, uint32_t top,
                           sl_search_lack *lack, listing *out) {
    const sl_workload *w = p->workload;
    *out = (listing){.p = p,
                     .model = sl_mixserve_model_of(p->shape),
                     .system = sl_mixserve_system_of(p->cluster, group, p->compute, p->reserve),
                     .top = top,
                     .lack = lack,
                     .clients = w->arrival.kind == SL_ARRIVAL_CLOSED ? w->arrival.concurrency : 0,
                     .load = {.input = sl_length_mean(&w->input),
                              .output = sl_length_mean(&w->output),
                              .rate = w->arrival.kind == SL_ARRIVAL_POISSON ? w->arrival.rate : 0,
                              .cv2 = 1,
                              .as_published = p->as_published}};
    sl_strategy_limits limits = sl_mixserve_limits(&out->model, &out->system);
    sl_strategy_enumerate(&limits, each, out);
}

static void print_groups(const sl_search_problem *p, const listing *group, bool json, FILE *out) {
    if (json)
        fprintf(out,
                "{\"model\": \"%s\", \"cluster\": \"%s\", \"estimated\": true, "
                "\"as_published\": %s, \"groups\": [",
                p->shape->name, p->cluster->name, p->as_published ? "true" : "false");
    for (uint32_t g = 0; g < p->cluster->n_groups; g++) {
        const char *device = p->cluster->type[p->cluster->group[g].type].name;
        if (json && g) fprintf(out, ", ");
        (json ? print_json : print_text)(&group[g], device, out);
    }
    fprintf(out, json ? "]}\n" : "Estimates from data sheets, not measured.\n");
}

sl_status sl_plan_report_strategies(const sl_search_problem *p, uint32_t top, bool json, FILE *out,
                                    sl_err *err) {
    sl_search_lack lack = {0};
    uint32_t fit = 0;
    listing *group = sl_alloc(p->cluster->n_groups, sizeof *group);
    if (!group) return sl_fail(err, SL_ERR_NOMEM, "%u node groups", p->cluster->n_groups);
    for (uint32_t g = 0; g < p->cluster->n_groups; g++) {
        evaluate_group(p, g, top, &lack, &group[g]);
        fit += group[g].fit;
    }
    if (fit > 0) print_groups(p, group, json, out);
    sl_free(group);
    return fit > 0 ? SL_OK : sl_search_infeasible(p, &lack, err);
}
