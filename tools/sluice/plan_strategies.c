/* sluice plan --strategies: MixServe's analyzer over every strategy of each node group. */
#include "plan_draft.h"

#include "cmd.h"

#include "base/mem.h"
#include "plan/lengths.h"
#include "plan/mixserve.h"
#include "spec/gang.h"
#include "spec/schedules.h"

#include <math.h>
#include <string.h>

typedef struct row {
    sl_strategy s;
    sl_mixserve_result r;
    bool keeps_up;
} row;

typedef struct listing {
    const sl_search_problem *p;
    uint32_t group; /* of the cluster's nodes */
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

/* ---- what is run, and how ---- */

/* Whether each device group of attention has its experts beside it: then workers have both roles.
 */
static bool is_colocated(const sl_strategy *s) {
    return s->tp_a == s->tp_e;
}

/* NULL: the engine runs it. */
static const char *not_run(const sl_search_problem *p, uint32_t group, const sl_strategy *s) {
    const bool cpu = p->cluster->type[p->cluster->group[group].type].cpu;
    const uint64_t workers =
        (uint64_t)s->dp + (is_colocated(s) ? 0 : (uint64_t)s->ep * sl_strategy_replicas(s));
    if (!cpu && s->pp > 1) return "pipelines over GPUs";
    if (!cpu && (s->tp_a > 1 || s->tp_e > 1)) return "tensor parallelism over GPUs";
    if (s->pp > SL_MAX_RANKS) return "so many ranks of a pipeline";
    if (!sl_ranks_can_be(s->tp_a) || !sl_ranks_can_be(s->tp_e)) return "so many ranks of a worker";
    return workers > SL_MAX_WORKERS ? "more workers than a plan may have" : NULL;
}

static void put_row(const row *x, FILE *out) {
    char text[SL_STRATEGY_TEXT];
    sl_strategy_print(&x->s, text);
    fprintf(out,
            "{\"strategy\": \"%s\", \"requests\": %u, \"ttft_ms\": %.6g, \"itl_ms\": %.6g, "
            "\"wait_ms\": %.6g, \"tokens_per_s\": %.6g, \"requests_per_s\": %.6g, "
            "\"memory_bytes\": %.0f, \"replicas\": %u",
            text, x->r.slots, x->r.ttft_us / 1e3, x->r.itl_us / 1e3, x->r.wait_us / 1e3,
            x->r.output_throughput, x->r.capacity, x->r.memory_bytes, sl_strategy_replicas(&x->s));
}

static void put_prediction(const void *ctx, FILE *out) {
    put_row(ctx, out);
    fprintf(out, "}");
}

/* Attention of dp workers, the experts of ep groups as often as there are devices for them. Where
 * both have the same ranks they are the same workers; else they are workers of their own on the
 * same devices, and take turns there, as a step's attention and experts do. Workers that are
 * pipelines have as many micro-batches as ranks. */
static sl_plan_draft draft_of(const listing *l, uint32_t group, const row *x) {
    const sl_strategy *s = &x->s;
    const bool apart = !is_colocated(s);
    const bool rails = s->tp_a > 1 && s->dp > 1; /* the exchange that was counted with */
    const sl_schedule one_batch = apart ? SL_SCHED_DEP : rails ? SL_SCHED_HYBRID : SL_SCHED_EP;
    return (sl_plan_draft){.schedule = sl_schedule_name(s->pp > 1 ? SL_SCHED_PINGPONG : one_batch),
                           .lanes = s->pp,
                           .chunks = 1,
                           .apart = apart,
                           .n_a = s->dp,
                           .tp_a = s->tp_a,
                           .n_e = s->ep * sl_strategy_replicas(s),
                           .tp_e = s->tp_e,
                           .stages = s->pp,
                           .groups = s->ep,
                           .attn_group = group,
                           .expert_group = group,
                           .seqs = (x->r.slots + s->dp - 1) / s->dp,
                           .attn_memory = sl_mixserve_memory(&l->model, &l->load, s, 0),
                           .put_prediction = put_prediction,
                           .ctx = x};
}

/* ---- which are the best ---- */

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
    if (l->p->runnable && not_run(l->p, l->group, s)) return true;
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

/* True: some are planned only. */
static bool print_text(const listing *l, FILE *out) {
    bool planned = false;
    fprintf(out, "%u %s x %u nodes: %u strategies, %u keep memory and objectives\n",
            l->system.per_node, sl_plan_type_of(l->p, l->group), l->system.nodes, l->seen, l->fit);
    fprintf(out, "%-34s %8s %9s %9s %9s %9s %7s\n", "strategy", "requests", "TTFT ms", "ITL ms",
            "tok/s", "GB", "replicas");
    for (uint32_t i = 0; i < l->n; i++) {
        const row *x = &l->best[i];
        const bool runs = !not_run(l->p, l->group, &x->s);
        char text[SL_STRATEGY_TEXT];
        sl_strategy_print(&x->s, text);
        fprintf(out, "%-34s %8u %9.1f %9.2f %9.0f %9.1f %7u%s\n", text, x->r.slots,
                x->r.ttft_us / 1e3, x->r.itl_us / 1e3, x->r.output_throughput,
                x->r.memory_bytes / 1e9, sl_strategy_replicas(&x->s), runs ? "" : " *");
        planned = planned || !runs;
    }
    fprintf(out, "\n");
    return planned;
}

static void print_json(const listing *l, const sl_plan_file *each, FILE *out) {
    sl_plan_put_text("{\"device\": ", sl_plan_type_of(l->p, l->group), out);
    fprintf(out, ", \"nodes\": %u, \"per_node\": %u, \"strategies\": %u, \"fit\": %u, \"best\": [",
            l->system.nodes, l->system.per_node, l->seen, l->fit);
    for (uint32_t i = 0; i < l->n; i++) {
        const row *x = &l->best[i];
        const char *planned = not_run(l->p, l->group, &x->s);
        const sl_plan_draft d = draft_of(l, l->group, x);
        fprintf(out, i ? ", " : "");
        put_row(x, out);
        fprintf(out, ", \"planned_only\": ");
        fprintf(out, planned ? "\"%s\"" : "%.0sfalse", planned ? planned : "");
        if (each) fprintf(out, ", \"plan\": ");
        if (each) sl_plan_draft_put(l->p, planned ? NULL : &d, each, out);
        fprintf(out, "}");
    }
    fprintf(out, "]}");
}

static void evaluate_group(const sl_search_problem *p, uint32_t group, uint32_t top,
                           sl_search_lack *lack, listing *out) {
    const sl_workload *w = p->workload;
    *out = (listing){.p = p,
                     .group = group,
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

static void print_groups(const sl_search_problem *p, const listing *group, bool json,
                         const sl_plan_file *each, FILE *out) {
    bool planned = false;
    if (json) {
        sl_plan_put_text("{\"model\": ", p->shape->name, out);
        sl_plan_put_text(", \"cluster\": ", p->cluster->name, out);
        fprintf(out, ", \"estimated\": true, \"as_published\": %s, \"groups\": [",
                p->as_published ? "true" : "false");
    }
    for (uint32_t g = 0; g < p->cluster->n_groups; g++) {
        if (json && g) fprintf(out, ", ");
        if (json)
            print_json(&group[g], each, out);
        else
            planned = print_text(&group[g], out) || planned;
    }
    fprintf(out, json ? "]}\n" : "Estimates from data sheets, not measured.\n");
    if (planned)
        fprintf(out,
                "* planned only: pipelines and tensor parallelism over GPUs, and pipelines of over "
                "%u ranks, are not run yet.\n",
                SL_MAX_RANKS);
}

static sl_status save_best(const sl_search_problem *p, const listing *group, const sl_plan_file *to,
                           sl_err *err) {
    const listing *of = NULL;
    const row *best = NULL;
    for (uint32_t g = 0; g < p->cluster->n_groups; g++) {
        for (uint32_t i = 0; i < group[g].n; i++) {
            const row *x = &group[g].best[i];
            if (not_run(p, g, &x->s)) continue;
            if (best && best->r.output_throughput >= x->r.output_throughput) break;
            best = x;
            of = &group[g];
            break;
        }
    }
    if (!best)
        return sl_fail(
            err, SL_ERR_UNSUPPORTED,
            "none of the strategies shown is run by the engine: --runnable looks for the "
            "best that is");
    const sl_plan_draft d = draft_of(of, of->group, best);
    return sl_plan_draft_save(p, &d, to, err);
}

sl_status sl_plan_report_strategies(const sl_search_problem *p, uint32_t top, bool json, bool plans,
                                    const sl_plan_file *to, FILE *out, sl_err *err) {
    sl_search_lack lack = {0};
    uint32_t fit = 0;
    listing *group = sl_alloc(p->cluster->n_groups, sizeof *group);
    if (!group) return sl_fail(err, SL_ERR_NOMEM, "%u node groups", p->cluster->n_groups);
    for (uint32_t g = 0; g < p->cluster->n_groups; g++) {
        evaluate_group(p, g, top, &lack, &group[g]);
        fit += group[g].fit;
    }
    sl_status st = fit > 0 ? SL_OK : sl_search_infeasible(p, &lack, err);
    if (st == SL_OK && to->path[0]) st = save_best(p, group, to, err);
    if (st == SL_OK) print_groups(p, group, json, plans ? to : NULL, out);
    sl_free(group);
    return st;
}
