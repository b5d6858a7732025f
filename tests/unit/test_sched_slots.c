/* Slots of an attention worker: who takes which, who has work, and what parks or ends a life. */
#include "sched/slots.h"

#include "base/mem.h"
#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static uint64_t only_seed; /* argument: replay this one */

static sl_slots make(uint32_t lanes, uint32_t each) {
    sl_slots t;
    sl_err err;
    if (sl_slots_create(lanes, each, &t, &err) != SL_OK) fail_msg("%s", err.msg);
    return t;
}

static void is_at(const sl_slots *t, const sl_life *l, uint32_t lane, uint32_t slot) {
    assert_non_null(l);
    assert_int_equal(sl_slots_lane(t, l), lane);
    assert_int_equal(sl_slots_index(t, l), slot);
}

static void the_emptiest_lane_takes_the_next(void **state) {
    (void)state;
    sl_slots t = make(2, 2);
    sl_life *a = sl_slots_take(&t, 1, 1, 1), *b = sl_slots_take(&t, 1, 1, 1);
    is_at(&t, a, 0, 1); /* after the first, where none was found yet */
    is_at(&t, b, 1, 1);
    is_at(&t, sl_slots_take(&t, 1, 1, 1), 0, 0);
    is_at(&t, sl_slots_take(&t, 1, 1, 1), 1, 0);
    assert_null(sl_slots_take(&t, 1, 1, 1));
    sl_slots_release(&t, b);
    is_at(&t, sl_slots_take(&t, 1, 1, 1), 1, 1);
    sl_slots_release(&t, a);
    sl_slots_release(&t, a); /* free already */
    assert_int_equal(t.n_used[0], 1);
    is_at(&t, sl_slots_take(&t, 1, 1, 1), 0, 1);
    sl_slots_free(&t);
}

static void a_life_begins_where_it_was_left(void **state) {
    (void)state;
    sl_slots t = make(1, 4);
    const sl_life *a = sl_slots_take(&t, 40, 7, 2), *b = sl_slots_take(&t, 1, 1, 1);
    assert_true(a->used && !a->ends && !a->in_step && !a->samples);
    assert_int_equal(a->given, 40);
    assert_int_equal(a->tokens, 40);
    assert_int_equal(a->max_new, 7);
    assert_int_equal(a->pages, 2);
    assert_int_equal(a->done, 0);
    assert_int_equal(a->acked, 0);
    assert_true(sl_life_prefills(a));
    assert_int_equal(sl_life_max_pages(a), 2); /* the last token drawn takes no position */
    assert_true(a->arrival < b->arrival && a->generation != b->generation && a->generation > 0);
    sl_slots_free(&t);
}

static void generations_fit_a_tag(void **state) {
    (void)state;
    sl_slots t = make(1, 2);
    t.last_generation = 0xFFFFFFEu;
    assert_int_equal(sl_slots_take(&t, 1, 1, 1)->generation, 0xFFFFFFFu);
    assert_int_equal(sl_slots_take(&t, 1, 1, 1)->generation, 1);
    sl_slots_free(&t);
}

static void pages_and_the_coordinator_park_it(void **state) {
    (void)state;
    sl_slots t = make(1, 1);
    sl_life *l = sl_slots_take(&t, 30, 100, 1);
    assert_int_equal(sl_life_room(l), SL_KV_PAGE_TOKENS);
    sl_life_advance(l, 30);
    assert_false(sl_life_prefills(l));
    assert_int_equal(sl_life_room(l), 2);
    for (int i = 0; i < 2; i++) {
        assert_false(sl_life_append(l));
        sl_life_advance(l, 1);
    }
    assert_int_equal(sl_life_room(l), 0); /* no page */
    assert_false(sl_slots_have_work(&t, 0));
    l->pages = 4;
    assert_int_equal(sl_life_room(l), 3 * SL_KV_PAGE_TOKENS);
    while (sl_life_generated(l) < SL_MAX_AHEAD) {
        assert_true(sl_slots_have_work(&t, 0));
        assert_false(sl_life_append(l));
        sl_life_advance(l, 1);
    }
    assert_false(sl_life_has_work(l)); /* so many that nobody has seen */
    assert_false(sl_slots_will_stay(&t, 0));
    sl_life_ack(l, 2);
    sl_life_ack(l, 1); /* came late */
    assert_int_equal(l->acked, 2);
    assert_true(sl_life_has_work(l) && sl_slots_will_stay(&t, 0));
    sl_slots_free(&t);
}

static void who_stays_is_known_before_tokens_are_drawn(void **state) {
    (void)state;
    sl_slots t = make(2, 2);
    sl_life *l = sl_slots_take(&t, 5, 2, 1);
    assert_true(sl_slots_will_stay(&t, 0));
    assert_false(sl_slots_will_stay(&t, 1));
    l->in_step = true; /* a chunk of its prompt */
    assert_true(sl_slots_will_stay(&t, 0));
    l->samples = true; /* the rest of it: the first of two tokens */
    assert_true(sl_slots_will_stay(&t, 0));
    sl_life_append(l); /* the second one is being drawn */
    assert_false(sl_slots_will_stay(&t, 0));
    l->in_step = false;
    assert_true(sl_slots_will_stay(&t, 0));
    assert_true(sl_life_append(l));
    assert_false(sl_slots_will_stay(&t, 0));
    sl_slots_free(&t);
}

static void a_life_ends_with_its_step(void **state) {
    (void)state;
    sl_slots t = make(1, 2);
    sl_life *a = sl_slots_take(&t, 5, 2, 1), *b = sl_slots_take(&t, 5, 2, 1);
    b->in_step = true;
    assert_true(sl_life_end(a));
    assert_false(sl_life_end(b));
    assert_false(sl_life_has_work(a) || sl_life_has_work(b) || sl_slots_will_stay(&t, 0));
    assert_true(a->used && b->used); /* until the driver lets them go */
    sl_slots_free(&t);
}

static void prompts_under_way_are_counted(void **state) {
    (void)state;
    sl_slots t = make(2, 2);
    uint64_t rows = 1, done = 1;
    sl_slots_prompts(&t, &rows, &done);
    assert_true(rows == 0 && done == 0);
    sl_life *a = sl_slots_take(&t, 40, 7, 2), *b = sl_slots_take(&t, 10, 7, 2);
    sl_life_advance(a, 32);
    sl_slots_prompts(&t, &rows, &done);
    assert_true(rows == 50 && done == 32);
    sl_life_advance(b, 10); /* a prompt that is through counts no more */
    sl_slots_prompts(&t, &rows, &done);
    assert_true(rows == 40 && done == 32);
    a->ends = true;
    sl_slots_prompts(&t, &rows, &done);
    assert_true(rows == 0 && done == 0);
    sl_slots_free(&t);
}

static void without_memory(void **state) {
    (void)state;
    sl_err err;
    sl_slots t;
    sl_mem_fail_at(1);
    assert_int_equal(sl_slots_create(3, 5, &t, &err), SL_ERR_NOMEM);
    sl_mem_fail_at(0);
    sl_slots_free(&t);
}

/* Requests come and go: counts are right, lanes differ by no more than what has left, a slot is
 * never given twice, and who came first is the oldest. */
static void drawn_crowds(void **state) {
    (void)state;
    for (uint64_t seed = only_seed ? only_seed : 1; seed <= (only_seed ? only_seed : 50); seed++) {
        uint64_t rng = seed, newest = 0;
        uint32_t lanes = 1 + (uint32_t)sl_rng_below(&rng, 4), n = 0;
        uint32_t each = 1 + (uint32_t)sl_rng_below(&rng, 6);
        sl_slots t = make(lanes, each);
        for (int i = 0; i < 300; i++) {
            if (sl_rng_below(&rng, 2)) {
                sl_life before[24];
                uint32_t used[4], least = UINT32_MAX;
                memcpy(before, t.life, (size_t)lanes * each * sizeof *before);
                memcpy(used, t.n_used, lanes * sizeof *used);
                for (uint32_t l = 0; l < lanes; l++) least = SL_MIN(least, used[l]);
                sl_life *l = sl_slots_take(&t, 1 + (uint32_t)sl_rng_below(&rng, 99), 9, 1);
                assert_int_equal(l != NULL, n < lanes * each);
                if (!l) continue;
                n++;
                assert_false(before[l - t.life].used);
                assert_int_equal(used[sl_slots_lane(&t, l)], least);
                assert_true(l->arrival > newest);
                newest = l->arrival;
            } else {
                sl_life *l = &t.life[sl_rng_below(&rng, lanes * each)];
                n -= l->used;
                sl_slots_release(&t, l);
            }
            uint32_t sum = 0, held = 0;
            for (uint32_t l = 0; l < lanes; l++) sum += t.n_used[l];
            for (uint32_t l = 0; l < lanes * each; l++) held += t.life[l].used;
            if (sum != n || held != n) fail_msg("seed %llu", (unsigned long long)seed);
        }
        sl_slots_free(&t);
    }
}

int main(int argc, char **argv) {
    if (argc > 1) only_seed = strtoull(argv[1], NULL, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_emptiest_lane_takes_the_next),
        cmocka_unit_test(a_life_begins_where_it_was_left),
        cmocka_unit_test(generations_fit_a_tag),
        cmocka_unit_test(pages_and_the_coordinator_park_it),
        cmocka_unit_test(who_stays_is_known_before_tokens_are_drawn),
        cmocka_unit_test(a_life_ends_with_its_step),
        cmocka_unit_test(prompts_under_way_are_counted),
        cmocka_unit_test(without_memory),
        cmocka_unit_test(drawn_crowds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
