/* One net over loop on a clock that the test moves, and an adversary who writes raw blocks into the
 * hub's mailboxes. */
#ifndef SL_TESTS_NET_RAW_H
#define SL_TESTS_NET_RAW_H

#include "net_harness.h"

#include <stdlib.h>

typedef struct raw {
    sl_block_pool pool;
    sl_port *port, *to;
    uint64_t key, seq;
    sl_block_list mail;
    uint8_t nonce[SL_NONCE_BYTES], hello[SL_HELLO_BYTES];
    uint8_t peer_nonce[SL_NONCE_BYTES], peer_hello[SL_HELLO_BYTES];
} raw;

typedef struct stage {
    vclock clock;
    sl_loop_hub *hub;
    peer p;
    raw r;
} stage;

#define RAW_INCARNATION 0xABCDu
#define HELLO_BYTES     (SL_HELLO_BYTES + SL_NONCE_BYTES + SL_MAC_BYTES)
#define CHALLENGE_BYTES (SL_HELLO_BYTES + SL_NONCE_BYTES)

static inline void raw_open(raw *r, sl_loop_hub *hub) {
    sl_hello h = {.worker = 5, .incarnation = RAW_INCARNATION, .name = "raw"};
    memset(r, 0, sizeof *r);
    r->pool.max_free_bytes = 1u << 20;
    r->port = sl_port_open(hub);
    assert_non_null(r->port);
    memset(r->nonce, 0x5A, sizeof r->nonce);
    sl_hello_encode(&h, r->hello);
}

static inline void raw_close(raw *r) {
    sl_block_give_all(&r->pool, &r->mail);
    sl_port_close(r->port, &r->pool);
    sl_block_pool_drain(&r->pool);
}

static inline void raw_post(raw *r, sl_loop_event event, const sl_wire_header *h, const void *bytes,
                            size_t n) {
    sl_block *b = sl_block_take(&r->pool, n);
    assert_non_null(b);
    if (n) memcpy(b->buf.data, bytes, n);
    if (h) sl_wire_header_encode(h, b->header);
    b->event = event;
    b->key = r->key ^ 1;
    b->due_us = 0;
    assert_true(sl_port_post(r->to, b));
}

static inline void raw_call(raw *r, sl_loop_hub *hub, const char *address) {
    uint64_t own = sl_port_number(r->port);
    r->to = sl_port_find(hub, strtoull(address + 5, NULL, 10));
    r->key = sl_loop_new_key(hub);
    r->seq = 0;
    raw_post(r, SL_LOOP_CALL, NULL, &own, 8);
}

static inline void raw_send(raw *r, uint16_t kind, uint64_t session, const void *bytes, size_t n) {
    sl_wire_header h = {.kind = kind,
                        .session = session,
                        .src = 5,
                        .incarnation = RAW_INCARNATION,
                        .seq = ++r->seq,
                        .bytes = (uint32_t)n};
    raw_post(r, SL_LOOP_DATA, &h, bytes, n);
}

static inline sl_transcript raw_transcript(const raw *r) {
    return (sl_transcript){r->nonce, r->peer_nonce, r->hello, r->peer_hello};
}

static inline sl_mac raw_mac(const raw *r, const char *secret, sl_mac_role role) {
    sl_mac m;
    sl_transcript t = raw_transcript(r);
    sl_auth_mac((const uint8_t *)secret, strlen(secret), role, &t, m.bytes);
    return m;
}

static inline void raw_hello_with(raw *r, const char *secret) {
    uint8_t bytes[HELLO_BYTES];
    sl_mac mac = raw_mac(r, secret, SL_MAC_HELLO);
    memcpy(bytes, r->hello, SL_HELLO_BYTES);
    memcpy(bytes + SL_HELLO_BYTES, r->nonce, SL_NONCE_BYTES);
    memcpy(bytes + SL_HELLO_BYTES + SL_NONCE_BYTES, mac.bytes, SL_MAC_BYTES);
    raw_send(r, SL_MSG_HELLO, 0, bytes, sizeof bytes);
}

static inline void raw_hello(raw *r) {
    raw_hello_with(r, KEY);
}

/* The next message of this kind; skips others. NULL: none has come. */
static inline sl_block *raw_next(raw *r, uint16_t kind, sl_wire_header *h) {
    sl_port_steal(r->port, &r->mail);
    for (sl_block *b; (b = sl_block_pop(&r->mail)) != NULL; sl_block_give(&r->pool, b)) {
        if (b->event != SL_LOOP_DATA) continue;
        assert_int_equal(sl_wire_header_decode((sl_span){b->header, 72}, h, NULL), SL_OK);
        if (h->kind == kind) return b;
    }
    return NULL;
}

static inline bool raw_got_text(raw *r, uint16_t kind, const char *want) {
    sl_wire_header h;
    sl_block *b = raw_next(r, kind, &h);
    if (!b) return false;
    char text[600] = "";
    size_t head = kind == SL_MSG_ERROR ? 0 : 4;
    snprintf(text, sizeof text, "%.*s", (int)(b->buf.len - head), (const char *)b->buf.data + head);
    sl_block_give(&r->pool, b);
    if (!strstr(text, want)) fail_msg("'%s', expected '%s'", text, want);
    return true;
}

static inline void turn(stage *s, uint64_t us) {
    peer *one[] = {&s->p};
    pass_us(&s->clock, one, 1, us, 1000);
}

static inline void raw_challenged(raw *r) {
    sl_wire_header h;
    sl_block *b = raw_next(r, SL_MSG_CHALLENGE, &h);
    assert_non_null(b);
    assert_int_equal(b->buf.len, CHALLENGE_BYTES); /* no mac before the caller's */
    memcpy(r->peer_hello, b->buf.data, SL_HELLO_BYTES);
    memcpy(r->peer_nonce, b->buf.data + SL_HELLO_BYTES, SL_NONCE_BYTES);
    sl_block_give(&r->pool, b);
}

/* HELLO is out, CHALLENGE is here: the adversary knows all but the secret. */
static inline void raw_reach_auth(stage *s) {
    raw_call(&s->r, s->hub, sl_net_address(s->p.net));
    raw_hello(&s->r);
    turn(s, 1000);
    raw_challenged(&s->r);
}

static inline void raw_auth(raw *r, const char *secret) {
    sl_mac mac = raw_mac(r, secret, SL_MAC_CALLER);
    raw_send(r, SL_MSG_AUTH, 0, mac.bytes, sizeof mac.bytes);
}

/* The session, once WELCOME has proved the secret, too. 0: it did not come. */
static inline uint64_t raw_welcomed(raw *r) {
    sl_wire_header h = {0};
    sl_block *b = raw_next(r, SL_MSG_WELCOME, &h);
    if (!b) return 0;
    sl_mac mac = raw_mac(r, KEY, SL_MAC_CALLEE);
    sl_transcript t = raw_transcript(r);
    assert_int_equal(b->buf.len, SL_MAC_BYTES);
    assert_memory_equal(b->buf.data, mac.bytes, SL_MAC_BYTES);
    assert_true(h.session == sl_auth_session((const uint8_t *)KEY, strlen(KEY), &t));
    sl_block_give(&r->pool, b);
    return h.session;
}

static inline uint64_t raw_log_in(stage *s, const char *secret) {
    raw_reach_auth(s);
    raw_auth(&s->r, secret);
    turn(s, 1000);
    return raw_welcomed(&s->r);
}

static inline int set_up(void **state) {
    stage *s = calloc(1, sizeof *s);
    sl_err err = {0};
    s->clock.now_us = 1000;
    assert_int_equal(sl_loop_hub_create(0, 0, &s->hub, &err), SL_OK);
    sl_loop_hub_set_apart(s->hub);
    peer_start(&s->p, s->hub, &s->clock, KEY);
    raw_open(&s->r, s->hub);
    *state = s;
    return 0;
}

static inline int tear_down(void **state) {
    stage *s = *state;
    sl_net_free(s->p.net);
    raw_close(&s->r);
    sl_loop_hub_free(s->hub);
    free(s);
    return 0;
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

#endif
