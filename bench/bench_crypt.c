/* AES-256-GCM of one message, sealed and opened in place as src/net/crypt.h does it, by each
 * library that is here: libsodium, GnuTLS, nettle, libcrypto of OpenSSL.
 *
 * usage: bench_crypt [ROUNDS]
 *
 * Libraries take turns at one size, ROUNDS times (default 15), each for some milliseconds. One CSV
 * line a library and size: payload bytes, library, GB/s sealed and opened (medians), and how many
 * times as fast as libsodium the slower of the two is. That all of them say the same bytes is
 * checked first. */
#include "base/clock.h"
#include "base/status.h"

#include <sodium.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef SL_HAVE_GNUTLS
#include <gnutls/crypto.h>
#endif
#ifdef SL_HAVE_NETTLE
#include <nettle/gcm.h>
#endif
#ifdef SL_HAVE_LIBCRYPTO
#include <openssl/evp.h>
#endif

#define KEY         32u
#define NONCE       12u
#define TAG         16u
#define HEADER      72u
#define MOST        ((size_t)1 << 20)
#define TURN_NS     4000000u
#define MOST_ROUNDS 99u

static const uint8_t key[KEY] = {3, 1, 4}, header[HEADER] = {1, 5, 9};

/* ---- libraries; data has room for the tag behind its n bytes ---- */

static crypto_aead_aes256gcm_state sodium;

static bool sodium_begin(void) {
    return sodium_init() >= 0 && crypto_aead_aes256gcm_is_available() &&
           crypto_aead_aes256gcm_beforenm(&sodium, key) == 0;
}

static bool sodium_seal(const uint8_t *nonce, uint8_t *data, size_t n) {
    return crypto_aead_aes256gcm_encrypt_detached_afternm(data, data + n, NULL, data, n, header,
                                                          HEADER, NULL, nonce, &sodium) == 0;
}

static bool sodium_open(const uint8_t *nonce, uint8_t *data, size_t n) {
    return crypto_aead_aes256gcm_decrypt_detached_afternm(data, NULL, data, n, data + n, header,
                                                          HEADER, nonce, &sodium) == 0;
}

#ifdef SL_HAVE_GNUTLS
static gnutls_aead_cipher_hd_t gnutls;

static bool gnutls_begin(void) {
    const gnutls_datum_t k = {(unsigned char *)(uintptr_t)key, KEY};
    return gnutls_aead_cipher_init(&gnutls, GNUTLS_CIPHER_AES_256_GCM, &k) == 0;
}

static bool gnutls_seal(const uint8_t *nonce, uint8_t *data, size_t n) {
    const giovec_t about = {(void *)(uintptr_t)header, HEADER}, all = {data, n};
    size_t tag = TAG;
    return gnutls_aead_cipher_encryptv2(gnutls, nonce, NONCE, &about, 1, &all, 1, data + n, &tag) ==
           0;
}

static bool gnutls_open(const uint8_t *nonce, uint8_t *data, size_t n) {
    const giovec_t about = {(void *)(uintptr_t)header, HEADER}, all = {data, n};
    return gnutls_aead_cipher_decryptv2(gnutls, nonce, NONCE, &about, 1, &all, 1, data + n, TAG) ==
           0;
}
#endif

#ifdef SL_HAVE_NETTLE
static struct gcm_aes256_ctx nettle;

static bool nettle_begin(void) {
    gcm_aes256_set_key(&nettle, key);
    return true;
}

static bool nettle_seal(const uint8_t *nonce, uint8_t *data, size_t n) {
    gcm_aes256_set_iv(&nettle, NONCE, nonce);
    gcm_aes256_update(&nettle, HEADER, header);
    gcm_aes256_encrypt(&nettle, n, data, data);
    gcm_aes256_digest(&nettle, TAG, data + n);
    return true;
}

static bool nettle_open(const uint8_t *nonce, uint8_t *data, size_t n) {
    uint8_t tag[TAG];
    gcm_aes256_set_iv(&nettle, NONCE, nonce);
    gcm_aes256_update(&nettle, HEADER, header);
    gcm_aes256_decrypt(&nettle, n, data, data);
    gcm_aes256_digest(&nettle, TAG, tag);
    return sodium_memcmp(tag, data + n, TAG) == 0;
}
#endif

#ifdef SL_HAVE_LIBCRYPTO
static EVP_CIPHER_CTX *out, *in;

static bool libcrypto_begin(void) {
    out = EVP_CIPHER_CTX_new();
    in = EVP_CIPHER_CTX_new();
    return out && in && EVP_EncryptInit_ex(out, EVP_aes_256_gcm(), NULL, key, NULL) == 1 &&
           EVP_DecryptInit_ex(in, EVP_aes_256_gcm(), NULL, key, NULL) == 1;
}

static bool libcrypto_seal(const uint8_t *nonce, uint8_t *data, size_t n) {
    int some;
    return EVP_EncryptInit_ex(out, NULL, NULL, NULL, nonce) == 1 &&
           EVP_EncryptUpdate(out, NULL, &some, header, HEADER) == 1 &&
           EVP_EncryptUpdate(out, data, &some, data, (int)n) == 1 &&
           EVP_EncryptFinal_ex(out, data + n, &some) == 1 &&
           EVP_CIPHER_CTX_ctrl(out, EVP_CTRL_AEAD_GET_TAG, TAG, data + n) == 1;
}

static bool libcrypto_open(const uint8_t *nonce, uint8_t *data, size_t n) {
    int some;
    return EVP_DecryptInit_ex(in, NULL, NULL, NULL, nonce) == 1 &&
           EVP_CIPHER_CTX_ctrl(in, EVP_CTRL_AEAD_SET_TAG, TAG, data + n) == 1 &&
           EVP_DecryptUpdate(in, NULL, &some, header, HEADER) == 1 &&
           EVP_DecryptUpdate(in, data, &some, data, (int)n) == 1 &&
           EVP_DecryptFinal_ex(in, data + n, &some) == 1;
}
#endif

typedef struct library {
    const char *name;
    bool (*begin)(void);
    bool (*seal)(const uint8_t *nonce, uint8_t *data, size_t n);
    bool (*open)(const uint8_t *nonce, uint8_t *data, size_t n);
} library;

static const library libraries[] = {
    {"libsodium", sodium_begin, sodium_seal,
     sodium_open}, /* first: what others are compared with */
#ifdef SL_HAVE_GNUTLS
    {"gnutls", gnutls_begin, gnutls_seal, gnutls_open},
#endif
#ifdef SL_HAVE_NETTLE
    {"nettle", nettle_begin, nettle_seal, nettle_open},
#endif
#ifdef SL_HAVE_LIBCRYPTO
    {"libcrypto", libcrypto_begin, libcrypto_seal, libcrypto_open},
#endif
};

/* ---- what is measured ---- */

/* One direction each: how many bytes a nanosecond. */
typedef struct speed {
    double sealed[MOST_ROUNDS], opened[MOST_ROUNDS];
} speed;

/* A message is sealed, and the same opened: two clocks around many of them would mix the two, so
 * each call has its own, which costs some 20 ns of it. */
static bool turn(const library *l, uint8_t *data, size_t n, double *sealed, double *opened) {
    uint64_t seal_ns = 0, open_ns = 0, calls = 0;
    const uint64_t until_ns = sl_now_ns() + TURN_NS;
    for (uint64_t seq = 1; calls < 3 || sl_now_ns() < until_ns; seq++, calls++) {
        uint8_t nonce[NONCE] = {0};
        memcpy(nonce, &seq, sizeof seq);
        const uint64_t began = sl_now_ns();
        if (!l->seal(nonce, data, n)) return false;
        const uint64_t between = sl_now_ns();
        if (!l->open(nonce, data, n)) return false;
        open_ns += sl_now_ns() - between;
        seal_ns += between - began;
    }
    *sealed = (double)(n * calls) / (double)seal_ns;
    *opened = (double)(n * calls) / (double)open_ns;
    return true;
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *of, uint32_t n) {
    qsort(of, n, sizeof *of, compare);
    return of[n / 2];
}

/* What one has sealed, another one opens. */
static bool agree(uint8_t *data) {
    static const uint8_t nonce[NONCE] = {2, 6, 5};
    for (size_t i = 1; i < SL_LEN(libraries); i++) {
        uint8_t first[1000 + TAG] = {7};
        memset(data, 0, sizeof first);
        data[0] = 7;
        if (!libraries[0].seal(nonce, first, 1000) || !libraries[i].seal(nonce, data, 1000) ||
            memcmp(first, data, sizeof first) != 0 || !libraries[i].open(nonce, first, 1000))
            return fprintf(stderr, "bench_crypt: %s says something else\n", libraries[i].name),
                   false;
    }
    return true;
}

static bool measure(uint8_t *data, size_t n, uint32_t rounds) {
    static speed of[SL_LEN(libraries)];
    for (uint32_t r = 0; r < rounds; r++)
        for (size_t i = 0; i < SL_LEN(libraries); i++)
            if (!turn(&libraries[i], data, n, &of[i].sealed[r], &of[i].opened[r])) return false;
    double sealed = 0, opened = 0;
    for (size_t i = 0; i < SL_LEN(libraries); i++) {
        const double s = median(of[i].sealed, rounds), o = median(of[i].opened, rounds);
        if (i == 0) sealed = s, opened = o;
        printf("%zu,%s,%.2f,%.2f,%.2f\n", n, libraries[i].name, s, o,
               s / sealed < o / opened ? s / sealed : o / opened);
    }
    return true;
}

int main(int argc, char **argv) {
    static const size_t sizes[] = {64, 512, 2048, 8192, 65536, 1048576};
    const unsigned long asked = argc > 1 ? strtoul(argv[1], NULL, 10) : 15;
    const uint32_t rounds = (uint32_t)(asked < 1 ? 1 : asked > MOST_ROUNDS ? MOST_ROUNDS : asked);
    uint8_t *data = calloc(1, MOST + TAG);
    bool ok = data != NULL;
    for (size_t i = 0; ok && i < SL_LEN(libraries); i++)
        if (!(ok = libraries[i].begin()))
            fprintf(stderr, "bench_crypt: %s has no AES-256-GCM here\n", libraries[i].name);
    ok = ok && agree(data);
    if (ok) printf("bytes,library,sealed GB/s,opened GB/s,times libsodium\n");
    for (size_t i = 0; ok && i < SL_LEN(sizes); i++) ok = measure(data, sizes[i], rounds);
    free(data);
    return !ok;
}
