/* What the coordinator asks a worker on another machine before it gets a plan, and what that
 * answers: MEASURE and COSTS, in JSON (docs/protocol.md). Thread: owner. */
#ifndef SL_ENGINE_SURVEY_H
#define SL_ENGINE_SURVEY_H

#include "base/span.h"
#include "base/status.h"
#include "engine/measure/measure.h"
#include "format/json.h"
#include "spec/kv_type.h"

/* A message of ECHO goes there and comes back as it was, with at most so many bytes. */
#define SL_ECHO_MAX SL_MEASURE_MOST

/* MEASURE: the stages of a worker with these roles; no roles: only where it runs. */
typedef struct sl_survey_question {
    const char *model; /* the coordinator's path; a worker's own goes first */
    uint32_t roles, rows, keys, threads;
    sl_activations activations;
    sl_kv_type kv_type;
} sl_survey_question;

/* COSTS: what they cost there, or why that is not known. */
typedef struct sl_survey_answer {
    sl_costs costs;
    uint32_t threads; /* they were measured with */
    uint32_t rails;   /* network cards for its ranks; 1: it was told of none */
    /* Workers with the same number share a machine's cores; 0: not known. */
    uint64_t machine;
    uint32_t cores;
    char why[160]; /* not empty: costs are not known */
} sl_survey_answer;

/* Texts of JSON, for sl_free; NULL: no memory. */
char *sl_survey_question_print(const sl_survey_question *q) SL_MUST_CHECK;
char *sl_survey_answer_print(const sl_survey_answer *a) SL_MUST_CHECK;

/* SL_ERR_* names what is wrong. The question's texts are owned by *doc, which the caller frees
 * whatever is returned. */
sl_status sl_survey_question_read(sl_span in, sl_json_doc **doc, sl_survey_question *out,
                                  sl_err *err) SL_MUST_CHECK;
sl_status sl_survey_answer_read(sl_span in, sl_survey_answer *out, sl_err *err) SL_MUST_CHECK;

/* The dearer of each kind of cost, of two workers that wait for each other. */
void sl_survey_dearest(const sl_costs *of, sl_costs *all);

#endif
