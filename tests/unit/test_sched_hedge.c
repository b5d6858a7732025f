/* Who lets others wait too long: stories by hand, drawn ones with noise, and what recovery does
 * about it. */
#include "base/mem.h"
#include "base/rng.h"
#include "recover_story.h"
#include "sched/busy.h"
#include "sched/hedge.h"

#include <stdio.h>

#define WORKERS 3u
#define LANES   2u

static sl_hedge_opts opts = SL_HEDGE_OPTS;

typedef struct scene {
    sl_hedge h;
    uint64_t now, late;
    uint32_t slow[WORKERS], doubts[WORKERS]; /* times that it was said */
    uint64_t rng;
} scene;

static scene fresh(void) {
    sl_err err;
    scene s = {.now = HOUR, .rng = 1};
    assert_int_equal(sl_hedge_create(LANES, WORKERS, &opts, &s.h, &err), SL_OK);
    sl_hedge_pass(&s.h, s.now, s.late);
    return s;
}

/* Looked at every `each` microseconds. */
static void pass_by(scene *s, uint64_t us, uint64_t each) {
    uint32_t who;
    sl_hedge_word word;
    for (uint64_t until = s->now + us; s->now < until;) {
        s->now = SL_MIN(s->now + each, until);
        if (!sl_hedge_pass(&s->h, s->now, s->late)) continue;
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
    uint32_t doubts = doubted(&s);
    assert_true(doubts == s.doubts[2] && doubts > 0); /* it may as well be gone */
    pass_by(&s, 5 * SEC, 10 * MS);
    assert_int_equal(said(&s), 2);
    assert_int_equal(doubted(&s), doubts);
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

/* Somebody else's prompt, of which one has most: its own rows are few, the others answer at once.
 */
static void much_to_do_for_others(void **state) {
    (void)state;
    for (uint32_t told = 0; told < 2; told++) {
        scene s = fresh();
        layers(&s, 500, 500, 1000, 1500);
        for (uint32_t i = 0; i < 5; i++) {
            for (uint32_t w = 0; w < WORKERS; w++) sl_hedge_sent(&s.h, 0, w, 1, 1);
            pass_by(&s, 1000, 500);
            if (told) sl_hedge_busy(&s.h, 2, 400 * MS, s.now);
            sl_hedge_answered(&s.h, 0, 0, 1);
            sl_hedge_answered(&s.h, 0, 1, 1);
            pass_by(&s, 600 * MS, 500);
            sl_hedge_answered(&s.h, 0, 2, 1);
            pass_by(&s, 20 * MS, 500);
        }
        assert_int_equal(said(&s) == 0, told);
        /* What it took then is not usual; and it is believed for four times as long only. */
        layers(&s, 1000, 500, 1000, 1500);
        uint32_t before = said(&s);
        layers(&s, 30, 500, 1000, 21000);
        assert_int_equal(said(&s), before + 1);
        sl_hedge_busy(&s.h, 1, 50 * MS, s.now);
        for (uint32_t w = 0; w < WORKERS; w++) sl_hedge_sent(&s.h, 0, w, 1, 1);
        sl_hedge_answered(&s.h, 0, 0, 1);
        pass_by(&s, 300 * MS, 500);
        assert_int_equal(s.slow[1], 0);
        pass_by(&s, 100 * MS, 500);
        assert_int_equal(s.slow[1], 1);
        sl_hedge_free(&s.h);
    }
}

/* The rows of a prompt take one of them ten times as long as the others, as it is a small machine.
 * JOINs teach nothing. */
static void other_machines(void **state) {
    (void)state;
    const uint64_t prompt[] = {40 * MS, 40 * MS + 1, 800 * MS};
    scene s = fresh();
    for (uint32_t i = 0; i < 300; i++) {
        sl_hedge_sent(&s.h, 1, 0, 1, 0);
        pass_by(&s, 20 * MS, 500); /* a round that others are in ends first */
        sl_hedge_answered(&s.h, 1, 0, 1);
        layers(&s, 1, 500, 1000, 4000);
    }
    assert_true(s.h.worker[0].row_us < 1000 && s.h.worker[2].row_us > 2000);
    for (uint32_t i = 0; i < 20; i++) layer(&s, prompt, 400);
    assert_int_equal(said(&s), 0);
    assert_true(s.h.worker[0].row_us < 500); /* 400 rows in 40 ms */
    sl_hedge_free(&s.h);
}

/* It stops under a prompt's rows: it is doubted long before it could count as slow. */
static void stopped_under_a_prompt(void **state) {
    (void)state;
    const uint64_t prompt[] = {100 * MS, 200 * MS, 900 * MS};
    scene s = fresh();
    for (uint32_t i = 0; i < 20; i++) layer(&s, prompt, 400);
    uint32_t doubts = s.doubts[2], before = said(&s);
    pass_by(&s, 2 * SEC, 500);
    for (uint32_t w = 0; w < WORKERS; w++) sl_hedge_sent(&s.h, 0, w, 1, 400);
    pass_by(&s, 50 * MS, 500);
    sl_hedge_answered(&s.h, 0, 0, 1);
    pass_by(&s, 60 * MS, 500);
    assert_true(s.doubts[2] > doubts && said(&s) == before);
    sl_hedge_free(&s.h);
}

/* What was answered in an earlier burst does not make anybody late in this one. */
static void bursts_are_apart(void **state) {
    (void)state;
    scene s = fresh();
    layers(&s, 500, 500, 1000, 1500);
    sl_hedge_sent(&s.h, 0, 0, 5, 5); /* worker 0 alone, then no more */
    sl_hedge_answered(&s.h, 0, 0, 5);
    sl_hedge_sent(&s.h, 0, 0, 2, 2);
    sl_hedge_sent(&s.h, 0, 1, 2, 2);
    pass_by(&s, 1000, 500);
    sl_hedge_answered(&s.h, 0, 1, 1); /* worker 0 has answered nothing of these */
    pass_by(&s, 1000, 500);
    assert_true(s.h.debt[0].evident && !s.h.debt[1].evident);
    sl_hedge_answered(&s.h, 0, 0, 1);
    assert_true(!s.h.debt[0].evident && s.h.debt[1].evident);
    sl_hedge_free(&s.h);
}

/* This process is run late: others may be late as well. A calm one goes on as ever. */
static void a_busy_machine(void **state) {
    (void)state;
    for (uint64_t late = 0; late <= 50 * MS; late += 50 * MS) {
        scene s = fresh();
        s.late = late;
        layers(&s, 500, 500, 1000, 1500);
        for (uint32_t i = 0; i < 50; i++) {
            layers(&s, 200, 500, 1000, 3000);
            layers(&s, 1, 500, 1000, 180000); /* others had its core */
        }
        assert_int_equal(said(&s) == 0, late > 0);
        pass_by(&s, 2 * SEC, 500);
        for (uint32_t w = 0; w < WORKERS; w++) sl_hedge_sent(&s.h, 0, w, 1, 1);
        sl_hedge_answered(&s.h, 0, 0, 1);
        sl_hedge_answered(&s.h, 0, 1, 1);
        uint32_t before = s.slow[2];
        pass_by(&s, 500 * MS, 500);
        assert_true(s.slow[2] > before);
        sl_hedge_free(&s.h);
    }
    assert_true(sl_hedge_stands_still(360 * MS, HOUR, 0, HOUR + SEC));
    assert_false(sl_hedge_stands_still(360 * MS, HOUR, 50 * MS, HOUR + SEC));
    assert_false(sl_hedge_stands_still(360 * MS, HOUR, 0, HOUR + MS));
}

/* ---- what a worker says itself ---- */

static void tasks_are_promised(void **state) {
    (void)state;
    sl_busy b = {0};
    assert_int_equal(sl_busy_begins(&b, 4, 0, HOUR), SL_BUSY_UNKNOWN_US);
    for (uint32_t i = 0; i < 200; i++) sl_busy_ends(&b, 4, 3000);
    b.said_until_us = 0;
    assert_int_equal(sl_busy_begins(&b, 4, 0, HOUR), 0); /* as ever */
    assert_in_range(sl_busy_usual(&b, 512), 128 * 2900, 128 * 3100);
    for (uint32_t i = 0; i < 20; i++) sl_busy_ends(&b, 500, 60000);
    assert_in_range(sl_busy_usual(&b, 512), 50000, 61000); /* known by now, */
    assert_in_range(sl_busy_usual(&b, 300), 50000, 61000);
    assert_in_range(sl_busy_usual(&b, 1000), 110000, 121000); /* and not more than that */
    assert_in_range(sl_busy_usual(&b, 100), 90000, 97000);    /* from below, rather too long */
    assert_in_range(sl_busy_begins(&b, 4, 500, HOUR), 60000, 64000); /* what is behind it, too */
    assert_int_equal(sl_busy_begins(&b, 500, 0, HOUR + 10 * MS), 0); /* that was said */
    assert_in_range(sl_busy_begins(&b, 500, 0, HOUR + 80 * MS), 50000, 61000);
    for (uint32_t i = 0; i < 10; i++) sl_busy_ends(&b, 500, 20 * 60000); /* slow by now */
    assert_true(sl_busy_usual(&b, 500) < 80000);
    assert_int_equal(sl_busy_begins(&b, 0, 0, 2 * HOUR), 0);
    assert_true(sl_busy_usual(&b, UINT64_MAX) <= SL_BUSY_MOST_US);
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

/* ---- who hosts something alone ---- */

/* It is said later, again and again, and how much it has wasted. */
static void one_is_alone(void **state) {
    (void)state;
    scene s = fresh();
    layers(&s, 500, 500, 1000, 1500);
    sl_hedge_alone(&s.h, 2, true);
    for (uint32_t w = 0; w < WORKERS; w++) sl_hedge_sent(&s.h, 0, w, 1, 1);
    pass_by(&s, 1000, 500);
    sl_hedge_answered(&s.h, 0, 0, 1);
    sl_hedge_answered(&s.h, 0, 1, 1);
    pass_by(&s, 990 * MS, 500);
    assert_int_equal(said(&s), 0);
    pass_by(&s, 3100 * MS, 500);
    assert_int_equal(s.slow[2], 4);
    assert_in_range(sl_hedge_wasted_us(&s.h, 2), 3900 * MS, 4100 * MS);
    pass_by(&s, 100 * SEC, 10 * MS);
    assert_int_equal(sl_hedge_wasted_us(&s.h, 2), 60 * SEC); /* more is not known */
    sl_hedge_answered(&s.h, 0, 2, 1);
    layers(&s, 10000, 500, 1000, 1500); /* much of it is soon forgotten: 25 s of good service */
    assert_true(sl_hedge_wasted_us(&s.h, 2) < 20 * SEC);
    layers(&s, 20000, 500, 1000, 1500);
    assert_int_equal(sl_hedge_wasted_us(&s.h, 2), 0);
    sl_hedge_free(&s.h);
}

/* It stays slow, also when it answers often: what is usual does not follow. */
static void one_alone_gets_slower(void **state) {
    (void)state;
    scene s = fresh();
    layers(&s, 500, 500, 1000, 2000);
    sl_hedge_alone(&s.h, 2, true);
    uint64_t since = s.now;
    while (sl_hedge_wasted_us(&s.h, 2) < SL_REHOST_LEAST_US && s.now < since + 30 * SEC)
        layers(&s, 1, 500, 1000, 1000 + 20 * 1000);
    assert_true(s.now - since < 15 * SEC);
    sl_hedge_free(&s.h);
}

static void it_pays(void **state) {
    (void)state;
    assert_false(sl_rehost_pays(3 * SEC, 10 * MS, false)); /* a stop may end by itself */
    assert_true(sl_rehost_pays(5 * SEC, 10 * MS, false));
    assert_false(sl_rehost_pays(5 * SEC, 4 * SEC, false)); /* waiting on may be cheaper */
    assert_true(sl_rehost_pays(8 * SEC, 4 * SEC, false));
    assert_false(sl_rehost_pays(900 * MS, 10 * MS, true));
    assert_true(sl_rehost_pays(SEC, 10 * MS, true)); /* once more */
    assert_false(sl_rehost_pays(UINT64_MAX, SL_REHOST_NEVER, true));
}

/* ---- what is done about it ---- */

static void it_rests_and_had_something_alone(void **state) {
    (void)state;
    story s = begin(4, two_and_two);
    serve(&s);
    sl_recover_measured(&s.r, SEC); /* nobody is to be started for it */
    assert_false(sl_recover_was_left_out(&s.r, 3, s.now));
    assert_true(sl_recover_slow(&s.r, 3, true, s.now));
    assert_int_equal(s.r.service, SL_RECOVER_WAITS);
    changes_to(&s, "1110");
    failed(&s, SL_ROSTER_NONE);
    says_after(&s, 100 * MS, SL_RECOVER_CHANGE, 99);
    taken(&s);
    assert_int_equal(s.r.service, SL_RECOVER_SERVES);
    sl_recover_answered(&s.r, 3, s.now);
    says_after(&s, 9900 * MS, SL_RECOVER_CHANGE, 99);
    taken(&s);
    assert_true(sl_recover_was_left_out(&s.r, 3, s.now));
    assert_true(sl_recover_slow(&s.r, 3, true, s.now));
    sl_recover_answered(&s.r, 3, s.now);
    changes_to(&s, "1110");
    taken(&s);
    says_after(&s, 20 * SEC, SL_RECOVER_CHANGE, 99); /* twice as long as the first time */
    taken(&s);
    s.now += 60 * SEC;
    assert_false(sl_recover_was_left_out(&s.r, 3, s.now));
    assert_true(sl_recover_slow(&s.r, 3, true, s.now));
    changes_to(&s, "1110");
    lose(&s, 2); /* then it is better than nobody */
    failed(&s, SL_ROSTER_NONE);
    says_of(&s, SL_RECOVER_WEIGH, 2);
    assert_int_equal(sl_recover_weighed(&s.r, 0, s.now), 0);
    changes_to(&s, "1101");
    taken(&s);
    assert_int_equal(s.r.service, SL_RECOVER_SERVES);
    end(&s);
}

static void it_rests(void **state) {
    (void)state;
    story s = begin(4, two_and_two);
    serve(&s);
    assert_false(sl_recover_slow(&s.r, 0, false, s.now)); /* it has requests */
    assert_true(sl_recover_slow(&s.r, 3, false, s.now));
    assert_false(sl_recover_slow(&s.r, 3, false, s.now)); /* it rests already */
    assert_false(sl_recover_slow(&s.r, 2, false, s.now)); /* nobody else is left */
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
    assert_true(sl_recover_slow(&s.r, 3, false, s.now));
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
    assert_true(sl_recover_slow(&s.r, 3, false, s.now));
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
    assert_true(sl_recover_slow(&s.r, 2, false, s.now));
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
    assert_true(sl_recover_slow(&s.r, 1, false, s.now));
    assert_true(sl_recover_slow(&s.r, 2, false, s.now));
    assert_false(sl_recover_slow(&s.r, 3, false, s.now));
    changes_to(&s, "100111111");
    taken(&s);
    assert_false(sl_recover_slow(&s.r, 3, false, s.now));
    sl_recover_answered(&s.r, 1, s.now);
    says_after(&s, 2 * SEC, SL_RECOVER_CHANGE, 99);
    taken(&s);
    assert_true(sl_recover_slow(&s.r, 3, false, s.now));
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
        cmocka_unit_test(much_to_do_for_others),
        cmocka_unit_test(other_machines),
        cmocka_unit_test(stopped_under_a_prompt),
        cmocka_unit_test(bursts_are_apart),
        cmocka_unit_test(a_busy_machine),
        cmocka_unit_test(tasks_are_promised),
        cmocka_unit_test(nobody_answers),
        cmocka_unit_test(this_process_stood_still),
        cmocka_unit_test(the_second_is_missing),
        cmocka_unit_test(drawn),
        cmocka_unit_test(one_is_alone),
        cmocka_unit_test(one_alone_gets_slower),
        cmocka_unit_test(it_pays),
        cmocka_unit_test(it_rests_and_had_something_alone),
        cmocka_unit_test(it_rests),
        cmocka_unit_test(others_die_meanwhile),
        cmocka_unit_test(it_dies),
        cmocka_unit_test(few_at_a_time),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
