/* Products of numerics fast against sums in double, within what rounding to bf16 costs; and the
 * same bits every time. */
#include "products_test.h"
#include "stage/cuda/exec_rows.h"
#include "stage/cuda/wide_plan.h"

/* Of the sum of magnitudes: rows as two numbers of bf16 each, and as one. */
#define NEAR_FEW   2e-5
#define NEAR_MANY  4e-3
#define NEAR_WHOLE 4e-6 /* of three */

typedef struct sum {
    double value, size;
} sum;

static sum dot(const sl_mat *w, uint32_t row, const float *x) {
    const uint8_t *from = (const uint8_t *)w->data + row * sl_mat_stride(w);
    sum s = {0, 0};
    for (uint32_t i = 0; i < w->k; i++) {
        const double p = (double)x[i] * kt_weight(from, w->dtype, i);
        s.value += p;
        s.size += fabs(p);
    }
    return s;
}

static double silu(double g) {
    return g / (1 + exp(-g));
}

static void expect(float got, double want, double off, const char *what) {
    if (!(fabs(got - want) <= off)) fail_msg("%s: %g, want %g within %g", what, got, want, off);
}

static void check_job(const work *w, uint32_t i, bool up, const float *got, const char *what) {
    const sl_gemm_job *j = &w->job[0][i];
    const double near = j->decides ? NEAR_WHOLE : j->n_rows <= 8 ? NEAR_FEW : NEAR_MANY;
    for (uint32_t r = 0; r < j->n_rows; r++)
        for (uint32_t c = 0; c < j->y_stride; c++) {
            const float y = got[(size_t)r * j->y_stride + c];
            if (c >= j->w->n) {
                assert_int_equal(sl_f32_bits(y), UNTOLD);
                continue;
            }
            const float *x = j->x + (size_t)(j->row ? j->row[r] : r) * j->x_stride;
            const sum g = dot(j->w, c, x);
            if (!up) {
                expect(y, g.value, near * g.size + 1e-30, what);
                continue;
            }
            const sum u = dot(w->up_mat[0][i], c, x);
            const double off = 1.2 * near * g.size * (fabs(u.value) + near * u.size) +
                               near * u.size * fabs(silu(g.value)) +
                               1e-5 * fabs(silu(g.value) * u.value);
            expect(y, silu(g.value) * u.value, off + 1e-30, what);
        }
}

static void check(work *w, bool up, const char *what) {
    for (uint32_t time = 0; time < 2; time++) {
        for (uint32_t i = 0; i < w->n_jobs; i++) /* as compare does not: y again */
            w->job[1][i].y = upload(w->job[0][i].y, w->y_floats[i] * sizeof(float), 0);
        sl_cuda_gemm(gpu, w->job[1], up ? w->up_mat[1] : NULL, w->n_jobs);
        for (uint32_t i = 0; i < w->n_jobs; i++) {
            static float *first[80];
            float *got = host(w->y_floats[i] * sizeof *got);
            download(got, w->job[1][i].y, w->y_floats[i] * sizeof *got);
            if (time == 0)
                check_job(w, i, up, first[i] = got, what);
            else
                kt_same("again", got, first[i], w->y_floats[i]);
        }
    }
    forget();
}

static void tame(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = kt_value();
}

static void draw_case(uint32_t rows, uint32_t k, uint32_t n, bool up) {
    static work w;
    sl_cuda_set_few(gpu, (sl_cuda_few){.ring = kt_below(2), .fetch = kt_below(2)});
    memset(&w, 0, sizeof w);
    w.kind = SL_ACT_NONE;
    w.k = k;
    w.x_rows = rows + kt_below(4) + 1;
    draw_rows(&w);
    tame(w.x, (size_t)w.x_rows * w.x_stride);
    w.gpu_x = upload(w.x, (size_t)w.x_rows * w.x_stride * sizeof(float), 0);
    for (uint32_t i = 0; i < 1 + kt_below(3); i++) {
        const uint32_t cols = i ? kt_below(60) : n;
        w.w[i] = matrix(SL_BF16, cols, k);
        w.up[i] = matrix(SL_BF16, cols, k);
        add_job(&w, i ? kt_below(rows + 1) : rows, kt_below(2));
    }
    char what[64];
    snprintf(what, sizeof what, "%u rows, k %u, %u columns", rows, k, n);
    check(&w, up, what);
}

static void test_shapes(void **state) {
    const uint32_t rows[] = {1, 2, 3, 5, 8, 9, 16, 31, 33, 64, 65, 130};
    const uint32_t ks[] = {8, 24, 56, 64, 72, 128, 200, 512, 520, 1000, 1536};
    (void)state;
    for (size_t i = 0; i < SL_LEN(rows); i++)
        for (uint32_t t = take_whole() ? 0 : i & 1; t < 6; t += take_one_in(6))
            draw_case(rows[i], ks[kt_below(SL_LEN(ks))], 1 + kt_below(150), t & 1);
}

/* Streams of wide tiles, and tiles of which no two blocks share one. */
static void test_wide(void **state) {
    (void)state;
    draw_case(1, 128, 700, false);
    draw_case(2, 200, 700, true);
    draw_case(8, 264, 300, false);
    draw_case(40, 128, 1200, false);
    draw_case(140, 72, 600, true);
}

static double norm_of(const float *x, uint32_t n, const float *w, bool centred, uint32_t i) {
    double mean = 0, s = 0;
    for (uint32_t j = 0; centred && j < n; j++) mean += x[j] / (double)n;
    for (uint32_t j = 0; j < n; j++) s += (x[j] - mean) * (x[j] - mean);
    return (x[i] - mean) / sqrt(s / n + 1e-6) * w[i];
}

static void expect_rows(const char *what, const float *at, const double *want, size_t n) {
    float *got = host(n * sizeof *got);
    double size = 1e-3;
    download(got, at, n * sizeof *got);
    for (size_t i = 0; i < n; i++) size = fmax(size, fabs(want[i]));
    for (size_t i = 0; i < n; i++) expect(got[i], want[i], 2e-5 * size, what);
}

static twin plain(uint32_t n, uint32_t k) {
    twin m = {.host = {.data = host((size_t)n * k * 2), .n = n, .k = k, .dtype = SL_BF16}};
    fill(SL_BF16, (size_t)n * k, (uint8_t *)(uintptr_t)m.host.data);
    m.gpu = m.host;
    m.gpu.data = upload(m.host.data, (size_t)n * k * 2, 0);
    return m;
}

/* A norm, two products with its rows, a product with those, and what that is added to: as one
 * launch each or several, every row has its value. The last one's rows are the norm's own where
 * `again`: then they are added apart. */
static void joined(uint32_t rows, uint32_t k, uint32_t n, bool centred, bool again) {
    sl_cuda_set_few(gpu, (sl_cuda_few){.ring = again || rows % 2, .fetch = rows % 3 == 0});
    const twin a = plain(n, k), b = plain(9, k), c = plain(k, n);
    const size_t in = (size_t)rows * k, mid = (size_t)rows * n;
    float *x = host(in * sizeof *x), *w = host(k * sizeof *w);
    double *h = host(in * sizeof *h), *y = host(mid * sizeof *y), *z = host(in * sizeof *z);
    double *s = host(in * sizeof *s), *v = host(rows * 9 * sizeof *v);
    tame(x, in);
    tame(w, k);
    float *gx = upload(x, in * sizeof *x, 0), *gh = device(in * 4), *gy = device(mid * 4);
    float *gz = device(in * 4), *gs = upload(x, in * sizeof *x, 0), *gv = device(rows * 9 * 4);
    const sl_mat norm = {.data = upload(w, k * sizeof *w, 0), .n = 1, .k = k, .dtype = SL_F32};
    const sl_norm_out out = {.y = gh};
    sl_cuda_norm(gpu, gx, &norm, 1e-6f, centred, rows, k, &out);
    sl_gemm_job job[] = {
        {.w = &a.gpu, .x = gh, .n_rows = rows, .x_stride = k, .y = gy, .y_stride = n},
        {.w = &b.gpu, .x = gh, .n_rows = rows, .x_stride = k, .y = gv, .y_stride = 9}};
    sl_cuda_gemm(gpu, job, NULL, 2);
    sl_gemm_job last = {
        .w = &c.gpu, .x = gy, .n_rows = rows, .x_stride = n, .y = gz, .y_stride = k};
    if (n % 8 == 0) sl_cuda_gemm(gpu, &last, NULL, 1);
    if (n % 8 == 0) sl_cuda_vec_add(gpu, again ? gh : gs, gz, in);
    for (size_t i = 0; i < in; i++) h[i] = norm_of(x + i / k * k, k, w, centred, i % k);
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t j = 0; j < n + 9; j++) {
            const uint8_t *row = (const uint8_t *)(j < n ? a.host.data : b.host.data);
            double *to = j < n ? &y[r * n + j] : &v[r * 9 + j - n];
            *to = 0;
            for (uint32_t i = 0; i < k; i++)
                *to += h[r * k + i] * kt_weight(row + (j < n ? j : j - n) * k * 2, SL_BF16, i);
        }
        for (uint32_t j = 0; j < k; j++) {
            const size_t at = (size_t)r * k + j;
            z[at] = 0;
            for (uint32_t i = 0; i < n; i++)
                z[at] += y[r * n + i] *
                         kt_weight((const uint8_t *)c.host.data + (size_t)j * n * 2, SL_BF16, i);
            s[at] = x[at] + z[at];
        }
    }
    expect_rows("y", gy, y, mid);
    expect_rows("second", gv, v, rows * 9);
    if (n % 8 == 0) expect_rows("z", gz, z, in);
    if (n % 8 == 0 && !again) expect_rows("sum", gs, s, in);
    for (size_t i = 0; again && n % 8 == 0 && i < in; i++) h[i] += z[i];
    expect_rows("h", gh, h, in);
    forget();
}

static void test_joined(void **state) {
    (void)state;
    for (uint32_t rows = 1; rows <= 5; rows++) {
        joined(rows, 264, 136, rows & 1, false);
        joined(rows, 1024, 40, false, true);
        joined(rows, 1024, 16, false, false);
        joined(rows, 8, 700, true, false);
    }
}

/* Rows that begin at multiples of 16 bytes, here and there apart. */
static twin even_matrix(uint32_t n, uint32_t k) {
    const uint32_t apart = k + 8 * kt_below(3);
    const size_t bytes = (size_t)n * apart * 2;
    uint8_t *p = host(bytes);
    fill(SL_BF16, (size_t)n * apart, p);
    twin m = {.host = {.data = p, .n = n, .k = k, .dtype = SL_BF16, .stride = (size_t)apart * 2}};
    m.gpu = m.host;
    m.gpu.data = upload(p, bytes, 0);
    return m;
}

/* Three jobs: two with the same rows, one with a list of others. */
static void draw_wide(uint32_t rows, uint32_t k, uint32_t n, bool up, bool decides) {
    static work w;
    memset(&w, 0, sizeof w);
    w.kind = SL_ACT_NONE;
    w.k = k;
    w.x_rows = rows + 3;
    draw_rows(&w);
    w.x_stride = (k + 3) / 4 * 4;
    w.x = host((size_t)w.x_rows * w.x_stride * sizeof(float));
    tame(w.x, (size_t)w.x_rows * w.x_stride);
    w.gpu_x = upload(w.x, (size_t)w.x_rows * w.x_stride * sizeof(float), 0);
    for (uint32_t i = 0; i < 3; i++) {
        const uint32_t cols = i ? 1 + kt_below(n) : n;
        w.w[i] = even_matrix(cols, k);
        w.up[i] = even_matrix(cols, k);
        add_job(&w, rows - (i == 2 ? kt_below(rows - 63) : 0), i == 2);
        w.job[0][i].decides = w.job[1][i].decides = decides;
    }
    char what[64];
    snprintf(what, sizeof what, "wide: %u rows, k %u, %u columns", rows, k, n);
    check(&w, up, what);
}

static void norm_rows(const float *x, uint32_t rows, uint32_t n, const float *w, bool centred,
                      double *want) {
    for (uint32_t r = 0; r < rows; r++, x += n, want += n) {
        double mean = 0, s = 0;
        for (uint32_t j = 0; centred && j < n; j++) mean += x[j] / (double)n;
        for (uint32_t j = 0; j < n; j++) s += (x[j] - mean) * (x[j] - mean);
        for (uint32_t j = 0; j < n; j++) want[j] = (x[j] - mean) / sqrt(s / n + 1e-6) * w[j];
    }
}

/* A norm of many rows and products with them: the norm's own rows, and those products read. */
static void normed(uint32_t rows, uint32_t k, uint32_t n, bool centred, bool decides) {
    const twin w[] = {even_matrix(n, k), even_matrix(1 + n / 3, k)};
    const size_t in = (size_t)rows * k;
    float *x = host(in * sizeof *x), *g = host(k * sizeof *g), *h = host(in * sizeof *h);
    double *want = host(in * sizeof *want);
    tame(x, in);
    tame(g, k);
    norm_rows(x, rows, k, g, centred, want);
    float *gx = upload(x, in * sizeof *x, 0), *gh = device(in * sizeof *x), *y[2];
    const sl_mat norm = {.data = upload(g, k * sizeof *g, 0), .n = 1, .k = k, .dtype = SL_F32};
    const sl_norm_out out = {.y = gh};
    sl_gemm_job job[2];
    for (uint32_t i = 0; i < 2; i++) {
        y[i] = device((size_t)rows * w[i].host.n * sizeof(float));
        job[i] = (sl_gemm_job){.w = &w[i].gpu,
                               .x = gh,
                               .n_rows = rows,
                               .x_stride = k,
                               .y = y[i],
                               .y_stride = w[i].host.n,
                               .decides = decides};
    }
    sl_cuda_norm(gpu, gx, &norm, 1e-6f, centred, rows, k, &out);
    sl_cuda_gemm(gpu, job, NULL, 2);
    expect_rows("h", gh, want, in);
    download(h, gh, in * sizeof *h);
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t width = w[i].host.n;
        float *got = host((size_t)rows * width * sizeof *got);
        download(got, y[i], (size_t)rows * width * sizeof *got);
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t c = 0; c < width; c++) {
                const sum s = dot(&w[i].host, c, h + (size_t)r * k);
                expect(got[(size_t)r * width + c], s.value,
                       (decides ? NEAR_WHOLE : NEAR_MANY) * s.size + 1e-30, "normed");
            }
    }
    forget();
}

static void test_normed(void **state) {
    (void)state;
    sl_cuda_set_many(gpu, true);
    sl_cuda_wide_as(gpu, 5, false);
    normed(70, 528, 100, true, false);
    normed(64, 2056, 24, false, false);
    normed(66, 8192, 8, true, false);
    sl_cuda_wide_as(gpu, 0, false);
    normed(140, 136, 40, false, true);
    normed(100, 72, 16, true, true); /* fewer rows than are for tiles: the exact kernel */
    sl_cuda_set_many(gpu, false);
    normed(140, 136, 40, false, true);
}

/* Every tile of warp groups: rows that end within one, matrices that do, whole ones, k of part of a
 * stage. Tiles of one half take no two sides: such jobs go to others. */
static void test_tiles(void **state) {
    (void)state;
    sl_cuda_set_many(gpu, true);
    for (uint32_t shape = 1; shape <= SL_WIDE_SHAPES; shape++) {
        if (kt_below(take_one_in(SL_SLOW_BUILD ? 8 : 3))) continue;
        const bool up = sl_wide_shape_of[shape - 1].halves == 2;
        sl_cuda_wide_as(gpu, shape, shape % 2);
        draw_wide(64 + kt_below(100), 8 * (1 + kt_below(30)), 8 * (1 + kt_below(20)),
                  up && shape % 2, false);
        sl_cuda_wide_as(gpu, shape, !(shape % 2));
        if (shape % 3 == 0) draw_wide(64 * (1 + kt_below(4)), 128, 256, up, false);
    }
    sl_cuda_wide_as(gpu, 0, false);
    draw_wide(150, 200, 40, false, true); /* routers */
    draw_wide(300, 136, 130, false, true);
    draw_wide(300, 200, 520, false, false); /* as it pays */
    draw_wide(260, 72, 530, true, false);
    sl_cuda_set_many(gpu, false);
}

/* What there is no kernel for has the bits of the other numerics. */
static void test_others(void **state) {
    (void)state;
    for (sl_dtype t = 0; t <= SL_DTYPE_COUNT; t++) {
        static work w;
        if (t == SL_BF16) continue;
        memset(&w, 0, sizeof w);
        w.kind = SL_ACT_NONE;
        w.k = 256;
        w.x_rows = 40;
        draw_rows(&w);
        for (uint32_t i = 0; i < 2; i++) {
            w.w[i] = matrix(t, 20, w.k);
            w.up[i] = matrix(i ? SL_BF16 : t, 20, w.k);
            add_job(&w, i ? 3 : 40, false);
        }
        w.n_jobs = 1;
        sl_gemm(processors(), w.job[0], 1);
        sl_cuda_gemm(gpu, w.job[1], NULL, 1);
        float *got = host(w.y_floats[0] * sizeof *got);
        download(got, w.job[1][0].y, w.y_floats[0] * sizeof *got);
        kt_same("others", got, w.job[0][0].y, w.y_floats[0]);
        w.n_jobs = 2; /* a gate of one type and up of another */
        sl_cuda_gemm(gpu, w.job[1], w.up_mat[1], 2);
        forget();
    }
}

static int open_gpu(void **state) {
    (void)state;
    return open_gpu_for(SL_NUMERICS_FAST);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes), cmocka_unit_test(test_wide),   cmocka_unit_test(test_joined),
        cmocka_unit_test(test_tiles),  cmocka_unit_test(test_normed), cmocka_unit_test(test_others),
    };
    return cmocka_run_group_tests(tests, open_gpu, close_gpu);
}
