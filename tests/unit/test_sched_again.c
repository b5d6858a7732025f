/* What a lane has with the experts, and what of it goes again: stories by hand, then drawn ones in
 * which expert workers are lost at any moment and no group is ever counted twice or not at all. */
#include "base/mem.h"
#include "base/rng.h"
#include "sched/again.h"
#include "sched/calls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#define OK(call) assert_int_equal((call), SL_OK)
#define WORKERS  3u

static sl_err err;
static uint32_t n_dropped;

static void drop(void *ctx, uint32_t call) {
    (void)ctx, (void)call;
    n_dropped++;
}

static sl_again fresh(uint32_t chunks) {
    sl_again a;
    OK(sl_again_create(chunks, WORKERS, drop, NULL, &a, &err));
    n_dropped = 0;
    return a;
}

/* All groups leave, to workers who live. */
static void send_all(sl_again *a) {
    for (uint32_t g = 0; g < a->n_groups; g++) sl_again_sent(a, g, false, 1);
}

/* An attempt of these workers; returns its number. */
static uint64_t attempt(sl_again *a, uint32_t group, const uint32_t *workers, uint32_t n) {
    assert_int_equal(sl_again_next(a), group);
    uint64_t number = sl_again_begin(a, group);
    for (uint32_t i = 0; i < n; i++) OK(sl_again_with(a, group, workers[i], &err));
    assert_int_equal(sl_again_end(a, group), n == 0);
    return number;
}

static sl_again_verdict answered(sl_again *a, uint32_t worker, uint64_t number) {
    uint32_t call;
    return sl_again_answered(a, worker, number, &call);
}

static void without_losses_owners_answer(void **state) {
    (void)state;
    sl_again a = fresh(2);
    for (int layer = 0; layer < 2; layer++) {
        send_all(&a);
        assert_int_equal(sl_again_next(&a), SL_AGAIN_NONE);
        for (uint32_t g = 0; g < a.n_groups; g++) {
            assert_int_equal(sl_again_replied(&a, g), SL_AGAIN_WHOLE);
            assert_int_equal(sl_again_replied(&a, g), SL_AGAIN_WRONG); /* twice */
        }
        sl_again_close(&a);
    }
    assert_int_equal(answered(&a, 0, 1), SL_AGAIN_WRONG);
    sl_again_free(&a);
}

static void what_a_lost_owner_owes_goes_to_others(void **state) {
    (void)state;
    sl_again a = fresh(1);
    send_all(&a);
    assert_int_equal(sl_again_replied(&a, 0), SL_AGAIN_WHOLE);
    sl_again_lost(&a, 0); /* it has answered */
    assert_int_equal(sl_again_next(&a), SL_AGAIN_NONE);
    sl_again_lost(&a, 1);
    uint64_t first = attempt(&a, 1, (uint32_t[]){0, 2}, 2);
    assert_int_equal(sl_again_replied(&a, 1), SL_AGAIN_WRONG);
    assert_int_equal(answered(&a, 2, first + 1), SL_AGAIN_WRONG);
    assert_int_equal(answered(&a, 1, first), SL_AGAIN_WRONG);
    assert_int_equal(answered(&a, 2, first), SL_AGAIN_KEPT);
    assert_int_equal(answered(&a, 2, first), SL_AGAIN_WRONG);
    assert_int_equal(answered(&a, 0, first), SL_AGAIN_WHOLE);
    assert_int_equal(sl_again_replied(&a, 2), SL_AGAIN_WHOLE);
    assert_int_equal(n_dropped, 0);
    sl_again_close(&a);
    assert_int_equal(n_dropped, 2);
    sl_again_free(&a);
}

static void a_group_without_rows_is_here_at_once(void **state) {
    (void)state;
    sl_again a = fresh(1);
    sl_again_sent(&a, 0, false, 0);
    sl_again_sent(&a, 1, true, 0); /* lost before: nothing is asked of anybody */
    sl_again_sent(&a, 2, true, 1); /* lost while its rows were packed */
    sl_again_lost(&a, 0);
    attempt(&a, 0, NULL, 0);
    uint64_t number = attempt(&a, 2, (uint32_t[]){1}, 1);
    assert_int_equal(answered(&a, 1, number), SL_AGAIN_WHOLE);
    sl_again_close(&a);
    sl_again_free(&a);
}

/* Who stands in is lost, too: the attempt is void as a whole, as its parts are sums of other
 * groupings than those of the next one. */
static void a_void_attempt_is_late(void **state) {
    (void)state;
    sl_again a = fresh(1);
    send_all(&a);
    sl_again_lost(&a, 0);
    uint64_t first = attempt(&a, 0, (uint32_t[]){1, 2}, 2);
    sl_again_lost(&a, 2);
    /* Worker 1 still owes its part: it gets no second message for this group before. */
    assert_int_equal(sl_again_next(&a), 2); /* worker 2's own */
    uint64_t second = attempt(&a, 2, (uint32_t[]){1}, 1);
    assert_int_equal(sl_again_next(&a), SL_AGAIN_NONE);
    assert_int_equal(answered(&a, 1, first), SL_AGAIN_LATE);
    uint64_t third = attempt(&a, 0, (uint32_t[]){1}, 1);
    assert_int_equal(answered(&a, 1, third), SL_AGAIN_WHOLE);
    assert_int_equal(answered(&a, 1, second), SL_AGAIN_WHOLE);
    assert_int_equal(sl_again_replied(&a, 1), SL_AGAIN_WHOLE);
    sl_again_close(&a);
    sl_again_free(&a);
}

static void what_came_of_a_void_attempt_is_dropped(void **state) {
    (void)state;
    sl_again a = fresh(1);
    send_all(&a);
    sl_again_lost(&a, 0);
    uint64_t first = attempt(&a, 0, (uint32_t[]){1, 2}, 2);
    assert_int_equal(answered(&a, 1, first), SL_AGAIN_KEPT);
    sl_again_lost(&a, 2);
    assert_int_equal(n_dropped, 1);
    assert_int_equal(answered(&a, 1, attempt(&a, 0, (uint32_t[]){1}, 1)), SL_AGAIN_WHOLE);
    sl_again_reset(&a);
    assert_int_equal(n_dropped, 2);
    sl_again_free(&a);
}

/* ---- done without, but alive ---- */

static void who_is_spared_may_answer_first(void **state) {
    (void)state;
    sl_again a = fresh(1);
    send_all(&a);
    sl_again_spare(&a, 0);
    assert_int_equal(sl_again_next(&a), 0);
    assert_int_equal(sl_again_replied(&a, 0), SL_AGAIN_WHOLE); /* before others were asked */
    assert_int_equal(sl_again_next(&a), SL_AGAIN_NONE);
    assert_int_equal(sl_again_replied(&a, 0), SL_AGAIN_WRONG);
    sl_again_spare(&a, 1);
    uint64_t number = attempt(&a, 1, (uint32_t[]){2}, 1);
    assert_int_equal(sl_again_replied(&a, 1), SL_AGAIN_WHOLE); /* before others answered */
    assert_int_equal(sl_again_replied(&a, 2), SL_AGAIN_WHOLE);
    sl_again_close(&a);
    assert_int_equal(answered(&a, 2, number), SL_AGAIN_LATE);
    assert_int_equal(answered(&a, 2, number), SL_AGAIN_WRONG);
    sl_again_free(&a);
}

/* A part of the attempt was here: it is another grouping than the owner's. */
static void a_part_gives_way_to_the_whole(void **state) {
    (void)state;
    sl_again a = fresh(1);
    send_all(&a);
    sl_again_spare(&a, 0);
    uint64_t number = attempt(&a, 0, (uint32_t[]){1, 2}, 2);
    assert_int_equal(answered(&a, 1, number), SL_AGAIN_KEPT);
    assert_true(sl_again_is_tried(&a, 0, number));
    assert_int_equal(sl_again_replied(&a, 0), SL_AGAIN_WHOLE);
    assert_false(sl_again_is_tried(&a, 0, number));
    assert_int_equal(n_dropped, 1);
    assert_int_equal(answered(&a, 2, number), SL_AGAIN_LATE);
    sl_again_reset(&a);
    assert_int_equal(n_dropped, 1);
    sl_again_free(&a);
}

static void who_is_spared_is_late(void **state) {
    (void)state;
    sl_again a = fresh(1);
    send_all(&a);
    sl_again_spare(&a, 0);
    sl_again_spare(&a, 1);
    assert_int_equal(answered(&a, 2, attempt(&a, 0, (uint32_t[]){2}, 1)), SL_AGAIN_WHOLE);
    assert_int_equal(answered(&a, 2, attempt(&a, 1, (uint32_t[]){2}, 1)), SL_AGAIN_WHOLE);
    assert_int_equal(sl_again_replied(&a, 2), SL_AGAIN_WHOLE);
    assert_true(sl_again_is_late(&a, 0));
    assert_int_equal(sl_again_replied(&a, 0), SL_AGAIN_LATE);
    sl_again_close(&a);
    sl_again_sent(&a, 0, true, 0);
    assert_true(sl_again_is_late(&a, 1)); /* of the layer before */
    assert_int_equal(sl_again_replied(&a, 1), SL_AGAIN_LATE);
    assert_int_equal(sl_again_replied(&a, 1), SL_AGAIN_WRONG);
    sl_again_free(&a);
}

/* Nothing more is asked of it, and nobody waits for what it owes. */
static void who_stands_in_and_is_spared_holds_nobody_up(void **state) {
    (void)state;
    sl_again a = fresh(1);
    send_all(&a);
    sl_again_lost(&a, 0);
    uint64_t first = attempt(&a, 0, (uint32_t[]){1}, 1);
    assert_int_equal(sl_again_replied(&a, 1), SL_AGAIN_WHOLE);
    sl_again_spare(&a, 1);
    uint64_t second = attempt(&a, 0, (uint32_t[]){2}, 1);
    assert_int_equal(answered(&a, 1, first), SL_AGAIN_LATE);
    assert_int_equal(answered(&a, 2, second), SL_AGAIN_WHOLE);
    sl_again_free(&a);
}

/* The device packs it; meanwhile its group is answered. */
static void an_attempt_that_was_not_sent_is_owed_by_nobody(void **state) {
    (void)state;
    sl_again a = fresh(1);
    send_all(&a);
    sl_again_spare(&a, 0);
    uint64_t number = attempt(&a, 0, (uint32_t[]){1, 2}, 2);
    assert_int_equal(sl_again_replied(&a, 0), SL_AGAIN_WHOLE);
    sl_again_withdraw(&a, number);
    assert_int_equal(answered(&a, 1, number), SL_AGAIN_WRONG);
    sl_again_lost(&a, 0);
    assert_int_equal(sl_again_next(&a), SL_AGAIN_NONE);
    sl_again_free(&a);
}

static void who_is_spared_and_then_lost_owes_nothing(void **state) {
    (void)state;
    sl_again a = fresh(1);
    send_all(&a);
    sl_again_spare(&a, 0);
    sl_again_lost(&a, 0);
    assert_int_equal(sl_again_replied(&a, 0), SL_AGAIN_WRONG);
    assert_int_equal(answered(&a, 1, attempt(&a, 0, (uint32_t[]){1}, 1)), SL_AGAIN_WHOLE);
    sl_again_free(&a);
}

/* ---- drawn ---- */

/* Messages on their way to a worker, whose group is `group`; attempt 0: its owner's. */
typedef struct letter {
    uint32_t worker, group;
    uint64_t attempt;
} letter;

typedef struct world {
    sl_again a;
    uint64_t rng;
    bool lost[WORKERS]; /* or spared: then its letters are still answered */
    letter post[64];
    uint32_t n_post, here[64]; /* here: times that a group became whole in this layer */
} world;

static uint32_t below(world *w, uint32_t n) {
    return (uint32_t)sl_rng_below(&w->rng, n);
}

static void post(world *w, uint32_t worker, uint32_t group, uint64_t number) {
    assert_true(w->n_post < SL_LEN(w->post));
    w->post[w->n_post++] = (letter){worker, group, number};
}

/* Some letter is answered. */
static void answer_one(world *w) {
    uint32_t i = below(w, w->n_post), call;
    letter l = w->post[i];
    w->post[i] = w->post[--w->n_post];
    sl_again_verdict v = l.attempt ? sl_again_answered(&w->a, l.worker, l.attempt, &call)
                                   : sl_again_replied(&w->a, l.group);
    assert_int_not_equal(v, SL_AGAIN_WRONG);
    if (l.attempt && v != SL_AGAIN_LATE) assert_int_equal(w->a.call[call].group, l.group);
    w->here[l.group] += v == SL_AGAIN_WHOLE;
}

static void lose_one(world *w) {
    uint32_t victim = below(w, WORKERS), left = 0, kept = 0;
    for (uint32_t i = 0; i < WORKERS; i++) left += !w->lost[i];
    if (left == 1 && !w->lost[victim]) return;
    bool spared = !w->lost[victim] && below(w, 2);
    w->lost[victim] = true;
    if (spared) {
        sl_again_spare(&w->a, victim);
        return;
    }
    for (uint32_t i = 0; i < w->n_post; i++)
        if (w->post[i].worker != victim) w->post[kept++] = w->post[i];
    w->n_post = kept;
    sl_again_lost(&w->a, victim);
}

static void ask_again(world *w) {
    uint32_t group = sl_again_next(&w->a), n = 0;
    if (group == SL_AGAIN_NONE) return;
    uint64_t number = sl_again_begin(&w->a, group);
    for (uint32_t i = 0; i < WORKERS; i++) {
        bool takes = !w->lost[i] && (below(w, 2) || (n == 0 && i + 1 == WORKERS));
        if (!takes) continue;
        for (uint32_t j = 0; j < w->n_post; j++) /* the credit of calls.h */
            assert_false(w->post[j].worker == i && w->post[j].group == group);
        OK(sl_again_with(&w->a, group, i, &err));
        post(w, i, group, number);
        n++;
    }
    if (sl_again_end(&w->a, group)) w->here[group]++; /* nobody has rows of it */
}

static void every_group_counts_once(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        world w = {.a = fresh(1 + seed % 3), .rng = seed};
        for (uint32_t layer = 0; layer < 4; layer++) {
            uint32_t next = 0, whole = 0;
            memset(w.here, 0, sizeof w.here);
            while (whole < w.a.n_groups) {
                uint32_t what = below(&w, 12), owner = next % WORKERS;
                if (what == 0) lose_one(&w);
                if (what < 5 && next < w.a.n_groups) {
                    bool rows = below(&w, 4);
                    sl_again_sent(&w.a, next, w.lost[owner], rows);
                    if (!w.lost[owner]) post(&w, owner, next, 0);
                    if (w.lost[owner] && !rows) w.here[next]++;
                    next++;
                } else if (what < 9 && w.n_post > 0) {
                    answer_one(&w);
                } else {
                    ask_again(&w);
                }
                whole = 0;
                for (uint32_t g = 0; g < w.a.n_groups; g++) {
                    assert_true(w.here[g] <= 1);
                    whole += w.here[g];
                }
            }
            sl_again_close(&w.a);
        }
        sl_again_reset(&w.a);
        sl_again_free(&w.a);
    }
}

/* ---- calls, where they arrive ---- */

static void calls_run_in_their_order_and_within_credit(void **state) {
    (void)state;
    uint32_t ids[] = {3, 7}, a, b, c;
    const sl_idset members = {.ids = ids, .n = 2};
    sl_calls calls;
    OK(sl_calls_create(&members, 2, &calls, &err));
    assert_int_equal(sl_calls_places(&calls), 4);
    assert_int_equal(sl_calls_begin(&calls), SL_CALLS_NONE);
    assert_int_equal(sl_calls_on_call(&calls, 4, &a, &err), SL_ERR_PROTOCOL);
    OK(sl_calls_on_call(&calls, 7, &a, &err));
    OK(sl_calls_on_call(&calls, 3, &b, &err));
    OK(sl_calls_on_call(&calls, 7, &c, &err));
    assert_int_equal(sl_calls_on_call(&calls, 7, &a, &err), SL_ERR_PROTOCOL);
    assert_non_null(strstr(err.msg, "2 calls here that are not answered"));
    assert_int_equal(sl_calls_begin(&calls), 2);
    assert_true(sl_calls_is_owed(&calls));
    assert_int_equal(sl_calls_drop(&calls, 7), c); /* gone: one waits, one runs */
    assert_int_equal(sl_calls_drop(&calls, 7), SL_CALLS_NONE);
    assert_false(sl_calls_is_owed(&calls));
    sl_calls_end(&calls);
    assert_int_equal(sl_calls_begin(&calls), b);
    assert_true(sl_calls_is_owed(&calls));
    sl_calls_end(&calls);
    assert_int_equal(sl_calls_begin(&calls), SL_CALLS_NONE);
    assert_int_equal(sl_calls_drop(&calls, 5), SL_CALLS_NONE);
    sl_calls_free(&calls);
    OK(sl_calls_create(&members, 0, &calls, &err)); /* one expert worker: nobody stands in */
    assert_int_equal(sl_calls_on_call(&calls, 3, &a, &err), SL_ERR_PROTOCOL);
    sl_calls_free(&calls);
}

static void memory_runs_out(void **state) {
    (void)state;
    bool made = false;
    for (uint64_t nth = 1; !made; nth++) {
        sl_again a;
        sl_mem_fail_at(nth);
        sl_status st = sl_again_create(2, WORKERS, drop, NULL, &a, &err);
        if (st == SL_OK) {
            sl_again_sent(&a, 0, true, 1);
            sl_again_begin(&a, 0);
            st = sl_again_with(&a, 0, 1, &err);
        }
        sl_mem_fail_at(0);
        sl_again_free(&a);
        made = st == SL_OK;
        if (!made) assert_int_equal(st, SL_ERR_NOMEM);
        if (made) assert_true(nth > 2);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_losses_owners_answer),
        cmocka_unit_test(what_a_lost_owner_owes_goes_to_others),
        cmocka_unit_test(a_group_without_rows_is_here_at_once),
        cmocka_unit_test(a_void_attempt_is_late),
        cmocka_unit_test(what_came_of_a_void_attempt_is_dropped),
        cmocka_unit_test(who_is_spared_may_answer_first),
        cmocka_unit_test(a_part_gives_way_to_the_whole),
        cmocka_unit_test(who_is_spared_is_late),
        cmocka_unit_test(who_stands_in_and_is_spared_holds_nobody_up),
        cmocka_unit_test(an_attempt_that_was_not_sent_is_owed_by_nobody),
        cmocka_unit_test(who_is_spared_and_then_lost_owes_nothing),
        cmocka_unit_test(every_group_counts_once),
        cmocka_unit_test(calls_run_in_their_order_and_within_credit),
        cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
