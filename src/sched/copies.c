/* Books of copies: by request what is where, by worker what is on its way. */
#include "sched/copies.h"

#include "base/mem.h"

#include <string.h>

#define FIRST_PAGES 16u
/* Copies are made while more than one page in so many of a pool is free or cached, so that those
 * who run do not take pages from copies all the time. */
#define FREE_SHARE 8u
#define YIELD_MORE 16u /* pages that give way at once: looking for them costs */

static const sl_kv_copies_of none = {.at = SL_KV_COPIES_NONE};

/* ---- life ---- */

sl_status sl_kv_copies_create(uint32_t n_workers, sl_kv_copies *out, sl_err *err) {
    *out = (sl_kv_copies){.n_workers = n_workers};
    out->worker = sl_alloc(n_workers, sizeof *out->worker);
    if (!out->worker) return sl_fail(err, SL_ERR_NOMEM, "books of copies");
    for (uint32_t i = 0; i < n_workers; i++) out->worker[i].buddy = SL_KV_COPIES_NONE;
    return SL_OK;
}

void sl_kv_copies_free(sl_kv_copies *c) {
    for (uint32_t i = 0; i < c->cap; i++) sl_free(c->of[i].page);
    sl_free(c->of);
    sl_free(c->worker);
    *c = (sl_kv_copies){0};
}

bool sl_kv_copies_reserve(sl_kv_copies *c, uint32_t cap) {
    if (cap <= c->cap) return true;
    sl_kv_copies_of *bigger = sl_grow(c->of, c->cap, cap, sizeof *bigger);
    if (!bigger) return false;
    c->of = bigger;
    for (uint32_t i = c->cap; i < cap; i++) bigger[i] = none;
    c->cap = cap;
    return true;
}

/* ---- what is to be looked at ---- */

void sl_kv_copies_set_due(sl_kv_copies *c, uint32_t worker, bool due) {
    sl_kv_copies_worker *w = &c->worker[worker];
    due = due && (w->hands || w->buddy != SL_KV_COPIES_NONE);
    c->n_due += due;
    c->n_due -= w->due;
    w->due = due;
}

void sl_kv_copies_wake(sl_kv_copies *c, uint32_t buddy) {
    for (uint32_t i = 0; i < c->n_workers; i++)
        if (c->worker[i].hands || c->worker[i].buddy == buddy) sl_kv_copies_set_due(c, i, true);
}

void sl_kv_copies_pair(sl_kv_copies *c, uint32_t worker, uint32_t buddy) {
    c->worker[worker].buddy = buddy;
    sl_kv_copies_set_due(c, worker, true);
}

/* ---- transfers ---- */

bool sl_kv_copies_has_room(const sl_pages *pool) {
    return sl_pages_spare(pool) > pool->n_total / FREE_SHARE;
}

bool sl_kv_copies_may_ask(const sl_kv_copies *c, uint32_t to, const sl_pages *pool) {
    return c->worker[to].n_owed < SL_MAX_FETCHES && sl_kv_copies_has_room(pool);
}

/* For n pages altogether. */
static bool has_room(sl_kv_copies_of *of, uint32_t n) {
    if (n <= of->cap) return true;
    uint32_t cap = SL_MAX(SL_MAX(2 * of->cap, n), FIRST_PAGES);
    uint32_t *bigger = sl_grow(of->page, of->cap, cap, sizeof *bigger);
    if (!bigger) return false;
    of->page = bigger;
    of->cap = cap;
    return true;
}

bool sl_kv_copies_ask(sl_kv_copies *c, uint32_t request, uint32_t to, sl_pages *pool) {
    sl_kv_copies_of *of = &c->of[request];
    sl_kv_copies_worker *w = &c->worker[to];
    SL_ASSERT((of->at == to || of->at == SL_KV_COPIES_NONE) && w->n_owed < SL_MAX_FETCHES);
    if (!has_room(of, of->n_asked + 1) || !sl_pages_take(pool, 1, &of->page[of->n_asked]))
        return false;
    if (of->at == SL_KV_COPIES_NONE) of->order = ++c->orders;
    of->at = to;
    w->flight[w->n_flight++] = (sl_kv_copies_flight){++c->transfers, request, of->n_asked++};
    w->n_owed++;
    w->n_pages++;
    return true;
}

/* Transfers of the request's pages from n on. */
static void forget(sl_kv_copies_worker *w, uint32_t request, uint32_t n) {
    uint32_t left = 0;
    for (uint32_t i = 0; i < w->n_flight; i++)
        if (w->flight[i].request != request || w->flight[i].index < n)
            w->flight[left++] = w->flight[i];
    w->n_flight = left;
}

/* It has none any more. */
static void forget_all(sl_kv_copies_of *of) {
    of->at = SL_KV_COPIES_NONE;
    of->n_here = of->n_asked = 0;
}

void sl_kv_copies_cut(sl_kv_copies *c, uint32_t request, uint32_t n, sl_pages *pool) {
    sl_kv_copies_of *of = &c->of[request];
    if (n >= of->n_asked) return;
    sl_kv_copies_worker *w = &c->worker[of->at];
    forget(w, request, n);
    sl_pages_give(pool, of->page + n, of->n_asked - n);
    w->n_pages -= of->n_asked - n;
    of->n_asked = n;
    of->n_here = SL_MIN(of->n_here, n);
    if (n == 0) forget_all(of);
}

void sl_kv_copies_settle(sl_kv_copies *c, uint32_t request, sl_pages *pool) {
    sl_kv_copies_cut(c, request, c->of[request].n_here, pool);
}

uint32_t sl_kv_copies_answer(sl_kv_copies *c, uint32_t at, uint64_t transfer, bool here,
                             sl_pages *pool) {
    sl_kv_copies_worker *w = &c->worker[at];
    uint32_t i = 0;
    while (i < w->n_flight && w->flight[i].transfer != transfer) i++;
    if (i == w->n_flight) { /* as many as were forgotten may be said so */
        w->n_owed -= w->n_owed > w->n_flight;
        return SL_KV_COPIES_NONE;
    }
    w->n_owed--;
    const sl_kv_copies_flight f = w->flight[i];
    sl_kv_copies_of *of = &c->of[f.request];
    if (here && f.index == of->n_here) { /* they come in order, or not at all */
        for (w->n_flight--; i < w->n_flight; i++) w->flight[i] = w->flight[i + 1];
        of->n_here++;
        c->n_made++;
    } else {
        sl_kv_copies_cut(c, f.request, f.index, pool);
        c->n_failed++;
    }
    return f.request;
}

void sl_kv_copies_defer(sl_kv_copies *c, uint32_t request, uint32_t n_sure) {
    c->of[request].tried = n_sure;
}

/* ---- they go ---- */

uint32_t sl_kv_copies_take(sl_kv_copies *c, uint32_t request, uint32_t *pages) {
    sl_kv_copies_of *of = &c->of[request];
    uint32_t n = of->n_here;
    SL_ASSERT(of->n_asked == n && n > 0);
    memcpy(pages, of->page, n * sizeof *pages);
    c->worker[of->at].n_pages -= n;
    forget_all(of);
    return n;
}

/* The one with copies there that was copied last. */
static uint32_t last_at(const sl_kv_copies *c, uint32_t worker) {
    uint32_t last = SL_KV_COPIES_NONE;
    for (uint32_t i = 0; i < c->cap; i++) {
        const sl_kv_copies_of *of = &c->of[i];
        if (of->at == worker && (last == SL_KV_COPIES_NONE || of->order > c->of[last].order))
            last = i;
    }
    return last;
}

void sl_kv_copies_yield(sl_kv_copies *c, uint32_t worker, uint32_t n, sl_pages *pool) {
    const sl_kv_copies_worker *w = &c->worker[worker];
    while (sl_pages_spare(pool) < n && w->n_pages > 0) {
        uint32_t last = last_at(c, worker);
        uint32_t missing = SL_MAX(n - sl_pages_spare(pool), YIELD_MORE), have = c->of[last].n_asked;
        sl_kv_copies_cut(c, last, have - SL_MIN(missing, have), pool);
    }
}

void sl_kv_copies_lose(sl_kv_copies *c, uint32_t worker, sl_pages *pool) {
    sl_kv_copies_worker *w = &c->worker[worker];
    for (uint32_t i = 0; w->n_pages > 0 && i < c->cap; i++)
        if (c->of[i].at == worker) sl_kv_copies_cut(c, i, 0, pool);
    w->n_owed = 0;
}
