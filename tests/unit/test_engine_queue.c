/* The queue before the workers, on a virtual clock: who waits, who is turned away and when. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "engine/coord/coord_int.h"
#include "format/plan_json.h"
#include "engine/host/host.h"
#include "spec/kv.h"

#define FIXTURE   SL_SOURCE_DIR "/tests/golden/qwen3moe-tiny"
#define TURN_US   20000u /* a token takes several turns */
#define MAX_TURNS 200000u

typedef struct outcome {
    uint64_t id, queued_us, ended_us;
    uint32_t n;
    sl_finish finish;
    sl_status status;
    char message[200];
} outcome;

static uint64_t now_us;
static sl_engine *engine;
static sl_worker *worker;
static sl_worker_opts worker_opts;

static uint64_t clock_now(void *ctx) {
    (void)ctx;
    return now_us;
}

static void on_event(void *ctx, const sl_request_event *ev) {
    outcome *o = ctx;
    o->n += ev->n;
    o->queued_us = ev->queued_us;
    assert_int_equal(o->finish, SL_FINISH_NONE);
    if (ev->finish == SL_FINISH_NONE) return;
    o->finish = ev->finish;
    o->status = ev->status;
    o->ended_us = now_us;
    snprintf(o->message, sizeof o->message, "%s", ev->message ? ev->message : "");
}

static void turn(void) {
    sl_engine_step(engine);
    sl_worker_step(worker);
    now_us += TURN_US;
}

static void start(uint32_t seats, uint32_t pages, uint32_t max_queue, double queue_timeout_s) {
    sl_err err = {0};
    sl_model_spec spec;
    now_us = 1;
    sl_engine_opts o = {.model_folder = FIXTURE,
                        .transport = "loop",
                        .spawn = SL_SPAWN_NONE,
                        .max_queue = max_queue,
                        .queue_timeout_s = queue_timeout_s};
    const sl_clock clock = {clock_now, NULL};
    assert_int_equal(sl_model_read_spec(FIXTURE, &spec, NULL, &err), SL_OK);
    assert_int_equal(sl_plan_local(&spec, 0, 0, &o.plan, &err), SL_OK);
    o.plan.threads = 1;
    o.plan.context = 256;
    o.plan.max_num_seqs = seats;
    o.plan.n_pages = pages;
    if (sl_engine_create_stepped(&o, clock, &engine, &err) != SL_OK) fail_msg("%s", err.msg);
    sl_plan_free(&o.plan);
    worker_opts = (sl_worker_opts){.coordinator = sl_net_address(engine->net),
                                   .transport = "loop",
                                   .hub = engine->hub,
                                   .secret = engine->o.secret,
                                   .wanted = 0,
                                   .clock = clock};
    if (sl_worker_create(&worker_opts, &worker, &err) != SL_OK) fail_msg("%s", err.msg);
    for (uint32_t i = 0; i < MAX_TURNS && !engine->serving; i++) turn();
    assert_true(engine->serving);
}

static int stop(void **state) {
    (void)state;
    sl_worker_free(worker, true);
    sl_engine_free(engine);
    worker = NULL;
    engine = NULL;
    return 0;
}

static sl_status submit(uint32_t n_prompt, uint32_t max_tokens, outcome *o) {
    static const uint32_t prompt[200] = {3, 17, 41};
    sl_err err = {0};
    const sl_request_params p = {.prompt = prompt,
                                 .n_prompt = n_prompt,
                                 .max_tokens = max_tokens,
                                 .sampling = {.top_p = 1},
                                 .ignore_eos = true,
                                 .on_event = on_event,
                                 .ctx = o};
    *o = (outcome){0};
    sl_status st = sl_engine_submit(engine, &p, &o->id, &err);
    snprintf(o->message, sizeof o->message, "%s", st == SL_OK ? "" : err.msg);
    return st;
}

static void await_end(const outcome *o) {
    for (uint32_t i = 0; i < MAX_TURNS && o->finish == SL_FINISH_NONE; i++) turn();
    assert_int_not_equal(o->finish, SL_FINISH_NONE);
}

static sl_engine_stats stats(void) {
    sl_engine_stats s;
    sl_engine_step(engine);
    sl_engine_stats_get(engine, &s);
    return s;
}

/* One seat, two places to wait: of five at once the two newest are turned away. */
static void the_newest_find_the_queue_full(void **state) {
    (void)state;
    outcome o[5];
    start(1, 64, 2, 0);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(submit(3, 8, &o[i]), SL_OK);
    /* more than can run and wait: refused before anybody has looked at the queue */
    assert_int_equal(submit(3, 8, &o[3]), SL_ERR_OVERLOADED);
    assert_non_null(strstr(o[3].message, "at most 1 run and 2 wait"));
    assert_int_equal(stats().running, 1);
    assert_int_equal(stats().waiting, 2);
    for (uint32_t i = 0; i < 3; i++) {
        await_end(&o[i]);
        assert_int_equal(o[i].finish, SL_FINISH_LENGTH);
        assert_int_equal(o[i].n, 8);
    }
    assert_int_equal(stats().rejected_full, 1);
    assert_int_equal(submit(3, 8, &o[4]), SL_OK);
    await_end(&o[4]);
    assert_int_equal(stats().pages_used, 0);
}

/* Seats alone do not say who can run: four may, pages let two. */
static void pages_count_for_the_queue(void **state) {
    (void)state;
    outcome o[6];
    start(4, 8, 2, 0);
    for (uint32_t i = 0; i < 6; i++) assert_int_equal(submit(90, 4, &o[i]), SL_OK);
    assert_int_equal(stats().running, 2);
    assert_int_equal(stats().waiting, 2);
    for (uint32_t i = 4; i < 6; i++) {
        assert_int_equal(o[i].finish, SL_FINISH_ERROR);
        assert_int_equal(o[i].status, SL_ERR_OVERLOADED);
        assert_non_null(strstr(o[i].message, "the queue is full: 2 requests wait"));
    }
    for (uint32_t i = 0; i < 4; i++) {
        await_end(&o[i]);
        assert_int_equal(o[i].finish, SL_FINISH_LENGTH);
    }
    assert_int_equal(stats().rejected_full, 2);
}

static void waiting_has_a_deadline(void **state) {
    (void)state;
    outcome first, late[2], after;
    start(1, 64, 10, 5);
    assert_int_equal(submit(3, 200, &first), SL_OK);
    assert_int_equal(submit(3, 8, &late[0]), SL_OK);
    uint64_t asked_us = now_us;
    turn();
    for (uint32_t i = 0; i < 50; i++) turn(); /* a second later */
    assert_int_equal(submit(3, 8, &late[1]), SL_OK);
    await_end(&late[0]);
    assert_int_equal(first.finish, SL_FINISH_NONE);
    assert_int_equal(late[0].status, SL_ERR_OVERLOADED);
    assert_non_null(strstr(late[0].message, "waited 5.0 s"));
    assert_non_null(strstr(late[0].message, "limit is 5 s"));
    assert_in_range(late[0].ended_us - asked_us, 5000000, 5000000 + 2 * TURN_US);
    assert_in_range(late[0].queued_us, 5000000, 5000000 + 2 * TURN_US);
    await_end(&late[1]);
    assert_in_range(late[1].ended_us - late[0].ended_us, 1000000 - 2 * TURN_US,
                    1000000 + 4 * TURN_US);
    assert_int_equal(first.finish, SL_FINISH_NONE);
    /* who asks shortly before the seat is free gets it */
    while (first.n < 195) turn();
    assert_int_equal(submit(3, 8, &after), SL_OK);
    await_end(&after);
    assert_int_equal(first.finish, SL_FINISH_LENGTH);
    assert_int_equal(first.queued_us, 0);
    assert_int_equal(after.finish, SL_FINISH_LENGTH);
    assert_true(after.queued_us > 0 && after.queued_us < 5000000);
    assert_int_equal(stats().rejected_late, 2);
}

/* Two grow until the pool is empty; the younger waits far longer than a new request might. */
static void who_has_run_is_not_turned_away(void **state) {
    (void)state;
    outcome old, young, other;
    start(2, sl_kv_pages_for(256), 1, 2);
    assert_int_equal(submit(60, 196, &old), SL_OK);
    assert_int_equal(submit(60, 190, &young), SL_OK);
    while (stats().preempted == 0 && old.finish == SL_FINISH_NONE) turn();
    assert_int_equal(stats().preempted, 1);
    uint64_t since_us = now_us;
    assert_int_equal(submit(3, 8, &other), SL_OK); /* the one place is not taken by `young` */
    await_end(&other);
    assert_int_equal(other.status, SL_ERR_OVERLOADED);
    assert_non_null(strstr(other.message, "--queue-timeout"));
    await_end(&young);
    assert_int_equal(old.finish, SL_FINISH_LENGTH);
    assert_int_equal(young.finish, SL_FINISH_LENGTH);
    assert_int_equal(young.n, 190);
    assert_true(old.ended_us - since_us > 2000000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(the_newest_find_the_queue_full, stop),
        cmocka_unit_test_teardown(pages_count_for_the_queue, stop),
        cmocka_unit_test_teardown(waiting_has_a_deadline, stop),
        cmocka_unit_test_teardown(who_has_run_is_not_turned_away, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
