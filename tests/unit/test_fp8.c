/* e4m3 and rows of it, against arithmetic in double that shares nothing with the code: the value of
 * a code from its fields, and rounding as a search for the nearest of all codes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/rng.h"
#include "net/wire.h"
#include "quant/fp8.h"

static double value_of(unsigned code) {
    int e = code >> 3 & 15, f = code & 7;
    double v = e ? ldexp(8 + f, e - 10) : ldexp(f, -9);
    return code & 0x80 ? -v : v;
}

/* Nearest code of a finite |x|, the even one of two, by bisection over the 127 finite codes. */
static unsigned nearest(double x) {
    double a = fabs(x);
    unsigned lo = 0, hi = 0x7e;
    if (a >= 448) return 0x7e;
    while (hi - lo > 1) {
        unsigned mid = (lo + hi) / 2;
        if (value_of(mid) <= a)
            lo = mid;
        else
            hi = mid;
    }
    double dl = a - value_of(lo), dh = value_of(hi) - a;
    return dl < dh || (dl == dh && lo % 2 == 0) ? lo : hi;
}

static void all_codes_widen(void **state) {
    (void)state;
    for (unsigned c = 0; c < 256; c++) {
        float f = sl_e4m3_to_f32((uint8_t)c);
        if ((c & 0x7f) == 0x7f) {
            assert_true(isnan(f));
        } else {
            assert_true(f == value_of(c));
            assert_int_equal(signbit(f) != 0, c >> 7);
        }
        assert_int_equal(sl_f32_to_e4m3(f), c); /* and what it holds comes back */
    }
}

static void check_narrow(uint32_t bits) {
    float f = sl_f32_of_bits(bits);
    unsigned want = isfinite(f) ? nearest(f) : 0x7f, got = sl_f32_to_e4m3(f);
    want |= bits >> 24 & 0x80;
    if (want != got) fail_msg("%a becomes %02x, the nearest is %02x", (double)f, got, want);
}

static void f32_narrows_to_the_nearest(void **state) {
    (void)state;
    for (uint32_t u = 0; u < 1u << 20; u++) check_narrow(u << 12);
    for (unsigned c = 0; c < 0x7f;
         c++) { /* every value and every half way, and the floats beside */
        const double at[] = {value_of(c), (value_of(c) + (c < 0x7e ? value_of(c + 1) : 480)) / 2};
        for (unsigned i = 0; i < 2; i++)
            for (int d = -2; d <= 2; d++) {
                uint32_t u = sl_f32_bits((float)at[i]);
                if (d < 0 && u < 2) continue;
                check_narrow(u + (uint32_t)d);
                check_narrow((u + (uint32_t)d) | 0x80000000u);
            }
    }
    const uint32_t rest[] = {1, 0x007fffff, 0x7f7fffff, 0x7f800000, 0x7f800001, 0xffffffff};
    for (size_t i = 0; i < SL_LEN(rest); i++) check_narrow(rest[i]);
}

static void check_scale(uint32_t bits) {
    double largest = sl_f32_of_bits(bits), s = sl_e4m3_scale_of(bits);
    int e;
    assert_true(frexp(s, &e) == 0.5 && s >= 0x1p-126);
    assert_true(largest / s <= 448);
    assert_true(s == 0x1p-126 || largest / (s / 2) > 448);
    assert_true((double)sl_e4m3_inverse_of((float)s) * s == 1);
}

static void scales_are_the_least_powers_of_two(void **state) {
    (void)state;
    assert_true(sl_e4m3_scale_of(0) == 1);
    for (uint32_t u = 1; u < 0x7f800000u; u += 0xfffu) check_scale(u);
    for (uint32_t e = 0; e < 255; e++)
        for (uint32_t d = 0; d < 3; d++) check_scale((e << 23 | 0x5fffffu) + d);
    check_scale(0x7f7fffffu);
}

/* One row of d values: sizes, every code against the nearest in double, and the second trip. */
static void check_row(const float *x, uint32_t d) {
    uint8_t wire[600], again[600];
    float back[520];
    size_t bytes = sl_wire_row_bytes(SL_WIRE_FP8, d);
    sl_err err;
    assert_int_equal(bytes, 4 + (d + 3) / 4 * 4);
    memset(wire, 0xEE, sizeof wire);
    sl_wire_pack(SL_WIRE_FP8, x, 1, d, wire);
    assert_int_equal(sl_wire_rows_check(SL_WIRE_FP8, wire, 1, d, &err), SL_OK);
    float scale;
    memcpy(&scale, wire, 4);
    for (size_t i = 4 + d; i < bytes; i++) assert_int_equal(wire[i], 0);
    assert_int_equal(wire[bytes], 0xEE);
    sl_wire_unpack(SL_WIRE_FP8, wire, 1, d, back);
    for (uint32_t i = 0; i < d; i++) {
        if (!isfinite(x[i])) {
            assert_true(isnan(back[i]));
            continue;
        }
        unsigned code = nearest(x[i] / (double)scale);
        assert_int_equal(wire[4 + i] & 0x7f, code);
        /* Beyond the largest f32 is infinity, as in bf16. */
        assert_true(back[i] == (float)((x[i] < 0 ? -1 : 1) * value_of(code) * scale));
    }
    sl_wire_pack(SL_WIRE_FP8, back, 1, d, again);
    float twice[520];
    sl_wire_unpack(SL_WIRE_FP8, again, 1, d, twice);
    for (uint32_t i = 0; i < d; i++)
        assert_true(!isfinite(back[i]) ? isnan(twice[i])
                                       : sl_f32_bits(back[i]) == sl_f32_bits(twice[i]));
}

static void rows_round_once(void **state) {
    (void)state;
    float x[520];
    uint64_t rng = 20;
    for (uint32_t round = 0; round < 400; round++) {
        uint32_t d = (uint32_t)sl_rng_below(&rng, 512) + 1;
        int e = (int)sl_rng_below(&rng, 270) - 145;
        for (uint32_t i = 0; i < d; i++) {
            int spread = (int)sl_rng_below(&rng, 24);
            double v = (double)sl_rng_below(&rng, 2000001) * 1e-6 - 1;
            x[i] = (float)ldexp(v, e - spread > 128 ? 127 : e - spread);
            if (sl_rng_below(&rng, 97) == 0) x[i] = 0;
            if (round % 8 == 7 && sl_rng_below(&rng, 50) == 0) x[i] = INFINITY;
            if (round % 8 == 6 && sl_rng_below(&rng, 50) == 0) x[i] = -NAN;
        }
        check_row(x, d);
    }
    const float edge[] = {0x1.fffffep127f, 0x1p-149f, -0.0f, 0};
    check_row(edge, 4);
    check_row(edge + 1, 3);
    check_row(edge + 2, 2);
}

static void several_rows_have_their_own_scales(void **state) {
    (void)state;
    float x[3 * 7], back[3 * 7];
    uint8_t wire[3 * 12], one[12];
    for (int i = 0; i < 21; i++) x[i] = ldexpf((float)(i % 5 - 2), i / 7 * 30);
    sl_wire_pack(SL_WIRE_FP8, x, 3, 7, wire);
    for (int r = 0; r < 3; r++) {
        sl_wire_pack(SL_WIRE_FP8, x + r * 7, 1, 7, one);
        assert_memory_equal(one, wire + r * 12, 12);
    }
    sl_wire_unpack(SL_WIRE_FP8, wire, 3, 7, back);
    assert_memory_equal(back, x, sizeof x);
}

/* Ranks that have some columns of a row each make of them what the whole row has there, whatever
 * the values, and get these columns back of either. */
static void columns_are_those_of_the_row(void **state) {
    (void)state;
    enum { D = 96 };
    uint64_t rng = 7;
    for (uint32_t round = 0; round < 600; round++) {
        const sl_wire_format f = (sl_wire_format)(round % SL_WIRE_FORMAT_COUNT);
        const uint32_t at = (uint32_t)sl_rng_below(&rng, D + 1), cut[] = {0, at, D};
        float x[D], want[D], got[D];
        uint8_t whole[D * 4 + 4], part[D * 4 + 4];
        uint32_t top = 0;
        for (uint32_t i = 0; i < D; i++) {
            uint32_t bits = (uint32_t)sl_rng_next(&rng);
            if (round % 2) bits = (bits & 0x807fffffu) | 0x3f000000u;
            memcpy(&x[i], &bits, sizeof bits);
        }
        sl_wire_pack(f, x, 1, D, whole);
        sl_wire_unpack(f, whole, 1, D, want);
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t its = sl_wire_top(x + cut[k], cut[k + 1] - cut[k]);
            top = its > top ? its : top;
        }
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t first = cut[k], n = cut[k + 1] - first;
            sl_wire_pack_columns(f, x + first, n, top, part);
            sl_wire_unpack(f, part, 1, n, got);
            assert_memory_equal(got, want + first, n * sizeof *got);
            sl_wire_unpack_columns(f, whole, first, n, got);
            assert_memory_equal(got, want + first, n * sizeof *got);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_codes_widen),
        cmocka_unit_test(f32_narrows_to_the_nearest),
        cmocka_unit_test(scales_are_the_least_powers_of_two),
        cmocka_unit_test(rows_round_once),
        cmocka_unit_test(columns_are_those_of_the_row),
        cmocka_unit_test(several_rows_have_their_own_scales),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
