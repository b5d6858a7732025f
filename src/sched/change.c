/* The phases of a change of plans, and what a worker does about them. */
#include "sched/change.h"

#include "base/mem.h"

#include <string.h>

/* ---- what can change ---- */

/* What a running worker was built for. Addresses and epochs are the coordinator's. */
#define FIXED(X)                                                                                   \
    X(n_workers)                                                                                   \
    X(schedule)                                                                                    \
    X(lanes)                                                                                       \
    X(chunks)                                                                                      \
    X(chunking)                                                                                    \
    X(order)                                                                                       \
    X(resolve)                                                                                     \
    X(policy)                                                                                      \
    X(lookahead)                                                                                   \
    X(delta)                                                                                       \
    X(n_experts)                                                                                   \
    X(wire)                                                                                        \
    X(exact)                                                                                       \
    X(activations)                                                                                 \
    X(kv_type)                                                                                     \
    X(max_num_seqs)                                                                                \
    X(max_num_batched_tokens)                                                                      \
    X(prefill_stretch)                                                                             \
    X(context)                                                                                     \
    X(n_pages)                                                                                     \
    X(threads)                                                                                     \
    X(pin_auto)                                                                                    \
    X(numa)                                                                                        \
    X(pump)                                                                                        \
    X(has_costs)                                                                                   \
    X(device.kind)                                                                                 \
    X(device.numerics)                                                                             \
    X(device.gpu_kind)                                                                             \
    X(device.gpu_memory)                                                                           \
    X(random_weights)                                                                              \
    X(skew.on)

static sl_status differs(const char *what, sl_err *err) {
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "a running deployment can move experts only: %s of the new plan differs", what);
}

sl_status sl_change_check(const sl_plan *from, const sl_plan *to, sl_err *err) {
    /* Values of the plan's file are numbers that were parsed alike: equal or not. */
#define SAME(field)                                                                                \
    if (memcmp(&from->field, &to->field, sizeof from->field) != 0) return differs(#field, err);
    FIXED(SAME)
#undef SAME
    for (uint32_t i = 0; i < from->n_workers; i++) {
        uint32_t was = from->worker[i].roles, is = to->worker[i].roles;
        if (was != is && was != 0 && is != 0) return differs("a worker's role", err);
        if (was && is && sl_plan_device_of(from, i).kind != sl_plan_device_of(to, i).kind)
            return differs("a worker's device", err);
        if (was && is && sl_plan_device_of(from, i).index != sl_plan_device_of(to, i).index)
            return differs("a worker's GPU", err);
    }
    return SL_OK;
}

/* ---- the coordinator ---- */

sl_status sl_change_create(const sl_roster *roster, uint32_t epoch, sl_change *out, sl_err *err) {
    *out = (sl_change){.roster = roster, .epoch = epoch};
    out->owes = sl_alloc(roster->n, 1);
    out->there = sl_alloc(roster->n, 1);
    if (out->owes && out->there) return SL_OK;
    return sl_fail(err, SL_ERR_NOMEM, "change of %u workers", roster->n);
}

void sl_change_free(sl_change *c) {
    sl_free(c->owes);
    sl_free(c->there);
    *c = (sl_change){0};
}

/* Everybody whom the phase asks owes an answer. */
static void enter(sl_change *c, sl_change_phase phase) {
    const sl_roster *r = c->roster;
    c->phase = phase;
    c->told = false;
    c->n_owed = 0;
    for (uint32_t i = 0; i < r->n; i++) {
        bool runs = sl_roster_serves(r, i) && (r->worker[i].roles & SL_ROLE_ATTENTION);
        c->owes[i] = c->there[i] && (phase != SL_CHANGE_HOLDS || runs);
        c->n_owed += c->owes[i];
    }
}

/* Worker `worker` is asked for nothing more in this phase. */
static void settle(sl_change *c, uint32_t worker) {
    c->n_owed -= c->owes[worker];
    c->owes[worker] = false;
}

void sl_change_begin(sl_change *c, const uint8_t *there, bool breaks, uint64_t deadline_us) {
    SL_ASSERT(c->phase == SL_CHANGE_RESTS);
    c->epoch++;
    c->breaks = breaks;
    c->deadline_us = deadline_us;
    c->status = SL_OK;
    c->culprit = SL_ROSTER_NONE;
    for (uint32_t i = 0; i < c->roster->n; i++)
        c->there[i] = there ? there[i] : sl_roster_serves(c->roster, i);
    enter(c, SL_CHANGE_PREPARES);
}

static bool is_asked(const sl_change *c, uint32_t worker, uint32_t epoch) {
    return c->phase != SL_CHANGE_RESTS && epoch == c->epoch && c->told && c->owes[worker];
}

bool sl_change_answer(sl_change *c, uint32_t worker, sl_change_phase to, uint32_t epoch) {
    if (to != c->phase || !is_asked(c, worker, epoch)) return false;
    settle(c, worker);
    return true;
}

bool sl_change_unable(sl_change *c, uint32_t worker, uint32_t epoch, const char *why) {
    if (c->phase != SL_CHANGE_PREPARES || !is_asked(c, worker, epoch)) return false;
    settle(c, worker);
    if (c->status != SL_OK) return true;
    c->culprit = worker;
    c->status =
        sl_fail(&c->err, SL_ERR_INFEASIBLE, "worker %u cannot take the plan: %s", worker, why);
    return true;
}

void sl_change_lost(sl_change *c, uint32_t worker) {
    settle(c, worker);
    c->there[worker] = false;
}

void sl_change_fail(sl_change *c, sl_status status, const char *why) {
    if (c->phase == SL_CHANGE_RESTS) return;
    c->status = sl_fail(&c->err, status, "%s", why);
    c->n_owed = 0;
}

/* TAKE may still be left unsaid. */
static bool can_end(const sl_change *c) {
    return c->phase == SL_CHANGE_PREPARES || c->phase == SL_CHANGE_HOLDS;
}

static const char *owed_now(const sl_change *c) {
    return c->phase == SL_CHANGE_PREPARES ? "ready" : "quiet";
}

static uint32_t first_owing(const sl_change *c, bool joins) {
    for (uint32_t i = 0; i < c->roster->n; i++)
        if (c->owes[i] && (!joins || c->roster->worker[i].state == SL_ROSTER_JOINING)) return i;
    return SL_ROSTER_NONE;
}

/* Who joins before who serves: a link that the two cannot make keeps both waiting, and the others
 * can do without the one that they never had. */
static void note_lateness(sl_change *c, uint64_t now_us) {
    if (!can_end(c) || c->n_owed == 0 || c->status != SL_OK || now_us < c->deadline_us) return;
    uint32_t first = first_owing(c, true);
    if (first == SL_ROSTER_NONE) first = first_owing(c, false);
    c->culprit = first;
    c->status = sl_fail(&c->err, SL_ERR_TIMEOUT, "worker %u, of %u, is not %s in time", first,
                        c->n_owed, owed_now(c));
}

sl_change_word sl_change_next(sl_change *c, uint64_t now_us) {
    static const sl_change_word word[] = {[SL_CHANGE_PREPARES] = SL_CHANGE_PLAN,
                                          [SL_CHANGE_HOLDS] = SL_CHANGE_HOLD,
                                          [SL_CHANGE_TAKES] = SL_CHANGE_TAKE};
    if (c->phase == SL_CHANGE_RESTS) return SL_CHANGE_NOTHING;
    note_lateness(c, now_us);
    bool given_up = c->status != SL_OK && (can_end(c) || c->n_owed == 0);
    if (!given_up && !c->told) {
        c->told = true;
        return word[c->phase];
    }
    if (!given_up && c->n_owed > 0) return SL_CHANGE_NOTHING;
    if (!given_up && c->phase != SL_CHANGE_TAKES) {
        enter(c, c->phase == SL_CHANGE_PREPARES ? SL_CHANGE_HOLDS : SL_CHANGE_TAKES);
        return sl_change_next(c, now_us);
    }
    c->phase = SL_CHANGE_RESTS;
    return SL_CHANGE_GO;
}

/* ---- a worker ---- */

bool sl_taker_plan(sl_taker *t, uint32_t epoch) {
    if (t->next != 0 || epoch <= t->epoch) return false;
    t->next = epoch;
    return true;
}

bool sl_taker_hold(sl_taker *t, uint32_t epoch) {
    if (t->next == 0 || t->next != epoch || t->holds) return false;
    t->holds = true;
    return true;
}

bool sl_taker_take(sl_taker *t, uint32_t epoch) {
    if (t->next == 0 || t->next != epoch || t->holds != t->quiet) return false;
    t->epoch = epoch;
    t->next = 0;
    t->joins = false;
    return true;
}

/* Where the others took a plan without this worker, and the next one, with it, is given up, theirs
 * holds; a worker that joins knows none of them. */
bool sl_taker_go(sl_taker *t, uint32_t epoch) {
    const bool left_out = epoch > t->epoch && epoch < t->next;
    if (epoch != t->epoch && !left_out && (!t->joins || epoch == t->next)) return false;
    t->next = 0;
    t->holds = t->quiet = false;
    return true;
}

bool sl_taker_rests(sl_taker *t, bool rests) {
    if (!t->holds || t->quiet || !rests) return false;
    return t->quiet = true;
}
