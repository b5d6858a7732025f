/* Work at low priority: it is done when the call returns, ticks go on under it, its priority is its
 * own, and it hears when it has had its time. */
#include "base/quiet.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <time.h>
#include <cmocka.h>

typedef struct job {
    int policy, nice, done, begun;
    bool hurried, patient;
    atomic_uint ticks;
} job;

static void tick(void *ctx) {
    atomic_fetch_add(&((job *)ctx)->ticks, 1);
}

static void pause_ms(long ms) {
    const struct timespec t = {.tv_nsec = ms * 1000000};
    nanosleep(&t, NULL);
}

/* Goes on until the caller has ticked, which it may do only while this waits. */
static bool work(void *ctx, const atomic_bool *hurry) {
    job *j = ctx;
    j->nice = getpriority(PRIO_PROCESS, 0);
    j->policy = sched_getscheduler(0);
    while (atomic_load(&j->ticks) < 3) pause_ms(1);
    j->hurried = atomic_load(hurry);
    j->done = 1;
    return true;
}

static void gives_way(void **state) {
    (void)state;
    int before = getpriority(PRIO_PROCESS, 0), policy = sched_getscheduler(0);
    job j = {0};
    const sl_quiet q = {.tick = tick, .ctx = &j, .tick_us = 100, .at_most_ms = 3600000};
    sl_quiet_run(&q, work, &j);
    assert_int_equal(j.done, 1);
    assert_false(j.hurried);
    assert_true(j.policy == SCHED_IDLE || j.nice > before || before == 19);
    assert_int_equal(sched_getscheduler(0), policy);
    assert_int_equal(getpriority(PRIO_PROCESS, 0), before);
}

static bool until_hurried(void *ctx, const atomic_bool *hurry) {
    job *j = ctx;
    while (!atomic_load(hurry)) pause_ms(1);
    j->done = 1;
    return true;
}

static void hears_when_it_has_had_its_time(void **state) {
    (void)state;
    job j = {0};
    const sl_quiet q = {.at_most_ms = 5};
    sl_quiet_run(&q, until_hurried, &j);
    assert_int_equal(j.done, 1);
}

/* Never ends at a low priority, as on a machine that has no time for it. */
static bool until_loud(void *ctx, const atomic_bool *hurry) {
    job *j = ctx;
    j->begun++;
    while (hurry && !atomic_load(hurry)) pause_ms(1);
    if (hurry) return false;
    j->nice = getpriority(PRIO_PROCESS, 0);
    j->patient = true;
    unsigned seen = atomic_load(&j->ticks);
    while (atomic_load(&j->ticks) < seen + 3) pause_ms(1);
    j->done = 1;
    return true;
}

static void what_is_given_up_begins_anew_at_the_callers_priority(void **state) {
    (void)state;
    job j = {0};
    const sl_quiet q = {.tick = tick, .ctx = &j, .tick_us = 100, .at_most_ms = 5};
    sl_quiet_run(&q, until_loud, &j);
    assert_int_equal(j.done, 1);
    assert_int_equal(j.begun, 2);
    assert_true(j.patient);
    assert_int_equal(j.nice, getpriority(PRIO_PROCESS, 0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_way),
        cmocka_unit_test(hears_when_it_has_had_its_time),
        cmocka_unit_test(what_is_given_up_begins_anew_at_the_callers_priority),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
