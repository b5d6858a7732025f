/* Who is let in, who is refused and who gives way: the handshake against an adversary without the
 * secret, with recordings, in a callee's place, and in numbers. */
#include "net_raw.h"

#include <unistd.h>

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

/* Computed by Python's hmac from these bytes: a change of any of them is another protocol. */
static void the_macs_are_as_written_down(void **state) {
    (void)state;
    static const char *const want[] = {
        [SL_MAC_HELLO] = "2fa7cb96d7936e2cb788ff740cc7ba6d080ee04e0a39f3f5da53d3457cc34bdf",
        [SL_MAC_CALLER] = "60e010122b53182984c97f15c2cd03eac8d69d38016a615743db1359fd0fb993",
        [SL_MAC_CALLEE] = "f31daba6ca4e66992d0892a80440b55664bf0d507ef1d419fb132bc19fbe023d",
        [SL_MAC_SESSION] = "ca3b418fb48f4456efb00e1e9ccc82b0d3c61f1a2eb1fd08b74fea45a1e89f98",
    };
    uint8_t nonce[2][SL_NONCE_BYTES], hello[2][SL_HELLO_BYTES];
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < SL_NONCE_BYTES; i++) nonce[side][i] = (uint8_t)(128 * side + i);
        const sl_hello h = {.worker = 7 + (uint32_t)side,
                            .incarnation = 0x01020304,
                            .is_coordinator = (uint32_t)side,
                            .wire = 1,
                            .roles = 3,
                            .address = "10.0.0.1:7000",
                            .name = "worker"};
        sl_hello_encode(&h, hello[side]);
    }
    const sl_transcript t = {nonce[0], nonce[1], hello[0], hello[1]};
    for (int role = SL_MAC_HELLO; role <= SL_MAC_SESSION; role++) {
        uint8_t mac[SL_MAC_BYTES];
        char hex[2 * SL_MAC_BYTES + 1];
        sl_auth_mac((const uint8_t *)KEY, strlen(KEY), (sl_mac_role)role, &t, mac);
        for (size_t i = 0; i < sizeof mac; i++) snprintf(hex + 2 * i, 3, "%02x", mac[i]);
        assert_string_equal(hex, want[role]);
    }
}

/* Who has not proved the secret hears a reason and nothing that was computed from it. */
static void expect_nothing_of_the_secret(raw *r) {
    sl_wire_header h;
    sl_port_steal(r->port, &r->mail);
    for (sl_block *b; (b = sl_block_pop(&r->mail)) != NULL; sl_block_give(&r->pool, b)) {
        if (b->event != SL_LOOP_DATA) continue;
        assert_int_equal(sl_wire_header_decode((sl_span){b->header, 72}, &h, NULL), SL_OK);
        assert_int_equal(h.kind, SL_MSG_REFUSE);
        assert_non_null(memmem(b->buf.data, b->buf.len, "the secrets differ", 18));
    }
}

static void a_wrong_secret_is_refused(void **state) {
    stage *s = *state;
    static const char wrong[] = "some other key of the tests";
    raw_call(&s->r, s->hub, sl_net_address(s->p.net));
    raw_hello_with(&s->r, wrong);
    turn(s, 1000);
    expect_nothing_of_the_secret(&s->r);
    assert_true(s->p.opened == 0 && s->p.downs == 1);
    assert_int_equal(s->p.why, SL_ERR_AUTH);
    raw_reach_auth(s); /* with a HELLO that was recorded, say */
    raw_auth(&s->r, wrong);
    turn(s, 1000);
    expect_nothing_of_the_secret(&s->r);
    assert_true(s->p.opened == 0 && s->p.downs == 2);
    assert_int_equal(s->p.why, SL_ERR_AUTH);
    peer other = {0}, *both[] = {&s->p, &other};
    peer_start(&other, s->hub, &s->clock, wrong);
    sl_conn *c;
    sl_err err = {0};
    assert_int_equal(sl_net_connect(other.net, sl_net_address(s->p.net), NULL, &c, &err), SL_OK);
    pass_us(&s->clock, both, 2, 5000, 1000);
    assert_true(s->p.opened == 0 && s->p.downs == 3 && s->p.why == SL_ERR_AUTH);
    assert_true(other.opened == 0 && other.why == SL_ERR_AUTH);
    assert_non_null(strstr(other.text, "refused by"));
    sl_net_free(other.net);
}

static void a_mac_of_another_role_or_hello_is_refused(void **state) {
    stage *s = *state;
    static const sl_mac_role roles[] = {SL_MAC_CALLEE, SL_MAC_HELLO,  SL_MAC_SESSION,
                                        SL_MAC_CALLER, SL_MAC_CALLER, SL_MAC_CALLER};
    for (int i = 0; i < (int)SL_LEN(roles); i++) {
        raw_reach_auth(s);
        if (i == 3) s->r.hello[0] ^= 1; /* a hello changed on the way */
        if (i == 4) s->r.peer_nonce[3] ^= 1;
        sl_mac mac = raw_mac(&s->r, KEY, roles[i]);
        if (i == 5) mac.bytes[31] ^= 0x80;
        raw_send(&s->r, SL_MSG_AUTH, 0, mac.bytes, sizeof mac.bytes);
        turn(s, 1000);
        expect_nothing_of_the_secret(&s->r);
        assert_int_equal(s->p.downs, i + 1);
        assert_int_equal(s->p.why, SL_ERR_AUTH);
        if (i == 3) s->r.hello[0] ^= 1;
    }
    assert_int_equal(s->p.opened, 0);
}

static void a_replay_of_a_recorded_handshake_is_refused(void **state) {
    stage *s = *state;
    uint64_t session = raw_log_in(s, KEY);
    sl_mac mac = raw_mac(&s->r, KEY, SL_MAC_CALLER); /* what went over the wire */
    raw_call(&s->r, s->hub, sl_net_address(s->p.net));
    raw_hello(&s->r);
    raw_send(&s->r, SL_MSG_AUTH, 0, mac.bytes, sizeof mac.bytes);
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

/* ---- who answers in the place of a callee ---- */

/* The net under test calls the adversary and has sent HELLO. */
static void raw_is_called(stage *s) {
    char address[32];
    sl_conn *c;
    sl_err err = {0};
    sl_wire_header h;
    snprintf(address, sizeof address, "loop:%u", (unsigned)sl_port_number(s->r.port));
    s->r.to = sl_port_find(s->hub, strtoull(sl_net_address(s->p.net) + 5, NULL, 10));
    s->r.seq = 0;
    sl_port_steal(s->r.port, &s->r.mail);
    sl_block_give_all(&s->r.pool, &s->r.mail);
    assert_int_equal(sl_net_connect(s->p.net, address, NULL, &c, &err), SL_OK);
    sl_port_steal(s->r.port, &s->r.mail);
    s->r.key = s->r.mail.head->key; /* of the call; answers go to the other end of it */
    sl_block *b = raw_next(&s->r, SL_MSG_HELLO, &h);
    assert_non_null(b);
    assert_int_equal(b->buf.len, HELLO_BYTES);
    memcpy(s->r.peer_hello, b->buf.data, SL_HELLO_BYTES);
    memcpy(s->r.peer_nonce, b->buf.data + SL_HELLO_BYTES, SL_NONCE_BYTES);
    sl_block_give(&s->r.pool, b);
}

static sl_mac raw_callee_mac(const raw *r, sl_mac_role role) {
    sl_mac m;
    const sl_transcript t = {r->peer_nonce, r->nonce, r->peer_hello, r->hello};
    sl_auth_mac((const uint8_t *)KEY, strlen(KEY), role, &t, m.bytes);
    return m;
}

static void raw_challenge(stage *s) {
    uint8_t bytes[CHALLENGE_BYTES];
    memcpy(bytes, s->r.hello, SL_HELLO_BYTES);
    memcpy(bytes + SL_HELLO_BYTES, s->r.nonce, SL_NONCE_BYTES);
    raw_send(&s->r, SL_MSG_CHALLENGE, 0, bytes, sizeof bytes);
    turn(s, 1000);
}

static void a_callee_proves_itself_too(void **state) {
    stage *s = *state;
    static uint8_t big[5000];
    enum { CALLERS_MAC, OWN_ROLE, SHORT_MAC, NO_SESSION, LARGE, EARLY, N };
    static const char *const told[] = {"secrets differ",  "secrets differ",     "31 bytes, 32",
                                       "another session", "5000 payload bytes", "WELCOME expected"};
    for (int how = 0; how < N; how++) {
        raw_is_called(s);
        raw_challenge(s);
        sl_wire_header h;
        sl_block *b = raw_next(&s->r, SL_MSG_AUTH, &h);
        assert_non_null(b);
        sl_mac mac = raw_callee_mac(&s->r, SL_MAC_CALLEE);
        sl_mac session = raw_callee_mac(&s->r, SL_MAC_SESSION);
        uint64_t id;
        memcpy(&id, session.bytes, 8);
        if (how == CALLERS_MAC) memcpy(mac.bytes, b->buf.data, SL_MAC_BYTES); /* sent back */
        if (how == OWN_ROLE) mac = session;
        sl_block_give(&s->r.pool, b);
        if (how == LARGE)
            raw_send(&s->r, SL_MSG_PLAN, id, big, sizeof big);
        else if (how == EARLY)
            raw_send(&s->r, SL_MSG_PLAN, id, big, 100);
        else
            raw_send(&s->r, SL_MSG_WELCOME, id ^ (how == NO_SESSION), mac.bytes,
                     sizeof mac.bytes - (how == SHORT_MAC));
        turn(s, 1000);
        assert_true(raw_got_text(&s->r, SL_MSG_REFUSE, told[how]));
        assert_int_equal(s->p.downs, how + 1);
    }
    assert_int_equal(s->p.opened, 0);
    assert_int_equal(s->p.messages, 0);
}

/* Until the caller has checked the mac it takes no more than a handshake, so the callee's owner
 * waits for its first word. */
static void a_callee_waits_for_the_first_word(void **state) {
    stage *s = *state;
    sl_wire_header h;
    uint64_t session = raw_log_in(s, KEY);
    assert_true(sl_conn_is_open(s->p.last));
    assert_int_equal(peer_send_u64(&s->p, s->p.last, SL_MSG_READY, 1), SL_OK);
    assert_int_equal(peer_send_u64(&s->p, s->p.last, SL_MSG_PLAN, 2), SL_OK);
    turn(s, 300000);
    sl_port_steal(s->r.port, &s->r.mail);
    assert_int_equal(s->r.mail.head->header[6], SL_MSG_HEARTBEAT);
    assert_null(s->r.mail.head->next);
    raw_send(&s->r, SL_MSG_HEARTBEAT, session, NULL, 0);
    turn(s, 1000);
    for (int i = 0; i < 2; i++) {
        sl_block *b = raw_next(&s->r, i ? SL_MSG_PLAN : SL_MSG_READY, &h);
        assert_non_null(b);
        sl_block_give(&s->r.pool, b);
    }
    assert_int_equal(s->p.downs, 0);
}

/* One that gave up before WELCOME came says so in the words of a handshake: no message of another
 * session. */
static void a_caller_may_have_given_up(void **state) {
    stage *s = *state;
    static const struct {
        int32_t why;
        char text[4];
    } said = {SL_ERR_TIMEOUT, "late"};
    uint64_t session = raw_log_in(s, KEY);
    assert_true(sl_conn_is_open(s->p.last));
    raw_send(&s->r, SL_MSG_REFUSE, 0, &said, sizeof said);
    turn(s, 1000);
    assert_int_equal(s->p.downs, 1);
    assert_int_equal(s->p.why, SL_ERR_TIMEOUT);
    /* After its first word it is no caller any more. */
    session = raw_log_in(s, KEY);
    raw_send(&s->r, SL_MSG_HEARTBEAT, session, NULL, 0);
    raw_send(&s->r, SL_MSG_REFUSE, 0, &said, sizeof said);
    turn(s, 1000);
    assert_int_equal(s->p.downs, 2);
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
    assert_true(raw_got_text(&s->r, SL_MSG_REFUSE, "version 9, this program speaks 8"));
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
    raw_send(&s->r, SL_MSG_HELLO, 0, big, HELLO_BYTES - 1);
    turn(s, 1000);
    assert_true(raw_got_text(&s->r, SL_MSG_REFUSE, "HELLO of 275 bytes, 276 expected"));
    assert_int_equal(s->p.opened, 0);
    assert_int_equal(s->p.messages, 0);
    assert_int_equal(sl_pending_count(s->p.net), 0);
}

static void hello_fields_are_checked(void **state) {
    stage *s = *state;
    const struct {
        size_t at;
        uint8_t value;
        const char *text;
    } bad[] = {
        {4, 0, "incarnation"},       {8, 32, "unknown flags 0x20"}, {12, 3, "wire format 3"},
        {16, 4, "roles 0x4"},        {52, 7, "address: byte 0"},    {56, 'x', "address: byte 4"},
        {148, 0xC3, "name: byte 0"},
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
    memset(s->r.hello + 148, 'n', 64);
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

/* ---- floods: more callers than there are places, from one port ---- */

static void idle_calls(stage *s, raw *from, int n) {
    for (int i = 0; i < n; i++) raw_call(from, s->hub, sl_net_address(s->p.net));
}

static void idle_callers_give_way(void **state) {
    stage *s = *state;
    raw other;
    raw_open(&other, s->hub);
    idle_calls(s, &other, 200);
    turn(s, 1000);
    assert_int_equal(sl_pending_count(s->p.net), SL_NET_MAX_PENDING);
    /* One from elsewhere stays, however slow it is and however many come after it. */
    raw_call(&s->r, s->hub, sl_net_address(s->p.net));
    for (int i = 0; i < 20; i++) {
        idle_calls(s, &other, 100);
        turn(s, 50000);
    }
    raw_hello(&s->r);
    turn(s, 1000);
    raw_challenged(&s->r);
    raw_auth(&s->r, KEY);
    idle_calls(s, &other, 100);
    turn(s, 1000);
    assert_true(raw_welcomed(&s->r) != 0);
    /* After 2 s without more of them the places are free. */
    turn(s, 2100000);
    assert_int_equal(sl_pending_count(s->p.net), 0);
    assert_int_equal(s->p.opened, 1);
    assert_true(s->p.downs >= 2300);
    raw_close(&other);
}

/* From where the flood comes from, too: who sends HELLO with the first look at its call. */
static void a_proof_in_time_needs_no_place(void **state) {
    stage *s = *state;
    raw *r = &s->r;
    for (int i = 0; i < 50; i++) {
        idle_calls(s, r, 101);
        raw_hello(r); /* of the last one */
        turn(s, 1000);
        uint64_t key = r->key, seq = r->seq;
        idle_calls(s, r, 100);
        turn(s, 1000);
        r->key = key, r->seq = seq;
        raw_challenged(r);
        raw_auth(r, KEY);
        turn(s, 1000);
        assert_int_equal(s->p.opened, i + 1);
        assert_true(raw_welcomed(r) != 0);
    }
}

/* A recorded HELLO, again and again, fills places of those who wait for AUTH; then those who sent
 * it give way to each other. */
static void a_recorded_hello_takes_no_others_place(void **state) {
    stage *s = *state;
    raw other;
    raw_open(&other, s->hub);
    raw_reach_auth(s);
    for (int i = 0; i < 300; i++) {
        idle_calls(s, &other, 1);
        raw_hello(&other);
        if (i % 10 == 0) turn(s, 1000);
    }
    turn(s, 1000);
    assert_int_equal(sl_pending_count(s->p.net), SL_NET_MAX_PENDING);
    raw_auth(&s->r, KEY);
    turn(s, 1000);
    assert_true(raw_welcomed(&s->r) != 0);
    raw_close(&other);
}

/* Where many are expected at once, all of them have a place, and no more than they. */
static void those_who_are_expected_have_places(void **state) {
    stage *s = *state;
    raw other;
    raw_open(&other, s->hub);
    sl_net_set_callers(s->p.net, 150);
    raw_reach_auth(s);
    for (int i = 1; i <= 300; i++) {
        idle_calls(s, &other, 1);
        raw_hello(&other);
        turn(s, 1000);
        assert_int_equal(sl_pending_count(s->p.net), SL_MIN(1 + i, 150));
    }
    raw_auth(&s->r, KEY);
    turn(s, 1000);
    assert_true(raw_welcomed(&s->r) != 0);
    raw_close(&other);
}

/* Thousands are turned away, and the log has a line for few of them and the number of the rest. */
static void the_log_of_a_flood_is_bounded(void **state) {
    stage *s = *state;
    static char log[65536];
    FILE *file = tmpfile();
    assert_non_null(file);
    int real = dup(STDERR_FILENO), lines = 0;
    dup2(fileno(file), STDERR_FILENO);
    for (int i = 0; i < 2000; i++) { /* within 20 s: two windows and what is left of a third */
        raw_call(&s->r, s->hub, sl_net_address(s->p.net));
        raw_hello_with(&s->r, "some other key of the tests");
        turn(s, 10000);
    }
    turn(s, 11000000);
    dup2(real, STDERR_FILENO);
    close(real);
    rewind(file);
    log[fread(log, 1, sizeof log - 1, file)] = 0;
    fclose(file);
    for (const char *c = log; (c = strchr(c, '\n')) != NULL; c++) lines++;
    assert_int_equal(s->p.downs, 2000);
    assert_in_range(lines, 18, 27);
    char want[64];
    snprintf(want, sizeof want, "a caller (raw, loop:%u) was turned away: the secrets differ",
             (unsigned)sl_port_number(s->r.port));
    if (!strstr(log, want) || !strstr(log, "92 more callers were turned away"))
        fail_msg("logged '%.2000s'", log);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(the_right_secret_opens),
        CASE(the_macs_are_as_written_down),
        CASE(a_wrong_secret_is_refused),
        CASE(a_mac_of_another_role_or_hello_is_refused),
        CASE(a_replay_of_a_recorded_handshake_is_refused),
        CASE(a_callee_proves_itself_too),
        CASE(a_callee_waits_for_the_first_word),
        CASE(a_caller_may_have_given_up),
        CASE(another_version_is_named),
        CASE(nothing_but_the_handshake_comes_first),
        CASE(hello_fields_are_checked),
        CASE(the_owner_may_refuse),
        CASE(idle_callers_give_way),
        CASE(a_proof_in_time_needs_no_place),
        CASE(a_recorded_hello_takes_no_others_place),
        CASE(those_who_are_expected_have_places),
        CASE(the_log_of_a_flood_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
