/* The ciphers of a connection (libsodium). */
#include "net/crypt.h"

#include "base/mem.h"

#include <sodium.h>
#include <string.h>

_Static_assert(crypto_aead_aes256gcm_KEYBYTES == SL_CRYPT_KEY_BYTES, "keys of AES");
_Static_assert(crypto_aead_chacha20poly1305_ietf_KEYBYTES == SL_CRYPT_KEY_BYTES,
               "keys of ChaCha20");
_Static_assert(crypto_aead_aes256gcm_ABYTES == SL_CRYPT_TAG_BYTES, "tags of AES");
_Static_assert(crypto_aead_chacha20poly1305_ietf_ABYTES == SL_CRYPT_TAG_BYTES, "tags of ChaCha20");
_Static_assert(crypto_aead_aes256gcm_NPUBBYTES == crypto_aead_chacha20poly1305_ietf_NPUBBYTES,
               "nonces");

#define NONCE_BYTES crypto_aead_aes256gcm_NPUBBYTES

/* One way. */
typedef struct way {
    crypto_aead_aes256gcm_state aes; /* first: aligned; the key as AES uses it */
    uint8_t key[SL_CRYPT_KEY_BYTES];
    uint64_t turn; /* of messages, which has this key */
} way;

struct sl_crypt {
    way out, in;
    bool aes;
};

bool sl_crypt_has_aes(void) {
    return crypto_aead_aes256gcm_is_available() != 0;
}

static void set_key(way *w, bool aes, const uint8_t key[SL_CRYPT_KEY_BYTES]) {
    memmove(w->key, key, sizeof w->key);
    if (aes) crypto_aead_aes256gcm_beforenm(&w->aes, w->key);
}

sl_crypt *sl_crypt_create(bool aes, const uint8_t out[SL_CRYPT_KEY_BYTES],
                          const uint8_t in[SL_CRYPT_KEY_BYTES]) {
    sl_crypt *c = sl_alloc(1, sizeof *c);
    if (!c) return NULL;
    c->aes = aes;
    set_key(&c->out, aes, out);
    set_key(&c->in, aes, in);
    return c;
}

void sl_crypt_free(sl_crypt *c) {
    if (c) sodium_memzero(c, sizeof *c);
    sl_free(c);
}

/* The key of this message's turn. Earlier ones cannot be made from it. */
static void turn_to(sl_crypt *c, way *w, uint64_t seq) {
    static const char label[] = "sluice 3 next key";
    while (w->turn < seq / SL_CRYPT_TURN) {
        uint8_t next[SL_CRYPT_KEY_BYTES];
        crypto_generichash(next, sizeof next, (const uint8_t *)label, sizeof label - 1, w->key,
                           sizeof w->key);
        set_key(w, c->aes, next);
        sodium_memzero(next, sizeof next);
        w->turn++;
    }
}

/* The way's key is that of message seq from here on; nonce: this message's. */
static void begin(sl_crypt *c, way *w, uint64_t seq, uint8_t nonce[NONCE_BYTES]) {
    memset(nonce, 0, NONCE_BYTES);
    for (int i = 0; i < 8; i++) nonce[i] = (uint8_t)(seq >> 8 * i);
    turn_to(c, w, seq);
}

void sl_crypt_seal(sl_crypt *c, uint64_t seq, const uint8_t *header, size_t header_len,
                   uint8_t *data, size_t len) {
    uint8_t nonce[NONCE_BYTES];
    begin(c, &c->out, seq, nonce);
    if (c->aes)
        crypto_aead_aes256gcm_encrypt_detached_afternm(data, data + len, NULL, data, len, header,
                                                       header_len, NULL, nonce, &c->out.aes);
    else
        crypto_aead_chacha20poly1305_ietf_encrypt_detached(
            data, data + len, NULL, data, len, header, header_len, NULL, nonce, c->out.key);
}

bool sl_crypt_open(sl_crypt *c, uint64_t seq, const uint8_t *header, size_t header_len,
                   uint8_t *data, size_t len) {
    uint8_t nonce[NONCE_BYTES];
    begin(c, &c->in, seq, nonce);
    if (c->aes)
        return crypto_aead_aes256gcm_decrypt_detached_afternm(
                   data, NULL, data, len, data + len, header, header_len, nonce, &c->in.aes) == 0;
    return crypto_aead_chacha20poly1305_ietf_decrypt_detached(
               data, NULL, data, len, data + len, header, header_len, nonce, c->in.key) == 0;
}
