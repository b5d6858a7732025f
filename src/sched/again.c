/* Groups of a lane's rows at the experts: who owes them, which are sent again, which answer counts.
 */
#include "sched/again.h"

#include "base/mem.h"
#include "base/mutate.h"

#define CALLS_AT_FIRST 8u

/* ---- life ---- */

sl_status sl_again_create(uint32_t chunks, uint32_t n_workers,
                          void (*drop)(void *ctx, uint32_t call), void *ctx, sl_again *out,
                          sl_err *err) {
    *out = (sl_again){
        .n_workers = n_workers, .n_groups = chunks * n_workers, .drop = drop, .ctx = ctx};
    out->group = sl_alloc(out->n_groups, sizeof *out->group);
    out->spared = sl_alloc(n_workers, sizeof *out->spared);
    if (out->group && out->spared) return SL_OK;
    return sl_fail(err, SL_ERR_NOMEM, "groups of %u chunks for %u expert workers", chunks,
                   n_workers);
}

void sl_again_free(sl_again *a) {
    sl_free(a->group);
    sl_free(a->spared);
    sl_free(a->call);
    *a = (sl_again){0};
}

/* ---- calls ---- */

static void vacate(sl_again *a, uint32_t call) {
    bool kept = a->call[call].state == SL_CALL_HERE;
    a->call[call].state = SL_CALL_FREE;
    if (kept) a->drop(a->ctx, call);
}

/* The group's attempt counts no more: what came is dropped, what will come is late. */
static void void_attempt(sl_again *a, uint32_t group) {
    for (uint32_t i = 0; i < a->n_calls; i++) {
        sl_again_call *c = &a->call[i];
        if (c->group != group) continue;
        if (c->state == SL_CALL_HERE) vacate(a, i);
        if (c->state == SL_CALL_AWAY) c->state = SL_CALL_LATE;
    }
}

static bool owes_late(const sl_again *a, uint32_t group) {
    for (uint32_t i = 0; i < a->n_calls; i++) {
        const sl_again_call *c = &a->call[i];
        if (c->group == group && c->state == SL_CALL_LATE && !a->spared[c->worker]) return true;
    }
    return false;
}

static void make_due(sl_again *a, sl_again_group *g) {
    g->phase = SL_AGAIN_DUE;
    a->n_due++;
}

/* An attempt has answered the group, or it has no rows. */
static void be_here(sl_again_group *g) {
    g->phase = SL_AGAIN_HERE;
    if (g->debt == SL_DEBT_OPEN) g->debt = SL_DEBT_LATE;
}

void sl_again_reset(sl_again *a) {
    for (uint32_t i = 0; i < a->n_calls; i++) vacate(a, i);
    for (uint32_t i = 0; i < a->n_groups; i++) a->group[i] = (sl_again_group){0};
    for (uint32_t i = 0; i < a->n_workers; i++) a->spared[i] = false;
    a->n_calls = a->n_due = 0;
    a->n_attempts = 0;
}

/* ---- a layer ---- */

void sl_again_sent(sl_again *a, uint32_t group, bool lost, uint32_t rows) {
    sl_again_group *g = &a->group[group];
    SL_ASSERT(g->phase == SL_AGAIN_REST);
    g->phase = lost ? SL_AGAIN_HERE : SL_AGAIN_AWAY;
    g->rows = rows;
    if (lost && rows > 0) make_due(a, g);
}

sl_again_verdict sl_again_replied(sl_again *a, uint32_t group) {
    sl_again_group *g = &a->group[group];
    const sl_again_debt debt = g->debt;
    if (debt == SL_DEBT_NONE && g->phase != SL_AGAIN_AWAY) return SL_AGAIN_WRONG;
    g->debt = SL_DEBT_NONE;
    if (debt == SL_DEBT_LATE) return SL_AGAIN_LATE;
    if (g->phase == SL_AGAIN_DUE) a->n_due--;
    if (debt == SL_DEBT_OPEN && !SL_MUTATION(BOTH_COUNT)) void_attempt(a, group);
    g->phase = SL_AGAIN_HERE;
    return SL_AGAIN_WHOLE;
}

static uint32_t find(const sl_again *a, uint32_t worker, uint64_t attempt) {
    for (uint32_t i = 0; i < a->n_calls; i++) {
        const sl_again_call *c = &a->call[i];
        bool owed = c->state == SL_CALL_AWAY || c->state == SL_CALL_LATE;
        if (owed && c->worker == worker && c->attempt == attempt) return i;
    }
    return SL_AGAIN_NONE;
}

sl_again_verdict sl_again_answered(sl_again *a, uint32_t worker, uint64_t attempt, uint32_t *call) {
    *call = find(a, worker, attempt);
    if (*call == SL_AGAIN_NONE) return SL_AGAIN_WRONG;
    sl_again_call *c = &a->call[*call];
    sl_again_group *g = &a->group[c->group];
    if (c->state == SL_CALL_LATE) {
        c->state = SL_CALL_FREE;
        return SL_AGAIN_LATE;
    }
    c->state = SL_CALL_HERE;
    if (g->phase == SL_AGAIN_TRIED && --g->missing > 0) return SL_AGAIN_KEPT;
    be_here(g);
    return SL_AGAIN_WHOLE;
}

void sl_again_close(sl_again *a) {
    for (uint32_t i = 0; i < a->n_groups; i++) {
        SL_ASSERT(a->group[i].phase == SL_AGAIN_HERE);
        a->group[i].phase = SL_AGAIN_REST;
    }
    for (uint32_t i = 0; i < a->n_calls; i++)
        if (a->call[i].state == SL_CALL_HERE) vacate(a, i);
    while (a->n_calls > 0 && a->call[a->n_calls - 1].state == SL_CALL_FREE) a->n_calls--;
}

/* ---- losses ---- */

void sl_again_spare(sl_again *a, uint32_t worker) {
    a->spared[worker] = true;
    for (uint32_t i = worker; i < a->n_groups; i += a->n_workers) {
        if (a->group[i].phase != SL_AGAIN_AWAY) continue;
        a->group[i].debt = SL_DEBT_OPEN;
        make_due(a, &a->group[i]);
    }
    for (uint32_t i = 0; i < a->n_calls; i++) {
        const sl_again_call *c = &a->call[i];
        if (c->worker != worker || c->state != SL_CALL_AWAY) continue;
        make_due(a, &a->group[c->group]);
        void_attempt(a, c->group);
    }
}

void sl_again_lost(sl_again *a, uint32_t worker) {
    sl_again_spare(a, worker);
    for (uint32_t i = worker; i < a->n_groups; i += a->n_workers) a->group[i].debt = SL_DEBT_NONE;
    for (uint32_t i = 0; i < a->n_calls; i++) {
        sl_again_call *c = &a->call[i];
        if (c->worker == worker && c->state == SL_CALL_LATE) c->state = SL_CALL_FREE;
    }
}

uint32_t sl_again_next(const sl_again *a) {
    for (uint32_t i = 0; a->n_due > 0 && i < a->n_groups; i++)
        if (a->group[i].phase == SL_AGAIN_DUE && !owes_late(a, i)) return i;
    return SL_AGAIN_NONE;
}

uint64_t sl_again_begin(sl_again *a, uint32_t group) {
    sl_again_group *g = &a->group[group];
    SL_ASSERT(g->phase == SL_AGAIN_DUE);
    a->n_due--;
    g->phase = SL_AGAIN_TRIED;
    g->missing = 0;
    return g->attempt = ++a->n_attempts;
}

/* A place for another call. */
static sl_status take_call(sl_again *a, uint32_t *out, sl_err *err) {
    for (*out = 0; *out < a->n_calls; ++*out)
        if (a->call[*out].state == SL_CALL_FREE) return SL_OK;
    if (a->n_calls == a->cap) {
        uint32_t cap = SL_MAX(2 * a->cap, CALLS_AT_FIRST);
        sl_again_call *call = sl_grow(a->call, a->cap, cap, sizeof *call);
        if (!call) return sl_fail(err, SL_ERR_NOMEM, "%u messages that go again", cap);
        a->call = call;
        a->cap = cap;
    }
    a->n_calls++;
    return SL_OK;
}

sl_status sl_again_with(sl_again *a, uint32_t group, uint32_t worker, sl_err *err) {
    sl_again_group *g = &a->group[group];
    uint32_t at;
    SL_ASSERT(g->phase == SL_AGAIN_TRIED);
    sl_status st = take_call(a, &at, err);
    if (st != SL_OK) return st;
    a->call[at] = (sl_again_call){
        .state = SL_CALL_AWAY, .group = group, .worker = worker, .attempt = g->attempt};
    g->missing++;
    return SL_OK;
}

bool sl_again_end(sl_again *a, uint32_t group) {
    sl_again_group *g = &a->group[group];
    if (g->phase == SL_AGAIN_TRIED && g->missing == 0) be_here(g);
    return g->phase == SL_AGAIN_HERE;
}

void sl_again_withdraw(sl_again *a, uint64_t attempt) {
    for (uint32_t i = 0; i < a->n_calls; i++)
        if (a->call[i].attempt == attempt) vacate(a, i);
}
