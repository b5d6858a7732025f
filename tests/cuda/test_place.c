/* Queries, keys and values to their places on the GPU in one launch: the bits of the host's
 * operations one after another. */
#include "rows_test.h"

#define MAX_ROWS 5
#define PAGES    4

typedef struct place_case {
    sl_model_spec m;
    uint32_t rows, pos[MAX_ROWS], list[2][PAGES];
    const uint32_t *pages[MAX_ROWS];
    sl_dtype type;
    bool biases, centred;
    float *grow;
} place_case;

static place_case drawn; /* static: a spec is large */

static void draw(place_case *k, uint32_t dim) {
    memset(k, 0, sizeof *k);
    k->m.n_layers = 2;
    k->m.n_kv_heads = 1 + kt_below(4);
    k->m.n_heads = k->m.n_kv_heads * (1 + kt_below(6));
    k->m.head_dim = dim;
    k->m.kv_type = (sl_kv_type)kt_below(SL_KV_TYPES);
    k->m.rope_dim = 32 * (1 + kt_below(dim / 32));
    k->m.rms_eps = 1e-5f;
    k->m.qk_norm = kt_bits() & 1;
    k->m.qk_unit = kt_below(4) == 0;
    k->m.rope_pairs = kt_below(3) == 0;
    k->m.clip_qkv = kt_below(3) ? 0 : 0.5f;
    k->m.unrotated[1] = kt_below(4) == 0;
    k->type = (sl_dtype)kt_below(SL_DTYPE_PLAIN);
    k->biases = kt_bits() & 1;
    k->centred = kt_below(4) == 0;
    k->rows = 1 + kt_below(MAX_ROWS);
    uint32_t *at = rt_order(2 * PAGES);
    for (uint32_t i = 0; i < 2 * PAGES; i++) k->list[i / PAGES][i % PAGES] = at[i];
    sl_free(at);
    for (uint32_t r = 0; r < k->rows; r++) {
        k->pages[r] = k->list[r % 2];
        k->pos[r] = r * 20 + kt_below(20);
    }
    if (k->m.unrotated[1] && kt_bits() & 1) k->grow = kt_floats(k->rows);
}

/* As src/model/block.c. */
static void on_host(const place_case *k, const sl_mat *mat, const double *freq, float *q, float *kk,
                    float *v, sl_kv_pool kv) {
    const sl_model_spec *m = &k->m;
    float *const x[3] = {q, kk, v};
    const uint32_t heads[3] = {m->n_heads, m->n_kv_heads, m->n_kv_heads};
    float ones[256];
    for (uint32_t i = 0; i < m->head_dim; i++) ones[i] = 1;
    const sl_mat unit = {.data = ones, .n = 1, .k = m->head_dim, .dtype = SL_F32};
    for (uint32_t i = 0; i < 3; i++) {
        const size_t n = (size_t)k->rows * heads[i];
        const sl_rope_shape shape = {heads[i], m->head_dim, m->rope_dim, heads[i] * m->head_dim};
        const sl_norm_out out = {.y = x[i]};
        if (k->biases) sl_bias_add(&rt_host, x[i], &mat[i], k->rows);
        if (i < 2 && m->rope_pairs && !m->unrotated[1])
            sl_split_pairs(&rt_host, x[i], (uint32_t)n, m->head_dim, m->head_dim);
        if (i < 2 && m->qk_norm)
            sl_norm_quantise(&rt_host, x[i], &mat[3 + i], m->rms_eps, k->centred, (uint32_t)n,
                             m->head_dim, &out);
        if (m->clip_qkv > 0) sl_vec_clip(&rt_host, x[i], m->clip_qkv, n * m->head_dim);
        if (i < 2 && !m->unrotated[1]) sl_rope(&rt_host, x[i], k->pos, freq, k->rows, &shape);
        if (i < 2 && !m->unrotated[1] && m->qk_unit)
            sl_norm_quantise(&rt_host, x[i], &unit, m->rms_eps, k->centred, (uint32_t)n,
                             m->head_dim, &out);
        if (i == 0 && k->grow)
            sl_pick_rows(&rt_host, x[i], NULL, k->grow, k->rows, heads[i] * m->head_dim, x[i]);
        if (i > 0)
            sl_put_kv(&rt_host, &(sl_kv_put){.m = m,
                                             .layer = 1,
                                             .is_v = i - 1,
                                             .n_rows = k->rows,
                                             .n_tiles = heads[i],
                                             .width = m->head_dim,
                                             .x = x[i],
                                             .x_stride = heads[i] * m->head_dim,
                                             .pos = k->pos,
                                             .pages = k->pages,
                                             .kv = kv});
    }
}

static void compare(const place_case *k) {
    const sl_model_spec *m = &k->m;
    const size_t all = 2 * PAGES * sl_kv_page_bytes(m);
    const size_t q_n = (size_t)k->rows * m->n_heads * m->head_dim;
    const size_t kv_n = (size_t)k->rows * m->n_kv_heads * m->head_dim;
    const uint32_t width[5] = {m->n_heads * m->head_dim, m->n_kv_heads * m->head_dim,
                               m->n_kv_heads * m->head_dim, m->head_dim, m->head_dim};
    float *q = kt_floats(q_n), *kk = kt_floats(kv_n), *v = kt_floats(kv_n);
    uint8_t *pool = rt_noise(all);
    double freq[128];
    sl_mat mat[5], gpu[5];
    void *base[5];
    for (uint32_t i = 0; i < m->rope_dim / 2; i++) freq[i] = pow(10000, -(double)i / 64);
    for (uint32_t i = 0; i < 5; i++) {
        void *w = kt_weights(k->type, width[i], false, &base[i]);
        mat[i] = (sl_mat){.data = w, .n = 1, .k = width[i], .dtype = k->type};
        gpu[i] = mat[i];
        gpu[i].data = rt_in(w, sl_dtype_row_bytes(k->type, width[i]));
    }
    sl_qkv_place p = {.m = m,
                      .layer = 1,
                      .n_rows = k->rows,
                      .q = rt_in(q, q_n * sizeof *q),
                      .k = rt_in(kk, kv_n * sizeof *kk),
                      .v = rt_in(v, kv_n * sizeof *v),
                      .centred = k->centred,
                      .freq = rt_in(freq, sizeof freq),
                      .grow = k->grow,
                      .pos = k->pos,
                      .pages = k->pages,
                      .kv = sl_kv_pool_of(m, rt_in(pool, all))};
    for (uint32_t i = 0; i < 3 && k->biases; i++) p.bias[i] = &gpu[i];
    for (uint32_t i = 0; i < 2 && m->qk_norm; i++) p.norm[i] = &gpu[3 + i];
    on_host(k, mat, freq, q, kk, v, sl_kv_pool_of(m, pool));
    assert_true(sl_cuda_place_qkv(rt_gpu, &p));
    rt_same("queries", q, p.q, q_n);
    rt_same_bytes("pages", pool, p.kv.base, all);
    for (uint32_t i = 0; i < 5; i++) sl_free(base[i]);
    sl_free(q);
    sl_free(kk);
    sl_free(v);
    sl_free(pool);
    sl_free(k->grow);
    rt_done();
}

static void places(void **state) {
    static const uint32_t dims[] = {32, 64, 80, 96, 112, 128, 192, 256};
    (void)state;
    for (uint32_t i = 0; i < 64; i++) {
        draw(&drawn, dims[i % SL_LEN(dims)]);
        compare(&drawn);
    }
}

/* Heads that are too wide, or halves that lie across threads: others do it. */
static void places_refused(void **state) {
    sl_qkv_place p = {.m = &drawn.m, .layer = 1};
    (void)state;
    draw(&drawn, 64);
    sl_free(drawn.grow);
    drawn.m.unrotated[1] = 0;
    drawn.m.rope_dim = 24;
    assert_false(sl_cuda_place_qkv(rt_gpu, &p));
    drawn.m.rope_dim = 32;
    drawn.m.head_dim = 320;
    assert_false(sl_cuda_place_qkv(rt_gpu, &p));
    const sl_mat wide = {.k = 128};
    drawn.m.head_dim = 64;
    p.norm[0] = &wide;
    assert_false(sl_cuda_place_qkv(rt_gpu, &p));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places),
        cmocka_unit_test(places_refused),
    };
    return cmocka_run_group_tests(tests, rt_open, rt_close);
}
