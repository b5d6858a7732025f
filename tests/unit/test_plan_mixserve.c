/* Strategies, collectives and the analyzer of MixServe: notation, counts, closed forms against
 * recurrences, monotone memory, waiting, and the figures of the corrected model. */
#include "plan/mixserve.h"

#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static const sl_fabric nvlink = {SL_FABRIC_PORT, 8, 1e6 / 450e9};
static const sl_fabric ib = {SL_FABRIC_PORT, 15, 1e6 / 50e9};
static const sl_fabric hccs_port = {SL_FABRIC_PORT, 15, 1e6 / 60e9};
static const sl_fabric hccs_mesh = {SL_FABRIC_MESH, 15, 1e6 / 60e9};
static const sl_fabric roce = {SL_FABRIC_PORT, 25, 1e6 / 25e9};

static double uniform(uint64_t *rng, double low, double high) {
    return low + (high - low) * (double)sl_rng_below(rng, 1u << 30) / (1u << 30);
}

static void notation_there_and_back(void **state) {
    (void)state;
    static const struct {
        const char *text, *shortest;
        sl_strategy s;
    } rows[] = {
        {"TP=4+DP=8, EP=32", "TP=4+DP=8, EP=32", {4, 8, 1, 32, 1}},
        {"TP=8 + DP=2, TP=8 + EP=2", "TP=8+DP=2, TP=8+EP=2", {8, 2, 8, 2, 1}},
        {"TP=8 [PP=4]", "TP=8, TP=8 [PP=4]", {8, 1, 8, 1, 4}},
        {"DP=16,EP=8+EP=2", "DP=16, EP=16", {1, 16, 1, 16, 1}},
        {"TP=1, TP=1", "TP=1, TP=1", {1, 1, 1, 1, 1}},
    };
    sl_err err;
    for (size_t i = 0; i < SL_LEN(rows); i++) {
        sl_strategy s, t;
        char text[SL_STRATEGY_TEXT];
        assert_int_equal(sl_strategy_parse(rows[i].text, &s, &err), SL_OK);
        assert_memory_equal(&s, &rows[i].s, sizeof s);
        sl_strategy_print(&s, text);
        assert_string_equal(text, rows[i].shortest);
        assert_int_equal(sl_strategy_parse(text, &t, &err), SL_OK);
        assert_memory_equal(&s, &t, sizeof s);
    }
    static const char *const bad[] = {"",
                                      "TP=0",
                                      "TP=4+EP=8, EP=32",
                                      "TP=4, DP=4",
                                      "TP=4, EP=4,",
                                      "TP 4",
                                      "TP=4, EP=4 [PP=2",
                                      "TP=99999999",
                                      "PP=2, EP=2",
                                      "TP=4+DP=2+DP=2, EP=4"};
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        sl_strategy s;
        assert_int_equal(sl_strategy_parse(bad[i], &s, &err), SL_ERR_FORMAT);
        assert_non_null(strstr(err.msg, "expected"));
    }
}

static bool check_product(void *ctx, const sl_strategy *s) {
    const sl_strategy_limits *l = ctx;
    sl_err err;
    char text[SL_STRATEGY_TEXT];
    sl_strategy t;
    uint32_t world = l->nodes * l->per_node;
    assert_int_equal(s->tp_a * s->dp * s->pp, world);
    assert_int_equal(s->tp_e * s->ep * sl_strategy_replicas(s) * s->pp, world);
    assert_true(s->tp_a <= l->per_node && s->tp_e <= l->per_node);
    assert_int_equal(l->experts % s->ep, 0);
    sl_strategy_print(s, text);
    assert_int_equal(sl_strategy_parse(text, &t, &err), SL_OK);
    assert_memory_equal(s, &t, sizeof t);
    return true;
}

static void degrees_fill_the_grid(void **state) {
    (void)state;
    sl_strategy_limits grids[] = {{2, 8, 61, 128, 256, 2048},
                                  {4, 8, 94, 64, 128, 1536},
                                  {3, 4, 32, 32, 8, 14336},
                                  {1, 1, 32, 32, 8, 14336},
                                  {1250, 8, 61, 128, 256, 2048}};
    for (size_t i = 0; i < SL_LEN(grids); i++)
        assert_true(sl_strategy_enumerate(&grids[i], check_product, &grids[i]) > 0);
    sl_strategy s = {8, 2, 1, 16, 1};
    sl_err err;
    assert_int_equal(sl_strategy_check(&s, &grids[0], &err), SL_OK);
    s.ep = 12;
    assert_int_equal(sl_strategy_check(&s, &grids[0], &err), SL_ERR_INFEASIBLE);
    s = (sl_strategy){16, 1, 1, 16, 1};
    assert_int_equal(sl_strategy_check(&s, &grids[0], &err), SL_ERR_INFEASIBLE);
    assert_non_null(strstr(err.msg, "leaves the node"));
}

/* A port sends its chunks one after the other; the inside of a group works in the same order. */
static void closed_forms_are_the_recurrences(void **state) {
    (void)state;
    uint64_t rng = 21;
    for (int c = 0; c < 20000; c++) {
        sl_fabric in = {SL_FABRIC_PORT, uniform(&rng, 0, 5), uniform(&rng, 0, 1)};
        sl_fabric out = {SL_FABRIC_PORT, uniform(&rng, 0, 5), uniform(&rng, 0, 1)};
        sl_hybrid_comm h = {.n = 2 + (uint32_t)sl_rng_below(&rng, 7),
                            .m = 2 + (uint32_t)sl_rng_below(&rng, 7),
                            .tokens = 10,
                            .row_bytes = 4,
                            .experts = 64,
                            .top_k = 4,
                            .intra = &in,
                            .inter = &out};
        sl_hybrid_times t = sl_hybrid_law(&h);
        double ti = in.alpha_us + t.inside_us, x = 0, g = 0, r = 0, sent = 0;
        for (uint32_t i = 1; i < h.n; i++) {
            x += t.chunk_us;
            g = fmax(g, x) + ti;
            r += ti;
            sent = fmax(sent, r) + t.chunk_us;
        }
        assert_true(fabs(g - t.dispatch_us) <= 1e-9 * g);
        double combine = fmax(r + ti, sent) + t.last_gather_us;
        assert_true(fabs(combine - t.combine_us) <= 1e-9 * combine);
        double least = fmin(t.inside_us, t.chunk_us - in.alpha_us);
        assert_true(fabs(t.dispatch_apart_us - t.dispatch_us - (h.n - 2) * least) <= 1e-9 * g);
        assert_true(fabs(t.combine_apart_us - t.combine_us - (h.n - 1) * least) <= 1e-9 * combine);
    }
}

/* Four nodes whose port is narrow lose by tensor parallelism inside, two with a wide one win. */
static void hybrid_and_pairwise_per_layer(void **state) {
    (void)state;
    static const struct {
        uint32_t n;
        double tokens;
        const sl_fabric *intra, *inter;
        double apart, fused, pairwise;
    } rows[] = {{2, 4096, &nvlink, &ib, 802, 688, 1763},
                {2, 16, &nvlink, &ib, 57, 56, 365},
                {4, 4096, &hccs_port, &roce, 8059, 6683, 6233},
                {4, 4096, &hccs_mesh, &roce, 2683, 2130, 5132}};
    for (size_t i = 0; i < SL_LEN(rows); i++) {
        double row = 7168 * 2, m = 8;
        sl_hybrid_comm h = {rows[i].n, 8, rows[i].tokens, row,
                            256,       8, rows[i].intra,  rows[i].inter};
        sl_hybrid_times t = sl_hybrid_law(&h);
        double pair = 2 * sl_collective_exchange_two_us(rows[i].intra, rows[i].inter,
                                                        rows[i].tokens / m * 8 * row, rows[i].n, 8);
        pair += sl_collective_gather_us(rows[i].intra, rows[i].tokens * row, 8);
        double apart = t.dispatch_apart_us + t.combine_apart_us,
               fused = t.dispatch_us + t.combine_us;
        print_message("n=%u T=%.0f: %.0f us apart, %.0f fused, %.0f pairwise\n", rows[i].n,
                      rows[i].tokens, apart, fused, pair);
        assert_true(fabs(apart / rows[i].apart - 1) < 0.02);
        assert_true(fabs(fused / rows[i].fused - 1) < 0.02);
        assert_true(fabs(pair / rows[i].pairwise - 1) < 0.04);
    }
}

static void published_collectives_divide_twice(void **state) {
    (void)state;
    assert_true(sl_published_reduce(64, 4) == 2 * 64.0 / 16);
    assert_true(sl_published_exchange(64, 4) == 48);
    sl_fabric plain = {SL_FABRIC_PORT, 0, 1};
    assert_true(sl_collective_reduce_us(&plain, 64, 4) == 2 * 64.0 * 3 / 4);
    assert_true(sl_collective_exchange_us(&plain, 64, 4) == 48);
    assert_true(fabs(sl_expected_groups(160, 6, 8) - 4.46) < 0.01);
    assert_true(fabs(sl_expected_groups(8, 2, 4) - 1.86) < 0.01);
    assert_true(fabs(sl_expected_experts(160, 6, 64) - 146.14) < 0.1);
}

static const sl_mixserve_model qwen = {.layers = 94,
                                       .d_model = 4096,
                                       .heads = 64,
                                       .kv_heads = 4,
                                       .experts = 128,
                                       .top_k = 8,
                                       .d_ff_expert = 1536,
                                       .head_values = 128,
                                       .layer_params = 71.8e6,
                                       .expert_params = 3 * 4096.0 * 1536,
                                       .other_params = 2 * 151936.0 * 4096,
                                       .weight_bytes = 2,
                                       .row_bytes = 8192,
                                       .kv_layer_bytes = 2048,
                                       .kv_shards = 4};

static sl_mixserve_system two_h20(void) {
    return (sl_mixserve_system){.nodes = 2,
                                .per_node = 8,
                                .flops = 0.7 * 148e12,
                                .bandwidth = 0.8 * 4e12,
                                .memory_bytes = 0.9 * 96e9,
                                .stage_us = 10,
                                .intra = nvlink,
                                .inter = ib};
}

static void memory_falls_with_degrees(void **state) {
    (void)state;
    sl_mixserve_load load = {.input = 512, .output = 128, .imbalance = 1};
    double before = INFINITY;
    for (uint32_t ep = 1; ep <= 16; ep *= 2) {
        sl_strategy s = {1, 16, 1, ep, 1};
        double now = sl_mixserve_memory(&qwen, &load, &s, 16);
        assert_true(now < before);
        before = now;
        assert_true(sl_mixserve_memory(&qwen, &load, &s, 32) > now);
    }
    sl_strategy one = {1, 16, 1, 16, 1}, tp = {8, 2, 1, 16, 1}, pp = {8, 1, 1, 8, 2};
    sl_strategy flat = {8, 1, 1, 8, 1};
    assert_true(sl_mixserve_memory(&qwen, &load, &tp, 0) <
                sl_mixserve_memory(&qwen, &load, &one, 0));
    assert_true(sl_mixserve_memory(&qwen, &load, &pp, 0) <
                sl_mixserve_memory(&qwen, &load, &flat, 0));
}

static void waiting_vanishes_without_load(void **state) {
    (void)state;
    assert_true(sl_queue_wait(16, 10, 1e-9, 1) < 1e-9);
    assert_true(isinf(sl_queue_wait(16, 10, 1.6, 1)));
    /* one server: M/M/1 */
    assert_true(fabs(sl_queue_wait(1, 1, 0.5, 1) - 1) < 1e-12);
    double before = 0;
    for (double rate = 0.1; rate < 1.6; rate += 0.1) {
        double now = sl_queue_wait(16, 10, rate, 1);
        assert_true(now > before);
        before = now;
    }
    sl_mixserve_system sys = two_h20();
    sl_mixserve_load load = {.input = 512, .output = 128, .imbalance = 1, .cv2 = 1, .rate = 1e-6};
    sl_strategy s = {8, 2, 8, 2, 1};
    sl_mixserve_result r;
    sl_err err;
    load.slots = 16;
    assert_int_equal(sl_mixserve_evaluate(&qwen, &sys, &load, &s, &r, &err), SL_OK);
    assert_true(r.wait_us < 1e-3 && fabs(r.ttft_us - r.prefill_us) < 1e-3);
    assert_true(r.slots == 16 && r.memory_bytes < r.memory_limit);
    load.rate = 2 * r.capacity;
    assert_int_equal(sl_mixserve_evaluate(&qwen, &sys, &load, &s, &r, &err), SL_ERR_INFEASIBLE);
    assert_non_null(strstr(err.msg, "requests/s"));
    sys.memory_bytes = 1e9;
    assert_int_equal(sl_mixserve_evaluate(&qwen, &sys, &load, &s, &r, &err), SL_ERR_INFEASIBLE);
    assert_non_null(strstr(err.msg, "GB"));
}

typedef struct seen {
    sl_mixserve_system sys;
    uint32_t fits;
} seen;

static bool evaluate(void *ctx, const sl_strategy *s) {
    seen *x = ctx;
    sl_mixserve_load load = {
        .input = 512, .output = 128, .imbalance = 1.2, .cv2 = 1, .fused = true};
    sl_mixserve_result r, apart;
    sl_err err;
    sl_status st = sl_mixserve_evaluate(&qwen, &x->sys, &load, s, &r, &err);
    if (st != SL_OK) {
        assert_int_equal(st, SL_ERR_INFEASIBLE);
        return true;
    }
    x->fits++;
    assert_true(r.memory_bytes <= r.memory_limit && r.itl_us >= r.decode_us * (1 - 1e-9));
    assert_true(r.throughput > 0 && isfinite(r.throughput));
    load.fused = false;
    assert_int_equal(sl_mixserve_evaluate(&qwen, &x->sys, &load, s, &apart, &err), SL_OK);
    assert_true(apart.prefill_us >= r.prefill_us * (1 - 1e-9));
    load.as_published = true;
    st = sl_mixserve_evaluate(&qwen, &x->sys, &load, s, &r, &err);
    assert_true(st == SL_OK || st == SL_ERR_INFEASIBLE);
    return true;
}

static void every_strategy_is_evaluated(void **state) {
    (void)state;
    seen x = {.sys = two_h20()};
    sl_strategy_limits l = sl_mixserve_limits(&qwen, &x.sys);
    uint32_t n = sl_strategy_enumerate(&l, evaluate, &x);
    print_message("%u strategies, %u fit\n", n, x.fits);
    assert_true(n > 50 && x.fits > 10 && x.fits < n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(notation_there_and_back),
        cmocka_unit_test(degrees_fill_the_grid),
        cmocka_unit_test(closed_forms_are_the_recurrences),
        cmocka_unit_test(hybrid_and_pairwise_per_layer),
        cmocka_unit_test(published_collectives_divide_twice),
        cmocka_unit_test(memory_falls_with_degrees),
        cmocka_unit_test(waiting_vanishes_without_load),
        cmocka_unit_test(every_strategy_is_evaluated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
