/* Schedule aep, one real worker among played ones: what it batches, and what it refuses. Each
 * offence is answered with its reason and ends only the offender's connection. */
#include "engine_peers.h"

/* ---- a real expert worker ---- */

/* Attention workers 0 (the rogue) and 1 (honest) and expert worker 3 are played; expert worker 2 is
 * real and hosts expert 0 alone. */
#define ROGUE  0u
#define HONEST 1u
#define REAL   2u
#define OTHER  3u

static void start_expert(stage *s) {
    stage_make(s, 2, 2, REAL);
    sl_plan_set_schedule(&s->plan, SL_SCHED_AEP);
    for (uint32_t e = 0; e < s->plan.n_experts; e++)
        s->plan.place.host[e].worker = e == 0 ? REAL : OTHER;
    for (uint32_t i = 0; i < 4; i++)
        if (i != REAL) dial(s, &s->toy[i]);
    send_plan(s);
    actor_forget(&s->coordinator, await_kind(s, &s->coordinator, SL_MSG_READY));
}

/* `rows` rows of `each` entries for expert 0. */
static batch rows_of(stage *s, actor *a, uint32_t rows, uint32_t each) {
    return make_batch(s, a, rows, each, 0, 0);
}

/* The next return to `a` has these rows in this order. */
static void expect_return(stage *s, actor *a, uint32_t layer, uint32_t rows) {
    sl_err err;
    sl_wire_return back;
    uint32_t i = await_kind(s, a, SL_MSG_RETURN);
    sl_span span = {a->body[i]->data, a->body[i]->len};
    assert_int_equal(sl_wire_return_decode(&a->head[i], span, &s->m, 0, &back, &err), SL_OK);
    assert_int_equal(a->head[i].layer, layer);
    assert_int_equal(back.rows, rows);
    for (uint32_t r = 0; r < rows; r++) {
        assert_int_equal(back.tag[r], 100 + r);
        assert_int_equal(back.mask[r], 1);
    }
    actor_forget(a, i);
}

static void serve_honest(stage *s) {
    batch d = rows_of(s, &s->toy[HONEST], 2, 1);
    d.h.layer = 1;
    say(&s->toy[HONEST], d.h, d.b);
    expect_return(s, &s->toy[HONEST], 1, 2);
}

static void expect_end(stage *s, actor *a, const char *text) {
    await_flag(s, &a->down, "the end of the offender");
    if (!strstr(a->why, text)) fail_msg("told '%s', not '%s'", a->why, text);
    serve_honest(s);
    stage_end(s, SL_OK);
}

typedef enum bend {
    LANE,
    CHUNK,
    LAYER,
    FLAGS,
    ELSEWHERE,
    NO_EXPERT,
    TOO_MANY,
    TWICE,
    JUMP,
    NAN_GATE,
    TRUNCATED,
    GARBAGE,
    NO_PAYLOAD,
    BARE
} bend;

static const struct {
    bend how;
    const char *text;
} bent[] = {
    {LANE, "lane 1"},
    {CHUNK, "chunk 1"},
    {LAYER, "layer 99 of 3"},
    {FLAGS, "flags 2"},
    {ELSEWHERE, "expert 5 of layer 0 is at worker 3"},
    {NO_EXPERT, "expert 4000"},
    {TOO_MANY, "9 rows in flight, 8 are reserved"},
    {TWICE, "row 0 names expert 0 after expert 0"},
    {JUMP, "wave 4294967297 after 0"},
    {NAN_GATE, "gate"},
    {TRUNCATED, "bytes"},
    {GARBAGE, "dispatch"},
    {NO_PAYLOAD, "DISPATCH of 3 rows, 0 bytes"},
    {BARE, "DISPATCH of 0 rows"},
};

static void bend_batch(actor *a, batch *d, bend how) {
    if (how == LANE) d->h.lane = 1;
    if (how == CHUNK) d->h.chunk = 1;
    if (how == LAYER) d->h.layer = 99;
    if (how == FLAGS) d->h.flags = SL_WIRE_STAY;
    if (how == ELSEWHERE) d->v.expert[1] = 5;
    if (how == NO_EXPERT) d->v.expert[1] = 4000;
    if (how == JUMP) d->h.wave = (1ull << 32) + 1;
    if (how == NAN_GATE) memset(&d->v.gate[2], 0xFF, sizeof *d->v.gate);
    if (how == TRUNCATED) d->b->len -= 64;
    if (how == GARBAGE) memset(d->b->data, 0x5A, d->b->len);
    if (how == NO_PAYLOAD || how == BARE) {
        sl_net_buf_give(a->net, d->b);
        d->b = NULL;
        if (how == BARE) d->h.rows = 0;
    }
}

static void bad_dispatches(void **state) {
    (void)state;
    for (size_t i = 0; i < SL_LEN(bent); i++) {
        stage s;
        start_expert(&s);
        actor *a = &s.toy[ROGUE];
        bend how = bent[i].how;
        batch d = rows_of(&s, a, how == TOO_MANY ? 9 : 3, how == TWICE ? 2 : 1);
        bend_batch(a, &d, how);
        say(a, d.h, d.b);
        expect_end(&s, a, bent[i].text);
    }
}

/* There are no rounds to join and nobody's death to announce. */
static void kinds_of_other_schedules(void **state) {
    (void)state;
    static const uint16_t kinds[] = {SL_MSG_JOIN, SL_MSG_MEMBER_DEAD, SL_MSG_ROUND_OPEN,
                                     SL_MSG_RETURN};
    for (size_t i = 0; i < SL_LEN(kinds); i++) {
        stage s;
        start_expert(&s);
        const uint32_t zero = 0;
        say(&s.toy[ROGUE], (sl_wire_header){.kind = kinds[i]}, bytes_of(&s.toy[ROGUE], &zero, 4));
        expect_end(&s, &s.toy[ROGUE], "unexpected");
    }
    stage s; /* expert workers have no rows of their own */
    start_expert(&s);
    batch d = rows_of(&s, &s.toy[OTHER], 1, 1);
    say(&s.toy[OTHER], d.h, d.b);
    expect_end(&s, &s.toy[OTHER], "dispatch from worker 3");
}

/* Both workers' rows run, whoever is first, and each gets its own back; a worker that leaves with
 * rows in the queues takes nothing from the other. */
static void nobody_waits_for_others(void **state) {
    (void)state;
    stage s;
    start_expert(&s);
    for (uint32_t turn_of = 0; turn_of < 20; turn_of++) {
        for (uint32_t i = ROGUE; i <= HONEST; i++) {
            batch d = rows_of(&s, &s.toy[i], 8, 1); /* all that is reserved */
            d.h.layer = (turn_of + i) % 3;
            d.h.wave = turn_of;
            say(&s.toy[i], d.h, d.b);
        }
        expect_return(&s, &s.toy[ROGUE], turn_of % 3, 8);
        expect_return(&s, &s.toy[HONEST], (turn_of + 1) % 3, 8);
    }
    for (uint32_t i = ROGUE; i <= HONEST; i++) {
        batch d = rows_of(&s, &s.toy[i], 8, 1);
        say(&s.toy[i], d.h, d.b);
    }
    sl_net_close(s.toy[ROGUE].net, s.toy[ROGUE].conn, SL_OK, "enough");
    expect_return(&s, &s.toy[HONEST], 0, 8);
    serve_honest(&s);
    stage_end(&s, SL_OK);
}

/* ---- a real attention worker ---- */

#define FIRST  1u /* expert workers 1 and 2 are played */
#define SECOND 2u

static void start_attention(stage *s) {
    stage_make(s, 1, 2, 0);
    sl_plan_set_schedule(&s->plan, SL_SCHED_AEP);
    send_plan(s);
    actor_forget(&s->coordinator, await_kind(s, &s->coordinator, SL_MSG_READY));
}

static void submit(stage *s, uint64_t request, uint32_t n_tokens, uint32_t page) {
    static const uint32_t tokens[8] = {3, 17, 41, 5, 6, 7, 8, 9};
    const sl_wire_submit in = {.request = request,
                               .max_tokens = 20,
                               .sampling.top_p = 1,
                               .n_tokens = n_tokens,
                               .n_prompt = n_tokens,
                               .n_pages = 1,
                               .tokens = tokens,
                               .pages = &page};
    sl_buf *b = sl_net_buf_take(s->coordinator.net, sl_wire_submit_bytes(&in));
    assert_non_null(b);
    sl_wire_submit_encode(&in, b->data);
    say(&s->coordinator, (sl_wire_header){.kind = SL_MSG_SUBMIT}, b);
}

static uint32_t await_finish(stage *s, uint64_t request) {
    actor *c = &s->coordinator;
    for (;;) {
        const sl_wire_token *t;
        const sl_logprob *logprobs;
        sl_err err;
        uint32_t i = await_kind(s, c, SL_MSG_TOKENS), finish = SL_FINISH_NONE;
        sl_span span = {c->body[i]->data, c->body[i]->len};
        assert_int_equal(sl_wire_tokens_decode(&c->head[i], span, &t, &logprobs, &err), SL_OK);
        for (uint32_t j = 0; j < c->head[i].rows; j++)
            if (t[j].request == request) finish = t[j].finish;
        actor_forget(c, i);
        if (finish != SL_FINISH_NONE) return finish;
    }
}

static void expect_error(stage *s, actor *a, const char *text) {
    await_flag(s, &a->down, "the end of the offender");
    if (!strstr(a->why, text)) fail_msg("told '%s', not '%s'", a->why, text);
    expect_loss(s, (uint32_t)(a - s->toy));
    say_cancel(&s->coordinator, 7);
    assert_int_equal(await_finish(s, 7), SL_FINISH_STOP);
    stage_end(s, SL_OK);
}

typedef struct reply {
    sl_wire_header h;
    sl_buf *b;
    sl_wire_return v;
} reply;

/* An answer, one position a row and every value 0, to the oldest dispatch that `a` has; takes it.
 */
static reply make_reply(stage *s, actor *a) {
    uint32_t i = await_kind(s, a, SL_MSG_DISPATCH), at = 0;
    sl_wire_dispatch in;
    sl_err err;
    sl_span span = {a->body[i]->data, a->body[i]->len};
    assert_int_equal(sl_wire_dispatch_decode(&a->head[i], span, &s->m, 0, &in, &err), SL_OK);
    reply r = {.h = {.kind = SL_MSG_RETURN,
                     .wave = a->head[i].round,
                     .layer = a->head[i].layer,
                     .rows = in.n_entries}};
    r.b = sl_net_buf_take(a->net, sl_wire_return_bytes(in.n_entries, 0, s->m.d_model, 0));
    assert_non_null(r.b);
    memset(r.b->data, 0, r.b->len);
    sl_wire_return_layout(r.b->data, in.n_entries, 0, s->m.d_model, 0, &r.v);
    for (uint32_t row = 0; row < in.rows; row++)
        for (uint32_t e = in.first[row]; e < in.first[row + 1]; e++, at++) {
            r.v.tag[at] = in.tag[row];
            r.v.mask[at] = 1ull << in.position[e];
        }
    actor_forget(a, i);
    return r;
}

typedef enum wrong {
    TAG,
    OVERLAP,
    MASK_ZERO,
    MASK_HIGH,
    MASK_TWO,
    MASK_OTHER,
    WRONG_LAYER,
    WRONG_LANE,
    WITH_SET,
    WAVE,
    SHORT,
    EMPTY,
    RUBBISH,
    AGAIN
} wrong;

static const struct {
    wrong how;
    const char *text;
} wrongs[] = {
    {TAG, "unknown tag"},
    {OVERLAP, "covers positions"},
    {MASK_ZERO, "mask"},
    {MASK_HIGH, "mask"},
    {MASK_TWO, "covers positions 3"},
    {MASK_OTHER, "at its owner"},
    {WRONG_LAYER, "of layer 2 is not with the experts"},
    {WRONG_LANE, "lane"},
    {WITH_SET, "flags 1"},
    {WAVE, "wave"},
    {SHORT, "bytes"},
    {EMPTY, "RETURN of 0 rows"},
    {RUBBISH, "return"},
    {AGAIN, "covers positions"},
};

/* Whoever of the two has rows first; rows of a short prompt may all go to one of them. */
static actor *first_asked(stage *s) {
    for (;;) {
        for (uint32_t w = FIRST; w <= SECOND; w++)
            for (uint32_t i = 0; i < s->toy[w].n; i++)
                if (s->toy[w].head[i].kind == SL_MSG_DISPATCH) return &s->toy[w];
        turn(s);
    }
}

static void bad_returns(void **state) {
    (void)state;
    for (size_t i = 0; i < SL_LEN(wrongs); i++) {
        stage s;
        wrong how = wrongs[i].how;
        start_attention(&s);
        submit(&s, 7, 7, 0);
        actor *a = first_asked(&s);
        reply r = make_reply(&s, a);
        assert_true(r.h.rows > 1);
        if (how == TAG) r.v.tag[1] ^= 1ull << 20;
        if (how == OVERLAP) r.v.tag[1] = r.v.tag[0], r.v.mask[1] = r.v.mask[0];
        if (how == MASK_ZERO) r.v.mask[0] = 0;
        if (how == MASK_HIGH) r.v.mask[0] = 4;
        if (how == MASK_TWO) r.v.mask[0] = 3;
        if (how == MASK_OTHER) { /* the position that the other expert worker owes */
            uint32_t j = 0;
            while (j + 1 < r.h.rows && r.v.tag[j] == r.v.tag[j + 1]) j += 2;
            assert_true(j < r.h.rows);
            r.v.mask[j] ^= 3;
        }
        if (how == WRONG_LAYER) r.h.layer = 2;
        if (how == WRONG_LANE) r.h.lane = 3;
        if (how == WITH_SET) r.h.flags = SL_WIRE_SET;
        if (how == WAVE) r.h.wave = 1ull << 60;
        if (how == SHORT) r.b->len -= 64;
        if (how == RUBBISH) memset(r.b->data, 0x5A, r.b->len);
        if (how == EMPTY) {
            sl_net_buf_give(a->net, r.b);
            r.b = NULL;
            r.h.rows = 0;
        }
        if (how == AGAIN) say(a, r.h, bytes_of(a, r.b->data, r.b->len));
        say(a, r.h, r.b);
        expect_error(&s, a, wrongs[i].text);
    }
}

static void unasked(void **state) {
    (void)state;
    static const uint16_t kinds[] = {SL_MSG_DISPATCH, SL_MSG_JOIN, SL_MSG_MEMBER_DEAD};
    for (size_t i = 0; i < SL_LEN(kinds); i++) {
        stage s;
        start_attention(&s);
        const uint32_t zero = 0;
        say(&s.toy[FIRST], (sl_wire_header){.kind = kinds[i]}, bytes_of(&s.toy[FIRST], &zero, 4));
        submit(&s, 7, 3, 0);
        expect_error(&s, &s.toy[FIRST], "unexpected");
    }
    stage s; /* a round in a schedule without rounds */
    start_attention(&s);
    const uint32_t set[] = {1, 0, 0};
    say(&s.toy[FIRST], (sl_wire_header){.kind = SL_MSG_ROUND_OPEN, .round = 1},
        bytes_of(&s.toy[FIRST], set, sizeof set));
    submit(&s, 7, 3, 0);
    expect_error(&s, &s.toy[FIRST], "round");
}

/* A request that is cancelled while its rows are away ends when they are back, before the next
 * block, and not sooner; one that waits ends at once. */
static void cancelled_while_away(void **state) {
    (void)state;
    stage s;
    start_attention(&s);
    submit(&s, 7, 3, 0);
    reply r[2];
    actor *a[2] = {first_asked(&s), NULL};
    r[0] = make_reply(&s, a[0]);
    uint32_t owed = 3 * s.m.top_k, n = 1;
    if (r[0].h.rows < owed) {
        a[1] = &s.toy[a[0] == &s.toy[FIRST] ? SECOND : FIRST];
        r[n++] = make_reply(&s, a[1]);
    }
    sl_wire_pair pair = {.request = 7};
    sl_buf *b = sl_net_buf_take(s.coordinator.net, sizeof pair);
    assert_non_null(b);
    sl_wire_pairs_encode(&pair, 1, b->data);
    say(&s.coordinator, (sl_wire_header){.kind = SL_MSG_CANCEL, .rows = 1}, b);
    say(&s.coordinator, (sl_wire_header){.kind = SL_MSG_STATS_GET}, NULL);
    for (int i = 0; i < 200; i++) turn(&s);
    for (uint32_t i = 0; i < s.coordinator.n; i++)
        assert_int_not_equal(s.coordinator.head[i].kind, SL_MSG_TOKENS);
    for (uint32_t i = 0; i < n; i++) say(a[i], r[i].h, r[i].b);
    assert_int_equal(await_finish(&s, 7), SL_FINISH_STOP);
    for (uint32_t w = FIRST; w <= SECOND; w++)
        for (uint32_t i = 0; i < s.toy[w].n; i++)
            assert_int_not_equal(s.toy[w].head[i].kind, SL_MSG_DISPATCH);
    stage_end(&s, SL_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_dispatches),
        cmocka_unit_test(kinds_of_other_schedules),
        cmocka_unit_test(nobody_waits_for_others),
        cmocka_unit_test(bad_returns),
        cmocka_unit_test(unasked),
        cmocka_unit_test(cancelled_while_away),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
