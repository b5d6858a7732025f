/* Which form of the kernels for few rows is taken: by times and results of runs that are told. */
#include "stage/cuda/few_choice.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#define N 4u

/* What form i takes, the k-th time it is run, and by how much its results are off. */
typedef struct told {
    double ms[SL_CUDA_FEW_FORMS], noise;
    float off[SL_CUDA_FEW_FORMS];
    uint32_t runs[SL_CUDA_FEW_FORMS];
} told;

static double run(void *ctx, uint32_t i, float *out) {
    told *t = ctx;
    for (uint32_t j = 0; j < N; j++) out[j] = (float)j + (j == 2 ? t->off[i] : 0);
    return t->ms[i] + (t->runs[i]++ % 2 ? 0 : t->noise * (i + 1));
}

static uint32_t choose(told *t) {
    float first[N], out[N];
    const sl_cuda_few_trial trial = {.run = run, .ctx = t, .n = N, .first = first, .out = out};
    return sl_cuda_few_choose(&trial);
}

static told even(void) {
    told t;
    memset(&t, 0, sizeof t);
    for (uint32_t i = 0; i < SL_CUDA_FEW_FORMS; i++) t.ms[i] = 1;
    return t;
}

static void the_fastest_is_taken(void **state) {
    told t = even();
    (void)state;
    t.noise = 0.5;
    t.ms[3] = 0.9;
    t.ms[6] = 0.8;
    assert_int_equal(choose(&t), 6);
}

static void little_is_not_enough(void **state) {
    told t = even();
    (void)state;
    assert_int_equal(choose(&t), 0);
    t.ms[5] = 0.985;
    assert_int_equal(choose(&t), 0);
}

static void other_results_are_out(void **state) {
    told t = even();
    (void)state;
    t.ms[1] = 0.5, t.off[1] = 0.01f;
    t.ms[2] = 0.6, t.off[2] = NAN;
    t.ms[4] = 0.7, t.off[4] = 1e-6f;
    assert_int_equal(choose(&t), 4);
    assert_int_equal(t.runs[1], 1); /* never again */
}

static void what_cannot_run_is_out(void **state) {
    told t = even();
    (void)state;
    t.ms[7] = 0;
    t.ms[3] = 0.5;
    assert_int_equal(choose(&t), 3);
    t.ms[0] = 0;
    assert_int_equal(choose(&t), 0);
}

static void forms_are_all_there_are(void **state) {
    uint32_t seen = 0;
    (void)state;
    for (uint32_t i = 0; i < SL_CUDA_FEW_FORMS; i++) {
        const sl_cuda_few f = sl_cuda_few_form(i);
        seen |= 1u << (f.ring + 2 * f.fetch + 4 * f.routes);
    }
    assert_int_equal(seen, 0xff);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_fastest_is_taken), cmocka_unit_test(little_is_not_enough),
        cmocka_unit_test(other_results_are_out), cmocka_unit_test(what_cannot_run_is_out),
        cmocka_unit_test(forms_are_all_there_are)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
