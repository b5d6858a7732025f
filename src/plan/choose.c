/* The schedule that the closed forms predict to be fastest for given times. */
#include "plan/choose.h"

#include "plan/eps.h"
#include "plan/findep.h"
#include "spec/rank_cost.h"

#include <math.h>

/* aep runs fragments: what its predicted time is worth (docs/schedules.md). */
#define AEP_FRAGMENTS 1.1

/* ---- who works, and on how much ---- */

static void count_roles(const sl_plan *p, sl_choose_load *l) {
    for (uint32_t i = 0; i < p->n_workers; i++) {
        uint32_t roles = sl_plan_first_roles(p, i);
        l->attention_workers += roles & SL_ROLE_ATTENTION ? 1 : 0;
        l->expert_workers += roles & SL_ROLE_EXPERT ? 1 : 0;
    }
    l->colocated = l->attention_workers + l->expert_workers > sl_plan_n_first(p);
}

/* Ranks on machines: cards of their own, and memory that rows have to be carried to. */
static void describe_ranks(const sl_plan *p, const sl_model_spec *m, sl_choose_load *l) {
    if (p->rank_kind != SL_RANKS_MACHINES) return;
    const uint32_t attention = sl_plan_ranks(p, SL_ROLE_ATTENTION);
    const uint32_t expert = sl_plan_ranks(p, SL_ROLE_EXPERT);
    l->beside_attention = attention - 1;
    l->beside_expert = expert - 1;
    l->stream_bytes = (double)m->d_model * sizeof(float);
    if (l->colocated) l->rails = attention;
}

void sl_choose_describe(const sl_plan *p, const sl_model_spec *m, size_t row_bytes,
                        uint32_t requests, sl_choose_load *out) {
    sl_choose_load l = {.n_experts = p->n_experts,
                        .top_k = m->top_k,
                        .shared = m->d_ff_shared > 0,
                        .prefill_rows = p->max_num_batched_tokens,
                        .keys = SL_MAX(p->context / 2, 1u),
                        .row_bytes = (double)row_bytes,
                        .exact = p->exact,
                        .regroup = sl_plan_regroups(p),
                        .skew = 1,
                        .skew_total = 1,
                        .rails = 1,
                        .rail_bytes = SL_PLAN_RAIL_BYTES,
                        .threads = p->threads};
    count_roles(p, &l);
    describe_ranks(p, m, &l);
    uint32_t each = (requests + l.attention_workers - 1) / l.attention_workers;
    if (requests == 0 || each > p->max_num_seqs) each = p->max_num_seqs;
    l.decode_rows = SL_MIN(each, p->max_num_batched_tokens);
    l.max_lanes = SL_MIN(l.decode_rows, SL_PLAN_MAX_LANES);
    *out = l;
}

/* ---- what a block costs ---- */

static double stage(const sl_costs *c, sl_cost_kind kind, double rows, double keys) {
    return rows > 0 ? sl_stage_cost_us(&c->stage[kind], rows, keys) : 0;
}

/* Experts that so many tokens choose, of all: E (1 - (1 - k/E)^tokens), at least the k of one. */
static double active_experts(const sl_choose_load *l, double tokens) {
    double e = l->n_experts;
    return fmax(e * (1 - pow(1 - l->top_k / e, tokens)), l->top_k);
}

/* The busiest expert worker's time for one of `parts` chunks of the rows of all attention workers.
 */
static double expert_us(const sl_costs *c, const sl_choose_load *l, double tokens, uint32_t parts,
                        sl_chunking by, double skew) {
    double in_chunk = by == SL_CHUNK_TOKENS ? tokens / parts : tokens;
    double active = active_experts(l, in_chunk), rows = in_chunk * l->top_k / active;
    double here = active / l->expert_workers;
    if (by == SL_CHUNK_EXPERTS) here /= parts;
    here = fmax(here, 1);
    const sl_stage_cost *cost = &c->stage[SL_COST_EXPERT];
    if (rows <= 0) return 0;
    return sl_expert_cost_us(cost, c->grouped, rows * skew, true) +
           (here - 1) * sl_expert_cost_us(cost, c->grouped, rows * skew, false);
}

/* A message of a lane's rows, and whether all ranks' ports have a part of it: under hybrid, if it
 * is long enough. */
static double message_bytes(const sl_choose_load *l, const sl_choice *x, double rows, double skew,
                            bool *in_stripes) {
    double bytes = rows * l->row_bytes / x->chunks * skew;
    *in_stripes = x->schedule == SL_SCHED_HYBRID && bytes >= l->rail_bytes;
    return bytes;
}

/* A lane's rows to all expert workers, or back: the busier of the two ends' ports. */
static double link_us(const sl_costs *c, const sl_choose_load *l, const sl_choice *x, double rows,
                      double skew) {
    bool in_stripes;
    double messages = fmax(l->expert_workers, l->attention_workers) - l->colocated;
    double bytes = message_bytes(l, x, rows, skew, &in_stripes);
    return messages * sl_link_cost_us(&c->link, in_stripes ? bytes / l->rails : bytes);
}

/* Rows that a gang's first rank passes on to `beside` others, or columns that these give it; none
 * where `rows` travel in stripes. */
static double carried_us(const sl_costs *c, const sl_choose_load *l, const sl_choice *x,
                         double rows, uint32_t beside, double bytes) {
    bool in_stripes;
    message_bytes(l, x, rows, 1, &in_stripes);
    return in_stripes ? 0 : sl_carried_us(&c->link, beside, rows, bytes / x->chunks);
}

/* One task of each kind for lanes of `rows` rows in the chunks of x. */
static sl_findep_times times_of(const sl_costs *c, const sl_choose_load *l, const sl_choice *x,
                                double rows, double keys, double skew) {
    double w = l->expert_workers, sent = rows * (1 - pow(1 - 1 / w, l->top_k));
    double back = l->exact ? rows * l->top_k / w : sent;
    const double column_bytes = l->stream_bytes / (l->beside_expert + 1);
    return (sl_findep_times){
        .a = stage(c, SL_COST_ATTENTION, rows, rows * keys) + stage(c, SL_COST_ROUTER, rows, 0) +
             carried_us(c, l, x, rows, l->beside_attention, l->stream_bytes * x->chunks),
        .s = l->shared ? stage(c, SL_COST_SHARED, rows, 0) : 0,
        .c = link_us(c, l, x, sent, skew) +
             carried_us(c, l, x, sent, l->beside_expert, l->stream_bytes),
        .e = expert_us(c, l, rows * l->attention_workers, x->chunks, x->chunking, skew),
        .d = link_us(c, l, x, back, skew) +
             carried_us(c, l, x, back, l->beside_expert, column_bytes)};
}

/* Growth of the makespan by a layer, over so many that cycles of two do not matter. */
static double period(const sl_costs *c, const sl_findep_times *t, const sl_choice *x) {
    enum { LAYERS = 32 };
    double (*law)(const sl_findep_times *, uint32_t, uint32_t, uint32_t, sl_order) =
        c->link.half_duplex ? sl_findep_makespan_half : sl_findep_makespan;
    double all = law(t, 1 + LAYERS, x->lanes, x->chunks, x->order);
    return (all - law(t, 1, x->lanes, x->chunks, x->order)) / LAYERS;
}

/* Attention and experts of a worker take turns: only transfers overlap. */
static double colocated_period(const sl_findep_times *t, const sl_choice *x) {
    const sl_eps_cut cut = {.n = x->chunks, .dispatch = t->c, .compute = t->e, .combine = t->d};
    const sl_eps_beside beside = {.attention = t->a, .shared = t->s};
    double alone = sl_eps_layer(&cut, &beside, true);
    double work = t->a + t->s + x->chunks * t->e, link = x->chunks * (t->c + t->d);
    return fmax(alone, x->lanes * fmax(work, link));
}

/* No barrier: whatever is there runs, in two batches at least, so that nobody waits for the other
 * side; a worker's load is that of all blocks together. */
static double async_period(const sl_findep_times *t, bool colocated) {
    double side = t->a + t->s, work = colocated ? side + t->e : fmax(side, t->e);
    double busy = 2 * fmax(work, fmax(t->c, t->d));
    return AEP_FRAGMENTS * fmax(busy, t->a + t->c + t->e + t->d);
}

static double predict(const sl_costs *c, const sl_choose_load *l, const sl_choice *x,
                      double all_rows, double keys) {
    bool async = x->schedule == SL_SCHED_AEP;
    double lanes = async ? 2 : x->lanes, rows = all_rows / lanes;
    double skew = async ? l->skew_total : l->skew, p;
    sl_findep_times t = times_of(c, l, x, rows, keys, skew);
    if (async)
        p = async_period(&t, l->colocated);
    else
        p = l->colocated ? colocated_period(&t, x) : period(c, &t, x);
    if (l->cores <= 0) return p;
    /* Workers that share cores: all work of a block at least. */
    sl_findep_times mean = times_of(c, l, x, rows, keys, 1);
    double work = l->core_attention * (mean.a + mean.s) + l->core_experts * x->chunks * mean.e;
    return fmax(p, lanes * work * l->threads / l->cores);
}

void sl_choose_predict(const sl_costs *c, const sl_choose_load *l, sl_choice *x) {
    x->decode_us = predict(c, l, x, l->decode_rows, l->keys);
    x->prefill_us = predict(c, l, x, l->prefill_rows, l->prefill_rows / 2.0);
}

sl_choose_times sl_choose_times_at(const sl_costs *c, const sl_choose_load *l, bool prefill) {
    double rows = prefill ? l->prefill_rows : l->decode_rows;
    double keys = prefill ? rows / 2 : l->keys;
    const sl_choice base = {.lanes = 1, .chunks = 1, .chunking = SL_CHUNK_TOKENS};
    sl_findep_times t = times_of(c, l, &base, rows, keys, l->skew);
    return (sl_choose_times){t.a, t.s, t.c, t.e, t.d};
}

uint32_t sl_choose_chunks(const sl_costs *c, const sl_choose_load *l, const sl_choice *x,
                          double rows, double keys) {
    sl_choice at = *x;
    double least = INFINITY;
    uint32_t best = 1;
    const bool groups = x->chunking == SL_CHUNK_EXPERTS;
    for (at.chunks = 1; at.chunks <= x->chunks; at.chunks++) {
        if (groups ? x->chunks % at.chunks != 0 : at.chunks > 1 && at.chunks > rows) continue;
        sl_findep_times t = times_of(c, l, &at, rows, keys, l->skew);
        double p = l->colocated ? colocated_period(&t, &at) : period(c, &t, &at);
        if (p >= least * (1 - 1e-9)) continue;
        least = p;
        best = at.chunks;
    }
    return best;
}

/* ---- candidates ---- */

static void put(sl_choice *out, uint32_t *n, sl_choice x) {
    if (*n < SL_CHOOSE_MAX) out[(*n)++] = x;
}

static void put_findep(const sl_choose_load *l, sl_choice *out, uint32_t *n, sl_chunking by) {
    uint32_t each = l->n_experts / l->expert_workers;
    for (uint32_t r1 = 1; r1 <= SL_MIN(l->max_lanes, 3u); r1++) {
        for (uint32_t r2 = r1 == 1 ? 2 : 1; r2 <= 8; r2 *= 2) {
            sl_choice x = {.schedule = SL_SCHED_FINDEP, .lanes = r1, .chunks = r2, .chunking = by};
            if (by == SL_CHUNK_EXPERTS && (r2 == 1 || r2 > each)) continue;
            if (by == SL_CHUNK_TOKENS && r2 > l->prefill_rows / r1) continue;
            if (r2 > 1) put(out, n, x);
            x.order = SL_ORDER_AASS;
            if (l->shared && r1 > 1 && by == SL_CHUNK_TOKENS) put(out, n, x);
        }
    }
}

/* Simplest first. */
static void list(const sl_choose_load *l, sl_choice *out, uint32_t *n) {
    sl_choice base = {
        .schedule = l->colocated ? SL_SCHED_EP : SL_SCHED_DEP, .lanes = 1, .chunks = 1};
    uint32_t each = l->n_experts / l->expert_workers;
    put(out, n, base);
    if (l->colocated && l->expert_workers == 1) return; /* nothing travels */
    if (l->colocated && l->rails > 1)
        put(out, n, (sl_choice){.schedule = SL_SCHED_HYBRID, .lanes = 1, .chunks = 1});
    for (uint32_t m = 2; m <= SL_MIN(l->max_lanes, 4u); m++)
        put(out, n, (sl_choice){.schedule = SL_SCHED_PINGPONG, .lanes = m, .chunks = 1});
    if (l->colocated) {
        for (uint32_t g = 2; l->regroup && g <= SL_MIN(each, 16u); g++) {
            sl_choice x = {.schedule = SL_SCHED_EPS, .lanes = 1, .chunks = g};
            x.chunking = SL_CHUNK_EXPERTS;
            if (each % g == 0) put(out, n, x);
        }
    } else {
        put_findep(l, out, n, SL_CHUNK_TOKENS);
        if (l->regroup) put_findep(l, out, n, SL_CHUNK_EXPERTS);
    }
    sl_choice async = {.schedule = SL_SCHED_AEP, .lanes = 1, .chunks = 1};
    if (l->regroup && l->skew > 1) put(out, n, async);
}

sl_status sl_choose(const sl_costs *c, const sl_choose_load *l, sl_choice out[SL_CHOOSE_MAX],
                    uint32_t *n, uint32_t *best, sl_err *err) {
    double decode = INFINITY, prefill = INFINITY, least = INFINITY;
    if (!l->attention_workers || !l->expert_workers || !l->n_experts || !l->top_k ||
        !l->decode_rows || !l->prefill_rows || !(l->skew >= 1) || !(l->skew_total >= 1))
        return sl_fail(err, SL_ERR_ARG, "choice of a schedule: a worker, expert or row count is 0");
    *n = 0;
    list(l, out, n);
    for (uint32_t i = 0; i < *n; i++) {
        sl_choose_predict(c, l, &out[i]);
        decode = fmin(decode, out[i].decode_us);
        prefill = fmin(prefill, out[i].prefill_us);
    }
    for (uint32_t i = 0; i < *n; i++) {
        double d = decode > 0 ? out[i].decode_us / decode : 1;
        double p = prefill > 0 ? out[i].prefill_us / prefill : 1;
        out[i].score = (d + p) / 2;
        least = fmin(least, out[i].score);
    }
    for (*best = 0; out[*best].score > SL_CHOOSE_MARGIN * least;) ++*best;
    return SL_OK;
}
