/* plan.json as `sluice plan` writes it. */
#include "plan_draft.h"

#include "base/output.h"
#include "cmd.h"
#include "plan/account.h"
#include "plan/lengths.h"
#include "spec/gang.h"
#include "spec/kv.h"

#include <string.h>

/* The i-th worker on a node group's devices, which fill one node after the other. */
static void write_device(const sl_search_problem *p, const sl_plan_file *to, uint32_t group,
                         uint32_t i, FILE *out) {
    const sl_node_group *g = &p->cluster->group[group];
    if (to->on_gpus && !p->cluster->type[g->type].cpu)
        fprintf(out, ", \"device\": \"cuda:%u\"", i % g->devices_per_node);
}

static void write_workers(const sl_search_problem *p, const sl_plan_draft *d,
                          const sl_plan_file *to, FILE *out) {
    const uint32_t n = d->n_a + (d->apart ? d->n_e : 0);
    fprintf(out, "  \"workers\": [\n");
    for (uint32_t i = 0; i < n; i++) {
        const bool attends = i < d->n_a;
        fprintf(out, "    {\"roles\": [%s]",
                !attends   ? "\"expert\""
                : d->apart ? "\"attention\""
                           : "\"attention\", \"expert\"");
        write_device(p, to, attends ? d->attn_group : d->expert_group, attends ? i : i - d->n_a,
                     out);
        fprintf(out, "}%s\n", i + 1 < n ? "," : "");
    }
    fprintf(out, "  ],\n");
}

/* Consecutive experts in each group, which all workers of the group have. */
static void write_placement(const sl_plan_draft *d, uint32_t n_experts, FILE *out) {
    const uint32_t first = d->apart ? d->n_a : 0, copies = d->n_e / d->groups;
    if (copies == 1) return; /* what is done where nobody says anything */
    fprintf(out, "  \"placement\": [");
    for (uint32_t e = 0; e < n_experts; e++) {
        fprintf(out, e ? ", [" : "[");
        for (uint32_t i = 0; i < copies; i++)
            fprintf(out, "%s[%u, %.17g]", i ? ", " : "",
                    first + i * d->groups + e * d->groups / n_experts, 1.0 / copies);
        fprintf(out, "]");
    }
    fprintf(out, "],\n");
}

static uint32_t context_of(const sl_search_problem *p, const sl_plan_file *to) {
    const sl_workload *w = p->workload;
    uint32_t longest = sl_length_quantile(&w->input, 1) + sl_length_quantile(&w->output, 1);
    uint32_t most = p->shape->max_position ? p->shape->max_position : 1u << 20;
    if (to->context) return to->context;
    return SL_MIN(SL_MAX(longest, 64u), SL_MIN(most, 1u << 20));
}

/* One request of the context has to fit beside the weights. */
static sl_status check_context(const sl_search_problem *p, const sl_plan_draft *d, uint32_t context,
                               sl_err *err) {
    const sl_cluster *k = p->cluster;
    sl_footprint f = sl_account_footprint(p->shape);
    uint32_t shards = p->shape->attention == SL_ATTENTION_MLA ? 1 : p->shape->n_kv_heads;
    double token = f.kv_token / d->stages;
    if (sl_speculates_by_mtp(p->speculate)) token += f.block_kv_token; /* the last stage's */
    double kv = context * token / SL_MIN(d->tp_a, SL_MAX(shards, 1u)) + f.state / d->stages;
    double room =
        k->type[k->group[d->attn_group].type].memory_bytes * (1 - p->reserve) - d->attn_memory;
    if (kv <= room) return SL_OK;
    return sl_fail(err, SL_ERR_LIMIT,
                   "--context: KV of one request of %u positions takes %.3g GB, a device has %.3g "
                   "GB beside the weights",
                   context, kv / 1e9, room / 1e9);
}

/* Requests of one attention worker, and what they need of positions and rows. */
static void write_limits(const sl_search_problem *p, const sl_plan_draft *d, uint32_t context,
                         FILE *out) {
    const sl_workload *w = p->workload;
    uint32_t p95 = sl_length_p95(&w->input) + sl_length_p95(&w->output);
    uint64_t seqs = SL_MIN(SL_MAX(d->seqs, 1u), 4096u);
    uint64_t pages = seqs * sl_kv_pages_for(p95);
    pages = SL_MIN(SL_MAX(pages, sl_kv_pages_for(context)), 1u << 22);
    uint64_t tokens = SL_MIN(SL_MAX(seqs, 512u), 4096u);
    fprintf(out,
            "  \"limits\": {\"max_num_seqs\": %llu, \"max_num_batched_tokens\": %llu, \"context\": "
            "%u, \"kv_pages\": %llu},\n",
            (unsigned long long)seqs, (unsigned long long)tokens, context,
            (unsigned long long)pages);
}

/* Whose costs those of a node group are. */
static const char *costs_of(const sl_search_problem *p, const sl_plan_file *to, uint32_t group) {
    const char *machine = to->machine ? to->machine[p->cluster->group[group].type] : NULL;
    return machine ? machine : sl_plan_type_of(p, group);
}

static void write_origin(const sl_search_problem *p, const sl_plan_draft *d, const sl_plan_file *to,
                         FILE *out) {
    const char *names[] = {p->cluster->name, costs_of(p, to, d->attn_group),
                           costs_of(p, to, d->expert_group)};
    static const char *const heads[] = {
        "\"cluster\": ", ", \"costs\": {\"attention\": ", ", \"expert\": "};
    for (size_t i = 0; i < SL_LEN(names); i++) sl_plan_put_text(heads[i], names[i], out);
    fprintf(out, "},\n    ");
}

static void write_plan(const sl_search_problem *p, const sl_plan_draft *d, const sl_plan_file *to,
                       uint32_t context, FILE *out) {
    static const char *const orders[] = {[SL_ORDER_ASAS] = "asas", [SL_ORDER_AASS] = "aass"};
    fprintf(out, "{\n  \"version\": %u, \"schedule\": \"%s\", \"lanes\": %u, \"chunks\": %u,\n",
            SL_PLAN_VERSION, d->schedule, d->lanes, d->chunks);
    fprintf(out, "  \"chunk_by\": \"%s\", \"order\": \"%s\",\n",
            d->by_experts ? "experts" : "tokens", orders[d->order]);
    write_workers(p, d, to, out);
    write_placement(d, p->shape->n_experts, out);
    if (d->tp_a > 1 || d->tp_e > 1)
        fprintf(out, "  \"tp\": {\"attention\": %u, \"expert\": %u},\n", d->tp_a, d->tp_e);
    if (d->stages > 1) fprintf(out, "  \"pp\": {\"degree\": %u},\n", d->stages);
    if (p->speculate) fprintf(out, "  \"speculate\": \"%s\",\n", sl_speculate_names[p->speculate]);
    write_limits(p, d, context, out);
    fprintf(out, "  \"deployment\": {");
    write_origin(p, d, to, out);
    fprintf(out,
            "\"tensor_parallel\": {\"attention\": %u, \"expert\": %u}, \"pipeline_stages\": %u, "
            "\"predicted\":\n    ",
            d->tp_a, d->tp_e, d->stages);
    d->put_prediction(d->ctx, out);
    fprintf(out, "}\n}");
}

sl_status sl_plan_draft_save(const sl_search_problem *p, const sl_plan_draft *d,
                             const sl_plan_file *to, sl_err *err) {
    uint32_t context = context_of(p, to);
    sl_output file;
    sl_status st = check_context(p, d, context, err);
    if (st == SL_OK) st = sl_output_open(to->path, &file, err);
    if (st != SL_OK) return st;
    write_plan(p, d, to, context, file.f);
    fprintf(file.f, "\n");
    return sl_output_close(&file, err);
}

void sl_plan_draft_put(const sl_search_problem *p, const sl_plan_draft *d, const sl_plan_file *to,
                       FILE *out) {
    uint32_t context = context_of(p, to);
    sl_err err;
    if (d && check_context(p, d, context, &err) == SL_OK)
        write_plan(p, d, to, context, out);
    else
        fprintf(out, "null");
}
