/* The workers of a running deployment, as the coordinator sees to them: they join and get the plan,
 * are lost, and come again. What follows of a loss is recover.c's. */
#include "engine/coord/coord_int.h"

#include "base/log.h"
#include "format/plan_json.h"
#include "format/plan_sides.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- plans as they travel ---- */

/* Nobody waits for this one: it can get ready beside those who serve. */
static bool is_spare(const sl_engine *e, uint32_t id) {
    bool waited = (e->roster.worker[id].roles & SL_ROLE_ATTENTION) &&
                  (e->admit.worker[id].staying.n > 0 || e->admit.waiting.n > 0);
    return e->recover.service == SL_RECOVER_SERVES && !waited;
}

/* {"you": .., "model": .., "trace_events": .., "joins": .., "spare": .., "chosen": ..,
 *  "plan": ..} */
sl_buf *sl_plan_message(sl_engine *e, const char *plan, uint32_t you, bool joins) {
    uint64_t events = e->collect ? e->o.trace_events : 0;
    json_t *doc =
        plan ? json_pack("{s:i, s:s, s:I, s:b, s:b, s:b}", "you", (int)you, "model",
                         e->model_folder, "trace_events", (json_int_t)events, "joins", (int)joins,
                         "spare", (int)(joins && is_spare(e, you)), "chosen", (int)e->o.choose)
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

/* ---- they join ---- */

static void signal_start(sl_engine *e, sl_status st, const sl_err *err) {
    pthread_mutex_lock(&e->lock);
    if (!e->up && e->start_status == SL_OK) {
        e->start_status = st;
        if (st == SL_OK)
            e->up = true;
        else
            e->start_err = *err;
    }
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

void sl_crew_send_plans(sl_engine *e) {
    char *plan[2] = {NULL, NULL}; /* as either side sees it, in print */
    for (uint32_t i = 0; i < e->plan.n_workers; i++) {
        sl_err err;
        if (!e->worker[i].conn) continue; /* it joined and left: the start has failed already */
        const bool side = e->home.worker[i].prefill;
        if (!plan[side]) plan[side] = sl_plan_print_view(&e->plan, side);
        sl_buf *b = sl_plan_message(e, plan[side], i, false);
        sl_wire_header h = {.kind = SL_MSG_PLAN, .epoch = e->plan.epoch};
        if (!b) {
            sl_status st = sl_fail(&err, SL_ERR_NOMEM, "plan for worker %u", i);
            signal_start(e, st, &err);
        } else if (sl_net_send(e->net, e->worker[i].conn, h, b) != SL_OK) {
            sl_log(SL_LOG_WARN, "engine", "worker %u left before its plan", i);
        }
    }
    sl_free(plan[0]);
    sl_free(plan[1]);
    e->planned = true;
}

static void note_who(sl_plan_worker *w, const sl_hello *peer) {
    w->incarnation = peer->incarnation;
    snprintf(w->address, sizeof w->address, "%s", peer->address);
}

/* Somebody comes in place of one that is gone: gets ready by itself, then a change takes it in. */
static sl_status welcome(sl_engine *e, uint32_t id, sl_err *err) {
    e->home.epoch = e->plan.epoch;
    char *plan = sl_plan_print_view(&e->home, e->home.worker[id].prefill);
    sl_buf *b = sl_plan_message(e, plan, id, true);
    sl_free(plan);
    if (!b) return sl_fail(err, SL_ERR_NOMEM, "plan for worker %u", id);
    sl_recover_coming(&e->recover, id, sl_clock_now_us(&e->clock));
    const sl_wire_header h = {.kind = SL_MSG_PLAN, .epoch = e->plan.epoch};
    sl_status st = sl_net_send(e->net, e->worker[id].conn, h, b);
    return st == SL_ERR_PEER_DOWN ? SL_OK : st; /* on_down says so */
}

sl_status sl_crew_on_open(void *ctx, sl_conn *c, const sl_hello *peer, sl_err *err) {
    sl_engine *e = ctx;
    if (e->stopping) return sl_fail(err, SL_ERR_CANCELLED, "the server stops");
    uint32_t id = peer->is_coordinator
                      ? SL_ROSTER_NONE
                      : sl_roster_hello(&e->roster, peer->worker, peer->incarnation);
    bool drained = !peer->is_coordinator && peer->worker < e->plan.n_workers &&
                   e->drain.place[peer->worker].state == SL_DRAIN_DRAINED;
    if (id == SL_ROSTER_NONE && drained)
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "worker %u is %s, nobody is wanted in its place (sluice join)", peer->worker,
                       e->drain.place[peer->worker].spare ? "not there yet" : "drained");
    if (id == SL_ROSTER_NONE)
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "no place for it: the plan has %u workers, %u joined, it asked for %d",
                       e->plan.n_workers, e->roster.n_came, (int)peer->worker);
    sl_member_worker *w = &e->worker[id];
    w->conn = c;
    w->sign = 0;
    w->n_looks = 0;
    sl_links_forget(&e->links, id);
    w->doubt_us = 0;
    sl_conn_set_user(c, w);
    sl_log(SL_LOG_INFO, "engine", "worker %u of %u joined from %s%s", id, e->plan.n_workers,
           peer->address, sl_conn_is_encrypted(c) ? ", encrypted" : "");
    note_who(&e->plan.worker[id], peer);
    note_who(&e->home.worker[id], peer);
    return e->recover.begun ? welcome(e, id, err) : SL_OK;
}

static void set_alive(sl_engine *e, uint32_t id, bool alive) {
    pthread_mutex_lock(&e->lock);
    e->worker[id].stats.alive = alive;
    pthread_mutex_unlock(&e->lock);
}

void sl_crew_serve(sl_engine *e, uint32_t id) {
    sl_roster_ready(&e->roster, id, SL_ROSTER_ANY);
    set_alive(e, id, true);
    if (e->roster.worker[id].roles & SL_ROLE_ATTENTION) sl_admit_open(&e->admit, id);
    sl_drain_served(&e->drain, id);
    sl_collect_ready(e, id);
}

/* Who also has requests cannot be done without while it is slow. */
static void note_hedging(const sl_engine *e) {
    bool both = false;
    for (uint32_t i = 0; i < e->plan.n_workers; i++)
        both |= e->plan.worker[i].roles == (SL_ROLE_ATTENTION | SL_ROLE_EXPERT);
    if (both && sl_plan_has_replicas(&e->plan))
        sl_log(SL_LOG_INFO, "engine",
               "workers with both roles are not hedged: others wait for one that is slow");
}

/* The first ready of all: the deployment is up. */
static void start_serving(sl_engine *e) {
    uint64_t now_us = sl_clock_now_us(&e->clock);
    sl_recover_begin(&e->recover, now_us);
    sl_copying_pair(e);
    sl_recover_measured(&e->recover, now_us - e->spawned_us);
    e->serving = true;
    e->show_us = 0;
    note_hedging(e);
    pthread_mutex_lock(&e->lock);
    e->stats.serving = true;
    pthread_mutex_unlock(&e->lock);
    signal_start(e, SL_OK, NULL);
}

/* Where rows leave behind what is in no page, every request begins at its first row. */
static void note_resumes(sl_engine *e, uint32_t id, bool resumes) {
    bool attention = e->roster.worker[id].roles & SL_ROLE_ATTENTION;
    sl_admit_set_resumes(&e->admit, id, resumes);
    if (attention && !resumes && !sl_device_is_modelled(&e->plan.device))
        sl_log(SL_LOG_INFO, "engine",
               "worker %u: no request begins with pages that another one computed: its device, or "
               "the model, keeps more of it than KV",
               id);
}

sl_status sl_crew_on_ready(sl_engine *e, uint32_t id, const sl_wire_header *h, sl_span payload,
                           sl_err *err) {
    if (e->roster.worker[id].state != SL_ROSTER_JOINING || payload.len != 32)
        return sl_fail(err, SL_ERR_PROTOCOL, "unexpected ready of %zu bytes", payload.len);
    if (memcmp(payload.data, e->spec.hash, 32) != 0) {
        sl_status st = sl_fail(err, SL_ERR_PROTOCOL,
                               "worker %u has another checkpoint than the coordinator's %s", id,
                               e->model_folder);
        signal_start(e, st, err);
        return st;
    }
    bool kept = e->worker[id].keeps;
    e->worker[id].keeps = e->spawned[id].kv_fd && (h->flags & SL_WIRE_KEPT);
    if (!e->worker[id].keeps) sl_stay_release(e, id);
    if (kept && !e->worker[id].keeps) sl_admit_forget(&e->admit, id);
    e->worker[id].saves = h->flags & SL_WIRE_SAVES;
    note_resumes(e, id, h->flags & SL_WIRE_RESUMES);
    if (e->recover.begun) {
        sl_recover_joined(&e->recover, id, sl_clock_now_us(&e->clock));
        return SL_OK;
    }
    sl_crew_serve(e, id);
    if (e->roster.n_ready == sl_plan_n_first(&e->home)) start_serving(e);
    return SL_OK;
}

/* ---- they are lost ---- */

/* Its last report: what was in flight then is nowhere any more. */
static void close_books(sl_engine *e, uint32_t id) {
    sl_worker_stats *s = &e->worker[id].stats;
    uint64_t ended = s->rows_merged + s->rows_cancelled + s->rows_lost;
    pthread_mutex_lock(&e->lock);
    s->alive = false;
    if (s->rows_created > ended) s->rows_lost += s->rows_created - ended;
    s->again_lost += s->again_out;
    s->again_out = 0;
    pthread_mutex_unlock(&e->lock);
}

/* A change that counts with it ends, unless it is too late for that: others would wait for it. */
static void leave_change(sl_engine *e, uint32_t id, const char *why) {
    /* Also with one that leaves: until the plan without it is taken others wait for its replies. */
    bool counted = e->change.there[id] || e->drain.place[id].state == SL_DRAIN_HANDS;
    sl_change_lost(&e->change, id);
    if (counted && e->change.phase != SL_CHANGE_TAKES)
        sl_change_fail(&e->change, SL_ERR_WORKER_LOST, why);
}

static void lose(sl_engine *e, uint32_t id, const char *why) {
    sl_member_worker *w = &e->worker[id];
    uint32_t duties;
    bool served = sl_roster_serves(&e->roster, id);
    if (!sl_roster_ended(&e->roster, id, SL_ROSTER_ANY, &duties)) return;
    sl_admit_close(&e->admit, id);
    close_books(e, id);
    if (w->conn) sl_net_close(e->net, w->conn, SL_ERR_WORKER_LOST, why);
    w->conn = NULL;
    w->saves = false;
    const char *role = e->roster.worker[id].roles & SL_ROLE_EXPERT ? "expert" : "attention";
    char *text = e->lost;
    sl_err err;
    /* Before it served, its end is why the engine does not start: said once, by who asked for it.
     */
    if (e->recover.begun)
        snprintf(text, sizeof e->lost, "%s worker %u was lost: %s", role, id, why);
    else if (e->plan.n_workers > 1)
        snprintf(text, sizeof e->lost, "%s worker %u does not start: %s", role, id, why);
    else
        snprintf(text, sizeof e->lost, "%s", why);
    if (!e->recover.begun) {
        sl_log(SL_LOG_INFO, "engine", "%s", text);
        signal_start(e, sl_fail(&err, SL_ERR_WORKER_LOST, "%s", text), &err);
        return;
    }
    leave_change(e, id, text);
    uint64_t now_us = sl_clock_now_us(&e->clock);
    bool left = sl_drain_ended(&e->drain, id, now_us);
    if (left)
        sl_log(SL_LOG_INFO, "engine", "%s worker %u has left", role, id);
    else
        sl_log(SL_LOG_ERROR, "engine", "%s", text);
    if (!left) sl_blame_note(e, id, served);
    sl_admit_lose_copies(&e->admit, id);
    /* Who left on purpose may come back as another program. */
    if (left) sl_spawn_drop_kv(e, id);
    if (left || !e->worker[id].keeps) sl_admit_forget(&e->admit, id);
    sl_stay_requeue(e, id);
    pthread_mutex_lock(&e->lock);
    e->stats.lost_workers += !left;
    e->stats.drained_workers += left;
    pthread_mutex_unlock(&e->lock);
    if (!e->recover.place[id].can_start && sl_drain_wants(&e->drain, id))
        sl_roster_reopen(&e->roster, id);
    sl_recover_lost(&e->recover, id, now_us);
    sl_stay_look(e);
}

void sl_crew_drop(sl_engine *e, uint32_t id) {
    sl_spawn_kill(e, id);
    lose(e, id, "it is given up");
}

void sl_crew_on_down(void *ctx, sl_conn *c, sl_status why, const char *text) {
    sl_engine *e = ctx;
    sl_member_worker *w = sl_conn_user(c);
    if (!w || w->conn != c) return;
    w->conn = NULL;
    if (e->stopping) return;
    uint32_t id = (uint32_t)(w - e->worker);
    /* Told to stop, it has left when its process has. */
    if (e->drain.place[id].state == SL_DRAIN_STOPS && sl_spawn_lives(e, id)) return;
    /* The process often has a better reason than its broken connection. */
    const char *better = sl_spawn_why(e, id);
    lose(e, id, better ? better : text);
    /* Silent past every limit and alive: what is given up must not come back, for anybody. */
    if (why == SL_ERR_TIMEOUT) sl_spawn_kill(e, id);
}

void sl_crew_notice_ends(sl_engine *e) {
    for (uint32_t id; (id = sl_spawn_next_ended(e)) != UINT32_MAX;) {
        const char *why = sl_spawn_why(e, id);
        if (e->drain.place[id].state == SL_DRAIN_STOPS) sl_net_progress(e->net); /* last words */
        lose(e, id, why ? why : "it left");
    }
    for (uint32_t id; (id = sl_spawn_next_crashed(e)) != UINT32_MAX;) sl_blame_crash(e, id);
}
