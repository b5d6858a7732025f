/* What src/sched/drain decides about workers that leave on purpose, carried out: requests give way,
 * workers are told to stop; and what others ask about all workers. */
#include "engine/coord/coord_int.h"

#include "base/log.h"
#include "format/placement.h"
#include "format/plan_json.h"

#include <stdio.h>

#define SHOW_US      500000u /* between looks of others at workers while nothing happens... */
#define SHOW_BUSY_US 20000u  /* ...and while somebody leaves or comes */

/* ---- wishes ---- */

static sl_status begin_leave(sl_engine *e, const sl_wish *w, uint64_t now_us, sl_err *err) {
    uint32_t id = w->worker, duties;
    bool again = w->kind == SL_WISH_RESTART, hands;
    sl_status st = sl_drain_may_leave(&e->drain, id, again, &hands, err);
    if (st == SL_OK && hands) st = sl_rooming_leave(e, id, err);
    if (st == SL_OK) st = sl_drain_leave(&e->drain, id, again, 1000ull * w->grace_ms, now_us, err);
    /* One that was lost and awaited: its place is open no more. */
    if (st == SL_OK && e->drain.place[id].state == SL_DRAIN_DRAINED)
        sl_roster_ended(&e->roster, id, SL_ROSTER_ANY, &duties);
    return st;
}

/* The deployment grows by this place, which gets an even share of the experts. What follows is what
 * follows of any return: somebody comes, gets ready, and a change takes it in. */
static sl_status open_spare(sl_engine *e, uint32_t id, sl_err *err) {
    sl_plan home;
    if (!e->recover.begun || (e->replan && e->replan != &e->own))
        return sl_fail(err, SL_ERR_AGAIN, "another plan is being taken");
    sl_status st = sl_plan_copy(&e->home, &home, err);
    if (st != SL_OK) return st;
    home.worker[id].spare = false;
    if (home.worker[id].roles & SL_ROLE_EXPERT) st = sl_placement_level(id, &home, err);
    if (st == SL_OK) st = sl_rooming_come(e, &home, id, err);
    if (st == SL_OK) {
        sl_placement before = e->home.place;
        e->home.place = home.place;
        e->home.worker[id].spare = false;
        home.place = before;
    }
    sl_plan_free(&home);
    return st;
}

static sl_status begin_return(sl_engine *e, uint32_t id, uint64_t now_us, sl_err *err) {
    bool exists = id < e->plan.n_workers;
    bool drained = exists && e->drain.place[id].state == SL_DRAIN_DRAINED;
    sl_status st = SL_OK;
    if (exists && e->home.worker[id].spare)
        st = open_spare(e, id, err);
    else if (drained)
        st = sl_rooming_come(e, &e->home, id, err);
    if (st == SL_OK) st = sl_drain_return(&e->drain, id, now_us, err);
    /* Who is started from here gets its place when that is done. */
    if (st == SL_OK && drained && !e->recover.place[id].can_start) sl_roster_reopen(&e->roster, id);
    return st;
}

static sl_status begin_kill(sl_engine *e, uint32_t id, sl_err *err) {
    if (id >= e->plan.n_workers)
        return sl_fail(err, SL_ERR_NOTFOUND, "no worker %u: there are %u, from 0 on", id,
                       e->plan.n_workers);
    if (e->spawned[id].pid <= 0)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "worker %u is no process that this server started: it is a thread, "
                       "elsewhere, or not there",
                       id);
    sl_spawn_kill(e, id);
    return SL_OK;
}

static sl_status begin(sl_engine *e, const sl_wish *w, sl_err *err) {
    uint64_t now_us = sl_clock_now_us(&e->clock);
    if (e->stopping) return sl_fail(err, SL_ERR_CANCELLED, "the server stops");
    if (w->kind == SL_WISH_KILL) return begin_kill(e, w->worker, err);
    return w->kind == SL_WISH_RETURN ? begin_return(e, w->worker, now_us, err)
                                     : begin_leave(e, w, now_us, err);
}

void sl_drain_begin(sl_engine *e, sl_wish *w) {
    static const char *const words[] = {"is drained", "restarts", "is wanted again", "is killed"};
    sl_err err;
    sl_status st = begin(e, w, &err);
    if (st == SL_OK) {
        sl_log(SL_LOG_INFO, "engine", "worker %u %s", w->worker, words[w->kind]);
        w->number = e->drain.place[w->worker].n;
        if (e->drain.place[w->worker].state != SL_DRAIN_WANTED)
            sl_admit_close(&e->admit, w->worker);
        e->show_us = 0;
    }
    pthread_mutex_lock(&e->lock);
    w->done = true;
    w->status = st;
    if (st != SL_OK) w->err = err;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

/* ---- words ---- */

/* They go on elsewhere, computed from their tokens so far, when their worker has let go of them. */
static void move_requests(sl_engine *e, uint32_t id) {
    uint32_t place, n = 0;
    for (; sl_admit_move(&e->admit, id, &place); n++) sl_coord_preempt(e, e->ledger.at[place], id);
    if (n) sl_log(SL_LOG_INFO, "engine", "%u requests of worker %u go on elsewhere", n, id);
}

static void stop(sl_engine *e, uint32_t id) {
    const sl_wire_header h = {.kind = SL_MSG_SHUTDOWN, .epoch = e->plan.epoch};
    sl_prefix_save(e, id);
    if (e->worker[id].conn) sl_net_send(e->net, e->worker[id].conn, h, NULL);
}

static void end(sl_engine *e, uint32_t id) {
    sl_log(SL_LOG_WARN, "engine", "worker %u was told to stop and did not: it is ended", id);
    sl_crew_drop(e, id);
}

static void reopen(sl_engine *e, uint32_t id) {
    const sl_drain_place *p = &e->drain.place[id];
    if (p->done && p->status != SL_OK) sl_log(SL_LOG_WARN, "engine", "%s", p->err.msg);
    if (e->roster.worker[id].roles & SL_ROLE_ATTENTION) sl_admit_open(&e->admit, id);
}

/* ---- what others ask about ---- */

static sl_worker_life life_of(const sl_engine *e, uint32_t id) {
    const sl_drain_place *p = &e->drain.place[id];
    const sl_recover_place *r = &e->recover.place[id];
    if (p->state == SL_DRAIN_DRAINED) return p->spare ? SL_WORKER_FREE : SL_WORKER_DRAINED;
    if (p->state != SL_DRAIN_WANTED) return SL_WORKER_DRAINING;
    if (!e->recover.begun)
        return sl_roster_serves(&e->roster, id) ? SL_WORKER_SERVING : SL_WORKER_JOINING;
    if (r->planned) return SL_WORKER_SERVING;
    bool joins = r->coming || p->comes || e->roster.worker[id].state == SL_ROSTER_JOINING;
    return joins ? SL_WORKER_JOINING : SL_WORKER_LOST;
}

static void show_worker(const sl_engine *e, uint32_t id, sl_worker_stats *s) {
    const sl_drain_place *p = &e->drain.place[id];
    const sl_admit_worker *a = &e->admit.worker[id];
    s->life = life_of(e, id);
    s->running = a->running.n;
    s->pages = a->pages.n_total;
    s->pages_free = sl_pages_spare(&a->pages) + e->admit.copies.worker[id].n_pages;
    s->pages_cached = a->pages.n_cached;
    s->wish = p->n;
    s->wish_done = p->done;
    s->wish_status = p->status;
    snprintf(s->wish_error, sizeof s->wish_error, "%s", p->status == SL_OK ? "" : p->err.msg);
}

static void show(sl_engine *e, uint64_t now_us) {
    if (now_us < e->show_us) return;
    e->show_us = now_us + (e->drain.n_busy ? SHOW_BUSY_US : SHOW_US);
    uint32_t n_drained = 0;
    pthread_mutex_lock(&e->lock);
    for (uint32_t i = 0; i < e->plan.n_workers; i++) {
        show_worker(e, i, &e->worker[i].stats);
        n_drained += e->worker[i].stats.life == SL_WORKER_DRAINED;
    }
    e->stats.n_drained = n_drained;
    pthread_mutex_unlock(&e->lock);
}

/* ---- the step ---- */

/* A change that is under way waits for it, or it runs requests. */
static bool is_needed(const sl_engine *e, uint32_t id) {
    bool changes = e->change.phase != SL_CHANGE_RESTS && e->change.there[id];
    return changes || e->admit.worker[id].running.n > 0;
}

void sl_drain_step(sl_engine *e) {
    uint64_t now_us = sl_clock_now_us(&e->clock);
    uint32_t id, busy = e->drain.n_busy;
    sl_drain_word word;
    if (e->stopping) return;
    for (uint32_t i = 0; busy && i < e->plan.n_workers; i++)
        if (!is_needed(e, i)) sl_drain_empty(&e->drain, i, now_us);
    while ((word = sl_drain_next(&e->drain, now_us, &id)) != SL_DRAIN_NOTHING) {
        if (word == SL_DRAIN_MOVE) move_requests(e, id);
        if (word == SL_DRAIN_STOP) stop(e, id);
        if (word == SL_DRAIN_KILL) end(e, id);
        if (word == SL_DRAIN_OPEN) reopen(e, id);
    }
    if (e->drain.n_busy != busy) e->show_us = 0;
    show(e, now_us);
}
