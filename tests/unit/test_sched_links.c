/* Links that break, and who of their ends is left out. */
#include "recover_story.h"

static void links_that_break(void **state) {
    (void)state;
    story s = begin(4, two_and_two);
    serve(&s);
    sl_recover_ailing(&s.r, 1, 3, s.now);
    sl_recover_ailing(&s.r, 3, 1, s.now); /* the same link */
    assert_int_equal(s.r.service, SL_RECOVER_WAITS);
    changes_to(&s, "1111");
    failed(&s, SL_ROSTER_NONE);
    assert_int_equal(s.r.service, SL_RECOVER_WAITS);
    says_after(&s, 100 * MS, SL_RECOVER_CHANGE, 99);
    sl_recover_ailing(&s.r, 0, 2, s.now); /* whether this one mends it nobody knows */
    taken(&s);
    changes_to(&s, "1111");
    s.now += 2 * SEC;
    sl_recover_ailing(&s.r, 1, 3, s.now); /* the link cannot be made */
    sl_recover_ailing(&s.r, 0, 3, s.now);
    failed(&s, SL_ROSTER_NONE);
    changes_to(&s, "1110"); /* the one without requests */
    taken(&s);
    assert_int_equal(s.r.service, SL_RECOVER_SERVES);
    assert_int_equal(s.r.n_away, 1);
    says_after(&s, 2 * SEC, SL_RECOVER_CHANGE, 99);
    assert_true(s.r.there[3]);
    taken(&s);
    says(&s, SL_RECOVER_NOTHING);
    sl_recover_ailing(&s.r, 1, 3, s.now);
    changes_to(&s, "1110");
    taken(&s);
    says_after(&s, 4 * SEC, SL_RECOVER_CHANGE, 99);
    sl_recover_ailing(&s.r, 0, 3, s.now); /* nor now: others go on meanwhile */
    assert_int_equal(s.r.service, SL_RECOVER_SERVES);
    failed(&s, SL_ROSTER_NONE);
    says_after(&s, 8 * SEC, SL_RECOVER_CHANGE, 99);
    taken(&s);
    for (uint32_t i = 0; i < 9; i++) { /* once in a while never counts */
        s.now += 60 * SEC;
        sl_recover_ailing(&s.r, 1, 3, s.now);
        changes_to(&s, "1111");
        taken(&s);
    }
    is_home(&s);
}

static void who_is_at_fault(void **state) {
    (void)state;
    story s = begin(4, two_and_two);
    serve(&s);
    sl_recover_ailing(&s.r, 0, 2, s.now);
    changes_to(&s, "1111");
    taken(&s);
    s.now += 2 * SEC;
    sl_recover_ailing(&s.r, 1, 2, s.now); /* another one of its links */
    changes_to(&s, "1101");
    lose(&s, 3); /* then it is better than nobody */
    taken(&s);
    changes_to(&s, "1110");
    taken(&s);
    says_of(&s, SL_RECOVER_START, 3);
    come(&s, 3);
    changes_to(&s, "1111");
    taken(&s);
    s.now += 2 * SEC;
    sl_recover_ailing(&s.r, 0, 3, s.now); /* an attention worker's: who requests run at is ended */
    says_of(&s, SL_RECOVER_DROP, 0);
    lose(&s, 0);
    says_of(&s, SL_RECOVER_START, 0);
    end(&s);
}

/* Both ends are needed: the link is begun anew on and on, at last with another process. */
static void nobody_can_be_spared(void **state) {
    (void)state;
    story s = begin(2, one_and_one);
    serve(&s);
    for (uint32_t i = 0; i < 5; i++) {
        sl_recover_ailing(&s.r, 0, 1, s.now);
        if (i == 4) break;
        s.now += 2 * SEC;
        changes_to(&s, "11");
        taken(&s);
    }
    says_of(&s, SL_RECOVER_DROP, 1);
    lose(&s, 1);
    says_of(&s, SL_RECOVER_START, 1);
    come(&s, 1);
    changes_to(&s, "11");
    taken(&s);
    is_home(&s);
    story t = begin(3, (const uint32_t[]){ATTN, ATTN, XPRT});
    serve(&t);
    sl_recover_ailing(&t.r, 0, 2, t.now);
    changes_to(&t, "111");
    taken(&t);
    t.now += 2 * SEC;
    sl_recover_ailing(&t.r, 0, 2, t.now); /* the only one with experts is worse, and stays */
    says_of(&t, SL_RECOVER_DROP, 0);
    end(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(links_that_break),
        cmocka_unit_test(who_is_at_fault),
        cmocka_unit_test(nobody_can_be_spared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
