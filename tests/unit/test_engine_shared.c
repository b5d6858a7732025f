/* When shared experts run: the tasks of one attention worker in an emulated deployment. */
#include "engine_steps.h"

/* All requests are there before any worker moves, so lanes begin together. */
static void run(deployment *d) {
    sl_err err;
    uint64_t id;
    await_service(d);
    assert_int_equal(sl_trace_create(1 << 16, &d->worker[0]->trace, &err), SL_OK);
    const sl_request_params p = request_of(d);
    for (uint32_t i = 0; i < REQUESTS; i++)
        assert_int_equal(sl_engine_submit(d->engine, &p, &id, &err), SL_OK);
    for (uint32_t i = 0; i < TURNS && d->ends < REQUESTS; i++) turn(d);
    assert_int_equal(d->ends, REQUESTS);
    assert_int_equal(d->tokens, REQUESTS * NEW);
}

/* The trace of the attention worker as text: "A" router and dispatch, "S" shared, "M" merge, each
 * with its lane; blocks are apart in nothing, steps begin with "|". */
static char *order_of(const deployment *d, char *text, size_t size) {
    const sl_trace *t = d->worker[0]->trace;
    size_t at = 0;
    text[0] = 0;
    for (uint64_t i = 0; i < sl_trace_count(t); i++) {
        const sl_trace_event *e = sl_trace_at(t, i);
        const char *what = e->kind == SL_TRACE_ROUTER   ? "A"
                           : e->kind == SL_TRACE_SHARED ? "S"
                           : e->kind == SL_TRACE_MERGE  ? "M"
                           : e->kind == SL_TRACE_EMBED  ? "|"
                                                        : NULL;
        assert_true(at + 8 < size);
        if (what) at += (size_t)snprintf(text + at, size - at, "%s%u ", what, e->lane);
    }
    return text;
}

static void check(sl_schedule schedule, uint32_t lanes, sl_order order, const char *step) {
    static char got[1 << 14], want[1 << 14];
    deployment d;
    size_t at = 0;
    start(&d, 1, schedule, lanes, schedule == SL_SCHED_FINDEP ? 2 : 1, order);
    run(&d);
    for (uint32_t i = 0; i < NEW; i++)
        at += (size_t)snprintf(want + at, sizeof want - at, "%s", step);
    assert_string_equal(order_of(&d, got, sizeof got), want);
    stop(&d);
}

/* Blocks 0, 2 and 3 of the model have experts. */
static void one_lane_computes_them_while_its_rows_are_away(void **state) {
    (void)state;
    for (int order = 0; order < SL_ORDER_COUNT; order++) {
        const char *step = "|0 A0 S0 M0 A0 S0 M0 A0 S0 M0 ";
        check(SL_SCHED_DEP, 1, (sl_order)order, step);
        check(SL_SCHED_FINDEP, 1, (sl_order)order, step);
    }
}

static void two_lanes_follow_the_order(void **state) {
    (void)state;
    const char *asas = "|0 A0 S0 |1 A1 S1 M0 A0 S0 M1 A1 S1 M0 A0 S0 M1 A1 S1 M0 M1 ";
    const char *aass = "|0 A0 |1 A1 S0 S1 M0 A0 M1 A1 S0 S1 M0 A0 M1 A1 S0 S1 M0 M1 ";
    check(SL_SCHED_FINDEP, 2, SL_ORDER_ASAS, asas);
    check(SL_SCHED_PINGPONG, 2, SL_ORDER_ASAS, asas);
    check(SL_SCHED_FINDEP, 2, SL_ORDER_AASS, aass);
}

/* The merge is the first thing that a batch of the next block does, also before dense block 1. */
static void aep_computes_them_after_the_dispatch(void **state) {
    (void)state;
    check(SL_SCHED_AEP, 1, SL_ORDER_ASAS, "M0 |0 A0 S0 M0 M0 A0 S0 M0 A0 S0 M0 ");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_lane_computes_them_while_its_rows_are_away),
        cmocka_unit_test(two_lanes_follow_the_order),
        cmocka_unit_test(aep_computes_them_after_the_dispatch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
