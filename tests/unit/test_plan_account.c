/* Counts against two sources: what transformers 4.57.6 says of the same hyper-parameters (sum of
 * numel() over parameters on the meta device, plus e_score_correction_bias, which it keeps as a
 * buffer), and the totals that the models' makers publish. */
#include "format/presets.h"
#include "plan/account.h"
#include "plan/lengths.h"
#include "plan/roofline.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

typedef struct sl_published {
    const char *name;
    uint64_t exact;           /* transformers; 0: no class there */
    double total_b, active_b; /* makers, billions; active 0: not published */
    double slack;             /* half a unit of their last digit, billions */
} sl_published;

static const sl_published published[] = {
    {"mixtral-8x7b", 46702792704, 46.7, 12.9, 0.05},
    {"mixtral-16e-top1", 0, 0, 0, 0},
    {"mixtral-8x22b", 140630071296, 140.6, 39.1, 0.07},
    {"dbrx", 131596523520, 132, 36, 0.5},
    {"scaled-moe", 0, 317, 0, 0.5},
    {"arctic", 0, 480, 17, 2},
    {"deepseek-v2", 235741434880, 235.7, 21.4, 0.05},
    {"deepseek-v2-lite", 0, 15.7, 2.7, 0.05},
    {"deepseek-v3", 671026419200, 671, 37, 0.6},
    {"deepseek-r1", 671026419200, 671, 37, 0.6},
    {"qwen3-30b-a3b", 30532122624, 30.5, 3.3, 0.06},
    {"qwen3-235b-a22b", 235093634560, 235, 22, 0.5},
    {"qwen3-next-80b-a3b", 79674391296, 80, 0, 0.5},
    {"qwen2-57b-a14b", 57408658944, 57.4, 14.2, 0.05},
    {"llama4-scout", 107769861120, 0, 17, 0.5},
    {"llama4-maverick", 400711848960, 400, 17, 1},
    {"gpt-oss-20b", 20914757184, 20.91, 0, 0.005},
    {"gpt-oss-120b", 116829156672, 116.83, 0, 0.005},
    {"glm-4.5", 352797829024, 0, 0, 0},
    {"glm-4.5-air", 0, 106, 0, 1},
};

static void totals_are_the_published_ones(void **state) {
    (void)state;
    size_t n = 0;
    for (; sl_preset_model_name(n); n++) {
    }
    assert_int_equal(n, SL_LEN(published));
    for (size_t i = 0; i < n; i++) {
        const sl_published *w = &published[i];
        const sl_shape *s = sl_preset_model(w->name);
        assert_non_null(s);
        sl_params p = sl_account_params(s);
        if (w->exact) assert_true(p.total == w->exact);
        if (w->total_b > 0) assert_true(fabs((double)p.total / 1e9 - w->total_b) <= w->slack);
        if (w->active_b > 0) assert_true(fabs((double)p.active / 1e9 - w->active_b) <= w->slack);
    }
}

static void active_without_embedding_is_what_gpt_oss_counts(void **state) {
    (void)state;
    sl_params p = sl_account_params(sl_preset_model("gpt-oss-120b"));
    assert_true(fabs((double)(p.active - p.embedding) / 1e9 - 5.13) < 0.005);
    p = sl_account_params(sl_preset_model("gpt-oss-20b"));
    assert_true(fabs((double)(p.active - p.embedding) / 1e9 - 3.61) < 0.005);
}

/* As docs/speculation.md has them, counted by hand: what attention workers have besides. */
static void bytes_of_the_block_that_guesses(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double gb;
    } rows[] = {{"deepseek-v3", 11.61}, {"glm-4.5", 7.98}, {"glm-4.5-air", 4.75}, {"dbrx", 0}};
    for (size_t i = 0; i < SL_LEN(rows); i++) {
        const sl_footprint f = sl_account_footprint(sl_preset_model(rows[i].name));
        if (fabs(f.block / 1e9 - rows[i].gb) > 0.01)
            fail_msg("%s: %.2f GB", rows[i].name, f.block / 1e9);
        assert_true((f.block > 0) == (f.block_kv_token > 0));
    }
    const sl_shape *v3 = sl_preset_model("deepseek-v3");
    assert_true(sl_account_footprint(v3).block_kv_token == 1152);
}

/* Of 36 blocks: two versions of the three rows before the convolution and of 32 states of 128 by
 * 128, and 17 rows of what they are made of. */
static void bytes_of_a_request_without_keys(void **state) {
    (void)state;
    const sl_footprint f = sl_account_footprint(sl_preset_model("qwen3-next-80b-a3b"));
    const double version = 3 * 8192 + 32 * 128 * 128, log = 17 * (8192 + 64);
    assert_true(f.state == 36 * 4 * 2 * version);
    assert_true(f.guessed_state == 36 * 4 * (2 * version + log));
    assert_true(sl_account_footprint(sl_preset_model("dbrx")).guessed_state == 0);
}

/* FinDEP specification, section 5: bytes of KV a token and layer; weights of the two groups. */
static void bytes_of_findep(void **state) {
    (void)state;
    const sl_shape *v2 = sl_preset_model("deepseek-v2"), *q = sl_preset_model("qwen3-235b-a22b");
    sl_footprint f = sl_account_footprint(v2);
    assert_true(f.kv_token / v2->n_layers == 1152);
    assert_true(sl_account_footprint(q).kv_token / q->n_layers == 2048);
    /* 27 of 160 experts on one of 6 workers, 8 routed blocks: 10.2 GB. */
    assert_true(fabs(f.expert * 8 * 27 / 1e9 - 10.2) < 0.05);
}

static void tensor_parallel_splits(void **state) {
    (void)state;
    const sl_shape *s = sl_preset_model("mixtral-8x22b");
    sl_account_opts one = {.tp = 1, .activation_bytes = 2}, four = {.tp = 4, .activation_bytes = 2};
    for (int k = 0; k < SL_COST_COUNT; k++) {
        sl_stage_work a = sl_account_stage(s, (sl_cost_kind)k, 96, 96 * 700, &one);
        sl_stage_work b = sl_account_stage(s, (sl_cost_kind)k, 96, 96 * 700, &four);
        double share = k == SL_COST_ROUTER ? 1 : 4; /* every rank routes every row */
        assert_true(fabs(a.flops - share * b.flops) <= 1e-9 * a.flops);
        assert_true(fabs(a.weight_bytes - share * b.weight_bytes) <= 1e-9 * a.weight_bytes);
        assert_true(a.reduce_bytes == 0);
        bool sums = k == SL_COST_ATTENTION || k == SL_COST_EXPERT;
        assert_true(b.reduce_bytes == (sums ? 96.0 * 6144 * 2 : 0));
    }
    /* 8 key and value heads over 16 devices: each is kept twice. */
    sl_account_opts wide = {.tp = 16, .activation_bytes = 2};
    sl_stage_work w = sl_account_stage(s, SL_COST_ATTENTION, 1, 1000, &wide);
    assert_true(w.key_bytes == 1000.0 * 2 * 128 * 2);
}

static void flops_of_a_token_are_twice_the_active_matrices(void **state) {
    (void)state;
    for (size_t i = 0; sl_preset_model_name(i); i++) {
        const sl_shape *s = sl_preset_model(sl_preset_model_name(i));
        sl_params p = sl_account_params(s);
        double states = 6.0 * s->n_linear_layers * s->delta_state; /* a token's way through them */
        double flops = sl_account_token_flops(s, 0, false) - states;
        double want = 2.0 * (double)(p.active - p.embedding);
        assert_true(flops <= want && flops > 0.998 * want); /* biases and norms are not products */
    }
    /* Latent attention: a key costs 2 heads (2 * 512 + 64) when it is read, 2 heads (192 + 128)
     * when it is expanded. */
    const sl_shape *v3 = sl_preset_model("deepseek-v3");
    double zero = sl_account_token_flops(v3, 0, false);
    assert_true(sl_account_token_flops(v3, 100, false) - zero == 61.0 * 100 * 2 * 128 * 1088);
    assert_true(sl_account_token_flops(v3, 100, true) - zero == 61.0 * 100 * 2 * 128 * 320);
}

static void roofline_by_hand(void **state) {
    (void)state;
    const sl_shape *s = sl_preset_model("mixtral-8x22b");
    const sl_device_type *d = sl_preset_device("L40S");
    sl_roofline r = {.device = d, .compute = SL_COMPUTE_BF16, .work = {1, 2, false}};
    double weights = 3.0 * 6144 * 16384 * 2, read_us = weights / (864e9 * 0.8) * 1e6;
    sl_link_tier link = {.bandwidth = 25e9, .latency_us = 10, .half_bytes = 131072};
    sl_costs c = sl_roofline_costs(s, &r, &link);
    assert_true(c.estimated);
    assert_true(fabs(c.stage[SL_COST_EXPERT].floor_us - read_us) < 1e-9 * read_us);
    double row_us = 2.0 * 3 * 6144 * 16384 / (362e12 * 0.7) * 1e6;
    assert_true(fabs(c.stage[SL_COST_EXPERT].row_us - row_us) < 1e-9 * row_us);
    /* be* = F ef / (BW eb): rows from which on an expert is bound by its operations */
    double knee = sl_stage_cost_knee(&c.stage[SL_COST_EXPERT]);
    assert_true(fabs(knee - 362e12 * 0.7 / (864e9 * 0.8)) < 1e-6 * knee);
    assert_true(c.stage[SL_COST_DENSE].row_us == 0 && c.stage[SL_COST_SHARED].fixed_us == 0);
    double us = sl_link_cost_us(&c.link, 131072);
    assert_true(fabs(us - (10 + 2 * 131072 / 25e9 * 1e6)) < 1e-9 * us);
    assert_true(sl_link_cost_us(&c.link, 0) == 10);
    /* The four numbers never undercut the formula but for activations below the knee (5 %). */
    for (int k = 0; k < SL_COST_COUNT; k++) {
        for (double rows = 1; rows <= 4096; rows *= 2) {
            double exact = sl_roofline_stage_us(s, &r, (sl_cost_kind)k, rows, rows * 600);
            double four = sl_stage_cost_us(&c.stage[k], rows, rows * 600);
            assert_true(four >= 0.95 * exact - 1e-9 && four <= 2 * exact + 1e-9);
        }
    }
}

static void device_without_units_uses_wider_ones(void **state) {
    (void)state;
    const sl_device_type *a100 = sl_preset_device("a100");
    assert_true(sl_roofline_flops(a100, SL_COMPUTE_FP8) == 312e12 * 0.7);
    sl_device_type cpu = {.flops = {1e12}, .flops_efficiency = 0.5};
    assert_true(sl_roofline_flops(&cpu, SL_COMPUTE_INT8) == 0.5e12);
}

static void lengths(void **state) {
    (void)state;
    sl_length fixed = {.kind = SL_LENGTH_FIXED, .low = 7, .high = 7};
    assert_true(sl_length_mean(&fixed) == 7 && sl_length_p95(&fixed) == 7);
    sl_length even = {.kind = SL_LENGTH_UNIFORM, .low = 1, .high = 100};
    assert_true(sl_length_mean(&even) == 50.5);
    assert_int_equal(sl_length_p95(&even), 95);
    assert_int_equal(sl_length_quantile(&even, 0), 1);
    assert_int_equal(sl_length_quantile(&even, 1), 100);
    uint32_t seen[] = {1, 2, 3, 1000};
    sl_length trace = {.kind = SL_LENGTH_TRACE, .sorted = seen, .n = 4};
    assert_true(sl_length_mean(&trace) == 251.5);
    assert_int_equal(sl_length_quantile(&trace, 0.75), 3);
    assert_int_equal(sl_length_p95(&trace), 1000);
    sl_length l = {
        .kind = SL_LENGTH_LOGNORMAL, .low = 1, .high = 4096, .median = 500, .sigma = 1.2};
    double sum = 0, n = 200000;
    for (int i = 0; i < n; i++) sum += sl_length_quantile(&l, (i + 0.5) / n);
    assert_true(fabs(sum / n - sl_length_mean(&l)) < 0.5);
    assert_int_equal(sl_length_quantile(&l, 0.5), 500);
    l.sigma = 0;
    assert_true(sl_length_mean(&l) == 500 && sl_length_p95(&l) == 500);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(totals_are_the_published_ones),
        cmocka_unit_test(active_without_embedding_is_what_gpt_oss_counts),
        cmocka_unit_test(bytes_of_the_block_that_guesses),
        cmocka_unit_test(bytes_of_a_request_without_keys),
        cmocka_unit_test(bytes_of_findep),
        cmocka_unit_test(tensor_parallel_splits),
        cmocka_unit_test(flops_of_a_token_are_twice_the_active_matrices),
        cmocka_unit_test(roofline_by_hand),
        cmocka_unit_test(device_without_units_uses_wider_ones),
        cmocka_unit_test(lengths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
