/* AES-256-GCM by GnuTLS, which has stitched code for processors with AES in hardware. */
#include "net/aes.h"

#include "base/mem.h"

#include <gnutls/crypto.h>

struct sl_aes {
    gnutls_aead_cipher_hd_t cipher;
};

static giovec_t span_of(const uint8_t *data, size_t len) {
    return (giovec_t){(void *)(uintptr_t)data, len};
}

static sl_aes *make(const uint8_t key[SL_CRYPT_KEY_BYTES]) {
    /* it is only read */
    const gnutls_datum_t k = {(unsigned char *)(uintptr_t)key, SL_CRYPT_KEY_BYTES};
    sl_aes *a = sl_alloc(1, sizeof *a);
    if (a && gnutls_aead_cipher_init(&a->cipher, GNUTLS_CIPHER_AES_256_GCM, &k) == 0) return a;
    sl_free(a);
    return NULL;
}

static void wipe(sl_aes *a) {
    if (a) gnutls_aead_cipher_deinit(a->cipher);
    sl_free(a);
}

/* Takes no memory, and the lengths are right: nothing can go wrong. */
static void seal(sl_aes *a, const uint8_t nonce[SL_AES_NONCE_BYTES], const uint8_t *header,
                 size_t header_len, uint8_t *data, size_t len) {
    const giovec_t about = span_of(header, header_len), all = span_of(data, len);
    size_t tag = SL_CRYPT_TAG_BYTES;
    const int rc = gnutls_aead_cipher_encryptv2(a->cipher, nonce, SL_AES_NONCE_BYTES, &about, 1,
                                                &all, 1, data + len, &tag);
    SL_ASSERT(rc == 0 && tag == SL_CRYPT_TAG_BYTES);
}

static bool open_sealed(sl_aes *a, const uint8_t nonce[SL_AES_NONCE_BYTES], const uint8_t *header,
                        size_t header_len, uint8_t *data, size_t len) {
    const giovec_t about = span_of(header, header_len), all = span_of(data, len);
    return gnutls_aead_cipher_decryptv2(a->cipher, nonce, SL_AES_NONCE_BYTES, &about, 1, &all, 1,
                                        data + len, SL_CRYPT_TAG_BYTES) == 0;
}

const sl_aes_ops sl_aes_gnutls = {make, wipe, seal, open_sealed};
