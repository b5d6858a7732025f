/* What a worker does about the coordinator's words on a change of plans. */
#include "engine/worker/take.h"

#include "base/log.h"
#include "base/mutate.h"
#include "engine/attn/attn.h"
#include "engine/expert/expert.h"
#include "engine/worker/peers.h"
#include "format/placement.h"
#include "format/plan_json.h"

#include <string.h>

/* What this worker says about plan `epoch`. A lost coordinator ends the worker anyway. */
static void answer(sl_worker *w, uint16_t kind, uint32_t epoch, sl_buf *payload) {
    sl_worker_send(w, SL_NO_WORKER, (sl_wire_header){kind, .epoch = epoch}, payload);
}

static void answer_with(sl_worker *w, uint16_t kind, uint32_t epoch, const void *data, size_t n) {
    sl_buf *b = sl_net_buf_take(w->net, n);
    if (!b) return; /* the change ends at its deadline */
    memcpy(b->data, data, n);
    answer(w, kind, epoch, b);
}

static void say_unable(sl_worker *w, uint32_t epoch, const sl_err *why) {
    sl_log(SL_LOG_WARN, "worker", "plan %u: %s", epoch, why->msg);
    answer_with(w, SL_MSG_UNABLE, epoch, why->msg, strlen(why->msg));
}

/* ---- what is hosted ---- */

/* Weights that a disk has to read first are waited for: who computes with them would wait, too.
 * Then the change shall not fail because of them. */
#define PATIENCE_US 10000000u
#define PAUSE_US    5000u /* while they are read */

/* The device is to host what this plan gives the worker, and the other one, which may be the same.
 * It comes there step by step, between other work. */
static sl_status aim(sl_worker *w, const sl_plan *a, const sl_plan *b, sl_err *err) {
    const sl_model_spec *m = w->device->spec;
    const size_t n = (size_t)m->n_moe * m->n_experts;
    sl_host_goal *g = &w->goal;
    if (!(w->roles & SL_ROLE_EXPERT)) return SL_OK;
    if (!g->hosted) g->hosted = sl_alloc(n, 1);
    if (!g->hosted) return sl_fail(err, SL_ERR_NOMEM, "table of hosted experts");
    memset(g->hosted, 0, n);
    sl_placement_mark(a, m->n_moe, w->id, g->hosted);
    sl_placement_mark(b, m->n_moe, w->id, g->hosted);
    g->max_pairs = SL_MAX(sl_worker_pairs_by(w, a, m), sl_worker_pairs_by(w, b, m));
    g->since_us = sl_clock_now_us(&w->clock);
    g->resume_us = 0;
    g->due = true;
    return SL_OK;
}

/* Before the change has been agreed on it can be given up; later the worker is of no use. */
static void fail_hosting(sl_worker *w, sl_status st, const sl_err *why) {
    w->goal.due = false;
    if (w->owes_ready && w->taker.next) {
        w->owes_ready = false;
        say_unable(w, w->taker.next, why);
        return;
    }
    w->stop_err = *why;
    sl_worker_stop(w, st);
}

bool sl_take_host(sl_worker *w) {
    sl_host_goal *g = &w->goal;
    uint64_t now_us = sl_clock_now_us(&w->clock);
    sl_hosting left = SL_HOSTING_DONE;
    sl_err err;
    if (!g->due || w->stop || now_us < g->resume_us) return false;
    bool patient = now_us < g->since_us + PATIENCE_US;
    sl_status st = sl_device_host(w->device, g->hosted, g->max_pairs, patient, &left, &err);
    if (st != SL_OK) fail_hosting(w, st, &err);
    if (st == SL_OK) g->due = left != SL_HOSTING_DONE;
    if (st == SL_OK && left == SL_HOSTING_WAITS) g->resume_us = now_us + PAUSE_US;
    return left != SL_HOSTING_WAITS;
}

sl_status sl_take_roles(sl_worker *w, sl_err *err) {
    const sl_plan *p = &w->plan;
    sl_status st = SL_OK;
    sl_idset_clear(&w->experts);
    sl_idset_clear(&w->attention);
    for (uint32_t i = 0; st == SL_OK && i < p->n_workers; i++) {
        if (p->worker[i].roles & SL_ROLE_EXPERT) st = sl_idset_add(&w->experts, i, err);
        if (st == SL_OK && (p->worker[i].roles & SL_ROLE_ATTENTION))
            st = sl_idset_add(&w->attention, i, err);
    }
    return st;
}

sl_status sl_take_prepare(sl_worker *w, sl_plan *next, sl_err *err) {
    uint32_t epoch = next->epoch;
    if (!sl_taker_plan(&w->taker, epoch)) {
        sl_plan_free(next);
        return sl_fail(err, SL_ERR_PROTOCOL, "plan %u%s, where plan %u holds and %u is next", epoch,
                       epoch == w->taker.epoch ? " again" : "", w->taker.epoch, w->taker.next);
    }
    w->next = *next;
    sl_err why;
    sl_status st = sl_change_check(&w->plan, &w->next, &why);
    if (st == SL_OK) st = aim(w, &w->plan, &w->next, &why);
    if (st == SL_OK) st = sl_peers_connect(w, &why);
    w->owes_ready = st == SL_OK;
    if (st != SL_OK) say_unable(w, epoch, &why);
    return SL_OK;
}

/* Everybody is there: else the planted bug sends to nobody. */
static inline bool is_whole(const sl_plan *p) {
    for (uint32_t i = 0; i < p->n_workers; i++)
        if (p->worker[i].roles == 0) return false;
    return true;
}

/* Who is there and who hosts what can be others. */
static void adopt(sl_worker *w) {
    const sl_plan before = w->plan;
    w->plan.epoch = w->next.epoch;
    w->plan.worker = w->next.worker;
    w->next.worker = before.worker;
    if (!SL_MUTATION(OLD_HOSTS) || !w->attn || !is_whole(&w->plan)) {
        w->plan.place = w->next.place;
        w->next.place = before.place;
    }
    sl_plan_free(&w->next);
}

/* The sides begin anew: what they still have was given up, or is of somebody who is gone. */
static sl_status take(sl_worker *w, sl_err *err) {
    sl_device_drain(w->device);
    if (w->device->failed != SL_OK) {
        *err = w->device->failure;
        return w->device->failed;
    }
    if (w->device->spreads) w->device->ops->settle(w->device);
    if (w->attn) sl_attn_close_side(w->attn);
    if (w->expert) w->expert_ops->free(w->expert);
    w->expert = NULL;
    adopt(w);
    sl_status st = sl_take_roles(w, err);
    if (st == SL_OK && (w->roles & SL_ROLE_EXPERT)) st = w->expert_ops->create(w, &w->expert, err);
    if (st == SL_OK && w->attn) st = sl_attn_open_side(w->attn, err);
    return st == SL_OK ? aim(w, &w->plan, &w->plan, err) : st;
}

static sl_status on_take(sl_worker *w) {
    uint32_t epoch = w->next.epoch;
    sl_status st = take(w, &w->stop_err);
    if (st == SL_OK) {
        answer(w, SL_MSG_TAKEN, epoch, NULL);
        sl_peers_miss(w);
    } else { /* between two plans it is of no use to anybody */
        sl_worker_stop(w, st);
    }
    return SL_OK;
}

/* The change is over; where it was given up, what was hosted for it goes. */
static sl_status on_go(sl_worker *w, sl_err *err) {
    sl_status st = SL_OK;
    sl_peers_begin_use(w);
    if (w->next.worker) {
        sl_plan_free(&w->next);
        st = aim(w, &w->plan, &w->plan, err);
    }
    if (w->attn) sl_attn_wake(w->attn);
    return st;
}

static sl_status on_hold(sl_worker *w, const sl_wire_header *h, sl_span payload, sl_err *err) {
    const uint32_t *lost;
    uint32_t n = 0;
    sl_status st = SL_OK;
    if (h->flags & SL_WIRE_SET) st = sl_wire_set_decode(payload, &lost, &n, err);
    if (st != SL_OK) return st;
    if (n && lost[n - 1] >= w->plan.n_workers)
        return sl_fail(err, SL_ERR_PROTOCOL, "HOLD: worker %u of %u is lost", lost[n - 1],
                       w->plan.n_workers);
    for (uint32_t i = 0; i < n; i++) sl_peers_lose(w, lost[i]);
    if ((h->flags & SL_WIRE_BREAK) && !SL_MUTATION(KEPT_STEP)) sl_attn_give_up(w->attn);
    return SL_OK;
}

sl_status sl_take_on_word(sl_worker *w, const sl_wire_header *h, sl_span payload, sl_err *err) {
    sl_taker *t = &w->taker;
    if (h->kind == SL_MSG_HOLD && w->attn && sl_taker_hold(t, h->epoch))
        return on_hold(w, h, payload, err);
    if (h->kind == SL_MSG_TAKE && sl_taker_take(t, h->epoch)) return on_take(w);
    if (h->kind == SL_MSG_GO && sl_taker_go(t, h->epoch)) return on_go(w, err);
    return sl_fail(err, SL_ERR_PROTOCOL, "%s of plan %u, this one is %u and %u is next",
                   sl_msg_kind_name(h->kind), h->epoch, t->epoch, t->next);
}

void sl_take_look(sl_worker *w) {
    if (!w->taker.holds || w->taker.quiet) return;
    if (sl_taker_rests(&w->taker, sl_attn_rests(w->attn)))
        answer(w, SL_MSG_QUIET, w->taker.next, NULL);
}
