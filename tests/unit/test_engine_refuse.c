/* Peers that hold the secret and break the protocol: each offence is answered with its reason, ends
 * only the offender's connection, and the worker goes on serving others. */
#include "engine_peers.h"

#include <unistd.h>

/* ---- a real expert worker ---- */

/* Attention workers 0 (the rogue) and 1 (honest) and expert worker 3 are played; expert worker 2,
 * the sequencer, is real and hosts expert 0 alone, fewer than the router chooses. */
#define ROGUE  0u
#define HONEST 1u
#define REAL   2u
#define OTHER  3u

static void start_expert(stage *s) {
    stage_make(s, 2, 2, REAL);
    for (uint32_t e = 0; e < s->plan.n_experts; e++)
        s->plan.place.host[e].worker = e == 0 ? REAL : OTHER;
    for (uint32_t i = 0; i < 4; i++)
        if (i != REAL) dial(s, &s->toy[i]);
    send_plan(s);
    actor_forget(&s->coordinator, await_kind(s, &s->coordinator, SL_MSG_READY));
}

/* A whole round of one row by the honest worker, which leaves the lane with it. */
static void serve_round(stage *s, uint64_t round) {
    actor *a = &s->toy[HONEST];
    for (uint32_t layer = 0; layer < s->m.n_moe; layer++) {
        sl_err err;
        sl_wire_return back;
        batch d = make_batch(s, a, 1, 1, layer == 0, HONEST);
        d.h.round = round;
        d.h.layer = layer;
        say(a, d.h, d.b);
        uint32_t i = await_kind(s, a, SL_MSG_RETURN);
        sl_span span = {a->body[i]->data, a->body[i]->len};
        assert_int_equal(sl_wire_return_decode(&a->head[i], span, &s->m, 0, &back, &err), SL_OK);
        assert_int_equal(back.rows, 1);
        assert_int_equal(back.tag[0], 100);
        assert_int_equal(back.mask[0], 1);
        actor_forget(a, i);
    }
}

static void serve_honest(stage *s) {
    actor *a = &s->toy[HONEST];
    say(a, (sl_wire_header){.kind = SL_MSG_JOIN}, NULL);
    uint32_t i = await_kind(s, a, SL_MSG_ROUND_OPEN);
    uint64_t round = a->head[i].round;
    actor_forget(a, i);
    serve_round(s, round);
}

static void join_round(stage *s, actor *a) {
    say(a, (sl_wire_header){.kind = SL_MSG_JOIN}, NULL);
    actor_forget(a, await_kind(s, a, SL_MSG_ROUND_OPEN));
}

/* The offender is told why, nobody else notices. */
static void expect_end(stage *s, actor *a, const char *text) {
    await_flag(s, &a->down, "the end of the offender");
    if (!strstr(a->why, text)) fail_msg("told '%s', not '%s'", a->why, text);
    serve_honest(s);
    stage_end(s, SL_OK);
}

typedef enum bend {
    LANE,
    LAYER,
    ELSEWHERE,
    NO_EXPERT,
    TOO_MANY,
    POSITIONS,
    TWICE,
    NOT_MEMBER,
    NO_SET,
    AHEAD,
    NAN_GATE,
    TRUNCATED,
    GARBAGE,
    NO_PAYLOAD,
    LATE_LAYER
} bend;

static const struct {
    bend how;
    const char *text;
} bent[] = {
    {LANE, "dispatch for lane 7 of 1"},
    {LAYER, "layer 99 of 3"},
    {ELSEWHERE, "expert 5 of layer 0 is at worker 3"},
    {NO_EXPERT, "expert 4000"},
    {TOO_MANY, "9 rows in flight, 8 are reserved"},
    {POSITIONS, "position"},
    {TWICE, "names expert 0 after expert 0"},
    {NOT_MEMBER, "sent for round 1, which is not announced"},
    {NO_SET, "sent for round 1, which is not announced"},
    {AHEAD, "sent for round 1099511627776, which is not announced"},
    {NAN_GATE, "gate"},
    {TRUNCATED, "bytes"},
    {GARBAGE, "dispatch"},
    {NO_PAYLOAD, "3 rows without a payload"},
    {LATE_LAYER, "sent for round 1, which is not announced"},
};

static void bend_batch(batch *d, bend how) {
    switch (how) {
    case LANE:
        d->h.lane = 7;
        break;
    case LAYER:
        d->h.layer = 99;
        break;
    case ELSEWHERE:
        d->v.expert[0] = 5;
        break;
    case NO_EXPERT:
        d->v.expert[0] = 4000;
        break;
    case POSITIONS:
        d->v.position[1] = 0;
        break;
    case NOT_MEMBER:
        d->v.set[0] = HONEST;
        break;
    case AHEAD:
        d->h.round = 1ull << 40;
        break;
    case NAN_GATE:
        d->v.gate[0] = __builtin_nanf("");
        break;
    case TRUNCATED:
        d->b->len -= 8;
        break;
    case GARBAGE:
        memset(d->b->data, 0xA5, d->b->len);
        break;
    case LATE_LAYER:
        d->h.layer = 1;
        break;
    default:
        break;
    }
}

static void bad_dispatches(void **state) {
    (void)state;
    for (size_t i = 0; i < SL_LEN(bent); i++) {
        stage s;
        start_expert(&s);
        actor *a = &s.toy[ROGUE];
        bend how = bent[i].how;
        batch d = make_batch(&s, a,
                             how == TOO_MANY ? 9
                             : how == TWICE  ? 8
                                             : 3,
                             how == TWICE || how == POSITIONS ? 2 : 1, how != NO_SET, ROGUE);
        bend_batch(&d, how);
        if (how == NO_PAYLOAD) {
            sl_net_buf_give(a->net, d.b);
            d.b = NULL;
            d.h.flags = 0;
        }
        say(a, d.h, d.b);
        expect_end(&s, a, bent[i].text);
    }
}

/* A member that does not wait for its reply; whichever message the worker catches, it is the layer.
 */
static void dispatch_before_the_reply(void **state) {
    (void)state;
    stage s;
    start_expert(&s);
    actor *a = &s.toy[ROGUE];
    join_round(&s, a);
    const uint32_t layers[] = {0, 1, 1};
    for (uint32_t i = 0; i < 3; i++) {
        batch d = make_batch(&s, a, 2, 1, i == 0, ROGUE);
        d.h.layer = layers[i];
        say(a, d.h, d.b);
    }
    expect_end(&s, a, "worker 0 sent layer 1");
}

static void dispatch_twice(void **state) {
    (void)state;
    stage s;
    start_expert(&s);
    actor *a = &s.toy[ROGUE];
    join_round(&s, a);
    batch d = make_batch(&s, a, 2, 1, 1, ROGUE);
    say(a, d.h, d.b);
    actor_forget(a, await_kind(&s, a, SL_MSG_RETURN));
    d = make_batch(&s, a, 2, 1, 0, ROGUE);
    say(a, d.h, d.b);
    expect_end(&s, a, "worker 0 sent layer 0 chunk 0 of round 1");
}

/* Sets are compared with what the sequencer decided: honest members that send the right one later
 * are served. */
static void false_sets(void **state) {
    (void)state;
    static const struct {
        bool rogue_joins, honest_joins;
        uint64_t round;
        uint32_t n_set, first;
        const char *text;
    } lies[] = {
        {false, false, 1, 2, ROGUE, "sent for round 1, which is not announced; the newest is 0"},
        {true, false, 1, 2, ROGUE,
         "sent for round 1 (2 members) is not the one decided (1 members)"},
        {true, false, 1, 0, ROGUE, "carries no member set"},
        {true, false, 2, 1, ROGUE, "sent for round 2, which is not announced; the newest is 1"},
        {false, true, 1, 2, ROGUE, "worker 0 is no member of round 1"},
        {false, true, 1, 1, HONEST, "worker 0 is no member of round 1"},
        {false, true, 2, 2, ROGUE, "sent for round 2, which is not announced"},
    };
    for (size_t i = 0; i < SL_LEN(lies); i++) {
        stage s;
        start_expert(&s);
        actor *a = &s.toy[ROGUE];
        if (lies[i].rogue_joins) join_round(&s, a);
        if (lies[i].honest_joins) join_round(&s, &s.toy[HONEST]);
        batch d = make_batch(&s, a, 1, 1, lies[i].n_set, lies[i].first);
        if (lies[i].n_set == 2) d.v.set[1] = HONEST;
        d.h.round = lies[i].round;
        say(a, d.h, d.b);
        await_flag(&s, &a->down, "the end of the offender");
        if (!strstr(a->why, lies[i].text)) fail_msg("told '%s', not '%s'", a->why, lies[i].text);
        if (lies[i].honest_joins)
            serve_round(&s, 1);
        else
            serve_honest(&s);
        assert_true(s.toy[HONEST].open);
        stage_end(&s, SL_OK);
    }
}

static void joins(void **state) {
    (void)state;
    stage s;
    start_expert(&s);
    join_round(&s, &s.toy[ROGUE]);
    say(&s.toy[ROGUE], (sl_wire_header){.kind = SL_MSG_JOIN}, NULL);
    expect_end(&s, &s.toy[ROGUE], "JOIN of worker 0, which is in round 1");

    start_expert(&s);
    say(&s.toy[ROGUE], (sl_wire_header){.kind = SL_MSG_JOIN, .lane = 9}, NULL);
    expect_end(&s, &s.toy[ROGUE], "join of lane 9 from worker 0");

    start_expert(&s); /* an expert worker has no rows to send */
    say(&s.toy[OTHER], (sl_wire_header){.kind = SL_MSG_JOIN}, NULL);
    expect_end(&s, &s.toy[OTHER], "join of lane 0 from worker 3");
}

static void kinds_of_others(void **state) {
    (void)state;
    static const uint16_t kinds[] = {
        SL_MSG_PLAN,   SL_MSG_READY,      SL_MSG_SUBMIT,      SL_MSG_CANCEL,   SL_MSG_TOKENS,
        SL_MSG_ACK,    SL_MSG_STATS_GET,  SL_MSG_STATS,       SL_MSG_SHUTDOWN, SL_MSG_LOGITS,
        SL_MSG_RETURN, SL_MSG_ROUND_OPEN, SL_MSG_MEMBER_DEAD, SL_MSG_KV_PAGES};
    const uint32_t member = HONEST;
    for (size_t i = 0; i < SL_LEN(kinds); i++) {
        stage s;
        start_expert(&s);
        actor *a = &s.toy[i % 2 || kinds[i] == SL_MSG_MEMBER_DEAD ? ROGUE : OTHER];
        say(a, (sl_wire_header){.kind = kinds[i]}, bytes_of(a, &member, sizeof member));
        char text[64];
        snprintf(text, sizeof text, "unexpected %s", sl_msg_kind_name(kinds[i]));
        expect_end(&s, a, text);
    }
}

/* Another expert worker lost an attention worker: for the sequencer it is dead, and learns of it.
 */
static void accusations(void **state) {
    (void)state;
    static const struct {
        uint32_t member;
        const char *text; /* for who accuses; NULL: the accused goes */
    } said[] = {
        {ROGUE, NULL},
        {OTHER, "death of worker 3, which is no member of others"},
        {REAL, "death of worker 2, which is no member of others"},
        {40, "death of worker 40 of 4"},
    };
    for (size_t i = 0; i < SL_LEN(said); i++) {
        stage s;
        start_expert(&s);
        join_round(&s, &s.toy[ROGUE]);
        say(&s.toy[HONEST], (sl_wire_header){.kind = SL_MSG_JOIN}, NULL);
        actor *a = &s.toy[OTHER], *ends = said[i].text ? a : &s.toy[ROGUE];
        say(a, (sl_wire_header){.kind = SL_MSG_MEMBER_DEAD},
            bytes_of(a, &said[i].member, sizeof said[i].member));
        await_flag(&s, &ends->down, "the end of a connection");
        const char *text = said[i].text ? said[i].text : "counts as dead here";
        if (!strstr(ends->why, text)) fail_msg("told '%s', not '%s'", ends->why, text);
        if (!said[i].text) { /* the round that it was alone in is over */
            uint32_t at = await_kind(&s, &s.toy[HONEST], SL_MSG_ROUND_OPEN);
            uint64_t round = s.toy[HONEST].head[at].round;
            actor_forget(&s.toy[HONEST], at);
            serve_round(&s, round);
            assert_true(a->open);
        }
        stage_end(&s, SL_OK);
    }
}

static void unknown_kind_and_old_epoch_keep_the_connection(void **state) {
    (void)state;
    stage s;
    start_expert(&s);
    actor *a = &s.toy[ROGUE];
    say(a, (sl_wire_header){.kind = 77}, bytes_of(a, "?", 1));
    batch d = make_batch(&s, a, 2, 1, 1, ROGUE);
    d.h.epoch = 9;
    say(a, d.h, d.b);
    serve_honest(&s);
    assert_true(a->open);
    join_round(&s, a); /* and it is served */
    stage_end(&s, SL_OK);
}

/* Messages of a connection that is gone before the worker's loop comes to them. */
static void sent_and_gone(void **state) {
    (void)state;
    for (int i = 0; i < 8; i++) {
        stage s;
        start_expert(&s);
        actor *a = &s.toy[ROGUE];
        for (int j = 0; j < 5; j++) {
            batch d = make_batch(&s, a, 3, 1, 1, ROGUE);
            d.h.lane = i % 2;
            say(a, d.h, d.b);
        }
        sl_net_close(a->net, a->conn, SL_OK, "gone");
        await_flag(&s, &a->down, "the end");
        serve_honest(&s);
        stage_end(&s, SL_OK);
    }
}

/* A holder of the secret calls as worker `id`; until it is open or told why not. */
static void call_as(stage *s, actor *liar, uint32_t id) {
    uint64_t until = sl_now_ns() + WAIT_NS;
    actor_start(liar, s->hub, id, false);
    dial(s, liar);
    while (!liar->open && !liar->down && sl_now_ns() < until) {
        sl_net_progress(liar->net);
        turn(s);
    }
}

static void expect_told(stage *s, actor *liar, const char *text) {
    uint64_t until = sl_now_ns() + WAIT_NS;
    while (!liar->down && sl_now_ns() < until) {
        sl_net_progress(liar->net);
        turn(s);
    }
    if (!strstr(liar->why, text)) fail_msg("told '%s', not '%s'", liar->why, text);
    actor_stop(liar);
}

static void false_names(void **state) {
    (void)state;
    stage s;
    actor liar;
    start_expert(&s);
    call_as(&s, &liar, REAL); /* calls itself what the worker is */
    expect_told(&s, &liar, "worker 2 is this worker itself");
    call_as(&s, &liar, HONEST);
    expect_told(&s, &liar, "worker 1 is connected already");
    call_as(&s, &liar, 40); /* no worker of the plan */
    if (liar.open) say(&liar, (sl_wire_header){.kind = SL_MSG_JOIN}, NULL);
    expect_told(&s, &liar, "worker 40");
    serve_honest(&s);
    assert_true(s.toy[HONEST].open);
    stage_end(&s, SL_OK);
}

static void an_offence_is_logged(void **state) {
    (void)state;
    stage s;
    start_expert(&s);
    char log[4096] = "";
    FILE *f = tmpfile();
    assert_non_null(f);
    int real = dup(STDERR_FILENO);
    dup2(fileno(f), STDERR_FILENO);
    batch d = make_batch(&s, &s.toy[ROGUE], 9, 1, 1, ROGUE);
    say(&s.toy[ROGUE], d.h, d.b);
    await_flag(&s, &s.toy[ROGUE].down, "the end of the offender");
    dup2(real, STDERR_FILENO);
    close(real);
    rewind(f);
    size_t n = fread(log, 1, sizeof log - 1, f);
    log[n] = '\0';
    fclose(f);
    if (!strstr(log, "warn worker: DISPATCH: 9 rows in flight, 8 are reserved"))
        fail_msg("logged '%s'", log);
    stage_end(&s, SL_OK);
}

/* ---- a real attention worker ---- */

#define EXPERT 1u

static void start_attention(stage *s) {
    stage_make(s, 1, 1, 0);
    send_plan(s);
    actor_forget(&s->coordinator, await_kind(s, &s->coordinator, SL_MSG_READY));
}

static void open_round(stage *s, actor *a, uint64_t round, uint32_t member) {
    sl_buf *b = sl_net_buf_take(a->net, sl_wire_set_bytes(1));
    assert_non_null(b);
    sl_wire_set_encode(&member, 1, b->data);
    (void)s;
    say(a, (sl_wire_header){.kind = SL_MSG_ROUND_OPEN, .round = round}, b);
}

static void expect_finish(stage *s, uint32_t want) {
    actor *c = &s->coordinator;
    const sl_wire_token *t;
    const sl_logprob *logprobs;
    sl_err err;
    uint32_t finish = SL_FINISH_NONE;
    while (finish == SL_FINISH_NONE) {
        uint32_t i = await_kind(s, c, SL_MSG_TOKENS);
        sl_span span = {c->body[i]->data, c->body[i]->len};
        assert_int_equal(sl_wire_tokens_decode(&c->head[i], span, &t, &logprobs, &err), SL_OK);
        finish = t[0].finish;
        actor_forget(c, i);
    }
    assert_int_equal(finish, want);
    stage_end(s, SL_OK);
}

/* The offender hears why, the coordinator that it is gone; the request waits, and can be cancelled.
 */
static void expect_error(stage *s, const char *text) {
    const actor *a = &s->toy[EXPERT];
    await_flag(s, &a->down, "the end of the offender");
    if (!strstr(a->why, text)) fail_msg("told '%s', not '%s'", a->why, text);
    expect_loss(s, EXPERT);
    say_cancel(&s->coordinator, 7);
    expect_finish(s, SL_FINISH_STOP);
}

/* ---- a real worker with both roles ---- */

/* Whoever takes a colocated worker's own id, before the plan or after it, is no part of it: its end
 * is not the worker's. */
static void its_own_id(void **state) {
    (void)state;
    stage s;
    actor early, late;
    stage_make(&s, 1, 0, 0);
    call_as(&s, &early, 0); /* nobody knows ids yet */
    assert_true(early.open);
    send_plan(&s);
    actor_forget(&s.coordinator, await_kind(&s, &s.coordinator, SL_MSG_READY));
    expect_told(&s, &early, "worker 0 is this worker itself");
    call_as(&s, &late, 0);
    expect_told(&s, &late, "worker 0 is this worker itself");
    say_submit(&s.coordinator, 7, 3);
    expect_finish(&s, SL_FINISH_LENGTH);
}

typedef enum wrong {
    TAG,
    OVERLAP,
    MISSING,
    MASK_ZERO,
    MASK_HIGH,
    WRONG_LAYER,
    WRONG_ROUND,
    WRONG_LANE,
    EARLY_SET,
    SHORT,
    BARE_ROWS,
    EMPTY,
    RUBBISH
} wrong;

static const struct {
    wrong how;
    const char *text;
} wrongs[] = {
    {TAG, "unknown tag"},
    {OVERLAP, "covers positions"},
    {MISSING, "came back with positions"},
    {MASK_ZERO, "mask"},
    {MASK_HIGH, "mask"},
    {WRONG_LAYER, "return for round 1 layer 2"},
    {WRONG_ROUND, "return for round 5 layer 0"},
    {WRONG_LANE, "for lane 3 of 1"},
    {EARLY_SET, "next set"},
    {SHORT, "bytes"},
    {BARE_ROWS, "3 rows without a payload"},
    {EMPTY, "came back with positions 0 of 3"},
    {RUBBISH, "return"},
};

static void bad_return(stage *s, actor *a, wrong how) {
    uint32_t i = await_kind(s, a, SL_MSG_DISPATCH);
    sl_wire_dispatch in;
    sl_wire_return out;
    sl_err err;
    sl_wire_header h = {.kind = SL_MSG_RETURN, .round = 1, .rows = a->head[i].rows};
    sl_span span = {a->body[i]->data, a->body[i]->len};
    assert_int_equal(sl_wire_dispatch_decode(&a->head[i], span, &s->m, 0, &in, &err), SL_OK);
    assert_int_equal(in.rows, 3);
    if (how == MISSING) h.rows = 2;
    uint32_t n_set = how == EARLY_SET;
    sl_buf *b = sl_net_buf_take(a->net, sl_wire_return_bytes(h.rows, n_set, s->m.d_model, 0));
    assert_non_null(b);
    memset(b->data, 0, b->len);
    sl_wire_return_layout(b->data, h.rows, n_set, s->m.d_model, 0, &out);
    for (uint32_t r = 0; r < h.rows; r++) {
        out.tag[r] = in.tag[how == OVERLAP ? 0 : r];
        out.mask[r] = how == MASK_ZERO ? 0 : how == MASK_HIGH ? 4 : 3;
    }
    if (how == TAG) out.tag[1] ^= 1ull << 20;
    if (how == WRONG_LAYER) h.layer = 2;
    if (how == WRONG_ROUND) h.round = 5;
    if (how == WRONG_LANE) h.lane = 3;
    if (how == EARLY_SET) h.flags = SL_WIRE_SET;
    if (how == SHORT) b->len -= 64;
    if (how == RUBBISH) memset(b->data, 0x5A, b->len);
    if (how == BARE_ROWS || how == EMPTY) {
        sl_net_buf_give(a->net, b);
        b = NULL;
        if (how == EMPTY) h.rows = 0;
    }
    say(a, h, b);
    actor_forget(a, i);
}

static void good_return(stage *s, actor *a, uint32_t layer) {
    uint32_t i = await_kind(s, a, SL_MSG_DISPATCH);
    sl_wire_dispatch in;
    sl_wire_return out;
    sl_err err;
    sl_span span = {a->body[i]->data, a->body[i]->len};
    assert_int_equal(sl_wire_dispatch_decode(&a->head[i], span, &s->m, 0, &in, &err), SL_OK);
    sl_buf *b = sl_net_buf_take(a->net, sl_wire_return_bytes(in.rows, 0, s->m.d_model, 0));
    assert_non_null(b);
    memset(b->data, 0, b->len);
    sl_wire_return_layout(b->data, in.rows, 0, s->m.d_model, 0, &out);
    for (uint32_t r = 0; r < in.rows; r++) {
        out.tag[r] = in.tag[r];
        out.mask[r] = 3;
    }
    say(a, (sl_wire_header){.kind = SL_MSG_RETURN, .round = 1, .layer = layer, .rows = in.rows}, b);
    actor_forget(a, i);
}

/* What a worker got, answered as it should be; and one row more, if extra is not 0. */
static void answer(stage *s, actor *a, uint64_t extra, uint64_t extra_mask) {
    uint32_t i = await_kind(s, a, SL_MSG_DISPATCH), n = a->head[i].rows + (extra != 0);
    sl_wire_dispatch in;
    sl_wire_return out;
    sl_err err;
    sl_span span = {0};
    if (a->body[i]) span = (sl_span){a->body[i]->data, a->body[i]->len};
    assert_int_equal(sl_wire_dispatch_decode(&a->head[i], span, &s->m, 0, &in, &err), SL_OK);
    sl_buf *b = sl_net_buf_take(a->net, sl_wire_return_bytes(n, 0, s->m.d_model, 0));
    assert_non_null(b);
    memset(b->data, 0, b->len);
    sl_wire_return_layout(b->data, n, 0, s->m.d_model, 0, &out);
    for (uint32_t r = 0; r < in.rows; r++) {
        out.tag[r] = in.tag[r];
        for (uint32_t e = in.first[r]; e < in.first[r + 1]; e++)
            out.mask[r] |= 1ull << in.position[e];
    }
    if (extra) out.tag[n - 1] = extra, out.mask[n - 1] = extra_mask;
    say(a, (sl_wire_header){.kind = SL_MSG_RETURN, .round = 1, .rows = n}, b);
    actor_forget(a, i);
}

/* The blame is on who returns a position, not on the one whose position it is. */
static void returns_anothers_position(void **state) {
    (void)state;
    stage s;
    sl_wire_dispatch in;
    sl_err err;
    stage_make(&s, 1, 2, 0);
    send_plan(&s);
    actor_forget(&s.coordinator, await_kind(&s, &s.coordinator, SL_MSG_READY));
    actor *rogue = &s.toy[EXPERT], *honest = &s.toy[EXPERT + 1];
    say_submit(&s.coordinator, 7, 8);
    actor_forget(rogue, await_kind(&s, rogue, SL_MSG_JOIN));
    open_round(&s, rogue, 1, 0);
    uint32_t i = await_kind(&s, honest, SL_MSG_DISPATCH);
    sl_span span = {honest->body[i]->data, honest->body[i]->len};
    assert_int_equal(sl_wire_dispatch_decode(&honest->head[i], span, &s.m, 0, &in, &err), SL_OK);
    uint64_t tag = in.tag[0], mask = 1ull << in.position[0];
    answer(&s, rogue, tag, mask);
    answer(&s, honest, 0, 0);
    expect_error(&s, "not all of which are there");
}

static void bad_returns(void **state) {
    (void)state;
    for (size_t i = 0; i < SL_LEN(wrongs); i++) {
        stage s;
        start_attention(&s);
        actor *a = &s.toy[EXPERT];
        say_submit(&s.coordinator, 7, 3);
        actor_forget(a, await_kind(&s, a, SL_MSG_JOIN));
        open_round(&s, a, 1, 0);
        bad_return(&s, a, wrongs[i].how);
        expect_error(&s, wrongs[i].text);
    }
}

/* The lane's sequencer owes the next set in the last reply; here it sends none. */
static void no_next_set(void **state) {
    (void)state;
    stage s;
    start_attention(&s);
    actor *a = &s.toy[EXPERT];
    say_submit(&s.coordinator, 7, 3);
    actor_forget(a, await_kind(&s, a, SL_MSG_JOIN));
    open_round(&s, a, 1, 0);
    for (uint32_t layer = 0; layer < s.m.n_moe; layer++) good_return(&s, a, layer);
    expect_error(&s, "no next set");
}

static void unasked(void **state) {
    (void)state;
    static const uint16_t kinds[] = {SL_MSG_DISPATCH, SL_MSG_JOIN, SL_MSG_MEMBER_DEAD,
                                     SL_MSG_TOKENS, SL_MSG_PLAN};
    stage s;
    start_attention(&s);
    open_round(&s, &s.toy[EXPERT], 1, 0); /* nobody joined */
    await_flag(&s, &s.toy[EXPERT].down, "the end of the offender");
    say_submit(&s.coordinator, 7, 3);
    expect_error(&s, "round");

    start_attention(&s);
    say(&s.toy[EXPERT], (sl_wire_header){.kind = SL_MSG_RETURN, .round = 1}, NULL);
    await_flag(&s, &s.toy[EXPERT].down, "the end of the offender");
    say_submit(&s.coordinator, 7, 3);
    expect_error(&s, "return for round 1");

    for (size_t i = 0; i < SL_LEN(kinds); i++) {
        start_attention(&s);
        say_submit(&s.coordinator, 7, 3);
        await_kind(&s, &s.toy[EXPERT], SL_MSG_JOIN);
        const uint32_t zero = 0;
        say(&s.toy[EXPERT], (sl_wire_header){.kind = kinds[i]}, bytes_of(&s.toy[EXPERT], &zero, 4));
        expect_error(&s, "unexpected");
    }
}

/* ---- the coordinator itself ---- */

static void expect_worker_end(stage *s, sl_status want, const char *text) {
    await_flag(s, &s->coordinator.down, "the worker's leave");
    if (!strstr(s->coordinator.why, text)) fail_msg("told '%s'", s->coordinator.why);
    stage_end(s, want);
}

static void bad_coordinator(void **state) {
    (void)state;
    stage s;
    start_attention(&s);
    send_plan(&s);
    expect_worker_end(&s, SL_ERR_PROTOCOL, "plan 1 again");

    stage_make(&s, 1, 1, 0);
    say(&s.coordinator, (sl_wire_header){.kind = SL_MSG_SUBMIT}, bytes_of(&s.coordinator, "x", 1));
    expect_worker_end(&s, SL_ERR_PROTOCOL, "from the coordinator");

    stage_make(&s, 1, 1, 0);
    say(&s.coordinator, (sl_wire_header){.kind = SL_MSG_PLAN},
        bytes_of(&s.coordinator, "{\"you\":", 7));
    expect_worker_end(&s, SL_ERR_FORMAT, "plan from the coordinator");

    stage_make(&s, 1, 1, 0);
    s.plan.context = 100000;
    send_plan(&s);
    expect_worker_end(&s, SL_ERR_ARG, "context 100000");

    start_attention(&s);
    say_submit(&s.coordinator, 7, 0);
    expect_worker_end(&s, SL_ERR_PROTOCOL, "submit");

    start_attention(&s);
    say(&s.coordinator, (sl_wire_header){.kind = SL_MSG_CANCEL, .rows = 3},
        bytes_of(&s.coordinator, "12345678", 8));
    expect_worker_end(&s, SL_ERR_PROTOCOL, "bytes");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_dispatches),
        cmocka_unit_test(dispatch_before_the_reply),
        cmocka_unit_test(dispatch_twice),
        cmocka_unit_test(false_sets),
        cmocka_unit_test(joins),
        cmocka_unit_test(kinds_of_others),
        cmocka_unit_test(accusations),
        cmocka_unit_test(unknown_kind_and_old_epoch_keep_the_connection),
        cmocka_unit_test(sent_and_gone),
        cmocka_unit_test(false_names),
        cmocka_unit_test(an_offence_is_logged),
        cmocka_unit_test(its_own_id),
        cmocka_unit_test(bad_returns),
        cmocka_unit_test(returns_anothers_position),
        cmocka_unit_test(no_next_set),
        cmocka_unit_test(unasked),
        cmocka_unit_test(bad_coordinator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
