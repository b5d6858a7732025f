/* Hedging: whose answers are overdue. */
#include "sched/hedge.h"

#include "base/mem.h"

/* What is usual follows answers slowly, up more slowly than down, and no single one may change it
 * by much: a worker that has become slow is to be noticed before that is usual. */
#define RISES    (1.0 / 96)
#define FALLS    (1.0 / 32)
#define LEAST_US 250.0 /* what is usual, at least: threads are not on time to less */
#define PASS_US  100u  /* between two looks at all debts, and as much more as those are thousands */

sl_status sl_hedge_create(uint32_t n_lanes, uint32_t n_workers, const sl_hedge_opts *o,
                          sl_hedge *out, sl_err *err) {
    *out = (sl_hedge){.o = *o,
                      .n_lanes = n_lanes,
                      .n_workers = n_workers,
                      .debt = sl_alloc((size_t)n_lanes * n_workers, sizeof *out->debt),
                      .worker = sl_alloc(n_workers, sizeof *out->worker)};
    if (!out->debt || !out->worker) {
        sl_hedge_free(out);
        return sl_fail(err, SL_ERR_NOMEM, "debts of %u workers in %u lanes", n_workers, n_lanes);
    }
    for (uint32_t i = 0; i < n_workers; i++)
        out->worker[i].usual_us = (double)o->floor_us / o->times;
    return SL_OK;
}

void sl_hedge_free(sl_hedge *h) {
    sl_free(h->debt);
    sl_free(h->worker);
    *h = (sl_hedge){0};
}

static sl_hedge_debt *debt_of(const sl_hedge *h, uint32_t lane, uint32_t worker) {
    return &h->debt[(size_t)lane * h->n_workers + worker];
}

void sl_hedge_reset(sl_hedge *h) {
    for (uint32_t w = 0; w < h->n_workers; w++) sl_hedge_forgive(h, w);
}

/* ---- what is owed ---- */

/* From now on it is waited for anew. */
static void wait_anew(const sl_hedge *h, sl_hedge_debt *d) {
    d->evident = false;
    d->waited_us = d->first_us = 0;
    d->doubt_us = h->o.doubt_us;
}

void sl_hedge_sent(sl_hedge *h, uint32_t lane, uint32_t worker, uint64_t n, uint64_t rows) {
    sl_hedge_debt *d = debt_of(h, lane, worker);
    if (d->owed == 0) {
        wait_anew(h, d);
        d->got = d->rows = 0;
        h->n_owing++;
    }
    d->owed += n;
    d->rows += rows;
}

static void learn(double *usual, double us) {
    double by = SL_MIN(us, 2 * *usual + 1000) - *usual;
    *usual += by * (by > 0 ? RISES : FALLS);
}

static void make_evident(sl_hedge_debt *d) {
    if (d->owed == 0 || d->evident) return;
    d->evident = true;
    d->first_us = d->waited_us;
    d->waited_us = 0;
}

void sl_hedge_answered(sl_hedge *h, uint32_t lane, uint32_t worker, uint64_t n) {
    sl_hedge_debt *d = debt_of(h, lane, worker);
    n = SL_MIN(n, d->owed);
    if (n == 0) return; /* it was forgiven */
    learn(&h->worker[worker].usual_us, d->evident ? (double)d->waited_us : 0);
    learn(&h->row_us, (double)(d->first_us + d->waited_us) / (double)(d->rows + n));
    d->owed -= n;
    d->got += n;
    wait_anew(h, d);
    h->n_owing -= d->owed == 0;
    for (uint32_t w = 0; w < h->n_workers; w++) {
        sl_hedge_debt *other = debt_of(h, lane, w);
        if (w == worker) continue;
        make_evident(other);
        if (other->got > d->got) make_evident(d); /* it is behind that one still */
    }
}

void sl_hedge_forgive(sl_hedge *h, uint32_t worker) {
    for (uint32_t l = 0; l < h->n_lanes; l++) {
        sl_hedge_debt *d = debt_of(h, l, worker);
        h->n_owing -= d->owed > 0;
        *d = (sl_hedge_debt){0};
    }
    h->worker[worker].wasted_us = 0;
    h->worker[worker].overdue = false;
}

/* ---- time ---- */

static bool is_overdue(const sl_hedge *h, uint32_t worker) {
    double usual_us = SL_MAX(h->worker[worker].usual_us, LEAST_US);
    for (uint32_t l = 0; l < h->n_lanes; l++) {
        const sl_hedge_debt *d = debt_of(h, l, worker);
        double rows_us = (double)(d->rows + d->owed) * h->row_us;
        double us = SL_MAX(SL_MAX(usual_us, (double)d->first_us), rows_us);
        if (d->owed && d->evident && (double)d->waited_us > h->o.times * us) return true;
    }
    return false;
}

bool sl_hedge_pass(sl_hedge *h, uint64_t now_us) {
    uint32_t n_debts = h->n_lanes * h->n_workers;
    uint64_t us = SL_MIN(now_us - h->now_us, h->o.blink_us);
    bool idle = h->n_owing == 0 && !h->wasted;
    if (!idle && us < PASS_US + n_debts / 10) return false;
    h->now_us = now_us;
    if (idle) return false;
    h->wasted = false;
    for (uint32_t i = 0; h->n_owing > 0 && i < n_debts; i++)
        if (h->debt[i].owed) h->debt[i].waited_us += us;
    for (uint32_t w = 0; w < h->n_workers; w++) {
        double *wasted = &h->worker[w].wasted_us;
        h->worker[w].overdue = h->n_owing > 0 && is_overdue(h, w);
        if (h->worker[w].overdue)
            *wasted = SL_MIN(*wasted + (double)us, 2 * (double)h->o.floor_us);
        else if (*wasted > 0)
            *wasted = SL_MAX(*wasted - h->o.leak * (double)us, 0.0);
        h->wasted = h->wasted || *wasted > 0;
    }
    return true;
}

/* Nobody has answered since it was sent, for as long as makes one wonder. */
static bool is_doubted(const sl_hedge *h, uint32_t worker) {
    bool any = false;
    for (uint32_t l = 0; l < h->n_lanes; l++) {
        sl_hedge_debt *d = debt_of(h, l, worker);
        if (!d->owed || d->evident || d->waited_us < d->doubt_us) continue;
        d->doubt_us = 2 * d->waited_us;
        any = true;
    }
    return any;
}

sl_hedge_word sl_hedge_next(sl_hedge *h, uint32_t *worker) {
    for (*worker = 0; *worker < h->n_workers; ++*worker) {
        sl_hedge_worker *w = &h->worker[*worker];
        bool slow = w->overdue && w->wasted_us >= (double)h->o.floor_us;
        if (slow && h->now_us >= w->quiet_us) {
            w->quiet_us = h->now_us + h->o.pause_us;
            return SL_HEDGE_SLOW;
        }
        if (h->n_owing > 0 && is_doubted(h, *worker)) return SL_HEDGE_DOUBT;
    }
    return SL_HEDGE_NOTHING;
}
