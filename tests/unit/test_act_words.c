/* Rounded rows as ranks pass them to each other: columns that each rounds for itself, put together,
 * are the row that one device rounds, to the byte, in every kind. */
#include "kernel_test.h"
#include "quant/act_words.h"

#include <stdlib.h>

enum { UNITS = 11, ROWS = 5, MOST_RANKS = 8 };

/* Some blocks are zeros, too small, or hold what is not finite. */
static void draw(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = ldexpf((float)((int)kt_below(2001) - 1000), -9);
    for (size_t i = 0; i < 32 && i < n; i++) x[i] = i % 3 ? 0 : 1e-42f;
    if (n > 200) x[199] = INFINITY;
    if (n > 600) x[599] = NAN;
}

static uint32_t end_of(uint32_t units, uint32_t rank, uint32_t ranks) {
    return units * (rank + 1) / ranks;
}

/* The columns of each of `ranks` ranks go to their place in the whole rows' words. */
static void by_ranks(const sl_exec *ex, sl_act_kind kind, const float *x, uint32_t k,
                     uint32_t ranks, float *whole) {
    const uint32_t unit = sl_act_unit(kind), wide = sl_act_words(kind, k);
    for (uint32_t rank = 0, first = 0, end; rank < ranks; rank++, first = end) {
        end = end_of(k / unit, rank, ranks) * unit;
        const uint32_t n = end - first, words = sl_act_words(kind, n);
        float *own = kt_floats((size_t)ROWS * n + 1), *part = kt_floats((size_t)ROWS * words + 1);
        uint8_t *rows = aligned_alloc(64, (size_t)ROWS * sl_act_row_bytes(kind, n) + 64);
        for (uint32_t r = 0; r < ROWS; r++)
            memcpy(own + (size_t)r * n, x + (size_t)r * k + first, n * sizeof *own);
        sl_quantise_words(ex, own, ROWS, n, kind, rows, part);
        for (uint32_t r = 0; r < ROWS; r++)
            memcpy(whole + (size_t)r * wide + sl_act_words(kind, first), part + (size_t)r * words,
                   words * sizeof *part);
        sl_free(own), sl_free(part), free(rows);
    }
}

static size_t used_bytes(sl_act_kind kind, uint32_t k) {
    if (kind == SL_ACT_BF16) return k * sizeof(uint16_t);
    return k + k / sl_act_block(kind) * sizeof(float) + k / sl_act_sum_of(kind) * sizeof(int16_t);
}

static void parts_are_the_row(void **state) {
    const sl_exec ex = {.k = sl_kernels_base()};
    (void)state;
    for (sl_act_kind kind = 0; kind < SL_ACT_KINDS; kind++) {
        const uint32_t k = UNITS * sl_act_unit(kind);
        const size_t bytes = sl_act_row_bytes(kind, k);
        float *x = kt_floats((size_t)ROWS * k);
        float *words = kt_floats((size_t)ROWS * sl_act_words(kind, k));
        uint8_t *want = aligned_alloc(64, ROWS * bytes), *got = aligned_alloc(64, ROWS * bytes);
        draw(x, (size_t)ROWS * k);
        sl_quantise(&ex, x, NULL, ROWS, k, k, kind, want);
        for (uint32_t ranks = 1; ranks <= MOST_RANKS; ranks *= 2) {
            by_ranks(&ex, kind, x, k, ranks, words);
            sl_rows_of_words(&ex, words, ROWS, k, kind, got);
            for (uint32_t r = 0; r < ROWS; r++)
                assert_memory_equal(got + r * bytes, want + r * bytes, used_bytes(kind, k));
        }
        sl_free(x), sl_free(words), free(want), free(got);
    }
}

/* A quarter of what f32 takes and a scale a block, or half of it. */
static void words_are_few(void **state) {
    (void)state;
    assert_int_equal(sl_act_words(SL_ACT_32, 64), 2 * 9);
    assert_int_equal(sl_act_words(SL_ACT_256, 512), 2 * 65);
    assert_int_equal(sl_act_words(SL_ACT_BF16, 64), 32);
    for (sl_act_kind kind = 0; kind < SL_ACT_KINDS; kind++)
        assert_int_equal(sl_act_words(kind, 0), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(parts_are_the_row),
                                       cmocka_unit_test(words_are_few)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
