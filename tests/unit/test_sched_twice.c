/* The book of rows that were asked of two. */
#include "base/mem.h"
#include "sched/twice.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static sl_err err;

static sl_twice fresh(void) {
    sl_twice t;
    assert_int_equal(sl_twice_create(3, &t, &err), SL_OK);
    return t;
}

static void is(const sl_twice *t, uint64_t counted, uint64_t late, uint64_t lost, uint64_t out) {
    assert_int_equal(t->counted, counted);
    assert_int_equal(t->late, late);
    assert_int_equal(t->lost, lost);
    assert_int_equal(t->out, out);
    assert_int_equal(t->asked, counted + late + lost + out);
}

static void rows_are_out_until_they_come(void **state) {
    (void)state;
    sl_twice t = fresh();
    sl_twice_asked(&t, 0, 1, 5); /* the owner, who is done without */
    sl_twice_asked(&t, 1, 1, 3);
    sl_twice_asked(&t, 2, 1, 2);
    is(&t, 0, 0, 0, 10);
    sl_twice_counted(&t, 1, 3);
    sl_twice_counted(&t, 2, 2);
    is(&t, 5, 0, 0, 5);
    sl_twice_late(&t, 0, 5);
    is(&t, 5, 5, 0, 0);
    sl_twice_late(&t, 0, 5); /* given up, never asked of two */
    is(&t, 5, 5, 0, 0);
    sl_twice_asked(&t, 0, 1, 4);
    sl_twice_first(&t, 0, 4);
    is(&t, 9, 5, 0, 0);
    assert_int_equal(t.first, 4);
    sl_twice_free(&t);
}

static void they_are_lost_with_who_owes_them(void **state) {
    (void)state;
    sl_twice t = fresh();
    sl_twice_asked(&t, 0, 1, 5);
    sl_twice_asked(&t, 1, 1, 3);
    sl_twice_gone(&t, 0);
    is(&t, 0, 0, 5, 3);
    sl_twice_gone(&t, 0);
    sl_twice_gone(&t, 2);
    is(&t, 0, 0, 5, 3);
    sl_twice_free(&t);
}

/* It has dropped what it had to do by the plan before. */
static void they_are_lost_when_a_later_plan_is_served(void **state) {
    (void)state;
    sl_twice t = fresh();
    sl_twice_asked(&t, 0, 1, 5);
    sl_twice_asked(&t, 1, 1, 3);
    sl_twice_serves(&t, 0, 1);
    is(&t, 0, 0, 0, 8);
    sl_twice_late(&t, 0, 2); /* as it took that plan */
    sl_twice_serves(&t, 0, 2);
    is(&t, 0, 2, 3, 3);
    sl_twice_asked(&t, 1, 2, 4);
    is(&t, 0, 2, 6, 4);
    sl_twice_counted(&t, 1, 4);
    is(&t, 4, 2, 6, 0);
    sl_twice_free(&t);
}

static void memory_runs_out(void **state) {
    (void)state;
    sl_twice t;
    sl_mem_fail_at(1);
    assert_int_equal(sl_twice_create(3, &t, &err), SL_ERR_NOMEM);
    sl_mem_fail_at(0);
    sl_twice_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_out_until_they_come),
        cmocka_unit_test(they_are_lost_with_who_owes_them),
        cmocka_unit_test(they_are_lost_when_a_later_plan_is_served),
        cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
