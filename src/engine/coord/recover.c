/* What src/sched/recover decides about workers that are gone, carried out: plans for those who are
 * there, processes for places that are free, the end of requests that nobody can serve. */
#include "engine/coord/coord_int.h"

#include "base/log.h"
#include "format/placement.h"
#include "format/plan_json.h"

#include <stdio.h>
#include <string.h>

#define CHANGE_US 30000000u /* for workers to map what a plan gives them, and to be quiet */
/* The same where others stand in for who is lost, and map nothing; then steps are given up. */
#define STEPS_END_US 5000000u
/* A link that breaks between two workers is often the first that is heard of an end. */
#define LINK_GRACE_US 200000u
/* What is said of links so long after a change began is said of its own. */
#define LINKED_US 1000000u

/* ---- what is known of links ---- */

sl_status sl_recover_on_link(sl_engine *e, uint32_t id, uint32_t epoch, sl_span payload,
                             sl_err *err) {
    uint32_t other;
    sl_status st = sl_wire_worker_decode(payload, &other, err);
    if (st == SL_OK && other >= e->plan.n_workers)
        st = sl_fail(err, SL_ERR_PROTOCOL, "loss of worker %u of %u", other, e->plan.n_workers);
    if (st != SL_OK) return st;
    /* Also of one that is not ready yet: whoever is without a link begins no step before a change.
     * Who is told to stop leaves the others, too. */
    bool leaves = e->drain.place[other].state == SL_DRAIN_STOPS;
    if (leaves || e->roster.worker[other].state == SL_ROSTER_GONE) return SL_OK;
    const sl_lost_link link = {.by = id,
                               .other = other,
                               .epoch = epoch,
                               .due_us = sl_clock_now_us(&e->clock) + LINK_GRACE_US};
    return sl_links_note(&e->links, link, err);
}

/* Who rests is suspect; a change takes it in again. */
static void note_rests(sl_engine *e) {
    for (uint32_t i = 0; i < e->plan.n_workers; i++) {
        if (!e->recover.place[i].rests || !sl_roster_silent(&e->roster, i, SL_ROSTER_ANY)) continue;
        sl_log(SL_LOG_WARN, "engine",
               "worker %u is left out for a while: its links break again and again", i);
    }
}

static void end_without(sl_engine *e, const sl_lost_link *l, uint64_t now_us) {
    snprintf(e->lost, sizeof e->lost, "workers %u and %u lost each other", l->by, l->other);
    sl_log(SL_LOG_WARN, "engine", "%s", e->lost);
    sl_recover_ailing(&e->recover, l->by, l->other, now_us);
    note_rests(e);
    /* A change that awaits the ends of steps would await these for ever, and so would one that
     * cannot have its links. */
    bool cannot = e->change.phase == SL_CHANGE_PREPARES && now_us - e->change_us > LINKED_US;
    if ((!e->change.breaks || cannot) && e->change.phase != SL_CHANGE_TAKES)
        sl_change_fail(&e->change, SL_ERR_WORKER_LOST, e->lost);
}

/* Links whose ends both still live after a while; a plan that was taken since has mended them. */
static void look_at_links(sl_engine *e, uint64_t now_us) {
    sl_lost_link l;
    while (sl_links_take(&e->links, now_us, &l))
        if (l.epoch == e->plan.epoch && sl_roster_serves(&e->roster, l.by) &&
            sl_roster_serves(&e->roster, l.other))
            end_without(e, &l, now_us);
}

/* ---- words ---- */

bool sl_recover_is_covered(const sl_engine *e, uint32_t id) {
    uint8_t lost[SL_MAX_WORKERS];
    for (uint32_t i = 0; i < e->plan.n_workers; i++)
        lost[i] = i == id || !e->recover.place[i].planned || e->recover.place[i].slow ||
                  !sl_roster_serves(&e->roster, i);
    return sl_plan_is_covered(&e->plan, lost);
}

/* Nobody waits for anything that is lost, or owed by who is slow. */
static bool is_calm(const sl_engine *e) {
    return e->recover.service == SL_RECOVER_SERVES && !sl_recover_has_slow(&e->recover);
}

/* Whether steps in flight can end before the change: nobody waits for what is lost, or others by
 * whom all experts are hosted, too, stand in for it. Unless it was tried, and steps did not end. */
static bool steps_end(const sl_engine *e) {
    if (is_calm(e)) return true;
    return !e->recover.mending && !e->stuck && sl_recover_is_covered(e, SL_ROSTER_NONE);
}

static void change(sl_engine *e) {
    sl_replan *r = &e->own;
    sl_err err;
    bool breaks = !steps_end(e);
    *r = (sl_replan){.timeout_us = breaks || is_calm(e) ? CHANGE_US : STEPS_END_US,
                     .there = e->recover.there,
                     .breaks = breaks};
    sl_status st = sl_plan_among(&e->home, e->recover.there, &r->plan, &err);
    if (st == SL_OK) {
        e->change_us = sl_clock_now_us(&e->clock);
        sl_rehosting_begin(e, &r->plan);
        if (e->recover.n_failed == 0) sl_rooming_tell(e, &r->plan);
        sl_replan_begin(e, r);
        return;
    }
    sl_log(SL_LOG_WARN, "engine", "no plan for those who are there: %s", err.msg);
    r->done = true;
    r->status = st;
    r->err = err;
}

/* The change that was asked for is over. */
static void look_at_change(sl_engine *e, uint64_t now_us) {
    sl_replan *r = &e->own;
    if (!r->done) return;
    sl_plan_free(&r->plan);
    r->done = false;
    if (r->taken) sl_rehosting_end(e, now_us - e->change_us);
    e->stuck = !r->taken && (e->stuck || r->status == SL_ERR_TIMEOUT);
    sl_recover_changed(&e->recover, r->taken, r->taken ? SL_ROSTER_NONE : e->change.culprit,
                       now_us);
    if (!r->taken) sl_drain_refused(&e->drain, r->status, r->err.msg, now_us);
}

/* Whether others get the experts of who is lost, or who comes in the place brings them back. */
static void weigh(sl_engine *e, uint32_t id, uint64_t now_us) {
    /* With replicas nobody waits for them. */
    bool covered = sl_recover_is_covered(e, SL_ROSTER_NONE);
    uint64_t others_us = covered ? 0 : sl_rehosting_among_us(e, e->recover.there);
    uint64_t back_us = sl_recover_lack_us(&e->recover, now_us);
    uint64_t us = sl_recover_weighed(&e->recover, others_us, now_us);
    char others[40] = "have no room for them";
    if (others_us != SL_REHOST_NEVER)
        snprintf(others, sizeof others, "would have them in %.0f ms", 1e-3 * (double)others_us);
    if (us) /* that there is no room is the operator's business */
        sl_log(others_us == SL_REHOST_NEVER ? SL_LOG_WARN : SL_LOG_INFO, "engine",
               "experts of worker %u wait for its next process, expected in %.0f ms, %.0f ms at "
               "most: others %s",
               id, 1e-3 * (double)back_us, 1e-3 * (double)us, others);
    else if (!covered)
        sl_log(SL_LOG_INFO, "engine",
               "experts of worker %u move at once, in about %.0f ms: its next process is expected "
               "in %.0f ms",
               id, 1e-3 * (double)others_us, 1e-3 * (double)back_us);
}

static void start(sl_engine *e, uint32_t id, uint64_t now_us) {
    sl_err err;
    sl_roster_reopen(&e->roster, id);
    sl_status st = sl_spawn_again(e, id, &err);
    if (st == SL_OK) {
        sl_log(SL_LOG_INFO, "engine", "worker %u is started again", id);
        return;
    }
    sl_log(SL_LOG_WARN, "engine", "worker %u cannot be started again: %s", id, err.msg);
    uint32_t duties;
    sl_roster_ended(&e->roster, id, SL_ROSTER_ANY, &duties);
    sl_recover_lost(&e->recover, id, now_us);
}

static void give_up(sl_engine *e) {
    sl_log(SL_LOG_ERROR, "engine", "nobody is there to serve requests since %g s: they end",
           1e-6 * (double)e->recover.o.patience_us);
    sl_coord_fail_running(e, e->lost);
    sl_coord_fail_waiting(e, e->lost);
}

/* Requests go on, or ended. Under the lock. */
static void note_pause(sl_engine *e, uint64_t now_us, double s) {
    sl_pause *p = &e->stats.pause[e->stats.n_pauses++ % SL_PAUSES_KEPT];
    p->ended_us = now_us;
    p->s = s;
    snprintf(p->why, sizeof p->why, "%s", e->lost);
}

/* What others ask about. */
static void publish(sl_engine *e, uint64_t now_us) {
    bool waits = e->recover.service == SL_RECOVER_WAITS;
    e->serving = e->recover.service != SL_RECOVER_GAVE_UP;
    if (waits && !e->waits_since_us) e->waits_since_us = now_us;
    double pause_s = e->waits_since_us ? 1e-6 * (double)(now_us - e->waits_since_us) : 0;
    bool over = !waits && e->waits_since_us;
    if (!waits) e->waits_since_us = 0;
    uint32_t n_left_out = 0;
    for (uint32_t i = 0; i < e->plan.n_workers; i++)
        n_left_out += e->roster.worker[i].state == SL_ROSTER_SUSPECT;
    pthread_mutex_lock(&e->lock);
    e->stats.serving = e->serving;
    e->stats.n_left_out = n_left_out;
    e->stats.recovering = waits;
    snprintf(e->stats.lost, sizeof e->stats.lost, "%s", waits ? e->lost : "");
    e->stats.changing = e->change.phase != SL_CHANGE_RESTS;
    e->stats.longest_pause_s = SL_MAX(e->stats.longest_pause_s, pause_s);
    if (over) note_pause(e, now_us, pause_s);
    pthread_mutex_unlock(&e->lock);
}

void sl_recover_step(sl_engine *e) {
    uint64_t now_us = sl_clock_now_us(&e->clock);
    uint32_t id;
    if (!e->recover.begun || e->stopping) return;
    look_at_links(e, now_us);
    while (!e->replan || e->replan == &e->own) {
        look_at_change(e, now_us);
        sl_recover_word word = sl_recover_next(&e->recover, now_us, &id);
        if (word == SL_RECOVER_NOTHING) break;
        if (word == SL_RECOVER_GIVE_UP) give_up(e);
        if (word == SL_RECOVER_DROP) sl_crew_drop(e, id);
        if (word == SL_RECOVER_WEIGH) weigh(e, id, now_us);
        if (word == SL_RECOVER_CHANGE) change(e);
        if (word == SL_RECOVER_START) start(e, id, now_us);
    }
    sl_stay_look(e);
    publish(e, now_us);
}

/* ---- life ---- */

sl_status sl_recover_open(sl_engine *e, sl_err *err) {
    sl_recover_opts o = SL_RECOVER_OPTS;
    if (e->o.patience_s > 0) o.patience_us = (uint64_t)(1e6 * e->o.patience_s);
    e->rehosting.rule = SL_REHOST_FIRST;
    o.coming_us = SL_MAX(o.coming_us, 1000000ull * e->o.join_timeout_s);
    sl_status st = sl_recover_create(&e->roster, &o, &e->recover, err);
    for (uint32_t i = 0; st == SL_OK && i < e->plan.n_workers; i++)
        e->recover.place[i].can_start = e->o.spawn != SL_SPAWN_NONE;
    return st;
}
