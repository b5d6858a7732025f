/* Expert workers that let others wait: attention workers tell of them (sched/hedge.h),
 * src/sched/recover decides whether they rest. Everybody hears of it, asks others for what they
 * owe, and a change without them follows. Where one hosts something alone, what that change costs
 * is held against what was waited for (sched/rehost.h); steps are done again after it. */
#include "engine/coord/coord_int.h"

#include "base/log.h"
#include "base/mutate.h"
#include "sched/hedge.h"

#include <stdio.h>

/* Who stands still and hosts something alone is looked at so often. */
#define JUDGE_US 500000u

/* Whoever is in the plan, on its side, counts it as lost. */
static void tell_all(sl_engine *e, uint32_t id) {
    for (uint32_t i = 0; i < e->plan.n_workers; i++) {
        if (!sl_plan_is_seen(&e->plan, i, id)) continue;
        bool takes_part = e->recover.place[i].planned && sl_roster_serves(&e->roster, i);
        if (i == id || !takes_part || !e->worker[i].conn) continue;
        sl_buf *b = sl_net_buf_take(e->net, SL_WIRE_WORKER_BYTES);
        if (!b) continue; /* it waits for who is slow */
        sl_wire_worker_encode(id, b->data);
        const sl_wire_header h = {.kind = SL_MSG_SLOW, .epoch = e->plan.epoch};
        sl_net_send(e->net, e->worker[i].conn, h, b);
    }
}

/* Whether giving what it hosts alone to others is worth it by now, and they have room for it. */
static bool pays(sl_engine *e, uint32_t id, uint64_t waited_us, char *why, size_t cap) {
    sl_err err;
    sl_member_worker *w = &e->worker[id];
    bool again = sl_recover_was_left_out(&e->recover, id, sl_clock_now_us(&e->clock));
    if (!sl_rehost_pays(waited_us, 0, again)) return false;
    sl_status st = sl_rooming_leave(e, id, &err);
    if (st == SL_ERR_LIMIT && w->cramped != e->plan.epoch) {
        w->cramped = e->plan.epoch;
        sl_log(SL_LOG_WARN, "engine",
               "others wait for worker %u since %.1f s, and go on waiting: %s", id,
               1e-6 * (double)waited_us, err.msg);
    }
    if (st != SL_OK) return false; /* or nobody else hosts experts */
    uint64_t rehost_us = sl_rehosting_us(e);
    if (!sl_rehost_pays(waited_us, rehost_us, again)) return false;
    snprintf(why, cap, "others waited for worker %u for %.1f s: its experts move, in about %.0f ms",
             id, 1e-6 * (double)waited_us, 1e-3 * (double)rehost_us);
    return true;
}

/* Others do without the worker from now on, if they can. They have waited for it for so long. */
static void do_without(sl_engine *e, uint32_t id, uint64_t waited_us, const char *how) {
    char why[200];
    if (e->stopping || e->change.phase == SL_CHANGE_TAKES) return;
    bool covered = sl_recover_is_covered(e, id) || SL_MUTATION(HEDGED_ALONE);
    snprintf(why, sizeof why, "expert worker %u %s: it is left out until it answers", id, how);
    if (!covered && !pays(e, id, waited_us, why, sizeof why)) return;
    if (!sl_recover_slow(&e->recover, id, !covered, sl_clock_now_us(&e->clock))) return;
    snprintf(e->lost, sizeof e->lost, "%s", why);
    sl_roster_silent(&e->roster, id, SL_ROSTER_ANY);
    sl_log(SL_LOG_WARN, "engine", "%s", e->lost);
    tell_all(e, id);
    /* A change that counts with it would wait for it, too; it lives, and hears how that ends. */
    if (e->change.there[id]) sl_change_fail(&e->change, SL_ERR_AGAIN, e->lost);
    pthread_mutex_lock(&e->lock);
    e->stats.hedged_workers++;
    e->stats.rehosted_workers += !covered;
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
        do_without(e, other, h->number, "lets others wait");
    else if (!e->worker[other].doubt_us)
        e->worker[other].doubt_us = sl_clock_now_us(&e->clock);
    return SL_OK;
}

/* It is judged when the answer to the doubt is clear: it was heard since, or stands still. */
static void look_at(sl_engine *e, uint32_t id, uint64_t late_us, uint64_t now_us) {
    sl_member_worker *w = &e->worker[id];
    uint64_t silent_us = w->conn ? sl_conn_silent_us(w->conn) : 0;
    bool still = sl_hedge_stands_still(silent_us, w->doubt_us, late_us, now_us);
    if (!still && silent_us > now_us - w->doubt_us) return; /* it was not heard since */
    bool alone = still && !sl_recover_is_covered(e, id);    /* who is so is judged again later */
    if (!alone) w->doubt_us = 0;
    if (!still || (alone && now_us < w->judge_us)) return;
    w->judge_us = now_us + JUDGE_US;
    do_without(e, id, silent_us, "stands still");
}

void sl_hedge_step(sl_engine *e) {
    uint64_t now_us = sl_clock_now_us(&e->clock), late_us = sl_net_late_us(e->net);
    for (uint32_t i = 0; i < e->plan.n_workers; i++)
        if (e->worker[i].doubt_us) look_at(e, i, late_us, now_us);
}
