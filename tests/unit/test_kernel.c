/* Each entry of kernels.def twice: every instruction set against ref, bit for bit; ref against
 * double arithmetic within the tolerance of its row. */
#include "kernel_bf16_test.h"
#include "kernel_int8_test.h"
#include "sanitized.h"

#define REF (&sl_kernels_ref)

static void within(const char *what, double got, double want, double scale, double tol) {
    if (!(fabs(got - want) <= tol * scale + 0x1p-149)) /* or one unit of a subnormal */
        fail_msg("%s: %.9g, expected %.9g, off by %.3g of %.3g", what, got, want, fabs(got - want),
                 scale);
}

/* ---- gemm_tile ---- */

typedef struct gemm_case {
    sl_dtype dtype;
    uint32_t rows, cols, k, apart; /* values between the first of two weight rows */
    float *x, *y;
    const float *xrow[SL_TILE_ROWS];
    void *w, *base;
} gemm_case;

static gemm_case gemm_make(sl_dtype dtype, uint32_t rows, uint32_t cols, uint32_t k) {
    gemm_case g = {.dtype = dtype, .rows = rows, .cols = cols, .k = k};
    g.x = kt_floats((size_t)rows * (k + 3));
    g.y = sl_alloc((size_t)rows * (cols + 1), sizeof(float));
    g.apart = kt_apart(dtype, k);
    g.w = kt_weights(dtype, (size_t)cols * g.apart, kt_bits() & 1, &g.base);
    for (uint32_t r = 0; r < rows; r++) g.xrow[r] = g.x + (size_t)r * (k + 3);
    return g;
}

static void gemm_do(const sl_kernels *k, const gemm_case *g, float *y) {
    sl_gemm_tile t = {.w = g->w,
                      .w_stride = sl_dtype_row_bytes(g->dtype, g->apart),
                      .dtype = g->dtype,
                      .k = g->k,
                      .n_cols = g->cols,
                      .n_rows = g->rows,
                      .y_stride = g->cols + 1,
                      .x = g->xrow,
                      .y = y};
    sl_call_gemm_tile(k, &t);
}

static void gemm_free(gemm_case *g) {
    sl_free(g->x);
    sl_free(g->y);
    sl_free(g->base);
}

static void bits_gemm(const sl_kernels *k, sl_dtype dtype, uint32_t rows, uint32_t cols,
                      uint32_t kk) {
    gemm_case g = gemm_make(dtype, rows, cols, kk);
    size_t n;
    float *got = kt_results(rows, cols, &n), *want = sl_alloc(n, sizeof *want);
    assert_non_null(want);
    gemm_do(REF, &g, want);
    gemm_do(k, &g, got);
    kt_same("gemm_tile", got, want, n);
    sl_free(want);
    gemm_free(&g);
}

static void bits_gemm_tile(const sl_kernels *k) {
    const uint32_t ks[] = {1, 7, 8, 15, 16, 17, 31, 32, 33, 64, 100, 256};
    const uint32_t apart = take_one_in(SL_SLOW_BUILD ? 6 : 3);
    for (sl_dtype d = 0; d < SL_DTYPE_COUNT; d++) {
        for (uint32_t rows = 0; rows <= SL_TILE_ROWS; rows++)
            for (size_t i = (rows + d) % apart; i < SL_LEN(ks); i += apart)
                bits_gemm(k, d, rows, 1 + kt_below(14), kt_whole(d, ks[i]));
        for (uint32_t rows = 1; rows <= 5; rows++) /* several blocks of k */
            for (uint32_t kk = 1020; kk <= 2070; kk += 175 * take_one_in(SL_SLOW_BUILD ? 4 : 2))
                bits_gemm(k, d, rows, 13, kt_whole(d, kk));
        for (uint32_t rows = 6; rows <= SL_TILE_ROWS; rows += 1 + kt_below(4))
            bits_gemm(k, d, rows, 1 + kt_below(14), kt_whole(d, 1000 + kt_below(4000)));
        bits_gemm(k, d, SL_TILE_ROWS, SL_TILE_COLS, kt_whole(d, 48));
        if (!sl_dtype_is_plain(d)) continue;
        bits_gemm(k, d, SL_TILE_MANY, SL_TILE_WIDE, 48);
        bits_gemm(k, d, SL_TILE_MANY + 1, SL_TILE_WIDE, 2065);
        bits_gemm(k, d, SL_TILE_MANY - 1, 5, 20001); /* more than any table packs at once */
    }
}

static void oracle_gemm_tile(double tol) {
    for (int i = 0; i < 60; i++) {
        sl_dtype d = (sl_dtype)(i % SL_DTYPE_COUNT);
        gemm_case g = gemm_make(d, 1 + kt_below(6), 1 + kt_below(9), kt_whole(d, kt_below(900)));
        gemm_do(REF, &g, g.y);
        for (uint32_t r = 0; r < g.rows; r++)
            for (uint32_t c = 0; c < g.cols; c++) {
                const float *w = kt_row(g.w, g.dtype, (size_t)c * g.apart, g.k);
                double sum = 0, mag = 1e-30;
                for (uint32_t j = 0; j < g.k; j++) {
                    double p = (double)g.xrow[r][j] * w[j];
                    sum += p;
                    mag += fabs(p);
                }
                within("gemm_tile", g.y[r * (g.cols + 1) + c], sum, mag, tol);
            }
        gemm_free(&g);
    }
}

/* ---- norms, activation, rotary ---- */

static void bits_swiglu(const sl_kernels *k) {
    for (size_t n = 0; n < 70; n++) {
        float *a = kt_floats(n), *b = kt_floats(n), *up = kt_floats(n);
        memcpy(b, a, n * sizeof *a);
        k->swiglu(a, up, n);
        REF->swiglu(b, up, n);
        kt_same("swiglu", a, b, n);
        sl_free(a), sl_free(b), sl_free(up);
    }
}

static void oracle_swiglu(double tol) {
    for (float g = -80; g < 80; g += 0.037f) {
        float y = g, up = 1.5f;
        REF->swiglu(&y, &up, 1);
        double want = g / (1.0 + exp(-(double)g)) * 1.5;
        within("swiglu", y, want, fabs(want), tol);
    }
}

static void bits_swiglu_clamped(const sl_kernels *k) {
    for (uint32_t n = 0; n < 70; n++) {
        float *a = kt_floats(n + 2), *b = kt_floats(n + 2), *up = kt_floats(n + 2);
        a[n] = up[n + 1] = NAN;
        a[n + 1] = 90, up[n] = -90;
        for (uint32_t i = 0; i < n; i++) a[i] *= 9, up[i] *= 9;
        memcpy(b, a, (n + 2) * sizeof *a);
        k->swiglu_clamped(a, up, 7, n + 2);
        REF->swiglu_clamped(b, up, 7, n + 2);
        assert_true(isnan(a[n]) && isnan(a[n + 1]) && isnan(b[n]) && isnan(b[n + 1]));
        kt_same("swiglu_clamped", a, b, n);
        sl_free(a), sl_free(b), sl_free(up);
    }
}

static void oracle_swiglu_clamped(double tol) {
    for (float g = -40; g < 10; g += 0.037f)
        for (float up = -8; up < 8.5f; up += 2.5f) {
            float y = g;
            REF->swiglu_clamped(&y, &up, 7, 1);
            double gate = fmin(g, 7), want = gate / (1 + exp(-(double)1.702f * gate));
            want *= fmax(-7, fmin(up, 7)) + 1;
            within("swiglu_clamped", y, want, fabs(want) * (1 + fabs(1.702 * gate)), tol);
        }
}

static void bits_gate_values(const sl_kernels *k) {
    for (size_t n = 0; n < 70; n++) {
        float *a = kt_floats(n), *b = kt_floats(n), *gate = kt_floats(n);
        memcpy(b, a, n * sizeof *a);
        k->gate_values(a, gate, n);
        REF->gate_values(b, gate, n);
        kt_same("gate_values", a, b, n);
        sl_free(a), sl_free(b), sl_free(gate);
    }
}

static void oracle_gate_values(double tol) {
    for (float g = -80; g < 80; g += 0.037f) {
        float y = 1.5f;
        REF->gate_values(&y, &g, 1);
        double want = 1.5 / (1.0 + exp(-(double)g));
        within("gate_values", y, want, fabs(want), tol);
    }
}

/* ---- linear attention ---- */

/* x: rows of n, one a tap; w: the same. */
static void taps_do(const sl_kernels *k, uint32_t taps, uint32_t n, const float *x, const float *w,
                    float *y) {
    sl_taps t = {.n_taps = taps, .n = n, .w = w, .w_stride = n, .y = y};
    for (uint32_t j = 0; j < taps; j++) t.x[j] = x + (size_t)j * n;
    k->taps(&t);
}

static void bits_taps(const sl_kernels *k) {
    for (uint32_t n = 0; n < 70; n++) {
        const uint32_t taps = 1 + n % SL_DELTA_TAPS;
        float *x = kt_floats(taps * n), *w = kt_floats(taps * n), *a = kt_floats(n);
        float *b = kt_floats(n);
        taps_do(k, taps, n, x, w, a);
        taps_do(REF, taps, n, x, w, b);
        kt_same("taps", a, b, n);
        sl_free(x), sl_free(w), sl_free(a), sl_free(b);
    }
}

static void oracle_taps(double tol) {
    enum { TAPS = 4, N_TAPS = 300 };
    float *x = kt_floats(TAPS * N_TAPS), *w = kt_floats(TAPS * N_TAPS), *y = kt_floats(N_TAPS);
    taps_do(REF, TAPS, N_TAPS, x, w, y);
    for (uint32_t i = 0; i < N_TAPS; i++) {
        double sum = 0, mag = 1;
        for (uint32_t j = 0; j < TAPS; j++) {
            const double p = (double)x[j * N_TAPS + i] * w[j * N_TAPS + i];
            sum += p;
            mag += fabs(p);
        }
        within("taps", y[i], sum / (1 + exp(-sum)), mag, tol);
    }
    sl_free(x), sl_free(w), sl_free(y);
}

/* A token's way through a state, which is another one or the same. */
typedef struct delta_case {
    uint32_t k_dim, v_dim;
    float *from, *q, *k, *v;
} delta_case;

static delta_case delta_make(uint32_t k_dim, uint32_t v_dim) {
    return (delta_case){
        k_dim,           v_dim, kt_floats(k_dim * v_dim), kt_floats(k_dim), kt_floats(k_dim),
        kt_floats(v_dim)};
}

static void delta_free(delta_case *c) {
    sl_free(c->from), sl_free(c->q), sl_free(c->k), sl_free(c->v);
}

static void delta_do(const sl_kernels *k, const delta_case *c, const float *from, float *to,
                     float *o) {
    k->delta(&(sl_delta_step){.k_dim = c->k_dim,
                              .v_dim = c->v_dim,
                              .from = from,
                              .to = to,
                              .q = c->q,
                              .k = c->k,
                              .v = c->v,
                              .decay = 0.83f,
                              .beta = 0.61f,
                              .o = o});
}

static void bits_delta(const sl_kernels *k) {
    for (uint32_t v = 1; v < 70; v++) {
        const size_t n = (size_t)(1 + v % 9) * v;
        delta_case c = delta_make(1 + v % 9, v);
        float *a = kt_floats(n), *b = kt_floats(n), *oa = kt_floats(v), *ob = kt_floats(v);
        delta_do(k, &c, c.from, a, oa);
        delta_do(REF, &c, c.from, b, ob);
        kt_same("delta, results", oa, ob, v);
        kt_same("delta, state", a, b, n);
        memcpy(a, c.from, n * sizeof *a); /* in place, and nobody asks what it gives */
        delta_do(k, &c, a, a, NULL);
        kt_same("delta, in place", a, b, n);
        sl_free(a), sl_free(b), sl_free(oa), sl_free(ob);
        delta_free(&c);
    }
}

static void oracle_delta(double tol) {
    enum { DIM = 32 };
    delta_case c = delta_make(DIM, DIM);
    float *to = kt_floats(DIM * DIM), *o = kt_floats(DIM);
    delta_do(REF, &c, c.from, to, o);
    for (uint32_t j = 0; j < DIM; j++) {
        double held = 0, sum = 0, most = 1, results = 1;
        for (uint32_t i = 0; i < DIM; i++) held += (double)c.from[i * DIM + j] * 0.83f * c.k[i];
        const double d = (c.v[j] - held) * 0.61f;
        for (uint32_t i = 0; i < DIM; i++) {
            const double s = (double)c.from[i * DIM + j] * 0.83f + c.k[i] * d;
            most = fmax(most, fabs(s));
            results += fabs(s * c.q[i]);
            sum += s * c.q[i];
            within("delta, state", to[i * DIM + j], s, most, tol);
        }
        within("delta, results", o[j], sum, results, tol);
    }
    sl_free(to), sl_free(o);
    delta_free(&c);
}

/* Of all that gates may say, and of states that are long. */
static void decay_is_near_its_formula(void **state) {
    (void)state;
    for (float x = -60; x < 60; x += 0.0173f) {
        const double want = x > 30 ? (double)x : log1p(exp((double)x));
        within("softplus", sl_softplus_scalar(x), want, fabs(want) + 1e-9, 3e-7);
        within("decay", sl_decay_scalar(x, 0.5f, 3.0f),
               exp(-3.0 * (x > 30 ? x + 0.5 : log1p(exp((double)x + 0.5)))), 1, 3e-6);
    }
    assert_true(isnan(sl_softplus_scalar(NAN)));
}

static void bits_rms_inverse(const sl_kernels *k) {
    for (uint32_t n = 1; n < 300; n++) {
        float *x = kt_floats(n);
        float got = k->rms_inverse(x, 1e-6f, n), want = REF->rms_inverse(x, 1e-6f, n);
        kt_same("rms_inverse", &got, &want, 1);
        sl_free(x);
    }
}

static void oracle_rms_inverse(double tol) {
    for (uint32_t n = 1; n < 300; n += 7) {
        float *x = kt_floats(n);
        double ss = 0;
        for (uint32_t i = 0; i < n; i++) ss += (double)x[i] * x[i];
        double want = 1.0 / sqrt(ss / n + (double)1e-6f);
        within("rms_inverse", REF->rms_inverse(x, 1e-6f, n), want, want, tol);
        sl_free(x);
    }
}

static void bits_center(const sl_kernels *k) {
    for (uint32_t n = 1; n < 300; n++) {
        float *x = kt_floats(n), *y = kt_floats(n);
        memcpy(y, x, n * sizeof *x);
        k->center(x, n, x);
        REF->center(y, n, y);
        kt_same("center", x, y, n);
        sl_free(x), sl_free(y);
    }
}

static void oracle_center(double tol) {
    for (uint32_t n = 1; n < 300; n += 7) {
        float *x = kt_floats(n), *y = kt_floats(n);
        double sum = 0, top = 0;
        for (uint32_t i = 0; i < n; i++) {
            sum += x[i];
            top = fmax(top, fabs((double)x[i]));
        }
        REF->center(x, n, y);
        for (uint32_t i = 0; i < n; i++)
            within("center", y[i], x[i] - sum / n, fabs((double)x[i]) + top, tol);
        sl_free(x), sl_free(y);
    }
}

static void bits_rms_apply(const sl_kernels *k) {
    for (uint32_t n = 0; n < 70; n++) {
        float *x = kt_floats(n), *y = kt_floats(n), *w = kt_floats(n);
        memcpy(y, x, n * sizeof *x);
        k->rms_apply(x, w, 0.37f, n, x);
        REF->rms_apply(y, w, 0.37f, n, y);
        kt_same("rms_apply", x, y, n);
        sl_free(x), sl_free(y), sl_free(w);
    }
}

static void oracle_rms_apply(double tol) {
    float x = 0.7f, w = -1.3f, y;
    REF->rms_apply(&x, &w, 0.37f, 1, &y);
    within("rms_apply", y, (double)x * 0.37f * w, 0.4, tol);
}

static void bits_sincos(const sl_kernels *k) {
    double freq[37];
    float c[37], s[37], c2[37], s2[37];
    for (int i = 0; i < 37; i++) freq[i] = pow(1e6, -i / 36.0);
    for (uint32_t p = 0, all = take_whole() ? 2000 : 400; p < all; p++) {
        uint32_t pos = p < all / 2 ? p : kt_below(1u << 20);
        k->sincos(pos, freq, 37, c, s);
        REF->sincos(pos, freq, 37, c2, s2);
        kt_same("cos", c, c2, 37);
        kt_same("sin", s, s2, 37);
    }
}

static void oracle_sincos(double tol) {
    for (uint32_t i = 0; i < 200000 / take_one_in(8); i++) {
        uint32_t pos = i < 1000 ? i : kt_below(1u << 20);
        double freq = i % 3 ? pow(10.0, -(double)kt_below(7)) : 1.0;
        float c, s;
        REF->sincos(pos, &freq, 1, &c, &s);
        within("cos", c, cos(pos * freq), 1, tol);
        within("sin", s, sin(pos * freq), 1, tol);
    }
}

static void bits_rotate(const sl_kernels *k) {
    for (uint32_t n = 0; n < 70; n++) {
        float *x = kt_floats(2 * n), *y = kt_floats(2 * n), *c = kt_floats(n), *s = kt_floats(n);
        memcpy(y, x, 2 * n * sizeof *x);
        k->rotate(x, x + n, c, s, n);
        REF->rotate(y, y + n, c, s, n);
        kt_same("rotate", x, y, 2 * n);
        sl_free(x), sl_free(y), sl_free(c), sl_free(s);
    }
}

static void oracle_rotate(double tol) {
    for (int i = 0; i < 1000; i++) {
        float lo = kt_value(), hi = kt_value(), a = kt_value(), c = cosf(a), s = sinf(a);
        double wl = (double)lo * c - (double)hi * s, wh = (double)hi * c + (double)lo * s;
        double mag = fabs((double)lo) + fabs((double)hi) + 1e-30;
        REF->rotate(&lo, &hi, &c, &s, 1);
        within("rotate", lo, wl, mag, tol);
        within("rotate", hi, wh, mag, tol);
    }
}

/* ---- attention ---- */

static void bits_attn_case(const sl_kernels *k, uint32_t n, uint32_t dim) {
    size_t page = (size_t)SL_KV_PAGE_TOKENS * dim;
    uint32_t v_dim = n % 2 == 0 && dim > 16 ? dim - 16 : dim; /* rows that are keys and values */
    float *q = kt_floats(n * dim), *kk = kt_floats(page), *v = kt_floats(page);
    float *o = kt_floats(n * dim), *o2 = kt_floats(n * dim);
    sl_attn_query u[SL_ATTN_QUERIES], u2[SL_ATTN_QUERIES];
    memcpy(o2, o, n * dim * sizeof *o);
    for (uint32_t i = 0; i < n; i++)
        u[i] = (sl_attn_query){q + i * dim,      o + i * dim, i % 3 ? kt_value() : -INFINITY,
                               i % 3 ? 2.5f : 0, 0,           31};
    for (int round = 0; round < 6; round++) {
        for (uint32_t i = 0; i < n; i++) {
            uint32_t first = kt_below(SL_KV_PAGE_TOKENS), len = kt_below(SL_KV_PAGE_TOKENS - first);
            bool none = kt_below(5) == 0;
            if (round) u[i].first = none ? 1 : first, u[i].last = none ? 0 : first + len;
            u2[i] = u[i];
            u2[i].o = o2 + i * dim;
        }
        sl_call_attn_page(
            k, &(sl_attn_page){u, n, dim, v_dim, kk, v, round % 2 ? kk : NULL, v, 0.125f});
        sl_call_attn_page(REF, &(sl_attn_page){u2, n, dim, v_dim, kk, v, NULL, NULL, 0.125f});
        kt_same("attn_page", o, o2, n * dim);
        for (uint32_t i = 0; i < n; i++) {
            assert_true(u[i].max == u2[i].max);
            kt_same("attn_page sum", &u[i].sum, &u2[i].sum, 1);
        }
    }
    sl_free(q), sl_free(kk), sl_free(v), sl_free(o), sl_free(o2);
}

static void bits_attn_page(const sl_kernels *k) {
    const uint32_t dims[] = {1, 8, 12, 16, 24, 64, 80, 128, 136};
    for (size_t i = 0; i < SL_LEN(dims); i++)
        for (uint32_t n = 1; n <= SL_ATTN_QUERIES; n++) bits_attn_case(k, n, dims[i]);
}

static void oracle_attn_page(double tol) {
    enum { D = 40 };
    for (uint32_t last = 0; last < SL_KV_PAGE_TOKENS; last++) {
        float *q = kt_floats(D), *kk = kt_floats(32 * D), *v = kt_floats(32 * D);
        float o[D] = {0};
        double p[32], top = -1e300, den = 0, steep = 1;
        sl_attn_query u = {q, o, -INFINITY, 0, 0, last};
        sl_call_attn_page(REF, &(sl_attn_page){&u, 1, D, D, kk, v, NULL, NULL, 0.01f});
        REF->divide(o, u.sum, D);
        for (uint32_t j = 0; j <= last; j++) {
            p[j] = 0;
            for (int d = 0; d < D; d++) p[j] += (double)q[d] * kk[j * D + d];
            p[j] *= (double)0.01f;
            top = fmax(top, p[j]);
            steep = fmax(steep, fabs(p[j]));
        }
        for (uint32_t j = 0; j <= last; j++) den += p[j] = exp(p[j] - top);
        for (int d = 0; d < D; d++) {
            double want = 0, mag = 0;
            for (uint32_t j = 0; j <= last; j++) {
                want += p[j] / den * v[j * D + d];
                mag = fmax(mag, fabs((double)v[j * D + d]));
            }
            within("attn_page", o[d], want, mag * steep, tol);
        }
        sl_free(q), sl_free(kk), sl_free(v);
    }
}

static void bits_divide(const sl_kernels *k) {
    for (uint32_t n = 0; n < 70; n++) {
        float *x = kt_floats(n), *y = kt_floats(n);
        memcpy(y, x, n * sizeof *x);
        k->divide(x, 1.7f, n);
        REF->divide(y, 1.7f, n);
        kt_same("divide", x, y, n);
        sl_free(x), sl_free(y);
    }
}

static void oracle_divide(double tol) {
    float x = 1.0f;
    REF->divide(&x, 3.0f, 1);
    within("divide", x, 1.0 / 3.0, 1.0 / 3.0, tol);
}

static void bits_softmax(const sl_kernels *k) {
    for (uint32_t n = 1; n < 1200; n += n < 70 ? 1 : 97) {
        float *x = kt_floats(n), *p = kt_floats(n), *p2 = kt_floats(n);
        k->softmax(x, n, p);
        REF->softmax(x, n, p2);
        kt_same("softmax", p, p2, n);
        k->softmax(x, n, x);
        kt_same("softmax in place", x, p2, n);
        sl_free(x), sl_free(p), sl_free(p2);
    }
}

static void oracle_softmax(double tol) {
    for (uint32_t n = 1; n < 3000; n += 311) {
        float *x = kt_floats(n), *p = kt_floats(n);
        double top = -INFINITY, den = 0;
        for (uint32_t i = 0; i < n; i++) top = fmax(top, (double)x[i]);
        for (uint32_t i = 0; i < n; i++) den += exp(x[i] - top);
        REF->softmax(x, n, p);
        for (uint32_t i = 0; i < n; i++) {
            double want = exp(x[i] - top) / den;
            /* the difference x - max is rounded once: up to 2^-24 of it moves the exponent */
            double arg = fabs(x[i] - top) * 0x1.0p-24;
            if (want > 1e-30) within("softmax", p[i], want, want, tol + arg);
        }
        sl_free(x), sl_free(p);
    }
}

/* ---- exp ---- */

static void bits_expv(const sl_kernels *k) {
    enum { N = 1024 };
    static float x[N], y[N], z[N];
    const uint32_t apart = take_whole() ? 2003 : 16033;
    for (uint64_t u = 0; u < (1ull << 32); u += (uint64_t)apart * N) { /* every region of floats */
        for (uint32_t i = 0; i < N; i++) {
            x[i] = sl_f32_of_bits((uint32_t)(u + (uint64_t)apart * i));
            if (isnan(x[i])) x[i] = 1.0f;
        }
        k->expv(x, N - 3, y);
        REF->expv(x, N - 3, z);
        kt_same("expv", y, z, N - 3);
    }
}

static void oracle_expv(double tol) {
    double worst = 0;
    for (double x = -104; x < 89; x += take_whole() ? 0.00013 : 0.00104) {
        float f = (float)x, got = sl_expf(f);
        double want = exp((double)f);
        if (want > 3.4028235e38) {
            assert_true(isinf(got) || got > 3.402e38f);
            continue;
        }
        double d = fabs(got - want);
        if (want < 1.2e-38)
            assert_true(d <= 0x1.0p-149);
        else
            worst = fmax(worst, d / want);
    }
    print_message("[   FACT   ] sl_expf: largest relative error %.3g\n", worst);
    assert_true(worst <= tol);
    assert_true(sl_expf(0.0f) == 1.0f && sl_expf(-0.0f) == 1.0f);
    assert_true(sl_expf(-INFINITY) == 0.0f && !signbit(sl_expf(-INFINITY)));
    assert_true(isinf(sl_expf(INFINITY)) && isinf(sl_expf(89.0f)) && isnan(sl_expf(NAN)));
}

/* ---- element by element ---- */

static void bits_linear(const sl_kernels *k, const char *what, int op) {
    for (size_t n = 0; n < 70; n++) {
        float *x = kt_floats(n), *y = kt_floats(n), *z = kt_floats(n), a = kt_value();
        memcpy(z, y, n * sizeof *y);
        if (op == 0) k->add(y, x, n), REF->add(z, x, n);
        if (op == 1) k->scale(y, x, a, n), REF->scale(z, x, a, n);
        if (op == 2) k->add_scaled(y, x, a, n), REF->add_scaled(z, x, a, n);
        kt_same(what, y, z, n);
        sl_free(x), sl_free(y), sl_free(z);
    }
}

static void bits_add(const sl_kernels *k) {
    bits_linear(k, "add", 0);
}
static void bits_scale(const sl_kernels *k) {
    bits_linear(k, "scale", 1);
}
static void bits_add_scaled(const sl_kernels *k) {
    bits_linear(k, "add_scaled", 2);
}

static void oracle_linear(int op) {
    for (int i = 0; i < 1000; i++) {
        float x = kt_value(), y = kt_value(), a = kt_value(), got = y;
        volatile float p = a * x, want = op == 0 ? y + x : p;
        if (op == 0) REF->add(&got, &x, 1);
        if (op == 1) REF->scale(&got, &x, a, 1);
        if (op == 2) {
            REF->add_scaled(&got, &x, a, 1);
            want = y + p;
        }
        float w = want;
        kt_same("linear", &got, &w, 1);
    }
}

static void oracle_add(double tol) {
    (void)tol, oracle_linear(0);
}
static void oracle_scale(double tol) {
    (void)tol, oracle_linear(1);
}
static void oracle_add_scaled(double tol) {
    (void)tol, oracle_linear(2);
}

static void bits_widen(const sl_kernels *k) {
    static uint16_t h[1 << 16];
    static float y[1 << 16], z[1 << 16];
    for (uint32_t i = 0; i < 1u << 16; i++) h[i] = (uint16_t)i;
    for (sl_dtype d = SL_F16; d < SL_DTYPE_PLAIN; d++) {
        sl_call_widen(k, h, d, (1u << 16) - 3, y);
        sl_call_widen(REF, h, d, (1u << 16) - 3, z);
        kt_same("widen", y, z, (1u << 16) - 3);
        for (size_t n = 1; n < 40; n++) {
            sl_call_widen(k, (uint8_t *)h + 1, d, n, y);
            sl_call_widen(REF, (uint8_t *)h + 1, d, n, z);
            kt_same("widen", y, z, n);
        }
    }
    for (sl_dtype d = SL_DTYPE_PLAIN; d < SL_DTYPE_COUNT; d++) {
        void *base;
        const void *w = kt_weights(d, 4096, true, &base);
        sl_call_widen(k, w, d, 4096, y);
        sl_call_widen(REF, w, d, 4096, z);
        kt_same("widen", y, z, 4096);
        sl_free(base);
    }
    for (int i = 0; i < 33; i++) z[i] = kt_value();
    sl_call_widen(k, z, SL_F32, 33, y);
    kt_same("widen", y, z, 33);
}

static void oracle_widen(double tol) {
    (void)tol;
    for (uint32_t i = 0; i < 1u << 16; i++) {
        uint16_t h = (uint16_t)i;
        float y;
        sl_call_widen(REF, &h, SL_F16, 1, &y);
        double frac = i & 0x3ff, e = i >> 10 & 31, sign = i >> 15 ? -1 : 1;
        double want = e == 0 ? ldexp(frac, -24) : ldexp(1024 + frac, (int)e - 25);
        if (e == 31)
            assert_true(frac != 0 ? isnan(y) : isinf(y));
        else
            assert_true((double)y == sign * want);
        if (e != 31) assert_int_equal(sl_f32_to_f16(y), h);
        sl_call_widen(REF, &h, SL_BF16, 1, &y);
        assert_int_equal(sl_f32_bits(y), i << 16);
    }
}

static void bits_widen_e4m3(const sl_kernels *k) {
    uint8_t code[256];
    float y[256], z[256];
    for (uint32_t i = 0; i < 256; i++) code[i] = (uint8_t)i;
    for (int power = -126; power <= 119; power += 5)
        for (size_t n = 0; n <= 256; n += n < 40 ? 1 : 27) {
            k->widen_e4m3(code + (256 - n), ldexpf(1, power), n, y);
            REF->widen_e4m3(code + (256 - n), ldexpf(1, power), n, z);
            kt_same("widen_e4m3", y, z, n);
        }
}

static void oracle_widen_e4m3(double tol) {
    (void)tol;
    for (uint32_t i = 0; i < 256; i++) {
        const uint8_t code = (uint8_t)i;
        const double frac = i & 7, e = i >> 3 & 15, sign = i >> 7 ? -1 : 1;
        float y;
        REF->widen_e4m3(&code, 0.25f, 1, &y);
        if ((i & 0x7f) == 0x7f)
            assert_true(isnan(y));
        else
            assert_true((double)y ==
                        sign * (e == 0 ? ldexp(frac, -11) : ldexp(8 + frac, (int)e - 12)));
    }
}

static void bits_to_bf16(const sl_kernels *k) {
    enum { N = 1024 };
    static float x[N];
    static uint16_t y[N], z[N];
    const uint32_t apart = take_whole() ? 1009 : 8081;
    for (uint64_t u = 0; u < (1ull << 32); u += (uint64_t)apart * N) {
        for (uint32_t i = 0; i < N; i++) x[i] = sl_f32_of_bits((uint32_t)(u + (uint64_t)apart * i));
        k->to_bf16(x, N - 5, y);
        REF->to_bf16(x, N - 5, z);
        assert_memory_equal(y, z, (N - 5) * sizeof *y);
    }
}

static void oracle_to_bf16(double tol) {
    (void)tol;
    for (int i = 0; i < 200000 / (int)take_one_in(8); i++) {
        float x = sl_f32_of_bits(kt_bits());
        uint16_t h;
        REF->to_bf16(&x, 1, &h);
        if (isnan(x)) {
            assert_true(isnan(sl_bf16_to_f32(h)));
            continue;
        }
        uint16_t lo = (uint16_t)(sl_f32_bits(x) >> 16), hi = (uint16_t)(lo + 1);
        double dl = fabs((double)x - sl_bf16_to_f32(lo)), dh = fabs((double)x - sl_bf16_to_f32(hi));
        if (isinf(sl_bf16_to_f32(hi))) continue;
        assert_int_equal(h, dl < dh || (dl == dh && lo % 2 == 0) ? lo : hi);
    }
}

/* ---- the list ---- */

static const struct row {
    const char *name;
    double tol;
    void (*bits)(const sl_kernels *k);
    void (*oracle)(double tol);
} rows[] = {
#define SL_KERNEL(name, per, tol, what) {#name, tol, bits_##name, oracle_##name},
#include "kernel/kernels.def"
#undef SL_KERNEL
};

static size_t part, parts = 1; /* whose rows are compared */

static void every_isa_equals_ref_bit_for_bit(void **state) {
    (void)state;
    KT_EACH_ISA(k)
    for (size_t i = part; i < SL_LEN(rows); i += parts) rows[i].bits(k);
}

static void ref_equals_double_within_tolerance(void **state) {
    (void)state;
    for (size_t i = 0; i < SL_LEN(rows); i++) rows[i].oracle(rows[i].tol);
}

static void selection_honours_force(void **state) {
    (void)state;
    assert_string_equal(sl_kernels_name(sl_kernels_select("ref")), "ref");
    assert_null(sl_kernels_select("sse9"));
    assert_non_null(sl_kernels_select(NULL));
    KT_EACH_ISA(k) assert_ptr_equal(sl_kernels_select(k->name), k);
    print_message("[   FACT   ] chosen here: %s\n", sl_kernels_name(sl_kernels_select(NULL)));
}

static void wrong_add(float *y, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] += i == 300 ? x[i] * 1.000001f : x[i];
}

static void selftest_finds_a_wrong_table(void **state) {
    (void)state;
    KT_EACH_ISA(k) assert_true(kt_proves(k));
    sl_kernels wrong = *sl_kernels_select(NULL);
    wrong.add = wrong_add;
    assert_false(kt_proves(&wrong));
}

/* PART PARTS: of the kernels those of one process among so many; the first has the rest, too. */
int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_isa_equals_ref_bit_for_bit),
        cmocka_unit_test(selection_honours_force),
        cmocka_unit_test(selftest_finds_a_wrong_table),
        cmocka_unit_test(ref_equals_double_within_tolerance),
        cmocka_unit_test(decay_is_near_its_formula),
    };
    if (argc > 2) {
        part = strtoul(argv[1], NULL, 10);
        parts = SL_MAX(strtoul(argv[2], NULL, 10), 1);
    }
    if (part) return _cmocka_run_group_tests("tests", tests, 1, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
