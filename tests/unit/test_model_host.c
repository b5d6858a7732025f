/* A model hosts other experts while it is open: those that are there are what a model with all of
 * them has, wherever they lie, the others are gone, and nothing is left of them. */
#include "model/model_int.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define GOLDEN SL_SOURCE_DIR "/tests/golden/"

/* Mapped, transposed, in scaled blocks, in MXFP4, fused, repacked. */
static const char *const models[] = {GOLDEN "qwen3moe-tiny",   GOLDEN "dbrx-tiny",
                                     GOLDEN "deepseekv3-tiny", GOLDEN "gptoss-tiny",
                                     GOLDEN "llama4-tiny",     GOLDEN "mixed.gguf"};

static void same(const sl_mat *want, const sl_mat *got) {
    assert_true(want->n == got->n && want->k == got->k && want->dtype == got->dtype);
    assert_true((want->data == NULL) == (got->data == NULL));
    assert_true((want->scale == NULL) == (got->scale == NULL));
    if (!want->data) return;
    assert_memory_equal(want->data, got->data, want->n * sl_dtype_row_bytes(want->dtype, want->k));
    if (want->scale) assert_memory_equal(want->scale, got->scale, sizeof(float));
}

static void check(const sl_model *all, const sl_model *m, const uint8_t *hosted, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const sl_expert_weights *want = &all->expert[i], *got = &m->expert[i];
        if (hosted[i]) {
            same(&want->gate, &got->gate);
            same(&want->up, &got->up);
            same(&want->down, &got->down);
            same(&want->gate_bias, &got->gate_bias);
            same(&want->up_bias, &got->up_bias);
            same(&want->down_bias, &got->down_bias);
        } else {
            assert_true(!got->gate.data && !got->up.data && !got->down.data);
            assert_true(!got->gate_bias.data && !got->down_bias.data);
        }
    }
}

/* All steps; whether there was one. */
static bool host(sl_model *m, const uint8_t *hosted, size_t n) {
    sl_err err = {0};
    sl_hosting left;
    uint32_t steps = 0;
    do {
        size_t before = 0, after = 0;
        for (size_t i = 0; i < n; i++) before += m->expert[i].down.data != NULL;
        if (sl_model_host(m, hosted, true, &left, &err) != SL_OK) fail_msg("%s", err.msg);
        for (size_t i = 0; i < n; i++) after += m->expert[i].down.data != NULL;
        assert_true(after + 8 >= before); /* few at a time */
        for (size_t i = 0; i < n; i++)    /* and only when all that are to come are there */
            if (after < before && hosted[i]) assert_non_null(m->expert[i].down.data);
        assert_in_range(++steps, 1, 100000);
    } while (left != SL_HOSTING_DONE);
    return steps > 1;
}

static void moves(void **state) {
    (void)state;
    for (size_t k = 0; k < SL_LEN(models); k++) {
        sl_err err = {0};
        sl_model *all = NULL, *m = NULL;
        uint8_t hosted[SL_MAX_EXPERTS * 8] = {0};
        size_t copies[3] = {0}, n;
        if (sl_model_open(models[k], &(sl_stages){.experts = true}, &all, &err) != SL_OK)
            fail_msg("%s", err.msg);
        n = (size_t)all->spec.n_moe * all->spec.n_experts;
        assert_true(n <= sizeof hosted);
        for (size_t i = 0; i < n; i++) hosted[i] = i % 3 == 0;
        const sl_stages some = {.experts = true, .hosted = hosted};
        assert_int_equal(sl_model_open(models[k], &some, &m, &err), SL_OK);
        copies[0] = m->copies.n;
        for (uint32_t turn = 1; turn < 10; turn++) {
            for (size_t i = 0; i < n; i++) hosted[i] = i % 3 == turn % 3;
            assert_true(host(m, hosted, n));
            check(all, m, hosted, n);
            if (turn < 3) copies[turn] = m->copies.n;
            assert_int_equal(m->copies.n, copies[turn % 3]);
            assert_false(host(m, hosted, n));
        }
        memset(hosted, 1, n); /* for a while, those of two plans */
        host(m, hosted, n);
        check(all, m, hosted, n);
        assert_int_equal(m->copies.n, all->copies.n);
        printf("%s: %zu experts, %zu copies\n", models[k] + sizeof GOLDEN - 1, n, m->copies.n);
        sl_model_free(m);
        sl_model_free(all);
    }
}

/* Random weights have no file: experts that come begin somewhere in them, and none that goes takes
 * values from the others. */
static void random_ones_move(void **state) {
    (void)state;
    sl_err err = {0};
    sl_model *m = NULL;
    uint8_t hosted[SL_MAX_EXPERTS * 8] = {0};
    const sl_stages some = {.experts = true, .hosted = hosted, .random = true};
    hosted[0] = 1;
    if (sl_model_open_until(models[0], &some, NULL, &m, &err) != SL_OK) fail_msg("%s", err.msg);
    const size_t n = (size_t)m->spec.n_moe * m->spec.n_experts;
    for (size_t turn = 1; turn < 6; turn++) {
        for (size_t i = 0; i < n; i++) hosted[i] = i % 3 == turn % 3;
        assert_true(host(m, hosted, n));
        for (size_t i = 0; i < n; i++) {
            assert_true((m->expert[i].down.data != NULL) == hosted[i]);
            if (hosted[i]) assert_in_range(m->expert[i].down.n, 1, m->spec.d_model);
        }
        uint64_t word;
        for (size_t at = 0; at + sizeof word <= m->random_bytes; at += sizeof word) {
            memcpy(&word, m->random + at, sizeof word);
            assert_true(word != 0);
        }
    }
    sl_model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(moves), cmocka_unit_test(random_ones_move)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
