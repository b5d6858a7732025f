#include "model/sampler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

#define VOCAB 64u

static sl_arena scratch;

static int make_scratch(void **state) {
    (void)state;
    sl_err err;
    return sl_arena_create(sl_sampler_scratch_bytes(200000), &scratch, &err) != SL_OK;
}

static int free_scratch(void **state) {
    (void)state;
    sl_arena_free(&scratch);
    return 0;
}

static void fill(float *logits) {
    for (uint32_t i = 0; i < VOCAB; i++) logits[i] = 3.0f * sinf((float)(i * i));
}

static void greedy_takes_the_largest_and_the_lower_id(void **state) {
    (void)state;
    float l[VOCAB] = {0};
    sl_sampling s = {.top_p = 1};
    l[7] = l[9] = 2;
    assert_int_equal(sl_sample(&s, l, VOCAB, 0, &scratch), 7);
    l[0] = NAN;
    assert_int_equal(sl_sample(&s, l, VOCAB, 0, &scratch), 7);
    s.temperature = 1e-30f; /* two equals share the mass, all others vanish */
    for (uint64_t p = 0; p < 20; p++) {
        uint32_t id = sl_sample(&s, l, VOCAB, p, &scratch);
        assert_true(id == 7 || id == 9);
    }
}

static void strange_logits_still_give_an_id(void **state) {
    (void)state;
    float l[VOCAB];
    sl_sampling s = {.temperature = 1, .top_p = 0.5f, .top_k = 3};
    for (uint32_t i = 0; i < VOCAB; i++) l[i] = NAN;
    assert_true(sl_sample(&s, l, VOCAB, 0, &scratch) < VOCAB);
    for (uint32_t i = 0; i < VOCAB; i++) l[i] = -INFINITY;
    assert_true(sl_sample(&s, l, VOCAB, 0, &scratch) < VOCAB);
    l[11] = 0;
    for (uint64_t p = 0; p < 50; p++) assert_int_equal(sl_sample(&s, l, VOCAB, p, &scratch), 11);
    l[12] = INFINITY;
    assert_int_equal(sl_sample(&s, l, VOCAB, 0, &scratch), 12);
    for (uint32_t i = 0; i < VOCAB; i++) l[i] = i == 20 ? -5.0f : NAN;
    for (uint64_t p = 0; p < 50; p++) assert_int_equal(sl_sample(&s, l, VOCAB, p, &scratch), 20);
}

/* Reference: sort all, cut, renormalise. Fills the probability of each id. */
static void expected(const sl_sampling *s, const float *logits, double p[VOCAB]) {
    uint32_t order[VOCAB], k = s->top_k && s->top_k < VOCAB ? s->top_k : VOCAB;
    double w[VOCAB], mass = 0, cut = 0;
    for (uint32_t i = 0; i < VOCAB; i++) order[i] = i;
    for (uint32_t i = 1; i < VOCAB; i++)
        for (uint32_t j = i; j > 0 && logits[order[j]] > logits[order[j - 1]]; j--) {
            uint32_t t = order[j];
            order[j] = order[j - 1];
            order[j - 1] = t;
        }
    for (uint32_t i = 0; i < VOCAB; i++) p[i] = 0;
    for (uint32_t i = 0; i < k; i++) mass += w[i] = exp((double)logits[order[i]] / s->temperature);
    uint32_t kept = 0;
    while (kept < k && (kept == 0 || cut < mass * s->top_p)) cut += w[kept++];
    for (uint32_t i = 0; i < kept; i++) p[order[i]] = w[i] / cut;
}

static void draws_follow_the_distribution(void **state) {
    (void)state;
    static const sl_sampling cases[] = {
        {.temperature = 1, .top_p = 1},
        {.temperature = 0.7f, .top_p = 0.8f},
        {.temperature = 1.5f, .top_p = 1, .top_k = 5},
        {.temperature = 2, .top_p = 0.6f, .top_k = 20},
        {.temperature = 1, .top_p = 1e-6f},
        {.temperature = 100, .top_p = 0.999f, .top_k = VOCAB},
    };
    const int n = 40000;
    float l[VOCAB];
    fill(l);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        sl_sampling s = cases[c];
        double p[VOCAB];
        int count[VOCAB] = {0};
        expected(&s, l, p);
        s.seed = 9;
        for (int i = 0; i < n; i++) count[sl_sample(&s, l, VOCAB, (uint64_t)i, &scratch)]++;
        for (uint32_t i = 0; i < VOCAB; i++) {
            double sigma = sqrt(p[i] * (1 - p[i]) / n);
            assert_true(fabs((double)count[i] / n - p[i]) <= 5 * sigma + 1e-9);
        }
    }
    assert_int_equal(scratch.used, 0);
}

static void a_draw_depends_on_seed_choice_and_position_only(void **state) {
    (void)state;
    float l[VOCAB] = {0};
    sl_sampling a = {.temperature = 1, .top_p = 0.95f, .seed = 1}, b = a, c = a;
    int differ_seed = 0, differ_choice = 0, differ_position = 0;
    b.seed = 2;
    c.choice = 1;
    for (uint64_t p = 0; p < 200; p++) {
        uint32_t id = sl_sample(&a, l, VOCAB, p, &scratch);
        assert_int_equal(sl_sample(&a, l, VOCAB, p, &scratch), id);
        differ_seed += id != sl_sample(&b, l, VOCAB, p, &scratch);
        differ_choice += id != sl_sample(&c, l, VOCAB, p, &scratch);
        differ_position += id != sl_sample(&a, l, VOCAB, p + 1, &scratch);
    }
    assert_true(differ_seed > 100 && differ_choice > 100 && differ_position > 100);
}

static void ranges_are_checked_by_name(void **state) {
    (void)state;
    sl_err err = {0};
    sl_sampling s = {.temperature = -0.5f, .top_p = 1};
    assert_int_equal(sl_sampling_check(&s, &err), SL_ERR_LIMIT);
    assert_string_equal(err.msg, "temperature: -0.5 is outside 0..100");
    s = (sl_sampling){.temperature = 1, .top_p = 0};
    assert_int_equal(sl_sampling_check(&s, &err), SL_ERR_LIMIT);
    assert_string_equal(err.msg, "top_p: 0 is outside (0..1]");
    s.top_p = NAN;
    assert_int_equal(sl_sampling_check(&s, &err), SL_ERR_LIMIT);
    s.top_p = 1;
    assert_int_equal(sl_sampling_check(&s, &err), SL_OK);
}

static void a_real_vocabulary_fits_its_scratch(void **state) {
    (void)state;
    uint32_t n = 151936;
    float *l = malloc(n * sizeof *l);
    for (uint32_t i = 0; i < n; i++) l[i] = cosf((float)i) * 4;
    sl_sampling s = {.temperature = 1, .top_p = 0.9f, .seed = 3};
    sl_arena own = {0};
    sl_err err;
    assert_int_equal(sl_arena_create(sl_sampler_scratch_bytes(n), &own, &err), SL_OK);
    for (uint64_t p = 0; p < 4; p++) assert_true(sl_sample(&s, l, n, p, &own) < n);
    sl_arena_free(&own);
    free(l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_largest_and_the_lower_id),
        cmocka_unit_test(strange_logits_still_give_an_id),
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(a_draw_depends_on_seed_choice_and_position_only),
        cmocka_unit_test(ranges_are_checked_by_name),
        cmocka_unit_test(a_real_vocabulary_fits_its_scratch),
    };
    return cmocka_run_group_tests(tests, make_scratch, free_scratch);
}
