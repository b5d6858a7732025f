/* CRC-32C: RFC 3720's examples, and the processor's instruction against tables. */
#include "base/crc32c.h"

#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

/* Appendix B.4; and the usual check value. */
static void known_sums(void **state) {
    (void)state;
    uint8_t b[32];
    memset(b, 0, sizeof b);
    assert_int_equal(sl_crc32c(0, b, sizeof b), 0x8A9136AA);
    memset(b, 0xFF, sizeof b);
    assert_int_equal(sl_crc32c(0, b, sizeof b), 0x62A8AB43);
    for (uint8_t i = 0; i < 32; i++) b[i] = i;
    assert_int_equal(sl_crc32c(0, b, sizeof b), 0x46DD794E);
    for (uint8_t i = 0; i < 32; i++) b[i] = 31 - i;
    assert_int_equal(sl_crc32c(0, b, sizeof b), 0x113FDB5C);
    assert_int_equal(sl_crc32c(0, "123456789", 9), 0xE3069283);
    assert_int_equal(sl_crc32c(7, b, 0), 7);
}

static void both_forms_agree(void **state) {
    (void)state;
    static uint8_t b[20000];
    uint64_t rng = 5;
    for (size_t i = 0; i < sizeof b; i++) b[i] = (uint8_t)sl_rng_below(&rng, 256);
    for (int i = 0; i < 2000; i++) {
        size_t at = sl_rng_below(&rng, 64), n = sl_rng_below(&rng, sizeof b - 64);
        size_t half = sl_rng_below(&rng, n + 1);
        uint32_t first = (uint32_t)i, sum = sl_crc32c(first, b + at, n);
        assert_int_equal(sum, sl_crc32c_portable(first, b + at, n));
        assert_int_equal(sum, sl_crc32c(sl_crc32c(first, b + at, half), b + at + half, n - half));
    }
}

static void one_bit_shows(void **state) {
    (void)state;
    static uint8_t b[5000];
    uint32_t sum = sl_crc32c(0, b, sizeof b);
    for (size_t i = 0; i < 8 * sizeof b; i += 13) {
        b[i / 8] ^= (uint8_t)(1u << i % 8);
        assert_int_not_equal(sl_crc32c(0, b, sizeof b), sum);
        b[i / 8] ^= (uint8_t)(1u << i % 8);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_sums),
        cmocka_unit_test(both_forms_agree),
        cmocka_unit_test(one_bit_shows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
