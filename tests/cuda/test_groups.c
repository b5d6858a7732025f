/* Routed experts as groups of pairs (way SL_FAST_GROUPS of fast_experts.h) against products of
 * processors, bit for bit, on drawn batches: every type, with biases and gpt-oss's SwiGLU and
 * without. */
#include "kernel/formula.h"
#include "products_test.h"
#include "stage/cuda/fast_experts.h"

#include <string.h>

#define MOST_EXPERTS 24u

/* A drawn batch: what m points to is the GPU's, the rest the host's. */
typedef struct batch {
    sl_fast_moe m;
    sl_mat mat[MOST_EXPERTS][3], bias[MOST_EXPERTS][3]; /* gate, up, down */
    uint32_t *id, *heard;                               /* heard: where the GPU copies ids to */
    float *gate, *x, *y;
    size_t floats;
} batch;

/* n rows of k values, at places that are no multiples of 16 in some cases: even ones, or any. */
static const uint8_t *draw_mat(sl_mat *w, sl_dtype t, uint32_t n, uint32_t k, const float **scale) {
    const size_t bytes = sl_dtype_row_bytes(t, (size_t)n * k);
    const size_t scales = t == F8 ? ((size_t)n + 127) / 128 * ((k + 127) / 128) : 0;
    uint8_t *p = host(bytes);
    float *s = host(scales * sizeof *s);
    fill(t, (size_t)n * k, p);
    for (size_t i = 0; i < scales; i++) s[i] = kt_value() + 1.5f;
    *w = (sl_mat){.data = p, .n = n, .k = k, .dtype = t, .scale = scales ? s : NULL};
    *scale = scales ? upload(s, scales * sizeof *s, 0) : NULL;
    const uint32_t step = t == SL_MXFP4 || t == F8 ? 1 : 2;
    return upload(p, bytes, kt_below(3) ? 0 : step * kt_below(16 / step));
}

/* Some experts have none. */
static void draw_bias(sl_mat *b, uint32_t n, sl_group_beside *beside, uint32_t at) {
    static const sl_dtype plain[] = {SL_F32, SL_F16, SL_BF16};
    if (kt_below(5) == 0) return;
    const sl_dtype t = plain[kt_below(SL_LEN(plain))];
    const size_t bytes = sl_dtype_row_bytes(t, n);
    uint8_t *p = host(bytes);
    fill(t, n, p);
    *b = (sl_mat){.data = p, .n = 1, .k = n, .dtype = t};
    beside->bias[at] = upload(p, bytes, 4 * kt_below(4));
    beside->bias_type[at] = (uint32_t)t;
}

static void draw_experts(batch *b, bool biased) {
    const sl_fast_moe *m = &b->m;
    sl_fast_expert table[MOST_EXPERTS];
    sl_group_beside beside[MOST_EXPERTS] = {{{NULL}, {NULL}, {0}, 0}};
    const uint32_t n[3] = {m->d_ff, m->d_ff, m->d_model}, k[3] = {m->d_model, m->d_model, m->d_ff};
    const bool any = biased || m->types.up == F8 || m->types.down == F8;
    sl_err err;
    for (uint32_t e = 0; e < m->n_experts; e++) {
        const uint8_t *at[3];
        for (uint32_t i = 0; i < 3; i++) {
            at[i] = draw_mat(&b->mat[e][i], i < 2 ? m->types.up : m->types.down, n[i], k[i],
                             &beside[e].scale[i]);
            if (biased) draw_bias(&b->bias[e][i], n[i], &beside[e], i);
        }
        assert_int_equal(
            sl_cuda_fast_expert(gpu, at[0], at[1], at[2], m->d_model, m->d_ff, 0, &table[e], &err),
            SL_OK);
        assert_null(table[e].maps);
    }
    b->m.expert = upload(table, m->n_experts * sizeof *table, 0);
    if (any || kt_below(2)) b->m.beside = upload(beside, m->n_experts * sizeof *beside, 0);
}

/* Experts of a row differ; some pairs are nobody's here. */
static void draw_pairs(batch *b) {
    const uint32_t k = b->m.top_k, n = b->m.n_experts;
    b->id = host(b->m.n_pairs * sizeof *b->id);
    b->gate = host(b->m.n_pairs * sizeof *b->gate);
    for (uint32_t p = 0; p < b->m.n_pairs; p++) {
        const uint32_t first = p - p % k;
        bool again = true;
        while (again) {
            b->id[p] = kt_below(12) ? kt_below(n) : n + p;
            again = false;
            for (uint32_t i = first; i < p; i++) again = again || b->id[i] == b->id[p];
        }
        b->gate[p] = kt_value();
    }
    b->m.id = upload(b->id, b->m.n_pairs * sizeof *b->id, 0);
    b->m.gate = upload(b->gate, b->m.n_pairs * sizeof *b->gate, 0);
    b->m.heard = device(b->m.n_pairs * sizeof *b->id);
}

static void draw(batch *b, bool biased) {
    sl_fast_moe *m = &b->m;
    const size_t scratch =
        sl_fast_groups_bytes(m->d_model, m->d_ff, m->n_experts, m->n_rows, m->n_pairs);
    b->floats = (size_t)m->n_rows * m->d_model;
    b->x = host(b->floats * sizeof(float));
    b->y = host(b->floats * sizeof(float));
    k8_values(b->x, (uint32_t)b->floats);
    k8_values(b->y, (uint32_t)b->floats);
    draw_experts(b, biased);
    draw_pairs(b);
    m->x = upload(b->x, b->floats * sizeof(float), 0);
    m->y = upload(b->y, b->floats * sizeof(float), 0);
    m->scratch = device(scratch);
    sl_cuda_fill(gpu, (uintptr_t)m->scratch, 0xff, scratch);
    sl_cuda_fill(gpu, (uintptr_t)m->scratch, 0, SL_FAST_ZEROED);
}

/* w times one row, of codes where the type takes them, and biased. */
static void product(const sl_mat *w, const sl_mat *bias, const float *x, float *y) {
    const sl_act_kind kind = sl_act_kind_of(w->dtype);
    uint8_t *codes = sl_act_is_int8(kind) ? sl_alloc(sl_act_row_bytes(kind, w->k), 1) : NULL;
    sl_gemm_job j = {.w = w, .x = x, .n_rows = 1, .x_stride = w->k, .y_stride = w->n, .y = y};
    if (codes) {
        sl_quantise(processors(), x, NULL, 1, w->k, w->k, kind, codes);
        j.act.row[kind] = codes;
    }
    sl_gemm(processors(), &j, 1);
    sl_free(codes);
    if (bias->data) sl_bias_add(processors(), y, bias, 1);
}

static float *wanted(const batch *b) {
    const sl_fast_moe *m = &b->m;
    float *want = host(b->floats * sizeof *want), *down = host(m->d_model * sizeof *down);
    float *gate = host(m->d_ff * sizeof *gate), *up = host(m->d_ff * sizeof *up);
    for (size_t i = 0; i < b->floats; i++) want[i] = m->add ? b->y[i] : -0.0f;
    for (uint32_t p = 0; p < m->n_pairs; p++) {
        const size_t row = (size_t)(p / m->top_k) * m->d_model;
        if (b->id[p] >= m->n_experts) continue;
        const sl_mat *mat = b->mat[b->id[p]], *bias = b->bias[b->id[p]];
        product(&mat[0], &bias[0], b->x + row, gate);
        product(&mat[1], &bias[1], b->x + row, up);
        for (uint32_t i = 0; i < m->d_ff; i++)
            gate[i] = m->limit > 0 ? sl_swiglu_clamped_scalar(gate[i], up[i], m->limit)
                                   : sl_swiglu_scalar(gate[i], up[i]);
        product(&mat[2], &bias[2], gate, down);
        for (uint32_t i = 0; i < m->d_model; i++) want[row + i] += b->gate[p] * down[i];
    }
    return want;
}

/* limit: of SwiGLU, with biases where it is not 0. */
static void check(uint32_t d_model, uint32_t d_ff, sl_fast_types types, float limit, uint32_t rows,
                  uint32_t experts, uint32_t top_k) {
    batch b = {.m = {.d_model = d_model,
                     .d_ff = d_ff,
                     .types = types,
                     .n_experts = experts,
                     .n_rows = rows,
                     .top_k = top_k,
                     .n_pairs = rows * top_k,
                     .limit = limit,
                     .add = kt_below(2)}};
    assert_true(sl_fast_groups_fit(d_model, d_ff, types));
    draw(&b, limit > 0);
    const float *want = wanted(&b);
    sl_cuda_set_many(gpu, kt_below(2));
    sl_cuda_fast_moe_by(gpu, &b.m, kt_below(2) ? SL_FAST_AUTO : SL_FAST_GROUPS);
    float *got = host(b.floats * sizeof *got);
    uint32_t *heard = host(b.m.n_pairs * sizeof *heard);
    download(got, b.m.y, b.floats * sizeof *got);
    download(heard, b.m.heard, b.m.n_pairs * sizeof *heard);
    for (size_t i = 0; i < b.floats; i++) /* which NaN a sum keeps is the compiler's choice */
        if (isnan(got[i]) && isnan(want[i])) got[i] = want[i];
    kt_same(sl_dtype_name(types.up), got, want, b.floats);
    assert_memory_equal(heard, b.id, b.m.n_pairs * sizeof *heard);
    forget();
}

static const sl_dtype type[] = {SL_Q8_0, SL_Q4_0, SL_MXFP4, SL_Q4_K, SL_Q5_K,
                                SL_Q6_K, SL_F16,  SL_BF16,  F8};

static uint32_t width(sl_dtype t, uint32_t most) {
    const sl_act_kind kind = sl_act_kind_of(t);
    const uint32_t block = sl_act_is_int8(kind) ? sl_act_block(kind) : 8;
    return block * (1 + kt_below(most / block));
}

static float limit(void) {
    return kt_below(2) ? 0.5f + (float)kt_below(4) : 0;
}

/* Every type as gate and up with another one as down: few rows an expert, and more than a group
 * has. */
static void test_types(void **state) {
    static const struct {
        uint32_t rows, experts, top_k;
    } few[] = {{1, 5, 3}, {4, 24, 4}, {30, 8, 2}}, many[] = {{40, 3, 2}, {550, 3, 2}, {90, 4, 1}};
    (void)state;
    for (uint32_t i = 0; i < SL_LEN(type) * SL_LEN(few); i++) {
        const sl_fast_types t = {type[i % SL_LEN(type)], type[kt_below(SL_LEN(type))]};
        const uint32_t at = i / SL_LEN(type);
        if (SL_SLOW_BUILD ? (i + kt_below(2)) % take_one_in(8) : (i + at) % take_one_in(3))
            continue; /* each type once, with these rows or those */
        check(width(t.up, 600), width(t.down, 300), t, limit(), few[at].rows, few[at].experts,
              few[at].top_k);
        check(width(t.up, 300), width(t.down, 256), t, limit(), many[at].rows, many[at].experts,
              many[at].top_k);
    }
}

/* What families have: DeepSeek-V3, gpt-oss in both of its formats, others in BF16 and F16. */
static void test_families(void **state) {
    static const struct {
        sl_fast_types t;
        float limit;
    } of[] = {{{F8, F8}, 0},           {{SL_MXFP4, SL_MXFP4}, 7}, {{SL_BF16, SL_BF16}, 7},
              {{SL_BF16, SL_BF16}, 0}, {{SL_F16, SL_F16}, 0},     {{SL_Q8_0, SL_Q8_0}, 7}};
    (void)state;
    for (uint32_t i = 0; i < SL_LEN(of); i++) {
        const sl_fast_types t = of[i].t;
        check(width(t.up, 600), width(t.down, 600), t, of[i].limit, 5, 8, 3);
        check(width(t.up, 300), width(t.down, 300), t, of[i].limit, 100, 4, 2);
    }
}

/* Nobody's pairs alone. */
static void test_nothing(void **state) {
    (void)state;
    batch b = {.m = {.d_model = 64,
                     .d_ff = 32,
                     .types = {SL_Q8_0, SL_Q8_0},
                     .n_experts = 1,
                     .n_rows = 3,
                     .top_k = 1,
                     .n_pairs = 3}};
    draw(&b, false);
    static const uint32_t none[] = {7, 8, 9};
    b.m.id = upload(none, sizeof none, 0);
    sl_cuda_fast_moe_by(gpu, &b.m, SL_FAST_GROUPS);
    float *got = host(b.floats * sizeof *got);
    download(got, b.m.y, b.floats * sizeof *got);
    for (size_t i = 0; i < b.floats; i++) assert_true(got[i] == 0);
    forget();
}

/* No other way takes types that are said, this one none that are not; no block of threads asks for
 * more memory than it may have. */
static void test_ways(void **state) {
    static uint8_t scratch[SL_FAST_ZEROED] __attribute__((aligned(256)));
    (void)state;
    assert_false(sl_fast_groups_fit(256, 256, (sl_fast_types){SL_F32, SL_Q8_0}));
    assert_false(sl_fast_groups_fit(256, 256, (sl_fast_types){SL_Q8_0, SL_F32}));
    assert_false(sl_fast_groups_fit(32, 96, (sl_fast_types){SL_Q8_0, SL_Q6_K}));
    assert_true(sl_fast_groups_fit(32, 96, (sl_fast_types){SL_MXFP4, SL_Q4_0}));
    assert_true(sl_fast_groups_fit(64, 24, (sl_fast_types){F8, F8}));
    assert_true(sl_fast_groups_fit(64, 24, (sl_fast_types){SL_Q8_0, SL_BF16}));
    for (uint32_t i = 0; i < SL_LEN(type); i++)
        for (uint32_t rows = 1; rows < 3000; rows *= 3)
            for (int way = 0; way < SL_FAST_WAYS; way++) {
                sl_fast_plan p;
                sl_fast_moe m = {.n_rows = rows,
                                 .n_pairs = 2 * rows,
                                 .n_experts = 8,
                                 .top_k = 2,
                                 .d_model = 4096,
                                 .d_ff = 14336,
                                 .types = {type[i], type[i]},
                                 .scratch = scratch,
                                 .most_shared = 101376};
                assert_int_equal(sl_fast_can(&m, (sl_fast_way)way), way == SL_FAST_GROUPS);
                const uint32_t n = sl_fast_is_float(type[i]) ? 4 : 6; /* rows are not rounded */
                sl_fast_plan_make(&m, (sl_fast_way)way, &p);
                assert_int_equal(p.n, n);
                m.many = true; /* pairs that more than one block sorts are counted first */
                sl_fast_plan_make(&m, (sl_fast_way)way, &p);
                assert_int_equal(p.n, 2 * rows > SL_FAST_SORT_PAIRS ? n + 1 : n);
                m.many = false;
                for (uint32_t k = 0; k < p.n; k++)
                    assert_in_range(p.launch[k].shared, 0, m.most_shared);
                m.types = (sl_fast_types){0};
                assert_false(sl_fast_can(&m, SL_FAST_GROUPS));
            }
}

static int open_gpu(void **state) {
    (void)state;
    return open_gpu_for(SL_NUMERICS_FAST);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_ways),
    };
    return cmocka_run_group_tests(tests, open_gpu, close_gpu);
}
