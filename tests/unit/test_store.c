/* Matrices that share a tensor: every layout of sl_arch_store against indices written out. */
#include "model/model_int.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { EXPERTS = 3, ROWS = 70, WIDTH = 67, MORE = 5 };

/* Rows of the role are d_ff_expert, columns d_model; SL_DIM_HEAD is what lies around them. */
static sl_model tiny(void) {
    return (sl_model){.stored = {.n_experts = EXPERTS,
                                 .d_ff_expert = ROWS,
                                 .d_model = WIDTH,
                                 .head_dim = MORE,
                                 .n_heads = 1},
                      .folder = (char *)"folder"};
}

static const sl_arch_tensor matrix = {.n = SL_DIM_FF_EXPERT, .k = SL_DIM_MODEL};
static const sl_arch_tensor bias = {.n = SL_DIM_FF_EXPERT, .k = SL_DIM_NONE};

/* The value of row i, column j of an expert, told from all others. */
static uint16_t value(uint32_t expert, uint32_t i, uint32_t j) {
    return (uint16_t)(expert * 20011u + i * 131u + j);
}

/* The tensor as the file has it: everything that is not the role's is 0xffff. */
static uint16_t *lay_out(const sl_arch_store *s, uint32_t width, size_t *count) {
    uint32_t step = s->step ? s->step : 1;
    uint32_t before = (s->before[0] ? MORE : 0) + (s->before[1] ? MORE : 0);
    uint32_t after = (s->after[0] ? MORE : 0) + (s->after[1] ? MORE : 0);
    uint32_t rows = before + ROWS * step + after, experts = s->stack ? EXPERTS : 1;
    *count = (size_t)experts * rows * width;
    uint16_t *file = malloc(*count * sizeof *file);
    memset(file, 0xff, *count * sizeof *file);
    for (uint32_t e = 0; e < experts; e++)
        for (uint32_t i = 0; i < ROWS; i++)
            for (uint32_t j = 0; j < width; j++) {
                size_t row = before + i * step + s->phase, one = (size_t)e * rows * width;
                size_t at = s->transposed ? j * (size_t)rows + row : row * width + j;
                file[one + at] = value(e, i, j);
            }
    return file;
}

/* Where the matrix of an expert is used: where it lies, or a copy. */
static sl_status place(sl_model *m, const sl_arch_store *s, const sl_arch_tensor *t, uint32_t e,
                       sl_span bytes, sl_mat *mat, sl_err *err) {
    if (sl_store_scatters(s)) return sl_store_gather(m, s, t, e, bytes, mat, err);
    mat->data = bytes.data + sl_dtype_row_bytes(mat->dtype, sl_store_lie(m, s, t, e, mat).first);
    return SL_OK;
}

static void check_store(const sl_arch_store *s, const sl_arch_tensor *t) {
    sl_model m = tiny();
    sl_err err = {0};
    size_t count = 0, product = 1;
    uint64_t want[3] = {0};
    bool vector = t->k == SL_DIM_NONE;
    uint32_t width = vector ? 1 : WIDTH, experts = s->stack ? EXPERTS : 1;
    uint16_t *file = lay_out(s, width, &count);
    uint32_t n_dims = sl_store_shape(&m, s, t, want);
    for (uint32_t i = 0; i < n_dims; i++) product *= want[i];
    assert_int_equal(product, count);
    assert_int_equal(n_dims, (s->stack == SL_STACK_EXPERTS) + 1u + !vector);
    for (uint32_t e = 0; e < experts; e++) {
        sl_mat mat = {
            .n = vector ? 1 : ROWS, .k = vector ? ROWS : (uint32_t)WIDTH, .dtype = SL_BF16};
        sl_span bytes = {(const uint8_t *)file, count * sizeof *file};
        assert_int_equal(place(&m, s, t, e, bytes, &mat, &err), SL_OK);
        const uint8_t *got = mat.data;
        bool mapped = got >= bytes.data && got < bytes.data + bytes.len;
        assert_true(mapped == (!s->transposed && s->step <= 1));
        for (uint32_t i = 0; i < ROWS; i++)
            for (uint32_t j = 0; j < width; j++) {
                uint16_t v;
                memcpy(&v, got + ((size_t)i * width + j) * sizeof v, sizeof v);
                assert_int_equal(v, value(e, i, j));
            }
    }
    sl_copies_free(&m.copies);
    free(file);
}

static void each_layout_gives_the_matrix(void **state) {
    (void)state;
    for (int stack = SL_STACK_NONE; stack <= SL_STACK_ROWS; stack++)
        for (int around = 0; around < 4; around++)
            for (uint8_t step = 0; step <= 2; step++)
                for (uint8_t phase = 0; phase < (step ? step : 1); phase++)
                    for (int transposed = 0; transposed < 2; transposed++) {
                        sl_arch_store s = {.stack = (sl_arch_stack)stack,
                                           .transposed = transposed,
                                           .step = step,
                                           .phase = phase};
                        if (around & 1) s.before[0] = SL_DIM_HEAD;
                        if (around & 2) s.after[0] = s.after[1] = SL_DIM_HEAD;
                        check_store(&s, &matrix);
                        if (!transposed) check_store(&s, &bias);
                    }
}

static void shapes_are_those_of_the_file(void **state) {
    (void)state;
    static const struct {
        sl_arch_store s;
        uint32_t n;
        uint64_t dim[3];
    } rows[] = {
        {{.stack = SL_STACK_ROWS}, 2, {EXPERTS * ROWS, WIDTH}},
        {{.stack = SL_STACK_ROWS, .transposed = true}, 2, {EXPERTS * WIDTH, ROWS}},
        {{.stack = SL_STACK_EXPERTS, .transposed = true, .step = 2}, 3, {EXPERTS, WIDTH, 2 * ROWS}},
        {{.stack = SL_STACK_EXPERTS, .after = {SL_DIM_FF_EXPERT}}, 3, {EXPERTS, 2 * ROWS, WIDTH}},
        {{.before = {SL_DIM_HEAD, SL_DIM_HEAD}}, 2, {2 * MORE + ROWS, WIDTH}},
    };
    sl_model m = tiny();
    for (size_t i = 0; i < SL_LEN(rows); i++) {
        uint64_t want[3] = {0};
        assert_int_equal(sl_store_shape(&m, &rows[i].s, &matrix, want), rows[i].n);
        assert_memory_equal(want, rows[i].dim, rows[i].n * sizeof *want);
    }
}

/* Rows of blocks of a quantised format can be cut, too. */
static void rows_of_blocks_are_found(void **state) {
    (void)state;
    sl_model m = tiny();
    sl_err err = {0};
    static uint8_t file[EXPERTS * 3 * ROWS * 34];
    const sl_arch_store s = {
        .stack = SL_STACK_ROWS, .before = {SL_DIM_FF_EXPERT}, .after = {SL_DIM_FF_EXPERT}};
    sl_mat mat = {.n = ROWS, .k = 32, .dtype = SL_Q8_0};
    assert_int_equal(place(&m, &s, &matrix, 2, (sl_span){file, sizeof file}, &mat, &err), SL_OK);
    assert_ptr_equal(mat.data, file + (2 * 3 + 1) * ROWS * 34);
}

static void memory_that_runs_out_is_said(void **state) {
    (void)state;
    sl_model m = tiny();
    const sl_arch_store s = {.transposed = true};
    uint16_t *file = calloc(ROWS * WIDTH, sizeof *file);
    for (uint64_t nth = 1; nth <= 2; nth++) {
        sl_err err = {0};
        sl_mat mat = {.n = ROWS, .k = WIDTH, .dtype = SL_BF16};
        sl_mem_fail_at(nth);
        sl_status st =
            place(&m, &s, &matrix, 0, (sl_span){(const uint8_t *)file, ROWS * WIDTH * sizeof *file},
                  &mat, &err);
        sl_mem_fail_at(0);
        assert_int_equal(st, SL_ERR_NOMEM);
        assert_string_equal(err.msg, "folder: copies of weights");
    }
    sl_copies_free(&m.copies);
    free(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_layout_gives_the_matrix),
        cmocka_unit_test(shapes_are_those_of_the_file),
        cmocka_unit_test(rows_of_blocks_are_found),
        cmocka_unit_test(memory_that_runs_out_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
