#include "base/rng.h"
#include "sched/pacer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
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
        cmocka_unit_test(alone_a_prompt_is_not_held_back),
        cmocka_unit_test(every_prompt_moves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
