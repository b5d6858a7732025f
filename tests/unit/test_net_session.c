/* Handshake, refusals and deadlines, over loop on a clock that the test moves. The adversary writes
 * raw blocks into the hub's mailboxes. */
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

static void raw_open(raw *r, sl_loop_hub *hub) {
    sl_hello h = {.worker = 5, .incarnation = RAW_INCARNATION, .name = "raw"};
    memset(r, 0, sizeof *r);
    r->pool.max_free_bytes = 1u << 20;
    r->port = sl_port_open(hub);
    assert_non_null(r->port);
    memset(r->nonce, 0x5A, sizeof r->nonce);
    sl_hello_encode(&h, r->hello);
}

static void raw_close(raw *r) {
    sl_block_give_all(&r->pool, &r->mail);
    sl_port_close(r->port, &r->pool);
    sl_block_pool_drain(&r->pool);
}

static void raw_post(raw *r, sl_loop_event event, const sl_wire_header *h, const void *bytes,
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

static void raw_call(raw *r, sl_loop_hub *hub, const char *address) {
    uint64_t own = sl_port_number(r->port);
    r->to = sl_port_find(hub, strtoull(address + 5, NULL, 10));
    r->key = sl_loop_new_key(hub);
    r->seq = 0;
    raw_post(r, SL_LOOP_CALL, NULL, &own, 8);
}

static void raw_send(raw *r, uint16_t kind, uint64_t session, const void *bytes, size_t n) {
    sl_wire_header h = {.kind = kind,
                        .session = session,
                        .src = 5,
                        .incarnation = RAW_INCARNATION,
                        .seq = ++r->seq,
                        .bytes = (uint32_t)n};
    raw_post(r, SL_LOOP_DATA, &h, bytes, n);
}

static void raw_hello(raw *r) {
    uint8_t bytes[SL_HELLO_BYTES + SL_NONCE_BYTES];
    memcpy(bytes, r->hello, SL_HELLO_BYTES);
    memcpy(bytes + SL_HELLO_BYTES, r->nonce, SL_NONCE_BYTES);
    raw_send(r, SL_MSG_HELLO, 0, bytes, sizeof bytes);
}

/* The next message of this kind; skips others. NULL: none has come. */
static sl_block *raw_next(raw *r, uint16_t kind, sl_wire_header *h) {
    sl_port_steal(r->port, &r->mail);
    for (sl_block *b; (b = sl_block_pop(&r->mail)) != NULL; sl_block_give(&r->pool, b)) {
        if (b->event != SL_LOOP_DATA) continue;
        assert_int_equal(sl_wire_header_decode((sl_span){b->header, 72}, h, NULL), SL_OK);
        if (h->kind == kind) return b;
    }
    return NULL;
}

static bool raw_got_text(raw *r, uint16_t kind, const char *want) {
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

static sl_transcript raw_transcript(const raw *r) {
    return (sl_transcript){r->nonce, r->peer_nonce, r->hello, r->peer_hello};
}

static void turn(stage *s, uint64_t us) {
    peer *one[] = {&s->p};
    pass_us(&s->clock, one, 1, us, 1000);
}

/* HELLO is out, CHALLENGE is here: the adversary knows all but the secret. */
static void raw_reach_auth(stage *s) {
    sl_wire_header h;
    raw_call(&s->r, s->hub, sl_net_address(s->p.net));
    raw_hello(&s->r);
    turn(s, 1000);
    sl_block *b = raw_next(&s->r, SL_MSG_CHALLENGE, &h);
    assert_non_null(b);
    assert_int_equal(b->buf.len, SL_HELLO_BYTES + SL_NONCE_BYTES + SL_MAC_BYTES);
    memcpy(s->r.peer_hello, b->buf.data, SL_HELLO_BYTES);
    memcpy(s->r.peer_nonce, b->buf.data + SL_HELLO_BYTES, SL_NONCE_BYTES);
    sl_block_give(&s->r.pool, b);
}

static uint64_t raw_log_in(stage *s, const char *secret) {
    uint8_t mac[SL_MAC_BYTES];
    sl_wire_header h = {0};
    raw_reach_auth(s);
    sl_transcript t = raw_transcript(&s->r);
    sl_auth_mac((const uint8_t *)secret, strlen(secret), SL_MAC_CALLER, &t, mac);
    raw_send(&s->r, SL_MSG_AUTH, 0, mac, sizeof mac);
    turn(s, 1000);
    sl_block *b = raw_next(&s->r, SL_MSG_WELCOME, &h);
    if (!b) return 0;
    sl_block_give(&s->r.pool, b);
    assert_true(h.session == sl_auth_session((const uint8_t *)secret, strlen(secret), &t));
    return h.session;
}

static int set_up(void **state) {
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

static int tear_down(void **state) {
    stage *s = *state;
    sl_net_free(s->p.net);
    raw_close(&s->r);
    sl_loop_hub_free(s->hub);
    free(s);
    return 0;
}

/* ---- handshake ---- */

static void the_right_secret_opens(void **state) {
    stage *s = *state;
    uint64_t session = raw_log_in(s, KEY);
    assert_true(session != 0);
    assert_int_equal(s->p.opened, 1);
    assert_string_equal(s->p.seen.name, "raw");
    raw_send(&s->r, SL_MSG_READY, session, NULL, 0);
    turn(s, 1000);
    assert_int_equal(s->p.messages, 1);
}

static void a_wrong_secret_is_refused(void **state) {
    stage *s = *state;
    assert_int_equal(raw_log_in(s, "some other key of the tests"), 0);
    assert_true(s->p.opened == 0 && s->p.downs == 1);
    assert_int_equal(s->p.why, SL_ERR_AUTH);
    peer other = {0}, *both[] = {&s->p, &other};
    peer_start(&other, s->hub, &s->clock, "no key of the tests");
    sl_conn *c;
    sl_err err = {0};
    assert_int_equal(sl_net_connect(other.net, sl_net_address(s->p.net), NULL, &c, &err), SL_OK);
    pass_us(&s->clock, both, 2, 5000, 1000);
    /* The caller checks the callee first, and tells it. */
    assert_true(other.opened == 0 && other.why == SL_ERR_AUTH);
    assert_true(s->p.opened == 0 && s->p.downs == 2 && s->p.why == SL_ERR_AUTH);
    assert_non_null(strstr(s->p.text, "refused by"));
    sl_net_free(other.net);
}

static void a_mac_of_another_role_or_hello_is_refused(void **state) {
    stage *s = *state;
    uint8_t mac[SL_MAC_BYTES];
    for (int i = 0; i < 4; i++) {
        raw_reach_auth(s);
        if (i == 1) s->r.hello[0] ^= 1; /* a hello changed on the way */
        if (i == 2) s->r.peer_nonce[3] ^= 1;
        sl_transcript t = raw_transcript(&s->r);
        sl_auth_mac((const uint8_t *)KEY, sizeof KEY - 1, i == 0 ? SL_MAC_CALLEE : SL_MAC_CALLER,
                    &t, mac);
        if (i == 3) mac[31] ^= 0x80;
        raw_send(&s->r, SL_MSG_AUTH, 0, mac, sizeof mac);
        turn(s, 1000);
        assert_true(raw_got_text(&s->r, SL_MSG_REFUSE, "secrets differ"));
        assert_int_equal(s->p.downs, i + 1);
        assert_int_equal(s->p.why, SL_ERR_AUTH);
        if (i == 1) s->r.hello[0] ^= 1;
    }
    assert_int_equal(s->p.opened, 0);
}

static void a_replay_of_a_recorded_handshake_is_refused(void **state) {
    stage *s = *state;
    uint8_t mac[SL_MAC_BYTES];
    uint64_t session = raw_log_in(s, KEY);
    sl_transcript t = raw_transcript(&s->r);
    sl_auth_mac((const uint8_t *)KEY, sizeof KEY - 1, SL_MAC_CALLER, &t,
                mac); /* what went over the wire */
    raw_call(&s->r, s->hub, sl_net_address(s->p.net));
    raw_hello(&s->r);
    raw_send(&s->r, SL_MSG_AUTH, 0, mac, sizeof mac);
    turn(s, 1000);
    assert_true(raw_got_text(&s->r, SL_MSG_REFUSE, "secrets differ"));
    /* A message of the recorded session on a new connection. */
    assert_true(raw_log_in(s, KEY) != session);
    raw_send(&s->r, SL_MSG_READY, session, NULL, 0);
    turn(s, 1000);
    assert_true(raw_got_text(&s->r, SL_MSG_BYE, "another session"));
    assert_int_equal(s->p.messages, 0);
    assert_int_equal(s->p.why, SL_ERR_PROTOCOL);
}

static void another_version_is_named(void **state) {
    stage *s = *state;
    sl_wire_header h = {.kind = SL_MSG_HELLO, .seq = 1, .incarnation = RAW_INCARNATION};
    raw_call(&s->r, s->hub, sl_net_address(s->p.net));
    sl_block *b = sl_block_take(&s->r.pool, 0);
    sl_wire_header_encode(&h, b->header);
    b->header[4] = 9;
    b->event = SL_LOOP_DATA;
    b->key = s->r.key ^ 1;
    b->due_us = 0;
    assert_true(sl_port_post(s->r.to, b));
    turn(s, 1000);
    assert_true(raw_got_text(&s->r, SL_MSG_REFUSE, "version 9, this program speaks 1"));
    assert_int_equal(s->p.why, SL_ERR_PROTOCOL);
}

static void nothing_but_the_handshake_comes_first(void **state) {
    stage *s = *state;
    static uint8_t big[5000];
    const uint16_t kinds[] = {SL_MSG_DISPATCH, SL_MSG_HEARTBEAT, SL_MSG_AUTH, SL_MSG_WELCOME,
                              SL_MSG_BYE,      SL_MSG_PLAN,      999};
    int downs = 0;
    for (size_t i = 0; i < SL_LEN(kinds); i++) {
        raw_call(&s->r, s->hub, sl_net_address(s->p.net));
        raw_send(&s->r, kinds[i], 0, big, 100);
        turn(s, 1000);
        assert_true(raw_got_text(&s->r, SL_MSG_REFUSE, "HELLO expected"));
        assert_int_equal(s->p.downs, ++downs);
        raw_reach_auth(s);
        raw_send(&s->r, kinds[i] == SL_MSG_AUTH ? SL_MSG_HELLO : kinds[i], 0, big, 100);
        turn(s, 1000);
        assert_true(raw_got_text(&s->r, SL_MSG_REFUSE, "AUTH expected"));
        assert_int_equal(s->p.downs, ++downs);
    }
    raw_call(&s->r, s->hub, sl_net_address(s->p.net));
    raw_send(&s->r, SL_MSG_HELLO, 0, big, sizeof big);
    turn(s, 1000);
    assert_true(raw_got_text(&s->r, SL_MSG_REFUSE, "5000 payload bytes before"));
    raw_call(&s->r, s->hub, sl_net_address(s->p.net));
    raw_send(&s->r, SL_MSG_HELLO, 0, big, 248 - 1);
    turn(s, 1000);
    assert_true(raw_got_text(&s->r, SL_MSG_REFUSE, "HELLO of 247 bytes, 248 expected"));
    assert_int_equal(s->p.opened, 0);
    assert_int_equal(s->p.messages, 0);
    assert_int_equal(s->p.net->n_pending, 0);
}

static void hello_fields_are_checked(void **state) {
    stage *s = *state;
    const struct {
        size_t at;
        uint8_t value;
        const char *text;
    } bad[] = {
        {4, 0, "incarnation"},       {8, 2, "is_coordinator is 2"}, {12, 3, "wire format 3"},
        {20, 4, "roles 0x4"},        {56, 7, "address: byte 0"},    {60, 'x', "address: byte 4"},
        {152, 0xC3, "name: byte 0"},
    };
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        uint8_t keep = s->r.hello[bad[i].at];
        raw_call(&s->r, s->hub, sl_net_address(s->p.net));
        s->r.hello[bad[i].at] = bad[i].value;
        raw_hello(&s->r);
        s->r.hello[bad[i].at] = keep;
        turn(s, 1000);
        assert_true(raw_got_text(&s->r, SL_MSG_REFUSE, bad[i].text));
    }
    memset(s->r.hello + 152, 'n', 64);
    raw_call(&s->r, s->hub, sl_net_address(s->p.net));
    raw_hello(&s->r);
    turn(s, 1000);
    assert_true(raw_got_text(&s->r, SL_MSG_REFUSE, "name does not end"));
}

static void the_owner_may_refuse(void **state) {
    stage *s = *state;
    peer other = {.admission = SL_ERR_OVERLOADED}, *both[] = {&s->p, &other};
    peer_start(&other, s->hub, &s->clock, KEY);
    sl_conn *c;
    sl_err err = {0};
    assert_int_equal(sl_net_connect(s->p.net, sl_net_address(other.net), NULL, &c, &err), SL_OK);
    pass_us(&s->clock, both, 2, 5000, 1000);
    assert_true(s->p.opened == 0 && s->p.why == SL_ERR_OVERLOADED);
    assert_non_null(strstr(s->p.text, "not wanted here"));
    assert_int_equal(sl_net_connect(other.net, sl_net_address(s->p.net), NULL, &c, &err), SL_OK);
    pass_us(&s->clock, both, 2, 5000, 1000);
    assert_true(s->p.opened == 1 && s->p.downs == 2 && s->p.why == SL_ERR_PEER_DOWN);
    assert_true(other.downs == 2 && other.why == SL_ERR_OVERLOADED);
    sl_net_free(other.net);
}

static void only_so_many_handshakes_are_pending(void **state) {
    stage *s = *state;
    raw *r = calloc(SL_NET_MAX_PENDING + 1, sizeof *r);
    for (uint32_t i = 0; i <= SL_NET_MAX_PENDING; i++) {
        raw_open(&r[i], s->hub);
        raw_call(&r[i], s->hub, sl_net_address(s->p.net));
        turn(s, 1000);
    }
    assert_int_equal(s->p.net->n_pending, SL_NET_MAX_PENDING);
    sl_port_steal(r[SL_NET_MAX_PENDING].port, &r[SL_NET_MAX_PENDING].mail);
    sl_block *b = r[SL_NET_MAX_PENDING].mail.head;
    assert_non_null(b);
    assert_int_equal(b->event, SL_LOOP_GONE);
    assert_non_null(memmem(b->buf.data, b->buf.len, "64 handshakes are pending", 25));
    /* After 2 s their places are free again. */
    turn(s, 2100000);
    assert_int_equal(s->p.net->n_pending, 0);
    assert_int_equal(s->p.downs, (int)SL_NET_MAX_PENDING);
    assert_int_equal(s->p.why, SL_ERR_TIMEOUT);
    assert_true(raw_got_text(&r[0], SL_MSG_REFUSE, "within 2.0 s"));
    assert_true(raw_log_in(s, KEY) != 0);
    for (uint32_t i = 0; i <= SL_NET_MAX_PENDING; i++) raw_close(&r[i]);
    free(r);
}

/* ---- open connections ---- */

static void a_gap_in_the_sequence_closes(void **state) {
    stage *s = *state;
    for (int i = 0; i < 2; i++) {
        uint64_t session = raw_log_in(s, KEY);
        s->r.seq += i ? 1 : -1; /* a lost one; a repeated one */
        raw_send(&s->r, SL_MSG_READY, session, NULL, 0);
        turn(s, 1000);
        assert_true(raw_got_text(&s->r, SL_MSG_BYE, "sequence number"));
        assert_int_equal(s->p.why, SL_ERR_PROTOCOL);
    }
    assert_int_equal(s->p.messages, 0);
}

static void headers_of_open_connections_are_checked(void **state) {
    stage *s = *state;
    const char *want[] = {"incarnation 1,", "header says 8 payload bytes, 0 came", "65537 rows",
                          "HELLO on"};
    for (int i = 0; i < 4; i++) {
        sl_wire_header h = {.kind = SL_MSG_READY, .incarnation = RAW_INCARNATION};
        h.session = raw_log_in(s, KEY);
        h.seq = ++s->r.seq;
        if (i == 0) h.incarnation = 1;
        if (i == 1) h.bytes = 8;
        if (i == 2) h.rows = 65537;
        if (i == 3) h.kind = SL_MSG_HELLO;
        raw_post(&s->r, SL_LOOP_DATA, &h, NULL, 0);
        turn(s, 1000);
        assert_true(raw_got_text(&s->r, SL_MSG_BYE, want[i]));
        assert_int_equal(s->p.downs, i + 1);
    }
    assert_int_equal(s->p.messages, 0);
}

static void unknown_kinds_are_answered(void **state) {
    stage *s = *state;
    uint64_t session = raw_log_in(s, KEY);
    raw_send(&s->r, 999, session, "hello", 5);
    turn(s, 1000);
    assert_true(raw_got_text(&s->r, SL_MSG_ERROR, "unknown message kind 999"));
    s->p.answer = SL_ERR_UNSUPPORTED;
    raw_send(&s->r, SL_MSG_PLAN, session, "{}", 2);
    turn(s, 1000);
    assert_true(raw_got_text(&s->r, SL_MSG_ERROR, "not acceptable"));
    raw_send(&s->r, SL_MSG_ERROR, session, "what\x1b[2J", 8); /* never answered */
    turn(s, 1000);
    assert_int_equal(s->p.downs, 0);
    s->p.answer = SL_ERR_PROTOCOL;
    raw_send(&s->r, SL_MSG_PLAN, session, "{}", 2);
    turn(s, 1000);
    assert_true(raw_got_text(&s->r, SL_MSG_BYE, "not acceptable"));
    assert_int_equal(s->p.downs, 1);
}

static void heartbeats_and_silence(void **state) {
    stage *s = *state;
    sl_wire_header h;
    uint64_t session = raw_log_in(s, KEY);
    int beats = 0;
    for (int i = 0; i < 10; i++) { /* any message counts as a sign of life */
        turn(s, 1500000);
        raw_send(&s->r, i % 2 ? SL_MSG_HEARTBEAT : SL_MSG_READY, session, NULL, 0);
    }
    for (sl_block *b; (b = raw_next(&s->r, SL_MSG_HEARTBEAT, &h)) != NULL; beats++)
        sl_block_give(&s->r.pool, b);
    assert_in_range(beats, 55, 61); /* 15 s at 250 ms */
    assert_int_equal(s->p.downs, 0);
    turn(s, 1900000);
    assert_int_equal(s->p.downs, 0);
    turn(s, 200000);
    assert_int_equal(s->p.downs, 1);
    assert_int_equal(s->p.why, SL_ERR_TIMEOUT);
    assert_true(raw_got_text(&s->r, SL_MSG_BYE, "silent for 20"));
}

/* Silence of the raw peer from now on: milliseconds of the clock until it counts as dead, where the
 * net looks every step_us. 0: it does not within limit_us. */
static uint64_t silence_ms(stage *s, uint64_t step_us, uint64_t limit_us) {
    uint64_t begin_us = s->clock.now_us;
    peer *one[] = {&s->p};
    int downs = s->p.downs;
    while (s->p.downs == downs && s->clock.now_us < begin_us + limit_us)
        pass_us(&s->clock, one, 1, step_us, step_us);
    return s->p.downs == downs ? 0 : (s->clock.now_us - begin_us) / 1000;
}

static void who_runs_on_time_finds_the_dead_soon(void **state) {
    stage *s = *state;
    assert_true(raw_log_in(s, KEY) != 0);
    assert_in_range(silence_ms(s, 1000, 60000000), 2000, 2100);
    /* A little late now and then, as kernels between two ticks are. */
    assert_true(raw_log_in(s, KEY) != 0);
    assert_in_range(silence_ms(s, 100000, 60000000), 2000, 3000);
}

static void who_runs_late_gives_peers_time(void **state) {
    stage *s = *state;
    assert_true(raw_log_in(s, KEY) != 0);
    uint64_t late_ms = silence_ms(s, 500000, 60000000);
    assert_in_range(late_ms, 3500, 10500);
    assert_non_null(strstr(s->p.text, "silent for"));
    assert_true(raw_log_in(s, KEY) != 0);
    s->p.net->silence_limit_us = 3000000; /* no more than this */
    assert_in_range(silence_ms(s, 500000, 60000000), 3000, 3500);
    s->p.net->silence_limit_us = SL_NET_SILENCE_LIMIT_US;
    uint64_t session = raw_log_in(s, KEY);
    for (int i = 0; i < 20; i++) { /* forgotten when it runs on time again */
        turn(s, 1500000);
        raw_send(&s->r, SL_MSG_HEARTBEAT, session, NULL, 0);
    }
    assert_in_range(silence_ms(s, 1000, 60000000), 2000, 2100);
}

static void who_has_a_witness_is_borne_longer(void **state) {
    stage *s = *state;
    assert_true(raw_log_in(s, KEY) != 0);
    s->p.last->place = SL_PEER_ON_THIS_MACHINE; /* hung: its end would have been heard of */
    assert_in_range(silence_ms(s, 1000, 60000000), 10000, 10100);
    assert_true(raw_log_in(s, KEY) != 0);
    s->p.last->place = SL_PEER_ON_THIS_MACHINE;
    raw_post(&s->r, SL_LOOP_GONE, NULL, "killed", 6);
    assert_in_range(silence_ms(s, 1000, 60000000), 1, 2);
    assert_true(raw_log_in(s, KEY) != 0);
    s->p.last->place = SL_PEER_IN_THIS_PROCESS;
    assert_int_equal(silence_ms(s, 1000, 600000000), 0);
}

/* Threads of one process: whatever the owner of one does for how long. */
static void threads_do_not_die_of_silence(void **state) {
    stage *s = *state;
    sl_loop_hub *hub = NULL;
    sl_err err = {0};
    sl_conn *c;
    peer a = {0}, b = {0}, *both[] = {&a, &b};
    assert_int_equal(sl_loop_hub_create(0, 0, &hub, &err), SL_OK);
    peer_start(&a, hub, &s->clock, KEY);
    peer_start(&b, hub, &s->clock, KEY);
    assert_int_equal(sl_net_connect(a.net, sl_net_address(b.net), NULL, &c, &err), SL_OK);
    pass_us(&s->clock, both, 1, 60000000, 1000); /* it is not even answered for a minute */
    pass_us(&s->clock, both, 2, 5000, 1000);
    assert_true(a.opened == 1 && b.opened == 1);
    pass_us(&s->clock, both, 1, 60000000, 1000);
    pass_us(&s->clock, both, 2, 5000, 1000);
    assert_true(a.downs == 0 && b.downs == 0);
    sl_net_free(b.net); /* but of their end */
    pass_us(&s->clock, both, 1, 2000, 1000);
    assert_int_equal(a.downs, 1);
    sl_net_free(a.net);
    sl_loop_hub_free(hub);
}

static void own_sleep_is_not_the_peers_silence(void **state) {
    stage *s = *state;
    peer other = {0}, *both[] = {&s->p, &other};
    peer_start(&other, s->hub, &s->clock, KEY);
    sl_conn *c;
    sl_err err = {0};
    assert_int_equal(sl_net_connect(other.net, sl_net_address(s->p.net), NULL, &c, &err), SL_OK);
    pass_us(&s->clock, both, 2, 5000, 1000);
    s->clock.now_us += 60000000; /* the whole machine was suspended */
    pass_us(&s->clock, both, 2, 3000000, 1000);
    assert_int_equal(s->p.downs, 0);
    assert_int_equal(other.downs, 0);
    sl_net_free(other.net);
}

/* At every step of a handshake the whole machine stands still for a minute. */
static void own_sleep_ends_no_handshake(void **state) {
    stage *s = *state;
    peer other = {0}, *both[] = {&s->p, &other};
    for (int steps = 0; steps < 8; steps++) {
        sl_conn *c;
        sl_err err = {0};
        peer_start(&other, s->hub, &s->clock, KEY);
        int opened = s->p.opened;
        assert_int_equal(sl_net_connect(other.net, sl_net_address(s->p.net), NULL, &c, &err),
                         SL_OK);
        for (int i = 0; i < steps; i++) pass_us(&s->clock, i % 2 ? &both[1] : both, 1, 1000, 1000);
        s->clock.now_us += 60000000;
        pass_us(&s->clock, both, 2, 100000, 1000);
        assert_int_equal(s->p.opened, opened + 1);
        assert_int_equal(other.downs, 0);
        sl_net_free(other.net);
        pass_us(&s->clock, both, 1, 100000, 1000);
    }
}

static void messages_after_the_end_are_taken_and_refused(void **state) {
    stage *s = *state;
    assert_true(raw_log_in(s, KEY) != 0);
    sl_conn *c = s->p.last;
    sl_net_close(s->p.net, c, SL_ERR_CANCELLED, "enough");
    assert_false(sl_conn_is_open(c));
    assert_int_equal(peer_send_u64(&s->p, c, SL_MSG_READY, 1), SL_ERR_PEER_DOWN);
    sl_net_close(s->p.net, c, SL_OK, "again");
    assert_int_equal(s->p.downs, 0);
    turn(s, 1000);
    assert_int_equal(s->p.downs, 1);
    assert_int_equal(s->p.why, SL_ERR_CANCELLED);
    assert_string_equal(s->p.text, "enough");
    assert_true(raw_got_text(&s->r, SL_MSG_BYE, "enough"));
    sl_buf *b = sl_net_buf_take(s->p.net, 100);
    b->len = (size_t)SL_WIRE_MAX_BYTES + 1;
    assert_true(raw_log_in(s, KEY) != 0);
    assert_int_equal(sl_net_send(s->p.net, s->p.last, (sl_wire_header){.kind = SL_MSG_PLAN}, b),
                     SL_ERR_LIMIT);
    sl_wire_header rows = {.kind = SL_MSG_PLAN, .rows = 65537};
    assert_int_equal(sl_net_send(s->p.net, s->p.last, rows, NULL), SL_ERR_ARG);
}

static void a_dead_net_is_noticed(void **state) {
    stage *s = *state;
    sl_conn *c;
    sl_err err = {0};
    assert_true(raw_log_in(s, KEY) != 0);
    raw_post(&s->r, SL_LOOP_GONE, NULL, "killed", 6);
    turn(s, 1000);
    assert_int_equal(s->p.why, SL_ERR_PEER_DOWN);
    assert_string_equal(s->p.text, "killed");
    peer other = {0};
    peer_start(&other, s->hub, &s->clock, KEY);
    char address[96];
    snprintf(address, sizeof address, "%s", sl_net_address(other.net));
    sl_net_free(other.net);
    assert_int_equal(sl_net_connect(s->p.net, address, NULL, &c, &err), SL_ERR_PEER_DOWN);
    assert_int_equal(sl_net_connect(s->p.net, "loop:4711", NULL, &c, &err), SL_ERR_PEER_DOWN);
    assert_int_equal(sl_net_connect(s->p.net, "10.0.0.1:80", NULL, &c, &err), SL_ERR_ARG);
    turn(s, 3000000);
    assert_int_equal(s->p.downs, 1);
}

static void options_are_checked(void **state) {
    stage *s = *state;
    sl_err err = {0};
    sl_net *n = NULL;
    peer p = {0};
    sl_net_opts o = peer_opts(&p, s->hub, (sl_clock){vclock_now, &s->clock}, "");
    o.transport = "tcp";
    o.host = "0.0.0.0";
    assert_int_equal(sl_net_create(&o, &n, &err), SL_ERR_ARG);
    assert_non_null(strstr(err.msg, "needs a secret"));
    o.host = "::";
    assert_int_equal(sl_net_create(&o, &n, &err), SL_ERR_ARG);
    o.transport = "carrier pigeon";
    assert_int_equal(sl_net_create(&o, &n, &err), SL_ERR_ARG);
    assert_non_null(strstr(err.msg, "loop, shm, tcp or ucx"));
    o.transport = "loop";
    o.hub = NULL;
    assert_int_equal(sl_net_create(&o, &n, &err), SL_ERR_ARG);
    o.hub = s->hub;
    o.on.on_down = NULL;
    assert_int_equal(sl_net_create(&o, &n, &err), SL_ERR_ARG);
}

static void a_new_hello_is_told_from_then_on(void **state) {
    stage *s = *state;
    sl_hello h = s->p.net->hello;
    h.worker = 42;
    h.rows_in_flight = 512;
    memset(h.address, 'x', 10);
    sl_net_set_hello(s->p.net, &h);
    assert_string_equal(sl_net_address(s->p.net), "loop:1");
    raw_reach_auth(s);
    sl_err err = {0};
    sl_hello seen;
    assert_int_equal(sl_hello_decode(s->r.peer_hello, &seen, &err), SL_OK);
    assert_int_equal(seen.worker, 42);
    assert_int_equal(seen.rows_in_flight, 512);
    assert_string_equal(seen.address, "loop:1");
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(the_right_secret_opens),
        CASE(a_wrong_secret_is_refused),
        CASE(a_mac_of_another_role_or_hello_is_refused),
        CASE(a_replay_of_a_recorded_handshake_is_refused),
        CASE(another_version_is_named),
        CASE(nothing_but_the_handshake_comes_first),
        CASE(hello_fields_are_checked),
        CASE(the_owner_may_refuse),
        CASE(only_so_many_handshakes_are_pending),
        CASE(a_gap_in_the_sequence_closes),
        CASE(headers_of_open_connections_are_checked),
        CASE(unknown_kinds_are_answered),
        CASE(heartbeats_and_silence),
        CASE(who_runs_on_time_finds_the_dead_soon),
        CASE(who_runs_late_gives_peers_time),
        CASE(who_has_a_witness_is_borne_longer),
        CASE(threads_do_not_die_of_silence),
        CASE(own_sleep_is_not_the_peers_silence),
        CASE(own_sleep_ends_no_handshake),
        CASE(messages_after_the_end_are_taken_and_refused),
        CASE(a_dead_net_is_noticed),
        CASE(options_are_checked),
        CASE(a_new_hello_is_told_from_then_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
