/* The ciphers of a connection: AES of net/aes.h, ChaCha20 of libsodium. */
#include "net/crypt.h"

#include "base/mem.h"
#include "net/aes.h"

#include <sodium.h>
#include <string.h>

_Static_assert(crypto_aead_chacha20poly1305_ietf_KEYBYTES == SL_CRYPT_KEY_BYTES,
               "keys of ChaCha20");
_Static_assert(crypto_aead_chacha20poly1305_ietf_ABYTES == SL_CRYPT_TAG_BYTES, "tags of ChaCha20");
_Static_assert(crypto_aead_chacha20poly1305_ietf_NPUBBYTES == SL_AES_NONCE_BYTES, "nonces");

#define NONCE_BYTES SL_AES_NONCE_BYTES

#ifdef SL_HAVE_GNUTLS
static const sl_aes_ops *const fastest = &sl_aes_gnutls;
#else
static const sl_aes_ops *const fastest = &sl_aes_sodium;
#endif

/* One way. */
typedef struct way {
    sl_aes *aes; /* NULL: it is ChaCha20 */
    uint8_t key[SL_CRYPT_KEY_BYTES];
    uint64_t turn; /* of messages, which has this key */
} way;

struct sl_crypt {
    way out, in;
};

bool sl_crypt_has_aes(void) {
    return crypto_aead_aes256gcm_is_available() != 0;
}

/* False: no memory. */
static bool begin_way(way *w, bool aes, const uint8_t key[SL_CRYPT_KEY_BYTES]) {
    memcpy(w->key, key, sizeof w->key);
    if (aes) w->aes = fastest->create(key);
    return !aes || w->aes;
}

sl_crypt *sl_crypt_create(bool aes, const uint8_t out[SL_CRYPT_KEY_BYTES],
                          const uint8_t in[SL_CRYPT_KEY_BYTES]) {
    sl_crypt *c = sl_alloc(1, sizeof *c);
    if (c && begin_way(&c->out, aes, out) && begin_way(&c->in, aes, in)) return c;
    sl_crypt_free(c);
    return NULL;
}

void sl_crypt_free(sl_crypt *c) {
    if (!c) return;
    fastest->free(c->out.aes);
    fastest->free(c->in.aes);
    sodium_memzero(c, sizeof *c);
    sl_free(c);
}

/* The key of this message's turn. Earlier ones cannot be made from it. */
static sl_status turn_to(way *w, uint64_t turn) {
    static const char label[] = "sluice 3 next key";
    uint8_t key[SL_CRYPT_KEY_BYTES], next[SL_CRYPT_KEY_BYTES];
    if (w->turn >= turn) return SL_OK;
    memcpy(key, w->key, sizeof key);
    for (uint64_t t = w->turn; t < turn; t++) {
        crypto_generichash(next, sizeof next, (const uint8_t *)label, sizeof label - 1, key,
                           sizeof key);
        memcpy(key, next, sizeof key);
    }
    sl_aes *aes = w->aes ? fastest->create(key) : NULL;
    const bool made = aes || !w->aes;
    if (made) {
        fastest->free(w->aes);
        *w = (way){.aes = aes, .turn = turn};
        memcpy(w->key, key, sizeof key);
    }
    sodium_memzero(next, sizeof next);
    sodium_memzero(key, sizeof key);
    return made ? SL_OK : SL_ERR_NOMEM;
}

/* The way's key is that of message seq from here on; nonce: this message's. */
static sl_status begin(way *w, uint64_t seq, uint8_t nonce[NONCE_BYTES]) {
    memset(nonce, 0, NONCE_BYTES);
    for (int i = 0; i < 8; i++) nonce[i] = (uint8_t)(seq >> 8 * i);
    return turn_to(w, seq / SL_CRYPT_TURN);
}

sl_status sl_crypt_seal(sl_crypt *c, uint64_t seq, const uint8_t *header, size_t header_len,
                        uint8_t *data, size_t len) {
    uint8_t nonce[NONCE_BYTES];
    const sl_status st = begin(&c->out, seq, nonce);
    if (st != SL_OK) return st;
    if (c->out.aes)
        fastest->seal(c->out.aes, nonce, header, header_len, data, len);
    else
        crypto_aead_chacha20poly1305_ietf_encrypt_detached(
            data, data + len, NULL, data, len, header, header_len, NULL, nonce, c->out.key);
    return SL_OK;
}

sl_status sl_crypt_open(sl_crypt *c, uint64_t seq, const uint8_t *header, size_t header_len,
                        uint8_t *data, size_t len) {
    uint8_t nonce[NONCE_BYTES];
    const sl_status st = begin(&c->in, seq, nonce);
    if (st != SL_OK) return st;
    const bool is_sealed =
        c->in.aes
            ? fastest->open(c->in.aes, nonce, header, header_len, data, len)
            : crypto_aead_chacha20poly1305_ietf_decrypt_detached(
                  data, NULL, data, len, data + len, header, header_len, nonce, c->in.key) == 0;
    if (!is_sealed) sodium_memzero(data, len);
    return is_sealed ? SL_OK : SL_ERR_PROTOCOL;
}
