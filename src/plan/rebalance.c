/* Measured load of experts, what it costs by a placement, and a placement that costs less. */
#include "plan/rebalance.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What is there stays where the best costs so little less. */
#define NEARLY 1.02
/* Halvings while calls are looked for: to a billionth. */
#define HALVINGS 30
/* Golden sections of what weights are left, while a bound is looked for: to a ten-thousandth. */
#define CUTS   18
#define GOLDEN 0.6180339887498949

/* ---- costs ---- */

static double calls_of(double rows, double calls, double share) {
    if (calls <= 0 || share >= 1) return calls;
    return calls * (1 - pow(1 - share, rows / calls));
}

/* Without what a task takes once: it is the same wherever experts are. */
static double piece_us(const sl_stage_cost *c, double rows, double calls, double share) {
    double n = calls_of(rows, calls, share), work = c->row_us * share * rows;
    if (c->fixed_us <= 0 && c->floor_us <= 0 && c->row_us <= 0) return share * rows;
    return n * c->fixed_us + fmax(n * c->floor_us + c->slope_us * share * rows, work);
}

static const sl_stage_cost *cost_at(const sl_rebalance *r, uint32_t worker) {
    const sl_rebalance_shape *s = &r->shape;
    return s->other && s->other[worker] ? &s->other_cost : &s->cost;
}

static const double *rows_of(const sl_rebalance *r, const double *all, uint32_t block) {
    return all + (size_t)block * r->shape.n_experts;
}

/* r->load of the block's pieces. */
static void load_block(sl_rebalance *r, const sl_rebalance_load *l, uint32_t block,
                       const sl_fill_piece *piece, uint32_t n) {
    const double *rows = rows_of(r, l->rows, block), *calls = rows_of(r, l->calls, block);
    memset(r->load, 0, r->shape.n_workers * sizeof *r->load);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t e = piece[i].expert;
        r->load[piece[i].worker] +=
            piece_us(cost_at(r, piece[i].worker), rows[e], calls[e], piece[i].share);
    }
}

/* The others have none. */
static double most_of(const sl_rebalance *r, const double *load) {
    double most = 0;
    for (uint32_t i = 0; i < r->shape.n_workers; i++) most = fmax(most, load[i]);
    return most;
}

/* What experts of blocks cost at least, all together, of hosts that are alike. */
static double bound_alike(const sl_rebalance *r, const sl_rebalance_load *l, uint32_t block,
                          uint32_t n_hosts, double sum) {
    const double *rows = rows_of(r, l->rows, block), *calls = rows_of(r, l->calls, block);
    for (uint32_t e = 0; e < r->shape.n_experts; e++)
        sum += piece_us(&r->shape.cost, rows[e], calls[e], 1) / n_hosts;
    return sum;
}

/* The same of two kinds of hosts, n[0] and n[1] of them, by one weight. */
static double bound_by(const sl_rebalance *r, const sl_rebalance_load *l, const uint32_t block[2],
                       const uint32_t n[2], double w) {
    const size_t E = r->shape.n_experts, end = block[1] * E;
    double sum = 0;
    for (size_t i = block[0] * E; i < end; i++)
        sum += fmin((1 - w) * piece_us(&r->shape.cost, l->rows[i], l->calls[i], 1) / n[0],
                    w * piece_us(&r->shape.other_cost, l->rows[i], l->calls[i], 1) / n[1]);
    return sum;
}

/* Of blocks block[0] .. block[1] - 1; the sum of minima is concave in its weight. */
static double bound_mixed(const sl_rebalance *r, const sl_rebalance_load *l,
                          const uint32_t block[2], const uint32_t n[2]) {
    double low = 0, high = 1, a = 1 - GOLDEN, b = GOLDEN;
    double at_a = bound_by(r, l, block, n, a), at_b = bound_by(r, l, block, n, b);
    for (int k = 0; k < CUTS; k++) {
        if (at_a < at_b) {
            low = a, a = b, at_a = at_b;
            b = low + GOLDEN * (high - low);
            at_b = bound_by(r, l, block, n, b);
        } else {
            high = b, b = a, at_b = at_a;
            a = high - GOLDEN * (high - low);
            at_a = bound_by(r, l, block, n, a);
        }
    }
    return fmax(at_a, at_b);
}

/* How many hosts are of each kind. */
static void count_kinds(const sl_rebalance *r, uint32_t n_hosts, uint32_t n[2]) {
    n[1] = 0;
    for (uint32_t i = 0; r->shape.other && i < r->shape.n_workers; i++)
        n[1] += r->shape.other[i] != 0;
    n[0] = n_hosts - SL_MIN(n[1], n_hosts);
}

static double bound_of(const sl_rebalance *r, const sl_rebalance_load *l, uint32_t n_hosts) {
    const sl_rebalance_shape *s = &r->shape;
    uint32_t n[2];
    double us = 0;
    count_kinds(r, n_hosts, n);
    const bool mixed = n[0] && n[1];
    if (mixed && !s->barrier) return bound_mixed(r, l, (uint32_t[2]){0, s->n_blocks}, n);
    for (uint32_t b = 0; b < s->n_blocks; b++)
        us = mixed ? us + bound_mixed(r, l, (uint32_t[2]){b, b + 1}, n)
                   : bound_alike(r, l, b, n_hosts, us);
    return us;
}

sl_rebalance_cost sl_rebalance_cost_of(sl_rebalance *r, const sl_rebalance_load *l,
                                       const sl_spread *by, uint32_t n_hosts) {
    const sl_rebalance_shape *s = &r->shape;
    sl_rebalance_cost c = {.bound_us = bound_of(r, l, n_hosts)};
    memset(r->sums, 0, s->n_workers * sizeof *r->sums);
    for (uint32_t b = 0; b < s->n_blocks; b++) {
        load_block(r, l, b, by->piece + by->first[b], by->first[b + 1] - by->first[b]);
        for (uint32_t i = 0; i < s->n_workers; i++) r->sums[i] += r->load[i];
        if (s->barrier) c.us += most_of(r, r->load);
    }
    if (!s->barrier) c.us = most_of(r, r->sums);
    return c;
}

void sl_rebalance_join_calls(const sl_rebalance *r, const sl_spread *by, sl_rebalance_load *l) {
    for (uint32_t b = 0; b < r->shape.n_blocks; b++) {
        const double *rows = rows_of(r, l->rows, b);
        double *calls = l->calls + (size_t)b * r->shape.n_experts;
        for (uint32_t i = by->first[b], n; i < by->first[b + 1]; i += n) {
            const sl_fill_piece *p = by->piece + i;
            for (n = 1; i + n < by->first[b + 1] && p[n].expert == p->expert;) n++;
            double counted = calls[p->expert], low = counted / n, high = counted;
            for (int k = 0; n > 1 && k < HALVINGS; k++) {
                double mid = (low + high) / 2, made = 0;
                for (uint32_t j = 0; j < n; j++) made += calls_of(rows[p->expert], mid, p[j].share);
                *(made < counted ? &low : &high) = mid;
            }
            if (n > 1) calls[p->expert] = high;
        }
    }
}

/* ---- placements ---- */

static sl_status no_memory(const sl_rebalance_shape *s, sl_err *err) {
    return sl_fail(err, SL_ERR_NOMEM, "balance of %u blocks of %u experts on %u workers",
                   s->n_blocks, s->n_experts, s->n_workers);
}

/* An even share, rounded up, and what is spare, of each worker; as many again for plans that
 * somebody else made. */
static size_t pieces_of_block(const sl_rebalance_shape *s) {
    return 2 * ((size_t)s->n_experts + (size_t)s->n_workers * (1 + s->spare));
}

sl_status sl_rebalance_create(const sl_rebalance_shape *s, sl_rebalance *out, sl_err *err) {
    *out = (sl_rebalance){.shape = *s};
    if (s->n_workers > SL_REBALANCE_MAX_WORKERS)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "experts are moved between %u workers at most, of %u",
                       SL_REBALANCE_MAX_WORKERS, s->n_workers);
    uint32_t n = s->n_workers;
    size_t pieces = pieces_of_block(s);
    out->shift_cap = (uint32_t)SL_MIN(pieces, (size_t)UINT32_MAX);
    out->arrays = sl_alloc_arrays(
        SL_ARRAY(out->load, n), SL_ARRAY(out->sums, n), SL_ARRAY(out->us, s->n_experts),
        SL_TABLE(out->kept, n, n), SL_ARRAY(out->name, n), SL_ARRAY(out->number, n),
        SL_ARRAY(out->taken, n), SL_TABLE(out->shift_us, SL_SHIFT_KINDS, pieces),
        SL_ARRAY(out->shift.home, pieces), SL_ARRAY(out->shift.at, pieces),
        SL_ARRAY(out->shift.host, n));
    return out->arrays ? SL_OK : no_memory(s, err);
}

void sl_rebalance_free(sl_rebalance *r) {
    sl_free(r->arrays);
    *r = (sl_rebalance){0};
}

sl_status sl_spread_create(const sl_rebalance_shape *s, sl_spread *out, sl_err *err) {
    size_t cap = s->n_blocks * pieces_of_block(s);
    *out = (sl_spread){0};
    out->first = sl_alloc((size_t)s->n_blocks + 1, sizeof *out->first);
    if (cap <= UINT32_MAX) out->piece = sl_alloc(cap, sizeof *out->piece);
    out->cap = (uint32_t)cap;
    if (out->first && out->piece) return SL_OK;
    sl_spread_free(out);
    return no_memory(s, err);
}

void sl_spread_free(sl_spread *s) {
    sl_free(s->first);
    sl_free(s->piece);
    *s = (sl_spread){0};
}

bool sl_spread_of(const sl_rebalance_shape *s, const sl_placement *p, sl_spread *out) {
    uint32_t at = 0;
    for (uint32_t b = 0; b < s->n_blocks; b++) {
        out->first[b] = at;
        for (uint32_t e = 0; e < s->n_experts; e++) {
            size_t i = (size_t)(p->n_layers == 1 ? 0 : b) * s->n_experts + e;
            double below = 0;
            for (uint32_t j = p->first[i]; j < p->first[i + 1]; j++, at++) {
                bool last = j + 1 == p->first[i + 1];
                double until = last ? 1 : p->host[j].until / 4294967296.0;
                if (at == out->cap) return false;
                out->piece[at] = (sl_fill_piece){e, p->host[j].worker, until - below};
                below = until;
            }
        }
    }
    out->first[s->n_blocks] = at;
    return true;
}

void sl_spread_copy(const sl_rebalance_shape *s, const sl_spread *from, sl_spread *to) {
    memcpy(to->first, from->first, ((size_t)s->n_blocks + 1) * sizeof *to->first);
    memcpy(to->piece, from->piece, from->first[s->n_blocks] * sizeof *to->piece);
}

static bool hosts(const sl_spread *s, uint32_t block, uint32_t expert, uint32_t worker) {
    for (uint32_t i = s->first[block]; i < s->first[block + 1]; i++)
        if (s->piece[i].expert == expert && s->piece[i].worker == worker) return true;
    return false;
}

void sl_rebalance_added(const sl_rebalance *r, const sl_spread *now, const sl_spread *to,
                        uint32_t *added) {
    memset(added, 0, r->shape.n_workers * sizeof *added);
    for (uint32_t b = 0; b < r->shape.n_blocks; b++)
        for (uint32_t i = to->first[b]; i < to->first[b + 1]; i++)
            added[to->piece[i].worker] += !hosts(now, b, to->piece[i].expert, to->piece[i].worker);
}

/* ---- a better one ---- */

/* How many pieces stay if i of the fill is host j, for all of both; the most. */
static uint32_t count_kept(sl_rebalance *r, const sl_rebalance_task *t, uint32_t block,
                           const sl_fill *f) {
    const sl_spread *now = t->now;
    uint32_t most = 0, n = t->n_hosts, at = now->first[block];
    for (uint32_t i = 0; i < r->shape.n_workers; i++) r->number[i] = UINT32_MAX;
    for (uint32_t j = 0; j < n; j++) r->number[t->host[j]] = j;
    memset(r->kept, 0, (size_t)n * n * sizeof *r->kept);
    for (uint32_t p = 0; p < f->n; p++) { /* both are by expert */
        while (at < now->first[block + 1] && now->piece[at].expert < f->piece[p].expert) at++;
        for (uint32_t i = at;
             i < now->first[block + 1] && now->piece[i].expert == f->piece[p].expert; i++) {
            uint32_t j = r->number[now->piece[i].worker];
            if (j != UINT32_MAX) most = SL_MAX(most, ++r->kept[f->piece[p].worker * n + j]);
        }
    }
    return most;
}

/* Who of the fill is which host, so that most pieces stay: those that keep most are named first.
 * What the fill calls 0 .. n - 1 has no meaning. */
static void name_workers(sl_rebalance *r, const sl_rebalance_task *t, uint32_t block,
                         const sl_fill *f) {
    uint32_t n = t->n_hosts, most = count_kept(r, t, block, f);
    memset(r->taken, 0, n);
    for (uint32_t i = 0; i < n; i++) r->name[i] = UINT32_MAX;
    for (uint32_t want = most + 1; want-- > 0;) {
        for (uint32_t i = 0; i < n; i++) {
            for (uint32_t j = 0; r->name[i] == UINT32_MAX && j < n; j++) {
                if (r->taken[j] || r->kept[i * n + j] != want) continue;
                r->name[i] = t->host[j];
                r->taken[j] = 1;
            }
        }
    }
}

static int by_expert(const void *x, const void *y) {
    const sl_fill_piece *a = x, *b = y;
    if (a->expert != b->expert) return a->expert < b->expert ? -1 : 1;
    return a->worker < b->worker ? -1 : a->worker > b->worker;
}

/* Block `block` of `to` becomes the fill if that is cheaper than *best. */
static void offer(sl_rebalance *r, const sl_rebalance_task *t, uint32_t block, sl_fill *f,
                  double *best, sl_spread *to) {
    uint32_t at = to->first[block];
    if (f->n > to->cap - at) return;
    name_workers(r, t, block, f);
    for (uint32_t i = 0; i < f->n; i++) f->piece[i].worker = r->name[f->piece[i].worker];
    qsort(f->piece, f->n, sizeof *f->piece, by_expert);
    load_block(r, t->load, block, f->piece, f->n);
    double us = most_of(r, r->load);
    if (us * NEARLY >= *best) return;
    *best = us;
    memcpy(to->piece + at, f->piece, f->n * sizeof *f->piece);
    to->first[block + 1] = at + f->n;
}

/* What is there, unless something of it is at none of the hosts; what it costs. */
static double keep_block(sl_rebalance *r, const sl_rebalance_task *t, uint32_t block,
                         sl_spread *to) {
    const sl_fill_piece *piece = t->now->piece + t->now->first[block];
    uint32_t n = t->now->first[block + 1] - t->now->first[block], at = to->first[block];
    if (n > to->cap - at) return INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        bool here = false;
        for (uint32_t j = 0; j < t->n_hosts; j++) here |= t->host[j] == piece[i].worker;
        if (!here) return INFINITY;
    }
    memcpy(to->piece + at, piece, n * sizeof *piece);
    to->first[block + 1] = at + n;
    load_block(r, t->load, block, piece, n);
    return most_of(r, r->load);
}

/* ---- workers that differ ---- */

/* A block's part of what is left for it and those behind it. */
static uint32_t part_of(const uint32_t *left, uint32_t blocks, bool up) {
    if (!left || *left == UINT32_MAX) return UINT32_MAX;
    return *left / blocks + (up && *left % blocks != 0);
}

static void set_hosts(sl_rebalance *r, const sl_rebalance_task *t, uint32_t block) {
    const sl_rebalance_limits *l = t->limits;
    const uint32_t blocks = r->shape.n_blocks - block;
    r->shift.n_hosts = t->n_hosts;
    for (uint32_t j = 0; j < t->n_hosts; j++) {
        const uint32_t w = t->host[j];
        r->shift.host[j] = (sl_shift_host){.worker = w,
                                           .kind = r->shape.other && r->shape.other[w],
                                           .slots = part_of(l ? &l->most[w] : NULL, blocks, false),
                                           .gets = part_of(l ? &l->gets[w] : NULL, blocks, true)};
    }
}

/* What the block's pieces, which are `to`'s, cost wherever they go. */
static void set_costs(sl_rebalance *r, const sl_rebalance_load *load, uint32_t block) {
    const double *rows = rows_of(r, load->rows, block), *calls = rows_of(r, load->calls, block);
    const sl_stage_cost *const cost[SL_SHIFT_KINDS] = {&r->shape.cost, &r->shape.other_cost};
    for (uint32_t k = 0; k < SL_SHIFT_KINDS; k++) {
        double *us = r->shift_us + (size_t)k * r->shift_cap;
        for (uint32_t i = 0; i < r->shift.n; i++) {
            const sl_fill_piece *p = &r->shift.piece[i];
            us[i] = piece_us(cost[k], rows[p->expert], calls[p->expert], p->share);
        }
        r->shift.us[k] = us;
    }
}

static void take_off(uint32_t *left, uint32_t n) {
    if (*left != UINT32_MAX) *left -= SL_MIN(*left, n);
}

/* Limits for the blocks behind this one. */
static void count_block(const sl_rebalance_task *t, uint32_t block, const sl_spread *to) {
    sl_rebalance_limits *l = t->limits;
    for (uint32_t i = to->first[block]; l && i < to->first[block + 1]; i++) {
        const sl_fill_piece *p = &to->piece[i];
        take_off(&l->most[p->worker], 1);
        if (!hosts(t->now, block, p->expert, p->worker)) take_off(&l->gets[p->worker], 1);
    }
}

/* The block is in `to` as it is now. */
static void shift_block(sl_rebalance *r, const sl_rebalance_task *t, uint32_t block, double best,
                        sl_spread *to) {
    const uint32_t at = to->first[block], n = to->first[block + 1] - at;
    uint32_t lacks = UINT32_MAX;
    if (n > r->shift_cap) return;
    r->shift.piece = to->piece + at;
    r->shift.n = n;
    set_hosts(r, t, block);
    set_costs(r, t->load, block);
    const double us = sl_shift_run(&r->shift, &lacks);
    if (us * NEARLY >= best)
        memcpy(to->piece + at, t->now->piece + t->now->first[block], n * sizeof *to->piece);
    else
        qsort(to->piece + at, n, sizeof *to->piece, by_expert);
    if (t->limits && t->limits->lacks == UINT32_MAX && lacks != UINT32_MAX &&
        t->limits->full[lacks])
        t->limits->lacks = lacks;
    count_block(t, block, to);
}

/* ---- a block ---- */

/* r->us, and what reading the weights of an expert that every call wants would take. */
static double whole_costs(sl_rebalance *r, const sl_rebalance_load *l, uint32_t block) {
    const double *rows = rows_of(r, l->rows, block), *calls = rows_of(r, l->calls, block);
    double most = 0;
    for (uint32_t e = 0; e < r->shape.n_experts; e++) {
        r->us[e] = piece_us(&r->shape.cost, rows[e], calls[e], 1);
        most = fmax(most, calls[e]);
    }
    return most * (r->shape.cost.fixed_us + r->shape.cost.floor_us);
}

sl_status sl_rebalance_block(sl_rebalance *r, const sl_rebalance_task *t, uint32_t block,
                             sl_spread *to, sl_err *err) {
    const sl_rebalance_shape *s = &r->shape;
    uint32_t slots = (s->n_experts + t->n_hosts - 1) / t->n_hosts + s->spare;
    if (block == 0) to->first[0] = 0;
    to->first[block + 1] = to->first[block];
    double read_us = whole_costs(r, t->load, block), best = keep_block(r, t, block, to);
    if (t->limits || s->other) {
        if (isinf(best)) /* of workers that are no hosts any more: who serves has others first */
            return sl_fail(err, SL_ERR_INFEASIBLE, "block %u is at workers that are no hosts",
                           block);
        shift_block(r, t, block, best, to);
        return SL_OK;
    }
    sl_fill f;
    sl_status st = sl_fill_whole(r->us, s->n_experts, t->n_hosts, slots, 0, &f, err);
    if (st != SL_OK) return st;
    offer(r, t, block, &f, &best, to);
    sl_fill_free(&f);
    const double floors[] = {0, read_us}; /* of a copy */
    for (size_t i = 0; s->copies && i < (read_us > 0 ? 2u : 1u); i++) {
        st = sl_fill_replicas(r->us, s->n_experts, t->n_hosts, slots, floors[i], &f, err);
        if (st != SL_OK) return st;
        offer(r, t, block, &f, &best, to);
        sl_fill_free(&f);
    }
    return SL_OK;
}
