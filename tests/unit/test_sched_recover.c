/* Recovery: a story by hand for each thing that may go wrong, and drawn deployments in which
 * workers die, hang and lose links and changes fail, against a plain model; in the end everybody is
 * home. */
#include "recover_story.h"

#include "base/mem.h"
#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

/* The others need no other plan until somebody comes in its place. */
static void an_attention_worker(void **state) {
    (void)state;
    story s = begin(4, two_and_two);
    serve(&s);
    lose(&s, 1);
    says_of(&s, SL_RECOVER_START, 1);
    assert_int_equal(s.r.service, SL_RECOVER_SERVES);
    assert_int_equal(s.r.n_away, 1);
    says(&s, SL_RECOVER_NOTHING);
    come(&s, 1);
    changes_to(&s, "1111");
    says(&s, SL_RECOVER_NOTHING);
    taken(&s);
    is_home(&s);
}

/* Streams move before anything is started. */
static void an_expert_worker(void **state) {
    (void)state;
    story s = begin(4, two_and_two);
    serve(&s);
    lose(&s, 2);
    assert_int_equal(s.r.service, SL_RECOVER_WAITS);
    changes_to(&s, "1101");
    says(&s, SL_RECOVER_NOTHING);
    taken(&s);
    assert_int_equal(s.r.service, SL_RECOVER_SERVES);
    says_of(&s, SL_RECOVER_START, 2);
    come(&s, 2);
    changes_to(&s, "1111");
    assert_int_equal(s.r.service, SL_RECOVER_SERVES);
    taken(&s);
    is_home(&s);
}

/* Nobody is left to change to. */
static void the_last_one(void **state) {
    (void)state;
    for (uint32_t lost = 0; lost < 2; lost++) {
        story s = begin(2, one_and_one);
        serve(&s);
        lose(&s, lost);
        assert_int_equal(s.r.service, SL_RECOVER_WAITS);
        says_of(&s, SL_RECOVER_START, lost);
        come(&s, lost);
        changes_to(&s, "11");
        assert_int_equal(s.r.service, SL_RECOVER_WAITS);
        taken(&s);
        is_home(&s);
    }
}

static void patience_ends(void **state) {
    (void)state;
    story s = begin(2, one_and_one);
    serve(&s);
    s.r.place[1].can_start = false; /* somebody has to come */
    lose(&s, 1);
    s.now += 10 * SEC;
    lose(&s, 0);
    says_of(&s, SL_RECOVER_START, 0);
    s.now += SEC;
    come(&s, 0); /* alone it is no help */
    says_after(&s, 19 * SEC, SL_RECOVER_GIVE_UP, 99);
    assert_int_equal(s.r.service, SL_RECOVER_GAVE_UP);
    says(&s, SL_RECOVER_NOTHING);
    assert_true(s.r.due_us == SL_RECOVER_NEVER);
    s.now += HOUR;
    come(&s, 1);
    changes_to(&s, "11");
    lose(&s, 0);
    taken(&s); /* but nobody is there for attention */
    assert_int_equal(s.r.service, SL_RECOVER_GAVE_UP);
    says_after(&s, SEC, SL_RECOVER_START, 0);
    come(&s, 0);
    changes_to(&s, "11");
    taken(&s);
    assert_int_equal(s.r.service, SL_RECOVER_SERVES);
    lose(&s, 0); /* the next outage */
    says_after(&s, SEC, SL_RECOVER_START, 0);
    says_after(&s, 29 * SEC, SL_RECOVER_GIVE_UP, 99);
    end(&s);
}

/* Also one that joins and dies before it serves: it takes a start and a change each time. */
static void a_crash_loop(void **state) {
    (void)state;
    story s = begin(4, two_and_two);
    serve(&s);
    lose(&s, 3);
    changes_to(&s, "1110");
    taken(&s);
    says_of(&s, SL_RECOVER_START, 3);
    for (uint64_t pause = SEC; pause <= 64 * SEC; pause *= 2) {
        if (pause < 4 * SEC) {
            come(&s, 3);
            changes_to(&s, "1111");
            if (pause == SEC) taken(&s);
        }
        lose(&s, 3);
        if (pause == SEC) changes_to(&s, "1110");
        if (pause < 4 * SEC) taken(&s);
        if (pause == 2 * SEC) changes_to(&s, "1110"); /* the plan that was taken has it */
        if (pause == 2 * SEC) taken(&s);
        says_after(&s, SL_MIN(pause, 60 * SEC), SL_RECOVER_START, 3);
    }
    come(&s, 3);
    changes_to(&s, "1111");
    taken(&s);
    says(&s, SL_RECOVER_NOTHING);
    s.now += 60 * SEC; /* it served well */
    lose(&s, 3);
    changes_to(&s, "1110");
    taken(&s);
    says_of(&s, SL_RECOVER_START, 3);
    end(&s);
}

/* It is tried for as long as requests wait; then there is time. */
static void a_crash_loop_of_the_last_one(void **state) {
    (void)state;
    story s = begin(2, one_and_one);
    serve(&s);
    lose(&s, 0);
    says_of(&s, SL_RECOVER_START, 0);
    for (uint32_t second = 1; second < 30; second++) {
        lose(&s, 0);
        says_after(&s, SEC, SL_RECOVER_START, 0);
    }
    lose(&s, 0);
    says_after(&s, SEC, SL_RECOVER_GIVE_UP, 99);
    says_after(&s, 59 * SEC, SL_RECOVER_START, 0);
    end(&s);
}

static void deaths_during_a_change(void **state) {
    (void)state;
    story s = begin(6, (const uint32_t[]){ATTN, ATTN, XPRT, XPRT, XPRT, XPRT});
    serve(&s);
    lose(&s, 2);
    lose(&s, 5); /* two at once */
    changes_to(&s, "110110");
    lose(&s, 0);
    lose(&s, 4);
    says(&s, SL_RECOVER_NOTHING);
    assert_true(s.r.there[1] && !s.r.there[0] && !s.r.there[4]);
    taken(&s);
    assert_int_equal(s.r.service, SL_RECOVER_WAITS); /* experts were given to worker 4 */
    changes_to(&s, "010100");
    taken(&s);
    assert_int_equal(s.r.service, SL_RECOVER_SERVES);
    says_of(&s, SL_RECOVER_START, 0);
    says_of(&s, SL_RECOVER_START, 2);
    says_of(&s, SL_RECOVER_START, 4);
    says_of(&s, SL_RECOVER_START, 5);
    come(&s, 4);
    changes_to(&s, "010110");
    come(&s, 0); /* too late for this one */
    come(&s, 2);
    says(&s, SL_RECOVER_NOTHING);
    lose(&s, 4); /* a newcomer, while it joins */
    taken(&s);
    changes_to(&s, "111100");
    lose(&s, 3); /* the only old one */
    failed(&s, SL_ROSTER_NONE);
    changes_to(&s, "111000");
    come(&s, 5);
    taken(&s);
    changes_to(&s, "111001");
    taken(&s);
    says_of(&s, SL_RECOVER_START, 3);
    says_after(&s, SEC, SL_RECOVER_START, 4);
    come(&s, 3);
    come(&s, 4);
    changes_to(&s, "111111");
    taken(&s);
    is_home(&s);
}

/* One that comes back by itself while the change goes on that its end has begun. */
static void back_before_the_change_is_over(void **state) {
    (void)state;
    story s = begin(4, two_and_two);
    serve(&s);
    sl_recover_ailing(&s.r, 0, 3, s.now);
    changes_to(&s, "1111");
    lose(&s, 2);
    come(&s, 2);
    assert_int_equal(s.r.there[2], 0);
    taken(&s);
    assert_int_equal(s.r.service, SL_RECOVER_WAITS);
    changes_to(&s, "1111");
    taken(&s);
    is_home(&s);
}

static void changes_that_fail(void **state) {
    (void)state;
    story s = begin(5, (const uint32_t[]){ATTN, ATTN, XPRT, XPRT, XPRT});
    serve(&s);
    lose(&s, 2);
    changes_to(&s, "11011");
    failed(&s, 3);
    says_of(&s, SL_RECOVER_START, 2);
    for (uint64_t pause = 100 * MS; pause <= 3200 * MS; pause *= 2) {
        says_after(&s, SL_MIN(pause, 2 * SEC), SL_RECOVER_CHANGE, 99);
        failed(&s, SL_ROSTER_NONE);
    }
    says(&s, SL_RECOVER_NOTHING);
    lose(&s, 3); /* that may have been why */
    changes_to(&s, "11001");
    failed(&s, SL_ROSTER_NONE);
    come(&s, 2);
    changes_to(&s, "11101");
    failed(&s, 2); /* a newcomer holds up nobody */
    says_of(&s, SL_RECOVER_DROP, 2);
    changes_to(&s, "11001");
    lose(&s, 2);
    taken(&s);
    assert_int_equal(s.r.service, SL_RECOVER_SERVES);
    says_of(&s, SL_RECOVER_START, 3);
    says_after(&s, SEC, SL_RECOVER_START, 2);
    come(&s, 2);
    come(&s, 3);
    changes_to(&s, "11111");
    sl_roster_ready(&s.roster, 2, SL_ROSTER_ANY); /* it serves, but not by this plan */
    failed(&s, SL_ROSTER_NONE);
    says_after(&s, 100 * MS, SL_RECOVER_CHANGE, 99);
    taken(&s);
    is_home(&s);
}

static void some_are_only_awaited(void **state) {
    (void)state;
    story s = begin(4, two_and_two);
    serve(&s);
    for (uint32_t i = 0; i < 4; i++) s.r.place[i].can_start = false;
    lose(&s, 0);
    says(&s, SL_RECOVER_NOTHING);
    assert_true(s.r.due_us == SL_RECOVER_NEVER);
    lose(&s, 3);
    changes_to(&s, "0110");
    taken(&s);
    says(&s, SL_RECOVER_NOTHING);
    s.now += HOUR;
    come(&s, 0);
    changes_to(&s, "1110");
    come(&s, 3);
    taken(&s);
    changes_to(&s, "1111");
    taken(&s);
    is_home(&s);
}

/* A process that is started and never comes, or never gets ready, is ended; who is ready is not. */
static void some_never_come(void **state) {
    (void)state;
    story s = begin(4, two_and_two);
    serve(&s);
    lose(&s, 0);
    lose(&s, 1);
    says_of(&s, SL_RECOVER_START, 0);
    says_of(&s, SL_RECOVER_START, 1);
    s.now += 10 * SEC;
    come(&s, 1);
    changes_to(&s, "0111");
    taken(&s);
    says_after(&s, 20 * SEC, SL_RECOVER_DROP, 0);
    says(&s, SL_RECOVER_NOTHING);
    lose(&s, 0);
    says_after(&s, SEC, SL_RECOVER_START, 0);
    s.now += 20 * SEC;
    knock(&s, 0); /* and does not get ready */
    says_after(&s, 30 * SEC, SL_RECOVER_DROP, 0);
    lose(&s, 0);
    says_after(&s, 2 * SEC, SL_RECOVER_START, 0);
    knock(&s, 0);
    lose(&s, 3); /* whoever is not ready is in no change */
    says_of(&s, SL_RECOVER_WEIGH, 3);
    assert_int_equal(sl_recover_weighed(&s.r, 20 * MS, s.now), 0); /* a start took much longer */
    changes_to(&s, "0110");
    sl_recover_joined(&s.r, 0, s.now);
    taken(&s);
    changes_to(&s, "1110");
    taken(&s);
    says_of(&s, SL_RECOVER_START, 3);
    come(&s, 3);
    changes_to(&s, "1111");
    taken(&s);
    is_home(&s);
}

static void colocated(void **state) {
    (void)state;
    story s = begin(2, (const uint32_t[]){BOTH, BOTH});
    serve(&s);
    lose(&s, 0);
    changes_to(&s, "01");
    lose(&s, 1);
    says(&s, SL_RECOVER_NOTHING);
    failed(&s, SL_ROSTER_NONE);
    says_of(&s, SL_RECOVER_START, 0);
    says_of(&s, SL_RECOVER_START, 1);
    come(&s, 1);
    changes_to(&s, "01");
    taken(&s);
    assert_int_equal(s.r.service, SL_RECOVER_SERVES);
    come(&s, 0);
    changes_to(&s, "11");
    taken(&s);
    is_home(&s);
}

/* ---- KV that is there still ---- */

/* Expected after as long as the last start took; who is late, as much later. */
static void when_it_is_back(void **state) {
    (void)state;
    story s = begin(4, two_and_two);
    serve(&s);
    sl_recover_measured(&s.r, 800 * MS);
    lose(&s, 1);
    assert_int_equal(sl_recover_back_us(&s.r, 1, s.now), 800 * MS);
    says_of(&s, SL_RECOVER_START, 1);
    s.now += 300 * MS;
    assert_int_equal(sl_recover_back_us(&s.r, 1, s.now), 500 * MS);
    come(&s, 1);
    changes_to(&s, "1111");
    s.now += 200 * MS;
    assert_int_equal(sl_recover_back_us(&s.r, 1, s.now), 300 * MS);
    s.now += 1000 * MS;
    assert_int_equal(sl_recover_back_us(&s.r, 1, s.now), 700 * MS);
    taken(&s);
    assert_int_equal(s.r.serve_us, 1500 * MS);
    lose(&s, 1); /* the second start waits for a second */
    assert_int_equal(sl_recover_back_us(&s.r, 1, s.now), 2500 * MS);
    says_after(&s, 1000 * MS, SL_RECOVER_START, 1);
    assert_int_equal(sl_recover_back_us(&s.r, 1, s.now), 1500 * MS);
    s.now += 100 * MS;
    lose(&s, 1);
    assert_int_equal(sl_recover_back_us(&s.r, 1, s.now), 3500 * MS);
    s.r.place[1].can_start = false;
    assert_true(sl_recover_back_us(&s.r, 1, s.now) == SL_RECOVER_NEVER);
    end(&s);
}

/* ---- drawn deployments ---- */

#define MOST 7u

typedef enum life { NOBODY, STARTED, CONNECTED, READY, SERVING } life;

/* What the driver knows by itself of each place, and what is expected from that. */
typedef struct actor {
    life life;
    uint64_t incarnation;       /* 0: none that was known */
    uint64_t asked, planned;    /* incarnations in the plan that is being taken, that holds */
    uint64_t since, lost, from; /* it serves, it was lost, was started or came */
    uint32_t starts;
} actor;

typedef struct world {
    uint64_t rng, incarnation, outage; /* since when; 0: none */
    story s;
    actor a[MOST];
    bool changing, mend, mending, gave_up, faults;
    uint32_t *n_words; /* by word */
    uint32_t n_awaits; /* changes that wait for somebody */
} world;

static uint32_t below(world *w, uint32_t n) {
    return (uint32_t)sl_rng_below(&w->rng, n);
}

static bool attends(const world *w, uint32_t i) {
    return w->s.roster.worker[i].roles & ATTN;
}

static bool computes(const world *w, uint32_t i) {
    return w->s.roster.worker[i].roles & XPRT;
}

static bool expected_to_serve(const world *w) {
    bool attention = false, experts = false, missed = false;
    for (uint32_t i = 0; i < w->s.roster.n; i++) {
        const actor *a = &w->a[i];
        bool here = a->life == SERVING && a->planned == a->incarnation;
        bool stays = here && !w->s.r.place[i].doomed;
        attention |= stays && attends(w, i);
        experts |= stays && computes(w, i);
        missed |= a->planned && !here && computes(w, i);
    }
    return attention && experts && !missed && !w->mend && !w->mending;
}

static void note_service(world *w) {
    if (expected_to_serve(w)) {
        w->outage = 0;
        w->gave_up = false;
    } else if (!w->outage) {
        w->outage = w->s.now;
    }
}

static uint64_t expected_pause(const world *w, uint32_t starts) {
    uint64_t us = starts ? SEC : 0, most = w->outage && !w->gave_up ? SEC : 60 * SEC;
    for (uint32_t i = 1; i < starts && us < most; i++) us *= 2;
    return SL_MIN(us, most);
}

static void end_life(world *w, uint32_t i) {
    actor *a = &w->a[i];
    uint32_t duties;
    if (a->life == SERVING && a->planned == a->incarnation && w->s.now - a->since >= 60 * SEC)
        a->starts = 0;
    assert_true(sl_roster_ended(&w->s.roster, i, SL_ROSTER_ANY, &duties));
    *a = (actor){.planned = a->planned, .asked = a->asked, .starts = a->starts, .lost = w->s.now};
    sl_recover_lost(&w->s.r, i, w->s.now);
    if (!w->s.r.place[i].can_start) sl_roster_reopen(&w->s.roster, i);
    note_service(w);
}

/* The next step of one that is started, or of one that is awaited. */
static void arrive(world *w, uint32_t i) {
    actor *a = &w->a[i];
    if (a->life == CONNECTED) {
        a->life = READY;
        sl_recover_joined(&w->s.r, i, w->s.now);
        return;
    }
    *a = (actor){.life = CONNECTED,
                 .incarnation = ++w->incarnation,
                 .from = w->s.now,
                 .planned = a->planned,
                 .asked = a->asked,
                 .starts = a->starts};
    assert_int_equal(sl_roster_hello(&w->s.roster, i, w->incarnation), i);
    sl_recover_coming(&w->s.r, i, w->s.now);
}

static bool may_arrive(const world *w, uint32_t i) {
    life l = w->a[i].life;
    return l == STARTED || l == CONNECTED || (l == NOBODY && !w->s.r.place[i].can_start);
}

static void on_change(world *w) {
    uint32_t roles = 0;
    assert_false(w->changing);
    w->changing = true;
    w->mending = w->mend;
    w->mend = false;
    for (uint32_t i = 0; i < w->s.roster.n; i++) {
        bool there = w->a[i].life >= READY && !w->s.r.place[i].rests;
        assert_int_equal(w->s.r.there[i], there);
        w->a[i].asked = there ? w->a[i].incarnation : 0;
        if (w->s.r.there[i]) roles |= w->s.roster.worker[i].roles;
    }
    assert_int_equal(roles, BOTH);
}

static void on_start(world *w, uint32_t i) {
    actor *a = &w->a[i];
    assert_true(!w->changing && a->life == NOBODY && w->s.r.place[i].can_start);
    assert_true(w->s.now - a->lost >= expected_pause(w, a->starts));
    a->starts++;
    a->life = STARTED;
    a->from = w->s.now;
    sl_roster_reopen(&w->s.roster, i);
}

static void on_give_up(world *w) {
    assert_true(w->outage && !w->gave_up);
    assert_true(w->s.now - w->outage >= 30 * SEC);
    w->gave_up = true;
}

static void end_change(world *w, bool take, uint32_t culprit) {
    w->changing = false;
    for (uint32_t i = 0; take && i < w->s.roster.n; i++) {
        actor *a = &w->a[i];
        bool same = a->life >= READY && a->incarnation == a->asked;
        if (same && a->planned != a->asked) a->since = w->s.now;
        if (same && a->life == READY) sl_roster_ready(&w->s.roster, i, a->incarnation);
        if (same) a->life = SERVING;
        a->planned = a->asked;
        w->mend |= a->planned && w->s.r.place[i].rests; /* it was to be left out */
    }
    w->mend |= w->mending && !take;
    w->mending = false;
    sl_recover_changed(&w->s.r, take, culprit, w->s.now);
    note_service(w);
}

/* Nothing would be said before due_us even if it were asked in earnest; something is then. */
static void check_due(world *w) {
    sl_recover copy = w->s.r;
    sl_recover_place place[MOST];
    uint8_t there[MOST];
    uint32_t id;
    uint64_t due = copy.due_us;
    for (uint32_t i = 0; i < 2 && due != SL_RECOVER_NEVER; i++) {
        memcpy(place, w->s.r.place, w->s.roster.n * sizeof *place);
        copy.place = place;
        copy.there = there;
        copy.due_us = 0;
        assert_int_equal(sl_recover_next(&copy, due - 1 + i, &id) != SL_RECOVER_NOTHING, i);
    }
}

/* Only for whom it can start, and who was not started in vain. */
static void on_weigh(world *w, uint32_t id) {
    static const uint64_t most[] = {10 * MS, SEC, HOUR};
    uint64_t us = sl_rng_below(&w->rng, most[below(w, SL_LEN(most))]);
    assert_true(!w->changing && w->outage && computes(w, id) && w->s.r.place[id].can_start);
    assert_true(w->a[id].life < READY && w->a[id].starts <= 1);
    if (below(w, 4) == 0) us = SL_REHOST_NEVER;
    w->n_awaits += sl_recover_weighed(&w->s.r, us, w->s.now) > 0;
    assert_true(w->s.r.await_us <= w->s.now + SL_MIN(us, 15 * SEC));
}

static void drive(world *w) {
    sl_recover_word word;
    uint32_t id = 0;
    while ((word = sl_recover_next(&w->s.r, w->s.now, &id)) != SL_RECOVER_NOTHING) {
        w->n_words[word]++;
        if (word == SL_RECOVER_WEIGH) on_weigh(w, id);
        if (word == SL_RECOVER_CHANGE) on_change(w);
        if (word == SL_RECOVER_START) on_start(w, id);
        if (word == SL_RECOVER_GIVE_UP) on_give_up(w);
        if (word == SL_RECOVER_DROP) {
            assert_true(w->a[id].life != NOBODY);
            bool comes = w->a[id].life == STARTED || w->a[id].life == CONNECTED;
            assert_true(!comes || w->s.now - w->a[id].from >= 30 * SEC);
            end_life(w, id);
        }
    }
    assert_int_equal(w->s.r.service, w->gave_up  ? SL_RECOVER_GAVE_UP
                                     : w->outage ? SL_RECOVER_WAITS
                                                 : SL_RECOVER_SERVES);
    check_due(w);
}

static bool serves(const world *w, uint32_t i) {
    const sl_recover_place *p = &w->s.r.place[i];
    return w->a[i].life == SERVING && w->a[i].planned == w->a[i].incarnation && !p->doomed;
}

/* Something happens to this place, or to the change. */
static void draw_event(world *w, uint32_t i) {
    actor *a = &w->a[i];
    uint32_t what = below(w, 12), other = below(w, w->s.roster.n);
    if (what < 2 && a->life != NOBODY) {
        end_life(w, i);
    } else if (what < 6 && may_arrive(w, i)) {
        arrive(w, i);
    } else if (what == 6 && serves(w, i) && serves(w, other) && i != other) {
        sl_recover_ailing(&w->s.r, i, other, w->s.now);
        w->mend |= serves(w, i) && serves(w, other); /* else one of them is about to end */
        note_service(w);
    } else if (what > 6 && w->changing) {
        bool here = a->life == SERVING && a->planned == a->incarnation;
        uint32_t culprit = a->asked && (here || a->life == READY) ? i : SL_ROSTER_NONE;
        end_change(w, what > 7, culprit);
    }
}

static void pass_time(world *w) {
    static const uint64_t most[] = {10 * MS, SEC, 20 * SEC, 200 * SEC};
    uint64_t by = 1 + sl_rng_below(&w->rng, most[below(w, SL_LEN(most))]);
    bool to_due = w->s.r.due_us != SL_RECOVER_NEVER && below(w, 2);
    w->s.now = to_due ? SL_MAX(w->s.now, w->s.r.due_us) : w->s.now + by;
}

/* No more faults: who is started comes, who is awaited does too, and changes are taken. */
static void come_home(world *w) {
    uint64_t until = w->s.now + 200 * SEC;
    drive(w);
    while (w->s.r.n_away > 0 || w->changing || w->mend) {
        for (uint32_t i = 0; i < w->s.roster.n; i++)
            while (may_arrive(w, i)) arrive(w, i);
        drive(w);
        if (w->changing)
            end_change(w, true, SL_ROSTER_NONE);
        else if (w->s.r.due_us != SL_RECOVER_NEVER)
            w->s.now = SL_MAX(w->s.now, w->s.r.due_us);
        drive(w);
        assert_true(w->s.now < until);
    }
    assert_true(expected_to_serve(w) && w->s.r.due_us == SL_RECOVER_NEVER);
    for (uint32_t i = 0; i < w->s.roster.n; i++) assert_int_equal(w->a[i].life, SERVING);
}

static uint32_t draw_world(uint64_t seed, uint32_t *n_words) {
    world w = {.rng = seed * 6364136223846793005ull, .n_words = n_words};
    uint32_t roles[MOST], n = 2 + below(&w, MOST - 1);
    bool colocated_ones = below(&w, 3) == 0;
    for (uint32_t i = 0; i < n; i++)
        roles[i] = colocated_ones ? BOTH : i == 0 ? ATTN : i == 1 ? XPRT : 1 + below(&w, 3);
    w.s = begin(n, roles);
    serve(&w.s);
    w.incarnation = n;
    for (uint32_t i = 0; i < n; i++) {
        w.a[i] = (actor){SERVING, i + 1, 0, i + 1, w.s.now, 0, 0, 0};
        w.s.r.place[i].can_start = below(&w, 4) != 0;
    }
    for (uint32_t step = 0; step < 600; step++) {
        if (below(&w, 4) == 0) pass_time(&w);
        draw_event(&w, below(&w, n));
        if (below(&w, 4) != 0) drive(&w);
    }
    come_home(&w);
    end(&w.s);
    return w.n_awaits;
}

static void drawn(void **state) {
    (void)state;
    uint32_t n_words[SL_RECOVER_START + 1] = {0}, n_awaits = 0;
    for (uint64_t seed = 1; seed <= 500; seed++) n_awaits += draw_world(seed, n_words);
    printf("%u changes, %u weighed, %u awaited, %u starts, %u dropped, %u times given up\n",
           n_words[SL_RECOVER_CHANGE], n_words[SL_RECOVER_WEIGH], n_awaits,
           n_words[SL_RECOVER_START], n_words[SL_RECOVER_DROP], n_words[SL_RECOVER_GIVE_UP]);
    assert_true(n_awaits > 50 && n_awaits < n_words[SL_RECOVER_WEIGH]);
    for (uint32_t word = 1; word < SL_LEN(n_words); word++) assert_true(n_words[word] > 200);
}

/* ---- memory ---- */

static void out_of_memory(void **state) {
    (void)state;
    story s = begin(2, one_and_one);
    sl_err err;
    for (uint64_t nth = 1; nth <= 2; nth++) {
        sl_mem_fail_at(nth);
        assert_int_equal(sl_recover_create(&s.roster, &SL_RECOVER_OPTS, &s.r, &err), SL_ERR_NOMEM);
        sl_mem_fail_at(0);
    }
    end(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_attention_worker),    cmocka_unit_test(an_expert_worker),
        cmocka_unit_test(the_last_one),           cmocka_unit_test(patience_ends),
        cmocka_unit_test(a_crash_loop),           cmocka_unit_test(a_crash_loop_of_the_last_one),
        cmocka_unit_test(deaths_during_a_change), cmocka_unit_test(back_before_the_change_is_over),
        cmocka_unit_test(changes_that_fail),      cmocka_unit_test(some_are_only_awaited),
        cmocka_unit_test(some_never_come),        cmocka_unit_test(colocated),
        cmocka_unit_test(when_it_is_back),        cmocka_unit_test(drawn),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
