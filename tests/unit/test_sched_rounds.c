/* Rounds at one expert worker, rule by rule; test_sched_rounds_drawn.c runs many of them together.
 */
#include "base/mem.h"
#include "sched/rounds.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define PLACES 64u

static sl_err err;

#define OK(call) assert_int_equal((call), SL_OK)
/* The call is refused as a protocol violation, with `text` in its message. */
#define REFUSED(call, text)                                                                        \
    do {                                                                                           \
        assert_int_equal((call), SL_ERR_PROTOCOL);                                                 \
        const char *text_ = (text);                                                                \
        if (!strstr(err.msg, text_)) fail_msg("'%s' lacks '%s'", err.msg, text_);                  \
    } while (0)
#define SET(...)                                                                                   \
    (&(const sl_idset){.ids = (uint32_t[]){__VA_ARGS__},                                           \
                       .n = sizeof((uint32_t[]){__VA_ARGS__}) / 4})

/* Attention workers 0, 1, 2 and expert workers 2 (both), 5 and 6. */
#define SEQUENCER 2u
#define FOLLOWER  5u
#define OTHER     6u

/* A worker whose driver writes down what it is asked for, one line a call. */
typedef struct desk {
    sl_idset members, experts;
    sl_rounds *rounds;
    sl_round_msg msg[PLACES];
    uint32_t ids[PLACES][3]; /* of msg's sets */
    char said[1024];
} desk;

static void say(desk *d, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(desk *d, const char *fmt, ...) {
    size_t n = strlen(d->said);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(d->said + n, sizeof d->said - n, fmt, ap);
    va_end(ap);
}

static void say_set(desk *d, const sl_idset *set) {
    say(d, "{");
    for (size_t i = 0; i < set->n; i++) say(d, "%s%u", i ? "," : "", set->ids[i]);
    say(d, "}");
}

/* What was said since the last look. */
static void heard(desk *d, const char *text) {
    assert_string_equal(d->said, text);
    d->said[0] = '\0';
}

static void tell_set(void *ctx, bool open, const sl_idset *to, uint32_t lane, uint64_t round,
                     const sl_idset *set) {
    say(ctx, "%s %u.%u ", open ? "open" : "set", lane, (unsigned)round);
    say_set(ctx, set);
    say(ctx, " to ");
    say_set(ctx, to);
    say(ctx, "\n");
}

static void tell_dead(void *ctx, uint32_t to, uint32_t member) {
    say(ctx, "dead %u to %u\n", member, to);
}

static void refuse(void *ctx, uint32_t member, const char *why) {
    say(ctx, "refuse %u: %s\n", member, why);
}

static void recall(void *ctx, uint32_t place, sl_round_msg *out) {
    *out = ((desk *)ctx)->msg[place];
}

static void drop(void *ctx, uint32_t place, bool answered) {
    const sl_round_msg *m = &((desk *)ctx)->msg[place];
    say(ctx, "drop %u%s %u.%u.%u\n", m->member, answered ? " answered" : "", (unsigned)m->round,
        m->layer, m->chunk);
}

static sl_rounds_shape shape_of(desk *d, uint32_t self, uint32_t lanes, uint32_t n_moe,
                                uint32_t chunks) {
    static uint32_t members[] = {0, 1, 2}, experts[] = {SEQUENCER, FOLLOWER, OTHER};
    d->members = (sl_idset){.ids = members, .n = 3};
    d->experts = (sl_idset){.ids = experts, .n = 3};
    return (sl_rounds_shape){.n_lanes = lanes,
                             .n_moe = n_moe,
                             .chunks = chunks,
                             .self = self,
                             .epoch = 1,
                             .members = &d->members,
                             .experts = &d->experts,
                             .ops = {tell_set, tell_dead, refuse, recall, drop},
                             .ctx = d};
}

static desk *start(uint32_t self, uint32_t lanes, uint32_t n_moe, uint32_t chunks) {
    static desk d;
    memset(&d, 0, sizeof d);
    sl_rounds_shape shape = shape_of(&d, self, lanes, n_moe, chunks);
    OK(sl_rounds_create(&shape, &d.rounds, &err));
    assert_int_equal(sl_rounds_places(d.rounds), lanes * 3 * chunks);
    return &d;
}

static void stop(desk *d) {
    heard(d, "");
    sl_rounds_free(d->rounds);
}

/* One row of member m; step is layer * chunks + chunk, set NULL where none travels. */
typedef struct row {
    uint32_t member, lane, layer, chunk;
    uint64_t round;
    const sl_idset *set;
    bool stay;
} row;

static sl_status send(desk *d, row r, uint32_t *place) {
    uint32_t at;
    sl_round_msg m = {.member = r.member,
                      .lane = r.lane,
                      .layer = r.layer,
                      .chunk = r.chunk,
                      .round = r.round,
                      .rows = 1,
                      .stay = r.stay,
                      .with_set = r.set != NULL};
    if (r.set) m.set = *r.set;
    sl_status st = sl_rounds_on_dispatch(d->rounds, &m, &at, &err);
    if (place) *place = at;
    if (st != SL_OK || at == SL_ROUNDS_NONE) return st;
    assert_int_equal(at, sl_rounds_place(d->rounds, r.lane, r.member, r.chunk));
    d->msg[at] = m;
    d->msg[at].set.ids = d->ids[at];
    if (r.set) memcpy(d->ids[at], r.set->ids, r.set->n * sizeof(uint32_t));
    return SL_OK;
}

/* What has been ready longest begins, and is this chunk of these members; next as say_set has it.
 */
static void begins(desk *d, uint32_t lane, uint64_t round, uint32_t layer, uint32_t chunk,
                   const sl_idset *members, const char *next) {
    sl_round_task t;
    assert_true(sl_rounds_begin(d->rounds, &t));
    assert_true(t.lane == lane && t.round == round && t.layer == layer && t.chunk == chunk);
    assert_true(sl_idset_equal(&(sl_idset){.ids = (uint32_t *)t.member, .n = t.n}, members));
    for (uint32_t i = 0; i < t.n; i++)
        assert_int_equal(t.place[i], sl_rounds_place(d->rounds, lane, t.member[i], chunk));
    if (t.next) say_set(d, t.next);
    heard(d, next);
}

static void runs(desk *d, uint32_t lane, uint64_t round, uint32_t layer, uint32_t chunk,
                 const sl_idset *members, const char *next) {
    begins(d, lane, round, layer, chunk, members, next);
    sl_rounds_end(d->rounds);
}

static void nothing_is_ready(desk *d) {
    sl_round_task t;
    assert_false(sl_rounds_begin(d->rounds, &t));
    assert_int_equal(sl_rounds_rows(d->rounds), 0);
}

/* ---- rounds ---- */

static void a_life_of_a_lane(void **state) {
    (void)state;
    desk *d = start(SEQUENCER, 2, 2, 1);
    assert_true(sl_rounds_is_sequencer(d->rounds));
    OK(sl_rounds_on_join(d->rounds, 1, 1, &err)); /* a sleeping lane opens at once */
    heard(d, "set 1.1 {1} to {5,6}\nopen 1.1 {1} to {1}\n");
    OK(send(d, (row){1, 1, 0, 0, 1, SET(1)}, NULL));
    OK(sl_rounds_on_join(d->rounds, 0, 1, &err)); /* waits for the next round */
    runs(d, 1, 1, 0, 0, SET(1), "");
    heard(d, "drop 1 answered 1.0.0\n");
    nothing_is_ready(d);
    OK(send(d, (row){1, 1, 1, 0, 1, NULL, true}, NULL)); /* the vote closes it */
    heard(d, "set 1.2 {0,1} to {5,6}\nopen 1.2 {0,1} to {0}\n");
    runs(d, 1, 1, 1, 0, SET(1), "{0,1}");
    heard(d, "drop 1 answered 1.1.0\n");
    OK(send(d, (row){0, 1, 0, 0, 2, SET(0, 1)}, NULL));
    nothing_is_ready(d);
    OK(send(d, (row){1, 1, 0, 0, 2, SET(0, 1)}, NULL));
    assert_int_equal(sl_rounds_rows(d->rounds), 2);
    runs(d, 1, 2, 0, 0, SET(0, 1), "");
    heard(d, "drop 0 answered 2.0.0\ndrop 1 answered 2.0.0\n");
    OK(send(d, (row){1, 1, 1, 0, 2, NULL, false}, NULL));
    OK(send(d, (row){0, 1, 1, 0, 2, NULL, false}, NULL)); /* both leave: the lane sleeps */
    runs(d, 1, 2, 1, 0, SET(0, 1), "{}");
    heard(d, "drop 0 answered 2.1.0\ndrop 1 answered 2.1.0\n");
    OK(sl_rounds_on_join(d->rounds, 1, 1, &err));
    heard(d, "set 1.3 {1} to {5,6}\nopen 1.3 {1} to {1}\n");
    stop(d);
    sl_rounds_free(NULL);
}

static void what_is_ready_first_runs_first(void **state) {
    (void)state;
    desk *d = start(FOLLOWER, 3, 1, 2);
    const uint32_t order[] = {2, 0, 1};
    for (uint32_t i = 0; i < 3; i++) {
        OK(sl_rounds_on_set(d->rounds, i, 1, SET(0), &err));
        OK(sl_rounds_on_set(d->rounds, i, 2, SET(1), &err));
    }
    for (uint32_t i = 0; i < 3; i++) { /* an early joiner's round runs beside the one before */
        OK(send(d, (row){1, order[i], 0, 0, 2, SET(1)}, NULL));
        OK(send(d, (row){0, order[i], 0, 0, 1, SET(0)}, NULL));
    }
    OK(send(d, (row){0, 2, 0, 1, 1, NULL}, NULL));
    assert_int_equal(sl_rounds_rows(d->rounds), 7);
    for (uint32_t i = 0; i < 3; i++) {
        runs(d, order[i], 2, 0, 0, SET(1), "");
        runs(d, order[i], 1, 0, 0, SET(0), "");
    }
    runs(d, 2, 1, 0, 1, SET(0), ""); /* its first chunk stayed until now */
    heard(d, "drop 0 answered 1.0.0\ndrop 0 answered 1.0.1\n");
    nothing_is_ready(d);
    stop(d);
}

static void next_is_that_of_the_answered_round(void **state) {
    (void)state;
    desk *d = start(SEQUENCER, 1, 1, 1); /* one message a round: they close before they run */
    OK(sl_rounds_on_join(d->rounds, 0, 0, &err));
    OK(sl_rounds_on_join(d->rounds, 1, 0, &err));
    OK(send(d, (row){0, 0, 0, 0, 1, SET(0), false}, NULL));
    OK(sl_rounds_on_join(d->rounds, 2, 0, &err));
    OK(send(d, (row){1, 0, 0, 0, 2, SET(1), false}, NULL));
    OK(send(d, (row){2, 0, 0, 0, 3, SET(2), false}, NULL));
    heard(d,
          "set 0.1 {0} to {5,6}\nopen 0.1 {0} to {0}\nset 0.2 {1} to {5,6}\nopen 0.2 {1} to {1}\n"
          "set 0.3 {2} to {5,6}\nopen 0.3 {2} to {2}\n");
    const sl_idset *who[] = {SET(0), SET(1), SET(2)};
    static const char *const next[] = {"{1}", "{2}", "{}"};
    static const char *const gone[] = {"drop 0 answered 1.0.0\n", "drop 1 answered 2.0.0\n",
                                       "drop 2 answered 3.0.0\n"};
    for (uint32_t i = 0; i < 3; i++) {
        runs(d, 0, i + 1, 0, 0, who[i], next[i]);
        heard(d, gone[i]);
    }
    stop(d);
}

static void a_round_that_died_out_leaves_no_next(void **state) {
    (void)state;
    desk *d = start(SEQUENCER, 1, 2, 1);
    OK(sl_rounds_on_join(d->rounds, 0, 0, &err));
    OK(sl_rounds_on_join(d->rounds, 1, 0, &err));
    OK(sl_rounds_on_dead(d->rounds, 0, &err)); /* round 1 is over, nobody is answered */
    heard(d,
          "set 0.1 {0} to {5,6}\nopen 0.1 {0} to {0}\nset 0.2 {1} to {5,6}\nopen 0.2 {1} to {1}\n"
          "dead 0 to 5\ndead 0 to 6\n");
    OK(send(d, (row){1, 0, 0, 0, 2, SET(1)}, NULL));
    runs(d, 0, 2, 0, 0, SET(1), "");
    OK(send(d, (row){1, 0, 1, 0, 2, NULL, true}, NULL));
    heard(d, "drop 1 answered 2.0.0\nset 0.3 {1} to {5,6}\n");
    runs(d, 0, 2, 1, 0, SET(1), "{1}");
    heard(d, "drop 1 answered 2.1.0\n");
    stop(d);
}

/* ---- what comes too early ---- */

static void messages_wait_for_the_word(void **state) {
    (void)state;
    desk *d = start(FOLLOWER, 1, 2, 1);
    assert_false(sl_rounds_is_sequencer(d->rounds));
    OK(send(d, (row){0, 0, 0, 0, 4, SET(0, 1)}, NULL));
    OK(send(d, (row){1, 0, 0, 0, 4, SET(0, 1)}, NULL));
    OK(send(d, (row){2, 0, 0, 0, 5, SET(2)}, NULL));
    nothing_is_ready(d);
    OK(sl_rounds_on_set(d->rounds, 0, 4, SET(0, 1), &err));
    runs(d, 0, 4, 0, 0, SET(0, 1), "");
    heard(d, "drop 0 answered 4.0.0\ndrop 1 answered 4.0.0\n");
    nothing_is_ready(d); /* round 5 is not announced */
    OK(sl_rounds_on_set(d->rounds, 0, 5, SET(2), &err));
    runs(d, 0, 5, 0, 0, SET(2), "");
    heard(d, "drop 2 answered 5.0.0\n");
    stop(d);
}

static void who_made_a_set_up_goes(void **state) {
    (void)state;
    desk *d = start(FOLLOWER, 1, 2, 2);
    OK(send(d, (row){0, 0, 0, 0, 1, SET(0)}, NULL));
    OK(send(d, (row){0, 0, 0, 1, 1, NULL}, NULL));      /* goes with the first */
    OK(send(d, (row){1, 0, 1, 0, 1, NULL}, NULL));      /* skips a layer */
    OK(send(d, (row){2, 0, 0, 0, 1, SET(0, 1)}, NULL)); /* not in it */
    OK(sl_rounds_on_set(d->rounds, 0, 1, SET(0, 1), &err));
    heard(d,
          "drop 0 1.0.0\ndrop 0 1.0.1\n"
          "refuse 0: the set that worker 0 sent for round 1 (1 members) is not the one decided (2 "
          "members)\n"
          "drop 1 1.1.0\n"
          "refuse 1: worker 1 sent layer 1 chunk 0 of round 1, its next is layer 0 chunk 0\n"
          "drop 2 1.0.0\nrefuse 2: worker 2 is no member of round 1\n");
    nothing_is_ready(d);
    stop(d);
}

static void who_only_votes_goes(void **state) {
    (void)state;
    desk *d = start(FOLLOWER, 1, 1, 1);
    for (uint64_t round = 1; round <= 2; round++)
        OK(sl_rounds_on_set(d->rounds, 0, round, SET(0), &err));
    heard(d, "");
    OK(sl_rounds_on_set(d->rounds, 0, 3, SET(0), &err));
    heard(d, "refuse 0: votes for rounds at the sequencer and sends nothing here\n");
    stop(d);
}

/* ---- what is refused ---- */

static void messages_that_cannot_be(void **state) {
    (void)state;
    desk *d = start(SEQUENCER, 1, 2, 2);
    OK(sl_rounds_on_join(d->rounds, 0, 0, &err));
    heard(d, "set 0.1 {0} to {5,6}\nopen 0.1 {0} to {0}\n");
    REFUSED(send(d, (row){OTHER, 0, 0, 0, 1, SET(0)}, NULL), "dispatch from worker 6");
    REFUSED(send(d, (row){0, 1, 0, 0, 1, SET(0)}, NULL), "dispatch for lane 1 of 1");
    REFUSED(send(d, (row){0, 0, 2, 0, 1, SET(0)}, NULL), "layer 2 of 2");
    REFUSED(send(d, (row){0, 0, 0, 2, 1, SET(0)}, NULL), "chunk 2 of 2");
    REFUSED(send(d, (row){0, 0, 0, 0, 2, SET(0)}, NULL), "round 2, which is not announced");
    REFUSED(send(d, (row){1, 0, 0, 0, 1, SET(0)}, NULL), "worker 1 is no member of round 1");
    REFUSED(send(d, (row){0, 0, 0, 0, 1, NULL}, NULL), "carries no member set");
    OK(send(d, (row){0, 0, 0, 0, 1, SET(0)}, NULL)); /* nothing of that was kept */
    REFUSED(send(d, (row){0, 0, 0, 0, 1, SET(0)}, NULL), "before its reply to layer 0");
    runs(d, 0, 1, 0, 0, SET(0), "");
    heard(d, ""); /* answered, and kept for the next chunk */
    REFUSED(send(d, (row){0, 0, 1, 0, 1, NULL}, NULL), "sent layer 1 of round 1 before its reply");
    OK(send(d, (row){0, 0, 0, 1, 1, NULL}, NULL));
    runs(d, 0, 1, 0, 1, SET(0), "");
    heard(d, "drop 0 answered 1.0.0\ndrop 0 answered 1.0.1\n");
    OK(send(d, (row){0, 0, 1, 0, 1, NULL}, NULL));
    runs(d, 0, 1, 1, 0, SET(0), "");
    stop(d);
}

static void words_that_cannot_be(void **state) {
    (void)state;
    desk *d = start(SEQUENCER, 1, 1, 1);
    REFUSED(sl_rounds_on_join(d->rounds, OTHER, 0, &err), "join of lane 0 from worker 6");
    REFUSED(sl_rounds_on_join(d->rounds, 0, 1, &err), "join of lane 1 from worker 0");
    OK(sl_rounds_on_join(d->rounds, 0, 0, &err));
    heard(d, "set 0.1 {0} to {5,6}\nopen 0.1 {0} to {0}\n");
    REFUSED(sl_rounds_on_join(d->rounds, 0, 0, &err), "which is in round 1");
    REFUSED(sl_rounds_on_dead(d->rounds, OTHER, &err), "worker 6, which is no member of others");
    REFUSED(sl_rounds_on_dead(d->rounds, SEQUENCER, &err), "worker 2, which is no member");
    assert_true(sl_rounds_may_announce(d->rounds, FOLLOWER));
    assert_true(sl_rounds_may_announce(d->rounds, OTHER));
    assert_false(sl_rounds_may_announce(d->rounds, SEQUENCER));
    assert_false(sl_rounds_may_announce(d->rounds, 0));
    stop(d);
    d = start(FOLLOWER, 1, 1, 1);
    REFUSED(sl_rounds_on_join(d->rounds, 0, 0, &err), "join of lane 0 from worker 0");
    REFUSED(sl_rounds_on_set(d->rounds, 1, 1, SET(0), &err), "round of lane 1 of 1");
    REFUSED(sl_rounds_on_set(d->rounds, 0, 1, SET(0, FOLLOWER), &err), "round with worker 5");
    OK(sl_rounds_on_set(d->rounds, 0, 3, SET(0), &err));
    REFUSED(sl_rounds_on_set(d->rounds, 0, 3, SET(0), &err), "after round 3");
    assert_true(sl_rounds_may_announce(d->rounds, SEQUENCER));
    assert_false(sl_rounds_may_announce(d->rounds, OTHER));
    stop(d);
}

/* ---- members die ---- */

static void a_round_goes_on_without_the_dead(void **state) {
    (void)state;
    desk *d = start(FOLLOWER, 1, 1, 2);
    uint32_t place;
    OK(sl_rounds_on_set(d->rounds, 0, 1, SET(0, 1, 2), &err));
    for (uint32_t m = 0; m < 2; m++) OK(send(d, (row){m, 0, 0, 0, 1, SET(0, 1, 2)}, NULL));
    OK(sl_rounds_on_dead(d->rounds, 2, &err)); /* the one that was waited for */
    assert_true(sl_rounds_is_dead(d->rounds, 2) && !sl_rounds_is_dead(d->rounds, 1));
    assert_false(sl_rounds_is_dead(d->rounds, OTHER));
    for (uint32_t m = 0; m < 2; m++) OK(send(d, (row){m, 0, 0, 1, 1, NULL}, NULL));
    assert_int_equal(sl_rounds_rows(d->rounds), 4);
    OK(sl_rounds_on_dead(d->rounds, 0, &err)); /* after both chunks are ready */
    heard(d, "drop 0 1.0.0\ndrop 0 1.0.1\n");
    runs(d, 0, 1, 0, 0, SET(1), "");
    begins(d, 0, 1, 0, 1, SET(1), "");
    place = sl_rounds_place(d->rounds, 0, 1, 1);
    assert_true(sl_rounds_is_owed(d->rounds, place));
    assert_false(sl_rounds_is_owed(d->rounds, place - 1)); /* answered */
    OK(sl_rounds_on_dead(d->rounds, 1, &err)); /* while it runs: what it runs on stays */
    assert_false(sl_rounds_is_owed(d->rounds, place));
    heard(d, "");
    sl_rounds_end(d->rounds);
    heard(d, "drop 1 answered 1.0.0\ndrop 1 1.0.1\n");
    OK(sl_rounds_on_dead(d->rounds, 1, &err)); /* known */
    OK(send(d, (row){1, 0, 0, 0, 2, SET(1)}, &place));
    assert_int_equal(place, SL_ROUNDS_NONE);
    nothing_is_ready(d);
    stop(d);
}

static void nobody_is_left_to_answer(void **state) {
    (void)state;
    desk *d = start(FOLLOWER, 1, 1, 1);
    sl_round_task t;
    OK(sl_rounds_on_set(d->rounds, 0, 1, SET(0), &err));
    OK(send(d, (row){0, 0, 0, 0, 1, SET(0)}, NULL));
    OK(sl_rounds_on_dead(d->rounds, 0, &err));
    heard(d, "drop 0 1.0.0\n");
    assert_true(sl_rounds_begin(d->rounds, &t));
    assert_true(t.n == 0 && t.next == NULL);
    sl_rounds_end(d->rounds);
    nothing_is_ready(d);
    stop(d);
}

static void deaths_are_told(void **state) {
    (void)state;
    desk *d = start(SEQUENCER, 2, 1, 1);
    OK(sl_rounds_on_join(d->rounds, 0, 1, &err));
    heard(d, "set 1.1 {0} to {5,6}\nopen 1.1 {0} to {0}\n");
    OK(sl_rounds_on_lost(d->rounds, 0, &err)); /* the sequencer decides, once for all lanes */
    heard(d, "dead 0 to 5\ndead 0 to 6\n");
    OK(sl_rounds_on_lost(d->rounds, 0, &err));
    OK(sl_rounds_on_join(d->rounds, 0, 1, &err)); /* was on its way */
    stop(d);
    d = start(FOLLOWER, 2, 1, 1);
    OK(sl_rounds_on_lost(d->rounds, 0, &err)); /* others tell it, and wait for its word */
    heard(d, "dead 0 to 2\n");
    assert_false(sl_rounds_is_dead(d->rounds, 0));
    OK(sl_rounds_on_lost(d->rounds, SEQUENCER, &err)); /* who would listen? */
    heard(d, "");
    OK(sl_rounds_on_dead(d->rounds, 0, &err));
    OK(sl_rounds_on_lost(d->rounds, 0, &err));
    stop(d);
}

/* ---- the rest ---- */

static void what_it_waits_for(void **state) {
    (void)state;
    desk *d = start(FOLLOWER, 3, 2, 1);
    uint32_t lane = 9, layer = 9;
    bool some;
    assert_false(sl_rounds_waiting(d->rounds, &lane, &layer, &some));
    OK(sl_rounds_on_set(d->rounds, 0, 1, SET(0), &err));
    OK(sl_rounds_on_set(d->rounds, 1, 1, SET(0, 1), &err));
    OK(sl_rounds_on_set(d->rounds, 2, 1, SET(2), &err));
    assert_true(sl_rounds_waiting(d->rounds, &lane, &layer, &some));
    assert_true(lane == 2 && layer == 0 && !some);
    OK(send(d, (row){0, 0, 0, 0, 1, SET(0)}, NULL));
    runs(d, 0, 1, 0, 0, SET(0), "");
    heard(d, "drop 0 answered 1.0.0\n");
    OK(send(d, (row){1, 1, 0, 0, 1, SET(0, 1)}, NULL));
    assert_true(sl_rounds_waiting(d->rounds, &lane, &layer, &some));
    assert_true(lane == 1 && layer == 0 && some);
    stop(d);
}

static void without_the_sequencer_nobody_is_waited_for(void **state) {
    (void)state;
    desk *d = start(FOLLOWER, 2, 2, 2);
    OK(sl_rounds_on_set(d->rounds, 0, 1, SET(0, 1), &err));
    OK(send(d, (row){0, 0, 0, 0, 1, SET(0, 1)}, NULL)); /* waits for 1, */
    OK(send(d, (row){0, 0, 0, 1, 1, NULL}, NULL));
    OK(send(d, (row){2, 1, 0, 0, 5, SET(2)}, NULL)); /* and this for the word on its round */
    nothing_is_ready(d);
    OK(sl_rounds_on_leaderless(d->rounds, &err));
    OK(sl_rounds_on_leaderless(d->rounds, &err));
    assert_int_equal(sl_rounds_rows(d->rounds), 3);
    runs(d, 0, 1, 0, 0, SET(0), "");
    runs(d, 0, 1, 0, 1, SET(0), "");
    heard(d, "drop 0 answered 1.0.0\ndrop 0 answered 1.0.1\n");
    runs(d, 1, 5, 0, 0, SET(2), "");
    OK(send(d, (row){0, 0, 1, 0, 1, NULL}, NULL)); /* whatever the layer and the round */
    OK(send(d, (row){1, 0, 0, 0, 2, SET(1)}, NULL));
    REFUSED(send(d, (row){1, 0, 0, 0, 2, SET(1)}, NULL), "before its reply");
    OK(sl_rounds_on_set(d->rounds, 0, 2, SET(1), &err)); /* its last word */
    OK(sl_rounds_on_lost(d->rounds, 0, &err));           /* nobody has to be asked */
    heard(d, "drop 0 1.1.0\n");
    runs(d, 0, 1, 1, 0, SET(), "");
    runs(d, 0, 2, 0, 0, SET(1), "");
    nothing_is_ready(d);
    sl_rounds_reset(d->rounds, 2);
    heard(d, "drop 1 answered 2.0.0\ndrop 2 answered 5.0.0\n");
    OK(sl_rounds_on_set(d->rounds, 0, 1, SET(1, 2), &err)); /* members are waited for again */
    OK(send(d, (row){1, 0, 0, 0, 1, SET(1, 2)}, NULL));
    nothing_is_ready(d);
    sl_rounds_reset(d->rounds, 3);
    heard(d, "drop 1 1.0.0\n");
    stop(d);
    d = start(SEQUENCER, 1, 1, 1); /* which does not lose itself */
    OK(sl_rounds_on_leaderless(d->rounds, &err));
    OK(sl_rounds_on_join(d->rounds, 0, 0, &err));
    heard(d, "set 0.1 {0} to {5,6}\nopen 0.1 {0} to {0}\n");
    stop(d);
}

/* Who counts as lost may live, and say what it has lost itself. */
static void words_of_the_lost_do_not_count(void **state) {
    (void)state;
    desk *d = start(FOLLOWER, 1, 2, 1);
    assert_true(sl_rounds_may_announce(d->rounds, SEQUENCER) &&
                sl_rounds_heeds(d->rounds, SEQUENCER));
    OK(sl_rounds_on_expert_lost(d->rounds, FOLLOWER, &err)); /* not itself, */
    OK(sl_rounds_on_expert_lost(d->rounds, 0, &err));        /* and nobody without experts */
    assert_true(sl_rounds_heeds(d->rounds, FOLLOWER) && sl_rounds_heeds(d->rounds, 0));
    OK(sl_rounds_on_expert_lost(d->rounds, SEQUENCER, &err));
    assert_true(sl_rounds_may_announce(d->rounds, SEQUENCER)); /* its connection stays */
    assert_false(sl_rounds_heeds(d->rounds, SEQUENCER));
    OK(send(d, (row){1, 0, 0, 0, 2, SET(1)}, NULL)); /* it is leaderless */
    runs(d, 0, 2, 0, 0, SET(1), "");
    sl_rounds_reset(d->rounds, 2);
    assert_true(sl_rounds_heeds(d->rounds, SEQUENCER));
    d->said[0] = '\0';
    stop(d);
    d = start(SEQUENCER, 1, 2, 1);
    OK(sl_rounds_on_expert_lost(d->rounds, OTHER, &err));
    OK(sl_rounds_on_expert_lost(d->rounds, OTHER, &err));
    assert_true(sl_rounds_may_announce(d->rounds, OTHER) && !sl_rounds_heeds(d->rounds, OTHER));
    assert_true(sl_rounds_heeds(d->rounds, FOLLOWER));
    d->said[0] = '\0';
    stop(d);
}

static void whose_rows_wait(void **state) {
    (void)state;
    desk *d = start(FOLLOWER, 2, 2, 1);
    OK(send(d, (row){0, 1, 0, 0, 1, SET(0, 1)}, NULL)); /* for the word on its round */
    assert_false(sl_rounds_waits(d->rounds, 0));
    OK(sl_rounds_on_set(d->rounds, 1, 1, SET(0, 1), &err));
    assert_true(sl_rounds_waits(d->rounds, 0)); /* for 1 */
    assert_false(sl_rounds_waits(d->rounds, 1) || sl_rounds_waits(d->rounds, FOLLOWER));
    OK(send(d, (row){1, 1, 0, 0, 1, SET(0, 1)}, NULL));
    assert_false(sl_rounds_waits(d->rounds, 0) || sl_rounds_waits(d->rounds, 1)); /* ready */
    runs(d, 1, 1, 0, 0, SET(0, 1), "");
    d->said[0] = '\0';
    stop(d);
}

/* What has come can be made ready while others' is on its way, but not while this worker's own is
 * not there. */
static void what_waits_for_others_alone(void **state) {
    (void)state;
    uint32_t of_0, of_2;
    desk *d = start(SEQUENCER, 1, 1, 1);
    for (uint32_t m = 0; m < 3; m++) OK(sl_rounds_on_join(d->rounds, m, 0, &err));
    d->said[0] = '\0';
    OK(send(d, (row){0, 0, 0, 0, 1, SET(0), .stay = true}, &of_0));
    assert_false(sl_rounds_awaits_others(d->rounds, of_0)); /* ready */
    runs(d, 0, 1, 0, 0, SET(0), "set 0.2 {0,1,2} to {5,6}\nopen 0.2 {0,1,2} to {1,2}\n{0,1,2}");
    OK(send(d, (row){0, 0, 0, 0, 2, SET(0, 1, 2)}, &of_0));
    assert_false(sl_rounds_awaits_others(d->rounds, of_0)); /* for its own, too */
    OK(send(d, (row){2, 0, 0, 0, 2, SET(0, 1, 2)}, &of_2));
    assert_true(sl_rounds_awaits_others(d->rounds, of_0) &&
                sl_rounds_awaits_others(d->rounds, of_2));
    assert_false(sl_rounds_awaits_others(d->rounds, sl_rounds_place(d->rounds, 0, 1, 0)));
    OK(send(d, (row){1, 0, 0, 0, 2, SET(0, 1, 2)}, NULL));
    assert_false(sl_rounds_awaits_others(d->rounds, of_0));
    d->said[0] = '\0';
    sl_rounds_free(d->rounds);
}

static void memory_runs_out(void **state) {
    (void)state;
    static desk d;
    sl_rounds_shape shape = shape_of(&d, SEQUENCER, 2, 2, 2);
    bool made = false;
    for (uint64_t nth = 1; !made; nth++) {
        sl_rounds *r = (sl_rounds *)&d;
        sl_mem_fail_at(nth);
        sl_status st = sl_rounds_create(&shape, &r, &err);
        sl_mem_fail_at(0);
        made = st == SL_OK;
        if (made) assert_true(nth > 20);
        if (!made) assert_true(st == SL_ERR_NOMEM && r == NULL);
        sl_rounds_free(r);
    }
    sl_rounds *r;
    shape.self = 0; /* hosts no experts */
    assert_int_equal(sl_rounds_create(&shape, &r, &err), SL_ERR_ARG);
    shape = shape_of(&d, SEQUENCER, 0, 2, 2);
    assert_int_equal(sl_rounds_create(&shape, &r, &err), SL_ERR_ARG);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_life_of_a_lane),
        cmocka_unit_test(what_is_ready_first_runs_first),
        cmocka_unit_test(next_is_that_of_the_answered_round),
        cmocka_unit_test(a_round_that_died_out_leaves_no_next),
        cmocka_unit_test(messages_wait_for_the_word),
        cmocka_unit_test(who_made_a_set_up_goes),
        cmocka_unit_test(who_only_votes_goes),
        cmocka_unit_test(messages_that_cannot_be),
        cmocka_unit_test(words_that_cannot_be),
        cmocka_unit_test(a_round_goes_on_without_the_dead),
        cmocka_unit_test(nobody_is_left_to_answer),
        cmocka_unit_test(deaths_are_told),
        cmocka_unit_test(what_it_waits_for),
        cmocka_unit_test(without_the_sequencer_nobody_is_waited_for),
        cmocka_unit_test(words_of_the_lost_do_not_count),
        cmocka_unit_test(whose_rows_wait),
        cmocka_unit_test(what_waits_for_others_alone),
        cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
