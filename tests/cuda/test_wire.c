/* Rows that travel, on the GPU: to the formats of the wire, back and into the stream with the
 * host's bits. */
#include "rows_test.h"

/* Rows with everything that formats have to round: ends of the range, no numbers, nothing at all.
 */
static float *draw_travellers(uint32_t rows, uint32_t d) {
    float *x = kt_floats((size_t)rows * d);
    for (size_t i = 0; i < (size_t)rows * d; i++) {
        if (i / d % 4 == 1) x[i] = ldexpf(x[i], (int)kt_below(250) - 140);
        if (i / d % 4 == 2 && kt_below(9) == 0) x[i] = kt_bits() & 1 ? NAN : -INFINITY;
        if (i / d % 4 == 3) x[i] = 0;
    }
    return x;
}

static void formats_of_the_wire(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 36; i++) {
        const sl_wire_format wire = (sl_wire_format)(i % SL_WIRE_FORMAT_COUNT);
        const uint32_t d = 1 + kt_below(i < 30 ? 300 : 3000), n = 1 + kt_below(9);
        const size_t bytes = sl_wire_row_bytes(wire, d);
        uint32_t *row = kt_bits() & 1 ? rt_order(n) : NULL;
        float *x = draw_travellers(n, d), *back = kt_floats((size_t)n * d);
        uint8_t *want = sl_alloc(n, bytes), *at[9];
        assert_non_null(want);
        uint8_t *packed = rt_in(want, n * bytes);
        float *x_gpu = rt_in(x, (size_t)n * d * sizeof *x);
        float *back_gpu = rt_in(back, (size_t)n * d * sizeof *x);
        for (uint32_t r = 0; r < n; r++) at[r] = packed + r * bytes;
        for (uint32_t r = 0; r < n; r++)
            sl_wire_pack(wire, x + (size_t)(row ? row[r] : r) * d, 1, d, want + r * bytes);
        sl_cuda_pack(rt_gpu, wire, x_gpu, row, n, d, at);
        rt_same_bytes(sl_wire_format_name(wire), want, packed, n * bytes);
        for (uint32_t r = 0; r < n; r++)
            sl_wire_unpack(wire, want + r * bytes, 1, d, back + (size_t)(row ? row[r] : r) * d);
        sl_cuda_unpack(rt_gpu, wire, back_gpu, row, n, d, (const uint8_t *const *)at);
        rt_same("unpacked", back, back_gpu, (size_t)n * d);
        sl_free(row);
        sl_free(x);
        sl_free(back);
        sl_free(want);
        rt_done();
    }
}

/* What the host's stage does (stage/rows.c), with the row's sum made before the stream is touched.
 */
static void merge_on_host(const sl_cuda_merge_rows *m, const uint8_t *const *piece, float *to) {
    float *sum = kt_floats(m->d), *wide = kt_floats(m->d);
    for (uint32_t i = 0; i < m->n; i++) {
        const size_t r = m->from ? m->from[i] : i;
        bool any = false;
        memset(sum, 0, m->d * sizeof *sum);
        for (uint32_t j = 0; j < m->k; j++) {
            if (!piece[i * m->k + j]) continue;
            sl_wire_unpack(m->wire, piece[i * m->k + j], 1, m->d, any ? wide : sum);
            if (any) sl_vec_add(&rt_host, sum, wide, m->d);
            any = true;
        }
        if (m->shared) sl_vec_add(&rt_host, sum, m->shared + r * m->d, m->d);
        memmove(to + (size_t)i * m->d, m->x + r * m->d, m->d * sizeof *to);
        sl_vec_add(&rt_host, to + (size_t)i * m->d, sum, m->d);
    }
    sl_free(sum);
    sl_free(wide);
}

static void merges(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 36; i++) {
        const uint32_t d = 1 + kt_below(i < 30 ? 300 : 3000), n = 1 + kt_below(7);
        sl_cuda_merge_rows m = {.n = n, .d = d, .k = 1 + kt_below(9)};
        m.wire = (sl_wire_format)(i % SL_WIRE_FORMAT_COUNT);
        const size_t bytes = (sl_wire_row_bytes(m.wire, d) + 3) / 4 * 4, all = (size_t)n * d;
        float *x = kt_floats(all), *shared = kt_floats(all), *to = kt_floats(all);
        uint8_t *rows = sl_alloc((size_t)n * m.k, bytes);
        const uint8_t *piece[7 * 9], *piece_gpu[7 * 9];
        uint32_t *from = i % 4 < 2 ? rt_order(n) : NULL;
        assert_non_null(rows);
        const uint8_t *rows_gpu;
        for (uint32_t p = 0; p < n * m.k; p++) {
            float *one = kt_floats(d);
            sl_wire_pack(m.wire, one, 1, d, rows + p * bytes);
            sl_free(one);
        }
        rows_gpu = rt_in(rows, (size_t)n * m.k * bytes);
        for (uint32_t p = 0; p < n * m.k; p++) {
            const bool there = kt_below(3) > 0;
            piece[p] = there ? rows + p * bytes : NULL;
            piece_gpu[p] = there ? rows_gpu + p * bytes : NULL;
        }
        const bool in_place = !from && kt_bits() & 1, shares = kt_bits() & 1;
        sl_cuda_merge_rows gpu = m;
        gpu.x = rt_in(x, all * sizeof *x);
        gpu.to = in_place ? (float *)(uintptr_t)gpu.x : rt_in(to, all * sizeof *to);
        gpu.shared = shares ? rt_in(shared, all * sizeof *shared) : NULL;
        gpu.from = m.from = from;
        gpu.piece = piece_gpu;
        m.x = x;
        m.shared = shares ? shared : NULL;
        merge_on_host(&m, piece, to);
        sl_cuda_merge(rt_gpu, &gpu);
        rt_same("merged rows", to, gpu.to, all);
        sl_free(x);
        sl_free(shared);
        sl_free(to);
        sl_free(rows);
        sl_free(from);
        rt_done();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formats_of_the_wire),
        cmocka_unit_test(merges),
    };
    return cmocka_run_group_tests(tests, rt_open, rt_close);
}
