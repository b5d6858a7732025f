/* Open connections: sequences, headers, silence and ends. */
#include "net_raw.h"

#include <unistd.h>

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

/* Whenever connections on a machine began, their heartbeats leave together after a while, four in a
 * second each: a process wakes for them as often whether it has one connection or many. */
static void heartbeats_leave_together(void **state) {
    enum { N = 7 };
    stage *s = *state;
    peer other[N] = {0}, *all[N + 1] = {&s->p};
    sl_conn *c[N];
    sl_err err;
    uint64_t sent[N], times = 0;
    for (int i = 0; i < N; i++) {
        peer_start(&other[i], s->hub, &s->clock, KEY);
        all[i + 1] = &other[i];
        assert_int_equal(sl_net_connect(s->p.net, sl_net_address(other[i].net), NULL, &c[i], &err),
                         SL_OK);
        pass_us(&s->clock, all, (size_t)i + 2, 31000, 1000);
        c[i]->place = SL_PEER_ON_THIS_MACHINE;
    }
    pass_us(&s->clock, all, N + 1, 1000000, 1000);
    for (int i = 0; i < N; i++) sent[i] = sl_conn_stats_of(c[i]).sent_messages;
    for (int ms = 0; ms < 10000; ms++) {
        uint64_t before = 0, after = 0;
        for (int i = 0; i < N; i++) before += sl_conn_stats_of(c[i]).sent_messages;
        pass_us(&s->clock, all, N + 1, 1000, 1000);
        for (int i = 0; i < N; i++) after += sl_conn_stats_of(c[i]).sent_messages;
        times += after > before;
    }
    assert_in_range(times, 39, 41);
    for (int i = 0; i < N; i++)
        assert_in_range(sl_conn_stats_of(c[i]).sent_messages - sent[i], 39, 41);
    assert_int_equal(s->p.downs, 0);
    for (int i = 0; i < N; i++) sl_net_free(other[i].net);
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

static void a_coordinator_is_borne_for_a_minute(void **state) {
    stage *s = *state;
    const sl_peer_place places[] = {SL_PEER_ELSEWHERE, SL_PEER_ON_THIS_MACHINE};
    for (size_t i = 0; i < SL_LEN(places); i++) {
        assert_true(raw_log_in(s, KEY) != 0);
        s->p.last->place = places[i];
        s->p.last->peer.is_coordinator = 1;
        assert_in_range(silence_ms(s, 1000, 90000000), 60000, 60100);
    }
    s->p.net->silence_limit_us = 90000000; /* longer is longer */
    assert_true(raw_log_in(s, KEY) != 0);
    s->p.last->peer.is_coordinator = 1;
    assert_in_range(silence_ms(s, 1000, 120000000), 90000, 90100);
    s->p.net->silence_limit_us = SL_NET_SILENCE_LIMIT_US;
}

/* Only while it is that, and only the coordinator. */
static void a_living_parent_is_never_given_up(void **state) {
    stage *s = *state;
    s->p.net->parent = getppid();
    assert_true(raw_log_in(s, KEY) != 0);
    assert_in_range(silence_ms(s, 1000, 90000000), 2000, 2100);
    assert_true(raw_log_in(s, KEY) != 0);
    s->p.last->peer.is_coordinator = 1;
    assert_int_equal(silence_ms(s, 1000, 600000000), 0);
    s->p.net->parent = getppid() + 1; /* this process is an orphan now */
    assert_in_range(silence_ms(s, 1000, 90000000), 1, 60100);
    s->p.net->parent = 0;
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

/* What was asked between a stop and the look that finds it is no later than what is asked after. */
static void own_time_never_goes_back(void **state) {
    stage *s = *state;
    peer *one[] = {&s->p};
    sl_clock own = sl_net_clock(s->p.net);
    uint64_t before_us = sl_clock_now_us(&own), last_us = before_us, passed_us = 0;
    for (uint32_t i = 0; i < 200; i++) {
        uint64_t step_us = i % 7 == 3 ? 3800000 : i % 7 == 5 ? 900000 : 20000;
        s->clock.now_us += step_us;
        passed_us += step_us < 1000000 ? step_us : 0;
        for (uint32_t looks = 0; looks < 2; looks++) {
            uint64_t now_us = sl_clock_now_us(&own);
            assert_true(now_us >= last_us);
            last_us = now_us;
            if (looks == 0 && i % 3) pass_us(&s->clock, one, 1, 1000, 1000);
        }
    }
    /* No stop is in it, and not much else is missing. */
    assert_in_range(last_us - before_us, passed_us / 2, passed_us + 200000);
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
    assert_non_null(strstr(err.msg, "shm, tcp, ucx or loop"));
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
    memset(h.address, 'x', 10);
    sl_net_set_hello(s->p.net, &h);
    assert_string_equal(sl_net_address(s->p.net), "loop:1");
    raw_reach_auth(s);
    sl_err err = {0};
    sl_hello seen;
    assert_int_equal(sl_hello_decode(s->r.peer_hello, &seen, &err), SL_OK);
    assert_int_equal(seen.worker, 42);
    assert_string_equal(seen.address, "loop:1");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(a_gap_in_the_sequence_closes),
        CASE(headers_of_open_connections_are_checked),
        CASE(unknown_kinds_are_answered),
        CASE(heartbeats_and_silence),
        CASE(heartbeats_leave_together),
        CASE(who_runs_on_time_finds_the_dead_soon),
        CASE(who_runs_late_gives_peers_time),
        CASE(who_has_a_witness_is_borne_longer),
        CASE(a_coordinator_is_borne_for_a_minute),
        CASE(a_living_parent_is_never_given_up),
        CASE(threads_do_not_die_of_silence),
        CASE(own_time_never_goes_back),
        CASE(own_sleep_is_not_the_peers_silence),
        CASE(own_sleep_ends_no_handshake),
        CASE(messages_after_the_end_are_taken_and_refused),
        CASE(a_dead_net_is_noticed),
        CASE(options_are_checked),
        CASE(a_new_hello_is_told_from_then_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
