/* Copies of KV pages in the coordinator's books: what is copied when, what gives way, where
 * requests go on; and in drawn stories, with a model of what lies in each page, that nobody ever
 * goes on with rows that are not his. */
#include "base/rng.h"
#include "sched/admit.h"
#include "spec/kv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define P SL_KV_PAGE_TOKENS

static sl_admit a;

static void books(uint32_t workers, uint32_t pages, uint32_t max_running) {
    sl_err err;
    const sl_admit_shape shape = {
        .n_workers = workers, .max_running = max_running, .max_queue = UINT32_MAX};
    assert_int_equal(sl_admit_create(&shape, &a, &err), SL_OK);
    for (uint32_t w = 0; w < workers; w++) {
        assert_int_equal(sl_admit_add_pages(&a, w, pages, pages, &err), SL_OK);
        sl_admit_open(&a, w);
    }
    for (uint32_t w = 0; w < workers; w++) sl_admit_pair(&a, w, (w + 1) % workers);
}

static uint32_t submit(uint32_t prompt, uint32_t most) {
    sl_err err;
    uint32_t request;
    assert_int_equal(sl_admit_submit(&a, prompt, most, 0, &request, &err), SL_OK);
    return request;
}

static void nothing(void) {
    sl_admit_decision d;
    assert_false(sl_admit_next(&a, 0, &d));
}

static sl_admit_decision decides(sl_admit_kind kind, uint32_t request) {
    sl_admit_decision d;
    assert_true(sl_admit_next(&a, 0, &d));
    assert_int_equal(d.kind, kind);
    assert_int_equal(d.request, request);
    return d;
}

static sl_admit_decision copies(uint32_t request, uint32_t to, uint32_t index) {
    sl_admit_decision d = decides(SL_ADMIT_COPY, request);
    assert_int_equal(d.worker, to);
    assert_int_equal(d.index, index);
    assert_true(d.from == a.request[request].worker && d.from != to);
    return d;
}

/* The worker is gone, and what it had. */
static void lose(uint32_t worker) {
    sl_admit_close(&a, worker);
    sl_admit_lose_copies(&a, worker);
    while (a.worker[worker].running.n > 0) sl_admit_gave_way(&a, a.worker[worker].running.first);
}

static void full_pages_are_copied_and_taken_over(void **state) {
    (void)state;
    books(2, 40, 4);
    uint32_t r = submit(3 * P + 5, 100);
    assert_int_equal(decides(SL_ADMIT_START, r).worker, 0);
    nothing();
    sl_admit_rows(&a, r, P - 1); /* one row of the page is missing */
    nothing();
    sl_admit_rows(&a, r, P);
    uint64_t first = copies(r, 1, 0).transfer;
    nothing();
    sl_admit_rows(&a, r, 3 * P + 4);
    uint64_t second = copies(r, 1, 1).transfer, third = copies(r, 1, 2).transfer;
    nothing();
    assert_true(first < second && second < third);
    assert_true(a.worker[1].pages.n_free == 37 && a.copies.worker[1].n_pages == 3);
    sl_admit_copied(&a, 1, first, true);
    sl_admit_copied(&a, 1, second, true);
    assert_int_equal(a.copies.of[r].n_here, 2);
    assert_int_equal(sl_admit_copied_rows(&a, r), 2 * P);
    uint32_t page[2] = {a.copies.of[r].page[0], a.copies.of[r].page[1]};
    lose(0); /* the third is on its way, from nobody */
    assert_int_equal(a.copies.worker[1].n_pages, 2);
    assert_int_equal(decides(SL_ADMIT_START, r).worker, 1);
    assert_int_equal(a.request[r].sure, 2 * P);
    assert_memory_equal(a.request[r].pages, page, sizeof page);
    assert_int_equal(a.request[r].n_pages, sl_kv_pages_for(3 * P + 5 + SL_MAX_AHEAD));
    assert_true(a.copies.worker[1].n_pages == 0 && a.copies.of[r].at == SL_KV_COPIES_NONE);
    sl_admit_copied(&a, 1, third, true); /* late: of no interest */
    nothing();
    assert_int_equal(a.request[r].sure, 2 * P);
    sl_admit_end(&a, r);
    assert_int_equal(a.worker[1].pages.n_free, 40);
    sl_admit_free(&a);
}

static void copies_are_the_first_to_go(void **state) {
    (void)state;
    books(2, 24, 4);
    uint32_t r = submit(8 * P, 8 * P);
    assert_int_equal(decides(SL_ADMIT_START, r).worker, 0);
    sl_admit_rows(&a, r, 8 * P - 1);
    for (uint32_t i = 0; i < 7; i++) sl_admit_copied(&a, 1, copies(r, 1, i).transfer, true);
    nothing();
    assert_int_equal(a.worker[1].pages.n_free, 17);
    /* Others see them as free: the other worker, with copies, has most free pages. */
    uint32_t big = submit(20 * P, 2 * P);
    assert_int_equal(decides(SL_ADMIT_START, big).worker, 1);
    assert_int_equal(a.copies.of[r].n_here, 0); /* 16 at once, or all there are */
    assert_true(a.copies.worker[1].n_pages == 0 && a.worker[1].pages.n_free == 3);
    nothing(); /* nothing is copied where less than a share of the pool is free */
    sl_admit_token(&a, r, 0);
    decides(SL_ADMIT_PAGE, r);
    nothing();
    sl_admit_end(&a, big);
    for (uint32_t i = 0; i < P; i++) sl_admit_token(&a, r, 0);
    decides(SL_ADMIT_PAGE, r);
    copies(r, 1, 0);
    sl_admit_end(&a, r);
    sl_admit_free(&a);
}

static void what_cannot_be_had_is_asked_for_later(void **state) {
    (void)state;
    books(2, 24, 4);
    uint32_t r = submit(4 * P + 1, 8 * P);
    decides(SL_ADMIT_START, r);
    sl_admit_rows(&a, r, 4 * P);
    uint64_t t[4];
    for (uint32_t i = 0; i < 4; i++) t[i] = copies(r, 1, i).transfer;
    sl_admit_copied(&a, 1, t[0], true);
    sl_admit_copied(&a, 1, t[1], false); /* those behind it came for nothing */
    assert_true(a.copies.of[r].n_here == 1 && a.copies.of[r].n_asked == 1);
    sl_admit_copied(&a, 1, t[2], true);
    sl_admit_copied(&a, 1, t[3], true);
    assert_true(a.copies.of[r].n_here == 1 && a.copies.worker[1].n_pages == 1);
    assert_int_equal(a.copies.worker[1].n_owed, 0);
    nothing();
    for (uint32_t i = 0; i < P; i++) sl_admit_token(&a, r, 0);
    decides(SL_ADMIT_PAGE, r);
    copies(r, 1, 1);
    sl_admit_end(&a, r);
    sl_admit_free(&a);
}

static void no_more_are_on_their_way_than_may_be(void **state) {
    (void)state;
    books(3, 64, 4);
    uint32_t r = submit(20 * P + 1, 1);
    decides(SL_ADMIT_START, r);
    sl_admit_rows(&a, r, 20 * P);
    uint64_t t = 0;
    for (uint32_t i = 0; i < SL_MAX_FETCHES; i++) t = copies(r, 1, i).transfer;
    nothing();
    sl_admit_copied(&a, 1, t - SL_MAX_FETCHES + 1, true);
    copies(r, 1, SL_MAX_FETCHES);
    nothing();
    sl_admit_pair(&a, 0, 2); /* another plan: they begin anew there */
    copies(r, 2, 0);
    assert_true(a.copies.worker[1].n_pages == 0 && a.copies.worker[1].n_owed == SL_MAX_FETCHES);
    sl_admit_lose_copies(&a, 2);
    sl_admit_close(&a, 2);
    nothing();
    assert_int_equal(a.copies.worker[2].n_pages, 0);
    sl_admit_open(&a, 2);
    copies(r, 2, 0);
    sl_admit_end(&a, r);
    for (uint32_t w = 0; w < 3; w++) assert_int_equal(a.worker[w].pages.n_free, 64);
    sl_admit_free(&a);
}

/* A worker that answers again and again, or what nobody asked, is told of no more than may be. */
static void answers_that_nobody_waits_for_count_nothing(void **state) {
    (void)state;
    books(2, 80, 4);
    uint32_t r = submit(20 * P, 100);
    decides(SL_ADMIT_START, r);
    sl_admit_rows(&a, r, 20 * P - 1);
    uint64_t first = copies(r, 1, 0).transfer;
    for (uint32_t i = 1; i < SL_MAX_FETCHES; i++) copies(r, 1, i);
    nothing();
    sl_admit_copied(&a, 1, first, true);
    copies(r, 1, SL_MAX_FETCHES);
    for (uint32_t i = 0; i < 3 * SL_MAX_FETCHES; i++) {
        sl_admit_copied(&a, 1, first, i % 2);
        nothing();
    }
    assert_int_equal(a.copies.worker[1].n_flight, SL_MAX_FETCHES);
    assert_int_equal(a.copies.worker[1].n_owed, SL_MAX_FETCHES);
    sl_admit_free(&a);
}

static void who_stays_has_copies_too(void **state) {
    (void)state;
    books(2, 24, 4);
    uint32_t r = submit(2 * P + 1, P);
    decides(SL_ADMIT_START, r);
    sl_admit_rows(&a, r, 2 * P);
    for (uint32_t i = 0; i < 2; i++) sl_admit_copied(&a, 1, copies(r, 1, i).transfer, true);
    sl_admit_close(&a, 0);
    sl_admit_stay(&a, r);
    assert_int_equal(sl_admit_copied_rows(&a, r), 2 * P); /* as soon, elsewhere */
    sl_admit_gave_way(&a, r);
    assert_int_equal(decides(SL_ADMIT_START, r).worker, 1);
    assert_int_equal(a.request[r].sure, 2 * P);
    sl_admit_end(&a, r);
    sl_admit_free(&a);
}

/* ---- drawn stories ---- */

#define WORKERS  3u
#define PAGES    12u
#define REQUESTS 16u
#define ROUNDS   4000u

/* What lies in a page: so many rows of page `index` of request number `of`. */
typedef struct content {
    uint64_t of;
    uint32_t index, rows;
} content;

typedef struct move {
    sl_admit_decision d;
    uint64_t of;
    bool lost;
} move;

typedef struct story {
    uint64_t rng, numbers;
    bool early, unclaimed; /* planted: rows are said to be there before; pages are not claimed */
    bool wrong;
    content page[WORKERS][PAGES];
    uint64_t waits[WORKERS][PAGES]; /* number of the transfer that it is to come with; 0: none */
    uint64_t number[REQUESTS * 4];  /* of the request with this index; 0: none */
    uint32_t done[REQUESTS * 4];
    move move[64];
    uint32_t n_moves, n_taken, n_copied;
} story;

static uint32_t below(story *s, uint32_t n) {
    return (uint32_t)sl_rng_below(&s->rng, n);
}

/* A worker is told to whom pages go. */
static void claim(story *s, uint32_t worker, const uint32_t *pages, uint32_t n) {
    for (uint32_t i = 0; i < n && !s->unclaimed; i++) s->waits[worker][pages[i]] = 0;
}

static void check_start(story *s, const sl_admit_decision *d) {
    const sl_admit_request *r = &a.request[d->request];
    claim(s, d->worker, r->pages, r->n_pages);
    s->n_taken += r->sure > 0;
    for (uint32_t i = 0; i * P < r->sure; i++) {
        const content *c = &s->page[d->worker][r->pages[i]];
        s->wrong |= c->of != s->number[d->request] || c->index != i || c->rows < P;
    }
    s->done[d->request] = r->sure;
}

static void decide(story *s) {
    sl_admit_decision d;
    while (sl_admit_next(&a, 0, &d)) {
        const sl_admit_request *r = &a.request[d.request];
        if (d.kind == SL_ADMIT_START) check_start(s, &d);
        if (d.kind == SL_ADMIT_PAGE) claim(s, d.worker, &d.page, 1);
        if (d.kind == SL_ADMIT_PREEMPT) sl_admit_gave_way(&a, d.request);
        if (d.kind != SL_ADMIT_COPY) continue;
        assert_true(r->state == SL_ADMIT_RUNNING && s->n_moves < 64);
        s->waits[d.worker][d.page] = d.transfer;
        s->move[s->n_moves++] = (move){.d = d, .of = s->number[d.request]};
    }
}

/* Rows of a running request are computed, and later rows of whoever has its pages go over them. */
static void compute(story *s, uint32_t request) {
    sl_admit_request *r = &a.request[request];
    uint32_t known = sl_admit_known(r), room = SL_MIN(known, r->n_pages * P);
    uint32_t to = SL_MIN(s->done[request] + 1 + below(s, 2 * P), room);
    for (uint32_t pos = s->done[request]; pos < to; pos++)
        s->page[r->worker][r->pages[pos / P]] = (content){s->number[request], pos / P, pos % P + 1};
    s->done[request] = SL_MAX(to, s->done[request]);
    uint32_t said = s->done[request];
    if (s->early) said = SL_MIN(said + P / 2, known - 1);
    if (said < known) sl_admit_rows(&a, request, said);
    if (s->done[request] < known) return;
    if (r->drawn + 1 < r->most && below(s, 20))
        sl_admit_token(&a, request, 0);
    else {
        sl_admit_end(&a, request);
        s->number[request] = 0;
    }
}

/* A page arrives, perhaps long after it was asked for, as it is at its source then: or it does not.
 */
static void arrive(story *s) {
    uint32_t i = below(s, s->n_moves);
    const move m = s->move[i];
    s->move[i] = s->move[--s->n_moves];
    bool due = s->waits[m.d.worker][m.d.page] == m.d.transfer || s->unclaimed;
    const sl_admit_request *r = &a.request[m.d.request];
    bool there = !m.lost && s->number[m.d.request] == m.of && r->state == SL_ADMIT_RUNNING &&
                 r->worker == m.d.from && (s->early || s->done[m.d.request] / P > m.d.index);
    bool ok = due && there && below(s, 10);
    if (ok) s->page[m.d.worker][m.d.page] = s->page[m.d.from][r->pages[m.d.index]];
    if (due) s->waits[m.d.worker][m.d.page] = 0;
    s->n_copied += ok;
    sl_admit_copied(&a, m.d.worker, m.d.transfer, ok);
}

static void lose_one(story *s) {
    uint32_t w = below(s, WORKERS);
    if (!a.worker[w].open || a.n_open == 1) return;
    lose(w);
    memset(s->page[w], 0, sizeof s->page[w]);
    memset(s->waits[w], 0, sizeof s->waits[w]);
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_moves; i++)
        if (s->move[i].d.worker != w) {
            s->move[n] = s->move[i];
            s->move[n++].lost |= s->move[i].d.from == w;
        }
    s->n_moves = n;
}

static void check_books(void) {
    for (uint32_t w = 0; w < WORKERS; w++) {
        uint32_t owners[PAGES] = {0}, n = 0, copies = 0;
        for (uint32_t i = 0; i < a.cap; i++) {
            const sl_admit_request *r = &a.request[i];
            const sl_kv_copies_of *of = &a.copies.of[i];
            for (uint32_t k = 0; r->state >= SL_ADMIT_STAYING && r->worker == w && k < r->n_pages;
                 k++)
                owners[r->pages[k]]++;
            for (uint32_t k = 0; of->at == w && k < of->n_asked; k++) owners[of->page[k]]++;
            copies += of->at == w ? of->n_asked : 0;
            assert_true(of->at != w || (of->n_here <= of->n_asked && of->n_asked > 0));
        }
        for (uint32_t i = 0; i < PAGES; i++) {
            assert_true(owners[i] <= 1);
            n += owners[i];
        }
        assert_int_equal(n + a.worker[w].pages.n_free, PAGES);
        assert_int_equal(copies, a.copies.worker[w].n_pages);
    }
}

static void tell(story *s) {
    uint32_t request, open = 0;
    for (uint32_t i = 0; i < a.cap; i++) open += a.request[i].state != SL_ADMIT_UNUSED;
    switch (below(s, 12)) {
    case 0:
        if (open == REQUESTS) break;
        request = submit(1 + below(s, 5 * P), 1 + below(s, 3 * P));
        s->number[request] = ++s->numbers;
        s->done[request] = 0;
        break;
    case 1:
        if (below(s, 8) == 0) lose_one(s);
        break;
    case 2:
        sl_admit_open(&a, below(s, WORKERS));
        break;
    case 3:
    case 4:
        if (s->n_moves) arrive(s);
        break;
    default:
        request = below(s, SL_MAX(a.cap, 1u));
        if (a.cap && a.request[request].state == SL_ADMIT_RUNNING) compute(s, request);
    }
}

static bool tells_a_story(uint64_t seed, bool early, bool unclaimed, uint32_t *taken) {
    story s = {.rng = seed, .early = early, .unclaimed = unclaimed};
    books(WORKERS, PAGES, 4);
    for (uint32_t i = 0; i < ROUNDS && !s.wrong; i++) {
        tell(&s);
        decide(&s);
        check_books();
    }
    *taken += s.n_taken;
    sl_admit_free(&a);
    return !s.wrong;
}

static void nobody_goes_on_with_rows_of_others(void **state) {
    (void)state;
    uint32_t taken = 0;
    for (uint64_t seed = 1; seed <= 120; seed++)
        if (!tells_a_story(seed, false, false, &taken)) fail_msg("seed %u", (unsigned)seed);
    printf("%u requests went on with copies\n", taken);
    assert_true(taken > 100);
}

static void planted_bugs_are_found(void **state) {
    (void)state;
    uint32_t taken = 0, early = 0, unclaimed = 0;
    for (uint64_t seed = 1; seed <= 40 && !(early && unclaimed); seed++) {
        early += !tells_a_story(seed, true, false, &taken);
        unclaimed += !tells_a_story(seed, false, true, &taken);
    }
    assert_true(early > 0);
    assert_true(unclaimed > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_pages_are_copied_and_taken_over),
        cmocka_unit_test(copies_are_the_first_to_go),
        cmocka_unit_test(what_cannot_be_had_is_asked_for_later),
        cmocka_unit_test(no_more_are_on_their_way_than_may_be),
        cmocka_unit_test(answers_that_nobody_waits_for_count_nothing),
        cmocka_unit_test(who_stays_has_copies_too),
        cmocka_unit_test(nobody_goes_on_with_rows_of_others),
        cmocka_unit_test(planted_bugs_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
