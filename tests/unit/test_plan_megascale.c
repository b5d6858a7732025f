/* The repaired search of MegaScale-Infer: its batch is the largest, its choice the best of all, its
 * arithmetic the tables'. */
#include "plan/megascale.h"

#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static const sl_megascale_model mixtral = {56, 6144, 8, 2, 16384, 32768, 6};
static const sl_megascale_model dbrx = {40, 6144, 16, 4, 10752, 100352, 6};
static const sl_megascale_model scaled = {48, 8192, 32, 4, 8192, 32000, 8};

/* Table 3, and section 7.1 for the networks. */
static const sl_megascale_device table3[] = {
    {"A800", 2.26, 80e9, 2039e9, 312e12, 25e9, 200e9},
    {"H20", 1.85, 96e9, 4096e9, 148e12, 25e9, 450e9},
    {"L40S", 1.08, 48e9, 864e9, 362e12, 12.5e9, 32e9},
};

/* Figure 13: more attention nodes raise throughput until they wait for the experts. */
static void attention_nodes_help_up_to_eight(void **state) {
    (void)state;
    static const struct {
        uint32_t nodes;
        double tpot_ms, per_gpu;
    } rows[] = {{1, 44.1, 384},  {2, 44.2, 724},   {4, 44.3, 1300},
                {8, 48.3, 1987}, {16, 86.0, 1674}, {32, 169.7, 1132}};
    sl_megascale_options o = sl_megascale_defaults();
    for (size_t i = 0; i < SL_LEN(rows); i++) {
        sl_megascale_plan p = {.tp_a = 1, .tp_e = 1, .nodes = rows[i].nodes, .lanes = 3};
        p.micro = 96;
        sl_megascale_evaluate(&dbrx, table3, &o, &p);
        double per_gpu = p.throughput / (rows[i].nodes + dbrx.experts);
        print_message("%2u nodes: %.1f ms, %.0f tok/s a GPU\n", rows[i].nodes, p.tpot_us / 1e3,
                      per_gpu);
        assert_true(fabs(p.tpot_us / 1e3 / rows[i].tpot_ms - 1) < 0.005);
        assert_true(fabs(per_gpu / rows[i].per_gpu - 1) < 0.005);
    }
}

static sl_megascale_plan best_on(const sl_megascale_model *m, uint32_t attn, uint32_t expert) {
    sl_megascale_options o = sl_megascale_defaults();
    sl_megascale_device pair[2] = {table3[attn], table3[expert]};
    sl_megascale_plan best = {0}, p = {.attn_device = 0, .expert_device = 1};
    for (p.tp_a = 1; p.tp_a <= 8; p.tp_a *= 2) {
        for (p.tp_e = 1; p.tp_e <= 8; p.tp_e *= 2) {
            if (sl_megascale_attn_bytes(m, &o) >= p.tp_a * pair[0].memory_bytes) continue;
            if (sl_megascale_expert_bytes(m, &o) >= p.tp_e * pair[1].memory_bytes) continue;
            for (p.nodes = 1; p.nodes <= o.nodes_max; p.nodes++) {
                for (p.lanes = 1; p.lanes <= o.lanes_max; p.lanes++) {
                    if (sl_megascale_fill_batch(m, pair, &o, &p) && p.per_cost > best.per_cost)
                        best = p;
                }
            }
        }
    }
    return best;
}

/* H20 for attention and L40S for experts beats either alone. */
static void mixed_hardware_wins(void **state) {
    (void)state;
    static const struct {
        const sl_megascale_model *m;
        double mixed, h20, l40s;
    } rows[] = {{&mixtral, 1269, 641, 1120}, {&dbrx, 1937, 719, 1761}, {&scaled, 1424, 561, 1166}};
    for (size_t i = 0; i < SL_LEN(rows); i++) {
        double mixed = best_on(rows[i].m, 1, 2).per_cost;
        double h20 = best_on(rows[i].m, 1, 1).per_cost;
        double l40s = best_on(rows[i].m, 2, 2).per_cost;
        print_message("model %zu: %.0f, all H20 %.0f, all L40S %.0f tok/s per cost\n", i, mixed,
                      h20, l40s);
        assert_true(mixed > l40s && l40s > h20);
        assert_true(fabs(mixed / rows[i].mixed - 1) < 0.1);
        assert_true(fabs(h20 / rows[i].h20 - 1) < 0.1);
        assert_true(fabs(l40s / rows[i].l40s - 1) < 0.1);
    }
}

static void search_finds_the_best_pair(void **state) {
    (void)state;
    sl_megascale_options o = sl_megascale_defaults();
    sl_megascale_plan found;
    sl_err err;
    assert_int_equal(sl_megascale_search(&dbrx, table3, 3, &o, &found, &err), SL_OK);
    double best = 0;
    for (uint32_t a = 0; a < 3; a++)
        for (uint32_t e = 0; e < 3; e++) best = fmax(best, best_on(&dbrx, a, e).per_cost);
    assert_true(fabs(found.per_cost - best) <= 1e-9 * best);
    assert_string_equal(table3[found.attn_device].name, "H20");
    assert_string_equal(table3[found.expert_device].name, "L40S");
}

static void batch_is_the_largest(void **state) {
    (void)state;
    uint64_t rng = 5;
    const sl_megascale_model *models[] = {&mixtral, &dbrx, &scaled};
    int by_memory = 0, by_slo = 0;
    for (int n = 0; n < 2000; n++) {
        const sl_megascale_model *m = models[sl_rng_below(&rng, 3)];
        sl_megascale_options o = sl_megascale_defaults();
        o.slo_us = 2e4 + (double)sl_rng_below(&rng, 200000);
        o.imbalance = 1 + (double)sl_rng_below(&rng, 100) / 100;
        sl_megascale_plan p = {.attn_device = (uint32_t)sl_rng_below(&rng, 3),
                               .expert_device = (uint32_t)sl_rng_below(&rng, 3),
                               .tp_a = 1u << sl_rng_below(&rng, 4),
                               .tp_e = 1u << sl_rng_below(&rng, 4),
                               .nodes = 1 + (uint32_t)sl_rng_below(&rng, 20),
                               .lanes = 1 + (uint32_t)sl_rng_below(&rng, 4)};
        uint64_t most = sl_megascale_memory_batch(m, table3, &o, &p);
        sl_megascale_plan q = p;
        if (!sl_megascale_fill_batch(m, table3, &o, &p)) continue;
        assert_true(p.tpot_us <= o.slo_us && p.micro <= most);
        if (p.micro < most) {
            q.micro = p.micro + 1;
            sl_megascale_evaluate(m, table3, &o, &q);
            assert_true(q.tpot_us > o.slo_us);
            assert_false(p.memory_bound);
            by_slo++;
        } else {
            by_memory++;
        }
        double before = 0;
        for (q.micro = 1; q.micro < 2 * p.micro; q.micro += 1 + q.micro / 8) {
            sl_megascale_evaluate(m, table3, &o, &q);
            assert_true(q.tpot_us >= before);
            before = q.tpot_us;
        }
    }
    assert_true(by_memory > 100 && by_slo > 100);
}

/* Table 4: three matrices an expert give the stated totals, two do not. */
static void totals_are_table_4s(void **state) {
    (void)state;
    const sl_megascale_model *models[] = {&mixtral, &dbrx, &scaled};
    static const double stated[] = {141e9, 132e9, 317e9};
    sl_megascale_options o = sl_megascale_defaults(), published = o;
    published.as_published = true;
    for (int i = 0; i < 3; i++) {
        const sl_megascale_model *m = models[i];
        double three =
            (sl_megascale_expert_bytes(m, &o) * m->experts + sl_megascale_attn_bytes(m, &o)) / 2;
        double two = sl_megascale_expert_bytes(m, &published) * m->experts +
                     sl_megascale_attn_bytes(m, &published);
        assert_true(fabs(three / stated[i] - 1) < 0.02);
        assert_true(two < 0.72 * stated[i]);
    }
    assert_true(sl_megascale_kv_bytes(&dbrx) == 4.0 * 6144 * 40 / 6);
}

static void infeasible_says_what_lacks(void **state) {
    (void)state;
    sl_megascale_options o = sl_megascale_defaults();
    sl_megascale_plan p;
    sl_err err;
    o.slo_us = 1000;
    assert_int_equal(sl_megascale_search(&dbrx, table3, 3, &o, &p, &err), SL_ERR_INFEASIBLE);
    assert_non_null(strstr(err.msg, "the fastest"));
    sl_megascale_device small = table3[2];
    small.memory_bytes = 1e9;
    assert_int_equal(sl_megascale_search(&dbrx, &small, 1, &o, &p, &err), SL_ERR_INFEASIBLE);
    assert_non_null(strstr(err.msg, "GB more"));
}

static void skew_costs_less_with_replicas(void **state) {
    (void)state;
    double a[16], one, two;
    sl_err err;
    for (int e = 0; e < 16; e++) a[e] = exp(-0.3 * e);
    assert_int_equal(sl_megascale_imbalance(a, 16, 16, 1, &one, &err), SL_OK);
    assert_int_equal(sl_megascale_imbalance(a, 16, 16, 2, &two, &err), SL_OK);
    assert_true(one > 3 && two < 1.1 && two >= 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_nodes_help_up_to_eight),
        cmocka_unit_test(mixed_hardware_wins),
        cmocka_unit_test(search_finds_the_best_pair),
        cmocka_unit_test(batch_is_the_largest),
        cmocka_unit_test(totals_are_table_4s),
        cmocka_unit_test(infeasible_says_what_lacks),
        cmocka_unit_test(skew_costs_less_with_replicas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
