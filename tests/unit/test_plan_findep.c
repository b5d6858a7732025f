/* FinDEP's closed forms against a discrete-event run of the task graph, the search against trying
 * everything, and the worked examples of docs/planner.md. */
#include "plan/findep.h"

#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { INSTANCES = 10000, MAX_T = 9, MAX_R1 = 5, MAX_R2 = 5 };
enum { MAX_TASKS = MAX_T * MAX_R1 * (2 + 3 * MAX_R2), MAX_BEFORE = MAX_R2 + 1 };
enum { AG, OUT, EG, BACK, STATIONS };

/* ---- discrete events over an explicit graph ---- */

typedef struct task {
    double duration, end;
    int station, waits; /* for so many of `before` */
    int n_after, after[MAX_R2 + 2];
    bool done;
} task;

typedef struct graph {
    task t[MAX_TASKS];
    int n;
    int list[STATIONS][MAX_TASKS], listed[STATIONS]; /* the order a station keeps */
} graph;

static int add(graph *g, int station, double duration) {
    g->t[g->n] = (task){.duration = duration, .station = station};
    return g->n++;
}

static void follows(graph *g, int before, int after) {
    if (before < 0) return;
    g->t[before].after[g->t[before].n_after++] = after;
    g->t[after].waits++;
}

static void queue_up(graph *g, int id) {
    int s = g->t[id].station;
    g->list[s][g->listed[s]++] = id;
}

static void build(graph *g, const sl_findep_times *time, int layers, int r1, int r2,
                  sl_order order) {
    int shared[MAX_R1], back[MAX_R1][MAX_R2];
    memset(g, 0, sizeof *g);
    for (int t = 0; t < layers; t++) {
        int attention[MAX_R1];
        for (int i = 0; i < r1; i++) {
            attention[i] = add(g, AG, time->a);
            if (t > 0) follows(g, shared[i], attention[i]);
            for (int j = 0; t > 0 && j < r2; j++) follows(g, back[i][j], attention[i]);
        }
        for (int i = 0; i < r1; i++) {
            shared[i] = add(g, AG, time->s);
            follows(g, attention[i], shared[i]);
            for (int j = 0; j < r2; j++) {
                int out = add(g, OUT, time->c), expert = add(g, EG, time->e);
                back[i][j] = add(g, BACK, time->d);
                follows(g, attention[i], out);
                follows(g, out, expert);
                follows(g, expert, back[i][j]);
                queue_up(g, out), queue_up(g, expert), queue_up(g, back[i][j]);
            }
        }
        for (int i = 0; i < r1; i++) {
            queue_up(g, attention[i]);
            if (order == SL_ORDER_ASAS) queue_up(g, shared[i]);
        }
        for (int i = 0; order == SL_ORDER_AASS && i < r1; i++) queue_up(g, shared[i]);
    }
}

/* Time jumps from one end of a task to the next; stations without a task look at their list. */
static double run(graph *g) {
    int next[STATIONS] = {0}, running[STATIONS], left = g->n;
    double now = 0;
    for (int s = 0; s < STATIONS; s++) running[s] = -1;
    while (left > 0) {
        for (int s = 0; s < STATIONS; s++) {
            if (running[s] >= 0 || next[s] == g->listed[s]) continue;
            int id = g->list[s][next[s]];
            if (g->t[id].waits > 0) continue;
            running[s] = id;
            next[s]++;
            g->t[id].end = now + g->t[id].duration;
        }
        int first = -1;
        for (int s = 0; s < STATIONS; s++) {
            if (running[s] < 0) continue;
            if (first < 0 || g->t[running[s]].end < g->t[running[first]].end) first = s;
        }
        assert_true(first >= 0);
        task *t = &g->t[running[first]];
        running[first] = -1;
        now = t->end;
        left--;
        for (int k = 0; k < t->n_after; k++) g->t[t->after[k]].waits--;
    }
    return now;
}

/* ---- draws ---- */

static double uniform(uint64_t *rng) {
    return (double)sl_rng_below(rng, 1u << 30) / (1u << 30);
}

static double spread(uint64_t *rng) { /* over three decades */
    return exp(log(0.05) + uniform(rng) * log(1000));
}

static sl_findep_times draw_times(uint64_t *rng) {
    sl_findep_times t = {spread(rng), spread(rng), spread(rng), spread(rng), 0};
    t.d = sl_rng_below(rng, 2) ? t.c : spread(rng);
    if (sl_rng_below(rng, 4) == 0) t.s = 0;
    if (sl_rng_below(rng, 10) == 0) t.c = t.d = 0;
    return t;
}

static uint32_t up_to(uint64_t *rng, uint32_t n) {
    return 1 + (uint32_t)sl_rng_below(rng, n);
}

static bool same(double a, double b) {
    return fabs(a - b) <= 1e-9 * fmax(fabs(a), fabs(b));
}

static void closed_forms_are_exact(void **state) {
    (void)state;
    static graph g;
    uint64_t rng = 11;
    for (int k = 0; k < INSTANCES; k++) {
        sl_findep_times t = draw_times(&rng), lane[MAX_R1];
        uint32_t layers = up_to(&rng, MAX_T), r1 = up_to(&rng, MAX_R1), r2 = up_to(&rng, MAX_R2);
        uint32_t chunks[MAX_R1];
        double ready[MAX_R1], done[MAX_R1], bound = sl_findep_bound(&t, layers, r1, r2);
        for (uint32_t i = 0; i < r1; i++) lane[i] = t, chunks[i] = r2;
        for (int o = 0; o < SL_ORDER_COUNT; o++) {
            sl_order order = (sl_order)o;
            build(&g, &t, (int)layers, (int)r1, (int)r2, order);
            double events = run(&g), form = sl_findep_makespan(&t, layers, r1, r2, order);
            double replay = sl_findep_replay(lane, chunks, layers, r1, order, ready, done);
            if (!same(form, events) || !same(replay, events) || bound > events * (1 + 1e-9))
                fail_msg("case %d, order %d, T %u, r1 %u, r2 %u, a %g s %g c %g e %g d %g: form "
                         "%.12g, replay %.12g, events %.12g, bound %.12g",
                         k, o, layers, r1, r2, t.a, t.s, t.c, t.e, t.d, form, replay, events,
                         bound);
        }
        /* What holds against the optimum holds against AASS; the optimum itself: tests/oracle. */
        double most = 1 + (1 - 1.0 / r1) / layers;
        assert_true(sl_findep_makespan(&t, layers, r1, r2, SL_ORDER_ASAS) <=
                    most * sl_findep_makespan(&t, layers, r1, r2, SL_ORDER_AASS) * (1 + 1e-9));
    }
}

/* What passes on the way while nobody works makes the way longer, and no station busier. */
static void a_lag_is_part_of_the_way(void **state) {
    (void)state;
    uint64_t rng = 17;
    for (int k = 0; k < INSTANCES; k++) {
        sl_findep_times t = draw_times(&rng), lane[MAX_R1];
        const uint32_t layers = up_to(&rng, MAX_T), r1 = up_to(&rng, MAX_R1);
        const uint32_t r2 = up_to(&rng, MAX_R2);
        uint32_t chunks[MAX_R1];
        double ready[MAX_R1], done[MAX_R1];
        t.lag = 3 * draw_times(&rng).e;
        for (uint32_t i = 0; i < r1; i++) lane[i] = t, chunks[i] = r2;
        for (int o = 0; o < SL_ORDER_COUNT; o++) {
            const double form = sl_findep_makespan(&t, layers, r1, r2, (sl_order)o);
            const double replay =
                sl_findep_replay(lane, chunks, layers, r1, (sl_order)o, ready, done);
            if (!same(form, replay) || sl_findep_bound(&t, layers, r1, r2) > form * (1 + 1e-9))
                fail_msg("case %d, order %d, T %u, r1 %u, r2 %u, lag %g: form %.12g, replay %.12g",
                         k, o, layers, r1, r2, t.lag, form, replay);
        }
    }
}

static void ragged_lanes_replay_as_events(void **state) {
    (void)state;
    /* One lane of one chunk and one of three, by hand: a 2, s 1, c 1, e 2, d 1, two layers. */
    const sl_findep_times t = {2, 1, 1, 2, 1}, lane[2] = {t, t};
    const uint32_t chunks[2] = {1, 3};
    double ready[2], done[2];
    /* A0 2, S0 3, C0 3, E0 5, D0 6; A1 5, S1 6, C1 6 7 8, E1 8 10 12, D1 9 11 13; layer 1:
     * A0 8, S0 9, C0 9, E0 14, D0 15; A1 15, S1 16, C1 16 17 18, E1 18 20 22, D1 19 21 23. */
    assert_true(same(sl_findep_replay(lane, chunks, 2, 2, SL_ORDER_ASAS, ready, done), 23));
}

/* ---- worked examples ---- */

static void examples_of_the_specification(void **state) {
    (void)state;
    const sl_findep_times cycle = {.639, 3.589, 3.675, .157, 3.675}, print = {2, .5, .6, .4, .6};
    assert_true(fabs(sl_findep_makespan(&cycle, 40, 2, 1, SL_ORDER_AASS) - 393.40) < 0.005);
    assert_true(fabs(sl_findep_makespan(&cycle, 40, 2, 1, SL_ORDER_ASAS) - 342.16) < 0.005);
    assert_true(same(sl_findep_makespan(&print, 8, 2, 4, SL_ORDER_ASAS), 45.7));
    assert_true(same(sl_findep_published(&print, 8, 2, 4), 47.5));
    assert_true(same(sl_findep_period(&cycle, 2, 1, SL_ORDER_AASS) * 2,
                     sl_findep_makespan(&cycle, 42, 2, 1, SL_ORDER_AASS) -
                         sl_findep_makespan(&cycle, 40, 2, 1, SL_ORDER_AASS)));
}

/* Integer tokens: fewer samples may be faster. */
static void more_samples_may_be_slower(void **state) {
    (void)state;
    sl_findep_problem p = {.layers = 4,
                           .ag = 11,
                           .eg = 1,
                           .tokens = 1,
                           .experts = 20,
                           .top_k = 1,
                           .batch_per_ag = 8,
                           .r2_max = 1,
                           .integer_tokens = true,
                           .skew = 1,
                           .attn = {.1, .05},
                           .a2e = {.01, .08},
                           .e2a = {.01, .08},
                           .expert = {.03, .1}};
    sl_findep_result three, four;
    sl_err err;
    const sl_findep_point at3 = {SL_ORDER_ASAS, 2, 3, 1, SL_CHUNK_TOKENS};
    const sl_findep_point at4 = {SL_ORDER_ASAS, 2, 4, 1, SL_CHUNK_TOKENS};
    assert_int_equal(sl_findep_evaluate(&p, &at3, &three, &err), SL_OK);
    assert_int_equal(sl_findep_evaluate(&p, &at4, &four, &err), SL_OK);
    assert_true(three.tokens == 2 && four.tokens == 3);
    assert_true(fabs(2 * 3 / three.makespan_ms - 1.700) < 5e-4);
    assert_true(fabs(2 * 4 / four.makespan_ms - 1.649) < 5e-4);
}

/* Two models on cards of 48 GB, bf16, two attention and six expert devices. */
static void memory_of_known_models(void **state) {
    (void)state;
    const double attention =
        5120. * 1536 + 1536. * 128 * 192 + 5120. * 576 + 512. * 128 * 256 + 128. * 128 * 5120;
    const double outer = 2. * 102400 * 5120;
    sl_findep_problem p = {.layers = 8,
                           .ag = 2,
                           .eg = 6,
                           .tokens = 4096,
                           .experts = 160,
                           .top_k = 6,
                           .batch_per_ag = 1000,
                           .r2_max = 32,
                           .skew = 1,
                           .has_memory = true};
    p.memory = (sl_findep_memory){.ag_bytes = 48e9,
                                  .eg_bytes = 48e9,
                                  .reserve = 0.1,
                                  .elt_bytes = 2,
                                  .hidden = 5120,
                                  .expert_width = 1536,
                                  .ag_params = 8 * (attention + 6. * 5120 * 1536 + 5120. * 160),
                                  .work_width = 128. * (192 + 192 + 128 + 128),
                                  .kv_token_bytes = 1152,
                                  .credits = 3};
    p.memory.ag_params += outer;
    const char *why;
    uint32_t r2_min;
    assert_int_equal(sl_findep_max_r1(&p, 1, &r2_min, &why), 81);
    assert_int_equal(r2_min, 1);
    p.memory.kv_token_bytes = 2. * 128 * (192 + 128); /* a cache that is not compressed */
    p.tokens = 8192;
    p.layers = 24;
    p.experts = 128;
    p.top_k = 8;
    p.memory.hidden = 4096;
    p.memory.kv_token_bytes = 2048;
    p.memory.ag_params = 24 * (4096. * 8192 * 2 + 4096. * 512 * 2 + 4096. * 128);
    p.memory.ag_params += 2. * 151936 * 4096;
    p.memory.work_width = 8192 * 2 + 512 * 2;
    assert_int_equal(sl_findep_max_r1(&p, 1, &r2_min, &why), 31);
    p.memory.eg_bytes = 20e9; /* 19.9 of them weights */
    assert_int_equal(sl_findep_max_r1(&p, 1, &r2_min, &why), 0);
    assert_string_equal(why, "memory of an expert worker");
    sl_findep_result r;
    sl_err err;
    assert_int_equal(sl_findep_solve(&p, false, &r, &err), SL_ERR_INFEASIBLE);
    assert_non_null(strstr(err.msg, "memory of an expert worker"));
}

/* ---- the search ---- */

static sl_findep_line draw_line(uint64_t *rng, double scale) {
    return (sl_findep_line){scale * spread(rng) * 0.1, scale * spread(rng) * 0.1, 0};
}

static sl_findep_problem draw_problem(uint64_t *rng) {
    sl_findep_problem p = {.layers = up_to(rng, 60),
                           .ag = up_to(rng, 6),
                           .eg = up_to(rng, 8),
                           .tokens = up_to(rng, 3000),
                           .top_k = up_to(rng, 8),
                           .batch_per_ag = up_to(rng, 24),
                           .r2_max = up_to(rng, 24),
                           .integer_tokens = sl_rng_below(rng, 2),
                           .skew = sl_rng_below(rng, 2) ? 1 : 1 + uniform(rng),
                           .cut = (sl_findep_cut)sl_rng_below(rng, 3)};
    p.experts = p.eg * up_to(rng, 20) + p.top_k;
    double rows = (double)p.tokens * p.ag * p.top_k / p.experts;
    p.r1_max = sl_rng_below(rng, 2) ? 0 : up_to(rng, 6);
    p.attn = draw_line(rng, 1);
    p.shared = sl_rng_below(rng, 4) ? draw_line(rng, 1) : (sl_findep_line){0};
    p.a2e = p.e2a = draw_line(rng, 1);
    if (sl_rng_below(rng, 2)) p.e2a = draw_line(rng, 1);
    p.expert = draw_line(rng, 1);
    p.a2e.beta /= rows, p.e2a.beta /= rows, p.expert.beta /= rows;
    if (sl_rng_below(rng, 2)) p.expert.floor = spread(rng) * 0.2;
    return p;
}

static double exhaust(const sl_findep_problem *p) {
    double best = 0;
    for (uint32_t ma = 1; ma <= p->batch_per_ag; ma++)
        for (uint32_t r1 = 1; r1 * ma <= p->batch_per_ag && (!p->r1_max || r1 <= p->r1_max); r1++)
            for (uint32_t r2 = 1; r2 <= p->r2_max; r2++)
                for (int o = 0; o < 4; o++) {
                    const sl_findep_point at = {(sl_order)(o % 2), r1, ma, r2,
                                                (sl_chunking)(o / 2)};
                    uint32_t each = (p->experts + p->eg - 1) / p->eg;
                    bool by_experts = at.chunking == SL_CHUNK_EXPERTS;
                    if (by_experts ? p->cut == SL_FINDEP_CUT_TOKENS || r2 > each
                                   : p->cut == SL_FINDEP_CUT_EXPERTS)
                        continue;
                    sl_findep_result r;
                    sl_err err;
                    assert_int_equal(sl_findep_evaluate(p, &at, &r, &err), SL_OK);
                    best = fmax(best, r.samples_per_s);
                }
    return best;
}

static void search_equals_trying_everything(void **state) {
    (void)state;
    uint64_t rng = 5;
    for (int k = 0; k < 1000; k++) {
        sl_findep_problem p = draw_problem(&rng);
        sl_findep_result r;
        sl_err err;
        assert_int_equal(sl_findep_solve(&p, false, &r, &err), SL_OK);
        double best = exhaust(&p);
        if (!same(r.samples_per_s, best))
            fail_msg("case %d: %.12g samples/s, everything tried %.12g", k, r.samples_per_s, best);
        assert_true(r.at.r1 * r.at.ma <= p.batch_per_ag &&
                    r.bound_ms <= r.makespan_ms * (1 + 1e-9));
    }
}

/* What is printed overestimates by (r2-1)Y, so it shies away from chunks. */
static void published_search_is_never_better(void **state) {
    (void)state;
    uint64_t rng = 9;
    uint32_t other = 0;
    for (int k = 0; k < 400; k++) {
        sl_findep_problem p = draw_problem(&rng);
        sl_findep_result exact, printed;
        sl_err err;
        assert_int_equal(sl_findep_solve(&p, false, &exact, &err), SL_OK);
        assert_int_equal(sl_findep_solve(&p, true, &printed, &err), SL_OK);
        assert_true(printed.samples_per_s <= exact.samples_per_s * (1 + 1e-9));
        assert_true(printed.published_ms >= printed.makespan_ms * (1 - 1e-9));
        assert_int_equal(printed.at.order, SL_ORDER_ASAS);
        other += printed.at.r2 != exact.at.r2;
    }
    print_message("Eq. 13 picks another r2 in %u of 400 cases\n", other);
    assert_true(other > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closed_forms_are_exact),
        cmocka_unit_test(a_lag_is_part_of_the_way),
        cmocka_unit_test(ragged_lanes_replay_as_events),
        cmocka_unit_test(examples_of_the_specification),
        cmocka_unit_test(more_samples_may_be_slower),
        cmocka_unit_test(memory_of_known_models),
        cmocka_unit_test(search_equals_trying_everything),
        cmocka_unit_test(published_search_is_never_better),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
