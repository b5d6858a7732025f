/* Lives of the workers of a plan. */
#include "sched/roster.h"

#include "base/mem.h"

sl_status sl_roster_create(uint32_t n, sl_roster *out, sl_err *err) {
    *out = (sl_roster){.n = n, .worker = sl_alloc(n, sizeof *out->worker)};
    if (!out->worker) return sl_fail(err, SL_ERR_NOMEM, "roster of %u workers", n);
    for (uint32_t i = 0; i < n; i++) out->worker[i].incarnation = SL_ROSTER_ANY;
    return SL_OK;
}

void sl_roster_free(sl_roster *r) {
    sl_free(r->worker);
    *r = (sl_roster){0};
}

void sl_roster_set_prompts(sl_roster *r, uint32_t id) {
    r->worker[id].prompts = true;
}

void sl_roster_expect(sl_roster *r, uint32_t id, uint32_t roles) {
    r->worker[id].roles = roles;
}

static bool is_free_for(const sl_roster *r, uint32_t id, uint64_t incarnation) {
    return r->worker[id].state == SL_ROSTER_ABSENT && r->worker[id].incarnation != incarnation;
}

uint32_t sl_roster_hello(sl_roster *r, uint32_t wanted, uint64_t incarnation) {
    uint32_t id = wanted == SL_ROSTER_NONE ? 0 : wanted;
    while (wanted == SL_ROSTER_NONE && id < r->n && !is_free_for(r, id, incarnation)) id++;
    if (id >= r->n || !is_free_for(r, id, incarnation)) return SL_ROSTER_NONE;
    r->worker[id].state = r->worker[id].reached = SL_ROSTER_JOINING;
    r->worker[id].incarnation = incarnation;
    r->n_came++;
    return id;
}

/* What is said of this incarnation is said of who is there. */
static bool is_of(const sl_roster_worker *w, uint64_t incarnation) {
    bool same = w->state != SL_ROSTER_ABSENT && incarnation == w->incarnation;
    return same || incarnation == SL_ROSTER_ANY;
}

static bool move(sl_roster *r, uint32_t id, uint64_t incarnation, sl_roster_state from,
                 sl_roster_state to) {
    sl_roster_worker *w = &r->worker[id];
    if (w->state != from || !is_of(w, incarnation)) return false;
    w->state = to;
    return true;
}

bool sl_roster_ready(sl_roster *r, uint32_t id, uint64_t incarnation) {
    if (!move(r, id, incarnation, SL_ROSTER_JOINING, SL_ROSTER_SERVING)) return false;
    r->worker[id].reached = SL_ROSTER_SERVING;
    r->n_ready++;
    return true;
}

bool sl_roster_silent(sl_roster *r, uint32_t id, uint64_t incarnation) {
    return move(r, id, incarnation, SL_ROSTER_SERVING, SL_ROSTER_SUSPECT);
}

bool sl_roster_heard(sl_roster *r, uint32_t id, uint64_t incarnation) {
    return move(r, id, incarnation, SL_ROSTER_SUSPECT, SL_ROSTER_SERVING);
}

bool sl_roster_ended(sl_roster *r, uint32_t id, uint64_t incarnation, uint32_t *duties) {
    sl_roster_worker *w = &r->worker[id];
    *duties = 0;
    if (w->state == SL_ROSTER_GONE || !is_of(w, incarnation)) return false;
    if (sl_roster_serves(r, id) && (w->roles & SL_ROLE_ATTENTION)) *duties |= SL_ROSTER_ANNOUNCE;
    if (sl_roster_serves(r, id) && (w->roles & SL_ROLE_EXPERT))
        *duties |= SL_ROSTER_RESET | SL_ROSTER_REHOST;
    w->state = SL_ROSTER_GONE;
    return true;
}

void sl_roster_reopen(sl_roster *r, uint32_t id) {
    sl_roster_worker *w = &r->worker[id];
    SL_ASSERT(w->state == SL_ROSTER_GONE);
    r->n_came -= w->reached >= SL_ROSTER_JOINING;
    r->n_ready -= w->reached >= SL_ROSTER_SERVING;
    w->state = w->reached = SL_ROSTER_ABSENT;
}
