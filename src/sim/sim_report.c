/* What a run gives: percentiles, shares, the laws it has to keep, its traces. */
#include "sim/deployment_int.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void sim_sample(sim *s, sim_samples *to, double us) {
    if (to->n == to->cap) {
        size_t cap = SL_MAX(2 * to->cap, (size_t)4096);
        float *bigger = sl_grow(to->v, to->cap, cap, sizeof *bigger);
        if (!bigger) {
            sim_fail(s, sim_oom(s, "samples"));
            return;
        }
        to->v = bigger;
        to->cap = cap;
    }
    to->v[to->n++] = (float)us;
}

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static sl_sim_dist dist_of(sim_samples *v) {
    sl_sim_dist d = {.n = v->n};
    if (v->n == 0) return d;
    qsort(v->v, v->n, sizeof *v->v, by_value);
    double sum = 0;
    for (size_t i = 0; i < v->n; i++) sum += v->v[i];
    double last = (double)(v->n - 1);
    d.mean = sum / (double)v->n;
    d.p50 = v->v[(size_t)(last * 0.5)];
    d.p90 = v->v[(size_t)(last * 0.9)];
    d.p99 = v->v[(size_t)(last * 0.99)];
    d.max = v->v[v->n - 1];
    return d;
}

/* Rows and pages are conserved, servers do one thing at a time. */
static sl_status audit(sim *s) {
    if (s->result.rows_created !=
        s->result.rows_merged + s->result.rows_cancelled + s->result.rows_lost + s->rows_away)
        return sl_fail(s->err, SL_ERR_INTERNAL,
                       "simulation: %" PRIu64 " rows created, %" PRIu64 " merged, %" PRIu64
                       " cancelled, %" PRIu64 " lost, %" PRIu64 " away",
                       s->result.rows_created, s->result.rows_merged, s->result.rows_cancelled,
                       s->result.rows_lost, s->rows_away);
    for (uint32_t i = 0; i < s->n_workers; i++) {
        const sim_worker *w = &s->worker[i];
        if (w->busy_us > s->ev.now * (1 + 1e-9) || !sim_links_add_up(s, w))
            return sl_fail(s->err, SL_ERR_INTERNAL,
                           "simulation: worker %u was busy %g us of %g, its ports %g and %g", i,
                           w->busy_us, s->ev.now, w->out->at.busy, w->in->at.busy);
        const sl_admit_worker *books = &s->admit.worker[i];
        uint64_t used = 0;
        for (uint32_t r = books->running.first; r != SL_ADMIT_NONE;
             r = s->admit.request[r].link[SL_ADMIT_PLACE].next)
            used += s->admit.request[r].n_pages;
        if (used + books->pages.n_free != books->pages.n_total)
            return sl_fail(s->err, SL_ERR_INTERNAL,
                           "simulation: worker %u has %" PRIu64 " pages in use, %u free of %u", i,
                           used, books->pages.n_free, books->pages.n_total);
    }
    return SL_OK;
}

static sl_sim_worker_stats stats_of(const sim *s, const sim_worker *w, double span) {
    double busy = w->busy_us - w->busy_from;
    if (w->running != SIM_REST) busy += s->ev.now - SL_MAX(w->began_at, s->result.from_us);
    double scale = span > 0 ? 1 / span : 0;
    return (sl_sim_worker_stats){.roles = w->roles,
                                 .busy = SL_MIN(busy * scale, 1),
                                 .out = sim_links_share(w->out, s->rails, span),
                                 .in = sim_links_share(w->in, s->rails, span),
                                 .depth_mean = w->depth_area * scale,
                                 .depth_max = w->depth_max,
                                 .tasks = w->tasks,
                                 .rows = w->rows};
}

/* A load of which no request fits says nothing about a deployment. */
static sl_status nothing_fits(const sim *s) {
    return sl_fail(s->err, SL_ERR_INFEASIBLE,
                   "no request fits: the shortest of %" PRIu64 " has %u positions, prompt and "
                   "answer; the plan has a context of %u and %u KV pages of %u",
                   s->result.too_long, s->shortest, s->p->context, s->p->n_pages,
                   SL_KV_PAGE_TOKENS);
}

sl_status sim_report(sim *s, sl_sim_result *out) {
    if (s->s->warmup_us <= 0 && s->s->warmup_tokens == 0)
        s->result.tokens += s->last_tokens; /* it began before the first */
    double span = s->result.to_us - s->result.from_us, shares = s->ev.now - s->result.from_us;
    sl_status st = audit(s);
    if (st == SL_OK && s->result.too_long > 0 && s->result.too_long == s->result.submitted)
        st = nothing_fits(s);
    if (st != SL_OK) return st;
    *out = s->result;
    out->end_us = s->ev.now;
    out->tokens_per_s = span > 0 ? 1e6 * (double)s->result.tokens / span : 0;
    out->requests_per_s = span > 0 ? 1e6 * (double)s->result.finished / span : 0;
    out->goodput_per_s = span > 0 ? 1e6 * (double)s->kept / span : 0;
    out->ttft_us = dist_of(&s->ttft);
    out->itl_us = dist_of(&s->itl);
    out->tpot_us = dist_of(&s->tpot);
    out->queued_us = dist_of(&s->queued);
    out->events = s->ev.popped;
    out->n_workers = s->n_workers;
    out->worker = sl_alloc(s->n_workers, sizeof *out->worker);
    if (out->worker && s->s->trace_events) out->trace = sl_alloc(s->n_workers, sizeof *out->trace);
    if (!out->worker || (s->s->trace_events && !out->trace)) {
        sl_sim_result_free(out);
        return sim_oom(s, "the result");
    }
    for (uint32_t i = 0; i < s->n_workers; i++) {
        out->worker[i] = stats_of(s, &s->worker[i], shares);
        if (!out->trace) continue;
        out->trace[i] = s->worker[i].trace;
        s->worker[i].trace = NULL;
    }
    return SL_OK;
}

void sl_sim_result_free(sl_sim_result *r) {
    for (uint32_t i = 0; r->trace && i < r->n_workers; i++) sl_trace_free(r->trace[i]);
    sl_free(r->trace);
    sl_free(r->worker);
    *r = (sl_sim_result){0};
}

const char *sl_sim_message_name(uint16_t kind) {
    static const char *const names[SIM_MSG_KINDS] = {"dispatch",   "return",    "join",
                                                     "round open", "round set", "KV page"};
    return kind < SIM_MSG_KINDS ? names[kind] : NULL;
}
