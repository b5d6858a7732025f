/* States of linear attention: rows that a step had and that do not count, whatever the reason,
 * leave nothing behind; a place that others had before is as a new one. */
#include "model_folder.h"
#include "model_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define LEN  90u
#define MORE 12u /* rows of a step, at most */

typedef struct scene {
    char dir[64];
    sl_model *m;
    model_run run;
    model_seq seq;
    uint32_t ids[LEN];
    float *want, *got;
} scene;

static scene make(void) {
    scene s = {0};
    folder_make(s.dir, folder_qwen3next, SL_F32, 1, 5);
    s.m = model_run_open(s.dir);
    s.run = model_run_make(s.m, sl_kernels_select(NULL), NULL, LEN);
    model_run_ids(s.ids, LEN, s.run.s->vocab, 3);
    s.want = malloc((size_t)LEN * s.run.s->vocab * sizeof *s.want);
    s.got = malloc((size_t)MORE * s.run.s->vocab * sizeof *s.got);
    s.seq = model_seq_make(s.run.s, LEN + MORE);
    model_run_prefill(&s.run, &s.seq, s.ids, 0, LEN, LEN, s.want);
    return s;
}

static void drop(scene *s) {
    free(s->want), free(s->got);
    model_seq_free(&s->seq);
    model_run_free(&s->run);
    sl_model_free(s->m);
    folder_remove(s->dir);
}

/* Rows from `at` on: `right` tokens as they are, then others. */
static void step(scene *s, uint32_t at, uint32_t right, uint32_t wrong) {
    uint32_t ids[MORE], pos[MORE], n = right + wrong;
    const model_seq *seqs[MORE];
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = i < right ? s->ids[at + i] : (s->ids[at % LEN] + 7 * i) % s->run.s->vocab;
        pos[i] = at + i;
        seqs[i] = &s->seq;
    }
    model_run_rows(&s->run, n, ids, pos, seqs, s->got);
    assert_memory_equal(s->got, s->want + (size_t)at * s->run.s->vocab,
                        (size_t)right * s->run.s->vocab * sizeof *s->got);
}

static void guesses_that_were_wrong_leave_nothing(void **state) {
    (void)state;
    scene s = make();
    uint64_t rng = 11;
    for (uint32_t turn = 0; turn < 8; turn++)
        for (uint32_t at = 0; at < LEN;) {
            const uint32_t right = 1 + (uint32_t)sl_rng_below(&rng, SL_MIN(LEN - at, 4u));
            const uint32_t wrong = (uint32_t)sl_rng_below(&rng, 9);
            step(&s, at, right, wrong);
            model_states.done[s.seq.number] = at += right;
        }
    drop(&s);
}

static void steps_that_are_given_up_leave_nothing(void **state) {
    (void)state;
    scene s = make();
    uint64_t rng = 12;
    uint32_t *done = &model_states.done[s.seq.number];
    uint32_t *version = &model_states.version[s.seq.number];
    for (uint32_t at = 0; at < LEN;) {
        const uint32_t right = 1 + (uint32_t)sl_rng_below(&rng, SL_MIN(LEN - at, 3u));
        const uint32_t before = *version;
        for (uint32_t lost = (uint32_t)sl_rng_below(&rng, 3); lost > 0; lost--) {
            step(&s, at, 1, lost);
            *done = at;
            *version = before; /* ...as if it had not been */
        }
        step(&s, at, right, 3); /* and of these some are dropped */
        *done = at += right;
    }
    drop(&s);
}

static void memory_of_states_is_counted(void **state) {
    (void)state;
    scene s = make();
    const sl_model_spec *m = s.run.s;
    sl_states some;
    sl_err err = {0};
    const size_t window = 3 * (3 * 10 * 2 + 6 * 19), held = 6 * 10 * 19;
    assert_int_equal(m->n_linear, 4);
    assert_int_equal(sl_states_bytes(m, false), 4 * 2 * (window + held) * sizeof(float));
    assert_true(sl_states_bytes(m, true) > sl_states_bytes(m, false));
    assert_int_equal(sl_states_open(m, UINT32_MAX, true, &some, &err), SL_ERR_LIMIT);
    sl_states_close(&some);
    drop(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guesses_that_were_wrong_leave_nothing),
        cmocka_unit_test(steps_that_are_given_up_leave_nothing),
        cmocka_unit_test(memory_of_states_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
