/* Who lets others wait too long: stories by hand, drawn ones with noise, and what recovery does
 * about it. */
#include "base/mem.h"
#include "base/rng.h"
#include "recover_story.h"
#include "sched/hedge.h"

#include <stdio.h>

#define WORKERS 3u
#define LANES   2u

static sl_hedge_opts opts = SL_HEDGE_OPTS;

typedef struct scene {
    sl_hedge h;
    uint64_t now;
    uint32_t slow[WORKERS], doubts[WORKERS]; /* times that it was said */
    uint64_t rng;
} scene;

static scene fresh(void) {
    sl_err err;
    scene s = {.now = HOUR, .rng = 1};
    assert_int_equal(sl_hedge_create(LANES, WORKERS, &opts, &s.h, &err), SL_OK);
    sl_hedge_pass(&s.h, s.now);
    return s;
}

/* Looked at every `each` microseconds. */
static void pass_by(scene *s, uint64_t us, uint64_t each) {
    uint32_t who;
    sl_hedge_word word;
    for (uint64_t until = s->now + us; s->now < until;) {
        s->now = SL_MIN(s->now + each, until);
        if (!sl_hedge_pass(&s->h, s->now)) continue;
        while ((word = sl_hedge_next(&s->h, &who)) != SL_HEDGE_NOTHING)
            (word == SL_HEDGE_SLOW ? s->slow : s->doubts)[who]++;
    }
}

/* A layer of lane 0: all are sent rows, worker w answers after us[w]; ascending. */
static void layer(scene *s, const uint64_t us[WORKERS], uint64_t rows) {
    uint64_t at = 0;
    for (uint32_t w = 0; w < WORKERS; w++) sl_hedge_sent(&s->h, 0, w, 1, rows);
    for (uint32_t w = 0; w < WORKERS; w++) {
        pass_by(s, us[w] - at, 500);
        at = us[w];
        sl_hedge_answered(&s->h, 0, w, 1);
    }
    pass_by(s, 1000, 500); /* of its own work */
}

static void layers(scene *s, uint32_t n, uint64_t first, uint64_t second, uint64_t third) {
    const uint64_t us[] = {first, second, third};
    for (uint32_t i = 0; i < n; i++) layer(s, us, 1);
}

static uint32_t said(const scene *s) {
    uint32_t n = 0;
    for (uint32_t w = 0; w < WORKERS; w++) n += s->slow[w];
    return n;
}

static uint32_t doubted(const scene *s) {
    return s->doubts[0] + s->doubts[1] + s->doubts[2];
}

static void one_stands_still(void **state) {
    (void)state;
    scene s = fresh();
    layers(&s, 500, 500, 1000, 1500);
    for (uint32_t w = 0; w < WORKERS; w++) sl_hedge_sent(&s.h, 0, w, 1, 1);
    pass_by(&s, 1000, 500);
    sl_hedge_answered(&s.h, 0, 0, 1);
    sl_hedge_answered(&s.h, 0, 1, 1);
    pass_by(&s, 140 * MS, 500);
    assert_int_equal(said(&s), 0);
    pass_by(&s, 40 * MS, 500);
    assert_int_equal(s.slow[2], 1);
    pass_by(&s, 900 * MS, 500);
    assert_int_equal(said(&s), 1); /* once a second */
    pass_by(&s, 200 * MS, 500);
    assert_int_equal(s.slow[2], 2);
    sl_hedge_forgive(&s.h, 2);
    assert_false(sl_hedge_is_owed(&s.h));
    sl_hedge_answered(&s.h, 0, 2, 1); /* late: nobody waits for it */
    pass_by(&s, 5 * SEC, 10 * MS);
    assert_int_equal(said(&s), 2);
    assert_int_equal(doubted(&s), 0);
    sl_hedge_free(&s.h);
}

static void one_gets_slower(void **state) {
    (void)state;
    scene s = fresh();
    layers(&s, 500, 500, 1000, 2000);
    uint64_t since = s.now;
    while (s.slow[2] == 0 && s.now < since + SEC) layers(&s, 1, 500, 1000, 1000 + 20 * 1000);
    assert_true(s.slow[2] == 1 && s.now - since < 400 * MS);
    sl_hedge_free(&s.h);
}

/* What is slow from the start, or not much slower, or seldom, is no reason. */
static void nobody_is_slow(void **state) {
    (void)state;
    scene s = fresh();
    layers(&s, 300, 500, 1000, 20000);
    assert_int_equal(said(&s), 0);
    layers(&s, 300, 500, 1000, 60000);
    assert_int_equal(said(&s), 0);
    sl_hedge_free(&s.h);
    s = fresh();
    layers(&s, 500, 500, 1000, 1500);
    for (uint32_t i = 0; i < 50; i++) {
        layers(&s, 200, 500, 1000, 3000);
        layers(&s, 1, 500, 1000, 60000); /* once in a second */
    }
    assert_int_equal(said(&s) + doubted(&s), 0);
    sl_hedge_free(&s.h);
}

/* A prompt's chunk: long for all, and longer for who has more of it. */
static void much_to_do(void **state) {
    (void)state;
    const uint64_t long_ones[] = {300 * MS, 400 * MS, 900 * MS}, alone[] = {500, 600, 90 * MS};
    scene s = fresh();
    layers(&s, 500, 500, 1000, 1500);
    for (uint32_t i = 0; i < 20; i++) layer(&s, long_ones, 400);
    assert_int_equal(said(&s), 0);
    sl_hedge_free(&s.h);
    s = fresh();
    layers(&s, 500, 500, 1000, 1500);
    for (uint32_t i = 0; i < 20; i++) layer(&s, alone, 400); /* nobody else has rows of it */
    assert_int_equal(said(&s), 0);
    sl_hedge_free(&s.h);
}

static void nobody_answers(void **state) {
    (void)state;
    scene s = fresh();
    layers(&s, 500, 500, 1000, 1500);
    sl_hedge_sent(&s.h, 1, 0, 1, 0); /* JOIN */
    pass_by(&s, 1600 * MS, 500);
    assert_int_equal(said(&s), 0);
    assert_int_equal(s.doubts[0], 5); /* after 0.1, 0.2, 0.4, 0.8, 1.6 s */
    sl_hedge_answered(&s.h, 1, 0, 1);
    for (uint32_t w = 0; w < WORKERS; w++) sl_hedge_sent(&s.h, 0, w, 1, 1);
    pass_by(&s, 150 * MS, 500);
    assert_true(said(&s) == 0 && s.doubts[1] == 1 && s.doubts[2] == 1);
    sl_hedge_free(&s.h);
}

/* Time in which this process did not look is not the others' fault. */
static void this_process_stood_still(void **state) {
    (void)state;
    scene s = fresh();
    layers(&s, 500, 500, 1000, 1500);
    for (uint32_t w = 0; w < WORKERS; w++) sl_hedge_sent(&s.h, 0, w, 1, 1);
    pass_by(&s, 1000, 500);
    sl_hedge_answered(&s.h, 0, 0, 1);
    pass_by(&s, 60 * SEC, 20 * SEC);
    assert_int_equal(said(&s) + doubted(&s), 0);
    sl_hedge_free(&s.h);
}

/* Of several answers that are due one has come. */
static void the_second_is_missing(void **state) {
    (void)state;
    scene s = fresh();
    layers(&s, 500, 500, 1000, 1500);
    sl_hedge_sent(&s.h, 0, 0, 2, 2);
    sl_hedge_sent(&s.h, 0, 1, 2, 2);
    pass_by(&s, 1000, 500);
    sl_hedge_answered(&s.h, 0, 0, 1);
    sl_hedge_answered(&s.h, 0, 0, 1);
    pass_by(&s, 1000, 500);
    sl_hedge_answered(&s.h, 0, 1, 1);
    pass_by(&s, 200 * MS, 500);
    assert_int_equal(s.slow[1], 1);
    sl_hedge_free(&s.h);
}

/* Waits as on a machine that others use, too: mostly short, some as long as a turn of somebody
 * else. */
static uint64_t noise(scene *s) {
    uint64_t us = 200 + sl_rng_below(&s->rng, 600);
    return us + (sl_rng_below(&s->rng, 20) ? 0 : sl_rng_below(&s->rng, 12000));
}

static void noisy_layer(scene *s, uint32_t lane, uint32_t slow, uint64_t factor) {
    uint64_t at[WORKERS], us = 0;
    for (uint32_t w = 0; w < WORKERS; w++) {
        at[w] = noise(s) * (w == slow ? factor : 1);
        sl_hedge_sent(&s->h, lane, w, 1, 1);
    }
    for (uint32_t i = 0; i < WORKERS; i++) {
        uint32_t next = 0;
        for (uint32_t w = 0; w < WORKERS; w++)
            if (at[w] < at[next]) next = w;
        pass_by(s, at[next] - us, 300);
        us = at[next];
        at[next] = UINT64_MAX;
        sl_hedge_answered(&s->h, lane, next, 1);
    }
}

static void drawn(void **state) {
    (void)state;
    uint64_t longest = 0;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        scene s = fresh();
        s.rng = seed;
        for (uint32_t i = 0; i < 3000; i++) noisy_layer(&s, i % LANES, WORKERS, 1);
        assert_int_equal(said(&s) + doubted(&s), 0);
        uint32_t slow = (uint32_t)(seed % WORKERS);
        uint64_t since = s.now;
        while (said(&s) == 0 && s.now < since + 5 * SEC) noisy_layer(&s, 0, slow, 20);
        assert_int_equal(s.slow[slow], 1);
        assert_int_equal(said(&s), 1);
        longest = SL_MAX(longest, s.now - since);
        sl_hedge_free(&s.h);
    }
    printf("noticed within %llu ms\n", (unsigned long long)longest / 1000);
    assert_true(longest < SEC);
}

/* ---- what is done about it ---- */

static void it_rests(void **state) {
    (void)state;
    story s = begin(4, two_and_two);
    serve(&s);
    assert_false(sl_recover_slow(&s.r, 0, s.now)); /* it has requests */
    assert_true(sl_recover_slow(&s.r, 3, s.now));
    assert_false(sl_recover_slow(&s.r, 3, s.now)); /* it rests already */
    assert_false(sl_recover_slow(&s.r, 2, s.now)); /* nobody else is left */
    assert_int_equal(s.r.service, SL_RECOVER_SERVES);
    assert_true(sl_recover_has_slow(&s.r));
    changes_to(&s, "1110");
    failed(&s, SL_ROSTER_NONE);
    says_after(&s, 100 * MS, SL_RECOVER_CHANGE, 99);
    taken(&s);
    assert_false(sl_recover_has_slow(&s.r));
    assert_true(s.r.n_away == 1 && s.r.service == SL_RECOVER_SERVES);
    s.now += 30 * SEC;
    says(&s, SL_RECOVER_NOTHING); /* it has not answered */
    sl_recover_answered(&s.r, 3, s.now);
    changes_to(&s, "1111");
    taken(&s);
    assert_true(sl_recover_slow(&s.r, 3, s.now));
    sl_recover_answered(&s.r, 3, s.now);
    changes_to(&s, "1110");
    taken(&s);
    says_after(&s, 4 * SEC, SL_RECOVER_CHANGE, 99); /* twice as long as the first time */
    taken(&s);
    is_home(&s);
}

static void others_die_meanwhile(void **state) {
    (void)state;
    story s = begin(4, two_and_two);
    serve(&s);
    assert_true(sl_recover_slow(&s.r, 3, s.now));
    changes_to(&s, "1110");
    lose(&s, 2); /* then it is better than nobody */
    failed(&s, SL_ROSTER_NONE);
    changes_to(&s, "1101");
    taken(&s);
    says_of(&s, SL_RECOVER_START, 2);
    come(&s, 2);
    changes_to(&s, "1111");
    taken(&s);
    is_home(&s);
}

static void it_dies(void **state) {
    (void)state;
    story s = begin(4, two_and_two);
    serve(&s);
    assert_true(sl_recover_slow(&s.r, 2, s.now));
    changes_to(&s, "1101");
    taken(&s);
    lose(&s, 2);
    says_of(&s, SL_RECOVER_START, 2);
    come(&s, 2);
    changes_to(&s, "1111");
    taken(&s);
    is_home(&s);
}

static void few_at_a_time(void **state) {
    (void)state;
    static const uint32_t roles[] = {ATTN, XPRT, XPRT, XPRT, XPRT, XPRT, XPRT, XPRT, XPRT};
    story s = begin(9, roles);
    serve(&s);
    assert_true(sl_recover_slow(&s.r, 1, s.now));
    assert_true(sl_recover_slow(&s.r, 2, s.now));
    assert_false(sl_recover_slow(&s.r, 3, s.now));
    changes_to(&s, "100111111");
    taken(&s);
    assert_false(sl_recover_slow(&s.r, 3, s.now));
    sl_recover_answered(&s.r, 1, s.now);
    says_after(&s, 2 * SEC, SL_RECOVER_CHANGE, 99);
    taken(&s);
    assert_true(sl_recover_slow(&s.r, 3, s.now));
    end(&s);
}

static void out_of_memory(void **state) {
    (void)state;
    sl_hedge h;
    sl_err err;
    for (uint64_t nth = 1; nth <= 2; nth++) {
        sl_mem_fail_at(nth);
        assert_int_equal(sl_hedge_create(LANES, WORKERS, &opts, &h, &err), SL_ERR_NOMEM);
        sl_mem_fail_at(0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_stands_still),
        cmocka_unit_test(one_gets_slower),
        cmocka_unit_test(nobody_is_slow),
        cmocka_unit_test(much_to_do),
        cmocka_unit_test(nobody_answers),
        cmocka_unit_test(this_process_stood_still),
        cmocka_unit_test(the_second_is_missing),
        cmocka_unit_test(drawn),
        cmocka_unit_test(it_rests),
        cmocka_unit_test(others_die_meanwhile),
        cmocka_unit_test(it_dies),
        cmocka_unit_test(few_at_a_time),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
