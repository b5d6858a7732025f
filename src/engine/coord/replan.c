/* The coordinator's side of a change of plans (sched/change.h): tells workers, hears them, answers
 * who asked. */
#include "engine/coord/coord_int.h"

#include "base/log.h"
#include "format/placement.h"
#include "format/plan_json.h"
#include "format/plan_sides.h"

#include <stdio.h>
#include <string.h>

/* A lost worker is reported by its connection. */
static void tell_flagged(sl_engine *e, uint32_t worker, uint16_t kind, uint32_t flags,
                         uint32_t epoch, sl_buf *payload) {
    const sl_wire_header h = {.kind = kind, .epoch = epoch, .flags = flags};
    if (e->worker[worker].conn)
        sl_net_send(e->net, e->worker[worker].conn, h, payload);
    else /* it leaves: its process is about to end */
        sl_net_buf_give(e->net, payload);
}

static void tell(sl_engine *e, uint32_t worker, uint16_t kind, uint32_t epoch, sl_buf *payload) {
    tell_flagged(e, worker, kind, 0, epoch, payload);
}

/* Who serves by the plan that holds and is gone, as far as a side sees it. *n: how many; NULL:
 * nobody, or no memory. */
static uint32_t *list_lost(const sl_engine *e, bool prefill, uint32_t *n) {
    uint32_t *ids = sl_alloc(e->plan.n_workers, sizeof *ids);
    const bool apart = sl_plan_sides_apart(&e->plan);
    *n = 0;
    for (uint32_t i = 0; ids && i < e->plan.n_workers; i++) {
        if (apart && e->plan.worker[i].prefill != prefill) continue;
        if (e->plan.worker[i].roles && !sl_roster_serves(&e->roster, i)) ids[(*n)++] = i;
    }
    if (*n > 0) return ids;
    sl_free(ids);
    return NULL;
}

/* Whoever holds may still wait for one of those: it need not find out by itself. */
static void tell_hold(sl_engine *e, uint32_t worker, const uint32_t *lost, uint32_t n_lost) {
    sl_buf *b = n_lost ? sl_net_buf_take(e->net, sl_wire_set_bytes(n_lost)) : NULL;
    /* Who missed a change, as it was about to leave, may be in a round of nobody else. */
    bool missed = !e->recover.place[worker].planned;
    uint32_t flags = e->change.breaks || missed ? SL_WIRE_BREAK : 0;
    if (b) {
        flags |= SL_WIRE_SET;
        sl_wire_set_encode(lost, n_lost, b->data);
    }
    tell_flagged(e, worker, SL_MSG_HOLD, flags, e->change.epoch, b);
}

static void tell_plan(sl_engine *e, const char *plan, uint32_t worker) {
    sl_buf *b = sl_plan_message(e, plan, worker, false);
    if (b)
        tell(e, worker, SL_MSG_PLAN, e->change.epoch, b);
    else
        sl_change_fail(&e->change, SL_ERR_NOMEM, "no memory for the plan");
}

/* The workers that owe an answer are told what for. */
static void tell_owing(sl_engine *e, uint16_t kind) {
    char *plan[2] = {NULL, NULL}; /* as either side sees it, in print */
    uint32_t n_lost[2], *lost[2];
    for (int i = 0; i < 2; i++) lost[i] = list_lost(e, i, &n_lost[i]);
    for (uint32_t i = 0; i < e->plan.n_workers; i++) {
        const bool side = e->home.worker[i].prefill;
        if (!e->change.owes[i]) continue;
        if (kind == SL_MSG_PLAN && !plan[side])
            plan[side] = sl_plan_print_view(&e->replan->plan, side);
        if (kind == SL_MSG_PLAN)
            tell_plan(e, plan[side], i);
        else if (kind == SL_MSG_HOLD)
            tell_hold(e, i, lost[side], n_lost[side]);
        else
            tell(e, i, kind, e->change.epoch, NULL);
    }
    for (int i = 0; i < 2; i++) sl_free(lost[i]);
    for (int i = 0; i < 2; i++) sl_free(plan[i]);
}

/* ---- the change ---- */

static void answer(sl_engine *e, sl_replan *r, bool taken, sl_status status, const sl_err *why) {
    pthread_mutex_lock(&e->lock);
    r->done = true;
    r->taken = taken;
    r->status = status;
    if (status != SL_OK) r->err = *why;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

static void swap_places(sl_plan *a, sl_plan *b) {
    const sl_placement before = a->place, prefill = a->prefill_place;
    a->place = b->place;
    a->prefill_place = b->prefill_place;
    b->place = before;
    b->prefill_place = prefill;
}

/* Threads that call the engine read other fields of the plan meanwhile. What was asked for from
 * outside is what recovery goes back to. */
static void adopt(sl_engine *e) {
    sl_plan *to = &e->replan->plan;
    if (e->replan != &e->own) swap_places(&e->home, &e->replan->home);
    swap_places(&e->plan, to);
    memcpy(e->plan.worker, to->worker, e->plan.n_workers * sizeof *to->worker);
    e->plan.epoch = e->change.epoch;
    for (uint32_t i = 0; i < e->plan.n_workers; i++) e->worker[i].doubt_us = 0;
    sl_copying_pair(e);
    sl_live_on_plan(e);
}

/* ", without worker 2", of a plan that somebody is not in. */
static void name_absent(const sl_plan *p, char *out, size_t cap) {
    size_t n = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < p->n_workers && n < cap; i++) {
        if (p->worker[i].roles) continue;
        n += (size_t)snprintf(out + n, cap - n, "%s %u", n ? "," : ", without worker", i);
    }
}

static void log_end(const sl_engine *e, bool taken) {
    char absent[160];
    const sl_change *c = &e->change;
    if (!taken) {
        sl_log(SL_LOG_WARN, "engine", "plan %u is given up: %s", c->epoch, c->err.msg);
        return;
    }
    name_absent(&e->plan, absent, sizeof absent);
    sl_log(c->status == SL_OK ? SL_LOG_INFO : SL_LOG_WARN, "engine",
           "plan %u holds%s: streams were held for %.1f ms", c->epoch, absent,
           1e-3 * (double)e->pause_us);
}

/* Whoever takes part goes on, by the new plan or the old one. */
static void end(sl_engine *e) {
    const sl_change *c = &e->change;
    sl_replan *r = e->replan;
    bool taken = e->plan.epoch == c->epoch;
    uint64_t n_back = 0, n_joined = 0;
    for (uint32_t i = 0; i < e->plan.n_workers; i++) {
        if (!c->there[i]) continue;
        tell(e, i, SL_MSG_GO, e->plan.epoch, NULL);
        if (taken && sl_roster_heard(&e->roster, i, SL_ROSTER_ANY))
            sl_log(SL_LOG_INFO, "engine", "worker %u, which was left out, serves again", i);
        if (!taken || sl_roster_serves(&e->roster, i)) continue;
        n_back += !e->drain.place[i].comes;
        n_joined += e->drain.place[i].comes;
        sl_crew_serve(e, i);
    }
    pthread_mutex_lock(&e->lock);
    e->stats.restarted_workers += n_back;
    e->stats.joined_workers += n_joined;
    pthread_mutex_unlock(&e->lock);
    if (taken) e->pause_us = sl_clock_now_us(&e->clock) - e->held_us;
    log_end(e, taken);
    e->replan = NULL;
    answer(e, r, taken, c->status, &c->err);
}

void sl_replan_step(sl_engine *e) {
    sl_change_word word;
    while ((word = sl_change_next(&e->change, sl_clock_now_us(&e->clock))) != SL_CHANGE_NOTHING) {
        if (word == SL_CHANGE_PLAN) tell_owing(e, SL_MSG_PLAN);
        if (word == SL_CHANGE_HOLD) e->held_us = sl_clock_now_us(&e->clock);
        if (word == SL_CHANGE_HOLD) tell_owing(e, SL_MSG_HOLD);
        if (word == SL_CHANGE_TAKE) adopt(e);
        if (word == SL_CHANGE_TAKE) tell_owing(e, SL_MSG_TAKE);
        if (word == SL_CHANGE_GO) end(e);
    }
}

static sl_status check(sl_engine *e, const sl_replan *r, sl_err *err) {
    if (e->stopping) return sl_fail(err, SL_ERR_CANCELLED, "the server stops");
    bool own = r == &e->own;
    if (!own && !e->serving)
        return sl_fail(err, SL_ERR_WORKER_LOST, "%s",
                       e->lost[0] ? e->lost : "not every worker of the plan is there");
    if (e->replan) return sl_fail(err, SL_ERR_AGAIN, "another plan is being taken");
    if (!own && e->drain.n_busy > 0)
        return sl_fail(err, SL_ERR_AGAIN, "a worker is about to leave or to come");
    if (!own && e->recover.service != SL_RECOVER_SERVES)
        return sl_fail(err, SL_ERR_AGAIN, "lost workers are being made good");
    for (uint32_t i = 0; !own && i < e->plan.n_workers; i++)
        if (e->recover.place[i].slow)
            return sl_fail(err, SL_ERR_AGAIN, "worker %u is left out, as others waited for it", i);
    return sl_change_check(&e->plan, &r->plan, err);
}

/* What somebody asks for is the plan of everybody; it is taken by those who are there. */
static sl_status restrict_to_those_there(sl_engine *e, sl_replan *r, sl_err *err) {
    r->home = r->plan;
    r->plan = (sl_plan){0};
    memcpy(r->home.worker, e->home.worker, e->home.n_workers * sizeof *e->home.worker);
    uint8_t *there = sl_alloc(e->plan.n_workers, 1);
    if (!there) return sl_fail(err, SL_ERR_NOMEM, "plan of %u workers", e->plan.n_workers);
    for (uint32_t i = 0; i < e->plan.n_workers; i++)
        there[i] = sl_roster_serves(&e->roster, i) && !e->recover.place[i].rests;
    sl_status st = sl_plan_among(&r->home, there, &r->plan, err);
    sl_free(there);
    return st;
}

void sl_replan_begin(sl_engine *e, sl_replan *r) {
    sl_err err;
    sl_status st = check(e, r, &err);
    if (st == SL_OK && r != &e->own) st = restrict_to_those_there(e, r, &err);
    if (st != SL_OK) {
        answer(e, r, false, st, &err);
        return;
    }
    e->replan = r;
    sl_change_begin(&e->change, r->there, r->breaks, sl_clock_now_us(&e->clock) + r->timeout_us);
    r->plan.epoch = e->change.epoch;
}

bool sl_replan_asks(const sl_engine *e, uint32_t id) {
    bool asked = e->change.phase != SL_CHANGE_RESTS && e->change.there[id];
    return asked || sl_roster_serves(&e->roster, id);
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
