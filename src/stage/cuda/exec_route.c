/* Routers on the GPU. */
#include "stage/cuda/exec_products.h"
#include "stage/cuda/exec_rows.h"

#include "stage/cuda/kernels/args_attention.h"

void sl_cuda_route(sl_cuda *c, const sl_route_args *r) {
    const sl_model_spec *m = r->m;
    const bool biased = r->router == SL_ROUTER_SIGMOID_GROUPS;
    const bool looks = biased || r->router == SL_ROUTER_SOFTMAX_TOPK;
    const sl_k_route_args a = {.logit = r->logit,
                               .bias = biased ? r->bias : NULL,
                               .expert = r->expert,
                               .gate = r->gate,
                               .n = m->n_experts,
                               .k = m->top_k,
                               .groups = looks ? m->n_groups : 0,
                               .top_groups = m->top_groups,
                               .router = (uint32_t)r->router,
                               .norm_topk = m->norm_topk,
                               .scale = m->route_scale,
                               .h = r->h,
                               .d = m->d_model};
    SL_ASSERT(m->top_k <= SL_MAX_TOP_K && m->top_k <= m->n_experts && m->n_groups <= SL_MAX_GROUPS);
    if (sl_cuda_vec_routes(c, &a, r->n_rows)) return;
    sl_cuda_launch(c, SL_CUDA_sl_k_route, r->n_rows, 1, 1, 32, sl_cuda_route_room(m->n_experts),
                   &a);
}
