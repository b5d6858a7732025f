/* Philox against published vectors; uniform numbers. */
#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

/* Known-answer vectors published with Random123 (kat_vectors, philox4x32 10 rounds). */
static void philox_matches_published_vectors(void **state) {
    (void)state;
    const struct {
        uint32_t ctr[4], key[2], want[4];
    } kat[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof kat / sizeof kat[0]; i++) {
        sl_philox got = sl_philox4x32(kat[i].ctr, kat[i].key);
        for (int j = 0; j < 4; j++) assert_int_equal(got.v[j], kat[i].want[j]);
    }
}

static void uniform_is_in_range_and_position_dependent(void **state) {
    (void)state;
    double sum = 0;
    for (uint64_t p = 0; p < 10000; p++) {
        double u = sl_rng_uniform(7, 0, p);
        assert_true(u >= 0 && u < 1);
        sum += u;
    }
    assert_true(sum > 4850 && sum < 5150);
    assert_true(sl_rng_uniform(7, 0, 1) != sl_rng_uniform(7, 1, 1));
    assert_true(sl_rng_uniform(7, 0, 1) != sl_rng_uniform(8, 0, 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_matches_published_vectors),
        cmocka_unit_test(uniform_is_in_range_and_position_dependent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
