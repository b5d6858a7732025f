/* What workers on other machines cost is asked before they get a plan (engine/coord/survey.c):
 * played workers towards a stepped engine, a played coordinator towards a real worker. */
#include "engine_peers.h"

#include "engine/coord/coord_int.h"
#include "engine/measure/survey.h"
#include "format/plan_gpu.h"
#include "spec/schedules.h"

#include <math.h>

#define N 2u

typedef struct scene {
    sl_engine *e;
    uint64_t later_us; /* the engine's clock is so much ahead */
    actor worker[N];   /* attention, expert */
} scene;

static uint64_t now_us(void *ctx) {
    return sl_now_ns() / 1000 + ((scene *)ctx)->later_us;
}

static void begin(scene *s, bool modelled) {
    sl_err err = {0};
    sl_model_spec spec;
    *s = (scene){0};
    sl_engine_opts o = {.model_folder = FIXTURE,
                        .transport = "loop",
                        .spawn = SL_SPAWN_NONE,
                        .choose = true,
                        .secret = {(const uint8_t *)SECRET, sizeof SECRET - 1}};
    assert_int_equal(sl_model_read_spec(FIXTURE, &spec, NULL, &err), SL_OK);
    assert_int_equal(sl_plan_local(&spec, 1, 1, &o.plan, &err), SL_OK);
    if (modelled) {
        sl_device_spec device = {.kind = SL_DEVICE_EMULATED, .time_scale = 1};
        device.cost[SL_COST_ATTENTION].row_us = device.cost[SL_COST_EXPERT].row_us = 10;
        sl_plan_set_emulated(&device, &o.plan);
    }
    const sl_clock clock = {.now_us = now_us, .ctx = s};
    if (sl_engine_create_stepped(&o, clock, &s->e, &err) != SL_OK) fail_msg("%s", err.msg);
    sl_plan_free(&o.plan);
    for (uint32_t i = 0; i < N; i++) actor_start(&s->worker[i], s->e->hub, i, false);
    for (uint32_t i = 0; i < N; i++)
        if (sl_net_connect(s->worker[i].net, sl_net_address(s->e->net), NULL, &s->worker[i].conn,
                           &err) != SL_OK)
            fail_msg("%s", err.msg);
}

static void end(scene *s) {
    for (uint32_t i = 0; i < N; i++) actor_stop(&s->worker[i]);
    sl_engine_free(s->e);
}

/* A turn in which played workers send ECHO back, with `damage` added to its number. */
static void step(scene *s, uint64_t damage) {
    sl_engine_step(s->e);
    for (uint32_t i = 0; i < N; i++) {
        actor *a = &s->worker[i];
        sl_net_progress(a->net);
        for (uint32_t k = 0; k < a->n && a->conn;) {
            if (a->head[k].kind != SL_MSG_ECHO) {
                k++;
                continue;
            }
            const sl_wire_header h = {.kind = SL_MSG_ECHO, .number = a->head[k].number + damage};
            sl_buf *b = sl_net_buf_take(a->net, a->body[k]->len);
            assert_non_null(b);
            memset(b->data, 0, b->len);
            actor_forget(a, k);
            say(a, h, b);
        }
    }
}

/* The message of this kind that a played worker has, after a while. */
static const sl_buf *heard(scene *s, uint32_t i, uint16_t kind) {
    const uint64_t until = sl_now_ns() + WAIT_NS;
    const actor *a = &s->worker[i];
    while (sl_now_ns() < until && !a->down) {
        for (uint32_t k = 0; k < a->n; k++)
            if (a->head[k].kind == kind) return a->body[k];
        step(s, 0);
    }
    fail_msg("no %s came to worker %u: %s", sl_msg_kind_name(kind), i, a->why);
    return NULL;
}

static void say_costs(scene *s, uint32_t i, const sl_survey_answer *a) {
    char *text = sl_survey_answer_print(a);
    assert_non_null(text);
    say(&s->worker[i], (sl_wire_header){.kind = SL_MSG_COSTS},
        bytes_of(&s->worker[i], text, strlen(text)));
    sl_free(text);
}

/* Attention as long as experts, so that two lanes are twice as fast. */
static sl_survey_answer costs_of(uint32_t i) {
    sl_survey_answer a = {.threads = 1, .rails = 1, .machine = 7 + i, .cores = 2};
    if (i == 0) a.costs.stage[SL_COST_ATTENTION].row_us = 1000;
    if (i == 1) a.costs.stage[SL_COST_EXPERT].row_us = 500;
    return a;
}

static void expect_plan(scene *s, sl_schedule want, const char *why) {
    for (uint32_t i = 0; i < N; i++) {
        char text[8192], name[40];
        const sl_buf *b = heard(s, i, SL_MSG_PLAN);
        snprintf(text, sizeof text, "%.*s", (int)b->len, (const char *)b->data);
        snprintf(name, sizeof name, "\"schedule\":\"%s\"", sl_schedule_name(want));
        if (!strstr(text, name)) fail_msg("no %s in %s", name, text);
    }
    const sl_auto_report *r = &s->e->survey.report;
    if (!strstr(r->why, why)) fail_msg("'%s' is not in '%s'", why, r->why);
    assert_int_equal(s->e->plan.schedule, want);
    assert_int_equal(s->e->home.schedule, want);
    assert_int_equal(s->e->stats.schedule, want);
}

static void what_they_say_is_what_is_chosen_from(void **state) {
    (void)state;
    scene s;
    begin(&s, false);
    for (uint32_t i = 0; i < N; i++) {
        sl_json_doc *doc = NULL;
        sl_survey_question q;
        sl_err err;
        const sl_buf *b = heard(&s, i, SL_MSG_MEASURE);
        const sl_span in = {b->data, b->len};
        if (sl_survey_question_read(in, &doc, &q, &err) != SL_OK) fail_msg("%s", err.msg);
        assert_int_equal(q.roles, i == 0 ? SL_ROLE_ATTENTION : SL_ROLE_EXPERT);
        assert_string_equal(q.model, FIXTURE);
        sl_json_doc_free(doc);
        const sl_survey_answer a = costs_of(i);
        say_costs(&s, i, &a);
    }
    expect_plan(&s, SL_SCHED_PINGPONG, "pingpong");
    const sl_auto_report *r = &s.e->survey.report;
    assert_true(r->measured && s.e->plan.has_costs && s.e->survey.n_links == N);
    assert_true(s.e->plan.costs.stage[SL_COST_ATTENTION].row_us == 1000);
    assert_true(s.e->plan.costs.stage[SL_COST_EXPERT].row_us == 500);
    assert_true(s.e->plan.costs.link.alpha_us > 0 && s.e->stats.predicted.block_s[0] > 0);
    end(&s);
}

/* On one core together lanes gain nothing. */
static void who_shares_cores_gains_nothing(void **state) {
    (void)state;
    scene s;
    begin(&s, false);
    for (uint32_t i = 0; i < N; i++) {
        heard(&s, i, SL_MSG_MEASURE);
        sl_survey_answer a = costs_of(i);
        a.machine = 7;
        a.cores = 1;
        say_costs(&s, i, &a);
    }
    expect_plan(&s, SL_SCHED_DEP, "dep: decode");
    end(&s);
}

/* What is known of an emulated device is not measured. */
static void emulated_devices_are_asked_where_they_are(void **state) {
    (void)state;
    scene s;
    begin(&s, true);
    for (uint32_t i = 0; i < N; i++) {
        const sl_buf *b = heard(&s, i, SL_MSG_MEASURE);
        assert_true(memmem(b->data, b->len, "\"roles\":0", 9) != NULL);
        const sl_survey_answer a = {.threads = 1, .rails = 1, .machine = 7, .cores = 1};
        say_costs(&s, i, &a);
    }
    expect_plan(&s, SL_SCHED_PINGPONG, "pingpong");
    end(&s);
}

static void who_does_not_know_leaves_the_schedule(void **state) {
    (void)state;
    scene s;
    begin(&s, false);
    heard(&s, 0, SL_MSG_MEASURE);
    say_costs(&s, 0, &(sl_survey_answer){.why = "its disk is \xC3 full"}); /* half a letter */
    expect_plan(&s, SL_SCHED_DEP,
                "worker 0 does not know what its stages cost: its disk is ? full");
    assert_false(s.e->plan.has_costs);
    end(&s);
}

/* Those at one address measure one after the other. */
static void answer_of_the_first(scene *s) {
    heard(s, 0, SL_MSG_MEASURE);
    for (uint32_t k = 0; k < s->worker[1].n; k++)
        assert_int_not_equal(s->worker[1].head[k].kind, SL_MSG_MEASURE);
    const sl_survey_answer a = costs_of(0);
    say_costs(s, 0, &a);
    heard(s, 1, SL_MSG_MEASURE);
}

static void who_says_nothing_is_not_waited_for(void **state) {
    (void)state;
    scene s;
    begin(&s, false);
    answer_of_the_first(&s);
    for (int n = 0; n < 50; n++) step(&s, 0);
    assert_false(s.e->planned);
    for (int n = 0; n < 700 && !s.e->planned; n++) { /* a clock that leaps stands for a stop */
        s.later_us += 100000;
        step(&s, 0);
    }
    expect_plan(&s, SL_SCHED_DEP, "dep: worker 1 has not said in");
    const sl_survey_answer a = costs_of(1);
    say_costs(&s, 1, &a); /* too late, and no error */
    for (int n = 0; n < 50; n++) step(&s, 0);
    assert_false(s.worker[1].down);
    end(&s);
}

static void expect_end(scene *s, uint32_t i, const char *why) {
    const uint64_t until = sl_now_ns() + WAIT_NS;
    while (!s->worker[i].down && sl_now_ns() < until) step(s, 0);
    assert_true(s->worker[i].down);
    if (!strstr(s->worker[i].why, why)) fail_msg("'%s' is not in '%s'", why, s->worker[i].why);
    assert_int_equal(s->e->start_status, SL_ERR_WORKER_LOST);
    end(s);
}

static void nonsense_ends_the_connection(void **state) {
    (void)state;
    scene s;
    static const char bad[] = "{\"costs\":{\"attention\":{\"row\":-1}}}";
    begin(&s, false);
    for (int n = 0; n < 50 && !s.worker[0].down; n++) step(&s, 1);
    expect_end(&s, 0, "which nobody sent");
    begin(&s, false);
    heard(&s, 0, SL_MSG_MEASURE);
    say(&s.worker[0], (sl_wire_header){.kind = SL_MSG_COSTS},
        bytes_of(&s.worker[0], bad, sizeof bad - 1));
    expect_end(&s, 0, "row");
    begin(&s, false);
    heard(&s, 0, SL_MSG_MEASURE);
    const sl_survey_answer a = costs_of(0);
    say_costs(&s, 0, &a);
    say_costs(&s, 0, &a);
    expect_end(&s, 0, "COSTS that nobody asked for");
}

/* Whoever leaves while it is asked ends the start, as ever. */
static void one_leaves_meanwhile(void **state) {
    (void)state;
    for (uint32_t i = 0; i < N; i++) {
        scene s;
        begin(&s, false);
        heard(&s, 0, SL_MSG_MEASURE);
        if (i == 1) answer_of_the_first(&s);
        sl_net_close(s.worker[i].net, s.worker[i].conn, SL_OK, "leaving");
        s.worker[i].conn = NULL;
        for (int n = 0; n < 200 && s.e->start_status == SL_OK; n++) step(&s, 0);
        assert_int_equal(s.e->start_status, SL_ERR_WORKER_LOST);
        end(&s);
    }
}

/* ---- a real worker ---- */

static void say_text(stage *s, uint16_t kind, const char *text) {
    say(&s->coordinator, (sl_wire_header){.kind = kind, .number = 5},
        bytes_of(&s->coordinator, text, strlen(text)));
}

static sl_survey_answer answer(stage *s) {
    sl_survey_answer a;
    sl_err err;
    actor *c = &s->coordinator;
    const uint32_t at = await_kind(s, c, SL_MSG_COSTS);
    const sl_span in = {c->body[at]->data, c->body[at]->len};
    if (sl_survey_answer_read(in, &a, &err) != SL_OK) fail_msg("%s", err.msg);
    actor_forget(c, at);
    return a;
}

static char *question(uint32_t roles, const char *model) {
    const sl_survey_question q = {
        .model = model, .roles = roles, .rows = 64, .keys = 32, .threads = 1, .kv_type = SL_KV_F16};
    char *text = sl_survey_question_print(&q);
    assert_non_null(text);
    return text;
}

static void a_worker_measures_and_serves(void **state) {
    (void)state;
    stage s;
    stage_make_rejoining(&s, 1, 1, 0, 1); /* it keeps what it has measured */
    say_text(&s, SL_MSG_ECHO, "there and back");
    const uint32_t at = await_kind(&s, &s.coordinator, SL_MSG_ECHO);
    assert_int_equal(s.coordinator.head[at].number, 5);
    assert_memory_equal(s.coordinator.body[at]->data, "there and back", 14);
    char *text = question(SL_ROLE_ATTENTION, FIXTURE);
    say_text(&s, SL_MSG_MEASURE, text);
    const sl_survey_answer a = answer(&s);
    assert_true(a.costs.stage[SL_COST_ATTENTION].floor_us > 0);
    assert_true(a.costs.stage[SL_COST_EXPERT].floor_us == 0);
    assert_true(a.threads == 1 && a.rails == 1 && a.cores >= 1 && a.machine);
    say_text(&s, SL_MSG_MEASURE, text);
    const sl_survey_answer b = answer(&s); /* the same numbers: it does not measure twice */
    assert_memory_equal(&a.costs, &b.costs, sizeof a.costs);
    sl_free(text);
    text = question(SL_ROLE_EXPERT, "/nowhere");
    say_text(&s, SL_MSG_MEASURE, text);
    const sl_survey_answer c = answer(&s);
    assert_non_null(strstr(c.why, "/nowhere"));
    sl_free(text);
    send_plan(&s);
    dial(&s, &s.toy[1]);
    await_kind(&s, &s.coordinator, SL_MSG_READY);
    stage_end(&s, SL_OK);
}

static void nonsense_ends_the_worker_s_connection(void **state) {
    (void)state;
    static const struct {
        uint16_t kind;
        bool planned;
        const char *text, *why;
        sl_status status;
    } bad[] = {{SL_MSG_MEASURE, false, "{}", "model", SL_ERR_FORMAT},
               {SL_MSG_MEASURE, false, "{\"model\":\"x\",\"roles\":4}", "roles", SL_ERR_LIMIT},
               {SL_MSG_MEASURE, true, "{}", "MEASURE after the plan", SL_ERR_PROTOCOL},
               {SL_MSG_ECHO, true, "x", "ECHO of 1 bytes after the plan", SL_ERR_PROTOCOL},
               {SL_MSG_COSTS, false, "x", "COSTS from the coordinator", SL_ERR_PROTOCOL}};
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        stage s;
        stage_make(&s, 1, 1, 0);
        if (bad[i].planned) send_plan(&s);
        say_text(&s, bad[i].kind, bad[i].text);
        await_flag(&s, &s.coordinator.down, "the end");
        if (!strstr(s.coordinator.why, bad[i].why)) fail_msg("%s", s.coordinator.why);
        stage_end(&s, bad[i].status);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_they_say_is_what_is_chosen_from),
        cmocka_unit_test(who_shares_cores_gains_nothing),
        cmocka_unit_test(emulated_devices_are_asked_where_they_are),
        cmocka_unit_test(who_does_not_know_leaves_the_schedule),
        cmocka_unit_test(who_says_nothing_is_not_waited_for),
        cmocka_unit_test(nonsense_ends_the_connection),
        cmocka_unit_test(one_leaves_meanwhile),
        cmocka_unit_test(a_worker_measures_and_serves),
        cmocka_unit_test(nonsense_ends_the_worker_s_connection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
