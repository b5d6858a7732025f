/* Changes of plans: each step of one, what is refused and what is stale, and drawn deployments in
 * which workers are busy, slow, unable and lost. */
#include "sched/change.h"

#include "base/mem.h"
#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define BOTH (SL_ROLE_ATTENTION | SL_ROLE_EXPERT)

static sl_roster serving(uint32_t n, const uint32_t *roles) {
    sl_roster r;
    sl_err err;
    assert_int_equal(sl_roster_create(n, &r, &err), SL_OK);
    for (uint32_t i = 0; i < n; i++) {
        sl_roster_expect(&r, i, roles[i]);
        sl_roster_hello(&r, i, 100 + i);
        sl_roster_ready(&r, i, SL_ROSTER_ANY);
    }
    return r;
}

static void a_change(void **state) {
    (void)state;
    sl_err err;
    sl_change c;
    sl_roster r = serving(3, (const uint32_t[]){SL_ROLE_ATTENTION, SL_ROLE_EXPERT, BOTH});
    assert_int_equal(sl_change_create(&r, 1, &c, &err), SL_OK);
    assert_int_equal(sl_change_next(&c, 0), SL_CHANGE_NOTHING);
    sl_change_begin(&c, NULL, false, 1000);
    assert_int_equal(c.epoch, 2);
    assert_false(sl_change_answer(&c, 0, SL_CHANGE_PREPARES, 2)); /* nobody has asked */
    assert_int_equal(sl_change_next(&c, 0), SL_CHANGE_PLAN);
    assert_int_equal(sl_change_next(&c, 0), SL_CHANGE_NOTHING);
    assert_int_equal(c.n_owed, 3);
    assert_false(sl_change_answer(&c, 0, SL_CHANGE_HOLDS, 2)); /* not yet */
    assert_false(sl_change_answer(&c, 0, SL_CHANGE_PREPARES, 1));
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(sl_change_answer(&c, i, SL_CHANGE_PREPARES, 2));
        assert_false(sl_change_answer(&c, i, SL_CHANGE_PREPARES, 2));
    }
    assert_int_equal(sl_change_next(&c, 0), SL_CHANGE_HOLD);
    assert_true(c.owes[0] && !c.owes[1] && c.owes[2]);
    assert_true(sl_change_answer(&c, 2, SL_CHANGE_HOLDS, 2));
    assert_int_equal(sl_change_next(&c, 0), SL_CHANGE_NOTHING);
    assert_true(sl_change_answer(&c, 0, SL_CHANGE_HOLDS, 2));
    assert_int_equal(sl_change_next(&c, 0), SL_CHANGE_TAKE);
    assert_int_equal(c.n_owed, 3);
    assert_int_equal(sl_change_next(&c, 2000), SL_CHANGE_NOTHING); /* no deadline ends it now */
    for (uint32_t i = 0; i < 3; i++) assert_true(sl_change_answer(&c, i, SL_CHANGE_TAKES, 2));
    assert_int_equal(sl_change_next(&c, 0), SL_CHANGE_GO);
    assert_int_equal(c.status, SL_OK);
    assert_int_equal(sl_change_next(&c, 0), SL_CHANGE_NOTHING);
    sl_change_free(&c);
    sl_roster_free(&r);
}

static void given_up(void **state) {
    (void)state;
    sl_err err;
    sl_change c;
    sl_roster r = serving(2, (const uint32_t[]){SL_ROLE_ATTENTION, SL_ROLE_EXPERT});
    uint32_t duties;
    assert_int_equal(sl_change_create(&r, 7, &c, &err), SL_OK);
    sl_change_begin(&c, NULL, false, 1000); /* too late */
    assert_int_equal(sl_change_next(&c, 0), SL_CHANGE_PLAN);
    sl_change_answer(&c, 0, SL_CHANGE_PREPARES, 8);
    assert_int_equal(sl_change_next(&c, 1000), SL_CHANGE_GO);
    assert_int_equal(c.status, SL_ERR_TIMEOUT);
    assert_non_null(strstr(c.err.msg, "worker 1"));
    sl_change_begin(&c, NULL, false, 1000); /* unable */
    assert_int_equal(c.epoch, 9);
    assert_int_equal(sl_change_next(&c, 0), SL_CHANGE_PLAN);
    assert_false(sl_change_answer(&c, 1, SL_CHANGE_PREPARES, 8)); /* of the one before */
    assert_true(sl_change_unable(&c, 1, 9, "no memory"));
    assert_int_equal(sl_change_next(&c, 0), SL_CHANGE_GO);
    assert_int_equal(c.status, SL_ERR_INFEASIBLE);
    assert_false(sl_change_unable(&c, 1, 9, "no memory"));
    sl_change_begin(&c, NULL, false, 1000); /* a worker is lost, and the others go on */
    assert_int_equal(sl_change_next(&c, 0), SL_CHANGE_PLAN);
    sl_change_answer(&c, 1, SL_CHANGE_PREPARES, 10);
    assert_true(sl_roster_ended(&r, 0, SL_ROSTER_ANY, &duties));
    sl_change_lost(&c, 0);
    assert_int_equal(sl_change_next(&c, 0), SL_CHANGE_HOLD); /* of nobody */
    assert_int_equal(sl_change_next(&c, 0), SL_CHANGE_TAKE);
    assert_int_equal(c.n_owed, 1);
    sl_change_fail(&c, SL_ERR_WORKER_LOST, "worker 1 was lost");
    assert_int_equal(sl_change_next(&c, 0), SL_CHANGE_GO);
    assert_int_equal(c.status, SL_ERR_WORKER_LOST);
    sl_change_free(&c);
    sl_roster_free(&r);
}

/* Two that cannot have a link are both late: the others do without the one who joins. */
static void who_joins_is_late_first(void **state) {
    (void)state;
    sl_err err;
    sl_change c;
    sl_roster r = serving(3, (const uint32_t[]){SL_ROLE_ATTENTION, SL_ROLE_EXPERT, SL_ROLE_EXPERT});
    const uint8_t there[] = {1, 1, 1};
    uint32_t duties;
    assert_true(sl_roster_ended(&r, 2, SL_ROSTER_ANY, &duties));
    sl_roster_reopen(&r, 2);
    assert_int_equal(sl_roster_hello(&r, 2, 777), 2);
    assert_int_equal(sl_change_create(&r, 1, &c, &err), SL_OK);
    sl_change_begin(&c, there, false, 1000);
    assert_int_equal(sl_change_next(&c, 0), SL_CHANGE_PLAN);
    assert_true(sl_change_answer(&c, 1, SL_CHANGE_PREPARES, 2));
    assert_int_equal(sl_change_next(&c, 1000), SL_CHANGE_GO);
    assert_int_equal(c.status, SL_ERR_TIMEOUT);
    assert_int_equal(c.culprit, 2);
    sl_change_free(&c);
    sl_roster_free(&r);
}

static void words_in_order(void **state) {
    (void)state;
    sl_taker t = {.epoch = 1};
    assert_false(sl_taker_take(&t, 0));
    assert_false(sl_taker_hold(&t, 0));
    assert_false(sl_taker_plan(&t, 1));
    assert_false(sl_taker_hold(&t, 2));
    assert_true(sl_taker_plan(&t, 2));
    assert_false(sl_taker_plan(&t, 3)); /* neither taken nor given up */
    assert_false(sl_taker_rests(&t, true));
    assert_false(sl_taker_hold(&t, 3));
    assert_true(sl_taker_hold(&t, 2));
    assert_false(sl_taker_hold(&t, 2));
    assert_false(sl_taker_take(&t, 2)); /* it is not quiet */
    assert_false(sl_taker_rests(&t, false));
    assert_true(sl_taker_rests(&t, true));
    assert_false(sl_taker_rests(&t, true));
    assert_false(sl_taker_take(&t, 3));
    assert_true(sl_taker_take(&t, 2));
    assert_true(t.holds);
    assert_false(sl_taker_go(&t, 1));
    assert_true(sl_taker_go(&t, 2));
    assert_false(t.holds);
    assert_true(sl_taker_plan(&t, 5));
    assert_true(sl_taker_hold(&t, 5));
    assert_true(sl_taker_go(&t, 2)); /* given up */
    assert_false(t.holds || t.quiet || t.next);
    assert_true(sl_taker_plan(&t, 6));
}

static void what_may_differ(void **state) {
    (void)state;
    sl_err err;
    sl_plan_worker one[2] = {{.roles = BOTH}, {.roles = BOTH}}, other[2];
    memcpy(other, one, sizeof one);
    sl_plan a = {.n_workers = 2, .lanes = 1, .max_num_seqs = 4, .worker = one}, b = a;
    b.worker = other;
    b.epoch = 9;
    b.place.n_layers = 3;
    assert_int_equal(sl_change_check(&a, &b, &err), SL_OK);
    b.lanes = 2;
    assert_int_equal(sl_change_check(&a, &b, &err), SL_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "lanes"));
    b.lanes = 1;
    b.max_num_seqs = 5;
    assert_int_equal(sl_change_check(&a, &b, &err), SL_ERR_UNSUPPORTED);
    b.max_num_seqs = 4;
    other[1].roles = SL_ROLE_EXPERT;
    assert_int_equal(sl_change_check(&a, &b, &err), SL_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "role"));
    other[1].roles = 0; /* it is not there */
    assert_int_equal(sl_change_check(&a, &b, &err), SL_OK);
    assert_int_equal(sl_change_check(&b, &a, &err), SL_OK);
}

/* ---- drawn deployments ---- */

#define MOST  6u
#define DEPTH 16u

typedef struct pipe { /* in order */
    struct {
        sl_change_word word;
        uint32_t epoch;
    } m[DEPTH];
    uint32_t n;
} pipe;

typedef struct world {
    uint64_t rng, now;
    uint32_t n, epoch; /* of the coordinator's plan */
    uint32_t roles[MOST];
    sl_roster roster;
    sl_change change;
    pipe down[MOST], up[MOST];
    sl_taker taker[MOST];
    uint32_t rows[MOST]; /* on their way */
    bool dead[MOST], noticed[MOST];
    uint32_t n_taken, n_given_up, n_lost;
} world;

static bool once_in(world *w, uint32_t n) {
    return sl_rng_below(&w->rng, n) == 0;
}

static void push(pipe *p, sl_change_word word, uint32_t epoch) {
    assert_true(p->n < DEPTH);
    p->m[p->n].word = word;
    p->m[p->n++].epoch = epoch;
}

static void tell(world *w, sl_change_word word, bool all) {
    for (uint32_t i = 0; i < w->n; i++) {
        uint32_t epoch = word == SL_CHANGE_GO ? w->epoch : w->change.epoch;
        if (all ? sl_roster_serves(&w->roster, i) : w->change.owes[i])
            push(&w->down[i], word, epoch);
    }
}

static void coordinate(world *w) {
    sl_change_word word;
    while ((word = sl_change_next(&w->change, w->now)) != SL_CHANGE_NOTHING) {
        if (word == SL_CHANGE_TAKE) w->epoch = w->change.epoch;
        tell(w, word, word == SL_CHANGE_GO);
        if (word != SL_CHANGE_GO) continue;
        w->n_taken += w->epoch == w->change.epoch;
        w->n_given_up += w->change.status != SL_OK;
    }
    if (w->change.phase == SL_CHANGE_RESTS && once_in(w, 4))
        sl_change_begin(&w->change, NULL, false, w->now + sl_rng_below(&w->rng, 600));
}

/* Nobody who lives has rows on their way when a plan is taken. */
static void on_take(world *w, uint32_t i, uint32_t epoch) {
    assert_true(sl_taker_take(&w->taker[i], epoch));
    for (uint32_t j = 0; j < w->n; j++) assert_true(w->dead[j] || w->rows[j] == 0);
    push(&w->up[i], SL_CHANGE_TAKE, epoch);
}

static void on_word(world *w, uint32_t i, sl_change_word word, uint32_t epoch) {
    sl_taker *t = &w->taker[i];
    if (word == SL_CHANGE_PLAN) {
        assert_true(sl_taker_plan(t, epoch));
        push(&w->up[i], once_in(w, 40) ? SL_CHANGE_NOTHING : SL_CHANGE_PLAN, epoch);
    } else if (word == SL_CHANGE_HOLD) {
        assert_true(sl_taker_hold(t, epoch));
    } else if (word == SL_CHANGE_TAKE) {
        on_take(w, i, epoch);
    } else {
        assert_true(sl_taker_go(t, epoch));
    }
}

static void on_answer(world *w, uint32_t i, sl_change_word word, uint32_t epoch) {
    static const sl_change_phase phase[] = {[SL_CHANGE_PLAN] = SL_CHANGE_PREPARES,
                                            [SL_CHANGE_HOLD] = SL_CHANGE_HOLDS,
                                            [SL_CHANGE_TAKE] = SL_CHANGE_TAKES};
    if (word == SL_CHANGE_NOTHING)
        sl_change_unable(&w->change, i, epoch, "drawn");
    else
        sl_change_answer(&w->change, i, phase[word], epoch);
}

static void deliver(world *w, uint32_t i, pipe *p, bool down) {
    if (p->n == 0) return;
    sl_change_word word = p->m[0].word;
    uint32_t epoch = p->m[0].epoch;
    memmove(p->m, p->m + 1, --p->n * sizeof p->m[0]);
    if (down)
        on_word(w, i, word, epoch);
    else if (!w->noticed[i])
        on_answer(w, i, word, epoch);
}

/* Steps begin where nobody holds, and reach workers of the same epoch only. */
static void work(world *w, uint32_t i) {
    if (!(w->roles[i] & SL_ROLE_ATTENTION)) return;
    if (!w->taker[i].holds && once_in(w, 2)) {
        w->rows[i]++;
        for (uint32_t j = 0; j < w->n; j++)
            assert_true(w->dead[j] || w->taker[j].epoch == w->taker[i].epoch);
    } else if (w->rows[i] > 0) {
        w->rows[i]--;
    }
    if (sl_taker_rests(&w->taker[i], w->rows[i] == 0))
        push(&w->up[i], SL_CHANGE_HOLD, w->taker[i].next);
}

static void notice(world *w, uint32_t i) {
    uint32_t duties;
    w->noticed[i] = true;
    sl_roster_ended(&w->roster, i, SL_ROSTER_ANY, &duties);
    sl_change_lost(&w->change, i);
}

static void draw_world(uint64_t seed, uint32_t *taken, uint32_t *given_up) {
    sl_err err;
    world w = {.rng = seed * 977 + 1, .epoch = 1};
    w.n = 2 + (uint32_t)sl_rng_below(&w.rng, MOST - 1);
    bool colocated = once_in(&w, 3);
    for (uint32_t i = 0; i < w.n; i++) {
        w.roles[i] = colocated ? BOTH : i < w.n / 2 ? SL_ROLE_ATTENTION : SL_ROLE_EXPERT;
        w.taker[i].epoch = 1;
    }
    w.roster = serving(w.n, w.roles);
    assert_int_equal(sl_change_create(&w.roster, 1, &w.change, &err), SL_OK);
    for (uint32_t step = 0; step < 3000; step++, w.now++) {
        uint32_t i = (uint32_t)sl_rng_below(&w.rng, w.n);
        if (once_in(&w, 8)) coordinate(&w);
        if (w.dead[i] && !w.noticed[i] && once_in(&w, 20)) notice(&w, i);
        if (!w.noticed[i]) deliver(&w, i, &w.up[i], false);
        if (w.dead[i]) continue;
        if (once_in(&w, 2)) deliver(&w, i, &w.down[i], true);
        work(&w, i);
        w.dead[i] = (w.roles[i] == SL_ROLE_ATTENTION) && once_in(&w, 2000);
        w.n_lost += w.dead[i];
    }
    *taken += w.n_taken;
    *given_up += w.n_given_up;
    sl_change_free(&w.change);
    sl_roster_free(&w.roster);
}

static void drawn(void **state) {
    (void)state;
    uint32_t taken = 0, given_up = 0;
    for (uint64_t seed = 1; seed <= 400; seed++) draw_world(seed, &taken, &given_up);
    printf("%u plans taken, %u given up\n", taken, given_up);
    assert_true(taken > 1000 && given_up > 1000);
}

/* The others took plan 3 without it; plan 4, which is to take it in again, is given up. */
static void who_was_left_out_hears_of_the_plan_of_the_others(void **state) {
    (void)state;
    sl_taker t = {.epoch = 1};
    assert_false(sl_taker_go(&t, 3)); /* nothing was offered */
    assert_true(sl_taker_plan(&t, 4));
    assert_false(sl_taker_go(&t, 4));
    assert_false(sl_taker_go(&t, 5));
    assert_false(sl_taker_go(&t, 0));
    assert_true(sl_taker_go(&t, 3));
    assert_int_equal(t.epoch, 1);
    assert_int_equal(t.next, 0);
    assert_true(sl_taker_plan(&t, 5) && sl_taker_take(&t, 5));
    assert_int_equal(t.epoch, 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_change),
        cmocka_unit_test(given_up),
        cmocka_unit_test(who_joins_is_late_first),
        cmocka_unit_test(words_in_order),
        cmocka_unit_test(what_may_differ),
        cmocka_unit_test(drawn),
        cmocka_unit_test(who_was_left_out_hears_of_the_plan_of_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
