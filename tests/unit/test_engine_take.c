/* A real worker takes other plans from a played coordinator: what it answers, what it does not do
 * meanwhile, what it drops, and words that come out of order. */
#include "engine_peers.h"

#define SEQUENCER 1u /* expert workers, in the tests of an attention worker */
#define OTHER     2u

static void forget(stage *s, actor *a, uint16_t kind, uint32_t epoch) {
    uint32_t i = await_kind(s, a, kind);
    assert_int_equal(a->head[i].epoch, epoch);
    actor_forget(a, i);
}

static void say_word(stage *s, uint16_t kind, uint32_t epoch) {
    say(&s->coordinator, (sl_wire_header){.kind = kind, .epoch = epoch}, NULL);
}

/* The same plan with expert `expert` at `worker`. */
static void send_next(stage *s, uint32_t epoch, uint32_t expert, uint32_t worker) {
    s->plan.epoch = epoch;
    s->plan.place.host[expert].worker = worker;
    send_plan(s);
}

static void start(stage *s, uint32_t attention, uint32_t experts, uint32_t real) {
    stage_make(s, attention, experts, real);
    for (uint32_t i = 0; real != 0 && i < s->plan.n_workers; i++)
        if (i != real) dial(s, &s->toy[i]);
    send_plan(s);
    forget(s, &s->coordinator, SL_MSG_READY, 1);
}

/* Nothing comes from the worker for a while. */
static void expect_silence(stage *s, actor *a, uint16_t kind) {
    uint64_t until = sl_now_ns() + 50000000;
    while (sl_now_ns() < until) turn(s);
    for (uint32_t i = 0; i < a->n; i++) assert_int_not_equal(a->head[i].kind, kind);
}

/* Of the expert that moved, the new host is asked in the new epoch. */
static void attention_side(void **state) {
    (void)state;
    stage s;
    start(&s, 1, 2, 0);
    send_next(&s, 2, 0, OTHER);
    forget(&s, &s.coordinator, SL_MSG_READY, 2);
    say_word(&s, SL_MSG_HOLD, 2);
    forget(&s, &s.coordinator, SL_MSG_QUIET, 2);
    say_submit(&s.coordinator, 7, 3);
    expect_silence(&s, &s.toy[SEQUENCER], SL_MSG_JOIN);
    say_word(&s, SL_MSG_TAKE, 2);
    forget(&s, &s.coordinator, SL_MSG_TAKEN, 2);
    expect_silence(&s, &s.toy[SEQUENCER], SL_MSG_JOIN);
    say_word(&s, SL_MSG_GO, 2);
    forget(&s, &s.toy[SEQUENCER], SL_MSG_JOIN, 2);
    /* A return of the old epoch is nobody's fault. */
    say(&s.toy[SEQUENCER], (sl_wire_header){.kind = SL_MSG_RETURN, .epoch = 1, .rows = 0}, NULL);
    expect_silence(&s, &s.coordinator, SL_MSG_TOKENS);
    assert_false(s.toy[SEQUENCER].down);
    stage_end(&s, SL_OK);
}

/* One that has joined is quiet when its round is over, which it leaves. */
static void quiet_after_the_round(void **state) {
    (void)state;
    stage s;
    start(&s, 1, 1, 0);
    actor *expert = &s.toy[SEQUENCER];
    say_submit(&s.coordinator, 7, 3);
    forget(&s, expert, SL_MSG_JOIN, 1);
    send_next(&s, 2, 0, SEQUENCER);
    forget(&s, &s.coordinator, SL_MSG_READY, 2);
    say_word(&s, SL_MSG_HOLD, 2);
    expect_silence(&s, &s.coordinator, SL_MSG_QUIET);
    say_word(&s, SL_MSG_GO, 1); /* given up */
    send_next(&s, 3, 0, SEQUENCER);
    forget(&s, &s.coordinator, SL_MSG_READY, 3);
    expect_silence(&s, &s.coordinator, SL_MSG_QUIET);
    stage_end(&s, SL_OK);
}

static void rows(stage *s, uint32_t epoch, uint32_t expert) {
    actor *a = &s->toy[0];
    batch d = make_batch(s, a, 1, 1, 1, 0);
    d.v.expert[0] = expert;
    d.h.epoch = epoch;
    say(a, d.h, d.b);
}

/* Rounds begin anew, and rows of another epoch, even for experts that are not here, are dropped. */
static void expert_side(void **state) {
    (void)state;
    stage s;
    start(&s, 1, 2, 1);
    actor *member = &s.toy[0];
    uint32_t moved = 0;
    for (uint32_t epoch = 1; epoch <= 3; epoch++) {
        say(member, (sl_wire_header){.kind = SL_MSG_JOIN, .epoch = epoch}, NULL);
        forget(&s, member, SL_MSG_ROUND_OPEN, epoch);
        rows(&s, epoch + 1, moved);
        rows(&s, epoch, moved);
        forget(&s, member, SL_MSG_RETURN, epoch);
        send_next(&s, epoch + 1, moved = s.plan.n_experts - epoch, 1);
        forget(&s, &s.coordinator, SL_MSG_READY, epoch + 1);
        say_word(&s, SL_MSG_TAKE, epoch + 1); /* whoever was in the round is gone, it seems */
        forget(&s, &s.coordinator, SL_MSG_TAKEN, epoch + 1);
        say_word(&s, SL_MSG_GO, epoch + 1);
        rows(&s, epoch, moved);
    }
    assert_false(member->down);
    stage_end(&s, SL_OK);
}

/* Who joins others is ready by itself; until it has taken a plan with them it knows none of the
 * plans by which they go on when a change is given up. */
static void joiner(void **state) {
    (void)state;
    stage s;
    stage_make(&s, 1, 1, 0);
    s.joins = true;
    send_plan(&s);
    forget(&s, &s.coordinator, SL_MSG_READY, 1);
    assert_false(s.toy[SEQUENCER].open);
    s.joins = false;
    send_next(&s, 3, 0, SEQUENCER);
    forget(&s, &s.coordinator, SL_MSG_READY, 3);
    assert_true(s.toy[SEQUENCER].open);
    say_word(&s, SL_MSG_GO, 2); /* given up: they go on by this one */
    send_next(&s, 4, 0, SEQUENCER);
    forget(&s, &s.coordinator, SL_MSG_READY, 4);
    say_word(&s, SL_MSG_TAKE, 4);
    forget(&s, &s.coordinator, SL_MSG_TAKEN, 4);
    say_word(&s, SL_MSG_GO, 4);
    say_submit(&s.coordinator, 7, 3);
    forget(&s, &s.toy[SEQUENCER], SL_MSG_JOIN, 4);
    stage_end(&s, SL_OK);
}

/* The next plan has everything at the sequencer, and the other expert worker not at all. */
static void send_next_without_other(stage *s, uint32_t epoch) {
    for (uint32_t i = 0; i < s->plan.n_experts; i++) s->plan.place.host[i].worker = SEQUENCER;
    s->plan.worker[OTHER].roles = 0;
    s->plan.epoch = epoch;
    send_plan(s);
    forget(s, &s->coordinator, SL_MSG_READY, epoch);
}

static void say_lost(stage *s, uint32_t epoch, uint32_t id) {
    uint32_t set[4] = {1, 0, id, 0};
    say(&s->coordinator,
        (sl_wire_header){.kind = SL_MSG_HOLD, .flags = SL_WIRE_SET, .epoch = epoch},
        bytes_of(&s->coordinator, set, 12));
}

/* HOLD names who is lost, although its connection still stands: nothing of it is waited for. */
static void hold_names_the_lost(void **state) {
    (void)state;
    stage s;
    start(&s, 1, 2, 0);
    send_next_without_other(&s, 2);
    assert_false(s.toy[OTHER].down);
    say_lost(&s, 2, OTHER);
    expect_loss(&s, OTHER);
    await_flag(&s, &s.toy[OTHER].down, "the end of its connection with one that is lost");
    forget(&s, &s.coordinator, SL_MSG_QUIET, 2);
    say_word(&s, SL_MSG_TAKE, 2);
    forget(&s, &s.coordinator, SL_MSG_TAKEN, 2);
    assert_false(s.toy[SEQUENCER].down);
    stage_end(&s, SL_OK);
}

/* Not one that comes in its place by the plan that is to be taken, nor one of no plan. */
static void hold_names_others(void **state) {
    (void)state;
    stage s;
    start(&s, 1, 2, 0);
    send_next(&s, 2, 0, OTHER);
    forget(&s, &s.coordinator, SL_MSG_READY, 2);
    say_lost(&s, 2, OTHER);
    forget(&s, &s.coordinator, SL_MSG_QUIET, 2);
    assert_false(s.toy[OTHER].down);
    say_word(&s, SL_MSG_GO, 1);
    send_next(&s, 3, 0, OTHER);
    forget(&s, &s.coordinator, SL_MSG_READY, 3);
    say_lost(&s, 3, 3);
    await_flag(&s, &s.coordinator.down, "the worker's leave");
    if (!strstr(s.coordinator.why, "worker 3 of 3")) fail_msg("told '%s'", s.coordinator.why);
    stage_end(&s, SL_ERR_PROTOCOL);
}

/* The worker says why, and goes on by the plan that it has. */
static void unable(void **state) {
    (void)state;
    stage s;
    start(&s, 1, 2, 1);
    s.plan.max_num_seqs++;
    send_next(&s, 2, 0, 1);
    uint32_t i = await_kind(&s, &s.coordinator, SL_MSG_UNABLE);
    const sl_buf *b = s.coordinator.body[i];
    assert_non_null(memmem(b->data, b->len, "max_num_seqs", 12));
    say_word(&s, SL_MSG_GO, 1);
    s.plan.max_num_seqs--;
    send_next(&s, 3, 0, 1);
    forget(&s, &s.coordinator, SL_MSG_READY, 3);
    stage_end(&s, SL_OK);
}

static void out_of_order(void **state) {
    static const uint16_t words[] = {SL_MSG_HOLD, SL_MSG_TAKE, SL_MSG_GO};
    (void)state;
    stage s;
    for (size_t i = 0; i < SL_LEN(words); i++) {
        start(&s, 1, 1, 0);
        say_word(&s, words[i], 2);
        await_flag(&s, &s.coordinator.down, "the worker's leave");
        if (!strstr(s.coordinator.why, "of plan 2")) fail_msg("told '%s'", s.coordinator.why);
        stage_end(&s, SL_ERR_PROTOCOL);
    }
}

static void hang_up(stage *s, uint32_t id) {
    sl_net_close(s->toy[id].net, s->toy[id].conn, SL_ERR_PEER_DOWN, "the test cuts it");
}

/* Two expert workers, none of whom is the sequencer, have nothing to tell each other: an earlier
 * plan has left their connection, and its end is nobody's business. */
static void a_connection_that_no_plan_needs_may_end(void **state) {
    (void)state;
    enum { REAL = 2, THIRD = 3 };
    stage s;
    stage_make(&s, 1, 3, REAL);
    dial(&s, &s.toy[0]);
    dial(&s, &s.toy[THIRD]);
    await_flag(&s, &s.toy[THIRD].open, "a connection that is not needed");
    send_plan(&s);
    forget(&s, &s.coordinator, SL_MSG_READY, 1);
    say_word(&s, SL_MSG_GO, 1);
    hang_up(&s, THIRD);
    expect_silence(&s, &s.coordinator, SL_MSG_LOST);
    hang_up(&s, 0);
    expect_loss(&s, 0);
    stage_end(&s, SL_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_side),
        cmocka_unit_test(quiet_after_the_round),
        cmocka_unit_test(expert_side),
        cmocka_unit_test(joiner),
        cmocka_unit_test(unable),
        cmocka_unit_test(out_of_order),
        cmocka_unit_test(a_connection_that_no_plan_needs_may_end),
        cmocka_unit_test(hold_names_the_lost),
        cmocka_unit_test(hold_names_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
