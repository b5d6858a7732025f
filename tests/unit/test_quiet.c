/* Work at low priority: it is done when the call returns, ticks go on under it, its priority is its
 * own, and it hears when it has had its time. */
#include "base/quiet.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <time.h>
#include <cmocka.h>

typedef struct job {
    int nice, done;
    bool hurried;
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
static void work(void *ctx, const atomic_bool *hurry) {
    job *j = ctx;
    j->nice = getpriority(PRIO_PROCESS, 0);
    while (atomic_load(&j->ticks) < 3) pause_ms(1);
    j->hurried = atomic_load(hurry);
    j->done = 1;
}

static void gives_way(void **state) {
    (void)state;
    int before = getpriority(PRIO_PROCESS, 0);
    job j = {0};
    const sl_quiet q = {.tick = tick, .ctx = &j, .tick_us = 100, .at_most_ms = 3600000};
    sl_quiet_run(&q, work, &j);
    assert_int_equal(j.done, 1);
    assert_false(j.hurried);
    assert_true(j.nice > before || before == 19);
    assert_int_equal(getpriority(PRIO_PROCESS, 0), before);
}

static void until_hurried(void *ctx, const atomic_bool *hurry) {
    job *j = ctx;
    while (!atomic_load(hurry)) pause_ms(1);
    j->done = 1;
}

static void hears_when_it_has_had_its_time(void **state) {
    (void)state;
    job j = {0};
    const sl_quiet q = {.at_most_ms = 5};
    sl_quiet_run(&q, until_hurried, &j);
    assert_int_equal(j.done, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_way),
        cmocka_unit_test(hears_when_it_has_had_its_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
