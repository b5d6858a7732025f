/* GPUs of a plan's workers: options, JSON, and what they exclude. */
#include "base/mem.h"
#include "format/plan_gpu.h"
#include "format/plan_json.h"
#include "format/plan_sides.h"
#include "model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static const char folder[] = SL_SOURCE_DIR "/tests/golden/qwen3moe-tiny";

typedef struct made {
    sl_model_spec m;
    sl_plan p;
} made;

static made make(uint32_t attention, uint32_t experts) {
    made x = {0};
    sl_err err = {0};
    if (sl_model_read_spec(folder, &x.m, NULL, &err) != SL_OK ||
        sl_plan_local(&x.m, attention, experts, &x.p, &err) != SL_OK)
        fail_msg("%s", err.msg);
    return x;
}

static void set(made *x, sl_devices_of whose, const char *text) {
    sl_err err = {0};
    if (sl_plan_set_devices("--device", whose, text, &x->p, &err) != SL_OK) fail_msg("%s", err.msg);
}

static void refused(made *x, sl_devices_of whose, const char *text, const char *why) {
    sl_err err = {0};
    assert_int_equal(sl_plan_set_devices("--device", whose, text, &x->p, &err), SL_ERR_ARG);
    if (!strstr(err.msg, why)) fail_msg("%s", err.msg);
}

/* "c" for the CPU, else the GPU's digit, by worker. */
static void are(const made *x, const char *expected) {
    assert_int_equal(strlen(expected), x->p.n_workers);
    for (uint32_t i = 0; i < x->p.n_workers; i++) {
        const sl_device_spec d = sl_plan_device_of(&x->p, i);
        assert_int_equal(d.kind == SL_DEVICE_CUDA, expected[i] != 'c');
        assert_int_equal(sl_plan_on_gpu(&x->p, i), expected[i] != 'c');
        if (expected[i] != 'c') assert_int_equal(d.index, expected[i] - '0');
    }
}

static void lists_go_to_workers_in_order(void **state) {
    (void)state;
    made x = make(2, 2);
    are(&x, "cccc");
    set(&x, SL_DEVICES_OF_ALL, "cuda:3");
    are(&x, "3333");
    set(&x, SL_DEVICES_OF_EXPERTS, "cpu");
    are(&x, "33cc");
    set(&x, SL_DEVICES_OF_ALL, "cuda:0,cpu,cuda:1,cuda:1");
    are(&x, "0c11");
    set(&x, SL_DEVICES_OF_ATTENTION, "cuda:2,cuda:4");
    are(&x, "2411");
    x.p.worker[0].roles = SL_ROLE_EXPERT; /* those that have attention come first */
    x.p.worker[3].roles = SL_ROLE_ATTENTION;
    set(&x, SL_DEVICES_OF_ALL, "cuda:0,cuda:1,cuda:2,cuda:3");
    are(&x, "2031");
    set(&x, SL_DEVICES_OF_ALL, "cpu");
    are(&x, "cccc");
    sl_plan_free(&x.p);
}

static void other_lists_are_refused(void **state) {
    (void)state;
    made x = make(1, 2);
    refused(&x, SL_DEVICES_OF_ALL, "cuda:0,cuda:1", "2 devices for 3 workers");
    refused(&x, SL_DEVICES_OF_ALL, "cuda:0,cuda:1,cuda:2,cuda:3", "4 devices for 3 workers");
    refused(&x, SL_DEVICES_OF_EXPERTS, "cuda:0,cuda:1,cuda:2", "3 devices for 2 workers");
    refused(&x, SL_DEVICES_OF_ALL, "cuda:0,,cuda:1", "device '' is unknown");
    static const char *const unknown[] = {"",       "gpu",        "cuda", "cuda:",   "cuda:-1",
                                          "cuda:x", "cuda:1024",  "CPU",  "cuda:0 ", "cuda: 0",
                                          "cpu:0",  "cuda:00000", "cuda0"};
    for (size_t i = 0; i < SL_LEN(unknown); i++)
        refused(&x, SL_DEVICES_OF_ATTENTION, unknown[i], "is unknown");
    refused(&x, SL_DEVICES_OF_EXPERTS, "emulated:x", "of all workers");
    made both = make(2, 0);
    refused(&both, SL_DEVICES_OF_EXPERTS, "cpu", "no workers that have experts alone");
    sl_plan_free(&x.p);
    sl_plan_free(&both.p);
}

static void words_of_memory_and_numerics(void **state) {
    (void)state;
    uint64_t bytes;
    sl_numerics n;
    sl_err err = {0};
    assert_int_equal(sl_gpu_memory_parse("40GB", &bytes, &err), SL_OK);
    assert_int_equal(bytes, 40000000000);
    assert_int_equal(sl_gpu_memory_parse("1073741824", &bytes, &err), SL_OK);
    assert_int_equal(bytes, 1 << 30);
    static const char *const bad[] = {"", "0", "-1", "40GG", "1e300", "10000000TB"};
    for (size_t i = 0; i < SL_LEN(bad); i++)
        assert_true(sl_gpu_memory_parse(bad[i], &bytes, &err) != SL_OK);
    for (int i = 0; i < SL_NUMERICS_COUNT; i++) {
        assert_int_equal(sl_numerics_parse(sl_numerics_name((sl_numerics)i), &n, &err), SL_OK);
        assert_int_equal(n, i);
    }
    assert_int_equal(sl_numerics_parse("quick", &n, &err), SL_ERR_ARG);
}

static void parse(const char *text, const sl_model_spec *m, sl_plan *out) {
    sl_err err = {0};
    if (sl_plan_parse((sl_span){(const uint8_t *)text, strlen(text)}, "plan", m, out, &err) !=
        SL_OK)
        fail_msg("%s: %s", err.msg, text);
}

static void round_trip(void **state) {
    (void)state;
    made x = make(1, 2);
    sl_plan q = {0};
    assert_int_equal(x.p.device.numerics, SL_NUMERICS_AUTO);
    assert_int_equal(sl_plan_numerics(&x.p), SL_NUMERICS_CPU);
    char *text = sl_plan_print(&x.p);
    assert_null(strstr(text, "gpu"));
    sl_free(text);
    set(&x, SL_DEVICES_OF_EXPERTS, "cuda:1,cuda:7");
    x.p.device.gpu_memory = 40000000000;
    x.p.device.numerics = SL_NUMERICS_CPU;
    strcpy(x.p.device.gpu_kind, "GPU of a kind, compute capability 9.0");
    x.p.worker[2].offload = true;
    text = sl_plan_print(&x.p);
    parse(text, &x.m, &q);
    for (uint32_t i = 0; i < 3; i++) {
        const sl_device_spec a = sl_plan_device_of(&x.p, i), b = sl_plan_device_of(&q, i);
        assert_int_equal(a.kind, b.kind);
        assert_int_equal(a.index, b.index);
        assert_int_equal(b.offload, i == 2);
    }
    assert_int_equal(q.device.gpu_memory, 40000000000);
    assert_int_equal(q.device.numerics, SL_NUMERICS_CPU);
    assert_string_equal(q.device.gpu_kind, x.p.device.gpu_kind);
    sl_free(text);
    sl_plan_free(&q);
    sl_plan_free(&x.p);
}

/* Of those that are for prompts, if there are some, and have experts on a GPU. */
static void experts_that_stay_in_memory(void **state) {
    (void)state;
    sl_err err = {0};
    made x = make(1, 2);
    assert_int_equal(sl_plan_set_offload(&x.p, &err), SL_ERR_ARG);
    set(&x, SL_DEVICES_OF_ATTENTION, "cuda:0");
    assert_int_equal(sl_plan_set_offload(&x.p, &err), SL_ERR_ARG);
    set(&x, SL_DEVICES_OF_EXPERTS, "cpu,cuda:1");
    assert_int_equal(sl_plan_set_offload(&x.p, &err), SL_OK);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(sl_plan_device_of(&x.p, i).offload, i == 2);
    sl_plan_free(&x.p);
    x = make(1, 1);
    sl_plan_set_schedule(&x.p, SL_SCHED_AEP);
    assert_int_equal(sl_plan_add_prefill(1, 0, true, &x.p, &err), SL_OK);
    set(&x, SL_DEVICES_OF_EXPERTS, "cuda:1");
    assert_int_equal(sl_plan_set_offload(&x.p, &err), SL_ERR_ARG);
    assert_non_null(strstr(err.msg, "for prompts"));
    set(&x, SL_DEVICES_OF_ATTENTION, "cuda:0");
    assert_int_equal(sl_plan_set_offload(&x.p, &err), SL_OK);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(x.p.worker[i].offload, i == 2);
    assert_int_equal(sl_plan_check(&x.p, &x.m, &err), SL_OK);
    x.p.random_weights = true;
    assert_int_equal(sl_plan_check(&x.p, &x.m, &err), SL_ERR_UNSUPPORTED);
    sl_plan_free(&x.p);
}

/* Nobody said how sums are made: fast, or with `exact` what all workers together can. */
static void numerics_left_out(void **state) {
    (void)state;
    made x = make(1, 1);
    set(&x, SL_DEVICES_OF_ALL, "cuda:0");
    assert_int_equal(sl_plan_numerics(&x.p), SL_NUMERICS_FAST);
    x.p.exact = true; /* of a kind that nobody knows */
    assert_int_equal(sl_plan_numerics(&x.p), SL_NUMERICS_CPU);
    strcpy(x.p.device.gpu_kind, "some");
    assert_int_equal(sl_plan_numerics(&x.p),
                     SL_NUMERICS_EXACT_BY_ITSELF ? SL_NUMERICS_EXACT : SL_NUMERICS_CPU);
    set(&x, SL_DEVICES_OF_EXPERTS, "cpu");
    assert_int_equal(sl_plan_numerics(&x.p), SL_NUMERICS_CPU);
    sl_plan_free(&x.p);
}

#define EP  "{\"version\":1,\"schedule\":\"ep\",\"workers\":[{\"roles\":[\"attention\",\"expert\"]"
#define GPU EP ",\"device\":\"cuda:0\"}]"

static void plans_that_leave_something_out(void **state) {
    (void)state;
    made x = make(1, 0);
    sl_plan q;
    parse(EP ",\"device\":\"cpu\"}],\"gpu\":{}}", &x.m, &q);
    assert_int_equal(sl_plan_n_gpu(&q), 0);
    sl_plan_free(&q);
    parse(GPU "}", &x.m, &q);
    assert_int_equal(sl_plan_numerics(&q), SL_NUMERICS_FAST);
    assert_int_equal(q.device.gpu_memory, 0);
    sl_plan_free(&q);
    parse(GPU ",\"exact\":true}", &x.m, &q);
    assert_int_equal(sl_plan_numerics(&q), SL_NUMERICS_CPU);
    sl_plan_free(&q);
    sl_plan_free(&x.p);
}

static void plans_that_cannot_be(void **state) {
    (void)state;
    static const struct {
        const char *text, *why;
    } bad[] = {
        {EP ",\"device\":\"cuda:1024\"}]}", "neither \"cpu\" nor"},
        {EP ",\"device\":\"cuda:0,cuda:1\"}]}", "neither \"cpu\" nor"},
        {EP ",\"device\":0}]}", "device"},
        {EP ",\"offload\":true}]}", "is on no GPU"},
        {EP ",\"device\":\"cuda:0\",\"offload\":1}]}", "offload"},
        {GPU ",\"gpu\":{\"memory\":-1}}", "memory"},
        {GPU ",\"gpu\":{\"bytes\":1}}", "bytes"},
        {GPU ",\"gpu\":{\"numerics\":\"exactly\"}}", "unknown: cpu, fast, exact"},
        {GPU ",\"gpu\":{\"kind\":9}}", "kind"},
        {EP "},{\"roles\":[\"attention\",\"expert\"],\"device\":\"cuda:0\"}],\"gpu\":{\"numerics\":"
            "\"exact\"}}",
         "worker 0 is on the CPU"},
        {GPU ",\"gpu\":{\"numerics\":\"fast\"},\"exact\":true}", "depend on the batch"},
        {GPU ",\"device\":{}}", "an emulated device is of all workers"},
        {GPU ",\"tp\":{\"attention\":2,\"expert\":2}}", "--tp"},
        {GPU ",\"exact\":true,\"segments\":true}", "--segments"},
        {GPU ",\"activations\":\"bf16\"}", "--activations"},
        {GPU ",\"activations\":\"bf16-parts\"}", "bf16-parts"},
    };
    made x = make(1, 0);
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        sl_plan q;
        sl_err err = {0};
        const sl_span text = {(const uint8_t *)bad[i].text, strlen(bad[i].text)};
        assert_true(sl_plan_parse(text, "plan", &x.m, &q, &err) != SL_OK);
        if (!strstr(err.msg, bad[i].why)) fail_msg("%s: %s", bad[i].text, err.msg);
    }
    sl_plan_free(&x.p);
}

/* Ranks of workers on CPUs beside one on a GPU. */
static void gangs_beside_a_gpu(void **state) {
    (void)state;
    made x = make(1, 2);
    sl_err err = {0};
    x.p.expert_tp = 2;
    set(&x, SL_DEVICES_OF_ATTENTION, "cuda:0");
    assert_int_equal(sl_plan_check(&x.p, &x.m, &err), SL_OK);
    set(&x, SL_DEVICES_OF_EXPERTS, "cuda:1,cpu");
    assert_int_equal(sl_plan_check(&x.p, &x.m, &err), SL_ERR_UNSUPPORTED);
    sl_plan_free(&x.p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_go_to_workers_in_order),
        cmocka_unit_test(other_lists_are_refused),
        cmocka_unit_test(words_of_memory_and_numerics),
        cmocka_unit_test(round_trip),
        cmocka_unit_test(experts_that_stay_in_memory),
        cmocka_unit_test(numerics_left_out),
        cmocka_unit_test(plans_that_leave_something_out),
        cmocka_unit_test(plans_that_cannot_be),
        cmocka_unit_test(gangs_beside_a_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
