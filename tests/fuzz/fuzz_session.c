/* A peer that says anything: messages with arbitrary headers and payloads, before and after a
 * proper handshake. Input: a mode byte (1: a handshake first, 2: the net calls the peer, 4: the
 * peer's WELCOME proves nothing), then records {u8 kind, u8 flaw, u8 length, payload}. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "net/loop/loop_int.h"

#define KEY "the key of the tests"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t now_us;
static int n_open;

static uint64_t read_clock(void *ctx) {
    return (void)ctx, now_us;
}

static sl_status on_open(void *ctx, sl_conn *c, const sl_hello *peer, sl_err *err) {
    (void)ctx, (void)c, (void)peer, (void)err;
    n_open++;
    return SL_OK;
}

static sl_status on_message(void *ctx, sl_conn *c, const sl_wire_header *h, sl_buf *payload,
                            sl_err *err) {
    sl_net_buf_give(*(sl_net **)ctx, payload);
    (void)c;
    return h->lane ? sl_fail(err, SL_ERR_PROTOCOL, "lane") : SL_OK;
}

static void on_down(void *ctx, sl_conn *c, sl_status why, const char *text) {
    (void)ctx, (void)c, (void)why;
    SL_ASSERT(strlen(text) <= SL_NET_MAX_TEXT);
}

typedef struct raw {
    sl_block_pool pool;
    sl_port *port, *to;
    uint64_t key, seq, session;
    uint8_t hello[SL_HELLO_BYTES + SL_NONCE_BYTES + SL_MAC_BYTES]; /* the message */
} raw;

static void post(raw *r, sl_loop_event event, const uint8_t *header, const void *bytes, size_t n) {
    sl_block *b = sl_block_take(&r->pool, n);
    if (!b) return;
    if (n) memcpy(b->buf.data, bytes, n);
    if (header)
        memcpy(b->header, header, sizeof b->header);
    else
        memset(b->header, 0, sizeof b->header);
    b->event = event;
    b->key = r->key ^ 1;
    b->due_us = 0;
    if (!sl_port_post(r->to, b)) sl_block_give(&r->pool, b);
}

static void say(raw *r, uint16_t kind, uint8_t flaw, const void *bytes, size_t n) {
    uint8_t header[SL_WIRE_HEADER_BYTES];
    sl_wire_header h = {
        .kind = kind, .session = r->session, .incarnation = 1, .bytes = (uint32_t)n};
    h.seq = ++r->seq;
    if (flaw & 1) h.lane = 1;
    if (flaw & 2) h.rows = 3;
    sl_wire_header_encode(&h, header);
    if (flaw & 4) header[flaw % SL_WIRE_HEADER_BYTES] ^= flaw;
    post(r, SL_LOOP_DATA, header, bytes, n);
}

#define CHALLENGE_BYTES (SL_HELLO_BYTES + SL_NONCE_BYTES)

static void mac_of(sl_mac_role role, const sl_transcript *t, uint8_t *out) {
    sl_auth_mac((const uint8_t *)KEY, sizeof KEY - 1, role, t, out);
}

static void call(raw *r) {
    uint64_t own = sl_port_number(r->port);
    post(r, SL_LOOP_CALL, NULL, &own, sizeof own);
}

static void log_in(raw *r, sl_net *n) {
    sl_block_list mail = {0};
    uint8_t mac[SL_MAC_BYTES];
    const sl_transcript own = {.caller_nonce = r->hello + SL_HELLO_BYTES, .caller_hello = r->hello};
    mac_of(SL_MAC_HELLO, &own, r->hello + CHALLENGE_BYTES);
    say(r, SL_MSG_HELLO, 0, r->hello, sizeof r->hello);
    sl_net_progress(n);
    sl_port_steal(r->port, &mail);
    SL_ASSERT(mail.head && mail.head->buf.len == CHALLENGE_BYTES);
    const uint8_t *p = mail.head->buf.data;
    const sl_transcript t = {r->hello + SL_HELLO_BYTES, p + SL_HELLO_BYTES, r->hello, p};
    mac_of(SL_MAC_CALLER, &t, mac);
    say(r, SL_MSG_AUTH, 0, mac, sizeof mac);
    r->session = sl_auth_session((const uint8_t *)KEY, sizeof KEY - 1, &t);
    sl_net_progress(n);
    sl_block_give_all(&r->pool, &mail);
}

/* The net calls: its HELLO is in the mail, the peer may answer as it should, but for its mac. */
static void be_called(raw *r, sl_net *n, bool answers, bool proves) {
    sl_block_list mail = {0};
    sl_conn *c;
    sl_err err;
    uint8_t mac[SL_MAC_BYTES];
    char address[32];
    snprintf(address, sizeof address, "loop:%u", (unsigned)sl_port_number(r->port));
    sl_status st = sl_net_connect(n, address, NULL, &c, &err);
    sl_port_steal(r->port, &mail);
    SL_ASSERT(st == SL_OK && mail.head && mail.head->next);
    r->key = mail.head->key;
    const uint8_t *p = mail.head->next->buf.data;
    const sl_transcript t = {p + SL_HELLO_BYTES, r->hello + SL_HELLO_BYTES, p, r->hello};
    if (answers) {
        say(r, SL_MSG_CHALLENGE, 0, r->hello, CHALLENGE_BYTES);
        sl_net_progress(n);
        mac_of(proves ? SL_MAC_CALLEE : SL_MAC_CALLER, &t, mac);
        r->session = sl_auth_session((const uint8_t *)KEY, sizeof KEY - 1, &t);
        say(r, SL_MSG_WELCOME, 0, mac, sizeof mac);
        sl_net_progress(n);
        SL_ASSERT(n_open == (proves ? 1 : 0));
    }
    sl_block_give_all(&r->pool, &mail);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sl_loop_hub *hub = NULL;
    sl_net *n = NULL;
    sl_err err;
    raw r = {.pool = {.max_free_bytes = 1u << 16}};
    now_us = 1000;
    n_open = 0;
    sl_log_set_level(SL_LOG_ERROR);
    if (size < 1 || sl_loop_hub_create(0, 0, &hub, &err) != SL_OK) return 0;
    sl_net_opts o = {.transport = "loop",
                     .hub = hub,
                     .clock = {read_clock, NULL},
                     .ctx = &n,
                     .secret = {(const uint8_t *)KEY, sizeof KEY - 1},
                     .on = {on_open, on_message, on_down}};
    sl_status st = sl_net_create(&o, &n, &err);
    r.port = sl_port_open(hub);
    SL_ASSERT(st == SL_OK && r.port);
    sl_hello h = {.worker = 1, .incarnation = 1, .name = "raw"};
    sl_hello_encode(&h, r.hello);
    r.to = sl_port_find(hub, strtoull(sl_net_address(n) + 5, NULL, 10));
    r.key = sl_loop_new_key(hub);
    sl_cur c = sl_cur_of((sl_span){data, size});
    uint8_t mode = sl_cur_u8(&c);
    if (mode & 2) {
        be_called(&r, n, mode & 1, !(mode & 4));
    } else {
        call(&r);
        if (mode & 1) log_in(&r, n);
    }
    while (sl_cur_left(&c) >= 3) {
        uint8_t kind = sl_cur_u8(&c), flaw = sl_cur_u8(&c);
        size_t len = 2 * (size_t)sl_cur_u8(&c);
        len = SL_MIN(len, sl_cur_left(&c));
        const uint8_t *bytes = sl_cur_take(&c, len);
        if (flaw == 0xFF)
            post(&r, kind % 3, NULL, bytes, len);
        else
            say(&r, kind, flaw, bytes, len);
        now_us += (uint64_t)kind * 1000;
        sl_net_progress(n);
    }
    sl_net_free(n);
    sl_port_close(r.port, &r.pool);
    sl_block_pool_drain(&r.pool);
    sl_loop_hub_free(hub);
    return 0;
}
