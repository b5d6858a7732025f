/* Messages of a connection between machines, encrypted: AES-256-GCM where both ends have it in
 * hardware, else ChaCha20-Poly1305. Each direction has a key of its own, made from the fabric's
 * secret, the handshake and an exchange of X25519: who learns the secret later cannot read what was
 * recorded. The nonce is the message's sequence number, which is never used twice; the header is
 * authenticated, not hidden. Thread: owner of the net. */
#ifndef SL_NET_CRYPT_H
#define SL_NET_CRYPT_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SL_CRYPT_KEY_BYTES 32u
#define SL_CRYPT_TAG_BYTES 16u
/* After so many messages a direction goes on with a key that is made from the last one. */
#define SL_CRYPT_TURN (UINT64_C(1) << 20)

typedef struct sl_crypt sl_crypt;

/* This machine has what AES needs. Thread: any. */
bool sl_crypt_has_aes(void);
/* Of what is sent, and of what comes. NULL: no memory. */
sl_crypt *sl_crypt_create(bool aes, const uint8_t out[SL_CRYPT_KEY_BYTES],
                          const uint8_t in[SL_CRYPT_KEY_BYTES]) SL_MUST_CHECK;
void sl_crypt_free(sl_crypt *c); /* NULL-safe; keys are wiped */

/* In place: data has room for the tag behind its len bytes. seq: ascending from call to call.
 * SL_ERR_NOMEM: for a key that is due now, and nothing has happened. */
sl_status sl_crypt_seal(sl_crypt *c, uint64_t seq, const uint8_t *header, size_t header_len,
                        uint8_t *data, size_t len) SL_MUST_CHECK;
/* The reverse, of len bytes and the tag behind them. SL_ERR_PROTOCOL: they are not what the peer
 * sent, and are zeros now. */
sl_status sl_crypt_open(sl_crypt *c, uint64_t seq, const uint8_t *header, size_t header_len,
                        uint8_t *data, size_t len) SL_MUST_CHECK;

#endif
