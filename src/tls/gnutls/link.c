/* One client of the front: the handshake, records in both directions, the end of either side. */
#include "tls/gnutls/front_int.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define MOST_RECORDS 16          /* of a link in a row: others wait */
#define SHAKE_NS     10000000000 /* for the whole handshake */
#define LAST_NS      30000000000 /* for the client to take more of what the server said at last */
#define SHUT_NS      2000000000  /* for the client to close, too */

/* ---- its life ---- */

sl_tls_link *sl_tls_link_create(int net, int plain, sl_tls_pair *pair,
                                const struct sockaddr *from) {
    const int one = 1;
    sl_tls_link *l = sl_alloc(1, sizeof *l);
    if (!l) {
        close(net);
        close(plain);
        sl_tls_pair_unref(pair);
        return NULL;
    }
    *l = (sl_tls_link){.net = net, .plain = plain, .pair = pair};
    l->until_ns = sl_now_ns() + SHAKE_NS;
    memcpy(&l->from, from,
           from->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof l->from);
    /* failing only delays small records a little */
    (void)setsockopt(net, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return l;
}

void sl_tls_link_free(sl_tls_link *l) {
    if (l->session) gnutls_deinit(l->session);
    sl_tls_pair_unref(l->pair);
    close(l->net);
    close(l->plain);
    sl_free(l->held);
    sl_free(l);
}

const char *sl_tls_link_from(const sl_tls_link *l, char out[INET6_ADDRSTRLEN]) {
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)&l->from;
    const bool v6 = l->from.sin6_family == AF_INET6;
    const void *address = v6 ? (const void *)&l->from.sin6_addr : &v4->sin_addr;
    return inet_ntop(l->from.sin6_family, address, out, INET6_ADDRSTRLEN) ? out : "?";
}

/* Our side of `net` is closed. A socket that is closed with bytes unread would be reset, and what
 * is still on its way to the client with it. */
static void shut(sl_tls_link *l) {
    shutdown(l->net, SHUT_WR);
    shutdown(l->plain, SHUT_RDWR);
    l->stage = SL_TLS_SHUT;
    l->leaving = true;
    l->until_ns = sl_now_ns() + SHUT_NS;
}

static bool is_gone(int code) {
    return code == GNUTLS_E_PULL_ERROR || code == GNUTLS_E_PUSH_ERROR ||
           code == GNUTLS_E_PREMATURE_TERMINATION;
}

/* What a code of GnuTLS says of a client. */
static const char *reason(const sl_tls_link *l, int code) {
    if (is_gone(code)) return "it left";
    /* some send their alert in the clear when the other side waits for encrypted records already */
    if (code == GNUTLS_E_DECRYPTION_FAILED && l->stage == SL_TLS_SHAKES)
        return "what it sends cannot be decrypted; so it looks when a client does not trust the "
               "certificate";
    return sl_tls_reason(l->session, code);
}

/* The session cannot go on. Clients that leave without a word are many, and no news. */
static void fail(sl_tls_link *l, int code) {
    char from[INET6_ADDRSTRLEN];
    const bool shakes = l->stage == SL_TLS_SHAKES;
    sl_log(shakes ? SL_LOG_INFO : SL_LOG_DEBUG, "tls", "%s with %s: %s",
           shakes ? "no session" : "the end of a session", sl_tls_link_from(l, from),
           reason(l, code));
    if (shakes) l->greeting = SL_TLS_FAILED;
    if (is_gone(code)) {
        l->stage = SL_TLS_OVER;
        return;
    }
    /* what does not fit now is not worth waiting for */
    if (gnutls_alert_send_appropriate(l->session, code) != 0)
        sl_log(SL_LOG_DEBUG, "tls", "%s: not told", from);
    shut(l);
}

void sl_tls_link_expire(sl_tls_link *l) {
    char from[INET6_ADDRSTRLEN];
    if (l->stage <= SL_TLS_SHAKES) {
        l->greeting = SL_TLS_FAILED;
        sl_log(SL_LOG_INFO, "tls", "no session with %s: %s", sl_tls_link_from(l, from),
               "its handshake takes too long");
    }
    l->stage = SL_TLS_OVER;
}

/* ---- the handshake ---- */

/* A client that speaks HTTP in the clear hears that, as nothing it could read would follow. */
static void answer_in_clear(sl_tls_link *l) {
    static const char body[] =
        "{\"error\":{\"message\":\"this port speaks HTTPS, and plain HTTP came: the URL begins "
        "with https://\",\"type\":\"invalid_request_error\",\"param\":null,\"code\":"
        "\"https_only\"}}";
    char answer[512];
    const int n = snprintf(answer, sizeof answer,
                           "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n"
                           "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                           sizeof body - 1, body);
    l->greeting = SL_TLS_IN_CLEAR;
    if (send(l->net, answer, (size_t)n, MSG_NOSIGNAL) != n)
        sl_log(SL_LOG_DEBUG, "tls", "plain HTTP: not told");
    shut(l);
}

/* The first byte is here: whether it is of TLS, and there is a session. */
static bool greet(sl_tls_link *l) {
    uint8_t first;
    const ssize_t n = recv(l->net, &first, 1, MSG_PEEK);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (n <= 0) {
        l->stage = SL_TLS_OVER; /* a probe that only connects */
        return false;
    }
    if (first >= 'A' && first <= 'Z') { /* of a method; what is no HTTP is GnuTLS's to refuse */
        answer_in_clear(l);
        return false;
    }
    l->stage = SL_TLS_SHAKES;
    int rc = gnutls_init(&l->session, GNUTLS_SERVER | GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL);
    if (rc != 0) {
        l->session = NULL;
        l->stage = SL_TLS_OVER;
        return false;
    }
    rc = sl_tls_set_up(l->session);
    if (rc == 0) rc = gnutls_credentials_set(l->session, GNUTLS_CRD_CERTIFICATE, l->pair->cred);
    gnutls_certificate_server_set_request(l->session, GNUTLS_CERT_IGNORE);
    gnutls_handshake_set_timeout(l->session,
                                 GNUTLS_INDEFINITE_TIMEOUT); /* the front's own counts */
    gnutls_transport_set_int(l->session, l->net);
    if (rc != 0) fail(l, rc);
    return rc == 0;
}

static void shake(sl_tls_link *l) {
    if (l->stage == SL_TLS_NEW && !greet(l)) return;
    int rc = GNUTLS_E_INTERRUPTED;
    for (int i = 0; i < MOST_RECORDS && rc != 0 && !gnutls_error_is_fatal(rc); i++) {
        rc = gnutls_handshake(l->session);
        if (rc == GNUTLS_E_AGAIN) return;
    }
    if (rc != 0) { /* warnings without an end are none */
        fail(l, rc);
        return;
    }
    l->stage = SL_TLS_OPEN;
    l->greeting = SL_TLS_SHAKEN;
    l->until_ns = 0;
}

/* ---- from the client to the server ---- */

/* As much as fits; the rest is held. False: no memory, or nobody hears it. */
static bool give(sl_tls_link *l, const uint8_t *data, size_t n) {
    while (n > 0) {
        const ssize_t went = send(l->plain, data, n, MSG_NOSIGNAL);
        if (went < 0 && errno == EINTR) continue;
        if (went < 0 && errno != EAGAIN) return false;
        if (went < 0) break;
        data += went;
        n -= (size_t)went;
    }
    if (n == 0) return true;
    l->plain_out = false;
    l->held = sl_alloc(n, 1);
    if (!l->held) return false;
    memcpy(l->held, data, n);
    l->n_held = n;
    return true;
}

/* What was held goes first. */
static bool give_held(sl_tls_link *l) {
    uint8_t *held = l->held;
    const size_t n = l->n_held;
    l->held = NULL;
    l->n_held = 0;
    const bool ok = give(l, held, n);
    sl_free(held);
    return ok;
}

/* One record; whether there may be another. */
static bool hear(sl_tls_link *l, uint8_t record[SL_TLS_RECORD]) {
    if (!l->plain_out || l->heard_all) return false;
    bool ok = !l->n_held || give_held(l);
    if (ok && (l->n_held || !l->net_in)) return false;
    ssize_t n = ok ? gnutls_record_recv(l->session, record, SL_TLS_RECORD) : 0;
    if (n == GNUTLS_E_AGAIN) {
        l->net_in = false;
        return false;
    }
    /* HTTP says itself where a request ends: the server judges whether this one is whole */
    if (n == GNUTLS_E_PREMATURE_TERMINATION) n = 0;
    if (n == GNUTLS_E_REHANDSHAKE || (n < 0 && gnutls_error_is_fatal((int)n))) {
        fail(l, n == GNUTLS_E_REHANDSHAKE ? GNUTLS_E_UNEXPECTED_HANDSHAKE_PACKET : (int)n);
        return false;
    }
    if (n > 0) ok = give(l, record, (size_t)n);
    if (n == 0 || !ok) { /* the client has said that this is all, or the server hears no more */
        l->heard_all = true;
        shutdown(l->plain, SHUT_WR);
    }
    return !l->heard_all;
}

/* ---- from the server to the client ---- */

static void say_bye(sl_tls_link *l) {
    const int rc = gnutls_bye(l->session, GNUTLS_SHUT_WR);
    l->net_out = rc != GNUTLS_E_AGAIN;
    if (l->net_out) shut(l);
}

/* The server has closed its end: the client has to take what it said at last. */
static void leave(sl_tls_link *l) {
    l->leaving = true;
    l->until_ns = sl_now_ns() + LAST_NS;
}

/* GnuTLS has taken n bytes of what lies in `plain`. */
static void took(sl_tls_link *l, uint8_t record[SL_TLS_RECORD], size_t n) {
    while (n > 0) {
        const ssize_t gone = recv(l->plain, record, n, 0);
        if (gone < 0 && errno == EINTR) continue;
        SL_ASSERT(gone > 0); /* nobody else reads there */
        n -= (size_t)gone;
    }
    if (l->leaving) leave(l);
}

/* One record; whether there may be another. What the server said is looked at, and taken when it is
 * sent: with a shorter record than usual the client may have asked for less. */
static bool speak(sl_tls_link *l, uint8_t record[SL_TLS_RECORD]) {
    if (!l->net_out || (!l->plain_in && !l->unsent)) return false;
    ssize_t n = 0;
    if (!l->unsent) {
        n = recv(l->plain, record, SL_TLS_RECORD, MSG_PEEK);
        if (n < 0 && errno == EINTR) return true;
        l->plain_in = n > 0;
        if (n == 0) {
            l->stage = SL_TLS_BYE;
            leave(l);
        }
        if (n < 0 && errno != EAGAIN) l->stage = SL_TLS_OVER;
        if (n <= 0) return false;
    }
    n = gnutls_record_send(l->session, l->unsent ? NULL : record, (size_t)n);
    l->unsent = n == GNUTLS_E_AGAIN || n == GNUTLS_E_INTERRUPTED;
    l->net_out = n != GNUTLS_E_AGAIN;
    if (n > 0)
        took(l, record, (size_t)n);
    else if (!l->unsent)
        fail(l, (int)n);
    return n > 0;
}

/* ---- turns ---- */

/* What comes after the end is thrown away; true: there may be more of it. */
static bool discard(sl_tls_link *l, uint8_t record[SL_TLS_RECORD]) {
    const ssize_t n = recv(l->net, record, SL_TLS_RECORD, 0);
    if (n > 0 || (n < 0 && errno == EINTR)) return true;
    if (n == 0 || errno != EAGAIN) l->stage = SL_TLS_OVER;
    return false;
}

bool sl_tls_link_turn(sl_tls_link *l, uint8_t record[SL_TLS_RECORD]) {
    bool more = true;
    for (int i = 0; more && i < MOST_RECORDS; i++) {
        more = false;
        if (l->stage <= SL_TLS_SHAKES) shake(l);
        if (l->stage == SL_TLS_OPEN) more = hear(l, record);
        if (l->stage == SL_TLS_OPEN) more = speak(l, record) || more;
        if (l->stage == SL_TLS_BYE) say_bye(l);
        if (l->stage == SL_TLS_SHUT) more = discard(l, record);
    }
    /* a client that left is seen, however much of what it said nobody has read */
    if (l->hung_up && l->n_held > 0 && l->stage == SL_TLS_OPEN) l->stage = SL_TLS_OVER;
    return more && l->stage != SL_TLS_OVER;
}

void sl_tls_link_on_net(sl_tls_link *l, uint32_t events) {
    l->net_in = true; /* what GnuTLS has to write before it reads on makes no difference then */
    if (events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) l->net_out = true;
    if (events & (EPOLLRDHUP | EPOLLERR | EPOLLHUP)) l->hung_up = true;
}

void sl_tls_link_on_plain(sl_tls_link *l, uint32_t events) {
    if (events & EPOLLOUT) l->plain_out = true;
    l->plain_in = true;
    if (!(events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) || l->leaving) return;
    leave(l);
    if (l->stage <= SL_TLS_SHAKES) l->stage = SL_TLS_OVER; /* it gave way */
}
