/* What a worker does about the coordinator's words on a change of plans. */
#include "engine/worker/take.h"

#include "base/log.h"
#include "base/mutate.h"
#include "engine/attn/attn.h"
#include "engine/expert/expert.h"
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
    if (st == SL_OK) {
        answer_with(w, SL_MSG_READY, epoch, w->hello.model_hash, 32);
    } else {
        sl_log(SL_LOG_WARN, "worker", "plan %u: %s", epoch, why.msg);
        answer_with(w, SL_MSG_UNABLE, epoch, why.msg, strlen(why.msg));
    }
    return SL_OK;
}

/* Only who hosts what can be another. */
static void adopt(sl_worker *w) {
    sl_placement before = w->plan.place;
    w->plan.epoch = w->next.epoch;
    if (!SL_MUTATION(OLD_HOSTS) || !w->attn) {
        w->plan.place = w->next.place;
        w->next.place = before;
    }
    sl_plan_free(&w->next);
}

static sl_status take(sl_worker *w, sl_err *err) {
    sl_status st = SL_OK;
    sl_device_drain(w->device);
    adopt(w);
    if (w->expert) st = w->expert_ops->renew(&w->expert, err);
    if (st == SL_OK && w->attn) st = sl_attn_renew(w->attn, err);
    return st == SL_OK ? host(w, &w->plan, &w->plan, err) : st;
}

static sl_status on_take(sl_worker *w) {
    uint32_t epoch = w->next.epoch;
    sl_status st = take(w, &w->stop_err);
    if (st == SL_OK) {
        answer(w, SL_MSG_TAKEN, epoch, NULL);
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
    if (h->kind == SL_MSG_HOLD && w->attn && sl_taker_hold(t, h->epoch)) return SL_OK;
    if (h->kind == SL_MSG_TAKE && sl_taker_take(t, h->epoch)) return on_take(w);
    if (h->kind == SL_MSG_GO && sl_taker_go(t, h->epoch)) return on_go(w, err);
    return sl_fail(err, SL_ERR_PROTOCOL, "%s of plan %u, this one is %u and %u is next",
                   sl_msg_kind_name(h->kind), h->epoch, t->epoch, t->next);
}

void sl_take_look(sl_worker *w) {
    if (!w->taker.holds || w->taker.quiet) return;
    if (sl_taker_rests(&w->taker, sl_attn_rests(w->attn) || SL_MUTATION(HASTY_QUIET)))
        answer(w, SL_MSG_QUIET, w->taker.next, NULL);
}
