/* --device auto: a step on other devices follows from what these cost, and the fastest is taken. */
#include "engine/measure/devices.h"

#include "format/plan_gpu.h"
#include "format/plan_json.h"
#include "model/model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static const char folder[] = SL_SOURCE_DIR "/tests/golden/qwen3moe-tiny";
static sl_model_spec spec;

static sl_plan plan_on(uint32_t attention, uint32_t experts, const char *of_attention,
                       const char *of_experts) {
    sl_plan p;
    sl_err err;
    assert_int_equal(sl_model_read_spec(folder, &spec, NULL, &err), SL_OK);
    assert_int_equal(sl_plan_local(&spec, attention, experts, &p, &err), SL_OK);
    sl_status st = sl_plan_set_devices("--device", SL_DEVICES_OF_ATTENTION, of_attention, &p, &err);
    if (st == SL_OK && experts)
        st = sl_plan_set_devices("--device", SL_DEVICES_OF_EXPERTS, of_experts, &p, &err);
    if (st != SL_OK) fail_msg("%s", err.msg);
    p.threads = 1;
    if (experts) sl_plan_set_schedule(&p, SL_SCHED_DEP);
    return p;
}

/* Times that no number of rows changes. */
static sl_kind_costs kind(double attention_us, double expert_us, double head_us, double copy_us) {
    sl_kind_costs k = {.copies = {.alpha_us = copy_us}};
    k.costs.stage[SL_COST_ATTENTION].fixed_us = attention_us;
    k.costs.stage[SL_COST_EXPERT].fixed_us = expert_us;
    k.costs.stage[SL_COST_HEAD].fixed_us = head_us;
    k.costs.stage[SL_COST_DENSE].fixed_us = 7;
    return k;
}

static sl_devices_step step_of(sl_plan *p, const sl_kind_costs *attention,
                               const sl_kind_costs *expert, double link_us, uint32_t requests,
                               bool open) {
    const sl_link_cost link = {.alpha_us = link_us};
    const sl_costs c = sl_devices_costs(p, attention, expert, &link);
    sl_devices_step s;
    sl_err err;
    sl_status st = sl_devices_predict(&c, &spec, requests, open, p, &s, &err);
    if (st != SL_OK) fail_msg("%s", err.msg);
    assert_int_equal(sl_plan_check(p, &spec, &err), SL_OK);
    return s;
}

static void about(double got, double want) {
    if (fabs(got / want - 1) > 1e-6) fail_msg("%.9g instead of %.9g", got, want);
}

static void a_step_is_all_that_it_waits_for(void **state) {
    (void)state;
    const sl_kind_costs cpu = kind(100, 20, 50, 0), gpu = kind(10, 5, 9, 3);
    sl_plan p = plan_on(0, 0, "cpu", "");
    const double dense = spec.n_layers - spec.n_moe, moe = spec.n_moe, k = spec.top_k;
    sl_devices_step s = step_of(&p, &cpu, &cpu, 1000, 1, false);
    about(s.us, moe * (100 + k * 20) + dense * 107 + 50); /* nothing travels */
    about(s.tokens_per_s, 1e6 / s.us);
    sl_plan_free(&p);
    p = plan_on(1, 1, "cuda:0", "cpu");
    s = step_of(&p, &gpu, &cpu, 1, 1, false);
    about(s.us, moe * (10 + k * 20 + 2 * (1 + 3)) + dense * 17 + 9);
    sl_plan_free(&p);
    p = plan_on(1, 1, "cuda:0", "cuda:1"); /* copied at both ends */
    s = step_of(&p, &gpu, &gpu, 1, 1, false);
    about(s.us, moe * (10 + k * 5 + 2 * (1 + 3 + 3)) + dense * 17 + 9);
    sl_plan_free(&p);
}

static void requests_of_all_attention_workers_count(void **state) {
    (void)state;
    const sl_kind_costs gpu = kind(10, 5, 9, 3);
    sl_plan p = plan_on(2, 2, "cuda:0,cuda:1", "cuda:0");
    sl_devices_step s = step_of(&p, &gpu, &gpu, 1, 6, false);
    assert_int_equal(s.schedule.rows[0], 3); /* of one of two */
    about(s.tokens_per_s, 6e6 / s.us);
    sl_plan_free(&p);
}

/* An open schedule is one that --schedule auto would take, and it is no slower. */
static void an_open_schedule_is_chosen(void **state) {
    (void)state;
    sl_kind_costs even = kind(0, 0, 1, 0);
    even.costs.stage[SL_COST_ATTENTION].row_us = 1000;
    even.costs.stage[SL_COST_EXPERT].row_us = 1000.0 / spec.top_k;
    sl_plan p = plan_on(1, 1, "cuda:0", "cuda:1");
    const sl_devices_step simple = step_of(&p, &even, &even, 1, 32, false);
    assert_int_equal(p.schedule, SL_SCHED_DEP);
    assert_false(p.has_costs);
    const sl_devices_step best = step_of(&p, &even, &even, 1, 32, true);
    assert_int_equal(p.schedule, SL_SCHED_PINGPONG);
    assert_true(p.has_costs && best.us < simple.us);
    sl_plan_free(&p);
}

/* Who shares this machine's cores with others waits for them outside blocks with experts, too. */
static void cores_are_shared(void **state) {
    (void)state;
    const sl_kind_costs heads = kind(0, 0, 1000, 0);
    sl_plan p = plan_on(64, 0, "cpu", "");
    p.threads = 64;
    const sl_devices_step cpus = step_of(&p, &heads, &heads, 0, 64, false);
    assert_true(cpus.us > 1500);
    sl_plan_free(&p);
    p = plan_on(64, 0, "cuda:0", "");
    p.threads = 64;
    const sl_devices_step gpus = step_of(&p, &heads, &heads, 0, 64, false);
    assert_true(gpus.us < 1500);
    sl_plan_free(&p);
}

static uint32_t fastest_of(const sl_kind_costs *cpu, const sl_kind_costs *gpu,
                           sl_devices_step step[3]) {
    sl_plan p[] = {plan_on(0, 0, "cpu", ""), plan_on(0, 0, "cuda:0", ""),
                   plan_on(1, 1, "cuda:0", "cpu")};
    const sl_kind_costs *const attention[] = {cpu, gpu, gpu}, *const expert[] = {cpu, gpu, cpu};
    for (uint32_t i = 0; i < SL_LEN(p); i++) {
        step[i] = step_of(&p[i], attention[i], expert[i], 1, 1, i == 2);
        sl_plan_free(&p[i]);
    }
    return sl_devices_fastest(step, 3, false);
}

static void the_fastest_follows_from_the_costs(void **state) {
    (void)state;
    sl_devices_step step[3];
    const sl_kind_costs cpu = kind(100, 20, 50, 0), fast = kind(10, 5, 9, 3);
    const sl_kind_costs slow = kind(300, 90, 80, 3), halves = kind(10, 90, 9, 3);
    const sl_kind_costs far = kind(90, 90, 40, 300); /* copies cost what attention saves */
    assert_int_equal(fastest_of(&cpu, &fast, step), 1);
    assert_int_equal(fastest_of(&cpu, &slow, step), 0);
    assert_int_equal(fastest_of(&cpu, &halves, step), 2);
    assert_int_equal(fastest_of(&cpu, &far, step), 0);
    uint64_t draw = 1;
    for (int i = 0; i < 200; i++) {
        double us[8];
        for (int j = 0; j < 8; j++) {
            draw = draw * 6364136223846793005u + 1442695040888963407u;
            us[j] = 1 + (double)(draw >> 33 & 1023);
        }
        const sl_kind_costs a = kind(us[0], us[1], us[2], 0), b = kind(us[3], us[4], us[5], us[6]);
        const uint32_t best = fastest_of(&a, &b, step);
        for (uint32_t c = 0; c < 3; c++)
            assert_true(step[best].tokens_per_s >= step[c].tokens_per_s);
    }
}

static void what_cannot_be_is_not_taken(void **state) {
    (void)state;
    sl_devices_step step[3] = {{.tokens_per_s = 0}, {.tokens_per_s = 2}, {.tokens_per_s = 2}};
    assert_int_equal(sl_devices_fastest(step, 3, false), 1); /* of equal ones the first */
    step[1].tokens_per_s = 0;
    assert_int_equal(sl_devices_fastest(step, 3, false), 2);
    assert_int_equal(sl_devices_fastest(step, 1, false), 1);
    sl_plan p = plan_on(0, 0, "cpu", "");
    const sl_costs nothing = {0};
    sl_err err;
    assert_int_equal(sl_devices_predict(&nothing, &spec, 1, false, &p, step, &err), SL_ERR_ARG);
    sl_plan_free(&p);
}

/* Among those that decode as fast the one whose prompts are fastest, where that is asked. */
static void prompts_decide_among_equals(void **state) {
    (void)state;
    sl_devices_step step[4] = {{.tokens_per_s = 98, .prompt_tokens_per_s = 500},
                               {.tokens_per_s = 100, .prompt_tokens_per_s = 40},
                               {.tokens_per_s = 99, .prompt_tokens_per_s = 400},
                               {.tokens_per_s = 90, .prompt_tokens_per_s = 9000}};
    assert_int_equal(sl_devices_fastest(step, 4, false), 1);
    assert_int_equal(sl_devices_fastest(step, 4, true), 0);
    step[0].tokens_per_s = 0;
    assert_int_equal(sl_devices_fastest(step, 4, true), 2);
    assert_int_equal(sl_devices_fastest(step, 0, true), 0);
}

/* Copies of weights take as long for a prompt as for a row; where they take less than products do,
 * nothing. */
static void copied_experts_cost_their_copies(void **state) {
    (void)state;
    sl_kind_costs gpu = kind(10, 5, 9, 3);
    gpu.copies.byte_us = 1e-3;
    const sl_kind_costs slow = sl_devices_offloaded(&gpu, 100000);
    const sl_kind_costs same = sl_devices_offloaded(&gpu, 0);
    assert_true(slow.costs.stage[SL_COST_EXPERT].floor_us == 100);
    assert_true(same.costs.stage[SL_COST_EXPERT].floor_us ==
                gpu.costs.stage[SL_COST_EXPERT].floor_us);
    sl_plan p = plan_on(0, 0, "cuda:0", "");
    const sl_devices_step there = step_of(&p, &gpu, &gpu, 0, 1, false);
    const sl_devices_step copied = step_of(&p, &slow, &slow, 0, 1, false);
    assert_true(copied.us > there.us && copied.prompt_tokens_per_s < there.prompt_tokens_per_s);
    /* a token of a prompt loses less by it than one that is decoded */
    assert_true(1 / copied.prompt_tokens_per_s - 1 / there.prompt_tokens_per_s <
                1 / copied.tokens_per_s - 1 / there.tokens_per_s);
    sl_plan_free(&p);
}

/* All that a step is made of is measured, of processors no copies. */
static void processors_are_measured(void **state) {
    (void)state;
    sl_kind_costs k;
    sl_err err;
    sl_plan p = plan_on(0, 0, "cpu", "");
    const sl_device_spec device = sl_plan_device_of(&p, 0);
    const sl_measure_opts o = {.model_folder = folder,
                               .m = &spec,
                               .threads = 1,
                               .device = &device,
                               .rows = 64,
                               .keys = 128};
    assert_int_equal(sl_measure_kind(&o, &k, &err), SL_OK);
    static const sl_cost_kind there[] = {SL_COST_ATTENTION, SL_COST_ROUTER, SL_COST_EXPERT,
                                         SL_COST_HEAD};
    for (size_t i = 0; i < SL_LEN(there); i++)
        assert_true(k.costs.stage[there[i]].floor_us > 0 && k.costs.stage[there[i]].row_us > 0);
    assert_true((k.costs.stage[SL_COST_DENSE].floor_us > 0) == (spec.n_moe < spec.n_layers));
    assert_true(k.copies.alpha_us == 0 && k.copies.byte_us == 0);
    sl_plan_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_all_that_it_waits_for),
        cmocka_unit_test(requests_of_all_attention_workers_count),
        cmocka_unit_test(an_open_schedule_is_chosen),
        cmocka_unit_test(cores_are_shared),
        cmocka_unit_test(the_fastest_follows_from_the_costs),
        cmocka_unit_test(what_cannot_be_is_not_taken),
        cmocka_unit_test(prompts_decide_among_equals),
        cmocka_unit_test(copied_experts_cost_their_copies),
        cmocka_unit_test(processors_are_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
