/* Whose guesses the block makes: which rows go through it, who guesses, who goes on. */
#include "sched/guessers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

/* A request with 10 tokens given that has drawn `drawn`, all but the last in the cache. */
static sl_life life_of(uint32_t drawn) {
    return (sl_life){.used = true,
                     .given = 10,
                     .tokens = 10 + drawn,
                     .max_new = 100,
                     .done = 9 + drawn,
                     .pages = 100};
}

static void rows_are_sure_and_followed_by_what_is_known(void **state) {
    (void)state;
    sl_life l = life_of(3); /* 13 known, rows 0 .. 11 in the cache */
    assert_int_equal(sl_guessers_rows(&l, 0, 5), 5);
    assert_int_equal(sl_guessers_rows(&l, 8, 10), 4); /* those behind were of wrong guesses */
    assert_int_equal(sl_guessers_rows(&l, 12, 3), 0);
    assert_int_equal(sl_guessers_rows(&l, 20, 1), 0);
    l.tokens = l.done; /* nothing was drawn behind the last row */
    assert_int_equal(sl_guessers_rows(&l, 8, 4), 3);
}

static void who_has_drawn_guesses(void **state) {
    (void)state;
    static sl_guessers g;
    sl_life l = life_of(3);
    sl_step_part part = {.rows = 1, .sample = true};
    assert_int_equal(sl_guessers_want(&g, &part, &l, 12, 4), 4);
    assert_int_equal(sl_guessers_want(&g, &part, &l, 11, 4), 0); /* a chunk before its last row */
    assert_int_equal(sl_guessers_want(&g, &part, &l, 12, 0), 0);
    l.max_new = 5; /* another token is drawn by the row that there is */
    assert_int_equal(sl_guessers_want(&g, &part, &l, 12, 4), sl_life_most_made(&l));
    assert_true(sl_life_most_made(&l) < 4);
    l.max_new = 100;
    l.tokens++; /* more is known than was drawn */
    assert_int_equal(sl_guessers_want(&g, &part, &l, 12, 4), 0);
    l.tokens--;
    part.sample = false;
    assert_int_equal(sl_guessers_want(&g, &part, &l, 12, 4), 0);
    part.sample = true;
    for (uint32_t i = 0; i < SL_HEAD_ROWS; i++) sl_guessers_add(&g, i, 11, 4);
    assert_int_equal(sl_guessers_want(&g, &part, &l, 12, 4), 0); /* as many as a call has */
}

/* Two requests of which one wants three guesses, the other one: three calls. */
static void who_wants_more_goes_on(void **state) {
    (void)state;
    static sl_guessers g;
    sl_life l[2] = {life_of(3), life_of(7)};
    sl_draft d[2];
    sl_draft_prior prior = {0};
    uint32_t calls = 0;
    for (uint32_t i = 0; i < 2; i++) sl_draft_begin(&d[i], &prior);
    sl_guessers_add(&g, 0, 11, 3);
    sl_guessers_add(&g, 1, 15, 1);
    while (g.n) {
        const uint32_t n = g.n;
        calls++;
        g.n = 0;
        for (uint32_t i = 0; i < n; i++) {
            const sl_guesser who = g.of[i];
            assert_int_equal(who.pos, (who.part ? 15 : 11) + calls - 1);
            assert_int_equal(sl_guessers_go_on(&g, &who, &l[who.part], &d[who.part]),
                             who.part == 0 && calls < 3);
        }
    }
    assert_int_equal(calls, 3);
    assert_int_equal(g.made, 4);
    assert_int_equal(l[0].guessed, 3);
    assert_int_equal(l[1].guessed, 1);
    assert_true(l[0].made && d[0].kind == SL_DRAFT_MTP && l[0].chance == sl_draft_chance(&d[0]));
}

/* A step with rows of prompts says nothing of the price, but its time was not its own either. */
static void steps_of_decoding_rows_say_what_guesses_take(void **state) {
    (void)state;
    static sl_guessers g = {.made = 4};
    sl_step s = {.rows = 6, .decode_rows = 3, .known = 1, .guesses = 1};
    sl_draft_price p = {.speculate = SL_SPECULATE_MTP, .idle = SL_DRAFT_TRIAL};
    sl_guessers_close(&g, &s, &p, 200);
    assert_true(s.apart_us == 200 && p.made_us == 0 && p.asked == p.idle);
    s.rows = 5;
    sl_guessers_close(&g, &s, &p, 200);
    assert_true(p.made_us == 50);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_sure_and_followed_by_what_is_known),
        cmocka_unit_test(who_has_drawn_guesses),
        cmocka_unit_test(who_wants_more_goes_on),
        cmocka_unit_test(steps_of_decoding_rows_say_what_guesses_take),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
