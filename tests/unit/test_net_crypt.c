/* Encrypted messages: what comes out is what went in, and nothing else opens. */
#include "net/aes.h"

#include "base/mem.h"
#include "base/rng.h"

#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#define HEADER 72u
#define MOST   300u
#define LONG   100000u

static const uint8_t one[SL_CRYPT_KEY_BYTES] = {1}, two[SL_CRYPT_KEY_BYTES] = {2};

/* Two ends; aes: as both have it. */
typedef struct ends {
    sl_crypt *caller, *callee;
} ends;

static ends ends_of(bool aes) {
    const ends e = {sl_crypt_create(aes, one, two), sl_crypt_create(aes, two, one)};
    assert_true(e.caller && e.callee);
    return e;
}

static void ends_free(ends e) {
    sl_crypt_free(e.caller);
    sl_crypt_free(e.callee);
}

/* The key of a direction after so many turns, as docs/protocol.md has it. */
static void key_of_turn(const uint8_t *first, uint64_t turns, uint8_t out[SL_CRYPT_KEY_BYTES]) {
    static const char label[] = "sluice 3 next key";
    memcpy(out, first, SL_CRYPT_KEY_BYTES);
    for (uint64_t i = 0; i < turns; i++) {
        uint8_t next[SL_CRYPT_KEY_BYTES];
        crypto_generichash(next, sizeof next, (const uint8_t *)label, sizeof label - 1, out,
                           SL_CRYPT_KEY_BYTES);
        memcpy(out, next, sizeof next);
    }
}

/* Both ciphers, where this machine has both. */
static int n_ciphers(void) {
    assert_true(sodium_init() >= 0);
    return sl_crypt_has_aes() ? 2 : 1;
}

static void there_and_back(void **state) {
    (void)state;
    for (int aes = 0; aes < n_ciphers(); aes++) {
        ends e = ends_of(aes);
        uint64_t rng = 7;
        for (uint64_t seq = 1; seq < 500; seq++) {
            uint8_t header[HEADER], plain[MOST], data[MOST + SL_CRYPT_TAG_BYTES];
            const size_t len = seq < 10 ? seq - 1 : sl_rng_below(&rng, MOST + 1);
            for (size_t i = 0; i < len; i++) plain[i] = (uint8_t)(i * 7 + seq);
            memset(header, (int)seq, sizeof header);
            memcpy(data, plain, len);
            sl_crypt *from = seq % 3 ? e.caller : e.callee, *to = seq % 3 ? e.callee : e.caller;
            assert_int_equal(sl_crypt_seal(from, seq, header, HEADER, data, len), SL_OK);
            if (len > 8) assert_memory_not_equal(data, plain, len);
            assert_int_equal(sl_crypt_open(to, seq, header, HEADER, data, len), SL_OK);
            assert_memory_equal(data, plain, len);
        }
        ends_free(e);
    }
}

/* The bytes are those of the ciphers as libsodium has them, whichever library is behind, so that
 * programs of different builds understand each other. */
static void as_libsodium_has_it(void **state) {
    (void)state;
    for (int aes = 0; aes < n_ciphers(); aes++) {
        ends e = ends_of(aes);
        static uint8_t data[LONG + SL_CRYPT_TAG_BYTES], want[LONG + SL_CRYPT_TAG_BYTES];
        uint64_t seq = 5 * SL_CRYPT_TURN - 30; /* and over a turn */
        for (size_t len = 0; len <= LONG; len = len < 70 ? len + 1 : 3 * len + 1, seq++) {
            uint8_t header[HEADER], key[SL_CRYPT_KEY_BYTES], nonce[12] = {0};
            memcpy(nonce, &seq, sizeof seq);
            memset(header, (int)len, sizeof header);
            for (size_t i = 0; i < len; i++) data[i] = (uint8_t)(i * 13 + len);
            key_of_turn(one, seq / SL_CRYPT_TURN, key);
            (aes ? crypto_aead_aes256gcm_encrypt : crypto_aead_chacha20poly1305_ietf_encrypt)(
                want, NULL, data, len, header, HEADER, NULL, nonce, key);
            assert_int_equal(sl_crypt_seal(e.caller, seq, header, HEADER, data, len), SL_OK);
            assert_memory_equal(data, want, len + SL_CRYPT_TAG_BYTES);
            assert_int_equal(sl_crypt_open(e.callee, seq, header, HEADER, want, len), SL_OK);
        }
        ends_free(e);
    }
}

/* What one library has sealed another one opens, and nothing else. */
static void libraries_understand_each_other(void **state) {
    (void)state;
    const sl_aes_ops *const of[] = {
#ifdef SL_HAVE_GNUTLS
        &sl_aes_gnutls,
#endif
        &sl_aes_sodium};
    static const uint8_t nonce[SL_AES_NONCE_BYTES] = {4}, header[HEADER] = {6};
    if (n_ciphers() < 2) return;
    for (size_t i = 0; i < SL_LEN(of) * SL_LEN(of); i++) {
        const sl_aes_ops *from = of[i % SL_LEN(of)], *to = of[i / SL_LEN(of)];
        sl_aes *sender = from->create(one), *receiver = to->create(one);
        assert_true(sender && receiver);
        for (size_t len = 0; len < MOST; len += 17) {
            uint8_t data[MOST + SL_CRYPT_TAG_BYTES] = {8};
            from->seal(sender, nonce, header, HEADER, data, len);
            data[len / 2] ^= 1;
            uint8_t copy[sizeof data];
            memcpy(copy, data, sizeof data);
            assert_false(to->open(receiver, nonce, header, HEADER, copy, len));
            data[len / 2] ^= 1;
            assert_true(to->open(receiver, nonce, header, HEADER, data, len));
            assert_int_equal(data[0], len ? 8 : data[0]);
        }
        from->free(sender);
        to->free(receiver);
    }
}

/* One changed bit anywhere, another number, another direction, another connection's key. */
static void nothing_else_opens(void **state) {
    (void)state;
    for (int aes = 0; aes < n_ciphers(); aes++) {
        uint8_t sealed[40 + SL_CRYPT_TAG_BYTES] = {0}, header[HEADER] = {5};
        ends e = ends_of(aes);
        assert_int_equal(sl_crypt_seal(e.caller, 9, header, HEADER, sealed, 40), SL_OK);
        for (size_t i = 0; i < 8 * (sizeof sealed + HEADER); i++) {
            uint8_t data[sizeof sealed], head[HEADER];
            memcpy(data, sealed, sizeof data);
            memcpy(head, header, sizeof head);
            uint8_t *byte = i / 8 < sizeof data ? &data[i / 8] : &head[i / 8 - sizeof data];
            *byte ^= (uint8_t)(1u << i % 8);
            assert_int_equal(sl_crypt_open(e.callee, 9, head, HEADER, data, 40), SL_ERR_PROTOCOL);
            for (size_t k = 0; k < 40; k++) assert_int_equal(data[k], 0); /* nothing is left */
        }
        uint8_t data[sizeof sealed];
        for (uint64_t seq = 8; seq <= 10; seq++) {
            memcpy(data, sealed, sizeof data);
            assert_int_equal(sl_crypt_open(e.callee, seq, header, HEADER, data, 40),
                             seq == 9 ? SL_OK : SL_ERR_PROTOCOL);
        }
        memcpy(data, sealed, sizeof data); /* back to who sent it */
        assert_int_equal(sl_crypt_open(e.caller, 9, header, HEADER, data, 40), SL_ERR_PROTOCOL);
        sl_crypt *stranger = sl_crypt_create(aes, one, one);
        uint8_t other[sizeof sealed] = {0};
        assert_int_equal(sl_crypt_seal(stranger, 9, header, HEADER, other, 40), SL_OK);
        assert_memory_equal(other, sealed, sizeof other); /* the same key says the same... */
        sl_crypt_free(stranger);
        stranger = sl_crypt_create(!aes && n_ciphers() == 2, two, one);
        memcpy(data, sealed, sizeof data); /* ...another cipher does not */
        if (n_ciphers() == 2)
            assert_int_equal(sl_crypt_open(stranger, 9, header, HEADER, data, 40), SL_ERR_PROTOCOL);
        sl_crypt_free(stranger);
        ends_free(e);
    }
}

/* Keys go on after so many messages, at both ends alike; one that was left out in between does not
 * matter. */
static void keys_turn(void **state) {
    (void)state;
    for (int aes = 0; aes < n_ciphers(); aes++) {
        ends e = ends_of(aes);
        const uint64_t seqs[] = {1, SL_CRYPT_TURN - 1, SL_CRYPT_TURN, 5 * SL_CRYPT_TURN + 3};
        uint8_t first[32 + SL_CRYPT_TAG_BYTES] = {0}, header[HEADER] = {0};
        for (size_t i = 0; i < sizeof seqs / sizeof *seqs; i++) {
            uint8_t data[sizeof first] = {0};
            assert_int_equal(sl_crypt_seal(e.caller, seqs[i], header, HEADER, data, 32), SL_OK);
            if (i == 0) memcpy(first, data, sizeof first);
            assert_int_equal(sl_crypt_open(e.callee, seqs[i], header, HEADER, data, 32), SL_OK);
        }
        /* A later key does not open what an earlier one sealed. */
        assert_int_equal(sl_crypt_open(e.callee, 1, header, HEADER, first, 32), SL_ERR_PROTOCOL);
        ends_free(e);
    }
}

/* Without memory for the next key nothing has happened: with memory the same message goes on. */
static void no_memory_for_a_key(void **state) {
    (void)state;
    uint8_t data[32 + SL_CRYPT_TAG_BYTES] = {1}, header[HEADER] = {0};
    if (n_ciphers() < 2) return; /* ChaCha20 takes none */
    ends e = ends_of(true);
    assert_int_equal(sl_crypt_seal(e.caller, 1, header, HEADER, data, 32), SL_OK);
    assert_int_equal(sl_crypt_open(e.callee, 1, header, HEADER, data, 32), SL_OK);
    sl_mem_fail_at(1);
    assert_int_equal(sl_crypt_seal(e.caller, SL_CRYPT_TURN, header, HEADER, data, 32),
                     SL_ERR_NOMEM);
    sl_mem_fail_at(0);
    assert_int_equal(sl_crypt_seal(e.caller, SL_CRYPT_TURN, header, HEADER, data, 32), SL_OK);
    sl_mem_fail_at(1);
    assert_int_equal(sl_crypt_open(e.callee, SL_CRYPT_TURN, header, HEADER, data, 32),
                     SL_ERR_NOMEM);
    sl_mem_fail_at(0);
    assert_int_equal(sl_crypt_open(e.callee, SL_CRYPT_TURN, header, HEADER, data, 32), SL_OK);
    assert_int_equal(data[0], 1);
    ends_free(e);
    for (uint64_t nth = 1; nth <= 3; nth++) { /* and none at first */
        sl_mem_fail_at(nth);
        assert_null(sl_crypt_create(true, one, two));
    }
    sl_mem_fail_at(0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_and_back),
        cmocka_unit_test(as_libsodium_has_it),
        cmocka_unit_test(libraries_understand_each_other),
        cmocka_unit_test(nothing_else_opens),
        cmocka_unit_test(keys_turn),
        cmocka_unit_test(no_memory_for_a_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
