/* Pages that requests begin with, as others computed them, in the coordinator's books: who begins
 * with which, where, what gives way, what is refused; and in drawn stories, with a model of what
 * lies in each page, that nobody begins with rows of other tokens, and no page is lost. */
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
#define MORE  64u /* drawn at most */

static sl_admit a;
/* 1 begins as 0 does, and 3 as 2, for two pages and a half. */
static uint32_t text[TEXTS][LONG + MORE];

static void books(uint32_t workers, uint32_t max_running) {
    sl_err err;
    const sl_admit_shape shape = {
        .n_workers = workers, .max_running = max_running, .max_queue = UINT32_MAX};
    for (uint32_t t = 0; t < TEXTS; t++)
        for (uint32_t i = 0; i < LONG + MORE; i++)
            text[t][i] = i < 5 * P / 2 ? 100 * (t / 2) + i : 1000 * (t + 1) + i;
    assert_int_equal(sl_admit_create(&shape, &a, &err), SL_OK);
    for (uint32_t w = 0; w < workers; w++) {
        assert_int_equal(sl_admit_add_pages(&a, w, POOL, POOL, &err), SL_OK);
        sl_admit_set_resumes(&a, w, true);
    }
}

static void open_all(void) {
    for (uint32_t w = 0; w < a.shape.n_workers; w++) sl_admit_open(&a, w);
}

static sl_prefix_text about(uint32_t t, uint32_t tenant) {
    return (sl_prefix_text){
        .tokens = text[t], .root = {{1 + tenant, 0}}, .shares = true, .spare = UINT32_MAX};
}

static uint32_t submit_as(sl_prefix_text is, uint32_t prompt, uint32_t most) {
    uint32_t r;
    sl_err err;
    assert_int_equal(sl_admit_submit(&a, prompt, most, 0, &r, &err), SL_OK);
    assert_int_equal(sl_admit_know(&a, r, &is, &err), SL_OK);
    return r;
}

static uint32_t submit(uint32_t t, uint32_t prompt) {
    return submit_as(about(t, 0), prompt, MORE);
}

static void starts(uint32_t request, uint32_t worker, uint32_t pages) {
    sl_admit_decision d;
    do assert_true(sl_admit_next(&a, 0, &d));
    while (d.kind == SL_ADMIT_PAGE);
    assert_int_equal(d.kind, SL_ADMIT_START);
    assert_int_equal(d.request, request);
    assert_int_equal(d.worker, worker);
    assert_int_equal(a.request[request].sure, pages * P);
    assert_int_equal(a.request[request].found, pages * P);
    assert_true(a.request[request].n_pages >= pages);
}

/* It starts, computes its prompt and draws so many tokens. */
static void runs(uint32_t request, uint32_t worker, uint32_t pages, uint32_t drawn) {
    starts(request, worker, pages);
    while (drawn-- > 0) sl_admit_token(&a, request, 0);
}

static void balances(void) {
    uint32_t held[2][POOL] = {{0}}, cached = 0, free = 0;
    for (uint32_t r = 0; r < a.cap; r++)
        if (a.request[r].state >= SL_ADMIT_STAYING)
            for (uint32_t i = 0; i < a.request[r].n_pages; i++)
                held[a.request[r].worker][a.request[r].pages[i]]++;
    for (uint32_t w = 0; w < a.shape.n_workers; w++) {
        const sl_pages *p = &a.worker[w].pages;
        uint32_t used = 0;
        for (uint32_t i = 0; i < POOL; i++) {
            assert_int_equal(i < p->n_touched ? p->page[i].holders : 0, held[w][i]);
            used += held[w][i] > 0;
        }
        assert_int_equal(used + p->n_cached + p->n_free, POOL);
        cached += p->n_cached;
        free += p->n_free;
    }
    assert_int_equal(cached, a.n_cached_pages);
    assert_int_equal(free, a.n_free_pages);
}

/* A token may be known long before its row is computed: until then its page is nobody else's. */
static void pages_of_what_is_only_known_are_not_shared(void **state) {
    (void)state;
    books(1, 8);
    open_all();
    uint32_t first = submit(0, 2 * P - 3);
    starts(first, 0, 0);
    sl_admit_token(&a, first, 0); /* the prompt is there */
    for (uint32_t behind = 1; behind < 6; behind++) sl_admit_token(&a, first, behind);
    assert_int_equal(a.request[first].sure, 2 * P - 3);
    uint32_t second = submit(0, 3 * P);
    starts(second, 0, 1);
    sl_admit_token(&a, first, 0); /* drawn behind all of them */
    assert_int_equal(a.request[first].sure, 2 * P + 3);
    uint32_t third = submit(0, 3 * P);
    starts(third, 0, 2);
    balances();
    sl_admit_free(&a);
}

static void full_pages_are_shared_while_it_runs_and_after(void **state) {
    (void)state;
    books(1, 8);
    open_all();
    uint32_t first = submit(0, 3 * P + 5), second = submit(0, 3 * P + 5);
    starts(first, 0, 0);
    starts(second, 0, 0); /* nothing is sure of the first one yet */
    sl_admit_rows(&a, first, 2 * P - 1);
    uint32_t third = submit(0, 3 * P + 5);
    starts(third, 0, 1);
    assert_int_equal(a.request[third].pages[0], a.request[first].pages[0]);
    assert_true(a.request[third].pages[1] != a.request[first].pages[1]);
    sl_admit_token(&a, first, 0); /* all of its prompt is there */
    uint32_t fourth = submit(0, 3 * P + 5);
    starts(fourth, 0, 3);
    assert_memory_equal(a.request[fourth].pages, a.request[first].pages, 3 * sizeof(uint32_t));
    balances();
    sl_admit_end(&a, first);
    assert_int_equal(a.n_cached_pages, 0); /* others have them still */
    sl_admit_end(&a, fourth);
    sl_admit_end(&a, third);
    sl_admit_end(&a, second);
    assert_int_equal(a.n_cached_pages, 3);
    balances();
    uint32_t last = submit(1, 8 * P); /* the same for two pages and a half */
    starts(last, 0, 2);
    sl_admit_end(&a, last);
    balances();
    assert_true(a.rows_found == (1 + 3 + 2) * P && a.rows_asked == 4 * (3 * P + 5) + 8 * P);
    sl_admit_free(&a);
}

/* The last row is computed, and whatever has to be for its own sake. */
static void rows_that_have_to_be_computed_are(void **state) {
    (void)state;
    books(1, 8);
    open_all();
    uint32_t r = submit(0, LONG);
    runs(r, 0, 0, 40);
    sl_admit_end(&a, r);
    static const struct {
        uint32_t prompt, spare, pages;
    } cases[] = {{3 * P + 1, UINT32_MAX, 3},
                 {3 * P, UINT32_MAX, 2},
                 {P, UINT32_MAX, 0},
                 {1, UINT32_MAX, 0},
                 {LONG, 0, 0},
                 {LONG, 2 * P - 1, 1},
                 {LONG, 2 * P, 2}};
    for (size_t i = 0; i < SL_LEN(cases); i++) {
        sl_prefix_text is = about(0, 0);
        is.spare = cases[i].spare;
        r = submit_as(is, cases[i].prompt, MORE);
        starts(r, 0, cases[i].pages);
        sl_admit_end(&a, r);
    }
    r = submit(0, LONG + 33); /* what was drawn is there, too, as far as it was computed */
    starts(r, 0, 9);
    sl_admit_end(&a, r);
    balances();
    sl_admit_free(&a);
}

static void others_tokens_are_nobodys(void **state) {
    (void)state;
    books(1, 8);
    open_all();
    uint32_t r = submit(0, LONG);
    runs(r, 0, 0, 1);
    sl_admit_end(&a, r);
    r = submit_as(about(0, 1), LONG, MORE); /* another tenant's */
    runs(r, 0, 0, 1);
    sl_admit_end(&a, r);
    sl_prefix_text alone = about(0, 2);
    alone.shares = false;
    r = submit_as(alone, LONG, MORE);
    runs(r, 0, 0, 1);
    uint32_t cached = a.worker[0].pages.n_cached;
    sl_admit_end(&a, r); /* it leaves nothing behind */
    assert_int_equal(a.worker[0].pages.n_cached, cached);
    sl_admit_set_resumes(&a, 0, false);
    r = submit(0, LONG);
    starts(r, 0, 0);
    sl_admit_end(&a, r);
    sl_admit_set_resumes(&a, 0, true);
    r = submit(0, LONG);
    starts(r, 0, 7);
    sl_admit_end(&a, r);
    sl_admit_forget(&a, 0);
    assert_true(a.n_free_pages == POOL && a.n_cached_pages == 0);
    r = submit(0, LONG);
    starts(r, 0, 0);
    sl_admit_free(&a);
}

/* Cached pages go, the longest unused first, before anybody gives way or is made to wait. */
static void cached_pages_are_the_first_to_go(void **state) {
    (void)state;
    books(1, 8);
    open_all();
    uint32_t r = submit(0, 4 * P + 1), s;
    runs(r, 0, 0, 1);
    sl_admit_end(&a, r);
    r = submit(2, 4 * P + 1);
    runs(r, 0, 0, 1);
    sl_admit_end(&a, r);
    assert_int_equal(a.n_cached_pages, 8);
    sl_prefix_text alone = about(0, 5);
    alone.shares = false;
    s = submit_as(alone, (POOL - 3) * P, P);
    starts(s, 0, 0);
    assert_int_equal(a.worker[0].pages.n_cached, POOL - a.request[s].n_pages);
    balances();
    sl_admit_end(&a, s);
    r = submit(0, 4 * P + 1); /* given back first, gone first */
    starts(r, 0, 0);
    sl_admit_end(&a, r);
    r = submit(2, 4 * P + 1); /* of the other its first pages are left */
    starts(r, 0, 2);
    sl_admit_end(&a, r);
    balances();
    sl_admit_free(&a);
}

static void the_preempted_find_what_they_had(void **state) {
    (void)state;
    books(1, 8);
    open_all();
    uint32_t r = submit(0, 3 * P);
    runs(r, 0, 0, 33);
    uint32_t id;
    assert_true(sl_admit_move(&a, 0, &id) && id == r);
    sl_admit_gave_way(&a, r);
    balances();
    starts(r, 0, 4);
    sl_admit_token(&a, r, 0);
    sl_admit_end(&a, r);
    balances();
    sl_admit_free(&a);
}

/* Where most is spared: each that runs there counts as a page. */
static void where_its_pages_are_unless_that_is_busy(void **state) {
    (void)state;
    books(2, 8);
    open_all();
    uint32_t r = submit(0, 3 * P + 1), busy[8];
    runs(r, 0, 0, 1);
    sl_admit_end(&a, r);
    for (uint32_t i = 0; i < 4; i++) { /* two each */
        sl_prefix_text alone = about(2, 10 + i);
        busy[i] = submit_as(alone, 1, 1);
        starts(busy[i], i % 2, 0);
    }
    r = submit(0, 3 * P + 1);
    starts(r, 0, 3);
    for (uint32_t i = 4; i < 6; i++) { /* here are three, and five */
        busy[i] = submit(0, 3 * P + 1);
        starts(busy[i], 0, 3);
    }
    busy[6] = submit(0, 3 * P + 1); /* no page more than that one has requests more */
    starts(busy[6], 1, 0);
    sl_admit_token(&a, busy[6], 0); /* from now on both have them */
    busy[7] = submit(0, 3 * P + 1);
    starts(busy[7], 1, 3);
    balances();
    sl_admit_free(&a);
}

/* Who waits looks only for pages that have come since. */
static void a_long_text_is_looked_for_once(void **state) {
    (void)state;
    books(1, 8);
    open_all();
    uint32_t r = submit(0, LONG), s;
    runs(r, 0, 0, 1);
    s = submit(0, LONG + P);
    sl_prefix *x = &a.request[s].text;
    const sl_pages *pool = &a.worker[0].pages;
    sl_prefix_seen seen = {0};
    sl_prefix_find(x, pool, LONG + P, 7, &seen);
    assert_true(seen.n == 8 && seen.held == 8);
    const sl_page_key first = x->key[0];
    x->key[0] = (sl_page_key){{1, 1}}; /* whoever asks for that finds nothing */
    for (uint32_t i = 0; i < P; i++) sl_admit_token(&a, r, 0);
    sl_prefix_find(x, pool, LONG + P, 7, &seen);
    assert_true(seen.n == 9 && seen.held == 9);
    sl_prefix_find(x, pool, LONG + P, 8, &seen); /* another one */
    assert_int_equal(seen.n, 0);
    x->key[0] = first;
    sl_prefix_find(x, pool, LONG + P, 7, &seen);
    assert_int_equal(seen.n, 9);
    sl_prefix_find(x, pool, 3 * P, 7, &seen);
    assert_int_equal(seen.n, 3);
    sl_admit_end(&a, r);
    sl_prefix_find(x, pool, LONG + P, 7, &seen);
    assert_true(seen.n == 9 && seen.held == 0);
    sl_admit_forget(&a, 0);
    sl_prefix_find(x, pool, LONG + P, 7, &seen);
    assert_true(seen.n == 0 && seen.held == 0);
    sl_admit_free(&a);
}

/* Who has copies where others have more of its first pages begins with these, and goes there when
 * there is room for what it does not share. */
static void more_pages_than_copies(void **state) {
    (void)state;
    for (uint32_t tight = 0; tight < 2; tight++) {
        books(2, 8);
        sl_admit_pair(&a, 0, 1);
        open_all();
        uint32_t r = submit(0, LONG), other, id;
        sl_admit_decision d;
        starts(r, 0, 0);
        sl_admit_close(&a, 0);
        other = submit(0, LONG + 1);
        starts(other, 1, 0);
        sl_admit_open(&a, 0);
        sl_admit_rows(&a, r, P);
        assert_true(sl_admit_next(&a, 0, &d) && d.kind == SL_ADMIT_COPY && d.worker == 1);
        sl_admit_copied(&a, 1, d.transfer, true);
        sl_admit_token(&a, other, 0);
        if (tight) {
            sl_prefix_text alone = about(0, 5);
            alone.shares = false;
            sl_admit_close(&a, 0);
            uint32_t big = submit_as(alone, (POOL - 15) * P - SL_MAX_AHEAD, P);
            starts(big, 1, 0);
            assert_true(a.worker[1].pages.n_free + a.copies.worker[1].n_pages < 9);
            sl_admit_open(&a, 0);
        }
        assert_true(sl_admit_move(&a, 0, &id) && id == r);
        sl_admit_gave_way(&a, r);
        starts(r, 1, 7);
        assert_int_equal(a.copies.worker[1].n_pages, 0);
        balances();
        sl_admit_free(&a);
    }
}

/* Who shares pages that others have needs no room for them. */
static void shared_pages_take_no_room(void **state) {
    (void)state;
    books(1, 8);
    open_all();
    uint32_t first = submit(0, LONG), big, r;
    runs(first, 0, 0, 1);
    sl_prefix_text alone = about(0, 5);
    alone.shares = false;
    uint32_t left = a.worker[0].pages.n_free;
    big = submit_as(alone, (left - 3) * P - SL_MAX_AHEAD, P);
    starts(big, 0, 0);
    left = a.worker[0].pages.n_free;
    assert_true(left >= 2 && left < 9);
    r = submit(0, LONG);
    starts(r, 0, 7);
    balances();
    sl_admit_free(&a);
}

/* ---- what a worker kept ---- */

static void kept(uint32_t worker, uint32_t t, uint32_t first, uint32_t n) {
    uint32_t pages[8];
    sl_page_key keys[8];
    sl_pages_keys of = {.root = about(t, 0).root};
    for (uint32_t i = 0; i < n; i++) {
        pages[n - 1 - i] = first + 2 * i;
        keys[n - 1 - i] = sl_pages_key_of(&of, text[t], i);
    }
    assert_true(sl_admit_adopt(&a, worker, pages, keys, n));
}

static void requests_that_come_again_go_on_with_what_was_kept(void **state) {
    (void)state;
    books(2, 8);
    kept(1, 0, 3, 5);
    open_all();
    assert_true(a.n_cached_pages == 5 && a.n_free_pages == 2 * POOL - 5);
    sl_prefix_text again = about(1, 0); /* it shares nothing itself */
    again.shares = false;
    uint32_t r = submit_as(again, 3 * P + 7, MORE);
    sl_admit_ran_before(&a, r, 5);
    starts(r, 1, 2);
    assert_true(a.request[r].pages[0] == 3 && a.request[r].pages[1] == 5);
    sl_admit_token(&a, r, 0);
    sl_admit_end(&a, r);
    assert_int_equal(a.n_cached_pages, 5);
    balances();
    sl_admit_close(&a, 1);
    sl_admit_forget(&a, 1);
    assert_int_equal(a.n_cached_pages, 0);
    sl_admit_free(&a);
}

/* ---- drawn stories ---- */

#define REQUESTS 12u

/* What lies in each page: of which text, and which of its pages; 0: nobody knows. */
static uint32_t lies[2][POOL];

static uint32_t below(uint64_t *rng, uint32_t n) {
    return (uint32_t)sl_rng_below(rng, n);
}

/* Texts that are the same up to a page's end have the same in it. */
static uint32_t content(uint32_t t, uint32_t tenant, uint32_t page) {
    uint32_t first = page < 2 ? t / 2 * 2 : t;
    return 1 + (tenant * TEXTS + first) * 100 + page;
}

typedef struct asked {
    uint32_t id, text, tenant, told;
    bool lives;
} asked;

/* Rows that are sure are in its pages, and it writes to no others than its own. */
static void note_rows(const asked *q) {
    const sl_admit_request *r = &a.request[q->id];
    for (uint32_t i = 0; sl_admit_runs(r) && i < r->n_pages; i++) {
        uint32_t *in = &lies[r->worker][r->pages[i]], want = content(q->text, q->tenant, i);
        if ((i + 1) * P <= r->found)
            assert_int_equal(*in, want);
        else if ((i + 1) * P <= r->sure)
            *in = want;
        else if (i * P >= r->sure)
            *in = 0;
    }
}

/* Who looks again sees what he would see if he looked for the first time. */
static void look_again(const asked *q) {
    for (uint32_t i = 0; i < REQUESTS; i++)
        for (uint32_t w = 0; w < 2 && q[i].lives; w++) {
            sl_admit_request *r = &a.request[q[i].id];
            sl_prefix_seen new = {0}, *seen = &a.worker[w].seen;
            if (r->state != SL_ADMIT_WAITING) continue;
            sl_prefix_find(&r->text, &a.worker[w].pages, sl_admit_known(r) - 1, r->age, seen);
            sl_prefix_find(&r->text, &a.worker[w].pages, sl_admit_known(r) - 1, r->age, &new);
            assert_true(seen->n == new.n && seen->held == new.held);
        }
}

static void decide(asked *q) {
    sl_admit_decision d;
    while (sl_admit_next(&a, 0, &d)) {
        for (uint32_t i = 0; i < REQUESTS; i++)
            if (q[i].lives && q[i].id == d.request) note_rows(&q[i]);
        if (d.kind == SL_ADMIT_PREEMPT) sl_admit_gave_way(&a, d.request);
    }
}

static void lose(uint32_t worker) {
    sl_admit_close(&a, worker);
    sl_admit_forget(&a, worker);
    while (a.worker[worker].running.n > 0) sl_admit_gave_way(&a, a.worker[worker].running.first);
    memset(lies[worker], 0, sizeof lies[worker]);
    sl_admit_open(&a, worker);
}

static void turn(asked *q, uint64_t *rng) {
    asked *one = &q[below(rng, REQUESTS)];
    if (!one->lives) {
        *one = (asked){.text = below(rng, TEXTS), .tenant = below(rng, 2), .lives = true};
        one->id = submit_as(about(one->text, one->tenant), 1 + below(rng, LONG),
                            1 + below(rng, MORE - 1));
        return;
    }
    const sl_admit_request *r = &a.request[one->id];
    if (below(rng, 12) == 0 || (r->drawn + 1 >= r->most && sl_admit_runs(r))) {
        sl_admit_end(&a, one->id);
        one->lives = false;
    } else if (r->state == SL_ADMIT_RUNNING && r->drawn == 0 && below(rng, 2)) {
        sl_admit_rows(&a, one->id, r->sure + below(rng, sl_admit_known(r) - r->sure));
    } else if (r->state == SL_ADMIT_RUNNING && sl_admit_known(r) < r->n_pages * P) {
        sl_admit_token(&a, one->id, 0);
    }
    if (one->lives) note_rows(one);
}

static void drawn_stories(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 150; seed++) {
        uint64_t rng = seed;
        asked q[REQUESTS] = {{0}};
        memset(lies, 0, sizeof lies);
        books(2, 2 + below(&rng, 5));
        open_all();
        for (uint32_t i = 0; i < 300; i++) {
            turn(q, &rng);
            if (below(&rng, 100) == 0) lose(below(&rng, 2));
            look_again(q);
            decide(q);
            look_again(q);
            balances();
        }
        assert_false(a.failed);
        for (uint32_t i = 0; i < REQUESTS; i++)
            if (q[i].lives) sl_admit_end(&a, q[i].id);
        balances();
        assert_int_equal(a.n_free_pages + a.n_cached_pages, 2 * POOL);
        sl_admit_free(&a);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_of_what_is_only_known_are_not_shared),
        cmocka_unit_test(full_pages_are_shared_while_it_runs_and_after),
        cmocka_unit_test(rows_that_have_to_be_computed_are),
        cmocka_unit_test(others_tokens_are_nobodys),
        cmocka_unit_test(cached_pages_are_the_first_to_go),
        cmocka_unit_test(the_preempted_find_what_they_had),
        cmocka_unit_test(where_its_pages_are_unless_that_is_busy),
        cmocka_unit_test(a_long_text_is_looked_for_once),
        cmocka_unit_test(more_pages_than_copies),
        cmocka_unit_test(shared_pages_take_no_room),
        cmocka_unit_test(requests_that_come_again_go_on_with_what_was_kept),
        cmocka_unit_test(drawn_stories),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
