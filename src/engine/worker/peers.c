/* Who of a plan calls whom, and what the fabric says about these connections. */
#include "engine/worker/peers.h"

#include "base/log.h"
#include "base/mutate.h"
#include "engine/host/far.h"
#include "engine/worker/far_windows.h"
#include "engine/worker/worker.h"
#include "spec/buddy.h"
#include "spec/schedules.h"

#include <stdio.h>

#define CALL_AGAIN_US 100000u   /* a peer that took no call, as too many came at once... */
#define CALL_FOR_US   10000000u /* ...so long after the first; at the start as long as that lasts */
/* Of a peer's window at most: longer messages, and more of them at a time, go without. */
#define WINDOW_SLOTS      8u
#define WINDOW_SLOT_BYTES (1u << 20)
/* Of windows of devices: slots stay taken until their rows have been read. */
#define FAR_SLOTS      16u
#define FAR_SLOT_BYTES ((size_t)4 << 20)
/* During a change a peer is called as long as that lasts; after so long the coordinator hears. */
#define CALL_UNTOLD_US 1900000u /* a call's own deadline is 2 s */

sl_status sl_peers_reserve(sl_worker *w, uint32_t n, sl_err *err) {
    if (n <= w->n_peers) return SL_OK;
    sl_worker_peer *bigger = sl_grow(w->peer, w->n_peers, n, sizeof *bigger);
    if (!bigger) return sl_fail(err, SL_ERR_NOMEM, "no memory for %u peers", n);
    w->peer = bigger;
    w->n_peers = n;
    return SL_OK;
}

/* A connection's user is its peer's place, counted from 1: the table may move. */
static void *user_of(uint32_t id) {
    return (void *)((uintptr_t)id + 1);
}

sl_worker_peer *sl_peers_of(const sl_worker *w, const sl_conn *c) {
    uintptr_t user = (uintptr_t)sl_conn_user(c);
    return user ? &w->peer[user - 1] : NULL;
}

/* ---- who calls whom ---- */

/* That connections are to serve. */
static const sl_plan *plan_of(const sl_worker *w) {
    return w->next.n_workers ? &w->next : &w->plan;
}

static uint32_t sequencer_of(const sl_plan *p) {
    for (uint32_t i = 0; i < p->n_workers; i++)
        if (p->worker[i].roles & SL_ROLE_EXPERT) return i;
    return SL_NO_WORKER;
}

/* An attention worker, and one with experts that it sends rows to. */
static bool needs(const sl_plan *p, uint32_t a, uint32_t b) {
    return (p->worker[a].roles & SL_ROLE_ATTENTION) && (p->worker[b].roles & SL_ROLE_EXPERT);
}

/* Whether worker `a` opens the connection to `b`: attention workers to experts (of two colocated
 * ones the lower id), expert workers to the sequencer, which tells them who died; of two
 * between which KV pages go the lower id. */
static bool dials(const sl_plan *p, uint32_t a, uint32_t b) {
    if (a == b) return false;
    if (needs(p, a, b)) return !needs(p, b, a) || a < b;
    if (needs(p, b, a)) return false;
    if (a < b && sl_plan_move_pages(p, a, b)) return true;
    return (p->worker[a].roles & SL_ROLE_EXPERT) && b == sequencer_of(p);
}

static bool connects(const sl_plan *p, uint32_t a, uint32_t b) {
    return b < p->n_workers && (dials(p, a, b) || dials(p, b, a));
}

static bool is_missing(const sl_worker *w, const sl_plan *p, uint32_t id) {
    return !w->peer[id].open && connects(p, w->id, id);
}

bool sl_peers_are_needed(const sl_worker *w, uint32_t id) {
    return connects(&w->plan, w->id, id) || connects(plan_of(w), w->id, id);
}

bool sl_peers_complete(const sl_worker *w) {
    const sl_plan *p = plan_of(w);
    for (uint32_t id = 0; id < p->n_workers; id++)
        if (is_missing(w, p, id)) return false;
    return true;
}

/* ---- they come and go ---- */

/* The loop hears of it: this worker computes now, perhaps. */
static void note_down(sl_worker *w, uint32_t id, bool left) {
    sl_err err;
    const sl_inbox_item item = {.down = true, .left = left, .h = {.src = id}};
    if (sl_inbox_push(&w->inbox, item, &err) == SL_OK) return;
    w->stop_err = err;
    sl_worker_stop(w, err.code);
}

void sl_peers_miss(sl_worker *w) {
    w->in_use = true;
    for (uint32_t id = 0; id < w->plan.n_workers; id++)
        if (is_missing(w, &w->plan, id)) note_down(w, id, false);
}

/* The connection is nobody's any more. */
static void drop(sl_worker *w, uint32_t id, const char *why) {
    sl_worker_peer *p = &w->peer[id];
    char text[96];
    bool left = w->plan.n_workers > id && w->plan.worker[id].roles == 0; /* the plan says so */
    snprintf(text, sizeof text, "worker %u %s", id, why);
    sl_log(left ? SL_LOG_INFO : SL_LOG_WARN, "worker", "connection with %s closed: %s",
           sl_conn_hello(p->conn)->name, text);
    bool was_open = p->open;
    sl_conn_set_user(p->conn, NULL);
    sl_net_close(w->net, p->conn, SL_ERR_PROTOCOL, text);
    sl_far_lose(w, p);
    *p = (sl_worker_peer){0};
    bool told = was_open && w->next.n_workers && !SL_MUTATION(KEPT_STEP);
    if (told) note_down(w, id, false); /* by the plan that still holds */
}

void sl_peers_lose(sl_worker *w, uint32_t id) {
    bool comes = plan_of(w)->worker[id].roles != 0;
    if (id != w->id && !comes && w->peer[id].conn) drop(w, id, "is lost, the coordinator says");
}

sl_status sl_peers_on_open(sl_worker *w, sl_conn *c, const sl_hello *peer, sl_err *err) {
    uint32_t limit = w->planned ? w->plan.n_workers : SL_MAX_WORKERS;
    if (peer->worker >= limit)
        return sl_fail(err, SL_ERR_PROTOCOL, "worker %u, but ids are below %u", peer->worker,
                       limit);
    sl_status st = sl_peers_reserve(w, peer->worker + 1, err);
    if (st != SL_OK) return st;
    sl_worker_peer *p = &w->peer[peer->worker];
    const sl_worker_peer *dialled = sl_peers_of(w, c);
    if (dialled && dialled != p)
        return sl_fail(err, SL_ERR_PROTOCOL, "worker %u answered where %u was expected",
                       peer->worker, (unsigned)(dialled - w->peer));
    if (peer->worker == w->id)
        return sl_fail(err, SL_ERR_PROTOCOL, "worker %u is this worker itself", peer->worker);
    /* One that comes in place of another is named by a plan, which may still be on its way. */
    if (p->conn && p->conn != c)
        return sl_fail(err, SL_ERR_AGAIN, "worker %u is connected already", peer->worker);
    p->conn = c;
    p->open = true;
    w->windows_due = true;
    sl_conn_set_user(c, user_of(peer->worker));
    return SL_OK;
}

static bool is_absence(sl_status st) {
    return st == SL_ERR_PEER_DOWN || st == SL_ERR_TIMEOUT || st == SL_ERR_AGAIN;
}

/* A bit that is damaged on its way makes either end of a call look like a stranger. */
static bool may_be_damage(sl_status st) {
    return st == SL_ERR_AUTH || st == SL_ERR_PROTOCOL;
}

static void call_later(sl_worker *w, sl_worker_peer *p) {
    if (w->n_again++ == 0) w->again_us = sl_clock_now_us(&w->clock) + CALL_AGAIN_US;
    p->again = true;
}

/* There was no request yet: nothing is on a connection, and nobody would begin another change for
 * one that is missing. */
static bool starts(const sl_worker *w) {
    return w->planned && !w->taker.joins && !w->in_use;
}

void sl_peers_begin_use(sl_worker *w) {
    if (starts(w)) sl_peers_miss(w);
    w->in_use = true;
}

/* The call of this worker failed: it tries again a little later, or the peer counts as lost. */
static bool may_call_again(sl_worker *w, sl_worker_peer *p, sl_status why) {
    uint64_t since_us = sl_clock_now_us(&w->clock) - p->called_us;
    bool changes = w->next.n_workers != 0, long_ago = since_us > CALL_FOR_US;
    bool lasts = changes || (starts(w) && is_absence(why));
    if (!p->called_us || !(is_absence(why) || may_be_damage(why)) || (long_ago && !lasts))
        return false;
    call_later(w, p);
    return !changes || since_us < CALL_UNTOLD_US;
}

/* A connection that breaks is called again for the next plan, and at the start. */
static bool is_renewed(const sl_worker *w, uint32_t id) {
    return (w->next.n_workers || starts(w)) && dials(plan_of(w), w->id, id);
}

void sl_peers_on_down(sl_worker *w, sl_conn *c, sl_status why) {
    sl_worker_peer *p = sl_peers_of(w, c);
    if (!p || p->conn != c) return;
    uint32_t id = (uint32_t)(p - w->peer);
    bool was_open = p->open, unused = starts(w);
    sl_far_lose(w, p);
    *p = (sl_worker_peer){.called_us = p->called_us};
    if (was_open && is_renewed(w, id)) {
        p->called_us = SL_MAX(sl_clock_now_us(&w->clock), 1u);
        call_later(w, p);
        if (SL_MUTATION(SILENT_MEND)) return;
    }
    /* Else its loss would be spread, and who is dead in an epoch is so until the next. */
    if (was_open && unused) return;
    if (was_open || !may_call_again(w, p, why)) note_down(w, id, why == SL_OK);
}

/* ---- connections that the plan wants ---- */

static sl_status call(sl_worker *w, uint32_t id, sl_err *err) {
    sl_worker_peer *p = &w->peer[id];
    sl_status st =
        sl_net_connect(w->net, plan_of(w)->worker[id].address, user_of(id), &p->conn, err);
    return st == SL_OK ? SL_OK : sl_err_prefix(err, "worker %u", id);
}

/* Why the connection with `id` is to end; NULL: it is not, or there is none. One with a worker that
 * the plan leaves out stays: it may only be slow, and answers what it was sent. Who called
 * before the plan was here may have taken an id that nobody calls from: this worker's own, or one
 * that it calls itself. */
static const char *why_drop(const sl_worker *w, const sl_plan *p, uint32_t id) {
    const sl_worker_peer *peer = &w->peer[id];
    if (!peer->conn) return NULL;
    if (id == w->id) return "is this worker itself";
    if (dials(p, w->id, id) && !peer->called_us) return "is called, it does not call";
    if (sl_worker_is_newcomer(w, p, id)) return "is another one by now";
    return NULL;
}

sl_status sl_peers_connect(sl_worker *w, sl_err *err) {
    const sl_plan *p = plan_of(w);
    w->windows_due = true; /* who exchanges rows is another's to say now */
    for (uint32_t id = 0; id < p->n_workers; id++) {
        const char *why = why_drop(w, p, id);
        if (why) drop(w, id, why);
        if (w->peer[id].conn || !dials(p, w->id, id)) continue;
        w->peer[id].again = false;
        w->peer[id].called_us = SL_MAX(sl_clock_now_us(&w->clock), 1u);
        sl_status st = call(w, id, err);
        if (st != SL_OK) return st;
    }
    return SL_OK;
}

/* ---- windows ---- */

/* The longest message of rows of one step, either way. */
static size_t row_message_bytes(const sl_worker *w, const sl_plan *p) {
    const sl_model_spec *m = w->device->spec;
    const sl_wire_format f = (sl_wire_format)p->wire;
    const uint32_t rows = sl_plan_lane_rows(p), most = p->exact ? rows * m->top_k : rows;
    const sl_wire_counts n = {.rows = rows, .n_set = p->n_workers, .n_entries = rows * m->top_k};
    return SL_MAX(sl_wire_dispatch_bytes(&n, m->d_model, f),
                  sl_wire_return_bytes(most, p->n_workers, m->d_model, f) + SL_WIRE_TIMES_BYTES) +
           SL_CRYPT_TAG_BYTES;
}

/* Why rows go by the host, though the device has windows. NULL: they do not have to. */
static const char *bars_far(const sl_worker *w, const sl_plan *p) {
    return w->rails                                        ? "ranks exchange them"
           : !sl_schedule_traits_of(p->schedule)->barriers ? "the schedule stores them"
                                                           : NULL;
}

static void open_far(sl_worker *w, const sl_plan *p) {
    const char *why = bars_far(w, p);
    const bool some = !why;
    const uint32_t slots = SL_MIN(2 * p->lanes * p->chunks + 2, FAR_SLOTS);
    const uint32_t rows = sl_plan_lane_rows(p) * (p->exact ? w->device->spec->top_k : 1);
    const size_t bytes =
        rows * sl_wire_row_bytes((sl_wire_format)p->wire, w->device->spec->d_model);
    const size_t slot =
        (SL_MIN(bytes, FAR_SLOT_BYTES) + SL_WINDOW_LINE - 1) / SL_WINDOW_LINE * SL_WINDOW_LINE;
    for (uint32_t id = 0; some && id < SL_MIN(p->n_workers, w->n_peers); id++) {
        const sl_worker_peer *peer = &w->peer[id];
        if (sl_plan_device_of(p, id).kind != sl_plan_device_of(p, w->id).kind) continue;
        const bool near = id == w->id || (peer->open && !sl_conn_bars_memory(peer->conn));
        if (near && (needs(p, w->id, id) || needs(p, id, w->id)))
            sl_far_windows_open(w, id, slots, slot);
        if (!near && peer->open) why = sl_conn_bars_memory(peer->conn);
    }
    if (why && !w->far_said)
        sl_log(SL_LOG_WARN, "worker", "SLUICE_CUDA_ROWS: rows go by the host: %s", why);
    w->far_said |= why != NULL;
}

void sl_peers_open_windows(sl_worker *w) {
    const sl_plan *p = plan_of(w);
    sl_err err;
    if (!w->windows_due || !w->device) return;
    w->windows_due = false;
    if (w->device->windows) open_far(w, p);
    const uint32_t slots = SL_MIN(p->lanes * p->chunks + 1, WINDOW_SLOTS);
    for (uint32_t id = 0; w->opts->windows && id < SL_MIN(p->n_workers, w->n_peers); id++) {
        sl_worker_peer *peer = &w->peer[id];
        if (!peer->open || peer->window || !(needs(p, w->id, id) || needs(p, id, w->id))) continue;
        const size_t bytes = SL_MIN(row_message_bytes(w, p), (size_t)WINDOW_SLOT_BYTES);
        peer->window = true; /* without one its messages come as they always did */
        if (sl_net_open_window(w->net, peer->conn, slots, bytes, &err) != SL_OK)
            sl_log(SL_LOG_WARN, "worker", "no window for worker %u: %s", id, err.msg);
    }
}

void sl_peers_call_again(sl_worker *w) {
    if (w->n_again == 0 || sl_clock_now_us(&w->clock) < w->again_us) return;
    w->n_again = 0;
    for (uint32_t id = 0; id < w->plan.n_workers; id++) {
        sl_worker_peer *p = &w->peer[id];
        sl_err err;
        if (!p->again) continue;
        p->again = false;
        if (p->conn || !dials(plan_of(w), w->id, id)) continue;
        sl_status st = call(w, id, &err);
        if (st != SL_OK && !may_call_again(w, p, st)) note_down(w, id, false);
    }
}
