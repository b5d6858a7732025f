/* Messages that are spread over ranks on machines of their own: two workers with ranks, each with a
 * net of its own on one hub and a clock that the test moves. Owners (net/rails.h) and ranks
 * (stage/gang/rail.h) are those that ship; words between them are calls here. */
#include "base/mem.h"
#include "base/rng.h"
#include "net_harness.h"
#include "stage/gang/rail.h"

#include <stdlib.h>

#define RANKS 3u
#define ROW   8u /* bytes of a rank's part of a row */
#define MOST  512u

typedef struct end end;

/* A rank beside the first. */
typedef struct rank {
    end *of;
    uint32_t index;
    sl_net *net;
    gang_rail *rail;
    bool mute; /* what it says gets lost */
} rank;

struct end {
    sl_net *net;
    sl_rails *rails;
    sl_conn *conn;
    rank rank[RANKS];
    uint32_t id;
    bool calls;
    int downs;
    char text[200];
    uint64_t sent, came; /* messages of any kind */
    sl_spread_name name[MOST];
    uint32_t rows[MOST];
    uint16_t kind[MOST];
};

typedef struct scene {
    vclock clock;
    sl_loop_hub *hub;
    end a, b;
} scene;

/* ---- a rank ---- */

static void say(void *ctx, const sl_rails_word *w) {
    rank *r = ctx;
    if (!r->mute) sl_rails_on_word(r->of->rails, r->index, w);
}

static sl_status rank_on_open(void *ctx, sl_conn *c, const sl_hello *its, sl_err *err) {
    (void)its;
    return gang_rail_on_open(((rank *)ctx)->rail, c, err);
}

static sl_status rank_on_message(void *ctx, sl_conn *c, const sl_wire_header *h, sl_buf *b,
                                 sl_err *err) {
    rank *r = ctx;
    sl_status st = gang_rail_on_message(r->rail, c, h, &b, err);
    sl_net_buf_give(r->net, b);
    return st;
}

static void rank_on_down(void *ctx, sl_conn *c, sl_status why, const char *text) {
    (void)why;
    gang_rail_on_down(((rank *)ctx)->rail, c, text);
}

static sl_net_opts net_opts(const scene *s, void *ctx, sl_net_events on) {
    return (sl_net_opts){.transport = "loop",
                         .hub = s->hub,
                         .host = "",
                         .clock = {vclock_now, (void *)(uintptr_t)&s->clock},
                         .secret = {(const uint8_t *)KEY, strlen(KEY)},
                         .hello = {.worker = SL_NO_WORKER},
                         .on = on,
                         .ctx = ctx};
}

static void start_rank(const scene *s, end *e, uint32_t index) {
    rank *r = &e->rank[index];
    sl_err err;
    *r = (rank){.of = e, .index = index};
    const sl_net_opts o =
        net_opts(s, r, (sl_net_events){rank_on_open, rank_on_message, rank_on_down});
    assert_int_equal(sl_net_create(&o, &r->net, &err), SL_OK);
    const gang_rail_opts ro = {.net = r->net, .index = index, .say = say, .ctx = r};
    r->rail = gang_rail_create(&ro);
    assert_non_null(r->rail);
    gang_rail_set_row(r->rail, ROW);
}

static void stop_rank(rank *r) {
    gang_rail_free(r->rail);
    if (r->net) sl_net_free(r->net);
    *r = (rank){0};
}

/* ---- an owner ---- */

static void tell(void *ctx, uint32_t index, const sl_rails_word *w) {
    const end *e = ctx;
    sl_err err;
    if (e->rank[index].rail)
        assert_int_equal(gang_rail_on_word(e->rank[index].rail, w, &err), SL_OK);
}

static sl_status deliver(void *ctx, sl_conn *c, const sl_wire_header *h, sl_buf *b, sl_err *err) {
    end *e = ctx;
    (void)c, (void)err;
    assert_int_equal(h->wave, e->came);
    assert_true(e->came < MOST);
    e->name[e->came] = b ? b->spread : (sl_spread_name){0};
    e->rows[e->came] = h->rows;
    e->kind[e->came++] = h->kind;
    if (b) assert_int_equal(b->data[0], (uint8_t)h->wave);
    sl_net_buf_give(e->net, b);
    return SL_OK;
}

static sl_status on_open(void *ctx, sl_conn *c, const sl_hello *its, sl_err *err) {
    end *e = ctx;
    (void)its;
    e->conn = c;
    return e->calls ? SL_OK : sl_rails_greet(e->rails, c, err);
}

static sl_status on_message(void *ctx, sl_conn *c, const sl_wire_header *h, sl_buf *b,
                            sl_err *err) {
    return sl_rails_on_message(((end *)ctx)->rails, c, h, b, err);
}

static void on_down(void *ctx, sl_conn *c, sl_status why, const char *text) {
    end *e = ctx;
    (void)why;
    sl_rails_on_down(e->rails, c);
    e->downs++;
    e->conn = NULL;
    snprintf(e->text, sizeof e->text, "%s", text);
}

static void start(const scene *s, end *e, uint32_t id) {
    char hosts[RANKS * SL_RAILS_ADDRESS] = "";
    sl_err err;
    e->id = id;
    for (uint32_t i = 1; i < RANKS; i++) {
        start_rank(s, e, i);
        snprintf(hosts + strlen(hosts), sizeof hosts - strlen(hosts), "%s%s", i > 1 ? "," : "",
                 sl_net_address(e->rank[i].net));
    }
    sl_net_opts o = net_opts(s, e, (sl_net_events){on_open, on_message, on_down});
    o.hello = (sl_hello){.worker = id, .incarnation = 100 + id};
    assert_int_equal(sl_net_create(&o, &e->net, &err), SL_OK);
    const sl_rails_far far = {.say = tell, .ctx = e};
    const sl_rails_opts r = {.n = RANKS,
                             .least = 1,
                             .hosts = hosts,
                             .main = e->net,
                             .net = o,
                             .far = &far,
                             .deliver = deliver,
                             .ctx = e};
    if (sl_rails_open(&r, &e->rails, &err) != SL_OK) fail_msg("%s", err.msg);
}

static void stop(end *e) {
    sl_rails_free(e->rails);
    sl_net_free(e->net);
    for (uint32_t i = 1; i < RANKS; i++) stop_rank(&e->rank[i]);
}

static void turn(end *e) {
    (void)sl_net_progress(e->net);
    (void)sl_rails_progress(e->rails);
    for (uint32_t i = 1; i < RANKS; i++) {
        if (!e->rank[i].net) continue;
        (void)sl_net_progress(e->rank[i].net);
        gang_rail_turn(e->rank[i].rail);
    }
}

static void turns(scene *s, uint64_t us) {
    for (uint64_t until = s->clock.now_us + us; s->clock.now_us < until;) {
        turn(&s->a);
        turn(&s->b);
        s->clock.now_us += 100;
    }
}

/* Without their ranks, and before either has been connected. */
static void prepare(scene *s, uint64_t seed) {
    sl_err err;
    *s = (scene){.clock = {1000000}};
    assert_int_equal(sl_loop_hub_create(seed, seed ? 3000 : 0, &s->hub, &err), SL_OK);
    start(s, &s->a, 0);
    start(s, &s->b, 1);
}

static void call(scene *s) {
    sl_err err;
    s->a.calls = true;
    assert_int_equal(sl_net_connect(s->a.net, sl_net_address(s->b.net), NULL, &s->a.conn, &err),
                     SL_OK);
}

static void begin(scene *s, uint64_t seed) {
    prepare(s, seed);
    sl_rails_begin(s->a.rails);
    sl_rails_begin(s->b.rails);
    call(s);
    turns(s, 30000);
    assert_true(sl_rails_can_spread(s->a.rails, s->a.conn));
    assert_true(sl_rails_can_spread(s->b.rails, s->b.conn));
}

static void finish(scene *s) {
    stop(&s->a);
    stop(&s->b);
    sl_loop_hub_free(s->hub);
}

/* ---- messages ---- */

static uint8_t byte_of(uint64_t number, uint32_t index, size_t i) {
    return (uint8_t)(number * 31 + index * 101 + i * 7);
}

/* The ranks' parts of one, but for those of the ranks in `not`. */
static void send_parts(end *e, const sl_spread_name *what, bool back, uint32_t rows,
                       uint32_t not ) {
    sl_err err;
    for (uint32_t i = 1; i < RANKS; i++) {
        if (not &1u << i) continue;
        sl_buf *b = sl_net_buf_take(e->rank[i].net, rows * ROW);
        for (size_t k = 0; k < b->len; k++) b->data[k] = byte_of(what->number, i, k);
        assert_int_equal(gang_rail_send(e->rank[i].rail, what, back, rows, b, &err), SL_OK);
    }
}

static void send_header(end *e, const sl_spread_name *what, bool back, uint32_t rows) {
    sl_buf *b = sl_net_buf_take(e->net, 24);
    memset(b->data, (int)e->sent, b->len);
    b->spread = *what;
    const sl_wire_header h = {
        .kind = back ? SL_MSG_RETURN : SL_MSG_DISPATCH, .wave = e->sent++, .rows = rows};
    assert_int_equal(sl_rails_send(e->rails, e->conn, h, b), SL_OK);
}

static sl_spread_name post(end *e, bool back, uint32_t rows) {
    const sl_spread_name what = sl_rails_spread(e->rails, e->conn, false, rows * ROW);
    send_parts(e, &what, back, rows, 0);
    send_header(e, &what, back, rows);
    return what;
}

static void post_plain(end *e) {
    const sl_wire_header h = {.kind = SL_MSG_JOIN, .wave = e->sent++};
    assert_int_equal(sl_rails_send(e->rails, e->conn, h, NULL), SL_OK);
}

/* What a rank has of a message that came. */
static void take(end *e, uint64_t i) {
    const bool back = e->kind[i] == SL_MSG_RETURN;
    for (uint32_t k = 1; k < RANKS; k++) {
        sl_buf *b = NULL;
        assert_true(gang_rail_take(e->rank[k].rail, &e->name[i], back, e->rows[i], &b));
        assert_int_equal(b->len, e->rows[i] * ROW);
        for (size_t at = 0; at < b->len; at++)
            assert_int_equal(b->data[at], byte_of(e->name[i].number, k, at));
        sl_net_buf_give(e->rank[k].net, b);
    }
}

static bool has(end *e, uint64_t i) {
    sl_buf *b = NULL;
    const bool back = e->kind[i] == SL_MSG_RETURN;
    if (!gang_rail_take(e->rank[1].rail, &e->name[i], back, e->rows[i], &b)) return false;
    sl_net_buf_give(e->rank[1].net, b);
    return true;
}

/* ---- tests ---- */

/* Whatever overtakes what, and with messages that are given up after their parts have left. */
static void messages_come_with_their_parts(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        scene s;
        begin(&s, seed);
        uint64_t rng = seed, given_up = 0;
        for (uint64_t taken_a = 0, taken_b = 0, k = 0; k < 120; k++) {
            end *e = k % 2 ? &s.a : &s.b;
            const uint32_t rows = 1 + (uint32_t)sl_rng_below(&rng, 9);
            const bool back = sl_rng_below(&rng, 2);
            if (sl_rng_below(&rng, 6) == 0) {
                post_plain(e);
            } else if (sl_rng_below(&rng, 8) == 0) {
                const sl_spread_name what = sl_rails_spread(e->rails, e->conn, false, 0);
                send_parts(e, &what, back, rows, 0);
                given_up++;
            } else {
                post(e, back, rows);
            }
            turns(&s, 100 * (1 + sl_rng_below(&rng, 30)));
            for (; taken_a < s.a.came; taken_a++)
                if (s.a.name[taken_a].number) take(&s.a, taken_a);
            for (; taken_b < s.b.came; taken_b++)
                if (s.b.name[taken_b].number) take(&s.b, taken_b);
        }
        turns(&s, 20000);
        assert_true(given_up > 0);
        assert_int_equal(s.a.came, s.b.sent);
        assert_int_equal(s.b.came, s.a.sent);
        assert_true(s.a.downs == 0 && s.b.downs == 0);
        assert_true(sl_rails_stats_of(s.a.rails).striped > 20);
        assert_true(sl_rails_stats_of(s.a.rails).rail_bytes > 20 * ROW);
        finish(&s);
    }
}

/* One that lacks a part is not delivered, nor is what comes behind it. */
static void a_part_is_late(void **state) {
    (void)state;
    scene s;
    begin(&s, 0);
    const sl_spread_name what = sl_rails_spread(s.a.rails, s.a.conn, false, 0);
    send_parts(&s.a, &what, false, 3, 1u << 2);
    send_header(&s.a, &what, false, 3);
    post_plain(&s.a);
    turns(&s, 50000);
    assert_int_equal(s.b.came, 0);
    assert_true(sl_rails_await(s.b.rails));
    send_parts(&s.a, &what, false, 3, 1u << 1);
    turns(&s, 5000);
    assert_int_equal(s.b.came, 2);
    assert_false(sl_rails_await(s.b.rails));
    take(&s.b, 0);
    finish(&s);
}

/* Of two of a kind that came, who asks for the second has given up the first. */
static void parts_are_taken_in_order(void **state) {
    (void)state;
    scene s;
    begin(&s, 0);
    post(&s.a, false, 2);
    post(&s.a, true, 3);
    post(&s.a, false, 4);
    turns(&s, 5000);
    assert_int_equal(s.b.came, 3);
    take(&s.b, 2);
    assert_false(has(&s.b, 0));
    take(&s.b, 1);
    assert_false(has(&s.b, 1)); /* once */
    finish(&s);
}

/* Rows that stay are there for whoever asks, until nobody does. */
static void what_stays(void **state) {
    (void)state;
    scene s;
    begin(&s, 0);
    sl_spread_name what = sl_rails_spread(s.a.rails, NULL, true, 0);
    assert_true(what.number && !what.key && !what.cut);
    send_parts(&s.a, &what, true, 5, 0);
    sl_buf *b = NULL;
    assert_false(gang_rail_take(s.a.rank[1].rail, &what, true, 4, &b));
    assert_true(gang_rail_take(s.a.rank[1].rail, &what, true, 5, &b));
    sl_net_buf_give(s.a.rank[1].net, b);
    gang_rail_settle(s.a.rank[2].rail);
    assert_false(gang_rail_take(s.a.rank[2].rail, &what, true, 5, &b));
    finish(&s);
}

/* Its counterpart's main connection ends; what came before is kept until it is settled. */
static void a_rank_dies(void **state) {
    (void)state;
    scene s;
    begin(&s, 0);
    post(&s.a, false, 2);
    post(&s.a, true, 2);
    turns(&s, 5000);
    stop_rank(&s.a.rank[2]);
    turns(&s, 200000);
    assert_true(s.b.downs == 1 && s.a.downs >= 1);
    assert_false(sl_rails_can_spread(s.b.rails, s.b.conn));
    assert_true(strstr(s.b.text, "rail 2"));
    take(&s.b, 0);
    for (uint32_t i = 1; i < RANKS; i++) gang_rail_settle(s.b.rank[i].rail);
    assert_false(has(&s.b, 1));
    finish(&s);
}

/* It ends, and is made anew: keys differ, and so do what messages are called. */
static void a_connection_is_made_anew(void **state) {
    (void)state;
    scene s;
    begin(&s, 0);
    const sl_spread_name before = post(&s.a, false, 2);
    turns(&s, 5000);
    sl_net_close(s.a.net, s.a.conn, SL_ERR_PEER_DOWN, "the test says so");
    turns(&s, 5000);
    /* Of one that is gone no message has a name that anybody knows. */
    const sl_spread_name nobody = sl_rails_spread(s.a.rails, NULL, false, 0);
    assert_true(nobody.key == UINT64_MAX && nobody.cut);
    send_parts(&s.a, &nobody, false, 2, 0);
    call(&s);
    turns(&s, 30000);
    s.a.sent = s.b.came = 0;
    const sl_spread_name after = post(&s.a, false, 2);
    assert_true(after.key != before.key);
    turns(&s, 5000);
    assert_int_equal(s.b.came, 1);
    take(&s.b, 0);
    /* What was laid out for the old one goes nowhere. */
    sl_buf *b = sl_net_buf_take(s.a.net, 24);
    b->spread = before;
    const sl_wire_header h = {.kind = SL_MSG_DISPATCH, .rows = 2};
    assert_int_equal(sl_rails_send(s.a.rails, s.a.conn, h, b), SL_ERR_PEER_DOWN);
    finish(&s);
}

/* Who has no ranks yet is not called, and calls nobody; messages go whole. */
static void ranks_that_come_later(void **state) {
    (void)state;
    sl_err err;
    for (uint32_t late = 0; late < 2; late++) {
        scene s;
        prepare(&s, 0);
        end *first = late ? &s.a : &s.b, *second = late ? &s.b : &s.a;
        sl_rails_begin(first->rails);
        call(&s);
        turns(&s, 15000000); /* longer than rails may take */
        assert_true(s.a.downs == 0 && s.b.downs == 0);
        assert_false(sl_rails_can_spread(s.a.rails, s.a.conn));
        sl_rails_begin(second->rails);
        if (late) assert_int_equal(sl_rails_greet(s.b.rails, s.b.conn, &err), SL_OK);
        turns(&s, 30000);
        assert_true(sl_rails_can_spread(s.a.rails, s.a.conn));
        finish(&s);
    }
}

/* A rank that nobody reaches: who calls ends the connection. */
static void a_rank_that_stays_away(void **state) {
    (void)state;
    scene s;
    prepare(&s, 0);
    sl_rails_begin(s.a.rails);
    sl_rails_begin(s.b.rails);
    stop_rank(&s.b.rank[1]);
    call(&s);
    turns(&s, 9000000);
    assert_int_equal(s.a.downs, 0);
    turns(&s, 2000000);
    assert_int_equal(s.a.downs, 1);
    assert_true(strstr(s.a.text, "not all of 3 rails"));
    finish(&s);
}

/* What a rank says that is not so, or a header of no rows, ends the main connection. */
static void words_that_are_not_so(void **state) {
    (void)state;
    for (int which = 0; which < 4; which++) {
        scene s;
        begin(&s, 0);
        const sl_spread_name what = sl_rails_spread(s.a.rails, s.a.conn, false, 0);
        sl_rails_word w = {
            .kind = SL_RAILS_HERE, .rows = 3, .key = what.key, .number = what.number};
        if (which == 0) w.rows = 4;                /* of a message of three */
        if (which == 2) w.kind = SL_RAILS_BROKE;   /* whatever it says */
        for (int k = 0; k < 1 + (which == 1); k++) /* one: twice */
            if (which < 3) sl_rails_on_word(s.b.rails, 1, &w);
        send_header(&s.a, &what, false, which == 3 ? 0 : 3); /* three: nobody has a part of it */
        turns(&s, 200000);
        assert_true(s.b.downs == 1 && s.b.came == 0);
        finish(&s);
    }
}

/* Strangers, and counterparts that send what is not due, are refused; nobody else notices. */
typedef struct liar {
    peer is;
    sl_conn *conn;
} liar;

static void say_to(scene *s, liar *l, const sl_wire_header *h, size_t len) {
    sl_buf *b = len ? sl_net_buf_take(l->is.net, len) : NULL;
    assert_int_equal(sl_net_send(l->is.net, l->conn, *h, b), SL_OK);
    for (int i = 0; i < 50; i++) {
        (void)sl_net_progress(l->is.net);
        turns(s, 200);
    }
}

static void strangers_at_a_rank(void **state) {
    (void)state;
    const sl_wire_header lies[] = {{.kind = SL_MSG_RAIL_IS, .number = 77, .chunk = 1},
                                   {.kind = SL_MSG_RAIL_IS, .chunk = 1},
                                   {.kind = SL_MSG_STRIPE, .number = 1, .chunk = 1, .rows = 1},
                                   {.kind = SL_MSG_DISPATCH}};
    for (size_t i = 0; i < SL_LEN(lies); i++) {
        scene s;
        sl_err err;
        liar l = {0};
        begin(&s, 0);
        peer_start(&l.is, s.hub, &s.clock, KEY);
        assert_int_equal(
            sl_net_connect(l.is.net, sl_net_address(s.b.rank[1].net), NULL, &l.conn, &err), SL_OK);
        say_to(&s, &l, &lies[i], lies[i].kind == SL_MSG_STRIPE ? ROW : 0);
        assert_int_equal(l.is.downs, 1);
        post(&s.a, false, 2);
        turns(&s, 5000);
        assert_int_equal(s.b.came, 1);
        assert_int_equal(s.b.downs, 0);
        sl_net_free(l.is.net);
        finish(&s);
    }
}

/* Lengths, kinds and numbers that a counterpart may not say. */
static void parts_that_are_not_due(void **state) {
    (void)state;
    for (int which = 0; which < 4; which++) {
        scene s;
        sl_err err;
        begin(&s, 0);
        const sl_spread_name what = sl_rails_spread(s.a.rails, s.a.conn, false, 0);
        const uint32_t rows = which == 0 ? 2 : 1;
        sl_spread_name name = what;
        if (which == 1) send_parts(&s.a, &what, false, 1, 1u << 2); /* then once more */
        if (which == 2) name.number = 0;
        sl_buf *b = sl_net_buf_take(s.a.rank[1].net, ROW);
        memset(b->data, 0, b->len);
        if (which == 3) { /* more than can wait */
            sl_net_buf_give(s.a.rank[1].net, b);
            for (uint32_t i = 0; i <= GANG_MOST_PARTS; i++, name.number++)
                send_parts(&s.a, &name, true, 1, 1u << 2);
        } else {
            assert_int_equal(gang_rail_send(s.a.rank[1].rail, &name, false, rows, b, &err), SL_OK);
        }
        turns(&s, 200000);
        assert_true(s.b.downs == 1 && s.b.came == 0);
        finish(&s);
    }
}

static void words_there_and_back(void **state) {
    (void)state;
    const sl_rails_word w = {
        .kind = SL_RAILS_HERE, .rows = 7, .key = 1ull << 40, .number = 9, .text = "b:7100"};
    uint8_t bytes[SL_RAILS_WORD_BYTES];
    sl_rails_word back;
    sl_err err;
    sl_rails_word_encode(&w, bytes);
    assert_int_equal(sl_rails_word_decode((sl_span){bytes, sizeof bytes}, &back, &err), SL_OK);
    assert_memory_equal(&w, &back, sizeof w);
    assert_int_equal(sl_rails_word_decode((sl_span){bytes, sizeof bytes - 1}, &back, &err),
                     SL_ERR_PROTOCOL);
    for (int which = 0; which < 3; which++) {
        uint8_t bad[sizeof bytes];
        memcpy(bad, bytes, sizeof bad);
        if (which == 0) bad[0] = SL_RAILS_WORDS;
        if (which == 1) memset(bad + 8, 0, 8); /* the key */
        if (which == 2) memset(bad + 24, 'x', SL_RAILS_ADDRESS);
        assert_int_equal(sl_rails_word_decode((sl_span){bad, sizeof bad}, &back, &err),
                         SL_ERR_PROTOCOL);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_there_and_back),
        cmocka_unit_test(messages_come_with_their_parts),
        cmocka_unit_test(a_part_is_late),
        cmocka_unit_test(parts_are_taken_in_order),
        cmocka_unit_test(what_stays),
        cmocka_unit_test(a_rank_dies),
        cmocka_unit_test(a_connection_is_made_anew),
        cmocka_unit_test(ranks_that_come_later),
        cmocka_unit_test(a_rank_that_stays_away),
        cmocka_unit_test(words_that_are_not_so),
        cmocka_unit_test(strangers_at_a_rank),
        cmocka_unit_test(parts_that_are_not_due),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
