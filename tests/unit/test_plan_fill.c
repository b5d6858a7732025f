/* Placements from popularity: sums, room, bounds, and how close they come. */
#include "plan/fill.h"

#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

enum { MAX = 256 };

/* Shares add up, nobody hosts more than it has room for, and the cost is what it says. */
static void is_sound(const sl_fill *f, const double *a, uint32_t experts, uint32_t workers,
                     uint32_t slots, double k0) {
    double sum[MAX] = {0}, load[MAX] = {0}, most = 0;
    uint32_t used[MAX] = {0};
    for (uint32_t i = 0; i < f->n; i++) {
        const sl_fill_piece *p = &f->piece[i];
        assert_true(p->expert < experts && p->worker < workers && p->share > 0);
        if (i && f->piece[i - 1].expert == p->expert)
            assert_true(f->piece[i - 1].worker < p->worker);
        sum[p->expert] += p->share;
        used[p->worker]++;
        load[p->worker] += fmax(p->share * a[p->expert], k0);
    }
    for (uint32_t e = 0; e < experts; e++) assert_true(fabs(sum[e] - 1) < 1e-9);
    for (uint32_t w = 0; w < workers; w++) {
        assert_true(used[w] <= slots);
        most = fmax(most, load[w]);
    }
    assert_true(fabs(most - f->cost) <= 1e-9 * fmax(most, 1));
    assert_true(f->cost >= f->bound * (1 - 1e-9));
}

static void skewed(double *a, uint32_t n, uint64_t *rng) {
    for (uint32_t e = 0; e < n; e++) /* exponential */
        a[e] = -log((1 + (double)sl_rng_below(rng, 1u << 20)) / (1 + (1u << 20)));
}

static void replicas_come_close_to_the_bound(void **state) {
    (void)state;
    static const struct {
        uint32_t experts, workers, slots;
        double floor, mean, worst;
    } cases[] = {{8, 8, 2, 0, 1.001, 1.001},   {32, 32, 2, 0, 1.001, 1.001},
                 {8, 8, 2, 0.3, 1.08, 1.12},   {32, 32, 2, 0.3, 1.08, 1.12},
                 {64, 16, 5, 0.3, 1.08, 1.12}, {256, 32, 10, 0.3, 1.08, 1.12}};
    uint64_t rng = 3;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        double mean = 0, worst = 0, whole = 0;
        for (int draw = 0; draw < 30; draw++) {
            double a[MAX], sum = 0;
            sl_fill f, g;
            sl_err err;
            skewed(a, cases[c].experts, &rng);
            for (uint32_t e = 0; e < cases[c].experts; e++) sum += a[e];
            double k0 = cases[c].floor * sum / cases[c].experts;
            assert_int_equal(sl_fill_replicas(a, cases[c].experts, cases[c].workers, cases[c].slots,
                                              k0, &f, &err),
                             SL_OK);
            assert_int_equal(
                sl_fill_whole(a, cases[c].experts, cases[c].workers, cases[c].slots, k0, &g, &err),
                SL_OK);
            is_sound(&f, a, cases[c].experts, cases[c].workers, cases[c].slots, k0);
            is_sound(&g, a, cases[c].experts, cases[c].workers, cases[c].slots, k0);
            assert_true(f.cost <= g.cost);
            mean += f.cost / f.bound / 30;
            worst = fmax(worst, f.cost / f.bound);
            whole += g.cost / g.bound / 30;
            sl_fill_free(&f);
            sl_fill_free(&g);
        }
        printf("%u experts, %u workers, room for %u, floor %g: mean %.3f, worst %.3f of the bound; "
               "without copies %.2f\n",
               cases[c].experts, cases[c].workers, cases[c].slots, cases[c].floor, mean, worst,
               whole);
        assert_true(mean <= cases[c].mean && worst <= cases[c].worst);
    }
}

static void odd_cases(void **state) {
    (void)state;
    const double none[4] = {0}, one[1] = {5}, bad[2] = {1, NAN}, hot[4] = {100, 1, 1, 1};
    sl_fill f;
    sl_err err;
    assert_int_equal(sl_fill_replicas(none, 4, 2, 2, 0, &f, &err), SL_OK);
    is_sound(&f, none, 4, 2, 2, 0);
    sl_fill_free(&f);
    assert_int_equal(sl_fill_replicas(one, 1, 3, 1, 0, &f, &err), SL_OK);
    is_sound(&f, one, 1, 3, 1, 0);
    assert_true(fabs(f.cost - 5.0 / 3) < 1e-9);
    sl_fill_free(&f);
    assert_int_equal(sl_fill_replicas(hot, 4, 2, 3, 0, &f, &err), SL_OK);
    is_sound(&f, hot, 4, 2, 3, 0);
    assert_true(f.cost < 52);
    sl_fill_free(&f);
    assert_int_equal(sl_fill_whole(hot, 4, 2, 2, 0, &f, &err), SL_OK);
    is_sound(&f, hot, 4, 2, 2, 0);
    sl_fill_free(&f);
    assert_int_equal(sl_fill_whole(hot, 4, 1, 3, 0, &f, &err), SL_ERR_INFEASIBLE);
    assert_int_equal(sl_fill_whole(bad, 2, 1, 3, 0, &f, &err), SL_ERR_ARG);
    assert_int_equal(sl_fill_whole(hot, 0, 1, 3, 0, &f, &err), SL_ERR_ARG);
    assert_int_equal(sl_fill_replicas(hot, 4, 1, 4, -1, &f, &err), SL_ERR_ARG);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replicas_come_close_to_the_bound),
        cmocka_unit_test(odd_cases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
