/* Fits find the numbers that noisy synthetic times were made from. */
#include "base/rng.h"
#include "plan/fit.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

static double uniform(uint64_t *rng) {
    return ((double)sl_rng_below(rng, 1u << 30) + 0.5) / (1u << 30);
}

/* Two-sided noise of a share, and now and then somebody else's time slice. */
static double noisy(double us, double noise, double spikes, uint64_t *rng) {
    us *= 1 + noise * (2 * uniform(rng) - 1);
    if (uniform(rng) < spikes) us = us * (2 + 8 * uniform(rng)) + 100;
    return us;
}

static double off(double a, double b) {
    return fabs(a - b) / fabs(b);
}

/* Times of both branches come back, not the four numbers: a flat part hides what is fixed in it. */
static void says_the_same(const sl_stage_cost *got, const sl_stage_cost *want, double keys_a_row,
                          double within) {
    for (double rows = 1; rows <= 1024; rows *= 1.5) {
        double a = sl_stage_cost_us(got, rows, rows * keys_a_row);
        double b = sl_stage_cost_us(want, rows, rows * keys_a_row);
        if (off(a, b) > within) print_error("%g rows: %g us, wanted %g\n", rows, a, b);
        assert_true(off(a, b) <= within);
    }
}

static void floor_and_slope(void **state) {
    (void)state;
    uint64_t rng = 1;
    for (int round = 0; round < 40; round++) {
        sl_stage_cost want = {.fixed_us = 5 + 20 * uniform(&rng), .row_us = 1 + 9 * uniform(&rng)};
        want.floor_us = want.row_us * (1 + 60 * uniform(&rng));
        sl_profile_point p[64], *at = p;
        for (uint32_t rows = 1; rows <= 1024; rows *= 2)
            for (int rep = 0; rep < 4; rep++)
                *at++ = (sl_profile_point){
                    rows, 0, noisy(sl_stage_cost_us(&want, rows, 0), 0.05, 0.08, &rng)};
        sl_stage_cost got;
        sl_fit_quality q;
        assert_int_equal(sl_fit_stage(p, (uint32_t)(at - p), &got, &q, NULL), SL_OK);
        says_the_same(&got, &want, 0, 0.08);
        assert_true(q.median_error < 0.05 && q.n_points == at - p);
    }
}

static void exact_times_are_met(void **state) {
    (void)state;
    const sl_stage_cost want[] = {{10, 0, 3, 0},
                                  {0, 80, 2, 0},
                                  {7, 50, 1, 0},
                                  {12, 0, 0, 0},
                                  {.fixed_us = 5, .floor_us = 300, .slope_us = 12, .row_us = 40}};
    for (size_t w = 0; w < SL_LEN(want); w++) {
        sl_profile_point p[16];
        uint32_t n = 0;
        for (uint32_t rows = 1; rows <= 512; rows *= 2)
            p[n++] = (sl_profile_point){rows, 0, sl_stage_cost_us(&want[w], rows, 0)};
        sl_stage_cost got;
        sl_fit_quality q;
        assert_int_equal(sl_fit_stage(p, n, &got, &q, NULL), SL_OK);
        says_the_same(&got, &want[w], 0, 1e-6);
        assert_true(q.r2 > 0.999999 && q.worst_error < 1e-6 && q.n_outliers == 0);
    }
}

/* Kernels that compute rows in groups: the size of a group is found, and none where there is none.
 */
static void groups_of_rows(void **state) {
    (void)state;
    static const uint32_t rows[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,   10,  12,
                                    13, 16, 17, 22, 27, 32, 48, 64, 101, 128, 256};
    uint64_t rng = 3;
    for (int round = 0; round < 24; round++) {
        sl_stage_cost want = {.fixed_us = 10 + 10 * uniform(&rng), .row_us = 4 + 9 * uniform(&rng)};
        want.floor_us = want.row_us * (1 + 6 * uniform(&rng));
        want.step = round % 3 ? 2u << round % 3 : 0;
        want.pad_us = round % 3 ? want.row_us * (0.6 + 0.3 * uniform(&rng)) : 0;
        sl_profile_point p[128], *at = p;
        for (size_t i = 0; i < SL_LEN(rows); i++)
            for (int rep = 0; rep < 3; rep++)
                *at++ = (sl_profile_point){
                    rows[i], 0, noisy(sl_stage_cost_us(&want, rows[i], 0), 0.03, 0.04, &rng)};
        sl_stage_cost got;
        sl_fit_quality q;
        assert_int_equal(sl_fit_stage(p, (uint32_t)(at - p), &got, &q, NULL), SL_OK);
        if (got.step != want.step)
            print_error("round %d: %u, not %u\n", round, got.step, want.step);
        assert_int_equal(got.step, want.step);
        assert_true(got.pad_us <= got.row_us * (1 + 1e-9));
        for (uint32_t n = 1; n <= 200; n++) {
            double a = sl_stage_cost_us(&got, n, 0), b = sl_stage_cost_us(&want, n, 0);
            assert_true(off(a, b) < 0.08);
            assert_true(a <= sl_stage_cost_us(&got, n + 1, 0) * (1 + 1e-9));
        }
    }
    const sl_stage_cost c = {.fixed_us = 1, .row_us = 10, .pad_us = 8, .step = 4};
    assert_true(off(sl_stage_cost_us(&c, 5, 0), 1 + 50 + 3 * 8) < 1e-12);
    assert_true(off(sl_stage_cost_us(&c, 8, 0), 81) < 1e-12);
    assert_true(sl_stage_cost_mean_pad_us(&c) == 12);
}

/* Large messages leave the caches. */
static void links_with_a_knee(void **state) {
    (void)state;
    static const double sizes[] = {64, 1024, 4096, 16384, 65536, 262144, 524288, 1 << 20, 4 << 20};
    uint64_t rng = 4;
    for (int round = 0; round < 20; round++) {
        const sl_link_cost want = {.alpha_us = 5 + 50 * uniform(&rng),
                                   .byte_us = 1e-4,
                                   .knee_bytes = sizes[4 + round % 2],
                                   .beyond_us = round % 4 ? 4e-4 : 0};
        sl_profile_point p[SL_LEN(sizes)];
        for (size_t i = 0; i < SL_LEN(sizes); i++)
            p[i] = (sl_profile_point){sizes[i], 0,
                                      noisy(sl_link_cost_us(&want, sizes[i]), 0.02, 0, &rng)};
        sl_link_cost got;
        sl_fit_quality q;
        assert_int_equal(sl_fit_link(p, SL_LEN(sizes), &got, &q, NULL), SL_OK);
        for (size_t i = 0; i < SL_LEN(sizes); i++)
            assert_true(off(sl_link_cost_us(&got, sizes[i]), sl_link_cost_us(&want, sizes[i])) <
                        0.1);
        assert_true(q.r2 > 0.98 && (got.beyond_us > 0) == (got.knee_bytes > 0));
    }
    sl_profile_point same[4] = {{64, 0, 3}, {1024, 0, 3}, {65536, 0, 3}, {1 << 20, 0, 3}};
    sl_link_cost got;
    sl_fit_quality q;
    assert_int_equal(sl_fit_link(same, 4, &got, &q, NULL), SL_OK);
    assert_true(got.byte_us == 0 && got.beyond_us == 0 && off(got.alpha_us, 3) < 1e-9 && q.r2 == 1);
    for (int round = 0; round < 20; round++) { /* nothing is copied, whatever the noise says */
        sl_profile_point p[SL_LEN(sizes)];
        for (size_t i = 0; i < SL_LEN(sizes); i++)
            p[i] = (sl_profile_point){sizes[i], 0, noisy(28, 0.05, 0, &rng)};
        assert_int_equal(sl_fit_link(p, SL_LEN(sizes), &got, &q, NULL), SL_OK);
        assert_true(got.byte_us * (4 << 20) < 4 && off(sl_link_cost_us(&got, 4096), 28) < 0.06);
    }
}

static void rows_and_keys(void **state) {
    (void)state;
    uint64_t rng = 5;
    for (int round = 0; round < 20; round++) {
        sl_stage_cost want = {.fixed_us = 20 * uniform(&rng),
                              .floor_us = 30 * uniform(&rng),
                              .row_us = 2 + 8 * uniform(&rng),
                              .key_us = 0.002 + 0.02 * uniform(&rng)};
        sl_profile_point p[160];
        uint32_t n = 0;
        for (uint32_t rows = 1; rows <= 256; rows *= 2)
            for (uint32_t context = 16; context <= 4096; context *= 4)
                for (int rep = 0; rep < 3; rep++) {
                    double keys = (double)rows * context;
                    p[n++] = (sl_profile_point){
                        rows, keys, noisy(sl_stage_cost_us(&want, rows, keys), 0.05, 0.05, &rng)};
                }
        sl_stage_cost got;
        sl_fit_quality q;
        assert_int_equal(sl_fit_stage(p, n, &got, &q, NULL), SL_OK);
        says_the_same(&got, &want, 50, 0.1);
        says_the_same(&got, &want, 2000, 0.1);
        assert_true(off(got.key_us, want.key_us) < 0.05);
    }
}

static void links_and_theil_sen(void **state) {
    (void)state;
    uint64_t rng = 9;
    for (int round = 0; round < 40; round++) {
        double alpha = 2 + 50 * uniform(&rng), byte = 1e-4 * (1 + 9 * uniform(&rng));
        double x[32], y[32];
        sl_profile_point p[32];
        uint32_t n = 0;
        for (double bytes = 64; bytes <= 4 << 20; bytes *= 2) {
            x[n] = bytes;
            y[n] = noisy(alpha + byte * bytes, 0.04, 0.06, &rng);
            p[n] = (sl_profile_point){x[n], 0, y[n]};
            n++;
        }
        sl_link_cost got;
        sl_fit_quality q;
        assert_int_equal(sl_fit_link(p, n, &got, &q, NULL), SL_OK);
        assert_true(off(got.alpha_us, alpha) < 0.06 && off(got.byte_us, byte) < 0.06);
    }
}

static void outliers_are_counted(void **state) {
    (void)state;
    sl_profile_point p[20];
    for (uint32_t i = 0; i < 20; i++)
        p[i] = (sl_profile_point){i + 1, 0, 10 + 2.0 * (i + 1) + (i % 3) * 0.1};
    p[3].us = 500;
    p[15].us = 900;
    sl_stage_cost c;
    sl_fit_quality q;
    assert_int_equal(sl_fit_stage(p, 20, &c, &q, NULL), SL_OK);
    assert_int_equal(q.n_outliers, 2);
    assert_true(off(c.row_us, 2) < 0.05 && q.worst_error > 0.8 && q.median_error < 0.02);
}

static void points_that_are_none(void **state) {
    (void)state;
    sl_stage_cost c;
    sl_link_cost l;
    sl_fit_quality q;
    sl_err err = {0};
    sl_profile_point p[2] = {{1, 0, 1}, {2, 0, 0}};
    assert_int_equal(sl_fit_stage(p, 1, &c, &q, &err), SL_ERR_ARG);
    assert_non_null(strstr(err.msg, "1 points"));
    assert_int_equal(sl_fit_stage(p, 2, &c, &q, &err), SL_ERR_ARG);
    assert_non_null(strstr(err.msg, "point 1"));
    p[1].us = NAN;
    assert_int_equal(sl_fit_link(p, 2, &l, &q, &err), SL_ERR_ARG);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_of_rows),       cmocka_unit_test(links_with_a_knee),
        cmocka_unit_test(floor_and_slope),      cmocka_unit_test(exact_times_are_met),
        cmocka_unit_test(rows_and_keys),        cmocka_unit_test(links_and_theil_sen),
        cmocka_unit_test(outliers_are_counted), cmocka_unit_test(points_that_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
