/* An emulated deployment on a virtual clock, in one thread: whoever is moved does all that it can.
 */
#ifndef SL_TEST_ENGINE_STEPS_H
#define SL_TEST_ENGINE_STEPS_H

#include "engine/coord/coord_int.h"
#include "format/plan_json.h"
#include "engine/host/host.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define FIXTURE  SL_SOURCE_DIR "/tests/golden/qwen2moe-tiny"
#define REQUESTS 8u
#define NEW      6u
#define TURNS    20000u
#define WORKERS  4u

typedef struct deployment {
    uint64_t now_us;
    sl_engine *engine;
    uint32_t n;
    sl_worker_opts opts[WORKERS];
    sl_worker *worker[WORKERS]; /* attention, then experts */
    char address[128];
    uint32_t tokens, ends;
} deployment;

static uint64_t now_us(void *ctx) {
    return ((deployment *)ctx)->now_us;
}

static void on_event(void *ctx, const sl_request_event *ev) {
    deployment *d = ctx;
    d->tokens += ev->n;
    d->ends += ev->finish != SL_FINISH_NONE;
}

/* `side` attention workers and as many for experts. */
static void start(deployment *d, uint32_t side, sl_schedule schedule, uint32_t lanes,
                  uint32_t chunks, sl_order order) {
    sl_err err;
    sl_model_spec m;
    sl_engine_opts o = {.model_folder = FIXTURE, .transport = "loop", .spawn = SL_SPAWN_NONE};
    const sl_clock clock = {now_us, d};
    *d = (deployment){.now_us = 1, .n = 2 * side};
    assert_int_equal(sl_model_read_spec(FIXTURE, &m, NULL, &err), SL_OK);
    assert_int_equal(sl_plan_local(&m, side, side, &o.plan, &err), SL_OK);
    sl_plan_set_schedule(&o.plan, schedule);
    o.plan.lanes = lanes;
    o.plan.chunks = chunks;
    o.plan.order = order;
    o.plan.threads = 1;
    o.plan.max_num_seqs = REQUESTS;
    o.plan.device = (sl_device_spec){.kind = SL_DEVICE_EMULATED, .time_scale = 1};
    if (sl_engine_create_stepped(&o, clock, &d->engine, &err) != SL_OK) fail_msg("%s", err.msg);
    snprintf(d->address, sizeof d->address, "%s", sl_net_address(d->engine->net));
    for (uint32_t i = 0; i < d->n; i++) {
        d->opts[i] = (sl_worker_opts){.coordinator = d->address,
                                      .transport = "loop",
                                      .hub = d->engine->hub,
                                      .secret = d->engine->o.secret,
                                      .wanted = i,
                                      .clock = clock};
        if (sl_worker_create(&d->opts[i], &d->worker[i], &err) != SL_OK) fail_msg("%s", err.msg);
    }
    sl_plan_free(&o.plan);
}

static void turn(deployment *d) {
    d->now_us += 50;
    sl_engine_step(d->engine);
    for (uint32_t i = 0; i < d->n; i++)
        for (uint32_t n = 0; n < 1000 && sl_worker_step(d->worker[i]); n++) continue;
}

/* Moves all until requests can come. */
static void await_service(deployment *d) {
    for (uint32_t i = 0; i < TURNS && !d->engine->serving; i++) turn(d);
    assert_true(d->engine->serving);
}

static sl_request_params request_of(deployment *d) {
    static const uint32_t prompt[] = {7};
    return (sl_request_params){.prompt = prompt,
                               .n_prompt = 1,
                               .max_tokens = NEW,
                               .sampling = {.top_p = 1},
                               .ignore_eos = true,
                               .on_event = on_event,
                               .ctx = d};
}

static void stop(deployment *d) {
    for (uint32_t i = 0; i < d->n; i++) sl_worker_free(d->worker[i], true);
    sl_engine_free(d->engine);
}

#endif
