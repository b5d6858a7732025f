/* Attention on the GPU: every form of it has the bits of the host's on drawn models and steps. */
#include "rows_test.h"
#include "sanitized.h"

#define REQUESTS 3
#define PAGES    72 /* of a request at most */
#define SOME     5
#define MAX_ROWS 40
#define FEW      (SL_SLOW_BUILD ? 3 : 1) /* one in how many cases of a sample */

typedef struct attn_case {
    sl_model_spec m;
    uint32_t group, skip; /* as of sl_attn_args */
    uint32_t rows, per;   /* per: pages of a request */
    uint32_t pos[MAX_ROWS], list[REQUESTS][PAGES];
    const uint32_t *pages[MAX_ROWS];
    bool sink;
} attn_case;

/* Static: a spec is large. */
static attn_case drawn;
static uint32_t cases; /* types of pages take turns */

static void draw_sight(sl_model_spec *m) {
    m->n_layers = 2;
    m->sliding_window = 1 + kt_below(70);
    m->attn_chunk = 1 + kt_below(70);
    m->sight[1] = (uint8_t)kt_below(3);
}

static void draw_model(attn_case *k, uint32_t kv_heads, uint32_t group, uint32_t dim,
                       uint32_t lora) {
    memset(k, 0, sizeof *k);
    draw_sight(&k->m);
    k->m.n_kv_heads = kv_heads;
    k->m.n_heads = kv_heads * group;
    k->m.head_dim = dim;
    k->m.kv_lora = lora;
    k->m.kv_type = (sl_kv_type)(cases++ % SL_KV_TYPES);
    k->sink = kt_below(3) == 0;
}

/* Rows of requests in ascending positions: chunks of prompts and single ones; pages lie anywhere.
 */
static void draw_rows(attn_case *k, uint32_t pages, uint32_t most) {
    uint32_t *at = rt_order(REQUESTS * pages);
    for (uint32_t i = 0; i < REQUESTS * pages; i++) k->list[i / pages][i % pages] = at[i];
    k->per = pages;
    sl_free(at);
    for (uint32_t q = 0; q < REQUESTS; q++) {
        const uint32_t n = kt_below(3) ? 1 : 1 + kt_below(most);
        const uint32_t first = kt_below(pages * SL_KV_PAGE_TOKENS - n);
        for (uint32_t i = 0; i < n; i++) {
            k->pages[k->rows] = k->list[q];
            k->pos[k->rows++] = first + i;
        }
    }
}

/* In every form that can, and the one that is chosen. */
static void compare(const attn_case *k) {
    const sl_model_spec *m = &k->m;
    const sl_cuda_heads heads = sl_cuda_heads_of(m);
    const uint32_t v_dim = sl_kv_value_dim(m), q_row = m->n_heads * m->head_dim + kt_below(2);
    const uint32_t o_row = m->n_heads * v_dim + kt_below(2);
    const uint32_t pages = REQUESTS * k->per;
    const size_t rows = sl_kv_page_bytes(m) / sl_kv_row_bytes(m) * pages;
    float *x = kt_floats(rows * m->head_dim), *q = kt_floats((size_t)k->rows * q_row);
    uint8_t *pool = rt_pages(m, pages, x);
    float *o = kt_floats((size_t)k->rows * o_row), *sink = kt_floats(m->n_heads);
    sl_attn_args a = {.m = m,
                      .layer = 1,
                      .n_rows = k->rows,
                      .q = q,
                      .q_stride = q_row,
                      .pos = k->pos,
                      .kv = sl_kv_pool_of(m, pool),
                      .pages = k->pages,
                      .scale = 1.0f / sqrtf((float)m->head_dim),
                      .o = o,
                      .o_stride = o_row,
                      .sink = k->sink ? sink : NULL,
                      .group = k->group,
                      .skip = k->skip};
    const rt_sights sights = {&k->m, k->rows, k->per, k->pos, k->pages};
    for (uint32_t i = 0; i < REQUESTS; i++) rt_poison(&sights, k->list[i], pool);
    float *before = rt_copy(o, (size_t)k->rows * o_row);
    sl_attention(&rt_host, &a);
    a.q = rt_in(q, (size_t)k->rows * q_row * sizeof *q);
    a.kv.base = rt_in(pool, pages * sl_kv_page_bytes(m));
    if (k->sink) a.sink = rt_in(sink, m->n_heads * sizeof *sink);
    for (sl_cuda_attn_form form = 0; form <= SL_CUDA_ATTN_FORMS; form++) {
        if (form < SL_CUDA_ATTN_FORMS && !sl_cuda_attn_can(rt_gpu, form, &heads)) continue;
        a.o = rt_in(before, (size_t)k->rows * o_row * sizeof *o);
        sl_cuda_attention_as(rt_gpu, &a, form, kt_bits() & 1 ? 0 : 1 + kt_below(4));
        rt_same("attention", o, a.o, (size_t)k->rows * o_row);
    }
    sl_free(pool);
    sl_free(x);
    sl_free(q);
    sl_free(o);
    sl_free(before);
    sl_free(sink);
    rt_done();
}

static void of_heads(void **state) {
    static const uint32_t dims[] = {2, 8, 16, 20, 32, 33, 64, 80, 96, 128};
    (void)state;
    for (size_t i = 0; i < 2 * SL_LEN(dims); i++, cases += i % SL_LEN(dims) == 0) {
        if (i % take_one_in(FEW) != 0) continue;
        draw_model(&drawn, 1 + kt_below(3), 1 + kt_below(9), dims[i % SL_LEN(dims)], 0);
        draw_rows(&drawn, SOME, 12);
        compare(&drawn);
    }
}

static void of_wide_heads(void **state) {
    static const uint32_t dims[] = {130, 192, 256, 260, 512, 520, 1024};
    (void)state;
    for (size_t i = 0; i < SL_LEN(dims); i += take_one_in(FEW)) {
        draw_model(&drawn, 1 + kt_below(2), 1 + kt_below(3), dims[i], 0);
        draw_rows(&drawn, SOME, 3);
        compare(&drawn);
    }
}

static void of_latents(void **state) {
    static const uint32_t dims[][2] = {{24, 16},   {40, 33},   {96, 64}, {144, 128},
                                       {320, 256}, {576, 512}, {17, 16}};
    (void)state;
    for (size_t i = 0; i < 2 * SL_LEN(dims); i += take_one_in(FEW)) {
        const uint32_t *d = dims[i % SL_LEN(dims)];
        draw_model(&drawn, 1, 1 + kt_below(20), d[0], d[1]);
        drawn.sink = false;
        draw_rows(&drawn, SOME, 4);
        compare(&drawn);
    }
}

/* Groups larger than a block's queries, and ranks that have a part of one. */
static void of_groups(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 8; i += take_one_in(FEW)) {
        const uint32_t kv_heads = 1 + kt_below(2), group = 1 + kt_below(40);
        draw_model(&drawn, kv_heads, group, 16, 0);
        if (i & 1) {
            drawn.group = group;
            drawn.skip = kt_below(group);
            drawn.m.n_heads = 1 + kt_below(kv_heads * group - drawn.skip);
        }
        draw_rows(&drawn, SOME, 20);
        compare(&drawn);
    }
}

/* More pages than a warp knows the numbers of, and many rounds of whatever rooms a block has. */
static void of_long_contexts(void **state) {
    (void)state;
    for (uint32_t i = 0; i < SL_KV_TYPES; i += take_one_in(FEW)) {
        draw_model(&drawn, 1, 1 + kt_below(4), 8 * (2 + kt_below(3)), 0);
        drawn.m.sliding_window = 1500;
        draw_rows(&drawn, PAGES, 3);
        compare(&drawn);
    }
}

/* ---- spans ---- */

typedef struct span_rows {
    uint32_t rows, heads, dim, v_dim, span, keys;
    float *q, *k, *v, *o, *max, *sum;
    uint32_t pos[MAX_ROWS];
} span_rows;

static void draw_span(span_rows *s) {
    *s = (span_rows){.rows = 1 + kt_below(24), .heads = 1 + kt_below(4)};
    s->dim = kt_bits() & 1 ? 4 * (1 + kt_below(48)) : 1 + kt_below(180);
    s->v_dim = 1 + kt_below(s->dim);
    s->span = SL_KV_PAGE_TOKENS * (1 + kt_below(3));
    const uint32_t first = kt_below(120);
    for (uint32_t r = 0; r < s->rows; r++) s->pos[r] = first + r;
    s->keys = first + s->rows;
    const size_t spans = (s->keys + s->span - 1) / s->span;
    s->k = kt_floats(spans * s->heads * s->span * s->dim);
    s->v = kt_floats(spans * s->heads * s->span * s->dim);
    s->q = kt_floats((size_t)s->rows * s->heads * s->dim);
    s->o = kt_floats((size_t)s->rows * s->heads * s->v_dim);
    s->max = kt_floats((size_t)s->rows * s->heads);
    s->sum = kt_floats((size_t)s->rows * s->heads);
}

/* Each span's keys and values of all heads lie one behind the other. */
static void run_spans(const span_rows *s, const span_rows *at, bool gpu) {
    sl_attn_span a = {.n_heads = s->heads,
                      .dim = s->dim,
                      .v_dim = s->v_dim,
                      .span = s->span,
                      .n_rows = s->rows,
                      .q = at->q,
                      .q_stride = s->heads * s->dim,
                      .o_stride = s->heads * s->v_dim,
                      .pos = s->pos,
                      .scale = 0.3f,
                      .o = at->o,
                      .max = at->max,
                      .sum = at->sum};
    for (; a.first < s->keys; a.first += s->span) {
        const size_t skip = (size_t)a.first * s->heads * s->dim;
        a.k = at->k + skip;
        a.v = at->v + skip;
        a.last = a.first + s->span >= s->keys;
        if (gpu)
            sl_cuda_attention_span(rt_gpu, &a);
        else
            sl_attention_span(&rt_host, &a);
    }
}

static void of_spans(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 16; i += take_one_in(FEW)) {
        span_rows s, gpu;
        draw_span(&s);
        const size_t state_n = (size_t)s.rows * s.heads, o_n = state_n * s.v_dim;
        const size_t kv_n = (size_t)((s.keys + s.span - 1) / s.span) * s.heads * s.span * s.dim;
        gpu = s;
        gpu.q = rt_in(s.q, state_n * s.dim * sizeof(float));
        gpu.k = rt_in(s.k, kv_n * sizeof(float));
        gpu.v = rt_in(s.v, kv_n * sizeof(float));
        gpu.o = rt_in(s.o, o_n * sizeof(float));
        gpu.max = rt_in(s.max, state_n * sizeof(float));
        gpu.sum = rt_in(s.sum, state_n * sizeof(float));
        run_spans(&s, &s, false);
        run_spans(&s, &gpu, true);
        rt_same("attention of spans", s.o, gpu.o, o_n);
        sl_free(s.q);
        sl_free(s.k);
        sl_free(s.v);
        sl_free(s.o);
        sl_free(s.max);
        sl_free(s.sum);
        rt_done();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_heads),         cmocka_unit_test(of_wide_heads),
        cmocka_unit_test(of_latents),       cmocka_unit_test(of_groups),
        cmocka_unit_test(of_long_contexts), cmocka_unit_test(of_spans),
    };
    return cmocka_run_group_tests(tests, rt_open, rt_close);
}
