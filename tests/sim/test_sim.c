/* Deterministic simulation of the whole engine: coordinator and workers in one thread, on a virtual
 * clock, over "loop" with seeded delays; which of them moves next, what is asked, cancelled, killed
 * or silenced, and when, follows from the seed alone.
 *
 * usage: test_sim MODEL_FOLDER FIRST_SEED COUNT [--verbose] [--mutate NAME]
 * A failing seed is printed; running it alone replays it. With --mutate a planted bug is switched
 * on (builds with SL_MUTATIONS) and the run succeeds when some seed notices it.
 *
 * What must hold for every seed: each request gets exactly one end; a finished one has the ids it
 * has when it runs alone; without a failure nobody gets an error; at the end nothing runs, no page
 * is taken, and every worker's rows balance; all this within a bound of virtual time. */
#include "base/log.h"
#include "base/rng.h"
#include "engine/engine_int.h"
#include "engine/mutate.h"
#include "engine/plan_json.h"
#include "engine/worker_int.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_WORKERS  6u
#define N_PROMPTS    10u
#define MAX_REQUESTS 10u
#define MAX_NEW      60u
#define VIRTUAL_S    60u

typedef struct prompt {
    uint32_t ids[60], n;
    sl_sampling sampling;
    uint32_t want[MAX_NEW];
} prompt;

typedef struct sim_request {
    const prompt *p;
    uint32_t max_tokens, got[MAX_NEW], n;
    uint64_t id, submit_at_us, cancel_at_us; /* 0: never */
    bool submitted, refused, cancelled;
    uint32_t ends;
    sl_finish finish;
    char message[128];
} sim_request;

typedef struct sim {
    uint64_t seed, rng, now_us;
    sl_engine *engine;
    sl_worker_opts opts[MAX_WORKERS];
    sl_worker *worker[MAX_WORKERS];
    bool silent[MAX_WORKERS]; /* alive, but never scheduled again */
    uint32_t n_workers;
    uint64_t fail_at_us;
    uint32_t victim;
    bool pressure;         /* long answers in a pool that holds one request of full length */
    bool failure, silence; /* one worker fails; by falling silent rather than dying */
    sim_request request[MAX_REQUESTS];
    uint32_t n_requests;
    bool verbose;
    char what[200]; /* why it failed */
} sim;

static sl_model_spec spec;
static prompt prompts[N_PROMPTS];
static const char *folder;
#ifdef SL_MUTATIONS
sl_mutation sl_mutation_on;
#endif

static uint64_t sim_now_us(void *ctx) {
    return ((sim *)ctx)->now_us;
}

static uint32_t below(sim *s, uint32_t n) {
    return (uint32_t)sl_rng_below(&s->rng, n);
}

static void on_event(void *ctx, const sl_request_event *ev) {
    sim_request *r = ctx;
    for (uint32_t i = 0; i < ev->n && r->n < MAX_NEW; i++) r->got[r->n++] = ev->tokens[i];
    if (ev->finish == SL_FINISH_NONE) return;
    r->ends++;
    r->finish = ev->finish;
    snprintf(r->message, sizeof r->message, "%s", ev->message ? ev->message : "");
}

/* ---- one deployment on the virtual clock ---- */

static bool fail(sim *s, const char *fmt, ...) SL_PRINTF(2, 3);
static bool fail(sim *s, const char *fmt, ...) {
    if (s->what[0]) return false;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(s->what, sizeof s->what, fmt, ap);
    va_end(ap);
    return false;
}

static void draw_schedule(sim *s, sl_plan *p) {
    static const sl_schedule laned[] = {SL_SCHED_PINGPONG, SL_SCHED_FINDEP};
    uint32_t which = below(s, 3);
    if (which == 2) return; /* ep or dep */
    sl_plan_set_schedule(p, laned[which]);
    p->lanes = 1 + below(s, 3);
    if (p->schedule == SL_SCHED_FINDEP) p->chunks = 1 + below(s, 3);
}

static bool start(sim *s, uint32_t attention, uint32_t experts, bool plain) {
    sl_err err;
    sl_engine_opts o = {.model_folder = folder, .transport = "loop", .spawn = SL_SPAWN_NONE};
    if (sl_plan_local(&spec, attention, experts, &o.plan, &err) != SL_OK)
        return fail(s, "%s", err.msg);
    o.plan.exact = true;
    o.plan.threads = 1;
    o.plan.context = 128;
    o.plan.n_pages = sl_kv_pages_for(o.plan.context) * (plain ? 4 : 1) + (plain ? 0 : below(s, 5));
    if (s->pressure) o.plan.n_pages = sl_kv_pages_for(o.plan.context);
    o.plan.max_num_seqs = plain ? 4 : 1 + below(s, 5);
    o.plan.max_num_batched_tokens = plain ? 64 : 3 + below(s, 60);
    if (!plain) draw_schedule(s, &o.plan);
    o.delay_seed = s->seed | 1;
    o.delay_us = plain ? 0 : below(s, 4) * 400;
    s->n_workers = o.plan.n_workers;
    const sl_clock clock = {sim_now_us, s};
    sl_status st = sl_engine_create_stepped(&o, clock, &s->engine, &err);
    sl_plan_free(&o.plan);
    if (st != SL_OK) return fail(s, "%s", err.msg);
    for (uint32_t i = 0; i < s->n_workers; i++) {
        s->opts[i] = (sl_worker_opts){.coordinator = sl_net_address(s->engine->net),
                                      .transport = "loop",
                                      .hub = s->engine->hub,
                                      .secret = s->engine->o.secret,
                                      .wanted = i,
                                      .clock = clock};
        if (sl_worker_create(&s->opts[i], &s->worker[i], &err) != SL_OK)
            return fail(s, "worker %u: %s", i, err.msg);
    }
    return true;
}

static void remove_worker(sim *s, uint32_t i, bool crash) {
    sl_worker_free(s->worker[i], crash);
    s->worker[i] = NULL;
}

/* One randomly chosen actor moves; when all were idle for a while, time jumps ahead further. */
static void turn(sim *s, uint32_t *idle) {
    uint32_t who = below(s, s->n_workers + 1);
    bool busy = false;
    sl_status st;
    sl_err err;
    if (who == s->n_workers)
        busy = sl_engine_step(s->engine);
    else if (s->worker[who] && !s->silent[who]) {
        busy = sl_worker_step(s->worker[who]);
        if (sl_worker_stopped(s->worker[who], &st, &err)) remove_worker(s, who, false);
    }
    *idle = busy ? 0 : *idle + 1;
    s->now_us += *idle > 4 * (s->n_workers + 1) ? 2000 + below(s, 3000) : below(s, 40);
}

static bool await_serving(sim *s) {
    uint32_t idle = 0;
    while (!s->engine->serving && s->now_us < 10000000u) turn(s, &idle);
    return s->engine->serving || fail(s, "never ready");
}

static void stop(sim *s) {
    for (uint32_t i = 0; i < s->n_workers; i++) remove_worker(s, i, true);
    sl_engine_free(s->engine);
    s->engine = NULL;
}

/* ---- what happens ---- */

static void plan_requests(sim *s) {
    s->n_requests = 2 + below(s, s->pressure ? 4 : MAX_REQUESTS - 1);
    for (uint32_t i = 0; i < s->n_requests; i++) {
        sim_request *r = &s->request[i];
        *r = (sim_request){.p = &prompts[below(s, N_PROMPTS)], .max_tokens = 1 + below(s, MAX_NEW)};
        r->submit_at_us = s->now_us + 1 + below(s, 30000);
        if (below(s, 2)) r->max_tokens = 1 + r->max_tokens % 12; /* most are short */
        if (s->pressure) r->max_tokens = MAX_NEW - below(s, 12);
        if (below(s, 4) == 0) r->cancel_at_us = r->submit_at_us + below(s, 20000);
    }
}

static void plan_failure(sim *s) {
    s->failure = below(s, 3) == 0;
    if (!s->failure) return;
    s->silence = below(s, 3) == 0;
    s->victim = below(s, s->n_workers);
    s->fail_at_us = s->now_us + below(s, 40000);
}

static void do_requests(sim *s) {
    sl_err err;
    for (uint32_t i = 0; i < s->n_requests; i++) {
        sim_request *r = &s->request[i];
        if (!r->submitted && s->now_us >= r->submit_at_us) {
            const sl_request_params p = {.prompt = r->p->ids,
                                         .n_prompt = r->p->n,
                                         .max_tokens = r->max_tokens,
                                         .sampling = r->p->sampling,
                                         .ignore_eos = true,
                                         .on_event = on_event,
                                         .ctx = r};
            r->submitted = true;
            r->refused = sl_engine_submit(s->engine, &p, &r->id, &err) != SL_OK;
        }
        if (r->submitted && !r->refused && !r->cancelled && r->cancel_at_us &&
            s->now_us >= r->cancel_at_us) {
            r->cancelled = true;
            sl_engine_cancel(s->engine, r->id);
        }
    }
}

static void do_failure(sim *s) {
    if (!s->failure || s->now_us < s->fail_at_us) return;
    if (s->verbose)
        printf("  %8.3f ms worker %u %s\n", (double)s->now_us / 1e3, s->victim,
               s->silence ? "falls silent" : "dies");
    if (s->silence)
        s->silent[s->victim] = true;
    else if (s->worker[s->victim])
        remove_worker(s, s->victim, true);
    s->fail_at_us = UINT64_MAX;
}

static bool all_over(const sim *s) {
    for (uint32_t i = 0; i < s->n_requests; i++) {
        const sim_request *r = &s->request[i];
        if (!r->submitted || (!r->refused && r->ends == 0)) return false;
    }
    return true;
}

/* ---- what must hold ---- */

static bool check_request(sim *s, uint32_t i) {
    const sim_request *r = &s->request[i];
    if (r->refused) return s->failure || fail(s, "request %u refused", i);
    if (r->ends != 1) return fail(s, "request %u ended %u times", i, r->ends);
    if (r->finish == SL_FINISH_ERROR && !s->failure)
        return fail(s, "request %u: %s", i, r->message);
    if (r->finish == SL_FINISH_STOP && !r->cancelled) return fail(s, "request %u stopped", i);
    if (r->finish == SL_FINISH_LENGTH && r->n != r->max_tokens)
        return fail(s, "request %u has %u of %u tokens", i, r->n, r->max_tokens);
    if (memcmp(r->got, r->p->want, r->n * sizeof *r->got) != 0)
        return fail(s, "request %u has other ids than alone", i);
    return true;
}

static bool check_rows(sim *s, uint32_t i) {
    const sl_worker *w = s->worker[i];
    if (!w || s->silent[i]) return true;
    uint64_t out = w->n.rows_merged + w->n.rows_cancelled + w->n.rows_lost;
    return w->n.rows_created == out ||
           fail(s, "worker %u: %llu rows created, %llu accounted for", i,
                (unsigned long long)w->n.rows_created, (unsigned long long)out);
}

static uint64_t n_preempted; /* over all seeds, to see that they happen */

static bool check_end(sim *s) {
    sl_engine_stats st;
    bool ok = true;
    for (uint32_t i = 0; ok && i < s->n_requests; i++) ok = check_request(s, i);
    for (uint32_t i = 0; ok && i < s->n_workers; i++) ok = check_rows(s, i);
    sl_engine_stats_get(s->engine, &st);
    n_preempted += st.preempted;
    if (ok && (st.running || st.waiting || st.pages_used))
        ok = fail(s, "%u running, %u waiting, %llu pages taken at the end", st.running, st.waiting,
                  (unsigned long long)st.pages_used);
    return ok;
}

static bool simulate(sim *s) {
    static const uint32_t shapes[][2] = {{0, 0}, {1, 1}, {1, 3}, {2, 2}, {3, 0}, {3, 2}, {2, 1}};
    uint32_t idle = 0, shape = below(s, SL_LEN(shapes));
    s->pressure = below(s, 4) == 0;
    bool ok = start(s, shapes[shape][0], shapes[shape][1], false) && await_serving(s);
    if (s->verbose)
        printf("seed %llu: %u attention, %u expert workers\n", (unsigned long long)s->seed,
               shapes[shape][0], shapes[shape][1]);
    plan_requests(s);
    plan_failure(s);
    uint64_t limit = s->now_us + VIRTUAL_S * 1000000ull;
    while (ok && !all_over(s) && s->now_us < limit) {
        do_requests(s);
        do_failure(s);
        turn(s, &idle);
    }
    if (ok && !all_over(s)) ok = fail(s, "not over after %u virtual seconds", VIRTUAL_S);
    /* Let the last messages arrive: replies to bare headers, confirmations of cancels. */
    for (uint64_t until = s->now_us + 200000; ok && s->now_us < until;) turn(s, &idle);
    ok = ok && check_end(s);
    stop(s);
    return ok;
}

static bool make_references(void) {
    uint64_t state = 42;
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        prompt *p = &prompts[i];
        p->n = 1 + (uint32_t)sl_rng_below(&state, SL_LEN(p->ids));
        for (uint32_t j = 0; j < p->n; j++) p->ids[j] = (uint32_t)sl_rng_below(&state, spec.vocab);
        p->sampling = (sl_sampling){.top_p = 1, .temperature = i % 2 ? 0.8f : 0, .seed = i};
        sim s = {.seed = i, .rng = i};
        uint32_t idle = 0;
        sim_request *r = &s.request[0];
        *r = (sim_request){.p = p, .max_tokens = MAX_NEW};
        s.n_requests = 1;
        bool ok = start(&s, 0, 0, true) && await_serving(&s);
        while (ok && !all_over(&s)) {
            do_requests(&s);
            turn(&s, &idle);
        }
        if (ok) memcpy(p->want, r->got, sizeof p->want);
        if (ok && r->finish != SL_FINISH_LENGTH) ok = fail(&s, "reference %u: %s", i, r->message);
        stop(&s);
        if (!ok) return printf("%s\n", s.what), false;
    }
    return true;
}

static bool set_mutation(const char *name) {
#ifdef SL_MUTATIONS
    static const char *const names[] = {"none", "lost_row", "double_merge", "stale_generation"};
    for (size_t i = 0; i < SL_LEN(names); i++) {
        if (strcmp(name, names[i]) == 0) return sl_mutation_on = (sl_mutation)i, true;
    }
#endif
    return fprintf(stderr, "no mutation '%s' in this build\n", name), false;
}

/* A planted bug may also trip one of the engine's own assertions: that is noticing it, too. */
static int await_mutant(pid_t child) {
    int status;
    if (waitpid(child, &status, 0) != child) return 1;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT)
        return printf("found: an assertion of the engine\n"), 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int main(int argc, char **argv) {
    sl_err err;
    bool verbose = false;
    const char *mutate = NULL;
    if (argc < 4) return fprintf(stderr, "usage: test_sim MODEL FIRST_SEED COUNT ...\n"), 2;
    for (int i = 4; i < argc; i++) {
        if (strcmp(argv[i], "--verbose") == 0) verbose = true;
        if (strcmp(argv[i], "--mutate") == 0 && i + 1 < argc) mutate = argv[i + 1];
    }
    folder = argv[1];
    uint64_t first = strtoull(argv[2], NULL, 10), count = strtoull(argv[3], NULL, 10), bad = 0;
    if (sl_model_read_spec(folder, &spec, NULL, &err) != SL_OK) return printf("%s\n", err.msg), 1;
    sl_log_set_level(verbose ? SL_LOG_DEBUG : SL_LOG_ERROR);
    if (!make_references()) return 1;
    if (mutate && !set_mutation(mutate)) return 2;
    pid_t child = mutate ? fork() : 0;
    if (child > 0) return await_mutant(child);
    for (uint64_t seed = first; seed < first + count; seed++) {
        sim s = {.seed = seed, .rng = seed * 7919 + 1, .verbose = verbose};
        if (simulate(&s)) continue;
        bad++;
        printf("seed %llu: %s\n", (unsigned long long)seed, s.what);
        if (mutate)
            return printf("found after %llu seeds\n", (unsigned long long)(seed - first + 1)), 0;
    }
    printf("%llu seeds, %llu failed; %llu preemptions\n", (unsigned long long)count,
           (unsigned long long)bad, (unsigned long long)n_preempted);
    return mutate ? 1 : bad != 0;
}
