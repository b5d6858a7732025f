/* The shared-memory transport between processes. */
#include "multi/net_procs.h"

#include <dirent.h>

NET_CASES("shm")

/* ---- deaths in the middle of heavy sending ---- */

#define KILLS ((int)(50 / take_one_in(SL_SLOW_BUILD ? 5 : 2)))

typedef struct crowd {
    sl_conn *bystander;
    uint64_t next_back; /* of the bystander's answers */
    int from_victim;
} crowd;

static void on_crowd(peer *p, sl_conn *c, const sl_wire_header *h, const sl_buf *payload) {
    crowd *w = p->extra;
    if (c != w->bystander) {
        w->from_victim++;
        return;
    }
    assert_int_equal(h->round, w->next_back++);
    assert_int_equal(payload->len, 1000 + h->round % 100000);
    for (size_t i = 0; i < payload->len; i += 997)
        assert_int_equal(payload->data[i], (uint8_t)h->round);
}

static void send_filled(peer *p, sl_conn *c, uint64_t round, size_t len) {
    sl_buf *b = sl_net_buf_take(p->net, len);
    assert_non_null(b);
    memset(b->data, (uint8_t)round, len);
    assert_int_equal(
        sl_net_send(p->net, c, (sl_wire_header){.kind = SL_MSG_DISPATCH, .round = round}, b),
        SL_OK);
}

static void progress_ns(peer *p, uint64_t ns) {
    for (uint64_t end_ns = sl_now_ns() + ns; sl_now_ns() < end_ns;)
        if (!sl_net_progress(p->net)) sl_net_wait(p->net, 200);
}

/* Whenever a peer dies, in the middle of whatever store: only its own connection ends, at once. */
static void many_kills(void **state) {
    (void)state;
    crowd w = {0};
    peer p = {.on_message = on_crowd, .extra = &w};
    uint64_t rng = 7, sent = 0;
    double worst_ms = 0;
    child bystander = spawn("shm", KEY, "echo");
    start(&p, "shm", KEY);
    w.bystander = call(&p, bystander.address);
    until(&p, &p.opened, 1, 10);
    for (int round = 0; round < KILLS; round++) {
        child victim = spawn("shm", KEY, "echo");
        sl_conn *c = call(&p, victim.address);
        until(&p, &p.opened, round + 2, 10);
        for (uint64_t i = 0; i < 40; i++) {
            send_filled(&p, c, i, 1 + sl_rng_below(&rng, i % 8 ? 5000 : 3000000));
            send_filled(&p, w.bystander, sent, 1000 + sent % 100000);
            sent++;
        }
        progress_ns(&p, sl_rng_below(&rng, 8000000));
        kill(victim.pid, SIGKILL);
        double ms = until(&p, &p.downs, round + 1, 10);
        worst_ms = ms > worst_ms ? ms : worst_ms;
        assert_int_equal(p.why, SL_ERR_PEER_DOWN);
        reap_child(&victim, SIGKILL);
    }
    for (uint64_t end_ns = sl_now_ns() + 20000000000ull; w.next_back < sent;) {
        assert_true(sl_now_ns() < end_ns);
        if (!sl_net_progress(p.net)) sl_net_wait(p.net, 20000);
    }
    printf("shm: %d kills, %d messages from the killed, reported within %.1f ms; %llu from a "
           "bystander\n",
           KILLS, w.from_victim, worst_ms, (unsigned long long)sent);
    assert_int_equal(p.downs, KILLS);
    assert_true(worst_ms < 2000);
    sl_net_free(p.net);
    reap_child(&bystander, 0);
}

/* ---- queues longer than a ring ---- */

#define FLOOD ((int)(20000 / take_one_in(SL_SLOW_BUILD ? 5 : 1)))

static void on_flood(peer *p, sl_conn *c, const sl_wire_header *h, const sl_buf *payload) {
    (void)c;
    uint64_t *next = p->extra;
    assert_int_equal(h->round, (*next)++);
    assert_int_equal(payload->len, 1 + h->round % 3000);
    assert_int_equal(payload->data[payload->len - 1], (uint8_t)h->round);
}

static void flood(void **state) {
    (void)state;
    uint64_t next = 0;
    peer p = {.on_message = on_flood, .extra = &next};
    child far = spawn("shm", KEY, "echo");
    start(&p, "shm", KEY);
    sl_conn *c = call(&p, far.address);
    until(&p, &p.opened, 1, 10);
    for (int i = 0; i < FLOOD; i++) send_filled(&p, c, i, 1 + i % 3000);
    until(&p, &p.messages, FLOOD, 60);
    assert_int_equal(p.downs, 0);
    sl_net_free(p.net);
    reap_child(&far, 0);
}

/* ---- coming and going ---- */

static int open_descriptors(void) {
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

static void reconnect(void **state) {
    (void)state;
    peer p = {0};
    child far = spawn("shm", KEY, "echo");
    start(&p, "shm", KEY);
    int before = open_descriptors();
    for (int i = 0, n = 100 / (int)take_one_in(4); i < n; i++) {
        sl_conn *c = call(&p, far.address);
        until(&p, &p.opened, i + 1, 10);
        send_filled(&p, c, 0, 100000);
        until(&p, &p.messages, i + 1, 10);
        send_filled(&p, c, 0, 100000);
        sl_net_close(p.net, c, SL_OK, "enough");
        until(&p, &p.downs, i + 1, 10);
        assert_int_equal(p.why, SL_OK);
    }
    assert_int_equal(open_descriptors(), before);
    sl_net_free(p.net);
    reap_child(&far, 0);
}

static void addresses(void **state) {
    (void)state;
    peer p = {0};
    sl_conn *c = NULL;
    sl_err err = {0};
    const char *bad[] = {"127.0.0.1:9000", "shm:", "shm:0123",
                         "shm:0123456789abcdef0123456789abcdeX",
                         "shm:0123456789abcdef0123456789abcdef0"};
    start(&p, "shm", KEY);
    assert_int_equal(strlen(sl_net_address(p.net)), 36);
    for (size_t i = 0; i < SL_LEN(bad); i++)
        assert_int_equal(sl_net_connect(p.net, bad[i], NULL, &c, &err), SL_ERR_ARG);
    assert_int_equal(sl_net_connect(p.net, "shm:0123456789abcdef0123456789abcdef", NULL, &c, &err),
                     SL_ERR_PEER_DOWN);
    assert_non_null(strstr(err.msg, "shm:0123456789abcdef0123456789abcdef"));
    child far = spawn("shm", KEY, "echo");
    kill(far.pid, SIGKILL);
    reap_child(&far, SIGKILL);
    assert_int_equal(sl_net_connect(p.net, far.address, NULL, &c, &err), SL_ERR_PEER_DOWN);
    sl_net_free(p.net);
}

int main(void) {
    alarm(200);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(echo),         cmocka_unit_test(killed_peer),
        cmocka_unit_test(mute_peer),    cmocka_unit_test(stopped_peer),
        cmocka_unit_test(wrong_secret), cmocka_unit_test(self_and_bye),
        cmocka_unit_test(many_kills),   cmocka_unit_test(flood),
        cmocka_unit_test(reconnect),    cmocka_unit_test(addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
