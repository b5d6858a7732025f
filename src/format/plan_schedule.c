/* What of a plan is its schedule: words, defaults, JSON, limits. */
#include "format/plan_schedule.h"

#include "format/plan_json.h"
#include "quant/wire_rows.h"
#include "spec/limits.h"

/* ---- words ---- */

sl_status sl_chunking_parse(const char *name, sl_chunking *out, sl_err *err) {
    size_t i;
    sl_status st = sl_name_parse("chunk_by", sl_chunking_names, SL_CHUNKING_COUNT, name, &i, err);
    if (st == SL_OK) *out = (sl_chunking)i;
    return st;
}

sl_status sl_order_parse(const char *name, sl_order *out, sl_err *err) {
    size_t i;
    sl_status st = sl_name_parse("order", sl_order_names, SL_ORDER_COUNT, name, &i, err);
    if (st == SL_OK) *out = (sl_order)i;
    return st;
}

sl_status sl_policy_parse(const char *name, sl_policy *out, sl_err *err) {
    size_t i;
    sl_status st = sl_name_parse("policy", sl_policy_names, SL_POLICY_COUNT, name, &i, err);
    if (st == SL_OK) *out = (sl_policy)i;
    return st;
}

void sl_plan_set_schedule(sl_plan *p, sl_schedule s) {
    const sl_schedule_traits *t = sl_schedule_traits_of(s);
    p->schedule = s;
    p->lanes = t->lanes;
    p->chunks = t->chunks;
    p->chunking = t->chunking;
    p->order = SL_ORDER_ASAS;
    p->policy = SL_POLICY_DEFRAG;
    p->lookahead = SL_PLAN_LOOKAHEAD;
    p->delta = SL_PLAN_DELTA;
    p->rail_bytes = SL_PLAN_RAIL_BYTES;
    p->resolve = 0;
}

/* ---- JSON ---- */

sl_status sl_plan_schedule_from_json(sl_json v, sl_plan *p, sl_err *err) {
    const char *schedule = "", *chunking = "", *order = "asas", *policy = "defrag";
    sl_schedule s = SL_SCHED_EP;
    sl_status st = sl_json_string(v, "schedule", SL_JSON_REQUIRED, &schedule, err);
    if (st == SL_OK) st = sl_json_says(v, "schedule", sl_schedule_parse(schedule, &s, err), err);
    if (st != SL_OK) return st;
    sl_plan_set_schedule(p, s);
    st = sl_json_u32(v, "lanes", SL_JSON_OPTIONAL, 1, SL_PLAN_MAX_LANES, &p->lanes, err);
    if (st == SL_OK)
        st = sl_json_u32(v, "chunks", SL_JSON_OPTIONAL, 1, SL_PLAN_MAX_CHUNKS, &p->chunks, err);
    if (st == SL_OK) st = sl_json_string(v, "chunk_by", SL_JSON_OPTIONAL, &chunking, err);
    if (st == SL_OK && chunking[0])
        st = sl_json_says(v, "chunk_by", sl_chunking_parse(chunking, &p->chunking, err), err);
    if (st == SL_OK) st = sl_json_string(v, "order", SL_JSON_OPTIONAL, &order, err);
    if (st == SL_OK) st = sl_json_says(v, "order", sl_order_parse(order, &p->order, err), err);
    if (st == SL_OK) st = sl_json_string(v, "policy", SL_JSON_OPTIONAL, &policy, err);
    if (st == SL_OK) st = sl_json_says(v, "policy", sl_policy_parse(policy, &p->policy, err), err);
    if (st == SL_OK)
        st = sl_json_u32(v, "lookahead", SL_JSON_OPTIONAL, 0, 1024, &p->lookahead, err);
    if (st == SL_OK) st = sl_json_f64(v, "delta", SL_JSON_OPTIONAL, 1e-6, 1, &p->delta, err);
    if (st == SL_OK)
        st = sl_json_u32(v, "resolve", SL_JSON_OPTIONAL, 0, SL_PLAN_MAX_RESOLVE, &p->resolve, err);
    uint32_t least = 0;
    if (st == SL_OK)
        st = sl_json_u32(v, "rail_bytes", SL_JSON_OPTIONAL, 1, SL_WIRE_MAX_BYTES, &least, err);
    if (st == SL_OK && least && s != SL_SCHED_HYBRID)
        return sl_json_fail(v, "rail_bytes", err, SL_ERR_ARG, "it is of schedule hybrid, not %s",
                            schedule);
    if (least) p->rail_bytes = least;
    return st;
}

/* ---- what can be ---- */

/* Lanes and chunks are what the schedule is made of: others have one of each. */
static sl_status check_parts(const sl_plan *p, sl_err *err) {
    const sl_schedule_traits *t = sl_schedule_traits_of(p->schedule);
    uint32_t lanes = t->lanes > 1 ? SL_PLAN_MAX_LANES : 1,
             chunks = t->chunks > 1 ? SL_PLAN_MAX_CHUNKS : 1;
    if (p->lanes < 1 || p->lanes > lanes)
        return sl_fail(err, SL_ERR_ARG, "plan: schedule %s with %u lanes, 1 to %u are possible",
                       t->name, p->lanes, lanes);
    if (p->chunks < 1 || p->chunks > chunks)
        return sl_fail(err, SL_ERR_ARG, "plan: schedule %s with %u chunks, 1 to %u are possible",
                       t->name, p->chunks, chunks);
    if (p->max_num_batched_tokens < p->lanes)
        return sl_fail(err, SL_ERR_ARG, "plan: max_num_batched_tokens %u for %u lanes",
                       p->max_num_batched_tokens, p->lanes);
    return SL_OK;
}

/* FinDEP's model has attention and experts apart. */
static sl_status check_apart(const sl_plan *p, sl_err *err) {
    for (uint32_t i = 0; i < p->n_workers; i++) {
        if (p->worker[i].roles == (SL_ROLE_ATTENTION | SL_ROLE_EXPERT))
            return sl_fail(err, SL_ERR_UNSUPPORTED,
                           "plan: resolve %u (--resolve): worker %u has attention and experts, "
                           "FinDEP's model has them apart",
                           p->resolve, i);
    }
    return SL_OK;
}

/* What is chosen anew is findep's, between workers with one role each, or the groups of eps, by
 * which a row's experts are summed. Tasks are timed one by one. */
static sl_status check_resolve(const sl_plan *p, sl_err *err) {
    if (!p->resolve) return SL_OK;
    const sl_anew anew = sl_schedule_traits_of(p->schedule)->anew;
    if (anew == SL_ANEW_NOTHING)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "plan: resolve %u (--resolve) is for schedules findep and eps, not %s",
                       p->resolve, sl_schedule_name(p->schedule));
    if (anew == SL_ANEW_GROUPS && !sl_plan_regroups(p))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "plan: resolve %u (--resolve): %s sums a row's experts by groups, so other "
                       "groups change bits but with exact (--exact)",
                       p->resolve, sl_schedule_name(p->schedule));
    if (sl_plan_pipeline(p) > 1)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "plan: resolve %u (--resolve): steps pass the ranks of a pipeline (--pp %u) "
                       "at once, and no task has a time of its own",
                       p->resolve, sl_plan_pipeline(p));
    return anew == SL_ANEW_LANES ? check_apart(p, err) : SL_OK;
}

sl_status sl_plan_check_schedule(const sl_plan *p, sl_err *err) {
    sl_status st = check_parts(p, err);
    return st == SL_OK ? check_resolve(p, err) : st;
}
