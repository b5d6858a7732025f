/* Requests that kill workers: records of losses by hand, suspects in the books one by one, and
 * drawn deployments in which some requests crash whatever worker computes them: these end, the
 * others are all answered, and each suspect runs alone. */
#include "sched/suspect.h"

#include "base/mem.h"
#include "base/rng.h"
#include "sched/admit.h"
#include "spec/kv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

/* ---- records ---- */

static void beside(sl_suspect *s, uint64_t number, bool alone, bool experts) {
    sl_suspect_beside(
        s, (sl_suspect_loss){.number = number, .alone = alone, .heard = true, .experts = experts});
}

static void two_crashes_make_a_suspect(void **state) {
    (void)state;
    sl_suspect s = {0};
    beside(&s, 1, false, false);
    assert_int_equal(sl_suspect_crashed(&s, 1, 5), SL_SUSPECT_FREE);
    assert_int_equal(sl_suspect_crashed(&s, 1, 5), SL_SUSPECT_FREE); /* the same one */
    assert_int_equal(sl_suspect_crashed(&s, 2, 5), SL_SUSPECT_FREE); /* it was not there */
    beside(&s, 3, false, false);
    assert_int_equal(sl_suspect_crashes(&s), 1); /* a kill, for all that is known */
    beside(&s, 4, true, false);
    assert_int_equal(sl_suspect_crashed(&s, 4, 7), SL_SUSPECT_HOLD); /* alone by chance */
    assert_true(s.held && !s.everywhere && s.goal == 7 + SL_SUSPECT_TOKENS);
    beside(&s, 5, true, false);
    assert_int_equal(sl_suspect_crashed(&s, 5, 7), SL_SUSPECT_END);
}

/* The worker may have crashed before the suspect started. */
static void who_gave_no_sign_proves_little(void **state) {
    (void)state;
    sl_suspect s = {0};
    for (uint64_t i = 1; i <= 2; i++) {
        beside(&s, i, false, true);
        sl_suspect_crashed(&s, i, 0);
    }
    sl_suspect_beside(&s, (sl_suspect_loss){.number = 3, .alone = true});
    assert_int_equal(sl_suspect_crashed(&s, 3, 0), SL_SUSPECT_HOLD);
    sl_suspect heard = s;
    beside(&heard, 4, true, true);
    assert_int_equal(sl_suspect_crashed(&heard, 4, 0), SL_SUSPECT_END);
    beside(&s, 4, false, true); /* beside others */
    assert_int_equal(sl_suspect_crashed(&s, 4, 0), SL_SUSPECT_HOLD);
    sl_suspect_beside(&s, (sl_suspect_loss){.number = 5, .alone = true});
    assert_int_equal(sl_suspect_crashed(&s, 5, 0), SL_SUSPECT_END); /* twice is no chance */
}

static void further_than_ever_clears(void **state) {
    (void)state;
    sl_suspect s = {0};
    beside(&s, 1, false, true);
    beside(&s, 2, false, false);
    assert_int_equal(sl_suspect_crashed(&s, 2, 9), SL_SUSPECT_FREE);
    assert_int_equal(sl_suspect_crashed(&s, 1, 3), SL_SUSPECT_HOLD); /* heard of late */
    assert_true(s.everywhere);
    beside(&s, 3, false, false); /* beside others once more: no proof */
    assert_int_equal(sl_suspect_crashed(&s, 3, 8), SL_SUSPECT_HOLD);
    assert_false(sl_suspect_drawn(&s, 8 + SL_SUSPECT_TOKENS - 1));
    assert_true(sl_suspect_drawn(&s, 8 + SL_SUSPECT_TOKENS));
    assert_true(!s.held && s.n == 0);
    assert_false(sl_suspect_drawn(&s, 100));
}

static void a_culprit_explains(void **state) {
    (void)state;
    sl_suspect s = {0}, other = {0}, culprit = {0};
    for (uint64_t i = 1; i <= 4; i++) {
        beside(&s, i, false, false);
        if (i < 3) beside(&culprit, i, false, false);
        if (i > 1) beside(&other, i, false, false);
        if (i < 3) sl_suspect_crashed(&culprit, i, 0);
        sl_suspect_crashed(&s, i, 0);
        sl_suspect_crashed(&other, i, 0);
    }
    assert_true(s.held && other.held);
    assert_false(sl_suspect_explained(&s, &culprit)); /* two are left */
    assert_int_equal(sl_suspect_crashes(&s), 2);
    assert_false(sl_suspect_explained(&other, &culprit));
    culprit = (sl_suspect){0};
    beside(&culprit, 3, false, false);
    sl_suspect_crashed(&culprit, 3, 0);
    assert_true(sl_suspect_explained(&s, &culprit));
    assert_true(sl_suspect_explained(&other, &culprit));
    assert_true(!s.held && s.n == 1);
    beside(&s, 9, false, false);
    assert_int_equal(sl_suspect_crashed(&s, 9, 0), SL_SUSPECT_HOLD); /* with what was left */
}

/* Kills are forgotten first. */
static void many_losses(void **state) {
    (void)state;
    sl_suspect s = {0};
    beside(&s, 1, false, false);
    sl_suspect_crashed(&s, 1, 0);
    for (uint64_t i = 2; i < 40; i++) beside(&s, i, false, false);
    assert_int_equal(sl_suspect_crashed(&s, 3, 0), SL_SUSPECT_FREE);
    assert_int_equal(sl_suspect_crashes(&s), 1);
    assert_int_equal(sl_suspect_crashed(&s, 39, 0), SL_SUSPECT_HOLD);
    for (uint64_t i = 40; i < 60; i++) {
        beside(&s, i, false, false);
        sl_suspect_crashed(&s, i, 0);
    }
    assert_int_equal(s.n, SL_SUSPECT_LOSSES);
}

/* ---- in the books ---- */

static sl_admit a;

static void books(uint32_t workers) {
    sl_err err;
    const sl_admit_shape shape = {.n_workers = workers, .max_running = 4, .max_queue = UINT32_MAX};
    assert_int_equal(sl_admit_create(&shape, &a, &err), SL_OK);
    for (uint32_t w = 0; w < workers; w++) {
        assert_int_equal(sl_admit_add_pages(&a, w, 8, 0, &err), SL_OK);
        sl_admit_open(&a, w);
    }
}

static uint32_t submit(void) {
    sl_err err;
    uint32_t request;
    assert_int_equal(sl_admit_submit(&a, 1, 40, 0, &request, &err), SL_OK);
    return request;
}

static void nothing(void) {
    sl_admit_decision d;
    assert_false(sl_admit_next(&a, 0, &d));
}

static void decides(sl_admit_kind kind, uint32_t request, uint32_t worker) {
    sl_admit_decision d;
    assert_true(sl_admit_next(&a, 0, &d));
    assert_int_equal(d.kind, kind);
    assert_int_equal(d.request, request);
    assert_int_equal(d.worker, worker);
}

static void fill(uint32_t *r, uint32_t n, uint32_t workers) {
    for (uint32_t i = 0; i < n; i++) r[i] = submit();
    for (uint32_t i = 0; i < n; i++) decides(SL_ADMIT_START, r[i], i % workers);
}

static void lose(uint32_t worker) {
    sl_admit_close(&a, worker);
    while (a.worker[worker].running.n) sl_admit_gave_way(&a, a.worker[worker].running.first);
}

/* The other worker goes on, and takes who comes. */
static void alone_at_a_worker(void **state) {
    (void)state;
    uint32_t r[4], fresh;
    books(2);
    fill(r, 4, 2);
    lose(0);
    sl_admit_suspect(&a, r[0], false);
    sl_admit_suspect(&a, r[2], false);
    assert_true(a.held.n == 2 && a.waiting.n == 0);
    nothing(); /* worker 0 comes back; until then worker 1, which runs others, takes nobody */
    fresh = submit();
    nothing();
    sl_admit_open(&a, 0);
    decides(SL_ADMIT_START, r[2], 0); /* the newest */
    assert_true(sl_admit_is_alone(&a, r[2], 0) && !sl_admit_is_alone(&a, r[2], 1));
    decides(SL_ADMIT_START, fresh, 1);
    nothing();
    sl_admit_end(&a, r[2]);
    decides(SL_ADMIT_START, r[0], 0);
    uint32_t next = submit();
    decides(SL_ADMIT_START, next, 1);
    sl_admit_clear(&a, r[0]); /* runs on, with others */
    next = submit();
    decides(SL_ADMIT_START, next, 0);
    assert_int_equal(a.n_suspects, 0);
    nothing();
    sl_admit_free(&a);
}

/* Nobody is to come: the worker that runs least is emptied. */
static void a_worker_is_emptied(void **state) {
    (void)state;
    uint32_t r[3], late;
    books(2);
    fill(r, 3, 2);
    sl_admit_suspect(&a, r[0], false);
    decides(SL_ADMIT_PREEMPT, r[0], 0); /* it runs beside r[2] */
    late = submit();
    sl_admit_gave_way(&a, r[0]);
    decides(SL_ADMIT_PREEMPT, r[2], 0);
    decides(SL_ADMIT_START, late, 1); /* the first of two that run one each */
    sl_admit_gave_way(&a, r[2]);
    decides(SL_ADMIT_START, r[0], 0);
    decides(SL_ADMIT_START, r[2], 1);
    nothing();
    lose(0); /* a kill: it is tried again */
    nothing();
    sl_admit_open(&a, 0);
    decides(SL_ADMIT_START, r[0], 0);
    sl_admit_clear(&a, r[0]);
    nothing();
    sl_admit_free(&a);
}

static void alone_everywhere(void **state) {
    (void)state;
    uint32_t r[4];
    books(2);
    fill(r, 4, 2);
    sl_admit_suspect(&a, r[0], true);
    sl_admit_suspect(&a, r[1], true);
    decides(SL_ADMIT_PREEMPT, r[0], 0);
    decides(SL_ADMIT_PREEMPT, r[1], 1);
    nothing();
    sl_admit_gave_way(&a, r[1]);
    decides(SL_ADMIT_PREEMPT, r[2], 0);
    decides(SL_ADMIT_PREEMPT, r[3], 1);
    for (uint32_t i = 0; i < 4; i++) {
        nothing();
        if (i != 1) sl_admit_gave_way(&a, r[i]);
    }
    decides(SL_ADMIT_START, r[1], 0);
    assert_true(sl_admit_is_alone(&a, r[1], 1));
    nothing();
    sl_admit_clear(&a, r[0]); /* explained: it waits its turn */
    nothing();
    sl_admit_clear(&a, r[1]);
    decides(SL_ADMIT_START, r[0], 1);
    sl_admit_end(&a, r[1]);
    decides(SL_ADMIT_START, r[2], 0);
    decides(SL_ADMIT_START, r[3], 0);
    nothing();
    sl_admit_free(&a);
}

/* What ran alone at its worker has to be alone everywhere. */
static void a_trial_grows(void **state) {
    (void)state;
    uint32_t r[2];
    books(2);
    fill(r, 2, 2);
    sl_admit_suspect(&a, r[0], false);
    decides(SL_ADMIT_PREEMPT, r[0], 0); /* who runs is never taken to be alone */
    sl_admit_gave_way(&a, r[0]);
    decides(SL_ADMIT_START, r[0], 0);
    sl_admit_suspect(&a, r[0], true);
    decides(SL_ADMIT_PREEMPT, r[0], 0);
    sl_admit_gave_way(&a, r[0]);
    decides(SL_ADMIT_PREEMPT, r[1], 1);
    assert_true(sl_admit_cancel(&a, r[1]) == false);
    nothing();
    sl_admit_end(&a, r[1]);
    decides(SL_ADMIT_START, r[0], 0);
    sl_admit_end(&a, r[0]);
    assert_int_equal(a.n_suspects, 0);
    nothing();
    sl_admit_free(&a);
}

/* ---- drawn deployments ---- */

#define MOST_WORKERS  4u
#define MOST_REQUESTS 12u
#define TURNS         60000u

typedef struct asked {
    uint32_t id, most, fatal; /* fatal: so many tokens, and it crashes; UINT32_MAX: never */
    bool open, ended, by_us;
    sl_suspect suspect;
} asked;

typedef struct drawn {
    uint64_t rng, losses, crashed[MOST_WORKERS]; /* the loss that is to be heard of as a crash */
    uint32_t n_workers, n, trials, crashes;
    bool together; /* workers have experts: all rows come to all */
    asked r[MOST_REQUESTS];
} drawn;

static uint32_t below(drawn *d, uint32_t n) {
    return (uint32_t)sl_rng_below(&d->rng, n);
}

static bool runs(const asked *q) {
    return q->open && !q->ended && a.request[q->id].state >= SL_ADMIT_RUNNING;
}

static void worker_is_lost(drawn *d, uint32_t w, bool crash) {
    sl_suspect_loss loss = {.number = ++d->losses, .experts = d->together};
    for (uint32_t i = 0; i < d->n; i++) {
        asked *q = &d->r[i];
        if (!runs(q) || (!d->together && a.request[q->id].worker != w)) continue;
        loss.alone = sl_admit_is_alone(&a, q->id, w);
        if (loss.alone)
            for (uint32_t k = 0; k < d->n; k++)
                assert_true(k == i || !runs(&d->r[k]) ||
                            (!d->together && a.request[d->r[k].id].worker != w));
        sl_suspect_beside(&q->suspect, loss);
    }
    d->crashes += crash;
    if (crash) d->crashed[w] = loss.number;
    sl_admit_close(&a, w);
    for (uint32_t i = 0; i < d->n; i++) {
        asked *q = &d->r[i];
        if (!runs(q) || a.request[q->id].worker != w) continue;
        if (a.request[q->id].state == SL_ADMIT_CANCELLING) {
            sl_admit_end(&a, q->id);
            q->ended = true;
        } else {
            sl_admit_gave_way(&a, q->id);
        }
    }
}

static void crash_is_heard_of(drawn *d, uint32_t w) {
    for (uint32_t i = 0; i < d->n; i++) {
        asked *q = &d->r[i];
        if (!q->open || q->ended) continue;
        sl_suspect_verdict v =
            sl_suspect_crashed(&q->suspect, d->crashed[w], a.request[q->id].drawn);
        if (v == SL_SUSPECT_HOLD) sl_admit_suspect(&a, q->id, q->suspect.everywhere);
        if (v != SL_SUSPECT_END) continue;
        const sl_suspect culprit = q->suspect;
        assert_true(q->fatal != UINT32_MAX);
        sl_admit_end(&a, q->id);
        q->ended = q->by_us = true;
        for (uint32_t k = 0; k < d->n; k++)
            if (d->r[k].open && !d->r[k].ended && sl_suspect_explained(&d->r[k].suspect, &culprit))
                sl_admit_clear(&a, d->r[k].id);
    }
    d->crashed[w] = 0;
}

static void a_token(drawn *d, asked *q) {
    sl_admit_request *r = &a.request[q->id];
    if (r->state == SL_ADMIT_RUNNING && r->drawn >= q->fatal) {
        worker_is_lost(d, d->together ? below(d, d->n_workers) : r->worker, true);
        return;
    }
    if (r->state != SL_ADMIT_RUNNING) { /* its worker ends it, as it was told */
        if (r->state == SL_ADMIT_PREEMPTING) sl_admit_gave_way(&a, q->id);
        return;
    }
    sl_admit_token(&a, q->id, 0);
    if (a.alone == q->id && sl_suspect_drawn(&q->suspect, r->drawn)) sl_admit_clear(&a, q->id);
    if (r->drawn < q->most) return;
    sl_admit_end(&a, q->id);
    q->ended = true;
}

static void decide(drawn *d) {
    sl_admit_decision it;
    while (sl_admit_next(&a, 0, &it)) {
        d->trials += it.kind == SL_ADMIT_START && a.request[it.request].suspect;
        if (a.alone == SL_ADMIT_NONE) continue;
        for (uint32_t i = 0; i < d->n; i++) {
            const asked *q = &d->r[i];
            if (q->id != a.alone && runs(q))
                assert_false(sl_admit_is_alone(&a, a.alone, a.request[q->id].worker));
        }
    }
}

static bool all_ended(const drawn *d) {
    for (uint32_t i = 0; i < d->n; i++)
        if (!d->r[i].ended) return false;
    return true;
}

static void turn(drawn *d) {
    asked *q = &d->r[below(d, d->n)];
    uint32_t w = below(d, d->n_workers);
    sl_err err;
    if (!q->open && below(d, 4) == 0) {
        assert_int_equal(sl_admit_submit(&a, 1, q->most, 0, &q->id, &err), SL_OK);
        q->open = true;
    } else if (runs(q)) {
        a_token(d, q);
    }
    if (d->crashed[w] && below(d, 3) == 0) crash_is_heard_of(d, w);
    if (!d->crashed[w] && !a.worker[w].open && below(d, 8) == 0) sl_admit_open(&a, w);
    if (a.worker[w].open && below(d, 400) == 0) worker_is_lost(d, w, false); /* a kill */
    decide(d);
}

static void poison_is_found(void **state) {
    (void)state;
    uint64_t trials = 0, crashes = 0, culprits = 0;
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        drawn d = {.rng = seed * 77 + 5};
        d.n_workers = 1 + below(&d, MOST_WORKERS);
        d.n = 1 + below(&d, MOST_REQUESTS);
        d.together = below(&d, 2);
        books(d.n_workers);
        for (uint32_t i = 0; i < d.n; i++) {
            uint32_t most = 1 + below(&d, 100);
            bool poison = below(&d, 8) == 0;
            d.r[i] = (asked){
                .id = SL_ADMIT_NONE, .most = most, .fatal = poison ? below(&d, most) : UINT32_MAX};
        }
        uint32_t turns = 0;
        while (!all_ended(&d) && turns++ < TURNS) turn(&d);
        if (!all_ended(&d)) fail_msg("seed %d does not end", (int)seed);
        for (uint32_t i = 0; i < d.n; i++) {
            if (d.r[i].by_us != (d.r[i].fatal != UINT32_MAX)) fail_msg("seed %d", (int)seed);
            culprits += d.r[i].by_us;
        }
        assert_true(a.n_running == 0 && a.held.n == 0 && a.n_suspects == 0);
        trials += d.trials;
        crashes += d.crashes;
        sl_admit_free(&a);
    }
    printf("3000 seeds: %llu culprits, %llu crashes, %llu trials\n", (unsigned long long)culprits,
           (unsigned long long)crashes, (unsigned long long)trials);
    assert_true(culprits > 0 && crashes > culprits);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_crashes_make_a_suspect),
        cmocka_unit_test(who_gave_no_sign_proves_little),
        cmocka_unit_test(further_than_ever_clears),
        cmocka_unit_test(a_culprit_explains),
        cmocka_unit_test(many_losses),
        cmocka_unit_test(alone_at_a_worker),
        cmocka_unit_test(a_worker_is_emptied),
        cmocka_unit_test(alone_everywhere),
        cmocka_unit_test(a_trial_grows),
        cmocka_unit_test(poison_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
