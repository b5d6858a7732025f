/* TLS, by GnuTLS: a server's certificate with its key; the front in which a server's connections
 * are decrypted; one session of a client.
 *
 * 1.2 and 1.3 are spoken, with forward secrecy and authenticated ciphers alone, and http/1.1 inside
 * (ALPN). Sessions are not resumed, nothing is sent early, nobody renegotiates. In a program that
 * was built without GnuTLS whatever would begin with TLS is refused. */
#ifndef SL_TLS_TLS_H
#define SL_TLS_TLS_H

#include "base/span.h"
#include "base/status.h"

#include <poll.h>
#include <sys/socket.h>

typedef struct sl_tls_pair sl_tls_pair;
typedef struct sl_tls_front sl_tls_front;
typedef struct sl_tls_session sl_tls_session;

/* PEM, and what errors call it: the option and its file. */
typedef struct sl_tls_text {
    const char *name;
    sl_span pem;
} sl_tls_text;

#define SL_TLS_FRONT_LEAVING 256u /* clients whose last bytes are still on their way */
#define SL_TLS_FRONT_FILES   2u   /* open files of a client, beside its own socket */

typedef struct sl_tls_front_stats {
    uint64_t n_shaken, n_failed; /* handshakes */
    int64_t ends_s;              /* of the certificate that new clients get */
} sl_tls_front_stats;

#ifdef SL_HAVE_GNUTLS

/* ---- a server's certificate and its key ---- */

/* The chain is sent as it is there, the server's own certificate first. SL_ERR_ARG: one of the two
 * is none, the key is encrypted, or it is not that of the certificate. The holder of a reference
 * may use it on any thread. */
sl_status sl_tls_pair_open(const sl_tls_text *cert, const sl_tls_text *key, sl_tls_pair **out,
                           sl_err *err) SL_MUST_CHECK;
sl_tls_pair *sl_tls_pair_ref(sl_tls_pair *p);
void sl_tls_pair_unref(sl_tls_pair *p); /* NULL-safe */
/* Seconds since 1970 between which the server's own certificate is valid. */
int64_t sl_tls_pair_begins_s(const sl_tls_pair *p);
int64_t sl_tls_pair_ends_s(const sl_tls_pair *p);

/* ---- a server's front ---- */

/* Takes a reference. */
sl_status sl_tls_front_start(sl_tls_pair *pair, sl_tls_front **out, sl_err *err) SL_MUST_CHECK;
/* Takes the socket of a client that has just come, and returns the one end of a pair of sockets at
 * which it speaks in the clear, and is spoken to: whatever holds for a client's own socket holds
 * for this one. -1, with errno, and the client is gone: there is no memory or file. Thread: any. */
int sl_tls_front_take(sl_tls_front *f, int fd, const struct sockaddr *from);
/* Clients that come from now on get this certificate; takes a reference. Thread: any. */
void sl_tls_front_renew(sl_tls_front *f, sl_tls_pair *pair);
sl_tls_front_stats sl_tls_front_stats_get(sl_tls_front *f); /* Thread: any. */
/* The other ends of all pairs are closed: what is still on its way to clients has a moment.
 * NULL-safe. */
void sl_tls_front_stop(sl_tls_front *f);

/* ---- a client's session ---- */

/* With the server at the connected, non-blocking fd, which stays the caller's and outlives the
 * session. `host`, a name or an address, has to be in its certificate, which one of the
 * certificates in the file `trusted`, or NULL: of the system, has to have signed. */
sl_status sl_tls_session_open(int fd, const char *host, const char *trusted, sl_tls_session **out,
                              sl_err *err) SL_MUST_CHECK;
void sl_tls_session_free(sl_tls_session *s); /* NULL-safe; tells the server, if that is at once */
/* SL_ERR_AGAIN: to be called again, with the same, when poll has seen what *wants says.
 * SL_ERR_AUTH: the certificate is not to be trusted. */
sl_status sl_tls_session_shake(sl_tls_session *s, short *wants, sl_err *err) SL_MUST_CHECK;
/* *n bytes, and how many of them went; 0 received: the server has said that this is the end. */
sl_status sl_tls_session_send(sl_tls_session *s, const void *data, size_t *n, short *wants,
                              sl_err *err) SL_MUST_CHECK;
sl_status sl_tls_session_receive(sl_tls_session *s, void *data, size_t *n, short *wants,
                                 sl_err *err) SL_MUST_CHECK;

#else

/* ---- without GnuTLS ----
 *
 * What would begin with TLS is refused. The rest, done with what that gave, is asked by nobody. */

#define SL_TLS_ABSENT                                                                              \
    "this program was built without GnuTLS, which speaks TLS; with it (Debian: libgnutls28-dev) "  \
    "build again"

static inline sl_status sl_tls_pair_open(const sl_tls_text *cert, const sl_tls_text *key,
                                         sl_tls_pair **out, sl_err *err) {
    (void)key, (void)out;
    return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: " SL_TLS_ABSENT, cert->name);
}
static inline void sl_tls_pair_unref(sl_tls_pair *p) {
    SL_ASSERT(!p);
}
static inline int64_t sl_tls_pair_begins_s(const sl_tls_pair *p) {
    SL_ASSERT(p);
    return 0;
}
static inline int64_t sl_tls_pair_ends_s(const sl_tls_pair *p) {
    SL_ASSERT(p);
    return 0;
}
static inline sl_status sl_tls_front_start(sl_tls_pair *pair, sl_tls_front **out, sl_err *err) {
    (void)pair, (void)out;
    return sl_fail(err, SL_ERR_UNSUPPORTED, "TLS: " SL_TLS_ABSENT);
}
static inline int sl_tls_front_take(sl_tls_front *f, int fd, const struct sockaddr *from) {
    (void)fd, (void)from;
    SL_ASSERT(f);
    return -1;
}
static inline void sl_tls_front_renew(sl_tls_front *f, sl_tls_pair *pair) {
    SL_ASSERT(f && pair);
}
static inline sl_tls_front_stats sl_tls_front_stats_get(sl_tls_front *f) {
    SL_ASSERT(f);
    return (sl_tls_front_stats){0};
}
static inline void sl_tls_front_stop(sl_tls_front *f) {
    SL_ASSERT(!f);
}
static inline sl_status sl_tls_session_open(int fd, const char *host, const char *trusted,
                                            sl_tls_session **out, sl_err *err) {
    (void)fd, (void)trusted, (void)out;
    return sl_fail(err, SL_ERR_UNSUPPORTED, "https://%s: " SL_TLS_ABSENT, host);
}
static inline void sl_tls_session_free(sl_tls_session *s) {
    SL_ASSERT(!s);
}
static inline sl_status sl_tls_session_shake(sl_tls_session *s, short *wants, sl_err *err) {
    (void)wants;
    SL_ASSERT(s);
    return sl_fail(err, SL_ERR_UNSUPPORTED, SL_TLS_ABSENT);
}
static inline sl_status sl_tls_session_send(sl_tls_session *s, const void *data, size_t *n,
                                            short *wants, sl_err *err) {
    (void)data, (void)n, (void)wants;
    SL_ASSERT(s);
    return sl_fail(err, SL_ERR_UNSUPPORTED, SL_TLS_ABSENT);
}
static inline sl_status sl_tls_session_receive(sl_tls_session *s, void *data, size_t *n,
                                               short *wants, sl_err *err) {
    return sl_tls_session_send(s, data, n, wants, err);
}

#endif
#endif
