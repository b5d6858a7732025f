/* One deployment on the virtual clock: who moves, and when. */
#include "sim.h"

#include "base/memfd.h"

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
    const char *sum = strstr(line, " 0x"); /* of a message with a session that nobody drew */
    mix(s, sim_hash(line, sum ? (size_t)(sum - line) : strlen(line)));
    if (s->verbose) printf("%10.3f ms %s\n", (double)s->now_us / 1e3, line);
}

/* ---- life ---- */

static size_t kv_bytes(const sim *s) {
    return s->plan.n_pages * sl_kv_page_bytes(&sim_spec);
}

bool sim_start_worker(sim *s, uint32_t i) {
    const sl_clock clock = {now_us, s};
    sl_err err;
    s->opts[i] = (sl_worker_opts){.coordinator = sl_net_address(s->engine->net),
                                  .transport = "loop",
                                  .hub = s->engine->hub,
                                  .secret = s->engine->o.secret,
                                  .wanted = i,
                                  .sums = SL_NET_WHEN_AUTO,
                                  .kv_fd = s->engine->spawned[i].kv_fd,
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
    bool moves = s->plan.exact && hosts > 1 && !sl_plan_has_prefill(&s->plan);
    return moves && s->seed % 3 == 0 ? &often : NULL;
}

/* Its pages outlive it, as those of a process that the coordinator starts do. */
static bool keep_kv(sim *s, uint32_t i) {
    sl_err err;
    if (!sim_is(s, i, SL_ROLE_ATTENTION)) return true;
    size_t bytes = kv_bytes(s);
    int *fd = &s->engine->spawned[i].kv_fd;
    if (sl_memfd_create(bytes, fd, &err) != SL_OK) return sim_fail(s, "%s", err.msg);
    s->kv[i] = sl_memfd_map(*fd, bytes);
    return s->kv[i] || sim_fail(s, "no room for KV pages");
}

/* Now and then there is none; the first ones are started with the simulation. */
static bool spawn(void *ctx, uint32_t i) {
    sim *s = ctx;
    if (!s->engine) return true;
    if (sim_once_in(s, 8)) return false;
    s->returns_us[i] = s->now_us + 1 + sim_below(s, 1 + sim_below(s, 400000));
    return true;
}

/* A process may take its time to end. */
static void expel(void *ctx, uint32_t i) {
    sim *s = ctx;
    s->returns_us[i] = 0;
    if (!s->worker[i] || s->dies_us[i]) return;
    s->seen[COVER_killed_before_its_successor] = true;
    s->dies_us[i] = s->now_us + 1 + (sim_once_in(s, 2) ? 0 : sim_below(s, 400000));
}

static bool is_there(void *ctx, uint32_t i) {
    const sim *s = ctx;
    return s->worker[i] || s->returns_us[i];
}

bool sim_start(sim *s, uint64_t delay_seed, uint32_t delay_us) {
    sl_err err;
    const sl_clock clock = {now_us, s};
    const sl_engine_opts o = {.model_folder = sim_folder,
                              .transport = "loop",
                              .spawn = s->spawns ? SL_SPAWN_CALLER : SL_SPAWN_NONE,
                              .spawner = {spawn, expel, is_there, s},
                              .plan = s->plan,
                              .patience_s = SIM_PATIENCE_S,
                              .sums = SL_NET_WHEN_AUTO,
                              .adapt = adapting(s),
                              .expert_cost = {.row_us = 1},
                              .expert_bytes = 4096,
                              .delay_seed = delay_seed,
                              .delay_us = delay_us};
    s->n_workers = s->plan.n_workers;
    s->engine = NULL;
    s->slow = UINT32_MAX;
    s->idle_jump_us = 4000;
    if (sl_engine_create_stepped(&o, clock, &s->engine, &err) != SL_OK)
        return sim_fail(s, "%s", err.msg);
    if (!sim_is_near(s)) sl_loop_hub_set_apart(s->engine->hub);
    /* What changes are thought to take, against starts: little, or much. */
    s->engine->rehosting.rule.change_us = s->seed % 2 ? 0 : 1e6;
    s->engine->rehosting.rule.byte_us = s->seed % 3 ? 0 : 1;
    const bool keeps = !sim_once_in(s, 4);
    snprintf(s->address[s->n_workers], sizeof s->address[0], "%s", sl_net_address(s->engine->net));
    for (uint32_t i = 0; i < s->n_workers; i++) {
        if (keeps && !keep_kv(s, i)) return false;
        if (!s->plan.worker[i].spare && !sim_start_worker(s, i)) return false;
    }
    return true;
}

/* Positions of each page whose rows are not to be touched: of a request that it has, those it is
 * through with; all of one that it has ended, of which the coordinator may not know, and of what is
 * known to be in a page. */
static void mark_whole(sim *s, uint32_t i, uint32_t *whole) {
    const sl_admit *books = &s->engine->admit;
    const sl_attn *a = s->worker[i]->attn;
    for (uint32_t r = 0; r < books->cap; r++) {
        const sl_admit_request *q = &books->request[r];
        const sl_kv_copies_of *of = &books->copies.of[r];
        uint32_t done = UINT32_MAX;
        for (uint32_t k = 0; of->at == i && k < of->n_asked; k++)
            whole[of->page[k]] = SL_KV_PAGE_TOKENS; /* they may be there, unheard of */
        if (q->state < SL_ADMIT_STAYING || q->worker != i) continue;
        for (uint32_t j = 0; a && j < a->n_lanes * a->max_slots; j++)
            if (a->slot[j].life->used && a->slot[j].request == s->engine->ledger.at[r]->id)
                done = a->slot[j].life->done;
        for (uint32_t k = 0; k < q->n_pages; k++) {
            uint32_t first = k * SL_KV_PAGE_TOKENS;
            uint32_t is = SL_MIN(done - SL_MIN(first, done), SL_KV_PAGE_TOKENS);
            whole[q->pages[k]] = SL_MAX(whole[q->pages[k]], is);
        }
    }
    const sl_pages *pool = &books->worker[i].pages; /* and all of those that others may have */
    for (uint32_t p = 0; p < pool->n_touched; p++)
        if (!sl_page_key_none(pool->page[p].key)) whole[p] = SL_KV_PAGE_TOKENS;
}

void sim_tear_worker(sim *s, uint32_t i) {
    uint32_t whole[SIM_MAX_PAGES] = {0}, sides = sl_kv_sides(&sim_spec);
    SL_ASSERT(s->plan.n_pages <= SIM_MAX_PAGES);
    if (s->kv[i]) mark_whole(s, i, whole);
    sim_remove_worker(s, i, true);
    const sl_kv_pool pool = sl_kv_pool_of(&sim_spec, s->kv[i]);
    size_t row = sl_kv_row_bytes(&sim_spec),
           n_tiles = (size_t)sim_spec.n_layers * sides * sim_spec.n_kv_heads;
    for (uint32_t p = 0; s->kv[i] && p < s->plan.n_pages; p++)
        for (size_t t = 0; t < n_tiles;
             t++) /* no numbers, which nothing computed with them hides */
            memset(sl_kv_page(&pool, p) + t * sl_kv_tile_bytes(&sim_spec) + whole[p] * row, 0xFF,
                   (SL_KV_PAGE_TOKENS - whole[p]) * row);
}

void sim_bury_worker(sim *s, uint32_t i) {
    s->dies_us[i] = 0;
    if (s->zombie[i])
        sl_worker_free(s->zombie[i], true);
    else if (s->worker[i])
        sim_tear_worker(s, i);
    s->zombie[i] = NULL;
}

void sim_remove_worker(sim *s, uint32_t i, bool crash) {
    sl_worker_free(s->worker[i], crash);
    s->worker[i] = NULL;
    s->silent[i] = false;
    if (!s->zombie[i]) s->dies_us[i] = 0;
}

bool sim_has(const sim *s, uint32_t role) {
    for (uint32_t i = 0; i < s->n_workers; i++) {
        bool comes = s->spawns ? !s->engine->drain.place[i].spare : s->returns_us[i] > 0;
        bool wanted = sl_drain_wants(&s->engine->drain, i);
        if (s->plan.worker[i].prefill) continue; /* others serve without */
        if (sim_is(s, i, role) && ((comes && wanted) || (s->worker[i] && !s->silent[i])))
            return true;
    }
    return false;
}

bool sim_has_prefill(const sim *s) {
    uint32_t wanted = 0, roles = 0;
    for (uint32_t i = 0; i < s->n_workers; i++) {
        if (!s->plan.worker[i].prefill) continue;
        wanted |= s->plan.worker[i].roles;
        roles |= s->worker[i] && !s->silent[i] ? s->plan.worker[i].roles : 0;
    }
    return wanted && roles == wanted;
}

void sim_stop(sim *s) {
    for (uint32_t i = 0; i < s->n_workers; i++) {
        if (s->zombie[i]) sim_bury_worker(s, i);
        sim_remove_worker(s, i, true);
        sl_memfd_unmap(s->kv[i], kv_bytes(s));
        s->kv[i] = NULL;
    }
    sl_engine_free(s->engine);
    s->engine = NULL;
}

/* ---- turns ---- */

/* Until its end it does as others. */
static void step_zombie(sim *s, uint32_t i) {
    sl_status st;
    sl_err err;
    sl_worker_step(s->zombie[i]);
    if (sl_worker_stopped(s->zombie[i], &st, &err)) sim_bury_worker(s, i);
}

static bool step_worker(sim *s, uint32_t i) {
    sl_worker *w = s->worker[i];
    sl_status st;
    sl_err err;
    if (s->zombie[i]) step_zombie(s, i);
    if (!w || s->silent[i]) return false;
    bool busy = sl_worker_step(w);
    if (w->n.device_bytes) s->seen[COVER_far] = true;
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
    if (st == SL_OK) sim_on_stopped(s, i);
    /* Who was on its way when its place was drained is turned away. */
    bool unwanted = s->engine->drain.place[i].state == SL_DRAIN_DRAINED;
    /* Attention for prompts ends when its side is not whole, as by somebody's restart. */
    bool given_up = s->plan.worker[i].prefill && s->moved;
    s->failure |= given_up && st != SL_OK;
    if (st != SL_OK && !s->failure && !unwanted) sim_fail(s, "worker %u stopped: %s", i, err.msg);
    sim_remove_worker(s, i, false);
    if (st != SL_OK && sim_rejoins(s, i)) sim_say(s, "worker %u is to come again", i);
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
