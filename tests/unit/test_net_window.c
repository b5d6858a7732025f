/* Windows: slots in turn, credit, generations; late and strange writers; what a peer may say.
 *
 * usage: test_net_window [--finds MUTATION]. With SL_MUTATIONS (net.finds.*) a planted bug is on,
 * and the drawn traffic has to notice it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "base/mem.h"
#include "base/mutate.h"
#include "base/rng.h"
#include "net/window.h"

#ifdef SL_MUTATIONS
sl_mutation sl_mutation_on;
#endif

#define SLOT 256u

/* Both ends of one window, in one memory. */
typedef struct pair {
    sl_window_in in;
    sl_window_out out;
    uint8_t got[SLOT];
    sl_err err;
} pair;

static void open_pair(pair *p, uint32_t slots, uint32_t first) {
    *p = (pair){0};
    p->in.shape = (sl_window_shape){.slots = slots, .slot_bytes = SLOT, .first = first};
    p->out.shape = p->in.shape;
    p->in.memory = sl_alloc(sl_window_bytes(&p->in.shape), 1);
    assert_non_null(p->in.memory);
    sl_window_in_open(&p->in);
    p->out.memory = p->in.memory;
    assert_true(sl_window_out_is_it(&p->out));
}

static void close_pair(pair *p) {
    sl_free(p->in.memory);
}

static void fill(uint8_t *to, uint64_t number, uint32_t bytes) {
    for (uint32_t i = 0; i < bytes; i++) to[i] = (uint8_t)(number * 131 + i * 7 + (number >> 8));
}

/* As somebody else would leave it. */
static void write_flag(pair *p, const sl_window_place *at) {
    memcpy(p->in.memory + at->flag_at, &at->flag, sizeof at->flag);
}

static uint64_t put(pair *p, uint32_t bytes) {
    uint8_t payload[SLOT];
    fill(payload, p->out.sent + 1, bytes);
    return sl_window_out_put(&p->out, payload, bytes);
}

static bool is_right(const pair *p, uint64_t number, uint32_t bytes) {
    uint8_t want[SLOT];
    fill(want, number, bytes);
    return memcmp(want, p->got, bytes) == 0;
}

static sl_status take(pair *p, uint64_t number, uint32_t bytes) {
    return sl_window_in_take(&p->in, number, bytes, p->got, &p->err);
}

static void wraps(void **state) {
    (void)state;
    pair p;
    open_pair(&p, 3, UINT32_MAX - 20000); /* generations go past 2^32, too */
    for (uint64_t k = 1; k <= 50000; k++) {
        const uint32_t bytes = 1 + (uint32_t)(k * 37 % SLOT);
        assert_true(sl_window_out_has_room(&p.out, bytes));
        assert_int_equal(put(&p, bytes), k);
        assert_int_equal(take(&p, k, bytes), SL_OK);
        assert_true(is_right(&p, k, bytes));
        assert_int_equal(sl_window_out_credit(&p.out, p.in.taken, &p.err), SL_OK);
    }
    close_pair(&p);
}

static void credit(void **state) {
    (void)state;
    pair p;
    open_pair(&p, 2, 7);
    assert_false(sl_window_out_has_room(&p.out, 0));
    assert_true(sl_window_out_has_room(&p.out, SLOT));
    assert_false(sl_window_out_has_room(&p.out, SLOT + 1));
    put(&p, 10);
    put(&p, 20);
    assert_false(sl_window_out_has_room(&p.out, 1)); /* by a message, then */
    assert_int_equal(take(&p, 1, 10), SL_OK);
    assert_false(sl_window_out_has_room(&p.out, 1)); /* free, but nobody said so */
    assert_int_equal(sl_window_out_credit(&p.out, 1, &p.err), SL_OK);
    assert_true(sl_window_out_has_room(&p.out, 1));
    assert_int_equal(sl_window_out_credit(&p.out, 1, &p.err), SL_OK); /* nothing new */
    assert_int_equal(sl_window_out_credit(&p.out, 0, &p.err), SL_ERR_PROTOCOL);
    assert_int_equal(sl_window_out_credit(&p.out, 3, &p.err), SL_ERR_PROTOCOL);
    assert_int_equal(sl_window_out_credit(&p.out, UINT64_MAX, &p.err), SL_ERR_PROTOCOL);
    close_pair(&p);
}

static void announcements(void **state) {
    (void)state;
    pair p;
    open_pair(&p, 2, 7);
    assert_int_equal(sl_window_in_announced(&p.in, 0, 10, &p.err), SL_ERR_PROTOCOL);
    assert_int_equal(sl_window_in_announced(&p.in, 1, 10, &p.err), SL_OK);
    assert_int_equal(sl_window_in_announced(&p.in, 2, SLOT, &p.err), SL_OK);
    assert_int_equal(sl_window_in_announced(&p.in, 3, 10, &p.err), SL_ERR_PROTOCOL);
    assert_int_equal(sl_window_in_announced(&p.in, UINT64_MAX, 10, &p.err), SL_ERR_PROTOCOL);
    assert_int_equal(sl_window_in_announced(&p.in, 1, 0, &p.err), SL_ERR_PROTOCOL);
    assert_int_equal(sl_window_in_announced(&p.in, 1, SLOT + 1, &p.err), SL_ERR_PROTOCOL);
    put(&p, 10);
    put(&p, 10);
    assert_int_equal(take(&p, 2, 10), SL_ERR_PROTOCOL); /* out of turn */
    assert_int_equal(take(&p, 1, 10), SL_OK);
    assert_int_equal(take(&p, 1, 10), SL_ERR_PROTOCOL); /* again */
    assert_int_equal(take(&p, 2, 10), SL_OK);
    close_pair(&p);
}

static void expect_late(pair *p, uint64_t number, uint32_t bytes) {
    assert_int_equal(take(p, number, bytes), SL_ERR_PROTOCOL);
    assert_non_null(strstr(p->err.msg, "a late writer"));
    assert_int_equal(p->in.taken, number - 1);
}

/* Told of before it was written: as if its sender had died between payload and flag, which says
 * nothing of it. */
static void unwritten(void **state) {
    (void)state;
    pair p;
    open_pair(&p, 1, 7);
    expect_late(&p, 1, 20);
    fill(p.in.memory, 1, 20);
    expect_late(&p, 1, 20);
    put(&p, 20);
    assert_int_equal(take(&p, 1, 20), SL_OK);
    expect_late(&p, 2, 20); /* the one before is still there */
    close_pair(&p);
}

static void late_writers(void **state) {
    (void)state;
    pair p;
    sl_window_shape before = {.slots = 2, .slot_bytes = SLOT, .first = 4711};
    /* of an earlier incarnation, whose window had another first generation */
    open_pair(&p, 2, 7);
    sl_window_place at = sl_window_place_of(&before, 1, 20);
    write_flag(&p, &at);
    expect_late(&p, 1, 20);
    close_pair(&p);
    /* a lap late: its message was taken long ago */
    open_pair(&p, 2, 7);
    const sl_window_place first = sl_window_place_of(&p.in.shape, 1, 20);
    put(&p, 20);
    assert_int_equal(take(&p, 1, 20), SL_OK);
    put(&p, 20);
    assert_int_equal(take(&p, 2, 20), SL_OK);
    assert_int_equal(sl_window_out_credit(&p.out, 2, &p.err), SL_OK);
    put(&p, 20);
    assert_int_equal(take(&p, 3, 20), SL_OK);
    put(&p, 20);
    assert_int_equal(take(&p, 4, 20), SL_OK);
    assert_int_equal(sl_window_out_credit(&p.out, 4, &p.err), SL_OK);
    put(&p, 20);
    write_flag(&p, &first); /* into what is the slot of message 5 now */
    expect_late(&p, 5, 20);
    close_pair(&p);
    /* a lap early: it did not wait for the slot to be free */
    open_pair(&p, 2, 7);
    put(&p, 20);
    at = sl_window_place_of(&p.in.shape, 3, 20);
    write_flag(&p, &at);
    expect_late(&p, 1, 20);
    close_pair(&p);
}

/* The sender mapped something else. */
static void other_memory(void **state) {
    (void)state;
    pair p;
    open_pair(&p, 2, 7);
    p.out.shape.first++;
    assert_false(sl_window_out_is_it(&p.out));
    p.out.shape.first--;
    p.in.memory[SLOT]++;
    assert_false(sl_window_out_is_it(&p.out));
    p.in.memory[SLOT]--;
    assert_true(sl_window_out_is_it(&p.out));
    put(&p, 1);
    assert_false(sl_window_out_is_it(&p.out));
    close_pair(&p);
}

static void wrong_length(void **state) {
    (void)state;
    pair p;
    open_pair(&p, 2, 7);
    put(&p, 20);
    expect_late(&p, 1, 21);
    expect_late(&p, 1, 19);
    assert_int_equal(take(&p, 1, SLOT + 1), SL_ERR_PROTOCOL);
    assert_int_equal(take(&p, 1, 20), SL_OK);
    close_pair(&p);
}

/* ---- bytes ---- */

static void offers(void **state) {
    (void)state;
    uint8_t key[SL_WINDOW_MAX_KEY_BYTES + 1], bytes[SL_WINDOW_MAX_OFFER];
    memset(key, 0xA5, sizeof key);
    const sl_window_offer good = {.shape = {.slots = 64, .slot_bytes = 64 << 20, .first = 1},
                                  .at = 0x7000000000,
                                  .key = {key, SL_WINDOW_MAX_KEY_BYTES}};
    sl_window_offer o;
    sl_err err;
    size_t len = sl_window_offer_encode(&good, bytes);
    assert_int_equal(len, SL_WINDOW_MAX_OFFER);
    assert_int_equal(sl_window_offer_decode((sl_span){bytes, len}, &o, &err), SL_OK);
    assert_true(o.at == good.at && o.shape.slots == 64 && o.shape.slot_bytes == 64 << 20 &&
                o.shape.first == 1 && o.key.len == good.key.len && o.key.data[7] == 0xA5);
    for (size_t n = 0; n < len; n++)
        assert_int_equal(sl_window_offer_decode((sl_span){bytes, n}, &o, &err), SL_ERR_PROTOCOL);
    const sl_window_offer bad[] = {{.shape = {0, 64, 1}, .at = 64},
                                   {.shape = {65, 64, 1}, .at = 64},
                                   {.shape = {1, 0, 1}, .at = 64},
                                   {.shape = {1, 65, 1}, .at = 64},
                                   {.shape = {1, 64, 0}, .at = 64},
                                   {.shape = {1, 64, 1}, .at = 0},
                                   {.shape = {1, 64, 1}, .at = 68},
                                   {.shape = {1, 64, 1}, .at = UINT64_MAX - 63},
                                   {.shape = {1, (64u << 20) + 64, 1}, .at = 64}};
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        len = sl_window_offer_encode(&bad[i], bytes);
        assert_int_equal(sl_window_offer_decode((sl_span){bytes, len}, &o, &err), SL_ERR_PROTOCOL);
    }
}

/* ---- two threads ---- */

#define PASSED 20000u

typedef struct shared {
    pair p;
    _Atomic uint64_t told, credit; /* the headers, and what goes back */
} shared;

static uint32_t length_of(uint64_t number) {
    return 1 + (uint32_t)(number * 37 % SLOT);
}

static void *send_all(void *arg) {
    shared *s = arg;
    sl_err err;
    for (uint64_t k = 1; k <= PASSED; k++) {
        while (!sl_window_out_has_room(&s->p.out, length_of(k))) {
            if (sl_window_out_credit(&s->p.out, atomic_load(&s->credit), &err) != SL_OK)
                return NULL;
            sched_yield();
        }
        put(&s->p, length_of(k));
        atomic_store(&s->told, k);
    }
    return s;
}

/* As two processes have it. Under ThreadSanitizer: flags alone order what lies in slots. */
static void two_threads(void **state) {
    (void)state;
    static shared s;
    pthread_t sender;
    void *all = NULL;
    open_pair(&s.p, 3, 99);
    assert_int_equal(pthread_create(&sender, NULL, send_all, &s), 0);
    for (uint64_t k = 1; k <= PASSED; k++) {
        while (atomic_load(&s.told) < k) sched_yield();
        assert_int_equal(take(&s.p, k, length_of(k)), SL_OK);
        assert_true(is_right(&s.p, k, length_of(k)));
        atomic_store(&s.credit, k);
    }
    assert_int_equal(pthread_join(sender, &all), 0);
    assert_non_null(all);
    close_pair(&s.p);
}

/* ---- drawn traffic ---- */

typedef enum verdict { GOOD, REFUSED, WRONG } verdict;

#define SLOTS   4u
#define MOST_UP 64u /* messages under way */

/* Messages are put, told of, taken and credited in a drawn order, as the two ends and the wire
 * between them may be apart. In a run with `late` somebody of an earlier session, who has the
 * window's memory still, writes into a slot at a drawn moment. Honest traffic has to be GOOD, and
 * whatever happens nothing WRONG is taken. */
static verdict traffic(uint64_t seed, bool late) {
    pair p;
    uint64_t rng = seed, told = 0, late_at = sl_rng_below(&rng, 300);
    uint32_t bytes[MOST_UP];
    verdict v = GOOD;
    open_pair(&p, SLOTS, 1 + (uint32_t)sl_rng_below(&rng, 1000000));
    const sl_window_shape before = {SLOTS, SLOT, p.in.shape.first + 2000000};
    for (uint32_t step = 0; v == GOOD && step < 1000; step++) {
        const uint32_t len = 1 + (uint32_t)sl_rng_below(&rng, SLOT);
        const uint64_t next = p.in.taken + 1;
        switch (sl_rng_below(&rng, 4)) {
        case 0:
            if (p.out.sent - p.in.taken >= MOST_UP || !sl_window_out_has_room(&p.out, len)) break;
            bytes[(p.out.sent + 1) % MOST_UP] = len;
            put(&p, len);
            break;
        case 1: /* the next header arrives */
            if (told == p.out.sent) break;
            told++;
            if (sl_window_in_announced(&p.in, told, bytes[told % MOST_UP], &p.err) != SL_OK)
                v = REFUSED;
            break;
        case 2:
            if (told < next) break;
            sl_status st = take(&p, next, bytes[next % MOST_UP]);
            if (st == SL_ERR_PROTOCOL) v = REFUSED;
            if (st == SL_OK && !is_right(&p, next, bytes[next % MOST_UP])) v = WRONG;
            break;
        default: /* whatever goes back says what was taken */
            if (sl_window_out_credit(&p.out, p.in.taken, &p.err) != SL_OK) v = REFUSED;
        }
        if (late && step == late_at) {
            const uint64_t number = p.in.taken + 1 + sl_rng_below(&rng, SLOTS);
            const uint32_t of = number <= p.out.sent ? bytes[number % MOST_UP] : len;
            const sl_window_place at = sl_window_place_of(&before, number, of);
            memset(p.in.memory + at.at, 0xEE, of);
            write_flag(&p, &at);
        }
    }
    close_pair(&p);
    return v;
}

static verdict worst(uint64_t runs, bool late) {
    verdict v = GOOD;
    for (uint64_t seed = 1; seed <= runs; seed++) {
        const verdict got = traffic(seed, late);
        v = got > v ? got : v;
    }
    return v;
}

static void drawn(void **state) {
    (void)state;
    assert_int_equal(worst(500, false), GOOD);
    assert_int_equal(worst(2000, true), REFUSED);
}

#ifdef SL_MUTATIONS
/* 0: the drawn traffic noticed. */
static int finds(const char *name) {
    static const char *const names[] = {SL_MUTATION_NAMES};
    for (size_t i = 0; i < SL_LEN(names); i++)
        if (strcmp(names[i], name) == 0) sl_mutation_on = (sl_mutation)i;
    const verdict honest = worst(500, false), late = worst(2000, true);
    const bool found = honest != GOOD || late == WRONG;
    printf("%s: %s\n", name,
           !found           ? "not found"
           : honest == GOOD ? "what a late writer left was taken"
                            : "honest traffic broke");
    return sl_mutation_on == SL_MUTATE_NONE || !found;
}
#endif

int main(int argc, char **argv) {
#ifdef SL_MUTATIONS
    if (argc > 2 && strcmp(argv[1], "--finds") == 0) return finds(argv[2]);
#endif
    (void)argc, (void)argv;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wraps),         cmocka_unit_test(credit),
        cmocka_unit_test(announcements), cmocka_unit_test(unwritten),
        cmocka_unit_test(late_writers),  cmocka_unit_test(wrong_length),
        cmocka_unit_test(offers),        cmocka_unit_test(other_memory),
        cmocka_unit_test(drawn),         cmocka_unit_test(two_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
