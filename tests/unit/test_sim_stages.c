/* The schedulers that ship on given stage times against the closed forms of the papers as the
 * specifications correct them: ping-pong's period and makespan, FinDEP's ASAS and AASS, the three
 * stages of EPS-MoE, bounds of half duplex and aep, and on tiny cases the best order there is. */
#include "base/mem.h"
#include "base/rng.h"
#include "format/stage_run_file.h"
#include "sanitized.h"
#include "sim/events.h"
#include "sim/stages.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#define SHARE (SL_SLOW_BUILD ? 3 : 1) /* of the draws: one in so many */

enum { MAX_T = 12, MAX_R1 = 6, MAX_R2 = 6 };

static uint64_t rng;

static double draw(void) {
    return exp(4.6 * ((double)sl_rng_below(&rng, 1000003) / 1000003 - 0.5)); /* 0.1 .. 10 */
}

static uint32_t below(uint32_t n) {
    return (uint32_t)sl_rng_below(&rng, n);
}

static sl_stage_run draw_run(sl_schedule schedule, bool shared) {
    sl_stage_run r = {.schedule = schedule,
                      .layers = 1 + below(MAX_T),
                      .lanes = 1 + below(MAX_R1),
                      .chunks = 1 + below(MAX_R2),
                      .iterations = 1 + below(3),
                      .lookahead = 2,
                      .delta = 1};
    if (schedule != SL_SCHED_FINDEP && schedule != SL_SCHED_EPS) r.chunks = 1;
    if (schedule < SL_SCHED_PINGPONG || schedule == SL_SCHED_EPS || schedule == SL_SCHED_HYBRID)
        r.lanes = 1;
    double c = draw();
    r.ms[SL_STAGE_ATTN] = draw();
    r.ms[SL_STAGE_SHARED] = shared ? draw() : 0;
    r.ms[SL_STAGE_A2E] = r.ms[SL_STAGE_E2A] = c;
    r.ms[SL_STAGE_EXPERT] = draw();
    return r;
}

static void is_close(const char *what, const sl_stage_run *r, double got, double want) {
    if (fabs(got - want) <= 1e-9 * want) return;
    fail_msg(
        "%s: schedule %d order %d T %u r1 %u r2 %u x%u a %.17g s %.17g c %.17g e %.17g: %.12g, "
        "closed form %.12g",
        what, r->schedule, r->order, r->layers, r->lanes, r->chunks, r->iterations,
        r->ms[SL_STAGE_ATTN], r->ms[SL_STAGE_SHARED], r->ms[SL_STAGE_A2E], r->ms[SL_STAGE_EXPERT],
        got, want);
}

static sl_stage_result simulate(const sl_stage_run *r, bool period) {
    sl_stage_result out;
    sl_err err;
    sl_status st =
        period ? sl_stage_run_simulate(r, &out, &err) : sl_stage_run_makespan(r, &out, &err);
    if (st != SL_OK) fail_msg("%s", err.msg);
    for (int i = 0; i < SL_STAGE_COUNT; i++) assert_true(out.busy[i] <= 1 + 1e-9);
    return out;
}

typedef struct terms {
    double a, s, c, e, X, Y, F, G;
    uint32_t T;
} terms;

static terms terms_of(const sl_stage_run *r) {
    terms t = {.a = r->ms[SL_STAGE_ATTN],
               .s = r->ms[SL_STAGE_SHARED],
               .c = r->ms[SL_STAGE_A2E],
               .e = r->ms[SL_STAGE_EXPERT],
               .T = r->layers * r->iterations};
    t.X = t.a + t.s;
    t.Y = fmax(t.c, t.e);
    t.F = fmax(t.X, r->chunks * t.Y);
    t.G = t.a + 2 * t.c + t.e + (r->chunks - 1) * t.Y;
    return t;
}

/* P = max(m Tb, C), T_total = C + (L - 1) P + (m - 1) Tb; both links of unequal times, too. */
static void pingpong_is_its_law(void **state) {
    (void)state;
    rng = 11;
    for (int i = 0; i < 1500 / SHARE; i++) {
        sl_stage_run r = draw_run(SL_SCHED_PINGPONG, false);
        if (i % 3 == 0) r.ms[SL_STAGE_E2A] = draw();
        terms t = terms_of(&r);
        double C = t.a + t.c + t.e + r.ms[SL_STAGE_E2A];
        double Tb = fmax(fmax(t.a, t.e), fmax(t.c, r.ms[SL_STAGE_E2A]));
        double P = fmax(r.lanes * Tb, C);
        sl_stage_result s = simulate(&r, true);
        is_close("period", &r, s.period_ms, P);
        is_close("makespan", &r, s.makespan_ms, C + (t.T - 1) * P + (r.lanes - 1) * Tb);
        is_close("busy", &r, s.busy[SL_STAGE_ATTN] * s.makespan_ms, t.a * t.T * r.lanes);
    }
}

/* D = (T-1) L + max(X, G) + (r1-1) F; the list as printed and what is ready first are the same. */
static void asas_is_its_law(void **state) {
    (void)state;
    rng = 7;
    for (int i = 0; i < 3000 / SHARE; i++) {
        sl_stage_run r = draw_run(SL_SCHED_FINDEP, i % 2);
        r.fixed_list = i % 4 > 1;
        terms t = terms_of(&r);
        double L = fmax(t.G, r.lanes * t.F);
        double want = (t.T - 1) * L + fmax(t.X, t.G) + (r.lanes - 1) * t.F;
        sl_stage_result s = simulate(&r, i % 8 == 0);
        is_close("makespan", &r, s.makespan_ms, want);
        if (i % 8 == 0) is_close("period", &r, s.period_ms, L);
    }
}

static double best(double K, double M1, double GW) {
    return K <= 0 ? 0 : fmax(K * M1, floor(K / 2) * GW + fmod(K, 2) * M1);
}

static void aass_is_its_law(void **state) {
    (void)state;
    rng = 13;
    double faster = 0, slower = 0;
    uint32_t same = 0, n = 3000;
    for (uint32_t i = 0; i < n; i++) {
        sl_stage_run r = draw_run(SL_SCHED_FINDEP, true);
        r.order = SL_ORDER_AASS;
        terms t = terms_of(&r);
        double r1 = r.lanes, Fa = fmax(t.a, r.chunks * t.Y),
               GW = t.G + (r1 - 1) * Fa + t.a + r1 * t.s;
        double M1 = fmax(t.G, fmax(r1 * t.X, r1 * r.chunks * t.Y));
        double want = fmax(t.G + (r1 - 1) * Fa + best(t.T - 1.0, M1, GW), t.T * r1 * t.X);
        if (t.T >= 2) want = fmax(want, GW + best(t.T - 2.0, M1, GW));
        r.fixed_list = true;
        sl_stage_result s = simulate(&r, i % 8 == 0);
        is_close("makespan", &r, s.makespan_ms, want);
        if (i % 8 == 0) is_close("period", &r, s.period_ms, fmax(M1, GW / 2));
        r.fixed_list = false; /* as the engine runs it: what is ready */
        double ready = simulate(&r, false).makespan_ms;
        faster = fmax(faster, want / ready - 1);
        slower = fmax(slower, ready / want - 1);
        same += fabs(ready - want) <= 1e-9 * want;
    }
    printf(
        "AASS that does not idle: equal to the list in %u of %u, at most %.1f %% faster, %.1f %% "
        "slower\n",
        same, n, 100 * faster, 100 * slower);
}

static void lower_bounds_hold(void **state) {
    (void)state;
    rng = 17;
    for (int i = 0; i < 3000 / SHARE; i++) {
        sl_stage_run r = draw_run(SL_SCHED_FINDEP, i % 2);
        r.order = i % 3 ? SL_ORDER_AASS : SL_ORDER_ASAS;
        r.half_duplex = i % 5 == 0;
        terms t = terms_of(&r);
        double got = simulate(&r, false).makespan_ms;
        double bound = fmax((r.lanes - 1) * t.a + t.T * t.G, t.T * r.lanes * t.X);
        bound = fmax(bound, t.a + (double)t.T * r.lanes * r.chunks * t.c + t.e + t.c);
        bound = fmax(bound, t.a + 2 * t.c + (double)t.T * r.lanes * r.chunks * t.e);
        if (r.half_duplex)
            bound = fmax(bound, t.a + 2.0 * t.T * r.lanes * r.chunks * t.c +
                                    t.e * (r.lanes * r.chunks == 1));
        assert_true(got >= bound * (1 - 1e-9));
    }
}

/* max(m max(Ta, Te, 2 Tc), C) is a lower bound of a shared link, exact in about half of the cases.
 */
static void half_duplex_is_above_its_bound(void **state) {
    (void)state;
    rng = 19;
    uint32_t exact = 0, n = 1000;
    double worst = 0;
    for (uint32_t i = 0; i < n; i++) {
        sl_stage_run r = draw_run(SL_SCHED_PINGPONG, false);
        r.half_duplex = true;
        terms t = terms_of(&r);
        double bound = fmax(r.lanes * fmax(fmax(t.a, t.e), 2 * t.c), t.a + t.e + 2 * t.c);
        double got = simulate(&r, true).period_ms;
        assert_true(got >= bound * (1 - 1e-9));
        exact += got <= bound * (1 + 1e-9);
        worst = fmax(worst, got / bound - 1);
    }
    printf("half duplex: the bound is exact in %u of %u, at most %.1f %% low\n", exact, n,
           100 * worst);
    assert_true(exact > n / 4 && worst < 0.4);
}

/* c1 + e + c2 + (N - 1) max(c1, e, c2) after the attention of a layer; ep is N = 1, dep the same
 * time on two workers. */
static void groups_are_three_stages(void **state) {
    (void)state;
    rng = 23;
    for (int i = 0; i < 1000 / SHARE; i++) {
        sl_stage_run r = draw_run(i % 4 == 0   ? SL_SCHED_EP
                                  : i % 4 == 1 ? SL_SCHED_DEP
                                               : SL_SCHED_EPS,
                                  false);
        r.ms[SL_STAGE_E2A] = draw();
        terms t = terms_of(&r);
        double d = r.ms[SL_STAGE_E2A];
        double layer = t.a + t.c + t.e + d + (r.chunks - 1) * fmax(t.c, fmax(t.e, d));
        sl_stage_result s = simulate(&r, true);
        is_close("makespan", &r, s.makespan_ms, t.T * layer);
        is_close("period", &r, s.period_ms, layer);
    }
}

static void aep_is_between_its_bounds(void **state) {
    (void)state;
    rng = 29;
    for (int i = 0; i < 1000 / SHARE; i++) {
        sl_stage_run r = draw_run(SL_SCHED_AEP, i % 2);
        r.policy = (sl_policy)below(SL_POLICY_COUNT);
        terms t = terms_of(&r);
        double most = fmax(t.X, fmax(t.e, t.c)), C = fmax(t.X, t.a + t.e + 2 * t.c);
        double got = simulate(&r, false).makespan_ms;
        assert_true(got >= fmax(t.T * r.lanes * most, t.T * C) * (1 - 1e-9));
        assert_true(got <= t.T * r.lanes * (t.X + t.e + 2 * t.c) * (1 + 1e-9));
    }
}

/* ---- the best order there is ---- */

enum { TASKS = 20, KINDS = 5 };
typedef struct problem {
    uint32_t n, T, r1, kinds;
    double takes[KINDS], end[TASKS], free[4], best;
    bool done[TASKS];
} problem;

/* Task k of micro-batch i of layer t; kinds A C E D S. */
static uint32_t task(const problem *p, uint32_t t, uint32_t i, uint32_t k) {
    return (t * p->r1 + i) * p->kinds + k;
}

/* When the task could begin; negative: what it needs has no time yet. */
static double ready_at(const problem *p, uint32_t t, uint32_t i, uint32_t k) {
    uint32_t need[2], n = 0;
    if (k == 4) need[n++] = task(p, t, i, 0);
    if (k >= 1 && k <= 3) need[n++] = task(p, t, i, k - 1);
    if (k == 0 && t > 0) need[n++] = task(p, t - 1, i, 3);
    if (k == 0 && t > 0 && p->kinds == 5) need[n++] = task(p, t - 1, i, 4);
    double at = 0;
    for (uint32_t j = 0; j < n; j++) {
        if (!p->done[need[j]]) return -1;
        at = fmax(at, p->end[need[j]]);
    }
    return at;
}

/* Every order of every server, cut where it cannot beat the best: only tasks that begin before the
 * first of all could end have to be tried next (Giffler and Thompson). */
static void search(problem *p, uint32_t placed, double makespan) {
    static const uint32_t server[KINDS] = {0, 1, 2, 3, 0};
    if (makespan >= p->best * (1 - 1e-12)) return;
    if (placed == p->n) {
        p->best = makespan;
        return;
    }
    double first = INFINITY;
    uint32_t on = 0;
    double at[TASKS];
    for (uint32_t t = 0; t < p->T; t++)
        for (uint32_t i = 0; i < p->r1; i++)
            for (uint32_t k = 0; k < p->kinds; k++) {
                uint32_t id = task(p, t, i, k);
                at[id] = p->done[id] ? -1 : ready_at(p, t, i, k);
                if (at[id] < 0) continue;
                at[id] = fmax(at[id], p->free[server[k]]);
                if (at[id] + p->takes[k] < first) first = at[id] + p->takes[k], on = server[k];
            }
    for (uint32_t id = 0; id < p->n; id++) {
        uint32_t k = id % p->kinds;
        if (at[id] < 0 || server[k] != on || at[id] >= first) continue;
        double before = p->free[on];
        p->done[id] = true;
        p->end[id] = p->free[on] = at[id] + p->takes[k];
        search(p, placed + 1, fmax(makespan, p->end[id]));
        p->done[id] = false;
        p->free[on] = before;
    }
}

static void tiny_cases_are_near_the_best(void **state) {
    (void)state;
    rng = 31;
    double gap[2] = {0, 0};
    for (int i = 0; i < 400 / SHARE; i++) {
        sl_stage_run r = draw_run(SL_SCHED_FINDEP, i % 2);
        r.layers = 1 + below(2);
        r.lanes = 1 + below(i % 2 ? 2 : 2 + (r.layers == 1));
        r.chunks = r.iterations = 1;
        terms t = terms_of(&r);
        problem p = {.T = r.layers,
                     .r1 = r.lanes,
                     .kinds = 4 + i % 2,
                     .takes = {t.a, t.c, t.e, t.c, t.s},
                     .best = 1e300};
        p.n = p.T * p.r1 * p.kinds;
        search(&p, 0, 0);
        double got = simulate(&r, false).makespan_ms;
        assert_true(got >= p.best * (1 - 1e-9));
        assert_true(got <= p.best * (1 + (1 - 1.0 / r.lanes) / r.layers) * (1 + 1e-9));
        gap[i % 2] = fmax(gap[i % 2], got / p.best - 1);
    }
    printf("ASAS above the best order: at most %.2f %% without shared experts, %.1f %% with them\n",
           100 * gap[0], 100 * gap[1]);
    assert_true(gap[0] <= 1e-9); /* without shared experts the order is optimal */
}

/* ---- input ---- */

static sl_status parse(const char *text, sl_stage_run *out, sl_err *err) {
    return sl_stage_run_parse("in", (sl_span){(const uint8_t *)text, strlen(text)}, out, err);
}

static void input_is_read(void **state) {
    (void)state;
    sl_stage_run r;
    sl_err err;
    assert_int_equal(
        parse("{\"schedule\":\"findep\",\"layers\":3,\"lanes\":2,\"chunks\":4,\"order\":\"aass\","
              "\"duplex\":\"half\",\"times\":{\"attn\":1.5,\"e2a\":2}}",
              &r, &err),
        SL_OK);
    assert_true(r.schedule == SL_SCHED_FINDEP && r.layers == 3 && r.lanes == 2 && r.chunks == 4);
    assert_true(r.order == SL_ORDER_AASS && r.half_duplex && r.iterations == 1);
    assert_true(r.ms[SL_STAGE_ATTN] == 1.5 && r.ms[SL_STAGE_E2A] == 2 && r.ms[SL_STAGE_A2E] == 0);
}

static void bad_input_is_named(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"[]", "an object"},
        {"{\"layers\":3,\"times\":{}}", "schedule"},
        {"{\"schedule\":\"ring\",\"layers\":3,\"times\":{}}", "'ring'"},
        {"{\"schedule\":\"dep\",\"layers\":0,\"times\":{}}", "layers"},
        {"{\"schedule\":\"dep\",\"layers\":513,\"times\":{}}", "512"},
        {"{\"schedule\":\"dep\",\"layers\":3}", "times"},
        {"{\"schedule\":\"dep\",\"layers\":3,\"times\":{\"attn\":-1}}", "times.attn"},
        {"{\"schedule\":\"dep\",\"layers\":3,\"times\":{\"attention\":1}}", "attention"},
        {"{\"schedule\":\"dep\",\"layers\":3,\"lane\":1,\"times\":{}}", "lane"},
        {"{\"schedule\":\"dep\",\"layers\":3,\"duplex\":\"simplex\",\"times\":{}}", "full, half"},
    };
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        sl_stage_run r;
        sl_err err;
        assert_int_not_equal(parse(bad[i].text, &r, &err), SL_OK);
        if (!strstr(err.msg, bad[i].says)) fail_msg("%s: %s", bad[i].text, err.msg);
    }
}

static void shapes_are_checked(void **state) {
    (void)state;
    sl_err err;
    sl_stage_run r = {.schedule = SL_SCHED_DEP,
                      .layers = 2,
                      .lanes = 2,
                      .chunks = 1,
                      .iterations = 1,
                      .delta = 1};
    assert_int_equal(sl_stage_run_check(&r, &err), SL_ERR_ARG);
    assert_non_null(strstr(err.msg, "lanes is 2"));
    r.lanes = 1;
    assert_int_equal(sl_stage_run_check(&r, &err), SL_OK);
    r.chunks = 2;
    assert_int_equal(sl_stage_run_check(&r, &err), SL_ERR_ARG);
    r = (sl_stage_run){.schedule = SL_SCHED_FINDEP,
                       .layers = 512,
                       .lanes = 16,
                       .chunks = 32,
                       .iterations = 100000,
                       .delta = 1};
    assert_int_equal(sl_stage_run_check(&r, &err), SL_ERR_ARG);
    assert_non_null(strstr(err.msg, "iterations"));
}

static void out_of_memory_is_an_error(void **state) {
    (void)state;
    rng = 37;
    for (int i = 0; i < SL_SCHED_COUNT; i++) {
        sl_stage_run r = draw_run((sl_schedule)i, false);
        sl_stage_result out;
        sl_err err;
        sl_status st = SL_ERR_NOMEM;
        for (uint64_t nth = 1; st != SL_OK; nth++) {
            sl_mem_fail_at(nth);
            st = sl_stage_run_simulate(&r, &out, &err);
            sl_mem_fail_at(0);
            assert_true(st == SL_OK || st == SL_ERR_NOMEM);
        }
    }
}

/* ---- events ---- */

static void events_are_in_a_total_order(void **state) {
    (void)state;
    sl_sim_events e = {0};
    sl_sim_event got, last = {0};
    rng = 41;
    for (uint32_t i = 0; i < 5000; i++) sl_sim_events_push(&e, below(50), 0, 0, i);
    for (uint32_t i = 0; i < 200000; i++) {
        assert_true(sl_sim_events_pop(&e, &got));
        assert_true(i == 0 || got.at > last.at || (got.at == last.at && got.order > last.order));
        last = got;
        sl_sim_events_push(&e, got.at + below(50), 0, 0, i);
    }
    sl_sim_events_free(&e);
}

static void a_million_events_a_second(void **state) {
    (void)state;
    const sl_stage_run r = {.schedule = SL_SCHED_FINDEP,
                            .layers = 100,
                            .lanes = 16,
                            .chunks = 16,
                            .iterations = 20,
                            .delta = 1,
                            .ms = {1, 0, 0.05, 0.06, 0.05}};
    struct timespec a, b;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    sl_stage_result s = simulate(&r, false);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    double seconds = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
    printf("%.2f million events a second\n", 1e-6 * (double)s.events / seconds);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pingpong_is_its_law),
        cmocka_unit_test(asas_is_its_law),
        cmocka_unit_test(aass_is_its_law),
        cmocka_unit_test(lower_bounds_hold),
        cmocka_unit_test(half_duplex_is_above_its_bound),
        cmocka_unit_test(groups_are_three_stages),
        cmocka_unit_test(aep_is_between_its_bounds),
        cmocka_unit_test(tiny_cases_are_near_the_best),
        cmocka_unit_test(input_is_read),
        cmocka_unit_test(bad_input_is_named),
        cmocka_unit_test(shapes_are_checked),
        cmocka_unit_test(out_of_memory_is_an_error),
        cmocka_unit_test(events_are_in_a_total_order),
        cmocka_unit_test(a_million_events_a_second),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
