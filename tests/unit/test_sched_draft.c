/* Guesses: what they are, how often they are right, how many are worth their rows; and what steps
 * make of them. */
#include "sched/draft.h"

#include "base/rng.h"
#include "sched/head.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

enum { ROOM = 4096, MOST = SL_DRAFT_MOST };

/* Of a request before which there was none. */
static void begins(sl_draft *d) {
    static sl_draft_prior prior;
    prior = (sl_draft_prior){0};
    sl_draft_begin(d, &prior);
}

static void opens(sl_draft *d, uint32_t tokens) {
    sl_err err;
    begins(d);
    if (sl_draft_open(d, tokens, &err) != SL_OK) fail_msg("%s", err.msg);
}

static void what_followed_before_is_guessed(void **state) {
    (void)state;
    sl_draft d;
    uint32_t t[64] = {9, 1, 2, 3, 40, 41, 42, 43, 8, 1, 2, 3};
    opens(&d, 64);
    assert_int_equal(sl_draft_guess(&d, t, 2, MOST), 0);
    assert_int_equal(sl_draft_guess(&d, t, 11, MOST), 0); /* 8 1 2 was never said before */
    assert_int_equal(sl_draft_guess(&d, t, 12, 3), 3);
    assert_int_equal(t[12], 40);
    assert_int_equal(t[14], 42);
    assert_int_equal(sl_draft_guess(&d, t, 15, MOST), MOST); /* on into what is said twice */
    assert_memory_equal(t + 15, ((uint32_t[]){43, 8, 1, 2, 3, 40, 41, 42}), 32);
    t[15] = 77; /* something else was drawn */
    assert_int_equal(sl_draft_guess(&d, t, 16, MOST), 0);
    sl_draft_close(&d);
    sl_draft_close(&d);
}

static void a_circle_is_guessed_on(void **state) {
    (void)state;
    sl_draft d;
    uint32_t t[64];
    for (uint32_t i = 0; i < 20; i++) t[i] = 5 + i % 2;
    opens(&d, 64);
    assert_int_equal(sl_draft_guess(&d, t, 20, MOST), MOST);
    for (uint32_t i = 20; i < 20 + MOST; i++) assert_int_equal(t[i], 5 + i % 2);
    sl_draft_close(&d);
}

/* Of the last place in so many tokens, and never of another text with the same hash. */
static void guesses_are_what_followed(void **state) {
    (void)state;
    static uint32_t t[ROOM + MOST];
    for (uint64_t seed = 1; seed < 40; seed++) {
        uint64_t rng = seed;
        const uint32_t words = 2 + (uint32_t)sl_rng_below(&rng, 12);
        sl_draft d;
        uint32_t some = 0;
        opens(&d, seed % 2 ? ROOM : 8); /* small tables forget */
        for (uint32_t n = 0; n < 600; n++) {
            const uint32_t most = (uint32_t)sl_rng_below(&rng, MOST + 1);
            const uint32_t got = sl_draft_guess(&d, t, n, most);
            uint32_t at = n; /* the last place */
            while (n >= 3 && --at >= 3 && memcmp(t + at - 3, t + n - 3, 12) != 0) continue;
            if (got && seed % 2 && memcmp(t + at, t + n, SL_MIN(got, n - at) * 4) != 0)
                fail_msg("seed %u: guess at %u", (unsigned)seed, n);
            some += got;
            t[n] = (uint32_t)sl_rng_below(&rng, words);
        }
        assert_true(some > 0);
        sl_draft_close(&d);
    }
}

static void right_ones_are_worth_more(void **state) {
    (void)state;
    sl_draft d;
    uint32_t t[64] = {1, 2, 3, 4, 9, 1, 2, 3};
    opens(&d, 64);
    assert_int_equal(sl_draft_guess(&d, t, 8, 1), 1);
    const double first = sl_draft_chance(&d);
    for (int i = 0; i < 30; i++) sl_draft_judge(&d, true);
    assert_true(first < 0.6 && sl_draft_chance(&d) > 0.95);
    assert_int_equal(sl_draft_worth(sl_draft_chance(&d), 0.3, MOST), MOST);
    for (int i = 0; i < 30; i++) sl_draft_judge(&d, false);
    assert_int_equal(sl_draft_worth(sl_draft_chance(&d), 0.3, MOST), 0);
    assert_int_equal(sl_draft_worth(0.5, 0.3, MOST), 1);
    assert_int_equal(sl_draft_worth(0.5, 0.1, MOST), 3);
    assert_int_equal(sl_draft_worth(0.5, 0, MOST), MOST);
    assert_int_equal(sl_draft_worth(1, 2, MOST), 0);
    sl_draft_close(&d);
}

/* A request begins with what those before it came to, and soon knows better. */
static void the_next_request_begins_with_it(void **state) {
    (void)state;
    sl_draft d;
    sl_draft_prior prior = {0};
    sl_draft_price p = {.speculate = SL_SPECULATE_MTP};
    sl_draft_price_learn(&p, 0, 1000);
    sl_draft_price_learn(&p, 1, 1200);
    for (uint32_t i = 0; i < 4; i++) {
        sl_draft_begin(&d, &prior);
        sl_draft_made(&d);
        const double first = sl_draft_chance(&d);
        assert_true(i ? first < 0.05 : first == 0.5);
        for (uint32_t j = 0; j < 30; j++) sl_draft_judge(&d, false);
    }
    sl_draft_begin(&d, &prior);
    sl_draft_made(&d);
    assert_int_equal(sl_draft_worth(sl_draft_chance(&d), 0.2, 4), 0);
    for (uint32_t i = 0; i < SL_DRAFT_WAKE - 1; i++) { /* it is heard all the same */
        assert_true(sl_draft_ahead(&d, &p, 1, SL_DRAFT_AHEAD) > 0);
        sl_draft_judge(&d, true);
    }
    assert_true(sl_draft_chance(&d) > 0.7);
    assert_true(prior.chance[SL_DRAFT_MTP] < 0.1); /* one request is not all */
    d.kind = 0;
    assert_true(sl_draft_chance(&d) == 0.5); /* another kind */
}

static void rows_have_a_price(void **state) {
    (void)state;
    sl_draft_price p = {0};
    assert_true(sl_draft_price_of(&p, 1, true) > 1); /* off */
    p.speculate = SL_SPECULATE_LOOKUP;
    assert_true(sl_draft_price_of(&p, 1, true) > 1); /* no step was measured */
    sl_draft_price_learn(&p, 4, 1000);
    assert_true(p.row_us == 0);
    sl_draft_price_learn(&p, 0, 1000);
    assert_true(sl_draft_price_of(&p, 1, true) < 1); /* one is tried */
    sl_draft_price_learn(&p, 4, 1400);
    assert_true(sl_draft_price_of(&p, 1, true) > 0.09 && sl_draft_price_of(&p, 1, true) < 0.11);
    assert_true(sl_draft_price_of(&p, 16, true) >
                1); /* each spares one of 16 its share of a step */
    for (uint32_t i = 0; i < SL_DRAFT_PROBE; i++) sl_draft_price_learn(&p, 1, 1100);
    assert_true(sl_draft_price_of(&p, 1, true) > 1); /* a step without */
    sl_draft_price_learn(&p, 0, 1000);
    assert_true(sl_draft_price_of(&p, 1, true) < 1);
    p.speculate = SL_SPECULATE_ALWAYS;
    assert_true(sl_draft_price_of(&p, 64, true) == 0);
}

/* The block makes what will run; of what it would not it makes one now and then, to hear of it. */
static void the_block_makes_what_pays(void **state) {
    (void)state;
    sl_draft d;
    sl_draft_price p = {.speculate = SL_SPECULATE_MTP};
    begins(&d);
    sl_draft_made(&d);
    assert_int_equal(sl_draft_ahead(&d, &p, 1, SL_DRAFT_AHEAD), 1); /* before anything is known */
    assert_int_equal(sl_draft_ahead(&d, &p, 4, SL_DRAFT_AHEAD), 0); /* many share a step */
    for (uint32_t i = 0; i < SL_DRAFT_TRIAL; i++) sl_draft_price_learn(&p, 0, 1000);
    assert_int_equal(sl_draft_ahead(&d, &p, 4, SL_DRAFT_AHEAD), 1); /* what it costs is tried... */
    sl_draft_price_asked(&p);
    assert_true(sl_draft_price_tries(&p));
    assert_int_equal(sl_draft_ahead(&d, &p, 4, SL_DRAFT_AHEAD), 0); /* ...once */
    p = (sl_draft_price){.speculate = SL_SPECULATE_MTP};
    for (int i = 0; i < 30; i++) sl_draft_judge(&d, true);
    sl_draft_price_learn(&p, 0, 1000);
    sl_draft_price_learn(&p, 2, 1200);
    assert_int_equal(sl_draft_ahead(&d, &p, 1, SL_DRAFT_AHEAD), SL_DRAFT_AHEAD);
    const double before = sl_draft_price_of(&p, 1, true);
    sl_draft_price_made(&p, 2, 300);
    assert_true(sl_draft_price_of(&p, 1, true) > before + 0.14);
    sl_draft_price_made(&p, 0, 1 << 20);
    assert_true(sl_draft_price_of(&p, 1, true) < before + 0.16);
    for (int i = 0; i < 60; i++) sl_draft_judge(&d, false);
    uint32_t made = 0, steps = 4 * SL_DRAFT_REST;
    for (uint32_t i = 0; i < steps; i++) made += sl_draft_ahead(&d, &p, 1, SL_DRAFT_AHEAD);
    assert_int_equal(made, 4 * SL_DRAFT_WAKE);
    p.speculate = SL_SPECULATE_MTP_ALWAYS;
    assert_int_equal(sl_draft_ahead(&d, &p, 64, SL_DRAFT_AHEAD), SL_DRAFT_AHEAD);
    assert_int_equal(sl_draft_ahead(&d, &p, 64, 0), 0);
}

/* With both kinds who was right more often is taken; what was looked up is judged beside the
 * block's guesses, and costs no making. */
static void the_likelier_of_both_is_taken(void **state) {
    (void)state;
    sl_draft d;
    sl_draft_price p = {.speculate = SL_SPECULATE_BOTH};
    uint32_t t[64] = {1, 2, 3, 4, 9, 1, 2, 3};
    opens(&d, 64);
    assert_false(sl_draft_looks_up(&d, t, 7)); /* nothing is found */
    assert_false(sl_draft_looks_up(&d, t, 8)); /* no likelier: the block's */
    sl_draft_made(&d);
    for (int i = 0; i < 10; i++) {
        sl_draft_look_aside(&d, t, 8);
        assert_int_equal(d.aside, 4);
        sl_draft_judge_aside(&d, true);
        sl_draft_judge_aside(&d, false); /* it was judged */
        sl_draft_judge(&d, i % 2);
    }
    assert_true(sl_draft_chance(&d) < 0.7); /* the block's */
    assert_true(sl_draft_looks_up(&d, t, 8));
    assert_int_equal(sl_draft_guess(&d, t, 8, 2), 2);
    assert_true(sl_draft_chance(&d) > 0.85);
    for (int i = 0; i < 20; i++) sl_draft_judge(&d, false);
    assert_false(sl_draft_looks_up(&d, t, 8));
    sl_draft_look_aside(&d, t, 7);
    sl_draft_judge_aside(&d, true); /* nothing was found */
    assert_false(sl_draft_looks_up(&d, t, 8));
    sl_draft_price_learn(&p, 0, 1000);
    sl_draft_price_learn(&p, 2, 1200);
    sl_draft_price_made(&p, 1, 300);
    assert_true(fabs(sl_draft_price_of(&p, 1, false) - 0.1) < 1e-9);
    assert_true(fabs(sl_draft_price_of(&p, 1, true) - 0.4) < 1e-9);
    sl_draft_close(&d);
}

/* ---- in steps ---- */

typedef struct table {
    sl_slots slots;
    sl_cut cut;
    sl_step step;
} table;

static void make(table *t, uint32_t slots) {
    sl_err err;
    *t = (table){.cut = {.n_chunks = 1}};
    if (sl_slots_create(1, slots, &t->slots, &err) != SL_OK ||
        sl_step_create(&t->slots, &t->cut, 0, 64, 1.6, &t->step, &err) != SL_OK)
        fail_msg("%s", err.msg);
    t->step.price.speculate = SL_SPECULATE_ALWAYS;
}

static void unmake(table *t) {
    sl_step_free(&t->step);
    sl_slots_free(&t->slots);
}

static sl_life *decodes(table *t, uint32_t given, uint32_t most, uint32_t guessed) {
    sl_life *l = sl_slots_take(&t->slots, given, most, 100);
    assert_non_null(l);
    sl_life_advance(l, given);
    sl_life_append(l);
    l->guessed = SL_MIN(guessed, sl_life_most_guesses(l));
    l->chance = 1;
    return l;
}

/* Rows `first` and on of the step are of the life, which draws `right` of its guesses. */
static void draw(sl_life *l, uint32_t first_pos, uint32_t rows, uint32_t right_ones) {
    uint32_t drawn = 0;
    for (uint32_t pos = first_pos; pos < first_pos + rows; pos++) {
        bool right;
        if (!sl_life_draws(l, pos, &right)) continue;
        if (l->guessed) sl_life_judge(l, drawn < right_ones);
        sl_life_append(l);
        drawn++;
    }
    assert_int_equal(drawn, SL_MIN(right_ones + 1, rows));
}

static void right_guesses_are_in_the_cache_and_others_not(void **state) {
    (void)state;
    for (uint32_t right = 0; right <= 5; right++) {
        static table t;
        make(&t, 4);
        sl_life *l = decodes(&t, 10, 100, 5);
        sl_step_form(&t.step, 0);
        assert_int_equal(t.step.rows, 6);
        assert_int_equal(t.step.guesses, 5);
        sl_step_advance(&t.step);
        assert_int_equal(l->done, 11); /* no guess is sure */
        draw(l, 10, 6, right);
        assert_int_equal(l->done, 11 + right);
        assert_int_equal(l->tokens, 12 + right);
        assert_int_equal(l->guessed, 0);
        sl_step_end(&t.step, 100);
        sl_step_form(&t.step, 200);
        assert_int_equal(t.step.rows, 1);
        assert_false(l->astray);
        unmake(&t);
    }
}

static void guesses_have_limits(void **state) {
    (void)state;
    static table t;
    make(&t, 8);
    sl_life *last = decodes(&t, 10, 2, 8), *far = decodes(&t, 10, 1000, 8);
    assert_int_equal(last->guessed, 0); /* its last token is drawn by the row that there is */
    far->tokens += 29;
    assert_int_equal(sl_life_most_guesses(far), 1);
    sl_life_ack(far, 30);
    assert_int_equal(sl_life_most_guesses(far), SL_MAX_AHEAD - 1);
    unmake(&t);
    make(&t, 8);
    for (int i = 0; i < 3; i++) decodes(&t, 10, 100, 6);
    sl_step_form(&t.step, 0);
    assert_int_equal(t.step.rows, 3 + SL_BATCH_MORE); /* of all together */
    sl_step_drop(&t.step);
    assert_non_null(sl_slots_take(&t.slots, 20, 5, 100)); /* a prompt waits */
    sl_step_form(&t.step, 0);
    assert_int_equal(t.step.guesses, 0);
    assert_int_equal(t.step.rows, 23);
    unmake(&t);
}

/* All of them, and the row before, come to the head, however they are spread over its calls. */
static void the_head_has_their_rows(void **state) {
    (void)state;
    static table t;
    make(&t, 40);
    sl_head h = {.vocab = 100, .columns = 100};
    uint32_t rows = 0, want = 0, last = 0;
    for (uint32_t i = 0; i < 40; i++) decodes(&t, 10, 100, i % 3);
    sl_step_form(&t.step, 0);
    want = t.step.rows;
    assert_int_equal(t.step.guesses, 64 - 40); /* as many rows as a step may have */
    sl_head_open(&h, &t.step);
    for (sl_head_piece piece; sl_head_next(&h, &piece); sl_head_done(&h, &t.step)) {
        if (piece.kind == SL_HEAD_TELL) continue;
        for (uint32_t i = 0; i < h.rows; i++) assert_int_equal(h.row[i], last++);
        rows += h.rows;
    }
    assert_int_equal(rows, want);
    unmake(&t);
}

/* ---- trials ---- */

/* So many requests with guesses that are right always, for so many steps; returns how much longer
 * they took than without guesses, and how many rows of these there were. The row'th row of guesses,
 * that counts from 1, takes `slow` times as long. */
static double many(uint32_t requests, uint32_t steps, double row_us, uint32_t slow, uint32_t *rows,
                   uint32_t *last_quarter) {
    static table t;
    uint64_t now = 1;
    double took = 0;
    make(&t, requests);
    t.step.price.speculate = SL_SPECULATE_LOOKUP;
    for (uint32_t i = 0; i < requests; i++)
        assert_non_null(sl_slots_take(&t.slots, 1, 1u << 30, UINT32_MAX / SL_KV_PAGE_TOKENS));
    for (uint32_t i = *rows = *last_quarter = 0; i < steps; i++) {
        sl_step_form(&t.step, now);
        const uint32_t guesses = t.step.guesses;
        const double times = *rows == 0 && guesses ? slow : 1;
        const uint64_t us = 1000 + (uint64_t)(times * guesses * row_us);
        *rows += guesses;
        if (i >= steps - steps / 4) *last_quarter += guesses;
        sl_step_advance(&t.step);
        for (size_t k = 0; k < t.step.n_parts; k++) {
            sl_life *l = &t.slots.life[t.step.part[k].slot];
            draw(l, l->done - 1, t.step.part[k].rows, SL_DRAFT_MOST);
            sl_life_ack(l, l->tokens);
            l->guessed = 3;
            l->chance = 0.9;
        }
        sl_step_end(&t.step, now += us);
        took += (double)us;
    }
    unmake(&t);
    return took / (1000.0 * steps);
}

/* With many requests none is run until a row was tried, and what that says is heeded: at most one
 * row in SL_DRAFT_TRIAL steps, a part of 0.01 of their time, where guesses do not pay. */
static void rows_are_tried_with_many_requests(void **state) {
    (void)state;
    uint32_t rows, late;
    const uint32_t steps = 40 * SL_DRAFT_TRIAL;
    for (uint32_t requests = 4; requests <= 16; requests *= 2) {
        const double longer = many(requests, steps, 1000, 1, &rows, &late);
        printf("%u requests, rows that cost a step: %u tried in %u steps, %.4f times as long\n",
               requests, rows, steps, longer);
        assert_true(rows > 30 && rows <= steps / SL_DRAFT_TRIAL && longer < 1.01);
        (void)many(requests, steps, 10, 1, &rows, &late);
        printf("%u requests, rows that cost nothing: %u run\n", requests, rows);
        assert_true(rows > steps);
    }
    /* A first one that was slow does not end them for ever. */
    (void)many(8, steps, 10, 60, &rows, &late);
    printf("after one slow step: %u run, %u of them in the last quarter\n", rows, late);
    assert_true(late > steps / 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_followed_before_is_guessed),
        cmocka_unit_test(a_circle_is_guessed_on),
        cmocka_unit_test(guesses_are_what_followed),
        cmocka_unit_test(right_ones_are_worth_more),
        cmocka_unit_test(the_next_request_begins_with_it),
        cmocka_unit_test(rows_have_a_price),
        cmocka_unit_test(the_block_makes_what_pays),
        cmocka_unit_test(the_likelier_of_both_is_taken),
        cmocka_unit_test(right_guesses_are_in_the_cache_and_others_not),
        cmocka_unit_test(guesses_have_limits),
        cmocka_unit_test(the_head_has_their_rows),
        cmocka_unit_test(rows_are_tried_with_many_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
