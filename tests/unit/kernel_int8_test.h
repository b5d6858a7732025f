/* Tests of `quantise`, `rms_quantise` and `int8_tile`, for the list of test_kernel.c. */
#ifndef SL_TESTS_KERNEL_INT8_TEST_H
#define SL_TESTS_KERNEL_INT8_TEST_H

#include "kernel_test.h"
#include "quant/act.h"
#include "sanitized.h"

/* Activations as models have them, and blocks of zeros, of tiny and of huge values, NaN, infinity.
 */
static inline void k8_values(float *x, uint32_t k) {
    for (uint32_t b = 0; b < k; b += 32) {
        uint32_t what = kt_below(40);
        float big = what < 4 ? ldexpf(1, (int)kt_below(210) - 105) : 1;
        for (uint32_t i = b; i < SL_MIN(b + 32, k); i++) x[i] = what == 5 ? 0 : kt_value() * big;
    }
}

static inline uint8_t *k8_row(sl_act_kind kind, uint32_t n) {
    uint8_t *row = sl_alloc(sl_act_row_bytes(kind, n), 1);
    assert_non_null(row);
    return row;
}

/* Of a row, some whole blocks. */
static inline uint32_t k8_length(sl_act_kind kind) {
    return sl_act_block(kind) * (1 + kt_below(kind == SL_ACT_BF16 ? 300 : 9));
}

/* n values with all that can go wrong in some of the cases i. */
static inline void k8_hard_values(float *x, uint32_t n, int i) {
    k8_values(x, n);
    if (i % 7 == 0) x[kt_below(n)] = NAN;
    if (i % 9 == 0) x[kt_below(n)] = i % 2 ? INFINITY : -INFINITY;
    if (i % 11 == 0)
        for (uint32_t j = 0; j < n; j++) x[j] = (float)((int)kt_below(255) - 127) / 2;
}

static inline void bits_quantise(const sl_kernels *k) {
    for (int i = 0; i < 400; i++) {
        sl_act_kind kind = (sl_act_kind)(i % SL_ACT_KINDS);
        uint32_t n = k8_length(kind);
        float *x = kt_floats(n + 1);
        uint8_t *a = k8_row(kind, n), *b = k8_row(kind, n);
        k8_hard_values(x + 1, n, i);
        sl_call_quantise(k, x + 1, n, kind, a);
        sl_call_quantise(&sl_kernels_ref, x + 1, n, kind, b);
        kt_same_act(a, b, kind, n);
        sl_free(x), sl_free(a), sl_free(b);
    }
}

/* In two parts, against rms_apply and quantise of the reference. */
static inline void bits_rms_quantise(const sl_kernels *k) {
    for (int i = 0; i < 400; i++) {
        sl_act_kind kind = (sl_act_kind)(i % SL_ACT_KINDS);
        uint32_t block = sl_act_block(kind), n = k8_length(kind);
        uint32_t cut = block * kt_below(n / block + 1);
        float *x = kt_floats(n + 1), *w = kt_floats(n + 1), *y = kt_floats(n);
        float inv = kt_value();
        uint8_t *a = k8_row(kind, n), *b = k8_row(kind, n);
        k8_hard_values(x + 1, n, i);
        const sl_act_part head = {a, kind, n, 0, cut}, tail = {a, kind, n, cut, n - cut};
        sl_call_rms_quantise(k, x + 1, w + 1, inv, &head);
        sl_call_rms_quantise(k, x + 1 + cut, w + 1 + cut, inv, &tail);
        sl_kernels_ref.rms_apply(x + 1, w + 1, inv, n, y);
        sl_call_quantise(&sl_kernels_ref, y, n, kind, b);
        kt_same_act(a, b, kind, n);
        sl_free(x), sl_free(w), sl_free(y), sl_free(a), sl_free(b);
    }
}

/* Values of BF16 against what they were rounded from. */
static inline void k8_near_bf16(const double *want, const uint8_t *row, uint32_t n, double tol) {
    for (uint32_t j = 0; j < n; j++) {
        float got = sl_bf16_to_f32(((const uint16_t *)row)[j]);
        double step = ldexp(1, SL_MAX(ilogb(want[j]), -126) - 7);
        if (fabs(want[j]) < 0x1p-126 ? got != 0 && got != 0x1p-126f
                                     : !(fabs(want[j] - (double)got) <= tol * step))
            fail_msg("value %u is %a, rounded from %a", j, (double)got, want[j]);
    }
}

/* A row's codes and scales against what they stand for, and its sums. */
static inline void k8_near(const double *want, const uint8_t *row, sl_act_kind kind, uint32_t n,
                           double tol) {
    if (kind == SL_ACT_BF16) {
        k8_near_bf16(want, row, n, tol);
        return;
    }
    for (uint32_t j = 0; j < n; j++) {
        double s = (double)sl_act_scales(row, n)[j / sl_act_block(kind)];
        double off = fabs(want[j] - s * (int8_t)row[j]);
        if (off > tol * s + (double)SL_ACT_TINY)
            fail_msg("value %u is off by %g steps", j, off / s);
    }
    for (uint32_t j = 0; j < n; j += sl_act_sum_of(kind)) {
        int sum = 0;
        for (uint32_t l = 0; l < sl_act_sum_of(kind); l++) sum += (int8_t)row[j + l];
        assert_int_equal(sl_act_sums(kind, row, n)[j / sl_act_sum_of(kind)], sum);
    }
}

static inline void oracle_quantise(double tol) {
    float x[512];
    double want[512];
    _Alignas(64) uint8_t row[1024];
    for (int i = 0; i < 200; i++) {
        sl_act_kind kind = (sl_act_kind)(i % SL_ACT_KINDS);
        k8_values(x, 512);
        for (int j = 0; j < 512; j++) want[j] = (double)x[j];
        sl_call_quantise(&sl_kernels_ref, x, 512, kind, row);
        k8_near(want, row, kind, 512, tol);
    }
    x[3] = NAN;
    sl_call_quantise(&sl_kernels_ref, x, 512, SL_ACT_256, row);
    assert_true(isnan(sl_act_scales(row, 512)[0]) && !isnan(sl_act_scales(row, 512)[1]));
}

static inline void oracle_rms_quantise(double tol) {
    float x[512], w[512];
    double want[512];
    _Alignas(64) uint8_t row[1024];
    for (int i = 0; i < 200; i++) {
        sl_act_kind kind = (sl_act_kind)(i % SL_ACT_KINDS);
        const sl_act_part all = {row, kind, 512, 0, 512};
        float inv = 0.5f + (float)i / 100;
        k8_values(x, 512);
        for (int j = 0; j < 512; j++) {
            w[j] = kt_value();
            want[j] = (double)x[j] * (double)inv * (double)w[j];
        }
        sl_call_rms_quantise(&sl_kernels_ref, x, w, inv, &all);
        k8_near(want, row, kind, 512, tol);
    }
}

/* ---- int8_tile ---- */

typedef struct k8_case {
    sl_dtype dtype;
    uint32_t rows, cols, k, apart; /* values between the first of two weight rows */
    uint8_t *x;
    const uint8_t *xrow[SL_TILE_ROWS];
    float *y;
    uint8_t *w;
    void *base;
} k8_case;

static inline k8_case k8_make(sl_dtype dtype, uint32_t rows, uint32_t cols, uint32_t k) {
    sl_act_kind kind = sl_act_kind_of(dtype);
    size_t bytes = sl_act_row_bytes(kind, k);
    k8_case g = {.dtype = dtype, .rows = rows, .cols = cols, .k = k};
    float *x = kt_floats(k);
    g.x = sl_alloc(rows, bytes);
    g.y = sl_alloc(rows, (cols + 1) * sizeof(float));
    assert_non_null(g.x);
    assert_non_null(g.y);
    g.apart = kt_apart(dtype, k);
    g.w = kt_weights(dtype, (size_t)cols * g.apart, kt_bits() & 1, &g.base);
    for (uint32_t r = 0; r < rows; r++) {
        k8_values(x, k);
        g.xrow[r] = g.x + r * bytes;
        sl_call_quantise(&sl_kernels_ref, x, k, kind, g.x + r * bytes);
    }
    sl_free(x);
    return g;
}

/* A block of MXFP4 of one code, with scales at both ends. */
static inline void k8_extreme_mxfp4(uint8_t *b, uint32_t how) {
    static const uint8_t scale[] = {0, 1, 2, 3, 127, 250, 254, 255};
    memset(b, how & 1 ? 0x77 : how & 2 ? 0x88 : 0xff, 17);
    b[0] = scale[how / 8 + kt_below(2) * 4];
}

/* All codes, scales and minima at their ends; the activations at -127 or 127. */
static inline void k8_make_extreme(k8_case *g, uint32_t how) {
    uint32_t bytes = sl_dtype_block_bytes(g->dtype),
             n = g->apart / sl_dtype_block(g->dtype) * g->cols;
    uint16_t one = sl_f32_to_f16(how & 8 ? -1.0f : 0.5f);
    for (uint8_t *b = g->w; n > 0; n--, b += bytes) {
        if (g->dtype == SL_MXFP4) {
            k8_extreme_mxfp4(b, how);
            continue;
        }
        memset(b, how & 1 ? 0x80 : how & 2 ? 0x7f : 0xff, bytes);
        if (g->dtype == SL_Q6_K && how & 16) memset(b, 0, 192);
        memcpy(b + (g->dtype == SL_Q6_K ? 208 : 0), &one, 2);
        if (g->dtype == SL_Q4_K || g->dtype == SL_Q5_K) memcpy(b + 2, &one, 2);
    }
    float *x = kt_floats(g->k);
    for (uint32_t i = 0; i < g->k; i++) x[i] = how & 4 ? -3.0f : 3.0f;
    for (uint32_t r = 0; r < g->rows; r++)
        sl_call_quantise(&sl_kernels_ref, x, g->k, sl_act_kind_of(g->dtype), (uint8_t *)g->xrow[r]);
    sl_free(x);
}

/* Its tile, of weights that lie at w. */
static inline sl_act_tile k8_tile(const k8_case *g, const uint8_t *w, float *y) {
    return (sl_act_tile){.w = w,
                         .w_stride = sl_dtype_row_bytes(g->dtype, g->apart),
                         .dtype = g->dtype,
                         .k = g->k,
                         .n_cols = g->cols,
                         .n_rows = g->rows,
                         .y_stride = g->cols + 1,
                         .x = g->xrow,
                         .y = y};
}

static inline void k8_do(const sl_kernels *k, const k8_case *g, float *y) {
    const sl_act_tile t = k8_tile(g, g->w, y);
    sl_call_int8_tile(k, &t);
}

static inline void k8_free(k8_case *g) {
    sl_free(g->x);
    sl_free(g->y);
    sl_free(g->base);
}

/* Whether a table's products have the bits of ref's with rows; strips: the same weights in strips,
 * NULL: with rows, too. */
static inline void k8_same_as(const sl_kernels *k, k8_case *g, const uint8_t *strips) {
    size_t n;
    float *got = kt_results(g->rows, g->cols, &n), *want = sl_alloc(n, sizeof *want);
    assert_non_null(want);
    k8_do(&sl_kernels_ref, g, want);
    const sl_act_tile t = k8_tile(g, strips ? strips : g->w, got);
    (strips ? sl_call_strip_tile : sl_call_int8_tile)(k, &t);
    kt_same(sl_dtype_name(g->dtype), got, want, n);
    sl_free(want);
}

static inline void k8_same(const sl_kernels *k, k8_case *g) {
    k8_same_as(k, g, NULL);
}

/* One in so many lengths, and of extremes, whose kinds are bits of a number: so it is odd. */
#define K8_APART take_one_in(SL_SLOW_BUILD ? 5 : 3)

static inline void bits_int8_tile(const sl_kernels *k) {
    const uint32_t apart = K8_APART;
    for (sl_dtype d = 0; d < SL_DTYPE_COUNT; d++) {
        if (!sl_act_is_int8(sl_act_kind_of(d))) continue;
        for (uint32_t rows = 0; rows <= SL_TILE_ROWS; rows++)
            for (uint32_t i = (rows + d) % apart; i < 4; i += apart) {
                k8_case g = k8_make(d, rows, 1 + kt_below(i ? 40 : 9), kt_whole(d, 1 + i * 250));
                k8_same(k, &g);
                k8_free(&g);
            }
        for (uint32_t how = d % apart; how < 32; how += apart) {
            k8_case g = k8_make(d, 1 + kt_below(20), 1 + kt_below(20), kt_whole(d, 520));
            k8_make_extreme(&g, how);
            k8_same(k, &g);
            k8_free(&g);
        }
        for (uint32_t rows = 1; rows <= SL_TILE_ROWS; rows *= 2) { /* several pieces of k */
            for (uint32_t n = 420; n <= 2100; n += 1680) { /* of 32: five blocks behind eight */
                k8_case g = k8_make(d, rows, rows > 8 ? SL_TILE_COLS : 21, kt_whole(d, n));
                k8_same(k, &g);
                k8_free(&g);
            }
        }
    }
}

/* Against double arithmetic on the same codes: weights as their format defines them. */
static inline void oracle_int8_tile(double tol) {
    for (int i = 0; i < 200; i++) {
        sl_dtype d = (sl_dtype)(i % SL_DTYPE_COUNT);
        sl_act_kind kind = sl_act_kind_of(d);
        if (!sl_act_is_int8(kind)) continue;
        k8_case g = k8_make(d, 1 + kt_below(4), 1 + kt_below(5), kt_whole(d, 1 + kt_below(900)));
        k8_do(&sl_kernels_ref, &g, g.y);
        for (uint32_t r = 0; r < g.rows; r++)
            for (uint32_t c = 0; c < g.cols; c++) {
                const float *w = kt_row(g.w, d, (size_t)c * g.apart, g.k);
                const float *scale = sl_act_scales(g.xrow[r], g.k);
                double sum = 0, mag = 1e-30;
                for (uint32_t j = 0; j < g.k; j++) {
                    double x = (double)scale[j / sl_act_block(kind)] * (int8_t)g.xrow[r][j];
                    sum += x * w[j];
                    mag += fabs(x * w[j]);
                }
                float y = g.y[r * (g.cols + 1) + c];
                if (!(fabs(y - sum) <= tol * mag))
                    fail_msg("%s: %.9g, expected %.9g", sl_dtype_name(d), (double)y, sum);
            }
        k8_free(&g);
    }
}

/* ---- strip_tile ---- */

/* The same weights in strips: g's columns are whole ones, and may be cut where its rows are. */
static inline uint8_t *k8_strips(const k8_case *g) {
    const size_t row = sl_dtype_row_bytes(g->dtype, g->apart);
    uint8_t *strips = sl_alloc(g->cols, row);
    assert_non_null(strips);
    for (uint32_t c = 0; c < g->cols; c += SL_STRIP_ROWS)
        sl_strips_put(g->dtype, g->w + c * row, g->apart, strips + c * row);
    return strips;
}

static inline void k8_same_in_strips(const sl_kernels *k, k8_case *g) {
    uint8_t *strips = k8_strips(g);
    k8_same_as(k, g, strips);
    sl_free(strips);
}

/* Of k values that may end within strips: behind whole pairs of blocks. */
static inline k8_case k8_make_strips(sl_dtype d, uint32_t rows, uint32_t strips, uint32_t k) {
    k8_case g = k8_make(d, rows, strips * SL_STRIP_ROWS, k);
    if (g.k % sl_strips_unit(d)) g.apart = g.k;
    return g;
}

static inline void bits_strip_tile(const sl_kernels *k) {
    const uint32_t apart = K8_APART;
    for (sl_dtype d = 0; d < SL_DTYPE_COUNT; d++) {
        if (!sl_strips_have(d)) continue;
        for (uint32_t rows = 0; rows <= SL_TILE_ROWS; rows++)
            for (uint32_t i = (rows + d) % apart; i < 4; i += apart) {
                k8_case g = k8_make_strips(d, rows, 1 + kt_below(4), kt_whole(d, 1 + i * 250));
                k8_same_in_strips(k, &g);
                k8_free(&g);
            }
        for (uint32_t how = d % apart; how < 32; how += apart) {
            k8_case g = k8_make_strips(d, 1 + kt_below(20), 1 + kt_below(3), kt_whole(d, 520));
            k8_make_extreme(&g, how);
            k8_same_in_strips(k, &g);
            k8_free(&g);
        }
    }
}

/* Strips hold the bytes of their rows, every one once, and give them back. */
static inline void oracle_strip_tile(double tol) {
    (void)tol; /* products are those of int8_tile */
    for (sl_dtype d = 0; d < SL_DTYPE_COUNT; d++) {
        for (uint32_t blocks = 1; sl_strips_have(d) && blocks <= 5; blocks++) {
            const uint32_t k = blocks * sl_dtype_block(d);
            const size_t row = sl_dtype_row_bytes(d, k), all = SL_STRIP_ROWS * row;
            uint8_t *rows = sl_alloc(3, all), *strip = rows + all, *back = strip + all;
            assert_non_null(rows);
            for (size_t i = 0; i < all; i++) rows[i] = (uint8_t)kt_bits();
            memset(strip, 0, all);
            sl_strips_put(d, rows, k, strip);
            size_t count[2][256] = {{0}};
            for (size_t i = 0; i < all; i++) count[0][rows[i]]++, count[1][strip[i]]++;
            assert_memory_equal(count[0], count[1], sizeof count[0]);
            for (uint32_t r = 0; r < SL_STRIP_ROWS; r++)
                for (uint32_t b = 0; b < blocks; b++)
                    sl_strips_block(d, strip, k, r, b,
                                    back + r * row + b * sl_dtype_block_bytes(d));
            assert_memory_equal(back, rows, all);
            /* a vector at the first word has the same word of all rows */
            const size_t d_line = sl_strips_pair(d) ? (blocks > 1 ? 64 : 32) : 0;
            for (uint32_t r = 0; r < SL_STRIP_ROWS; r++)
                assert_memory_equal(strip + d_line + 4 * r,
                                    rows + r * row + (d_line && d != SL_Q6_K ? 2 : 0), 4);
            sl_free(rows);
        }
    }
}

#endif
