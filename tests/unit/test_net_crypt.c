/* Encrypted messages: what comes out is what went in, and nothing else opens. */
#include "net/crypt.h"

#include "base/rng.h"

#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#define HEADER 72u
#define MOST   300u

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
            sl_crypt_seal(from, seq, header, HEADER, data, len);
            if (len > 8) assert_memory_not_equal(data, plain, len);
            assert_true(sl_crypt_open(to, seq, header, HEADER, data, len));
            assert_memory_equal(data, plain, len);
        }
        ends_free(e);
    }
}

/* One changed bit anywhere, another number, another direction, another connection's key. */
static void nothing_else_opens(void **state) {
    (void)state;
    for (int aes = 0; aes < n_ciphers(); aes++) {
        uint8_t sealed[40 + SL_CRYPT_TAG_BYTES] = {0}, header[HEADER] = {5};
        ends e = ends_of(aes);
        sl_crypt_seal(e.caller, 9, header, HEADER, sealed, 40);
        for (size_t i = 0; i < 8 * (sizeof sealed + HEADER); i++) {
            uint8_t data[sizeof sealed], head[HEADER];
            memcpy(data, sealed, sizeof data);
            memcpy(head, header, sizeof head);
            uint8_t *byte = i / 8 < sizeof data ? &data[i / 8] : &head[i / 8 - sizeof data];
            *byte ^= (uint8_t)(1u << i % 8);
            assert_false(sl_crypt_open(e.callee, 9, head, HEADER, data, 40));
        }
        uint8_t data[sizeof sealed];
        for (uint64_t seq = 8; seq <= 10; seq++) {
            memcpy(data, sealed, sizeof data);
            assert_int_equal(sl_crypt_open(e.callee, seq, header, HEADER, data, 40), seq == 9);
        }
        memcpy(data, sealed, sizeof data); /* back to who sent it */
        assert_false(sl_crypt_open(e.caller, 9, header, HEADER, data, 40));
        sl_crypt *stranger = sl_crypt_create(aes, one, one);
        uint8_t other[sizeof sealed] = {0};
        sl_crypt_seal(stranger, 9, header, HEADER, other, 40);
        assert_memory_equal(other, sealed, sizeof other); /* the same key says the same... */
        sl_crypt_free(stranger);
        stranger = sl_crypt_create(!aes && n_ciphers() == 2, two, one);
        memcpy(data, sealed, sizeof data); /* ...another cipher does not */
        if (n_ciphers() == 2) assert_false(sl_crypt_open(stranger, 9, header, HEADER, data, 40));
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
            sl_crypt_seal(e.caller, seqs[i], header, HEADER, data, 32);
            if (i == 0) memcpy(first, data, sizeof first);
            assert_true(sl_crypt_open(e.callee, seqs[i], header, HEADER, data, 32));
        }
        /* A later key does not open what an earlier one sealed. */
        assert_false(sl_crypt_open(e.callee, 1, header, HEADER, first, 32));
        ends_free(e);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_and_back),
        cmocka_unit_test(nothing_else_opens),
        cmocka_unit_test(keys_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
