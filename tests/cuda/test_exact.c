/* Numerics exact: a row's bits are the same alone and beside any others, in any number, however
 * work is cut; and close to the host's. Routed experts are in test_fast.c. */
#include "rows_test.h"

#include "quant/half.h"
#include "sanitized.h"
#include "stage/cuda/exec_products.h"

#define NEAR 1e-2f /* of the largest value: bf16 has 8 bits */

static void near(const char *what, const float *want, const float *got, size_t n) {
    float most = 0;
    for (size_t i = 0; i < n; i++) most = fmaxf(most, fabsf(want[i]));
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(want[i] - got[i]) <= NEAR * most))
            fail_msg("%s: value %zu of %zu is %g, expected %g", what, i, n, (double)got[i],
                     (double)want[i]);
}

/* ---- products ---- */

#define ROWS 70u

typedef struct product {
    sl_mat w[2], here[2];
    float *x, *here_x, *y, *here_y;
    uint32_t n, k;
} product;

static product draw_product(uint32_t n, uint32_t k) {
    product p = {.n = n, .k = k};
    const size_t values = (size_t)n * k;
    p.here_x = kt_floats((size_t)ROWS * k);
    for (size_t i = 0; i < (size_t)ROWS * k; i++) p.here_x[i] = kt_value();
    p.x = rt_in(p.here_x, (size_t)ROWS * k * sizeof(float));
    p.here_y = kt_floats((size_t)ROWS * n);
    p.y = rt_in(p.here_y, (size_t)ROWS * n * sizeof(float));
    for (uint32_t i = 0; i < 2; i++) {
        uint16_t *w = sl_alloc(values, sizeof *w);
        assert_non_null(w);
        for (size_t v = 0; v < values; v++) w[v] = sl_f32_to_bf16(kt_value());
        p.here[i] = (sl_mat){.data = w, .n = n, .k = k, .dtype = SL_BF16};
        p.w[i] = p.here[i];
        p.w[i].data = rt_in(w, values * sizeof *w);
    }
    return p;
}

static void forget(product *p) {
    sl_free(p->here_x);
    sl_free(p->here_y);
    for (uint32_t i = 0; i < 2; i++) sl_free((void *)(uintptr_t)p->here[i].data);
    rt_done();
}

/* n rows from r on, by a list of them where `listed`; results to `got`. */
static void multiply(const product *p, uint32_t r, uint32_t n, bool listed, bool up, float *got) {
    uint32_t row[ROWS];
    const sl_mat *ups[1] = {&p->w[1]};
    for (uint32_t i = 0; i < n; i++) row[i] = r + i;
    const sl_gemm_job j = {.w = &p->w[0],
                           .x = listed ? p->x : p->x + (size_t)r * p->k,
                           .row = listed ? row : NULL,
                           .n_rows = n,
                           .x_stride = p->k,
                           .y = p->y,
                           .y_stride = p->n};
    sl_cuda_gemm(rt_gpu, &j, up ? ups : NULL, 1);
    rt_out(got + (size_t)r * p->n, p->y, (size_t)n * p->n * sizeof *got);
}

static void reference(const product *p, bool up, float *want) {
    const sl_mat *ups[1] = {&p->here[1]};
    const sl_gemm_job j = {.w = &p->here[0],
                           .x = p->here_x,
                           .n_rows = ROWS,
                           .x_stride = p->k,
                           .y = want,
                           .y_stride = p->n};
    if (up)
        sl_gemm_swiglu(&rt_host, &j, ups, 1);
    else
        sl_gemm(&rt_host, &j, 1);
}

/* In groups of `most` rows. */
static void compare_products(uint32_t n, uint32_t k, bool up) {
    static const uint32_t group[] = {1, 7, 33, 66};
    product p = draw_product(n, k);
    float *want = kt_floats((size_t)ROWS * n), *got = kt_floats((size_t)ROWS * n);
    multiply(&p, 0, ROWS, false, up, want);
    reference(&p, up, got);
    near("products", got, want, (size_t)ROWS * n);
    for (size_t g = kt_below(2); g < SL_LEN(group); g += 2) {
        for (uint32_t r = 0; r < ROWS; r += group[g])
            multiply(&p, r, SL_MIN(group[g], ROWS - r), g & 1, up, got);
        rt_same_values("product", want, got, (size_t)ROWS * n);
    }
    sl_free(want);
    sl_free(got);
    forget(&p);
}

static void products(void **state) {
    (void)state;
    compare_products(40, 8, false);
    compare_products(130, 520, true);
    const uint32_t one = kt_below(2);
    if (take_whole() || one)
        compare_products(20, 1600, false); /* segments of blocks of their own */
    if (take_whole() || !one) compare_products(600, 584, false);
}

/* ---- attention ---- */

#define PAGES 18u /* of a request: three parts */
#define SEEN  24u

typedef struct seeing {
    sl_model_spec m;
    uint32_t list[2][PAGES], pos[SEEN];
    const uint32_t *pages[SEEN];
} seeing;

static seeing drawn;

static void draw_seeing(sl_kv_type type, uint32_t dim, uint32_t kv_heads, uint32_t group,
                        uint8_t sight) {
    seeing *k = &drawn;
    memset(k, 0, sizeof *k);
    k->m.n_layers = 2;
    k->m.sliding_window = 1 + kt_below(PAGES * 32);
    k->m.attn_chunk = 1 + kt_below(PAGES * 32);
    k->m.sight[1] = sight;
    k->m.n_kv_heads = kv_heads;
    k->m.n_heads = kv_heads * group;
    k->m.head_dim = dim;
    k->m.kv_type = type;
    uint32_t *at = rt_order(2 * PAGES);
    for (uint32_t i = 0; i < 2 * PAGES; i++) k->list[i / PAGES][i % PAGES] = at[i];
    sl_free(at);
    const uint32_t first = kt_below(PAGES * 32 - SEEN), other = kt_below(PAGES * 32 - 5);
    for (uint32_t r = 0; r < SEEN; r++) {
        const bool of_other = r >= SEEN - 5;
        k->pages[r] = k->list[of_other];
        k->pos[r] = of_other ? other + r - (SEEN - 5) : first + r;
    }
}

/* Rows r .. r + n - 1. */
static void see(const sl_attn_args *all, uint32_t r, uint32_t n) {
    sl_attn_args a = *all;
    a.n_rows = n;
    a.q += (size_t)r * a.q_stride;
    a.o += (size_t)r * a.o_stride;
    a.pos += r;
    a.pages += r;
    sl_cuda_attention(rt_gpu, &a);
}

/* Whether all rows at once, some and single ones are the same; want: what all at once are. */
static void compare_calls(const sl_attn_args *a, size_t values, float *want) {
    const uint32_t some[] = {1, 9};
    float *got = kt_floats(values);
    see(a, 0, SEEN);
    rt_out(want, a->o, values * sizeof *want);
    for (size_t i = 0; i < SL_LEN(some); i++) {
        for (uint32_t r = 0; r < SEEN; r += some[i]) see(a, r, SL_MIN(some[i], SEEN - r));
        rt_out(got, a->o, values * sizeof *got);
        rt_same_values("attention", want, got, values);
    }
    sl_free(got);
}

/* Some heads of some rows have nothing but NaN. */
static void spoil(float *q, uint32_t width) {
    const uint32_t dim = drawn.m.head_dim;
    for (uint32_t r = 0; r < SEEN; r += 1 + kt_below(4)) {
        float *to = q + (size_t)r * width + (size_t)kt_below(drawn.m.n_heads) * dim;
        for (uint32_t i = 0; i < dim; i++) to[i] = NAN;
    }
}

static void compare_seeing(bool sinks) {
    const sl_model_spec *m = &drawn.m;
    const uint32_t width = m->n_heads * m->head_dim;
    const size_t n = sl_kv_page_bytes(m) / sl_kv_row_bytes(m) * 2 * PAGES * m->head_dim;
    const size_t all = (size_t)SEEN * width;
    float *x = kt_floats(n), *q = kt_floats(all), *want = kt_floats(all), *got = kt_floats(all);
    float *sink = kt_floats(m->n_heads);
    for (size_t i = 0; i < n; i++) x[i] = (float)kt_bits() * 0x1p-31f - 1;
    for (size_t i = 0; i < all; i++) q[i] = (float)kt_bits() * 0x1p-30f - 2;
    uint8_t *pool = rt_pages(m, 2 * PAGES, x);
    sl_attn_args a = {.m = m,
                      .layer = 1,
                      .n_rows = SEEN,
                      .q = q,
                      .q_stride = width,
                      .pos = drawn.pos,
                      .kv = sl_kv_pool_of(m, pool),
                      .pages = drawn.pages,
                      .scale = 1.0f / sqrtf((float)m->head_dim),
                      .o = want,
                      .o_stride = width,
                      .sink = sinks ? sink : NULL};
    const rt_sights sights = {m, SEEN, PAGES, drawn.pos, drawn.pages};
    for (uint32_t i = 0; i < 2; i++) rt_poison(&sights, drawn.list[i], pool);
    sl_attention(&rt_host, &a);
    a.q = rt_in(q, all * sizeof *q);
    a.kv.base = rt_in(pool, 2 * PAGES * sl_kv_page_bytes(m));
    if (sinks) a.sink = rt_in(sink, m->n_heads * sizeof *sink);
    a.o = rt_in(got, all * sizeof *got);
    compare_calls(&a, all, got);
    near("attention", want, got, all);
    spoil(q, width);
    a.q = rt_in(q, all * sizeof *q);
    compare_calls(&a, all, got);
    sl_free(pool);
    sl_free(x);
    sl_free(q);
    sl_free(want);
    sl_free(got);
    sl_free(sink);
    rt_done();
}

static void attention(void **state) {
    (void)state;
    const uint32_t first = kt_below(SL_KV_TYPES);
    draw_seeing(SL_KV_F32, 128, 1, 1 + kt_below(4), (uint8_t)kt_below(3));
    compare_seeing(true);
    draw_seeing((sl_kv_type)first, 64, 1, 9, SL_SIGHT_ALL);
    compare_seeing(false);
    /* all at once make enough blocks, a few do not */
    for (uint32_t t = 1; t < SL_KV_TYPES; t += take_one_in(SL_SLOW_BUILD ? SL_KV_TYPES : 3)) {
        draw_seeing((sl_kv_type)((first + t) % SL_KV_TYPES), 64, 8, 1, SL_SIGHT_ALL);
        compare_seeing(true);
    }
}

static int open_exact(void **state) {
    sl_err err;
    (void)state;
    rt_host.k = sl_kernels_base();
    if (sl_cuda_open(0, SL_NUMERICS_EXACT, &rt_gpu, &err) != SL_OK) fail_msg("%s", err.msg);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(products), cmocka_unit_test(attention)};
    return cmocka_run_group_tests(tests, open_exact, rt_close);
}
