/* The emulated device: costs, deadlines, and a model of a config.json alone that runs on any
 * deployment with the same ids. */
#include "base/clock.h"
#include "base/mem.h"
#include "engine/coord/engine.h"
#include "format/plan_json.h"
#include "format/plan_lab.h"
#include "model/model.h"
#include "spec/pipeline.h"
#include "stage/emulated/emulated.h"
#include "stage/stage.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

static const char model[] = SL_SOURCE_DIR "/bench/lab/models/amoe-top2";
static const char costs[] = "emulated:" SL_SOURCE_DIR "/bench/lab/amoe-low.json";

static sl_device_spec low(void) {
    sl_device_spec d = {0};
    sl_err err = {0};
    if (sl_device_parse(costs, &d, &err) != SL_OK) fail_msg("%s", err.msg);
    return d;
}

static void costs_are_those_of_the_paper(void **state) {
    (void)state;
    sl_device_spec d = low();
    assert_true(d.kind == SL_DEVICE_EMULATED && d.time_scale == 1);
    /* .15 + .001 b; .05 + max(.20, .00155 b); .05 + .0002 b, in ms */
    assert_int_equal(sl_emulated_ns(&d, SL_COST_ATTENTION, 1000, 123), 1150000);
    assert_int_equal(sl_emulated_ns(&d, SL_COST_EXPERT, 1, 0), 250000);
    assert_int_equal(sl_emulated_ns(&d, SL_COST_EXPERT, 1000, 0), 1600000);
    assert_int_equal(sl_emulated_ns(&d, SL_COST_HEAD, 1000, 0), 250000);
    assert_int_equal(sl_emulated_ns(&d, SL_COST_ROUTER, 1000, 0), 0);
    d.time_scale = 20;
    d.cost[SL_COST_ATTENTION].key_us = 0.5;
    assert_int_equal(sl_emulated_ns(&d, SL_COST_ATTENTION, 10, 100), 210000 * 20);
}

static void round_trip_in_a_plan(void **state) {
    (void)state;
    sl_model_spec m;
    sl_plan p = {0}, q = {0}, none = {0};
    sl_err err = {0};
    if (sl_model_read_spec(model, &m, NULL, &err) != SL_OK) fail_msg("%s", err.msg);
    assert_true(m.weightless);
    assert_int_equal(sl_plan_local(&m, 2, 2, &p, &err), SL_OK);
    assert_int_equal(sl_plan_check(&p, &m, &err), SL_ERR_NOTFOUND);
    assert_non_null(strstr(err.msg, "only an emulated device"));
    p.device = low();
    p.device.time_scale = 12.5;
    assert_int_equal(sl_route_skew_parse("exp:0.6:permuted:7", &p.skew, &err), SL_OK);
    assert_int_equal(sl_plan_pin("0,1", &p, &err), SL_OK);
    assert_int_equal(sl_plan_check(&p, &m, &err), SL_OK);
    char *text = sl_plan_print(&p);
    if (sl_plan_parse((sl_span){(const uint8_t *)text, strlen(text)}, "plan", &m, &q, &err) !=
        SL_OK)
        fail_msg("%s: %s", err.msg, text);
    assert_memory_equal(&p.device.cost, &q.device.cost, sizeof p.device.cost);
    assert_true(q.device.kind == SL_DEVICE_EMULATED && q.device.time_scale == 12.5);
    assert_true(q.skew.on && q.skew.permuted && q.skew.theta == 0.6 && q.skew.seed == 7);
    for (uint32_t i = 0; i < 4; i++) assert_int_equal(q.worker[i].cpu, i % 2);
    static const char *const bad[] = {
        "{\"version\":1,\"schedule\":\"ep\",\"workers\":[{\"roles\":[\"attention\",\"expert\"]}],"
        "\"device\":{\"gpu\":{}}}",
        "{\"version\":1,\"schedule\":\"ep\",\"workers\":[{\"roles\":[\"attention\",\"expert\"]}],"
        "\"device\":{\"head\":{\"fixed\":-1}}}",
        "{\"version\":1,\"schedule\":\"ep\",\"workers\":[{\"roles\":[\"attention\",\"expert\"],"
        "\"cpu\":5000}],\"device\":{}}"};
    for (size_t i = 0; i < SL_LEN(bad); i++)
        assert_true(sl_plan_parse((sl_span){(const uint8_t *)bad[i], strlen(bad[i])}, "plan", &m,
                                  &none, &err) != SL_OK);
    assert_int_equal(sl_plan_pin("0,", &p, &err), SL_ERR_ARG);
    assert_int_equal(sl_plan_pin("1024", &p, &err), SL_ERR_ARG);
    assert_int_equal(sl_device_parse("gpu", &p.device, &err), SL_ERR_ARG);
    sl_free(text);
    sl_plan_free(&p);
    sl_plan_free(&q);
}

static void sleep_until(void *ctx, uint64_t deadline_ns) {
    (void)ctx;
    const uint64_t now_ns = sl_now_ns();
    const struct timespec t = {.tv_nsec = (long)SL_MIN(deadline_ns - now_ns, 1000000u)};
    if (deadline_ns > now_ns) (void)nanosleep(&t, NULL);
}

/* All blocks of a step; in turns: those of a rank when the rows of the one before it are back. */
static double step_hops(sl_device *device, const sl_rowset *rows, uint32_t ranks, bool in_turns,
                        double hop_ns) {
    const uint64_t began_ns = sl_now_ns();
    for (uint32_t r = 0; r < ranks; r++) {
        const sl_extent has = sl_pipeline_blocks(device->spec, (sl_rank){r, ranks}, false);
        for (uint32_t l = has.first; l < has.first + has.n; l++) {
            const sl_stage_call c[] = {{.op = SL_OP_ATTEND, .layer = l, .rows = *rows},
                                       {.op = SL_OP_INSIDE, .layer = l, .rows = *rows}};
            sl_device_submit(device, &c[0]);
            sl_device_submit(device, &c[1]);
        }
        if (in_turns) sl_device_drain(device);
    }
    sl_device_drain(device);
    return (double)(sl_now_ns() - began_ns) / hop_ns;
}

/* A hop to each rank and one back, where ranks have their calls at once; else to and fro. */
static void pipelines_take_their_hops(void **state) {
    (void)state;
    const sl_device_spec d = {
        .kind = SL_DEVICE_EMULATED, .time_scale = 2, .rank_link = {.alpha_us = 40000}};
    const uint32_t id = 3, pos = 0;
    float x[64] = {0}, h[64] = {0};
    const sl_rowset rows = {.n = 1,
                            .id = &id,
                            .pos = &pos,
                            .x = sl_mem_host(x, sizeof x),
                            .h = sl_mem_host(h, sizeof h)};
    for (uint32_t ranks = 2; ranks <= 4; ranks += 2) {
        const sl_device_opts o = {.folder = model,
                                  .hosts = {.attention = true, .experts = true},
                                  .device = &d,
                                  .pipeline = ranks,
                                  .max_rows = 1,
                                  .wait = sleep_until};
        sl_device *device = NULL;
        sl_err err;
        if (sl_device_open(&o, &device, &err) != SL_OK) fail_msg("%s", err.msg);
        for (uint32_t in_turns = 0; in_turns < 2; in_turns++) {
            const uint32_t law = in_turns ? 2 * (ranks - 1) : ranks;
            double hops = step_hops(device, &rows, ranks, in_turns, 80e6);
            for (uint32_t k = 0; k < 9 && hops >= law + 1.5; k++) /* where others compute, too */
                hops = step_hops(device, &rows, ranks, in_turns, 80e6);
            printf("%u ranks%s: %.2f hops\n", ranks, in_turns ? ", in turns" : "", hops);
            assert_true(hops >= law && hops < law + 1.5);
        }
        sl_device_close(device);
    }
}

static void count_waits(void *ctx, uint64_t deadline_ns) {
    (void)deadline_ns;
    ++*(uint32_t *)ctx;
}

/* A shared expert takes its own cost and adds nothing. */
static void shared_experts_take_their_time(void **state) {
    (void)state;
    static const char folder[] = SL_SOURCE_DIR "/bench/lab/models/shared-top2";
    const sl_device_spec d = {.kind = SL_DEVICE_EMULATED,
                              .time_scale = 2,
                              .cost = {[SL_COST_SHARED] = {.fixed_us = 100, .row_us = 1}}};
    uint32_t waits = 0;
    const sl_device_opts o = {.folder = folder,
                              .hosts = {.attention = true},
                              .device = &d,
                              .max_rows = 3,
                              .wait = count_waits,
                              .ctx = &waits};
    float h[3 * 64] = {0}, zero[3 * 64] = {0};
    sl_device *device = NULL;
    sl_err err;
    if (sl_device_open(&o, &device, &err) != SL_OK) fail_msg("%s", err.msg);
    assert_int_equal(device->spec->d_ff_shared, 128);
    assert_int_equal(sl_emulated_ns(&d, SL_COST_SHARED, 3, 0), 206000);
    sl_stage_call c = {
        .op = SL_OP_SHARED, .layer = 5, .rows = {.n = 3, .h = sl_mem_host(h, sizeof h)}};
    const sl_event first = sl_device_submit(device, &c);
    assert_true(sl_device_is_done(device, &first));
    assert_int_equal(waits, 1);
    c.rows.n = 0;
    sl_device_submit(device, &c);
    assert_int_equal(waits, 1);
    assert_memory_equal(h, zero, sizeof h);
    sl_device_close(device);
}

static uint64_t asked_until;
static void oversleep(void *ctx, uint64_t deadline_ns) {
    (void)ctx;
    asked_until = deadline_ns;
    while (sl_now_ns() < deadline_ns + 300000) continue;
}

/* What one stage took too long the next one makes up for, but never more than its own time. */
static void late_stages_shorten_the_next(void **state) {
    (void)state;
    sl_device_spec d = low();
    sl_emulated e = {.device = &d, .wait = oversleep};
    uint64_t begin = sl_now_ns();
    for (int i = 0; i < 20; i++) sl_emulated_run(&e, SL_COST_ATTENTION, 850, 0); /* 1 ms each */
    double ms = (double)(sl_now_ns() - begin) / 1e6;
    assert_true(ms > 19.5); /* and no upper bound: this machine is busy */
    begin = sl_now_ns();
    e.late_ns = 5000000;
    sl_emulated_run(&e, SL_COST_ATTENTION, 0, 0);
    assert_true(asked_until >= begin && asked_until <= sl_now_ns());
    assert_true(e.late_ns <= 150000);
}

typedef struct outcome {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t ids[4][16], n[4], open;
} outcome;

typedef struct request {
    outcome *o;
    uint32_t i;
} request;

static void on_event(void *ctx, const sl_request_event *ev) {
    const request *r = ctx;
    outcome *o = r->o;
    pthread_mutex_lock(&o->lock);
    for (uint32_t i = 0; i < ev->n && o->n[r->i] < 16; i++)
        o->ids[r->i][o->n[r->i]++] = ev->tokens[i];
    if (ev->finish != SL_FINISH_NONE) o->open--;
    pthread_cond_signal(&o->changed);
    pthread_mutex_unlock(&o->lock);
}

static double run(uint32_t attention, uint32_t experts, outcome *o) {
    sl_model_spec m;
    sl_err err = {0};
    sl_engine *e = NULL;
    request r[4];
    sl_engine_opts opts = {.model_folder = model, .transport = "loop", .host = "127.0.0.1"};
    assert_int_equal(sl_model_read_spec(model, &m, NULL, &err), SL_OK);
    assert_int_equal(sl_plan_local(&m, attention, experts, &opts.plan, &err), SL_OK);
    opts.plan.device = low();
    if (sl_engine_create(&opts, &e, &err) != SL_OK) fail_msg("%s", err.msg);
    sl_plan_free(&opts.plan);
    o->open = 4;
    uint64_t begin = sl_now_ns();
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t prompt[] = {5 * i, 70 + i};
        r[i] = (request){o, i};
        const sl_request_params p = {.prompt = prompt,
                                     .n_prompt = 2,
                                     .max_tokens = 4,
                                     .sampling = {.top_p = 1},
                                     .ignore_eos = true,
                                     .on_event = on_event,
                                     .ctx = &r[i]};
        uint64_t id;
        if (sl_engine_submit(e, &p, &id, &err) != SL_OK) fail_msg("%s", err.msg);
    }
    pthread_mutex_lock(&o->lock);
    while (o->open) pthread_cond_wait(&o->changed, &o->lock);
    pthread_mutex_unlock(&o->lock);
    double seconds = (double)(sl_now_ns() - begin) / 1e9;
    sl_engine_free(e);
    return seconds;
}

static void a_config_is_enough(void **state) {
    (void)state;
    outcome a = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER}, b = a;
    double one = run(0, 0, &a), four = run(2, 2, &b);
    assert_memory_equal(a.n, b.n, sizeof a.n);
    assert_memory_equal(a.ids, b.ids, sizeof a.ids);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(a.n[i], 4);
        for (uint32_t j = 0; j < i; j++) assert_true(a.ids[i][3] != a.ids[j][3]);
    }
    /* 4 steps of 32 blocks of at least an attention and an expert */
    double least = 4 * 32 * (0.15 + 0.25) / 1000;
    printf("%.0f and %.0f ms, at least %.0f\n", one * 1e3, four * 1e3, least * 1e3);
    assert_true(one >= least * 0.99 && four >= least * 0.99);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(costs_are_those_of_the_paper),
        cmocka_unit_test(round_trip_in_a_plan),
        cmocka_unit_test(shared_experts_take_their_time),
        cmocka_unit_test(pipelines_take_their_hops),
        cmocka_unit_test(late_stages_shorten_the_next),
        cmocka_unit_test(a_config_is_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
