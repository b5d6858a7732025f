/* Attention in numerics fast: close to the host's on drawn models and steps, the same every time,
 * and nothing of what no row sees comes in. */
#include "quant/half.h"
#include "rows_test.h"
#include "sanitized.h"
#include "stage/cuda/exec_products.h"

#define REQUESTS 4
#define PAGES    80 /* of a request at most */
#define MAX_ROWS 300
#define FEW      (SL_SLOW_BUILD ? 3 : 1) /* one in how many cases of a sample */

/* Of the largest value: bf16 has 8 bits, tf32 and f16 have 11. */
#define TOLERANCE_8  1e-2f
#define TOLERANCE_11 2e-3f

typedef struct fast_case {
    sl_model_spec m;
    uint32_t group, skip, rows, per;
    uint32_t pos[MAX_ROWS], list[REQUESTS][PAGES];
    const uint32_t *pages[MAX_ROWS];
    bool sink, chunk;
} fast_case;

static fast_case drawn; /* static: a spec is large */
static uint32_t cases;  /* types of pages take turns */

static void draw(fast_case *k, uint32_t dim, uint32_t kv_heads, uint32_t group, uint32_t per) {
    memset(k, 0, sizeof *k);
    k->m.n_layers = 2;
    k->m.sliding_window = 1 + kt_below(per * 32);
    k->m.attn_chunk = 1 + kt_below(per * 32);
    k->m.sight[1] = (uint8_t)kt_below(3);
    k->m.n_kv_heads = kv_heads;
    k->m.n_heads = kv_heads * group;
    k->m.head_dim = dim;
    k->m.kv_type = (sl_kv_type)(cases++ % SL_KV_TYPES);
    k->sink = kt_below(3) == 0;
    k->per = per;
    uint32_t *at = rt_order(REQUESTS * per);
    for (uint32_t i = 0; i < REQUESTS * per; i++) k->list[i / per][i % per] = at[i];
    sl_free(at);
}

/* Single rows, short chunks, and where `chunk` one that takes another way. */
static void draw_rows(fast_case *k, bool chunk) {
    k->chunk = chunk;
    for (uint32_t q = 0; q < REQUESTS; q++) {
        const uint32_t n = chunk && q == 1 ? 16 + kt_below(30) : 1 + kt_below(2);
        const uint32_t first = kt_below(k->per * SL_KV_PAGE_TOKENS - n);
        for (uint32_t i = 0; i < n; i++) {
            k->pages[k->rows] = k->list[q];
            k->pos[k->rows++] = first + i;
        }
    }
}

static void close_to(const float *want, const float *got, size_t n, float tolerance) {
    float most = 0;
    for (size_t i = 0; i < n; i++) most = fmaxf(most, fabsf(want[i]));
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(want[i] - got[i]) <= tolerance * most))
            fail_msg("value %zu of %zu is %g, expected %g", i, n, (double)got[i], (double)want[i]);
}

/* A product reads what attention has left, rounded by that or not, and what is there later. */
static void read_by_product(const float *o, float *gpu_o, uint32_t rows, uint32_t width) {
    enum { WIDE = 40 };
    uint16_t *w = sl_alloc((size_t)WIDE * width, sizeof *w);
    float *y = kt_floats((size_t)rows * WIDE);
    sl_mat m = {.n = WIDE, .k = width, .dtype = SL_BF16};
    assert_non_null(w);
    for (size_t i = 0; i < (size_t)WIDE * width; i++)
        w[i] = sl_f32_to_bf16((float)kt_bits() * 0x1p-31f - 1);
    m.data = rt_in(w, (size_t)WIDE * width * 2);
    const sl_gemm_job job = {.w = &m,
                             .x = gpu_o,
                             .n_rows = rows,
                             .x_stride = width,
                             .y = rt_in(y, (size_t)rows * WIDE * 4),
                             .y_stride = WIDE};
    sl_cuda_wide_as(rt_gpu, 3, false);
    for (uint32_t there = 1; there < 2; there--) {
        if (!there) sl_cuda_fill(rt_gpu, (uintptr_t)gpu_o, 0, (size_t)rows * width * 4);
        sl_cuda_gemm(rt_gpu, &job, NULL, 1);
        rt_out(y, job.y, (size_t)rows * WIDE * 4);
        for (uint32_t i = 0; i < rows * WIDE; i++) {
            double want = 0, size = 1e-30;
            for (uint32_t j = 0; there && j < width; j++) {
                const double p = (double)o[(size_t)(i / WIDE) * width + j] *
                                 sl_bf16_to_f32(w[(size_t)(i % WIDE) * width + j]);
                want += p;
                size += fabs(p);
            }
            if (!(fabs(y[i] - want) <= 4e-3 * size)) fail_msg("product %u", i);
        }
    }
    sl_cuda_wide_as(rt_gpu, 0, false);
    sl_free(w);
    sl_free(y);
}

/* Whether anything is: pages that are, and prompts over pages of f32. */
static bool in_bf16(const fast_case *k) {
    return k->m.kv_type == SL_KV_BF16 || (k->m.kv_type == SL_KV_F32 && k->chunk);
}

static void compare(const fast_case *k) {
    const sl_model_spec *m = &k->m;
    const uint32_t width = m->n_heads * m->head_dim;
    const uint32_t pages = REQUESTS * k->per;
    const size_t n = sl_kv_page_bytes(m) / sl_kv_row_bytes(m) * pages * m->head_dim;
    const size_t all = (size_t)k->rows * width;
    float *x = sl_alloc(n, sizeof *x), *q = sl_alloc(all, sizeof *q);
    float *o = kt_floats(all), *got = kt_floats(all), *again = kt_floats(all);
    float *sink = kt_floats(m->n_heads);
    assert_true(x && q);
    for (size_t i = 0; i < n; i++) x[i] = (float)kt_bits() * 0x1p-31f - 1;
    for (size_t i = 0; i < all; i++) q[i] = (float)kt_bits() * 0x1p-30f - 2;
    uint8_t *pool = rt_pages(m, pages, x);
    sl_attn_args a = {.m = m,
                      .layer = 1,
                      .n_rows = k->rows,
                      .q = q,
                      .q_stride = width,
                      .pos = k->pos,
                      .kv = sl_kv_pool_of(m, pool),
                      .pages = k->pages,
                      .scale = 1.0f / sqrtf((float)m->head_dim),
                      .o = o,
                      .o_stride = width,
                      .sink = k->sink ? sink : NULL,
                      .group = k->group,
                      .skip = k->skip};
    const rt_sights sights = {&k->m, k->rows, k->per, k->pos, k->pages};
    for (uint32_t i = 0; i < REQUESTS; i++) rt_poison(&sights, k->list[i], pool);
    sl_attention(&rt_host, &a);
    a.q = rt_in(q, all * sizeof *q);
    a.kv.base = rt_in(pool, pages * sl_kv_page_bytes(m));
    if (k->sink) a.sink = rt_in(sink, m->n_heads * sizeof *sink);
    a.o = rt_in(got, all * sizeof *got);
    assert_true(sl_cuda_fast_attention(rt_gpu, &a));
    rt_out(got, a.o, all * sizeof *got);
    close_to(o, got, all, in_bf16(k) ? TOLERANCE_8 : TOLERANCE_11);
    assert_true(sl_cuda_fast_attention(rt_gpu, &a));
    if (k->rows > 64) {
        read_by_product(got, a.o, k->rows, width);
        assert_true(sl_cuda_fast_attention(rt_gpu, &a));
    }
    rt_out(again, a.o, all * sizeof *again);
    rt_same_values("again", got, again, all);
    sl_free(pool);
    sl_free(x);
    sl_free(q);
    sl_free(o);
    sl_free(got);
    sl_free(again);
    sl_free(sink);
    rt_done();
}

static void of_heads(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 20; i += take_one_in(FEW)) {
        draw(&drawn, i & 1 ? 64 : 128, 1 + kt_below(3), 1 + kt_below(i < 14 ? 8 : 20), 5);
        draw_rows(&drawn, false);
        compare(&drawn);
    }
}

/* As many parts as are merged, more pages than a warp has numbers of, and the most of parts. */
static void of_long_contexts(void **state) {
    (void)state;
    for (uint32_t i = 0; i < SL_KV_TYPES; i += take_one_in(FEW)) {
        draw(&drawn, 64, 1, 1 + kt_below(4), PAGES);
        drawn.m.sight[1] = SL_SIGHT_ALL;
        draw_rows(&drawn, false);
        compare(&drawn);
    }
}

static void of_chunks_and_ranks(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 10; i += take_one_in(FEW)) {
        const uint32_t kv_heads = 1 + kt_below(2), group = 1 + kt_below(12);
        draw(&drawn, i & 2 ? 64 : 128, kv_heads, group, 4);
        if (i & 1) {
            drawn.group = group;
            drawn.skip = kt_below(group);
            drawn.m.n_heads = 1 + kt_below(kv_heads * group - drawn.skip);
        }
        draw_rows(&drawn, true);
        compare(&drawn);
    }
}

/* Prompts: all of one request, from its first position or behind others. */
static void of_prompts(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 8; i += i & 1 ? take_one_in(FEW) : 1) { /* of a sample 0, 1, 4, 5 */
        sl_cuda_set_many(rt_gpu, i != 4);
        const uint32_t n = 64 + kt_below(150), kv_heads = 1 + kt_below(2), group = 1 + kt_below(9);
        draw(&drawn, i & 1 ? 64 : 128, kv_heads, group, 8);
        if (i < 2) drawn.m.sight[1] = SL_SIGHT_ALL;
        if (i == 5) {
            drawn.group = group;
            drawn.skip = kt_below(group);
            drawn.m.n_heads = 1 + kt_below(kv_heads * group - drawn.skip);
        }
        const uint32_t first = i % 3 ? kt_below(8 * SL_KV_PAGE_TOKENS - n) : 0;
        for (uint32_t r = 0; r < n; r++) {
            drawn.pages[r] = drawn.list[2];
            drawn.pos[r] = first + r;
        }
        drawn.rows = n;
        drawn.chunk = true;
        compare(&drawn);
    }
    sl_cuda_set_many(rt_gpu, false);
}

static void of_many_rows(void **state) {
    (void)state;
    draw(&drawn, 64, 1, 2, 3);
    for (uint32_t r = 0; r < 64; r++) {
        drawn.pages[r] = drawn.list[r % REQUESTS];
        drawn.pos[r] = kt_below(3 * SL_KV_PAGE_TOKENS);
    }
    drawn.rows = 64;
    compare(&drawn);
}

static void refused(void **state) {
    sl_attn_args a = {.m = &drawn.m};
    (void)state;
    draw(&drawn, 96, 1, 1, 1);
    assert_false(sl_cuda_fast_attention(rt_gpu, &a));
    draw(&drawn, 64, 1, 1, 1);
    a.q_stride = 65;
    assert_false(sl_cuda_fast_attention(rt_gpu, &a));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_heads),
        cmocka_unit_test(of_long_contexts),
        cmocka_unit_test(of_chunks_and_ranks),
        cmocka_unit_test(of_prompts),
        cmocka_unit_test(of_many_rows),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, rt_open, rt_close);
}
