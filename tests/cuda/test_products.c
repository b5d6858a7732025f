/* Products, rounded rows and widened rows of the GPU against those of processors, bit for bit, on
 * drawn shapes (exec_products.h). */
#include "products_test.h"

static void compare(work *w, bool up, const char *what) {
    if (up) {
        sl_gemm_swiglu(processors(), w->job[0], w->up_mat[0], w->n_jobs);
        sl_cuda_gemm(gpu, w->job[1], w->up_mat[1], w->n_jobs);
    } else {
        sl_gemm(processors(), w->job[0], w->n_jobs);
        sl_cuda_gemm(gpu, w->job[1], NULL, w->n_jobs);
    }
    for (uint32_t i = 0; i < w->n_jobs; i++) {
        float *got = host(w->y_floats[i] * sizeof *got);
        download(got, w->job[1][i].y, w->y_floats[i] * sizeof *got);
        kt_same(what, got, w->job[0][i].y, w->y_floats[i]);
    }
    forget();
}

/* k of a drawn length; whole blocks for what has blocks. */
static uint32_t draw_k(sl_dtype t, bool rounded) {
    const uint32_t block = rounded   ? sl_act_block(sl_act_kind_of(t))
                           : t == F8 ? 1
                                     : sl_dtype_block(t);
    const uint32_t most = kt_below(3) ? 600 : 2600, k = 1 + kt_below(most);
    if (kt_below(40) == 0) return 0;
    return (k + block - 1) / block * block;
}

static sl_dtype other_of(sl_dtype t, bool rounded) {
    if (!rounded) return (sl_dtype)kt_below(SL_DTYPE_COUNT + 1);
    if (sl_act_kind_of(t) == SL_ACT_32) return (sl_dtype)(SL_Q8_0 + kt_below(3));
    return (sl_dtype)(SL_Q4_K + kt_below(3));
}

/* Jobs with one k, and mostly one type. */
static void draw_case(sl_dtype t, bool rounded, uint32_t rows, bool up) {
    static work w;
    memset(&w, 0, sizeof w);
    w.kind = rounded ? sl_act_kind_of(t) : SL_ACT_NONE;
    const uint32_t jobs = 1 + kt_below(4), mixed = kt_below(4) == 0;
    w.k = mixed && !rounded ? 256 * (1 + kt_below(4)) : draw_k(t, rounded);
    w.x_rows = rows + kt_below(4) + 1;
    draw_rows(&w);
    for (uint32_t i = 0; i < jobs; i++) {
        const uint32_t n = kt_below(10) ? 1 + kt_below(i ? 40 : 90) : 0;
        const sl_dtype first = mixed && kt_below(2) ? other_of(t, rounded) : t;
        const sl_dtype second = mixed && kt_below(2) ? other_of(t, rounded) : first;
        w.w[i] = matrix(first, n, w.k);
        w.up[i] = matrix(second, n, w.k);
        add_job(&w, i ? kt_below(rows + 1) : rows, kt_below(2));
    }
    compare(&w, up, sl_dtype_name(t));
}

static void each_amount(sl_dtype t, bool rounded) {
    const uint32_t rows[] = {0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 20, 33, 50, 64, 70};
    for (size_t i = 0; i < SL_LEN(rows); i++) {
        if ((i + t) % take_one_in(SL_SLOW_BUILD ? 5 : 2)) continue;
        draw_case(t, rounded, rows[i], false);
        draw_case(t, rounded, rows[i], true);
    }
}

static void test_products_of_f32(void **state) {
    (void)state;
    for (sl_dtype t = 0; t <= SL_DTYPE_COUNT; t++) each_amount(t, false);
}

static void test_products_of_integers(void **state) {
    (void)state;
    for (sl_dtype t = SL_Q8_0; t < SL_DTYPE_COUNT; t++) each_amount(t, true);
}

/* Lengths about those of units, chunks and 16 lanes, and chains that end at -0. */
static void test_lengths(void **state) {
    const uint32_t ks[] = {1,   3,   4,   15,  16,  17,  31,  32,  33,  47,   48,   49,  64,
                           100, 255, 256, 257, 511, 512, 513, 767, 784, 1024, 1040, 2065};
    (void)state;
    for (size_t i = 0; i < SL_LEN(ks); i++)
        for (uint32_t t = 0; t < 4; t++) {
            static work w;
            memset(&w, 0, sizeof w);
            w.kind = SL_ACT_NONE;
            w.k = ks[i];
            w.x_rows = 3;
            draw_rows(&w);
            for (uint32_t v = 0; v < w.x_stride * w.x_rows && i % 2; v++) w.x[v] *= 1e-30f;
            w.gpu_x = upload(w.x, w.x_stride * w.x_rows * sizeof(float), 0);
            w.w[0] = matrix(t == 3 ? F8 : (sl_dtype)t, 50, w.k);
            if (t == 0)
                for (uint32_t r = 0; r < 50; r++)
                    for (uint32_t v = 0; v < w.k; v++) {
                        const size_t stride = sl_mat_stride(&w.w[0].host);
                        ((float *)((uint8_t *)(uintptr_t)w.w[0].host.data + r * stride))[v] *=
                            1e-16f;
                    }
            if (t == 0) w.w[0].gpu.data = upload(w.w[0].host.data, sl_mat_bytes(&w.w[0].host), 0);
            add_job(&w, 3, false);
            compare(&w, false, "lengths");
        }
}

/* The matrix's values, all of them v. */
static void fill_with(twin *m, float v) {
    const size_t stride = sl_mat_stride(&m->host);
    const uint16_t half = m->host.dtype == SL_F16 ? sl_f32_to_f16(v) : sl_f32_to_bf16(v);
    for (uint32_t r = 0; r < m->host.n; r++)
        for (uint32_t i = 0; i < m->host.k; i++) {
            uint8_t *row = (uint8_t *)(uintptr_t)m->host.data + r * stride;
            if (m->host.dtype == SL_F32)
                memcpy(row + 4 * i, &v, 4);
            else if (m->host.dtype == F8)
                row[i] = 0x38; /* 1 */
            else
                memcpy(row + 2 * i, &half, 2);
        }
    m->gpu.data = upload(m->host.data, sl_mat_bytes(&m->host), 0);
}

/* Chains that round to -0, and end so only where no zeros are behind them up to a whole 16. */
static void test_negative_zeros(void **state) {
    const uint32_t ks[] = {15, 16, 17, 31, 32, 40, 48, 63, 64, 250, 256, 272, 300};
    uint32_t negative = 0;
    (void)state;
    for (size_t i = 0; i < SL_LEN(ks) * 8; i++) {
        static work w;
        memset(&w, 0, sizeof w);
        const uint32_t t = (uint32_t)i % 4, rows = i / 4 % 2 ? 40 : 2;
        w.kind = SL_ACT_NONE;
        w.k = ks[i / 8];
        w.x_rows = rows;
        draw_rows(&w);
        const uint32_t floats = w.x_rows * w.x_stride;
        for (uint32_t v = 0; v < floats; v++) w.x[v] = -1e-42f;
        w.gpu_x = upload(w.x, floats * sizeof(float), 0);
        w.w[0] = matrix(t == 3 ? F8 : (sl_dtype)t, 3, w.k);
        fill_with(&w.w[0], 1e-4f);
        if (t == 3) {
            float *scale = host(64 * sizeof *scale);
            for (uint32_t v = 0; v < 64; v++) scale[v] = 1e-4f;
            w.w[0].host.scale = scale;
            w.w[0].host.scale_row = w.w[0].host.scale_col = w.w[0].host.scale_k = 0;
            w.w[0].gpu = w.w[0].host;
            w.w[0].gpu.data = upload(w.w[0].host.data, sl_mat_bytes(&w.w[0].host), 0);
            w.w[0].gpu.scale = upload(scale, 64 * sizeof *scale, 0);
        }
        add_job(&w, rows, false);
        sl_gemm(processors(), w.job[0], 1);
        negative += signbit(w.job[0][0].y[0]) != 0;
        compare(&w, false, "negative zeros");
    }
    assert_true(negative >= 16);
}

/* More jobs than a launch takes, some of them empty; and as many columns as make wide tiles. */
static void test_many_jobs(void **state) {
    (void)state;
    for (uint32_t way = 0; way < 3; way++) {
        static work w;
        memset(&w, 0, sizeof w);
        const sl_dtype t = way == 2 ? SL_Q4_K : SL_BF16;
        w.kind = way == 2 ? SL_ACT_256 : SL_ACT_NONE;
        w.k = way == 2 ? 512 : 80;
        w.x_rows = 9;
        draw_rows(&w);
        for (uint32_t i = 0; i < 80; i++) {
            w.w[i] = matrix(t, kt_below(5) ? 7 + kt_below(9) : 0, w.k);
            w.up[i] = matrix(t, w.w[i].host.n, w.k);
            add_job(&w, kt_below(w.x_rows + 1), kt_below(2));
        }
        compare(&w, way == 1, "many jobs");
        memset(&w, 0, sizeof w);
        w.kind = way == 2 ? SL_ACT_256 : SL_ACT_NONE;
        w.k = 256;
        w.x_rows = 2;
        draw_rows(&w);
        w.w[0] = matrix(t, 9000, w.k);
        w.up[0] = matrix(t, 9000, w.k);
        add_job(&w, 2, false);
        compare(&w, way == 1, "many columns");
    }
}

static void test_quantise(void **state) {
    (void)state;
    for (int i = 0; i < 120; i++) {
        const sl_act_kind kind = i & 1 ? SL_ACT_256 : SL_ACT_32;
        const uint32_t k = k8_length(kind), rows = kt_below(9), listed = kt_below(2);
        const uint32_t stride = kt_below(2) ? k : k + kt_below(9), n = listed ? 2 * rows : rows;
        const size_t bytes = sl_act_row_bytes(kind, k);
        float *x = host((size_t)(rows + 1) * stride * sizeof *x);
        uint32_t *row = host((n + 1) * sizeof *row);
        for (uint32_t r = 0; r <= rows; r++) k8_hard_values(x + (size_t)r * stride, k, i + (int)r);
        for (uint32_t r = 0; r < n; r++) row[r] = kt_below(rows + 1);
        uint8_t *want = host(n * bytes + 64), *got = host(n * bytes + 64);
        float *gpu_x = upload(x, (size_t)(rows + 1) * stride * sizeof *x, 4 * kt_below(3));
        uint8_t *to = device(n * bytes + 64);
        sl_quantise(processors(), x, listed ? row : NULL, n, stride, k, kind, want);
        sl_cuda_quantise(gpu, gpu_x, listed ? row : NULL, n, stride, k, NULL, kind, to);
        download(got, to, n * bytes);
        for (uint32_t r = 0; r < n; r++) kt_same_act(got + r * bytes, want + r * bytes, kind, k);
        forget();
    }
}

static void test_embed(void **state) {
    (void)state;
    for (sl_dtype t = 0; t <= SL_DTYPE_COUNT; t++)
        for (int i = 0; i < 12; i++) {
            const uint32_t k = draw_k(t, false), n = 1 + kt_below(20), rows = kt_below(30);
            const twin m = matrix(t, n, k);
            uint32_t *ids = host((rows + 1) * sizeof *ids);
            float *want = host((size_t)rows * k * sizeof *want);
            float *got = host((size_t)rows * k * sizeof *want);
            float *to = device((size_t)rows * k * sizeof *want);
            for (uint32_t r = 0; r < rows; r++) ids[r] = kt_below(n);
            sl_embed(processors(), &m.host, ids, rows, want);
            sl_cuda_embed(gpu, &m.gpu, ids, rows, to);
            if (rows) download(got, to, (size_t)rows * k * sizeof *got);
            kt_same("embed", got, want, (size_t)rows * k);
            forget();
        }
}

/* What is not there is refused by name, and nothing is launched. */
static void refused(const char *name) {
    sl_err err = {0};
    assert_int_equal(sl_cuda_failed(gpu, &err), SL_ERR_UNSUPPORTED);
    if (!strstr(err.msg, name)) fail_msg("\"%s\" does not say %s", err.msg, name);
    n_on_gpu = 0; /* which went with the context */
    while (n_on_host) sl_free(on_host[--n_on_host]);
    sl_cuda_close(gpu);
    assert_int_equal(sl_cuda_open(0, SL_NUMERICS_CPU, &gpu, &err), SL_OK);
}

static void test_refusals(void **state) {
    sl_segments s = {.n = 1, .end = {64}};
    twin m = matrix(SL_BF16, 4, 64);
    float *x = device(64 * sizeof *x), *y = device(64 * sizeof *y);
    sl_gemm_job j = {.w = &m.gpu, .x = x, .n_rows = 1, .x_stride = 64, .y_stride = 4, .y = y};
    (void)state;
    m.gpu.segments = &s;
    sl_cuda_gemm(gpu, &j, NULL, 1);
    refused("segments");
    m.gpu.segments = NULL;
    j.act.row[SL_ACT_BF16] = (uint8_t *)x;
    sl_cuda_gemm(gpu, &j, NULL, 1);
    refused("bf16");
    j.act.row[SL_ACT_BF16] = NULL;
    m.gpu.data = (const uint8_t *)m.gpu.data + 1;
    sl_cuda_gemm(gpu, &j, NULL, 1);
    refused("multiples of 2");
    sl_cuda_quantise(gpu, x, NULL, 1, 64, 64, NULL, SL_ACT_BF16, (uint8_t *)y);
    refused("BF16");
    sl_cuda_quantise(gpu, x, NULL, 1, 64, 64, &s, SL_ACT_32, (uint8_t *)y);
    refused("segments");
}

static int open_gpu(void **state) {
    (void)state;
    return open_gpu_for(SL_NUMERICS_CPU);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_of_f32), cmocka_unit_test(test_products_of_integers),
        cmocka_unit_test(test_lengths),         cmocka_unit_test(test_negative_zeros),
        cmocka_unit_test(test_many_jobs),       cmocka_unit_test(test_quantise),
        cmocka_unit_test(test_embed),           cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, open_gpu, close_gpu);
}
