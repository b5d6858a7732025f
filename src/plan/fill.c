/* Experts placed by popularity: the dearest first, copies where one is too dear. */
#include "plan/fill.h"

#include "base/mem.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Whether an attempt succeeds is not monotone in its target: targets are tried, not bisected. */
#define TARGETS 256

typedef struct rest { /* of an expert that is not placed yet */
    uint32_t expert;
    double cost;
} rest;

typedef struct problem {
    const double *a;
    uint32_t n_experts, n_workers, slots;
    double k0;
    rest *rest; /* [n_experts] ascending by cost; scratch of an attempt */
} problem;

static double cost_of(const problem *p, uint32_t e) {
    return fmax(p->a[e], p->k0);
}

static int by_cost(const void *x, const void *y) {
    const rest *a = x, *b = y;
    if (a->cost != b->cost) return a->cost < b->cost ? -1 : 1;
    return a->expert < b->expert ? -1 : a->expert > b->expert;
}

static int by_expert(const void *x, const void *y) {
    const sl_fill_piece *a = x, *b = y;
    if (a->expert != b->expert) return a->expert < b->expert ? -1 : 1;
    return a->worker < b->worker ? -1 : a->worker > b->worker;
}

static double dearest(const problem *p, const sl_fill *f) {
    double most = 0;
    for (uint32_t j = 0; j < p->n_workers; j++) {
        double load = 0;
        for (uint32_t i = 0; i < f->n; i++) {
            const sl_fill_piece *x = &f->piece[i];
            if (x->worker == j) load += fmax(x->share * p->a[x->expert], p->k0);
        }
        most = fmax(most, load);
    }
    return most;
}

static uint32_t list_rest(const problem *p) {
    for (uint32_t e = 0; e < p->n_experts; e++) p->rest[e] = (rest){e, cost_of(p, e)};
    qsort(p->rest, p->n_experts, sizeof *p->rest, by_cost);
    return p->n_experts;
}

static void place_whole(const problem *p, sl_fill *out) {
    uint32_t n = list_rest(p);
    out->n = 0;
    while (n-- > 0) {
        uint32_t best = UINT32_MAX;
        double least = INFINITY;
        for (uint32_t j = 0; j < p->n_workers; j++) {
            uint32_t used = 0;
            double load = 0;
            for (uint32_t i = 0; i < out->n; i++) {
                if (out->piece[i].worker != j) continue;
                used++;
                load += cost_of(p, out->piece[i].expert);
            }
            if (used < p->slots && load < least) best = j, least = load;
        }
        out->piece[out->n++] = (sl_fill_piece){p->rest[n].expert, best, 1};
    }
}

/* Puts a rest back in its place. */
static void reinsert(rest *list, uint32_t *n, rest r) {
    uint32_t at = *n;
    while (at > 0 && by_cost(&r, &list[at - 1]) < 0) {
        list[at] = list[at - 1];
        at--;
    }
    list[at] = r;
    ++*n;
}

static void take_front(rest *list, uint32_t *n, uint32_t count) {
    memmove(list, list + count, (*n - count) * sizeof *list);
    *n -= count;
}

/* Fills worker j up to the target: whole small experts first, then pieces of the dearest. */
static void fill_worker(const problem *p, uint32_t j, double target, uint32_t *n, sl_fill *out) {
    uint32_t left = p->slots, many = (*n + p->n_workers - j - 1) / (p->n_workers - j), moved = 0;
    double load = 0;
    many = many < left ? many : left;
    while (moved < many && load + p->rest[moved].cost <= target) {
        const rest *r = &p->rest[moved++];
        load += r->cost;
        double whole = cost_of(p, r->expert);
        out->piece[out->n++] = (sl_fill_piece){r->expert, j, whole > 0 ? r->cost / whole : 1};
    }
    take_front(p->rest, n, moved);
    left -= moved;
    uint32_t kept = 0; /* experts with a piece here already: not two pieces on one worker */
    rest aside[64];
    while (left > 0 && target - load > p->k0 && *n > 0 && kept < 64) {
        rest v = p->rest[*n - 1];
        double piece = fmin(v.cost, target - load);
        if (v.cost - piece > 0 && v.cost - piece < p->k0) piece = v.cost - p->k0;
        if (piece < p->k0 || piece <= 0) break;
        --*n;
        load += piece;
        left--;
        out->piece[out->n++] = (sl_fill_piece){v.expert, j, piece / cost_of(p, v.expert)};
        if (v.cost - piece > 0) aside[kept++] = (rest){v.expert, v.cost - piece};
    }
    while (kept > 0) reinsert(p->rest, n, aside[--kept]);
}

static bool place_pieces(const problem *p, double target, sl_fill *out) {
    uint32_t n = list_rest(p);
    out->n = 0;
    for (uint32_t j = 0; j < p->n_workers && n > 0; j++) fill_worker(p, j, target, &n, out);
    return n == 0;
}

static sl_status make(problem *p, sl_fill *f, sl_err *err) {
    size_t most = (size_t)p->n_experts + (size_t)p->n_workers * p->slots;
    if (p->n_experts == 0 || p->n_workers == 0 || !(p->k0 >= 0) || isinf(p->k0))
        return sl_fail(err, SL_ERR_ARG, "balancing %u experts over %u workers, floor %g",
                       p->n_experts, p->n_workers, p->k0);
    if ((uint64_t)p->n_workers * p->slots < p->n_experts)
        return sl_fail(err, SL_ERR_INFEASIBLE, "%u workers with room for %u experts hold no %u",
                       p->n_workers, p->slots, p->n_experts);
    double sum = 0;
    for (uint32_t e = 0; e < p->n_experts; e++) {
        if (!(p->a[e] >= 0) || isinf(p->a[e]))
            return sl_fail(err, SL_ERR_ARG, "expert %u has popularity %g", e, p->a[e]);
        sum += cost_of(p, e);
    }
    f->piece = sl_alloc(most, sizeof *f->piece);
    p->rest = sl_alloc(p->n_experts, sizeof *p->rest);
    if (!f->piece || !p->rest)
        return sl_fail(err, SL_ERR_NOMEM, "placement of %u experts", p->n_experts);
    uint32_t each = (p->n_experts + p->n_workers - 1) / p->n_workers;
    f->bound = fmax(sum / p->n_workers, p->k0 * each);
    place_whole(p, f);
    f->cost = dearest(p, f);
    return SL_OK;
}

static sl_status finish(problem *p, sl_fill *f, sl_status st, sl_fill *out) {
    sl_free(p->rest);
    if (st != SL_OK) {
        sl_fill_free(f);
        return st;
    }
    qsort(f->piece, f->n, sizeof *f->piece, by_expert);
    *out = *f;
    return SL_OK;
}

sl_status sl_fill_whole(const double *a, uint32_t n_experts, uint32_t n_workers, uint32_t slots,
                        double k0, sl_fill *out, sl_err *err) {
    problem p = {a, n_experts, n_workers, slots, k0, NULL};
    sl_fill f = {0};
    return finish(&p, &f, make(&p, &f, err), out);
}

/* Shares of an expert add up to 1 exactly, whatever rounding did. */
static void normalise(const problem *p, sl_fill *f) {
    for (uint32_t e = 0; e < p->n_experts; e++) {
        double sum = 0;
        for (uint32_t i = 0; i < f->n; i++) sum += f->piece[i].expert == e ? f->piece[i].share : 0;
        for (uint32_t i = 0; i < f->n; i++) {
            if (f->piece[i].expert == e) f->piece[i].share /= sum;
        }
    }
}

sl_status sl_fill_replicas(const double *a, uint32_t n_experts, uint32_t n_workers, uint32_t slots,
                           double k0, sl_fill *out, sl_err *err) {
    problem p = {a, n_experts, n_workers, slots, k0, NULL};
    sl_fill best = {0}, now = {0};
    sl_status st = make(&p, &best, err);
    if (st == SL_OK) {
        now.piece = sl_alloc((size_t)n_experts + (size_t)n_workers * slots, sizeof *now.piece);
        if (!now.piece) st = sl_fail(err, SL_ERR_NOMEM, "placement of %u experts", n_experts);
    }
    /* Denser near the bound: target = bound * (cost of whole experts / bound) ^ (i / TARGETS)^2 */
    double span = st == SL_OK && best.bound > 0 ? log(best.cost / best.bound) : 0;
    for (int i = 0; st == SL_OK && i < TARGETS; i++) {
        double at = (double)i / TARGETS;
        if (!place_pieces(&p, best.bound * exp(span * at * at), &now)) continue;
        normalise(&p, &now);
        double cost = dearest(&p, &now);
        if (cost >= best.cost) continue;
        sl_fill_piece *piece = best.piece;
        best = (sl_fill){now.piece, now.n, cost, best.bound};
        now.piece = piece;
    }
    sl_free(now.piece);
    return finish(&p, &best, st, out);
}

void sl_fill_free(sl_fill *f) {
    sl_free(f->piece);
    *f = (sl_fill){0};
}
