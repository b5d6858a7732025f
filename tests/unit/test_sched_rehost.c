/* Experts of a lost worker: whether they go to others or wait for its next process, what that is
 * expected to take, and what becomes of it. */
#include "recover_story.h"

static void what_a_change_takes(void **state) {
    (void)state;
    sl_rehost r = SL_REHOST_FIRST;
    assert_int_equal(sl_rehost_us(&r, 0), 10 * MS);
    assert_int_equal(sl_rehost_us(&r, 2000000000), SEC + 10 * MS);
    for (uint32_t i = 0; i < 40; i++) sl_rehost_learn(&r, 0, 30 * MS);
    assert_in_range(sl_rehost_us(&r, 0), 29 * MS, 30 * MS);
    sl_rehost_learn(&r, 1000000, 130 * MS); /* the first one counts in full */
    assert_in_range(sl_rehost_us(&r, 1000000), 129 * MS, 130 * MS);
    sl_rehost_learn(&r, 1000000, 10 * MS); /* sooner than one that maps nothing */
    assert_in_range(sl_rehost_us(&r, 1000000), 100 * MS, 110 * MS);
    assert_in_range(sl_rehost_us(&r, 2000000), 175 * MS, 185 * MS);
    r.byte_us = 1e9;
    assert_true(sl_rehost_us(&r, UINT64_MAX) == SL_REHOST_NEVER / 4);
}

static void which_is_sooner(void **state) {
    (void)state;
    assert_int_equal(sl_rehost_awaits_us(100 * MS, 100 * MS), 0);
    assert_int_equal(sl_rehost_awaits_us(100 * MS, 80 * MS), 0); /* not by a quarter */
    assert_int_equal(sl_rehost_awaits_us(100 * MS, 79 * MS), 100 * MS);
    assert_int_equal(sl_rehost_awaits_us(1000 * MS, 79 * MS), 158 * MS);
    assert_int_equal(sl_rehost_awaits_us(SL_REHOST_NEVER, 79 * MS), 158 * MS);
    assert_int_equal(sl_rehost_awaits_us(SL_REHOST_NEVER, SL_RECOVER_NEVER), 0);
    assert_int_equal(sl_rehost_awaits_us(0, 0), 0);
}

/* Two expert workers, whose starts take 200 ms; one is lost. */
static void lose_one(story *s, uint64_t rehost_us, uint64_t awaits_us) {
    *s = begin(4, two_and_two);
    serve(s);
    sl_recover_measured(&s->r, 200 * MS);
    lose(s, 3);
    says_of(s, SL_RECOVER_WEIGH, 3);
    assert_int_equal(s->r.there[0] + s->r.there[1] + s->r.there[2] + s->r.there[3], 3);
    assert_int_equal(sl_recover_lack_us(&s->r, s->now), 200 * MS);
    assert_int_equal(sl_recover_weighed(&s->r, rehost_us, s->now), awaits_us);
    assert_int_equal(s->r.service, SL_RECOVER_WAITS);
}

static void others_are_sooner(void **state) {
    (void)state;
    story s;
    lose_one(&s, 210 * MS, 0);
    changes_to(&s, "1110");
    says(&s, SL_RECOVER_NOTHING);
    taken(&s);
    says_of(&s, SL_RECOVER_START, 3);
    come(&s, 3);
    changes_to(&s, "1111");
    taken(&s);
    is_home(&s);
}

static void its_next_process_is_sooner(void **state) {
    (void)state;
    story s;
    lose_one(&s, 300 * MS, 300 * MS);
    says_of(&s, SL_RECOVER_START, 3);
    says(&s, SL_RECOVER_NOTHING);
    s.now += 150 * MS;
    come(&s, 3);
    changes_to(&s, "1111");
    s.now += 10 * MS;
    taken(&s);
    assert_int_equal(s.r.place[3].serve_us, 160 * MS); /* what the next one is expected to take */
    lose(&s, 3);                                       /* again at once: it is not waited for */
    changes_to(&s, "1110");
    taken(&s);
    says_after(&s, SEC, SL_RECOVER_START, 3);
    come(&s, 3);
    s.now += 10 * MS;
    changes_to(&s, "1111");
    taken(&s);
    s.now += 60 * SEC; /* it served well */
    lose(&s, 3);
    says_of(&s, SL_RECOVER_WEIGH, 3);
    assert_int_equal(sl_recover_lack_us(&s.r, s.now), 10 * MS);
    end(&s);
}

static void it_is_late(void **state) {
    (void)state;
    story s;
    lose_one(&s, SL_REHOST_NEVER, 400 * MS);
    says_of(&s, SL_RECOVER_START, 3);
    says_after(&s, 400 * MS, SL_RECOVER_CHANGE, 99);
    assert_int_equal(s.r.there[3], 0);
    taken(&s);
    assert_int_equal(s.r.service, SL_RECOVER_SERVES);
    come(&s, 3);
    changes_to(&s, "1111");
    taken(&s);
    is_home(&s);
}

static void it_comes_in_vain(void **state) {
    (void)state;
    story s;
    lose_one(&s, SEC, 400 * MS);
    says_of(&s, SL_RECOVER_START, 3);
    s.now += 50 * MS;
    knock(&s, 3);
    says(&s, SL_RECOVER_NOTHING);
    lose(&s, 3);
    changes_to(&s, "1110");
    taken(&s);
    says_after(&s, SEC, SL_RECOVER_START, 3);
    end(&s);
}

/* What another loss leaves is weighed anew, with who is on its way. */
static void another_one_is_lost_meanwhile(void **state) {
    (void)state;
    story s = begin(5, (const uint32_t[]){ATTN, ATTN, XPRT, XPRT, XPRT});
    serve(&s);
    sl_recover_measured(&s.r, 200 * MS);
    lose(&s, 3);
    says_of(&s, SL_RECOVER_WEIGH, 3);
    assert_int_equal(sl_recover_weighed(&s.r, SEC, s.now), 400 * MS);
    says_of(&s, SL_RECOVER_START, 3);
    s.now += 100 * MS;
    lose(&s, 4);
    says_of(&s, SL_RECOVER_WEIGH, 4);
    assert_int_equal(sl_recover_lack_us(&s.r, s.now), 200 * MS);
    assert_int_equal(sl_recover_weighed(&s.r, 2 * SEC, s.now), 400 * MS);
    says_of(&s, SL_RECOVER_START, 4);
    come(&s, 3); /* the other one is awaited still */
    says(&s, SL_RECOVER_NOTHING);
    come(&s, 4);
    changes_to(&s, "11111");
    taken(&s);
    is_home(&s);
}

/* Somebody has to come, or nothing is known of starts. */
static void nobody_is_started(void **state) {
    (void)state;
    story s = begin(4, two_and_two);
    serve(&s);
    lose(&s, 3);
    changes_to(&s, "1110");
    taken(&s);
    says_of(&s, SL_RECOVER_START, 3);
    come(&s, 3);
    changes_to(&s, "1111");
    s.now += 200 * MS;
    taken(&s);
    s.now += 60 * SEC;
    s.r.place[3].can_start = false;
    lose(&s, 3);
    changes_to(&s, "1110");
    taken(&s);
    end(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_change_takes),
        cmocka_unit_test(which_is_sooner),
        cmocka_unit_test(others_are_sooner),
        cmocka_unit_test(its_next_process_is_sooner),
        cmocka_unit_test(it_is_late),
        cmocka_unit_test(it_comes_in_vain),
        cmocka_unit_test(another_one_is_lost_meanwhile),
        cmocka_unit_test(nobody_is_started),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
