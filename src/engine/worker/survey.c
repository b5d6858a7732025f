/* ECHO and MEASURE, as a worker answers them. */
#include "engine/worker/survey.h"

#include "base/clock.h"
#include "base/log.h"
#include "engine/attn/keep.h"
#include "engine/measure/survey.h"
#include "engine/worker/worker.h"
#include "model/model.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SURVEYED_NS 50000000u /* so long after an ECHO the next one is expected */

sl_status sl_worker_on_echo(sl_worker *w, const sl_wire_header *h, sl_buf **payload, sl_err *err) {
    if (w->planned || h->bytes > SL_ECHO_MAX)
        return sl_fail(err, SL_ERR_PROTOCOL, "ECHO of %u bytes %s", h->bytes,
                       w->planned ? "after the plan" : "is too long");
    const sl_wire_header back = {.kind = SL_MSG_ECHO, .number = h->number};
    sl_buf *b = *payload;
    *payload = NULL;
    w->echoed_ns = sl_now_ns();
    sl_worker_send(w, SL_NO_WORKER, back, b);
    return SL_OK;
}

bool sl_worker_is_surveyed(const sl_worker *w) {
    return !w->planned && w->echoed_ns && sl_now_ns() - w->echoed_ns < SURVEYED_NS;
}

/* How many cards --rails names, with that of the first rank; 1: rails cannot be had here. */
static uint32_t count_rails(const sl_worker_opts *o) {
    uint32_t n = 1;
    size_t len;
    if (!o->rails || (o->advertise && o->advertise[0])) return 1;
    while (n < SL_MAX_RANKS && sl_rank_address(o->rails, n - 1, &len)) n++;
    return n;
}

static void measure(sl_worker *w, const sl_survey_question *q, sl_survey_answer *a) {
    const sl_worker_opts *o = w->opts;
    const char *folder = o->model_folder && o->model_folder[0] ? o->model_folder : q->model;
    sl_model_spec spec;
    sl_err err;
    sl_status st = sl_model_read_spec(folder, &spec, NULL, &err);
    spec.kv_type = q->kv_type;
    const sl_measure_opts mo = {.model_folder = folder,
                                .m = &spec,
                                .isa = o->isa,
                                .threads = a->threads,
                                .activations = q->activations,
                                .roles = q->roles,
                                .tick = sl_worker_tick,
                                .ctx = w,
                                .rows = q->rows,
                                .keys = q->keys};
    if (st == SL_OK && spec.weightless)
        st = sl_fail(&err, SL_ERR_UNSUPPORTED, "%s has no weights", folder);
    if (st == SL_OK) st = sl_measure_stages(&mo, &a->costs, &err);
    if (st == SL_OK) return;
    snprintf(a->why, sizeof a->why, "%s", err.msg);
    sl_log(SL_LOG_WARN, "worker", "its stages are not measured: %s", err.msg);
}

/* The answer, measured now unless the same was asked before. NULL: no memory. */
static char *answer_to(sl_worker *w, const char *question, const sl_survey_question *q) {
    const char *known = w->keep ? sl_keep_answer(w->keep, question) : NULL;
    if (known) return sl_strdup(known);
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    sl_survey_answer a = {.threads = w->opts->threads ? w->opts->threads : q->threads,
                          .rails = count_rails(w->opts),
                          .machine = sl_clock_id() & INT64_MAX,
                          .cores = cores > 0 ? (uint32_t)cores : 1};
    if (q->roles) measure(w, q, &a);
    char *text = sl_survey_answer_print(&a);
    if (text && w->keep && !a.why[0]) sl_keep_note_answer(w->keep, question, text);
    return text;
}

sl_status sl_worker_on_measure(sl_worker *w, sl_span payload, sl_err *err) {
    sl_json_doc *doc = NULL;
    sl_survey_question q;
    sl_status st = w->planned ? sl_fail(err, SL_ERR_PROTOCOL, "MEASURE after the plan")
                              : sl_survey_question_read(payload, &doc, &q, err);
    char *question = st == SL_OK ? sl_survey_question_print(&q) : NULL;
    char *answer = question ? answer_to(w, question, &q) : NULL;
    const size_t len = answer ? strlen(answer) : 0;
    sl_buf *b = answer ? sl_net_buf_take(w->net, len) : NULL;
    if (b) {
        memcpy(b->data, answer, len);
        sl_worker_send(w, SL_NO_WORKER, (sl_wire_header){.kind = SL_MSG_COSTS}, b);
    }
    if (st == SL_OK && !b) st = sl_fail(err, SL_ERR_NOMEM, "answer to MEASURE");
    sl_free(question);
    sl_free(answer);
    sl_json_doc_free(doc);
    return st;
}
