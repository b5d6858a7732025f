/* Sums over k in segments: which rank has which units, and that a product in segments is the tree
 * of the segments' products, the same bits for whatever number of ranks makes it. */
#include "kernel_test.h"
#include "sanitized.h"

#include "spec/gang.h"

static void units_lie_in_their_segments(void **state) {
    (void)state;
    for (uint32_t units = 0; units <= 300; units += units < 40 ? 1 : 13)
        for (uint32_t parts = 1; parts <= 8; parts *= 2)
            for (uint32_t u = 0; u < units; u++) {
                uint32_t part = parts * u / units;
                assert_true(sl_part_begin(units, part, parts) <= u);
                assert_true(sl_part_begin(units, part + 1, parts) > u);
            }
}

static void ranks_own_whole_subtrees(void **state) {
    (void)state;
    for (uint32_t units = 0; units <= 70; units++)
        for (uint32_t of = 1; of <= SL_MAX_RANKS; of++) {
            uint32_t at = 0, first = 0;
            const sl_segments whole = sl_rank_segments((sl_rank){0, 1}, units, 3);
            if (!sl_ranks_can_be(of)) continue;
            for (uint32_t i = 0; i < of; i++) {
                const sl_rank r = {i, of};
                const sl_extent mine = sl_rank_range(r, units);
                const sl_segments s = sl_rank_segments(r, units, 3);
                assert_int_equal(mine.first, at);
                assert_int_equal(s.n, SL_SEGMENTS / of);
                for (uint32_t j = 0; j < s.n; j++)
                    assert_int_equal(first + s.end[j], whole.end[i * s.n + j]);
                assert_int_equal(s.end[s.n - 1], 3 * mine.n);
                at += mine.n;
                first += s.end[s.n - 1];
            }
            assert_int_equal(at, units);
        }
    assert_false(sl_ranks_can_be(0) || sl_ranks_can_be(3) || sl_ranks_can_be(16));
    const sl_extent all = sl_rank_range((sl_rank){0}, 9);
    assert_true(all.first == 0 && all.n == 9);
}

#define N    70u
#define ROWS 37u

typedef struct product {
    sl_mat w;
    uint32_t unit, units;
    float *x;
    void *base;
    sl_activations how;
} product;

static product make(sl_dtype dtype, uint32_t units, uint32_t unit, sl_activations how) {
    product p = {.unit = unit, .units = units, .how = how};
    uint32_t k = unit * units;
    p.x = kt_floats((size_t)ROWS * SL_MAX(k, 1));
    p.w = (sl_mat){kt_weights(dtype, (size_t)N * k, true, &p.base), N, k, dtype};
    return p;
}

static void drop(product *p) {
    sl_free(p->x), sl_free(p->base);
}

/* Columns of the product's matrix. */
static sl_mat part_of(const product *p, uint32_t first, uint32_t k) {
    sl_mat m = p->w;
    m.data = (const uint8_t *)m.data + sl_dtype_row_bytes(m.dtype, first);
    m.stride = sl_mat_stride(&p->w);
    m.k = k;
    return m;
}

/* y = x w^T of n_rows rows, x from value `first` on. */
static void multiply(const sl_exec *ex, const product *p, const sl_mat *w, uint32_t first,
                     uint32_t n_rows, float *y) {
    sl_gemm_job job = {
        .w = w, .x = p->x + first, .n_rows = n_rows, .x_stride = p->w.k, .y_stride = N + 1, .y = y};
    sl_act_kind kind = sl_act_kind_for(p->how, w->dtype);
    uint8_t *act = NULL;
    if (kind != SL_ACT_NONE) {
        act = sl_alloc(n_rows, sl_act_bytes_in(w->segments, kind, w->k) + 64);
        assert_non_null(act);
        sl_quantise_segments(ex, job.x, NULL, n_rows, p->w.k, w->k, w->segments, kind, act);
        job.act.row[kind] = act;
    }
    sl_gemm(ex, &job, 1);
    sl_free(act);
}

static void add(float *y, const float *x) {
    for (size_t i = 0; i < (size_t)ROWS * (N + 1); i++) y[i] = y[i] + x[i];
}

/* The sum of segments `first` on, `of` of them, each a product of its own. */
static void tree(const product *p, const sl_segments *s, uint32_t first, uint32_t of,
                 uint32_t n_rows, float *y) {
    const sl_exec ex = {.k = &sl_kernels_ref, .activations = p->how};
    memset(y, 0, (size_t)ROWS * (N + 1) * sizeof *y);
    if (of == 1) {
        uint32_t at = sl_segment_begin(s, first), n = s->end[first] - at;
        sl_mat w = part_of(p, at, n);
        if (n) multiply(&ex, p, &w, at, n_rows, y);
        return;
    }
    float *other = kt_floats((size_t)ROWS * (N + 1));
    tree(p, s, first, of / 2, n_rows, y);
    tree(p, s, first + of / 2, of / 2, n_rows, other);
    add(y, other);
    sl_free(other);
}

/* The product by `of` ranks, whose sums meet two by two. */
static void by_ranks(const sl_exec *ex, const product *p, uint32_t of, uint32_t n_rows, float *y) {
    const size_t n = (size_t)ROWS * (N + 1);
    float *sum[SL_MAX_RANKS];
    for (uint32_t i = 0; i < of; i++) {
        const sl_rank r = {i, of};
        const sl_extent mine = sl_rank_range(r, p->units);
        const sl_segments s = sl_rank_segments(r, p->units, p->unit);
        sl_mat w = part_of(p, mine.first * p->unit, mine.n * p->unit);
        w.segments = &s;
        sum[i] = sl_alloc(n, sizeof(float));
        assert_non_null(sum[i]);
        multiply(ex, p, &w, mine.first * p->unit, n_rows, sum[i]);
    }
    for (uint32_t step = 1; step < of; step *= 2)
        for (uint32_t i = 0; i < of; i += 2 * step) add(sum[i], sum[i + step]);
    memcpy(y, sum[0], n * sizeof *y);
    for (uint32_t i = 0; i < of; i++) sl_free(sum[i]);
}

static void check(const product *p, uint32_t n_rows) {
    const size_t n = (size_t)ROWS * (N + 1);
    const sl_segments s = sl_rank_segments((sl_rank){0}, p->units, p->unit);
    float *want = kt_floats(n), *y = kt_floats(n);
    bool can;
    tree(p, &s, 0, SL_SEGMENTS, n_rows, want);
    for (size_t t = 0; sl_kernels_at(t, NULL); t++) {
        const sl_exec ex = {.k = sl_kernels_at(t, &can), .activations = p->how};
        for (uint32_t of = 1; can && of <= SL_MAX_RANKS; of *= 2) {
            by_ranks(&ex, p, of, n_rows, y);
            for (uint32_t r = 0; r < n_rows; r++)
                kt_same(sl_dtype_name(p->w.dtype), y + (size_t)r * (N + 1),
                        want + (size_t)r * (N + 1), N);
        }
    }
    sl_free(want), sl_free(y);
}

static void ranks_move_no_addition(void **state) {
    (void)state;
    static const uint32_t units[] = {1, 3, 5, 7, 8, 12, 17};
    for (sl_dtype d = 0; d < SL_DTYPE_COUNT; d++)
        for (size_t i = 0; i < SL_LEN(units); i++) {
            if (SL_SLOW_BUILD && (d + i) % take_one_in(3)) continue;
            uint32_t block = sl_dtype_block(d), unit = block > 1 ? block : i % 2 ? 1 : 9;
            if (sl_dtype_is_plain(d) && i > 3) unit = 61;
            product p = make(d, units[i], unit, (sl_activations)(i % SL_ACTIVATIONS_COUNT));
            check(&p, 1);
            check(&p, i % 2 ? ROWS : 5);
            drop(&p);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(units_lie_in_their_segments),
        cmocka_unit_test(ranks_own_whole_subtrees),
        cmocka_unit_test(ranks_move_no_addition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
