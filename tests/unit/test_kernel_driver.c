/* The public kernels through the pool: whatever the threads, tiles, batch or chunking, the same
 * bits. */
#include "kernel_test.h"
#include "kernel/ops.h"
#include "sanitized.h"
#include "quant/kv_rows.h"

static sl_pool *pool_of(uint32_t threads) {
    sl_pool *p = NULL;
    sl_err err = {0};
    assert_int_equal(sl_pool_create(threads, &p, &err), SL_OK);
    return p;
}

/* Loops over every runnable table (ref included) and 0 (no pool) to 3 threads: with each table one
 * of these numbers, which the next loop has with another one, or all of them. */
#define EACH_EXEC(ex)                                                                              \
    for (size_t ee_i = 0; sl_kernels_at(ee_i / EXEC_POOLS, NULL); ee_i++)                          \
        for (sl_exec ex = exec_of(ee_i); ex.k; sl_pool_free(ex.pool), ex.k = NULL)

enum { EXEC_POOLS = 4 };

static sl_exec exec_of(size_t i) {
    static size_t turn;
    bool supported = false;
    const sl_kernels *k = sl_kernels_at(i / EXEC_POOLS, &supported);
    uint32_t threads = (uint32_t)(i % EXEC_POOLS);
    turn += i == 0;
    if (!supported || (turn + i / EXEC_POOLS + threads) % take_one_in(EXEC_POOLS) != 0)
        return (sl_exec){0};
    return (sl_exec){.k = k, .pool = threads ? pool_of(threads) : NULL};
}

/* Builds with a sanitizer take one case of five, which differs from loop to loop. */
static bool left_out(uint32_t number) {
    return SL_SLOW_BUILD && number % take_one_in(5) != 0;
}

static float dot_rule(const float *x, const void *w, sl_dtype dtype, size_t at, uint32_t k) {
    const float *v = kt_row(w, dtype, at, k);
    float s[16] = {0};
    for (uint32_t i = 0; i < (k + 15) / 16 * 16; i++)
        s[i % 16] = fmaf(i < k ? x[i] : 0, i < k ? v[i] : 0, s[i % 16]);
    for (int step = 8; step; step /= 2)
        for (int i = 0; i < step; i++) s[i] += s[i + step];
    return s[0];
}

/* ---- grouped products ---- */

#define JOBS  5
#define X_MAX 70

typedef struct grouped {
    uint32_t n, k;
    sl_mat w[JOBS], up[JOBS];
    const sl_mat *ups[JOBS];
    void *base[2 * JOBS];
    float *x, *y[JOBS], *want[JOBS];
    uint32_t rows[JOBS], row[JOBS][X_MAX];
    sl_gemm_job job[JOBS];
} grouped;

static void grouped_make(grouped *g, sl_dtype dtype, uint32_t n, uint32_t k) {
    const uint32_t rows[JOBS] = {0, 1, 2 + kt_below(4), 33 + kt_below(5), 7};
    *g = (grouped){.n = n, .k = k};
    g->x = kt_floats((size_t)X_MAX * (k + 1));
    for (int i = 0; i < JOBS; i++) {
        g->rows[i] = rows[i];
        g->w[i] = (sl_mat){kt_weights(dtype, (size_t)n * k, i & 1, &g->base[2 * i]), n, k, dtype};
        g->up[i] =
            (sl_mat){kt_weights(dtype, (size_t)n * k, i & 1, &g->base[2 * i + 1]), n, k, dtype};
        g->ups[i] = &g->up[i];
        for (uint32_t r = 0; r < rows[i]; r++) g->row[i][r] = kt_below(X_MAX);
        g->y[i] = sl_alloc((size_t)X_MAX * (n + 2), sizeof(float));
        g->want[i] = sl_alloc((size_t)X_MAX * (n + 2), sizeof(float));
        assert_non_null(g->y[i]);
        assert_non_null(g->want[i]);
        g->job[i] = (sl_gemm_job){.w = &g->w[i],
                                  .x = g->x,
                                  .row = i == 4 ? NULL : g->row[i],
                                  .n_rows = rows[i],
                                  .x_stride = k + 1,
                                  .y_stride = n + 2,
                                  .y = g->y[i]};
    }
}

static void grouped_free(grouped *g) {
    for (int i = 0; i < JOBS; i++) sl_free(g->y[i]), sl_free(g->want[i]);
    for (int i = 0; i < 2 * JOBS; i++) sl_free(g->base[i]);
    sl_free(g->x);
}

static void grouped_expect(grouped *g, bool swiglu) {
    for (int i = 0; i < JOBS; i++)
        for (uint32_t r = 0; r < g->rows[i]; r++)
            for (uint32_t c = 0; c < g->n; c++) {
                const float *x = g->x + (size_t)(i == 4 ? r : g->row[i][r]) * (g->k + 1);
                size_t at = (size_t)c * g->k;
                float v = dot_rule(x, g->w[i].data, g->w[i].dtype, at, g->k);
                if (swiglu) {
                    float u = dot_rule(x, g->up[i].data, g->up[i].dtype, at, g->k);
                    v = v / (1.0f + sl_expf(-v)) * u;
                }
                g->want[i][(size_t)r * (g->n + 2) + c] = v;
            }
}

static void grouped_products_follow_the_rule(void **state) {
    (void)state;
    const uint32_t shapes[][2] = {{1, 1}, {7, 16}, {13, 33}, {130, 50}, {97, 128}, {24, 1041}};
    grouped g;
    for (size_t s = 0; s < SL_LEN(shapes); s++)
        for (sl_dtype d = 0; d < SL_DTYPE_COUNT; d++) {
            if (left_out((uint32_t)s + d)) continue;
            grouped_make(&g, d, shapes[s][0], kt_whole(d, shapes[s][1]));
            for (int swiglu = 0; swiglu < 2; swiglu++) {
                grouped_expect(&g, swiglu);
                EACH_EXEC(ex) {
                    if (ex.k == &sl_kernels_ref && s > 3)
                        continue; /* slow, and covered by s <= 3 */
                    for (int i = 0; i < JOBS; i++)
                        memset(g.y[i], 0, X_MAX * (g.n + 2) * sizeof(float));
                    if (swiglu)
                        sl_gemm_swiglu(&ex, g.job, g.ups, JOBS);
                    else
                        sl_gemm(&ex, g.job, JOBS);
                    for (int i = 0; i < JOBS; i++)
                        kt_same("grouped product", g.y[i], g.want[i], X_MAX * (g.n + 2));
                }
            }
            grouped_free(&g);
        }
}

static void a_row_alone_equals_the_row_in_a_batch(void **state) {
    (void)state;
    enum { K = 1536, N = 50 };
    float *x = kt_floats(64 * K), *y = kt_floats(64 * N), one[N];
    for (sl_dtype d = 0; d < SL_DTYPE_COUNT; d++) {
        void *base;
        if (left_out(d)) continue;
        sl_mat w = {kt_weights(d, N * K, false, &base), N, K, d};
        EACH_EXEC(ex) {
            sl_gemm_job all = {&w, x, NULL, 64, K, N, y};
            sl_gemm(&ex, &all, 1);
            for (uint32_t r = 0; r < 64; r++) {
                sl_gemm_job j = {&w, x, &r, 1, K, N, one};
                sl_gemm(&ex, &j, 1);
                kt_same("row alone", one, y + r * N, N);
            }
        }
        sl_free(base);
    }
    sl_free(x), sl_free(y);
}

/* Rows of BF16 with weights in BF16: by any table, thread and batch the sums of the reference, and
 * others take f32 beside them. */
static void rows_of_bf16_meet_bf16_alone(void **state) {
    (void)state;
    enum { K = 1250, N = 110, ROWS = 75 };
    const size_t bytes = sl_act_row_bytes(SL_ACT_BF16, K);
    float *x = kt_floats(ROWS * K), *y = kt_floats(ROWS * N), *want = kt_floats(ROWS * N), one[N];
    uint8_t *act = sl_alloc(ROWS, bytes);
    assert_non_null(act);
    for (uint32_t i = 0; i < 2 * SL_DTYPE_PLAIN; i++) {
        const sl_activations how = i % 2 ? SL_ACTIVATIONS_BF16_PARTS : SL_ACTIVATIONS_BF16;
        const sl_dtype d = (sl_dtype)(i / 2);
        void *base;
        sl_mat w = {kt_weights(d, N * K, true, &base), N, K, d};
        const sl_exec plain = {.k = &sl_kernels_ref, .activations = how};
        sl_quantise(&plain, x, NULL, ROWS, K, K, SL_ACT_BF16, act);
        sl_gemm_job all = {&w, x, NULL, ROWS, K, N, want};
        all.act.row[SL_ACT_BF16] = d == SL_BF16 ? act : NULL;
        sl_gemm(&plain, &all, 1);
        all.y = y;
        all.act.row[SL_ACT_BF16] = act;
        EACH_EXEC(ex) {
            ex.activations = how;
            memset(act, 0xff, ROWS * bytes);
            sl_quantise(&ex, x, NULL, ROWS, K, K, SL_ACT_BF16, act);
            sl_gemm(&ex, &all, 1);
            kt_same("rows of BF16", y, want, ROWS * N);
            for (uint32_t r = 0; r < ROWS; r += 7) {
                sl_gemm_job j = {.w = &w, .x = x, .row = &r, .n_rows = 1, .x_stride = K};
                j.y = one, j.y_stride = N;
                j.act = all.act, j.act_row = &r;
                sl_gemm(&ex, &j, 1);
                kt_same("row of BF16 alone", one, want + r * N, N);
            }
        }
        sl_free(base);
    }
    sl_free(x), sl_free(y), sl_free(want), sl_free(act);
}

/* More jobs than one loop takes, many of them empty. */
static void any_number_of_jobs(void **state) {
    (void)state;
    enum { M = 600, K = 40, N = 30 };
    static sl_gemm_job job[M];
    static float y[M * N], want[M * N];
    float *x = kt_floats(M * K);
    void *base;
    sl_mat w = {kt_weights(SL_BF16, N * K, false, &base), N, K, SL_BF16};
    for (uint32_t i = 0; i < M; i++)
        job[i] = (sl_gemm_job){&w, x + i * K, NULL, i % 3 == 1, K, N, y + i * N};
    for (uint32_t i = 1; i < M; i += 3)
        for (uint32_t c = 0; c < N; c++)
            want[i * N + c] = dot_rule(x + i * K, w.data, SL_BF16, c * K, K);
    EACH_EXEC(ex) {
        memset(y, 0, sizeof y);
        sl_gemm(&ex, job, M);
        kt_same("many jobs", y, want, M * N);
    }
    sl_free(x), sl_free(base);
}

/* ---- attention ---- */

/* Columns from anywhere on of both. */
static void columns_of_scaled_blocks(const sl_mat *f8, const sl_mat *f32, const float *x) {
    enum { ROWS = 37 };
    const uint32_t first[] = {1, 100, 128, 131}, k = 145, n = f8->n;
    float *y = kt_floats((size_t)ROWS * n), *want = kt_floats((size_t)ROWS * n);
    for (size_t i = 0; i < SL_LEN(first); i++) {
        sl_mat a = *f8, b = *f32;
        a.data = (const uint8_t *)f8->data + first[i];
        b.data = (const float *)f32->data + first[i];
        a.k = b.k = k;
        a.stride = sl_mat_stride(f8), b.stride = sl_mat_stride(f32);
        a.scale_col = first[i], a.scale_k = f8->k;
        sl_gemm_job job = {.x = x, .x_stride = k, .y_stride = n};
        for (job.n_rows = 1; job.n_rows <= ROWS; job.n_rows += 9) {
            job.w = &b;
            job.y = want;
            sl_gemm(&(sl_exec){.k = &sl_kernels_ref}, &job, 1);
            job.w = &a;
            job.y = y;
            EACH_EXEC(ex) {
                memset(y, 0, (size_t)ROWS * n * sizeof *y);
                sl_gemm(&ex, &job, 1);
                kt_same("columns of f8", y, want, (size_t)job.n_rows * n);
                sl_widen_row(&ex, &a, n - 1, y);
                kt_same("part of a row of f8", y, (const float *)b.data + (size_t)(n - 1) * f32->k,
                        k);
            }
        }
    }
    sl_free(y), sl_free(want);
}

/* F8_E4M3: the bits of the product with code * scale as f32, for rows and columns anywhere in the
 * blocks of scales, in every table. */
static void scaled_blocks_are_their_products(void **state) {
    (void)state;
    enum { N = 300, K = 277, ROWS = 37, FIRST = 77, DOWN = 3, ACROSS = 3 };
    uint8_t *code = sl_alloc(N, K);
    float *wide = sl_alloc((size_t)N * K, sizeof *wide), *scale = kt_floats(DOWN * ACROSS);
    float *x = kt_floats(ROWS * K), *y = kt_floats(ROWS * N), *want = kt_floats(ROWS * N);
    for (size_t i = 0; i < (size_t)N * K; i++) {
        code[i] = (uint8_t)kt_below(256);
        if ((code[i] & 127) == 127) code[i] = 0;
        size_t row = FIRST + i / K, at = row / 128 * ACROSS + i % K / 128;
        wide[i] = sl_e4m3_to_f32(code[i]) * scale[at];
    }
    sl_mat f8 = {.data = code, .n = N, .k = K, .dtype = SL_F8_E4M3, .scale_row = FIRST};
    const sl_mat f32 = {.data = wide, .n = N, .k = K, .dtype = SL_F32};
    f8.scale = scale;
    sl_gemm_job job = {.x = x, .x_stride = K, .y_stride = N};
    for (uint32_t rows = 1; rows <= ROWS; rows += rows < 6 ? 1 : 31) {
        job.n_rows = rows;
        job.w = &f32;
        job.y = want;
        sl_gemm(&(sl_exec){.k = &sl_kernels_ref}, &job, 1);
        job.w = &f8;
        job.y = y;
        EACH_EXEC(ex) {
            memset(y, 0, (size_t)ROWS * N * sizeof *y);
            sl_gemm(&ex, &job, 1);
            kt_same("f8 product", y, want, (size_t)rows * N);
            sl_widen_row(&ex, &f8, N - 1, y);
            kt_same("f8 row", y, wide + (size_t)(N - 1) * K, K);
        }
    }
    columns_of_scaled_blocks(&f8, &f32, x);
    sl_free(code), sl_free(wide), sl_free(scale), sl_free(x), sl_free(y), sl_free(want);
}

typedef struct attn_case {
    sl_model_spec m;
    uint32_t n, width;
    float *kv, *q, *o, *want;
    float *row[2]; /* [n][n_kv_heads][head_dim]: keys and values as they are kept */
    uint32_t page[8], other[8];
    const uint32_t *pages[256];
    uint32_t pos[256];
} attn_case;

/* Rows of every position and head, by the operation that writes them. */
static void attn_put(attn_case *c) {
    const uint32_t width = c->m.n_kv_heads * c->m.head_dim;
    const sl_exec ex = {.k = &sl_kernels_ref};
    const uint32_t *pages[256];
    uint32_t pos[256];
    float *x = kt_floats((size_t)c->n * width);
    for (uint32_t r = 0; r < c->n; r++) pages[r] = c->page, pos[r] = r;
    for (uint32_t is_v = 0; is_v < 2; is_v++)
        sl_put_kv(&ex, &(sl_kv_put){.m = &c->m,
                                    .layer = 1,
                                    .is_v = is_v,
                                    .n_rows = c->n,
                                    .n_tiles = c->m.n_kv_heads,
                                    .width = c->m.head_dim,
                                    .x = x,
                                    .x_stride = width,
                                    .pos = pos,
                                    .pages = pages,
                                    .kv = sl_kv_pool_of(&c->m, c->kv)});
    sl_free(x);
}

/* Row of a position on one side of a head. */
static float *attn_row(const attn_case *c, uint32_t pos, uint32_t is_v, uint32_t h) {
    return c->row[is_v] + ((size_t)pos * c->m.n_kv_heads + h) * c->m.head_dim;
}

/* What lies in the pages, as f32. */
static void attn_widen(attn_case *c) {
    const sl_kv_pool kv = sl_kv_pool_of(&c->m, c->kv);
    for (uint32_t is_v = 0; is_v < 2; is_v++) {
        c->row[is_v] = kt_floats((size_t)c->n * c->m.n_kv_heads * c->m.head_dim);
        for (uint32_t p = 0; p < c->n; p++)
            for (uint32_t h = 0; h < c->m.n_kv_heads; h++)
                sl_kv_widen(c->m.kv_type,
                            kv.base + sl_kv_row_offset(&c->m, &kv, c->page, p) +
                                sl_kv_tile_offset(&c->m, 1, is_v, h),
                            c->m.head_dim, attn_row(c, p, is_v, h));
    }
}

static void attn_make(attn_case *c, uint32_t heads, uint32_t kv_heads, uint32_t dim,
                      uint32_t window, sl_kv_type type) {
    *c = (attn_case){.m = {.n_layers = 2,
                           .n_heads = heads,
                           .n_kv_heads = kv_heads,
                           .head_dim = dim,
                           .sliding_window = window,
                           .kv_type = type},
                     .n = 150,
                     .width = heads * dim};
    c->m.sight[1] = window ? SL_SIGHT_WINDOW : SL_SIGHT_ALL;
    c->kv = kt_floats(sl_kv_pages_for(c->n) * sl_kv_page_bytes(&c->m) / sizeof(float));
    for (uint32_t i = 0; i < sl_kv_pages_for(c->n); i++) c->page[i] = i;
    if (type != SL_KV_F32) attn_put(c);
    attn_widen(c);
    c->q = kt_floats((size_t)c->n * c->width);
    c->o = kt_floats((size_t)c->n * c->width);
    c->want = kt_floats((size_t)c->n * c->width);
    for (uint32_t i = 0; i < sl_kv_pages_for(c->n); i++) c->page[i] = c->other[i] = i;
    for (uint32_t r = 0; r < c->n; r++) c->pages[r] = c->page, c->pos[r] = r;
}

static void attn_free(attn_case *c) {
    sl_free(c->kv), sl_free(c->q), sl_free(c->o), sl_free(c->want);
    sl_free(c->row[0]), sl_free(c->row[1]);
}

/* Rows [from, to) of the case into o. */
static void attn_rows(const sl_exec *ex, attn_case *c, uint32_t from, uint32_t to, float *o) {
    sl_attn_args a = {&c->m,
                      1,
                      to - from,
                      c->q + (size_t)from * c->width,
                      c->width,
                      c->pos + from,
                      sl_kv_pool_of(&c->m, c->kv),
                      c->pages + from,
                      0.11f,
                      o + (size_t)from * c->width,
                      c->width};
    sl_attention(ex, &a);
}

static double attn_naive(const attn_case *c, uint32_t r, uint32_t h, uint32_t d, double *mag) {
    uint32_t kvh = h / (c->m.n_heads / c->m.n_kv_heads), dim = c->m.head_dim,
             w = c->m.sliding_window;
    uint32_t lo = w && r + 1 > w ? r + 1 - w : 0;
    double s[256], top = -1e300, den = 0, num = 0, steep = 1;
    *mag = 0;
    for (uint32_t p = lo; p <= r; p++) {
        const float *k = attn_row(c, p, 0, kvh);
        double all = 0; /* what a cancelling sum was made of bounds its error */
        s[p] = 0;
        for (uint32_t i = 0; i < dim; i++) {
            double term = (double)c->q[r * c->width + h * dim + i] * k[i];
            s[p] += term;
            all += fabs(term);
        }
        s[p] *= (double)0.11f;
        top = fmax(top, s[p]);
        steep = fmax(steep, all * (double)0.11f);
    }
    for (uint32_t p = lo; p <= r; p++) {
        const float v = attn_row(c, p, 1, kvh)[d];
        double e = exp(s[p] - top);
        den += e;
        num += e * v;
        *mag = fmax(*mag, fabs((double)v) * steep);
    }
    return num / den;
}

static void attention_case(uint32_t heads, uint32_t kv_heads, uint32_t dim, uint32_t window,
                           sl_kv_type type) {
    static uint32_t turn;
    attn_case c;
    if (left_out(turn++)) return;
    attn_make(&c, heads, kv_heads, dim, window, type);
    sl_exec ref = {.k = &sl_kernels_ref};
    attn_rows(&ref, &c, 0, c.n, c.want);
    for (uint32_t r = 0; r < c.n; r++)
        for (uint32_t i = 0; i < c.width; i++) {
            double mag, want = attn_naive(&c, r, i / dim, i % dim, &mag);
            assert_true(fabs(c.want[r * c.width + i] - want) <= 2e-6 * mag + 0x1p-149);
        }
    EACH_EXEC(ex) {
        memset(c.o, 0, (size_t)c.n * c.width * sizeof(float));
        attn_rows(&ex, &c, 0, c.n, c.o);
        kt_same("attention whole", c.o, c.want, (size_t)c.n * c.width);
        memset(c.o, 0, (size_t)c.n * c.width * sizeof(float));
        for (uint32_t r = 0, n; r < c.n; r += n) {
            n = 1 + kt_below(40);
            n = SL_MIN(n, c.n - r);
            if (n % 2)
                c.pages[r + n / 2] = c.other; /* equal pages in another table: runs are cut */
            attn_rows(&ex, &c, r, r + n, c.o);
        }
        kt_same("attention in chunks", c.o, c.want, (size_t)c.n * c.width);
    }
    attn_free(&c);
}

static void attention_is_softmax_whole_or_in_chunks(void **state) {
    (void)state;
    for (sl_kv_type t = SL_KV_F32; t < SL_KV_TYPES; t++) {
        attention_case(4, 2, 16, 0, t);
        attention_case(3, 1, 20, 0, t);
        attention_case(2, 2, 64, 0, t);
        attention_case(36, 2, 8, 0, t);
        attention_case(4, 1, 16, 1, t);
        attention_case(4, 4, 16, 40, t);
        attention_case(2, 1, 32, 150, t);
    }
}

/* Spans of keys and values outside of pages give the bits of pages that hold the same. */
static void span_case(uint32_t heads, uint32_t dim, uint32_t v_dim, uint32_t span) {
    attn_case c;
    attn_make(&c, heads, heads, dim, 0, SL_KV_F32);
    attn_rows(&(sl_exec){.k = &sl_kernels_ref}, &c, 0, c.n, c.want);
    size_t floats = (size_t)heads * span * dim;
    float *k = kt_floats(floats), *v = kt_floats(floats);
    float *state = sl_alloc(2 * (size_t)c.n * heads, sizeof *state);
    EACH_EXEC(ex) {
        for (uint32_t r = 0, n; r < c.n; r += n) {
            n = SL_MIN(c.n - r, 1 + kt_below(90));
            sl_attn_span a = {heads, dim, v_dim, 0, span, k, v, n, c.q + (size_t)r * c.width};
            a.q_stride = c.width;
            a.o_stride = heads * v_dim;
            a.pos = c.pos + r;
            a.scale = 0.11f;
            a.o = c.o + (size_t)r * a.o_stride;
            a.max = state, a.sum = state + (size_t)c.n * heads;
            for (; !a.last; a.first += span * !a.last) {
                a.last = a.first + span >= r + n;
                for (uint32_t p = 0; p < span; p++)
                    for (uint32_t h = 0; h < heads; h++) {
                        bool there = a.first + p < r + n; /* nothing behind it is read */
                        const size_t to = ((size_t)h * span + p) * dim;
                        for (uint32_t i = 0; i < dim; i++) k[to + i] = v[to + i] = NAN;
                        if (!there) continue;
                        memcpy(k + to, attn_row(&c, a.first + p, 0, h), dim * sizeof *k);
                        memcpy(v + to, attn_row(&c, a.first + p, 1, h), dim * sizeof *v);
                    }
                sl_attention_span(&ex, &a);
            }
        }
        for (uint32_t i = 0; i < c.n * heads; i++)
            kt_same("attention in spans", c.o + (size_t)i * v_dim, c.want + (size_t)i * dim, v_dim);
    }
    sl_free(k), sl_free(v), sl_free(state);
    attn_free(&c);
}

static void spans_are_pages(void **state) {
    (void)state;
    span_case(3, 20, 20, 32);
    span_case(5, 24, 16, 64);
    span_case(2, 48, 17, 128);
    span_case(1, 7, 5, 256);
}

/* ---- the rest ---- */

/* sl_norm_quantise against the norm and sl_quantise, with and without rows of f32. */
static void a_fused_norm_gives_the_same_rows(void **state) {
    (void)state;
    enum { ROWS = 70, N = 1280 };
    float *x = kt_floats(ROWS * N), *want = kt_floats(ROWS * N), *y = kt_floats(ROWS * N);
    uint8_t *act[SL_ACT_KINDS], *codes[SL_ACT_KINDS];
    for (sl_act_kind k = 0; k < SL_ACT_KINDS; k++) {
        act[k] = sl_alloc(ROWS, sl_act_row_bytes(k, N));
        codes[k] = sl_alloc(ROWS, sl_act_row_bytes(k, N));
        assert_true(act[k] && codes[k]);
    }
    for (int i = 0; i < 24; i++) {
        void *base;
        sl_dtype d = (sl_dtype)(i % SL_DTYPE_PLAIN);
        sl_mat w = {kt_weights(d, N, true, &base), 1, N, d};
        bool centred = i % 2, rows = centred || i % 4 == 2;
        const sl_exec one = {.k = &sl_kernels_ref};
        (centred ? sl_layernorm : sl_rmsnorm)(&one, x, &w, 1e-5f, ROWS, N, want);
        for (sl_act_kind k = 0; k < SL_ACT_KINDS; k++)
            sl_quantise(&one, want, NULL, ROWS, N, N, k, codes[k]);
        EACH_EXEC(ex) {
            sl_norm_out out = {.y = rows ? y : NULL};
            for (sl_act_kind k = 0; k < SL_ACT_KINDS; k++)
                if (i % 3 != (int)k) out.act[k] = act[k];
            sl_norm_quantise(&ex, x, &w, 1e-5f, centred, ROWS, N, &out);
            if (rows) kt_same("norm", y, want, ROWS * N);
            for (sl_act_kind k = 0; k < SL_ACT_KINDS; k++)
                for (size_t r = 0, bytes = sl_act_row_bytes(k, N); out.act[k] && r < ROWS; r++)
                    kt_same_act(act[k] + r * bytes, codes[k] + r * bytes, k, N);
        }
        sl_free(base);
    }
    for (sl_act_kind k = 0; k < SL_ACT_KINDS; k++) sl_free(act[k]), sl_free(codes[k]);
    sl_free(x), sl_free(want), sl_free(y);
}

static void norm_and_rope_do_not_depend_on_threads(void **state) {
    (void)state;
    enum { ROWS = 60, N = 1300, HEADS = 10, DIM = 130 };
    float *x = kt_floats(ROWS * N), *want = kt_floats(ROWS * N), *y = kt_floats(ROWS * N);
    uint32_t pos[ROWS];
    double freq[DIM / 2];
    for (int i = 0; i < ROWS; i++) pos[i] = kt_below(100000);
    for (int i = 0; i < DIM / 2; i++) freq[i] = pow(1e4, -2.0 * i / DIM);
    for (sl_dtype d = 0; d < SL_DTYPE_PLAIN; d++) {
        void *base;
        sl_mat w = {kt_weights(d, N, true, &base), 1, N, d};
        for (int r = 0; r < ROWS; r++) {
            const float *xr = x + r * N;
            float inv = 1.0f / sqrtf(dot_rule(xr, xr, SL_F32, 0, N) / (float)N + 1e-5f);
            for (int i = 0; i < N; i++)
                want[r * N + i] = xr[i] * inv * kt_weight(w.data, d, (size_t)i);
        }
        EACH_EXEC(ex) {
            memcpy(y, x, ROWS * N * sizeof *x);
            sl_rmsnorm(&ex, y, &w, 1e-5f, ROWS, N, y);
            kt_same("rmsnorm", y, want, ROWS * N);
        }
        for (int r = 0; r < ROWS; r++) {
            float lane[SL_DOT_LANES] = {0}, mid[N];
            for (int i = 0; i < N; i++) lane[i % SL_DOT_LANES] += x[r * N + i];
            for (int h = SL_DOT_LANES / 2; h; h /= 2)
                for (int i = 0; i < h; i++) lane[i] += lane[i + h];
            for (int i = 0; i < N; i++) mid[i] = x[r * N + i] - lane[0] / (float)N;
            float inv = 1.0f / sqrtf(dot_rule(mid, mid, SL_F32, 0, N) / (float)N + 1e-5f);
            for (int i = 0; i < N; i++)
                want[r * N + i] = mid[i] * inv * kt_weight(w.data, d, (size_t)i);
        }
        EACH_EXEC(ex) {
            memcpy(y, x, ROWS * N * sizeof *x);
            sl_layernorm(&ex, y, &w, 1e-5f, ROWS, N, y);
            kt_same("layernorm", y, want, ROWS * N);
        }
        sl_free(base);
    }
    memcpy(want, x, ROWS * N * sizeof *x);
    const sl_rope_shape shape = {HEADS, DIM, DIM, N}, part = {HEADS, DIM, 64, N};
    sl_rope(&(sl_exec){.k = &sl_kernels_ref}, want, pos, freq, ROWS, &shape);
    EACH_EXEC(ex) {
        memcpy(y, x, ROWS * N * sizeof *x);
        sl_rope(&ex, y, pos, freq, ROWS, &shape);
        kt_same("rope", y, want, ROWS * N);
    }
    for (int r = 0; r < ROWS; r += 13) { /* pairs i and i + DIM/2 of head 3, by libm */
        float *a = x + r * N + 3 * DIM, *b = want + r * N + 3 * DIM;
        for (int i = 0; i < DIM / 2; i++) {
            double t = pos[r] * freq[i], lo = a[i], hi = a[i + DIM / 2];
            double tol = 1e-6 * (fabs(lo) + fabs(hi)) + 1e-44;
            assert_true(fabs(b[i] - (lo * cos(t) - hi * sin(t))) <= tol);
            assert_true(fabs(b[i + DIM / 2] - (hi * cos(t) + lo * sin(t))) <= tol);
        }
    }
    EACH_EXEC(ex) { /* the first 64 values of a head as if it were no wider */
        memcpy(y, x, ROWS * N * sizeof *x);
        sl_rope(&ex, y, pos, freq, ROWS, &part);
        for (int r = 0; r < ROWS * HEADS; r++) {
            size_t at = (size_t)(r / HEADS) * N + (size_t)(r % HEADS) * DIM;
            float head[DIM];
            memcpy(head, x + at, sizeof head);
            const sl_rope_shape one = {1, part.rope_dim, part.rope_dim, part.rope_dim};
            sl_rope(&(sl_exec){.k = &sl_kernels_ref}, head, pos + r / HEADS, freq, 1, &one);
            kt_same("rope of a part", y + at, head, DIM);
        }
    }
    sl_free(x), sl_free(y), sl_free(want);
}

static void clipping_keeps_the_bounds_and_nan(void **state) {
    (void)state;
    enum { N = 70000 };
    float *x = kt_floats(N), *y = kt_floats(N);
    x[5] = NAN, x[6] = INFINITY, x[7] = -INFINITY, x[8] = 0.75f;
    EACH_EXEC(ex) {
        memcpy(y, x, N * sizeof *x);
        sl_vec_clip(&ex, y, 0.75f, N);
        for (int i = 0; i < N; i++)
            assert_true(i == 5 ? isnan(y[i]) : y[i] == fminf(0.75f, fmaxf(-0.75f, x[i])));
    }
    sl_free(x), sl_free(y);
}

static void biases_and_gates_follow_the_rule(void **state) {
    (void)state;
    enum { ROWS = 61, N = 1300 }; /* wider than a block of the bias */
    float *y0 = kt_floats((size_t)ROWS * N), *y = kt_floats((size_t)ROWS * N);
    float *want = kt_floats((size_t)ROWS * N), *gate = kt_floats(ROWS);
    for (sl_dtype d = 0; d < SL_DTYPE_PLAIN; d++) {
        void *base;
        sl_mat b = {kt_weights(d, N, true, &base), 1, N, d};
        for (size_t i = 0; i < ROWS * N; i++) want[i] = y0[i] + (float)kt_weight(b.data, d, i % N);
        EACH_EXEC(ex) {
            memcpy(y, y0, ROWS * N * sizeof *y);
            sl_bias_add(&ex, y, &b, ROWS);
            kt_same("bias_add", y, want, ROWS * N);
        }
        sl_free(base);
    }
    gate[0] = 0, gate[1] = 100, gate[2] = -100;
    for (size_t i = 0; i < ROWS * N; i++) want[i] = 1.0f / (1.0f + sl_expf(-gate[i / N])) * y0[i];
    EACH_EXEC(ex) {
        memcpy(y, y0, ROWS * N * sizeof *y);
        sl_gate_rows(&ex, y, gate, ROWS, N);
        kt_same("gate_rows", y, want, ROWS * N);
        sl_gate_rows(&ex, y, gate, 0, N);
    }
    for (int r = 0; r < ROWS; r++) {
        double s = 1 / (1 + exp(-(double)gate[r])), a = y0[r * N + 7];
        double least = 0x1p-126 * fabs(a); /* of f32: a gate below -88 is 0 */
        assert_true(fabs(want[r * N + 7] - s * a) <= 4e-7 * fabs(s * a) + least + 1e-40);
    }
    sl_free(y0), sl_free(y), sl_free(want), sl_free(gate);
}

static void vectors_do_not_depend_on_threads(void **state) {
    (void)state;
    const size_t n = 200003;
    float *x = kt_floats(n), *y0 = kt_floats(n), *y = kt_floats(n), *z = kt_floats(n);
    uint16_t *h = sl_alloc(n, sizeof *h);
    assert_non_null(h);
    EACH_EXEC(ex) {
        memcpy(y, y0, n * sizeof *y);
        memcpy(z, y0, n * sizeof *y);
        sl_vec_add(&ex, y, x, n);
        for (size_t i = 0; i < n; i++) z[i] += x[i];
        kt_same("vec_add", y, z, n);
        sl_vec_add_scaled(&ex, y, x, 0.3f, n);
        for (size_t i = 0; i < n; i++) {
            float p = 0.3f * x[i];
            z[i] += p;
        }
        kt_same("vec_add_scaled", y, z, n);
        sl_vec_scale(&ex, y, x, -1.7f, n);
        for (size_t i = 0; i < n; i++) z[i] = -1.7f * x[i];
        kt_same("vec_scale", y, z, n);
        sl_to_bf16(&ex, x, n, h);
        for (size_t i = 0; i < n; i++) assert_int_equal(h[i], sl_f32_to_bf16(x[i]));
        sl_widen(&ex, h, SL_BF16, n, y);
        for (size_t i = 0; i < n; i++) z[i] = sl_bf16_to_f32(h[i]);
        kt_same("widen", y, z, n);
        sl_vec_add(&ex, y, x, 0);
        sl_gemm(&ex, NULL, 0);
    }
    sl_softmax(sl_kernels_base(), x, 1000, y);
    sl_kernels_ref.softmax(x, 1000, z);
    kt_same("softmax", y, z, 1000);
    sl_free(x), sl_free(y0), sl_free(y), sl_free(z), sl_free(h);
}

static void kernels_allocate_nothing(void **state) {
    (void)state;
    enum { K = 512, N = 512 };
    void *base;
    float *x = kt_floats(8 * K), *y = kt_floats(8 * N);
    sl_mat w = {kt_weights(SL_BF16, N * K, false, &base), N, K, SL_BF16};
    sl_exec ex = {.k = sl_kernels_select(NULL), .pool = pool_of(2)};
    uint64_t before = sl_mem_count();
    sl_gemm_job j = {&w, x, NULL, 8, K, N, y};
    sl_gemm(&ex, &j, 1);
    sl_softmax(ex.k, x, K, y);
    sl_rmsnorm(&ex, x, &(sl_mat){base, 1, K, SL_BF16}, 1e-5f, 8, K, y);
    assert_int_equal(sl_mem_count(), before);
    sl_pool_free(ex.pool);
    sl_free(base), sl_free(x), sl_free(y);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grouped_products_follow_the_rule),
        cmocka_unit_test(a_row_alone_equals_the_row_in_a_batch),
        cmocka_unit_test(rows_of_bf16_meet_bf16_alone),
        cmocka_unit_test(any_number_of_jobs),
        cmocka_unit_test(scaled_blocks_are_their_products),
        cmocka_unit_test(attention_is_softmax_whole_or_in_chunks),
        cmocka_unit_test(spans_are_pages),
        cmocka_unit_test(a_fused_norm_gives_the_same_rows),
        cmocka_unit_test(norm_and_rope_do_not_depend_on_threads),
        cmocka_unit_test(clipping_keeps_the_bounds_and_nan),
        cmocka_unit_test(biases_and_gates_follow_the_rule),
        cmocka_unit_test(vectors_do_not_depend_on_threads),
        cmocka_unit_test(kernels_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
