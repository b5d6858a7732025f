/* Who is in a round is the sequencer's word alone: one real expert worker that is not the
 * sequencer, and peers that lie about it. */
#include "engine_peers.h"
#include "format/placement.h"
#include "sched/busy.h"

#define ROGUE     0u
#define HONEST    1u
#define SEQUENCER 2u /* played */
#define SECOND    3u /* real, hosts expert 0 alone */

static void start_second(stage *s) {
    stage_make(s, 2, 2, SECOND);
    for (uint32_t e = 0; e < s->plan.n_experts; e++)
        s->plan.place.host[e].worker = e == 0 ? SECOND : SEQUENCER;
    for (uint32_t i = 0; i < SEQUENCER; i++) dial(s, &s->toy[i]);
    send_plan(s);
    actor_forget(&s->coordinator, await_kind(s, &s->coordinator, SL_MSG_READY));
}

static void say_set(actor *a, uint16_t kind, uint64_t round, const uint32_t *ids, uint32_t n) {
    sl_buf *b = sl_net_buf_take(a->net, sl_wire_set_bytes(n));
    assert_non_null(b);
    sl_wire_set_encode(ids, n, b->data);
    say(a, (sl_wire_header){.kind = kind, .round = round}, b);
}

static void say_rows(stage *s, actor *a, uint64_t round, const uint32_t *ids, uint32_t n) {
    batch d = make_batch(s, a, 1, 1, n, 0);
    if (n) memcpy(d.v.set, ids, n * sizeof *ids);
    d.h.round = round;
    say(a, d.h, d.b);
}

static const uint32_t both[] = {ROGUE, HONEST}, rogue_alone[] = {ROGUE}, honest_alone[] = {HONEST};

/* The rogue goes, the sequencer hears of it and says so, and the honest member's round goes on. */
static void expect_rogue_gone(stage *s, const char *text) {
    actor *rogue = &s->toy[ROGUE], *honest = &s->toy[HONEST], *seq = &s->toy[SEQUENCER];
    await_flag(s, &rogue->down, "the end of the offender");
    if (!strstr(rogue->why, text)) fail_msg("told '%s', not '%s'", rogue->why, text);
    uint32_t i = await_kind(s, seq, SL_MSG_MEMBER_DEAD), who = 99;
    sl_err err;
    assert_int_equal(
        sl_wire_worker_decode((sl_span){seq->body[i]->data, seq->body[i]->len}, &who, &err), SL_OK);
    assert_int_equal(who, ROGUE);
    actor_forget(seq, i);
    who = ROGUE;
    say(seq, (sl_wire_header){.kind = SL_MSG_MEMBER_DEAD}, bytes_of(seq, &who, sizeof who));
    actor_forget(honest, await_kind(s, honest, SL_MSG_RETURN));
    assert_true(honest->open && seq->open);
    stage_end(s, SL_OK);
}

/* A set that a member made up, before and after the sequencer's word, also when it comes first. */
static void false_sets_at_the_second(void **state) {
    (void)state;
    for (int order = 0; order < 4; order++) {
        stage s;
        start_second(&s);
        actor *rogue = &s.toy[ROGUE], *honest = &s.toy[HONEST], *seq = &s.toy[SEQUENCER];
        if (order == 0) say_set(seq, SL_MSG_ROUND_SET, 1, both, 2);
        if (order == 3) say_rows(&s, honest, 1, both, 2);
        if (order < 3) say_rows(&s, rogue, 1, rogue_alone, 1);
        if (order == 1) say_rows(&s, honest, 1, both, 2);
        for (int i = 0; i < 20; i++) turn(&s);
        assert_true(order == 0 || rogue->open); /* nobody is judged before the word */
        if (order > 0) say_set(seq, SL_MSG_ROUND_SET, 1, both, 2);
        if (order == 3) say_rows(&s, rogue, 1, rogue_alone, 1);
        if (order == 0 || order == 2) say_rows(&s, honest, 1, both, 2);
        expect_rogue_gone(&s, "(1 members) is not the one decided (2 members)");
    }
}

static void strangers_at_the_second(void **state) {
    (void)state;
    for (int early = 0; early < 2; early++) { /* the rogue is in no round */
        stage s;
        start_second(&s);
        if (early) say_rows(&s, &s.toy[ROGUE], 1, both, 2);
        for (int i = 0; i < 20; i++) turn(&s);
        say_set(&s.toy[SEQUENCER], SL_MSG_ROUND_SET, 1, honest_alone, 1);
        if (!early) say_rows(&s, &s.toy[ROGUE], 1, both, 2);
        say_rows(&s, &s.toy[HONEST], 1, honest_alone, 1);
        expect_rogue_gone(&s, "worker 0 is no member of round 1");
    }
    stage s; /* it skips layers, and is found out when the round is announced */
    start_second(&s);
    batch d = make_batch(&s, &s.toy[ROGUE], 1, 1, 0, 0);
    d.h.layer = 1;
    say(&s.toy[ROGUE], d.h, d.b);
    say_rows(&s, &s.toy[HONEST], 1, both, 2);
    for (int i = 0; i < 20; i++) turn(&s);
    say_set(&s.toy[SEQUENCER], SL_MSG_ROUND_SET, 1, both, 2);
    expect_rogue_gone(&s, "its next is layer 0");

    start_second(&s); /* it votes at the sequencer and sends nothing here */
    for (uint64_t round = 1; round <= 3; round++)
        say_set(&s.toy[SEQUENCER], SL_MSG_ROUND_SET, round, round == 1 ? both : rogue_alone,
                round == 1 ? 2 : 1);
    say_rows(&s, &s.toy[HONEST], 1, both, 2);
    expect_rogue_gone(&s, "votes for rounds at the sequencer");
}

/* Only the sequencer makes rounds, and without it there are none. */
static void words_of_a_false_sequencer(void **state) {
    (void)state;
    stage s;
    start_second(&s);
    say_set(&s.toy[ROGUE], SL_MSG_ROUND_SET, 1, rogue_alone, 1);
    say_set(&s.toy[SEQUENCER], SL_MSG_ROUND_SET, 1, both, 2);
    say_rows(&s, &s.toy[HONEST], 1, both, 2);
    expect_rogue_gone(&s, "unexpected ROUND_SET from worker 0");

    static const uint32_t wrong[] = {HONEST, SECOND};
    for (int i = 0; i < 3; i++) {
        start_second(&s);
        actor *seq = &s.toy[SEQUENCER];
        say_set(seq, SL_MSG_ROUND_SET, 5, i == 0 ? wrong : both, i == 1 ? 0 : 2);
        if (i == 2) say_set(seq, SL_MSG_ROUND_SET, 5, both, 2);
        await_flag(&s, &seq->down, "the end of the sequencer's connection");
        const char *text = i == 0 ? "round with worker 3" : i == 1 ? "0 members" : "after round 5";
        if (!strstr(seq->why, text)) fail_msg("told '%s', not '%s'", seq->why, text);
        expect_loss(&s, SEQUENCER);
        stage_end(&s, SL_OK);
    }
}

static void say_of(actor *a, uint16_t kind, uint32_t who) {
    say(a, (sl_wire_header){.kind = kind}, bytes_of(a, &who, sizeof who));
}

/* Others do without the sequencer, and it has lost its connection with a member meanwhile: that one
 * is served on. */
static void words_of_one_done_without(void **state) {
    (void)state;
    stage s;
    start_second(&s);
    actor *honest = &s.toy[HONEST], *seq = &s.toy[SEQUENCER];
    say_set(seq, SL_MSG_ROUND_SET, 1, both, 2);
    say_rows(&s, honest, 1, both, 2);
    say_of(&s.coordinator, SL_MSG_SLOW, SEQUENCER);
    actor_forget(honest, await_kind(&s, honest, SL_MSG_RETURN)); /* the other is not waited for */
    say_of(seq, SL_MSG_MEMBER_DEAD, HONEST);
    for (int i = 0; i < 50; i++) turn(&s);
    batch d = make_batch(&s, honest, 1, 1, 0, 0);
    d.h.layer = 1;
    say(honest, d.h, d.b);
    actor_forget(honest, await_kind(&s, honest, SL_MSG_RETURN));
    assert_true(honest->open && seq->open && !honest->down && !seq->down);
    stage_end(&s, SL_OK);
}

/* Expert 0 on the worker under test, all others on the other one; doubled: each on both. */
static void place_on_both(sl_plan *p, bool doubled) {
    const uint32_t n = p->n_experts, hosts = doubled ? 2 : 1;
    sl_placement_free(&p->place);
    p->place = (sl_placement){.n_layers = 1,
                              .first = sl_alloc(n + 1u, sizeof *p->place.first),
                              .host = sl_alloc((size_t)n * hosts, sizeof *p->place.host)};
    for (uint32_t e = 0; e < n; e++) {
        p->place.first[e + 1] = (e + 1) * hosts;
        for (uint32_t i = 0; i < hosts; i++)
            p->place.host[e * hosts + i] =
                (sl_host){SEQUENCER + i, i + 1 == hosts ? UINT32_MAX : UINT32_MAX / 2};
        if (!doubled && e == 0) p->place.host[0].worker = SECOND;
    }
}

/* With replicas or without, who waits for another member hears that it is not the worker that lets
 * it wait; a task of which nobody knows how long it takes is said to all. */
static void who_waits_hears_why(void **state) {
    (void)state;
    for (int doubled = 0; doubled < 2; doubled++) {
        stage s;
        stage_make(&s, 2, 2, SECOND);
        place_on_both(&s.plan, doubled);
        for (uint32_t i = 0; i < SEQUENCER; i++) dial(&s, &s.toy[i]);
        send_plan(&s);
        actor_forget(&s.coordinator, await_kind(&s, &s.coordinator, SL_MSG_READY));
        actor *first = &s.toy[0], *honest = &s.toy[HONEST];
        say_set(&s.toy[SEQUENCER], SL_MSG_ROUND_SET, 1, both, 2);
        say_rows(&s, honest, 1, both, 2);
        uint32_t i = await_kind(&s, honest, SL_MSG_BUSY);
        assert_true(honest->head[i].number == SL_BUSY_AGAIN_US / 2 && !honest->body[i]);
        while (honest->n) actor_forget(honest, 0);
        assert_int_equal(first->n, 0);
        say_rows(&s, first, 1, both, 2);
        i = await_kind(&s, first, SL_MSG_BUSY);
        assert_int_equal(first->head[i].number, SL_BUSY_UNKNOWN_US);
        await_kind(&s, honest, SL_MSG_BUSY);
        await_kind(&s, honest, SL_MSG_RETURN);
        await_kind(&s, first, SL_MSG_RETURN);
        stage_end(&s, SL_OK);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(false_sets_at_the_second),   cmocka_unit_test(strangers_at_the_second),
        cmocka_unit_test(words_of_a_false_sequencer), cmocka_unit_test(words_of_one_done_without),
        cmocka_unit_test(who_waits_hears_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
