/* Progress by a thread: while the owner is elsewhere bytes move, heartbeats leave, and everything
 * comes to the owner later, in order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "net/net.h"

#define DEAD_US 400000u

typedef struct end {
    sl_net *net;
    sl_conn *conn;
    uint32_t opened, downs, messages;
    bool in_order;
    uint32_t messages_before_down;
    sl_status why;
} end;

static sl_status on_open(void *ctx, sl_conn *c, const sl_hello *peer, sl_err *err) {
    end *e = ctx;
    (void)peer, (void)err;
    e->conn = c;
    e->opened++;
    return SL_OK;
}

static sl_status on_message(void *ctx, sl_conn *c, const sl_wire_header *h, sl_buf *payload,
                            sl_err *err) {
    end *e = ctx;
    (void)c, (void)err;
    e->in_order = e->in_order && h->round == e->messages;
    e->messages++;
    sl_net_buf_give(e->net, payload);
    return SL_OK;
}

static void on_down(void *ctx, sl_conn *c, sl_status why, const char *text) {
    end *e = ctx;
    (void)c, (void)text;
    e->downs++;
    e->why = why;
    e->messages_before_down = e->messages;
}

static void start(end *e, const char *transport, sl_loop_hub *hub, uint32_t id,
                  uint32_t silence_limit_us) {
    sl_err err = {0};
    *e = (end){.in_order = true};
    const sl_net_opts o = {.transport = transport,
                           .hub = hub,
                           .host = "127.0.0.1",
                           .secret = {(const uint8_t *)"a key of the test", 17},
                           .hello = {.worker = id, .incarnation = id + 1},
                           .clock = sl_clock_real(),
                           .heartbeat_us = DEAD_US / 8,
                           .dead_after_us = DEAD_US,
                           .silence_limit_us = silence_limit_us,
                           .on = {on_open, on_message, on_down},
                           .ctx = e};
    if (sl_net_create(&o, &e->net, &err) != SL_OK) fail_msg("%s", err.msg);
}

static void both(end *a, end *b, const uint32_t *counter, uint32_t want) {
    uint64_t until_ns = sl_now_ns() + 10000000000ull;
    while (*counter < want && sl_now_ns() < until_ns) {
        sl_net_progress(a->net);
        if (b) sl_net_progress(b->net);
    }
    assert_true(*counter >= want);
}

static void send_numbered(end *e, uint32_t first, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        sl_buf *b = sl_net_buf_take(e->net, 5000);
        assert_non_null(b);
        memset(b->data, (int)i, b->len);
        sl_wire_header h = {.kind = SL_MSG_DISPATCH, .round = first + i};
        assert_int_equal(sl_net_send(e->net, e->conn, h, b), SL_OK);
    }
}

static void pair(const char *transport, sl_loop_hub *hub, end *away, end *here, bool pump) {
    sl_err err = {0};
    uint32_t limit_us = pump ? 4 * DEAD_US : DEAD_US; /* a busy machine's pump is late, too */
    start(away, transport, hub, 0, limit_us);
    start(here, transport, hub, 1, limit_us);
    if (pump) assert_int_equal(sl_net_set_pump(away->net, &err), SL_OK);
    assert_int_equal(sl_net_connect(here->net, sl_net_address(away->net), NULL, &here->conn, &err),
                     SL_OK);
    both(here, away, &here->opened, 1);
    both(here, away, &away->opened, 1);
}

/* Five times as long as silence is borne; without a pump that ends the connection. */
static void stay_away(end *here, uint32_t until_downs) {
    uint64_t until_ns = sl_now_ns() + 5000ull * DEAD_US;
    while (sl_now_ns() < until_ns && here->downs < until_downs) {
        if (!sl_net_progress(here->net)) sl_net_wait(here->net, 1000);
    }
}

static void check(const char *transport) {
    sl_loop_hub *hub = NULL;
    sl_err err;
    end away, here;
    assert_int_equal(sl_loop_hub_create(0, 0, &hub, &err), SL_OK);
    sl_loop_hub_set_apart(hub);
    pair(transport, hub, &away, &here, false);
    stay_away(&here, 1);
    assert_int_equal(here.downs, 1);
    sl_net_free(here.net);
    sl_net_free(away.net);

    pair(transport, hub, &away, &here, true);
    send_numbered(&here, 0, 400);
    stay_away(&here, 1);
    assert_int_equal(here.downs, 0); /* heartbeats came from the pump */
    assert_int_equal(away.messages, 0);
    send_numbered(&here, 400, 100);
    both(&here, &away, &away.messages, 500);
    assert_true(away.in_order);
    send_numbered(&away, 0, 50); /* the owner sends while the pump looks */
    both(&here, &away, &here.messages, 50);
    assert_true(here.in_order);

    send_numbered(&here, 500, 200); /* what was sent before a farewell comes before its end */
    sl_net_close(here.net, here.conn, SL_OK, "done");
    stay_away(&here, 2);
    both(&here, &away, &away.downs, 1);
    assert_int_equal(away.messages, 700);
    assert_int_equal(away.messages_before_down, 700);
    assert_true(away.in_order);
    assert_int_equal(away.why, SL_OK);
    sl_net_free(away.net);
    sl_net_free(here.net);
    sl_loop_hub_free(hub);
}

static void over_loop(void **state) {
    (void)state;
    check("loop");
}
static void over_shm(void **state) {
    (void)state;
    check("shm");
}
static void over_tcp(void **state) {
    (void)state;
    check("tcp");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(over_loop),
        cmocka_unit_test(over_shm),
        cmocka_unit_test(over_tcp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
