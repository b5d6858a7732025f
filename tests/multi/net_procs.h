/* What the tests of transports between processes share: children that run net_peer, and the cases
 * that every such transport has to pass. */
#ifndef SL_TESTS_NET_PROCS_H
#define SL_TESTS_NET_PROCS_H

#include "unit/net_harness.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/rng.h"
#include "sanitized.h"

extern char **environ;

typedef struct child {
    pid_t pid;
    int input;
    char address[96];
} child;

static inline child spawn(const char *transport, const char *secret, const char *mode) {
    child c = {0};
    int in[2], out[2];
    assert_int_equal(pipe2(in, O_CLOEXEC), 0); /* else the next child holds this one's input */
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    posix_spawn_file_actions_t fa;
    posix_spawn_file_actions_init(&fa);
    posix_spawn_file_actions_adddup2(&fa, in[0], 0);
    posix_spawn_file_actions_adddup2(&fa, out[1], 1);
    char *argv[] = {SL_NET_PEER, (char *)transport, (char *)secret, (char *)mode, NULL};
    assert_int_equal(posix_spawn(&c.pid, SL_NET_PEER, &fa, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&fa);
    close(in[0]);
    close(out[1]);
    c.input = in[1];
    size_t n = 0;
    while (n < sizeof c.address - 1 && read(out[0], c.address + n, 1) == 1 && c.address[n] != '\n')
        n++;
    c.address[n] = 0;
    close(out[0]);
    assert_true(n > 0);
    return c;
}

static inline void reap_child(child *c, int want_signal) {
    int status = 0;
    close(c->input);
    uint64_t end_ns = sl_now_ns() + 30000000000ull;
    pid_t got = 0;
    while ((got = waitpid(c->pid, &status, WNOHANG)) == 0 && sl_now_ns() < end_ns)
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    if (got != c->pid) {
        kill(c->pid, SIGKILL);
        waitpid(c->pid, &status, 0);
        fail_msg("the peer process did not end");
    }
    if (want_signal)
        assert_int_equal(WTERMSIG(status), want_signal);
    else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("the peer process ended with status 0x%x", status);
}

static inline void start(peer *p, const char *transport, const char *secret) {
    sl_err err = {0};
    sl_net_opts o = peer_opts(p, NULL, sl_clock_real(), secret);
    o.transport = transport;
    o.host = "127.0.0.1";
    o.encrypt = SL_NET_WHEN_AUTO; /* and so is what goes to another machine */
    /* A hung process of this machine is borne for so long; net_peer's tcp plays another machine. */
    if (strcmp(transport, "tcp") != 0) o.silence_limit_us = SL_NET_DEAD_AFTER_US;
    if (sl_net_create(&o, &p->net, &err) != SL_OK) fail_msg("%s", err.msg);
}

static inline sl_conn *call(peer *p, const char *address) {
    sl_err err = {0};
    sl_conn *c = NULL;
    if (sl_net_connect(p->net, address, p, &c, &err) != SL_OK) fail_msg("%s", err.msg);
    return c;
}

/* Progress until *counter reaches `want`; milliseconds it took, fails after `limit_s`. */
static inline double until(peer *p, const int *counter, int want, int limit_s) {
    uint64_t begin_ns = sl_now_ns(), end_ns = begin_ns + (uint64_t)limit_s * 1000000000u;
    while (*counter < want) {
        if (sl_now_ns() > end_ns)
            fail_msg("%d of %d after %d s (opened %d, downs %d: %s)", *counter, want, limit_s,
                     p->opened, p->downs, p->text);
        if (!sl_net_progress(p->net)) sl_net_wait(p->net, 20000);
    }
    return (double)(sl_now_ns() - begin_ns) / 1e6;
}

/* ---- echo with checksums ---- */

#define ECHOES 10000u
#define WINDOW 32

typedef struct net_echo {
    uint64_t sum[ECHOES];
    uint32_t len[ECHOES];
    uint32_t next_in;
    uint64_t bytes;
} net_echo;

/* FNV over words: cheap enough for gigabytes, still notices any swapped or lost byte. */
static inline uint64_t checksum(const uint8_t *p, size_t n) {
    uint64_t h = 1469598103934665603ull + n, w;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        memcpy(&w, p + i, 8);
        h = (h ^ w) * 1099511628211ull;
    }
    for (; i < n; i++) h = (h ^ p[i]) * 1099511628211ull;
    return h;
}

static inline void on_echo(peer *p, sl_conn *c, const sl_wire_header *h, const sl_buf *payload) {
    (void)c;
    net_echo *e = p->extra;
    uint32_t i = e->next_in++;
    assert_int_equal(h->kind, SL_MSG_RETURN);
    assert_int_equal(h->round, i);
    assert_int_equal(payload ? payload->len : 0, e->len[i]);
    assert_true(checksum(payload ? payload->data : NULL, e->len[i]) == e->sum[i]);
    e->bytes += e->len[i];
}

/* Mostly small, every size class, now and then up to 4 MB. */
static inline uint32_t pick_len(uint64_t *rng) {
    uint64_t roll = sl_rng_below(rng, 1000);
    uint64_t cap = roll < 100   ? 1
                   : roll < 700 ? 2000
                   : roll < 950 ? 100000
                   : roll < 995 ? 1000000
                                : 4194305;
    return (uint32_t)sl_rng_below(rng, cap);
}

static inline void send_echo(peer *p, sl_conn *c, uint32_t i, uint64_t *rng) {
    net_echo *e = p->extra;
    uint32_t len = e->len[i] = pick_len(rng);
    sl_buf *b = len ? sl_net_buf_take(p->net, len) : NULL;
    uint64_t w = sl_rng_next(rng);
    for (size_t k = 0; k + 8 <= len;
         k += 8, w = w * 6364136223846793005ull + 1442695040888963407ull)
        memcpy(b->data + k, &w, 8);
    for (size_t k = len / 8 * 8; k < len; k++) b->data[k] = (uint8_t)(w >> (8 * (k % 8)));
    e->sum[i] = checksum(b ? b->data : NULL, len);
    sl_wire_header h = {.kind = SL_MSG_DISPATCH, .round = i};
    assert_int_equal(sl_net_send(p->net, c, h, b), SL_OK);
}

/* slots, bytes: of the window that this end opens, or none: 0. Returns how many messages it put. */
static inline uint64_t echo_with(const char *transport, const char *mode, uint32_t slots,
                                 size_t bytes) {
    const uint32_t echoes = ECHOES / take_one_in(SL_SLOW_BUILD ? 10 : 4);
    net_echo *e = calloc(1, sizeof *e);
    peer p = {.on_message = on_echo, .extra = e, .window_slots = slots, .window_bytes = bytes};
    child far = spawn(transport, KEY, mode);
    start(&p, transport, KEY);
    sl_conn *c = call(&p, far.address);
    double open_ms = until(&p, &p.opened, 1, 10);
    uint64_t rng = 42, begin_ns = sl_now_ns();
    for (uint32_t i = 0; i < echoes; i++) {
        send_echo(&p, c, i, &rng);
        if (p.messages + WINDOW <= (int)i) until(&p, &p.messages, (int)i + 1 - WINDOW, 60);
    }
    until(&p, &p.messages, (int)echoes, 60);
    double s = (double)(sl_now_ns() - begin_ns) / 1e9;
    printf("%s: opened in %.1f ms; %u messages, %.0f MB each way in %.2f s\n", transport, open_ms,
           echoes, (double)e->bytes / 1e6, s);
    assert_int_equal(p.downs, 0);
    const sl_window_stats by = sl_net_window_stats(p.net);
    sl_net_free(p.net);
    reap_child(&far, 0);
    free(e);
    if (slots) printf("by windows: %d of them, %d back\n", (int)by.put, (int)by.taken);
    return SL_MIN(by.put, by.taken);
}

static inline void echo_over(const char *transport) {
    assert_int_equal(echo_with(transport, "echo", 0, 0), 0);
}

/* ---- deaths ---- */

#define PEER_KILLS 6

/* Killed in the middle of its messages, again and again: a second peer of the same net must not
 * notice. */
static inline void killed_peer_with(const char *transport, const char *mode, uint32_t slots,
                                    size_t bytes) {
    peer p = {.window_slots = slots, .window_bytes = bytes};
    start(&p, transport, KEY);
    child other = spawn(transport, KEY, mode);
    sl_conn *survivor = call(&p, other.address);
    until(&p, &p.opened, 1, 10);
    double worst_ms = 0;
    for (int round = 0; round < PEER_KILLS; round++) {
        child far = spawn(transport, KEY, mode);
        sl_conn *c = call(&p, far.address);
        until(&p, &p.opened, round + 2, 10);
        p.messages = 0;
        for (int i = 0; i < 8; i++) {
            sl_buf *b = sl_net_buf_take(p.net, i % 2 && slots ? bytes : 3000000);
            memset(b->data, i, b->len);
            assert_int_equal(sl_net_send(p.net, c, (sl_wire_header){.kind = SL_MSG_DISPATCH}, b),
                             SL_OK);
        }
        until(&p, &p.messages, 1, 10);
        kill(far.pid, SIGKILL);
        double ms = until(&p, &p.downs, round + 1, 10);
        worst_ms = ms > worst_ms ? ms : worst_ms;
        assert_int_equal(p.why, SL_ERR_PEER_DOWN);
        assert_true(ms < 3000);
        reap_child(&far, SIGKILL);
        p.messages = 0;
        assert_int_equal(peer_send_u64(&p, survivor, SL_MSG_DISPATCH, 1000 + (uint64_t)round),
                         SL_OK);
        until(&p, &p.messages, 1, 10);
        assert_int_equal(p.value, 1000 + round);
    }
    printf("%s: %d peers killed, each reported within %.1f ms: %s\n", transport, PEER_KILLS,
           worst_ms, p.text);
    sl_net_free(p.net);
    reap_child(&other, 0);
}

static inline void killed_peer_over(const char *transport) {
    killed_peer_with(transport, "echo", 0, 0);
}

/* Waits for the end of a peer that says nothing. Two seconds on a calm machine, more the later this
 * process runs. */
static inline double await_silence(peer *p) {
    double ms = until(p, &p->downs, 1, 30);
    assert_int_equal(p->why, SL_ERR_TIMEOUT);
    assert_non_null(strstr(p->text, "silent for"));
    assert_true(ms > 1500);
    return ms;
}

static inline void mute_peer_over(const char *transport) {
    peer p = {0};
    child far = spawn(transport, KEY, "mute");
    start(&p, transport, KEY);
    sl_conn *c = call(&p, far.address);
    until(&p, &p.opened, 1, 10);
    assert_int_equal(peer_send_u64(&p, c, SL_MSG_DISPATCH, 1), SL_OK);
    double ms = await_silence(&p);
    printf("%s: silence reported after %.0f ms: %s\n", transport, ms, p.text);
    sl_net_free(p.net);
    kill(far.pid, SIGKILL);
    reap_child(&far, SIGKILL);
}

/* ---- silence with data in flight ---- */

#define IN_FLIGHT       8
#define IN_FLIGHT_BYTES 3000000u

/* Leaves megabytes on their way to c, some of them answered. */
static inline void fill_link(peer *p, sl_conn *c) {
    p->messages = 0;
    for (int i = 0; i < IN_FLIGHT; i++) {
        sl_buf *b = sl_net_buf_take(p->net, IN_FLIGHT_BYTES);
        memset(b->data, i, b->len);
        assert_int_equal(sl_net_send(p->net, c, (sl_wire_header){.kind = SL_MSG_DISPATCH}, b),
                         SL_OK);
    }
    until(p, &p->messages, 1, 10);
}

/* The end of c is due to our deadline alone: no transport tells. */
static inline void expect_silence(peer *p, const char *transport, const char *what) {
    double ms = await_silence(p);
    printf("%s: %s with data in flight, reported after %.0f ms: %s\n", transport, what, ms,
           p->text);
}

/* A peer that stops in the middle of its messages, and goes on when it is no longer wanted. */
static inline void stopped_peer_over(const char *transport) {
    peer p = {0};
    start(&p, transport, KEY);
    child far = spawn(transport, KEY, "echo"), other = spawn(transport, KEY, "echo");
    sl_conn *survivor = call(&p, other.address), *c = call(&p, far.address);
    until(&p, &p.opened, 2, 10);
    fill_link(&p, c);
    kill(far.pid, SIGSTOP);
    expect_silence(&p, transport, "peer stopped");
    p.messages = 0;
    assert_int_equal(peer_send_u64(&p, survivor, SL_MSG_DISPATCH, 4711), SL_OK);
    until(&p, &p.messages, 1, 10);
    assert_int_equal(p.value, 4711);
    kill(far.pid, SIGCONT);
    until(&p, &p.opened, 2, 1);
    call(&p, far.address); /* it may come back */
    until(&p, &p.opened, 3, 10);
    assert_int_equal(p.downs, 1);
    sl_net_free(p.net);
    reap_child(&far, 0);
    reap_child(&other, 0);
}

static inline void wrong_secret_over(const char *transport) {
    peer p = {0};
    child far = spawn(transport, "some other key of the tests", "echo");
    start(&p, transport, KEY);
    call(&p, far.address);
    until(&p, &p.downs, 1, 10);
    assert_int_equal(p.why, SL_ERR_AUTH);
    assert_int_equal(p.opened, 0);
    sl_net_free(p.net);
    reap_child(&far, 0);
}

static inline void self_and_bye_over(const char *transport) {
    peer p = {0};
    child far = spawn(transport, KEY, "echo");
    start(&p, transport, KEY);
    call(&p, sl_net_address(p.net));
    until(&p, &p.opened, 2, 10);
    sl_conn *c = call(&p, far.address);
    until(&p, &p.opened, 3, 10);
    assert_int_equal(peer_send_u64(&p, c, SL_MSG_SUBMIT, 1), SL_OK); /* answered with ERROR */
    assert_int_equal(peer_send_u64(&p, c, SL_MSG_DISPATCH, 77), SL_OK);
    until(&p, &p.messages, 1, 10);
    assert_int_equal(p.value, 77);
    close(far.input); /* it leaves with BYE */
    until(&p, &p.downs, 1, 10);
    assert_int_equal(p.why, SL_OK);
    assert_non_null(strstr(p.text, "leaving"));
    far.input = -1;
    sl_net_free(p.net);
    reap_child(&far, 0);
}

/* Makes cmocka tests of the shared cases. */
#define NET_CASE(name, transport)                                                                  \
    static void name(void **state) {                                                               \
        (void)state;                                                                               \
        name##_over(transport);                                                                    \
    }
#define NET_CASES(transport)                                                                       \
    NET_CASE(echo, transport)                                                                      \
    NET_CASE(killed_peer, transport)                                                               \
    NET_CASE(mute_peer, transport)                                                                 \
    NET_CASE(stopped_peer, transport)                                                              \
    NET_CASE(wrong_secret, transport)                                                              \
    NET_CASE(self_and_bye, transport)

#endif
