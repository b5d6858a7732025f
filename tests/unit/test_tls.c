/* The front of HTTPS and a client's session with it: bytes in both directions, ends of either side,
 * who does not read, memory that is not there. What real clients do: tests/api/test_tls.py. */
#include "tls/tls.h"

#include "base/clock.h"
#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <gnutls/x509.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LIMIT_NS 20000000000ull

static char cert_pem[4096], key_pem[4096], other_key_pem[4096], trusted[64];
static sl_tls_pair *pair;
static sl_tls_front *front;

/* ---- a certificate that signs itself ---- */

static gnutls_x509_privkey_t make_key(char *pem, size_t cap) {
    gnutls_x509_privkey_t key;
    assert_int_equal(gnutls_x509_privkey_init(&key), 0);
    assert_int_equal(gnutls_x509_privkey_generate(
                         key, GNUTLS_PK_ECDSA, GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1), 0),
                     0);
    assert_int_equal(gnutls_x509_privkey_export(key, GNUTLS_X509_FMT_PEM, pem, &cap), 0);
    return key;
}

static void make_certificate(gnutls_x509_privkey_t key) {
    gnutls_x509_crt_t cert;
    size_t cap = sizeof cert_pem;
    const uint8_t serial = 1, loopback[4] = {127, 0, 0, 1};
    assert_int_equal(gnutls_x509_crt_init(&cert), 0);
    assert_int_equal(gnutls_x509_crt_set_version(cert, 3), 0);
    assert_int_equal(gnutls_x509_crt_set_serial(cert, &serial, 1), 0);
    assert_int_equal(gnutls_x509_crt_set_activation_time(cert, time(NULL) - 60), 0);
    assert_int_equal(gnutls_x509_crt_set_expiration_time(cert, time(NULL) + 3600), 0);
    assert_int_equal(gnutls_x509_crt_set_dn(cert, "CN=localhost", NULL), 0);
    assert_int_equal(gnutls_x509_crt_set_subject_alt_name(cert, GNUTLS_SAN_IPADDRESS, loopback, 4,
                                                          GNUTLS_FSAN_SET),
                     0);
    assert_int_equal(gnutls_x509_crt_set_key(cert, key), 0);
    assert_int_equal(gnutls_x509_crt_sign2(cert, cert, key, GNUTLS_DIG_SHA256, 0), 0);
    assert_int_equal(gnutls_x509_crt_export(cert, GNUTLS_X509_FMT_PEM, cert_pem, &cap), 0);
    gnutls_x509_crt_deinit(cert);
}

static sl_tls_text text(const char *name, const char *pem) {
    return (sl_tls_text){name, {(const uint8_t *)pem, strlen(pem)}};
}

static int set_up(void **state) {
    (void)state;
    sl_err err = {0};
    gnutls_x509_privkey_t key = make_key(key_pem, sizeof key_pem);
    make_certificate(key);
    gnutls_x509_privkey_deinit(key);
    gnutls_x509_privkey_deinit(make_key(other_key_pem, sizeof other_key_pem));
    strcpy(trusted, "/tmp/sluice-test-tls-XXXXXX");
    int fd = mkstemp(trusted);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, cert_pem, strlen(cert_pem)), strlen(cert_pem));
    close(fd);
    const sl_tls_text c = text("cert", cert_pem), k = text("key", key_pem);
    assert_int_equal(sl_tls_pair_open(&c, &k, &pair, &err), SL_OK);
    assert_int_equal(sl_tls_front_start(pair, &front, &err), SL_OK);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    sl_tls_front_stop(front);
    sl_tls_pair_unref(pair);
    unlink(trusted);
    return 0;
}

/* ---- a client and the server's end ---- */

typedef struct both {
    int client, plain;
    sl_tls_session *tls;
} both;

static both connect_both(void) {
    both b;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&a, n), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&a, &n), 0);
    b.client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(b.client, (struct sockaddr *)&a, n), 0);
    int fd = accept4(listener, (struct sockaddr *)&a, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
    close(listener);
    b.plain = sl_tls_front_take(front, fd, (struct sockaddr *)&a);
    b.tls = NULL;
    return b;
}

static void await(int fd, short events) {
    struct pollfd p = {.fd = fd, .events = events};
    assert_int_equal(poll(&p, 1, (int)(LIMIT_NS / 1000000)), 1);
}

static void close_both(both *b) {
    sl_tls_session_free(b->tls);
    close(b->client);
    if (b->plain >= 0) close(b->plain);
}

static void client_sends(both *b, const uint8_t *data, size_t n) {
    sl_err err = {0};
    short wants;
    while (n > 0) {
        size_t went = n;
        sl_status st = sl_tls_session_send(b->tls, data, &went, &wants, &err);
        assert_true(st == SL_OK || st == SL_ERR_AGAIN);
        if (st != SL_OK) await(b->client, wants);
        data += went;
        n -= went;
    }
}

/* Up to n bytes; fewer: the end. */
static size_t client_hears(both *b, uint8_t *data, size_t n) {
    sl_err err = {0};
    short wants;
    size_t had = 0;
    while (had < n) {
        size_t got = n - had;
        sl_status st = sl_tls_session_receive(b->tls, data + had, &got, &wants, &err);
        if (st != SL_OK && st != SL_ERR_AGAIN) printf("%s\n", err.msg);
        assert_true(st == SL_OK || st == SL_ERR_AGAIN);
        if (st != SL_OK) await(b->client, wants);
        if (st == SL_OK && got == 0) break;
        had += got;
    }
    return had;
}

static size_t server_hears(int fd, uint8_t *data, size_t n) {
    size_t had = 0;
    while (had < n) {
        await(fd, POLLIN);
        ssize_t got = recv(fd, data + had, n - had, 0);
        if (got == 0) break;
        assert_true(got > 0 || errno == EAGAIN);
        had += got > 0 ? (size_t)got : 0;
    }
    return had;
}

/* A session that has begun at both ends: the client is through first. */
static both shaken(void) {
    both b = connect_both();
    sl_err err = {0};
    sl_status st;
    short wants;
    uint8_t byte = 1;
    assert_true(b.plain >= 0);
    st = sl_tls_session_open(b.client, "127.0.0.1", trusted, &b.tls, &err);
    assert_int_equal(st, SL_OK);
    while ((st = sl_tls_session_shake(b.tls, &wants, &err)) == SL_ERR_AGAIN) await(b.client, wants);
    if (st != SL_OK) printf("%s\n", err.msg);
    assert_int_equal(st, SL_OK);
    client_sends(&b, &byte, 1);
    assert_int_equal(server_hears(b.plain, &byte, 1), 1);
    return b;
}

/* ---- tests ---- */

static void bytes_come_through(void **state) {
    (void)state;
    enum { N = 40000 };
    static uint8_t said[N], heard[N];
    both b = shaken();
    for (size_t i = 0; i < N; i++) said[i] = (uint8_t)(i * 31 + i / 256);
    for (size_t n = 1; n <= N; n = 3 * n + 1) { /* from one byte to several records */
        client_sends(&b, said, n);
        assert_int_equal(server_hears(b.plain, heard, n), n);
        assert_memory_equal(said, heard, n);
        for (size_t at = 0; at < n;) {
            ssize_t went = send(b.plain, said + at, n - at, MSG_NOSIGNAL);
            if (went < 0) await(b.plain, POLLOUT);
            at += went > 0 ? (size_t)went : 0;
        }
        assert_int_equal(client_hears(&b, heard, n), n);
        assert_memory_equal(said, heard, n);
    }
    close_both(&b);
    sl_tls_front_stats s = sl_tls_front_stats_get(front);
    assert_int_equal(s.n_shaken, 1);
    assert_int_equal(s.n_failed, 0);
    assert_true(s.ends_s > time(NULL));
}

/* What the server said last comes whole, with the word that it was the last. */
static void the_server_ends(void **state) {
    (void)state;
    uint8_t heard[64];
    both b = shaken();
    assert_int_equal(send(b.plain, "the end", 7, MSG_NOSIGNAL), 7);
    close(b.plain);
    b.plain = -1;
    assert_int_equal(client_hears(&b, heard, sizeof heard), 7);
    assert_memory_equal(heard, "the end", 7);
    close_both(&b);
}

static void the_client_ends(void **state) {
    (void)state;
    uint8_t heard[64];
    for (int how = 0; how < 3; how++) { /* with a word, without, by a reset */
        both b = shaken();
        client_sends(&b, (const uint8_t *)"last", 4);
        assert_int_equal(server_hears(b.plain, heard, 4), 4);
        const struct linger reset = {1, 0};
        if (how == 2) setsockopt(b.client, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        if (how == 0) sl_tls_session_free(b.tls), b.tls = NULL;
        close(b.client);
        assert_int_equal(server_hears(b.plain, heard, sizeof heard), 0);
        b.client = -1;
        /* what the session still has to say goes nowhere */
        close_both(&b);
    }
}

/* Neither side's bytes pile up for the other. */
static void who_does_not_read_is_waited_for(void **state) {
    (void)state;
    enum { MOST = 16 << 20 };
    static uint8_t part[8192];
    both b = shaken();
    size_t said = 0, heard = 0;
    for (int calm = 0; calm < 20 && said < MOST;) {
        ssize_t went = send(b.plain, part, sizeof part, MSG_NOSIGNAL);
        calm = went > 0 ? 0 : calm + 1;
        if (went > 0)
            said += (size_t)went;
        else
            usleep(5000);
    }
    assert_in_range(said, 1, MOST - 1);
    while (heard < said) {
        size_t n = client_hears(&b, part, said - heard < sizeof part ? said - heard : sizeof part);
        assert_true(n > 0);
        heard += n;
    }
    close_both(&b);
}

/* Of each allocation of a connection: it ends, and the next one is served. */
static void without_memory_a_connection_ends(void **state) {
    (void)state;
    uint8_t heard[4];
    for (uint64_t nth = 1; nth <= 4; nth++) {
        sl_mem_fail_at(nth);
        both b = connect_both();
        sl_err err = {0};
        sl_status st = sl_tls_session_open(b.client, "127.0.0.1", trusted, &b.tls, &err);
        sl_mem_fail_at(0);
        if (b.plain < 0) assert_int_equal(nth, 1);
        if (st != SL_OK) assert_int_equal(err.code, SL_ERR_NOMEM);
        close_both(&b);
        b = shaken();
        client_sends(&b, (const uint8_t *)"here", 4);
        assert_int_equal(server_hears(b.plain, heard, 4), 4);
        close_both(&b);
    }
    sl_tls_pair *none = NULL;
    sl_err err = {0};
    const sl_tls_text c = text("cert", cert_pem), k = text("key", key_pem);
    sl_mem_fail_at(1);
    assert_int_equal(sl_tls_pair_open(&c, &k, &none, &err), SL_ERR_NOMEM);
    sl_mem_fail_at(0);
}

static void keys_of_others_and_strangers_are_refused(void **state) {
    (void)state;
    sl_err err = {0};
    sl_tls_pair *none = NULL;
    sl_tls_text c = text("cert", cert_pem), k = text("key", other_key_pem);
    assert_int_equal(sl_tls_pair_open(&c, &k, &none, &err), SL_ERR_ARG);
    assert_string_equal(err.msg, "key: is not the key of the certificate of cert");
    k = text("key", "");
    assert_int_equal(sl_tls_pair_open(&c, &k, &none, &err), SL_ERR_ARG);
    assert_non_null(strstr(err.msg, "key: is no private key as PEM"));
    c = text("cert", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    assert_int_equal(sl_tls_pair_open(&c, &k, &none, &err), SL_ERR_ARG);
    assert_non_null(strstr(err.msg, "cert: is no certificate as PEM"));
    both b = connect_both();
    short wants;
    sl_status st = sl_tls_session_open(b.client, "127.0.0.2", trusted, &b.tls, &err);
    assert_int_equal(st, SL_OK);
    while ((st = sl_tls_session_shake(b.tls, &wants, &err)) == SL_ERR_AGAIN) await(b.client, wants);
    assert_int_equal(st, SL_ERR_AUTH);
    assert_non_null(strstr(err.msg, "The name in the certificate does not match"));
    close_both(&b);
}

/* Its clients are told, and it does not wait for those that do not listen. */
static void a_stop_is_soon(void **state) {
    (void)state;
    both silent = connect_both(), open = shaken();
    const uint64_t began = sl_now_ns();
    close(open.plain);
    close(silent.plain);
    open.plain = silent.plain = -1;
    sl_tls_front_stop(front);
    front = NULL;
    assert_true(sl_now_ns() - began < 2500000000ull);
    uint8_t heard;
    assert_int_equal(client_hears(&open, &heard, 1), 0);
    close_both(&open);
    close_both(&silent);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {TEST(bytes_come_through),
                                       TEST(the_server_ends),
                                       TEST(the_client_ends),
                                       TEST(who_does_not_read_is_waited_for),
                                       TEST(without_memory_a_connection_ends),
                                       TEST(keys_of_others_and_strangers_are_refused),
                                       TEST(a_stop_is_soon)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
