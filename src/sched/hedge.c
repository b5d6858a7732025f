/* Hedging: whose answers are overdue. */
#include "sched/hedge.h"

#include "base/mem.h"
#include "sched/busy.h"

#define LEAST_US 250.0  /* what is usual, at least: threads are not on time to less */
#define LEARN_US 1000.0 /* so much longer than usual counts in any case */
#define SELDOM   16u  /* one of so many overdue answers of a worker that is alone is learnt from */
#define PASS_US  100u /* between two looks at all debts, and as much more as those are thousands */

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

/* Nobody owed the lane anything: who has answered how much counts anew. */
static void begin_burst(sl_hedge *h, uint32_t lane) {
    for (uint32_t w = 0; w < h->n_workers; w++)
        if (debt_of(h, lane, w)->owed) return;
    for (uint32_t w = 0; w < h->n_workers; w++) debt_of(h, lane, w)->got = 0;
}

void sl_hedge_sent(sl_hedge *h, uint32_t lane, uint32_t worker, uint64_t n, uint64_t rows) {
    sl_hedge_debt *d = debt_of(h, lane, worker);
    if (d->owed == 0) {
        begin_burst(h, lane);
        wait_anew(h, d);
        d->rows = 0;
        h->n_owing++;
    }
    d->owed += n;
    d->rows += (double)rows;
}

/* n answers have come, for `rows` of what was sent. While it had much to do for others that says
 * nothing. */
static void learn(const sl_hedge *h, sl_hedge_worker *w, const sl_hedge_debt *d, double rows) {
    if (h->now_us < w->busy_us) return;
    if (w->alone && w->overdue && w->n_late++ % SELDOM != 0) return;
    sl_busy_learn(&w->usual_us, d->evident ? (double)d->waited_us : 0, LEARN_US);
    if (rows <= 0) return;
    double us = (double)(d->first_us + d->waited_us) / rows;
    if (w->row_us > 0)
        sl_busy_learn(&w->row_us, us, 0);
    else
        w->row_us = us;
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
    double rows = d->rows * (double)n / (double)d->owed;
    learn(h, &h->worker[worker], d, rows);
    d->rows -= rows;
    d->owed -= n;
    d->got += n;
    wait_anew(h, d);
    h->n_owing -= d->owed == 0;
    for (uint32_t w = 0; w < h->n_workers; w++) {
        sl_hedge_debt *other = debt_of(h, lane, w);
        if (w == worker) continue;
        make_evident(other);
        if (other->owed == 0 && other->got > 0) make_evident(d); /* that one has done its part */
    }
}

void sl_hedge_busy(sl_hedge *h, uint32_t worker, uint64_t us, uint64_t now_us) {
    uint64_t *until_us = &h->worker[worker].busy_us;
    us = SL_MIN(us, SL_BUSY_MOST_US);
    *until_us = SL_MAX(*until_us, now_us + (uint64_t)(h->o.times * (double)us));
}

void sl_hedge_alone(sl_hedge *h, uint32_t worker, bool alone) {
    h->worker[worker].alone = alone;
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
    const sl_hedge_worker *w = &h->worker[worker];
    double usual_us = SL_MAX(w->usual_us, LEAST_US);
    if (h->now_us < w->busy_us) return false;
    for (uint32_t l = 0; l < h->n_lanes; l++) {
        const sl_hedge_debt *d = debt_of(h, l, worker);
        double us = SL_MAX(SL_MAX(usual_us, (double)d->first_us), d->rows * w->row_us);
        if (d->owed && d->evident && (double)d->waited_us > h->o.times * us) return true;
    }
    return false;
}

/* So much wasted time makes a worker slow. */
static double floor_us(const sl_hedge *h, const sl_hedge_worker *w) {
    return (double)((w->alone ? h->o.alone_us : h->o.floor_us) + SL_HEDGE_LATE * h->late_us);
}

/* More is not known. */
static double most_us(const sl_hedge *h, const sl_hedge_worker *w) {
    return w->alone ? (double)h->o.most_us : 2 * floor_us(h, w);
}

/* Of what it has wasted, in so much other time. */
static double forgotten_us(const sl_hedge *h, const sl_hedge_worker *w, double us) {
    double part = w->alone ? w->wasted_us / (double)h->o.forget_us : 0;
    return us * SL_MAX(h->o.leak, part);
}

bool sl_hedge_pass(sl_hedge *h, uint64_t now_us, uint64_t late_us) {
    uint32_t n_debts = h->n_lanes * h->n_workers;
    uint64_t us = SL_MIN(now_us - h->now_us, h->o.blink_us);
    bool idle = h->n_owing == 0 && !h->wasted;
    if (!idle && us < PASS_US + n_debts / 10) return false;
    h->now_us = now_us;
    h->late_us = late_us;
    if (idle) return false;
    h->wasted = false;
    for (uint32_t i = 0; h->n_owing > 0 && i < n_debts; i++)
        if (h->debt[i].owed) h->debt[i].waited_us += us;
    for (uint32_t w = 0; w < h->n_workers; w++) {
        sl_hedge_worker *of = &h->worker[w];
        of->overdue = h->n_owing > 0 && is_overdue(h, w);
        if (of->overdue)
            of->wasted_us = SL_MIN(of->wasted_us + (double)us, most_us(h, of));
        else if (of->wasted_us > 0)
            of->wasted_us = SL_MAX(of->wasted_us - forgotten_us(h, of, (double)us), 0.0);
        h->wasted = h->wasted || of->wasted_us > 0;
    }
    return true;
}

/* It has not answered for as long as makes one wonder, whoever else has. */
static bool is_doubted(const sl_hedge *h, uint32_t worker) {
    bool any = false;
    for (uint32_t l = 0; l < h->n_lanes; l++) {
        sl_hedge_debt *d = debt_of(h, l, worker);
        uint64_t waited_us = d->first_us + d->waited_us;
        if (!d->owed || waited_us < d->doubt_us) continue;
        d->doubt_us = 2 * waited_us;
        any = true;
    }
    return any;
}

sl_hedge_word sl_hedge_next(sl_hedge *h, uint32_t *worker) {
    for (*worker = 0; *worker < h->n_workers; ++*worker) {
        sl_hedge_worker *w = &h->worker[*worker];
        bool slow = w->overdue && w->wasted_us >= floor_us(h, w);
        if (slow && h->now_us >= w->quiet_us) {
            w->quiet_us = h->now_us + h->o.pause_us;
            return SL_HEDGE_SLOW;
        }
        if (h->n_owing > 0 && is_doubted(h, *worker)) return SL_HEDGE_DOUBT;
    }
    return SL_HEDGE_NOTHING;
}
