/* EPS: the three-stage law against its recurrence, the best number of groups, when groups gain. */
#include "plan/eps.h"

#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <cmocka.h>

static double spread(uint64_t *rng) { /* over three decades */
    return exp(log(0.05) + (double)sl_rng_below(rng, 1u << 30) / (1u << 30) * log(1000));
}

static bool same(double a, double b) {
    return fabs(a - b) <= 1e-12 * fmax(fabs(a), fabs(b));
}

/* A line of three stages, each in first come first served order, as max-plus sums over all paths.
 */
static double longest_path(const double *stage[3], uint32_t n) {
    double most = 0;
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = i; j < n; j++) { /* stage 0 until group i, 1 until j, 2 to the end */
            double sum = 0;
            for (uint32_t k = 0; k <= i; k++) sum += stage[0][k];
            for (uint32_t k = i; k <= j; k++) sum += stage[1][k];
            for (uint32_t k = j; k < n; k++) sum += stage[2][k];
            most = fmax(most, sum);
        }
    }
    return most;
}

static void recurrence_is_the_longest_path(void **state) {
    (void)state;
    uint64_t rng = 1;
    for (int k = 0; k < 3000; k++) {
        double d[12], g[12], c[12];
        const double *stage[3] = {d, g, c};
        uint32_t n = 1 + (uint32_t)sl_rng_below(&rng, 12);
        double all = 0;
        for (uint32_t i = 0; i < n; i++) {
            d[i] = spread(&rng), g[i] = spread(&rng), c[i] = spread(&rng);
            all += d[i];
        }
        assert_true(same(sl_eps_replay(d, g, c, n, false), longest_path(stage, n)));
        for (uint32_t i = 0; i < n; i++) all += c[i];
        double shared = sl_eps_replay(d, g, c, n, true);
        assert_true(shared >= all * (1 - 1e-12));
        assert_true(shared >= sl_eps_replay(d, g, c, n, false) * (1 - 1e-12));
    }
}

static void law_is_exact_for_equal_groups(void **state) {
    (void)state;
    uint64_t rng = 2;
    for (int k = 0; k < 3000; k++) {
        const sl_eps_times t = {spread(&rng), spread(&rng), spread(&rng), 0.01 * spread(&rng)};
        sl_eps_cut best, one;
        sl_err err;
        double least = INFINITY;
        uint32_t experts = 1u << sl_rng_below(&rng, 7);
        for (uint32_t n = 1; n <= experts; n *= 2) {
            double d[64], g[64], c[64];
            for (uint32_t i = 0; i < n; i++) {
                d[i] = t.dispatch / n + t.overhead;
                g[i] = t.compute / n + t.overhead;
                c[i] = t.combine / n + t.overhead;
            }
            double time = sl_eps_replay(d, g, c, n, false);
            assert_true(same(time, sl_eps_time(&t, n)));
            least = fmin(least, time);
        }
        assert_int_equal(sl_eps_best(&t, experts, false, &best, &err), SL_OK);
        assert_true(same(best.time, least));
        /* The best divisor lies beside the real optimum. */
        double real = fmin(fmax(sl_eps_best_real(&t), 1), experts);
        assert_true(best.n <= 2 * real && best.n >= real / 2);
        assert_int_equal(sl_eps_best(&t, 1, false, &one, &err), SL_OK);
        assert_true(one.n == 1 && one.time >= best.time);
    }
}

static void condition_decides_exactly(void **state) {
    (void)state;
    uint64_t rng = 3;
    int gains = 0;
    for (int k = 0; k < 20000; k++) {
        sl_eps_cut cut[2] = {{.n = 1}, {.n = 2 + (uint32_t)sl_rng_below(&rng, 15)}};
        double *const field[2][3] = {{&cut[0].dispatch, &cut[0].compute, &cut[0].combine},
                                     {&cut[1].dispatch, &cut[1].compute, &cut[1].combine}};
        sl_err err;
        uint32_t best;
        for (int i = 0; i < 3; i++) {
            *field[0][i] = spread(&rng);
            double more = 1 + (double)sl_rng_below(&rng, 1000) / 1000;
            *field[1][i] = *field[0][i] * more / cut[1].n;
        }
        assert_int_equal(sl_eps_choose(cut, 2, NULL, false, &best, &err), SL_OK);
        assert_int_equal(sl_eps_gains(&cut[0], &cut[1]), best == 1);
        gains += best == 1;
    }
    assert_true(gains > 1000 && gains < 19000);
}

/* Two stages decide for too few groups: what the paper's formula loses. */
static void published_choice_loses(void **state) {
    (void)state;
    uint64_t rng = 4;
    int same_n = 0, all = 5000;
    double sum = 0;
    for (int k = 0; k < all; k++) {
        const sl_eps_times t = {spread(&rng), spread(&rng), spread(&rng), 0.01 * spread(&rng)};
        double communication = t.dispatch + t.combine, most = -INFINITY;
        uint32_t printed = 1;
        sl_eps_cut best;
        sl_err err;
        for (uint32_t n = 1; n <= 32; n *= 2) {
            double gain = sl_eps_published_gain(communication, t.compute, t.overhead, 0, n);
            if (gain > most) most = gain, printed = n;
        }
        assert_int_equal(sl_eps_best(&t, 32, false, &best, &err), SL_OK);
        double loss = sl_eps_time(&t, printed) / best.time - 1;
        assert_true(loss >= -1e-12);
        same_n += printed == best.n;
        sum += loss;
    }
    print_message("printed N is best in %d of %d, mean loss %.1f %%\n", same_n, all,
                  100 * sum / all);
    assert_true(same_n < all);
    assert_true(same(sl_eps_published_best(4, 9, 0.25), 4));
    assert_true(same(sl_eps_published_gain(4, 9, 0.25, 0.5, 4), 4 - 0.5 - 2));
}

static void divisors_only(void **state) {
    (void)state;
    const sl_eps_times t = {10, 10, 10, 0.11};
    sl_eps_cut best;
    sl_err err;
    assert_int_equal(sl_eps_best(&t, 20, false, &best, &err), SL_OK);
    assert_int_equal(best.n, 10); /* the real optimum, 13.5, is between two divisors */
    assert_int_equal(sl_eps_best(&t, 13, false, &best, &err), SL_OK);
    assert_int_equal(best.n, 13);
    assert_int_equal(sl_eps_best(&t, 0, false, &best, &err), SL_ERR_ARG);
    sl_eps_cut bad = {.n = 2, .dispatch = -1};
    uint32_t i;
    assert_int_equal(sl_eps_choose(&bad, 1, NULL, false, &i, &err), SL_ERR_ARG);
}

/* A layer is its line, or what its worker computes if that is longer, behind attention. */
static void layers_are_lines_beside_work(void **state) {
    (void)state;
    uint64_t rng = 6;
    for (int k = 0; k < 3000; k++) {
        sl_eps_cut c = {1 + (uint32_t)sl_rng_below(&rng, 16), spread(&rng), spread(&rng),
                        spread(&rng), 0};
        const sl_eps_beside b = {spread(&rng), k % 2 ? spread(&rng) : 0, k % 3 ? spread(&rng) : 0};
        double d[16], g[16], back[16];
        uint32_t best;
        sl_err err;
        for (uint32_t i = 0; i < c.n; i++) d[i] = c.dispatch, g[i] = c.compute, back[i] = c.combine;
        for (int shared = 0; shared < 2; shared++) {
            const double away = b.lag + sl_eps_replay(d, g, back, c.n, shared);
            const double all = b.attention + fmax(away, b.shared + c.n * c.compute);
            assert_true(same(sl_eps_layer(&c, &b, shared), all));
            assert_int_equal(sl_eps_choose(&c, 1, &b, shared, &best, &err), SL_OK);
            assert_true(best == 0 && same(c.time, all));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recurrence_is_the_longest_path),
        cmocka_unit_test(law_is_exact_for_equal_groups),
        cmocka_unit_test(condition_decides_exactly),
        cmocka_unit_test(published_choice_loses),
        cmocka_unit_test(divisors_only),
        cmocka_unit_test(layers_are_lines_beside_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
