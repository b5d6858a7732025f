/* Routers on the GPU: the experts and the bits of the host's on drawn logits. */
#include "rows_test.h"

/* Logits with ties, zeros of both signs, infinities and, in some rows, NaN. */
static void draw_logits(float *l, uint32_t rows, uint32_t n) {
    for (uint32_t r = 0; r < rows; r++, l += n) {
        const uint32_t kind = kt_below(7);
        for (uint32_t e = 0; e < n; e++) {
            l[e] = kt_value() * 4;
            if (kind == 1) l[e] = (float)(int)kt_below(5) - 2;
            if (kind == 2 && kt_below(4) == 0) l[e] = NAN;
            if (kind == 3 && kt_below(8) == 0) l[e] = kt_bits() & 1 ? INFINITY : -INFINITY;
            if (kind == 4) l[e] = kt_bits() & 1 ? 0.0f : -0.0f;
            if (kind == 5 && r % 2) l[e] = NAN;
            if (kind == 6) l[e] -= 46; /* sigmoids about 1e-20 */
        }
    }
}

static void route_once(const sl_model_spec *m, sl_router router, uint32_t rows) {
    const uint32_t n = m->n_experts, k = m->top_k;
    const size_t logits = (size_t)rows * n, picks = (size_t)rows * k;
    float *l = kt_floats(logits), *rank = kt_floats(logits), *bias = kt_floats(n);
    const size_t hidden = (size_t)rows * m->d_model;
    float *gate = kt_floats(picks), *h = kt_floats(hidden);
    uint32_t *expert = rt_rows(picks, 1), *got = rt_rows(picks, 1);
    draw_logits(l, rows, n);
    sl_route_args a = {.m = m,
                       .router = router,
                       .n_rows = rows,
                       .rank = rank,
                       .bias = rt_in(bias, n * sizeof *bias),
                       .logit = rt_in(l, logits * sizeof *l),
                       .expert = rt_in(expert, picks * sizeof *expert),
                       .gate = rt_in(gate, picks * sizeof *gate),
                       .h = m->d_model ? rt_in(h, hidden * sizeof *h) : NULL};
    sl_cuda_route(rt_gpu, &a);
    rt_out(got, a.expert, picks * sizeof *got);
    const float *gate_gpu = a.gate, *h_gpu = a.h;
    a.bias = bias;
    a.logit = l;
    a.expert = expert;
    a.gate = gate;
    if (a.h) a.h = h;
    sl_route(&rt_host, &a);
    for (size_t i = 0; i < picks; i++)
        if (got[i] != expert[i])
            fail_msg("router %d, %u of %u: row %zu has expert %u, expected %u", (int)router, k, n,
                     i / k, got[i], expert[i]);
    rt_same("gates", gate, gate_gpu, picks);
    if (h_gpu) rt_same("rows without a place", h, h_gpu, hidden);
    sl_free(l);
    sl_free(rank);
    sl_free(bias);
    sl_free(gate);
    sl_free(h);
    sl_free(expert);
    sl_free(got);
    rt_done();
}

static void routers(void **state) {
    static const uint32_t experts[] = {2, 4, 8, 31, 32, 60, 64, 128, 160, 256, 384, 512};
    static sl_model_spec m;
    (void)state;
    for (size_t i = 0; i < SL_LEN(experts); i++)
        for (uint32_t j = 0; j < 6; j++) {
            m = (sl_model_spec){.n_experts = experts[i], .norm_topk = kt_bits() & 1};
            m.top_k = 1 + kt_below(SL_MIN(experts[i], 1u << (1 + kt_below(6))));
            m.route_scale = kt_bits() & 1 ? 2.5f : 0;
            m.d_model = kt_bits() & 1 ? 1 + kt_below(300) : 0;
            route_once(&m, j & 1 ? SL_ROUTER_SIGMOID_TOPK : SL_ROUTER_SOFTMAX_TOPK,
                       1 + kt_below(8));
        }
}

static void routers_of_groups(void **state) {
    static const uint32_t groups[] = {1, 2, 4, 8, 16, 40};
    static sl_model_spec m;
    (void)state;
    for (size_t i = 0; i < SL_LEN(groups); i++)
        for (uint32_t j = 0; j < 12; j++) {
            const uint32_t size = 1 + kt_below(20);
            m = (sl_model_spec){.n_groups = groups[i], .norm_topk = kt_bits() & 1};
            m.n_experts = groups[i] * SL_MAX(size, 2);
            m.top_groups = 1 + kt_below(groups[i]);
            m.top_k = 1 + kt_below(SL_MIN(m.n_experts, (uint32_t)SL_MAX_TOP_K));
            m.route_scale = 1 + (float)kt_below(3);
            route_once(&m, j & 1 ? SL_ROUTER_SIGMOID_GROUPS : SL_ROUTER_SOFTMAX_TOPK,
                       1 + kt_below(8));
        }
}

static void routers_of_the_most(void **state) {
    static sl_model_spec m;
    (void)state;
    m = (sl_model_spec){.n_experts = SL_MAX_EXPERTS,
                        .top_k = SL_MAX_TOP_K,
                        .n_groups = SL_MAX_GROUPS,
                        .top_groups = 17,
                        .route_scale = 1};
    route_once(&m, SL_ROUTER_SIGMOID_GROUPS, 2);
    route_once(&m, SL_ROUTER_SOFTMAX_TOPK, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(routers),
        cmocka_unit_test(routers_of_groups),
        cmocka_unit_test(routers_of_the_most),
    };
    return cmocka_run_group_tests(tests, rt_open, rt_close);
}
