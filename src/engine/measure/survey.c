/* MEASURE and COSTS as they travel. */
#include "engine/measure/survey.h"

#include "base/mem.h"
#include "format/json.h"
#include "format/plan_json.h"
#include "format/plan_lab.h"
#include "net/wire.h"
#include "spec/limits.h"
#include "spec/plan.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BYTES ((size_t)1 << 20) /* of a parsed message */

/* jansson's text as one of ours. Takes the reference. */
static char *text_of(json_t *doc) {
    char *text = doc ? json_dumps(doc, JSON_COMPACT) : NULL;
    char *own = text ? sl_strdup(text) : NULL;
    free(text);
    json_decref(doc);
    return own;
}

char *sl_survey_question_print(const sl_survey_question *q) {
    return text_of(json_pack("{s:s, s:I, s:I, s:I, s:I, s:s, s:s}", "model", q->model, "roles",
                             (json_int_t)q->roles, "rows", (json_int_t)q->rows, "keys",
                             (json_int_t)q->keys, "threads", (json_int_t)q->threads, "activations",
                             sl_activations_names[q->activations], "kv_type",
                             sl_kv_type_names[q->kv_type]));
}

char *sl_survey_answer_print(const sl_survey_answer *a) {
    char why[sizeof a->why]; /* of plain letters: a path may be of any bytes, and cut anywhere */
    sl_wire_text((sl_span){(const uint8_t *)a->why, strlen(a->why)}, why, sizeof why);
    if (why[0])
        return text_of(
            json_pack("{s:s, s:I}", "why", why, "rails", (json_int_t)SL_MAX(a->rails, 1u)));
    return text_of(json_pack("{s:o, s:I, s:I, s:I, s:I}", "costs", sl_costs_json(&a->costs),
                             "threads", (json_int_t)a->threads, "rails", (json_int_t)a->rails,
                             "machine", (json_int_t)(a->machine & INT64_MAX), "cores",
                             (json_int_t)a->cores));
}

sl_status sl_survey_question_read(sl_span in, sl_json_doc **doc, sl_survey_question *out,
                                  sl_err *err) {
    static const char *const keys[] = {"model",   "roles",       "rows",   "keys",
                                       "threads", "activations", "kv_type"};
    const char *activations = "", *kv_type = "";
    sl_survey_question q = {0};
    sl_status st = sl_json_parse_within("what is to be measured", in, MOST_BYTES, doc, err);
    if (st != SL_OK) return st;
    const sl_json v = sl_json_root(*doc);
    st = sl_json_only(v, keys, SL_LEN(keys), err);
    if (st == SL_OK) st = sl_json_string(v, "model", SL_JSON_REQUIRED, &q.model, err);
    if (st == SL_OK) st = sl_json_u32(v, "roles", SL_JSON_REQUIRED, 0, 3, &q.roles, err);
    if (st == SL_OK)
        st = sl_json_u32(v, "rows", SL_JSON_REQUIRED, 1, SL_WIRE_MAX_ROWS, &q.rows, err);
    if (st == SL_OK) st = sl_json_u32(v, "keys", SL_JSON_REQUIRED, 1, UINT32_MAX, &q.keys, err);
    if (st == SL_OK)
        st = sl_json_u32(v, "threads", SL_JSON_REQUIRED, 1, SL_PLAN_MAX_THREADS, &q.threads, err);
    if (st == SL_OK) st = sl_json_string(v, "activations", SL_JSON_REQUIRED, &activations, err);
    if (st == SL_OK)
        st = sl_json_says(v, "activations", sl_activations_parse(activations, &q.activations, err),
                          err);
    if (st == SL_OK) st = sl_json_string(v, "kv_type", SL_JSON_REQUIRED, &kv_type, err);
    if (st == SL_OK)
        st = sl_json_says(v, "kv_type", sl_kv_type_parse(kv_type, &q.kv_type, err), err);
    if (st == SL_OK) *out = q;
    return st;
}

sl_status sl_survey_answer_read(sl_span in, sl_survey_answer *out, sl_err *err) {
    static const char *const keys[] = {"costs", "threads", "rails", "machine", "cores", "why"};
    sl_survey_answer a = {.threads = 1, .rails = 1, .cores = 1};
    const char *why = "";
    sl_json costs = {0};
    sl_json_doc *doc = NULL;
    sl_status st = sl_json_parse_within("what a worker measured", in, MOST_BYTES, &doc, err);
    const sl_json v = st == SL_OK ? sl_json_root(doc) : (sl_json){0};
    if (st == SL_OK) st = sl_json_only(v, keys, SL_LEN(keys), err);
    if (st == SL_OK) st = sl_json_string(v, "why", SL_JSON_OPTIONAL, &why, err);
    if (st == SL_OK)
        st = sl_json_object(v, "costs", why[0] ? SL_JSON_OPTIONAL : SL_JSON_REQUIRED, &costs, err);
    if (st == SL_OK && costs.value) st = sl_costs_from_json(costs, &a.costs, err);
    if (st == SL_OK)
        st = sl_json_u32(v, "threads", SL_JSON_OPTIONAL, 1, SL_PLAN_MAX_THREADS, &a.threads, err);
    if (st == SL_OK) st = sl_json_u32(v, "rails", SL_JSON_OPTIONAL, 1, SL_MAX_RANKS, &a.rails, err);
    if (st == SL_OK)
        st = sl_json_u64(v, "machine", SL_JSON_OPTIONAL, 0, INT64_MAX, &a.machine, err);
    if (st == SL_OK) st = sl_json_u32(v, "cores", SL_JSON_OPTIONAL, 1, UINT32_MAX, &a.cores, err);
    if (st == SL_OK) {
        sl_wire_text((sl_span){(const uint8_t *)why, strlen(why)}, a.why, sizeof a.why);
        *out = a;
    }
    sl_json_doc_free(doc);
    return st;
}

static void dearer(double of, double *all) {
    *all = SL_MAX(*all, of);
}

void sl_survey_dearest(const sl_costs *of, sl_costs *all) {
    for (int i = 0; i < SL_COST_COUNT; i++) {
        const sl_stage_cost *a = &of->stage[i];
        sl_stage_cost *b = &all->stage[i];
        dearer(a->fixed_us, &b->fixed_us);
        dearer(a->floor_us, &b->floor_us);
        dearer(a->slope_us, &b->slope_us);
        dearer(a->row_us, &b->row_us);
        dearer(a->key_us, &b->key_us);
        dearer(a->task_us, &b->task_us);
    }
    dearer(of->link.alpha_us, &all->link.alpha_us);
    dearer(of->link.byte_us, &all->link.byte_us);
}
