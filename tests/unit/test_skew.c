/* Drawn routing: the popularity asked for, distinct experts, a function of token, position and
 * block. */
#include "base/mem.h"
#include "format/plan_lab.h"
#include "model/skew.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define N_EXPERTS 8u
#define N_MOE     4u

static sl_skew *make(double theta, bool permuted, uint64_t seed, uint32_t n, uint32_t k) {
    const sl_model_spec m = {.n_experts = n, .top_k = k, .n_moe = N_MOE};
    const sl_route_skew how = {.on = true, .permuted = permuted, .theta = theta, .seed = seed};
    sl_skew *s = NULL;
    sl_err err = {0};
    if (sl_skew_create(&how, &m, &s, &err) != SL_OK) fail_msg("%s", err.msg);
    return s;
}

static void count(const sl_skew *s, uint32_t moe, uint32_t k, uint32_t rows, uint32_t *hits) {
    uint32_t expert[SL_MAX_TOP_K];
    float gate[SL_MAX_TOP_K];
    memset(hits, 0, N_EXPERTS * sizeof *hits);
    for (uint32_t r = 0; r < rows; r++) {
        sl_skew_draw(s, r * 7 % 1000, r, moe, expert, gate);
        for (uint32_t j = 0; j < k; j++) {
            assert_true(expert[j] < N_EXPERTS);
            assert_true(j == 0 || expert[j] > expert[j - 1]);
            assert_true(gate[j] == 1.0f / (float)k);
            hits[expert[j]]++;
        }
    }
}

/* Top-1 against p_e: chi-square with 7 degrees of freedom, P(> 35) is 1e-5. */
static void popularity_is_the_one_asked_for(void **state) {
    (void)state;
    static const double thetas[] = {0, 0.3, 0.6, 1.0};
    for (size_t t = 0; t < SL_LEN(thetas); t++) {
        uint32_t hits[N_EXPERTS], rows = 20000;
        double sum = 0, chi = 0;
        sl_skew *s = make(thetas[t], false, 3 + t, N_EXPERTS, 1);
        count(s, 2, 1, rows, hits);
        for (uint32_t e = 0; e < N_EXPERTS; e++) sum += exp(-thetas[t] * e);
        for (uint32_t e = 0; e < N_EXPERTS; e++) {
            double want = rows * exp(-thetas[t] * e) / sum;
            chi += (hits[e] - want) * (hits[e] - want) / want;
        }
        printf("theta %.1f: chi-square %.1f of 7\n", thetas[t], chi);
        assert_true(chi < 35);
        sl_skew_free(s);
    }
}

/* Top-2 without replacement: the second expert's probabilities follow from the first's. */
static void two_experts_are_drawn_without_replacement(void **state) {
    (void)state;
    uint32_t hits[N_EXPERTS], rows = 20000;
    double p[N_EXPERTS], sum = 0, chi = 0;
    sl_skew *s = make(1.0, false, 11, N_EXPERTS, 2);
    count(s, 0, 2, rows, hits);
    for (uint32_t e = 0; e < N_EXPERTS; e++) sum += p[e] = exp(-1.0 * e);
    for (uint32_t e = 0; e < N_EXPERTS; e++) {
        double both = p[e] / sum;
        for (uint32_t f = 0; f < N_EXPERTS; f++)
            if (f != e) both += p[f] / sum * (p[e] / (sum - p[f]));
        chi += pow(hits[e] - rows * both, 2) / (rows * both * (1 - both) + 1);
    }
    printf("top-2: chi-square %.1f of 8\n", chi);
    assert_true(chi < 40);
    sl_skew_free(s);
}

/* Every block has the same popularities in its own order; without `permuted` in the same order. */
static void blocks_differ_when_permuted(void **state) {
    (void)state;
    sl_skew *s = make(1.0, true, 5, N_EXPERTS, 1), *same = make(1.0, false, 5, N_EXPERTS, 1);
    uint32_t hottest[2][N_MOE], differ = 0;
    for (uint32_t l = 0; l < N_MOE; l++) {
        for (uint32_t which = 0; which < 2; which++) {
            uint32_t hits[N_EXPERTS], best = 0;
            count(which ? same : s, l, 1, 2000, hits);
            for (uint32_t e = 1; e < N_EXPERTS; e++)
                if (hits[e] > hits[best]) best = e;
            assert_in_range(hits[best], 1100, 1400); /* 0.632 of 2000 */
            hottest[which][l] = best;
        }
        differ += hottest[0][l] != hottest[0][0];
        assert_int_equal(hottest[1][l], 0);
    }
    assert_true(differ > 0);
    sl_skew_free(s);
    sl_skew_free(same);
}

static void draws_depend_on_nothing_else(void **state) {
    (void)state;
    uint32_t a[4], b[4], differ[4] = {0};
    float gate[4];
    sl_skew *s = make(0.05, true, 9, 64, 4), *t = make(0.05, true, 9, 64, 4),
            *other = make(0.05, true, 10, 64, 4);
    for (uint32_t i = 0; i < 200; i++) {
        sl_skew_draw(s, i, 3 * i, i % N_MOE, a, gate);
        sl_skew_draw(t, i, 3 * i, i % N_MOE, b, gate);
        assert_memory_equal(a, b, sizeof a);
        sl_skew_draw(s, i + 1, 3 * i, i % N_MOE, b, gate);
        differ[0] += memcmp(a, b, sizeof a) != 0;
        sl_skew_draw(s, i, 3 * i + 1, i % N_MOE, b, gate);
        differ[1] += memcmp(a, b, sizeof a) != 0;
        sl_skew_draw(s, i, 3 * i, (i + 1) % N_MOE, b, gate);
        differ[2] += memcmp(a, b, sizeof a) != 0;
        sl_skew_draw(other, i, 3 * i, i % N_MOE, b, gate);
        differ[3] += memcmp(a, b, sizeof a) != 0;
    }
    for (int i = 0; i < 4; i++) assert_true(differ[i] > 190);
    sl_skew_free(s);
    sl_skew_free(t);
    sl_skew_free(other);
}

/* Weights that vanish still leave k distinct experts, and all of them when k is all. */
static void steep_skews_still_choose_k(void **state) {
    (void)state;
    uint32_t hits[N_EXPERTS];
    sl_skew *s = make(20, false, 1, N_EXPERTS, N_EXPERTS);
    count(s, 0, N_EXPERTS, 50, hits);
    for (uint32_t e = 0; e < N_EXPERTS; e++) assert_int_equal(hits[e], 50);
    sl_skew_free(s);
    uint32_t expert[40];
    float gate[40];
    s = make(20, false, 1, 512, 40);
    sl_skew_draw(s, 1, 2, 3, expert, gate);
    for (uint32_t j = 0; j < 40; j++) assert_int_equal(expert[j], j);
    sl_skew_free(s);
}

static void text_of_a_skew(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double theta;
        bool permuted;
        uint64_t seed;
    } good[] = {{"exp:0.6", 0.6, false, 1},
                {"exp:1:permuted", 1, true, 1},
                {"exp:0:77", 0, false, 77},
                {"exp:2e-1:permuted:18446744073709551615", 0.2, true, UINT64_MAX}};
    static const char *const bad[] = {"",
                                      "0.6",
                                      "exp:",
                                      "exp:-1",
                                      "exp:21",
                                      "exp:nan",
                                      "exp:1:",
                                      "exp:1:perm",
                                      "exp:1:-1",
                                      "exp:1:1:2",
                                      "exp:1:permuted:",
                                      "zipf:1",
                                      "exp:1 ",
                                      "exp:1:99999999999999999999"};
    sl_err err = {0};
    for (size_t i = 0; i < SL_LEN(good); i++) {
        sl_route_skew s = {0}, again = {0};
        char text[SL_SKEW_TEXT];
        if (sl_route_skew_parse(good[i].text, &s, &err) != SL_OK) fail_msg("%s", err.msg);
        assert_true(s.on && s.theta == good[i].theta);
        assert_int_equal(s.permuted, good[i].permuted);
        assert_true(s.seed == good[i].seed);
        sl_route_skew_print(&s, text);
        assert_int_equal(sl_route_skew_parse(text, &again, &err), SL_OK);
        assert_true(again.theta == s.theta && again.seed == s.seed && again.permuted == s.permuted);
    }
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        sl_route_skew s = {0};
        if (sl_route_skew_parse(bad[i], &s, &err) != SL_ERR_ARG) fail_msg("accepted %s", bad[i]);
        assert_non_null(strstr(err.msg, "route skew"));
        assert_false(s.on);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(popularity_is_the_one_asked_for),
        cmocka_unit_test(two_experts_are_drawn_without_replacement),
        cmocka_unit_test(blocks_differ_when_permuted),
        cmocka_unit_test(draws_depend_on_nothing_else),
        cmocka_unit_test(steep_skews_still_choose_k),
        cmocka_unit_test(text_of_a_skew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
