/* Digests by which the hub knows files: SHA-256 of large ones, git's SHA-1 of small ones. SHA-1
 * (FIPS 180-4) is here because git names blobs by it and libsodium does not have it; it finds
 * damage and nothing more is asked of it: the names come from the hub itself, over TLS. */
#include "hub/hub_int.h"

#include "base/mem.h"

#include <sodium.h>
#include <stdio.h>

typedef struct sha1 {
    uint32_t h[5];
    uint64_t bytes;
    uint8_t block[64];
} sha1;

struct sl_hub_digest {
    bool large; /* SHA-256 */
    crypto_hash_sha256_state sha256;
    sha1 sha1;
};

static uint32_t rotate(uint32_t x, unsigned n) {
    return x << n | x >> (32 - n);
}

static void sha1_block(sha1 *s) {
    uint32_t w[80], a = s->h[0], b = s->h[1], c = s->h[2], d = s->h[3], e = s->h[4];
    for (unsigned i = 0; i < 16; i++)
        w[i] = (uint32_t)s->block[4 * i] << 24 | (uint32_t)s->block[4 * i + 1] << 16 |
               (uint32_t)s->block[4 * i + 2] << 8 | s->block[4 * i + 3];
    for (unsigned i = 16; i < 80; i++)
        w[i] = rotate(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    for (unsigned i = 0; i < 80; i++) {
        uint32_t f, k;
        if (i < 20)
            f = (b & c) | (~b & d), k = 0x5a827999;
        else if (i < 40)
            f = b ^ c ^ d, k = 0x6ed9eba1;
        else if (i < 60)
            f = (b & c) | (b & d) | (c & d), k = 0x8f1bbcdc;
        else
            f = b ^ c ^ d, k = 0xca62c1d6;
        uint32_t next = rotate(a, 5) + f + e + k + w[i];
        e = d, d = c, c = rotate(b, 30), b = a, a = next;
    }
    s->h[0] += a, s->h[1] += b, s->h[2] += c, s->h[3] += d, s->h[4] += e;
}

static void sha1_add(sha1 *s, const uint8_t *p, size_t n) {
    for (size_t i = 0; i < n; i++) {
        s->block[s->bytes++ % 64] = p[i];
        if (s->bytes % 64 == 0) sha1_block(s);
    }
}

static void sha1_end(sha1 *s, uint8_t out[20]) {
    uint64_t bits = s->bytes * 8;
    uint8_t pad = 0x80, tail[8];
    do {
        sha1_add(s, &pad, 1);
        pad = 0;
    } while (s->bytes % 64 != 56);
    for (unsigned i = 0; i < 8; i++) tail[i] = (uint8_t)(bits >> (56 - 8 * i));
    sha1_add(s, tail, sizeof tail);
    for (unsigned i = 0; i < 20; i++) out[i] = (uint8_t)(s->h[i / 4] >> (24 - 8 * (i % 4)));
}

sl_hub_digest *sl_hub_digest_start(uint64_t bytes, const char *id) {
    sl_hub_digest *d = sl_alloc(1, sizeof *d);
    if (!d) return NULL;
    d->large = strlen(id) == 64;
    crypto_hash_sha256_init(&d->sha256);
    d->sha1.h[0] = 0x67452301, d->sha1.h[1] = 0xefcdab89, d->sha1.h[2] = 0x98badcfe;
    d->sha1.h[3] = 0x10325476, d->sha1.h[4] = 0xc3d2e1f0;
    char head[32]; /* git puts it before the bytes, with its NUL */
    int n = snprintf(head, sizeof head, "blob %llu", (unsigned long long)bytes);
    sha1_add(&d->sha1, (const uint8_t *)head, (size_t)n + 1);
    return d;
}

void sl_hub_digest_add(sl_hub_digest *d, const void *bytes, size_t n) {
    if (d->large)
        crypto_hash_sha256_update(&d->sha256, bytes, n);
    else
        sha1_add(&d->sha1, bytes, n);
}

void sl_hub_digest_end(sl_hub_digest *d, char out[SL_HUB_ID + 1]) {
    uint8_t raw[32];
    size_t n = d->large ? 32 : 20;
    if (d->large)
        crypto_hash_sha256_final(&d->sha256, raw);
    else
        sha1_end(&d->sha1, raw);
    sodium_bin2hex(out, 2 * n + 1, raw, n);
    sl_hub_digest_free(d);
}

void sl_hub_digest_free(sl_hub_digest *d) {
    sl_free(d);
}
