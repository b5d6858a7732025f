/* The UCX transports between processes, on loopback. usage: test_net_ucx shm|tcp */
#include "unit/net_harness.h"

#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include "base/rng.h"

extern char **environ;

typedef struct child {
    pid_t pid;
    int input;
    char address[96];
} child;

static child spawn(const char *transport, const char *secret, const char *mode) {
    child c = {0};
    int in[2], out[2];
    assert_int_equal(pipe(in), 0);
    assert_int_equal(pipe(out), 0);
    posix_spawn_file_actions_t fa;
    posix_spawn_file_actions_init(&fa);
    posix_spawn_file_actions_adddup2(&fa, in[0], 0);
    posix_spawn_file_actions_adddup2(&fa, out[1], 1);
    for (int i = 0; i < 2; i++) {
        posix_spawn_file_actions_addclose(&fa, in[i]);
        posix_spawn_file_actions_addclose(&fa, out[i]);
    }
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

static void reap_child(child *c, int want_signal) {
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

static void start(peer *p, const char *transport, const char *secret) {
    sl_err err = {0};
    sl_net_opts o = peer_opts(p, NULL, sl_clock_real(), secret);
    o.transport = transport;
    o.host = "127.0.0.1";
    if (sl_net_create(&o, &p->net, &err) != SL_OK) fail_msg("%s", err.msg);
}

static sl_conn *call(peer *p, const char *address) {
    sl_err err = {0};
    sl_conn *c = NULL;
    if (sl_net_connect(p->net, address, p, &c, &err) != SL_OK) fail_msg("%s", err.msg);
    return c;
}

/* Progress until *counter reaches `want`; milliseconds it took, fails after `limit_s`. */
static double until(peer *p, const int *counter, int want, int limit_s) {
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

#define ECHOES 10000
#define WINDOW 32

typedef struct echo {
    uint64_t sum[ECHOES];
    uint32_t len[ECHOES];
    uint32_t next_in;
    uint64_t bytes;
} echo;

/* FNV over words: cheap enough for gigabytes, still notices any swapped or lost byte. */
static uint64_t checksum(const uint8_t *p, size_t n) {
    uint64_t h = 1469598103934665603ull + n, w;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        memcpy(&w, p + i, 8);
        h = (h ^ w) * 1099511628211ull;
    }
    for (; i < n; i++) h = (h ^ p[i]) * 1099511628211ull;
    return h;
}

static void on_echo(peer *p, sl_conn *c, const sl_wire_header *h, const sl_buf *payload) {
    (void)c;
    echo *e = p->extra;
    uint32_t i = e->next_in++;
    assert_int_equal(h->kind, SL_MSG_RETURN);
    assert_int_equal(h->round, i);
    assert_int_equal(payload ? payload->len : 0, e->len[i]);
    assert_true(checksum(payload ? payload->data : NULL, e->len[i]) == e->sum[i]);
    e->bytes += e->len[i];
}

/* Mostly small, every size class, now and then up to 4 MB. */
static uint32_t pick_len(uint64_t *rng) {
    uint64_t roll = sl_rng_below(rng, 1000);
    uint64_t cap = roll < 100   ? 1
                   : roll < 700 ? 2000
                   : roll < 950 ? 100000
                   : roll < 995 ? 1000000
                                : 4194305;
    return (uint32_t)sl_rng_below(rng, cap);
}

static void send_echo(peer *p, sl_conn *c, uint32_t i, uint64_t *rng) {
    echo *e = p->extra;
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

static void echo_over(const char *transport) {
    echo *e = calloc(1, sizeof *e);
    peer p = {.on_message = on_echo, .extra = e};
    child far = spawn(transport, "key", "echo");
    start(&p, transport, "key");
    sl_conn *c = call(&p, far.address);
    double open_ms = until(&p, &p.opened, 1, 10);
    uint64_t rng = 42, begin_ns = sl_now_ns();
    for (uint32_t i = 0; i < ECHOES; i++) {
        send_echo(&p, c, i, &rng);
        if (p.messages + WINDOW <= (int)i) until(&p, &p.messages, (int)i + 1 - WINDOW, 60);
    }
    until(&p, &p.messages, ECHOES, 60);
    double s = (double)(sl_now_ns() - begin_ns) / 1e9;
    printf("%s: opened in %.1f ms; %d messages, %.0f MB each way in %.2f s\n", transport, open_ms,
           ECHOES, (double)e->bytes / 1e6, s);
    assert_int_equal(p.downs, 0);
    sl_net_free(p.net);
    reap_child(&far, 0);
    free(e);
}

/* ---- deaths ---- */

#define KILLS 6

/* Killed in the middle of its messages, again and again: a second peer of the same net must not
 * notice. */
static void killed_peer_over(const char *transport) {
    peer p = {0};
    start(&p, transport, "key");
    child other = spawn(transport, "key", "echo");
    sl_conn *survivor = call(&p, other.address);
    until(&p, &p.opened, 1, 10);
    double worst_ms = 0;
    for (int round = 0; round < KILLS; round++) {
        child far = spawn(transport, "key", "echo");
        sl_conn *c = call(&p, far.address);
        until(&p, &p.opened, round + 2, 10);
        p.messages = 0;
        for (int i = 0; i < 8; i++) {
            sl_buf *b = sl_net_buf_take(p.net, 3000000);
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
    printf("%s: %d peers killed, each reported within %.1f ms: %s\n", transport, KILLS, worst_ms,
           p.text);
    sl_net_free(p.net);
    reap_child(&other, 0);
}

static void mute_peer_over(const char *transport) {
    peer p = {0};
    child far = spawn(transport, "key", "mute");
    start(&p, transport, "key");
    sl_conn *c = call(&p, far.address);
    until(&p, &p.opened, 1, 10);
    assert_int_equal(peer_send_u64(&p, c, SL_MSG_DISPATCH, 1), SL_OK);
    double ms = until(&p, &p.downs, 1, 10);
    printf("%s: silence reported after %.0f ms: %s\n", transport, ms, p.text);
    assert_int_equal(p.why, SL_ERR_TIMEOUT);
    assert_true(ms > 1500 && ms < 4000);
    sl_net_free(p.net);
    kill(far.pid, SIGKILL);
    reap_child(&far, SIGKILL);
}

static void refusals_over(const char *transport) {
    peer p = {0};
    child far = spawn(transport, "other key", "echo");
    start(&p, transport, "key");
    call(&p, far.address);
    until(&p, &p.downs, 1, 10);
    assert_int_equal(p.why, SL_ERR_AUTH);
    call(&p, "127.0.0.1:1"); /* nobody listens */
    until(&p, &p.downs, 2, 10);
    printf("%s: nobody listens: %s\n", transport, p.text);
    assert_int_equal(p.opened, 0);
    sl_conn *c = NULL;
    sl_err err = {0};
    assert_int_equal(sl_net_connect(p.net, "127.0.0.1", NULL, &c, &err), SL_ERR_ARG);
    assert_int_equal(sl_net_connect(p.net, "127.0.0.1:70000", NULL, &c, &err), SL_ERR_ARG);
    assert_int_equal(sl_net_connect(p.net, "127.0.0.1:x", NULL, &c, &err), SL_ERR_ARG);
    sl_net_opts o = peer_opts(&p, NULL, sl_clock_real(), "key");
    sl_net *second = NULL;
    o.transport = transport;
    o.host = "127.0.0.1";
    o.port = (uint16_t)atoi(strrchr(sl_net_address(p.net), ':') + 1);
    assert_true(o.port < 32768);
    assert_int_equal(sl_net_create(&o, &second, &err), SL_ERR_IO);
    sl_net_free(p.net);
    reap_child(&far, 0);
}

static void self_and_bye_over(const char *transport) {
    peer p = {0};
    child far = spawn(transport, "key", "echo");
    start(&p, transport, "key");
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

/* ---- a peer that speaks UCX but not our handshake ---- */

typedef struct rogue {
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_ep_h ep;
    bool dropped;
} rogue;

static void rogue_error(void *arg, ucp_ep_h ep, ucs_status_t status) {
    (void)ep, (void)status;
    ((rogue *)arg)->dropped = true;
}

static ucs_status_t rogue_hears(void *arg, const void *header, size_t header_length, void *data,
                                size_t length, const ucp_am_recv_param_t *param) {
    (void)arg, (void)header, (void)header_length, (void)data, (void)length, (void)param;
    return UCS_OK;
}

static void rogue_open(rogue *r, const char *address) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    a.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
    ucp_params_t p = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_AM};
    ucp_worker_params_t wp = {0};
    ucp_ep_params_t ep = {
        .field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
        .sockaddr = {.addr = (struct sockaddr *)&a, .addrlen = sizeof a},
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = rogue_error, .arg = r},
    };
    memset(r, 0, sizeof *r);
    assert_int_equal(ucp_init(&p, NULL, &r->context), UCS_OK);
    assert_int_equal(ucp_worker_create(r->context, &wp, &r->worker), UCS_OK);
    ucp_am_handler_param_t am = {.field_mask =
                                     UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB,
                                 .id = 1,
                                 .cb = rogue_hears};
    assert_int_equal(ucp_worker_set_am_recv_handler(r->worker, &am), UCS_OK);
    assert_int_equal(ucp_ep_create(r->worker, &ep, &r->ep), UCS_OK);
}

static void rogue_close(rogue *r, ucs_status_ptr_t *sent, int count) {
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_EP_CLOSE_FLAG_FORCE};
    ucs_status_ptr_t p = ucp_ep_close_nbx(r->ep, &param);
    while (UCS_PTR_IS_PTR(p) && ucp_request_check_status(p) == UCS_INPROGRESS)
        ucp_worker_progress(r->worker);
    if (UCS_PTR_IS_PTR(p)) ucp_request_free(p);
    for (int i = 0; i < count; i++)
        if (UCS_PTR_IS_PTR(sent[i])) ucp_request_free(sent[i]);
    ucp_worker_destroy(r->worker);
    ucp_cleanup(r->context);
}

/* Sends `count` messages with that header and payload; the net must end the connection, saying
 * `want`. */
static void rogue_sends(peer *p, unsigned id, int count, const void *header, size_t header_length,
                        size_t length, const char *want) {
    rogue r;
    ucs_status_ptr_t sent[16] = {0};
    uint8_t *bytes = calloc(1, length + 1);
    int downs = p->downs;
    uint64_t end_ns = sl_now_ns() + 10000000000ull;
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_AM_SEND_FLAG_REPLY};
    rogue_open(&r, sl_net_address(p->net));
    for (int i = 0; i < count; i++)
        sent[i] = ucp_am_send_nbx(r.ep, id, header, header_length, bytes, length, &param);
    while (p->downs == downs && sl_now_ns() < end_ns) {
        ucp_worker_progress(r.worker);
        sl_net_progress(p->net);
    }
    assert_int_equal(p->downs, downs + 1);
    if (!strstr(p->text, want))
        fail_msg("%d of %zu bytes: '%s' (%d), expected '%s'", count, length, p->text, p->why, want);
    while (!r.dropped && sl_now_ns() < end_ns) {
        ucp_worker_progress(r.worker);
        sl_net_progress(p->net);
    }
    assert_true(r.dropped);
    rogue_close(&r, sent, count);
    free(bytes);
}

static void rogue_over(const char *transport) {
    peer p = {0};
    uint8_t header[SL_WIRE_HEADER_BYTES];
    start(&p, transport, "key");
    p.net->dead_after_us = 1000000; /* before the handshake's own deadline */
    sl_wire_header h = {.kind = SL_MSG_HELLO, .incarnation = 9, .seq = 1, .bytes = 248};
    sl_wire_header_encode(&h, header);
    rogue_sends(&p, 1, 1, header, 71, 248, "header of the wrong size");
    rogue_sends(&p, 1, 1, header, 0, 248, "header of the wrong size");
    rogue_sends(&p, 1, 1, header, 72, 4097, "payload over the limit");
    rogue_sends(&p, 1, 1, header, 72, 20u << 20, "payload over the limit");
    rogue_sends(&p, 1, 1, header, 72, 247, "header says 248 payload bytes, 247 came");
    rogue_sends(&p, 1, 1, header, 72, 248, "incarnation 0, header says 9");
    h.seq = 7;
    sl_wire_header_encode(&h, header);
    rogue_sends(&p, 1, 12, header, 72, 248, "too many messages before authentication");
    rogue_sends(&p, 1, 1, header, 72, 248, "sequence number is missing");
    const unsigned ids[] = {2, 4096, 65535}; /* not ours: nothing is heard */
    for (size_t i = 0; i < SL_LEN(ids); i++)
        rogue_sends(&p, ids[i], 1, header, 72, i % 2 ? 248 : 1000000, "within 2 s");
    assert_int_equal(p.opened, 0);
    assert_int_equal(p.messages, 0);
    assert_int_equal(p.net->n_pending, 0);
    sl_net_free(p.net);
}

#define BOTH(name)                                                                                 \
    static void name##_shm(void **state) {                                                         \
        (void)state;                                                                               \
        name##_over("shm");                                                                        \
    }                                                                                              \
    static void name##_tcp(void **state) {                                                         \
        (void)state;                                                                               \
        name##_over("tcp");                                                                        \
    }
BOTH(echo)
BOTH(killed_peer)
BOTH(mute_peer)
BOTH(refusals)
BOTH(self_and_bye)
BOTH(rogue)

/* The transport is a matter of the whole process: each run of this program tests one. */
int main(int argc, char **argv) {
    const char *transport = argc > 1 ? argv[1] : "tcp";
    alarm(200);
    sl_net_setup_process(transport);
    const struct CMUnitTest shm[] = {
        cmocka_unit_test(echo_shm),         cmocka_unit_test(killed_peer_shm),
        cmocka_unit_test(mute_peer_shm),    cmocka_unit_test(refusals_shm),
        cmocka_unit_test(self_and_bye_shm), cmocka_unit_test(rogue_shm),
    };
    const struct CMUnitTest tcp[] = {
        cmocka_unit_test(echo_tcp),         cmocka_unit_test(killed_peer_tcp),
        cmocka_unit_test(mute_peer_tcp),    cmocka_unit_test(refusals_tcp),
        cmocka_unit_test(self_and_bye_tcp), cmocka_unit_test(rogue_tcp),
    };
    return strcmp(transport, "shm") == 0 ? cmocka_run_group_tests(shm, NULL, NULL)
                                         : cmocka_run_group_tests(tcp, NULL, NULL);
}
