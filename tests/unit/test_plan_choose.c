/* Which schedule is chosen when: cases whose answer the papers give. */
#include "plan/choose.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static sl_choice list[SL_CHOOSE_MAX];
static uint32_t n_choices;

static sl_choose_load split_load(void) {
    return (sl_choose_load){.attention_workers = 1,
                            .expert_workers = 1,
                            .n_experts = 16,
                            .top_k = 2,
                            .decode_rows = 128,
                            .prefill_rows = 512,
                            .keys = 256,
                            .max_lanes = 16,
                            .row_bytes = 1000,
                            .regroup = true,
                            .skew = 1,
                            .skew_total = 1,
                            .threads = 1};
}

/* Attention as long as experts: 10 us a row for either, at top-2 of 16. */
static sl_costs balanced(double row_us, double byte_us) {
    sl_costs c = {.link = {.alpha_us = 5, .byte_us = byte_us}};
    c.stage[SL_COST_ATTENTION].row_us = row_us;
    c.stage[SL_COST_EXPERT].row_us = row_us / 2;
    return c;
}

static const sl_choice *choose(const sl_costs *c, const sl_choose_load *l) {
    uint32_t best;
    sl_err err;
    assert_int_equal(sl_choose(c, l, list, &n_choices, &best, &err), SL_OK);
    assert_true(n_choices > 0 && n_choices <= SL_CHOOSE_MAX && best < n_choices);
    double least = INFINITY;
    for (uint32_t i = 0; i < n_choices; i++) {
        assert_true(list[i].score >= 1 - 1e-12 && isfinite(list[i].score));
        least = fmin(least, list[i].score);
    }
    assert_true(list[best].score <= SL_CHOOSE_MARGIN * least);
    return &list[best];
}

static const sl_choice *find(sl_schedule s, uint32_t lanes, uint32_t chunks) {
    for (uint32_t i = 0; i < n_choices; i++)
        if (list[i].schedule == s && list[i].lanes == lanes && list[i].chunks == chunks)
            return &list[i];
    return NULL;
}

static void balanced_stages_want_lanes(void **state) {
    (void)state;
    sl_choose_load l = split_load();
    sl_costs c = balanced(10, 1e-5);
    const sl_choice *x = choose(&c, &l);
    assert_int_equal(x->schedule, SL_SCHED_PINGPONG);
    assert_int_equal(x->lanes, 2);
    /* dep takes Ta + Te, two lanes the longer of them. */
    const sl_choice *dep = find(SL_SCHED_DEP, 1, 1);
    assert_true(fabs(dep->decode_us / x->decode_us - 2) < 0.05);
}

static void one_request_has_no_lanes(void **state) {
    (void)state;
    sl_choose_load l = split_load();
    sl_costs c = balanced(10, 1e-5);
    l.max_lanes = l.decode_rows = 1;
    assert_int_equal(choose(&c, &l)->schedule, SL_SCHED_DEP);
    for (uint32_t i = 0; i < n_choices; i++) assert_true(list[i].lanes == 1);
}

/* Half of a stage on the link: a third lane or chunks fill what two lanes leave. */
static void transfers_want_chunks_or_lanes(void **state) {
    (void)state;
    sl_choose_load l = split_load();
    sl_costs c = balanced(10, 5e-3);
    const sl_choice *x = choose(&c, &l);
    assert_true(x->lanes > 2 || x->chunks > 1);
    assert_true(x->decode_us < 0.9 * find(SL_SCHED_PINGPONG, 2, 1)->decode_us);
}

/* Weights that take as long for few rows as for many: lanes read them again and again. */
static void weight_bound_experts_stay_whole(void **state) {
    (void)state;
    sl_choose_load l = split_load();
    sl_costs c = balanced(1, 1e-5);
    c.stage[SL_COST_EXPERT] = (sl_stage_cost){.floor_us = 1000, .row_us = 0.5};
    const sl_choice *x = choose(&c, &l);
    assert_int_equal(x->schedule, SL_SCHED_DEP);
}

/* Both roles at each. */
static sl_choose_load two_nodes(void) {
    sl_choose_load l = split_load();
    l.colocated = true;
    l.attention_workers = l.expert_workers = 2;
    l.max_lanes = 1;
    l.regroup = false;
    return l;
}

/* Two nodes whose long messages take as long as everything else: a port a rank halves them. */
static void ports_of_ranks_want_hybrid(void **state) {
    (void)state;
    sl_choose_load l = two_nodes();
    sl_costs c = balanced(1, 0.01);
    assert_int_equal(choose(&c, &l)->schedule, SL_SCHED_EP);
    assert_null(find(SL_SCHED_HYBRID, 1, 1));
    l.rails = 2;
    l.rail_bytes = 1000;
    assert_int_equal(choose(&c, &l)->schedule, SL_SCHED_HYBRID);
    const sl_choice *whole = find(SL_SCHED_EP, 1, 1), *cut = find(SL_SCHED_HYBRID, 1, 1);
    const double link_us = whole->decode_us - cut->decode_us; /* half of the way there and back */
    assert_true(link_us > 0.4 * cut->decode_us);
    l.rail_bytes = 1e9; /* nothing is so long */
    assert_int_equal(choose(&c, &l)->schedule, SL_SCHED_EP);
    assert_true(find(SL_SCHED_HYBRID, 1, 1)->decode_us == find(SL_SCHED_EP, 1, 1)->decode_us);
}

/* Two gangs of two whose ranks are on machines: the first carries rows to the second, unless they
 * travel in stripes. */
static void ranks_on_machines_want_hybrid(void **state) {
    (void)state;
    sl_choose_load l = two_nodes();
    l.rails = 2;
    l.rail_bytes = 1000;
    sl_costs c = balanced(1, 0.001);
    choose(&c, &l);
    const double in_place = find(SL_SCHED_EP, 1, 1)->prefill_us;
    l.beside_attention = l.beside_expert = 1;
    l.stream_bytes = 4 * l.row_bytes;
    assert_int_equal(choose(&c, &l)->schedule, SL_SCHED_HYBRID);
    const double carried = find(SL_SCHED_EP, 1, 1)->prefill_us - in_place;
    /* To attention all rows of a prompt, whole, for nothing can hide that. */
    assert_true(carried > l.prefill_rows * l.stream_bytes * c.link.byte_us);
    l.rail_bytes = 1e9;
    choose(&c, &l);
    assert_true(find(SL_SCHED_HYBRID, 1, 1)->decode_us == find(SL_SCHED_EP, 1, 1)->decode_us);
}

static void shared_cores_gain_nothing(void **state) {
    (void)state;
    sl_choose_load l = split_load();
    sl_costs c = balanced(10, 1e-5);
    l.cores = 1;
    l.core_attention = l.core_experts = 1;
    assert_int_equal(choose(&c, &l)->schedule, SL_SCHED_DEP);
    l.cores = 2;
    assert_int_equal(choose(&c, &l)->schedule, SL_SCHED_PINGPONG);
}

static void colocated_overlaps_transfers_by_groups(void **state) {
    (void)state;
    sl_choose_load l = split_load();
    sl_costs c = balanced(1, 2e-3);
    l.colocated = true;
    l.attention_workers = l.expert_workers = 2;
    l.max_lanes = 1;
    c.stage[SL_COST_ATTENTION].row_us = 0.1;
    c.stage[SL_COST_EXPERT] = (sl_stage_cost){.row_us = 1};
    const sl_choice *x = choose(&c, &l);
    assert_int_equal(x->schedule, SL_SCHED_EPS);
    assert_true(8 % x->chunks == 0);
    l.regroup = false;
    assert_int_equal(choose(&c, &l)->schedule, SL_SCHED_EP);
    l.attention_workers = l.expert_workers = 1;
    assert_int_equal(choose(&c, &l)->schedule, SL_SCHED_EP);
    assert_int_equal(n_choices, 1);
}

/* Without skew the barrier wins; aep is not even a candidate. */
static void skew_wants_no_barrier(void **state) {
    (void)state;
    sl_choose_load l = split_load();
    sl_costs c = balanced(10, 1e-5);
    l.attention_workers = l.expert_workers = 4;
    choose(&c, &l);
    assert_null(find(SL_SCHED_AEP, 1, 1));
    l.skew = 2.2;
    l.skew_total = 1.2;
    assert_int_equal(choose(&c, &l)->schedule, SL_SCHED_AEP);
    l.skew_total = 2.2; /* the same worker is hot in every block: nothing to gain */
    assert_true(choose(&c, &l)->schedule != SL_SCHED_AEP);
    l.regroup = false;
    l.skew_total = 1;
    assert_true(choose(&c, &l)->schedule != SL_SCHED_AEP);
}

/* FinDEP online: few rows stay together where weights bind, many are cut where transfers do. */
static void chunks_follow_the_rows(void **state) {
    (void)state;
    sl_choose_load l = split_load();
    sl_costs c = balanced(10, 5e-3);
    const sl_choice x = {.schedule = SL_SCHED_FINDEP, .lanes = 1, .chunks = 8};
    c.stage[SL_COST_EXPERT] = (sl_stage_cost){.floor_us = 300, .row_us = 5};
    uint32_t few = sl_choose_chunks(&c, &l, &x, 8, 100), last = few;
    assert_int_equal(few, 1);
    for (double rows = 16; rows <= 4096; rows *= 2) {
        uint32_t now = sl_choose_chunks(&c, &l, &x, rows, 100);
        assert_true(now >= last && now <= 8);
        last = now;
    }
    assert_true(last > 1);
    c.stage[SL_COST_EXPERT].floor_us = 0;
    assert_true(sl_choose_chunks(&c, &l, &x, 2, 0) <= 2); /* a chunk has a row */
}

static void bad_loads(void **state) {
    (void)state;
    sl_choose_load l = split_load();
    sl_costs c = balanced(10, 1e-5);
    uint32_t n, best;
    sl_err err;
    l.skew = 0.5;
    assert_int_equal(sl_choose(&c, &l, list, &n, &best, &err), SL_ERR_ARG);
    l = split_load();
    l.decode_rows = 0;
    assert_int_equal(sl_choose(&c, &l, list, &n, &best, &err), SL_ERR_ARG);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(balanced_stages_want_lanes),
        cmocka_unit_test(one_request_has_no_lanes),
        cmocka_unit_test(transfers_want_chunks_or_lanes),
        cmocka_unit_test(weight_bound_experts_stay_whole),
        cmocka_unit_test(shared_cores_gain_nothing),
        cmocka_unit_test(ports_of_ranks_want_hybrid),
        cmocka_unit_test(ranks_on_machines_want_hybrid),
        cmocka_unit_test(colocated_overlaps_transfers_by_groups),
        cmocka_unit_test(skew_wants_no_barrier),
        cmocka_unit_test(chunks_follow_the_rows),
        cmocka_unit_test(bad_loads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
