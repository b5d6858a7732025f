/* Tests of `bf16_tile` and `parts_tile`, for the list of test_kernel.c. */
#ifndef SL_TESTS_KERNEL_BF16_TEST_H
#define SL_TESTS_KERNEL_BF16_TEST_H

#include "kernel_test.h"
#include "quant/act.h"

/* What values of a case are like. */
typedef enum kb_range {
    KB_USUAL,   /* with zeros and subnormals among them */
    KB_ANY,     /* any bits but NaN and infinity; sums may become either */
    KB_LEAST,   /* products about the least normal number */
    KB_BORDER,  /* pairs whose sum is 2^-126 less a little: a zero, or rounded up */
    KB_PARTS,   /* the same of pairs as parts have them */
    KB_SPECIAL, /* zeros of both signs, infinities, the ends of both ranges */
    KB_RANGES
} kb_range;

typedef struct kb_case {
    uint32_t rows, cols, k, apart; /* values between the first of two weight rows */
    uint8_t *x, *w, *base;
    const uint8_t *row[SL_TILE_ROWS];
} kb_case;

static inline uint16_t kb_value(kb_range range) {
    static const uint16_t special[] = {0,      0x8000, 0x0001, 0x8001, 0x007f, 0x807f, 0x0080,
                                       0x8080, 0x3f80, 0xbf80, 0x7f7f, 0xff7f, 0x7f80, 0xff80};
    uint16_t h = (uint16_t)kt_bits();
    switch (range) {
    case KB_USUAL:
        return sl_f32_to_bf16(kt_value());
    case KB_ANY:
        return (h & 0x7f80u) == 0x7f80u ? h & 0x807fu : h;
    case KB_LEAST:
        return (uint16_t)((h & 0x807fu) | (55 + kt_below(20)) << 7);
    default:
        return special[kt_below(SL_LEN(special))];
    }
}

/* Value i of a row of x, or of w: of two that follow each other in a chain of either numeric, 2^-63
 * 2^-63 first, then less of it. */
static inline uint16_t kb_border(uint32_t i, uint32_t apart, bool is_x) {
    if (i >= 32) return 0;
    if ((apart == 1 ? i : i / 2 + 1) % 2) return 0x2000; /* 2^-63 */
    return is_x ? 0x1a00                                 /* 2^-75 */
                : (uint16_t)(0x8000u | (127 - 80 + kt_below(12)) << 7 | kt_below(128));
}

static inline uint8_t *kb_values(uint32_t rows, uint32_t k, size_t bytes, kb_range range, bool is_x,
                                 uint8_t *to) {
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < k; i++) {
            uint16_t h = range == KB_BORDER  ? kb_border(i, 1, is_x)
                         : range == KB_PARTS ? kb_border(i, 2, is_x)
                                             : kb_value(range);
            if (is_x && (h & 0x7f80u) == 0) h &= 0x8000u; /* rows have no subnormals */
            memcpy(to + r * bytes + i * sizeof h, &h, sizeof h);
        }
    return to;
}

/* Weights of any alignment. */
static inline kb_case kb_make(uint32_t rows, uint32_t cols, uint32_t k, kb_range range) {
    kb_case g = {.rows = rows, .cols = cols, .k = k, .apart = kt_apart(SL_BF16, k)};
    const size_t bytes = sl_act_row_bytes(SL_ACT_BF16, k), w_bytes = g.apart * sizeof(uint16_t);
    g.x = sl_alloc(rows + 1, bytes + 64);
    g.base = sl_alloc(cols * w_bytes + 64, 1);
    assert_true(g.x && g.base);
    g.w = g.base + kt_below(64);
    kb_values(rows, k, bytes, range, true, g.x);
    kb_values(cols, k, w_bytes, range, false, g.w);
    for (uint32_t r = 0; r < rows; r++) g.row[r] = g.x + r * bytes;
    return g;
}

static inline void kb_free(kb_case *g) {
    sl_free(g->x), sl_free(g->base);
}

typedef void (*kb_tile)(const sl_kernels *k, const sl_act_tile *t);

static inline void kb_do(const sl_kernels *k, kb_tile tile, const kb_case *g, float *y) {
    tile(k, &(sl_act_tile){.w = g->w,
                           .w_stride = g->apart * sizeof(uint16_t),
                           .dtype = SL_BF16,
                           .k = g->k,
                           .n_cols = g->cols,
                           .n_rows = g->rows,
                           .y_stride = g->cols + 1,
                           .x = g->row,
                           .y = y});
}

static inline void kb_same(const sl_kernels *k, kb_tile tile, uint32_t rows, uint32_t cols,
                           uint32_t length, kb_range range) {
    kb_case g = kb_make(rows, cols, length, range);
    size_t n;
    float *got = kt_results(rows, cols, &n), *want = sl_alloc(n, sizeof *want);
    assert_non_null(want);
    kb_do(&sl_kernels_ref, tile, &g, want);
    kb_do(k, tile, &g, got);
    for (size_t i = 0; i < n; i++)
        if (!isnan(got[i]) || !isnan(want[i])) kt_same("a product of BF16", got + i, want + i, 1);
    sl_free(want);
    kb_free(&g);
}

static void kb_bits(const sl_kernels *k, kb_tile tile) {
    for (uint32_t rows = 0; rows <= SL_TILE_ROWS; rows++)
        for (uint32_t i = 0; i < 2 * KB_RANGES; i++)
            kb_same(k, tile, rows, 1 + kt_below(i % 5 ? 20 : 60), kt_below(i % 3 ? 70 : 300),
                    (kb_range)(i % KB_RANGES));
    for (uint32_t length = 0; length < 70; length++)
        for (uint32_t i = 0; i < KB_RANGES; i++)
            kb_same(k, tile, 1 + kt_below(9), 1 + kt_below(13), length, (kb_range)i);
    for (uint32_t i = 0; i < 200; i++) {
        kb_same(k, tile, 4, 12, 32, KB_BORDER);
        kb_same(k, tile, 4, 17, 32, KB_PARTS);
    }
    kb_same(k, tile, SL_TILE_ROWS, SL_TILE_WIDE, 130, KB_USUAL);
    kb_same(k, tile, 5, SL_TILE_COLS, 2100, KB_USUAL);
    kb_same(k, tile, SL_TILE_ROWS, 40, 2100, KB_USUAL);
}

static void bits_bf16_tile(const sl_kernels *k) {
    kb_bits(k, sl_call_bf16_tile);
}

static void bits_parts_tile(const sl_kernels *k) {
    kb_bits(k, sl_call_parts_tile);
}

/* Against double arithmetic on the same values. */
static void kb_oracle(kb_tile tile, double tol) {
    for (int i = 0; i < 200; i++) {
        kb_case g = kb_make(1 + kt_below(4), 1 + kt_below(5), 1 + kt_below(900),
                            i % 2 ? KB_LEAST : KB_USUAL);
        float y[4 * 6];
        kb_do(&sl_kernels_ref, tile, &g, y);
        for (uint32_t r = 0; r < g.rows; r++)
            for (uint32_t c = 0; c < g.cols; c++) {
                double sum = 0, mag = 0;
                for (uint32_t j = 0; j < g.k; j++) {
                    double p = (double)kt_weight(g.row[r], SL_BF16, j) *
                               kt_weight(g.w, SL_BF16, (size_t)c * g.apart + j);
                    sum += p;
                    mag += fabs(p);
                }
                /* each step may have lost what is not normal, and each subnormal weight counts 0 */
                double lost = g.k * 0x1p-126 * 8;
                if (!(fabs(y[r * (g.cols + 1) + c] - sum) <= tol * mag + lost))
                    fail_msg("%.9g, expected %.9g of %.3g", (double)y[r * (g.cols + 1) + c], sum,
                             mag);
            }
        kb_free(&g);
    }
}

static void oracle_bf16_tile(double tol) {
    kb_oracle(sl_call_bf16_tile, tol);
}

static void oracle_parts_tile(double tol) {
    kb_oracle(sl_call_parts_tile, tol);
}

#endif
