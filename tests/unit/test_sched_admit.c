/* Admission and growth: the rules one by one, then drawn sequences against a plain model that walks
 * all requests for every decision. */
#include "sched/admit.h"

#include "base/mem.h"
#include "base/rng.h"
#include "spec/kv.h"
#include "spec/limits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

/* ---- the rules ---- */

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

static void the_worker_with_most_free_pages_takes_the_next(void **state) {
    (void)state;
    books(3, 10, 8);
    uint32_t r[5];
    r[0] = submit(33, 100); /* 33 + 32 positions */
    for (int i = 1; i < 5; i++) r[i] = submit(1, 1);
    starts_at(r[0], 0, 3);
    starts_at(r[1], 1, 1); /* of equals the first */
    starts_at(r[2], 2, 1);
    starts_at(r[3], 1, 1);
    starts_at(r[4], 2, 1);
    nothing();
    sl_admit_end(&a, r[0]);
    nothing();
    assert_int_equal(a.n_running, 4);
    starts_at(submit(1, 1), 0, 1);
    sl_admit_free(&a);
}

/* No more than it will ever need, and no position for its last token. */
static void pages_for_what_is_known_and_a_little_more(void **state) {
    (void)state;
    books(1, 100, 8);
    starts_at(submit(32, 1), 0, 1);
    starts_at(submit(32, 2), 0, 2);
    starts_at(submit(1, 1000), 0, 2);
    starts_at(submit(32, 1000), 0, 2);
    starts_at(submit(33, 1000), 0, 3);
    sl_admit_free(&a);
}

static void nobody_overtakes_the_oldest(void **state) {
    (void)state;
    books(2, 4, 2);
    uint32_t big[3], small;
    for (int i = 0; i < 3; i++) big[i] = submit(96, 32); /* all pages of a worker */
    small = submit(1, 1);
    starts_at(big[0], 0, 4);
    starts_at(big[1], 1, 4);
    nothing();
    sl_admit_end(&a, big[1]);
    starts_at(big[2], 1, 4);
    nothing();
    sl_admit_end(&a, big[0]);
    starts_at(small, 0, 1);
    sl_admit_free(&a);
}

static void a_worker_runs_so_many_at_most(void **state) {
    (void)state;
    books(2, 100, 2);
    for (uint32_t i = 0; i < 4; i++) starts_at(submit(1, 1), i % 2, 1);
    uint32_t last = submit(1, 1);
    nothing();
    sl_admit_end(&a, a.worker[1].running.first);
    starts_at(last, 1, 1);
    sl_admit_free(&a);
}

static void closed_workers_take_nobody(void **state) {
    (void)state;
    books(2, 10, 8);
    sl_admit_close(&a, 0);
    sl_admit_close(&a, 0);
    assert_int_equal(a.n_open, 1);
    uint32_t r = submit(1, 100);
    starts_at(r, 1, 2);
    sl_admit_close(&a, 1);
    uint32_t waits = submit(1, 1);
    nothing();
    tokens(r, 32); /* who runs there runs on */
    decides(SL_ADMIT_PAGE, r);
    nothing();
    sl_admit_open(&a, 0);
    starts_at(waits, 0, 1);
    sl_admit_free(&a);
}

static void pages_go_to_who_started_first(void **state) {
    (void)state;
    books(1, 8, 8);
    uint32_t r[3], other;
    for (int i = 0; i < 3; i++) r[i] = submit(1, 500);
    other = submit(1, 33);
    for (int i = 0; i < 3; i++) starts_at(r[i], 0, 2);
    starts_at(other, 0, 2);
    tokens(r[2], 32);
    tokens(r[0], 32);
    tokens(r[1], 32);
    nothing(); /* none is free, and none cannot go on */
    sl_admit_end(&a, other);
    assert_int_equal(decides(SL_ADMIT_PAGE, r[0]).page, 6);
    assert_int_equal(decides(SL_ADMIT_PAGE, r[1]).page, 7);
    nothing();
    sl_admit_free(&a);
}

/* Four requests of two pages each in a pool of eight. */
static void fill_pool(uint32_t r[4]) {
    books(1, 8, 8);
    for (int i = 0; i < 4; i++) r[i] = submit(1, 200);
    for (int i = 0; i < 4; i++) starts_at(r[i], 0, 2);
}

static void the_youngest_gives_way(void **state) {
    (void)state;
    uint32_t r[4];
    fill_pool(r);
    uint32_t fresh = submit(1, 1);
    tokens(r[3], 40);
    tokens(r[0], 62);
    nothing(); /* 63 of 64 positions are known */
    tokens(r[0], 1);
    decides(SL_ADMIT_PREEMPT, r[3]);
    assert_int_equal(a.request[r[3]].state, SL_ADMIT_PREEMPTING);
    tokens(r[3], 1);  /* was on its way */
    tokens(r[1], 63); /* stuck, too, but pages are on their way back */
    nothing();
    sl_admit_gave_way(&a, r[3]);
    decides(SL_ADMIT_PAGE, r[0]);
    decides(SL_ADMIT_PAGE, r[1]);
    nothing(); /* it waits again, before what came later; there is no room for 42 tokens */
    assert_int_equal(a.waiting.first, r[3]);
    assert_int_equal(a.waiting.last, fresh);
    assert_int_equal(a.request[r[3]].drawn, 41);
    sl_admit_end(&a, r[1]);
    starts_at(r[3], 0, 3);
    assert_int_equal(a.request[r[3]].starts, 2);
    nothing();
    sl_admit_free(&a);
}

/* Not who started last. */
static void the_youngest_is_who_came_last(void **state) {
    (void)state;
    books(2, 4, 8);
    uint32_t r[4];
    for (int i = 0; i < 4; i++) r[i] = submit(1, 100);
    for (uint32_t i = 0; i < 4; i++) starts_at(r[i], i % 2, 2);
    tokens(r[0], 63);
    decides(SL_ADMIT_PREEMPT, r[2]);
    sl_admit_gave_way(&a, r[2]);
    decides(SL_ADMIT_PAGE, r[0]);
    nothing();
    sl_admit_end(&a, r[1]);
    starts_at(r[2], 1, 2); /* after r[3], which is younger */
    tokens(r[2], 63);
    decides(SL_ADMIT_PREEMPT, r[3]);
    nothing();
    sl_admit_free(&a);
}

static void it_may_be_the_one_that_is_stuck(void **state) {
    (void)state;
    uint32_t r[4];
    fill_pool(r);
    tokens(r[3], 63);
    decides(SL_ADMIT_PREEMPT, r[3]);
    nothing();
    sl_admit_gave_way(&a, r[3]);
    nothing(); /* two are free, it wants three now */
    sl_admit_end(&a, r[0]);
    starts_at(r[3], 0, 3);
    sl_admit_free(&a);
}

static void the_oldest_never_gives_way(void **state) {
    (void)state;
    uint32_t r[4], preempted = 0;
    sl_admit_decision d;
    fill_pool(r);
    for (int i = 0; i < 200; i++) {
        tokens(r[0], 1);
        while (sl_admit_next(&a, now_us, &d)) {
            if (d.kind == SL_ADMIT_PAGE) continue;
            assert_int_equal(d.kind, SL_ADMIT_PREEMPT);
            assert_int_equal(d.request, r[3 - preempted++]);
            sl_admit_gave_way(&a, d.request);
        }
        assert_int_equal(a.waiting.n, preempted);
    }
    assert_int_equal(preempted, 3);
    assert_int_equal(a.request[r[0]].n_pages, 7); /* all that it can need */
    sl_admit_end(&a, r[0]);
    for (int i = 1; i < 4; i++) starts_at(r[i], 0, 2);
    nothing();
    sl_admit_free(&a);
}

static void cancelled_ones_leave_in_every_state(void **state) {
    (void)state;
    uint32_t r[4];
    fill_pool(r);
    uint32_t waits = submit(1, 1);
    sl_admit_end(&a, waits); /* its worker need not know */
    assert_int_equal(a.waiting.n, 0);
    assert_true(sl_admit_cancel(&a, r[1]));
    assert_false(sl_admit_cancel(&a, r[1]));
    tokens(r[0], 63);
    nothing(); /* pages are on their way back */
    sl_admit_end(&a, r[1]);
    decides(SL_ADMIT_PAGE, r[0]);
    tokens(r[0], 32);
    decides(SL_ADMIT_PAGE, r[0]);
    tokens(r[0], 32);
    decides(SL_ADMIT_PREEMPT, r[3]);
    assert_false(sl_admit_cancel(&a, r[3])); /* told already */
    assert_int_equal(a.request[r[3]].state, SL_ADMIT_CANCELLING);
    sl_admit_end(&a, r[3]);
    decides(SL_ADMIT_PAGE, r[0]);
    tokens(r[2], 40);
    assert_int_equal(a.worker[0].lacking.n, 1);
    decides(SL_ADMIT_PAGE, r[2]);
    assert_int_equal(a.worker[0].lacking.n, 0);
    nothing();
    sl_admit_free(&a);
}

static void who_lacks_pages_may_end(void **state) {
    (void)state;
    uint32_t r[4];
    fill_pool(r);
    tokens(r[0], 40);
    tokens(r[1], 40);
    assert_int_equal(a.worker[0].lacking.n, 2);
    assert_true(sl_admit_cancel(&a, r[0]));
    assert_int_equal(a.worker[0].lacking.n, 1);
    sl_admit_end(&a, r[1]); /* the page that it wanted is free now, and nobody wants it */
    assert_int_equal(a.worker[0].lacking.n, 0);
    nothing();
    assert_int_equal(a.worker[0].pages.n_free, 2);
    sl_admit_free(&a);
}

static void a_full_queue_turns_the_newest_away(void **state) {
    (void)state;
    uint32_t r[4];
    fill_pool(r);
    a.shape.max_queue = 2;
    tokens(r[3], 63);
    decides(SL_ADMIT_PREEMPT, r[3]);
    sl_admit_gave_way(&a, r[3]); /* it waits, and does not count */
    nothing();
    uint32_t big = submit(200, 1), second = submit(1, 1), third = submit(1, 1);
    uint32_t fourth = submit(1, 1);
    decides(SL_ADMIT_FULL, fourth);
    sl_admit_end(&a, fourth);
    decides(SL_ADMIT_FULL, third);
    sl_admit_end(&a, third);
    nothing();
    assert_int_equal(a.waiting.first, r[3]);
    assert_int_equal(a.waiting.last, second);
    (void)big;
    sl_admit_free(&a);
}

static void the_oldest_is_late(void **state) {
    (void)state;
    uint32_t r[4];
    fill_pool(r);
    a.shape.queue_timeout_us = 1000;
    tokens(r[3], 63);
    decides(SL_ADMIT_PREEMPT, r[3]);
    sl_admit_gave_way(&a, r[3]);
    now_us = 5000;
    nothing(); /* who has run is never late */
    uint32_t first = submit(1, 1);
    now_us = 5400;
    uint32_t second = submit(1, 1);
    now_us = 5999;
    nothing();
    now_us = 6000;
    decides(SL_ADMIT_LATE, first);
    sl_admit_end(&a, first);
    nothing();
    now_us = 7000;
    decides(SL_ADMIT_LATE, second);
    sl_admit_end(&a, second);
    nothing();
    sl_admit_free(&a);
}

/* Growth comes before starts: who runs has first call on what is free. */
/* A coordinator that is gone accepted them: their place in the line and their tokens stay. */
static void who_ran_before_is_not_turned_away(void **state) {
    (void)state;
    uint32_t before[3];
    books(1, 10, 1);
    a.shape.max_queue = 1;
    a.shape.queue_timeout_us = 1000;
    for (uint32_t i = 0; i < 3; i++) {
        before[i] = submit(40, 10);
        sl_admit_ran_before(&a, before[i], 3 * i);
    }
    uint32_t fresh = submit(1, 1), one_too_many = submit(1, 1);
    starts_at(before[0], 0, 2);
    decides(SL_ADMIT_FULL, one_too_many);
    sl_admit_end(&a, one_too_many);
    nothing();
    now_us = 2000;
    decides(SL_ADMIT_LATE, fresh);
    sl_admit_end(&a, fresh);
    nothing();
    sl_admit_end(&a, before[0]);
    starts_at(before[1], 0, 2);
    assert_int_equal(sl_admit_known(&a.request[before[1]]), 43);
    tokens(before[1], 7); /* and 3 that it drew then */
    sl_admit_end(&a, before[1]);
    starts_at(before[2], 0, 2);
    sl_admit_end(&a, before[2]);
    assert_int_equal(a.n_again, 0);
    sl_admit_free(&a);
}

static void growth_comes_first(void **state) {
    (void)state;
    uint32_t r[4];
    fill_pool(r);
    uint32_t waits = submit(1, 1);
    tokens(r[0], 32);
    tokens(r[1], 32);
    nothing();
    sl_admit_end(&a, r[2]);
    decides(SL_ADMIT_PAGE, r[0]);
    decides(SL_ADMIT_PAGE, r[1]);
    nothing();
    sl_admit_end(&a, r[3]);
    starts_at(waits, 0, 1);
    sl_admit_free(&a);
}

/* ---- drawn sequences ---- */

#define WORKERS  3u
#define REQUESTS 16u
#define POOL     9u /* a request of full length has 8 */

typedef struct plain {
    sl_admit_request r[REQUESTS * 4]; /* by the index that the books gave */
    uint32_t n_free[WORKERS], n_running[WORKERS];
    bool open[WORKERS];
    uint64_t starts;
} plain;

static plain model;

typedef struct log {
    sl_admit_decision d[4096];
    uint32_t n;
} log;

static void write_down(log *l, sl_admit_kind kind, uint32_t request, uint32_t worker) {
    assert_true(l->n < SL_LEN(l->d));
    l->d[l->n++] = (sl_admit_decision){.kind = kind, .request = request, .worker = worker};
}

static bool runs(const sl_admit_request *r) {
    return r->state >= SL_ADMIT_RUNNING;
}

/* It has pages. */
static bool holds(const sl_admit_request *r) {
    return r->state >= SL_ADMIT_STAYING;
}

static uint32_t wanted(const sl_admit_request *r) {
    uint32_t positions = r->prompt + r->most - 1;
    return (SL_MIN(r->prompt + r->drawn + SL_MAX_AHEAD, positions) + SL_KV_PAGE_TOKENS - 1) /
           SL_KV_PAGE_TOKENS;
}

/* The next by `began` (of those at a worker) or by age (of those that wait); NULL: none. */
static sl_admit_request *after(uint64_t last, uint32_t worker) {
    sl_admit_request *best = NULL;
    for (uint32_t i = 0; i < SL_LEN(model.r); i++) {
        sl_admit_request *r = &model.r[i];
        bool waits = worker == SL_ADMIT_NONE;
        if (waits ? r->state != SL_ADMIT_WAITING : !runs(r) || r->worker != worker) continue;
        uint64_t key = waits ? r->age : r->began;
        if (key > last && (!best || key < (waits ? best->age : best->began))) best = r;
    }
    return best;
}

static void model_preempt(uint32_t worker, log *l) {
    sl_admit_request *youngest = NULL;
    for (sl_admit_request *r = after(0, worker); r; r = after(r->began, worker)) {
        if (r->state != SL_ADMIT_RUNNING) return;
        if (!youngest || r->age > youngest->age) youngest = r;
    }
    if (!youngest || model.n_running[worker] < 2) return;
    youngest->state = SL_ADMIT_PREEMPTING;
    write_down(l, SL_ADMIT_PREEMPT, (uint32_t)(youngest - model.r), worker);
}

static void model_grow(uint32_t worker, log *l) {
    for (sl_admit_request *r = after(0, worker); r; r = after(r->began, worker)) {
        while (r->state == SL_ADMIT_RUNNING && r->n_pages < wanted(r)) {
            if (model.n_free[worker] == 0) {
                if (r->prompt + r->drawn >= r->n_pages * SL_KV_PAGE_TOKENS)
                    model_preempt(worker, l);
                break;
            }
            model.n_free[worker]--;
            r->n_pages++;
            write_down(l, SL_ADMIT_PAGE, (uint32_t)(r - model.r), worker);
        }
    }
}

/* In the order in which they had started. */
static void model_resume(uint32_t worker, log *l) {
    sl_admit_request *r;
    do {
        r = NULL;
        for (uint32_t i = 0; model.open[worker] && i < SL_LEN(model.r); i++) {
            sl_admit_request *q = &model.r[i];
            if (q->state == SL_ADMIT_STAYING && q->worker == worker && (!r || q->began < r->began))
                r = q;
        }
        if (!r) continue;
        r->state = SL_ADMIT_RUNNING;
        r->starts++;
        r->began = ++model.starts;
        write_down(l, SL_ADMIT_RESUME, (uint32_t)(r - model.r), worker);
    } while (r);
}

static void model_start(log *l) {
    sl_admit_request *r;
    while ((r = after(0, SL_ADMIT_NONE)) != NULL) {
        uint32_t best = SL_ADMIT_NONE, n = wanted(r);
        for (uint32_t w = 0; w < WORKERS; w++) {
            if (!model.open[w] || model.n_running[w] >= a.shape.max_running || model.n_free[w] < n)
                continue;
            if (best == SL_ADMIT_NONE || model.n_free[w] > model.n_free[best]) best = w;
        }
        if (best == SL_ADMIT_NONE) return;
        model.n_free[best] -= n;
        model.n_running[best]++;
        r->n_pages = n;
        r->worker = best;
        r->state = SL_ADMIT_RUNNING;
        r->starts++;
        r->began = ++model.starts;
        write_down(l, SL_ADMIT_START, (uint32_t)(r - model.r), best);
    }
}

static void model_leave(sl_admit_request *r, sl_admit_state state) {
    if (holds(r)) {
        model.n_free[r->worker] += r->n_pages;
        model.n_running[r->worker]--;
    }
    r->n_pages = 0;
    r->state = state;
}

static bool model_turn_away(log *l) {
    sl_admit_request *newest = NULL, *oldest = NULL;
    uint32_t fresh = 0;
    for (sl_admit_request *r = after(0, SL_ADMIT_NONE); r; r = after(r->age, SL_ADMIT_NONE)) {
        if (r->starts > 0) continue;
        fresh++;
        newest = r;
        if (!oldest) oldest = r;
    }
    bool full = fresh > a.shape.max_queue;
    if (!full && (!oldest || now_us - oldest->came_us < a.shape.queue_timeout_us)) return false;
    sl_admit_request *r = full ? newest : oldest;
    write_down(l, full ? SL_ADMIT_FULL : SL_ADMIT_LATE, (uint32_t)(r - model.r), 0);
    model_leave(r, SL_ADMIT_UNUSED);
    return true;
}

/* What grows at different workers has no order among each other. */
static void compare_logs(const log *got, const log *want) {
    assert_int_equal(got->n, want->n);
    for (uint32_t w = 0; w <= WORKERS; w++) {
        uint32_t i = 0, j = 0;
        for (;; i++, j++) {
            for (; i < got->n; i++)
                if (w == WORKERS ? got->d[i].kind >= SL_ADMIT_START
                                 : got->d[i].kind < SL_ADMIT_START && got->d[i].worker == w)
                    break;
            for (; j < want->n; j++)
                if (w == WORKERS ? want->d[j].kind >= SL_ADMIT_START
                                 : want->d[j].kind < SL_ADMIT_START && want->d[j].worker == w)
                    break;
            if (i == got->n || j == want->n) break;
            assert_int_equal(got->d[i].kind, want->d[j].kind);
            assert_int_equal(got->d[i].request, want->d[j].request);
            if (got->d[i].kind == SL_ADMIT_START)
                assert_int_equal(got->d[i].worker, want->d[j].worker);
        }
        assert_true(i == got->n && j == want->n);
    }
}

/* Every page is free or one running request's, lists and counts agree. */
static void check_balance(void) {
    uint32_t running = 0, waiting = 0, again = 0;
    for (uint32_t i = 0; i < a.cap; i++) {
        const sl_admit_request *r = &a.request[i];
        waiting += r->state == SL_ADMIT_WAITING;
        again += r->state == SL_ADMIT_WAITING && r->starts > 0;
        running += runs(r);
        assert_int_equal(r->state, model.r[i].state);
        assert_int_equal(r->n_pages, model.r[i].n_pages);
    }
    assert_int_equal(a.waiting.n, waiting);
    assert_int_equal(a.n_again, again);
    assert_int_equal(a.n_running, running);
    for (uint32_t w = 0; w < WORKERS; w++) {
        const sl_pages *p = &a.worker[w].pages;
        uint8_t owners[POOL] = {0};
        uint32_t used = 0, n = 0;
        for (uint32_t i = 0; i < a.cap; i++) {
            const sl_admit_request *r = &a.request[i];
            if (!holds(r) || r->worker != w) continue;
            n += runs(r);
            for (uint32_t k = 0; k < r->n_pages; k++) owners[r->pages[k]]++;
            used += r->n_pages;
        }
        for (uint32_t i = 0; i < POOL; i++) {
            assert_true(owners[i] <= 1);
            assert_int_equal(i < p->n_touched ? p->page[i].holders : 0, owners[i]);
        }
        assert_int_equal(used + p->n_free, POOL);
        assert_int_equal(p->n_free, model.n_free[w]);
        assert_int_equal(a.worker[w].running.n, n);
    }
}

static uint64_t met[SL_ADMIT_LATE + 1];

static void settle(void) {
    static log got, want;
    sl_admit_decision d;
    got.n = want.n = 0;
    while (sl_admit_next(&a, now_us, &d)) {
        write_down(&got, d.kind, d.request, d.worker);
        met[d.kind]++;
        if (d.kind >= SL_ADMIT_FULL) sl_admit_end(&a, d.request);
    }
    for (uint32_t w = 0; w < WORKERS; w++) model_resume(w, &want);
    for (uint32_t w = 0; w < WORKERS; w++) model_grow(w, &want);
    do model_start(&want); /* the one behind who was turned away may fit */
    while (model_turn_away(&want));
    compare_logs(&got, &want);
    check_balance();
}

/* A worker is gone, but its pages are not. */
static void stay(uint32_t worker) {
    for (sl_admit_request *r = after(0, worker); r; r = after(r->began, worker)) {
        uint32_t id = (uint32_t)(r - model.r);
        if (r->state == SL_ADMIT_RUNNING) {
            sl_admit_stay(&a, id);
            r->state = SL_ADMIT_STAYING;
        } else if (r->state == SL_ADMIT_PREEMPTING) {
            sl_admit_gave_way(&a, id);
            model_leave(r, SL_ADMIT_WAITING);
        } else {
            sl_admit_end(&a, id);
            model_leave(r, SL_ADMIT_UNUSED);
        }
    }
}

/* One thing that happens, to books and model alike. */
static void happen(uint64_t *rng, uint64_t *ages) {
    uint32_t id = (uint32_t)sl_rng_below(rng, SL_MAX(SL_MIN(a.cap, REQUESTS), 1u)),
             w = id % WORKERS;
    sl_admit_request *r = &model.r[id];
    switch (sl_rng_below(rng, 12)) {
    case 0: {
        uint32_t prompt = 1 + (uint32_t)sl_rng_below(rng, 120);
        uint32_t most = 1 + (uint32_t)sl_rng_below(rng, 256 - prompt);
        if (a.waiting.n + a.n_running + a.n_staying >= REQUESTS) return;
        id = submit(prompt, most);
        assert_true(id < SL_LEN(model.r) && model.r[id].state == SL_ADMIT_UNUSED);
        model.r[id] = (sl_admit_request){.state = SL_ADMIT_WAITING,
                                         .prompt = prompt,
                                         .most = most,
                                         .age = ++*ages,
                                         .came_us = now_us};
        return;
    }
    case 1:
        now_us += sl_rng_below(rng, 300);
        return;
    case 2:
        if (!runs(r)) return;
        assert_int_equal(sl_admit_cancel(&a, id), r->state == SL_ADMIT_RUNNING);
        r->state = SL_ADMIT_CANCELLING;
        return;
    case 3: /* a worker answers */
        if (r->state == SL_ADMIT_PREEMPTING || r->state == SL_ADMIT_STAYING) {
            sl_admit_gave_way(&a, id);
            model_leave(r, SL_ADMIT_WAITING);
        } else if (r->state == SL_ADMIT_CANCELLING || (runs(r) && r->drawn == r->most)) {
            sl_admit_end(&a, id);
            model_leave(r, SL_ADMIT_UNUSED);
        }
        return;
    case 4:
        if (r->state == SL_ADMIT_UNUSED || sl_rng_below(rng, 8)) return;
        sl_admit_end(&a, id);
        model_leave(r, SL_ADMIT_UNUSED);
        return;
    case 5:
        if (sl_rng_below(rng, 8)) return;
        model.open[w] = !model.open[w];
        if (model.open[w])
            sl_admit_open(&a, w);
        else
            sl_admit_close(&a, w);
        if (!model.open[w] && sl_rng_below(rng, 2)) stay(w);
        return;
    default: /* tokens */
        for (uint64_t n = sl_rng_below(rng, 40); runs(r) && r->drawn < r->most && n > 0; n--) {
            sl_admit_token(&a, id, 0);
            r->drawn++;
        }
    }
}

static void drawn_sequences(void **state) {
    (void)state;
    uint64_t rng = 3;
    for (int draw = 0; draw < 40; draw++) {
        uint64_t ages = 0;
        books(WORKERS, POOL, 1 + (uint32_t)sl_rng_below(&rng, 5));
        a.shape.max_queue = 3 + (uint32_t)sl_rng_below(&rng, 10);
        a.shape.queue_timeout_us = 3000;
        memset(&model, 0, sizeof model);
        for (uint32_t w = 0; w < WORKERS; w++) {
            model.n_free[w] = POOL;
            model.open[w] = true;
        }
        for (int i = 0; i < 600; i++) {
            for (uint64_t n = 1 + sl_rng_below(&rng, 4); n > 0; n--) happen(&rng, &ages);
            settle();
        }
        sl_admit_free(&a);
    }
    for (size_t i = 0; i < SL_LEN(met); i++) {
        printf("%llu decisions of kind %zu\n", (unsigned long long)met[i], i);
        assert_true(met[i] > 50 || i == SL_ADMIT_HAND); /* unit.sched_prompts */
    }
}

/* ---- memory, size ---- */

static void running_takes_no_memory(void **state) {
    (void)state;
    sl_err err;
    sl_admit_decision d;
    const sl_admit_shape shape = {.n_workers = 1, .max_running = 4, .max_queue = 4};
    assert_int_equal(sl_admit_create(&shape, &a, &err), SL_OK);
    assert_int_equal(sl_admit_add_pages(&a, 0, 40, 40, &err), SL_OK);
    sl_admit_open(&a, 0);
    uint32_t r = submit(1, 1000);
    uint64_t before = sl_mem_count();
    for (int i = 0; i < 1000; i++) {
        while (sl_admit_next(&a, 0, &d)) {
        }
        sl_admit_token(&a, r, 0);
    }
    sl_admit_end(&a, r);
    r = submit(1, 900); /* where the other one was */
    while (sl_admit_next(&a, 0, &d)) {
    }
    assert_true(sl_mem_count() == before);
    sl_admit_free(&a);
}

static void out_of_memory(void **state) {
    (void)state;
    sl_err err;
    sl_admit_decision d;
    uint32_t r;
    const sl_admit_shape shape = {.n_workers = 3, .max_running = 4, .max_queue = 4};
    for (uint64_t nth = 1; nth <= 2; nth++) {
        sl_mem_fail_at(nth);
        assert_int_equal(sl_admit_create(&shape, &a, &err), SL_ERR_NOMEM);
        books(1, 20, 4);
        sl_mem_fail_at(nth); /* requests, and the pages of one */
        assert_int_equal(sl_admit_submit(&a, 1, 9, 0, &r, &err), SL_ERR_NOMEM);
        r = submit(1, 9);
        sl_mem_fail_at(nth);
        assert_false(sl_admit_next(&a, 0, &d));
        assert_true(a.failed);
        sl_admit_free(&a);
    }
    sl_mem_fail_at(0);
}

/* Thousands of workers: who has most is found without looking at all of them. */
static void many_workers(void **state) {
    (void)state;
    enum { N = 10000 };
    books(N, 1000, 4);
    for (uint32_t i = 0; i < 4 * N; i++) starts_at(submit(1, 1), i % N, 1);
    uint32_t waits = submit(1, 1);
    nothing();
    sl_admit_end(&a, a.worker[N - 1].running.first);
    starts_at(waits, N - 1, 1);
    sl_admit_free(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_worker_with_most_free_pages_takes_the_next),
        cmocka_unit_test(pages_for_what_is_known_and_a_little_more),
        cmocka_unit_test(nobody_overtakes_the_oldest),
        cmocka_unit_test(a_worker_runs_so_many_at_most),
        cmocka_unit_test(closed_workers_take_nobody),
        cmocka_unit_test(pages_go_to_who_started_first),
        cmocka_unit_test(the_youngest_gives_way),
        cmocka_unit_test(the_youngest_is_who_came_last),
        cmocka_unit_test(it_may_be_the_one_that_is_stuck),
        cmocka_unit_test(the_oldest_never_gives_way),
        cmocka_unit_test(cancelled_ones_leave_in_every_state),
        cmocka_unit_test(who_lacks_pages_may_end),
        cmocka_unit_test(a_full_queue_turns_the_newest_away),
        cmocka_unit_test(the_oldest_is_late),
        cmocka_unit_test(who_ran_before_is_not_turned_away),
        cmocka_unit_test(growth_comes_first),
        cmocka_unit_test(drawn_sequences),
        cmocka_unit_test(running_takes_no_memory),
        cmocka_unit_test(out_of_memory),
        cmocka_unit_test(many_workers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
