/* Another plan under load: while streams decode and a prompt is read, experts move from worker to
 * worker and back, many times. No token changes, no request ends, and the longest pause between two
 * tokens of a request is printed beside that of the undisturbed run.
 *
 * usage: test_replan loop|shm|tcp SLUICE MODEL_FOLDER [ONE_IN]
 * ONE_IN: one deployment in so many. */
#define STREAMS    5u
#define N_REQUESTS (STREAMS + 1u) /* the last one is the prompt */
#define MAX_PROMPT 220u
#define N_NEW      160u
#define TIMEOUT_MS 60000u
#define DEADLINE_S 120
#define MIN_TAKEN  6u /* plans, that requests have to see while they decode */
#define BETWEEN_US 3000

#include "streams.h"

#include "base/clock.h"
#include "base/mem.h"
#include "format/placement.h"
#include "format/plan_json.h"

typedef struct deployment {
    uint32_t attention, experts; /* experts 0: colocated */
    sl_schedule schedule;
    uint32_t lanes, chunks;
    sl_chunking chunking;
} deployment;

static const deployment deployments[] = {
    {3, 0, SL_SCHED_EP, 1, 1, SL_CHUNK_TOKENS},
    {2, 0, SL_SCHED_EPS, 1, 3, SL_CHUNK_EXPERTS},
    {2, 2, SL_SCHED_DEP, 1, 1, SL_CHUNK_TOKENS},
    {2, 3, SL_SCHED_PINGPONG, 2, 1, SL_CHUNK_TOKENS},
    {1, 2, SL_SCHED_FINDEP, 2, 2, SL_CHUNK_TOKENS},
    {2, 2, SL_SCHED_FINDEP, 2, 2, SL_CHUNK_EXPERTS},
    {2, 3, SL_SCHED_AEP, 1, 1, SL_CHUNK_TOKENS},
};

static bool decodes(void) {
    pthread_mutex_lock(&lock);
    bool some = n_ended < STREAMS;
    pthread_mutex_unlock(&lock);
    return some;
}

/* ---- plans ---- */

static sl_plan plan_of(const deployment *d) {
    sl_err err;
    sl_plan p;
    if (sl_plan_local(&spec, d->attention, d->experts, &p, &err) != SL_OK) abort();
    if (d->schedule != p.schedule) sl_plan_set_schedule(&p, d->schedule);
    p.lanes = d->lanes;
    p.chunks = d->chunks;
    p.chunking = d->chunking;
    p.exact = true;
    p.threads = 1;
    p.context = MAX_PROMPT + N_NEW;
    p.n_pages = N_REQUESTS * sl_kv_pages_for(p.context);
    p.max_num_batched_tokens = 32;
    return p;
}

/* Every expert is `by` workers further than in the first plan; with `replicas` every second one is
 * at another worker, too. */
static sl_plan moved(const sl_plan *p, uint32_t by, bool replicas) {
    sl_err err;
    sl_plan to;
    uint32_t hosts[16], n_hosts = 0, n = 0;
    sl_share *share = sl_alloc(p->n_experts, 2 * sizeof *share);
    uint32_t *count = sl_alloc(p->n_experts, sizeof *count);
    if (!share || !count || sl_plan_copy(p, &to, &err) != SL_OK) abort();
    for (uint32_t i = 0; i < p->n_workers; i++)
        if (p->worker[i].roles & SL_ROLE_EXPERT) hosts[n_hosts++] = i;
    for (uint32_t e = 0; e < p->n_experts; e++) {
        uint32_t at = 0;
        while (hosts[at] != sl_plan_host_of(p, 0, e, 0)) at++;
        bool two = replicas && e % 2;
        count[e] = two ? 2 : 1;
        share[n++] = (sl_share){hosts[(at + by) % n_hosts], two ? 0.5 : 1};
        if (two) share[n++] = (sl_share){hosts[(at + by + 1) % n_hosts], 0.5};
    }
    sl_placement_free(&to.place);
    if (sl_placement_of_shares(share, count, 1, p->n_experts, &to.place, &err) != SL_OK) abort();
    sl_free(share);
    sl_free(count);
    return to;
}

/* What a running deployment cannot take is refused, by name. */
static int check_refusals(sl_engine *e, const sl_plan *p) {
    sl_err err;
    sl_plan to;
    int bad = 0;
    if (sl_plan_copy(p, &to, &err) != SL_OK) abort();
    to.max_num_seqs--;
    if (sl_engine_replan(e, &to, TIMEOUT_MS, &err) != SL_ERR_UNSUPPORTED ||
        !strstr(err.msg, "max_num_seqs"))
        bad = printf("FAILED fewer slots: %s\n", err.msg);
    sl_plan_free(&to);
    return bad;
}

/* Experts move and come back until the streams have ended. */
static int replan_until_end(sl_engine *e, const sl_plan *p, uint32_t *taken, uint64_t *longest_us) {
    sl_plan plans[] = {moved(p, 1, false), moved(p, 0, false), moved(p, 1, true)};
    sl_err err;
    int bad = 0;
    for (uint32_t i = 0; !bad && decodes(); i++) {
        const struct timespec pause = {.tv_nsec = BETWEEN_US * 1000};
        uint64_t began_ns = sl_now_ns();
        if (sl_engine_replan(e, &plans[i % SL_LEN(plans)], TIMEOUT_MS, &err) != SL_OK)
            bad = printf("FAILED plan %u: %s\n", i, err.msg);
        *longest_us = SL_MAX(*longest_us, (sl_now_ns() - began_ns) / 1000);
        *taken += decodes();
        nanosleep(&pause, NULL);
    }
    for (size_t i = 0; i < SL_LEN(plans); i++) sl_plan_free(&plans[i]);
    return bad;
}

/* ---- runs ---- */

/* The last one is a prompt. */
static int submit_next(sl_engine *e, uint32_t i, outcome *o) {
    bool streams = i < STREAMS;
    return submit(e, i, streams ? 5 + 3 * i : MAX_PROMPT, streams ? N_NEW : 8, &o[i]);
}

/* One undisturbed run on an engine, or one under changes of plans. */
static int run(sl_engine *e, const sl_plan *p, bool disturbed, outcome *o, uint32_t *taken,
               uint64_t *longest_us) {
    int bad = 0;
    n_begun = n_ended = 0;
    for (uint32_t i = 0; !bad && i < STREAMS; i++) bad = submit_next(e, i, o);
    if (!bad) bad = await(&n_begun, STREAMS, N_REQUESTS);
    if (!bad) bad = submit_next(e, STREAMS, o);
    if (!bad && disturbed) bad = replan_until_end(e, p, taken, longest_us);
    return bad ? bad : await(&n_ended, N_REQUESTS, N_REQUESTS);
}

static double longest_ms(const outcome *o) {
    uint64_t longest = 0;
    for (uint32_t i = 0; i < STREAMS; i++) longest = SL_MAX(longest, o[i].longest_us);
    return (double)longest / 1e3;
}

static int run_deployment(const deployment *d) {
    sl_err err;
    sl_engine *e = NULL;
    sl_plan p = plan_of(d);
    const sl_engine_opts o = options_of(&p);
    char name[80];
    outcome want[N_REQUESTS], got[N_REQUESTS];
    uint32_t taken = 0;
    uint64_t longest_us = 0;
    snprintf(name, sizeof name, "%s, %s, %u + %u workers, %u lanes, %u chunks", transport,
             sl_schedule_name(d->schedule), d->attention, d->experts, d->lanes, d->chunks);
    int bad = 0;
    if (sl_engine_create(&o, &e, &err) != SL_OK) bad = printf("FAILED %s: %s\n", name, err.msg);
    if (!bad) bad = check_refusals(e, &p);
    if (!bad) bad = run(e, &p, false, want, &taken, &longest_us);
    while (!bad && taken < MIN_TAKEN) { /* once, but where others have the processors */
        bad = run(e, &p, true, got, &taken, &longest_us);
        if (!bad) bad = same(want, got, N_REQUESTS);
        if (bad) printf("FAILED %s\n", name);
    }
    if (!bad)
        printf("%s: %u plans taken, the longest in %.1f ms; longest pause of a stream %.1f ms, "
               "undisturbed %.1f\n",
               name, taken, (double)longest_us / 1e3, longest_ms(got), longest_ms(want));
    sl_engine_free(e);
    sl_plan_free(&p);
    return bad;
}

int main(int argc, char **argv) {
    size_t one_in;
    if (!read_arguments(argc, argv, &one_in)) return 2;
    int bad = 0;
    for (size_t i = 0; i < SL_LEN(deployments); i++)
        if ((SL_LEN(deployments) - 1 - i) % one_in == 0) bad |= run_deployment(&deployments[i]);
    printf("%s\n", bad ? "FAILED" : "no token changed");
    return bad != 0;
}
