/* What a secret of the fabric is: its length, and how a good one is made. Thread: any. */
#include <sodium.h>

#include "net/net.h"

#define RANDOM_BYTES (SL_SECRET_MAX / 2)

sl_status sl_secret_make(char out[SL_SECRET_MAX + 1], sl_err *err) {
    uint8_t raw[RANDOM_BYTES];
    if (sodium_init() < 0) return sl_fail(err, SL_ERR_INTERNAL, "libsodium could not start");
    randombytes_buf(raw, sizeof raw);
    sodium_bin2hex(out, SL_SECRET_MAX + 1, raw, sizeof raw);
    sodium_memzero(raw, sizeof raw);
    return SL_OK;
}

sl_status sl_secret_check(size_t len, const char *source, sl_err *err) {
    return len >= SL_SECRET_MIN && len <= SL_SECRET_MAX
               ? SL_OK
               : sl_fail(err, SL_ERR_ARG,
                         "%s: a secret has %u to %u bytes (sluice secret makes one)", source,
                         SL_SECRET_MIN, SL_SECRET_MAX);
}
