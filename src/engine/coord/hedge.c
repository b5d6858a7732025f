/* Expert workers that let others wait: attention workers tell of them (sched/hedge.h),
 * src/sched/recover decides whether they rest. Everybody hears of it, asks others for what they
 * owe, and a change without them follows. */
#include "engine/coord/coord_int.h"

#include "base/log.h"
#include "base/mutate.h"
#include "sched/hedge.h"

#include <stdio.h>

/* Whoever is in the plan counts it as lost. */
static void tell_all(sl_engine *e, uint32_t id) {
    for (uint32_t i = 0; i < e->plan.n_workers; i++) {
        bool takes_part = e->recover.place[i].planned && sl_roster_serves(&e->roster, i);
        if (i == id || !takes_part || !e->worker[i].conn) continue;
        sl_buf *b = sl_net_buf_take(e->net, SL_WIRE_WORKER_BYTES);
        if (!b) continue; /* it waits for who is slow */
        sl_wire_worker_encode(id, b->data);
        const sl_wire_header h = {.kind = SL_MSG_SLOW, .epoch = e->plan.epoch};
        sl_net_send(e->net, e->worker[i].conn, h, b);
    }
}

/* Others do without the worker from now on, if they can. */
static void do_without(sl_engine *e, uint32_t id, const char *why) {
    if (e->stopping || e->change.phase == SL_CHANGE_TAKES) return;
    bool covered = sl_recover_is_covered(e, id) || SL_MUTATION(HEDGED_ALONE);
    if (!covered || !sl_recover_slow(&e->recover, id, sl_clock_now_us(&e->clock))) return;
    sl_roster_silent(&e->roster, id, SL_ROSTER_ANY);
    snprintf(e->lost, sizeof e->lost, "expert worker %u %s: it is left out until it answers", id,
             why);
    sl_log(SL_LOG_WARN, "engine", "%s", e->lost);
    tell_all(e, id);
    /* A change that counts with it would wait for it, too; it lives, and hears how that ends. */
    if (e->change.there[id]) sl_change_fail(&e->change, SL_ERR_AGAIN, e->lost);
    pthread_mutex_lock(&e->lock);
    e->stats.hedged_workers++;
    pthread_mutex_unlock(&e->lock);
}

sl_status sl_hedge_on_word(sl_engine *e, uint32_t id, const sl_wire_header *h, sl_span payload,
                           sl_err *err) {
    uint32_t other;
    sl_status st = sl_wire_worker_decode(payload, &other, err);
    if (st == SL_OK && other >= e->plan.n_workers)
        st = sl_fail(err, SL_ERR_PROTOCOL, "worker %u waits for worker %u of %u", id, other,
                     e->plan.n_workers);
    if (st == SL_OK && !(e->roster.worker[id].roles & SL_ROLE_ATTENTION))
        st = sl_fail(err, SL_ERR_PROTOCOL, "worker %u has no attention, and nobody owes it", id);
    if (st != SL_OK || h->epoch != e->plan.epoch) return st;
    if (h->kind == SL_MSG_SLOW)
        do_without(e, other, "lets others wait");
    else if (!e->worker[other].doubt_us)
        e->worker[other].doubt_us = sl_clock_now_us(&e->clock);
    return SL_OK;
}

void sl_hedge_step(sl_engine *e) {
    uint64_t now_us = sl_clock_now_us(&e->clock), late_us = sl_net_late_us(e->net);
    for (uint32_t i = 0; i < e->plan.n_workers; i++) {
        sl_member_worker *w = &e->worker[i];
        if (!w->doubt_us) continue;
        uint64_t silent_us = w->conn ? sl_conn_silent_us(w->conn) : 0;
        bool still = sl_hedge_stands_still(silent_us, w->doubt_us, late_us, now_us);
        if (!still && silent_us > now_us - w->doubt_us) continue; /* it was not heard since */
        w->doubt_us = 0;
        if (still) do_without(e, i, "stands still");
    }
}
