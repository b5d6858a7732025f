/* Who is in a round is the sequencer's word alone: one real expert worker that is not the
 * sequencer, and peers that lie about it. */
#include "engine_peers.h"

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(false_sets_at_the_second),
        cmocka_unit_test(strangers_at_the_second),
        cmocka_unit_test(words_of_a_false_sequencer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
