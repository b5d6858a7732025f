/* What experts cost, found again from reports of it. */
#include "plan/expense.h"

#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

static double noise(uint64_t *rng) {
    return 0.9 + 0.2 * (double)sl_rng_below(rng, 1000) / 1000;
}

static void costs_are_found_again(void **state) {
    (void)state;
    static const sl_stage_cost costs[] = {
        {.fixed_us = 30, .row_us = 4}, {.fixed_us = 0, .row_us = 7}, {.fixed_us = 90, .row_us = 0}};
    uint64_t rng = 3;
    for (size_t k = 0; k < 3; k++) {
        sl_expense x = {0};
        sl_stage_cost c = {0};
        for (int i = 0; i < 60; i++) {
            const double calls = 1 + (double)sl_rng_below(&rng, 400);
            const double rows = calls * (1 + (double)sl_rng_below(&rng, 12));
            sl_expense_add(&x, calls, rows,
                           noise(&rng) * (costs[k].fixed_us * calls + costs[k].row_us * rows));
        }
        assert_true(sl_expense_of(&x, &c));
        printf("%.2f and %.2f: %.2f and %.2f\n", costs[k].fixed_us, costs[k].row_us, c.fixed_us,
               c.row_us);
        assert_true(c.fixed_us >= 0 && c.row_us >= 0);
        const double said = 100 * c.fixed_us + 500 * c.row_us,
                     is = 100 * costs[k].fixed_us + 500 * costs[k].row_us;
        assert_true(fabs(said / is - 1) < 0.05);
    }
}

/* One row a call: what is asked for costs what it did, whatever that is made of. */
static void what_cannot_be_told_apart_is_counted_by_the_row(void **state) {
    (void)state;
    sl_expense x = {0};
    sl_stage_cost c = {.fixed_us = 5};
    assert_false(sl_expense_of(&x, &c));
    sl_expense_add(&x, 10, 0, 100);
    sl_expense_add(&x, 10, 20, 0);
    assert_false(sl_expense_of(&x, &c));
    assert_true(c.fixed_us == 5);
    for (int i = 1; i < 20; i++) sl_expense_add(&x, i, 2 * i, 60 * i);
    assert_true(sl_expense_of(&x, &c));
    assert_true(c.fixed_us == 0 && fabs(c.row_us - 30) < 1e-9);
}

/* A device that becomes slower is slower after some dozens of reports. */
static void later_reports_count_more(void **state) {
    (void)state;
    sl_expense x = {0};
    sl_stage_cost c;
    for (int i = 0; i < 400; i++) sl_expense_add(&x, 10, 10 + i % 7, 100);
    for (int i = 0; i < 120; i++) sl_expense_add(&x, 10, 10 + i % 7, 1000);
    assert_true(sl_expense_of(&x, &c));
    assert_true(10 * c.fixed_us + 13 * c.row_us > 500);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(costs_are_found_again),
        cmocka_unit_test(what_cannot_be_told_apart_is_counted_by_the_row),
        cmocka_unit_test(later_reports_count_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
