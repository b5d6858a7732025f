/* Plans from JSON and to it, their defaults, and words of their enumerations. */
#include "format/plan_json.h"

#include "base/mem.h"
#include "format/arch.h"
#include "format/placement.h"
#include "format/plan_gpu.h"
#include "format/plan_ranks.h"
#include "format/plan_lab.h"
#include "format/plan_schedule.h"
#include "format/plan_sides.h"
#include "quant/wire_rows.h"
#include "spec/gang.h"
#include "spec/kv.h"
#include "spec/limits.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PLAN_BYTES (16u << 20)
#define NOBODY         UINT32_MAX
#define USUAL_KV_BYTES (2ull << 30) /* of an attention worker's KV pages */

static const char *const progress_names[2] = {"inline", "thread"}; /* by sl_plan.pump */

sl_status sl_progress_parse(const char *name, bool *pump, sl_err *err) {
    size_t i;
    sl_status st = sl_name_parse("progress", progress_names, SL_LEN(progress_names), name, &i, err);
    if (st == SL_OK) *pump = i == 1;
    return st;
}

sl_status sl_activations_parse(const char *name, sl_activations *out, sl_err *err) {
    size_t i;
    sl_status st =
        sl_name_parse("activations", sl_activations_names, SL_ACTIVATIONS_COUNT, name, &i, err);
    if (st == SL_OK) *out = (sl_activations)i;
    return st;
}

sl_status sl_speculate_parse(const char *name, sl_speculate *out, sl_err *err) {
    size_t i;
    sl_status st =
        sl_name_parse("speculate", sl_speculate_names, SL_SPECULATE_COUNT, name, &i, err);
    if (st == SL_OK) *out = (sl_speculate)i;
    return st;
}

sl_status sl_kv_type_parse(const char *name, sl_kv_type *out, sl_err *err) {
    size_t i;
    sl_status st =
        sl_name_parse("type of KV pages", sl_kv_type_names, SL_KV_AUTO + 1, name, &i, err);
    if (st == SL_OK) *out = (sl_kv_type)i;
    return st;
}

sl_status sl_wire_format_parse(const char *name, uint32_t *out, sl_err *err) {
    for (uint32_t i = 0; i < SL_WIRE_FORMAT_COUNT; i++) {
        if (strcmp(name, sl_wire_format_name((sl_wire_format)i)) == 0) {
            *out = i;
            return SL_OK;
        }
    }
    return sl_fail(err, SL_ERR_ARG, "wire format '%s' is unknown: f32, bf16 or fp8", name);
}

uint32_t sl_plan_usual_pages(const sl_plan *p, const sl_model_spec *m) {
    sl_model_spec of = *m;
    of.kv_type = sl_plan_kv_type(p);
    const uint64_t one = sl_kv_pages_for(p->context), all = p->max_num_seqs * one;
    return (uint32_t)SL_MAX(SL_MIN(all, USUAL_KV_BYTES / sl_kv_page_bytes(&of)), one);
}

static void set_default_limits(const sl_model_spec *m, sl_plan *p) {
    p->max_num_seqs = 64;
    p->max_num_batched_tokens = 512;
    p->prefill_stretch = 1.6;
    p->prefill_rows = SL_PLAN_PREFILL_ROWS;
    p->context = SL_MIN(m->max_position, 4096u);
    p->n_pages = sl_plan_usual_pages(p, m);
}

static sl_status plan_init(const sl_model_spec *m, uint32_t n_workers, sl_plan *p, sl_err *err) {
    *p = (sl_plan){.epoch = 1, .n_workers = n_workers, .n_experts = m->n_experts};
    p->activations = SL_ACTIVATIONS_DEFAULT;
    p->kv_type = SL_KV_AUTO;
    sl_plan_set_schedule(p, SL_SCHED_EP);
    if (n_workers == 0 || n_workers > SL_MAX_WORKERS)
        return sl_fail(err, SL_ERR_ARG, "plan: %u workers, 1 to %u are possible", n_workers,
                       SL_MAX_WORKERS);
    p->worker = sl_alloc(n_workers, sizeof *p->worker);
    if (!p->worker) return sl_fail(err, SL_ERR_NOMEM, "plan of %u workers", n_workers);
    for (uint32_t i = 0; i < n_workers; i++) p->worker[i] = (sl_plan_worker){.id = i, .cpu = -1};
    p->device.time_scale = 1;
    p->device.numerics = SL_NUMERICS_AUTO;
    set_default_limits(m, p);
    return SL_OK;
}

sl_status sl_plan_local(const sl_model_spec *m, uint32_t attention, uint32_t experts, sl_plan *out,
                        sl_err *err) {
    bool colocated = experts == 0;
    uint32_t first = SL_MAX(attention, 1u);
    sl_status st = plan_init(m, first + experts, out, err);
    if (st != SL_OK) return st;
    sl_plan_set_schedule(out, colocated ? SL_SCHED_EP : SL_SCHED_DEP);
    for (uint32_t i = 0; i < out->n_workers; i++) {
        uint32_t role = i < first ? SL_ROLE_ATTENTION : SL_ROLE_EXPERT;
        out->worker[i].roles = colocated ? SL_ROLE_ATTENTION | SL_ROLE_EXPERT : role;
    }
    st = sl_placement_spread(false, out, err);
    if (st != SL_OK) sl_plan_free(out);
    return st;
}

static sl_status read_roles(sl_json row, bool needed, sl_plan_worker *w, sl_err *err) {
    sl_json roles;
    sl_status st = sl_json_array(row, "roles", SL_JSON_REQUIRED, &roles, err);
    for (size_t i = 0; st == SL_OK && i < sl_json_count(roles); i++) {
        sl_span name;
        sl_json v = sl_json_at(roles, i);
        if (sl_json_as_span(v, &name) && name.len == 9 && !memcmp(name.data, "attention", 9))
            w->roles |= SL_ROLE_ATTENTION;
        else if (sl_json_as_span(v, &name) && name.len == 6 && !memcmp(name.data, "expert", 6))
            w->roles |= SL_ROLE_EXPERT;
        else
            st = sl_json_fail(v, NULL, err, SL_ERR_ARG, "a role is \"attention\" or \"expert\"");
    }
    if (st == SL_OK && w->roles == 0 && needed)
        st = sl_json_fail(row, "roles", err, SL_ERR_ARG, "a worker needs a role");
    return st;
}

static sl_status read_experts(sl_json list, uint32_t worker, const sl_plan *p, uint32_t *owner,
                              sl_err *err) {
    for (size_t i = 0; i < sl_json_count(list); i++) {
        sl_json v = sl_json_at(list, i);
        uint64_t e;
        if (!sl_json_as_u64(v, &e) || e >= p->n_experts)
            return sl_json_fail(v, NULL, err, SL_ERR_ARG, "experts are 0 to %u", p->n_experts - 1);
        if (owner[e] != NOBODY)
            return sl_json_fail(v, NULL, err, SL_ERR_ARG, "expert %u is at worker %u already",
                                (unsigned)e, owner[e]);
        const sl_plan_worker *w = &p->worker[worker];
        if (!(w->roles & SL_ROLE_EXPERT) || w->spare || w->prefill)
            return sl_json_fail(v, NULL, err, SL_ERR_ARG, "worker %u %s", worker,
                                w->spare ? "is not there at first"
                                : w->prefill
                                    ? "is for prompts: its side's experts are spread evenly"
                                    : "has no expert role");
        owner[e] = worker;
    }
    return SL_OK;
}

static sl_status read_worker(sl_json row, uint32_t i, bool all_there, sl_plan *p, uint32_t *owner,
                             bool *any_experts, sl_err *err) {
    static const char *const keys[] = {"id",    "roles",       "experts", "address",
                                       "cpu",   "incarnation", "spare",   "device",
                                       "ranks", "prefill",     "pages",   "offload"};
    const char *address = "";
    sl_json experts = {0};
    uint64_t id = i, cpu = UINT64_MAX;
    sl_status st = sl_json_only(row, keys, SL_LEN(keys), err);
    if (st == SL_OK) st = sl_json_u64(row, "id", SL_JSON_OPTIONAL, i, i, &id, err);
    if (st == SL_OK) st = read_roles(row, all_there, &p->worker[i], err);
    if (st == SL_OK) st = sl_json_string(row, "address", SL_JSON_OPTIONAL, &address, err);
    if (st == SL_OK) st = sl_json_array(row, "experts", SL_JSON_OPTIONAL, &experts, err);
    if (st == SL_OK) st = sl_json_u64(row, "cpu", SL_JSON_OPTIONAL, 0, SL_PLAN_MAX_CPU, &cpu, err);
    if (st == SL_OK)
        st = sl_json_u64(row, "incarnation", SL_JSON_OPTIONAL, 0, SL_PLAN_MAX_INCARNATION,
                         &p->worker[i].incarnation, err);
    if (st == SL_OK) st = sl_json_bool(row, "spare", SL_JSON_OPTIONAL, &p->worker[i].spare, err);
    if (st == SL_OK) st = sl_sides_of_worker(row, all_there, &p->worker[i], err);
    if (st == SL_OK) st = sl_gpu_of_worker(row, &p->worker[i], err);
    if (st == SL_OK) st = sl_ranks_of_worker(row, &p->worker[i], err);
    if (st != SL_OK) return st;
    if (cpu != UINT64_MAX) p->worker[i].cpu = (int32_t)cpu;
    if (strlen(address) >= sizeof p->worker[i].address)
        return sl_json_fail(row, "address", err, SL_ERR_LIMIT, "over %zu bytes",
                            sizeof p->worker[i].address - 1);
    strcpy(p->worker[i].address, address);
    if (experts.value) *any_experts = true;
    return read_experts(experts, i, p, owner, err);
}

static sl_status read_pin(sl_json v, sl_plan *p, sl_err *err) {
    const char *pin = "";
    sl_status st = sl_json_string(v, "pin", SL_JSON_OPTIONAL, &pin, err);
    p->pin_auto = st == SL_OK && strcmp(pin, "auto") == 0;
    if (st == SL_OK && *pin && !p->pin_auto)
        st = sl_json_fail(v, "pin", err, SL_ERR_ARG, "\"%.40s\" is not \"auto\"", pin);
    return st;
}

static sl_status read_limits(sl_json v, sl_plan *p, sl_err *err) {
    static const char *const keys[] = {"max_num_seqs", "max_num_batched_tokens", "prefill_stretch",
                                       "context", "kv_pages"};
    if (!v.value) return SL_OK;
    sl_status st = sl_json_only(v, keys, SL_LEN(keys), err);
    if (st == SL_OK)
        st = sl_json_u32(v, "max_num_seqs", SL_JSON_OPTIONAL, 1, SL_PLAN_MAX_SEQS, &p->max_num_seqs,
                         err);
    if (st == SL_OK)
        st = sl_json_u32(v, "max_num_batched_tokens", SL_JSON_OPTIONAL, 1, SL_PLAN_MAX_BATCH,
                         &p->max_num_batched_tokens, err);
    if (st == SL_OK)
        st = sl_json_f64(v, "prefill_stretch", SL_JSON_OPTIONAL, 1, SL_PLAN_MAX_STRETCH,
                         &p->prefill_stretch, err);
    if (st == SL_OK)
        st = sl_json_u32(v, "context", SL_JSON_OPTIONAL, 1, SL_PLAN_MAX_CONTEXT, &p->context, err);
    if (st == SL_OK)
        st = sl_json_u32(v, "kv_pages", SL_JSON_OPTIONAL, 1, SL_PLAN_MAX_PAGES, &p->n_pages, err);
    return st;
}

static sl_status read_experiments(sl_json v, sl_plan *p, sl_err *err) {
    const char *skew = "";
    sl_json device = {0}, costs = {0};
    sl_status st = sl_json_string(v, "route_skew", SL_JSON_OPTIONAL, &skew, err);
    if (st == SL_OK && skew[0])
        st = sl_json_says(v, "route_skew", sl_route_skew_parse(skew, &p->skew, err), err);
    if (st == SL_OK)
        st = sl_json_bool(v, "random_weights", SL_JSON_OPTIONAL, &p->random_weights, err);
    if (st == SL_OK) st = sl_json_object(v, "device", SL_JSON_OPTIONAL, &device, err);
    if (st == SL_OK && device.value) st = sl_device_from_json(device, &p->device, err);
    if (st == SL_OK) st = sl_gpus_from_json(v, p, err);
    if (st == SL_OK) st = sl_json_object(v, "costs", SL_JSON_OPTIONAL, &costs, err);
    p->has_costs = st == SL_OK && costs.value;
    if (p->has_costs) st = sl_costs_from_json(costs, &p->costs, err);
    return st;
}

static sl_status read_name(sl_json v, const char *key, char out[SL_PLAN_COSTS_OF], sl_err *err) {
    const char *text = "";
    sl_status st = sl_json_string(v, key, SL_JSON_OPTIONAL, &text, err);
    if (st == SL_OK && strlen(text) >= SL_PLAN_COSTS_OF)
        return sl_json_fail(v, key, err, SL_ERR_LIMIT, "over %u bytes", SL_PLAN_COSTS_OF - 1);
    if (st == SL_OK) strcpy(out, text);
    return st;
}

static sl_status read_origin(sl_json deployment, sl_plan_origin *out, sl_err *err) {
    static const char *const sides[] = {"attention", "expert"};
    sl_json costs = {0};
    sl_status st = read_name(deployment, "cluster", out->cluster, err);
    if (st == SL_OK) st = sl_json_object(deployment, "costs", SL_JSON_OPTIONAL, &costs, err);
    if (st != SL_OK || !costs.value) return st;
    st = sl_json_only(costs, sides, SL_LEN(sides), err);
    if (st == SL_OK) st = read_name(costs, "attention", out->attention, err);
    return st == SL_OK ? read_name(costs, "expert", out->expert, err) : st;
}

/* Devices of a worker, which "tp" has to say too: a plan says what runs. */
static sl_status read_degrees(sl_json deployment, const sl_plan *p, sl_err *err) {
    static const char *const sides[] = {"attention", "expert"};
    const uint32_t runs[] = {p->attention_tp ? p->attention_tp : 1,
                             p->expert_tp ? p->expert_tp : 1};
    sl_json tensor = {0};
    sl_status st = sl_json_object(deployment, "tensor_parallel", SL_JSON_OPTIONAL, &tensor, err);
    if (st != SL_OK || !tensor.value) return st;
    st = sl_json_only(tensor, sides, SL_LEN(sides), err);
    for (size_t i = 0; st == SL_OK && i < SL_LEN(sides); i++) {
        uint64_t degree = 1;
        st = sl_json_u64(tensor, sides[i], SL_JSON_OPTIONAL, 1, 1024, &degree, err);
        if (st == SL_OK && degree > 1 && degree != runs[i])
            st = sl_json_fail(tensor, sides[i], err, SL_ERR_UNSUPPORTED,
                              "tensor parallelism %u was planned, \"tp\" has %u ranks",
                              (unsigned)degree, (unsigned)runs[i]);
    }
    return st;
}

/* What sluice plan says about the workers, which "tp" and "pp" have to say too. Its prediction is
 * for people. After these. */
static sl_status read_deployment(sl_json v, sl_plan *p, sl_err *err) {
    static const char *const keys[] = {"tensor_parallel", "pipeline_stages", "predicted", "cluster",
                                       "costs"};
    sl_json deployment = {0};
    uint64_t stages = 1;
    sl_status st = sl_json_object(v, "deployment", SL_JSON_OPTIONAL, &deployment, err);
    if (st != SL_OK || !deployment.value) return st;
    st = sl_json_only(deployment, keys, SL_LEN(keys), err);
    if (st == SL_OK) st = read_origin(deployment, &p->origin, err);
    if (st == SL_OK) st = read_degrees(deployment, p, err);
    if (st == SL_OK)
        st = sl_json_u64(deployment, "pipeline_stages", SL_JSON_OPTIONAL, 1, 1024, &stages, err);
    if (st == SL_OK && stages > 1 && stages != sl_plan_pipeline(p))
        st = sl_json_fail(deployment, "pipeline_stages", err, SL_ERR_UNSUPPORTED,
                          "%u stages were planned, \"pp\" has %u ranks", (unsigned)stages,
                          sl_plan_pipeline(p));
    return st;
}

static sl_status read_scalars(sl_json v, sl_plan *p, sl_err *err) {
    static const char *const keys[] = {
        "version",    "epoch",   "schedule",    "lanes",          "chunks",
        "chunk_by",   "order",   "policy",      "lookahead",      "delta",
        "wire",       "exact",   "workers",     "limits",         "threads",
        "progress",   "device",  "route_skew",  "placement",      "deployment",
        "costs",      "pin",     "activations", "kv_replicas",    "segments",
        "tp",         "pp",      "gpu",         "random_weights", "speculate",
        "rail_bytes", "kv_type", "resolve",     "prefill_rows",   "numa"};
    uint64_t version = 0;
    const char *wire = "f32", *progress = progress_names[0],
               *activations = sl_activations_names[SL_ACTIVATIONS_DEFAULT],
               *speculate = sl_speculate_names[SL_SPECULATE_OFF],
               *kv_type = sl_kv_type_names[SL_KV_AUTO];
    sl_json limits = {0};
    sl_status st = sl_json_only(v, keys, SL_LEN(keys), err);
    if (st == SL_OK)
        st = sl_json_u64(v, "version", SL_JSON_REQUIRED, SL_PLAN_VERSION, SL_PLAN_VERSION, &version,
                         err);
    if (st == SL_OK) st = sl_plan_schedule_from_json(v, p, err);
    if (st == SL_OK) st = sl_json_string(v, "wire", SL_JSON_OPTIONAL, &wire, err);
    if (st == SL_OK) st = sl_json_says(v, "wire", sl_wire_format_parse(wire, &p->wire, err), err);
    if (st == SL_OK) st = sl_json_bool(v, "exact", SL_JSON_OPTIONAL, &p->exact, err);
    if (st == SL_OK) st = sl_json_u32(v, "epoch", SL_JSON_OPTIONAL, 1, UINT32_MAX, &p->epoch, err);
    if (st == SL_OK)
        st = sl_json_u32(v, "kv_replicas", SL_JSON_OPTIONAL, 0, 1, &p->kv_replicas, err);
    if (st == SL_OK) st = sl_json_bool(v, "segments", SL_JSON_OPTIONAL, &p->segments, err);
    if (st == SL_OK) st = sl_sides_from_json(v, p, err);
    if (st == SL_OK) st = sl_ranks_from_json(v, p, err);
    if (st == SL_OK)
        st = sl_json_u32(v, "threads", SL_JSON_OPTIONAL, 0, SL_PLAN_MAX_THREADS, &p->threads, err);
    if (st == SL_OK) st = read_pin(v, p, err);
    if (st == SL_OK) st = sl_json_bool(v, "numa", SL_JSON_OPTIONAL, &p->numa, err);
    if (st == SL_OK) st = sl_json_string(v, "progress", SL_JSON_OPTIONAL, &progress, err);
    if (st == SL_OK)
        st = sl_json_says(v, "progress", sl_progress_parse(progress, &p->pump, err), err);
    if (st == SL_OK) st = sl_json_string(v, "activations", SL_JSON_OPTIONAL, &activations, err);
    if (st == SL_OK)
        st = sl_json_says(v, "activations", sl_activations_parse(activations, &p->activations, err),
                          err);
    if (st == SL_OK) st = sl_json_string(v, "speculate", SL_JSON_OPTIONAL, &speculate, err);
    if (st == SL_OK)
        st = sl_json_says(v, "speculate", sl_speculate_parse(speculate, &p->speculate, err), err);
    if (st == SL_OK) st = sl_json_string(v, "kv_type", SL_JSON_OPTIONAL, &kv_type, err);
    if (st == SL_OK)
        st = sl_json_says(v, "kv_type", sl_kv_type_parse(kv_type, &p->kv_type, err), err);
    if (st == SL_OK) st = read_experiments(v, p, err);
    if (st == SL_OK) st = read_deployment(v, p, err);
    if (st == SL_OK) st = sl_json_object(v, "limits", SL_JSON_OPTIONAL, &limits, err);
    return st == SL_OK ? read_limits(limits, p, err) : st;
}

static sl_status check_roles(const sl_plan *p, bool all_there, sl_err *err) {
    uint32_t attention = 0, expert = 0, both = 0, there = 0, side = 0, prompts = 0;
    for (uint32_t i = 0; i < p->n_workers; i++) {
        uint32_t r = p->worker[i].roles;
        if (r == 0 && all_there) return sl_fail(err, SL_ERR_ARG, "plan: worker %u needs a role", i);
        if (p->worker[i].spare) r = 0;
        there += r != 0;
        attention += (r & SL_ROLE_ATTENTION) && !p->worker[i].prefill;
        expert += (r & SL_ROLE_EXPERT) && !p->worker[i].prefill;
        both += r == (SL_ROLE_ATTENTION | SL_ROLE_EXPERT);
        side += p->worker[i].prefill;
        prompts += r == (SL_ROLE_ATTENTION | SL_ROLE_EXPERT) && p->worker[i].prefill;
    }
    if (!attention || !expert)
        return sl_fail(err, SL_ERR_ARG,
                       "plan: %u attention and %u expert workers, one of each is "
                       "the least",
                       attention, expert);
    const sl_schedule_traits *t = sl_schedule_traits_of(p->schedule);
    if (t->sides == SL_SIDES_TOGETHER && both != there)
        return sl_fail(err, SL_ERR_ARG,
                       "plan: schedule %s is colocated, %u of %u workers do not have both roles",
                       t->name, there - both, there);
    const bool as_ep = prompts == side; /* what the side for prompts sees */
    if (t->sides == SL_SIDES_APART && both != (as_ep ? prompts : 0))
        return sl_fail(err, SL_ERR_ARG, "plan: schedule %s keeps roles apart, %u workers have both",
                       t->name, as_ep ? both - prompts : both);
    return SL_OK;
}

/* Who hosts what, from the workers' lists or from "placement"; neither: contiguous. */
static sl_status read_placement(sl_json v, const sl_model_spec *m, const uint32_t *owner,
                                bool any_experts, sl_plan *p, sl_err *err) {
    sl_json placement = {0};
    sl_status st = sl_json_array(v, "placement", SL_JSON_OPTIONAL, &placement, err);
    if (st != SL_OK) return st;
    if (placement.value && any_experts)
        return sl_json_fail(placement, NULL, err, SL_ERR_ARG,
                            "workers that list experts and a placement exclude each other");
    if (placement.value) return sl_placement_from_json(placement, m->n_moe, p, &p->place, err);
    if (!any_experts) return sl_placement_spread(false, p, err);
    for (uint32_t e = 0; e < p->n_experts; e++) {
        if (owner[e] == NOBODY)
            return sl_fail(err, SL_ERR_INFEASIBLE, "plan: no worker hosts expert %u", e);
    }
    return sl_placement_of_owners(owner, p->n_experts, &p->place, err);
}

static sl_status read_workers(sl_json v, sl_json workers, const sl_model_spec *m, bool all_there,
                              sl_plan *p, sl_err *err) {
    bool any_experts = false;
    uint32_t *owner = sl_alloc(p->n_experts, sizeof *owner);
    sl_status st = owner ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "plan of %u experts", p->n_experts);
    if (owner) memset(owner, 0xFF, p->n_experts * sizeof *owner);
    for (uint32_t i = 0; st == SL_OK && i < p->n_workers; i++)
        st = read_worker(sl_json_at(workers, i), i, all_there, p, owner, &any_experts, err);
    if (st == SL_OK) st = check_roles(p, all_there, err);
    if (st == SL_OK) st = read_placement(v, m, owner, any_experts, p, err);
    if (st == SL_OK) st = sl_plan_spread_prefill(p, err);
    sl_free(owner);
    return st;
}

static sl_status check(const sl_plan *p, const sl_model_spec *m, bool all_there, sl_err *err);

static sl_status from_json(sl_json v, const sl_model_spec *m, bool all_there, sl_plan *out,
                           sl_err *err) {
    sl_plan p = {0};
    sl_json workers;
    sl_status st = sl_json_array(v, "workers", SL_JSON_REQUIRED, &workers, err);
    if (st != SL_OK) return st;
    size_t n = sl_json_count(workers);
    st = plan_init(m, (uint32_t)SL_MIN(n, SL_MAX_WORKERS + 1), &p, err);
    p.n_pages = 0;
    if (st == SL_OK) st = read_scalars(v, &p, err);
    if (st == SL_OK) st = read_workers(v, workers, m, all_there, &p, err);
    if (st == SL_OK && p.n_pages == 0) p.n_pages = sl_plan_usual_pages(&p, m);
    if (!all_there) p.kv_type = sl_plan_kv_type(&p); /* it runs: nobody will say more */
    if (st == SL_OK) st = check(&p, m, all_there, err);
    if (st == SL_OK)
        *out = p;
    else
        sl_plan_free(&p);
    return st;
}

sl_status sl_plan_from_json(sl_json v, const sl_model_spec *m, sl_plan *out, sl_err *err) {
    return from_json(v, m, true, out, err);
}

sl_status sl_plan_from_message(sl_json v, const sl_model_spec *m, sl_plan *out, sl_err *err) {
    return from_json(v, m, false, out, err);
}

sl_status sl_plan_parse(sl_span bytes, const char *name, const sl_model_spec *m, sl_plan *out,
                        sl_err *err) {
    sl_json_doc *doc = NULL;
    sl_status st = sl_json_parse(name, bytes, &doc, err);
    if (st == SL_OK) st = sl_plan_from_json(sl_json_root(doc), m, out, err);
    sl_json_doc_free(doc);
    return st;
}

sl_status sl_plan_read(const char *path, const sl_model_spec *m, sl_plan *out, sl_err *err) {
    sl_json_doc *doc = NULL;
    sl_status st = sl_json_load(path, MAX_PLAN_BYTES, &doc, err);
    if (st == SL_OK) st = sl_plan_from_json(sl_json_root(doc), m, out, err);
    sl_json_doc_free(doc);
    return st;
}

static json_t *print_worker(const sl_plan *p, uint32_t i) {
    const sl_plan_worker *w = &p->worker[i];
    json_t *roles = json_array(), *experts = json_array();
    if (w->roles & SL_ROLE_ATTENTION) json_array_append_new(roles, json_string("attention"));
    if (w->roles & SL_ROLE_EXPERT) json_array_append_new(roles, json_string("expert"));
    for (uint32_t e = 0; e < p->n_experts; e++) {
        if (p->place.n_layers == 1 && sl_plan_is_host(p, 0, e, i))
            json_array_append_new(experts, json_integer(e));
    }
    json_t *row = json_pack("{s:i, s:o, s:o, s:s}", "id", (int)w->id, "roles", roles, "experts",
                            experts, "address", w->address);
    if (w->cpu >= 0) json_object_set_new(row, "cpu", json_integer(w->cpu));
    if (w->incarnation)
        json_object_set_new(row, "incarnation", json_integer((json_int_t)w->incarnation));
    if (w->spare) json_object_set_new(row, "spare", json_true());
    sl_gpu_print_worker(p, i, row);
    sl_ranks_print_worker(w, row);
    sl_sides_print_worker(w, row);
    return row;
}

static void print_experiments(const sl_plan *p, json_t *doc) {
    char skew[SL_SKEW_TEXT];
    if (p->kv_replicas) json_object_set_new(doc, "kv_replicas", json_integer(p->kv_replicas));
    json_object_set_new(doc, "kv_type", json_string(sl_kv_type_names[p->kv_type]));
    if (p->segments) json_object_set_new(doc, "segments", json_true());
    sl_sides_print(p, doc);
    if (p->speculate)
        json_object_set_new(doc, "speculate", json_string(sl_speculate_names[p->speculate]));
    if (sl_plan_has_gangs(p)) json_object_set_new(doc, "tp", sl_ranks_json(p));
    if (p->resolve) json_object_set_new(doc, "resolve", json_integer(p->resolve));
    if (p->schedule == SL_SCHED_HYBRID)
        json_object_set_new(doc, "rail_bytes", json_integer(p->rail_bytes));
    sl_pipeline_print(p, doc);
    if (p->pin_auto) json_object_set_new(doc, "pin", json_string("auto"));
    if (p->numa) json_object_set_new(doc, "numa", json_true());
    if (p->has_costs) json_object_set_new(doc, "costs", sl_costs_json(&p->costs));
    if (p->device.kind == SL_DEVICE_EMULATED)
        json_object_set_new(doc, "device", sl_device_json(&p->device));
    if (sl_plan_n_gpu(p)) json_object_set_new(doc, "gpu", sl_gpus_json(p));
    if (p->random_weights) json_object_set_new(doc, "random_weights", json_true());
    if (!p->skew.on) return;
    sl_route_skew_print(&p->skew, skew);
    json_object_set_new(doc, "route_skew", json_string(skew));
}

char *sl_plan_print(const sl_plan *p) {
    json_t *workers = json_array();
    for (uint32_t i = 0; i < p->n_workers; i++) json_array_append_new(workers, print_worker(p, i));
    json_t *doc = json_pack(
        "{s:i, s:I, s:s, s:i, s:i, s:s, s:s, s:s, s:i, s:f, s:s, s:b, s:o, "
        "s:{s:i, s:i, s:f, s:i, s:i}, s:i, s:s, s:s}",
        "version", (int)SL_PLAN_VERSION, "epoch", (json_int_t)p->epoch, "schedule",
        sl_schedule_name(p->schedule), "lanes", (int)p->lanes, "chunks", (int)p->chunks, "chunk_by",
        sl_chunking_names[p->chunking], "order", sl_order_names[p->order], "policy",
        sl_policy_names[p->policy], "lookahead", (int)p->lookahead, "delta", p->delta, "wire",
        sl_wire_format_name((sl_wire_format)p->wire), "exact", (int)p->exact, "workers", workers,
        "limits", "max_num_seqs", (int)p->max_num_seqs, "max_num_batched_tokens",
        (int)p->max_num_batched_tokens, "prefill_stretch", p->prefill_stretch, "context",
        (int)p->context, "kv_pages", (int)p->n_pages, "threads", (int)p->threads, "progress",
        progress_names[p->pump], "activations", sl_activations_names[p->activations]);
    json_t *placement = doc ? sl_placement_json(p) : NULL;
    if (placement) {
        size_t i;
        json_t *worker;
        json_array_foreach(workers, i, worker) json_object_del(worker, "experts");
        json_object_set_new(doc, "placement", placement);
    }
    if (doc) print_experiments(p, doc);
    char *text = doc ? json_dumps(doc, JSON_COMPACT) : NULL;
    char *copy = text ? sl_strdup(text) : NULL;
    free(text);
    json_decref(doc);
    return copy;
}

sl_status sl_plan_check_size(const sl_plan *p, const sl_model_spec *m, sl_err *err) {
    uint64_t senders = 0, rows = sl_plan_lane_rows(p);
    for (uint32_t i = 0; i < p->n_workers; i++)
        senders += (p->worker[i].roles & SL_ROLE_ATTENTION) != 0;
    if (senders * rows * m->top_k <= UINT32_MAX) return SL_OK;
    return sl_fail(err, SL_ERR_INFEASIBLE,
                   "plan: an expert worker would reserve %llu places, for %llu attention workers "
                   "with %llu rows (max_num_batched_tokens) of %u experts; limit %u",
                   (unsigned long long)(senders * rows * m->top_k), (unsigned long long)senders,
                   (unsigned long long)rows, m->top_k, UINT32_MAX);
}

/* The block that guesses is at an attention worker whole, cut by its ranks, or at their last. */
static sl_status check_mtp(const sl_plan *p, const sl_model_spec *m, sl_err *err) {
    const sl_arch *arch = sl_arch_find(m->arch);
    const char *name = sl_speculate_names[p->speculate];
    if (!sl_speculates_by_mtp(p->speculate)) return SL_OK;
    const bool described = !m->arch[0]; /* for the simulator alone */
    const bool known = described || (arch && sl_arch_tensor_of(arch, SL_ROLE_MTP_IN));
    if (m->n_mtp == 0 || !known)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "plan: speculate %s: the model has no block that predicts a further token "
                       "(num_nextn_predict_layers of config.json, nextn_predict_layers of GGUF)",
                       name);
    for (uint32_t i = 0; i < p->n_workers; i++) {
        const sl_device_spec device = sl_plan_device_of(p, i);
        const bool has = sl_device_is_cpu(&device) || sl_device_is_modelled(&device);
        if (p->worker[i].roles & SL_ROLE_ATTENTION && !has)
            return sl_fail(err, SL_ERR_UNSUPPORTED,
                           "plan: speculate %s: worker %u has attention on a GPU, which does not "
                           "have the block that guesses",
                           name, i);
    }
    return SL_OK;
}

/* What is drawn has to be what a model says. */
static sl_status check_speculate(const sl_plan *p, const sl_model_spec *m, sl_err *err) {
    if (!p->speculate) return SL_OK;
    sl_status st = check_mtp(p, m, err);
    if (st != SL_OK || !sl_device_is_modelled(&p->device) || p->device.text_period) return st;
    return sl_fail(
        err, SL_ERR_UNSUPPORTED,
        "plan: speculate %s: tokens of an emulated device follow no text, unless it repeats",
        sl_speculate_names[p->speculate]);
}

/* Copies need another worker to be at, and pages with something in them. */
static sl_status check_replicas(const sl_plan *p, bool all_there, sl_err *err) {
    uint32_t attention = 0;
    for (uint32_t i = 0; i < p->n_workers; i++)
        attention += (p->worker[i].roles & SL_ROLE_ATTENTION) && !p->worker[i].prefill;
    if (p->kv_replicas == 0) return SL_OK;
    if (sl_device_is_modelled(&p->device))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "plan: kv_replicas %u: an emulated device has no KV pages to copy",
                       p->kv_replicas);
    if (attention >= 2 || !all_there) return SL_OK;
    return sl_fail(err, SL_ERR_INFEASIBLE,
                   "plan: kv_replicas %u needs two attention workers, there is %u", p->kv_replicas,
                   attention);
}

static sl_status check_kv_type(const sl_plan *p, sl_err *err) {
    if (sl_plan_kv_type(p) == SL_KV_F32 || !sl_device_is_modelled(&p->device)) return SL_OK;
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "plan: kv_type %s (--kv-type): an emulated device has no KV pages",
                   sl_kv_type_names[p->kv_type]);
}

/* State of requests that is in no page stays where it is, at an attention worker on a CPU that has
 * no ranks. */
static sl_status check_linear(const sl_plan *p, const sl_model_spec *m, sl_err *err) {
    const char *what = NULL;
    if (m->n_linear == 0 || sl_device_is_modelled(&p->device)) return SL_OK;
    if (p->segments) what = "sums in segments (--segments)";
    if (sl_plan_ranks(p, SL_ROLE_ATTENTION) > 1) what = "gangs (--tp, --attention-tp)";
    if (sl_plan_pipeline(p) > 1) what = "pipelines (--pp)";
    if (p->kv_replicas) what = "copies of KV (--kv-replicas)";
    for (uint32_t i = 0; i < p->n_workers; i++) {
        const sl_device_spec device = sl_plan_device_of(p, i);
        if (p->worker[i].prefill) what = "workers for prompts (--prefill)";
        if (p->worker[i].roles & SL_ROLE_ATTENTION && !sl_device_is_cpu(&device))
            what = "attention on GPUs (--device, --attention-device)";
    }
    if (!what) return SL_OK;
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "plan: %s: %s has blocks of linear attention, whose state neither moves nor is "
                   "shared yet",
                   what, m->arch);
}

static sl_status check(const sl_plan *p, const sl_model_spec *m, bool all_there, sl_err *err) {
    sl_status st = check_roles(p, all_there, err);
    if (st == SL_OK) st = sl_ranks_check(p, err);
    if (st == SL_OK) st = sl_gpus_check(p, err);
    if (st == SL_OK) st = sl_plan_check_schedule(p, err);
    if (st == SL_OK) st = check_speculate(p, m, err);
    if (st == SL_OK) st = check_replicas(p, all_there, err);
    if (st == SL_OK) st = check_kv_type(p, err);
    if (st == SL_OK) st = sl_plan_check_numa(p, err);
    if (st == SL_OK) st = sl_sides_check(p, err);
    if (st == SL_OK) st = check_linear(p, m, err);
    if (st != SL_OK) return st;
    if (m->weightless && !p->random_weights && !sl_device_is_modelled(&p->device))
        return sl_fail(err, SL_ERR_NOTFOUND,
                       "the model's folder has no model.safetensors and no "
                       "model.safetensors.index.json: only an emulated device runs it (--device), "
                       "or sluice bench "
                       "--random-weights");
    if (p->random_weights && (sl_plan_has_gangs(p) || p->segments))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "plan: random weights are not cut: without --tp and --segments");
    if (p->n_experts != m->n_experts)
        return sl_fail(err, SL_ERR_ARG, "plan: %u experts, the model has %u", p->n_experts,
                       m->n_experts);
    if (sl_plan_pipeline(p) > m->n_layers)
        return sl_fail(err, SL_ERR_ARG,
                       "plan: pipelines of %u ranks (pp, --pp): the model has %u blocks",
                       sl_plan_pipeline(p), m->n_layers);
    if (p->context > m->max_position)
        return sl_fail(err, SL_ERR_ARG, "plan: context %u, the model's limit is %u", p->context,
                       m->max_position);
    if (p->n_pages < sl_kv_pages_for(p->context))
        return sl_fail(err, SL_ERR_INFEASIBLE,
                       "plan: %u KV pages of %u positions hold no request of context %u",
                       p->n_pages, SL_KV_PAGE_TOKENS, p->context);
    /* One position a returned row under --exact: a reply may be top_k times as long as its request.
     */
    uint64_t rows = (uint64_t)sl_plan_lane_rows(p) * m->top_k;
    uint64_t bytes = rows * (m->d_model * 4ull + 32);
    if (rows > SL_WIRE_MAX_ROWS || bytes > SL_WIRE_MAX_BYTES - 65536)
        return sl_fail(err, SL_ERR_INFEASIBLE,
                       "plan: max_num_batched_tokens %u makes messages of up to %llu rows and %llu "
                       "bytes, limits %u and %u",
                       p->max_num_batched_tokens, (unsigned long long)rows,
                       (unsigned long long)bytes, SL_WIRE_MAX_ROWS, SL_WIRE_MAX_BYTES);
    return SL_OK;
}

sl_status sl_plan_check(const sl_plan *p, const sl_model_spec *m, sl_err *err) {
    sl_status st = check(p, m, true, err);
    return st == SL_OK ? sl_ranks_check_link(p, err) : st;
}
