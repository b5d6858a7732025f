/* EPS while requests run: in how many groups a worker's experts are best. A layer is EPS's law, a
 * line of three stages (plan/eps.h). Tasks of attention and of experts have times of their own.
 * Those of the link are seen by nobody alone: a way there and back is also latency, waiting behind
 * others, and a peer that looks at its messages late. So two layers are measured whole, of one
 * group and of as many as there can be, and the law's link is what makes it take as long as both
 * did; layers between are by the law. Where it cannot, directions have the link to themselves
 * (peers have other rows), or what is left is a cost of each group.
 *
 * From steps of one N nobody learns another's cost, and from one worker's nobody learns what all of
 * them would gain: expert workers run what came from all, an expert twice where groups differ. So
 * all try at once, two rounds in a row every SL_RESOLVE_TRIAL windows: one group, then most.
 * Nothing else is measured. And all have what the first of them chose, for the rows that it had a
 * round before. */
#include "sched/resolve_int.h"

#include "plan/eps.h"

#include <math.h>

/* ---- what is measured ---- */

void sl_resolve_group_sent(sl_resolve *r, const sl_resolve_flight *f, uint32_t expert,
                           uint32_t pairs, uint32_t rows, uint64_t now_us) {
    sl_resolve_phase *p = &r->phase;
    if (p->out == 0 && p->n == 0) p->sent_us = now_us;
    p->out += f->out == 1;
    if (expert == r->self) return;
    /* As with exact, where each pair comes back as a row. */
    r->out_share += ((double)rows / (rows + pairs) - r->out_share) / r->memory;
}

void sl_resolve_group_answered(sl_resolve *r, const sl_resolve_flight *f, uint64_t now_us) {
    sl_resolve_phase *p = &r->phase;
    if (p->n++ == 0) p->first_us = now_us;
    p->last_us = now_us;
    p->entries += f->entries;
    p->out--;
}

void sl_resolve_close_layer(sl_resolve *r) {
    const sl_resolve_phase p = r->phase;
    const double rows = sl_resolve_each(r, p.entries);
    r->phase = (sl_resolve_phase){0};
    if (!r->trial || p.out > 0 || p.n == 0) return;
    if (r->groups[0] == 1) sl_resolve_learn(r, &r->away, rows, p.away_us);
    if (r->groups[0] != r->n_chunks) return;
    sl_resolve_learn(r, &r->span, rows, (double)(p.last_us - p.sent_us));
    if (p.n < 2) return;
    sl_resolve_learn(r, &r->link, rows, (double)(p.last_us - p.first_us) / (p.n - 1));
}

bool sl_resolve_knows_groups(const sl_resolve *r) {
    return !r->guessed && r->launch_us >= 0 && sl_resolve_count(&r->away) >= r->enough &&
           sl_resolve_count(&r->span) >= r->enough;
}

/* ---- what all have ---- */

bool sl_resolve_hear(sl_resolve *r, uint32_t groups) {
    if (groups == 0) return true;
    if (!r->eps || r->n_chunks % groups != 0) return false;
    r->heard = groups;
    return true;
}

void sl_resolve_agree(sl_resolve *r, const sl_resolve_cut *c, uint64_t round, uint32_t *groups,
                      sl_chunking *chunking) {
    const uint64_t at = round % ((uint64_t)r->window * SL_RESOLVE_TRIAL);
    if (r->n_chunks == 1) return; /* nobody knows of groups then */
    *chunking = SL_CHUNK_EXPERTS;
    if (c->known) r->word = c->chunks;
    if (r->heard) *groups = r->heard;
    r->trial = at == 1 || at == 2;
    if (r->trial) *groups = at == 1 ? 1 : r->n_chunks;
}

/* ---- the law ---- */

/* A layer of so many rows. */
typedef struct law {
    double attention, shared, all, launch; /* tasks; the latter is of each group of experts */
    double more;                           /* that each group but the first takes besides */
    double rows_us, fixed_us, lag;         /* there and back: of all rows; one way, of a group */
    double out_share;
    bool one_link; /* for both directions */
} law;

static double at_line(sl_findep_line l, double x) {
    return l.alpha + l.beta * x;
}

static sl_eps_cut cut_of(const law *t, uint32_t n) {
    const double task = t->launch + (t->all - t->launch) / n + t->more * (n - 1) / n;
    return (sl_eps_cut){.n = n,
                        .dispatch = t->fixed_us + t->rows_us * t->out_share / n,
                        .compute = task,
                        .combine = t->fixed_us + t->rows_us * (1 - t->out_share) / n};
}

static double layer_us(const law *t, uint32_t n) {
    const sl_eps_cut cut = cut_of(t, n);
    const sl_eps_beside beside = {t->attention, t->shared, t->lag};
    return sl_eps_layer(&cut, &beside, t->one_link);
}

/* Of a way of one group so much is its rows'. What does not depend on rows keeps the link busy as
 * far as groups come further apart than their rows take; the rest is lag. */
static void set_rows(law *t, double rows_us, double away, double apart, uint32_t most) {
    const double fixed = apart - rows_us * (1 - t->out_share) / most;
    t->rows_us = rows_us;
    t->fixed_us = fmin(fmax(fixed, 0), (away - rows_us) / 2);
    t->lag = away - rows_us - 2 * t->fixed_us;
}

/* One group's ways take `away`, most groups' layer `span` beside attention. The more of the former
 * is rows, the more of it most groups hide. */
static void fit_link(law *t, double away, double span, double apart, uint32_t most) {
    const double want = t->attention + span;
    double less = 0, more = away;
    t->one_link = true;
    set_rows(t, away, away, apart, most);
    t->one_link = layer_us(t, most) <= want;
    set_rows(t, 0, away, apart, most);
    const double left = want - layer_us(t, most);
    if (left >= 0) {
        t->more = left / (most - 1);
        return;
    }
    for (int i = 0; i < 30; i++) {
        const double middle = (less + more) / 2;
        set_rows(t, middle, away, apart, most);
        if (layer_us(t, most) > want)
            less = middle;
        else
            more = middle;
    }
}

static law law_of(const sl_resolve *r, double rows) {
    const double each = rows * r->attention_workers * r->top_k / r->n_experts;
    const double skew = sl_resolve_skew(r);
    law t = {.attention = at_line(sl_resolve_line(&r->block), rows),
             .shared = at_line(sl_resolve_line(&r->branch), rows),
             .all = at_line(sl_resolve_line(&r->expert), each) * skew,
             .out_share = r->out_share};
    t.launch = fmin(r->launch_us * skew, t.all);
    fit_link(&t, at_line(sl_resolve_line(&r->away), each), at_line(sl_resolve_line(&r->span), each),
             at_line(sl_resolve_line(&r->link), each), r->n_chunks);
    return t;
}

uint32_t sl_resolve_groups(const sl_resolve *r, double rows, double *us) {
    const law t = law_of(r, rows);
    const sl_eps_beside beside = {t.attention, t.shared, t.lag};
    sl_eps_cut cut[SL_PLAN_MAX_CHUNKS];
    uint32_t n_cuts = 0, best = 0;
    sl_err err;
    for (uint32_t n = 1; n <= r->n_chunks; n++)
        if (r->n_chunks % n == 0) cut[n_cuts++] = cut_of(&t, n);
    if (sl_eps_choose(cut, n_cuts, &beside, t.one_link, &best, &err) != SL_OK) return 1;
    *us = cut[best].time;
    return cut[best].n;
}

double sl_resolve_groups_us(const sl_resolve *r, double rows, uint32_t groups) {
    const law t = law_of(r, rows);
    return layer_us(&t, groups);
}
