/* The search over all kinds of deployments: batches are the largest, limits are kept, better means
 * better, and what is not possible says what would be. */
#include "plan/search.h"

#include "format/cluster_file.h"
#include "format/presets.h"
#include "plan/search_int.h"
#include "plan/shard.h"
#include "sim/trial.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static sl_cluster cluster;
static sl_search_result result;

static sl_workload lengths(uint32_t input, uint32_t output) {
    return (sl_workload){.input = {.low = input, .high = input},
                         .output = {.low = output, .high = output}};
}

static sl_search_problem problem(const char *model, const char *machines, sl_workload *w) {
    sl_err err;
    assert_int_equal(sl_cluster_open(machines, &cluster, &err), SL_OK);
    const sl_shape *shape = sl_preset_model(model);
    assert_non_null(shape);
    return (sl_search_problem){.shape = shape,
                               .cluster = &cluster,
                               .workload = w,
                               .compute = SL_COMPUTE_BF16,
                               .reserve = 0.1,
                               .value_bytes = 2};
}

static void run(const sl_search_problem *p, uint32_t top) {
    sl_err err = {0};
    sl_status st = sl_search_run(p, top, &result, &err);
    if (st != SL_OK) fail_msg("%s", err.msg);
}

static double best(const sl_search_problem *p) {
    run(p, 1);
    return sl_search_winner(&result)->per_cost;
}

static void batch_is_largest(const sl_search_problem *p, const sl_candidate *c) {
    sl_search_state s;
    sl_err err;
    assert_int_equal(sl_search_prepare(p, &s, &err), SL_OK);
    sl_candidate next = *c;
    uint32_t most = sl_search_memory_rows(&s, &next);
    assert_true(c->rows >= 1 && c->rows <= most);
    next.rows++;
    sl_search_evaluate(&s, &next);
    const sl_workload *w = p->workload;
    if (c->binding == SL_BINDING_TPOT) assert_true(next.tpot_us > w->slo_tpot_us);
    if (c->binding == SL_BINDING_TTFT) assert_true(next.ttft_us > w->slo_ttft_us);
    if (c->binding == SL_BINDING_MEMORY) assert_int_equal(c->rows, most);
    double before = 0;
    for (next.rows = 1; next.rows < 2 * c->rows; next.rows += 1 + next.rows / 4) {
        sl_search_evaluate(&s, &next);
        assert_true(next.tpot_us >= before);
        before = next.tpot_us;
    }
    sl_search_release(&s);
}

static void limits_are_kept(void **state) {
    (void)state;
    sl_workload w = lengths(571, 159);
    w.slo_tpot_us = 150e3;
    w.slo_ttft_us = 2e6;
    sl_search_problem p = problem("mixtral-8x22b", "megascale-hetero", &w);
    p.objective = SL_OBJECTIVE_COST;
    run(&p, 4);
    uint32_t kinds = 0;
    for (int k = 0; k < SL_LAYOUT_COUNT; k++) {
        kinds += result.n_top[k] > 0;
        for (uint32_t i = 0; i < result.n_top[k]; i++) {
            const sl_candidate *c = &result.top[k][i];
            assert_true(c->layout.kind == (sl_layout_kind)k);
            assert_true(c->tpot_us <= w.slo_tpot_us && c->ttft_us <= w.slo_ttft_us);
            assert_true(c->devices <= sl_cluster_devices(&cluster) && c->copies >= 1);
            assert_true(c->hidden >= 0 && c->hidden <= 1 && c->imbalance >= 1);
            assert_true(c->estimated);
            if (i) assert_true(c->per_cost <= result.top[k][i - 1].per_cost * (1 + 1e-9));
            batch_is_largest(&p, c);
        }
    }
    assert_int_equal(kinds, SL_LAYOUT_COUNT);
    for (uint32_t i = 1; i < result.n_front; i++) {
        assert_true(result.front[i].per_cost > result.front[i - 1].per_cost);
        assert_true(result.front[i].tpot_us > result.front[i - 1].tpot_us);
    }
    assert_true(result.n_front > 2);
}

/* Each kind's front is its own, and the best of all of them is the front. */
static void curves_are_the_fronts_of_kinds(void **state) {
    (void)state;
    sl_workload w = lengths(571, 159);
    w.slo_tpot_us = 150e3;
    sl_search_problem p = problem("dbrx", "h20-8-l40s-16", &w);
    run(&p, 1);
    static sl_search_result all;
    all = result;
    for (int k = 0; k < SL_LAYOUT_COUNT; k++) {
        for (uint32_t i = 0; i < all.n_curve[k]; i++) {
            const sl_candidate *c = &all.curve[k][i];
            assert_true(c->layout.kind == (sl_layout_kind)k && c->tpot_us <= w.slo_tpot_us);
            if (i) assert_true(c->per_cost > c[-1].per_cost && c->tpot_us > c[-1].tpot_us);
        }
        if (k == SL_LAYOUT_AEP) continue; /* it is not tried here, and a bound alone wins nothing */
        /* considered alone it is the same, and the front is the curve */
        p.kinds = 1u << k;
        run(&p, 1);
        assert_int_equal(result.n_curve[k], all.n_curve[k]);
        assert_memory_equal(result.curve[k], all.curve[k], all.n_curve[k] * sizeof *all.curve[k]);
        assert_int_equal(result.n_front, all.n_curve[k]);
        for (int other = 0; other < SL_LAYOUT_COUNT; other++)
            assert_true(other == k || (!result.n_top[other] && !result.n_curve[other]));
    }
    for (uint32_t i = 0; i < all.n_front; i++) {
        const sl_candidate *c = &all.front[i];
        bool there = false;
        for (uint32_t j = 0; j < all.n_curve[c->layout.kind]; j++)
            there = there || memcmp(&all.curve[c->layout.kind][j], c, sizeof *c) == 0;
        assert_true(there);
    }
}

static void looser_is_never_worse(void **state) {
    (void)state;
    sl_workload w = lengths(571, 159);
    sl_search_problem p = problem("dbrx", "h20-8-l40s-16", &w);
    double before = 0;
    for (double slo = 40e3; slo <= 320e3; slo *= 2) {
        w.slo_tpot_us = slo;
        double now = best(&p);
        assert_true(now >= before);
        before = now;
    }
    double tight = before;
    p.reserve = 0.3;
    assert_true(best(&p) <= tight);
    p.reserve = 0.1;
    for (uint32_t t = 0; t < cluster.n_types; t++) cluster.type[t].flops[SL_COMPUTE_BF16] *= 2;
    assert_true(best(&p) >= tight);
}

/* Ping-pong's period is the law's, and micro-batches that suffice hide the transfers. */
static void ping_pong_follows_its_law(void **state) {
    (void)state;
    sl_workload w = lengths(571, 159);
    w.slo_tpot_us = 150e3;
    sl_search_problem p = problem("mixtral-8x22b", "megascale-hetero", &w);
    p.decode_only = true;
    run(&p, 16);
    for (uint32_t i = 0; i < result.n_top[SL_LAYOUT_PINGPONG]; i++) {
        const sl_candidate *c = &result.top[SL_LAYOUT_PINGPONG][i];
        double m = c->layout.lanes, x = c->attn_us + c->shared_us;
        double round = c->attn_us + 2 * c->link_us + c->expert_us;
        double period = fmax(m * fmax(x, fmax(c->expert_us, c->link_us)), round);
        assert_true(fabs(c->layer_us - period) <= 1e-9 * period);
        assert_true(c->step_us >= sl_shape_n_moe(p.shape) * period * (1 - 1e-9));
        assert_true(c->ttft_us == 0 && fabs(c->tpot_us - c->step_us) < 1e-9 * c->step_us);
    }
    p.as_published = true;
    run(&p, 1);
}

static void skew_costs(void **state) {
    (void)state;
    sl_workload w = lengths(150, 150);
    w.slo_tpot_us = 200e3;
    sl_search_problem p = problem("mixtral-8x7b", "amoe-a100-80g", &w);
    double even = best(&p);
    w.skew = (sl_route_skew){.on = true, .permuted = true, .theta = 0.6};
    double skewed = best(&p);
    assert_true(skewed <= even);
    run(&p, 16); /* copies of hot experts take memory, and whole workers wait less */
    for (int k = 0; k < SL_LAYOUT_COUNT; k++)
        for (uint32_t i = 0; i < result.n_top[k]; i++)
            assert_int_equal(result.top[k][i].layout.spare, 1);
}

static void rates_and_clients(void **state) {
    (void)state;
    sl_workload w = lengths(571, 159);
    w.slo_tpot_us = 150e3;
    sl_search_problem p = problem("mixtral-8x7b", "megascale-ampere", &w);
    p.objective = SL_OBJECTIVE_COST;
    w.arrival = (sl_arrival){.kind = SL_ARRIVAL_POISSON, .rate = 2};
    run(&p, 1);
    const sl_candidate *c = sl_search_winner(&result);
    assert_true(fabs(c->tokens_per_s - 2 * 159) < 1e-6 && c->devices < 64);
    w.arrival.rate = 1e6;
    sl_err err;
    assert_int_equal(sl_search_run(&p, 1, &result, &err), SL_ERR_INFEASIBLE);
    assert_non_null(strstr(err.msg, "times the devices"));
    w.arrival = (sl_arrival){.kind = SL_ARRIVAL_CLOSED, .concurrency = 24};
    run(&p, 1);
    assert_true(sl_search_winner(&result)->seqs <= 24);
}

static void infeasible_names_the_nearest_change(void **state) {
    (void)state;
    sl_workload w = lengths(571, 159);
    sl_search_problem p = problem("mixtral-8x22b", "cpu-4x10g", &w);
    sl_err err;
    double us;
    w.slo_tpot_us = 1000;
    assert_int_equal(sl_search_run(&p, 1, &result, &err), SL_ERR_INFEASIBLE);
    const char *at = strstr(err.msg, "--slo-tpot ");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "--slo-tpot %lfms", &us), 1);
    w.slo_tpot_us = us * 1000 * 1.02;
    run(&p, 1);
    w.slo_ttft_us = 1000;
    assert_int_equal(sl_search_run(&p, 1, &result, &err), SL_ERR_INFEASIBLE);
    assert_non_null(strstr(err.msg, "--slo-ttft "));
    w = lengths(571, 159);
    for (uint32_t t = 0; t < cluster.n_types; t++) cluster.type[t].memory_bytes = 20e9;
    assert_int_equal(sl_search_run(&p, 1, &result, &err), SL_ERR_INFEASIBLE);
    assert_non_null(strstr(err.msg, "GB more memory"));
    p.objective = SL_OBJECTIVE_COST;
    assert_int_equal(sl_search_run(&p, 1, &result, &err), SL_ERR_ARG);
    assert_non_null(strstr(err.msg, "price"));
}

/* All of the cluster's devices. */
static void measured_on_cpus(sl_search_problem *p, const sl_costs *costs) {
    static sl_type_costs of_type[SL_CLUSTER_MAX_TYPES];
    for (uint32_t t = 0; t < p->cluster->n_types; t++)
        of_type[t] = (sl_type_costs){.costs = costs, .cpu = true};
    p->of_type = of_type;
}

static void measured_costs_are_used(void **state) {
    (void)state;
    sl_workload w = lengths(64, 64);
    sl_search_problem p = problem("mixtral-8x7b", "cpu-4x10g", &w);
    sl_costs measured = {.link = {.alpha_us = 50, .byte_us = 1e-3}};
    for (int k = 0; k < SL_COST_COUNT; k++)
        measured.stage[k] = (sl_stage_cost){.fixed_us = 5, .floor_us = 100, .row_us = 20};
    measured_on_cpus(&p, &measured);
    p.measured_intra = p.measured_inter = &measured.link;
    run(&p, 1);
    for (int k = 0; k < SL_LAYOUT_COUNT; k++) {
        if (result.n_top[k] == 0) continue;
        assert_false(result.top[k][0].estimated || result.top[k][0].derived);
    }
    p.runnable = true;
    run(&p, 16);
    for (int k = 0; k < SL_LAYOUT_COUNT; k++)
        for (uint32_t i = 0; i < result.n_top[k]; i++)
            assert_null(sl_layout_not_run(&p, &result.top[k][i].layout));
    char why[SL_SEARCH_TEXT];
    sl_search_why(&p, &result, why);
    assert_non_null(strstr(why, "wins"));
    assert_non_null(strstr(why, "weight-bound below 5 rows"));
}

static sl_search_trial trial_of(const sl_search_problem *p, const sl_layout *l, uint32_t rows) {
    sl_search_state s;
    sl_err err;
    assert_int_equal(sl_search_prepare(p, &s, &err), SL_OK);
    const sl_candidate c = {.layout = *l, .copies = 1, .rows = rows};
    sl_search_trial t = sl_search_trial_of(&s, &c);
    sl_search_release(&s);
    t.max_work = 100000000;
    return t;
}

/* Against runs six times as long, over attention-, weight- and skew-bound deployments. */
static void a_short_trial_tells_what_a_long_one_does(void **state) {
    (void)state;
    static const struct {
        const char *model, *machines;
        sl_layout at;
        uint32_t rows;
        double theta;
    } cases[] = {
        {"mixtral-8x7b", "h100-8", {.n_a = 2, .n_e = 4}, 48, 0},
        {"mixtral-16e-top1", "amoe-a100-80g", {.n_a = 4, .n_e = 4}, 64, 0.6},
        {"qwen3-30b-a3b", "cpu-4x10g", {.n_a = 2, .n_e = 2}, 10, 0},
        {"dbrx", "h20-8-l40s-16", {.n_a = 2, .n_e = 16, .expert_group = 1}, 48, 0.3},
    };
    for (size_t i = 0; i < SL_LEN(cases); i++) {
        sl_workload w = lengths(400, 100);
        sl_search_problem p = problem(cases[i].model, cases[i].machines, &w);
        sl_layout l = cases[i].at;
        sl_search_tried quick, again, slow;
        sl_err err = {0};
        w.skew = (sl_route_skew){
            .on = cases[i].theta > 0, .permuted = true, .theta = cases[i].theta, .seed = 3};
        l.kind = SL_LAYOUT_AEP;
        l.tp_a = l.tp_e = l.stages = l.chunks = 1;
        l.lanes = 4;
        l.spare = w.skew.on;
        sl_search_trial t = trial_of(&p, &l, cases[i].rows);
        if (sl_sim_try(&t, &quick, &err) != SL_OK) fail_msg("%s", err.msg);
        assert_int_equal(sl_sim_try(&t, &again, &err), SL_OK);
        assert_memory_equal(&quick, &again, sizeof quick);
        if (sl_sim_try_steps(&t, 4, 8, &slow, &err) != SL_OK) fail_msg("%s", err.msg);
        printf("%-16s a step of %.1f ms, %.1f in a long run\n", cases[i].model, quick.step_us / 1e3,
               slow.step_us / 1e3);
        assert_true(fabs(quick.step_us / slow.step_us - 1) < 0.15);
        assert_true(quick.attn_busy <= 1 && quick.expert_busy <= 1 && quick.link_busy <= 1);
        t.max_work = quick.work / 2;
        assert_int_equal(sl_sim_try(&t, &quick, &err), SL_ERR_LIMIT);
    }
}

/* What the search says of aep is what a trial of it says, and a bound never wins. */
static void aep_is_tried(void **state) {
    (void)state;
    sl_workload w = lengths(400, 100);
    w.slo_tpot_us = 400e3;
    w.skew = (sl_route_skew){.on = true, .permuted = true, .theta = 0.6, .seed = 1};
    sl_search_problem p = problem("qwen3-30b-a3b", "cpu-4x10g", &w);
    p.decode_only = true;
    run(&p, 4);
    double bound = result.top[SL_LAYOUT_AEP][0].tokens_per_s;
    assert_true(result.top[SL_LAYOUT_AEP][0].bound);
    assert_true(sl_search_winner(&result)->layout.kind != SL_LAYOUT_AEP);
    p.trial = sl_sim_try;
    run(&p, 4);
    assert_true(result.n_top[SL_LAYOUT_AEP] > 0);
    for (uint32_t i = 0; i < result.n_top[SL_LAYOUT_AEP]; i++) {
        const sl_candidate *c = &result.top[SL_LAYOUT_AEP][i];
        sl_search_trial t = trial_of(&p, &c->layout, c->rows);
        sl_search_tried r;
        sl_err err;
        assert_int_equal(sl_sim_try(&t, &r, &err), SL_OK);
        assert_true(fabs(c->tpot_us / r.step_us - 1) < 1e-12 && c->tpot_us <= w.slo_tpot_us);
        assert_true(!c->bound && c->tokens_per_s < 1.15 * bound);
    }
}

/* Gangs on nodes are predicted as they run: by a law that is nearly right, and by a trial. */
static void hybrid_is_tried(void **state) {
    (void)state;
    sl_workload w = lengths(400, 100);
    w.slo_tpot_us = 200e3;
    sl_search_problem p = problem("qwen3-30b-a3b", "cpu-4x10g", &w);
    sl_node_group *g = &cluster.group[0];
    g->devices_per_node = 4;
    g->intra = (sl_link_tier){.bandwidth = 40e9, .latency_us = 3};
    p.decode_only = true;
    p.kinds = 1u << SL_LAYOUT_HYBRID;
    run(&p, 8);
    static sl_candidate law[8];
    const uint32_t n = result.n_top[SL_LAYOUT_HYBRID];
    memcpy(law, result.top[SL_LAYOUT_HYBRID], n * sizeof *law);
    p.trial = sl_sim_try;
    run(&p, 8);
    uint32_t tried = 0;
    for (uint32_t i = 0; i < result.n_top[SL_LAYOUT_HYBRID]; i++) {
        const sl_candidate *c = &result.top[SL_LAYOUT_HYBRID][i];
        if (c->tried_us <= 0) continue; /* nothing travels, or it is too large to be tried */
        sl_search_trial t = trial_of(&p, &c->layout, c->rows);
        sl_search_tried r;
        sl_err err;
        assert_int_equal(t.ranks, c->layout.tp_a);
        assert_int_equal(sl_sim_try(&t, &r, &err), SL_OK);
        assert_true(fabs(c->tpot_us / r.step_us - 1) < 1e-12 && c->tpot_us <= w.slo_tpot_us);
        for (uint32_t j = 0; j < n; j++) {
            if (memcmp(&law[j].layout, &c->layout, sizeof c->layout) != 0) continue;
            const double by_law = law[j].tokens_per_s, by_trial = c->tokens_per_s;
            printf("%u x %u, %u rows: %.1f tok/s by law, %.1f tried\n", c->layout.n_a,
                   c->layout.tp_a, c->rows, by_law, by_trial);
            assert_true(fabs(by_trial / by_law - 1) < 0.15);
            tried++;
        }
    }
    assert_true(tried >= 2);
}

/* A measured device cut over several: a link that costs nothing halves what is cut, and one that
 * is slow makes tensor parallelism lose. */
static void measured_costs_are_cut(void **state) {
    (void)state;
    const sl_shape *s = sl_preset_model("mixtral-8x7b");
    sl_costs one = {.link = {.alpha_us = 50, .byte_us = 1e-3}};
    const sl_link_cost free_link = {0}, slow = {.alpha_us = 1e4, .byte_us = 1};
    for (int k = 0; k < SL_COST_COUNT; k++)
        one.stage[k] = (sl_stage_cost){.fixed_us = 5, .floor_us = 100, .row_us = 20, .key_us = 2};
    one.stage[SL_COST_DENSE] = one.stage[SL_COST_SHARED] = (sl_stage_cost){0};
    sl_costs two = sl_shard_costs(&one, s, 2, &free_link, 4, true);
    assert_true(two.stage[SL_COST_EXPERT].floor_us == 50 && two.stage[SL_COST_HEAD].row_us == 10);
    assert_true(two.stage[SL_COST_ATTENTION].key_us == 1 &&
                two.stage[SL_COST_ATTENTION].fixed_us == 5);
    assert_true(two.stage[SL_COST_ROUTER].row_us == 20 && two.stage[SL_COST_DENSE].fixed_us == 0);
    two = sl_shard_costs(&one, s, 4, &slow, 4, true);
    assert_true(two.stage[SL_COST_EXPERT].fixed_us == 5 && two.stage[SL_COST_EXPERT].row_us == 5);
    assert_true(fabs(two.stage[SL_COST_EXPERT].sum_us - 20000) < 1e-9);
    assert_true(fabs(two.stage[SL_COST_EXPERT].sum_row_us - 2.0 * 4096 * 4 * 3 / 4) < 1e-6);
    assert_true(sl_shard_costs(&one, s, 4, &slow, 4, false).stage[SL_COST_EXPERT].sum_us == 0);
    /* Rows below the floor pay their sum all the same, and a task's experts share its latency. */
    const sl_stage_cost *x = &two.stage[SL_COST_EXPERT];
    assert_true(fabs(sl_stage_cost_us(x, 1, 0) - (5 + 25 + 20000 + x->sum_row_us)) < 1e-6);
    assert_true(fabs(sl_expert_cost_us(x, false, 1, false) - (5 + 25 + x->sum_row_us)) < 1e-6);
    assert_true(fabs(sl_expert_cost_us(x, true, 1, false) - (25 + x->sum_row_us)) < 1e-6);

    sl_workload w = lengths(64, 64);
    sl_search_problem p = problem("mixtral-8x7b", "h100-8", &w);
    measured_on_cpus(&p, &one);
    p.measured_intra = p.measured_inter = &free_link;
    w.arrival = (sl_arrival){.kind = SL_ARRIVAL_CLOSED, .concurrency = 1};
    run(&p, 4);
    const sl_candidate *c = sl_search_winner(&result);
    assert_true(c->derived && !c->estimated && (c->layout.tp_a > 1 || c->layout.tp_e > 1));
    p.measured_intra = p.measured_inter = &slow;
    run(&p, 4);
    assert_false(sl_search_winner(&result)->derived);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limits_are_kept),
        cmocka_unit_test(curves_are_the_fronts_of_kinds),
        cmocka_unit_test(looser_is_never_worse),
        cmocka_unit_test(ping_pong_follows_its_law),
        cmocka_unit_test(skew_costs),
        cmocka_unit_test(rates_and_clients),
        cmocka_unit_test(infeasible_names_the_nearest_change),
        cmocka_unit_test(measured_costs_are_used),
        cmocka_unit_test(measured_costs_are_cut),
        cmocka_unit_test(a_short_trial_tells_what_a_long_one_does),
        cmocka_unit_test(aep_is_tried),
        cmocka_unit_test(hybrid_is_tried),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
