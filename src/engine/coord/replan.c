/* The coordinator's side of a change of plans (sched/change.h): tells workers, hears them, answers
 * who asked. */
#include "engine/coord/coord_int.h"

#include "base/log.h"
#include "format/placement.h"
#include "format/plan_json.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- plans as they travel ---- */

/* {"you": .., "model": .., "trace_events": .., "plan": ..} */
sl_buf *sl_plan_message(sl_engine *e, const char *plan, uint32_t you) {
    uint64_t events = e->collect ? e->o.trace_events : 0;
    json_t *doc = plan ? json_pack("{s:i, s:s, s:I}", "you", (int)you, "model", e->model_folder,
                                   "trace_events", (json_int_t)events)
                       : NULL;
    char *own = doc ? json_dumps(doc, JSON_COMPACT) : NULL;
    size_t n = own ? strlen(own) - 1 : 0, len = own ? n + strlen(",\"plan\":}") + strlen(plan) : 0;
    sl_buf *b = own ? sl_net_buf_take(e->net, len + 1) : NULL;
    if (b) {
        snprintf((char *)b->data, len + 1, "%.*s,\"plan\":%s}", (int)n, own, plan);
        b->len = len;
    }
    free(own);
    json_decref(doc);
    return b;
}

/* A lost worker is reported by its connection. */
static void tell(sl_engine *e, uint32_t worker, uint16_t kind, uint32_t epoch, sl_buf *payload) {
    const sl_wire_header h = {.kind = kind, .epoch = epoch};
    sl_net_send(e->net, e->worker[worker].conn, h, payload);
}

static void tell_plan(sl_engine *e, const char *plan, uint32_t worker) {
    sl_buf *b = sl_plan_message(e, plan, worker);
    if (b)
        tell(e, worker, SL_MSG_PLAN, e->change.epoch, b);
    else
        sl_change_fail(&e->change, SL_ERR_NOMEM, "no memory for the plan");
}

/* The workers that owe an answer are told what for. */
static void tell_owing(sl_engine *e, uint16_t kind) {
    char *plan = kind == SL_MSG_PLAN ? sl_plan_print(&e->replan->plan) : NULL;
    for (uint32_t i = 0; i < e->plan.n_workers; i++) {
        if (!e->change.owes[i]) continue;
        if (kind == SL_MSG_PLAN)
            tell_plan(e, plan, i);
        else
            tell(e, i, kind, e->change.epoch, NULL);
    }
    sl_free(plan);
}

/* ---- the change ---- */

static void answer(sl_engine *e, sl_replan *r, sl_status status, const sl_err *why) {
    pthread_mutex_lock(&e->lock);
    r->done = true;
    r->status = status;
    if (status != SL_OK) r->err = *why;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

/* Threads that call the engine read other fields of the plan meanwhile. */
static void adopt(sl_engine *e) {
    sl_placement before = e->plan.place;
    e->plan.place = e->replan->plan.place;
    e->replan->plan.place = before;
    e->plan.epoch = e->change.epoch;
    pthread_mutex_lock(&e->lock);
    e->stats.epoch = e->plan.epoch;
    pthread_mutex_unlock(&e->lock);
}

/* Whoever still serves goes on, by the new plan or the old one. */
static void end(sl_engine *e) {
    const sl_change *c = &e->change;
    sl_replan *r = e->replan;
    bool taken = e->plan.epoch == c->epoch;
    for (uint32_t i = 0; i < e->plan.n_workers; i++)
        if (sl_roster_serves(&e->roster, i)) tell(e, i, SL_MSG_GO, e->plan.epoch, NULL);
    sl_log(c->status == SL_OK ? SL_LOG_INFO : SL_LOG_WARN, "engine", "plan %u %s%s", c->epoch,
           taken ? "holds" : "is given up: ", taken ? "" : c->err.msg);
    e->replan = NULL;
    answer(e, r, c->status, &c->err);
}

void sl_replan_step(sl_engine *e) {
    sl_change_word word;
    while ((word = sl_change_next(&e->change, sl_clock_now_us(&e->clock))) != SL_CHANGE_NOTHING) {
        if (word == SL_CHANGE_PLAN) tell_owing(e, SL_MSG_PLAN);
        if (word == SL_CHANGE_HOLD) tell_owing(e, SL_MSG_HOLD);
        if (word == SL_CHANGE_TAKE) adopt(e);
        if (word == SL_CHANGE_TAKE) tell_owing(e, SL_MSG_TAKE);
        if (word == SL_CHANGE_GO) end(e);
    }
}

static sl_status check(sl_engine *e, const sl_replan *r, sl_err *err) {
    if (e->stopping) return sl_fail(err, SL_ERR_CANCELLED, "the server stops");
    if (!e->serving)
        return sl_fail(err, SL_ERR_WORKER_LOST, "%s",
                       e->lost[0] ? e->lost : "not every worker of the plan is there");
    if (e->replan) return sl_fail(err, SL_ERR_AGAIN, "another plan is being taken");
    return sl_change_check(&e->plan, &r->plan, err);
}

void sl_replan_begin(sl_engine *e, sl_replan *r) {
    sl_err err;
    sl_status st = check(e, r, &err);
    if (st != SL_OK) {
        answer(e, r, st, &err);
        return;
    }
    e->replan = r;
    memcpy(r->plan.worker, e->plan.worker, e->plan.n_workers * sizeof *e->plan.worker);
    sl_change_begin(&e->change, sl_clock_now_us(&e->clock) + r->timeout_us);
    r->plan.epoch = e->change.epoch;
}

sl_status sl_replan_on_answer(sl_engine *e, uint32_t id, const sl_wire_header *h, sl_span payload,
                              sl_err *err) {
    sl_change *c = &e->change;
    char why[200];
    switch (h->kind) {
    case SL_MSG_READY:
        if (payload.len != sizeof e->spec.hash ||
            memcmp(payload.data, e->spec.hash, payload.len) != 0)
            return sl_fail(err, SL_ERR_PROTOCOL, "ready with another checkpoint than before");
        sl_change_answer(c, id, SL_CHANGE_PREPARES, h->epoch);
        return SL_OK;
    case SL_MSG_UNABLE:
        sl_wire_text(payload, why, sizeof why);
        sl_change_unable(c, id, h->epoch, why);
        return SL_OK;
    case SL_MSG_QUIET:
        sl_change_answer(c, id, SL_CHANGE_HOLDS, h->epoch);
        return SL_OK;
    default:
        sl_change_answer(c, id, SL_CHANGE_TAKES, h->epoch);
        return SL_OK;
    }
}

void sl_replan_stop(sl_engine *e, sl_status status, const char *why) {
    sl_change_fail(&e->change, status, why);
    sl_replan_step(e);
}
