/* Hellos as bytes, and the macs under a handshake. */
#include <sodium.h>

#include "net/net_int.h"

/* The label keeps the uses apart: a mac of one role never proves another. */
static const char *const labels[] = {
    [SL_MAC_HELLO] = "sluice 3 hello",
    [SL_MAC_CALLER] = "sluice 3 caller",
    [SL_MAC_CALLEE] = "sluice 3 callee",
    [SL_MAC_SESSION] = "sluice 3 session",
    [SL_MAC_KEY_OF_CALLER] = "sluice 3 key of caller",
    [SL_MAC_KEY_OF_CALLEE] = "sluice 3 key of callee",
};

static void put_text(sl_wr *w, const char *text, size_t bytes) {
    uint8_t *p = sl_wr_take(w, bytes);
    SL_ASSERT(p);
    memset(p, 0, bytes);
    memcpy(p, text, strnlen(text, bytes - 1));
}

void sl_hello_encode(const sl_hello *h, uint8_t out[SL_HELLO_BYTES]) {
    sl_wr w = sl_wr_of(out, SL_HELLO_BYTES);
    sl_wr_u32(&w, h->worker);
    sl_wr_u32(&w, h->incarnation);
    sl_wr_u32(&w, h->is_coordinator | h->wants_sums << 1 | h->wants_crypt << 2 | h->has_aes << 3 |
                      h->insists << 4);
    sl_wr_u32(&w, h->wire);
    sl_wr_u32(&w, h->roles);
    sl_wr_bytes(&w, h->model_hash, sizeof h->model_hash);
    put_text(&w, h->address, sizeof h->address);
    put_text(&w, h->name, sizeof h->name);
    SL_ASSERT(w.ok && w.len == SL_HELLO_BYTES);
}

static sl_status take_text(sl_cur *c, const char *field, size_t bytes, char *out, sl_err *err) {
    const uint8_t *p = sl_cur_take(c, bytes);
    SL_ASSERT(p);
    size_t n = strnlen((const char *)p, bytes);
    if (n == bytes)
        return sl_fail(err, SL_ERR_PROTOCOL, "hello: %s does not end within %zu bytes", field,
                       bytes);
    for (size_t i = 0; i < bytes; i++)
        if (i < n ? p[i] < 0x20 || p[i] > 0x7E : p[i] != 0)
            return sl_fail(err, SL_ERR_PROTOCOL, "hello: %s: byte %zu is 0x%02x", field, i, p[i]);
    memcpy(out, p, bytes);
    return SL_OK;
}

sl_status sl_hello_decode(const uint8_t in[SL_HELLO_BYTES], sl_hello *out, sl_err *err) {
    sl_cur c = sl_cur_of((sl_span){in, SL_HELLO_BYTES});
    sl_hello h = {0};
    h.worker = sl_cur_u32(&c);
    h.incarnation = sl_cur_u32(&c);
    uint32_t flags = sl_cur_u32(&c);
    h.is_coordinator = flags & 1;
    h.wants_sums = flags >> 1 & 1;
    h.wants_crypt = flags >> 2 & 1;
    h.has_aes = flags >> 3 & 1;
    h.insists = flags >> 4 & 1;
    h.wire = sl_cur_u32(&c);
    h.roles = sl_cur_u32(&c);
    memcpy(h.model_hash, sl_cur_take(&c, sizeof h.model_hash), sizeof h.model_hash);
    if (flags > 31) return sl_fail(err, SL_ERR_PROTOCOL, "hello: unknown flags 0x%x", flags);
    if (h.wire >= SL_WIRE_FORMAT_COUNT)
        return sl_fail(err, SL_ERR_PROTOCOL, "hello: wire format %u, %u known", h.wire,
                       SL_WIRE_FORMAT_COUNT);
    if (h.roles & ~(SL_ROLE_ATTENTION | SL_ROLE_EXPERT))
        return sl_fail(err, SL_ERR_PROTOCOL, "hello: unknown roles 0x%x", h.roles);
    sl_status st = take_text(&c, "address", sizeof h.address, h.address, err);
    if (st == SL_OK) st = take_text(&c, "name", sizeof h.name, h.name, err);
    if (st == SL_OK) *out = h;
    return st;
}

/* more: SL_HALF_BYTES that follow; NULL: none. */
static void make(const uint8_t *secret, size_t secret_len, sl_mac_role role, const sl_transcript *t,
                 const uint8_t *more, uint8_t out[SL_MAC_BYTES]) {
    bool both = role != SL_MAC_HELLO;
    _Static_assert(crypto_auth_hmacsha256_BYTES == SL_MAC_BYTES, "HMAC-SHA256");
    crypto_auth_hmacsha256_state s;
    crypto_auth_hmacsha256_init(&s, secret, secret_len);
    crypto_auth_hmacsha256_update(&s, (const uint8_t *)labels[role], strlen(labels[role]));
    crypto_auth_hmacsha256_update(&s, t->caller_nonce, SL_NONCE_BYTES);
    if (both) crypto_auth_hmacsha256_update(&s, t->callee_nonce, SL_NONCE_BYTES);
    crypto_auth_hmacsha256_update(&s, t->caller_hello, SL_HELLO_BYTES);
    if (both) crypto_auth_hmacsha256_update(&s, t->callee_hello, SL_HELLO_BYTES);
    if (more) crypto_auth_hmacsha256_update(&s, more, SL_HALF_BYTES);
    crypto_auth_hmacsha256_final(&s, out);
    sodium_memzero(&s, sizeof s);
}

void sl_auth_mac(const uint8_t *secret, size_t secret_len, sl_mac_role role, const sl_transcript *t,
                 uint8_t out[SL_MAC_BYTES]) {
    make(secret, secret_len, role, t, NULL, out);
}

void sl_auth_key(const uint8_t *secret, size_t secret_len, sl_mac_role role, const sl_transcript *t,
                 const uint8_t shared[SL_HALF_BYTES], uint8_t out[SL_MAC_BYTES]) {
    make(secret, secret_len, role, t, shared, out);
}

uint64_t sl_auth_session(const uint8_t *secret, size_t secret_len, const sl_transcript *t) {
    uint8_t mac[SL_MAC_BYTES];
    sl_auth_mac(secret, secret_len, SL_MAC_SESSION, t, mac);
    sl_cur c = sl_cur_of((sl_span){mac, sizeof mac});
    uint64_t id = sl_cur_u64(&c);
    sodium_memzero(mac, sizeof mac);
    return id ? id : 1;
}

bool sl_auth_equal(const uint8_t a[SL_MAC_BYTES], const uint8_t b[SL_MAC_BYTES]) {
    return sodium_memcmp(a, b, SL_MAC_BYTES) == 0;
}
