/* Experts that move by their load while requests run. Popularity is skewed on purpose and the first
 * placement is the worst for it: steps soon wait for experts at most 1.08 times as long as they
 * have to, and no token changes. Without being asked nothing moves; what does not fit into memory
 * is refused, and nothing moves either.
 *
 * usage: test_adapt loop|shm|tcp SLUICE MODEL_FOLDER [ONE_IN]
 * ONE_IN: one deployment in so many. */
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "engine/coord/engine.h"
#include "format/plan_json.h"
#include "format/plan_lab.h"
#include "model/model.h"
#include "net/net.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STREAMS    16u
#define MAX_PROMPT 24u
#define N_NEW      100u
#define DEADLINE_S 120
#define EVEN       1.08
#define PROMISED   1.15 /* by one window, of which some rows may be of a slow start */

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

typedef struct outcome {
    uint32_t ids[N_NEW], n;
    sl_finish finish;
    char message[200];
} outcome;

static const char *transport, *program, *folder;
static sl_model_spec spec;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static uint32_t n_ended;

static void on_event(void *ctx, const sl_request_event *ev) {
    outcome *o = ctx;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < ev->n && o->n < N_NEW; i++) o->ids[o->n++] = ev->tokens[i];
    if (ev->finish != SL_FINISH_NONE) {
        o->finish = ev->finish;
        if (ev->message) snprintf(o->message, sizeof o->message, "%s", ev->message);
        n_ended++;
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static int submit(sl_engine *e, uint32_t i, outcome *o) {
    sl_err err;
    uint64_t id, rng = 77 + i;
    uint32_t prompt[MAX_PROMPT];
    const sl_request_params p = {
        .prompt = prompt,
        .n_prompt = 5 + i,
        .max_tokens = N_NEW,
        .sampling = {.temperature = i % 2 ? 0.8f : 0, .top_p = 1, .seed = i},
        .ignore_eos = true,
        .on_event = on_event,
        .ctx = o};
    for (uint32_t j = 0; j < p.n_prompt; j++) prompt[j] = (uint32_t)sl_rng_below(&rng, spec.vocab);
    *o = (outcome){0};
    return sl_engine_submit(e, &p, &id, &err) == SL_OK ? 0 : printf("FAILED submit: %s\n", err.msg);
}

/* The same requests each time. */
static int run(sl_engine *e, outcome *o) {
    struct timespec until;
    int bad = 0, rc = 0;
    n_ended = 0;
    for (uint32_t i = 0; !bad && i < STREAMS; i++) bad = submit(e, i, &o[i]);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += DEADLINE_S;
    pthread_mutex_lock(&lock);
    while (!bad && n_ended < STREAMS && rc == 0)
        rc = pthread_cond_timedwait(&changed, &lock, &until);
    pthread_mutex_unlock(&lock);
    return rc ? printf("FAILED %u of %u after %d s\n", n_ended, STREAMS, DEADLINE_S) : bad;
}

static int same(const outcome *want, const outcome *got) {
    for (uint32_t i = 0; i < STREAMS; i++) {
        if (got[i].finish != SL_FINISH_LENGTH)
            return printf("FAILED request %u: finish %d %s\n", i, got[i].finish, got[i].message);
        if (memcmp(got[i].ids, want[i].ids, sizeof got[i].ids) != 0)
            return printf("FAILED request %u: other tokens\n", i);
    }
    return 0;
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
    const sl_engine_opts o = {.model_folder = folder,
                              .plan = *p,
                              .transport = transport,
                              .spawn =
                                  strcmp(transport, "loop") ? SL_SPAWN_PROCESSES : SL_SPAWN_THREADS,
                              .host = "127.0.0.1",
                              .program = program,
                              .adapt = adapt,
                              .adapt_memory = memory,
                              .expert_cost = {.row_us = 1},
                              .join_timeout_s = DEADLINE_S};
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
    while (!bad && (a.changes == 0 || a.imbalance >= EVEN)) {
        bad = run(e, got);
        if (!bad) bad = same(want, got);
        a = stats_of(e, &epoch);
        rounds++;
        if (!bad && sl_now_ns() > until_ns)
            bad = printf("FAILED after %u rounds: %llu changes, %.3f of the least\n", rounds,
                         (unsigned long long)a.changes, a.imbalance);
    }
    if (!bad && (a.before < 1.2 || a.after >= PROMISED || a.refused || epoch == p->epoch))
        bad = printf("FAILED from %.3f to %.3f, epoch %u\n", a.before, a.after, epoch);
    if (!bad)
        printf("  %.3f of the least before, %.3f now, %llu changes, the last held up streams for "
               "%.1f ms\n",
               a.before, a.imbalance, (unsigned long long)a.changes, 1e3 * a.pause_s);
    sl_engine_free(e);
    return bad;
}

static int run_without_room(const sl_plan *p, const outcome *want) {
    sl_adapt_opts o = quick();
    o.expert_bytes = 1000;
    uint64_t until_ns = sl_now_ns() + DEADLINE_S * 1000000000ull;
    static outcome got[STREAMS];
    sl_engine *e = start(p, &o, 999);
    int bad = e ? 0 : 1;
    sl_adapt_stats a = {0};
    uint32_t epoch = 0;
    while (!bad && a.refused == 0) {
        bad = run(e, got);
        if (!bad) bad = same(want, got);
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
    sl_err err;
    if (argc < 4) return fprintf(stderr, "usage: test_adapt TRANSPORT SLUICE MODEL [ONE_IN]\n"), 2;
    transport = argv[1];
    program = argv[2];
    folder = argv[3];
    size_t one_in = argc > 4 ? SL_MAX(strtoul(argv[4], NULL, 10), 1ul) : 1;
    if (strcmp(transport, "loop")) sl_net_setup_process(transport);
    sl_log_set_level(SL_LOG_ERROR);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (sl_model_read_spec(folder, &spec, NULL, &err) != SL_OK) return printf("%s\n", err.msg), 1;
    int bad = check_refusal();
    for (size_t i = 0; i < SL_LEN(deployments); i++) {
        size_t from_last = SL_LEN(deployments) - 1 - i;
        if (from_last % one_in == 0) bad |= run_deployment(&deployments[i], from_last == 0);
    }
    printf("%s\n", bad ? "FAILED" : "no token changed");
    return bad != 0;
}
