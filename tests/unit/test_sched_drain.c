/* Workers that leave on purpose and come back: a story by hand for each way that it may go, with
 * the recovery that it stands beside; then drawn wishes among deaths, in which nobody who is not
 * wanted is started, nobody leaves whom the others cannot do without, every wish ends, and at the
 * end exactly those who are wanted are there. */
#include "sched/drain.h"

#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define ATTN SL_ROLE_ATTENTION
#define XPRT SL_ROLE_EXPERT
#define BOTH (ATTN | XPRT)
#define SEC  1000000ull
#define HOUR (3600 * SEC)
#define MOST 6u

typedef struct story {
    sl_roster roster;
    sl_recover r;
    sl_drain d;
    uint64_t now, incarnation;
    sl_err err;
} story;

/* The machines point to each other. The last `spare` places are free. */
static void begin_with_spares(story *s, uint32_t n, uint32_t spare, const uint32_t *roles) {
    uint32_t duties;
    *s = (story){.now = HOUR};
    assert_int_equal(sl_roster_create(n, &s->roster, &s->err), SL_OK);
    for (uint32_t i = 0; i < n; i++) {
        sl_roster_expect(&s->roster, i, roles[i]);
        if (i + spare >= n) {
            sl_roster_ended(&s->roster, i, SL_ROSTER_ANY, &duties);
            continue;
        }
        sl_roster_hello(&s->roster, i, ++s->incarnation);
        sl_roster_ready(&s->roster, i, SL_ROSTER_ANY);
    }
    assert_int_equal(sl_recover_create(&s->roster, &SL_RECOVER_OPTS, &s->r, &s->err), SL_OK);
    for (uint32_t i = 0; i < n; i++) s->r.place[i].can_start = true;
    assert_int_equal(sl_drain_create(&s->r, &SL_DRAIN_OPTS, &s->d, &s->err), SL_OK);
    for (uint32_t i = n - spare; i < n; i++) sl_drain_spare(&s->d, i);
    assert_int_equal(sl_drain_leave(&s->d, 0, false, 0, s->now, &s->err), SL_ERR_AGAIN);
    sl_recover_begin(&s->r, s->now);
}

static void begin(story *s, uint32_t n, const uint32_t *roles) {
    begin_with_spares(s, n, 0, roles);
}

static void end(story *s) {
    sl_drain_free(&s->d);
    sl_recover_free(&s->r);
    sl_roster_free(&s->roster);
}

static void leave(story *s, uint32_t id, uint64_t grace_us) {
    assert_int_equal(sl_drain_leave(&s->d, id, false, grace_us, s->now, &s->err), SL_OK);
}

/* Where no request runs. */
static void leave_at_once(story *s, uint32_t id, bool again) {
    assert_int_equal(sl_drain_leave(&s->d, id, again, HOUR, s->now, &s->err), SL_OK);
    sl_drain_empty(&s->d, id, s->now);
}

static void refused(story *s, uint32_t id, sl_status want, const char *why) {
    assert_int_equal(sl_drain_leave(&s->d, id, false, 0, s->now, &s->err), want);
    assert_non_null(strstr(s->err.msg, why));
}

static void says(story *s, sl_drain_word want, uint32_t of) {
    uint32_t id = of;
    assert_int_equal(sl_drain_next(&s->d, s->now, &id), want);
    assert_int_equal(id, of);
}

static void recovery_says(story *s, sl_recover_word want, uint32_t of) {
    uint32_t id = of;
    assert_int_equal(sl_recover_next(&s->r, s->now, &id), want);
    assert_int_equal(id, of);
    if (want == SL_RECOVER_START) sl_roster_reopen(&s->roster, id);
}

static void is_calm(story *s) {
    says(s, SL_DRAIN_NOTHING, 0);
    recovery_says(s, SL_RECOVER_NOTHING, 0);
}

static void changes_to(story *s, const char *set) {
    recovery_says(s, SL_RECOVER_CHANGE, 0);
    for (uint32_t i = 0; i < s->roster.n; i++) assert_int_equal(s->r.there[i], set[i] == '1');
}

static void taken(story *s) {
    for (uint32_t i = 0; i < s->roster.n; i++) {
        if (!s->r.there[i]) continue;
        sl_roster_ready(&s->roster, i, SL_ROSTER_ANY);
        sl_drain_served(&s->d, i);
    }
    sl_recover_changed(&s->r, true, SL_ROSTER_NONE, s->now);
}

/* True: as it was told to. */
static bool ends(story *s, uint32_t id) {
    uint32_t duties;
    assert_true(sl_roster_ended(&s->roster, id, SL_ROSTER_ANY, &duties));
    bool told = sl_drain_ended(&s->d, id, s->now);
    sl_recover_lost(&s->r, id, s->now);
    return told;
}

static void come(story *s, uint32_t id) {
    if (s->roster.worker[id].state == SL_ROSTER_GONE) sl_roster_reopen(&s->roster, id);
    assert_int_equal(sl_roster_hello(&s->roster, id, ++s->incarnation), id);
    sl_recover_coming(&s->r, id, s->now);
    sl_recover_joined(&s->r, id, s->now);
}

static void is_over(const story *s, uint32_t id, sl_drain_state state, sl_status status) {
    assert_int_equal(s->d.place[id].state, state);
    assert_true(s->d.place[id].done);
    assert_int_equal(s->d.place[id].status, status);
}

static const uint32_t two_and_two[] = {ATTN, ATTN, XPRT, XPRT};

/* Others have its experts before it is told to stop; nobody comes until somebody is wanted. */
static void an_expert_worker(void **state) {
    (void)state;
    story s;
    begin(&s, 4, two_and_two);
    leave_at_once(&s, 2, false);
    says(&s, SL_DRAIN_NOTHING, 0);
    changes_to(&s, "1101");
    assert_int_equal(s.r.service, SL_RECOVER_SERVES);
    refused(&s, 2, SL_ERR_AGAIN, "leaves already");
    refused(&s, 3, SL_ERR_INFEASIBLE, "last expert worker");
    taken(&s);
    says(&s, SL_DRAIN_STOP, 2);
    is_calm(&s);
    assert_true(ends(&s, 2));
    is_over(&s, 2, SL_DRAIN_DRAINED, SL_OK);
    s.now += HOUR;
    is_calm(&s);
    assert_int_equal(s.r.n_away, 0);
    assert_int_equal(s.r.service, SL_RECOVER_SERVES);
    refused(&s, 2, SL_ERR_ARG, "drained already");
    refused(&s, 3, SL_ERR_INFEASIBLE, "last expert worker");
    refused(&s, 4, SL_ERR_NOTFOUND, "no worker 4");
    assert_int_equal(sl_drain_return(&s.d, 3, s.now, &s.err), SL_ERR_ARG);
    assert_int_equal(sl_drain_return(&s.d, 4, s.now, &s.err), SL_ERR_NOTFOUND);
    assert_int_equal(sl_drain_return(&s.d, 2, s.now, &s.err), SL_OK);
    recovery_says(&s, SL_RECOVER_START, 2);
    come(&s, 2);
    changes_to(&s, "1111");
    assert_false(s.d.place[2].done);
    taken(&s);
    is_over(&s, 2, SL_DRAIN_WANTED, SL_OK);
    is_calm(&s);
    assert_int_equal(s.d.n_busy, 0);
    end(&s);
}

/* Its requests end, or give way when their time is over; nothing of the plan changes. */
static void an_attention_worker(void **state) {
    (void)state;
    for (int moves = 0; moves < 2; moves++) {
        story s;
        begin(&s, 4, two_and_two);
        leave(&s, 0, 10 * SEC);
        s.now += 10 * SEC - 1;
        is_calm(&s);
        if (moves) {
            s.now++;
            says(&s, SL_DRAIN_MOVE, 0);
            is_calm(&s);
        }
        sl_drain_empty(&s.d, 1, s.now); /* no news */
        sl_drain_empty(&s.d, 0, s.now);
        says(&s, SL_DRAIN_STOP, 0);
        is_calm(&s);
        assert_true(ends(&s, 0));
        is_calm(&s);
        is_over(&s, 0, SL_DRAIN_DRAINED, SL_OK);
        refused(&s, 1, SL_ERR_INFEASIBLE, "last attention worker");
        end(&s);
    }
}

static void a_colocated_worker(void **state) {
    (void)state;
    story s;
    begin(&s, 2, (const uint32_t[]){BOTH, BOTH});
    leave(&s, 0, 0);
    says(&s, SL_DRAIN_MOVE, 0);
    is_calm(&s);
    sl_drain_empty(&s.d, 0, s.now);
    changes_to(&s, "01");
    taken(&s);
    says(&s, SL_DRAIN_STOP, 0);
    assert_true(ends(&s, 0));
    is_calm(&s);
    end(&s);
}

/* It comes back by itself, and is lost by nobody's count. */
static void a_restart(void **state) {
    (void)state;
    story s;
    begin(&s, 4, two_and_two);
    leave_at_once(&s, 3, true);
    changes_to(&s, "1110");
    taken(&s);
    says(&s, SL_DRAIN_STOP, 3);
    assert_true(ends(&s, 3));
    assert_int_equal(s.r.service, SL_RECOVER_SERVES);
    recovery_says(&s, SL_RECOVER_START, 3);
    refused(&s, 3, SL_ERR_AGAIN, "not there yet");
    come(&s, 3);
    changes_to(&s, "1111");
    taken(&s);
    is_over(&s, 3, SL_DRAIN_WANTED, SL_OK);
    is_calm(&s);
    end(&s);
}

/* Nobody could have its experts: others wait until it is back. */
static void a_restart_of_the_last(void **state) {
    (void)state;
    for (uint32_t id = 0; id < 2; id++) {
        story s;
        begin(&s, 2, (const uint32_t[]){ATTN, XPRT});
        refused(&s, id, SL_ERR_INFEASIBLE, "last");
        assert_int_equal(sl_drain_leave(&s.d, id, true, 0, s.now, &s.err), SL_OK);
        says(&s, SL_DRAIN_MOVE, id);
        sl_drain_empty(&s.d, id, s.now);
        says(&s, SL_DRAIN_STOP, id);
        is_calm(&s);
        assert_true(ends(&s, id));
        assert_int_equal(s.r.service, SL_RECOVER_WAITS);
        recovery_says(&s, SL_RECOVER_START, id);
        come(&s, id);
        changes_to(&s, "11");
        taken(&s);
        is_over(&s, id, SL_DRAIN_WANTED, SL_OK);
        is_calm(&s);
        end(&s);
    }
}

/* It is simply gone, whenever that is. */
static void one_that_dies_meanwhile(void **state) {
    (void)state;
    for (int when = 0; when < 3; when++) {
        story s;
        begin(&s, 4, two_and_two);
        leave(&s, when ? 2 : 0, HOUR);
        if (when) sl_drain_empty(&s.d, 2, s.now);
        if (when > 1) changes_to(&s, "1101");
        assert_false(ends(&s, when ? 2 : 0));
        is_over(&s, when ? 2 : 0, SL_DRAIN_DRAINED, SL_OK);
        if (when > 1) sl_recover_changed(&s.r, false, SL_ROSTER_NONE, s.now);
        if (when) {
            assert_int_equal(s.r.service, SL_RECOVER_WAITS);
            changes_to(&s, "1101");
            taken(&s);
        }
        assert_int_equal(s.r.service, SL_RECOVER_SERVES);
        s.now += HOUR;
        is_calm(&s);
        end(&s);
    }
}

/* The others are needed by then: it stays. */
static void one_that_becomes_the_last(void **state) {
    (void)state;
    story s;
    begin(&s, 4, two_and_two);
    leave(&s, 0, HOUR);
    ends(&s, 1);
    says(&s, SL_DRAIN_OPEN, 0);
    is_over(&s, 0, SL_DRAIN_WANTED, SL_ERR_TIMEOUT);
    end(&s);
    begin(&s, 4, two_and_two);
    leave_at_once(&s, 2, false);
    changes_to(&s, "1101");
    ends(&s, 3);
    says(&s, SL_DRAIN_NOTHING, 0); /* that change may still be taken */
    sl_recover_changed(&s.r, false, SL_ROSTER_NONE, s.now);
    says(&s, SL_DRAIN_OPEN, 2);
    is_over(&s, 2, SL_DRAIN_WANTED, SL_ERR_TIMEOUT);
    assert_non_null(strstr(s.d.place[2].err.msg, "worker 2 stays"));
    changes_to(&s, "1110");
    taken(&s);
    recovery_says(&s, SL_RECOVER_START, 3);
    refused(&s, 3, SL_ERR_AGAIN, "not there yet");
    end(&s);
}

/* What cannot be ends, and all is as before. */
static void plans_that_are_refused(void **state) {
    (void)state;
    story s;
    begin(&s, 4, two_and_two);
    leave_at_once(&s, 2, false);
    changes_to(&s, "1101");
    sl_recover_changed(&s.r, false, 3, s.now);
    sl_drain_refused(&s.d, SL_ERR_TIMEOUT, "worker 3 is not ready in time", s.now);
    is_calm(&s);
    s.now += SEC; /* it is tried again */
    changes_to(&s, "1101");
    sl_recover_changed(&s.r, false, 3, s.now);
    sl_drain_refused(&s.d, SL_ERR_INFEASIBLE, "worker 3 has no memory for 3 GiB", s.now);
    says(&s, SL_DRAIN_OPEN, 2);
    is_over(&s, 2, SL_DRAIN_WANTED, SL_ERR_INFEASIBLE);
    assert_non_null(strstr(s.d.place[2].err.msg, "3 GiB"));
    s.now += HOUR;
    is_calm(&s);
    end(&s);
}

static void every_wait_ends(void **state) {
    (void)state;
    story s;
    begin(&s, 4, two_and_two);
    leave(&s, 0, 0);
    says(&s, SL_DRAIN_MOVE, 0);
    s.now += 60 * SEC;
    says(&s, SL_DRAIN_OPEN, 0); /* they do not give way */
    is_over(&s, 0, SL_DRAIN_WANTED, SL_ERR_TIMEOUT);
    leave_at_once(&s, 2, false);
    changes_to(&s, "1101");
    s.now += 60 * SEC;
    says(&s, SL_DRAIN_NOTHING, 0); /* nor is the plan taken */
    is_over(&s, 2, SL_DRAIN_WANTED, SL_ERR_TIMEOUT);
    taken(&s); /* now it is: who stays is taken in again */
    changes_to(&s, "1111");
    says(&s, SL_DRAIN_NOTHING, 0);
    taken(&s);
    says(&s, SL_DRAIN_OPEN, 2);
    leave_at_once(&s, 2, false);
    changes_to(&s, "1101");
    taken(&s);
    says(&s, SL_DRAIN_STOP, 2);
    s.now += 5 * SEC;
    says(&s, SL_DRAIN_KILL, 2); /* it does not listen */
    is_calm(&s);
    ends(&s, 2);
    is_over(&s, 2, SL_DRAIN_DRAINED, SL_OK);
    end(&s);
}

/* Who leaves is wanted again: it stays, or comes back if it was told to stop. */
static void wanted_again(void **state) {
    (void)state;
    story s;
    begin(&s, 4, two_and_two);
    leave(&s, 1, HOUR);
    assert_int_equal(sl_drain_return(&s.d, 1, s.now, &s.err), SL_OK);
    is_over(&s, 1, SL_DRAIN_WANTED, SL_OK);
    says(&s, SL_DRAIN_OPEN, 1);
    is_calm(&s);
    leave_at_once(&s, 2, false);
    assert_int_equal(sl_drain_return(&s.d, 2, s.now, &s.err), SL_OK);
    says(&s, SL_DRAIN_OPEN, 2);
    is_calm(&s);
    leave_at_once(&s, 2, false);
    changes_to(&s, "1101");
    taken(&s);
    says(&s, SL_DRAIN_STOP, 2);
    assert_int_equal(sl_drain_return(&s.d, 2, s.now, &s.err), SL_OK);
    assert_true(ends(&s, 2));
    assert_false(s.d.place[2].done);
    recovery_says(&s, SL_RECOVER_START, 2);
    come(&s, 2);
    changes_to(&s, "1111");
    taken(&s);
    is_over(&s, 2, SL_DRAIN_WANTED, SL_OK);
    end(&s);
}

/* Nobody is missed there, until somebody is wanted; then it is a place like others. */
static void a_free_place(void **state) {
    (void)state;
    story s;
    begin_with_spares(&s, 4, 1, two_and_two);
    is_calm(&s);
    assert_true(sl_drain_rests(&s.d) && s.r.service == SL_RECOVER_SERVES && s.r.n_away == 0);
    refused(&s, 3, SL_ERR_ARG, "drained already");
    refused(&s, 2, SL_ERR_INFEASIBLE, "last expert worker");
    assert_int_equal(sl_drain_return(&s.d, 3, s.now, &s.err), SL_OK);
    assert_false(sl_drain_rests(&s.d));
    recovery_says(&s, SL_RECOVER_START, 3);
    come(&s, 3);
    changes_to(&s, "1111");
    taken(&s);
    is_over(&s, 3, SL_DRAIN_WANTED, SL_OK);
    leave_at_once(&s, 2, false);
    changes_to(&s, "1101");
    taken(&s);
    says(&s, SL_DRAIN_STOP, 2);
    assert_true(ends(&s, 2));
    assert_int_equal(s.d.n_drained, 1);
    end(&s);
}

/* Of a lost worker: it is not awaited any more. */
static void one_that_is_lost(void **state) {
    (void)state;
    story s;
    begin(&s, 4, two_and_two);
    s.r.place[1].can_start = false;
    ends(&s, 1);
    leave(&s, 1, 0);
    is_over(&s, 1, SL_DRAIN_DRAINED, SL_OK);
    assert_int_equal(s.r.n_away, 0);
    is_calm(&s);
    end(&s);
}

/* ---- drawn ---- */

typedef struct world {
    story s;
    uint64_t rng;
    bool changing, run[MOST]; /* requests run there */
    uint32_t n_left, n_back, n_stayed, n_killed;
} world;

static uint32_t below(world *w, uint32_t n) {
    return (uint32_t)sl_rng_below(&w->rng, n);
}

static bool lives(const world *w, uint32_t i) {
    sl_roster_state state = w->s.roster.worker[i].state;
    return state == SL_ROSTER_JOINING || state == SL_ROSTER_SERVING;
}

static void check(world *w) {
    const story *s = &w->s;
    for (uint32_t i = 0; i < s->roster.n; i++) {
        const sl_drain_place *p = &s->d.place[i];
        assert_true(p->state != SL_DRAIN_DRAINED || !lives(w, i));
        assert_true(p->state != SL_DRAIN_DRAINED || (s->r.place[i].released && p->done));
        assert_true(p->state != SL_DRAIN_WANTED || !s->r.place[i].released);
    }
}

static void words(world *w) {
    story *s = &w->s;
    uint32_t id;
    for (sl_recover_word word; (word = sl_recover_next(&s->r, s->now, &id));) {
        if (word == SL_RECOVER_CHANGE) {
            w->changing = true;
            for (uint32_t i = 0; i < s->roster.n; i++)
                assert_true(!s->r.there[i] || s->d.place[i].state != SL_DRAIN_DRAINED);
        }
        if (word == SL_RECOVER_START) {
            assert_true(sl_drain_wants(&s->d, id));
            sl_roster_reopen(&s->roster, id);
        }
        if (word == SL_RECOVER_DROP) ends(s, id);
    }
    for (uint32_t i = 0; i < s->roster.n; i++)
        if (!w->run[i] && !w->changing) sl_drain_empty(&s->d, i, s->now);
    for (sl_drain_word word; (word = sl_drain_next(&s->d, s->now, &id));) {
        assert_true(word == SL_DRAIN_OPEN || !w->run[id] || word != SL_DRAIN_STOP);
        w->n_stayed += word == SL_DRAIN_OPEN;
        w->n_killed += word == SL_DRAIN_KILL;
        if (word == SL_DRAIN_KILL) ends(s, id), w->run[id] = false;
    }
}

static void die(world *w, uint32_t i) {
    uint32_t duties;
    if (!lives(w, i) && !w->s.r.place[i].coming) return;
    w->run[i] = false;
    if (lives(w, i)) {
        ends(&w->s, i);
        return;
    }
    sl_roster_ended(&w->s.roster, i, SL_ROSTER_ANY, &duties);
    sl_drain_ended(&w->s.d, i, w->s.now);
    sl_recover_lost(&w->s.r, i, w->s.now);
}

static void end_change(world *w, bool well) {
    story *s = &w->s;
    w->changing = false;
    if (well) {
        taken(s);
        return;
    }
    sl_recover_changed(&s->r, false, SL_ROSTER_NONE, s->now);
    sl_drain_refused(&s->d, below(w, 3) ? SL_ERR_WORKER_LOST : SL_ERR_INFEASIBLE, "no room",
                     s->now);
}

/* What the world does by itself; with `faults` also what it should not. */
static void step(world *w, bool faults) {
    story *s = &w->s;
    uint32_t i = below(w, s->roster.n);
    s->now += below(w, 4) ? below(w, 50000) : below(w, 4 * (uint32_t)SEC);
    bool attends = (s->roster.worker[i].roles & ATTN) && s->r.place[i].planned;
    if (faults && below(w, 6) == 0) die(w, i);
    if (w->changing && below(w, 2)) end_change(w, !faults || below(w, 4));
    if (s->roster.worker[i].state == SL_ROSTER_ABSENT && s->r.place[i].coming) come(s, i);
    if (s->d.place[i].state == SL_DRAIN_STOPS && s->d.place[i].said && below(w, 2))
        w->n_left += ends(s, i);
    w->run[i] = attends && s->d.place[i].state == SL_DRAIN_WANTED ? below(w, 2) : false;
    if (faults && below(w, 3) == 0) {
        sl_err err;
        sl_status st = below(w, 2)
                           ? sl_drain_return(&s->d, i, s->now, &err)
                           : sl_drain_leave(&s->d, i, below(w, 2), below(w, 3 * SEC), s->now, &err);
        w->n_back += st == SL_OK;
    }
    words(w);
    check(w);
}

static bool is_settled(const world *w) {
    for (uint32_t i = 0; i < w->s.roster.n; i++) {
        const sl_drain_place *p = &w->s.d.place[i];
        bool there = w->s.roster.worker[i].state == SL_ROSTER_SERVING && w->s.r.place[i].planned;
        if (p->n && !p->done) return false;
        if (there != (p->state == SL_DRAIN_WANTED)) return false;
    }
    return !w->changing && w->s.d.n_busy == 0;
}

static void drawn(void **state) {
    (void)state;
    static const uint32_t shapes[][MOST] = {
        {ATTN, XPRT}, {ATTN, ATTN, XPRT, XPRT}, {BOTH, BOTH, BOTH}, {ATTN, XPRT, XPRT, XPRT, ATTN}};
    static const uint32_t sizes[] = {2, 4, 3, 5};
    uint32_t left = 0, stayed = 0, killed = 0, back = 0;
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        world w = {.rng = seed * 7919};
        uint32_t shape = below(&w, 4);
        begin(&w.s, sizes[shape], shapes[shape]);
        for (int i = 0; i < 120; i++) step(&w, true);
        int more = 0;
        for (; more < 3000 && !is_settled(&w); more++) step(&w, false);
        if (!is_settled(&w)) fail_msg("seed %u does not settle", (unsigned)seed);
        assert_int_equal(w.s.r.service, SL_RECOVER_SERVES);
        assert_int_equal(w.s.r.n_away, 0);
        left += w.n_left, stayed += w.n_stayed, killed += w.n_killed, back += w.n_back;
        end(&w.s);
    }
    print_message("%u wishes, %u workers left, %u stayed, %u were killed\n", back, left, stayed,
                  killed);
    assert_true(left > 500 && stayed > 100 && killed > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_expert_worker),
        cmocka_unit_test(an_attention_worker),
        cmocka_unit_test(a_colocated_worker),
        cmocka_unit_test(a_restart),
        cmocka_unit_test(a_restart_of_the_last),
        cmocka_unit_test(one_that_dies_meanwhile),
        cmocka_unit_test(one_that_becomes_the_last),
        cmocka_unit_test(plans_that_are_refused),
        cmocka_unit_test(every_wait_ends),
        cmocka_unit_test(wanted_again),
        cmocka_unit_test(a_free_place),
        cmocka_unit_test(one_that_is_lost),
        cmocka_unit_test(drawn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
