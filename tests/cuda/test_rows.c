/* Rows on the GPU beside products: each operation has the bits of the host's on drawn shapes. */
#include "rows_test.h"

#include "quant/act.h"

/* ---- norms ---- */

typedef struct norm_case {
    uint32_t rows, n, kinds; /* kinds: bits of sl_act_kind */
    sl_dtype dtype;
    bool centred, f32, in_place;
} norm_case;

static void norm_once(const norm_case *k) {
    const size_t n = (size_t)k->rows * k->n;
    float *x = kt_floats(n), *y = rt_copy(x, n);
    void *base, *weights = kt_weights(k->dtype, k->n, false, &base);
    const sl_mat w = {.data = weights, .n = 1, .k = k->n, .dtype = k->dtype};
    sl_mat w_gpu = w;
    sl_norm_out want = {.y = k->f32 ? y : NULL}, got = {.y = NULL};
    w_gpu.data = rt_in(weights, sl_dtype_row_bytes(k->dtype, k->n));
    const float *x_gpu = rt_in(x, n * sizeof *x);
    if (k->f32) got.y = k->in_place ? (float *)(uintptr_t)x_gpu : rt_in(x, n * sizeof *x);
    for (sl_act_kind i = 0; i < SL_ACT_KINDS; i++) {
        if (!(k->kinds & 1u << i)) continue;
        const size_t bytes = k->rows * sl_act_row_bytes(i, k->n);
        want.act[i] = sl_alloc(bytes, 1);
        assert_non_null(want.act[i]);
        got.act[i] = rt_in(want.act[i], bytes);
    }
    sl_norm_quantise(&rt_host, x, &w, 1e-5f, k->centred, k->rows, k->n, &want);
    sl_cuda_norm(rt_gpu, x_gpu, &w_gpu, 1e-5f, k->centred, k->rows, k->n, &got);
    if (k->f32) rt_same("norm", y, got.y, n);
    for (sl_act_kind i = 0; i < SL_ACT_KINDS; i++) {
        if (!want.act[i]) continue;
        rt_same_bytes("rounded norm", want.act[i], got.act[i], k->rows * sl_act_row_bytes(i, k->n));
        sl_free(want.act[i]);
    }
    sl_free(x);
    sl_free(y);
    sl_free(base);
    rt_done();
}

static void norms(void **state) {
    static const uint32_t widths[] = {1, 5, 16, 31, 64, 96, 128, 200, 512, 513, 2047, 2880, 4100};
    (void)state;
    for (size_t i = 0; i < SL_LEN(widths); i++) {
        norm_case k = {.rows = 1 + kt_below(widths[i] < 600 ? 19 : 2), .n = widths[i], .f32 = true};
        for (k.dtype = 0; k.dtype < SL_DTYPE_PLAIN; k.dtype++) {
            k.in_place = kt_bits() & 1;
            k.centred = kt_bits() & 1;
            norm_once(&k);
        }
    }
}

static void norms_rounded(void **state) {
    static const uint32_t widths[] = {32, 96, 256, 512, 1024, 2080, 4352};
    (void)state;
    for (size_t i = 0; i < SL_LEN(widths); i++)
        for (uint32_t kinds = 1; kinds < 1u << SL_ACT_KINDS; kinds++) {
            norm_case k = {.rows = 1 + kt_below(3), .n = widths[i], .kinds = kinds};
            if (kinds & 1u << SL_ACT_256 && k.n % 256) continue;
            k.dtype = (sl_dtype)kt_below(SL_DTYPE_PLAIN);
            k.centred = kt_below(4) == 0;
            k.f32 = k.centred || kt_bits() & 1;
            norm_once(&k);
        }
}

/* Blocks of zeros, of the tiniest and of values that are no numbers have codes, too. */
static void norms_of_odd_blocks(void **state) {
    enum { N = 512, ROWS = 3 };
    float x[ROWS * N], one[N];
    const sl_mat w = {.data = one, .n = 1, .k = N, .dtype = SL_F32};
    sl_mat w_gpu = w;
    (void)state;
    for (uint32_t i = 0; i < N; i++) one[i] = 1;
    for (uint32_t i = 0; i < ROWS * N; i++) x[i] = kt_value();
    for (uint32_t i = 0; i < 256; i++) x[i] = i < 32 ? 0.0f : i < 64 ? x[i] * 1e-37f : x[i];
    x[N + 70] = INFINITY;
    for (uint32_t i = 0; i < N; i++) x[2 * N + i] = -0.0f;
    sl_norm_out want = {.y = NULL}, got = {.y = NULL};
    w_gpu.data = rt_in(one, sizeof one);
    for (sl_act_kind i = 0; i < SL_ACT_KINDS; i++) {
        want.act[i] = sl_alloc(ROWS, sl_act_row_bytes(i, N));
        assert_non_null(want.act[i]);
        got.act[i] = rt_in(want.act[i], ROWS * sl_act_row_bytes(i, N));
    }
    sl_norm_quantise(&rt_host, x, &w, 1e-6f, false, ROWS, N, &want);
    sl_cuda_norm(rt_gpu, rt_in(x, sizeof x), &w_gpu, 1e-6f, false, ROWS, N, &got);
    for (sl_act_kind i = 0; i < SL_ACT_KINDS; i++) {
        const size_t bytes = sl_act_row_bytes(i, N);
        uint8_t *rows = sl_alloc(ROWS, bytes);
        assert_non_null(rows);
        rt_out(rows, got.act[i], ROWS * bytes);
        for (uint32_t r = 0; r < ROWS; r++) {
            const uint8_t *a = want.act[i] + r * bytes, *b = rows + r * bytes;
            if (!sl_act_is_int8(i)) {
                for (uint32_t j = 0; j < N; j++)
                    rt_same_values("bf16", &(float){sl_bf16_to_f32(((const uint16_t *)a)[j])},
                                   &(float){sl_bf16_to_f32(((const uint16_t *)b)[j])}, 1);
                continue;
            }
            assert_memory_equal(a, b, N);
            rt_same_values("scales", sl_act_scales(a, N), sl_act_scales(b, N), N / sl_act_block(i));
            assert_memory_equal(sl_act_sums(i, a, N), sl_act_sums(i, b, N),
                                N / sl_act_sum_of(i) * sizeof(int16_t));
        }
        sl_free(rows);
        sl_free(want.act[i]);
    }
    rt_done();
}

/* ---- element by element ---- */

static void elements(void **state) {
    static const size_t sizes[] = {1, 31, 256, 1000, 5001};
    (void)state;
    for (size_t i = 0; i < SL_LEN(sizes); i++) {
        const size_t n = sizes[i];
        float *x = kt_floats(n), *y = kt_floats(n);
        y[0] = NAN;
        if (n > 3) y[1] = INFINITY, y[2] = -INFINITY;
        float *x_gpu = rt_in(x, n * sizeof *x), *y_gpu = rt_in(y, n * sizeof *y);
        sl_vec_add(&rt_host, y, x, n);
        sl_cuda_vec_add(rt_gpu, y_gpu, x_gpu, n);
        rt_same("add", y, y_gpu, n);
        sl_swiglu_clamped(&rt_host, y, x, 0.75f, n);
        sl_cuda_swiglu_clamped(rt_gpu, y_gpu, x_gpu, 0.75f, n);
        rt_same("swiglu", y, y_gpu, n);
        sl_vec_clip(&rt_host, y, 0.3f, n);
        sl_cuda_vec_clip(rt_gpu, y_gpu, 0.3f, n);
        rt_same("clip", y, y_gpu, n);
        sl_free(x);
        sl_free(y);
        rt_done();
    }
}

static void biases_and_gates(void **state) {
    static const uint32_t widths[] = {1, 7, 128, 1030, 2880};
    (void)state;
    for (size_t i = 0; i < SL_LEN(widths); i++)
        for (sl_dtype t = 0; t < SL_DTYPE_PLAIN; t++) {
            const uint32_t n = widths[i], rows = 1 + kt_below(5);
            float *y = kt_floats((size_t)rows * n), *gate = kt_floats(rows);
            void *base, *bias = kt_weights(t, n, false, &base);
            sl_mat b = {.data = bias, .n = 1, .k = n, .dtype = t};
            float *y_gpu = rt_in(y, (size_t)rows * n * sizeof *y);
            sl_bias_add(&rt_host, y, &b, rows);
            b.data = rt_in(bias, sl_dtype_row_bytes(t, n));
            sl_cuda_bias_add(rt_gpu, y_gpu, &b, rows);
            rt_same("bias", y, y_gpu, (size_t)rows * n);
            sl_gate_rows(&rt_host, y, gate, rows, n);
            sl_cuda_gate_rows(rt_gpu, y_gpu, rt_in(gate, rows * sizeof *gate), rows, n);
            rt_same("gate", y, y_gpu, (size_t)rows * n);
            sl_free(y);
            sl_free(gate);
            sl_free(base);
            rt_done();
        }
}

/* ---- rotations ---- */

static void rotations(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 24; i++) {
        const uint32_t dim = 2 * (1 + kt_below(i < 20 ? 80 : 512)), heads = 1 + kt_below(40);
        const uint32_t rows = 1 + kt_below(4), half = 1 + kt_below(dim / 2);
        const sl_rope_shape shape = {heads, dim, 2 * half, heads * dim + kt_below(3)};
        float *x = kt_floats((size_t)rows * shape.x_stride);
        double freq[SL_HEAD_DIM_MAX / 2];
        uint32_t pos[4];
        for (uint32_t j = 0; j < half; j++) freq[j] = pow(10000, -(double)j / half);
        for (uint32_t r = 0; r < rows; r++) pos[r] = kt_below(1u << (1 + kt_below(20)));
        const size_t n = (size_t)(rows - 1) * shape.x_stride + (size_t)heads * dim;
        float *x_gpu = rt_in(x, n * sizeof *x);
        sl_rope(&rt_host, x, pos, freq, rows, &shape);
        sl_cuda_rope(rt_gpu, x_gpu, pos, rt_in(freq, sizeof freq), rows, &shape);
        rt_same("rope", x, x_gpu, n);
        sl_free(x);
        rt_done();
    }
}

static void pairs_split(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 24; i++) {
        const uint32_t dim = 2 * (1 + kt_below(i < 20 ? 70 : 512)), n = 1 + kt_below(20);
        const size_t stride = dim + kt_below(9), all = (n - 1) * stride + dim;
        float *x = kt_floats(all), *x_gpu = rt_in(x, all * sizeof *x);
        sl_split_pairs(&rt_host, x, n, dim, stride);
        sl_cuda_split_pairs(rt_gpu, x_gpu, n, dim, stride);
        rt_same("split pairs", x, x_gpu, all);
        sl_free(x);
        rt_done();
    }
}

/* ---- copies ---- */

static void copies(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 40; i++) {
        const uint32_t width = kt_bits() & 1 ? 4 * (1 + kt_below(90)) : 1 + kt_below(700);
        const uint32_t rows = 1 + kt_below(9), gap = kt_below(3) * (kt_bits() & 1 ? 4 : 1);
        const size_t x_stride = width + gap, y_stride = width + kt_below(2) * 4;
        const size_t xn = rows * x_stride, yn = rows * y_stride;
        float *x = kt_floats(xn), *y = kt_floats(yn);
        float *x_gpu = rt_in(x, xn * sizeof *x), *y_gpu = rt_in(y, yn * sizeof *y);
        sl_copy_rows(&rt_host, x, x_stride, rows, width, y, y_stride);
        sl_cuda_copy_rows(rt_gpu, x_gpu, x_stride, rows, width, y_gpu, y_stride);
        rt_same("copied rows", y, y_gpu, yn);
        sl_scale_part(&rt_host, y, y_stride, rows, width, 1.37f);
        sl_cuda_scale_part(rt_gpu, y_gpu, y_stride, rows, width, 1.37f);
        rt_same("scaled parts", y, y_gpu, yn);
        sl_free(x);
        sl_free(y);
        rt_done();
    }
}

static void picked_rows(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 40; i++) {
        const uint32_t d = kt_bits() & 1 ? 4 * (1 + kt_below(200)) : 1 + kt_below(600);
        const uint32_t n = 1 + kt_below(12), of = 1 + kt_below(9);
        uint32_t *row = rt_rows(n, of), *to = rt_order(n);
        float *x = kt_floats((size_t)SL_MAX(n, of) * d), *y = kt_floats((size_t)n * d);
        float *factor = kt_floats(n), *z = rt_copy(y, (size_t)n * d);
        float *x_gpu = rt_in(x, (size_t)SL_MAX(n, of) * d * sizeof *x);
        float *y_gpu = rt_in(y, (size_t)n * d * sizeof *y);
        const float *f = kt_bits() & 1 ? factor : NULL;
        sl_pick_rows(&rt_host, x, row, f, n, d, y);
        sl_cuda_pick_rows(rt_gpu, x_gpu, row, f, n, d, y_gpu);
        rt_same("picked rows", y, y_gpu, (size_t)n * d);
        sl_pick_rows(&rt_host, y, NULL, factor, n, d, y);
        sl_cuda_pick_rows(rt_gpu, y_gpu, NULL, factor, n, d, y_gpu);
        rt_same("weighed rows", y, y_gpu, (size_t)n * d);
        for (uint32_t r = 0; r < n; r++)
            memcpy(z + (size_t)to[r] * d, x + (size_t)row[r] * d, d * sizeof *z);
        sl_cuda_move_rows(rt_gpu, x_gpu, row, n, d, y_gpu, to);
        rt_same("moved rows", z, y_gpu, (size_t)n * d);
        sl_cuda_move_rows(rt_gpu, x_gpu, NULL, n, d, y_gpu, NULL);
        rt_same("rows as they were", x, y_gpu, (size_t)n * d);
        sl_free(row);
        sl_free(to);
        sl_free(x);
        sl_free(y);
        sl_free(z);
        sl_free(factor);
        rt_done();
    }
}

/* Rows of any heads, or of latents in two parts, each to its place in the pages of any type. Some
 * values are at the ends of what types keep, and beyond. */
static void keys_and_values(void **state) {
    static const float ends[] = {INFINITY, -INFINITY, NAN,   3e38f, -65519,
                                 465,      1e-40f,    6e-8f, -0.0f};
    static sl_model_spec m;
    uint32_t list[3][4];
    (void)state;
    for (uint32_t i = 0; i < 60; i++) {
        const bool latent = i % 3 == 0, even = i & 1;
        m = (sl_model_spec){.n_layers = 2 + kt_below(2), .kv_type = i % SL_KV_TYPES};
        m.n_kv_heads = latent ? 1 : 1 + kt_below(5);
        m.head_dim = even ? 4 * (2 + kt_below(30)) : 2 + kt_below(90);
        m.kv_lora = latent ? 1 + kt_below(m.head_dim - 1) : 0;
        const size_t all = 12 * sl_kv_page_bytes(&m);
        uint8_t *pool = rt_noise(all);
        const uint32_t rows = 1 + kt_below(12);
        const uint32_t *pages[12];
        uint32_t pos[12];
        for (uint32_t r = 0, *at = rt_order(12); r < 12; r++) {
            list[r / 4][r % 4] = at[r];
            if (r == 11) sl_free(at);
        }
        for (uint32_t r = 0; r < rows; r++) {
            pages[r] = list[r % 3];
            pos[r] = r * 8 + kt_below(8);
        }
        sl_kv_put p = {.m = &m, .layer = kt_below(m.n_layers), .is_v = kt_bits() & 1};
        p.n_rows = rows;
        p.n_tiles = m.n_kv_heads;
        p.width = latent ? m.kv_lora : m.head_dim;
        p.x_stride = m.n_kv_heads * m.head_dim + kt_below(2) * 4;
        p.pos = pos;
        p.pages = pages;
        float *x = kt_floats((size_t)rows * p.x_stride);
        for (uint32_t j = 0; j < SL_LEN(ends); j++)
            x[kt_below(rows * p.x_stride)] = ends[kt_below(SL_LEN(ends))];
        uint8_t *pool_gpu = rt_in(pool, all);
        float *x_gpu = rt_in(x, (size_t)rows * p.x_stride * sizeof *x);
        for (uint32_t part = 0; part < (latent ? 2 : 1); part++) {
            p.x = x + p.column;
            p.kv = sl_kv_pool_of(&m, pool);
            sl_put_kv(&rt_host, &p);
            p.x = x_gpu + p.column;
            p.kv.base = pool_gpu;
            sl_cuda_put_kv(rt_gpu, &p);
            p.column = p.width;
            p.width = m.head_dim - p.width;
        }
        rt_same_bytes("pages", pool, pool_gpu, all);
        sl_free(x);
        sl_free(pool);
        rt_done();
    }
}

/* ---- sums ---- */

static void sums_of_pairs(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 24; i++) {
        const uint32_t d = 1 + kt_below(i < 20 ? 700 : 3000), rows = 1 + kt_below(9);
        const uint32_t n = 1 + kt_below(i < 20 ? 40 : 200);
        float *y = kt_floats((size_t)n * d), *out = kt_floats((size_t)rows * d);
        float *gate = kt_floats(n), *out_gpu = rt_in(out, (size_t)rows * d * sizeof *out);
        float *to[200], *to_gpu[200];
        uint8_t adds[200];
        bool seen[9] = {false};
        const bool fresh = kt_bits() & 1; /* the first pair of a place takes it */
        for (uint32_t p = 0; p < n; p++) {
            const uint32_t r = kt_below(rows);
            to[p] = out + (size_t)r * d;
            to_gpu[p] = out_gpu + (size_t)r * d;
            adds[p] = seen[r] || !fresh;
            seen[r] = true;
        }
        sl_pair_sum s = {.n_pairs = n, .d = d, .y = y, .adds = adds, .to = to};
        s.gate = kt_bits() & 1 ? gate : NULL;
        s.first = kt_below(2) * kt_below(d);
        s.n = kt_bits() & 1 ? d - s.first : 1 + kt_below(d - s.first);
        sl_sum_pairs(&rt_host, &s);
        s.y = rt_in(y, (size_t)n * d * sizeof *y);
        s.to = to_gpu;
        sl_cuda_sum_pairs(rt_gpu, &s);
        rt_same("sums of pairs", out, out_gpu, (size_t)rows * d);
        sl_free(y);
        sl_free(out);
        sl_free(gate);
        rt_done();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms),
        cmocka_unit_test(norms_rounded),
        cmocka_unit_test(norms_of_odd_blocks),
        cmocka_unit_test(elements),
        cmocka_unit_test(biases_and_gates),
        cmocka_unit_test(rotations),
        cmocka_unit_test(pairs_split),
        cmocka_unit_test(copies),
        cmocka_unit_test(picked_rows),
        cmocka_unit_test(keys_and_values),
        cmocka_unit_test(sums_of_pairs),
    };
    return cmocka_run_group_tests(tests, rt_open, rt_close);
}
