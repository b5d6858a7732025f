/* What goes wrong between those who live: links that are cut, damaged or thin; and free places into
 * which the deployment grows. Both are drawn from a generator of their own, so that whatever else a
 * seed stands for stays what it was. */
#include "sim.h"

#include "format/plan_json.h"

#include <stdio.h>

#define GROWS_IN     6u /* seeds: one of so many has free places */
#define AILS_IN      4u /* one of so many has faults of links */
#define SOON_US      300000u
#define THIN_MOST_US 3000000u

/* A generator of `s` for one purpose. */
static uint64_t source(const sim *s, uint64_t purpose) {
    return s->seed * 0x9E3779B97F4A7C15u + purpose * 0xC2B2AE3D27D4EB4Fu;
}

static uint32_t below(uint64_t *state, uint32_t n) {
    return (uint32_t)sl_rng_below(state, n);
}

static bool once_in(uint64_t *state, uint32_t n) {
    return below(state, n) == 0;
}

/* ---- growth ---- */

bool sim_draw_spares(sim *s) {
    sl_plan *p = &s->plan;
    sl_err err;
    uint64_t g = source(s, 1);
    s->n_first = p->n_workers;
    if (!once_in(&g, GROWS_IN)) return true;
    bool both = p->worker[0].roles & SL_ROLE_EXPERT;
    uint32_t attention = both ? 1 + below(&g, 2) : below(&g, 2);
    uint32_t experts = both ? 0 : attention ? below(&g, 2) : 1 + below(&g, 2);
    while (p->n_workers + attention + experts > SIM_MAX_WORKERS) {
        if (experts)
            experts--;
        else
            attention--;
    }
    return sl_plan_add_spares(attention, experts, p, &err) == SL_OK || sim_fail(s, "%s", err.msg);
}

/* Whoever grows does so at any time, and now and then it is taken back. */
static void draw_growth(sim *s, uint32_t span_us) {
    uint64_t g = source(s, 2);
    for (uint32_t i = s->n_first; i < s->n_workers; i++)
        sim_add_event(s, SIM_RETURN, i, 0, below(&g, span_us), 0);
}

/* ---- links ---- */

void sim_add_thin(sim *s, uint32_t a, uint32_t b, uint64_t at_us, uint64_t for_us,
                  uint64_t bytes_per_s) {
    sim_add_event(s, SIM_THIN, a, b, at_us, for_us);
    s->event[s->n_events - 1].bytes_per_s = bytes_per_s;
}

static void add_thin(sim *s, uint64_t *g, uint32_t a, uint32_t b, uint32_t at_us) {
    uint32_t for_us = 200000 + below(g, THIN_MOST_US - 200000);
    sim_add_thin(s, a, b, at_us, for_us, 20000u << below(g, 6));
}

static void draw_ail(sim *s, uint64_t *g, uint32_t span_us) {
    uint32_t a = below(g, s->n_first), b = below(g, s->n_first + 1), at_us = below(g, span_us);
    if (a == b || b == s->n_first) b = s->n_workers;
    uint32_t again = once_in(g, 4) ? 1 + below(g, 4) : 0;
    switch (below(g, 5)) {
    case 0:
    case 1:
        for (uint32_t i = 0; i <= again; i++, at_us += below(g, 400000))
            sim_add_event(s, SIM_CUT, a, b, at_us, 0);
        break;
    case 2:
    case 3:
        for (uint32_t i = 0; i <= again; i++, at_us += below(g, 400000)) {
            bool back = once_in(g, 2);
            sim_add_event(s, SIM_DAMAGE, back ? b : a, back ? a : b, at_us, sl_rng_next(g) >> 8);
        }
        break;
    default:
        add_thin(s, g, a, b, at_us);
    }
}

/* Others do without an expert worker for whom somebody stands in. */
static void draw_slow_host(sim *s, uint32_t span_us) {
    uint64_t g = source(s, 5);
    uint32_t a = below(&g, s->n_first), b = below(&g, s->n_first);
    bool asks = sim_is(s, a, SL_ROLE_ATTENTION), answers = !sim_is(s, b, SL_ROLE_ATTENTION);
    if (s->doubled && asks && answers) add_thin(s, &g, a, b, below(&g, span_us));
}

void sim_draw_links(sim *s, uint32_t span_us) {
    uint64_t g = source(s, 3);
    draw_growth(s, span_us);
    draw_slow_host(s, span_us);
    if (!once_in(&g, AILS_IN)) return;
    for (uint32_t i = 0, n = once_in(&g, 3) ? 2 : 1; i < n; i++) draw_ail(s, &g, span_us);
}

static bool is_there(const sim *s, uint32_t i) {
    return i == s->n_workers || (s->worker[i] && !s->silent[i]);
}

/* Who loses the coordinator ends. What is no child of it comes again by itself, as a service does.
 */
static void end_link(sim *s, const sim_event *e) {
    uint32_t who = SL_MIN(e->a, e->b);
    bool alone = SL_MAX(e->a, e->b) == s->n_workers;
    s->failure = s->moved = true;
    s->kills += 2;
    s->settle_until_us = SL_MAX(s->settle_until_us, s->now_us + SOON_US);
    if (alone && !s->spawns) s->rejoins[who] = true;
}

void sim_strike_link(sim *s, sim_event *e) {
    sl_loop_hub *hub = s->engine->hub;
    const char *a = s->address[e->a], *b = s->address[e->b];
    bool alone = SL_MAX(e->a, e->b) == s->n_workers;
    if (!is_there(s, e->a) || !is_there(s, e->b)) return;
    switch (e->kind) {
    case SIM_CUT:
        sl_loop_hub_cut(hub, a, b);
        s->seen[alone ? COVER_cut_from_coordinator : COVER_cut] = true;
        s->seen[COVER_cut_under_load] |= s->engine->admit.n_running > 0;
        s->seen[COVER_cut_in_a_change] |= s->engine->replan != NULL;
        s->seen[COVER_cut_again] |= s->n_cut > 0;
        s->n_cut++;
        end_link(s, e);
        break;
    case SIM_DAMAGE:
        sl_loop_hub_damage(hub, a, b, e->for_us);
        s->seen[alone ? COVER_damaged_of_coordinator : COVER_damaged] = true;
        end_link(s, e);
        break;
    default:
        sl_loop_hub_thin(hub, a, b, e->bytes_per_s, s->now_us + e->for_us);
        s->seen[COVER_thin] = true;
        s->seen[COVER_thin_under_load] |= s->engine->admit.n_running > 0;
        s->settle_until_us = SL_MAX(s->settle_until_us, s->now_us + e->for_us + SOON_US);
    }
}

bool sim_rejoins(sim *s, uint32_t i) {
    if (!s->rejoins[i]) return false;
    uint64_t g = source(s, 4) + s->now_us;
    s->rejoins[i] = false;
    s->returns_us[i] = s->now_us + 1 + below(&g, 1 + below(&g, 400000));
    return true;
}
