/* A server's certificate chain and its key, read from PEM and found to belong together. */
#include "tls/gnutls/gnutls_int.h"

#include "base/mem.h"

#include <gnutls/x509.h>
#include <pthread.h>

static sl_status refuse(const sl_tls_text *what, const char *is_no, int code, sl_err *err) {
    return sl_fail(err, code == GNUTLS_E_MEMORY_ERROR ? SL_ERR_NOMEM : SL_ERR_ARG, "%s: %s (%s)",
                   what->name, is_no, gnutls_strerror(code));
}

static gnutls_datum_t datum_of(const sl_tls_text *what) {
    /* it is only read */
    return (gnutls_datum_t){(unsigned char *)(uintptr_t)what->pem.data, (unsigned)what->pem.len};
}

static sl_status read_key(const sl_tls_text *key, gnutls_x509_privkey_t *out, sl_err *err) {
    gnutls_datum_t pem = datum_of(key);
    int rc = gnutls_x509_privkey_init(out);
    if (rc == 0) rc = gnutls_x509_privkey_import2(*out, &pem, GNUTLS_X509_FMT_PEM, NULL, 0);
    if (rc == GNUTLS_E_DECRYPTION_FAILED)
        return sl_fail(err, SL_ERR_ARG,
                       "%s: the key is encrypted, and nobody is asked for its pass phrase: keep it "
                       "as openssl pkey -in FILE -out PLAIN writes it",
                       key->name);
    return rc == 0 ? SL_OK : refuse(key, "is no private key as PEM", rc, err);
}

/* Gives the chain's certificates to the caller, also where it fails. */
static sl_status read_chain(const sl_tls_text *cert, gnutls_x509_crt_t **chain, unsigned *n,
                            sl_err *err) {
    gnutls_datum_t pem = datum_of(cert);
    int rc = gnutls_x509_crt_list_import2(chain, n, &pem, GNUTLS_X509_FMT_PEM,
                                          GNUTLS_X509_CRT_LIST_FAIL_IF_UNSORTED);
    if (rc == GNUTLS_E_CERTIFICATE_LIST_UNSORTED)
        return sl_fail(err, SL_ERR_ARG,
                       "%s: a chain begins with the server's own certificate, and each one is "
                       "signed by the next",
                       cert->name);
    return rc == 0 ? SL_OK : refuse(cert, "is no certificate as PEM", rc, err);
}

static sl_status join(const sl_tls_text *cert, const sl_tls_text *key, gnutls_x509_crt_t *chain,
                      unsigned n, gnutls_x509_privkey_t private_key, sl_tls_pair *p, sl_err *err) {
    int rc = gnutls_certificate_allocate_credentials(&p->cred);
    if (rc == 0) rc = gnutls_certificate_set_x509_key(p->cred, chain, (int)n, private_key);
    if (rc == GNUTLS_E_CERTIFICATE_KEY_MISMATCH)
        return sl_fail(err, SL_ERR_ARG, "%s: is not the key of the certificate of %s", key->name,
                       cert->name);
    if (rc != 0) return refuse(cert, "cannot be used with its key", rc, err);
    p->begins_s = gnutls_x509_crt_get_activation_time(chain[0]);
    p->ends_s = gnutls_x509_crt_get_expiration_time(chain[0]);
    return SL_OK;
}

sl_status sl_tls_pair_open(const sl_tls_text *cert, const sl_tls_text *key, sl_tls_pair **out,
                           sl_err *err) {
    gnutls_x509_privkey_t private_key = NULL;
    gnutls_x509_crt_t *chain = NULL;
    unsigned n = 0;
    sl_tls_pair *p = sl_alloc(1, sizeof *p);
    if (!p) return sl_fail(err, SL_ERR_NOMEM, "%s: out of memory", cert->name);
    atomic_init(&p->refs, 1);
    sl_status st = read_chain(cert, &chain, &n, err);
    if (st == SL_OK) st = read_key(key, &private_key, err);
    if (st == SL_OK) st = join(cert, key, chain, n, private_key, p, err);
    for (unsigned i = 0; i < n; i++) gnutls_x509_crt_deinit(chain[i]);
    gnutls_free(chain);
    if (private_key) gnutls_x509_privkey_deinit(private_key);
    if (st == SL_OK)
        *out = p;
    else
        sl_tls_pair_unref(p);
    return st;
}

sl_tls_pair *sl_tls_pair_ref(sl_tls_pair *p) {
    /* whoever has one may make another */
    atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
    return p;
}

void sl_tls_pair_unref(sl_tls_pair *p) {
    /* release what this holder did with it; the last one acquires that before freeing */
    if (!p || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1) return;
    if (p->cred) gnutls_certificate_free_credentials(p->cred);
    sl_free(p);
}

int64_t sl_tls_pair_begins_s(const sl_tls_pair *p) {
    return p->begins_s;
}

int64_t sl_tls_pair_ends_s(const sl_tls_pair *p) {
    return p->ends_s;
}

/* ---- what both sides of a session say ---- */

static gnutls_priority_t spoken; /* written once, never freed */
static int spoken_code;

static void read_spoken(void) {
    static const char words[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2"
                                ":-KX-ALL:+ECDHE-ECDSA:+ECDHE-RSA"
                                ":-CIPHER-ALL:+AES-128-GCM:+AES-256-GCM:+CHACHA20-POLY1305"
                                ":-MAC-ALL:+AEAD:%SERVER_PRECEDENCE";
    spoken_code = gnutls_priority_init(&spoken, words, NULL);
}

int sl_tls_set_up(gnutls_session_t s) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static unsigned char http[] = "http/1.1";
    const gnutls_datum_t inside = {http, sizeof http - 1};
    pthread_once(&once, read_spoken);
    const int rc = spoken_code == 0 ? gnutls_priority_set(s, spoken) : spoken_code;
    return rc == 0 ? gnutls_alpn_set_protocols(s, &inside, 1, GNUTLS_ALPN_MANDATORY) : rc;
}

const char *sl_tls_reason(gnutls_session_t s, int code) {
    if (code == GNUTLS_E_FATAL_ALERT_RECEIVED || code == GNUTLS_E_WARNING_ALERT_RECEIVED) {
        const char *said = gnutls_alert_get_name(gnutls_alert_get(s));
        return said ? said : "an alert";
    }
    return gnutls_strerror(code);
}
