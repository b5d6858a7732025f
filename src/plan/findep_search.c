/* FinDEP's best point: micro-batches, chunks and order that fit. */
#include "plan/findep.h"

#include <math.h>

/* No NaN comes here; fmax would be a call. */
static double larger(double a, double b) {
    return a > b ? a : b;
}

static double at_line(const sl_findep_line *l, double x) {
    return l->alpha + larger(l->floor, l->beta * x);
}

/* Rows of one expert that a micro-batch has on average, for r2 equal parts of it. */
static double rows_per_expert(const sl_findep_problem *p, uint32_t ma, uint32_t parts) {
    uint64_t rows = (uint64_t)ma * p->ag * p->top_k;
    double all = (double)rows * p->tokens, over = (double)parts * p->experts;
    if (!p->integer_tokens) return all / over;
    /* Below 2^53 division rounds to the right side of an integer or onto it. */
    double q = floor(all / over);
    return q * over < all ? q + 1 : q;
}

/* Per expert and chunk. */
static double tokens_of(const sl_findep_problem *p, const sl_findep_point *at) {
    return rows_per_expert(p, at->ma, at->chunking == SL_CHUNK_TOKENS ? at->r2 : 1);
}

/* Of chunks by tokens when `part` has the rows of one chunk, by experts when it has all. */
static double expert_time(const sl_findep_problem *p, sl_chunking by, double rows, uint32_t r2) {
    double n = p->skew * rows;
    if (by == SL_CHUNK_TOKENS) return at_line(&p->expert, n);
    return p->expert.alpha + larger(p->expert.floor, p->expert.beta * n) / r2;
}

sl_findep_times sl_findep_times_at(const sl_findep_problem *p, const sl_findep_point *at) {
    double rows = tokens_of(p, at);
    double chunk = p->skew * (at->chunking == SL_CHUNK_TOKENS ? rows : rows / at->r2);
    return (sl_findep_times){.a = at_line(&p->attn, at->ma),
                             .s = at_line(&p->shared, at->ma),
                             .c = at_line(&p->a2e, chunk),
                             .e = expert_time(p, at->chunking, rows, at->r2),
                             .d = at_line(&p->e2a, chunk),
                             .lag = p->lag};
}

/* ---- memory ---- */

/* Expert workers that a token's experts are on, on average: eg (1 - C(E - E/eg, k) / C(E, k)). */
static double distinct_workers(const sl_findep_problem *p) {
    double miss = 1, here = (double)p->experts / p->eg;
    for (uint32_t i = 0; i < p->top_k; i++)
        miss *= larger(p->experts - here - i, 0) / (p->experts - i);
    return p->eg * (1 - miss);
}

/* Micro-batches whose keys, values, rows and messages an attention worker holds. */
static double fit_attention(const sl_findep_problem *p, uint32_t ma) {
    const sl_findep_memory *m = &p->memory;
    double tokens = (double)ma * p->tokens, row = m->hidden * m->elt_bytes;
    double kv = ma * (p->tokens + m->generated) * p->layers * m->kv_token_bytes;
    double each = kv + tokens * row * (2 + 2 * distinct_workers(p)) + 8 * tokens * p->top_k;
    double room = (1 - m->reserve) * m->ag_bytes - m->ag_params * m->elt_bytes -
                  m->elt_bytes * tokens * m->work_width;
    return floor(room / each);
}

/* Micro-batches (without credits), or fewest chunks (with), that an expert worker holds. */
static double fit_experts(const sl_findep_problem *p, uint32_t ma, uint32_t *r2_min) {
    const sl_findep_memory *m = &p->memory;
    double rows = p->skew * ma * p->ag * p->top_k * (double)p->tokens / p->eg;
    double weights = p->layers * ceil((double)p->experts / p->eg) * 3 * m->hidden * m->expert_width;
    double room = (1 - m->reserve) * m->eg_bytes - weights * m->elt_bytes;
    if (room <= 0) return 0;
    if (m->credits <= 0) {
        double left = room - 2 * rows * m->expert_width * m->elt_bytes;
        return floor(left / (2 * rows * m->hidden * m->elt_bytes));
    }
    double slot = rows * m->elt_bytes * (2 * m->credits * m->hidden + 2 * m->expert_width);
    double chunks = ceil(slot / room);
    *r2_min = chunks < UINT32_MAX ? (uint32_t)larger(chunks, 1) : UINT32_MAX;
    return INFINITY;
}

uint32_t sl_findep_max_r1(const sl_findep_problem *p, uint32_t ma, uint32_t *r2_min,
                          const char **why) {
    uint32_t most = p->batch_per_ag / ma;
    *why = "batch_per_ag";
    *r2_min = 1;
    if (p->r1_max && p->r1_max < most) most = p->r1_max;
    if (!p->has_memory) return most;
    double ag = fit_attention(p, ma), eg = fit_experts(p, ma, r2_min);
    if (!(ag >= 1)) *why = "memory of an attention worker";
    if (!(eg >= 1)) *why = "memory of an expert worker";
    double fits = fmin(ag, eg);
    return fits >= most ? most : fits >= 1 ? (uint32_t)fits : 0;
}

/* ---- search ---- */

typedef struct search {
    const sl_findep_problem *p;
    bool published;
    double best; /* samples of one attention worker per ms */
    sl_findep_point at;
} search;

static void consider(search *s, const sl_findep_point *at, double makespan) {
    double rate = (double)at->r1 * at->ma / makespan;
    if (rate <= s->best) return;
    s->best = rate;
    s->at = *at;
}

static void try_chunks(search *s, sl_findep_point *at) {
    const sl_findep_problem *p = s->p;
    sl_findep_times t = sl_findep_times_at(p, at);
    at->order = SL_ORDER_ASAS;
    if (s->published) {
        consider(s, at, sl_findep_published(&t, p->layers, at->r1, at->r2));
        return;
    }
    consider(s, at, sl_findep_makespan(&t, p->layers, at->r1, at->r2, SL_ORDER_ASAS));
    if (t.s <= 0 || at->r1 == 1) return; /* the orders are the same */
    at->order = SL_ORDER_AASS;
    consider(s, at, sl_findep_makespan(&t, p->layers, at->r1, at->r2, SL_ORDER_AASS));
}

/* Whether r2 or more chunks cannot win: in every layer a station takes at least what it takes for
 * all rows at once and the fixed cost of so many chunks, and one micro-batch's round trip takes its
 * attention and that. */
static bool hopeless(const search *s, uint32_t ma, uint32_t r1, uint32_t r2) {
    const sl_findep_problem *p = s->p;
    double rows = p->skew * ma * p->ag * p->top_k * p->tokens / p->experts;
    double chunks =
        larger(r2 * p->a2e.alpha + rows * p->a2e.beta, r2 * p->e2a.alpha + rows * p->e2a.beta);
    chunks = larger(chunks, r2 * p->expert.alpha + rows * p->expert.beta);
    double a = at_line(&p->attn, ma), side = a + at_line(&p->shared, ma);
    double busy = p->layers * larger(side, chunks) * r1;
    double round = p->layers * (a + chunks) + (r1 - 1) * a;
    return (double)ma * r1 <= s->best * larger(busy, round);
}

static void try_samples(search *s, uint32_t ma, uint32_t r1, uint32_t r2_min) {
    const sl_findep_problem *p = s->p;
    uint32_t each = (p->experts + p->eg - 1) / p->eg;
    sl_findep_point at = {.r1 = r1, .ma = ma, .chunking = SL_CHUNK_TOKENS};
    double rows = (double)ma * p->ag * p->top_k * p->tokens / p->experts;
    bool tokens = p->cut != SL_FINDEP_CUT_EXPERTS, experts = p->cut != SL_FINDEP_CUT_TOKENS;
    for (at.r2 = r2_min; tokens && at.r2 <= p->r2_max && !hopeless(s, ma, r1, at.r2); at.r2++) {
        try_chunks(s, &at);
        if (p->integer_tokens && at.r2 >= rows) break; /* a token per expert is not cut further */
    }
    uint32_t most = SL_MIN(p->r2_max, each);
    at.chunking = SL_CHUNK_EXPERTS;
    for (at.r2 = r2_min; experts && at.r2 <= most && !hopeless(s, ma, r1, at.r2); at.r2++)
        try_chunks(s, &at);
}

sl_status sl_findep_evaluate(const sl_findep_problem *p, const sl_findep_point *at,
                             sl_findep_result *out, sl_err *err) {
    sl_findep_times t = sl_findep_times_at(p, at);
    sl_findep_result r = {.at = *at, .tokens = tokens_of(p, at)};
    r.makespan_ms = sl_findep_makespan(&t, p->layers, at->r1, at->r2, at->order);
    r.bound_ms = sl_findep_bound(&t, p->layers, at->r1, at->r2);
    if (at->order == SL_ORDER_ASAS)
        r.published_ms = sl_findep_published(&t, p->layers, at->r1, at->r2);
    if (!(r.makespan_ms > 0))
        return sl_fail(err, SL_ERR_ARG, "all times are 0: any schedule is as good as another");
    r.samples_per_s = (double)at->r1 * at->ma * p->ag / r.makespan_ms * 1e3;
    *out = r;
    return SL_OK;
}

sl_status sl_findep_solve(const sl_findep_problem *p, bool published, sl_findep_result *out,
                          sl_err *err) {
    search s = {.p = p, .published = published};
    const char *why = "batch_per_ag";
    uint32_t r2_min = 1, least = UINT32_MAX;
    bool fits = false;
    for (uint32_t ma = p->batch_per_ag; ma > 0; ma--) {
        if (p->ma && ma != p->ma) continue;
        uint32_t r1 = sl_findep_max_r1(p, ma, &r2_min, &why);
        if (r1 == 0) continue;
        fits = true;
        least = SL_MIN(least, r2_min);
        try_samples(&s, ma, r1, r2_min);
    }
    if (s.best > 0) return sl_findep_evaluate(p, &s.at, out, err);
    if (!fits) return sl_fail(err, SL_ERR_INFEASIBLE, "not one sample fits: %s", why);
    return sl_fail(err, SL_ERR_INFEASIBLE,
                   "memory of an expert worker: needs %u chunks or more, r2_max is %u", least,
                   p->r2_max);
}
