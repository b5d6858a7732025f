/* The TCP transport between processes, on loopback; "link_down" alone in a network of its own. */
#include "multi/net_procs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "net/address.h"

NET_CASES("tcp")

static void refusals(void **state) {
    (void)state;
    peer p = {0};
    start(&p, "tcp", KEY);
    call(&p, "127.0.0.1:1"); /* nobody listens */
    until(&p, &p.downs, 1, 10);
    printf("tcp: nobody listens: %s\n", p.text);
    assert_int_equal(p.opened, 0);
    sl_conn *c = NULL;
    sl_err err = {0};
    assert_int_equal(sl_net_connect(p.net, "127.0.0.1", NULL, &c, &err), SL_ERR_ARG);
    assert_int_equal(sl_net_connect(p.net, "127.0.0.1:70000", NULL, &c, &err), SL_ERR_ARG);
    assert_int_equal(sl_net_connect(p.net, "127.0.0.1:x", NULL, &c, &err), SL_ERR_ARG);
    sl_net_opts o = peer_opts(&p, NULL, sl_clock_real(), KEY);
    sl_net *second = NULL;
    o.transport = "tcp";
    o.host = "127.0.0.1";
    o.port = (uint16_t)atoi(strrchr(sl_net_address(p.net), ':') + 1);
    assert_true(o.port < 32768);
    assert_int_equal(sl_net_create(&o, &second, &err), SL_ERR_IO);
    sl_net_free(p.net);
}

/* Two ends with one address are on one machine, where the kernel tells who died. */
static void places(void **state) {
    (void)state;
    static const char *const hosts[] = {"127.0.0.1", "127.0.0.2"};
    for (size_t i = 0; i < SL_LEN(hosts); i++) {
        peer a = {0}, b = {0};
        sl_err err = {0};
        sl_net_opts o = peer_opts(&b, NULL, sl_clock_real(), KEY);
        o.transport = "tcp";
        o.host = hosts[i];
        start(&a, "tcp", KEY);
        if (sl_net_create(&o, &b.net, &err) != SL_OK) fail_msg("%s", err.msg);
        call(&a, sl_net_address(b.net));
        for (uint64_t end_ns = sl_now_ns() + 20000000000ull;
             (!a.opened || !b.opened) && sl_now_ns() < end_ns;) {
            sl_net_progress(a.net);
            sl_net_progress(b.net);
        }
        sl_peer_place want = i ? SL_PEER_ELSEWHERE : SL_PEER_ON_THIS_MACHINE;
        assert_int_equal(a.last->place, want);
        assert_int_equal(b.last->place, want);
        sl_net_free(a.net);
        sl_net_free(b.net);
    }
}

/* Progress of both until it is decided whether they are connected. */
static void meet(peer *a, peer *b) {
    const uint64_t end_ns = sl_now_ns() + 20000000000ull;
    while (!(a->opened && b->opened) && !a->downs && sl_now_ns() < end_ns) {
        sl_net_progress(a->net);
        sl_net_progress(b->net);
    }
}

/* What is encrypted is what both want, between machines or everywhere; who insists meets nobody who
 * does not. */
static void who_encrypts(void **state) {
    (void)state;
    static const struct {
        sl_net_when caller, callee;
        const char *host; /* of the callee; the caller has 127.0.0.1 */
        bool opens, encrypted;
    } cases[] = {{SL_NET_WHEN_ON, SL_NET_WHEN_ON, "127.0.0.1", true, true},
                 {SL_NET_WHEN_OFF, SL_NET_WHEN_OFF, "127.0.0.2", true, false},
                 {SL_NET_WHEN_AUTO, SL_NET_WHEN_AUTO, "127.0.0.1", true, false},
                 {SL_NET_WHEN_AUTO, SL_NET_WHEN_AUTO, "127.0.0.2", true, true},
                 {SL_NET_WHEN_AUTO, SL_NET_WHEN_ON, "127.0.0.1", true, true},
                 {SL_NET_WHEN_AUTO, SL_NET_WHEN_OFF, "127.0.0.2", true, false},
                 {SL_NET_WHEN_OFF, SL_NET_WHEN_AUTO, "127.0.0.2", true, false},
                 {SL_NET_WHEN_ON, SL_NET_WHEN_AUTO, "127.0.0.1", true, true},
                 {SL_NET_WHEN_ON, SL_NET_WHEN_AUTO, "127.0.0.2", true, true},
                 {SL_NET_WHEN_ON, SL_NET_WHEN_OFF, "127.0.0.2", false, false},
                 {SL_NET_WHEN_OFF, SL_NET_WHEN_ON, "127.0.0.2", false, false}};
    for (size_t i = 0; i < SL_LEN(cases); i++) {
        peer a = {0}, b = {0};
        sl_err err = {0};
        sl_net_opts o = peer_opts(&a, NULL, sl_clock_real(), KEY);
        sl_net_opts p = peer_opts(&b, NULL, sl_clock_real(), KEY);
        o.transport = p.transport = "tcp";
        o.host = "127.0.0.1";
        p.host = cases[i].host;
        o.encrypt = cases[i].caller;
        p.encrypt = cases[i].callee;
        if (sl_net_create(&o, &a.net, &err) != SL_OK) fail_msg("%s", err.msg);
        if (sl_net_create(&p, &b.net, &err) != SL_OK) fail_msg("%s", err.msg);
        call(&a, sl_net_address(b.net));
        meet(&a, &b);
        if (a.opened != cases[i].opens) fail_msg("case %zu: %s", i, a.text);
        if (!cases[i].opens && !strstr(a.text, "does not encrypt")) fail_msg("%s", a.text);
        if (a.opened) assert_int_equal(sl_conn_is_encrypted(a.last), cases[i].encrypted);
        if (a.opened) assert_int_equal(sl_conn_is_encrypted(b.last), cases[i].encrypted);
        sl_net_free(a.net);
        sl_net_free(b.net);
    }
}

/* ---- a peer that writes what it likes ---- */

static int dial(const char *address) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    a.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

/* Writes n bytes in pieces of `piece`; the net must end the connection, saying `want`. */
static void rogue_writes(peer *p, const void *bytes, size_t n, size_t piece, const char *want) {
    int fd = dial(sl_net_address(p->net)), downs = p->downs;
    uint64_t end_ns = sl_now_ns() + 10000000000ull;
    for (size_t at = 0; at < n; at += piece) {
        size_t k = SL_MIN(piece, n - at);
        (void)!send(fd, (const uint8_t *)bytes + at, k, MSG_NOSIGNAL);
        for (int i = 0; i < 3; i++) sl_net_progress(p->net);
    }
    while (p->downs == downs && sl_now_ns() < end_ns) sl_net_progress(p->net);
    assert_int_equal(p->downs, downs + 1);
    if (!strstr(p->text, want))
        fail_msg("%zu bytes by %zu: '%s', expected '%s'", n, piece, p->text, want);
    char end[8192]; /* a reason at most, then the end */
    ssize_t got;
    struct timeval tv = {.tv_sec = 5};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    do {
        for (int i = 0; i < 3; i++) sl_net_progress(p->net);
        got = recv(fd, end, sizeof end, MSG_DONTWAIT);
    } while ((got > 0 || (got < 0 && errno == EAGAIN)) && sl_now_ns() < end_ns);
    assert_true(got == 0 || (got < 0 && errno == ECONNRESET));
    close(fd);
}

static void rogue_peer(void **state) {
    (void)state;
    peer p = {0};
    static uint8_t bytes[SL_WIRE_HEADER_BYTES + 4097];
    start(&p, "tcp", KEY);
    const size_t head = SL_WIRE_HEADER_BYTES;
    sl_wire_header h = {.kind = SL_MSG_HELLO, .incarnation = 9, .seq = 1, .bytes = 276};
    for (size_t piece = 1; piece < 400; piece += 71) {
        sl_wire_header_encode(&h, bytes);
        rogue_writes(&p, bytes, head + 276, piece, "incarnation 0, header says 9");
        bytes[0] ^= 1;
        rogue_writes(&p, bytes, head, piece, "begin no message");
    }
    const uint32_t lengths[] = {4097, 0x7FFFFFFF, 0xFFFFFFFF};
    for (size_t i = 0; i < SL_LEN(lengths); i++) {
        h.bytes = 0;
        sl_wire_header_encode(&h, bytes);
        memcpy(bytes + 64, &lengths[i], 4);
        rogue_writes(&p, bytes, head, head, "limit 4096");
    }
    h = (sl_wire_header){.kind = SL_MSG_HELLO, .incarnation = 9, .seq = 7, .bytes = 276};
    sl_wire_header_encode(&h, bytes);
    rogue_writes(&p, bytes, head + 276, 500, "sequence");
    rogue_writes(&p, bytes, head + 100, 500, "handshake not finished"); /* and then nothing */
    int fd = dial(sl_net_address(p.net)), downs = p.downs;
    (void)!send(fd, bytes, head + 100, MSG_NOSIGNAL);
    close(fd); /* in the middle of a message */
    until(&p, &p.downs, downs + 1, 10);
    assert_int_equal(p.why, SL_ERR_PEER_DOWN);
    assert_int_equal(p.opened, 0);
    assert_int_equal(p.messages, 0);
    assert_int_equal(sl_pending_count(p.net), 0);
    sl_net_free(p.net);
}

/* ---- floods ---- */

#define FLOOD_FDS  512 /* connections that the flood holds open */
#define FLOOD_STEP 16  /* new ones before each look of the net that is flooded */
#define JOINS      20

typedef struct flood {
    struct sockaddr_in from, to;
    int fd[FLOOD_FDS];
    uint32_t n;
} flood;

/* Idle connections: they say nothing, and are there. */
static void flood_step(flood *f) {
    for (int i = 0; i < FLOOD_STEP; i++) {
        int *fd = &f->fd[f->n++ % FLOOD_FDS];
        if (*fd) close(*fd);
        *fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        assert_true(*fd > 0);
        assert_int_equal(bind(*fd, (const struct sockaddr *)&f->from, sizeof f->from), 0);
        (void)connect(*fd, (const struct sockaddr *)&f->to, sizeof f->to);
    }
}

/* Honest callers come from 127.0.0.1, the flood from there or from elsewhere. */
static void joins_beside_a_flood(const char *from) {
    static flood f;
    peer p = {0}, q = {0};
    start(&p, "tcp", KEY);
    f = (flood){.from = {.sin_family = AF_INET}, .to = {.sin_family = AF_INET}};
    f.from.sin_addr.s_addr = inet_addr(from);
    f.to.sin_addr.s_addr = inet_addr("127.0.0.1");
    f.to.sin_port = htons((uint16_t)atoi(strrchr(sl_net_address(p.net), ':') + 1));
    start(&q, "tcp", KEY);
    uint64_t end_ns = sl_now_ns() + 60000000000ull;
    for (int joined = 0, steps = 0; joined < JOINS && sl_now_ns() < end_ns; steps++) {
        flood_step(&f);
        sl_net_progress(p.net);
        sl_net_progress(q.net);
        if (steps < 20) continue; /* until its connections have all places */
        if (steps == 20) assert_int_equal(sl_pending_count(p.net), SL_NET_MAX_PENDING);
        if (steps == 20 || q.opened > joined) call(&q, sl_net_address(p.net));
        joined = q.opened;
        if (q.downs) fail_msg("join %d beside %u idle connections: %s", joined, f.n, q.text);
    }
    printf("%d joins beside %u idle connections from %s\n", q.opened, f.n, from);
    assert_in_range(q.opened, JOINS, JOINS + 1);
    assert_true(sl_pending_count(p.net) <= 2 * SL_NET_MAX_PENDING);
    for (uint32_t i = 0; i < SL_MIN(f.n, FLOOD_FDS); i++) close(f.fd[i]);
    sl_net_free(q.net);
    sl_net_free(p.net);
}

/* What counts as one address: of IPv6 a network of 64 bits, and IPv4 however it is written. */
static void origins(void **state) {
    (void)state;
    static const struct {
        const char *a, *b;
        bool same;
    } pairs[] = {{"10.0.0.1", "10.0.0.1", true},
                 {"10.0.0.1", "10.0.0.2", false},
                 {"::ffff:10.0.0.1", "10.0.0.1", true},
                 {"::ffff:10.0.0.1", "::ffff:10.0.0.2", false},
                 {"2001:db8:0:1::1", "2001:db8:0:1:ffff::2", true},
                 {"2001:db8:0:1::1", "2001:db8:0:2::1", false}};
    for (size_t i = 0; i < SL_LEN(pairs); i++) {
        const char *text[] = {pairs[i].a, pairs[i].b};
        sl_origin o[2];
        for (int k = 0; k < 2; k++) {
            struct sockaddr_storage a;
            socklen_t len;
            const uint16_t port = 7;
            assert_int_equal(sl_address_resolve(text[k], &port, &a, &len, NULL), SL_OK);
            o[k] = sl_address_origin(&a);
            assert_string_equal(o[k].text, text[k]);
        }
        assert_int_equal(o[0].key == o[1].key, pairs[i].same);
    }
}

static void flood_from_elsewhere(void **state) {
    (void)state;
    joins_beside_a_flood("127.0.0.2");
}

static void flood_from_the_same_address(void **state) {
    (void)state;
    joins_beside_a_flood("127.0.0.1");
}

/* ---- a link that goes down: packets vanish, nobody tells either side ---- */

static void set_loopback(bool up) {
    struct ifreq r = {.ifr_name = "lo"};
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(ioctl(fd, SIOCGIFFLAGS, &r), 0);
    r.ifr_flags = (short)(up ? r.ifr_flags | IFF_UP : r.ifr_flags & ~IFF_UP);
    assert_int_equal(ioctl(fd, SIOCSIFFLAGS, &r), 0);
    close(fd);
}

static void link_down(void **state) {
    (void)state;
    peer p = {0};
    start(&p, "tcp", KEY);
    child far = spawn("tcp", KEY, "echo");
    sl_conn *c = call(&p, far.address);
    until(&p, &p.opened, 1, 10);
    fill_link(&p, c);
    set_loopback(false);
    expect_silence(&p, "tcp", "link down");
    set_loopback(true);
    call(&p, far.address);
    until(&p, &p.opened, 2, 10);
    p.messages = 0;
    assert_int_equal(peer_send_u64(&p, p.last, SL_MSG_DISPATCH, 12), SL_OK);
    until(&p, &p.messages, 1, 10);
    assert_int_equal(p.value, 12);
    sl_net_free(p.net);
    reap_child(&far, 0);
}

#define SKIPPED 77

/* In a network of its own, whose only link the test may take down. */
static int run_link_down(void) {
    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
        printf("skipped: no network namespace may be made here\n");
        return SKIPPED;
    }
    set_loopback(true);
    const struct CMUnitTest tests[] = {cmocka_unit_test(link_down)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv) {
    alarm(200);
    sl_net_setup_process("tcp");
    if (argc > 1 && strcmp(argv[1], "link_down") == 0) return run_link_down();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(echo),
        cmocka_unit_test(killed_peer),
        cmocka_unit_test(mute_peer),
        cmocka_unit_test(stopped_peer),
        cmocka_unit_test(wrong_secret),
        cmocka_unit_test(self_and_bye),
        cmocka_unit_test(refusals),
        cmocka_unit_test(places),
        cmocka_unit_test(who_encrypts),
        cmocka_unit_test(rogue_peer),
        cmocka_unit_test(origins),
        cmocka_unit_test(flood_from_elsewhere),
        cmocka_unit_test(flood_from_the_same_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
