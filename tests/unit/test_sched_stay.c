/* Requests whose worker is gone, but not its KV: what the books do with them, and who waits. Drawn
 * sequences are in test_sched_admit.c. */
#include "sched/admit.h"
#include "sched/recover.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#define SEC  1000000ull
#define HOUR (3600 * SEC)

static sl_admit a;
static uint64_t now_us;

static void books(uint32_t workers, uint32_t pages, uint32_t max_running) {
    sl_err err;
    const sl_admit_shape shape = {
        .n_workers = workers, .max_running = max_running, .max_queue = UINT32_MAX};
    assert_int_equal(sl_admit_create(&shape, &a, &err), SL_OK);
    for (uint32_t w = 0; w < workers; w++) {
        assert_int_equal(sl_admit_add_pages(&a, w, pages, 0, &err), SL_OK);
        sl_admit_open(&a, w);
    }
    now_us = 0;
}

static uint32_t submit(uint32_t prompt, uint32_t most) {
    sl_err err;
    uint32_t request;
    assert_int_equal(sl_admit_submit(&a, prompt, most, now_us, &request, &err), SL_OK);
    return request;
}

static void nothing(void) {
    sl_admit_decision d;
    assert_false(sl_admit_next(&a, now_us, &d));
}

static sl_admit_decision decides(sl_admit_kind kind, uint32_t request) {
    sl_admit_decision d;
    assert_true(sl_admit_next(&a, now_us, &d));
    assert_int_equal(d.kind, kind);
    assert_int_equal(d.request, request);
    return d;
}

static void starts_at(uint32_t request, uint32_t worker, uint32_t pages) {
    assert_int_equal(decides(SL_ADMIT_START, request).worker, worker);
    assert_int_equal(a.request[request].worker, worker);
    assert_int_equal(a.request[request].n_pages, pages);
}

static void tokens(uint32_t request, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) sl_admit_token(&a, request, 0);
}

/* The pages of a worker that is gone are there still. */
static void requests_stay_with_their_pages(void **state) {
    (void)state;
    books(2, 10, 3);
    uint32_t r[6];
    for (int i = 0; i < 4; i++) r[i] = submit(33, 100);
    for (int i = 0; i < 4; i++) starts_at(r[i], i % 2, 3);
    assert_int_equal(a.request[r[0]].sure, 0); /* who knows how far its prompt is */
    sl_admit_rows(&a, r[0], 20);
    sl_admit_rows(&a, r[2], 32);
    sl_admit_rows(&a, r[0], 10); /* late */
    assert_true(a.request[r[0]].sure == 20 && a.request[r[2]].sure == 32);
    tokens(r[0], 40);
    tokens(r[2], 1);
    decides(SL_ADMIT_PAGE, r[0]);
    nothing();
    assert_int_equal(a.request[r[0]].sure, 33 + 39);
    assert_int_equal(a.request[r[2]].sure, 33);
    uint32_t pages[4];
    memcpy(pages, a.request[r[0]].pages, sizeof pages);
    sl_admit_close(&a, 0);
    sl_admit_stay(&a, r[0]);
    sl_admit_stay(&a, r[2]);
    assert_true(a.n_running == 2 && a.n_staying == 2 && a.waiting.n == 0);
    assert_true(sl_admit_has_place(&a, r[0]));
    r[4] = submit(1, 1);
    r[5] = submit(1, 1);
    starts_at(r[4], 1, 1);
    assert_false(sl_admit_has_place(&a, r[0])); /* the other worker has three */
    nothing();
    sl_admit_open(&a, 0); /* those that stayed first, then one more has a place */
    decides(SL_ADMIT_RESUME, r[0]);
    decides(SL_ADMIT_RESUME, r[2]);
    starts_at(r[5], 0, 1);
    nothing();
    assert_true(a.request[r[0]].n_pages == 4 && a.request[r[0]].sure == 33 + 39);
    assert_memory_equal(pages, a.request[r[0]].pages, sizeof pages);
    assert_true(a.n_running == 6 && a.n_staying == 0);
    sl_admit_free(&a);
}

static void who_stays_may_go_elsewhere_or_end(void **state) {
    (void)state;
    books(2, 10, 3);
    uint32_t r[3];
    for (int i = 0; i < 3; i++) r[i] = submit(33, 100);
    for (int i = 0; i < 3; i++) starts_at(r[i], i % 2, 3);
    tokens(r[0], 2);
    tokens(r[2], 2);
    sl_admit_close(&a, 0);
    sl_admit_stay(&a, r[0]);
    sl_admit_stay(&a, r[2]);
    assert_int_equal(a.worker[0].pages.n_free, 4);
    sl_admit_gave_way(&a, r[2]);
    starts_at(r[2], 1, 3);
    assert_int_equal(a.request[r[2]].sure, 0);
    sl_admit_end(&a, r[0]);
    assert_true(a.worker[0].pages.n_free == 10 && a.n_staying == 0);
    sl_admit_open(&a, 0);
    nothing();
    sl_admit_free(&a);
}

static void waits_or_goes_elsewhere(void **state) {
    (void)state;
    assert_true(sl_recover_stays(4096, 5000, 1, SEC));    /* 20 s again, or 1 s of waiting */
    assert_false(sl_recover_stays(100, 5000, 1, SEC));    /* 0.5 s */
    assert_true(sl_recover_stays(100, 5000, 1, SEC / 2)); /* as soon: nothing is computed twice */
    assert_true(sl_recover_stays(400, 5000, 1, SEC));
    assert_false(sl_recover_stays(400, 5000, 3, SEC)); /* three share it */
    assert_true(sl_recover_stays(1, 5000, 0, HOUR));   /* there is nobody else */
    assert_true(sl_recover_stays(1, 5000, 0, SL_RECOVER_NEVER));
    assert_false(sl_recover_stays(1u << 20, 5000, 1, SL_RECOVER_NEVER));
    assert_false(sl_recover_stays(4096, 0, 1, SEC)); /* nothing is known: as ever */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_stay_with_their_pages),
        cmocka_unit_test(who_stays_may_go_elsewhere_or_end),
        cmocka_unit_test(waits_or_goes_elsewhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
