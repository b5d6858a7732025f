/* Lives of workers: each transition, what is stale, and drawn sequences against a plain model. */
#include "sched/roster.h"

#include "base/mem.h"
#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <cmocka.h>

static sl_roster roster_of(uint32_t n, uint32_t roles) {
    sl_roster r;
    sl_err err;
    assert_int_equal(sl_roster_create(n, &r, &err), SL_OK);
    for (uint32_t i = 0; i < n; i++) sl_roster_expect(&r, i, roles);
    return r;
}

static void places(void **state) {
    (void)state;
    sl_roster r = roster_of(3, SL_ROLE_ATTENTION);
    uint32_t duties;
    assert_int_equal(sl_roster_hello(&r, 1, 10), 1);
    assert_int_equal(sl_roster_hello(&r, 1, 11), SL_ROSTER_NONE);
    assert_int_equal(sl_roster_hello(&r, 3, 11), SL_ROSTER_NONE); /* not in the plan */
    assert_int_equal(sl_roster_hello(&r, SL_ROSTER_NONE, 11), 0);
    assert_int_equal(sl_roster_hello(&r, SL_ROSTER_NONE, 12), 2);
    assert_int_equal(sl_roster_hello(&r, SL_ROSTER_NONE, 13), SL_ROSTER_NONE);
    assert_int_equal(r.n_came, 3);
    assert_true(sl_roster_ended(&r, 0, 11, &duties));
    assert_int_equal(sl_roster_hello(&r, SL_ROSTER_NONE, 13), SL_ROSTER_NONE); /* gone, not free */
    assert_int_equal(r.n_came, 3);
    sl_roster_free(&r);
}

static void a_life(void **state) {
    (void)state;
    sl_roster r = roster_of(1, SL_ROLE_ATTENTION);
    uint32_t duties;
    assert_false(sl_roster_ready(&r, 0, SL_ROSTER_ANY)); /* it has not come */
    assert_int_equal(sl_roster_hello(&r, 0, 7), 0);
    assert_false(sl_roster_serves(&r, 0));
    assert_false(sl_roster_silent(&r, 0, 7));
    assert_true(sl_roster_ready(&r, 0, 7));
    assert_false(sl_roster_ready(&r, 0, 7));
    assert_int_equal(r.n_ready, 1);
    assert_false(sl_roster_heard(&r, 0, 7));
    assert_true(sl_roster_silent(&r, 0, 7));
    assert_false(sl_roster_silent(&r, 0, 7));
    assert_true(sl_roster_serves(&r, 0));
    assert_true(sl_roster_heard(&r, 0, 7));
    assert_true(sl_roster_ended(&r, 0, 7, &duties));
    assert_false(sl_roster_ended(&r, 0, 7, &duties));
    assert_int_equal(duties, 0);
    assert_false(sl_roster_ready(&r, 0, 7));
    assert_false(sl_roster_serves(&r, 0));
    sl_roster_free(&r);
}

/* Before it serves nothing depends on it. */
static void duties_follow_from_roles(void **state) {
    (void)state;
    static const uint32_t want[] = {0, SL_ROSTER_ANNOUNCE, SL_ROSTER_RESET | SL_ROSTER_REHOST,
                                    SL_ROSTER_ANNOUNCE | SL_ROSTER_RESET | SL_ROSTER_REHOST};
    for (uint32_t roles = 1; roles < 4; roles++) {
        for (int stage = 0; stage < 4; stage++) {
            sl_roster r = roster_of(1, roles);
            uint32_t duties = 99;
            if (stage > 0) assert_int_equal(sl_roster_hello(&r, 0, 7), 0);
            if (stage > 1) assert_true(sl_roster_ready(&r, 0, 7));
            if (stage > 2) assert_true(sl_roster_silent(&r, 0, 7));
            assert_true(sl_roster_ended(&r, 0, SL_ROSTER_ANY, &duties));
            assert_int_equal(duties, stage > 1 ? want[roles] : 0);
            sl_roster_free(&r);
        }
    }
}

static void who_comes_back_is_another_one(void **state) {
    (void)state;
    sl_roster r = roster_of(2, SL_ROLE_EXPERT);
    uint32_t duties;
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(sl_roster_hello(&r, i, 7 + i), i);
        assert_true(sl_roster_ready(&r, i, 7 + i));
    }
    assert_true(sl_roster_ended(&r, 1, 8, &duties));
    sl_roster_reopen(&r, 1);
    assert_int_equal(r.n_came, 1);
    assert_int_equal(r.n_ready, 1);
    assert_false(sl_roster_ended(&r, 1, 8, &duties)); /* its process, after its connection */
    assert_int_equal(sl_roster_hello(&r, 1, 8), SL_ROSTER_NONE);
    assert_int_equal(sl_roster_hello(&r, SL_ROSTER_NONE, 8), SL_ROSTER_NONE);
    assert_int_equal(sl_roster_hello(&r, 1, 9), 1);
    assert_false(sl_roster_ready(&r, 1, 8));
    assert_false(sl_roster_ended(&r, 1, 8, &duties));
    assert_true(sl_roster_ready(&r, 1, 9));
    assert_int_equal(r.n_ready, 2);
    sl_roster_free(&r);
}

/* Its process ended before it had a connection. */
static void some_never_come(void **state) {
    (void)state;
    sl_roster r = roster_of(2, SL_ROLE_EXPERT);
    uint32_t duties;
    assert_true(sl_roster_ended(&r, 0, SL_ROSTER_ANY, &duties));
    assert_int_equal(r.worker[0].state, SL_ROSTER_GONE);
    assert_int_equal(r.n_came, 0);
    assert_int_equal(sl_roster_hello(&r, SL_ROSTER_NONE, 3), 1);
    sl_roster_reopen(&r, 0);
    assert_int_equal(r.n_came, 1);
    assert_int_equal(sl_roster_hello(&r, SL_ROSTER_NONE, 4), 0);
    assert_int_equal(r.n_came, 2);
    sl_roster_free(&r);
}

/* ---- drawn sequences ---- */

#define N 4u

/* Each process that was ever started: where it is, and how far it came. */
typedef struct process {
    uint32_t id;
    bool there, ready, silent;
} process;

/* What is expected: who holds which place, and whether that is free. */
typedef struct model {
    process p[400];
    uint32_t n, holder[N];
    bool open[N];
} model;

static void come(sl_roster *r, model *m, uint32_t wanted) {
    uint32_t want = SL_ROSTER_NONE;
    for (uint32_t i = N; i > 0; i--)
        if (m->open[i - 1] && (wanted == SL_ROSTER_NONE || wanted == i - 1)) want = i - 1;
    assert_int_equal(sl_roster_hello(r, wanted, m->n), want);
    if (want == SL_ROSTER_NONE) return;
    m->p[m->n] = (process){.id = want, .there = true};
    m->holder[want] = m->n++;
    m->open[want] = false;
}

/* Something is said of a process, which may be gone long since. */
static void tell(sl_roster *r, uint32_t what, uint32_t incarnation, process *p) {
    uint32_t duties;
    switch (what) {
    case 0:
        assert_int_equal(sl_roster_ready(r, p->id, incarnation), p->there && !p->ready);
        p->ready |= p->there;
        return;
    case 1:
        assert_int_equal(sl_roster_silent(r, p->id, incarnation),
                         p->there && p->ready && !p->silent);
        p->silent |= p->there && p->ready;
        return;
    case 2:
        assert_int_equal(sl_roster_heard(r, p->id, incarnation), p->there && p->silent);
        p->silent &= !p->there;
        return;
    default:
        assert_int_equal(sl_roster_ended(r, p->id, incarnation, &duties), p->there);
        assert_int_equal(duties != 0, p->there && p->ready);
        p->there = false;
    }
}

static void compare(const sl_roster *r, const model *m) {
    uint32_t came = 0, ready = 0;
    for (uint32_t i = 0; i < N; i++) {
        const process *h = m->holder[i] == SL_ROSTER_NONE ? NULL : &m->p[m->holder[i]];
        bool there = h && h->there;
        came += !m->open[i];
        ready += !m->open[i] && h->ready;
        assert_int_equal(sl_roster_serves(r, i), there && h->ready);
        assert_int_equal(r->worker[i].state == SL_ROSTER_ABSENT, m->open[i]);
        assert_int_equal(r->worker[i].state == SL_ROSTER_SUSPECT, there && h->silent);
    }
    assert_int_equal(r->n_came, came);
    assert_int_equal(r->n_ready, ready);
}

static void drawn_sequences(void **state) {
    (void)state;
    uint64_t rng = 11, returns = 0;
    for (int draw = 0; draw < 50; draw++) {
        static model m;
        sl_roster r = roster_of(N, SL_ROLE_EXPERT);
        m.n = 0;
        for (uint32_t i = 0; i < N; i++) {
            m.holder[i] = SL_ROSTER_NONE;
            m.open[i] = true;
        }
        for (int i = 0; i < 400; i++) {
            uint32_t what = (uint32_t)sl_rng_below(&rng, 6), id = (uint32_t)sl_rng_below(&rng, N);
            uint32_t who = m.n ? (uint32_t)sl_rng_below(&rng, m.n) : 0;
            if (what < 4 && m.n) tell(&r, what, who, &m.p[who]);
            if (what == 4) come(&r, &m, sl_rng_below(&rng, 3) ? SL_ROSTER_NONE : id);
            if (what == 5 && r.worker[id].state == SL_ROSTER_GONE) {
                sl_roster_reopen(&r, id);
                m.open[id] = true;
                returns++;
            }
            compare(&r, &m);
        }
        sl_roster_free(&r);
    }
    assert_true(returns > 200);
}

/* ---- memory ---- */

static void out_of_memory(void **state) {
    (void)state;
    sl_roster r;
    sl_err err;
    sl_mem_fail_at(1);
    assert_int_equal(sl_roster_create(3, &r, &err), SL_ERR_NOMEM);
    sl_mem_fail_at(0);
    sl_roster_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places),
        cmocka_unit_test(a_life),
        cmocka_unit_test(duties_follow_from_roles),
        cmocka_unit_test(who_comes_back_is_another_one),
        cmocka_unit_test(some_never_come),
        cmocka_unit_test(drawn_sequences),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
