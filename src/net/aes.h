/* AES-256-GCM with one key, by one library or another: all say the same bytes. GnuTLS is about
 * twice as fast as libsodium (docs/lab/fabric.md), and not in every build. A key is never changed
 * in place: GnuTLS 3.7 keeps a part of the old one then. Only where sl_crypt_has_aes. Thread:
 * owner. */
#ifndef SL_NET_AES_H
#define SL_NET_AES_H

#include "net/crypt.h"

#define SL_AES_NONCE_BYTES 12u

typedef struct sl_aes sl_aes; /* each library's own */

typedef struct sl_aes_ops {
    sl_aes *(*create)(const uint8_t key[SL_CRYPT_KEY_BYTES]); /* NULL: no memory */
    void (*free)(sl_aes *a);                                  /* NULL-safe; the key is wiped */
    /* In place; the tag is written behind the len bytes. */
    void (*seal)(sl_aes *a, const uint8_t nonce[SL_AES_NONCE_BYTES], const uint8_t *header,
                 size_t header_len, uint8_t *data, size_t len);
    /* The reverse. False: they are not what was sealed, and what they are now is to be wiped. */
    bool (*open)(sl_aes *a, const uint8_t nonce[SL_AES_NONCE_BYTES], const uint8_t *header,
                 size_t header_len, uint8_t *data, size_t len);
} sl_aes_ops;

extern const sl_aes_ops sl_aes_sodium;
#ifdef SL_HAVE_GNUTLS
extern const sl_aes_ops sl_aes_gnutls;
#endif

#endif
