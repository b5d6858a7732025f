/* Rails: messages of drawn lengths and kinds come whole and in order, whatever overtakes what, by
 * threads and by hand; a rail that ends, stays away or says what is not so ends its main connection
 * and nothing else. */
#include "base/mem.h"
#include "base/rng.h"
#include "net/rails.h"
#include "net_harness.h"
#include "sanitized.h"

#include <stdlib.h>

#define LEAST 100u
#define MOST  40000u

/* One end of a main connection, with rails. */
typedef struct end {
    sl_net *net;
    sl_rails *rails;
    sl_conn *conn;
    bool calls, open;
    int downs;
    sl_status why;
    char text[200];
    uint64_t sent, came;
    char bad[160]; /* "": all that came was right */
    vclock *clock; /* NULL: real time, rails have threads */
} end;

static uint8_t byte_of(uint64_t number, size_t i) {
    return (uint8_t)(number * 31 + i * 7 + i / 251);
}

static size_t length_of(uint64_t number) {
    uint64_t rng = number * 977 + 5;
    const size_t most[] = {1, LEAST, 3 * LEAST, MOST};
    return (size_t)sl_rng_below(&rng, most[number % SL_LEN(most)] + 1);
}

static uint16_t kind_of(uint64_t number) {
    return number % 5 == 0 ? SL_MSG_JOIN : number % 2 ? SL_MSG_DISPATCH : SL_MSG_RETURN;
}

static sl_status deliver(void *ctx, sl_conn *c, const sl_wire_header *h, sl_buf *b, sl_err *err) {
    end *e = ctx;
    const uint64_t n = e->came++;
    const size_t len = b ? b->len : 0;
    bool right = c == e->conn && h->kind == kind_of(n) && len == length_of(n) && h->bytes == len &&
                 h->wave == n && h->rows == n % 100;
    for (size_t i = 0; right && i < len; i++) right = b->data[i] == byte_of(n, i);
    if (!right && !e->bad[0])
        snprintf(e->bad, sizeof e->bad, "message %llu: kind %u, %zu bytes, wave %llu",
                 (unsigned long long)n, h->kind, len, (unsigned long long)h->wave);
    sl_net_buf_give(e->net, b);
    (void)err;
    return SL_OK;
}

static sl_status on_open(void *ctx, sl_conn *c, const sl_hello *its, sl_err *err) {
    end *e = ctx;
    (void)its;
    e->conn = c;
    e->open = true;
    return e->calls || !e->rails ? SL_OK : sl_rails_greet(e->rails, c, err);
}

static sl_status on_message(void *ctx, sl_conn *c, const sl_wire_header *h, sl_buf *b,
                            sl_err *err) {
    end *e = ctx;
    if (e->rails) return sl_rails_on_message(e->rails, c, h, b, err);
    sl_net_buf_give(e->net, b); /* a stranger, who says what the test makes it say */
    return SL_OK;
}

static void on_down(void *ctx, sl_conn *c, sl_status why, const char *text) {
    end *e = ctx;
    if (e->rails) sl_rails_on_down(e->rails, c);
    e->downs++;
    e->why = why;
    e->conn = NULL;
    snprintf(e->text, sizeof e->text, "%s", text);
}

static sl_net_opts opts_of(end *e, const char *transport, sl_loop_hub *hub, uint32_t id) {
    sl_net_opts o = {.transport = transport, .hub = hub, .host = "127.0.0.1", .ctx = e};
    o.clock = e->clock ? (sl_clock){vclock_now, e->clock} : sl_clock_real();
    o.secret = (sl_span){(const uint8_t *)KEY, strlen(KEY)};
    o.on = (sl_net_events){on_open, on_message, on_down};
    o.hello = (sl_hello){.worker = id, .incarnation = 100 + id};
    snprintf(o.hello.name, sizeof o.hello.name, "worker %u", id);
    return o;
}

/* n 0: without rails. */
static void start(end *e, const char *transport, sl_loop_hub *hub, uint32_t id, uint32_t n) {
    sl_err err;
    const sl_net_opts o = opts_of(e, transport, hub, id);
    if (sl_net_create(&o, &e->net, &err) != SL_OK) fail_msg("%s", err.msg);
    const sl_rails_opts r = {.n = n,
                             .least = LEAST,
                             .main = e->net,
                             .net = o,
                             .driven = e->clock != NULL,
                             .deliver = deliver,
                             .ctx = e};
    if (n && sl_rails_open(&r, &e->rails, &err) != SL_OK) fail_msg("%s", err.msg);
}

static void stop(end *e) {
    sl_rails_free(e->rails);
    sl_net_free(e->net);
}

static void call(end *from, end *to) {
    sl_err err;
    from->calls = true;
    if (sl_net_connect(from->net, sl_net_address(to->net), NULL, &from->conn, &err) != SL_OK)
        fail_msg("%s", err.msg);
}

static void turn(end *e) {
    (void)sl_net_progress(e->net);
    if (e->rails) (void)sl_rails_progress(e->rails);
    if (!e->clock) sl_net_wait(e->net, 200);
}

static void turns(end *a, end *b, uint64_t us) {
    for (uint64_t until = a->clock->now_us + us; a->clock->now_us < until;) {
        turn(a);
        turn(b);
        a->clock->now_us += 100;
    }
}

static void post(end *e) {
    const uint64_t n = e->sent++;
    sl_buf *b = length_of(n) ? sl_net_buf_take(e->net, length_of(n)) : NULL;
    for (size_t i = 0; b && i < b->len; i++) b->data[i] = byte_of(n, i);
    const sl_wire_header h = {.kind = kind_of(n), .wave = n, .rows = (uint32_t)(n % 100)};
    assert_int_equal(sl_rails_send(e->rails, e->conn, h, b), SL_OK);
}

static void check(const end *e, const end *from) {
    if (e->bad[0]) fail_msg("%s", e->bad);
    assert_int_equal(e->came, from->sent);
}

/* ---- by threads ---- */

static void exchange(const char *transport, sl_loop_hub *hub, uint32_t n, uint64_t seed) {
    end a = {0}, b = {0};
    const uint64_t until_ns = sl_now_ns() + 60 * UINT64_C(1000000000);
    start(&a, transport, hub, 0, n);
    start(&b, transport, hub, 1, n);
    call(&a, &b);
    for (uint64_t rng = seed, goal = 600; a.came < goal || b.came < goal;) {
        if (sl_now_ns() > until_ns)
            fail_msg("%s, %u rails: %llu and %llu came", transport, n, (unsigned long long)a.came,
                     (unsigned long long)b.came);
        turn(&a);
        turn(&b);
        for (uint64_t k = sl_rng_below(&rng, 8); a.open && a.sent < goal && k > 0; k--) post(&a);
        for (uint64_t k = sl_rng_below(&rng, 8); b.open && b.sent < goal && k > 0; k--) post(&b);
    }
    check(&a, &b);
    check(&b, &a);
    assert_true(a.downs == 0 && b.downs == 0);
    assert_true(sl_rails_stats_of(a.rails).striped > 50);
    assert_true(sl_rails_stats_of(b.rails).rail_bytes > 50 * LEAST / 2);
    stop(&a);
    stop(&b);
}

static void messages_come_in_order(void **state) {
    (void)state;
    for (uint32_t n = 2; n <= SL_RAILS_MAX; n *= 2) {
        exchange("tcp", NULL, n, n);
        exchange("shm", NULL, n, n + 10);
        sl_loop_hub *hub = NULL;
        sl_err err;
        assert_int_equal(sl_loop_hub_create(n, 300, &hub, &err), SL_OK);
        exchange("loop", hub, n, n + 20);
        sl_loop_hub_free(hub);
    }
}

/* ---- by hand, on a clock of the test's ---- */

typedef struct scene {
    vclock clock;
    sl_loop_hub *hub;
    end a, b;
} scene;

static void begin(scene *s, uint64_t seed, uint32_t n_a, uint32_t n_b) {
    sl_err err;
    *s = (scene){.clock = {1000000}};
    s->a.clock = s->b.clock = &s->clock;
    assert_int_equal(sl_loop_hub_create(seed, seed ? 3000 : 0, &s->hub, &err), SL_OK);
    start(&s->a, "loop", s->hub, 0, n_a);
    start(&s->b, "loop", s->hub, 1, n_b);
    call(&s->a, &s->b);
}

static void finish(scene *s) {
    stop(&s->a);
    stop(&s->b);
    sl_loop_hub_free(s->hub);
}

/* Messages of different connections overtake each other by up to 3 ms. */
static void whatever_overtakes_what(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed += take_one_in(SL_SLOW_BUILD == 2 ? 10
                                                            : SL_SLOW_BUILD    ? 4
                                                                               : 1)) {
        scene s;
        begin(&s, seed, 2u << seed % 3, 2u << seed % 3);
        uint64_t rng = seed;
        while (s.a.sent < 200) {
            turns(&s.a, &s.b, 100 * (1 + sl_rng_below(&rng, 10)));
            if (s.a.open) post(&s.a);
            if (s.b.open && s.b.sent < 200) post(&s.b);
        }
        turns(&s.a, &s.b, 20000);
        check(&s.a, &s.b);
        check(&s.b, &s.a);
        assert_true(sl_rails_stats_of(s.a.rails).striped > 50);
        finish(&s);
    }
}

/* The header comes long after its stripes, with others behind it. */
static void stripes_before_their_header(void **state) {
    (void)state;
    scene s;
    begin(&s, 0, 4, 4);
    turns(&s.a, &s.b, 5000);
    sl_loop_hub_hold(s.hub, sl_net_address(s.a.net), sl_net_address(s.b.net),
                     s.clock.now_us + 100000);
    for (int i = 0; i < 12; i++) post(&s.a);
    turns(&s.a, &s.b, 50000);
    assert_int_equal(s.b.came, 0);
    turns(&s.a, &s.b, 100000);
    check(&s.b, &s.a);
    finish(&s);
}

/* An end that goes has stripes to send, and links that are there. */
static void an_end_with_stripes_under_way(void **state) {
    (void)state;
    scene s;
    begin(&s, 0, 4, 4);
    turns(&s.a, &s.b, 5000);
    for (int i = 0; i < 12; i++) {
        post(&s.a);
        post(&s.b);
    }
    assert_true(sl_rails_stats_of(s.a.rails).striped > 0);
    finish(&s);
}

/* A message whose stripe is lost is not delivered, nor is any behind it. */
static void a_rail_that_ends(void **state) {
    (void)state;
    scene s;
    begin(&s, 0, 2, 2);
    turns(&s.a, &s.b, 5000);
    while (kind_of(s.a.sent) == SL_MSG_JOIN || length_of(s.a.sent) < LEAST) post(&s.a);
    turns(&s.a, &s.b, 1000);
    const uint64_t whole = s.b.came;
    sl_rails_free(s.b.rails); /* its main connection stays */
    s.b.rails = NULL;
    post(&s.a);
    turns(&s.a, &s.b, 200000);
    assert_int_equal(s.a.downs, 1);
    assert_int_equal(s.a.why, SL_ERR_PEER_DOWN);
    if (!strstr(s.a.text, "rail 1")) fail_msg("%s", s.a.text);
    assert_int_equal(s.b.came, whole);
    finish(&s);
}

static void rails_that_stay_away(void **state) {
    (void)state;
    scene s;
    begin(&s, 0, 0, 2); /* a hears where they are, and does not call */
    turns(&s.a, &s.b, 5000000);
    assert_int_equal(s.b.downs, 0);
    turns(&s.a, &s.b, 6000000);
    assert_int_equal(s.b.downs, 1);
    if (!strstr(s.b.text, "not all of 2 rails")) fail_msg("%s", s.b.text);
    finish(&s);
}

static void other_numbers_of_rails(void **state) {
    (void)state;
    scene s;
    begin(&s, 0, 2, 4);
    turns(&s.a, &s.b, 100000);
    assert_true(s.a.downs == 1 && s.b.downs == 1 && s.a.came + s.b.came == 0);
    if (!strstr(s.a.text, "4 rails")) fail_msg("%s", s.a.text);
    finish(&s);
}

/* ---- what is not so ---- */

static void say(end *e, uint16_t kind, const uint8_t *bytes, size_t len) {
    sl_buf *b = len ? sl_net_buf_take(e->net, len) : NULL;
    if (b) memcpy(b->data, bytes, len);
    assert_int_equal(sl_net_send(e->net, e->conn, (sl_wire_header){.kind = kind}, b), SL_OK);
}

/* A peer without rails says this over the main connection; b closes it and has nothing of it. */
static void refused(uint16_t kind, const uint8_t *bytes, size_t len, const char *why) {
    scene s;
    begin(&s, 0, 0, 2);
    turns(&s.a, &s.b, 5000);
    say(&s.a, kind, bytes, len);
    turns(&s.a, &s.b, 100000);
    assert_true(s.b.downs == 1 && s.b.came == 0);
    assert_int_equal(s.b.why, SL_ERR_PROTOCOL);
    if (!strstr(s.b.text, why)) fail_msg("%s, not %s", s.b.text, why);
    finish(&s);
}

static void striped(const sl_rails_striped *p, size_t first, const char *why) {
    uint8_t bytes[SL_STRIPED_HEAD + 1000] = {0};
    sl_rails_striped_encode(p, bytes);
    refused(SL_MSG_STRIPED, bytes, SL_STRIPED_HEAD + first, why);
}

static void words_that_are_not_so(void **state) {
    (void)state;
    const size_t first = sl_stripe_begin(1000, 2, 1);
    uint8_t bytes[SL_RAILS_GREETING_HEAD + 7 * SL_RAILS_ADDRESS] = {0};
    sl_rails_greeting g = {.n = 2, .key = 7};
    striped(&(sl_rails_striped){SL_MSG_DISPATCH, 1000, 2}, first, "1 expected");
    striped(&(sl_rails_striped){SL_MSG_DISPATCH, 1000, 1}, first - 1, "of 2 rails it has");
    striped(&(sl_rails_striped){SL_MSG_PLAN, 1000, 1}, first, "in stripes");
    striped(&(sl_rails_striped){SL_MSG_RETURN, UINT32_MAX, 1}, first, "in stripes");
    refused(SL_MSG_STRIPED, bytes, 5, "in stripes");
    refused(SL_MSG_STRIPED, NULL, 0, "in stripes");
    refused(SL_MSG_RAILS, bytes, 9, "rails are possible");
    sl_rails_greeting_encode(&g, bytes); /* address 1 is empty */
    refused(SL_MSG_RAILS, bytes, sl_rails_greeting_bytes(2), "has no address");
    strcpy(g.at[1], "loop:1");
    sl_rails_greeting_encode(&g, bytes); /* b was called: it has rails of its own */
    refused(SL_MSG_RAILS, bytes, sl_rails_greeting_bytes(2), "that has some");
}

/* Who calls a rail and says what is not so loses that connection; the main one stays. */
static void strangers_at_a_rail(void **state) {
    (void)state;
    static const sl_wire_header words[] = {
        {.kind = SL_MSG_STRIPE, .number = 1, .chunk = 1},
        {.kind = SL_MSG_RAIL_IS, .number = 12345, .chunk = 1},
        {.kind = SL_MSG_RAIL_IS, .number = 0, .chunk = 1},
        {.kind = SL_MSG_RAIL_IS, .number = 12345, .chunk = 3},
        {.kind = SL_MSG_DISPATCH, .rows = 1},
    };
    for (size_t i = 0; i < SL_LEN(words); i++) {
        scene s;
        end x = {0};
        sl_err err;
        begin(&s, 0, 2, 2);
        turns(&s.a, &s.b, 5000);
        x.clock = &s.clock;
        start(&x, "loop", s.hub, 2, 0);
        char at[96];
        /* Addresses of the hub are numbers in the order of their nets: b's rail is the fourth. */
        snprintf(at, sizeof at, "loop:%d", atoi(strchr(sl_net_address(s.b.net), ':') + 1) + 1);
        assert_int_equal(sl_net_connect(x.net, at, NULL, &x.conn, &err), SL_OK);
        assert_int_equal(sl_net_send(x.net, x.conn, words[i], NULL), SL_OK);
        for (int k = 0; k < 50; k++) {
            turn(&x);
            turns(&s.a, &s.b, 1000);
        }
        assert_int_equal(x.downs, 1);
        for (int k = 0; k < 20; k++) post(&s.a);
        turns(&s.a, &s.b, 10000);
        check(&s.b, &s.a);
        assert_true(s.a.downs == 0 && s.b.downs == 0);
        stop(&x);
        finish(&s);
    }
}

static void words_there_and_back(void **state) {
    (void)state;
    sl_err err;
    for (uint32_t n = 2; n <= SL_RAILS_MAX; n++) {
        uint8_t bytes[SL_RAILS_GREETING_HEAD + 7 * SL_RAILS_ADDRESS];
        sl_rails_greeting g = {.n = n, .key = 1ull << 60 | n}, got;
        for (uint32_t i = 1; i < n; i++) snprintf(g.at[i], sizeof g.at[i], "10.0.%u.1:70%u", i, i);
        sl_rails_greeting_encode(&g, bytes);
        const sl_span in = {bytes, sl_rails_greeting_bytes(n)};
        assert_int_equal(sl_rails_greeting_decode(in, &got, &err), SL_OK);
        assert_memory_equal(&g, &got, sizeof g);
        for (size_t total = 0; total < 5000; total += 37)
            for (uint32_t i = 0; i < n; i++)
                assert_true(sl_stripe_begin(total, n, i) <= sl_stripe_begin(total, n, i + 1));
    }
}

static void hosts_of_rails(void **state) {
    (void)state;
    static const char *const wrong[] = {"127.0.0.1", "127.0.0.1,127.0.0.1,127.0.0.1", "127.0.0.1,",
                                        ",127.0.0.1", "no.such.host.invalid,127.0.0.1"};
    for (size_t i = 0; i <= SL_LEN(wrong); i++) {
        end e = {0};
        sl_err err;
        start(&e, "tcp", NULL, 0, 0);
        const sl_rails_opts o = {.n = 3,
                                 .least = 1,
                                 .hosts = i < SL_LEN(wrong) ? wrong[i] : "127.0.0.1,127.0.0.1",
                                 .main = e.net,
                                 .net = opts_of(&e, "tcp", NULL, 0),
                                 .deliver = deliver,
                                 .ctx = &e};
        assert_int_equal(sl_rails_open(&o, &e.rails, &err) == SL_OK, i == SL_LEN(wrong));
        stop(&e);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_there_and_back),
        cmocka_unit_test(hosts_of_rails),
        cmocka_unit_test(messages_come_in_order),
        cmocka_unit_test(whatever_overtakes_what),
        cmocka_unit_test(an_end_with_stripes_under_way),
        cmocka_unit_test(stripes_before_their_header),
        cmocka_unit_test(a_rail_that_ends),
        cmocka_unit_test(rails_that_stay_away),
        cmocka_unit_test(other_numbers_of_rails),
        cmocka_unit_test(words_that_are_not_so),
        cmocka_unit_test(strangers_at_a_rail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
