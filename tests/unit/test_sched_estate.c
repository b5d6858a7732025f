/* Pages that workers kept of requests whose coordinator is gone, in the books of the next one: who
 * goes on with them, what gives way, what is refused; and in drawn stories, with a model of what
 * lies in each page, that nobody goes on with rows of other tokens, and no page is lost. */
#include "base/rng.h"
#include "sched/admit.h"
#include "spec/kv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define P     SL_KV_PAGE_TOKENS
#define POOL  40u
#define LONG  (8 * P)
#define TEXTS 4u

static sl_admit a;
static uint32_t text[TEXTS][LONG]; /* 1 begins as 0 does, and 3 as 2, for two pages and a half */

static void texts(void) {
    for (uint32_t t = 0; t < TEXTS; t++)
        for (uint32_t i = 0; i < LONG; i++)
            text[t][i] = i < 5 * P / 2 ? 100 * (t / 2) + i : 1000 * (t + 1) + i;
}

static void books(uint32_t workers, uint32_t max_running) {
    sl_err err;
    const sl_admit_shape shape = {
        .n_workers = workers, .max_running = max_running, .max_queue = UINT32_MAX};
    texts();
    assert_int_equal(sl_admit_create(&shape, &a, &err), SL_OK);
    for (uint32_t w = 0; w < workers; w++)
        assert_int_equal(sl_admit_add_pages(&a, w, POOL, POOL, &err), SL_OK);
}

/* The worker kept the first n pages of the text in pages from `first` on, every second one. */
static bool kept(uint32_t worker, uint32_t t, uint32_t first, uint32_t n) {
    sl_estate e = {0};
    uint32_t pages[POOL];
    for (uint32_t i = 0; i < n; i++) pages[i] = first + 2 * i;
    assert_true(sl_estate_add(&e, text[t], pages, n));
    bool ok = sl_admit_take_estate(&a, worker, &e);
    sl_estate_clear(&e, NULL);
    return ok;
}

static uint32_t again(uint32_t t, uint32_t prompt, uint32_t drawn, uint32_t pages) {
    sl_err err;
    uint32_t r;
    assert_int_equal(sl_admit_submit(&a, prompt, LONG, 0, &r, &err), SL_OK);
    sl_admit_ran_before(&a, r, drawn);
    assert_int_equal(sl_admit_inherit(&a, r, text[t], prompt + drawn), pages);
    return r;
}

static void starts(uint32_t r, uint32_t worker, uint32_t sure) {
    sl_admit_decision d;
    assert_true(sl_admit_next(&a, 0, &d));
    assert_true(d.kind == SL_ADMIT_START && d.request == r);
    assert_int_equal(d.worker, worker);
    assert_int_equal(a.request[r].sure, sure);
}

static uint32_t is_free(uint32_t worker) {
    return a.worker[worker].pages.n_free;
}

static void a_request_goes_on_where_its_rows_are(void **state) {
    (void)state;
    books(2, 4);
    assert_true(kept(1, 0, 3, 5));
    assert_true(is_free(1) == POOL - 5 && a.n_unused_pages == 5);
    for (uint32_t w = 0; w < 2; w++) sl_admit_open(&a, w);
    /* The coordinator has heard of less than the worker had: the rest goes. */
    uint32_t r = again(0, 3 * P, P + 7, 4);
    assert_true(is_free(1) == POOL - 4 && a.n_unused_pages == 4 && a.worker[1].estate.n == 0);
    starts(r, 1, 4 * P);
    const uint32_t pages[] = {3, 5, 7, 9};
    assert_memory_equal(a.request[r].pages, pages, sizeof pages);
    assert_true(a.n_unused_pages == 0 && a.copies.of[r].at == SL_KV_COPIES_NONE);
    sl_admit_end(&a, r);
    assert_int_equal(is_free(1), POOL);
    sl_admit_free(&a);
}

/* The row behind the last token that is known is never there: a token is drawn from it. */
static void the_last_row_is_computed_again(void **state) {
    (void)state;
    books(1, 4);
    assert_true(kept(0, 0, 0, 4));
    sl_admit_open(&a, 0);
    uint32_t r = again(0, 4 * P - 3, 3, 4);
    starts(r, 0, 4 * P - 1);
    sl_admit_free(&a);
}

static void only_the_same_tokens_count(void **state) {
    (void)state;
    books(1, 8);
    assert_true(kept(0, 0, 1, 6));
    sl_admit_open(&a, 0);
    again(1, 3 * P, 0, 0); /* two pages are equal, and then it is another text */
    again(2, 3 * P, 0, 0); /* nothing is */
    again(0, P - 1, 0, 0); /* it has no full page */
    assert_int_equal(is_free(0), POOL - 6);
    again(0, 6 * P + 1, 9, 6); /* it is longer than what was kept */
    again(0, 6 * P, 0, 0);     /* and now there is none any more */
    sl_admit_free(&a);
}

static void most_pages_of_all_workers_then_the_shortest_text(void **state) {
    (void)state;
    books(3, 4);
    assert_true(kept(0, 0, 0, 3) && kept(1, 0, 0, 5));
    sl_estate e = {0};
    const uint32_t pages[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    assert_true(sl_estate_add(&e, text[1], pages, 4) && sl_estate_add(&e, text[0], pages + 4, 2));
    assert_true(sl_admit_take_estate(&a, 2, &e));
    for (uint32_t w = 0; w < 3; w++) sl_admit_open(&a, w);
    uint32_t r = again(0, 2 * P, 5, 2); /* all have two of its pages */
    assert_int_equal(a.copies.of[r].at, 2);
    assert_int_equal(a.copies.of[r].page[0], 5);
    uint32_t q = again(0, 5 * P, 5, 5);
    assert_int_equal(a.copies.of[q].at, 1);
    assert_int_equal(a.worker[0].estate.n_pages + a.worker[2].estate.n_pages, 3 + 4);
    sl_admit_free(&a);
}

static void it_gives_way_before_copies_do(void **state) {
    (void)state;
    sl_err err;
    books(1, 4);
    assert_true(kept(0, 0, 0, 7));
    sl_admit_open(&a, 0);
    uint32_t r = again(0, 4 * P, 0, 4); /* three of seven went */
    assert_true(a.copies.worker[0].n_pages == 4 && is_free(0) == POOL - 4);
    sl_admit_close(&a, 0);
    sl_admit_drop_estates(&a);
    sl_admit_end(&a, r);
    assert_true(kept(0, 2, 1, 8));
    sl_admit_open(&a, 0);
    assert_int_equal(sl_admit_submit(&a, (POOL - 4) * P, P, 0, &r, &err), SL_OK);
    starts(r, 0, 0); /* it takes 37 pages of 40: five of the eight go, the last ones */
    assert_true(a.worker[0].estate.n_pages == 3 && a.worker[0].estate.n == 1);
    assert_int_equal(a.n_unused_pages + is_free(0) + a.request[r].n_pages, POOL);
    again(2, 4 * P, 0, 3);
    sl_admit_free(&a);
}

static void it_goes_with_its_worker_and_with_time(void **state) {
    (void)state;
    books(2, 4);
    assert_true(kept(0, 0, 0, 7) && kept(1, 2, 0, 7));
    sl_admit_lose_copies(&a, 0);
    assert_true(is_free(0) == POOL && a.n_unused_pages == 7);
    assert_true(kept(0, 0, 0, 7)); /* and comes back */
    sl_admit_drop_estates(&a);
    assert_true(is_free(0) == POOL && is_free(1) == POOL && a.n_unused_pages == 0);
    sl_admit_open(&a, 0);
    again(0, 7 * P, 0, 0);
    sl_admit_free(&a);
}

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    books(1, 4);
    assert_false(kept(0, 0, POOL - 4, 3)); /* the last one is none */
    assert_int_equal(is_free(0), POOL);
    sl_estate e = {0};
    const uint32_t pages[] = {4, 9, 9};
    assert_true(sl_estate_add(&e, text[0], pages, 2) && sl_estate_add(&e, text[2], pages + 2, 1));
    assert_false(sl_admit_take_estate(&a, 0, &e));
    sl_estate_clear(&e, NULL);
    assert_true(is_free(0) == POOL && a.n_unused_pages == 0);
    assert_true(kept(0, 0, 0, 3));
    assert_false(kept(0, 2, 20, 3)); /* once */
    sl_admit_open(&a, 0);
    uint32_t r = again(0, 3 * P, 0, 3);
    starts(r, 0, 3 * P - 1);
    sl_admit_free(&a);
}

/* ---- drawn stories ---- */

static uint32_t in_page[2][POOL][P]; /* what the rows of each page were computed from */

static uint32_t below(uint64_t *rng, uint32_t n) {
    return (uint32_t)(sl_rng_next(rng) % n);
}

/* What a worker has of some texts, in pages of its own choice; `early`: a planted bug, the last
 * page was told of before its last row was there. */
static void draw_estate(uint64_t *rng, uint32_t worker, bool early) {
    sl_estate e = {0};
    uint32_t page[POOL], n = 0;
    for (uint32_t i = 0; i < POOL; i++) page[i] = i;
    for (uint32_t i = POOL; i > 1; i--) {
        uint32_t j = below(rng, i), other = page[j];
        page[j] = page[i - 1];
        page[i - 1] = other;
    }
    for (uint32_t t = 0; t < TEXTS; t++) {
        uint32_t has = below(rng, 9);
        for (uint32_t i = 0; i < has; i++)
            memcpy(in_page[worker][page[n + i]], text[t] + i * P, P * sizeof(uint32_t));
        if (early && has) in_page[worker][page[n + has - 1]][P - 1] = UINT32_MAX;
        if (has) assert_true(sl_estate_add(&e, text[t], page + n, has));
        n += has;
    }
    if (e.n) assert_true(sl_admit_take_estate(&a, worker, &e));
    sl_estate_clear(&e, NULL);
    sl_admit_open(&a, worker);
}

/* Rows that are sure and were not computed from the request's tokens. */
static uint32_t wrong_rows(uint32_t r, uint32_t t) {
    const sl_admit_request *q = &a.request[r];
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < q->sure; i++)
        wrong += in_page[q->worker][q->pages[i / P]][i % P] != text[t][i];
    return wrong;
}

static void balance(void) {
    uint8_t owners[2][POOL] = {0};
    uint64_t unused = 0;
    for (uint32_t i = 0; i < a.cap; i++) {
        const sl_admit_request *q = &a.request[i];
        const sl_kv_copies_of *of = &a.copies.of[i];
        for (uint32_t j = 0; sl_admit_runs(q) && j < q->n_pages; j++)
            owners[q->worker][q->pages[j]]++;
        for (uint32_t j = 0; of->at != SL_KV_COPIES_NONE && j < of->n_asked; j++)
            owners[of->at][of->page[j]]++;
        unused += of->at != SL_KV_COPIES_NONE ? of->n_asked : 0;
    }
    for (uint32_t w = 0; w < 2; w++) {
        const sl_estate *e = &a.worker[w].estate;
        unused += e->n_pages;
        for (uint32_t i = 0; i < e->n; i++)
            for (uint32_t j = 0; j < e->text[i].n_pages; j++) owners[w][e->text[i].pages[j]]++;
        uint32_t used = 0;
        for (uint32_t i = 0; i < POOL; i++) {
            uint32_t holders =
                i < a.worker[w].pages.n_touched ? a.worker[w].pages.page[i].holders : 0;
            assert_true(owners[w][i] <= 1 && owners[w][i] == holders);
            used += owners[w][i];
        }
        assert_int_equal(used + is_free(w), POOL);
    }
    assert_int_equal(unused, a.n_unused_pages);
}

/* Rows that were spared; *wrong: of these, that were other tokens'. */
static uint32_t story(uint64_t seed, bool early, uint32_t *wrong) {
    uint64_t rng = seed;
    uint32_t of[16], r[16], spared = 0, n = 2 + below(&rng, 15);
    sl_admit_decision d;
    books(2, 1 + below(&rng, 4));
    for (uint32_t w = 0; w < 2; w++) draw_estate(&rng, w, early);
    balance();
    for (uint32_t i = 0; i < n; i++) {
        sl_err err;
        uint32_t prompt = 1 + below(&rng, 7 * P);
        of[i] = below(&rng, TEXTS);
        assert_int_equal(sl_admit_submit(&a, prompt, 2 * P, 0, &r[i], &err), SL_OK);
        if (i + 3 < n) { /* the others come for the first time */
            uint32_t drawn = below(&rng, P);
            sl_admit_ran_before(&a, r[i], drawn);
            sl_admit_inherit(&a, r[i], text[of[i]], prompt + drawn - below(&rng, 2));
        }
        balance();
    }
    if (below(&rng, 4) == 0) sl_admit_drop_estates(&a);
    for (uint32_t left = n; left > 0;) {
        if (!sl_admit_next(&a, 0, &d)) { /* one that runs ends */
            for (uint32_t i = 0; i < n; i++)
                if (sl_admit_runs(&a.request[r[i]])) d.request = r[i];
            sl_admit_end(&a, d.request);
            left--;
        } else if (d.kind == SL_ADMIT_START) {
            for (uint32_t i = 0; i < n; i++)
                if (r[i] == d.request) *wrong += wrong_rows(d.request, of[i]);
            spared += a.request[d.request].sure;
        }
        balance();
    }
    sl_admit_drop_estates(&a);
    assert_true(is_free(0) == POOL && is_free(1) == POOL);
    sl_admit_free(&a);
    return spared;
}

static void nobody_gets_rows_of_others(void **state) {
    (void)state;
    uint32_t spared = 0, wrong = 0;
    for (uint64_t seed = 0; seed < 400; seed++) spared += story(seed, false, &wrong);
    assert_true(spared > 400 * P);
    assert_int_equal(wrong, 0);
    for (uint64_t seed = 0; seed < 20; seed++) story(seed, true, &wrong);
    assert_true(wrong > 0); /* the planted bug is seen */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_goes_on_where_its_rows_are),
        cmocka_unit_test(the_last_row_is_computed_again),
        cmocka_unit_test(only_the_same_tokens_count),
        cmocka_unit_test(most_pages_of_all_workers_then_the_shortest_text),
        cmocka_unit_test(it_gives_way_before_copies_do),
        cmocka_unit_test(it_goes_with_its_worker_and_with_time),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(nobody_gets_rows_of_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
