/* States of linear attention: rows that a step had and that do not count, whatever the reason,
 * leave nothing behind; a place that others had before is as a new one; and all of it is the same
 * of a file that has rows in another order. */
#include "model/convert.h"
#include "model_folder.h"
#include "model_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>
#include <cmocka.h>

#define GOLDEN SL_SOURCE_DIR "/tests/golden/"

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

static void open_model(scene *s, const char *path) {
    s->m = model_run_open(path);
    s->run = model_run_make(s->m, sl_kernels_select(NULL), NULL, LEN);
    s->seq = model_seq_make(s->run.s, LEN + MORE);
}

static scene make_of(const char *path) {
    scene s = {0};
    open_model(&s, path);
    model_run_ids(s.ids, LEN, s.run.s->vocab, 3);
    s.want = malloc((size_t)LEN * s.run.s->vocab * sizeof *s.want);
    s.got = malloc((size_t)MORE * s.run.s->vocab * sizeof *s.got);
    model_run_prefill(&s.run, &s.seq, s.ids, 0, LEN, LEN, s.want);
    return s;
}

static scene make(void) {
    char dir[64];
    folder_make(dir, folder_qwen3next, SL_F32, 1, 5);
    scene s = make_of(dir);
    memcpy(s.dir, dir, sizeof dir);
    return s;
}

static void drop(scene *s) {
    free(s->want), free(s->got);
    model_seq_free(&s->seq);
    model_run_free(&s->run);
    sl_model_free(s->m);
    if (s->dir[0]) folder_remove(s->dir);
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

/* The whole text, with guesses of which some were wrong. */
static void go_on_from_guesses(scene *s, uint64_t *rng) {
    for (uint32_t at = 0; at < LEN;) {
        const uint32_t right = 1 + (uint32_t)sl_rng_below(rng, SL_MIN(LEN - at, 4u));
        const uint32_t wrong = (uint32_t)sl_rng_below(rng, 9);
        step(s, at, right, wrong);
        model_states.done[s->seq.number] = at += right;
    }
}

static void guesses_that_were_wrong_leave_nothing(void **state) {
    (void)state;
    scene s = make();
    uint64_t rng = 11;
    for (uint32_t turn = 0; turn < 8; turn++) go_on_from_guesses(&s, &rng);
    drop(&s);
}

static void rows_by_parts_give_the_same_bits(void **state) {
    (void)state;
    char path[64];
    snprintf(path, sizeof path, "/tmp/sl-delta-%d.gguf", (int)getpid());
    const sl_convert_options o = {.type = SL_F32, .replace = true};
    sl_err err = {0};
    uint64_t rng = 13;
    scene s = make_of(GOLDEN "qwen3next-tiny");
    if (sl_convert(GOLDEN "qwen3next-tiny", path, &o, NULL, &err) != SL_OK) fail_msg("%s", err.msg);
    model_seq_free(&s.seq);
    model_run_free(&s.run);
    sl_model_free(s.m);
    open_model(&s, path);
    assert_true(s.run.s->delta_parts && !s.run.s->norm_past_one);
    for (uint32_t turn = 0; turn < 3; turn++) go_on_from_guesses(&s, &rng);
    drop(&s);
    assert_int_equal(unlink(path), 0);
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
        cmocka_unit_test(rows_by_parts_give_the_same_bits),
        cmocka_unit_test(steps_that_are_given_up_leave_nothing),
        cmocka_unit_test(memory_of_states_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
