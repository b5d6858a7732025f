/* Shared-memory transport against callers that do not keep its rules: what they write into a ring
 * or onto the socket ends their own connection and nothing else. */
#include "net_harness.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/rng.h"
#include "net/shm/shm_int.h"

#define LIMIT_NS 10000000000ull

static void start(peer *p) {
    sl_err err = {0};
    sl_net_opts o = peer_opts(p, NULL, sl_clock_real(), KEY);
    o.transport = "shm";
    o.host = "127.0.0.1";
    if (sl_net_create(&o, &p->net, &err) != SL_OK) fail_msg("%s", err.msg);
}

static sl_conn *call(peer *p, const peer *to) {
    sl_err err = {0};
    sl_conn *c = NULL;
    if (sl_net_connect(p->net, sl_net_address(to->net), p, &c, &err) != SL_OK)
        fail_msg("%s", err.msg);
    return c;
}

/* Lets both (b may be NULL) run until *counter is `want`. */
static void until(peer *a, peer *b, const int *counter, int want) {
    for (uint64_t end_ns = sl_now_ns() + LIMIT_NS; *counter < want;) {
        if (sl_now_ns() > end_ns)
            fail_msg("%d of %d (downs %d: %s)", *counter, want, a->downs, a->text);
        sl_net_progress(a->net);
        if (b) sl_net_progress(b->net);
    }
}

static int open_descriptors(void) {
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

/* ---- a net with one honest caller, and callers made by hand ---- */

typedef struct scene {
    peer victim, honest;
    sl_conn *good;
    int descriptors;
} scene;

static void scene_open(scene *s) {
    memset(s, 0, sizeof *s);
    start(&s->victim);
    start(&s->honest);
    s->good = call(&s->honest, &s->victim);
    until(&s->victim, &s->honest, &s->honest.opened, 1);
    s->descriptors = open_descriptors();
}

static void scene_check_good(scene *s) {
    static uint64_t value = 100;
    int before = s->victim.messages;
    assert_int_equal(peer_send_u64(&s->honest, s->good, SL_MSG_DISPATCH, ++value), SL_OK);
    until(&s->victim, &s->honest, &s->victim.messages, before + 1);
    assert_int_equal(s->victim.value, value);
}

static void scene_close(scene *s) {
    scene_check_good(s);
    /* A caller that was still in the listener's queue is taken, and gone. */
    for (uint64_t end_ns = sl_now_ns() + LIMIT_NS;
         sl_pending_count(s->victim.net) && sl_now_ns() < end_ns;)
        sl_net_progress(s->victim.net);
    assert_int_equal(s->honest.downs, 0);
    assert_int_equal(s->victim.opened, 1);
    assert_int_equal(sl_pending_count(s->victim.net), 0);
    assert_int_equal(open_descriptors(), s->descriptors);
    sl_net_free(s->honest.net);
    sl_net_free(s->victim.net);
}

typedef struct caller {
    int fd;
    shm_area *area;
    shm_pipe tx, rx;
} caller;

static caller caller_open(const peer *to) {
    caller c = {0};
    sl_err err = {0};
    if (sl_shm_dial(sl_net_address(to->net), &c.fd, &err) != SL_OK ||
        sl_shm_greet(c.fd, &c.area, &err) != SL_OK)
        fail_msg("%s", err.msg);
    sl_shm_pipes_open(c.area, 0, &c.tx, &c.rx);
    return c;
}

static void caller_close(caller *c) {
    sl_shm_area_free(c->area);
    close(c->fd);
}

/* A record with a HELLO header and `present` bytes, which claims `claimed`. */
static void caller_put(caller *c, uint32_t claimed, uint32_t mark, size_t present) {
    uint8_t bytes[SL_SHM_RECORD_HEAD + 8192] = {0};
    sl_wr w = sl_wr_of(bytes, sizeof bytes);
    sl_wr_u32(&w, claimed);
    sl_wr_u32(&w, mark);
    sl_wire_header h = {.kind = SL_MSG_HELLO, .incarnation = 9, .seq = 1, .bytes = claimed % 8192};
    sl_wire_header_encode(&h, bytes + w.len);
    sl_shm_tx_put(&c->tx, bytes, SL_SHM_RECORD_HEAD + present);
    sl_shm_tx_publish(&c->tx);
}

static void expect_down(scene *s, const char *want) {
    until(&s->victim, &s->honest, &s->victim.downs, s->victim.downs + 1);
    if (!strstr(s->victim.text, want)) fail_msg("'%s', expected '%s'", s->victim.text, want);
    scene_check_good(s);
}

static void bad_rings(void **state) {
    (void)state;
    scene s;
    scene_open(&s);
    for (int i = 0; i < 8; i++) {
        caller c = caller_open(&s.victim);
        const char *want = "impossible ring counter";
        switch (i) {
        case 0: /* more than a ring holds */
            atomic_store(&c.tx.ring->tail, SL_SHM_RING_BYTES + 1);
            break;
        case 1:
            atomic_store(&c.tx.ring->tail, UINT64_MAX);
            break;
        case 2: /* the tail goes back */
            caller_put(&c, 276, SL_SHM_MARK, 100);
            for (int k = 0; k < 100; k++) sl_net_progress(s.victim.net);
            sl_net_wait(s.victim.net, 1000);
            sl_net_progress(s.victim.net);
            atomic_store(&c.tx.ring->tail, 8);
            break;
        case 3:
            caller_put(&c, 276, SL_SHM_MARK + 1, 276);
            want = "begin no message";
            break;
        case 4:
            caller_put(&c, SL_NET_MAX_UNTRUSTED + 1, SL_SHM_MARK, 276);
            want = "a payload of 4097 bytes, limit 4096";
            break;
        case 5:
            caller_put(&c, UINT32_MAX, SL_SHM_MARK, 276);
            want = "limit 4096";
            break;
        case 6: /* ends in the middle of a message */
            caller_put(&c, 276, SL_SHM_MARK, 100);
            shutdown(c.fd, SHUT_RDWR);
            want = "the peer is gone";
            break;
        case 7: /* a record as it should be: the session refuses its content */
            caller_put(&c, 276, SL_SHM_MARK, 384 - SL_SHM_RECORD_HEAD);
            want = "incarnation";
            break;
        }
        expect_down(&s, want);
        caller_close(&c);
    }
    scene_close(&s);
}

/* ---- an open connection whose peer scribbles ---- */

static shm_link *link_of(const peer *p, const peer *named) {
    for (size_t i = 0; i < p->net->n_conns; i++) {
        sl_conn *c = p->net->conns[i];
        if (c->peer.incarnation == named->net->hello.incarnation) return c->link;
    }
    return NULL;
}

static void open_links_corrupted(void **state) {
    (void)state;
    scene s;
    scene_open(&s);
    for (uint64_t round = 0; round < 60; round++) {
        peer evil = {0};
        uint64_t rng = round;
        start(&evil);
        sl_conn *c = call(&evil, &s.victim);
        until(&s.victim, &evil, &evil.opened, 1);
        s.victim.opened--;
        shm_link *near = c->link, *far = link_of(&s.victim, &evil);
        assert_non_null(far);
        shm_area *area = near->area;
        int downs = s.victim.downs;
        for (int i = 0; i < 20; i++) (void)peer_send_u64(&evil, c, SL_MSG_DISPATCH, 1);
        if (round % 3 == 0) { /* the victim's own counter of room, beyond what it ever wrote */
            atomic_store(&area->ring[1].head, SL_SHM_RING_BYTES + sl_rng_below(&rng, 1000));
            sl_buf *b = sl_net_buf_take(s.victim.net, 2 * SL_SHM_RING_BYTES);
            memset(b->data, 1, b->len);
            (void)sl_net_send(s.victim.net, far->conn, (sl_wire_header){.kind = SL_MSG_RETURN}, b);
        } else if (round % 3 == 1) { /* all of the area, counters included */
            for (size_t at = 0; at < 200000; at += 8) {
                uint64_t word = sl_rng_next(&rng);
                memcpy((uint8_t *)area + at, &word, 8);
            }
        } else { /* what a message says of itself */
            uint8_t *data = (uint8_t *)area + SL_SHM_DATA_AT;
            for (size_t at = 0; at < 65536; at += 4)
                if (sl_rng_below(&rng, 3) == 0) data[at] ^= (uint8_t)(1 + sl_rng_below(&rng, 255));
        }
        for (uint64_t end_ns = sl_now_ns() + 2000000; sl_now_ns() < end_ns;)
            sl_net_progress(s.victim.net);
        scene_check_good(&s);
        sl_net_free(evil.net);
        until(&s.victim, &s.honest, &s.victim.downs, downs + 1);
    }
    s.victim.messages = 0;
    scene_close(&s);
}

/* ---- greetings ---- */

static void send_greeting(int fd, const void *bytes, size_t n, const int *passed, size_t n_passed) {
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(3 * sizeof(int))] = {0};
    struct iovec iov = {(void *)(uintptr_t)bytes, n};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n_passed) {
        m.msg_control = control;
        m.msg_controllen = CMSG_SPACE(n_passed * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n_passed * sizeof(int));
        memcpy(CMSG_DATA(c), passed, n_passed * sizeof(int));
    }
    assert_int_equal(sendmsg(fd, &m, MSG_NOSIGNAL), (ssize_t)n);
}

static int make_memfd(uint64_t bytes, int seals) {
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void bad_greetings(void **state) {
    (void)state;
    const int all = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    scene s;
    scene_open(&s);
    for (int i = 0; i < 9; i++) {
        uint8_t bytes[16];
        sl_wr w = sl_wr_of(bytes, sizeof bytes);
        sl_wr_u32(&w, i == 0 ? 1u : SL_WIRE_MAGIC);
        sl_wr_u32(&w, i == 1 ? 99u : SL_WIRE_VERSION);
        sl_wr_u64(&w, i == 2 ? 8192u : SL_SHM_AREA_BYTES);
        int passed[3];
        passed[0] = i == 3   ? make_memfd(SL_SHM_AREA_BYTES, F_SEAL_GROW)
                    : i == 4 ? make_memfd(SL_SHM_AREA_BYTES - 4096, all)
                    : i == 5 ? open("/dev/zero", O_RDWR | O_CLOEXEC)
                    : i == 6 ? make_memfd(SL_SHM_AREA_BYTES, all | F_SEAL_WRITE)
                             : make_memfd(SL_SHM_AREA_BYTES, all);
        passed[1] = passed[2] = passed[0];
        int fd = -1;
        char byte;
        sl_err err = {0};
        assert_int_equal(sl_shm_dial(sl_net_address(s.victim.net), &fd, &err), SL_OK);
        send_greeting(fd, bytes, i == 7 ? 5 : 16, passed, i == 8 ? 0 : 1);
        ssize_t n = -1;
        for (uint64_t end_ns = sl_now_ns() + LIMIT_NS; n < 0 && sl_now_ns() < end_ns;) {
            sl_net_progress(s.victim.net);
            n = recv(fd, &byte, 1, MSG_DONTWAIT);
        }
        if (n != 0) fail_msg("greeting %d was not turned away", i);
        close(fd);
        close(passed[0]);
    }
    assert_int_equal(s.victim.downs, 0);
    scene_close(&s);
}

/* Descriptors beyond the expected one never reach the process. */
static void greeting_with_more_descriptors(void **state) {
    (void)state;
    scene s;
    scene_open(&s);
    const int all = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    int memfd = make_memfd(SL_SHM_AREA_BYTES, all), fd = -1, passed[3] = {memfd, memfd, memfd};
    uint8_t bytes[16];
    sl_err err = {0};
    sl_wr w = sl_wr_of(bytes, sizeof bytes);
    sl_wr_u32(&w, SL_WIRE_MAGIC);
    sl_wr_u32(&w, SL_WIRE_VERSION);
    sl_wr_u64(&w, SL_SHM_AREA_BYTES);
    assert_int_equal(sl_shm_dial(sl_net_address(s.victim.net), &fd, &err), SL_OK);
    send_greeting(fd, bytes, sizeof bytes, passed, 3);
    close(memfd);
    scene_check_good(&s);
    close(fd);
    scene_close(&s);
}

/* Callers that say nothing are turned away after 2 s, and only 64 are heard at a time. */
static void silent_callers(void **state) {
    (void)state;
    enum { N = SL_NET_MAX_PENDING + 10 };
    int fd[N];
    sl_err err = {0};
    scene s;
    scene_open(&s);
    for (int i = 0; i < N; i++)
        assert_int_equal(sl_shm_dial(sl_net_address(s.victim.net), &fd[i], &err), SL_OK);
    scene_check_good(&s);
    int gone = 0;
    char byte;
    for (uint64_t end_ns = sl_now_ns() + LIMIT_NS; gone < N && sl_now_ns() < end_ns;) {
        gone = 0;
        sl_net_progress(s.victim.net);
        sl_net_progress(s.honest.net);
        for (int i = 0; i < N; i++) gone += recv(fd[i], &byte, 1, MSG_DONTWAIT) == 0;
    }
    assert_int_equal(gone, N);
    for (int i = 0; i < N; i++) close(fd[i]);
    scene_close(&s);
}

/* Whoever is let in is looked at before the next ones are, and so needs a place for a moment alone:
 * many that call at once, as workers of one machine do when it starts, turn nobody away. */
static void many_at_once(void **state) {
    (void)state;
    enum { N = 3 * SL_NET_MAX_PENDING };
    peer p = {0}, q = {0};
    start(&p);
    start(&q);
    sl_net_set_callers(p.net, N);
    for (int i = 0; i < N; i++) (void)call(&q, &p);
    until(&q, &p, &q.opened, N);
    until(&p, &q, &p.opened, N);
    assert_int_equal(p.downs + q.downs, 0);
    sl_net_free(q.net);
    sl_net_free(p.net);
}

/* A heartbeat lies in the ring until the peer wakes for a reason of its own, and counts then; what
 * comes behind it wakes it. */
static void heartbeats_wake_nobody(void **state) {
    (void)state;
    peer p = {0}, q = {0};
    start(&p);
    start(&q);
    sl_conn *c = call(&p, &q);
    until(&p, &q, &p.opened, 1);
    until(&q, &p, &q.opened, 1);
    until(&q, &p, &q.opened, 1);
    for (int i = 0; i < 100; i++) sl_net_progress(q.net), sl_net_progress(p.net);
    shm_link *there = q.last->link;
    const uint64_t sent = sl_conn_stats_of(c).sent_messages;
    sl_shm_link_announce(there);
    for (const uint64_t end_ns = sl_now_ns() + LIMIT_NS;
         sl_conn_stats_of(c).sent_messages == sent;) {
        assert_true(sl_now_ns() < end_ns);
        sl_net_progress(p.net);
    }
    assert_int_equal(atomic_load(there->own_sleeper), SL_SHM_FOR_DATA); /* it sleeps on... */
    assert_true(sl_shm_link_is_ready(there)); /* ...and would hear of it */
    const uint64_t silent_us = sl_conn_silent_us(q.last);
    assert_true(silent_us >= SL_NET_HEARTBEAT_US / 4);
    sl_net_progress(q.net);
    assert_true(sl_conn_silent_us(q.last) < silent_us);
    assert_int_equal(peer_send_u64(&p, c, SL_MSG_DISPATCH, 1), SL_OK);
    assert_int_equal(atomic_load(there->own_sleeper), 0);
    until(&q, &p, &q.messages, 1);
    sl_net_free(p.net);
    sl_net_free(q.net);
}

/* ---- two threads, so that both sides sleep and wake ---- */

#define TALKS 3000

static void answer(peer *p, sl_conn *c, const sl_wire_header *h, const sl_buf *payload) {
    sl_buf *b = sl_net_buf_take(p->net, payload->len);
    assert_non_null(b);
    memcpy(b->data, payload->data, payload->len);
    (void)sl_net_send(p->net, c, (sl_wire_header){.kind = SL_MSG_RETURN, .round = h->round}, b);
}

static void *serve(void *arg) {
    peer *p = arg;
    while (!p->downs) {
        sl_net_progress(p->net);
        sl_net_wait(p->net, 100000);
    }
    return NULL;
}

static void sleepers(void **state) {
    (void)state;
    peer a = {0}, b = {.on_message = answer};
    pthread_t thread;
    uint64_t rng = 3;
    start(&a);
    start(&b);
    char address[96];
    sl_err err = {0};
    sl_conn *c = NULL;
    snprintf(address, sizeof address, "%s", sl_net_address(b.net));
    assert_int_equal(pthread_create(&thread, NULL, serve, &b), 0);
    assert_int_equal(sl_net_connect(a.net, address, &a, &c, &err), SL_OK);
    until(&a, NULL, &a.opened, 1);
    for (uint64_t i = 1; i <= TALKS; i++) {
        sl_buf *m = sl_net_buf_take(a.net, i % 500 ? 8 + sl_rng_below(&rng, 3000) : 9000000);
        memset(m->data, 0, m->len);
        memcpy(m->data, &i, 8);
        assert_int_equal(sl_net_send(a.net, c, (sl_wire_header){.kind = SL_MSG_DISPATCH}, m),
                         SL_OK);
        if (i % 7 == 0) usleep(60); /* long enough for the other side to sleep */
        while (i % 3 == 0 && (uint64_t)a.messages < i) {
            uint64_t begin_ns = sl_now_ns();
            if (!sl_net_progress(a.net)) sl_net_wait(a.net, LIMIT_NS / 1000);
            assert_true(sl_now_ns() - begin_ns < LIMIT_NS * 9 / 10); /* a wake-up was lost */
        }
    }
    until(&a, NULL, &a.messages, TALKS);
    assert_int_equal(a.value, TALKS);
    sl_net_free(a.net);
    pthread_join(thread, NULL);
    assert_int_equal(b.why, SL_OK);
    sl_net_free(b.net);
}

/* Every allocation that connecting and sending make may fail. */
static void out_of_memory(void **state) {
    (void)state;
    scene s;
    scene_open(&s);
    for (uint64_t nth = 1; nth <= 40; nth++) {
        peer p = {0};
        sl_conn *c = NULL;
        sl_err err = {0};
        start(&p);
        sl_mem_fail_at(nth);
        sl_status st = sl_net_connect(p.net, sl_net_address(s.victim.net), &p, &c, &err);
        for (uint64_t end_ns = sl_now_ns() + 3000000; st == SL_OK && sl_now_ns() < end_ns;) {
            sl_net_progress(p.net);
            sl_net_progress(s.victim.net);
        }
        sl_mem_fail_at(0);
        sl_net_free(p.net);
        for (uint64_t end_ns = sl_now_ns() + 3000000; sl_now_ns() < end_ns;)
            sl_net_progress(s.victim.net);
    }
    assert_true(s.victim.opened > 1);
    s.victim.opened = 1;
    scene_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_rings),
        cmocka_unit_test(open_links_corrupted),
        cmocka_unit_test(bad_greetings),
        cmocka_unit_test(greeting_with_more_descriptors),
        cmocka_unit_test(silent_callers),
        cmocka_unit_test(many_at_once),
        cmocka_unit_test(heartbeats_wake_nobody),
        cmocka_unit_test(sleepers),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
