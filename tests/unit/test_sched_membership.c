/* The membership state machines one by one; test_sched_simulation.c runs them together. */
#include "sched/membership.h"

#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

static sl_err err;

#define OK(call) assert_int_equal((call), SL_OK)
/* The call is refused as a protocol violation, with `text` in its message. */
#define REFUSED(call, text)                                                                        \
    do {                                                                                           \
        assert_int_equal((call), SL_ERR_PROTOCOL);                                                 \
        assert_int_equal(err.code, SL_ERR_PROTOCOL);                                               \
        const char *text_ = (text);                                                                \
        if (!strstr(err.msg, text_)) fail_msg("'%s' lacks '%s'", err.msg, text_);                  \
    } while (0)

#define SET(...)                                                                                   \
    (&(sl_idset){.ids = (uint32_t[]){__VA_ARGS__}, .n = sizeof((uint32_t[]){__VA_ARGS__}) / 4})
static const sl_idset empty;

static void set_is(const sl_idset *got, const sl_idset *want) {
    assert_true(sl_idset_equal(got, want));
}

/* ---- sets ---- */

static void idset_keeps_order_and_limits(void **state) {
    (void)state;
    sl_idset s = {0}, c = {0}, v;
    const uint32_t in[] = {5, 4294967295u, 0, 9, 5, 1};
    for (size_t i = 0; i < SL_LEN(in); i++) OK(sl_idset_add(&s, in[i], &err));
    set_is(&s, SET(0, 1, 5, 9, 4294967295u));
    assert_true(sl_idset_remove(&s, 5));
    assert_false(sl_idset_remove(&s, 5));
    assert_true(sl_idset_has(&s, 9) && !sl_idset_has(&s, 5) && !sl_idset_has(&empty, 0));
    OK(sl_idset_copy(&s, &c, &err));
    set_is(&c, &s);
    sl_idset_clear(&c);
    set_is(&c, &empty);
    assert_int_equal(sl_idset_reserve(&c, SL_MAX_WORKERS + 1, &err), SL_ERR_LIMIT);
    uint32_t good[] = {1, 2, 7}, bad[] = {1, 7, 7};
    OK(sl_idset_check(good, 3, &v, &err));
    set_is(&v, SET(1, 2, 7));
    REFUSED(sl_idset_check(bad, 3, &v, &err), "7 before 7");
    assert_int_equal(sl_idset_check(good, SL_MAX_WORKERS + 1, &v, &err), SL_ERR_LIMIT);
    sl_idset_free(&v); /* borrowed: nothing to free */
    sl_idset_free(&s);
    sl_idset_free(&c);
}

static void idset_grows_to_the_limit_only(void **state) {
    (void)state;
    sl_idset s = {0};
    for (uint32_t i = 0; i < SL_MAX_WORKERS; i++) OK(sl_idset_add(&s, 3 * i, &err));
    OK(sl_idset_add(&s, 3, &err));
    assert_int_equal(sl_idset_add(&s, 4, &err), SL_ERR_LIMIT);
    assert_int_equal(s.n, SL_MAX_WORKERS);
    sl_idset_free(&s);
}

/* ---- sequencer ---- */

static void sequencer_opens_closes_sleeps_and_wakes(void **state) {
    (void)state;
    sl_seq *s;
    sl_seq_out o;
    OK(sl_seq_create(8, &s, &err));
    assert_true(sl_seq_asleep(s));
    OK(sl_seq_join(s, 30, &o, &err)); /* a sleeping lane opens at once */
    assert_true(o.round == 1 && !o.closed && !o.announce && !o.dropped);
    set_is(o.set, SET(30));
    set_is(o.open_to, SET(30));
    set_is(o.next_to, &empty);
    OK(sl_seq_join(s, 10, &o, &err)); /* during a round joiners wait */
    OK(sl_seq_join(s, 40, &o, &err));
    assert_int_equal(o.round, 0);
    OK(sl_seq_last(s, 30, 1, true, &o, &err));
    assert_true(o.closed && o.round == 2);
    set_is(o.set, SET(10, 30, 40));
    set_is(o.next_to, SET(30));
    set_is(o.open_to, SET(10, 40));
    OK(sl_seq_last(s, 40, 2, false, &o, &err));
    OK(sl_seq_last(s, 10, 2, false, &o, &err));
    assert_false(o.closed);
    OK(sl_seq_last(s, 30, 2, false, &o, &err));
    assert_true(o.closed && o.round == 3 && sl_seq_asleep(s));
    set_is(o.set, &empty);
    set_is(o.next_to, SET(10, 30, 40));
    OK(sl_seq_join(s, 40, &o, &err));
    assert_true(o.round == 3 && !sl_seq_asleep(s));
    set_is(o.set, SET(40));
    sl_seq_free(s);
}

static void sequencer_counts_the_dead_out(void **state) {
    (void)state;
    sl_seq *s;
    sl_seq_out o;
    OK(sl_seq_create(4, &s, &err));
    OK(sl_seq_join(s, 1, &o, &err));
    OK(sl_seq_join(s, 2, &o, &err));
    OK(sl_seq_join(s, 3, &o, &err));
    OK(sl_seq_last(s, 1, 1, true, &o, &err));
    set_is(o.set, SET(1, 2, 3));
    OK(sl_seq_join(s, 4, &o, &err));
    OK(sl_seq_dead(s, 4, &o, &err)); /* a joiner dies */
    assert_true(o.announce && o.dead == 4 && !o.closed);
    OK(sl_seq_last(s, 2, 2, true, &o, &err));
    OK(sl_seq_dead(s, 2, &o, &err)); /* a stayer dies after its vote */
    OK(sl_seq_last(s, 1, 2, true, &o, &err));
    OK(sl_seq_dead(s, 3, &o, &err)); /* the last to vote dies: the round closes */
    assert_true(o.announce && o.closed && o.round == 3);
    set_is(o.set, SET(1));
    set_is(o.next_to, SET(1));
    OK(sl_seq_dead(s, 3, &o, &err));
    assert_false(o.announce);
    OK(sl_seq_last(s, 3, 2, true, &o, &err));
    assert_true(o.dropped);
    OK(sl_seq_join(s, 3, &o, &err));
    assert_true(o.dropped && sl_seq_asleep(s) == false);
    OK(sl_seq_dead(s, 1, &o, &err)); /* nobody is left: sleep */
    assert_true(o.closed && sl_seq_asleep(s));
    set_is(o.next_to, &empty);
    OK(sl_seq_dead(s, 99, &o, &err)); /* never seen here: announced all the same */
    assert_true(o.announce && o.dead == 99 && o.round == 0);
    sl_seq_free(s);
}

static void sequencer_refuses_violations(void **state) {
    (void)state;
    sl_seq *s;
    sl_seq_out o;
    OK(sl_seq_create(3, &s, &err));
    REFUSED(sl_seq_last(s, 1, 1, true, &o, &err), "sleeps after round 0");
    OK(sl_seq_join(s, 1, &o, &err));
    REFUSED(sl_seq_join(s, 1, &o, &err), "which is in round 1");
    OK(sl_seq_join(s, 2, &o, &err));
    REFUSED(sl_seq_join(s, 2, &o, &err), "second JOIN of worker 2");
    REFUSED(sl_seq_last(s, 2, 1, true, &o, &err), "no member of round 1");
    REFUSED(sl_seq_last(s, 1, 2, true, &o, &err), "in round 2");
    OK(sl_seq_join(s, 3, &o, &err));
    assert_int_equal(sl_seq_join(s, 4, &o, &err), SL_ERR_LIMIT);
    OK(sl_seq_last(s, 1, 1, true, &o, &err)); /* all of this left the round as it was */
    set_is(o.set, SET(1, 2, 3));
    OK(sl_seq_last(s, 1, 2, true, &o, &err));
    REFUSED(sl_seq_last(s, 1, 2, false, &o, &err), "second vote");
    OK(sl_seq_last(s, 2, 2, true, &o, &err));
    OK(sl_seq_last(s, 3, 2, true, &o, &err));
    set_is(o.set, SET(1, 2, 3));
    sl_seq_free(s);
}

static void sequencer_reset_keeps_the_dead(void **state) {
    (void)state;
    sl_seq *s;
    sl_seq_out o;
    OK(sl_seq_create(3, &s, &err));
    OK(sl_seq_join(s, 1, &o, &err));
    OK(sl_seq_join(s, 2, &o, &err));
    OK(sl_seq_dead(s, 3, &o, &err));
    sl_seq_reset(s, 7);
    assert_true(sl_seq_epoch(s) == 7 && sl_seq_asleep(s));
    OK(sl_seq_join(s, 3, &o, &err));
    assert_true(o.dropped);
    OK(sl_seq_join(s, 2, &o, &err));
    assert_int_equal(o.round, 1);
    set_is(o.set, SET(2));
    sl_seq_free(s);
}

/* ---- barrier ---- */

static sl_barrier *bar;

static sl_status arrive(uint32_t who, uint64_t round, uint32_t layer, const sl_idset *set) {
    bool dropped;
    sl_status st = sl_barrier_arrive(bar, who, round, layer, 0, false, set, &dropped, &err);
    assert_false(dropped);
    return st;
}

/* The sequencer's word; nobody is in too many rounds. */
static sl_status announce(uint64_t round, const sl_idset *set) {
    uint32_t absentee;
    sl_status st = sl_barrier_open(bar, round, set, &absentee, &err);
    assert_int_equal(absentee, SL_NOBODY);
    return st;
}

static void runs(uint64_t round, uint32_t layer, const sl_idset *to) {
    sl_ready r;
    assert_true(sl_barrier_pop(bar, &r));
    assert_int_equal(r.round, round);
    assert_int_equal(r.layer, layer);
    set_is(r.reply_to, to);
}

static void waits(void) {
    sl_ready r;
    assert_false(sl_barrier_pop(bar, &r));
}

static void barrier_waits_for_every_member(void **state) {
    (void)state;
    uint64_t round;
    uint32_t layer;
    const sl_idset *missing;
    OK(sl_barrier_create(2, 1, 4, &bar, &err));
    assert_false(sl_barrier_waiting(bar, &round, &layer, &missing));
    assert_true(sl_barrier_is_early(bar, 1));
    REFUSED(arrive(5, 1, 0, SET(5)), "not announced");
    OK(announce(1, SET(2, 5, 9)));
    assert_false(sl_barrier_is_early(bar, 1));
    OK(arrive(5, 1, 0, SET(2, 5, 9)));
    OK(arrive(9, 1, 0, SET(2, 5, 9)));
    waits();
    assert_true(sl_barrier_waiting(bar, &round, &layer, &missing));
    assert_true(round == 1 && layer == 0);
    set_is(missing, SET(2));
    OK(arrive(2, 1, 0, SET(2, 5, 9)));
    runs(1, 0, SET(2, 5, 9));
    waits();
    for (uint32_t i = 0; i < 3; i++) OK(arrive((uint32_t[]){2, 5, 9}[i], 1, 1, NULL));
    runs(1, 1, SET(2, 5, 9));
    assert_false(sl_barrier_waiting(bar, &round, &layer, &missing));
    OK(announce(2, SET(5)));
    OK(arrive(5, 2, 0, SET(5)));
    runs(2, 0, SET(5));
    sl_barrier_free(bar);
}

static void barrier_takes_an_early_joiner(void **state) {
    (void)state;
    OK(sl_barrier_create(1, 1, 4, &bar, &err));
    OK(announce(1, SET(1, 2)));
    OK(announce(2, SET(1, 3)));
    OK(arrive(1, 1, 0, SET(1, 2)));
    OK(arrive(3, 2, 0, SET(1, 3))); /* 3 was let in while 2's last layer is still on its way */
    waits();
    OK(arrive(2, 1, 0, SET(1, 2)));
    runs(1, 0, SET(1, 2));
    waits();
    OK(arrive(1, 2, 0, SET(1, 3)));
    runs(2, 0, SET(1, 3));
    OK(announce(3, SET(2)));
    OK(announce(4, SET(4)));
    OK(arrive(4, 4, 0, SET(4))); /* with one layer a later round may even run first */
    runs(4, 0, SET(4));
    OK(arrive(2, 3, 0, SET(2)));
    runs(3, 0, SET(2));
    sl_barrier_free(bar);
}

static void barrier_counts_the_dead_as_bare_headers(void **state) {
    (void)state;
    bool dropped;
    OK(sl_barrier_create(2, 1, 4, &bar, &err));
    OK(announce(1, SET(1, 2, 3)));
    OK(arrive(1, 1, 0, SET(1, 2, 3)));
    OK(arrive(2, 1, 0, SET(1, 2, 3)));
    OK(sl_barrier_dead(bar, 2, &err)); /* had sent */
    waits();
    OK(sl_barrier_dead(bar, 3, &err)); /* had not */
    runs(1, 0, SET(1));
    OK(sl_barrier_arrive(bar, 3, 1, 0, 0, false, SET(1, 2, 3), &dropped, &err));
    assert_true(dropped);
    OK(arrive(1, 1, 1, NULL));
    runs(1, 1, SET(1));
    OK(announce(2, SET(1, 2))); /* the set was fixed before 2 died */
    OK(arrive(1, 2, 0, SET(1, 2)));
    runs(2, 0, SET(1));
    OK(sl_barrier_dead(bar, 1, &err)); /* nobody is left: the round is gone */
    waits();
    OK(announce(3, SET(1, 2))); /* all dead: it is over at once */
    assert_false(sl_barrier_is_early(bar, 3));
    REFUSED(arrive(4, 3, 0, SET(1, 2)), "over for it");
    OK(announce(5, SET(4)));
    OK(arrive(4, 5, 0, SET(4)));
    runs(5, 0, SET(4));
    OK(sl_barrier_dead(bar, 4, &err));
    OK(sl_barrier_dead(bar, 4, &err));
    sl_barrier_free(bar);
}

static sl_status arrives(uint32_t who, uint32_t layer, uint32_t c, bool ends, const sl_idset *set) {
    bool dropped;
    sl_status st = sl_barrier_arrive(bar, who, 1, layer, c, ends, set, &dropped, &err);
    assert_false(dropped);
    return st;
}

static sl_status chunk(uint32_t who, uint32_t layer, uint32_t c, const sl_idset *set) {
    return arrives(who, layer, c, false, set);
}

/* No further chunk of the layer. */
static sl_status ends(uint32_t who, uint32_t layer, uint32_t c, const sl_idset *set) {
    return arrives(who, layer, c, true, set);
}

static void runs_chunk(uint32_t layer, uint32_t c, const sl_idset *to) {
    sl_ready r;
    assert_true(sl_barrier_pop(bar, &r));
    assert_true(r.layer == layer && r.chunk == c);
    set_is(r.reply_to, to);
}

static void members_may_end_a_layer_early(void **state) {
    (void)state;
    OK(sl_barrier_create(4, 3, 4, &bar, &err));
    OK(announce(1, SET(1, 2)));
    OK(ends(1, 0, 0, SET(1, 2)));
    REFUSED(chunk(1, 0, 1, NULL), "its next is layer 1 chunk 0");
    REFUSED(ends(1, 0, 0, SET(1, 2)), "its next is layer 1 chunk 0");
    REFUSED(chunk(1, 1, 0, NULL), "the layer before"); /* which is not answered */
    OK(chunk(2, 0, 0, SET(1, 2)));
    runs_chunk(0, 0, SET(1, 2));
    OK(chunk(1, 1, 0, NULL)); /* at the next layer while 2 is in the middle of this one */
    OK(ends(1, 1, 1, NULL));
    REFUSED(chunk(1, 2, 0, NULL), "the layer before");
    waits();
    OK(chunk(2, 0, 1, NULL));
    runs_chunk(0, 1, SET(2));
    OK(chunk(2, 0, 2, NULL));
    runs_chunk(0, 2, SET(2));
    waits();
    OK(ends(2, 1, 0, NULL));
    runs_chunk(1, 0, SET(1, 2));
    runs_chunk(1, 1, SET(1));
    waits(); /* nobody has chunk 2 of layer 1 */
    OK(ends(1, 2, 0, NULL));
    OK(sl_barrier_dead(bar, 2, &err)); /* a layer behind */
    runs_chunk(2, 0, SET(1));
    REFUSED(ends(1, 3, 0, NULL), "ends layer 3, the last, with chunk 0");
    for (uint32_t c = 0; c < 3; c++) {
        OK(c < 2 ? chunk(1, 3, c, NULL) : ends(1, 3, c, NULL));
        runs_chunk(3, c, SET(1));
    }
    waits();
    sl_barrier_free(bar);
}

static void barrier_lets_chunks_run_one_by_one(void **state) {
    (void)state;
    OK(sl_barrier_create(2, 3, 4, &bar, &err));
    OK(announce(1, SET(1, 2)));
    REFUSED(chunk(1, 0, 1, SET(1, 2)), "chunk 1");
    REFUSED(chunk(1, 0, 3, SET(1, 2)), "chunk 3 of 3");
    OK(chunk(1, 0, 0, SET(1, 2)));
    OK(chunk(1, 0, 1, NULL));
    waits();
    OK(chunk(2, 0, 0, SET(1, 2)));
    runs_chunk(0, 0, SET(1, 2));
    waits();
    REFUSED(chunk(2, 0, 2, NULL), "its next is layer 0 chunk 1");
    OK(chunk(1, 0, 2, NULL));
    REFUSED(chunk(1, 1, 0, NULL), "the layer before");
    OK(chunk(2, 0, 1, NULL));
    OK(chunk(2, 0, 2, NULL));
    runs_chunk(0, 1, SET(1, 2));
    REFUSED(chunk(1, 1, 0, NULL), "the layer before");
    runs_chunk(0, 2, SET(1, 2));
    waits();
    OK(chunk(1, 1, 0, NULL));
    OK(sl_barrier_dead(bar, 2, &err)); /* while 1 is one chunk ahead */
    runs_chunk(1, 0, SET(1));
    OK(chunk(1, 1, 1, NULL));
    OK(chunk(1, 1, 2, NULL));
    OK(announce(2, SET(1)));
    REFUSED(arrive(1, 2, 0, SET(1)), "before its messages of");
    runs_chunk(1, 1, SET(1));
    runs_chunk(1, 2, SET(1));
    OK(arrive(1, 2, 0, SET(1)));
    sl_barrier_free(bar);
}

static void barrier_refuses_violations(void **state) {
    (void)state;
    OK(sl_barrier_create(3, 1, 3, &bar, &err));
    REFUSED(arrive(1, 1, 3, SET(1)), "layer 3 of 3");
    REFUSED(arrive(1, 0, 0, SET(1)), "round 0, which is over");
    REFUSED(arrive(1, UINT64_MAX, 0, SET(1)), "not announced");
    REFUSED(announce(1, &empty), "0 members announced");
    REFUSED(announce(1, SET(1, 2, 3, 4)), "at most 3 members");
    OK(announce(7, SET(1, 2)));
    REFUSED(announce(7, SET(1, 2)), "announced after round 7");
    REFUSED(announce(6, SET(1, 2)), "announced after round 7");
    REFUSED(arrive(1, 7, 0, NULL), "carries no member set");
    REFUSED(arrive(1, 7, 1, SET(1, 2)), "its next is layer 0");
    OK(arrive(1, 7, 0, SET(1, 2)));
    REFUSED(arrive(1, 7, 0, SET(1, 2)), "its next is layer 1");
    REFUSED(arrive(1, 8, 0, SET(1)), "not announced");
    REFUSED(arrive(1, 7, 1, NULL), "the layer before");
    REFUSED(arrive(3, 7, 0, SET(1, 2)), "no member of round 7");
    REFUSED(arrive(2, 7, 0, SET(1, 2, 3)), "(3 members) is not the one decided (2 members)");
    REFUSED(arrive(2, 7, 0, SET(2)), "(1 members) is not the one decided (2 members)");
    REFUSED(arrive(2, 7, 1, NULL), "its next is layer 0");
    OK(arrive(2, 7, 0, SET(1, 2)));
    runs(7, 0, SET(1, 2)); /* nothing of this did harm */
    REFUSED(arrive(1, 7, 0, NULL), "its next is layer 1");
    REFUSED(arrive(1, 6, 0, SET(1)), "round 6, which is over");
    sl_barrier_free(bar);
    assert_int_equal(sl_barrier_create(0, 1, 3, &bar, &err), SL_ERR_ARG);
    assert_int_equal(sl_barrier_create(1, 0, 3, &bar, &err), SL_ERR_ARG);
    assert_int_equal(sl_barrier_create(1u << 31, 2, 3, &bar, &err), SL_ERR_ARG);
    assert_int_equal(sl_barrier_create(1, 1, 0, &bar, &err), SL_ERR_ARG);
    assert_int_equal(sl_barrier_create(1, 1, SL_MAX_WORKERS + 1, &bar, &err), SL_ERR_ARG);
}

/* Who votes at the sequencer alone would open more and more rounds here. */
static void barrier_names_who_is_in_too_many_rounds(void **state) {
    (void)state;
    uint32_t absentee;
    OK(sl_barrier_create(1, 1, 4, &bar, &err));
    OK(announce(1, SET(1, 2)));
    OK(announce(2, SET(2, 3)));
    OK(announce(3, SET(1, 3)));
    OK(sl_barrier_open(bar, 4, SET(2, 4), &absentee, &err));
    assert_int_equal(absentee, 2);
    OK(sl_barrier_dead(bar, 2, &err));
    OK(arrive(1, 1, 0, SET(1, 2)));
    runs(1, 0, SET(1));
    OK(announce(5, SET(1, 4)));
    OK(sl_barrier_open(bar, 6, SET(1, 4), &absentee, &err));
    assert_int_equal(absentee, 1);
    sl_barrier_free(bar);
}

/* Where others stand in, members go on without this worker before the sequencer knows. */
static void barrier_bears_who_does_without(void **state) {
    (void)state;
    uint32_t absentee;
    OK(sl_barrier_create(1, 1, 4, &bar, &err));
    sl_barrier_bear(bar, 5);
    for (uint64_t round = 1; round <= 5; round++) OK(announce(round, SET(1, 2)));
    OK(sl_barrier_open(bar, 6, SET(2, 3), &absentee, &err));
    assert_int_equal(absentee, 2);
    sl_barrier_free(bar);
}

static void barrier_reset_keeps_the_dead(void **state) {
    (void)state;
    OK(sl_barrier_create(2, 1, 3, &bar, &err));
    OK(announce(9, SET(1, 2)));
    OK(arrive(1, 9, 0, SET(1, 2)));
    OK(sl_barrier_dead(bar, 3, &err));
    sl_barrier_reset(bar, 4);
    assert_int_equal(sl_barrier_epoch(bar), 4);
    waits();
    OK(announce(1, SET(1, 3)));
    OK(arrive(1, 1, 0, SET(1, 3)));
    runs(1, 0, SET(1));
    sl_barrier_free(bar);
}

/* ---- member ---- */

static void member_goes_through_its_states(void **state) {
    (void)state;
    sl_member m;
    bool join;
    OK(sl_member_init(&m, 4, 8, &err));
    sl_member_want(&m, &join);
    assert_true(join && m.state == SL_MEMBER_JOINING);
    sl_member_want(&m, &join);
    assert_false(join);
    OK(sl_member_open(&m, 3, SET(4, 6), &err));
    assert_true(m.state == SL_MEMBER_ROUND && m.round == 3);
    assert_true(sl_member_needs_set(&m, 0, 0) && !sl_member_needs_set(&m, 1, 0));
    assert_false(sl_member_needs_set(&m, 0, 1));
    sl_member_vote(&m, true);
    sl_member_want(&m, &join);
    OK(sl_member_next(&m, 4, SET(4), &join, &err));
    assert_true(m.round == 4 && m.state == SL_MEMBER_ROUND && !join);
    set_is(&m.set, SET(4));
    sl_member_vote(&m, false);
    OK(sl_member_next(&m, 5, &empty, &join, &err));
    assert_true(m.state == SL_MEMBER_IDLE && !join && !sl_member_needs_set(&m, 0, 0));
    sl_member_want(&m, &join);
    OK(sl_member_open(&m, 5, SET(4), &err)); /* the lane slept: same number, first use */
    sl_member_vote(&m, false);
    sl_member_want(&m, &join); /* work after LEAVE: joins when the round is over */
    assert_false(join);
    OK(sl_member_next(&m, 6, SET(6), &join, &err));
    assert_true(join && m.state == SL_MEMBER_JOINING);
    sl_member_reset(&m, 2);
    assert_true(m.state == SL_MEMBER_IDLE && m.epoch == 2 && m.round == 0);
    sl_member_free(&m);
}

static void member_refuses_violations(void **state) {
    (void)state;
    sl_member m;
    bool join;
    OK(sl_member_init(&m, 4, 8, &err));
    REFUSED(sl_member_open(&m, 1, SET(4), &err), "no JOIN is pending");
    REFUSED(sl_member_next(&m, 1, SET(4), &join, &err), "before the last layer");
    sl_member_want(&m, &join);
    REFUSED(sl_member_open(&m, 1, SET(5), &err), "without this worker");
    REFUSED(sl_member_open(&m, 0, SET(4), &err), "after round 0");
    OK(sl_member_open(&m, 1, SET(4, 5), &err));
    REFUSED(sl_member_open(&m, 2, SET(4), &err), "no JOIN is pending");
    REFUSED(sl_member_next(&m, 2, SET(4), &join, &err), "before the last layer");
    sl_member_vote(&m, true);
    REFUSED(sl_member_next(&m, 3, SET(4), &join, &err), "in round 1");
    REFUSED(sl_member_next(&m, 2, SET(5), &join, &err), "said STAY in round 1 but is not");
    OK(sl_member_next(&m, 2, SET(4), &join, &err));
    sl_member_vote(&m, false);
    REFUSED(sl_member_next(&m, 3, SET(4), &join, &err), "said LEAVE in round 2 but is in");
    OK(sl_member_next(&m, 3, &empty, &join, &err));
    sl_member_free(&m);
}

/* ---- memory ---- */

static void creation_survives_every_failed_allocation(void **state) {
    (void)state;
    sl_seq *s;
    sl_member m;
    sl_status st = SL_ERR_NOMEM;
    for (uint64_t n = 1; st != SL_OK; n++) {
        sl_mem_fail_at(n);
        st = sl_seq_create(4, &s, &err);
        sl_mem_fail_at(0);
        assert_true(st == SL_OK || (st == SL_ERR_NOMEM && !s));
    }
    sl_seq_free(s);
    st = SL_ERR_NOMEM;
    for (uint64_t n = 1; st != SL_OK; n++) {
        sl_mem_fail_at(n);
        st = sl_barrier_create(2, 1, 4, &bar, &err);
        sl_mem_fail_at(0);
        assert_true(st == SL_OK || (st == SL_ERR_NOMEM && !bar));
    }
    sl_barrier_free(bar);
    sl_mem_fail_at(1);
    assert_int_equal(sl_member_init(&m, 1, 4, &err), SL_ERR_NOMEM);
    sl_mem_fail_at(0);
    sl_member_free(&m);
}

static void steady_rounds_do_not_allocate(void **state) {
    (void)state;
    sl_seq *s;
    sl_seq_out o;
    OK(sl_seq_create(3, &s, &err));
    OK(sl_barrier_create(2, 1, 3, &bar, &err));
    OK(sl_seq_join(s, 1, &o, &err));
    uint64_t before = sl_mem_count();
    for (uint64_t round = 1; round < 50; round++) {
        if (round == 1) OK(sl_seq_join(s, 2, &o, &err));
        const sl_idset *set = round == 1 ? SET(1) : SET(1, 2);
        OK(announce(round, set));
        for (uint32_t layer = 0; layer < 2; layer++) {
            for (size_t i = 0; i < set->n; i++) {
                OK(arrive(set->ids[i], round, layer, layer == 0 ? set : NULL));
                if (layer == 1) OK(sl_seq_last(s, set->ids[i], round, true, &o, &err));
            }
            runs(round, layer, set);
        }
        assert_int_equal(o.round, round + 1);
    }
    assert_int_equal(sl_mem_count(), before);
    sl_barrier_free(bar);
    sl_seq_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(idset_keeps_order_and_limits),
        cmocka_unit_test(idset_grows_to_the_limit_only),
        cmocka_unit_test(sequencer_opens_closes_sleeps_and_wakes),
        cmocka_unit_test(sequencer_counts_the_dead_out),
        cmocka_unit_test(sequencer_refuses_violations),
        cmocka_unit_test(sequencer_reset_keeps_the_dead),
        cmocka_unit_test(barrier_waits_for_every_member),
        cmocka_unit_test(barrier_takes_an_early_joiner),
        cmocka_unit_test(barrier_counts_the_dead_as_bare_headers),
        cmocka_unit_test(barrier_lets_chunks_run_one_by_one),
        cmocka_unit_test(members_may_end_a_layer_early),
        cmocka_unit_test(barrier_refuses_violations),
        cmocka_unit_test(barrier_names_who_is_in_too_many_rounds),
        cmocka_unit_test(barrier_bears_who_does_without),
        cmocka_unit_test(barrier_reset_keeps_the_dead),
        cmocka_unit_test(member_goes_through_its_states),
        cmocka_unit_test(member_refuses_violations),
        cmocka_unit_test(creation_survives_every_failed_allocation),
        cmocka_unit_test(steady_rounds_do_not_allocate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
