/* A client's session with a server: whom it trusts, and what it says of what goes wrong. */
#include "tls/gnutls/gnutls_int.h"

#include "base/mem.h"

#include <arpa/inet.h>

#define MOST_WARNINGS 16 /* in a row */

struct sl_tls_session {
    gnutls_session_t session;
    gnutls_certificate_credentials_t cred;
    bool shaken;
};

static sl_status trust(sl_tls_session *s, const char *trusted, sl_err *err) {
    const int n =
        trusted ? gnutls_certificate_set_x509_trust_file(s->cred, trusted, GNUTLS_X509_FMT_PEM)
                : gnutls_certificate_set_x509_system_trust(s->cred);
    if (n > 0) return SL_OK;
    const char *why = n < 0 ? gnutls_strerror(n) : "no certificate is in it";
    if (trusted) return sl_fail(err, SL_ERR_ARG, "%s: certificates to trust: %s", trusted, why);
    return sl_fail(err, SL_ERR_ARG, "this system has no certificates to trust: name a file");
}

static int set_up(sl_tls_session *s, int fd, const char *host) {
    struct in6_addr address;
    const bool is_address =
        inet_pton(AF_INET, host, &address) == 1 || inet_pton(AF_INET6, host, &address) == 1;
    int rc = sl_tls_set_up(s->session);
    if (rc == 0 && !is_address)
        rc = gnutls_server_name_set(s->session, GNUTLS_NAME_DNS, host, strlen(host));
    if (rc == 0) rc = gnutls_credentials_set(s->session, GNUTLS_CRD_CERTIFICATE, s->cred);
    gnutls_session_set_verify_cert(s->session, host, 0);
    gnutls_handshake_set_timeout(s->session, GNUTLS_INDEFINITE_TIMEOUT); /* the caller's counts */
    gnutls_transport_set_int(s->session, fd);
    return rc;
}

sl_status sl_tls_session_open(int fd, const char *host, const char *trusted, sl_tls_session **out,
                              sl_err *err) {
    sl_tls_session *s = sl_alloc(1, sizeof *s);
    if (!s) return sl_fail(err, SL_ERR_NOMEM, "TLS: out of memory");
    int rc = gnutls_init(&s->session, GNUTLS_CLIENT | GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL);
    if (rc != 0) s->session = NULL;
    if (rc == 0) rc = gnutls_certificate_allocate_credentials(&s->cred);
    if (rc != 0) s->cred = NULL;
    sl_status st = rc == 0 ? trust(s, trusted, err) : SL_OK;
    if (st == SL_OK && rc == 0) rc = set_up(s, fd, host);
    if (rc != 0) st = sl_fail(err, SL_ERR_INTERNAL, "TLS: %s", gnutls_strerror(rc));
    if (st == SL_OK)
        *out = s;
    else
        sl_tls_session_free(s);
    return st;
}

void sl_tls_session_free(sl_tls_session *s) {
    if (!s) return;
    if (s->shaken) (void)gnutls_bye(s->session, GNUTLS_SHUT_WR);
    if (s->session) gnutls_deinit(s->session);
    if (s->cred) gnutls_certificate_free_credentials(s->cred);
    sl_free(s);
}

/* What GnuTLS finds wrong with the server's certificate, in its words. */
static sl_status distrust(sl_tls_session *s, sl_err *err) {
    gnutls_datum_t text = {NULL, 0};
    const unsigned status = gnutls_session_get_verify_cert_status(s->session);
    const int rc = gnutls_certificate_verification_status_print(status, GNUTLS_CRT_X509, &text, 0);
    const char *why = rc == 0 ? (const char *)text.data : "it cannot be verified.";
    size_t n = strlen(why);
    while (n > 0 && (why[n - 1] == ' ' || why[n - 1] == '.')) n--; /* its sentences */
    const sl_status st =
        sl_fail(err, SL_ERR_AUTH, "the server's certificate is refused: %.*s", (int)n, why);
    gnutls_free(text.data);
    return st;
}

/* After which the same is asked again. */
static bool is_warning(ssize_t code) {
    return code < 0 && code != GNUTLS_E_AGAIN && !gnutls_error_is_fatal((int)code);
}

/* Of a code that is no success. */
static sl_status judge(sl_tls_session *s, ssize_t code, short *wants, sl_err *err) {
    *wants = gnutls_record_get_direction(s->session) ? POLLOUT : POLLIN;
    if (code == GNUTLS_E_AGAIN) return SL_ERR_AGAIN;
    const bool began = s->shaken;
    s->shaken = false;
    if (code == GNUTLS_E_CERTIFICATE_VERIFICATION_ERROR) return distrust(s, err);
    if (code == GNUTLS_E_PREMATURE_TERMINATION && !began)
        return sl_fail(err, SL_ERR_IO, "it closes before TLS begins: does it speak HTTPS?");
    if (code == GNUTLS_E_PREMATURE_TERMINATION)
        return sl_fail(err, SL_ERR_IO, "its answer is cut off");
    if (code == GNUTLS_E_UNEXPECTED_PACKET_LENGTH || code == GNUTLS_E_UNEXPECTED_PACKET)
        return sl_fail(err, SL_ERR_FORMAT, "what answers there speaks no TLS");
    return sl_fail(err, SL_ERR_IO, "TLS: %s", sl_tls_reason(s->session, (int)code));
}

sl_status sl_tls_session_shake(sl_tls_session *s, short *wants, sl_err *err) {
    int rc = GNUTLS_E_INTERRUPTED;
    for (int i = 0; i < MOST_WARNINGS && is_warning(rc); i++) rc = gnutls_handshake(s->session);
    s->shaken = rc == 0;
    return s->shaken ? SL_OK : judge(s, rc, wants, err);
}

sl_status sl_tls_session_send(sl_tls_session *s, const void *data, size_t *n, short *wants,
                              sl_err *err) {
    ssize_t went = GNUTLS_E_INTERRUPTED;
    for (int i = 0; i < MOST_WARNINGS && is_warning(went); i++)
        went = gnutls_record_send(s->session, data, *n);
    *n = went > 0 ? (size_t)went : 0;
    return went >= 0 ? SL_OK : judge(s, went, wants, err);
}

sl_status sl_tls_session_receive(sl_tls_session *s, void *data, size_t *n, short *wants,
                                 sl_err *err) {
    ssize_t got = GNUTLS_E_INTERRUPTED;
    for (int i = 0; i < MOST_WARNINGS && is_warning(got); i++)
        got = gnutls_record_recv(s->session, data, *n);
    *n = got > 0 ? (size_t)got : 0;
    return got >= 0 ? SL_OK : judge(s, got, wants, err);
}
