/* Draining: what is due at a place that a worker leaves or comes back to. */
#include "sched/drain.h"

#include "base/mem.h"

sl_status sl_drain_create(sl_recover *recover, const sl_drain_opts *o, sl_drain *out, sl_err *err) {
    uint32_t n = recover->roster->n;
    *out = (sl_drain){.o = *o, .recover = recover, .place = sl_alloc(n, sizeof *out->place)};
    return out->place ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "wishes for %u workers", n);
}

void sl_drain_free(sl_drain *d) {
    sl_free(d->place);
    *d = (sl_drain){0};
}

/* ---- places ---- */

static uint32_t roles_of(const sl_drain *d, uint32_t id) {
    return d->recover->roster->worker[id].roles;
}

static bool is_busy(const sl_drain_place *p) {
    return p->opens || p->comes || (p->state != SL_DRAIN_WANTED && p->state != SL_DRAIN_DRAINED);
}

static void count(sl_drain *d) {
    d->n_busy = d->n_drained = 0;
    for (uint32_t i = 0; i < d->recover->roster->n; i++) {
        d->n_busy += is_busy(&d->place[i]);
        d->n_drained += d->place[i].state == SL_DRAIN_DRAINED && !d->place[i].spare;
    }
}

/* Nobody is at this place, and nobody is on the way to it: it is lost. */
static bool is_away(const sl_drain *d, uint32_t id) {
    sl_roster_state state = d->recover->roster->worker[id].state;
    return (state == SL_ROSTER_GONE || state == SL_ROSTER_ABSENT) && !d->recover->place[id].coming;
}

/* Who stays, and serves (`soon`: or will when the plan that comes is taken), has attention and
 * experts without this one; those for prompts do not count. */
static bool others_suffice(const sl_drain *d, uint32_t id, bool soon) {
    uint32_t roles = 0;
    for (uint32_t i = 0; i < d->recover->roster->n; i++) {
        const sl_recover_place *p = &d->recover->place[i];
        bool serves = p->planned || (soon && !is_away(d, i));
        if (d->recover->roster->worker[i].prompts) continue;
        if (i != id && serves && !p->doomed && !p->dropped && sl_drain_wants(d, i))
            roles |= roles_of(d, i);
    }
    return (roles & roles_of(d, id)) == roles_of(d, id);
}

static bool suffice_without(const sl_drain *d, uint32_t id) {
    return others_suffice(d, id, false);
}

/* Nobody waits for this one if it goes now. */
static bool can_go(const sl_drain *d, uint32_t id) {
    return d->place[id].alone || suffice_without(d, id);
}

static void enter(sl_drain *d, uint32_t id, sl_drain_state state, uint64_t due_us) {
    sl_drain_place *p = &d->place[id];
    p->state = state;
    p->said = false;
    p->due_us = due_us;
    count(d);
}

/* It stays, as if nobody had asked. */
static void stay(sl_drain *d, uint32_t id, uint64_t now_us) {
    if (d->place[id].state == SL_DRAIN_HANDS) sl_recover_want(d->recover, id, now_us);
    d->place[id].opens = true;
    enter(d, id, SL_DRAIN_WANTED, SL_RECOVER_NEVER);
}

static void give_up(sl_drain *d, uint32_t id, sl_status status, const char *why, uint64_t now_us) {
    sl_drain_place *p = &d->place[id];
    p->status = sl_fail(&p->err, status, "worker %u stays: %s", id, why);
    p->done = true;
    stay(d, id, now_us);
}

static void done(sl_drain_place *p) {
    p->status = SL_OK;
    p->done = true;
}

static void ask(sl_drain *d, uint32_t id) {
    d->place[id].done = false;
    d->place[id].n = ++d->n_asked;
}

void sl_drain_spare(sl_drain *d, uint32_t id) {
    d->place[id].spare = true;
    enter(d, id, SL_DRAIN_DRAINED, SL_RECOVER_NEVER);
    sl_recover_release(d->recover, id, 0);
}

/* ---- wishes ---- */

static sl_status unknown(const sl_drain *d, uint32_t id, sl_err *err) {
    return sl_fail(err, SL_ERR_NOTFOUND, "no worker %u: there are %u, from 0 on", id,
                   d->recover->roster->n);
}

static const char *role_name(uint32_t roles) {
    return roles == SL_ROLE_ATTENTION ? "attention" : roles == SL_ROLE_EXPERT ? "expert" : "such";
}

sl_status sl_drain_may_leave(const sl_drain *d, uint32_t id, bool again, bool *hands, sl_err *err) {
    *hands = false;
    if (id >= d->recover->roster->n) return unknown(d, id, err);
    sl_drain_state state = d->place[id].state;
    if (state == SL_DRAIN_DRAINED)
        return sl_fail(err, SL_ERR_ARG, "worker %u is drained already", id);
    if (state != SL_DRAIN_WANTED) return sl_fail(err, SL_ERR_AGAIN, "worker %u leaves already", id);
    if (!d->recover->place[id].planned && (again || !is_away(d, id)))
        return sl_fail(err, SL_ERR_AGAIN, "worker %u is not there yet", id);
    if (!d->recover->begun || d->recover->service != SL_RECOVER_SERVES)
        return sl_fail(err, SL_ERR_AGAIN, "lost workers are being made good");
    if (!again && !suffice_without(d, id))
        return sl_fail(err, SL_ERR_INFEASIBLE, "worker %u is the last %s worker that serves", id,
                       role_name(roles_of(d, id)));
    *hands = !is_away(d, id) && suffice_without(d, id);
    return SL_OK;
}

sl_status sl_drain_leave(sl_drain *d, uint32_t id, bool again, uint64_t grace_us, uint64_t now_us,
                         sl_err *err) {
    bool hands;
    sl_status st = sl_drain_may_leave(d, id, again, &hands, err);
    if (st != SL_OK) return st;
    sl_drain_place *p = &d->place[id];
    ask(d, id);
    p->again = again;
    p->alone = !suffice_without(d, id);
    p->opens = p->comes = false;
    if (is_away(d, id)) {
        done(p);
        enter(d, id, SL_DRAIN_DRAINED, SL_RECOVER_NEVER);
        sl_recover_release(d->recover, id, now_us);
        return SL_OK;
    }
    enter(d, id, SL_DRAIN_EMPTIES, sl_recover_later(now_us, grace_us));
    return SL_OK;
}

sl_status sl_drain_return(sl_drain *d, uint32_t id, uint64_t now_us, sl_err *err) {
    if (id >= d->recover->roster->n) return unknown(d, id, err);
    sl_drain_place *p = &d->place[id];
    if (p->state == SL_DRAIN_WANTED)
        return sl_fail(err, SL_ERR_ARG, "worker %u is not drained", id);
    ask(d, id);
    p->spare = false;
    p->again = p->comes = true;
    if (p->state == SL_DRAIN_DRAINED) {
        sl_recover_want(d->recover, id, now_us);
        enter(d, id, SL_DRAIN_WANTED, SL_RECOVER_NEVER);
    } else if (p->state != SL_DRAIN_STOPS) {
        p->comes = false;
        done(p);
        stay(d, id, now_us);
    }
    return SL_OK;
}

/* ---- events ---- */

void sl_drain_empty(sl_drain *d, uint32_t id, uint64_t now_us) {
    sl_drain_place *p = &d->place[id];
    if (p->state != SL_DRAIN_EMPTIES || !can_go(d, id)) return;
    bool hands = (roles_of(d, id) & SL_ROLE_EXPERT) && !p->alone;
    enter(d, id, hands ? SL_DRAIN_HANDS : SL_DRAIN_STOPS, sl_recover_later(now_us, d->o.hand_us));
    sl_recover_release(d->recover, id, now_us);
}

void sl_drain_refused(sl_drain *d, sl_status status, const char *why, uint64_t now_us) {
    if (status != SL_ERR_INFEASIBLE) return; /* else it is tried again */
    for (uint32_t i = 0; i < d->recover->roster->n; i++)
        if (d->place[i].state == SL_DRAIN_HANDS) give_up(d, i, status, why, now_us);
}

bool sl_drain_ended(sl_drain *d, uint32_t id, uint64_t now_us) {
    sl_drain_place *p = &d->place[id];
    bool told = p->state == SL_DRAIN_STOPS && p->said;
    if (p->state == SL_DRAIN_WANTED || p->state == SL_DRAIN_DRAINED) return false;
    if (p->again) {
        p->comes = true;
        enter(d, id, SL_DRAIN_WANTED, SL_RECOVER_NEVER);
        sl_recover_want(d->recover, id, now_us);
    } else {
        done(p);
        enter(d, id, SL_DRAIN_DRAINED, SL_RECOVER_NEVER);
        sl_recover_release(d->recover, id, now_us);
    }
    return told;
}

void sl_drain_served(sl_drain *d, uint32_t id) {
    sl_drain_place *p = &d->place[id];
    if (!p->comes || p->state != SL_DRAIN_WANTED) return;
    p->comes = false;
    done(p);
    count(d);
}

/* ---- words ---- */

/* Whether a place that nobody has left yet cannot be left any more. */
static const char *why_stay(const sl_drain *d, uint32_t id, uint64_t now_us) {
    const sl_drain_place *p = &d->place[id];
    bool handed = p->state == SL_DRAIN_HANDS && !d->recover->place[id].planned;
    if (handed) return NULL;
    if (!p->alone && !others_suffice(d, id, true)) return "it is the last one of its kind by now";
    if (now_us < p->due_us) return NULL;
    if (p->state == SL_DRAIN_HANDS) return "no plan without it was taken in time";
    return p->said ? "its requests did not give way in time" : NULL;
}

static sl_drain_word stops(sl_drain *d, uint32_t id, uint64_t now_us) {
    sl_drain_place *p = &d->place[id];
    if (p->said && now_us < p->due_us) return SL_DRAIN_NOTHING;
    bool first = !p->said;
    p->said = true;
    p->due_us = first ? sl_recover_later(now_us, d->o.stop_us) : SL_RECOVER_NEVER;
    return first ? SL_DRAIN_STOP : SL_DRAIN_KILL;
}

/* It serves by the plan that holds, and not only until the change that is under way. */
static bool is_in_plan(const sl_drain *d, uint32_t id) {
    const sl_recover *r = d->recover;
    return r->place[id].planned && (!r->changing || r->there[id]);
}

static sl_drain_word say_of(sl_drain *d, uint32_t id, uint64_t now_us) {
    sl_drain_place *p = &d->place[id];
    bool leaves = p->state == SL_DRAIN_EMPTIES || p->state == SL_DRAIN_HANDS;
    const char *why = leaves ? why_stay(d, id, now_us) : NULL;
    if (why) give_up(d, id, SL_ERR_TIMEOUT, why, now_us);
    if (p->opens && is_in_plan(d, id)) {
        p->opens = false;
        return SL_DRAIN_OPEN;
    }
    if (p->state == SL_DRAIN_HANDS && !d->recover->place[id].planned)
        enter(d, id, SL_DRAIN_STOPS, now_us);
    if (p->state == SL_DRAIN_STOPS) return stops(d, id, now_us);
    if (p->state != SL_DRAIN_EMPTIES || p->said || now_us < p->due_us) return SL_DRAIN_NOTHING;
    if (!can_go(d, id)) return SL_DRAIN_NOTHING; /* another one is about to serve again */
    p->said = true;
    p->due_us = sl_recover_later(now_us, d->o.move_us);
    return SL_DRAIN_MOVE;
}

sl_drain_word sl_drain_next(sl_drain *d, uint64_t now_us, uint32_t *id) {
    for (uint32_t i = 0; d->n_busy > 0 && i < d->recover->roster->n; i++) {
        sl_drain_word word = is_busy(&d->place[i]) ? say_of(d, i, now_us) : SL_DRAIN_NOTHING;
        if (word == SL_DRAIN_NOTHING) continue;
        *id = i;
        count(d);
        return word;
    }
    return SL_DRAIN_NOTHING;
}
