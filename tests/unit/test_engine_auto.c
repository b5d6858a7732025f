/* --schedule auto: what it measures is sane and quick, what it chooses follows from the costs. */
#include "engine/measure/auto.h"

#include "base/clock.h"
#include "engine/measure/measure.h"
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

static sl_plan local_plan(uint32_t attention, uint32_t experts) {
    sl_plan p;
    sl_err err;
    sl_generation_spec gen;
    assert_int_equal(sl_model_read_spec(folder, &spec, &gen, &err), SL_OK);
    assert_int_equal(sl_plan_local(&spec, attention, experts, &p, &err), SL_OK);
    p.threads = 1;
    p.context = 256;
    p.n_pages = 512;
    return p;
}

static sl_auto_report choose(sl_plan *p, uint32_t requests, bool here) {
    sl_auto_report r;
    sl_err err;
    const sl_auto_opts o = {.model_folder = folder,
                            .m = &spec,
                            .transport = "loop",
                            .here = here,
                            .requests = requests};
    assert_int_equal(sl_plan_check(p, &spec, &err), SL_OK);
    sl_status st = sl_plan_auto(&o, p, &r, &err);
    if (st != SL_OK) fail_msg("%s", err.msg);
    assert_int_equal(sl_plan_check(p, &spec, &err), SL_OK);
    assert_true(r.why[0] != 0);
    return r;
}

static void measures_quickly(void **state) {
    (void)state;
    sl_plan p = local_plan(1, 1);
    sl_costs c = {0};
    sl_err err;
    const sl_measure_opts o = {
        .model_folder = folder, .m = &spec, .threads = 2, .roles = 3, .rows = 512, .keys = 128};
    uint64_t began_ns = sl_now_ns();
    assert_int_equal(sl_measure_stages(&o, &c, &err), SL_OK);
    assert_int_equal(sl_measure_link("loop", 65536, 0, 0, &c.link, &err), SL_OK);
    double s = (double)(sl_now_ns() - began_ns) / 1e9;
    print_message("measured in %.3f s\n", s);
    assert_true(s < 5); /* 2 on a machine with nothing else to do */
    static const sl_cost_kind kinds[] = {SL_COST_ATTENTION, SL_COST_ROUTER, SL_COST_EXPERT};
    for (size_t i = 0; i < SL_LEN(kinds); i++) {
        const sl_stage_cost *k = &c.stage[kinds[i]];
        assert_true(k->floor_us > 0 && k->row_us > 0 && k->key_us >= 0);
        assert_true(isfinite(sl_stage_cost_us(k, 512, 512 * 128)));
    }
    assert_true(c.link.alpha_us > 0 && c.link.byte_us >= 0);
    sl_plan_free(&p);
}

/* Nothing runs so long: beside it, whatever the link takes on a busy machine is nothing. */
#define TIME_SCALE 2000

/* 2 s of attention against 2 s of experts. */
static void emulate(sl_plan *p, double attention_us, double expert_us) {
    p->device = (sl_device_spec){.kind = SL_DEVICE_EMULATED, .time_scale = TIME_SCALE};
    p->device.cost[SL_COST_ATTENTION].row_us = attention_us;
    p->device.cost[SL_COST_EXPERT].row_us = expert_us;
}

static void known_costs_decide(void **state) {
    (void)state;
    sl_plan p = local_plan(1, 1);
    emulate(&p, 1000, 1000.0 / spec.top_k);
    sl_auto_report r = choose(&p, 0, true);
    assert_true(r.measured && p.schedule == SL_SCHED_PINGPONG && p.lanes == 2);
    /* All rows of a block: as many times 2 s as there are, whatever the link took. */
    assert_true(fabs(r.choice.decode_us / (p.max_num_seqs * 1000.0 * TIME_SCALE) - 1) < 0.05);
    sl_plan_free(&p);
    p = local_plan(1, 1);
    emulate(&p, 1000, 1000.0 / spec.top_k);
    choose(&p, 1, true); /* one request has one lane */
    assert_int_equal(p.lanes, 1);
    sl_plan_free(&p);
    p = local_plan(1, 1);
    emulate(&p, 1000, 10); /* nothing to overlap with */
    choose(&p, 0, true);
    assert_int_equal(p.schedule, SL_SCHED_DEP);
    sl_plan_free(&p);
}

static void skew_is_drawn(void **state) {
    (void)state;
    sl_plan p = local_plan(2, 2);
    emulate(&p, 100, 1000);
    p.skew = (sl_route_skew){.on = true, .permuted = true, .theta = 1.5, .seed = 1};
    sl_auto_report r = choose(&p, 0, true);
    /* The block's hot expert is on one of two workers, in each block on another. */
    assert_true(p.schedule == SL_SCHED_AEP || r.choice.score < SL_CHOOSE_MARGIN);
    sl_plan_free(&p);
}

static void nothing_to_measure(void **state) {
    (void)state;
    sl_plan p = local_plan(0, 0);
    sl_auto_report r = choose(&p, 0, true);
    assert_true(!r.measured && p.schedule == SL_SCHED_EP);
    sl_plan_free(&p);
}

/* Groups of experts change the order of sums: only where no bit can change. */
static void bits_do_not_depend_on_measurements(void **state) {
    (void)state;
    sl_plan p = local_plan(2, 0);
    choose(&p, 0, true);
    assert_true(p.schedule == SL_SCHED_EP || p.schedule == SL_SCHED_PINGPONG);
    sl_plan_free(&p);
    p = local_plan(1, 2);
    choose(&p, 0, true);
    assert_true(p.schedule != SL_SCHED_AEP);
    assert_true(p.chunks == 1 || p.chunking == SL_CHUNK_TOKENS);
    sl_plan_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(measures_quickly),
        cmocka_unit_test(known_costs_decide),
        cmocka_unit_test(skew_is_drawn),
        cmocka_unit_test(nothing_to_measure),
        cmocka_unit_test(bits_do_not_depend_on_measurements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
