/* What the fabric's tests share: a net that records its events, on a clock that the test moves. */
#ifndef SL_TESTS_NET_HARNESS_H
#define SL_TESTS_NET_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "net/loop/loop_int.h"
#include "net/net_int.h"

#define KEY "the key of the tests"

typedef struct vclock {
    uint64_t now_us;
} vclock;

static inline uint64_t vclock_now(void *ctx) {
    return ((vclock *)ctx)->now_us;
}

typedef struct peer {
    sl_net *net;
    sl_conn *last; /* opened last */
    int opened, downs, messages;
    sl_status why; /* of the last on_down */
    char text[512];
    uint64_t value; /* first 8 payload bytes of the last message */
    uint16_t kind;
    sl_status answer;    /* what on_message returns */
    sl_status admission; /* what on_open returns */
    sl_hello seen;
    uint32_t window_slots; /* of a window that is opened for each peer; 0: none... */
    size_t window_bytes;   /* ...and what a slot has */
    void (*on_message)(struct peer *p, sl_conn *c, const sl_wire_header *h, const sl_buf *payload);
    void *extra;
} peer;

static inline sl_status peer_on_open(void *ctx, sl_conn *c, const sl_hello *h, sl_err *err) {
    peer *p = ctx;
    if (p->admission != SL_OK) return sl_fail(err, p->admission, "not wanted here");
    p->last = c;
    p->opened++;
    p->seen = *h;
    return p->window_slots ? sl_net_open_window(p->net, c, p->window_slots, p->window_bytes, err)
                           : SL_OK;
}

static inline sl_status peer_on_message(void *ctx, sl_conn *c, const sl_wire_header *h,
                                        sl_buf *payload, sl_err *err) {
    peer *p = ctx;
    p->messages++;
    p->kind = h->kind;
    if (payload && payload->len >= 8) memcpy(&p->value, payload->data, 8);
    if (p->on_message) p->on_message(p, c, h, payload);
    sl_net_buf_give(p->net, payload);
    return p->answer == SL_OK ? SL_OK : sl_fail(err, p->answer, "not acceptable");
}

static inline void peer_on_down(void *ctx, sl_conn *c, sl_status why, const char *text) {
    peer *p = ctx;
    p->downs++;
    p->why = why;
    snprintf(p->text, sizeof p->text, "%s", text);
    if (p->last == c) p->last = NULL;
}

static inline sl_net_opts peer_opts(peer *p, sl_loop_hub *hub, sl_clock clock, const char *secret) {
    static atomic_uint incarnation = 1000;
    sl_net_opts o = {.transport = "loop", .hub = hub, .clock = clock, .ctx = p};
    o.windows = p->window_slots > 0;
    o.secret = (sl_span){(const uint8_t *)secret, strlen(secret)};
    o.on = (sl_net_events){peer_on_open, peer_on_message, peer_on_down};
    o.hello.worker = SL_NO_WORKER;
    o.hello.incarnation = atomic_fetch_add(&incarnation, 1);
    snprintf(o.hello.name, sizeof o.hello.name, "peer %u", o.hello.incarnation);
    return o;
}

static inline void peer_start(peer *p, sl_loop_hub *hub, vclock *clock, const char *secret) {
    sl_err err = {0};
    sl_net_opts o = peer_opts(p, hub, (sl_clock){vclock_now, clock}, secret);
    if (sl_net_create(&o, &p->net, &err) != SL_OK) fail_msg("%s", err.msg);
}

/* Lets virtual time pass in steps, giving every net its turn. */
static inline void pass_us(vclock *clock, peer **peers, size_t n, uint64_t us, uint64_t step_us) {
    for (uint64_t end = clock->now_us + us; clock->now_us < end; clock->now_us += step_us)
        for (size_t i = 0; i < n; i++)
            if (peers[i]->net) sl_net_progress(peers[i]->net);
}

static inline sl_status peer_send_u64(peer *p, sl_conn *c, uint16_t kind, uint64_t value) {
    sl_buf *b = sl_net_buf_take(p->net, 8);
    assert_non_null(b);
    memcpy(b->data, &value, 8);
    return sl_net_send(p->net, c, (sl_wire_header){.kind = kind}, b);
}

#endif
