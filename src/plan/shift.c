/* Moves and exchanges of a block's experts, best first. */
#include "plan/shift.h"

#include <math.h>
#include <stdbool.h>

#define MOST_STEPS 64u
#define STEP_WORTH 200.0

/* Piece p to host `to`, and q from there if there is one. */
typedef struct step {
    uint32_t p, q, to;
    double most; /* of both hosts afterwards */
} step;

#define NONE UINT32_MAX

static double us_at(const sl_shift *s, uint32_t piece, uint32_t host) {
    return s->us[s->host[host].kind][piece];
}

static uint32_t host_of(const sl_shift *s, uint32_t worker) {
    uint32_t low = 0, high = s->n_hosts;
    while (high - low > 1) {
        const uint32_t mid = low + (high - low) / 2;
        if (s->host[mid].worker <= worker)
            low = mid;
        else
            high = mid;
    }
    return low;
}

static void begin(sl_shift *s) {
    for (uint32_t j = 0; j < s->n_hosts; j++) s->host[j].load = s->host[j].n = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        const uint32_t j = host_of(s, s->piece[i].worker);
        s->home[i] = s->at[i] = j;
        s->host[j].load += us_at(s, i, j);
        s->host[j].n++;
    }
}

static uint32_t dearest(const sl_shift *s) {
    uint32_t most = 0;
    for (uint32_t j = 1; j < s->n_hosts; j++)
        if (s->host[j].load > s->host[most].load) most = j;
    return most;
}

/* Another piece of its expert is there. */
static bool is_there(const sl_shift *s, uint32_t piece, uint32_t host) {
    const uint32_t e = s->piece[piece].expert;
    for (uint32_t i = piece; i-- > 0 && s->piece[i].expert == e;)
        if (s->at[i] == host) return true;
    for (uint32_t i = piece + 1; i < s->n && s->piece[i].expert == e; i++)
        if (s->at[i] == host) return true;
    return false;
}

static bool may_get(const sl_shift *s, uint32_t piece, uint32_t host) {
    return s->home[piece] == host || s->host[host].gets > 0;
}

/* What step `x` makes of the loads of both hosts, at most; INFINITY: there is no such step. */
static double most_after(const sl_shift *s, const step *x) {
    const uint32_t from = s->at[x->p];
    double a = s->host[from].load - us_at(s, x->p, from);
    double b = s->host[x->to].load + us_at(s, x->p, x->to);
    if (is_there(s, x->p, x->to)) return INFINITY;
    if (x->q == NONE) return s->host[x->to].n < s->host[x->to].slots ? fmax(a, b) : INFINITY;
    if (s->piece[x->q].expert == s->piece[x->p].expert || is_there(s, x->q, from)) return INFINITY;
    a += us_at(s, x->q, from);
    b -= us_at(s, x->q, x->to);
    return fmax(a, b);
}

/* The host that the step is not possible at, for want of memory; NONE: it is possible. */
static uint32_t short_of(const sl_shift *s, const step *x) {
    if (!may_get(s, x->p, x->to)) return x->to;
    if (x->q != NONE && !may_get(s, x->q, s->at[x->p])) return s->at[x->p];
    return NONE;
}

static void offer(const sl_shift *s, step x, step *best, step *missed) {
    x.most = most_after(s, &x);
    if (x.most >= best->most) return;
    if (short_of(s, &x) == NONE)
        *best = x;
    else if (x.most < missed->most)
        *missed = x;
}

/* The best step from host `i`, and, while there is none, the best that lacks memory. What is left
 * at `i` rules most of them out. */
static void look(const sl_shift *s, uint32_t i, step *best, step *missed) {
    const double load = s->host[i].load, *here = s->us[s->host[i].kind];
    best->most = missed->most = load * (1 - 1 / STEP_WORTH);
    best->p = missed->p = NONE;
    for (uint32_t p = 0; p < s->n; p++) {
        const double left = load - here[p];
        if (s->at[p] != i || left >= best->most) continue;
        for (uint32_t j = 0; j < s->n_hosts; j++)
            if (j != i) offer(s, (step){.p = p, .q = NONE, .to = j}, best, missed);
        for (uint32_t q = 0; q < s->n; q++)
            if (left + here[q] < best->most && s->at[q] != i)
                offer(s, (step){.p = p, .q = q, .to = s->at[q]}, best, missed);
    }
}

static void put(sl_shift *s, uint32_t piece, uint32_t to) {
    const uint32_t from = s->at[piece];
    sl_shift_host *a = &s->host[from], *b = &s->host[to];
    a->load -= us_at(s, piece, from);
    b->load += us_at(s, piece, to);
    a->n--;
    b->n++;
    if (s->home[piece] != from) a->gets += a->gets < UINT32_MAX;
    if (s->home[piece] != to) b->gets -= b->gets < UINT32_MAX;
    s->at[piece] = to;
    s->piece[piece].worker = b->worker;
}

double sl_shift_run(sl_shift *s, uint32_t *lacks) {
    step best, missed;
    *lacks = NONE;
    begin(s);
    for (uint32_t n = 0;; n++) {
        const uint32_t i = dearest(s);
        look(s, i, &best, &missed);
        if (best.p == NONE || n == MOST_STEPS) break;
        put(s, best.p, best.to);
        if (best.q != NONE) put(s, best.q, i);
    }
    if (best.p == NONE && missed.p != NONE) *lacks = s->host[short_of(s, &missed)].worker;
    return s->host[dearest(s)].load;
}
