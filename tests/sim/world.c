/* One deployment on the virtual clock: who moves, and when. */
#include "sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static uint64_t now_us(void *ctx) {
    return ((sim *)ctx)->now_us;
}

static void mix(sim *s, uint64_t v) {
    uint64_t state = s->trace ^ v;
    s->trace = sl_rng_next(&state);
}

bool sim_fail(sim *s, const char *fmt, ...) {
    if (s->what[0]) return false;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(s->what, sizeof s->what, fmt, ap);
    va_end(ap);
    if (s->verbose) printf("%10.3f ms FAILED: %s\n", (double)s->now_us / 1e3, s->what);
    return false;
}

void sim_say(sim *s, const char *fmt, ...) {
    char line[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    mix(s, s->now_us);
    mix(s, sim_hash(line, strlen(line)));
    if (s->verbose) printf("%10.3f ms %s\n", (double)s->now_us / 1e3, line);
}

/* ---- life ---- */

bool sim_start_worker(sim *s, uint32_t i) {
    const sl_clock clock = {now_us, s};
    sl_err err;
    s->opts[i] = (sl_worker_opts){.coordinator = sl_net_address(s->engine->net),
                                  .transport = "loop",
                                  .hub = s->engine->hub,
                                  .secret = s->engine->o.secret,
                                  .wanted = i,
                                  .clock = clock};
    if (s->devices.seed) s->opts[i].device = (sl_device_maker){deferred_open, &s->devices};
    if (sl_worker_create(&s->opts[i], &s->worker[i], &err) != SL_OK)
        return sim_fail(s, "worker %u: %s", i, err.msg);
    snprintf(s->address[i], sizeof s->address[i], "%s", sl_net_address(s->worker[i]->net));
    return true;
}

/* Experts move by their load, as often as they can: what pays is not the question here. */
static const sl_adapt_opts *adapting(const sim *s) {
    static const sl_adapt_opts often = {.window_us = 20000,
                                        .window_rows = 16,
                                        .decay = 0.5,
                                        .uneven = 1,
                                        .worth = 1,
                                        .rest_us = 20000,
                                        .horizon_us = UINT64_MAX >> 12};
    uint32_t hosts = 0;
    for (uint32_t i = 0; i < s->plan.n_workers; i++)
        hosts += (s->plan.worker[i].roles & SL_ROLE_EXPERT) != 0;
    return s->plan.exact && hosts > 1 && s->seed % 3 == 0 ? &often : NULL;
}

bool sim_start(sim *s, uint64_t delay_seed, uint32_t delay_us) {
    sl_err err;
    const sl_clock clock = {now_us, s};
    const sl_engine_opts o = {.model_folder = sim_folder,
                              .transport = "loop",
                              .spawn = SL_SPAWN_NONE,
                              .plan = s->plan,
                              .patience_s = SIM_PATIENCE_S,
                              .adapt = adapting(s),
                              .expert_cost = {.row_us = 1},
                              .delay_seed = delay_seed,
                              .delay_us = delay_us};
    s->n_workers = s->plan.n_workers;
    s->slow = UINT32_MAX;
    s->idle_jump_us = 4000;
    if (sl_engine_create_stepped(&o, clock, &s->engine, &err) != SL_OK)
        return sim_fail(s, "%s", err.msg);
    sl_loop_hub_set_apart(s->engine->hub);
    snprintf(s->address[s->n_workers], sizeof s->address[0], "%s", sl_net_address(s->engine->net));
    for (uint32_t i = 0; i < s->n_workers; i++)
        if (!sim_start_worker(s, i)) return false;
    return true;
}

void sim_remove_worker(sim *s, uint32_t i, bool crash) {
    sl_worker_free(s->worker[i], crash);
    s->worker[i] = NULL;
}

bool sim_has(const sim *s, uint32_t role) {
    for (uint32_t i = 0; i < s->n_workers; i++)
        if (sim_is(s, i, role) && ((s->worker[i] && !s->silent[i]) || s->returns_us[i]))
            return true;
    return false;
}

void sim_stop(sim *s) {
    for (uint32_t i = 0; i < s->n_workers; i++) sim_remove_worker(s, i, true);
    sl_engine_free(s->engine);
    s->engine = NULL;
}

/* ---- turns ---- */

static bool step_worker(sim *s, uint32_t i) {
    sl_worker *w = s->worker[i];
    sl_status st;
    sl_err err;
    if (!w || s->silent[i]) return false;
    bool busy = sl_worker_step(w);
    mix(s, w->n.sent_messages ^ w->n.received_messages << 32);
    mix(s, w->n.tokens ^ w->n.rows_merged << 20 ^ w->n.rows_cancelled << 40);
    if (busy && s->verbose && w->n.sent_messages)
        printf("%10.3f ms   worker %u: %llu sent, %llu received, round %llu, %llu rows, %llu back, "
               "%llu tokens\n",
               (double)s->now_us / 1e3, i, (unsigned long long)w->n.sent_messages,
               (unsigned long long)w->n.received_messages, (unsigned long long)w->n.rounds,
               (unsigned long long)w->n.rows_created, (unsigned long long)w->n.rows_merged,
               (unsigned long long)w->n.tokens);
    if (busy) sim_look_at_slots(s, i);
    if (!sl_worker_stopped(w, &st, &err)) return busy;
    sim_say(s, "worker %u stops: %s", i, st == SL_OK ? "told to" : err.msg);
    if (st != SL_OK && !s->failure) sim_fail(s, "worker %u stopped: %s", i, err.msg);
    sim_remove_worker(s, i, false);
    s->starved |= !sim_has(s, SL_ROLE_ATTENTION) || !sim_has(s, SL_ROLE_EXPERT);
    return true;
}

static uint32_t choose(sim *s) {
    uint32_t who = sim_below(s, s->n_workers + 1);
    if (who == s->slow && !sim_once_in(s, 12)) who = sim_below(s, s->n_workers + 1);
    return who;
}

void sim_turn(sim *s) {
    uint32_t who = choose(s);
    bool busy = false;
    if (s->now_us < s->stalled_until_us[who])
        busy = false;
    else if (who == s->n_workers) {
        busy = sl_engine_step(s->engine);
        sim_check_ledger(s);
    } else {
        busy = step_worker(s, who);
    }
    mix(s, s->now_us * 32 + who * 2 + busy);
    s->idle = busy ? 0 : s->idle + 1;
    s->now_us += s->idle > 4 * (s->n_workers + 1)
                     ? s->idle_jump_us / 2 + sim_below(s, s->idle_jump_us)
                     : sim_below(s, 40);
}

bool sim_await_serving(sim *s) {
    while (!s->engine->serving && s->now_us < 10000000u && !s->what[0]) sim_turn(s);
    return s->engine->serving || sim_fail(s, "never ready: %s", s->engine->start_err.msg);
}
