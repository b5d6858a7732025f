/* Runs of given stage times, from JSON, for the simulator. */
#include "format/stage_run_file.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "format/json.h"
#include "spec/schedules.h"

#define MAX_BYTES (1u << 20)

/* One of n words, in upper or lower case; *out stays when the field is missing. */
static sl_status read_word(sl_json v, const char *key, sl_json_need need, const char *const *words,
                           uint32_t n, uint32_t *out, sl_err *err) {
    const char *text = NULL;
    char all[128] = "";
    sl_status st = sl_json_string(v, key, need, &text, err);
    if (st != SL_OK || !text) return st;
    for (uint32_t i = 0; i < n; i++) {
        if (strcasecmp(text, words[i]) == 0) {
            *out = i;
            return SL_OK;
        }
        size_t len = strlen(all);
        snprintf(all + len, sizeof all - len, "%s%s", i ? ", " : "", words[i]);
    }
    return sl_json_fail(v, key, err, SL_ERR_ARG, "'%.32s' is not one of %s", text, all);
}

static sl_status read_names(sl_json v, sl_stage_run *r, sl_err *err) {
    static const char *const duplexes[] = {"full", "half"};
    uint32_t schedule = 0, order = 0, duplex = 0, policy = 0;
    sl_status st = read_word(v, "schedule", SL_JSON_REQUIRED, sl_schedule_names, SL_SCHED_COUNT,
                             &schedule, err);
    if (st == SL_OK)
        st = read_word(v, "order", SL_JSON_OPTIONAL, sl_order_names, SL_ORDER_COUNT, &order, err);
    if (st == SL_OK)
        st = read_word(v, "duplex", SL_JSON_OPTIONAL, duplexes, SL_LEN(duplexes), &duplex, err);
    if (st == SL_OK)
        st = read_word(v, "policy", SL_JSON_OPTIONAL, sl_policy_names, SL_POLICY_COUNT, &policy,
                       err);
    r->schedule = (sl_schedule)schedule;
    r->order = (sl_order)order;
    r->half_duplex = duplex == 1;
    r->policy = (sl_policy)policy;
    return st;
}

static sl_status read_counts(sl_json v, sl_stage_run *r, sl_err *err) {
    const struct {
        const char *key;
        uint32_t min, max, *to;
        sl_json_need need;
    } rows[] = {
        {"layers", 1, SL_STAGE_MAX_LAYERS, &r->layers, SL_JSON_REQUIRED},
        {"lanes", 1, SL_PLAN_MAX_LANES, &r->lanes, SL_JSON_OPTIONAL},
        {"chunks", 1, SL_PLAN_MAX_CHUNKS, &r->chunks, SL_JSON_OPTIONAL},
        {"iterations", 1, SL_STAGE_MAX_ITERATIONS, &r->iterations, SL_JSON_OPTIONAL},
        {"lookahead", 0, UINT32_MAX, &r->lookahead, SL_JSON_OPTIONAL},
    };
    sl_status st = SL_OK;
    for (size_t i = 0; st == SL_OK && i < SL_LEN(rows); i++) {
        uint64_t n = *rows[i].to;
        st = sl_json_u64(v, rows[i].key, rows[i].need, rows[i].min, rows[i].max, &n, err);
        *rows[i].to = (uint32_t)n;
    }
    return st;
}

static sl_status read_times(sl_json v, sl_stage_run *r, sl_err *err) {
    static const char *const keys[SL_STAGE_COUNT] = {"attn", "shared", "a2e", "expert", "e2a"};
    sl_json times = {0};
    sl_status st = sl_json_object(v, "times", SL_JSON_REQUIRED, &times, err);
    if (st == SL_OK) st = sl_json_only(times, keys, SL_STAGE_COUNT, err);
    for (int i = 0; st == SL_OK && i < SL_STAGE_COUNT; i++)
        st = sl_json_f64(times, keys[i], SL_JSON_OPTIONAL, 0, SL_STAGE_MAX_MS, &r->ms[i], err);
    return st;
}

static sl_status read_run(sl_json v, sl_stage_run *out, sl_err *err) {
    static const char *const keys[] = {"schedule", "layers",     "lanes",  "chunks",
                                       "order",    "iterations", "duplex", "times",
                                       "policy",   "lookahead",  "delta",  "fixed_list"};
    sl_stage_run r = {.lanes = 1, .chunks = 1, .iterations = 1, .lookahead = 2, .delta = 1};
    if (sl_json_kind_of(v) != SL_JSON_OBJECT)
        return sl_json_fail(v, NULL, err, SL_ERR_ARG,
                            "an object with schedule, layers, times expected");
    sl_status st = sl_json_only(v, keys, SL_LEN(keys), err);
    if (st == SL_OK) st = read_names(v, &r, err);
    if (st == SL_OK) st = read_counts(v, &r, err);
    if (st == SL_OK) st = sl_json_f64(v, "delta", SL_JSON_OPTIONAL, 0, 1, &r.delta, err);
    if (st == SL_OK) st = sl_json_bool(v, "fixed_list", SL_JSON_OPTIONAL, &r.fixed_list, err);
    if (st == SL_OK) st = read_times(v, &r, err);
    if (st == SL_OK) *out = r;
    return st;
}

sl_status sl_stage_run_load(const char *path, sl_stage_run *out, sl_err *err) {
    sl_json_doc *doc = NULL;
    sl_status st = sl_json_load(path, MAX_BYTES, &doc, err);
    if (st == SL_OK) st = read_run(sl_json_root(doc), out, err);
    sl_json_doc_free(doc);
    return st;
}

sl_status sl_stage_run_parse(const char *name, sl_span text, sl_stage_run *out, sl_err *err) {
    sl_json_doc *doc = NULL;
    sl_status st = sl_json_parse(name, text, &doc, err);
    if (st == SL_OK) st = read_run(sl_json_root(doc), out, err);
    sl_json_doc_free(doc);
    return st;
}
