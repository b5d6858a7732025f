/* Recovery: which word is due, by who is there and what was tried when. */
#include "sched/recover.h"

#include "base/mem.h"

sl_status sl_recover_create(const sl_roster *roster, const sl_recover_opts *o, sl_recover *out,
                            sl_err *err) {
    *out = (sl_recover){.o = *o,
                        .roster = roster,
                        .due_us = SL_RECOVER_NEVER,
                        .place = sl_alloc(roster->n, sizeof *out->place),
                        .there = sl_alloc(roster->n, 1)};
    if (out->place && out->there) return SL_OK;
    sl_recover_free(out);
    return sl_fail(err, SL_ERR_NOMEM, "recovery of %u workers", roster->n);
}

void sl_recover_free(sl_recover *r) {
    sl_free(r->place);
    sl_free(r->there);
    *r = (sl_recover){0};
}

/* ---- who is there ---- */

static bool is_leaving(const sl_recover *r, uint32_t id) {
    return r->place[id].doomed || r->place[id].dropped;
}

static bool attends(const sl_recover *r, uint32_t id) {
    return r->roster->worker[id].roles & SL_ROLE_ATTENTION;
}

/* It serves by the plan that holds. */
static bool is_here(const sl_recover *r, uint32_t id) {
    return r->place[id].planned && !is_leaving(r, id);
}

/* It lives, and is to. */
static bool lives(const sl_recover *r, uint32_t id) {
    bool joins = r->roster->worker[id].state == SL_ROSTER_JOINING;
    bool serves = joins || sl_roster_serves(r->roster, id);
    return serves && !r->place[id].coming && !is_leaving(r, id) && !r->place[id].rests &&
           !r->place[id].released;
}

/* The side for prompts has whom it needs: attention, and experts if it has any of its own. */
static bool prompts_suffice(const sl_recover *r) {
    uint32_t wanted = 0, roles = 0;
    for (uint32_t i = 0; i < r->roster->n; i++) {
        if (!r->roster->worker[i].prompts) continue;
        wanted |= r->roster->worker[i].roles;
        if (lives(r, i)) roles |= r->roster->worker[i].roles;
    }
    return roles == wanted;
}

/* A change would take it in, or in again. */
static bool is_there(const sl_recover *r, uint32_t id) {
    return lives(r, id) && (!r->roster->worker[id].prompts || prompts_suffice(r));
}

/* It has experts that others are to get. */
static bool is_released(const sl_recover *r, uint32_t id) {
    return r->place[id].released && is_here(r, id) &&
           (r->roster->worker[id].roles & SL_ROLE_EXPERT);
}

static bool is_new(const sl_recover *r, uint32_t id) {
    return is_there(r, id) && !r->place[id].planned;
}

/* It rests as it is slow, and others are to get what it has. */
static bool is_spared(const sl_recover *r, uint32_t id) {
    return r->place[id].slow && is_here(r, id);
}

static bool is_missed(const sl_recover *r, uint32_t id) {
    return r->place[id].missed;
}

/* Nobody is there, and nobody is on its way. */
static bool is_away(const sl_recover *r, uint32_t id) {
    sl_roster_state state = r->roster->worker[id].state;
    if (r->place[id].released) return false;
    return (state == SL_ROSTER_GONE || state == SL_ROSTER_ABSENT) && !r->place[id].coming;
}

/* Attention and experts are among those who pass, without those for prompts. */
static bool suffice(const sl_recover *r, bool (*pass)(const sl_recover *, uint32_t)) {
    uint32_t roles = 0;
    for (uint32_t i = 0; i < r->roster->n; i++)
        if (!r->roster->worker[i].prompts && pass(r, i)) roles |= r->roster->worker[i].roles;
    return (roles & SL_ROLE_ATTENTION) && (roles & SL_ROLE_EXPERT);
}

/* The same, and not by the side for prompts. */
static bool is_missed_by_others(const sl_recover *r, uint32_t id) {
    return is_missed(r, id) && !r->roster->worker[id].prompts;
}

static bool any(const sl_recover *r, bool (*is)(const sl_recover *, uint32_t)) {
    for (uint32_t i = 0; i < r->roster->n; i++)
        if (is(r, i)) return true;
    return false;
}

/* ---- times ---- */

/* Others are there now than failed to change. */
static void stir(sl_recover *r) {
    r->stirred = true;
    r->retry_us = 0;
}

static void end_rests(sl_recover *r, uint64_t now_us) {
    for (uint32_t i = 0; i < r->roster->n; i++) {
        sl_recover_place *p = &r->place[i];
        bool waits = p->slow && (p->planned || !p->answered) && now_us != SL_RECOVER_NEVER;
        if (!p->rests || waits || now_us < p->rest_us) continue;
        if (p->slow && p->planned) { /* others do without it by this plan */
            p->missed = false;
            r->mend = true;
            r->mend_us = 0;
        }
        p->rests = p->slow = false;
        stir(r);
    }
}

/* Before the next attempt, after so many in vain. */
static uint64_t pause_after(uint32_t n, uint64_t first_us, uint64_t most_us) {
    uint64_t us = n ? first_us : 0;
    for (uint32_t i = 1; i < n && us < most_us; i++) us *= 2;
    return SL_MIN(us, most_us);
}

/* Requests run at attention of a side for prompts that cannot go on: it ends, and they go on
 * elsewhere. */
static void end_prompts(sl_recover *r) {
    if (prompts_suffice(r)) return;
    for (uint32_t i = 0; i < r->roster->n; i++)
        if (r->roster->worker[i].prompts && is_here(r, i) && attends(r, i))
            r->place[i].doomed = true;
}

/* After each event: what it means for service. Something may be due now. */
static void settle(sl_recover *r, uint64_t now_us) {
    r->n_away = 0;
    end_prompts(r);
    if (!suffice(r, is_there)) end_rests(r, SL_RECOVER_NEVER);
    for (uint32_t i = 0; i < r->roster->n; i++)
        r->n_away += !is_here(r, i) && !r->place[i].released;
    if (!r->mend && !r->mending && suffice(r, is_here) && !any(r, is_missed_by_others)) {
        r->service = SL_RECOVER_SERVES;
    } else if (r->service == SL_RECOVER_SERVES) {
        r->service = SL_RECOVER_WAITS;
        r->waits_since_us = now_us;
    }
    r->due_us = 0;
}

/* ---- events ---- */

void sl_recover_begin(sl_recover *r, uint64_t now_us) {
    r->begun = true;
    for (uint32_t i = 0; i < r->roster->n; i++) {
        r->place[i].planned = sl_roster_serves(r->roster, i);
        r->place[i].since_us = now_us;
    }
    settle(r, now_us);
}

void sl_recover_lost(sl_recover *r, uint32_t id, uint64_t now_us) {
    sl_recover_place *p = &r->place[id];
    if (!r->begun) return;
    if (p->planned && now_us - p->since_us >= r->o.served_us) p->starts = 0;
    p->next_us = sl_recover_later(
        now_us, pause_after(p->starts, r->o.start_pause_us, r->o.start_pause_max_us));
    p->missed |= p->planned && (r->roster->worker[id].roles & SL_ROLE_EXPERT);
    p->planned = p->coming = p->doomed = p->dropped = p->rests = p->slow = false;
    p->since_us = now_us;
    p->started_us = 0;
    p->breaks = p->rested = 0;
    r->there[id] = 0;
    r->weighed = false;
    r->await_us = 0;
    stir(r);
    settle(r, now_us);
}

void sl_recover_coming(sl_recover *r, uint32_t id, uint64_t now_us) {
    if (!r->begun) return;
    r->place[id].coming = true;
    r->place[id].next_us = sl_recover_later(now_us, r->o.coming_us);
    settle(r, now_us);
}

void sl_recover_joined(sl_recover *r, uint32_t id, uint64_t now_us) {
    if (!r->begun) return;
    r->place[id].coming = r->place[id].doomed = r->place[id].dropped = false;
    stir(r);
    settle(r, now_us);
}

/* ---- links ---- */

/* False: it is the one that was counted. */
static bool count_break(sl_recover *r, uint32_t id, uint64_t now_us) {
    sl_recover_place *p = &r->place[id];
    if (p->breaks && now_us - p->broke_us < r->o.same_us) return false;
    if (now_us - p->broke_us >= r->o.served_us) p->breaks = 0;
    p->broke_us = now_us;
    p->breaks++;
    return true;
}

/* The others can do without it. */
static bool can_spare(sl_recover *r, uint32_t id) {
    bool rested = r->place[id].rests;
    r->place[id].rests = true;
    bool can = suffice(r, is_there);
    r->place[id].rests = rested;
    return can;
}

/* The end of a link that is rather at fault. */
static uint32_t worse_of(const sl_recover *r, uint32_t a, uint32_t b) {
    if (r->place[a].breaks != r->place[b].breaks)
        return r->place[a].breaks > r->place[b].breaks ? a : b;
    if (attends(r, a) != attends(r, b)) return attends(r, a) ? b : a;
    return SL_MAX(a, b);
}

static void leave_out(sl_recover *r, uint32_t id, uint64_t first_us, uint64_t now_us) {
    sl_recover_place *p = &r->place[id];
    if (p->rests) return;
    p->doomed = attends(r, id);
    p->rests = !p->doomed;
    if (p->planned && now_us - p->since_us >= r->o.served_us) p->rested = 0;
    p->rest_us = sl_recover_later(now_us, pause_after(++p->rested, first_us, r->o.rest_max_us));
    stir(r);
}

/* Somebody who cannot be spared is ended when a process in its place may do better. */
static void find_fault(sl_recover *r, uint32_t a, uint32_t b, uint64_t now_us) {
    uint32_t worse = worse_of(r, a, b), breaks = r->place[worse].breaks;
    if (breaks < r->o.links) return;
    if (!can_spare(r, worse) && can_spare(r, a + b - worse)) worse = a + b - worse;
    if (can_spare(r, worse))
        leave_out(r, worse, r->o.rest_us, now_us);
    else
        r->place[worse].doomed |= breaks > 2 * r->o.links && r->place[worse].can_start;
}

void sl_recover_ailing(sl_recover *r, uint32_t id, uint32_t other, uint64_t now_us) {
    if (!r->begun || id == other || is_leaving(r, id) || is_leaving(r, other)) return;
    bool news = count_break(r, id, now_us), more = count_break(r, other, now_us);
    bool rests = r->place[id].rests || r->place[other].rests;
    if ((news || more) && !rests) find_fault(r, id, other, now_us);
    if (is_here(r, id) && is_here(r, other)) {
        bool again = is_there(r, id) && is_there(r, other); /* those of one left out need not be */
        uint32_t before = SL_MAX(r->place[id].breaks, 1u) - 1;
        uint64_t us = pause_after(before, r->o.retry_pause_us, r->o.retry_pause_max_us);
        uint64_t at_us = again ? sl_recover_later(now_us, us) : now_us;
        r->mend_us = r->mend ? SL_MIN(r->mend_us, at_us) : at_us;
        r->mend = true;
    }
    settle(r, now_us);
}

/* ---- slowness ---- */

/* Of few at a time: what a whole machine waits for is nobody's fault. */
static bool may_rest(const sl_recover *r) {
    uint32_t n = 0, slow = 0;
    for (uint32_t i = 0; i < r->roster->n; i++) {
        bool counts = is_here(r, i) || r->place[i].slow; /* places where nobody is do not */
        n += counts && (r->roster->worker[i].roles & SL_ROLE_EXPERT) != 0;
        slow += r->place[i].slow;
    }
    return slow < SL_MAX(n / r->o.slow, 1u);
}

bool sl_recover_slow(sl_recover *r, uint32_t id, bool alone, uint64_t now_us) {
    sl_recover_place *p = &r->place[id];
    bool can = r->begun && is_here(r, id) && is_there(r, id) && !attends(r, id);
    if (!can || !may_rest(r) || !can_spare(r, id)) return false;
    leave_out(r, id, alone ? r->o.rest_alone_us : r->o.rest_us, now_us);
    p->missed |= alone;
    p->slow = true;
    p->answered = false;
    settle(r, now_us);
    return true;
}

void sl_recover_answered(sl_recover *r, uint32_t id, uint64_t now_us) {
    if (!r->place[id].slow || r->place[id].answered) return;
    r->place[id].answered = true;
    settle(r, now_us);
}

bool sl_recover_has_slow(const sl_recover *r) {
    return any(r, is_spared);
}

void sl_recover_measured(sl_recover *r, uint64_t took_us) {
    r->serve_us = took_us;
}

void sl_recover_release(sl_recover *r, uint32_t id, uint64_t now_us) {
    r->place[id].released = true;
    stir(r);
    settle(r, now_us);
}

void sl_recover_want(sl_recover *r, uint32_t id, uint64_t now_us) {
    sl_recover_place *p = &r->place[id];
    p->released = false;
    p->starts = 0;
    if (!p->planned && !p->coming) p->next_us = now_us;
    stir(r);
    settle(r, now_us);
}

/* ---- changes ---- */

static void take(sl_recover *r, uint64_t now_us) {
    for (uint32_t i = 0; i < r->roster->n; i++) {
        sl_recover_place *p = &r->place[i];
        if (!p->planned && r->there[i]) p->since_us = now_us;
        if (p->started_us && r->there[i]) {
            r->serve_us = p->serve_us = now_us - p->started_us;
            p->started_us = 0;
        }
        p->planned = r->there[i];
        p->missed = p->asked && !p->planned && (r->roster->worker[i].roles & SL_ROLE_EXPERT);
        if (!p->planned || !p->rests || p->slow) continue;
        r->mend = true; /* it was too late to leave it out */
        r->mend_us = now_us;
    }
    r->n_failed = 0;
}

static void fail(sl_recover *r, uint32_t culprit, uint64_t now_us) {
    uint64_t us = pause_after(++r->n_failed, r->o.retry_pause_us, r->o.retry_pause_max_us);
    if (culprit != SL_ROSTER_NONE && is_new(r, culprit)) {
        r->place[culprit].doomed = true;
        stir(r);
    }
    r->retry_us = r->stirred ? 0 : sl_recover_later(now_us, us);
    if (r->mending && !r->mend) r->mend_us = now_us;
    r->mend |= r->mending;
}

void sl_recover_changed(sl_recover *r, bool taken, uint32_t culprit, uint64_t now_us) {
    SL_ASSERT(r->changing);
    r->changing = false;
    if (taken)
        take(r, now_us);
    else
        fail(r, culprit, now_us);
    r->mending = false;
    settle(r, now_us);
}

/* ---- who is waited for ---- */

/* A process is about to come there, or comes, and none was in vain. */
static bool may_await(const sl_recover *r, uint32_t id) {
    const sl_recover_place *p = &r->place[id];
    if (!p->can_start || p->released) return false;
    return is_away(r, id) ? p->starts == 0 : p->coming && p->started_us && p->starts == 1;
}

/* Experts are nowhere, and who could bring them back is not there. */
static bool is_lacked(const sl_recover *r, uint32_t id) {
    return r->place[id].missed && !is_there(r, id);
}

/* All of those may come soon. *id: one of them. */
static bool may_weigh(const sl_recover *r, uint32_t *id) {
    uint32_t n = 0;
    if (r->weighed || r->serve_us == 0) return false;
    for (uint32_t i = 0; i < r->roster->n; i++) {
        if (!is_lacked(r, i)) continue;
        if (!may_await(r, i)) return false;
        *id = i;
        n++;
    }
    return n > 0;
}

uint64_t sl_recover_lack_us(const sl_recover *r, uint64_t now_us) {
    uint64_t us = 0;
    for (uint32_t i = 0; i < r->roster->n; i++)
        if (is_lacked(r, i)) us = SL_MAX(us, sl_recover_back_us(r, i, now_us));
    return us;
}

/* Requests have time left when it was in vain. */
uint64_t sl_recover_weighed(sl_recover *r, uint64_t rehost_us, uint64_t now_us) {
    uint64_t us = sl_rehost_awaits_us(rehost_us, sl_recover_lack_us(r, now_us));
    us = SL_MIN(us, r->o.patience_us / 2);
    r->await_us = us ? sl_recover_later(now_us, us) : 0;
    r->due_us = 0;
    return us;
}

/* ---- words ---- */

/* When a change is due, by those who are there now. */
static uint64_t change_due(const sl_recover *r) {
    if (r->changing || !suffice(r, is_there)) return SL_RECOVER_NEVER;
    bool others = any(r, is_new) || any(r, is_missed);
    if (r->await_us && any(r, is_lacked)) return SL_MAX(r->retry_us, r->await_us);
    if (others || any(r, is_released) || any(r, is_spared)) return r->retry_us;
    return r->mend ? SL_MAX(r->retry_us, r->mend_us) : SL_RECOVER_NEVER;
}

/* While nobody else can serve a long pause would only use up the patience. */
static uint64_t start_due(const sl_recover *r, uint32_t id) {
    const sl_recover_place *p = &r->place[id];
    if (r->service != SL_RECOVER_WAITS) return p->next_us;
    return SL_MIN(p->next_us, sl_recover_later(p->since_us, r->o.start_pause_us));
}

uint64_t sl_recover_back_us(const sl_recover *r, uint32_t id, uint64_t now_us) {
    const sl_recover_place *p = &r->place[id];
    if (!p->can_start || p->released) return SL_RECOVER_NEVER;
    uint64_t from_us = p->started_us;
    if (is_away(r, id)) from_us = SL_MAX(start_due(r, id), now_us);
    uint64_t at_us = sl_recover_later(from_us, p->serve_us ? p->serve_us : r->serve_us);
    return at_us > now_us ? at_us - now_us : now_us - at_us;
}

/* When the place needs a word of its own, and which. */
static uint64_t place_due(const sl_recover *r, uint32_t id, sl_recover_word *word) {
    const sl_recover_place *p = &r->place[id];
    *word = SL_RECOVER_DROP;
    if (p->dropped) return SL_RECOVER_NEVER;
    if (p->doomed) return 0;
    if (p->coming) return p->next_us;
    *word = SL_RECOVER_START;
    return p->can_start && is_away(r, id) && !r->changing ? start_due(r, id) : SL_RECOVER_NEVER;
}

static void begin_change(sl_recover *r) {
    r->changing = true;
    r->await_us = 0;
    r->stirred = false;
    r->mending = r->mend;
    r->mend = false;
    for (uint32_t i = 0; i < r->roster->n; i++) r->there[i] = r->place[i].asked = is_there(r, i);
}

static void say_of(sl_recover *r, uint32_t id, sl_recover_word word, uint64_t now_us) {
    sl_recover_place *p = &r->place[id];
    if (word == SL_RECOVER_DROP) {
        p->dropped = true;
        return;
    }
    p->coming = true;
    p->starts++;
    p->started_us = now_us;
    p->next_us = sl_recover_later(now_us, r->o.coming_us);
}

/* Says the word of the first place of which it is due, if any; *due_us: when it is otherwise. */
static bool say(sl_recover *r, sl_recover_word wanted, uint64_t now_us, uint32_t *id,
                uint64_t *due_us) {
    for (uint32_t i = 0; i < r->roster->n; i++) {
        sl_recover_word word;
        uint64_t at_us = place_due(r, i, &word);
        if (word != wanted) continue;
        *due_us = SL_MIN(*due_us, at_us);
        if (at_us > now_us) continue;
        *id = i;
        say_of(r, i, word, now_us);
        return true;
    }
    return false;
}

sl_recover_word sl_recover_next(sl_recover *r, uint64_t now_us, uint32_t *id) {
    uint64_t due_us = SL_RECOVER_NEVER, change_us;
    if (!r->begun || now_us < r->due_us) return SL_RECOVER_NOTHING;
    if (r->service == SL_RECOVER_WAITS)
        due_us = sl_recover_later(r->waits_since_us, r->o.patience_us);
    if (now_us >= due_us) {
        r->service = SL_RECOVER_GAVE_UP;
        return SL_RECOVER_GIVE_UP;
    }
    if (say(r, SL_RECOVER_DROP, now_us, id, &due_us)) return SL_RECOVER_DROP;
    if (!r->changing) end_rests(r, now_us);
    change_us = change_due(r);
    if (now_us >= change_us && may_weigh(r, id)) {
        r->weighed = true;
        for (uint32_t i = 0; i < r->roster->n; i++) r->there[i] = is_there(r, i);
        return SL_RECOVER_WEIGH;
    }
    if (now_us >= change_us) {
        begin_change(r);
        return SL_RECOVER_CHANGE;
    }
    due_us = SL_MIN(due_us, change_us);
    for (uint32_t i = 0; i < r->roster->n && !r->changing; i++)
        if (r->place[i].rests && (!r->place[i].slow || r->place[i].answered))
            due_us = SL_MIN(due_us, r->place[i].rest_us);
    if (say(r, SL_RECOVER_START, now_us, id, &due_us)) return SL_RECOVER_START;
    r->due_us = due_us;
    return SL_RECOVER_NOTHING;
}
