/* Shared by the tests of the CUDA device's operations: memory of the GPU for the length of a case,
 * drawn rows, bits that are the same. */
#ifndef SL_TESTS_CUDA_ROWS_TEST_H
#define SL_TESTS_CUDA_ROWS_TEST_H

#include "quant/kv_rows.h"
#include "stage/cuda/exec_rows.h"
#include "unit/kernel_test.h"

#define RT_MAX_BLOCKS 64

static sl_cuda *rt_gpu;
static sl_exec rt_host; /* what is compared with */
static uint64_t rt_block[RT_MAX_BLOCKS];
static uint32_t rt_blocks;

static inline int rt_open(void **state) {
    sl_err err;
    (void)state;
    rt_host.k = sl_kernels_base();
    if (sl_cuda_open(0, SL_NUMERICS_CPU, &rt_gpu, &err) != SL_OK) fail_msg("%s", err.msg);
    return 0;
}

static inline int rt_close(void **state) {
    (void)state;
    sl_cuda_close(rt_gpu);
    return 0;
}

/* So many bytes of the GPU that hold these; until rt_done. */
static inline void *rt_in(const void *from, size_t bytes) {
    sl_err err;
    uint64_t at;
    assert_true(rt_blocks < RT_MAX_BLOCKS);
    if (sl_cuda_alloc(rt_gpu, SL_MAX(bytes, (size_t)1), &at, &err) != SL_OK)
        fail_msg("%s", err.msg);
    rt_block[rt_blocks++] = at;
    if (bytes && sl_cuda_copy_in(rt_gpu, at, from, bytes, &err) != SL_OK) fail_msg("%s", err.msg);
    return (void *)(uintptr_t)at;
}

static inline void rt_out(void *to, const void *from, size_t bytes) {
    sl_err err;
    if (sl_cuda_copy_out(rt_gpu, to, (uint64_t)(uintptr_t)from, bytes, &err) != SL_OK)
        fail_msg("%s", err.msg);
}

static inline void rt_done(void) {
    sl_err err;
    if (sl_cuda_failed(rt_gpu, &err) != SL_OK) fail_msg("%s", err.msg);
    while (rt_blocks) sl_cuda_free(rt_gpu, rt_block[--rt_blocks]);
}

/* The bits of n values; NaN is any NaN. */
static inline void rt_same_values(const char *what, const float *want, const float *got, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (isnan(want[i]) && isnan(got[i])) continue;
        if (sl_f32_bits(want[i]) != sl_f32_bits(got[i]))
            fail_msg("%s: value %zu of %zu is %a, expected %a", what, i, n, (double)got[i],
                     (double)want[i]);
    }
}

/* What the GPU has at `at` has the bits of what the host has. */
static inline void rt_same(const char *what, const float *want, const float *at, size_t n) {
    float *got = sl_alloc(SL_MAX(n, (size_t)1), sizeof *got);
    assert_non_null(got);
    rt_out(got, at, n * sizeof *got);
    rt_same_values(what, want, got, n);
    sl_free(got);
}

static inline void rt_same_bytes(const char *what, const uint8_t *want, const void *at, size_t n) {
    uint8_t *got = sl_alloc(SL_MAX(n, (size_t)1), 1);
    assert_non_null(got);
    rt_out(got, at, n);
    for (size_t i = 0; i < n; i++)
        if (want[i] != got[i])
            fail_msg("%s: byte %zu of %zu is %02x, expected %02x", what, i, n, got[i], want[i]);
    sl_free(got);
}

static inline float *rt_copy(const float *x, size_t n) {
    float *y = sl_alloc(SL_MAX(n, (size_t)1), sizeof *y);
    assert_non_null(y);
    if (n) memcpy(y, x, n * sizeof *y);
    return y;
}

/* n drawn bytes. */
static inline uint8_t *rt_noise(size_t n) {
    uint8_t *x = sl_alloc(SL_MAX(n, (size_t)1), 1);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) x[i] = (uint8_t)kt_bits();
    return x;
}

/* n numbers below `below`, some of them often. */
static inline uint32_t *rt_rows(size_t n, uint32_t below) {
    uint32_t *row = sl_alloc(SL_MAX(n, (size_t)1), sizeof *row);
    assert_non_null(row);
    for (size_t i = 0; i < n; i++) row[i] = kt_below(below);
    return row;
}

/* 0 .. n - 1 in a drawn order. */
static inline uint32_t *rt_order(uint32_t n) {
    uint32_t *row = rt_rows(n, 1);
    for (uint32_t i = 0; i < n; i++) row[i] = i;
    for (uint32_t i = n; i > 1; i--) {
        const uint32_t j = kt_below(i), other = row[i - 1];
        row[i - 1] = row[j];
        row[j] = other;
    }
    return row;
}

/* Rows of requests, at positions pos[r] of their pages (pages[r]); a request has `per` pages. */
typedef struct rt_sights {
    const sl_model_spec *m;
    uint32_t rows, per;
    const uint32_t *pos, *const *pages;
} rt_sights;

/* n pages with what these numbers, [n][tiles of a page][row][head_dim], are kept as. */
static inline uint8_t *rt_pages(const sl_model_spec *m, uint32_t n, const float *x) {
    const uint32_t rows = n * m->n_layers * sl_kv_sides(m) * m->n_kv_heads * SL_KV_PAGE_TOKENS;
    uint8_t *pool = sl_alloc(n, sl_kv_page_bytes(m));
    assert_non_null(pool);
    for (uint32_t i = 0; i < rows; i++)
        sl_kv_round_row(m->kv_type, x + (size_t)i * m->head_dim, sl_kv_value_dim(m), m->head_dim,
                        pool + i * sl_kv_row_bytes(m));
    return pool;
}

/* What no row of the request with these pages sees is no number: nobody may let it in. */
static inline void rt_poison(const rt_sights *s, const uint32_t *list, uint8_t *pool) {
    const size_t page = sl_kv_page_bytes(s->m), row = sl_kv_row_bytes(s->m);
    float nothing[SL_HEAD_DIM_MAX];
    for (uint32_t i = 0; i < SL_HEAD_DIM_MAX; i++) nothing[i] = NAN;
    uint32_t low = UINT32_MAX, high = 0;
    for (uint32_t r = 0; r < s->rows; r++) {
        if (s->pages[r] != list) continue;
        low = SL_MIN(low, sl_sight_first(s->m, 1, s->pos[r]));
        high = SL_MAX(high, s->pos[r]);
    }
    for (uint32_t p = 0; p < s->per * SL_KV_PAGE_TOKENS; p++) {
        uint8_t *at = pool + list[p / SL_KV_PAGE_TOKENS] * page + p % SL_KV_PAGE_TOKENS * row;
        if (p >= low && p <= high) continue;
        for (size_t t = 0; t < page; t += sl_kv_tile_bytes(s->m))
            sl_kv_round_row(s->m->kv_type, nothing, sl_kv_value_dim(s->m), s->m->head_dim, at + t);
    }
}

#endif
