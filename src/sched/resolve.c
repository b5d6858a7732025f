/* What stages cost by what was measured, and what the solvers make of it. */
#include "sched/resolve_int.h"

#include "base/mem.h"
#include "spec/schedules.h"

#include <math.h>

#define MEMORY 64u /* tasks that a mean is of */
#define ENOUGH 8u  /* tasks of a kind before anything is solved */

/* ---- life ---- */

void sl_resolve_init(const sl_plan *p, const sl_model_spec *m, const sl_watch *watch,
                     sl_resolve *out) {
    *out = (sl_resolve){
        .window = p->resolve, .lanes = SL_MAX(p->lanes, 1u), .order = p->order, .launch_us = -1};
    if (p->resolve == 0) return;
    out->regroup = sl_plan_regroups(p);
    out->eps = sl_schedule_traits_of(p->schedule)->anew == SL_ANEW_GROUPS;
    out->self = UINT32_MAX;
    out->shared = m->d_ff_shared > 0;
    out->n_lanes = p->lanes;
    out->n_chunks = p->chunks;
    out->n_moe = m->n_moe;
    /* Of EPS few steps are measured, and those of peers differ: several count alike. */
    out->memory = out->eps ? 8 * SL_MAX(m->n_moe, 1u) : MEMORY;
    out->enough = out->eps ? 2 * SL_MAX(m->n_moe, 1u) : ENOUGH;
    out->n_experts = m->n_experts;
    out->top_k = m->top_k;
    out->chunking = p->chunking;
    out->watch = watch;
    for (uint32_t l = 0; l < out->n_lanes; l++) out->groups[l] = 1;
}

sl_status sl_resolve_deploy(sl_resolve *r, uint32_t attention_workers, uint32_t expert_workers,
                            uint32_t self, sl_err *err) {
    if (!sl_resolve_is_on(r)) return SL_OK;
    r->attention_workers = attention_workers;
    r->expert_workers = expert_workers;
    r->self = self;
    /* Others may be elsewhere: what their tasks and the way to them take is learnt anew. */
    memset(&r->expert, 0, sizeof r->expert);
    memset(&r->away, 0, sizeof r->away);
    memset(&r->link, 0, sizeof r->link);
    memset(&r->span, 0, sizeof r->span);
    r->phase = (sl_resolve_phase){0};
    r->out_share = 0.5;
    r->launch_us = -1;
    r->guessed = r->trial = false;
    r->wins = 0;
    for (uint32_t c = 0; c < SL_RESOLVE_CLASSES; c++) r->cut[c].wins = 0;
    sl_free(r->arrays);
    const size_t chunks = (size_t)r->n_lanes * r->n_chunks;
    r->arrays = sl_alloc_arrays(
        SL_ARRAY(r->flight, chunks), SL_TABLE(r->message, chunks, expert_workers),
        SL_ARRAY(r->answered_us, expert_workers), SL_ARRAY(r->mean_us, expert_workers));
    if (r->arrays) return SL_OK;
    return sl_fail(err, SL_ERR_NOMEM, "chunks on their way to %u expert workers", expert_workers);
}

void sl_resolve_free(sl_resolve *r) {
    sl_free(r->arrays);
    *r = (sl_resolve){0};
}

/* ---- what is measured ---- */

/* A task of all experts: it ends all guesses at what one takes. */
static void learn_whole(sl_resolve *r, double rows, double us) {
    if (r->guessed) {
        memset(&r->expert, 0, sizeof r->expert);
        r->launch_us = -1;
        r->guessed = false;
    }
    sl_resolve_learn(r, &r->expert, rows, us);
}

/* A task of one group of experts of `groups`: had it been of all, it would have taken what those
 * take. What it took beyond its share is what every task takes. */
static void learn_group(sl_resolve *r, double rows, double us, uint32_t groups) {
    const uint32_t n = sl_resolve_count(&r->expert);
    r->guessed = r->guessed || n == 0;
    if (r->guessed && n < r->enough) { /* until then it is thought to take its share */
        sl_resolve_learn(r, &r->expert, rows, us * groups);
        return;
    }
    if (n < r->enough) return;
    const sl_findep_line all = sl_resolve_line(&r->expert);
    const double share = 1.0 / groups;
    const double own = fmax((us - share * (all.alpha + all.beta * rows)) / (1 - share), 0);
    if (r->launch_us < 0) r->launches = 0;
    r->launches = SL_MIN(r->launches + 1, r->memory);
    r->launch_us += (own - r->launch_us) / r->launches;
}

void sl_resolve_block(sl_resolve *r, uint32_t rows, uint64_t us) {
    if (sl_resolve_is_on(r) && rows > 0) sl_resolve_learn(r, &r->block, rows, (double)us);
}

void sl_resolve_shared(sl_resolve *r, uint32_t rows, uint64_t us) {
    if (sl_resolve_is_on(r) && rows > 0) sl_resolve_learn(r, &r->branch, rows, (double)us);
}

static sl_resolve_message *message_of(const sl_resolve *r, uint32_t lane, uint32_t chunk,
                                      uint32_t expert) {
    return &r->message[((size_t)lane * r->n_chunks + chunk) * r->expert_workers + expert];
}

void sl_resolve_sent(sl_resolve *r, uint32_t lane, uint32_t chunk, uint32_t expert, uint32_t pairs,
                     uint32_t rows, uint64_t now_us) {
    if (!sl_resolve_is_on(r) || pairs == 0) return;
    sl_resolve_message *m = message_of(r, lane, chunk, expert);
    sl_resolve_flight *f = &r->flight[(size_t)lane * r->n_chunks + chunk];
    *m = (sl_resolve_message){.sent_us = now_us, .entries = pairs};
    if (f->out++ == 0) *f = (sl_resolve_flight){.out = 1};
    f->entries += pairs;
    if (r->eps) sl_resolve_group_sent(r, f, expert, pairs, rows, now_us);
}

/* How long a message was on its way, there and back. */
static void learn_way(sl_resolve *r, const sl_resolve_message *m, uint32_t expert, double away,
                      uint64_t now_us) {
    const double since = (double)(now_us - r->answered_us[expert]);
    const double size = sl_resolve_each(r, (double)m->entries * r->expert_workers);
    sl_resolve_learn_least(r, &r->away, size, away);
    /* Else they came at once. */
    if (since >= 1) sl_resolve_learn_least(r, &r->link, size, fmin(away, 2 * since));
    r->answered_us[expert] = now_us;
}

void sl_resolve_answered(sl_resolve *r, uint32_t lane, uint32_t chunk, uint32_t expert,
                         uint32_t task_us, uint32_t held_us, uint64_t now_us) {
    if (!sl_resolve_is_on(r) || message_of(r, lane, chunk, expert)->entries == 0) return;
    sl_resolve_message *m = message_of(r, lane, chunk, expert);
    sl_resolve_flight *f = &r->flight[(size_t)lane * r->n_chunks + chunk];
    const double away = fmax((double)(now_us - m->sent_us) - held_us, 0);
    if (!r->eps)
        learn_way(r, m, expert, away, now_us);
    else if (expert != r->self)
        r->phase.away_us = fmax(r->phase.away_us, away);
    m->entries = 0;
    r->mean_us[expert] += (task_us - r->mean_us[expert]) / r->memory;
    f->task_us += task_us;
    f->n++;
    if (--f->out > 0 || (r->eps && !r->trial)) return;
    const uint32_t groups = r->groups[lane];
    const double rows = sl_resolve_each(r, f->entries * groups);
    if (groups > 1)
        learn_group(r, rows, f->task_us / f->n, groups);
    else
        learn_whole(r, rows, f->task_us / f->n);
    if (r->eps) sl_resolve_group_answered(r, f, now_us);
}

void sl_resolve_drop(sl_resolve *r, uint32_t lane) {
    if (!sl_resolve_is_on(r) || !r->arrays) return;
    const size_t n = (size_t)r->n_chunks * r->expert_workers;
    memset(&r->flight[(size_t)lane * r->n_chunks], 0, r->n_chunks * sizeof *r->flight);
    memset(&r->message[lane * n], 0, n * sizeof *r->message);
    sl_resolve_close_layer(r);
}

/* ---- what is solved ---- */

static bool is_measured(const sl_resolve *r) {
    return sl_resolve_count(&r->block) >= r->enough && sl_resolve_count(&r->expert) >= r->enough &&
           (!r->shared || sl_resolve_count(&r->branch) >= r->enough) &&
           (r->eps ? sl_resolve_knows_groups(r) : sl_resolve_count(&r->link) >= r->enough);
}

static sl_findep_line scaled(sl_findep_line l, double by) {
    l.beta *= by;
    return l;
}

static sl_findep_line times(sl_findep_line l, double by) {
    return (sl_findep_line){.alpha = l.alpha * by, .beta = l.beta * by, .floor = l.floor * by};
}

/* Of so many lanes with `rows` rows each: these are a sample. Groups of experts have all rows, of
 * which the time is known: they share it, but for what every task takes. */
static sl_findep_problem problem_of(const sl_resolve *r, uint32_t lanes, double rows,
                                    sl_chunking by) {
    const sl_findep_line expert = sl_resolve_line(&r->expert);
    const double each = rows * r->attention_workers * r->top_k / r->n_experts;
    const double launch = fmin(fmax(r->launch_us, 0), expert.alpha);
    const sl_findep_line shared = {.alpha = launch,
                                   .floor = expert.alpha + expert.beta * each - launch};
    const sl_findep_line away = sl_resolve_line(&r->away);
    sl_findep_line link = sl_resolve_line(&r->link);
    const double lag = away.alpha - link.alpha + (away.beta - link.beta) * each;
    link.alpha /= 2; /* one way */
    link.beta /= 2;
    return (sl_findep_problem){
        .layers = r->n_moe,
        .ag = r->attention_workers,
        .eg = r->expert_workers,
        .tokens = 1,
        .experts = r->n_experts,
        .top_k = r->top_k,
        .batch_per_ag = lanes,
        .ma = 1,
        .r1_max = lanes,
        .r2_max = r->n_chunks,
        .skew = 1, /* in the experts' times */
        .attn = scaled(sl_resolve_line(&r->block), rows),
        .shared = scaled(sl_resolve_line(&r->branch), rows),
        .a2e = scaled(link, rows),
        .expert = times(by == SL_CHUNK_TOKENS ? scaled(expert, rows) : shared, sl_resolve_skew(r)),
        .e2a = scaled(link, rows),
        .lag = fmax(lag, 0),
        .cut = by == SL_CHUNK_TOKENS ? SL_FINDEP_CUT_TOKENS : SL_FINDEP_CUT_EXPERTS};
}

static void tell(sl_resolve *r, uint64_t now_us, const sl_resolve_change *c) {
    r->changes++;
    r->change[r->n_change++] = *c;
    sl_watch_tell(r->watch, CHOICE, now_us, c->rows, c->lanes, c->chunks, c->order, c->chunking);
}

/* Whether a rival that makes so many times as much has won often enough. */
static bool wins(uint32_t *n, double gain) {
    *n = gain >= SL_CHOOSE_MARGIN ? *n + 1 : 0;
    if (*n < SL_RESOLVE_WINS) return false;
    *n = 0;
    return true;
}

/* What the solver has to say about `rows` rows in so many lanes, where it may choose, and what it
 * says: the best of both kinds of chunks. */
typedef struct answer {
    sl_findep_point at;
    double makespan; /* INFINITY: there is none */
} answer;

static answer solve(const sl_resolve *r, double rows, uint32_t lanes) {
    answer best = {.makespan = INFINITY};
    sl_err err;
    if (r->eps) {
        best.at = (sl_findep_point){.r1 = 1, .ma = 1, .chunking = SL_CHUNK_EXPERTS};
        best.at.r2 = sl_resolve_groups(r, rows, &best.makespan);
        return best;
    }
    for (int by = 0; by < SL_CHUNKING_COUNT; by++) {
        if (!r->regroup && by != (int)r->chunking) continue;
        const sl_findep_problem p = problem_of(r, lanes, rows / lanes, (sl_chunking)by);
        sl_findep_result at;
        if (sl_findep_solve(&p, false, &at, &err) != SL_OK || at.makespan_ms >= best.makespan)
            continue;
        best = (answer){.at = at.at, .makespan = at.makespan_ms};
    }
    return best;
}

/* What such a point takes. */
static double time_of(const sl_resolve *r, double rows, const sl_findep_point *at) {
    if (r->eps) return sl_resolve_groups_us(r, rows, at->r2);
    const sl_findep_problem p = problem_of(r, at->r1, rows / at->r1, at->chunking);
    sl_findep_result out;
    sl_err err;
    return sl_findep_evaluate(&p, at, &out, &err) == SL_OK ? out.makespan_ms : INFINITY;
}

/* Lanes and order for all rows of the window. */
static void solve_lanes(sl_resolve *r, uint64_t now_us) {
    uint32_t used = 0;
    for (uint32_t l = 0; l < r->n_lanes; l++) used += r->lanes_used >> l & 1;
    const double all = (double)r->rows / r->steps * used;
    /* A request is in one lane. */
    const uint64_t requests = SL_MAX(r->requests / r->steps, 1u);
    answer best = {.makespan = INFINITY}, held = solve(r, all, r->lanes);
    for (uint32_t lanes = 1; lanes <= SL_MIN(r->n_lanes, requests); lanes++) {
        const answer at = solve(r, all, lanes);
        if (at.makespan < best.makespan) best = at;
    }
    if (!isfinite(best.makespan) || !isfinite(held.makespan)) return;
    held.at.order = r->order;
    if (best.at.r1 == r->lanes && best.at.order == r->order) {
        r->wins = 0;
        return;
    }
    if (!wins(&r->wins, time_of(r, all, &held.at) / best.makespan)) return;
    r->lanes = best.at.r1;
    r->order = best.at.order;
    tell(r, now_us, &(sl_resolve_change){.lanes = r->lanes, .order = r->order});
}

/* Groups are even where they are a divisor of those that there are. */
static uint32_t even_chunks(const sl_resolve *r, const sl_findep_point *at) {
    uint32_t n = at->r2;
    while (at->chunking == SL_CHUNK_EXPERTS && r->n_chunks % n != 0) n--;
    return n;
}

/* Chunks of the steps of one class, in as many lanes as there are. */
static void solve_class(sl_resolve *r, uint32_t class, uint64_t now_us) {
    sl_resolve_cut *c = &r->cut[class];
    const double rows = c->rows / c->n * r->lanes;
    answer best = solve(r, rows, r->lanes);
    if (!isfinite(best.makespan)) return;
    best.at.order = r->order;
    best.at.r2 = even_chunks(r, &best.at);
    sl_findep_point held = best.at;
    held.r2 = c->chunks;
    held.chunking = c->chunking;
    if (!wins(&c->wins, time_of(r, rows, &held) / time_of(r, rows, &best.at))) return;
    c->known = true;
    c->chunks = best.at.r2;
    c->chunking = best.at.chunking;
    tell(r, now_us,
         &(sl_resolve_change){.rows = 1u << class,
                              .lanes = r->lanes,
                              .chunks = c->chunks,
                              .order = r->order,
                              .chunking = c->chunking});
}

/* The shortest is forgotten, slowly: links become slower, too. */
static void forget(sl_resolve_meter *m) {
    for (uint32_t c = 0; c < SL_RESOLVE_CLASSES; c++) m->of[c].us *= 1 + 1.0 / 256;
}

static void close_window(sl_resolve *r, uint64_t now_us) {
    if (is_measured(r) && (!r->eps || r->self == 0)) {
        /* Groups of experts that may not change have nothing to choose. */
        const bool cuts = r->regroup || r->chunking == SL_CHUNK_TOKENS;
        if (!r->eps) solve_lanes(r, now_us);
        for (uint32_t c = 0; cuts && r->n_chunks > 1 && c < SL_RESOLVE_CLASSES; c++)
            if (r->cut[c].n > 0) solve_class(r, c, now_us);
    }
    if (!r->eps) {
        forget(&r->away);
        forget(&r->link);
    }
    for (uint32_t c = 0; c < SL_RESOLVE_CLASSES; c++) r->cut[c].rows = r->cut[c].n = 0;
    r->steps = 0;
    r->rows = r->requests = r->lanes_used = 0;
}

/* ---- steps ---- */

void sl_resolve_form(sl_resolve *r, uint32_t lane, uint32_t rows, uint64_t round, uint32_t *chunks,
                     sl_chunking *chunking) {
    if (!sl_resolve_is_on(r) || rows == 0) return;
    sl_resolve_cut *c = &r->cut[sl_resolve_class_of(rows)];
    c->rows += rows;
    c->n++;
    if (c->known) {
        *chunking = c->chunking;
        *chunks = c->chunking == SL_CHUNK_TOKENS ? SL_MIN(c->chunks, rows) : c->chunks;
    } else {
        c->chunking = *chunking;
        c->chunks = *chunks;
    }
    if (r->eps) sl_resolve_agree(r, c, round, chunks, chunking);
    r->groups[lane] = *chunking == SL_CHUNK_EXPERTS ? *chunks : 1;
}

bool sl_resolve_step(sl_resolve *r, uint32_t lane, uint32_t rows, uint32_t requests,
                     uint64_t now_us) {
    if (!sl_resolve_is_on(r) || rows == 0) return false;
    r->n_change = 0;
    sl_resolve_close_layer(r);
    r->steps++;
    r->rows += rows;
    r->requests += requests;
    r->lanes_used |= 1ull << lane;
    if (r->steps >= r->window) close_window(r, now_us);
    return r->n_change > 0;
}
