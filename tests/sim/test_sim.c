/* Deterministic simulation of the whole engine: coordinator and workers in one thread, on a virtual
 * clock, over "loop" with seeded delays; which of them moves next, what is asked, cancelled,
 * killed, silenced or held up, and when, follows from the seed alone.
 *
 * usage: test_sim MODEL_FOLDER FIRST_SEED COUNT [--deferred | --stateful | --windows] [--verbose]
 *                 [--cover] [--twice] [--mutate NAME]
 *
 * A failing seed is printed; running it alone replays it, with --verbose as a
 * trace. --cover fails unless the seeds together met every situation of SIM_COVER. With --deferred
 * workers compute on a device that takes its time (deferred.h), with --stateful on one that also
 * keeps state without positions (stateful.h), with --windows on ones that reach memory of each
 * other, on one machine (engine/host/far.h). --twice runs each seed two times and compares the
 * hashes of their traces. With --mutate a planted bug is switched on (builds with SL_MUTATIONS) and
 * the run succeeds when some seed notices it.
 *
 * What must hold for every seed: each request gets exactly one end; whatever it is told (ids,
 * log-probabilities, logits) is what it is told when it runs alone; it only dies when something
 * happened to its worker, and with a reason; a page never has two owners; at the end nothing runs,
 * no page is taken, no lane is in a round and every worker's rows balance; all this within a bound
 * of virtual time. */
#include "sim.h"

#include "base/log.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROGRESS_SEEDS 5000u
#define SETTLE_US      20000000u /* lanes without work are asleep by then */

sl_model_spec sim_spec;
const char *sim_folder;
static uint64_t met[COVER_COUNT]; /* seeds by situation */
#ifdef SL_MUTATIONS
sl_mutation sl_mutation_on;
#endif

/* Where messages take up to 5 or 20 ms by chance, chance alone makes a worker look slow: at most
 * one of so many seeds, and a few more, as some thousand have more than others. It was one of
 * 14,000. */
#define SEEDS_A_MISJUDGED 2000u
#define MORE_MISJUDGED    2u

/* ---- one seed ---- */

static void note_plan(sim *s) {
    bool both = sim_is(s, 0, SL_ROLE_EXPERT);
    s->seen[both ? COVER_colocated : COVER_apart] = true;
    s->seen[COVER_several_lanes] = s->plan.lanes > 1;
    s->seen[COVER_several_chunks] = s->plan.chunks > 1;
    if (sim_spec.d_ff_shared && s->plan.lanes > 1)
        s->seen[s->plan.order == SL_ORDER_ASAS ? COVER_shared_asas : COVER_shared_aass] = true;
    s->seen[COVER_inexact] = !s->plan.exact;
    s->seen[COVER_bf16_wire] = s->plan.wire == SL_WIRE_BF16;
    s->seen[COVER_fp8_wire] = s->plan.wire == SL_WIRE_FP8;
    s->seen[COVER_delays] = s->delay_us > 0;
}

static bool start(sim *s) {
    static const uint32_t delays_us[] = {0, 400, 800, 1200, 5000, 20000};
    s->delay_us = delays_us[sim_below(s, SL_LEN(delays_us))];
    s->pressure = sim_once_in(s, 4);
    if (!sim_draw_plan(s)) return false;
    s->spawns = sim_once_in(s, 2);
    bool ok = sim_start(s, s->seed | 1, s->delay_us);
    note_plan(s);
    sim_say(s, "seed %llu: %u workers, schedule %s, %u lanes, %u chunks, %u pages, %u rows a step",
            (unsigned long long)s->seed, s->n_workers, sl_schedule_name(s->plan.schedule),
            s->plan.lanes, s->plan.chunks, s->plan.n_pages, s->plan.max_num_batched_tokens);
    return ok;
}

/* A worker dies before it is ready: the start fails and says so. */
static bool die_at_start(sim *s) {
    uint32_t victim = sim_below(s, s->n_first);
    uint64_t at_us = sim_below(s, 4000);
    while (s->now_us < at_us && !s->engine->serving) sim_turn(s);
    if (s->engine->serving) return true;
    bool joined = s->engine->roster.worker[victim].state != SL_ROSTER_ABSENT;
    bool ready =
        s->worker[victim]->planned &&
        !s->worker[victim]->owes_ready; /* and may have been heard: then the start succeeds */
    sim_say(s, "worker %u dies before all are ready", victim);
    s->failure = s->moved = s->starved = true;
    s->kills += 2;
    sim_remove_worker(s, victim, true);
    s->seen[COVER_killed_while_starting] = true;
    for (uint64_t until = s->now_us + 3000000; s->now_us < until && !s->what[0];) sim_turn(s);
    if (ready) return !s->what[0];
    if (s->engine->serving) return sim_fail(s, "serves without worker %u", victim);
    if (joined && s->engine->start_status != SL_ERR_WORKER_LOST)
        return sim_fail(s, "start says %d after a death", (int)s->engine->start_status);
    return !s->what[0];
}

/* Who stands still has 0.2 s afterwards. */
static uint64_t until_all_move(const sim *s) {
    uint64_t until_us = 0;
    for (uint32_t i = 0; i <= s->n_workers; i++)
        until_us = SL_MAX(until_us, s->stalled_until_us[i] + 200000);
    return until_us;
}

/* Lets the last messages arrive, ends of connections be noticed, and lanes fall asleep. A stall may
 * begin meanwhile. */
static bool settle(sim *s) {
    uint64_t until_us = SL_MAX(s->settle_until_us, s->now_us + 200000);
    uint64_t rest_us = s->n_rehosted ? s->engine->recover.o.rest_max_us : 0;
    do {
        until_us = SL_MAX(until_us, until_all_move(s));
        s->idle_jump_us = s->now_us + 300000 < until_us ? 20000 : 4000;
        sim_do_events(s);
        sim_turn(s);
    } while (!s->what[0] && s->now_us < until_us + rest_us + SETTLE_US &&
             (s->now_us < until_us || !sim_is_quiet(s)));
    return !s->what[0];
}

/* Where nobody is left who could serve, whoever asks is told at once. */
static bool ask_too_late(sim *s) {
    if (s->engine->serving || s->n_requests == SIM_MAX_REQUESTS) return true;
    const sim_request *first = &s->request[0];
    sim_request *r = &s->request[s->n_requests++];
    *r = (sim_request){
        .s = s, .p = first->p, .want = first->want, .max_tokens = 1, .worker = SL_NO_WORKER};
    return sim_submit(s, r);
}

static bool run_requests(sim *s) {
    bool ok = sim_await_serving(s) && sim_draw_requests(s);
    if (ok) sim_draw_events(s);
    s->progress_us = s->now_us;
    while (ok && !sim_is_over(s)) {
        ok = sim_do_requests(s);
        sim_do_events(s);
        sim_do_poison(s);
        sim_turn(s);
        if (s->now_us > s->progress_us + SIM_STUCK_S * 1000000ull)
            sim_fail(s, "nobody heard anything for %u virtual seconds", SIM_STUCK_S);
        ok = ok && !s->what[0];
    }
    return ok && settle(s) && ask_too_late(s) && sim_check_end(s);
}

static bool simulate(sim *s) {
    bool ok = start(s), at_start = ok && sim_once_in(s, 40);
    if (at_start) ok = die_at_start(s);
    if (ok && (!at_start || s->engine->serving)) ok = run_requests(s);
    sim_stop(s);
    sl_plan_free(&s->plan);
    for (uint32_t i = 0; i < s->n_events; i++) {
        sl_plan_free(&s->event[i].replan.plan);
        sl_plan_free(&s->event[i].replan.home);
    }
    if (s->verbose) printf("trace %016llx\n", (unsigned long long)s->trace);
    return ok && !s->what[0];
}

static bool defers, stateful_too, far; /* --deferred, --stateful, --windows */

static sim new_seed(uint64_t seed, bool verbose) {
    return (sim){.seed = seed,
                 .rng = seed * 7919 + 1,
                 .devices = {.seed = defers ? seed : 0, .stateful = stateful_too, .windows = far},
                 .verbose = verbose};
}

static bool run_seed(uint64_t seed, bool verbose, bool twice) {
    sim s = new_seed(seed, verbose), again = new_seed(seed, false);
    bool ok = simulate(&s);
    if (!ok) printf("seed %llu: %s\n", (unsigned long long)seed, s.what);
    for (int i = 0; i < COVER_COUNT; i++) met[i] += s.seen[i];
    if (!twice || simulate(&again) != ok) return ok && !twice;
    if (again.trace == s.trace) return ok;
    printf("seed %llu: trace %016llx, then %016llx\n", (unsigned long long)seed,
           (unsigned long long)s.trace, (unsigned long long)again.trace);
    return false;
}

/* ---- all seeds ---- */

static bool set_mutation(const char *name) {
#ifdef SL_MUTATIONS
    static const char *const names[] = {SL_MUTATION_NAMES};
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

/* What the engine cannot do in this version cannot be met. */
static bool possible(sim_cover c) {
    sl_plan p;
    sl_err err;
    if (c == COVER_misjudged) return false; /* it may, and is to be rare */
    if (c == COVER_far) return far;
    if (c == COVER_shared_asas || c == COVER_shared_aass) return sim_spec.d_ff_shared > 0;
    if (c != COVER_several_lanes && c != COVER_several_chunks) return true;
    if (sl_plan_local(&sim_spec, 1, 1, &p, &err) != SL_OK) return false;
    sl_plan_set_schedule(&p, c == COVER_several_lanes ? SL_SCHED_PINGPONG : SL_SCHED_FINDEP);
    bool ok = sl_plan_check(&p, &sim_spec, &err) == SL_OK;
    sl_plan_free(&p);
    return ok;
}

static bool print_cover(bool demand) {
    static const char *const names[] = {
#define SIM_COVER_NAME(name) #name,
        SIM_COVER(SIM_COVER_NAME)
#undef SIM_COVER_NAME
    };
    bool ok = true;
    for (int i = 0; i < COVER_COUNT; i++) {
        bool missing = demand && met[i] == 0 && possible((sim_cover)i);
        printf("%8llu seeds: %s%s\n", (unsigned long long)met[i], names[i],
               missing ? " (NEVER)" : "");
        ok = ok && !missing;
    }
    return ok;
}

int main(int argc, char **argv) {
    sl_err err;
    bool verbose = false, cover = false, twice = false;
    const char *mutate = NULL;
    if (argc < 4) return fprintf(stderr, "usage: test_sim MODEL FIRST_SEED COUNT ...\n"), 2;
    for (int i = 4; i < argc; i++) {
        if (strcmp(argv[i], "--verbose") == 0) verbose = true;
        if (strcmp(argv[i], "--deferred") == 0) defers = true;
        if (strcmp(argv[i], "--stateful") == 0) defers = stateful_too = true;
        if (strcmp(argv[i], "--windows") == 0) defers = far = true;
        if (strcmp(argv[i], "--cover") == 0) cover = true;
        if (strcmp(argv[i], "--twice") == 0) twice = true;
        if (strcmp(argv[i], "--mutate") == 0 && i + 1 < argc) mutate = argv[i + 1];
    }
    sim_folder = argv[1];
    uint64_t first = strtoull(argv[2], NULL, 10), count = strtoull(argv[3], NULL, 10), bad = 0;
    if (sl_model_read_spec(sim_folder, &sim_spec, NULL, &err) != SL_OK)
        return printf("%s\n", err.msg), 1;
    sim_spec.kv_type = SL_KV_AUTO_ON_CPUS; /* what plans that say none have */
    sl_log_set_level(verbose ? SL_LOG_DEBUG : SL_LOG_ERROR);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (mutate && !set_mutation(mutate)) return 2;
    pid_t child = mutate ? fork() : 0;
    if (child > 0) return await_mutant(child);
    for (uint64_t seed = first; seed < first + count; seed++) {
        bool ok = run_seed(seed, verbose, twice);
        if ((seed - first + 1) % PROGRESS_SEEDS == 0 && !mutate)
            printf("%llu seeds so far\n", (unsigned long long)(seed - first + 1));
        if (ok) continue;
        bad++;
        if (mutate)
            return printf("found after %llu seeds\n", (unsigned long long)(seed - first + 1)), 0;
    }
    bool covered = mutate || print_cover(cover);
    if (met[COVER_misjudged] > MORE_MISJUDGED + count / SEEDS_A_MISJUDGED)
        return printf("%llu of %llu seeds had a worker that counted as slow for chance alone\n",
                      (unsigned long long)met[COVER_misjudged], (unsigned long long)count),
               1;
    printf("%llu seeds, %llu failed\n", (unsigned long long)count, (unsigned long long)bad);
    return mutate ? 1 : bad != 0 || !covered;
}
