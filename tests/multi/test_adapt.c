/* Experts that move by their load while requests run. Popularity is skewed on purpose and the first
 * placement is the worst for it: steps soon wait for experts at most 1.08 times as long as they
 * have to, and no token changes. Without being asked nothing moves; what does not fit into memory
 * is refused, and nothing moves either.
 *
 * usage: test_adapt loop|shm|tcp SLUICE MODEL_FOLDER [ONE_IN]
 * ONE_IN: one deployment in so many. */
#define STREAMS    16u
#define MAX_PROMPT 24u
#define N_NEW      100u
#define DEADLINE_S 120
#define EVEN       1.08
#define PROMISED   1.15 /* by one window, of which some rows may be of a slow start */

#include "streams.h"

#include "base/clock.h"
#include "base/mem.h"
#include "format/plan_json.h"
#include "format/plan_lab.h"

typedef struct deployment {
    uint32_t attention, experts; /* experts 0: colocated */
    sl_schedule schedule;
    sl_policy policy;
} deployment;

static const deployment deployments[] = {
    {3, 0, SL_SCHED_EP, SL_POLICY_DEFRAG},     {2, 0, SL_SCHED_EPS, SL_POLICY_DEFRAG},
    {1, 2, SL_SCHED_DEP, SL_POLICY_DEFRAG},    {2, 3, SL_SCHED_PINGPONG, SL_POLICY_DEFRAG},
    {1, 2, SL_SCHED_FINDEP, SL_POLICY_DEFRAG}, {1, 3, SL_SCHED_AEP, SL_POLICY_DEFRAG},
    {1, 2, SL_SCHED_AEP, SL_POLICY_MTFS},      {2, 2, SL_SCHED_AEP, SL_POLICY_FLFS},
    {1, 2, SL_SCHED_AEP, SL_POLICY_RMF},       {1, 3, SL_SCHED_DEP, SL_POLICY_DEFRAG},
};

static int run(sl_engine *e, outcome *o) {
    int bad = 0;
    n_begun = n_ended = 0;
    for (uint32_t i = 0; !bad && i < STREAMS; i++) bad = submit(e, i, 5 + i, N_NEW, &o[i]);
    return bad ? bad : await(&n_ended, STREAMS, STREAMS);
}

/* ---- deployments ---- */

static sl_plan plan_of(const deployment *d) {
    sl_err err;
    sl_plan p;
    if (sl_plan_local(&spec, d->attention, d->experts, &p, &err) != SL_OK) abort();
    if (d->schedule != p.schedule) sl_plan_set_schedule(&p, d->schedule);
    if (d->schedule == SL_SCHED_FINDEP) p.chunks = 2;
    p.policy = d->policy;
    p.exact = true;
    p.threads = 1;
    p.context = MAX_PROMPT + N_NEW;
    p.n_pages = STREAMS * sl_kv_pages_for(p.context);
    p.max_num_batched_tokens = 64;
    if (sl_route_skew_parse("exp:0.35", &p.skew, &err) != SL_OK) abort();
    return p;
}

static sl_adapt_opts quick(void) {
    sl_adapt_opts o = SL_ADAPT_OPTS;
    o.window_us = 100000;
    o.window_rows = 3000; /* by chance alone some per cent, of 1.08 */
    o.rest_us = 200000;
    o.horizon_us = 3600000000u; /* tiny experts cost next to nothing */
    return o;
}

static sl_engine *start(const sl_plan *p, const sl_adapt_opts *adapt, uint64_t memory) {
    sl_err err;
    sl_engine *e = NULL;
    sl_engine_opts o = options_of(p);
    o.adapt = adapt;
    o.adapt_memory = memory;
    o.expert_bytes = 1000;
    o.expert_cost = (sl_stage_cost){.row_us = 1};
    if (sl_engine_create(&o, &e, &err) != SL_OK) printf("FAILED start: %s\n", err.msg);
    return e;
}

static sl_adapt_stats stats_of(sl_engine *e, uint32_t *epoch) {
    sl_engine_stats s;
    sl_engine_stats_get(e, &s);
    *epoch = s.epoch;
    return s.adapt;
}

/* What everybody says whom nobody moves. */
static int run_alone(const sl_plan *p, outcome *want) {
    uint32_t epoch;
    sl_engine *e = start(p, NULL, 0);
    int bad = e ? run(e, want) : 1;
    if (!bad) {
        sl_adapt_stats a = stats_of(e, &epoch);
        if (epoch != p->epoch || a.changes || a.imbalance > 0)
            bad = printf("FAILED experts moved that nobody asked to\n");
    }
    sl_engine_free(e);
    return bad;
}

static int run_adapting(const sl_plan *p, const outcome *want) {
    const sl_adapt_opts o = quick();
    uint64_t until_ns = sl_now_ns() + DEADLINE_S * 1000000000ull;
    static outcome got[STREAMS];
    sl_engine *e = start(p, &o, 0);
    int bad = e ? 0 : 1;
    sl_adapt_stats a = {0};
    uint32_t epoch, rounds = 0;
    double before = 0; /* the first change; on a busy machine a small one may follow it */
    while (!bad && (a.changes == 0 || a.imbalance >= EVEN)) {
        bad = run(e, got);
        if (!bad) bad = same(want, got, STREAMS);
        a = stats_of(e, &epoch);
        before = SL_MAX(before, a.before);
        rounds++;
        if (!bad && sl_now_ns() > until_ns)
            bad = printf("FAILED after %u rounds: %llu changes, %.3f of the least\n", rounds,
                         (unsigned long long)a.changes, a.imbalance);
    }
    if (!bad && (before < 1.2 || a.after >= PROMISED || a.refused || epoch == p->epoch))
        bad = printf("FAILED from %.3f to %.3f, epoch %u\n", before, a.after, epoch);
    if (!bad)
        printf("  %.3f of the least before, %.3f now, %llu changes, the last held up streams for "
               "%.1f ms\n",
               before, a.imbalance, (unsigned long long)a.changes, 1e3 * a.pause_s);
    sl_engine_free(e);
    return bad;
}

static int run_without_room(const sl_plan *p, const outcome *want) {
    const sl_adapt_opts o = quick();
    uint64_t until_ns = sl_now_ns() + DEADLINE_S * 1000000000ull;
    static outcome got[STREAMS];
    sl_engine *e = start(p, &o, 999);
    int bad = e ? 0 : 1;
    sl_adapt_stats a = {0};
    uint32_t epoch = 0;
    while (!bad && a.refused == 0) {
        bad = run(e, got);
        if (!bad) bad = same(want, got, STREAMS);
        a = stats_of(e, &epoch);
        if (!bad && sl_now_ns() > until_ns) bad = printf("FAILED nothing was refused\n");
    }
    if (!bad && (a.changes || epoch != p->epoch)) bad = printf("FAILED what has no room moved\n");
    sl_engine_free(e);
    return bad;
}

/* One expert worker has nobody to give experts to. */
static int check_refusal(void) {
    sl_err err;
    sl_plan p;
    sl_engine *e = NULL;
    const sl_adapt_opts adapt = SL_ADAPT_OPTS;
    if (sl_plan_local(&spec, 1, 1, &p, &err) != SL_OK) abort();
    const sl_engine_opts o = {.model_folder = folder,
                              .plan = p,
                              .transport = "loop",
                              .spawn = SL_SPAWN_THREADS,
                              .adapt = &adapt};
    sl_status st = sl_engine_create(&o, &e, &err);
    bool named = st == SL_ERR_UNSUPPORTED && strstr(err.msg, "--adapt");
    sl_engine_free(e);
    sl_plan_free(&p);
    return named ? 0 : printf("FAILED one expert worker: %s\n", st == SL_OK ? "taken" : err.msg);
}

static int run_deployment(const deployment *d, bool without_room) {
    static outcome want[STREAMS];
    sl_plan p = plan_of(d);
    printf("%s, %s, %u + %u workers, policy %d\n", transport, sl_schedule_name(d->schedule),
           d->attention, d->experts, (int)d->policy);
    int bad = run_alone(&p, want);
    if (!bad) bad = run_adapting(&p, want);
    if (!bad && without_room) bad = run_without_room(&p, want);
    sl_plan_free(&p);
    return bad;
}

int main(int argc, char **argv) {
    size_t one_in;
    if (!read_arguments(argc, argv, &one_in)) return 2;
    int bad = check_refusal();
    for (size_t i = 0; i < SL_LEN(deployments); i++) {
        size_t from_last = SL_LEN(deployments) - 1 - i;
        if (from_last % one_in == 0) bad |= run_deployment(&deployments[i], from_last == 0);
    }
    printf("%s\n", bad ? "FAILED" : "no token changed");
    return bad != 0;
}
