/* sluice simulate --try-sides: whether it pays that some of so many workers compute prompts alone
 * (docs/prefill.md). Every division of the workers is run with the same load. */
#include "simulate.h"

#include "base/mem.h"

#include <inttypes.h>
#include <stdio.h>

typedef struct division {
    uint32_t attention, experts, prefill, prefill_experts;
    sl_sim_result r; /* without what it owns */
} division;

/* `k` of the attention workers are for prompts, and as large a part of the expert workers. */
static division divide(const sl_options *o, uint32_t k) {
    const uint32_t a = o->attention, e = o->experts;
    uint32_t part = e ? (uint32_t)(((uint64_t)e * k + a / 2) / a) : 0;
    if (e && k) part = SL_MIN(SL_MAX(part, 1u), e - 1);
    return (division){
        .attention = a - k, .experts = e - part, .prefill = k, .prefill_experts = part};
}

static sl_status run(const sl_options *o, division *d, sl_err *err) {
    sl_options with = *o;
    sl_simulation *x = sl_alloc(1, sizeof *x);
    if (!x) return sl_fail(err, SL_ERR_NOMEM, "simulation");
    with.attention = d->attention;
    with.experts = d->experts;
    with.prefill = d->prefill;
    with.prefill_experts = d->prefill_experts;
    sl_status st = sl_simulation_prepare(&with, x, err);
    if (st == SL_OK) st = sl_sim_run(&x->setup, &d->r, err);
    sl_free(d->r.worker);
    d->r.worker = NULL;
    sl_simulation_free(x);
    sl_free(x);
    return st;
}

/* More requests within the objectives, of equal ones shorter times between tokens. */
static bool is_better(const division *a, const division *b) {
    const double more = a->r.goodput_per_s - b->r.goodput_per_s;
    const double least = 0.01 * SL_MAX(a->r.goodput_per_s, b->r.goodput_per_s);
    if (more > least || more < -least) return more > 0;
    return a->r.itl_us.p99 < b->r.itl_us.p99;
}

static void print_json(const division *d, uint32_t n, uint32_t best) {
    printf("{\"divisions\":[");
    for (uint32_t i = 0; i < n; i++) {
        const sl_sim_result *r = &d[i].r;
        printf("%s{\"attention\":%u,\"experts\":%u,\"prefill\":%u,\"prefill_experts\":%u"
               ",\"goodput_per_s\":%.6g,\"requests_per_s\":%.6g,\"tokens_per_s\":%.6g"
               ",\"ttft_p90_ms\":%.6g,\"itl_p50_ms\":%.6g,\"itl_p99_ms\":%.6g,\"handed_over\":"
               "%" PRIu64 "}",
               i ? "," : "", d[i].attention, d[i].experts, d[i].prefill, d[i].prefill_experts,
               r->goodput_per_s, r->requests_per_s, r->tokens_per_s, r->ttft_us.p90 / 1e3,
               r->itl_us.p50 / 1e3, r->itl_us.p99 / 1e3, r->handed);
    }
    printf("],\"best\":%u}\n", best);
}

static void print_table(const division *d, uint32_t n, uint32_t best) {
    printf("%-28s %12s %12s %12s %12s %12s\n", "workers", "within/s", "tokens/s", "first p90 ms",
           "between p50", "p99 ms");
    for (uint32_t i = 0; i < n; i++) {
        const sl_sim_result *r = &d[i].r;
        char who[80];
        if (d[i].experts)
            snprintf(who, sizeof who, "%u+%u, prompts %u+%u", d[i].attention, d[i].experts,
                     d[i].prefill, d[i].prefill_experts);
        else
            snprintf(who, sizeof who, "%u, prompts %u", d[i].attention, d[i].prefill);
        printf("%-28s %12.3f %12.1f %12.1f %12.2f %12.2f%s\n", who, r->goodput_per_s,
               r->tokens_per_s, r->ttft_us.p90 / 1e3, r->itl_us.p50 / 1e3, r->itl_us.p99 / 1e3,
               i == best ? "  best" : "");
    }
}

sl_status sl_simulate_sides(const sl_options *o, sl_err *err) {
    const uint32_t n = o->attention;
    uint32_t best = 0;
    if (o->plan[0] || o->prefill || o->prefill_experts || o->trace[0] || o->svg[0])
        return sl_fail(err, SL_ERR_ARG,
                       "--try-sides divides the workers of --attention and --experts itself: leave "
                       "out --plan, --prefill, --prefill-experts, --trace and --svg");
    if (n < 2 || o->experts == 1)
        return sl_fail(err, SL_ERR_ARG,
                       "--try-sides: %u attention and %u expert workers cannot be divided", n,
                       o->experts);
    division *d = sl_alloc(n, sizeof *d);
    if (!d) return sl_fail(err, SL_ERR_NOMEM, "divisions of %u workers", n);
    sl_status st = SL_OK;
    for (uint32_t k = 0; st == SL_OK && k < n; k++) {
        d[k] = divide(o, k);
        st = run(o, &d[k], err);
        if (st == SL_OK && k && is_better(&d[k], &d[best])) best = k;
    }
    if (st == SL_OK && o->json) print_json(d, n, best);
    if (st == SL_OK && !o->json) print_table(d, n, best);
    sl_free(d);
    return st;
}
