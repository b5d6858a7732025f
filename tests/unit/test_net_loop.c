/* Nets of threads: order, delays, sizes, ends. */
#include "net_harness.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "base/mem.h"
#include "base/rng.h"

static sl_loop_hub *make_hub(uint64_t seed, uint32_t max_delay_us) {
    sl_err err = {0};
    sl_loop_hub *hub = NULL;
    if (sl_loop_hub_create(seed, max_delay_us, &hub, &err) != SL_OK) fail_msg("%s", err.msg);
    return hub;
}

static sl_conn *call(peer *from, const char *address) {
    sl_err err = {0};
    sl_conn *c = NULL;
    if (sl_net_connect(from->net, address, from, &c, &err) != SL_OK) fail_msg("%s", err.msg);
    return c;
}

static void two_nets_shake_hands_and_talk(void **state) {
    (void)state;
    vclock clock = {1000};
    sl_loop_hub *hub = make_hub(0, 0);
    peer a = {0}, b = {0}, *both[] = {&a, &b};
    peer_start(&a, hub, &clock, KEY);
    peer_start(&b, hub, &clock, KEY);
    sl_conn *c = call(&a, sl_net_address(b.net));
    assert_false(sl_conn_is_open(c));
    /* Sent before it is open: it waits for WELCOME. */
    assert_int_equal(peer_send_u64(&a, c, SL_MSG_SUBMIT, 7), SL_OK);
    pass_us(&clock, both, 2, 1000, 100);
    assert_int_equal(a.opened, 1);
    assert_int_equal(b.opened, 1);
    assert_true(sl_conn_is_open(c));
    assert_string_equal(b.seen.address, sl_net_address(a.net));
    assert_int_equal(a.seen.incarnation, b.net->hello.incarnation);
    assert_int_equal(b.messages, 1);
    assert_int_equal(b.value, 7);
    assert_int_equal(peer_send_u64(&b, b.last, SL_MSG_TOKENS, 9), SL_OK);
    assert_int_equal(sl_net_send(b.net, b.last, (sl_wire_header){.kind = SL_MSG_READY}, NULL),
                     SL_OK);
    pass_us(&clock, both, 2, 1000, 100);
    assert_int_equal(a.messages, 2);
    assert_int_equal(a.kind, SL_MSG_READY);
    assert_int_equal(a.value, 9);
    assert_ptr_equal(sl_conn_user(c), &a);
    sl_conn_stats s = sl_conn_stats_of(c);
    assert_int_equal(s.sent_messages, 3); /* HELLO, AUTH, SUBMIT */
    sl_net_close(a.net, c, SL_OK, "done");
    pass_us(&clock, both, 2, 1000, 100);
    assert_int_equal(a.downs, 1);
    assert_int_equal(a.why, SL_OK);
    assert_int_equal(b.downs, 1);
    assert_int_equal(b.why, SL_OK);
    assert_non_null(strstr(b.text, "done"));
    sl_net_free(a.net);
    sl_net_free(b.net);
    sl_loop_hub_free(hub);
}

static void a_net_can_call_itself(void **state) {
    (void)state;
    vclock clock = {1000};
    sl_loop_hub *hub = make_hub(0, 0);
    peer a = {0}, *one[] = {&a};
    peer_start(&a, hub, &clock, KEY);
    sl_conn *c = call(&a, sl_net_address(a.net));
    pass_us(&clock, one, 1, 1000, 100);
    assert_int_equal(a.opened, 2);
    sl_buf *b = sl_net_buf_take(a.net, 4096);
    assert_int_equal(sl_net_send(a.net, c, (sl_wire_header){.kind = SL_MSG_DISPATCH}, b), SL_OK);
    pass_us(&clock, one, 1, 5000000, 100000);
    assert_int_equal(a.messages, 1);
    if (a.downs) fail_msg("%s", a.text);
    sl_net_close(a.net, c, SL_ERR_CANCELLED, "over");
    pass_us(&clock, one, 1, 1000, 100);
    assert_int_equal(a.downs, 2);
    /* The other end also learns of an end without BYE. */
    c = call(&a, sl_net_address(a.net));
    pass_us(&clock, one, 1, 1000, 100);
    sl_net_link_down(c, SL_ERR_PEER_DOWN, "cut");
    pass_us(&clock, one, 1, 1000, 100);
    assert_int_equal(a.downs, 4);
    sl_net_free(a.net);
    sl_loop_hub_free(hub);
}

/* ---- order under delays ---- */

#define SENDERS 5
#define EACH    300

typedef struct order {
    uint64_t next[SENDERS];
    uint64_t log[SENDERS * EACH];
    size_t n;
} order;

static void record(peer *p, sl_conn *c, const sl_wire_header *h, const sl_buf *payload) {
    (void)c, (void)h;
    order *o = p->extra;
    uint64_t v;
    memcpy(&v, payload->data, 8);
    assert_true(v / EACH < SENDERS);
    assert_int_equal(v % EACH, o->next[v / EACH]++);
    o->log[o->n++] = v;
}

static void run_order(uint64_t seed, order *out) {
    vclock clock = {1000};
    sl_loop_hub *hub = make_hub(seed, 5000);
    peer sink = {.on_message = record, .extra = out}, from[SENDERS] = {{0}}, *all[SENDERS + 1];
    sl_conn *c[SENDERS];
    memset(out, 0, sizeof *out);
    peer_start(&sink, hub, &clock, KEY);
    all[SENDERS] = &sink;
    for (int i = 0; i < SENDERS; i++) {
        peer_start(&from[i], hub, &clock, KEY);
        all[i] = &from[i];
        c[i] = call(&from[i], sl_net_address(sink.net));
    }
    for (uint64_t k = 0; k < EACH; k++) {
        for (uint64_t i = 0; i < SENDERS; i++)
            assert_int_equal(peer_send_u64(&from[i], c[i], SL_MSG_SUBMIT, i * EACH + k), SL_OK);
        pass_us(&clock, all, SENDERS + 1, 200, 100);
    }
    pass_us(&clock, all, SENDERS + 1, 100000, 100);
    assert_int_equal(out->n, SENDERS * EACH);
    for (int i = 0; i < SENDERS; i++) sl_net_free(from[i].net);
    sl_net_free(sink.net);
    sl_loop_hub_free(hub);
}

static void delays_keep_order_within_a_connection_and_repeat_by_seed(void **state) {
    (void)state;
    order *a = calloc(3, sizeof *a), *b = a + 1, *c = a + 2;
    run_order(11, a);
    run_order(11, b);
    run_order(12, c);
    assert_memory_equal(a->log, b->log, sizeof a->log);
    assert_memory_not_equal(a->log, c->log, sizeof a->log);
    free(a);
}

/* ---- links that ail ---- */

typedef struct pair {
    vclock clock;
    sl_loop_hub *hub;
    peer a, b, *both[2];
    sl_conn *c; /* of a */
} pair;

static void pair_start(pair *p, sl_net_when sums) {
    *p = (pair){.clock = {1000}, .hub = make_hub(0, 0)};
    sl_loop_hub_set_apart(p->hub);
    for (int i = 0; i < 2; i++) {
        peer *e = p->both[i] = i ? &p->b : &p->a;
        sl_err err = {0};
        sl_net_opts o = peer_opts(e, p->hub, (sl_clock){vclock_now, &p->clock}, KEY);
        o.sums = sums;
        if (sl_net_create(&o, &e->net, &err) != SL_OK) fail_msg("%s", err.msg);
    }
    p->c = call(&p->a, sl_net_address(p->b.net));
    pass_us(&p->clock, p->both, 2, 1000, 100);
    assert_int_equal(p->b.opened, 1);
}

static void pair_end(pair *p) {
    sl_net_free(p->a.net);
    sl_net_free(p->b.net);
    sl_loop_hub_free(p->hub);
}

/* It had called, and nobody had looked. */
static void who_is_gone_before_it_answers_is_missed(void **state) {
    (void)state;
    for (uint32_t delay_us = 0; delay_us <= 5000; delay_us += 5000) {
        for (int steals = 0; steals < 2; steals++) {
            vclock clock = {1};
            sl_loop_hub *hub = make_hub(3, delay_us);
            peer a = {0}, b = {0};
            peer_start(&a, hub, &clock, KEY);
            peer_start(&b, hub, &clock, KEY);
            sl_conn *c = call(&a, sl_net_address(b.net));
            assert_non_null(c);
            if (steals && delay_us) sl_net_progress(b.net); /* it is not due yet */
            sl_net_free(b.net);
            clock.now_us += 20000;
            sl_net_progress(a.net);
            assert_int_equal(a.downs, 1);
            assert_int_equal(a.why, SL_ERR_PEER_DOWN);
            sl_net_free(a.net);
            sl_loop_hub_free(hub);
        }
    }
}

static void a_cut_ends_both_ends_and_what_is_on_its_way(void **state) {
    (void)state;
    pair p;
    pair_start(&p, SL_NET_WHEN_OFF);
    const char *a = sl_net_address(p.a.net), *b = sl_net_address(p.b.net);
    sl_loop_hub_hold(p.hub, a, b, p.clock.now_us + 500);
    assert_int_equal(peer_send_u64(&p.a, p.c, SL_MSG_SUBMIT, 7), SL_OK);
    sl_loop_hub_cut(p.hub, b, a);
    pass_us(&p.clock, p.both, 2, 100, 100);
    assert_int_equal(p.a.downs, 1);
    assert_int_equal(p.b.downs, 1);
    assert_int_equal(p.a.why, SL_ERR_PEER_DOWN);
    assert_string_equal(p.a.text, "the connection was cut");
    assert_string_equal(p.b.text, "the connection was cut");
    p.c = call(&p.a, b);
    assert_int_equal(peer_send_u64(&p.a, p.c, SL_MSG_SUBMIT, 8), SL_OK);
    pass_us(&p.clock, p.both, 2, 2000, 100);
    assert_int_equal(p.b.opened, 2);
    assert_int_equal(p.b.messages, 1); /* not the one before the cut */
    assert_int_equal(p.b.value, 8);
    assert_int_equal(p.a.downs + p.b.downs, 2);
    pair_end(&p);
}

/* Wherever the bit is, nothing of the message is delivered. */
static void a_damaged_message_ends_its_connection(void **state) {
    (void)state;
    for (uint64_t bit = 0; bit < 8 * (SL_WIRE_HEADER_BYTES + 8); bit++) {
        pair p;
        pair_start(&p, SL_NET_WHEN_AUTO);
        const char *a = sl_net_address(p.a.net), *b = sl_net_address(p.b.net);
        sl_loop_hub_damage(p.hub, a, b, bit);
        assert_int_equal(peer_send_u64(&p.b, p.b.last, SL_MSG_TOKENS, 1), SL_OK);
        pass_us(&p.clock, p.both, 2, 300, 100);
        assert_int_equal(p.a.messages, 1); /* the other way all is well */
        assert_int_equal(peer_send_u64(&p.a, p.c, SL_MSG_SUBMIT, 7), SL_OK);
        pass_us(&p.clock, p.both, 2, 1000, 100);
        assert_int_equal(p.b.messages, 0);
        assert_int_equal(p.b.downs, 1);
        assert_int_equal(p.a.downs, 1);
        assert_int_equal(p.b.why, SL_ERR_PEER_DOWN);
        p.c = call(&p.a, b);
        assert_int_equal(peer_send_u64(&p.a, p.c, SL_MSG_SUBMIT, 8), SL_OK);
        pass_us(&p.clock, p.both, 2, 1000, 100);
        assert_int_equal(p.b.value, 8); /* it was one message */
        pair_end(&p);
    }
}

/* So many bytes a second, both ways for themselves; nobody counts as silent meanwhile. */
static void a_thin_link_takes_its_time_by_bytes(void **state) {
    (void)state;
    enum { N = 10000, RATE = 2500 };
    pair p;
    pair_start(&p, SL_NET_WHEN_OFF);
    const char *a = sl_net_address(p.a.net), *b = sl_net_address(p.b.net);
    sl_loop_hub_thin(p.hub, a, b, RATE, p.clock.now_us + 10000000);
    sl_buf *big = sl_net_buf_take(p.a.net, N);
    memset(big->data, 0, N);
    assert_int_equal(sl_net_send(p.a.net, p.c, (sl_wire_header){.kind = SL_MSG_SUBMIT}, big),
                     SL_OK);
    assert_int_equal(peer_send_u64(&p.a, p.c, SL_MSG_SUBMIT, 9), SL_OK);
    assert_int_equal(peer_send_u64(&p.b, p.b.last, SL_MSG_TOKENS, 5), SL_OK);
    pass_us(&p.clock, p.both, 2, 100000, 1000);
    assert_int_equal(p.a.value, 5);
    assert_int_equal(p.b.messages, 0);
    pass_us(&p.clock, p.both, 2, 3900000, 1000); /* 4.0 s; 4.03 s are due */
    assert_int_equal(p.b.messages, 0);
    pass_us(&p.clock, p.both, 2, 300000, 1000);
    assert_int_equal(p.b.messages, 2);
    assert_int_equal(p.b.value, 9);
    /* What waits at its end is through at once. */
    for (int i = 0; i < 8; i++)
        assert_int_equal(sl_net_send(p.a.net, p.c, (sl_wire_header){.kind = SL_MSG_SUBMIT},
                                     sl_net_buf_take(p.a.net, N)),
                         SL_OK);
    pass_us(&p.clock, p.both, 2, 5500000, 1000);
    assert_int_equal(p.b.messages, 3);
    pass_us(&p.clock, p.both, 2, 300000, 1000);
    assert_int_equal(p.b.messages, 10);
    if (p.a.downs + p.b.downs) fail_msg("%s %s", p.a.text, p.b.text);
    pair_end(&p);
}

/* ---- threads ---- */

#define THREADS 4
#define ECHOES  400

typedef struct worker {
    peer p;
    sl_loop_hub *hub;
    char target[32];
    int echoes;
    uint64_t sum;
} worker;

static void echo(peer *p, sl_conn *c, const sl_wire_header *h, const sl_buf *payload) {
    sl_buf *b = sl_net_buf_take(p->net, payload->len);
    memcpy(b->data, payload->data, payload->len);
    assert_int_equal(
        sl_net_send(p->net, c, (sl_wire_header){.kind = SL_MSG_RETURN, .rows = h->rows}, b), SL_OK);
}

static void send_next(worker *w, sl_conn *c) {
    uint64_t state = (uint64_t)w->echoes + w->p.net->hello.incarnation * 1000ull;
    size_t len = 8 + sl_rng_below(&state, 20000);
    sl_buf *b = sl_net_buf_take(w->p.net, len);
    for (size_t i = 0; i < len; i++) b->data[i] = (uint8_t)(i * 7 + (size_t)w->echoes);
    sl_wire_header h = {.kind = SL_MSG_DISPATCH, .rows = (uint32_t)len};
    assert_int_equal(sl_net_send(w->p.net, c, h, b), SL_OK);
}

static void on_echo(peer *p, sl_conn *c, const sl_wire_header *h, const sl_buf *payload) {
    worker *w = p->extra;
    assert_int_equal(h->rows, payload->len);
    for (size_t i = 0; i < payload->len; i++)
        assert_int_equal(payload->data[i], (uint8_t)(i * 7 + (size_t)w->echoes));
    if (++w->echoes < ECHOES) send_next(w, c);
}

static void *run_worker(void *arg) {
    worker *w = arg;
    sl_err err = {0};
    sl_conn *c = NULL;
    w->p.on_message = on_echo;
    w->p.extra = w;
    sl_net_opts o = peer_opts(&w->p, w->hub, sl_clock_real(), KEY);
    assert_int_equal(sl_net_create(&o, &w->p.net, &err), SL_OK);
    assert_int_equal(sl_net_connect(w->p.net, w->target, NULL, &c, &err), SL_OK);
    uint64_t end_ns = sl_now_ns() + 60000000000ull;
    while (!w->p.opened && sl_now_ns() < end_ns)
        sl_net_progress(w->p.net), sl_net_wait(w->p.net, 1000);
    send_next(w, c);
    while (w->echoes < ECHOES && !w->p.downs && sl_now_ns() < end_ns) {
        sl_net_progress(w->p.net);
        sl_net_wait(w->p.net, 100000);
    }
    sl_net_free(w->p.net);
    return NULL;
}

static void many_threads_echo_through_one(void **state) {
    (void)state;
    sl_loop_hub *hub = make_hub(3, 50);
    peer server = {.on_message = echo};
    sl_net_opts o = peer_opts(&server, hub, sl_clock_real(), KEY);
    sl_err err = {0};
    assert_int_equal(sl_net_create(&o, &server.net, &err), SL_OK);
    worker *w = calloc(THREADS, sizeof *w);
    pthread_t thread[THREADS];
    for (int i = 0; i < THREADS; i++) {
        w[i].hub = hub;
        snprintf(w[i].target, sizeof w[i].target, "%s", sl_net_address(server.net));
        assert_int_equal(pthread_create(&thread[i], NULL, run_worker, &w[i]), 0);
    }
    uint64_t end_ns = sl_now_ns() + 60000000000ull;
    while (server.downs < THREADS && sl_now_ns() < end_ns) {
        sl_net_progress(server.net);
        sl_net_wait(server.net, 100000);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(w[i].echoes, ECHOES);
    }
    assert_int_equal(server.messages, THREADS * ECHOES);
    sl_net_free(server.net);
    sl_loop_hub_free(hub);
    free(w);
}

static void *wake_later(void *arg) {
    nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
    sl_net_wake(arg);
    return NULL;
}

static void wake_ends_a_wait(void **state) {
    (void)state;
    sl_loop_hub *hub = make_hub(0, 0);
    peer a = {0};
    sl_err err = {0};
    sl_net_opts o = peer_opts(&a, hub, sl_clock_real(), KEY);
    assert_int_equal(sl_net_create(&o, &a.net, &err), SL_OK);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, wake_later, a.net), 0);
    uint64_t begin_ns = sl_now_ns();
    sl_net_wait(a.net, 20000000);
    assert_true(sl_now_ns() - begin_ns < 10000000000ull);
    pthread_join(thread, NULL);
    sl_net_wait(a.net, 0); /* on a busy machine the first wait may have ended before the wake */
    begin_ns = sl_now_ns();
    sl_net_wait(a.net, 2000);
    assert_true(sl_now_ns() - begin_ns >= 2000000);
    sl_net_free(a.net);
    sl_loop_hub_free(hub);
}

static void steady_traffic_allocates_nothing(void **state) {
    (void)state;
    vclock clock = {1000};
    sl_loop_hub *hub = make_hub(0, 0);
    peer a = {0}, b = {.on_message = echo}, *both[] = {&a, &b};
    peer_start(&a, hub, &clock, KEY);
    peer_start(&b, hub, &clock, KEY);
    sl_conn *c = call(&a, sl_net_address(b.net));
    pass_us(&clock, both, 2, 1000, 100);
    uint64_t before = 0;
    for (int i = 0; i < 1000; i++) {
        if (i == 100) before = sl_mem_count();
        sl_buf *p = sl_net_buf_take(a.net, 100000);
        assert_int_equal(sl_net_send(a.net, c, (sl_wire_header){.kind = SL_MSG_DISPATCH}, p),
                         SL_OK);
        pass_us(&clock, both, 2, 200, 100);
    }
    assert_int_equal(a.messages, 1000);
    assert_int_equal(sl_mem_count(), before);
    sl_net_free(a.net);
    sl_net_free(b.net);
    sl_loop_hub_free(hub);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_nets_shake_hands_and_talk),
        cmocka_unit_test(a_net_can_call_itself),
        cmocka_unit_test(delays_keep_order_within_a_connection_and_repeat_by_seed),
        cmocka_unit_test(who_is_gone_before_it_answers_is_missed),
        cmocka_unit_test(a_cut_ends_both_ends_and_what_is_on_its_way),
        cmocka_unit_test(a_damaged_message_ends_its_connection),
        cmocka_unit_test(a_thin_link_takes_its_time_by_bytes),
        cmocka_unit_test(many_threads_echo_through_one),
        cmocka_unit_test(wake_ends_a_wait),
        cmocka_unit_test(steady_traffic_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
