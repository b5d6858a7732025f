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

/* The device hosts what this plan gives the worker, and the other one, which may be the same. */
static sl_status host(sl_worker *w, const sl_plan *a, const sl_plan *b, sl_err *err) {
    const sl_model_spec *m = w->device->spec;
    if (!(w->roles & SL_ROLE_EXPERT)) return SL_OK;
    uint8_t *hosted = sl_alloc((size_t)m->n_moe * m->n_experts, 1);
    if (!hosted) return sl_fail(err, SL_ERR_NOMEM, "table of hosted experts");
    sl_placement_mark(a, m->n_moe, w->id, hosted);
    sl_placement_mark(b, m->n_moe, w->id, hosted);
    uint32_t pairs = SL_MAX(sl_worker_pairs_by(w, a, m), sl_worker_pairs_by(w, b, m));
    sl_status st = sl_device_host(w->device, hosted, pairs, err);
    sl_free(hosted);
    return st;
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
    if (st == SL_OK) st = host(w, &w->plan, &w->next, &why);
    if (st == SL_OK) st = sl_peers_connect(w, &why);
    w->owes_ready = st == SL_OK;
    if (st != SL_OK) {
        sl_log(SL_LOG_WARN, "worker", "plan %u: %s", epoch, why.msg);
        answer_with(w, SL_MSG_UNABLE, epoch, why.msg, strlen(why.msg));
    }
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
    if (w->attn) sl_attn_close_side(w->attn);
    if (w->expert) w->expert_ops->free(w->expert);
    w->expert = NULL;
    adopt(w);
    sl_status st = sl_take_roles(w, err);
    if (st == SL_OK && (w->roles & SL_ROLE_EXPERT)) st = w->expert_ops->create(w, &w->expert, err);
    if (st == SL_OK && w->attn) st = sl_attn_open_side(w->attn, err);
    return st == SL_OK ? host(w, &w->plan, &w->plan, err) : st;
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
    if (w->next.worker) {
        sl_plan_free(&w->next);
        st = host(w, &w->plan, &w->plan, err);
    }
    if (w->attn) sl_attn_wake(w->attn);
    return st;
}

sl_status sl_take_on_word(sl_worker *w, const sl_wire_header *h, sl_err *err) {
    sl_taker *t = &w->taker;
    if (h->kind == SL_MSG_HOLD && w->attn && sl_taker_hold(t, h->epoch)) {
        if ((h->flags & SL_WIRE_BREAK) && !SL_MUTATION(KEPT_STEP)) sl_attn_give_up(w->attn);
        return SL_OK;
    }
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
