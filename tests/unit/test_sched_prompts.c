/* Workers for prompts in the coordinator's books (sched/admit.h, 8): who starts there, when a
 * prompt is handed over and to whom, what happens when somebody is lost meanwhile; and drawn
 * sequences in which every request ends. */
#include "sched/admit.h"

#include "base/rng.h"
#include "sanitized.h"
#include "spec/kv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define PAGE  SL_KV_PAGE_TOKENS
#define POOL  64u
#define LEAST 64u /* rows that make it a prompt */

static sl_admit a;
static uint64_t now_us;

/* Workers below `others` decode, the rest are for prompts. */
static void books(uint32_t others, uint32_t prompts, uint32_t max_running) {
    const sl_admit_shape shape = {.n_workers = others + prompts,
                                  .max_running = max_running,
                                  .max_queue = 1000,
                                  .prompt_rows = LEAST};
    sl_err err;
    assert_int_equal(sl_admit_create(&shape, &a, &err), SL_OK);
    for (uint32_t i = 0; i < others + prompts; i++) {
        assert_int_equal(sl_admit_add_pages(&a, i, POOL, POOL, &err), SL_OK);
        if (i >= others) sl_admit_set_prompts(&a, i);
        sl_admit_open(&a, i);
    }
}

static uint32_t submit(uint32_t prompt, uint32_t most) {
    uint32_t id;
    sl_err err;
    assert_int_equal(sl_admit_submit(&a, prompt, most, now_us, &id, &err), SL_OK);
    return id;
}

static sl_admit_decision next(sl_admit_kind kind) {
    sl_admit_decision d = {0};
    assert_true(sl_admit_next(&a, now_us, &d));
    assert_int_equal(d.kind, kind);
    return d;
}

static void nothing(void) {
    sl_admit_decision d;
    if (!sl_admit_next(&a, now_us, &d)) return;
    printf("kind %d, request %u, worker %u\n", d.kind, d.request, d.worker);
    fail();
}

static void starts(uint32_t request, uint32_t worker) {
    sl_admit_decision d = next(SL_ADMIT_START);
    assert_int_equal(d.request, request);
    assert_int_equal(d.worker, worker);
}

/* Page `index` of it is copied to this worker. */
static uint64_t copies(uint32_t request, uint32_t index, uint32_t to) {
    sl_admit_decision d = next(SL_ADMIT_COPY);
    assert_int_equal(d.request, request);
    assert_int_equal(d.index, index);
    assert_int_equal(d.worker, to);
    return d.transfer;
}

static void hands(uint32_t request, uint32_t to) {
    sl_admit_decision d = next(SL_ADMIT_HAND);
    assert_int_equal(d.request, request);
    assert_int_equal(a.request[request].kept_at, to);
}

/* ---- who starts where ---- */

static void long_prompts_start_apart(void **state) {
    (void)state;
    books(1, 1, 8);
    uint32_t brief = submit(LEAST - 1, 5), lengthy = submit(LEAST, 5);
    starts(brief, 0);
    starts(lengthy, 1);
    assert_false(a.request[brief].parks);
    assert_true(a.request[lengthy].parks);
    nothing();
    sl_admit_free(&a);
}

static void nobody_apart_is_open(void **state) {
    (void)state;
    books(1, 1, 8);
    sl_admit_close(&a, 1);
    starts(submit(LEAST, 5), 0);
    sl_admit_free(&a);
}

/* Each kind waits for workers of its own. */
static void others_overtake(void **state) {
    (void)state;
    books(1, 1, 1);
    starts(submit(100, 5), 1);
    uint32_t second = submit(100, 5), brief = submit(10, 5), third = submit(10, 5);
    starts(brief, 0);
    nothing();
    sl_admit_end(&a, brief);
    starts(third, 0);
    nothing();
    assert_int_equal(a.request[second].state, SL_ADMIT_WAITING);
    sl_admit_free(&a);
}

/* ---- it is handed over ---- */

/* Pages go while the prompt is computed; the token is drawn, the last page comes, it goes. */
static void pages_go_first(void **state) {
    (void)state;
    books(2, 1, 8);
    uint32_t id = submit(3 * PAGE + 5, 20);
    starts(id, 2);
    sl_admit_rows(&a, id, PAGE + 3);
    uint64_t first = copies(id, 0, 0);
    nothing();
    sl_admit_copied(&a, 0, first, true);
    sl_admit_token(&a, id, 0);
    assert_true(a.request[id].parked);
    uint64_t second = copies(id, 1, 0), third = copies(id, 2, 0);
    nothing();
    sl_admit_copied(&a, 0, second, true);
    nothing();
    sl_admit_copied(&a, 0, third, true);
    hands(id, 0);
    nothing();
    sl_admit_gave_way(&a, id);
    starts(id, 0);
    assert_int_equal(a.request[id].sure, 3 * PAGE);
    assert_false(a.request[id].parks);
    assert_int_equal(a.n_handed, 1);
    assert_int_equal(a.worker[0].n_kept, 0);
    assert_int_equal(a.worker[2].pages.n_free, POOL);
    sl_admit_free(&a);
}

/* A place is kept for it: who comes meanwhile starts elsewhere or waits. */
static void its_place_is_kept(void **state) {
    (void)state;
    books(1, 1, 1);
    uint32_t id = submit(2 * PAGE, 20);
    starts(id, 1);
    sl_admit_token(&a, id, 0);
    uint64_t first = copies(id, 0, 0), second = copies(id, 1, 0);
    sl_admit_copied(&a, 0, first, true);
    sl_admit_copied(&a, 0, second, true);
    hands(id, 0);
    uint32_t brief = submit(3, 3);
    nothing();
    sl_admit_gave_way(&a, id);
    starts(id, 0);
    nothing();
    sl_admit_end(&a, id);
    starts(brief, 0);
    sl_admit_free(&a);
}

/* Whoever decodes is full: it stays parked until there is room. */
static void it_waits_for_room(void **state) {
    (void)state;
    books(1, 1, 1);
    uint32_t brief = submit(3, 3), id = submit(2 * PAGE, 20);
    starts(brief, 0);
    starts(id, 1);
    sl_admit_token(&a, id, 0);
    uint64_t first = copies(id, 0, 0), second = copies(id, 1, 0);
    sl_admit_copied(&a, 0, first, true);
    sl_admit_copied(&a, 0, second, true);
    uint32_t later = submit(3, 3); /* it does not overtake */
    nothing();
    sl_admit_end(&a, brief);
    hands(id, 0);
    nothing();
    sl_admit_gave_way(&a, id);
    starts(id, 0);
    sl_admit_end(&a, id);
    starts(later, 0);
    sl_admit_free(&a);
}

/* What could not be copied is computed there. */
static void a_page_cannot_be_had(void **state) {
    (void)state;
    books(1, 1, 8);
    uint32_t id = submit(2 * PAGE, 20);
    starts(id, 1);
    sl_admit_token(&a, id, 0);
    uint64_t first = copies(id, 0, 0);
    copies(id, 1, 0);
    sl_admit_copied(&a, 0, first, false);
    hands(id, 0);
    sl_admit_gave_way(&a, id);
    starts(id, 0);
    assert_int_equal(a.request[id].sure, 0);
    sl_admit_free(&a);
}

static void prompts_are_spread(void **state) {
    (void)state;
    books(2, 1, 8);
    uint32_t x = submit(PAGE * 2, 20), y = submit(PAGE * 2, 20);
    starts(x, 2);
    starts(y, 2);
    sl_admit_rows(&a, x, PAGE);
    copies(x, 0, 0);
    sl_admit_rows(&a, y, PAGE);
    copies(y, 0, 1);
    nothing();
    sl_admit_free(&a);
}

/* ---- losses ---- */

static void its_next_worker_is_lost(void **state) {
    (void)state;
    books(2, 1, 8);
    uint32_t id = submit(2 * PAGE, 20);
    starts(id, 2);
    sl_admit_token(&a, id, 0);
    copies(id, 0, 0);
    copies(id, 1, 0);
    sl_admit_close(&a, 0);
    sl_admit_lose_copies(&a, 0);
    uint64_t first = copies(id, 0, 1), second = copies(id, 1, 1);
    sl_admit_copied(&a, 1, first, true);
    sl_admit_copied(&a, 1, second, true);
    hands(id, 1);
    sl_admit_close(&a, 1);
    sl_admit_lose_copies(&a, 1);
    sl_admit_gave_way(&a, id);
    starts(id, 2);
    sl_admit_free(&a);
}

/* Copies that are there are taken; what is left is too little for a side of its own. */
static void its_worker_is_lost(void **state) {
    (void)state;
    books(1, 2, 8);
    uint32_t id = submit(4 * PAGE, 20);
    starts(id, 1);
    sl_admit_rows(&a, id, 3 * PAGE);
    for (uint32_t i = 0; i < 3; i++) sl_admit_copied(&a, 0, copies(id, i, 0), true);
    sl_admit_close(&a, 1);
    sl_admit_gave_way(&a, id);
    starts(id, 0);
    assert_int_equal(a.request[id].sure, 3 * PAGE);
    sl_admit_free(&a);
}

static void suspects_are_not_handed_over(void **state) {
    (void)state;
    books(1, 1, 8);
    uint32_t id = submit(2 * PAGE, 20);
    starts(id, 1);
    sl_admit_suspect(&a, id, false);
    assert_int_equal(next(SL_ADMIT_PREEMPT).request, id);
    sl_admit_gave_way(&a, id);
    sl_admit_close(&a, 0);
    starts(id, 1);
    assert_false(a.request[id].parks);
    sl_admit_free(&a);
}

/* ---- drawn ---- */

enum { WORKERS = 5, OTHERS = 3, REQUESTS = 60 };

typedef struct transfer {
    uint32_t at;
    uint64_t number;
} transfer;

static transfer flight[WORKERS * SL_MAX_FETCHES * 4];
static uint32_t n_flight, n_ended;
static bool leaves[REQUESTS * 2];

static void carry_out(const sl_admit_decision *d) {
    switch (d->kind) {
    case SL_ADMIT_COPY:
        assert_true(n_flight < SL_LEN(flight));
        flight[n_flight++] = (transfer){d->worker, d->transfer};
        return;
    case SL_ADMIT_HAND:
        assert_true(a.request[d->request].drawn > 0 && d->worker >= OTHERS);
        leaves[d->request] = true;
        return;
    case SL_ADMIT_PREEMPT:
        leaves[d->request] = true;
        return;
    case SL_ADMIT_START:
        assert_true(a.worker[d->worker].running.n <= a.shape.max_running);
        return;
    default:
        return;
    }
}

static void settle(void) {
    sl_admit_decision d;
    while (sl_admit_next(&a, now_us, &d)) carry_out(&d);
    assert_false(a.failed);
}

static void answer(uint64_t *rng, bool here) {
    if (n_flight == 0) return;
    uint32_t i = (uint32_t)sl_rng_below(rng, n_flight);
    transfer t = flight[i];
    flight[i] = flight[--n_flight];
    sl_admit_copied(&a, t.at, t.number, here);
}

/* What the request's worker does next. */
static void advance(uint64_t *rng, uint32_t id) {
    sl_admit_request *r = &a.request[id];
    if (leaves[id]) {
        leaves[id] = false;
        sl_admit_gave_way(&a, id);
    } else if (r->state != SL_ADMIT_RUNNING || (r->parked && r->drawn < r->most)) {
        return;
    } else if (r->drawn == r->most) {
        sl_admit_end(&a, id);
        n_ended++;
    } else if (r->sure + 40 < sl_admit_known(r)) {
        sl_admit_rows(&a, id, r->sure + 1 + (uint32_t)sl_rng_below(rng, 39));
    } else if (sl_admit_known(r) < r->n_pages * PAGE + 1) {
        sl_admit_token(&a, id, 0);
    }
}

static void lose(uint32_t w) {
    sl_admit_close(&a, w);
    sl_admit_lose_copies(&a, w);
    for (uint32_t i = n_flight; i > 0; i--) /* nobody answers for it any more */
        if (flight[i - 1].at == w) flight[i - 1] = flight[--n_flight];
    for (uint32_t id = 0; id < a.cap; id++) {
        if (!sl_admit_runs(&a.request[id]) || a.request[id].worker != w) continue;
        leaves[id] = false;
        sl_admit_gave_way(&a, id);
    }
}

static void check_books(void) {
    uint32_t kept[WORKERS] = {0};
    for (uint32_t id = 0; id < a.cap; id++) {
        const sl_admit_request *r = &a.request[id];
        if (r->state != SL_ADMIT_UNUSED && r->kept_at != SL_ADMIT_NONE) kept[r->kept_at]++;
    }
    for (uint32_t w = 0; w < WORKERS; w++) {
        uint32_t used = a.copies.worker[w].n_pages;
        for (uint32_t id = 0; id < a.cap; id++)
            if (sl_admit_runs(&a.request[id]) && a.request[id].worker == w)
                used += a.request[id].n_pages;
        assert_int_equal(used + a.worker[w].pages.n_free, POOL);
        assert_int_equal(kept[w], a.worker[w].n_kept);
        assert_true(a.worker[w].running.n + a.worker[w].n_kept <= a.shape.max_running);
    }
}

static void everybody_ends(void **state) {
    (void)state;
    uint64_t rng = 11, handed = 0;
    const uint32_t draws = 20 / take_one_in(SL_SLOW_BUILD ? 5 : 1);
    for (uint32_t draw = 0; draw < draws; draw++) {
        books(OTHERS, WORKERS - OTHERS, 1 + (uint32_t)sl_rng_below(&rng, 6));
        n_flight = n_ended = 0;
        memset(leaves, 0, sizeof leaves);
        uint32_t submitted = 0;
        for (int i = 0; n_ended < REQUESTS && i < 400000; i++) {
            uint32_t w = (uint32_t)sl_rng_below(&rng, WORKERS);
            uint64_t what = sl_rng_below(&rng, 300);
            if (submitted < REQUESTS && what < 20) {
                uint32_t prompt = 1 + (uint32_t)sl_rng_below(&rng, 900);
                submit(prompt, 1 + (uint32_t)sl_rng_below(&rng, 300));
                submitted++;
            } else if (what == 20 && a.worker[w].open && a.n_open > 3) {
                if (sl_rng_below(&rng, 40) == 0) lose(w); /* not faster than prompts are computed */
            } else if (what < 24) {
                sl_admit_open(&a, w);
            } else if (what < 90) {
                answer(&rng, sl_rng_below(&rng, 30) > 0);
            } else if (a.cap > 0) {
                advance(&rng, (uint32_t)sl_rng_below(&rng, SL_MIN(a.cap, REQUESTS + 4u)));
            }
            settle();
            if (i % 16 == 0) check_books();
        }
        for (uint32_t id = 0; n_ended < REQUESTS && id < a.cap; id++) {
            const sl_admit_request *r = &a.request[id];
            if (r->state == SL_ADMIT_UNUSED) continue;
            printf(
                "request %u: state %d at %u, %u + %u of %u tokens, %u sure, %u pages, parked %d, "
                "kept at %u, %u of %u copies at %u, tried %u\n",
                id, r->state, r->worker, r->prompt, r->drawn, r->most, r->sure, r->n_pages,
                r->parked, r->kept_at, a.copies.of[id].n_here, a.copies.of[id].n_asked,
                a.copies.of[id].at, a.copies.of[id].tried);
        }
        assert_int_equal(n_ended, REQUESTS);
        handed += a.n_handed;
        sl_admit_free(&a);
    }
    printf("%llu were handed over\n", (unsigned long long)handed);
    assert_true(handed > 50 * draws);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_prompts_start_apart),
        cmocka_unit_test(nobody_apart_is_open),
        cmocka_unit_test(others_overtake),
        cmocka_unit_test(pages_go_first),
        cmocka_unit_test(its_place_is_kept),
        cmocka_unit_test(it_waits_for_room),
        cmocka_unit_test(a_page_cannot_be_had),
        cmocka_unit_test(prompts_are_spread),
        cmocka_unit_test(its_next_worker_is_lost),
        cmocka_unit_test(its_worker_is_lost),
        cmocka_unit_test(suspects_are_not_handed_over),
        cmocka_unit_test(everybody_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
