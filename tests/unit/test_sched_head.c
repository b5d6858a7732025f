/* The head of a step: which rows go through it in which call, and in what pieces. */
#include "sched/head.h"

#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static uint64_t only_seed; /* argument: replay this one */

#define VOCAB 512u

typedef struct table {
    sl_slots slots;
    sl_cut cut;
    sl_step step;
    sl_head head;
} table;

static void make(table *t, uint32_t slots, uint32_t lanes) {
    sl_err err;
    sl_plan_worker worker = {0};
    const sl_plan p = {.lanes = lanes, .n_workers = 1, .worker = &worker};
    *t = (table){.cut = {.n_chunks = 1}};
    if (sl_slots_create(1, slots, &t->slots, &err) != SL_OK) fail_msg("%s", err.msg);
    if (sl_step_create(&t->slots, &t->cut, 0, 4096, 1.6, &t->step, &err) != SL_OK)
        fail_msg("%s", err.msg);
    sl_head_init(&t->head, &p, 0, VOCAB);
}

static void unmake(table *t) {
    sl_step_free(&t->step);
    sl_slots_free(&t->slots);
}

/* A request with `rows` rows in the step that is made: a prompt's, or one row that decodes. */
static sl_life *rides(table *t, uint32_t rows, bool sample) {
    sl_life *l = sl_slots_take(&t->slots, rows + (sample ? 0 : 9), 100, 100);
    const sl_step_part part = {
        .slot = sl_slots_index(&t->slots, l), .rows = rows, .prefill = rows > 1, .sample = sample};
    sl_step_add(&t->step, &part);
    return l;
}

static void columns(table *t, uint32_t first, uint32_t n) {
    sl_head_piece p;
    assert_true(sl_head_next(&t->head, &p));
    assert_true(p.kind == SL_HEAD_COLUMNS && p.first == first && p.n == n);
    sl_head_done(&t->head, &t->step);
}

static void tell(table *t, uint32_t first, uint32_t n) {
    sl_head_piece p;
    assert_true(sl_head_next(&t->head, &p));
    assert_true(p.kind == SL_HEAD_TELL && p.first == first && p.n == n);
    sl_head_done(&t->head, &t->step);
}

static void call_is(const table *t, uint32_t rows, bool whole, uint32_t first_row) {
    assert_int_equal(t->head.rows, rows);
    assert_int_equal(t->head.row[0], first_row);
    assert_int_equal(t->head.whole, whole);
}

static void over(table *t) {
    sl_head_piece p;
    assert_false(sl_head_next(&t->head, &p));
    sl_head_close(&t->head);
    sl_step_end(&t->step, 0);
}

static void small_pieces_where_lanes_wait(void **state) {
    (void)state;
    sl_head h;
    sl_plan_worker worker = {0};
    sl_plan p = {.lanes = 2, .n_workers = 1, .worker = &worker};
    sl_head_init(&h, &p, 0, 32000);
    assert_int_equal(h.columns, 1024);
    assert_int_equal(sl_head_column_pieces(&h), 32);
    sl_head_init(&h, &p, 0, 512);
    assert_int_equal(sl_head_column_pieces(&h), 16);
    sl_head_init(&h, &p, 0, 31);
    assert_int_equal(h.columns, 31);
    sl_head_init(&h, &p, 0, 1);
    assert_int_equal(sl_head_column_pieces(&h), 1);
    sl_head_init(&h, &p, 0, 0);
    assert_int_equal(sl_head_column_pieces(&h), 1);
    p.device.kind = SL_DEVICE_EMULATED;
    sl_head_init(&h, &p, 0, 32000);
    assert_int_equal(sl_head_column_pieces(&h), 1);
    p.device.kind = SL_DEVICE_CPU;
    worker.on_gpu = true;
    sl_head_init(&h, &p, 0, 32000);
    assert_int_equal(sl_head_column_pieces(&h), 1);
    worker.on_gpu = false;
    p.lanes = 1;
    sl_head_init(&h, &p, 0, 32000);
    assert_int_equal(sl_head_column_pieces(&h), 1);
}

static void last_rows_share_a_call(void **state) {
    (void)state;
    static table t;
    make(&t, 8, 1);
    rides(&t, 1, true);
    rides(&t, 7, false); /* a prompt that goes on: nothing of it is wanted */
    const sl_life *prompt = rides(&t, 5, true);
    sl_head_open(&t.head, &t.step);
    assert_int_equal(prompt->done, 5);
    call_is(&t, 2, false, 0);
    assert_int_equal(t.head.row[1], 12);
    assert_int_equal(t.head.part[1], 2);
    columns(&t, 0, VOCAB);
    tell(&t, 0, 2);
    over(&t);
    unmake(&t);
}

static void many_rows_are_many_small_pieces(void **state) {
    (void)state;
    static table t;
    make(&t, 40, 2);
    for (int i = 0; i < 38; i++) rides(&t, 1, true);
    sl_head_open(&t.head, &t.step);
    call_is(&t, SL_HEAD_ROWS, false, 0);
    for (uint32_t c = 0; c < VOCAB; c += 32) columns(&t, c, 32);
    for (uint32_t r = 0; r < SL_HEAD_ROWS; r += 4) tell(&t, r, 4);
    call_is(&t, 6, false, SL_HEAD_ROWS);
    for (uint32_t c = 0; c < VOCAB; c += 32) columns(&t, c, 32);
    tell(&t, 0, 4);
    tell(&t, 4, 2);
    over(&t);
    unmake(&t);
}

static void who_wants_all_rows_comes_first_and_alone(void **state) {
    (void)state;
    static table t;
    make(&t, 8, 1);
    rides(&t, 1, true);
    sl_life *all = rides(&t, 40, true);
    all->whole_until = UINT32_MAX;
    sl_life *some =
        rides(&t, 3, false); /* a chunk of a prompt whose log-probabilities are wanted */
    some->whole_until = 1;
    sl_head_open(&t.head, &t.step);
    call_is(&t, 32, true, 1);
    columns(&t, 0, VOCAB);
    tell(&t, 0, 32);
    call_is(&t, 8, true, 33);
    columns(&t, 0, VOCAB);
    tell(&t, 0, 8);
    call_is(&t, 3, true, 41);
    columns(&t, 0, VOCAB);
    tell(&t, 0, 3);
    call_is(&t, 1, false, 0); /* not the one that has drawn with its rows */
    columns(&t, 0, VOCAB);
    tell(&t, 0, 1);
    over(&t);
    const sl_step_part again = {.slot = sl_slots_index(&t.slots, some), .rows = 2, .prefill = true};
    sl_step_add(&t.step, &again); /* from position 3 on it wants no more than others */
    sl_head_open(&t.head, &t.step);
    over(&t);
    unmake(&t);
}

static void who_ends_meanwhile_is_left_out(void **state) {
    (void)state;
    static table t;
    make(&t, 40, 1);
    sl_life *first[33];
    for (int i = 0; i < 33; i++) first[i] = rides(&t, 1, true);
    sl_head_open(&t.head, &t.step);
    columns(&t, 0, VOCAB);
    sl_life_end(first[32]); /* cancelled while the others' columns were computed */
    tell(&t, 0, 32);
    over(&t);
    unmake(&t);
}

static void nothing_to_tell_is_no_piece(void **state) {
    (void)state;
    static table t;
    make(&t, 4, 2);
    sl_head_open(&t.head, &t.step);
    over(&t);
    rides(&t, 9, false);
    sl_head_open(&t.head, &t.step);
    over(&t);
    unmake(&t);
}

/* Every row that is wanted is computed once with all its columns and told once, in calls of at most
 * SL_HEAD_ROWS. */
static void drawn_steps(void **state) {
    (void)state;
    for (uint64_t seed = only_seed ? only_seed : 1; seed <= (only_seed ? only_seed : 200); seed++) {
        static table t;
        uint64_t rng = seed;
        uint32_t rows = 0, want = 0, got = 0;
        static uint8_t wanted[64 * 70], told[64 * 70];
        memset(wanted, 0, sizeof wanted);
        memset(told, 0, sizeof told);
        make(&t, 64, 1 + (uint32_t)sl_rng_below(&rng, 2));
        for (uint32_t n = (uint32_t)sl_rng_below(&rng, 65); n > 0; n--) {
            uint32_t of = sl_rng_below(&rng, 2) ? 1 : 1 + (uint32_t)sl_rng_below(&rng, 69);
            bool sample = of == 1 || sl_rng_below(&rng, 2);
            sl_life *l = rides(&t, of, sample);
            bool whole = sl_rng_below(&rng, 4) == 0;
            l->whole_until = whole ? 1 : 0;
            for (uint32_t r = 0; r < of; r++)
                want += wanted[rows + r] = whole || (sample && r == of - 1);
            rows += of;
        }
        sl_head_open(&t.head, &t.step);
        sl_head_piece p;
        uint32_t computed = 0;
        while (sl_head_next(&t.head, &p)) {
            assert_true(t.head.rows <= SL_HEAD_ROWS);
            if (p.kind == SL_HEAD_COLUMNS) {
                assert_int_equal(p.first, computed);
                computed += p.n;
            } else {
                assert_int_equal(computed, VOCAB);
                for (uint32_t i = p.first; i < p.first + p.n; i++, got++) {
                    uint32_t r = t.head.row[i];
                    if (!wanted[r] || told[r]++) fail_msg("seed %llu", (unsigned long long)seed);
                }
                if (p.first + p.n == t.head.rows) computed = 0;
            }
            sl_head_done(&t.head, &t.step);
        }
        assert_int_equal(got, want);
        over(&t);
        unmake(&t);
    }
}

int main(int argc, char **argv) {
    if (argc > 1) only_seed = strtoull(argv[1], NULL, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_pieces_where_lanes_wait),
        cmocka_unit_test(last_rows_share_a_call),
        cmocka_unit_test(many_rows_are_many_small_pieces),
        cmocka_unit_test(who_wants_all_rows_comes_first_and_alone),
        cmocka_unit_test(who_ends_meanwhile_is_left_out),
        cmocka_unit_test(nothing_to_tell_is_no_piece),
        cmocka_unit_test(drawn_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
