/* What has room: machines are shared, what is unknown is no obstacle, KV takes what experts leave.
 */
#include "sched/room.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

enum { N = 4, MB = 1000000 };

static const uint64_t two_machines[N] = {7, 7, 9, 9};
static const uint8_t *own; /* NULL: nobody's device has memory */
static sl_room_lack lack;

static bool has(const uint64_t *left, const uint32_t *added, const uint8_t *takes, uint64_t kv) {
    const sl_room r = {N, left, two_machines, own};
    const sl_room_need n = {added, 10 * MB, takes, kv};
    lack = (sl_room_lack){0};
    return sl_room_has(&r, &n, &lack);
}

static void workers_of_one_machine_share_it(void **state) {
    (void)state;
    static const uint64_t left[N] = {35 * MB, 35 * MB, 35 * MB, 35 * MB};
    assert_true(has(left, (uint32_t[]){2, 1, 0, 3}, NULL, 0));
    assert_true(has(left, (uint32_t[]){0, 0, 0, 0}, NULL, 0));
    assert_false(has(left, (uint32_t[]){0, 0, 2, 2}, NULL, 0));
    assert_int_equal(lack.worker, 2);
    assert_int_equal(lack.needs, 40 * MB);
    assert_int_equal(lack.has, 35 * MB);
    char why[200];
    sl_room_say(&lack, why, sizeof why);
    assert_non_null(strstr(why, "need 40.0 MB"));
    assert_non_null(strstr(why, "worker 2's machine has 35.0 MB left"));
}

static void the_least_that_anybody_says_counts_and_nobody_else_is_asked(void **state) {
    (void)state;
    static const uint64_t left[N] = {35 * MB, 5 * MB, UINT64_MAX, UINT64_MAX};
    assert_true(has(left, (uint32_t[]){3, 0, 0, 0}, NULL, 0));
    assert_false(has(left, (uint32_t[]){3, 1, 0, 0}, NULL, 0));
    assert_int_equal(lack.has, 5 * MB);
    assert_true(has(left, (uint32_t[]){0, 0, UINT32_MAX, UINT32_MAX}, NULL, 0)); /* unknown */
}

static void kv_goes_where_experts_leave_room(void **state) {
    (void)state;
    static const uint64_t left[N] = {35 * MB, 35 * MB, 20 * MB, 20 * MB};
    static const uint8_t takes[N] = {1, 0, 1, 1};
    assert_true(has(left, (uint32_t[]){0, 0, 0, 0}, takes, 55 * MB));
    assert_false(has(left, (uint32_t[]){0, 0, 0, 0}, takes, 55 * MB + 1));
    assert_int_equal(lack.worker, SL_ROOM_NONE);
    assert_int_equal(lack.has, 55 * MB);
    assert_true(has(left, (uint32_t[]){0, 2, 0, 1}, takes, 25 * MB));
    assert_false(has(left, (uint32_t[]){0, 2, 0, 1}, takes, 26 * MB));
    assert_int_equal(lack.needs, 26 * MB);
    char why[200];
    sl_room_say(&lack, why, sizeof why);
    assert_non_null(strstr(why, "KV of requests that move needs 26.0 MB"));
    /* Nobody says what is free there. */
    static const uint64_t unknown[N] = {UINT64_MAX, UINT64_MAX, 0, 0};
    assert_true(has(unknown, (uint32_t[]){0, 0, 0, 0}, takes, 1ull << 60));
}

/* Which is a machine of its own, whoever else is on that machine. */
static void the_memory_of_a_gpu_is_called_so(void **state) {
    (void)state;
    static const uint8_t on_gpus[N] = {0, 0, 1, 1};
    static const uint64_t left[N] = {100 * MB, 100 * MB, 25 * MB, 25 * MB};
    char why[200];
    own = on_gpus;
    assert_true(has(left, (uint32_t[]){5, 5, 1, 1}, NULL, 0));
    assert_false(has(left, (uint32_t[]){5, 5, 1, 2}, NULL, 0));
    assert_true(lack.own && lack.worker == 2);
    sl_room_say(&lack, why, sizeof why);
    assert_non_null(strstr(why, "need 30.0 MB"));
    assert_non_null(strstr(why, "worker 2's GPU has 25.0 MB left"));
    assert_false(has(left, (uint32_t[]){5, 6, 1, 1}, NULL, 0));
    assert_false(lack.own);
    own = NULL;
}

static void numbers_do_not_wrap(void **state) {
    (void)state;
    static const uint64_t left[N] = {1ull << 62, 1ull << 62, 1ull << 62, 1ull << 62};
    const sl_room r = {N, left, two_machines, NULL};
    const uint32_t added[N] = {UINT32_MAX, UINT32_MAX, 0, 0};
    const sl_room_need n = {added, 1ull << 40, NULL, 0};
    assert_false(sl_room_has(&r, &n, &lack));
    assert_true(lack.needs > 1ull << 62);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers_of_one_machine_share_it),
        cmocka_unit_test(the_least_that_anybody_says_counts_and_nobody_else_is_asked),
        cmocka_unit_test(kv_goes_where_experts_leave_room),
        cmocka_unit_test(the_memory_of_a_gpu_is_called_so),
        cmocka_unit_test(numbers_do_not_wrap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
