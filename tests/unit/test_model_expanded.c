/* The expanded form of latent attention: equal to the absorbed one but for rounding, the same bits
 * for every chunk, thread and instruction set, and taken where rows are enough and not else. */
#include "base/rng.h"
#include "model/convert.h"
#include "model_naive.h"
#include "model_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>
#include <cmocka.h>

#define LEN 150u /* more than a span of positions, the last page partly filled */

static const char *const fixtures[] = {SL_SOURCE_DIR "/tests/golden/deepseekv2-tiny",
                                       SL_SOURCE_DIR "/tests/golden/deepseekv3-tiny"};

/* Logits of a prompt in steps of `chunk` rows. */
static float *prefill(model_run *r, uint32_t expand_rows, const uint32_t *ids, uint32_t n,
                      uint32_t chunk) {
    model_seq seq = model_seq_make(r->s, n);
    float *logits = malloc((size_t)n * r->s->vocab * sizeof *logits);
    r->ex.expand_rows = expand_rows;
    model_run_prefill(r, &seq, ids, 0, n, chunk, logits);
    assert_int_equal(r->scratch.used, 0);
    model_seq_free(&seq);
    return logits;
}

/* max |got - want| / max |want| */
static double off_by(const float *got, const float *want, size_t n) {
    double d = 0, top = 0;
    for (size_t i = 0; i < n; i++) {
        assert_true(isfinite(got[i]));
        d = fmax(d, fabs((double)got[i] - want[i]));
        top = fmax(top, fabs((double)want[i]));
    }
    return d / top;
}

static void check_same(float *got, const float *want, size_t n) {
    assert_memory_equal(got, want, n * sizeof *want);
    free(got);
}

/* Every table, thread and chunk gives the bits of `want`. */
static void check_bits(const sl_model *m, const uint32_t *ids, const float *want) {
    static const uint32_t chunk[] = {33, 130};
    size_t n = (size_t)LEN * sl_model_spec_of(m)->vocab;
    sl_pool *pool = NULL;
    sl_err err = {0};
    bool supported = false;
    const sl_kernels *k;
    assert_int_equal(sl_pool_create(3, &pool, &err), SL_OK);
    for (size_t i = 0; (k = sl_kernels_at(i, &supported)) != NULL; i++) {
        if (!supported) {
            printf("skipped: kernels %s cannot run here\n", sl_kernels_name(k));
            continue;
        }
        model_run alone = model_run_make(m, k, NULL, LEN);
        model_run threaded = model_run_make(m, k, pool, LEN);
        check_same(prefill(&alone, 1, ids, LEN, LEN), want, n);
        check_same(prefill(&threaded, 1, ids, LEN, LEN), want, n);
        for (size_t j = 0; j < SL_LEN(chunk); j++)
            check_same(prefill(&threaded, 1, ids, LEN, chunk[j]), want, n);
        model_run_free(&alone);
        model_run_free(&threaded);
    }
    sl_pool_free(pool);
}

static void both_forms_agree(void **state) {
    (void)state;
    for (size_t f = 0; f < SL_LEN(fixtures); f++) {
        sl_model *m = model_run_open(fixtures[f]);
        uint32_t ids[LEN];
        size_t n = (size_t)LEN * sl_model_spec_of(m)->vocab;
        model_run_ids(ids, LEN, sl_model_spec_of(m)->vocab, 3 + f);
        model_run r = model_run_make(m, sl_kernels_select(NULL), NULL, LEN);
        float *absorbed = prefill(&r, 0, ids, LEN, LEN);
        float *expanded = prefill(&r, 1, ids, LEN, LEN);
        double apart = off_by(expanded, absorbed, n);
        double off[] = {naive_deviation(m, ids, LEN, absorbed),
                        naive_deviation(m, ids, LEN, expanded)};
        printf("%s: forms %.2e apart; from doubles absorbed %.2e, expanded %.2e\n",
               strrchr(fixtures[f], '/') + 1, apart, off[0], off[1]);
        assert_true(apart > 0 && apart <= 1e-5);
        assert_true(off[0] <= 1e-5 && off[1] <= 1e-5);
        if (f) check_bits(m, ids, expanded);
        free(absorbed), free(expanded);
        model_run_free(&r);
        sl_model_free(m);
    }
}

/* Where W_UK is stored transposed it is turned for the step: the same values, the same bits. */
static void transposed_weights_give_the_same_bits(void **state) {
    (void)state;
    char path[64];
    snprintf(path, sizeof path, "/tmp/sl-expanded-%d.gguf", (int)getpid());
    const sl_convert_options o = {.type = SL_F32, .replace = true};
    sl_convert_report report;
    sl_err err = {0};
    if (sl_convert(fixtures[1], path, &o, &report, &err) != SL_OK) fail_msg("%s", err.msg);
    sl_model *folder = model_run_open(fixtures[1]), *file = model_run_open(path);
    assert_true(sl_model_spec_of(file)->kv_parts && !sl_model_spec_of(folder)->kv_parts);
    uint32_t ids[LEN], vocab = sl_model_spec_of(folder)->vocab;
    model_run_ids(ids, LEN, vocab, 9);
    sl_pool *pool = NULL;
    assert_int_equal(sl_pool_create(3, &pool, &err), SL_OK);
    model_run a = model_run_make(folder, sl_kernels_select(NULL), NULL, LEN);
    model_run b = model_run_make(file, sl_kernels_select(NULL), pool, LEN);
    float *want = prefill(&a, 1, ids, LEN, LEN);
    check_same(prefill(&b, 1, ids, LEN, 70), want, (size_t)LEN * vocab);
    free(want);
    model_run_free(&a);
    model_run_free(&b);
    sl_pool_free(pool);
    sl_model_free(folder);
    sl_model_free(file);
    assert_int_equal(unlink(path), 0);
}

/* One step of three requests: only those with enough rows expand, whatever lies beside them. */
static void the_rows_of_a_request_decide(void **state) {
    (void)state;
    enum { FEW = 40, MOST = 41 };
    static const uint32_t rows[] = {FEW, FEW - 1, MOST, 1};
    sl_model *m = model_run_open(fixtures[0]);
    uint32_t ids[4][MOST], step_ids[4 * MOST], pos[4 * MOST], n = 0, vocab;
    const model_seq *seqs[4 * MOST];
    model_seq seq[4];
    vocab = sl_model_spec_of(m)->vocab;
    model_run r = model_run_make(m, sl_kernels_select(NULL), NULL, 4 * MOST);
    for (uint32_t q = 0; q < 4; q++) {
        model_run_ids(ids[q], MOST, vocab, 20 + q);
        seq[q] = model_seq_make(r.s, MOST);
        for (uint32_t i = 0; i < rows[q]; i++, n++) {
            step_ids[n] = ids[q][i];
            pos[n] = i;
            seqs[n] = &seq[q];
        }
    }
    float *together = malloc((size_t)n * vocab * sizeof *together), *at = together;
    r.ex.expand_rows = FEW;
    model_run_rows(&r, n, step_ids, pos, seqs, together);
    for (uint32_t q = 0; q < 4; q++) {
        uint32_t chosen = rows[q] >= FEW ? 1 : 0;
        check_same(prefill(&r, chosen, ids[q], rows[q], rows[q]), at, (size_t)rows[q] * vocab);
        check_same(prefill(&r, FEW, ids[q], rows[q], rows[q]), at, (size_t)rows[q] * vocab);
        at += (size_t)rows[q] * vocab;
        model_seq_free(&seq[q]);
    }
    free(together);
    model_run_free(&r);
    sl_model_free(m);
}

static uint32_t rows_for(uint32_t lora, uint32_t nope, uint32_t rope, uint32_t v) {
    const sl_model_spec s = {.kv_lora = lora, .nope_dim = nope, .rope_dim = rope, .v_dim = v};
    return sl_model_expand_rows(&s);
}

/* Products a row, head and key, times n. */
static void the_fewest_rows_that_pay(void **state) {
    (void)state;
    uint64_t absorbed = 2 * 512 + 64, own = 128 + 64 + 128, made = 512 * (128 + 128);
    uint32_t n = rows_for(512, 128, 64, 128);
    assert_int_equal(n, 171);
    assert_true(n * own + made < n * absorbed && (n - 1) * own + made >= (n - 1) * absorbed);
    assert_int_equal(rows_for(100, 100, 50, 100), 0);     /* as many products in both */
    assert_int_equal(rows_for(101, 100, 50, 100), 10101); /* two fewer of 252 */
    assert_int_equal(rows_for(128, 12, 8, 12),
                     64); /* 14 pay, but so short a prompt is not worth it */
    assert_int_equal(rows_for(512, 128, 64, 193), 0); /* a value as wide as no key has room */
    assert_int_equal(rows_for(512, 128, 64, 192), 233);
    assert_int_equal(sl_model_expand_rows(&(sl_model_spec){.head_dim = 64, .rope_dim = 64}), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_forms_agree),
        cmocka_unit_test(transposed_weights_give_the_same_bits),
        cmocka_unit_test(the_rows_of_a_request_decide),
        cmocka_unit_test(the_fewest_rows_that_pay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
