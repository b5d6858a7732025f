/* Stories of recovery: what happens is told to roster and sl_recover, and what is said is compared.
 * Included by one program each. */
#ifndef SL_TESTS_RECOVER_STORY_H
#define SL_TESTS_RECOVER_STORY_H

#include "sched/recover.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define ATTN SL_ROLE_ATTENTION
#define XPRT SL_ROLE_EXPERT
#define BOTH (ATTN | XPRT)
#define MS   1000ull
#define SEC  1000000ull
#define HOUR (3600 * SEC)

/* ---- stories ---- */

typedef struct story {
    sl_roster roster;
    sl_recover r;
    uint64_t now, incarnation;
} story;

static inline story begin(uint32_t n, const uint32_t *roles) {
    story s = {.now = HOUR};
    sl_err err;
    assert_int_equal(sl_roster_create(n, &s.roster, &err), SL_OK);
    for (uint32_t i = 0; i < n; i++) {
        sl_roster_expect(&s.roster, i, roles[i]);
        sl_roster_hello(&s.roster, i, ++s.incarnation);
        sl_roster_ready(&s.roster, i, SL_ROSTER_ANY);
    }
    return s;
}

/* The roster stays where it is from here on. */
static inline void serve(story *s) {
    sl_err err;
    uint32_t id;
    assert_int_equal(sl_recover_create(&s->roster, &SL_RECOVER_OPTS, &s->r, &err), SL_OK);
    for (uint32_t i = 0; i < s->roster.n; i++) s->r.place[i].can_start = true;
    sl_recover_joined(&s->r, 0, s->now); /* not for it yet */
    assert_int_equal(sl_recover_next(&s->r, s->now, &id), SL_RECOVER_NOTHING);
    sl_recover_begin(&s->r, s->now);
    assert_int_equal(sl_recover_next(&s->r, s->now, &id), SL_RECOVER_NOTHING);
    assert_true(s->r.due_us == SL_RECOVER_NEVER && s->r.n_away == 0);
    assert_int_equal(s->r.service, SL_RECOVER_SERVES);
}

static inline void end(story *s) {
    sl_recover_free(&s->r);
    sl_roster_free(&s->roster);
}

static inline void says(story *s, sl_recover_word want) {
    uint32_t id;
    assert_int_equal(sl_recover_next(&s->r, s->now, &id), want);
}

static inline void says_of(story *s, sl_recover_word want, uint32_t of) {
    uint32_t id = 99;
    assert_int_equal(sl_recover_next(&s->r, s->now, &id), want);
    assert_int_equal(id, of);
    if (want == SL_RECOVER_START) sl_roster_reopen(&s->roster, id);
}

/* Nothing until so much later; `of` is 99 for words that have no place. */
static inline void says_after(story *s, uint64_t us, sl_recover_word want, uint32_t of) {
    says(s, SL_RECOVER_NOTHING);
    assert_int_equal(s->r.due_us - s->now, us);
    s->now += us;
    says_of(s, want, of);
}

/* A change to those with a 1. */
static inline void changes_to(story *s, const char *set) {
    says(s, SL_RECOVER_CHANGE);
    for (uint32_t i = 0; i < s->roster.n; i++) assert_int_equal(s->r.there[i], set[i] == '1');
}

static inline void lose(story *s, uint32_t id) {
    uint32_t duties;
    assert_true(sl_roster_ended(&s->roster, id, SL_ROSTER_ANY, &duties));
    sl_recover_lost(&s->r, id, s->now);
}

static inline void knock(story *s, uint32_t id) {
    if (s->roster.worker[id].state == SL_ROSTER_GONE) sl_roster_reopen(&s->roster, id);
    assert_int_equal(sl_roster_hello(&s->roster, id, ++s->incarnation), id);
    sl_recover_coming(&s->r, id, s->now);
}

static inline void come(story *s, uint32_t id) {
    knock(s, id);
    sl_recover_joined(&s->r, id, s->now);
}

static inline void taken(story *s) {
    for (uint32_t i = 0; i < s->roster.n; i++)
        if (s->r.there[i]) sl_roster_ready(&s->roster, i, SL_ROSTER_ANY);
    sl_recover_changed(&s->r, true, SL_ROSTER_NONE, s->now);
}

static inline void failed(story *s, uint32_t culprit) {
    sl_recover_changed(&s->r, false, culprit, s->now);
}

static inline void is_home(story *s) {
    says(s, SL_RECOVER_NOTHING);
    assert_true(s->r.due_us == SL_RECOVER_NEVER && s->r.n_away == 0);
    assert_int_equal(s->r.service, SL_RECOVER_SERVES);
    end(s);
}

static const uint32_t two_and_two[] = {ATTN, ATTN, XPRT, XPRT}, one_and_one[] = {ATTN, XPRT};

#endif
