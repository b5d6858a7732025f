/* AES-256-GCM by libsodium. */
#include "net/aes.h"

#include "base/mem.h"

#include <sodium.h>

_Static_assert(crypto_aead_aes256gcm_KEYBYTES == SL_CRYPT_KEY_BYTES, "keys of AES");
_Static_assert(crypto_aead_aes256gcm_ABYTES == SL_CRYPT_TAG_BYTES, "tags of AES");
_Static_assert(crypto_aead_aes256gcm_NPUBBYTES == SL_AES_NONCE_BYTES, "nonces of AES");

struct sl_aes {
    crypto_aead_aes256gcm_state state; /* first: aligned; the key as AES uses it */
};

static sl_aes *make(const uint8_t key[SL_CRYPT_KEY_BYTES]) {
    sl_aes *a = sl_alloc(1, sizeof *a);
    if (a) crypto_aead_aes256gcm_beforenm(&a->state, key);
    return a;
}

static void wipe(sl_aes *a) {
    if (a) sodium_memzero(a, sizeof *a);
    sl_free(a);
}

static void seal(sl_aes *a, const uint8_t nonce[SL_AES_NONCE_BYTES], const uint8_t *header,
                 size_t header_len, uint8_t *data, size_t len) {
    crypto_aead_aes256gcm_encrypt_detached_afternm(data, data + len, NULL, data, len, header,
                                                   header_len, NULL, nonce, &a->state);
}

static bool open_sealed(sl_aes *a, const uint8_t nonce[SL_AES_NONCE_BYTES], const uint8_t *header,
                        size_t header_len, uint8_t *data, size_t len) {
    return crypto_aead_aes256gcm_decrypt_detached_afternm(data, NULL, data, len, data + len, header,
                                                          header_len, nonce, &a->state) == 0;
}

const sl_aes_ops sl_aes_sodium = {make, wipe, seal, open_sealed};
