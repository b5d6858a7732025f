/* What `sluice plan` found, as text and JSON. */
#include "plan_draft.h"
#include "plan_report.h"

#include "cmd.h"

#include <math.h>
#include <string.h>

#define WORKERS_TEXT (2 * SL_CLUSTER_NAME + 96) /* of both sides, whatever the devices' names */

static const char *unit_of(const sl_search_problem *p) {
    static const char *const units[] = {"tok/s", "tok/s/$", "tok/s/device"};
    return units[p->objective];
}

static void print_workers(const sl_search_problem *p, const sl_layout *l, char *out, size_t room) {
    size_t n = 0;
    if (sl_layout_is_apart(l->kind))
        n = (size_t)snprintf(out, room, "%ux%u %s + %ux%u %s", l->n_a, l->tp_a,
                             sl_plan_type_of(p, l->attn_group), l->n_e, l->tp_e,
                             sl_plan_type_of(p, l->expert_group));
    else
        n = (size_t)snprintf(out, room, "%u %s TP=%u+DP=%u, ", l->n_a * l->tp_a * l->stages,
                             sl_plan_type_of(p, l->attn_group), l->tp_a, l->n_a);
    if (!sl_layout_is_apart(l->kind) && n < room)
        n += (size_t)snprintf(out + n, room - n, l->tp_e > 1 ? "TP=%u+EP=%u" : "%.0uEP=%u",
                              l->tp_e > 1 ? l->tp_e : 0, l->n_e);
    if (l->stages > 1 && n < room) snprintf(out + n, room - n, " [PP=%u]", l->stages);
}

static void print_schedule(const sl_layout *l, char *out, size_t room) {
    static const char *const orders[] = {"asas", "aass"};
    switch (l->kind) {
    case SL_LAYOUT_PINGPONG:
        snprintf(out, room, "m=%u", l->lanes);
        break;
    case SL_LAYOUT_FINDEP:
        snprintf(out, room, "%ux%u %s %s", l->lanes, l->chunks, orders[l->order],
                 l->chunking == SL_CHUNK_EXPERTS ? "experts" : "tokens");
        break;
    case SL_LAYOUT_EPS:
        snprintf(out, room, "N=%u", l->chunks);
        break;
    default:
        snprintf(out, room, "-");
    }
}

static void print_row(const sl_search_problem *p, const sl_candidate *c, FILE *out) {
    char workers[WORKERS_TEXT], schedule[40], copies[16];
    print_workers(p, &c->layout, workers, sizeof workers);
    print_schedule(&c->layout, schedule, sizeof schedule);
    snprintf(copies, sizeof copies, "%ux", c->copies);
    const char *planned = sl_layout_not_run(p, &c->layout);
    fprintf(out, "%-8s %5s %-38s %-16s %8llu %8.1f %8.0f %9.0f %11.4g  %-9s %-9s%s%s\n",
            sl_layout_name(c->layout.kind), copies, workers, schedule, (unsigned long long)c->seqs,
            c->tpot_us / 1e3, c->ttft_us / 1e3, c->tokens_per_s, c->per_cost,
            sl_binding_name(c->binding), sl_station_name(c->bottleneck),
            planned    ? " *"
            : c->bound ? " ~"
                       : "",
            c->derived ? " +" : "");
}

/* The best of each kind in the order of the objective. */
static uint32_t sort_rows(const sl_search_result *r, const sl_candidate **rows) {
    uint32_t n = 0;
    for (int k = 0; k < SL_LAYOUT_COUNT; k++) {
        for (uint32_t i = 0; i < r->n_top[k]; i++) {
            uint32_t at = n++;
            while (at > 0 && rows[at - 1]->per_cost < r->top[k][i].per_cost) {
                rows[at] = rows[at - 1];
                at--;
            }
            rows[at] = &r->top[k][i];
        }
    }
    return n;
}

static void print_notes(const sl_search_problem *p, const sl_candidate *const *rows, uint32_t n,
                        FILE *out) {
    bool planned = false, bound = false, estimated = false, aep = false, hybrid = false;
    bool derived = false;
    for (uint32_t i = 0; i < n; i++) {
        planned = planned || sl_layout_not_run(p, &rows[i]->layout);
        bound = bound || rows[i]->bound;
        derived = derived || rows[i]->derived;
        aep = aep || (rows[i]->tried_us > 0 && rows[i]->layout.kind == SL_LAYOUT_AEP);
        hybrid = hybrid || (rows[i]->tried_us > 0 && rows[i]->layout.kind == SL_LAYOUT_HYBRID);
        estimated = estimated || rows[i]->estimated;
    }
    if (estimated)
        fprintf(out, "Estimates from data sheets, not measured: sluice profile measures.\n");
    if (planned)
        fprintf(
            out,
            "* planned only: tensor parallelism and pipelines over GPUs, %sand over %u workers are "
            "not run yet.\n",
            sl_speculates_by_mtp(p->speculate) ? "the block that guesses on GPUs, " : "",
            SL_MAX_WORKERS);
    if (derived) fprintf(out, "+ derived from the profile: tensor parallelism was not measured.\n");
    if (bound)
        fprintf(out, "~ optimistic, as there is no law for it: sluice simulate tells more.\n");
    if (aep)
        fprintf(out, "aep has no law: its steps are simulated, as far as they are small enough.\n");
    if (hybrid)
        fprintf(out,
                "hybrid is simulated as it runs, where it is small enough; else by its law.\n");
}

static void print_front(const sl_search_problem *p, const sl_search_result *r, FILE *out) {
    fprintf(out, "\nPareto front: speed of one user against %s\n%10s %12s  %-8s %s\n", unit_of(p),
            "tok/s/user", unit_of(p), "schedule", "workers");
    for (uint32_t i = 0; i < r->n_front; i++) {
        const sl_candidate *c = &r->front[i];
        char workers[WORKERS_TEXT];
        print_workers(p, &c->layout, workers, sizeof workers);
        fprintf(out, "%10.1f %12.4g  %-8s %s, %u rows\n", 1e6 / c->tpot_us, c->per_cost,
                sl_layout_name(c->layout.kind), workers, c->rows);
    }
}

void sl_plan_report_text(const sl_search_problem *p, const sl_search_result *r, FILE *out) {
    const sl_candidate *rows[SL_LAYOUT_COUNT * SL_SEARCH_MAX_TOP];
    char why[SL_SEARCH_TEXT];
    uint32_t n = sort_rows(r, rows);
    fprintf(out, "%s on %s, %llu devices%s", p->shape->name, p->cluster->name,
            (unsigned long long)sl_cluster_devices(p->cluster),
            p->decode_only ? ", decoding only" : "");
    if (p->workload->slo_tpot_us > 0)
        fprintf(out, ", TPOT at most %.4g ms", p->workload->slo_tpot_us / 1e3);
    fprintf(out, ": %llu deployments\n\n", (unsigned long long)r->layouts);
    fprintf(out, "%-8s %5s %-38s %-16s %8s %8s %8s %9s %11s  %-9s %-9s\n", "schedule", "",
            "workers", "", "requests", "TPOT ms", "TTFT ms", "tok/s", unit_of(p), "batch by",
            "busiest");
    for (uint32_t i = 0; i < n; i++) print_row(p, rows[i], out);
    print_notes(p, rows, n, out);
    sl_search_why(p, r, why);
    fprintf(out, "\n%s.\n", why);
    print_front(p, r, out);
}

void sl_plan_put_text(const char *before, const char *text, FILE *out) {
    fputs(before, out);
    sl_print_json_string(out, text, strlen(text));
}

/* Without the end of the object. */
static void json_candidate(const sl_search_problem *p, const sl_candidate *c, FILE *out) {
    const sl_layout *l = &c->layout;
    const char *planned = sl_layout_not_run(p, l);
    fprintf(out, "{\"schedule\": \"%s\", \"copies\": %u", sl_layout_name(l->kind), c->copies);
    sl_plan_put_text(", \"attention\": {\"device\": ", sl_plan_type_of(p, l->attn_group), out);
    fprintf(out, ", \"workers\": %u, \"tensor_parallel\": %u}", l->n_a, l->tp_a);
    sl_plan_put_text(", \"expert\": {\"device\": ", sl_plan_type_of(p, l->expert_group), out);
    fprintf(out,
            ", \"workers\": %u, \"tensor_parallel\": %u}, \"pipeline_stages\": %u, \"lanes\": %u, "
            "\"chunks\": %u, \"chunk_by\": \"%s\", \"order\": \"%s\", ",
            l->n_e, l->tp_e, l->stages, l->lanes, l->chunks,
            l->chunking == SL_CHUNK_EXPERTS ? "experts" : "tokens",
            l->order == SL_ORDER_AASS ? "aass" : "asas");
    fprintf(out,
            "\"devices\": %u, \"cost_per_hour\": %.6g, \"requests\": %llu, \"rows\": %u, "
            "\"tpot_ms\": %.6g, \"ttft_ms\": %.6g, \"step_ms\": %.6g, \"prefill_ms\": %.6g, "
            "\"tokens_per_s\": %.6g, \"objective\": %.6g, ",
            c->devices, c->cost, (unsigned long long)c->seqs, c->rows, c->tpot_us / 1e3,
            c->ttft_us / 1e3, c->step_us / 1e3, c->prefill_us / 1e3, c->tokens_per_s, c->per_cost);
    fprintf(
        out,
        "\"layer_us\": {\"attention\": %.6g, \"shared\": %.6g, \"expert\": %.6g, \"link\": %.6g, "
        "\"period\": %.6g}, \"busy\": {\"attention\": %.4f, \"expert\": %.4f, \"link\": %.4f}, "
        "\"expert_rows\": %.6g, \"expert_knee_rows\": %.6g, \"imbalance\": %.4f, "
        "\"hidden_transfers\": %.4f, ",
        c->attn_us, c->shared_us, c->expert_us, c->link_us, c->layer_us, c->attn_busy,
        c->expert_busy, c->link_busy, c->expert_rows, c->expert_knee, c->imbalance, c->hidden);
    fprintf(out,
            "\"memory_bytes\": {\"attention\": %.0f, \"expert\": %.0f}, \"binding\": \"%s\", "
            "\"bottleneck\": \"%s\", \"estimated\": %s, \"derived\": %s, \"optimistic\": %s, "
            "\"simulated\": %s, "
            "\"planned_only\": ",
            c->attn_memory, c->expert_memory, sl_binding_name(c->binding),
            sl_station_name(c->bottleneck), c->estimated ? "true" : "false",
            c->derived ? "true" : "false", c->bound ? "true" : "false",
            c->tried_us > 0 ? "true" : "false");
    fprintf(out, planned ? "\"%s\"" : "%.0sfalse", planned ? planned : "");
}

typedef struct predicted {
    const sl_search_problem *p;
    const sl_candidate *c;
} predicted;

static void put_prediction(const void *ctx, FILE *out) {
    const predicted *of = ctx;
    json_candidate(of->p, of->c, out);
    fprintf(out, "}");
}

/* One copy of a deployment. */
static sl_plan_draft draft_of(const sl_candidate *c, const predicted *of) {
    const sl_layout *l = &c->layout;
    const bool groups = l->chunking == SL_CHUNK_EXPERTS || l->kind == SL_LAYOUT_EPS;
    const bool pipeline = l->kind == SL_LAYOUT_PIPELINE; /* with a micro-batch for each rank */
    const bool turns = sl_layout_takes_turns(l);
    const uint32_t lanes = pipeline ? l->stages : l->lanes;
    const sl_layout_kind kind = !turns                     ? l->kind
                                : l->kind == SL_LAYOUT_EPS ? SL_LAYOUT_FINDEP
                                                           : SL_LAYOUT_DEP;
    return (sl_plan_draft){.schedule = pipeline ? "pingpong" : sl_layout_name(kind),
                           .lanes = l->kind == SL_LAYOUT_AEP ? 1 : lanes,
                           .chunks = l->chunks,
                           .by_experts = groups,
                           .order = l->order,
                           .apart = sl_layout_is_apart(l->kind) || turns,
                           .n_a = l->n_a,
                           .tp_a = l->tp_a,
                           .n_e = l->n_e,
                           .tp_e = l->tp_e,
                           .stages = l->stages,
                           .groups = l->n_e,
                           .attn_group = l->attn_group,
                           .expert_group = l->expert_group,
                           .seqs = (uint64_t)c->rows * l->lanes * l->stages,
                           .attn_memory = c->attn_memory,
                           .put_prediction = put_prediction,
                           .ctx = of};
}

sl_status sl_plan_report_write(const sl_search_problem *p, const sl_candidate *c,
                               const sl_plan_file *to, sl_err *err) {
    const predicted of = {p, c};
    const sl_plan_draft d = draft_of(c, &of);
    return sl_plan_draft_save(p, &d, to, err);
}

/* What readers of a report see of a deployment beside its figures. */
static void json_words(const sl_search_problem *p, const sl_candidate *c, FILE *out) {
    char workers[WORKERS_TEXT], schedule[40], about[SL_SEARCH_TEXT];
    print_workers(p, &c->layout, workers, sizeof workers);
    print_schedule(&c->layout, schedule, sizeof schedule);
    sl_search_about(c, NULL, about);
    const char *const texts[] = {workers, schedule, about};
    static const char *const names[] = {", \"workers\": ", ", \"details\": ", ", \"about\": "};
    for (size_t i = 0; i < SL_LEN(texts); i++) sl_plan_put_text(names[i], texts[i], out);
}

static void json_plan(const sl_search_problem *p, const sl_candidate *c, const sl_plan_file *each,
                      FILE *out) {
    const predicted of = {p, c};
    const sl_plan_draft d = draft_of(c, &of);
    fprintf(out, ", \"plan\": ");
    sl_plan_draft_put(p, sl_layout_not_run(p, &c->layout) ? NULL : &d, each, out);
}

static void json_list(const sl_search_problem *p, const sl_candidate *const *list, uint32_t n,
                      const sl_plan_file *each, FILE *out) {
    fprintf(out, "[");
    for (uint32_t i = 0; i < n; i++) {
        if (i) fprintf(out, ", ");
        json_candidate(p, list[i], out);
        json_words(p, list[i], out);
        if (each) json_plan(p, list[i], each, out);
        fprintf(out, "}");
    }
    fprintf(out, "]");
}

static void json_curve(const sl_search_problem *p, const sl_candidate *curve, uint32_t n,
                       const sl_plan_file *each, FILE *out) {
    const sl_candidate *list[SL_SEARCH_MAX_FRONT];
    for (uint32_t i = 0; i < n; i++) list[i] = &curve[i];
    json_list(p, list, n, each, out);
}

static void json_curves(const sl_search_problem *p, const sl_search_result *r,
                        const sl_plan_file *each, FILE *out) {
    const char *comma = "";
    fprintf(out, ", \"curves\": [");
    for (int k = 0; k < SL_LAYOUT_COUNT; k++) {
        if (r->n_curve[k] == 0) continue;
        fprintf(out, "%s{\"schedule\": \"%s\", \"points\": ", comma,
                sl_layout_name((sl_layout_kind)k));
        json_curve(p, r->curve[k], r->n_curve[k], each, out);
        fprintf(out, "}");
        comma = ", ";
    }
    fprintf(out, "]");
}

void sl_plan_report_json(const sl_search_problem *p, const sl_search_result *r,
                         const sl_plan_file *each, FILE *out) {
    const sl_candidate *rows[SL_LAYOUT_COUNT * SL_SEARCH_MAX_TOP];
    char why[SL_SEARCH_TEXT];
    uint32_t n = sort_rows(r, rows);
    sl_search_why(p, r, why);
    sl_plan_put_text("{\"model\": ", p->shape->name, out);
    sl_plan_put_text(", \"cluster\": ", p->cluster->name, out);
    fprintf(out, ", \"devices\": %llu, \"unit\": \"%s\", ",
            (unsigned long long)sl_cluster_devices(p->cluster), unit_of(p));
    fprintf(out, "\"slo_tpot_ms\": %.6g, \"slo_ttft_ms\": %.6g, ", p->workload->slo_tpot_us / 1e3,
            p->workload->slo_ttft_us / 1e3);
    fprintf(out, "\"estimated\": %s, \"as_published\": %s, \"layouts\": %llu, \"why\": ",
            n && rows[0]->estimated ? "true" : "false", p->as_published ? "true" : "false",
            (unsigned long long)r->layouts);
    sl_plan_put_text("", why, out);
    fprintf(out, ", \"deployments\": ");
    json_list(p, rows, n, each, out);
    fprintf(out, ", \"front\": ");
    json_curve(p, r->front, r->n_front, each, out);
    json_curves(p, r, each, out);
    fprintf(out, "}\n");
}
