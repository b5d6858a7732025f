/* The pacer against models of machines. */
#include "base/rng.h"
#include "sched/pacer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

/* A machine whose step takes floor_us + row_us a prompt row. */
static uint64_t machine(double decode_us, double row_us, uint32_t prompt_rows, uint64_t *rng) {
    double noise = 0.9 + 0.2 * (double)sl_rng_below(rng, 1000) / 1000;
    return (uint64_t)((decode_us + row_us * prompt_rows) * noise);
}

static void steps_stay_within_the_stretch(void **state) {
    (void)state;
    const struct {
        double decode_us, row_us, stretch;
    } cases[] = {{20000, 1000, 2}, {20000, 9000, 1.6}, {500, 20, 3}, {40000, 100, 1.5}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        sl_pacer p = {.stretch = cases[c].stretch};
        uint64_t rng = c + 1, over = 0, rows = 0;
        for (int i = 0; i < 2000; i++) {
            uint32_t chunk = sl_pacer_chunk(&p, 4);
            uint64_t us = machine(cases[c].decode_us, cases[c].row_us, chunk, &rng);
            sl_pacer_learn(&p, 4, chunk, us);
            rows += chunk;
            if (i > 50) over += (double)us > 1.25 * cases[c].stretch * cases[c].decode_us;
        }
        assert_true(over <
                    20); /* noise is +-10 %, a row may be worth more than the whole allowance */
        double ideal = (cases[c].stretch - 1) * cases[c].decode_us / cases[c].row_us;
        assert_true((double)rows / 2000 > 0.6 * (ideal < 1 ? 1 : ideal) - 1);
    }
}

/* A machine whose steps vary: every step by `spread`, what prompt rows add by `row_spread` more,
 * and now and then somebody else has the core for a while. Times of 4 streams of a small model. */
typedef struct noise {
    double spread, row_spread, thefts_per_s, theft_us;
} noise;

static double gauss(uint64_t *rng) {
    double sum = 0;
    for (int i = 0; i < 12; i++) sum += (double)sl_rng_below(rng, 1u << 20) / (1u << 20);
    return sum - 6;
}

static double noisy_step(const noise *n, uint32_t prompt_rows, uint32_t position, uint64_t *rng) {
    double row_us = 6000 + 5000.0 * position / 4096;
    double us = 90000 + row_us * prompt_rows * exp(n->row_spread * gauss(rng));
    us *= exp(n->spread * gauss(rng));
    for (double t = 0, length = us; t < length; t += 1000)
        if ((double)sl_rng_below(rng, 1u << 20) / (1u << 20) < n->thefts_per_s / 1000)
            us += n->theft_us * -log((1 + (double)sl_rng_below(rng, 1u << 20)) / ((1u << 20) + 1));
    return us;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double p99(double *us, size_t n) {
    qsort(us, n, sizeof *us, by_value);
    return us[n * 99 / 100];
}

/* A prompt of 4,096 rows beside decoding requests: 99 of 100 steps take less than twice what 99 of
 * 100 took before it came. */
static void the_tail_at_most_doubles(void **state) {
    (void)state;
    static const noise noises[] = {{0.02, 0, 0.5, 8000},   {0.03, 0.4, 0.5, 8000},
                                   {0.05, 0.4, 2, 15000},  {0.03, 0.6, 1, 10000},
                                   {0.10, 0.3, 10, 30000}, {0.15, 0.2, 25, 50000}};
    static double alone[400], beside[8192];
    for (size_t c = 0; c < sizeof noises / sizeof noises[0]; c++) {
        double worst = 0, seconds = 0, sum = 0;
        for (uint64_t seed = 1; seed <= 20; seed++) {
            sl_pacer p = {.stretch = 1.6};
            uint64_t rng = seed * 1000 + c;
            size_t n = 0;
            for (size_t i = 0; i < 400; i++) {
                alone[i] = noisy_step(&noises[c], 0, 0, &rng);
                sl_pacer_learn(&p, 4, 0, (uint64_t)alone[i]);
            }
            for (uint32_t done = 256; done < 4096 && n < 8192; n++) {
                uint32_t chunk = sl_pacer_chunk(&p, 4);
                beside[n] = noisy_step(&noises[c], chunk, done, &rng);
                sl_pacer_learn(&p, 4, chunk, (uint64_t)beside[n]);
                seconds += beside[n] / 1e6;
                done += chunk;
            }
            double ratio = p99(beside, n) / p99(alone, 400);
            sum += ratio;
            worst = ratio > worst ? ratio : worst;
        }
        printf("noise %zu: P99 x %.2f on average, x %.2f at worst; the prompt takes %.0f s\n", c,
               sum / 20, worst, seconds / 20);
        assert_true(sum / 20 < 1.85);
        assert_true(worst < 2.0);
    }
}

static void alone_a_prompt_is_not_held_back(void **state) {
    (void)state;
    sl_pacer p = {.stretch = 2};
    assert_int_equal(sl_pacer_chunk(&p, 0), UINT32_MAX);
    sl_pacer_learn(&p, 0, 512, 1000000);
    assert_int_equal(sl_pacer_chunk(&p, 0), UINT32_MAX);
    assert_true(p.decode_us == 0 && p.row_us == 0);
}

static void every_prompt_moves(void **state) {
    (void)state;
    sl_pacer p = {.stretch = 1}; /* no allowance at all: still one row at a time */
    uint32_t moved = 0;
    for (int i = 0; i < 100; i++) {
        uint32_t chunk = sl_pacer_chunk(&p, 1);
        moved += chunk;
        sl_pacer_learn(&p, 1, chunk, 100 + 100 * chunk);
    }
    assert_true(moved >= 90);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_stay_within_the_stretch),
        cmocka_unit_test(the_tail_at_most_doubles),
        cmocka_unit_test(alone_a_prompt_is_not_held_back),
        cmocka_unit_test(every_prompt_moves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
