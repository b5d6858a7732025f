/* Plans of many workers: a thousand are read and the coordinator is made for them; 140 run, with
 * `all` as its argument a thousand, too. These are stepped by this thread on a virtual clock; every
 * attention worker has a request, so all of them are in the rounds of every expert worker, and
 * tokens are those of one worker alone, also where ten workers die one after the other. */
#include "base/mem.h"
#include "engine/coord/coord_int.h"
#include "engine/host/host.h"
#include "format/plan_json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define FIXTURE SL_SOURCE_DIR "/tests/golden/qwen3moe-tiny"
#define MEMBERS 992u
#define EXPERTS 8u
#define KINDS   5u /* of requests: the i-th is of kind i % KINDS */
#define NEW     3u
#define TURNS   100000u
#define DEATHS  10u /* one of them of experts */

typedef struct outcome {
    uint32_t ids[NEW], n;
    bool ended;
} outcome;

typedef struct deployment {
    uint64_t now_us;
    sl_engine *engine;
    uint32_t n;
    sl_worker_opts *opts; /* [n] */
    sl_worker **worker;   /* [n] */
    char address[128];
    uint32_t n_dead;
} deployment;

static uint64_t now_us(void *ctx) {
    return ((deployment *)ctx)->now_us;
}

static void on_event(void *ctx, const sl_request_event *ev) {
    outcome *o = ctx;
    for (uint32_t i = 0; i < ev->n && o->n < NEW; i++) o->ids[o->n++] = ev->tokens[i];
    o->ended = o->ended || ev->finish == SL_FINISH_LENGTH;
}

/* As from a file: through the text of a plan. */
static void read_plan(uint32_t attention, uint32_t experts, sl_schedule schedule, sl_plan *out) {
    sl_err err;
    sl_model_spec m;
    sl_plan p;
    assert_int_equal(sl_model_read_spec(FIXTURE, &m, NULL, &err), SL_OK);
    assert_int_equal(sl_plan_local(&m, attention, experts, &p, &err), SL_OK);
    if (experts) sl_plan_set_schedule(&p, schedule);
    p.exact = true;
    p.threads = 1;
    p.max_num_batched_tokens = 8;
    p.max_num_seqs = 4;
    p.context = 64;
    p.n_pages = 8;
    char *text = sl_plan_print(&p);
    assert_non_null(text);
    const sl_span bytes = {(const uint8_t *)text, strlen(text)};
    if (sl_plan_parse(bytes, "plan", &m, out, &err) != SL_OK) fail_msg("%s", err.msg);
    assert_int_equal(out->n_workers, p.n_workers);
    sl_free(text);
    sl_plan_free(&p);
}

static void turn(deployment *d) {
    d->now_us += 50;
    sl_engine_step(d->engine);
    for (uint32_t i = 0; i < d->n; i++)
        for (uint32_t k = 0; d->worker[i] && k < 100 && sl_worker_step(d->worker[i]); k++) continue;
}

static void start_coordinator(deployment *d, uint32_t attention, uint32_t experts,
                              sl_schedule schedule) {
    sl_err err;
    sl_engine_opts o = {.model_folder = FIXTURE, .transport = "loop", .spawn = SL_SPAWN_NONE};
    read_plan(attention, experts, schedule, &o.plan);
    *d = (deployment){.now_us = 1};
    const sl_clock clock = {now_us, d};
    if (sl_engine_create_stepped(&o, clock, &d->engine, &err) != SL_OK) fail_msg("%s", err.msg);
    snprintf(d->address, sizeof d->address, "%s", sl_net_address(d->engine->net));
    sl_plan_free(&o.plan);
}

static void start(deployment *d, uint32_t attention, uint32_t experts, sl_schedule schedule) {
    sl_err err;
    start_coordinator(d, attention, experts, schedule);
    d->n = d->engine->plan.n_workers;
    d->opts = sl_alloc(d->n, sizeof *d->opts);
    d->worker = sl_alloc(d->n, sizeof(sl_worker *));
    for (uint32_t i = 0; i < d->n; i++) {
        d->opts[i] = (sl_worker_opts){.coordinator = d->address,
                                      .transport = "loop",
                                      .hub = d->engine->hub,
                                      .secret = d->engine->o.secret,
                                      .wanted = i,
                                      .clock = {now_us, d}};
        if (sl_worker_create(&d->opts[i], &d->worker[i], &err) != SL_OK) fail_msg("%s", err.msg);
    }
    for (uint32_t i = 0; i < TURNS && !d->engine->serving; i++) turn(d);
    assert_true(d->engine->serving);
}

static void stop(deployment *d) {
    for (uint32_t i = 0; i < d->n; i++)
        if (d->worker[i]) sl_worker_free(d->worker[i], true);
    sl_engine_free(d->engine);
    sl_free(d->worker);
    sl_free(d->opts);
}

/* The next one to die is gone without a word: of experts after four of attention. */
static void die(deployment *d, uint32_t members) {
    uint32_t id = d->n_dead == 4 ? members + EXPERTS / 2 : d->n_dead * (members / DEATHS);
    sl_worker_free(d->worker[id], true);
    d->worker[id] = NULL;
    d->n_dead++;
}

/* n requests at once, while so many of the workers die, one a turn, once there are tokens. */
static void run(deployment *d, outcome *o, uint32_t n, uint32_t deaths) {
    sl_err err;
    uint64_t id;
    uint32_t ended = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t kind = i % KINDS, prompt[KINDS] = {3 + kind, 17 * kind, 41, 7 * kind, 5};
        const sl_request_params p = {.prompt = prompt,
                                     .n_prompt = 1 + kind,
                                     .max_tokens = NEW,
                                     .sampling = {.top_p = 1},
                                     .ignore_eos = true,
                                     .on_event = on_event,
                                     .ctx = &o[i]};
        if (sl_engine_submit(d->engine, &p, &id, &err) != SL_OK) fail_msg("%s", err.msg);
    }
    for (uint32_t i = 0; i < TURNS && ended < n; i++) {
        if (d->n_dead < deaths && o[0].n > 0) die(d, n);
        turn(d);
        for (ended = 0; ended < n && o[ended].ended;) ended++;
    }
    assert_int_equal(ended, n);
}

static void check(const outcome *alone, uint32_t members, sl_schedule schedule, uint32_t deaths) {
    static outcome got[MEMBERS];
    deployment d;
    sl_engine_detail of;
    sl_err err;
    memset(got, 0, sizeof got);
    start(&d, members, EXPERTS, schedule);
    assert_int_equal(d.engine->roster.n_ready, members + EXPERTS);
    run(&d, got, members, deaths);
    assert_int_equal(d.n_dead, deaths);
    for (uint32_t i = 0; i < members; i++)
        assert_memory_equal(got[i].ids, alone[i % KINDS].ids, sizeof got[i].ids);
    assert_int_equal(sl_engine_detail_get(d.engine, &of, &err), SL_OK);
    assert_int_equal(of.n_workers, members + EXPERTS);
    for (uint32_t i = 0; i < of.n_workers; i++)
        assert_int_equal(of.worker[i].alive, d.worker[i] != NULL);
    for (uint32_t i = 0; deaths == 0 && i < members; i++) /* each had a request */
        assert_int_equal(d.worker[i]->n.tokens, NEW);
    sl_engine_detail_free(&of);
    stop(&d);
}

static uint32_t most = 132;

static void many_say_what_one_says(void **state) {
    (void)state;
    outcome alone[KINDS] = {0};
    deployment d;
    start(&d, 0, 0, SL_SCHED_EP);
    run(&d, alone, KINDS, 0);
    stop(&d);
    check(alone, most, SL_SCHED_DEP, 0);
    check(alone, 92, SL_SCHED_AEP, 0);
    check(alone, most, SL_SCHED_DEP, DEATHS);
    check(alone, 92, SL_SCHED_AEP, DEATHS);
}

static void a_coordinator_of_a_thousand(void **state) {
    (void)state;
    deployment d;
    sl_engine_detail of;
    sl_err err;
    start_coordinator(&d, MEMBERS, EXPERTS, SL_SCHED_DEP);
    assert_int_equal(d.engine->roster.n, MEMBERS + EXPERTS);
    assert_int_equal(d.engine->admit.n_pages, MEMBERS * 8);
    assert_int_equal(d.engine->admit.n_free_pages, MEMBERS * 8);
    assert_int_equal(sl_engine_detail_get(d.engine, &of, &err), SL_OK);
    assert_int_equal(of.n_workers, MEMBERS + EXPERTS);
    assert_int_equal(of.n_expert_workers, EXPERTS);
    assert_string_equal(of.worker[999].name, "worker 999");
    sl_engine_detail_free(&of);
    stop(&d);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "all") == 0) most = MEMBERS;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_coordinator_of_a_thousand),
        cmocka_unit_test(many_say_what_one_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
