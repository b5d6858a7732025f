/* Inside of TLS by GnuTLS: what the pair, the front and a client's session share. */
#ifndef SL_TLS_GNUTLS_INT_H
#define SL_TLS_GNUTLS_INT_H

#include "tls/tls.h"

#include <gnutls/gnutls.h>
#include <stdatomic.h>
#include <stdbool.h>

struct sl_tls_pair {
    gnutls_certificate_credentials_t cred;
    int64_t begins_s, ends_s;
    atomic_uint refs;
};

/* Which versions and ciphers are spoken, and that it is HTTP/1.1: of a session that has just been
 * made. Returns a code of GnuTLS. */
int sl_tls_set_up(gnutls_session_t s) SL_MUST_CHECK;
/* What a code of GnuTLS means for this session; borrowed, static. */
const char *sl_tls_reason(gnutls_session_t s, int code);

#endif
